//! Acceptance: commands that change or protect segments wait in one queue, in the order of their arrival, and are accepted one after
//! the other.
//!
//! Invariants: a write is checked against the write pointer when it is accepted, before any of its units is; the offset of an append is
//! fixed then. In write-once mode a member of a stream lies behind everything that its segment holds, so that the order of epochs never
//! contradicts that of offsets (contract §9.12). A deallocation is accepted when everything in its segment is durable, and so are all
//! earlier epochs of its stream.

use super::log_queue::Trimmed;
use super::table::{NO_BLOCK, Open, Page, Queued, Segments, Slot, Unit, Wait};
use crate::config::AppendMode;
use crate::cx::Cx;
use crate::effect::{Effect, Event};
use crate::flash::Saved;
use crate::planted::PlantedBug;
use flashweir_core::command::{OutOfRange, SegmentId, SegmentReport, StreamId};
use flashweir_core::{Data, DeviceError, Done, Op, Order, Payload};
use flashweir_ftl::recovery::TrimRecord;

/// Whether the command at the head of the queue was accepted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Admitted {
    Done,
    Waits,
}

impl Segments {
    /// A command that passed its check has arrived.
    pub(crate) fn arrived<J: Copy>(&mut self, cx: &mut Cx<J>, at: u32) {
        let (bytes, blocks) = match &cx.front.commands.get(at).command.op {
            Op::Read { blocks: 0, .. } => return cx.complete(at),
            Op::Read { .. } => return self.start_read(cx, at),
            Op::SegReport { segment } => {
                let report = self.report(cx, *segment);
                return cx.answer(at, report);
            }
            Op::SegWrite { blocks, .. } | Op::SegAppend { blocks, .. } => {
                (u64::from(*blocks) * flashweir_core::units::LBA_BYTES, Some(*blocks))
            }
            _ => (0, None),
        };
        if let Op::SegAppend { segment, .. } = cx.front.commands.get(at).command.op
            && cx.has_planted(PlantedBug::AppendAnsweredEarly)
        {
            let pointer = self.states[segment.0 as usize].pointer;
            self.guessed.insert(at, pointer * cx.geometry.lbas_per_unit as u32);
        }
        let moves_at =
            if blocks.is_some_and(|blocks| blocks > 0) { cx.memory_access(at, bytes) } else { None };
        self.queue.push_back(Queued { command: at, is_ready: moves_at.is_none() });
        if let Some(until) = moves_at {
            cx.effects.push(Effect::At(until, Event::BufferMemory { command: at }));
        }
    }

    /// The buffer memory has moved the data of a command.
    pub(crate) fn moved<J: Copy>(&mut self, cx: &mut Cx<J>, at: u32) {
        match cx.front.commands.get(at).command.op {
            Op::Read { .. } => self.part_done(cx, at),
            _ => {
                let queued = self.queue.iter_mut().find(|queued| queued.command == at);
                queued.expect("it waits for its data").is_ready = true;
            }
        }
    }

    fn report<J: Copy>(&self, cx: &Cx<J>, segment: SegmentId) -> Done {
        let per_unit = cx.geometry.lbas_per_unit as u32;
        let state = &self.states[segment.0 as usize];
        let durable = if cx.is_protected() { state.pointer } else { self.durable(segment.0) };
        // In front of the open part there is none.
        let first = self.open.get(&segment.0).map_or(state.pointer, |open| open.first * self.per_page);
        let gaps = (first..state.pointer).filter(|unit| !self.is_written(segment.0, *unit));
        Done::Segment(Box::new(SegmentReport {
            write_pointer: state.pointer * per_unit,
            durable_pointer: durable * per_unit,
            generation: state.generation,
            gaps: gaps.map(|unit| unit * per_unit).collect(),
        }))
    }

    /// Accepts the commands at the head of the queue, as far as there is room.
    pub(super) fn admit<J: Copy>(&mut self, cx: &mut Cx<J>) {
        while let Some(Queued { command, is_ready: true }) = self.queue.front().copied() {
            match self.accept(cx, command) {
                Admitted::Done => _ = self.queue.pop_front(),
                Admitted::Waits => break,
            }
        }
    }

