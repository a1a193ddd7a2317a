//! Lines: sets of erase blocks that are filled, collected and erased together (open-channel §5).
//!
//! ```text
//!  page   column 0   column 1   column 2 …        one column for each plane of the group
//!    0    start      data       data              positions count row by row
//!    1    data       data       data
//!    …
//!    n    data       end        end               the last positions describe all others
//! ```
//!
//! Invariants:
//! 1. A line is erased only when no unit of it is valid, and no read or program of it is under way.
//! 2. Its start metadata is written after all of its blocks are erased, and erased before any other block of it. So a line with
//!    readable start metadata holds what its end metadata says.
//! 3. A unit is valid from the end of its program until a newer version of its content's owner is on the medium.

use super::config::Layout;
use flashweir_core::Ppa;
use flashweir_core::command::StreamId;
use flashweir_core::index::Idx;
use flashweir_core::oob::Owner;
use flashweir_ftl::BlockId;
use flashweir_ftl::geometry::PageAddr;
use flashweir_ftl::line_pages::{LineEnd, LineStart};
use std::collections::{BTreeMap, BTreeSet, VecDeque};

/// Number of a line, group by group.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct LineId(pub(super) u32);

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum LineState {
    /// Nothing valid; to be erased unless it is clean.
    Free,
    Erasing,
    Open,
    /// Takes no more data; programs are under way.
    Closing,
    /// GC may choose it.
    Closed,
    Collecting,
    /// Out of use: too few good blocks, or content that cannot be read.
    Retired,
}

/// A line.
#[derive(Clone, Debug)]
pub(super) struct Line {
    pub(super) state: LineState,
    /// Whether all blocks are erased.
    pub(super) is_clean: bool,
    /// Number of its opening, over all groups.
    pub(super) number: u64,
    /// Columns in use, in order.
    pub(super) columns: Vec<u32>,
    /// Next page of each of them.
    pub(super) next: Vec<u32>,
    /// Pages for data that are not taken, while the line is open.
    left: u32,
    /// Owner and sequence number of each unit, while the line is open.
    pub(super) owners: Vec<(Owner, u64)>,
    pub(super) programs: u32,
    pub(super) readers: u32,
    pub(super) valid: u32,
    /// Last epoch of each stream of which it has members, since the numbers of epochs began.
    pub(super) members: BTreeMap<StreamId, u32>,
    /// Members on the medium that are not stable; while there are any it is neither collected nor erased.
    pub(super) unstable: u32,
    /// A program of it failed: it takes no more data, and GC empties it first.
    pub(super) has_failed: bool,
}

impl Line {
    /// The greater, the later the line was opened. One whose start metadata is gone is being erased, and counts as the last.
    pub(super) fn age(&self) -> u64 {
        if self.number == 0 { u64::MAX } else { self.number }
    }
}

/// Pages of one die that are programmed by one command.
#[derive(Clone, Debug)]
pub(super) struct Program {
    pub(super) line: LineId,
    pub(super) die: u32,
    pub(super) pages: Vec<PageAddr>,
}

/// A page of a line's own metadata, with the content of its units.
pub(super) type MetaPage = (PageAddr, Vec<Vec<u8>>);

/// All lines.
#[derive(Clone, Debug)]
pub(super) struct Lines {
    layout: Layout,
    lines: Vec<Line>,
    valid: Vec<u64>,
    /// Free lines of each group.
    free: Vec<VecDeque<LineId>>,
    /// Number of lines of each group that are being erased.
    erasing: Vec<u32>,
    /// Open line of each group.
    pub(super) open: Vec<Option<LineId>>,
    /// Blocks whose erase or program failed.
    bad: Vec<bool>,
    /// Those of them that failed before the last start, and are good again once they can be erased.
    doubtful: BTreeSet<BlockId>,
    /// Number of these in each line that has some.
    bad_columns: BTreeMap<LineId, u32>,
    /// Whether a program or an erase has failed.
    blocks_fail: bool,
    openings: u64,
}

