//! One request of a trace: what every format is read into.

use flashweir_core::{Duration, Lba};
use flashweir_sim::request::Kind;

/// One request of a trace, in 24 bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Record {
    /// When it started, since whatever the trace counts from.
    pub at: Duration,
    /// First block of 512 bytes; 0 for a flush.
    pub lba: Lba,
    /// Number of blocks; 0 for a flush.
    pub blocks: u32,
    /// What it does.
    pub kind: Kind,
    /// A flush goes before it, and it starts when that is complete.
    pub preflush: bool,
    /// It completes only when it is durable.
    pub fua: bool,
}

const _: () = assert!(size_of::<Record>() == 24);

impl Record {
    /// A request without flags.
    pub const fn new(at: Duration, kind: Kind, lba: Lba, blocks: u32) -> Self {
        Self { at, lba, blocks, kind, preflush: false, fua: false }
    }

    /// A flush and nothing else.
    pub const fn flush(at: Duration) -> Self {
        Self::new(at, Kind::Flush, Lba(0), 0)
    }

    /// The block behind the last.
    pub const fn end(&self) -> u64 {
        self.lba.0 + self.blocks as u64
    }
}

/// A record and the device that it goes to, as a line says it.
pub(super) struct Parsed<'a> {
    pub(super) device: &'a str,
    pub(super) record: Record,
}
