//! `weir run`, `weir fio` and `weir replay`: three ways to an experiment, and what is shown of it.

use crate::devices::{host_ftls, refuse_two_layers, resolve};
use crate::error::{Failure, Failures, Outcome, say, unreadable};
use crate::json::{self, Kind};
use crate::options::{Common, DeviceArgs, FioArgs, FioOutput, ReplayArgs, RunArgs, RunOutput};
use crate::output::thousands;
use crate::output::{check, in_place, is_same, print_or_write, stopped, width, write};
use crate::perfetto::TimelineFile;
use crate::progress::{Cost, Watch};
use crate::report;
use flashweir_host::{HostFtlConfig, Limits, Lines};
use flashweir_lab::experiment::{self, Experiment};
use flashweir_lab::results::{Grouping, device_table, fio_json, job_table, write_csv};
use flashweir_lab::scenario::{Fault, Scenario, Source, WorkloadConfig, read_block_layer};
use flashweir_sim::measure::{RunResult, log_files};
use flashweir_sim::precondition::Mode;
use serde::Serialize;
use std::collections::BTreeSet;
use std::fmt::Write as _;
use std::path::{Path, PathBuf};
use std::sync::atomic::AtomicBool;

/// The shape of what is printed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Shape {
    Table,
    Runs,
    Fio,
}

/// `weir run`.
pub(crate) fn run(args: &RunArgs, cancel: &AtomicBool) -> Outcome {
    let mut overrides = args.set.clone();
    overrides.extend(args.seeds.map(|seeds| format!("seeds={seeds}")));
    let scenario = load(&args.scenario, &overrides)?;
    let shape = match args.shape.output {
        RunOutput::Table => Shape::Table,
        RunOutput::Json => Shape::Runs,
        RunOutput::FioJson => Shape::Fio,
    };
    execute(scenario, shape, &args.common, cancel)
}

/// Reads a scenario.
pub(crate) fn load(file: &Path, overrides: &[String]) -> Outcome<Scenario> {
    Scenario::load(file, overrides).map_err(|error| match &*error.fault {
        Fault::Read { path, reason, .. } if *path == error.file => {
            Failure::Usage(format!("{path}: cannot be read: {reason}"))
        }
        _ => Failure::usage(error),
    })
}

/// `weir fio`.
pub(crate) fn fio(args: &FioArgs, cancel: &AtomicBool) -> Outcome {
    let file = args.job_file.display().to_string();
    let text = match args.job_file.as_os_str() == "-" {
        true => std::io::read_to_string(std::io::stdin()),
        false => std::fs::read_to_string(&args.job_file),
    };
    let text = text.map_err(|error| unreadable(&file, &error))?;
    let name = stem(&args.job_file);
    on_devices(&args.device, name, Source::Fio { file, text }, cancel)
}

/// `weir replay`.
pub(crate) fn replay(args: &ReplayArgs, cancel: &AtomicBool) -> Outcome {
    let source =
        Source::Trace { file: args.trace.clone(), read: args.read.options(args.sort), replay: args.config() };
    on_devices(&args.device, stem(&args.trace), source, cancel)
}

/// Name of a workload, from the name of its file.
pub(crate) fn stem(path: &Path) -> String {
    match path.file_stem() {
        Some(stem) if stem != "-" => stem.to_string_lossy().into_owned(),
        _ => "workload".into(),
    }
}

/// Runs one workload on the devices of the command line.
fn on_devices(args: &DeviceArgs, name: String, source: Source, cancel: &AtomicBool) -> Outcome {
    let devices = resolve(&args.device, &args.set)?;
    let precondition = args.state.of(&devices)?;
    let block_layer = args.block_layer.as_ref().map(|text| read_block_layer("--block-layer", text));
    let scenario = Scenario {
        name: name.clone(),
        seeds: vec![args.seed],
        precondition,
        track_contents: false,
        block_layer: block_layer.transpose().map_err(Failure::usage)?,
        host_ftls: host_ftls(args.host_ftl.as_deref(), &devices)?,
        devices,
        workloads: vec![WorkloadConfig { name, source }],
    };
    let shape = match args.shape.output {
        FioOutput::Table => Shape::Table,
        FioOutput::Json if scenario.devices.len() == 1 => Shape::Fio,
        FioOutput::Json => Shape::Runs,
    };
    execute(scenario, shape, &args.common, cancel)
}

