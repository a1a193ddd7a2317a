//! Streams and epochs: what a device with barriers keeps in order (barriers §2, contract §6, contract §8).
//!
//! Place in the data flow: a version that belongs to a stream joins its open epoch when it is accepted
//! ([`crate::write`]); a barrier closes the epoch. A version is *stable* when no cut can make recovery discard it. When
//! that is depends on the policy:
//!
//! * in-order write-back: a version is written only when all earlier epochs of its stream are on the medium, so what is
//!   on the medium is stable; until then it is `Held`;
//! * in-order recovery: everything is written at once. Recovery counts the members of each epoch and discards what
//!   follows an incomplete one, so a version is stable when it and all earlier epochs are on the medium;
//! * transactional: everything is written at once, and is stable when a record in the map log says that its epoch and all
//!   earlier ones are complete.
//!
//! Invariants:
//! 1. A version stays in the buffer until it is stable; what it replaces stays readable until then (contract §7.2).
//! 2. Under in-order recovery every member of an incomplete epoch can be found on the medium, also a superseded one; and
//!    when the last copy of a member of a complete epoch is erased, a record that the epoch is complete is durable.
//! 3. A replacement in the buffer takes over exactly one place in an epoch.
//!
//! Deliberately absent: order on a device whose buffer is protected (all that was accepted survives), atomic groups. An
//! ordered deallocation is accepted when all earlier epochs of its stream are stable, so only what follows waits for it.

use crate::arrivals::Arrivals;
use crate::buffer::SlotState;
use crate::config::PersistPolicy;
use crate::device::{Device, Effect};
use crate::planted::PlantedBug;
use flashweir_core::command::StreamId;
use flashweir_core::{DeviceError, Instant, Order, Ppa};
use flashweir_ftl::BlockId;
use flashweir_ftl::recovery::{MEMBERS_MAX, Member, UNKNOWN_DISTANCE};
use std::collections::{BTreeMap, BTreeSet, VecDeque};

/// Epochs of one stream between two checkpoints at most: their numbers have 24 bits on flash.
const EPOCHS_MAX: u32 = 1 << 23;

/// Why a unit is valid that the map does not name.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Kept {
    /// The version in this slot is not stable.
    Slot(u32),
    /// It is superseded, but recovery counts it as a member of an epoch that is not complete.
    Counted(StreamId, u32),
}

#[derive(Clone, Debug, Default)]
struct Epoch {
    /// Members so far.
    members: u32,
    /// Members that are not on the medium.
    left: u32,
    /// Members of the epoch before.
    previous: u16,
    /// Sequence number of its first member.
    first_seq: u64,
    /// Slots that joined; some may have been given back since.
    slots: Vec<u32>,
    /// Superseded members on the medium that recovery counts.
    counted: BTreeSet<Ppa>,
    /// Deallocations whose records are not durable.
    trims: Vec<u64>,
    /// A version of this epoch was replaced by one of that later epoch: the two and what is between count together.
    fused_to: u32,
}

#[derive(Clone, Debug)]
struct Stream {
    /// Number of the open epoch, from 1.
    open: u32,
    /// The epochs that are not complete, and the open one.
    epochs: VecDeque<Epoch>,
    /// All epochs up to this one are complete, as a durable record says.
    recorded: u32,
    /// … as the last record says that was made.
    recording: u32,
    /// Somebody waits for the epochs up to this one.
    wanted: u32,
    /// The open epoch at the last checkpoint.
    checkpointed: u32,
    /// A member of an epoch was lost.
    failed: bool,
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
    fn base(&self) -> u32 {
        self.open + 1 - self.epochs.len() as u32
    }

    fn epoch(&mut self, number: u32) -> &mut Epoch {
        let at = number - self.base();
        &mut self.epochs[at as usize]
    }