impl Lines {
    /// Lines of a device whose blocks are all erased.
    pub(super) fn new(layout: &Layout) -> Self {
        let line = Line {
            state: LineState::Free,
            is_clean: true,
            number: 0,
            columns: (0..layout.columns).collect(),
            next: vec![0; layout.columns as usize],
            left: 0,
            owners: Vec::new(),
            programs: 0,
            readers: 0,
            valid: 0,
            members: BTreeMap::new(),
            unstable: 0,
            has_failed: false,
        };
        let mut lines = Self {
            lines: vec![line; (layout.groups * layout.lines) as usize],
            valid: vec![0; layout.flash.physical_units().div_ceil(64) as usize],
            free: Vec::new(),
            erasing: vec![0; layout.groups as usize],
            open: vec![None; layout.groups as usize],
            bad: vec![false; layout.flash.blocks() as usize],
            doubtful: BTreeSet::new(),
            bad_columns: BTreeMap::new(),
            blocks_fail: false,
            openings: 0,
            layout: layout.clone(),
        };
        lines.free = (0..layout.groups as usize).map(|group| lines.of_group(group).collect()).collect();
        lines
    }

    pub(super) fn get(&self, line: LineId) -> &Line {
        &self.lines[line.0 as usize]
    }

    pub(super) fn get_mut(&mut self, line: LineId) -> &mut Line {
        &mut self.lines[line.0 as usize]
    }

    pub(super) fn ids(&self) -> impl Iterator<Item = LineId> + use<> {
        (0..self.lines.len() as u32).map(LineId)
    }

    /// The lines of a group.
    fn of_group(&self, group: usize) -> impl Iterator<Item = LineId> + use<> {
        let first = group as u32 * self.layout.lines;
        (first..first + self.layout.lines).map(LineId)
    }

    pub(super) fn group_of(&self, line: LineId) -> usize {
        (line.0 / self.layout.lines) as usize
    }

    pub(super) fn block(&self, line: LineId, column: u32) -> BlockId {
        let (group, number) = (line.0 / self.layout.lines, line.0 % self.layout.lines);
        BlockId((group * self.layout.columns + column) * self.layout.lines + number)
    }

    /// The line of a unit, and the position of its page among the line's columns.
    pub(super) fn line_of(&self, ppa: Ppa) -> (LineId, u32) {
        self.line_of_block(self.layout.flash.page_of(ppa).0.block)
    }

    fn line_of_block(&self, block: BlockId) -> (LineId, u32) {
        let (plane, number) = (block.0 / self.layout.lines, block.0 % self.layout.lines);
        (LineId(plane / self.layout.columns * self.layout.lines + number), plane % self.layout.columns)
    }

    /// Number of lines of a group that hold nothing valid.
    pub(super) fn free_count(&self, group: usize) -> u32 {
        self.free[group].len() as u32 + self.erasing[group]
    }

    /// Data units that can still be written without erasing anything that is not free.
    pub(super) fn free_units(&self) -> u64 {
        let open = self.open.iter().flatten().map(|&line| u64::from(self.data_left(line))).sum::<u64>();
        let free: u32 = (0..self.free.len()).map(|group| self.free_count(group)).sum();
        let is_free = |line: &LineId| matches!(self.get(*line).state, LineState::Free | LineState::Erasing);
        let lost = |line| u64::from(self.layout.data_units() - self.data_units_of(line));
        let lost: u64 = self.bad_columns.keys().copied().filter(is_free).map(lost).sum();
        open + u64::from(free) * u64::from(self.layout.data_units()) - lost
    }

    /// Units of data that a line takes when it is opened again: of its good columns.
    pub(super) fn data_units_of(&self, line: LineId) -> u32 {
        let bad = self.bad_columns.get(&line).copied().unwrap_or(0) * self.layout.flash.units_per_block();
        self.layout.data_units().saturating_sub(bad)
    }

    fn data_left(&self, line: LineId) -> u32 {
        self.get(line).left * self.layout.flash.units_per_page
    }

