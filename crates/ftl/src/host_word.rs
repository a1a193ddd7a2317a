//! A word of a host FTL's map: where one logical unit is (open-channel §3).
//!
//! ```text
//! cached 1 │ ring 7 │ slot 24 │ generation 32        an entry of a ring
//!      0 0 │ place 62                                a unit on the medium
//!      0 1 │ place 62                                deallocated by the record in this unit
//! all ones                                           never written
//! ```
//!
//! Place: the host FTLs of virtual time and of real threads have the same words.
//!
//! Deliberately absent: the array of words, and how they change; each host FTL has its own.

use flashweir_core::Ppa;

/// An entry of a ring; the generation counts how often the slot was used.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Slot {
    /// Number of the ring, at most 127.
    pub ring: u16,
    /// Number of the slot in the ring, below 2^24.
    pub index: u32,
    /// How often the slot was used before.
    pub generation: u32,
}

/// What a logical unit is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Word {
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
/// The word of a unit that was never written.
pub const EMPTY: u64 = u64::MAX;

impl Word {
    /// The bits of the word.
    pub fn pack(self) -> u64 {
        match self {
            Self::Empty => EMPTY,
            Self::Place(ppa) => ppa.0,
            Self::Trimmed(ppa) => TRIMMED | ppa.0,
            Self::Cached(Slot { ring, index, generation }) => {
                CACHED | u64::from(ring) << 56 | u64::from(index) << 32 | u64::from(generation)
            }
        }
    }

    /// The word of these bits.
    pub fn unpack(word: u64) -> Self {
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
