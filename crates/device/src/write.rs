//! Writes: acceptance into the buffer, choice of what to write when, durability.
//!
//! Invariant: the old place of a page becomes invalid when the new version is programmed, not when it is
//! accepted (spec 6.4).

use crate::buffer::{SlotState, Superseded};
use crate::config::{Allocation, BufferMode};
use crate::device::{Active, Device, Effect, PendingFlush};
use crate::front::{Span, range};
use crate::geometry::{PageAddr, StationId};
use crate::job::{Job, Op as NandOp};
use crate::media::{Owner, Saved, UnitImage};
use crate::nand::{Class, Frontier, OpKind, Placer, Purpose, UNBOUND, wordline_start};
use crate::planted::PlantedBug;
use crate::read::LOST;
use crate::slab::Slab;
use crate::space::{PageUnit, PageWrite};
use crate::tags::Owners;
use crate::trace::Traced;
use flashweir_core::command::{StreamId, pattern};
use flashweir_core::units::LBA_BYTES;
use flashweir_core::{Data, DeviceError, Instant, Lpn, Op, Payload, Ppa};
use flashweir_ftl::recovery::{Member, TrimRecord};
use flashweir_ftl::{MapWord, PlaneId};
use std::sync::Arc;

impl Device {
    /// The data are in the device. Units that are covered in part need their old content first.
    pub(crate) fn start_write(&mut self, now: Instant, at: u32, effects: &mut Vec<Effect>) {
        let (lba, blocks) = range(&self.commands.get(at).command.op).expect("a write has a range");
        let span = self.span(lba, blocks);
        let mut reads = 0;
        if span.partial_first || span.partial_last {
            let last = span.end - 1;
            let ends = [Some(span.first), (last != span.first).then_some(last)];
            for unit in ends.into_iter().flatten().filter(|unit| span.is_partial(*unit)) {
                let MapWord::Direct(ppa) = self.map.get(Lpn(unit)) else { continue };
                reads += 1;
                self.metrics.modify_pages_read += 1;
                let job = Job::Modify { command: at };
                self.push_read(now, ppa, 1, (Purpose::Merge { command: at }, job), effects);
            }
        }
        self.commands.get_mut(at).left = reads;
        if reads == 0 {
            self.ready(now, at, effects);
        }
    }

    pub(crate) fn modify_done(&mut self, now: Instant, command: u32, effects: &mut Vec<Effect>) {
        let active = self.commands.get_mut(command);
        active.left -= 1;
        if active.left == 0 {
            self.ready(now, command, effects);
        }
    }

    /// Gives a command its sequence number when its first part is accepted.
    pub(crate) fn accept(&mut self, at: u32, effects: &mut Vec<Effect>) -> u64 {
        if self.commands.get(at).seq == 0 {
            let seq = self.next_seq();
            let active = self.commands.get_mut(at);
            active.seq = seq;
            active.left = 1;
            effects.push(Effect::Accepted { id: active.command.id, seq });
        }
        self.commands.get(at).seq
    }

    /// Accepts units of a write while there is room; true when all are in.
    pub(crate) fn accept_write(&mut self, now: Instant, at: u32, effects: &mut Vec<Effect>) -> bool {
        let seq = self.accept(at, effects);
        let active = self.commands.get(at);
        let (fua, next) = (active.command.fua, active.next);
        let Op::Write { lba, blocks, data } = &active.command.op else { unreachable!("a write") };
        let (lba, blocks, data) = (*lba, *blocks, data.clone());
        let span = self.span(lba, blocks);
        let fua = fua && !self.has_planted(PlantedBug::FuaCoversNothing) && !self.is_protected();
        let waits = fua || self.config.buffer.mode == BufferMode::WriteThrough;
        let mut complete = true;
        let mut hastened = Vec::new();
        for unit in span.first + next..span.end {
            if !self.buffer.has_room() {
                complete = false;
                break;
            }
            let payload = self.unit_content(&data, lba.0, blocks, &span, unit);
            self.note_lost(at, Lpn(unit), &payload);
            hastened.extend(self.accept_unit(at, Lpn(unit), seq, payload, waits));
            self.commands.get_mut(at).next += 1;
        }
        if !complete && self.buffer.used() == self.orders.stuck() {
            // Nothing in the buffer will ever leave it.
            self.commands.get_mut(at).error = Some(DeviceError::ReadOnly);
            self.part_done(at, effects);
            return true;
        }
        self.background |= !complete;
        if !complete || waits || self.buffer.dirty() > self.high_water_units {
            self.destage(now, effects);
        }
        self.release_pages(now, effects);
        self.demand_wordlines_of(now, &hastened, effects);
        if complete {
            self.metrics.host_writes += 1;
            self.metrics.host_units_written += u64::from(span.len());
            if waits {
                let units = self.commands.get(at).left - 1;
                self.nand.trace.record(|| Traced::Waits { command: at, units, log: false });
            }
            self.end_of_command(now, at, effects);
            self.part_done(at, effects);
        } else if self.buffer.has_room() {
            return self.refuse_failed(at, effects) || self.accept_write(now, at, effects);
        }
        complete
    }

