//! The result of one run: one device, one workload, one seed.
//!
//! Invariants: a result depends only on the configuration and the seed. It holds no wall-clock time, so that two runs
//! of one seed can be compared byte by byte. Kinds of requests that never completed are absent.

use super::course::Course;
use super::distribution::{Distribution, Summary};
use crate::measure::SteadyState;
use crate::request::Kind;
use flashweir_core::Instant;
use flashweir_core::metrics::Metric;
use flashweir_device::DeviceMetrics;
use serde::de::Error as _;
use serde::{Deserialize, Deserializer, Serialize, Serializer};
use std::collections::BTreeMap;
use std::fmt;
use std::ops::Range;

/// Number of queue-depth levels: 1, 2, 4, 8, 16, 32 and 64 or more.
pub const DEPTH_LEVELS: usize = 7;

/// Every kind of request, in the order in which results list them.
pub const KINDS: [Kind; 6] =
    [Kind::Read, Kind::Write, Kind::Trim, Kind::WriteZeroes, Kind::Share, Kind::Flush];

/// Returns the position of a kind in [`KINDS`].
#[inline]
pub(super) const fn kind_index(kind: Kind) -> usize {
    match kind {
        Kind::Read => 0,
        Kind::Write => 1,
        Kind::Trim => 2,
        Kind::WriteZeroes => 3,
        Kind::Share => 4,
        Kind::Flush => 5,
    }
}

/// Returns the name of a kind in files and tables.
pub const fn kind_name(kind: Kind) -> &'static str {
    match kind {
        Kind::Read => "read",
        Kind::Write => "write",
        Kind::Trim => "trim",
        Kind::WriteZeroes => "zero",
        Kind::Share => "share",
        Kind::Flush => "flush",
    }
}

/// All measurements of one run.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct RunResult {
    /// Name of the device's configuration. A sweep gives each variant its own.
    pub device: String,
    /// Name of the workload.
    pub workload: String,
    /// Seed of all random streams.
    pub seed: u64,
    /// Virtual time from the beginning of the world to its end, in nanoseconds.
    pub virtual_time_ns: u64,
    /// Virtual time from which totals and counters count: when the first job whose results count was past its ramp.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub counted_from_ns: u64,
    /// Results of the jobs, in the order of the configuration.
    pub jobs: Vec<JobResult>,
    /// Totals of the device, in terms that all devices share.
    pub totals: DeviceTotals,
    /// Further counters of this device, by name.
    pub metrics: BTreeMap<String, MetricValue>,
    /// Hash over everything that the device did.
    #[serde(default)]
    pub trace_hash: TraceHash,
    /// Course of the run, if requested.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub course: Option<Box<Course>>,
}

impl RunResult {
    /// Adds declared counters under `prefix`, as in `nand.programs`. Panics if a name is taken.
    pub fn add_metrics(&mut self, prefix: &str, list: &[Metric]) {
        for metric in list {
            let name = format!("{prefix}.{}", metric.name);
            let before = self.metrics.insert(name, MetricValue::Count(metric.value));
            assert!(before.is_none(), "metric `{prefix}.{}` is added once", metric.name);
        }
    }
}

fn is_zero(value: &u64) -> bool {
    *value == 0
}

/// A hash of events: runs with equal hashes did the same. Stored as a string of 16 hexadecimal digits, since tools that
/// read JSON keep only 53 bits of a number.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct TraceHash(pub u64);

impl fmt::Display for TraceHash {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:016x}", self.0)
    }
}

impl Serialize for TraceHash {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(self)
    }
}

impl<'de> Deserialize<'de> for TraceHash {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let text = String::deserialize(deserializer)?;
        let number = u64::from_str_radix(&text, 16);
        number.map(Self).map_err(|_| D::Error::custom(format!("`{text}`: expected 16 hexadecimal digits")))
    }
}

/// One value that a device reports.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
#[serde(untagged)]
pub enum MetricValue {
    /// A count, or a sum of units.
    Count(u64),
    /// A ratio; always finite.
    Ratio(f64),
}

