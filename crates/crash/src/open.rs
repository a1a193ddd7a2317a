//! The laboratory of the open channel: histories of programs, copies and resets, with every power cut in them
//! (crash-laboratory §1, D6).
//!
//! Place in the data flow: a random host keeps several commands in flight at a tiny device; before each event the power
//! is cut in every way that the interrupted operations allow, the device is recovered, and its contents and chunks are
//! checked against the answers that the host got. The rules, per page, are those of open-channel §6 and commands §6:
//!
//! 1. What completed is there, contents and records, until a reset of its chunk was submitted.
//! 2. A program in flight is there as a whole, or cannot be read, or was never written; so is a page of a chunk whose
//!    reset is in flight.
//! 3. What can be read is what was written there, or what the source of a copy held when the copy was submitted.
//! 4. A chunk whose reset has completed is empty, and accepts its pages again.
//! 5. A chunk that is left uneven or damaged is closed; all others go on behind their last page.
//! 6. The device answers as its chunks are: with contents, reports and the refusals of the specification.

use crate::explorer::WorldSpec;
use crate::ruled::{Core, Ruled};
use flashweir_core::command::{OPEN_NAMESPACE, PpaWrite, pattern};
use flashweir_core::oob::{OobRecord, Owner};
use flashweir_core::open::{BlockMark, ChunkReport, ChunkState, MarkBlocks, OpenError, PpaCopy};
use flashweir_core::{
    Address, Command, CommandId, Completion, Data, DeviceError, Done, Instant, Lpn, Op, Payload, Ppa,
};
use flashweir_device::config::{OpenVersion, PointerMove};
use flashweir_device::flash::PageState;
use flashweir_device::geometry::{ChunkId, Geometry};
use flashweir_device::{Device, Effect};
use std::collections::BTreeMap;
use std::sync::Arc;

/// Content and out-of-band record of a unit.
type Unit = (Payload, OobRecord);

/// What a host knows of a page.
#[derive(Clone, Debug, PartialEq)]
enum Known {
    /// Nothing was written since the last reset.
    Empty,
    /// What was written; completed if so.
    Written { units: Arc<[Unit]>, is_done: bool },
    /// Nothing is promised until the next reset: a reset or a program was cut or has failed. What can be read is this.
    Open { units: Arc<[Unit]> },
}

/// What a host knows of a chunk, in pages.
#[derive(Clone, Debug, PartialEq)]
struct Chunk {
    pages: Vec<Known>,
    /// Pages that it submitted since the last reset.
    accepted: u32,
    /// The same when no write of the chunk was under way the last time.
    settled: u32,
    /// Writes and copies into the chunk under way.
    writes: u32,
    is_erasing: bool,
    is_closed_early: bool,
    is_offline: bool,
}

/// What a command under way has to be answered.
#[derive(Clone, Debug, PartialEq)]
enum Expected {
    /// Success, or a failure of the medium.
    Done,
    /// As the page was known when the read was submitted.
    Page(Known),
    /// This chunk.
    Chunk(ChunkReport),
    /// This mark of a block.
    Mark { nth: usize, is_reserved: bool },
    /// A refusal.
    Refusal(DeviceError),
}

/// A command under way.
#[derive(Clone, Debug)]
struct Flying {
    op: Op,
    expected: Expected,
}

/// A host of an open channel.
#[derive(Clone, Debug)]
pub(crate) struct World<'a> {
    core: Core<'a>,
    chunks: Vec<Chunk>,
    /// By block: whether the host has reserved it (OCSSD 1.2).
    reserved: Vec<bool>,
    flying: BTreeMap<u64, Flying>,
}

