//! The map log as data: pending records, the group or checkpoint that is being written, and the commands that wait for it.
//!
//! Place in the data flow: a firmware writes the groups that are due to the pages that [`MapLog::page_at`] names; recovery resumes
//! the log. The format of its pages is in [`crate::map_records`].
//!
//! Invariant: of the two regions, `region` holds the newest complete checkpoint, and its pages are given out one after the other.

use crate::BlockId;
use crate::geometry::PageAddr;
use crate::map_records::{GroupKind, PageHeader, Record, encode, records_per_page};
use crate::recovery::{Change, Claim, Member};
use flashweir_core::command::StreamId;
use flashweir_core::{Lpn, Ppa};
use std::sync::Arc;

/// Most pins before the log is written although no command waits for it.
const PINS_MAX: usize = 4096;

/// Something that a change of the map gave up, and that becomes free when the record of the change is durable.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Pin {
    /// A place on the medium.
    Place(Ppa),
    /// A page's part in a virtual page, as which it had a content since the version `seq`.
    Owner {
        /// Number of the virtual page.
        vpid: u64,
        /// The page.
        lpn: Lpn,
        /// Version since which it was an owner.
        seq: u64,
    },
}

/// The write of metadata that is under way.
#[derive(Clone, Debug)]
pub enum Writing {
    /// None.
    Nothing,
    /// A group of records.
    Group {
        /// Pages that are not programmed yet.
        pages_left: u32,
        /// What becomes free with it.
        pins: Vec<Pin>,
        /// Places of old translation pages that become invalid with it.
        olds: Vec<Ppa>,
        /// Sequence number up to which it makes changes durable.
        changes_upto: u64,
        /// Complete epochs of each stream that it records.
        epochs: Vec<(StreamId, u32)>,
    },
    /// Blocks of the other region are being erased.
    Erasing {
        /// Erases that have not ended.
        left: u32,
    },
    /// A checkpoint into the other region; the other fields as in a group.
    Checkpoint {
        /// Pages that are not programmed yet.
        pages_left: u32,
        /// Sequence number up to which it covers everything.
        horizon: u64,
        /// Pages of it.
        pages: u32,
        /// See [`Self::Group`].
        pins: Vec<Pin>,
        /// See [`Self::Group`].
        olds: Vec<Ppa>,
        /// See [`Self::Group`].
        changes_upto: u64,
        /// See [`Self::Group`].
        epochs: Vec<(StreamId, u32)>,
    },
}

/// The log of one device.
#[derive(Clone, Debug)]
pub struct MapLog {
    /// Blocks of the two regions.
    pub regions: [Vec<BlockId>; 2],
    /// The region that holds the newest complete checkpoint.
    pub region: usize,
    /// Next page of the region, counted across its blocks.
    pub next_page: u32,
    /// Number of the next group.
    pub group: u64,
    /// Number of this boot.
    pub boot: u32,
    /// Records that no group has yet.
    pub pending: Vec<Record>,
    /// What becomes free when all changes so far are durable.
    pub pins: Vec<Pin>,
    /// Places of translation pages that become free when the records so far, which name newer places, are durable.
    pub olds: Vec<Ppa>,
    /// Sequence number of the newest TRIM or SHARE.
    pub last_change: u64,
    /// Sequence number up to which their records are on the flash.
    pub logged_changes: u64,
    /// Records that fit into an NVRAM beside the flash; 0 without one.
    nvram_records: usize,
    /// Records of changes in it.
    nvram_used: usize,
    /// Sequence number up to which all changes are on the flash or in it.
    nvram_upto: u64,
    /// Those that the next checkpoint may have to repeat.
    pub recent: Vec<(Change, Option<Member>)>,
    /// Their records behind the first of each: places in an epoch, and claims.
    recent_more: usize,
    /// Contents that the newest checkpoint names beside mappings.
    contents: usize,
    /// Claims since then, of which the next one names those that are not superseded.
    claims: usize,
    /// Units that were claimed, deallocated or programmed since then: so many contents may be gone.
    changes: usize,
    /// What is being written.
    pub writing: Writing,
    /// Contents of its pages.
    pub images: Vec<Arc<[u8]>>,
    /// A command waits for what is pending.
    pub wanted: bool,
    /// A checkpoint is due although there is room.
    pub wants_checkpoint: bool,
    /// Commands that wait for the log, with the sequence number of the change whose record has to be durable.
    pub waiters: Vec<(u32, u64)>,
    /// Records that fit into a page.
    pub records_per_page: usize,
    /// Pages of a region.
    pub pages_per_region: u32,
}

