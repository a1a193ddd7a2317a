//! Counts that follow from the configuration: the flash array, which [`FlashGeometry`] describes, and the capacity that a host
//! sees.

use crate::config::{
    AppendConfig, ChunkSpan, DeviceConfig, FirmwareKind, Metadata, OWNERS_PER_PAGE, Translation,
};
use flashweir_core::units::LBA_BYTES;
use flashweir_core::{Divisor, Lba, Lpn, Ppa};
use flashweir_ftl::geometry::{FlashCounts, FlashGeometry};
use flashweir_ftl::segment_records::{SegmentRecord, records_per_page};
use flashweir_ftl::{BlockId, PlaneId};
use std::ops::Deref;

pub use flashweir_ftl::geometry::{ChannelId, DieId, PageAddr, StationId};

/// Bytes that one mapping needs in a map checkpoint (`specs/device-metadata.md`).
pub const CHECKPOINT_ENTRY_BYTES: u64 = 24;

/// The append namespace in numbers (append-segments §3).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct SegmentShape {
    /// Segments that a host sees; 0 without an append namespace.
    pub segments: u32,
    /// Blocks of a segment.
    pub lanes: u32,
    /// Mapping units of a segment.
    pub units: u32,
    /// Blocks in each of the two regions of its log.
    pub log_blocks_per_region: u32,
    /// Beside a page namespace: most blocks of each plane that segments have at a time; 0 where no other namespace wants any.
    pub blocks_per_plane_max: u32,
    /// Reserved blocks in front of them, in the order in which blocks are reserved.
    log_from: u32,
}

/// Number of a chunk of an open channel, counted over the device.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct ChunkId(pub u32);

/// The open channel in numbers (open-channel §6.7).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct OpenShape {
    /// Blocks of a chunk: planes over which its pages take turns. 0 without an open channel.
    pub planes: u32,
    /// Chunks of the device.
    pub chunks: u32,
    /// Flash pages of a chunk.
    pub pages: u32,
    /// Flash pages of the smallest write.
    pub write_pages: u32,
}

/// Counts that follow from the configuration.
#[derive(Clone, Debug)]
pub struct Geometry {
    flash: FlashGeometry,
    channel_first: Vec<PlaneId>,
    per_page: Divisor,
    per_unit: Divisor,
    /// Bytes of a mapping unit.
    pub unit_bytes: u64,
    /// Sectors of 512 bytes in a mapping unit.
    pub lbas_per_unit: u64,
    /// Mapping units that the host sees.
    pub user_units: u64,
    /// Blocks in each of the two metadata regions; 0 without metadata.
    pub meta_blocks_per_region: u32,
    /// Mapping units that a translation page maps; 0 where the map is resident.
    pub map_entries: u32,
    /// Translation pages of the whole map.
    pub map_pages: u64,
    /// Blocks that hold translation pages.
    pub map_blocks: u32,
    /// Blocks of translation pages that are written in parallel, besides the one that GC writes.
    pub map_lanes: u32,
    /// The append namespace.
    pub append: SegmentShape,
    /// The open channel.
    pub open: OpenShape,
    bad_fraction: f64,
}

impl Deref for Geometry {
    type Target = FlashGeometry;

    #[inline]
    fn deref(&self) -> &FlashGeometry {
        &self.flash
    }
}

impl Geometry {
    /// Most superseded members of incomplete epochs that are kept before the device ends their epochs (contract §7.7): as many as
    /// fit into a block.
    pub(crate) fn counted_members_max(&self) -> u64 {
        u64::from(self.units_per_block())
    }

