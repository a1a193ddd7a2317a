//! Admission: a queued request enters rings as limiter and room allow, and the map names its entries from then on (open-channel §1.2).
//!
//! Place in the data flow: [`target`](super::target) queues writes and deallocations; what is admitted waits in a ring for its program.
//! GC makes room for its copies here, too ([`collect`](super::collect)).
//!
//! Invariants:
//! 1. A slot is filled only after what it held is published.
//! 2. The entry that the map names keeps the newest durable version of its unit valid until its own is durable (contract §7).
//! 3. A request is refused only when nothing that is under way could make room, and GC was told to take any line.

use super::config::{Invalidation, Sequence, Trims};
use super::costs::WhenFull;
use super::map::{Slot, Word};
use super::planted::PlantedHostBug;
use super::ring::{Before, Change, Entry, Ring, State};
use super::state::{Collecting, HostFtl, Limiter, Queued, Waiter};
use super::streams::Place;
use crate::layer::Effect;
use flashweir_core::command::Tag;
use flashweir_core::{DeviceError, Done, Lpn, Payload};
use std::collections::VecDeque;

/// Units of one record of a TRIM at most, which bounds the memory that it holds until it is durable.
const TRIM_UNITS_MAX: u64 = 1 << 16;

impl HostFtl {
    pub(super) fn admit_all(&mut self, effects: &mut Vec<Effect>) -> bool {
        let mut has_moved = false;
        if self.retries() {
            return false;
        }
        for ring in 0..self.queued.len() {
            while self.first_to_enter(ring).is_some_and(|at| self.admit(ring, at, effects)) {
                has_moved = true;
            }
        }
        has_moved
    }

    /// The first request of a queue that does not wait for earlier epochs: threads may bring those of a stream out of order.
    fn first_to_enter(&self, ring: usize) -> Option<usize> {
        let may_enter = |queued: &Queued| self.orders.may_enter(queued.order) != Ok(false);
        self.queued[ring].iter().position(may_enter)
    }

    /// Whether requests enter rings only when their threads try.
    pub(super) fn retries(&self) -> bool {
        self.threads.is_some() && self.config.full == WhenFull::Retry
    }

    /// A thread tries to bring its request into a ring.
    pub(super) fn try_again(&mut self, token: u64, own: usize, effects: &mut Vec<Effect>) {
        loop {
            let Some(at) = self.queued[own].iter().position(|queued| queued.token == token) else { return };
            if self.admit(own, at, effects) {
                continue;
            }
            // Between two tries GC and writers had their turn; what they leave unchanged stays so.
            let may_enter = self.orders.may_enter(self.queued[own][at].order);
            let is_busy = self.is_busy() || may_enter == Ok(false);
            let queued = &mut self.queued[own][at];
            queued.vain_tries = if is_busy { 0 } else { queued.vain_tries + 1 };
            self.user_is_stuck |= !is_busy;
            if queued.vain_tries > 2 {
                return self.refuse(own, at, DeviceError::ReadOnly, effects);
            }
            let Some(threads) = &mut self.threads else { return };
            return threads.retry(self.now, token, own);
        }
    }

    /// Whether anything is under way that may make room in rings.
    pub(super) fn is_busy(&self) -> bool {
        self.has_tasks() || self.rings.iter().any(|ring| ring.pending() > 0) && !self.is_out_of_pages()
    }

    fn has_tasks(&self) -> bool {
        !self.tasks.is_empty() || self.answers_held > 0
    }

    /// Whether a request of the user waits for what GC frees.
    pub(super) fn user_waits(&self) -> bool {
        self.user_waits_for_space || self.user_is_stuck
    }

    /// Whether what is in rings can never leave them: failed programs and erases, or padding, took the last pages that GC could write to.
    fn is_out_of_pages(&self) -> bool {
        !self.has_tasks() && self.lines.free_units() == 0
    }