/// The page of a region of a log with this number: blocks take turns, so that pages are written in parallel.
pub fn page_of_region(blocks: &[BlockId], nth: u32) -> PageAddr {
    PageAddr { block: blocks[nth as usize % blocks.len()], page: nth / blocks.len() as u32 }
}

impl MapLog {
    /// Returns an empty log in these regions; `pages_per_block` and `page_bytes` are those of their blocks.
    pub fn new(
        regions: [Vec<BlockId>; 2],
        pages_per_block: u32,
        page_bytes: u64,
        nvram_records: usize,
    ) -> Self {
        Self {
            pages_per_region: regions[0].len() as u32 * pages_per_block,
            regions,
            region: 0,
            next_page: 0,
            group: 1,
            boot: 1,
            pending: Vec::new(),
            pins: Vec::new(),
            olds: Vec::new(),
            last_change: 0,
            logged_changes: 0,
            nvram_records,
            nvram_used: 0,
            nvram_upto: 0,
            recent: Vec::new(),
            recent_more: 0,
            contents: 0,
            claims: 0,
            changes: 0,
            writing: Writing::Nothing,
            images: Vec::new(),
            wanted: false,
            wants_checkpoint: false,
            waiters: Vec::new(),
            records_per_page: records_per_page(page_bytes),
        }
    }

    /// Resumes the log after a recovery that wrote its checkpoint as `group` into `region`.
    pub fn resume(&mut self, region: usize, next_page: u32, group: u64, boot: u32, changes: u64) {
        (self.region, self.next_page, self.group, self.boot) = (region, next_page, group, boot);
        (self.last_change, self.logged_changes) = (changes, changes);
    }

    /// Sequence number of the newest TRIM or SHARE.
    #[inline]
    pub fn last_change(&self) -> u64 {
        self.last_change
    }

    /// Sequence number up to which these are durable.
    #[inline]
    pub fn durable_changes(&self) -> u64 {
        self.logged_changes.max(self.nvram_upto)
    }

