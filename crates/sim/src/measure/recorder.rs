//! The recorder of one job: adds each completed request to counters, without keeping the request.
//!
//! Place in the data flow: the world calls [`Recorder::record`] for every completion that counts and
//! [`Recorder::finish`] once; the result becomes part of a [`RunResult`](super::RunResult).
//!
//! Invariants: requests recorded = sum over the intervals = sum over the bins, asserted at the end; completions are
//! recorded in the order of their times. An interval includes its last instant and excludes its first, because a
//! completion at an instant is the work of the time before it.
//!
//! Deliberately absent: the number of requests in flight (the caller knows it) and the ramp (a recorder is made when
//! the ramp is over).

use super::distribution::{Bins, LatencyRecorder, Percentile, Sums};
use super::run::{DEPTH_LEVELS, IntervalRow, JobResult, KINDS, KindResult, kind_index};
use crate::request::Kind;
use flashweir_core::{Duration, Instant};
use hdrhistogram::Histogram;
use std::collections::BTreeMap;

/// Significant digits of the percentiles of an interval; fewer, because one histogram per interval has to be cleared.
const INTERVAL_DIGITS: u8 = 2;

/// Statistics of one job while it runs.
#[derive(Debug)]
pub struct Recorder {
    start: Instant,
    interval: Duration,
    /// Index of the current interval, and its last instant.
    index: u64,
    interval_end: Instant,
    depth_levels: [u64; DEPTH_LEVELS],
    kinds: [Option<Box<KindRecorder>>; KINDS.len()],
}

#[derive(Debug)]
struct KindRecorder {
    bytes: u64,
    slat: Sums,
    clat: LatencyRecorder,
    lat: LatencyRecorder,
    now: Current,
    series: Vec<IntervalRow>,
}

/// Counters of the current interval.
#[derive(Debug)]
struct Current {
    requests: u64,
    bytes: u64,
    latency_sum_ns: u64,
    bins: Histogram<u64>,
}

impl Recorder {
    /// Makes a recorder that measures from `start` in intervals of `interval`, which must not be zero. An interval in
    /// which a request completed costs 40 bytes and about 3 µs per kind; the others cost nothing.
    pub fn new(start: Instant, interval: Duration) -> Self {
        assert!(interval > Duration::ZERO, "an interval has a length");
        Self {
            start,
            interval,
            index: 0,
            interval_end: start.saturating_add(interval),
            depth_levels: [0; DEPTH_LEVELS],
            kinds: [const { None }; KINDS.len()],
        }
    }

    /// Records a submission at which `depth` requests were in flight, the new one included.
    #[inline]
    pub fn submitted_at_depth(&mut self, depth: u32) {
        debug_assert!(depth > 0, "the submitted request is in flight");
        self.depth_levels[(depth.max(1).ilog2() as usize).min(DEPTH_LEVELS - 1)] += 1;
    }

    /// Records the completion of a request of `bytes` that should have started at `intended` and was submitted at
    /// `submitted`. Panics if these times are out of order, or if `completed` lies before the start or in an interval
    /// that is already closed.
    #[inline]
    pub fn record(
        &mut self,
        kind: Kind,
        bytes: u64,
        intended: Instant,
        submitted: Instant,
        completed: Instant,
    ) {
        if completed > self.interval_end {
            self.close_interval(completed);
        }
        let in_order = intended <= submitted
            && submitted <= completed
            && completed.saturating_since(self.start).as_nanos() >= self.index * self.interval.as_nanos();
        assert!(
            in_order,
            "{kind:?}: intended {intended:?}, submitted {submitted:?}, completed {completed:?}"
        );
        let (slat, clat) = (submitted.since(intended), completed.since(submitted));
        self.kinds[kind_index(kind)].get_or_insert_with(KindRecorder::new).record(bytes, slat, clat);
    }

