//! Workloads on the raw device: state machines that decide what to submit next.
//!
//! Place in the data flow: the world polls a workload, turns its requests into commands on the link and passes
//! completions back. A workload never sees the device.
//!
//! Invariants: between two polls at the same instant a workload changes only through its own requests and completions;
//! every request that it issues gets exactly one completion.

use crate::measure::{LogSpec, SteadyState};
use crate::request::{Kind, Request};
use flashweir_core::{Duration, Instant};

/// Answer of a workload to a poll.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Step {
    /// Submit this request and poll again.
    Submit(Request),
    /// No request before this time, unless a completion comes first; the time is later than now.
    Wait(Instant),
    /// No request before the next completion.
    Blocked,
    /// No further request; those in flight still complete.
    Done,
}

/// A state machine that produces requests.
pub trait Workload: std::fmt::Debug + Send {
    /// Returns the next step at `now`. Called until the answer is not [`Step::Submit`].
    fn poll(&mut self, now: Instant) -> Step;

    /// Reports that the request `token` completed at `now`.
    fn completed(&mut self, now: Instant, token: u32);

    /// Whether a completion at `now` counts in results: false during a ramp.
    fn measured(&self, now: Instant) -> bool {
        let _ = now;
        true
    }

    /// When it began by its own clock, if that is later than when it was asked first: results count from there, or from the end of its ramp.
    fn began(&self) -> Option<Instant> {
        None
    }

    /// When requests of this kind began and ended, where that is not when the whole workload did.
    fn between(&self, kind: Kind) -> [Option<Instant>; 2] {
        let _ = kind;
        [None, None]
    }

    /// Whether the contents that it reads back are compared with what it wrote.
    fn verifies(&self) -> bool {
        false
    }

    /// Whether this request reads contents back for comparison.
    fn is_verification(&self, token: u32) -> bool {
        let _ = token;
        false
    }

    /// Returns the logs to be kept of it.
    fn log(&self) -> Option<LogSpec> {
        None
    }

    /// Returns the result of its search for a steady state, if it had one.
    fn steady_state(&self) -> Option<SteadyState> {
        None
    }

    /// Returns the planned run time, if there is one, for a progress bar.
    fn planned(&self) -> Option<Duration> {
        None
    }
}