    fn accept<J: Copy>(&mut self, cx: &mut Cx<J>, at: u32) -> Admitted {
        match &cx.front.commands.get(at).command.op {
            Op::SegWrite { segment, offset, blocks, data } => {
                let per_unit = cx.geometry.lbas_per_unit as u32;
                let (segment, data) = (segment.0, data.clone());
                let range = (offset / per_unit, blocks / per_unit);
                self.accept_write(cx, at, (segment, Some(range.0), range.1), &data)
            }
            Op::SegAppend { segment, blocks, data } => {
                let units = blocks / cx.geometry.lbas_per_unit as u32;
                let (segment, data) = (segment.0, data.clone());
                self.accept_write(cx, at, (segment, None, units), &data)
            }
            Op::SegTrim { segment } => {
                let segment = segment.0;
                self.accept_trim(cx, at, segment)
            }
            Op::Flush => {
                cx.metrics.flushes += 1;
                let all = self.open.keys().map(|segment| (*segment, self.states[*segment as usize].pointer));
                let all: Vec<(u32, u32)> = all.collect();
                self.accept_flush(cx, at, &all, true)
            }
            Op::RFlush(flush) => {
                cx.metrics.range_flushes += 1;
                let flush = flush.clone();
                let per_unit = cx.geometry.lbas_per_unit as u32;
                let prefixes =
                    flush.segments.iter().map(|(segment, upto)| (segment.0, upto.div_ceil(per_unit)));
                let mut wanted: Vec<(u32, u32)> = prefixes.collect();
                for (lba, blocks) in flush.ranges.iter().filter(|(_, blocks)| *blocks > 0) {
                    let span = cx.span(*lba, *blocks);
                    let mut unit = span.first;
                    while unit < span.end {
                        let (segment, first) = self.split(flashweir_core::Lpn(unit));
                        let end = u64::from(self.units).min(u64::from(first) + span.end - unit);
                        wanted.push((segment, end as u32));
                        unit += end - u64::from(first);
                    }
                }
                // A deallocation supersedes what a prefix may have held.
                let trimmed = wanted.iter().any(|(segment, _)| self.log.is_trimming(*segment));
                self.accept_flush(cx, at, &wanted, trimmed)
            }
            Op::Barrier => {
                cx.accept(at);
                cx.metrics.barriers += 1;
                self.close_epoch(cx, at);
                self.part_done(cx, at);
                Admitted::Done
            }
            _ => unreachable!("other commands are not accepted"),
        }
    }

    /// Refuses a command whose turn has come. Its barrier holds all the same: what the host has sent behind it relies on that.
    fn refuse<J: Copy>(&mut self, cx: &mut Cx<J>, at: u32, error: DeviceError) -> Admitted {
        self.end_epoch(cx, at);
        cx.front.commands.get_mut(at).error = Some(error);
        cx.complete(at);
        Admitted::Done
    }

    /// Closes the epoch of a command that is its stream's barrier too.
    fn end_epoch<J: Copy>(&mut self, cx: &mut Cx<J>, at: u32) {
        if cx.front.commands.get(at).command.order == Some(Order::Barrier) {
            self.close_epoch(cx, at);
        }
    }

    /// Closes the open epoch of the command's stream, if it belongs to one.
    fn close_epoch<J: Copy>(&mut self, cx: &mut Cx<J>, at: u32) {
        if let Some(stream) = cx.stream_of(at) {
            cx.metrics.epochs += u64::from(self.streams.close(stream));
        }
    }

