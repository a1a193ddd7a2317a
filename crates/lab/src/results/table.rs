//! Tables for people: results of jobs and counters of devices, on a terminal at most [`TERMINAL_WIDTH`] columns wide.
//!
//! Runs of one device and one workload are repetitions with different seeds: a cell is then the mean over the
//! seeds, with the half width of its 95 % confidence interval below it.
//!
//! Invariants: units are in the headings; the numbers of a column have the same number of decimals, so that they can be compared by
//! eye; names are shortened, numbers are not.

use super::stats::{Estimate, Shortfall, estimate, shortfalls};
use flashweir_sim::measure::{Distribution, JobResult, KINDS, KindResult, Percentile, RunResult, kind_name};
use flashweir_sim::request::Kind;
use std::collections::BTreeSet;
use std::fmt::Write as _;

/// Most characters of a line of a table on a terminal.
pub const TERMINAL_WIDTH: usize = 120;
const GAP: &str = "  ";
/// Width below which a name is not shortened.
const NAME_WIDTH_MIN: usize = 4;
/// Width of each of the three names in a note, with which the longest kind of note fits.
const NOTE_NAME_WIDTH: usize = 14;

/// Latency, IOPS and bandwidth: a row per device, workload, job and kind of request. Latencies count from the
/// intended start of a request. Notes below the table name the statistics for which a run was too short. Names are
/// shortened where a line would be wider than `width` columns.
pub fn job_table(runs: &[RunResult], width: Option<usize>) -> String {
    let (table, notes) = job_rows(runs);
    let mut text = table.text(width);
    if !notes.is_empty() {
        text.push_str("\nToo short to trust:\n");
        for note in notes {
            let _ = writeln!(text, "{GAP}{}", note.text(width.map_or(usize::MAX, |_| NOTE_NAME_WIDTH)));
        }
    }
    text
}

/// A note on statistics for which a run was too short.
#[derive(Debug)]
pub(crate) struct Note {
    /// Device, workload and job.
    names: [String; 3],
    kind: Kind,
    shortfall: Shortfall,
}

impl Note {
    /// The note as one line, with no name longer than `width`.
    pub(crate) fn text(&self, width: usize) -> String {
        let names: Vec<String> = self.names.iter().map(|name| shorten(name, width)).collect();
        format!("{}, {}: {}", names.join(", "), kind_name(self.kind), self.shortfall)
    }
}

/// The rows of [`job_table`], and the notes below them.
pub(crate) fn job_rows(runs: &[RunResult]) -> (Table, Vec<Note>) {
    let mut table = Table::new(
        &["device", "workload", "job", "kind"],
        &[
            ("IOPS", 1),
            ("MB/s", 1),
            ("mean µs", 1),
            ("p50 µs", 1),
            ("p99 µs", 1),
            ("p99.9 µs", 1),
            ("max µs", 1),
        ],
    );
    let mut notes = Vec::new();
    for group in groups(runs) {
        let first = group[0];
        for (name, kind) in job_kinds(&group) {
            let seen: Vec<_> = group.iter().filter_map(|run| find(run, name, kind)).collect();
            // A seed in which the job completed none has a rate of 0, and no latency.
            let jobs = || group.iter().filter_map(|run| run.jobs.iter().find(|job| job.name == name));
            let rate = |value: fn(&JobResult, &KindResult) -> f64| {
                let of = |job: &JobResult| job.kind(kind).map_or(0.0, |found| value(job, found));
                estimate(&jobs().map(of).collect::<Vec<_>>())
            };
            let cell = |value: fn(&JobResult, &KindResult) -> f64| {
                estimate(&seen.iter().map(|(job, kind)| value(job, kind)).collect::<Vec<_>>())
            };
            table.rows.push(Row {
                names: [&first.device, &first.workload, name, kind_name(kind)].map(str::to_owned).into(),
                cells: vec![
                    rate(|job, kind| job.iops(kind)),
                    rate(|job, kind| job.bytes_per_s(kind) / 1e6),
                    cell(|_, kind| kind.lat.summary.mean_ns / 1e3),
                    cell(|_, kind| percentile_us(&kind.lat, Percentile::P50)),
                    cell(|_, kind| percentile_us(&kind.lat, Percentile::P99)),
                    cell(|_, kind| percentile_us(&kind.lat, Percentile::P99_9)),
                    cell(|_, kind| kind.lat.summary.max_ns as f64 / 1e3),
                ],
            });
            // The first seed that was too short stands for all.
            let short = seen.iter().map(|(job, kind)| shortfalls(job, kind)).find(|s| !s.is_empty());
            for shortfall in short.unwrap_or_default() {
                let names = [&first.device, &first.workload, name].map(str::to_owned);
                notes.push(Note { names, kind, shortfall });
            }
        }
    }
    (table, notes)
}

