//! Acceptance: commands that change state wait in one queue, get their place in the order of all, and move their data into the
//! buffer.
//!
//! Invariant: every command that changes contents passes one queue, so sequence numbers follow the order of effects.

use super::buffer::{Place, SlotState, Superseded};
use super::content::LOST;
use super::destage::ends_of;
use super::ftl::{Cx, PageFtl};
use super::job::Job;
use super::map_cache::{UNCOUNTED, What, Who};
use super::tags::Owners;
use super::work::Due;
use crate::config::BufferMode;
use crate::flash::trace::Traced;
use crate::flash::{Purpose, Saved};
use crate::front::{Arrivals, Passed, Span, range};
use crate::planted::PlantedBug;
use flashweir_core::command::StreamId;
use flashweir_core::index::Idx;
use flashweir_core::units::LBA_BYTES;
use flashweir_core::{Address, Command, Data, DeviceError, Lba, Lpn, Op, Order, Payload, Ppa};
use flashweir_ftl::MapWord;
use flashweir_ftl::map_log::Pin;
use flashweir_ftl::recovery::{Change, TrimRecord};
use std::sync::Arc;

/// Result of accepting one piece of a deallocation.
enum Piece {
    /// The whole deallocation is accepted.
    Last,
    OneOfMore,
    Waits,
}

impl PageFtl {
    /// Notes the arrival of a command of a stream. Commands of a stream are accepted in the order of their arrival, however long
    /// each needs before that, or by their epoch numbers.
    pub(super) fn note_ordered(&mut self, cx: &mut Cx, at: u32) {
        if let Some(stream) = cx.front.arrives_in(at) {
            let epoch = cx.front.commands.get(at).command.epoch;
            cx.front.arrivals.entry(stream).or_default().note(Some(at), epoch);
        }
    }

    /// A command that was refused still counts as a member of its epoch, and ends it if it is the barrier: the host may have sent members
    /// of the next one already.
    pub(super) fn note_refused(&mut self, cx: &mut Cx, at: u32) {
        let command = &cx.front.commands.get(at).command;
        let (epoch, closes) = (command.epoch, command.closes_epoch());
        if let Some(stream) = cx.front.arrives_in(at).filter(|_| epoch.is_some() || closes) {
            let arrivals = cx.front.arrivals.entry(stream).or_default();
            if arrivals.check(epoch).is_ok() {
                arrivals.note(None, epoch);
                self.pass(cx, stream);
            }
        }
    }

    /// A command has all that it needs to be accepted; it still waits behind earlier commands of its stream.
    pub(super) fn ready(&mut self, cx: &mut Cx, at: u32) {
        let Some(stream) = cx.front.arrives_in(at) else { return self.enqueue(cx, at) };
        cx.front.arrivals.entry(stream).or_default().ready(at);
        self.pass(cx, stream);
    }

    fn pass(&mut self, cx: &mut Cx, stream: StreamId) {
        while let Some(passed) = cx.front.arrivals.get_mut(&stream).and_then(Arrivals::pass) {
            match passed {
                Passed::Command(at) => self.enqueue(cx, at),
                Passed::End => self.end_epoch(cx, stream),
            }
        }
    }

    /// Ends the open epoch of a stream behind what waits in the queue of acceptance.
    fn end_epoch(&mut self, cx: &mut Cx, stream: StreamId) {
        let is_of_it = |at: &&u32| {
            let Command { op, stream: of, .. } = &cx.front.commands.get(**at).command;
            *of == Some(stream) && !op.only_reads() && !matches!(op, Op::Flush | Op::RFlush(_))
        };
        match cx.front.admission.iter().rev().find(is_of_it).copied() {
            Some(last) => cx.front.commands.get_mut(last).command.order = Some(Order::Barrier),
            None => {
                self.close_epoch(cx, stream);
                self.work.settle(stream);
            }
        }
    }

    /// Puts a command that changes state into the queue of acceptance, behind those that came before.
    fn enqueue(&mut self, cx: &mut Cx, at: u32) {
        cx.trace().record(|| Traced::Enqueued { command: at });
        cx.front.admission.push_back(at);
        if cx.front.admission.len() == 1 {
            self.work.set(Due::Admit);
        }
    }

