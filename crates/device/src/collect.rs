//! Garbage collection and wear-levelling, one plane at a time.
//!
//! A victim's valid units are read, join pages of the plane's collection frontier, and when all copies are
//! durable (and nothing in the victim is pinned by a deallocation that is not logged) the victim is erased.
//!
//! Invariants: a copy replaces its source only if the source is still what the map names; a block is erased
//! only when none of its units is valid.

use crate::config::Allocation;
use crate::device::{Device, Effect};
use crate::geometry::PageAddr;
use crate::job::{Job, Op as NandOp};
use crate::nand::{Class, Frontier, OpKind, Placer, Purpose};
use crate::planted::PlantedBug;
use crate::space::PageUnit;
use crate::trace::Traced;
use flashweir_core::index::Idx;
use flashweir_core::{Instant, Lpn, Ppa};
use flashweir_ftl::{BlockId, BlockState, MapWord, PlaneId, VictimPicker};

/// Reads of one victim that are under way at the same time.
const READS_MAX: u32 = 4;

/// Collections of a plane for each one that static wear-levelling may choose: moving cold data frees nothing.
const WEAR_EVERY: u32 = 8;

/// The collection of one plane.
#[derive(Clone, Debug, Default)]
pub(crate) struct Collection {
    victim: Option<BlockId>,
    /// Next page of the victim to be looked at.
    page: u32,
    reads: u32,
    /// Survivors on their way.
    moves: u32,
    filling: Option<u32>,
    erasing: bool,
    drained: bool,
    /// Valid units of the victim when it was chosen.
    valid: u32,
    /// The victim is erased once its deallocations are in the log.
    pub(crate) waits_for_log: bool,
}

impl Collection {
    /// Whether all survivors of the victim are queued or durable.
    pub(crate) fn is_drained(&self) -> bool {
        self.drained
    }

    /// Survivors that are not durable, for audits.
    pub(crate) fn moves(&self) -> u32 {
        self.moves
    }
}

impl Device {
    /// Begins a collection in `plane` if it is short of blocks, worn unevenly, or has a failing block.
    pub(crate) fn collect_check(&mut self, now: Instant, plane: PlaneId, effects: &mut Vec<Effect>) {
        if self.collections[plane.index()].victim.is_some() {
            return;
        }
        self.nand.trace.touch(plane);
        let short = self.space.blocks.free_count(plane) < self.config.ftl.gc.start_below_blocks;
        let failing = self.failing.iter().position(|block| {
            self.geometry.plane_of(*block) == plane && self.space.blocks.state(*block) == BlockState::Closed
        });
        let victim = match failing {
            Some(at) => Some(self.failing[at]),
            None if short => self.coldest(plane).or_else(|| self.gainful(plane)),
            None => None,
        };
        match victim {
            Some(victim) => {
                self.space.blocks.collect(victim);
                self.metrics.gc_victims += 1;
                let valid = self.space.blocks.valid(victim);
                self.nand.trace.record(|| Traced::Victim { plane, block: victim, valid });
                let gains = valid > 0 && valid < self.geometry.units_per_block();
                if self.config.ftl.gc.preemptible && short && gains {
                    self.space.begin_pace(plane);
                } else {
                    self.space.end_pace(plane);
                }
                self.collections[plane.index()].valid = valid;
                self.collections_since_wear[plane.index()] += 1;
                let collection = &mut self.collections[plane.index()];
                collection.victim = Some(victim);
                collection.page = 0;
                collection.drained = false;
                self.collect_step(now, plane, effects);
            }
            None => {
                self.starved[plane.index()] = short;
                self.space.end_pace(plane);
            }
        }
    }

    /// A unit is not needed any more, because something newer than it is durable.
    pub(crate) fn outdate(&mut self, ppa: Ppa) {
        if self.keep_for_count(ppa) {
            return;
        }
        self.media.give_up_content(ppa);
        self.invalidate(ppa);
    }

