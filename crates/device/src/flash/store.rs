//! Where a medium lives outside of this process ([`Store`]), and where contents are for which there is no memory ([`Overflow`]).
//!
//! Place: [`super::media`] tells them what happens to the medium; who implements them knows no firmware.

use super::oob::UnitImage;
use crate::geometry::PageAddr;
use flashweir_core::{Lpn, Payload, Ppa};
use flashweir_ftl::BlockId;
use flashweir_ftl::recovery::TrimRecord;
use std::fmt;
use std::sync::{Arc, Mutex};

/// What the capacitor saved at the last cut.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct SaveArea {
    /// Dirty units: page, sequence number, content.
    pub units: Vec<(Lpn, u64, Payload)>,
    /// Deallocations that were not in the log.
    pub trims: Vec<TrimRecord>,
}

/// What the capacitor has to protect from now on.
#[derive(Clone, Debug, PartialEq)]
pub enum Saved {
    /// A version in the buffer: page, sequence number, content.
    Unit(Lpn, u64, Payload),
    /// A deallocation that is not in the log yet.
    Trim(TrimRecord),
}

/// A page as a [`Store`] gets it.
#[derive(Clone, Copy, Debug)]
pub struct PageImage<'a> {
    /// Where it is.
    pub at: PageAddr,
    /// Erases that its block had seen.
    pub erases: u32,
    /// Number of the block's opening.
    pub opened: u64,
    /// As many units as a page holds.
    pub units: &'a [UnitImage],
}

/// What is known of a block apart from its pages.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct BlockHealth {
    /// Erases that it has seen, interrupted ones included.
    pub erases: u32,
    /// It takes no more data.
    pub bad: bool,
    /// Its last erase was interrupted.
    pub erase_torn: bool,
}

/// Why a store could not keep something.
#[derive(Debug)]
pub struct StoreError {
    /// What was being done, with the file's name.
    pub what: String,
    /// What the host's system said.
    pub error: std::io::Error,
}

impl fmt::Display for StoreError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {}", self.what, self.error)
    }
}
impl std::error::Error for StoreError {}

/// What a store answers.
pub type Stored<T = ()> = Result<T, StoreError>;

/// Where a medium lives outside of this process. Each method is one change of the medium; when it has returned, the
/// change outlives the process, and when the process ends inside, the change has happened, has not, or has left what
/// an interrupted operation of the medium may leave. Changes outlive it in the order of the calls.
pub trait Store: fmt::Debug + Send {
    /// A page was programmed. Its block is programmed in order.
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

    /// The capacitor protects these as well; says whether it is time for [`Self::begin_journal`].
    fn journal(&mut self, entries: &[Saved]) -> Stored<bool>;

    /// From now on the capacitor protects this and nothing older.
    fn begin_journal(&mut self, area: &SaveArea) -> Stored;
}

/// A store that several clones of a medium share: the one from before a cut, and the one after.
pub type SharedStore = Arc<Mutex<dyn Store>>;

/// Where contents are for which there is no memory. The content of a physical unit has one place; nothing is read that was not
/// written, and nothing that was released.
pub trait Overflow: fmt::Debug + Send {
    /// Keeps the content of a unit.
    fn write(&mut self, at: Ppa, bytes: &[u8]) -> Stored;

    /// Reads it back, as long as it was.
    fn read(&mut self, at: Ppa, bytes: &mut [u8]) -> Stored;

    /// Nobody will ask for the contents of these units.
    fn release(&mut self, first: Ppa, count: u64);
}
