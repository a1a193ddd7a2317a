//! Blocks for an append namespace that shares the pool (append-segments §3.10).
//!
//! Place in the data flow: the firmware with both namespaces asks whether a plane can give a block, has host data leave it, and reports what the other
//! namespace did to the pool.
//!
//! Invariant: GC has its reserve, whatever the other namespace wants, and goes on until it has found room for both.

use super::ftl::{Cx, PageFtl};
use flashweir_core::index::Idx;
use flashweir_ftl::{PlaneId, VictimPicker};

impl PageFtl {
    /// Whether a plane has more free blocks than GC needs, or can get some: a collection is under way, would gain room, or waits for
    /// the record of a deallocation.
    pub(crate) fn can_give(&self, cx: &Cx, plane: PlaneId) -> bool {
        cx.flash.blocks.free_count(plane) > cx.config.ftl.gc.reserve_blocks
            || self.collections[plane.index()].victim.is_some()
            || VictimPicker::emptiest(&cx.flash.blocks, plane)
                .is_some_and(|victim| cx.flash.blocks.valid(victim) <= self.valid_max(cx))
            || self.log.pinned().next().is_some()
    }

    /// Has host data leave so many free blocks of a plane, beside those for GC. Returns whether that is new.
    pub(crate) fn leave(&mut self, cx: &mut Cx, plane: PlaneId, blocks: u32) -> bool {
        let before = std::mem::replace(&mut self.space.leave[plane.index()], blocks);
        if before != blocks {
            self.pool_changed(cx, plane);
        }
        before != blocks
    }

    /// The other namespace took blocks of a plane, gave some back, or lost one.
    pub(crate) fn pool_changed(&mut self, cx: &mut Cx, plane: PlaneId) {
        self.check_spare(cx, plane);
        self.work.collect(plane);
        self.note_room(cx);
        let station = cx.geometry.station(plane);
        cx.flash.machine.wake(station);
        cx.start(station, &mut self.space);
        if self.may_get_stuck(cx) {
            self.work.check_stuck(plane);
        }
    }
}
