//! Tiny devices: so small that every state is within reach, with all features of a large one.
//!
//! Each is a row of a table. The rows differ in what matters at a power cut: the promise of the buffer
//! (crash-laboratory §1), units per page, pages per word line, allocation, write frontiers, parallelism, metadata
//! pages.

mod drawn;
mod host_ftl;
mod shape;

pub use drawn::drawn_name;
pub use host_ftl::host_ftl;
pub(super) use host_ftl::{has_streams, host_ftl_names};
pub(super) use shape::Habit;

use flashweir_core::Duration;
use flashweir_device::DeviceConfig;
use flashweir_device::config::{
    Allocation, AppendConfig, AppendMode, BufferConfig, BufferMode, Cell, ChunkSpan, EraseTime, FaultConfig,
    FirmwareKind, FtlConfig, Miss, OpenConfig, OpenVersion, OrderConfig, PersistPolicy, PointerMove,
    RangeFlushSupport,
};
use flashweir_host::{DeadlineConfig, Dispatch, Epochs, HostConfig, Scheduler, Wait};
use shape::{Layer, PLAIN, Shape};

/// The kinds alternate, so that the first few worlds of a campaign cover all kinds.
#[rustfmt::skip]
const SHAPES: [Shape; 63] = [
    PLAIN,
    Shape { name: "tiny-d0", mode: BufferMode::WriteThrough, ..PLAIN },
    Shape { name: "tiny-d2", mode: BufferMode::PowerLossProtected, high_water: 0.9, buffer_units: 12, ..PLAIN },
    Shape { name: "tiny-d1-mlc", cell: Cell::Mlc, ..PLAIN },
    Shape { name: "tiny-d0-mlc", mode: BufferMode::WriteThrough, cell: Cell::Mlc, parallel: [1, 2, 1],
        unit_bytes: 1024, units_per_page: 1, ..PLAIN },
    Shape { name: "tiny-d2-mlc", mode: BufferMode::PowerLossProtected, cell: Cell::Mlc, parallel: [1, 1, 2],
        unit_bytes: 1024, hot_cold: false, ..PLAIN },
    Shape { name: "tiny-d1-partial", unit_bytes: 4096, units_per_page: 1, buffer_units: 6,
        blocks_per_plane: 12, ..PLAIN },
    Shape { name: "tiny-d0-dynamic", mode: BufferMode::WriteThrough, allocation: Allocation::Dynamic,
        parallel: [2, 2, 1], blocks_per_plane: 10, hot_cold: false, ..PLAIN },
    Shape { name: "tiny-d2-dynamic", mode: BufferMode::PowerLossProtected, allocation: Allocation::Dynamic,
        parallel: [2, 1, 2], blocks_per_plane: 10, ..PLAIN },
    Shape { name: "tiny-d1-dynamic", allocation: Allocation::Dynamic, parallel: [2, 1, 2],
        blocks_per_plane: 10, buffer_units: 16, ..PLAIN },
    // Programs of two planes that share word lines, on write frontiers that drift apart because garbage collection uses
    // them too.
    Shape { name: "tiny-d1-dynamic-mlc", allocation: Allocation::Dynamic, cell: Cell::Mlc, parallel: [1, 2, 2],
        blocks_per_plane: 12, buffer_units: 16, hot_cold: false, ..PLAIN },
    Shape { name: "tiny-d1-mixed", hot_cold: false, parallel: [1, 1, 2], cell: Cell::Mlc, high_water: 0.9,
        unit_bytes: 1024, ..PLAIN },
    Shape { name: "tiny-d1-failing", program_fail: 0.004, blocks_per_plane: 16,
        ..PLAIN },
    Shape { name: "tiny-d1-range", buffer_units: 16, high_water: 0.9, ..RANGE },
    Shape { name: "tiny-d1-range-mlc", cell: Cell::Mlc, buffer_units: 12, ..RANGE },
    Shape { name: "tiny-d1-range-dynamic", allocation: Allocation::Dynamic, parallel: [2, 1, 2],
        blocks_per_plane: 10, buffer_units: 24, high_water: 0.9, ..RANGE },
    Shape { name: "tiny-d1-range-partial", unit_bytes: 4096, units_per_page: 1, blocks_per_plane: 12, ..RANGE },
    // Slow programs and erase blocks of few pages: recovery moves survivors while the capacitor's save waits.
    Shape { name: "tiny-d2-slow", mode: BufferMode::PowerLossProtected, units_per_page: 1, pages_per_block: 6, parallel: [1, 1, 1],
        blocks_per_plane: 12, buffer_units: 12, hot_cold: false, eager_blocks: 2, program_us: 600, ..PLAIN },
    // Writes with placement handles, each with a block of its own in each plane.
    Shape { name: "tiny-d1-placed", handles: 3, blocks_per_plane: 20, ..PLAIN },
    Shape { name: "tiny-d1-placed-dynamic", handles: 3, allocation: Allocation::Dynamic, cell: Cell::Mlc, parallel: [1, 1, 2],
        blocks_per_plane: 20, buffer_units: 16, range_flush: RangeFlushSupport::Selective, ..PLAIN },
    Shape { name: "tiny-d2-placed", mode: BufferMode::PowerLossProtected, handles: 4, buffer_units: 12, blocks_per_plane: 20, ..PLAIN },
    Shape { name: "tiny-d2-range", mode: BufferMode::PowerLossProtected, buffer_units: 12, ..RANGE },
    ORDERED,
    Shape { name: "tiny-d3-write-back", order: PersistPolicy::InOrderWriteBack, blocks_per_plane: 14, eager_blocks: 1, ..ORDERED },
    Shape { name: "tiny-d3-transactional", order: PersistPolicy::Transactional, ..ORDERED },
    Shape { name: "tiny-d3-fused", order: PersistPolicy::Transactional, fuse_epochs: 4, buffer_units: 24, access_us: 15,
        ..ORDERED },
    Shape { name: "tiny-d3-mlc", cell: Cell::Mlc, hot_cold: false, access_us: 15, ..ORDERED },
    Shape { name: "tiny-d3-write-back-mlc", order: PersistPolicy::InOrderWriteBack, cell: Cell::Mlc,
        blocks_per_plane: 14, eager_blocks: 1, parallel: [1, 1, 2], ..ORDERED },
    Shape { name: "tiny-d3-range", range_flush: RangeFlushSupport::Selective, allocation: Allocation::Dynamic,
        parallel: [2, 1, 2], blocks_per_plane: 13, eager_blocks: 3, buffer_units: 24, ..ORDERED },
    Shape { name: "tiny-d3-transactional-range", range_flush: RangeFlushSupport::Selective,
        order: PersistPolicy::Transactional, buffer_units: 12, unit_bytes: 4096, units_per_page: 1,
        blocks_per_plane: 20, ..ORDERED },
    Shape { name: "tiny-d3-failing", program_fail: 0.004, blocks_per_plane: 20, ..ORDERED },
    Shape { name: "tiny-d1-erase-failing", erase_fail: 0.03, blocks_per_plane: 18, ..PLAIN },
    Shape { name: "tiny-d1-worn", endurance: 3, blocks_per_plane: 18, ..PLAIN },
    Shape { name: "tiny-d1-wear", wear_apart: 2, ..PLAIN },
    Shape { name: "tiny-d3-wear", wear_apart: 2, erase_fail: 0.01, blocks_per_plane: 20, ..ORDERED },
    // Programming a page of the log takes longer than many commands, so that the next page waits for it.
    Shape { name: "tiny-d1-slow", program_us: 900, parallel: [4, 1, 1], blocks_per_plane: 10, ..PLAIN },
    // Few pages in a metadata region: checkpoints follow each other closely, and records wait for them.
    Shape { name: "tiny-d3-small-log", pages_per_block: 4, blocks_per_plane: 26, program_us: 600, habit: Habit::FallsSilent,
        eager_blocks: 2, ..ORDERED },
    Shape { name: "tiny-d1-range-wide", habit: Habit::Wide, unit_bytes: 4096, units_per_page: 1, buffer_units: 16,
        high_water: 0.9, blocks_per_plane: 12, ..RANGE },
    Shape { name: "tiny-dftl", map: Some((4, 1, Miss::HoldsAll)), ..MAPPED },
    Shape { name: "tiny-dftl-own", map: Some((4, 2, Miss::HoldsOwn)), unit_bytes: 1024, units_per_page: 1, buffer_units: 6, ..MAPPED },
    Shape { name: "tiny-dftl-d0", mode: BufferMode::WriteThrough, map: Some((8, 3, Miss::HoldsOwn)), cell: Cell::Mlc,
        unit_bytes: 1024, units_per_page: 1, pages_per_block: 8, blocks_per_plane: 22, ..MAPPED },
    Shape { name: "tiny-dftl-d2", mode: BufferMode::PowerLossProtected, map: Some((5, 2, Miss::HoldsAll)), buffer_units: 12,
        allocation: Allocation::Dynamic, range_flush: RangeFlushSupport::Selective, ..MAPPED },
    Shape { name: "tiny-dftl-d3", order: PersistPolicy::InOrderRecovery, map: Some((4, 4, Miss::HoldsOwn)), buffer_units: 16,
        pages_per_block: 8, blocks_per_plane: 30, eager_blocks: 4, ..MAPPED },
    Shape { name: "tiny-dftl-failing", map: Some((4, 2, Miss::HoldsOwn)), program_fail: 0.004, erase_fail: 0.01,
        blocks_per_plane: 32, ..MAPPED },
    Shape { name: "tiny-d4", share: 64, ..PLAIN },
    Shape { name: "tiny-d4-full", share: 3, buffer_units: 16, ..PLAIN },
    Shape { name: "tiny-d4-through", share: 24, mode: BufferMode::WriteThrough, cell: Cell::Mlc, unit_bytes: 1024, units_per_page: 1, ..PLAIN },
    Shape { name: "tiny-d4-protected", share: 40, mode: BufferMode::PowerLossProtected, buffer_units: 12, high_water: 0.9, ..PLAIN },
    Shape { name: "tiny-d4-range", share: 32, buffer_units: 16, cell: Cell::Mlc, hot_cold: false, ..RANGE },
    Shape { name: "tiny-d4-ordered", share: 40, range_flush: RangeFlushSupport::Selective, ..ORDERED },
    Shape { name: "tiny-d4-transactional", share: 40, blocks_per_plane: 13, eager_blocks: 3, order: PersistPolicy::Transactional, allocation: Allocation::Dynamic, parallel: [2, 1, 2], ..ORDERED },
    // Few pages in a metadata region: checkpoints repeat SHAREs that their horizon does not cover.
    Shape { name: "tiny-d4-small-log", share: 12, pages_per_block: 4, blocks_per_plane: 26, program_us: 600, eager_blocks: 2, ..ORDERED },
    Shape { name: "tiny-d4-failing", share: 24, program_fail: 0.004, blocks_per_plane: 18, ..PLAIN },
    Shape { name: "tiny-d4-dftl", share: 24, map: Some((4, 2, Miss::HoldsOwn)), ..MAPPED },
    Shape { name: "tiny-d4-dftl-protected", mode: BufferMode::PowerLossProtected, share: 24, map: Some((4, 2, Miss::HoldsOwn)),
        buffer_units: 8, erase_fail: 0.02, blocks_per_plane: 32, ..MAPPED },
    Shape { name: "tiny-d4-nvram", share: 40, nvram: 64, ..PLAIN },
    // Some SHAREs fit into the NVRAM, some wait until it has room, and some are larger than all of it.
    Shape { name: "tiny-d4-nvram-full", share: 32, nvram: 9, buffer_units: 16, program_us: 600, ..RANGE },
    Shape { name: "tiny-d4-nvram-ordered", share: 40, nvram: 24, order: PersistPolicy::InOrderRecovery, map: Some((4, 4, Miss::HoldsOwn)),
        buffer_units: 16, pages_per_block: 8, blocks_per_plane: 30, eager_blocks: 4, ..MAPPED },
    Shape { name: "tiny-host-ordered", layer: Some(Layer::Ordered), ..ORDERED },
    Shape { name: "tiny-host-sorted", layer: Some(Layer::Sorted), order: PersistPolicy::Transactional,
        range_flush: RangeFlushSupport::Selective, habit: Habit::Wide, ..ORDERED },
    Shape { name: "tiny-host-queues", layer: Some(Layer::Queues), order: PersistPolicy::InOrderWriteBack, blocks_per_plane: 14,
        eager_blocks: 1, ..ORDERED },
    Shape { name: "tiny-host-flushes", layer: Some(Layer::Flushes), ..PLAIN },
    Shape { name: "tiny-host-waits", layer: Some(Layer::Waits), mode: BufferMode::PowerLossProtected, buffer_units: 12, ..PLAIN },
];