impl<'a> Ruled<'a> for World<'a> {
    const NAME: &'static str = "open";
    const COMMANDS: u32 = 48;
    const HAS_RECOVERY: bool = false;

    fn new(spec: &'a WorldSpec) -> Self {
        let core = Core::new(spec, "open channel");
        let geometry = core.device.geometry();
        let chunk = Chunk {
            pages: vec![Known::Empty; geometry.open.pages as usize],
            accepted: 0,
            settled: 0,
            writes: 0,
            is_erasing: false,
            is_closed_early: false,
            is_offline: false,
        };
        Self {
            chunks: vec![chunk; geometry.open.chunks as usize],
            reserved: vec![false; geometry.blocks() as usize],
            flying: BTreeMap::new(),
            core,
        }
    }

    fn core(&self) -> &Core<'a> {
        &self.core
    }

    fn core_mut(&mut self) -> &mut Core<'a> {
        &mut self.core
    }

    /// A program, a copy or a reset, a read or a report, a FLUSH, or a command that has to be refused.
    fn choose(&mut self) -> Option<(Command, String)> {
        let all = self.chunks.len() as u64;
        let id = self.core.random.below(all) as usize;
        let (op, text, expected) = match self.core.random.below(18) {
            0..6 => {
                let id = self.looked_for(|world, id| world.takes_writes(id));
                self.program(id)
            }
            6..8 if self.is_20() => {
                let id = self.looked_for(|world, id| world.takes_writes(id));
                self.copy(id)
            }
            6..10 => {
                let id = self.looked_for(|world, id| world.is_reset_due(id));
                self.reset(id)
            }
            10 => (Op::Flush, "FLUSH".into(), Expected::Done),
            11 => self.out_of_place(id),
            12 if self.is_20() => self.report(id),
            12 => self.mark(id),
            _ => {
                let id = self.looked_for(|world, id| world.chunks[id].accepted > 0);
                self.read(id)
            }
        };
        let number = self.core.next;
        self.flying.insert(number, Flying { op: op.clone(), expected });
        Some((Command { ns: OPEN_NAMESPACE, ..Command::new(number, op) }, text))
    }

    fn accepted(&mut self, _: u64) {}

    fn completed(
        &mut self,
        Completion { id: CommandId(number), result, .. }: Completion,
    ) -> Result<(), String> {
        let Flying { op, expected } =
            self.flying.remove(&number).ok_or_else(|| format!("command {number} completes twice"))?;
        let wrong = |what: &dyn std::fmt::Debug| {
            Err(format!("command {number}, {op:?}: {result:?} where it has to be {what:?}"))
        };
        match expected {
            Expected::Refusal(error) => match &result {
                Err(said) if *said == error || self.may_fail() && is_of_failure(said) => Ok(()),
                _ => wrong(&error),
            },
            Expected::Page(known) if !is_read_back(&op, &known, &result) => wrong(&known),
            Expected::Page(_) => Ok(()),
            Expected::Chunk(report) => match &result {
                Ok(Done::Chunks(chunks)) if chunks[..] == [report] => Ok(()),
                _ => wrong(&report),
            },
            Expected::Mark { nth, is_reserved } => match &result {
                Ok(Done::Marks(marks)) if (marks[nth] == BlockMark::HostReserved) == is_reserved => Ok(()),
                _ => wrong(&is_reserved),
            },
            Expected::Done => match &op {
                Op::PpaWrite(write) => self.written(&write.ppas, &result),
                Op::PpaCopy(copy) => self.written(&copy.destinations, &result),
                Op::PpaErase(places) => self.erased(places[0], &result),
                _ => result.map(drop).map_err(|error| format!("command {number}, {op:?}: {error}")),
            },
        }
    }

    fn after(&self, device: Device) -> Result<Self, String> {
        let chunks = self.chunks.clone();
        let reserved = self.reserved.clone();
        let mut after = Self { core: self.core.above(device), chunks, reserved, flying: BTreeMap::new() };
        for chunk in 0..after.chunks.len() {
            after.judge(chunk)?;
        }
        after.judge_marks()?;
        Ok(after)
    }

    fn sees_the_same(&self, other: &Self) -> bool {
        self.chunks == other.chunks
    }
}

/// An operation, its text for the drawing, and how it has to be answered.
type Choice = (Op, String, Expected);