    /// A place is not needed any more; a plane that waited for something to collect looks again.
    pub(crate) fn invalidate(&mut self, ppa: Ppa) {
        self.space.blocks.set_invalid(ppa);
        let plane = self.geometry.plane_of(self.space.blocks.block(ppa));
        if std::mem::take(&mut self.starved[plane.index()]) {
            self.recheck.push(plane);
        }
    }

    /// Lets planes look again in which a unit became invalid.
    pub(crate) fn collect_recheck(&mut self, now: Instant, effects: &mut Vec<Effect>) {
        while let Some(plane) = self.recheck.pop() {
            self.collect_check(now, plane, effects);
        }
    }

    /// A victim whose collection frees more than it uses: the policy's choice, or else the emptiest block. A
    /// plane that holds more than its share has none and waits until something in it becomes invalid.
    pub(crate) fn gainful(&mut self, plane: PlaneId) -> Option<BlockId> {
        let pages = self.geometry.pages_per_block - self.collection_waste_pages;
        let valid_max = pages * self.geometry.units_per_page - 1;
        let blocks = &self.space.blocks;
        let victim = self.space.victims.pick(blocks, plane)?;
        let victim =
            if blocks.valid(victim) <= valid_max { victim } else { VictimPicker::emptiest(blocks, plane)? };
        (blocks.valid(victim) <= valid_max).then_some(victim)
    }

    /// The least worn block, if static wear-levelling wants it moved.
    fn coldest(&mut self, plane: PlaneId) -> Option<BlockId> {
        let threshold = self.config.ftl.wear.static_threshold;
        if threshold == 0 || self.collections_since_wear[plane.index()] < WEAR_EVERY {
            return None;
        }
        let blocks = &self.space.blocks;
        let mut most = 0;
        let mut least: Option<(u32, BlockId)> = None;
        for block in blocks.of_plane(plane).map(BlockId) {
            let erases = blocks.erases(block);
            match blocks.state(block) {
                BlockState::Free => most = most.max(erases),
                BlockState::Closed if least.is_none_or(|(l, _)| erases < l) => least = Some((erases, block)),
                _ => {}
            }
        }
        let (erases, block) = least?;
        if most.saturating_sub(erases) <= threshold {
            return None;
        }
        self.metrics.wear_victims += 1;
        self.collections_since_wear[plane.index()] = 0;
        self.space.cold_to_worn[plane.index()] = true;
        Some(block)
    }

    /// Does the next part of a plane's collection.
    pub(crate) fn collect_step(&mut self, now: Instant, plane: PlaneId, effects: &mut Vec<Effect>) {
        let Some(victim) = self.collections[plane.index()].victim else { return };
        let pages = self.media.pages_written(victim);
        while self.collections[plane.index()].page < pages
            && self.collections[plane.index()].reads < READS_MAX
        {
            let at = PageAddr { block: victim, page: self.collections[plane.index()].page };
            self.collections[plane.index()].page += 1;
            let units = self.valid_units(at).count() as u32;
            if units > 0 {
                self.collections[plane.index()].reads += 1;
                self.metrics.gc_pages_read += 1;
                let station = self.nand.push(NandOp {
                    kind: OpKind::Read,
                    class: Class::GcRead,
                    plane,
                    at,
                    frontier: None,
                    bytes: units * self.geometry.unit_bytes as u32,
                    purpose: Purpose::GcRead,
                    job: Job::GcRead,
                });
                self.start(now, station, effects);
            }
        }
        let collection = &mut self.collections[plane.index()];
        if collection.page < pages || collection.reads > 0 || collection.erasing {
            return;
        }
        collection.drained = true;
        if let Some(page) = collection.filling.take() {
            self.queue_survivors(now, page, effects);
        }
        if self.collections[plane.index()].moves > 0 {
            self.complete_wordline(plane, self.space.stream(Frontier::Gc), false);
            self.start(now, self.geometry.station(plane), effects);
            return;
        }
        let units = u64::from(self.geometry.units_per_block());
        let first = u64::from(victim.0) * units;
        if self.orders.any_kept(first..first + units) {
            // Meanwhile recovery needs to count what nobody needed when its page was read.
            let collection = &mut self.collections[plane.index()];
            (collection.page, collection.drained) = (0, false);
            self.collect_step(now, plane, effects);
            return;
        }
        if self.needs_record(victim) || self.space.blocks.valid(victim) > 0 {
            self.collections[plane.index()].waits_for_log = true;
            self.log.want();
            self.pump_log(now, effects);
            return;
        }
        self.collections[plane.index()].erasing = true;
        let at = PageAddr { block: victim, page: 0 };
        let station = self.nand.push(NandOp {
            kind: OpKind::Erase,
            class: Class::Erase,
            plane,
            at,
            frontier: None,
            bytes: 0,
            purpose: Purpose::GcErase,
            job: Job::GcErase,
        });
        self.start(now, station, effects);
    }

