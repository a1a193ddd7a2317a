//! Where the next page goes: write frontiers, reserves, pages that are being filled, the shared queue of
//! dynamic allocation.
//!
//! Invariants: host data never takes the blocks that collection needs to make progress; a block is closed
//! (collectable) only when its last page has finished.

use super::job::{Job, Op};
use crate::config::{Allocation, DeviceConfig};
use crate::flash::{Class, Frontier, OpKind, Placer, Purpose, UNBOUND};
use crate::geometry::{Geometry, PageAddr};
use flashweir_core::index::Idx;
use flashweir_core::{Lpn, Ppa};
use flashweir_ftl::{BlockId, BlockState, Blocks, PlaneId, VictimPicker};

/// Credit for one mapping unit.
const UNIT_CREDIT: i64 = 1024;

/// A unit on its way to the medium.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct PageUnit {
    /// Its logical page.
    pub(super) lpn: Lpn,
    /// Its version.
    pub(super) seq: u64,
    /// Buffer slot of host data.
    pub(super) slot: u32,
    /// Source of a survivor.
    pub(super) source: Ppa,
}

/// A page that is being filled or programmed.
#[derive(Clone, Debug)]
pub(super) struct PageWrite {
    pub(super) units: Vec<PageUnit>,
    /// Where it was programmed.
    pub(super) at: PageAddr,
    pub(super) plane: PlaneId,
    pub(super) frontier: Frontier,
    /// No unit joins any more.
    pub(super) sealed: bool,
    /// It waits for the machine; otherwise it is held back until it is full.
    pub(super) queued: bool,
    /// Somebody waits for one of its units.
    pub(super) urgent: bool,
    /// A range flush does: the page goes before others (range-flush §3.4).
    pub(super) first: bool,
    /// Where it waits in the shared queue, and its neighbours there.
    lane: Option<Lane>,
    previous: u32,
    next: u32,
}

/// A part of the shared queue.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Lane {
    /// Pages for which a range flush waits.
    First,
    Rest,
}

const NONE: u32 = u32::MAX;

#[derive(Clone, Copy, Debug)]
struct OpenBlock {
    block: BlockId,
    next_page: u32,
}

/// Frontiers and pages in the making.
#[derive(Clone, Debug)]
pub(crate) struct Space {
    pub(super) victims: VictimPicker,
    frontiers: Vec<[Option<OpenBlock>; 2]>,
    /// Programs of each frontier that have a page and have not ended.
    pub(super) programming: Vec<[u32; 2]>,
    /// Number of the last opening of each block.
    opened: Vec<u64>,
    pub(super) openings: u64,
    pub(super) pages: Vec<PageWrite>,
    free_pages: Vec<u32>,
    /// The page of each plane (or, under dynamic allocation, of the device) that units may still join.
    filling: Vec<Option<u32>>,
    /// First and last page of each lane of the shared queue.
    shared: [(u32, u32); 2],
    /// Full or urgent pages that the machine does not have yet.
    pub(super) to_release: Vec<u32>,
    /// Pages of host data that the machine has.
    pub(super) queued_pages: usize,
    /// The plane of each station that gets the next page of the shared queue.
    turns: Vec<u32>,
    planes_per_die: u32,
    pages_per_block: u32,
    units_per_page: u32,
    unit_bytes: u32,
    hot_cold: bool,
    reserve: u32,
    dynamic_wear: bool,
    /// Planes whose host data are paced by collection, and how much of a unit, in 1/1024, they may write.
    pace: Vec<Option<i64>>,
    /// The next collection frontier of this plane takes the most worn block (static wear-levelling).
    pub(super) cold_to_worn: Vec<bool>,
}

impl Space {
    pub(super) fn new(config: &DeviceConfig, geometry: &Geometry, seed: u64) -> Self {
        let gc = &config.ftl.gc;
        let planes = geometry.planes() as usize;
        let fillings = if config.ftl.allocation == Allocation::Dynamic { 1 } else { planes };
        Self {
            victims: VictimPicker::new(gc.policy, gc.choices, seed),
            frontiers: vec![[None; 2]; planes],
            programming: vec![[0; 2]; planes],
            opened: vec![0; geometry.blocks() as usize],
            openings: 0,
            pages: Vec::new(),
            free_pages: Vec::new(),
            filling: vec![None; fillings],
            shared: [(NONE, NONE); 2],
            to_release: Vec::new(),
            queued_pages: 0,
            turns: vec![0; geometry.stations() as usize],
            planes_per_die: geometry.planes_per_die(),
            pages_per_block: geometry.pages_per_block,
            units_per_page: geometry.units_per_page,
            unit_bytes: geometry.unit_bytes as u32,
            hot_cold: gc.hot_cold,
            reserve: gc.reserve_blocks,
            dynamic_wear: config.ftl.wear.dynamic,
            pace: vec![None; planes],
            cold_to_worn: vec![false; planes],
        }
    }

