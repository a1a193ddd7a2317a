//! Write frontiers: which page is programmed next; reserves, pages that are being filled, and the shared queue of dynamic
//! allocation.
//!
//! Invariants: host data never take the blocks that GC needs to make progress; a block is closed (collectable) only when its last
//! program has ended.

use super::job::{Job, Op};
use crate::config::{Allocation, DeviceConfig};
use crate::flash::{Class, Frontier, OpKind, Owner, Placer, Purpose, UNBOUND};
use crate::geometry::{Geometry, PageAddr};
use crate::metrics::HandleCounts;
use flashweir_core::command::Handle;
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
    /// Buffer slot, for host data.
    pub(super) slot: u32,
    /// Whether it counts only by the record of a SHARE (share §4.5).
    pub(super) hidden: bool,
    /// Place of the source, for a GC survivor.
    pub(super) source: Ppa,
}

impl PageUnit {
    /// Owner in its out-of-band record.
    #[inline]
    pub(super) fn owner(&self) -> Owner {
        if self.hidden { Owner::Vpid(self.lpn.0) } else { Owner::Lpn(self.lpn) }
    }
}

/// The page that an owner names, and whether the unit counts only by the record of a SHARE; `None` for owners that are no pages.
#[inline]
pub(super) fn page_of(owner: Owner) -> Option<(Lpn, bool)> {
    match owner {
        Owner::Lpn(lpn) => Some((lpn, false)),
        Owner::Vpid(lpn) => Some((Lpn(lpn), true)),
        Owner::Pad | Owner::Seg { .. } | Owner::Meta => None,
    }
}

/// A page that is being filled or programmed.
#[derive(Clone, Debug)]
pub(super) struct PageWrite {
    pub(super) units: Vec<PageUnit>,
    /// Where it was programmed.
    pub(super) at: PageAddr,
    pub(super) plane: PlaneId,
    pub(super) frontier: Frontier,
    /// No further unit may join.
    pub(super) sealed: bool,
    /// It was released to the machine; otherwise it is held back until it is full.
    pub(super) queued: bool,
    /// A command waits for one of its units.
    pub(super) urgent: bool,
    /// A range flush waits for one of its units: the page goes before others (range-flush §3.4).
    pub(super) first: bool,
    /// Its lane in the shared queue, and its neighbours there.
    lane: Option<Lane>,
    previous: u32,
    next: u32,
}

/// A lane of the shared queue.
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

/// The write frontiers, and the pages that are being filled or programmed.
#[derive(Clone, Debug)]
pub(crate) struct Space {
    pub(super) victims: VictimPicker,
    /// By plane and stream.
    frontiers: Vec<Option<OpenBlock>>,
    /// Number of programs of each frontier that have a page and have not ended.
    programming: Vec<u32>,
    /// Number of the last opening of each block.
    opened: Vec<u64>,
    pub(super) openings: u64,
    pub(super) pages: Vec<PageWrite>,
    free_pages: Vec<u32>,
    /// The page of each handle and plane (or, under dynamic allocation, of the device) that units may still join.
    pub(super) filling: Vec<Option<u32>>,
    /// First and last page of each lane of the shared queue.
    shared: [(u32, u32); 2],
    /// Full or urgent pages that have not been released.
    pub(super) to_release: Vec<u32>,
    /// Number of pages of host data that were released and have not been programmed.
    pub(super) queued_pages: usize,
    /// The plane of each station that takes the next page of the shared queue.
    turns: Vec<u32>,
    planes_per_die: u32,
    pages_per_block: u32,
    units_per_page: u32,
    unit_bytes: u32,
    hot_cold: bool,
    handles: u8,
    /// Counters by handle, and the handle of each block that was opened for one; both empty without placement.
    pub(super) counts: Vec<HandleCounts>,
    placed: Vec<Option<Handle>>,
    reserve: u32,
    /// Free blocks of each plane that host data leave beside the reserve, because another namespace waits for them.
    pub(super) leave: Vec<u32>,
    dynamic_wear: bool,
    /// Planes whose host data are paced by GC, with the credit that they may write, in 1/1024 of a unit.
    pace: Vec<Option<i64>>,
    /// Planes whose next GC frontier takes the most worn block (static wear-levelling).
    pub(super) cold_to_worn: Vec<bool>,
}

