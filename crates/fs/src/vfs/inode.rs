//! An inode in memory: its locks, its size, its place in write-back, and errors that were not reported yet.
//!
//! Invariants:
//! 1. An inode is in the table of the mount while it is in use, has pages, or is held by the file system.
//! 2. It is held by the file system while it is in use or has pages that are dirty or being written.
//! 3. `gone` is set when its last name was removed, or if it was made without one; from then on it only waits for its last user,
//!    or to be linked if it is `linkable`.

use super::Errno;
use super::pages::{OwnerId, Slot};
use super::sync::{Event, Guard, RangeLocks, RwLock};
use super::types::{Attr, Ino, Timestamp, mode};
use flashweir_core::Instant;
use std::cell::{Cell, RefCell};
use std::rc::Rc;

/// An inode in memory; see the module.
#[derive(Debug)]
pub(crate) struct Inode {
    pub(crate) ino: Ino,
    pub(crate) owner: OwnerId,
    /// Held alone to change names, attributes or size; shared for direct I/O within the size.
    pub(crate) lock: RwLock,
    /// Ranges of pages under direct I/O.
    pub(crate) ranges: RangeLocks,
    /// Taken to change `users` and `held`.
    pub(crate) using: RwLock,
    pub(crate) users: Cell<u32>,
    pub(crate) held: Cell<bool>,
    pub(crate) gone: Cell<bool>,
    /// Whether it was created without a name and may get one.
    pub(crate) linkable: Cell<bool>,
    /// Tells it from earlier inodes with the same number; valid while the inode is held.
    pub(crate) generation: Cell<u32>,
    /// Size in bytes; valid while the inode is held.
    pub(crate) size: Cell<u64>,
    /// Whether a write by a caller other than root clears the set-user or set-group bit.
    pub(crate) privileged: Cell<bool>,
    /// Number of open files that were opened as atomic.
    pub(crate) atomic_users: Cell<u32>,
    /// What was written and no sync has released; see [`super::atomic`].
    pub(crate) withheld: Cell<Option<Withheld>>,
    /// Whether it is in the mount's queue of inodes with dirty pages.
    pub(crate) queued: Cell<bool>,
    /// Background write-back has failed and waits until this instant.
    pub(crate) retry_at: Cell<Instant>,
    /// Remaining pages of the round of background write-back, last page first.
    pub(crate) round: RefCell<Vec<(u64, Slot)>>,
    /// Notified when a page comes or goes, or a batch has ended.
    pub(crate) changed: Event,
    batches: RefCell<Vec<Batch>>,
    batches_begun: Cell<u64>,
    errors: Cell<Errors>,
    freed: Rc<RefCell<Vec<OwnerId>>>,
}

impl Drop for Inode {
    fn drop(&mut self) {
        self.freed.borrow_mut().push(self.owner);
    }
}

/// Changes of an inode that only a sync of the file passes on; its pages have a state of their own.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Withheld {
    /// Size for the file system, in bytes.
    pub(crate) size: u64,
    /// Time of the last change, unless the file system has it.
    pub(crate) changed: Option<Timestamp>,
}

/// Pages that are being written together.
#[derive(Clone, Copy, Debug)]
struct Batch {
    number: u64,
    /// Whether they are ordered before everything that comes later.
    is_ordered: bool,
}

/// Errors of write-back.
#[derive(Clone, Copy, Debug)]
struct Errors {
    /// Number of errors so far; each open file remembers the number up to which it has reported them.
    count: u64,
    last: Errno,
    told: bool,
}

impl Inode {
    /// Returns an inode without users. When it is dropped, its owner goes to `freed`: as long as the inode is referred to, its
    /// pages cannot be taken for those of another one.
    pub(crate) fn new(ino: Ino, owner: OwnerId, freed: Rc<RefCell<Vec<OwnerId>>>) -> Self {
        Self {
            ino,
            owner,
            freed,
            lock: RwLock::default(),
            ranges: RangeLocks::default(),
            using: RwLock::default(),
            users: Cell::new(0),
            held: Cell::new(false),
            gone: Cell::new(false),
            linkable: Cell::new(false),
            generation: Cell::new(0),
            size: Cell::new(0),
            privileged: Cell::new(false),
            atomic_users: Cell::new(0),
            withheld: Cell::new(None),
            queued: Cell::new(false),
            retry_at: Cell::new(Instant::ZERO),
            round: RefCell::default(),
            changed: Event::default(),
            batches: RefCell::default(),
            batches_begun: Cell::new(0),
            errors: Cell::new(Errors { count: 0, last: Errno::EIO, told: true }),
        }
    }

