//! The times at which requests passed from one stage of a host FTL to the next, for timelines.
//!
//! Place in the data flow: [`admit`](super::admit) and [`target`](super::target) note them, and a timeline takes those of a request when it
//! is answered.
//!
//! Invariant: notes change nothing that the FTL does.

use flashweir_core::Instant;
use std::collections::BTreeMap;

/// The way of a request through a host FTL.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FtlPassage {
    /// Time at which the FTL began with it, after its thread had got a CPU.
    pub begun: Instant,
    /// Time at which the last of it entered a ring; of requests that enter none, the time at which the FTL began.
    pub admitted: Instant,
    /// Time at which its answer was known; then its thread does the rest.
    pub decided: Instant,
    /// Id of the command below whose completion decided it, if one did.
    pub cause: Option<u64>,
}

/// Passages of the requests under way, once somebody has asked for them.
#[derive(Clone, Debug, Default)]
pub(super) struct Passages {
    is_kept: bool,
    of: BTreeMap<u64, FtlPassage>,
    /// The command below whose completion is being handled.
    cause: Option<u64>,
}

impl Passages {
    pub(super) fn keep(&mut self) {
        self.is_kept = true;
    }

    pub(super) fn take(&mut self, token: u64) -> Option<FtlPassage> {
        self.of.remove(&token)
    }

    pub(super) fn begun(&mut self, now: Instant, token: u64) {
        if self.is_kept {
            self.of.insert(token, FtlPassage { begun: now, admitted: now, decided: now, cause: None });
        }
    }

    pub(super) fn admitted(&mut self, now: Instant, token: u64) {
        if let Some(passage) = self.of.get_mut(&token) {
            passage.admitted = now;
        }
    }

    pub(super) fn decided(&mut self, now: Instant, token: u64) {
        if let Some(passage) = self.of.get_mut(&token) {
            (passage.decided, passage.cause) = (now, self.cause);
        }
    }

    /// What follows is done because this command below has completed, or for another reason.
    pub(super) fn caused_by(&mut self, cause: Option<u64>) {
        self.cause = cause;
    }
}
