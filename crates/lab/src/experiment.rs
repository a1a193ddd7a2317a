//! Experiments: every device of a scenario under every workload with every seed, on several threads.
//!
//! Place in the data flow: a [`Scenario`] comes in; a worker makes a [`World`] of each of its cells and runs it;
//! results go out in the order of the cells, and progress is reported meanwhile.
//!
//! Invariants: results are a function of the scenario, not of the number of threads or their timing; a workload that does not fit a
//! device is an error before the first world runs; each device is preconditioned once per seed, and every workload begins on a copy of
//! it.
//!
//! Deliberately absent: clocks, and result files. The program that shows progress reads the clock.

mod board;
mod options;
#[cfg(test)]
mod tests;

use crate::scenario::{Run, Scenario, Source};
use board::{Board, Task};
use flashweir_core::command::Handle;
use flashweir_core::units::LBA_BYTES;
use flashweir_core::{Bytes, Duration};
use flashweir_device::config::{DeviceConfig, FirmwareKind};
use flashweir_device::geometry::Geometry;
use flashweir_device::{Device, DeviceOptions};
use flashweir_sim::check_block_layer;
use flashweir_sim::host_ftl::{Disk, capacity_lbas, check_above, check_host_ftl};
use flashweir_sim::measure::{IoLog, RunResult};
use flashweir_sim::precondition::Mode;
use flashweir_sim::request::Kind;
use flashweir_sim::timeline::{Findings, Ledger, Perfetto, Timeline};
use flashweir_sim::workload::Workload;
use flashweir_sim::world::{JobSetup, Progress, World};
use flashweir_workload::fio::{
    Direction, Fault, FioError, FioJob, JobSpec, Sizes, Verify, Zoned, Zones, parse_job_file,
};
use flashweir_workload::trace::{self, Replay, ReplayConfig, Timing, Trace, TraceError};
use std::collections::BTreeMap;
use std::fmt;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};

/// Shortest and longest interval of the series in results.
const INTERVAL_MIN: Duration = Duration::from_millis(1);
const INTERVAL_MAX: Duration = Duration::from_secs(1);
/// Interval for a run of unknown length.
const INTERVAL_UNKNOWN: Duration = Duration::from_millis(100);
/// Fewest intervals that a run should have, so that its steadiness can be judged.
const INTERVALS: u64 = 20;

/// A workload that does not fit on a device.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ExperimentError {
    /// A fio job.
    Fio {
        /// Name of the device, if there are several.
        device: Option<String>,
        /// The fault.
        error: FioError,
    },
    /// A trace that cannot be read.
    Trace(TraceError),
    /// A trace that cannot be replayed.
    Replay {
        /// Name of the device, if there are several.
        device: Option<String>,
        /// The fault.
        error: TraceError,
    },
    /// Something that a device with segments cannot have.
    Segments {
        /// Name of the device, if there are several.
        device: Option<String>,
        /// The fault.
        reason: String,
    },
    /// A trace with remaps that a device cannot execute.
    Share {
        /// Name of the device, if there are several.
        device: Option<String>,
        /// The fault.
        reason: String,
    },
    /// A device on which no job can run, or a host FTL that does not fit it or the workload.
    HostFtl {
        /// Name of the device, if there are several.
        device: Option<String>,
        /// The fault.
        reason: String,
    },
    /// A block layer that does not fit a device.
    BlockLayer {
        /// Name of the device, if there are several.
        device: Option<String>,
        /// The fault.
        reason: String,
    },
}

impl fmt::Display for ExperimentError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Trace(error) => error.fmt(f),
            Self::Fio { device: Some(device), error } => write!(f, "{error} (on device {device})"),
            Self::Replay { device: Some(device), error } => write!(f, "{error} (on device {device})"),
            Self::Fio { device: None, error } => error.fmt(f),
            Self::Replay { device: None, error } => error.fmt(f),
            Self::BlockLayer { device: Some(device), reason }
            | Self::HostFtl { device: Some(device), reason }
            | Self::Share { device: Some(device), reason }
            | Self::Segments { device: Some(device), reason } => {
                write!(f, "{reason} (on device {device})")
            }
            Self::BlockLayer { device: None, reason }
            | Self::HostFtl { device: None, reason }
            | Self::Share { device: None, reason }
            | Self::Segments { device: None, reason } => f.write_str(reason),
        }
    }
}

