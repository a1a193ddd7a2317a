//! Streams and epochs as data: the members of each epoch, how many of them are on the medium, and which units are kept for it.
//!
//! Place in the data flow: a page-mapped firmware changes it as commands are accepted and versions reach the medium; the
//! record that a stream's epochs are complete goes into its [`crate::map_log`].
//!
//! Invariant: the epochs of a stream are those that are not complete, in the order of their numbers, and the open one.

use flashweir_core::Ppa;
use flashweir_core::command::StreamId;
use flashweir_core::oob::{Member, Owner};
use serde::{Deserialize, Serialize};
use std::collections::{BTreeMap, BTreeSet, VecDeque};

/// Most epochs of one stream between two checkpoints: their numbers have 24 bits on flash.
pub const EPOCHS_MAX: u32 = 1 << 23;

/// How the epochs of a stream persist in their order (barriers §2.2, contract §8).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum PersistPolicy {
    /// The device knows no ordered commands.
    #[default]
    None,
    /// An epoch is written when all earlier ones of its stream are on the medium.
    InOrderWriteBack,
    /// Everything is written at once, and counts when a record in the map log says that its epochs are complete.
    Transactional,
    /// Everything is written at once; recovery counts the members of each epoch and discards what follows an incomplete
    /// one.
    InOrderRecovery,
}

/// Why a unit is valid although the map does not name it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kept {
    /// The version in this slot is not stable.
    Slot(u32),
    /// It is superseded, but recovery counts it as a member of an epoch that is not complete.
    Counted(StreamId, u32),
}

/// Commands of a stream between two barriers.
#[derive(Clone, Debug, Default)]
pub struct Epoch {
    /// Number of members so far.
    pub members: u32,
    /// Number of members that are not on the medium.
    pub left: u32,
    /// Number of members of the epoch before it.
    pub previous: u16,
    /// Sequence number of its first member.
    pub first_seq: u64,
    /// Buffer slots of members; some may have been given back since.
    pub slots: Vec<u32>,
    /// Superseded members on the medium that recovery counts.
    pub counted: BTreeSet<Ppa>,
    /// Sequence numbers of TRIMs whose records are not durable.
    pub trims: Vec<u64>,
    /// A version of this epoch was replaced by one of that later epoch: the two and what is between count together.
    pub fused_to: u32,
}

/// An order domain: its epochs that are not complete, and what the log says of those that are.
#[derive(Clone, Debug)]
pub struct Stream {
    /// Number of the open epoch, from 1.
    pub open: u32,
    /// The epochs that are not complete, and the open one.
    pub epochs: VecDeque<Epoch>,
    /// All epochs up to this one are complete, as a durable record says.
    pub recorded: u32,
    /// The same as the newest record says, durable or not.
    pub recording: u32,
    /// A command waits for the completion of the epochs up to this one.
    pub wanted: u32,
    /// Number of the epoch that was open at the last checkpoint.
    pub checkpointed: u32,
    /// A member of an epoch was lost.
    pub failed: bool,
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
    /// Number of the first epoch that is not complete, or of the open one.
    #[inline]
    pub fn base(&self) -> u32 {
        self.open + 1 - self.epochs.len() as u32
    }

    /// The epoch with this number, which is not complete.
    #[inline]
    pub fn epoch(&mut self, number: u32) -> &mut Epoch {
        let at = number - self.base();
        &mut self.epochs[at as usize]
    }

