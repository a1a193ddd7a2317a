//! Workloads on files: a device, a file system on it, and several workloads on that file system at once, in virtual time.
//!
//! Place in the data flow: a [`Setup`] becomes a [`Stack`]; the volume is made and mounted, each workload creates its files,
//! then all of them run side by side; [`run`] returns the results of each of them and of the device.
//!
//! Invariants: a result is a function of the setup. Workloads start together, when the files of all of them exist and are
//! durable; the counters of device and vfs are those of the measured time, which begins with that of the first workload.
//!
//! Deliberately absent: several devices or volumes in one stack, and unmounting: the stack is dropped after a run, or loses its power.

use crate::experiment::reported;
use flashweir_core::executor::{Handle, Sender, oneshot};
use flashweir_core::metrics::{self, Metric};
use flashweir_core::{Duration, Instant};
use flashweir_db::Db;
use flashweir_device::config::DeviceConfig;
use flashweir_device::{Device, DeviceMetrics, DeviceOptions, NandMetrics};
use flashweir_fs::ext4::Ext4Options;
use flashweir_fs::order::CommitMode;
use flashweir_fs::vfs::{
    ConfigError, Creds, Errno, Fs as _, MountOptions, PAGE_BYTES, Process, Vfs, VfsMetrics,
};
use flashweir_fs::{AnyFs, Kind, Mode, Mounted as _};
use flashweir_host::{HostConfig, HostFtlConfig, HostFtlMetrics};
use flashweir_sim::host_ftl::Disk;
use flashweir_sim::live::Tear;
use flashweir_sim::measure::{DeviceTotals, Distribution, JobResult, TraceHash, WorkloadResult};
use flashweir_sim::stack::{FlushMode, Port, Slot, Stack};
use flashweir_sim::volume::{MakeOptions, VolumeError, make, mount_on};
use flashweir_workload::filebench::{self, Filebench, Model, RunError};
use flashweir_workload::fio::on_files::{self, FileJobError};
use flashweir_workload::fio::{FileJob, JobSpec};
use flashweir_workload::oltp::linkbench::{LinkBench, LinkBenchOptions};
use flashweir_workload::oltp::sysbench::{Sysbench, SysbenchOptions};
use flashweir_workload::oltp::tpcc::{Tpcc, TpccOptions};
use flashweir_workload::oltp::{OltpError, RunOptions};
use flashweir_workload::postmark::{self, Postmark};
use serde::{Deserialize, Serialize};
use std::cell::Cell;
use std::collections::BTreeMap;
use std::fmt;
use std::num::NonZeroU32;
use std::rc::Rc;

/// Configuration of a run.
#[derive(Clone, Debug)]
pub struct Setup {
    /// The device, which begins empty.
    pub device: DeviceConfig,
    /// Kind of flush that syncs send to the device.
    pub flush: FlushMode,
    /// The file system.
    pub mode: Mode,
    /// The block layer between it and the device, if there is one.
    pub block_layer: Option<HostConfig>,
    /// The host FTL between that and the device, if there is one.
    pub host_ftl: Option<HostFtlConfig>,
    /// Page cache and host costs.
    pub mount: MountOptions,
    /// The workloads, each with a name of its own.
    pub workloads: Vec<(String, Work)>,
    /// Seed of all randomness.
    pub seed: u64,
    /// Length of an interval of the series.
    pub interval: Duration,
    /// Time at the start that is not measured.
    pub ramp: Duration,
    /// Measured time, which replaces the workloads' own.
    pub runtime: Option<Duration>,
    /// Whether filebench opens all files with direct I/O, past the page cache.
    pub is_direct: bool,
    /// How the volume is made.
    pub volume: MakeOptions,
    /// Whether a file that fills most of the volume is written and deleted first, so that the flash has no block that was never programmed.
    pub is_aged: bool,
    /// Bytes of a file that is made before those of the workloads, and that nobody touches.
    pub ballast_bytes: u64,
    /// Whether filebench opens files that it writes as atomic files.
    pub is_atomic: bool,
    /// Whether the power is cut at the end, and the volume mounted again.
    pub is_cut: bool,
}

/// A workload on files.
#[derive(Clone, Debug)]
pub enum Work {
    /// The jobs of a fio job file.
    Fio(Vec<FileJob>),
    /// A model of filebench.
    Filebench(Model),
    /// A TPC-C-like mix, with its database in a directory of the workload's name. Name, seed, interval, ramp and time come
    /// from the setup.
    Tpcc(TpccOptions),
    /// A LinkBench-like mix; likewise.
    LinkBench(LinkBenchOptions),
    /// A script of sysbench; likewise.
    Sysbench(SysbenchOptions),
    /// A script of Postmark; likewise.
    Postmark(postmark::Options),
}

/// Result of a run.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct FilesResult {
    /// Name of the device.
    pub device: String,
    /// Kind of flush that syncs sent: FLUSH, RFLUSH or NOFLUSH.
    pub flush: String,
    /// Mount options of ext4; `None` if the file system was F2FS.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub ext4: Option<Ext4Options>,
    /// Commit mode of F2FS, if it ran on a block layer.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub f2fs: Option<CommitMode>,
    /// Seed of all randomness.
    pub seed: u64,
    /// Virtual time at which the files were ready.
    pub prepared_ns: u64,
    /// Length of the measured time.
    pub measured_ns: u64,
    /// Number of CPUs of the host; `None` if there is no limit.
    pub cpus: Option<NonZeroU32>,
    /// Result of each workload, with fio's jobs one by one.
    pub workloads: Vec<WorkloadResult>,
    /// Totals of the device in the measured time.
    pub totals: DeviceTotals,
    /// Counters of device, vfs, file system and databases in the measured time, by name.
    pub metrics: BTreeMap<String, u64>,
    /// Latencies of the writes that the disk answered in the measured time; a block layer belongs to the disk.
    #[serde(default)]
    pub disk_writes: Distribution,
    /// Hash of all that the device did.
    pub trace_hash: TraceHash,
    /// What came after the power cut, if there was one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub after_cut: Option<AfterCut>,
}

