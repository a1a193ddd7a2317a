//! Flushes that wait, and deallocations whose records are not durable.

use super::tags::Owners;
use flashweir_ftl::recovery::TrimRecord;

/// A FLUSH or range flush that waits.
#[derive(Clone, Copy, Debug)]
pub(super) struct PendingFlush {
    pub(super) command: u32,
    /// A FLUSH covers every version up to this sequence number; 0 for a range flush, which waits for chosen versions.
    pub(super) upto: u64,
    /// Number of units that are not durable yet.
    pub(super) units_left: u32,
    /// Sequence number up to which records of deallocations have to be durable; 0 if it does not wait for the log.
    pub(super) trims_upto: u64,
}

/// A deallocation whose record is not durable, and its owners: its own tags, and those of versions that it dropped.
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
