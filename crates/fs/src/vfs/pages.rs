//! The pages in memory: which are there, in which state, and which is evicted when room is needed.
//!
//! Place in the data flow: the I/O of files looks pages up here and changes their state; this module knows no file system and never
//! waits.
//!
//! Invariants:
//! 1. A page is in one state. `Clean` pages are in the list from which pages are evicted, `Dirty` and `Withheld` ones have an entry
//!    with their owner; pages under I/O have neither, so they are never evicted.
//! 2. A page under write-back has been handed out as it was: its payload is shared, never changed in place, so a writer replaces it here
//!    without waiting (the device sees a stable page by copy, not by lock). The page is then `Redirtied` and becomes `Dirty` when the write
//!    ends, even if the write failed.
//! 3. A page whose write failed is dirty again.
//! 4. There are at most `capacity` pages, unless more than that are dirty or under I/O.
//!
//! A page is 64 bytes and found through one open-addressed table, in which four neighbours share a place: random
//! access costs about two cache misses, sequential access fewer, and what can be foreseen is fetched ahead. A tree would
//! keep pages in order, but order is asked for once a batch, and a sort of its indices is cheaper than an ordered insert
//! of each page. What an owner has as a whole is asked for when it ends: then the range of its pages is looked through, or
//! all pages, whichever is shorter, so that no page has to know others of its owner.
//!
//! Deliberately absent: an exact order of last use. A page that was used gets a second chance (the clock algorithm),
//! so that a hit writes one bit.

use super::types::Ino;
use flashweir_core::random::mix;
use flashweir_core::{Instant, Payload, prefetch};

/// No page.
const NONE: u32 = u32::MAX;

/// Number of neighbours that share a place in the table: half a cache line. With more, a search would pass too many other entries.
const BLOCK: u64 = 4;

/// The pages of one inode.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct OwnerId(u32);

/// A page in memory; valid until it is removed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Slot(u32);

/// State of a page.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum State {
    /// The content is the same as on the disk.
    Clean,
    /// The content is not there yet.
    Reading,
    /// The content is newer than on the disk.
    Dirty,
    /// The same, but only a sync of its file may write it.
    Withheld,
    /// It is being written.
    Writing,
    /// It is being written, and its content has changed since.
    Redirtied,
}

#[derive(Debug)]
#[repr(align(64))]
struct Page {
    payload: Payload,
    index: u64,
    /// Instant of the first write to it since it was last handed out.
    dirtied: Instant,
    owner: u32,
    /// Neighbours in the list of clean pages.
    prev: u32,
    next: u32,
    /// Index of the note in its owner's list of dirty pages.
    note: u32,
    state: State,
    used: bool,
    /// Whether the disk has bytes other than zeros after the end of the file.
    has_stale_tail: bool,
}

/// The pages that may be evicted, least recently used first.
#[derive(Clone, Copy, Debug)]
struct List {
    head: u32,
    tail: u32,
}

impl List {
    const EMPTY: Self = Self { head: NONE, tail: NONE };

    fn push_back(&mut self, pages: &mut [Page], at: u32) {
        pages[at as usize].prev = self.tail;
        pages[at as usize].next = NONE;
        match self.tail {
            NONE => self.head = at,
            tail => pages[tail as usize].next = at,
        }
        self.tail = at;
    }

    fn remove(&mut self, pages: &mut [Page], at: u32) {
        let (prev, next) = (pages[at as usize].prev, pages[at as usize].next);
        match prev {
            NONE => self.head = next,
            prev => pages[prev as usize].next = next,
        }
        match next {
            NONE => self.tail = prev,
            next => pages[next as usize].prev = prev,
        }
    }
}

/// A note that a page is dirty, with the fields that are needed for all of them at once; or a free place.
#[derive(Clone, Copy, Debug)]
struct Note {
    /// Index of the page; in a free place, the next free place.
    index: u64,
    dirtied: Instant,
    /// Slot of the page; [`NONE`] for a free place.
    page: u32,
}

/// The dirty pages of an owner, in no particular order.
#[derive(Debug, Default)]
struct Dirty {
    notes: Vec<Note>,
    free: Option<u32>,
    count: u32,
}

