//! Tables and checkpoints on a disk of append segments: their [`layout`], and the [`map`] of where they are.
//!
//! Place in the data flow: what [`crate::alfs`] adds to F2FS, as far as reader and writer have to know it.

pub(crate) mod layout;
pub(crate) mod map;

use super::layout::checkpoint::Checkpoint;
use super::layout::tables::SitEntry;
use super::layout::{Geometry, SEGMENT_BLOCKS, SegNo};

/// Number of blocks of a segment that are written. `written` has the write pointers of the sections.
pub(crate) fn written_in(geometry: &Geometry, written: &[u32], segment: SegNo) -> u32 {
    let (section, nth) =
        (segment.0 / geometry.segments_per_section, segment.0 % geometry.segments_per_section);
    written[section as usize].saturating_sub(nth * SEGMENT_BLOCKS).min(SEGMENT_BLOCKS)
}

/// Segments of the main area of which a checkpoint has more than is written, in words. `written` has the write pointers of the sections.
pub(crate) fn missing<'a>(
    geometry: &'a Geometry,
    checkpoint: &'a Checkpoint,
    sit: &'a [SitEntry],
    written: &'a [u32],
) -> impl Iterator<Item = String> + 'a {
    (0..geometry.main_segments).map(SegNo).filter_map(|segment| {
        let (entry, here) = (&sit[segment.0 as usize], written_in(geometry, written, segment));
        let cursor = checkpoint.cursors.iter().find(|cursor| cursor.segment == segment);
        let last = (0..SEGMENT_BLOCKS).rev().find(|&offset| entry.is_valid(offset));
        let needed = last.map_or(0, |last| last + 1).max(cursor.map_or(0, |cursor| cursor.offset.into()));
        if needed > here {
            return Some(format!(
                "segment {segment} has {needed} blocks according to the checkpoint, and {here} are written"
            ));
        }
        let before = SegNo(segment.0.wrapping_sub(1));
        let is_first = segment.0.is_multiple_of(geometry.segments_per_section);
        let is_beyond =
            cursor.is_some() && !is_first && written_in(geometry, written, before) < SEGMENT_BLOCKS;
        is_beyond.then(|| format!("a log is in segment {segment}, and segment {before} is not full"))
    })
}

/// Name of the format on the command line, and of its counters.
pub(crate) const KEY: &str = "alfs";
