//! Studies of the barrier paper on files: ext4 that waits compared with ext4 that orders (BarrierFS), on the paper's three devices.

use super::super::study::{RATE_CALLS_MIN, Scale, Study, TAIL_CALLS_MIN};
use super::devices::device_of;
use flashweir_core::random::RandomStream;
use flashweir_core::{Duration, Instant, executor::Handle};
use flashweir_device::{Device, DeviceMetrics, DeviceOptions};
use flashweir_fs::ext4::{CommitMode, Ext4Options};
use flashweir_fs::vfs::{
    Barrier, Creds, Errno, File, HostCosts, MountOptions, Process, Source, SyncKind, Vfs,
};
use flashweir_fs::{AnyFs, Mounted as _};
use flashweir_host::HostConfig;
use flashweir_sim::stack::{FlushMode, Stack};
use flashweir_sim::volume::{MakeOptions, make};
use std::cell::RefCell;
use std::rc::Rc;

/// Parts of the paper's set-up that these studies lack.
const MISSING: &str = "the paper's devices are products: ours are guesses fitted to its mean fsync (presets §1.9); barrier-850 charges the \
                       paper's 5 % on programs where barriers are used; the host's costs are those of `server`, on UFS of `phone`, and a call \
                       that waits is charged one wait, though a legacy commit has three. Where BFS falls behind, see `commits_per_fsync`: while \
                       EXT4 waits for data all threads join one transaction; BFS closes it at once, so they fall in two groups that take turns \
                       (here in step: nothing disturbs them), each with its own flush. BFS-MV has more transactions, so more metadata are \
                       written";

pub(super) const DWSL_UFS: Study = Study {
    name: "dwsl-ufs",
    what: "FxMark's DWSL: each thread appends 4 KiB to a file of its own and calls fsync; ext4 with ordered data that waits and flushes, \
           and in dual mode, where a transaction waits for blocks that an earlier one still has (BFS), or has versions of its own of them \
           (BFS-MV, after CJFS); on barrier-ufs, 2 channels",
    missing: MISSING,
    parameter: "threads",
    names: &[],
    metrics: &[
        ("ops", "appends/s, each with fsync"),
        ("fsync_mean_us", "mean of fsync, µs"),
        ("fsync_p999_us", "99.9th percentile of fsync, µs"),
        ("flushes_per_fsync", "flushes for each fsync"),
        ("durable_per_fsync", "flushes, and commit blocks written with FUA, for each fsync"),
        ("commits_per_fsync", "transactions for each fsync"),
    ],
    variants: &["EXT4", "BFS", "BFS-MV"],
    points: |scale| match scale {
        Scale::Quick => vec![1.0, 2.0, 4.0, 8.0, 16.0],
        Scale::Full => vec![1.0, 2.0, 4.0, 8.0, 16.0, 32.0, 64.0],
    },
    measure: |variant, x, seed, scale| dwsl(UFS, variant, x, seed, scale),
};

pub(super) const DWSL_PLAIN: Study = Study {
    name: "dwsl-plain",
    what: "the study `dwsl-ufs` on barrier-850, 8 channels and a volatile buffer",
    measure: |variant, x, seed, scale| dwsl(PLAIN, variant, x, seed, scale),
    ..DWSL_UFS
};

pub(super) const DWSL_SUPERCAP: Study = Study {
    name: "dwsl-supercap",
    what: "the study `dwsl-ufs` on barrier-843, 8 channels and a protected buffer",
    missing: "as `dwsl-ufs`; with many threads both are bound by what the device programs",
    measure: |variant, x, seed, scale| dwsl(SUPERCAP, variant, x, seed, scale),
    ..DWSL_UFS
};