    /// A write of a part cannot complete a unit whose other part is lost.
    fn note_lost(&mut self, at: u32, lpn: Lpn, payload: &Payload) {
        if *payload == LOST {
            let lba = self.lba(lpn);
            self.commands.get_mut(at).error.get_or_insert(DeviceError::Uncorrectable { lba });
        }
    }

    /// Puts a unit into the buffer. Returns what had to be hastened because the command waits for it.
    fn accept_unit(&mut self, at: u32, lpn: Lpn, seq: u64, payload: Payload, waits: bool) -> Vec<u32> {
        if self.media.is_stored() && self.is_protected() {
            self.media.note_saved(Saved::Unit(lpn, seq, payload.clone()));
        }
        let tags = self.commands.get(at).command.tags;
        let stream = self.stream_of(at);
        let mut under = self.map.get(lpn);
        if let MapWord::Cached { slot, generation } = under {
            self.buffer.named(slot, generation);
            if !waits && self.may_replace(slot, stream) {
                self.metrics.buffer_write_hits += 1;
                self.buffer.overwrite(slot, seq, payload);
                self.replace_member(slot, stream);
                if self.has_planted(PlantedBug::TagsReplaced) {
                    self.buffer.disown(slot);
                }
                self.buffer.own(slot, tags);
                return Vec::new();
            }
        }
        if self.has_planted(PlantedBug::EarlyInvalidation)
            && let MapWord::Direct(ppa) = under
        {
            self.outdate(ppa);
            under = MapWord::Unmapped;
        }
        let slot = self.buffer.insert(lpn, seq, payload, under);
        self.buffer.own(slot, tags);
        self.map.replace(lpn, self.buffer.word(slot));
        if let Some(stream) = stream {
            self.join(slot, stream);
        }
        if !waits {
            return Vec::new();
        }
        self.buffer.slot_mut(slot).waiter = Some(at);
        self.commands.get_mut(at).left += 1;
        let hastened = self.demand_closure(slot);
        if self.buffer.slot(slot).state == SlotState::Dirty {
            self.place(slot, true);
        }
        hastened
    }

    /// The new content of a unit, merged with the current one where it is covered in part.
    fn unit_content(&self, data: &Data, lba: u64, blocks: u32, span: &Span, unit: u64) -> Payload {
        if !self.media.tracks_contents() {
            return Payload::Zero;
        }
        let unit_bytes = self.geometry.unit_bytes as usize;
        let whole = |data: &Data| match data {
            Data::Zero => Payload::Zero,
            Data::Pattern(operation) => Payload::Tag(pattern(*operation, Lpn(unit))),
            Data::Bytes(bytes) if bytes.len() == unit_bytes => Payload::Bytes(Arc::clone(bytes)),
            Data::Bytes(bytes) => {
                let from = (unit * self.geometry.lbas_per_unit - lba) as usize * LBA_BYTES as usize;
                Payload::Bytes(Arc::from(&bytes[from..from + unit_bytes]))
            }
            Data::Units(units) => units[(unit - span.first) as usize].clone(),
        };
        if !span.is_partial(unit) {
            return whole(data);
        }
        let mut merged = vec![0; unit_bytes];
        match self.content(Lpn(unit)).unwrap_or_default() {
            LOST => return LOST,
            current => current.expand(&mut merged),
        }
        let unit_lba = unit * self.geometry.lbas_per_unit;
        let (from, to) =
            (lba.max(unit_lba), (lba + u64::from(blocks)).min(unit_lba + self.geometry.lbas_per_unit));
        let at =
            (from - unit_lba) as usize * LBA_BYTES as usize..(to - unit_lba) as usize * LBA_BYTES as usize;
        match data {
            Data::Bytes(bytes) => {
                let source = (from - lba) as usize * LBA_BYTES as usize;
                let len = at.len();
                merged[at].copy_from_slice(&bytes[source..source + len]);
            }
            synthetic => {
                let mut new = vec![0; unit_bytes];
                whole(synthetic).expand(&mut new);
                merged[at.clone()].copy_from_slice(&new[at]);
            }
        }
        Payload::Bytes(Arc::from(merged))
    }