impl Space {
    pub(super) fn new(config: &DeviceConfig, geometry: &Geometry, seed: u64) -> Self {
        let gc = &config.ftl.gc;
        let planes = geometry.planes() as usize;
        let handles = config.ftl.placement.handles;
        let fillings = if config.ftl.allocation == Allocation::Dynamic { 1 } else { planes };
        let streams = planes * (usize::from(handles) + 1);
        Self {
            victims: VictimPicker::new(gc.policy, gc.choices, seed),
            frontiers: vec![None; streams],
            programming: vec![0; streams],
            opened: vec![0; geometry.blocks() as usize],
            openings: 0,
            pages: Vec::new(),
            free_pages: Vec::new(),
            filling: vec![None; fillings * usize::from(handles)],
            shared: [(NONE, NONE); 2],
            to_release: Vec::new(),
            queued_pages: 0,
            turns: vec![0; geometry.stations() as usize],
            planes_per_die: geometry.planes_per_die(),
            pages_per_block: geometry.pages_per_block,
            units_per_page: geometry.units_per_page,
            unit_bytes: geometry.unit_bytes as u32,
            hot_cold: gc.hot_cold,
            handles,
            counts: vec![HandleCounts::default(); if handles > 1 { handles.into() } else { 0 }],
            placed: vec![None; if handles > 1 { geometry.blocks() as usize } else { 0 }],
            reserve: gc.reserve_blocks,
            leave: vec![0; planes],
            dynamic_wear: config.ftl.wear.dynamic,
            pace: vec![None; planes],
            cold_to_worn: vec![false; planes],
        }
    }

    /// Number of streams of a plane, each with an open block; one of them may have none.
    #[inline]
    pub(super) fn streams(&self) -> usize {
        usize::from(self.handles) + 1
    }

    #[inline]
    pub(super) fn stream(&self, frontier: Frontier) -> usize {
        match frontier {
            Frontier::User(handle) => handle.0.into(),
            Frontier::Gc if self.hot_cold => self.handles.into(),
            Frontier::Gc => 0,
        }
    }

    /// Where [`Self::frontiers`] and [`Self::programming`] have this frontier of the plane.
    #[inline]
    fn at(&self, plane: PlaneId, frontier: Frontier) -> usize {
        plane.index() * self.streams() + self.stream(frontier)
    }

    /// Whether hosts have more than one handle.
    #[inline]
    pub(super) fn has_placement(&self) -> bool {
        self.handles > 1
    }

    /// The frontiers of host data.
    pub(super) fn user_frontiers(&self) -> impl Iterator<Item = Frontier> + use<> {
        (0..self.handles).map(|handle| Frontier::User(Handle(handle)))
    }

    pub(super) fn all_frontiers(&self) -> impl Iterator<Item = Frontier> + use<> {
        self.user_frontiers().chain([Frontier::Gc])
    }

    /// Whether a program of this stream has a page and has not ended.
    pub(super) fn is_programming(&self, plane: PlaneId, stream: usize) -> bool {
        self.programming[plane.index() * self.streams() + stream] > 0
    }

    /// Number of the opening of an open block.
    #[inline]
    pub(super) fn opened(&self, block: BlockId) -> u64 {
        self.opened[block.index()]
    }

