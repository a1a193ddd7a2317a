//! Detects a steady state as fio does: the rates of equal intervals in a rolling window stay near their mean, or a line
//! through them is nearly level.
//!
//! Place in the data flow: `job` reports completions and asks whether the job has to end; the result becomes part of
//! the job's report.
//!
//! Invariant: nothing is judged before the window is full; after that, every interval is.

use super::spec::Steady;
use flashweir_core::Instant;
use flashweir_sim::measure::{SteadyData, SteadyState};
use std::collections::VecDeque;

/// The search for a steady state.
#[derive(Clone, Debug)]
pub(super) struct Search {
    rule: Steady,
    /// End of the current interval.
    until: Instant,
    requests: u64,
    bytes: u64,
    /// Requests and bytes per second of each interval.
    window: VecDeque<[f64; 2]>,
    found: SteadyState,
}

impl Search {
    /// Starts a search in a job that begins to count at `from`.
    pub(super) fn new(rule: Steady, from: Instant) -> Self {
        let what = if rule.is_bandwidth { "bw" } else { "iops" };
        let slope = if rule.is_slope { "_slope" } else { "" };
        let percent = if rule.is_percent { "%" } else { "" };
        let found = SteadyState {
            ss: format!("{what}{slope}:{}{percent}", rule.limit),
            duration: rule.window.as_nanos() / 1_000_000_000,
            ..SteadyState::default()
        };
        let until = from.saturating_add(rule.ramp).saturating_add(rule.interval);
        Self { rule, until, requests: 0, bytes: 0, window: VecDeque::new(), found }
    }

    /// Records a completed request. Returns whether the job is steady.
    #[inline]
    pub(super) fn completed(&mut self, now: Instant, bytes: u64) -> bool {
        while now > self.until {
            if self.close() {
                return true;
            }
        }
        if self.until.saturating_since(now) < self.rule.interval {
            self.requests += 1;
            self.bytes += bytes;
        }
        false
    }

    /// Ends an interval and judges the window.
    #[cold]
    fn close(&mut self) -> bool {
        let seconds = self.rule.interval.as_nanos() as f64 / 1e9;
        let most = (self.rule.window.as_nanos() / self.rule.interval.as_nanos()) as usize;
        self.window.push_back([self.requests as f64 / seconds, self.bytes as f64 / seconds]);
        (self.requests, self.bytes) = (0, 0);
        self.until = self.until.saturating_add(self.rule.interval);
        if self.window.len() > most {
            self.window.pop_front();
        }
        if self.window.len() < most {
            return false;
        }
        let values: Vec<f64> = self.window.iter().map(|of| of[usize::from(self.rule.is_bandwidth)]).collect();
        let mean = values.iter().sum::<f64>() / values.len() as f64;
        let measure = if self.rule.is_slope { slope(&values) } else { distance(&values, mean) };
        let criterion = match (self.rule.is_percent, mean > 0.0) {
            (true, true) => 100.0 * measure.abs() / mean,
            // Without any completion there is no steady state.
            (true, false) => f64::MAX,
            (false, _) => measure.abs(),
        };
        self.found.criterion = criterion;
        *(if self.rule.is_slope { &mut self.found.slope } else { &mut self.found.max_deviation }) = measure;
        self.found.attained = u8::from(criterion < self.rule.limit);
        self.found.attained == 1
    }

    /// Returns the result.
    pub(super) fn found(&self) -> SteadyState {
        let column = |of: usize| self.window.iter().map(move |values| values[of]);
        let mean = |of: usize| (column(of).sum::<f64>() / self.window.len().max(1) as f64) as u64;
        let list = |of: usize| column(of).map(|value| value as u64).collect();
        let data = SteadyData { bw_mean: mean(1), iops_mean: mean(0), iops: list(0), bw: list(1) };
        SteadyState { data, ..self.found.clone() }
    }
}

/// Returns the slope of the least-squares line over the indices of the values.
fn slope(values: &[f64]) -> f64 {
    let n = values.len() as f64;
    let (mut x_sum, mut xx_sum, mut y_sum, mut xy_sum) = (0.0, 0.0, 0.0, 0.0);
    for (x, y) in values.iter().enumerate().map(|(x, y)| (x as f64, *y)) {
        (x_sum, xx_sum, y_sum, xy_sum) = (x_sum + x, xx_sum + x * x, y_sum + y, xy_sum + x * y);
    }
    (xy_sum - x_sum * y_sum / n) / (xx_sum - x_sum * x_sum / n)
}

/// Returns the largest deviation from the mean.
fn distance(values: &[f64], mean: f64) -> f64 {
    values.iter().map(|value| (value - mean).abs()).fold(0.0, f64::max)
}

#[cfg(test)]
mod tests {
    use super::*;
    use flashweir_core::Duration;

    fn search(is_slope: bool, limit: f64, is_percent: bool) -> Search {
        let second = Duration::from_secs(1);
        let rule = Steady {
            is_bandwidth: false,
            is_slope,
            limit,
            is_percent,
            window: second * 3,
            interval: second,
            ramp: second,
        };
        Search::new(rule, Instant::ZERO)
    }

    /// Returns the number of the interval, from 0 after the ramp, at whose end the job is steady if `rates` are those
    /// of the intervals.
    fn steady_after(search: &mut Search, rates: &[u64]) -> Option<u64> {
        for (interval, rate) in rates.iter().enumerate() {
            let begin = interval as u64 * 1_000_000_000;
            for request in 0..*rate {
                let at = begin + 1_000_000_000 / rate * request + 1;
                if search.completed(Instant::from_nanos(at), 4096) {
                    return Some(interval as u64 - 2);
                }
            }
        }
        None
    }

    #[test]
    fn values_near_their_mean_are_steady() {
        // The first rate lies in the ramp.
        let rates = [10, 50, 80, 100, 101, 100, 100, 100, 100];
        let mut near = search(false, 2.0, true);
        assert_eq!(steady_after(&mut near, &rates), Some(4));
        let found = near.found();
        assert_eq!((found.attained, found.ss.as_str(), found.duration), (1, "iops:2%", 3));
        assert_eq!((found.data.iops, found.data.bw_mean), (vec![100, 101, 100], 100 * 4096 + 1365));
        assert_eq!(steady_after(&mut search(false, 0.5, false), &rates), Some(6));
    }

    #[test]
    fn a_level_line_is_steady_and_a_rising_one_is_not() {
        assert_eq!(slope(&[1.0, 3.0, 5.0]), 2.0);
        let mut level = search(true, 1.0, true);
        assert_eq!(steady_after(&mut level, &[1, 50, 60, 70, 80, 60, 80, 60, 80]), Some(5));
        let mut rising = search(true, 1.0, true);
        assert_eq!(steady_after(&mut rising, &[1, 50, 60, 70, 80, 90, 100]), None);
        assert_eq!(rising.found().attained, 0);
        assert_eq!(rising.found().slope, 10.0);
    }
}