    /// Brings some units of a ring's queued request into a ring, or answers it; returns whether anything changed.
    fn admit(&mut self, own: usize, at: usize, effects: &mut Vec<Effect>) -> bool {
        let Some(head) = self.queued[own].get(at) else { return false };
        match self.orders.may_enter(head.order) {
            Ok(true) => {}
            Ok(false) => return false,
            Err(error) => {
                self.refuse(own, at, error, effects);
                return true;
            }
        }
        let (left, is_trim) = (head.units - head.done, head.data.is_none());
        if left == 0 {
            let Queued { token, fua, order, targets, entries, .. } =
                self.queued[own].remove(at).expect("it is queued");
            self.orders.entered(order, false);
            self.passages.admitted(self.now, token);
            match fua && !self.has_planted(PlantedHostBug::FuaAtAcceptance) {
                true if is_trim => self.wait(token, targets, effects),
                true => self.wait_for(token, entries, effects),
                false => self.complete(token, Ok(Done::Ok), 0, effects),
            }
            return true;
        }
        let Some(ring) = self.ring_with_room(own) else {
            (0..self.rings.len()).for_each(|ring| self.hurry_oldest(ring));
            return false;
        };
        let room = self.rings[ring].room() + self.rings[ring].sync - self.rings[ring].published;
        let units = if is_trim { left.min(TRIM_UNITS_MAX) } else { left.min(room) };
        let entries = if is_trim { 1 } else { units as u32 };
        self.user_waits_for_space = !self.has_space_for(entries);
        if self.user_waits_for_space || !self.admit_user(entries) {
            // What is refused may wait for entries that do not fill a page.
            (0..self.rings.len()).for_each(|ring| self.kick(ring));
            return false;
        }
        self.user_is_stuck = false;
        self.make_room(ring, u64::from(entries));
        let mut queued = self.queued[own].remove(at).expect("it is queued");
        let first = queued.first.0 + queued.done;
        match &mut queued.data {
            Some(data) => {
                for unit in first..first + units {
                    let payload = std::mem::take(&mut data[(unit - queued.first.0) as usize]);
                    self.accept_write(ring, Lpn(unit), payload, queued.tags, queued.order);
                }
            }
            None => self.accept_trim(ring, (first, units), queued.tags, queued.order),
        }
        queued.done += units;
        if queued.fua && queued.done < queued.units && self.has_planted(PlantedHostBug::FuaEndsTwice) {
            self.wait(queued.token, vec![(ring, self.rings[ring].mem)], effects);
        }
        match is_trim {
            // What is deallocated already may be so by a record in any ring.
            true => queued.targets = self.rings.iter().map(Ring::end_of_users).enumerate().collect(),
            false if queued.fua => {
                let end = self.rings[ring].mem;
                queued.entries.extend((end - units..end).map(|position| (ring, position)));
            }
            false => {}
        }
        self.queued[own].insert(at, queued);
        true
    }

    /// The submitter's ring, or one other that is tried if that is full (open-channel §2.4).
    fn ring_with_room(&mut self, own: usize) -> Option<usize> {
        let has_room = |ring: &Ring| ring.room() > 0 || ring.published < ring.sync;
        if has_room(&self.rings[own]) {
            return Some(own);
        }
        self.other_ring = (self.other_ring + 1) % self.rings.len();
        has_room(&self.rings[self.other_ring]).then_some(self.other_ring)
    }

    /// Whether so many units more leave GC what it needs: a line in each group to copy to, and padding.
    fn has_space_for(&self, units: u32) -> bool {
        let pending: u64 = self.rings.iter().map(Ring::pending).sum();
        let padding = (self.rings.len() * 2) as u64 * u64::from(self.layout.program_units());
        // A line for GC; where blocks fail, another one, because a line with a failed program takes no more data, and one may not come back
        // from its erase.
        let lines = if self.lines.may_fail() { 2 } else { 1 };
        let reserve = lines * u64::from(self.layout.groups) * u64::from(self.layout.data_units());
        self.lines.free_units() >= pending + padding + reserve + u64::from(units)
    }

    fn admit_user(&mut self, entries: u32) -> bool {
        let gc_runs = self.collecting.iter().any(Option::is_some);
        let gc_waits = self.collecting.iter().flatten().any(Collecting::has_copies);
        match &mut self.limiter {
            Limiter::Windows(windows) => windows.admit_user(entries),
            Limiter::Scores(scores) => scores.admit_user(entries, gc_runs, gc_waits),
        }
    }

    /// Whether GC has to leave room to the user: it wrote in the last seconds, and does not wait for what only GC can give.
    pub(super) fn user_limits_gc(&self) -> bool {
        !self.user_waits_for_space
            && self.user_was_active.is_some_and(|at| self.now.since(at) < self.config.user_active_for)
    }

    fn accept_write(&mut self, ring: usize, lpn: Lpn, payload: Payload, tags: [Tag; 2], order: Place) {
        let (seq, member) = (self.next_seq(), self.orders.join(order));
        let slot = self.rings[ring].slot(self.rings[ring].mem);
        let before = self.install(lpn, slot, seq);
        let (change, is_gc, state) = (Change::Write(payload), false, State::Filled);
        self.rings[ring].push(Entry { change, seq, tags, is_gc, member, state, before: vec![before] });
        self.metrics.user_units += 1;
    }

    fn accept_trim(&mut self, ring: usize, (first, units): (u64, u64), tags: [Tag; 2], order: Place) {
        // A range flush by tag, like a later epoch, relies on this deallocation, and not on an earlier one that may be lost.
        let is_relied_on = order.is_some() || tags != [Tag(0); 2];
        let seq = self.next_seq();
        let slot = self.rings[ring].slot(self.rings[ring].mem);
        let mut before = Vec::new();
        for lpn in (first..first + units).map(Lpn) {
            let has_content = match self.map.get(lpn) {
                Word::Empty | Word::Trimmed(_) => false,
                Word::Place(_) => true,
                Word::Cached(slot) => {
                    let entry = self.rings[usize::from(slot.ring)].look(slot);
                    let is_lost = |entry: &Entry| is_relied_on && entry.state != State::Persistent;
                    entry.is_some_and(|entry| matches!(entry.change, Change::Write(_)) || is_lost(entry))
                }
            };
            if has_content {
                before.push(self.install(lpn, slot, seq));
            }
        }
        // A member counts even if it changes nothing: whoever waits for it waits for what comes before it.
        if before.is_empty() && order.is_none() {
            return self.forget_admission();
        }
        if self.config.trims == Trims::Forgotten || self.has_planted(PlantedHostBug::TrimLost) {
            for Before { lpn, place, .. } in before {
                self.map.exchange(lpn, Word::Empty);
                self.release(place);
            }
            return self.forget_admission();
        }
        let (change, is_gc, state) = (Change::Trim(vec![(first, units)]), false, State::Filled);
        let member = self.orders.join(order);
        self.rings[ring].push(Entry { change, seq, tags, is_gc, member, state, before });
    }

