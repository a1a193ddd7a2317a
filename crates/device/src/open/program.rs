//! Programs of an open channel: pages are accepted at the write pointers of their chunks, and wait there until they have contents.
//!
//! Place in the data flow: writes and copies bring pages; the machine programs them; an end of a program ends a part of its command.
//!
//! Invariant: pages of a chunk go to the machine in the order of their acceptance.

use super::chunks::Chunk;
use super::job::{Cx, Job, Source};
use super::state::{Held, OpenChannel, fail};
use crate::flash::{Class, Frontier, Op as NandOp, OpKind, Purpose, UNBOUND, UnitImage};
use crate::geometry::{ChunkId, PageAddr};
use crate::planted::PlantedBug;
use flashweir_core::open::{NoticeReason, OpenError};
use flashweir_core::{Address, DeviceError, Lpn, Op, Payload, Ppa};

impl OpenChannel {
    pub(super) fn start_write(&mut self, cx: &mut Cx, command: u32, places: &[Ppa]) {
        cx.accept(command);
        cx.metrics.host_writes += 1;
        cx.metrics.host_units_written += places.len() as u64;
        cx.front.commands.get_mut(command).left = places.len() as u32 / cx.geometry.units_per_page;
        self.accept_pages(cx, Source::Write { command }, places);
    }

    /// Moves the write pointers of the chunks, and lets the machine have what it may.
    pub(super) fn accept_pages(&mut self, cx: &mut Cx, source: Source, places: &[Ppa]) {
        let per_page = cx.geometry.units_per_page as usize;
        let mut chunks: Vec<ChunkId> = Vec::new();
        for (first, units) in (0..).step_by(per_page).zip(places.chunks(per_page)) {
            let (chunk, _) = cx.geometry.chunk_of(units[0]);
            let (at, _) = cx.geometry.open_page(units[0]);
            self.chunks.change(chunk, Chunk::accept_page);
            self.held.entry(chunk).or_default().push_back(Held { at, source, first });
            if let (Source::Write { command }, true) = (source, self.serves_recent(cx)) {
                self.in_memory.insert((at.block, at.page), (command, first));
            }
            if chunks.last() != Some(&chunk) && !chunks.contains(&chunk) {
                chunks.push(chunk);
            }
        }
        self.release(cx, &chunks);
    }

    /// Gives the machine the pages of these chunks that have contents, up to the first that has none.
    pub(super) fn release(&mut self, cx: &mut Cx, chunks: &[ChunkId]) {
        let mut ops = Vec::new();
        for chunk in chunks {
            while let Some(Held { at, source, first }) = self.next_ready(cx, *chunk) {
                let plane = cx.geometry.plane_of(at.block);
                self.places.push(plane, at);
                ops.push(NandOp {
                    kind: OpKind::Program,
                    class: Class::Write,
                    plane,
                    at: UNBOUND,
                    frontier: Some(Frontier::USER),
                    bytes: 0,
                    purpose: Purpose::HostData,
                    job: Job::Program { source, first },
                });
            }
        }
        self.push_all(cx, ops);
    }

    /// Takes out the next page of a chunk if it has contents.
    fn next_ready(&mut self, cx: &Cx, chunk: ChunkId) -> Option<Held> {
        let held = self.held.get_mut(&chunk)?;
        let is_ready = |held: &Held| match held.source {
            Source::Write { .. } => true,
            Source::Copy { copy } => self.copies[&copy].reads == 0,
        };
        let at = match cx.has_planted(PlantedBug::WritePassesCopy) {
            true => held.iter().position(is_ready)?,
            false => Some(0).filter(|_| held.front().is_some_and(is_ready))?,
        };
        let next = held.remove(at);
        if held.is_empty() {
            self.held.remove(&chunk);
        }
        next
    }

