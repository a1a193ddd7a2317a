//! The jobs of the open channel's operations.

use crate::geometry::ChunkId;

/// Where the contents of a page that is to be programmed are.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Source {
    /// In a write command.
    Write {
        /// The command's number in the device.
        command: u32,
    },
    /// In a copy.
    Copy {
        /// Number of the copy.
        copy: u64,
    },
}

/// The firmware's name for an operation in the machine.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Job {
    /// Reads units of one page.
    Read {
        /// The command's number in the device.
        command: u32,
    },
    /// Reads units of one page that are to be copied.
    CopyRead {
        /// Number of the copy.
        copy: u64,
    },
    /// Programs one page.
    Program {
        /// Where its contents are.
        source: Source,
        /// Position in the command's list of addresses of the page's first unit.
        first: u32,
    },
    /// Erases one block of a chunk.
    Erase {
        /// The command's number in the device.
        command: u32,
        /// The chunk.
        chunk: ChunkId,
    },
}

/// The context of this firmware.
pub(super) type Cx = crate::cx::Cx<Job>;
