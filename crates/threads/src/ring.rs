//! A ring: accepted units on their way to the medium (open-channel §1.1, open-channel §2).
//!
//! ```text
//!      published        sync            subm           mem
//!  ── free ──┴─ persistent ─┴─ in flight ──┴── filled ────┴── free ──►     positions only rise
//! ```
//!
//! `mem` and `published` move under the producer lock; `subm` and `sync` belong to the ring's writer alone.
//!
//! Invariants: `published <= sync <= subm <= mem`, and `mem - published` is at most the number of entries. An entry is used again only
//! after it is published: the map names its place on the medium, or a newer version.

use crate::content::Content;
use crate::pending::Pending;
use crate::spin::SpinLock;
use crate::sync::{Alone, Arc, AtomicU32, AtomicU64, Ordering};
use flashweir_core::Ppa;
use flashweir_ftl::host_word::Slot;

/// What an entry is, beside the content of a unit of the user.
pub(crate) mod flags {
    /// A unit that says that its owner is deallocated.
    pub(crate) const TRIM: u32 = 1;
    /// A copy of GC.
    pub(crate) const GC: u32 = 2;
}

/// How far an entry is.
pub(crate) mod state {
    /// Its producer is at work.
    pub(crate) const RESERVED: u32 = 0;
    /// To be written.
    pub(crate) const FILLED: u32 = 1;
    /// A copy of GC that came too late: nothing is written.
    pub(crate) const DROPPED: u32 = 2;
}

/// An accepted unit. Readers may look while a producer uses it again; they believe nothing until they have looked at the stamp.
#[derive(Debug)]
pub(crate) struct Entry {
    /// The position of the use that the other fields belong to.
    pub(crate) stamp: AtomicU64,
    pub(crate) state: AtomicU32,
    /// 1 for a deallocation, 2 for a copy of GC.
    pub(crate) flags: AtomicU32,
    pub(crate) lpn: AtomicU64,
    /// Number of the version in the order of all.
    pub(crate) seq: AtomicU64,
    /// Word of the durable version that it replaces, if it replaces one.
    pub(crate) before: AtomicU64,
    /// Word of its place, once it is there.
    pub(crate) place: AtomicU64,
    pub(crate) content: Content,
}

/// What producers of a ring share.
#[derive(Debug)]
pub(crate) struct Producer {
    pub(crate) published: u64,
    /// Every version with a smaller number is installed.
    pub(crate) installed_below: u64,
    /// Places of superseded entries that stay valid until this position of this ring is on the medium.
    pub(crate) superseded: Vec<(Ppa, Slot)>,
}

/// A ring.
#[derive(Debug)]
pub(crate) struct Ring {
    number: u16,
    entries: Box<[Entry]>,
    pub(crate) producer: SpinLock<Producer>,
    pub(crate) mem: Alone<AtomicU64>,
    pub(crate) sync: Alone<AtomicU64>,
    /// Entries before this position are written even if they do not fill a program.
    pub(crate) flush_point: Alone<AtomicU64>,
    /// Requests that wait until `sync` has reached a position.
    waiters: SpinLock<Vec<(u64, Arc<Pending>)>>,
}

impl Ring {
    pub(crate) fn new(number: u16, entries: u32) -> Self {
        let entry = |_| Entry {
            stamp: AtomicU64::new(u64::MAX),
            state: AtomicU32::new(state::RESERVED),
            flags: AtomicU32::new(0),
            lpn: AtomicU64::new(0),
            seq: AtomicU64::new(0),
            before: AtomicU64::new(0),
            place: AtomicU64::new(0),
            content: Content::default(),
        };
        let producer = Producer { published: 0, installed_below: 0, superseded: Vec::new() };
        let cell = || Alone(AtomicU64::new(0));
        Self {
            number,
            entries: (0..entries).map(entry).collect(),
            producer: SpinLock::new(producer),
            mem: cell(),
            sync: cell(),
            flush_point: cell(),
            waiters: SpinLock::new(Vec::new()),
        }
    }

    pub(crate) fn len(&self) -> u64 {
        self.entries.len() as u64
    }

    pub(crate) fn entry(&self, position: u64) -> &Entry {
        &self.entries[(position % self.len()) as usize]
    }

    /// The address of a position.
    pub(crate) fn slot(&self, position: u64) -> Slot {
        let (index, generation) = ((position % self.len()) as u32, (position / self.len()) as u32);
        Slot { ring: self.number, index, generation }
    }

    /// The position of an address.
    pub(crate) fn position(&self, slot: Slot) -> u64 {
        u64::from(slot.generation) * self.len() + u64::from(slot.index)
    }

    /// Whether everything up to this position, it included, is on the medium.
    pub(crate) fn is_persistent(&self, position: u64) -> bool {
        self.sync.load(Ordering::Acquire) > position
    }

    /// Whether everything before this position is on the medium.
    pub(crate) fn is_persistent_to(&self, position: u64) -> bool {
        self.sync.load(Ordering::Acquire) >= position
    }

    /// Has everything before this position written, full programs or not.
    pub(crate) fn force(&self, position: u64) {
        self.flush_point.fetch_max(position, Ordering::AcqRel);
    }

    /// Has a request wait until everything before this position is on the medium; returns whether it has to. `is_late` leaves the
    /// look out, as a bug.
    pub(crate) fn wait_for(&self, position: u64, pending: &Arc<Pending>, is_late: bool) -> bool {
        let mut waiters = self.waiters.lock();
        // The writer moves `sync` first and takes the lock then, so it finds the request or the request finds the position.
        if !is_late && self.sync.load(Ordering::Acquire) >= position {
            return false;
        }
        pending.add();
        waiters.push((position, pending.clone()));
        true
    }

    /// Everything before this position is on the medium. The writer of the ring calls it.
    pub(crate) fn advance(&self, position: u64) {
        self.sync.store(position, Ordering::Release);
        let mut waiters = self.waiters.lock();
        if waiters.is_empty() {
            return;
        }
        let done: Vec<_> = waiters.extract_if(.., |(wanted, _)| *wanted <= position).collect();
        drop(waiters);
        done.iter().for_each(|(_, pending)| pending.done());
    }
}