    /// Counts the pages for data that a line which was just opened still has.
    fn count_left(&mut self, id: LineId) {
        let line = self.get(id);
        let left = |at: usize| self.data_pages(line, at).saturating_sub(line.next[at]);
        self.get_mut(id).left = (0..line.columns.len()).map(left).sum();
    }

    /// Pages of the column at this position that hold data or start metadata.
    fn data_pages(&self, line: &Line, at: usize) -> u32 {
        let columns = line.columns.len() as u32;
        let data = columns * self.layout.flash.pages_per_block - self.layout.end_pages;
        (data - at as u32).div_ceil(columns)
    }

    fn page_at(&self, id: LineId, at: usize, page: u32) -> PageAddr {
        PageAddr { block: self.block(id, self.get(id).columns[at]), page }
    }

    /// Number of a unit in its line, by position.
    pub(super) fn unit_number(&self, ppa: Ppa) -> Option<usize> {
        let (id, column) = self.line_of(ppa);
        let line = self.get(id);
        let at = line.columns.iter().position(|&other| other == column)?;
        let (page, unit) = self.layout.flash.page_of(ppa);
        let position = page.page as usize * line.columns.len() + at;
        Some(position * self.layout.flash.units_per_page as usize + unit as usize)
    }

    /// The unit of this number.
    pub(super) fn unit_at(&self, id: LineId, number: usize) -> Ppa {
        let per_page = self.layout.flash.units_per_page as usize;
        let (position, unit) = (number / per_page, number % per_page);
        let columns = self.get(id).columns.len();
        self.layout.flash.ppa(self.page_at(id, position % columns, (position / columns) as u32), unit as u32)
    }

    /// Pages that hold the end metadata of a line, in order.
    pub(super) fn end_pages(&self, id: LineId) -> Vec<PageAddr> {
        let columns = self.get(id).columns.len() as u32;
        let pages = columns * self.layout.flash.pages_per_block;
        let page = |position: u32| self.page_at(id, (position % columns) as usize, position / columns);
        (pages - self.layout.end_pages..pages).map(page).collect()
    }

    /// The page of a line's start metadata.
    pub(super) fn start_page(&self, id: LineId) -> PageAddr {
        self.page_at(id, 0, 0)
    }

    /// Whether a group has a line to open, now or after its erase.
    pub(super) fn has_free(&self, group: usize) -> bool {
        !self.free[group].is_empty()
    }

    // ---- writing ----

    /// Opens the next free line of a group that is erased; returns its start metadata.
    pub(super) fn open_next(&mut self, group: usize) -> Option<MetaPage> {
        let at = self.free[group].iter().position(|&line| self.get(line).is_clean)?;
        let id = self.free[group].remove(at)?;
        let good: Vec<u32> =
            (0..self.layout.columns).filter(|&column| !self.bad[self.block(id, column).index()]).collect();
        if (good.len() as u32) * self.layout.flash.pages_per_block < self.layout.end_pages + 2 {
            self.retire(id);
            return self.open_next(group);
        }
        self.openings += 1;
        let number = self.openings;
        let units = good.len() * self.layout.flash.units_per_block() as usize;
        let left_out = (0..self.layout.columns).filter(|column| !good.contains(column)).collect();
        let line = self.get_mut(id);
        line.number = number;
        line.next = vec![0; good.len()];
        line.next[0] = 1;
        (line.state, line.is_clean, line.has_failed) = (LineState::Open, false, false);
        line.owners = vec![(Owner::Pad, 0); units];
        line.columns = good;
        self.count_left(id);
        self.open[group] = Some(id);
        let start = LineStart { line: number, left_out };
        Some((self.start_page(id), vec![start.encode()]))
    }

