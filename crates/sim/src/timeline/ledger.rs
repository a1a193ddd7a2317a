//! Sums over requests: where the time went, for all of them, for the median, for the slowest.
//!
//! Place in the data flow: the [`Timeline`](super::Timeline) adds each finished request; `weir explain` asks for the
//! means between two ranks.
//!
//! Invariants: memory does not grow with the number of requests: requests of the same kind whose latencies differ by
//! less than 1/64 share one account; the parts of an account add up to its latencies, to the nanosecond.

use super::request::Request;
use super::spans::{REASONS, Reason, STAGES, Stage};
use crate::request::Kind;
use std::collections::BTreeMap;

/// Number of slowest requests that are kept whole.
const SLOWEST: usize = 5;

/// Number of bits by which latencies within one power of two are distinguished.
const BITS: u32 = 6;

/// Nanoseconds by stage and reason.
pub type Matrix<T> = [[T; REASONS]; STAGES];

/// Sums over requests of about the same latency.
#[derive(Clone, Debug, PartialEq)]
pub struct Account {
    /// Number of requests.
    pub requests: u64,
    /// Sum of their latencies, in nanoseconds.
    pub latency_ns: u64,
    /// The time by stage and reason.
    pub by: Matrix<u64>,
}

impl Default for Account {
    fn default() -> Self {
        Self { requests: 0, latency_ns: 0, by: [[0; REASONS]; STAGES] }
    }
}

impl Account {
    /// Adds a request; panics if its parts do not add up to its latency.
    pub fn add(&mut self, request: &Request) {
        let latency_ns = request.until.since(request.from).as_nanos();
        self.requests += 1;
        self.latency_ns += latency_ns;
        let mut sum = 0;
        for piece in request.pieces.iter().filter(|piece| piece.stage != Stage::Behind) {
            self.by[piece.stage as usize][piece.reason.index()] += piece.length().as_nanos();
            sum += piece.length().as_nanos();
        }
        for (to, ns) in self.by[Stage::Behind as usize].iter_mut().zip(request.behind) {
            *to += ns;
            sum += ns;
        }
        assert_eq!(sum, latency_ns, "the parts of request {} add up: {request:?}", request.number);
    }

    fn merge(&mut self, other: &Self) {
        self.requests += other.requests;
        self.latency_ns += other.latency_ns;
        for (to, from) in self.by.iter_mut().flatten().zip(other.by.iter().flatten()) {
            *to += from;
        }
    }
}

/// Means over requests, in nanoseconds.
#[derive(Clone, Debug, PartialEq)]
pub struct Means {
    /// Number of requests that the means are taken over.
    pub requests: u64,
    /// Latency.
    pub latency_ns: f64,
    /// The time by stage and reason; adds up to the latency.
    pub by: Matrix<f64>,
}

impl Means {
    /// Returns the time in a stage.
    pub fn stage(&self, stage: Stage) -> f64 {
        self.by[stage as usize].iter().sum()
    }

    /// Returns the time in a stage for one reason.
    pub fn reason(&self, stage: Stage, reason: Reason) -> f64 {
        self.by[stage as usize][reason.index()]
    }
}

/// Accounts of where the time of a run's requests went.
#[derive(Clone, Debug)]
pub struct Ledger {
    only: Option<Kind>,
    wanted: Option<u64>,
    found: Option<Request>,
    accounts: BTreeMap<(u16, Kind), Box<Account>>,
    slowest: Vec<Request>,
}

impl Ledger {
    /// Makes an empty ledger, for requests of one kind or all, that keeps the request with the number `wanted`.
    pub fn new(only: Option<Kind>, wanted: Option<u64>) -> Self {
        Self { only, wanted, found: None, accounts: BTreeMap::new(), slowest: Vec::new() }
    }

    /// Adds a finished request.
    pub fn add(&mut self, request: Request) {
        if self.wanted == Some(request.number) {
            self.found = Some(request.clone());
        }
        if !request.counts || self.only.is_some_and(|only| only != request.asked.kind) {
            return;
        }
        let latency = request.until.since(request.from).as_nanos();
        self.accounts.entry((bucket(latency), request.asked.kind)).or_default().add(&request);
        let slower = |other: &Request| other.until.since(other.from).as_nanos() >= latency;
        let place = self.slowest.iter().take_while(|other| slower(other)).count();
        if place < SLOWEST {
            self.slowest.truncate(SLOWEST - 1);
            self.slowest.insert(place, request);
        }
    }

