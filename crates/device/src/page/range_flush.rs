//! Range flush: a chosen part of the buffer becomes durable, and nothing else has to (range-flush §4).
//!
//! Invariants: a range flush completes when the versions that it selected, or newer ones of the same pages, can be recovered; it
//! waits for nothing else. A version for which it waits is not overwritten in place, since it was chosen for writing
//! (contract §6.8).
//!
//! It selects: of each page in its ranges the newest version; of each of its tags every version that carries it, also by union; and
//! the volatile deallocations of these pages and tags, because a deallocation supersedes a version as a write does.
//!
//! The versions on which a selected version of a stream depends are made durable first ([`super::order`]).
//!
//! Deliberately absent: closures over atomic groups, as this device has none.

use super::buffer::{Place, Slot, SlotState, Superseded};
use super::ftl::{Cx, PageFtl};
use super::pending::{PendingFlush, VolatileChange};
use super::tags::Owners;
use super::work::Due;
use crate::config::RangeFlushSupport;
use crate::flash::trace::Traced;
use crate::front::Span;
use crate::planted::PlantedBug;
use flashweir_core::command::{RangeFlush, Tag};
use flashweir_core::{DeviceError, Lpn, Op};
use flashweir_ftl::recovery::Change;

/// The selection of a range flush, in mapping units.
struct Selector<'a> {
    /// Ranges of units, sorted and without overlap.
    units: Vec<(u64, u64)>,
    tags: &'a [Tag],
}

impl Selector<'_> {
    fn has(&self, unit: u64) -> bool {
        let at = self.units.partition_point(|(_, end)| *end <= unit);
        self.units.get(at).is_some_and(|(first, _)| *first <= unit)
    }

    fn meets(&self, first: u64, end: u64) -> bool {
        let at = self.units.partition_point(|(_, other_end)| *other_end <= first);
        self.units.get(at).is_some_and(|(other, _)| *other < end)
    }

    fn len(&self) -> u64 {
        self.units.iter().map(|(first, end)| end - first).sum()
    }
}

impl PageFtl {
    /// Accepts a range flush: the versions that it selects become urgent.
    pub(super) fn accept_range_flush(&mut self, cx: &mut Cx, at: u32) {
        let Op::RFlush(flush) = &cx.front.commands.get(at).command.op else { unreachable!("a range flush") };
        let flush = flush.clone();
        let selector = Selector { units: self.units_of(cx, &flush), tags: &flush.tags };
        let mut targets = self.selected(&selector);
        cx.metrics.range_flushes += 1;
        cx.metrics.range_units_asked += targets.len() as u64;
        if cx.config.buffer.range_flush == RangeFlushSupport::Whole {
            cx.metrics.range_units_closure += u64::from(self.buffer.used());
            self.accept_flush(cx, at);
            return;
        }
        cx.accept(at);
        // In a stream that lost a member, later versions never become durable.
        let stuck = targets.iter().map(|slot| self.buffer.slot(*slot)).find(|version| version.stuck);
        if let Some((stream, _)) = stuck.and_then(|version| version.member) {
            cx.front.commands.get_mut(at).error = Some(DeviceError::StreamFailed(stream));
        }
        targets.retain(|slot| !self.buffer.slot(*slot).stuck);
        self.report_lost(cx, at, |unit, owners| selector.has(unit) || owners.match_any(selector.tags));
        if cx.is_protected() {
            // Everything is safe already; the selected versions go first when there is something to write.
            cx.metrics.range_units_closure += targets.len() as u64;
            targets.iter().for_each(|slot| self.buffer.hurry(*slot));
            cx.part_done(at);
            return;
        }
        let changes_upto = self.volatile_change(cx, &selector);
        let units_left = targets.len() as u32;
        let waits = (units_left > 0 || changes_upto > 0) && !cx.has_planted(PlantedBug::EarlyRangeFlush);
        if waits {
            cx.trace().record(|| Traced::Waits { command: at, units: units_left, log: changes_upto > 0 });
            targets.iter().for_each(|slot| self.buffer.wait(*slot, at));
            self.flushes.push(PendingFlush { command: at, upto: 0, units_left, changes_upto });
        }
        let dirty = self.buffer.dirty();
        cx.metrics.range_units_closure += self.hasten_closure(cx, &targets);
        cx.metrics.flush_units_forced += u64::from(dirty - self.buffer.dirty());
        if changes_upto > 0 {
            self.want_log();
            self.work.set(Due::Log);
        }
        if !waits {
            cx.part_done(at);
        }
    }

    /// The pending range flush of a command.
    pub(super) fn range_flush(&mut self, command: u32) -> &mut PendingFlush {
        self.flushes.iter_mut().find(|flush| flush.command == command).expect("a range flush waits")
    }

    /// The units that the ranges touch; a unit is selected if a part of it is.
    fn units_of(&self, cx: &Cx, flush: &RangeFlush) -> Vec<(u64, u64)> {
        let span = |&(lba, blocks): &(_, u32)| Span::new(lba, blocks, &cx.geometry);
        let mut units: Vec<(u64, u64)> = flush
            .ranges
            .iter()
            .filter(|(_, blocks)| *blocks > 0)
            .map(|range| (span(range).first, span(range).end))
            .collect();
        units.sort_unstable();
        units.dedup_by(|next, last| {
            let joins = next.0 <= last.1;
            if joins {
                last.1 = last.1.max(next.1);
            }
            joins
        });
        units
    }

