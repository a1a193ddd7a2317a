//! The layers whose mutants are drawn: the files of each layer's durability path, and the suites that have to find its mutants.
//!
//! Place: data for [`super`]. The suites are those of CI; [`crate::campaigns`] and [`crate::file_pairs`] list its power cuts.

use crate::{campaigns, file_pairs};
use flashweir_judges::host::on_path;

/// A layer: its files, by their paths from the root, and its suites.
pub(crate) struct Layer {
    pub(crate) name: &'static str,
    pub(crate) files: &'static [&'static str],
    tests: &'static [Tests],
    cuts: fn() -> Vec<String>,
}

/// Some of the integration tests or unit tests of a crate.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Tests {
    pub(crate) package: &'static str,
    /// `lib` for unit tests, or the name of the integration tests.
    pub(crate) target: &'static str,
    pub(crate) filter: &'static str,
}

/// Part of the names of tests that compare golden records, and their filter.
pub(crate) const GOLDEN: &str = "golden_records";

/// A suite that judges a mutant: exit code 0 means that it found nothing.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Suite {
    /// `weir` with these arguments and a seed.
    Weir(String),
    Tests(Tests),
}

impl Suite {
    /// Whether it compares golden records, which see any change of behaviour, wrong or not.
    pub(crate) fn is_golden(&self) -> bool {
        matches!(self, Self::Tests(tests) if tests.filter == GOLDEN)
    }

    pub(crate) fn name(&self) -> String {
        match self {
            Self::Weir(args) => format!("weir {args}"),
            Self::Tests(tests) => {
                format!("tests {} {} {}", tests.package, tests.target, tests.filter).trim_end().into()
            }
        }
    }
}

