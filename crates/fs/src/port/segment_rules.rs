//! What disks of append segments refuse (append-segments §2), whatever keeps their blocks.
//!
//! Place in the data flow: [`Segments`](super::Segments) and [`SegmentImage`](super::SegmentImage) ask before they change anything.

use super::{BLOCK_BYTES, Block, Ticket};
use flashweir_core::command::{OutOfRange, SegmentId};
use flashweir_core::units::LBA_BYTES;
use flashweir_core::{Address, DeviceError};

/// Sectors of a block.
const LBAS: u64 = BLOCK_BYTES as u64 / LBA_BYTES;

/// Number and size of the segments of a disk.
#[derive(Clone, Copy, Debug)]
pub(super) struct Rules {
    pub(super) segments: u32,
    /// Blocks of a segment.
    pub(super) segment_blocks: u32,
}

impl Rules {
    pub(super) fn capacity_blocks(self) -> u64 {
        u64::from(self.segments) * u64::from(self.segment_blocks)
    }

    /// Segment and offset of a block, and its address in errors.
    pub(super) fn place(self, block: Block) -> (usize, u32, Address) {
        let blocks = u64::from(self.segment_blocks);
        let (segment, offset) = ((block.0 / blocks) as u32, (block.0 % blocks) as u32);
        let at = Address::Seg { segment: SegmentId(segment), offset: (u64::from(offset) * LBAS) as u32 };
        (segment as usize, offset, at)
    }

    /// Refuses what leaves the disk.
    pub(super) fn check(self, block: Block, count: u64) -> Result<(), DeviceError> {
        let capacity = self.capacity_blocks();
        if block.0.checked_add(count).is_some_and(|end| end <= capacity) {
            return Ok(());
        }
        let count = u32::try_from(count.saturating_mul(LBAS)).unwrap_or(u32::MAX);
        Err(OutOfRange { at: self.place(block).2, count, capacity: capacity * LBAS }.into())
    }

    /// Returns the segment of a write. Refuses one that is not at the write pointer, or goes past the end of its segment.
    pub(super) fn check_write(
        self,
        block: Block,
        count: u64,
        pointer: impl FnOnce(usize) -> u32,
    ) -> Result<usize, DeviceError> {
        self.check(block, count)?;
        let (segment, offset, at) = self.place(block);
        let pointer = pointer(segment);
        if offset != pointer {
            return Err(DeviceError::OutOfOrder { at, expected: (u64::from(pointer) * LBAS) as u32 });
        }
        if u64::from(offset) + count > u64::from(self.segment_blocks) {
            return Err(DeviceError::InvalidField("a write goes past the end of its segment"));
        }
        Ok(segment)
    }

    /// Returns the segment of a discard. Refuses one that is not of a whole segment.
    pub(super) fn check_discard(self, block: Block, count: u32) -> Result<usize, DeviceError> {
        self.check(block, count.into())?;
        match self.place(block) {
            (segment, 0, _) if count == self.segment_blocks => Ok(segment),
            (.., at) => Err(DeviceError::Misaligned { at }),
        }
    }

    /// Answers the question where a segment is written next.
    pub(super) fn report(self, segment: SegmentId, pointer: impl FnOnce(usize) -> u32) -> Ticket {
        let first = Block(u64::from(segment.0) * u64::from(self.segment_blocks));
        let known = self.check(first, self.segment_blocks.into());
        let (progress, ticket) = Ticket::new();
        if known.is_ok() {
            progress.at_offset(pointer(segment.0 as usize));
        }
        progress.complete(known.map(|()| Box::default()).map_err(Into::into));
        ticket
    }
}