impl Dirty {
    fn add(&mut self, page: &mut Page, at: u32) {
        let note = Note { index: page.index, dirtied: page.dirtied, page: at };
        self.count += 1;
        page.note = match self.free {
            Some(place) => {
                let free = std::mem::replace(&mut self.notes[place as usize], note);
                self.free = u32::try_from(free.index).ok();
                place
            }
            None => {
                self.notes.push(note);
                self.notes.len() as u32 - 1
            }
        };
    }

    fn remove(&mut self, place: u32) {
        self.count -= 1;
        if self.count == 0 {
            self.notes.clear();
            self.free = None;
            return;
        }
        let next = self.free.replace(place).map_or(u64::MAX, u64::from);
        self.notes[place as usize] = Note { index: next, dirtied: Instant::ZERO, page: NONE };
    }

    fn iter(&self) -> impl Iterator<Item = &Note> {
        self.notes.iter().filter(|note| note.page != NONE)
    }
}

#[derive(Debug)]
struct Owner {
    ino: Ino,
    dirty: Dirty,
    withheld: Dirty,
    pages: u32,
    /// Upper bound of the indices of its pages.
    end: u64,
    /// Number of its pages that are dirty, withheld or being written.
    unclean: u32,
    redirtied: u32,
}

/// All pages in memory.
#[derive(Debug)]
pub(crate) struct Pages {
    pages: Vec<Page>,
    free: Vec<u32>,
    /// High half: a mark of the page. Low half: its slot plus one; 0 is an empty place.
    table: Vec<u64>,
    owners: Vec<Owner>,
    owners_free: Vec<u32>,
    clean: List,
    capacity: usize,
    present: usize,
    unclean: usize,
    withheld: usize,
    evictions: u64,
    /// Inodes of owners whose last page was evicted.
    emptied: Vec<Ino>,
}

impl Pages {
    pub(crate) fn new(capacity: usize) -> Self {
        Self {
            pages: Vec::new(),
            free: Vec::new(),
            table: vec![0; 64],
            owners: Vec::new(),
            owners_free: Vec::new(),
            clean: List::EMPTY,
            capacity,
            present: 0,
            unclean: 0,
            withheld: 0,
            evictions: 0,
            emptied: Vec::new(),
        }
    }

    /// Number of pages in memory.
    pub(crate) fn present(&self) -> usize {
        self.present
    }

    /// Number of pages that are dirty or being written; withheld ones do not count.
    #[inline]
    pub(crate) fn unclean(&self) -> usize {
        self.unclean
    }

    /// Number of pages that are withheld.
    #[inline]
    pub(crate) fn withheld(&self) -> usize {
        self.withheld
    }

    /// Number of pages evicted so far.
    pub(crate) fn evictions(&self) -> u64 {
        self.evictions
    }

    /// Takes one of the inodes whose last page was evicted.
    #[inline]
    pub(crate) fn pop_emptied(&mut self) -> Option<Ino> {
        self.emptied.pop()
    }

    // Owners.

    pub(crate) fn add_owner(&mut self, ino: Ino) -> OwnerId {
        let (dirty, withheld) = (Dirty::default(), Dirty::default());
        let owner = Owner { ino, dirty, withheld, pages: 0, end: 0, unclean: 0, redirtied: 0 };
        match self.owners_free.pop() {
            Some(id) => {
                self.owners[id as usize] = owner;
                OwnerId(id)
            }
            None => {
                self.owners.push(owner);
                OwnerId((self.owners.len() - 1) as u32)
            }
        }
    }

    /// Removes an owner, which must have no pages.
    pub(crate) fn remove_owner(&mut self, owner: OwnerId) {
        assert_eq!(self.pages_of(owner), 0, "an inode is forgotten while it has pages");
        self.owners_free.push(owner.0);
    }

    /// Number of pages of this owner.
    #[inline]
    pub(crate) fn pages_of(&self, owner: OwnerId) -> u32 {
        self.owners[owner.0 as usize].pages
    }

    /// Number of pages of this owner that are dirty, withheld or being written.
    #[inline]
    pub(crate) fn unclean_of(&self, owner: OwnerId) -> u32 {
        self.owners[owner.0 as usize].unclean
    }

    /// Whether this owner has pages that are dirty and not being written.
    #[inline]
    pub(crate) fn has_dirty(&self, owner: OwnerId) -> bool {
        self.owners[owner.0 as usize].dirty.count > 0
    }

