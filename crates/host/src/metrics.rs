//! Counters of a block layer, the history of its queue depths, and the passages of its requests.

use flashweir_core::Instant;

flashweir_core::metrics! {
    /// Counters of a block layer.
    pub struct HostMetrics {
        /// Requests submitted.
        submitted,
        /// Requests answered.
        completed,
        /// Requests merged behind a waiting one.
        back_merges,
        /// Requests merged before a waiting one.
        front_merges,
        /// Commands that the device took.
        dispatched,
        /// Offers of a command for which the device had no room.
        busy,
        /// Barriers submitted: with a write, or of no length.
        barriers,
        /// Barriers of no length with nothing before them to order.
        barriers_empty,
        /// Commands that carried a barrier to the device.
        barriers_sent,
        /// Ordered requests that waited for an earlier epoch of their stream.
        epoch_waits,
        /// Requests that waited for one on the same blocks.
        overlap_waits,
        /// Flushes of the host's own, between two epochs on a device without barriers.
        flushes,
        /// Requests refused because an earlier epoch of their stream had failed.
        refused,
    }
}

/// Queue depths at one instant.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DepthSample {
    /// Time of the change.
    pub at: Instant,
    /// Number of commands that the device holds.
    pub in_flight: u32,
    /// Number of requests that wait in the host.
    pub queued: u32,
}

/// The times at which a request passed from one stage of the block layer to the next, until the device took the command that
/// contains it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Passage {
    /// Token of the request.
    pub token: u64,
    /// Time from which it waited neither for an earlier epoch nor for earlier requests on the same sectors: it entered the
    /// scheduler, or was merged into a waiting request.
    pub ready: Instant,
    /// Whether it was merged into a waiting request.
    pub is_merged: bool,
    /// Time at which its command was first offered to the device.
    pub offered: Instant,
}