const ORDERED: Shape = Shape {
    name: "tiny-d3",
    order: PersistPolicy::InOrderRecovery,
    buffer_units: 16,
    blocks_per_plane: 18,
    // Versions kept for epochs need extra blocks, which would otherwise delay garbage collection.
    eager_blocks: 4,
    ..PLAIN
};

/// Few pages per erase block, so that translation blocks are garbage-collected too.
const MAPPED: Shape =
    Shape { name: "tiny-dftl", blocks_per_plane: 26, pages_per_block: 4, eager_blocks: 2, ..PLAIN };

const RANGE: Shape = Shape { range_flush: RangeFlushSupport::Selective, ..PLAIN };

/// Names of the tiny devices.
pub fn names() -> impl Iterator<Item = &'static str> {
    SHAPES.iter().map(|shape| shape.name)
}

/// Their names, and behind them those of tiny devices with segments, with both namespaces, with an open channel, and below a host FTL.
pub fn all_names() -> impl Iterator<Item = &'static str> {
    let segments = APPEND.iter().chain(&BOTH).map(|(name, ..)| *name);
    let open = OPEN.iter().map(|(name, ..)| *name);
    names().chain(segments).chain(open).chain(host_ftl_names())
}

/// The shape of the tiny device called `name`, from the table or drawn.
fn shape(name: &str) -> Option<Shape> {
    let row = SHAPES.iter().find(|shape| shape.name == name).copied();
    row.or_else(|| drawn::drawn(name))
}