    /// Whether this owner has pages that are being written and have changed since.
    pub(crate) fn has_redirtied(&self, owner: OwnerId) -> bool {
        self.owners[owner.0 as usize].redirtied > 0
    }

    // The table.

    /// The upper half of an entry: a hash of owner and block, with the place within the block in its last bits.
    #[inline]
    fn mark(owner: u32, index: u64) -> u64 {
        let hash = mix((u64::from(owner) << 44) ^ (index / BLOCK));
        hash & !((BLOCK << 32) - 1) | (index % BLOCK) << 32
    }

    /// The first place to search for an entry. It follows from the entry alone, so that moving entries reads no page.
    #[inline]
    fn home(&self, entry: u64) -> usize {
        (entry >> 32) as usize & (self.table.len() - 1)
    }

    /// The page, if it is in memory.
    #[inline]
    pub(crate) fn find(&self, owner: OwnerId, index: u64) -> Option<Slot> {
        let mark = Self::mark(owner.0, index);
        let mut place = self.home(mark);
        loop {
            let entry = self.table[place];
            if entry == 0 {
                return None;
            }
            if entry & !0xffff_ffff == mark {
                let at = entry as u32 - 1;
                let page = &self.pages[at as usize];
                if page.index == index && page.owner == owner.0 {
                    return Some(Slot(at));
                }
            }
            place = (place + 1) & (self.table.len() - 1);
        }
    }

    /// Finds a page again that was in this slot before, where it mostly still is.
    #[inline]
    pub(crate) fn find_again(&self, owner: OwnerId, (index, slot): (u64, Slot)) -> Option<Slot> {
        let page = &self.pages[slot.0 as usize];
        if page.index == index && page.owner == owner.0 { Some(slot) } else { self.find(owner, index) }
    }

    fn enter(&mut self, entry: u64) {
        let mut place = self.home(entry);
        while self.table[place] != 0 {
            place = (place + 1) & (self.table.len() - 1);
        }
        self.table[place] = entry;
    }

    /// Removes an entry and moves later ones of the same chain up, so that a search can end at the first gap.
    fn leave(&mut self, at: u32) {
        let last = self.table.len() - 1;
        let page = &self.pages[at as usize];
        let mut place = self.home(Self::mark(page.owner, page.index));
        while self.table[place] as u32 != at + 1 {
            place = (place + 1) & last;
        }
        let mut gap = place;
        loop {
            place = (place + 1) & last;
            let entry = self.table[place];
            if entry == 0 {
                break;
            }
            // The entry may move to the gap if a search for it passes there.
            if (place.wrapping_sub(self.home(entry)) & last) >= (place.wrapping_sub(gap) & last) {
                self.table[gap] = entry;
                gap = place;
            }
        }
        self.table[gap] = 0;
    }

    fn grow(&mut self) {
        let size = self.table.len() * 2;
        let old = std::mem::replace(&mut self.table, vec![0; size]);
        old.into_iter().filter(|&entry| entry != 0).for_each(|entry| self.enter(entry));
    }

    // Pages.

    /// Adds a page that is not there, clean, dirty, withheld or being read; another page may be evicted.
    pub(crate) fn insert(
        &mut self,
        owner: OwnerId,
        index: u64,
        state: State,
        payload: Payload,
        now: Instant,
    ) -> Slot {
        debug_assert!(self.find(owner, index).is_none(), "page {index} is there already");
        while self.present >= self.capacity && self.evict_one() {}
        if (self.present + 1) * 2 > self.table.len() {
            self.grow();
        }
        let page = Page {
            payload,
            index,
            dirtied: now,
            owner: owner.0,
            prev: NONE,
            next: NONE,
            note: NONE,
            state,
            used: false,
            has_stale_tail: false,
        };
        let at = match self.free.pop() {
            Some(at) => {
                self.pages[at as usize] = page;
                at
            }
            None => {
                self.pages.push(page);
                (self.pages.len() - 1) as u32
            }
        };
        let page_owner = owner.0;
        let owner = &mut self.owners[owner.0 as usize];
        owner.pages += 1;
        owner.end = owner.end.max(index + 1);
        self.present += 1;
        match state {
            State::Clean => self.clean.push_back(&mut self.pages, at),
            State::Dirty => {
                owner.dirty.add(&mut self.pages[at as usize], at);
                owner.unclean += 1;
                self.unclean += 1;
            }
            State::Withheld => {
                owner.withheld.add(&mut self.pages[at as usize], at);
                owner.unclean += 1;
                self.withheld += 1;
            }
            State::Reading => {}
            State::Writing | State::Redirtied => unreachable!("a page is not born under write-back"),
        }
        self.enter(Self::mark(page_owner, index) | u64::from(at + 1));
        Slot(at)
    }