impl MetricValue {
    /// Returns the value of either variant as a real number; a count loses digits beyond 53 bits.
    pub fn as_f64(self) -> f64 {
        match self {
            Self::Count(count) => count as f64,
            Self::Ratio(ratio) => ratio,
        }
    }
}

/// Totals of a device over the measured time, in terms that all devices share.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct DeviceTotals {
    /// Bytes written by the host.
    pub host_written_bytes: u64,
    /// Bytes programmed into the NAND, for any reason.
    pub nand_written_bytes: u64,
    /// Erase blocks erased.
    pub erases: u64,
    /// Mapping units moved by garbage collection.
    pub gc_units_moved: u64,
    /// Flushes completed by the device.
    pub flushes: u64,
}

impl DeviceTotals {
    /// Computes the totals from the counters of a device with mapping units of `unit_bytes`.
    pub fn of(metrics: &DeviceMetrics, unit_bytes: u64) -> Self {
        let nand_units = metrics.user_units_programmed
            + metrics.gc_units_moved
            + metrics.filler_units
            + metrics.meta_units;
        Self {
            host_written_bytes: metrics.host_units_written * unit_bytes,
            nand_written_bytes: nand_units * unit_bytes,
            erases: metrics.erases,
            gc_units_moved: metrics.gc_units_moved,
            flushes: metrics.flushes,
        }
    }

    /// Returns the write amplification: bytes programmed per byte written by the host; `None` if the host wrote none.
    pub fn waf(&self) -> Option<f64> {
        (self.host_written_bytes > 0).then(|| self.nand_written_bytes as f64 / self.host_written_bytes as f64)
    }
}

/// Results of one job between `start_ns` and `end_ns`, both since the world began.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct JobResult {
    /// Name of the job.
    pub name: String,
    /// Options of the job as text, for readers that look for `rw`, `bs` or `iodepth`.
    pub options: BTreeMap<String, String>,
    /// Start of the measurement.
    pub start_ns: u64,
    /// End of the measurement.
    pub end_ns: u64,
    /// Length of an interval of the series; the last interval may be shorter.
    pub interval_ns: u64,
    /// Number of requests submitted while 1, 2 to 3, 4 to 7, 8 to 15, 16 to 31, 32 to 63, and 64 or more were in
    /// flight, the submitted one included.
    pub depth_levels: [u64; DEPTH_LEVELS],
    /// One entry per kind with a completed request.
    pub kinds: Vec<KindResult>,
    /// Result of the search for a steady state, if the job had one; absent for merged jobs.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub steady_state: Option<SteadyState>,
    /// Sum of the lengths of the jobs that were merged; absent for one job.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub spans_ns: Option<u64>,
}

/// Results of one job for one kind of request.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct KindResult {
    /// Kind of the requests.
    #[serde(with = "kind_text")]
    pub kind: Kind,
    /// Number of requests completed.
    pub requests: u64,
    /// Bytes of the requests completed.
    pub bytes: u64,
    /// Start and end of the time in which the job had requests of this kind, since the world began, if that is not its
    /// whole time: with `verify`, writes end where the job begins to read back, as in fio.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub between_ns: Option<[u64; 2]>,
    /// Submission latency: from the intended start of a request to its submission.
    pub slat: Summary,
    /// Completion latency: from submission to completion.
    pub clat: Distribution,
    /// Total latency: from the intended start to completion.
    pub lat: Distribution,
    /// The intervals in which a request completed, in ascending order.
    pub series: Vec<IntervalRow>,
}

/// One interval of one kind, stored as an array of five numbers.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(from = "[u64; 5]", into = "[u64; 5]")]
pub struct IntervalRow {
    /// Number of the interval: it reaches from `index` interval lengths after the start of the job, exclusive, to one
    /// length later, inclusive.
    pub index: u64,
    /// Number of requests completed in it.
    pub requests: u64,
    /// Bytes of these requests.
    pub bytes: u64,
    /// Sum of their latencies from the intended start to completion.
    pub latency_sum_ns: u64,
    /// 99th percentile of these latencies, with two significant digits.
    pub latency_p99_ns: u64,
}