impl World<'_> {
    fn geometry(&self) -> &Geometry {
        self.core.device.geometry()
    }

    fn is_20(&self) -> bool {
        self.core.spec.config.open.version == OpenVersion::V20
    }

    /// Whether programs and erases may fail, so that the host does not know everything of a chunk.
    fn may_fail(&self) -> bool {
        let faults = &self.core.spec.config.faults;
        faults.program_fail > 0.0 || faults.erase_fail > 0.0 || faults.endurance > 0
    }

    /// Addresses of pages of a chunk.
    fn places(&self, chunk: usize, first: u32, pages: u32) -> Box<[Ppa]> {
        let per_page = self.geometry().units_per_page;
        let from = self.geometry().chunk_place(ChunkId(chunk as u32), first).0;
        (from..from + u64::from(pages * per_page)).map(Ppa).collect()
    }

    /// The write pointer of a chunk as its device shows it, in pages.
    fn shown(&self, chunk: &Chunk) -> u32 {
        match self.core.spec.config.open.pointer {
            PointerMove::Programmed if chunk.writes > 0 => chunk.settled,
            PointerMove::Programmed | PointerMove::Accepted => chunk.accepted,
        }
    }

    fn is_open(&self, chunk: &Chunk) -> bool {
        !chunk.is_closed_early && (1..chunk.pages.len() as u32).contains(&chunk.accepted)
    }

    /// Why a write that begins at this page has to be refused, if it has to.
    fn refusal(&self, id: usize, page: u32) -> Option<DeviceError> {
        let chunk = &self.chunks[id];
        let at = Address::Ppa(self.geometry().chunk_place(ChunkId(id as u32), page));
        let per_page = self.geometry().units_per_page;
        let waits = self.core.spec.config.open.pointer == PointerMove::Programmed && chunk.writes > 0;
        let limit = self.core.spec.config.open.max_open;
        let open = self.chunks.iter().filter(|chunk| self.is_open(chunk)).count() as u32;
        match () {
            () if chunk.is_offline => Some(DeviceError::Open { at, what: OpenError::Offline }),
            () if chunk.is_erasing || page < chunk.accepted => Some(DeviceError::Overwrite { at }),
            () if chunk.is_closed_early => Some(DeviceError::Open { at, what: OpenError::ClosedEarly }),
            () if waits => Some(DeviceError::OutOfOrder { at, expected: chunk.settled * per_page }),
            () if page > chunk.accepted => {
                Some(DeviceError::OutOfOrder { at, expected: chunk.accepted * per_page })
            }
            () if limit > 0 && chunk.accepted == 0 && open >= limit => {
                Some(DeviceError::TooManyOpen { limit })
            }
            () => None,
        }
    }

    /// Draws chunks until one is found that is wanted; the last one drawn if that takes too long.
    fn looked_for(&mut self, is_wanted: impl Fn(&Self, usize) -> bool) -> usize {
        let all = self.chunks.len() as u64;
        let mut id = self.core.random.below(all) as usize;
        for _ in 0..8 {
            if is_wanted(self, id) {
                break;
            }
            id = self.core.random.below(all) as usize;
        }
        id
    }

    /// Whether a write of the chunk's next page is accepted.
    fn takes_writes(&self, id: usize) -> bool {
        let accepted = self.chunks[id].accepted;
        accepted < self.geometry().open.pages && self.refusal(id, accepted).is_none()
    }

    /// Whether a chunk is half full at least, or closed.
    fn is_reset_due(&self, id: usize) -> bool {
        let chunk = &self.chunks[id];
        let is_due = chunk.accepted > self.geometry().open.pages / 2 || chunk.is_closed_early;
        is_due && !chunk.is_offline && !chunk.is_erasing
    }

    /// The first page of the next write unit of a chunk, and the pages that a program of it has: whole write units, 0 if there is no
    /// room.
    fn next_pages(&mut self, id: usize) -> (u32, u32) {
        let write_pages = self.geometry().open.write_pages;
        let all = self.geometry().open.pages;
        let first = self.chunks[id].accepted.next_multiple_of(write_pages);
        let wanted = write_pages * (1 + self.core.random.below(3) as u32);
        (first, wanted.min(all - first.min(all)))
    }

    /// Notes pages that are about to be written.
    fn note_written(&mut self, id: usize, pages: u32, units: &[Unit]) {
        let per_page = self.geometry().units_per_page as usize;
        let chunk = &mut self.chunks[id];
        for (page, units) in (chunk.accepted..chunk.accepted + pages).zip(units.chunks(per_page)) {
            chunk.pages[page as usize] = Known::Written { units: units.into(), is_done: false };
        }
        chunk.accepted += pages;
        chunk.writes += 1;
    }

    fn program(&mut self, id: usize) -> Choice {
        let (first, pages) = self.next_pages(id);
        if pages == 0 {
            return self.reset(id);
        }
        let op = self.write(id, first, pages);
        match self.refusal(id, first) {
            Some(error) => (op, format!("program of chunk {id}, page {first}"), Expected::Refusal(error)),
            None => {
                let number = self.core.next;
                let unit =
                    |place: &Ppa| (Payload::Tag(pattern(number, Lpn(place.0))), record(number, *place));
                let units: Vec<Unit> = self.places(id, first, pages).iter().map(unit).collect();
                self.note_written(id, pages, &units);
                let text = format!("program of chunk {id}, pages {first} to {}", first + pages - 1);
                (op, text, Expected::Done)
            }
        }
    }

    fn write(&self, id: usize, first: u32, pages: u32) -> Op {
        let number = self.core.next;
        let ppas = self.places(id, first, pages);
        let records = ppas.iter().map(|place| record(number, *place)).collect();
        let blocks = ppas.len() as u32 * self.geometry().lbas_per_unit as u32;
        PpaWrite { ppas, blocks, records, data: Data::Pattern(number) }.into()
    }

    /// A copy of units that are certain to be there, with or without new records.
    fn copy(&mut self, id: usize) -> Choice {
        let (first, pages) = self.next_pages(id);
        let certain = self.certain();
        if pages == 0 || certain.is_empty() {
            return self.read(id);
        }
        let destinations = self.places(id, first, pages);
        let mut sources = Vec::new();
        let mut units = Vec::new();
        let from = self.core.random.below(certain.len() as u64) as usize;
        for nth in 0..destinations.len() {
            let (place, unit) = &certain[(from + nth) % certain.len()];
            sources.push(*place);
            units.push(unit.clone());
        }
        let number = self.core.next;
        let is_renewed = self.core.random.below(2) == 0;
        if is_renewed {
            units.iter_mut().zip(&destinations).for_each(|(unit, place)| unit.1 = record(number, *place));
        }
        let records = is_renewed.then(|| units.iter().map(|unit| unit.1).collect());
        let text = format!("copy of {} and others to chunk {id}, page {first}", sources[0].0);
        let op = Op::PpaCopy(Box::new(PpaCopy { sources: sources.into(), destinations, records }));
        match self.refusal(id, first) {
            Some(error) => (op, text, Expected::Refusal(error)),
            None => {
                self.note_written(id, pages, &units);
                (op, text, Expected::Done)
            }
        }
    }

    /// Units that can be read for certain.
    fn certain(&self) -> Vec<(Ppa, Unit)> {
        let mut certain = Vec::new();
        for (id, chunk) in self.chunks.iter().enumerate().filter(|(_, chunk)| !chunk.is_erasing) {
            for (page, known) in (0..).zip(&chunk.pages) {
                let Known::Written { units, is_done: true } = known else { continue };
                let places = self.places(id, page, 1);
                certain.extend(
                    places
                        .into_iter()
                        .zip(units.iter().cloned())
                        .filter(|(place, _)| !self.is_recent(*place)),
                );
            }
        }
        certain
    }

    /// Whether a unit is one of the last ones of an open chunk, which the flash does not give back.
    fn is_recent(&self, place: Ppa) -> bool {
        let cached = self.core.spec.config.open.cached_units;
        let (ChunkId(id), unit) = self.geometry().chunk_of(place);
        let chunk = &self.chunks[id as usize];
        let per_page = self.geometry().units_per_page;
        let is_behind = unit + cached >= self.shown(chunk) * per_page;
        cached > 0 && self.is_open(chunk) && unit < chunk.accepted * per_page && is_behind
    }

    /// A reset, mostly of a chunk that is at least half full.
    fn reset(&mut self, id: usize) -> Choice {
        let geometry = self.geometry();
        let first = geometry.chunk_place(ChunkId(id as u32), 0);
        let chunk = &self.chunks[id];
        let at = Address::Ppa(first);
        let (op, text) = (Op::PpaErase([first].into()), format!("reset of chunk {id}"));
        match () {
            () if chunk.is_erasing => self.read(id),
            () if chunk.is_offline => {
                (op, text, Expected::Refusal(DeviceError::Open { at, what: OpenError::Offline }))
            }
            () if chunk.accepted == 0 && !chunk.is_closed_early && self.is_20() => {
                (op, text, Expected::Refusal(DeviceError::Open { at, what: OpenError::InvalidReset }))
            }
            () if self.is_reset_due(id) => {
                self.chunks[id].is_erasing = true;
                (op, text, Expected::Done)
            }
            () => self.read(id),
        }
    }

    /// A program of what was written, or of what is not next.
    fn out_of_place(&mut self, id: usize) -> Choice {
        let geometry = self.geometry();
        let (all, write_pages) = (geometry.open.pages, geometry.open.write_pages);
        let page = self.core.random.below(u64::from(all / write_pages)) as u32 * write_pages;
        match self.refusal(id, page) {
            Some(error) => {
                let text = format!("program of chunk {id}, page {page} out of place");
                (self.write(id, page, write_pages), text, Expected::Refusal(error))
            }
            None => self.program(id),
        }
    }

    fn report(&mut self, id: usize) -> Choice {
        // A program may have failed of which the host does not know.
        if self.may_fail() {
            return self.read(id);
        }
        let expected = Expected::Chunk(self.expected_report(id));
        (Op::ChunkReport { first: id as u32, count: 1 }, format!("report on chunk {id}"), expected)
    }

    /// The report of a chunk of which everything is known.
    fn expected_report(&self, id: usize) -> ChunkReport {
        let (geometry, chunk) = (self.geometry(), &self.chunks[id]);
        let (pointer, all) = (self.shown(chunk), geometry.open.pages);
        let state = match () {
            () if chunk.is_offline => ChunkState::Offline,
            () if chunk.is_closed_early || pointer == all => ChunkState::Closed,
            () if chunk.accepted > 0 => ChunkState::Open,
            () => ChunkState::Free,
        };
        let is_short = matches!(state, ChunkState::Closed | ChunkState::Offline);
        let chunk_id = ChunkId(id as u32);
        let erases =
            geometry.chunk_blocks(chunk_id).map(|block| self.core.device.media().erases(block)).max();
        ChunkReport {
            state,
            wear: erases.unwrap_or(0).min(255) as u8,
            first: geometry.chunk_place(chunk_id, 0),
            units: if is_short { pointer } else { all } * geometry.units_per_page,
            pointer: pointer * geometry.units_per_page,
        }
    }

    /// Sets or asks for the mark of a block.
    fn mark(&mut self, id: usize) -> Choice {
        // A bad block stays bad.
        if self.chunks[id].is_offline {
            return self.read(id);
        }
        let geometry = self.geometry();
        let (planes, per_plane) = (geometry.open.planes as usize, geometry.blocks_per_plane as usize);
        let page = self.core.random.below(planes as u64) as u32;
        let geometry = self.geometry();
        let block = geometry.chunk_block(ChunkId(id as u32), page).0 as usize;
        let place = geometry.chunk_place(ChunkId(id as u32), page);
        let is_reserved = self.reserved[block];
        if self.core.random.below(2) == 0 {
            let op = Op::BlockMarks { parallel_unit: (id / per_plane) as u32 };
            let nth = id % per_plane * planes + page as usize;
            return (op, format!("marks of block {block}"), Expected::Mark { nth, is_reserved });
        }
        self.reserved[block] = !is_reserved;
        let mark = if is_reserved { BlockMark::Good } else { BlockMark::HostReserved };
        let op = Op::MarkBlocks(Box::new(MarkBlocks { places: [place].into(), mark }));
        (op, format!("mark of block {block}: {mark}"), Expected::Done)
    }

    fn read(&mut self, id: usize) -> Choice {
        let geometry = self.geometry();
        let (pages, per_page) = (u64::from(geometry.open.pages), u64::from(geometry.units_per_page));
        // Mostly of a page that was written.
        let pages = match self.chunks[id].accepted {
            1.. if self.core.random.below(4) > 0 => u64::from(self.chunks[id].accepted),
            _ => pages,
        };
        let page = self.core.random.below(pages) as u32;
        let unit = self.core.random.below(per_page);
        let place = Ppa(self.geometry().chunk_place(ChunkId(id as u32), page).0 + unit);
        let (chunk, at) = (&self.chunks[id], Address::Ppa(place));
        let known = chunk.pages[page as usize].clone();
        let expected = match () {
            () if chunk.is_erasing => Expected::Refusal(DeviceError::NotWritten { at }),
            () if self.is_recent(place) && self.is_20() => {
                Expected::Refusal(DeviceError::Open { at, what: OpenError::TooRecent })
            }
            // The device has it in its memory, with or without its program having ended.
            () if self.is_recent(place) => Expected::Page(match known {
                Known::Written { units, .. } => Known::Written { units, is_done: true },
                Known::Empty | Known::Open { .. } => known,
            }),
            () => Expected::Page(known),
        };
        let op = Op::PpaRead { ppas: [place].into(), blocks: self.geometry().lbas_per_unit as u32 };
        (op, format!("read of chunk {id}, page {page}, unit {unit}"), expected)
    }

    /// Judges the answer to a write or copy that had to be accepted, and takes it over.
    fn written(&mut self, places: &[Ppa], result: &Result<Done, DeviceError>) -> Result<(), String> {
        let may_fail = self.core.spec.config.faults.program_fail > 0.0;
        let geometry = self.core.device.geometry();
        let (ChunkId(id), first) = geometry.chunk_of(places[0]);
        let per_page = geometry.units_per_page;
        let (first, pages) = (first / per_page, places.len() as u32 / per_page);
        let chunk = &mut self.chunks[id as usize];
        chunk.writes -= 1;
        if chunk.writes == 0 {
            chunk.settled = chunk.accepted;
        }
        for known in &mut chunk.pages[first as usize..(first + pages) as usize] {
            if let Known::Written { units, .. } = known {
                let units = Arc::clone(units);
                *known = match result {
                    Ok(_) => Known::Written { units, is_done: true },
                    Err(_) => Known::Open { units },
                };
            }
        }
        match result {
            Ok(Done::Ok) => Ok(()),
            Err(DeviceError::WriteFault { .. }) if may_fail => Ok(()),
            Err(DeviceError::Open { what: OpenError::ClosedEarly, .. }) if may_fail => {
                chunk.is_closed_early = true;
                Ok(())
            }
            other => Err(format!("write of {:?}: {other:?}", places[0])),
        }
    }

    fn erased(&mut self, place: Ppa, result: &Result<Done, DeviceError>) -> Result<(), String> {
        let may_fail = self.may_fail();
        let (ChunkId(id), _) = self.core.device.geometry().chunk_of(place);
        let chunk = &mut self.chunks[id as usize];
        chunk.is_erasing = false;
        match result {
            Ok(Done::Ok) => {
                chunk.pages.fill(Known::Empty);
                (chunk.accepted, chunk.settled, chunk.is_closed_early) = (0, 0, false);
                Ok(())
            }
            Err(DeviceError::Open { what: OpenError::Offline, .. }) if may_fail => {
                (chunk.is_offline, chunk.is_closed_early) = (true, true);
                chunk.pages.iter_mut().for_each(open_up);
                Ok(())
            }
            other => Err(format!("reset of {place:?}: {other:?}")),
        }
    }

    /// Holds one chunk against what is known, and takes over what it shows.
    fn judge(&mut self, id: usize) -> Result<(), String> {
        let media = self.core.device.media();
        let geometry = self.core.device.geometry();
        let chunk_id = ChunkId(id as u32);
        let is_erasing = self.chunks[id].is_erasing;
        let mut seen = Vec::new();
        for (page, known) in (0..).zip(&self.chunks[id].pages) {
            let at = geometry.chunk_page(chunk_id, page);
            let state = media.page_state(at);
            let wrong = |what: &str| Err(format!("chunk {id}, page {page}: {what} ({known:?})"));
            let units = match known {
                Known::Empty if state == PageState::Erased || is_erasing || media.erase_torn(at.block) => {
                    None
                }
                Known::Empty => return wrong("a page that was never written is not erased"),
                Known::Written { is_done: true, .. } if !is_erasing && state != PageState::Good => {
                    return wrong("what completed is not there");
                }
                Known::Written { units, .. } | Known::Open { units } => Some(Arc::clone(units)),
            };
            if let (PageState::Good, Some(units)) = (state, &units) {
                let is_there = |(nth, expected): (u32, &Unit)| {
                    let unit = geometry.ppa(at, nth);
                    media.payload(unit).zip(media.record(unit)).as_ref() == Some(expected)
                };
                if !(0..).zip(units.iter()).all(is_there) {
                    return wrong("what can be read is not what was written there");
                }
            }
            seen.push((state, units));
        }
        let end = seen.iter().rposition(|(state, _)| *state != PageState::Erased).map_or(0, |at| at + 1);
        let is_torn = geometry.chunk_blocks(chunk_id).any(|block| media.erase_torn(block));
        let is_offline = geometry.chunk_blocks(chunk_id).any(|block| media.is_bad(block));
        let is_even = seen[..end].iter().all(|(state, _)| *state == PageState::Good)
            && (end as u32).is_multiple_of(geometry.open.write_pages);
        // What a torn erase has left cannot be read, and counts for nothing in the write pointer.
        let written = (0..seen.len()).filter(|page| {
            let at = geometry.chunk_page(chunk_id, *page as u32);
            at.page < media.pages_written(at.block)
        });
        let accepted = written.max().map_or(0, |page| page as u32 + 1);
        // From here on the host knows what it sees.
        let chunk = &mut self.chunks[id];
        *chunk = Chunk {
            pages: seen
                .into_iter()
                .map(|(state, units)| match (state, units) {
                    (PageState::Good, Some(units)) => Known::Written { units, is_done: true },
                    (PageState::Unreadable, Some(units)) => Known::Open { units },
                    _ => Known::Empty,
                })
                .collect(),
            accepted,
            settled: accepted,
            writes: 0,
            is_erasing: false,
            is_closed_early: is_torn || is_offline || !is_even,
            is_offline,
        };
        self.judge_report(id)
    }

    /// The device sees the chunk as its medium is.
    fn judge_report(&self, id: usize) -> Result<(), String> {
        if !self.is_20() || self.core.spec.config.faults.endurance > 0 {
            return Ok(());
        }
        let expected = self.expected_report(id);
        let op = Op::ChunkReport { first: id as u32, count: 1 };
        let command = Command { ns: OPEN_NAMESPACE, ..Command::new(u64::MAX, op) };
        let mut effects = Vec::new();
        self.core.device.clone().command(Instant::ZERO, command, &mut effects);
        let is_so = |effect: &Effect| match effect {
            Effect::Complete(Completion { result: Ok(Done::Chunks(chunks)), .. }) => chunks[..] == [expected],
            _ => false,
        };
        match effects.iter().any(is_so) {
            true => Ok(()),
            false => Err(format!("chunk {id} is reported as {effects:?}, and is {expected:?}")),
        }
    }

    /// Marks that a host has set are on the medium at once.
    fn judge_marks(&self) -> Result<(), String> {
        for (block, is_reserved) in self.reserved.iter().enumerate() {
            let mark = self.core.device.media().mark(flashweir_ftl::BlockId(block as u32));
            if *is_reserved != (mark == BlockMark::HostReserved) && !mark.is_bad() {
                return Err(format!("block {block} is {mark}; reserved by the host: {is_reserved}"));
            }
        }
        Ok(())
    }
}