    fn accept_write<J: Copy>(
        &mut self,
        cx: &mut Cx<J>,
        at: u32,
        (segment, offset, units): (u32, Option<u32>, u32),
        data: &Data,
    ) -> Admitted {
        let accepted = cx.front.commands.get(at).next as u32;
        let pointer = self.states[segment as usize].pointer;
        let first = match self.appended.get(&at) {
            Some(sectors) if accepted > 0 => sectors / cx.geometry.lbas_per_unit as u32,
            _ => offset.unwrap_or(pointer),
        };
        if accepted == 0 {
            if let Err(error) = self.check_pointer(cx, (segment, first, units), offset.is_some()) {
                return self.refuse(cx, at, error);
            }
            if cx.stream_of(at).is_some() && first < pointer {
                return self.refuse(cx, at, DeviceError::OrderConflict);
            }
            if units == 0 {
                return self.end_write(cx, at, (segment, first, 0), offset.is_none());
            }
            if !self.has_blocks(segment) {
                match self.allocate(cx, segment) {
                    Ok(true) => {}
                    Ok(false) => return Admitted::Waits,
                    Err(error) => return self.refuse(cx, at, error),
                }
            }
            self.move_torn(cx, segment);
        }
        for unit in first + accepted..first + units {
            // A copy that the write needs may find no block, also between two of its units.
            if self.is_lost(segment) {
                return self.accept_no_more(cx, at, (segment, first));
            }
            if !self.has_room(unit) {
                return Admitted::Waits;
            }
            let seq = cx.accept(at);
            if unit == first {
                self.appended.insert(at, first * cx.geometry.lbas_per_unit as u32);
                cx.metrics.host_writes += 1;
                cx.metrics.host_units_written += u64::from(units);
            }
            let bytes = cx.geometry.unit_bytes as usize;
            let nth = (unit - first) as usize;
            let payload = match cx.flash.media.tracks_contents() {
                true => data.unit(self.lpn(segment, unit), nth, nth * bytes..(nth + 1) * bytes),
                false => Payload::Zero,
            };
            let stream = cx.stream_of(at);
            let member = stream.map(|stream| (stream, self.streams.join(stream, 1)));
            if cx.is_protected() {
                cx.flash.media.note_saved(Saved::Unit(self.lpn(segment, unit), seq, payload.clone()));
            }
            self.hold(segment, unit, Unit::new(seq, payload, member));
            cx.front.commands.get_mut(at).next += 1;
            self.offer(cx, segment);
        }
        self.end_write(cx, at, (segment, first, units), offset.is_none())
    }

    /// Ends a write whose segment is lost: refused as a whole, or failed if a part of it was accepted.
    fn accept_no_more<J: Copy>(&mut self, cx: &mut Cx<J>, at: u32, (segment, first): (u32, u32)) -> Admitted {
        if cx.front.commands.get(at).next == 0 {
            let at_first = Self::address(cx, segment, first);
            return self.refuse(cx, at, DeviceError::WriteFault { at: at_first });
        }
        self.fail(cx, at, segment);
        self.part_done(cx, at);
        Admitted::Done
    }

    /// Everything of a write was accepted.
    fn end_write<J: Copy>(
        &mut self,
        cx: &mut Cx<J>,
        at: u32,
        (segment, first, units): (u32, u32, u32),
        is_append: bool,
    ) -> Admitted {
        self.end_epoch(cx, at);
        if units == 0 {
            cx.accept(at);
        }
        let offset = first * cx.geometry.lbas_per_unit as u32;
        match is_append {
            true => _ = self.appended.insert(at, offset),
            false => _ = self.appended.remove(&at),
        }
        if self.completes_durably(cx, at) && units > 0 && !cx.has_planted(PlantedBug::FuaCoversNothing) {
            self.wait(cx, at, segment, first + units);
        }
        self.part_done(cx, at);
        Admitted::Done
    }

