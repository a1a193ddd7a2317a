//! Programs and erases that fail, and planes that can neither write nor make room.
//!
//! Invariants: the units of a page whose program failed are written elsewhere; a block that failed takes no more pages and is
//! emptied and retired; a version that cannot be written any more fails each command that waits for it, and each later command that
//! asks for it. Where a capacitor protects the buffer, which has made it durable already, it stays there instead: it can be read, and
//! each power cut saves it again.

use super::buffer::Superseded;
use super::ftl::{Cx, PageFtl};
use super::job::{Job, Op as NandOp};
use super::tags::Owners;
use super::work::Due;
use crate::config::Allocation;
use crate::flash::{Frontier, Placer};
use flashweir_core::index::Idx;
use flashweir_core::{Address, DeviceError};
use flashweir_ftl::PlaneId;
use flashweir_ftl::map_log::Pin;

impl PageFtl {
    /// Closes the block of a failed program, which is to be emptied.
    pub(super) fn program_failed(&mut self, cx: &mut Cx, op: &NandOp) {
        cx.metrics.program_failures += 1;
        let opened = self.space.opened(op.at.block);
        cx.flash.media.spoil(op.at, opened, op.at.page);
        self.space.abandon(&cx.flash.blocks, op.at.block);
        cx.flash.blocks.close(op.at.block);
        self.failing.push(op.at.block);
        // No further page of this word line will be programmed, so none can destroy its pages.
        let stream = self.space.stream(op.frontier.unwrap_or(Frontier::USER));
        self.wordline_complete(cx, op.plane, stream);
        self.work.collect(op.plane);
        self.note_room(cx);
        self.work.set(Due::Log);
    }

    /// Queues a page again whose program failed.
    pub(super) fn write_again(&mut self, cx: &mut Cx, page: u32) {
        match self.space.pages[page as usize].frontier {
            Frontier::User(_) => {
                self.space.pages[page as usize].queued = false;
                self.release_page(cx, page);
            }
            Frontier::Gc => cx.push(self.space.op(page), &mut self.space),
        }
    }

    /// Gives up host data of a plane that has no block left to write to, or leaves them in a protected buffer for good.
    pub(super) fn fail_page(&mut self, cx: &mut Cx, page: u32) {
        self.space.close_page(page);
        let units = std::mem::take(&mut self.space.pages[page as usize].units);
        for unit in &units {
            let lba = cx.lba(unit.lpn);
            let version = self.buffer.slot(unit.slot);
            let (under, lost) = (version.under, version.superseded == Superseded::No);
            let hidden = (version.superseded == Superseded::Hidden).then_some(version.seq);
            let member = version.member;
            if lost && cx.is_protected() {
                self.stick(unit.slot);
                if let Some(member) = member {
                    self.fail_stream(cx, member);
                }
                continue;
            }
            let word = self.buffer.word(unit.slot);
            if lost {
                self.replace_word(unit.lpn, word, under);
            }
            let owners = self.buffer.owners(unit.slot);
            self.stop_waiting(cx, unit.slot, Some(DeviceError::WriteFault { at: Address::Lba(lba) }));
            self.forget_stuck(unit.slot);
            self.buffer.release(unit.slot);
            if let Some(seq) = hidden {
                self.copy_ended(cx, seq, None);
            }
            if lost {
                self.lost.entry(unit.lpn).or_default().unite(&owners);
            }
            if let Some(member) = member {
                self.fail_stream(cx, member);
            }
        }
        self.space.queued_pages -= 1;
        self.space.pages[page as usize].units = units;
        self.space.free_page(page);
        self.work.set(Due::Flushes);
        // The buffer has room again, and so has the queue of pages.
        self.work.set(Due::Admit);
        self.work.set(Due::Destage);
    }

    /// Turns the device read-only if the plane has lost so many blocks that it cannot promise room for its share, while it can
    /// still write what it has accepted.
    pub(super) fn check_spare(&mut self, cx: &mut Cx, plane: PlaneId) {
        let share = cx.geometry.user_units / u64::from(cx.geometry.planes());
        let data = share.div_ceil(u64::from(cx.geometry.units_per_block())) as u32;
        let meta = cx.geometry.reserved_blocks_per_plane();
        let usable = cx.geometry.blocks_per_plane - cx.flash.bad_blocks_of_plane[plane.index()];
        let gc = &cx.config.ftl.gc;
        // Beside an append namespace: its segments, and two blocks for what it copies and erases.
        let of_segments = match cx.geometry.append.blocks_per_plane_max {
            0 => 0,
            most => most - cx.config.append.spare_blocks + 2,
        };
        if usable < data + meta + gc.reserve_blocks + cx.config.ftl.open_blocks() + of_segments {
            cx.front.read_only = true;
        }
    }

    /// Whether a plane may be left without room: blocks may fail, or copies for a SHARE fill it.
    #[inline]
    pub(super) fn may_get_stuck(&self, cx: &Cx) -> bool {
        cx.may_lose_blocks() || self.is_copying()
    }

