//! The map of a host FTL: one word for each logical unit (open-channel §3).
//!
//! ```text
//! cached 1 │ ring 7 │ slot 24 │ generation 32        an entry of a ring
//!      0 0 │ place 62                                a unit on the medium
//!      0 1 │ place 62                                deallocated by the record in this unit
//! all ones                                           never written
//! ```
//!
//! Invariant: a word changes only by exchange or by compare and swap; the loser of a race learns what stands there.

use flashweir_core::{Lpn, Ppa};

/// An entry of a ring; the generation counts how often the slot was used.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Slot {
    pub(super) ring: u16,
    pub(super) index: u32,
    pub(super) generation: u32,
}

/// What a logical unit is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Word {
    /// Never written: zeros.
    Empty,
    /// On the medium.
    Place(Ppa),
    /// Deallocated: zeros. The record in this unit says so after a power loss.
    Trimmed(Ppa),
    /// In a ring.
    Cached(Slot),
}

const CACHED: u64 = 1 << 63;
const TRIMMED: u64 = 1 << 62;
const EMPTY: u64 = u64::MAX;

impl Word {
    fn pack(self) -> u64 {
        match self {
            Self::Empty => EMPTY,
            Self::Place(ppa) => ppa.0,
            Self::Trimmed(ppa) => TRIMMED | ppa.0,
            Self::Cached(Slot { ring, index, generation }) => {
                CACHED | u64::from(ring) << 56 | u64::from(index) << 32 | u64::from(generation)
            }
        }
    }

    fn unpack(word: u64) -> Self {
        match word {
            EMPTY => Self::Empty,
            word if word & CACHED != 0 => Self::Cached(Slot {
                ring: (word >> 56 & 0x7f) as u16,
                index: (word >> 32) as u32 & 0xff_ffff,
                generation: word as u32,
            }),
            word if word & TRIMMED != 0 => Self::Trimmed(Ppa(word & !TRIMMED)),
            word => Self::Place(Ppa(word)),
        }
    }
}

/// The map.
#[derive(Clone, Debug)]
pub(super) struct HostMap {
    words: Vec<u64>,
}

impl HostMap {
    pub(super) fn new(units: u64) -> Self {
        Self { words: vec![EMPTY; units as usize] }
    }

    pub(super) fn get(&self, lpn: Lpn) -> Word {
        Word::unpack(self.words[lpn.0 as usize])
    }

    /// Replaces a word; returns the old one.
    pub(super) fn exchange(&mut self, lpn: Lpn, word: Word) -> Word {
        Word::unpack(std::mem::replace(&mut self.words[lpn.0 as usize], word.pack()))
    }

    /// Replaces a word if it is `old`; returns whether it was.
    pub(super) fn replace(&mut self, lpn: Lpn, old: Word, new: Word) -> bool {
        let word = &mut self.words[lpn.0 as usize];
        let is_old = *word == old.pack();
        if is_old {
            *word = new.pack();
        }
        is_old
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn words_are_read_back() {
        let slot = Slot { ring: 127, index: (1 << 24) - 2, generation: u32::MAX };
        let words = [
            Word::Empty,
            Word::Place(Ppa(0)),
            Word::Place(Ppa((1 << 62) - 1)),
            Word::Trimmed(Ppa(7)),
            Word::Cached(slot),
        ];
        for word in words {
            assert_eq!(Word::unpack(word.pack()), word);
        }
    }
}
