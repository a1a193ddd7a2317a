//! Streams of the append namespace: no page with a member of an epoch is programmed before all earlier epochs of the stream are
//! durable (policy `in-order-write-back`, contract §6).
//!
//! Place in the data flow: [`super::accept`] adds members, [`super::program`] asks before it queues a page, and says what is durable.
//!
//! Invariant: the order in which members were accepted satisfies all orders of streams and segments, so the oldest member that is not
//! durable may always be programmed.

use flashweir_core::command::StreamId;
use std::collections::BTreeMap;

#[derive(Clone, Debug, Default)]
struct Stream {
    /// Number of the open epoch, and whether it has members.
    epoch: u32,
    has_members: bool,
    /// Members that are not durable, by epoch.
    pending: BTreeMap<u32, u32>,
    /// Whether a member cannot be written any more.
    has_failed: bool,
}

/// All streams.
#[derive(Clone, Debug, Default)]
pub(super) struct Streams {
    streams: BTreeMap<StreamId, Stream>,
}

impl Streams {
    /// Adds members to the open epoch; returns its number.
    pub(super) fn join(&mut self, stream: StreamId, members: u32) -> u32 {
        let state = self.streams.entry(stream).or_default();
        state.has_members = true;
        *state.pending.entry(state.epoch).or_insert(0) += members;
        state.epoch
    }

    /// Closes the open epoch, if it has members; returns whether it had.
    pub(super) fn close(&mut self, stream: StreamId) -> bool {
        let state = self.streams.entry(stream).or_default();
        let closes = std::mem::take(&mut state.has_members);
        state.epoch += u32::from(closes);
        closes
    }

    /// Whether everything before the open epoch of the stream is durable.
    pub(super) fn is_first(&self, stream: StreamId) -> bool {
        self.streams.get(&stream).is_none_or(|state| Self::allows(state, state.epoch))
    }

    /// Whether a member of this epoch may become durable.
    pub(super) fn may_go(&self, (stream, epoch): (StreamId, u32)) -> bool {
        self.streams.get(&stream).is_none_or(|state| Self::allows(state, epoch))
    }

    fn allows(state: &Stream, epoch: u32) -> bool {
        state.pending.first_key_value().is_none_or(|(first, _)| *first >= epoch)
    }

    /// A member is durable. Returns whether that ends an epoch.
    pub(super) fn settle(&mut self, (stream, epoch): (StreamId, u32)) -> bool {
        let state = self.streams.get_mut(&stream).expect("it has members");
        let left = state.pending.get_mut(&epoch).expect("it has members");
        *left -= 1;
        let is_over = *left == 0;
        if is_over {
            state.pending.remove(&epoch);
        }
        is_over
    }

    /// A member of the stream cannot be written any more.
    pub(super) fn fail(&mut self, stream: StreamId) {
        self.streams.entry(stream).or_default().has_failed = true;
    }

    /// Whether the member waits for one that cannot be written.
    pub(super) fn has_failed(&self, (stream, epoch): (StreamId, u32)) -> bool {
        self.streams.get(&stream).is_some_and(|state| state.has_failed && !Self::allows(state, epoch))
    }

    /// Whether the stream can never go on: a member of an earlier epoch than the open one cannot be written.
    pub(super) fn is_stuck(&self, stream: StreamId) -> bool {
        let open = self.streams.get(&stream).map_or(0, |state| state.epoch);
        self.has_failed((stream, open))
    }

    /// Whether no member waits; for audits.
    pub(super) fn is_empty(&self) -> bool {
        self.streams.values().all(|state| state.pending.is_empty())
    }
}