impl std::error::Error for ExperimentError {}

/// Stage of the work on a cell.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Stage {
    /// The device is preconditioned, for this cell and those that share it.
    Preparing,
    /// The world runs.
    Running,
    /// The world has ended.
    Done,
}

/// Progress of a cell. Reports of one stage of a cell come from one thread, the one that does the work.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Report {
    /// Number of the cell.
    pub cell: usize,
    /// Current stage.
    pub stage: Stage,
    /// Fraction of the stage that is done, 0 to 1, if it is known.
    pub fraction: Option<f64>,
}

/// Outcome of a cell.
#[derive(Clone, Debug, PartialEq)]
pub struct Outcome {
    /// Measurements of the cell.
    pub result: RunResult,
    /// Number of completed requests, those of ramps included.
    pub requests: u64,
    /// Number of requests that the device answered with an error.
    pub errors: u64,
    /// First of these errors.
    pub first_error: Option<String>,
    /// Logs that the jobs asked for.
    pub logs: Vec<IoLog>,
    /// Whether the run was stopped before its end, and measured less than was asked for.
    pub stopped: bool,
}

/// Tracers that follow the requests of a cell.
#[derive(Debug, Default)]
pub struct Wanted {
    /// Writes the requests for Perfetto.
    pub perfetto: Option<Perfetto>,
    /// Sums up where the time of the requests went.
    pub ledger: Option<Ledger>,
}

/// Outcome of a cell and findings of its tracers, if it has any.
pub type Slotted = Option<(Outcome, Option<Findings>)>;

/// Place of a worker's result.
type Slot = Mutex<Slotted>;

/// A scenario whose workloads were read and fit its devices.
#[derive(Debug)]
pub struct Experiment {
    scenario: Scenario,
    cells: Vec<Run>,
    /// Plans by workload, then by device.
    plans: Vec<Vec<Plan>>,
    warnings: Vec<String>,
    keeps_courses: bool,
}

/// A workload for one device.
#[derive(Debug)]
enum Plan {
    /// Jobs, and the zones that they share: number, sectors of each, sectors of the least write.
    Fio(Vec<JobSpec>, Option<(u32, u64, u64)>),
    Trace {
        trace: Arc<Trace>,
        config: ReplayConfig,
        replay: Box<Fitted>,
    },
}

/// A trace that fits a device, at its beginning.
#[derive(Clone, Debug)]
enum Fitted {
    Anywhere(Replay),
    /// On a device with segments, which are zones.
    Zoned(trace::Zoned),
}

/// Planned length of a run.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
struct Extent {
    time: Option<Duration>,
    requests: Option<u64>,
}

impl Extent {
    /// Fraction that is done, if a limit is known.
    fn fraction(self, progress: Progress) -> Option<f64> {
        let time = self.time.map(|time| progress.now.as_nanos() as f64 / time.as_nanos().max(1) as f64);
        let requests = self.requests.map(|requests| progress.requests as f64 / requests.max(1) as f64);
        let further = time.into_iter().chain(requests).reduce(f64::max)?;
        Some(further.min(1.0))
    }
}

impl Experiment {
    /// Reads the traces of `scenario` and fits each workload to each device.
    ///
    /// # Errors
    /// The first workload or block layer that does not fit a device, or the first trace that cannot be read.
    pub fn new(scenario: Scenario) -> Result<Self, ExperimentError> {
        let mut warnings = Vec::new();
        let state = &scenario.precondition;
        let fill = if state.mode == Mode::None { 0.0 } else { state.fill };
        for (at, device) in scenario.devices.iter().enumerate() {
            let name = || (scenario.devices.len() > 1).then(|| device.name.clone());
            check_segments(device, &scenario)
                .map_err(|reason| ExperimentError::Segments { device: name(), reason })?;
            let host_ftl = scenario.host_ftl(at);
            let checked = match host_ftl {
                Some(ftl) => check_host_ftl(ftl, device).map(|_| ()),
                None => device.check_jobs(),
            };
            checked.map_err(|reason| ExperimentError::HostFtl { device: name(), reason })?;
            let problem = device.collection_never_stops(fill);
            warnings.extend(problem.map(|problem| format!("{}: {problem}", device.name)));
            if let Some(layer) = &scenario.block_layer {
                let checked = check_block_layer(layer, &device.link);
                checked
                    .and_then(|()| host_ftl.map_or(Ok(()), |_| check_above(layer)))
                    .map_err(|reason| ExperimentError::BlockLayer { device: name(), reason })?;
            }
        }
        let mut plans = Vec::new();
        for workload in &scenario.workloads {
            plans.push(plan(&workload.source, &scenario, &mut warnings)?);
        }
        let cells = scenario.runs().collect();
        Ok(Self { scenario, cells, plans, warnings, keeps_courses: false })
    }

