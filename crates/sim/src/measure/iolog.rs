//! fio's logs of a job: latency, bandwidth and requests per second, one line per request or per time window.
//!
//! Place in the data flow: the world records every completion that counts; the caller that ends the run writes
//! [`log_files`].
//!
//! Names, columns and units are those of fio 3.33: milliseconds since the job began; the value (ns, KiB/s or requests
//! per second); 0 for a read, 1 for a write, 2 for a trim; bytes of the request; with `log_offset` its offset;
//! priority. A line of a single request has the request's own bandwidth in kB/s over `clat`, and 1 as its rate. A
//! window has a line for each direction in which a request completed; the last window counts if it is complete. Flushes
//! are in no log.

use crate::request::Kind;
use flashweir_core::{Duration, Instant};
use std::fmt::Write as _;

/// Number of logged directions, numbered as in fio.
const DIRECTIONS: usize = 3;

/// The fio logs that a job asks for, as prefixes of file names.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct LogSpec {
    /// Bandwidth log.
    pub bandwidth: Option<String>,
    /// Latency logs: total, submission, completion.
    pub latency: Option<String>,
    /// Log of requests per second.
    pub iops: Option<String>,
    /// Length of a window with one line each; zero for one line per request.
    pub average: Duration,
    /// Whether a window logs the largest latency instead of the mean.
    pub is_max: bool,
    /// Whether lines include the offset of the request.
    pub has_offset: bool,
    /// Number of the job in file names, from 1; `None` where jobs share files.
    pub number: Option<u32>,
}

impl LogSpec {
    /// Whether any log is wanted.
    pub fn is_wanted(&self) -> bool {
        self.bandwidth.is_some() || self.latency.is_some() || self.iops.is_some()
    }
}

/// The logs of one job.
#[derive(Clone, Debug, PartialEq)]
pub struct IoLog {
    spec: LogSpec,
    start: Instant,
    /// Number of the current window, from 0.
    window: u64,
    open: [Window; DIRECTIONS],
    lines: Vec<Line>,
}

/// Sums over one window in one direction.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
struct Window {
    count: u64,
    bytes: u64,
    slat_ns: [u64; 2],
    clat_ns: [u64; 2],
    lat_ns: [u64; 2],
}

/// One request, or one window in one direction.
#[derive(Clone, Copy, Debug, PartialEq)]
struct Line {
    time_ms: u64,
    direction: u8,
    bytes: u64,
    offset: u64,
    slat_ns: u64,
    clat_ns: u64,
    lat_ns: u64,
    bandwidth: u64,
    rate: u64,
}

impl IoLog {
    /// Starts the logs of a job that begins at `start`.
    pub fn new(spec: LogSpec, start: Instant) -> Self {
        Self { spec, start, window: 0, open: [Window::default(); DIRECTIONS], lines: Vec::new() }
    }

    /// Has times begin here: as in fio, with the measurement. Nothing is recorded yet.
    pub fn begin(&mut self, start: Instant) {
        self.start = start;
    }

    /// Records the completion of a request of `bytes` at `offset`. Times must not decrease.
    pub fn record(
        &mut self,
        kind: Kind,
        [offset, bytes]: [u64; 2],
        [intended, submitted, completed]: [Instant; 3],
    ) {
        let direction = match kind {
            Kind::Read => 0,
            Kind::Write => 1,
            Kind::Trim => 2,
            Kind::WriteZeroes | Kind::Share | Kind::Flush => return,
        };
        let slat_ns = submitted.since(intended).as_nanos();
        let clat_ns = completed.since(submitted).as_nanos();
        let lat_ns = slat_ns + clat_ns;
        if self.spec.average == Duration::ZERO {
            let time_ms = completed.since(self.start).as_nanos() / 1_000_000;
            let bandwidth = bytes * 1_000_000 / clat_ns.max(1);
            let direction = direction as u8;
            let line =
                Line { time_ms, direction, bytes, offset, slat_ns, clat_ns, lat_ns, bandwidth, rate: 1 };
            return self.lines.push(line);
        }
        self.close_until(completed);
        let open = &mut self.open[direction];
        open.count += 1;
        open.bytes += bytes;
        for (sums, ns) in
            [(&mut open.slat_ns, slat_ns), (&mut open.clat_ns, clat_ns), (&mut open.lat_ns, lat_ns)]
        {
            *sums = [sums[0] + ns, sums[1].max(ns)];
        }
    }

    /// Closes the windows that end before `now`. A window includes its last instant and excludes its first.
    fn close_until(&mut self, now: Instant) {
        let window_ns = self.spec.average.as_nanos();
        let at = now.since(self.start).as_nanos().div_ceil(window_ns).max(1) - 1;
        if at == self.window {
            return;
        }
        let time_ms = (self.window + 1) * window_ns / 1_000_000;
        for (direction, open) in self.open.iter_mut().enumerate() {
            let Window { count, bytes, slat_ns, clat_ns, lat_ns } = std::mem::take(open);
            if count == 0 {
                continue;
            }
            let of = |[sum, max]: [u64; 2]| if self.spec.is_max { max } else { sum / count };
            let per_s = |amount: u64| (u128::from(amount) * 1_000_000_000 / u128::from(window_ns)) as u64;
            self.lines.push(Line {
                time_ms,
                direction: direction as u8,
                bytes: 0,
                offset: 0,
                slat_ns: of(slat_ns),
                clat_ns: of(clat_ns),
                lat_ns: of(lat_ns),
                bandwidth: per_s(bytes) / 1024,
                rate: per_s(count),
            });
        }
        self.window = at;
    }