    /// Accepts a deallocation; true when it is in.
    pub(crate) fn accept_trim(&mut self, now: Instant, at: u32, effects: &mut Vec<Effect>) -> bool {
        if self.log.is_congested() {
            // What the horizon waits for goes to the medium; the checkpoint after that makes room.
            self.complete_epochs(now, effects);
            self.write_all(now, effects);
            self.pump_log(now, effects);
            if self.log.is_congested() {
                return false;
            }
        }
        let stream = self.stream_of(at);
        if let Some(stream) = stream
            && self.commands.get(at).seq == 0
            && !self.may_trim(now, stream, effects)
        {
            return self.refuse_failed(at, effects);
        }
        let (lba, blocks) = range(&self.commands.get(at).command.op).expect("a deallocation has a range");
        let zeroes = matches!(self.commands.get(at).command.op, Op::WriteZeroes { .. });
        let span = self.span(lba, blocks);
        let waits = self.config.buffer.mode == BufferMode::WriteThrough
            || (self.commands.get(at).command.fua && !self.is_protected());
        let mut hastened = Vec::new();
        if zeroes && (span.partial_first || span.partial_last) {
            let seq = self.accept(at, effects);
            let last = span.end - 1;
            let ends = [Some(span.first), (last != span.first).then_some(last)];
            let done = self.commands.get(at).next;
            for unit in ends.into_iter().flatten().filter(|u| span.is_partial(*u)).skip(done as usize) {
                if !self.buffer.has_room() {
                    self.background = true;
                    self.destage(now, effects);
                    if !self.buffer.has_room() {
                        return false;
                    }
                }
                let payload = self.unit_content(&Data::Zero, lba.0, blocks, &span, unit);
                self.note_lost(at, Lpn(unit), &payload);
                hastened.extend(self.accept_unit(at, Lpn(unit), seq, payload, waits));
                self.commands.get_mut(at).next += 1;
            }
        }
        let seq = self.accept(at, effects);
        let first = span.first + u64::from(span.partial_first);
        let end = (span.end - u64::from(span.partial_last)).max(first);
        let mut owners = Owners::of(self.commands.get(at).command.tags);
        let changed = self.unmap(Lpn(first), Lpn(end), seq, &mut owners);
        self.metrics.host_trims += 1;
        self.metrics.host_units_trimmed += end - first;
        if (changed || stream.is_some()) && self.keeps_metadata() {
            let trim = TrimRecord { lpn: Lpn(first), count: end - first, seq };
            let member = stream.and_then(|stream| self.join_trim(stream, seq));
            self.log.add_trim(trim, member);
            self.note_volatile_trim(trim, owners);
            if self.is_protected() {
                self.media.note_saved(Saved::Trim(trim));
            }
        } else {
            self.own_volatile_trims(first, end, &owners);
        }
        // What an earlier deallocation of the same pages still has in the log counts for this one too.
        if waits && self.log.last_trim() > self.log.durable_trims() {
            self.commands.get_mut(at).left += 1;
            self.log.wait_for_trims(at);
            let units = self.commands.get(at).left - 2;
            self.nand.trace.record(|| Traced::Waits { command: at, units, log: true });
        }
        self.destage(now, effects);
        self.demand_wordlines_of(now, &hastened, effects);
        self.end_of_command(now, at, effects);
        self.pump_log(now, effects);
        self.part_done(at, effects);
        true
    }

    /// Unmaps a range at run time; says whether anything was mapped. What owned versions that go with it is added to
    /// `owners`: whoever was promised one of them is content with its deallocation.
    fn unmap(&mut self, first: Lpn, end: Lpn, seq: u64, owners: &mut Owners) -> bool {
        let mut changed = false;
        let mut at = first;
        while let Some(lpn) = self.map.next_present(at, end) {
            at = Lpn(lpn.0 + 1);
            let mut word = self.map.replace(lpn, MapWord::Unmapped);
            changed |= word != MapWord::Unmapped;
            while let MapWord::Cached { slot, .. } = word {
                owners.unite(&self.buffer.owners(slot));
                let version = self.buffer.slot_mut(slot);
                word = version.under;
                if version.state == SlotState::Dirty && version.waiter.is_none() && version.member.is_none() {
                    self.buffer.release(slot);
                } else {
                    version.under = MapWord::Unmapped;
                    if version.superseded == Superseded::No {
                        version.superseded = Superseded::ByTrim(seq);
                    }
                }
            }
            if let MapWord::Direct(ppa) = word {
                self.drop_after_log(ppa);
            }
        }
        changed
    }

