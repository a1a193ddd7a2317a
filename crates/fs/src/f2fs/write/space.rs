//! Space of the main area: which block a log writes next, which blocks are free again, and which segments are worth
//! cleaning.
//!
//! Place in the data flow: [`state`](super::state), [`checkpoint`](super::checkpoint) and [`clean`](super::clean) allocate blocks and free
//! them.
//!
//! Invariants:
//! 1. A block is allocated only if it is free now and in the checkpoint, and was not allocated since (`kept`): a block that an older
//!    checkpoint or a roll-forward may need is never overwritten.
//! 2. A segment is in one of these states: open (a log writes it), in `free` (nothing is in it), in `emptied` (nothing is
//!    valid in it, but the next checkpoint has to forget it first), or it holds valid blocks.
//! 3. What changes here is either done or not: a successor that has to be read stops the operation before.

use super::super::layout::bytes::{block_bit, set_block_bit};
use super::super::layout::checkpoint::{Cursor, Flags};
use super::super::layout::summary::{Owner, Summary};
use super::super::layout::{Addr, Geometry, Log, Nid, SEGMENT_BLOCKS, SegNo};
use super::options::PlantedBug;
use super::segments::{Kept, Map, ones};
use super::state::{OpenLog, State};
use super::stop::{Step, Stop};
use crate::port::Block;
use crate::vfs::Errno;
use std::collections::{BTreeMap, BTreeSet};

/// How a victim is chosen.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Choice {
    /// The section with the fewest valid blocks, because room is needed now.
    Greedy,
    /// A section with few valid blocks that have not changed for long.
    CostBenefit,
}

/// When the summary of a segment that a log leaves is written.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Summarised {
    /// Now.
    Now,
    /// It is on the disk, written before the mount.
    Before,
}

/// What was discarded between a checkpoint and the next use of its blocks.
#[derive(Debug, Default)]
pub(super) struct Discarded {
    pub(super) ranges: Vec<(Block, u32)>,
    /// Whole sections of append segments.
    pub(super) sections: BTreeSet<u32>,
}

/// Most blocks that an operation on names takes: nodes, blocks of directories, an inode.
pub(super) const NAMES_BLOCKS: u64 = 12;

impl State {
    // Room for users.

    /// Whether `blocks` more blocks can be taken.
    pub(super) fn check_room(&self, blocks: u64) -> Step<()> {
        let room = self.checkpoint.user_blocks - self.valid_blocks.min(self.checkpoint.user_blocks);
        if blocks <= room { Ok(()) } else { Err(Errno::ENOSPC.into()) }
    }

    /// Whether a name may be made, of a new inode or not: room for its blocks, and numbers for those that are nodes.
    pub(super) fn check_names(&self) -> Step<()> {
        self.check_room(NAMES_BLOCKS)?;
        // Numbers below the root's are nobody's, and those of freed nodes wait for a checkpoint.
        let used = u64::from(self.valid_nodes) + (self.since.freed.len() + self.since.chained.len()) as u64;
        let numbers = u64::from(self.geometry.nid_end().0 - Nid::ROOT.0);
        if used + NAMES_BLOCKS <= numbers { Ok(()) } else { Err(Errno::ENOSPC.into()) }
    }

    /// Percentage of the blocks available to users that are in use.
    pub(super) fn utilization(&self) -> u64 {
        self.valid_blocks * 100 / self.checkpoint.user_blocks.max(1)
    }

    // Blocks.

    /// Whether a block may be written in place: it is valid, and not in a section that is being cleaned.
    pub(super) fn may_write_over(&self, addr: Addr) -> bool {
        self.geometry.place_of(addr).is_some_and(|(segment, offset)| {
            self.sit[segment.0 as usize].is_valid(offset)
                && !self.space.cleaned.contains(&self.section_of(segment))
        })
    }

    fn section_blocks(&self) -> u32 {
        self.geometry.section_blocks()
    }

    pub(super) fn section_of(&self, segment: SegNo) -> u32 {
        segment.0 / self.geometry.segments_per_section
    }

    fn is_open(&self, segment: SegNo) -> bool {
        self.logs.iter().any(|log| log.cursor.segment == segment)
    }

