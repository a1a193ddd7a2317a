//! The jobs of the page-mapped firmware's operations.

use crate::segment::Job as SegmentJob;

/// An operation of this firmware.
pub(super) type Op = crate::flash::Op<Job>;

/// The firmware's name for an operation in the machine.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Job {
    /// Reads a part of a host read.
    HostRead { command: u32 },
    /// Reads old content for a write that covers only part of a unit.
    Modify { command: u32 },
    /// Reads the source of a copy for the SHARE at the head of the queue.
    ShareRead { nth: u32 },
    /// Reads valid units of a page of the plane's victim.
    GcRead,
    /// Programs a page of buffered units, by its number in the page table.
    UserPage(u32),
    /// Programs a page of GC survivors.
    GcPage(u32),
    /// Programs filler that completes a word line.
    Filler,
    /// Erases a victim.
    GcErase,
    /// Programs a page of the device's metadata.
    MetaPage(u32),
    /// Erases a metadata block.
    MetaErase,
    /// Reads a translation page into the cache.
    MapRead(u32),
    /// Writes a translation page, by its number in the table of such writes.
    MapWrite(u32),
    /// Reads a translation page of the victim among the blocks of such pages.
    MapGcRead,
    /// Erases that victim.
    MapErase,
    /// An operation of the append namespace that shares the device; this firmware never gets one.
    Segment(SegmentJob),
}
