//! The log of segments: block lists and deallocations become durable (append-segments §3.6, device-metadata §12).
//!
//! Two regions of blocks take turns. A region begins with a checkpoint of all block lists (none on a new device), followed by groups of
//! records; when the next one does not fit, a checkpoint goes into the other region. Between the groups lie pages of units: the last page
//! of a segment, as far as it was written when a flush asked for it. They count until the page itself is on the flash. A checkpoint has
//! those behind it that count, and is not complete without them.
//!
//! Invariants: one group is written at a time, and counts only as a whole; the region with the newest complete checkpoint is erased only
//! when a newer one is complete.

use super::job::{Job, Op as NandOp};
use super::log_queue::{LogPage, Writing};
use super::moving::Move;
use super::table::{Open, Segments};
use crate::config::AppendMode;
use crate::cx::Cx;
use crate::flash::{Class, OpKind, Purpose, UnitImage};
use crate::geometry::PageAddr;
use crate::planted::PlantedBug;
use flashweir_core::command::SegmentId;
use flashweir_ftl::segment_records::{GroupKind, SegmentRecord};
use flashweir_ftl::{BlockId, PlaneId};

impl Segments {
    /// Writes the next group, page of units or checkpoint if one is due.
    pub(super) fn pump_log<J: Copy>(&mut self, cx: &mut Cx<J>) {
        if self.log.writing != Writing::Nothing {
            return;
        }
        let is_due = self.log.wanted || self.log.pending.len() >= self.log.records_per_page;
        if is_due && !self.log.pending.is_empty() {
            let pages = self.log.pending.len().div_ceil(self.log.records_per_page) as u32;
            if self.log.next_page + pages > self.log.pages_per_region {
                return self.begin_checkpoint(cx);
            }
            let records = std::mem::take(&mut self.log.pending);
            self.log.wanted = false;
            let images = self.log.encode(GroupKind::Log, self.log.group, &records);
            self.log.group += 1;
            self.log.writing = Writing::Group(pages, self.log.changes);
            return self.write_log(cx, self.log.region, images);
        }
        self.log.wanted = false;
        for segment in self.log.tails.clone() {
            if self.has_logged_page(segment) {
                continue;
            }
            self.log.tails.remove(&segment);
            let Some((page, units)) = self.tail(segment) else { continue };
            if self.log.next_page == self.log.pages_per_region {
                self.log.tails.insert(segment);
                return self.begin_checkpoint(cx);
            }
            let generation = self.states[segment as usize].generation;
            self.log.writing = Writing::Tail((segment, generation), page, units.len() as u32);
            return self.write_log(cx, self.log.region, vec![LogPage::Units(units)]);
        }
    }

    /// Whether the log has units of a page in front of the last one that is not on the flash yet. A segment has one such page at most, so
    /// that a checkpoint has room for all.
    fn has_logged_page(&self, segment: u32) -> bool {
        let last = self.states[segment as usize].pointer / self.per_page;
        self.open
            .get(&segment)
            .is_some_and(|open| (open.first..last).contains(&open.tail.0) && open.tail.1 > 0)
    }

    /// The units of the last page of a segment, if it is not complete.
    fn tail(&self, segment: u32) -> Option<(u32, Vec<UnitImage>)> {
        let open = self.open.get(&segment)?;
        let pointer = self.states[segment as usize].pointer;
        let (page, count) = (pointer / self.per_page, pointer % self.per_page);
        if count == 0 || open.tail == (page, count) {
            return None;
        }
        Some((page, self.images(segment, page, count)))
    }

    /// The first units of a page that is in the buffer.
    fn images(&self, segment: u32, page: u32, count: u32) -> Vec<UnitImage> {
        let units = page * self.per_page..page * self.per_page + count;
        let held = units.filter_map(|unit| Some((unit, self.slot(segment, unit)?.held()?)));
        held.map(|(unit, held)| self.unit_image(segment, unit, held.seq, held.payload.clone())).collect()
    }