impl From<[u64; 5]> for IntervalRow {
    fn from([index, requests, bytes, latency_sum_ns, latency_p99_ns]: [u64; 5]) -> Self {
        Self { index, requests, bytes, latency_sum_ns, latency_p99_ns }
    }
}
impl From<IntervalRow> for [u64; 5] {
    fn from(r: IntervalRow) -> Self {
        [r.index, r.requests, r.bytes, r.latency_sum_ns, r.latency_p99_ns]
    }
}

/// One interval of one kind with its position in time; intervals without requests are included.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Interval {
    /// Start of the interval since the world began.
    pub start_ns: u64,
    /// Length of the interval.
    pub length_ns: u64,
    /// Whether it has the full length; only the last one may be shorter.
    pub full: bool,
    /// Number of requests completed in it.
    pub requests: u64,
    /// Bytes of these requests.
    pub bytes: u64,
    /// Mean and 99th percentile of their latencies in nanoseconds; `None` if there was no request.
    pub latency_mean_p99_ns: Option<(f64, u64)>,
}

impl Interval {
    /// Returns requests per second.
    pub fn iops(&self) -> f64 {
        per_second(self.requests, self.length_ns)
    }
    /// Returns bytes per second.
    pub fn bytes_per_s(&self) -> f64 {
        per_second(self.bytes, self.length_ns)
    }
}

/// Returns `count` per second of `span_ns`; zero if no time passed.
pub(super) fn per_second(count: u64, span_ns: u64) -> f64 {
    if span_ns == 0 { 0.0 } else { count as f64 * 1e9 / span_ns as f64 }
}

impl JobResult {
    /// Length of the job, or the sum of those of the jobs that were merged, in ns.
    pub fn spans_ns(&self) -> u64 {
        self.spans_ns.unwrap_or_else(|| self.span_ns())
    }

    /// Returns the measured time in nanoseconds.
    pub fn span_ns(&self) -> u64 {
        self.end_ns - self.start_ns
    }
    /// Returns the entry of `kind`, if a request of it completed.
    pub fn kind(&self, kind: Kind) -> Option<&KindResult> {
        self.kinds.iter().find(|k| k.kind == kind)
    }
    /// Returns start and end of the time in which `kind` was measured, since the world began.
    fn between_ns(&self, kind: &KindResult) -> [u64; 2] {
        kind.between_ns.unwrap_or([self.start_ns, self.end_ns])
    }
    /// Returns the time in which `kind` was measured, in nanoseconds.
    pub fn span_of_ns(&self, kind: &KindResult) -> u64 {
        let [start, end] = self.between_ns(kind);
        end - start
    }
    /// Returns completed requests of `kind` per second.
    pub fn iops(&self, kind: &KindResult) -> f64 {
        per_second(kind.requests, self.span_of_ns(kind))
    }
    /// Returns completed bytes of `kind` per second.
    pub fn bytes_per_s(&self, kind: &KindResult) -> f64 {
        per_second(kind.bytes, self.span_of_ns(kind))
    }

    /// Narrows the time of each kind to that between the times which `between` returns for it, where it returns any.
    pub(crate) fn narrow(&mut self, between: impl Fn(Kind) -> [Option<Instant>; 2]) {
        for kind in &mut self.kinds {
            let [from, to] = between(kind.kind).map(|at| at.map(Instant::as_nanos));
            if from.is_some() || to.is_some() {
                let start = from.unwrap_or(0).clamp(self.start_ns, self.end_ns);
                kind.between_ns = Some([start, to.unwrap_or(u64::MAX).clamp(start, self.end_ns)]);
            }
        }
    }

    /// Numbers of the full intervals in which `kind` was measured; none without a series (see [`Self::merge`]).
    fn full_intervals(&self, kind: &KindResult) -> Range<u64> {
        let interval_ns = self.interval_ns.max(1);
        let [start, end] = self.between_ns(kind).map(|at| at - self.start_ns);
        let first = start.div_ceil(interval_ns);
        let end = if kind.series.is_empty() { 0 } else { end / interval_ns };
        first..end.max(first)
    }