    /// Takes the next pages of a group's open line, of one die with fewer than `limit` programs.
    pub(super) fn take_pages(&mut self, group: usize, programs: &[u32], limit: u32) -> Option<Program> {
        let id = self.open[group]?;
        let die_of = |column: u32| self.layout.die_of(self.block(id, column));
        let line = self.get(id);
        let has_room = |at: &usize| line.next[*at] < self.data_pages(line, *at);
        let is_idle = |at: &usize| programs[die_of(line.columns[*at]) as usize] < limit;
        let first =
            (0..line.columns.len()).filter(has_room).filter(is_idle).min_by_key(|&at| line.next[at])?;
        let (die, page) = (die_of(line.columns[first]), line.next[first]);
        let beside = |at: &usize| die_of(line.columns[*at]) == die && line.next[*at] == page && has_room(at);
        let columns: Vec<usize> = (first..line.columns.len()).filter(beside).collect();
        let pages = columns.iter().map(|&at| self.page_at(id, at, page)).collect();
        let line = self.get_mut(id);
        line.left -= columns.len() as u32;
        for at in columns {
            line.next[at] += 1;
        }
        line.programs += 1;
        Some(Program { line: id, die, pages })
    }

    /// Whether the open line of a group has no room for data.
    pub(super) fn is_full(&self, group: usize) -> bool {
        self.open[group].is_some_and(|line| self.data_left(line) == 0)
    }

    /// Ends the open line of a group, which takes no more data.
    pub(super) fn end(&mut self, group: usize) -> Option<LineId> {
        let id = self.open[group].take()?;
        self.get_mut(id).state = LineState::Closing;
        Some(id)
    }

    /// Goes on with a line that has ended, if no program of it is under way: returns its end metadata, which describes only what is on
    /// the medium, or closes it. A line with a failed program gets none.
    pub(super) fn finish(&mut self, id: LineId) -> Vec<MetaPage> {
        let line = self.get_mut(id);
        if line.state != LineState::Closing || line.programs > 0 {
            return Vec::new();
        }
        if line.has_failed || line.owners.is_empty() {
            (line.state, line.owners) = (LineState::Closed, Vec::new());
            return Vec::new();
        }
        let pages = self.end_pages(id);
        let (per_page, per_block) =
            (self.layout.flash.units_per_page as usize, self.layout.flash.pages_per_block);
        let line = self.get_mut(id);
        let owners = std::mem::take(&mut line.owners);
        line.next.fill(per_block);
        let number = line.number;
        let units = owners.len() - pages.len() * per_page;
        let chunk = units.div_ceil(pages.len() * per_page);
        let mut parts = (0..).step_by(chunk).zip(owners[..units].chunks(chunk));
        let encode = |(first, units): (u32, &[(Owner, u64)])| {
            LineEnd { line: number, first, units: units.to_vec() }.encode()
        };
        pages.into_iter().map(|at| (at, parts.by_ref().take(per_page).map(encode).collect())).collect()
    }

    /// A program of the block failed: its line takes no more data.
    pub(super) fn failed(&mut self, id: LineId, block: BlockId) {
        self.mark_bad(block);
        self.blocks_fail = true;
        self.closed_early(id);
    }

    /// A block of the line takes no more programs before it is erased: neither does the line, and GC empties it first.
    pub(super) fn closed_early(&mut self, id: LineId) {
        self.get_mut(id).has_failed = true;
        let group = self.group_of(id);
        if self.open[group] == Some(id) {
            self.end(group);
        }
    }

    // ---- validity ----

    pub(super) fn is_valid(&self, ppa: Ppa) -> bool {
        self.valid[(ppa.0 / 64) as usize] >> (ppa.0 % 64) & 1 == 1
    }

    pub(super) fn set_valid(&mut self, ppa: Ppa) {
        assert!(!self.is_valid(ppa), "unit {} is valid already", ppa.0);
        self.valid[(ppa.0 / 64) as usize] |= 1 << (ppa.0 % 64);
        let line = self.line_of(ppa).0;
        self.get_mut(line).valid += 1;
    }

