//! Lines: sets of erase blocks that are filled, collected and erased together (open-channel §5).
//!
//! Programs of a line go row by row: the first of each block, then the second of each.
//!
//! Invariants:
//! 1. A line is erased when no unit of it is valid, no program of it is under way, and no reader holds it.
//! 2. A unit is valid from the end of its program until a newer version of its owner is on the medium.

use crate::assembly::{Assembly, Geometry};
use crate::hold::Holds;
use crate::medium::{Medium, PowerLost};
use crate::spin::SpinLock;
use crate::sync::{Alone, Arc, AtomicBool, AtomicI64, AtomicU32, AtomicU64, Ordering};
use crate::versions::Places;
use flashweir_core::Ppa;
use std::collections::VecDeque;

mod state {
    /// Erased.
    pub(super) const FREE: u32 = 0;
    /// Takes data.
    pub(super) const OPEN: u32 = 1;
    /// Takes no more data.
    pub(super) const FULL: u32 = 2;
    pub(super) const COLLECTING: u32 = 3;
}

#[derive(Debug, Default)]
struct Line {
    state: AtomicU32,
    valid: AtomicU32,
    programs: AtomicU32,
    holds: Holds,
}

#[derive(Debug, Default)]
struct Open {
    line: Option<u32>,
    /// Number of its opening.
    opening: u64,
    /// Next program of the line.
    next: u32,
    free: VecDeque<u32>,
}

#[derive(Debug, Default)]
struct Group {
    open: SpinLock<Open>,
    free: Alone<AtomicU32>,
    pub(crate) is_collecting: AtomicBool,
}

/// Where a program goes.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Program {
    pub(crate) line: u32,
    pub(crate) ppa: Ppa,
    /// Number of the line's opening.
    pub(crate) opening: u64,
    /// The group has a free line less.
    pub(crate) has_opened: bool,
}

/// All lines.
#[derive(Debug)]
pub(crate) struct Lines {
    medium: Arc<Medium>,
    lines: Box<[Alone<Line>]>,
    groups: Box<[Alone<Group>]>,
    valid: Box<[AtomicU64]>,
    /// Units that may be programmed before anything is erased.
    pub(crate) space: Alone<AtomicI64>,
    /// Number of the next opening.
    next_opening: Alone<AtomicU64>,
    columns: u32,
    per_group: u32,
    line_units: u64,
}

impl Lines {
    /// Lines of a medium; nothing of it is valid yet, and each line that is not erased is full.
    pub(crate) fn new(medium: Arc<Medium>, assembly: Assembly) -> Self {
        let geometry: Geometry = *medium.geometry();
        let groups = geometry.groups(assembly);
        let lines = Self {
            lines: (0..groups * geometry.blocks_per_die).map(|_| Alone(Line::default())).collect(),
            groups: (0..groups).map(|_| Alone(Group::default())).collect(),
            valid: (0..geometry.physical_units().div_ceil(64)).map(|_| AtomicU64::new(0)).collect(),
            space: Alone(AtomicI64::new(0)),
            next_opening: Alone(AtomicU64::new(1)),
            columns: geometry.dies() / groups,
            per_group: geometry.blocks_per_die,
            line_units: geometry.line_units(assembly),
            medium,
        };
        for line in 0..lines.lines.len() as u32 {
            if lines.blocks(line).all(|block| lines.medium.is_erased(block)) {
                lines.add_free(line);
            } else {
                lines.lines[line as usize].state.store(state::FULL, Ordering::Relaxed);
                lines.lines[line as usize].holds.open();
            }
        }
        lines
    }

    pub(crate) fn count(&self) -> u32 {
        self.lines.len() as u32
    }

    pub(crate) fn groups(&self) -> usize {
        self.groups.len()
    }

    /// Units of a line.
    pub(crate) fn line_units(&self) -> u64 {
        self.line_units
    }

    fn group_of(&self, line: u32) -> usize {
        (line / self.per_group) as usize
    }

    fn block(&self, line: u32, column: u32) -> u32 {
        let (group, number) = (line / self.per_group, line % self.per_group);
        (group * self.columns + column) * self.per_group + number
    }