    /// Ends the measurement at `end`, which must not be earlier than the last completion.
    pub fn finish(mut self, name: &str, options: BTreeMap<String, String>, end: Instant) -> JobResult {
        assert!(end >= self.start, "a job ends after its start");
        self.flush_rows();
        let job = JobResult {
            name: name.to_owned(),
            options,
            start_ns: self.start.as_nanos(),
            end_ns: end.as_nanos(),
            interval_ns: self.interval.as_nanos(),
            depth_levels: self.depth_levels,
            kinds: KINDS
                .into_iter()
                .zip(self.kinds)
                .filter_map(|(kind, recorder)| Some(recorder?.finish(kind)))
                .collect(),
            steady_state: None,
            spans_ns: None,
        };
        let intervals = job.span_ns().div_ceil(job.interval_ns).max(1);
        for kind in &job.kinds {
            let in_series: u64 = kind.series.iter().map(|row| row.requests).sum();
            assert_eq!(in_series, kind.requests, "every request lies in an interval");
            assert!(kind.series.iter().all(|row| row.index < intervals), "a job ends after its completions");
        }
        job
    }

    /// Stores the current interval and moves to the one that contains `completed`, skipping idle ones.
    #[cold]
    fn close_interval(&mut self, completed: Instant) {
        self.flush_rows();
        let span_ns = completed.since(self.start).as_nanos();
        self.index = span_ns.div_ceil(self.interval.as_nanos()) - 1;
        self.interval_end = self.start.saturating_add(self.interval * (self.index + 1));
    }

    fn flush_rows(&mut self) {
        for kind in self.kinds.iter_mut().flatten() {
            kind.flush_row(self.index);
        }
    }
}

impl KindRecorder {
    #[cold]
    fn new() -> Box<Self> {
        Box::new(Self {
            bytes: 0,
            slat: Sums::EMPTY,
            clat: LatencyRecorder::new(),
            lat: LatencyRecorder::new(),
            now: Current {
                requests: 0,
                bytes: 0,
                latency_sum_ns: 0,
                bins: Histogram::new(INTERVAL_DIGITS).expect("up to five digits are allowed"),
            },
            series: Vec::new(),
        })
    }

    #[inline]
    fn record(&mut self, bytes: u64, slat: Duration, clat: Duration) {
        let lat = slat + clat;
        self.bytes += bytes;
        self.slat.record(slat.as_nanos());
        self.clat.record(clat);
        self.lat.record(lat);
        self.now.requests += 1;
        self.now.bytes += bytes;
        self.now.latency_sum_ns += lat.as_nanos();
        self.now.bins.record(lat.as_nanos()).expect("the histogram grows to any value");
    }

    fn flush_row(&mut self, index: u64) {
        let now = &mut self.now;
        if now.requests == 0 {
            return;
        }
        let p99 = Bins::of(&now.bins).percentile(Percentile::P99).expect("the interval has a request");
        self.series.push(IntervalRow {
            index,
            requests: now.requests,
            bytes: now.bytes,
            latency_sum_ns: now.latency_sum_ns,
            latency_p99_ns: p99,
        });
        now.bins.reset();
        (now.requests, now.bytes, now.latency_sum_ns) = (0, 0, 0);
    }

