//! Looking up the places of units when the map is on the medium (DFTL): a command or page that needs a translation page waits here
//! until it is in the cache.
//!
//! Place in the data flow: before [`mod@super::read`], before a deallocation is accepted ([`super::accept`]), and before a page of host
//! data goes to the machine ([`super::destage`]). A waiting need is served by the event that brings its page, as far as the pages
//! in the cache reach: so no page has to stay in the cache for it, and a command passes piece by piece even through a cache of one
//! page. Writes need no translation page to be accepted: until they are on the medium, the buffer knows their places.
//!
//! Invariants: each waiting need has a page under way, or waits behind a need that has one, or waits until late changes have been
//! written to their pages; after a page was read, the needs that wait for it are served before anything can evict it.
//!
//! Deliberately absent: lookups of GC. The valid units of a block are known without the map, and moved units are noted as changed.

use super::buffer::Place;
use super::destage::ends_of;
use super::ftl::{Cx, PageFtl};
use super::job::Job;
use super::map_cache::{MapCache, Need, Stay, UNCOUNTED, What, Who};
use super::work::Due;
use crate::config::Miss;
use crate::effect::{Effect, Event};
use crate::flash::Purpose;
use crate::front::range;
use crate::planted::PlantedBug;
use flashweir_core::{Lpn, Op};
use flashweir_ftl::PlaneId;

/// Progress of a need.
enum Tried {
    Done,
    /// It needs this translation page first.
    Misses(u32),
}

impl PageFtl {
    /// The cache of the map. Panics where the map is resident.
    pub(super) fn map_cache(&mut self) -> &mut MapCache {
        self.map_cache.as_deref_mut().expect("the map is cached on demand")
    }

    /// Notes that the place of a unit on the medium changed.
    #[inline]
    pub(super) fn place_changed(&mut self, lpn: Lpn) {
        if let Some(cache) = &mut self.map_cache
            && cache.note_change(lpn)
        {
            self.work.set(Due::LookUp);
        }
    }

    /// Whether GC of the plane has to wait until late changes have been written to their translation pages.
    #[inline]
    pub(super) fn is_put_off(&mut self, plane: PlaneId) -> bool {
        match &mut self.map_cache {
            Some(cache) if cache.is_crowded() => {
                cache.put_off.insert(plane);
                true
            }
            _ => false,
        }
    }

    /// Whether GC of the plane waits for that.
    pub(super) fn has_put_off(&self, plane: PlaneId) -> bool {
        self.map_cache.as_ref().is_some_and(|cache| cache.put_off.contains(&plane))
    }

    /// Whether GC of the plane had to wait until now; clears the mark.
    #[inline]
    pub(super) fn is_no_longer_put_off(&mut self, plane: PlaneId) -> bool {
        self.map_cache.as_mut().is_some_and(|cache| cache.put_off.remove(&plane))
    }

    /// Whether so many changes wait for their translation pages that GC must not add more.
    #[inline]
    pub(super) fn is_map_crowded(&self) -> bool {
        self.map_cache.as_ref().is_some_and(|cache| cache.is_crowded())
    }

    /// Queues a need for translation pages.
    pub(super) fn want_map(&mut self, who: Who) {
        let need = Need { who, part: 0, counted: UNCOUNTED };
        let cache = self.map_cache();
        match who {
            Who::Command(..) => cache.commands.push_back(need),
            Who::Page(_) => cache.data_pages.push_back(need),
        }
        self.work.set(Due::LookUp);
    }

    /// Whether the command that is accepted next may look up the place of a unit. If not, it waits for the translation page.
    pub(super) fn may_look_at(&mut self, cx: &mut Cx, at: u32, lpn: Lpn) -> bool {
        let Some(cache) = &mut self.map_cache else { return true };
        let page = cache.page_of(lpn);
        if !cache.may_hold(page) {
            return true;
        }
        let is_new = std::mem::replace(&mut cache.admit_counted, page) != page;
        let is_cached = cache.is_cached(page);
        if is_new {
            count(cx, is_cached);
        }
        if !is_cached && !std::mem::replace(&mut cache.admit_waits, true) {
            let who = Who::Command(at, What::Admit);
            cache.commands.push_back(Need { who, part: u64::from(page), counted: page });
            self.work.set(Due::LookUp);
        }
        is_cached
    }

    /// The end of the piece that a deallocation may take from `first` on: the end of the first translation page that may map
    /// something. `None` if that page has to be read first.
    pub(super) fn trim_piece(&mut self, cx: &mut Cx, at: u32, first: u64, end: u64) -> Option<u64> {
        let Some(cache) = &self.map_cache else { return Some(end) };
        let mut unit = first;
        while unit < end {
            let page = cache.page_of(Lpn(unit));
            let page_end = cache.units_of(page).end.min(end);
            if cache.may_hold(page) {
                return self.may_look_at(cx, at, Lpn(unit)).then_some(page_end);
            }
            unit = page_end;
        }
        Some(end)
    }