    /// The counts of `config`, whose geometry has been validated.
    pub fn new(config: &DeviceConfig) -> Self {
        let g = &config.geometry;
        let units_per_page = (g.page_bytes.0 / g.unit_bytes.0) as u32;
        let flash = FlashGeometry::new(FlashCounts {
            channels: g.channels,
            chips_per_channel: g.chips_per_channel,
            dies_per_chip: g.dies_per_chip,
            planes_per_die: g.planes_per_die,
            blocks_per_plane: g.blocks_per_plane,
            pages_per_block: g.pages_per_block,
            units_per_page,
            die_interleaving: config.timing.die_interleaving,
        });
        let mut geometry = Self {
            flash,
            per_page: Divisor::new(u64::from(units_per_page)),
            per_unit: Divisor::new(g.unit_bytes.0 / LBA_BYTES),
            unit_bytes: g.unit_bytes.0,
            lbas_per_unit: g.unit_bytes.0 / LBA_BYTES,
            user_units: 0,
            meta_blocks_per_region: 0,
            map_entries: 0,
            map_pages: 0,
            map_blocks: 0,
            map_lanes: 0,
            append: SegmentShape::default(),
            open: OpenShape::default(),
            channel_first: Vec::new(),
            bad_fraction: config.faults.factory_bad,
        };
        let physical = geometry.physical_units();
        if config.firmware == FirmwareKind::OpenChannel {
            geometry.user_units = physical;
            let planes = match config.open.chunk {
                ChunkSpan::Plane => 1,
                ChunkSpan::Die => g.planes_per_die,
            };
            geometry.open = OpenShape {
                planes,
                chunks: geometry.blocks() / planes,
                pages: planes * g.pages_per_block,
                write_pages: config.open.write_pages,
            };
            return geometry;
        }
        if config.firmware == FirmwareKind::Append {
            geometry.lay_out_segments(&config.append);
            geometry.user_units = u64::from(geometry.append.segments) * u64::from(geometry.append.units);
            return geometry;
        }
        if config.firmware == FirmwareKind::PageAndAppend {
            geometry.append.blocks_per_plane_max = geometry.blocks_of_segments(&config.append);
        }
        // What segments may have is no part of the capacity from which over-provisioning is taken.
        let lent = u64::from(geometry.append.blocks_per_plane_max) * u64::from(geometry.planes());
        let physical = physical.saturating_sub(lent * u64::from(geometry.units_per_block()));
        let share = (physical as f64 * (1.0 - config.ftl.over_provisioning)).floor() as u64;
        // Static striping needs every plane to hold the same share, so the capacity is a whole number of stripes of pages.
        let stripe = u64::from(geometry.planes()) * u64::from(units_per_page);
        geometry.user_units = (share / stripe).max(1) * stripe;
        if config.ftl.translation == Translation::DemandCached {
            geometry.map_entries = config.ftl.demand.entries.max(1);
            geometry.map_pages = geometry.user_units.div_ceil(u64::from(geometry.map_entries));
            let full = geometry.map_pages.div_ceil(u64::from(g.pages_per_block)) as u32;
            geometry.map_lanes = geometry.planes().min(full);
            // Room for each page once; a quarter more, so that GC finds many old pages in its victims; a block for each lane and
            // one for GC; one in reserve for GC and two spare ones.
            geometry.map_blocks = full + full.div_ceil(4) + geometry.map_lanes + 4;
        }
        if config.ftl.metadata == Metadata::Log {
            // A region holds one checkpoint and a log of the same size, and never less than a block.
            // A page that shares its content takes another entry, and where the map is on the medium two.
            let owners = u64::from(config.ftl.share.pages) * OWNERS_PER_PAGE as u64;
            let shared = if geometry.map_pages > 0 { 2 * owners } else { owners };
            let bytes = 2 * (geometry.user_units + geometry.map_pages + shared) * CHECKPOINT_ENTRY_BYTES;
            let block_bytes = u64::from(g.pages_per_block) * g.page_bytes.0;
            geometry.meta_blocks_per_region = (bytes.div_ceil(block_bytes) + 1) as u32;
        }
        if config.firmware == FirmwareKind::PageAndAppend {
            geometry.lay_out_segments(&config.append);
        }
        geometry
    }

