//! A result in the form of fio's JSON, so that programs that read and plot fio's output read ours.
//!
//! Every key of fio 3.33's output is there, in fio's order. Values without a meaning in virtual time are zero: CPU
//! usage, context switches, page faults, and the date, which would make two runs of one seed differ. The numbers of
//! the device are under one key of ours, `flashweir`, and so are requests that fio does not know (write zeroes).
//!
//! Where fio leaves a choice, ours is: `lat_ns` has percentiles as with `lat_percentiles=1`; `latency_ns`,
//! `latency_us` and `latency_ms` count from submission to completion; samples of bandwidth and IOPS are the
//! intervals of the series, including those in which nothing completed; all jobs are in group 0.

use flashweir_sim::measure::SteadyState;
use flashweir_sim::measure::{
    DeviceTotals, Distribution, Interval, JobResult, KindResult, MetricValue, Percentile, RunResult, Summary,
};
use flashweir_sim::request::Kind;
use serde::{Serialize, Serializer};
use std::collections::BTreeMap;

/// The percentiles that fio reports, in parts per million.
const PERCENTILES_PPM: [u32; 17] = [
    10_000, 50_000, 100_000, 200_000, 300_000, 400_000, 500_000, 600_000, 700_000, 800_000, 900_000, 950_000,
    990_000, 995_000, 999_000, 999_500, 999_900,
];
/// Names of the queue-depth levels.
const LEVELS: [&str; 7] = ["1", "2", "4", "8", "16", "32", ">=64"];
/// Names of the levels of requests per submission or per reaping of completions.
const BATCHES: [&str; 7] = ["0", "4", "8", "16", "32", "64", ">=64"];
/// Names of the latency classes below 1000 ns or 1000 µs: the name is the upper bound of a class.
const CLASSES: [&str; 10] = ["2", "4", "10", "20", "50", "100", "250", "500", "750", "1000"];
/// Names of the latency classes of milliseconds; the last has no upper bound.
const CLASSES_MS: [&str; 12] =
    ["2", "4", "10", "20", "50", "100", "250", "500", "750", "1000", "2000", ">=2000"];

/// Whether jobs are reported one by one or together.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Grouping {
    /// Each job has an entry.
    PerJob,
    /// All jobs share an entry, as with `group_reporting`.
    Group,
}

/// The result as a JSON object.
pub fn fio_json(run: &RunResult, grouping: Grouping) -> impl Serialize + '_ {
    let merged = match grouping {
        Grouping::PerJob => None,
        Grouping::Group => JobResult::merge(&run.jobs).map(|job| vec![job]),
    };
    let jobs = merged.as_deref().unwrap_or(&run.jobs);
    let totals: [f64; 3] = [Kind::Read, Kind::Write, Kind::Trim].map(|kind| {
        jobs.iter().map(|job| Samples::of(job, job.kind(kind), Interval::bytes_per_s).mean).sum()
    });
    Report {
        version: "fio-3.33",
        timestamp: 0,
        timestamp_ms: 0,
        time: "Thu Jan  1 00:00:00 1970",
        global_options: [("ioengine", "flashweir")].into(),
        jobs: jobs.iter().map(|job| Job::of(job, run, grouping, &totals)).collect(),
        disk_util: [],
        flashweir: Own {
            device: &run.device,
            workload: &run.workload,
            seed: run.seed,
            virtual_time_ns: run.virtual_time_ns,
            waf: run.totals.waf(),
            totals: &run.totals,
            metrics: &run.metrics,
            write_zeroes: jobs.iter().map(|job| Direction::of(job, Kind::WriteZeroes, 0.0)).collect(),
            shares: jobs.iter().map(|job| Direction::of(job, Kind::Share, 0.0)).collect(),
        },
    }
}

#[derive(Serialize)]
struct Report<'a> {
    #[serde(rename = "fio version")]
    version: &'static str,
    timestamp: u64,
    timestamp_ms: u64,
    time: &'static str,
    #[serde(rename = "global options")]
    global_options: BTreeMap<&'static str, &'static str>,
    jobs: Vec<Job>,
    disk_util: [(); 0],
    flashweir: Own<'a>,
}

