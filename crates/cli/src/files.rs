//! `weir files`: workloads on the files of a file system on a device, several at once.

use crate::devices::{resolve_for, table};
use crate::error::{Failure, Outcome, say, unreadable};
use crate::json;
use crate::options::{ResultArgs, Shape};
use crate::output::thousands;
use crate::output::{check, print_or_write, stopped, width};
use crate::pool::Pool;
use crate::run::stem;
use crate::values::{cache, journal_blocks, kind, percent, some_time, time, volume_size, whole};
use clap::{Args, ValueEnum};
use flashweir_core::{Bytes, Duration};
use flashweir_db::DataIo;
use flashweir_device::DeviceConfig;
use flashweir_device::config::{FirmwareKind, PersistPolicy, RangeFlushSupport};
use flashweir_fs::ext4::{CheckpointBy, Journaling};
use flashweir_fs::f2fs::{CleanBy, Flushing};
use flashweir_fs::order::CommitMode;
use flashweir_fs::port::BLOCK_BYTES;
use flashweir_fs::vfs::{CacheConfig, HostCosts, MountOptions};
use flashweir_fs::{Kind, Mode};
use flashweir_host::{HostConfig, HostFtlConfig};
use flashweir_lab::files::{self, FilesResult, Setup, Work};
use flashweir_lab::results::call_table;
use flashweir_sim::measure::Percentile;
use flashweir_sim::stack::FlushMode;
use flashweir_sim::volume::MakeOptions;
use flashweir_workload::filebench::{PERSONALITIES, parse_model, personality};
use flashweir_workload::fio::{FileJob, parse_job_file_on_files};
use flashweir_workload::oltp::linkbench::LinkBenchOptions;
use flashweir_workload::oltp::sysbench::{Script, SysbenchOptions};
use flashweir_workload::oltp::tpcc::TpccOptions;
use flashweir_workload::postmark;
use flashweir_workload::spelling::nearest;
use std::fmt::Write as _;
use std::path::Path;
use std::sync::atomic::AtomicBool;

#[derive(Debug, Args)]
#[command(after_help = "Examples:
  weir files varmail --device sata-mlc
  weir files varmail --device rflush --flush flush,rflush,noflush --runtime 5s      side by side
  weir files fileserver,nthreads=16 sync.fio --device rflush --flush rflush        two workloads at once
  weir files tpcc,warehouses=2,pool=64MiB fileserver --device rflush --flush flush,rflush --direct --runtime 10s
  weir files oltp-read-write,tables=4,file_per_table=true,double_write=atomic --device share-960evo --format ext4 --journal-mode journal --checkpoint share
  weir files my.f --device my.toml --set buffer.capacity=64MiB --cache 256MiB --output json
  weir files varmail --device barrier-850 --format ext4 --commit dual               ext4 that orders instead of waiting
  weir files varmail --device qblke --host-ftl qblke --set geometry.pages_per_block=64    on a host FTL
  weir files varmail --device barrier-850 --commit dual                             so does F2FS

Each device gets an F2FS volume, or one of ext4 behind a block layer as Linux's, on which each workload makes its files; then all workloads run at once, each with its \
own results. A workload is a personality of filebench (fileserver, varmail, webserver, oltp), a file of its language \
(NAME.f), a mix of transactions on a database (tpcc, linkbench, and sysbench's oltp-insert, oltp-non-transactional, oltp-read-only, oltp-read-write and oltp-write-only), or a fio job file whose jobs use files; variables of a \
filebench model and options of a mix are set behind its name.

