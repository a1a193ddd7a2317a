//! What an open channel tells a host about its flash: geometry, chunks, notices and marks of blocks (commands §6).
//!
//! Place: answers and arguments of [`crate::command::Op`]. Addresses are those of the open channel: the units of a chunk have
//! consecutive numbers, and so have the chunks of a parallel unit.

use crate::oob::OobRecord;
use crate::units::{Address, Ppa};
use std::fmt;

/// Maximum number of physical addresses, or of pairs of them, that one command of the open channel names (commands §6).
pub const PLACES_MAX: usize = 64;

/// The generation of the interface of an open channel (open-channel §6.6).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum OpenInterface {
    /// OCSSD 1.2: a table of bad blocks; the device serves the units that the flash cannot give back yet.
    V12,
    /// OCSSD 2.0: a report of chunks, a copy command; the host serves those units.
    V20,
}

/// Geometry of an open channel (open-channel §6.1). Lengths are in mapping units, which are its sectors.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct OpenGeometry {
    /// Generation of the interface.
    pub interface: OpenInterface,
    /// Groups: channels.
    pub groups: u32,
    /// Parallel units of a group.
    pub parallel_units: u32,
    /// Chunks of a parallel unit.
    pub chunks: u32,
    /// Units of a chunk.
    pub chunk_units: u32,
    /// Bytes of a unit.
    pub unit_bytes: u32,
    /// Units of the smallest write; every write is a whole number of them.
    pub write_min: u32,
    /// Units of the write that uses all planes.
    pub write_best: u32,
    /// Number of the last units of an open chunk that the flash does not give back (`mw_cunits`).
    pub cached_units: u32,
    /// Chunks that may be open at a time; 0 is no limit.
    pub open_max: u32,
    /// Addresses that one command may name.
    pub places_max: u32,
}

impl OpenGeometry {
    /// Size of the report on the link, in bytes.
    pub const BYTES: u64 = 4096;
}

/// State of a chunk.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ChunkState {
    /// Nothing was written since its last reset.
    Free,
    /// Written in part.
    Open,
    /// Takes no more writes until it is reset: it is full, or was closed early.
    Closed,
    /// Bad; it takes no writes and no reset any more.
    Offline,
}

/// One chunk in a report (open-channel §6.1).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ChunkReport {
    /// State.
    pub state: ChunkState,
    /// Erases that the chunk has seen: 255 is the endurance where the device knows one; otherwise the number, at most 255.
    pub wear: u8,
    /// Address of its first unit.
    pub first: Ppa,
    /// Number of its units; of one that was closed early only those up to the last that was written.
    pub units: u32,
    /// Write pointer: the next unit to be written, counted within the chunk.
    pub pointer: u32,
}

impl ChunkReport {
    /// Size on the link, in bytes.
    pub const BYTES: u64 = 32;
}

/// Copies of units inside of the device (commands §6.10): the content of each source goes to the destination with the same
/// position.
#[derive(Clone, Debug, PartialEq)]
pub struct PpaCopy {
    /// Sources.
    pub sources: Box<[Ppa]>,
    /// Destinations, which obey the write pointers as those of a write do.
    pub destinations: Box<[Ppa]>,
    /// New out-of-band records, by destination; `None` copies those of the sources.
    pub records: Option<Box<[OobRecord]>>,
}

/// The reason of a notice.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum NoticeReason {
    /// A read needed much error correction: the chunk should be copied soon.
    Refresh,
    /// The chunk was closed early because a program of it has failed.
    ClosedEarly,
    /// The chunk became bad.
    Offline,
}

/// An entry of the log of notices (open-channel §6.1).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Notice {
    /// Number of the notice, counted from 1 since power-on.
    pub number: u64,
    /// First unit of the chunk.
    pub first: Ppa,
    /// Reason.
    pub reason: NoticeReason,
}

impl Notice {
    /// Size on the link, in bytes.
    pub const BYTES: u64 = 64;
    /// Notices that the log holds, and that one answer has at most; older ones are forgotten.
    pub const KEPT_MAX: usize = 64;
}

/// State of an erase block in the table of bad blocks (OCSSD 1.2).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum BlockMark {
    /// The block is good.
    #[default]
    Good,
    /// The block became bad.
    GrownBad,
    /// The block was bad from the factory.
    FactoryBad,
    /// The host keeps the block for purposes of its own.
    HostReserved,
}

impl BlockMark {
    /// Whether the block takes no more programs and no erase.
    pub fn is_bad(self) -> bool {
        matches!(self, Self::GrownBad | Self::FactoryBad)
    }
}

impl fmt::Display for BlockMark {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Good => "good",
            Self::GrownBad => "grown bad",
            Self::FactoryBad => "factory bad",
            Self::HostReserved => "host-reserved",
        })
    }
}

/// Sets marks in the table of bad blocks.
#[derive(Clone, Debug, PartialEq)]
pub struct MarkBlocks {
    /// The erase blocks, each named by any of its units.
    pub places: Box<[Ppa]>,
    /// The new mark.
    pub mark: BlockMark,
}

/// Why an open channel refuses or fails a command, beside the errors that other namespaces have too (commands §8).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum OpenError {
    /// The chunk was closed early and takes no more writes until it is reset. If a program of this command failed, others may be
    /// durable; otherwise nothing was changed.
    ClosedEarly,
    /// The chunk is bad. If a reset of this command failed, the contents of the chunk may be gone; otherwise nothing was changed.
    Offline,
    /// A reset of a chunk that is free; nothing was changed.
    InvalidReset,
    /// A read of a unit that is programmed, or being programmed, and that the flash does not give back before more of its chunk is
    /// written; nothing was changed.
    TooRecent,
}

impl OpenError {
    /// What has happened, for a message.
    pub(crate) fn describe(self, at: Address, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::ClosedEarly => write!(f, "the chunk of {at} was closed early"),
            Self::Offline => write!(f, "the chunk of {at} is offline"),
            Self::InvalidReset => write!(f, "reset of a free chunk at {at}"),
            Self::TooRecent => {
                write!(f, "{at} cannot be read before more of its chunk is written")
            }
        }
    }
}