/// Returns the tiny device called `name`; one that is called `tiny-drawn-N` is drawn by its number.
pub fn tiny(name: &str) -> Option<DeviceConfig> {
    let page = shape(name).map(|shape| DeviceConfig { name: name.into(), ..shape.config() });
    let others = || {
        let others = tiny_append().chain(tiny_both()).chain(tiny_open()).chain(tiny_host_ftl());
        others.into_iter().find(|config| config.name == name)
    };
    page.or_else(others)
}

/// Returns the habit of the histories of the tiny device called `name`.
pub(super) fn habit(name: &str) -> Habit {
    shape(name).map_or(Habit::Plain, |shape| shape.habit)
}

/// Returns the block layer in front of the tiny device called `name`. It keeps the order of streams, whether the device
/// does or not.
pub fn layer(name: &str) -> Option<HostConfig> {
    let layer = shape(name)?.layer?;
    let config = HostConfig {
        depth: 4,
        merge_blocks_max: 6,
        retry_after: Duration::from_micros(200),
        ..HostConfig::default()
    };
    Some(match layer {
        Layer::Ordered => config,
        Layer::Sorted => HostConfig {
            scheduler: Scheduler::Deadline(DeadlineConfig { fifo_batch: 3, ..DeadlineConfig::default() }),
            epochs: Epochs::Closing,
            ..config
        },
        Layer::Queues => HostConfig { dispatch: Dispatch::MultiQueue, queues: 3, ..config },
        Layer::Flushes => HostConfig { dispatch: Dispatch::Legacy(Wait::TransferAndFlush), ..config },
        Layer::Waits => HostConfig { dispatch: Dispatch::Legacy(Wait::Completion), ..config },
    })
}