/// The way back from a power cut, in virtual time.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct AfterCut {
    /// Time that the device needed until it took commands.
    pub device_ns: u64,
    /// Pages that it read in that time.
    pub device_pages_read: u64,
    /// Time that the file system needed then, until files could be used.
    pub mount_ns: u64,
    /// Pages of 4 KiB that the volume says are in use.
    pub used_pages: u64,
}

impl FilesResult {
    /// Mean number of busy CPUs of the host in the measured time.
    pub fn cpus_busy(&self) -> f64 {
        self.metrics["vfs.cpu_busy_ns"] as f64 / self.measured_ns.max(1) as f64
    }
}

/// Reason why there is no result.
#[derive(Clone, Debug, PartialEq)]
pub enum FilesError {
    /// The volume cannot be made or mounted.
    Volume(VolumeError),
    /// The mount options are out of their range.
    Mount(ConfigError),
    /// A fio job.
    Fio(FileJobError),
    /// A model of filebench.
    Filebench {
        /// The workload.
        name: String,
        /// The fault.
        error: RunError,
    },
    /// A mix of transactions.
    Oltp {
        /// The workload.
        name: String,
        /// The fault.
        error: OltpError,
    },
    /// A script of Postmark.
    Postmark {
        /// The workload.
        name: String,
        /// The fault.
        error: postmark::RunError,
    },
    /// The file that ages the volume cannot be written and deleted.
    Aging(Errno),
    /// The ballast cannot be written.
    Ballast(Errno),
    /// Atomic files are asked for, and the file system has none.
    NoAtomicFiles,
    /// The files cannot be made durable.
    Sync(Errno),
    /// All tasks wait for something that never happens: a bug of ours.
    Stuck,
}

impl fmt::Display for FilesError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Volume(error) => error.fmt(f),
            Self::Mount(error) => error.fmt(f),
            Self::Fio(error) => error.fmt(f),
            Self::Filebench { name, error } => write!(f, "{name}: {error}"),
            Self::Oltp { name, error } => write!(f, "{name}: {error}"),
            Self::Postmark { name, error } => write!(f, "{name}: {error}"),
            Self::Aging(errno) => write!(f, "the volume cannot be aged: {errno}"),
            Self::Ballast(errno) => write!(f, "the ballast cannot be written: {errno}"),
            Self::NoAtomicFiles => f.write_str(
                "--atomic-files needs a file system with atomic files: expected ext4 that journals data, or either format on a \
                 device with SHARE",
            ),
            Self::Sync(errno) => write!(f, "the files cannot be made durable: {errno}"),
            Self::Stuck => f.write_str("the workloads wait for something that never comes"),
        }
    }
}

impl std::error::Error for FilesError {}

impl From<VolumeError> for FilesError {
    fn from(error: VolumeError) -> Self {
        Self::Volume(error)
    }
}

/// Part of the free space, in per cent, that aging fills.
const AGED_PERCENT: u64 = 95;

/// Turns of the stack between two reports of progress.
const MOMENTS: u32 = 1 << 14;

