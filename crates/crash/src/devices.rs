//! Tiny devices: so small that every state is within reach, with all features of a large one.
//!
//! Each is a row of a table. The rows differ in what matters at a power cut: the promise of the buffer
//! (crash-laboratory §1), units per page, pages per word line, allocation, write frontiers, parallelism, metadata
//! pages.

use flashweir_core::{Bytes, Duration, LinkConfig};
use flashweir_device::config::{
    Allocation, BufferConfig, BufferMode, Cell, DemandConfig, Eviction, FaultConfig, FirmwareKind, FtlConfig,
    GcConfig, GeometryConfig, Metadata, Miss, OrderConfig, PageTimes, PersistPolicy, RangeFlushSupport,
    SuspendConfig, TimingConfig, Translation, WearConfig,
};
use flashweir_device::{DeviceConfig, Geometry};
use flashweir_host::{DeadlineConfig, Dispatch, Epochs, HostConfig, Scheduler, Wait};

/// The properties that distinguish tiny devices.
#[derive(Clone, Copy, Debug)]
struct Shape {
    name: &'static str,
    mode: BufferMode,
    cell: Cell,
    /// Number of channels, of dies on each, and of planes in each die.
    parallel: [u32; 3],
    blocks_per_plane: u32,
    pages_per_block: u32,
    unit_bytes: u64,
    units_per_page: u64,
    buffer_units: u64,
    high_water: f64,
    allocation: Allocation,
    hot_cold: bool,
    program_fail: f64,
    range_flush: RangeFlushSupport,
    order: PersistPolicy,
    fuse_epochs: u32,
    /// Time that the buffer takes for the data of a command, in microseconds.
    access_us: u64,
    /// Number of free erase blocks above the reserve below which a plane already starts garbage collection.
    eager_blocks: u32,
    erase_fail: f64,
    endurance: u32,
    /// Difference of erase counts at which static wear-levelling begins.
    wear_apart: u32,
    program_us: u64,
    habit: Habit,
    /// Block layer between the host and the device.
    layer: Option<Layer>,
    /// For a map on the medium: units mapped per translation page, pages in the cache, and the requests that a miss
    /// blocks.
    map: Option<(u32, u64, Miss)>,
}

/// Additional operations of a device's history, beyond those that its features call for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Habit {
    Plain,
    /// Range flushes of up to four overlapping ranges and of up to five tags; deallocations across the ends of such
    /// ranges.
    Wide,
    /// A stream that writes only at the beginning of each boot; its epoch stays open.
    FallsSilent,
}

/// Block layers in front of tiny devices.
#[derive(Clone, Copy, Debug)]
enum Layer {
    /// Barriers, one queue, in the order of the requests.
    Ordered,
    /// Barriers, one queue, sorted by address; a barrier closes the queue.
    Sorted,
    /// Epoch numbers with the commands, three queues.
    Queues,
    /// Waits and flushes between epochs.
    Flushes,
    /// Waits between epochs.
    Waits,
}

const PLAIN: Shape = Shape {
    name: "tiny-d1",
    mode: BufferMode::WriteBack,
    cell: Cell::Slc,
    parallel: [2, 1, 1],
    blocks_per_plane: 14,
    pages_per_block: 8,
    unit_bytes: 512,
    units_per_page: 2,
    buffer_units: 8,
    high_water: 0.5,
    allocation: Allocation::Static,
    hot_cold: true,
    program_fail: 0.0,
    range_flush: RangeFlushSupport::None,
    order: PersistPolicy::None,
    fuse_epochs: 1,
    access_us: 0,
    eager_blocks: 1,
    erase_fail: 0.0,
    endurance: 0,
    wear_apart: 100,
    program_us: 100,
    habit: Habit::Plain,
    layer: None,
    map: None,
};

/// The kinds alternate, so that the first few worlds of a campaign cover all kinds.
#[rustfmt::skip]
const SHAPES: [Shape; 45] = [
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

/// Their names, and behind them those of tiny devices with an open channel.
pub fn all_names() -> impl Iterator<Item = &'static str> {
    names().chain(OPEN)
}

/// Returns the tiny device called `name`.
pub fn tiny(name: &str) -> Option<DeviceConfig> {
    let page = SHAPES.iter().find(|shape| shape.name == name).map(Shape::config);
    page.or_else(|| tiny_open().into_iter().find(|config| config.name == name))
}

/// Returns the habit of the histories of the tiny device called `name`.
pub(super) fn habit(name: &str) -> Habit {
    SHAPES.iter().find(|shape| shape.name == name).map_or(Habit::Plain, |shape| shape.habit)
}

