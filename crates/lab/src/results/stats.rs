//! Reliability of numbers: confidence intervals over seeds, batch means, steady state, and the statistics for
//! which a run was too short.
//!
//! Invariants: every estimate is a pure function of its samples, in the order given; no estimate is made from
//! fewer samples than its definition needs.
//!
//! Deliberately absent: tests of normality. The value of each seed is a mean of thousands of requests.

use flashweir_sim::measure::{JobResult, KindResult, Percentile};
use std::fmt;

/// A mean with its confidence interval.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Estimate {
    /// Mean of the samples.
    pub mean: f64,
    /// Half the width of the 95 % confidence interval; `None` for fewer than two samples.
    pub half_width: Option<f64>,
    /// Number of samples.
    pub samples: usize,
}

/// Mean and Student-t 95 % confidence interval of independent samples; `None` if there are none.
pub fn estimate(samples: &[f64]) -> Option<Estimate> {
    if samples.is_empty() {
        return None;
    }
    let n = samples.len() as f64;
    let mean = samples.iter().sum::<f64>() / n;
    let squares: f64 = samples.iter().map(|x| (x - mean) * (x - mean)).sum();
    let half_width = (samples.len() > 1)
        .then(|| student_t_95(samples.len() as u64 - 1) * (squares / (n - 1.0) / n).sqrt());
    Some(Estimate { mean, half_width, samples: samples.len() })
}

/// The two-sided 95 % quantile of Student's t with `freedom` degrees of freedom, at least one: the t that a
/// sample exceeds in magnitude with probability 0.05. The error is below 1e-5.
pub fn student_t_95(freedom: u64) -> f64 {
    const SMALL: [f64; 10] = [
        12.706_204_7,
        4.302_652_7,
        3.182_446_3,
        2.776_445_1,
        2.570_581_8,
        2.446_911_9,
        2.364_624_3,
        2.306_004_1,
        2.262_157_2,
        2.228_138_9,
    ];
    assert!(freedom > 0, "a spread needs two samples");
    if let Some(&t) = SMALL.get(freedom as usize - 1) {
        return t;
    }
    // Expansion of the quantile in 1/freedom about that of the normal distribution (Abramowitz and Stegun,
    // 26.7.5), which is accurate enough from eleven degrees of freedom.
    let x = 1.959_963_984_540_054;
    let x2 = x * x;
    let g1 = x * (x2 + 1.0) / 4.0;
    let g2 = x * ((5.0 * x2 + 16.0) * x2 + 3.0) / 96.0;
    let g3 = x * (((3.0 * x2 + 19.0) * x2 + 17.0) * x2 - 15.0) / 384.0;
    let g4 = x * ((((79.0 * x2 + 776.0) * x2 + 1482.0) * x2 - 1920.0) * x2 - 945.0) / 92_160.0;
    let v = 1.0 / freedom as f64;
    x + v * (g1 + v * (g2 + v * (g3 + v * g4)))
}

/// The mean of a correlated series with a confidence interval: the means of `batches` parts of equal length
/// are taken as independent samples. A remainder is dropped at the front, where a transient would be.
/// `None` if a batch would be empty or there are fewer than two.
pub fn batch_means(series: &[f64], batches: usize) -> Option<Estimate> {
    if batches < 2 {
        return None;
    }
    estimate(&batched(series, batches)?)
}

/// Means of `batches` parts of equal length; a remainder is dropped at the front.
fn batched(series: &[f64], batches: usize) -> Option<Vec<f64>> {
    let length = series.len() / batches;
    if length == 0 {
        return None;
    }
    let kept = &series[series.len() - length * batches..];
    Some(kept.chunks_exact(length).map(|c| c.iter().sum::<f64>() / length as f64).collect())
}

/// End of the initial transient of a series, in samples from its beginning, by the rule MSER-5 (White, 1997):
/// the cut that minimises the standard error of the mean of the rest, over batches of five. `None` if that
/// cut lies in the second half or there are fewer than ten batches: then the series is too short.
pub fn mser5(series: &[f64]) -> Option<usize> {
    const BATCH: usize = 5;
    const BATCHES_MIN: usize = 10;
    let batches: Vec<f64> =
        series.chunks_exact(BATCH).map(|c| c.iter().sum::<f64>() / BATCH as f64).collect();
    if batches.len() < BATCHES_MIN {
        return None;
    }
    let (mut best, mut best_error) = (0, f64::INFINITY);
    let (mut mean, mut squares) = (0.0, 0.0);
    // From the back, mean and sum of squares of each suffix follow from those of the shorter one. The last
    // batches are no candidates: two equal ones would have no error at all.
    for (kept, cut) in (1..).zip((0..batches.len()).rev()) {
        let apart = batches[cut] - mean;
        mean += apart / f64::from(kept);
        squares += apart * (batches[cut] - mean);
        let error = squares / f64::from(kept) / f64::from(kept);
        if kept as usize >= BATCH && error <= best_error {
            (best, best_error) = (cut, error);
        }
    }
    (best <= batches.len() / 2).then_some(best * BATCH)
}