pub(crate) const LAYERS: [Layer; 11] = [
    Layer {
        name: "device",
        files: &[
            "crates/device/src/cx.rs",
            "crates/device/src/flash/machine.rs",
            "crates/device/src/flash/media.rs",
            "crates/device/src/front/arrivals.rs",
            "crates/device/src/front/check.rs",
            "crates/device/src/page/accept.rs",
            "crates/device/src/page/buffer.rs",
            "crates/device/src/page/destage.rs",
            "crates/device/src/page/drain.rs",
            "crates/ftl/src/epochs.rs",
            "crates/device/src/page/failing.rs",
            "crates/device/src/page/firmware.rs",
            "crates/device/src/page/flush.rs",
            "crates/device/src/page/frontier.rs",
            "crates/device/src/page/gc.rs",
            "crates/device/src/page/log.rs",
            "crates/ftl/src/map_log.rs",
            "crates/device/src/page/order.rs",
            "crates/device/src/page/programmed.rs",
            "crates/device/src/page/range_flush.rs",
            "crates/device/src/page/read.rs",
            "crates/device/src/page/recover.rs",
            "crates/device/src/page/scan.rs",
            "crates/device/src/page/tags.rs",
            "crates/device/src/page/work.rs",
            "crates/device/src/ssd.rs",
            "crates/ftl/src/blocks.rs",
            "crates/ftl/src/recovery.rs",
        ],
        tests: &[
            tests("flashweir-device", "lib", ""),
            tests("flashweir-device", "it", ""),
            tests("flashweir-ftl", "lib", ""),
            tests("flashweir-serve", "lib", ""),
            tests("flashweir-device", "it", GOLDEN),
            tests("flashweir-sim", "it", GOLDEN),
        ],
        cuts: campaigns::device_cuts,
    },
    Layer {
        name: "block-layer",
        files: &[
            "crates/host/src/block_layer.rs",
            "crates/host/src/chain.rs",
            "crates/host/src/elevator.rs",
            "crates/host/src/epochs.rs",
            "crates/host/src/overlap.rs",
        ],
        tests: &[
            tests("flashweir-host", "lib", "tests::programs"),
            tests("flashweir-host", "lib", "tests::waiting"),
            tests("flashweir-host", "lib", ""),
            tests("flashweir-sim", "it", "ordered_stack"),
            tests("flashweir-sim", "it", "raw_on_layer"),
            tests("flashweir-sim", "it", GOLDEN),
        ],
        cuts: || file_cuts_on("layer"),
    },
    Layer {
        name: "page-cache",
        files: &[
            "crates/fs/src/order.rs",
            "crates/fs/src/port.rs",
            "crates/fs/src/vfs/pages.rs",
            "crates/fs/src/vfs/sync.rs",
            "crates/fs/src/vfs/writeback.rs",
        ],
        tests: &[
            tests("flashweir-fs", "lib", "port"),
            tests("flashweir-fs", "lib", "vfs"),
            tests("flashweir-fs", "vfs", "writeback"),
            tests("flashweir-fs", "vfs", ""),
            tests("flashweir-sim", "it", "fsync"),
            tests("flashweir-sim", "it", GOLDEN),
        ],
        cuts: || file_cuts(""),
    },
    Layer {
        name: "ext4",
        files: &[
            "crates/fs/src/engine.rs",
            "crates/fs/src/ext4/recover.rs",
            "crates/fs/src/ext4/replay.rs",
            "crates/fs/src/ext4/write/by_addr.rs",
            "crates/fs/src/ext4/write/fs.rs",
            "crates/fs/src/ext4/write/journal.rs",
            "crates/fs/src/ext4/write/map.rs",
            "crates/fs/src/ext4/write/mod.rs",
            "crates/fs/src/ext4/write/order.rs",
            "crates/fs/src/ext4/write/orphan.rs",
            "crates/fs/src/ext4/write/space.rs",
            "crates/fs/src/ext4/write/spans.rs",
            "crates/fs/src/ext4/write/state.rs",
            "crates/fs/src/ext4/write/sync.rs",
        ],
        tests: &[
            tests("flashweir-fs", "lib", "ext4::volume_tests"),
            tests("flashweir-fs", "lib", "ext4::write"),
            tests("flashweir-fs", "vfs", "ext4"),
            tests("flashweir-fs", "vfs", ""),
            tests("flashweir-sim", "it", GOLDEN),
        ],
        cuts: || file_cuts("ext4"),
    },
    Layer {
        name: "f2fs",
        files: &[
            "crates/fs/src/f2fs/write/area/fixed.rs",
            "crates/fs/src/f2fs/write/by_nid.rs",
            "crates/fs/src/f2fs/write/checkpoint.rs",
            "crates/fs/src/f2fs/write/clean.rs",
            "crates/fs/src/f2fs/write/fs.rs",
            "crates/fs/src/f2fs/write/fsync.rs",
            "crates/fs/src/f2fs/write/mod.rs",
            "crates/fs/src/f2fs/write/order.rs",
            "crates/fs/src/f2fs/write/recover.rs",
            "crates/fs/src/f2fs/write/segments.rs",
            "crates/fs/src/f2fs/write/space.rs",
            "crates/fs/src/f2fs/write/state.rs",
        ],
        tests: &[
            tests("flashweir-fs", "lib", "f2fs"),
            tests("flashweir-fs", "vfs", "f2fs"),
            tests("flashweir-fs", "vfs", ""),
            tests("flashweir-sim", "it", "fsync"),
            tests("flashweir-sim", "it", GOLDEN),
        ],
        cuts: || file_cuts("f2fs"),
    },
    Layer {
        name: "alfs",
        files: &[
            "crates/fs/src/alfs/find.rs",
            "crates/fs/src/alfs/mkfs.rs",
            "crates/fs/src/alfs/mount.rs",
            "crates/fs/src/f2fs/appended/map.rs",
            "crates/fs/src/f2fs/write/area/appended.rs",
            "crates/fs/src/f2fs/write/behind.rs",
            "crates/fs/src/port/sequencer.rs",
        ],
        tests: &[
            tests("flashweir-fs", "lib", "alfs"),
            tests("flashweir-fs", "lib", "port"),
            tests("flashweir-sim", "it", GOLDEN),
        ],
        cuts: || file_cuts("alfs"),
    },
    Layer {
        name: "database",
        files: &[
            "crates/db/src/db.rs",
            "crates/db/src/file.rs",
            "crates/db/src/log.rs",
            "crates/db/src/log_io.rs",
            "crates/db/src/page_io.rs",
            "crates/db/src/pool.rs",
            "crates/db/src/recovery.rs",
            "crates/db/src/redo.rs",
            "crates/db/src/transaction.rs",
            "crates/db/src/undo.rs",
        ],
        tests: &[
            tests("flashweir-db", "lib", ""),
            tests("flashweir-db", "it", ""),
            tests("flashweir-sim", "it", "database"),
        ],
        cuts: Vec::new,
    },
    Layer {
        name: "sqlite-files",
        files: &[
            "crates/sqlite/src/guest.rs",
            "crates/sqlite/src/host.rs",
            "crates/sqlite/src/locks.rs",
            "crates/sqlite/src/order.rs",
        ],
        tests: &[tests("flashweir-sqlite", "lib", ""), tests("flashweir-sqlite", "it", "")],
        cuts: || campaigns::SQLITE_CUTS.map(|what| format!("crash sqlite --quiet {what}")).to_vec(),
    },
    Layer {
        name: "segments",
        files: &[
            "crates/device/src/segment/accept.rs",
            "crates/device/src/segment/check.rs",
            "crates/device/src/segment/firmware.rs",
            "crates/device/src/segment/log.rs",
            "crates/device/src/segment/log_queue.rs",
            "crates/device/src/segment/moves.rs",
            "crates/device/src/segment/order.rs",
            "crates/device/src/segment/program.rs",
            "crates/device/src/segment/read.rs",
            "crates/device/src/segment/recover.rs",
            "crates/device/src/segment/table.rs",
        ],
        tests: &[
            tests("flashweir-device", "it", "append"),
            tests("flashweir-crash", "it", "append"),
            tests("flashweir-device", "it", GOLDEN),
        ],
        cuts: campaigns::segment_cuts,
    },
    Layer {
        name: "open-channel",
        files: &[
            "crates/device/src/open/check.rs",
            "crates/device/src/open/chunks.rs",
            "crates/device/src/open/copy.rs",
            "crates/device/src/open/firmware.rs",
            "crates/device/src/open/places.rs",
            "crates/device/src/open/program.rs",
            "crates/device/src/open/read.rs",
            "crates/device/src/open/report.rs",
            "crates/device/src/open/reset.rs",
            "crates/device/src/open/state.rs",
        ],
        tests: &[
            tests("flashweir-device", "it", "open::"),
            tests("flashweir-crash", "it", "open::"),
            tests("flashweir-crash", "it", "commands::"),
        ],
        cuts: campaigns::open_cuts,
    },
    Layer {
        name: "host-ftl",
        files: &[
            "crates/host/src/ftl/admit.rs",
            "crates/host/src/ftl/check.rs",
            "crates/host/src/ftl/collect.rs",
            "crates/host/src/ftl/lines.rs",
            "crates/host/src/ftl/map.rs",
            "crates/host/src/ftl/order.rs",
            "crates/host/src/ftl/recent.rs",
            "crates/host/src/ftl/recover.rs",
            "crates/host/src/ftl/ring.rs",
            "crates/host/src/ftl/streams.rs",
            "crates/host/src/ftl/target.rs",
            "crates/host/src/ftl/waiters.rs",
        ],
        tests: &[
            tests("flashweir-host", "lib", "ftl::"),
            tests("flashweir-crash", "lib", "host_ftl"),
            tests("flashweir-crash", "it", "commands::"),
            tests("flashweir-sim", "it", "host_ftl"),
        ],
        cuts: || [campaigns::host_ftl_cuts(), file_cuts_on("host-ftl")].concat(),
    },
];

