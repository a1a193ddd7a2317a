//! The map log: what makes deallocations durable and recovery short (`specs/device-metadata.md`).
//!
//! Two regions of blocks take turns. A region begins with a checkpoint of the map (none on a new device),
//! log groups follow; when the next group does not fit, a checkpoint goes into the other region.
//!
//! Invariants:
//! 1. One group is being written at a time; a group counts only when all its pages are on the medium.
//! 2. The region that holds the newest complete checkpoint is erased only after a newer one is complete.
//! 3. A place that a deallocation gave up stays valid until the record is durable.

use crate::config::DeviceConfig;
use crate::device::{Device, Effect};
use crate::geometry::{Geometry, PageAddr};
use crate::job::{Job, Op as NandOp};
use crate::media::{Media, Owner, UnitImage};
use crate::meta_format::{GroupKind, PageHeader, Record, encode, records_per_page};
use crate::nand::{Class, OpKind, Purpose};
use crate::planted::PlantedBug;
use crate::trace::{LogWork, Traced};
use flashweir_core::command::StreamId;
use flashweir_core::{Instant, Payload, Ppa};
use flashweir_ftl::recovery::{Mapping, Member, TrimRecord};
use flashweir_ftl::{BlockId, MapWord};
use std::sync::Arc;

/// Pins at most before the log is written although nobody waits.
const PINS_MAX: usize = 4096;

#[derive(Clone, Debug)]
enum Writing {
    Nothing,
    Group {
        pages_left: u32,
        pins: Vec<Ppa>,
        trims_upto: u64,
        epochs: Vec<(StreamId, u32)>,
    },
    /// Blocks of the other region are being erased.
    Erasing {
        left: u32,
    },
    Checkpoint {
        pages_left: u32,
        horizon: u64,
        pages: u32,
        pins: Vec<Ppa>,
        trims_upto: u64,
        epochs: Vec<(StreamId, u32)>,
    },
}

/// The log of one device.
#[derive(Clone, Debug)]
pub(crate) struct MapLog {
    /// Blocks of the two regions.
    regions: [Vec<BlockId>; 2],
    region: usize,
    /// Next page of the region, counted across its blocks.
    next_page: u32,
    group: u64,
    pub(crate) boot: u32,
    pending: Vec<Record>,
    pins: Vec<Ppa>,
    last_trim: u64,
    durable_trims: u64,
    /// Deallocations that the next checkpoint may have to repeat.
    recent_trims: Vec<(TrimRecord, Option<Member>)>,
    writing: Writing,
    images: Vec<Arc<[u8]>>,
    wanted: bool,
    wants_checkpoint: bool,
    /// Commands that complete when the log is written, with the record they wait for.
    waiters: Vec<(u32, u64)>,
    records_per_page: usize,
    pages_per_region: u32,
}

impl MapLog {
    pub(crate) fn new(config: &DeviceConfig, geometry: &Geometry) -> Self {
        let regions: [Vec<BlockId>; 2] =
            [geometry.meta_blocks(0).collect(), geometry.meta_blocks(1).collect()];
        Self {
            pages_per_region: geometry.meta_blocks_per_region * geometry.pages_per_block,
            regions,
            region: 0,
            next_page: 0,
            group: 1,
            boot: 1,
            pending: Vec::new(),
            pins: Vec::new(),
            last_trim: 0,
            durable_trims: 0,
            recent_trims: Vec::new(),
            writing: Writing::Nothing,
            images: Vec::new(),
            wanted: false,
            wants_checkpoint: false,
            waiters: Vec::new(),
            records_per_page: records_per_page(config.geometry.page_bytes.0),
        }
    }

    /// Continues after a recovery that wrote its checkpoint as `group` into `region`.
    pub(crate) fn resume(&mut self, region: usize, next_page: u32, group: u64, boot: u32, trims: u64) {
        (self.region, self.next_page, self.group, self.boot) = (region, next_page, group, boot);
        (self.last_trim, self.durable_trims) = (trims, trims);
    }

    pub(crate) fn last_trim(&self) -> u64 {
        self.last_trim
    }

    pub(crate) fn durable_trims(&self) -> u64 {
        self.durable_trims
    }