    /// Removes a page, which must not be under write-back.
    pub(crate) fn remove(&mut self, slot: Slot) {
        let at = slot.0;
        let page = &mut self.pages[at as usize];
        page.payload = Payload::Zero;
        let owner = &mut self.owners[page.owner as usize];
        owner.pages -= 1;
        if owner.pages == 0 {
            owner.end = 0;
        }
        match page.state {
            State::Clean => self.clean.remove(&mut self.pages, at),
            State::Dirty => {
                owner.unclean -= 1;
                self.unclean -= 1;
                owner.dirty.remove(page.note);
            }
            State::Withheld => {
                owner.unclean -= 1;
                self.withheld -= 1;
                owner.withheld.remove(page.note);
            }
            State::Reading => {}
            State::Writing | State::Redirtied => unreachable!("a page that is being written is removed"),
        }
        self.present -= 1;
        self.leave(at);
        self.pages[at as usize].owner = NONE;
        self.free.push(at);
    }

    /// Evicts a clean page that was not used for about the longest time; returns false if there is none.
    fn evict_one(&mut self) -> bool {
        loop {
            let at = self.clean.head;
            if at == NONE {
                return false;
            }
            if std::mem::take(&mut self.pages[at as usize].used) {
                self.clean.remove(&mut self.pages, at);
                self.clean.push_back(&mut self.pages, at);
                continue;
            }
            let owner = self.pages[at as usize].owner as usize;
            self.remove(Slot(at));
            self.prefetch_next_to_evict();
            self.evictions += 1;
            if self.owners[owner].pages == 0 {
                self.emptied.push(self.owners[owner].ino);
            }
            return true;
        }
    }

    /// Prefetches what the next eviction reads: of the page after the next one the page itself, through which the call after this
    /// one finds its place in the table.
    fn prefetch_next_to_evict(&self) {
        if let Some(page) = self.pages.get(self.clean.head as usize) {
            prefetch(&self.table[self.home(Self::mark(page.owner, page.index))]);
            self.prefetch(Slot(page.next));
        }
    }

    /// Prefetches a page that will be used soon.
    #[inline]
    pub(crate) fn prefetch(&self, slot: Slot) {
        if let Some(page) = self.pages.get(slot.0 as usize) {
            prefetch(page);
        }
    }

    /// Prefetches the place of a page that will be looked up soon.
    #[inline]
    pub(crate) fn prefetch_place(&self, owner: OwnerId, index: u64) {
        prefetch(&self.table[self.home(Self::mark(owner.0, index))]);
    }

    #[inline]
    pub(crate) fn state(&self, slot: Slot) -> State {
        self.pages[slot.0 as usize].state
    }

    #[inline]
    pub(crate) fn payload(&self, slot: Slot) -> &Payload {
        &self.pages[slot.0 as usize].payload
    }

    #[inline]
    pub(crate) fn payload_mut(&mut self, slot: Slot) -> &mut Payload {
        &mut self.pages[slot.0 as usize].payload
    }

    /// Whether the disk holds bytes behind the end of the file that differ from the page.
    pub(crate) fn has_stale_tail(&self, slot: Slot) -> bool {
        self.pages[slot.0 as usize].has_stale_tail
    }

    /// Notes that the page was read.
    #[inline]
    pub(crate) fn touch(&mut self, slot: Slot) {
        self.pages[slot.0 as usize].used = true;
    }

    /// The content has been read. `has_stale_tail` says that it was zeroed behind the end of the file.
    pub(crate) fn end_read(&mut self, slot: Slot, payload: Payload, has_stale_tail: bool) {
        let page = &mut self.pages[slot.0 as usize];
        debug_assert_eq!(page.state, State::Reading);
        page.state = State::Clean;
        page.payload = payload;
        page.has_stale_tail = has_stale_tail;
        self.clean.push_back(&mut self.pages, slot.0);
    }

