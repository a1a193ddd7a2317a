//! The collection of one plane as data.

use flashweir_ftl::BlockId;

/// The collection of one plane.
#[derive(Clone, Debug, Default)]
pub(super) struct Collection {
    pub(super) victim: Option<BlockId>,
    /// Next page of the victim to be looked at.
    pub(super) page: u32,
    pub(super) reads: u32,
    /// Survivors on their way.
    pub(super) moves: u32,
    pub(super) filling: Option<u32>,
    pub(super) erasing: bool,
    pub(super) drained: bool,
    /// Valid units of the victim when it was chosen.
    pub(super) valid: u32,
    /// The victim is erased once its deallocations are in the log.
    pub(super) waits_for_log: bool,
}

impl Collection {
    /// Whether all survivors of the victim are queued or durable.
    pub(super) fn is_drained(&self) -> bool {
        self.drained
    }

    /// Survivors that are not durable, for audits.
    pub(super) fn moves(&self) -> u32 {
        self.moves
    }
}
