//! The map of a host FTL: one word for each logical unit (open-channel §3).
//!
//! Invariant: a word changes only by exchange or by compare and swap; the loser of a race learns what stands there.

use flashweir_core::Lpn;
use flashweir_ftl::host_word::EMPTY;
pub(super) use flashweir_ftl::host_word::{Slot, Word};

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
