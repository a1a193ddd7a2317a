//! Tiny devices: so small that every state is near, with everything a large one has.
//!
//! Each is a row of a table; the rows differ in what matters at a power cut: the buffer's promise (spec
//! 8.1), units in a page, pages in a word line, allocation, frontiers, parallelism, metadata pages.

use flashweir_core::{Bytes, Duration, LinkConfig};
use flashweir_device::DeviceConfig;
use flashweir_device::config::{
    Allocation, BufferConfig, BufferMode, Cell, Eviction, FaultConfig, FtlConfig, GcConfig, GeometryConfig,
    Metadata, OrderConfig, PageTimes, PersistPolicy, RangeFlushSupport, SuspendConfig, TimingConfig,
};

/// What distinguishes one tiny device from the others.
#[derive(Clone, Copy, Debug)]
struct Shape {
    name: &'static str,
    mode: BufferMode,
    cell: Cell,
    /// Channels, dies on each, planes in each.
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
    /// Time that the buffer takes for the data of a command.
    access_us: u64,
    /// Free blocks above those in reserve below which a plane collects already.
    eager_blocks: u32,
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
};

/// The kinds take turns, so that the first few worlds of a campaign are of all kinds.
#[rustfmt::skip]
const SHAPES: [Shape; 27] = [
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
    // Programs of two planes that share word lines, on frontiers that drift apart as collection uses them too.
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
];

const ORDERED: Shape = Shape {
    name: "tiny-d3",
    order: PersistPolicy::InOrderRecovery,
    buffer_units: 16,
    blocks_per_plane: 18,
    // What epochs keep needs room that would otherwise put collection off.
    eager_blocks: 4,
    ..PLAIN
};

const RANGE: Shape = Shape { range_flush: RangeFlushSupport::Selective, ..PLAIN };

/// Names of the tiny devices.
pub fn names() -> impl Iterator<Item = &'static str> {
    SHAPES.iter().map(|shape| shape.name)
}

/// The tiny device called `name`.
pub fn tiny(name: &str) -> Option<DeviceConfig> {
    SHAPES.iter().find(|shape| shape.name == name).map(Shape::config)
}

impl Shape {
    /// The device with the least over-provisioning that is valid, so that collection is never far.
    fn config(&self) -> DeviceConfig {
        let percents = 40..90;
        let mut configs = percents.map(|percent| self.config_with(f64::from(percent) / 100.0));
        configs.find(|config| config.validate().is_ok()).expect("enough over-provisioning makes it valid")
    }

    fn config_with(&self, over_provisioning: f64) -> DeviceConfig {
        let [channels, dies_per_chip, planes_per_die] = self.parallel;
        let page_bytes = self.unit_bytes * self.units_per_page;
        let us = Duration::from_micros;
        let reserve_blocks = 2 + u32::from(self.program_fail > 0.0);
        let program = match self.cell {
            Cell::Slc => PageTimes::Same(us(100)),
            cell => PageTimes::Each((1..=u64::from(cell.pages_per_wordline())).map(|i| us(60 * i)).collect()),
        };
        DeviceConfig {
            name: self.name.into(),
            source: "made for the crash laboratory".into(),
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
                allocation: self.allocation,
                over_provisioning,
                gc: GcConfig {
                    hot_cold: self.hot_cold,
                    start_below_blocks: reserve_blocks + self.eager_blocks,
                    reserve_blocks,
                    ..GcConfig::default()
                },
                metadata: Metadata::Log,
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
    use flashweir_device::Geometry;

    #[test]
    fn every_tiny_device_is_valid_and_tiny() {
        for name in names() {
            let config = tiny(name).unwrap();
            config.validate().unwrap_or_else(|e| panic!("{name}: {e}"));
            let geometry = Geometry::new(&config);
            println!(
                "{name}: {} units, {} blocks, {} metadata blocks per region",
                geometry.user_units,
                geometry.blocks(),
                geometry.meta_blocks_per_region
            );
            assert!(geometry.user_units <= 200 && geometry.blocks() <= 64, "{name}");
        }
    }
}
