//! Studies of the barrier paper on server workloads: mail and inserts into a database, on ext4.

use super::super::study::{Scale, Study, measure, on_server, per_s};
use super::devices::device_of;
use crate::files::Work;
use flashweir_core::Duration;
use flashweir_db::DataIo;
use flashweir_fs::ext4::{CommitMode, Ext4Options};
use flashweir_host::HostConfig;
use flashweir_workload::filebench::{parse_model, personality};
use flashweir_workload::oltp::sysbench::{Script, SysbenchOptions};

pub(super) const VARMAIL_PLAIN: Study = Study {
    name: "varmail-plain",
    what: "filebench's varmail: threads that create, append to, sync, read and delete mails. EXT4-DR: ext4 with ordered data that waits and \
           flushes; BFS-DR: dual mode; EXT4-OD: ext4 mounted without barriers; BFS-OD: dual mode, each fsync an fbarrier. On barrier-850, \
           8 channels and a volatile buffer",
    missing: "the paper's devices are products: ours are guesses fitted to its mean fsync (presets §1.9); barrier-850 charges the paper's 5 % on \
              programs where barriers are used; the host's costs are those of `server`; with EXT4-OD the order is a lie: no power cut would \
              forgive it. With many threads EXT4-OD can be ahead of BFS-OD on a volatile buffer: versions of a block in different epochs are \
              programmed one by one, where without order the newest overwrites the others in the buffer",
    parameter: "threads",
    names: &[],
    metrics: &[
        ("ops", "operations/s of varmail, transactions/s of inserts"),
        ("syncs", "syncs/s, by which programs wait for durability or order"),
        ("flushes_per_sync", "flushes for each sync"),
        ("commits_per_sync", "transactions of the journal for each sync"),
        ("conflicts_per_commit", "blocks of a transaction that one under way had, for which it waited"),
        ("written_mib_s", "MiB/s that the host wrote"),
    ],
    variants: &["EXT4-DR", "BFS-DR", "EXT4-OD", "BFS-OD"],
    points: |scale| match scale {
        Scale::Quick => vec![1.0, 16.0],
        Scale::Full => vec![1.0, 10.0, 16.0, 20.0, 40.0],
    },
    measure: |variant, x, seed, scale| varmail("barrier-850", variant, x, seed, scale),
};

pub(super) const VARMAIL_SUPERCAP: Study = Study {
    name: "varmail-supercap",
    what: "the study `varmail-plain` on barrier-843, 8 channels and a protected buffer",
    measure: |variant, x, seed, scale| varmail("barrier-843", variant, x, seed, scale),
    ..VARMAIL_PLAIN
};

pub(super) const OLTP_INSERT_PLAIN: Study = Study {
    name: "oltp-insert-plain",
    what: "sysbench's oltp_insert on the page engine: connections that insert a row of 188 bytes and an entry of an index, each a \
           transaction; variants and device as in `varmail-plain`, files are synced as InnoDB's, by fsync",
    missing: "MySQL itself, of which the page engine has the shape: a redo log that is synced at each commit, a double-write buffer, pages \
              written back later; no CPU time of its SQL; otherwise as `varmail-plain`",
    parameter: "connections",
    measure: |variant, x, seed, scale| inserts("barrier-850", variant, x, seed, scale),
    ..VARMAIL_PLAIN
};

pub(super) const OLTP_INSERT_SUPERCAP: Study = Study {
    name: "oltp-insert-supercap",
    what: "the study `oltp-insert-plain` on barrier-843",
    measure: |variant, x, seed, scale| inserts("barrier-843", variant, x, seed, scale),
    ..OLTP_INSERT_PLAIN
};

fn varmail(device: &str, variant: usize, x: f64, seed: u64, scale: Scale) -> Vec<f64> {
    let text = personality("varmail").expect("it comes with the program");
    let threads = (x as u64).to_string();
    let model = parse_model("varmail.f", text, &[("nthreads", &threads)]);
    let work = Work::Filebench(model.unwrap_or_else(|error| panic!("{error}")));
    run(device, ("varmail", work), variant, seed, scale)
}

fn inserts(device: &str, variant: usize, x: f64, seed: u64, scale: Scale) -> Vec<f64> {
    let mut options = SysbenchOptions::new("oltp-insert", seed, Script::Insert);
    options.run.connections = x as u32;
    options.db.log_fsync = true;
    // InnoDB's default, `innodb_flush_method = fsync`.
    options.db.data_io = DataIo::Buffered;
    run(device, ("oltp-insert", Work::Sysbench(options)), variant, seed, scale)
}

fn run(device: &str, (name, work): (&str, Work), variant: usize, seed: u64, scale: Scale) -> Vec<f64> {
    let (commit_mode, barrier, syncs_order) = [
        (CommitMode::Legacy, true, false),
        (CommitMode::DualMode, true, false),
        (CommitMode::Legacy, false, false),
        (CommitMode::DualMode, true, true),
    ][variant];
    let device = device_of(device, commit_mode);
    let times = match scale {
        Scale::Quick => (Duration::from_millis(300), Duration::from_millis(700)),
        Scale::Full => (Duration::from_secs(2), Duration::from_secs(10)),
    };
    let mode = Ext4Options { commit_mode, barrier, ..Ext4Options::default() }.into();
    let mut setup = on_server(device, mode, 1 << 30, (name, work), seed, times);
    setup.block_layer = Some(HostConfig::default());
    setup.mount.syncs_order = syncs_order;
    let result = measure(&setup);
    let count = |name: &str| result.metrics[name] as f64;
    let seconds = result.measured_ns as f64 / 1e9;
    let syncs = count("vfs.syncs") + count("vfs.barriers");
    vec![
        per_s(&result, &[]),
        syncs / seconds,
        count("device.flushes") / syncs,
        count("ext4.commits") / syncs,
        count("ext4.conflicts") / count("ext4.commits").max(1.0),
        count("device.host_units_written") / 256.0 / seconds,
    ]
}