/// Runs a setup. `progress` gets the fraction that is done, once it is known, and returns whether to continue; if it returns
/// false, there is no result.
///
/// # Errors
/// See [`FilesError`].
pub fn run(
    setup: &Setup,
    progress: &mut dyn FnMut(Option<f64>) -> bool,
) -> Result<Option<FilesResult>, FilesError> {
    let options = DeviceOptions { seed: setup.seed, track_contents: true, planted: None };
    let device = Device::new(setup.device.clone(), options);
    let disk = Disk::new(device, setup.host_ftl.as_ref());
    let mut stack = Stack::above(disk, setup.flush, setup.block_layer.clone());
    let preparing = stack.spawn_for(prepare(setup.clone(), stack.port(), stack.handle()));
    while !preparing.is_set() {
        go_on(&mut stack, || preparing.is_set())?;
        if !progress(None) {
            return Ok(None);
        }
    }
    let (vfs, ready) = preparing.take().ok_or(FilesError::Stuck)??;
    let dbs: Vec<Db<AnyFs>> = ready.iter().filter_map(Ready::db).collect();
    let start = stack.now();
    let (begin, end) = measured(&ready, start, setup);
    let (port, handle) = (stack.port(), stack.handle());
    let (sender, receiver) = oneshot();
    let begins: Begins = Rc::new(Cell::new(Some(sender)));
    begin.into_iter().for_each(|at| tell(&begins, at));
    let (vfs_then, dbs_then) = (vfs.clone(), dbs.clone());
    let earlier = stack.spawn_for(async move {
        let at = receiver.await.ok()?;
        handle.sleep_until(at).await;
        port.measure_writes();
        Some(Counters::now(&port, &vfs_then, at).with(&dbs_then))
    });
    let later = end
        .map(|at| stack.spawn_for(Counters::at(at, stack.port(), vfs.clone(), dbs.clone(), stack.handle())));
    let mut running = Vec::new();
    for work in ready {
        let run = work.run(setup.clone(), vfs.clone(), stack.handle(), Rc::clone(&begins));
        running.push(stack.spawn_for(run));
    }
    while !running.iter().all(Slot::is_set) {
        go_on(&mut stack, || running.iter().all(Slot::is_set))?;
        let done = |end: Instant| stack.now().min(end).since(start).as_nanos() as f64;
        if !progress(end.map(|end| done(end) / end.since(start).as_nanos().max(1) as f64)) {
            return Ok(None);
        }
    }
    let (mut workloads, mut rests) = (Vec::new(), Vec::new());
    for result in &running {
        let (results, rest) = result.take().ok_or(FilesError::Stuck)??;
        workloads.extend(results);
        rests.extend(rest);
    }
    // If the workloads ended early, the counters are those of now.
    let now = Counters::now(&stack.port(), &vfs, stack.now()).with(&dbs);
    let later = later.and_then(|later| later.take()).unwrap_or(now);
    let earlier = earlier.take().flatten().unwrap_or_else(|| later.clone());
    // What still waits for its time counts no more.
    for rest in rests {
        let ending = stack.spawn_for(rest.clean_up());
        while !ending.is_set() {
            go_on(&mut stack, || ending.is_set())?;
            if !progress(None) {
                return Ok(None);
            }
        }
        ending.take().ok_or(FilesError::Stuck)??;
    }
    let device = later.device.since(&earlier.device);
    let (metrics, kind) = (later.since(&earlier), setup.mode.kind);
    let (prepared, trace_hash) = (start, TraceHash(stack.trace_hash()));
    drop((running, dbs, vfs));
    let after_cut = if setup.is_cut { Some(after_cut(stack, options, setup)?) } else { None };
    Ok(Some(FilesResult {
        device: setup.device.name.clone(),
        flush: setup.flush.name().to_owned(),
        ext4: (kind == Kind::Ext4).then(|| setup.mode.ext4.clone()),
        f2fs: (kind == Kind::F2fs && setup.block_layer.is_some()).then(|| setup.mode.commit_mode()),
        seed: setup.seed,
        prepared_ns: prepared.as_nanos(),
        measured_ns: later.at.since(earlier.at).as_nanos(),
        cpus: setup.mount.costs.cpus,
        workloads,
        totals: DeviceTotals::of(&device, setup.device.geometry.unit_bytes.0),
        metrics,
        disk_writes: later.disk_writes,
        trace_hash,
        after_cut,
    }))
}

/// Gets the time at which the first workload begins to measure, unless it is known.
type Begins = Rc<Cell<Option<Sender<Instant>>>>;

fn tell(begins: &Begins, at: Instant) {
    if let Some(sender) = begins.take() {
        let _ = sender.send(at);
    }
}

/// Returns the time at which the first workload begins to measure, if it does not begin behind a stonewall, and the time at which the last
/// one ends if all of them are measured for a given time that does not depend on another one.
fn measured(ready: &[Ready], start: Instant, setup: &Setup) -> (Option<Instant>, Option<Instant>) {
    let mut begins = Vec::new();
    let mut is_planned = true;
    for work in ready {
        let Ready::Fio(jobs) = work else {
            begins.push(start + setup.ramp);
            continue;
        };
        let first = jobs.iter().map(|job| job.spec.stonewall_group).min();
        let (jobs, later): (Vec<_>, Vec<_>) =
            jobs.iter().partition(|job| Some(job.spec.stonewall_group) == first);
        is_planned &= later.is_empty();
        let counted = jobs.iter().filter(|job| job.spec.stats);
        begins.extend(counted.map(|job| on_files::measured_from(job, start, setup.seed)));
    }
    let (first, last) = (begins.iter().min().copied(), begins.into_iter().max());
    let end = last.zip(setup.runtime).filter(|_| is_planned).map(|(last, runtime)| last + runtime);
    (first, end)
}

/// Cuts the power, and mounts the volume again.
fn after_cut(stack: Stack, options: DeviceOptions, setup: &Setup) -> Result<AfterCut, FilesError> {
    let (mut stack, report) = stack.cut(options, Tear::Likeliest);
    let (port, handle, mount) = (stack.port(), stack.handle(), setup.mount.clone());
    let (flush, mode) = (setup.flush, setup.mode.clone());
    let mounted = stack.block_on(async move {
        let fs = mount_on(Rc::new(port), flush, &mode).await?;
        let at = handle.now();
        let vfs = Vfs::mount(fs, handle, mount).map_err(FilesError::Mount)?;
        let room = vfs.statfs().await.map_err(FilesError::Sync)?;
        Ok::<_, FilesError>((at, room.pages - room.pages_free))
    });
    let (at, used_pages) = mounted.ok_or(FilesError::Stuck)??;
    Ok(AfterCut {
        device_ns: report.time.as_nanos(),
        device_pages_read: report.pages_read,
        mount_ns: at.as_nanos(),
        used_pages,
    })
}

/// Takes some turns of the stack, until `is_done` at the latest.
fn go_on(stack: &mut Stack, is_done: impl Fn() -> bool) -> Result<(), FilesError> {
    for _ in 0..MOMENTS {
        if is_done() {
            break;
        }
        if !stack.turn() {
            return Err(FilesError::Stuck);
        }
    }
    Ok(())
}

