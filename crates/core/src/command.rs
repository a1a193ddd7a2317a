//! The command set: the narrow waist between host and device (commands §2).
//!
//! The types cover the commands of all five systems. A device that lacks a command answers
//! [`DeviceError::NotSupported`] and changes nothing.
//!
//! Invariants: a command is accepted at most once and completed exactly once. The host assigns `id`; the device assigns a
//! sequence number of its own at acceptance, which no completion carries (commands §3.4).

use crate::oob::OobRecord;
pub use crate::open::PLACES_MAX;
use crate::open::{BlockMark, ChunkReport, MarkBlocks, Notice, OpenError, OpenGeometry, PpaCopy};
use crate::random::mix;
use crate::units::{Address, LBA_BYTES, Lba, Lpn, Ppa};
pub use crate::units::{SegmentId, StreamId};
use std::fmt;
use std::ops::{Deref, Range};
use std::sync::Arc;

/// Number of the page-mapped namespace (commands §1.7).
pub const PAGE_NAMESPACE: u16 = 0;
/// Number of the append namespace (commands §1.7).
pub const APPEND_NAMESPACE: u16 = 1;
/// Number of the open channel (commands §1.7).
pub const OPEN_NAMESPACE: u16 = 2;
/// Size of a physical address on the link, in bytes.
const PLACE_BYTES: u64 = 8;

/// The host's name for a command; unique among the commands in flight.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct CommandId(pub u64);

/// The owner of a write (an inode, a transaction, a log), opaque to the device; 0 is none (range-flush §5.2).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Tag(pub u64);

/// The placement handle of a write: data of one handle share erase blocks with no other data of hosts (commands §4.14). 0 is the
/// default, and the only one of a device without placement.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Handle(pub u8);

impl Handle {
    /// Most handles of a device.
    pub const COUNT_MAX: u8 = 32;
}

/// How an ordered command relates to its stream's open epoch.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Order {
    /// Joins the open epoch.
    Within,
    /// Joins the open epoch and closes it.
    Barrier,
}

/// The position of an ordered command in its stream, for a stream whose commands arrive through several queues
/// (barriers §4.3).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct EpochStamp {
    /// Number of its epoch, counted from 0 at power-on, modulo 2^32; stamped at submission.
    pub number: u32,
    /// On the barrier only: number of commands in the epoch, the barrier included.
    pub members: Option<u32>,
}

/// One command, as it crosses the link.
#[derive(Clone, Debug, PartialEq)]
pub struct Command {
    /// The host's name for the command.
    pub id: CommandId,
    /// Submission queue.
    pub queue: u16,
    /// Namespace: [`PAGE_NAMESPACE`], [`APPEND_NAMESPACE`] or [`OPEN_NAMESPACE`].
    pub ns: u16,
    /// Order domain; `None` for an orderless command.
    pub stream: Option<StreamId>,
    /// Role in the stream's epoch; requires a stream.
    pub order: Option<Order>,
    /// Number of its epoch; without it the commands of a stream are ordered as they arrive. Requires an order.
    pub epoch: Option<EpochStamp>,
    /// Owners of a write.
    pub tags: [Tag; 2],
    /// Placement of a write.
    pub handle: Handle,
    /// Force unit access: the command completes only when its data is durable.
    pub fua: bool,
    /// Operation and its arguments.
    pub op: Op,
}