    /// Returns `value` of each full interval in which `kind` was measured and had requests, and the number of the other full ones.
    pub fn busy_intervals(&self, kind: &KindResult, value: impl Fn(&Interval) -> f64) -> (Vec<f64>, u64) {
        let full = self.full_intervals(kind);
        let rows = kind.series.iter().filter(|row| full.contains(&row.index));
        let values: Vec<f64> = rows.map(|row| value(&self.interval(kind, row.index, Some(row)))).collect();
        let idle = full.end - full.start - values.len() as u64;
        (values, idle)
    }

    /// Returns requests per second of the full intervals in which `kind` was measured, in their order; of groups of as many
    /// consecutive ones as it takes for at most `most`.
    pub fn full_rates(&self, kind: &KindResult, most: usize) -> Vec<f64> {
        let full = self.full_intervals(kind);
        let (first, count) = (full.start, full.end - full.start);
        let group = count.div_ceil(most.max(1) as u64).max(1);
        let mut requests = vec![0u64; (count / group) as usize];
        for row in &kind.series {
            let place = row.index.checked_sub(first).map(|index| (index / group) as usize);
            if let Some(sum) = place.and_then(|place| requests.get_mut(place)) {
                *sum += row.requests;
            }
        }
        requests.into_iter().map(|sum| per_second(sum, group * self.interval_ns)).collect()
    }

    /// Iterates over every interval in which `kind` was measured, including those without completions: a stall is zero, not a
    /// gap. There is none without a series (see [`Self::merge`]).
    pub fn intervals<'a>(&'a self, kind: &'a KindResult) -> impl Iterator<Item = Interval> + 'a {
        let interval_ns = self.interval_ns.max(1);
        let [start, end] = self.between_ns(kind).map(|at| at - self.start_ns);
        let mut rows = kind.series.iter().peekable();
        let end = if kind.series.is_empty() { 0 } else { end.div_ceil(interval_ns) };
        (start / interval_ns..end)
            .map(move |index| self.interval(kind, index, rows.next_if(|row| row.index == index)))
    }

    fn interval(&self, kind: &KindResult, index: u64, row: Option<&IntervalRow>) -> Interval {
        let [start, end] = self.between_ns(kind);
        let from = (self.start_ns + index * self.interval_ns).max(start);
        let length_ns = (self.start_ns + (index + 1) * self.interval_ns).min(end) - from;
        Interval {
            start_ns: from,
            length_ns,
            full: length_ns == self.interval_ns,
            requests: row.map_or(0, |r| r.requests),
            bytes: row.map_or(0, |r| r.bytes),
            latency_mean_p99_ns: row.map(|r| (r.latency_sum_ns as f64 / r.requests as f64, r.latency_p99_ns)),
        }
    }

    /// Merges several jobs, under the name and options of the first. Distributions are merged; the series is merged if
    /// the jobs of which something was measured share the first start and the interval, and is empty otherwise. The 99th
    /// percentile of a merged interval is the largest of the jobs', an upper bound.
    pub fn merge(jobs: &[Self]) -> Option<Self> {
        let (first, rest) = jobs.split_first()?;
        let mut merged = first.clone();
        merged.steady_state = merged.steady_state.filter(|_| rest.is_empty());
        merged.spans_ns = (!rest.is_empty()).then(|| jobs.iter().map(Self::spans_ns).sum());
        for job in rest {
            let whole = [merged.start_ns, merged.end_ns];
            merged.start_ns = merged.start_ns.min(job.start_ns);
            merged.end_ns = merged.end_ns.max(job.end_ns);
            for (level, more) in merged.depth_levels.iter_mut().zip(job.depth_levels) {
                *level += more;
            }
            for kind in &job.kinds {
                match merged.kinds.iter_mut().find(|k| k.kind == kind.kind) {
                    Some(into) => {
                        if into.between_ns.is_some() || kind.between_ns.is_some() {
                            let [start, end] = into.between_ns.unwrap_or(whole);
                            let [from, to] = job.between_ns(kind);
                            into.between_ns = Some([start.min(from), end.max(to)]);
                        }
                        into.absorb(kind);
                    }
                    None => merged.kinds.push(kind.clone()),
                }
            }
        }
        merged.kinds.sort_by_key(|k| kind_index(k.kind));
        // A job of which nothing was measured has no series that could differ.
        let grid = (merged.start_ns, merged.interval_ns);
        let measured = jobs.iter().filter(|job| !job.kinds.is_empty());
        if !measured.map(|job| (job.start_ns, job.interval_ns)).all(|other| other == grid) {
            merged.kinds.iter_mut().for_each(|k| k.series.clear());
        }
        Some(merged)
    }
}

