//! A table of the calls of workloads on files, for people.
//!
//! Invariants and widths are those of the other tables.

use super::table::{Row, Table};
use flashweir_sim::measure::{Percentile, WorkloadResult};

/// A table with a row for each call of each workload, and one for each total.
pub fn call_table(results: &[WorkloadResult], width: Option<usize>) -> String {
    let columns = [
        ("ops", 0),
        ("ops/s", 1),
        ("MB/s", 1),
        ("mean µs", 1),
        ("p50 µs", 1),
        ("p99 µs", 1),
        ("p99.9 µs", 1),
        ("max µs", 1),
    ];
    let mut table = Table::new(&["workload", "call"], &columns);
    for result in results {
        let total = result.sum(&[]);
        for call in result.calls.iter().chain([&total]) {
            let micros = |ns: Option<u64>| ns.map(|ns| ns as f64 / 1e3);
            let summary = &call.latency.summary;
            let any = call.calls > 0;
            let values = [
                Some(call.calls as f64),
                Some(result.calls_per_s(call)),
                Some(result.bytes_per_s(call) / 1e6),
                any.then_some(summary.mean_ns / 1e3),
                micros(call.latency.percentile_ns(Percentile::P50)),
                micros(call.latency.percentile_ns(Percentile::P99)),
                micros(call.latency.percentile_ns(Percentile::P99_9)),
                micros(any.then_some(summary.max_ns)),
            ];
            table.rows.push(Row::of_values([&result.name, &call.name], values));
        }
    }
    table.text(width)
}

#[cfg(test)]
mod tests {
    use super::*;
    use flashweir_core::{Duration, Instant};
    use flashweir_sim::measure::CallRecorder;

    #[test]
    fn each_call_has_a_row_and_all_together() {
        let (start, end) = (Instant::ZERO, Instant::from_nanos(1_000_000_000));
        let mut fsync = CallRecorder::new(start, Duration::from_secs(1));
        for ms in 1..=10 {
            fsync.record(0, Instant::from_nanos((ms - 1) * 1_000_000), Instant::from_nanos(ms * 1_000_000));
        }
        let calls = vec![fsync.finish("fsync-changed", "fsync", true, end)];
        let result = WorkloadResult {
            name: "w".into(),
            seed: 1,
            start_ns: 0,
            end_ns: end.as_nanos(),
            interval_ns: end.as_nanos(),
            ended_early: None,
            calls,
        };
        let table = call_table(&[result], None);
        let names: Vec<_> = table.lines().map(|line| line.split_whitespace().nth(1).unwrap()).collect();
        assert_eq!(names, ["call", "fsync-changed", "total"], "{table}");
    }
}
