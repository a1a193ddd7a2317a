//! What the append namespace may take of the pool of blocks, which a page namespace may share (append-segments §3.10).
//!
//! Place in the data flow: [`super::moves`] asks before it takes a block, and notes where it has to wait for one; a firmware with both
//! namespaces reads that, and says where the other one will give blocks.
//!
//! Invariants: segments leave the free blocks that GC of the page namespace needs, and never have more of a plane than their share, so
//! neither namespace can keep the other one from making progress.

use crate::config::{DeviceConfig, FirmwareKind};
use crate::geometry::Geometry;
use flashweir_core::index::Idx;
use flashweir_ftl::{Blocks, PlaneId};
use std::collections::BTreeSet;

/// See the module. Alone on its device the append namespace may take every block.
#[derive(Clone, Debug)]
pub(crate) struct Quota {
    /// Free blocks of each plane that segments leave.
    keep: u32,
    /// Most blocks of each plane that segments have at a time.
    most: u32,
    /// Planes in which a block is waited for that the page namespace has to give.
    pub(crate) wants: BTreeSet<PlaneId>,
    /// Whether the page namespace has blocks of a plane, or can make room for some.
    pub(crate) comes: Vec<bool>,
}

impl Quota {
    pub(super) fn new(config: &DeviceConfig, geometry: &Geometry) -> Self {
        let (keep, most) = match config.firmware {
            FirmwareKind::PageAndAppend => {
                (config.ftl.gc.reserve_blocks, geometry.append.blocks_per_plane_max)
            }
            _ => (0, u32::MAX),
        };
        Self { keep, most, wants: BTreeSet::new(), comes: vec![false; geometry.planes() as usize] }
    }

    /// Whether segments may take a free block of the plane.
    pub(super) fn allows(&self, pool: &Blocks, plane: PlaneId) -> bool {
        pool.free_count(plane) > self.keep && pool.segment_count(plane) < self.most
    }

    /// A block of the plane is waited for. Returns whether the page namespace will give one.
    pub(super) fn want(&mut self, pool: &Blocks, plane: PlaneId) -> bool {
        let comes = self.comes[plane.index()] && pool.segment_count(plane) < self.most;
        if comes {
            self.wants.insert(plane);
        }
        comes
    }
}