    /// Deallocations that a capacitor has to save.
    pub(crate) fn unlogged_trims(&self) -> impl Iterator<Item = TrimRecord> + '_ {
        self.recent_trims.iter().map(|(trim, _)| *trim).filter(|trim| trim.seq > self.durable_trims)
    }

    pub(crate) fn add_trim(&mut self, trim: TrimRecord, member: Option<Member>) {
        self.last_trim = trim.seq;
        self.pending.extend(with_member(Record::Trim(trim), member));
        self.recent_trims.push((trim, member));
    }

    /// All epochs of a stream up to `epoch` are complete.
    pub(crate) fn add_complete(&mut self, stream: StreamId, epoch: u32) {
        self.pending.push(Record::Complete { stream, epoch });
    }

    /// A checkpoint is due although there is room.
    pub(crate) fn want_checkpoint(&mut self) {
        self.wants_checkpoint = true;
    }

    /// `ppa` becomes invalid when all deallocations so far are durable.
    pub(crate) fn pin(&mut self, ppa: Ppa) {
        self.pins.push(ppa);
    }

    /// Units that are pinned, for audits.
    pub(crate) fn pinned(&self) -> usize {
        let writing = match &self.writing {
            Writing::Group { pins, .. } | Writing::Checkpoint { pins, .. } => pins.len(),
            Writing::Nothing | Writing::Erasing { .. } => 0,
        };
        self.pins.len() + writing
    }

    /// Somebody waits for what is pending.
    pub(crate) fn want(&mut self) {
        self.wanted = true;
    }

    /// `command` has one part that ends when all deallocations so far are durable.
    pub(crate) fn wait_for_trims(&mut self, command: u32) {
        self.waiters.push((command, self.last_trim));
        self.wanted = true;
    }

    /// A full block: recovery need not read its pages.
    pub(crate) fn add_summary(&mut self, block: BlockId, opened: u64, media: &Media, geometry: &Geometry) {
        let first = u64::from(block.0) * u64::from(geometry.units_per_block());
        let units = (0..geometry.units_per_block()).filter_map(|unit| {
            match media.oob(Ppa(first + u64::from(unit))) {
                Some((Owner::Lpn(lpn), seq)) => {
                    let member = media.member(Ppa(first + u64::from(unit)));
                    Some(with_member(Record::Unit { unit, lpn, seq }, member))
                }
                _ => None,
            }
        });
        let units: Vec<Record> = units.flatten().collect();
        self.pending.push(Record::Summary { block, opened, units: units.len() as u64 });
        self.pending.extend(units);
    }

    /// The page of the region with this number: blocks take turns, so that pages are written in parallel.
    pub(crate) fn page_at(&self, region: usize, nth: u32) -> PageAddr {
        let blocks = &self.regions[region];
        PageAddr { block: blocks[nth as usize % blocks.len()], page: nth / blocks.len() as u32 }
    }

    /// Whether so many deallocations wait for a checkpoint that no more are accepted: a checkpoint repeats those
    /// above its horizon, and must fit into its region with them.
    pub(crate) fn is_congested(&self) -> bool {
        self.recent_trims.len() >= (self.pages_per_region as usize * self.records_per_page / 4).max(8)
    }

    fn is_due(&self) -> bool {
        let waits = self.wanted && !self.pending.is_empty();
        waits || self.pending.len() >= self.records_per_page || self.pins.len() >= PINS_MAX
    }

    /// Splits records into the pages of one group.
    pub(crate) fn pages(&self, kind: GroupKind, group: u64, records: &[Record]) -> Vec<Arc<[u8]>> {
        let total = records.len().div_ceil(self.records_per_page) as u32;
        records
            .chunks(self.records_per_page)
            .zip(0..)
            .map(|(records, index)| {
                let header = PageHeader { kind, boot: self.boot, group, index, total };
                Arc::from(encode(&header, records))
            })
            .collect()
    }

    /// Number and content of page `i` of the group under way.
    pub(crate) fn image(&self, i: u32) -> (u64, Arc<[u8]>) {
        (self.group - 1, self.images[i as usize].clone())
    }

    /// Pages left in the region.
    fn room(&self) -> u32 {
        self.pages_per_region.saturating_sub(self.next_page)
    }
}

impl Device {
    /// Writes the next log group or checkpoint if one is due.
    pub(crate) fn pump_log(&mut self, now: Instant, effects: &mut Vec<Effect>) {
        if !matches!(self.log.writing, Writing::Nothing) {
            return;
        }
        if self.log.last_trim == self.log.durable_trims {
            // What was given up after its record had gone into the log is free already.
            for ppa in std::mem::take(&mut self.log.pins) {
                self.outdate(ppa);
            }
        }
        let congested = self.log.is_congested() && self.log.recent_trims[0].0.seq <= self.horizon();
        if (congested || self.log.wants_checkpoint) && self.keeps_metadata() {
            self.log.wants_checkpoint = false;
            self.begin_checkpoint(now, effects);
            return;
        }
        if !self.log.is_due() {
            if self.log.pending.is_empty() && self.log.wanted {
                self.log.wanted = false;
                self.log_advanced(now, effects);
            }
            return;
        }
        if !self.keeps_metadata() {
            self.log.pending.clear();
            return;
        }
        let pages = self.log.pending.len().div_ceil(self.log.records_per_page) as u32;
        if pages > self.log.room() {
            self.begin_checkpoint(now, effects);
            return;
        }
        let records = std::mem::take(&mut self.log.pending);
        self.log.wanted = false;
        let images = self.log.pages(GroupKind::Log, self.log.group, &records);
        self.log.group += 1;
        self.log.writing = Writing::Group {
            pages_left: pages,
            pins: std::mem::take(&mut self.log.pins),
            trims_upto: self.log.last_trim,
            epochs: self.orders.recordings(),
        };
        self.nand.trace.record(|| Traced::Log { work: LogWork::Group, count: pages });
        self.write_meta(now, self.log.region, images, effects);
    }

