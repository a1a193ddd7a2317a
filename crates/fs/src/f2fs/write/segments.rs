//! State of the segments of the main area beyond the SIT: which are free, which blocks are kept, and their summaries.
//!
//! Place in the data flow: part of the [`state`](super::state); [`space`](super::space) allocates and frees blocks with it.

use super::super::appended::{missing, written_in};
use super::super::layout::bytes::block_bit;
use super::super::layout::summary::Summary;
use super::super::layout::{Geometry, Log, SEGMENT_BLOCKS, SegNo};
use super::stop::{Step, Stop};
use crate::vfs::Timestamp;
use flashweir_core::Duration;
use std::collections::{BTreeMap, BTreeSet};

/// Sections of append segments that are never worth cleaning: those that logs write, and what a power cut leaves written in part.
pub(crate) const OPEN_SECTIONS: u32 = Log::ALL.len() as u32 + 2;

/// A bit for each block of a segment.
pub(super) type Map = [u8; SEGMENT_BLOCKS as usize / 8];

/// A set of segments that grows often and is read seldom.
#[derive(Debug, Default)]
pub(super) struct Marks {
    is_in: Vec<bool>,
    list: Vec<SegNo>,
}

impl Marks {
    pub(super) fn new(segments: u32) -> Self {
        Self { is_in: vec![false; segments as usize], list: Vec::new() }
    }

    pub(super) fn insert(&mut self, segment: SegNo) {
        if !std::mem::replace(&mut self.is_in[segment.0 as usize], true) {
            self.list.push(segment);
        }
    }

    pub(super) fn len(&self) -> usize {
        self.list.len()
    }

    /// All segments of the set in ascending order.
    pub(super) fn sorted(&self) -> Vec<SegNo> {
        let mut list = self.list.clone();
        list.sort_unstable();
        list
    }

    /// Empties the set and returns its segments in ascending order.
    pub(super) fn take(&mut self) -> Vec<SegNo> {
        let list = self.sorted();
        self.list.drain(..).for_each(|segment| self.is_in[segment.0 as usize] = false);
        list
    }
}

/// Segments without blocks, and the number of sections that consist of such segments only.
#[derive(Debug)]
pub(super) struct FreeSegments {
    segments: BTreeSet<SegNo>,
    per_section: u32,
    /// Whether a log takes only whole sections, and writes each to its end.
    takes_whole: bool,
    in_section: Vec<u32>,
    sections: u32,
}

impl FreeSegments {
    pub(super) fn new(geometry: &Geometry) -> Self {
        let per_section = geometry.segments_per_section;
        let sections = geometry.main_segments / per_section;
        let takes_whole = geometry.is_appended();
        Self {
            segments: BTreeSet::new(),
            per_section,
            takes_whole,
            in_section: vec![0; sections as usize],
            sections: 0,
        }
    }

    pub(super) fn insert(&mut self, segment: SegNo) {
        if self.segments.insert(segment) {
            let count = &mut self.in_section[(segment.0 / self.per_section) as usize];
            *count += 1;
            self.sections += u32::from(*count == self.per_section);
        }
    }

    pub(super) fn remove(&mut self, segment: SegNo) {
        if self.segments.remove(&segment) {
            let count = &mut self.in_section[(segment.0 / self.per_section) as usize];
            self.sections -= u32::from(*count == self.per_section);
            *count -= 1;
        }
    }

    pub(super) fn contains(&self, segment: SegNo) -> bool {
        self.segments.contains(&segment)
    }

    /// Number of sections that are entirely free.
    pub(super) fn sections(&self) -> u32 {
        self.sections
    }

    pub(super) fn segments(&self) -> u32 {
        self.segments.len() as u32
    }

    /// The segment in which a log that is full at `last` continues: in its section, in the next section that is free, or anywhere.
    pub(super) fn after(&self, last: SegNo) -> Option<SegNo> {
        let next = SegNo(last.0 + 1);
        if !next.0.is_multiple_of(self.per_section) && self.contains(next) {
            return Some(next);
        }
        let is_whole = |segment: &&SegNo| {
            let section = (segment.0 / self.per_section) as usize;
            segment.0.is_multiple_of(self.per_section) && self.in_section[section] == self.per_section
        };
        let mut all = self.segments.range(next..).chain(self.segments.range(..next));
        all.clone().find(is_whole).or_else(|| all.next().filter(|_| !self.takes_whole)).copied()
    }
}

