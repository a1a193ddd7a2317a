//! Distributions of latencies: an exact summary and the occupied bins of a histogram.
//!
//! Place in the data flow: a recorder fills [`Sums`] and a histogram during a run; at its end they become a
//! [`Distribution`], which is stored, merged and queried for percentiles.
//!
//! Invariants: count, minimum, maximum, mean and standard deviation are exact (integer sums, rounded once); a
//! percentile is at most one bin, that is one part in a thousand, above the exact quantile; the counts of the bins add
//! up to the count of the summary.

use flashweir_core::Duration;
use hdrhistogram::{Counter, Histogram};
use serde::{Deserialize, Deserializer, Serialize, Serializer};
use std::fmt;

/// Significant digits of the percentiles of a whole run.
const DIGITS: u8 = 3;

/// A percentile, in parts per million, so that its rank is exact integer arithmetic.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Percentile(u32);

impl Percentile {
    /// The median.
    pub const P50: Self = Self(500_000);
    /// The 99th percentile.
    pub const P99: Self = Self(990_000);
    /// The 99.9th percentile.
    pub const P99_9: Self = Self(999_000);

    /// Makes a percentile from parts per million, at most a million of them.
    pub const fn from_ppm(ppm: u32) -> Self {
        assert!(ppm <= 1_000_000, "a percentile is at most 100 %");
        Self(ppm)
    }

    /// Returns the position of the percentile among `count` sorted values, counted from one (nearest rank).
    pub fn rank(self, count: u64) -> u64 {
        let rank = (u128::from(count) * u128::from(self.0)).div_ceil(1_000_000) as u64;
        rank.clamp(1, count.max(1))
    }

    /// Returns the number of values above the percentile, out of `count`.
    pub fn above(self, count: u64) -> u64 {
        count - self.rank(count).min(count)
    }
}

impl fmt::Display for Percentile {
    /// Prints per cent without trailing zeros: `99.9`.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (whole, part) = (self.0 / 10_000, self.0 % 10_000);
        match part {
            0 => write!(f, "{whole}"),
            _ => write!(f, "{whole}.{}", format!("{part:04}").trim_end_matches('0')),
        }
    }
}

/// Exact moments of latencies in nanoseconds.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Summary {
    /// Number of values.
    pub count: u64,
    /// Smallest value; 0 if there is none.
    pub min_ns: u64,
    /// Largest value; 0 if there is none.
    pub max_ns: u64,
    /// Arithmetic mean; 0 if there is no value.
    pub mean_ns: f64,
    /// Standard deviation of the sample (divided by the count less one); 0 for fewer than two values.
    pub stddev_ns: f64,
}

impl Summary {
    /// Returns the summary of both sets of values together, within the rounding of `f64`.
    pub fn merge(&self, other: &Self) -> Self {
        if self.count == 0 || other.count == 0 {
            return if self.count == 0 { *other } else { *self };
        }
        let (a, b) = (self.count as f64, other.count as f64);
        let apart = other.mean_ns - self.mean_ns;
        let squares = |s: &Self| s.stddev_ns * s.stddev_ns * (s.count as f64 - 1.0);
        let squares = squares(self) + squares(other) + apart * apart * a * b / (a + b);
        Self {
            count: self.count + other.count,
            min_ns: self.min_ns.min(other.min_ns),
            max_ns: self.max_ns.max(other.max_ns),
            mean_ns: self.mean_ns + apart * b / (a + b),
            stddev_ns: (squares / (a + b - 1.0)).sqrt(),
        }
    }
}

/// Integer sums from which a [`Summary`] is computed exactly.
#[derive(Clone, Copy, Debug)]
pub(super) struct Sums {
    count: u64,
    min: u64,
    max: u64,
    sum: u128,
    squares: u128,
}

impl Sums {
    pub(super) const EMPTY: Self = Self { count: 0, min: u64::MAX, max: 0, sum: 0, squares: 0 };

    #[inline]
    pub(super) fn record(&mut self, value: u64) {
        self.count += 1;
        self.min = self.min.min(value);
        self.max = self.max.max(value);
        self.sum += u128::from(value);
        self.squares += u128::from(value) * u128::from(value);
    }

    pub(super) fn summary(&self) -> Summary {
        if self.count == 0 {
            return Summary::default();
        }
        let n = u128::from(self.count);
        // Squares are taken about the integer part of the mean, where no term exceeds twice `squares` and nothing
        // cancels; the fraction of the mean, `rest / n`, is corrected for afterwards.
        let (mean, rest) = (self.sum / n, self.sum % n);
        let about = self.squares + n * mean * mean - 2 * mean * self.sum;
        let squares = about as f64 - (rest as f64) * (rest as f64) / n as f64;
        let variance = if self.count < 2 { 0.0 } else { squares.max(0.0) / (self.count - 1) as f64 };
        Summary {
            count: self.count,
            min_ns: self.min,
            max_ns: self.max,
            mean_ns: mean as f64 + rest as f64 / n as f64,
            stddev_ns: variance.sqrt(),
        }
    }
}

