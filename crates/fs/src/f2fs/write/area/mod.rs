//! The part of the disk that is not written by logs: checkpoints, and the tables that say where nodes are and which blocks are valid.
//!
//! Place in the data flow: all other writes go to logs and are found by the tables in memory. The writer notes here which entries
//! of these changed; a [`checkpoint`](super::checkpoint) has them and itself stored here. Nothing here knows the state.
//!
//! There are two ways to do it: [`fixed`] at fixed places (F2FS), and [`appended`] to segments that are never written over (ALFS). Only
//! here, where a volume is mounted, and in the choice of free segments does the writer know which one it is.
//!
//! Invariant: no block to which the last checkpoint refers is written or discarded before the new one is complete.

mod appended;
mod fixed;
mod stored;

use super::super::layout::checkpoint::Checkpoint;
use super::super::layout::{Addr, Geometry, Nid, SegNo};
use super::super::volume::Volume;
pub use appended::AlfsMetrics;
use appended::Appended;
use fixed::Fixed;
use flashweir_core::command::SegmentId;
use stored::Out;
#[cfg(test)]
pub(super) use stored::PACK_OTHERS;
pub(super) use stored::{Stored, Tables};

/// See the module.
#[derive(Debug)]
pub(super) struct Area {
    geometry: Geometry,
    way: Way,
}

#[derive(Debug)]
enum Way {
    Fixed(Fixed),
    Appended(Box<Appended>),
}

impl Area {
    /// Returns the area of a volume that was just mounted.
    pub(super) fn of(volume: &Volume) -> Self {
        let way = match volume.node_map() {
            None => Way::Fixed(Fixed::of(volume)),
            Some(map) => Way::Appended(Box::new(Appended::of(map))),
        };
        Self { geometry: *volume.geometry(), way }
    }

    /// Notes that the entry of a node changed.
    pub(super) fn note_node(&mut self, nid: Nid) {
        match &mut self.way {
            Way::Fixed(fixed) => fixed.note_node(nid),
            Way::Appended(appended) => appended.note_node(nid),
        }
    }

    /// Notes that the entry of a segment changed.
    pub(super) fn note_segment(&mut self, segment: SegNo) {
        match &mut self.way {
            Way::Fixed(fixed) => fixed.note_segment(segment),
            Way::Appended(appended) => appended.note_segment(segment),
        }
    }

    /// Writes tables and checkpoint except for its last block, and enters the places of the tables into the checkpoint.
    pub(super) fn store(&mut self, tables: &Tables<'_>, checkpoint: &mut Checkpoint, out: Out<'_>) -> Stored {
        match &mut self.way {
            Way::Fixed(fixed) => fixed.store(tables, checkpoint, out),
            Way::Appended(appended) => appended.store(tables, checkpoint, out),
        }
    }

    /// The checkpoint is complete, and so are the discards of [`Self::dead_segments`].
    pub(super) fn turn(&mut self) {
        match &mut self.way {
            Way::Fixed(fixed) => fixed.turn(),
            Way::Appended(appended) => appended.turn(),
        }
    }

    /// Segments of the disk to which the checkpoint that was just stored does not refer any more.
    pub(super) fn dead_segments(&self) -> Vec<SegmentId> {
        match &self.way {
            Way::Fixed(_) => Vec::new(),
            Way::Appended(appended) => appended.dead_segments(),
        }
    }

    /// Address of the summary of a segment.
    pub(super) fn summary_place(&self, segment: SegNo) -> Addr {
        self.geometry.summary_block(segment)
    }

    /// Most inodes without names that a checkpoint can list.
    pub(super) fn nameless_max(&self) -> usize {
        match &self.way {
            Way::Fixed(fixed) => fixed.nameless_max(),
            Way::Appended(appended) => appended.nameless_max(),
        }
    }

    /// Blocks that the map of append segments takes before a checkpoint has to clean it.
    pub(super) fn map_blocks_left(&self) -> Option<u64> {
        match &self.way {
            Way::Fixed(_) => None,
            Way::Appended(appended) => Some(appended.blocks_left()),
        }
    }

    /// Bytes in memory of a map of append segments: the table of TIMB places, and all the rest.
    pub(super) fn map_memory_bytes(&self) -> Option<[u64; 2]> {
        match &self.way {
            Way::Fixed(_) => None,
            Way::Appended(appended) => Some(appended.memory_bytes()),
        }
    }

    /// Counters of a map of append segments.
    pub(super) fn map_metrics(&self) -> Option<AlfsMetrics> {
        match &self.way {
            Way::Fixed(_) => None,
            Way::Appended(appended) => Some(appended.metrics),
        }
    }

    /// Sets the number of blocks of a pack that continue the bitmaps of its head.
    #[cfg(test)]
    pub(super) fn set_payload(&mut self, payload: u32) {
        match &mut self.way {
            Way::Fixed(fixed) => fixed.payload = payload,
            Way::Appended(_) => unreachable!("such packs have none"),
        }
    }
}