    /// Lets every run keep its course in [`RunResult::course`]; nothing else in the results changes.
    pub fn keep_courses(&mut self) {
        self.keeps_courses = true;
    }

    /// The scenario.
    pub fn scenario(&self) -> &Scenario {
        &self.scenario
    }

    /// The cells, in the order of the results.
    pub fn cells(&self) -> &[Run] {
        &self.cells
    }

    /// Warnings for the author of the scenario, one line each.
    pub fn warnings(&self) -> &[String] {
        &self.warnings
    }

    /// Device, workload and seed of a cell, for people to read.
    pub fn cell_name(&self, cell: usize) -> String {
        let Run { device, workload, seed } = self.cells[cell];
        let (device, workload) =
            (&self.scenario.devices[device].name, &self.scenario.workloads[workload].name);
        match self.scenario.seeds.len() {
            1 => format!("{device}, {workload}"),
            _ => format!("{device}, {workload}, seed {seed}"),
        }
    }

    /// Runs all cells on `threads` threads and returns their outcomes in order; `None` if `cancel` was set before every cell
    /// had begun to run.
    pub fn run(
        &self,
        threads: usize,
        cancel: &AtomicBool,
        observe: &(dyn Fn(Report) + Sync),
    ) -> Option<Vec<Outcome>> {
        let outcomes = self.run_traced(threads, cancel, observe, &|_| Wanted::default());
        outcomes.into_iter().map(|outcome| Some(outcome?.0)).collect()
    }

    /// As [`Self::run`], and follows the requests of each cell with the tracers that `wanted` returns for it. A cell that had
    /// not begun to run when `cancel` was set is `None`.
    pub fn run_traced(
        &self,
        threads: usize,
        cancel: &AtomicBool,
        observe: &(dyn Fn(Report) + Sync),
        wanted: &(dyn Fn(usize) -> Wanted + Sync),
    ) -> Vec<Slotted> {
        let board = Board::new(&self.cells);
        let outcomes: Vec<Slot> = self.cells.iter().map(|_| Mutex::default()).collect();
        std::thread::scope(|scope| {
            for _ in 0..threads.clamp(1, self.cells.len()) {
                scope.spawn(|| self.work(&board, &outcomes, cancel, observe, wanted));
            }
        });
        outcomes.into_iter().map(|slot| slot.into_inner().expect("no worker panicked")).collect()
    }

    /// Work of one thread.
    fn work(
        &self,
        board: &Board,
        outcomes: &[Slot],
        cancel: &AtomicBool,
        observe: &(dyn Fn(Report) + Sync),
        wanted: &(dyn Fn(usize) -> Wanted + Sync),
    ) {
        while let Some(task) = board.take() {
            let finished = match task {
                Task::Prepare { group, cell } => {
                    let ready = board.preparing(group);
                    let disk = self.prepare(cell, cancel, observe);
                    let finished = disk.is_some();
                    ready.finish(disk);
                    finished
                }
                Task::Run { cell, disk } => {
                    let outcome = self.run_cell(cell, *disk, cancel, observe, wanted(cell));
                    let finished = !outcome.0.stopped;
                    *outcomes[cell].lock().expect("a cell has one worker") = Some(outcome);
                    finished
                }
            };
            if !finished {
                return;
            }
        }
    }