    /// A place that a deallocation gives up: invalid once the record is durable.
    fn drop_after_log(&mut self, ppa: Ppa) {
        if self.keeps_metadata() && !self.has_planted(PlantedBug::EarlyInvalidation) {
            self.log.pin(ppa);
        } else {
            self.outdate(ppa);
        }
    }

    /// Accepts a FLUSH: everything accepted before it becomes urgent.
    pub(crate) fn accept_flush(&mut self, now: Instant, at: u32, effects: &mut Vec<Effect>) {
        let upto = self.accept(at, effects);
        self.metrics.flushes += 1;
        if !self.is_protected() {
            self.metrics.flush_units_forced += u64::from(self.buffer.dirty());
            self.demand_all();
            self.write_all(now, effects);
            self.settle_all(now, effects);
        }
        // What was lost before, or just now.
        self.report_lost(at, |_, _| true);
        if let Some(stream) = self.orders.failed() {
            self.commands.get_mut(at).error.get_or_insert(DeviceError::StreamFailed(stream));
        }
        if !self.is_protected() {
            let units_left = self.buffer.used() - self.orders.stuck();
            let mut flush = PendingFlush { command: at, upto, units_left, trims_upto: 0 };
            if self.log.last_trim() > self.log.durable_trims() {
                flush.trims_upto = self.log.last_trim();
                self.log.want();
            }
            if self.has_planted(PlantedBug::LostTrim) {
                flush.trims_upto = 0;
            }
            if self.has_planted(PlantedBug::EarlyFlush) {
                (flush.units_left, flush.trims_upto) = (0, 0);
            }
            if flush.units_left > 0 || flush.trims_upto > 0 {
                let (units, log) = (flush.units_left, flush.trims_upto > 0);
                self.nand.trace.record(|| Traced::Waits { command: at, units, log });
                self.flushes.push(flush);
                self.pump_log(now, effects);
                return;
            }
        }
        self.part_done(at, effects);
    }

    /// Sends every dirty unit to the medium.
    fn write_all(&mut self, now: Instant, effects: &mut Vec<Effect>) {
        while let Some(slot) = self.buffer.oldest() {
            self.place(slot, true);
        }
        self.space.release_held();
        self.release_pages(now, effects);
        self.demand_wordlines(now, effects);
    }

    /// The range flush of a command that waits.
    fn range_flush(&mut self, command: u32) -> &mut PendingFlush {
        self.flushes.iter_mut().find(|flush| flush.command == command).expect("a range flush waits")
    }

    /// Completes every FLUSH that has nothing left to wait for.
    pub(crate) fn check_flushes(&mut self, effects: &mut Vec<Effect>) {
        let durable = self.log.durable_trims();
        while let Some(done) = self.flushes.iter().position(|f| f.units_left == 0 && f.trims_upto <= durable)
        {
            let flush = self.flushes.remove(done);
            self.part_done(flush.command, effects);
        }
    }

    /// The plane to which striping assigns a logical page.
    #[inline]
    pub(crate) fn plane_for(&self, lpn: Lpn) -> PlaneId {
        if self.config.ftl.allocation == Allocation::Dynamic {
            return PlaneId(0);
        }
        let page = self.geometry.striped_page(lpn);
        self.geometry.plane_at(self.config.ftl.striping.place(page, self.geometry.dimensions()))
    }

    /// Puts a dirty slot on a page; full pages are released at once, others by [`Self::release_pages`].
    pub(crate) fn place(&mut self, slot: u32, urgent: bool) {
        self.buffer.place(slot);
        self.join_page(slot, urgent);
    }

    fn join_page(&mut self, slot: u32, urgent: bool) {
        let version = self.buffer.slot(slot);
        let unit = PageUnit { lpn: version.lpn, seq: version.seq, slot, source: Ppa(0) };
        let plane = self.plane_for(unit.lpn);
        let page = match *self.space.filling(plane) {
            Some(page) => page,
            None => {
                let page = self.space.new_page(plane, Frontier::User);
                *self.space.filling(plane) = Some(page);
                page
            }
        };
        self.buffer.slot_mut(slot).page = page;
        let full = self.geometry.units_per_page as usize;
        let write = &mut self.space.pages[page as usize];
        write.units.push(unit);
        write.urgent |= urgent;
        let is_full = write.units.len() == full;
        if is_full || urgent {
            self.space.to_release.push(page);
        }
        if is_full {
            *self.space.filling(plane) = None;
        }
    }