/// Runs a scenario and shows or stores what it measured.
fn execute(scenario: Scenario, shape: Shape, common: &Common, cancel: &AtomicBool) -> Outcome {
    let files = [
        ("--out", &common.out),
        ("--csv", &common.csv),
        ("--report", &common.report),
        ("--perfetto", &common.trace.perfetto),
    ];
    for (i, (option, path)) in files.iter().enumerate() {
        let Some(path) = path else { continue };
        check(path)?;
        let is_that = |earlier: &Path| !in_place(path) && is_same(earlier, path);
        if let Some((other, _)) =
            files[..i].iter().find(|(_, earlier)| earlier.as_deref().is_some_and(is_that))
        {
            let path = path.display();
            return Err(Failure::Usage(format!(
                "{option} cannot be {path}: {other} is that file: expected another"
            )));
        }
    }
    if common.trace.perfetto.is_some() {
        refuse_two_layers(&scenario, "--perfetto")?;
    }
    let mut experiment = Experiment::new(scenario).map_err(Failure::usage)?;
    if common.report.is_some() {
        experiment.keep_courses();
    }
    if shape == Shape::Fio && experiment.cells().len() != 1 {
        return Err(Failure::Usage(format!(
            "--output fio-json shows one run and this scenario has {}: expected one device, one workload and one \
             seed, or --output json",
            experiment.cells().len()
        )));
    }
    if !common.quiet {
        for warning in experiment.warnings() {
            say(format!("warning: {warning}"));
        }
    }
    let threads = common
        .jobs
        .map_or_else(|| std::thread::available_parallelism().map_or(1, usize::from), |jobs| jobs as usize);
    let timeline = TimelineFile::new(&common.trace, &experiment)?;
    let watch = Watch::new(&experiment, common.quiet);
    let observe = |report| watch.report(report);
    let outcomes = experiment.run_traced(threads, cancel, &observe, &|cell| timeline.wanted(cell));
    let cost = watch.finish();
    let cells = outcomes.len();
    let (outcomes, findings): (Vec<_>, Vec<_>) = outcomes.into_iter().flatten().unzip();
    let results: Vec<RunResult> = outcomes.iter().map(|outcome| outcome.result.clone()).collect();
    let in_part = outcomes.iter().filter(|outcome| outcome.stopped).count();
    if results.len() < cells || in_part > 0 {
        let through = results.len() - in_part;
        return stopped(through, cells, in_part, || show(&experiment, &results, shape));
    }
    let text = show(&experiment, &results, shape)?;
    // The results come first, and a file that cannot be written costs no other.
    let mut failed = Failures::default();
    failed.note(print_or_write(common.out.as_deref(), &text));
    if let Some(path) = &common.csv {
        let mut csv = Vec::new();
        let made = write_csv(&results, &mut csv).map_err(Failure::run);
        failed.note(made.and_then(|()| write(path, csv)));
    }
    if let Some(path) = &common.report {
        let notes = vec![state(experiment.scenario())];
        let made = report::of_scenario(experiment.scenario(), notes, &results);
        failed.note(made.and_then(|page| write(path, page)));
    }
    for (path, content) in logs(&experiment, &outcomes) {
        failed.note(write(&path, content));
    }
    failed.note(timeline.finish(findings.iter().flatten(), common.quiet));
    if !common.quiet {
        say(speed(&outcomes, cost));
    }
    failed.note(failures(&experiment, outcomes.iter()));
    failed.outcome()
}

/// fio's logs of all runs, by the names that the job files give; where there are several runs each has its own before the name.
fn logs(experiment: &Experiment, outcomes: &[experiment::Outcome]) -> Vec<(PathBuf, String)> {
    let mut files = Vec::new();
    for (cell, outcome) in outcomes.iter().enumerate() {
        for (name, content) in log_files(&outcome.logs) {
            let mut path = PathBuf::from(name);
            if outcomes.len() > 1 {
                let file = path.file_name().unwrap_or_default().to_string_lossy().into_owned();
                let run = experiment.cell_name(cell).replace(", ", "-").replace([' ', '/'], "-");
                path.set_file_name(format!("{run}-{file}"));
            }
            files.push((path, content));
        }
    }
    files
}

