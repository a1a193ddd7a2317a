//! Translation pages on the medium (DFTL): their reads, their writes, and GC of their blocks.
//!
//! Place in the data flow: [`super::look_up`] asks for pages and for room. The directory entry of a page goes into the map log
//! ([`super::log`]) when the page has been programmed, so a durable record names a complete page.
//!
//! Invariants:
//! 1. The place that a page gives up stays valid until the record of the new one is durable.
//! 2. The pages that a collection has moved are named together, in one group of the log: a power cut leaves the victim or the
//!    copies, and never costs both a block.
//! 3. A block is erased when nothing in it is valid and nothing is being read from it.

use super::ftl::{Cx, PageFtl};
use super::job::{Job, Op as NandOp};
use super::map_cache::{MapCache, MapWrite, Stay};
use super::work::Due;
use crate::flash::{Class, Media, OpKind, Purpose, UnitImage};
use crate::geometry::{Geometry, PageAddr};
use crate::planted::PlantedBug;
use flashweir_core::{Lpn, Payload, Ppa};
use flashweir_ftl::map_page::{Entry, MapPageImage, decode, encode};
use std::collections::BTreeSet;
use std::sync::Arc;

/// Most reads of one victim that are under way at the same time.
const READS_MAX: u32 = 4;

impl PageFtl {
    /// The entry of a unit for its translation page.
    pub(super) fn entry(&self, cx: &Cx, lpn: Lpn) -> Entry {
        let ppa = self.medium(self.map.get(lpn))?;
        Some((ppa, self.seq_at(cx, lpn, ppa)?))
    }

    /// The content of a translation page if it were written now.
    pub(super) fn map_image(&self, cx: &Cx, cache: &MapCache, page: u32, number: u64) -> Option<Arc<[u8]>> {
        cx.flash.media.tracks_contents().then(|| {
            let entries = cache.units_of(page).map(|unit| self.entry(cx, Lpn(unit))).collect();
            Arc::from(encode(&MapPageImage { page, number, entries }))
        })
    }

    fn map_op(cx: &Cx, (kind, class): (OpKind, Class), at: PageAddr, job: Job) -> NandOp {
        let bytes = if kind == OpKind::Erase { 0 } else { cx.geometry.page_bytes() };
        cx.given((kind, class), at, bytes, (Purpose::Metadata, job))
    }

    /// Brings a page into the cache, which has room. Returns true if it is there at once, because it was never written.
    pub(super) fn load(&mut self, cx: &mut Cx, page: u32) -> bool {
        let cache = self.map_cache();
        cache.begin_load(page);
        let Some(place) = cache.page(page).place else {
            self.loaded(page);
            return true;
        };
        let at = cx.geometry.page_of(place).0;
        cache.area.begin_read(at.block);
        cx.metrics.map_pages_read += 1;
        let op = Self::map_op(cx, (OpKind::Read, Class::Read), at, Job::MapRead(page));
        cx.push(op, &mut self.space);
        false
    }

    pub(super) fn map_read_done(&mut self, cx: &mut Cx, op: &NandOp, page: u32) {
        self.map_cache().area.end_read(op.at.block);
        let is_whole =
            !cx.flash.media.tracks_contents() || cx.planted.is_some() || self.check_map_page(cx, op.at, page);
        self.loaded(page);
        if !is_whole {
            // A recovery would miss the page, so it is written again when it leaves.
            let cache = self.map_cache();
            let first = Lpn(cache.units_of(page).start);
            cache.note_change(first);
        }
        self.collect_map(cx);
    }

    /// Checks a page that was read against the array of all words: entries that did not change since must be the same. Returns false if the
    /// store has lost the page; the map in memory is still right.
    fn check_map_page(&self, cx: &mut Cx, at: PageAddr, page: u32) -> bool {
        let Some(image) = map_page_at(&cx.flash.media, &cx.geometry, at) else {
            cx.metrics.uncorrectable_reads += 1;
            return false;
        };
        let Some(cache) = &self.map_cache else { return true };
        assert_eq!(image.page, page, "the directory names the page");
        let changed: BTreeSet<Lpn> = cache.changed(page).collect();
        for (unit, entry) in cache.units_of(page).zip(image.entries) {
            let is_same = changed.contains(&Lpn(unit)) || entry == self.entry(cx, Lpn(unit));
            assert!(is_same, "translation page {page} has an old place of unit {unit}");
        }
        true
    }