    /// The blocks that are open.
    pub(super) fn open_blocks(pool: &Blocks) -> impl Iterator<Item = BlockId> + '_ {
        pool.ids().filter(|block| pool.state(*block) == BlockState::Open)
    }

    /// From now on host data of the plane are paced by GC; see [`Self::earn`].
    pub(super) fn begin_pace(&mut self, plane: PlaneId) {
        self.pace[plane.index()].get_or_insert(0);
    }

    /// GC has made `units` survivors of a victim with `valid` valid units durable: host data may write the same share of the room
    /// that the victim gives back.
    pub(super) fn earn(&mut self, plane: PlaneId, units: u32, valid: u32) {
        if let Some(credit) = &mut self.pace[plane.index()] {
            let gain = i64::from(self.pages_per_block * self.units_per_page - valid);
            *credit += i64::from(units) * gain * UNIT_CREDIT / i64::from(valid.max(1));
        }
    }

    /// Ends the pacing of the plane: host data may take whatever room there is.
    pub(super) fn end_pace(&mut self, plane: PlaneId) {
        self.pace[plane.index()] = None;
    }

    /// A program that was bound to a page has ended.
    pub(super) fn program_ended(&mut self, plane: PlaneId, frontier: Frontier) {
        let at = self.at(plane, frontier);
        self.programming[at] -= 1;
    }

    fn of_plane(&mut self, plane: PlaneId) -> &mut [Option<OpenBlock>] {
        let streams = self.streams();
        &mut self.frontiers[plane.index() * streams..][..streams]
    }

    /// Counts a page that was programmed, by the handles of its units.
    pub(super) fn count(&mut self, pool: &Blocks, page: u32) {
        if self.counts.is_empty() {
            return;
        }
        let write = &self.pages[page as usize];
        if let Frontier::User(handle) = write.frontier {
            self.counts[usize::from(handle.0)].units_written += write.units.len() as u64;
            return;
        }
        for unit in &write.units {
            if let Some(handle) = self.placed[pool.block(unit.source).index()] {
                self.counts[usize::from(handle.0)].units_moved += 1;
            }
        }
    }

    /// Gives up the frontier of a block that failed; the caller closes the block.
    pub(super) fn abandon(&mut self, pool: &Blocks, block: BlockId) {
        for frontier in self.of_plane(pool.plane(block)) {
            if frontier.is_some_and(|open| open.block == block) {
                *frontier = None;
            }
        }
    }

    /// The next page of an open frontier.
    pub(super) fn next_page(&self, plane: PlaneId, frontier: Frontier) -> Option<u32> {
        self.frontiers[self.at(plane, frontier)].map(|open| open.next_page)
    }

    /// Closes all open blocks of a plane: after a recovery nothing is appended to old blocks.
    pub(super) fn close_frontiers(&mut self, pool: &mut Blocks, plane: PlaneId) {
        self.of_plane(plane).fill(None);
        // A block that was filled to its last page is no frontier any more, but still open.
        for block in pool.of_plane(plane).map(BlockId) {
            if pool.state(block) == BlockState::Open {
                pool.close(block);
            }
        }
    }

    /// Returns a new page write, which has not been released.
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

    /// Where [`Self::filling`] has the page of `frontier` that units of `plane` may join.
    #[inline]
    pub(super) fn filling_at(&self, plane: PlaneId, frontier: Frontier) -> usize {
        let handles = usize::from(self.handles);
        let first = if self.filling.len() == handles { 0 } else { plane.index() * handles };
        first + self.stream(frontier)
    }

    /// From now on no unit may join a page of host data.
    #[inline]
    pub(super) fn close_page(&mut self, page: u32) {
        let PageWrite { plane, frontier, .. } = self.pages[page as usize];
        let at = self.filling_at(plane, frontier);
        self.filling[at].take_if(|filling| *filling == page);
    }

    /// Releases pages that were held back until they are full.
    pub(super) fn release_held(&mut self) {
        for page in self.filling.iter().flatten().copied() {
            self.pages[page as usize].urgent = true;
            self.to_release.push(page);
        }
    }

    /// Takes all pages out of the shared queue, if allocation is `dynamic`.
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

    /// A range flush waits for a page: if it is in the shared queue, moves it before those for which none waits.
    pub(super) fn promote_shared(&mut self, page: u32) {
        if self.pages[page as usize].lane == Some(Lane::Rest) {
            self.unlink_shared(page);
            self.push_shared(page);
        }
    }

    /// The page that a frontier would take next if GC did not pace it.
    #[inline]
    fn room(&self, pool: &Blocks, plane: PlaneId, frontier: Frontier) -> Option<u32> {
        let free = pool.free_count(plane);
        match self.frontiers[self.at(plane, frontier)] {
            // On a frontier that GC shares, host data leave the rest to GC when no block is free.
            Some(_) if !self.hot_cold && frontier != Frontier::Gc && free == 0 => None,
            Some(open) => Some(open.next_page),
            None => {
                let keep =
                    if frontier == Frontier::Gc { 0 } else { self.reserve + self.leave[plane.index()] };
                (free > keep).then_some(0)
            }
        }
    }

    /// The page that a plane would take next while another plane of its die may write. Planes earn their credit at different
    /// instants; so that they can write together, a plane may owe one page to its GC.
    #[inline]
    fn room_beside(&self, pool: &Blocks, plane: PlaneId, frontier: Frontier) -> Option<u32> {
        let debt_max = i64::from(self.units_per_page) * UNIT_CREDIT;
        if self.pace[plane.index()].is_some_and(|credit| credit <= -debt_max) {
            return None;
        }
        self.room(pool, plane, frontier)
    }

    /// Assigns the first page of the shared queue to `plane`.
    fn pull_to(&mut self, plane: PlaneId) -> Option<Op> {
        let page = self.pop_shared()?;
        self.pages[page as usize].plane = plane;
        Some(self.op(page))
    }

    /// Of the planes of a die that take host data, the one whose frontier has to advance furthest to reach the others; `plane`,
    /// which must take host data, if all frontiers are at the same page. Only pages with the same number make a multi-plane
    /// program, so a plane that has fallen behind (a page came alone, a block failed, GC held it up) gets the next page.
    #[inline]
    fn furthest_behind(&self, pool: &Blocks, plane: PlaneId, frontier: Frontier) -> PlaneId {
        let (per_die, pages) = (self.planes_per_die, self.pages_per_block);
        if per_die == 1 {
            return plane;
        }
        let die = plane.0 - plane.0 % per_die;
        let others = || (die..die + per_die).map(PlaneId);
        let Some(own) = self.room(pool, plane, frontier) else { return plane };
        if others().all(|other| self.room_beside(pool, other, frontier).is_none_or(|page| page == own)) {
            return plane;
        }
        // Blocks follow one another, so the pages form a circle: the page with the widest gap before it is that of the plane that
        // is last.
        let offers = || others().filter_map(|other| Some((other, self.room_beside(pool, other, frontier)?)));
        let gap_before = |page: u32| {
            let gaps = offers().map(|(_, other)| (page + pages - other - 1) % pages + 1);
            gaps.min().unwrap_or(pages)
        };
        let last = offers().max_by_key(|&(other, page)| (gap_before(page), std::cmp::Reverse(other)));
        last.map_or(plane, |(last, _)| last)
    }

    fn first_shared(&self) -> Option<u32> {
        self.shared.iter().map(|(head, _)| *head).find(|head| *head != NONE)
    }

    /// The frontier of the first page of the shared queue; that of the default handle if there is none.
    #[inline]
    pub(super) fn next_shared(&self) -> Frontier {
        self.first_shared().map_or(Frontier::USER, |page| self.pages[page as usize].frontier)
    }

    /// The frontier of the first page of the shared queue, if that belongs to the stream.
    pub(super) fn first_shared_of(&self, stream: usize) -> Option<Frontier> {
        let frontier = self.pages[self.first_shared()? as usize].frontier;
        (self.stream(frontier) == stream).then_some(frontier)
    }

    pub(super) fn is_shared_empty(&self) -> bool {
        self.first_shared().is_none()
    }

    fn pop_shared(&mut self) -> Option<u32> {
        let page = self.first_shared()?;
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

    /// The program operation of a page.
    pub(super) fn op(&self, page: u32) -> Op {
        let write = &self.pages[page as usize];
        let (class, purpose, job) = match write.frontier {
            Frontier::User(_) => (Class::Write, Purpose::HostData, Job::UserPage(page)),
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
        if frontier != Frontier::Gc && self.pace[plane.index()].is_some_and(|credit| credit <= 0) {
            return None;
        }
        self.room(pool, plane, frontier)
    }

    #[inline]
    fn bind(&mut self, pool: &mut Blocks, plane: PlaneId, frontier: Frontier) -> PageAddr {
        let at = self.at(plane, frontier);
        self.programming[at] += 1;
        if frontier != Frontier::Gc
            && let Some(credit) = &mut self.pace[plane.index()]
        {
            *credit -= i64::from(self.units_per_page) * UNIT_CREDIT;
        }
        let open = match self.frontiers[at] {
            Some(open) => open,
            None => {
                let cold = frontier == Frontier::Gc && std::mem::take(&mut self.cold_to_worn[plane.index()]);
                let block =
                    if cold { pool.open_most_worn(plane) } else { pool.open(plane, self.dynamic_wear) };
                let block = block.expect("an offer was made, so a block is free");
                self.openings += 1;
                self.opened[block.index()] = self.openings;
                if let Some(placed) = self.placed.get_mut(block.index()) {
                    *placed = match frontier {
                        Frontier::User(handle) => Some(handle),
                        Frontier::Gc => None,
                    };
                }
                OpenBlock { block, next_page: 0 }
            }
        };
        let next_page = open.next_page + 1;
        self.frontiers[at] = (next_page < self.pages_per_block).then_some(OpenBlock { next_page, ..open });
        PageAddr { block: open.block, page: open.next_page }
    }

    fn pull(&mut self, pool: &Blocks, planes: std::ops::Range<u32>) -> Option<Op> {
        let frontier = self.pages[self.first_shared()? as usize].frontier;
        // The planes of a station take turns, so that all hold about the same.
        let (first, count) = (planes.start, planes.end - planes.start);
        let turn = &mut self.turns[(first / count) as usize];
        let start = std::mem::replace(turn, (*turn + 1) % count);
        let plane = (0..count)
            .map(|i| PlaneId(first + (start + i) % count))
            .find(|&plane| self.offer(pool, plane, frontier).is_some())?;
        self.pull_to(self.furthest_behind(pool, plane, frontier))
    }

    #[inline]
    fn pull_beside(&mut self, pool: &Blocks, plane: PlaneId, page: u32) -> Option<Op> {
        if self.room_beside(pool, plane, self.next_shared()) != Some(page) {
            return None;
        }
        self.pull_to(plane)
    }

    #[inline]
    fn seal(&mut self, job: Job) -> u32 {
        let (Job::UserPage(page) | Job::GcPage(page)) = job else { return self.unit_bytes };
        let write = &mut self.pages[page as usize];
        write.sealed = true;
        let bytes = write.units.len() as u32 * self.unit_bytes;
        if let Job::UserPage(_) = job {
            self.close_page(page);
        }
        bytes
    }
}