    /// Closes the open epoch and opens the next one; returns false, and does nothing, if it has no members.
    pub fn close(&mut self) -> bool {
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
    pub fn together(&self, epoch: u32) -> u32 {
        let epochs = self.epochs.iter().zip(self.base()..);
        epochs
            .fold(epoch, |last, (epoch, number)| if number <= last { last.max(epoch.fused_to) } else { last })
    }

    /// The last closed epoch such that it and all earlier ones are on the medium and none of them counts together with a
    /// later one.
    pub fn ready(&self) -> u32 {
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
pub struct Streams {
    /// The device keeps epochs in order; otherwise nothing below is ever used.
    pub policy: PersistPolicy,
    /// The streams that were ever used.
    pub streams: BTreeMap<StreamId, Stream>,
    /// Units that are valid although the map does not name them.
    pub kept: BTreeMap<Ppa, Kept>,
    /// Number of superseded members that are kept.
    pub counted: usize,
    /// Above so many of them their epochs have to end.
    pub counted_max: usize,
    /// Number of versions that never become stable, because an earlier member was lost.
    pub stuck: u32,
    /// Members of earlier boots have sequence numbers up to this one.
    pub since: u64,
}

impl Streams {
    /// No streams yet; more than `counted_max` superseded members press for the end of their epochs.
    pub fn new(policy: PersistPolicy, counted_max: usize) -> Self {
        Self { policy, counted_max, ..Self::default() }
    }

    /// Whether so many superseded members are kept that their epochs have to end.
    #[inline]
    pub fn is_pressed(&self) -> bool {
        self.counted > self.counted_max
    }

    /// After a recovery: members with sequence numbers up to `seq` belong to earlier boots, and count no longer.
    pub fn begin_boot(&mut self, seq: u64) {
        self.since = seq;
    }

    /// Whether recovery counts members.
    #[inline]
    pub fn counts(&self) -> bool {
        self.policy == PersistPolicy::InOrderRecovery
    }

    /// Whether recovery counts a unit, by its place in an epoch and its out-of-band record, as a member of an epoch that is not
    /// complete.
    pub fn counts_member(&self, member: Option<Member>, record: Option<(Owner, u64)>) -> bool {
        let Some(member) = member.filter(|_| self.counts()) else { return false };
        let is_new = record.is_some_and(|(_, seq)| seq > self.since);
        is_new && self.streams.get(&member.stream).is_some_and(|stream| member.epoch >= stream.base())
    }

    /// Whether a complete epoch was not settled; for audits.
    pub fn could_settle(&self) -> bool {
        let complete = |stream: &Stream| match self.policy {
            PersistPolicy::Transactional => stream.base() <= stream.recorded,
            _ => stream.epochs[0].left == 0,
        };
        self.streams.values().any(|stream| stream.epochs.len() > 1 && complete(stream))
    }

    /// Whether the device keeps epochs in order.
    #[inline]
    pub fn is_used(&self) -> bool {
        self.policy != PersistPolicy::None
    }

    /// Number of versions in the buffer that will never become stable.
    #[inline]
    pub fn stuck(&self) -> u32 {
        self.stuck
    }

    /// Number of valid units that the map does not name.
    pub fn kept(&self) -> usize {
        self.kept.len()
    }

    /// Whether the unit at `ppa` is kept.
    #[inline]
    pub fn is_kept(&self, ppa: Ppa) -> bool {
        self.kept.contains_key(&ppa)
    }

    /// Whether a kept unit lies in `units`.
    #[inline]
    pub fn any_kept(&self, units: std::ops::Range<u64>) -> bool {
        self.kept.range(Ppa(units.start)..Ppa(units.end)).next().is_some()
    }

    /// Sequence number of the first member that recovery may have to count; `None` where there is none.
    pub fn horizon(&self) -> Option<u64> {
        self.first_members(|_| true).min()
    }

    /// The first sequence numbers of the epochs that never become complete, since their streams lost a member.
    pub fn failed_since(&self) -> impl Iterator<Item = u64> + '_ {
        self.first_members(|stream| stream.failed)
    }

    /// Sequence number of the first member that recovery may have to count of each of these streams.
    fn first_members(&self, are_meant: impl Fn(&Stream) -> bool) -> impl Iterator<Item = u64> {
        let epochs = self.streams.values().filter(move |stream| are_meant(stream));
        let epochs = epochs.filter_map(|stream| stream.epochs.front());
        epochs.filter(|epoch| self.counts() && epoch.members > 0).map(|epoch| epoch.first_seq)
    }

    /// A stream that lost a member; only a power cycle resets it.
    pub fn failed(&self) -> Option<StreamId> {
        self.streams.iter().find(|(_, stream)| stream.failed).map(|(id, _)| *id)
    }

    /// One line for each stream with what its oldest epoch waits for, for the message of a run that wedged.
    pub fn describe(&self) -> String {
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
                format!(", a command waits for the record of {wanted}")
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

    /// The last complete epoch of each stream, as the newest records say.
    pub fn recordings(&self) -> Vec<(StreamId, u32)> {
        self.streams
            .iter()
            .map(|(id, stream)| (*id, stream.recording))
            .filter(|(_, epoch)| *epoch > 0)
            .collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    /// The definition of [`Stream::ready`], asked of each closed epoch by itself.
    fn ready_by_definition(stream: &Stream) -> u32 {
        let is_ready = |last: u32| {
            let upto = stream.epochs.iter().zip(stream.base()..=last);
            upto.into_iter().all(|(epoch, _)| epoch.left == 0 && epoch.fused_to <= last)
        };
        (stream.base()..stream.open).filter(|last| is_ready(*last)).max().unwrap_or(stream.base() - 1)
    }

    #[test]
    fn only_so_many_superseded_members_are_kept() {
        let mut streams = Streams::new(PersistPolicy::InOrderRecovery, 2);
        for (counted, is_pressed) in [(0, false), (2, false), (3, true)] {
            streams.counted = counted;
            assert_eq!(streams.is_pressed(), is_pressed, "{counted}");
        }
    }

    proptest! {
        #[test]
        fn what_is_ready_follows_from_the_definition(
            steps in prop::collection::vec((0..4u8, any::<prop::sample::Index>(), any::<prop::sample::Index>()), 0..60),
        ) {
            let mut stream = Stream::default();
            for (step, one, other) in steps {
                let count = stream.epochs.len();
                match step {
                    // A member joins the open epoch.
                    0 => {
                        let open = stream.epochs.back_mut().unwrap();
                        (open.members, open.left) = (open.members + 1, open.left + 1);
                    }
                    // A member reaches the medium.
                    1 => {
                        let epoch = &mut stream.epochs[one.index(count)];
                        epoch.left = epoch.left.saturating_sub(1);
                    }
                    2 => {
                        let was_empty = stream.epochs.back().unwrap().members == 0;
                        prop_assert_eq!(stream.close(), !was_empty);
                    }
                    // A version is replaced by one of a later epoch.
                    _ => {
                        let (a, b) = (one.index(count), other.index(count));
                        let number = stream.base() + a.max(b) as u32;
                        let epoch = &mut stream.epochs[a.min(b)];
                        epoch.fused_to = epoch.fused_to.max(if a == b { 0 } else { number });
                    }
                }
                prop_assert_eq!(stream.base() + stream.epochs.len() as u32, stream.open + 1);
                prop_assert_eq!(stream.ready(), ready_by_definition(&stream));
                for epoch in stream.base()..=stream.open {
                    // Epochs that count together end together.
                    let together = stream.together(epoch);
                    prop_assert!(together >= epoch);
                    prop_assert_eq!(stream.together(together), together);
                }
            }
        }
    }
}
