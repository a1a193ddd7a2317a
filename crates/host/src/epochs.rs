//! Epochs of one stream, from the submission of their requests until the next epoch may leave.
//!
//! Invariants: a request's epoch is stamped when it is submitted and never changes; only the last epoch is open; every
//! closed epoch has or had a member; where the host keeps epochs apart, only members of the first one may leave.

use std::collections::VecDeque;

/// One epoch.
#[derive(Clone, Debug, Default)]
pub(crate) struct EpochState {
    /// Whether a barrier has closed it: no request joins any more.
    pub(crate) closed: bool,
    /// Whether it ever had a member.
    pub(crate) used: bool,
    /// Number of requests that the device has not taken.
    pub(crate) queued: u32,
    /// Number of commands that the device has taken.
    pub(crate) left: u32,
    /// Requests that wait for an earlier epoch, in the order of their submission.
    pub(crate) held: Vec<u32>,
    /// Zero-length barriers that travel with the last member.
    pub(crate) barriers: Vec<u64>,
    /// Legacy: number of commands whose data the device has not taken, and number that it has not answered.
    pub(crate) untransferred: u32,
    pub(crate) unanswered: u32,
    /// Legacy: state of the flush after the answers.
    pub(crate) flush: FlushState,
    /// Legacy: whether members are refused because an earlier epoch has failed.
    pub(crate) refused: bool,
}

/// State of the host's flush after an epoch.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) enum FlushState {
    #[default]
    NotAsked,
    Asked,
    Done,
}

/// The unfinished epochs of a stream.
#[derive(Clone, Debug)]
pub(crate) struct StreamState {
    /// Number of the first unfinished epoch.
    pub(crate) first: u64,
    pub(crate) epochs: VecDeque<EpochState>,
    /// Legacy: whether a member has failed and no zero-length barrier has reported it yet.
    pub(crate) failed: bool,
}

impl Default for StreamState {
    fn default() -> Self {
        Self { first: 0, epochs: VecDeque::from([EpochState::default()]), failed: false }
    }
}

impl StreamState {
    /// Returns the number of the open epoch.
    pub(crate) fn open(&self) -> u64 {
        self.first + self.epochs.len() as u64 - 1
    }

    /// Returns the open epoch.
    pub(crate) fn last_mut(&mut self) -> &mut EpochState {
        self.epochs.back_mut().expect("one epoch is open")
    }

    /// Returns the unfinished epoch with this number.
    pub(crate) fn epoch(&mut self, number: u64) -> &mut EpochState {
        &mut self.epochs[(number - self.first) as usize]
    }

    /// Closes the open epoch and opens the next.
    pub(crate) fn close(&mut self) {
        self.last_mut().closed = true;
        self.epochs.push_back(EpochState::default());
    }
}
