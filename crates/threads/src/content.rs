//! The content of a unit of 4 KiB, as words that several threads may read and write at once.
//!
//! A reader copies a content without a lock and learns afterwards whether it was changed meanwhile. With plain bytes that race is
//! undefined behaviour, whatever is done with the copy. With relaxed atomic words each word is some word that was written, the race is
//! defined, and on processors of our time the loads and stores are the plain ones. A content of reference-counted memory would need an
//! allocation for each write, and a count that all readers change.

use crate::sync::{AtomicU64, Ordering};

/// Words of a unit.
#[cfg(not(any(loom, shuttle, miri)))]
pub const WORDS: usize = 512;
/// Words of a unit. Miri executes each copy word by word.
#[cfg(all(miri, not(any(loom, shuttle))))]
pub const WORDS: usize = 16;
/// Words of a unit. Loom's models have two, enough to be torn.
#[cfg(loom)]
pub const WORDS: usize = 2;
/// Words of a unit. Shuttle's have room for a record of a file; each access is a turn of the scheduler.
#[cfg(shuttle)]
pub const WORDS: usize = 8;

/// Bytes of a unit.
pub const UNIT_BYTES: usize = WORDS * 8;

/// A unit on its way: in the memory of who writes or reads it.
pub type Unit = [u64; WORDS];

/// A unit as bytes.
#[cfg(not(loom))]
pub fn unit_to_bytes(unit: &Unit) -> [u8; UNIT_BYTES] {
    let mut bytes = [0; UNIT_BYTES];
    for (to, from) in bytes.as_chunks_mut().0.iter_mut().zip(unit) {
        *to = from.to_ne_bytes();
    }
    bytes
}

/// A unit of bytes.
#[cfg(not(loom))]
pub fn unit_of_bytes(bytes: &[u8; UNIT_BYTES]) -> Unit {
    let mut unit = [0; WORDS];
    for (to, from) in unit.iter_mut().zip(bytes.as_chunks().0) {
        *to = u64::from_ne_bytes(*from);
    }
    unit
}

/// A unit that threads share.
#[repr(align(4096))]
pub struct Content([AtomicU64; WORDS]);

impl std::fmt::Debug for Content {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_tuple("Content").field(&self.0[0]).finish()
    }
}

impl Default for Content {
    fn default() -> Self {
        Self(std::array::from_fn(|_| AtomicU64::new(0)))
    }
}

impl Content {
    /// Copies a unit to here. It is visible to who acquires what the writer releases afterwards.
    #[inline]
    pub fn write(&self, unit: &Unit) {
        for (to, from) in self.0.iter().zip(unit) {
            to.store(*from, Ordering::Relaxed);
        }
    }

    /// Copies the unit from here.
    #[inline]
    pub fn read(&self, unit: &mut Unit) {
        for (to, from) in unit.iter_mut().zip(&self.0) {
            *to = from.load(Ordering::Relaxed);
        }
    }

    /// Copies the unit from another place.
    #[inline]
    pub fn copy(&self, from: &Self) {
        for (to, from) in self.0.iter().zip(&from.0) {
            to.store(from.load(Ordering::Relaxed), Ordering::Relaxed);
        }
    }

    /// A word of the unit.
    #[inline]
    pub fn word(&self, at: usize) -> u64 {
        self.0[at].load(Ordering::Relaxed)
    }

    /// Sets a word of the unit.
    #[inline]
    pub fn set_word(&self, at: usize, word: u64) {
        self.0[at].store(word, Ordering::Relaxed);
    }

    /// Where the words are, for the kernel.
    #[cfg(not(loom))]
    pub(crate) fn as_ptr(&self) -> *mut u64 {
        self.0.as_ptr().cast::<u64>().cast_mut()
    }

    /// Sets the unit to bytes that a file has.
    #[cfg(not(loom))]
    pub(crate) fn set_bytes(&self, bytes: &[u8; UNIT_BYTES]) {
        self.write(&unit_of_bytes(bytes));
    }

    /// The unit as bytes, as a file has them.
    #[cfg(not(loom))]
    pub(crate) fn bytes(&self) -> [u8; UNIT_BYTES] {
        let mut unit = [0; WORDS];
        self.read(&mut unit);
        unit_to_bytes(&unit)
    }
}