/// Segments of one page-sized unit to a page.
const SEGMENTS: Shape = Shape { blocks_per_plane: 12, pages_per_block: 4, units_per_page: 1, ..PLAIN };
/// Segments of two units to a page.
const SEGMENTS_OF_TWO: Shape = Shape { units_per_page: 2, ..SEGMENTS };
const IN_ORDER: AppendConfig = AppendConfig {
    segments: 4,
    lanes: 0,
    mode: AppendMode::Sequential,
    max_open: 0,
    spare_blocks: 2,
    erase: EraseTime::Background,
    static_threshold: 0,
    buffer_share: 0.5,
};
const WRITE_ONCE: AppendConfig = AppendConfig { mode: AppendMode::WriteOnce, ..IN_ORDER };

/// Segments of four units to a page, of which a tail may have three.
const SEGMENTS_OF_FOUR: Shape = Shape { units_per_page: 4, buffer_units: 16, ..SEGMENTS };

/// Tiny devices with segments. They differ in the promise of the buffer, the mode, units per page, lanes, the time of erases, the order of
/// streams, and in what fails.
#[rustfmt::skip]
const APPEND: [(&str, Shape, AppendConfig); 18] = [
    ("tiny-d5", SEGMENTS, IN_ORDER),
    ("tiny-d5-pages", SEGMENTS_OF_TWO, IN_ORDER),
    ("tiny-d5-once", SEGMENTS, WRITE_ONCE),
    ("tiny-d5-once-pages", Shape { buffer_units: 12, ..SEGMENTS_OF_TWO }, WRITE_ONCE),
    ("tiny-d5-quads", SEGMENTS_OF_FOUR, IN_ORDER),
    ("tiny-d5-once-quads", Shape { parallel: [2, 2, 1], ..SEGMENTS_OF_FOUR }, AppendConfig { lanes: 2, ..WRITE_ONCE }),
    ("tiny-d5-through", Shape { mode: BufferMode::WriteThrough, ..SEGMENTS_OF_TWO }, IN_ORDER),
    ("tiny-d5-once-through", Shape { mode: BufferMode::WriteThrough, ..SEGMENTS }, WRITE_ONCE),
    ("tiny-d5-protected", Shape { mode: BufferMode::PowerLossProtected, buffer_units: 12, ..SEGMENTS_OF_TWO },
        AppendConfig { erase: EraseTime::FirstWrite, ..IN_ORDER }),
    ("tiny-d5-once-protected", Shape { mode: BufferMode::PowerLossProtected, ..SEGMENTS_OF_TWO }, WRITE_ONCE),
    ("tiny-d5-lazy", Shape { program_us: 600, ..SEGMENTS }, AppendConfig { erase: EraseTime::FirstWrite, ..IN_ORDER }),
    ("tiny-d5-narrow", Shape { parallel: [2, 2, 1], access_us: 40, ..SEGMENTS_OF_TWO },
        AppendConfig { lanes: 2, segments: 6, max_open: 3, ..IN_ORDER }),
    ("tiny-d5-planes", Shape { parallel: [1, 2, 2], cell: Cell::Mlc, ..SEGMENTS },
        AppendConfig { segments: 3, ..IN_ORDER }),
    ("tiny-d5-ordered", Shape { order: PersistPolicy::InOrderWriteBack, buffer_units: 16, ..SEGMENTS }, IN_ORDER),
    ("tiny-d5-failing", Shape { program_fail: 0.02, erase_fail: 0.02, blocks_per_plane: 20, ..SEGMENTS_OF_TWO },
        AppendConfig { spare_blocks: 6, static_threshold: 3, ..IN_ORDER }),
    ("tiny-d5-once-failing", Shape { program_fail: 0.02, blocks_per_plane: 20, order: PersistPolicy::InOrderWriteBack, buffer_units: 16,
        ..SEGMENTS }, AppendConfig { spare_blocks: 6, static_threshold: 3, erase: EraseTime::FirstWrite, ..WRITE_ONCE }),
    // So few spare blocks that they are used up: writes fail, and the device takes no more.
    ("tiny-d5-worn", Shape { program_fail: 0.05, erase_fail: 0.15, ..SEGMENTS_OF_TWO }, IN_ORDER),
    ("tiny-d5-once-worn", Shape { program_fail: 0.05, erase_fail: 0.15, order: PersistPolicy::InOrderWriteBack, buffer_units: 10,
        blocks_per_plane: 10, ..SEGMENTS }, AppendConfig { erase: EraseTime::FirstWrite, ..WRITE_ONCE }),
];

