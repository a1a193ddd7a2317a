//! Blocks that change hands: erases, and the copy of one block of a segment into another one.
//!
//! A copy is needed where a program failed (`Failed`), where a power loss left something behind the good pages (`Torn`), where units came
//! for gaps that had been programmed (`Mend`), and where a block is worn less than others (`Wear`).
//!
//! Invariants: a plane copies one block at a time; the old block stays as it is until the record of the copy is durable; a segment is
//! not deallocated while one of its blocks is copied.

use super::job::{Job, Op as NandOp};
use super::moving::{EraseFor, Move, MoveOrder, Why};
use super::table::{Open, Page, Segments, Slot, Unit};
use crate::config::EraseTime;
use crate::cx::Cx;
use crate::flash::{Class, OpKind, Owner, Purpose, UnitImage};
use crate::geometry::PageAddr;
use crate::planted::PlantedBug;
use flashweir_core::DeviceError;
use flashweir_ftl::{BlockId, PlaneId};

impl Segments {
    /// Whether a block of the segment is copied, or is to be, or is erased before its first page.
    pub(super) fn is_moving(&self, segment: u32) -> bool {
        let queued = self.planes.iter().flat_map(|queue| &queue.moves);
        let is_erased =
            |what: &EraseFor| matches!(what, EraseFor::Lane { segment: other, .. } if *other == segment);
        self.moves.values().map(|moved| &moved.order).chain(queued).any(|order| order.segment == segment)
            || self.erasing.values().any(is_erased)
    }

    /// Whether a planted bug programs a block that is being copied.
    pub(super) fn moves_blindly<J: Copy>(&self, cx: &Cx<J>) -> bool {
        cx.has_planted(PlantedBug::MoveDuringAppend)
    }

    /// Chooses a block of each lane for a segment without any. Returns false if it has to wait for blocks that are about to be free.
    pub(super) fn allocate<J: Copy>(&mut self, cx: &mut Cx<J>, segment: u32) -> Result<bool, DeviceError> {
        let planes = cx.geometry.segment_planes(segment).to_vec();
        let missing: Vec<PlaneId> =
            planes.iter().copied().filter(|plane| !self.may_take(cx, *plane)).collect();
        if let Some(first) = missing.first() {
            // A page namespace is asked for all of them at once.
            missing.iter().for_each(|plane| _ = self.quota.want(&cx.flash.blocks, *plane));
            if self.may_be_free_soon(cx, *first) {
                self.log.want();
                return Ok(false);
            }
            cx.front.read_only = true;
            return Err(DeviceError::ReadOnly);
        }
        for (plane, lane) in planes.into_iter().zip(0..) {
            let block = cx.flash.blocks.take(plane, false).expect("it was seen");
            self.set_block(segment, lane, block);
            if cx.flash.media.is_used(block) {
                self.erase(cx, block, EraseFor::Lane { segment, lane });
            }
        }
        let state = self.states[segment as usize];
        let blocks = self.blocks_of(segment).to_vec();
        let listed = self.log.add_segment(segment, (state.generation, state.trimmed_at), &blocks);
        let after = self.log.trim_of(segment);
        self.open.insert(segment, Open { after, listed, ..Open::new(0) });
        Ok(true)
    }

    /// Whether there is a free block of this plane that segments may take.
    fn may_take<J: Copy>(&self, cx: &Cx<J>, plane: PlaneId) -> bool {
        self.quota.allows(&cx.flash.blocks, plane)
    }

    /// Whether a block of this plane is erased, or waits for the record of its deallocation, or comes from the page namespace, which is
    /// asked for it.
    fn may_be_free_soon<J: Copy>(&mut self, cx: &Cx<J>, plane: PlaneId) -> bool {
        let of_plane = |block: &BlockId| cx.geometry.plane_of(*block) == plane;
        self.quota.want(&cx.flash.blocks, plane)
            || self.erasing.iter().any(|(block, what)| *what == EraseFor::Pool && of_plane(block))
            || self.log.pinned().any(|block| of_plane(&block))
            || self.moves.contains_key(&plane)
    }

    /// Begins copies that waited for a free block.
    pub(crate) fn retry_moves<J: Copy>(&mut self, cx: &mut Cx<J>) {
        for plane in (0..self.planes.len() as u32).map(PlaneId) {
            if !self.queue_of(plane).moves.is_empty() {
                self.next_move(cx, plane);
            }
        }
    }

