//! Studies of figure 4 of the SHARE paper (share §8): a database whose pages must not be torn.

use super::super::study::{Scale, Study, measure, on_server, per_s};
use super::devices::device;
use crate::files::Work;
use flashweir_core::Duration;
use flashweir_db::{CommitMode, Config, DataIo, DoubleWrite};
use flashweir_fs::ext4::{CheckpointBy, Ext4Options, Journaling};
use flashweir_workload::oltp::linkbench::LinkBenchOptions;
use flashweir_workload::oltp::sysbench::{Script, SysbenchOptions};

/// How a database is kept from torn pages, and how ext4 is mounted below it.
const VARIANTS: &[&str] = &["DWB-ON/OJ", "DWB-OFF/DJ", "DWB-OFF/OJ", "DWB-OFF/SADJ", "DWB-fast/OJ"];

/// Values of `innodb_flush_log_at_trx_commit`: the log is synced once a second, at each commit, or once a second after each commit has
/// written it.
const LOG_SYNCS: [CommitMode; 3] = [CommitMode::Lazy, CommitMode::Sync, CommitMode::Write];

/// Number of tables where it is not the parameter.
const TABLES: u32 = 24;

pub(super) const SYSBENCH: Study = Study {
    name: "sysbench",
    what: "sysbench's oltp_read_write on the page engine with 24 tables of 100,000 rows, a pool of 64 MiB, 64 connections, and a file for \
           each table, through the page cache. DWB-ON: pages of 16 KiB are written twice; OFF: once, to ext4 with ordered data (OJ, unsafe), \
           journalled data (DJ), or to atomic files above checkpoints that share (SADJ); fast: twice, files synced by checkpoints of the \
           database only (unsafe, database §1). A journal of 128 MiB on share-960evo; the quick scale has 20,000 rows and 16 MiB",
    missing: "the paper's device is a product, and what is inside is a guess (share §9.9); MySQL itself, of which the page engine has the \
              shape; tables, rows, connections and memory of the paper, which does not say them; the host's costs are those of `server`",
    parameter: "innodb_flush_log_at_trx_commit",
    names: &[],
    metrics: &[
        ("ops", "transactions/s of sysbench, operations/s of LinkBench"),
        ("written_kib_per_op", "KiB that the host wrote for each of them"),
        ("flushes_per_op", "flushes of the device for each"),
        ("flushes_per_s", "flushes/s"),
        ("page_writes_per_op", "pages written to data files for each"),
        ("log_syncs_per_s", "syncs of the database's log/s"),
        ("data_syncs_per_s", "syncs of its data files/s; a syncv of several is one"),
    ],
    variants: VARIANTS,
    points: |scale| match scale {
        Scale::Quick => vec![0.0],
        Scale::Full => vec![0.0, 1.0, 2.0],
    },
    measure: |variant, x, seed, scale| {
        sysbench(variant, TABLES, LOG_SYNCS[x as usize], DataIo::Buffered, seed, scale)
    },
};

pub(super) const SYSBENCH_DIRECT: Study = Study {
    name: "sysbench-direct",
    what: "the study `sysbench` with O_DIRECT for the data files; Linux has none where data are journalled, ours has",
    measure: |variant, x, seed, scale| {
        sysbench(variant, TABLES, LOG_SYNCS[x as usize], DataIo::Direct, seed, scale)
    },
    ..SYSBENCH
};

pub(super) const SYSBENCH_TABLES: Study = Study {
    name: "sysbench-tables",
    what: "the study `sysbench` with so many tables, of as many rows together, and a log that is synced once a second",
    parameter: "tables",
    points: |scale| match scale {
        Scale::Quick => vec![1.0, 24.0],
        Scale::Full => vec![1.0, 8.0, 24.0, 64.0],
    },
    measure: |variant, x, seed, scale| {
        sysbench(variant, x as u32, CommitMode::Lazy, DataIo::Buffered, seed, scale)
    },
    ..SYSBENCH
};

