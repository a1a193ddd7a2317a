//! `weir sqlite`: SQLite itself on a file system on a device, in virtual time.

use crate::devices::{resolve_for, table};
use crate::error::{Failure, Outcome};
use crate::files::{
    CheckpointArg, CleanArg, CommitArg, FlushArg, JournalModeArg, check_order, check_shares, needs,
    not_for_ext4, set_shares,
};
use crate::json;
use crate::options::{ResultArgs, Shape};
use crate::output::thousands;
use crate::output::{check, print_or_write, stopped, width};
use crate::pool::Pool;
use crate::values::{cache, kind, some_time, time, whole};
use clap::{Args, ValueEnum};
use flashweir_core::Duration;
use flashweir_fs::order::CommitMode;
use flashweir_fs::vfs::{CacheConfig, HostCosts, MountOptions};
use flashweir_fs::{Kind, Mode};
use flashweir_lab::results::call_table;
use flashweir_sqlite::order::{JournalMode, OrderMode, Plan, Synchronous};
use flashweir_sqlite::run::{Setup, SqliteResult, run};
use flashweir_sqlite::workload::{Mix, WorkloadOptions};
use std::sync::atomic::AtomicBool;

#[derive(Debug, Args)]
#[command(after_help = "Examples:
  weir sqlite --device barrier-ufs --host phone --journal persist
  weir sqlite --device barrier-850 --journal persist,wal --order none,durable,all     side by side
  weir sqlite --device share-960evo --journal delete,wal,batch-atomic --journal-mode journal --checkpoint share
  weir sqlite --device sata-mlc --format f2fs --journal wal --sync normal --mix update --transactions 5000

