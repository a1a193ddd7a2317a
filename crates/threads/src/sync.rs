//! Atomics, threads and waiting, of the standard library or, in models of interleavings, of loom or shuttle.
//!
//! Place: every file of this crate takes them from here, so that the models run the code that runs. Loom has the parts whose memory order is
//! in question, shuttle whole disks, whose time is a count of looks at the clock.

#[cfg(loom)]
pub(crate) use loom::{
    hint::spin_loop,
    sync::atomic::{AtomicBool, AtomicI64, AtomicU32, AtomicU64, Ordering, fence},
    sync::{Arc, Condvar, Mutex},
    thread::yield_now,
};
#[cfg(shuttle)]
pub(crate) use shuttle::{
    hint::spin_loop,
    sync::atomic::{AtomicBool, AtomicI64, AtomicU32, AtomicU64, Ordering, fence},
    sync::{Arc, Condvar, Mutex},
    thread::{Builder, JoinHandle, Thread, current, yield_now},
};
#[cfg(not(any(loom, shuttle)))]
pub(crate) use std::{
    hint::spin_loop,
    sync::atomic::{AtomicBool, AtomicI64, AtomicU32, AtomicU64, Ordering, fence},
    sync::{Arc, Condvar, Mutex},
    thread::{Builder, JoinHandle, Thread, current, park_timeout, sleep, yield_now},
    time::Instant,
};

/// Shuttle's threads park until they are woken. Here a time limit is a turn that passes.
#[cfg(shuttle)]
pub(crate) fn park_timeout(_: std::time::Duration) {
    yield_now();
}

/// Shuttle's sleep does not say that others should go first, and some schedulers would never let them.
#[cfg(shuttle)]
pub(crate) fn sleep(_: std::time::Duration) {
    yield_now();
}

/// A look at shuttle's clock: a tenth of a millisecond after the look before it, whichever thread looked.
#[cfg(shuttle)]
#[derive(Clone, Copy, Debug)]
pub(crate) struct Instant(u64);

#[cfg(shuttle)]
impl Instant {
    pub(crate) fn now() -> Self {
        // Shuttle's threads share one of the system's, and other tests have others.
        std::thread_local! { static LOOKS: std::cell::Cell<u64> = const { std::cell::Cell::new(0) }; }
        LOOKS.set(LOOKS.get() + 1);
        Self(LOOKS.get())
    }

    pub(crate) fn elapsed(&self) -> std::time::Duration {
        std::time::Duration::from_micros(100 * (Self::now().0 - self.0))
    }
}

/// A value that shares its cache lines with no other: two lines, because processors fetch them in pairs.
#[derive(Debug, Default)]
#[repr(align(128))]
pub(crate) struct Alone<T>(pub(crate) T);

impl<T> std::ops::Deref for Alone<T> {
    type Target = T;

    fn deref(&self) -> &T {
        &self.0
    }
}

/// Waiting for another thread: a little while on the CPU, then by giving it away.
#[derive(Debug, Default)]
pub(crate) struct Backoff {
    turns: u32,
}

/// Turns that are waited through on the CPU. A hand-over between two CPUs takes fewer.
const TURNS_ON_CPU: u32 = 256;

/// Turns after which a wait is a long one, some milliseconds of yielding: nobody is about to end it.
#[cfg(not(any(loom, shuttle)))]
const TURNS_UNTIL_SLEEP: u32 = TURNS_ON_CPU + 8_192;

/// A sleep of a long wait.
#[cfg(not(any(loom, shuttle)))]
const SLEEP: std::time::Duration = std::time::Duration::from_micros(50);

impl Backoff {
    /// Waits for one turn.
    pub(crate) fn wait(&mut self) {
        if cfg!(any(loom, shuttle)) || self.turns >= TURNS_ON_CPU {
            yield_now();
        } else {
            self.turns += 1;
            spin_loop();
        }
    }

    /// Waits for one turn of what may take for ever, such as a limit that only the user's next write lifts: then it leaves the CPU alone.
    #[cfg(not(loom))]
    pub(crate) fn wait_long(&mut self) {
        #[cfg(shuttle)]
        self.wait();
        #[cfg(not(shuttle))]
        self.sleep();
    }

    #[cfg(not(any(loom, shuttle)))]
    fn sleep(&mut self) {
        if self.turns < TURNS_ON_CPU {
            return self.wait();
        }
        self.turns = self.turns.saturating_add(1);
        match self.turns < TURNS_UNTIL_SLEEP {
            true => yield_now(),
            false => sleep(SLEEP),
        }
    }
}