pub(super) const SQLITE_UFS: Study = Study {
    name: "sqlite-ufs",
    what: "transactions as SQLite's with a journal that persists, by one thread: a page of the journal, its header, a page of the database \
           (4 MiB, at random), the header again, 4 KiB each and each followed by a call that orders or makes durable. EXT4-DR: fdatasync, \
           as SQLite does; BFS-DR: fdatabarrier three times, then fdatasync; EXT4-OD: fdatasync on ext4 mounted without barriers; \
           BFS-OD: fdatabarrier. On barrier-ufs",
    missing: "SQLite itself, its reads and its CPU time; otherwise as `dwsl-ufs`; with EXT4-OD the order is a lie: no power cut would \
              forgive it",
    parameter: "threads",
    names: &[],
    metrics: &[
        ("transactions", "transactions/s"),
        ("transaction_mean_us", "mean of a transaction, µs"),
        ("transaction_p999_us", "99.9th percentile of a transaction, µs"),
        ("flushes_per_transaction", "flushes for each transaction"),
        ("durable_per_transaction", "flushes, and commit blocks written with FUA, for each transaction"),
        ("commits_per_transaction", "transactions of the journal for each of these"),
    ],
    variants: &["EXT4-DR", "BFS-DR", "EXT4-OD", "BFS-OD"],
    points: |_| vec![1.0],
    measure: |variant, x, seed, scale| transactions(UFS, variant, x, seed, scale),
};

pub(super) const SQLITE_PLAIN: Study = Study {
    name: "sqlite-plain",
    what: "the study `sqlite-ufs` on barrier-850",
    measure: |variant, x, seed, scale| transactions(PLAIN, variant, x, seed, scale),
    ..SQLITE_UFS
};

/// Names of a device preset and of the host's costs.
type Machine = (&'static str, &'static str);
const UFS: Machine = ("barrier-ufs", "phone");
const PLAIN: Machine = ("barrier-850", "server");
const SUPERCAP: Machine = ("barrier-843", "server");

const PAGE: u64 = 4096;
/// Pages of a database.
const DB_PAGES: u64 = (4 << 20) / PAGE;

fn dwsl(machine: Machine, variant: usize, x: f64, seed: u64, scale: Scale) -> Vec<f64> {
    let commit_mode = if variant == 0 { CommitMode::Legacy } else { CommitMode::DualMode };
    let options = Ext4Options { commit_mode, multi_version: variant == 2, ..Ext4Options::default() };
    run(machine, options, Job::Append, x, seed, scale)
}

fn transactions(machine: Machine, variant: usize, x: f64, seed: u64, scale: Scale) -> Vec<f64> {
    let (commit_mode, barrier, order, last) = [
        (CommitMode::Legacy, true, Call::Fdatasync, Call::Fdatasync),
        (CommitMode::DualMode, true, Call::Fdatabarrier, Call::Fdatasync),
        (CommitMode::Legacy, false, Call::Fdatasync, Call::Fdatasync),
        (CommitMode::DualMode, true, Call::Fdatabarrier, Call::Fdatabarrier),
    ][variant];
    let options = Ext4Options { commit_mode, barrier, ..Ext4Options::default() };
    run(machine, options, Job::Transaction { order, last }, x, seed, scale)
}

/// A call after a write.
#[derive(Clone, Copy, Debug)]
enum Call {
    Fdatasync,
    Fdatabarrier,
}

/// One round of a thread's work.
#[derive(Clone, Copy, Debug)]
enum Job {
    /// The thread appends a page to its file and calls fsync.
    Append,
    /// The thread makes the writes of a transaction, each followed by a call.
    Transaction { order: Call, last: Call },
}

/// A thread and its files.
struct Thread {
    /// File to which it appends, or its journal.
    file: File<AnyFs>,
    /// Its database.
    db: File<AnyFs>,
    job: Job,
    random: RandomStream,
    handle: Handle,
    /// Number of pages written, which gives each page a content of its own.
    written: u64,
}

type Result<T> = std::result::Result<T, Errno>;

impl Thread {
    async fn prepare(
        process: &Process<AnyFs>,
        job: Job,
        number: u64,
        seed: u64,
        handle: Handle,
    ) -> Result<Self> {
        let file = process.create(format!("/file-{number}")).await?;
        let db = process.create(format!("/db-{number}")).await?;
        if let Job::Transaction { .. } = job {
            file.pwrite(0, Source::pattern(0, 2 * PAGE)).await?;
            db.pwrite(0, Source::pattern(0, DB_PAGES * PAGE)).await?;
        }
        let random = RandomStream::new(seed.wrapping_add(number << 32), "transactions");
        Ok(Self { file, db, job, random, handle, written: 0 })
    }

