//! The log of segments as data: what is pending, what is being written, and the commands that wait for it.
//!
//! Place in the data flow: [`super::log`] writes what is due here; recovery resumes it.
//!
//! Invariant: changes are numbered in the order in which they were made, and become durable in that order.

use crate::config::DeviceConfig;
use crate::cx::Cx;
use crate::flash::UnitImage;
use crate::geometry::{Geometry, PageAddr};
use flashweir_core::command::{SegmentId, StreamId};
use flashweir_ftl::BlockId;
use flashweir_ftl::map_log::page_of_region;
use flashweir_ftl::recovery::TrimRecord;
use flashweir_ftl::segment_records::{GroupKind, PageHeader, SegmentRecord, encode, records_per_page};
use std::collections::BTreeSet;
use std::sync::Arc;

/// A deallocation that was accepted.
#[derive(Clone, Debug)]
pub(super) struct Trimmed {
    pub(super) segment: u32,
    /// The generation that it begins.
    pub(super) generation: u32,
    /// Its units, as a capacitor saves them.
    pub(super) units: TrimRecord,
    /// Blocks that are free when it is durable.
    pub(super) blocks: Vec<BlockId>,
    pub(super) member: Option<(StreamId, u32)>,
}

/// One page of the log.
#[derive(Clone, Debug)]
pub(super) enum LogPage {
    /// Records, with the number of their group.
    Records(u64, Arc<[u8]>),
    /// Units at the end of a segment.
    Units(Vec<UnitImage>),
}

/// What is being written.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Writing {
    Nothing,
    /// Pages that are left, and the last change that is durable then.
    Group(u32, u64),
    /// Blocks that are left to be erased.
    Erasing(u32),
    /// Pages that are left, their number in all, and the last change.
    Checkpoint(u32, u32, u64),
    /// The end of a generation of a segment: page and units.
    Tail((u32, u32), u32, u32),
}

/// The log of one device.
#[derive(Clone, Debug)]
pub(super) struct Log {
    pub(super) regions: [Vec<BlockId>; 2],
    pub(super) region: usize,
    pub(super) next_page: u32,
    pub(super) group: u64,
    pub(super) boot: u32,
    pub(super) pages_per_region: u32,
    pub(super) records_per_page: usize,
    pub(super) pending: Vec<SegmentRecord>,
    /// Number of changes so far, and how many of them are durable.
    pub(super) changes: u64,
    pub(super) durable: u64,
    /// Deallocations that are not durable, by the number of their change.
    pub(super) trims: Vec<(u64, Trimmed)>,
    /// Commands that wait for a change.
    pub(super) waiters: Vec<(u32, u64)>,
    /// Segments whose last page is to be written in part.
    pub(super) tails: BTreeSet<u32>,
    pub(super) wanted: bool,
    pub(super) writing: Writing,
    pub(super) pages: Vec<LogPage>,
    /// Whether something may have become durable.
    pub(super) check_marks: bool,
}

impl Log {
    pub(super) fn new(config: &DeviceConfig, geometry: &Geometry) -> Self {
        let regions = [0, 1].map(|region| geometry.segment_log_blocks(region).collect::<Vec<_>>());
        Self {
            pages_per_region: regions[0].len() as u32 * geometry.pages_per_block,
            records_per_page: records_per_page(config.geometry.page_bytes.0),
            regions,
            region: 0,
            next_page: 0,
            group: 1,
            boot: 1,
            pending: Vec::new(),
            changes: 0,
            durable: 0,
            trims: Vec::new(),
            waiters: Vec::new(),
            tails: BTreeSet::new(),
            wanted: false,
            writing: Writing::Nothing,
            pages: Vec::new(),
            check_marks: false,
        }
    }

    /// Goes on after a recovery that wrote its checkpoint as `group` into `region`.
    pub(super) fn resume(&mut self, region: usize, next_page: u32, group: u64, boot: u32) {
        (self.region, self.next_page, self.group, self.boot) = (region, next_page, group, boot);
    }

    /// Asks for what is pending to be written.
    pub(super) fn want(&mut self) {
        self.wanted = true;
    }

    /// Asks for the last page of a segment to be written in part.
    pub(super) fn want_tail(&mut self, segment: u32) {
        self.tails.insert(segment);
    }