    /// After an operation, where [`Self::may_get_stuck`]: if a plane of the same station can neither write nor make room, the copies are
    /// given up; without any, everything that waits for the plane fails, and the device takes no more writes.
    pub(super) fn check_stuck(&mut self, cx: &mut Cx, plane: PlaneId) {
        let dynamic = cx.config.ftl.allocation == Allocation::Dynamic;
        let station = cx.geometry.station(plane).0;
        let planes = cx.geometry.planes_per_station();
        for plane in (station * planes..(station + 1) * planes).map(PlaneId) {
            self.give_up(cx, plane, dynamic);
        }
    }

    fn give_up(&mut self, cx: &mut Cx, plane: PlaneId, dynamic: bool) {
        let planes = cx.geometry.planes();
        let stuck = |ftl: &Self, cx: &Cx| match dynamic {
            false => ftl.is_stuck(cx, plane),
            true => (0..planes).all(|plane| ftl.is_stuck(cx, PlaneId(plane))),
        };
        if self.dead_planes[plane.index()] {
            return;
        }
        if !stuck(self, cx) {
            if self.is_without_room(cx, plane) && self.has_pins(cx, plane) {
                self.want_log();
            }
            return;
        }
        if self.give_up_copies(cx) {
            (0..planes).for_each(|plane| self.collect_check(cx, PlaneId(plane)));
            if !stuck(self, cx) {
                return;
            }
        }
        if !cx.may_lose_blocks() {
            return;
        }
        cx.front.read_only = true;
        for page in self.space.drop_waiting(dynamic) {
            self.fail_page(cx, page);
        }
        let is_page = |job| matches!(job, Job::UserPage(_));
        for op in cx.flash.machine.drop_waiting_programs(plane, is_page) {
            if let Job::UserPage(page) = op.job {
                self.fail_page(cx, page);
            }
        }
        match dynamic {
            false => self.dead_planes[plane.index()] = true,
            true => self.dead_planes.fill(true),
        }
        // No program comes that could damage a page on the same word line.
        for dead in (0..planes).map(PlaneId) {
            if !self.dead_planes[dead.index()] {
                continue;
            }
            for stream in 0..self.space.streams() {
                self.wordline_complete(cx, dead, stream);
            }
        }
        self.work.set(Due::Admit);
    }

    /// Whether nothing can be written to the plane and nothing under way can change that.
    fn is_stuck(&self, cx: &Cx, plane: PlaneId) -> bool {
        // The end of another plane's program may end an epoch, and free what that keeps here.
        let may_be_freed = || self.keeps_in(cx, plane) && cx.flash.machine.is_any_programming();
        self.is_without_room(cx, plane) && !self.has_pins(cx, plane) && !may_be_freed()
    }

    /// Whether the record of a deallocation would free units of the plane.
    fn has_pins(&self, cx: &Cx, plane: PlaneId) -> bool {
        self.log.pinned().any(|pin| {
            let place = match pin {
                Pin::Place(place) => place,
                Pin::Owner { vpid, .. } => self.virtual_pages.place(vpid),
            };
            cx.geometry.plane_of(cx.flash.blocks.block(place)) == plane
        })
    }

    /// Whether epochs keep units of the plane.
    fn keeps_in(&self, cx: &Cx, plane: PlaneId) -> bool {
        let block = |nth: u32| u64::from(nth) * u64::from(cx.geometry.units_per_block());
        let (first, count) = (plane.0 * cx.geometry.blocks_per_plane, cx.geometry.blocks_per_plane);
        self.orders.any_kept(block(first)..block(first + count))
    }

    /// Whether neither host data nor survivors of GC have room in the plane, and no collection or program makes some.
    fn is_without_room(&self, cx: &Cx, plane: PlaneId) -> bool {
        let collection = &self.collections[plane.index()];
        let no_room = |frontier| self.space.offer(&cx.flash.blocks, plane, frontier).is_none();
        let survivors_wait =
            cx.flash.machine.has_waiting_program(plane, Frontier::Gc) && no_room(Frontier::Gc);
        // A collection that waits for translation pages may make room yet.
        let may_collect = collection.victim.is_some() || self.is_map_crowded() || self.has_put_off(plane);
        // Room that is left to another namespace is there.
        let leaves_room = self.space.leave[plane.index()] > 0;
        let nothing_to_collect = !may_collect && !leaves_room && self.space.user_frontiers().any(no_room);
        !collection.erasing
            && (survivors_wait || nothing_to_collect)
            && !cx.flash.machine.is_programming(cx.geometry.station(plane))
    }

    /// Fails command `at` if it asks for a version that was lost.
    pub(super) fn report_lost(&mut self, cx: &mut Cx, at: u32, selected: impl Fn(u64, &Owners) -> bool) {
        if let Some((lpn, _)) = self.lost.iter().find(|(lpn, owners)| selected(lpn.0, owners)) {
            let lba = cx.lba(*lpn);
            cx.front.commands.get_mut(at).error = Some(DeviceError::WriteFault { at: Address::Lba(lba) });
        }
    }
}