/// The operation of a command. Ranges are in sectors of 512 bytes.
#[derive(Clone, Debug, PartialEq)]
pub enum Op {
    /// Read a range.
    Read { lba: Lba, blocks: u32 },
    /// Write a range.
    Write { lba: Lba, blocks: u32, data: Data },
    /// Make a range read as zeros.
    WriteZeroes { lba: Lba, blocks: u32 },
    /// Deallocate a range; it reads as zeros. Only whole mapping units are deallocated; the rest is a hint.
    Trim { lba: Lba, blocks: u32 },
    /// Make everything durable that had completed before.
    Flush,
    /// Make a subset of the buffer durable (commands §4.6).
    RFlush(Box<RangeFlush>),
    /// A zero-length barrier: closes the stream's open epoch (commands §4.7).
    Barrier,
    /// Atomic remap of every pair (commands §4.8).
    Share(Box<[SharePair]>),
    /// Write at the segment's write pointer (commands §5.1).
    SegWrite { segment: SegmentId, offset: u32, blocks: u32, data: Data },
    /// Append to the segment; the completion carries the offset.
    SegAppend { segment: SegmentId, blocks: u32, data: Data },
    /// Deallocate a whole segment.
    SegTrim { segment: SegmentId },
    /// Report state, write pointer, durable write pointer and generation of a segment.
    SegReport { segment: SegmentId },
    /// Open channel: read physical units; `blocks` is their total length in sectors (commands §6.1).
    PpaRead { ppas: Box<[Ppa]>, blocks: u32 },
    /// Open channel: program whole write units, each unit with its out-of-band record (commands §6.2). Boxed, because
    /// every command has the size of the largest variant.
    PpaWrite(Box<PpaWrite>),
    /// Open channel: reset the chunks that contain these units, which erases their blocks (commands §6.3).
    PpaErase(Box<[Ppa]>),
    /// Open channel: copy units inside of the device (commands §6.10).
    PpaCopy(Box<PpaCopy>),
    /// Open channel: report the geometry (commands §6.11).
    OpenGeometry,
    /// Open channel: report `count` chunks from number `first` on, counted over the device (commands §6.12).
    ChunkReport { first: u32, count: u32 },
    /// Open channel: report the notices with larger numbers than `after` (commands §6.13).
    ChunkNotices { after: u64 },
    /// Open channel: the table of bad blocks of a parallel unit (commands §6.14).
    BlockMarks { parallel_unit: u32 },
    /// Open channel: set marks in the table of bad blocks (commands §6.15).
    MarkBlocks(Box<MarkBlocks>),
}

/// A program of whole write units of the open channel.
#[derive(Clone, Debug, PartialEq)]
pub struct PpaWrite {
    /// Physical addresses, in the order of the data.
    pub ppas: Box<[Ppa]>,
    /// Total length, in sectors of 512 bytes.
    pub blocks: u32,
    /// The out-of-band record of each unit.
    pub records: Box<[OobRecord]>,
    /// Contents.
    pub data: Data,
}

impl Op {
    /// Whether the command reads or reports and changes nothing. A FLUSH is no such command.
    pub fn only_reads(&self) -> bool {
        matches!(
            self,
            Self::Read { .. }
                | Self::SegReport { .. }
                | Self::PpaRead { .. }
                | Self::OpenGeometry
                | Self::ChunkReport { .. }
                | Self::ChunkNotices { .. }
                | Self::BlockMarks { .. }
        )
    }
}

impl From<PpaWrite> for Op {
    fn from(write: PpaWrite) -> Self {
        Self::PpaWrite(Box::new(write))
    }
}

/// The selection of a range flush: the union of all its selectors.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct RangeFlush {
    /// Ranges of sectors, at most 256.
    pub ranges: Vec<(Lba, u32)>,
    /// Tags, at most 16.
    pub tags: Vec<Tag>,
    /// Prefixes of append segments: everything below the offset.
    pub segments: Vec<(SegmentId, u32)>,
}

impl RangeFlush {
    /// Maximum number of ranges in one command.
    pub const RANGES_MAX: usize = 256;
    /// Maximum number of tags in one command.
    pub const TAGS_MAX: usize = 16;

    /// Refuses a range flush that is invalid in a page-mapped namespace of `capacity_blocks` sectors (commands §4.6).
    ///
    /// # Errors
    /// Fails for too many selectors, tag 0, a range that leaves the namespace, or segments, which this namespace does
    /// not have.
    pub fn check(&self, capacity_blocks: u64) -> Result<(), DeviceError> {
        if self.ranges.len() > Self::RANGES_MAX {
            return Err(DeviceError::InvalidField("a range flush has at most 256 ranges"));
        }
        if self.tags.len() > Self::TAGS_MAX {
            return Err(DeviceError::InvalidField("a range flush has at most 16 tags"));
        }
        if self.tags.contains(&Tag(0)) {
            return Err(DeviceError::InvalidField("tag 0 is no tag"));
        }
        if !self.segments.is_empty() {
            return Err(DeviceError::NotSupported("append-only segments"));
        }
        self.ranges.iter().try_for_each(|&(lba, blocks)| check_range(lba, blocks, capacity_blocks))
    }
}