/// Tiny devices with segments.
pub(super) fn tiny_append() -> impl Iterator<Item = DeviceConfig> {
    APPEND.into_iter().map(|(name, shape, append)| {
        let config = shape.config_with(0.0);
        DeviceConfig {
            name: name.into(),
            firmware: FirmwareKind::Append,
            ftl: FtlConfig::default(),
            append,
            faults: FaultConfig { paired_page_loss: false, ..config.faults },
            ..config
        }
    })
}

/// Pages and segments with few blocks that neither needs, so that blocks change sides all the time.
const TWO_SIDES: Shape = Shape { blocks_per_plane: 20, buffer_units: 12, ..SEGMENTS };
const FEW: AppendConfig = AppendConfig { segments: 3, ..IN_ORDER };

/// Tiny devices with a page namespace and an append namespace on one pool of blocks. They differ in the promise of the buffer, the mode, units
/// per page, lanes, the write frontiers of GC, and in what fails.
#[rustfmt::skip]
const BOTH: [(&str, Shape, AppendConfig); 8] = [
    ("tiny-both", TWO_SIDES, FEW),
    ("tiny-both-pages", Shape { units_per_page: 2, pages_per_block: 8, buffer_units: 16, hot_cold: false, ..TWO_SIDES }, FEW),
    ("tiny-both-through", Shape { mode: BufferMode::WriteThrough, ..TWO_SIDES }, FEW),
    ("tiny-both-once", Shape { units_per_page: 2, pages_per_block: 6, blocks_per_plane: 22, buffer_units: 24, range_flush: RangeFlushSupport::Selective, ..TWO_SIDES },
        AppendConfig { mode: AppendMode::WriteOnce, ..FEW }),
    ("tiny-both-narrow", Shape { parallel: [2, 1, 2], cell: Cell::Mlc, blocks_per_plane: 16, access_us: 40, ..TWO_SIDES },
        AppendConfig { segments: 4, lanes: 2, ..FEW }),
    // Programming takes longer than many commands, so that blocks are waited for.
    ("tiny-both-slow", Shape { program_us: 600, ..TWO_SIDES }, FEW),
    ("tiny-both-failing", Shape { program_fail: 0.01, erase_fail: 0.01, blocks_per_plane: 28, ..TWO_SIDES },
        AppendConfig { spare_blocks: 4, static_threshold: 3, ..FEW }),
    // So few spare blocks that they are used up: writes fail in either namespace, and the device takes no more.
    ("tiny-both-worn", Shape { program_fail: 0.03, erase_fail: 0.1, blocks_per_plane: 22, ..TWO_SIDES }, FEW),
];

