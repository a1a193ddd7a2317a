//! What a cut of the model device may leave: positions at which that changes, and the states at one of them.

use super::case::Effort;
use super::ops::PlaceHash;
use flashweir_contract::{CrashState, Exploration, Kind, Log, LogPos};
use flashweir_core::RandomStream;
use flashweir_sim::model_port::ModelPort;
use std::collections::BTreeSet;

/// Returns the positions after which a cut may leave something new, or must no longer leave something.
pub(crate) fn positions(log: &Log, end: u32) -> Vec<u32> {
    let promises: BTreeSet<u32> = log
        .ops()
        .iter()
        .filter(|op| op.submission.fua || matches!(op.submission.kind, Kind::Flush | Kind::RangeFlush))
        .filter_map(|op| op.completed().map(|(at, _)| at.0 + 1))
        .collect();
    let units = |at: u32| log.units_before(LogPos(at)).len();
    let is_new = |&at: &u32| at == 0 || at == end || promises.contains(&at) || units(at) != units(at - 1);
    (0..=end).filter(is_new).collect()
}

/// Returns the difference of an image from the one before the log began, as a summand of its hash.
fn change(log: &Log, state: &CrashState) -> u64 {
    let mut hash = PlaceHash::default();
    for ((lpn, initial), (_, unit)) in log.lpns().zip(state.shown(log)) {
        let Some(unit) = unit else { continue };
        let content = log.unit(unit).content;
        if content != initial {
            hash.add(lpn, content.0);
            hash.remove(lpn, initial.0);
        }
    }
    hash.0
}

impl Effort {
    fn exploration(&self, seed: u64) -> Exploration {
        let Self { exhaustive_max, draws, .. } = *self;
        Exploration { exhaustive_atoms_max: exhaustive_max, pairs: false, random_draws: draws, seed }
    }
}

/// States with the hashes of their images.
pub(crate) type States = Vec<(u64, CrashState)>;

/// Returns the states after a cut. `before` is the hash of the image before the log began.
pub(crate) fn states_at(port: &ModelPort, cut: u32, before: u64, effort: &Effort) -> States {
    port.with_states(LogPos(cut), effort.exploration(before ^ u64::from(cut)), |log, states| {
        states.map(|state| (before.wrapping_add(change(log, &state)), state)).collect()
    })
}

/// Draws one of these cuts and a state there; returns both, with the hash of its image.
pub(crate) fn drawn_state(
    port: &ModelPort,
    cuts: &[u32],
    before: u64,
    effort: &Effort,
    random: &mut RandomStream,
) -> (u32, u64, CrashState) {
    let cut = cuts[random.below(cuts.len() as u64) as usize];
    let mut states = states_at(port, cut, before, effort);
    let (image, state) = states.swap_remove(random.below(states.len() as u64) as usize);
    (cut, image, state)
}
