//! Blocks go from one namespace to the other: the one place where both proceed, in turn, until neither can.
//!
//! A segment that needs a block of a plane takes a free one as long as GC of the page namespace keeps its reserve. Else it waits, host
//! data of pages leave the next block that GC gains, and GC goes on. Where the page namespace has nothing to collect, no block comes, and
//! the segment's command fails.
//!
//! Invariant: when this returns, no namespace could proceed because of what the other one did.

use super::ftl::Both;
use crate::firmware::Firmware;
use crate::page::{Cx, Job};
use flashweir_core::index::Idx;
use flashweir_ftl::PlaneId;

/// Most turns at one event: namespaces that never come to rest are a bug of the simulator.
const TURNS_MAX: u32 = 1 << 16;

impl Both {
    /// Lets both namespaces proceed.
    pub(super) fn trade(&mut self, cx: &mut Cx) {
        let mut turns = 0;
        loop {
            self.page.go_on(cx);
            for plane in (0..cx.geometry.planes()).map(PlaneId) {
                self.segments.quota.comes[plane.index()] = self.page.can_give(cx, plane);
            }
            self.segments.quota.wants.clear();
            self.on_segments(cx, |segments, cx| {
                segments.retry_moves(cx);
                segments.go_on(cx);
            });
            for op in self.segments.take_ops() {
                cx.push(op.with_job(Job::Segment(op.job)), self.page.placer_mut());
            }
            if !self.tell(cx) {
                break;
            }
            turns += 1;
            assert!(turns < TURNS_MAX, "the namespaces never come to rest\n{}", self.describe(cx));
        }
    }

    /// Tells the page namespace what the other one took, gave back and waits for; returns whether there was anything.
    fn tell(&mut self, cx: &mut Cx) -> bool {
        let mut is_new = false;
        for plane in (0..cx.geometry.planes()).map(PlaneId) {
            let count = cx.flash.blocks.segment_count(plane);
            if std::mem::replace(&mut self.told[plane.index()], count) != count {
                self.page.pool_changed(cx, plane);
                is_new = true;
            }
            let wanted = u32::from(self.segments.quota.wants.contains(&plane));
            is_new |= self.page.leave(cx, plane, wanted);
        }
        is_new
    }
}