/// Counters of the devices: a row per device and workload. A WAF below 1 is explained below the table. `width` is as in [`job_table`].
pub fn device_table(runs: &[RunResult], width: Option<usize>) -> String {
    let mut text = device_rows(runs).text(width);
    if runs.iter().any(|run| run.totals.waf().is_some_and(|waf| waf < 1.0)) {
        text.push_str(BELOW_ONE);
    }
    text
}

/// Explanation below a table with a WAF below 1.
pub const BELOW_ONE: &str = "\nA WAF below 1: the rest of what the host wrote is in the buffer, or was overwritten or trimmed there.\n";

/// The rows of [`device_table`].
pub(crate) fn device_rows(runs: &[RunResult]) -> Table {
    let mut table = Table::new(
        &["device", "workload"],
        &[
            ("WAF", 3),
            ("erases", 0),
            ("GC units moved", 0),
            ("flushes", 0),
            ("host written MB", 1),
            ("NAND written MB", 1),
        ],
    );
    for group in groups(runs) {
        let cell = |value: fn(&RunResult) -> Option<f64>| {
            estimate(&group.iter().filter_map(|run| value(run)).collect::<Vec<_>>())
        };
        table.rows.push(Row {
            names: vec![group[0].device.clone(), group[0].workload.clone()],
            cells: vec![
                cell(|run| run.totals.waf()),
                cell(|run| Some(run.totals.erases as f64)),
                cell(|run| Some(run.totals.gc_units_moved as f64)),
                cell(|run| Some(run.totals.flushes as f64)),
                cell(|run| Some(run.totals.host_written_bytes as f64 / 1e6)),
                cell(|run| Some(run.totals.nand_written_bytes as f64 / 1e6)),
            ],
        });
    }
    table
}

fn percentile_us(latency: &Distribution, percentile: Percentile) -> f64 {
    latency.percentile_ns(percentile).unwrap_or(0) as f64 / 1e3
}

fn find<'a>(run: &'a RunResult, job: &str, kind: Kind) -> Option<(&'a JobResult, &'a KindResult)> {
    let job = run.jobs.iter().find(|j| j.name == job)?;
    Some((job, job.kind(kind)?))
}

/// Groups of runs of one device and workload, in the order of their first appearance. A run that is there
/// twice counts once, because a copy would narrow the confidence interval.
pub(crate) fn groups(runs: &[RunResult]) -> Vec<Vec<&RunResult>> {
    let mut groups: Vec<Vec<&RunResult>> = Vec::new();
    for run in runs {
        let same = |g: &&mut Vec<&RunResult>| g[0].device == run.device && g[0].workload == run.workload;
        match groups.iter_mut().find(same) {
            Some(group) if group.contains(&run) => {}
            Some(group) => group.push(run),
            None => groups.push(vec![run]),
        }
    }
    groups
}

/// Every job and kind of which a request completed with any seed: jobs in the order of their first appearance,
/// kinds in the order of results.
fn job_kinds<'a>(group: &[&'a RunResult]) -> Vec<(&'a str, Kind)> {
    let mut names: Vec<&str> = Vec::new();
    let mut seen = BTreeSet::new();
    for job in group.iter().flat_map(|run| &run.jobs) {
        if !names.contains(&job.name.as_str()) {
            names.push(&job.name);
        }
        seen.extend(job.kinds.iter().map(|k| (job.name.as_str(), k.kind)));
    }
    let all = names.into_iter().flat_map(|name| KINDS.map(|kind| (name, kind)));
    all.filter(|key| seen.contains(key)).collect()
}