--flush says what a sync sends to the device: a FLUSH of the whole buffer, a range flush of the file's data and metadata, or nothing, \
so that a power cut loses synced data. On segments a range flush covers a prefix of each segment that has data of the file. ext4 sends no \
range flushes. With --commit dual barriers keep commits in order; the device must support them (order.policy). Given --commit, F2FS runs \
behind the block layer, too. Time is virtual: the same seed gives the same bytes.")]
pub(crate) struct FilesArgs {
    /// filebench personality, filebench file, fio job file, script of Postmark, tpcc, linkbench or a script of sysbench, as in oltp-insert
    #[arg(value_name = "WORKLOAD[,VARIABLE=VALUE...]", required = true)]
    workload: Vec<String>,
    /// A preset (see `weir device list`) or a device file; may be given several times
    #[arg(long, short, value_name = "PRESET|FILE.toml", required = true)]
    device: Vec<String>,
    /// Set a key of every device, as in buffer.capacity=64MiB; may be given several times
    #[arg(long, value_name = "KEY=VALUE")]
    set: Vec<String>,
    /// Put a host FTL above each device with an open channel: an assembly (pblk, qblke, pblk-as-released or qblke-as-released), and keys behind it, as in qblke,rings=4
    #[arg(long, value_name = "ASSEMBLY,KEY=VALUE")]
    host_ftl: Option<String>,
    /// The file system
    #[arg(long, value_name = "FORMAT", value_parser = kind(), default_value = "f2fs")]
    format: Kind,
    #[command(flatten)]
    options: FormatOptions,
    /// Command that a sync becomes; several are compared side by side
    #[arg(long, value_name = "MODE", value_enum, value_delimiter = ',', default_value = "flush")]
    flush: Vec<FlushArg>,
    /// Measured time, instead of the workloads' own
    #[arg(long, value_name = "TIME", value_parser = some_time)]
    runtime: Option<Duration>,
    /// Time at the start that is not measured
    #[arg(long, value_name = "TIME", default_value = "0s", value_parser = time)]
    ramp: Duration,
    /// Memory of the page cache
    #[arg(long, value_name = "SIZE", default_value = "1GiB", value_parser = cache)]
    cache: CacheConfig,
    /// CPUs of the host and CPU time of its calls: zero (no limit, no time), server or phone
    #[arg(long, value_name = "PRESET", default_value = "server", value_parser = HostCosts::preset)]
    host: HostCosts,
    /// fsync and fdatasync keep order and make nothing durable (fbarrier, fdatabarrier); needs --commit dual
    #[arg(long)]
    order_only: bool,
    /// ext4: size of the journal, as in 512MiB [default: by the size of the volume, 4MiB to 1GiB]
    #[arg(long, value_name = "SIZE", value_parser = journal_blocks)]
    journal_size: Option<u32>,
    /// F2FS: segments of 2 MiB in a section, the unit of cleaning
    #[arg(long, value_name = "N", value_parser = whole::<u32>(1, 1024))]
    segments_per_section: Option<u32>,
    /// F2FS and ALFS: over-provisioning of the main area, in per cent, as in 5 [default: the value that leaves users the most room]
    #[arg(long, value_name = "PERCENT", value_parser = percent)]
    overprovision: Option<u32>,
    /// First write and delete a file that fills 95 % of the volume, so that no block of the flash is fresh
    #[arg(long)]
    aged: bool,
    /// Size of a file that is made first and stays, so that the volume is fuller
    #[arg(long, value_name = "SIZE", value_parser = volume_size)]
    ballast: Option<Bytes>,
    /// Open the files of filebench and of databases with O_DIRECT; fio has `direct` in its job files
    #[arg(long)]
    direct: bool,
    /// Open the files that filebench writes as atomic files, so that an fsync is an atomic commit; fio has `atomic_files` in its job files
    #[arg(long)]
    atomic_files: bool,
    /// Cut the power at the end, mount the volume again, and report how long that takes in virtual time
    #[arg(long)]
    cut: bool,
    /// Seed of all randomness
    #[arg(long, value_name = "N", default_value_t = 1, value_parser = whole::<u64>(0, u64::MAX))]
    seed: u64,
    #[command(flatten)]
    results: ResultArgs,
}

