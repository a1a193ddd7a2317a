//! The open channel as a [`Firmware`]: the dispatch of commands and of operations that have ended.

use super::chunks::{Chunks, pages_written};
use super::job::{Cx, Job};
use super::places::Places;
use super::state::{Notices, OpenChannel};
use crate::config::DeviceConfig;
use crate::effect::Event;
use crate::firmware::{DeviceOptions, Firmware, Plan, boot};
use crate::flash::plan::duration;
use crate::flash::{Media, Op as NandOp, RecoveryReport, SaveArea, UnitImage};
use crate::geometry::{ChunkId, Geometry};
use flashweir_core::index::Idx;
use flashweir_core::{Command, DeviceError, Lpn, Op, Payload};
use flashweir_ftl::BlockId;
use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::fmt::Write as _;

impl Firmware for OpenChannel {
    type Job = Job;
    type Placer = Places;

    fn reserved(_: &Geometry) -> BTreeSet<BlockId> {
        BTreeSet::new()
    }

    fn new(cx: &Cx, _: u64) -> Self {
        Self {
            places: Places::new(&cx.geometry),
            chunks: Chunks::at_power_on(cx),
            held: BTreeMap::new(),
            found: BTreeMap::new(),
            copies: BTreeMap::new(),
            next_copy: 0,
            in_memory: BTreeMap::new(),
            notices: Notices::default(),
        }
    }

    /// Nothing has to be written: the device finds the write pointer of each chunk.
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
                self.start_reset(cx, at, &ppas);
            }
            Op::PpaCopy(copy) => {
                let copy = copy.clone();
                self.start_copy(cx, at, &copy);
            }
            Op::OpenGeometry => cx.answer(at, Self::geometry(cx)),
            Op::ChunkReport { first, count } => {
                let reports = self.chunk_reports(cx, *first, *count);
                cx.answer(at, reports);
            }
            Op::ChunkNotices { after } => {
                let notices = self.notices_after(*after);
                cx.answer(at, notices);
            }
            Op::BlockMarks { parallel_unit } => {
                let marks = Self::marks(cx, *parallel_unit);
                cx.answer(at, marks);
            }
            Op::MarkBlocks(marks) => {
                let marks = marks.clone();
                cx.accept(at);
                self.set_marks(cx, &marks);
                cx.complete(at);
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
            Job::CopyRead { copy } => self.copy_read(cx, copy),
            Job::Program { source, .. } => self.program_done(cx, &op, source),
            Job::Erase { command, chunk } => self.erase_done(cx, &op, command, chunk),
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
        self.images(cx, op, images);
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
        self.chunks.memory_bytes()
    }

    fn audit(&self, cx: &Cx) {
        assert!(self.places.is_empty() && self.held.is_empty(), "pages wait without a program");
        assert!(self.found.is_empty() && self.copies.is_empty(), "a read or a copy was not answered");
        assert!(self.in_memory.is_empty(), "a page is in memory without a program");
        let is_open = |chunk: &ChunkId| self.chunks.is_open(&self.chunks[*chunk]);
        assert_eq!(self.chunks.ids().filter(is_open).count() as u32, self.chunks.open(), "open chunks");
        for id in self.chunks.ids() {
            let chunk = &self.chunks[id];
            assert_eq!(chunk.programs, 0, "chunk {} has programs", id.0);
            assert_eq!(chunk.eraser, None, "chunk {} waits for its reset", id.0);
            let accepted = chunk.accepted;
            let is_right = (accepted, accepted) == pages_written(cx, id);
            assert!(chunk.is_closed_early || is_right, "the write pointer of chunk {}", id.0);
        }
    }

    fn describe(&self, _: &Cx) -> String {
        let mut text = String::new();
        for id in self.chunks.ids() {
            let chunk = &self.chunks[id];
            if chunk.programs == 0 && chunk.eraser.is_none() {
                continue;
            }
            let held = self.held.get(&id).map_or(0, VecDeque::len);
            let _ = write!(text, "chunk {}: {} programs have not ended", id.0, chunk.programs);
            if held > 0 {
                let _ = write!(text, ", {held} of them wait for a copy");
            }
            let _ = match chunk.eraser {
                Some(command) => writeln!(text, ", and command {command} waits to reset it"),
                None => writeln!(text),
            };
        }
        text
    }
}
