//! One request of a trace, in the form that every format is converted to.

use flashweir_core::{Duration, Lba};
use flashweir_sim::request::Kind;

/// One request of a trace, in 24 bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Record {
    /// Start time, relative to the origin of the trace.
    pub at: Duration,
    /// First sector of 512 bytes; 0 for a flush.
    pub lba: Lba,
    /// Number of sectors; 0 for a flush.
    pub blocks: u32,
    /// Kind of the request.
    pub kind: Kind,
    /// Whether a flush goes before it, at whose completion it starts.
    pub preflush: bool,
    /// Force unit access: it completes only when it is durable.
    pub fua: bool,
}

const _: () = assert!(size_of::<Record>() == 24);

impl Record {
    /// Makes a request without flags.
    pub const fn new(at: Duration, kind: Kind, lba: Lba, blocks: u32) -> Self {
        Self { at, lba, blocks, kind, preflush: false, fua: false }
    }

    /// Makes a pure flush.
    pub const fn flush(at: Duration) -> Self {
        Self::new(at, Kind::Flush, Lba(0), 0)
    }

    /// Returns the sector after the last one.
    pub const fn end(&self) -> u64 {
        self.lba.0 + self.blocks as u64
    }
}

/// A record and the device that it goes to, as parsed from a line.
pub(super) struct Parsed<'a> {
    pub(super) device: &'a str,
    pub(super) record: Record,
}