    /// The content is about to change.
    #[inline]
    pub(crate) fn make_dirty(&mut self, slot: Slot, now: Instant) {
        let page = &mut self.pages[slot.0 as usize];
        page.used = true;
        match page.state {
            State::Dirty | State::Withheld | State::Redirtied => {}
            State::Writing => {
                page.state = State::Redirtied;
                page.dirtied = now;
                self.owners[page.owner as usize].redirtied += 1;
            }
            State::Clean => {
                page.state = State::Dirty;
                page.dirtied = now;
                let owner = &mut self.owners[page.owner as usize];
                owner.unclean += 1;
                self.unclean += 1;
                owner.dirty.add(page, slot.0);
                self.clean.remove(&mut self.pages, slot.0);
            }
            State::Reading => unreachable!("a page that is being read has no content to change"),
        }
    }

    /// The content is about to change, and only a sync of the file may write the page. It is not under write-back.
    pub(crate) fn withhold(&mut self, slot: Slot, now: Instant) {
        self.make_dirty(slot, now);
        let page = &mut self.pages[slot.0 as usize];
        if page.state != State::Withheld {
            debug_assert_eq!(page.state, State::Dirty, "a write of the page is awaited first");
            let owner = &mut self.owners[page.owner as usize];
            owner.dirty.remove(page.note);
            self.unclean -= 1;
            page.state = State::Withheld;
            owner.withheld.add(page, slot.0);
            self.withheld += 1;
        }
    }

    /// Marks a page that is dirty or withheld as handed to the file system.
    pub(crate) fn begin_write(&mut self, slot: Slot) {
        let page = &mut self.pages[slot.0 as usize];
        let owner = &mut self.owners[page.owner as usize];
        match page.state {
            State::Withheld => {
                owner.withheld.remove(page.note);
                self.withheld -= 1;
                self.unclean += 1;
            }
            state => {
                debug_assert_eq!(state, State::Dirty);
                owner.dirty.remove(page.note);
            }
        }
        page.state = State::Writing;
    }

    /// The write has ended. Returns whether the page is dirty now.
    pub(crate) fn end_write(&mut self, slot: Slot, written: bool) -> bool {
        let at = slot.0;
        let page = &mut self.pages[at as usize];
        let owner = &mut self.owners[page.owner as usize];
        page.has_stale_tail &= !written;
        match page.state {
            State::Writing if written => {
                page.state = State::Clean;
                owner.unclean -= 1;
                self.unclean -= 1;
                self.clean.push_back(&mut self.pages, at);
                return false;
            }
            State::Writing => {
                page.state = State::Dirty;
                owner.dirty.add(page, at);
            }
            State::Redirtied => {
                page.state = State::Dirty;
                owner.redirtied -= 1;
                owner.dirty.add(page, at);
            }
            State::Clean | State::Dirty | State::Withheld | State::Reading => {
                unreachable!("no write of this page is under way")
            }
        }
        true
    }

    /// Appends indices and slots of the owner's dirty pages within `first..end`, sorted, without those that became dirty after
    /// `until` and those that are being written.
    pub(crate) fn dirty_indices(
        &self,
        owner: OwnerId,
        (first, end): (u64, u64),
        until: Instant,
        indices: &mut Vec<(u64, Slot)>,
    ) {
        let wanted = self.owners[owner.0 as usize].dirty.iter();
        let wanted = wanted.filter(|note| note.dirtied <= until && (first..end).contains(&note.index));
        indices.extend(wanted.map(|note| (note.index, Slot(note.page))));
        indices.sort_unstable_by_key(|(index, _)| *index);
    }

    /// Appends indices and slots of the owner's withheld pages, sorted.
    pub(crate) fn withheld_indices(&self, owner: OwnerId, indices: &mut Vec<(u64, Slot)>) {
        let withheld = self.owners[owner.0 as usize].withheld.iter();
        indices.extend(withheld.map(|note| (note.index, Slot(note.page))));
        indices.sort_unstable_by_key(|(index, _)| *index);
    }