    /// Changes whose records are not on the flash: those that a capacitor has to save.
    pub fn unlogged(&self) -> impl Iterator<Item = &Change> + '_ {
        let logged = self.logged_changes;
        self.recent.iter().map(|(change, _)| change).filter(move |change| change.seq() > logged)
    }

    /// Those of them that are in the NVRAM.
    pub fn in_nvram(&self) -> impl Iterator<Item = &Change> + '_ {
        self.unlogged().take_while(|change| change.seq() <= self.nvram_upto)
    }

    /// Adds the records of a change. Those of a SHARE go into one group of the log, so that all count or none. Returns whether the NVRAM
    /// has them, so that the change is durable already; if there is no room, what it has is to be written.
    pub fn add_change(&mut self, change: Change, member: Option<Member>) -> bool {
        let are_earlier_durable = self.last_change <= self.durable_changes();
        self.last_change = change.seq();
        self.claims += change.claims().len();
        self.changes += match &change {
            Change::Trim(trim) => trim.count as usize,
            Change::Share(share) => share.claims.len(),
        };
        self.pending.extend(change_records(&change, member));
        self.recent_more += more_records(&change, member);
        self.recent.push((change, member));
        are_earlier_durable && self.nvram_records > 0 && self.take_into_nvram(self.recent.len() - 1)
    }

    /// Puts a recent change into the NVRAM. Members of epochs do not go there: recovery counts them in the log.
    fn take_into_nvram(&mut self, nth: usize) -> bool {
        let (change, member) = &self.recent[nth];
        let records = records(change);
        let fits = self.nvram_used + records <= self.nvram_records;
        self.wanted |= !fits;
        if !fits || member.is_some() {
            return false;
        }
        self.nvram_used += records;
        self.nvram_upto = change.seq();
        true
    }

    /// The records of all changes up to this one are on the flash, so the NVRAM forgets them. Returns the changes for which it has room now.
    pub fn note_logged(&mut self, upto: u64) -> Vec<Change> {
        self.logged_changes = self.logged_changes.max(upto);
        if self.nvram_records == 0 {
            return Vec::new();
        }
        self.nvram_used = self.in_nvram().map(records).sum();
        let durable = self.durable_changes();
        let begin = self.recent.partition_point(|(change, _)| change.seq() <= durable);
        let end = (begin..self.recent.len()).find(|nth| !self.take_into_nvram(*nth));
        let taken = &self.recent[begin..end.unwrap_or(self.recent.len())];
        taken.iter().map(|(change, _)| change.clone()).collect()
    }

    /// Forgets changes that a checkpoint with this horizon covers.
    pub fn forget_covered(&mut self, horizon: u64) {
        self.recent.retain(|(change, _)| change.seq() > horizon);
        self.recent_more = self.recent.iter().map(|(change, member)| more_records(change, *member)).sum();
    }

    /// Adds the record that all epochs of a stream up to `epoch` are complete.
    pub fn add_complete(&mut self, stream: StreamId, epoch: u32) {
        self.pending.push(Record::Complete { stream, epoch });
    }

    /// Adds the record that the state `number` of a translation page is at `ppa`, which is programmed.
    pub fn add_map_page(&mut self, page: u32, ppa: Ppa, number: u64) {
        self.pending.push(Record::MapPage { page, ppa, number });
    }

    /// Number of old places of translation pages that wait for a record; for audits.
    pub fn olds(&self) -> usize {
        let writing = match &self.writing {
            Writing::Group { olds, .. } | Writing::Checkpoint { olds, .. } => olds.len(),
            Writing::Nothing | Writing::Erasing { .. } => 0,
        };
        self.olds.len() + writing
    }

    /// Asks for a checkpoint although there is room.
    pub fn want_checkpoint(&mut self) {
        self.wants_checkpoint = true;
    }

    /// Keeps `pin` until all changes so far are durable.
    pub fn pin(&mut self, pin: Pin) {
        self.pins.push(pin);
    }

    /// All pins; for audits.
    pub fn pinned(&self) -> impl Iterator<Item = Pin> + '_ {
        let writing: &[Pin] = match &self.writing {
            Writing::Group { pins, .. } | Writing::Checkpoint { pins, .. } => pins,
            Writing::Nothing | Writing::Erasing { .. } => &[],
        };
        self.pins.iter().chain(writing).copied()
    }

    /// Asks for what is pending to be written although no group is full.
    pub fn want(&mut self) {
        self.wanted = true;
    }

    /// Notes that one part of `command` ends when all changes so far are durable, and asks for that.
    pub fn wait_for_changes(&mut self, command: u32) {
        self.waiters.push((command, self.last_change));
        self.wanted = true;
    }

    /// Adds the summary of a full block, so that recovery need not read its pages: a [`Record::Unit`] of each unit that holds a
    /// logical page, with its place in an epoch.
    pub fn add_summary(
        &mut self,
        block: BlockId,
        opened: u64,
        units: impl Iterator<Item = (Record, Option<Member>)>,
    ) {
        let units: Vec<Record> = units.flat_map(|(unit, member)| with_member(unit, member)).collect();
        self.changes += units.len();
        self.pending.push(Record::Summary { block, opened, units: units.len() as u64 });
        self.pending.extend(units);
    }

    /// The page of the region with this number.
    pub fn page_at(&self, region: usize, nth: u32) -> PageAddr {
        page_of_region(&self.regions[region], nth)
    }

    /// Whether so many changes wait for a checkpoint that no more are accepted: a checkpoint repeats the changes above its horizon,
    /// and must fit into its region with them.
    pub fn is_congested(&self) -> bool {
        self.recent.len() + self.recent_more
            >= recent_records_max(self.pages_per_region, self.records_per_page)
    }

    /// Whether a checkpoint of `mappings` pages has room for the contents of `more` claims, beside the changes of a congested log, a SHARE
    /// of `batch` records that was accepted last, and a sixteenth of the region for groups behind it; `None` if a checkpoint has to
    /// count them first, for which it asks.
    pub fn has_room_for_contents(&mut self, mappings: u64, more: usize, batch: usize) -> Option<bool> {
        let records = self.records_of_region();
        let (congested, spare) = (records / 4 + batch, records / 16);
        let room = records.saturating_sub(mappings as usize + congested + spare);
        if self.contents + self.claims + more <= room {
            return Some(true);
        }
        // It costs a whole region.
        if self.changes < spare {
            return Some(false);
        }
        if !matches!(self.writing, Writing::Erasing { .. }) {
            self.want_checkpoint();
        }
        None
    }

    fn records_of_region(&self) -> usize {
        self.pages_per_region as usize * self.records_per_page
    }

    /// Most streams with epochs: a checkpoint has a record of each.
    pub fn streams_max(&self) -> usize {
        match self.records_of_region() {
            // A device that keeps no metadata.
            0 => usize::MAX,
            records => (records / 16).max(16),
        }
    }

    /// Notes the records of a checkpoint that is about to be written.
    pub fn note_checkpoint(&mut self, records: &[Record]) {
        self.contents = records.iter().filter(|record| matches!(record, Record::Content(_))).count();
        (self.claims, self.changes) = (0, 0);
    }

    /// Whether anything may have to be written or checked.
    #[inline]
    pub fn has_work(&self) -> bool {
        let asked = self.wanted || self.wants_checkpoint;
        let waits = !self.pending.is_empty() || !self.pins.is_empty() || !self.recent.is_empty();
        matches!(self.writing, Writing::Nothing) && (asked || waits)
    }

    /// Whether a group has to be written now: a full page, a waiting command, or too many pins.
    pub fn is_due(&self) -> bool {
        let waits = self.wanted && !self.pending.is_empty();
        waits || self.pending.len() >= self.records_per_page || self.pins.len() >= PINS_MAX
    }

    /// Splits records into the pages of one group.
    pub fn pages(&self, kind: GroupKind, group: u64, records: &[Record]) -> Vec<Arc<[u8]>> {
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
    pub fn image(&self, i: u32) -> (u64, Arc<[u8]>) {
        (self.group - 1, self.images[i as usize].clone())
    }

    /// Pages left in the region.
    #[inline]
    pub fn room(&self) -> u32 {
        self.pages_per_region.saturating_sub(self.next_page)
    }
}

