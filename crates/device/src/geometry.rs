//! Counts that follow from the configuration, and every conversion between physical addresses.

use crate::config::{DeviceConfig, Metadata};
use flashweir_core::units::LBA_BYTES;
use flashweir_core::{Divisor, Lba, Lpn, Ppa, index_type};
use flashweir_ftl::{BlockId, PlaneId};

index_type! {
    /// A channel (bus).
    ChannelId,
    /// What takes one command at a time: a die, or a chip where dies do not interleave.
    StationId,
    /// A die, numbered channel by channel, chip by chip.
    DieId,
}

/// One flash page.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct PageAddr {
    /// Its block.
    pub block: BlockId,
    /// Its number in the block.
    pub page: u32,
}

/// Bytes that one mapping needs in a map checkpoint (`specs/device-metadata.md`).
pub const CHECKPOINT_ENTRY_BYTES: u64 = 24;

/// Counts that follow from the configuration.
#[derive(Clone, Debug)]
pub struct Geometry {
    counts: [u32; 4],
    /// The same counts; see [`Self::dimensions`].
    dimensions: [Divisor; 4],
    planes: u32,
    planes_per_station: Divisor,
    per_plane: Divisor,
    per_block: Divisor,
    per_page: Divisor,
    per_unit: Divisor,
    die_interleaving: bool,
    /// Erase blocks in a plane.
    pub blocks_per_plane: u32,
    /// Pages in a block.
    pub pages_per_block: u32,
    /// Mapping units in a page.
    pub units_per_page: u32,
    /// Bytes of a mapping unit.
    pub unit_bytes: u64,
    /// Blocks of 512 bytes in a mapping unit.
    pub lbas_per_unit: u64,
    /// Mapping units that the host sees.
    pub user_units: u64,
    /// Blocks in each of the two metadata regions; 0 without metadata.
    pub meta_blocks_per_region: u32,
    bad_fraction: f64,
}

impl Geometry {
    /// Superseded members of incomplete epochs that are kept at most before the device ends their epochs (contract §7.7): as much
    /// as a block.
    pub(crate) fn counted_members_max(&self) -> u64 {
        u64::from(self.units_per_block())
    }

    /// The counts of `config`, whose geometry was validated.
    pub fn new(config: &DeviceConfig) -> Self {
        let g = &config.geometry;
        let units_per_page = (g.page_bytes.0 / g.unit_bytes.0) as u32;
        let counts = [g.channels, g.chips_per_channel, g.dies_per_chip, g.planes_per_die];
        let mut geometry = Self {
            dimensions: counts.map(|count| Divisor::new(u64::from(count))),
            planes: counts.iter().product(),
            planes_per_station: Divisor::new(u64::from(if config.timing.die_interleaving {
                g.planes_per_die
            } else {
                g.dies_per_chip * g.planes_per_die
            })),
            per_plane: Divisor::new(u64::from(g.blocks_per_plane)),
            per_block: Divisor::new(u64::from(g.pages_per_block)),
            per_page: Divisor::new(u64::from(units_per_page)),
            per_unit: Divisor::new(g.unit_bytes.0 / LBA_BYTES),
            counts,
            die_interleaving: config.timing.die_interleaving,
            blocks_per_plane: g.blocks_per_plane,
            pages_per_block: g.pages_per_block,
            units_per_page,
            unit_bytes: g.unit_bytes.0,
            lbas_per_unit: g.unit_bytes.0 / LBA_BYTES,
            user_units: 0,
            meta_blocks_per_region: 0,
            bad_fraction: config.faults.factory_bad,
        };
        let physical = geometry.physical_units();
        let share = (physical as f64 * (1.0 - config.ftl.over_provisioning)).floor() as u64;
        // Static striping needs every plane to hold the same share, so whole stripes of pages.
        let stripe = u64::from(geometry.planes()) * u64::from(units_per_page);
        geometry.user_units = (share / stripe).max(1) * stripe;
        if config.ftl.metadata == Metadata::Log {
            // A region holds one checkpoint and a log as large as one, and never less than a block.
            let bytes = 2 * geometry.user_units * CHECKPOINT_ENTRY_BYTES;
            let block_bytes = u64::from(g.pages_per_block) * g.page_bytes.0;
            geometry.meta_blocks_per_region = (bytes.div_ceil(block_bytes) + 1) as u32;
        }
        geometry
    }

    /// Number of planes.
    pub fn planes(&self) -> u32 {
        self.planes
    }

    /// Number of dies.
    pub fn dies(&self) -> u32 {
        self.counts[0] * self.counts[1] * self.counts[2]
    }

    /// Number of blocks.
    pub fn blocks(&self) -> u32 {
        self.planes() * self.blocks_per_plane
    }

    /// Number of channels.
    pub fn channels(&self) -> u32 {
        self.counts[0]
    }

    /// Number of stations: dies, or chips where dies do not interleave.
    pub fn stations(&self) -> u32 {
        self.channels() * self.stations_per_channel()
    }

    /// Stations on each channel.
    pub fn stations_per_channel(&self) -> u32 {
        if self.die_interleaving { self.counts[1] * self.counts[2] } else { self.counts[1] }
    }