    /// Copies the torn blocks of a segment before it is written for the first time since the power came back.
    pub(super) fn move_torn<J: Copy>(&mut self, cx: &mut Cx<J>, segment: u32) {
        let Some(open) = self.open.get_mut(&segment) else { return };
        for (lane, rows) in std::mem::take(&mut open.torn) {
            self.order_move(cx, segment, lane, rows, Why::Torn);
        }
    }

    /// Copies the blocks of a segment for which units came too late, if something waits for them.
    pub(super) fn mend<J: Copy>(&mut self, cx: &mut Cx<J>, segment: u32) {
        let open = &self.open[&segment];
        let is_held_up = open.moving > 0 || open.is_lost;
        let busy = |page: &Page| *page == Page::Queued;
        if is_held_up || open.pages.iter().any(busy) {
            return;
        }
        let first = open.first * self.per_page;
        let units = open.slots.iter().zip(first..);
        let late =
            units.filter_map(|(slot, unit)| slot.held().filter(|held| held.is_late).map(|held| (held, unit)));
        let mut late: Vec<_> = late.collect();
        if !late.iter().any(|(_, unit)| *unit < open.forced) {
            return;
        }
        if open.listed > self.log.durable {
            // Until the log names the blocks, recovery takes the fullest one for a lane's, which the copy must not be.
            return self.log.want();
        }
        // In the order of acceptance, up to the first that has to wait for an earlier epoch.
        late.sort_by_key(|(held, unit)| (held.seq, *unit));
        let may_go = |(held, _): &&(&Unit, u32)| held.member.is_none_or(|member| self.streams.may_go(member));
        let ready: Vec<u32> = late.iter().take_while(may_go).map(|(_, unit)| *unit).collect();
        if ready.len() < late.len() {
            self.blocked.insert(segment);
        }
        let late = ready;
        let open = self.open.get_mut(&segment).expect("it was just seen");
        for unit in &late {
            if let Slot::Held(held) = &mut open.slots[(unit - first) as usize] {
                held.is_merged = true;
            }
        }
        let lanes: std::collections::BTreeSet<u32> =
            late.iter().map(|unit| unit / self.per_page % self.lanes).collect();
        for lane in lanes {
            let last = (open_end(&self.open[&segment]) + self.lanes - 1 - lane) / self.lanes;
            let is_there = |row: &u32| self.open[&segment].page(row * self.lanes + lane) == Page::Programmed;
            let rows = (0..last).take_while(is_there).count() as u32;
            self.order_move(cx, segment, lane, rows, Why::Mend);
        }
    }

    /// Has the first `rows` pages of a block of a segment copied to another one.
    pub(super) fn order_move<J: Copy>(
        &mut self,
        cx: &mut Cx<J>,
        segment: u32,
        lane: u32,
        rows: u32,
        why: Why,
    ) {
        let plane = cx.geometry.segment_planes(segment)[lane as usize];
        if matches!(why, Why::Torn | Why::Mend)
            && let Some(open) = self.open.get_mut(&segment)
        {
            open.moving += 1;
        }
        self.queue_of(plane).moves.push_back(MoveOrder { segment, lane, rows, why });
        self.next_move(cx, plane);
    }

    /// Begins the next copy of a plane.
    pub(super) fn next_move<J: Copy>(&mut self, cx: &mut Cx<J>, plane: PlaneId) {
        if self.moves.contains_key(&plane) {
            return;
        }
        let Some(order) = self.queue_of(plane).moves.pop_front() else { return };
        let from = self.block(order.segment, order.lane);
        self.begin_move(cx, plane, order, from);
    }

    fn begin_move<J: Copy>(&mut self, cx: &mut Cx<J>, plane: PlaneId, order: MoveOrder, from: BlockId) {
        let may_take = self.may_take(cx, plane);
        let taken = may_take.then(|| cx.flash.blocks.take(plane, order.why == Why::Wear)).flatten();
        let Some(to) = taken else {
            match order.why {
                Why::Wear => self.next_move(cx, plane),
                _ if self.may_be_free_soon(cx, plane) => {
                    self.queue_of(plane).moves.push_front(order);
                    self.log.want();
                }
                _ => {
                    self.lose(cx, order.segment);
                    self.next_move(cx, plane);
                }
            }
            return;
        };
        cx.metrics.segment_moves += 1;
        let (images, merged, is_copied) = (Vec::new(), Vec::new(), false);
        self.moves.insert(plane, Move { order, from, to, next: 0, images, merged, is_copied, logged: None });
        match cx.flash.media.is_used(to) {
            true => self.erase(cx, to, EraseFor::Move),
            false => self.move_step(cx, plane),
        }
    }