    /// Appends the indices of the owner's pages within `first..end` that are dirty, withheld or being written, sorted.
    pub(crate) fn unclean_indices(&self, owner: OwnerId, range: (u64, u64), indices: &mut Vec<u64>) {
        if self.unclean_of(owner) == 0 {
            return;
        }
        let mut slots = Vec::new();
        self.slots(owner, range, &mut slots);
        slots.retain(|slot| !matches!(self.state(*slot), State::Clean | State::Reading));
        indices.extend(slots.iter().map(|slot| self.pages[slot.0 as usize].index));
        indices.sort_unstable();
    }

    /// Whether all of `count` pages from `first` on are dirty or withheld already.
    #[inline]
    pub(crate) fn all_dirty(&self, owner: OwnerId, first: u64, count: u64) -> bool {
        (first..first + count).all(|index| {
            let state = self.find(owner, index).map(|slot| self.state(slot));
            matches!(state, Some(State::Dirty | State::Withheld | State::Redirtied))
        })
    }

    /// Appends the pages of the owner within `first..end`, in no particular order.
    pub(crate) fn slots(&self, owner: OwnerId, (first, end): (u64, u64), slots: &mut Vec<Slot>) {
        let end = end.min(self.owners[owner.0 as usize].end);
        if end.saturating_sub(first) <= self.pages.len() as u64 {
            slots.extend((first..end).filter_map(|index| self.find(owner, index)));
            return;
        }
        let is_wanted = |page: &Page| page.owner == owner.0 && (first..end).contains(&page.index);
        let slots_of_all = (0..).map(Slot).zip(&self.pages);
        slots.extend(slots_of_all.filter(|(_, page)| is_wanted(page)).map(|(slot, _)| slot));
    }

