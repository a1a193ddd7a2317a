//! Readers hold a line while they read from it; it is erased when nobody holds it (open-channel §3.6).
//!
//! Invariant: a line that is on its way to be erased is never held again before it was erased and opened.

use crate::sync::{AtomicU32, Backoff, Ordering};

/// Readers of a line, and one for the line itself while it is in use.
#[derive(Debug)]
pub(crate) struct Holds(AtomicU32);

impl Default for Holds {
    fn default() -> Self {
        Self(AtomicU32::new(0))
    }
}

impl Holds {
    /// The line is in use.
    pub(crate) fn open(&self) {
        self.0.store(1, Ordering::Release);
    }

    /// Holds the line for a reader, unless it is not in use.
    pub(crate) fn hold(&self) -> bool {
        let mut seen = self.0.load(Ordering::Relaxed);
        while seen != 0 {
            match self.0.compare_exchange(seen, seen + 1, Ordering::AcqRel, Ordering::Relaxed) {
                Ok(_) => return true,
                Err(now) => seen = now,
            }
        }
        false
    }

    /// Ends a reader's hold.
    pub(crate) fn release(&self) {
        self.0.fetch_sub(1, Ordering::AcqRel);
    }

    /// Takes the line out of use and waits for its readers. Returns whether they are gone; `goes_on` is asked meanwhile.
    pub(crate) fn close(&self, goes_on: impl Fn() -> bool) -> bool {
        self.release();
        let mut backoff = Backoff::default();
        while self.0.load(Ordering::Acquire) != 0 {
            if !goes_on() {
                return false;
            }
            backoff.wait();
        }
        true
    }
}