    fn move_step<J: Copy>(&mut self, cx: &mut Cx<J>, plane: PlaneId) {
        let moved = &self.moves[&plane];
        let Move { order, from, next, .. } = *moved;
        if next < order.rows {
            cx.metrics.gc_pages_read += 1;
            let at = PageAddr { block: from, page: next };
            let (bytes, job) = (cx.geometry.page_bytes(), Job::MoveRead(plane));
            return self.out.push(cx.given((OpKind::Read, Class::GcRead), at, bytes, (Purpose::GcRead, job)));
        }
        self.moves.get_mut(&plane).expect("it is under way").is_copied = true;
        match order.why {
            Why::Mend if self.is_lost(order.segment) => self.abandon(cx, plane),
            Why::Mend => self.log_mended(cx, order.segment),
            Why::Failed | Why::Torn | Why::Wear => self.log_move(cx, plane),
        }
    }

    /// Uses a copy, and logs it.
    fn log_move<J: Copy>(&mut self, cx: &mut Cx<J>, plane: PlaneId) {
        let Move { order, to, .. } = self.moves[&plane];
        self.set_block(order.segment, order.lane, to);
        let mark = match cx.has_planted(PlantedBug::MovedBlockForgotten) {
            true => self.log.durable,
            false => self.log.add_moved(order.segment, order.lane, to),
        };
        self.moves.get_mut(&plane).expect("it is under way").logged = Some(mark);
        self.log.check_marks = true;
    }

    /// Uses the copies of a segment with units that came too late, all at once: their records are in one group of the log. What was
    /// accepted later, in another lane, must not persist without what was accepted before.
    fn log_mended<J: Copy>(&mut self, cx: &mut Cx<J>, segment: u32) {
        let is_of = |order: &MoveOrder| order.segment == segment && order.why == Why::Mend;
        let waits = self.planes.iter().flat_map(|queue| &queue.moves).any(is_of);
        let copies = self.moves.iter().filter(|(_, moved)| is_of(&moved.order));
        let (planes, is_copied): (Vec<PlaneId>, Vec<bool>) =
            copies.map(|(plane, moved)| (*plane, moved.is_copied)).unzip();
        if !waits && is_copied.into_iter().all(|is_copied| is_copied) {
            planes.into_iter().for_each(|plane| self.log_move(cx, plane));
        }
    }

    /// Gives up a copy: its segment is lost, and copies of it that belong together will never all be there.
    fn abandon<J: Copy>(&mut self, cx: &mut Cx<J>, plane: PlaneId) {
        let moved = self.moves.remove(&plane).expect("it is under way");
        self.free_block(cx, moved.to);
        self.next_move(cx, plane);
    }

    pub(super) fn move_read_done<J: Copy>(&mut self, cx: &mut Cx<J>, op: &NandOp, plane: PlaneId) {
        let Move { order, to, next, .. } = self.moves[&plane];
        let first = (next * self.lanes + order.lane) * self.per_page;
        let mut merged = Vec::new();
        let media = &cx.flash.media;
        let image = |nth: u32| {
            let ppa = cx.geometry.ppa(op.at, nth);
            let (owner, seq) = media.oob(ppa).unwrap_or((Owner::Pad, 0));
            let payload = if media.tracks_contents() { media.payload(ppa) } else { None };
            UnitImage { owner, seq, member: None, payload: payload.unwrap_or_default() }
        };
        let mut images: Vec<UnitImage> = (0..self.per_page).map(image).collect();
        if order.why == Why::Mend {
            for (image, unit) in images.iter_mut().zip(first..) {
                if let Some(held) =
                    self.slot(order.segment, unit).and_then(Slot::held).filter(|held| held.is_merged)
                {
                    *image = self.unit_image(order.segment, unit, held.seq, held.payload.clone());
                    merged.push(unit);
                }
            }
        }
        let moved = self.moves.get_mut(&plane).expect("it is under way");
        moved.images = images;
        moved.merged.extend(merged);
        let at = PageAddr { block: to, page: next };
        let (bytes, job) = (cx.geometry.page_bytes(), Job::MoveProgram(plane));
        self.out.push(cx.given((OpKind::Program, Class::Placed), at, bytes, (Purpose::GcCopy, job)));
    }