    /// Returns the preconditioned disk on which the workload of a cell begins; `None` if cancelled.
    fn prepare(
        &self,
        cell: usize,
        cancel: &AtomicBool,
        observe: &(dyn Fn(Report) + Sync),
    ) -> Option<Box<Disk>> {
        let Run { device, seed, .. } = self.cells[cell];
        observe(Report { cell, stage: Stage::Preparing, fraction: Some(0.0) });
        let options = DeviceOptions { seed, track_contents: self.tracks_contents(), planted: None };
        let below = Device::new(self.scenario.devices[device].clone(), options);
        let disk = Disk::new(below, self.scenario.host_ftl(device));
        let (disk, finished) = self.scenario.precondition.apply_to(disk, seed, |fraction| {
            observe(Report { cell, stage: Stage::Preparing, fraction: Some(fraction) });
            !cancel.load(Ordering::Relaxed)
        });
        (finished && !cancel.load(Ordering::Relaxed)).then(|| Box::new(disk))
    }

    /// Whether devices store contents: if the scenario says so, or if a job verifies what it wrote.
    fn tracks_contents(&self) -> bool {
        let verifies = |plan: &Plan| match plan {
            Plan::Fio(specs, _) => specs.iter().any(|spec| spec.verify == Some(Verify::Compare)),
            Plan::Trace { .. } => false,
        };
        self.scenario.track_contents || self.plans.iter().flatten().any(verifies)
    }

    /// Runs a cell to its end, or until it is cancelled.
    fn run_cell(
        &self,
        cell: usize,
        disk: Disk,
        cancel: &AtomicBool,
        observe: &(dyn Fn(Report) + Sync),
        Wanted { perfetto, ledger }: Wanted,
    ) -> (Outcome, Option<Findings>) {
        let run = self.cells[cell];
        let plan = &self.plans[run.workload][run.device];
        let (jobs, extent) = (plan.jobs(run.seed), plan.extent());
        let report = |stage, fraction| observe(Report { cell, stage, fraction });
        report(Stage::Running, Some(0.0));
        let mut world = World::above(disk, self.scenario.block_layer.clone(), jobs, plan.interval());
        if perfetto.is_some() || ledger.is_some() {
            world.trace(|device| Timeline::new(device, perfetto, ledger));
        }
        if self.keeps_courses {
            world.keep_course();
        }
        let finished = world.run(|progress| {
            report(Stage::Running, extent.fraction(progress));
            !cancel.load(Ordering::Relaxed)
        });
        let findings = world.end_trace();
        let requests = world.requests();
        let (errors, first_error) = world.errors();
        let first_error = first_error.map(str::to_owned);
        let device = &self.scenario.devices[run.device].name;
        let logs = world.take_logs();
        let (result, _) = world.finish(device, &self.scenario.workloads[run.workload].name, run.seed);
        report(Stage::Done, Some(1.0));
        (Outcome { result, requests, errors, first_error, logs, stopped: !finished }, findings)
    }
}

