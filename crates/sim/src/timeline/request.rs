//! A request of the host, as it is asked for, while it is open, and when it is finished.

use super::spans::{ByReason, Piece, Served};
use crate::request::Kind;
use flashweir_core::{Instant, Lba};

/// A request as the host asks for it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Asked {
    /// Kind of the request.
    pub kind: Kind,
    /// First sector.
    pub lba: Lba,
    /// Number of sectors of 512 bytes; 0 for a flush.
    pub blocks: u32,
    /// Force unit access: complete only when durable.
    pub fua: bool,
    /// Submission queue.
    pub queue: u16,
    /// Time at which it should have started; its latency counts from here.
    pub intended: Instant,
}

/// A finished request.
#[derive(Clone, Debug)]
pub struct Request {
    /// Its number in the order of submission, from 0.
    pub number: u64,
    /// The request as it was asked for.
    pub asked: Asked,
    /// Start of its latency.
    pub from: Instant,
    /// Time at which the host saw the completion.
    pub until: Instant,
    /// The pieces of its time, without a gap.
    pub pieces: Vec<Piece>,
    /// Reasons for which earlier commands waited while it was [`Stage::Behind`](super::Stage::Behind) them.
    pub behind: ByReason,
    /// Whether it completed with an error.
    pub failed: bool,
    /// Whether it counts in results.
    pub counts: bool,
}

/// An unfinished request.
#[derive(Clone, Debug)]
pub(crate) struct Unfinished {
    pub(crate) number: u64,
    /// The host's name of it, among those that wait in layers.
    pub(crate) token: u64,
    pub(crate) asked: Asked,
    /// Time at which layers of the host got it, if there are any.
    pub(crate) entered: Option<Instant>,
    /// The pieces of its time in the layers.
    pub(crate) waited: Vec<Piece>,
}

impl Unfinished {
    /// Returns the start of its latency; `sent` is when its command was put onto the link.
    pub(crate) fn from(&self, sent: Option<Instant>) -> Instant {
        let begun = self.entered.or(sent).unwrap_or(self.asked.intended);
        self.asked.intended.min(begun)
    }
}

/// A completed command of a host FTL.
#[derive(Clone, Debug)]
pub(crate) struct Below {
    pub(crate) sent: Instant,
    pub(crate) served: Served,
    /// Time at which the FTL saw its completion.
    pub(crate) seen: Instant,
}

/// An unfinished command and the requests in it: one, or those that a layer has put together.
#[derive(Clone, Debug, Default)]
pub(crate) struct Open {
    pub(crate) requests: Vec<Unfinished>,
    pub(crate) sent: Option<Instant>,
    pub(crate) served: Option<Served>,
}