/// How many worlds run at once.
pub(crate) fn threads(jobs: Option<u32>) -> usize {
    match jobs {
        Some(jobs) => jobs as usize,
        None => std::thread::available_parallelism().map_or(1, usize::from),
    }
}

fn show(experiment: &Experiment, results: &[RunResult], shape: Shape) -> Outcome<String> {
    #[derive(Serialize)]
    struct Runs<'a> {
        scenario: &'a str,
        runs: &'a [RunResult],
    }
    match shape {
        Shape::Table => Ok(tables(experiment.scenario(), results)),
        Shape::Runs => {
            let runs = Runs { scenario: &experiment.scenario().name, runs: results };
            json::pretty(Kind::Runs, &runs)
        }
        Shape::Fio => json::pretty(Kind::Fio, &fio_json(&results[0], Grouping::PerJob)),
    }
}

/// Tables of the options, of the jobs' results and of the devices' counters.
fn tables(scenario: &Scenario, results: &[RunResult]) -> String {
    let name = &scenario.name;
    let width = width();
    format!("{name}\n{}\n\n{}\n{}", state(scenario), job_table(results, width), device_table(results, width))
}

/// State of the devices beforehand, number of repetitions, and layers between jobs and devices.
fn state(scenario: &Scenario) -> String {
    let state = &scenario.precondition;
    let percent = state.fill * 100.0;
    let before = match (state.mode, state.overwrite > 0.0) {
        (Mode::None, _) => "fresh devices".to_owned(),
        (Mode::Instant | Mode::AgeByWriting, false) => format!("devices filled to {percent} %"),
        (Mode::Instant | Mode::AgeByWriting, true) => {
            format!("devices filled to {percent} % and overwritten {} ×", state.overwrite)
        }
    };
    let seeds = match scenario.seeds.as_slice() {
        [seed] => format!("seed {seed}"),
        seeds => format!("{} seeds, ± is the half width of the 95 % confidence interval", seeds.len()),
    };
    let scheduler = scenario.block_layer.as_ref().map(|layer| layer.scheduler.name());
    let host = scheduler.map_or(String::new(), |name| format!("; a block layer, scheduler {name}"));
    let ftls = scenario.host_ftls.iter().flatten().map(host_ftl_name);
    let ftls: Vec<String> = ftls.collect::<BTreeSet<_>>().into_iter().collect();
    let ftl = if ftls.is_empty() { String::new() } else { format!("; host FTLs: {}", ftls.join(", ")) };
    format!("{before}; {seeds}{host}{ftl}")
}

/// A host FTL by what sets the assemblies apart.
pub(crate) fn host_ftl_name(config: &HostFtlConfig) -> String {
    let lines = match config.lines {
        Lines::Device => "lines of the device",
        Lines::Channel => "lines of a channel",
    };
    let limits = match config.limits {
        Limits::Windows => "windows",
        Limits::Scores => "scores",
    };
    let rings = config.rings;
    format!("{rings} {}, {lines}, {limits}", if rings == 1 { "ring" } else { "rings" })
}

/// How fast the simulator was; the only place where the wall clock shows.
fn speed(outcomes: &[experiment::Outcome], cost: Cost) -> String {
    let requests: u64 = outcomes.iter().map(|outcome| outcome.requests).sum();
    let mut line = format!("{} requests in {:.2} s", thousands(requests), cost.wall.as_secs_f64());
    let running = cost.running.as_secs_f64();
    if running > 0.0 {
        let _ = write!(line, ", {} per CPU second", thousands((requests as f64 / running) as u64));
    }
    if cost.preparing.as_secs_f64() >= 0.1 {
        let _ = write!(line, " besides {:.1} s for the state of devices", cost.preparing.as_secs_f64());
    }
    line
}

/// Requests that a device refused make the run a failure, after its results were shown.
pub(crate) fn failures<'a>(
    experiment: &Experiment,
    outcomes: impl Iterator<Item = &'a experiment::Outcome> + Clone,
) -> Outcome {
    let failed = || outcomes.clone().enumerate().filter(|(_, outcome)| outcome.errors > 0);
    let Some((cell, first)) = failed().next() else { return Ok(()) };
    let count: u64 = failed().map(|(_, outcome)| outcome.errors).sum();
    Err(Failure::Run(format!(
        "{} requests failed; the first on {}: {}",
        thousands(count),
        experiment.cell_name(cell),
        first.first_error.as_deref().unwrap_or("no reason given")
    )))
}