    /// Checks a write against the state of its segment.
    fn check_pointer<J: Copy>(
        &self,
        cx: &Cx<J>,
        (segment, first, units): (u32, u32, u32),
        is_given: bool,
    ) -> Result<(), DeviceError> {
        let per_unit = cx.geometry.lbas_per_unit as u32;
        let at = |unit: u32| Self::address(cx, segment, unit);
        let state = &self.states[segment as usize];
        if cx.front.read_only {
            return Err(DeviceError::ReadOnly);
        }
        if first + units > self.units {
            let capacity = cx.geometry.segment_lbas();
            return Err(OutOfRange { at: at(first), count: units * per_unit, capacity }.into());
        }
        if self.mode == AppendMode::Sequential && is_given && first != state.pointer {
            return Err(DeviceError::OutOfOrder { at: at(first), expected: state.pointer * per_unit });
        }
        if let Some(unit) = (first..first + units).find(|unit| self.is_written(segment, *unit)) {
            return Err(DeviceError::Overwrite { at: at(unit) });
        }
        if self.is_lost(segment) {
            return Err(DeviceError::WriteFault { at: at(first) });
        }
        let limit = cx.config.append.max_open;
        if limit > 0 && units > 0 && state.pointer == 0 && self.open_count() >= limit {
            return Err(DeviceError::TooManyOpen { limit });
        }
        Ok(())
    }

    /// Whether the buffer has room for a unit. A page that is not complete has room of its own in sequential mode, so that any number of
    /// segments may be written in turn.
    fn has_room(&self, unit: u32) -> bool {
        let completes = (unit + 1).is_multiple_of(self.per_page);
        match self.mode {
            AppendMode::Sequential => !completes || self.used + self.per_page <= self.capacity,
            AppendMode::WriteOnce => self.used < self.capacity,
        }
    }

    /// Puts a unit into the open part of its segment.
    pub(super) fn hold(&mut self, segment: u32, unit: u32, mut held: Unit) {
        let per_page = self.per_page;
        let state = &mut self.states[segment as usize];
        let open = self.open.entry(segment).or_insert_with(|| Open::new(state.pointer / per_page));
        state.pointer = state.pointer.max(unit + 1);
        let page = unit / per_page;
        while open.first + open.pages.len() as u32 <= page {
            open.pages.push_back(Page::Waiting);
            open.slots.extend((0..per_page).map(|_| Slot::Empty));
        }
        if open.page(page) != Page::Waiting {
            held.is_late = true;
            open.late += 1;
        }
        let nth = (unit - open.first * per_page) as usize;
        open.slots[nth] = Slot::Held(held);
        self.used += match self.mode {
            AppendMode::WriteOnce => 1,
            AppendMode::Sequential if (unit + 1).is_multiple_of(per_page) => per_page,
            AppendMode::Sequential => 0,
        };
    }

    /// One part of a command waits until its segment is durable up to `upto`.
    pub(super) fn wait<J: Copy>(&mut self, cx: &mut Cx<J>, command: u32, segment: u32, upto: u32) {
        let upto = upto.min(self.states[segment as usize].pointer);
        if self.is_lost(segment) && self.durable(segment) < upto {
            return self.fail(cx, command, segment);
        }
        let has_late = self.open.get(&segment).is_some_and(|open| open.late > 0);
        if has_late && cx.has_planted(PlantedBug::GapsUnmended) {
            return;
        }
        if self.durable(segment) < upto {
            cx.front.commands.get_mut(command).left += 1;
            self.waits.push(Wait { command, segment, upto });
            self.force(cx, segment, upto);
        }
    }

    /// Sets the error of a command that waits for what cannot be written.
    pub(super) fn fail<J: Copy>(&self, cx: &mut Cx<J>, command: u32, segment: u32) {
        let at = Self::address(cx, segment, self.durable(segment));
        cx.front.commands.get_mut(command).error.get_or_insert(DeviceError::WriteFault { at });
    }

    fn accept_flush<J: Copy>(
        &mut self,
        cx: &mut Cx<J>,
        at: u32,
        wanted: &[(u32, u32)],
        with_log: bool,
    ) -> Admitted {
        cx.accept(at);
        let early = cx.has_planted(PlantedBug::EarlyFlush);
        if !cx.is_protected() {
            for &(segment, upto) in wanted {
                match early {
                    true => self.force(cx, segment, upto),
                    false => self.wait(cx, at, segment, upto),
                }
            }
            if with_log && !early && !cx.has_planted(PlantedBug::LostTrim) {
                self.log.wait(cx, at);
            }
        }
        self.part_done(cx, at);
        Admitted::Done
    }