/// Number of windows in the definition of steady state.
pub const STEADY_WINDOWS: usize = 5;

/// Whether a series has settled.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Steadiness {
    /// The last five windows satisfy both conditions.
    Steady,
    /// The last five windows fail a condition.
    NotSteady {
        /// The condition that failed.
        reason: Drift,
    },
    /// There are fewer than five windows.
    TooShort {
        /// Number of windows needed in all.
        needed: usize,
    },
}

/// The condition of steady state that a series fails; fractions are of its average over the five windows.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Drift {
    /// Largest minus smallest value, as a fraction; at most 0.20 is steady.
    Excursion(f64),
    /// Change of the least-squares line over the windows, as a signed fraction; at most 0.10 in magnitude is
    /// steady.
    Slope(f64),
}

impl fmt::Display for Drift {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Excursion(share) => write!(f, "varies by {:.0} % of its mean (limit 20 %)", share * 100.0),
            Self::Slope(share) => write!(f, "drifts by {:+.0} % of its mean (limit 10 %)", share * 100.0),
        }
    }
}

/// Steady state as the SNIA Solid State Storage Performance Test Specification defines it: over the last
/// five windows, the values range over at most 20 % of their average, and the least-squares line through
/// them changes by at most 10 % of it from the first window to the last.
pub fn steady(windows: &[f64]) -> Steadiness {
    const EXCURSION_MAX: f64 = 0.20;
    const SLOPE_MAX: f64 = 0.10;
    let Some(y) = windows.last_chunk::<STEADY_WINDOWS>() else {
        return Steadiness::TooShort { needed: STEADY_WINDOWS };
    };
    let average = y.iter().sum::<f64>() / STEADY_WINDOWS as f64;
    let max = y.iter().copied().fold(f64::NEG_INFINITY, f64::max);
    let min = y.iter().copied().fold(f64::INFINITY, f64::min);
    // The squares of the five positions -2..=2 add up to 10, and the line spans 4 steps.
    let change = (2.0 * (y[4] - y[0]) + (y[3] - y[1])) / 10.0 * 4.0;
    let limit = |share: f64| share * average.abs() * (1.0 + 1e-12);
    if max - min > limit(EXCURSION_MAX) {
        Steadiness::NotSteady { reason: Drift::Excursion((max - min) / average) }
    } else if change.abs() > limit(SLOPE_MAX) {
        Steadiness::NotSteady { reason: Drift::Slope(change / average) }
    } else {
        Steadiness::Steady
    }
}

/// A statistic for which a run was too short.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Shortfall {
    /// Too few requests lie above the percentile to know it.
    FewRequests {
        /// Lowest wanted percentile that is not known.
        percentile: Percentile,
        /// Number of completed requests.
        have: u64,
        /// Number of requests needed.
        needed: u64,
    },
    /// The measured time has too few full intervals to judge steadiness.
    FewIntervals {
        /// Number of full intervals measured.
        have: usize,
        /// Number of full intervals needed.
        needed: usize,
    },
    /// The rate did not settle over five equal parts of the measured time.
    NotSteady(Drift),
    /// The transient of the rate takes more than half of the measured time (MSER-5).
    Transient,
}

impl fmt::Display for Shortfall {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::FewRequests { percentile, have, needed } => {
                write!(f, "p{percentile} needs {needed} requests and has {have}")
            }
            Self::FewIntervals { have, needed } => {
                write!(f, "steady state needs {needed} full intervals and has {have}")
            }
            Self::NotSteady(drift) => write!(f, "rate {drift}"),
            Self::Transient => write!(f, "rate settles after more than half of the run, if at all"),
        }
    }
}

