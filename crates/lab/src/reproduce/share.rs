//! Studies of the SHARE paper (share §8): here those of ext4 whose checkpoints share.

use super::study::{Scale, Study};
use crate::files::{self, Setup, Work};
use flashweir_core::Duration;
use flashweir_device::DeviceConfig;
use flashweir_device::presets::preset;
use flashweir_fs::ext4::{CheckpointBy, Ext4Options, Journaling};
use flashweir_fs::vfs::{CacheConfig, HostCosts, MountOptions};
use flashweir_sim::stack::FlushMode;
use flashweir_workload::filebench::{parse_model, personality};
use flashweir_workload::fio::parse_job_file_on_files;

pub(super) const STUDIES: &[Study] = &[
    FILES,
    Study {
        name: "files-at-random",
        what: "the study `files` with fio's `file_service_type=random`: each write and each sync goes to a file at random",
        measure: |variant, x, seed, scale| fio("random", variant, x, seed, scale),
        ..FILES
    },
    Study {
        name: "mails",
        what: "filebench's varmail with 10,000 files; modes and device as in `files`; the quick scale has 1,000 files",
        missing: "the paper's host, as in `files`",
        parameter: "threads",
        metrics: METRICS,
        variants: MODES,
        points: |_| vec![16.0, 100.0],
        measure: mails,
    },
];

/// Ordered and journalled data, with checkpoints that write and that share.
const MODES: &[&str] = &["OJ", "SOJ", "DJ", "SDJ"];

const METRICS: &[(&str, &str)] = &[
    ("ops", "writes/s of fio, operations/s of varmail"),
    ("written_kib_per_op", "KiB that the host wrote for each of them"),
    ("home_blocks_per_op", "blocks that checkpoints wrote to their places for each"),
    ("shared_blocks_per_op", "blocks that checkpoints brought there by SHARE for each"),
    ("commits_per_s", "transactions of the journal/s"),
    ("checkpoints_per_s", "checkpoints/s"),
    ("flushes_per_sync", "flushes for each sync"),
];

/// The study of figure 2a.
const FILES: Study = Study {
    name: "files",
    what: "fio: random writes of 8 KiB over 10,000 files of 200 KiB, a sync after each so many, through the page cache. OJ and DJ: ext4 with \
           ordered and with journalled data; SOJ and SDJ: the same with checkpoints by SHARE. A journal of 128 MiB, on share-960evo with \
           room for it; fsync with journalled data commits everything, as on Linux (share §8.12); the quick scale has 1,000 files",
    missing: "the paper's device is a product, and what is inside is a guess (share §9.9); the host's costs are those of `server`; its time, of \
              which ours is a part",
    parameter: "writes between syncs",
    metrics: METRICS,
    variants: MODES,
    points: |scale| match scale {
        Scale::Quick => vec![8.0, 32.0, 128.0],
        Scale::Full => vec![1.0, 8.0, 16.0, 32.0, 64.0, 128.0],
    },
    measure: |variant, x, seed, scale| fio("roundrobin", variant, x, seed, scale),
};

fn fio(service: &str, variant: usize, x: f64, seed: u64, scale: Scale) -> Vec<f64> {
    let files = match scale {
        Scale::Quick => 1_000,
        Scale::Full => 10_000,
    };
    let text = format!(
        "[w]\ndirectory=/d\nrw=randwrite\nbs=8k\nnrfiles={files}\nfilesize=200k\noverwrite=1\nfsync={x}\n\
         file_service_type={service}\ntime_based\nruntime=1\n"
    );
    let jobs = parse_job_file_on_files("figure-2a.fio", &text).unwrap_or_else(|error| panic!("{error}")).jobs;
    run(("files", Work::Fio(jobs)), &["write"], variant, seed, scale)
}

fn mails(variant: usize, x: f64, seed: u64, scale: Scale) -> Vec<f64> {
    let files = match scale {
        Scale::Quick => "1000",
        Scale::Full => "10000",
    };
    let text = personality("varmail").expect("it comes with the program");
    let threads = x.to_string();
    let model = parse_model("varmail.f", text, &[("nfiles", files), ("nthreads", &threads)]);
    run(
        ("mails", Work::Filebench(model.unwrap_or_else(|error| panic!("{error}")))),
        &[],
        variant,
        seed,
        scale,
    )
}

/// The paper's device, as large as mke2fs needs to choose a journal of 128 MiB.
fn device() -> DeviceConfig {
    let mut device = preset("share-960evo").expect("it comes with the program");
    device.geometry.blocks_per_plane = 160;
    device.validate().expect("more blocks are always possible");
    device
}

fn run((name, work): (&str, Work), ops: &[&str], variant: usize, seed: u64, scale: Scale) -> Vec<f64> {
    let (journaling, checkpoint_by) = [
        (Journaling::Ordered, CheckpointBy::Write),
        (Journaling::Ordered, CheckpointBy::Share),
        (Journaling::Journal, CheckpointBy::Write),
        (Journaling::Journal, CheckpointBy::Share),
    ][variant];
    let options = Ext4Options {
        journaling,
        checkpoint_by,
        forced_commits: journaling == Journaling::Journal,
        ..Ext4Options::default()
    };
    let (ramp, time) = match scale {
        Scale::Quick => (Duration::from_millis(1_500), Duration::from_millis(2_500)),
        Scale::Full => (Duration::from_secs(5), Duration::from_secs(15)),
    };
    let setup = Setup {
        device: device(),
        flush: FlushMode::Flush,
        mode: options.into(),
        block_layer: None,
        mount: MountOptions {
            cache: CacheConfig::of_bytes(4 << 30),
            costs: HostCosts::preset("server").expect("it comes with the program"),
            ..MountOptions::default()
        },
        workloads: vec![(name.to_owned(), work)],
        seed,
        interval: Duration::from_millis(100),
        ramp,
        runtime: Some(time),
        is_direct: false,
    };
    let result = files::run(&setup, &mut |_| true).unwrap_or_else(|error| panic!("{error}"));
    let result = result.expect("nobody stops it");
    let workload = &result.workloads[0];
    let per_s = workload.calls_per_s(&workload.sum(ops));
    let seconds = result.measured_ns as f64 / 1e9;
    let count = |name: &str| result.metrics[name] as f64;
    let done = per_s * seconds;
    vec![
        per_s,
        count("device.host_units_written") * 4.0 / done,
        count("ext4.home_writes") / done,
        count("ext4.shared_blocks") / done,
        count("ext4.commits") / seconds,
        count("ext4.checkpoints") / seconds,
        count("device.flushes") / count("vfs.syncs"),
    ]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn checkpoints_that_share_write_no_block_home() {
        let [dj, sdj] = [2, 3].map(|variant| fio("roundrobin", variant, 32.0, 1, Scale::Quick));
        let [written, home, shared] = [1, 2, 3];
        assert!(dj[home] > 1.0 && dj[shared] == 0.0, "{dj:?}");
        assert!(sdj[home] == 0.0 && sdj[shared] > 1.0, "{sdj:?}");
        assert!(sdj[written] < 0.7 * dj[written] && sdj[0] > dj[0], "{dj:?} {sdj:?}");
    }
}