    /// The units that the copy under way in a plane programs.
    pub(super) fn move_image(&self, plane: PlaneId, images: &mut Vec<UnitImage>) {
        images.extend(self.moves[&plane].images.iter().cloned());
    }

    pub(super) fn move_program_done<J: Copy>(&mut self, cx: &mut Cx<J>, op: &NandOp, plane: PlaneId) {
        let moved = self.moves.get_mut(&plane).expect("it is under way");
        if cx.flash.random.chance(cx.config.faults.program_fail) {
            cx.metrics.program_failures += 1;
            let (order, from) = (moved.order, moved.from);
            cx.flash.media.spoil(op.at, 0, op.at.page);
            self.moves.remove(&plane);
            self.retire(cx, plane, op.at.block);
            return self.begin_move(cx, plane, order, from);
        }
        cx.metrics.pages_programmed += 1;
        cx.metrics.gc_units_moved += u64::from(self.per_page);
        let images = std::mem::take(&mut moved.images);
        moved.next += 1;
        cx.flash.media.program(op.at, 0, images.into_iter());
        self.move_step(cx, plane);
    }

    /// The record of a copy is durable.
    pub(super) fn end_move<J: Copy>(&mut self, cx: &mut Cx<J>, plane: PlaneId) {
        let Move { order, from, merged, .. } = self.moves.remove(&plane).expect("it is under way");
        for unit in merged {
            let open = self.open.get_mut(&order.segment).expect("units of it were in the buffer");
            let nth = (unit - open.first * self.per_page) as usize;
            let Slot::Held(held) = &open.slots[nth] else {
                unreachable!("a unit that came late is in the buffer")
            };
            open.slots[nth] = Slot::Stored(held.member);
            open.late -= 1;
            self.used -= u32::from(!open.is_lost);
        }
        if !cx.flash.media.is_bad(from) {
            match order.why {
                Why::Failed => self.retire(cx, plane, from),
                Why::Torn | Why::Mend | Why::Wear => self.free_block(cx, from),
            }
        }
        if let Some(open) = self.open.get_mut(&order.segment) {
            open.moving -= u32::from(matches!(order.why, Why::Torn | Why::Mend));
            self.advance(cx, order.segment);
            self.offer(cx, order.segment);
        }
        self.to_pump.extend(cx.geometry.segment_planes(order.segment));
        self.next_move(cx, plane);
    }

    /// Takes a block out of use for good.
    fn retire<J: Copy>(&self, cx: &mut Cx<J>, plane: PlaneId, block: BlockId) {
        cx.metrics.grown_bad_blocks += 1;
        cx.flash.retire(plane, block);
    }

    /// A block is not needed any more.
    pub(super) fn free_block<J: Copy>(&mut self, cx: &mut Cx<J>, block: BlockId) {
        if cx.flash.media.is_bad(block) {
            return;
        }
        if cx.config.append.erase == EraseTime::Background && cx.flash.media.is_used(block) {
            return self.erase(cx, block, EraseFor::Pool);
        }
        cx.flash.blocks.give_back(block);
        self.next_move(cx, cx.geometry.plane_of(block));
    }

    pub(super) fn erase<J: Copy>(&mut self, cx: &mut Cx<J>, block: BlockId, what: EraseFor) {
        self.erasing.insert(block, what);
        let at = PageAddr { block, page: 0 };
        self.out.push(cx.given((OpKind::Erase, Class::Erase), at, 0, (Purpose::GcErase, Job::Erase)));
    }

