//! Atomics and waiting, of the standard library or, in models of interleavings, of loom.
//!
//! Place: every file of this crate takes them from here, so that the models run the code that runs.

#[cfg(loom)]
pub(crate) use loom::{
    hint::spin_loop,
    sync::atomic::{AtomicBool, AtomicI64, AtomicU32, AtomicU64, Ordering, fence},
    sync::{Arc, Condvar, Mutex},
    thread::yield_now,
};
#[cfg(not(loom))]
pub(crate) use std::{
    hint::spin_loop,
    sync::atomic::{AtomicBool, AtomicI64, AtomicU32, AtomicU64, Ordering, fence},
    sync::{Arc, Condvar, Mutex},
    thread::yield_now,
};

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
#[cfg(not(loom))]
const TURNS_UNTIL_SLEEP: u32 = TURNS_ON_CPU + 8_192;

/// A sleep of a long wait.
#[cfg(not(loom))]
const SLEEP: std::time::Duration = std::time::Duration::from_micros(50);

impl Backoff {
    /// Waits for one turn.
    pub(crate) fn wait(&mut self) {
        if cfg!(loom) || self.turns >= TURNS_ON_CPU {
            yield_now();
        } else {
            self.turns += 1;
            spin_loop();
        }
    }

    /// Waits for one turn of what may take for ever, such as a limit that only the user's next write lifts: then it leaves the CPU alone.
    #[cfg(not(loom))]
    pub(crate) fn wait_long(&mut self) {
        if self.turns < TURNS_ON_CPU {
            return self.wait();
        }
        self.turns = self.turns.saturating_add(1);
        match self.turns < TURNS_UNTIL_SLEEP {
            true => yield_now(),
            false => std::thread::sleep(SLEEP),
        }
    }
}