/// Fits a workload to each device.
fn plan(
    source: &Source,
    scenario: &Scenario,
    warnings: &mut Vec<String>,
) -> Result<Vec<Plan>, ExperimentError> {
    let devices = &scenario.devices;
    let mut warn = |lines: Vec<String>| {
        // Most warnings are the same for every device.
        for line in lines {
            if !warnings.contains(&line) {
                warnings.push(line);
            }
        }
    };
    let name = |device: &DeviceConfig| (devices.len() > 1).then(|| device.name.clone());
    let capacities = devices.iter().enumerate().map(|(at, device)| {
        let ftl = scenario.host_ftl(at);
        let capacity = capacity_lbas(device, ftl).expect("it was checked");
        (device, ftl.map(|_| Geometry::new(device).lbas_per_unit), capacity)
    });
    match source {
        Source::Fio { file, text } => capacities
            .map(|(device, whole, blocks)| {
                let mut jobs = parse_job_file(file, text, Bytes(blocks * LBA_BYTES))
                    .map_err(|error| ExperimentError::Fio { device: name(device), error })?;
                warn(jobs.warnings);
                let fault = |spec: &JobSpec| {
                    misplaced(spec, device)
                        .or_else(|| whole.and_then(|unit| in_parts(spec, unit)))
                        .or_else(|| unverifiable(spec, device))
                        .or_else(|| unshareable(spec, device))
                };
                let fault = jobs.jobs.iter().find_map(fault);
                if let Some(fault) = fault.or_else(|| share_open_zones(&mut jobs.jobs, device)) {
                    let error = FioError { file: file.clone(), line: 0, fault: Box::new(fault) };
                    return Err(ExperimentError::Fio { device: name(device), error });
                }
                let zones = (device.firmware == FirmwareKind::Append).then(|| zones_of(device));
                Ok(Plan::Fio(jobs.jobs, zones))
            })
            .collect(),
        Source::Trace { file, read, replay } => {
            let trace = Arc::new(Trace::open(file, read).map_err(ExperimentError::Trace)?);
            warn(trace.warnings());
            capacities
                .map(|(device, whole, capacity_blocks)| {
                    let trace = Arc::clone(&trace);
                    let fitted = match device.firmware {
                        FirmwareKind::Append => {
                            trace::Zoned::new(Arc::clone(&trace), replay, zones_of(device)).map(Fitted::Zoned)
                        }
                        _ => Replay::new(Arc::clone(&trace), replay, capacity_blocks).map(Fitted::Anywhere),
                    };
                    let fitted =
                        fitted.map_err(|error| ExperimentError::Replay { device: name(device), error })?;
                    remaps(&trace, device)
                        .map_err(|reason| ExperimentError::Share { device: name(device), reason })?;
                    whole
                        .map_or(Ok(()), |unit| trace_in_parts(&trace, unit))
                        .map_err(|reason| ExperimentError::HostFtl { device: name(device), reason })?;
                    Ok(Plan::Trace { trace, config: replay.clone(), replay: Box::new(fitted) })
                })
                .collect()
        }
    }
}

/// What a device with segments cannot have: contents before the first write, a host that sorts and merges.
fn check_segments(device: &DeviceConfig, scenario: &Scenario) -> Result<(), String> {
    if device.firmware != FirmwareKind::Append {
        return Ok(());
    }
    if scenario.precondition.mode != Mode::None {
        return Err("precondition: expected none: segments are empty until a job writes them".into());
    }
    if scenario.block_layer.is_some() {
        return Err("block_layer: expected none: it knows no segments".into());
    }
    Ok(())
}

/// The segments of a device, as zones.
fn zones_of(device: &DeviceConfig) -> (u32, u64, u64) {
    let geometry = Geometry::new(device);
    (geometry.append.segments, geometry.segment_lbas(), geometry.lbas_per_unit)
}

/// Gives each job that writes and names no limit its part of the segments that the device lets be open. Reason why that cannot be, if any.
fn share_open_zones(jobs: &mut [JobSpec], device: &DeviceConfig) -> Option<Fault> {
    let limit = device.append.max_open;
    if device.firmware != FirmwareKind::Append || limit == 0 {
        return None;
    }
    let mut writers: Vec<&mut JobSpec> =
        jobs.iter_mut().filter(|spec| spec.mix.uses(Direction::Write)).collect();
    let asked_of = |spec: &JobSpec| spec.zones.map_or(0, |rules| u64::from(rules.open_max));
    let asked: u64 = writers.iter().map(|spec| asked_of(spec)).sum();
    let others = writers.iter().filter(|spec| asked_of(spec) == 0).count() as u64;
    let Some(left) = u64::from(limit).checked_sub(asked).filter(|left| *left >= others) else {
        let reason = format!(
            "the jobs that write open {} segments or more: expected at most {limit}, the device's `append.max_open`, by `max_open_zones`",
            asked + others
        );
        return Some(Fault::Conflict { section: writers[0].name.clone(), reason });
    };
    for rules in writers.iter_mut().filter_map(|spec| spec.zones.as_mut()).filter(|rules| rules.open_max == 0)
    {
        rules.open_max = (left / others) as u32;
    }
    None
}