    /// Most blocks of a plane that segments of this configuration have at a time: those of all segments, and the spare ones.
    fn blocks_of_segments(&self, config: &AppendConfig) -> u32 {
        let lanes = if config.lanes == 0 { self.planes() } else { config.lanes };
        let of_all = u64::from(config.segments) * u64::from(lanes);
        let most = of_all.div_ceil(u64::from(self.planes())) + u64::from(config.spare_blocks);
        most.min(u64::from(self.blocks_per_plane)) as u32
    }

    /// Counts of the append namespace: as many segments as are asked for, or as have room.
    fn lay_out_segments(&mut self, config: &AppendConfig) {
        let planes = self.planes();
        let lanes = if config.lanes == 0 { planes } else { config.lanes };
        let groups = planes / lanes;
        // A region holds one checkpoint and a log of the same size, and never less than a block.
        let bound = if config.segments == 0 { groups * self.blocks_per_plane } else { config.segments };
        let records = 1 + u64::from(bound) * u64::from(SegmentRecord::of_segment(lanes));
        let per_page = records_per_page(u64::from(self.page_bytes())).max(1) as u64;
        // The page at the end of each segment may be there in part.
        let tails = if self.units_per_page > 1 { u64::from(bound) } else { 0 };
        let pages = 2 * (records.div_ceil(per_page) + tails);
        self.append = SegmentShape {
            segments: 0,
            lanes,
            units: lanes.saturating_mul(self.units_per_block()),
            log_blocks_per_region: pages.div_ceil(u64::from(self.pages_per_block)) as u32 + 1,
            log_from: 2 * self.meta_blocks_per_region + self.map_blocks,
            blocks_per_plane_max: self.append.blocks_per_plane_max,
        };
        self.append.segments = match config.segments {
            0 => groups * self.segment_blocks_per_plane(config.spare_blocks),
            asked => asked,
        };
        let counts = self.dimensions().map(|count| count.get() as u32);
        let [channels, ways, dies, of_die] = counts;
        let way_first = (0..ways).flat_map(|way| (0..dies).map(move |die| (way, die)));
        let all = way_first.flat_map(|(way, die)| (0..of_die).map(move |plane| (way, die, plane)));
        let at = |(way, die, plane)| (0..channels).map(move |channel| [channel, way, die, plane]);
        let striped: Vec<PlaneId> = all.flat_map(at).map(|at| self.plane_at(at)).collect();
        // A narrow segment has planes with neighbouring numbers, so those of few channels.
        self.channel_first = (0..groups)
            .flat_map(|group| striped.iter().filter(move |plane| plane.0 / lanes == group).copied())
            .collect();
    }

    /// Most blocks of a plane that segments can have if so many are spare.
    pub fn segment_blocks_per_plane(&self, spare: u32) -> u32 {
        let reserved = self.reserved_blocks_per_plane() + self.factory_bad_max() + spare;
        self.blocks_per_plane.saturating_sub(reserved)
    }

    /// The planes of a segment, in the order in which pages go to them: channels first (append-segments §1).
    #[inline]
    pub fn segment_planes(&self, segment: u32) -> &[PlaneId] {
        let lanes = self.append.lanes as usize;
        let groups = self.channel_first.len() / lanes;
        let first = segment as usize % groups * lanes;
        &self.channel_first[first..first + lanes]
    }

    /// The blocks of region 0 or 1 of the log of segments.
    pub fn segment_log_blocks(&self, region: u32) -> impl Iterator<Item = BlockId> + use<> {
        let (nth_reserved, first) = (self.nth_reserved(), self.append.log_from);
        (0..self.append.log_blocks_per_region).map(move |i| nth_reserved(first + 2 * i + region))
    }

    /// Parallel units of an open channel: planes, or dies where a chunk has a block of each plane.
    pub fn parallel_units(&self) -> u32 {
        self.open.chunks / self.blocks_per_plane
    }

