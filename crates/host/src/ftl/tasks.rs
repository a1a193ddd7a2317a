//! Commands of a host FTL that are below, and what each was for.

use super::lines::LineId;
use flashweir_core::Ppa;
use flashweir_ftl::BlockId;

/// A command below, and what follows from its answer.
#[derive(Clone, Debug)]
pub(super) enum Task {
    /// Units of a read: the position of each in the answer.
    Read {
        token: u64,
        at: Vec<usize>,
        lines: Vec<LineId>,
    },
    /// Entries of a ring and their places.
    Program {
        ring: usize,
        entries: Vec<(u64, Ppa)>,
        line: LineId,
        die: u32,
        blocks: Vec<BlockId>,
    },
    /// A page of a line's own metadata.
    Meta {
        line: LineId,
        block: BlockId,
    },
    Erase {
        line: LineId,
        block: BlockId,
    },
    Collect {
        group: usize,
        units: Vec<Ppa>,
    },
    Recover(Ask),
}

/// A read of the recovery.
#[derive(Clone, Copy, Debug)]
pub(super) enum Ask {
    /// The geometry of the open channel, if it keeps units back.
    Geometry,
    /// A report of so many chunks from this one on.
    Chunks { first: u32, count: u32 },
    /// A write of padding to this chunk, so that what is before it can be read.
    Pad { chunk: u32 },
    /// The page where a line's start metadata is, unless its first block is bad.
    Start(LineId),
    /// A page of a line's end metadata, by its number among these.
    End(LineId, usize),
    /// A page of a line, by column.
    Page(LineId, u32, u32),
    /// A unit that records deallocations or streams, with its sequence number.
    Record(Ppa, u64),
}
