//! The workload that replays a trace.
//!
//! Open loop (original or scaled times): each request starts at its time in the trace, however many are in flight; only
//! the depth of the link holds requests back. Closed loop: a fixed number is in flight and times are ignored.
//!
//! A request with a flush before it is first submitted as a flush; when that completes, the request itself follows, and
//! its latency counts from there. Both occupy one slot of a closed loop and share one token.
//!
//! Invariants: the first request of the trace starts at the first poll; tokens are unique among the requests in flight;
//! at the end each record was submitted `repeat` times.

use super::{Problem, Record, Trace, TraceError};
use flashweir_core::command::Handle;
use flashweir_core::{Duration, Instant, Lba};
use flashweir_sim::request::{Kind, Request};
use flashweir_sim::workload::{Step, Workload};
use serde::{Deserialize, Serialize};
use std::collections::VecDeque;
use std::sync::Arc;

/// Wrapping keeps addresses congruent modulo this number of sectors (4 KiB), so that aligned requests stay aligned.
const ALIGN_BLOCKS: u64 = 8;

/// Longest replay in nanoseconds, so that sums of times cannot overflow: 292 years.
const PLANNED_NS_MAX: u128 = (u64::MAX / 2) as u128;

/// Least factor by which times are scaled, far above the resolution of the product.
const SCALE_MIN: f64 = 1e-6;

/// Largest one.
const SCALE_MAX: f64 = 1e6;

/// Start times of the requests.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Timing {
    /// The times of the trace.
    #[default]
    Original,
    /// The times of the trace multiplied by this factor: 0.5 replays twice as fast.
    Scaled(f64),
    /// As soon as fewer than this many are in flight.
    Closed(u32),
}

/// Treatment of requests beyond the end of the device.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Fit {
    /// The replay is refused.
    #[default]
    Refuse,
    /// Addresses wrap around at the capacity rounded down to 4 KiB. A request across the end is moved back as a whole
    /// and keeps its offset inside a page; a trim longer than the device trims all of it.
    Wrap,
}

/// Configuration of a replay.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct ReplayConfig {
    /// Start times of the requests.
    pub timing: Timing,
    /// Treatment of requests beyond the end of the device.
    pub fit: Fit,
    /// Number of times that the whole trace is replayed. The pause between two rounds is the mean time between requests
    /// of the trace.
    pub repeat: u32,
}

impl Default for ReplayConfig {
    fn default() -> Self {
        Self { timing: Timing::Original, fit: Fit::Refuse, repeat: 1 }
    }
}

impl ReplayConfig {
    /// Checks the ranges.
    pub fn validate(&self) -> Result<(), Problem> {
        let bad = |key, value: String, expected| Err(Problem::Setting { key, value, expected });
        match self.timing {
            Timing::Scaled(factor) if !(SCALE_MIN..=SCALE_MAX).contains(&factor) => {
                bad("timing.scaled", factor.to_string(), "0.000001 to 1000000")
            }
            Timing::Closed(0) => bad("timing.closed", "0".into(), "a depth of 1 or more"),
            _ if self.repeat == 0 => bad("repeat", "0".into(), "1 or more"),
            _ => Ok(()),
        }
    }
}

/// Timing with exact numbers.
#[derive(Clone, Copy, Debug)]
enum Pace {
    /// Times are multiplied by `factor` over 2^32.
    Open {
        factor: u64,
    },
    Closed {
        depth: usize,
    },
}

impl Pace {
    fn of(timing: Timing) -> Self {
        match timing {
            Timing::Original => Self::Open { factor: 1 << 32 },
            // At most 1e6 * 2^32, which fits; the resolution of the product is 2^-32 ns.
            Timing::Scaled(factor) => Self::Open { factor: (factor * (1u64 << 32) as f64).round() as u64 },
            Timing::Closed(depth) => Self::Closed { depth: depth as usize },
        }
    }
}

/// State of a token.
#[derive(Clone, Copy, Debug)]
enum Slot {
    Free,
    /// In flight, and no request follows.
    Last,
    /// A flush is in flight, and this request follows.
    Before(Request),
}

/// Replays a trace.
#[derive(Clone, Debug)]
pub struct Replay {
    trace: Arc<Trace>,
    pace: Pace,
    capacity_blocks: u64,
    repeat: u32,
    /// Number of complete rounds, and index of the next record of the present one.
    round: u32,
    next: usize,
    /// Time from the first request of a round to the first of the next, unscaled.
    period_ns: u128,
    start: Option<Instant>,
    slots: Vec<Slot>,
    free: Vec<u32>,
    /// Requests whose flush has completed.
    ready: VecDeque<Request>,
    /// Requests whose flush is in flight.
    held: usize,
}

impl Replay {
    /// Makes a replay of `trace` on a device of `capacity_blocks` sectors. Fails if a setting is out of range or a
    /// request does not fit; the message then names the request that exceeds the device most.
    pub fn new(trace: Arc<Trace>, config: &ReplayConfig, capacity_blocks: u64) -> Result<Self, TraceError> {
        config.validate().map_err(|problem| problem.at(&trace.file, 0))?;
        fits(&trace, config.fit, capacity_blocks)?;
        let duration = u128::from(trace.duration().as_nanos());
        let gaps = (trace.records.len() as u128 - 1).max(1);
        let replay = Self {
            pace: Pace::of(config.timing),
            capacity_blocks,
            repeat: config.repeat,
            round: 0,
            next: 0,
            period_ns: duration + duration / gaps,
            start: None,
            slots: Vec::new(),
            free: Vec::new(),
            ready: VecDeque::new(),
            held: 0,
            trace,
        };
        if replay.planned_ns().is_some_and(|ns| ns > PLANNED_NS_MAX) {
            let (value, expected) = (config.repeat.to_string(), "a replay of at most 292 years");
            return Err(Problem::Setting { key: "repeat", value, expected }.at(&replay.trace.file, 0));
        }
        Ok(replay)
    }

