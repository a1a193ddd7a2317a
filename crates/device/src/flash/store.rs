//! Interfaces for contents outside of the device model: a medium that outlives the process ([`Store`]), and contents for which
//! there is no memory ([`Overflow`]).
//!
//! Place: [`super::media`] tells them what happens to the medium; their implementations know no firmware.

use super::oob::UnitImage;
use crate::geometry::PageAddr;
use flashweir_core::{Lpn, Payload, Ppa};
use flashweir_ftl::BlockId;
use flashweir_ftl::recovery::{Change, ShareRecord, TrimRecord};
use std::fmt;
use std::sync::{Arc, Mutex};

/// What outlived the last power cut beside the flash: what the capacitor saved, or what an NVRAM held.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct SaveArea {
    /// Dirty units: logical page, sequence number, content.
    pub units: Vec<(Lpn, u64, Payload)>,
    /// Deallocations that were not in the log.
    pub trims: Vec<TrimRecord>,
    /// SHAREs that were not in the log.
    pub shares: Vec<ShareRecord>,
}

impl SaveArea {
    /// Whether nothing was saved.
    pub fn is_empty(&self) -> bool {
        self.units.is_empty() && self.trims.is_empty() && self.shares.is_empty()
    }

    /// Adds an item.
    pub fn add(&mut self, saved: Saved) {
        match saved {
            Saved::Unit(lpn, seq, payload) => self.units.push((lpn, seq, payload)),
            Saved::Trim(trim) => self.trims.push(trim),
            Saved::Share(share) => self.shares.push(share),
        }
    }
}

/// An item that the capacitor has to protect from now on, or that an NVRAM holds.
#[derive(Clone, Debug, PartialEq)]
pub enum Saved {
    /// A version in the buffer: logical page, sequence number, content.
    Unit(Lpn, u64, Payload),
    /// A deallocation that is not in the log yet.
    Trim(TrimRecord),
    /// A SHARE that is not in the log yet.
    Share(ShareRecord),
}

impl Saved {
    /// A change of the map.
    pub(crate) fn of(change: &Change) -> Self {
        match change {
            Change::Trim(trim) => Self::Trim(*trim),
            Change::Share(share) => Self::Share(share.clone()),
        }
    }
}

/// A page as a [`Store`] receives it.
#[derive(Clone, Copy, Debug)]
pub struct PageImage<'a> {
    /// Address of the page.
    pub at: PageAddr,
    /// Number of erases that its block had seen.
    pub erases: u32,
    /// Number of the block's opening.
    pub opened: u64,
    /// The units of the page, as many as a page holds.
    pub units: &'a [UnitImage],
}

/// State of a block apart from its pages.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct BlockHealth {
    /// Number of erases that the block has seen, interrupted ones included.
    pub erases: u32,
    /// Whether the block is bad, so that it takes no more data.
    pub bad: bool,
    /// Whether its last erase was interrupted.
    pub erase_torn: bool,
}

/// The error of a store that could not keep or return something.
#[derive(Debug)]
pub struct StoreError {
    /// The operation that failed, with the file's name.
    pub what: String,
    /// Error of the host's operating system.
    pub error: std::io::Error,
}

impl fmt::Display for StoreError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {}", self.what, self.error)
    }
}
impl std::error::Error for StoreError {}

/// Result of a store's method.
pub type Stored<T = ()> = Result<T, StoreError>;

/// A medium outside of this process. Each method is one change of the medium. When it has returned, the change outlives the
/// process; if the process ends inside it, the change has happened, has not happened, or has left what an interrupted operation of
/// the medium may leave. Changes persist in the order of the calls.
pub trait Store: fmt::Debug + Send {
    /// A page was programmed. Pages of a block are programmed in order.
    fn program(&mut self, page: &PageImage<'_>) -> Stored;

    /// A program left page `at` unreadable, and the pages from `lost_from` on with it.
    fn spoil(&mut self, at: PageAddr, erases: u32, opened: u64, lost_from: u32) -> Stored;

    /// All pages of a block are gone; `health.erases` counts the erase.
    fn erase(&mut self, block: BlockId, health: BlockHealth) -> Stored;

    /// A block was marked bad.
    fn mark(&mut self, block: BlockId, health: BlockHealth) -> Stored;

    /// Content of unit `unit` of a page that was programmed when its block had seen `erases` erases; `None` if it
    /// cannot be read or fails its checksum.
    fn read(&mut self, at: PageAddr, unit: u32, erases: u32) -> Option<Payload>;

    /// The capacitor or an NVRAM protects these items as well; returns whether it is time for [`Self::begin_journal`].
    fn journal(&mut self, entries: &[Saved]) -> Stored<bool>;

    /// From now on they protect `area` and nothing that it was told before.
    fn begin_journal(&mut self, area: &SaveArea) -> Stored;
}

/// A store that several clones of a medium share: the one from before a cut, and the one after.
pub type SharedStore = Arc<Mutex<dyn Store>>;

/// A place for contents for which there is no memory. The content of a physical unit has one place; no unit is read that was not
/// written or that was released.
pub trait Overflow: fmt::Debug + Send {
    /// Keeps the content of a unit.
    fn write(&mut self, at: Ppa, bytes: &[u8]) -> Stored;

    /// Reads the content back into a buffer of its length.
    fn read(&mut self, at: Ppa, bytes: &mut [u8]) -> Stored;

    /// The contents of these units are not needed any more.
    fn release(&mut self, first: Ppa, count: u64);
}
