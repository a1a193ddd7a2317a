//! Reads: from the buffer what is there, from the flash the rest, whose place is arithmetic.

use super::job::Job;
use super::table::{Segments, Slot};
use crate::cx::Cx;
use crate::effect::{Effect, Event};
use crate::flash::{Class, OpKind, Purpose, UNREADABLE};
use crate::geometry::PageAddr;
use flashweir_core::{DeviceError, Lpn, Op, Payload};

impl Segments {
    pub(super) fn start_read<J: Copy>(&mut self, cx: &mut Cx<J>, at: u32) {
        let Op::Read { lba, blocks } = cx.front.commands.get(at).command.op else { unreachable!("a read") };
        let span = cx.span(lba, blocks);
        cx.metrics.host_reads += 1;
        cx.metrics.host_units_read += u64::from(span.len());
        let split = |unit: u64| self.split(Lpn(unit));
        if let Some((segment, unit)) =
            (span.first..span.end).map(split).find(|(segment, unit)| !self.is_written(*segment, *unit))
        {
            let at_unit = Self::address(cx, segment, unit);
            cx.front.commands.get_mut(at).error = Some(DeviceError::NotWritten { at: at_unit });
            return cx.complete(at);
        }
        let mut data = Vec::new();
        let mut pages: Vec<(PageAddr, u32)> = Vec::new();
        let mut cached = 0;
        let mut lost = None;
        for unit in span.first..span.end {
            let (segment, nth) = self.split(Lpn(unit));
            let found = match self.slot(segment, nth).and_then(Slot::held) {
                Some(held) => {
                    cached += 1;
                    Some(held.payload.clone())
                }
                None => {
                    let place = self.place(segment, nth / self.per_page).1;
                    match pages.last_mut() {
                        Some((last, units)) if *last == place => *units += 1,
                        _ => pages.push((place, 1)),
                    }
                    cx.flash.media.payload(cx.geometry.ppa(place, nth % self.per_page))
                }
            };
            if cx.flash.media.tracks_contents() {
                lost = lost.or(found.is_none().then_some((segment, nth)));
                data.push(found.unwrap_or(Payload::Tag(UNREADABLE)));
            }
        }
        if let Some((segment, unit)) = lost {
            cx.metrics.uncorrectable_reads += 1;
            let at_unit = Self::address(cx, segment, unit);
            cx.front.commands.get_mut(at).error = Some(DeviceError::Uncorrectable { at: at_unit });
        }
        cx.metrics.buffer_read_hits += cached;
        let mut parts = pages.len() as u32;
        if cached > 0
            && let Some(done) = cx.memory_access(at, cached * cx.geometry.unit_bytes)
        {
            parts += 1;
            cx.effects.push(Effect::At(done, Event::BufferMemory { command: at }));
        }
        let active = cx.front.commands.get_mut(at);
        (active.data, active.left) = (data, parts);
        if parts == 0 {
            return cx.complete(at);
        }
        for (place, units) in pages {
            cx.metrics.pages_read += 1;
            let bytes = units * cx.geometry.unit_bytes as u32;
            let (purpose, job) = (Purpose::HostRead { command: at }, Job::Read { command: at });
            self.out.push(cx.given((OpKind::Read, Class::Read), place, bytes, (purpose, job)));
        }
    }

    /// The content that a read of the unit would return now.
    pub(crate) fn content<J: Copy>(&self, cx: &Cx<J>, lpn: Lpn) -> Option<Payload> {
        let (segment, unit) = self.split(lpn);
        if segment as usize >= self.states.len() || !self.is_written(segment, unit) {
            return None;
        }
        if let Some(held) = self.slot(segment, unit).and_then(Slot::held) {
            return Some(held.payload.clone());
        }
        let place = self.place(segment, unit / self.per_page).1;
        let found = cx.flash.media.payload(cx.geometry.ppa(place, unit % self.per_page));
        Some(found.unwrap_or(Payload::Tag(UNREADABLE)))
    }
}