    /// Planes that one station serves.
    pub fn planes_per_station(&self) -> u32 {
        self.planes_per_station.get() as u32
    }

    /// Planes in a die.
    pub fn planes_per_die(&self) -> u32 {
        self.counts[3]
    }

    /// Counts of channels, ways, dies, planes, as striping wants them.
    pub fn dimensions(&self) -> [Divisor; 4] {
        self.dimensions
    }

    /// Mapping units in a block.
    pub fn units_per_block(&self) -> u32 {
        self.pages_per_block * self.units_per_page
    }

    /// Mapping units on the medium.
    pub fn physical_units(&self) -> u64 {
        u64::from(self.blocks()) * u64::from(self.units_per_block())
    }

    /// Blocks of 512 bytes that the host sees.
    pub fn capacity_lbas(&self) -> u64 {
        self.user_units * self.lbas_per_unit
    }

    /// The plane at a position of the dimensions.
    #[inline]
    pub fn plane_at(&self, [channel, way, die, plane]: [u32; 4]) -> PlaneId {
        PlaneId(((channel * self.counts[1] + way) * self.counts[2] + die) * self.counts[3] + plane)
    }

    /// The station of a plane.
    #[inline]
    pub fn station(&self, plane: PlaneId) -> StationId {
        StationId(self.planes_per_station.div_u32(plane.0))
    }

    /// The die of a plane.
    #[inline]
    pub fn die(&self, plane: PlaneId) -> DieId {
        DieId(plane.0 / self.counts[3])
    }

    /// The channel of a station.
    #[inline]
    pub fn channel(&self, station: StationId) -> ChannelId {
        ChannelId(station.0 / self.stations_per_channel())
    }

    /// The plane of a block.
    #[inline]
    pub fn plane_of(&self, block: BlockId) -> PlaneId {
        PlaneId(self.per_plane.div_u32(block.0))
    }

    /// The physical address of a unit of a page.
    #[inline]
    pub fn ppa(&self, at: PageAddr, unit: u32) -> Ppa {
        let page = u64::from(at.block.0) * u64::from(self.pages_per_block) + u64::from(at.page);
        Ppa(page * u64::from(self.units_per_page) + u64::from(unit))
    }

    /// The page of a unit, and its position in it.
    #[inline]
    pub fn page_of(&self, ppa: Ppa) -> (PageAddr, u32) {
        let (page, unit) = self.per_page.div_rem(ppa.0);
        let (block, page) = self.per_block.div_rem(page);
        (PageAddr { block: BlockId(block as u32), page: page as u32 }, unit as u32)
    }

    /// The block of a unit and the unit's number in it.
    #[inline]
    pub fn block_of(&self, ppa: Ppa) -> (BlockId, u32) {
        let (at, unit) = self.page_of(ppa);
        (at.block, at.page * self.units_per_page + unit)
    }

    /// The mapping unit of a block of 512 bytes, and the block's number in it.
    #[inline]
    pub fn unit_of(&self, lba: Lba) -> (Lpn, u64) {
        let (lpn, rest) = self.per_unit.div_rem(lba.0);
        (Lpn(lpn), rest)
    }

    /// The flash page, counted over all planes, on which striping puts a mapping unit.
    #[inline]
    pub fn striped_page(&self, lpn: Lpn) -> u64 {
        self.per_page.div(lpn.0)
    }

    /// The first block of 512 bytes of a mapping unit.
    pub fn lba_of(&self, lpn: Lpn) -> Lba {
        Lba(lpn.0 * self.lbas_per_unit)
    }

    /// The blocks of metadata region 0 or 1: spread over the planes, last blocks first.
    pub fn meta_blocks(&self, region: u32) -> impl Iterator<Item = BlockId> + use<> {
        let (planes, per_plane) = (self.planes(), self.blocks_per_plane);
        let count = self.meta_blocks_per_region;
        (0..count).map(move |i| {
            let nth = 2 * i + region;
            BlockId((nth % planes) * per_plane + per_plane - 1 - nth / planes)
        })
    }

    /// Bad blocks from the factory in one plane at most.
    pub fn factory_bad_max(&self) -> u32 {
        (f64::from(self.blocks_per_plane) * self.bad_fraction).ceil() as u32
    }

    /// Pages that one collection may leave unused: the rest of a last page, and of a last word line.
    pub fn collection_waste_pages(config: &DeviceConfig) -> u32 {
        let partial_page = u32::from(config.geometry.page_bytes != config.geometry.unit_bytes);
        let wordline = config.timing.cell.pages_per_wordline() - 1;
        partial_page + if config.faults.paired_page_loss { wordline } else { 0 }
    }

    /// Blocks of the tightest plane that hold neither user data nor metadata, with the expected bad ones
    /// taken off.
    pub fn spare_blocks_per_plane_min(&self) -> f64 {
        let user = self.user_units as f64 / f64::from(self.planes()) / f64::from(self.units_per_block());
        let meta = (2 * self.meta_blocks_per_region).div_ceil(self.planes());
        let blocks = f64::from(self.blocks_per_plane);
        blocks - f64::from(self.factory_bad_max()) - user - f64::from(meta)
    }
}
