//! A FLUSH or FUA request that waits for rings: one part for each, answered when the last part is done (open-channel §4.1).
//!
//! Invariant: it is answered once, whichever rings' writers end their parts at the same time (open-channel §8.6).

#[cfg(any(loom, shuttle))]
use crate::planted::PlantedBug;
use crate::sync::{AtomicU32, Condvar, Mutex, Ordering};

/// A request that waits.
#[derive(Debug)]
pub(crate) struct Pending {
    /// Parts under way, and one more while parts are added.
    left: AtomicU32,
    /// How often it was answered.
    answers: Mutex<u32>,
    answered: Condvar,
    #[cfg(any(loom, shuttle))]
    pub(crate) planted: Option<PlantedBug>,
}

impl Pending {
    pub(crate) fn new() -> Self {
        Self {
            left: AtomicU32::new(1),
            answers: Mutex::new(0),
            answered: Condvar::new(),
            #[cfg(any(loom, shuttle))]
            planted: None,
        }
    }

    /// Counts another part; who made it has not called [`Self::done`] yet for all parts.
    pub(crate) fn add(&self) {
        self.left.fetch_add(1, Ordering::Relaxed);
    }

    /// A part has ended, or no more parts come.
    pub(crate) fn done(&self) {
        let left = self.left.fetch_sub(1, Ordering::AcqRel) - 1;
        #[cfg(any(loom, shuttle))]
        let left = if self.planted == Some(PlantedBug::AnsweredTwice) {
            self.left.load(Ordering::Acquire)
        } else {
            left
        };
        if left == 0 {
            let mut answers = self.answers.lock().expect("nobody panics with it");
            *answers += 1;
            self.answered.notify_all();
        }
    }

    /// How often it was answered.
    #[cfg(any(loom, shuttle))]
    pub(crate) fn answers(&self) -> u32 {
        *self.answers.lock().expect("nobody panics with it")
    }

    /// Waits until it is answered; `goes_on` is asked now and then, and ends the waiting. Returns whether it was answered.
    #[cfg(not(loom))]
    pub(crate) fn wait(&self, goes_on: impl Fn() -> bool) -> bool {
        let mut answers = self.answers.lock().expect("nobody panics with it");
        while *answers == 0 {
            if !goes_on() {
                return false;
            }
            #[cfg(not(shuttle))]
            {
                let pause = std::time::Duration::from_millis(10);
                (answers, _) = self.answered.wait_timeout(answers, pause).expect("nobody panics with it");
            }
            // Its waiting has no time limit.
            #[cfg(shuttle)]
            {
                drop(answers);
                crate::sync::yield_now();
                answers = self.answers.lock().expect("nobody panics with it");
            }
        }
        assert_eq!(*answers, 1, "a request is answered once");
        true
    }
}