    /// Returns the request with the wanted number, if there was one.
    pub fn found(&self) -> Option<&Request> {
        self.found.as_ref()
    }

    /// Returns the slowest requests, the slowest one first.
    pub fn slowest(&self) -> &[Request] {
        &self.slowest
    }

    /// Returns the number of requests of a kind, or of all.
    pub fn requests(&self, kind: Option<Kind>) -> u64 {
        let accounts = self.accounts.iter().filter(|((_, of), _)| kind.is_none_or(|kind| kind == *of));
        accounts.map(|(_, account)| account.requests).sum()
    }

    /// Returns the kinds that occurred.
    pub fn kinds(&self) -> Vec<Kind> {
        let mut kinds: Vec<Kind> = self.accounts.keys().map(|(_, kind)| *kind).collect();
        kinds.sort_unstable();
        kinds.dedup();
        kinds
    }

    /// Returns the means over the requests of a kind, or of all, with ranks `from` to `until` (exclusive) in the order
    /// of latency; `None` if there are none. Where a rank falls within an account of about equal latencies, the
    /// account's mean stands for each of its requests.
    pub fn means(&self, kind: Option<Kind>, from: u64, until: u64) -> Option<Means> {
        let mut merged: BTreeMap<u16, Account> = BTreeMap::new();
        for ((bucket, of), account) in &self.accounts {
            if kind.is_none_or(|kind| kind == *of) {
                merged.entry(*bucket).or_default().merge(account);
            }
        }
        let mut means = Means { requests: 0, latency_ns: 0.0, by: [[0.0; REASONS]; STAGES] };
        let mut rank = 0;
        for account in merged.values() {
            let (first, end) = (rank.max(from), (rank + account.requests).min(until));
            rank += account.requests;
            if first >= end {
                continue;
            }
            let share = (end - first) as f64 / account.requests as f64;
            means.requests += end - first;
            means.latency_ns += share * account.latency_ns as f64;
            for (to, ns) in means.by.iter_mut().flatten().zip(account.by.iter().flatten()) {
                *to += share * *ns as f64;
            }
        }
        let requests = means.requests as f64;
        means.latency_ns /= requests;
        means.by.iter_mut().flatten().for_each(|ns| *ns /= requests);
        (means.requests > 0).then_some(means)
    }

    /// Returns the means over all requests of a kind, or of all kinds.
    pub fn all(&self, kind: Option<Kind>) -> Option<Means> {
        self.means(kind, 0, u64::MAX)
    }

    /// Returns the means over the tenth of the requests around the median.
    pub fn median(&self, kind: Option<Kind>) -> Option<Means> {
        let requests = self.requests(kind);
        let half = (requests / 20).max(1);
        let middle = requests / 2;
        self.means(kind, middle.saturating_sub(half), (middle + half).min(requests))
    }

    /// Returns the means over the slowest `fraction` of the requests, and over at least one.
    pub fn tail(&self, kind: Option<Kind>, fraction: f64) -> Option<Means> {
        let requests = self.requests(kind);
        let tail = (requests as f64 * fraction).ceil().clamp(1.0, requests.max(1) as f64) as u64;
        self.means(kind, requests.saturating_sub(tail), requests)
    }
}

/// Returns the account number of a latency: exact below 128 ns, then in steps of 1/64 of a power of two.
fn bucket(ns: u64) -> u16 {
    let octave = (ns | 1).ilog2();
    let shift = octave.saturating_sub(BITS);
    ((shift << BITS) + (ns >> shift) as u32) as u16
}

#[cfg(test)]
mod tests {
    use super::bucket;

    #[test]
    fn accounts_rise_with_latency_and_are_narrow() {
        let mut last = (0, 0);
        for ns in (0..1000).chain((0..4000).map(|i| 1000 + i * i * 977)) {
            let at = bucket(ns);
            assert!(at >= last.0);
            if at > last.0 {
                last = (at, ns);
            }
            assert!(ns - last.1 <= ns / 64, "{ns} shares an account with {}", last.1);
        }
        assert!(bucket(u64::MAX) < u16::MAX);
    }
}