/// Refuses a range that leaves a namespace of `capacity_blocks` sectors of 512 bytes.
///
/// # Errors
/// [`DeviceError::OutOfRange`], also where the end of the range overflows.
#[inline]
pub fn check_range(lba: Lba, blocks: u32, capacity_blocks: u64) -> Result<(), DeviceError> {
    match lba.0.checked_add(u64::from(blocks)) {
        Some(end) if end <= capacity_blocks => Ok(()),
        _ => Err(OutOfRange { at: Address::Lba(lba), count: blocks, capacity: capacity_blocks }.into()),
    }
}

/// One pair of a SHARE: `dst` is remapped to the physical page of `src`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SharePair {
    /// First sector of the remapped range.
    pub dst: Lba,
    /// First sector of the range whose content it gets.
    pub src: Lba,
    /// Length of both ranges, in sectors.
    pub blocks: u32,
}

/// The data of a write.
#[derive(Clone, Debug, PartialEq)]
pub enum Data {
    /// All zeros.
    Zero,
    /// Synthetic: each mapping unit holds the [`pattern`] of this operation and of the unit's own number.
    Pattern(u64),
    /// Real bytes, as long as the range.
    Bytes(Arc<[u8]>),
    /// The contents of whole mapping units, in order; for hosts that move contents instead of bytes.
    Units(Contents),
}

impl Data {
    /// Returns the content of unit `number`: the `nth` entry of [`Self::Units`], or the range `bytes` of
    /// [`Self::Bytes`].
    #[inline]
    pub fn unit(&self, number: Lpn, nth: usize, bytes: Range<usize>) -> Payload {
        match self {
            Self::Zero => Payload::Zero,
            Self::Pattern(operation) => Payload::Tag(pattern(*operation, number)),
            Self::Bytes(all) if bytes == (0..all.len()) => Payload::Bytes(Arc::clone(all)),
            Self::Bytes(all) => Payload::Bytes(Arc::from(&all[bytes])),
            Self::Units(units) => units[nth].clone(),
        }
    }
}

/// The contents of consecutive mapping units. A single unit, the most frequent case, is stored inline and needs no
/// allocation. A clone shares several units.
#[derive(Clone)]
pub enum Contents {
    /// Content of one unit.
    One(Payload),
    /// Contents of any number of units.
    Many(Arc<Vec<Payload>>),
}

impl Contents {
    /// Appends one unit.
    pub fn push(&mut self, payload: Payload) {
        match self {
            Self::One(first) => *self = vec![std::mem::take(first), payload].into(),
            Self::Many(payloads) => Arc::make_mut(payloads).push(payload),
        }
    }
}

impl Deref for Contents {
    type Target = [Payload];

    #[inline]
    fn deref(&self) -> &[Payload] {
        match self {
            Self::One(payload) => std::slice::from_ref(payload),
            Self::Many(payloads) => payloads,
        }
    }
}

impl From<Vec<Payload>> for Contents {
    fn from(payloads: Vec<Payload>) -> Self {
        Self::Many(Arc::new(payloads))
    }
}

impl FromIterator<Payload> for Contents {
    fn from_iter<I: IntoIterator<Item = Payload>>(payloads: I) -> Self {
        let mut payloads = payloads.into_iter();
        match (payloads.next(), payloads.next()) {
            (Some(only), None) => Self::One(only),
            (first, second) => first.into_iter().chain(second).chain(payloads).collect::<Vec<_>>().into(),
        }
    }
}

impl PartialEq for Contents {
    fn eq(&self, other: &Self) -> bool {
        self[..] == other[..]
    }
}

impl fmt::Debug for Contents {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_list().entries(self.iter()).finish()
    }
}

