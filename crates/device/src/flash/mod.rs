//! The flash of an SSD, whatever firmware runs on it: the machine that decides when operations happen, the medium, and the pool of
//! blocks.
//!
//! Place in the data flow: a firmware pushes operations into the [`Machine`], applies their effects to the [`Media`] when they have
//! ended, and takes blocks from the pool and returns them.
//!
//! Invariants: a block is in the pool or in use by the firmware; a bad block is in neither; a power cut leaves only the medium.
//!
//! Deliberately absent: jobs. The meaning of an operation is its firmware's business; [`Purpose`] serves only traces and
//! statistics.

mod column;
pub(crate) mod machine;
pub(crate) mod media;
pub(crate) mod oob;
pub(crate) mod op;
pub(crate) mod plan;
pub(crate) mod store;
pub mod trace;

pub use flashweir_core::oob::Owner;
pub use machine::NandEvent;
pub(crate) use machine::{Machine, Placer};
pub use media::{Media, PageState, Torn};
pub use oob::UnitImage;
pub use op::{Class, Frontier, Interrupted, Op, OpId, OpKind, Programs, Purpose};
pub(crate) use op::{UNBOUND, wordline_start};
pub use plan::RecoveryReport;
pub use store::{BlockHealth, Overflow, PageImage, SaveArea, Saved, SharedStore, Store, StoreError, Stored};

use crate::config::DeviceConfig;
use crate::geometry::Geometry;
use flashweir_core::index::Idx;
use flashweir_core::random::RandomStream;
use flashweir_ftl::{BlockId, BlockState, Blocks, PlaneId};
use std::collections::BTreeSet;

/// Identity of the content of a page that should be readable but is not.
pub const UNREADABLE: u64 = 0xbad0_bad0_bad0_bad0;

/// Machine, medium and pool.
#[derive(Clone, Debug)]
pub(crate) struct Flash<J> {
    pub(crate) machine: Machine<J>,
    pub(crate) media: Media,
    pub(crate) blocks: Blocks,
    /// Decides which programs and erases fail.
    pub(crate) random: RandomStream,
    /// Number of bad blocks in each plane.
    pub(crate) bad_blocks_of_plane: Vec<u32>,
}

/// Returns a medium fresh from the factory: the seed decides which blocks are bad, never those that are `reserved` for metadata,
/// and no plane has more bad blocks than the fraction says, as vendors guarantee.
pub(crate) fn factory_media(
    config: &DeviceConfig,
    geometry: &Geometry,
    (seed, track_contents): (u64, bool),
    reserved: &BTreeSet<BlockId>,
) -> Media {
    let mut factory = RandomStream::new(seed, "factory");
    let bad_max = geometry.factory_bad_max();
    let mut bad_of_plane = vec![0; geometry.planes() as usize];
    let mut bad = Vec::new();
    for block in (0..geometry.blocks()).map(BlockId) {
        let of_plane = &mut bad_of_plane[geometry.plane_of(block).index()];
        let drawn = factory.chance(config.faults.factory_bad);
        if drawn && *of_plane < bad_max && !reserved.contains(&block) {
            *of_plane += 1;
            bad.push(block);
        }
    }
    Media::new(config, track_contents, &bad)
}

impl<J: Copy> Flash<J> {
    /// Returns idle flash whose pool has every block that is neither bad nor `reserved` for metadata.
    pub(crate) fn new(
        config: &DeviceConfig,
        geometry: &Geometry,
        media: Media,
        seed: u64,
        reserved: &BTreeSet<BlockId>,
    ) -> Self {
        let mut blocks =
            Blocks::new(geometry.planes(), geometry.blocks_per_plane, geometry.units_per_block());
        reserved.iter().for_each(|block| blocks.reserve_meta(*block));
        let mut bad_blocks_of_plane = vec![0; geometry.planes() as usize];
        for block in blocks.ids().filter(|block| media.is_bad(*block)) {
            bad_blocks_of_plane[geometry.plane_of(block).index()] += 1;
            if blocks.state(block) == BlockState::Free {
                blocks.retire(block);
            }
        }
        let mut timing = config.timing.clone();
        if config.order.penalty > 0.0 {
            timing.program = timing.program.longer_by(config.order.penalty);
        }
        Self {
            machine: Machine::new(geometry, &timing, config.ftl.gc.preemptible),
            media,
            blocks,
            random: RandomStream::new(seed, "device-faults"),
            bad_blocks_of_plane,
        }
    }

    /// Takes a block that holds nothing valid out of use for good.
    pub(crate) fn retire(&mut self, plane: PlaneId, block: BlockId) {
        self.media.mark_bad(block);
        self.blocks.retire(block);
        self.bad_blocks_of_plane[plane.index()] += 1;
    }

    /// Free blocks per plane: the least, and the mean over the planes.
    pub(crate) fn free_blocks(&self) -> (u64, f64) {
        let planes = self.bad_blocks_of_plane.len() as u32;
        let counts = (0..planes).map(|plane| self.blocks.free_count(PlaneId(plane)));
        let (least, sum) = counts.fold((u32::MAX, 0), |(least, sum), n| (least.min(n), sum + n));
        (u64::from(least), f64::from(sum) / f64::from(planes))
    }

    /// Erase counts of the blocks that are in use: least, mean, largest.
    pub(crate) fn wear(&self) -> (u64, f64, u64) {
        let good = self.blocks.ids().filter(|block| !self.media.is_bad(*block));
        let (mut least, mut most, mut sum, mut count) = (u32::MAX, 0, 0u64, 0u64);
        for erases in good.map(|block| self.media.erases(block)) {
            (least, most) = (least.min(erases), most.max(erases));
            (sum, count) = (sum + u64::from(erases), count + 1);
        }
        (u64::from(least), sum as f64 / count.max(1) as f64, u64::from(most))
    }
}
