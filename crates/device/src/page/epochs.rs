//! Streams and epochs as data: which members an epoch has, what of it is on the medium, what is kept for it.
//!
//! Place in the data flow: [`super::order`] changes it as commands are accepted and versions reach the medium.
//!
//! Invariant: the epochs of a stream are those that are not complete, in the order of their numbers, and the open one.

use crate::config::PersistPolicy;
use flashweir_core::Ppa;
use flashweir_core::command::StreamId;
use std::collections::{BTreeMap, BTreeSet, VecDeque};

/// Epochs of one stream between two checkpoints at most: their numbers have 24 bits on flash.
pub(super) const EPOCHS_MAX: u32 = 1 << 23;

/// Why a unit is valid that the map does not name.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Kept {
    /// The version in this slot is not stable.
    Slot(u32),
    /// It is superseded, but recovery counts it as a member of an epoch that is not complete.
    Counted(StreamId, u32),
}

#[derive(Clone, Debug, Default)]
pub(super) struct Epoch {
    /// Members so far.
    pub(super) members: u32,
    /// Members that are not on the medium.
    pub(super) left: u32,
    /// Members of the epoch before.
    pub(super) previous: u16,
    /// Sequence number of its first member.
    pub(super) first_seq: u64,
    /// Slots that joined; some may have been given back since.
    pub(super) slots: Vec<u32>,
    /// Superseded members on the medium that recovery counts.
    pub(super) counted: BTreeSet<Ppa>,
    /// Deallocations whose records are not durable.
    pub(super) trims: Vec<u64>,
    /// A version of this epoch was replaced by one of that later epoch: the two and what is between count together.
    pub(super) fused_to: u32,
}

#[derive(Clone, Debug)]
pub(super) struct Stream {
    /// Number of the open epoch, from 1.
    pub(super) open: u32,
    /// The epochs that are not complete, and the open one.
    pub(super) epochs: VecDeque<Epoch>,
    /// All epochs up to this one are complete, as a durable record says.
    pub(super) recorded: u32,
    /// … as the last record says that was made.
    pub(super) recording: u32,
    /// Somebody waits for the epochs up to this one.
    pub(super) wanted: u32,
    /// The open epoch at the last checkpoint.
    pub(super) checkpointed: u32,
    /// A member of an epoch was lost.
    pub(super) failed: bool,
}

impl Default for Stream {
    fn default() -> Self {
        Self {
            open: 1,
            epochs: VecDeque::from([Epoch::default()]),
            recorded: 0,
            recording: 0,
            wanted: 0,
            checkpointed: 0,
            failed: false,
        }
    }
}

impl Stream {
    /// The first epoch that is not complete, or the open one.
    pub(super) fn base(&self) -> u32 {
        self.open + 1 - self.epochs.len() as u32
    }

    pub(super) fn epoch(&mut self, number: u32) -> &mut Epoch {
        let at = number - self.base();
        &mut self.epochs[at as usize]
    }

    /// Closes the open epoch; an empty one stays open.
    pub(super) fn close(&mut self) -> bool {
        let open = self.epochs.back().expect("one epoch is open");
        if open.members == 0 {
            return false;
        }
        let previous = open.members as u16;
        self.epochs.push_back(Epoch { previous, ..Epoch::default() });
        self.open += 1;
        true
    }

    /// The last epoch that counts together with those up to `epoch`.
    pub(super) fn together(&self, epoch: u32) -> u32 {
        let epochs = self.epochs.iter().zip(self.base()..);
        epochs
            .fold(epoch, |last, (epoch, number)| if number <= last { last.max(epoch.fused_to) } else { last })
    }

    /// The last closed epoch such that it and all earlier ones are on the medium and none of them counts together with a
    /// later one.
    pub(super) fn ready(&self) -> u32 {
        let (mut ready, mut together) = (self.base() - 1, 0);
        for (epoch, number) in self.epochs.iter().zip(self.base()..self.open) {
            if epoch.left > 0 {
                break;
            }
            together = together.max(epoch.fused_to);
            if together <= number {
                ready = number;
            }
        }
        ready
    }
}