/// Statistics for which the measurement of `kind` in `job` was too short; empty if its numbers are reliable.
///
/// A percentile counts as known if ten requests lie above it; the 99th and the 99.9th are wanted.
pub fn shortfalls(job: &JobResult, kind: &KindResult) -> Vec<Shortfall> {
    const ABOVE_MIN: u64 = 10;
    /// A run of days with intervals of microseconds has more than fit into memory.
    const RATES_MAX: usize = 1 << 20;
    let mut found = Vec::new();
    for (percentile, needed) in [(Percentile::P99, 100 * ABOVE_MIN), (Percentile::P99_9, 1000 * ABOVE_MIN)] {
        if kind.requests < needed {
            found.push(Shortfall::FewRequests { percentile, have: kind.requests, needed });
            break;
        }
    }
    let rates = job.full_rates(kind, RATES_MAX);
    let Some(windows) = batched(&rates, STEADY_WINDOWS) else {
        found.push(Shortfall::FewIntervals { have: rates.len(), needed: STEADY_WINDOWS });
        return found;
    };
    if let Steadiness::NotSteady { reason } = steady(&windows) {
        found.push(Shortfall::NotSteady(reason));
    } else if rates.len() >= 50 && mser5(&rates).is_none() {
        found.push(Shortfall::Transient);
    }
    found
}

#[cfg(test)]
mod tests {
    use super::*;
    use flashweir_core::RandomStream;
    use flashweir_sim::measure::testing::run;
    use flashweir_sim::request::Kind;

    /// P(|T| > t) by Simpson's rule: with T = sqrt(v) tan(a) the density of the angle is cos(a)^(v-1).
    fn tail(t: f64, freedom: u64) -> f64 {
        let v = freedom as f64;
        let area = |from: f64, to: f64| {
            let steps = 20_000;
            let h = (to - from) / f64::from(steps);
            let y = |i: i32| (from + h * f64::from(i)).cos().max(0.0).powf(v - 1.0);
            let weight = |i: i32| if i == 0 || i == steps { 1.0 } else { f64::from(2 + 2 * (i % 2)) };
            (0..=steps).map(|i| weight(i) * y(i)).sum::<f64>() * h / 3.0
        };
        let at = (t / v.sqrt()).atan();
        let half = std::f64::consts::FRAC_PI_2;
        area(at, half) / area(0.0, half)
    }

    fn normal(stream: &mut RandomStream) -> f64 {
        let radius = (-2.0 * (1.0 - stream.unit()).ln()).sqrt();
        radius * (std::f64::consts::TAU * stream.unit()).cos()
    }

    #[test]
    fn student_t_has_its_tail() {
        for freedom in (1..=60).chain([100, 200, 500, 1000, 5000]) {
            let tail = tail(student_t_95(freedom), freedom);
            assert!((tail - 0.05).abs() < 5e-7, "{freedom}: {tail}");
        }
        // Printed tables.
        for (freedom, t) in [(1, 12.706), (4, 2.776), (11, 2.201), (29, 2.045), (60, 2.000), (120, 1.980)] {
            assert!((student_t_95(freedom) - t).abs() < 5e-4, "{freedom}");
        }
        assert!((student_t_95(u64::MAX) - 1.959_964).abs() < 1e-6);
    }

    #[test]
    fn intervals_follow_the_textbook() {
        // Mean 5, sample deviation 2.138090, n = 8: half width 2.364624 * 2.138090 / sqrt(8).
        let e = estimate(&[2.0, 4.0, 4.0, 4.0, 5.0, 5.0, 7.0, 9.0]).unwrap();
        assert_eq!((e.mean, e.samples), (5.0, 8));
        assert!((e.half_width.unwrap() - 1.787_487).abs() < 1e-5, "{e:?}");
        assert_eq!(estimate(&[3.0]), Some(Estimate { mean: 3.0, half_width: None, samples: 1 }));
        assert_eq!(estimate(&[]), None);
    }

    #[test]
    fn intervals_cover_the_mean_19_times_in_20() {
        let mut stream = RandomStream::new(1, "coverage");
        for n in [2, 5, 12, 40] {
            let trials = 20_000;
            let covered = (0..trials)
                .filter(|_| {
                    let samples: Vec<f64> = (0..n).map(|_| 100.0 + 15.0 * normal(&mut stream)).collect();
                    let e = estimate(&samples).unwrap();
                    (e.mean - 100.0).abs() <= e.half_width.unwrap()
                })
                .count();
            // Four standard errors of the share.
            let share = covered as f64 / f64::from(trials);
            assert!((share - 0.95).abs() < 4.0 * (0.95f64 * 0.05 / f64::from(trials)).sqrt(), "{n}: {share}");
        }
    }

