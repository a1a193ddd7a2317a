//! The append namespace as the only one of a device: [`Segments`] as a [`Firmware`].

use super::ftl::{AppendFtl, Cx, Unplaced};
use super::job::{Job, Op as NandOp};
use super::recover;
use super::table::{Segments, Slot};
use crate::config::DeviceConfig;
use crate::effect::Event;
use crate::firmware::{DeviceOptions, Firmware, Plan};
use crate::flash::{Media, SaveArea, Saved, UnitImage};
use crate::geometry::Geometry;
use crate::planted::PlantedBug;
use flashweir_core::{Command, DeviceError, Lpn, Payload};
use flashweir_ftl::BlockId;
use std::collections::BTreeSet;

impl Segments {
    /// An operation has ended.
    pub(crate) fn done<J: Copy>(&mut self, cx: &mut crate::cx::Cx<J>, op: &NandOp) {
        match op.job {
            Job::Read { command } => self.part_done(cx, command),
            Job::Program { segment, page } => self.program_done(cx, op, segment, page),
            Job::Erase => self.erase_done(cx, op),
            Job::MoveRead(plane) => self.move_read_done(cx, op, plane),
            Job::MoveProgram(plane) => self.move_program_done(cx, op, plane),
            Job::Log(nth) => self.log_page_done(cx, op, nth),
            Job::LogErase => self.log_erase_done(cx, op),
        }
    }

    /// Lets everything proceed that can, until nothing can. New operations are in `out`.
    pub(crate) fn go_on<J: Copy>(&mut self, cx: &mut crate::cx::Cx<J>) {
        if std::mem::take(&mut self.wakes) {
            for segment in self.volatile() {
                self.move_torn(cx, segment);
                self.offer(cx, segment);
            }
        }
        loop {
            self.log_advanced(cx);
            self.admit(cx);
            self.evict(cx);
            self.pump_log(cx);
            self.pump(cx);
            if !self.log.check_marks {
                break;
            }
        }
        if cx.flash.media.commit_saved() {
            self.begin_journal(cx);
        }
    }

    /// The units that a program puts on the medium.
    pub(crate) fn image(&self, job: Job, images: &mut Vec<UnitImage>) {
        match job {
            Job::Program { segment, page } => self.page_image(segment, page, images),
            Job::MoveProgram(plane) => self.move_image(plane, images),
            Job::Log(nth) => self.log_image(nth, images),
            Job::Read { .. } | Job::Erase | Job::MoveRead(_) | Job::LogErase => {}
        }
    }

    /// What a capacitor saves: units that are not on the flash, and deallocations that are not in the log.
    fn save<J: Copy>(&self, cx: &crate::cx::Cx<J>) -> SaveArea {
        let mut area = SaveArea::default();
        for (segment, open) in &self.open {
            for (slot, unit) in open.slots.iter().zip(open.first * self.per_page..) {
                if let Slot::Held(held) = slot {
                    area.add(Saved::Unit(self.lpn(*segment, unit), held.seq, held.payload.clone()));
                }
            }
        }
        if !cx.has_planted(PlantedBug::SaveForgetsTrims) {
            self.log.unlogged().for_each(|trim| area.add(Saved::Trim(trim)));
        }
        area
    }

    /// Where the medium has a store: tells it what the capacitor protects now.
    fn begin_journal<J: Copy>(&mut self, cx: &mut crate::cx::Cx<J>) {
        if cx.flash.media.is_stored() && cx.is_protected() {
            let area = self.save(cx);
            cx.flash.media.begin_journal(&area);
        }
    }

    /// Whether a power cut would lose something.
    pub(crate) fn is_volatile<J: Copy>(&self, cx: &crate::cx::Cx<J>) -> bool {
        !cx.is_protected() && (!self.volatile().is_empty() || self.log.unlogged().next().is_some())
    }

    /// Operations for the machine since the last call.
    pub(crate) fn take_ops(&mut self) -> Vec<NandOp> {
        std::mem::take(&mut self.out)
    }

