//! The map log, which makes deallocations durable and recovery short (`specs/device-metadata.md`).
//!
//! Two regions of blocks take turns. A region begins with a checkpoint of the map (none on a new device), followed by log groups;
//! when the next group does not fit, a checkpoint goes into the other region.
//!
//! Invariants:
//! 1. One group is being written at a time; a group counts only when all its pages are on the medium.
//! 2. The region that holds the newest complete checkpoint is erased only after a newer one is complete.
//! 3. A place that a deallocation gave up stays valid until the record is durable.

use super::frontier::Space;
use super::ftl::{Cx, PageFtl};
use super::job::{Job, Op as NandOp};
use super::map_cache::MapCache;
use super::work::Due;
use crate::flash::trace::{LogWork, Traced};
use crate::flash::{Class, OpKind, Owner, Purpose, Saved, UnitImage};
use crate::geometry::PageAddr;
use crate::planted::PlantedBug;
use flashweir_ftl::map_log::{Writing, change_records};
use flashweir_ftl::map_records::{GroupKind, Record};
use flashweir_ftl::recovery::{Change, ContentId, Mapping};
use flashweir_ftl::{BlockId, PlaneId};
use std::sync::Arc;

impl PageFtl {
    /// A command waits for what is pending in the log.
    pub(super) fn want_log(&mut self) {
        self.log.want();
        self.work.set(Due::Log);
    }

    /// Writes the next log group or checkpoint if one is due.
    pub(super) fn pump_log(&mut self, cx: &mut Cx) {
        if !matches!(self.log.writing, Writing::Nothing) {
            return;
        }
        if self.log.last_change <= self.log.durable_changes() {
            // All records of deallocations are durable, so places that are still pinned are free.
            for pin in std::mem::take(&mut self.log.pins) {
                self.unpin(cx, pin);
            }
        }
        let congested = self.log.is_congested() && self.log.recent[0].0.seq() <= self.horizon(cx);
        if (congested || self.log.wants_checkpoint) && cx.keeps_metadata() {
            self.log.wants_checkpoint = false;
            self.begin_checkpoint(cx);
            return;
        }
        if !self.log.is_due() {
            if self.log.pending.is_empty() && self.log.wanted {
                self.log.wanted = false;
                self.log_advanced(cx);
            }
            return;
        }
        if !cx.keeps_metadata() {
            self.log.pending.clear();
            return;
        }
        let pages = self.log.pending.len().div_ceil(self.log.records_per_page) as u32;
        if pages > self.log.room() {
            self.begin_checkpoint(cx);
            return;
        }
        let records = std::mem::take(&mut self.log.pending);
        self.log.wanted = false;
        let images = self.log.pages(GroupKind::Log, self.log.group, &records);
        self.log.group += 1;
        self.log.writing = Writing::Group {
            pages_left: pages,
            pins: std::mem::take(&mut self.log.pins),
            olds: std::mem::take(&mut self.log.olds),
            changes_upto: self.log.last_change,
            epochs: self.orders.recordings(),
        };
        cx.trace().record(|| Traced::Log { work: LogWork::Group, count: pages });
        self.write_meta(cx, self.log.region, images);
    }

    /// Whether a group or checkpoint could begin, or is asked for although nothing is pending; for audits.
    pub(super) fn could_log(&self, cx: &Cx) -> bool {
        let congested = || self.log.is_congested() && self.log.recent[0].0.seq() <= self.horizon(cx);
        let due = || congested() || self.log.wants_checkpoint || self.log.is_due() || self.log.wanted;
        matches!(self.log.writing, Writing::Nothing) && cx.keeps_metadata() && due()
    }

    fn write_meta(&mut self, cx: &mut Cx, region: usize, images: Vec<Arc<[u8]>>) {
        let first = self.log.next_page;
        self.log.next_page += images.len() as u32;
        self.log.images = images;
        for i in 0..self.log.images.len() as u32 {
            let at = self.log.page_at(region, first + i);
            let op = cx.given(
                (OpKind::Program, Class::Meta),
                at,
                cx.geometry.page_bytes(),
                (Purpose::Metadata, Job::MetaPage(i)),
            );
            cx.push(op, &mut self.space);
        }
    }

    /// Applies the program of page `i` of the group under way to the medium.
    fn program_meta(&mut self, cx: &mut Cx, at: PageAddr, i: u32) {
        let (group, image) = self.log.image(i);
        cx.flash.media.program(at, 0, std::iter::once(UnitImage::meta(group, image)));
        cx.metrics.meta_units += u64::from(cx.geometry.units_per_page);
        cx.metrics.pages_programmed += 1;
        cx.metrics.log_pages += 1;
    }