/// The streams of one device.
#[derive(Clone, Debug, Default)]
pub(super) struct Streams {
    /// The device keeps epochs in order; otherwise nothing below is ever used.
    pub(super) policy: PersistPolicy,
    pub(super) streams: BTreeMap<StreamId, Stream>,
    pub(super) kept: BTreeMap<Ppa, Kept>,
    /// Superseded members that are kept, and how many of them are too many.
    pub(super) counted: usize,
    pub(super) counted_max: usize,
    /// Versions that never become stable, because an earlier member was lost.
    pub(super) stuck: u32,
    /// Members of earlier boots have sequence numbers up to this one.
    pub(super) since: u64,
}

impl Streams {
    pub(super) fn new(policy: PersistPolicy, counted_max: usize) -> Self {
        Self { policy, counted_max, ..Self::default() }
    }

    /// Whether so many superseded members are kept that their epochs have to end.
    pub(super) fn is_pressed(&self) -> bool {
        self.counted > self.counted_max
    }

    /// Members that were written before do not count any more.
    pub(super) fn begin_boot(&mut self, seq: u64) {
        self.since = seq;
    }

    /// Whether recovery counts members.
    pub(super) fn counts(&self) -> bool {
        self.policy == PersistPolicy::InOrderRecovery
    }

    /// Whether an epoch is complete that was not settled; for audits.
    pub(super) fn could_settle(&self) -> bool {
        let complete = |stream: &Stream| match self.policy {
            PersistPolicy::Transactional => stream.base() <= stream.recorded,
            _ => stream.epochs[0].left == 0,
        };
        self.streams.values().any(|stream| stream.epochs.len() > 1 && complete(stream))
    }

    /// Whether the device keeps epochs in order.
    pub(super) fn is_used(&self) -> bool {
        self.policy != PersistPolicy::None
    }

    /// Versions in the buffer that nobody may wait for.
    pub(super) fn stuck(&self) -> u32 {
        self.stuck
    }

    /// Valid units that the map does not name.
    pub(super) fn kept(&self) -> usize {
        self.kept.len()
    }

    pub(super) fn is_kept(&self, ppa: Ppa) -> bool {
        self.kept.contains_key(&ppa)
    }

    /// Whether a kept unit lies in `units`.
    pub(super) fn any_kept(&self, units: std::ops::Range<u64>) -> bool {
        self.kept.range(Ppa(units.start)..Ppa(units.end)).next().is_some()
    }

    /// Everything below was accepted before the first epoch that recovery may have to count.
    pub(super) fn horizon(&self) -> Option<u64> {
        let epochs = self.streams.values().filter_map(|stream| stream.epochs.front());
        epochs.filter(|epoch| self.counts() && epoch.members > 0).map(|epoch| epoch.first_seq).min()
    }

    /// A stream that lost a member; only a power cycle begins it anew.
    pub(super) fn failed(&self) -> Option<StreamId> {
        self.streams.iter().find(|(_, stream)| stream.failed).map(|(id, _)| *id)
    }

    /// One line for each stream with what its oldest epoch waits for, for the message of a run that wedged.
    pub(super) fn describe(&self) -> String {
        let line = |(id, stream): (&StreamId, &Stream)| {
            let base = stream.base();
            let state = match stream.epochs.front() {
                _ if stream.failed => "a member was lost, so nothing of it becomes stable".to_owned(),
                Some(epoch) if epoch.members > 0 => {
                    let Epoch { members, left, ref trims, .. } = *epoch;
                    let trims = trims.len();
                    format!(
                        "epoch {base} waits for {left} of its {members} members and for the log of {trims} deallocations"
                    )
                }
                _ => format!("epoch {base} has no members"),
            };
            let (open, recorded, wanted) = (stream.open, stream.recorded, stream.wanted);
            let record = if wanted > recorded {
                format!(", somebody waits for the record of {wanted}")
            } else {
                String::new()
            };
            format!("stream {}: {state}; open {open}, complete on the medium to {recorded}{record}\n", id.0)
        };
        let streams: String = self.streams.iter().map(line).collect();
        match streams.is_empty() {
            true => streams,
            false => format!("{streams}{} stuck, {} kept, {:?}\n", self.stuck, self.kept.len(), self.policy),
        }
    }

    /// What records say of each stream.
    pub(super) fn recordings(&self) -> Vec<(StreamId, u32)> {
        self.streams
            .iter()
            .map(|(id, stream)| (*id, stream.recording))
            .filter(|(_, epoch)| *epoch > 0)
            .collect()
    }
}