    pub(super) fn set_invalid(&mut self, ppa: Ppa) {
        assert!(self.is_valid(ppa), "unit {} is invalid already", ppa.0);
        self.valid[(ppa.0 / 64) as usize] &= !(1 << (ppa.0 % 64));
        let line = self.line_of(ppa).0;
        self.get_mut(line).valid -= 1;
    }

    /// Valid units of a line, row by row, so that those who read them keep all of its dies at work.
    pub(super) fn valid_units(&self, id: LineId) -> VecDeque<Ppa> {
        let blocks: Vec<BlockId> = (0..self.layout.columns).map(|column| self.block(id, column)).collect();
        let pages = (0..self.layout.flash.pages_per_block)
            .flat_map(|page| blocks.iter().map(move |&block| PageAddr { block, page }));
        pages.flat_map(|at| self.layout.flash.units_of(at)).filter(|&ppa| self.is_valid(ppa)).collect()
    }

    // ---- collecting and erasing ----

    /// The closed line of a group that gains the most, which is the one with the fewest valid units where blocks are good; one with a failed
    /// program comes first. None if nothing would be gained (open-channel §8.7).
    pub(super) fn victim(&self, group: usize) -> Option<LineId> {
        let is_free = |line: &Line| line.state == LineState::Closed && line.unstable == 0;
        let closed = self.of_group(group).filter(|&line| is_free(self.get(line)));
        let used = |line: LineId| self.get(line).valid + self.layout.data_units() - self.data_units_of(line);
        let best = closed.min_by_key(|&line| (!self.get(line).has_failed, used(line), line))?;
        let line = self.get(best);
        let gains = line.valid + self.layout.program_units() <= self.data_units_of(best);
        (gains || line.has_failed).then_some(best)
    }

    /// Begins to erase a line; returns its blocks in the order in which they have to be erased: the first one alone.
    pub(super) fn begin_erase(&mut self, id: LineId) -> Vec<BlockId> {
        let line = self.get(id);
        assert!(line.readers == 0 && line.programs == 0 && line.unstable == 0, "a line in use is erased");
        let first = line.columns[0];
        let others = (0..self.layout.columns).filter(|&column| column != first);
        let blocks = std::iter::once(first).chain(others).map(|column| self.block(id, column));
        let blocks = blocks.collect();
        let group = self.group_of(id);
        self.free[group].retain(|&line| line != id);
        self.get_mut(id).state = LineState::Erasing;
        self.erasing[group] += 1;
        blocks
    }

    /// Blocks of a line, those that it leaves out included.
    pub(super) fn blocks(&self, id: LineId) -> impl Iterator<Item = BlockId> {
        (0..self.layout.columns).map(move |column| self.block(id, column))
    }

    /// The block that holds a line's start metadata.
    pub(super) fn first_block(&self, id: LineId) -> BlockId {
        self.block(id, self.get(id).columns[0])
    }

    pub(super) fn erase_failed(&mut self, block: BlockId) {
        self.doubtful.remove(&block);
        self.mark_bad(block);
        self.blocks_fail = true;
    }

    /// Whether blocks may fail: one has, in this boot or before.
    pub(super) fn may_fail(&self) -> bool {
        self.blocks_fail || !self.doubtful.is_empty()
    }

    /// A block is erased.
    pub(super) fn erase_done(&mut self, block: BlockId) {
        if self.doubtful.remove(&block) {
            self.bad[block.index()] = false;
            let line = self.line_of_block(block).0;
            *self.bad_columns.get_mut(&line).expect("it has a bad block") -= 1;
        }
    }

    fn mark_bad(&mut self, block: BlockId) {
        if !std::mem::replace(&mut self.bad[block.index()], true) {
            let line = self.line_of_block(block).0;
            *self.bad_columns.entry(line).or_default() += 1;
        }
    }

    /// All blocks of a line are erased.
    pub(super) fn erased(&mut self, id: LineId) {
        let line = self.get_mut(id);
        (line.state, line.is_clean, line.has_failed) = (LineState::Free, true, false);
        line.members.clear();
        let group = self.group_of(id);
        self.erasing[group] -= 1;
        self.free[group].push_back(id);
    }

