//! What the operations of the page-mapped firmware do when they have ended.

/// An operation of this firmware.
pub(super) type Op = crate::flash::Op<Job>;

/// The firmware's name for an operation in the machine.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Job {
    /// Part of a host read.
    HostRead { command: u32 },
    /// Old content for a write that covers part of a unit.
    Modify { command: u32 },
    /// Valid units of a page of the plane's victim.
    GcRead,
    /// A page of buffered units, by its number in the page table.
    UserPage(u32),
    /// A page of survivors.
    GcPage(u32),
    /// Filler that completes a word line.
    Filler,
    /// Erase of a victim.
    GcErase,
    /// A page of the device's metadata.
    MetaPage(u32),
    /// Erase of a metadata block.
    MetaErase,
    /// A translation page comes into the cache.
    MapRead(u32),
    /// A translation page is written, by its number in the table of such writes.
    MapWrite(u32),
    /// A translation page of the victim among the blocks of such pages.
    MapGcRead,
    /// Erase of that victim.
    MapErase,
}