pub(super) const LINKBENCH: Study = Study {
    name: "linkbench",
    what: "LinkBench on the page engine with 500,000 nodes in three tables; otherwise as `sysbench`; the quick scale has 100,000 nodes",
    measure: |variant, x, seed, scale| {
        let nodes = match scale {
            Scale::Quick => 100_000,
            Scale::Full => 500_000,
        };
        let mut options = LinkBenchOptions::new("linkbench", seed, nodes);
        options.run.connections = CONNECTIONS;
        options.db = database(variant, LOG_SYNCS[x as usize], DataIo::Buffered, scale);
        run(("linkbench", Work::LinkBench(options)), variant, seed, scale)
    },
    ..SYSBENCH
};

const CONNECTIONS: u32 = 64;

fn database(variant: usize, commit: CommitMode, data_io: DataIo, scale: Scale) -> Config {
    let double_write =
        [DoubleWrite::On, DoubleWrite::Off, DoubleWrite::Off, DoubleWrite::Atomic, DoubleWrite::Fast]
            [variant];
    Config {
        pool_bytes: match scale {
            Scale::Quick => 16 << 20,
            Scale::Full => 64 << 20,
        },
        commit,
        log_fsync: true,
        double_write,
        file_per_table: true,
        data_io,
        // InnoDB's default.
        io_capacity: 200,
        ..Config::default()
    }
}

fn sysbench(
    variant: usize,
    tables: u32,
    commit: CommitMode,
    data_io: DataIo,
    seed: u64,
    scale: Scale,
) -> Vec<f64> {
    let rows = match scale {
        Scale::Quick => 20_000,
        Scale::Full => 100_000,
    };
    let mut options = SysbenchOptions::new("sysbench", seed, Script::ReadWrite);
    options.tables = tables;
    options.rows = rows * u64::from(TABLES) / u64::from(tables);
    options.run.connections = CONNECTIONS;
    options.db = database(variant, commit, data_io, scale);
    run(("sysbench", Work::Sysbench(options)), variant, seed, scale)
}

fn run(work: (&str, Work), variant: usize, seed: u64, scale: Scale) -> Vec<f64> {
    let (journaling, checkpoint_by) = match VARIANTS[variant] {
        "DWB-OFF/DJ" => (Journaling::Journal, CheckpointBy::Write),
        "DWB-OFF/SADJ" => (Journaling::Journal, CheckpointBy::Share),
        _ => (Journaling::Ordered, CheckpointBy::Write),
    };
    let forced_commits = journaling == Journaling::Journal;
    let options = Ext4Options { journaling, checkpoint_by, forced_commits, ..Ext4Options::default() };
    let times = match scale {
        Scale::Quick => (Duration::from_secs(1), Duration::from_secs(3)),
        Scale::Full => (Duration::from_secs(5), Duration::from_secs(15)),
    };
    let result = measure(&on_server(device(), options.into(), 4 << 30, work, seed, times));
    let seconds = result.measured_ns as f64 / 1e9;
    let per_s = per_s(&result, &[]);
    let count = |name: &str| result.metrics[name] as f64;
    let done = per_s * seconds;
    vec![
        per_s,
        count("device.host_units_written") * 4.0 / done,
        count("device.flushes") / done,
        count("device.flushes") / seconds,
        count("db.page_writes") / done,
        count("db.log_syncs") / seconds,
        count("db.data_syncs") / seconds,
    ]
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The order of figure 4, at a small scale: a page that is written once costs half, and one flush does for all files.
    #[test]
    fn atomic_files_write_pages_once_and_flush_once() {
        let [on, sadj] = [0, 3]
            .map(|variant| sysbench(variant, TABLES, CommitMode::Lazy, DataIo::Buffered, 1, Scale::Quick));
        let [ops, written, flushes] = [0, 1, 2];
        assert!(sadj[ops] > 2.0 * on[ops], "{on:?} {sadj:?}");
        assert!(sadj[written] < 0.7 * on[written] && sadj[flushes] < 0.2 * on[flushes], "{on:?} {sadj:?}");
    }
}