    /// Hands full and urgent pages to the machine.
    pub(crate) fn release_pages(&mut self, now: Instant, effects: &mut Vec<Effect>) {
        while let Some(page) = self.space.to_release.pop() {
            self.release_page(now, page, effects);
        }
    }

    fn release_page(&mut self, now: Instant, page: u32, effects: &mut Vec<Effect>) {
        let write = &mut self.space.pages[page as usize];
        if std::mem::replace(&mut write.queued, true) {
            return;
        }
        self.space.queued_pages += 1;
        let plane = write.plane;
        if self.dead_planes[plane.0 as usize] {
            self.fail_page(page, effects);
        } else if self.config.ftl.allocation == Allocation::Dynamic {
            self.space.push_shared(page);
            self.start_idle_station(now, effects);
        } else {
            let station = self.nand.push(self.space.op(page));
            self.promote(page, plane);
            self.start(now, station, effects);
        }
    }

    /// A page of host data that waits for the machine goes before those for which no range flush waits.
    pub(crate) fn promote(&mut self, page: u32, plane: PlaneId) {
        if !self.space.pages[page as usize].first {
            return;
        }
        if self.config.ftl.allocation == Allocation::Dynamic {
            self.space.promote_shared(page);
        } else {
            let pages = &self.space.pages;
            let is_first = |job| matches!(job, Job::UserPage(other) if pages[other as usize].first);
            self.nand.promote_program(plane, |job| job == Job::UserPage(page), is_first);
        }
    }

    /// Wakes the next idle station, channel by channel, for work from the shared queue.
    fn start_idle_station(&mut self, now: Instant, effects: &mut Vec<Effect>) {
        let is_fit = |station| self.nand.is_idle(station) && self.has_room(station);
        let found = self.nand.resting(self.station_turn).find(|&(_, station)| is_fit(station));
        let Some((nth, station)) = found else { return };
        self.nand.wake(station);
        self.start(now, station, effects);
        self.station_turn = (nth + 1) % self.geometry.stations();
    }

    /// Whether a plane of the station takes host data.
    fn has_room(&self, station: StationId) -> bool {
        let planes = self.geometry.planes_per_station();
        let mut planes = (station.0 * planes..(station.0 + 1) * planes).map(PlaneId);
        planes.any(|plane| self.space.offer(plane, Frontier::User).is_some())
    }

    /// Writes dirty units: in the background down to the low-water mark, and whatever is urgent.
    pub(crate) fn destage(&mut self, now: Instant, effects: &mut Vec<Effect>) {
        if self.buffer.dirty() > self.high_water_units {
            self.background = true;
        }
        let pages_max = 2 * self.geometry.planes() as usize;
        let low = self.low_water_units;
        while self.background && self.space.queued_pages < pages_max {
            let blocked = !self.admission.is_empty() && !self.buffer.has_room();
            if self.buffer.dirty() <= low && !blocked {
                self.background = false;
                break;
            }
            let Some(slot) = self.buffer.oldest() else { break };
            self.place(slot, false);
            self.release_pages(now, effects);
        }
        let blocked = !self.admission.is_empty() && !self.buffer.has_room();
        if blocked && self.space.queued_pages == 0 {
            self.complete_epochs(now, effects);
            self.space.release_held();
            self.demand_wordlines(now, effects);
        }
        self.release_pages(now, effects);
    }

    /// A page of host data or of survivors has been programmed, or has failed.
    pub(crate) fn page_done(&mut self, now: Instant, op: &NandOp, page: u32, effects: &mut Vec<Effect>) {
        if self.space.pages[page as usize].frontier == Frontier::User {
            self.space.queued_pages -= 1;
            for unit in &self.space.pages[page as usize].units {
                if let MapWord::Direct(old) = self.buffer.slot(unit.slot).under {
                    self.space.blocks.prefetch(old);
                }
            }
        }
        self.space.program_ended(op.plane, self.space.pages[page as usize].frontier);
        if self.random.chance(self.config.faults.program_fail) {
            self.program_failed(now, op, effects);
            self.write_again(now, page, effects);
            return;
        }
        self.space.pages[page as usize].at = op.at;
        self.program_page(page, op.at);
        let stream = self.space.stream(self.space.pages[page as usize].frontier);
        self.open_wordlines[op.plane.0 as usize][stream].push(page);
        self.page_ended(now, op, effects);
    }

