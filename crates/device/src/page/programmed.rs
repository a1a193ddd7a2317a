//! Programs that have ended: their effect on the medium, and when that makes versions durable.
//!
//! Invariant: the old place of a page becomes invalid when the new version is programmed, not when it is accepted (contract §7.1).

use super::buffer::{Place, SlotState, Superseded};
use super::content::LOST;
use super::frontier::{PageUnit, PageWrite, page_of};
use super::ftl::{Cx, PageFtl};
use super::job::{Job, Op as NandOp};
use super::work::Due;
use crate::flash::{Class, Frontier, OpKind, Placer, Purpose, UNBOUND, UnitImage, wordline_start};
use crate::front::Active;
use crate::geometry::PageAddr;
use crate::planted::PlantedBug;
use crate::slab::Slab;
use flashweir_core::command::StreamId;
use flashweir_core::{DeviceError, Lpn, Ppa};
use flashweir_ftl::map_log::Pin;
use flashweir_ftl::map_records::Record;
use flashweir_ftl::recovery::Member;
use flashweir_ftl::{BlockId, MapWord, PlaneId};

impl PageFtl {
    /// The program of a page of host data or of GC survivors has ended or failed.
    pub(super) fn page_done(&mut self, cx: &mut Cx, op: &NandOp, page: u32) {
        let write = &self.space.pages[page as usize];
        let frontier = write.frontier;
        if frontier != Frontier::Gc {
            self.space.queued_pages -= 1;
            for unit in &write.units {
                if let Place::Unit(old) = self.buffer.place(self.buffer.slot(unit.slot).under) {
                    cx.flash.blocks.prefetch(old);
                }
            }
        }
        self.space.program_ended(op.plane, frontier);
        if cx.flash.random.chance(cx.config.faults.program_fail) {
            self.program_failed(cx, op);
            self.write_again(cx, page);
            return;
        }
        self.space.pages[page as usize].at = op.at;
        self.program_page(cx, page, op.at);
        let stream = self.space.stream(frontier);
        self.open_wordlines[op.plane.0 as usize][stream].push(page);
        self.page_ended(cx, op);
    }

    /// Applies a program to the medium, and counts it.
    pub(super) fn program_page(&mut self, cx: &mut Cx, page: u32, at: PageAddr) {
        let opened = self.space.opened(at.block);
        let write = &self.space.pages[page as usize];
        let units = write.units.len() as u64;
        match write.frontier {
            Frontier::User(_) => cx.metrics.user_units_programmed += units,
            Frontier::Gc => cx.metrics.gc_units_moved += units,
        }
        cx.metrics.filler_units += u64::from(cx.geometry.units_per_page) - units;
        cx.metrics.pages_programmed += 1;
        self.space.count(&cx.flash.blocks, page);
        let write = &self.space.pages[page as usize];
        if cx.flash.media.tracks_contents() || self.orders.is_used() {
            let mut images = std::mem::take(&mut self.images);
            self.page_images(cx, page, &mut images);
            cx.flash.media.program(at, opened, images.drain(..));
            self.images = images;
        } else {
            let image = |unit: &PageUnit| UnitImage::without_content(unit.owner(), unit.seq);
            cx.flash.media.program(at, opened, write.units.iter().map(image));
        }
    }

    /// The out-of-band data of a unit about its epoch; a copy has the same data as its source.
    fn member_image(&self, cx: &Cx, write: &PageWrite, unit: &PageUnit) -> Option<Member> {
        match write.frontier {
            Frontier::User(_) => self.member_of(cx, unit.slot),
            // A copy that is another version than its source stands for no member; see `may_collapse`.
            Frontier::Gc => cx
                .flash
                .media
                .member(unit.source)
                .filter(|_| cx.flash.media.oob(unit.source) == Some((unit.owner(), unit.seq))),
        }
    }

    /// Appends the units that the page write `page` puts on the medium.
    pub(super) fn page_images(&self, cx: &Cx, page: u32, images: &mut Vec<UnitImage>) {
        let write = &self.space.pages[page as usize];
        let image = |unit: &PageUnit| {
            let payload = match write.frontier {
                Frontier::User(_) => self.buffer.slot(unit.slot).payload.clone(),
                Frontier::Gc => cx.flash.media.payload(unit.source).unwrap_or(LOST),
            };
            UnitImage {
                owner: unit.owner(),
                seq: unit.seq,
                member: self.member_image(cx, write, unit),
                payload,
            }
        };
        images.extend(write.units.iter().map(image));
    }

