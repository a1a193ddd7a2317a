//! Reads of an open channel. Contents are taken when the read arrives, because an erase may come between the reads of its pages.
//!
//! With OCSSD 1.2 the last units of an open chunk come out of the memory of the device, with or without their program having ended
//! (open-channel §6.4).

use super::copy::pages_of;
use super::job::{Cx, Job};
use super::program::written_unit;
use super::state::{OpenChannel, fail};
use crate::config::OpenVersion;
use crate::flash::{Class, OpKind, Purpose};
use flashweir_core::command::Units;
use flashweir_core::oob::OobRecord;
use flashweir_core::open::NoticeReason;
use flashweir_core::{Address, DeviceError, Done, Payload, Ppa};

impl OpenChannel {
    /// Whether the device keeps the last units of open chunks in its memory.
    pub(super) fn serves_recent(&self, cx: &Cx) -> bool {
        cx.config.open.version == OpenVersion::V12 && cx.config.open.cached_units > 0
    }

    pub(super) fn start_read(&mut self, cx: &mut Cx, command: u32, places: &[Ppa]) {
        cx.metrics.host_reads += 1;
        cx.metrics.host_units_read += places.len() as u64;
        let serves = self.serves_recent(cx);
        let (recent, others): (Vec<Ppa>, Vec<Ppa>) =
            places.iter().partition(|place| serves && self.is_recent(cx, **place));
        cx.metrics.buffer_read_hits += recent.len() as u64;
        let pages = pages_of(cx, &others);
        let mut refresh = Vec::new();
        for (at, _, first) in &pages {
            if self.note_refresh(cx, *first) {
                refresh.extend(others.iter().filter(|place| cx.geometry.open_page(**place).0 == *at));
            }
        }
        self.look_up(cx, command, places, refresh);
        cx.front.commands.get_mut(command).left = pages.len() as u32;
        if pages.is_empty() {
            self.answer_read(cx, command);
            return;
        }
        let ops = pages
            .into_iter()
            .map(|(at, units, _)| {
                cx.metrics.pages_read += 1;
                let what = (Purpose::HostRead { command }, Job::Read { command });
                cx.given((OpKind::Read, Class::Read), at, units * cx.geometry.unit_bytes as u32, what)
            })
            .collect();
        self.push_all(cx, ops);
    }

    /// Draws whether the read of a page needs much error correction; the chunk gets a notice then.
    pub(super) fn note_refresh(&mut self, cx: &mut Cx, place: Ppa) -> bool {
        let is_weak = cx.flash.random.chance(cx.config.faults.refresh);
        if is_weak {
            cx.metrics.refresh_reads += 1;
            let (chunk, _) = cx.geometry.chunk_of(place);
            self.notices.add(cx.geometry.chunk_place(chunk, 0), NoticeReason::Refresh);
        }
        is_weak
    }

    /// Looks up contents and records; the first unit that cannot be read makes the answer an error.
    fn look_up(&mut self, cx: &mut Cx, command: u32, places: &[Ppa], refresh: Vec<Ppa>) {
        match places.iter().map(|place| self.unit(cx, *place).ok_or(*place)).collect::<Result<Vec<_>, Ppa>>()
        {
            Ok(units) => {
                let (data, records): (Vec<_>, Vec<_>) = units.into_iter().unzip();
                let data = if cx.flash.media.tracks_contents() { data } else { Vec::new() };
                self.found.insert(command, Done::Units(Box::new(Units { data, records, refresh })));
            }
            Err(lost) => {
                cx.metrics.uncorrectable_reads += 1;
                fail(cx, command, DeviceError::Uncorrectable { at: Address::Ppa(lost) });
            }
        }
    }

    /// Content and record of a unit; `None` if it cannot be read.
    fn unit(&self, cx: &Cx, place: Ppa) -> Option<(Payload, OobRecord)> {
        let (at, unit) = cx.geometry.open_page(place);
        if let Some((command, first)) = self.in_memory.get(&(at.block, at.page)) {
            return Some(written_unit(cx, *command, (first + unit) as usize, None));
        }
        let media = &cx.flash.media;
        let physical = cx.geometry.ppa(at, unit);
        let record = media.record(physical)?;
        let payload = if media.tracks_contents() { media.payload(physical)? } else { Payload::Zero };
        Some((payload, record))
    }

    pub(super) fn read_done(&mut self, cx: &mut Cx, command: u32) {
        let active = cx.front.commands.get_mut(command);
        active.left -= 1;
        if active.left == 0 {
            self.answer_read(cx, command);
        }
    }

    fn answer_read(&mut self, cx: &mut Cx, command: u32) {
        let found = self.found.remove(&command);
        cx.answer(command, found.unwrap_or(Done::Ok));
    }
}
