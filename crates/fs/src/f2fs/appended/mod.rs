//! Tables and checkpoints on a disk of append segments: their [`layout`], and the [`map`] of where they are.
//!
//! Place in the data flow: what [`crate::alfs`] adds to F2FS, as far as reader and writer have to know it.

pub(crate) mod layout;
pub(crate) mod map;

use super::layout::checkpoint::Checkpoint;
use super::layout::tables::SitEntry;
use super::layout::{Geometry, SEGMENT_BLOCKS, SegNo};

/// Segments of the main area of which a checkpoint has more than is written, in words. `written` has the write pointers of the sections.
pub(crate) fn missing<'a>(
    geometry: &'a Geometry,
    checkpoint: &'a Checkpoint,
    sit: &'a [SitEntry],
    written: &'a [u32],
) -> impl Iterator<Item = String> + 'a {
    (0..geometry.main_segments).map(SegNo).filter_map(|segment| {
        let per_section = geometry.segments_per_section;
        let (section, first) = (segment.0 / per_section, segment.0 % per_section * SEGMENT_BLOCKS);
        let (entry, here) = (&sit[segment.0 as usize], written[section as usize].saturating_sub(first));
        let cursor = checkpoint.cursors.iter().find(|cursor| cursor.segment == segment);
        let last = (0..SEGMENT_BLOCKS).rev().find(|&offset| entry.is_valid(offset));
        let needed = last.map_or(0, |last| last + 1).max(cursor.map_or(0, |cursor| cursor.offset.into()));
        (needed > here).then(|| {
            format!(
                "segment {segment} has {needed} blocks according to the checkpoint, and {here} are written"
            )
        })
    })
}

/// Name of the format on the command line, and of its counters.
pub(crate) const KEY: &str = "alfs";
