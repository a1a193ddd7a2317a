//! The map: one atomic word for each logical unit (open-channel §3), or plain words behind one lock, as pblk has them.
//!
//! Invariant: a word changes by exchange or by compare and swap; the loser of a race learns what stands there. A change is a release,
//! a look is an acquire: who sees a place or a slot sees what was put there (open-channel §3.9).
//!
//! Deliberately absent: sequence numbers. They are in the slots of rings.

use crate::spin::SpinLock;
use crate::sync::{AtomicU64, Ordering};
use flashweir_core::Lpn;
use flashweir_ftl::host_word::{EMPTY, Word};

/// The words.
#[derive(Debug)]
pub struct AtomicMap {
    words: Box<[AtomicU64]>,
    /// Held around each look and each change, if the assembly has a lock.
    lock: Option<SpinLock<()>>,
}

impl AtomicMap {
    /// A map of units that were never written; `is_locked` puts one lock around all of it.
    pub fn new(units: u64, is_locked: bool) -> Self {
        let words = (0..units).map(|_| AtomicU64::new(EMPTY)).collect();
        Self { words, lock: is_locked.then(|| SpinLock::new(())) }
    }

    /// Number of logical units.
    pub fn units(&self) -> u64 {
        self.words.len() as u64
    }

    /// What stands in a word.
    #[inline]
    pub fn get(&self, lpn: Lpn) -> Word {
        let _guard = self.lock.as_ref().map(SpinLock::lock);
        Word::unpack(self.words[lpn.0 as usize].load(Ordering::Acquire))
    }

    /// What stands in a word, while `look` runs with it: under the lock, if there is one.
    #[inline]
    pub fn look<T>(&self, lpn: Lpn, look: impl FnOnce(Word) -> T) -> T {
        let _guard = self.lock.as_ref().map(SpinLock::lock);
        look(Word::unpack(self.words[lpn.0 as usize].load(Ordering::Acquire)))
    }

    /// Nanoseconds that threads have waited for the lock so far.
    #[cfg(feature = "measure")]
    pub(crate) fn waited_ns(&self) -> u64 {
        self.lock.as_ref().map_or(0, SpinLock::waited_ns)
    }

    /// Whether one lock is around all words.
    pub fn is_locked(&self) -> bool {
        self.lock.is_some()
    }

    /// Replaces a word; returns the old one.
    #[inline]
    pub fn exchange(&self, lpn: Lpn, word: Word) -> Word {
        let _guard = self.lock.as_ref().map(SpinLock::lock);
        Word::unpack(self.words[lpn.0 as usize].swap(word.pack(), Ordering::AcqRel))
    }

    /// Replaces a word if it is `old`.
    ///
    /// # Errors
    /// The word that stands there instead.
    #[inline]
    pub fn replace(&self, lpn: Lpn, old: Word, new: Word) -> Result<(), Word> {
        let _guard = self.lock.as_ref().map(SpinLock::lock);
        self.words[lpn.0 as usize]
            .compare_exchange(old.pack(), new.pack(), Ordering::AcqRel, Ordering::Acquire)
            .map(drop)
            .map_err(Word::unpack)
    }

    /// Replaces a word by what `change` makes of it, again and again until nobody else was faster; returns the old one.
    ///
    /// # Errors
    /// The word for which `change` gave nothing.
    #[inline]
    pub fn update(&self, lpn: Lpn, mut change: impl FnMut(Word) -> Option<Word>) -> Result<Word, Word> {
        let _guard = self.lock.as_ref().map(SpinLock::lock);
        let word = &self.words[lpn.0 as usize];
        let mut old = word.load(Ordering::Acquire);
        loop {
            let new = change(Word::unpack(old)).ok_or(Word::unpack(old))?;
            match word.compare_exchange(old, new.pack(), Ordering::AcqRel, Ordering::Acquire) {
                Ok(old) => return Ok(Word::unpack(old)),
                Err(now) => old = now,
            }
        }
    }
}
