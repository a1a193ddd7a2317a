//! Reads: the newest version of each unit, from the buffer or from the medium.

use super::buffer::Place;
use super::content::LOST;
use super::ftl::{Cx, PageFtl};
use super::job::{Job, Op as NandOp};
use super::map_cache::{What, Who};
use crate::effect::{Effect, Event};
use crate::flash::{Class, OpKind, Purpose};
use crate::front::range;
use crate::geometry::PageAddr;
use flashweir_core::{Address, DeviceError, Lpn, Payload, Ppa};

impl PageFtl {
    /// Looks up every unit; units on the same flash page are read together.
    pub(super) fn start_read(&mut self, cx: &mut Cx, at: u32) {
        let (lba, blocks) = range(&cx.front.commands.get(at).command.op).expect("a read has a range");
        let span = cx.span(lba, blocks);
        cx.metrics.host_reads += 1;
        cx.metrics.host_units_read += u64::from(span.len());
        if self.map_cache.is_some() {
            cx.front.commands.get_mut(at).left = 1;
            return self.want_map(Who::Command(at, What::Read));
        }
        self.take_contents(cx, at, span.first, span.end);
        let parts = self.read_units(cx, at, span.first, span.end);
        if parts == 0 {
            cx.complete(at);
        } else {
            cx.front.commands.get_mut(at).left = parts;
        }
    }

    /// Fails a read of a version that was accepted but could not be written.
    #[inline(always)]
    fn note_lost_units(&self, cx: &mut Cx, at: u32, first: u64, end: u64) {
        if !self.lost.is_empty()
            && let Some((lost, _)) = self.lost.range(Lpn(first)..Lpn(end)).next()
        {
            let lba = cx.lba(*lost);
            cx.front.commands.get_mut(at).error = Some(DeviceError::Uncorrectable { at: Address::Lba(lba) });
        }
    }

    /// Adds the current contents of these units to the answer of a read, or the error that a version of one of them was lost.
    #[inline(always)]
    pub(super) fn take_contents(&self, cx: &mut Cx, at: u32, first: u64, end: u64) {
        self.note_lost_units(cx, at, first, end);
        if !cx.flash.media.tracks_contents() {
            return;
        }
        let data = (first..end).map(|unit| self.newest(cx, Lpn(unit)).unwrap_or_default());
        let data: Vec<Payload> = data.collect();
        // A store may lose what the medium has, which its own checksum of the page reveals.
        if cx.flash.media.is_stored()
            && let Some(lost) = (first..).zip(&data).find(|(_, content)| **content == LOST)
        {
            let lba = cx.lba(Lpn(lost.0));
            cx.front.commands.get_mut(at).error = Some(DeviceError::Uncorrectable { at: Address::Lba(lba) });
            cx.metrics.uncorrectable_reads += 1;
        }
        let active = cx.front.commands.get_mut(at);
        match active.data.is_empty() {
            true => active.data = data,
            false => active.data.extend(data),
        }
    }

    /// Reads units whose places are known; returns the number of parts for which the command waits.
    #[inline(always)]
    pub(super) fn read_units(&mut self, cx: &mut Cx, at: u32, first: u64, end: u64) -> u32 {
        let mut parts = 0;
        let mut cached = 0;
        let mut page: Option<(PageAddr, Ppa, u32)> = None;
        for unit in first..end {
            match self.newest_place(Lpn(unit)) {
                Place::Unit(ppa) => {
                    let addr = cx.geometry.page_of(ppa).0;
                    match &mut page {
                        Some((last, _, units)) if *last == addr => *units += 1,
                        other => {
                            if let Some((_, ppa, units)) = other.replace((addr, ppa, 1)) {
                                self.read_page(cx, at, ppa, units);
                                parts += 1;
                            }
                        }
                    }
                }
                Place::Slot(_) => cached += 1,
                Place::Nowhere | Place::Shared(_) => {}
            }
        }
        if let Some((_, ppa, units)) = page {
            self.read_page(cx, at, ppa, units);
            parts += 1;
        }
        cx.metrics.buffer_read_hits += cached;
        if cached > 0
            && let Some(done) = cx.memory_access(at, cached * cx.geometry.unit_bytes)
        {
            parts += 1;
            cx.effects.push(Effect::At(done, Event::BufferMemory { command: at }));
        }
        parts
    }

    fn read_page(&mut self, cx: &mut Cx, command: u32, ppa: Ppa, units: u32) {
        cx.metrics.pages_read += 1;
        let (purpose, job) = (Purpose::HostRead { command }, Job::HostRead { command });
        self.push_read(cx, ppa, units, (purpose, job));
    }

    /// Queues the read of `units` units of the page that holds `ppa`.
    pub(super) fn push_read(&mut self, cx: &mut Cx, ppa: Ppa, units: u32, (purpose, job): (Purpose, Job)) {
        let at = cx.geometry.page_of(ppa).0;
        let op =
            cx.given((OpKind::Read, Class::Read), at, units * cx.geometry.unit_bytes as u32, (purpose, job));
        cx.push(op, &mut self.space);
    }

    pub(super) fn host_read_done(&mut self, cx: &mut Cx, op: &NandOp, command: u32) {
        if !cx.flash.media.is_readable(op.at) {
            cx.metrics.uncorrectable_reads += 1;
            let lba = range(&cx.front.commands.get(command).command.op).expect("a read has a range").0;
            cx.front
                .commands
                .get_mut(command)
                .error
                .get_or_insert(DeviceError::Uncorrectable { at: Address::Lba(lba) });
        }
        cx.part_done(command);
    }
}