    /// Accepts the first of the waiting commands, as far as there is room.
    pub(super) fn admit(&mut self, cx: &mut Cx) {
        let Some(&at) = cx.front.admission.front().filter(|_| !self.is_locked(cx)) else { return };
        if self.refuse_failed(cx, at) || self.refuse_unreadable(cx, at) || self.admit_one(cx, at) {
            cx.front.admission.pop_front();
            if let Some(cache) = &mut self.map_cache {
                cache.admit_counted = UNCOUNTED;
            }
            cx.trace().record(|| Traced::Admitted { command: at });
            if !cx.front.admission.is_empty() {
                self.work.set(Due::Admit);
            }
        }
        if self.log.is_congested() {
            // A checkpoint may cover more after this acceptance.
            self.work.set(Due::Log);
        }
    }

    /// Refuses a command that would keep a part of a unit which cannot be read: nothing of it is done. Only contents that are stored outside,
    /// as those of a volume, can become unreadable.
    fn refuse_unreadable(&mut self, cx: &mut Cx, at: u32) -> bool {
        let active = cx.front.commands.get(at);
        let (Op::Write { lba, blocks, .. } | Op::WriteZeroes { lba, blocks }) = active.command.op else {
            return false;
        };
        if active.seq != 0 || !cx.flash.media.is_stored() {
            return false;
        }
        let span = cx.span(lba, blocks);
        let Some(unit) = ends_of(&span).map(Lpn).find(|unit| self.newest(cx, *unit) == Some(LOST)) else {
            return false;
        };
        self.refuse_change(cx, at, DeviceError::Uncorrectable { at: Address::Lba(cx.lba(unit)) });
        true
    }

    /// Accepts one command as far as there is room; returns true when all of it is accepted.
    fn admit_one(&mut self, cx: &mut Cx, at: u32) -> bool {
        match cx.front.commands.get(at).command.op {
            Op::Write { .. } => self.accept_write(cx, at),
            Op::Trim { .. } | Op::WriteZeroes { .. } => self.accept_trim(cx, at),
            Op::Share(_) => self.accept_share(cx, at),
            Op::Flush => {
                self.accept_flush(cx, at);
                true
            }
            Op::RFlush(_) => {
                self.accept_range_flush(cx, at);
                true
            }
            Op::Barrier => {
                self.accept_barrier(cx, at);
                true
            }
            Op::Read { .. } => {
                self.start_read(cx, at);
                true
            }
            _ => unreachable!("the command was checked"),
        }
    }

    /// Whether a flush under way keeps all other commands from the buffer.
    pub(super) fn is_locked(&self, cx: &Cx) -> bool {
        cx.config.buffer.exclusive_flush && !self.flushes.is_empty()
    }

    /// The data of a write are in the device, or are zeroes. Units that it covers only in part need their old content first.
    pub(super) fn start_write(&mut self, cx: &mut Cx, at: u32) {
        let (lba, blocks) = range(&cx.front.commands.get(at).command.op).expect("a write has a range");
        let span = cx.span(lba, blocks);
        let mut reads = 0;
        if span.partial_first || span.partial_last {
            if self.map_cache.is_some() {
                cx.front.commands.get_mut(at).left = 1;
                return self.want_map(Who::Command(at, What::Modify));
            }
            for unit in ends_of(&span) {
                if let Place::Unit(ppa) = self.newest_place(Lpn(unit)) {
                    reads += 1;
                    cx.metrics.modify_pages_read += 1;
                    let job = Job::Modify { command: at };
                    self.push_read(cx, ppa, 1, (Purpose::Merge { command: at }, job));
                }
            }
        }
        cx.front.commands.get_mut(at).left = reads;
        if reads == 0 {
            self.ready(cx, at);
        }
    }

    pub(super) fn modify_done(&mut self, cx: &mut Cx, command: u32) {
        let active = cx.front.commands.get_mut(command);
        active.left -= 1;
        if active.left == 0 {
            self.ready(cx, command);
        }
    }

