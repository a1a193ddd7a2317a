//! Samples a device and its host's requests at regular intervals, in bounded memory.
//!
//! Place in the data flow: the driver of a device (a world, a server) reports when requests begin and end, and passes
//! the device at each boundary of a column; the result is a [`Course`].
//!
//! Invariants: there are at most [`COLUMNS_MAX`] columns; when they are full, pairs of them are merged, and the
//! sampling interval doubles. A run of any length therefore keeps its whole course, and the cost of sampling is
//! logarithmic in its length. A column includes its last instant and excludes its first, as in a recorder.
//!
//! Deliberately absent: a clock, and the driver of the device. Sampling does not change the device.

use super::course::{Axis, Course, JobRequests, Numbers, Requests};
use super::distribution::{Bins, Percentile};
use super::run::{KINDS, kind_index};
use crate::request::Kind;
use flashweir_core::{Duration, Instant};
use flashweir_device::{Device, DeviceMetrics};
use hdrhistogram::Histogram;
use std::collections::BTreeMap;

/// Maximum number of jobs that are kept apart; more would overcrowd the page.
pub const JOBS_MAX: usize = 8;
/// Maximum number of columns.
pub const COLUMNS_MAX: usize = 600;
/// Length of the first columns of time.
const FIRST_COLUMN: Duration = Duration::from_micros(10);
/// Maximum number of request columns.
const REQUEST_COLUMNS_MAX: usize = 150;
/// Columns of requests are lengthened until each has this many requests on average, since a 99.9th percentile of fewer
/// requests is their maximum.
const REQUESTS_PER_COLUMN: u64 = 1000;
/// Fewest columns that lengthening for [`REQUESTS_PER_COLUMN`] may leave.
const REQUEST_COLUMNS_FEW: usize = 40;
/// Columns are lengthened until each has this many requests on average, however few columns are left.
const REQUESTS_PER_COLUMN_MIN: u64 = 10;
/// Significant digits of latencies, as in the intervals of a recorder.
const DIGITS: u8 = 2;

/// Number of device counters, in the order in which a column keeps them.
const COUNTERS: usize = 6;

/// A snapshot of a device in plain numbers.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Snapshot {
    /// Mapping units written by the host, programmed for the host, moved, of padding and of metadata; erase blocks
    /// erased.
    counters: [u64; COUNTERS],
    buffer_used: u64,
    buffer_dirty: u64,
    free_blocks: u64,
    free_blocks_min: u64,
    station_busy: Vec<u64>,
    channel_busy: Vec<u64>,
}

impl Snapshot {
    /// Takes the device's state at `now`, after all earlier events were executed.
    pub fn of(device: &Device, now: Instant) -> Self {
        Self::seen_as(device.metrics(), device, now)
    }

    /// The same with these counters in the place of the device's.
    pub(crate) fn seen_as(m: &DeviceMetrics, device: &Device, now: Instant) -> Self {
        let [_, used, dirty] = device.buffer_use();
        let (free_least, free_mean) = device.free_blocks();
        let nanos = |time: Duration| time.as_nanos();
        Self {
            counters: [
                m.host_units_written,
                m.user_units_programmed,
                m.gc_units_moved,
                m.filler_units,
                m.meta_units,
                m.erases,
            ],
            buffer_used: used,
            buffer_dirty: dirty,
            free_blocks: (free_mean * f64::from(device.geometry().planes())).round() as u64,
            free_blocks_min: free_least,
            station_busy: device.station_busy_until(now).into_iter().map(nanos).collect(),
            channel_busy: device.channel_busy_until(now).into_iter().map(nanos).collect(),
        }
    }
}

/// Requests of one kind in one column.
#[derive(Clone, Debug, Default)]
struct Part {
    count: u64,
    bytes: u64,
    bins: Bins,
}

#[derive(Clone, Debug)]
struct Column {
    counters: [u64; COUNTERS],
    in_flight_ns: u64,
    /// Snapshot at the end of the column; its lists hold the busy time of each station and channel within the column.
    last: Snapshot,
    /// Requests of all jobs, then of each job that is kept apart.
    kinds: Vec<[Part; KINDS.len()]>,
}

impl Column {
    /// Merges the following column into this one.
    fn absorb(&mut self, next: Self) {
        let add = |into: &mut [u64], more: &[u64]| into.iter_mut().zip(more).for_each(|(a, b)| *a += b);
        add(&mut self.counters, &next.counters);
        self.in_flight_ns += next.in_flight_ns;
        let before = std::mem::replace(&mut self.last, next.last);
        add(&mut self.last.station_busy, &before.station_busy);
        add(&mut self.last.channel_busy, &before.channel_busy);
        self.last.free_blocks_min = self.last.free_blocks_min.min(before.free_blocks_min);
        for (into, more) in self.kinds.iter_mut().flatten().zip(next.kinds.into_iter().flatten()) {
            into.count += more.count;
            into.bytes += more.bytes;
            into.bins = into.bins.merge(&more.bins);
        }
    }
}