/// The content of one mapping unit.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub enum Payload {
    /// Reads as zeros.
    #[default]
    Zero,
    /// Synthetic content, 8 bytes that stand for a whole unit (see [`Payload::expand`]).
    Tag(u64),
    /// Real bytes.
    Bytes(Arc<[u8]>),
}

/// Returns the tag of the unit `lpn` written by operation `operation`. The tag is non-linear in both, so that no
/// checksum over several of them cancels (crash-laboratory §3.6), and differs for each unit, so that a misdirected read
/// shows.
#[inline]
pub const fn pattern(operation: u64, lpn: Lpn) -> u64 {
    mix(mix(operation) ^ lpn.0.rotate_left(32))
}

impl Payload {
    /// Writes the bytes of one whole unit that the payload stands for into `out`.
    pub fn expand(&self, out: &mut [u8]) {
        match self {
            Self::Zero => out.fill(0),
            Self::Bytes(bytes) => out.copy_from_slice(bytes),
            Self::Tag(tag) => {
                for (i, word) in out.chunks_mut(8).enumerate() {
                    let bytes = mix(tag ^ i as u64).to_le_bytes();
                    word.copy_from_slice(&bytes[..word.len()]);
                }
            }
        }
    }

    /// Returns a 64-bit identity of the content: equal contents of the same kind have equal identities.
    pub fn identity(&self) -> u64 {
        match self {
            Self::Zero => 0,
            Self::Tag(tag) => *tag,
            Self::Bytes(bytes) if bytes.iter().all(|&b| b == 0) => 0,
            Self::Bytes(bytes) => bytes.chunks(8).fold(bytes.len() as u64, |hash, word| {
                let mut buffer = [0; 8];
                buffer[..word.len()].copy_from_slice(word);
                mix(hash.rotate_left(5) ^ u64::from_le_bytes(buffer))
            }),
        }
    }
}

/// The device's answer to one command.
#[derive(Clone, Debug, PartialEq)]
pub struct Completion {
    /// Id of the completed command.
    pub id: CommandId,
    /// Submission queue of the command.
    pub queue: u16,
    /// Outcome of the command.
    pub result: Result<Done, DeviceError>,
}

/// A successful answer.
#[derive(Clone, Debug, PartialEq)]
pub enum Done {
    /// Success without a result.
    Ok,
    /// The mapping units that a read touched, in order; empty where contents are not tracked.
    Data(Box<[Payload]>),
    /// Result of an append.
    Appended {
        /// First sector of the appended range within the segment.
        offset: u32,
    },
    /// State of a segment. Boxed, because every answer has the size of the largest variant.
    Segment(Box<SegmentReport>),
    /// Result of a read of the open channel. Boxed, because every answer has the size of the largest variant.
    Units(Box<Units>),
    /// Geometry of the open channel.
    Geometry(Box<OpenGeometry>),
    /// Chunks, in order.
    Chunks(Box<[ChunkReport]>),
    /// Notices, oldest first.
    Notices(Box<[Notice]>),
    /// Marks of the erase blocks of a parallel unit: block by block, and of each block plane by plane.
    Marks(Box<[BlockMark]>),
}

/// State of a segment (commands §5.4).
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct SegmentReport {
    /// The sector behind the last one that was written.
    pub write_pointer: u32,
    /// Sectors below this one survive a power cut, as far as they were written.
    pub durable_pointer: u32,
    /// Number of deallocations so far.
    pub generation: u32,
    /// First sector of each mapping unit below the write pointer that was not written (write-once mode).
    pub gaps: Vec<u32>,
}

/// Physical units with their out-of-band records, in the order of the command's addresses.
#[derive(Clone, Debug, PartialEq)]
pub struct Units {
    /// Contents; empty where contents are not tracked.
    pub data: Vec<Payload>,
    /// Out-of-band records.
    pub records: Vec<OobRecord>,
    /// Those of the addresses whose read needed much error correction: their chunks should be copied soon.
    pub refresh: Vec<Ppa>,
}