    /// Takes over current attributes.
    pub(crate) fn note(&self, attr: &Attr) {
        self.generation.set(attr.generation);
        self.size.set(attr.size);
        self.note_mode(attr);
    }

    /// Takes over current attributes except for the size, which the vfs knows better.
    pub(crate) fn note_mode(&self, attr: &Attr) {
        let group = mode::SETGID | mode::GROUP_EXEC;
        self.privileged.set(attr.mode & mode::SETUID != 0 || attr.mode & group == group);
    }

    /// Raises the size to at least `end`.
    #[inline]
    pub(crate) fn grow(&self, end: u64) {
        if end > self.size.get() {
            self.size.set(end);
        }
    }

    /// Locks two inodes alone, in ascending order; they may be one.
    pub(crate) async fn lock_both<'a>(one: &'a Self, other: &'a Self) -> (Guard<'a>, Option<Guard<'a>>) {
        let (first, second) = if one.ino <= other.ino { (one, other) } else { (other, one) };
        let first_guard = first.lock.alone().await;
        match first.ino == second.ino {
            true => (first_guard, None),
            false => (first_guard, Some(second.lock.alone().await)),
        }
    }

    /// Whether what is written stays in memory until a sync.
    #[inline]
    pub(crate) fn withholds(&self) -> bool {
        self.atomic_users.get() > 0 || self.withheld.get().is_some()
    }

    /// Notes that content or size are about to change and the change is withheld.
    pub(crate) fn note_withheld(&self, now: Timestamp) {
        let size = self.withheld.get().map_or(self.size.get(), |withheld| withheld.size);
        self.withheld.set(Some(Withheld { size, changed: Some(now) }));
    }

    /// Notes that the times were set, after what is withheld was written.
    pub(crate) fn note_times_set(&self) {
        self.withheld.set(self.withheld.get().map(|withheld| Withheld { changed: None, ..withheld }));
    }

    // Batches of write-back.

    pub(crate) fn begin_batch(&self) -> u64 {
        let number = self.batches_begun.get();
        self.batches_begun.set(number + 1);
        self.batches.borrow_mut().push(Batch { number, is_ordered: false });
        number
    }

    pub(crate) fn end_batch(&self, number: u64) {
        self.batches.borrow_mut().retain(|batch| batch.number != number);
    }

    /// Whether pages are being written.
    pub(crate) fn is_being_written(&self) -> bool {
        !self.batches.borrow().is_empty()
    }

    /// Notes that the batch is ordered before everything that comes later.
    pub(crate) fn batch_is_ordered(&self, number: u64) {
        for batch in self.batches.borrow_mut().iter_mut().filter(|batch| batch.number == number) {
            batch.is_ordered = true;
        }
        self.changed.notify();
    }

    /// Waits until every batch that has begun has ended; batches that begin later do not count, so the wait ends.
    pub(crate) async fn batches_ended(&self) {
        self.no_batch(self.batches_begun.get(), |_| true).await;
    }

    /// Does the same, except for batches that are ordered before everything that comes later.
    pub(crate) async fn batches_ordered(&self) {
        self.batches_ordered_before(self.batches_begun.get()).await;
    }

    /// Does the same for batches that began before batch `number`.
    pub(crate) async fn batches_ordered_before(&self, number: u64) {
        self.no_batch(number, |batch| !batch.is_ordered).await;
    }

    async fn no_batch(&self, until: u64, counts: impl Fn(&Batch) -> bool) {
        while self.batches.borrow().iter().any(|batch| batch.number < until && counts(batch)) {
            self.changed.wait().await;
        }
    }

    // Errors.

    /// Notes a failed write-back.
    pub(crate) fn record_error(&self, errno: Errno) {
        let count = self.errors.get().count + 1;
        self.errors.set(Errors { count, last: errno, told: false });
    }

    /// Number of errors that count as reported for a file that is opened now: all, unless no caller was told of the last one.
    pub(crate) fn errors_at_open(&self) -> u64 {
        let errors = self.errors.get();
        errors.count - u64::from(!errors.told)
    }

    /// Failed write-backs so far.
    pub(crate) fn error_count(&self) -> u64 {
        self.errors.get().count
    }

    /// The last error; `EIO` if there was none.
    pub(crate) fn last_error(&self) -> Errno {
        self.errors.get().last
    }

    /// The last error since `seen`, once.
    pub(crate) fn take_error(&self, seen: &Cell<u64>) -> Option<Errno> {
        let errors = self.errors.get();
        if errors.count == seen.get() {
            return None;
        }
        seen.set(errors.count);
        self.errors.set(Errors { told: true, ..errors });
        Some(errors.last)
    }
}
