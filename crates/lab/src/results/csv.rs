//! Time series as CSV, one line per interval of each kind of request, under a header line.
//!
//! Invariants: the lines of one kind are equidistant, because intervals without requests are written too;
//! the latencies of such a line are empty, not zero. A group of jobs that began at different times has no series, and no lines.

use csv::Writer;
use flashweir_sim::measure::{RunResult, kind_name};
use std::io::{self, Write};

/// The columns. Times are counted from the beginning of the world.
pub const CSV_COLUMNS: [&str; 13] = [
    "device",
    "workload",
    "seed",
    "job",
    "kind",
    "start_ns",
    "length_ns",
    "requests",
    "bytes",
    "iops",
    "bandwidth_bytes_per_s",
    "latency_mean_ns",
    "latency_p99_ns",
];

/// Writes the series of every job of every run. Fails if a write to `out` fails.
pub fn write_csv(runs: &[RunResult], out: impl Write) -> io::Result<()> {
    let mut csv = Writer::from_writer(out);
    csv.write_record(CSV_COLUMNS)?;
    for run in runs {
        for job in &run.jobs {
            for kind in &job.kinds {
                for interval in job.intervals(kind) {
                    let (mean, p99) = interval
                        .latency_mean_p99_ns
                        .map_or_else(Default::default, |(mean, p99)| (format!("{mean:.1}"), p99.to_string()));
                    csv.write_record([
                        &run.device,
                        &run.workload,
                        &run.seed.to_string(),
                        &job.name,
                        kind_name(kind.kind),
                        &interval.start_ns.to_string(),
                        &interval.length_ns.to_string(),
                        &interval.requests.to_string(),
                        &interval.bytes.to_string(),
                        &format!("{:.3}", interval.iops()),
                        &format!("{:.3}", interval.bytes_per_s()),
                        &mean,
                        &p99,
                    ])?;
                }
            }
        }
    }
    csv.flush()
}

#[cfg(test)]
mod tests {
    use super::*;
    use flashweir_sim::measure::testing::{random_run, run};

    fn text(runs: &[RunResult]) -> String {
        let mut out = Vec::new();
        write_csv(runs, &mut out).unwrap();
        String::from_utf8(out).unwrap()
    }

    #[test]
    fn the_header_stands_first_and_names_are_quoted() {
        let mut result = run(1);
        result.workload = "70/30, \"mixed\"".to_owned();
        let text = text(&[result]);
        let mut lines = text.lines();
        assert_eq!(lines.next().unwrap(), CSV_COLUMNS.join(","));
        assert_eq!(
            lines.next().unwrap(),
            "mlc,\"70/30, \"\"mixed\"\"\",1,oltp,read,0,100000000,100,409600,1000.000,4096000.000,130950.0,179199"
        );
    }

    #[test]
    fn every_request_is_in_the_csv() {
        let runs = [run(1), random_run(2)];
        let text = text(&runs);
        let mut reader = csv::Reader::from_reader(text.as_bytes());
        let (mut requests, mut bytes, mut idle) = (0, 0, 0);
        for record in reader.records() {
            let record = record.unwrap();
            assert_eq!(record.len(), CSV_COLUMNS.len());
            let number = |i: usize| record[i].parse::<f64>().unwrap();
            requests += record[7].parse::<u64>().unwrap();
            bytes += record[8].parse::<u64>().unwrap();
            assert!((number(9) * number(6) / 1e9 - number(7)).abs() < 1e-3);
            match &record[11] {
                "" => idle += u64::from(&record[7] == "0" && record[12].is_empty()),
                _ => assert!(number(11) > 0.0 && number(12) > 0.0),
            }
        }
        let kinds = || runs.iter().flat_map(|r| &r.jobs).flat_map(|j| &j.kinds);
        assert_eq!(requests, kinds().map(|k| k.requests).sum::<u64>());
        assert_eq!(bytes, kinds().map(|k| k.bytes).sum::<u64>());
        assert_eq!(idle, text.lines().filter(|l| l.ends_with(",,")).count() as u64);
    }
}