    /// Does one round; returns the time of the round, or of the fsync of an append.
    async fn round(&mut self) -> Result<Duration> {
        let begun = self.handle.now();
        match self.job {
            Job::Append => {
                let end = self.written * PAGE;
                self.write(false, end).await?;
                let begun = self.handle.now();
                self.file.sync(SyncKind::All).await?;
                return Ok(self.handle.now().since(begun));
            }
            Job::Transaction { order, last } => {
                let page = self.random.below(DB_PAGES) * PAGE;
                for (is_db, offset, call) in
                    [(false, PAGE, order), (false, 0, order), (true, page, order), (false, 0, last)]
                {
                    self.write(is_db, offset).await?;
                    let file = if is_db { &self.db } else { &self.file };
                    match call {
                        Call::Fdatasync => file.sync(SyncKind::Data).await?,
                        Call::Fdatabarrier => file.barrier(Barrier::Data).await?,
                    }
                }
            }
        }
        Ok(self.handle.now().since(begun))
    }

    async fn write(&mut self, is_db: bool, offset: u64) -> Result<()> {
        let file = if is_db { &self.db } else { &self.file };
        self.written += 1;
        file.pwrite(offset, Source::pattern(self.written, PAGE)).await.map(drop)
    }
}

/// Runs threads for a while. Returns rounds per second; mean and 99.9th percentile of the times of rounds, µs, NaN of too few; and for
/// each round: flushes, flushes and FUA commit blocks, and transactions of the journal.
fn run(
    (name, costs): Machine,
    options: Ext4Options,
    job: Job,
    threads: f64,
    seed: u64,
    scale: Scale,
) -> Vec<f64> {
    let config = device_of(name, options.commit_mode);
    // Then the commit block of each transaction is written with FUA.
    let has_fua = options.commit_mode == CommitMode::Legacy && options.barrier;
    let device = Device::new(config, DeviceOptions { seed, track_contents: true, planted: None });
    let mut stack = Stack::with_block_layer(device, FlushMode::Flush, HostConfig::default());
    let (port, handle) = (stack.port(), stack.handle());
    let costs = HostCosts::preset(costs).expect("it comes with the program");
    let prepared = stack.block_on(async move {
        let made = make(port, FlushMode::Flush, &options.into(), MakeOptions::default()).await;
        let fs = made.expect("the device has room for a volume");
        let mount = MountOptions { costs, ..MountOptions::default() };
        let vfs = Vfs::mount(fs, handle.clone(), mount).expect("the options are the usual ones");
        let (process, mut all) = (vfs.process(Creds::ROOT), Vec::new());
        for number in 0..threads as u64 {
            let thread = Thread::prepare(&process, job, number, seed, handle.clone()).await;
            all.push(thread.expect("the volume has room for files"));
        }
        vfs.sync_all().await.expect("the device takes flushes");
        (vfs, all)
    });
    let (vfs, all) = prepared.expect("a volume is made in a while");
    let times: Rc<RefCell<Vec<u64>>> = Rc::default();
    for mut thread in all {
        let times = Rc::clone(&times);
        stack.spawn(async move {
            loop {
                let time = thread.round().await.expect("the device takes writes and flushes");
                times.borrow_mut().push(time.as_nanos());
            }
        });
    }
    // The buffer is full before the measurement begins, if flushes let it fill.
    let (ramp, time) = match scale {
        Scale::Quick => (Duration::from_millis(300), Duration::from_millis(500)),
        Scale::Full => (Duration::from_secs(1), Duration::from_secs(5)),
    };
    let begin = stack.now() + ramp;
    let earlier = at(&mut stack, &vfs, begin);
    times.borrow_mut().clear();
    let later = at(&mut stack, &vfs, begin + time);
    let mut times = times.take();
    times.sort_unstable();
    let (calls, rounds) = (times.len() as u64, times.len() as f64);
    let (flushes, commits) = (later.0.since(&earlier.0).flushes as f64, (later.1 - earlier.1) as f64);
    let micros = |ns: u64| ns as f64 / 1e3;
    let rank = (rounds * 0.999).ceil() as usize;
    vec![
        if calls < RATE_CALLS_MIN { f64::NAN } else { rounds / time.as_secs_f64() },
        micros(times.iter().sum()) / rounds,
        if calls < TAIL_CALLS_MIN { f64::NAN } else { micros(times[rank - 1]) },
        flushes / rounds,
        (flushes + if has_fua { commits } else { 0.0 }) / rounds,
        commits / rounds,
    ]
}

