//! A request of the host on its way: as it is asked for, while it is open, and when it is over.

use super::spans::{ByReason, Piece, Served};
use crate::request::Kind;
use flashweir_core::{Instant, Lba};

/// What a host asks for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Asked {
    /// What to do.
    pub kind: Kind,
    /// First block of 512 bytes.
    pub lba: Lba,
    /// Blocks of 512 bytes; 0 for a flush.
    pub blocks: u32,
    /// Complete only when durable.
    pub fua: bool,
    /// The queue that it goes to.
    pub queue: u16,
    /// When it should have started; its latency counts from here.
    pub intended: Instant,
}

/// A request that is over.
#[derive(Clone, Debug)]
pub struct Request {
    /// Its number in the order of submission, from 0.
    pub number: u64,
    /// What was asked for.
    pub asked: Asked,
    /// From here its latency counts.
    pub from: Instant,
    /// When the host saw the completion.
    pub until: Instant,
    /// Where the time went, without a gap.
    pub pieces: Vec<Piece>,
    /// What the commands before it waited for while it was [`Stage::Behind`](super::Stage::Behind) them.
    pub behind: ByReason,
    /// It completed with an error.
    pub failed: bool,
    /// It counts in results.
    pub counts: bool,
}

/// A request that is not over.
#[derive(Clone, Debug)]
pub(crate) struct Open {
    pub(crate) number: u64,
    pub(crate) asked: Asked,
    pub(crate) sent: Option<Instant>,
    pub(crate) served: Option<Served>,
}
