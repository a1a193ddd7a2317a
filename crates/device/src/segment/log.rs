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
use super::table::{Open, Segments};
use crate::config::DeviceConfig;
use crate::cx::Cx;
use crate::flash::{Class, OpKind, Purpose, UnitImage};
use crate::geometry::{Geometry, PageAddr};
use crate::planted::PlantedBug;
use flashweir_core::command::{SegmentId, StreamId};
use flashweir_ftl::BlockId;
use flashweir_ftl::recovery::TrimRecord;
use flashweir_ftl::segment_records::{GroupKind, PageHeader, SegmentRecord, encode, records_per_page};
use std::collections::BTreeSet;
use std::sync::Arc;

/// A deallocation that was accepted.
#[derive(Clone, Debug)]
pub(super) struct Trimmed {
    pub(super) segment: u32,
    /// The generation that it begins.
    pub(super) generation: u32,
    /// Its units, as a capacitor saves them.
    pub(super) units: TrimRecord,
    /// Blocks that are free when it is durable.
    pub(super) blocks: Vec<BlockId>,
    pub(super) member: Option<(StreamId, u32)>,
}

/// One page of the log.
#[derive(Clone, Debug)]
pub(super) enum LogPage {
    /// Records, with the number of their group.
    Records(u64, Arc<[u8]>),
    /// Units at the end of a segment.
    Units(Vec<UnitImage>),
}

/// What is being written.
#[derive(Clone, Debug, PartialEq, Eq)]
enum Writing {
    Nothing,
    /// Pages that are left, and the last change that is durable then.
    Group(u32, u64),
    /// Blocks that are left to be erased.
    Erasing(u32),
    /// Pages that are left, their number in all, and the last change.
    Checkpoint(u32, u32, u64),
    /// The end of a generation of a segment: page and units.
    Tail((u32, u32), u32, u32),
}

/// The log of one device.
#[derive(Clone, Debug)]
pub(super) struct Log {
    regions: [Vec<BlockId>; 2],
    region: usize,
    next_page: u32,
    group: u64,
    boot: u32,
    pages_per_region: u32,
    records_per_page: usize,
    pending: Vec<SegmentRecord>,
    /// Number of changes so far, and how many of them are durable.
    changes: u64,
    pub(super) durable: u64,
    /// Deallocations that are not durable, by the number of their change.
    trims: Vec<(u64, Trimmed)>,
    /// Commands that wait for a change.
    waiters: Vec<(u32, u64)>,
    /// Segments whose last page is to be written in part.
    tails: BTreeSet<u32>,
    wanted: bool,
    writing: Writing,
    pages: Vec<LogPage>,
    /// Whether something may have become durable.
    pub(super) check_marks: bool,
}

impl Log {
    pub(super) fn new(config: &DeviceConfig, geometry: &Geometry) -> Self {
        let regions = [0, 1].map(|region| geometry.segment_log_blocks(region).collect::<Vec<_>>());
        Self {
            pages_per_region: regions[0].len() as u32 * geometry.pages_per_block,
            records_per_page: records_per_page(config.geometry.page_bytes.0),
            regions,
            region: 0,
            next_page: 0,
            group: 1,
            boot: 1,
            pending: Vec::new(),
            changes: 0,
            durable: 0,
            trims: Vec::new(),
            waiters: Vec::new(),
            tails: BTreeSet::new(),
            wanted: false,
            writing: Writing::Nothing,
            pages: Vec::new(),
            check_marks: false,
        }
    }

    /// Goes on after a recovery that wrote its checkpoint as `group` into `region`.
    pub(super) fn resume(&mut self, region: usize, next_page: u32, group: u64, boot: u32) {
        (self.region, self.next_page, self.group, self.boot) = (region, next_page, group, boot);
    }

    /// Asks for what is pending to be written.
    pub(super) fn want(&mut self) {
        self.wanted = true;
    }

    /// Asks for the last page of a segment to be written in part.
    pub(super) fn want_tail(&mut self, segment: u32) {
        self.tails.insert(segment);
    }

    /// The block list of a segment that is written for the first time. It need not be durable before the units are: blocks say themselves
    /// whose they are. Returns the number of the change.
    pub(super) fn add_segment(&mut self, segment: u32, since: (u32, u64), blocks: &[BlockId]) -> u64 {
        self.pending.extend(SegmentRecord::describe(SegmentId(segment), since, false, blocks));
        self.changes += 1;
        self.changes
    }

    pub(super) fn add_sealed(&mut self, segment: u32, seq: u64) {
        self.pending.push(SegmentRecord::Sealed { segment: SegmentId(segment), seq });
        self.changes += 1;
    }

    /// A copied block. Returns the number of the change.
    pub(super) fn add_moved(&mut self, segment: u32, lane: u32, block: BlockId) -> u64 {
        self.pending.push(SegmentRecord::Moved { segment: SegmentId(segment), lane, block });
        self.changes += 1;
        self.wanted = true;
        self.changes
    }

    pub(super) fn add_trim(&mut self, trimmed: Trimmed) {
        let Trimmed { segment, generation, units: TrimRecord { seq, .. }, .. } = trimmed;
        self.pending.push(SegmentRecord::Trim { segment: SegmentId(segment), generation, seq });
        self.changes += 1;
        self.wanted = true;
        self.tails.remove(&segment);
        self.trims.push((self.changes, trimmed));
    }

