//! Assignment of work: the waiting cells, and the devices that are ready for them.
//!
//! Cells of one device and seed are a group, for which the device is preconditioned once. A worker takes a cell whose
//! device is ready; if there is none, it prepares the next device; if all devices are in preparation, it waits. So few
//! devices are in memory at once: each is handed to its last cell.
//!
//! Invariant: which worker takes a task depends on timing; the state in which a cell begins does not.

use crate::scenario::Run;
use flashweir_sim::host_ftl::Disk;
use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::sync::{Condvar, Mutex, MutexGuard};

/// Task of a worker.
#[derive(Debug)]
pub(super) enum Task {
    /// Precondition the device of a group, as this cell wants it.
    Prepare {
        /// The group.
        group: usize,
        /// First cell of the group.
        cell: usize,
    },
    /// Run a cell.
    Run {
        /// The cell.
        cell: usize,
        /// Disk on which it begins.
        disk: Box<Disk>,
    },
}

/// Cells that begin with the same device in the same state.
#[derive(Debug, Default)]
struct Group {
    cells: VecDeque<usize>,
    disk: Option<Box<Disk>>,
}

#[derive(Debug, Default)]
struct Groups {
    all: Vec<Group>,
    /// Number of the first group that no worker has taken yet.
    untouched: usize,
    /// Groups with a ready device and waiting cells.
    ready: BTreeSet<usize>,
    /// Number of groups whose device is in preparation.
    preparing: usize,
}

/// The waiting cells.
#[derive(Debug)]
pub(super) struct Board {
    groups: Mutex<Groups>,
    changed: Condvar,
}

impl Board {
    /// Makes a board on which all cells wait.
    pub(super) fn new(cells: &[Run]) -> Self {
        let mut numbers: BTreeMap<(usize, u64), usize> = BTreeMap::new();
        let mut groups = Groups::default();
        for (cell, run) in cells.iter().enumerate() {
            let group = *numbers.entry((run.device, run.seed)).or_insert_with(|| {
                groups.all.push(Group::default());
                groups.all.len() - 1
            });
            groups.all[group].cells.push_back(cell);
        }
        Self { groups: Mutex::new(groups), changed: Condvar::new() }
    }

    fn lock(&self) -> MutexGuard<'_, Groups> {
        self.groups.lock().expect("nothing panics while it holds the board")
    }

    /// Takes the next task, and waits for one if need be; `None` if nothing is left for this worker.
    pub(super) fn take(&self) -> Option<Task> {
        let mut groups = self.lock();
        loop {
            if let Some(task) = groups.take_ready() {
                return Some(task);
            }
            if groups.untouched < groups.all.len() {
                let group = groups.untouched;
                groups.untouched += 1;
                groups.preparing += 1;
                return Some(Task::Prepare { group, cell: groups.all[group].cells[0] });
            }
            if groups.preparing == 0 {
                return None;
            }
            groups = self.changed.wait(groups).expect("nothing panics while it holds the board");
        }
    }

    /// Promises the device of a group of a [`Task::Prepare`].
    pub(super) fn preparing(&self, group: usize) -> Preparing<'_> {
        Preparing { board: self, group, disk: None }
    }
}

impl Groups {
    /// Takes a cell whose device is ready.
    fn take_ready(&mut self) -> Option<Task> {
        let number = *self.ready.first()?;
        let group = &mut self.all[number];
        let cell = group.cells.pop_front().expect("a ready group has cells");
        let disk = if group.cells.is_empty() {
            self.ready.remove(&number);
            group.disk.take()
        } else {
            group.disk.clone()
        };
        Some(Task::Run { cell, disk: disk.expect("a ready group has a disk") })
    }
}

/// A promise of a device. If it is dropped unkept, as by a panic, its group is given up, so that no worker waits for it.
#[derive(Debug)]
pub(super) struct Preparing<'a> {
    board: &'a Board,
    group: usize,
    disk: Option<Box<Disk>>,
}

impl Preparing<'_> {
    /// Delivers the device; `None` gives the group up.
    pub(super) fn finish(mut self, disk: Option<Box<Disk>>) {
        self.disk = disk;
    }
}

impl Drop for Preparing<'_> {
    fn drop(&mut self) {
        if let Ok(mut groups) = self.board.groups.lock() {
            groups.preparing -= 1;
            if self.disk.is_some() {
                groups.ready.insert(self.group);
                groups.all[self.group].disk = self.disk.take();
            }
        }
        self.board.changed.notify_all();
    }
}