/// Tiny devices with both namespaces, with the least valid over-provisioning.
pub(super) fn tiny_both() -> impl Iterator<Item = DeviceConfig> {
    BOTH.into_iter().map(|(name, shape, append)| {
        let with = |percent: u32| {
            let config = shape.config_with(f64::from(percent) / 100.0);
            DeviceConfig {
                name: name.into(),
                firmware: FirmwareKind::PageAndAppend,
                append: append.clone(),
                faults: FaultConfig { paired_page_loss: false, ..config.faults },
                ..config
            }
        };
        let valid = (20..90).map(with).find(|config| config.validate().is_ok());
        valid.unwrap_or_else(|| with(80))
    })
}

const CHUNKS: OpenConfig = OpenConfig::DEFAULT;
/// Chunks over both planes of a die, a page of each in a write.
const WIDE_CHUNKS: OpenConfig = OpenConfig { chunk: ChunkSpan::Die, write_pages: 2, ..CHUNKS };

const FEW_BLOCKS: Shape = Shape { blocks_per_plane: 4, pages_per_block: 4, ..PLAIN };
const TWO_PLANES: Shape =
    Shape { cell: Cell::Mlc, parallel: [1, 2, 2], unit_bytes: 512, units_per_page: 2, ..FEW_BLOCKS };
const FAILING: Shape = Shape { program_fail: 0.05, erase_fail: 0.1, endurance: 6, ..FEW_BLOCKS };

/// Tiny devices with an open channel. They differ in the pages of a write, the blocks of a chunk, planes that program together,
/// operations that reads suspend, the version of the interface, when write pointers move, and what fails.
#[rustfmt::skip]
const OPEN: [(&str, Shape, OpenConfig); 9] = [
    ("tiny-open", FEW_BLOCKS, CHUNKS),
    ("tiny-open-planes", TWO_PLANES, CHUNKS),
    ("tiny-open-failing", FAILING, CHUNKS),
    ("tiny-open-wide", Shape { pages_per_block: 6, ..TWO_PLANES }, OpenConfig { cached_units: 5, max_open: 3, ..WIDE_CHUNKS }),
    // An indirection unit of two pages; the write pointer moves when they are programmed.
    ("tiny-open-programmed", Shape { pages_per_block: 8, ..FEW_BLOCKS },
        OpenConfig { write_pages: 2, pointer: PointerMove::Programmed, ..CHUNKS }),
    ("tiny-open-programmed-wide", Shape { units_per_page: 1, ..TWO_PLANES },
        OpenConfig { pointer: PointerMove::Programmed, max_open: 5, cached_units: 3, ..WIDE_CHUNKS }),
    ("tiny-open-1.2", Shape { pages_per_block: 6, ..TWO_PLANES }, OpenConfig { version: OpenVersion::V12, cached_units: 8, ..WIDE_CHUNKS }),
    ("tiny-open-1.2-failing", Shape { parallel: [2, 1, 1], ..FAILING }, OpenConfig { version: OpenVersion::V12, ..CHUNKS }),
    // Half of the failed programs leave the chunk open.
    ("tiny-open-wide-failing", Shape { parallel: [1, 1, 2], pages_per_block: 6, ..FAILING }, WIDE_CHUNKS),
];