/// Nothing is promised of the page any more.
fn open_up(known: &mut Known) {
    if let Known::Written { units, .. } = known {
        *known = Known::Open { units: Arc::clone(units) };
    }
}

/// Whether an error may come in the place of another refusal because the chunk has failed.
fn is_of_failure(error: &DeviceError) -> bool {
    matches!(
        error,
        DeviceError::Open { what: OpenError::ClosedEarly | OpenError::Offline, .. }
            | DeviceError::Overwrite { .. }
    )
}

/// Whether a read of a page of which this was known when it was submitted may be answered so.
fn is_read_back(op: &Op, known: &Known, result: &Result<Done, DeviceError>) -> bool {
    let Op::PpaRead { ppas, .. } = op else { return false };
    let is_content = |units: &[Unit]| match result {
        Ok(Done::Units(read)) => {
            let (content, record) = &units[(ppas[0].0 % units.len() as u64) as usize];
            read.data[..] == [content.clone()] && read.records[..] == [*record]
        }
        _ => false,
    };
    let is_unwritten = matches!(result, Err(DeviceError::NotWritten { .. }));
    let is_unreadable = matches!(result, Err(DeviceError::Uncorrectable { .. }));
    match known {
        Known::Empty => is_unwritten,
        Known::Written { units, is_done: true } => is_content(units),
        Known::Written { units, is_done: false } | Known::Open { units } => {
            is_content(units) || is_unwritten || is_unreadable
        }
    }
}

