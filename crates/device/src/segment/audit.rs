//! Accounts that have to balance, and what each command and plane waits for.

use super::moving::EraseFor;
use super::table::{NO_BLOCK, Page, Segments};
use crate::cx::Cx;
use flashweir_core::index::Idx;
use flashweir_ftl::{BlockId, BlockState};
use std::collections::BTreeSet;
use std::fmt::Write as _;

impl Segments {
    /// Panics if an account does not balance. No command is in flight; the buffer may hold units.
    pub(crate) fn audit<J: Copy>(&self, cx: &Cx<J>) {
        assert!(self.queue.is_empty() && self.waits.is_empty() && self.appended.is_empty(), "commands wait");
        let mut used = 0;
        for (segment, open) in &self.open {
            let (pointer, per_page) = (self.states[*segment as usize].pointer, self.per_page as usize);
            assert_eq!(open.slots.len(), open.pages.len() * per_page, "slots of segment {segment}");
            assert!(self.has_blocks(*segment), "segment {segment} is open and has no block");
            let units = (open.first * self.per_page..).zip(&open.slots);
            for (unit, slot) in units {
                assert!(unit < pointer || !slot.is_written(), "unit {unit} of segment {segment}");
            }
            let late = open.slots.iter().filter(|slot| slot.held().is_some_and(|held| held.is_late)).count();
            assert_eq!(late, open.late as usize, "late units of segment {segment}");
            used += self.used_by(open);
            for (page, state) in
                (open.first..).zip(&open.pages).filter(|(_, state)| **state == Page::Programmed)
            {
                let (lane, at) = self.place(*segment, page);
                let moving = self.moves.values().any(|moved| {
                    moved.order.segment == *segment && moved.order.lane == lane && moved.logged.is_none()
                });
                let written = cx.flash.media.pages_written(at.block);
                assert!(moving || at.page < written, "page {page} of segment {segment}: {state:?}");
            }
        }
        assert_eq!(used, self.used, "units in the buffer");
        let is_idle = self.moves.is_empty() && self.planes.iter().all(|queue| queue.busy.is_none());
        if self.open.values().all(|open| open.slots.is_empty()) && is_idle && self.log.is_idle() {
            assert!(
                self.streams.is_empty() || self.log.unlogged().next().is_some(),
                "members wait for nothing"
            );
        }
        self.audit_blocks(cx);
    }

    /// Each block of a segment has one use.
    fn audit_blocks<J: Copy>(&self, cx: &Cx<J>) {
        let mut seen: BTreeSet<BlockId> = BTreeSet::new();
        let mut note = |block: BlockId, what: &str| {
            assert!(seen.insert(block), "block {} has two uses, one of them {what}", block.0);
        };
        let listed = self.blocks.iter().copied().filter(|block| *block != NO_BLOCK);
        listed.for_each(|block| note(block, "a segment's"));
        self.log.pinned().for_each(|block| note(block, "a deallocated segment's"));
        for moved in self.moves.values() {
            let copy = if moved.logged.is_some() { moved.from } else { moved.to };
            note(copy, "a copy");
        }
        for (block, what) in &self.erasing {
            if *what == EraseFor::Pool {
                note(*block, "to be erased");
            }
        }
        for block in cx.flash.blocks.ids() {
            let is_segment = cx.flash.blocks.state(block) == BlockState::Segment;
            let is_bad = cx.flash.media.is_bad(block);
            assert!(is_bad || is_segment == seen.contains(&block), "block {}", block.0);
        }
    }

    /// Describes what each command and plane waits for.
    pub(crate) fn describe(&self) -> String {
        let mut text = String::new();
        for queued in &self.queue {
            let _ =
                writeln!(text, "command {} waits to be accepted, ready: {}", queued.command, queued.is_ready);
        }
        for wait in &self.waits {
            let (segment, upto) = (wait.segment, wait.upto);
            let durable = self.durable(segment);
            let _ = writeln!(
                text,
                "command {} waits for unit {upto} of segment {segment}, which is durable up to {durable}",
                wait.command
            );
        }
        for (plane, queue) in self.planes.iter().enumerate() {
            if queue.busy.is_some() || !queue.waiting.is_empty() || !queue.moves.is_empty() {
                let _ = writeln!(text, "plane {plane}: {queue:?}");
            }
        }
        for (plane, moved) in &self.moves {
            let _ =
                writeln!(text, "plane {} copies {:?}, record {:?}", plane.index(), moved.order, moved.logged);
        }
        for (segment, open) in &self.open {
            let pointer = self.states[*segment as usize].pointer;
            let _ = writeln!(
                text,
                "segment {segment}: write pointer {pointer}, pages from {} on {:?}, forced {}, late {}, moving {}, lost {}",
                open.first, open.pages, open.forced, open.late, open.moving, open.is_lost
            );
        }
        text
    }
}
