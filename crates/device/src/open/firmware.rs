//! The open channel as a [`Firmware`]: from a command to its operations, and from their ends to its completion.

use super::job::Job;
use super::places::Places;
use crate::config::DeviceConfig;
use crate::effect::Event;
use crate::firmware::{DeviceOptions, Firmware, Plan, boot};
use crate::flash::plan::duration;
use crate::flash::{
    Class, Frontier, Media, Op as NandOp, OpKind, Purpose, RecoveryReport, SaveArea, UNBOUND, UnitImage,
};
use crate::geometry::{Geometry, PageAddr};
use crate::planted::PlantedBug;
use flashweir_core::command::Units;
use flashweir_core::index::Idx;
use flashweir_core::{Address, Command, DeviceError, Done, Lpn, Op, Payload, Ppa};
use flashweir_ftl::BlockId;
use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write as _;

/// The context of this firmware.
pub(super) type Cx = crate::cx::Cx<Job>;

/// State of a block besides its medium.
#[derive(Clone, Copy, Debug, Default)]
struct Chunk {
    /// Write pointer: the next page to be accepted.
    pointer: u32,
    /// Number of programs that have not ended.
    programs: u32,
    /// The command that is to erase the block.
    eraser: Option<u32>,
}

/// The firmware.
#[derive(Clone, Debug)]
pub(crate) struct OpenChannel {
    places: Places,
    chunks: Vec<Chunk>,
    /// Results of reads under way. They are taken when the read arrives, because an erase may come between the reads of its pages.
    found: BTreeMap<u32, Done>,
}

impl OpenChannel {
    /// Whether an erase of the block was accepted and has not ended.
    pub(super) fn is_erasing(&self, block: BlockId) -> bool {
        self.chunks[block.index()].eraser.is_some()
    }

    /// Write pointer of the block: the next page to be accepted.
    pub(super) fn write_pointer(&self, block: BlockId) -> u32 {
        self.chunks[block.index()].pointer
    }

    fn start_read(&mut self, cx: &mut Cx, command: u32, ppas: &[Ppa]) {
        cx.metrics.host_reads += 1;
        cx.metrics.host_units_read += ppas.len() as u64;
        self.look_up(cx, command, ppas);
        let pages: Vec<(PageAddr, u32)> = ppas.iter().fold(Vec::new(), |mut pages, ppa| {
            let at = cx.geometry.page_of(*ppa).0;
            match pages.last_mut() {
                Some((last, units)) if *last == at => *units += 1,
                _ => pages.push((at, 1)),
            }
            pages
        });
        cx.front.commands.get_mut(command).left = pages.len() as u32;
        for (at, units) in pages {
            cx.metrics.pages_read += 1;
            let op = cx.given(
                (OpKind::Read, Class::Read),
                at,
                units * cx.geometry.unit_bytes as u32,
                (Purpose::HostRead { command }, Job::Read { command }),
            );
            cx.push(op, &mut self.places);
        }
    }

    fn start_write(&mut self, cx: &mut Cx, command: u32, ppas: &[Ppa]) {
        cx.accept(command);
        cx.metrics.host_writes += 1;
        cx.metrics.host_units_written += ppas.len() as u64;
        let per_page = cx.geometry.units_per_page as usize;
        cx.front.commands.get_mut(command).left = (ppas.len() / per_page) as u32;
        for (first, units) in (0..).step_by(per_page).zip(ppas.chunks(per_page)) {
            let at = cx.geometry.page_of(units[0]).0;
            let plane = cx.geometry.plane_of(at.block);
            let chunk = &mut self.chunks[at.block.index()];
            (chunk.pointer, chunk.programs) = (at.page + 1, chunk.programs + 1);
            self.places.push(plane, at);
            let op = NandOp {
                kind: OpKind::Program,
                class: Class::Write,
                plane,
                at: UNBOUND,
                frontier: Some(Frontier::USER),
                bytes: 0,
                purpose: Purpose::HostData,
                job: Job::Program { command, first },
            };
            cx.push(op, &mut self.places);
        }
    }

    fn start_erase(&mut self, cx: &mut Cx, command: u32, ppas: &[Ppa]) {
        cx.accept(command);
        cx.front.commands.get_mut(command).left = ppas.len() as u32;
        for ppa in ppas {
            let block = cx.geometry.page_of(*ppa).0.block;
            self.chunks[block.index()].eraser = Some(command);
            self.erase_if_idle(cx, block);
            if cx.has_planted(PlantedBug::EarlyErase) {
                cx.part_done(command);
            }
        }
    }

    /// Erases a block whose erase was accepted, once its programs have ended.
    fn erase_if_idle(&mut self, cx: &mut Cx, block: BlockId) {
        let Chunk { eraser, programs, .. } = self.chunks[block.index()];
        let waits = programs > 0 && !cx.has_planted(PlantedBug::EraseUnderPrograms);
        let Some(command) = eraser.filter(|_| !waits) else { return };
        let op = cx.given(
            (OpKind::Erase, Class::Erase),
            PageAddr { block, page: 0 },
            0,
            (Purpose::HostErase, Job::Erase { command }),
        );
        cx.push(op, &mut self.places);
    }