    /// Writes a page that changed, so that its place in the cache becomes free.
    pub(super) fn evict(&mut self, cx: &mut Cx, page: u32) {
        let cache = self.map_cache();
        cache.begin_leave(page);
        cache.number += 1;
        let number = cache.number;
        let image = self.map_cache.as_ref().and_then(|cache| self.map_image(cx, cache, page, number));
        let cache = self.map_cache();
        let write = cache.writes.insert(MapWrite { page, number, image, source: None });
        cache.area.waiting.push_back(write);
        self.issue_map_writes(cx);
    }

    /// Gives flash pages to writes that wait for one.
    fn issue_map_writes(&mut self, cx: &mut Cx) {
        while let Some(&write) = self.map_cache().area.waiting.front() {
            let Some(at) = self.map_cache().area.take_page() else { break };
            self.map_cache().area.waiting.pop_front();
            self.program_map_page(cx, write, at);
        }
        self.collect_map(cx);
    }

    fn program_map_page(&mut self, cx: &mut Cx, write: u32, at: PageAddr) {
        if cx.has_planted(PlantedBug::DirectoryBeforePage) {
            let MapWrite { page, number, .. } = *self.map_cache().writes.get(write);
            self.log.add_map_page(page, cx.geometry.ppa(at, 0), number);
            self.want_log();
        }
        let op = Self::map_op(cx, (OpKind::Program, Class::Meta), at, Job::MapWrite(write));
        cx.push(op, &mut self.space);
    }

    /// The unit that a write of a translation page puts on the medium.
    pub(super) fn map_write_image(&self, write: u32) -> UnitImage {
        let cache = self.map_cache.as_ref().expect("the map is cached on demand");
        let write = cache.writes.get(write);
        let image = write.image.clone().unwrap_or_else(|| Arc::from([]));
        UnitImage::meta(write.number, image)
    }

    pub(super) fn map_write_done(&mut self, cx: &mut Cx, op: &NandOp, write: u32) {
        cx.flash.media.program(op.at, 0, std::iter::once(self.map_write_image(write)));
        cx.metrics.meta_units += u64::from(cx.geometry.units_per_page);
        cx.metrics.pages_programmed += 1;
        let cache = self.map_cache();
        cache.area.programmed(op.at);
        let MapWrite { page, number, source, .. } = *cache.writes.get(write);
        cache.writes.remove(write);
        match source {
            None => {
                cx.metrics.map_pages_written += 1;
                cache.end_leave(page);
                self.name_map_page(cx, page, number, op.at);
                self.work.set(Due::LookUp);
            }
            Some(source) => {
                cx.metrics.map_pages_moved += 1;
                let collection = cache.area.collection.as_mut().expect("a copy belongs to a collection");
                collection.moves -= 1;
                collection.copies.push((page, number, source, op.at));
            }
        }
        self.collect_map(cx);
    }

    /// From now on the directory names this place of a page; adds a record of it to the log.
    pub(super) fn name_map_page(&mut self, cx: &mut Cx, page: u32, number: u64, at: PageAddr) {
        let ppa = cx.geometry.ppa(at, 0);
        let cache = self.map_cache();
        cache.area.set_valid(at, page);
        let state = cache.page_mut(page);
        let old = state.place.replace(ppa);
        (state.number, state.is_named) = (number, true);
        self.log.add_map_page(page, ppa, number);
        if let Some(old) = old {
            if cx.has_planted(PlantedBug::OldMapPageErased) {
                self.map_cache().area.set_invalid(cx.geometry.page_of(old).0);
            } else {
                self.log.olds.push(old);
            }
        }
        if self.log.has_work() {
            self.work.set(Due::Log);
        }
    }

    /// The records of newer places are durable, so the old places of translation pages are not needed any more.
    pub(super) fn forget_old_map_pages(&mut self, cx: &mut Cx, olds: Vec<Ppa>) {
        if olds.is_empty() {
            return;
        }
        for old in olds {
            self.map_cache().area.set_invalid(cx.geometry.page_of(old).0);
        }
        self.issue_map_writes(cx);
    }

