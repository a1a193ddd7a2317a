//! A device, a file system behind a block layer, and SQLite on it: what transactions cost.
//!
//! Place in the data flow: a [`Setup`] becomes a stack of the laboratory; [`run`] gives what SQLite and the device did.
//!
//! Invariants: a result is a function of the setup; counters are those of the measured time.
#![forbid(unsafe_code)]

use crate::guest::Phases;
use crate::host::{Guest, HostOptions};
use crate::order::Plan;
use crate::workload::{self, Measured, SqliteError, WorkloadOptions};
use flashweir_core::Duration;
use flashweir_core::executor::Handle;
use flashweir_device::config::DeviceConfig;
use flashweir_device::{Device, DeviceOptions};
use flashweir_fs::Mode;
use flashweir_fs::vfs::{Creds, Fs as _, MountOptions, Vfs};
use flashweir_host::{HostConfig, HostFtlConfig};
use flashweir_lab::files::{Counters, FilesError};
use flashweir_sim::host_ftl::Disk;
use flashweir_sim::measure::{DeviceTotals, TraceHash, WorkloadResult};
use flashweir_sim::stack::{FlushMode, Port, Stack};
use flashweir_sim::volume::{MakeOptions, make};
use serde::{Deserialize, Serialize};
use std::cell::RefCell;
use std::collections::BTreeMap;
use std::fmt;
use std::rc::Rc;

/// Configuration of a run.
#[derive(Clone, Debug)]
pub struct Setup {
    /// The device, which is empty at first.
    pub device: DeviceConfig,
    /// Treatment of flushes.
    pub flush: FlushMode,
    /// The host FTL below the block layer, if there is one.
    pub host_ftl: Option<HostFtlConfig>,
    /// The file system, which is behind a block layer as Linux's. Barriers need its dual mode.
    pub mode: Mode,
    /// Page cache and host costs.
    pub mount: MountOptions,
    /// How SQLite keeps its promises.
    pub plan: Plan,
    /// The transactions.
    pub workload: WorkloadOptions,
    /// Seed of all randomness.
    pub seed: u64,
    /// Length of an interval of the series.
    pub interval: Duration,
}

/// Calls of one kind.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct PhaseResult {
    /// Which file, and for what: `journal`, `journal's end`, `database`, `log`, …
    pub what: String,
    /// Such as `write` or `fdatabarrier`.
    pub call: String,
    /// Calls.
    pub calls: u64,
    /// Their time together, in nanoseconds.
    pub total_ns: u64,
    /// The longest one.
    pub max_ns: u64,
}

/// Result of a run.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct SqliteResult {
    /// Name of the device.
    pub device: String,
    /// Treatment of flushes: FLUSH, RFLUSH or NOFLUSH.
    pub flush: String,
    /// The file system and how it was mounted.
    pub format: String,
    /// How SQLite kept its promises.
    pub plan: Plan,
    /// The transactions.
    pub options: WorkloadOptions,
    /// Virtual time at which the database was there and the ramp was over.
    pub prepared_ns: u64,
    /// Latencies of transactions.
    pub workload: WorkloadResult,
    /// Calls of SQLite in the measured time, the ones that took most of it first.
    pub phases: Vec<PhaseResult>,
    /// Totals of the device in the measured time.
    pub totals: DeviceTotals,
    /// Counters of device, vfs and file system in the measured time.
    pub metrics: BTreeMap<String, u64>,
    /// Hash of everything that the device did.
    pub trace_hash: TraceHash,
}

impl SqliteResult {
    /// Transactions.
    pub fn transactions(&self) -> u64 {
        self.workload.sum(&[]).calls
    }

    /// Transactions in a second of virtual time.
    pub fn transactions_per_s(&self) -> f64 {
        self.workload.calls_per_s(&self.workload.sum(&[]))
    }
}

/// Why there is no result.
#[derive(Clone, Debug, PartialEq)]
pub enum RunError {
    /// The volume, or everything waits for ever.
    Files(FilesError),
    /// SQLite gave up.
    Sqlite(SqliteError),
}

impl fmt::Display for RunError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Files(error) => error.fmt(f),
            Self::Sqlite(error) => error.fmt(f),
        }
    }
}

impl std::error::Error for RunError {}

impl From<FilesError> for RunError {
    fn from(error: FilesError) -> Self {
        Self::Files(error)
    }
}

