//! Assignment of work: the cells that wait, and the devices that are ready for them.
//!
//! Cells of one device and seed are a group, which shares the work of bringing the device into its state. A
//! worker takes a cell whose device is ready; if there is none it makes the next device ready; if all are in preparation it waits. So few
//! devices are in memory at once: each leaves with its last cell.
//!
//! Invariant: which worker takes what depends on timing, what a cell begins with does not.

use crate::scenario::Run;
use flashweir_device::Device;
use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::sync::{Condvar, Mutex, MutexGuard};

/// Task of a worker.
#[derive(Debug)]
pub(super) enum Task {
    /// Bring the device of a group into its state, as this cell wants it.
    Prepare {
        /// The group.
        group: usize,
        /// Its first cell.
        cell: usize,
    },
    /// Run a cell.
    Run {
        /// The cell.
        cell: usize,
        /// Initial device.
        device: Box<Device>,
    },
}

/// Cells that begin with the same device in the same state.
#[derive(Debug, Default)]
struct Group {
    cells: VecDeque<usize>,
    device: Option<Box<Device>>,
}

#[derive(Debug, Default)]
struct Groups {
    all: Vec<Group>,
    /// Groups from here on are untouched.
    untouched: usize,
    /// Groups that have a device and cells.
    ready: BTreeSet<usize>,
    /// How many groups will be ready soon.
    preparing: usize,
}

/// The cells that wait.
#[derive(Debug)]
pub(super) struct Board {
    groups: Mutex<Groups>,
    changed: Condvar,
}

impl Board {
    /// All cells wait.
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

    /// The next task; `None` when there is nothing left for this worker.
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

    /// Promises the device of a group that [`Task::Prepare`] named.
    pub(super) fn preparing(&self, group: usize) -> Preparing<'_> {
        Preparing { board: self, group, device: None }
    }
}

impl Groups {
    /// A cell whose device is ready.
    fn take_ready(&mut self) -> Option<Task> {
        let number = *self.ready.first()?;
        let group = &mut self.all[number];
        let cell = group.cells.pop_front().expect("a ready group has cells");
        let device = if group.cells.is_empty() {
            self.ready.remove(&number);
            group.device.take()
        } else {
            group.device.clone()
        };
        Some(Task::Run { cell, device: device.expect("a ready group has a device") })
    }
}

/// A device that is promised. Dropped without one, as by a panic, its group is over, so that no worker waits for it.
#[derive(Debug)]
pub(super) struct Preparing<'a> {
    board: &'a Board,
    group: usize,
    device: Option<Box<Device>>,
}

impl Preparing<'_> {
    /// Hands the device over; `None` gives the group up.
    pub(super) fn finish(mut self, device: Option<Box<Device>>) {
        self.device = device;
    }
}

impl Drop for Preparing<'_> {
    fn drop(&mut self) {
        if let Ok(mut groups) = self.board.groups.lock() {
            groups.preparing -= 1;
            if self.device.is_some() {
                groups.ready.insert(self.group);
                groups.all[self.group].device = self.device.take();
            }
        }
        self.board.changed.notify_all();
    }
}