    #[inline]
    pub(super) fn stream(&self, frontier: Frontier) -> usize {
        if self.hot_cold { frontier as usize } else { 0 }
    }

    /// Number of the opening of an open block.
    #[inline]
    pub(super) fn opened(&self, block: BlockId) -> u64 {
        self.opened[block.index()]
    }

    /// Blocks that are write frontiers now.
    pub(super) fn open_blocks(pool: &Blocks) -> impl Iterator<Item = BlockId> + '_ {
        pool.ids().filter(|block| pool.state(*block) == BlockState::Open)
    }

    /// From now on host data of the plane wait for collection: see [`Self::earn`].
    pub(super) fn begin_pace(&mut self, plane: PlaneId) {
        self.pace[plane.index()].get_or_insert(0);
    }

    /// Collection has made durable `units` survivors of a victim with `valid` of them: host data may write the
    /// same share of what the victim gives back.
    pub(super) fn earn(&mut self, plane: PlaneId, units: u32, valid: u32) {
        if let Some(credit) = &mut self.pace[plane.index()] {
            let gain = i64::from(self.pages_per_block * self.units_per_page - valid);
            *credit += i64::from(units) * gain * UNIT_CREDIT / i64::from(valid.max(1));
        }
    }

    /// Host data of the plane are free to take whatever room there is.
    pub(super) fn end_pace(&mut self, plane: PlaneId) {
        self.pace[plane.index()] = None;
    }

    /// A program that was bound to a page has ended.
    pub(super) fn program_ended(&mut self, plane: PlaneId, frontier: Frontier) {
        let stream = self.stream(frontier);
        self.programming[plane.index()][stream] -= 1;
    }

    /// Gives up a frontier whose block failed; the caller closes the block.
    pub(super) fn abandon(&mut self, pool: &Blocks, block: BlockId) {
        for frontier in self.frontiers[pool.plane(block).index()].iter_mut() {
            if frontier.is_some_and(|open| open.block == block) {
                *frontier = None;
            }
        }
    }

    /// The next page of an open frontier.
    pub(super) fn next_page(&self, plane: PlaneId, frontier: Frontier) -> Option<u32> {
        self.frontiers[plane.index()][self.stream(frontier)].map(|open| open.next_page)
    }

    /// Closes whatever is open in a plane: after a recovery nothing is appended to old blocks.
    pub(super) fn close_frontiers(&mut self, pool: &mut Blocks, plane: PlaneId) {
        for frontier in &mut self.frontiers[plane.index()] {
            *frontier = None;
        }
        // A block that was filled to its last page is no frontier any more, but still open.
        for block in pool.of_plane(plane).map(BlockId) {
            if pool.state(block) == BlockState::Open {
                pool.close(block);
            }
        }
    }

    /// A new page write; it is not queued yet.
    #[inline]
    pub(super) fn new_page(&mut self, plane: PlaneId, frontier: Frontier) -> u32 {
        if let Some(free) = self.free_pages.pop() {
            let page = &mut self.pages[free as usize];
            page.units.clear();
            (page.plane, page.frontier) = (plane, frontier);
            (page.sealed, page.queued, page.urgent, page.first) = (false, false, false, false);
            return free;
        }
        self.pages.push(PageWrite {
            units: Vec::with_capacity(self.units_per_page as usize),
            at: UNBOUND,
            plane,
            frontier,
            sealed: false,
            queued: false,
            urgent: false,
            first: false,
            lane: None,
            previous: NONE,
            next: NONE,
        });
        self.pages.len() as u32 - 1
    }

    pub(super) fn free_page(&mut self, page: u32) {
        self.free_pages.push(page);
    }

    /// The host page that units of `plane` may join, if one is being filled.
    pub(super) fn filling(&mut self, plane: PlaneId) -> &mut Option<u32> {
        let at = if self.filling.len() == 1 { 0 } else { plane.index() };
        &mut self.filling[at]
    }

    /// Lets pages go that were held back until they are full.
    pub(super) fn release_held(&mut self) {
        for page in self.filling.iter().flatten().copied() {
            self.pages[page as usize].urgent = true;
            self.to_release.push(page);
        }
    }

    /// Takes out the pages of the shared queue.
    pub(super) fn drop_waiting(&mut self, dynamic: bool) -> Vec<u32> {
        let mut pages = Vec::new();
        while dynamic && let Some(page) = self.pop_shared() {
            pages.push(page);
        }
        pages
    }

    /// Puts a page at the end of its lane of the shared queue.
    pub(super) fn push_shared(&mut self, page: u32) {
        let lane = if self.pages[page as usize].first { Lane::First } else { Lane::Rest };
        let (head, tail) = &mut self.shared[lane as usize];
        let last = std::mem::replace(tail, page);
        match last {
            NONE => *head = page,
            last => self.pages[last as usize].next = page,
        }
        let write = &mut self.pages[page as usize];
        (write.lane, write.previous, write.next) = (Some(lane), last, NONE);
    }

    /// A range flush waits for a page: if it is in the shared queue, it goes before those for which none does.
    pub(super) fn promote_shared(&mut self, page: u32) {
        if self.pages[page as usize].lane == Some(Lane::Rest) {
            self.unlink_shared(page);
            self.push_shared(page);
        }
    }

    /// The page that a frontier would take next, whatever collection's pace.
    #[inline]
    fn room(&self, pool: &Blocks, plane: PlaneId, frontier: Frontier) -> Option<u32> {
        let free = pool.free_count(plane);
        match self.frontiers[plane.index()][self.stream(frontier)] {
            // A frontier that collection shares is its last resort when no block is free.
            Some(_) if !self.hot_cold && frontier == Frontier::User && free == 0 => None,
            Some(open) => Some(open.next_page),
            None => {
                let keep = if frontier == Frontier::User { self.reserve } else { 0 };
                (free > keep).then_some(0)
            }
        }
    }

    /// The page that a plane would take next while another one of its die may write. Planes earn at different moments what
    /// they may write; so that they can write together, one may owe a page to its collection.
    #[inline]
    fn room_beside(&self, pool: &Blocks, plane: PlaneId) -> Option<u32> {
        let debt_max = i64::from(self.units_per_page) * UNIT_CREDIT;
        if self.pace[plane.index()].is_some_and(|credit| credit <= -debt_max) {
            return None;
        }
        self.room(pool, plane, Frontier::User)
    }

    /// The first page of the shared queue goes to `plane`.
    fn pull_to(&mut self, plane: PlaneId) -> Option<Op> {
        let page = self.pop_shared()?;
        self.pages[page as usize].plane = plane;
        Some(self.op(page))
    }

    /// Of the planes of a die that take host data, the one whose frontier has to go furthest to reach the others; `plane`, one
    /// that takes them, if all stand at the same page. Only pages with one number make a multi-plane program, so a plane
    /// that has fallen behind (a page came alone, a block failed, collection held it up) gets the next page.
    #[inline]
    fn furthest_behind(&self, pool: &Blocks, plane: PlaneId) -> PlaneId {
        let (per_die, pages) = (self.planes_per_die, self.pages_per_block);
        if per_die == 1 {
            return plane;
        }
        let die = plane.0 - plane.0 % per_die;
        let others = || (die..die + per_die).map(PlaneId);
        let Some(own) = self.room(pool, plane, Frontier::User) else { return plane };
        if others().all(|other| self.room_beside(pool, other).is_none_or(|page| page == own)) {
            return plane;
        }
        // Blocks follow one another, so the pages lie on a circle: the widest gap before a page shows who comes last.
        let offers = || others().filter_map(|other| Some((other, self.room_beside(pool, other)?)));
        let gap_before = |page: u32| {
            let gaps = offers().map(|(_, other)| (page + pages - other - 1) % pages + 1);
            gaps.min().unwrap_or(pages)
        };
        let last = offers().max_by_key(|&(other, page)| (gap_before(page), std::cmp::Reverse(other)));
        last.map_or(plane, |(last, _)| last)
    }

    fn pop_shared(&mut self) -> Option<u32> {
        let page = self.shared.iter().map(|(head, _)| *head).find(|head| *head != NONE)?;
        self.unlink_shared(page);
        Some(page)
    }

    fn unlink_shared(&mut self, page: u32) {
        let PageWrite { lane, previous, next, .. } = self.pages[page as usize];
        let lane = lane.expect("the page is in the shared queue");
        match previous {
            NONE => self.shared[lane as usize].0 = next,
            previous => self.pages[previous as usize].next = next,
        }
        match next {
            NONE => self.shared[lane as usize].1 = previous,
            next => self.pages[next as usize].previous = previous,
        }
        self.pages[page as usize].lane = None;
    }

    /// The write operation of a page.
    pub(super) fn op(&self, page: u32) -> Op {
        let write = &self.pages[page as usize];
        let (class, purpose, job) = match write.frontier {
            Frontier::User => (Class::Write, Purpose::HostData, Job::UserPage(page)),
            Frontier::Gc => (Class::GcWrite, Purpose::GcCopy, Job::GcPage(page)),
        };
        Op {
            kind: OpKind::Program,
            class,
            plane: write.plane,
            at: UNBOUND,
            frontier: Some(write.frontier),
            bytes: 0,
            purpose,
            job,
        }
    }
}