#[derive(Serialize)]
struct Own<'a> {
    device: &'a str,
    workload: &'a str,
    seed: u64,
    virtual_time_ns: u64,
    waf: Option<f64>,
    totals: &'a DeviceTotals,
    metrics: &'a BTreeMap<String, MetricValue>,
    write_zeroes: Vec<Direction>,
    shares: Vec<Direction>,
}

#[derive(Serialize)]
struct Job {
    jobname: String,
    groupid: u32,
    error: u32,
    eta: u32,
    elapsed: u64,
    #[serde(rename = "job options")]
    options: BTreeMap<String, String>,
    read: Direction,
    write: Direction,
    trim: Direction,
    sync: Sync,
    job_runtime: u64,
    usr_cpu: f64,
    sys_cpu: f64,
    ctx: u64,
    majf: u64,
    minf: u64,
    iodepth_level: Ordered<f64>,
    iodepth_submit: Ordered<f64>,
    iodepth_complete: Ordered<f64>,
    latency_ns: Ordered<f64>,
    latency_us: Ordered<f64>,
    latency_ms: Ordered<f64>,
    latency_depth: u32,
    latency_target: u32,
    latency_percentile: f64,
    latency_window: u32,
    #[serde(skip_serializing_if = "Option::is_none")]
    steadystate: Option<SteadyState>,
}

#[derive(Serialize)]
struct Direction {
    io_bytes: u64,
    io_kbytes: u64,
    bw_bytes: u64,
    bw: u64,
    iops: f64,
    runtime: u64,
    total_ios: u64,
    short_ios: u64,
    drop_ios: u64,
    slat_ns: Latency,
    clat_ns: Latency,
    lat_ns: Latency,
    bw_min: u64,
    bw_max: u64,
    bw_agg: f64,
    bw_mean: f64,
    bw_dev: f64,
    bw_samples: u64,
    iops_min: u64,
    iops_max: u64,
    iops_mean: f64,
    iops_stddev: f64,
    iops_samples: u64,
}

#[derive(Serialize)]
struct Sync {
    total_ios: u64,
    lat_ns: Latency,
}

#[derive(Serialize)]
struct Latency {
    min: u64,
    max: u64,
    mean: f64,
    stddev: f64,
    #[serde(rename = "N")]
    count: u64,
    #[serde(skip_serializing_if = "Option::is_none")]
    percentile: Option<Ordered<u64>>,
}

/// A map whose keys keep their order, which is numeric and not alphabetical.
struct Ordered<T>(Vec<(String, T)>);

impl<T: Serialize> Serialize for Ordered<T> {
    fn serialize<S: Serializer>(&self, s: S) -> Result<S::Ok, S::Error> {
        s.collect_map(self.0.iter().map(|(key, value)| (key, value)))
    }
}

impl Job {
    /// `totals` has the sums of the jobs' mean bandwidths of reads, writes and trims.
    fn of(job: &JobResult, run: &RunResult, grouping: Grouping, totals: &[f64; 3]) -> Self {
        let classes = Classes::of(job);
        let submitted = job.depth_levels.iter().sum::<u64>();
        let one_by_one = || shares(&BATCHES, &[0, submitted, 0, 0, 0, 0, 0], submitted);
        let spans_ns = match grouping {
            Grouping::PerJob => job.spans_ns(),
            Grouping::Group => run.jobs.iter().map(JobResult::spans_ns).sum(),
        };
        Self {
            jobname: job.name.clone(),
            groupid: 0,
            error: 0,
            eta: 0,
            elapsed: job.span_ns().div_ceil(1_000_000_000),
            options: job.options.clone(),
            read: Direction::of(job, Kind::Read, totals[0]),
            write: Direction::of(job, Kind::Write, totals[1]),
            trim: Direction::of(job, Kind::Trim, totals[2]),
            sync: Sync::of(job.kind(Kind::Flush)),
            job_runtime: spans_ns / 1_000_000,
            usr_cpu: 0.0,
            sys_cpu: 0.0,
            ctx: 0,
            majf: 0,
            minf: 0,
            iodepth_level: shares(&LEVELS, &job.depth_levels, submitted),
            iodepth_submit: one_by_one(),
            iodepth_complete: one_by_one(),
            latency_ns: shares(&CLASSES, &classes.ns, classes.count),
            latency_us: shares(&CLASSES, &classes.us, classes.count),
            latency_ms: shares(&CLASSES_MS, &classes.ms, classes.count),
            latency_depth: 1,
            latency_target: 0,
            latency_percentile: 100.0,
            latency_window: 0,
            steadystate: job.steady_state.clone(),
        }
    }
}

