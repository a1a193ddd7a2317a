//! The shape of a flash array, and every conversion between physical addresses.
//!
//! Place: both sides of the link use it: the firmware of a device, and a host that has physical addresses.
//!
//! Invariants: planes, blocks, pages and mapping units are numbered one after the other, each level inside of the one above,
//! so a conversion is a division; the numbers of one plane's blocks are neighbours.
//!
//! Deliberately absent: what a host sees of the array (capacity, striping of logical pages, regions for metadata), and time.

use crate::{BlockId, PlaneId};
use flashweir_core::{Divisor, Ppa, index_type};

index_type! {
    /// A channel (bus).
    ChannelId,
    /// A station, which takes one command at a time: a die, or a chip where dies do not interleave.
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

/// Counts from which everything else follows.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FlashCounts {
    /// Channels.
    pub channels: u32,
    /// Chips on each channel.
    pub chips_per_channel: u32,
    /// Dies in each chip.
    pub dies_per_chip: u32,
    /// Planes in each die.
    pub planes_per_die: u32,
    /// Erase blocks in each plane.
    pub blocks_per_plane: u32,
    /// Pages in each block.
    pub pages_per_block: u32,
    /// Mapping units in each page.
    pub units_per_page: u32,
    /// Dies of one chip work independently; otherwise a chip takes one command at a time.
    pub die_interleaving: bool,
}

/// The shape of a flash array.
#[derive(Clone, Debug)]
pub struct FlashGeometry {
    counts: [u32; 4],
    /// The same counts; see [`Self::dimensions`].
    dimensions: [Divisor; 4],
    planes: u32,
    planes_per_station: Divisor,
    per_plane: Divisor,
    per_block: Divisor,
    per_page: Divisor,
    die_interleaving: bool,
    /// Erase blocks in a plane.
    pub blocks_per_plane: u32,
    /// Pages in a block.
    pub pages_per_block: u32,
    /// Mapping units in a page.
    pub units_per_page: u32,
}

impl FlashGeometry {
    /// The array with these counts, each of which is at least one.
    pub fn new(of: FlashCounts) -> Self {
        let counts = [of.channels, of.chips_per_channel, of.dies_per_chip, of.planes_per_die];
        Self {
            dimensions: counts.map(|count| Divisor::new(u64::from(count))),
            planes: counts.iter().product(),
            planes_per_station: Divisor::new(u64::from(if of.die_interleaving {
                of.planes_per_die
            } else {
                of.dies_per_chip * of.planes_per_die
            })),
            per_plane: Divisor::new(u64::from(of.blocks_per_plane)),
            per_block: Divisor::new(u64::from(of.pages_per_block)),
            per_page: Divisor::new(u64::from(of.units_per_page)),
            counts,
            die_interleaving: of.die_interleaving,
            blocks_per_plane: of.blocks_per_plane,
            pages_per_block: of.pages_per_block,
            units_per_page: of.units_per_page,
        }
    }

    /// The same array with these counts, as a host sees it that addresses `planes_per_die` blocks of a die by themselves and takes several
    /// pages for one.
    #[must_use]
    pub fn seen_as(&self, planes_per_die: u32, pages_per_block: u32, units_per_page: u32) -> Self {
        let [channels, chips_per_channel, dies_per_chip, _] = self.counts;
        Self::new(FlashCounts {
            channels,
            chips_per_channel,
            dies_per_chip,
            planes_per_die,
            blocks_per_plane: self.blocks_per_plane,
            pages_per_block,
            units_per_page,
            die_interleaving: self.die_interleaving,
        })
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

    /// Counts of channels, ways, dies and planes, as striping needs them.
    #[inline]
    pub fn dimensions(&self) -> &[Divisor; 4] {
        &self.dimensions
    }

    /// Mapping units in a block.
    pub fn units_per_block(&self) -> u32 {
        self.pages_per_block * self.units_per_page
    }

    /// Mapping units on the medium.
    pub fn physical_units(&self) -> u64 {
        u64::from(self.blocks()) * u64::from(self.units_per_block())
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

    /// The physical addresses of the units of a page, in order.
    pub fn units_of(&self, at: PageAddr) -> impl Iterator<Item = Ppa> + use<> {
        let first = self.ppa(at, 0).0;
        (first..first + u64::from(self.units_per_page)).map(Ppa)
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
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn geometries() -> impl Strategy<Value = FlashGeometry> {
        let counts = (1..5u32, 1..4u32, 1..4u32, 1..4u32, 1..40u32, 1..70u32, 1..17u32, any::<bool>());
        counts.prop_map(|(channels, chips, dies, planes, blocks, pages, units, die_interleaving)| {
            FlashGeometry::new(FlashCounts {
                channels,
                chips_per_channel: chips,
                dies_per_chip: dies,
                planes_per_die: planes,
                blocks_per_plane: blocks,
                pages_per_block: pages,
                units_per_page: units,
                die_interleaving,
            })
        })
    }

    proptest! {
        #[test]
        fn an_address_is_one_unit_of_one_page_of_one_block(geometry in geometries(), at in any::<u64>()) {
            let ppa = Ppa(at % geometry.physical_units());
            let (page, unit) = geometry.page_of(ppa);
            prop_assert!(page.block.0 < geometry.blocks());
            prop_assert!(page.page < geometry.pages_per_block && unit < geometry.units_per_page);
            prop_assert_eq!(geometry.ppa(page, unit), ppa);
            let (block, nth) = geometry.block_of(ppa);
            prop_assert_eq!((block, nth), (page.block, page.page * geometry.units_per_page + unit));
            let units = u64::from(geometry.units_per_block());
            prop_assert_eq!(u64::from(block.0) * units + u64::from(nth), ppa.0);
        }

        #[test]
        fn each_level_lies_inside_of_the_one_above(geometry in geometries(), at in any::<u32>()) {
            let block = BlockId(at % geometry.blocks());
            let plane = geometry.plane_of(block);
            prop_assert_eq!(plane.0, block.0 / geometry.blocks_per_plane);
            let station = geometry.station(plane);
            prop_assert_eq!(station.0, plane.0 / geometry.planes_per_station());
            prop_assert!(station.0 < geometry.stations());
            prop_assert!(geometry.channel(station).0 < geometry.channels());
            prop_assert_eq!(geometry.die(plane).0, plane.0 / geometry.planes_per_die());
            let [channels, chips, dies, planes] = geometry.dimensions().map(|count| count.get() as u32);
            let (rest, of_die) = (plane.0 / planes, plane.0 % planes);
            let (rest, of_chip) = (rest / dies, rest % dies);
            let (channel, chip) = (rest / chips, rest % chips);
            prop_assert!(channel < channels && geometry.channel(station).0 == channel);
            prop_assert_eq!(geometry.plane_at([channel, chip, of_chip, of_die]), plane);
        }
    }
}