    /// What a program does to the medium.
    pub(crate) fn program_page(&mut self, page: u32, at: PageAddr) {
        let opened = self.space.opened(at.block);
        let write = &self.space.pages[page as usize];
        let units = write.units.len() as u64;
        match write.frontier {
            Frontier::User => self.metrics.user_units_programmed += units,
            Frontier::Gc => self.metrics.gc_units_moved += units,
        }
        self.metrics.filler_units += u64::from(self.geometry.units_per_page) - units;
        self.metrics.pages_programmed += 1;
        if self.media.tracks_contents() || self.orders.is_used() {
            let mut images = std::mem::take(&mut self.images);
            self.page_images(page, &mut images);
            self.media.program(at, opened, images.drain(..));
            self.images = images;
        } else {
            let image = |unit: &PageUnit| UnitImage::without_content(Owner::Lpn(unit.lpn), unit.seq);
            self.media.program(at, opened, write.units.iter().map(image));
        }
    }

    /// What a unit of a page write says about its epoch; a copy says what its source says.
    fn member_image(&self, write: &PageWrite, unit: &PageUnit) -> Option<Member> {
        match write.frontier {
            Frontier::User => self.member_of(unit.slot),
            Frontier::Gc => self.media.member(unit.source),
        }
    }

    /// Appends what the page write `page` puts on the medium.
    pub(crate) fn page_images(&self, page: u32, images: &mut Vec<UnitImage>) {
        let write = &self.space.pages[page as usize];
        let image = |unit: &PageUnit| {
            let payload = match write.frontier {
                Frontier::User => self.buffer.slot(unit.slot).payload.clone(),
                Frontier::Gc => self.media.payload(unit.source).unwrap_or(LOST),
            };
            UnitImage {
                owner: Owner::Lpn(unit.lpn),
                seq: unit.seq,
                member: self.member_image(write, unit),
                payload,
            }
        };
        images.extend(write.units.iter().map(image));
    }

    /// After a program: closes the block if it is full, and makes durable what its word line held.
    fn page_ended(&mut self, now: Instant, op: &NandOp, effects: &mut Vec<Effect>) {
        let last = op.at.page + 1 == self.geometry.pages_per_block;
        let cell = self.config.timing.cell;
        let complete = last
            || !self.config.faults.paired_page_loss
            || self.has_planted(PlantedBug::PairedPageIgnored)
            || wordline_start(cell, op.at.page + 1) == op.at.page + 1;
        let stream = self.space.stream(op.frontier.unwrap_or(Frontier::User));
        if complete {
            self.wordline_complete(now, op.plane, stream, effects);
        } else {
            self.complete_wordline(op.plane, stream, false);
        }
        if last {
            self.space.blocks.close(op.at.block);
            if self.keeps_metadata() && !self.has_planted(PlantedBug::LogBeforeData) {
                self.log.add_summary(
                    op.at.block,
                    self.space.opened(op.at.block),
                    &self.media,
                    &self.geometry,
                );
            }
        } else if self.has_planted(PlantedBug::LogBeforeData)
            && op.at.page + 2 == self.geometry.pages_per_block
        {
            let opened = self.space.opened(op.at.block);
            self.log.add_summary(op.at.block, opened, &self.media, &self.geometry);
            self.log.want();
        }
        if self.orders.is_pressed() {
            self.complete_epochs(now, effects);
        }
        self.collect_check(now, op.plane, effects);
        self.collect_recheck(now, effects);
        self.destage(now, effects);
        self.admit(now, effects);
        self.pump_log(now, effects);
    }

    fn wordline_complete(&mut self, now: Instant, plane: PlaneId, stream: usize, effects: &mut Vec<Effect>) {
        let mut pages = std::mem::take(&mut self.open_wordlines[plane.0 as usize][stream]);
        for page in pages.drain(..) {
            self.page_durable(now, page, effects);
        }
        self.open_wordlines[plane.0 as usize][stream] = pages;
        self.check_flushes(effects);
    }

    pub(crate) fn filler_done(&mut self, now: Instant, op: &NandOp, effects: &mut Vec<Effect>) {
        self.space.program_ended(op.plane, op.frontier.unwrap_or(Frontier::User));
        let opened = self.space.opened(op.at.block);
        self.media.program(op.at, opened, std::iter::empty());
        self.metrics.filler_units += u64::from(self.geometry.units_per_page);
        self.metrics.pages_programmed += 1;
        self.page_ended(now, op, effects);
    }

    /// Sees to it that all incomplete word lines are completed.
    fn demand_wordlines(&mut self, now: Instant, effects: &mut Vec<Effect>) {
        if !self.config.faults.paired_page_loss {
            return;
        }
        for plane in (0..self.geometry.planes()).map(PlaneId) {
            (0..2).for_each(|stream| self.complete_wordline(plane, stream, true));
            self.start(now, self.geometry.station(plane), effects);
        }
    }