/// Probability that a chunk goes on after a failed program, and that a read asks for a refresh, by the name of the device.
fn open_faults(name: &str) -> (f64, f64) {
    match name {
        "tiny-open-wide-failing" => (0.5, 0.0),
        "tiny-open-wide" => (0.0, 0.1),
        _ => (0.0, 0.0),
    }
}

/// Tiny devices with an open channel.
pub(super) fn tiny_open() -> Vec<DeviceConfig> {
    OPEN.into_iter().map(|(name, shape, open)| open_channel(name, shape, open)).collect()
}

/// Tiny devices below a host FTL: OCSSD 1.2, as the paper's, whose blocks may be erased again and again (open-channel §6.1), and OCSSD 2.0,
/// which keeps the last units of open chunks back.
fn tiny_host_ftl() -> impl Iterator<Item = DeviceConfig> {
    host_ftl::host_ftl_shapes().map(|(name, shape)| {
        let chunks = if host_ftl::has_wide_chunks(name) { WIDE_CHUNKS } else { CHUNKS };
        let open = match host_ftl::cached_units(name) {
            0 => OpenConfig { version: OpenVersion::V12, ..chunks },
            cached_units => OpenConfig { cached_units, ..chunks },
        };
        let open = match host_ftl::has_one_write_per_chunk(name) {
            true => OpenConfig { pointer: PointerMove::Programmed, ..open },
            false => open,
        };
        open_channel(name, shape, open)
    })
}

/// An open channel of this shape.
fn open_channel(name: &str, shape: Shape, open: OpenConfig) -> DeviceConfig {
    let config = shape.config_with(0.0);
    let (chunk_goes_on, refresh) = open_faults(name);
    DeviceConfig {
        name: name.into(),
        firmware: FirmwareKind::OpenChannel,
        ftl: FtlConfig::default(),
        open,
        buffer: BufferConfig::default(),
        order: OrderConfig::default(),
        faults: FaultConfig { paired_page_loss: false, chunk_goes_on, refresh, ..config.faults },
        ..config
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use flashweir_device::Geometry;

    #[test]
    fn every_tiny_device_with_segments_is_valid_and_tiny() {
        for config in tiny_append() {
            config.validate().unwrap_or_else(|e| panic!("{}: {e}", config.name));
            let geometry = Geometry::new(&config);
            assert!(geometry.user_units <= 240 && geometry.blocks() <= 64, "{}", config.name);
        }
    }

    #[test]
    fn every_tiny_device_with_an_open_channel_is_valid_and_tiny() {
        for config in tiny_open() {
            config.validate().unwrap_or_else(|e| panic!("{}: {e}", config.name));
            let geometry = Geometry::new(&config);
            assert!(geometry.user_units <= 240 && geometry.blocks() <= 64, "{}", config.name);
        }
    }

    #[test]
    fn every_tiny_device_with_both_namespaces_is_valid_and_tiny() {
        for config in tiny_both() {
            config.validate().unwrap_or_else(|e| panic!("{}: {e}", config.name));
            let geometry = Geometry::new(&config);
            println!(
                "{}: {} units of pages, {} segments of {} units, {} blocks of which {} reserved in a plane, {} for segments",
                config.name,
                geometry.user_units,
                geometry.append.segments,
                geometry.append.units,
                geometry.blocks(),
                geometry.reserved_blocks_per_plane(),
                geometry.append.blocks_per_plane_max
            );
            assert!(geometry.user_units <= 240 && geometry.blocks() <= 64, "{}", config.name);
        }
    }

    #[test]
    fn every_tiny_device_is_valid_and_tiny() {
        for name in names() {
            let config = tiny(name).unwrap();
            config.validate().unwrap_or_else(|e| panic!("{name}: {e}"));
            let geometry = Geometry::new(&config);
            println!(
                "{name}: {} units, {} blocks, {} metadata blocks per region, {} blocks for {} translation pages",
                geometry.user_units,
                geometry.blocks(),
                geometry.meta_blocks_per_region,
                geometry.map_blocks,
                geometry.map_pages
            );
            assert!(geometry.user_units <= 240 && geometry.blocks() <= 64, "{name}");
        }
    }
}