/// Seconds during which the volume was mounted, according to the times that callers give.
#[derive(Clone, Copy, Debug)]
pub(super) struct Clock {
    /// Seconds of all earlier mounts.
    before_s: u64,
    first_s: Option<i64>,
    last_s: i64,
    /// Time of the last change.
    changed_s: i64,
}

impl Clock {
    pub(super) fn new(before_s: u64) -> Self {
        Self { before_s, first_s: None, last_s: i64::MIN, changed_s: i64::MIN }
    }

    pub(super) fn advance(&mut self, now: Timestamp) {
        let first = *self.first_s.get_or_insert(now.seconds);
        self.last_s = self.last_s.max(now.seconds).max(first);
    }

    /// Notes a change at this time.
    pub(super) fn tick(&mut self, now: Timestamp) {
        self.advance(now);
        self.changed_s = self.last_s;
    }

    /// Whether nothing was changed for this span.
    pub(super) fn is_idle(&mut self, now: Timestamp, span: Duration) -> bool {
        self.advance(now);
        u128::from(self.last_s.abs_diff(self.changed_s)) * 1_000_000_000 >= u128::from(span.as_nanos())
    }

    pub(super) fn now_s(&self) -> u64 {
        self.before_s.saturating_add(self.first_s.map_or(0, |first| self.last_s.abs_diff(first)))
    }
}

/// State of the segments beyond the SIT.
#[derive(Debug)]
pub(super) struct Space {
    /// Blocks to which a checkpoint refers, or that were allocated since, by segment.
    pub(super) kept: Vec<Map>,
    /// Segments whose maps of valid blocks differ from `kept`, or did.
    pub(super) touched: Marks,
    pub(super) free: FreeSegments,
    pub(super) emptied: BTreeSet<SegNo>,
    /// Summaries of segments that are not open: those that were read, and those that may still be on their way to the disk, each
    /// with the value that `prepared` had then.
    pub(super) summaries: BTreeMap<SegNo, (u64, Summary)>,
    pub(super) prepared: u64,
    /// Value of `prepared` when all writes that the disk has answered by now had been submitted.
    pub(super) answered: u64,
    /// Sections from which everything was moved since the last checkpoint, and the one that is being cleaned.
    pub(super) cleaned: BTreeSet<u32>,
    pub(super) cleaning: Option<u32>,
    /// Sections that hold a block which the disk could not read: nothing cleans them before they are free.
    pub(super) unreadable: BTreeSet<u32>,
    /// Number of sections that only cleaning and checkpoints may use.
    pub(super) reserved_sections: u32,
    /// Most valid blocks of a section that is worth cleaning when room is needed now.
    pub(super) valid_max: u32,
    /// Number of blocks that are valid on the disk.
    pub(super) written: u64,
    /// Number of holes when cleaning could not gain anything.
    pub(super) hopeless_holes: Option<u64>,
    pub(super) clock: Clock,
}

/// A segment as a checkpoint has it.
#[derive(Debug)]
pub(super) struct Kept {
    pub(super) segment: SegNo,
    /// Blocks that are valid in the checkpoint.
    pub(super) map: Map,
    /// Value of `kept` at that time.
    pub(super) before: Map,
}

impl Kept {
    /// What is kept of the segment once the checkpoint is complete, of what is kept `now`: blocks that were allocated since it was prepared
    /// stay.
    pub(super) fn after(&self, now: &Map) -> Map {
        std::array::from_fn(|at| self.map[at] | now[at] & !self.before[at])
    }
}

pub(super) fn ones(map: &Map) -> u32 {
    map.chunks_exact(8).map(|word| u64::from_le_bytes(word.try_into().expect("8 bytes")).count_ones()).sum()
}

