//! The page-mapped firmware as a [`Firmware`]: dispatch of each call to the part that implements it.

use super::buffer::Place;
use super::frontier::Space;
use super::ftl::{Cx, PageFtl};
use super::job::{Job, Op as NandOp};
use super::map_cache::{What, Who};
use super::recover;
use crate::config::{DeviceConfig, Miss, PersistPolicy, RangeFlushSupport};
use crate::effect::Event;
use crate::firmware::{DeviceOptions, Firmware, Plan};
use crate::flash::{Media, NandEvent, SaveArea, UnitImage};
use crate::front::{check_handle, check_range, range};
use crate::geometry::Geometry;
use flashweir_core::command::PAGE_NAMESPACE;
use flashweir_core::{Command, DeviceError, Lpn, Op, Order, Payload};
use flashweir_ftl::{BlockId, PlaneId};
use std::collections::BTreeSet;

impl Firmware for PageFtl {
    type Job = Job;
    type Placer = Space;

    fn reserved(geometry: &Geometry) -> BTreeSet<BlockId> {
        (0..2).flat_map(|region| geometry.meta_blocks(region)).chain(geometry.map_area()).collect()
    }

    fn new(cx: &Cx, seed: u64) -> Self {
        Self::empty(cx, seed)
    }

    fn recover(config: &DeviceConfig, options: DeviceOptions, media: Media) -> Plan<Self> {
        assert!(media.tracks_contents(), "recovery needs a medium that keeps contents");
        recover::plan(config, options, media)
    }

    fn recovered(&mut self, cx: &mut Cx) {
        // From here on the capacitor covers the buffer, which holds what was saved.
        cx.flash.media.set_save_area(None);
        self.begin_journal(cx);
    }

    #[inline]
    fn check(&self, cx: &Cx, command: &Command) -> Result<(), DeviceError> {
        let lacks = |name| Err(DeviceError::NotSupported(name));
        match &command.op {
            Op::Read { .. } | Op::Write { .. } | Op::WriteZeroes { .. } | Op::Trim { .. } | Op::Flush => {}
            Op::RFlush(_) if cx.config.buffer.range_flush == RangeFlushSupport::None => {
                return lacks("range flush");
            }
            Op::Barrier if cx.config.order.policy == PersistPolicy::None => return lacks("barrier"),
            Op::RFlush(_) | Op::Barrier => {}
            Op::Share(pairs) => Self::check_share(cx, pairs)?,
            Op::SegWrite { .. } | Op::SegAppend { .. } | Op::SegTrim { .. } | Op::SegReport { .. } => {
                return lacks("append-only segments");
            }
            Op::PpaRead { .. }
            | Op::PpaWrite(_)
            | Op::PpaErase(_)
            | Op::PpaCopy(_)
            | Op::OpenGeometry
            | Op::ChunkReport { .. }
            | Op::ChunkNotices { .. }
            | Op::BlockMarks { .. }
            | Op::MarkBlocks(_) => return lacks("open channel"),
        }
        cx.front.check_order(command, cx.config.order.policy)?;
        if command.ns != PAGE_NAMESPACE {
            return Err(DeviceError::InvalidField("the page namespace, the only one here, is number 0"));
        }
        check_range(command, &cx.geometry)?;
        check_handle(command, cx.config.ftl.placement.handles)?;
        if let Op::RFlush(flush) = &command.op {
            flush.check(cx.geometry.capacity_lbas())?;
        }
        let changes = !matches!(command.op, Op::Read { .. } | Op::Flush | Op::RFlush(_) | Op::Barrier);
        if changes && cx.front.read_only { Err(DeviceError::ReadOnly) } else { Ok(()) }
    }

    fn stranded(&self, cx: &Cx) -> usize {
        let dead = (0..).map(PlaneId).zip(&self.dead_planes).filter(|(_, is_dead)| **is_dead);
        dead.map(|(plane, _)| cx.flash.machine.waiting_programs(plane)).sum()
    }

    fn refused(&mut self, cx: &mut Cx, at: u32) {
        self.note_refused(cx, at);
    }

    fn arrive(&mut self, cx: &mut Cx, at: u32) {
        let Command { op, order, .. } = &mut cx.front.commands.get_mut(at).command;
        let is_empty = range(op).is_some_and(|(_, blocks)| blocks == 0);
        if is_empty && *order == Some(Order::Barrier) && !matches!(op, Op::Read { .. }) {
            // Without a sector it still ends its epoch.
            *op = Op::Barrier;
        }
        if range(op).is_some_and(|(_, blocks)| blocks == 0) {
            self.note_refused(cx, at);
            cx.complete(at);
        } else if matches!(op, Op::Read { .. }) && !self.is_locked(cx) {
            self.start_read(cx, at);
        } else {
            self.note_ordered(cx, at);
            match self.map_cache.is_some() && cx.config.ftl.demand.miss == Miss::HoldsAll {
                true => self.want_map(Who::Command(at, What::Arrive)),
                false => self.arrived(cx, at),
            }
        }
    }

    fn memory_done(&mut self, cx: &mut Cx, at: u32) {
        if matches!(cx.front.commands.get(at).command.op, Op::Read { .. }) {
            cx.part_done(at);
        } else {
            self.start_write(cx, at);
        }
    }