/// Reason why this job cannot run on this device, if any: zones are segments, and segments take writes at write pointers only.
fn misplaced(spec: &JobSpec, device: &DeviceConfig) -> Option<Fault> {
    let conflict = |reason: String| Some(Fault::Conflict { section: spec.name.clone(), reason });
    let is_append = device.firmware == FirmwareKind::Append;
    let handles = if device.firmware.has_pages() { device.ftl.placement.handles } else { 1 };
    let asked = spec.placement.iter().flat_map(|placement| &placement.handles).max();
    if let Some(Handle(most)) = asked.filter(|most| most.0 >= handles) {
        return conflict(match handles {
            1 => "`fdp=1` needs a device with `ftl.placement.handles` above 1".into(),
            _ => format!("fdp_pli has {most}: the device has the handles 0 to {}", handles - 1),
        });
    }
    let rules = match (spec.zones, is_append) {
        (None, false) => return None,
        (None, true) => {
            return conflict("segments are written at their write pointers: expected `zonemode=zbd`".into());
        }
        (Some(_), false) => {
            return conflict("`zonemode=zbd` needs a device with segments, such as `amf`".into());
        }
        (Some(rules), true) => rules,
    };
    let (_, blocks, unit) = zones_of(device);
    let bytes = |blocks: u64| Bytes(blocks * LBA_BYTES);
    if let Some(asked) = rules.blocks.filter(|asked| *asked != blocks) {
        return conflict(format!(
            "zonesize={}: the segments of the device have {}",
            bytes(asked),
            bytes(blocks)
        ));
    }
    if !spec.region.first.0.is_multiple_of(blocks) || !spec.region.blocks.is_multiple_of(blocks) {
        return conflict(format!("its region is not a whole number of segments of {}", bytes(blocks)));
    }
    let used = Direction::ALL.into_iter().filter(|direction| spec.mix.uses(*direction));
    let mut sizes = used.map(|direction| &spec.sizes[direction as usize]);
    if sizes.clone().any(|sizes| !sizes.are_multiples_of(unit)) {
        return conflict(format!(
            "segments are written in units of {}: expected multiples of it",
            bytes(unit)
        ));
    }
    match sizes.any(|sizes| u64::from(sizes.max_blocks()) > blocks) {
        true => conflict(format!("a request is larger than a segment of {}", bytes(blocks))),
        false => None,
    }
}

/// Reason why contents of this job cannot be compared, if any: a device knows the content of whole mapping units only.
fn unverifiable(spec: &JobSpec, device: &DeviceConfig) -> Option<Fault> {
    let unit = Geometry::new(device).lbas_per_unit;
    let write = Direction::Write as usize;
    let places = [u64::from(spec.align_blocks[write]), spec.region.first.0];
    let is_whole =
        spec.sizes[write].are_multiples_of(unit) && places.iter().all(|blocks| blocks.is_multiple_of(unit));
    let is_bad = spec.verify == Some(Verify::Compare) && !is_whole;
    is_bad.then(|| Fault::Conflict {
        section: spec.name.clone(),
        reason: format!(
            "`verify` compares whole mapping units: expected writes that are multiples of {} in size and place",
            Bytes(unit * LBA_BYTES)
        ),
    })
}

/// Reason why this job cannot run above a host FTL, if any: it writes whole mapping units of so many sectors.
fn in_parts(spec: &JobSpec, unit: u64) -> Option<Fault> {
    let write = Direction::Write as usize;
    let places = [u64::from(spec.align_blocks[write]), spec.region.first.0];
    let is_whole =
        spec.sizes[write].are_multiples_of(unit) && places.iter().all(|blocks| blocks.is_multiple_of(unit));
    (spec.mix.uses(Direction::Write) && !is_whole).then(|| Fault::Conflict {
        section: spec.name.clone(),
        reason: format!(
            "a host FTL takes whole mapping units: expected writes that are multiples of {} in size and place",
            Bytes(unit * LBA_BYTES)
        ),
    })
}

/// The same for a trace.
fn trace_in_parts(trace: &Trace, unit: u64) -> Result<(), String> {
    let is_part =
        |lba: u64, blocks: u32| !(lba.is_multiple_of(unit) && u64::from(blocks).is_multiple_of(unit));
    let mut writes =
        trace.records().iter().filter(|record| matches!(record.kind, Kind::Write | Kind::WriteZeroes));
    let Some(part) = writes.find(|record| is_part(record.lba.0, record.blocks)) else { return Ok(()) };
    Err(format!(
        "{}: a host FTL takes whole mapping units: expected writes that are multiples of {} in size and place, and there is one of {} \
         sectors at sector {}",
        trace.file(),
        Bytes(unit * LBA_BYTES),
        part.blocks,
        part.lba.0
    ))
}

