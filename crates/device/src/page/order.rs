//! Streams and epochs: what a device with barriers keeps in order (barriers §2, contract §6, contract §8).
//!
//! Place in the data flow: a version that belongs to a stream joins its open epoch when it is accepted
//! ([`super::accept`]); a barrier closes the epoch. A version is *stable* when no cut can make recovery discard it. When
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

use super::buffer::SlotState;
use super::ftl::{Cx, PageFtl};
use super::work::Due;
use crate::config::PersistPolicy;
use crate::planted::PlantedBug;
use flashweir_core::command::StreamId;
use flashweir_core::{DeviceError, Op, Order, Ppa};
use flashweir_ftl::BlockId;
use flashweir_ftl::epochs::{EPOCHS_MAX, Kept};
use flashweir_ftl::recovery::{MEMBERS_MAX, Member, UNKNOWN_DISTANCE};
use std::collections::BTreeSet;

impl PageFtl {
    /// Whether a checkpoint of the map has no room for another stream: it has a record of each that was ever used, where epochs are
    /// recorded.
    fn has_all_streams(&self) -> bool {
        self.orders.policy != PersistPolicy::InOrderWriteBack
            && self.orders.streams.len() >= self.log.streams_max()
    }

    /// Refuses a command of a stream that lost a member, or of a stream too many, and takes it out of its turn; returns false if the command
    /// is not refused.
    pub(super) fn refuse_failed(&mut self, cx: &mut Cx, at: u32) -> bool {
        let Some(id) = cx.stream_of(at) else { return false };
        if matches!(cx.front.commands.get(at).command.op, Op::Read { .. }) {
            return false;
        }
        let error = match self.orders.streams.get(&id) {
            Some(stream) if stream.failed => DeviceError::StreamFailed(id),
            None if self.has_all_streams() => {
                DeviceError::InvalidField("a stream more than the map log has room for")
            }
            _ => return false,
        };
        self.give_up_share(cx, at);
        cx.accept(at);
        cx.front.commands.get_mut(at).error = Some(error);
        cx.part_done(at);
        true
    }