    /// An admitted entry did not enter its ring.
    fn forget_admission(&mut self) {
        if let Limiter::Windows(windows) = &mut self.limiter {
            windows.left(false);
        }
    }

    pub(super) fn next_seq(&mut self) -> u64 {
        self.seq += 1;
        self.seq
    }

    /// The number by which a recovery orders an entry.
    pub(super) fn recorded_seq(&self, seq: u64, position: u64) -> u64 {
        if self.orders_by_ring() { self.first_seq + position + 1 } else { seq }
    }

    /// Whether a recovery will know no order but that of a ring.
    pub(super) fn orders_by_ring(&self) -> bool {
        self.config.sequence == Sequence::Ring || self.has_planted(PlantedHostBug::SequencePerRing)
    }

    /// Makes the map name a slot that is about to be filled; returns the durable version, which stays valid until the slot's own is durable.
    pub(super) fn install(&mut self, lpn: Lpn, slot: Slot, seq: u64) -> Before {
        let mut before = match self.map.exchange(lpn, Word::Cached(slot)) {
            Word::Cached(old) => {
                let entry =
                    self.rings[usize::from(old.ring)].find(old).expect("the map names living entries");
                let old = entry.before(lpn);
                Before { place: std::mem::replace(&mut old.place, Word::Empty), ..*old }
            }
            // Of all entries under way for this unit none is newer than what the map named.
            place => Before { lpn, place, seq: seq.saturating_sub(1) },
        };
        let is_early = self.config.invalidation == Invalidation::AtAcceptance
            || self.has_planted(PlantedHostBug::EarlyInvalidation);
        if is_early {
            self.release(std::mem::replace(&mut before.place, Word::Empty));
        }
        before
    }

    /// A durable version is superseded.
    pub(super) fn release(&mut self, place: Word) {
        match place {
            Word::Place(ppa) => self.lines.set_invalid(ppa),
            Word::Trimmed(ppa) => {
                let record = self.trims.get_mut(&ppa).expect("a record of a deallocation");
                record.live -= 1;
                if record.live == 0 {
                    self.trims.remove(&ppa);
                    self.lines.set_invalid(ppa);
                }
            }
            Word::Empty => {}
            Word::Cached(_) => unreachable!("a durable version is not in a ring"),
        }
    }

    /// Publishes the oldest durable entries of a ring until so many slots are free.
    pub(super) fn make_room(&mut self, ring: usize, slots: u64) {
        while self.rings[ring].room() < slots && self.rings[ring].published < self.rings[ring].sync {
            let (slot, entry) = self.rings[ring].take_published();
            for Before { lpn, place, .. } in entry.before {
                if self.has_planted(PlantedHostBug::PublishUnconditionally) {
                    self.map.exchange(lpn, place);
                } else {
                    self.map.replace(lpn, Word::Cached(slot), place);
                }
            }
        }
    }

    /// Lets the writer take everything in a ring, padded if need be.
    pub(super) fn kick(&mut self, ring: usize) {
        let ring = &mut self.rings[ring];
        ring.flush_point = ring.mem;
    }

    /// Refuses the first queued request if there will never be room for it, after GC was told to take any line; returns whether anything
    /// changed.
    pub(super) fn refuse_if_full(&mut self, effects: &mut Vec<Effect>) -> bool {
        if self.is_out_of_pages() && !self.waiters.is_empty() {
            for Waiter { token, .. } in std::mem::take(&mut self.waiters) {
                self.complete(token, Err(DeviceError::ReadOnly), 0, effects);
            }
            return true;
        }
        if self.is_busy() || self.retries() {
            return false;
        }
        // What waits for earlier epochs waits for another request here.
        let first = |own| Some((own, self.first_to_enter(own)?));
        let Some((own, at)) = (0..self.queued.len()).find_map(first) else { return false };
        if !std::mem::replace(&mut self.user_is_stuck, true) {
            return true;
        }
        self.refuse(own, at, DeviceError::ReadOnly, effects);
        true
    }

    /// Refuses a queued request, with whatever follows it in its stream.
    fn refuse(&mut self, own: usize, at: usize, error: DeviceError, effects: &mut Vec<Effect>) {
        let Queued { token, order, .. } = self.queued[own].remove(at).expect("it is queued");
        self.orders.entered(order, true);
        if self.queued.iter().all(VecDeque::is_empty) {
            (self.user_waits_for_space, self.user_is_stuck) = (false, false);
        }
        self.complete(token, Err(error), 0, effects);
    }
}