/// Requests of one kind in the current column.
#[derive(Clone, Debug)]
struct Current {
    count: u64,
    bytes: u64,
    latencies: Histogram<u64>,
}

/// Samples one device.
#[derive(Clone, Debug)]
pub struct Sampler {
    axis: Axis,
    column: u64,
    /// End of the current column.
    due: u64,
    columns: Vec<Column>,
    before: Snapshot,
    /// Requests of all jobs, then of each job that is kept apart.
    kinds: Vec<[Option<Box<Current>>; KINDS.len()]>,
    jobs: Vec<String>,
    in_flight: u64,
    in_flight_ns: u64,
    in_flight_since: u64,
}

impl Sampler {
    /// Samples over virtual time from zero, where `first` is the state of the device.
    pub fn over_time(first: Snapshot) -> Self {
        Self::new(Axis::VirtualTime, FIRST_COLUMN.as_nanos(), first)
    }

    /// Samples over the units that the host writes from now on, for a device without time.
    pub fn over_host_units(first: Snapshot) -> Self {
        Self::new(Axis::HostUnits, 64, first)
    }

    fn new(axis: Axis, column: u64, before: Snapshot) -> Self {
        Self {
            axis,
            column,
            due: column,
            columns: Vec::new(),
            before,
            kinds: vec![[const { None }; KINDS.len()]],
            jobs: Vec::new(),
            in_flight: 0,
            in_flight_ns: 0,
            in_flight_since: 0,
        }
    }

    /// Keeps these jobs apart as well, if there are several and at most [`JOBS_MAX`].
    pub fn keep_apart(&mut self, jobs: Vec<String>) {
        if (2..=JOBS_MAX).contains(&jobs.len()) {
            self.kinds.resize_with(1 + jobs.len(), || [const { None }; KINDS.len()]);
            self.jobs = jobs;
        }
    }

    /// Returns the position of the next sample, which must be taken before any later event.
    #[inline]
    pub fn due(&self) -> u64 {
        self.due
    }

    /// Records that a request begins at `now`, or joins the queue in front of the device.
    #[inline]
    pub fn submitted(&mut self, now: Instant) {
        self.pass(now.as_nanos());
        self.in_flight += 1;
    }

    /// Records that a request ends at `now`.
    #[inline]
    pub fn completed(&mut self, now: Instant) {
        self.pass(now.as_nanos());
        self.in_flight = self.in_flight.checked_sub(1).expect("a request that ends was begun");
    }

    /// Records a request that counts and ended `latency` after its intended start.
    #[inline]
    pub fn record(&mut self, kind: Kind, bytes: u64, latency: Duration) {
        self.record_in(0, kind, bytes, latency);
    }

    /// Records a request of one of the jobs that are kept apart.
    #[inline]
    pub fn record_of(&mut self, job: usize, kind: Kind, bytes: u64, latency: Duration) {
        self.record_in(0, kind, bytes, latency);
        if job < self.jobs.len() {
            self.record_in(1 + job, kind, bytes, latency);
        }
    }

    #[inline]
    fn record_in(&mut self, slot: usize, kind: Kind, bytes: u64, latency: Duration) {
        let current = self.kinds[slot][kind_index(kind)].get_or_insert_with(|| {
            let latencies = Histogram::new(DIGITS).expect("up to five digits are allowed");
            Box::new(Current { count: 0, bytes: 0, latencies })
        });
        current.count += 1;
        current.bytes += bytes;
        current.latencies.record(latency.as_nanos()).expect("the histogram grows to any value");
    }

    fn pass(&mut self, now: u64) {
        self.in_flight_ns += self.in_flight * now.saturating_sub(self.in_flight_since);
        self.in_flight_since = now;
    }

    /// Samples the device at [`Self::due`] and begins the next column.
    pub fn sample(&mut self, device: Snapshot) {
        let at = self.due;
        self.close(at, device);
        if self.columns.len() == COLUMNS_MAX {
            self.columns = paired(std::mem::take(&mut self.columns), 2);
            self.column *= 2;
        }
        self.due = at + self.column;
    }

