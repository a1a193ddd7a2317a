//! Epochs of one stream, from the submission of their requests until the next epoch may leave.
//!
//! Invariants: a request's epoch is stamped when it is submitted and never changes; only the last epoch is open; every
//! closed one has or had a member; with epochs kept apart in the host, only members of the first one may leave.

use std::collections::VecDeque;

/// One epoch.
#[derive(Clone, Debug, Default)]
pub(crate) struct EpochState {
    /// A barrier has come: nobody joins any more.
    pub(crate) closed: bool,
    /// Whether it ever had a member.
    pub(crate) used: bool,
    /// Requests that the device has not taken.
    pub(crate) queued: u32,
    /// Commands that the device has taken.
    pub(crate) left: u32,
    /// Those that wait for an earlier epoch, in the order of their submission.
    pub(crate) held: Vec<u32>,
    /// Barriers of no length that travel with the last member.
    pub(crate) barriers: Vec<u64>,
    /// Legacy: commands whose data the device has not taken, and those that it has not answered.
    pub(crate) untransferred: u32,
    pub(crate) unanswered: u32,
    /// Legacy: the flush after the answers.
    pub(crate) flush: FlushState,
    /// Legacy: an earlier epoch has failed, so members are refused.
    pub(crate) refused: bool,
}

/// The host's flush behind an epoch.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) enum FlushState {
    #[default]
    NotAsked,
    Asked,
    Done,
}

/// The epochs of a stream that are not over.
#[derive(Clone, Debug)]
pub(crate) struct StreamState {
    /// Number of the first of them.
    pub(crate) first: u64,
    pub(crate) epochs: VecDeque<EpochState>,
    /// Legacy: a member has failed, and no barrier of no length has told so yet.
    pub(crate) failed: bool,
}

impl Default for StreamState {
    fn default() -> Self {
        Self { first: 0, epochs: VecDeque::from([EpochState::default()]), failed: false }
    }
}

impl StreamState {
    /// Number of the open epoch.
    pub(crate) fn open(&self) -> u64 {
        self.first + self.epochs.len() as u64 - 1
    }

    /// The open epoch.
    pub(crate) fn last_mut(&mut self) -> &mut EpochState {
        self.epochs.back_mut().expect("one epoch is open")
    }

    /// The epoch with this number, which is not over.
    pub(crate) fn epoch(&mut self, number: u64) -> &mut EpochState {
        &mut self.epochs[(number - self.first) as usize]
    }

    /// Closes the open epoch and opens the next.
    pub(crate) fn close(&mut self) {
        self.last_mut().closed = true;
        self.epochs.push_back(EpochState::default());
    }
}