impl Placer<Job> for Space {
    #[inline]
    fn offer(&self, pool: &Blocks, plane: PlaneId, frontier: Frontier) -> Option<u32> {
        if frontier == Frontier::User && self.pace[plane.index()].is_some_and(|credit| credit <= 0) {
            return None;
        }
        self.room(pool, plane, frontier)
    }

    #[inline]
    fn bind(&mut self, pool: &mut Blocks, plane: PlaneId, frontier: Frontier) -> PageAddr {
        let stream = self.stream(frontier);
        self.programming[plane.index()][stream] += 1;
        if frontier == Frontier::User
            && let Some(credit) = &mut self.pace[plane.index()]
        {
            *credit -= i64::from(self.units_per_page) * UNIT_CREDIT;
        }
        let open = match self.frontiers[plane.index()][stream] {
            Some(open) => open,
            None => {
                let cold = frontier == Frontier::Gc && std::mem::take(&mut self.cold_to_worn[plane.index()]);
                let block =
                    if cold { pool.open_most_worn(plane) } else { pool.open(plane, self.dynamic_wear) };
                let block = block.expect("an offer was made, so a block is free");
                self.openings += 1;
                self.opened[block.index()] = self.openings;
                OpenBlock { block, next_page: 0 }
            }
        };
        let next_page = open.next_page + 1;
        self.frontiers[plane.index()][stream] =
            (next_page < self.pages_per_block).then_some(OpenBlock { next_page, ..open });
        PageAddr { block: open.block, page: open.next_page }
    }