    fn finish(self, kind: Kind) -> KindResult {
        let (clat, lat) = (self.clat.distribution(), self.lat.distribution());
        let requests = lat.summary.count;
        assert_eq!((clat.bins.count(), lat.bins.count()), (requests, requests), "every request is in a bin");
        KindResult {
            kind,
            requests,
            bytes: self.bytes,
            between_ns: None,
            slat: self.slat.summary(),
            clat,
            lat,
            series: self.series,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use flashweir_core::RandomStream;

    fn at(ns: u64) -> Instant {
        Instant::from_nanos(ns)
    }

    #[test]
    fn latencies_are_split_as_fio_splits_them() {
        let mut r = Recorder::new(at(1000), Duration::from_nanos(100));
        r.record(Kind::Read, 4096, at(900), at(990), at(1050));
        r.record(Kind::Read, 4096, at(1000), at(1000), at(1100));
        r.record(Kind::Flush, 0, at(1000), at(1000), at(1101));
        r.record(Kind::Read, 8192, at(1000), at(1010), at(1401));
        let job = r.finish("job", BTreeMap::new(), at(1450));
        let read = job.kind(Kind::Read).unwrap();
        assert_eq!((read.requests, read.bytes, read.slat.max_ns, read.slat.min_ns), (3, 16_384, 90, 0));
        assert_eq!((read.clat.summary.min_ns, read.clat.summary.max_ns), (60, 391));
        assert_eq!((read.lat.summary.min_ns, read.lat.summary.max_ns), (100, 401));
        assert!((read.lat.summary.mean_ns - 217.0).abs() < 1e-9);
        assert_eq!(
            read.series,
            [IntervalRow::from([0, 2, 8192, 250, 150]), IntervalRow::from([4, 1, 8192, 401, 401])]
        );
        // A completion at the very end of an interval belongs to it, one nanosecond later to the next.
        assert_eq!(job.kind(Kind::Flush).unwrap().series[0].index, 1);
        assert!(job.kind(Kind::Write).is_none());
        let intervals: Vec<_> = job.intervals(read).collect();
        assert_eq!(intervals.iter().map(|i| i.requests).collect::<Vec<_>>(), [2, 0, 0, 0, 1]);
        assert_eq!((intervals[4].start_ns, intervals[4].length_ns, intervals[4].full), (1400, 50, false));
        assert_eq!((intervals[0].iops(), intervals[1].latency_mean_p99_ns), (2e7, None));
        assert_eq!(job.iops(read), 3e9 / 450.0);
    }

    #[test]
    fn depths_fall_into_powers_of_two() {
        let mut r = Recorder::new(Instant::ZERO, Duration::from_secs(1));
        for depth in [1, 2, 3, 4, 7, 8, 15, 16, 31, 32, 63, 64, 65, 4096] {
            r.submitted_at_depth(depth);
        }
        assert_eq!(r.finish("", BTreeMap::new(), Instant::ZERO).depth_levels, [1, 2, 2, 2, 2, 2, 3]);
    }

    #[test]
    fn series_agree_with_a_plain_list_of_requests() {
        let mut stream = RandomStream::new(11, "recorder");
        let interval_ns = 1_000_000;
        let mut r = Recorder::new(at(500), Duration::from_nanos(interval_ns));
        let mut now = 500;
        let mut plain: BTreeMap<u64, Vec<u64>> = BTreeMap::new();
        for _ in 0..50_000 {
            now += stream.below(2000) + if stream.chance(0.001) { 5_000_000 } else { 1 };
            let clat = stream.below(now - 500).min(stream.below(3_000_000));
            let slat = stream.below(now - clat);
            r.record(Kind::Write, 512, at(now - clat - slat), at(now - clat), at(now));
            plain.entry((now - 501) / interval_ns).or_default().push(slat + clat);
        }
        let job = r.finish("", BTreeMap::new(), at(now));
        let write = job.kind(Kind::Write).unwrap();
        assert_eq!(write.series.len(), plain.len());
        for (row, (index, mut latencies)) in write.series.iter().zip(plain) {
            latencies.sort_unstable();
            assert_eq!((row.index, row.requests), (index, latencies.len() as u64));
            assert_eq!(row.latency_sum_ns, latencies.iter().sum::<u64>());
            let exact = latencies[Percentile::P99.rank(row.requests) as usize - 1];
            assert!(exact <= row.latency_p99_ns && row.latency_p99_ns - exact <= exact / 100);
        }
    }

    #[test]
    #[should_panic(expected = "submitted 20ns")]
    fn a_completion_before_its_submission_is_our_bug() {
        Recorder::new(at(0), Duration::from_nanos(5)).record(Kind::Read, 0, at(10), at(20), at(19));
    }

    #[test]
    #[should_panic(expected = "completed 10ns")]
    fn completions_come_in_order() {
        let mut r = Recorder::new(at(0), Duration::from_nanos(10));
        r.record(Kind::Read, 0, at(0), at(0), at(21));
        r.record(Kind::Read, 0, at(0), at(0), at(10));
    }
}