    /// Looks up contents and records; the first unit that cannot be read makes the answer an error.
    fn look_up(&mut self, cx: &mut Cx, command: u32, ppas: &[Ppa]) {
        let media = &cx.flash.media;
        let unit = |ppa: &Ppa| {
            let record = media.record(*ppa)?;
            let content = if media.tracks_contents() { Some(media.payload(*ppa)?) } else { None };
            Some((content, record))
        };
        match ppas.iter().map(|ppa| unit(ppa).ok_or(*ppa)).collect::<Result<Vec<_>, Ppa>>() {
            Ok(units) => {
                let (data, records): (Vec<_>, Vec<_>) = units.into_iter().unzip();
                let data = data.into_iter().flatten().collect();
                self.found.insert(command, Done::Units(Box::new(Units { data, records })));
            }
            Err(lost) => {
                cx.metrics.uncorrectable_reads += 1;
                fail(cx, command, DeviceError::Uncorrectable { at: Address::Ppa(lost) });
            }
        }
    }

    fn read_done(&mut self, cx: &mut Cx, command: u32) {
        let active = cx.front.commands.get_mut(command);
        active.left -= 1;
        if active.left == 0 {
            let found = self.found.remove(&command);
            cx.answer(command, found.unwrap_or(Done::Ok));
        }
    }

    fn program_done(&mut self, cx: &mut Cx, op: &NandOp<Job>, command: u32) {
        let PageAddr { block, .. } = op.at;
        self.chunks[block.index()].programs -= 1;
        if cx.flash.random.chance(cx.config.faults.program_fail) {
            cx.metrics.program_failures += 1;
            cx.flash.media.spoil(op.at, 0, op.at.page);
            // The block is closed early: pages that were accepted are still programmed, and none is accepted after them
            // (open-channel §6.3).
            self.chunks[block.index()].pointer = cx.geometry.pages_per_block;
            if !cx.has_planted(PlantedBug::FailedProgramAcknowledged) {
                fail(cx, command, DeviceError::WriteFault { at: Address::Ppa(cx.geometry.ppa(op.at, 0)) });
            }
        } else {
            cx.metrics.pages_programmed += 1;
            cx.metrics.user_units_programmed += u64::from(cx.geometry.units_per_page);
            let mut images = Vec::new();
            self.image(cx, op, &mut images);
            cx.flash.media.program(op.at, 0, images.into_iter());
        }
        cx.part_done(command);
        if !cx.has_planted(PlantedBug::EraseUnderPrograms) {
            self.erase_if_idle(cx, block);
        }
    }

    fn erase_done(&mut self, cx: &mut Cx, op: &NandOp<Job>, command: u32) {
        let PageAddr { block, .. } = op.at;
        let endurance = cx.config.faults.endurance;
        let is_answered = cx.has_planted(PlantedBug::EarlyErase);
        let is_worn_out = endurance > 0 && cx.flash.media.erases(block) >= endurance;
        if is_worn_out || cx.flash.random.chance(cx.config.faults.erase_fail) {
            cx.metrics.erase_failures += 1;
            cx.metrics.grown_bad_blocks += 1;
            cx.flash.retire(op.plane, block);
            if !is_answered {
                fail(cx, command, DeviceError::WriteFault { at: Address::Ppa(cx.geometry.ppa(op.at, 0)) });
            }
        } else {
            cx.metrics.erases += 1;
            cx.flash.media.erase(block);
            self.chunks[block.index()].pointer = 0;
        }
        self.chunks[block.index()].eraser = None;
        if !is_answered {
            cx.part_done(command);
        }
    }
}

/// Sets the error of a command; the first one is its answer.
fn fail(cx: &mut Cx, command: u32, error: DeviceError) {
    cx.front.commands.get_mut(command).error.get_or_insert(error);
}

impl Firmware for OpenChannel {
    type Job = Job;
    type Placer = Places;

    fn reserved(_: &Geometry) -> BTreeSet<BlockId> {
        BTreeSet::new()
    }

    fn new(cx: &Cx, _: u64) -> Self {
        let chunk = |block: BlockId| Chunk {
            // After an interrupted erase a block has to be erased again.
            pointer: match cx.flash.media.erase_torn(block) && !cx.has_planted(PlantedBug::HalfErasedWritten)
            {
                true => cx.geometry.pages_per_block,
                false => cx.flash.media.pages_written(block),
            },
            ..Chunk::default()
        };
        let chunks = (0..cx.geometry.blocks()).map(BlockId).map(chunk).collect();
        Self { places: Places::new(&cx.geometry), chunks, found: BTreeMap::new() }
    }