    /// Continues GC of the blocks of translation pages, or begins it if few blocks are free.
    fn collect_map(&mut self, cx: &mut Cx) {
        let area = &mut self.map_cache().area;
        if area.collection.is_none() {
            if !area.is_short() {
                return;
            }
            let Some(victim) = area.victim() else {
                if !self.log.olds.is_empty() {
                    self.want_log();
                }
                return;
            };
            area.begin_collection(victim);
            cx.metrics.map_victims += 1;
        }
        self.collect_map_step(cx);
    }

    fn collect_map_step(&mut self, cx: &mut Cx) {
        let pages = cx.geometry.pages_per_block;
        loop {
            let cache = self.map_cache();
            let Some(collection) = cache.area.collection.as_mut().filter(|c| !c.erasing) else { return };
            if collection.page == pages || collection.reads == READS_MAX {
                break;
            }
            let at = PageAddr { block: collection.victim, page: collection.page };
            collection.page += 1;
            if cache.names(&cx.geometry, at) {
                let collection = cache.area.collection.as_mut().expect("it goes on");
                collection.reads += 1;
                cache.area.begin_read(at.block);
                let op = Self::map_op(cx, (OpKind::Read, Class::GcRead), at, Job::MapGcRead);
                cx.push(op, &mut self.space);
            }
        }
        let Some(collection) = self.map_cache().area.collection.as_mut() else { return };
        if collection.page < pages || collection.reads > 0 || collection.moves > 0 {
            return;
        }
        let (victim, copies) = (collection.victim, std::mem::take(&mut collection.copies));
        for (page, number, source, at) in copies {
            let is_newest = self.map_cache().page(page).place == Some(source);
            if is_newest || cx.has_planted(PlantedBug::StaleMapPageMoved) {
                self.name_map_page(cx, page, number, at);
            }
        }
        let area = &mut self.map_cache().area;
        if area.valid(victim) > 0 {
            return self.want_log();
        }
        if area.is_unread(victim) {
            area.collection.as_mut().expect("it ends").erasing = true;
            let at = PageAddr { block: victim, page: 0 };
            let op = Self::map_op(cx, (OpKind::Erase, Class::Erase), at, Job::MapErase);
            cx.push(op, &mut self.space);
        }
    }

    pub(super) fn map_gc_read_done(&mut self, cx: &mut Cx, op: &NandOp) {
        let cache = self.map_cache();
        cache.area.end_read(op.at.block);
        cache.area.collection.as_mut().expect("a victim is read").reads -= 1;
        if cache.names(&cx.geometry, op.at)
            && let Some(page) = cache.area.owner(op.at)
        {
            let ppa = cx.geometry.ppa(op.at, 0);
            let mut image = match cx.flash.media.payload(ppa) {
                Some(Payload::Bytes(bytes)) => Some(bytes),
                _ => None,
            };
            let mut number = cache.page(page).number;
            let is_lost = image.is_none() && cx.flash.media.tracks_contents();
            cx.metrics.uncorrectable_reads += u64::from(is_lost);
            if is_lost && cache.stay(page) != Stay::Leaving {
                // The store lost the page, and the map in memory is still right.
                cache.number += 1;
                number = cache.number;
                image = self.map_cache.as_ref().and_then(|cache| self.map_image(cx, cache, page, number));
            }
            let cache = self.map_cache();
            let write = cache.writes.insert(MapWrite { page, number, image, source: Some(ppa) });
            let at = cache.area.take_page_for_copy().expect("GC has a block in reserve");
            cache.area.collection.as_mut().expect("a victim is read").moves += 1;
            let op = Self::map_op(cx, (OpKind::Program, Class::Meta), at, Job::MapWrite(write));
            cx.push(op, &mut self.space);
        }
        self.collect_map_step(cx);
    }

    pub(super) fn map_erase_done(&mut self, cx: &mut Cx, op: &NandOp) {
        cx.flash.media.erase(op.at.block);
        cx.metrics.erases += 1;
        cx.flash.blocks.note_erase(op.at.block);
        self.map_cache().area.erased(op.at.block);
        self.issue_map_writes(cx);
    }
}

/// The translation page in a page of the medium, if that can be read and holds one.
pub(super) fn map_page_at(media: &Media, geometry: &Geometry, at: PageAddr) -> Option<MapPageImage> {
    match media.payload(geometry.ppa(at, 0))? {
        Payload::Bytes(bytes) => decode(&bytes),
        _ => None,
    }
}