impl From<SqliteError> for RunError {
    fn from(error: SqliteError) -> Self {
        Self::Sqlite(error)
    }
}

/// Moments between two questions whether to go on.
const MOMENTS: u32 = 1 << 14;

/// Runs a setup. `goes_on` is asked now and then; if it says no, there is no result.
///
/// # Errors
/// See [`RunError`].
pub fn run(setup: &Setup, goes_on: &mut dyn FnMut() -> bool) -> Result<Option<SqliteResult>, RunError> {
    let options = DeviceOptions { seed: setup.seed, track_contents: true, planted: None };
    let device = Device::new(setup.device.clone(), options);
    let disk = Disk::new(device, setup.host_ftl.as_ref());
    let mut stack = Stack::above(disk, setup.flush, Some(HostConfig::default()));
    let running = stack.spawn_for(task(setup.clone(), stack.port(), stack.handle()));
    while !running.is_set() {
        for _ in 0..MOMENTS {
            if running.is_set() {
                break;
            }
            if !stack.turn() {
                return Err(FilesError::Stuck.into());
            }
        }
        if !goes_on() {
            return Ok(None);
        }
    }
    let Done { measured, phases, earlier, later } = running.take().ok_or(FilesError::Stuck)??;
    let metrics = later.since(&earlier);
    let mut phases: Vec<PhaseResult> = phases
        .into_iter()
        .map(|(phase, stats)| PhaseResult {
            what: phase.what.to_owned(),
            call: phase.call.to_owned(),
            calls: stats.calls,
            total_ns: stats.total_ns,
            max_ns: stats.max_ns,
        })
        .collect();
    phases.sort_by(|a, b| {
        b.total_ns.cmp(&a.total_ns).then_with(|| (&a.what, &a.call).cmp(&(&b.what, &b.call)))
    });
    let device = later.device.since(&earlier.device);
    Ok(Some(SqliteResult {
        device: setup.device.name.clone(),
        flush: setup.flush.name().to_owned(),
        format: setup.mode.describe(),
        plan: setup.plan,
        options: setup.workload,
        prepared_ns: earlier.at.as_nanos(),
        workload: WorkloadResult {
            name: setup.plan.journal_mode.name().to_owned(),
            seed: setup.seed,
            start_ns: measured.begin.as_nanos(),
            end_ns: measured.end.as_nanos(),
            interval_ns: setup.interval.as_nanos(),
            ended_early: None,
            calls: measured.calls,
        },
        phases,
        totals: DeviceTotals::of(&device, setup.device.geometry.unit_bytes.0),
        metrics,
        trace_hash: TraceHash(stack.trace_hash()),
    }))
}

/// Result of the measured part of a run.
struct Done {
    measured: Measured,
    phases: Phases,
    earlier: Counters,
    later: Counters,
}

async fn task(setup: Setup, port: Port, handle: Handle) -> Result<Done, RunError> {
    let fs = make(port.clone(), setup.flush, &setup.mode, MakeOptions::default())
        .await
        .map_err(FilesError::Volume)?;
    let epoch_seconds = setup.mount.epoch_seconds;
    let vfs = Vfs::mount(fs, handle.clone(), setup.mount).map_err(FilesError::Mount)?;
    let (plan, options, seed) = (setup.plan, setup.workload, setup.seed);
    plan.check(vfs.fs().has_barriers(), vfs.fs().has_sets()).map_err(SqliteError)?;
    let guest =
        Guest::new(vfs.process(Creds::ROOT), handle.clone(), HostOptions { plan, seed, epoch_seconds });
    guest.run(move |_| workload::prepare(&plan, &options, seed)).await?;
    vfs.sync_all().await.map_err(FilesError::Sync)?;
    let counted = Rc::new(RefCell::new([const { None }; 2]));
    let (told, of) = (Rc::clone(&counted), guest.clone());
    guest.on_mark(move |mark| {
        let place = match mark {
            workload::BEGUN => 0,
            workload::ENDED => 1,
            _ => return,
        };
        told.borrow_mut()[place] = Some((of.take_phases(), Counters::now(&port, &vfs, handle.now())));
    });
    let interval = setup.interval;
    let measured = guest.run(move |clock| workload::work(clock, &plan, &options, seed, interval)).await?;
    let [Some((_, earlier)), Some((phases, later))] = counted.take() else {
        unreachable!("the work says when measuring begins and ends")
    };
    Ok(Done { measured, phases, earlier, later })
}
