//! Garbage collection and wear-levelling, one plane at a time.
//!
//! A victim's valid units are read and join pages of the plane's GC frontier; when all copies are durable (and nothing in the
//! victim is pinned by a deallocation that is not logged) the victim is erased.
//!
//! Invariants: a copy replaces its source only if the map still names the source; a block is erased only when none of its units is
//! valid.

use super::buffer::Place;
use super::collection::Collection;
use super::frontier::{PageUnit, page_of};
use super::ftl::{Cx, PageFtl};
use super::job::{Job, Op as NandOp};
use super::work::Due;
use crate::flash::trace::Traced;
use crate::flash::{Class, Frontier, OpKind, Owner, Purpose};
use crate::geometry::PageAddr;
use crate::planted::PlantedBug;
use flashweir_core::index::Idx;
use flashweir_core::{Lpn, Ppa};
use flashweir_ftl::recovery::ContentId;
use flashweir_ftl::{BlockId, BlockState, MapWord, PlaneId, VictimPicker};

/// Most reads of one victim that are under way at the same time.
const READS_MAX: u32 = 4;

/// Collections of a plane before static wear-levelling may choose a victim again: moving cold data frees nothing.
const WEAR_EVERY: u32 = 8;

impl PageFtl {
    /// Begins GC in `plane` if it is short of blocks, worn unevenly, or has a failing block.
    pub(super) fn collect_check(&mut self, cx: &mut Cx, plane: PlaneId) {
        if self.collections[plane.index()].victim.is_some() {
            return;
        }
        cx.trace().touch(plane);
        if self.is_put_off(plane) {
            return;
        }
        self.begin_collection(cx, plane);
        if self.is_no_longer_put_off(plane) {
            // Programs that waited for the pace of this plane were not woken by anything else.
            cx.flash.machine.wake(cx.geometry.station(plane));
            cx.start(cx.geometry.station(plane), &mut self.space);
            if self.may_get_stuck(cx) {
                self.work.check_stuck(plane);
            }
        }
    }