    fn close(&mut self, at: u64, now: Snapshot) {
        self.pass(at);
        let less = |now: &[u64], before: &[u64]| now.iter().zip(before).map(|(a, b)| a - b).collect();
        let mut last = now.clone();
        last.station_busy = less(&now.station_busy, &self.before.station_busy);
        last.channel_busy = less(&now.channel_busy, &self.before.channel_busy);
        let counters = std::array::from_fn(|i| now.counters[i] - self.before.counters[i]);
        let part = |current: &mut Option<Box<Current>>| {
            let Some(current) = current.as_deref_mut().filter(|current| current.count > 0) else {
                return Part::default();
            };
            let part =
                Part { count: current.count, bytes: current.bytes, bins: Bins::of(&current.latencies) };
            current.latencies.reset();
            (current.count, current.bytes) = (0, 0);
            part
        };
        let kinds = self.kinds.iter_mut().map(|kinds| kinds.each_mut().map(part)).collect();
        let in_flight_ns = std::mem::take(&mut self.in_flight_ns);
        self.columns.push(Column { counters, in_flight_ns, last, kinds });
        self.before = now;
    }

    /// Ends at `end`, with the last sample, where `device` is the final state. All earlier boundaries must have been sampled.
    pub fn finish(mut self, end: u64, last: Snapshot, device: &Device) -> Course {
        let begun = self.due - self.column;
        assert!((begun..=self.due).contains(&end), "the sample at {} is missing", self.due);
        // An event at the very end belongs to the last column, which may be closed already.
        if end > begun {
            self.close(end, last);
        }
        let geometry = device.geometry();
        let good = (0..geometry.blocks()).map(flashweir_ftl::BlockId).filter(|b| !device.media().is_bad(*b));
        let mut wear = BTreeMap::new();
        for block in good {
            *wear.entry(u64::from(device.media().erases(block))).or_insert(0) += 1;
        }
        let (factor, mut parts) = self.request_columns();
        let all = parts.remove(0);
        let jobs = std::mem::take(&mut self.jobs).into_iter().zip(parts);
        let jobs = jobs.map(|(name, requests)| JobRequests { name, requests }).collect();
        let columns = self.columns;
        let counter = |i: usize| columns.iter().map(|column| column.counters[i]).collect();
        let gauge = |value: fn(&Snapshot) -> u64| columns.iter().map(|column| value(&column.last)).collect();
        let busy = |list: fn(&Snapshot) -> &Vec<u64>, count: u32| {
            let one = |i: usize| columns.iter().map(|column| list(&column.last)[i]).collect();
            (0..count as usize).map(one).collect::<Vec<Numbers>>()
        };
        Course {
            axis: self.axis,
            column: self.column,
            end,
            unit_bytes: geometry.unit_bytes,
            buffer_capacity_units: device.buffer_use()[0],
            planes: u64::from(geometry.planes()),
            stations_per_channel: u64::from(geometry.stations_per_channel()),
            host_units: counter(0),
            user_units: counter(1),
            gc_units: counter(2),
            filler_units: counter(3),
            meta_units: counter(4),
            erases: counter(5),
            in_flight_ns: columns.iter().map(|column| column.in_flight_ns).collect(),
            buffer_used_units: gauge(|at| at.buffer_used),
            buffer_dirty_units: gauge(|at| at.buffer_dirty),
            free_blocks: gauge(|at| at.free_blocks),
            free_blocks_min: gauge(|at| at.free_blocks_min),
            station_busy_ns: busy(|at| &at.station_busy, geometry.stations()),
            channel_busy_ns: busy(|at| &at.channel_busy, geometry.channels()),
            request_column: self.column * factor,
            requests: all,
            jobs,
            wear: Bins::from_counts(wear),
        }
    }

    /// Returns the requests of all jobs and of each job that is kept apart, in columns that each span a whole number of
    /// device columns.
    fn request_columns(&self) -> (u64, Vec<Vec<Requests>>) {
        let total = |slot: usize, i: usize| {
            self.columns.iter().map(|column| column.kinds[slot][i].count).sum::<u64>()
        };
        let most = (0..KINDS.len()).map(|i| total(0, i)).max().unwrap_or(0);
        let len = |factor: usize| self.columns.len().div_ceil(factor);
        let mut factor = 1;
        let too_short = |factor: usize| {
            let (columns, each) = (len(factor), most / (len(factor) as u64).max(1));
            columns > REQUEST_COLUMNS_MAX
                || columns >= 2 * REQUEST_COLUMNS_FEW && each < REQUESTS_PER_COLUMN
                || columns > 1 && each < REQUESTS_PER_COLUMN_MIN
        };
        while too_short(factor) {
            factor *= 2;
        }
        let columns = paired(self.columns.clone(), factor);
        let of = |slot: usize, i: usize| {
            let column =
                |value: &dyn Fn(&Part) -> u64| columns.iter().map(|c| value(&c.kinds[slot][i])).collect();
            let percentile = |p| column(&|part: &Part| part.bins.percentile(p).unwrap_or(0));
            Requests {
                kind: KINDS[i],
                count: column(&|part| part.count),
                bytes: column(&|part| part.bytes),
                p50_ns: percentile(Percentile::P50),
                p99_ns: percentile(Percentile::P99),
                p99_9_ns: percentile(Percentile::P99_9),
            }
        };
        let in_slot =
            |slot: usize| (0..KINDS.len()).filter(|i| total(slot, *i) > 0).map(|i| of(slot, i)).collect();
        (factor as u64, (0..self.kinds.len()).map(in_slot).collect())
    }
}