    /// Updates the average time at which the blocks of a segment were written with `time_s`, or with the current time.
    fn touch(&mut self, segment: SegNo, time_s: Option<u64>) {
        let time_s = time_s.unwrap_or_else(|| self.space.clock.now_s());
        let entry = &mut self.sit[segment.0 as usize];
        entry.mtime_s = match entry.mtime_s {
            0 => time_s,
            mtime => {
                let sum = mtime.saturating_mul(entry.valid.into()).saturating_add(time_s);
                sum / (u64::from(entry.valid) + 1)
            }
        };
        self.area.note_segment(segment);
        self.space.touched.insert(segment);
    }

    /// A block is not needed any more; it is free once no checkpoint refers to it.
    pub(super) fn release_block(&mut self, addr: Addr) {
        let Some((segment, offset)) = self.geometry.place_of(addr) else { return };
        if !self.sit[segment.0 as usize].is_valid(offset) {
            return;
        }
        self.touch(segment, None);
        let entry = &mut self.sit[segment.0 as usize];
        entry.set_valid(offset, false);
        self.space.written -= 1;
        if entry.valid == 0 && !self.is_open(segment) {
            self.space.emptied.insert(segment);
        }
        if self.plants(PlantedBug::EarlyReuse) {
            set_block_bit(&mut self.space.kept[segment.0 as usize], offset as usize, false);
            let log = self.logs.iter_mut().find(|log| log.cursor.segment == segment);
            if let Some(log) = log.filter(|log| offset < log.cursor.offset.into()) {
                (log.cursor.offset, log.cursor.fills_holes) = (offset as u16, true);
            }
        }
    }

    /// Whether a block is free both now and in every checkpoint that counts.
    pub(super) fn is_hole(&self, segment: SegNo, offset: u32) -> bool {
        !self.space.is_kept(segment, offset) && !self.sit[segment.0 as usize].is_valid(offset)
    }

    fn next_offset(&self, cursor: Cursor, from: u32) -> Option<u32> {
        if cursor.fills_holes {
            (from..SEGMENT_BLOCKS).find(|&offset| self.is_hole(cursor.segment, offset))
        } else {
            (from < self.geometry.log_blocks).then_some(from)
        }
    }

    /// A segment with holes that a log may fill: of its own kind first, and of those the one with the most holes.
    fn holed_segment(&self, log: Log) -> Option<SegNo> {
        let candidates = (0..self.geometry.main_segments).map(SegNo).filter_map(|segment| {
            let entry = &self.sit[segment.0 as usize];
            let is_same = usize::from(entry.log) == log.index();
            let is_same_kind = (usize::from(entry.log) >= Log::HotNode.index()) == log.is_node();
            if entry.valid == 0 || u32::from(entry.valid) == SEGMENT_BLOCKS || !is_same_kind {
                return None;
            }
            if self.is_open(segment) || self.space.cleaned.contains(&self.section_of(segment)) {
                return None;
            }
            let kept = &self.space.kept[segment.0 as usize];
            let mut map = entry.map;
            map.iter_mut().zip(kept).for_each(|(map, kept)| *map |= kept);
            let holes = SEGMENT_BLOCKS - ones(&map);
            (holes > 0).then_some((is_same, holes, std::cmp::Reverse(segment)))
        });
        candidates.max().map(|(_, _, segment)| segment.0)
    }

    /// The segment in which a log continues: a free one, or one with holes if few are free.
    pub(super) fn successor(&self, log: Log) -> Step<OpenLog> {
        let free = self.space.free.after(self.logs[log.index()].cursor.segment);
        // Roll-forward distinguishes old nodes from new ones by the checkpoint's checksum in their footers, if it is there.
        let fills_holes = log != Log::WarmNode || self.checkpoint.flags.has(Flags::CRC_RECOVERY);
        let holed = match free {
            _ if self.geometry.is_appended() => None,
            Some(_) if !fills_holes || !self.needs_holes() => None,
            _ => self.holed_segment(log),
        };
        match (holed, free) {
            (Some(segment), _) => {
                let summary = self.space.summary(segment)?.clone();
                let offset = (0..SEGMENT_BLOCKS).find(|&offset| self.is_hole(segment, offset));
                let offset = offset.expect("it has holes") as u16;
                Ok(OpenLog { cursor: Cursor { segment, offset, fills_holes: true }, summary })
            }
            (None, Some(segment)) => Ok(OpenLog {
                cursor: Cursor { segment, offset: 0, fills_holes: false },
                summary: Summary::new(log.is_node()),
            }),
            (None, None) => Err(Errno::ENOSPC.into()),
        }
    }

