//! Results for tests, in this crate and in those that display them: a small one with round numbers and random ones.
//!
//! Invariant: each result is a function of its seed.

use super::{DeviceTotals, MetricValue, Recorder, RunResult};
use crate::request::Kind;
use flashweir_core::{Duration, Instant, RandomStream};
use std::collections::BTreeMap;

const MS: u64 = 1_000_000;

/// Makes one job that for one second reads 4 KiB every millisecond, writes 16 KiB every fourth and flushes every tenth;
/// `seed` shifts the latencies.
pub fn run(seed: u64) -> RunResult {
    let mut r = Recorder::new(Instant::ZERO, Duration::from_millis(100));
    let at = Instant::from_nanos;
    for ms in 1..=1000 {
        let now = ms * MS;
        r.submitted_at_depth(if ms % 4 == 0 { 2 } else { 1 });
        let latency = 80_000 + seed * 1000 + ms * 7919 % 1000 * 100;
        r.record(Kind::Read, 4096, at(now - latency), at(now - latency + 5000 + ms), at(now));
        if ms % 4 == 0 {
            r.submitted_at_depth(4);
            r.record(Kind::Write, 16_384, at(now - 900_000), at(now - 900_000), at(now));
        }
        if ms % 10 == 0 {
            r.record(Kind::Flush, 0, at(now - 500_000), at(now - 500_000), at(now));
        }
    }
    let options =
        BTreeMap::from([("bs".to_owned(), "4k".to_owned()), ("rw".to_owned(), "randrw".to_owned())]);
    let mut result = RunResult {
        trace_hash: crate::measure::TraceHash(seed),
        device: "mlc".to_owned(),
        workload: "mixed".to_owned(),
        seed,
        virtual_time_ns: 1000 * MS,
        counted_from_ns: 0,
        jobs: vec![r.finish("oltp", options, at(1000 * MS))],
        totals: DeviceTotals {
            host_written_bytes: 4_096_000,
            nand_written_bytes: 5_734_400 + seed * 40_960,
            erases: 1234,
            gc_units_moved: 400 + seed * 10,
            flushes: 100,
        },
        metrics: BTreeMap::new(),
        course: None,
    };
    result.metrics.insert("nand.programs".to_owned(), MetricValue::Count(1400));
    result.metrics.insert("gc.valid_ratio".to_owned(), MetricValue::Ratio(0.25));
    result
}

/// Makes two jobs with random requests of every kind.
pub fn random_run(seed: u64) -> RunResult {
    let mut stream = RandomStream::new(seed, "random run");
    let kinds = [Kind::Read, Kind::Write, Kind::Trim, Kind::WriteZeroes, Kind::Flush];
    let jobs = ["a", "b"].map(|name| {
        let mut r = Recorder::new(Instant::ZERO, Duration::from_millis(7));
        let mut now = 0;
        for _ in 0..2000 {
            now += stream.below(100_000);
            let kind = kinds[stream.below(5) as usize];
            let submitted = now - stream.below(now + 1).min(stream.below(3 * MS));
            let intended = submitted - stream.below(submitted + 1).min(stream.below(MS));
            r.submitted_at_depth(1 + stream.below(100) as u32);
            let bytes = if kind == Kind::Flush { 0 } else { 512 * stream.below(256) };
            let at = Instant::from_nanos;
            r.record(kind, bytes, at(intended), at(submitted), at(now));
        }
        r.finish(name, BTreeMap::new(), Instant::from_nanos(now + 1))
    });
    RunResult { jobs: jobs.into(), seed, ..run(seed) }
}