    /// Whether a version in the buffer may be overwritten in place by one of `stream` (contract §6).
    pub(super) fn may_replace(&self, cx: &Cx, slot: u32, stream: Option<StreamId>) -> bool {
        let old = self.buffer.slot(slot);
        if old.state != SlotState::Dirty && old.state != SlotState::Held {
            return false;
        }
        if self.orders.policy == PersistPolicy::None || cx.has_planted(PlantedBug::VersionsReplaced) {
            return true;
        }
        let of = stream.and_then(|stream| self.orders.streams.get(&stream));
        let (open, depends) = of.map_or((1, false), |of| (of.open, of.epochs.len() > 1));
        // A range flush for the owner of an orderless version must not wait for what an ordered version depends on.
        let independent = !depends || self.buffer.owners(slot).is_empty();
        match (old.member, stream) {
            // A command that waits for a version that is held back waits for this very version.
            _ if old.state == SlotState::Held && self.is_awaited(slot) => false,
            (_, None) => true,
            (None, Some(_)) => independent,
            (Some((theirs, epoch)), Some(stream)) if theirs == stream => match (epoch == open, old.orderless)
            {
                (true, orderless) => !orderless || independent,
                (false, orderless) => !orderless && open - epoch < cx.config.order.fuse_epochs,
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

    /// A version was just written in place over another one: it takes over the place in an epoch, or takes one.
    pub(super) fn replace_member(&mut self, cx: &mut Cx, slot: u32, stream: Option<StreamId>) {
        let old = self.buffer.slot(slot).member;
        match (old, stream) {
            (None, None) => {}
            (Some((id, epoch)), None) => {
                self.forget_stuck(slot);
                self.buffer.slot_mut(slot).orderless = true;
                self.buffer.unhold(slot);
                // A command waits for its epoch, which cannot be complete without it.
                if self.orders.streams[&id].wanted >= epoch {
                    self.place(cx, slot, true);
                }
            }
            (None, Some(stream)) => {
                self.join(cx, slot, stream);
            }
            (Some((_, epoch)), Some(stream)) => {
                self.buffer.slot_mut(slot).orderless = false;
                let open = self.orders.streams.get(&stream).map_or(1, |stream| stream.open);
                if epoch == open || cx.has_planted(PlantedBug::VersionsReplaced) {
                    self.hold_back(cx, slot);
                    return;
                }
                let of = self.orders.streams.entry(stream).or_default();
                of.epoch(epoch).left -= 1;
                cx.metrics.epochs_fused += 1;
                // Not the one that was open, if that has no room for another member.
                let joined = self.join(cx, slot, stream);
                let earlier = self.orders.streams.entry(stream).or_default().epoch(epoch);
                earlier.fused_to = earlier.fused_to.max(joined);
            }
        }
    }

    /// Makes a version a member of the open epoch of its stream; returns its number.
    pub(super) fn join(&mut self, cx: &mut Cx, slot: u32, id: StreamId) -> u32 {
        let seq = self.buffer.slot(slot).seq;
        let epoch = self.add_member(id, seq);
        self.orders.streams.entry(id).or_default().epoch(epoch).slots.push(slot);
        let version = self.buffer.slot_mut(slot);
        (version.member, version.orderless) = (Some((id, epoch)), false);
        cx.metrics.ordered_units += 1;
        self.hold_back(cx, slot);
        epoch
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

    /// In-order write-back: holds back a version whose turn has not come.
    fn hold_back(&mut self, cx: &mut Cx, slot: u32) {
        let version = self.buffer.slot(slot);
        let Some((id, epoch)) = version.member else { return };
        let waits = self.orders.policy == PersistPolicy::InOrderWriteBack
            && version.state == SlotState::Dirty
            && epoch > self.orders.streams[&id].base();
        if waits && !cx.has_planted(PlantedBug::BarrierIgnored) {
            self.buffer.hold(slot);
        }
    }

    /// The out-of-band data of a version about its epoch.
    pub(super) fn member_of(&self, cx: &Cx, slot: u32) -> Option<Member> {
        let version = self.buffer.slot(slot);
        let (stream, epoch) = version.member?;
        if self.orders.policy == PersistPolicy::InOrderWriteBack {
            return None;
        }
        Some(Member { orderless: version.orderless, ..self.member_at(cx, stream, epoch) })
    }

    fn member_at(&self, cx: &Cx, id: StreamId, epoch: u32) -> Member {
        let stream = &self.orders.streams[&id];
        let base = stream.base();
        let previous = epoch.checked_sub(base).map_or(0, |at| stream.epochs[at as usize].previous);
        let previous = if cx.has_planted(PlantedBug::MembersUncounted) { 0 } else { previous };
        let distance = epoch - (base - 1).min(epoch);
        let distance = u8::try_from(distance).unwrap_or(UNKNOWN_DISTANCE);
        Member { stream: id, epoch, previous, distance, orderless: false }
    }

    /// Makes a deallocation a member of the open epoch of its stream; recovery counts its record.
    pub(super) fn join_change(&mut self, cx: &mut Cx, id: StreamId, seq: u64) -> Option<Member> {
        let epoch = self.add_member(id, seq);
        self.orders.streams.entry(id).or_default().epoch(epoch).trims.push(seq);
        (self.orders.policy == PersistPolicy::InOrderRecovery).then(|| self.member_at(cx, id, epoch))
    }

    /// Whether all epochs before the open one are stable, so that a deallocation may join it; otherwise hastens them.
    pub(super) fn may_change(&mut self, cx: &mut Cx, id: StreamId) -> bool {
        let stream = self.orders.streams.entry(id).or_default();
        if stream.together(stream.open - 1) == stream.open {
            self.close_epoch(cx, id);
        }
        let stream = &self.orders.streams[&id];
        let (open, waits) = (stream.open, stream.epochs.len() > 1);
        if waits && !cx.has_planted(PlantedBug::BarrierIgnored) {
            let hastened = self.demand(cx, id, open);
            self.work.set(Due::Release);
            self.work.complete_wordlines_of(&hastened);
            self.work.settle(id);
        }
        self.orders.streams[&id].epochs.len() == 1 || cx.has_planted(PlantedBug::BarrierIgnored)
    }

    /// A command of a stream has been accepted: if it is a barrier, the epoch ends.
    pub(super) fn end_of_command(&mut self, cx: &mut Cx, at: u32) {
        let Some(id) = cx.stream_of(at) else { return };
        if cx.front.commands.get(at).command.order == Some(Order::Barrier) {
            self.close_epoch(cx, id);
        }
        self.work.settle(id);
    }

    /// Accepts a barrier of no length.
    pub(super) fn accept_barrier(&mut self, cx: &mut Cx, at: u32) {
        cx.accept(at);
        cx.metrics.barriers += 1;
        if let Some(id) = cx.stream_of(at) {
            self.close_epoch(cx, id);
            self.work.settle(id);
        }
        cx.part_done(at);
    }

    pub(super) fn close_epoch(&mut self, cx: &mut Cx, id: StreamId) {
        let Some(stream) = self.orders.streams.get_mut(&id) else { return };
        if stream.close() {
            cx.metrics.epochs += 1;
            if stream.open - stream.checkpointed >= EPOCHS_MAX {
                self.log.want_checkpoint();
                self.work.set(Due::Log);
            }
        }
    }

    /// Ends the open epoch of every stream, which only strengthens what is promised: a transaction is complete with it, and a
    /// checkpoint need not wait for a host that sends no further barrier.
    pub(super) fn close_epochs(&mut self, cx: &mut Cx) {
        for id in self.orders.streams.keys().copied().collect::<Vec<_>>() {
            self.close_epoch(cx, id);
        }
    }

    /// A command waits for the epochs of a stream before `epoch`: those of their versions that may be written are written first.
    /// Returns their versions that are not on the medium.
    fn demand(&mut self, cx: &mut Cx, id: StreamId, epoch: u32) -> Vec<u32> {
        let Some(stream) = self.orders.streams.get_mut(&id) else { return Vec::new() };
        stream.wanted = stream.wanted.max(epoch - 1);
        let stream = &self.orders.streams[&id];
        let before = stream.epochs.iter().zip(stream.base()..epoch);
        if before.clone().any(|(epoch, _)| !epoch.trims.is_empty()) {
            self.log.want();
            self.work.set(Due::Log);
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
        slots.iter().for_each(|slot| self.hasten(cx, *slot));
        slots
    }

    /// Makes urgent what the version in a slot depends on, but not the version itself. A transaction is complete only with its
    /// whole epoch.
    pub(super) fn demand_closure(&mut self, cx: &mut Cx, slot: u32) -> Vec<u32> {
        let version = self.buffer.slot(slot);
        let Some((id, epoch)) = version.member.filter(|_| !version.orderless) else { return Vec::new() };
        let stream = self.orders.streams.get_mut(&id).expect("a member has a stream");
        stream.wanted = stream.wanted.max(epoch);
        if self.orders.policy != PersistPolicy::Transactional {
            return self.demand(cx, id, epoch);
        }
        let last = stream.together(epoch);
        if last == stream.open {
            self.close_epoch(cx, id);
        }
        self.demand(cx, id, last + 1)
    }

    /// A command waits for everything that was accepted.
    pub(super) fn demand_all(&mut self, cx: &mut Cx) {
        if self.orders.policy == PersistPolicy::Transactional {
            self.close_epochs(cx);
        }
        let mut has_trims = false;
        for stream in self.orders.streams.values_mut() {
            stream.wanted = stream.open;
            has_trims |= stream.epochs.iter().any(|epoch| !epoch.trims.is_empty());
        }
        if has_trims {
            self.want_log();
        }
    }

    /// Ends all epochs and hastens what they lack, so that the superseded units that they keep on the medium become free.
    pub(super) fn complete_epochs(&mut self, cx: &mut Cx) {
        self.close_epochs(cx);
        let mut hastened = Vec::new();
        for (id, open) in
            self.orders.streams.iter().map(|(id, stream)| (*id, stream.open)).collect::<Vec<_>>()
        {
            hastened.extend(self.demand(cx, id, open));
        }
        self.work.set(Due::Release);
        self.work.complete_wordlines_of(&hastened);
        self.settle_all();
    }

    /// Puts all streams on the work list.
    pub(super) fn settle_all(&mut self) {
        for id in self.orders.streams.keys().copied().collect::<Vec<_>>() {
            self.work.settle(id);
        }
    }

    /// Whether recovery may still discard the version in a slot once it is on the medium.
    pub(super) fn is_unstable(&self, cx: &Cx, slot: u32) -> bool {
        let version = self.buffer.slot(slot);
        let Some((id, epoch)) = version.member.filter(|_| !version.orderless) else { return false };
        let stream = &self.orders.streams[&id];
        match self.orders.policy {
            PersistPolicy::None | PersistPolicy::InOrderWriteBack => false,
            PersistPolicy::Transactional => epoch > stream.recorded,
            PersistPolicy::InOrderRecovery => {
                epoch > stream.base() && !cx.has_planted(PlantedBug::EarlyStable)
            }
        }
    }

    /// Keeps the version in a slot, which is on the medium at `ppa` and not stable.
    pub(super) fn keep(&mut self, slot: u32, ppa: Ppa) {
        self.buffer.programmed(slot, ppa);
        self.orders.kept.insert(ppa, Kept::Slot(slot));
    }

    /// A member of an epoch is on the medium; the caller settles the stream.
    pub(super) fn member_durable(&mut self, (id, epoch): (StreamId, u32)) {
        let stream = self.orders.streams.get_mut(&id).expect("a member has a stream");
        stream.epoch(epoch).left -= 1;
    }

    /// Advances a stream: complete epochs become stable, and what waits for them proceeds.
    pub(super) fn settle(&mut self, cx: &mut Cx, id: StreamId) {
        let transactional = self.orders.policy == PersistPolicy::Transactional;
        if transactional {
            self.record_ready(cx, id);
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
            // A deallocation may wait for this epoch.
            self.work.set(Due::Admit);
            self.orders.counted -= epoch.counted.len();
            for ppa in epoch.counted {
                self.orders.kept.remove(&ppa);
                self.invalidate(cx, ppa);
            }
            if transactional {
                self.stabilise(cx, &epoch.slots, id, number);
                continue;
            }
            let stream = &self.orders.streams[&id];
            let (next, wanted) = (number + 1, stream.wanted);
            let slots = stream.epochs[0].slots.clone();
            self.stabilise(cx, &slots, id, next);
            for slot in slots {
                let version = self.buffer.slot(slot);
                if version.state == SlotState::Held && version.member == Some((id, next)) {
                    self.buffer.unhold(slot);
                    self.work.set(Due::Destage);
                    if wanted > next || (wanted == next && self.is_awaited(slot)) {
                        self.place(cx, slot, true);
                    }
                }
            }
        }
        self.work.set(Due::Release);
        self.work.set(Due::Log);
        self.work.set(Due::Flushes);
    }

    /// Makes stable the versions of an epoch that are on the medium.
    fn stabilise(&mut self, cx: &mut Cx, slots: &[u32], id: StreamId, epoch: u32) {
        for &slot in slots {
            let version = self.buffer.slot(slot);
            if let SlotState::Programmed(ppa) = version.state
                && version.member == Some((id, epoch))
            {
                self.orders.kept.remove(&ppa);
                self.unit_stable(cx, slot, ppa, true);
            }
        }
    }

    /// Transactional: adds a record of the epochs that are complete.
    fn record_ready(&mut self, cx: &mut Cx, id: StreamId) {
        let Some(stream) = self.orders.streams.get_mut(&id) else { return };
        let ready = stream.ready();
        if ready > stream.recording {
            stream.recording = ready;
            self.log.add_complete(id, ready);
            cx.metrics.order_records += 1;
        }
        let crowded = self.orders.kept.len() as u64 * 8 >= u64::from(self.buffer.capacity());
        if stream.recording > stream.recorded && (crowded || stream.wanted > stream.recorded) {
            self.want_log();
        }
    }

    /// These records are durable: all epochs up to the recorded one of each stream are complete.
    pub(super) fn records_durable(&mut self, recorded: &[(StreamId, u32)]) {
        for (id, epoch) in recorded {
            if let Some(stream) = self.orders.streams.get_mut(id) {
                stream.recorded = stream.recorded.max(*epoch);
            }
        }
    }

    /// The log has advanced: counts the deallocations that are durable, and lets streams proceed.
    pub(super) fn orders_advanced(&mut self) {
        let durable = self.log.durable_changes();
        for stream in self.orders.streams.values_mut() {
            for epoch in &mut stream.epochs {
                let before = epoch.trims.len();
                epoch.trims.retain(|seq| *seq > durable);
                epoch.left -= (before - epoch.trims.len()) as u32;
            }
        }
        self.settle_all();
    }

    /// A checkpoint is about to be made, which records the complete epochs.
    pub(super) fn note_complete_epochs(&mut self) {
        let counts = self.orders.counts();
        for stream in self.orders.streams.values_mut() {
            stream.checkpointed = stream.open;
            if counts {
                stream.recording = stream.base() - 1;
            }
        }
    }

    /// Blocks with members that recovery has to find after a checkpoint, which therefore must not vouch for them.
    pub(super) fn blocks_with_members(&self, cx: &Cx, horizon: u64) -> Vec<BlockId> {
        if self.orders.streams.is_empty() || cx.has_planted(PlantedBug::MembersVouched) {
            return Vec::new();
        }
        let has = |block: &BlockId| cx.flash.media.members(*block).any(|(_, seq)| seq > horizon);
        cx.flash.blocks.ids().filter(has).collect()
    }

    /// Whether a block that is about to be erased may hold the last copy of a member of a complete epoch that no durable record
    /// names as complete. Then adds the record; the caller waits for the log.
    pub(super) fn needs_record(&mut self, cx: &mut Cx, block: BlockId) -> bool {
        if !self.orders.counts() || !cx.keeps_metadata() || cx.has_planted(PlantedBug::WatermarkUnrecorded) {
            return false;
        }
        let since = self.orders.since;
        let members = cx.flash.media.members(block).filter(|(_, seq)| *seq > since);
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
                cx.metrics.order_records += 1;
            }
        }
        !streams.is_empty()
    }

    /// Whether a unit that is otherwise not needed must stay, because recovery counts it; then marks it as kept.
    pub(super) fn keep_for_count(&mut self, cx: &mut Cx, ppa: Ppa) -> bool {
        if !self.orders.counts() || cx.has_planted(PlantedBug::SupersededForgotten) {
            return false;
        }
        let Some(member) = cx.flash.media.member(ppa) else { return false };
        let counts = self.orders.counts_member(Some(member), cx.flash.media.oob(ppa));
        if counts && let Some(stream) = self.orders.streams.get_mut(&member.stream) {
            stream.epoch(member.epoch).counted.insert(ppa);
            self.orders.counted += 1;
            self.orders.kept.insert(ppa, Kept::Counted(member.stream, member.epoch));
        }
        counts
    }

    /// GC has copied a unit that is kept; returns false if it is not kept any more.
    pub(super) fn move_kept(&mut self, source: Ppa, copy: Ppa) -> bool {
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

    /// The version in a slot is lost too, or was replaced by an orderless one: it is not counted as stuck any more.
    pub(super) fn forget_stuck(&mut self, slot: u32) {
        self.orders.stuck -= u32::from(std::mem::take(&mut self.buffer.slot_mut(slot).stuck));
    }

    /// The version in a slot will never leave the buffer.
    pub(super) fn stick(&mut self, slot: u32) {
        self.orders.stuck += u32::from(!std::mem::replace(&mut self.buffer.slot_mut(slot).stuck, true));
    }

    /// A member was lost: no version of a later epoch of its stream ever becomes stable, and commands that wait for one fail.
    pub(super) fn fail_stream(&mut self, cx: &mut Cx, (id, epoch): (StreamId, u32)) {
        let Some(stream) = self.orders.streams.get_mut(&id) else { return };
        stream.failed = true;
        // A transaction fails as a whole, together with the epochs that count together with it.
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
            self.stop_waiting(cx, slot, Some(DeviceError::StreamFailed(id)));
            self.stick(slot);
        }
    }
}