    /// Whether a change has to be on the medium before its command completes.
    fn completes_durably<J: Copy>(&self, cx: &Cx<J>, at: u32) -> bool {
        (self.writes_through || cx.front.commands.get(at).command.fua) && !cx.is_protected()
    }

    fn accept_trim<J: Copy>(&mut self, cx: &mut Cx<J>, at: u32, segment: u32) -> Admitted {
        let stream = cx.stream_of(at);
        if self.is_lost(segment) {
            let at_segment = Self::address(cx, segment, self.durable(segment));
            return self.refuse(cx, at, DeviceError::WriteFault { at: at_segment });
        }
        if let Some(stream) = stream.filter(|stream| self.streams.is_stuck(*stream)) {
            return self.refuse(cx, at, DeviceError::StreamFailed(stream));
        }
        let waits_for_moves = self.is_moving(segment);
        let is_durable = self.is_durable(segment) || cx.has_planted(PlantedBug::TrimPassesData);
        let is_first = stream.is_none_or(|stream| self.streams.is_first(stream));
        if !is_durable {
            let pointer = self.states[segment as usize].pointer;
            self.force(cx, segment, pointer);
        }
        if !is_durable || waits_for_moves || !is_first {
            return Admitted::Waits;
        }
        let seq = cx.accept(at);
        cx.metrics.host_trims += 1;
        if self.states[segment as usize].pointer > 0 {
            cx.metrics.host_units_trimmed += u64::from(self.states[segment as usize].pointer);
            self.trim(cx, segment, seq, stream);
        }
        self.end_epoch(cx, at);
        if self.completes_durably(cx, at) {
            self.log.wait(cx, at);
        }
        self.part_done(cx, at);
        Admitted::Done
    }

    /// Deallocates a segment; its blocks are free when the record is durable.
    fn trim<J: Copy>(&mut self, cx: &mut Cx<J>, segment: u32, seq: u64, stream: Option<StreamId>) {
        let blocks = self.blocks_of(segment).to_vec();
        (0..self.lanes).for_each(|lane| self.set_block(segment, lane, NO_BLOCK));
        self.discard(segment);
        self.open.remove(&segment);
        let state = &mut self.states[segment as usize];
        let raised = u32::from(!cx.has_planted(PlantedBug::GenerationNotRaised));
        (state.generation, state.trimmed_at, state.pointer) = (state.generation + raised, seq, 0);
        let generation = state.generation;
        let member = stream.map(|stream| (stream, self.streams.join(stream, 1)));
        let units = TrimRecord { lpn: self.lpn(segment, 0), count: u64::from(self.units), seq };
        if cx.is_protected() {
            cx.flash.media.note_saved(Saved::Trim(units));
        }
        self.log.add_trim(Trimmed { segment, generation, units, blocks, member });
        if cx.has_planted(PlantedBug::OldBlocksErasedEarly) {
            self.log.check_marks = true;
        }
    }

    /// Forgets units in the buffer of a segment that is deallocated. Only a planted bug leaves any.
    fn discard(&mut self, segment: u32) {
        let Some(open) = self.open.get(&segment) else { return };
        self.used -= self.used_by(open);
        for queue in &mut self.planes {
            queue.waiting.retain(|(other, _)| *other != segment);
        }
    }

    /// Ends one part of a command; the last one answers it.
    pub(super) fn part_done<J: Copy>(&mut self, cx: &mut Cx<J>, command: u32) {
        let active = cx.front.commands.get_mut(command);
        if active.left > 1 {
            active.left -= 1;
            return;
        }
        match self.appended.remove(&command) {
            Some(offset) => {
                let offset = self.guessed.remove(&command).unwrap_or(offset);
                cx.answer(command, Done::Appended { offset });
            }
            None => cx.complete(command),
        }
    }
}