    /// A line goes out of use.
    pub(super) fn retire(&mut self, id: LineId) {
        let was = std::mem::replace(&mut self.get_mut(id).state, LineState::Retired);
        let group = self.group_of(id);
        self.erasing[group] -= u32::from(was == LineState::Erasing);
    }

    /// A free line of the group that has to be erased first, if no erased one is left.
    pub(super) fn to_erase(&self, group: usize) -> Option<LineId> {
        let is_clean = |line: &LineId| self.get(*line).is_clean;
        if self.free[group].iter().any(is_clean) || self.erasing[group] > 0 {
            return None;
        }
        self.free[group].iter().find(|&&line| self.get(line).unstable == 0).copied()
    }

    /// Nobody counts members that are on the medium now.
    pub(super) fn forget_members(&mut self) {
        self.lines.iter_mut().for_each(|line| line.members.clear());
    }

    /// Whether a line has ended and all of its programs have.
    pub(super) fn has_ended(&self, id: LineId) -> bool {
        let line = self.get(id);
        line.state == LineState::Closing && line.programs == 0
    }

    /// Whether any group has or can get room for data.
    pub(super) fn have_room(&self) -> bool {
        let has_room = |line: &LineId| self.data_left(*line) > 0;
        let can_be_opened = |line: &LineId| self.get(*line).is_clean || self.get(*line).unstable == 0;
        self.open.iter().flatten().any(has_room) || self.free.iter().flatten().any(can_be_opened)
    }

    // ---- recovery ----

    /// Sets what a recovery found of a line, before any unit of it is valid. Without start metadata all columns count.
    pub(super) fn found(&mut self, id: LineId, start: Option<&LineStart>) {
        let number = start.map_or(0, |start| start.line);
        let is_used = |column: &u32| start.is_none_or(|start| !start.left_out.contains(column));
        let columns: Vec<u32> = (0..self.layout.columns).filter(is_used).collect();
        self.openings = self.openings.max(number);
        let group = self.group_of(id);
        self.free[group].retain(|&line| line != id);
        let line = self.get_mut(id);
        (line.number, line.state, line.is_clean) = (number, LineState::Closed, false);
        line.next = vec![0; columns.len()];
        line.columns = columns;
        for &column in start.iter().flat_map(|start| &start.left_out) {
            let block = self.block(id, column);
            self.mark_bad(block);
            self.doubtful.insert(block);
        }
    }

    /// Goes on with a line that was open when the power failed.
    pub(super) fn resume(&mut self, id: LineId, next: Vec<u32>, owners: Vec<(Owner, u64)>) {
        let group = self.group_of(id);
        self.open[group] = Some(id);
        let line = self.get_mut(id);
        (line.state, line.next, line.owners) = (LineState::Open, next, owners);
        self.count_left(id);
        let line = self.get(id);
        // Some of its end metadata was written already.
        if (0..line.columns.len()).any(|at| line.next[at] > self.data_pages(line, at)) {
            self.get_mut(id).owners.clear();
        }
    }

    /// Frees the lines without valid units, after all units were found; they have to be erased.
    pub(super) fn free_empty(&mut self) {
        for id in self.ids() {
            let line = self.get_mut(id);
            if line.state == LineState::Closed && line.valid == 0 {
                line.state = LineState::Free;
                let group = self.group_of(id);
                self.free[group].push_back(id);
            }
        }
    }

    /// Panics if the counts of valid units and of lines that are being erased are wrong.
    pub(super) fn audit(&self) {
        for id in self.ids() {
            assert_eq!(self.valid_units(id).len() as u32, self.get(id).valid, "valid units of line {}", id.0);
        }
        for group in 0..self.free.len() {
            let is_erasing = |line: &LineId| self.get(*line).state == LineState::Erasing;
            let erasing = self.of_group(group).filter(is_erasing).count();
            assert_eq!(erasing as u32, self.erasing[group], "lines of group {group} that are being erased");
        }
    }
}
