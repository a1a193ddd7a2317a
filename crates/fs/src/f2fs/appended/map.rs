//! The map of a volume on append segments: where the newest checkpoint says that blocks of the tables are.
//!
//! Place in the data flow: [`alfs`](crate::alfs) finds it at a mount; a [`Volume`](super::super::Volume) reads its tables through it, and the
//! [writer](super::super::write) goes on from it.

use super::super::layout::{Addr, Geometry};
use super::layout::Superblock;
use crate::port::{BLOCK_BYTES, BlockPort, PortError, bytes_of};
use flashweir_core::DeviceError;
use flashweir_core::command::SegmentId;
use std::sync::Arc;

/// Blocks that are read at once.
const AT_ONCE: usize = 64;

/// Places of the blocks of a table, and of the blocks with these places. [`Addr::NULL`] where nothing was ever written.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Places {
    pub(crate) blocks: Vec<Addr>,
    pub(crate) roots: Vec<Addr>,
}

/// See the module.
#[derive(Clone, Debug)]
pub(crate) struct Map {
    pub(crate) superblock: Superblock,
    pub(crate) entries: Places,
    pub(crate) usage: Places,
    /// Segment of the map that is written, and the next block in it; the length of the segment if that is full.
    pub(crate) cursor: (u32, u32),
    /// Segments of the map in which something was written.
    pub(crate) used: Vec<bool>,
    /// Segment of the newest checkpoint, and the next block in it.
    pub(crate) pack: (u32, u32),
    /// Number of blocks that are written in the other segment of packs.
    pub(crate) other_pack: u32,
}

/// Whether nothing was written there.
pub(crate) fn is_unwritten(error: &PortError) -> bool {
    matches!(error, PortError::Device(DeviceError::NotWritten { .. }))
}

/// Reads the blocks at these places; those that were never written are zeros.
pub(crate) async fn blocks_at(port: &dyn BlockPort, places: &[Addr]) -> Result<Vec<Arc<[u8]>>, PortError> {
    let mut blocks: Vec<Arc<[u8]>> = Vec::with_capacity(places.len());
    for places in places.chunks(AT_ONCE) {
        let read = |place: &Addr| (*place != Addr::NULL).then(|| port.read(Geometry::block(*place), 1));
        let tickets: Vec<_> = places.iter().map(read).collect();
        for ticket in tickets {
            blocks.push(match ticket {
                Some(ticket) => bytes_of(&ticket.completed().await?[0]),
                None => Arc::from([0; BLOCK_BYTES]),
            });
        }
    }
    Ok(blocks)
}

/// Numbers of blocks that are written in segments.
pub(crate) async fn pointers(
    port: &dyn BlockPort,
    segments: impl Iterator<Item = u32>,
) -> Result<Vec<u32>, PortError> {
    let mut pointers = Vec::new();
    let mut left = segments.peekable();
    while left.peek().is_some() {
        let tickets: Vec<_> =
            left.by_ref().take(AT_ONCE).map(|segment| port.report(SegmentId(segment))).collect();
        for ticket in tickets {
            pointers.push(ticket.reported().await?);
        }
    }
    Ok(pointers)
}

impl Map {
    /// Segments of the map, and the other segment of packs, in which something was written and to which no checkpoint refers.
    pub(crate) fn dead_segments(&self) -> Vec<SegmentId> {
        let Superblock { segment_blocks, map_segments, .. } = self.superblock;
        let ring = self.superblock.map();
        let mut holds = vec![false; map_segments as usize];
        let tables = [&self.entries, &self.usage];
        for place in tables.into_iter().flat_map(|table| table.blocks.iter().chain(&table.roots)) {
            if *place != Addr::NULL {
                holds[(place.0 / segment_blocks - ring.start) as usize] = true;
            }
        }
        let (now, _) = self.cursor;
        let is_dead = |segment: &u32| {
            let at = (segment - ring.start) as usize;
            *segment != now && self.used[at] && !holds[at]
        };
        let mut dead: Vec<_> = ring.clone().filter(is_dead).map(SegmentId).collect();
        dead.extend((self.other_pack > 0).then_some(SegmentId(3 - self.pack.0)));
        dead
    }

    /// These segments have been discarded.
    pub(crate) fn note_discarded(&mut self, segments: &[SegmentId]) {
        for segment in segments {
            match segment.0.checked_sub(self.superblock.map().start) {
                Some(at) => self.used[at as usize] = false,
                None => self.other_pack = 0,
            }
        }
    }
}