    /// The flash as its host sees it: a chunk is a block, and the smallest write is a page, so that addresses of units are those of the
    /// open channel (open-channel §6.7).
    pub fn open_flash(&self) -> FlashGeometry {
        let write_pages = self.open.write_pages;
        self.flash.seen_as(
            self.planes_per_die() / self.open.planes,
            self.open.pages / write_pages,
            self.units_per_page * write_pages,
        )
    }

    /// Units of a chunk.
    #[inline]
    pub fn chunk_units(&self) -> u32 {
        self.open.pages * self.units_per_page
    }

    /// The chunk of an address of the open channel, and the unit's number in it.
    #[inline]
    pub fn chunk_of(&self, place: Ppa) -> (ChunkId, u32) {
        let units = u64::from(self.chunk_units());
        (ChunkId((place.0 / units) as u32), (place.0 % units) as u32)
    }

    /// Address of the first unit of page `page` of a chunk.
    #[inline]
    pub fn chunk_place(&self, chunk: ChunkId, page: u32) -> Ppa {
        Ppa(u64::from(chunk.0) * u64::from(self.chunk_units()) + u64::from(page * self.units_per_page))
    }

    /// The flash page that is number `page` of a chunk: pages take turns on the planes.
    #[inline]
    pub fn chunk_page(&self, chunk: ChunkId, page: u32) -> PageAddr {
        let planes = self.open.planes;
        PageAddr { block: self.chunk_block(chunk, page % planes), page: page / planes }
    }

    /// The block of a chunk in the plane with this number in the chunk.
    #[inline]
    pub fn chunk_block(&self, chunk: ChunkId, plane: u32) -> BlockId {
        let (parallel_unit, nth) = (chunk.0 / self.blocks_per_plane, chunk.0 % self.blocks_per_plane);
        BlockId((parallel_unit * self.open.planes + plane) * self.blocks_per_plane + nth)
    }

