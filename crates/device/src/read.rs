//! Reads: the newest version of each unit, from the buffer or from the medium.

use crate::device::{Device, Effect, Event};
use crate::front::range;
use crate::geometry::PageAddr;
use crate::job::{Job, Op as NandOp};
use crate::nand::{Class, OpKind, Purpose};
use flashweir_core::{DeviceError, Instant, Lpn, Payload, Ppa};
use flashweir_ftl::MapWord;

impl Device {
    /// Looks up every unit; units of the same flash page are read once.
    pub(crate) fn start_read(&mut self, now: Instant, at: u32, effects: &mut Vec<Effect>) {
        let (lba, blocks) = range(&self.commands.get(at).command.op).expect("a read has a range");
        let span = self.span(lba, blocks);
        self.metrics.host_reads += 1;
        self.metrics.host_units_read += u64::from(span.len());
        if self.media.tracks_contents() {
            let data = (span.first..span.end).map(|unit| self.content(Lpn(unit)).unwrap_or_default());
            let data: Vec<Payload> = data.collect();
            // A store may lose what the medium has: its own page checksum is what tells.
            if self.media.is_stored()
                && let Some(lost) = (span.first..).zip(&data).find(|(_, content)| **content == LOST)
            {
                let lba = self.lba(Lpn(lost.0));
                self.commands.get_mut(at).error = Some(DeviceError::Uncorrectable { lba });
                self.metrics.uncorrectable_reads += 1;
            }
            self.commands.get_mut(at).data = data;
        }
        if let Some((lost, _)) = self.lost.range(Lpn(span.first)..Lpn(span.end)).next() {
            let lba = self.lba(*lost);
            self.commands.get_mut(at).error = Some(DeviceError::Uncorrectable { lba });
        }
        let mut parts = 0;
        let mut cached = 0;
        let mut page: Option<(PageAddr, Ppa, u32)> = None;
        for unit in span.first..span.end {
            match self.map.get(Lpn(unit)) {
                MapWord::Direct(ppa) => {
                    let addr = self.geometry.page_of(ppa).0;
                    match &mut page {
                        Some((last, _, units)) if *last == addr => *units += 1,
                        other => {
                            if let Some((_, ppa, units)) = other.replace((addr, ppa, 1)) {
                                self.read_page(now, at, ppa, units, effects);
                                parts += 1;
                            }
                        }
                    }
                }
                MapWord::Cached { .. } => cached += 1,
                MapWord::Unmapped | MapWord::Shared(_) => {}
            }
        }
        if let Some((_, ppa, units)) = page {
            self.read_page(now, at, ppa, units, effects);
            parts += 1;
        }
        self.metrics.buffer_read_hits += cached;
        if cached > 0
            && let Some(done) = self.memory_access(now, at, cached * self.geometry.unit_bytes)
        {
            parts += 1;
            effects.push(Effect::At(done, Event::BufferMemory { command: at }));
        }
        if parts == 0 {
            self.complete(at, effects);
        } else {
            self.commands.get_mut(at).left = parts;
        }
    }

    fn read_page(&mut self, now: Instant, command: u32, ppa: Ppa, units: u32, effects: &mut Vec<Effect>) {
        self.metrics.pages_read += 1;
        let (purpose, job) = (Purpose::HostRead { command }, Job::HostRead { command });
        self.push_read(now, ppa, units, (purpose, job), effects);
    }

    /// Queues the read of `units` units of the page that holds `ppa`.
    pub(crate) fn push_read(
        &mut self,
        now: Instant,
        ppa: Ppa,
        units: u32,
        (purpose, job): (Purpose, Job),
        effects: &mut Vec<Effect>,
    ) {
        let at = self.geometry.page_of(ppa).0;
        let station = self.nand.push(NandOp {
            kind: OpKind::Read,
            class: Class::Read,
            plane: self.geometry.plane_of(at.block),
            at,
            frontier: None,
            bytes: units * self.geometry.unit_bytes as u32,
            purpose,
            job,
        });
        self.start(now, station, effects);
    }

    pub(crate) fn host_read_done(&mut self, op: &NandOp, command: u32, effects: &mut Vec<Effect>) {
        if !self.media.is_readable(op.at) {
            self.metrics.uncorrectable_reads += 1;
            let lba = range(&self.commands.get(command).command.op).expect("a read has a range").0;
            self.commands.get_mut(command).error.get_or_insert(DeviceError::Uncorrectable { lba });
        }
        self.part_done(command, effects);
    }

    /// The newest content of a unit; `None` if it is unmapped.
    pub(crate) fn content(&self, lpn: Lpn) -> Option<Payload> {
        match self.map.get(lpn) {
            MapWord::Unmapped | MapWord::Shared(_) => None,
            MapWord::Cached { slot, generation } => Some(self.buffer.named(slot, generation).payload.clone()),
            MapWord::Direct(ppa) => {
                // An unreadable page is data loss; the marker is no pattern of any operation.
                Some(self.media.payload(ppa).unwrap_or(LOST))
            }
        }
    }
}

/// Identity of the content of a page that should be readable and is not.
pub const UNREADABLE: u64 = 0xbad0_bad0_bad0_bad0;

/// The content of such a page. A copy of it is one as well, so that no error turns into data on its way.
pub(crate) const LOST: Payload = Payload::Tag(UNREADABLE);