    /// Number of slots of the buffer, of slots in use and of dirty slots; in mapping units.
    pub(crate) fn buffer_use(&self) -> [u64; 3] {
        [self.capacity, self.used, self.used].map(u64::from)
    }

    /// Bytes of the block lists, and of the rest of what is kept of each segment.
    pub(crate) fn map_bytes(&self) -> [u64; 2] {
        [(self.blocks.len() * size_of::<BlockId>()) as u64, size_of_val(&self.states[..]) as u64]
    }
}

impl AppendFtl {
    /// Gives new operations to the machine.
    fn push(&mut self, cx: &mut Cx) {
        for op in self.segments.take_ops() {
            cx.push(op, &mut self.placer);
        }
    }
}

impl Firmware for AppendFtl {
    type Job = Job;
    type Placer = Unplaced;

    fn reserved(geometry: &Geometry) -> BTreeSet<BlockId> {
        (0..2).flat_map(|region| geometry.segment_log_blocks(region)).collect()
    }

    fn new(cx: &Cx, _: u64) -> Self {
        Self { segments: Segments::new(&cx.config, &cx.geometry), placer: Unplaced }
    }

    fn recover(config: &DeviceConfig, options: DeviceOptions, media: Media) -> Plan<Self> {
        recover::plan(config, options, media)
    }

    fn recovered(&mut self, cx: &mut Cx) {
        // From here on the capacitor covers the buffer, which holds what was saved.
        cx.flash.media.set_save_area(None);
        self.segments.begin_journal(cx);
    }

    fn check(&self, cx: &Cx, command: &Command) -> Result<(), DeviceError> {
        self.segments.verdict(cx, command)
    }

    fn refused(&mut self, _: &mut Cx, _: u32) {}

    fn arrive(&mut self, cx: &mut Cx, at: u32) {
        self.segments.arrived(cx, at);
    }

    fn memory_done(&mut self, cx: &mut Cx, at: u32) {
        self.segments.moved(cx, at);
    }

    fn done(&mut self, cx: &mut Cx, op: NandOp) {
        self.segments.done(cx, &op);
    }

    fn go_on(&mut self, cx: &mut Cx) {
        self.segments.go_on(cx);
        self.push(cx);
    }

    fn placer(&self) -> &Unplaced {
        &self.placer
    }

    fn placer_mut(&mut self) -> &mut Unplaced {
        &mut self.placer
    }

    fn opened(&self, _: &NandOp) -> u64 {
        0
    }

    fn image(&self, _: &Cx, op: &NandOp, images: &mut Vec<UnitImage>) {
        self.segments.image(op.job, images);
    }

    fn saved(&self, cx: &Cx) -> Option<SaveArea> {
        cx.is_protected().then(|| self.segments.save(cx))
    }

    fn is_volatile(&self, cx: &Cx) -> bool {
        self.segments.is_volatile(cx)
    }

    fn is_mapped(&self, lpn: Lpn) -> bool {
        let (segment, unit) = self.segments.split(lpn);
        (segment as usize) < self.segments.states.len() && self.segments.is_written(segment, unit)
    }

    fn has_lost(&self, lpn: Lpn) -> bool {
        let (segment, unit) = self.segments.split(lpn);
        let is_lost = self.segments.open.get(&segment).is_some_and(|open| open.is_lost);
        is_lost && unit >= self.segments.durable(segment)
    }

    fn content(&self, cx: &Cx, lpn: Lpn) -> Option<Payload> {
        self.segments.content(cx, lpn)
    }

    fn prefetch(&self, _: Lpn) {}

    fn prefetch_for(&self, _: &Cx, _: Event) {}

    fn buffer_use(&self) -> [u64; 3] {
        self.segments.buffer_use()
    }

    fn memory_bytes(&self) -> u64 {
        self.segments.map_bytes().iter().sum()
    }

    fn audit(&self, cx: &Cx) {
        self.segments.audit(cx);
    }

    fn describe(&self, _: &Cx) -> String {
        self.segments.describe()
    }
}