    fn pull(&mut self, pool: &Blocks, planes: std::ops::Range<u32>) -> Option<Op> {
        if self.shared.iter().all(|(head, _)| *head == NONE) {
            return None;
        }
        // The planes of a station take turns, so that all hold about the same.
        let (first, count) = (planes.start, planes.end - planes.start);
        let turn = &mut self.turns[(first / count) as usize];
        let start = std::mem::replace(turn, (*turn + 1) % count);
        let plane = (0..count)
            .map(|i| PlaneId(first + (start + i) % count))
            .find(|&plane| self.offer(pool, plane, Frontier::User).is_some())?;
        self.pull_to(self.furthest_behind(pool, plane))
    }

    #[inline]
    fn pull_beside(&mut self, pool: &Blocks, plane: PlaneId, page: u32) -> Option<Op> {
        if self.room_beside(pool, plane) != Some(page) {
            return None;
        }
        self.pull_to(plane)
    }

    #[inline]
    fn seal(&mut self, job: Job) -> u32 {
        let (Job::UserPage(page) | Job::GcPage(page)) = job else { return self.unit_bytes };
        let write = &mut self.pages[page as usize];
        write.sealed = true;
        let (plane, bytes) = (write.plane, write.units.len() as u32 * self.unit_bytes);
        if let Job::UserPage(_) = job
            && *self.filling(plane) == Some(page)
        {
            *self.filling(plane) = None;
        }
        bytes
    }
}