/// Each count as a percentage of `total`.
fn shares(names: &[&str], counts: &[u64], total: u64) -> Ordered<f64> {
    assert_eq!(names.len(), counts.len(), "each class has a name");
    let share = |count: u64| if total == 0 { 0.0 } else { count as f64 * 100.0 / total as f64 };
    Ordered(names.iter().zip(counts).map(|(name, count)| ((*name).to_owned(), share(*count))).collect())
}

impl Direction {
    fn of(job: &JobResult, kind: Kind, total_bytes_per_s: f64) -> Self {
        const KIB: f64 = 1024.0;
        let found = job.kind(kind);
        let bytes = found.map_or(0, |k| k.bytes);
        let bandwidth = found.map_or(0.0, |k| job.bytes_per_s(k));
        let bw = Samples::of(job, found, Interval::bytes_per_s);
        let iops = Samples::of(job, found, Interval::iops);
        Self {
            io_bytes: bytes,
            io_kbytes: bytes / 1024,
            bw_bytes: bandwidth as u64,
            bw: (bandwidth / KIB) as u64,
            iops: found.map_or(0.0, |k| job.iops(k)),
            runtime: found.map_or(0, |kind| job.span_of_ns(kind) / 1_000_000),
            total_ios: found.map_or(0, |k| k.requests),
            short_ios: 0,
            drop_ios: 0,
            slat_ns: Latency::of(&found.map(|k| k.slat).unwrap_or_default(), None),
            clat_ns: Latency::of_distribution(found.map(|k| &k.clat)),
            lat_ns: Latency::of_distribution(found.map(|k| &k.lat)),
            bw_min: (bw.min / KIB) as u64,
            bw_max: (bw.max / KIB) as u64,
            bw_agg: if total_bytes_per_s > 0.0 { bw.mean * 100.0 / total_bytes_per_s } else { 0.0 },
            bw_mean: bw.mean / KIB,
            bw_dev: bw.deviation / KIB,
            bw_samples: bw.count,
            iops_min: iops.min as u64,
            iops_max: iops.max as u64,
            iops_mean: iops.mean,
            iops_stddev: iops.deviation,
            iops_samples: iops.count,
        }
    }
}

impl Sync {
    fn of(flush: Option<&KindResult>) -> Self {
        Self {
            total_ios: flush.map_or(0, |k| k.requests),
            lat_ns: Latency::of_distribution(flush.map(|k| &k.lat)),
        }
    }
}

impl Latency {
    fn of(summary: &Summary, percentile: Option<Ordered<u64>>) -> Self {
        Self {
            min: summary.min_ns,
            max: summary.max_ns,
            mean: summary.mean_ns,
            stddev: summary.stddev_ns,
            count: summary.count,
            percentile,
        }
    }

    /// As in fio, there are no percentiles if there is no request.
    fn of_distribution(distribution: Option<&Distribution>) -> Self {
        let Some(d) = distribution else { return Self::of(&Summary::default(), None) };
        let percentile = PERCENTILES_PPM.iter().filter_map(|&ppm| {
            let name = format!("{}.{:04}00", ppm / 10_000, ppm % 10_000);
            Some((name, d.percentile_ns(Percentile::from_ppm(ppm))?))
        });
        Self::of(&d.summary, Some(Ordered(percentile.collect())))
    }
}