/// Most sectors of one SHARE of a device; the error is the sentence that says what the device lacks.
fn share_blocks_max(device: &DeviceConfig, what: &str) -> Result<u64, String> {
    let share = &device.ftl.share;
    if device.firmware.has_pages() && share.pages > 0 {
        return Ok(u64::from(share.batch) * Geometry::new(device).lbas_per_unit);
    }
    Err(format!(
        "{what} needs a device with SHARE: expected `ftl.share.pages` above 0, as in the preset `share-960evo`"
    ))
}

/// Reason why the remaps of this job cannot run on this device, if any.
fn unshareable(spec: &JobSpec, device: &DeviceConfig) -> Option<Fault> {
    let sources = spec.share_from?;
    let conflict = |reason: String| Some(Fault::Conflict { section: spec.name.clone(), reason });
    let most = match share_blocks_max(device, "`share_from`") {
        Ok(most) => most,
        Err(reason) => return conflict(reason),
    };
    let unit = Geometry::new(device).lbas_per_unit;
    let sizes = &spec.sizes[Direction::Write as usize];
    let places = [u64::from(spec.align_blocks[Direction::Write as usize]), spec.region.first.0, sources.0];
    let bytes = |blocks: u64| Bytes(blocks * LBA_BYTES);
    if !sizes.are_multiples_of(unit) || places.iter().any(|blocks| !blocks.is_multiple_of(unit)) {
        return conflict(format!(
            "`share_from` remaps whole mapping units: expected writes and sources that are multiples of {} in size and place",
            bytes(unit)
        ));
    }
    (u64::from(sizes.max_blocks()) > most).then(|| Fault::Conflict {
        section: spec.name.clone(),
        reason: format!(
            "a write of {} is more than one SHARE of this device: expected at most {} (ftl.share.batch)",
            bytes(sizes.max_blocks().into()),
            bytes(most)
        ),
    })
}

/// Checks that a device can execute the remaps of a trace, if there are any.
fn remaps(trace: &Trace, device: &DeviceConfig) -> Result<(), String> {
    let shares = trace.records().iter().filter(|record| record.kind == Kind::Share);
    let Some(longest) = shares.map(|record| record.blocks).max() else { return Ok(()) };
    let most = share_blocks_max(device, &format!("{}: a trace with remaps", trace.file()))?;
    match u64::from(longest) > most {
        true => Err(format!(
            "{}: a remap of {longest} sectors is more than one SHARE of this device: expected at most {most} \
             (ftl.share.batch)",
            trace.file()
        )),
        false => Ok(()),
    }
}

impl Plan {
    /// Jobs of a world with this seed.
    fn jobs(&self, seed: u64) -> Vec<JobSetup> {
        match self {
            Self::Fio(specs, zones) => {
                let reported = reported(specs);
                let zones = zones.map(|(count, blocks, unit)| Zones::new(count, blocks, unit));
                let workload = |spec: &JobSpec| -> Box<dyn Workload> {
                    let job = FioJob::new(spec.clone(), seed);
                    match &zones {
                        Some(zones) => Box::new(Zoned::new(job, zones)),
                        None => Box::new(job),
                    }
                };
                let setup = |(spec, (report_group, name)): (&JobSpec, (u32, String))| JobSetup {
                    name,
                    options: options::options(spec),
                    group: spec.stonewall_group,
                    ramp: spec.ramp,
                    report_group,
                    stats: spec.stats,
                    workload: workload(spec),
                };
                specs.iter().zip(reported).map(setup).collect()
            }
            Self::Trace { trace, config, replay } => {
                let name = std::path::Path::new(trace.file()).file_stem();
                let name = name.map_or("replay".into(), |name| name.to_string_lossy().into_owned());
                let options = options::replay_options(trace, config);
                let setup = match (**replay).clone() {
                    Fitted::Anywhere(replay) => JobSetup::new(name, replay),
                    Fitted::Zoned(replay) => JobSetup::new(name, replay),
                };
                vec![JobSetup { options, ..setup }]
            }
        }
    }

