//! Records the calls that change a mount's file system, so that they can be repeated.
//!
//! Invariant: a call is recorded when it has succeeded, with the numbers of bytes that its program had printed before it began
//! and when it had ended.

use flashweir_crash::recorded::Step;
use std::fmt;
use std::sync::{Arc, Mutex, PoisonError};

/// How many bytes a program has printed so far.
type Printed = dyn Fn() -> u64 + Send + Sync;

/// See the module. Clones share the record.
#[derive(Clone)]
pub struct Recorder {
    steps: Arc<Mutex<Vec<Step>>>,
    printed: Arc<Printed>,
}

impl fmt::Debug for Recorder {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Recorder")
    }
}

impl Recorder {
    /// Nothing is noted yet; `printed` says how many bytes the program has printed.
    pub fn new(printed: impl Fn() -> u64 + Send + Sync + 'static) -> Self {
        Self { steps: Arc::default(), printed: Arc::new(printed) }
    }

    pub(super) fn printed(&self) -> u64 {
        (self.printed)()
    }

    pub(super) fn note(&self, step: Step) {
        self.steps.lock().unwrap_or_else(PoisonError::into_inner).push(step);
    }

    /// Takes the steps that were recorded so far.
    pub fn take(&self) -> Vec<Step> {
        std::mem::take(&mut self.steps.lock().unwrap_or_else(PoisonError::into_inner))
    }
}
