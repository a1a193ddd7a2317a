//! `cargo xtask mutants --again`: mutants that the evidence has as found, each tried again by the suite that found it.
//!
//! Place: it draws from `docs/evidence/mutants.json` instead of all mutants, so that a run takes minutes; [`super::run`] tries them.
//!
//! Invariant: it fails if fewer than half of them are found, which no seed explains: then the suites see less than they did.

use super::copy::{self, Copy};
use super::draw::{self, Drawn, Random};
use super::layers::{LAYERS, Layer, Suite};
use super::run::{self, Outcome};
use flashweir_judges::host::root;
use serde_json::Value;
use std::collections::BTreeSet;

const FILE: &str = "docs/evidence/mutants.json";

/// Mutants that took more seconds than this to be found are left to the evidence.
const SECONDS_MAX: f64 = 20.0;

/// Tries about `count` mutants, evenly over the layers; returns whether at least half of them are found.
pub(crate) fn command(seed: u64, count: usize, told: impl Fn(&Outcome) + Sync) -> Result<bool, String> {
    let text = std::fs::read_to_string(root().join(FILE)).map_err(|error| format!("{FILE}: {error}"))?;
    let evidence: Value = serde_json::from_str(&text).map_err(|error| format!("{FILE}: {error}"))?;
    let files = copy::find()?;
    let pairs = draw(&draw::all(&files, &BTreeSet::new()), &evidence, seed, count);
    println!("   {} mutants that {FILE} says are found", pairs.len());
    let suites: Vec<Suite> = pairs.iter().map(|(_, suite)| suite.clone()).collect();
    let layers: Vec<&str> = pairs.iter().map(|(drawn, _)| drawn.layer).collect();
    let copy = Copy::build(files, &layers, seed, &suites)?;
    let outcomes = run::try_again(&copy, seed, &pairs, told)?;
    let found = outcomes.iter().filter(|outcome| outcome.killed.is_some()).count();
    println!("   {found} of {} found again", outcomes.len());
    Ok(found > 0 && 2 * found >= outcomes.len())
}

/// Draws mutants of the checkout that the evidence has as found, each with the suite that found it, if its layer still has that one.
fn draw(all: &[Drawn], evidence: &Value, seed: u64, count: usize) -> Vec<(Drawn, Suite)> {
    let mut random = Random::new(seed);
    let of_layer = |name: &str| {
        let suites = LAYERS.iter().find(|layer| layer.name == name).map(|layer| layer.suites());
        let found = evidence["chunks"].as_array().into_iter().flatten().filter(|one| {
            one["layer"] == name && one["seconds"].as_f64().is_some_and(|seconds| seconds <= SECONDS_MAX)
        });
        let pair = |one: &Value| {
            let by = one["found_by"].as_str()?;
            let suite = suites.iter().flatten().find(|suite| suite.name() == by)?.clone();
            let drawn = all.iter().find(|drawn| draw::is_in_json(one, &drawn.key(), drawn.nth))?;
            Some((drawn.clone(), suite))
        };
        let mut pairs: Vec<(Drawn, Suite)> = found.filter_map(pair).collect();
        random.shuffle(&mut pairs);
        pairs.truncate(count.div_ceil(layers_of(evidence).count()));
        pairs
    };
    layers_of(evidence).map(|layer| layer.name).flat_map(of_layer).collect()
}

/// The layers that the evidence has; a newer one is not in it yet.
fn layers_of(evidence: &Value) -> impl Iterator<Item = &'static Layer> + '_ {
    LAYERS.iter().filter(|layer| !evidence["sums"]["layers"][layer.name].is_null())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_evidence_has_mutants_of_each_layer_that_still_exist() {
        let text = std::fs::read_to_string(root().join(FILE)).expect("the file is there");
        let evidence: Value = serde_json::from_str(&text).expect("it is JSON");
        let all = draw::all(&copy::find().expect("the files are there"), &BTreeSet::new());
        for seed in 0..3 {
            let pairs = draw(&all, &evidence, seed, 14);
            for layer in layers_of(&evidence) {
                let count = pairs.iter().filter(|(drawn, _)| drawn.layer == layer.name).count();
                assert!(count > 0, "no mutant of {} is left: gather the evidence again", layer.name);
            }
        }
    }
}