/// Counters at an instant.
#[derive(Clone, Debug)]
pub struct Counters {
    /// The instant.
    pub at: Instant,
    /// Counters of the device.
    pub device: DeviceMetrics,
    host_ftl: Option<HostFtlMetrics>,
    nand: NandMetrics,
    vfs: VfsMetrics,
    fs: (&'static str, Vec<Metric>),
    /// Counters of the databases together, if there are some.
    dbs: Vec<Metric>,
    /// Latencies of the writes that were measured until then.
    disk_writes: Distribution,
}

impl Counters {
    async fn at(at: Instant, port: Port, vfs: Vfs<AnyFs>, dbs: Vec<Db<AnyFs>>, handle: Handle) -> Self {
        handle.sleep_until(at).await;
        Self::now(&port, &vfs, at).with(&dbs)
    }

    /// The same, with the counters of these databases.
    fn with(mut self, dbs: &[Db<AnyFs>]) -> Self {
        for db in dbs {
            let metrics = db.metrics();
            match &mut self.dbs[..] {
                [] => self.dbs = metrics.list().to_vec(),
                sums => sums.iter_mut().zip(metrics.list()).for_each(|(sum, one)| sum.value += one.value),
            }
        }
        self
    }

    /// Counters of now, which is `at`.
    pub fn now(port: &Port, vfs: &Vfs<AnyFs>, at: Instant) -> Self {
        let (device, nand) = (port.device_metrics(), port.with_device(|device| *device.nand_metrics()));
        let host_ftl = port.host_ftl_metrics();
        let fs = (vfs.fs().name(), vfs.fs().metrics());
        let disk_writes = port.write_latencies();
        Self { at, device, host_ftl, nand, vfs: vfs.metrics(), fs, dbs: Vec::new(), disk_writes }
    }

    /// Differences from `earlier`, by name.
    pub fn since(&self, earlier: &Self) -> BTreeMap<String, u64> {
        let mut all = BTreeMap::new();
        let of_ftl = self.host_ftl.zip(earlier.host_ftl).map(|(now, before)| now.since(&before).list());
        let lists = [
            ("host_ftl", of_ftl.unwrap_or_default()),
            ("device", self.device.since(&earlier.device).list().to_vec()),
            ("nand", self.nand.since(&earlier.nand).list().to_vec()),
            ("vfs", self.vfs.since(&earlier.vfs).list().to_vec()),
            (self.fs.0, metrics::since(&self.fs.1, &earlier.fs.1)),
            ("db", metrics::since(&self.dbs, &earlier.dbs)),
        ];
        for (prefix, list) in lists {
            all.extend(list.iter().map(|metric| (format!("{prefix}.{}", metric.name), metric.value)));
        }
        all
    }
}

/// A workload whose files are ready.
enum Ready {
    Fio(Vec<FileJob>),
    Filebench(String, Filebench<AnyFs>),
    Tpcc(String, Tpcc<AnyFs>),
    LinkBench(String, LinkBench<AnyFs>),
    Sysbench(String, Sysbench<AnyFs>),
    Postmark(String, Box<Postmark<AnyFs>>),
}

/// Makes and mounts the volume, and creates the files of all workloads.
async fn prepare(setup: Setup, port: Port, handle: Handle) -> Result<(Vfs<AnyFs>, Vec<Ready>), FilesError> {
    let fs = make(port, setup.flush, &setup.mode, setup.volume).await?;
    let vfs = Vfs::mount(fs, handle.clone(), setup.mount).map_err(FilesError::Mount)?;
    if setup.is_atomic && !vfs.fs().has_sets() {
        return Err(FilesError::NoAtomicFiles);
    }
    let process = vfs.process(Creds::ROOT);
    if setup.is_aged {
        age(&process).await.map_err(FilesError::Aging)?;
    }
    if setup.ballast_bytes > 0 {
        let made = on_files::make_file(&process, "/ballast", setup.ballast_bytes, true, 1).await;
        made.map_err(FilesError::Ballast)?;
        vfs.sync_all().await.map_err(FilesError::Ballast)?;
    }
    let oltp_run = |name: &str, run: RunOptions| RunOptions {
        name: name.to_owned(),
        seed: setup.seed,
        ramp: setup.ramp,
        interval: setup.interval,
        runtime: setup.runtime.unwrap_or(run.runtime),
        ..run
    };
    let mut ready = Vec::new();
    for (name, work) in setup.workloads {
        ready.push(match work {
            Work::Tpcc(options) => {
                let oltp = |error| FilesError::Oltp { name: name.clone(), error };
                let options = TpccOptions { run: oltp_run(&name, options.run), ..options };
                let dir = make_dir(&process, &name).await.map_err(oltp)?;
                let made = Tpcc::prepare(&process, handle.clone(), &dir, options).await;
                let made = made.map_err(oltp)?;
                Ready::Tpcc(name, made)
            }
            Work::LinkBench(options) => {
                let oltp = |error| FilesError::Oltp { name: name.clone(), error };
                let options = LinkBenchOptions { run: oltp_run(&name, options.run), ..options };
                let dir = make_dir(&process, &name).await.map_err(oltp)?;
                let made = LinkBench::prepare(&process, handle.clone(), &dir, options).await;
                let made = made.map_err(oltp)?;
                Ready::LinkBench(name, made)
            }
            Work::Postmark(options) => {
                let run = postmark::RunOptions {
                    name: name.clone(),
                    seed: setup.seed,
                    ramp: setup.ramp,
                    interval: setup.interval,
                    runtime: setup.runtime,
                };
                let made = Postmark::prepare(process.clone(), handle.clone(), options, run).await;
                let made = made.map_err(|error| FilesError::Postmark { name: name.clone(), error })?;
                Ready::Postmark(name, Box::new(made))
            }
            Work::Sysbench(options) => {
                let oltp = |error| FilesError::Oltp { name: name.clone(), error };
                let options = SysbenchOptions { run: oltp_run(&name, options.run), ..options };
                let dir = make_dir(&process, &name).await.map_err(oltp)?;
                let made = Sysbench::prepare(&process, handle.clone(), &dir, options).await;
                let made = made.map_err(oltp)?;
                Ready::Sysbench(name, made)
            }
            Work::Fio(mut jobs) => {
                for job in &mut jobs {
                    job.spec.ramp = job.spec.ramp.max(setup.ramp);
                    job.spec.limits.runtime = setup.runtime.or(job.spec.limits.runtime);
                    if setup.runtime.is_some() {
                        (job.spec.limits.blocks, job.spec.limits.requests) = (None, None);
                    }
                }
                on_files::prepare(&process, &jobs).await.map_err(FilesError::Fio)?;
                Ready::Fio(jobs)
            }
            Work::Filebench(model) => {
                let options = filebench::Options {
                    runtime: setup.runtime,
                    interval: setup.interval,
                    ramp: setup.ramp,
                    is_direct: setup.is_direct,
                    is_atomic: setup.is_atomic,
                    ..filebench::Options::new(&name, setup.seed)
                };
                let made = Filebench::prepare(Rc::new(model), process.clone(), handle.clone(), options).await;
                let error = |error| FilesError::Filebench { name: name.clone(), error };
                Ready::Filebench(name.clone(), made.map_err(error)?)
            }
        });
    }
    vfs.sync_all().await.map_err(FilesError::Sync)?;
    Ok((vfs, ready))
}

/// Writes a file that fills [`AGED_PERCENT`] of the free space, and deletes it. What was deleted is discarded when this returns.
async fn age(process: &Process<AnyFs>) -> Result<(), Errno> {
    const PATH: &str = "/aging";
    let pages = process.vfs().statfs().await?.pages_available * AGED_PERCENT / 100;
    on_files::make_file(process, PATH, pages * PAGE_BYTES as u64, true, 1).await?;
    process.vfs().sync_all().await?;
    process.unlink(PATH).await?;
    // What the first one deletes is discarded by the second one at the latest.
    process.vfs().sync_all().await?;
    process.vfs().sync_all().await
}

/// Creates a directory for a database.
async fn make_dir(process: &Process<AnyFs>, name: &str) -> Result<String, OltpError> {
    let dir = format!("/{name}");
    let made = process.mkdir(&dir, 0o755).await;
    made.map_err(|errno| OltpError::Directory { path: dir.clone(), errno }).map(|_| dir)
}

impl Ready {
    /// Returns its database, if it has one.
    fn db(&self) -> Option<Db<AnyFs>> {
        match self {
            Self::Fio(_) | Self::Filebench(..) | Self::Postmark(..) => None,
            Self::Tpcc(_, mix) => Some(mix.db().clone()),
            Self::LinkBench(_, mix) => Some(mix.db().clone()),
            Self::Sysbench(_, mix) => Some(mix.db().clone()),
        }
    }