    /// The block list of a segment that is written for the first time. It need not be durable before the units are: blocks say themselves
    /// whose they are. Returns the number of the change.
    pub(super) fn add_segment(&mut self, segment: u32, since: (u32, u64), blocks: &[BlockId]) -> u64 {
        self.pending.extend(SegmentRecord::describe(SegmentId(segment), since, false, blocks));
        self.changes += 1;
        self.changes
    }

    pub(super) fn add_sealed(&mut self, segment: u32, seq: u64) {
        self.pending.push(SegmentRecord::Sealed { segment: SegmentId(segment), seq });
        self.changes += 1;
    }

    /// A copied block. Returns the number of the change.
    pub(super) fn add_moved(&mut self, segment: u32, lane: u32, block: BlockId) -> u64 {
        self.pending.push(SegmentRecord::Moved { segment: SegmentId(segment), lane, block });
        self.changes += 1;
        self.wanted = true;
        self.changes
    }

    pub(super) fn add_trim(&mut self, trimmed: Trimmed) {
        let Trimmed { segment, generation, units: TrimRecord { seq, .. }, .. } = trimmed;
        self.pending.push(SegmentRecord::Trim { segment: SegmentId(segment), generation, seq });
        self.changes += 1;
        self.wanted = true;
        self.tails.remove(&segment);
        self.trims.push((self.changes, trimmed));
    }

    /// One part of a command waits until all changes so far that were asked for are durable.
    pub(super) fn wait<J: Copy>(&mut self, cx: &mut Cx<J>, command: u32) {
        let mark = self.trims.last().map_or(0, |(mark, _)| *mark);
        self.wait_for(cx, command, mark);
    }

    /// One part of a command waits until this change is durable.
    pub(super) fn wait_for<J: Copy>(&mut self, cx: &mut Cx<J>, command: u32, mark: u64) {
        if mark > self.durable {
            cx.front.commands.get_mut(command).left += 1;
            self.waiters.push((command, mark));
            self.wanted = true;
        }
    }

    /// Whether a deallocation of the segment is not durable.
    pub(super) fn is_trimming(&self, segment: u32) -> bool {
        self.trims.iter().any(|(_, trimmed)| trimmed.segment == segment)
    }

    /// The number of the change that ended the generation before, if it is not durable.
    pub(super) fn trim_of(&self, segment: u32) -> u64 {
        let of_segment = self.trims.iter().rev().find(|(_, trimmed)| trimmed.segment == segment);
        of_segment.map_or(0, |(mark, _)| *mark)
    }

    /// Blocks that wait for the record of a deallocation.
    pub(super) fn pinned(&self) -> impl Iterator<Item = BlockId> + '_ {
        self.trims.iter().flat_map(|(_, trimmed)| trimmed.blocks.iter().copied())
    }

    /// Deallocations that are not durable; a capacitor saves them.
    pub(super) fn unlogged(&self) -> impl Iterator<Item = TrimRecord> + '_ {
        self.trims.iter().map(|(_, trimmed)| trimmed.units)
    }

    /// The page of a region with this number.
    pub(super) fn page_at(&self, region: usize, nth: u32) -> PageAddr {
        page_of_region(&self.regions[region], nth)
    }

    /// Splits records into the pages of one group.
    pub(super) fn encode(&self, kind: GroupKind, group: u64, records: &[SegmentRecord]) -> Vec<LogPage> {
        let total = records.len().div_ceil(self.records_per_page) as u32;
        let chunks = records.chunks(self.records_per_page).zip(0..);
        let page = |(records, index)| {
            let header = PageHeader { kind, boot: self.boot, group, index, total };
            LogPage::Records(group, Arc::from(encode(&header, records)))
        };
        chunks.map(page).collect()
    }

    /// Whether nothing is being written, and nothing waits for it; for audits.
    pub(super) fn is_idle(&self) -> bool {
        self.writing == Writing::Nothing && self.waiters.is_empty() && self.tails.is_empty()
    }
}

impl LogPage {
    /// The units of the page.
    pub(super) fn units(&self) -> Vec<UnitImage> {
        match self {
            Self::Records(group, image) => vec![UnitImage::meta(*group, image.clone())],
            Self::Units(units) => units.clone(),
        }
    }
}
