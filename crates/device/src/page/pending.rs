//! Flushes that wait, and changes of the map whose records are not durable.

use super::tags::Owners;
use flashweir_ftl::recovery::Change;

/// A FLUSH or range flush that waits.
#[derive(Clone, Copy, Debug)]
pub(super) struct PendingFlush {
    pub(super) command: u32,
    /// A FLUSH covers every version up to this sequence number; 0 for a range flush, which waits for chosen versions.
    pub(super) upto: u64,
    /// Number of units that are not durable yet.
    pub(super) units_left: u32,
    /// Sequence number up to which records of changes have to be durable; 0 if it does not wait for the log.
    pub(super) changes_upto: u64,
}

/// A deallocation or SHARE whose record is not durable, and its owners: its own tags, and those of versions that it dropped.
#[derive(Clone, Debug)]
pub(super) struct VolatileChange {
    pub(super) change: Change,
    pub(super) owners: Owners,
}

impl VolatileChange {
    /// Whether it changes a page for whose range, first page and end, `is_meant` holds.
    pub(super) fn any(&self, is_meant: impl Fn(u64, u64) -> bool) -> bool {
        self.change.ranges().any(|(first, count)| is_meant(first, first + count))
    }
}