    /// Returns the number of requests in flight, including those whose flush has just completed.
    fn in_flight(&self) -> usize {
        self.slots.len() - self.free.len()
    }

    /// Returns the time from the first request of all to the last; `None` in a closed loop.
    fn planned_ns(&self) -> Option<u128> {
        let last = self.trace.records.last().expect("a trace has requests");
        self.due_ns(self.repeat - 1, last)
    }

    /// Returns the time from the first request of all to this one; `None` in a closed loop.
    fn due_ns(&self, round: u32, record: &Record) -> Option<u128> {
        let Pace::Open { factor } = self.pace else {
            return None;
        };
        let first = self.trace.records.first().expect("a trace has requests");
        let ns = u128::from(record.at.saturating_sub(first.at).as_nanos());
        let ns = ns + u128::from(round) * self.period_ns;
        // Times are below 2^97 after 2^32 rounds; a factor below 2^52 may overflow the type, in which case the replay
        // is too long anyway.
        Some(ns.checked_mul(u128::from(factor)).map_or(u128::MAX, |product| product >> 32))
    }

    /// Submits the next record.
    fn submit(&mut self, intended: Instant) -> Request {
        let record = self.trace.records[self.next];
        self.next += 1;
        if self.next == self.trace.records.len() {
            self.next = 0;
            self.round += 1;
        }
        let token = self.free.pop().unwrap_or_else(|| {
            self.slots.push(Slot::Free);
            u32::try_from(self.slots.len() - 1).expect("fewer than 2^32 requests are in flight")
        });
        let (lba, blocks) = wrap(record.lba, record.blocks, self.capacity_blocks);
        let (source, _) = match record.kind {
            Kind::Share => wrap(record.source, record.blocks, self.capacity_blocks),
            _ => (Lba(0), 0),
        };
        let (kind, fua, handle) = (record.kind, record.fua, Handle(0));
        let request = Request { kind, lba, blocks, source, fua, handle, intended, token };
        if !record.preflush {
            self.slots[token as usize] = Slot::Last;
            return request;
        }
        self.slots[token as usize] = Slot::Before(request);
        self.held += 1;
        Request { kind: Kind::Flush, lba: Lba(0), blocks: 0, source: Lba(0), fua: false, ..request }
    }
}

/// Checks that each request of `trace` fits on the device.
fn fits(trace: &Trace, fit: Fit, capacity: u64) -> Result<(), TraceError> {
    let (entry, problem) = match fit {
        Fit::Refuse if trace.end() > capacity => {
            let record = trace.furthest.record;
            let end = record.reach();
            let problem = Problem::Beyond { first: end - u64::from(record.blocks), end, capacity };
            (trace.furthest, problem)
        }
        Fit::Wrap if u64::from(trace.largest.record.blocks) > capacity || capacity == 0 => {
            let blocks = trace.largest.record.blocks;
            (trace.largest, Problem::TooLarge { blocks, capacity })
        }
        Fit::Refuse | Fit::Wrap => return Ok(()),
    };
    Err(problem.at(&trace.file, entry.line))
}

/// Returns a range of a record on a device of `capacity` sectors. A range inside the device is unchanged.
fn wrap(lba: Lba, blocks: u32, capacity: u64) -> (Lba, u32) {
    if lba.0 + u64::from(blocks) <= capacity {
        return (lba, blocks);
    }
    let blocks = u64::from(blocks).min(capacity);
    let modulus = if capacity >= ALIGN_BLOCKS { capacity - capacity % ALIGN_BLOCKS } else { capacity };
    let wrapped = lba.0 % modulus;
    let last = capacity - blocks;
    let lba = if wrapped <= last {
        wrapped
    } else {
        let phase = wrapped % ALIGN_BLOCKS;
        let back = (last % ALIGN_BLOCKS + ALIGN_BLOCKS - phase) % ALIGN_BLOCKS;
        last.checked_sub(back).unwrap_or(last)
    };
    (Lba(lba), u32::try_from(blocks).expect("no more than the record has"))
}

impl Workload for Replay {
    fn poll(&mut self, now: Instant) -> Step {
        let start = *self.start.get_or_insert(now);
        if let Some(request) = self.ready.pop_front() {
            return Step::Submit(request);
        }
        if self.round == self.repeat {
            return if self.held > 0 { Step::Blocked } else { Step::Done };
        }
        let intended = match self.pace {
            Pace::Open { .. } => {
                let due = self.due_ns(self.round, &self.trace.records[self.next]);
                let due =
                    due.and_then(|ns| u64::try_from(ns).ok()).expect("bounded when the replay was made");
                start.saturating_add(Duration::from_nanos(due))
            }
            Pace::Closed { depth } if self.in_flight() >= depth => return Step::Blocked,
            Pace::Closed { .. } => now,
        };
        if intended > now {
            return Step::Wait(intended);
        }
        Step::Submit(self.submit(intended))
    }

    fn completed(&mut self, now: Instant, token: u32) {
        let slot = self.slots.get_mut(token as usize).expect("a token of ours");
        match *slot {
            Slot::Free => panic!("token {token} completed twice"),
            Slot::Last => {
                *slot = Slot::Free;
                self.free.push(token);
            }
            Slot::Before(request) => {
                *slot = Slot::Last;
                self.held -= 1;
                self.ready.push_back(Request { intended: now, ..request });
            }
        }
    }

    fn planned(&self) -> Option<Duration> {
        let ns = self.planned_ns()?;
        Some(Duration::from_nanos(u64::try_from(ns).expect("bounded when the replay was made")))
    }
}