/// Merges each group of `size` neighbouring columns.
fn paired(columns: Vec<Column>, size: usize) -> Vec<Column> {
    let mut merged: Vec<Column> = Vec::with_capacity(columns.len().div_ceil(size));
    for (i, column) in columns.into_iter().enumerate() {
        match merged.last_mut() {
            Some(last) if i % size != 0 => last.absorb(column),
            _ => merged.push(column),
        }
    }
    merged
}

#[cfg(test)]
mod tests {
    use super::*;
    use flashweir_core::RandomStream;
    use flashweir_device::{DeviceOptions, presets};

    fn plain(count: u64) -> Snapshot {
        Snapshot { counters: [count; COUNTERS], station_busy: vec![0], ..Snapshot::default() }
    }

    #[test]
    fn any_length_fits_into_the_columns() {
        let config = presets::preset("mobile-ufs").expect("a preset");
        let device = Device::new(config, DeviceOptions { seed: 1, track_contents: false, planted: None });
        for span_ns in [1, 10_000, 10_001, 6_000_000, 6_000_001, 3_600_000_000_000] {
            let mut stream = RandomStream::new(span_ns, "sampler");
            let mut sampler = Sampler::over_time(plain(0));
            let (mut now, mut count, mut bytes) = (0, 0, 0);
            while now < span_ns {
                now = (now + 1 + stream.below(span_ns / 50 + 1)).min(span_ns);
                while sampler.due() < now {
                    let busy = vec![sampler.due()];
                    sampler.sample(Snapshot { station_busy: busy, ..plain(count) });
                }
                sampler.submitted(Instant::from_nanos(now));
                sampler.completed(Instant::from_nanos(now));
                sampler.record(Kind::Read, now, Duration::from_nanos(now));
                (count, bytes) = (count + 1, bytes + now);
            }
            assert!(sampler.columns.len() < COLUMNS_MAX);
            let sampled: u64 = sampler.columns.iter().map(|column| column.counters[0]).sum();
            assert_eq!(sampled, sampler.before.counters[0]);
            let busy: u64 = sampler.columns.iter().flat_map(|column| &column.last.station_busy).sum();
            assert_eq!(busy, sampler.due - sampler.column, "columns have no gaps");
            // The end needs a device; this one has done nothing.
            sampler.before = Snapshot::of(&device, Instant::ZERO);
            sampler.columns.iter_mut().for_each(|column| column.last = sampler.before.clone());
            let course = sampler.finish(span_ns, Snapshot::of(&device, Instant::ZERO), &device);
            assert!((course.column / FIRST_COLUMN.as_nanos()).is_power_of_two());
            assert_eq!(course.len() as u64, span_ns.div_ceil(course.column));
            let read = &course.requests[0];
            assert_eq!((read.count.iter().sum::<u64>(), read.bytes.iter().sum::<u64>()), (count, bytes));
            for most in [1, 7, 150, 1000] {
                let groups = course.groups(most);
                let last = groups.last().map(|(columns, span)| (columns.end, span.end));
                assert!(groups.len() <= most && groups[0].1.start == 0);
                assert_eq!(last, Some((course.len(), span_ns)));
                for pair in groups.windows(2) {
                    assert_eq!((pair[0].0.end, pair[0].1.end), (pair[1].0.start, pair[1].1.start));
                }
            }
            let text = serde_json::to_string(&course).unwrap();
            assert_eq!(serde_json::from_str::<Course>(&text).unwrap(), course);
        }
    }

    #[test]
    fn a_column_holds_its_last_instant() {
        let mut sampler = Sampler::over_time(plain(0));
        let end = Instant::from_nanos(sampler.due());
        sampler.submitted(Instant::ZERO);
        sampler.completed(end);
        sampler.record(Kind::Write, 512, end.since(Instant::ZERO));
        sampler.sample(plain(1));
        let column = &sampler.columns[0];
        assert_eq!(
            (column.kinds[0][kind_index(Kind::Write)].count, column.in_flight_ns),
            (1, end.as_nanos())
        );
    }
}