/// Returns the block layer in front of the tiny device called `name`. It keeps the order of streams, whether the device
/// does or not.
pub fn layer(name: &str) -> Option<HostConfig> {
    let layer = SHAPES.iter().find(|shape| shape.name == name)?.layer?;
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

/// Names of tiny devices with an open channel.
const OPEN: [&str; 3] = ["tiny-open", "tiny-open-planes", "tiny-open-failing"];

/// Tiny devices with an open channel: pages of one unit and of several, planes that program together, operations that
/// reads suspend, and a medium on which programs and erases fail.
pub(super) fn tiny_open() -> Vec<DeviceConfig> {
    let small = Shape { blocks_per_plane: 4, pages_per_block: 4, ..PLAIN };
    let planes = Shape { cell: Cell::Mlc, parallel: [1, 2, 2], unit_bytes: 512, units_per_page: 2, ..small };
    let failing = Shape { program_fail: 0.05, erase_fail: 0.1, endurance: 6, ..small };
    let open = |(name, shape): (&str, Shape)| {
        let config = shape.config_with(0.0);
        let faults = FaultConfig { paired_page_loss: false, ..config.faults };
        DeviceConfig {
            name: name.into(),
            firmware: FirmwareKind::OpenChannel,
            ftl: FtlConfig::default(),
            buffer: BufferConfig::default(),
            order: OrderConfig::default(),
            faults,
            ..config
        }
    };
    OPEN.into_iter().zip([small, planes, failing]).map(open).collect()
}

impl Shape {
    /// Returns the device with the least valid over-provisioning, so that garbage collection is frequent.
    fn config(&self) -> DeviceConfig {
        let percents = 40..90;
        let mut configs = percents.map(|percent| self.config_with(f64::from(percent) / 100.0));
        let mut config = configs
            .find(|config| config.validate().is_ok())
            .expect("enough over-provisioning makes it valid");
        if let Some((_, cached, _)) = self.map {
            config.ftl.demand.cached = (cached as f64 + 0.5) / Geometry::new(&config).map_pages as f64;
        }
        config
    }

    fn config_with(&self, over_provisioning: f64) -> DeviceConfig {
        let [channels, dies_per_chip, planes_per_die] = self.parallel;
        let page_bytes = self.unit_bytes * self.units_per_page;
        let us = Duration::from_micros;
        let wears_out = self.program_fail > 0.0 || self.erase_fail > 0.0 || self.endurance > 0;
        let reserve_blocks = 2 + u32::from(wears_out);
        let program = match self.cell {
            Cell::Slc => PageTimes::Same(us(self.program_us)),
            cell => PageTimes::Each((1..=u64::from(cell.pages_per_wordline())).map(|i| us(60 * i)).collect()),
        };
        let (entries, _, miss) = self.map.unwrap_or((1, 0, Miss::HoldsAll));
        DeviceConfig {
            name: self.name.into(),
            source: "made for the crash laboratory".into(),
            firmware: FirmwareKind::Page,
            geometry: GeometryConfig {
                channels,
                chips_per_channel: 1,
                dies_per_chip,
                planes_per_die,
                blocks_per_plane: self.blocks_per_plane,
                pages_per_block: self.pages_per_block,
                page_bytes: Bytes(page_bytes),
                unit_bytes: Bytes(self.unit_bytes),
            },
            timing: TimingConfig {
                cell: self.cell,
                read: PageTimes::Same(us(20)),
                program,
                erase: us(350),
                bus_bytes_per_s: 100_000_000,
                command: [Duration::from_nanos(300); 3],
                command_next_plane: [Duration::from_nanos(300); 3],
                multi_plane: true,
                die_interleaving: true,
                suspend: (self.cell == Cell::Mlc).then_some(SuspendConfig {
                    program: true,
                    erase: true,
                    latency: us(5),
                    max_per_operation: 2,
                }),
            },
            ftl: FtlConfig {
                translation: if self.map.is_some() {
                    Translation::DemandCached
                } else {
                    Translation::Resident
                },
                allocation: self.allocation,
                over_provisioning,
                gc: GcConfig {
                    hot_cold: self.hot_cold,
                    start_below_blocks: reserve_blocks + self.eager_blocks,
                    reserve_blocks,
                    ..GcConfig::default()
                },
                wear: WearConfig { static_threshold: self.wear_apart, ..WearConfig::default() },
                metadata: Metadata::Log,
                demand: DemandConfig { entries, miss, ..DemandConfig::default() },
                ..FtlConfig::default()
            },
            buffer: BufferConfig {
                mode: self.mode,
                capacity: Bytes(self.buffer_units * self.unit_bytes),
                high_water: self.high_water,
                low_water: self.high_water / 2.0,
                eviction: if self.hot_cold { Eviction::Fifo } else { Eviction::Lru },
                range_flush: self.range_flush,
                access_latency: us(self.access_us),
                ..BufferConfig::default()
            },
            order: OrderConfig {
                policy: self.order,
                fuse_epochs: self.fuse_epochs,
                ..OrderConfig::default()
            },
            faults: FaultConfig {
                program_fail: self.program_fail,
                erase_fail: self.erase_fail,
                endurance: self.endurance,
                paired_page_loss: self.cell != Cell::Slc,
                ..FaultConfig::default()
            },
            link: LinkConfig::nvme(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

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
