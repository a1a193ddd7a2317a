//! Measurements of a workload on a file system, by the workload's names of its calls.
//!
//! Place in the data flow: a [`CallRecorder`] per flowop, or per kind of call, takes completions; at the end the
//! recorders become a [`WorkloadResult`].
//!
//! Invariants: those of a [`Recorder`], which does the counting; the total is the sum of the calls that touch files.

use super::Recorder;
use super::distribution::Distribution;
use super::run::{IntervalRow, JobResult, KindResult, kind_name, per_second};
use crate::request::Kind;
use flashweir_core::{Duration, Instant};
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;

/// Statistics of one kind of call while a workload runs.
#[derive(Debug)]
pub struct CallRecorder {
    // The recorder counts all calls under one kind of request, which does not appear in the result.
    recorder: Recorder,
}

const COUNTED_AS: Kind = Kind::Read;

impl CallRecorder {
    /// Makes a recorder that measures from `start` in intervals of `interval`, which must not be zero.
    pub fn new(start: Instant, interval: Duration) -> Self {
        Self { recorder: Recorder::new(start, interval) }
    }

    /// Records a call that moved `bytes` and began and ended at these times. Calls are recorded in the order of their
    /// ends.
    pub fn record(&mut self, bytes: u64, began: Instant, ended: Instant) {
        self.recorder.record(COUNTED_AS, bytes, began, began, ended);
    }

    /// Ends the measurement at `end`.
    pub fn finish(self, name: &str, call: &str, touches_files: bool, end: Instant) -> CallResult {
        let job = self.recorder.finish(name, BTreeMap::new(), end);
        let (calls, bytes, latency, series) = match job.kinds.into_iter().next() {
            Some(kind) => (kind.requests, kind.bytes, kind.lat, kind.series),
            None => (0, 0, Distribution::default(), Vec::new()),
        };
        CallResult {
            name: name.to_owned(),
            call: call.to_owned(),
            touches_files,
            calls,
            bytes,
            latency,
            series,
        }
    }
}

/// One kind of call of a workload.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct CallResult {
    /// Name of the call in the workload.
    pub name: String,
    /// Operation, such as `fsync`.
    pub call: String,
    /// Whether it calls the file system, rather than waiting for something else.
    pub touches_files: bool,
    /// Number of calls completed.
    pub calls: u64,
    /// Bytes read or written.
    pub bytes: u64,
    /// Latencies.
    pub latency: Distribution,
    /// The intervals in which a call completed, in ascending order.
    pub series: Vec<IntervalRow>,
}

/// Measurements of a workload between `start_ns` and `end_ns`, both since the beginning of the stack.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct WorkloadResult {
    /// Name of the workload.
    pub name: String,
    /// Seed of its random streams.
    pub seed: u64,
    /// Start of the measurement.
    pub start_ns: u64,
    /// End of the measurement.
    pub end_ns: u64,
    /// Length of an interval of the series; the last one may be shorter.
    pub interval_ns: u64,
    /// Reason why the workload ended early, if it did.
    pub ended_early: Option<String>,
    /// Each kind of call, in the order of the workload.
    pub calls: Vec<CallResult>,
}

impl WorkloadResult {
    /// Converts the result of a fio job; its kinds of requests become calls.
    pub fn of_job(job: JobResult, seed: u64) -> Self {
        let call = |kind: KindResult| CallResult {
            name: kind_name(kind.kind).to_owned(),
            call: kind_name(kind.kind).to_owned(),
            touches_files: true,
            calls: kind.requests,
            bytes: kind.bytes,
            latency: kind.lat,
            series: kind.series,
        };
        Self {
            name: job.name,
            seed,
            start_ns: job.start_ns,
            end_ns: job.end_ns,
            interval_ns: job.interval_ns,
            ended_early: None,
            calls: job.kinds.into_iter().map(call).collect(),
        }
    }

    /// Returns the measured time in nanoseconds.
    pub fn span_ns(&self) -> u64 {
        self.end_ns - self.start_ns
    }

    /// Returns the call of this name.
    pub fn call(&self, name: &str) -> Option<&CallResult> {
        self.calls.iter().find(|call| call.name == name)
    }

    /// Returns the sum of all calls of these kinds, such as every `fsync`, or of all that touch files if none is named.
    /// Series are not merged.
    pub fn sum(&self, kinds: &[&str]) -> CallResult {
        let mut sum = CallResult {
            name: if kinds.is_empty() { "total".to_owned() } else { kinds.join("+") },
            call: kinds.join("+"),
            touches_files: true,
            calls: 0,
            bytes: 0,
            latency: Distribution::default(),
            series: Vec::new(),
        };
        let is_meant = |call: &&CallResult| match kinds {
            [] => call.touches_files,
            _ => kinds.contains(&call.call.as_str()),
        };
        for call in self.calls.iter().filter(is_meant) {
            sum.calls += call.calls;
            sum.bytes += call.bytes;
            sum.latency = sum.latency.merge(&call.latency);
        }
        sum
    }

    /// Returns calls per second of measured time.
    pub fn calls_per_s(&self, call: &CallResult) -> f64 {
        per_second(call.calls, self.span_ns())
    }

    /// Returns bytes per second of measured time.
    pub fn bytes_per_s(&self, call: &CallResult) -> f64 {
        per_second(call.bytes, self.span_ns())
    }
}
