//! Reasons for which an operation on the state stops: a block has to be read first, or it failed.

use super::super::layout::{Addr, Nid, SegNo};
use crate::vfs::Errno;

/// Why an operation stopped.
#[derive(Debug)]
pub(crate) enum Stop {
    /// It needs an inode.
    Inode(Nid),
    /// It needs a node of an inode.
    Node { nid: Nid, ino: Nid, offset: u32 },
    /// It needs a node that is not an inode, in whatever file it is.
    AnyNode(Nid),
    /// It needs a block of a directory.
    Block { ino: Nid, index: u64, addr: Addr },
    /// It needs the summary of a segment.
    Summary(SegNo),
    /// It failed.
    Failed(Errno),
}

impl From<Errno> for Stop {
    fn from(errno: Errno) -> Self {
        Self::Failed(errno)
    }
}

pub(super) type Step<T> = Result<T, Stop>;