    /// Adds a record of all units of a full block to the log.
    fn summarize(&mut self, cx: &Cx, block: BlockId) {
        let (media, geometry) = (&cx.flash.media, &cx.geometry);
        let first = u64::from(block.0) * u64::from(geometry.units_per_block());
        let units = (0..geometry.units_per_block()).filter_map(|unit| {
            let ppa = Ppa(first + u64::from(unit));
            let (owner, seq) = media.oob(ppa)?;
            let (lpn, hidden) = page_of(owner)?;
            Some((Record::Unit { unit, lpn, seq, hidden }, media.member(ppa)))
        });
        self.log.add_summary(block, self.space.opened(block), units);
    }

    /// After a program: closes the block if it is full, and makes durable the pages whose word line is complete.
    fn page_ended(&mut self, cx: &mut Cx, op: &NandOp) {
        let last = op.at.page + 1 == cx.geometry.pages_per_block;
        let cell = cx.config.timing.cell;
        let complete = last
            || !cx.config.faults.paired_page_loss
            || cx.has_planted(PlantedBug::PairedPageIgnored)
            || wordline_start(cell, op.at.page + 1) == op.at.page + 1;
        let stream = self.space.stream(op.frontier.unwrap_or(Frontier::USER));
        if complete {
            self.wordline_complete(cx, op.plane, stream);
        } else {
            self.complete_wordline(cx, op.plane, stream, false);
        }
        if last {
            cx.flash.blocks.close(op.at.block);
            if cx.keeps_metadata() && !cx.has_planted(PlantedBug::LogBeforeData) {
                self.summarize(cx, op.at.block);
            }
        } else if cx.has_planted(PlantedBug::LogBeforeData) && op.at.page + 2 == cx.geometry.pages_per_block {
            self.summarize(cx, op.at.block);
            self.want_log();
        }
        if self.space.is_shared_empty() {
            self.work.complete_wordlines(std::mem::take(&mut self.wordlines_left));
        }
        if self.orders.is_pressed() {
            self.complete_epochs(cx);
        }
        self.work.collect(op.plane);
        self.note_room(cx);
        if self.log.has_work() {
            self.work.set(Due::Log);
        }
    }

    pub(super) fn wordline_complete(&mut self, cx: &mut Cx, plane: PlaneId, stream: usize) {
        let mut pages = std::mem::take(&mut self.open_wordlines[plane.0 as usize][stream]);
        for page in pages.drain(..) {
            self.page_durable(cx, page);
        }
        self.open_wordlines[plane.0 as usize][stream] = pages;
        if !self.flushes.is_empty() {
            self.work.set(Due::Flushes);
        }
    }

    pub(super) fn filler_done(&mut self, cx: &mut Cx, op: &NandOp) {
        self.space.program_ended(op.plane, op.frontier.unwrap_or(Frontier::USER));
        let opened = self.space.opened(op.at.block);
        cx.flash.media.program(op.at, opened, std::iter::empty());
        cx.metrics.filler_units += u64::from(cx.geometry.units_per_page);
        cx.metrics.pages_programmed += 1;
        self.page_ended(cx, op);
    }

    /// Makes sure that all incomplete word lines are completed, or those for which something waits.
    pub(super) fn demand_wordlines(&mut self, cx: &mut Cx, demanded: bool) {
        if !cx.config.faults.paired_page_loss {
            return;
        }
        for plane in (0..cx.geometry.planes()).map(PlaneId) {
            (0..self.space.streams()).for_each(|stream| self.complete_wordline(cx, plane, stream, demanded));
            cx.start(cx.geometry.station(plane), &mut self.space);
        }
    }

