//! A map that is cached on demand (DFTL), as data: which translation pages are in the cache, which entries changed since their page
//! was written, where each page is, and which needs wait for one.
//!
//! Place in the data flow: [`super::look_up`] serves the needs; [`super::map_pages`] reads, writes and collects the pages.
//!
//! The words of the whole map are in one array of the simulator ([`flashweir_ftl::Map`]), also those of versions in the buffer,
//! which a device would keep beside its cache. This module decides which of the other words the device could know at an instant: no
//! word of the medium is used before [`super::look_up`] has found its page here. A page that is read is checked against the array.
//!
//! Invariants:
//! 1. At most `capacity` pages are being read, cached or being written; the cache's order is that of loads and changes
//!    (append-segments §7.2), not of lookups that hit.
//! 2. An entry differs from the page on the medium only if it is noted as changed. Changes to a page that is not cached are *late*;
//!    when there are too many, their pages are read until half of the changes are left.

use super::map_area::MapArea;
use crate::config::DeviceConfig;
use crate::geometry::{Geometry, PageAddr};
use crate::slab::Slab;
use flashweir_core::{Lpn, Ppa};
use flashweir_ftl::PlaneId;
use std::collections::{BTreeSet, VecDeque};
use std::sync::Arc;

const NONE: u32 = u32::MAX;

/// State of a translation page in the cache.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Stay {
    Absent,
    Loading,
    Cached,
    /// It is being written; its place in the cache is free when that has ended.
    Leaving,
}

/// A translation page.
#[derive(Clone, Debug)]
pub(super) struct MapPage {
    /// Place of its newest state on the medium.
    pub(super) place: Option<Ppa>,
    /// Number of that state.
    pub(super) number: u64,
    /// Whether a checkpoint or a record in the log may name that place.
    pub(super) is_named: bool,
    /// Whether it is in the list of pages with late changes.
    is_late: bool,
    stay: Stay,
    previous: u32,
    next: u32,
    /// A bit for each entry that changed since the page, or the write under way, was made.
    changed: Option<Box<[u64]>>,
    changes: u32,
    /// A bit for each change that the write under way brings to the medium.
    leaving: Option<Box<[u64]>>,
}

impl MapPage {
    /// Whether what is on the medium of the page's entry `at` may be outdated.
    fn is_changed(&self, at: u64) -> bool {
        let bit = |bits: &Option<Box<[u64]>>| {
            bits.as_ref().is_some_and(|bits| bits[(at / 64) as usize] >> (at % 64) & 1 == 1)
        };
        bit(&self.changed) || bit(&self.leaving)
    }
}

/// Why a command waits for a translation page.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum What {
    /// It only waits for its turn.
    Arrive,
    Read,
    /// It needs old content of units that a write covers in part.
    Modify,
    /// It is the command that is accepted next, and needs this page.
    Admit,
}

/// A command or a page that waits for a translation page.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Who {
    Command(u32, What),
    /// A page of host data on its way to the machine.
    Page(u32),
}

/// A need for translation pages, one after the other.
#[derive(Clone, Copy, Debug)]
pub(super) struct Need {
    pub(super) who: Who,
    /// How much of it is done, in units; for an [`What::Admit`], the translation page.
    pub(super) part: u64,
    /// The translation page that was last counted as a hit or a miss.
    pub(super) counted: u32,
}

/// A translation page on its way to the medium.
#[derive(Clone, Debug)]
pub(super) struct MapWrite {
    pub(super) page: u32,
    pub(super) number: u64,
    /// Its content, where contents are kept.
    pub(super) image: Option<Arc<[u8]>>,
    /// The source, if it is a copy made by GC.
    pub(super) source: Option<Ppa>,
}