/// A table of names and numbers.
#[derive(Debug)]
pub(crate) struct Table {
    pub(crate) names: Vec<&'static str>,
    /// Heading, and number of decimals if the numbers of the column are small.
    columns: Vec<(&'static str, usize)>,
    pub(crate) rows: Vec<Row>,
}

#[derive(Debug)]
pub(crate) struct Row {
    pub(crate) names: Vec<String>,
    cells: Vec<Option<Estimate>>,
}

impl Row {
    /// A row with the values of one run; `None` is a value that does not exist.
    pub(super) fn of_values(names: [&str; 2], values: impl IntoIterator<Item = Option<f64>>) -> Self {
        let cells = values.into_iter().map(|value| estimate(value.as_slice())).collect();
        Self { names: names.map(str::to_owned).into(), cells }
    }
}

impl Table {
    pub(super) fn new(names: &[&'static str], columns: &[(&'static str, usize)]) -> Self {
        Self { names: names.into(), columns: columns.into(), rows: Vec::new() }
    }

    /// Columns of numbers: a heading, then two lines for each row, the value and its half width.
    pub(crate) fn columns(&self) -> Vec<Vec<String>> {
        let mut columns: Vec<Vec<String>> = self
            .columns
            .iter()
            .enumerate()
            .map(|(i, &(heading, digits))| self.column(i, heading, digits))
            .collect();
        let repeats = self.rows.iter().map(Row::samples).max().unwrap_or(0) > 1;
        if repeats {
            let seeds = self.rows.iter().flat_map(|row| [row.samples().to_string(), String::new()]);
            columns.push(std::iter::once("seeds".to_owned()).chain(seeds).collect());
        }
        columns
    }

    /// Text of the table: a heading, and for each row a line of values and, if there are repetitions, a line of half widths.
    pub(super) fn text(&self, width: Option<usize>) -> String {
        let columns = self.columns();
        let widths: Vec<usize> =
            columns.iter().map(|c| c.iter().map(|s| s.chars().count()).max().unwrap_or(0)).collect();
        let numbers: usize = widths.iter().map(|w| w + GAP.len()).sum();
        let name_widths = self.name_widths(width.unwrap_or(usize::MAX).saturating_sub(numbers));
        let mut text = String::new();
        for line in 0..=2 * self.rows.len() {
            let row = line.checked_sub(1).map(|i| &self.rows[i / 2]);
            let below = line > 0 && line % 2 == 0;
            if below && columns.iter().all(|c| c[line].is_empty()) {
                continue;
            }
            let mut out = String::new();
            for (i, (heading, &width)) in self.names.iter().zip(&name_widths).enumerate() {
                let name = row.map_or(*heading, |row| if below { "" } else { &row.names[i] });
                let gap = if i == 0 { "" } else { GAP };
                let _ = write!(out, "{gap}{:width$}", shorten(name, width));
            }
            for (column, width) in columns.iter().zip(&widths) {
                let _ = write!(out, "{GAP}{:>width$}", column[line]);
            }
            text.push_str(out.trim_end());
            text.push('\n');
        }
        text
    }

    /// One column: the heading, then value and half width of each row.
    fn column(&self, index: usize, heading: &str, digits: usize) -> Vec<String> {
        let cells = || self.rows.iter().map(|row| row.cells[index]);
        // A column of large numbers needs no decimals, and would not fit with them.
        let largest = cells().flatten().map(|e| e.mean.abs()).fold(0.0, f64::max);
        let digits = match largest {
            x if x >= 100_000.0 => 0,
            x if x < 10.0 && digits > 0 => digits.max(2),
            _ => digits,
        };
        let mut lines = vec![heading.to_owned()];
        for cell in cells() {
            lines.push(cell.map_or("-".to_owned(), |e| thousands(e.mean, digits)));
            let half = cell.and_then(|e| e.half_width);
            lines.push(half.map_or(String::new(), |half| format!("±{}", thousands(half, digits))));
        }
        lines
    }

