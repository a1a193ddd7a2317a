//! The files of a fileset while a model runs: their existence, the number of times each is open, and the choice of the
//! next one.
//!
//! Invariants: as in filebench, files are taken in rotation, not at random; a file that a thread is about to open, stat
//! or delete is busy, and no other thread takes it; an open file is not deleted.

use super::tree::Plan;
use flashweir_core::signal::Signal;
use std::cell::{Cell, RefCell};
use std::collections::BTreeSet;

/// Kind of the wanted files.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Wanted {
    Existing,
    /// Existing files that are not open.
    Closed,
    Absent,
}

#[derive(Debug)]
pub(super) struct Pool {
    files: RefCell<Vec<Entry>>,
    existing: RefCell<BTreeSet<u32>>,
    absent: RefCell<BTreeSet<u32>>,
    /// Positions of the common rotations, for flowops without a rotation of their own.
    next_existing: Cell<u32>,
    next_absent: Cell<u32>,
    /// Notified when a file is not busy any more, or was closed.
    pub(super) freed: Signal,
}

#[derive(Debug)]
struct Entry {
    path: String,
    size: u64,
    is_busy: bool,
    opens: u32,
}

/// Result of taking a file.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Found {
    /// Number of the file, which is busy now.
    File(u32),
    /// Files of this kind exist, but all are busy or open.
    Busy,
    /// No file of this kind exists.
    None,
}

impl Pool {
    pub(super) fn new(plan: &Plan) -> Self {
        let numbers = |exists: bool| {
            (0..)
                .zip(&plan.files)
                .filter(|(_, file)| file.exists == exists)
                .map(|(number, _)| number)
                .collect()
        };
        let entry = |file: &super::tree::PlannedFile| Entry {
            path: file.path.clone(),
            size: file.size,
            is_busy: false,
            opens: 0,
        };
        Self {
            files: RefCell::new(plan.files.iter().map(entry).collect()),
            existing: RefCell::new(numbers(true)),
            absent: RefCell::new(numbers(false)),
            next_existing: Cell::new(0),
            next_absent: Cell::new(0),
            freed: Signal::default(),
        }
    }

    /// Takes the next file of this kind, in the common rotation or in one of the caller's own.
    pub(super) fn take(&self, wanted: Wanted, own_rotation: Option<&Cell<u32>>) -> Found {
        let (set, common) = match wanted {
            Wanted::Existing | Wanted::Closed => (&self.existing, &self.next_existing),
            Wanted::Absent => (&self.absent, &self.next_absent),
        };
        let rotation = own_rotation.unwrap_or(common);
        let set = set.borrow();
        if set.is_empty() {
            return Found::None;
        }
        let mut files = self.files.borrow_mut();
        let next = rotation.get();
        let is_free = |&&file: &&u32| {
            let entry = &files[file as usize];
            !entry.is_busy && (wanted != Wanted::Closed || entry.opens == 0)
        };
        let free = set.range(next..).chain(set.range(..next)).find(is_free);
        match free {
            None => Found::Busy,
            Some(&file) => {
                files[file as usize].is_busy = true;
                rotation.set(file + 1);
                Found::File(file)
            }
        }
    }

    /// Ends the busy state of a file; `opened` if it was opened.
    pub(super) fn release(&self, file: u32, opened: bool) {
        let mut files = self.files.borrow_mut();
        let entry = &mut files[file as usize];
        entry.is_busy = false;
        entry.opens += u32::from(opened);
        drop(files);
        self.freed.notify();
    }

    pub(super) fn closed(&self, file: u32) {
        self.files.borrow_mut()[file as usize].opens -= 1;
        self.freed.notify();
    }

    /// Records that the file exists from now on, or does not.
    pub(super) fn set_exists(&self, file: u32, exists: bool) {
        let (from, to) = if exists { (&self.absent, &self.existing) } else { (&self.existing, &self.absent) };
        from.borrow_mut().remove(&file);
        to.borrow_mut().insert(file);
    }

    pub(super) fn path(&self, file: u32) -> String {
        self.files.borrow()[file as usize].path.clone()
    }

    /// Returns the planned length of the file.
    pub(super) fn size(&self, file: u32) -> u64 {
        self.files.borrow()[file as usize].size
    }

    pub(super) fn len(&self) -> usize {
        self.files.borrow().len()
    }
}