/// Reason why a command failed. A failed command promises nothing; what it may still have changed is stated per
/// variant.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum DeviceError {
    /// The device lacks this command; nothing was changed.
    NotSupported(&'static str),
    /// The range leaves the namespace; nothing was changed. Boxed, because every answer has the size of the largest
    /// variant.
    OutOfRange(Box<OutOfRange>),
    /// A field contradicts another; nothing was changed.
    InvalidField(&'static str),
    /// The medium cannot return the data at this address.
    Uncorrectable { at: Address },
    /// Address of the first page that could not be made durable; others of the command may be durable.
    WriteFault { at: Address },
    /// No spare erase blocks are left; reads are still served.
    ReadOnly,
    /// A write that is not at the write pointer, which is `expected`, in the unit of the address; nothing was changed.
    OutOfOrder { at: Address, expected: u32 },
    /// A write of a unit that is written already; nothing was changed.
    Overwrite { at: Address },
    /// A write of part of a page, or of a part of a write unit; nothing was changed.
    Misaligned { at: Address },
    /// An error that only an open channel has; its kind says what was changed.
    Open { at: Address, what: OpenError },
    /// A read of a unit that was not written since its last deallocation or erase.
    NotWritten { at: Address },
    /// A first write to a segment or chunk while as many as the device allows are written in part.
    TooManyOpen { limit: u32 },
    /// The source of a SHARE has no content.
    SourceUnmapped { lba: Lba },
    /// A destination occurs twice in a SHARE.
    InvalidBatch { lba: Lba },
    /// Order of offsets and order of epochs contradict each other (contract §9.12).
    OrderConflict,
    /// A member of an earlier epoch could not be written (barriers §3.5).
    StreamFailed(StreamId),
}

impl fmt::Display for DeviceError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::NotSupported(what) => write!(f, "the device does not support {what}"),
            Self::OutOfRange(range) => range.fmt(f),
            Self::InvalidField(what) => write!(f, "invalid command: {what}"),
            Self::Uncorrectable { at } => write!(f, "uncorrectable read at {at}"),
            Self::WriteFault { at } => write!(f, "write failed at {at}"),
            Self::ReadOnly => write!(f, "the device is read-only: it has no spare blocks left"),
            Self::OutOfOrder { at, expected } => {
                write!(f, "write out of order at {at}: the write pointer is {expected}")
            }
            Self::Overwrite { at } => write!(f, "{at} is written already, and was not erased since"),
            Self::Misaligned { at } => write!(f, "a write of a part of a page or write unit at {at}"),
            Self::Open { at, what } => what.describe(*at, f),
            Self::NotWritten { at } => write!(f, "{at} was never written"),
            Self::TooManyOpen { limit } => {
                write!(
                    f,
                    "{limit} segments or chunks are written in part already, the most that the device allows"
                )
            }
            Self::SourceUnmapped { lba } => write!(f, "source sector {} has no content", lba.0),
            Self::InvalidBatch { lba } => write!(f, "destination sector {} occurs twice", lba.0),
            Self::OrderConflict => write!(f, "offset order contradicts epoch order"),
            Self::StreamFailed(stream) => write!(f, "stream {} has failed", stream.0),
        }
    }
}
impl std::error::Error for DeviceError {}

/// A range that leaves its namespace.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct OutOfRange {
    /// First address of the range.
    pub at: Address,
    /// Length of the range, in the unit of the address.
    pub count: u32,
    /// Capacity of the namespace, in the unit of the address.
    pub capacity: u64,
}

impl From<OutOfRange> for DeviceError {
    fn from(range: OutOfRange) -> Self {
        Self::OutOfRange(Box::new(range))
    }
}

impl fmt::Display for OutOfRange {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { at, count, capacity } = self;
        write!(f, "{at} + {count} is outside of the namespace, which has {capacity}")
    }
}

impl Command {
    /// Whether it is the last member of its epoch.
    pub fn closes_epoch(&self) -> bool {
        self.op == Op::Barrier || self.order == Some(Order::Barrier)
    }