    /// Widths of the name columns within `available`; the widest shrink first.
    fn name_widths(&self, available: usize) -> Vec<usize> {
        let longest = |i: usize| self.rows.iter().map(|row| row.names[i].chars().count()).max().unwrap_or(0);
        let mut widths: Vec<usize> =
            self.names.iter().enumerate().map(|(i, heading)| longest(i).max(heading.len())).collect();
        let available = available.saturating_sub(GAP.len() * (widths.len() - 1));
        while widths.iter().sum::<usize>() > available {
            let widest = widths.iter_mut().max().expect("a table has a name");
            if *widest <= NAME_WIDTH_MIN {
                break;
            }
            *widest -= 1;
        }
        widths
    }
}

impl Row {
    fn samples(&self) -> usize {
        self.cells.iter().flatten().map(|e| e.samples).max().unwrap_or(0)
    }
}

/// At most `width` characters; an ellipsis at the end shows that some are missing.
fn shorten(text: &str, width: usize) -> String {
    if text.chars().count() <= width {
        return text.to_owned();
    }
    text.chars().take(width.saturating_sub(1)).chain(['…']).collect()
}

/// A number with `digits` decimals and commas between thousands.
fn thousands(number: f64, digits: usize) -> String {
    let plain = format!("{number:.digits$}");
    let (sign, plain) = plain.strip_prefix('-').map_or(("", plain.as_str()), |rest| ("-", rest));
    let (whole, fraction) = plain.split_at(plain.find('.').unwrap_or(plain.len()));
    let mut out = sign.to_owned();
    for (i, digit) in whole.chars().enumerate() {
        if i > 0 && (whole.len() - i).is_multiple_of(3) && digit.is_ascii_digit() {
            out.push(',');
        }
        out.push(digit);
    }
    out + fraction
}

#[cfg(test)]
mod tests {
    use super::*;
    use flashweir_sim::measure::testing::{random_run, run};

    fn expect(got: &str, expected: &str) {
        assert_eq!(got, expected.trim_start_matches('\n'), "\n{got}");
        assert!(got.lines().all(|line| line.chars().count() <= TERMINAL_WIDTH));
    }

    #[test]
    fn one_seed() {
        expect(
            &job_table(&[run(1)], Some(TERMINAL_WIDTH)),
            "
device  workload  job   kind      IOPS  MB/s  mean µs  p50 µs  p99 µs  p99.9 µs  max µs
mlc     mixed     oltp  read   1,000.0  4.10    130.9   130.9   180.0     180.9   180.9
mlc     mixed     oltp  write    250.0  4.10    900.0   900.0   900.0     900.0   900.0
mlc     mixed     oltp  flush    100.0  0.00    500.0   500.0   500.0     500.0   500.0

Too short to trust:
  mlc, mixed, oltp, read: p99.9 needs 10000 requests and has 1000
  mlc, mixed, oltp, write: p99 needs 1000 requests and has 250
  mlc, mixed, oltp, flush: p99 needs 1000 requests and has 100
",
        );
        expect(
            &device_table(&[run(1)], Some(TERMINAL_WIDTH)),
            "
device  workload    WAF  erases  GC units moved  flushes  host written MB  NAND written MB
mlc     mixed     1.410   1,234             410      100             4.10             5.78
",
        );
    }