    /// Allocates the next block of a log for this owner.
    pub(super) fn allocate(&mut self, log: Log, owner: Owner) -> Step<Addr> {
        self.allocate_aged(log, owner, None)
    }

    /// Does the same for a block that is moved and whose content is older than now.
    pub(super) fn allocate_aged(&mut self, log: Log, owner: Owner, time_s: Option<u64>) -> Step<Addr> {
        let cursor = self.logs[log.index()].cursor;
        let (segment, offset) = (cursor.segment, u32::from(cursor.offset));
        let next = self.next_offset(cursor, offset + 1);
        // Where the log continues is decided before anything changes.
        let successor = if next.is_none() { Some(self.successor(log)?) } else { None };
        self.touch(segment, time_s);
        let entry = &mut self.sit[segment.0 as usize];
        entry.set_valid(offset, true);
        entry.log = log.index() as u8;
        set_block_bit(&mut self.space.kept[segment.0 as usize], offset as usize, true);
        self.space.written += 1;
        self.metrics.filled_holes += u64::from(cursor.fills_holes);
        self.changed = true;
        self.logs[log.index()].summary.owners[offset as usize] = owner;
        match (next, successor) {
            (Some(next), _) => self.logs[log.index()].cursor.offset = next as u16,
            (None, Some(successor)) => self.go_on(log, successor, Summarised::Now),
            (None, None) => unreachable!("a full log has a successor"),
        }
        Ok(self.geometry.main_block(segment, offset))
    }

    /// Makes a log continue in another segment.
    pub(super) fn move_on(&mut self, log: Log) -> Step<()> {
        let successor = self.successor(log)?;
        self.go_on(log, successor, Summarised::Now);
        Ok(())
    }

    /// A log leaves its segment for another one.
    pub(super) fn go_on(&mut self, log: Log, successor: OpenLog, summarised: Summarised) {
        let next = successor.cursor.segment;
        self.space.free.remove(next);
        self.space.emptied.remove(&next);
        self.space.summaries.remove(&next);
        // A segment belongs to the log that writes it, even if a checkpoint is made before its first block.
        self.sit[next.0 as usize].log = log.index() as u8;
        self.area.note_segment(next);
        let full = std::mem::replace(&mut self.logs[log.index()], successor);
        let segment = full.cursor.segment;
        self.space.summaries.insert(segment, (self.space.prepared, full.summary));
        if summarised == Summarised::Now {
            self.store_summary(segment);
        }
        if self.sit[segment.0 as usize].valid == 0 {
            self.space.emptied.insert(segment);
        }
    }

    // Recovery.

    /// Keeps a block with contents from before the mount from being allocated before the next checkpoint.
    pub(super) fn keep_block(&mut self, addr: Addr) {
        let Some((segment, offset)) = self.geometry.place_of(addr) else { return };
        set_block_bit(&mut self.space.kept[segment.0 as usize], offset as usize, true);
        self.space.touched.insert(segment);
        if self.space.free.contains(segment) {
            self.space.free.remove(segment);
            self.space.emptied.insert(segment);
        }
    }

    /// Makes a block of data valid that was written before the mount and is kept. Returns the segment if it is not open, because
    /// its summary has to be stored then. Errors: the segment holds nodes.
    pub(super) fn take_block(&mut self, addr: Addr, owner: Owner, log: Log) -> Step<Option<SegNo>> {
        let (segment, offset) = self.geometry.place_of(addr).ok_or(Errno::EUCLEAN)?;
        let writer = Log::ALL.into_iter().find(|log| self.logs[log.index()].cursor.segment == segment);
        let entry = &self.sit[segment.0 as usize];
        let log = match writer {
            Some(writer) => writer,
            None if entry.valid > 0 => Log::ALL.into_iter().nth(entry.log.into()).ok_or(Errno::EUCLEAN)?,
            None => log,
        };
        if log.is_node() {
            return Err(Errno::EUCLEAN.into());
        }
        match writer {
            Some(writer) => self.logs[writer.index()].summary.owners[offset as usize] = owner,
            None => {
                if entry.valid == 0 && self.space.emptied.remove(&segment) {
                    let empty = (self.space.prepared, Summary::new(false));
                    self.space.summaries.insert(segment, empty);
                }
                let summary = self.space.summaries.get_mut(&segment).ok_or(Stop::Summary(segment))?;
                if summary.1.is_node {
                    return Err(Errno::EUCLEAN.into());
                }
                summary.1.owners[offset as usize] = owner;
            }
        }
        self.touch(segment, None);
        let entry = &mut self.sit[segment.0 as usize];
        entry.set_valid(offset, true);
        entry.log = log.index() as u8;
        self.space.written += 1;
        Ok(writer.is_none().then_some(segment))
    }