/// The cache of the map; see the module.
#[derive(Clone, Debug)]
pub(super) struct MapCache {
    entries: u64,
    units: u64,
    capacity: u32,
    pages: Vec<MapPage>,
    /// Number of pages that are being read, cached or being written.
    used: u32,
    /// The cached page that was loaded or changed least recently; the next field is the most recent one.
    head: u32,
    tail: u32,
    loading: u32,
    leaving: u32,
    late: u64,
    late_max: u64,
    late_pages: VecDeque<u32>,
    /// Pages that are being read because of late changes.
    pub(super) merging: BTreeSet<u32>,
    is_crowded: bool,
    /// Planes whose GC waits until fewer changes are late.
    pub(super) put_off: BTreeSet<PlaneId>,
    /// Number of the newest state of any page.
    pub(super) number: u64,
    pub(super) writes: Slab<MapWrite>,
    pub(super) area: MapArea,
    pub(super) commands: VecDeque<Need>,
    pub(super) data_pages: VecDeque<Need>,
    /// The need that holds up all others.
    pub(super) held: Option<Need>,
    pub(super) is_pages_turn: bool,
    /// Whether the command that is accepted next waits here.
    pub(super) admit_waits: bool,
    /// The translation page that was counted last for it.
    pub(super) admit_counted: u32,
    /// The unit from which on its deallocation has not been accepted.
    pub(super) trim_next: Option<u64>,
}

/// No page has been counted yet.
pub(super) const UNCOUNTED: u32 = NONE;

fn count(bits: Option<&[u64]>) -> u32 {
    bits.map_or(0, |bits| bits.iter().map(|word| word.count_ones()).sum())
}

impl MapCache {
    /// Returns an empty cache of an empty map.
    pub(super) fn new(config: &DeviceConfig, geometry: &Geometry) -> Self {
        let absent = MapPage {
            place: None,
            number: 0,
            is_named: false,
            is_late: false,
            stay: Stay::Absent,
            previous: NONE,
            next: NONE,
            changed: None,
            changes: 0,
            leaving: None,
        };
        let pages = geometry.map_pages as usize;
        let entries = u64::from(geometry.map_entries);
        let capacity = ((pages as f64 * config.ftl.demand.cached) as u32).max(1);
        Self {
            entries,
            units: geometry.user_units,
            capacity,
            pages: vec![absent; pages],
            used: 0,
            head: NONE,
            tail: NONE,
            loading: 0,
            leaving: 0,
            late: 0,
            late_max: (u64::from(capacity) * entries / 4).max(4),
            late_pages: VecDeque::new(),
            merging: BTreeSet::new(),
            is_crowded: false,
            put_off: BTreeSet::new(),
            number: 0,
            writes: Slab::default(),
            area: MapArea::new(geometry),
            commands: VecDeque::new(),
            data_pages: VecDeque::new(),
            held: None,
            is_pages_turn: false,
            admit_waits: false,
            admit_counted: UNCOUNTED,
            trim_next: None,
        }
    }

    /// The translation page of a unit.
    #[inline]
    pub(super) fn page_of(&self, lpn: Lpn) -> u32 {
        (lpn.0 / self.entries) as u32
    }

    /// The units that a translation page maps.
    pub(super) fn units_of(&self, page: u32) -> std::ops::Range<u64> {
        let first = u64::from(page) * self.entries;
        first..(first + self.entries).min(self.units)
    }

    /// Numbers of all translation pages.
    pub(super) fn page_numbers(&self) -> std::ops::Range<u32> {
        0..self.pages.len() as u32
    }

    pub(super) fn page(&self, page: u32) -> &MapPage {
        &self.pages[page as usize]
    }

    pub(super) fn page_mut(&mut self, page: u32) -> &mut MapPage {
        &mut self.pages[page as usize]
    }

    #[inline]
    pub(super) fn stay(&self, page: u32) -> Stay {
        self.pages[page as usize].stay
    }

    pub(super) fn is_cached(&self, page: u32) -> bool {
        self.stay(page) == Stay::Cached
    }

    /// Whether a unit of the page may be mapped; the directory answers that without a lookup.
    pub(super) fn may_hold(&self, page: u32) -> bool {
        let state = &self.pages[page as usize];
        state.place.is_some() || state.changes > 0 || state.leaving.is_some()
    }

    /// Whether the page in the cache is the same as on the medium.
    pub(super) fn is_clean(&self, page: u32) -> bool {
        self.pages[page as usize].changes == 0
    }

    pub(super) fn capacity(&self) -> u32 {
        self.capacity
    }

    pub(super) fn has_room(&self) -> bool {
        self.used < self.capacity
    }

    /// Number of pages that are being written to make room.
    pub(super) fn leaving(&self) -> u32 {
        self.leaving
    }