    /// Makes an orderless, untagged command on queue 0 of namespace 0.
    pub fn new(id: u64, op: Op) -> Self {
        Self {
            id: CommandId(id),
            queue: 0,
            ns: 0,
            stream: None,
            order: None,
            epoch: None,
            tags: [Tag(0); 2],
            handle: Handle(0),
            fua: false,
            op,
        }
    }

    /// Returns the number of bytes that travel from host to device with this command.
    pub fn bytes_down(&self) -> u64 {
        match &self.op {
            Op::Write { blocks, .. } | Op::SegWrite { blocks, .. } | Op::SegAppend { blocks, .. } => {
                u64::from(*blocks) * LBA_BYTES
            }
            Op::PpaWrite(write) => {
                write.ppas.len() as u64 * PLACE_BYTES
                    + write.records.len() as u64 * OobRecord::BYTES
                    + u64::from(write.blocks) * LBA_BYTES
            }
            Op::PpaRead { ppas, .. } | Op::PpaErase(ppas) => ppas.len() as u64 * PLACE_BYTES,
            Op::PpaCopy(copy) => {
                (copy.sources.len() + copy.destinations.len()) as u64 * PLACE_BYTES
                    + copy.records.as_ref().map_or(0, |records| records.len() as u64 * OobRecord::BYTES)
            }
            Op::MarkBlocks(marks) => marks.places.len() as u64 * PLACE_BYTES,
            _ => 0,
        }
    }

    /// Returns the number of bytes that travel from device to host with its completion.
    pub fn bytes_up(&self) -> u64 {
        match &self.op {
            Op::Read { blocks, .. } => u64::from(*blocks) * LBA_BYTES,
            Op::PpaRead { ppas, blocks } => {
                ppas.len() as u64 * OobRecord::BYTES + u64::from(*blocks) * LBA_BYTES
            }
            Op::OpenGeometry => OpenGeometry::BYTES,
            Op::ChunkReport { count, .. } => u64::from(*count) * ChunkReport::BYTES,
            Op::ChunkNotices { .. } => Notice::KEPT_MAX as u64 * Notice::BYTES,
            // A byte for each block, and a page of the table at least.
            Op::BlockMarks { .. } => OpenGeometry::BYTES,
            _ => 0,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn contents_are_equal_however_they_are_kept() {
        let of = |count: u64| (0..count).map(Payload::Tag);
        for count in 0..4 {
            let mut grown: Contents = of(count.min(1)).collect();
            of(count).skip(1).for_each(|payload| grown.push(payload));
            let collected: Contents = of(count).collect();
            let whole = Contents::from(of(count).collect::<Vec<_>>());
            assert_eq!((&grown, &collected), (&whole, &grown));
            assert!(whole.iter().cloned().eq(of(count)), "{whole:?}");
            assert_ne!(whole, of(count + 1).collect());
        }
    }

    /// Commands and answers are copied several times on their way, so rare and large contents are boxed.
    #[test]
    fn commands_and_answers_are_small() {
        assert!(size_of::<Op>() <= 48, "{} bytes", size_of::<Op>());
        assert!(size_of::<Completion>() <= 48, "{} bytes", size_of::<Completion>());
    }

    #[test]
    fn patterns_differ_by_operation_and_unit() {
        assert_ne!(pattern(1, Lpn(2)), pattern(2, Lpn(1)));
        assert_ne!(pattern(1, Lpn(1)), pattern(1, Lpn(2)));
    }

    #[test]
    fn a_tag_expands_to_the_same_bytes_each_time() {
        let (mut a, mut b) = ([0; 100], [1; 100]);
        Payload::Tag(42).expand(&mut a);
        Payload::Tag(42).expand(&mut b);
        assert_eq!(a, b);
        assert!(a.windows(8).all(|w| w != [0; 8]));
    }

    #[test]
    fn zero_bytes_have_the_identity_of_zero() {
        assert_eq!(Payload::Bytes(Arc::from(vec![0; 4096])).identity(), Payload::Zero.identity());
        assert_ne!(Payload::Bytes(Arc::from(vec![1; 4096])).identity(), Payload::Zero.identity());
    }
}