    /// Serves the needs that wait for translation pages, and fetches the pages that they miss.
    pub(super) fn look_up(&mut self, cx: &mut Cx) {
        let missing = match cx.config.ftl.demand.miss {
            Miss::HoldsAll => self.look_up_in_turn(cx),
            Miss::HoldsOwn => self.look_up_all(cx),
        };
        self.fetch(cx, &missing);
    }

    /// Serves needs in turn until one misses a page; that one holds up all others.
    fn look_up_in_turn(&mut self, cx: &mut Cx) -> Vec<u32> {
        while let Some(mut need) = self.next_need() {
            if let Tried::Misses(page) = self.try_need(cx, &mut need) {
                self.map_cache().held = Some(need);
                return vec![page];
            }
        }
        Vec::new()
    }

    /// The need whose turn it is: the one that holds up the others, else commands and pages of host data alternately.
    fn next_need(&mut self) -> Option<Need> {
        let cache = self.map_cache();
        if let Some(held) = cache.held.take() {
            return Some(held);
        }
        let may_page = !cache.data_pages.is_empty() && !cache.is_crowded();
        let is_page = may_page && (cache.is_pages_turn || cache.commands.is_empty());
        cache.is_pages_turn = !is_page;
        if is_page { cache.data_pages.pop_front() } else { cache.commands.pop_front() }
    }

    /// Serves all needs, as far as the pages in the cache reach.
    fn look_up_all(&mut self, cx: &mut Cx) -> Vec<u32> {
        let mut missing = Vec::new();
        let commands = std::mem::take(&mut self.map_cache().commands);
        let mut left = commands;
        left.retain_mut(|need| self.goes_on_waiting(cx, need, &mut missing));
        // Needs that came meanwhile go behind.
        let cache = self.map_cache();
        left.append(&mut cache.commands);
        cache.commands = left;
        if !cache.is_crowded() {
            let mut pages = std::mem::take(&mut cache.data_pages);
            pages.retain_mut(|need| self.goes_on_waiting(cx, need, &mut missing));
            let cache = self.map_cache();
            pages.append(&mut cache.data_pages);
            cache.data_pages = pages;
        }
        missing
    }

    fn goes_on_waiting(&mut self, cx: &mut Cx, need: &mut Need, missing: &mut Vec<u32>) -> bool {
        let Tried::Misses(page) = self.try_need(cx, need) else { return false };
        if !missing.contains(&page) {
            missing.push(page);
        }
        true
    }

    fn try_need(&mut self, cx: &mut Cx, need: &mut Need) -> Tried {
        match need.who {
            Who::Command(at, What::Arrive) => {
                self.arrived(cx, at);
                Tried::Done
            }
            Who::Command(at, What::Read) => self.try_read(cx, need, at),
            Who::Command(at, What::Modify) => self.try_modify(cx, need, at),
            Who::Command(_, What::Admit) => {
                let page = need.part as u32;
                let cache = self.map_cache();
                if cache.may_hold(page) && !cache.is_cached(page) {
                    return Tried::Misses(page);
                }
                cache.admit_waits = false;
                self.admit(cx);
                Tried::Done
            }
            Who::Page(page) => self.try_page(cx, need, page),
        }
    }

    /// A command that changes state, and whose turn it was, arrives.
    pub(super) fn arrived(&mut self, cx: &mut Cx, at: u32) {
        match cx.front.commands.get(at).command.op {
            Op::Write { .. } => {}
            // Its ends may need their old content; it brings no data.
            Op::WriteZeroes { .. } => return self.start_write(cx, at),
            _ => return self.ready(cx, at),
        }
        let bytes = cx.front.commands.get(at).command.bytes_down();
        match cx.memory_access(at, bytes) {
            Some(done) => cx.effects.push(Effect::At(done, Event::BufferMemory { command: at })),
            None => self.start_write(cx, at),
        }
    }

    /// Whether the place of a unit is known; otherwise returns the translation page that has it. Counts each page once for each
    /// need.
    fn known(&mut self, cx: &mut Cx, need: &mut Need, lpn: Lpn) -> Tried {
        if matches!(self.buffer.place(self.map.get(lpn)), Place::Slot(_)) {
            return Tried::Done;
        }
        let cache = self.map_cache();
        let page = cache.page_of(lpn);
        if !cache.may_hold(page) {
            return Tried::Done;
        }
        let is_cached = cache.is_cached(page);
        if std::mem::replace(&mut need.counted, page) != page {
            count(cx, is_cached);
        }
        if is_cached { Tried::Done } else { Tried::Misses(page) }
    }

