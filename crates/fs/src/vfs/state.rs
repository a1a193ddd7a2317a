//! The state of a mounted file system: its pages, its inodes, its queues, and what tasks wait for.
//!
//! Place in the data flow: every file of the vfs has methods of [`Vfs`]; the mount makes one, background write-back holds it
//! weakly.
//!
//! Invariant: when the last [`Vfs`] is gone, the tasks of the mount are woken, and end.

use super::Fs;
use super::config::{MountOptions, VfsMetrics};
use super::inode::Inode;
use super::pages::{OwnerId, Pages, Slot};
use super::sync::{Event, RwLock};
use super::types::*;
use super::{DirtyPage, Errno};
use flashweir_core::cpus::Cpus;
use flashweir_core::executor::Handle;
use flashweir_core::{Instant, Payload};
use std::cell::{Cell, RefCell};
use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::fmt;
use std::rc::Rc;

/// A mounted file system; a clone is the same one.
///
/// Applications go through a [`Process`](super::Process) and its [`File`](super::File)s. A front end that knows inodes instead of
/// paths (FUSE) uses [`Vfs::keep`], [`Vfs::open_inode`] and their siblings.
pub struct Vfs<F: Fs>(pub(crate) Rc<Shared<F>>);

pub(crate) struct Shared<F: Fs> {
    pub(crate) fs: F,
    pub(crate) limits: Limits,
    pub(crate) options: MountOptions,
    pub(crate) handle: Handle,
    /// Civil time at an instant.
    pub(crate) civil: Cell<(Instant, Timestamp)>,
    pub(crate) cpus: RefCell<Cpus>,
    pub(crate) pages: RefCell<Pages>,
    pub(crate) inodes: RefCell<BTreeMap<Ino, Rc<Inode>>>,
    /// Owners of pages whose inodes were dropped.
    pub(crate) owners_freed: Rc<RefCell<Vec<OwnerId>>>,
    /// Inodes with dirty pages, each once; background write-back serves them in turn.
    pub(crate) dirty: RefCell<VecDeque<Rc<Inode>>>,
    /// Files that were dropped without being closed.
    pub(crate) dropped: RefCell<Vec<Rc<Inode>>>,
    /// Taken by renames between directories, so that no two of them make a loop.
    pub(crate) renames: RwLock,
    /// There is something for background write-back to do.
    pub(crate) work: Rc<Event>,
    /// Writers that wait until fewer pages are dirty, ordered by their turn and by arrival.
    pub(crate) throttled: RefCell<BTreeSet<(u64, u64)>>,
    /// The turn of the last of them that went on, and how many there were.
    pub(crate) throttle_clock: Cell<(u64, u64)>,
    /// Background write-back sleeps without a timer.
    pub(crate) idle: Cell<bool>,
    /// The file system's own work: something may be there to do, or the mount ends.
    pub(crate) turn: Rc<Event>,
    /// That work waits for pages to become dirty.
    pub(crate) turn_idle: Cell<bool>,
    /// A turn of it is running.
    pub(crate) turn_runs: Cell<bool>,
    /// Dirty pages became fewer, or it became clear that they do not.
    pub(crate) cleaned: Event,
    /// No dirty page can be written, for this reason.
    pub(crate) stuck: Cell<Option<Errno>>,
    pub(crate) unmounted: Cell<bool>,
    /// Tasks of our own that use inodes: read-ahead, barriers that were not answered.
    pub(crate) helpers: Cell<u32>,
    pub(crate) helper_ended: Event,
    pub(crate) metrics: RefCell<VfsMetrics>,
    pub(crate) batches: Pool<DirtyPage>,
    pub(crate) payloads: Pool<Payload>,
    pub(crate) slots: Pool<Slot>,
}

impl<F: Fs> Clone for Vfs<F> {
    fn clone(&self) -> Self {
        Self(Rc::clone(&self.0))
    }
}

impl<F: Fs> fmt::Debug for Vfs<F> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let pages = self.0.pages.borrow();
        f.debug_struct("Vfs")
            .field("inodes", &self.0.inodes.borrow().len())
            .field("pages", &pages.present())
            .field("dirty", &pages.unclean())
            .finish_non_exhaustive()
    }
}

impl<F: Fs> Drop for Shared<F> {
    /// Ends background write-back, which waits for work and has no mount left.
    fn drop(&mut self) {
        self.work.notify();
    }
}

/// Vectors that are used again, so that a batch of pages allocates nothing.
#[derive(Debug)]
pub(crate) struct Pool<T>(RefCell<Vec<Vec<T>>>);

impl<T> Pool<T> {
    pub(crate) fn new() -> Self {
        Self(RefCell::new(Vec::new()))
    }
    pub(crate) fn take(&self) -> Vec<T> {
        self.0.borrow_mut().pop().unwrap_or_default()
    }
    pub(crate) fn give_back(&self, mut used: Vec<T>) {
        used.clear();
        self.0.borrow_mut().push(used);
    }
}
