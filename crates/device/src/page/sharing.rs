//! The SHARE at the head of the queue as data: what has been done for it before it can be accepted.
//!
//! Place in the data flow: [`super::share`] does that work, and looks again whenever something has ended.

use flashweir_core::{Lpn, Ppa};
use std::sync::Arc;

/// A pair for which the table has no room: its source is copied.
#[derive(Clone, Debug)]
pub(super) struct Copied {
    pub(super) dst: Lpn,
    pub(super) src: Lpn,
    /// Sequence number of the copy; no version of `dst` has one between it and that of the command.
    pub(super) seq: u64,
    pub(super) state: CopyState,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum CopyState {
    Reading,
    /// Its content was read and waits for a slot of the buffer.
    Read,
    /// It is in the buffer, or being programmed.
    Written,
    Done(Ppa),
    Failed,
}

/// The SHARE at the head of the queue.
#[derive(Clone, Debug)]
pub(super) struct Sharing {
    pub(super) command: u32,
    /// Destination and source of each page that changes.
    pub(super) pairs: Arc<[(Lpn, Lpn)]>,
    /// Number of pages whose map entries are known.
    pub(super) looked: usize,
    pub(super) copies: Vec<Copied>,
    /// Whether it is decided which pairs are copied.
    pub(super) decided: bool,
}
