//! What comes of giving pages of files their blocks.

use super::super::layout::Addr;
use crate::port::Ticket;

/// Pages of a file that have their blocks.
#[derive(Clone, Copy, Debug)]
pub(super) struct Placed {
    pub(super) first: u64,
    pub(super) count: u32,
    pub(super) addr: Addr,
    /// Whether the file had no contents there before.
    pub(super) is_new: bool,
}

/// A write of data that is under way.
#[derive(Debug)]
pub(super) struct Begun {
    pub(super) number: u64,
    pub(super) ticket: Ticket,
    pub(super) row: Placed,
}

/// What came of asking for blocks.
#[derive(Debug)]
pub(super) enum Placing {
    /// The write has this number.
    Begun(u64, Placed),
    /// The running transaction has no room.
    Full,
    /// There are no blocks, but a commit sets some free.
    NoBlocks,
}