    pub(super) fn erase_done<J: Copy>(&mut self, cx: &mut Cx<J>, op: &NandOp) {
        let (block, plane) = (op.at.block, op.plane);
        let what = self.erasing.remove(&block).expect("it was being erased");
        let endurance = cx.config.faults.endurance;
        let is_worn_out = endurance > 0 && cx.flash.media.erases(block) >= endurance;
        let has_failed = is_worn_out || cx.flash.random.chance(cx.config.faults.erase_fail);
        if has_failed {
            cx.metrics.erase_failures += 1;
            self.retire(cx, plane, block);
        } else {
            cx.metrics.erases += 1;
            cx.flash.media.erase(block);
            cx.flash.blocks.note_erase(block);
        }
        match what {
            EraseFor::Pool if has_failed => {}
            EraseFor::Pool => cx.flash.blocks.give_back(block),
            EraseFor::Lane { segment, lane } if has_failed => {
                self.order_move(cx, segment, lane, 0, Why::Failed)
            }
            EraseFor::Lane { .. } => {}
            EraseFor::Move if has_failed => {
                let moved = self.moves.remove(&plane).expect("it is under way");
                self.begin_move(cx, plane, moved.order, moved.from);
            }
            EraseFor::Move => self.move_step(cx, plane),
        }
        self.next_move(cx, plane);
        self.to_pump.insert(plane);
        self.level_wear(cx, plane);
    }

    /// Copies the least worn block that a full segment has in this plane to the most worn free one, if they are too far apart.
    fn level_wear<J: Copy>(&mut self, cx: &mut Cx<J>, plane: PlaneId) {
        let threshold = cx.config.append.static_threshold;
        if threshold == 0 || self.moves.contains_key(&plane) || !self.queue_of(plane).moves.is_empty() {
            return;
        }
        let media = &cx.flash.media;
        let Some(most) = cx.flash.blocks.free_of(plane).map(|block| media.erases(block)).max() else {
            return;
        };
        // No block can lag by more than that: mostly there is nothing to look for.
        if most <= threshold {
            return;
        }
        let segments = (0..self.states.len() as u32)
            .filter(|segment| self.has_blocks(*segment) && !self.open.contains_key(segment));
        let of_plane = segments.filter_map(|segment| {
            let lane = cx.geometry.segment_planes(segment).iter().position(|other| *other == plane)? as u32;
            Some((media.erases(self.block(segment, lane)), segment, lane))
        });
        if let Some((least, segment, lane)) = of_plane.min()
            && most.saturating_sub(least) > threshold
        {
            cx.metrics.wear_victims += 1;
            self.order_move(cx, segment, lane, cx.geometry.pages_per_block, Why::Wear);
        }
    }

    /// A block has no successor: what is in the buffer of its segment cannot be written, nor what of later epochs waits for it.
    fn lose<J: Copy>(&mut self, cx: &mut Cx<J>, segment: u32) {
        cx.front.read_only = true;
        // What waits at the head of the queue for this segment is refused now.
        self.log.check_marks = true;
        let mut lost = vec![segment];
        while let Some(segment) = lost.pop() {
            let Some(open) = self.open.get(&segment).filter(|open| !open.is_lost) else { continue };
            self.used -= self.used_by(open);
            let open = self.open.get_mut(&segment).expect("it was just seen");
            open.is_lost = true;
            let members = open.slots.iter().filter_map(Slot::member);
            members.for_each(|(stream, _)| self.streams.fail(stream));
            let waits = std::mem::take(&mut self.waits);
            let (over, left): (Vec<_>, Vec<_>) = waits.into_iter().partition(|wait| wait.segment == segment);
            self.waits = left;
            for wait in over {
                self.fail(cx, wait.command, segment);
                self.part_done(cx, wait.command);
            }
            let waits_for_failed = |open: &Open| {
                let mut members = open.slots.iter().filter_map(|slot| slot.held()?.member);
                !open.is_lost && members.any(|member| self.streams.has_failed(member))
            };
            lost.extend(self.open.iter().filter(|(_, open)| waits_for_failed(open)).map(|(at, _)| *at));
            self.planes.iter_mut().for_each(|queue| queue.moves.retain(|order| order.segment != segment));
            let is_given_up = |moved: &Move| {
                moved.order.segment == segment
                    && moved.order.why == Why::Mend
                    && moved.is_copied
                    && moved.logged.is_none()
            };
            let copies = self.moves.iter().filter(|(_, moved)| is_given_up(moved)).map(|(plane, _)| *plane);
            for plane in copies.collect::<Vec<_>>() {
                self.abandon(cx, plane);
            }
        }
    }
}

/// Number of the page behind the open part.
fn open_end(open: &Open) -> u32 {
    open.first + open.pages.len() as u32
}