    fn write_log<J: Copy>(&mut self, cx: &mut Cx<J>, region: usize, pages: Vec<LogPage>) {
        let first = self.log.next_page;
        self.log.next_page += pages.len() as u32;
        self.log.pages = pages;
        for nth in 0..self.log.pages.len() as u32 {
            let at = self.log.page_at(region, first + nth);
            let (bytes, job) = (cx.geometry.page_bytes(), Job::Log(nth));
            self.out.push(cx.given((OpKind::Program, Class::Meta), at, bytes, (Purpose::Metadata, job)));
        }
    }

    /// The units of a page of the log that is being programmed.
    pub(super) fn log_image(&self, nth: u32, images: &mut Vec<UnitImage>) {
        images.extend(self.log.pages[nth as usize].units());
    }

    pub(super) fn log_page_done<J: Copy>(&mut self, cx: &mut Cx<J>, op: &NandOp, nth: u32) {
        cx.flash.media.program(op.at, 0, self.log.pages[nth as usize].units().into_iter());
        cx.metrics.meta_units += u64::from(self.per_page);
        cx.metrics.pages_programmed += 1;
        cx.metrics.log_pages += 1;
        match &mut self.log.writing {
            Writing::Group(left, _) | Writing::Checkpoint(left, _, _) => {
                *left -= 1;
                if *left > 0 {
                    return;
                }
            }
            Writing::Tail(..) => cx.metrics.segment_tails += 1,
            Writing::Nothing | Writing::Erasing(_) => unreachable!("a page of the log belongs to something"),
        }
        match std::mem::replace(&mut self.log.writing, Writing::Nothing) {
            Writing::Group(_, upto) => self.log.durable = upto,
            Writing::Checkpoint(_, pages, upto) => {
                cx.metrics.checkpoints += 1;
                self.log.region ^= 1;
                (self.log.next_page, self.log.durable) = (pages, upto);
            }
            Writing::Tail(segment, page, units) => self.tail_done(cx, segment, (page, units)),
            Writing::Nothing | Writing::Erasing(_) => unreachable!("a page of the log belongs to something"),
        }
        self.log.check_marks = true;
    }

    /// The end of a segment is durable, unless its page is on the flash by now.
    fn tail_done<J: Copy>(
        &mut self,
        cx: &mut Cx<J>,
        (segment, generation): (u32, u32),
        (page, units): (u32, u32),
    ) {
        let is_same = self.states[segment as usize].generation == generation;
        if let Some(open) = self.open.get_mut(&segment).filter(|open| is_same && page >= open.first) {
            open.tail = (page, units);
            self.advance(cx, segment);
        }
    }

    /// Lets everything proceed that waited for changes of the log, as far as they are durable.
    pub(super) fn log_advanced<J: Copy>(&mut self, cx: &mut Cx<J>) {
        if !std::mem::take(&mut self.log.check_marks) {
            return;
        }
        let durable = self.log.durable;
        let early = cx.has_planted(PlantedBug::OldBlocksErasedEarly);
        let mut is_epoch_over = false;
        let mut nth = 0;
        while nth < self.log.trims.len() {
            let (mark, trimmed) = &mut self.log.trims[nth];
            let is_durable = *mark <= durable;
            let blocks = if is_durable || early { std::mem::take(&mut trimmed.blocks) } else { Vec::new() };
            let member = trimmed.member;
            if is_durable {
                self.log.trims.remove(nth);
                is_epoch_over |= member.is_some_and(|member| self.streams.settle(member));
            } else {
                nth += 1;
            }
            blocks.into_iter().for_each(|block| self.free_block(cx, block));
        }
        while let Some(nth) = self.log.waiters.iter().position(|(_, mark)| *mark <= durable) {
            let (command, _) = self.log.waiters.swap_remove(nth);
            self.part_done(cx, command);
        }
        let is_over = |moved: &Move| moved.logged.is_some_and(|mark| mark <= durable);
        while let Some(plane) = self.moves.iter().find(|(_, moved)| is_over(moved)).map(|(plane, _)| *plane) {
            self.end_move(cx, plane);
        }
        if self.mode == AppendMode::WriteOnce {
            let waits_for_list = |(segment, open): (&u32, &Open)| (open.late > 0).then_some(*segment);
            for segment in self.open.iter().filter_map(waits_for_list).collect::<Vec<_>>() {
                self.mend(cx, segment);
            }
        }
        // The next generation of a segment may begin.
        self.to_pump.extend((0..self.planes.len() as u32).map(PlaneId));
        if is_epoch_over {
            self.unblock(cx);
        }
    }