    #[test]
    fn batch_means_are_wider_than_the_naive_interval_of_a_correlated_series() {
        let mut stream = RandomStream::new(2, "batches");
        let (mut covered, mut naive, trials) = (0, 0, 500);
        for _ in 0..trials {
            let mut x = 0.0;
            let series: Vec<f64> = (0..4000)
                .map(|_| {
                    x = 0.9 * x + normal(&mut stream);
                    x
                })
                .collect();
            let inside = |e: Estimate| usize::from(e.mean.abs() <= e.half_width.unwrap());
            covered += inside(batch_means(&series, 20).unwrap());
            naive += inside(estimate(&series).unwrap());
        }
        assert!(covered * 100 > trials * 91 && naive * 100 < trials * 50, "{covered} {naive}");
        assert_eq!(batch_means(&[9.0, 1.0, 3.0, 5.0, 7.0], 2).unwrap().mean, 4.0);
        assert_eq!(batch_means(&[1.0], 2), None);
        assert_eq!(batch_means(&[1.0, 2.0], 1), None);
    }

    #[test]
    fn steady_state_is_that_of_snia() {
        use Steadiness::{NotSteady, Steady, TooShort};
        assert_eq!(steady(&[1.0; 4]), TooShort { needed: 5 });
        assert_eq!(steady(&[1.0; 5]), Steady);
        assert_eq!(steady(&[0.0; 5]), Steady);
        assert_eq!(steady(&[90.0, 95.0, 100.0, 105.0, 110.0]), NotSteady { reason: Drift::Slope(0.2) });
        // A range of exactly 20 % with little slope, then slightly more.
        assert_eq!(steady(&[100.0, 90.0, 110.0, 90.0, 110.0]), Steady);
        assert_eq!(steady(&[100.0, 110.0, 100.0, 90.0, 100.0]), Steady);
        assert_eq!(steady(&[110.0, 90.0, 100.0, 90.0, 110.0]), Steady);
        match steady(&[110.1, 90.0, 99.8, 90.0, 110.1]) {
            NotSteady { reason: Drift::Excursion(e) } => assert!((e - 0.201).abs() < 1e-9),
            other => panic!("{other:?}"),
        }
        // A line of 2.5 % per window changes by exactly 10 % over five windows.
        assert_eq!(steady(&[95.0, 97.5, 100.0, 102.5, 105.0]), Steady);
        match steady(&[105.2, 102.6, 100.0, 97.4, 94.8]) {
            NotSteady { reason: Drift::Slope(s) } => assert!((s + 0.104).abs() < 1e-9),
            other => panic!("{other:?}"),
        }
        // Only the last five windows count, as of a fresh drive that settles.
        assert_eq!(steady(&[900.0, 500.0, 300.0, 101.0, 99.0, 100.0, 101.0, 100.0]), Steady);
    }

    #[test]
    fn mser_cuts_the_transient() {
        let mut stream = RandomStream::new(3, "mser");
        let noisy = |len: usize, transient: usize, stream: &mut RandomStream| -> Vec<f64> {
            (0..len).map(|i| if i < transient { 50.0 } else { 10.0 } + normal(stream)).collect()
        };
        let cut = mser5(&noisy(500, 100, &mut stream)).unwrap();
        assert!((100..150).contains(&cut), "{cut}");
        assert_eq!(mser5(&noisy(500, 300, &mut stream)), None);
        assert_eq!(mser5(&[1.0; 49]), None);
        assert_eq!(mser5(&[1.0; 500]), Some(0));
    }

    #[test]
    fn short_runs_are_told() {
        let result = run(1);
        let job = &result.jobs[0];
        let tell = |job: &JobResult, kind| {
            let found = shortfalls(job, job.kind(kind).unwrap());
            found.iter().map(ToString::to_string).collect::<Vec<_>>()
        };
        assert_eq!(tell(job, Kind::Read), ["p99.9 needs 10000 requests and has 1000"]);
        assert_eq!(tell(job, Kind::Flush), ["p99 needs 1000 requests and has 100"]);
        let mut short = job.clone();
        short.end_ns = 499_000_000;
        short.kinds[0].series.truncate(5);
        assert_eq!(tell(&short, Kind::Read)[1], "steady state needs 5 full intervals and has 4");
        let mut slow = job.clone();
        slow.kinds[0].series.iter_mut().for_each(|row| row.requests = 1000 - row.index * 12);
        assert_eq!(tell(&slow, Kind::Read)[1], "rate drifts by -10 % of its mean (limit 10 %)");
    }
}