    #[test]
    fn repeated_seeds() {
        let mut other = run(9);
        other.device = "a device with a rather long name".to_owned();
        other.workload = "a workload with a rather long name".to_owned();
        other.totals.host_written_bytes = 0;
        let runs = [run(1), run(2), run(3), run(4), run(4), other];
        expect(
            &job_table(&runs, Some(TERMINAL_WIDTH)),
            "
device                workload             job   kind      IOPS   MB/s  mean µs  p50 µs  p99 µs  p99.9 µs  max µs  seeds
mlc                   mixed                oltp  read   1,000.0   4.10    132.4   132.5   181.5     182.4   182.4      4
                                                           ±0.0  ±0.00     ±2.1    ±2.1    ±2.0      ±2.0    ±2.1
mlc                   mixed                oltp  write    250.0   4.10    900.0   900.0   900.0     900.0   900.0      4
                                                           ±0.0  ±0.00     ±0.0    ±0.0    ±0.0      ±0.0    ±0.0
mlc                   mixed                oltp  flush    100.0   0.00    500.0   500.0   500.0     500.0   500.0      4
                                                           ±0.0  ±0.00     ±0.0    ±0.0    ±0.0      ±0.0    ±0.0
a device with a rat…  a workload with a …  oltp  read   1,000.0   4.10    138.9   139.0   187.9     188.9   188.9      1
a device with a rat…  a workload with a …  oltp  write    250.0   4.10    900.0   900.0   900.0     900.0   900.0      1
a device with a rat…  a workload with a …  oltp  flush    100.0   0.00    500.0   500.0   500.0     500.0   500.0      1

Too short to trust:
  mlc, mixed, oltp, read: p99.9 needs 10000 requests and has 1000
  mlc, mixed, oltp, write: p99 needs 1000 requests and has 250
  mlc, mixed, oltp, flush: p99 needs 1000 requests and has 100
  a device with…, a workload wi…, oltp, read: p99.9 needs 10000 requests and has 1000
  a device with…, a workload wi…, oltp, write: p99 needs 1000 requests and has 250
  a device with…, a workload wi…, oltp, flush: p99 needs 1000 requests and has 100
",
        );
        expect(
            &device_table(&runs, Some(TERMINAL_WIDTH)),
            "
device              workload               WAF  erases  GC units moved  flushes  host written MB  NAND written MB  seeds
mlc                 mixed                1.425   1,234             425      100             4.10             5.84      4
                                        ±0.021      ±0             ±21       ±0            ±0.00            ±0.08
a device with a r…  a workload with a…       -   1,234             490      100             0.00             6.10      1
",
        );
    }

    #[test]
    fn wide_numbers_and_long_names_fit() {
        let mut result = random_run(1);
        result.device = "d".repeat(80);
        result.workload = "w".repeat(80);
        for kind in result.jobs.iter_mut().flat_map(|job| &mut job.kinds) {
            (kind.requests, kind.bytes) = (1 << 32, 1 << 44);
            kind.lat.summary.max_ns = 3_600_000_000_000;
        }
        let width = Some(TERMINAL_WIDTH);
        for text in [job_table(&[result.clone()], width), device_table(&[result.clone()], width)] {
            assert!(text.lines().all(|line| line.chars().count() <= TERMINAL_WIDTH), "\n{text}");
        }
        assert_eq!(job_table(&[], width).lines().count(), 1);
        // Without a width nothing is shortened, as in a pipe.
        for text in [job_table(&[result.clone()], None), device_table(&[result], None)] {
            assert!(
                text.contains(&"d".repeat(80)) && text.contains(&"w".repeat(80)) && !text.contains('…'),
                "\n{text}"
            );
        }
    }

    #[test]
    fn a_waf_below_one_is_explained() {
        let mut result = run(1);
        assert!(!device_table(&[result.clone()], None).contains("below 1"));
        result.totals.nand_written_bytes = result.totals.host_written_bytes / 2;
        assert!(device_table(&[result], None).contains("A WAF below 1: the rest"));
    }

    #[test]
    fn thousands_are_readable() {
        for (number, digits, text) in [
            (0.0, 0, "0"),
            (999.95, 1, "1,000.0"),
            (-1_234_567.0, 0, "-1,234,567"),
            (123.456, 2, "123.46"),
            (1e9, 1, "1,000,000,000.0"),
        ] {
            assert_eq!(thousands(number, digits), text);
        }
    }
}