    /// The slots that a selector names, each once, in the order of their acceptance.
    fn selected(&self, selector: &Selector<'_>) -> Vec<u32> {
        let mut slots = Vec::new();
        // Walks the shorter of the two: the pages of the ranges, or the versions in the buffer.
        let ordered = self.orders.is_used();
        if !ordered && selector.len() <= u64::from(self.buffer.used()) {
            for &(first, end) in &selector.units {
                let mut at = Lpn(first);
                while let Some(lpn) = self.map.next_present(at, Lpn(end)) {
                    match self.buffer.place(self.map.get(lpn)) {
                        Place::Slot(slot) => slots.push(slot),
                        Place::Nowhere | Place::Unit(_) | Place::Shared(_) => {}
                    }
                    at = Lpn(lpn.0 + 1);
                }
            }
        } else {
            // In a stream older versions count as well, because they depend on other versions than the newest one.
            let counts = |slot: u32, version: &Slot| {
                version.member.is_some() || self.map.get(version.lpn) == self.buffer.word(slot)
            };
            let wanted = self
                .buffer
                .iter()
                .filter(|(slot, version)| selector.has(version.lpn.0) && counts(*slot, version));
            slots.extend(wanted.map(|(slot, _)| slot));
        }
        for tag in selector.tags {
            // A version that a durable one supersedes counts as durable.
            let counts = |slot: &u32| {
                let version = self.buffer.slot(*slot);
                version.superseded != Superseded::ByWrite || version.member.is_some()
            };
            slots.extend(self.buffer.tagged(*tag).filter(counts));
        }
        slots.sort_unstable_by_key(|slot| (self.buffer.slot(*slot).seq, self.buffer.slot(*slot).lpn));
        slots.dedup();
        slots
    }

    /// Sequence number of the newest volatile deallocation or SHARE that is selected; 0 if there is none. The log makes records
    /// durable in order, and those of one SHARE together.
    fn volatile_change(&mut self, cx: &mut Cx, selector: &Selector<'_>) -> u64 {
        self.forget_durable_changes();
        if cx.has_planted(PlantedBug::RangeForgetsTrims) {
            return 0;
        }
        let selected = |change: &&VolatileChange| {
            change.any(|first, end| selector.meets(first, end)) || change.owners.match_any(selector.tags)
        };
        self.volatile_changes.iter().filter(selected).map(|change| change.change.seq()).max().unwrap_or(0)
    }

    /// Remembers a deallocation or SHARE until its record is durable.
    pub(super) fn note_volatile_change(&mut self, cx: &mut Cx, change: Change, owners: Owners) {
        if cx.config.buffer.range_flush != RangeFlushSupport::None && !cx.is_protected() {
            self.forget_durable_changes();
            self.volatile_changes.push_back(VolatileChange { change, owners });
        }
    }

    /// A deallocation of pages that are already deallocated has no record of its own: it is durable when the earlier deallocations
    /// of the same pages are, so its owners become owners of these as well.
    pub(super) fn own_volatile_changes(&mut self, first: u64, end: u64, owners: &Owners) {
        let meets = |from: u64, to: u64| from.max(first) < to.min(end);
        for change in self.volatile_changes.iter_mut().filter(|change| change.any(meets)) {
            change.owners.unite(owners);
        }
    }

    fn forget_durable_changes(&mut self) {
        let durable = self.log.durable_changes();
        while self.volatile_changes.front().is_some_and(|change| change.change.seq() <= durable) {
            self.volatile_changes.pop_front();
        }
    }

    /// Makes versions urgent, and what they depend on; returns how many versions that are.
    pub(super) fn hasten_closure(&mut self, cx: &mut Cx, targets: &[u32]) -> u64 {
        let mut closure = targets.to_vec();
        for slot in targets {
            closure.extend(self.demand_closure(cx, *slot));
            self.hasten(cx, *slot);
        }
        closure.sort_unstable();
        closure.dedup();
        self.work.set(Due::Release);
        self.work.complete_wordlines_of(&closure);
        self.settle_all();
        closure.len() as u64
    }

    /// Makes sure that a version is written before those for which no command waits.
    pub(super) fn hasten(&mut self, cx: &mut Cx, slot: u32) {
        match self.buffer.slot(slot).state {
            SlotState::Dirty => self.place(cx, slot, true),
            SlotState::Placed => {}
            // It is written when its epoch's turn comes, or has been written.
            SlotState::Held | SlotState::Programmed(_) | SlotState::Free => return,
        }
        let page = self.buffer.slot(slot).page;
        let write = &mut self.space.pages[page as usize];
        write.urgent = true;
        write.first = true;
        match (write.queued, write.plane) {
            (false, _) => self.space.to_release.push(page),
            (true, plane) => self.promote(cx, page, plane),
        }
    }
}