    /// Writes the summary of a segment that no log writes.
    pub(super) fn store_summary(&mut self, segment: SegNo) {
        if let Some((_, summary)) = self.space.summaries.get(&segment) {
            let block = summary.encode();
            self.write(self.area.summary_place(segment), &block, 0);
        }
    }

    // Free space.

    /// Numbers of blocks that a checkpoint would write now: nodes, and blocks of directories.
    fn unwritten(&self) -> (u32, u32) {
        (self.dirty.len() as u32, self.blocks_dirty.len() as u32)
    }

    /// Whether free sections have room for the checkpoint of a recovery that writes so many blocks. The checkpoint of a mount needs no more:
    /// what waits for one now is lost with the power.
    pub(super) fn has_room_to_recover(&self, blocks: u64) -> bool {
        // The logs of nodes and of directories take a section each that they do not fill.
        let sections = blocks / u64::from(self.section_blocks()) + 2;
        blocks < u64::from(self.section_blocks()) || sections <= u64::from(self.space.free.sections())
    }

    /// Whether logs fill holes instead of taking free segments.
    pub(super) fn needs_holes(&self) -> bool {
        let (nodes, entries) = self.unwritten();
        let blocks = self.section_blocks();
        self.space.free.sections() <= nodes / blocks + 2 * (entries / blocks) + self.space.reserved_sections
    }

    /// Whether cleaning has to come first: the free sections and `freed` more would not be enough for a checkpoint and for cleaning
    /// itself.
    pub(super) fn is_short(&self, freed: u32) -> bool {
        let free = self.space.free.sections() + freed;
        let (nodes, entries) = self.unwritten();
        let blocks = self.section_blocks();
        // Usually the numbers of free sections and dirty blocks decide.
        if free.saturating_sub(self.space.reserved_sections + 2)
            > (nodes + entries) / self.geometry.log_blocks
        {
            return false;
        }
        let (node_rest, entry_rest) = (nodes % blocks, entries % blocks);
        let lower = nodes / blocks + entries / blocks + self.space.reserved_sections;
        let upper = lower + u32::from(node_rest > 0) + u32::from(entry_rest > 0);
        if free > upper || free <= lower {
            return free <= lower;
        }
        let room = |log: Log| self.geometry.log_blocks - u32::from(self.logs[log.index()].cursor.offset);
        Log::ALL[3..].iter().any(|&log| node_rest > room(log)) || entry_rest > room(Log::HotData)
    }

    /// Whether a checkpoint has to come before a section is cleaned: its valid blocks, and the nodes that name them and
    /// would then be dirty, might not leave it the sections that it needs; it may open one for each log.
    pub(super) fn needs_checkpoint_before_cleaning(&self, section: u32) -> bool {
        let (nodes, entries) = self.unwritten();
        let needed = (nodes + entries + 2 * self.valid_in(section)).div_ceil(self.section_blocks());
        self.space.free.sections() < Log::ALL.len() as u32 + needed
    }

    /// Number of valid blocks of a section.
    pub(super) fn valid_in(&self, section: u32) -> u32 {
        let per_section = self.geometry.segments_per_section;
        let segments = (section * per_section) as usize..((section + 1) * per_section) as usize;
        self.sit[segments].iter().map(|entry| u32::from(entry.valid)).sum()
    }

    /// Whether a checkpoint alone would free segments.
    pub(super) fn has_emptied(&self) -> bool {
        match self.geometry.is_appended() {
            true => self.emptied_sections().next().is_some(),
            false => !self.space.emptied.is_empty(),
        }
    }

