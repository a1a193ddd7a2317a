//! The GC state of one plane as data.

use flashweir_ftl::BlockId;

/// GC of one plane.
#[derive(Clone, Debug, Default)]
pub(super) struct Collection {
    pub(super) victim: Option<BlockId>,
    /// Next page of the victim to be read.
    pub(super) page: u32,
    pub(super) reads: u32,
    /// Survivors that were read and are not durable.
    pub(super) moves: u32,
    pub(super) filling: Option<u32>,
    pub(super) erasing: bool,
    pub(super) drained: bool,
    /// Number of valid units of the victim when it was chosen.
    pub(super) valid: u32,
    /// The victim waits to be erased until its deallocations are in the log.
    pub(super) waits_for_log: bool,
}

impl Collection {
    /// Whether all survivors of the victim are queued or durable.
    pub(super) fn is_drained(&self) -> bool {
        self.drained
    }

    /// Number of survivors that are not durable, for audits.
    pub(super) fn moves(&self) -> u32 {
        self.moves
    }
}
