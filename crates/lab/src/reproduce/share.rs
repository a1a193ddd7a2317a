//! Studies of the SHARE paper (share §8): ext4 whose checkpoints share, and F2FS that cleans by SHARE; in [`databases`] databases on them.

mod databases;
mod devices;

use super::study::{Scale, Study, measure, on_server, per_s};
use crate::files::Work;
use devices::device;
use flashweir_core::Duration;
use flashweir_device::presets::preset;
use flashweir_device::{Device, DeviceConfig, DeviceOptions};
use flashweir_fs::ext4::{CheckpointBy, Ext4Options, Journaling};
use flashweir_fs::f2fs::{self, CleanBy, F2fs, F2fsOptions};
use flashweir_fs::port::{BlockPort, Image, block_on};
use flashweir_fs::vfs::Fs;
use flashweir_sim::stack::{FlushMode, Stack};
use flashweir_workload::filebench::{parse_model, personality};
use flashweir_workload::fio::parse_job_file_on_files;
use std::rc::Rc;

pub(super) const STUDIES: &[Study] = &[
    FILES,
    Study {
        name: "files-at-random",
        what: "the study `files` with fio's `file_service_type=random`: each write and each sync goes to a file at random",
        measure: |variant, x, seed, scale| {
            run(fio("random", x, scale), (device(), None), variant, seed, scale)
        },
        ..FILES
    },
    Study {
        name: "mails",
        what: "filebench's varmail with 10,000 files; modes and device as in `files`; the quick scale has 1,000 files",
        missing: "the paper's host, as in `files`",
        parameter: "threads",
        names: &[],
        metrics: METRICS,
        variants: MODES,
        points: |_| vec![16.0, 100.0],
        measure: mails,
    },
    Study {
        name: "journals",
        what: "the study `files` with journalled data and journals of other sizes (share §8.1), on a device whose table has room for all that \
               they hold",
        variants: &["DJ, 128 MiB", "SDJ, 128 MiB", "DJ, 512 MiB", "SDJ, 512 MiB", "DJ, 1 GiB", "SDJ, 1 GiB"],
        measure: |variant, x, seed, scale| {
            let mut device = device();
            device.ftl.share.pages = 1 << 20;
            let blocks = [1 << 15, 1 << 17, 1 << 18][variant / 2];
            run(fio("roundrobin", x, scale), (device, Some(blocks)), 2 + variant % 2, seed, scale)
        },
        ..FILES
    },
    Study {
        name: "nvram",
        what: "the study `files` with checkpoints by SHARE, whose records are durable in a page of the map log, in an NVRAM beside the flash, \
               or in one that is small (share §4.4)",
        variants: &[
            "SOJ, flash",
            "SOJ, 65,536 records",
            "SDJ, flash",
            "SDJ, 65,536 records",
            "SDJ, 512 records",
        ],
        measure: |variant, x, seed, scale| {
            let mut device = device();
            device.ftl.share.nvram_records = [0, 65_536, 0, 65_536, 512][variant];
            run(fio("roundrobin", x, scale), (device, None), [1, 1, 3, 3, 3][variant], seed, scale)
        },
        ..FILES
    },
    SEGMENTS,
    databases::SYSBENCH,
    databases::SYSBENCH_TABLES,
    databases::SYSBENCH_DIRECT,
    databases::LINKBENCH,
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
    names: &[],
    metrics: METRICS,
    variants: MODES,
    points: |scale| match scale {
        Scale::Quick => vec![8.0, 32.0, 128.0],
        Scale::Full => vec![1.0, 8.0, 16.0, 32.0, 64.0, 128.0],
    },
    measure: |variant, x, seed, scale| {
        run(fio("roundrobin", x, scale), (device(), None), variant, seed, scale)
    },
};

