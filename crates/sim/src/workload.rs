//! Workloads on the raw device: state machines that say what to submit next.
//!
//! Place in the data flow: the world polls a workload, turns its requests into commands on the link and
//! hands completions back. A workload never sees the device.
//!
//! Invariants: between two polls at the same instant a workload changes only through its own requests and
//! completions; every request that it hands out gets exactly one completion.

use crate::measure::{LogSpec, SteadyState};
use crate::request::Request;
use flashweir_core::{Duration, Instant};

/// What a workload wants now.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Step {
    /// Submit this and poll again.
    Submit(Request),
    /// Nothing before this instant, unless a completion comes first; the instant is later than now.
    Wait(Instant),
    /// Nothing before the next completion.
    Blocked,
    /// Nothing ever again; requests in flight still complete.
    Done,
}

/// A state machine that produces requests.
pub trait Workload: std::fmt::Debug + Send {
    /// What to do at `now`. Called until the answer is not [`Step::Submit`].
    fn poll(&mut self, now: Instant) -> Step;

    /// The request `token` completed at `now`.
    fn completed(&mut self, now: Instant, token: u32);

    /// Whether what completes at `now` counts: false during a ramp.
    fn measured(&self, now: Instant) -> bool {
        let _ = now;
        true
    }

    /// Whether what it reads back is to be compared with what it wrote.
    fn verifies(&self) -> bool {
        false
    }

    /// Whether this request reads something back.
    fn is_verification(&self, token: u32) -> bool {
        let _ = token;
        false
    }

    /// The logs that are to be kept of it.
    fn log(&self) -> Option<LogSpec> {
        None
    }

    /// What came of its search for a steady state, if it had one.
    fn steady_state(&self) -> Option<SteadyState> {
        None
    }

    /// The time that the workload is meant to run, if it has one, for a progress bar.
    fn planned(&self) -> Option<Duration> {
        None
    }
}