    /// The blocks of a chunk, plane by plane.
    pub fn chunk_blocks(&self, chunk: ChunkId) -> impl Iterator<Item = BlockId> + '_ {
        (0..self.open.planes).map(move |plane| self.chunk_block(chunk, plane))
    }

    /// The chunk of a flash page, and the page's number in it.
    #[inline]
    pub fn chunk_of_page(&self, at: PageAddr) -> (ChunkId, u32) {
        let (plane, nth) = (at.block.0 / self.blocks_per_plane, at.block.0 % self.blocks_per_plane);
        let planes = self.open.planes;
        (ChunkId(plane / planes * self.blocks_per_plane + nth), at.page * planes + plane % planes)
    }

    /// The flash page of an address of the open channel, and the unit's position in it.
    #[inline]
    pub fn open_page(&self, place: Ppa) -> (PageAddr, u32) {
        let (chunk, unit) = self.chunk_of(place);
        (self.chunk_page(chunk, unit / self.units_per_page), unit % self.units_per_page)
    }

    /// The physical unit of an address of the open channel, as the medium numbers it.
    #[inline]
    pub fn open_unit(&self, place: Ppa) -> Ppa {
        let (at, unit) = self.open_page(place);
        self.ppa(at, unit)
    }

    /// Bytes of a page.
    #[inline]
    pub fn page_bytes(&self) -> u32 {
        self.units_per_page * self.unit_bytes as u32
    }

    /// Sectors of 512 bytes of a segment.
    #[inline]
    pub fn segment_lbas(&self) -> u64 {
        u64::from(self.append.units) * self.lbas_per_unit
    }

    /// Sectors of 512 bytes that the host sees.
    pub fn capacity_lbas(&self) -> u64 {
        self.user_units * self.lbas_per_unit
    }

    /// The mapping unit of a sector, and the sector's number in it.
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

    /// The first sector of a mapping unit.
    pub fn lba_of(&self, lpn: Lpn) -> Lba {
        Lba(lpn.0 * self.lbas_per_unit)
    }

    /// The blocks of metadata region 0 or 1: spread over the planes, the last blocks first.
    pub fn meta_blocks(&self, region: u32) -> impl Iterator<Item = BlockId> + use<> {
        let nth_reserved = self.nth_reserved();
        (0..self.meta_blocks_per_region).map(move |i| nth_reserved(2 * i + region))
    }

    /// The blocks of translation pages: below those of metadata, and spread over the planes in the same way.
    pub fn map_area(&self) -> impl Iterator<Item = BlockId> + use<> {
        let (nth_reserved, first) = (self.nth_reserved(), 2 * self.meta_blocks_per_region);
        (first..first + self.map_blocks).map(nth_reserved)
    }

    fn nth_reserved(&self) -> impl Fn(u32) -> BlockId + use<> {
        let (planes, per_plane) = (self.planes(), self.blocks_per_plane);
        move |nth| BlockId((nth % planes) * per_plane + per_plane - 1 - nth / planes)
    }

    /// Most blocks of a plane that hold metadata, translation pages and the log of segments.
    pub fn reserved_blocks_per_plane(&self) -> u32 {
        let reserved =
            2 * (self.meta_blocks_per_region + self.append.log_blocks_per_region) + self.map_blocks;
        reserved.div_ceil(self.planes())
    }

    /// Most bad blocks from the factory in one plane.
    pub fn factory_bad_max(&self) -> u32 {
        (f64::from(self.blocks_per_plane) * self.bad_fraction).ceil() as u32
    }

    /// Pages that the collection of one victim may leave unused: the rest of the last page, and of the last word line.
    pub fn collection_waste_pages(config: &DeviceConfig) -> u32 {
        let partial_page = u32::from(config.geometry.page_bytes != config.geometry.unit_bytes);
        let wordline = config.timing.cell.pages_per_wordline() - 1;
        partial_page + if config.faults.paired_page_loss { wordline } else { 0 }
    }

    /// Blocks of the tightest plane that hold neither user data nor metadata, less the expected bad ones and those that segments may
    /// have beside a page namespace.
    pub fn spare_blocks_per_plane_min(&self) -> f64 {
        let user = self.user_units as f64 / f64::from(self.planes()) / f64::from(self.units_per_block());
        let meta = self.reserved_blocks_per_plane() + self.append.blocks_per_plane_max;
        let blocks = f64::from(self.blocks_per_plane);
        blocks - f64::from(self.factory_bad_max()) - user - f64::from(meta)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::presets::preset;

    /// Each flash page is one page of one chunk, and each address one unit of it, whatever the span of chunks.
    #[test]
    fn a_chunk_is_a_block_or_one_of_each_plane() {
        let mut config = preset("sata-mlc").unwrap();
        config.firmware = FirmwareKind::OpenChannel;
        (config.geometry.pages_per_block, config.geometry.blocks_per_plane) = (8, 4);
        assert_eq!(config.geometry.planes_per_die, 2);
        for (span, planes) in [(ChunkSpan::Plane, 1), (ChunkSpan::Die, 2)] {
            config.open.chunk = span;
            let geometry = Geometry::new(&config);
            assert_eq!((geometry.open.planes, geometry.open.pages), (planes, 8 * planes));
            for number in 0..geometry.physical_units() {
                let (at, unit) = geometry.open_page(Ppa(number));
                let (chunk, page) = geometry.chunk_of_page(at);
                assert_eq!(geometry.chunk_place(chunk, page).0 + u64::from(unit), number);
                let nth = page * geometry.units_per_page + unit;
                assert_eq!(geometry.chunk_of(Ppa(number)), (chunk, nth));
                let dies = geometry.chunk_blocks(chunk).map(|block| geometry.die(geometry.plane_of(block)));
                assert!(dies.into_iter().all(|die| die == geometry.die(geometry.plane_of(at.block))));
                assert!(planes == 2 || geometry.open_unit(Ppa(number)) == Ppa(number));
            }
            assert_eq!(
                u64::from(geometry.open.chunks) * u64::from(geometry.chunk_units()),
                geometry.user_units
            );
        }
    }
}