    fn valid_units(&self, at: PageAddr) -> impl Iterator<Item = Ppa> + '_ {
        (0..self.geometry.units_per_page)
            .map(move |unit| self.geometry.ppa(at, unit))
            .filter(|ppa| self.space.blocks.is_valid(*ppa))
    }

    pub(crate) fn gc_read_done(&mut self, now: Instant, op: &NandOp, effects: &mut Vec<Effect>) {
        self.collections[op.plane.index()].reads -= 1;
        for ppa in self.valid_units(op.at).collect::<Vec<_>>() {
            let Some((crate::media::Owner::Lpn(lpn), seq)) = self.media.oob(ppa) else { continue };
            if !self.is_mapped_to(lpn, ppa) && !self.orders.is_kept(ppa) {
                continue;
            }
            let seq = if self.has_planted(PlantedBug::CopyRenumbered) { self.next_seq() } else { seq };
            self.collections[op.plane.index()].moves += 1;
            let page = match self.collections[op.plane.index()].filling {
                Some(page) => page,
                None => self.space.new_page(op.plane, Frontier::Gc),
            };
            let units = &mut self.space.pages[page as usize].units;
            units.push(PageUnit { lpn, seq, slot: 0, source: ppa });
            let full = units.len() == self.geometry.units_per_page as usize;
            self.collections[op.plane.index()].filling = (!full).then_some(page);
            if full {
                self.queue_survivors(now, page, effects);
            }
        }
        self.collect_step(now, op.plane, effects);
    }

    fn queue_survivors(&mut self, now: Instant, page: u32, effects: &mut Vec<Effect>) {
        let station = self.nand.push(self.space.op(page));
        self.start(now, station, effects);
    }

    /// Whether `ppa` is the durable place of `lpn`.
    pub(crate) fn is_mapped_to(&self, lpn: Lpn, ppa: Ppa) -> bool {
        let mut word = self.map.get(lpn);
        while let MapWord::Cached { slot, generation } = word {
            word = self.buffer.named(slot, generation).under;
        }
        word == MapWord::Direct(ppa)
    }

    /// A copy is durable: it takes its source's place unless that was superseded meanwhile. The source keeps its content:
    /// it is the same version, so after a cut recovery may choose either of the two.
    pub(crate) fn relocate(&mut self, lpn: Lpn, source: Ppa, copy: Ppa) {
        let moved = self.move_kept(source, copy)
            || self.replace_word(lpn, MapWord::Direct(source), MapWord::Direct(copy));
        if moved {
            self.invalidate(source);
            self.space.blocks.set_valid(copy);
        }
    }

    pub(crate) fn survivors_durable(
        &mut self,
        now: Instant,
        plane: PlaneId,
        units: u32,
        effects: &mut Vec<Effect>,
    ) {
        self.collections[plane.index()].moves -= units;
        self.space.earn(plane, units, self.collections[plane.index()].valid);
        self.collect_step(now, plane, effects);
    }

    pub(crate) fn gc_erase_done(&mut self, now: Instant, op: &NandOp, effects: &mut Vec<Effect>) {
        let (block, plane) = (op.at.block, op.plane);
        self.collections[plane.index()] = Collection::default();
        let endurance = self.config.faults.endurance;
        let worn_out = endurance > 0 && self.media.erases(block) >= endurance;
        let fails = worn_out || self.random.chance(self.config.faults.erase_fail);
        let failed_before = self.failing.iter().position(|b| *b == block);
        if fails || failed_before.is_some() {
            if let Some(at) = failed_before {
                self.failing.swap_remove(at);
            } else {
                self.metrics.erase_failures += 1;
            }
            self.media.mark_bad(block);
            self.space.blocks.retire(block);
            self.metrics.grown_bad_blocks += 1;
            self.bad_blocks_of_plane[plane.index()] += 1;
            self.check_spare(plane);
        } else {
            self.media.erase(block);
            self.metrics.erases += 1;
            self.space.blocks.release(block);
        }
        self.nand.wake(self.geometry.station(plane));
        self.collect_check(now, plane, effects);
        self.destage(now, effects);
        self.admit(now, effects);
    }

    /// A plane that lost too many blocks cannot promise room for its share: the device turns read-only while
    /// it can still write what it has accepted.
    pub(crate) fn check_spare(&mut self, plane: PlaneId) {
        let share = self.geometry.user_units / u64::from(self.geometry.planes());
        let data = share.div_ceil(u64::from(self.geometry.units_per_block())) as u32;
        let meta = (2 * self.geometry.meta_blocks_per_region).div_ceil(self.geometry.planes());
        let usable = self.geometry.blocks_per_plane - self.bad_blocks_of_plane[plane.index()];
        let gc = &self.config.ftl.gc;
        if usable < data + meta + gc.reserve_blocks + 1 + u32::from(gc.hot_cold) {
            self.read_only = true;
        }
    }

    /// After an operation in `plane` of a device whose blocks may fail: if the plane can neither write nor
    /// make room, what waits for it fails, and the device takes no more writes.
    pub(crate) fn check_stuck(&mut self, now: Instant, plane: PlaneId, effects: &mut Vec<Effect>) {
        let dynamic = self.config.ftl.allocation == Allocation::Dynamic;
        let station = self.geometry.station(plane).0;
        let planes = self.geometry.planes_per_station();
        for plane in (station * planes..(station + 1) * planes).map(PlaneId) {
            self.give_up(now, plane, dynamic, effects);
        }
    }

    fn give_up(&mut self, now: Instant, plane: PlaneId, dynamic: bool, effects: &mut Vec<Effect>) {
        let stuck = match dynamic {
            false => self.is_stuck(plane),
            true => (0..self.geometry.planes()).all(|plane| self.is_stuck(PlaneId(plane))),
        };
        if !stuck || self.dead_planes[plane.index()] {
            return;
        }
        self.read_only = true;
        for page in self.space.drop_waiting(dynamic) {
            self.fail_page(page, effects);
        }
        let is_page = |job| matches!(job, Job::UserPage(_));
        for op in self.nand.drop_waiting_programs(plane, is_page) {
            if let Job::UserPage(page) = op.job {
                self.fail_page(page, effects);
            }
        }
        match dynamic {
            false => self.dead_planes[plane.index()] = true,
            true => self.dead_planes.fill(true),
        }
        self.admit(now, effects);
    }

    /// Whether nothing can be written to the plane and nothing under way changes that.
    fn is_stuck(&self, plane: PlaneId) -> bool {
        let collection = &self.collections[plane.index()];
        let no_room = |frontier| self.space.offer(plane, frontier).is_none();
        let survivors_wait = self.nand.has_waiting_program(plane, Frontier::Gc) && no_room(Frontier::Gc);
        let nothing_to_collect = collection.victim.is_none() && no_room(Frontier::User);
        !collection.erasing
            && (survivors_wait || nothing_to_collect)
            && !self.nand.is_programming(self.geometry.station(plane))
    }
}