    pub(super) fn program_done(&mut self, cx: &mut Cx, op: &NandOp<Job>, source: Source) {
        let PageAddr { block, page } = op.at;
        let (chunk, nth) = cx.geometry.chunk_of_page(op.at);
        let answers = self.answers(source);
        if cx.flash.random.chance(cx.config.faults.program_fail) {
            cx.metrics.program_failures += 1;
            cx.flash.media.spoil(op.at, 0, page);
            let at = Address::Ppa(cx.geometry.chunk_place(chunk, nth));
            let error = self.after_failure(cx, chunk, at);
            if let Some(command) = answers
                && !cx.has_planted(PlantedBug::FailedProgramAcknowledged)
            {
                fail(cx, command, error);
            }
        } else {
            cx.metrics.pages_programmed += 1;
            cx.metrics.user_units_programmed += u64::from(cx.geometry.units_per_page);
            let mut images = Vec::new();
            self.images(cx, op, &mut images);
            cx.flash.media.program(op.at, 0, images.into_iter());
        }
        self.in_memory.remove(&(block, page));
        self.chunks.change(chunk, Chunk::end_program);
        if let Source::Copy { copy } = source {
            self.copy_programmed(copy);
        }
        if let Some(command) = answers {
            cx.part_done(command);
        }
        if !cx.has_planted(PlantedBug::EraseUnderPrograms) {
            self.erase_if_idle(cx, chunk);
        }
    }

    /// A program has failed, and its page cannot be read. The chunk goes on with its next write unit or is closed early: pages that were
    /// accepted are still programmed, and none is accepted after them (open-channel §6.3).
    fn after_failure(&mut self, cx: &mut Cx, chunk: ChunkId, at: Address) -> DeviceError {
        let was_closed = self.chunks[chunk].is_closed_early;
        if !was_closed && cx.flash.random.chance(cx.config.faults.chunk_goes_on) {
            return DeviceError::WriteFault { at };
        }
        self.chunks.change(chunk, |chunk| chunk.is_closed_early = true);
        if !was_closed {
            self.notices.add(cx.geometry.chunk_place(chunk, 0), NoticeReason::ClosedEarly);
        }
        DeviceError::Open { at, what: OpenError::ClosedEarly }
    }

    /// The command that a program is a part of, unless it has been answered already.
    fn answers(&self, source: Source) -> Option<u32> {
        match source {
            Source::Write { command } => Some(command),
            Source::Copy { copy } => {
                let copy = &self.copies[&copy];
                (!copy.is_answered).then_some(copy.command)
            }
        }
    }

    /// See [`crate::firmware::Firmware::image`].
    pub(super) fn images(&self, cx: &Cx, op: &NandOp<Job>, images: &mut Vec<UnitImage>) {
        let Job::Program { source, first } = op.job else { return };
        let units = first as usize..(first + cx.geometry.units_per_page) as usize;
        match source {
            Source::Copy { copy } => images.extend_from_slice(&self.copies[&copy].images[units]),
            Source::Write { command } => {
                let is_mixed = cx.has_planted(PlantedBug::RecordsMixed);
                images.extend(units.map(|nth| {
                    let (payload, record) =
                        written_unit(cx, command, nth, is_mixed.then_some(first as usize));
                    UnitImage::with_record(record, payload)
                }));
            }
        }
    }
}

/// Content and out-of-band record of unit `nth` of a write that has not ended; the record of another unit if one is given.
pub(super) fn written_unit(
    cx: &Cx,
    command: u32,
    nth: usize,
    record_of: Option<usize>,
) -> (Payload, flashweir_core::oob::OobRecord) {
    let Op::PpaWrite(write) = &cx.front.commands.get(command).command.op else {
        unreachable!("only writes program");
    };
    let bytes = cx.geometry.unit_bytes as usize;
    let payload = match cx.flash.media.tracks_contents() {
        true => write.data.unit(Lpn(write.ppas[nth].0), nth, nth * bytes..(nth + 1) * bytes),
        false => Payload::Zero,
    };
    (payload, write.records[record_of.unwrap_or(nth)])
}