    pub(super) fn meta_page_done(&mut self, cx: &mut Cx, op: &NandOp, i: u32) {
        self.program_meta(cx, op.at, i);
        let left = match &mut self.log.writing {
            Writing::Group { pages_left, .. } | Writing::Checkpoint { pages_left, .. } => {
                *pages_left -= 1;
                *pages_left
            }
            Writing::Nothing | Writing::Erasing { .. } => unreachable!("a metadata page belongs to a group"),
        };
        if left > 0 {
            return;
        }
        cx.trace().record(|| Traced::LogDone);
        let (pins, olds, changes_upto, epochs) =
            match std::mem::replace(&mut self.log.writing, Writing::Nothing) {
                Writing::Group { pins, olds, changes_upto, epochs, .. } => (pins, olds, changes_upto, epochs),
                Writing::Checkpoint { horizon, pages, pins, olds, changes_upto, epochs, .. } => {
                    cx.metrics.checkpoints += 1;
                    self.log.region ^= 1;
                    self.log.next_page = pages;
                    self.log.forget_covered(horizon);
                    (pins, olds, changes_upto, epochs)
                }
                Writing::Nothing | Writing::Erasing { .. } => {
                    unreachable!("a metadata page belongs to a group")
                }
            };
        for pin in pins {
            self.unpin(cx, pin);
        }
        self.forget_old_map_pages(cx, olds);
        let in_nvram = self.log.note_logged(changes_upto);
        // A capacitor has protected them since they were accepted.
        if !cx.is_protected() {
            in_nvram.iter().for_each(|change| cx.flash.media.note_saved(Saved::of(change)));
        }
        self.records_durable(&epochs);
        self.log_advanced(cx);
        self.work.set(Due::Log);
    }

    /// Lets everything proceed that waited for the log.
    fn log_advanced(&mut self, cx: &mut Cx) {
        let durable = self.log.durable_changes();
        while let Some(at) = self.log.waiters.iter().position(|(_, seq)| *seq <= durable) {
            let (command, _) = self.log.waiters.swap_remove(at);
            cx.part_done(command);
        }
        self.orders_advanced();
        self.work.set(Due::Flushes);
        self.work.set(Due::Admit);
        if self.may_get_stuck(cx) {
            (0..cx.geometry.planes()).for_each(|plane| self.work.check_stuck(PlaneId(plane)));
        }
        for plane in 0..self.collections.len() {
            if std::mem::take(&mut self.collections[plane].waits_for_log) {
                self.work.collect_step(PlaneId(plane as u32));
            }
        }
    }

    fn begin_checkpoint(&mut self, cx: &mut Cx) {
        let target = self.log.region ^ 1;
        let used: Vec<BlockId> =
            self.log.regions[target].iter().copied().filter(|b| cx.flash.media.is_used(*b)).collect();
        self.log.writing = Writing::Erasing { left: used.len() as u32 };
        cx.trace().record(|| Traced::Log { work: LogWork::Erase, count: used.len() as u32 });
        if used.is_empty() {
            self.write_checkpoint(cx);
            return;
        }
        for block in used {
            let op = cx.given(
                (OpKind::Erase, Class::Meta),
                PageAddr { block, page: 0 },
                0,
                (Purpose::Metadata, Job::MetaErase),
            );
            cx.push(op, &mut self.space);
        }
    }

    pub(super) fn meta_erase_done(&mut self, cx: &mut Cx, op: &NandOp) {
        cx.flash.media.erase(op.at.block);
        cx.metrics.erases += 1;
        cx.flash.blocks.note_erase(op.at.block);
        let Writing::Erasing { left } = &mut self.log.writing else {
            unreachable!("an erase begins a checkpoint")
        };
        *left -= 1;
        if *left == 0 {
            self.write_checkpoint(cx);
        }
    }

    fn write_checkpoint(&mut self, cx: &mut Cx) {
        self.note_complete_epochs();
        let horizon = self.horizon(cx);
        let mut open: Vec<BlockId> = Space::open_blocks(&cx.flash.blocks).collect();
        open.extend(self.blocks_with_members(cx, horizon));
        open.extend(self.blocks_with_copies(cx));
        if cx.has_planted(PlantedBug::OpenBlockTrusted) {
            open.clear();
        }
        let records = self.checkpoint_records(cx, horizon, open);
        self.log.note_checkpoint(&records);
        let images = self.log.pages(GroupKind::Checkpoint, self.log.group, &records);
        self.log.group += 1;
        self.log.next_page = 0;
        let pages = images.len() as u32;
        // The pending summaries describe blocks that the checkpoint vouches for; the pending deallocations are part of it.
        self.log.pending.clear();
        (self.log.wanted, self.log.wants_checkpoint) = (false, false);
        self.log.writing = Writing::Checkpoint {
            pages_left: pages,
            horizon,
            pages,
            pins: std::mem::take(&mut self.log.pins),
            olds: std::mem::take(&mut self.log.olds),
            changes_upto: self.log.last_change,
            epochs: self.orders.recordings(),
        };
        if let Some(cache) = &mut self.map_cache {
            cache.all_named();
        }
        cx.trace().record(|| Traced::Log { work: LogWork::Checkpoint, count: pages });
        self.write_meta(cx, self.log.region ^ 1, images);
    }