const fn tests(package: &'static str, target: &'static str, filter: &'static str) -> Tests {
    Tests { package, target, filter }
}

impl Layer {
    /// Its suites: tests and power cuts.
    pub(crate) fn suites(&self) -> Vec<Suite> {
        let tests = self.tests.iter().map(|tests| Suite::Tests(*tests));
        tests.chain((self.cuts)().into_iter().map(Suite::Weir)).collect()
    }

    /// Those whose names contain this.
    pub(crate) fn suites_named(&self, part: &str) -> Vec<Suite> {
        self.suites().into_iter().filter(|suite| suite.name().contains(part)).collect()
    }
}

/// CI's power cuts of all file systems on this disk.
fn file_cuts_on(disk: &str) -> Vec<String> {
    let on = format!("--on {disk} ");
    file_cuts("").into_iter().filter(|what| format!("{what} ").contains(&on)).collect()
}

/// CI's power cuts of file systems whose format begins with `format`: those of each pair, then the campaigns. A violation is not
/// minimised. Linux checks no volumes, because two suites would share its loop devices and mount points; `fsck.f2fs` and `e2fsck`
/// check some in campaigns, if both are installed.
fn file_cuts(format: &str) -> Vec<String> {
    let is_of = |what: &&str| match what.split_once("--format ") {
        Some((_, name)) => name.starts_with(format),
        None => "f2fs".starts_with(format),
    };
    let tools = ["fsck.f2fs", "e2fsck"].iter().all(|tool| on_path(tool));
    let fsck = if tools { " --fsck-every 500" } else { "" };
    let pairs = file_pairs::of_ci();
    let pairs = pairs
        .iter()
        .map(String::as_str)
        .filter(is_of)
        .map(|what| format!("crash files --quiet --no-minimise {what}"));
    let campaigns = campaigns::FILE_CUTS.iter().copied().filter(is_of).map(|what| {
        let words = what.split(" --kernel-every").next().unwrap_or(what);
        let fsck = if file_pairs::has_judge(words) { fsck } else { "" };
        format!("crash files --quiet --no-minimise{fsck} {words}")
    });
    pairs.chain(campaigns).collect()
}
