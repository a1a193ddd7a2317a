//! A study: runs of variants at values of a parameter, and the rows and curves that result.
//!
//! Place in the data flow: the modules of each paper define its studies as data; [`super`] lists them by paper.

use crate::experiment::Experiment;
use crate::files::{self, FilesResult, Setup, Work};
use crate::scenario::Scenario;
use flashweir_core::Duration;
use flashweir_device::DeviceConfig;
use flashweir_fs::Mode;
use flashweir_fs::vfs::{CacheConfig, HostCosts, MountOptions};
use flashweir_sim::measure::{Distribution, Percentile, RunResult, WorkloadResult};
use flashweir_sim::stack::FlushMode;
use flashweir_sim::volume::MakeOptions;
use serde::Serialize;
use std::collections::BTreeMap;
use std::sync::atomic::AtomicBool;

/// Scale of a run, compared with the paper's set-up.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Scale {
    /// Small enough to take seconds.
    Quick,
    /// The paper's sizes.
    Full,
}

impl Scale {
    /// Default number of seeds of each run: the papers report medians of several runs.
    pub const fn seeds(self) -> u32 {
        match self {
            Self::Quick => 1,
            Self::Full => 5,
        }
    }
}

/// One measurement of a study: a variant at one value of the study's parameter.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Row {
    /// Name of the variant, as in `RFLUSH`.
    pub variant: &'static str,
    /// Value of the parameter.
    pub x: f64,
    /// Measurements by name; medians over the seeds.
    pub metrics: BTreeMap<&'static str, f64>,
    /// The same of each seed, in their order.
    pub seeds: BTreeMap<&'static str, Vec<f64>>,
}

/// A study: the runs and what they measure.
#[derive(Clone, Copy, Debug)]
pub struct Study {
    /// Name of the study in claims.
    pub name: &'static str,
    /// Description of the runs, in one sentence.
    pub what: &'static str,
    /// Parts of the paper's set-up that are missing, in one sentence.
    pub missing: &'static str,
    /// Name and unit of the parameter.
    pub parameter: &'static str,
    /// Names of its values 1, 2 …, if they stand for things.
    pub names: &'static [&'static str],
    /// Names of the metrics, with descriptions for people and figures.
    pub metrics: &'static [(&'static str, &'static str)],
    /// Names of the variants, in the paper's order.
    pub variants: &'static [&'static str],
    /// Values of the parameter.
    pub points: fn(Scale) -> Vec<f64>,
    /// Measures a variant, by its position, at one value of the parameter, with one seed.
    pub measure: fn(usize, f64, u64, Scale) -> Vec<f64>,
}

/// One run that a study needs.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Run {
    variant: usize,
    x: f64,
    seed: u64,
}

impl Study {
    /// The parameter's value in words.
    pub fn point(&self, x: f64) -> String {
        let name = (x >= 1.0).then(|| self.names.get(x as usize - 1)).flatten();
        name.map_or_else(|| x.to_string(), |name| (*name).to_owned())
    }

    /// All runs, in order, with this many seeds. They are independent of each other.
    pub fn runs(&self, scale: Scale, seeds: u32) -> Vec<Run> {
        let mut runs = Vec::new();
        for x in (self.points)(scale) {
            for variant in 0..self.variants.len() {
                runs.extend((1..=u64::from(seeds)).map(|seed| Run { variant, x, seed }));
            }
        }
        runs
    }

    /// Executes a run; returns one value for each metric.
    pub fn run(&self, run: Run, scale: Scale) -> Vec<f64> {
        (self.measure)(run.variant, run.x, run.seed, scale)
    }

    /// Medians over the seeds; `done` has the results of [`Self::runs`], in their order.
    pub fn rows(&self, scale: Scale, seeds: u32, done: &[Vec<f64>]) -> Vec<Row> {
        let runs = self.runs(scale, seeds);
        assert_eq!(runs.len(), done.len(), "each run has a result");
        let of_one = runs.chunks(seeds as usize).zip(done.chunks(seeds as usize));
        of_one
            .map(|(runs, results)| {
                let values = |metric: usize| results.iter().map(|result| result[metric]).collect();
                let named = self.metrics.iter().enumerate();
                let seeds: BTreeMap<_, Vec<f64>> = named.map(|(at, (name, _))| (*name, values(at))).collect();
                let metrics = seeds.iter().map(|(name, values)| (*name, median(values.clone()))).collect();
                Row { variant: self.variants[runs[0].variant], x: runs[0].x, metrics, seeds }
            })
            .collect()
    }
}

/// Median of at least one value, of an even number the mean of both in the middle; NaN if one of them was not measured.
fn median(mut values: Vec<f64>) -> f64 {
    if values.iter().any(|value| value.is_nan()) {
        return f64::NAN;
    }
    values.sort_by(f64::total_cmp);
    let middle = values.len() / 2;
    match values.len() % 2 {
        0 => f64::midpoint(values[middle - 1], values[middle]),
        _ => values[middle],
    }
}