    fn begin_checkpoint<J: Copy>(&mut self, cx: &mut Cx<J>) {
        let target = self.log.region ^ 1;
        let used: Vec<BlockId> =
            self.log.regions[target].iter().copied().filter(|block| cx.flash.media.is_used(*block)).collect();
        self.log.writing = Writing::Erasing(used.len() as u32);
        if used.is_empty() {
            return self.write_checkpoint(cx);
        }
        for block in used {
            let at = PageAddr { block, page: 0 };
            self.out.push(cx.given((OpKind::Erase, Class::Meta), at, 0, (Purpose::Metadata, Job::LogErase)));
        }
    }

    pub(super) fn log_erase_done<J: Copy>(&mut self, cx: &mut Cx<J>, op: &NandOp) {
        cx.flash.media.erase(op.at.block);
        cx.metrics.erases += 1;
        cx.flash.blocks.note_erase(op.at.block);
        let Writing::Erasing(left) = &mut self.log.writing else {
            unreachable!("an erase begins a checkpoint")
        };
        *left -= 1;
        if *left == 0 {
            self.write_checkpoint(cx);
        }
    }

    fn write_checkpoint<J: Copy>(&mut self, cx: &mut Cx<J>) {
        let pages = self.checkpoint(cx, self.log.group);
        self.log.group += 1;
        self.log.pending.clear();
        self.log.wanted = false;
        let count = pages.len() as u32;
        self.log.next_page = 0;
        self.log.writing = Writing::Checkpoint(count, count, self.log.changes);
        self.write_log(cx, self.log.region ^ 1, pages);
    }

    /// The pages of a checkpoint: the block lists of all segments, and the ends of segments that are in the log.
    pub(super) fn checkpoint<J: Copy>(&self, cx: &Cx<J>, group: u64) -> Vec<LogPage> {
        let forgets = cx.has_planted(PlantedBug::CheckpointForgetsTails);
        let ends =
            self.open.iter().filter(|(_, open)| !forgets && open.tail.1 > 0 && open.tail.0 >= open.first);
        let units = ends.map(|(segment, open)| self.images(*segment, open.tail.0, open.tail.1));
        let tails: Vec<LogPage> = units.filter(|units| !units.is_empty()).map(LogPage::Units).collect();
        let mut records = vec![SegmentRecord::Checkpoint { seq: cx.front.seq, tails: tails.len() as u32 }];
        for (segment, state) in (0..).zip(&self.states) {
            let blocks = self.blocks_of(segment);
            if blocks.is_empty() && state.generation == 0 {
                continue;
            }
            let since = match cx.has_planted(PlantedBug::CheckpointForgetsGenerations) {
                true => (0, 0),
                false => (state.generation, state.trimmed_at),
            };
            let is_sealed = !blocks.is_empty() && !self.open.contains_key(&segment);
            records.extend(SegmentRecord::describe(SegmentId(segment), since, is_sealed, blocks));
        }
        let mut pages = self.log.encode(GroupKind::Checkpoint, group, &records);
        pages.extend(tails);
        pages
    }
}