    /// Completes the word lines that hold these versions, if nothing else will.
    pub(super) fn demand_wordlines_of(&mut self, cx: &mut Cx, slots: &[u32]) {
        if !cx.config.faults.paired_page_loss {
            return;
        }
        let pages =
            slots.iter().map(|slot| self.buffer.slot(*slot)).filter(|slot| slot.state == SlotState::Placed);
        let mut planes: Vec<_> = pages.map(|slot| self.space.pages[slot.page as usize].plane).collect();
        planes.sort_unstable();
        planes.dedup();
        for plane in planes {
            (0..self.space.streams()).for_each(|stream| self.complete_wordline(cx, plane, stream, false));
            cx.start(cx.geometry.station(plane), &mut self.space);
        }
    }

    /// Completes a word line with filler if a command or GC waits for its pages and no other program will complete it.
    pub(super) fn complete_wordline(&mut self, cx: &mut Cx, plane: PlaneId, stream: usize, demanded: bool) {
        let held = &self.open_wordlines[plane.0 as usize][stream];
        if held.is_empty() || self.space.is_programming(plane, stream) {
            return;
        }
        let frontier = self.space.all_frontiers().find(|f| self.space.stream(*f) == stream);
        // Filler on a frontier that GC shares goes on as a program of GC, which may use the last free blocks.
        let collects = held.iter().any(|page| self.space.pages[*page as usize].frontier == Frontier::Gc);
        let frontier = if collects { Frontier::Gc } else { frontier.unwrap_or(Frontier::USER) };
        let mut others = self.space.all_frontiers().filter(|f| self.space.stream(*f) == stream);
        // Where a program waits that cannot begin, filler of the same frontier could not either.
        let comes = others.any(|other| {
            cx.flash.machine.has_waiting_program(plane, other)
                && (other == frontier || self.space.offer(&cx.flash.blocks, plane, other).is_some())
        });
        if comes {
            return;
        }
        let next = self.space.first_shared_of(stream);
        if next.is_some_and(|next| self.space.offer(&cx.flash.blocks, plane, next).is_some()) {
            // The plane takes the next page of the shared queue, if no other one does.
            self.wordlines_left[usize::from(!demanded)] = true;
            return;
        }
        let waits = |page: &u32| {
            let page = &self.space.pages[*page as usize];
            match page.frontier {
                Frontier::User(_) => page.urgent || self.flushes.iter().any(|flush| flush.upto > 0),
                Frontier::Gc => self.collections[plane.0 as usize].is_drained(),
            }
        };
        if !demanded && !held.iter().any(waits) {
            return;
        }
        cx.flash.machine.push(NandOp {
            kind: OpKind::Program,
            class: if frontier == Frontier::Gc { Class::GcWrite } else { Class::Write },
            plane,
            at: UNBOUND,
            frontier: Some(frontier),
            bytes: 0,
            purpose: Purpose::Filler,
            job: Job::Filler,
        });
    }

    /// All units of a page are durable.
    fn page_durable(&mut self, cx: &mut Cx, page: u32) {
        let units = std::mem::take(&mut self.space.pages[page as usize].units);
        let (at, frontier, plane) = {
            let write = &self.space.pages[page as usize];
            (write.at, write.frontier, write.plane)
        };
        let mut streams: Vec<StreamId> = Vec::new();
        for (i, unit) in units.iter().enumerate() {
            let ppa = cx.geometry.ppa(at, i as u32);
            match frontier {
                Frontier::User(_) => streams.extend(self.unit_durable(cx, unit.slot, ppa)),
                Frontier::Gc => self.relocate(cx, unit, ppa),
            }
        }
        streams.dedup();
        for stream in streams {
            self.work.settle(stream);
        }
        if frontier == Frontier::Gc {
            self.survivors_durable(plane, units.len() as u32);
        }
        self.space.pages[page as usize].units = units;
        self.space.free_page(page);
    }

    /// The version in a slot is on the medium. Returns its stream, which the caller settles.
    fn unit_durable(&mut self, cx: &mut Cx, slot: u32, ppa: Ppa) -> Option<StreamId> {
        let member = self.buffer.slot(slot).member;
        if self.is_unstable(cx, slot) {
            cx.flash.blocks.set_valid(ppa);
            self.keep(slot, ppa);
        } else {
            self.unit_stable(cx, slot, ppa, false);
        }
        let (stream, epoch) = member?;
        self.member_durable((stream, epoch));
        Some(stream)
    }

