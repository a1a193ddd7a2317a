//! Workloads on the raw device: state machines that say what to submit next.
//!
//! Place in the data flow: the world polls a workload, turns its requests into commands on the link and
//! hands completions back. A workload never sees the device.
//!
//! Invariants: between two polls at the same instant a workload changes only through its own requests and
//! completions; every request that it hands out gets exactly one completion.

pub mod filebench;
pub mod fio;
pub mod oltp;
pub mod trace;

pub(crate) use flashweir_core::signal;

use fio::{LogSpec, SteadyState};
use flashweir_core::{Duration, Instant, Lba};

/// What a request does. Ranges are in 512-byte blocks.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Kind {
    /// Read a range.
    Read,
    /// Write a range.
    Write,
    /// Deallocate a range.
    Trim,
    /// Make a range read as zeros.
    WriteZeroes,
    /// Make everything that completed before durable (fsync, fdatasync, a cache flush).
    Flush,
}

/// One request of a workload.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Request {
    /// What to do.
    pub kind: Kind,
    /// First block; 0 for a flush.
    pub lba: Lba,
    /// Number of 512-byte blocks; 0 for a flush.
    pub blocks: u32,
    /// Complete only when durable.
    pub fua: bool,
    /// When the request should have started. Latency of an open-loop workload counts from here, so that
    /// a slow device cannot hide behind the requests that it held back.
    pub intended: Instant,
    /// The workload's own name for the request, handed back with its completion.
    pub token: u32,
}

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