    fn try_read(&mut self, cx: &mut Cx, need: &mut Need, at: u32) -> Tried {
        let (lba, blocks) = range(&cx.front.commands.get(at).command.op).expect("a read has a range");
        let span = cx.span(lba, blocks);
        let first = span.first + need.part;
        let mut end = first;
        let tried = loop {
            if end == span.end {
                break Tried::Done;
            }
            match self.known(cx, need, Lpn(end)) {
                Tried::Done => end += 1,
                missing => break missing,
            }
        };
        if end > first {
            need.part = end - span.first;
            self.take_contents(cx, at, first, end);
            let parts = self.read_units(cx, at, first, end);
            cx.front.commands.get_mut(at).left += parts;
        }
        if matches!(tried, Tried::Done) {
            cx.part_done(at);
        }
        tried
    }

    fn try_modify(&mut self, cx: &mut Cx, need: &mut Need, at: u32) -> Tried {
        let (lba, blocks) = range(&cx.front.commands.get(at).command.op).expect("a write has a range");
        let span = cx.span(lba, blocks);
        for unit in ends_of(&span).skip(need.part as usize) {
            if let Tried::Misses(page) = self.known(cx, need, Lpn(unit)) {
                return Tried::Misses(page);
            }
            need.part += 1;
            if let Place::Unit(ppa) = self.newest_place(Lpn(unit)) {
                cx.metrics.modify_pages_read += 1;
                cx.front.commands.get_mut(at).left += 1;
                self.push_read(cx, ppa, 1, (Purpose::Merge { command: at }, Job::Modify { command: at }));
            }
        }
        self.modify_done(cx, at);
        Tried::Done
    }

    /// Gives a page of host data to the machine once the places that it replaces have been looked up.
    fn try_page(&mut self, cx: &mut Cx, need: &mut Need, page: u32) -> Tried {
        while let Some(unit) = self.space.pages[page as usize].units.get(need.part as usize) {
            let lpn = unit.lpn;
            let cache = self.map_cache();
            let map_page = cache.page_of(lpn);
            let is_cached = cache.is_cached(map_page);
            if std::mem::replace(&mut need.counted, map_page) != map_page {
                count(cx, is_cached);
            }
            if !is_cached {
                return Tried::Misses(map_page);
            }
            need.part += 1;
        }
        // The place of a unit that joined it now would not be looked up.
        self.space.close_page(page);
        self.hand_over(cx, page);
        Tried::Done
    }

    /// Brings translation pages into the cache, first those that a need misses.
    fn fetch(&mut self, cx: &mut Cx, missing: &[u32]) {
        let mut without = 0;
        for &page in missing {
            if self.map_cache().stay(page) != Stay::Absent {
                continue;
            }
            if !self.make_room(cx, without) {
                without += 1;
            } else if self.load(cx, page) {
                // The needs that wait for it are served before another page is fetched.
                return;
            }
        }
        let merges_max = cx.geometry.planes().min(self.map_cache().capacity() / 2).max(1) as usize;
        while self.map_cache().is_crowded() && self.map_cache().merging.len() < merges_max {
            let Some(page) = self.map_cache().next_late() else { return };
            if !self.make_room(cx, without) {
                return;
            }
            self.map_cache().merging.insert(page);
            cx.metrics.map_merges += 1;
            self.load(cx, page);
        }
    }

    /// Whether there is room in the cache. If not, evicts a page, unless more pages are leaving than the `others` that wait for
    /// room.
    fn make_room(&mut self, cx: &mut Cx, others: u32) -> bool {
        loop {
            let cache = self.map_cache();
            if cache.has_room() {
                return true;
            }
            if cache.leaving() > others {
                return false;
            }
            let Some(oldest) = cache.oldest() else { return false };
            if cx.has_planted(PlantedBug::EvictionForgets) {
                cache.forget_changes(oldest);
            }
            if cache.is_clean(oldest) {
                cache.drop_page(oldest);
            } else {
                self.evict(cx, oldest);
                return false;
            }
        }
    }

    /// A translation page has come into the cache.
    pub(super) fn loaded(&mut self, page: u32) {
        self.map_cache().end_load(page);
        if self.map_cache().is_relieved() {
            let put_off: Vec<PlaneId> = self.map_cache().put_off.iter().copied().collect();
            put_off.into_iter().for_each(|plane| self.work.collect(plane));
        }
        self.work.set(Due::LookUp);
    }
}

fn count(cx: &mut Cx, is_hit: bool) {
    *(if is_hit { &mut cx.metrics.map_hits } else { &mut cx.metrics.map_misses }) += 1;
}