    #[inline]
    fn done(&mut self, cx: &mut Cx, op: NandOp) {
        match op.job {
            Job::HostRead { command } => self.host_read_done(cx, &op, command),
            Job::Modify { command } => self.modify_done(cx, command),
            Job::ShareRead { nth } => self.share_read_done(nth),
            Job::GcRead => self.gc_read_done(cx, &op),
            Job::UserPage(page) | Job::GcPage(page) => self.page_done(cx, &op, page),
            Job::Filler => self.filler_done(cx, &op),
            Job::GcErase => self.gc_erase_done(cx, &op),
            Job::MetaPage(page) => self.meta_page_done(cx, &op, page),
            Job::MetaErase => self.meta_erase_done(cx, &op),
            Job::MapRead(page) => self.map_read_done(cx, &op, page),
            Job::MapWrite(write) => self.map_write_done(cx, &op, write),
            Job::MapGcRead => self.map_gc_read_done(cx, &op),
            Job::MapErase => self.map_erase_done(cx, &op),
            Job::Segment(_) => unreachable!("a page namespace has no segments"),
        }
        if self.may_get_stuck(cx) {
            match self.orders.is_used() {
                // The failure of one plane may be what keeps another one stuck.
                true => (0..cx.geometry.planes()).for_each(|plane| self.work.check_stuck(PlaneId(plane))),
                false => self.work.check_stuck(op.plane),
            }
        }
    }

    #[inline]
    fn go_on(&mut self, cx: &mut Cx) {
        // A read makes no work possible.
        if !self.work.is_empty() {
            self.drain(cx);
        }
        if cfg!(debug_assertions) {
            self.audit_rest(cx);
        }
    }

    #[inline]
    fn placer(&self) -> &Space {
        &self.space
    }

    #[inline]
    fn placer_mut(&mut self) -> &mut Space {
        &mut self.space
    }

    fn opened(&self, op: &NandOp) -> u64 {
        if matches!(op.job, Job::MetaPage(_) | Job::MapWrite(_)) { 0 } else { self.space.opened(op.at.block) }
    }

    fn image(&self, cx: &Cx, op: &NandOp, images: &mut Vec<UnitImage>) {
        match op.job {
            Job::UserPage(page) | Job::GcPage(page) => self.page_images(cx, page, images),
            Job::MetaPage(i) => {
                let (group, image) = self.log.image(i);
                images.push(UnitImage::meta(group, image));
            }
            Job::MapWrite(write) => images.push(self.map_write_image(write)),
            // A page of filler, which the medium adds by itself.
            Job::Filler => {}
            Job::HostRead { .. } | Job::Modify { .. } | Job::ShareRead { .. } => {}
            Job::GcRead | Job::GcErase | Job::MetaErase => {}
            Job::MapRead(_) | Job::MapGcRead | Job::MapErase => {}
            Job::Segment(_) => unreachable!("a page namespace has no segments"),
        }
    }

    fn saved(&self, cx: &Cx) -> Option<SaveArea> {
        (cx.is_protected() || cx.has_nvram()).then(|| self.save(cx))
    }

    fn is_volatile(&self, cx: &Cx) -> bool {
        !cx.is_protected() && (self.buffer.used() > 0 || self.log.last_change() > self.log.durable_changes())
    }

    fn is_mapped(&self, lpn: Lpn) -> bool {
        lpn.0 < self.map.len() && self.buffer.place(self.map.get(lpn)) != Place::Nowhere
    }

    fn has_lost(&self, lpn: Lpn) -> bool {
        self.lost.contains_key(&lpn)
    }

    fn content(&self, cx: &Cx, lpn: Lpn) -> Option<Payload> {
        self.newest(cx, lpn)
    }

    #[inline]
    fn prefetch(&self, lpn: Lpn) {
        self.map.prefetch(lpn);
    }

    #[inline]
    fn prefetch_for(&self, cx: &Cx, event: Event) {
        let Event::Nand(NandEvent::Array { station, .. }) = event else { return };
        for op in cx.flash.machine.working(station) {
            let op = cx.flash.machine.op(op);
            if let Job::UserPage(page) = op.job {
                for unit in &self.space.pages[page as usize].units {
                    self.map.prefetch(unit.lpn);
                    self.buffer.prefetch(unit.slot);
                }
                cx.flash.blocks.prefetch(cx.geometry.ppa(op.at, 0));
                cx.flash.media.prefetch(op.at.block);
            }
        }
    }

    fn buffer_use(&self) -> [u64; 3] {
        [self.buffer.capacity(), self.buffer.used(), self.buffer.dirty()].map(u64::from)
    }

    fn virtual_pages(&self) -> u64 {
        self.virtual_pages.used().0 as u64
    }

    fn memory_bytes(&self) -> u64 {
        self.map.memory_bytes()
            + self.virtual_pages.memory_bytes()
            + self.map_cache.as_ref().map_or(0, |demand| demand.memory_bytes())
    }

    fn audit(&self, cx: &Cx) {
        self.audit_accounts(cx);
    }

    fn describe(&self, cx: &Cx) -> String {
        self.describe_waits(cx)
    }
}
