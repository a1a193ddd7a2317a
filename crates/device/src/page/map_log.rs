//! The map log as data: records that wait, the group or checkpoint that is being written, who waits for it.
//!
//! Place in the data flow: [`super::log`] writes what is due; recovery goes on with it.
//!
//! Invariant: of the two regions, `region` holds the newest complete checkpoint, and its pages are given out one after the other.

use super::meta_format::{GroupKind, PageHeader, Record, encode, records_per_page};
use crate::config::DeviceConfig;
use crate::flash::{Media, Owner, UnitImage};
use crate::geometry::{Geometry, PageAddr};
use flashweir_core::command::StreamId;
use flashweir_core::{Payload, Ppa};
use flashweir_ftl::BlockId;
use flashweir_ftl::recovery::{Member, TrimRecord};
use std::sync::Arc;

/// Pins at most before the log is written although nobody waits.
const PINS_MAX: usize = 4096;

#[derive(Clone, Debug)]
pub(super) enum Writing {
    Nothing,
    Group {
        pages_left: u32,
        pins: Vec<Ppa>,
        olds: Vec<Ppa>,
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
        olds: Vec<Ppa>,
        trims_upto: u64,
        epochs: Vec<(StreamId, u32)>,
    },
}

/// The log of one device.
#[derive(Clone, Debug)]
pub(super) struct MapLog {
    /// Blocks of the two regions.
    pub(super) regions: [Vec<BlockId>; 2],
    pub(super) region: usize,
    /// Next page of the region, counted across its blocks.
    pub(super) next_page: u32,
    pub(super) group: u64,
    pub(super) boot: u32,
    pub(super) pending: Vec<Record>,
    pub(super) pins: Vec<Ppa>,
    /// Places of translation pages that become free when the records so far are durable, which name newer ones.
    pub(super) olds: Vec<Ppa>,
    pub(super) last_trim: u64,
    pub(super) durable_trims: u64,
    /// Deallocations that the next checkpoint may have to repeat.
    pub(super) recent_trims: Vec<(TrimRecord, Option<Member>)>,
    pub(super) writing: Writing,
    pub(super) images: Vec<Arc<[u8]>>,
    pub(super) wanted: bool,
    pub(super) wants_checkpoint: bool,
    /// Commands that complete when the log is written, with the record they wait for.
    pub(super) waiters: Vec<(u32, u64)>,
    pub(super) records_per_page: usize,
    pub(super) pages_per_region: u32,
}

impl MapLog {
    pub(super) fn new(config: &DeviceConfig, geometry: &Geometry) -> Self {
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
            olds: Vec::new(),
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
    pub(super) fn resume(&mut self, region: usize, next_page: u32, group: u64, boot: u32, trims: u64) {
        (self.region, self.next_page, self.group, self.boot) = (region, next_page, group, boot);
        (self.last_trim, self.durable_trims) = (trims, trims);
    }

    pub(super) fn last_trim(&self) -> u64 {
        self.last_trim
    }

    pub(super) fn durable_trims(&self) -> u64 {
        self.durable_trims
    }

    /// Deallocations that a capacitor has to save.
    pub(super) fn unlogged_trims(&self) -> impl Iterator<Item = TrimRecord> + '_ {
        self.recent_trims.iter().map(|(trim, _)| *trim).filter(|trim| trim.seq > self.durable_trims)
    }

    pub(super) fn add_trim(&mut self, trim: TrimRecord, member: Option<Member>) {
        self.last_trim = trim.seq;
        self.pending.extend(with_member(Record::Trim(trim), member));
        self.recent_trims.push((trim, member));
    }

    /// All epochs of a stream up to `epoch` are complete.
    pub(super) fn add_complete(&mut self, stream: StreamId, epoch: u32) {
        self.pending.push(Record::Complete { stream, epoch });
    }

    /// A translation page is at `ppa`, which is programmed.
    pub(super) fn add_map_page(&mut self, page: u32, ppa: Ppa, number: u64) {
        self.pending.push(Record::MapPage { page, ppa, number });
    }

    /// Places of translation pages that wait for a record, for audits.
    pub(super) fn olds(&self) -> usize {
        let writing = match &self.writing {
            Writing::Group { olds, .. } | Writing::Checkpoint { olds, .. } => olds.len(),
            Writing::Nothing | Writing::Erasing { .. } => 0,
        };
        self.olds.len() + writing
    }

    /// A checkpoint is due although there is room.
    pub(super) fn want_checkpoint(&mut self) {
        self.wants_checkpoint = true;
    }

    /// `ppa` becomes invalid when all deallocations so far are durable.
    pub(super) fn pin(&mut self, ppa: Ppa) {
        self.pins.push(ppa);
    }

    /// Units that are pinned, for audits.
    pub(super) fn pinned(&self) -> usize {
        let writing = match &self.writing {
            Writing::Group { pins, .. } | Writing::Checkpoint { pins, .. } => pins.len(),
            Writing::Nothing | Writing::Erasing { .. } => 0,
        };
        self.pins.len() + writing
    }

    /// Somebody waits for what is pending.
    pub(super) fn want(&mut self) {
        self.wanted = true;
    }

    /// `command` has one part that ends when all deallocations so far are durable.
    pub(super) fn wait_for_trims(&mut self, command: u32) {
        self.waiters.push((command, self.last_trim));
        self.wanted = true;
    }

    /// A full block: recovery need not read its pages.
    pub(super) fn add_summary(&mut self, block: BlockId, opened: u64, media: &Media, geometry: &Geometry) {
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
    pub(super) fn page_at(&self, region: usize, nth: u32) -> PageAddr {
        let blocks = &self.regions[region];
        PageAddr { block: blocks[nth as usize % blocks.len()], page: nth / blocks.len() as u32 }
    }

    /// Whether so many deallocations wait for a checkpoint that no more are accepted: a checkpoint repeats those
    /// above its horizon, and must fit into its region with them.
    pub(super) fn is_congested(&self) -> bool {
        self.recent_trims.len() >= (self.pages_per_region as usize * self.records_per_page / 4).max(8)
    }

    /// Whether anything may have to be written, or is to be looked at.
    #[inline]
    pub(super) fn has_work(&self) -> bool {
        let asked = self.wanted || self.wants_checkpoint;
        let waits = !self.pending.is_empty() || !self.pins.is_empty() || !self.recent_trims.is_empty();
        matches!(self.writing, Writing::Nothing) && (asked || waits)
    }

    pub(super) fn is_due(&self) -> bool {
        let waits = self.wanted && !self.pending.is_empty();
        waits || self.pending.len() >= self.records_per_page || self.pins.len() >= PINS_MAX
    }

    /// Splits records into the pages of one group.
    pub(super) fn pages(&self, kind: GroupKind, group: u64, records: &[Record]) -> Vec<Arc<[u8]>> {
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
    pub(super) fn image(&self, i: u32) -> (u64, Arc<[u8]>) {
        (self.group - 1, self.images[i as usize].clone())
    }

    /// Pages left in the region.
    pub(super) fn room(&self) -> u32 {
        self.pages_per_region.saturating_sub(self.next_page)
    }
}

/// A record, and behind it what its subject says about its epoch.
pub(super) fn with_member(record: Record, member: Option<Member>) -> impl Iterator<Item = Record> {
    [Some(record), member.map(Record::Member)].into_iter().flatten()
}

/// What a page of metadata puts on the medium.
pub(super) fn meta_image(group: u64, image: Arc<[u8]>) -> UnitImage {
    UnitImage { owner: Owner::Meta, seq: group, member: None, payload: Payload::Bytes(image) }
}