    fn blocks(&self, line: u32) -> impl Iterator<Item = u32> + '_ {
        (0..self.columns).map(move |column| self.block(line, column))
    }

    pub(crate) fn line_of(&self, ppa: Ppa) -> u32 {
        let block = self.medium.block_of(ppa);
        let (die, number) = (block / self.per_group, block % self.per_group);
        die / self.columns * self.per_group + number
    }

    fn line(&self, line: u32) -> &Line {
        &self.lines[line as usize]
    }

    fn add_free(&self, line: u32) {
        self.line(line).state.store(state::FREE, Ordering::Release);
        let group = &self.groups[self.group_of(line)];
        group.open.lock().free.push_back(line);
        group.free.fetch_add(1, Ordering::AcqRel);
        self.space.fetch_add(self.line_units as i64, Ordering::AcqRel);
    }

    /// Free blocks of a group; `tell` gets them while no line is opened.
    pub(crate) fn with_free_blocks(&self, group: usize, tell: impl FnOnce(u32)) {
        let _guard = self.groups[group].open.lock();
        tell(self.free_blocks(group));
    }

    pub(crate) fn free_blocks(&self, group: usize) -> u32 {
        self.groups[group].free.load(Ordering::Acquire) * self.columns
    }

    /// Whether GC works on a group.
    pub(crate) fn is_collecting(&self, group: usize) -> bool {
        self.groups[group].is_collecting.load(Ordering::Acquire)
    }

    /// Sets whether GC works on a group; returns what it was.
    pub(crate) fn set_collecting(&self, group: usize, is_collecting: bool) -> bool {
        self.groups[group].is_collecting.swap(is_collecting, Ordering::AcqRel)
    }

    /// The next program of a group, if it has room.
    pub(crate) fn take(&self, group: usize) -> Option<Program> {
        let group_state = &self.groups[group];
        let geometry = self.medium.geometry();
        let mut open = group_state.open.lock();
        let mut has_opened = false;
        let number = match open.line {
            Some(line) => line,
            None => {
                let number = open.free.pop_front()?;
                group_state.free.fetch_sub(1, Ordering::AcqRel);
                (open.line, open.next, has_opened) = (Some(number), 0, true);
                open.opening = self.next_opening.fetch_add(1, Ordering::AcqRel);
                let line = self.line(number);
                assert_eq!(line.valid.load(Ordering::Acquire), 0, "line {number} is erased");
                line.state.store(state::OPEN, Ordering::Relaxed);
                line.holds.open();
                number
            }
        };
        let (column, row) = (open.next % self.columns, open.next / self.columns);
        self.line(number).programs.fetch_add(1, Ordering::AcqRel);
        let opening = open.opening;
        open.next += 1;
        if open.next == self.columns * geometry.programs_per_block {
            open.line = None;
            self.line(number).state.store(state::FULL, Ordering::Release);
        }
        drop(open);
        self.space.fetch_sub(i64::from(geometry.units_per_program), Ordering::AcqRel);
        Some(Program {
            line: number,
            ppa: self.medium.ppa(self.block(number, column), row),
            opening,
            has_opened,
        })
    }

    /// A program has ended.
    pub(crate) fn ended(&self, program: Program) {
        self.line(program.line).programs.fetch_sub(1, Ordering::AcqRel);
    }

    /// The full line of a group with the fewest valid units, if collecting it gains at least `gain` units.
    pub(crate) fn look(&self, group: usize, gain: u64) -> Option<u32> {
        let first = group as u32 * self.per_group;
        let is_ready = |&line: &u32| {
            let line = self.line(line);
            line.state.load(Ordering::Acquire) == state::FULL && line.programs.load(Ordering::Acquire) == 0
        };
        let lines = (first..first + self.per_group).filter(is_ready);
        let victim = lines.min_by_key(|&line| self.valid_count(line))?;
        (u64::from(self.valid_count(victim)) + gain <= self.line_units).then_some(victim)
    }

    /// The same, and GC works on it from now on.
    pub(crate) fn victim(&self, group: usize, gain: u64) -> Option<u32> {
        let victim = self.look(group, gain)?;
        self.line(victim).state.store(state::COLLECTING, Ordering::Release);
        Some(victim)
    }

    pub(crate) fn valid_count(&self, line: u32) -> u32 {
        self.line(line).valid.load(Ordering::Acquire)
    }

    fn is_valid(&self, ppa: Ppa) -> bool {
        self.valid[(ppa.0 / 64) as usize].load(Ordering::Acquire) >> (ppa.0 % 64) & 1 != 0
    }

    /// Valid units of a line.
    pub(crate) fn valid_units(&self, line: u32) -> impl Iterator<Item = Ppa> + '_ {
        let units = self.medium.geometry().block_units();
        let all = self.blocks(line).flat_map(move |block| {
            let first = self.medium.ppa(block, 0).0;
            (first..first + units).map(Ppa)
        });
        all.filter(|&ppa| self.is_valid(ppa))
    }

    /// Erases a line without valid units as soon as no reader holds it.
    pub(crate) fn erase(&self, line: u32) -> Result<(), PowerLost> {
        if !self.line(line).holds.close(|| !self.medium.is_off()) {
            return Err(PowerLost);
        }
        self.medium.erase(self.blocks(line))?;
        self.add_free(line);
        Ok(())
    }

    /// Sets the number of the next opening, after a recovery.
    pub(crate) fn set_next_opening(&self, opening: u64) {
        self.next_opening.store(opening, Ordering::Release);
    }

    /// Full lines without valid units, after a recovery.
    pub(crate) fn empty(&self) -> Vec<u32> {
        let is_empty = |&line: &u32| {
            self.line(line).state.load(Ordering::Relaxed) == state::FULL && self.valid_count(line) == 0
        };
        (0..self.count()).filter(is_empty).collect()
    }

    /// Valid units of the device. Nothing is under way.
    pub(crate) fn valid_total(&self) -> u64 {
        (0..self.count()).map(|line| u64::from(self.valid_count(line))).sum()
    }
}

impl Places for Lines {
    fn set_valid(&self, ppa: Ppa) {
        let bit = 1 << (ppa.0 % 64);
        let old = self.valid[(ppa.0 / 64) as usize].fetch_or(bit, Ordering::AcqRel);
        assert_eq!(old & bit, 0, "unit {} becomes valid twice", ppa.0);
        self.line(self.line_of(ppa)).valid.fetch_add(1, Ordering::AcqRel);
    }

    fn set_invalid(&self, ppa: Ppa) {
        let bit = 1 << (ppa.0 % 64);
        let old = self.valid[(ppa.0 / 64) as usize].fetch_and(!bit, Ordering::AcqRel);
        assert_ne!(old & bit, 0, "unit {} becomes invalid twice", ppa.0);
        self.line(self.line_of(ppa)).valid.fetch_sub(1, Ordering::AcqRel);
    }

    fn hold(&self, ppa: Ppa) -> bool {
        self.line(self.line_of(ppa)).holds.hold()
    }

    fn release(&self, ppa: Ppa) {
        self.line(self.line_of(ppa)).holds.release();
    }
}