/// The out-of-band record of an operation's unit: all of it differs from place to place.
fn record(operation: u64, ppa: Ppa) -> OobRecord {
    OobRecord { owner: Owner::Lpn(Lpn(operation << 20 | ppa.0)), seq: operation, member: None }
}

#[cfg(test)]
mod tests {
    use super::*;

    use crate::devices::tiny_open;
    use crate::explorer::{Counts, Effort, Fault, Found};
    use crate::ruled::{explore_world, live, medium, quiet};
    use crate::token::Chosen;
    use flashweir_device::{Media, Recovery};

    fn specs() -> impl Iterator<Item = WorldSpec> {
        let of = |config| WorldSpec { config, seed: 3, planted: None, effort: Effort::SHALLOW };
        tiny_open().into_iter().map(of)
    }

    #[test]
    fn a_device_that_loses_what_completed_is_found_out() {
        for spec in specs() {
            let mut world: World = quiet(&spec, 60);
            let media = medium(&world.core);
            let woken = |media: Media| Recovery::begin(&spec.config, spec.options(), media).finish().0;
            world.after(woken(media.clone())).unwrap();
            let is_held = |known: &Known| matches!(known, Known::Written { is_done: true, .. });
            let held = world.chunks.iter().position(|chunk| chunk.pages.iter().any(is_held));
            let chunk = held.expect("something was written");
            let page = world.chunks[chunk].pages.iter().position(is_held).unwrap();
            let at = world.geometry().chunk_page(ChunkId(chunk as u32), page as u32);
            let mut erased = media.clone();
            erased.erase(at.block);
            assert!(world.after(woken(erased)).is_err());
            let Known::Written { units, .. } = &mut world.chunks[chunk].pages[page] else { unreachable!() };
            *units = units.iter().map(|(_, record)| (Payload::Tag(1), *record)).collect();
            assert!(world.after(woken(media)).is_err(), "another version than was written");
        }
    }

    /// The cut at its end would be sound: it is the end itself that is not.
    #[test]
    fn regression_a_hang_is_shown_again_by_its_token() {
        for spec in specs() {
            let mut world = World::new(&spec);
            world.core.in_flight += 1;
            let mut counts = Counts::default();
            let hang =
                |found: &Found| matches!(&found.fault, Fault::Rule(what) if what.contains("never complete"));
            let (found, _) =
                *live(world.clone(), 0, 4, None, &mut counts).expect_err("a command never completes");
            assert!(hang(&found), "{found:?}");
            let token = found.token(&spec, Chosen::Some((0..4).collect()));
            let (again, _) = *live(world, 0, 4, Some(&token), &mut counts).expect_err("it still does not");
            assert!(hang(&again), "{again:?}");
        }
    }

    #[test]
    fn a_world_repeats() {
        for spec in specs() {
            let (counts, found) = explore_world::<World>(&spec);
            assert_eq!(found, None);
            assert_eq!(explore_world::<World>(&spec), (counts, None));
            println!("{}: {counts:?}", spec.config.name);
            assert!(counts.states > 200 && counts.distinct > 50, "{counts:?}");
        }
    }
}