    /// The version in a slot is on the medium, and no power cut makes recovery discard it. `kept` says whether its place is marked
    /// valid already.
    pub(super) fn unit_stable(&mut self, cx: &mut Cx, slot: u32, ppa: Ppa, kept: bool) {
        let version = self.buffer.slot(slot);
        let (lpn, seq) = (version.lpn, version.seq);
        let (superseded, counts) = (version.superseded, version.member.is_some());
        let needed = match superseded {
            Superseded::No => true,
            // The deallocation is not durable yet: until then this version must not be lost.
            Superseded::ByChange(trim) => cx.keeps_metadata() && trim > self.log.durable_changes(),
            Superseded::ByWrite => false,
            Superseded::Hidden => true,
        };
        if !kept && (needed || counts) {
            cx.flash.blocks.set_valid(ppa);
        }
        match superseded {
            Superseded::No => self.install(cx, lpn, slot, ppa),
            Superseded::Hidden => self.copy_ended(cx, seq, Some(ppa)),
            Superseded::ByChange(_) if needed => self.log.pin(Pin::Place(ppa)),
            _ if kept || counts => self.outdate(cx, ppa),
            Superseded::ByWrite | Superseded::ByChange(_) => {}
        }
        self.stop_waiting(cx, slot, None);
        self.buffer.release(slot);
    }

    /// Ends the wait of all commands for the version in a slot: it is safe, or it is lost with this `error`.
    pub(super) fn stop_waiting(&mut self, cx: &mut Cx, slot: u32, error: Option<DeviceError>) {
        let version = self.buffer.slot_mut(slot);
        let (seq, waiter, stuck) = (version.seq, version.waiter.take(), version.stuck);
        let tell = |commands: &mut Slab<Active>, command: u32| {
            if let Some(error) = &error {
                commands.get_mut(command).error.get_or_insert_with(|| error.clone());
            }
        };
        while let Some(command) = self.buffer.stop_wait(slot) {
            self.range_flush(command).units_left -= 1;
            tell(&mut cx.front.commands, command);
        }
        for flush in self.flushes.iter_mut().filter(|flush| flush.upto >= seq && !stuck) {
            flush.units_left -= 1;
            tell(&mut cx.front.commands, flush.command);
        }
        if let Some(command) = waiter {
            tell(&mut cx.front.commands, command);
            cx.part_done(command);
        }
    }

    /// Makes `ppa` the durable place of `lpn`; `slot` held the version.
    fn install(&mut self, cx: &mut Cx, lpn: Lpn, slot: u32, ppa: Ppa) {
        let mut old = std::mem::replace(&mut self.buffer.slot_mut(slot).under, MapWord::Unmapped);
        loop {
            match self.buffer.place(old) {
                Place::Nowhere => break,
                Place::Slot(slot) => {
                    let older = self.buffer.slot_mut(slot);
                    older.superseded = Superseded::ByWrite;
                    old = std::mem::replace(&mut older.under, MapWord::Unmapped);
                }
                Place::Unit(old) => {
                    self.outdate(cx, old);
                    break;
                }
                Place::Shared(vpid) => {
                    let since = self.virtual_pages.owner_since(vpid, lpn, u64::MAX);
                    self.release_owner(cx, vpid, lpn, since);
                    break;
                }
            }
        }
        let word = self.buffer.word(slot);
        self.replace_word(lpn, word, MapWord::Direct(ppa));
        self.place_changed(lpn);
    }

    /// Replaces one word in a page's chain: the map's own word, or the one under a newer version. Returns whether `old` was found.
    pub(super) fn replace_word(&mut self, lpn: Lpn, old: MapWord, new: MapWord) -> bool {
        let mut word = self.map.get(lpn);
        if word == old {
            self.map.replace(lpn, new);
            return true;
        }
        loop {
            match self.buffer.place(word) {
                Place::Nowhere | Place::Unit(_) | Place::Shared(_) => return false,
                Place::Slot(slot) => {
                    let under = &mut self.buffer.slot_mut(slot).under;
                    if *under == old {
                        *under = new;
                        return true;
                    }
                    word = *under;
                }
            }
        }
    }
}
