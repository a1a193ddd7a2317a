//! One request of a trace, in the form that every format is converted to.

use flashweir_core::{Duration, Lba};
use flashweir_sim::request::Kind;

/// One request of a trace, in 32 bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Record {
    /// Start time, relative to the origin of the trace.
    pub at: Duration,
    /// First sector of 512 bytes; 0 for a flush.
    pub lba: Lba,
    /// First sector of the range whose content a SHARE takes over; 0 for other kinds.
    pub source: Lba,
    /// Number of sectors; 0 for a flush.
    pub blocks: u32,
    /// Kind of the request.
    pub kind: Kind,
    /// Whether a flush goes before it, at whose completion it starts.
    pub preflush: bool,
    /// Force unit access: it completes only when it is durable.
    pub fua: bool,
}

const _: () = assert!(size_of::<Record>() == 32);

impl Record {
    /// Makes a request without flags.
    pub const fn new(at: Duration, kind: Kind, lba: Lba, blocks: u32) -> Self {
        Self { at, lba, source: Lba(0), blocks, kind, preflush: false, fua: false }
    }

    /// Makes a SHARE, by which the range at `lba` takes over the content of the one at `source`.
    pub const fn share(at: Duration, lba: Lba, source: Lba, blocks: u32) -> Self {
        Self { source, ..Self::new(at, Kind::Share, lba, blocks) }
    }

    /// Makes a pure flush.
    pub const fn flush(at: Duration) -> Self {
        Self::new(at, Kind::Flush, Lba(0), 0)
    }

    /// Returns the sector after the last one of its range.
    pub const fn end(&self) -> u64 {
        self.lba.0 + self.blocks as u64
    }

    /// Returns the sector after the last one that it names: of its range, or of the source of a SHARE.
    pub fn reach(&self) -> u64 {
        match self.kind {
            Kind::Share => self.end().max(self.source.0 + u64::from(self.blocks)),
            _ => self.end(),
        }
    }
}

/// A record and the device that it goes to, as parsed from a line.
pub(super) struct Parsed<'a> {
    pub(super) device: &'a str,
    pub(super) record: Record,
}
