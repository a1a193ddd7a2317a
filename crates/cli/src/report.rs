//! `--report`: what the command line knows besides the results, for the page of the laboratory.

use crate::error::{Failure, Outcome};
use flashweir_device::config::DeviceConfig;
use flashweir_lab::report::{Report, Text};
use flashweir_lab::scenario::{Scenario, Source};
use flashweir_sim::measure::RunResult;
use flashweir_workload::spelling::quoted;
use std::fmt::Write as _;

/// The page of a scenario.
pub(crate) fn of_scenario(scenario: &Scenario, notes: Vec<String>, runs: &[RunResult]) -> Outcome<String> {
    let workload = |config: &flashweir_lab::scenario::WorkloadConfig| {
        let text = match &config.source {
            Source::Fio { text, .. } => text.trim_matches('\n').to_owned(),
            Source::Trace { .. } => trace(&config.name, runs),
        };
        Text { name: config.name.clone(), text }
    };
    Ok(Report {
        title: scenario.name.clone(),
        notes,
        command: command(),
        runs,
        tables: Vec::new(),
        curves: Vec::new(),
        devices: devices(&scenario.devices)?,
        workloads: scenario.workloads.iter().map(workload).collect(),
    }
    .html())
}

/// The options of a replay, as its job reports them.
fn trace(workload: &str, runs: &[RunResult]) -> String {
    let run = runs.iter().find(|run| run.workload == workload);
    let mut text = String::new();
    for (key, value) in run.into_iter().flat_map(|run| &run.jobs).flat_map(|job| &job.options) {
        let _ = writeln!(text, "{key} = {value}");
    }
    text
}

/// Each device as a device file.
pub(crate) fn devices(configs: &[DeviceConfig]) -> Outcome<Vec<Text>> {
    let text = |config: &DeviceConfig| {
        let text = toml::to_string(config).map_err(Failure::run)?;
        Ok(Text { name: config.name.clone(), text })
    };
    configs.iter().map(text).collect()
}

/// The command line, without what results do not depend on.
pub(crate) fn command() -> String {
    let mut words = vec!["weir".to_owned()];
    let mut arguments = crate::output::arguments();
    while let Some(argument) = arguments.next() {
        match argument.as_str() {
            "--quiet" | "-q" => {}
            "--jobs" | "-j" => drop(arguments.next()),
            short if short.starts_with("--jobs=") || short.starts_with("-j") => {}
            word => words.push(quoted(word)),
        }
    }
    words.join(" ")
}