    /// Returns what was measured, and what is still to be done then.
    async fn run(
        self,
        setup: Setup,
        vfs: Vfs<AnyFs>,
        handle: Handle,
        begins: Begins,
    ) -> Result<(Vec<WorkloadResult>, Option<Rest>), FilesError> {
        let of_mix = |name, result: Result<_, OltpError>| match result {
            Ok(result) => Ok(vec![result]),
            Err(error) => Err(FilesError::Oltp { name, error }),
        };
        let results = match self {
            Self::Fio(jobs) => {
                let process = vfs.process(Creds::ROOT);
                let begins = |at| tell(&begins, at);
                let results =
                    on_files::run(&process, &handle, &jobs, setup.seed, setup.interval, &begins).await;
                Ok(of_jobs(&jobs, results.map_err(FilesError::Fio)?, setup.seed))
            }
            Self::Filebench(name, model) => {
                let result = model.run().await.map_err(|error| FilesError::Filebench { name, error })?;
                Ok(vec![result])
            }
            Self::Tpcc(name, mix) => of_mix(name, mix.run().await),
            Self::LinkBench(name, mix) => of_mix(name, mix.run().await),
            Self::Sysbench(name, mix) => of_mix(name, mix.run().await),
            Self::Postmark(name, mut script) => match script.run().await {
                Ok(result) => return Ok((vec![result], Some(Rest(name, script)))),
                Err(error) => Err(FilesError::Postmark { name, error }),
            },
        };
        Ok((results?, None))
    }
}

/// Returns the results as the jobs want them reported: one by one, or those of a group together.
fn of_jobs(jobs: &[FileJob], results: Vec<JobResult>, seed: u64) -> Vec<WorkloadResult> {
    let specs: Vec<JobSpec> = jobs.iter().map(|job| job.spec.clone()).collect();
    let mut entries: BTreeMap<u32, Vec<JobResult>> = BTreeMap::new();
    for ((entry, name), (spec, result)) in reported(&specs).into_iter().zip(specs.iter().zip(results)) {
        if spec.stats {
            entries.entry(entry).or_default().push(JobResult { name, ..result });
        }
    }
    let merged = entries.values().filter_map(|jobs| JobResult::merge(jobs));
    merged.map(|job| WorkloadResult::of_job(job, seed)).collect()
}

/// A workload that cleans up, after the measurement.
struct Rest(String, Box<Postmark<AnyFs>>);

impl Rest {
    async fn clean_up(self) -> Result<(), FilesError> {
        let Self(name, script) = self;
        script.clean_up().await.map_err(|error| FilesError::Postmark { name, error })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use flashweir_core::Bytes;
    use flashweir_device::config::PersistPolicy;
    use flashweir_device::presets::preset;
    use flashweir_fs::ext4::{CheckpointBy, Journaling};
    use flashweir_fs::vfs::HostCosts;
    use flashweir_workload::filebench::{parse_model, personality};
    use flashweir_workload::fio::parse_job_file_on_files;
    use flashweir_workload::oltp::tpcc::Scale;

    fn setup(flush: FlushMode) -> Setup {
        let mut device = preset("rflush").unwrap();
        device.geometry.chips_per_channel = 2;
        device.buffer.capacity = Bytes::mib(16);
        let jobs = "[sync]\nrw=randwrite\nbs=4k\nsize=8m\ndirect=1\nfsync=8\n";
        let jobs = parse_job_file_on_files("sync.fio", jobs).unwrap().jobs;
        let set = [("nfiles", "100"), ("nthreads", "4"), ("dir", "/mail")];
        let mail = parse_model("varmail.f", personality("varmail").unwrap(), &set).unwrap();
        Setup {
            device,
            flush,
            mode: Mode::default(),
            block_layer: None,
            host_ftl: None,
            mount: MountOptions { costs: HostCosts::preset("server").unwrap(), ..MountOptions::default() },
            workloads: vec![("sync".into(), Work::Fio(jobs)), ("mail".into(), Work::Filebench(mail))],
            seed: 1,
            interval: Duration::from_millis(100),
            ramp: Duration::from_millis(100),
            runtime: Some(Duration::from_millis(300)),
            is_direct: false,
            volume: MakeOptions::default(),
            is_aged: false,
            ballast_bytes: 0,
            is_atomic: false,
            is_cut: false,
        }
    }

    #[test]
    fn workloads_run_side_by_side_and_repeat() {
        for flush in FlushMode::ALL {
            let result = run(&setup(flush), &mut |_| true).unwrap().unwrap();
            let names: Vec<&str> = result.workloads.iter().map(|workload| workload.name.as_str()).collect();
            assert_eq!(names, ["sync", "mail"]);
            for workload in &result.workloads {
                let total = workload.sum(&[]);
                assert!(total.calls > 20, "{}: {} calls", workload.name, total.calls);
                // fio's jobs open their files first.
                let begun = workload.start_ns - result.prepared_ns - 100_000_000;
                assert!(begun < 100_000, "{} begins {begun} ns late", workload.name);
            }
            assert_eq!(result.measured_ns, 300_000_000);
            let flushes =
                [result.totals.flushes, result.metrics["device.range_flushes"]].map(|count| count > 0);
            assert_eq!(flushes, [flush == FlushMode::Flush, flush == FlushMode::RangeFlush]);
            assert!(result.metrics["vfs.syncs"] > 0 && result.metrics["device.host_units_written"] > 0);
            assert_eq!(result.cpus, HostCosts::preset("server").unwrap().cpus);
            assert!(result.cpus_busy() > 0.0 && result.cpus_busy() <= 6.0, "{}", result.cpus_busy());
            assert_eq!(Ok(Some(result)), run(&setup(flush), &mut |_| true));
        }
    }

    /// A job's own delay and ramp are not in the counters, a group is one result, and a job without statistics is none.
    #[test]
    fn regression_jobs_say_when_the_counters_begin_and_what_is_reported() {
        let text = "[quiet]\nrw=write\nsize=4m\nstats=0\nbs=4k\nthinktime=10ms\n\
                    [all]\nnew_group\nrw=randwrite\nbs=4k\nsize=8m\ndirect=1\nnumjobs=2\ngroup_reporting\nstartdelay=150ms\nramp_time=100ms\n";
        let jobs = parse_job_file_on_files("all.fio", text).unwrap().jobs;
        let workloads = vec![("all".to_owned(), Work::Fio(jobs))];
        let setup = Setup { workloads, ramp: Duration::ZERO, ..setup(FlushMode::NoFlush) };
        let result = run(&setup, &mut |_| true).unwrap().unwrap();
        let names: Vec<&str> = result.workloads.iter().map(|workload| workload.name.as_str()).collect();
        assert_eq!((names, result.measured_ns), (vec!["all"], 300_000_000));
        let (written, calls) =
            (result.metrics["device.host_units_written"], result.workloads[0].sum(&[]).calls);
        assert!(calls > 1000 && written.abs_diff(calls) < calls / 20, "{written} units, {calls} calls");
        // What is measured may begin behind a stonewall.
        let text = "[fill]\nrw=write\nsize=32m\nbs=64k\nstats=0\ndirect=1\nend_fsync=1\n\
                    [measured]\nstonewall\nrw=randwrite\nbs=4k\nsize=8m\ndirect=1\nnumber_ios=500\n";
        let jobs = parse_job_file_on_files("two.fio", text).unwrap().jobs;
        let setup = Setup { workloads: vec![("two".to_owned(), Work::Fio(jobs))], runtime: None, ..setup };
        let written = run(&setup, &mut |_| true).unwrap().unwrap().metrics["device.host_units_written"];
        assert!((450..600).contains(&written), "{written} units");
    }

    /// A script of Postmark does as many transactions as it says, on F2FS and on ALFS alike.
    #[test]
    fn a_script_of_postmark_runs_to_its_end() {
        let script = "set size 2000 30000\nset number 60\nset transactions 400\nset subdirectories 3\nrun\n";
        let script = postmark::parse("mail.pmrc", script).unwrap().unwrap();
        let calls = |mode: Mode, device: DeviceConfig| {
            let workloads = vec![("mail".into(), Work::Postmark(script.clone()))];
            let (ramp, runtime) = (Duration::ZERO, None);
            let setup = Setup { workloads, mode, device, ramp, runtime, ..setup(FlushMode::Flush) };
            let result = run(&setup, &mut |_| true).unwrap().unwrap();
            let of = |name: &str| result.workloads[0].call(name).map_or(0, |call| call.calls);
            [of("read") + of("append"), of("create") + of("delete"), of("create")]
        };
        let f2fs = calls(Mode::default(), setup(FlushMode::Flush).device);
        let alfs = calls(Kind::Alfs.into(), preset("amf").unwrap());
        assert_eq!(f2fs, alfs);
        // An append to a file that is full is none.
        assert!(
            (380..=400).contains(&f2fs[0]) && f2fs[1] == 400 && (150..250).contains(&f2fs[2]),
            "{f2fs:?}"
        );
    }

    #[test]
    fn the_same_workloads_run_on_ext4_by_waiting_and_by_order() {
        let mut flushes = Vec::new();
        for (commit_mode, journaling) in [
            (CommitMode::Legacy, Journaling::Ordered),
            (CommitMode::Legacy, Journaling::Journal),
            (CommitMode::DualMode, Journaling::Ordered),
        ] {
            let mut setup = setup(FlushMode::Flush);
            setup.device.order.policy = PersistPolicy::InOrderRecovery;
            let options = Ext4Options { commit_mode, journaling, ..Ext4Options::default() };
            setup.mode = options.clone().into();
            setup.block_layer = Some(HostConfig::default());
            let result = run(&setup, &mut |_| true).unwrap().unwrap();
            for workload in &result.workloads {
                assert!(workload.sum(&[]).calls > 20, "{}: {options:?}", workload.name);
            }
            let metric = |name: &str| result.metrics[name];
            assert!(metric("ext4.commits") > 0 && metric("ext4.fsyncs_by_commit") > 0, "{options:?}");
            assert!(result.metrics.keys().all(|name| !name.starts_with("f2fs.")));
            assert_eq!(result.ext4, Some(options));
            flushes.push(metric("device.flushes") as f64 / metric("ext4.commits") as f64);
            assert_eq!(Ok(Some(result)), run(&setup, &mut |_| true));
        }
        assert!(flushes[2] < flushes[0], "flushes for each commit: {flushes:?}");
    }

    /// A sync of a job with atomic files commits all of them together, and an fsync of a model one file; without SHARE or a journal of
    /// data they are refused in one sentence.
    #[test]
    fn jobs_and_models_commit_atomic_files() {
        let jobs = "[sets]\nrw=randwrite\nbs=4k\nnrfiles=3\nfilesize=1m\nfsync=8\nend_fsync=1\natomic_files=1\nnumber_ios=400\n";
        let with = |workload: (String, Work), journaling, is_atomic| {
            let mut setup = setup(FlushMode::Flush);
            setup.device.ftl.share.pages = 4096;
            let checkpoint_by = CheckpointBy::Share;
            let mode = Ext4Options { journaling, checkpoint_by, ..Ext4Options::default() }.into();
            let (workloads, block_layer) = (vec![workload], Some(HostConfig::default()));
            Setup { workloads, mode, block_layer, is_atomic, ..setup }
        };
        let mail = setup(FlushMode::Flush).workloads.remove(1);
        for journaling in [Journaling::Journal, Journaling::Ordered] {
            let syncs_beside_flushes = [true, false].map(|is_atomic| {
                let mut jobs = parse_job_file_on_files("sets.fio", jobs).unwrap().jobs;
                jobs[0].is_atomic &= is_atomic;
                let setup = with(("sets".into(), Work::Fio(jobs)), journaling, false);
                let setup = Setup { ramp: Duration::ZERO, runtime: None, ..setup };
                let result = run(&setup, &mut |_| true).unwrap().unwrap();
                let flushes = result.workloads[0].call("flush").map_or(0, |call| call.calls);
                assert_eq!(flushes, 400 / 8, "the last one is that of the end");
                result.metrics["vfs.syncs"] - flushes
            });
            assert_eq!(syncs_beside_flushes, [0, 2], "the last sync is one set, or three files");
            let [atomic, plain] = [true, false].map(|is_atomic| {
                let result = run(&with(mail.clone(), journaling, is_atomic), &mut |_| true).unwrap().unwrap();
                assert!(result.workloads[0].sum(&["fsync"]).calls > 20, "{result:?}");
                result.trace_hash
            });
            assert_ne!(atomic, plain, "{journaling:?}");
        }
        let mut without = with(mail, Journaling::Ordered, true);
        without.device.ftl.share.pages = 0;
        without.mode = Ext4Options::default().into();
        assert_eq!(run(&without, &mut |_| true), Err(FilesError::NoAtomicFiles));
    }

    /// F2FS on the same block layer. In dual mode its fsyncs wait for less, so that workloads do more with range flushes. With FLUSH
    /// they do less: a caller that comes during a shared flush waits for the next one, while legacy mode sends one for each caller.
    #[test]
    fn the_same_workloads_run_on_f2fs_by_waiting_and_by_order() {
        for flush in [FlushMode::Flush, FlushMode::RangeFlush] {
            let mut calls = Vec::new();
            for commit_mode in [CommitMode::Legacy, CommitMode::DualMode] {
                let mut setup = setup(flush);
                setup.device.order.policy = PersistPolicy::InOrderRecovery;
                setup.mode = Mode::default().committing(commit_mode);
                setup.block_layer = Some(HostConfig::default());
                let result = run(&setup, &mut |_| true).unwrap().unwrap();
                assert_eq!((&result.ext4, result.f2fs), (&None, Some(commit_mode)));
                assert!(result.metrics["f2fs.fsyncs_by_nodes"] > 0, "{flush:?} {commit_mode:?}");
                let is_ordered = result.metrics["device.ordered_units"] > 0;
                assert_eq!(is_ordered, commit_mode == CommitMode::DualMode, "{flush:?}");
                calls.push(result.workloads.iter().map(|workload| workload.sum(&[]).calls).sum::<u64>());
                assert_eq!(Ok(Some(result)), run(&setup, &mut |_| true));
            }
            let is_more = calls[1] > calls[0];
            assert_eq!(is_more, flush == FlushMode::RangeFlush, "by waiting and by order: {calls:?}");
        }
    }

    #[test]
    fn dual_mode_is_refused_by_name_where_nothing_keeps_order() {
        let mut setup = setup(FlushMode::Flush);
        setup.mode = Mode::from(Kind::Ext4).committing(CommitMode::DualMode);
        let error = run(&setup, &mut |_| true).unwrap_err().to_string();
        assert_eq!(
            error,
            "ext4: this ext4 volume uses dual-mode journaling on a disk without barriers, which is not supported"
        );
    }

    /// The workloads of the RFLUSH paper's figure 4, all three at once and small.
    #[test]
    fn mixes_of_transactions_run_beside_a_file_server() {
        let db = flashweir_db::Config {
            pool_bytes: 4 << 20,
            log_file_bytes: 1 << 20,
            transactions_max: 16,
            ..flashweir_db::Config::default()
        };
        let tpcc = TpccOptions {
            scale: Scale { warehouses: 1, items: 200, customers: 30 },
            db: db.clone(),
            ..TpccOptions::new("", 0, 1)
        };
        let graph = LinkBenchOptions { db, ..LinkBenchOptions::new("", 0, 1000) };
        let set = [("nfiles", "50"), ("nthreads", "1"), ("dir", "/files")];
        let server = parse_model("fileserver.f", personality("fileserver").unwrap(), &set).unwrap();
        let mut setup = setup(FlushMode::RangeFlush);
        setup.is_direct = true;
        setup.runtime = Some(Duration::from_secs(2));
        setup.workloads = vec![
            ("tpcc".into(), Work::Tpcc(tpcc)),
            ("linkbench".into(), Work::LinkBench(graph)),
            ("fileserver".into(), Work::Filebench(server)),
        ];
        let result = run(&setup, &mut |_| true).unwrap().unwrap();
        let counts: Vec<(&str, u64)> = result
            .workloads
            .iter()
            .map(|workload| (workload.name.as_str(), workload.sum(&[]).calls))
            .collect();
        let [("tpcc", tpcc), ("linkbench", linkbench), ("fileserver", server)] = counts[..] else {
            panic!("{counts:?}")
        };
        assert!(tpcc > 0 && linkbench > 0 && server > 0, "{counts:?}");
        assert_eq!(Ok(Some(result)), run(&setup, &mut |_| true));
    }

    #[test]
    fn what_is_wrong_has_a_name_and_a_run_can_be_stopped() {
        let error = |setup: &Setup| run(setup, &mut |_| true).unwrap_err().to_string();
        let mut small = setup(FlushMode::Flush);
        small.device.geometry.chips_per_channel = 1;
        small.device.geometry.channels = 1;
        small.device.geometry.blocks_per_plane = 32;
        assert!(error(&small).starts_with("F2FS: "), "{}", error(&small));
        let mut full = setup(FlushMode::Flush);
        let jobs = "[big]\nrw=randread\nsize=100g\n";
        full.workloads = vec![("big".into(), Work::Fio(parse_job_file_on_files("b", jobs).unwrap().jobs))];
        assert!(error(&full).contains("ENOSPC") || error(&full).contains("no space"), "{}", error(&full));
        assert_eq!(run(&setup(FlushMode::Flush), &mut |_| false), Ok(None));
    }

    /// After a cut the volume has at least the files that were made durable before the workloads began.
    #[test]
    fn a_run_can_end_with_a_power_cut() {
        let result = run(&Setup { is_cut: true, ..setup(FlushMode::Flush) }, &mut |_| true).unwrap().unwrap();
        let after = result.after_cut.expect("it was asked for");
        assert!(after.used_pages > 2_048 && after.mount_ns > 0, "{after:?}");
        assert!(after.device_ns > 0 && after.device_pages_read > 0, "{after:?}");
        let without = run(&setup(FlushMode::Flush), &mut |_| true).unwrap().unwrap();
        assert_eq!(without, FilesResult { after_cut: None, ..result });
    }
}