    /// The horizon: everything accepted up to it is on the medium or superseded.
    fn horizon(&self, cx: &Cx) -> u64 {
        if cx.has_planted(PlantedBug::HorizonAhead) {
            return cx.front.seq;
        }
        let slots = self.buffer.iter().map(|(_, slot)| slot.seq);
        let waiting =
            cx.front.admission.front().map(|at| cx.front.commands.get(*at).seq).filter(|seq| *seq > 0);
        let epochs = self.orders.horizon().filter(|_| !cx.has_planted(PlantedBug::HorizonInEpoch));
        slots.chain(waiting).chain(epochs).min().map_or(cx.front.seq, |seq| seq - 1)
    }

    /// The records of a checkpoint: the durable place of each page, and what the horizon does not cover.
    pub(super) fn checkpoint_records(&self, cx: &Cx, horizon: u64, open: Vec<BlockId>) -> Vec<Record> {
        let maps = self.map_cache.as_ref().map_or(0, |cache| cache.number);
        let mut records = vec![Record::Checkpoint { horizon, openings: self.space.openings, maps }];
        records.extend(open.into_iter().map(Record::Open));
        let forgets = cx.has_planted(PlantedBug::CheckpointForgetsTrims);
        let epochs = self.orders.recordings().into_iter();
        records.extend(epochs.map(|(stream, epoch)| Record::Complete { stream, epoch }));
        let forgets_shares = cx.has_planted(PlantedBug::CheckpointForgetsShares);
        let forgets = |change: &Change| match change {
            Change::Trim(_) => forgets,
            Change::Share(_) => forgets_shares,
        };
        let recent = self.log.recent.iter();
        let uncovered = recent.filter(|(change, _)| change.seq() > horizon && !forgets(change));
        records.extend(uncovered.flat_map(|(change, member)| change_records(change, *member)));
        if let Some(cache) = &self.map_cache {
            self.map_records(cx, cache, &mut records);
            return records;
        }
        for (lpn, word) in self.map.iter() {
            if let Some(ppa) = self.medium(word)
                && let Some(seq) = self.seq_at(cx, lpn, ppa)
            {
                self.add_mapping(cx, Mapping { lpn, ppa, seq }, &mut records);
            }
        }
        records
    }

    /// Adds a mapping, and the content that it stands for where that is not the page's own version.
    fn add_mapping(&self, cx: &Cx, mapping: Mapping, records: &mut Vec<Record>) {
        records.push(Record::Mapping(mapping));
        if let Some((owner, seq)) = cx.flash.media.oob(mapping.ppa)
            && (owner, seq) != (Owner::Lpn(mapping.lpn), mapping.seq)
        {
            records.push(Record::Content(ContentId::new(owner, seq)));
        }
    }

    /// Adds the directory of translation pages, and each entry that changed since its page was written.
    fn map_records(&self, cx: &Cx, cache: &MapCache, records: &mut Vec<Record>) {
        for number in cache.page_numbers() {
            let page = cache.page(number);
            records.extend(page.place.map(|ppa| Record::MapPage { page: number, ppa, number: page.number }));
            if cx.has_planted(PlantedBug::CheckpointForgetsChanges) {
                continue;
            }
            for lpn in cache.changed(number) {
                match self.entry(cx, lpn) {
                    Some((ppa, seq)) => self.add_mapping(cx, Mapping { lpn, ppa, seq }, records),
                    None => records.push(Record::Gone(lpn)),
                }
            }
        }
        if cx.config.ftl.share.pages == 0 {
            return;
        }
        // A translation page has no room for the contents of pages that are shared, or have been.
        for (lpn, word) in self.map.iter() {
            if let Some(ppa) = self.medium(word)
                && let Some(seq) = self.seq_at(cx, lpn, ppa)
                && cx.flash.media.oob(ppa) != Some((Owner::Lpn(lpn), seq))
                && !cache.is_changed(lpn)
            {
                self.add_mapping(cx, Mapping { lpn, ppa, seq }, records);
            }
        }
    }
}