    fn begin_collection(&mut self, cx: &mut Cx, plane: PlaneId) {
        let short = cx.flash.blocks.free_count(plane) < cx.config.ftl.gc.start_below_blocks;
        let failing = self.failing.iter().position(|block| {
            cx.geometry.plane_of(*block) == plane && cx.flash.blocks.state(*block) == BlockState::Closed
        });
        let victim = match failing {
            Some(at) => Some(self.failing[at]),
            None if short => self.coldest(cx, plane).or_else(|| self.gainful(cx, plane)),
            None => None,
        };
        match victim {
            Some(victim) => {
                cx.flash.blocks.collect(victim);
                cx.metrics.gc_victims += 1;
                let valid = cx.flash.blocks.valid(victim);
                self.note_causes(cx, victim, valid);
                cx.trace().record(|| Traced::Victim { plane, block: victim, valid });
                let gains = valid > 0 && valid < cx.geometry.units_per_block();
                if cx.config.ftl.gc.preemptible && short && gains {
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
                self.collect_step(cx, plane);
            }
            None => {
                if short && !self.log.pins.is_empty() {
                    // What deallocations gave up may be all that there is to collect.
                    self.want_log();
                }
                self.starved[plane.index()] = short;
                self.space.end_pace(plane);
            }
        }
    }

    /// Counts the moves out of a victim by what made the rest of it stale: TRIM in part, and for the others newer versions of the same
    /// pages. The first ones are the price of blocks that mix data of different lives, the others that of writing in place
    /// (append-segments §7.4).
    fn note_causes(&mut self, cx: &mut Cx, victim: BlockId, valid: u32) {
        let written = cx.flash.media.pages_written(victim) * cx.geometry.units_per_page;
        let stale = u64::from(written.saturating_sub(valid));
        let trimmed = u64::from(self.trimmed[victim.index()]).min(stale);
        let moves = (u64::from(valid) * trimmed).checked_div(stale).unwrap_or(0);
        cx.metrics.gc_moves_after_trims += moves;
    }

    /// A unit is not needed any more, because something newer is durable.
    pub(super) fn outdate(&mut self, cx: &mut Cx, ppa: Ppa) {
        if self.keep_for_count(cx, ppa) {
            return;
        }
        cx.flash.media.give_up_content(ppa);
        self.invalidate(cx, ppa);
    }

    /// A place is not needed any more; a plane that had no victim looks for one again.
    pub(super) fn invalidate(&mut self, cx: &mut Cx, ppa: Ppa) {
        cx.flash.blocks.set_invalid(ppa);
        let plane = cx.geometry.plane_of(cx.flash.blocks.block(ppa));
        if std::mem::take(&mut self.starved[plane.index()]) {
            self.work.collect(plane);
        }
    }

    /// A victim whose collection frees more than it uses: the policy's choice, or else the emptiest block. A plane that holds more
    /// than its share has none, and waits until something in it becomes invalid.
    pub(super) fn gainful(&mut self, cx: &mut Cx, plane: PlaneId) -> Option<BlockId> {
        let valid_max = self.valid_max(cx);
        let blocks = &cx.flash.blocks;
        let victim = self.space.victims.pick(blocks, plane)?;
        let victim =
            if blocks.valid(victim) <= valid_max { victim } else { VictimPicker::emptiest(blocks, plane)? };
        (blocks.valid(victim) <= valid_max).then_some(victim)
    }

    /// Most valid units of a victim whose collection gains room.
    pub(super) fn valid_max(&self, cx: &Cx) -> u32 {
        let pages = cx.geometry.pages_per_block - self.collection_waste_pages;
        pages * cx.geometry.units_per_page - 1
    }

    /// The least worn block, if static wear-levelling wants to move its data.
    fn coldest(&mut self, cx: &mut Cx, plane: PlaneId) -> Option<BlockId> {
        let threshold = cx.config.ftl.wear.static_threshold;
        if threshold == 0 || self.collections_since_wear[plane.index()] < WEAR_EVERY {
            return None;
        }
        let blocks = &cx.flash.blocks;
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
        cx.metrics.wear_victims += 1;
        self.collections_since_wear[plane.index()] = 0;
        self.space.cold_to_worn[plane.index()] = true;
        Some(block)
    }

    /// Does the next part of a plane's collection.
    pub(super) fn collect_step(&mut self, cx: &mut Cx, plane: PlaneId) {
        let Some(victim) = self.collections[plane.index()].victim else { return };
        let pages = cx.flash.media.pages_written(victim);
        while self.collections[plane.index()].page < pages
            && self.collections[plane.index()].reads < READS_MAX
        {
            let at = PageAddr { block: victim, page: self.collections[plane.index()].page };
            self.collections[plane.index()].page += 1;
            let units = Self::valid_units(cx, at).count() as u32;
            if units > 0 {
                self.collections[plane.index()].reads += 1;
                cx.metrics.gc_pages_read += 1;
                let op = cx.given(
                    (OpKind::Read, Class::GcRead),
                    at,
                    units * cx.geometry.unit_bytes as u32,
                    (Purpose::GcRead, Job::GcRead),
                );
                cx.push(op, &mut self.space);
            }
        }
        let collection = &mut self.collections[plane.index()];
        if collection.page < pages || collection.reads > 0 || collection.erasing {
            return;
        }
        collection.drained = true;
        if let Some(page) = collection.filling.take() {
            self.queue_survivors(cx, page);
        }
        if self.collections[plane.index()].moves > 0 {
            self.complete_wordline(cx, plane, self.space.stream(Frontier::Gc), false);
            cx.start(cx.geometry.station(plane), &mut self.space);
            return;
        }
        let units = u64::from(cx.geometry.units_per_block());
        let first = u64::from(victim.0) * units;
        if self.orders.any_kept(first..first + units) || self.any_mapped(cx, victim) {
            // Units that were not needed when their page was read are needed now, for recovery's count or by a SHARE, so the victim
            // is read again.
            let collection = &mut self.collections[plane.index()];
            (collection.page, collection.drained) = (0, false);
            self.collect_step(cx, plane);
            return;
        }
        if self.needs_record(cx, victim) || cx.flash.blocks.valid(victim) > 0 {
            self.collections[plane.index()].waits_for_log = true;
            self.want_log();
            self.work.set(Due::Log);
            return;
        }
        self.collections[plane.index()].erasing = true;
        let at = PageAddr { block: victim, page: 0 };
        let op = cx.given((OpKind::Erase, Class::Erase), at, 0, (Purpose::GcErase, Job::GcErase));
        cx.push(op, &mut self.space);
    }

    /// Whether a valid unit of a drained victim is needed after all: a copy that a SHARE named since, or a shared unit whose copy was
    /// for one owner alone and that got another one. Only with SHARE.
    fn any_mapped(&self, cx: &Cx, victim: BlockId) -> bool {
        if cx.config.ftl.share.pages == 0 || cx.flash.blocks.valid(victim) == 0 {
            return false;
        }
        let pages = cx.flash.media.pages_written(victim);
        let mut units = (0..pages).flat_map(|page| Self::valid_units(cx, PageAddr { block: victim, page }));
        units.any(|ppa| self.survivor_at(cx, ppa).is_some())
    }

    fn valid_units(cx: &Cx, at: PageAddr) -> impl Iterator<Item = Ppa> + '_ {
        (0..cx.geometry.units_per_page)
            .map(move |unit| cx.geometry.ppa(at, unit))
            .filter(|ppa| cx.flash.blocks.is_valid(*ppa))
    }