/// How a file system is mounted.
#[derive(Clone, Debug, Args)]
pub(crate) struct FormatOptions {
    /// ext4's data= mode: when file data are written [default: ordered]
    #[arg(long, value_name = "MODE", value_enum)]
    journal_mode: Option<JournalModeArg>,
    /// How the order of commits is kept: by waiting and flushes, or by barriers (BarrierFS); in `weir files`, F2FS has a block layer only
    /// with this option [default: legacy]
    #[arg(long, value_name = "MODE", value_enum)]
    commit: Option<CommitArg>,
    /// ext4 with --commit dual: a transaction does not wait for earlier ones that share blocks with it; each keeps its own version of them
    #[arg(long)]
    multi_version: bool,
    /// ext4: how a checkpoint brings journalled blocks to their home locations: by writing them, or by remapping the journal's copies with
    /// SHARE (SOJ with ordered data, SDJ with `--journal-mode journal`), which needs a device with ftl.share.pages [default: write]
    #[arg(long, value_name = "WAY", value_enum)]
    checkpoint: Option<CheckpointArg>,
    /// ext4 with --journal-mode journal: a sync commits the changes of all files, as on Linux; otherwise only those of the file that
    /// is synced
    #[arg(long)]
    forced_commits: bool,
    /// ext4: when a commit has to wait for room in the journal, the journal doubles, up to this size, as in 1GiB [default: it does not grow]
    #[arg(long, value_name = "SIZE", value_parser = journal_blocks)]
    journal_max: Option<u32>,
    /// F2FS: how cleaning moves blocks of data: it reads and writes them, or their new places take over the old ones by SHARE (SSC),
    /// which needs a device with ftl.share.pages [default: copy]
    #[arg(long, value_name = "WAY", value_enum)]
    clean: Option<CleanArg>,
    /// With `--flush rflush`, checkpoints of F2FS are made durable by range flushes too
    #[arg(long)]
    range_checkpoints: bool,
    /// Each fsync is a checkpoint of F2FS, as with Linux's mount option of this name, or of ALFS, as in the paper
    #[arg(long)]
    fastboot: bool,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum FlushArg {
    /// The whole buffer of the device
    Flush,
    /// The file's data, and metadata
    Rflush,
    /// Nothing
    Noflush,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum JournalModeArg {
    /// Data are on the disk before the transaction that makes them part of a file
    Ordered,
    /// Data go through the journal
    Journal,
    /// Data go to the disk at any time
    Writeback,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum CheckpointArg {
    /// Each block is written once more
    Write,
    /// SHARE: no block is written again
    Share,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum CleanArg {
    /// Each block is read and written
    Copy,
    /// SHARE: no block is read or written
    Share,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum CommitArg {
    /// By waiting and flushes
    Legacy,
    /// By barriers
    Dual,
}

impl FormatOptions {
    /// Whether what is committed is kept in its order by barriers.
    fn is_dual(&self) -> bool {
        self.commit == Some(CommitArg::Dual)
    }

    /// How a file system is mounted; errors name options that are for another one.
    pub(crate) fn mode(&self, kind: Kind, order_only: bool, flush: &[FlushArg]) -> Outcome<Mode> {
        for (is_given, option) in [(order_only, "--order-only"), (self.multi_version, "--multi-version")] {
            if is_given && !self.is_dual() {
                return Err(Failure::Usage(format!("{option} needs --commit dual")));
            }
        }
        for (is_given, option, needed) in [
            (self.journal_mode.is_some(), "--journal-mode", Kind::Ext4),
            (self.multi_version, "--multi-version", Kind::Ext4),
            (self.checkpoint.is_some(), "--checkpoint", Kind::Ext4),
            (self.forced_commits, "--forced-commits", Kind::Ext4),
            (self.journal_max.is_some(), "--journal-max", Kind::Ext4),
            (self.clean.is_some(), "--clean", Kind::F2fs),
            (self.range_checkpoints, "--range-checkpoints", Kind::F2fs),
        ] {
            needs(is_given, option, needed, kind)?;
        }
        for (is_given, option) in
            [(self.fastboot, "--fastboot"), (flush.contains(&FlushArg::Rflush), "--flush rflush")]
        {
            not_for_ext4(is_given, option, kind)?;
        }
        if self.is_dual() && kind.appends() {
            let name = kind.name();
            return Err(Failure::Usage(format!("--commit dual needs --format f2fs or ext4, not {name}")));
        }
        if self.forced_commits && self.journal_mode != Some(JournalModeArg::Journal) {
            return Err(Failure::Usage("--forced-commits needs --journal-mode journal".into()));
        }
        if self.range_checkpoints && self.is_dual() {
            return Err(Failure::Usage("--range-checkpoints needs --commit legacy, not dual".into()));
        }
        let mut mode = Mode::from(kind).committing(self.commit_mode());
        mode.ext4.journaling = self.journal_mode.map_or_else(Default::default, JournalModeArg::journaling);
        mode.ext4.multi_version = self.multi_version;
        mode.ext4.forced_commits = self.forced_commits;
        mode.ext4.journal_blocks_max = self.journal_max.unwrap_or(0);
        set_shares(&mut mode, self.checkpoint, self.clean);
        (mode.f2fs.fastboot, mode.alfs.fsync_checkpoints) = (self.fastboot, self.fastboot);
        if self.range_checkpoints {
            mode.f2fs.checkpoint = Flushing::RangeFlush;
        }
        Ok(mode)
    }

    fn commit_mode(&self) -> CommitMode {
        match self.commit {
            None | Some(CommitArg::Legacy) => CommitMode::Legacy,
            Some(CommitArg::Dual) => CommitMode::DualMode,
        }
    }

    /// Fails if a device cannot do what the options need.
    pub(crate) fn check_device(
        &self,
        (device, host_ftl): (&DeviceConfig, Option<&HostFtlConfig>),
        flush: &[FlushArg],
    ) -> Outcome<()> {
        flush.iter().try_for_each(|flush| flush.check_device(device))?;
        if self.is_dual() {
            check_order(device, host_ftl, "--commit cannot be `dual`", "--commit legacy")?;
        }
        check_shares(device, self.checkpoint, self.clean)
    }
}

/// Fails if a device with the host FTL above it, if there is one, keeps no order; what is wanted then, and what else could be.
pub(crate) fn check_order(
    device: &DeviceConfig,
    host_ftl: Option<&HostFtlConfig>,
    wanted: &str,
    otherwise: &str,
) -> Outcome {
    let (reason, expected) = match host_ftl {
        Some(host_ftl) if host_ftl.keeps_order() => return Ok(()),
        Some(_) => ("--host-ftl sequence is ring", "sequence=device"),
        None if device.order.policy != PersistPolicy::None => return Ok(()),
        None => ("order.policy is none", "--set order.policy=in-order-recovery"),
    };
    let name = &device.name;
    Err(Failure::Usage(format!("{wanted} on {name}: {reason}: expected {expected}, or {otherwise}")))
}

/// Sets what is to be done by SHARE.
pub(crate) fn set_shares(mode: &mut Mode, checkpoint: Option<CheckpointArg>, clean: Option<CleanArg>) {
    if checkpoint == Some(CheckpointArg::Share) {
        mode.ext4.checkpoint_by = CheckpointBy::Share;
    }
    if clean == Some(CleanArg::Share) {
        mode.f2fs.clean_by = CleanBy::Share;
    }
}

/// Fails if a device cannot do by SHARE what the options want.
pub(crate) fn check_shares(
    device: &DeviceConfig,
    checkpoint: Option<CheckpointArg>,
    clean: Option<CleanArg>,
) -> Outcome {
    let shares = [
        (checkpoint == Some(CheckpointArg::Share), "--checkpoint", "write"),
        (clean == Some(CleanArg::Share), "--clean", "copy"),
    ];
    for (_, option, other) in shares.into_iter().filter(|(is_asked, ..)| *is_asked) {
        let (name, unit) = (&device.name, device.geometry.unit_bytes);
        if device.firmware == FirmwareKind::OpenChannel {
            return Err(Failure::Usage(format!(
                "{option} cannot be `share` on {name}: a host FTL has no SHARE: expected {option} {other}"
            )));
        }
        let reason = match device.ftl.share.pages {
            0 => "ftl.share.pages is 0: expected --set ftl.share.pages=65536".to_owned(),
            _ if unit.0 != BLOCK_BYTES as u64 => format!(
                "geometry.unit_bytes is {unit}, and SHARE works on whole units: expected --set \
                 geometry.unit_bytes=4KiB"
            ),
            _ => continue,
        };
        return Err(Failure::Usage(format!(
            "{option} cannot be `share` on {name}: {reason}, or {option} {other}"
        )));
    }
    Ok(())
}

/// An option that is for one file system, where it is given.
pub(crate) fn needs(is_given: bool, option: &str, needed: Kind, kind: Kind) -> Outcome {
    if is_given && kind != needed {
        let (needed, kind) = (needed.name(), kind.name());
        return Err(Failure::Usage(format!("{option} needs --format {needed}, not {kind}")));
    }
    Ok(())
}

/// Fails if an option that ext4 lacks is given for it.
pub(crate) fn not_for_ext4(is_given: bool, option: &str, kind: Kind) -> Outcome {
    match is_given && kind == Kind::Ext4 {
        true => Err(Failure::Usage(format!("{option} needs --format f2fs or alfs, not ext4"))),
        false => Ok(()),
    }
}

impl JournalModeArg {
    pub(crate) fn journaling(self) -> Journaling {
        match self {
            Self::Ordered => Journaling::Ordered,
            Self::Journal => Journaling::Journal,
            Self::Writeback => Journaling::Writeback,
        }
    }
}

impl FlushArg {
    /// Fails if a device cannot do it.
    pub(crate) fn check_device(self, device: &DeviceConfig) -> Outcome {
        // Segments have it always, of prefixes, and so have host FTLs.
        let has_none = device.buffer.range_flush == RangeFlushSupport::None;
        let is_page = !matches!(device.firmware, FirmwareKind::Append | FirmwareKind::OpenChannel);
        if self == Self::Rflush && has_none && is_page {
            return Err(Failure::Usage(format!(
                "--flush cannot be `rflush` on {}: buffer.range_flush is none: expected --set \
                 buffer.range_flush=selective, or another --flush",
                device.name
            )));
        }
        Ok(())
    }

    pub(crate) fn mode(self) -> FlushMode {
        match self {
            Self::Flush => FlushMode::Flush,
            Self::Rflush => FlushMode::RangeFlush,
            Self::Noflush => FlushMode::NoFlush,
        }
    }
}

/// `weir files`.
pub(crate) fn command(args: &FilesArgs, cancel: &AtomicBool) -> Outcome {
    if let Some(path) = &args.results.out {
        check(path)?;
    }
    let mut workloads: Vec<(String, Work)> = Vec::new();
    for text in &args.workload {
        let (name, work) = workload(text, args)?;
        // Two of a kind keep their files and their random numbers apart by their names.
        if workloads.iter().any(|(other, _)| *other == name) {
            return Err(Failure::Usage(format!(
                "WORKLOAD `{name}` is there twice: expected different names"
            )));
        }
        for (other, earlier) in &workloads {
            if let Some(section) = shared_section(earlier, &work) {
                return Err(Failure::Usage(format!(
                    "[{section}] is a section of `{other}` and of `{name}`, which would use the same files: expected different names"
                )));
            }
        }
        workloads.push((name, work));
    }
    if args.atomic_files {
        check_atomic(&workloads)?;
    }
    let mode = args.options.mode(args.format, args.order_only, &args.flush)?;
    needs(args.journal_size.is_some(), "--journal-size", Kind::Ext4, args.format)?;
    needs(args.segments_per_section.is_some(), "--segments-per-section", Kind::F2fs, args.format)?;
    not_for_ext4(args.overprovision.is_some(), "--overprovision", args.format)?;
    // Results of F2FS that are older than its modes do not change.
    let has_block_layer = args.format == Kind::Ext4 || args.options.commit.is_some();
    let block_layer = has_block_layer.then(HostConfig::default);
    let mut setups = Vec::new();
    let devices = resolve_for(args.format, &args.device, &args.set, args.host_ftl.as_deref())?;
    for (device, host_ftl) in devices {
        args.options.check_device((&device, host_ftl.as_ref()), &args.flush)?;
        for flush in &args.flush {
            setups.push(Setup {
                device: device.clone(),
                flush: flush.mode(),
                mode: mode.clone(),
                block_layer: block_layer.clone(),
                host_ftl: host_ftl.clone(),
                mount: MountOptions {
                    cache: args.cache.clone(),
                    costs: args.host,
                    syncs_order: args.order_only,
                    ..MountOptions::default()
                },
                workloads: workloads.clone(),
                seed: args.seed,
                interval: Duration::from_millis(100),
                ramp: args.ramp,
                runtime: args.runtime,
                is_direct: args.direct,
                volume: MakeOptions {
                    journal_blocks: args.journal_size,
                    segments_per_section: args.segments_per_section,
                    overprovision: args.overprovision,
                },
                is_aged: args.aged,
                ballast_bytes: args.ballast.map_or(0, |size| size.0),
                is_atomic: args.atomic_files,
                is_cut: args.cut,
            });
        }
    }
    let pool = Pool { jobs: args.results.jobs, quiet: args.results.quiet, cancel };
    let name = |at: usize| format!("{}, {}", setups[at].device.name, setups[at].flush.name());
    let results = pool.all(setups.len(), name, |at, step| {
        files::run(&setups[at], &mut |fraction| step(fraction.unwrap_or(0.0))).transpose()
    });
    let results: Vec<FilesResult> =
        results.into_iter().flatten().collect::<Result<_, _>>().map_err(Failure::run)?;
    let text = || match args.results.shape.output {
        Shape::Table => Ok(results.iter().map(lines).collect::<Vec<_>>().join("\n")),
        Shape::Json => json::pretty(json::Kind::Files, &serde_json::json!({ "runs": results })),
    };
    if results.len() < setups.len() {
        return stopped(results.len(), setups.len(), 0, text);
    }
    print_or_write(args.results.out.as_deref(), &text()?)
}

/// Returns a section that two job files have in common.
fn shared_section<'a>(one: &'a Work, other: &Work) -> Option<&'a str> {
    let (Work::Fio(one), Work::Fio(other)) = (one, other) else { return None };
    let name = |job: &'a FileJob| job.spec.name.as_str();
    one.iter().map(name).find(|name| other.iter().any(|job| job.spec.name == *name))
}

/// Refuses atomic files where no model of filebench has some, or one never commits them.
fn check_atomic(workloads: &[(String, Work)]) -> Outcome {
    let mut models = workloads.iter().filter_map(|(name, work)| match work {
        Work::Filebench(model) => Some((name, model)),
        _ => None,
    });
    let silent = models.clone().find(|(_, model)| !model.syncs());
    if let Some((name, _)) = silent {
        return Err(Failure::Usage(format!(
            "--atomic-files withholds what is written until an fsync, and `{name}` has none: expected a model that syncs, such as \
             varmail"
        )));
    }
    match models.next() {
        Some(_) => Ok(()),
        None => Err(Failure::Usage(
            "--atomic-files concerns models of filebench: expected one; a fio job has `atomic_files=1`, a database \
             `double_write=atomic`"
                .into(),
        )),
    }
}

/// A workload and its name.
fn workload(text: &str, args: &FilesArgs) -> Outcome<(String, Work)> {
    let mut parts = text.split(',');
    let name = parts.next().unwrap_or_default();
    let mut set = Vec::new();
    for part in parts {
        set.push(part.split_once('=').ok_or_else(|| {
            Failure::Usage(format!("WORKLOAD `{text}`: `{part}` is no setting: expected VARIABLE=VALUE"))
        })?);
    }
    if let Some(model) = personality(name) {
        return Ok((
            name.to_owned(),
            Work::Filebench(parse_model(name, model, &set).map_err(Failure::usage)?),
        ));
    }
    let data_io = if args.direct { DataIo::Direct } else { DataIo::Buffered };
    match name {
        "tpcc" => {
            let mut options = TpccOptions::of_settings(&set).map_err(Failure::usage)?;
            options.db.data_io = data_io;
            return Ok((name.to_owned(), Work::Tpcc(options)));
        }
        "linkbench" => {
            let mut options = LinkBenchOptions::of_settings(&set).map_err(Failure::usage)?;
            options.db.data_io = data_io;
            return Ok((name.to_owned(), Work::LinkBench(options)));
        }
        _ => {}
    }
    if let Some(script) = Script::ALL.into_iter().find(|script| script.name() == name) {
        let mut options = SysbenchOptions::of_settings(script, &set).map_err(Failure::usage)?;
        options.db.data_io = data_io;
        return Ok((name.to_owned(), Work::Sysbench(options)));
    }
    let path = Path::new(name);
    if !path.exists() {
        let known: Vec<&str> = PERSONALITIES
            .iter()
            .map(|(known, _)| *known)
            .chain(["tpcc", "linkbench"])
            .chain(Script::ALL.map(Script::name))
            .collect();
        let hint = nearest(name, known.iter().copied())
            .map_or(String::new(), |near| format!("; did you mean `{near}`?"));
        let known = known.join(", ");
        return Err(Failure::Usage(format!(
            "WORKLOAD cannot be `{name}`: expected a file, or one of {known}{hint}"
        )));
    }
    let model = std::fs::read_to_string(path).map_err(|error| unreadable(name, &error))?;
    if path.extension().is_some_and(|extension| extension == "f") {
        return Ok((stem(path), Work::Filebench(parse_model(name, &model, &set).map_err(Failure::usage)?)));
    }
    if !set.is_empty() {
        return Err(Failure::Usage(format!(
            "WORKLOAD `{text}`: a fio job file has no variables: expected {name}"
        )));
    }
    if let Some(script) = postmark::parse(name, &model) {
        return Ok((stem(path), Work::Postmark(script.map_err(Failure::usage)?)));
    }
    let jobs = parse_job_file_on_files(name, &model).map_err(Failure::usage)?;
    if !args.results.quiet {
        jobs.warnings.iter().for_each(say);
    }
    Ok((stem(path), Work::Fio(jobs.jobs)))
}

/// Results of a run, for people.
fn lines(result: &FilesResult) -> String {
    let seconds = |ns: u64| format!("{:.3} s", ns as f64 / 1e9);
    let mut text = format!(
        "{}, {}{}, seed {}: measured for {}, after {} of making the files\n\n",
        result.device,
        mounted(result),
        result.flush,
        result.seed,
        seconds(result.measured_ns),
        seconds(result.prepared_ns)
    );
    text.push_str(&call_table(&result.workloads, width()));
    for workload in &result.workloads {
        if let Some(why) = &workload.ended_early {
            let _ = writeln!(text, "{} ended early: {why}", workload.name);
        }
    }
    let metric = |name: &str| result.metrics.get(name).copied().unwrap_or(0);
    let totals = &result.totals;
    let limit = result.cpus.map_or(String::new(), |cpus| format!(" of {cpus}"));
    let cpus = format!("{:.2}{limit}", result.cpus_busy());
    let mib = |bytes: u64| format!("{:.1} MiB", bytes as f64 / f64::from(1 << 20));
    let count = |row: &str, name: &str| [row.to_owned(), thousands(metric(name))];
    let mut rows = vec![
        ["written by the host".to_owned(), mib(totals.host_written_bytes)],
        ["programmed".to_owned(), mib(totals.nand_written_bytes)],
        ["write amplification".to_owned(), totals.waf().map_or("-".into(), |waf| format!("{waf:.3}"))],
        count("overwritten in the buffer, units", "device.buffer_write_hits"),
        ["flushes".to_owned(), thousands(totals.flushes)],
        count("range flushes", "device.range_flushes"),
        count("syncs of files", "vfs.syncs"),
    ];
    let is_alfs = result.metrics.contains_key("alfs.checkpoints");
    match result.ext4 {
        None if is_alfs => rows.extend([
            count("of these by a checkpoint", "alfs.fsyncs_by_checkpoint"),
            count("checkpoints", "alfs.checkpoints"),
            count("blocks of the inode map written", "alfs.entry_blocks"),
            count("blocks of its places (TIMB) written", "alfs.timb_blocks"),
            count("blocks of the map moved by its cleaning", "alfs.moved_map_blocks"),
            [
                "segments cleaned".to_owned(),
                thousands(metric("alfs.cleaned_foreground") + metric("alfs.cleaned_background")),
            ],
            count("blocks of data moved by cleaning", "alfs.moved_data_blocks"),
        ]),
        None => rows.extend([
            count("of these by a checkpoint", "f2fs.fsyncs_by_checkpoint"),
            count("pages written in place", "f2fs.in_place_pages"),
            [
                "sections cleaned".to_owned(),
                thousands(metric("f2fs.cleaned_foreground") + metric("f2fs.cleaned_background")),
            ],
            count("blocks of data moved by cleaning", "f2fs.moved_data_blocks"),
            count("of these by SHARE", "f2fs.shared_data_blocks"),
        ]),
        Some(_) => rows.extend([
            count("of these by a commit", "ext4.fsyncs_by_commit"),
            count("transactions committed", "ext4.commits"),
            count("blocks in them", "ext4.journalled_blocks"),
            count("blocks written to their places by checkpoints", "ext4.home_writes"),
            count("blocks shared by checkpoints", "ext4.shared_blocks"),
        ]),
    }
    if result.metrics.contains_key("db.commits") {
        rows.extend([
            count("pages read by databases", "db.page_reads"),
            count("pages written", "db.page_writes"),
            count("of these to a double-write area, too", "db.double_writes"),
            count("syncs of logs", "db.log_syncs"),
            count("syncs of data files", "db.data_syncs"),
        ]);
    }
    let writes = &result.disk_writes;
    let ms = |at| writes.percentile_ns(at).map_or("-".into(), |ns| format!("{:.2} ms", ns as f64 / 1e6));
    let latencies = [Percentile::P50, Percentile::P99_9, Percentile::from_ppm(1_000_000)].map(ms);
    rows.push(["writes of the disk: median, 99.9 %, longest".to_owned(), latencies.join(", ")]);
    rows.push(["CPUs of the host at work, mean".to_owned(), cpus]);
    if let Some(after) = &result.after_cut {
        rows.extend([
            ["after a power cut: recovery of the device".to_owned(), seconds(after.device_ns)],
            ["pages that it read".to_owned(), thousands(after.device_pages_read)],
            ["mount, with recovery".to_owned(), seconds(after.mount_ns)],
            ["pages in use then".to_owned(), thousands(after.used_pages)],
        ]);
    }
    text.push('\n');
    text.push_str(&table(&rows, 1));
    text
}

/// How the file system was mounted, for people.
fn mounted(result: &FilesResult) -> String {
    let Some(options) = &result.ext4 else {
        if result.metrics.contains_key("alfs.checkpoints") {
            return "alfs, ".into();
        }
        return result.f2fs.map_or(String::new(), |mode| format!("f2fs {}, ", mode.name()));
    };
    format!("{}, ", Mode::from(options.clone()).describe())
}