/// Number of recent records from which on a log is congested. One SHARE more, with as many claims, still fits behind them.
pub fn recent_records_max(pages_per_region: u32, records_per_page: usize) -> usize {
    (pages_per_region as usize * records_per_page / 4).max(8)
}

/// Records of a change that is no member of an epoch.
fn records(change: &Change) -> usize {
    1 + claims(change)
}

/// Records of a change behind the first: its place in an epoch, and its claims.
fn more_records(change: &Change, member: Option<Member>) -> usize {
    claims(change) + usize::from(member.is_some())
}

/// Records of the claims of a change.
fn claims(change: &Change) -> usize {
    change.claims().iter().map(|claim| 1 + usize::from(claim.place.is_some())).sum()
}

/// The records of a change. The place in an epoch follows the first one.
pub fn change_records(change: &Change, member: Option<Member>) -> impl Iterator<Item = Record> + '_ {
    let first = match change {
        Change::Trim(trim) => Record::Trim(*trim),
        Change::Share(share) => Record::Share { seq: share.seq, claims: share.claims.len() as u64 },
    };
    let of_claim =
        |claim: &Claim| [Some(Record::Claim(*claim)), claim.place.map(Record::At)].into_iter().flatten();
    with_member(first, member).chain(change.claims().iter().flat_map(of_claim))
}

/// A record, followed by the record of its subject's place in an epoch, if it has one.
pub fn with_member(record: Record, member: Option<Member>) -> impl Iterator<Item = Record> {
    [Some(record), member.map(Record::Member)].into_iter().flatten()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::map_records::decode;
    use crate::recovery::TrimRecord;
    use proptest::prelude::*;
    use std::collections::BTreeSet;

    fn log() -> MapLog {
        MapLog::new([vec![BlockId(3), BlockId(9)], vec![BlockId(4), BlockId(7)]], 5, 4096, 0)
    }

    #[test]
    fn the_pages_of_a_region_are_all_of_its_pages() {
        let log = log();
        let pages: BTreeSet<PageAddr> = (0..log.room()).map(|nth| log.page_at(1, nth)).collect();
        let all = [4, 7]
            .into_iter()
            .flat_map(|block| (0..5).map(move |page| PageAddr { block: BlockId(block), page }));
        assert_eq!(pages, all.collect());
    }

    proptest! {
        #[test]
        fn what_is_added_is_in_the_pages(
            trims in prop::collection::vec((0..1u64 << 40, 1..1u64 << 30), 0..400),
            unit in 0..64u32,
        ) {
            let mut log = log();
            for ((lpn, count), seq) in trims.iter().zip(1..) {
                log.add_change(Change::Trim(TrimRecord { lpn: Lpn(*lpn), count: *count, seq }), None);
            }
            let of_unit = Record::Unit { unit, lpn: Lpn(6), seq: 7, hidden: false };
            log.add_summary(BlockId(5), 8, [(of_unit, None)].into_iter());
            prop_assert_eq!(log.last_change(), trims.len() as u64);
            prop_assert_eq!(log.unlogged().count(), trims.len());
            let records = log.pending.clone();
            let pages = log.pages(GroupKind::Log, 3, &records);
            let mut found = Vec::new();
            for (page, index) in pages.iter().zip(0..) {
                let (header, records) = decode(page).expect("the page is whole");
                prop_assert_eq!((header.group, header.index, header.total), (3, index, pages.len() as u32));
                found.extend(records);
            }
            prop_assert_eq!(found.len(), trims.len() + 2);
            prop_assert_eq!(found, records);
        }
    }
}