/// The occupied bins of a histogram, ascending: pairs of the largest value that falls into the bin, and the count.
///
/// Stored as text, `value:count` separated by blanks, so that the bins stay on one line however the rest of a result is
/// laid out.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Bins(Vec<(u64, u64)>);

impl Bins {
    pub(super) fn of<C: Counter>(histogram: &Histogram<C>) -> Self {
        Self(
            histogram
                .iter_recorded()
                .map(|bin| (bin.value_iterated_to(), bin.count_since_last_iteration()))
                .collect(),
        )
    }

    /// Makes bins from counted values, each in a bin of its own.
    pub(super) fn from_counts(counts: std::collections::BTreeMap<u64, u64>) -> Self {
        Self(counts.into_iter().filter(|(_, count)| *count > 0).collect())
    }

    /// Iterates over (largest value of the bin, count) of every occupied bin, ascending.
    pub fn iter(&self) -> impl Iterator<Item = (u64, u64)> + '_ {
        self.0.iter().copied()
    }

    /// Returns the number of values in all bins.
    pub fn count(&self) -> u64 {
        self.iter().map(|(_, count)| count).sum()
    }

    /// Returns the largest value of the bin that contains the percentile; `None` if there is no value.
    pub fn percentile(&self, percentile: Percentile) -> Option<u64> {
        self.at_rank(percentile.rank(self.count()))
    }

    /// Returns the largest value of the bin of the `rank`-th smallest value, counted from one.
    pub fn at_rank(&self, rank: u64) -> Option<u64> {
        let mut seen = 0;
        self.iter()
            .find(|(_, count)| {
                seen += count;
                seen >= rank
            })
            .map(|(value, _)| value)
    }

    pub(super) fn merge(&self, other: &Self) -> Self {
        let mut bins: Vec<(u64, u64)> = self.iter().chain(other.iter()).collect();
        bins.sort_unstable();
        bins.dedup_by(|later, kept| {
            let same = later.0 == kept.0;
            if same {
                kept.1 += later.1;
            }
            same
        });
        Self(bins)
    }
}

impl fmt::Display for Bins {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (i, (value, count)) in self.iter().enumerate() {
            write!(f, "{}{value}:{count}", if i == 0 { "" } else { " " })?;
        }
        Ok(())
    }
}

impl std::str::FromStr for Bins {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let mut bins: Vec<(u64, u64)> = Vec::new();
        for bin in text.split_ascii_whitespace() {
            let parsed = bin.split_once(':').and_then(|(v, c)| Some((v.parse().ok()?, c.parse().ok()?)));
            let Some((value, count)) = parsed else {
                return Err(format!("`{bin}` is not a bin: expected value:count, as in 1023:17"));
            };
            if count == 0 || bins.last().is_some_and(|&(last, _)| last >= value) {
                return Err(format!("bin `{bin}` is empty or not above the one before it"));
            }
            bins.push((value, count));
        }
        Ok(Self(bins))
    }
}

impl Serialize for Bins {
    fn serialize<S: Serializer>(&self, s: S) -> Result<S::Ok, S::Error> {
        s.collect_str(self)
    }
}
impl<'de> Deserialize<'de> for Bins {
    fn deserialize<D: Deserializer<'de>>(d: D) -> Result<Self, D::Error> {
        String::deserialize(d)?.parse().map_err(serde::de::Error::custom)
    }
}

/// Summary and percentiles of latencies in nanoseconds.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Distribution {
    /// Exact moments.
    pub summary: Summary,
    /// Histogram with three significant digits.
    pub bins: Bins,
}

impl Distribution {
    /// Returns the percentile in nanoseconds, at most one part in a thousand above the exact nearest-rank quantile and
    /// never below it; `None` if there is no value.
    pub fn percentile_ns(&self, percentile: Percentile) -> Option<u64> {
        self.bins.percentile(percentile).map(|value| value.min(self.summary.max_ns))
    }

    /// Returns the distribution of both sets of values together.
    pub fn merge(&self, other: &Self) -> Self {
        Self { summary: self.summary.merge(&other.summary), bins: self.bins.merge(&other.bins) }
    }
}

/// Latencies as they are recorded.
#[derive(Debug)]
pub struct LatencyRecorder {
    sums: Sums,
    bins: Histogram<u64>,
}

impl LatencyRecorder {
    /// Makes one without a latency. Its histogram grows with the largest value, so that a fast device does not pay for a slow one.
    pub fn new() -> Self {
        Self { sums: Sums::EMPTY, bins: Histogram::new(DIGITS).expect("up to five digits are allowed") }
    }

