//! The table of virtual pages as data: which physical units several logical pages share (share §3).
//!
//! Place in the data flow: [`super::share`] adds owners; [`super::programmed`] and [`super::accept`] take them away when a page is
//! overwritten or deallocated; [`super::gc`] moves a unit and changes one place, however many owners it has.
//!
//! Invariants: a virtual page exists while it has an owner; no two have the same place; an owner stays until what supersedes it is
//! durable, so a unit that a power cut may bring back is never erased.

use crate::config::OWNERS_PER_PAGE;
use flashweir_core::{Lpn, Ppa};
use flashweir_ftl::recovery::ContentId;
use std::collections::{BTreeMap, BTreeSet};

/// A physical unit that several pages share, or shared.
#[derive(Clone, Debug)]
pub(super) struct VirtualPage {
    /// Place of the content.
    pub(super) place: Ppa,
    /// Its identity on the medium.
    pub(super) content: ContentId,
    /// Its owners, each with the version since which it is one.
    owners: BTreeSet<(Lpn, u64)>,
}

impl VirtualPage {
    /// The owners, each with the version since which it is one.
    pub(super) fn owners(&self) -> &BTreeSet<(Lpn, u64)> {
        &self.owners
    }

    /// The owner, if there is one only.
    pub(super) fn only_owner(&self) -> Option<(Lpn, u64)> {
        self.owners.first().copied().filter(|_| self.owners.len() == 1)
    }
}

/// The table; see the module.
#[derive(Clone, Debug, Default)]
pub(super) struct VirtualPages {
    pages: BTreeMap<u64, VirtualPage>,
    by_place: BTreeMap<Ppa, u64>,
    /// Number of the next virtual page. Numbers are never used again.
    next: u64,
    owners: usize,
    pages_max: usize,
}

impl VirtualPages {
    /// An empty table with room for this many virtual pages.
    pub(super) fn new(pages_max: u32) -> Self {
        Self { pages_max: pages_max as usize, ..Self::default() }
    }

    /// Number of virtual pages, and of their owners.
    pub(super) fn used(&self) -> (usize, usize) {
        (self.pages.len(), self.owners)
    }

    /// Whether there is room for these further virtual pages and owners.
    pub(super) fn has_room(&self, pages: usize, owners: usize) -> bool {
        self.pages.len() + pages <= self.pages_max && self.owners + owners <= self.pages_max * OWNERS_PER_PAGE
    }

    /// The virtual page with this number. Panics if there is none, which is a bug of the simulator.
    pub(super) fn page(&self, vpid: u64) -> &VirtualPage {
        self.pages.get(&vpid).unwrap_or_else(|| panic!("virtual page {vpid} has no owner"))
    }

    fn page_mut(&mut self, vpid: u64) -> &mut VirtualPage {
        self.pages.get_mut(&vpid).unwrap_or_else(|| panic!("virtual page {vpid} has no owner"))
    }

    /// The place of a virtual page.
    #[inline]
    pub(super) fn place(&self, vpid: u64) -> Ppa {
        self.page(vpid).place
    }

    /// The virtual page at this place.
    #[inline]
    pub(super) fn at(&self, place: Ppa) -> Option<u64> {
        if self.by_place.is_empty() { None } else { self.by_place.get(&place).copied() }
    }

    /// Adds a virtual page without owners, to which the caller adds one; returns its number.
    pub(super) fn add(&mut self, place: Ppa, content: ContentId) -> u64 {
        let vpid = self.next;
        self.next += 1;
        self.pages.insert(vpid, VirtualPage { place, content, owners: BTreeSet::new() });
        let before = self.by_place.insert(place, vpid);
        assert_eq!(before, None, "a place belongs to one virtual page");
        vpid
    }

    /// Adds an owner since version `seq`.
    pub(super) fn add_owner(&mut self, vpid: u64, lpn: Lpn, seq: u64) {
        self.page_mut(vpid).owners.insert((lpn, seq));
        self.owners += 1;
    }

    /// The version since which `lpn` is an owner, the newest one below `below`: a page may be an owner twice, once until what
    /// superseded it is durable, and again since.
    pub(super) fn owner_since(&self, vpid: u64, lpn: Lpn, below: u64) -> u64 {
        let mut versions = self.page(vpid).owners.range((lpn, 0)..(lpn, below));
        versions.next_back().expect("the map names a virtual page for its owners").1
    }

    /// Takes an owner away; returns the place if it was the last one, and the virtual page does not exist any more.
    pub(super) fn take_owner(&mut self, vpid: u64, lpn: Lpn, seq: u64) -> Option<Ppa> {
        let was_there = self.page_mut(vpid).owners.remove(&(lpn, seq));
        assert!(was_there, "an owner is taken once");
        self.owners -= 1;
        if self.page(vpid).owners.is_empty() { Some(self.remove(vpid)) } else { None }
    }

    /// Removes a virtual page with all of its owners; returns its place.
    pub(super) fn remove(&mut self, vpid: u64) -> Ppa {
        let page = self.pages.remove(&vpid).expect("it was just there");
        self.owners -= page.owners.len();
        self.by_place.remove(&page.place);
        page.place
    }

    /// The content of a virtual page has moved.
    pub(super) fn moved(&mut self, vpid: u64, to: Ppa) {
        let from = std::mem::replace(&mut self.page_mut(vpid).place, to);
        self.by_place.remove(&from);
        self.by_place.insert(to, vpid);
    }

    /// Bytes that a device needs for a full table, as it could be laid out: 16 for a virtual page, 16 for an owner.
    pub(super) fn memory_bytes(&self) -> u64 {
        (self.pages_max * 16 * (1 + OWNERS_PER_PAGE)) as u64
    }

    /// Panics if an account of the table does not balance.
    pub(super) fn audit(&self) {
        assert_eq!(self.owners, self.pages.values().map(|page| page.owners.len()).sum::<usize>());
        assert_eq!(self.by_place.len(), self.pages.len(), "each virtual page has a place of its own");
        for (vpid, page) in &self.pages {
            assert!(!page.owners.is_empty(), "a virtual page has an owner");
            assert_eq!(self.by_place.get(&page.place), Some(vpid), "a virtual page is found by its place");
        }
    }
}
