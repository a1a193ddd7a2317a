//! Who waits for what to become durable.

use super::tags::Owners;
use flashweir_ftl::recovery::TrimRecord;

/// A FLUSH that waits.
#[derive(Clone, Copy, Debug)]
pub(super) struct PendingFlush {
    pub(super) command: u32,
    /// It covers every version up to this sequence number; 0 of a range flush, which waits for chosen ones.
    pub(super) upto: u64,
    /// Units that are not durable yet.
    pub(super) units_left: u32,
    /// It waits for the log up to this sequence number; 0 is not at all.
    pub(super) trims_upto: u64,
}

/// A deallocation whose record is not durable, and what owns it: its own tags, and those of versions that it dropped.
#[derive(Clone, Debug)]
pub(super) struct VolatileTrim {
    pub(super) record: TrimRecord,
    pub(super) owners: Owners,
}

impl VolatileTrim {
    pub(super) fn first(&self) -> u64 {
        self.record.lpn.0
    }

    pub(super) fn end(&self) -> u64 {
        self.first() + self.record.count
    }
}