    /// Whether so many changes are late that their pages have to be read first.
    #[inline]
    pub(super) fn is_crowded(&self) -> bool {
        self.is_crowded
    }

    /// Whether a need waits for a translation page although nothing is under way that could serve it; for audits.
    pub(super) fn is_stuck(&self) -> bool {
        let waits = !self.commands.is_empty()
            || !self.data_pages.is_empty()
            || self.held.is_some()
            || self.is_crowded;
        waits && self.loading == 0 && self.leaving == 0
    }

    /// Notes that the place of a unit changed. Returns true if that made too many changes late.
    pub(super) fn note_change(&mut self, lpn: Lpn) -> bool {
        let number = self.page_of(lpn);
        let bit = lpn.0 - u64::from(number) * self.entries;
        let words = self.entries.div_ceil(64) as usize;
        let page = &mut self.pages[number as usize];
        let bits = page.changed.get_or_insert_with(|| vec![0; words].into_boxed_slice());
        let (word, mask) = (&mut bits[(bit / 64) as usize], 1 << (bit % 64));
        let is_new = *word & mask == 0;
        *word |= mask;
        page.changes += u32::from(is_new);
        if page.stay == Stay::Cached {
            self.unlink(number);
            self.link(number);
            return false;
        }
        if is_new {
            self.late += 1;
            if page.changes == 1 && page.stay == Stay::Absent && !std::mem::replace(&mut page.is_late, true) {
                self.late_pages.push_back(number);
            }
        }
        if self.late > self.late_max && !self.is_crowded {
            self.is_crowded = true;
            return true;
        }
        false
    }

    /// Whether half of the late changes are gone, so that what waited for that can proceed. Returns true once.
    pub(super) fn is_relieved(&mut self) -> bool {
        self.is_crowded && self.late <= self.late_max / 2 && std::mem::take(&mut self.is_crowded)
    }

    /// The page whose changes have been late for the longest time.
    pub(super) fn next_late(&mut self) -> Option<u32> {
        while let Some(page) = self.late_pages.front().copied() {
            let state = &self.pages[page as usize];
            if state.stay == Stay::Absent && state.changes > 0 {
                return Some(page);
            }
            self.late_pages.pop_front();
            self.pages[page as usize].is_late = false;
        }
        None
    }

    /// A page begins to be read. There must be room.
    pub(super) fn begin_load(&mut self, page: u32) {
        debug_assert!(self.has_room() && self.stay(page) == Stay::Absent);
        self.pages[page as usize].stay = Stay::Loading;
        self.used += 1;
        self.loading += 1;
    }

    /// A page has come into the cache.
    pub(super) fn end_load(&mut self, page: u32) {
        let state = &mut self.pages[page as usize];
        debug_assert_eq!(state.stay, Stay::Loading);
        state.stay = Stay::Cached;
        self.loading -= 1;
        self.late -= u64::from(state.changes);
        self.merging.remove(&page);
        self.link(page);
    }

    /// The cached page that was loaded or changed least recently.
    pub(super) fn oldest(&self) -> Option<u32> {
        (self.head != NONE).then_some(self.head)
    }

    /// Drops a page that is the same as on the medium.
    pub(super) fn drop_page(&mut self, page: u32) {
        debug_assert!(self.is_cached(page) && self.is_clean(page));
        self.unlink(page);
        self.pages[page as usize].stay = Stay::Absent;
        self.used -= 1;
    }

    /// A page in the cache begins to be written, to make room.
    pub(super) fn begin_leave(&mut self, page: u32) {
        debug_assert!(self.is_cached(page));
        self.unlink(page);
        let state = &mut self.pages[page as usize];
        state.stay = Stay::Leaving;
        (state.leaving, state.changes) = (state.changed.take(), 0);
        self.leaving += 1;
    }

    /// The write of a page has ended.
    pub(super) fn end_leave(&mut self, page: u32) {
        let state = &mut self.pages[page as usize];
        debug_assert_eq!(state.stay, Stay::Leaving);
        state.stay = Stay::Absent;
        state.leaving = None;
        if state.changes > 0 && !std::mem::replace(&mut state.is_late, true) {
            self.late_pages.push_back(page);
        }
        self.leaving -= 1;
        self.used -= 1;
    }

