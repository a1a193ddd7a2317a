//! Copies of blocks and erases as data.
//!
//! Place in the data flow: [`super::moves`] works on them.

use crate::flash::UnitImage;
use flashweir_ftl::BlockId;

/// The reason for a copy.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Why {
    Failed,
    Torn,
    Mend,
    Wear,
}

/// A block that is to be copied.
#[derive(Clone, Copy, Debug)]
pub(super) struct MoveOrder {
    pub(super) segment: u32,
    pub(super) lane: u32,
    /// Pages that are copied.
    pub(super) rows: u32,
    pub(super) why: Why,
}

/// A copy under way.
#[derive(Clone, Debug)]
pub(super) struct Move {
    pub(super) order: MoveOrder,
    pub(super) from: BlockId,
    pub(super) to: BlockId,
    /// The next page to be copied, and its units once they are read.
    pub(super) next: u32,
    pub(super) images: Vec<UnitImage>,
    /// Units that came too late and are in the copy.
    pub(super) merged: Vec<u32>,
    /// Whether all pages are copied.
    pub(super) is_copied: bool,
    /// Change of the log that says so.
    pub(super) logged: Option<u64>,
}

/// What follows when a block is erased.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum EraseFor {
    /// It is free.
    Pool,
    /// A lane of a segment has it.
    Lane { segment: u32, lane: u32 },
    /// The copy of its plane goes on.
    Move,
}