    pub(super) fn gc_read_done(&mut self, cx: &mut Cx, op: &NandOp) {
        self.collections[op.plane.index()].reads -= 1;
        for ppa in Self::valid_units(cx, op.at).collect::<Vec<_>>() {
            let Some((lpn, seq, hidden)) = self.survivor_at(cx, ppa) else { continue };
            let seq = if cx.has_planted(PlantedBug::CopyRenumbered) { cx.next_seq() } else { seq };
            self.collections[op.plane.index()].moves += 1;
            let page = match self.collections[op.plane.index()].filling {
                Some(page) => page,
                None => self.space.new_page(op.plane, Frontier::Gc),
            };
            let units = &mut self.space.pages[page as usize].units;
            units.push(PageUnit { lpn, seq, slot: 0, hidden, source: ppa });
            let full = units.len() == cx.geometry.units_per_page as usize;
            self.collections[op.plane.index()].filling = (!full).then_some(page);
            if full {
                self.queue_survivors(cx, page);
            }
        }
        self.work.collect_step(op.plane);
    }

    /// What the out-of-band record of a copy of this unit says, if the unit is needed: the same as the unit's own, unless the unit
    /// has come to one page alone and nothing else can name it any more. Then the copy is that page's own version (share §3.7).
    fn survivor_at(&self, cx: &Cx, ppa: Ppa) -> Option<(Lpn, u64, bool)> {
        let (owner, seq) = cx.flash.media.oob(ppa)?;
        let (lpn, hidden) = page_of(owner)?;
        let Some(vpid) = self.virtual_pages.at(ppa) else {
            let is_copy = hidden && self.copy_at(ppa);
            let needed = is_copy || self.is_mapped_to(lpn, ppa) || self.orders.is_kept(ppa);
            return needed.then_some((lpn, seq, hidden));
        };
        // A copy that a SHARE made for this page is named by its own identity in the record of the SHARE.
        let is_named = |only: Lpn, since| (owner, seq) == (Owner::Vpid(only.0), since);
        match self.virtual_pages.page(vpid).only_owner() {
            Some((only, since)) if self.may_collapse(cx, vpid, only, since) && !is_named(only, since) => {
                Some((only, since, false))
            }
            _ => Some((lpn, seq, hidden)),
        }
    }

    /// Whether a shared unit belongs to this page alone, the record of that is durable, and recovery does not count the unit as a
    /// member of an epoch.
    fn may_collapse(&self, cx: &Cx, vpid: u64, only: Lpn, since: u64) -> bool {
        let place = self.virtual_pages.place(vpid);
        !self.orders.counts_member(cx.flash.media.member(place), cx.flash.media.oob(place))
            && self.virtual_pages.page(vpid).only_owner() == Some((only, since))
            && since <= self.log.durable_changes()
            && self.buffer.bottom(self.map.get(only)) == Place::Shared(vpid)
    }

    fn queue_survivors(&mut self, cx: &mut Cx, page: u32) {
        cx.push(self.space.op(page), &mut self.space);
    }

    /// Whether `ppa` is the durable place of `lpn`.
    pub(super) fn is_mapped_to(&self, lpn: Lpn, ppa: Ppa) -> bool {
        self.buffer.bottom(self.map.get(lpn)) == Place::Unit(ppa)
    }