    /// Nothing has to be written: the device finds the write pointer of each block.
    fn recover(config: &DeviceConfig, options: DeviceOptions, media: Media) -> Plan<Self> {
        let (cx, firmware) = boot::<Self>(config.clone(), options, media);
        let mut reads = vec![0; cx.geometry.stations() as usize];
        let mut report = RecoveryReport::default();
        for block in (0..cx.geometry.blocks()).map(BlockId) {
            let pages = cx.flash.media.pages_written(block);
            if pages > 0 {
                reads[cx.geometry.station(cx.geometry.plane_of(block)).index()] += 1;
                report.units += u64::from(pages * cx.geometry.units_per_page);
            }
        }
        report.pages_read = reads.iter().sum();
        report.time = duration(&cx.config, &cx.geometry, &reads, &[]);
        Plan { cx, firmware, steps: Vec::new(), report }
    }

    fn recovered(&mut self, _: &mut Cx) {}

    fn check(&self, cx: &Cx, command: &Command) -> Result<(), DeviceError> {
        self.verdict(cx, command)
    }

    fn refused(&mut self, _: &mut Cx, _: u32) {}

    fn arrive(&mut self, cx: &mut Cx, at: u32) {
        match &cx.front.commands.get(at).command.op {
            Op::PpaRead { ppas, .. } => {
                let ppas = ppas.clone();
                self.start_read(cx, at, &ppas);
            }
            Op::PpaWrite(write) => {
                let ppas = write.ppas.clone();
                self.start_write(cx, at, &ppas);
            }
            Op::PpaErase(ppas) => {
                let ppas = ppas.clone();
                self.start_erase(cx, at, &ppas);
            }
            // A FLUSH has nothing to do: completed commands are on the medium.
            _ => {
                cx.metrics.flushes += 1;
                cx.complete(at);
            }
        }
    }

    fn memory_done(&mut self, _: &mut Cx, _: u32) {}

    fn done(&mut self, cx: &mut Cx, op: NandOp<Job>) {
        match op.job {
            Job::Read { command } => self.read_done(cx, command),
            Job::Program { command, .. } => self.program_done(cx, &op, command),
            Job::Erase { command } => self.erase_done(cx, &op, command),
        }
    }

    fn go_on(&mut self, _: &mut Cx) {}

    fn placer(&self) -> &Places {
        &self.places
    }

    fn placer_mut(&mut self) -> &mut Places {
        &mut self.places
    }

    fn opened(&self, _: &NandOp<Job>) -> u64 {
        0
    }

    fn image(&self, cx: &Cx, op: &NandOp<Job>, images: &mut Vec<UnitImage>) {
        let Job::Program { command, first } = op.job else { return };
        let Op::PpaWrite(write) = &cx.front.commands.get(command).command.op else {
            unreachable!("only writes program");
        };
        let (first, count) = (first as usize, cx.geometry.units_per_page as usize);
        let unit_bytes = cx.geometry.unit_bytes as usize;
        let is_mixed = cx.has_planted(PlantedBug::RecordsMixed);
        images.extend((first..first + count).map(|nth| {
            let payload = match cx.flash.media.tracks_contents() {
                true => {
                    write.data.unit(Lpn(write.ppas[nth].0), nth, nth * unit_bytes..(nth + 1) * unit_bytes)
                }
                false => Payload::Zero,
            };
            UnitImage::with_record(write.records[if is_mixed { first } else { nth }], payload)
        }));
    }

    fn saved(&self, _: &Cx) -> Option<SaveArea> {
        None
    }

    fn is_volatile(&self, _: &Cx) -> bool {
        false
    }

    fn is_mapped(&self, _: Lpn) -> bool {
        false
    }

    fn has_lost(&self, _: Lpn) -> bool {
        false
    }

    fn content(&self, _: &Cx, _: Lpn) -> Option<Payload> {
        None
    }

    fn prefetch(&self, _: Lpn) {}

    fn prefetch_for(&self, _: &Cx, _: Event) {}

    fn buffer_use(&self) -> [u64; 3] {
        [0; 3]
    }

    fn memory_bytes(&self) -> u64 {
        (self.chunks.len() * size_of::<Chunk>()) as u64
    }

    fn audit(&self, cx: &Cx) {
        assert!(self.places.is_empty(), "pages wait without a program");
        assert!(self.found.is_empty(), "a read was not answered");
        for (block, chunk) in (0..).map(BlockId).zip(&self.chunks) {
            assert_eq!(chunk.programs, 0, "block {} has programs", block.0);
            assert_eq!(chunk.eraser, None, "block {} waits for its erase", block.0);
            let is_closed = chunk.pointer == cx.geometry.pages_per_block;
            let written = cx.flash.media.pages_written(block);
            assert!(is_closed || chunk.pointer == written, "the write pointer of block {}", block.0);
        }
    }

    fn describe(&self, _: &Cx) -> String {
        let mut text = String::new();
        for (block, chunk) in
            self.chunks.iter().enumerate().filter(|(_, chunk)| chunk.programs > 0 || chunk.eraser.is_some())
        {
            let _ = write!(text, "block {block}: {} programs have not ended", chunk.programs);
            let _ = match chunk.eraser {
                Some(command) => writeln!(text, ", and command {command} waits to erase it"),
                None => writeln!(text),
            };
        }
        text
    }
}
