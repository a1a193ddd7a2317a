//! A spin lock in the order of arrival, as the kernel's are: the lock of rings, map and pool in pblk (open-channel §1.9).
//!
//! Invariant: the value is touched by the holder of the ticket that is served, and by no other thread.
//!
//! A waiting thread gives its CPU away after a while: in a process, unlike in a kernel, the holder may have lost its own.

use crate::sync::{Alone, AtomicU32, Backoff, Ordering};
#[cfg(loom)]
use loom::cell::UnsafeCell;
#[cfg(not(loom))]
use std::cell::UnsafeCell;
use std::ops::{Deref, DerefMut};

/// A lock, and what it protects.
pub struct SpinLock<T> {
    /// The ticket of the next thread that comes.
    next: Alone<AtomicU32>,
    /// The ticket whose holder has the lock.
    served: AtomicU32,
    /// Nanoseconds that threads have waited for it.
    #[cfg(feature = "measure")]
    waited_ns: std::sync::atomic::AtomicU64,
    /// A planted bug: a holder's changes are not handed on with the lock.
    #[cfg(loom)]
    hands_nothing_on: bool,
    value: UnsafeCell<T>,
}

// SAFETY: one thread at a time reaches the value, so it has to be one that may change its thread, and no more.
unsafe impl<T: Send> Sync for SpinLock<T> {}
// SAFETY: who owns the lock owns the value.
unsafe impl<T: Send> Send for SpinLock<T> {}

impl<T> std::fmt::Debug for SpinLock<T> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("SpinLock").finish_non_exhaustive()
    }
}

impl<T: Default> Default for SpinLock<T> {
    fn default() -> Self {
        Self::new(T::default())
    }
}

impl<T> SpinLock<T> {
    /// A free lock.
    pub fn new(value: T) -> Self {
        Self {
            next: Alone(AtomicU32::new(0)),
            served: AtomicU32::new(0),
            #[cfg(loom)]
            hands_nothing_on: false,
            #[cfg(feature = "measure")]
            waited_ns: std::sync::atomic::AtomicU64::new(0),
            value: UnsafeCell::new(value),
        }
    }

    /// Takes the lock when all who came before have had it.
    pub fn lock(&self) -> Guard<'_, T> {
        let ticket = self.next.fetch_add(1, Ordering::Relaxed);
        let is_free = || self.served.load(Ordering::Acquire) == ticket;
        #[cfg(feature = "measure")]
        let begin = (!is_free()).then(std::time::Instant::now);
        let mut backoff = Backoff::default();
        while !is_free() {
            backoff.wait();
        }
        #[cfg(feature = "measure")]
        if let Some(begin) = begin {
            let waited = begin.elapsed().as_nanos() as u64;
            self.waited_ns.fetch_add(waited, Ordering::Relaxed);
        }
        Guard {
            #[cfg(loom)]
            pointer: self.value.get_mut(),
            lock: self,
        }
    }
}

#[cfg(feature = "measure")]
impl<T> SpinLock<T> {
    /// Nanoseconds that threads have waited for it so far.
    pub fn waited_ns(&self) -> u64 {
        self.waited_ns.load(Ordering::Relaxed)
    }
}

/// The lock is held as long as this lives.
pub struct Guard<'a, T> {
    #[cfg(loom)]
    pointer: loom::cell::MutPtr<T>,
    lock: &'a SpinLock<T>,
}

impl<T> std::fmt::Debug for Guard<'_, T> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Guard").finish_non_exhaustive()
    }
}

impl<T> Deref for Guard<'_, T> {
    type Target = T;

    fn deref(&self) -> &T {
        #[cfg(loom)]
        // SAFETY: as below.
        return unsafe { self.pointer.deref() };
        #[cfg(not(loom))]
        // SAFETY: a guard exists while its ticket is served, tickets are given out once, and the next one is served after the guard
        // is gone. 2^32 threads do not wait at a time.
        unsafe {
            &*self.lock.value.get()
        }
    }
}

impl<T> DerefMut for Guard<'_, T> {
    fn deref_mut(&mut self) -> &mut T {
        #[cfg(loom)]
        // SAFETY: as below.
        return unsafe { self.pointer.deref() };
        #[cfg(not(loom))]
        // SAFETY: as in `deref`; `&mut self` makes the reference the only one of this guard.
        unsafe {
            &mut *self.lock.value.get()
        }
    }
}

impl<T> Drop for Guard<'_, T> {
    fn drop(&mut self) {
        // Nobody else changes it now.
        let served = self.lock.served.load(Ordering::Relaxed);
        let order = Ordering::Release;
        #[cfg(loom)]
        let order = if self.lock.hands_nothing_on { Ordering::Relaxed } else { order };
        self.lock.served.store(served.wrapping_add(1), order);
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    #[test]
    fn counts_of_four_threads_add_up() {
        let rounds = if cfg!(miri) { 50 } else { 20_000 };
        let lock = SpinLock::new(0);
        std::thread::scope(|scope| {
            for _ in 0..4 {
                scope.spawn(|| (0..rounds).for_each(|_| *lock.lock() += 1));
            }
        });
        assert_eq!(*lock.lock(), 4 * rounds);
    }
}

#[cfg(all(test, loom))]
mod models {
    use super::*;
    use loom::sync::Arc;

    /// Loom reports a race on the value if the lock orders too little.
    #[test]
    fn a_value_has_one_holder() {
        let model = |hands_nothing_on| {
            let lock = Arc::new(SpinLock { hands_nothing_on, ..SpinLock::new(0) });
            let other = lock.clone();
            let thread = loom::thread::spawn(move || *other.lock() += 1);
            *lock.lock() += 1;
            thread.join().unwrap();
            assert_eq!(*lock.lock(), 2);
        };
        loom::model(move || model(false));
        assert!(std::panic::catch_unwind(move || loom::model(move || model(true))).is_err());
    }
}
