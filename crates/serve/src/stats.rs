//! Statistics of a served disk: requests, bytes, latencies, and how well the machine kept the model's deadlines.
//!
//! Two latencies are kept apart. The *model's* is the time that the simulated device took. The *server's* is the time from the decoding of
//! a request until its answer was queued. The difference is the deadline miss; where it is not small, latencies that clients see are not to
//! be trusted.

use flashweir_core::{Duration, Instant};
use hdrhistogram::Histogram;
use serde::{Deserialize, Serialize};

/// Kinds of requests, in the order of all lists here.
pub const KINDS: [&str; 5] = ["read", "write", "trim", "zero", "flush"];

/// A kind of request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// Read.
    Read,
    /// Write.
    Write,
    /// Trim.
    Trim,
    /// Write zeroes.
    Zero,
    /// Flush.
    Flush,
}

/// Percentiles in nanoseconds of the wall clock.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Percentiles {
    /// Mean.
    pub mean: f64,
    /// Median.
    pub p50: u64,
    /// 99 of 100 are below.
    pub p99: u64,
    /// 999 of 1,000 are below.
    pub p999: u64,
    /// Largest.
    pub max: u64,
}

impl Percentiles {
    fn of(histogram: &Histogram<u64>) -> Self {
        let at = |quantile| histogram.value_at_quantile(quantile);
        Self {
            mean: if histogram.is_empty() { 0.0 } else { histogram.mean() },
            p50: at(0.5),
            p99: at(0.99),
            p999: at(0.999),
            max: histogram.max(),
        }
    }
}

/// One kind of request so far.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct KindStatus {
    /// Its name.
    pub kind: String,
    /// Requests answered.
    pub requests: u64,
    /// Requests that were answered with an error.
    pub errors: u64,
    /// Bytes of their ranges.
    pub bytes: u64,
    /// Latency of the simulated device.
    pub model_ns: Percentiles,
    /// From request decoded to answer queued.
    pub server_ns: Percentiles,
}

#[derive(Debug)]
struct KindStats {
    requests: u64,
    errors: u64,
    bytes: u64,
    model: Histogram<u64>,
    server: Histogram<u64>,
}

/// The counts of one disk since the server began.
#[derive(Debug)]
pub struct Stats {
    kinds: [KindStats; 5],
    misses: Histogram<u64>,
}

#[inline]
fn record(histogram: &mut Histogram<u64>, ns: u64) {
    histogram.record(ns).expect("a histogram grows with what it gets");
}

fn histogram() -> Histogram<u64> {
    Histogram::new(3).expect("three digits are possible")
}

impl Default for Stats {
    fn default() -> Self {
        let kind = || KindStats { requests: 0, errors: 0, bytes: 0, model: histogram(), server: histogram() };
        Self { kinds: std::array::from_fn(|_| kind()), misses: histogram() }
    }
}

impl Stats {
    /// A request was answered. All instants are virtual; `factor` turns spans of them into wall time.
    #[inline]
    pub fn answered(
        &mut self,
        kind: Kind,
        bytes: u64,
        is_error: bool,
        submitted: Instant,
        due: Instant,
        queued: Instant,
        factor: f64,
    ) {
        let wall = |span: Duration| match factor {
            1.0 => span.as_nanos(),
            factor => (span.as_nanos() as f64 / factor) as u64,
        };
        let stats = &mut self.kinds[kind as usize];
        stats.requests += 1;
        stats.errors += u64::from(is_error);
        stats.bytes += bytes;
        record(&mut stats.model, wall(due.saturating_since(submitted)));
        record(&mut stats.server, wall(queued.saturating_since(submitted)));
        record(&mut self.misses, wall(queued.saturating_since(due)));
    }

    /// A request was answered with an error and never reached the device: its power is off. It has no latency.
    pub fn failed(&mut self, kind: Kind) {
        let stats = &mut self.kinds[kind as usize];
        stats.requests += 1;
        stats.errors += 1;
    }

    /// Every kind that occurred.
    pub fn kinds(&self) -> Vec<KindStatus> {
        let all = self.kinds.iter().zip(KINDS).filter(|(stats, _)| stats.requests > 0);
        let status = |(stats, kind): (&KindStats, &str)| KindStatus {
            kind: kind.to_owned(),
            requests: stats.requests,
            errors: stats.errors,
            bytes: stats.bytes,
            model_ns: Percentiles::of(&stats.model),
            server_ns: Percentiles::of(&stats.server),
        };
        all.map(status).collect()
    }

    /// How much later than the model's completions answers were queued.
    pub fn misses(&self) -> Percentiles {
        Percentiles::of(&self.misses)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn latencies_and_misses_are_spans_of_the_wall_clock() {
        let mut stats = Stats::default();
        let at = |us: u64| Instant::from_nanos(us * 1000);
        stats.answered(Kind::Read, 4096, false, at(10), at(110), at(112), 10.0);
        let kinds = stats.kinds();
        assert_eq!((kinds[0].kind.as_str(), kinds[0].requests, kinds[0].bytes), ("read", 1, 4096));
        assert!(kinds[0].model_ns.p50.abs_diff(10_000) < 20, "{kinds:?}");
        assert!(kinds[0].server_ns.p50.abs_diff(10_200) < 20, "{kinds:?}");
        assert_eq!(stats.misses().p50, 200);
    }
}
