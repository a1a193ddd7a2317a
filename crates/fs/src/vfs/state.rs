//! The state of a mounted file system: its pages, its inodes, its queues, and the events for which tasks wait.
//!
//! Place in the data flow: every file of the vfs has methods of [`Vfs`]; the mount creates one, background write-back holds it
//! weakly.
//!
//! Invariant: when the last [`Vfs`] is dropped, the tasks of the mount are woken, and end.

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

/// A mounted file system; a clone refers to the same one.
///
/// Applications use a [`Process`](super::Process) and its [`File`](super::File)s. A front end that knows inodes instead of paths
/// (FUSE) uses [`Vfs::keep`], [`Vfs::open_inode`] and their siblings.
pub struct Vfs<F: Fs>(pub(crate) Rc<Shared<F>>);

pub(crate) struct Shared<F: Fs> {
    pub(crate) fs: F,
    pub(crate) limits: Limits,
    pub(crate) options: MountOptions,
    pub(crate) handle: Handle,
    /// An instant and the civil time at that instant.
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
    /// Taken by renames between directories, so that no two of them form a loop.
    pub(crate) renames: RwLock,
    /// Notified when background write-back has work.
    pub(crate) work: Rc<Event>,
    /// Writers that wait until fewer pages are dirty, ordered by their turn and then by arrival.
    pub(crate) throttled: RefCell<BTreeSet<(u64, u64)>>,
    /// The turn of the writer that went on last, and the number of arrivals so far.
    pub(crate) throttle_clock: Cell<(u64, u64)>,
    /// Whether background write-back sleeps without a timer.
    pub(crate) idle: Cell<bool>,
    /// Notified when the file system may have background work, or the mount ends.
    pub(crate) turn: Rc<Event>,
    /// Whether background work waits for pages to become dirty.
    pub(crate) turn_idle: Cell<bool>,
    /// Number of tasks in the background that are at work.
    pub(crate) at_work: Cell<u32>,
    /// Notified when there are fewer dirty pages, or when it is clear that there will not be.
    pub(crate) cleaned: Event,
    /// The error for which no dirty page can be written.
    pub(crate) stuck: Cell<Option<Errno>>,
    pub(crate) unmounted: Cell<bool>,
    /// Number of tasks of the vfs that use inodes: read-ahead, barriers that were not answered.
    pub(crate) helpers: Cell<u32>,
    /// Notified when one of these, or of those in the background, has ended its work.
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
    /// Ends the tasks in the background, which wait for work and have no mount left.
    fn drop(&mut self) {
        self.work.notify();
        self.turn.notify();
    }
}

/// Vectors that are reused, so that a batch of pages allocates nothing.
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