/// Runs until an instant; returns the counters of the device and the number of committed transactions.
fn at(stack: &mut Stack, vfs: &Vfs<AnyFs>, instant: Instant) -> (DeviceMetrics, u64) {
    let handle = stack.handle();
    stack.block_on(async move { handle.sleep_until(instant).await }).expect("time goes on");
    (stack.with_device(|device| *device.metrics()), vfs.fs().metric("commits"))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Measurements of a variant of a study, by the metric's name.
    fn measured(study: &Study, variant: &str, threads: f64) -> impl Fn(&str) -> f64 + use<> {
        let at = study.variants.iter().position(|known| *known == variant).unwrap();
        let values = (study.measure)(at, threads, 1, Scale::Quick);
        assert_eq!(values.len(), study.metrics.len());
        let names: Vec<&str> = study.metrics.iter().map(|metric| metric.0).collect();
        move |name| values[names.iter().position(|known| *known == name).unwrap()]
    }

    fn about(value: f64, expected: f64) -> bool {
        (value - expected).abs() <= 0.02 * expected.max(1.0)
    }

    /// A single thread is always in a write or an fsync, so means and rates have to agree.
    #[test]
    fn fsync_is_durable_twice_by_waiting_and_once_by_order() {
        for study in [&DWSL_UFS, &DWSL_PLAIN, &DWSL_SUPERCAP] {
            for (variant, flushes, durable) in [("EXT4", 1.0, 2.0), ("BFS", 1.0, 1.0)] {
                let of = measured(study, variant, 1.0);
                let what = format!("{}, {variant}", study.name);
                assert!(about(of("flushes_per_fsync"), flushes), "{what}: {}", of("flushes_per_fsync"));
                assert!(about(of("durable_per_fsync"), durable), "{what}: {}", of("durable_per_fsync"));
                assert!(about(of("commits_per_fsync"), 1.0), "{what}: {}", of("commits_per_fsync"));
                let busy = of("ops") * of("fsync_mean_us") / 1e6;
                assert!((0.5..=1.0).contains(&busy), "{what}: in fsync for {busy} of the time");
                // Where there are enough calls for it.
                let tail = of("fsync_p999_us");
                assert_eq!(tail.is_nan(), of("ops") * 0.5 < TAIL_CALLS_MIN as f64, "{what}: {tail}");
                assert!(tail.is_nan() || of("fsync_mean_us") < 1.001 * tail, "{what}");
            }
        }
        // Threads that wait for the same commit share it.
        assert!(measured(&DWSL_PLAIN, "EXT4", 8.0)("commits_per_fsync") < 0.5);
    }

    #[test]
    fn transactions_wait_as_their_variant_says() {
        let transactions = SQLITE_UFS.variants.iter().map(|variant| {
            let of = measured(&SQLITE_UFS, variant, 1.0);
            let (flushes, durable) = match *variant {
                "EXT4-DR" => (4.0, 4.0),
                "BFS-DR" => (1.0, 1.0),
                _ => (0.0, 0.0),
            };
            let (f, d) = (of("flushes_per_transaction"), of("durable_per_transaction"));
            assert!(about(f, flushes) && about(d, durable), "{variant}: {f} flushes, {d} durable");
            let busy = of("transactions") * of("transaction_mean_us") / 1e6;
            assert!((0.99..=1.01).contains(&busy), "{variant}: at work for {busy} of the time");
            of("transactions")
        });
        let transactions: Vec<f64> = transactions.collect();
        // A variant that waits for less does more.
        let [waits, durable, lies, ordered] = transactions[..] else { panic!("{transactions:?}") };
        assert!(waits < durable && durable < ordered && waits < lies, "{transactions:?}");
    }
}