    /// Accepts units of a write while there is room; returns true when all are accepted.
    pub(super) fn accept_write(&mut self, cx: &mut Cx, at: u32) -> bool {
        let seq = cx.accept(at);
        let active = cx.front.commands.get(at);
        let (fua, next) = (active.command.fua, active.next);
        let Op::Write { lba, blocks, data } = &active.command.op else { unreachable!("a write") };
        let (lba, blocks, data) = (*lba, *blocks, data.clone());
        let span = cx.span(lba, blocks);
        let fua = fua && !cx.has_planted(PlantedBug::FuaCoversNothing) && !cx.is_protected();
        let waits = fua || cx.config.buffer.mode == BufferMode::WriteThrough;
        let mut complete = true;
        let mut hastened = Vec::new();
        for unit in span.first + next..span.end {
            if !self.buffer.has_room() {
                complete = false;
                break;
            }
            let payload = self.unit_content(cx, &data, lba.0, blocks, &span, unit);
            self.note_lost(cx, at, Lpn(unit), &payload);
            hastened.extend(self.accept_unit(cx, at, Lpn(unit), seq, payload, waits));
            cx.front.commands.get_mut(at).next += 1;
        }
        if !complete && self.is_full_for_good() {
            // Units before this one are accepted.
            let next = span.first + cx.front.commands.get(at).next;
            self.fail_to_accept(cx, at, cx.lba(Lpn(next)).max(lba));
            return true;
        }
        self.background |= !complete;
        if self.background || waits || self.buffer.dirty() > self.high_water_units {
            self.work.set(Due::Destage);
        }
        if !self.space.to_release.is_empty() {
            self.work.set(Due::Release);
        }
        self.work.complete_wordlines_of(&hastened);
        if complete {
            cx.metrics.host_writes += 1;
            cx.metrics.host_units_written += u64::from(span.len());
            if waits {
                let units = cx.front.commands.get(at).left - 1;
                cx.trace().record(|| Traced::Waits { command: at, units, log: false });
            }
            self.end_of_command(cx, at);
            cx.part_done(at);
        }
        complete
    }

    /// Whether nothing will ever leave the full buffer: all of its versions are stuck.
    pub(super) fn is_full_for_good(&self) -> bool {
        self.buffer.used() == self.orders.stuck()
    }

    /// Ends a command of which the rest, from a sector on, cannot be accepted.
    fn fail_to_accept(&mut self, cx: &mut Cx, at: u32, lba: Lba) {
        cx.front.commands.get_mut(at).error = Some(DeviceError::WriteFault { at: Address::Lba(lba) });
        self.end_of_command(cx, at);
        cx.part_done(at);
    }

    /// Fails a write to a part of a unit whose other part is lost: the unit cannot be completed.
    fn note_lost(&mut self, cx: &mut Cx, at: u32, lpn: Lpn, payload: &Payload) {
        if *payload == LOST {
            let lba = cx.lba(lpn);
            cx.front
                .commands
                .get_mut(at)
                .error
                .get_or_insert(DeviceError::Uncorrectable { at: Address::Lba(lba) });
        }
    }

    /// Puts a unit into the buffer. Returns the versions that were hastened because the command waits for what the unit depends on.
    fn accept_unit(
        &mut self,
        cx: &mut Cx,
        at: u32,
        lpn: Lpn,
        seq: u64,
        payload: Payload,
        waits: bool,
    ) -> Vec<u32> {
        if cx.flash.media.is_stored() && cx.is_protected() {
            cx.flash.media.note_saved(Saved::Unit(lpn, seq, payload.clone()));
        }
        let Command { tags, handle, .. } = cx.front.commands.get(at).command;
        let stream = cx.stream_of(at);
        let mut under = self.map.get(lpn);
        match self.buffer.place(under) {
            Place::Slot(slot) if !waits && self.may_replace(cx, slot, stream) => {
                cx.metrics.buffer_write_hits += 1;
                self.buffer.overwrite(slot, seq, payload);
                self.replace_member(cx, slot, stream);
                if cx.has_planted(PlantedBug::TagsReplaced) {
                    self.buffer.disown(slot);
                }
                self.buffer.own(slot, tags);
                self.buffer.slot_mut(slot).handle = handle;
                return Vec::new();
            }
            Place::Unit(ppa) if cx.has_planted(PlantedBug::EarlyInvalidation) => {
                self.outdate(cx, ppa);
                under = MapWord::Unmapped;
            }
            Place::Nowhere | Place::Slot(_) | Place::Unit(_) | Place::Shared(_) => {}
        }
        let slot = self.buffer.insert(lpn, seq, payload, under);
        self.buffer.slot_mut(slot).handle = handle;
        self.buffer.own(slot, tags);
        self.map.replace(lpn, self.buffer.word(slot));
        if let Some(stream) = stream {
            self.join(cx, slot, stream);
        }
        if !waits {
            return Vec::new();
        }
        self.buffer.slot_mut(slot).waiter = Some(at);
        cx.front.commands.get_mut(at).left += 1;
        let hastened = self.demand_closure(cx, slot);
        if self.buffer.slot(slot).state == SlotState::Dirty {
            self.place(cx, slot, true);
            // Before versions for which no command waits (contract §5.6).
            let page = self.buffer.slot(slot).page;
            self.space.pages[page as usize].first = true;
        }
        hastened
    }