impl KindResult {
    fn absorb(&mut self, other: &Self) {
        self.requests += other.requests;
        self.bytes += other.bytes;
        self.slat = self.slat.merge(&other.slat);
        self.clat = self.clat.merge(&other.clat);
        self.lat = self.lat.merge(&other.lat);
        self.series.extend(&other.series);
        self.series.sort_by_key(|row| row.index);
        self.series.dedup_by(|later, kept| {
            let same = later.index == kept.index;
            if same {
                kept.requests += later.requests;
                kept.bytes += later.bytes;
                kept.latency_sum_ns += later.latency_sum_ns;
                kept.latency_p99_ns = kept.latency_p99_ns.max(later.latency_p99_ns);
            }
            same
        });
    }
}

pub(super) mod kind_text {
    use super::{KINDS, Kind, kind_name};
    use serde::{Deserialize, Deserializer, Serializer, de::Error};

    pub(in crate::measure) fn serialize<S: Serializer>(kind: &Kind, s: S) -> Result<S::Ok, S::Error> {
        s.serialize_str(kind_name(*kind))
    }
    pub(in crate::measure) fn deserialize<'de, D: Deserializer<'de>>(d: D) -> Result<Kind, D::Error> {
        let text = String::deserialize(d)?;
        KINDS.into_iter().find(|k| kind_name(*k) == text).ok_or_else(|| {
            Error::custom(format!(
                "`{text}` is not a kind: expected one of {}",
                KINDS.map(kind_name).join(", ")
            ))
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::measure::testing::{random_run, run};

    #[test]
    fn a_result_is_read_back_byte_for_byte() {
        for result in [run(1), random_run(2), RunResult::default()] {
            let text = serde_json::to_string(&result).unwrap();
            let back: RunResult = serde_json::from_str(&text).unwrap();
            assert_eq!(back, result);
            assert_eq!(serde_json::to_string(&back).unwrap(), text);
        }
        assert_eq!(
            serde_json::to_string(&random_run(3)).unwrap(),
            serde_json::to_string(&random_run(3)).unwrap()
        );
        assert_ne!(random_run(3), random_run(4));
    }

    #[test]
    fn metrics_keep_their_type() {
        let values = BTreeMap::from([("a", MetricValue::Count(u64::MAX)), ("b", MetricValue::Ratio(1.0))]);
        let text = serde_json::to_string(&values).unwrap();
        assert_eq!(text, r#"{"a":18446744073709551615,"b":1.0}"#);
        assert_eq!(serde_json::from_str::<BTreeMap<&str, MetricValue>>(&text).unwrap(), values);
        let bad = text.replace("1.0", "\"x\"");
        assert!(serde_json::from_str::<BTreeMap<&str, MetricValue>>(&bad).is_err());
    }

    #[test]
    fn write_amplification_needs_writes() {
        let totals =
            DeviceTotals { host_written_bytes: 4, nand_written_bytes: 10, ..DeviceTotals::default() };
        assert_eq!(totals.waf(), Some(2.5));
        assert_eq!(DeviceTotals::default().waf(), None);
    }

    #[test]
    fn merged_jobs_keep_every_request() {
        let jobs = random_run(5).jobs;
        let merged = JobResult::merge(&jobs).unwrap();
        for kind in KINDS {
            let of = |job: &JobResult| job.kind(kind).map_or(0, |k| k.requests);
            assert_eq!(of(&merged), jobs.iter().map(of).sum::<u64>());
            let Some(k) = merged.kind(kind) else { continue };
            assert_eq!(merged.intervals(k).map(|i| i.requests).sum::<u64>(), k.requests);
            assert_eq!((k.lat.summary.count, k.lat.bins.count()), (k.requests, k.requests));
        }
        assert!(JobResult::merge(&[]).is_none());
    }
}