impl Space {
    /// State of a volume that was just mounted.
    pub(super) fn new(
        geometry: &Geometry,
        checkpoint: &super::super::layout::checkpoint::Checkpoint,
        sit: &[super::super::layout::tables::SitEntry],
    ) -> Self {
        let mut free = FreeSegments::new(geometry);
        let is_open = |segment: SegNo| checkpoint.cursors.iter().any(|cursor| cursor.segment == segment);
        for (segment, entry) in (0..).map(SegNo).zip(sit) {
            if entry.valid == 0 && !is_open(segment) {
                free.insert(segment);
            }
        }
        let per_section = geometry.segments_per_section;
        let (main, blocks) = (u64::from(geometry.main_segments), u64::from(geometry.section_blocks()));
        let user = main.saturating_sub(u64::from(checkpoint.overprovision_segments));
        // Logs on append segments cannot share sections, nor fill holes in those that others have left.
        let open = if geometry.is_appended() { OPEN_SECTIONS * per_section } else { 0 };
        let unreserved = main.saturating_sub(u64::from(checkpoint.reserved_segments + open)).max(1);
        Self {
            kept: sit.iter().map(|entry| entry.map).collect(),
            touched: Marks::new(geometry.main_segments),
            free,
            emptied: BTreeSet::new(),
            summaries: BTreeMap::new(),
            prepared: 0,
            answered: 0,
            cleaned: BTreeSet::new(),
            cleaning: None,
            unreadable: BTreeSet::new(),
            reserved_sections: checkpoint.reserved_segments / per_section,
            // The average number of valid blocks of a section when users have filled the volume.
            valid_max: (user * blocks / unreserved) as u32,
            written: sit.iter().map(|entry| u64::from(entry.valid)).sum(),
            hopeless_holes: None,
            clock: Clock::new(checkpoint.elapsed_s),
        }
    }

    /// Takes over what is written in the sections of append segments: a segment without valid blocks is free only where nothing is
    /// written. Errors: the tables contradict that.
    pub(super) fn settle_written(
        &mut self,
        geometry: &Geometry,
        checkpoint: &super::super::layout::checkpoint::Checkpoint,
        sit: &[super::super::layout::tables::SitEntry],
        written: &[u32],
    ) -> Result<(), String> {
        let per_section = geometry.segments_per_section;
        if let Some(missing) = missing(geometry, checkpoint, sit, written).next() {
            return Err(missing);
        }
        for segment in (0..geometry.main_segments).map(SegNo) {
            let (section, here) = (segment.0 / per_section, written_in(geometry, written, segment));
            if (geometry.log_blocks..SEGMENT_BLOCKS).any(|at| sit[segment.0 as usize].is_valid(at)) {
                return Err(format!("segment {segment} has a valid block in the place of its summary"));
            }
            let is_of_log = checkpoint.cursors.iter().any(|cursor| cursor.segment.0 / per_section == section);
            let is_unwritten = written[section as usize] == 0 || is_of_log && here == 0;
            if self.free.contains(segment) && !is_unwritten {
                self.free.remove(segment);
                self.emptied.insert(segment);
            }
        }
        Ok(())
    }

    /// Whether a checkpoint refers to a block, or it was allocated since.
    pub(super) fn is_kept(&self, segment: SegNo, offset: u32) -> bool {
        block_bit(&self.kept[segment.0 as usize], offset as usize)
    }

    /// Number of checkpoints that were prepared.
    pub(super) fn prepared(&self) -> u64 {
        self.prepared
    }

    /// Everything that was written before this number of checkpoints was prepared is on the disk.
    pub(super) fn note_answered(&mut self, prepared: u64) {
        self.answered = self.answered.max(prepared);
    }

    /// The summary of a segment that is not open. Stops the operation if it is not in memory.
    pub(super) fn summary(&self, segment: SegNo) -> Step<&Summary> {
        self.summaries.get(&segment).map(|(_, summary)| summary).ok_or(Stop::Summary(segment))
    }

    /// Takes over the summary of a segment from the disk.
    pub(super) fn loaded_summary(&mut self, segment: SegNo, summary: Summary) {
        self.summaries.entry(segment).or_insert((self.prepared, summary));
    }
}
