//! Tiny open channels below a host FTL.

use super::shape::{PLAIN, Shape};
use flashweir_core::Duration;
use flashweir_device::config::Cell;
use flashweir_ftl::epochs::EPOCHS_MAX;
use flashweir_host::{Costs, HostFtlConfig, Limits, Lines, WhenFull};

const SMALL: Shape = Shape { blocks_per_plane: 12, ..PLAIN };
const FAILING: Shape = Shape { program_fail: 0.004, erase_fail: 0.004, blocks_per_plane: 18, ..SMALL };

/// Shape of the device, number of rings, lines, limiter. They differ in what matters at a power loss: rings, groups, planes that
/// program together, units of a page, operations that reads suspend, chunks of several planes, blocks that fail, threads whose time counts,
/// units that the device keeps back, write pointers that move when programs have ended, and streams.
#[rustfmt::skip]
const TABLE: [(&str, Shape, u16, Lines, Limits); 24] = [
    ("tiny-pblk", SMALL, 1, Lines::Device, Limits::Windows),
    ("tiny-qblke", SMALL, 2, Lines::Channel, Limits::Scores),
    ("tiny-pblk-planes", Shape { parallel: [1, 2, 2], cell: Cell::Mlc, units_per_page: 1, ..SMALL }, 1, Lines::Device, Limits::Windows),
    ("tiny-qblke-planes", Shape { parallel: [2, 1, 2], cell: Cell::Mlc, ..SMALL }, 3, Lines::Channel, Limits::Scores),
    ("tiny-qblke-wide", Shape { parallel: [4, 1, 1], units_per_page: 1, pages_per_block: 16, ..SMALL }, 4, Lines::Channel, Limits::Windows),
    ("tiny-pblk-rings", Shape { pages_per_block: 4, unit_bytes: 1024, ..SMALL }, 3, Lines::Device, Limits::Scores),
    ("tiny-pblk-chunks", Shape { parallel: [1, 2, 2], units_per_page: 1, ..SMALL }, 1, Lines::Device, Limits::Windows),
    ("tiny-qblke-chunks", Shape { parallel: [2, 1, 2], cell: Cell::Mlc, ..SMALL }, 2, Lines::Channel, Limits::Scores),
    ("tiny-pblk-failing", FAILING, 1, Lines::Device, Limits::Windows),
    ("tiny-qblke-failing", Shape { parallel: [2, 2, 1], ..FAILING }, 2, Lines::Channel, Limits::Scores),
    ("tiny-pblk-2.0", SMALL, 1, Lines::Device, Limits::Windows),
    ("tiny-qblke-2.0-wide", Shape { parallel: [2, 1, 2], ..SMALL }, 2, Lines::Channel, Limits::Scores),
    ("tiny-qblke-failing-2.0", Shape { parallel: [2, 2, 1], ..FAILING }, 2, Lines::Channel, Limits::Scores),
    ("tiny-pblk-threads", SMALL, 1, Lines::Device, Limits::Windows),
    ("tiny-qblke-threads", SMALL, 2, Lines::Channel, Limits::Scores),
    ("tiny-pblk-streams", SMALL, 1, Lines::Device, Limits::Windows),
    ("tiny-qblke-streams", SMALL, 2, Lines::Channel, Limits::Scores),
    ("tiny-qblke-planes-streams", Shape { parallel: [2, 1, 2], cell: Cell::Mlc, ..SMALL }, 3, Lines::Channel, Limits::Scores),
    ("tiny-qblke-failing-streams", Shape { parallel: [2, 2, 1], ..FAILING }, 2, Lines::Channel, Limits::Scores),
    ("tiny-pblk-threads-streams", SMALL, 1, Lines::Device, Limits::Windows),
    ("tiny-qblke-threads-streams", SMALL, 2, Lines::Channel, Limits::Scores),
    ("tiny-pblk-2.0-programmed", Shape { parallel: [1, 1, 2], units_per_page: 1, ..SMALL }, 1, Lines::Device, Limits::Windows),
    ("tiny-qblke-failing-programmed-streams", Shape { parallel: [2, 1, 2], ..FAILING }, 2, Lines::Channel, Limits::Scores),
    ("tiny-pblk-2.0-streams", Shape { parallel: [2, 1, 1], ..SMALL }, 2, Lines::Device, Limits::Windows),
];

/// Names of tiny devices below a host FTL.
pub(crate) fn host_ftl_names() -> impl Iterator<Item = &'static str> {
    TABLE.iter().map(|(name, ..)| *name)
}

/// Whether a chunk of the device called `name` spans the planes of a die, so that the smallest write has a page of each.
pub(super) fn has_wide_chunks(name: &str) -> bool {
    name.ends_with("-chunks") || name.ends_with("-2.0-wide")
}

/// Units of an open chunk that the device called `name` keeps back, as OCSSD 2.0 does; 0 below the older version.
pub(super) fn cached_units(name: &str) -> u32 {
    if name.contains("-2.0") { 6 } else { 0 }
}

/// Whether a chunk of the device called `name` takes one write at a time.
pub(super) fn has_one_write_per_chunk(name: &str) -> bool {
    name.contains("-programmed")
}

/// Whether hosts use streams and barriers on the device called `name`.
pub(crate) fn has_streams(name: &str) -> bool {
    name.ends_with("-streams")
}

/// Name and shape of each tiny device below a host FTL.
pub(super) fn host_ftl_shapes() -> impl Iterator<Item = (&'static str, Shape)> {
    TABLE.iter().map(|(name, shape, ..)| (*name, *shape))
}

/// The host FTL above the tiny device called `name`, if there is one.
pub fn host_ftl(name: &str) -> Option<HostFtlConfig> {
    let (_, shape, rings, lines, limits) = TABLE.iter().find(|(other, ..)| *other == name)?;
    let has_threads = name.contains("-threads");
    Some(HostFtlConfig {
        cpus: if has_threads { 2 } else { 0 },
        // Each step of a thread is an event, so they take longer here.
        costs: Costs { turn: Duration::from_micros(200), ..Costs::default() },
        full: if has_threads && *rings == 1 { WhenFull::Retry } else { WhenFull::Wait },
        lines: *lines,
        limits: *limits,
        entries: 16 * u32::from(*rings),
        over_provisioning: if shape.wears_out() { 0.6 } else { 0.5 },
        programs_per_die: 2,
        queues: 3,
        // Its rings give nothing out of order, so a range flush or FUA waits for all that is before its entries.
        urgent: name != "tiny-pblk-rings",
        pad_after: Duration::from_millis(3),
        user_active_for: Duration::from_millis(5),
        cached_units: cached_units(name),
        one_write_per_chunk: has_one_write_per_chunk(name),
        // So few that their numbers begin anew within a boot.
        epochs_max: if name == "tiny-qblke-planes-streams" { 6 } else { EPOCHS_MAX },
        ..HostFtlConfig::qblke(*rings)
    })
}