    fn write_meta(&mut self, now: Instant, region: usize, images: Vec<Arc<[u8]>>, effects: &mut Vec<Effect>) {
        let first = self.log.next_page;
        self.log.next_page += images.len() as u32;
        self.log.images = images;
        for i in 0..self.log.images.len() as u32 {
            let at = self.log.page_at(region, first + i);
            let station = self.nand.push(NandOp {
                kind: OpKind::Program,
                class: Class::Meta,
                plane: self.geometry.plane_of(at.block),
                at,
                frontier: None,
                bytes: self.geometry.units_per_page * self.geometry.unit_bytes as u32,
                purpose: Purpose::Metadata,
                job: Job::MetaPage(i),
            });
            self.start(now, station, effects);
        }
    }

    /// What programming page `i` of the group under way does to the medium.
    fn program_meta(&mut self, at: PageAddr, i: u32) {
        let (group, image) = self.log.image(i);
        program_meta_page(&mut self.media, at, group, image);
        self.metrics.meta_units += u64::from(self.geometry.units_per_page);
        self.metrics.pages_programmed += 1;
        self.metrics.log_pages += 1;
    }

    pub(crate) fn meta_page_done(&mut self, now: Instant, op: &NandOp, i: u32, effects: &mut Vec<Effect>) {
        self.program_meta(op.at, i);
        let left = match &mut self.log.writing {
            Writing::Group { pages_left, .. } | Writing::Checkpoint { pages_left, .. } => {
                *pages_left -= 1;
                *pages_left
            }
            Writing::Nothing | Writing::Erasing { .. } => unreachable!("a metadata page belongs to a group"),
        };
        if left > 0 {
            return;
        }
        self.nand.trace.record(|| Traced::LogDone);
        let (pins, trims_upto, epochs) = match std::mem::replace(&mut self.log.writing, Writing::Nothing) {
            Writing::Group { pins, trims_upto, epochs, .. } => (pins, trims_upto, epochs),
            Writing::Checkpoint { horizon, pages, pins, trims_upto, epochs, .. } => {
                self.metrics.checkpoints += 1;
                self.log.region ^= 1;
                self.log.next_page = pages;
                self.log.recent_trims.retain(|(trim, _)| trim.seq > horizon);
                (pins, trims_upto, epochs)
            }
            Writing::Nothing | Writing::Erasing { .. } => unreachable!("a metadata page belongs to a group"),
        };
        for ppa in pins {
            self.outdate(ppa);
        }
        self.log.durable_trims = self.log.durable_trims.max(trims_upto);
        self.records_durable(&epochs);
        self.log_advanced(now, effects);
        self.pump_log(now, effects);
    }

    /// Lets everybody go on who waited for the log.
    fn log_advanced(&mut self, now: Instant, effects: &mut Vec<Effect>) {
        let durable = self.log.durable_trims;
        while let Some(at) = self.log.waiters.iter().position(|(_, seq)| *seq <= durable) {
            let (command, _) = self.log.waiters.swap_remove(at);
            self.part_done(command, effects);
        }
        self.orders_advanced(now, effects);
        self.check_flushes(effects);
        self.admit(now, effects);
        self.collect_recheck(now, effects);
        for plane in 0..self.collections.len() {
            if std::mem::take(&mut self.collections[plane].waits_for_log) {
                self.collect_step(now, flashweir_ftl::PlaneId(plane as u32), effects);
            }
        }
    }