    /// Checks every invariant by counting anew; for tests.
    #[cfg(test)]
    pub(crate) fn audit(&self) {
        let mut by_state = [0usize; 6];
        let entries = self.table.iter().filter(|&&entry| entry != 0);
        for &entry in entries.clone() {
            let at = entry as u32 - 1;
            let page = &self.pages[at as usize];
            by_state[page.state as usize] += 1;
            assert_eq!(self.find(OwnerId(page.owner), page.index), Some(Slot(at)));
        }
        assert_eq!(entries.count(), self.present);
        let (mut at, mut before, mut clean) = (self.clean.head, NONE, 0);
        while at != NONE {
            let page = &self.pages[at as usize];
            assert_eq!((page.state, page.prev), (State::Clean, before));
            (before, at, clean) = (at, page.next, clean + 1);
        }
        assert_eq!((self.clean.tail, clean), (before, by_state[State::Clean as usize]));
        let (mut dirty, mut withheld, mut unclean, mut redirtied, mut pages) = (0, 0, 0, 0, 0);
        for (id, owner) in self.owners.iter().enumerate() {
            if self.owners_free.contains(&(id as u32)) {
                continue;
            }
            for (list, state) in [(&owner.dirty, State::Dirty), (&owner.withheld, State::Withheld)] {
                for (place, note) in list.notes.iter().enumerate().filter(|(_, note)| note.page != NONE) {
                    let page = &self.pages[note.page as usize];
                    let seen = (page.owner, page.state, page.index, page.dirtied, page.note);
                    assert_eq!(seen, (id as u32, state, note.index, note.dirtied, place as u32));
                }
                assert_eq!(list.iter().count(), list.count as usize);
            }
            dirty += owner.dirty.count as usize;
            withheld += owner.withheld.count as usize;
            unclean += owner.unclean as usize;
            redirtied += owner.redirtied as usize;
            let mut slots = Vec::new();
            self.slots(OwnerId(id as u32), (0, u64::MAX), &mut slots);
            assert_eq!(slots.len(), owner.pages as usize);
            pages += slots.len();
        }
        assert_eq!(redirtied, by_state[State::Redirtied as usize]);
        let writing = by_state[State::Writing as usize] + by_state[State::Redirtied as usize];
        assert_eq!((dirty, pages), (by_state[State::Dirty as usize], self.present));
        assert_eq!((withheld, self.withheld), (by_state[State::Withheld as usize], withheld));
        assert_eq!((unclean, self.unclean), (dirty + withheld + writing, dirty + writing));
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use flashweir_core::RandomStream;
    use std::collections::BTreeMap;

    const NOW: Instant = Instant::ZERO;

    #[test]
    fn a_page_is_one_cache_line() {
        assert_eq!((size_of::<Page>(), align_of::<Page>()), (64, 64));
    }

    /// Compares random changes with a map, with a table that grows, chains that wrap, and every state.
    #[test]
    fn pages_are_found_as_in_a_map() {
        let mut random = RandomStream::new(5, "pages");
        let mut pages = Pages::new(usize::MAX);
        let owners: Vec<OwnerId> = (0..5).map(|ino| pages.add_owner(Ino(ino))).collect();
        let mut model: BTreeMap<(usize, u64), u64> = BTreeMap::new();
        let mut known: BTreeMap<(usize, u64), Slot> = BTreeMap::new();
        for step in 0..40_000u64 {
            let who = random.below(5) as usize;
            let index = random.below(40) + if random.chance(0.3) { random.below(1 << 40) } else { 0 };
            let found = pages.find(owners[who], index);
            if let Some(slot) = known.get(&(who, index)) {
                assert_eq!(pages.find_again(owners[who], (index, *slot)), found);
            }
            known.extend(found.map(|slot| ((who, index), slot)));
            assert_eq!(found.map(|slot| pages.payload(slot).identity()), model.get(&(who, index)).copied());
            let grows = step % 2_000 < 1_200;
            match (found, random.below(4)) {
                (None, _) if grows => {
                    let born = [State::Clean, State::Dirty, State::Withheld, State::Reading];
                    let state = born[random.below(4) as usize];
                    pages.insert(owners[who], index, state, Payload::Tag(step), NOW);
                    model.insert((who, index), step);
                }
                (None, _) => {
                    let nth = random.below(model.len().max(1) as u64) as usize;
                    if let Some((&(who, index), _)) = model.iter().nth(nth) {
                        let slot = pages.find(owners[who], index).unwrap();
                        if !matches!(pages.state(slot), State::Writing | State::Redirtied) {
                            pages.remove(slot);
                            model.remove(&(who, index));
                        }
                    }
                }
                (Some(slot), action) => match pages.state(slot) {
                    State::Reading => {
                        pages.end_read(slot, Payload::Tag(step), false);
                        model.insert((who, index), step);
                    }
                    State::Dirty | State::Withheld if action == 0 => pages.begin_write(slot),
                    State::Clean | State::Dirty if action == 1 => pages.withhold(slot, NOW),
                    State::Writing | State::Redirtied if action < 2 => {
                        pages.end_write(slot, action == 0);
                    }
                    _ => pages.make_dirty(slot, NOW),
                },
            }
            if step % 1_000 == 0 {
                pages.audit();
            }
        }
        pages.audit();
        assert!(pages.table.len() > 1_000, "the table never grew");
    }

    #[test]
    fn used_pages_get_a_second_chance_and_only_clean_ones_go() {
        let mut pages = Pages::new(4);
        let owner = pages.add_owner(Ino(1));
        let dirty = pages.insert(owner, 0, State::Dirty, Payload::Zero, NOW);
        for index in 1..4 {
            pages.insert(owner, index, State::Clean, Payload::Zero, NOW);
        }
        let used = pages.find(owner, 1).unwrap();
        pages.touch(used);
        pages.insert(owner, 4, State::Clean, Payload::Zero, NOW);
        let there = |pages: &Pages| (0..7).filter(|&i| pages.find(owner, i).is_some()).collect::<Vec<_>>();
        assert_eq!(there(&pages), [0, 1, 3, 4]);
        for index in [1, 3, 4] {
            pages.make_dirty(pages.find(owner, index).unwrap(), NOW);
        }
        pages.insert(owner, 5, State::Clean, Payload::Zero, NOW);
        assert_eq!(there(&pages), [0, 1, 3, 4, 5], "nothing could go");
        pages.begin_write(dirty);
        pages.make_dirty(dirty, NOW);
        assert_eq!(pages.state(dirty), State::Redirtied);
        assert!(pages.end_write(dirty, true), "the newer content is not on the disk");
        pages.begin_write(dirty);
        assert!(pages.end_write(dirty, false), "a failed write cleans nothing");
        pages.begin_write(dirty);
        assert!(!pages.end_write(dirty, true));
        pages.audit();
    }
}
