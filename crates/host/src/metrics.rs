//! What a block layer counts, and the course of its queues.

use flashweir_core::Instant;

flashweir_core::metrics! {
    /// Counters of a block layer.
    pub struct HostMetrics {
        /// Requests submitted.
        submitted,
        /// Requests answered.
        completed,
        /// Requests appended to one that waited.
        back_merges,
        /// Requests put before one that waited.
        front_merges,
        /// Commands that the device took.
        dispatched,
        /// Offers that found no room at the device.
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

/// The queues at one instant.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DepthSample {
    /// When they became so.
    pub at: Instant,
    /// Commands that the device holds.
    pub in_flight: u32,
    /// Requests that wait in the host.
    pub queued: u32,
}