    /// A planted bug: the blocks of deallocated segments are free before the record is durable.
    pub(super) fn release_early(&mut self) {
        self.check_marks = true;
    }

    /// One part of a command waits until all changes so far that were asked for are durable.
    pub(super) fn wait<J: Copy>(&mut self, cx: &mut Cx<J>, command: u32) {
        let mark = self.trims.last().map_or(0, |(mark, _)| *mark);
        self.wait_for(cx, command, mark);
    }

    /// One part of a command waits until this change is durable.
    pub(super) fn wait_for<J: Copy>(&mut self, cx: &mut Cx<J>, command: u32, mark: u64) {
        if mark > self.durable {
            cx.front.commands.get_mut(command).left += 1;
            self.waiters.push((command, mark));
            self.wanted = true;
        }
    }

    /// Whether a deallocation of the segment is not durable.
    pub(super) fn is_trimming(&self, segment: u32) -> bool {
        self.trims.iter().any(|(_, trimmed)| trimmed.segment == segment)
    }

    /// The number of the change that ended the generation before, if it is not durable.
    pub(super) fn trim_of(&self, segment: u32) -> u64 {
        let of_segment = self.trims.iter().rev().find(|(_, trimmed)| trimmed.segment == segment);
        of_segment.map_or(0, |(mark, _)| *mark)
    }

    /// Blocks that wait for the record of a deallocation.
    pub(super) fn pinned(&self) -> impl Iterator<Item = BlockId> + '_ {
        self.trims.iter().flat_map(|(_, trimmed)| trimmed.blocks.iter().copied())
    }

    /// Deallocations that are not durable; a capacitor saves them.
    pub(super) fn unlogged(&self) -> impl Iterator<Item = TrimRecord> + '_ {
        self.trims.iter().map(|(_, trimmed)| trimmed.units)
    }

    /// The page of a region with this number: blocks take turns, so that pages are written in parallel.
    pub(super) fn page_at(&self, region: usize, nth: u32) -> PageAddr {
        let blocks = &self.regions[region];
        PageAddr { block: blocks[nth as usize % blocks.len()], page: nth / blocks.len() as u32 }
    }

    pub(super) fn region_blocks(&self, region: usize) -> &[BlockId] {
        &self.regions[region]
    }

    /// Splits records into the pages of one group.
    pub(super) fn encode(&self, kind: GroupKind, group: u64, records: &[SegmentRecord]) -> Vec<LogPage> {
        let total = records.len().div_ceil(self.records_per_page) as u32;
        let chunks = records.chunks(self.records_per_page).zip(0..);
        let page = |(records, index)| {
            let header = PageHeader { kind, boot: self.boot, group, index, total };
            LogPage::Records(group, Arc::from(encode(&header, records)))
        };
        chunks.map(page).collect()
    }

    /// Whether nothing is being written, and nothing waits for it; for audits.
    pub(super) fn is_idle(&self) -> bool {
        self.writing == Writing::Nothing && self.waiters.is_empty() && self.tails.is_empty()
    }
}

impl LogPage {
    /// The units of the page.
    pub(super) fn units(&self) -> Vec<UnitImage> {
        match self {
            Self::Records(group, image) => vec![UnitImage::meta(*group, image.clone())],
            Self::Units(units) => units.clone(),
        }
    }
}

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
        let bytes = self.per_page * cx.geometry.unit_bytes as u32;
        for nth in 0..self.log.pages.len() as u32 {
            let at = self.log.page_at(region, first + nth);
            self.out.push(NandOp {
                kind: OpKind::Program,
                class: Class::Meta,
                plane: cx.geometry.plane_of(at.block),
                at,
                frontier: None,
                bytes,
                purpose: Purpose::Metadata,
                job: Job::Log(nth),
            });
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
        let is_over = |moved: &super::moves::Move| moved.logged.is_some_and(|mark| mark <= durable);
        while let Some(plane) = self.moves.iter().find(|(_, moved)| is_over(moved)).map(|(plane, _)| *plane) {
            self.end_move(cx, plane);
        }
        let waits_for_list = |(segment, open): (&u32, &Open)| (open.late > 0).then_some(*segment);
        for segment in self.open.iter().filter_map(waits_for_list).collect::<Vec<_>>() {
            self.mend(cx, segment);
        }
        // The next generation of a segment may begin.
        self.to_pump.extend((0..self.planes.len() as u32).map(flashweir_ftl::PlaneId));
        if is_epoch_over {
            self.unblock(cx);
        }
    }

    fn begin_checkpoint<J: Copy>(&mut self, cx: &mut Cx<J>) {
        let target = self.log.region ^ 1;
        let used: Vec<BlockId> = self.log.regions[target]
            .iter()
            .copied()
            .filter(|block| super::moves::is_used(cx, *block))
            .collect();
        self.log.writing = Writing::Erasing(used.len() as u32);
        if used.is_empty() {
            return self.write_checkpoint(cx);
        }
        for block in used {
            self.out.push(NandOp {
                kind: OpKind::Erase,
                class: Class::Meta,
                plane: cx.geometry.plane_of(block),
                at: PageAddr { block, page: 0 },
                frontier: None,
                bytes: 0,
                purpose: Purpose::Metadata,
                job: Job::LogErase,
            });
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