    /// Sections of which all segments are empty.
    fn emptied_sections(&self) -> impl Iterator<Item = u32> {
        let per_section = self.geometry.segments_per_section;
        let firsts = self.space.emptied.iter().filter(move |segment| segment.0.is_multiple_of(per_section));
        let is_emptied = move |first: &&SegNo| {
            self.space.emptied.range(**first..SegNo(first.0 + per_section)).count() == per_section as usize
        };
        firsts.filter(is_emptied).map(move |first| first.0 / per_section)
    }

    /// Number of blocks without valid content in segments that are not free.
    fn holes(&self) -> u64 {
        let all = u64::from(self.geometry.main_segments - self.space.free.segments());
        all * u64::from(self.geometry.log_blocks) - self.space.written
    }

    /// Whether cleaning could not gain anything the last time, and little has changed since.
    pub(super) fn is_hopeless(&self) -> bool {
        let few = Log::ALL.len() as u32 + 2;
        self.space.free.sections() > few
            && self
                .space
                .hopeless_holes
                .is_some_and(|holes| self.holes() < holes + u64::from(self.section_blocks()))
    }

    /// Notes whether cleaning has gained the room that was needed.
    pub(super) fn note_hope(&mut self) {
        self.space.hopeless_holes = self.is_short(0).then(|| self.holes());
    }

    /// Whether holes make up much of the space that is available to users, and little is free, so that background cleaning has
    /// work.
    pub(super) fn has_many_holes(&self) -> bool {
        let user = self.checkpoint.user_blocks;
        let unwritten = user.saturating_sub(self.space.written);
        let over = u64::from(self.checkpoint.overprovision_segments);
        let free =
            u64::from(self.space.free.segments()).saturating_sub(over) * u64::from(self.geometry.log_blocks);
        unwritten > user * 40 / 100 && free < unwritten * 40 / 100
    }

    /// Number of sections of the main area.
    pub(super) fn sections(&self) -> u32 {
        self.geometry.main_segments / self.geometry.segments_per_section
    }

    /// The section to be cleaned next: with some valid blocks, some holes and no log.
    pub(super) fn victim(&self, choice: Choice) -> Option<u32> {
        let per_section = self.geometry.segments_per_section;
        let blocks = self.section_blocks();
        let candidates = (0..self.sections()).filter_map(|section| {
            let range = section * per_section..(section + 1) * per_section;
            let entries = &self.sit[range.start as usize..range.end as usize];
            let valid = self.valid_in(section);
            let is_used = self.space.cleaned.contains(&section)
                || self.space.unreadable.contains(&section)
                || range.clone().any(|at| self.is_open(SegNo(at)));
            if valid == 0 || valid >= blocks || is_used {
                return None;
            }
            let mtime_s = entries.iter().fold(0, |sum: u64, entry| sum.saturating_add(entry.mtime_s));
            let mtime_s = mtime_s / u64::from(per_section);
            Some((section, valid, mtime_s))
        });
        match choice {
            Choice::Greedy => {
                let worth = candidates.filter(|(_, valid, _)| *valid < self.space.valid_max);
                worth.min_by_key(|(section, valid, _)| (*valid, *section)).map(|(section, ..)| section)
            }
            Choice::CostBenefit => {
                let candidates: Vec<_> = candidates.collect();
                let oldest = candidates.iter().map(|(.., mtime_s)| *mtime_s).min()?;
                let newest =
                    candidates.iter().map(|(.., mtime_s)| *mtime_s).max()?.max(self.space.clock.now_s());
                let benefit = |&(_, valid, mtime_s): &(u32, u32, u64)| {
                    let used = u64::from(valid * 100 / blocks);
                    let span = newest - oldest;
                    let young = (mtime_s - oldest).saturating_mul(100).checked_div(span);
                    let age = young.map_or(0, |young| 100 - young.min(100));
                    100 * (100 - used) * age / (100 + used)
                };
                let best = candidates.iter().max_by_key(|at| (benefit(at), std::cmp::Reverse(at.0)));
                best.map(|(section, ..)| *section)
            }
        }
    }

    // Checkpoints.

    /// From here on keeps the blocks to which the checkpoint that is being prepared refers, and returns them.
    pub(super) fn keep_valid(&mut self) -> Vec<Kept> {
        self.space.prepared += 1;
        self.space.cleaned.clear();
        self.space.cleaned.extend(self.space.cleaning);
        let touched = self.space.touched.take();
        touched
            .into_iter()
            .map(|segment| {
                let (kept, map) =
                    (&mut self.space.kept[segment.0 as usize], self.sit[segment.0 as usize].map);
                kept.iter_mut().zip(&map).for_each(|(kept, map)| *kept |= map);
                Kept { segment, map, before: *kept }
            })
            .collect()
    }