    /// A copy is durable: it takes its source's place unless the source was superseded meanwhile. The source keeps its content: it
    /// is the same version, so after a power cut recovery may choose either of the two.
    pub(super) fn relocate(&mut self, cx: &mut Cx, unit: &PageUnit, copy: Ppa) {
        let (lpn, source) = (unit.lpn, unit.source);
        if let Some(vpid) = self.virtual_pages.at(source) {
            return self.relocate_shared(cx, vpid, unit, copy);
        }
        if unit.hidden && self.copy_at(source) {
            self.copy_moved(source, copy);
            self.invalidate(cx, source);
            cx.flash.blocks.set_valid(copy);
            return;
        }
        let kept = self.move_kept(source, copy);
        let moved = kept || self.replace_word(lpn, MapWord::Direct(source), MapWord::Direct(copy));
        if moved && !kept && !cx.has_planted(PlantedBug::MoveForgotten) {
            self.place_changed(lpn);
        }
        if moved {
            self.invalidate(cx, source);
            cx.flash.blocks.set_valid(copy);
        }
    }

    /// The copy of a shared unit is durable. A unit that got another owner while a copy for one owner alone was being made stays,
    /// and is read again.
    fn relocate_shared(&mut self, cx: &mut Cx, vpid: u64, unit: &PageUnit, copy: Ppa) {
        let page = self.virtual_pages.page(vpid);
        let is_same = page.content == ContentId::new(unit.owner(), unit.seq);
        // A page that has come to be the only owner of what it wrote itself owns it as before the SHARE.
        if !(is_same && unit.hidden) && self.may_collapse(cx, vpid, unit.lpn, unit.seq) {
            self.virtual_pages.remove(vpid);
            self.replace_word(unit.lpn, MapWord::Shared(vpid), MapWord::Direct(copy));
            self.place_changed(unit.lpn);
            cx.metrics.share_collapses += 1;
        } else if is_same {
            let mut owners: Vec<Lpn> = page.owners().iter().map(|(lpn, _)| *lpn).collect();
            if cx.has_planted(PlantedBug::MoveLeavesOwners) && owners.len() > 1 {
                // The map of one owner alone follows.
                let since = self.virtual_pages.owner_since(vpid, owners[0], u64::MAX);
                if self.replace_word(owners[0], MapWord::Shared(vpid), MapWord::Direct(copy)) {
                    self.virtual_pages.take_owner(vpid, owners[0], since);
                    self.invalidate(cx, unit.source);
                    cx.flash.blocks.set_valid(copy);
                }
                return;
            }
            self.virtual_pages.moved(vpid, copy);
            owners.dedup();
            owners.into_iter().for_each(|lpn| self.place_changed(lpn));
        } else {
            return;
        }
        self.invalidate(cx, unit.source);
        cx.flash.blocks.set_valid(copy);
    }

    pub(super) fn survivors_durable(&mut self, plane: PlaneId, units: u32) {
        self.collections[plane.index()].moves -= units;
        self.space.earn(plane, units, self.collections[plane.index()].valid);
        self.work.collect_step(plane);
    }

    pub(super) fn gc_erase_done(&mut self, cx: &mut Cx, op: &NandOp) {
        let (block, plane) = (op.at.block, op.plane);
        self.collections[plane.index()] = Collection::default();
        let endurance = cx.config.faults.endurance;
        let worn_out = endurance > 0 && cx.flash.media.erases(block) >= endurance;
        let fails = worn_out || cx.flash.random.chance(cx.config.faults.erase_fail);
        let failed_before = self.failing.iter().position(|b| *b == block);
        if fails || failed_before.is_some() {
            if let Some(at) = failed_before {
                self.failing.swap_remove(at);
            } else {
                cx.metrics.erase_failures += 1;
            }
            cx.flash.retire(plane, block);
            cx.metrics.grown_bad_blocks += 1;
            self.check_spare(cx, plane);
        } else {
            cx.flash.media.erase(block);
            cx.metrics.erases += 1;
            cx.flash.blocks.release(block);
            self.trimmed[block.index()] = 0;
        }
        cx.flash.machine.wake(cx.geometry.station(plane));
        self.work.collect(plane);
        self.note_room(cx);
    }
}