    /// Forgets the changes of a page: the page on the medium has the newest entries.
    pub(super) fn forget_changes(&mut self, page: u32) {
        let state = &mut self.pages[page as usize];
        if state.stay != Stay::Cached {
            self.late -= u64::from(state.changes);
        }
        (state.changed, state.changes) = (None, 0);
    }

    /// Units whose entry on the medium may be outdated.
    pub(super) fn changed(&self, page: u32) -> impl Iterator<Item = Lpn> + '_ {
        let state = &self.pages[page as usize];
        let first = u64::from(page) * self.entries;
        let is_any = state.changed.is_some() || state.leaving.is_some();
        (0..if is_any { self.entries } else { 0 })
            .filter(|at| state.is_changed(*at))
            .map(move |at| Lpn(first + at))
    }

    /// Whether the unit is one of them.
    pub(super) fn is_changed(&self, lpn: Lpn) -> bool {
        self.pages[(lpn.0 / self.entries) as usize].is_changed(lpn.0 % self.entries)
    }

    /// Whether the directory names this page of the medium.
    pub(super) fn names(&self, geometry: &Geometry, at: PageAddr) -> bool {
        self.area.owner(at).is_some_and(|page| self.page(page).place == Some(geometry.ppa(at, 0)))
    }

    /// A checkpoint names the places of all pages.
    pub(super) fn all_named(&mut self) {
        self.pages.iter_mut().for_each(|page| page.is_named = page.place.is_some());
    }

    /// Bytes of memory in use in the simulator.
    pub(super) fn memory_bytes(&self) -> u64 {
        let bits = |page: &MapPage| {
            page.changed.iter().chain(&page.leaving).map(|bits| bits.len() * 8).sum::<usize>()
        };
        let pages = self.pages.len() * size_of::<MapPage>();
        (pages + self.pages.iter().map(bits).sum::<usize>()) as u64
    }

    /// Panics if an account of the cache does not balance.
    pub(super) fn audit(&self) {
        let stays = |stay| self.pages.iter().filter(|page| page.stay == stay).count() as u32;
        let (loading, cached, leaving) = (stays(Stay::Loading), stays(Stay::Cached), stays(Stay::Leaving));
        assert_eq!(loading + cached + leaving, self.used, "pages in the cache are counted");
        assert!(self.used <= self.capacity, "the cache holds more than it may");
        assert_eq!((loading, leaving), (self.loading, self.leaving), "pages that come and leave are counted");
        let mut listed = 0;
        let mut at = self.head;
        while at != NONE {
            assert_eq!(self.stay(at), Stay::Cached, "what is in the list is cached");
            (listed, at) = (listed + 1, self.pages[at as usize].next);
        }
        assert_eq!(listed, cached, "what is cached is in the list");
        let late = self.pages.iter().filter(|page| page.stay != Stay::Cached);
        assert_eq!(
            late.map(|page| u64::from(page.changes)).sum::<u64>(),
            self.late,
            "late changes are counted"
        );
        for page in &self.pages {
            assert_eq!(page.changes, count(page.changed.as_deref()), "changes are counted");
        }
    }

    /// Describes the state for a human reader.
    pub(super) fn describe(&self) -> String {
        format!(
            "{} of {} pages in the cache, {} leave it, {} commands and {} pages of data wait, {} changes are late, {}",
            self.used,
            self.capacity,
            self.leaving,
            self.commands.len() + usize::from(self.held.is_some()),
            self.data_pages.len(),
            self.late,
            self.area.describe()
        )
    }

    fn link(&mut self, page: u32) {
        let tail = std::mem::replace(&mut self.tail, page);
        let state = &mut self.pages[page as usize];
        (state.previous, state.next) = (tail, NONE);
        match tail {
            NONE => self.head = page,
            tail => self.pages[tail as usize].next = page,
        }
    }

    fn unlink(&mut self, page: u32) {
        let MapPage { previous, next, .. } = self.pages[page as usize];
        match previous {
            NONE => self.head = next,
            previous => self.pages[previous as usize].next = next,
        }
        match next {
            NONE => self.tail = previous,
            next => self.pages[next as usize].previous = previous,
        }
    }
}