    /// Sections of append segments that are entirely free with a checkpoint; nothing is written there until they were discarded and
    /// [`Self::forget`] says so.
    pub(super) fn freed_sections(&self, kept: &[Kept]) -> Vec<u32> {
        let per_section = self.geometry.segments_per_section;
        let after: BTreeMap<SegNo, Map> = kept
            .iter()
            .map(|kept| (kept.segment, kept.after(&self.space.kept[kept.segment.0 as usize])))
            .collect();
        let is_forgotten = |segment: SegNo| {
            let left = after.get(&segment).unwrap_or(&self.space.kept[segment.0 as usize]);
            left.iter().all(|byte| *byte == 0)
        };
        let segments = |section: u32| (section * per_section..(section + 1) * per_section).map(SegNo);
        self.emptied_sections().filter(|section| segments(*section).all(is_forgotten)).collect()
    }

    /// Ranges of blocks that became free with a checkpoint, with the holes around them: nothing is allocated there until
    /// [`Self::forget`]. Ranges of fewer than `blocks_min` blocks are left out.
    pub(super) fn freed_ranges(&mut self, kept: &[Kept], blocks_min: u32) -> Vec<(Block, u32)> {
        let mut ranges: Vec<(Block, u32)> = Vec::new();
        let mut add = |start: Block, blocks: u32| match ranges.last_mut() {
            Some((first, count)) if first.0 + u64::from(*count) == start.0 => *count += blocks,
            _ => ranges.push((start, blocks)),
        };
        for &Kept { segment, map, ref before } in kept {
            let is_open = self.is_open(segment);
            let is_freed = |at: u32| block_bit(before, at as usize) && !block_bit(&map, at as usize);
            let mut at = 0;
            while at < SEGMENT_BLOCKS {
                // In an open segment the other holes may be written at any time.
                let is_in = |at: u32| is_freed(at) || !is_open && self.is_hole(segment, at);
                let end = (at..SEGMENT_BLOCKS).find(|&at| !is_in(at)).unwrap_or(SEGMENT_BLOCKS);
                if end - at >= blocks_min && (at..end).any(is_freed) {
                    add(Geometry::block(self.geometry.main_block(segment, at)), end - at);
                    for at in at..end {
                        set_block_bit(&mut self.space.kept[segment.0 as usize], at as usize, true);
                    }
                }
                at = end + 1;
            }
        }
        ranges
    }

    /// The checkpoint is complete: blocks to which only older ones referred are free.
    pub(super) fn forget(&mut self, kept: Vec<Kept>, discarded: &Discarded) {
        for kept in kept {
            let now = &mut self.space.kept[kept.segment.0 as usize];
            *now = kept.after(now);
        }
        for &(start, blocks) in &discarded.ranges {
            for block in start.0..start.0 + u64::from(blocks) {
                let place = self.geometry.place_of(Addr(block as u32));
                let (segment, offset) = place.expect("it was in the main area");
                set_block_bit(&mut self.space.kept[segment.0 as usize], offset as usize, false);
            }
        }
        let is_empty = |state: &Self, segment: SegNo| {
            let index = segment.0 as usize;
            state.sit[index].valid == 0 && state.space.kept[index].iter().all(|&byte| byte == 0)
        };
        for segment in std::mem::take(&mut self.space.emptied) {
            if self.sit[segment.0 as usize].valid > 0 || self.is_open(segment) {
                continue;
            }
            let is_discarded =
                !self.geometry.is_appended() || discarded.sections.contains(&self.section_of(segment));
            if is_discarded && is_empty(self, segment) {
                self.space.free.insert(segment);
                self.space.unreadable.remove(&self.section_of(segment));
            } else {
                self.space.emptied.insert(segment);
            }
        }
        let answered = self.space.answered;
        self.space.summaries.retain(|_, (number, _)| *number >= answered);
    }

    /// Number of free segments as a checkpoint counts them.
    pub(super) fn segments_without_blocks(&self) -> u32 {
        self.space.free.segments() + self.space.emptied.len() as u32
    }
}