/// Statistics of a rate over the full intervals, or over the only one if it is not full.
#[derive(Default)]
struct Samples {
    count: u64,
    min: f64,
    max: f64,
    mean: f64,
    deviation: f64,
}

impl Samples {
    fn of(job: &JobResult, kind: Option<&KindResult>, rate: fn(&Interval) -> f64) -> Self {
        let Some(kind) = kind else { return Self::default() };
        let (mut rates, idle) = job.busy_intervals(kind, rate);
        if rates.is_empty() && idle == 0 {
            rates = job.intervals(kind).map(|i| rate(&i)).collect();
        }
        let count = rates.len() as u64 + idle;
        if count == 0 {
            return Self::default();
        }
        let n = count as f64;
        let mean = rates.iter().sum::<f64>() / n;
        let squares = rates.iter().map(|x| (x - mean) * (x - mean)).sum::<f64>() + idle as f64 * mean * mean;
        let least = rates.iter().copied().fold(f64::INFINITY, f64::min);
        Self {
            count,
            min: if idle > 0 { 0.0 } else { least },
            max: rates.iter().copied().fold(0.0, f64::max),
            mean,
            deviation: if count > 1 { (squares / (n - 1.0)).sqrt() } else { 0.0 },
        }
    }
}

/// Numbers of reads, writes and trims by latency class.
#[derive(Default)]
struct Classes {
    count: u64,
    ns: [u64; CLASSES.len()],
    us: [u64; CLASSES.len()],
    ms: [u64; CLASSES_MS.len()],
}