SQLite runs unchanged, on a thread that waits for virtual time, and its transactions of one row each are measured. \
--order says which of its syncs become barriers: none, those that are for order alone (durable), or all of them, with which a power \
cut may lose the newest transactions. Barriers need --commit dual, which is the default with them, and a device that keeps \
order (order.policy). docs/sqlite.md has the protocol.")]
pub(crate) struct SqliteArgs {
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
    #[arg(long, value_name = "FORMAT", value_parser = kind(), default_value = "ext4")]
    format: Kind,
    /// ext4: where data are [default: ordered]
    #[arg(long, value_name = "MODE", value_enum)]
    journal_mode: Option<JournalModeArg>,
    /// ext4: how a checkpoint brings blocks to their places; `share` needs a device with ftl.share.pages [default: write]
    #[arg(long, value_name = "WAY", value_enum)]
    checkpoint: Option<CheckpointArg>,
    /// F2FS: how cleaning moves blocks of data; `share` needs a device with ftl.share.pages [default: copy]
    #[arg(long, value_name = "WAY", value_enum)]
    clean: Option<CleanArg>,
    /// How the file system keeps its commits in order [default: legacy with --order none, else dual]
    #[arg(long, value_name = "MODE", value_enum)]
    commit: Option<CommitArg>,
    /// Command that a flush becomes
    #[arg(long, value_name = "MODE", value_enum, default_value = "flush")]
    flush: FlushArg,
    /// SQLite's journal_mode; several are run side by side
    #[arg(long, value_name = "MODE", value_enum, value_delimiter = ',', default_value = "delete")]
    journal: Vec<JournalArg>,
    /// SQLite's synchronous; several are run side by side
    #[arg(long, value_name = "LEVEL", value_enum, value_delimiter = ',', default_value = "full")]
    sync: Vec<SyncArg>,
    /// Which of SQLite's syncs become barriers; several are run side by side
    #[arg(long, value_name = "WHICH", value_enum, value_delimiter = ',', default_value = "none")]
    order: Vec<OrderArg>,
    /// Operation of each transaction on a row
    #[arg(long, value_name = "WHAT", value_enum, default_value = "insert")]
    mix: MixArg,
    /// Most transactions
    #[arg(long, value_name = "N", default_value_t = 1_000, value_parser = whole::<u64>(1, 100_000_000))]
    transactions: u64,
    /// Time at the start in which transactions do not count
    #[arg(long, value_name = "TIME", default_value = "0s", value_parser = time)]
    ramp: Duration,
    /// No transaction begins after this much measured time
    #[arg(long, value_name = "TIME", value_parser = some_time)]
    runtime: Option<Duration>,
    /// Rows at the beginning
    #[arg(long, value_name = "N", default_value_t = 1_000, value_parser = whole::<u64>(0, 10_000_000))]
    rows: u64,
    /// Bytes of a row
    #[arg(long, value_name = "N", default_value_t = 100, value_parser = whole::<u32>(1, 1 << 20))]
    row_bytes: u32,
    /// CPU time of SQLite and the program for each transaction; that of calls comes from --host
    #[arg(long, value_name = "TIME", default_value = "0s", value_parser = time)]
    compute: Duration,
    /// Memory of the page cache
    #[arg(long, value_name = "SIZE", default_value = "1GiB", value_parser = cache)]
    cache: CacheConfig,
    /// CPUs of the host and CPU time of its calls: zero (no limit, no time), server or phone
    #[arg(long, value_name = "PRESET", default_value = "server", value_parser = HostCosts::preset)]
    host: HostCosts,
    /// Seed of all randomness
    #[arg(long, value_name = "N", default_value_t = 1, value_parser = whole::<u64>(0, u64::MAX))]
    seed: u64,
    #[command(flatten)]
    results: ResultArgs,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum JournalArg {
    /// A rollback journal, deleted at each commit
    Delete,
    /// The same, emptied
    Truncate,
    /// The same, its header overwritten
    Persist,
    /// A write-ahead log
    Wal,
    /// None: a transaction is a set of pages of an atomic file, which needs ext4 that journals data, or SHARE
    BatchAtomic,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum SyncArg {
    /// At the most critical points only; a log is not synced at commits
    Normal,
    /// Each transaction
    Full,
    /// The directory, too, when a journal was deleted
    Extra,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum OrderArg {
    /// None: all are fdatasync
    None,
    /// Those that are for order alone
    Durable,
    /// All: nothing is durable, everything is in order
    All,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum MixArg {
    /// Adds a row
    Insert,
    /// Changes one
    Update,
    /// Deletes one
    Delete,
    /// One of these, drawn
    Mixed,
}

impl JournalArg {
    pub(crate) fn mode(self) -> JournalMode {
        match self {
            Self::Delete => JournalMode::Delete,
            Self::Truncate => JournalMode::Truncate,
            Self::Persist => JournalMode::Persist,
            Self::Wal => JournalMode::Wal,
            Self::BatchAtomic => JournalMode::BatchAtomic,
        }
    }
}

impl SyncArg {
    pub(crate) fn synchronous(self) -> Synchronous {
        match self {
            Self::Normal => Synchronous::Normal,
            Self::Full => Synchronous::Full,
            Self::Extra => Synchronous::Extra,
        }
    }
}

impl OrderArg {
    pub(crate) fn mode(self) -> OrderMode {
        match self {
            Self::None => OrderMode::None,
            Self::Durable => OrderMode::Durable,
            Self::All => OrderMode::All,
        }
    }
}

impl SqliteArgs {
    /// The file system below SQLite that has its syncs so.
    fn mode(&self, order: OrderMode) -> Outcome<Mode> {
        let commit_mode = match (self.commit, order) {
            (Some(CommitArg::Legacy), OrderMode::None) | (None, OrderMode::None) => CommitMode::Legacy,
            (Some(CommitArg::Dual), _) | (None, _) => CommitMode::DualMode,
            (Some(CommitArg::Legacy), _) => {
                return Err(Failure::Usage(format!("--order {} needs --commit dual", order.name())));
            }
        };
        needs(self.journal_mode.is_some(), "--journal-mode", Kind::Ext4, self.format)?;
        needs(self.checkpoint.is_some(), "--checkpoint", Kind::Ext4, self.format)?;
        needs(self.clean.is_some(), "--clean", Kind::F2fs, self.format)?;
        not_for_ext4(self.flush == FlushArg::Rflush, "--flush rflush", self.format)?;
        if commit_mode == CommitMode::DualMode && self.format.appends() {
            let name = self.format.name();
            let what = match order {
                OrderMode::None => "--commit dual".to_owned(),
                order => format!("--order {}", order.name()),
            };
            return Err(Failure::Usage(format!("{what} needs --format f2fs or ext4, not {name}")));
        }
        let mut mode = Mode::from(self.format).committing(commit_mode);
        mode.ext4.journaling = self.journal_mode.map_or_else(Default::default, JournalModeArg::journaling);
        set_shares(&mut mode, self.checkpoint, self.clean);
        Ok(mode)
    }

    fn setups(&self) -> Outcome<Vec<Setup>> {
        let mut setups = Vec::new();
        let devices = resolve_for(self.format, &self.device, &self.set, self.host_ftl.as_deref())?;
        for (device, host_ftl) in devices {
            self.flush.check_device(&device)?;
            check_shares(&device, self.checkpoint, self.clean)?;
            for journal in &self.journal {
                for (sync, order) in
                    self.sync.iter().flat_map(|sync| self.order.iter().map(move |order| (sync, order.mode())))
                {
                    let mode = self.mode(order)?;
                    let is_dual = mode.commit_mode() == CommitMode::DualMode;
                    if is_dual {
                        check_order(&device, host_ftl.as_ref(), "barriers cannot be", "--order none")?;
                    }
                    let plan = Plan {
                        journal_mode: journal.mode(),
                        synchronous: sync.synchronous(),
                        order,
                        planted: None,
                    };
                    // What depends on the device is seen when its volume is mounted.
                    plan.check(is_dual, true).map_err(|why| Failure::Usage(format!("--{why}")))?;
                    setups.push(Setup {
                        device: device.clone(),
                        host_ftl: host_ftl.clone(),
                        flush: self.flush.mode(),
                        mode,
                        mount: MountOptions {
                            cache: self.cache.clone(),
                            costs: self.host,
                            ..MountOptions::default()
                        },
                        plan,
                        workload: WorkloadOptions {
                            mix: match self.mix {
                                MixArg::Insert => Mix::Insert,
                                MixArg::Update => Mix::Update,
                                MixArg::Delete => Mix::Delete,
                                MixArg::Mixed => Mix::Mixed,
                            },
                            transactions: self.transactions,
                            ramp: self.ramp,
                            runtime: self.runtime,
                            rows: self.rows,
                            row_bytes: self.row_bytes,
                            compute: self.compute,
                            ..WorkloadOptions::default()
                        },
                        seed: self.seed,
                        interval: Duration::from_millis(100),
                    });
                }
            }
        }
        Ok(setups)
    }
}

/// `weir sqlite`.
pub(crate) fn command(args: &SqliteArgs, cancel: &AtomicBool) -> Outcome {
    if let Some(path) = &args.results.out {
        check(path)?;
    }
    let setups = args.setups()?;
    let pool = Pool { jobs: args.results.jobs, quiet: args.results.quiet, cancel };
    let name = |at: usize| {
        let Setup { device, plan, .. } = &setups[at];
        format!("{}, {}, {}", device.name, plan.journal_mode.name(), plan.order.name())
    };
    let results = pool.all(setups.len(), name, |at, step| run(&setups[at], &mut || step(0.0)).transpose());
    let results: Vec<SqliteResult> =
        results.into_iter().flatten().collect::<Result<_, _>>().map_err(Failure::run)?;
    if let Some(empty) = results.iter().find(|result| result.transactions() == 0) {
        return Err(Failure::Run(format!(
            "{}: no transaction was measured: expected a --ramp that leaves some of --transactions {}, and time for them",
            empty.device, args.transactions
        )));
    }
    let text = || match args.results.shape.output {
        Shape::Table => {
            let all: Vec<String> = results.iter().map(lines).collect();
            Ok(all.join("\n") + &summary(&results))
        }
        Shape::Json => json::pretty(json::Kind::Sqlite, &serde_json::json!({ "runs": results })),
    };
    if results.len() < setups.len() {
        return stopped(results.len(), setups.len(), 0, text);
    }
    print_or_write(args.results.out.as_deref(), &text()?)
}

/// Results of a run, for people.
fn lines(result: &SqliteResult) -> String {
    let Plan { journal_mode, synchronous, order, .. } = result.plan;
    let count = result.transactions();
    let each = |value: u64| format!("{:.2}", value as f64 / count.max(1) as f64);
    let mut text = format!(
        "{}, {}, {}: journal_mode {}, synchronous {}, order {}, seed {}: {} transactions in {:.3} s\n\n",
        result.device,
        result.format,
        result.flush,
        journal_mode.name(),
        synchronous.name(),
        order.name(),
        result.workload.seed,
        thousands(count),
        result.workload.span_ns() as f64 / 1e9,
    );
    text.push_str(&call_table(std::slice::from_ref(&result.workload), width()));
    let mut rows =
        vec![["SQLite's calls", "", "per transaction", "mean µs", "max µs", "share"].map(str::to_owned)];
    rows.extend(result.phases.iter().map(|phase| {
        [
            phase.what.clone(),
            phase.call.clone(),
            each(phase.calls),
            format!("{:.1}", phase.total_ns as f64 / phase.calls.max(1) as f64 / 1e3),
            format!("{:.1}", phase.max_ns as f64 / 1e3),
            format!("{:.1} %", 100.0 * phase.total_ns as f64 / result.workload.span_ns().max(1) as f64),
        ]
    }));
    text.push('\n');
    text.push_str(&table(&rows, 2));
    // A host FTL counts them above a device that knows none.
    let epochs = ["host_ftl.epochs", "device.epochs"].into_iter().find_map(|name| result.metrics.get(name));
    let rows = [
        ["per transaction".to_owned(), String::new()],
        ["flushes".to_owned(), each(result.totals.flushes)],
        ["bytes written by the host".to_owned(), each(result.totals.host_written_bytes)],
        ["epochs".to_owned(), each(epochs.copied().unwrap_or(0))],
    ];
    text.push('\n');
    text.push_str(&table(&rows, 1));
    text
}

/// A rate with as many digits as mean something.
fn rate(per_s: f64) -> String {
    if per_s < 100.0 { format!("{per_s:.2}") } else { thousands(per_s.round() as u64) }
}

/// All runs in a table, the first one of each device being what others are compared with.
fn summary(results: &[SqliteResult]) -> String {
    if results.len() < 2 {
        return String::new();
    }
    let head = ["device", "journal_mode", "synchronous", "order", "transactions/s", "× the first"];
    let mut rows = vec![head.map(str::to_owned)];
    for result in results {
        let first = results.iter().find(|first| first.device == result.device).unwrap_or(result);
        let plan = result.plan;
        rows.push([
            result.device.clone(),
            plan.journal_mode.name().to_owned(),
            plan.synchronous.name().to_owned(),
            plan.order.name().to_owned(),
            rate(result.transactions_per_s()),
            format!("{:.2}", result.transactions_per_s() / first.transactions_per_s().max(f64::MIN_POSITIVE)),
        ]);
    }
    format!("\n{}", table(&rows, 4))
}