    /// Records a latency.
    #[inline]
    pub fn record(&mut self, latency: Duration) {
        self.sums.record(latency.as_nanos());
        self.bins.record(latency.as_nanos()).expect("the histogram grows to any value");
    }

    /// Returns what was recorded.
    pub fn distribution(&self) -> Distribution {
        Distribution { summary: self.sums.summary(), bins: Bins::of(&self.bins) }
    }
}

impl Default for LatencyRecorder {
    fn default() -> Self {
        Self::new()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use flashweir_core::RandomStream;

    /// Latencies from 100 ns to 1 s, evenly spread over the decades, with plateaus.
    fn latencies(seed: u64, count: usize) -> Vec<u64> {
        let mut stream = RandomStream::new(seed, "latencies");
        (0..count)
            .map(|_| {
                let scale = 10u64.pow(stream.below(8) as u32);
                if stream.chance(0.2) { 75_000 } else { (100 + stream.below(900)) * scale }
            })
            .collect()
    }

    fn distribution(values: &[u64]) -> Distribution {
        let mut latencies = LatencyRecorder::new();
        values.iter().for_each(|value| latencies.record(Duration::from_nanos(*value)));
        latencies.distribution()
    }

    #[test]
    fn percentiles_are_within_three_digits_of_exact_quantiles() {
        for (seed, count) in [(1, 1), (2, 2), (3, 999), (4, 1000), (5, 100_000)] {
            let mut values = latencies(seed, count);
            let d = distribution(&values);
            values.sort_unstable();
            for ppm in (0..=1_000_000).step_by(500).chain([999_900, 999_990, 999_999]) {
                let percentile = Percentile::from_ppm(ppm);
                let exact = values[percentile.rank(count as u64) as usize - 1];
                let got = d.percentile_ns(percentile).unwrap();
                assert!(
                    exact <= got && got - exact <= exact / 1000,
                    "{percentile} of {count}: {exact} {got}"
                );
            }
        }
    }

    #[test]
    fn ranks_are_exact_where_floating_point_is_not() {
        assert_eq!(Percentile::P99_9.rank(1000), 999);
        assert_eq!(Percentile::P99_9.rank(1001), 1000);
        assert_eq!(Percentile::P50.rank(1), 1);
        assert_eq!(Percentile::from_ppm(0).rank(10), 1);
        assert_eq!(Percentile::P99.above(1000), 10);
        assert_eq!(Percentile::P99_9.to_string(), "99.9");
        assert_eq!(Percentile::from_ppm(999_950).to_string(), "99.995");
        assert_eq!(Percentile::P50.to_string(), "50");
    }

    #[test]
    fn moments_are_exact_far_from_zero() {
        // The naive formula in `f64` loses every digit here.
        let base = 3_000_000_000_000;
        let s = distribution(&[base + 4, base + 7, base + 13, base + 16]).summary;
        assert_eq!((s.count, s.min_ns, s.max_ns), (4, base + 4, base + 16));
        assert_eq!(s.mean_ns, (base + 10) as f64);
        assert!((s.stddev_ns - 30f64.sqrt()).abs() < 1e-12, "{}", s.stddev_ns);
        assert_eq!(distribution(&[5]).summary.stddev_ns, 0.0);
        assert_eq!(distribution(&[]).summary, Summary::default());
        let s = distribution(&[1, 2]).summary;
        assert!((s.stddev_ns - 0.5f64.sqrt()).abs() < 1e-15 && s.mean_ns == 1.5);
    }

    #[test]
    fn merging_is_recording_together() {
        let (a, b) = (latencies(1, 1000), latencies(2, 3000));
        let together = distribution(&[a.clone(), b.clone()].concat());
        let merged = distribution(&a).merge(&distribution(&b));
        assert_eq!(merged.bins, together.bins);
        let (m, t) = (merged.summary, together.summary);
        assert_eq!((m.count, m.min_ns, m.max_ns), (t.count, t.min_ns, t.max_ns));
        assert!((m.mean_ns / t.mean_ns - 1.0).abs() < 1e-12);
        assert!((m.stddev_ns / t.stddev_ns - 1.0).abs() < 1e-12);
        let empty = Distribution::default();
        assert_eq!(empty.merge(&together), together);
        assert_eq!(together.merge(&empty), together);
        assert_eq!(empty.percentile_ns(Percentile::P50), None);
    }

    #[test]
    fn bins_are_read_back() {
        let bins = distribution(&latencies(9, 5000)).bins;
        assert_eq!(bins.to_string().parse::<Bins>().unwrap(), bins);
        assert_eq!("".parse::<Bins>().unwrap(), Bins::default());
        for bad in ["1", "1:x", "5:1 4:1", "5:0"] {
            assert!(bad.parse::<Bins>().is_err(), "{bad}");
        }
    }
}