    /// The new content of a unit, merged with the current one where the write covers it only in part.
    fn unit_content(&self, cx: &Cx, data: &Data, lba: u64, blocks: u32, span: &Span, unit: u64) -> Payload {
        if !cx.flash.media.tracks_contents() {
            return Payload::Zero;
        }
        let unit_bytes = cx.geometry.unit_bytes as usize;
        if !span.is_partial(unit) {
            let from = (unit * cx.geometry.lbas_per_unit - lba) as usize * LBA_BYTES as usize;
            return data.unit(Lpn(unit), (unit - span.first) as usize, from..from + unit_bytes);
        }
        self.merged_content(cx, data, (lba, blocks), span, unit)
    }

    /// [`Self::unit_content`] of a unit that the write covers in part.
    #[cold]
    fn merged_content(
        &self,
        cx: &Cx,
        data: &Data,
        (lba, blocks): (u64, u32),
        span: &Span,
        unit: u64,
    ) -> Payload {
        let unit_bytes = cx.geometry.unit_bytes as usize;
        let mut merged = vec![0; unit_bytes];
        match self.newest(cx, Lpn(unit)).unwrap_or_default() {
            LOST => return LOST,
            current => current.expand(&mut merged),
        }
        let unit_lba = unit * cx.geometry.lbas_per_unit;
        let (from, to) =
            (lba.max(unit_lba), (lba + u64::from(blocks)).min(unit_lba + cx.geometry.lbas_per_unit));
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
                synthetic.unit(Lpn(unit), (unit - span.first) as usize, 0..0).expand(&mut new);
                merged[at.clone()].copy_from_slice(&new[at]);
            }
        }
        Payload::Bytes(Arc::from(merged))
    }

    /// Accepts a deallocation; returns true when all of it is accepted. Where the map is on the medium it is accepted in pieces,
    /// one for each translation page that may map something, each with a record and a sequence number of its own.
    pub(super) fn accept_trim(&mut self, cx: &mut Cx, at: u32) -> bool {
        loop {
            if self.log.is_congested() {
                if self.is_congested_for_good(cx) {
                    self.refuse_change(cx, at, DeviceError::ReadOnly);
                    return true;
                }
                self.hasten_log(cx);
                return false;
            }
            match self.accept_trim_piece(cx, at) {
                Piece::Last => return true,
                Piece::OneOfMore => {}
                Piece::Waits => return false,
            }
        }
    }

    /// Whether no checkpoint will ever cover the changes in the congested log, because they are newer than something that never becomes
    /// stable: a version that is stuck, or the member of a stream that has failed.
    pub(super) fn is_congested_for_good(&self, cx: &Cx) -> bool {
        if !cx.front.read_only {
            return false;
        }
        let stuck = self.buffer.iter().map(|(_, slot)| slot).filter(|slot| slot.stuck).map(|slot| slot.seq);
        let first = stuck.chain(self.orders.failed_since()).min();
        first.is_some_and(|seq| self.log.recent[0].0.seq() >= seq)
    }

    /// Refuses the rest of a deallocation, a SHARE, or a write that was not accepted.
    pub(super) fn refuse_change(&mut self, cx: &mut Cx, at: u32, error: DeviceError) {
        self.end_of_command(cx, at);
        let active = cx.front.commands.get_mut(at);
        // One that was not accepted has no parts.
        active.left = active.left.max(1);
        active.error = Some(error);
        cx.part_done(at);
    }

    /// Makes room in the congested log: everything that holds back the horizon goes to the medium, and the next checkpoint covers
    /// it.
    pub(super) fn hasten_log(&mut self, cx: &mut Cx) {
        self.complete_epochs(cx);
        self.write_all(cx);
        self.work.set(Due::Log);
    }

    fn accept_trim_piece(&mut self, cx: &mut Cx, at: u32) -> Piece {
        let stream = cx.stream_of(at);
        let is_first = cx.front.commands.get(at).seq == 0;
        if let Some(cache) = self.map_cache.as_mut().filter(|_| is_first) {
            // The one before may have been refused between two pieces.
            cache.trim_next = None;
        }
        if let Some(stream) = stream
            && (is_first || self.map_cache.is_some())
            && !self.may_change(cx, stream)
        {
            return if self.refuse_failed(cx, at) { Piece::Last } else { Piece::Waits };
        }
        let (lba, blocks) = range(&cx.front.commands.get(at).command.op).expect("a deallocation has a range");
        let zeroes = matches!(cx.front.commands.get(at).command.op, Op::WriteZeroes { .. });
        let span = cx.span(lba, blocks);
        let waits = Self::change_waits(cx, at);
        let mut hastened = Vec::new();
        if zeroes && (span.partial_first || span.partial_last) {
            let seq = cx.accept(at);
            let done = cx.front.commands.get(at).next;
            for unit in ends_of(&span).skip(done as usize) {
                if !self.may_look_at(cx, at, Lpn(unit)) {
                    self.work.set(Due::Destage);
                    self.work.complete_wordlines_of(&hastened);
                    return Piece::Waits;
                }
                if !self.buffer.has_room() && self.is_full_for_good() {
                    self.work.complete_wordlines_of(&hastened);
                    self.fail_to_accept(cx, at, cx.lba(Lpn(unit)).max(lba));
                    return Piece::Last;
                }
                if !self.buffer.has_room() {
                    self.background = true;
                    self.work.set(Due::Destage);
                    return Piece::Waits;
                }
                let payload = self.unit_content(cx, &Data::Zero, lba.0, blocks, &span, unit);
                self.note_lost(cx, at, Lpn(unit), &payload);
                hastened.extend(self.accept_unit(cx, at, Lpn(unit), seq, payload, waits));
                cx.metrics.host_units_written += 1;
                cx.front.commands.get_mut(at).next += 1;
            }
        }
        self.work.complete_wordlines_of(&hastened);
        let first = span.first + u64::from(span.partial_first);
        let end = (span.end - u64::from(span.partial_last)).max(first);
        let from = self.map_cache.as_ref().and_then(|cache| cache.trim_next).unwrap_or(first);
        let Some(to) = self.trim_piece(cx, at, from, end) else {
            self.work.set(Due::Destage);
            return Piece::Waits;
        };
        let seq = cx.accept(at);
        let mut owners = Owners::of(cx.front.commands.get(at).command.tags);
        let changed = self.unmap(cx, (Lpn(from), Lpn(to)), seq, &mut owners, true);
        cx.metrics.host_units_trimmed += to - from;
        if (changed || stream.is_some()) && cx.keeps_metadata() {
            let trim = TrimRecord { lpn: Lpn(from), count: to - from, seq };
            self.record_change(cx, Change::Trim(trim), owners, stream);
        } else {
            self.own_volatile_changes(from, to, &owners);
        }
        if let Some(cache) = &mut self.map_cache {
            cache.trim_next = (to < end).then_some(to);
            if to < end {
                // The rest gets a new sequence number, so that the accepted pieces do not hold back a checkpoint for which the rest
                // may wait.
                cx.front.commands.get_mut(at).seq = cx.next_seq();
                self.work.set(Due::Log);
                return Piece::OneOfMore;
            }
        }
        cx.metrics.host_trims += 1;
        self.end_change(cx, at);
        Piece::Last
    }

    /// Whether a command that changes the map completes only when that is durable.
    fn change_waits(cx: &Cx, at: u32) -> bool {
        cx.config.buffer.mode == BufferMode::WriteThrough
            || (cx.front.commands.get(at).command.fua && !cx.is_protected())
    }

    /// Adds the record of a change of the map, with which the change becomes durable; it joins the open epoch of its stream.
    pub(super) fn record_change(
        &mut self,
        cx: &mut Cx,
        change: Change,
        owners: Owners,
        stream: Option<StreamId>,
    ) {
        let member = stream.and_then(|stream| self.join_change(cx, stream, change.seq()));
        self.note_volatile_change(cx, change.clone(), owners);
        let saved = cx.flash.media.is_stored().then(|| Saved::of(&change));
        let is_in_nvram = self.log.add_change(change, member);
        if let Some(saved) = saved.filter(|_| is_in_nvram || cx.is_protected()) {
            cx.flash.media.note_saved(saved);
        }
    }

    /// All of a command that changes the map is accepted.
    pub(super) fn end_change(&mut self, cx: &mut Cx, at: u32) {
        // The record of an earlier change of the same pages may not be durable yet; this command waits for it too.
        if Self::change_waits(cx, at) && self.log.last_change() > self.log.durable_changes() {
            cx.front.commands.get_mut(at).left += 1;
            self.log.wait_for_changes(at);
            let units = cx.front.commands.get(at).left - 2;
            cx.trace().record(|| Traced::Waits { command: at, units, log: true });
        }
        self.work.set(Due::Destage);
        self.end_of_command(cx, at);
        self.work.set(Due::Log);
        cx.part_done(at);
    }

    /// Unmaps a range at run time; returns whether anything was mapped. The owners of versions that are dropped are added to
    /// `owners`: a promise about such a version is fulfilled when its deallocation is durable.
    pub(super) fn unmap(
        &mut self,
        cx: &mut Cx,
        (first, end): (Lpn, Lpn),
        seq: u64,
        owners: &mut Owners,
        is_trim: bool,
    ) -> bool {
        let mut changed = false;
        let mut at = first;
        while let Some(lpn) = self.map.next_present(at, end) {
            at = Lpn(lpn.0 + 1);
            let mut word = self.map.replace(lpn, MapWord::Unmapped);
            changed |= word != MapWord::Unmapped;
            loop {
                match self.buffer.place(word) {
                    Place::Nowhere => break,
                    Place::Slot(slot) => word = self.unmap_slot(slot, seq, owners),
                    Place::Unit(ppa) => {
                        self.trimmed[cx.flash.blocks.block(ppa).index()] += u32::from(is_trim);
                        self.place_changed(lpn);
                        self.drop_after_log(cx, ppa);
                        break;
                    }
                    Place::Shared(vpid) => {
                        self.place_changed(lpn);
                        self.release_owner_after_log(cx, vpid, lpn, seq);
                        break;
                    }
                }
            }
        }
        changed
    }

    /// Deallocates a version in the buffer: it is dropped, or marked so that it does not count when it is durable. Returns the word
    /// that was under it.
    fn unmap_slot(&mut self, slot: u32, seq: u64, owners: &mut Owners) -> MapWord {
        owners.unite(&self.buffer.owners(slot));
        let version = self.buffer.slot_mut(slot);
        let under = version.under;
        if version.state == SlotState::Dirty && version.waiter.is_none() && version.member.is_none() {
            self.buffer.release(slot);
        } else {
            version.under = MapWord::Unmapped;
            if version.superseded == Superseded::No {
                version.superseded = Superseded::ByChange(seq);
            }
        }
        under
    }

    /// Gives up a place because of a deallocation: it becomes invalid once the record is durable.
    fn drop_after_log(&mut self, cx: &mut Cx, ppa: Ppa) {
        if cx.keeps_metadata() && !cx.has_planted(PlantedBug::EarlyInvalidation) {
            self.log.pin(Pin::Place(ppa));
        } else {
            self.outdate(cx, ppa);
        }
    }
}
