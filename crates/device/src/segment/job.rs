//! The jobs of the append namespace's operations.

use flashweir_ftl::PlaneId;

/// An operation of the append namespace.
pub(super) type Op = crate::flash::Op<Job>;

/// The name of an operation in the machine.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Job {
    /// Reads a part of a host read.
    Read { command: u32 },
    /// Programs a page of a segment.
    Program { segment: u32, page: u32 },
    /// Erases a block.
    Erase,
    /// Reads the next page of the block that the plane moves.
    MoveRead(PlaneId),
    /// Programs it in the other block.
    MoveProgram(PlaneId),
    /// Programs a page of the log, by its number among those under way.
    Log(u32),
    /// Erases a block of the log.
    LogErase,
}
