//! Cuts of a stack while it runs: collects the media that a cut after each turn may leave, and draws some of them.
//!
//! Place in the data flow: the driver of a [`Stack`] passes it to [`Cuts::look`] after each turn; afterwards [`below`](super::below)
//! brings the disk back with each chosen medium.
//!
//! Invariants: the choice is a function of the run; consecutive turns that leave the same to a power loss
//! ([`situation_salt`]) form one situation.

use super::below::situation_salt;
use super::ops::PlaceHash;
use super::setup::BLOCKS;
use super::volume::{Base, base_hash};
use crate::explorer::{cell_hash, combinations};
use flashweir_contract::Content;
use flashweir_core::random::mix;
use flashweir_core::{Instant, Payload, RandomStream};
use flashweir_device::flash::Interrupted;
use flashweir_device::{Device, Media, Torn};
use flashweir_sim::stack::Stack;
use std::collections::BTreeMap;
use std::ops::Range;
use std::sync::Arc;

/// Returns the hash of what a disk reads as, computed as [`explorer`](super::explorer) hashes images.
pub fn image_of(base: &Base, stack: &Stack) -> u64 {
    let mut hash = PlaceHash::default();
    let zero = Payload::default();
    stack.peek(BLOCKS, |lpn, now| {
        let before = base.contents.get(&lpn).unwrap_or(&zero);
        let is_shared = match (before, now) {
            (Payload::Bytes(a), Payload::Bytes(b)) => Arc::ptr_eq(a, b),
            (a, b) => a == b,
        };
        if !is_shared {
            hash.add(lpn, Content::from(now).0);
            hash.remove(lpn, Content::from(before).0);
        }
    });
    base_hash(base).wrapping_add(hash.0)
}

/// The state in which the power fails: the medium, and the operations in progress.
pub(super) struct Situation {
    key: u64,
    cells: Vec<Interrupted>,
    now: Instant,
}

impl Situation {
    /// Takes the situation of a device; `salt` stands for the medium.
    pub(super) fn new(device: &Device, now: Instant, salt: u64) -> Self {
        let cells = device.interrupted(now);
        let key = cells.iter().fold(mix(salt), |hash, cell| mix(hash ^ cell_hash(cell)));
        Self { key, cells, now }
    }

    /// Returns the ways in which the operations in progress may be torn.
    pub(super) fn torn(&self) -> Vec<Vec<Torn>> {
        combinations(&self.cells, &mut RandomStream::new(self.key, "torn operations"))
    }

    pub(super) fn media(&self, device: &Device, torn: &[Torn]) -> Media {
        let mut next = torn.iter();
        device.cut(self.now, |_| next.next().copied().unwrap_or(Torn::Absent))
    }
}

/// The cuts of a run.
#[derive(Debug)]
pub struct Cuts {
    states_max: usize,
    /// First turn of each situation.
    firsts: Vec<u32>,
    last_key: Option<u64>,
    allowed: u64,
    /// The media with the lowest ranks, by rank, situation, and index of the torn variant.
    chosen: BTreeMap<(u64, usize, usize), Media>,
}

impl Cuts {
    /// Makes a collection of at most `states_max` media.
    pub fn new(states_max: usize) -> Self {
        Self { states_max, firsts: Vec::new(), last_key: None, allowed: 0, chosen: BTreeMap::new() }
    }

    /// Examines a stack after `turn` turns. The media before the first turn and after the last are always chosen.
    pub fn look(&mut self, turn: u32, stack: &Stack, is_last: bool) {
        let now = stack.cut_instant();
        stack.with_device(|device| {
            let situation = Situation::new(device, now, situation_salt(device));
            let is_old = self.last_key.replace(situation.key) == Some(situation.key);
            if is_old && !is_last {
                return;
            }
            self.firsts.push(turn);
            let torn = situation.torn();
            self.allowed += torn.len() as u64;
            for (index, torn) in torn.iter().enumerate() {
                let is_end = index == 0 && (turn == 0 || is_last);
                let rank = if is_end { 0 } else { mix(situation.key ^ index as u64).max(1) };
                let key = (rank, self.firsts.len() - 1, index);
                let is_wanted = self.chosen.last_key_value().is_none_or(|(last, _)| key < *last);
                if is_wanted || self.chosen.len() < self.states_max {
                    self.chosen.insert(key, situation.media(device, torn));
                }
                if self.chosen.len() > self.states_max {
                    self.chosen.pop_last();
                }
            }
        });
    }

    /// Returns the number of situations so far.
    pub fn situations(&self) -> u64 {
        self.firsts.len() as u64
    }

    /// Returns the number of media that these may leave.
    pub fn allowed(&self) -> u64 {
        self.allowed
    }

    /// Returns the chosen media, each with the turns after which a cut may leave it; `end` is the last turn.
    pub fn into_media(self, end: u32) -> Vec<(Range<u32>, Media)> {
        let mut media: Vec<(usize, usize, Media)> =
            self.chosen.into_iter().map(|((_, situation, torn), media)| (situation, torn, media)).collect();
        media.sort_by_key(|&(situation, torn, _)| (situation, torn));
        let firsts = self.firsts;
        let turns =
            |situation: usize| firsts[situation]..firsts.get(situation + 1).copied().unwrap_or(end + 1);
        media.into_iter().map(|(situation, _, media)| (turns(situation), media)).collect()
    }
}
