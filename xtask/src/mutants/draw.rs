//! The mutants to try, drawn by a seed: evenly over the layers, and in each layer evenly over the operators.
//!
//! Place: it selects from the mutants of [`super::copy`] those that [`super::run`] tries.
//!
//! Invariant: with the same seed, fewer mutants are the beginning of more.

use super::copy::File;
use super::layers::LAYERS;
use super::rules::{Mutant, Operator};
use std::collections::{BTreeMap, BTreeSet, VecDeque};

/// Names of the texts that identify a mutant, in the order of [`Drawn::key`].
pub(crate) const KEYS: [&str; 5] = ["file", "function", "operator", "original", "mutated"];

/// Whether a mutant in JSON is the `nth` one with this key.
pub(crate) fn is_in_json(mutant: &serde_json::Value, key: &[String; 5], nth: usize) -> bool {
    KEYS.iter().zip(key).all(|(name, text)| mutant[*name] == **text) && mutant["nth"] == nth
}

/// A mutant that is tried.
#[derive(Clone, Debug)]
pub(crate) struct Drawn {
    pub(crate) id: u32,
    pub(crate) layer: &'static str,
    pub(crate) file: &'static str,
    /// Its number among those in the file that look alike, from 1.
    pub(crate) nth: usize,
    pub(crate) mutant: Mutant,
}

impl Drawn {
    /// Texts that identify it, without the line number, which changes with each line before it.
    pub(crate) fn key(&self) -> [String; 5] {
        let mutant = &self.mutant;
        let operator = mutant.operator.name().to_string();
        [self.file.into(), mutant.function.clone(), operator, mutant.original.clone(), mutant.mutated.clone()]
    }

    /// Description in one line.
    pub(crate) fn line(&self) -> String {
        let Mutant { operator, line, original, mutated, .. } = &self.mutant;
        let short = |text: &str| {
            let mut short: String = text.chars().take(70).collect();
            if short.len() < text.len() {
                short.push('…');
            }
            short
        };
        let mutated = if mutated.is_empty() { "nothing".into() } else { short(mutated) };
        let place = format!("{}:{line}", self.file);
        format!(
            "{:>5} {:<12} {:<18} {place}  {} → {mutated}",
            self.id,
            self.layer,
            operator.name(),
            short(original)
        )
    }
}

/// All mutants that compile.
pub(crate) fn all(files: &[File], refused: &BTreeSet<u32>) -> Vec<Drawn> {
    let mut all = Vec::new();
    for file in files {
        let mut alike: BTreeMap<[String; 5], usize> = BTreeMap::new();
        for (id, mutant) in (file.first..).zip(&file.mutants.all) {
            let mut drawn = Drawn { id, layer: file.layer, file: file.path, nth: 0, mutant: mutant.clone() };
            let nth = alike.entry(drawn.key()).or_default();
            *nth += 1;
            drawn.nth = *nth;
            if !refused.contains(&id) {
                all.push(drawn);
            }
        }
    }
    all
}

/// Draws `count` mutants of these layers.
pub(crate) fn draw(all: &[Drawn], layers: &[&str], seed: u64, count: usize) -> Vec<Drawn> {
    let mut queues: Vec<VecDeque<&Drawn>> = Vec::new();
    for (at, layer) in LAYERS.iter().enumerate().filter(|(_, layer)| layers.contains(&layer.name)) {
        let mut random = Random::new(seed.wrapping_mul(LAYERS.len() as u64).wrapping_add(at as u64));
        let of_operator = |operator: Operator, random: &mut Random| {
            let mut of_it: Vec<&Drawn> = all
                .iter()
                .filter(|drawn| drawn.layer == layer.name && drawn.mutant.operator == operator)
                .collect();
            random.shuffle(&mut of_it);
            VecDeque::from(of_it)
        };
        let mut operators: Vec<VecDeque<&Drawn>> =
            Operator::ALL.iter().map(|(operator, ..)| of_operator(*operator, &mut random)).collect();
        // The first operator differs between layers and seeds.
        random.shuffle(&mut operators);
        let mut queue = VecDeque::new();
        while operators.iter().any(|left| !left.is_empty()) {
            queue.extend(operators.iter_mut().filter_map(VecDeque::pop_front));
        }
        queues.push(queue);
    }
    let mut drawn = Vec::new();
    while drawn.len() < count && queues.iter().any(|queue| !queue.is_empty()) {
        let turn: Vec<&Drawn> = queues.iter_mut().filter_map(VecDeque::pop_front).collect();
        drawn.extend(turn.into_iter().take(count - drawn.len()).cloned());
    }
    drawn
}

/// SplitMix64.
#[derive(Debug)]
pub(crate) struct Random(u64);

impl Random {
    pub(crate) fn new(seed: u64) -> Self {
        Self(seed)
    }

    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut mixed = self.0;
        mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        mixed ^ (mixed >> 31)
    }

    pub(crate) fn shuffle<T>(&mut self, list: &mut [T]) {
        for at in (1..list.len()).rev() {
            list.swap(at, (self.next() % (at as u64 + 1)) as usize);
        }
    }
}