impl Classes {
    fn of(job: &JobResult) -> Self {
        const BELOW: [u64; 11] = [2, 4, 10, 20, 50, 100, 250, 500, 750, 1000, 2000];
        let class = |value: u64| BELOW.iter().position(|below| value < *below).unwrap_or(BELOW.len());
        let mut classes = Self::default();
        for kind in [Kind::Read, Kind::Write, Kind::Trim].into_iter().filter_map(|kind| job.kind(kind)) {
            for (ns, count) in kind.clat.bins.iter() {
                classes.count += count;
                *match ns {
                    0..1_000 => &mut classes.ns[class(ns)],
                    1_000..1_000_000 => &mut classes.us[class(ns / 1_000)],
                    _ => &mut classes.ms[class(ns / 1_000_000)],
                } += count;
            }
        }
        classes
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use flashweir_sim::measure::testing::{random_run, run};
    use serde_json::Value;
    use std::collections::BTreeSet;

    /// Paths of the keys that fio 3.33 printed for two jobs with `rw=randrw`, `fsync=16`, `lat_percentiles=1` and
    /// `clat_percentiles=1`; with `group_reporting` they are the same.
    const KEYS_MIXED: &str = include_str!("testdata/fio-3.33-randrw-fsync.keys");
    /// The same for `rw=randread` without `fsync`: empty directions have no percentiles.
    const KEYS_READ: &str = include_str!("testdata/fio-3.33-randread.keys");

    /// Finds the path of every leaf, except those below options, disks and our own key.
    fn keys(value: &Value, path: &str, found: &mut BTreeSet<String>) {
        match value {
            Value::Object(_) if path.ends_with(" options") => {
                found.insert(path.to_owned());
            }
            Value::Object(map) => {
                for (key, value) in map.iter().filter(|(key, _)| path != "/" || *key != "flashweir") {
                    keys(value, &format!("{}/{key}", path.trim_end_matches('/')), found);
                }
            }
            Value::Array(_) if path == "/disk_util" => {
                found.insert(path.to_owned());
            }
            Value::Array(values) => values.iter().for_each(|v| keys(v, &format!("{path}[]"), found)),
            _ => {
                found.insert(path.to_owned());
            }
        }
    }

    fn expect_keys(run: &RunResult, expected: &str) {
        for grouping in [Grouping::PerJob, Grouping::Group] {
            let mut found = BTreeSet::new();
            keys(&serde_json::to_value(fio_json(run, grouping)).unwrap(), "/", &mut found);
            let expected: BTreeSet<String> = expected.lines().map(str::to_owned).collect();
            let differ: Vec<_> = found.symmetric_difference(&expected).collect();
            assert!(differ.is_empty(), "{grouping:?}: {differ:#?}");
        }
    }

    #[test]
    fn the_keys_are_those_of_fio() {
        expect_keys(&run(1), KEYS_MIXED);
        let mut reads = run(1);
        reads.jobs[0].kinds.truncate(1);
        expect_keys(&reads, KEYS_READ);
    }

    #[test]
    fn the_numbers_are_in_the_units_of_fio() {
        let json: Value = serde_json::to_value(fio_json(&run(1), Grouping::PerJob)).unwrap();
        let job = &json["jobs"][0];
        let write = &job["write"];
        for (key, value) in [
            ("io_bytes", 4_096_000),
            ("io_kbytes", 4000),
            ("bw_bytes", 4_096_000),
            ("bw", 4000),
            ("runtime", 1000),
            ("total_ios", 250),
            ("bw_samples", 10),
            ("bw_min", 4000),
            ("iops_max", 250),
        ] {
            assert_eq!(write[key], value, "{key}");
        }
        assert_eq!((&write["iops"], &write["bw_agg"]), (&250.0.into(), &100.0.into()));
        assert_eq!(write["lat_ns"]["percentile"]["99.990000"], 900_000);
        assert_eq!(job["sync"]["lat_ns"]["N"], 100);
        assert_eq!(job["job options"]["rw"], "randrw");
        assert_eq!(job["iodepth_level"]["4"], 20.0);
        assert_eq!(job["latency_us"]["1000"], 20.0);
        assert_eq!(json["flashweir"]["waf"], run(1).totals.waf().unwrap());
        assert_eq!(json["flashweir"]["metrics"]["nand.programs"], 1400);
        assert_eq!(json["flashweir"]["write_zeroes"][0]["total_ios"], 0);
    }

    #[test]
    fn percentages_add_up_and_groups_keep_every_request() {
        for grouping in [Grouping::PerJob, Grouping::Group] {
            let json: Value = serde_json::to_value(fio_json(&random_run(1), grouping)).unwrap();
            let jobs = json["jobs"].as_array().unwrap();
            assert_eq!(jobs.len(), if grouping == Grouping::Group { 1 } else { 2 });
            let mut requests = 0;
            for (i, job) in jobs.iter().enumerate() {
                let sum = |keys: &[&str]| -> f64 {
                    let maps = keys.iter().flat_map(|key| job[key].as_object().unwrap().values());
                    maps.map(|v| v.as_f64().unwrap()).sum()
                };
                for keys in
                    [&["iodepth_level"][..], &["iodepth_submit"], &["latency_ns", "latency_us", "latency_ms"]]
                {
                    assert!((sum(keys) - 100.0).abs() < 1e-9, "{keys:?}");
                }
                let zeroes = &json["flashweir"]["write_zeroes"][i];
                let all = [&job["read"], &job["write"], &job["trim"], &job["sync"], zeroes];
                requests += all.map(|d| d["total_ios"].as_u64().unwrap()).iter().sum::<u64>();
            }
            assert_eq!(requests, 4000);
            let share: f64 = jobs.iter().map(|job| job["read"]["bw_agg"].as_f64().unwrap()).sum();
            assert!((share - 100.0).abs() < 1e-9);
        }
    }

    #[test]
    fn a_run_without_jobs_is_a_document_too() {
        let json: Value = serde_json::to_value(fio_json(&RunResult::default(), Grouping::Group)).unwrap();
        assert_eq!(json["jobs"], Value::Array(Vec::new()));
        assert_eq!(json["flashweir"]["waf"], Value::Null);
    }
}