    /// Ends the job at `now`.
    #[must_use]
    pub fn finish(mut self, now: Instant) -> Self {
        if self.spec.average > Duration::ZERO {
            // A window that ends now is complete.
            self.close_until(now.saturating_add(Duration::from_nanos(1)));
        }
        self
    }

    fn text(&self, value: impl Fn(&Line) -> u64) -> String {
        let mut text = String::new();
        for line in &self.lines {
            let Line { time_ms, direction, bytes, offset, .. } = *line;
            let _ = write!(text, "{time_ms}, {}, {direction}, {bytes}, ", value(line));
            if self.spec.has_offset {
                let _ = write!(text, "{offset}, ");
            }
            text.push_str("0\n");
        }
        text
    }
}

/// Returns names and contents of all files of these logs. Jobs that share a file follow one another in it.
pub fn log_files(logs: &[IoLog]) -> Vec<(String, String)> {
    let mut files: Vec<(String, String)> = Vec::new();
    let mut add = |log: &IoLog, base: &str, kind: &str, value: &dyn Fn(&Line) -> u64| {
        let name = match log.spec.number {
            Some(number) => format!("{base}_{kind}.{number}.log"),
            None => format!("{base}_{kind}.log"),
        };
        let text = log.text(value);
        match files.iter_mut().find(|(known, _)| *known == name) {
            Some((_, whole)) => whole.push_str(&text),
            None => files.push((name, text)),
        }
    };
    for log in logs {
        if let Some(base) = &log.spec.bandwidth {
            add(log, base, "bw", &|line| line.bandwidth);
        }
        if let Some(base) = &log.spec.iops {
            add(log, base, "iops", &|line| line.rate);
        }
        if let Some(base) = &log.spec.latency {
            add(log, base, "lat", &|line| line.lat_ns);
            add(log, base, "slat", &|line| line.slat_ns);
            add(log, base, "clat", &|line| line.clat_ns);
        }
    }
    files
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(ns: u64) -> Instant {
        Instant::from_nanos(ns)
    }

    fn spec(average: Duration) -> LogSpec {
        LogSpec {
            bandwidth: Some("x".into()),
            latency: Some("x".into()),
            average,
            number: Some(2),
            ..LogSpec::default()
        }
    }

    fn contents(log: IoLog, name: &str) -> String {
        let files = log_files(&[log]);
        files.into_iter().find(|(known, _)| known == name).expect("the file is there").1
    }

    #[test]
    fn a_line_for_each_request_is_as_in_fio() {
        // The first request of a run of fio 3.33: 4096 bytes in 6510 ns are 629185 in its bandwidth log.
        let mut log = IoLog::new(spec(Duration::ZERO), at(1_000_000));
        log.record(Kind::Read, [16_384, 4096], [at(2_499_000), at(2_499_490), at(2_506_000)]);
        log.record(Kind::Flush, [0, 0], [at(2_600_000); 3]);
        log.record(Kind::Trim, [0, 512], [at(3_000_000), at(3_000_000), at(3_000_500)]);
        assert_eq!(contents(log.clone(), "x_bw.2.log"), "1, 629185, 0, 4096, 0\n2, 1024000, 2, 512, 0\n");
        assert_eq!(contents(log.clone(), "x_lat.2.log"), "1, 7000, 0, 4096, 0\n2, 500, 2, 512, 0\n");
        assert_eq!(contents(log.clone(), "x_slat.2.log"), "1, 490, 0, 4096, 0\n2, 0, 2, 512, 0\n");
        log.spec.has_offset = true;
        assert_eq!(contents(log, "x_clat.2.log"), "1, 6510, 0, 4096, 16384, 0\n2, 500, 2, 512, 0, 0\n");
    }

    #[test]
    fn windows_have_means_and_only_whole_ones_count() {
        const MS: u64 = 1_000_000;
        let mut log = IoLog::new(spec(Duration::from_millis(500)), at(0));
        for (end, clat) in [(100, 1), (500, 3), (501, 7), (1999, 9), (2600, 1)] {
            log.record(
                Kind::Write,
                [0, 512_000],
                [at((end - clat) * MS), at((end - clat) * MS), at(end * MS)],
            );
        }
        let log = log.finish(at(2700 * MS));
        assert_eq!(
            contents(log.clone(), "x_bw.2.log"),
            "500, 2000, 1, 0, 0\n1000, 1000, 1, 0, 0\n2000, 1000, 1, 0, 0\n"
        );
        assert_eq!(
            contents(log, "x_lat.2.log"),
            "500, 2000000, 1, 0, 0\n1000, 7000000, 1, 0, 0\n2000, 9000000, 1, 0, 0\n"
        );
        let mut log = IoLog::new(LogSpec { is_max: true, ..spec(Duration::from_millis(500)) }, at(0));
        log.record(Kind::Write, [0, 512], [at(0), at(0), at(MS)]);
        log.record(Kind::Write, [0, 512], [at(0), at(0), at(3 * MS)]);
        assert_eq!(contents(log.finish(at(500 * MS)), "x_clat.2.log"), "500, 3000000, 1, 0, 0\n");
    }
}