/// A workload of this name on a server with a page cache of `cache_bytes`, which sends FLUSH and has no block layer; it is measured for
/// `time`, after `ramp`.
pub(super) fn on_server(
    device: DeviceConfig,
    mode: Mode,
    cache_bytes: u64,
    (name, work): (&str, Work),
    seed: u64,
    (ramp, time): (Duration, Duration),
) -> Setup {
    Setup {
        device,
        flush: FlushMode::Flush,
        mode,
        block_layer: None,
        host_ftl: None,
        mount: MountOptions {
            cache: CacheConfig::of_bytes(cache_bytes),
            costs: HostCosts::preset("server").expect("it comes with the program"),
            ..MountOptions::default()
        },
        workloads: vec![(name.to_owned(), work)],
        seed,
        interval: Duration::from_millis(100),
        ramp,
        runtime: Some(time),
        is_direct: false,
        volume: MakeOptions::default(),
        is_aged: false,
        ballast_bytes: 0,
        is_atomic: false,
        is_cut: false,
    }
}

/// Runs a setup that must not fail: a study has no user whom an error could be told.
pub(super) fn measure(setup: &Setup) -> FilesResult {
    let result = files::run(setup, &mut |_| true).unwrap_or_else(|error| panic!("{error}"));
    result.expect("nobody stops it")
}

/// The result of a scenario with one cell, none of whose requests may fail.
pub(super) fn run_scenario(text: &str) -> RunResult {
    let scenario = Scenario::parse("study", text, &[], &|_| Err("no files".into()));
    let experiment = Experiment::new(scenario.unwrap_or_else(|error| panic!("{error}\n{text}")));
    let experiment = experiment.unwrap_or_else(|error| panic!("{error}\n{text}"));
    let outcomes = experiment.run(1, &AtomicBool::new(false), &|_| ()).expect("nobody cancels it");
    let outcome = outcomes.into_iter().next().expect("there is one cell");
    assert_eq!(outcome.first_error, None, "{text}");
    outcome.result
}

/// Least number of calls for a rate or a ratio (presets §3.4).
pub const RATE_CALLS_MIN: u64 = 100;
/// Least number of calls for a 99.9th percentile (presets §3.4).
pub(super) const TAIL_CALLS_MIN: u64 = 1_000;

/// Calls in each second of the kinds `ops` of the only workload of a setup, of all kinds if none is named; NaN if they are too few.
pub(super) fn per_s(result: &FilesResult, ops: &[&str]) -> f64 {
    rate(&result.workloads[0], ops)
}

/// Calls in each second of these kinds, of all if none is named; NaN if they are too few.
pub(super) fn rate(workload: &WorkloadResult, ops: &[&str]) -> f64 {
    let sum = workload.sum(ops);
    if sum.calls < RATE_CALLS_MIN { f64::NAN } else { workload.calls_per_s(&sum) }
}

/// A percentile, µs; NaN of no call, and the 99.9th of too few.
pub fn micros(latency: &Distribution, percentile: Percentile) -> f64 {
    let is_known = percentile != Percentile::P99_9 || latency.summary.count >= TAIL_CALLS_MIN;
    let ns = latency.percentile_ns(percentile).filter(|_| is_known);
    ns.map_or(f64::NAN, |ns| ns as f64 / 1e3)
}

/// A figure of a paper whose axes are not those of a study: it shows the results of the other variants as shares of the first one's.
#[derive(Clone, Copy, Debug)]
pub struct Shares {
    /// Name of the study.
    pub study: &'static str,
    /// Title of the figure.
    pub title: &'static str,
    /// Name of the metric.
    pub metric: &'static str,
    /// Label of the axis of the first variant's result, with its unit.
    pub axis: &'static str,
    /// The paper's curve: its variant, and that one's share in percent as a function of the first variant's result.
    pub paper: (&'static str, fn(f64) -> f64),
}

impl Shares {
    /// Curve of each variant but the first: pairs of the first variant's result and the share in percent, ascending.
    pub fn curves(&self, rows: &[Row]) -> Vec<(&'static str, Vec<(f64, f64)>)> {
        let first = rows.first().map_or("", |row| row.variant);
        let reached = |row: &Row| row.metrics.get(self.metric).copied().unwrap_or(f64::NAN);
        let all: BTreeMap<u64, f64> = rows
            .iter()
            .filter(|row| row.variant == first)
            .map(|row| (row.x.to_bits(), reached(row)))
            .collect();
        let mut curves: Vec<(&'static str, Vec<(f64, f64)>)> = Vec::new();
        for row in rows.iter().filter(|row| row.variant != first) {
            let Some(&whole) = all.get(&row.x.to_bits()) else { continue };
            let point = (whole, 100.0 * reached(row) / whole);
            match curves.iter_mut().find(|(variant, _)| *variant == row.variant) {
                Some((_, points)) => points.push(point),
                None => curves.push((row.variant, vec![point])),
            }
        }
        curves.iter_mut().for_each(|(_, points)| points.sort_by(|a, b| a.0.total_cmp(&b.0)));
        curves
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_median_lies_in_the_middle() {
        assert_eq!(median(vec![3.0, 1.0, 2.0]), 2.0);
        assert_eq!(median(vec![4.0, 1.0]), 2.5);
        assert!(median(vec![4.0, f64::NAN, 1.0]).is_nan(), "one was not measured");
    }
}