    /// Completes a word line by filler if somebody waits for its pages and nothing else comes.
    pub(crate) fn complete_wordline(&mut self, plane: PlaneId, stream: usize, demanded: bool) {
        let held = &self.open_wordlines[plane.0 as usize][stream];
        let mut frontiers =
            [Frontier::User, Frontier::Gc].into_iter().filter(|f| self.space.stream(*f) == stream);
        let comes = frontiers.any(|frontier| {
            self.nand.has_waiting_program(plane, frontier) && self.space.offer(plane, frontier).is_some()
        });
        if held.is_empty() || comes || self.space.programming[plane.0 as usize][stream] > 0 {
            return;
        }
        let waits = |page: &u32| {
            let page = &self.space.pages[*page as usize];
            match page.frontier {
                Frontier::User => page.urgent || self.flushes.iter().any(|flush| flush.upto > 0),
                Frontier::Gc => self.collections[plane.0 as usize].is_drained(),
            }
        };
        if !demanded && !held.iter().any(waits) {
            return;
        }
        let frontier = if stream == Frontier::Gc as usize { Frontier::Gc } else { Frontier::User };
        // A shared frontier goes on as collection's, which may use the last blocks.
        let collects = held.iter().any(|page| self.space.pages[*page as usize].frontier == Frontier::Gc);
        let frontier = if collects { Frontier::Gc } else { frontier };
        self.nand.push(NandOp {
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
    fn page_durable(&mut self, now: Instant, page: u32, effects: &mut Vec<Effect>) {
        let units = std::mem::take(&mut self.space.pages[page as usize].units);
        let (at, frontier, plane) = {
            let write = &self.space.pages[page as usize];
            (write.at, write.frontier, write.plane)
        };
        let mut streams: Vec<StreamId> = Vec::new();
        for (i, unit) in units.iter().enumerate() {
            let ppa = self.geometry.ppa(at, i as u32);
            match frontier {
                Frontier::User => streams.extend(self.unit_durable(unit.slot, ppa, effects)),
                Frontier::Gc => self.relocate(unit.lpn, unit.source, ppa),
            }
        }
        streams.dedup();
        for stream in streams {
            self.settle(now, stream, effects);
        }
        if frontier == Frontier::Gc {
            self.survivors_durable(now, plane, units.len() as u32, effects);
        }
        self.space.pages[page as usize].units = units;
        self.space.free_page(page);
    }

    /// The version in a slot is on the medium. Returns its stream, which the caller settles.
    fn unit_durable(&mut self, slot: u32, ppa: Ppa, effects: &mut Vec<Effect>) -> Option<StreamId> {
        let member = self.buffer.slot(slot).member;
        if self.is_unstable(slot) {
            self.space.blocks.set_valid(ppa);
            self.keep(slot, ppa);
        } else {
            self.unit_stable(slot, ppa, false, effects);
        }
        let (stream, epoch) = member?;
        self.member_durable((stream, epoch));
        Some(stream)
    }

    /// The version in a slot is on the medium, and no cut makes recovery discard it. `kept` is whether its place is
    /// marked valid already.
    pub(crate) fn unit_stable(&mut self, slot: u32, ppa: Ppa, kept: bool, effects: &mut Vec<Effect>) {
        let version = self.buffer.slot(slot);
        let (lpn, superseded, counts) = (version.lpn, version.superseded, version.member.is_some());
        let needed = match superseded {
            Superseded::No => true,
            // The deallocation is not durable yet: until then this version must not be lost.
            Superseded::ByTrim(trim) => self.keeps_metadata() && trim > self.log.durable_trims(),
            Superseded::ByWrite => false,
        };
        if !kept && (needed || counts) {
            self.space.blocks.set_valid(ppa);
        }
        match superseded {
            Superseded::No => self.install(lpn, slot, ppa),
            Superseded::ByTrim(_) if needed => self.log.pin(ppa),
            _ if kept || counts => self.outdate(ppa),
            Superseded::ByWrite | Superseded::ByTrim(_) => {}
        }
        self.stop_waiting(slot, None, effects);
        self.buffer.release(slot);
    }

    /// Whoever waits for the version in a slot waits no longer: it is safe, or it is lost by this `error`.
    pub(crate) fn stop_waiting(&mut self, slot: u32, error: Option<DeviceError>, effects: &mut Vec<Effect>) {
        let version = self.buffer.slot_mut(slot);
        let (seq, waiter, stuck) = (version.seq, version.waiter.take(), version.stuck);
        let tell = |commands: &mut Slab<Active>, command: u32| {
            if let Some(error) = &error {
                commands.get_mut(command).error.get_or_insert_with(|| error.clone());
            }
        };
        while let Some(command) = self.buffer.stop_wait(slot) {
            self.range_flush(command).units_left -= 1;
            tell(&mut self.commands, command);
        }
        for flush in self.flushes.iter_mut().filter(|flush| flush.upto >= seq && !stuck) {
            flush.units_left -= 1;
            tell(&mut self.commands, flush.command);
        }
        if let Some(command) = waiter {
            tell(&mut self.commands, command);
            self.part_done(command, effects);
        }
    }

    /// Makes `ppa` the durable place of `lpn`, of which `slot` held this version.
    fn install(&mut self, lpn: Lpn, slot: u32, ppa: Ppa) {
        let mut old = std::mem::replace(&mut self.buffer.slot_mut(slot).under, MapWord::Unmapped);
        while let MapWord::Cached { slot, .. } = old {
            let older = self.buffer.slot_mut(slot);
            older.superseded = Superseded::ByWrite;
            old = std::mem::replace(&mut older.under, MapWord::Unmapped);
        }
        if let MapWord::Direct(old) = old {
            self.outdate(old);
        }
        let word = self.buffer.word(slot);
        self.replace_word(lpn, word, MapWord::Direct(ppa));
    }

    /// Replaces one word of a page's chain: the map's own, or what lies under a newer version. Says whether
    /// it was there.
    pub(crate) fn replace_word(&mut self, lpn: Lpn, old: MapWord, new: MapWord) -> bool {
        let mut word = self.map.get(lpn);
        if word == old {
            self.map.replace(lpn, new);
            return true;
        }
        while let MapWord::Cached { slot, generation } = word {
            self.buffer.named(slot, generation);
            let under = &mut self.buffer.slot_mut(slot).under;
            if *under == old {
                *under = new;
                return true;
            }
            word = *under;
        }
        false
    }

    /// The block of a failed program takes no more pages and will be emptied.
    fn program_failed(&mut self, now: Instant, op: &NandOp, effects: &mut Vec<Effect>) {
        self.metrics.program_failures += 1;
        let opened = self.space.opened(op.at.block);
        self.media.spoil(op.at, opened, op.at.page);
        self.space.abandon(op.at.block);
        self.space.blocks.close(op.at.block);
        self.failing.push(op.at.block);
        // The word line takes no further page, so what it holds cannot be lost to one.
        let stream = self.space.stream(op.frontier.unwrap_or(Frontier::User));
        self.wordline_complete(now, op.plane, stream, effects);
        self.collect_check(now, op.plane, effects);
    }

    /// Puts a page whose program failed back into the queue.
    fn write_again(&mut self, now: Instant, page: u32, effects: &mut Vec<Effect>) {
        match self.space.pages[page as usize].frontier {
            Frontier::User => {
                self.space.pages[page as usize].queued = false;
                self.release_page(now, page, effects);
            }
            Frontier::Gc => {
                let station = self.nand.push(self.space.op(page));
                self.start(now, station, effects);
            }
        }
    }

    /// Gives up host data of a plane that has no block left to write to.
    pub(crate) fn fail_page(&mut self, page: u32, effects: &mut Vec<Effect>) {
        let plane = self.space.pages[page as usize].plane;
        if *self.space.filling(plane) == Some(page) {
            *self.space.filling(plane) = None;
        }
        let units = std::mem::take(&mut self.space.pages[page as usize].units);
        for unit in &units {
            let lba = self.lba(unit.lpn);
            let version = self.buffer.slot(unit.slot);
            let (under, lost) = (version.under, version.superseded == Superseded::No);
            let member = version.member;
            let word = self.buffer.word(unit.slot);
            if lost {
                self.replace_word(unit.lpn, word, under);
            }
            let owners = self.buffer.owners(unit.slot);
            self.stop_waiting(unit.slot, Some(DeviceError::WriteFault { lba }), effects);
            self.forget_stuck(unit.slot);
            self.buffer.release(unit.slot);
            if lost {
                self.lost.entry(unit.lpn).or_default().unite(&owners);
            }
            if let Some(member) = member {
                self.fail_stream(member, effects);
            }
        }
        self.space.queued_pages -= 1;
        self.space.pages[page as usize].units = units;
        self.space.free_page(page);
        self.check_flushes(effects);
    }
}
