//! The account of the common pool.

use super::ftl::Both;
use crate::page::Cx;
use flashweir_ftl::{BlockState, PlaneId};
use std::fmt::Write as _;

impl Both {
    /// Panics if a block has two owners or none, if units are lost, or if segments have more than their share of a plane.
    pub(super) fn audit_pool(&self, cx: &Cx) {
        let (pool, media) = (&cx.flash.blocks, &cx.flash.media);
        let per_page = u64::from(cx.geometry.units_per_page);
        let [mut live, mut stale, mut of_segments, mut metadata, mut free] = [0; 5];
        for block in pool.ids() {
            let written = u64::from(media.pages_written(block)) * per_page;
            let valid = u64::from(pool.valid(block));
            free += u64::from(cx.geometry.units_per_block()) - written;
            match pool.state(block) {
                BlockState::Segment => {
                    assert_eq!(valid, 0, "block {} belongs to a segment, and the map names it", block.0);
                    of_segments += written;
                }
                BlockState::Free => assert_eq!(written, 0, "free block {} is not erased", block.0),
                BlockState::Meta => metadata += written,
                BlockState::Open | BlockState::Closed | BlockState::Collecting | BlockState::Bad => {
                    live += valid;
                    stale += written - valid;
                }
            }
        }
        let all = live + stale + of_segments + metadata + free;
        assert_eq!(all, cx.geometry.physical_units(), "units are conserved");
        for plane in (0..cx.geometry.planes()).map(PlaneId) {
            let (count, most) = (pool.segment_count(plane), cx.geometry.append.blocks_per_plane_max);
            assert!(
                cx.planted.is_some() || count <= most,
                "segments have {count} blocks of plane {}",
                plane.0
            );
        }
    }

    /// Describes the free blocks of each plane, and who has the others.
    pub(super) fn describe_pool(&self, cx: &Cx) -> String {
        let mut text = String::new();
        for plane in (0..cx.geometry.planes()).map(PlaneId) {
            let (free, of_segments) =
                (cx.flash.blocks.free_count(plane), cx.flash.blocks.segment_count(plane));
            let waits = if self.segments.quota.wants.contains(&plane) { ", which wait for one" } else { "" };
            let _ = writeln!(text, "plane {}: {free} blocks free, {of_segments} of segments{waits}", plane.0);
        }
        text
    }
}