    /// Planned length of a run.
    fn extent(&self) -> Extent {
        match self {
            Self::Fio(specs, _) => {
                let groups: Vec<u32> = specs.iter().map(|spec| spec.stonewall_group).collect();
                let last = groups.iter().copied().max().unwrap_or(0);
                let time = |group| {
                    let jobs = specs.iter().filter(|spec| spec.stonewall_group == group);
                    let times = jobs.map(|spec| {
                        let begin = spec.start_delay.1.saturating_add(spec.ramp);
                        Some(begin.saturating_add(spec.limits.runtime?))
                    });
                    // A job without a time makes the whole unknown.
                    let times: Option<Vec<_>> = times.collect();
                    times.map(|times| times.into_iter().max().unwrap_or(Duration::ZERO))
                };
                Extent {
                    time: (0..=last).map(time).sum(),
                    requests: specs.iter().map(planned_requests).sum(),
                }
            }
            Self::Trace { trace, config, .. } => {
                let requests = trace.records().len() as u64 * u64::from(config.repeat);
                let scale = |factor: f64| {
                    let ns = trace.duration().as_nanos() as f64 * f64::from(config.repeat) * factor;
                    Duration::from_nanos(ns as u64)
                };
                let time = match config.timing {
                    Timing::Original => Some(scale(1.0)),
                    Timing::Scaled(factor) => Some(scale(factor)),
                    Timing::Closed(_) => None,
                };
                Extent { time, requests: Some(requests) }
            }
        }
    }

    /// Interval of the series: so short that the steadiness of a run of the planned length can be judged.
    fn interval(&self) -> Duration {
        let shortest = match self {
            Self::Fio(specs, _) => specs.iter().filter_map(|spec| spec.limits.runtime).min(),
            Self::Trace { .. } => self.extent().time,
        };
        shortest.map_or(INTERVAL_UNKNOWN, |shortest| (shortest / INTERVALS).clamp(INTERVAL_MIN, INTERVAL_MAX))
    }
}

/// Number of requests that a job makes unless a time limit ends it earlier, without flushes.
fn planned_requests(spec: &JobSpec) -> Option<u64> {
    let used = spec.sizes.iter().map(mean_blocks).fold(0.0, f64::max);
    let by_size = spec.limits.blocks.map(|blocks| (blocks as f64 / used.max(1.0)) as u64);
    by_size.into_iter().chain(spec.limits.requests).min()
}

fn mean_blocks(sizes: &Sizes) -> f64 {
    match sizes {
        Sizes::Fixed(blocks) => f64::from(*blocks),
        Sizes::Range { min, max } => f64::from(min + max) / 2.0,
        Sizes::Split(parts) => {
            parts.iter().map(|(blocks, share)| f64::from(*blocks) * f64::from(*share) / 100.0).sum()
        }
    }
}

/// Number and name of the report's entry for each job. Names differ, because tables and comparisons find jobs by
/// name: clones that are reported one by one are numbered, and so are jobs of the same name.
pub(crate) fn reported(specs: &[JobSpec]) -> Vec<(u32, String)> {
    let mut entries: Vec<(Option<u32>, String)> = Vec::new();
    let mut taken: BTreeMap<String, u32> = BTreeMap::new();
    let mut places = Vec::new();
    for spec in specs {
        let group = spec.group_reporting.then_some(spec.report_group);
        let found = entries.iter().position(|(other, _)| group.is_some() && *other == group);
        let at = found.unwrap_or_else(|| {
            let is_clone = |other: &JobSpec| other.name == spec.name && other.clone > 0;
            let numbered = group.is_none() && specs.iter().any(is_clone);
            let name = if numbered { format!("{}.{}", spec.name, spec.clone) } else { spec.name.clone() };
            let seen = taken.entry(name.clone()).or_insert(0);
            *seen += 1;
            entries.push((group, if *seen == 1 { name } else { format!("{name}#{seen}") }));
            entries.len() - 1
        });
        places.push(at);
    }
    places.into_iter().map(|at| (at as u32, entries[at].1.clone())).collect()
}