    fn begin_checkpoint(&mut self, now: Instant, effects: &mut Vec<Effect>) {
        let target = self.log.region ^ 1;
        let used: Vec<BlockId> = self.log.regions[target]
            .iter()
            .copied()
            .filter(|b| self.media.pages_written(*b) > 0 || self.media.erase_torn(*b))
            .collect();
        self.log.writing = Writing::Erasing { left: used.len() as u32 };
        self.nand.trace.record(|| Traced::Log { work: LogWork::Erase, count: used.len() as u32 });
        if used.is_empty() {
            self.write_checkpoint(now, effects);
            return;
        }
        for block in used {
            let station = self.nand.push(NandOp {
                kind: OpKind::Erase,
                class: Class::Meta,
                plane: self.geometry.plane_of(block),
                at: PageAddr { block, page: 0 },
                frontier: None,
                bytes: 0,
                purpose: Purpose::Metadata,
                job: Job::MetaErase,
            });
            self.start(now, station, effects);
        }
    }

    pub(crate) fn meta_erase_done(&mut self, now: Instant, op: &NandOp, effects: &mut Vec<Effect>) {
        self.media.erase(op.at.block);
        self.metrics.erases += 1;
        self.space.blocks.note_erase(op.at.block);
        let Writing::Erasing { left } = &mut self.log.writing else {
            unreachable!("an erase begins a checkpoint")
        };
        *left -= 1;
        if *left == 0 {
            self.write_checkpoint(now, effects);
        }
    }

    fn write_checkpoint(&mut self, now: Instant, effects: &mut Vec<Effect>) {
        self.note_complete_epochs();
        let horizon = self.horizon();
        let mut open: Vec<BlockId> = self.space.open_blocks().collect();
        open.extend(self.blocks_with_members(horizon));
        if self.has_planted(PlantedBug::OpenBlockTrusted) {
            open.clear();
        }
        let records = self.checkpoint_records(horizon, open);
        let images = self.log.pages(GroupKind::Checkpoint, self.log.group, &records);
        self.log.group += 1;
        self.log.next_page = 0;
        let pages = images.len() as u32;
        // The summaries that were pending describe blocks that the checkpoint vouches for; the
        // deallocations are part of it.
        self.log.pending.clear();
        self.log.wanted = false;
        self.log.writing = Writing::Checkpoint {
            pages_left: pages,
            horizon,
            pages,
            pins: std::mem::take(&mut self.log.pins),
            trims_upto: self.log.last_trim,
            epochs: self.orders.recordings(),
        };
        self.nand.trace.record(|| Traced::Log { work: LogWork::Checkpoint, count: pages });
        self.write_meta(now, self.log.region ^ 1, images, effects);
    }

    /// Everything accepted at or below is on the medium or superseded.
    fn horizon(&self) -> u64 {
        if self.has_planted(PlantedBug::HorizonAhead) {
            return self.seq;
        }
        let slots = self.buffer.iter().map(|(_, slot)| slot.seq);
        let waiting = self.admission.front().map(|at| self.commands.get(*at).seq).filter(|seq| *seq > 0);
        let epochs = self.orders.horizon().filter(|_| !self.has_planted(PlantedBug::HorizonInEpoch));
        slots.chain(waiting).chain(epochs).min().map_or(self.seq, |seq| seq - 1)
    }

    /// The records of a checkpoint: durable places of all pages, and what the horizon does not cover.
    pub(crate) fn checkpoint_records(&self, horizon: u64, open: Vec<BlockId>) -> Vec<Record> {
        let mut records = vec![Record::Checkpoint { horizon, openings: self.space.openings }];
        records.extend(open.into_iter().map(Record::Open));
        let forgets = self.has_planted(PlantedBug::CheckpointForgetsTrims);
        let epochs = self.orders.recordings().into_iter();
        records.extend(epochs.map(|(stream, epoch)| Record::Complete { stream, epoch }));
        let uncovered = self.log.recent_trims.iter().filter(|(trim, _)| trim.seq > horizon && !forgets);
        records.extend(uncovered.flat_map(|(trim, member)| with_member(Record::Trim(*trim), *member)));
        for (lpn, mut word) in self.map.iter() {
            while let MapWord::Cached { slot, generation } = word {
                word = self.buffer.named(slot, generation).under;
            }
            if let MapWord::Direct(ppa) = word
                && let Some((_, seq)) = self.media.oob(ppa)
            {
                records.push(Record::Mapping(Mapping { lpn, ppa, seq }));
            }
        }
        records
    }
}

/// A record, and behind it what its subject says about its epoch.
fn with_member(record: Record, member: Option<Member>) -> impl Iterator<Item = Record> {
    [Some(record), member.map(Record::Member)].into_iter().flatten()
}

/// Programs one page of metadata.
pub(crate) fn program_meta_page(media: &mut Media, at: PageAddr, group: u64, image: Arc<[u8]>) {
    let unit = UnitImage { owner: Owner::Meta, seq: group, member: None, payload: Payload::Bytes(image) };
    media.program(at, 0, std::iter::once(unit));
}