/// A workload, its name, and the kinds of its calls that count, all if none is named.
type Counted = ((&'static str, Work), &'static [&'static str]);

fn fio(service: &str, x: f64, scale: Scale) -> Counted {
    let files = match scale {
        Scale::Quick => 1_000,
        Scale::Full => 10_000,
    };
    let text = format!(
        "[w]\ndirectory=/d\nrw=randwrite\nbs=8k\nnrfiles={files}\nfilesize=200k\noverwrite=1\nfsync={x}\n\
         file_service_type={service}\ntime_based\nruntime=1\n"
    );
    let jobs = parse_job_file_on_files("figure-2a.fio", &text).unwrap_or_else(|error| panic!("{error}")).jobs;
    (("files", Work::Fio(jobs)), &["write"])
}

fn mails(variant: usize, x: f64, seed: u64, scale: Scale) -> Vec<f64> {
    let files = match scale {
        Scale::Quick => "1000",
        Scale::Full => "10000",
    };
    let text = personality("varmail").expect("it comes with the program");
    let threads = x.to_string();
    let model = parse_model("varmail.f", text, &[("nfiles", files), ("nthreads", &threads)]);
    let work = ("mails", Work::Filebench(model.unwrap_or_else(|error| panic!("{error}"))));
    run((work, &[]), (device(), None), variant, seed, scale)
}

/// The study of figure 3.
const SEGMENTS: Study = Study {
    name: "segments",
    what: "fio: random writes of 4 KiB to one file that fills so much of F2FS, a sync after each so many, through the page cache; \
           cleaning copies, or shares (SSC). On share-960evo with an eighth of its pages in each block, so that cleaning is steady in \
           seconds",
    missing: "the paper's device is a product, and what is inside is a guess (share §9.9); the host's costs are those of `server`; it writes \
              40 % of the capacity, we so many seconds",
    parameter: "writes between syncs",
    names: &[],
    metrics: &[
        ("ops", "writes/s of fio"),
        ("ops_cleaning", "the same, where at least 100 segments were cleaned (presets §3.4)"),
        ("moved_per_op", "blocks of data that cleaning moved for each"),
        ("shared_per_op", "blocks of these that were moved by SHARE for each"),
        ("written_kib_per_op", "KiB that the host wrote for each"),
        ("programmed_per_write", "units programmed for each unit that the host wrote, GC included"),
    ],
    variants: &["copy, 50 %", "SSC, 50 %", "copy, 75 %", "SSC, 75 %", "copy, 90 %", "SSC, 90 %"],
    points: |scale| match scale {
        Scale::Quick => vec![8.0, 32.0],
        Scale::Full => vec![1.0, 8.0, 16.0, 32.0, 64.0, 128.0],
    },
    measure: segments,
};

fn segments(variant: usize, x: f64, seed: u64, scale: Scale) -> Vec<f64> {
    let fill_percent = [50, 75, 90][variant / 2];
    let mut device = preset("share-960evo").expect("it comes with the program");
    device.geometry.pages_per_block /= 8;
    device.validate().expect("smaller blocks are possible");
    let pages = pages_of_f2fs(&device) * fill_percent / 100;
    let text = format!(
        "[w]\nfilename=/w\nrw=randwrite\nbs=4k\nsize={}k\noverwrite=1\nfsync={x}\ntime_based\nruntime=1\n",
        pages * 4
    );
    let jobs = parse_job_file_on_files("figure-3.fio", &text).unwrap_or_else(|error| panic!("{error}")).jobs;
    let clean_by = if variant.is_multiple_of(2) { CleanBy::Copy } else { CleanBy::Share };
    let mode = F2fsOptions { clean_by, ..F2fsOptions::default() }.into();
    let times = match scale {
        Scale::Quick => (Duration::from_secs(6), Duration::from_secs(4)),
        Scale::Full => (Duration::from_secs(20), Duration::from_secs(40)),
    };
    let result = measure(&on_server(device, mode, 4 << 30, ("segments", Work::Fio(jobs)), seed, times));
    let per_s = per_s(&result, &["write"]);
    let count = |name: &str| result.metrics[name] as f64;
    let done = per_s * result.measured_ns as f64 / 1e9;
    let programmed = count("device.user_units_programmed") + count("device.gc_units_moved");
    let cleaned = count("f2fs.cleaned_foreground") + count("f2fs.cleaned_background");
    vec![
        per_s,
        if cleaned < 100.0 { f64::NAN } else { per_s },
        count("f2fs.moved_data_blocks") / done,
        count("f2fs.shared_data_blocks") / done,
        count("device.host_units_written") * 4.0 / done,
        programmed / count("device.host_units_written"),
    ]
}

/// Pages that files can have on F2FS on this device.
fn pages_of_f2fs(device: &DeviceConfig) -> u64 {
    let device = Device::new(device.clone(), DeviceOptions { seed: 1, track_contents: false, planted: None });
    let blocks = Stack::new(device, FlushMode::Flush).port().capacity_blocks();
    let image = Rc::new(Image::in_memory(blocks));
    block_on(async {
        f2fs::mkfs(&*image, &f2fs::Options::new(blocks)).await.expect("the device is large enough");
        let fs = F2fs::mount(Rc::clone(&image) as _).await.expect("it was just made");
        fs.statfs().await.expect("it is mounted").pages
    })
}

/// Runs a workload in one of [`MODES`], on a device with a journal of so many blocks, or as many as mke2fs chooses.
fn run(
    (work, ops): Counted,
    (device, journal_blocks): (DeviceConfig, Option<u32>),
    mode: usize,
    seed: u64,
    scale: Scale,
) -> Vec<f64> {
    let (journaling, checkpoint_by) = [
        (Journaling::Ordered, CheckpointBy::Write),
        (Journaling::Ordered, CheckpointBy::Share),
        (Journaling::Journal, CheckpointBy::Write),
        (Journaling::Journal, CheckpointBy::Share),
    ][mode];
    let options = Ext4Options {
        journaling,
        checkpoint_by,
        forced_commits: journaling == Journaling::Journal,
        ..Ext4Options::default()
    };
    let times = match scale {
        Scale::Quick => (Duration::from_millis(1_500), Duration::from_millis(2_500)),
        Scale::Full => (Duration::from_secs(5), Duration::from_secs(15)),
    };
    let mut setup = on_server(device, options.into(), 4 << 30, work, seed, times);
    setup.volume.journal_blocks = journal_blocks;
    let result = measure(&setup);
    let per_s = per_s(&result, ops);
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
        let [dj, sdj] = [2, 3]
            .map(|mode| run(fio("roundrobin", 32.0, Scale::Quick), (device(), None), mode, 1, Scale::Quick));
        let [written, home, shared] = [1, 2, 3];
        assert!(dj[home] > 1.0 && dj[shared] == 0.0, "{dj:?}");
        assert!(sdj[home] == 0.0 && sdj[shared] > 1.0, "{sdj:?}");
        assert!(sdj[written] < 0.7 * dj[written] && sdj[0] > dj[0], "{dj:?} {sdj:?}");
    }
}