    /// Closes the open epoch; an empty one stays open.
    fn close(&mut self) -> bool {
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
    fn together(&self, epoch: u32) -> u32 {
        let epochs = self.epochs.iter().zip(self.base()..);
        epochs
            .fold(epoch, |last, (epoch, number)| if number <= last { last.max(epoch.fused_to) } else { last })
    }

    /// The last closed epoch such that it and all earlier ones are on the medium and none of them counts together with a
    /// later one.
    fn ready(&self) -> u32 {
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
pub(crate) struct Streams {
    /// The device keeps epochs in order; otherwise nothing below is ever used.
    policy: PersistPolicy,
    streams: BTreeMap<StreamId, Stream>,
    /// Commands of each stream that are not in the queue of acceptance.
    pub(crate) arrivals: BTreeMap<StreamId, Arrivals>,
    kept: BTreeMap<Ppa, Kept>,
    /// Superseded members that are kept, and how many of them are too many.
    counted: usize,
    counted_max: usize,
    /// Versions that never become stable, because an earlier member was lost.
    stuck: u32,
    /// Members of earlier boots have sequence numbers up to this one.
    since: u64,
}

impl Streams {
    pub(crate) fn new(policy: PersistPolicy, counted_max: usize) -> Self {
        Self { policy, counted_max, ..Self::default() }
    }

    /// Whether so many superseded members are kept that their epochs have to end.
    pub(crate) fn is_pressed(&self) -> bool {
        self.counted > self.counted_max
    }

    /// Members that were written before do not count any more.
    pub(crate) fn begin_boot(&mut self, seq: u64) {
        self.since = seq;
    }

    /// Whether recovery counts members.
    fn counts(&self) -> bool {
        self.policy == PersistPolicy::InOrderRecovery
    }

    /// Whether the device keeps epochs in order.
    pub(crate) fn is_used(&self) -> bool {
        self.policy != PersistPolicy::None
    }

    /// Versions in the buffer that nobody may wait for.
    pub(crate) fn stuck(&self) -> u32 {
        self.stuck
    }

    /// Valid units that the map does not name.
    pub(crate) fn kept(&self) -> usize {
        self.kept.len()
    }

    pub(crate) fn is_kept(&self, ppa: Ppa) -> bool {
        self.kept.contains_key(&ppa)
    }

    /// Whether a kept unit lies in `units`.
    pub(crate) fn any_kept(&self, units: std::ops::Range<u64>) -> bool {
        self.kept.range(Ppa(units.start)..Ppa(units.end)).next().is_some()
    }

    /// Everything below was accepted before the first epoch that recovery may have to count.
    pub(crate) fn horizon(&self) -> Option<u64> {
        let epochs = self.streams.values().filter_map(|stream| stream.epochs.front());
        epochs.filter(|epoch| self.counts() && epoch.members > 0).map(|epoch| epoch.first_seq).min()
    }

    /// A stream that lost a member; only a power cycle begins it anew.
    pub(crate) fn failed(&self) -> Option<StreamId> {
        self.streams.iter().find(|(_, stream)| stream.failed).map(|(id, _)| *id)
    }

    /// One line for each stream, for the message of a run that wedged.
    /// One line for each stream with what its oldest epoch waits for, for the message of a run that wedged.
    pub(crate) fn describe(&self) -> String {
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
    pub(crate) fn recordings(&self) -> Vec<(StreamId, u32)> {
        self.streams
            .iter()
            .map(|(id, stream)| (*id, stream.recording))
            .filter(|(_, epoch)| *epoch > 0)
            .collect()
    }
}

impl Device {
    /// The stream that a command belongs to, if that means anything here.
    pub(crate) fn stream_of(&self, command: u32) -> Option<StreamId> {
        self.commands.get(command).command.stream.filter(|_| self.orders.policy != PersistPolicy::None)
    }

    /// Refuses a command of a stream that lost a member, from where it stands; false if there is nothing against it.
    pub(crate) fn refuse_failed(&mut self, at: u32, effects: &mut Vec<Effect>) -> bool {
        let Some(id) = self.stream_of(at) else { return false };
        if !self.orders.streams.get(&id).is_some_and(|stream| stream.failed) {
            return false;
        }
        self.accept(at, effects);
        self.commands.get_mut(at).error = Some(DeviceError::StreamFailed(id));
        self.part_done(at, effects);
        true
    }

    /// Whether a version in the buffer may be overwritten in place by one of `stream` (contract §6).
    pub(crate) fn may_replace(&self, slot: u32, stream: Option<StreamId>) -> bool {
        let old = self.buffer.slot(slot);
        if old.state != SlotState::Dirty && old.state != SlotState::Held {
            return false;
        }
        if self.orders.policy == PersistPolicy::None || self.has_planted(PlantedBug::VersionsReplaced) {
            return true;
        }
        let of = stream.and_then(|stream| self.orders.streams.get(&stream));
        let (open, depends) = of.map_or((1, false), |of| (of.open, of.epochs.len() > 1));
        // A range flush of an orderless version's owner must not wait for what an ordered one depends on.
        let independent = !depends || self.buffer.owners(slot).is_empty();
        match (old.member, stream) {
            // Who waits for a version that is held back waits for this one.
            _ if old.state == SlotState::Held && self.is_awaited(slot) => false,
            (_, None) => true,
            (None, Some(_)) => independent,
            (Some((theirs, epoch)), Some(stream)) if theirs == stream => match (epoch == open, old.orderless)
            {
                (true, orderless) => !orderless || independent,
                (false, orderless) => !orderless && open - epoch < self.config.order.fuse_epochs,
            },
            (Some(_), Some(_)) => false,
        }
    }

    /// Whether a command waits for the version in a slot.
    fn is_awaited(&self, slot: u32) -> bool {
        let version = self.buffer.slot(slot);
        version.waiter.is_some()
            || self.buffer.is_waited_for(slot)
            || self.flushes.iter().any(|flush| flush.upto >= version.seq)
    }

    /// The version that was just written over another one in place takes over or takes a place in an epoch.
    pub(crate) fn replace_member(&mut self, slot: u32, stream: Option<StreamId>) {
        let old = self.buffer.slot(slot).member;
        match (old, stream) {
            (None, None) => {}
            (Some((id, epoch)), None) => {
                self.forget_stuck(slot);
                self.buffer.slot_mut(slot).orderless = true;
                self.buffer.unhold(slot);
                // Somebody waits for its epoch, which cannot be complete without it.
                if self.orders.streams[&id].wanted >= epoch {
                    self.place(slot, true);
                }
            }
            (None, Some(stream)) => self.join(slot, stream),
            (Some((_, epoch)), Some(stream)) => {
                self.buffer.slot_mut(slot).orderless = false;
                let open = self.orders.streams.get(&stream).map_or(1, |stream| stream.open);
                if epoch == open || self.has_planted(PlantedBug::VersionsReplaced) {
                    self.hold_back(slot);
                    return;
                }
                let of = self.orders.streams.entry(stream).or_default();
                let earlier = of.epoch(epoch);
                earlier.left -= 1;
                earlier.fused_to = earlier.fused_to.max(open);
                self.metrics.epochs_fused += 1;
                self.join(slot, stream);
            }
        }
    }

    /// A version joins the open epoch of its stream.
    pub(crate) fn join(&mut self, slot: u32, id: StreamId) {
        let seq = self.buffer.slot(slot).seq;
        let epoch = self.add_member(id, seq);
        self.orders.streams.entry(id).or_default().epoch(epoch).slots.push(slot);
        let version = self.buffer.slot_mut(slot);
        (version.member, version.orderless) = (Some((id, epoch)), false);
        self.metrics.ordered_units += 1;
        self.hold_back(slot);
    }

    fn add_member(&mut self, id: StreamId, seq: u64) -> u32 {
        let stream = self.orders.streams.entry(id).or_default();
        if stream.epochs.back().is_some_and(|open| open.members == MEMBERS_MAX) {
            stream.close();
        }
        let open = stream.epochs.back_mut().expect("one epoch is open");
        if open.members == 0 {
            open.first_seq = seq;
        }
        open.members += 1;
        open.left += 1;
        stream.open
    }

    /// In-order write-back: a version whose turn has not come is held back.
    fn hold_back(&mut self, slot: u32) {
        let version = self.buffer.slot(slot);
        let Some((id, epoch)) = version.member else { return };
        let waits = self.orders.policy == PersistPolicy::InOrderWriteBack
            && version.state == SlotState::Dirty
            && epoch > self.orders.streams[&id].base();
        if waits && !self.has_planted(PlantedBug::BarrierIgnored) {
            self.buffer.hold(slot);
        }
    }

    /// What the out-of-band area of a version says about its epoch.
    pub(crate) fn member_of(&self, slot: u32) -> Option<Member> {
        let version = self.buffer.slot(slot);
        let (stream, epoch) = version.member?;
        if self.orders.policy == PersistPolicy::InOrderWriteBack {
            return None;
        }
        Some(Member { orderless: version.orderless, ..self.member_at(stream, epoch) })
    }

    fn member_at(&self, id: StreamId, epoch: u32) -> Member {
        let stream = &self.orders.streams[&id];
        let base = stream.base();
        let previous = epoch.checked_sub(base).map_or(0, |at| stream.epochs[at as usize].previous);
        let previous = if self.has_planted(PlantedBug::MembersUncounted) { 0 } else { previous };
        let distance = epoch - (base - 1).min(epoch);
        let distance = u8::try_from(distance).unwrap_or(UNKNOWN_DISTANCE);
        Member { stream: id, epoch, previous, distance, orderless: false }
    }

    /// A deallocation joins the open epoch of its stream; recovery counts its record.
    pub(crate) fn join_trim(&mut self, id: StreamId, seq: u64) -> Option<Member> {
        let epoch = self.add_member(id, seq);
        self.orders.streams.entry(id).or_default().epoch(epoch).trims.push(seq);
        (self.orders.policy == PersistPolicy::InOrderRecovery).then(|| self.member_at(id, epoch))
    }

    /// Whether all epochs before the open one are stable, so that a deallocation may join it; otherwise they are hastened.
    pub(crate) fn may_trim(&mut self, now: Instant, id: StreamId, effects: &mut Vec<Effect>) -> bool {
        let stream = self.orders.streams.entry(id).or_default();
        if stream.together(stream.open - 1) == stream.open {
            self.close_epoch(id);
        }
        let stream = &self.orders.streams[&id];
        let (open, waits) = (stream.open, stream.epochs.len() > 1);
        if waits && !self.has_planted(PlantedBug::BarrierIgnored) {
            let hastened = self.demand(id, open);
            self.release_pages(now, effects);
            self.demand_wordlines_of(now, &hastened, effects);
            self.settle(now, id, effects);
        }
        self.orders.streams[&id].epochs.len() == 1 || self.has_planted(PlantedBug::BarrierIgnored)
    }

    /// A command of a stream is in: if it is a barrier, the epoch ends.
    pub(crate) fn end_of_command(&mut self, now: Instant, at: u32, effects: &mut Vec<Effect>) {
        let Some(id) = self.stream_of(at) else { return };
        if self.commands.get(at).command.order == Some(Order::Barrier) {
            self.close_epoch(id);
        }
        self.settle(now, id, effects);
    }

    /// Accepts a barrier of no length.
    pub(crate) fn accept_barrier(&mut self, now: Instant, at: u32, effects: &mut Vec<Effect>) {
        self.accept(at, effects);
        self.metrics.barriers += 1;
        if let Some(id) = self.stream_of(at) {
            self.close_epoch(id);
            self.settle(now, id, effects);
        }
        self.part_done(at, effects);
    }

    fn close_epoch(&mut self, id: StreamId) {
        let stream = self.orders.streams.entry(id).or_default();
        if stream.close() {
            self.metrics.epochs += 1;
            if stream.open - stream.checkpointed >= EPOCHS_MAX {
                self.log.want_checkpoint();
            }
        }
    }

    /// Ends the open epoch of every stream, which only strengthens what is promised: a transaction is complete with it,
    /// and a checkpoint need not wait for a host that is done.
    pub(crate) fn close_epochs(&mut self) {
        for id in self.orders.streams.keys().copied().collect::<Vec<_>>() {
            self.close_epoch(id);
        }
    }

    /// Somebody waits for the epochs of a stream before `epoch`: what of them may be written is written first. Returns their
    /// versions that are not on the medium.
    fn demand(&mut self, id: StreamId, epoch: u32) -> Vec<u32> {
        let Some(stream) = self.orders.streams.get_mut(&id) else { return Vec::new() };
        stream.wanted = stream.wanted.max(epoch - 1);
        let stream = &self.orders.streams[&id];
        let before = stream.epochs.iter().zip(stream.base()..epoch);
        if before.clone().any(|(epoch, _)| !epoch.trims.is_empty()) {
            self.log.want();
        }
        let member = |slot: &u32| self.buffer.slot(*slot).member.is_some_and(|(of, _)| of == id);
        let waits = |slot: &u32| {
            let state = self.buffer.slot(*slot).state;
            matches!(state, SlotState::Dirty | SlotState::Held | SlotState::Placed)
        };
        let slots = before.flat_map(|(epoch, _)| epoch.slots.iter().copied());
        let mut slots: Vec<u32> = slots.filter(|slot| member(slot) && waits(slot)).collect();
        slots.sort_unstable_by_key(|slot| (self.buffer.slot(*slot).seq, self.buffer.slot(*slot).lpn));
        slots.dedup();
        slots.iter().for_each(|slot| self.hasten(*slot));
        slots
    }

    /// What the version in a slot depends on becomes urgent, itself not. A transaction is complete with its whole epoch.
    pub(crate) fn demand_closure(&mut self, slot: u32) -> Vec<u32> {
        let version = self.buffer.slot(slot);
        let Some((id, epoch)) = version.member.filter(|_| !version.orderless) else { return Vec::new() };
        let stream = self.orders.streams.get_mut(&id).expect("a member has a stream");
        stream.wanted = stream.wanted.max(epoch);
        if self.orders.policy != PersistPolicy::Transactional {
            return self.demand(id, epoch);
        }
        let last = stream.together(epoch);
        if last == stream.open {
            self.close_epoch(id);
        }
        self.demand(id, last + 1)
    }

    /// Somebody waits for everything.
    pub(crate) fn demand_all(&mut self) {
        if self.orders.policy == PersistPolicy::Transactional {
            self.close_epochs();
        }
        for stream in self.orders.streams.values_mut() {
            stream.wanted = stream.open;
            if stream.epochs.iter().any(|epoch| !epoch.trims.is_empty()) {
                self.log.want();
            }
        }
    }

    /// Ends all epochs and hastens what they lack, so that what they keep of the medium becomes free.
    pub(crate) fn complete_epochs(&mut self, now: Instant, effects: &mut Vec<Effect>) {
        self.close_epochs();
        let mut hastened = Vec::new();
        for (id, open) in
            self.orders.streams.iter().map(|(id, stream)| (*id, stream.open)).collect::<Vec<_>>()
        {
            hastened.extend(self.demand(id, open));
        }
        self.release_pages(now, effects);
        self.demand_wordlines_of(now, &hastened, effects);
        self.settle_all(now, effects);
    }

    /// Lets all streams go on as far as they can.
    pub(crate) fn settle_all(&mut self, now: Instant, effects: &mut Vec<Effect>) {
        for id in self.orders.streams.keys().copied().collect::<Vec<_>>() {
            self.settle(now, id, effects);
        }
    }

    /// Whether recovery may still discard the version in a slot once it is on the medium.
    pub(crate) fn is_unstable(&self, slot: u32) -> bool {
        let version = self.buffer.slot(slot);
        let Some((id, epoch)) = version.member.filter(|_| !version.orderless) else { return false };
        let stream = &self.orders.streams[&id];
        match self.orders.policy {
            PersistPolicy::None | PersistPolicy::InOrderWriteBack => false,
            PersistPolicy::Transactional => epoch > stream.recorded,
            PersistPolicy::InOrderRecovery => {
                epoch > stream.base() && !self.has_planted(PlantedBug::EarlyStable)
            }
        }
    }

    /// The version in a slot is on the medium at `ppa` and not stable.
    pub(crate) fn keep(&mut self, slot: u32, ppa: Ppa) {
        self.buffer.programmed(slot, ppa);
        self.orders.kept.insert(ppa, Kept::Slot(slot));
    }

    /// A member of an epoch is on the medium; the caller settles the stream.
    pub(crate) fn member_durable(&mut self, (id, epoch): (StreamId, u32)) {
        let stream = self.orders.streams.get_mut(&id).expect("a member has a stream");
        stream.epoch(epoch).left -= 1;
    }

    /// Goes on with a stream: epochs that are complete become stable, and what waits for them.
    pub(crate) fn settle(&mut self, now: Instant, id: StreamId, effects: &mut Vec<Effect>) {
        let transactional = self.orders.policy == PersistPolicy::Transactional;
        if transactional {
            self.record_ready(id);
        }
        while let Some(stream) = self.orders.streams.get_mut(&id).filter(|stream| stream.epochs.len() > 1) {
            let number = stream.base();
            let complete = match transactional {
                true => number <= stream.recorded,
                false => stream.epochs[0].left == 0,
            };
            if !complete {
                break;
            }
            let epoch = stream.epochs.pop_front().expect("there are two");
            self.orders.counted -= epoch.counted.len();
            for ppa in epoch.counted {
                self.orders.kept.remove(&ppa);
                self.invalidate(ppa);
            }
            if transactional {
                self.stabilise(&epoch.slots, id, number, effects);
                continue;
            }
            let stream = &self.orders.streams[&id];
            let (next, wanted) = (number + 1, stream.wanted);
            let slots = stream.epochs[0].slots.clone();
            self.stabilise(&slots, id, next, effects);
            for slot in slots {
                let version = self.buffer.slot(slot);
                if version.state == SlotState::Held && version.member == Some((id, next)) {
                    self.buffer.unhold(slot);
                    if wanted > next || (wanted == next && self.is_awaited(slot)) {
                        self.place(slot, true);
                    }
                }
            }
        }
        self.release_pages(now, effects);
        self.pump_log(now, effects);
        self.check_flushes(effects);
    }

    /// Makes stable what is on the medium of an epoch.
    fn stabilise(&mut self, slots: &[u32], id: StreamId, epoch: u32, effects: &mut Vec<Effect>) {
        for &slot in slots {
            let version = self.buffer.slot(slot);
            if let SlotState::Programmed(ppa) = version.state
                && version.member == Some((id, epoch))
            {
                self.orders.kept.remove(&ppa);
                self.unit_stable(slot, ppa, true, effects);
            }
        }
    }

    /// Transactional: a record says which epochs are complete.
    fn record_ready(&mut self, id: StreamId) {
        let Some(stream) = self.orders.streams.get_mut(&id) else { return };
        let ready = stream.ready();
        if ready > stream.recording {
            stream.recording = ready;
            self.log.add_complete(id, ready);
            self.metrics.order_records += 1;
        }
        let crowded = self.orders.kept.len() as u64 * 8 >= u64::from(self.buffer.capacity());
        if stream.recording > stream.recorded && (crowded || stream.wanted > stream.recorded) {
            self.log.want();
        }
    }

    /// These records are durable: all epochs of a stream up to one are complete.
    pub(crate) fn records_durable(&mut self, recorded: &[(StreamId, u32)]) {
        for (id, epoch) in recorded {
            if let Some(stream) = self.orders.streams.get_mut(id) {
                stream.recorded = stream.recorded.max(*epoch);
            }
        }
    }

    /// The log went on: deallocations that are durable count, and streams go on.
    pub(crate) fn orders_advanced(&mut self, now: Instant, effects: &mut Vec<Effect>) {
        let durable = self.log.durable_trims();
        for stream in self.orders.streams.values_mut() {
            for epoch in &mut stream.epochs {
                let before = epoch.trims.len();
                epoch.trims.retain(|seq| *seq > durable);
                epoch.left -= (before - epoch.trims.len()) as u32;
            }
        }
        self.settle_all(now, effects);
    }

    /// A checkpoint is about to be made: it says which epochs are complete.
    pub(crate) fn note_complete_epochs(&mut self) {
        let counts = self.orders.counts();
        for stream in self.orders.streams.values_mut() {
            stream.checkpointed = stream.open;
            if counts {
                stream.recording = stream.base() - 1;
            }
        }
    }

    /// Blocks that hold members of which recovery after a checkpoint must know: it may not vouch for them.
    pub(crate) fn blocks_with_members(&self, horizon: u64) -> Vec<BlockId> {
        if self.orders.streams.is_empty() || self.has_planted(PlantedBug::MembersVouched) {
            return Vec::new();
        }
        let has = |block: &BlockId| self.media.members(*block).any(|(_, seq)| seq > horizon);
        self.space.blocks.ids().filter(has).collect()
    }

    /// Whether a block about to be erased may hold the last copy of a member of a complete epoch of which no record says
    /// so. Then one is made; the caller waits for the log.
    pub(crate) fn needs_record(&mut self, block: BlockId) -> bool {
        if !self.orders.counts()
            || !self.keeps_metadata()
            || self.has_planted(PlantedBug::WatermarkUnrecorded)
        {
            return false;
        }
        let since = self.orders.since;
        let members = self.media.members(block).filter(|(_, seq)| *seq > since);
        let mut streams: Vec<StreamId> = members
            .filter(|(member, _)| {
                let stream = self.orders.streams.get(&member.stream);
                stream.is_some_and(|s| member.epoch < s.base() && member.epoch > s.recorded)
            })
            .map(|(member, _)| member.stream)
            .collect();
        streams.sort_unstable();
        streams.dedup();
        for id in &streams {
            let stream = self.orders.streams.get_mut(id).expect("it was just there");
            let complete = stream.base() - 1;
            if complete > stream.recording {
                stream.recording = complete;
                self.log.add_complete(*id, complete);
                self.metrics.order_records += 1;
            }
        }
        !streams.is_empty()
    }

    /// Whether a unit that nobody needs any more must stay, because recovery counts it; it is kept then.
    pub(crate) fn keep_for_count(&mut self, ppa: Ppa) -> bool {
        if !self.orders.counts() || self.has_planted(PlantedBug::SupersededForgotten) {
            return false;
        }
        let Some(member) = self.media.member(ppa) else { return false };
        let new = self.media.oob(ppa).is_some_and(|(_, seq)| seq > self.orders.since);
        let Some(stream) = self.orders.streams.get_mut(&member.stream).filter(|_| new) else { return false };
        let counts = member.epoch >= stream.base();
        if counts {
            stream.epoch(member.epoch).counted.insert(ppa);
            self.orders.counted += 1;
            self.orders.kept.insert(ppa, Kept::Counted(member.stream, member.epoch));
        }
        counts
    }

    /// Collection has copied a unit that is kept; false if it is not kept any more.
    pub(crate) fn move_kept(&mut self, source: Ppa, copy: Ppa) -> bool {
        let Some(kept) = self.orders.kept.remove(&source) else { return false };
        self.orders.kept.insert(copy, kept);
        match kept {
            Kept::Slot(slot) => self.buffer.programmed(slot, copy),
            Kept::Counted(id, epoch) => {
                let stream = self.orders.streams.get_mut(&id).expect("a member has a stream");
                let counted = &mut stream.epoch(epoch).counted;
                counted.remove(&source);
                counted.insert(copy);
            }
        }
        true
    }

    /// The version in a slot is lost too, or an orderless one took its place.
    pub(crate) fn forget_stuck(&mut self, slot: u32) {
        self.orders.stuck -= u32::from(std::mem::take(&mut self.buffer.slot_mut(slot).stuck));
    }

    /// A member was lost: nothing of later epochs of its stream ever becomes stable, and who waits for it is told.
    pub(crate) fn fail_stream(&mut self, (id, epoch): (StreamId, u32), effects: &mut Vec<Effect>) {
        let Some(stream) = self.orders.streams.get_mut(&id) else { return };
        stream.failed = true;
        // A transaction fails as a whole, and with it what counts together with it.
        let first = match self.orders.policy {
            PersistPolicy::Transactional => {
                (stream.base()..=epoch).find(|number| stream.together(*number) >= epoch).unwrap_or(epoch)
            }
            _ => epoch + 1,
        };
        let later = stream.epochs.iter().zip(stream.base()..).filter(|(_, number)| *number >= first);
        let slots: BTreeSet<u32> = later.flat_map(|(epoch, _)| epoch.slots.iter().copied()).collect();
        for slot in slots {
            let version = self.buffer.slot(slot);
            let held = version.member.is_some_and(|(of, number)| of == id && number >= first);
            if version.state == SlotState::Free || !held || version.orderless || version.stuck {
                continue;
            }
            self.stop_waiting(slot, Some(DeviceError::StreamFailed(id)), effects);
            self.buffer.slot_mut(slot).stuck = true;
            self.orders.stuck += 1;
        }
    }
}
