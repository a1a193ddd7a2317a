//! A ring: accepted units on their way to the medium (open-channel §1.1).
//!
//! ```text
//!      published        sync            subm           mem
//!  ── free ──┴─ persistent ─┴─ in flight ──┴── filled ────┴── free ──►     positions only rise
//! ```
//!
//! Invariants: `published <= sync <= subm <= mem`, and `mem - published` is at most the number of slots. A slot is used again only
//! after its entry is published: the map names its place on the medium, or a newer version.

use super::map::{Slot, Word};
use flashweir_core::command::{StreamId, Tag};
use flashweir_core::{Lpn, Payload};
use std::collections::VecDeque;

/// The newest durable version of a unit that has a newer one in a ring.
#[derive(Clone, Copy, Debug)]
pub(super) struct Before {
    pub(super) lpn: Lpn,
    /// Its word: never a cached one.
    pub(super) place: Word,
    /// Versions up to this number are older, or this one itself.
    pub(super) seq: u64,
}

/// What an entry puts on the medium.
#[derive(Clone, Debug)]
pub(super) enum Change {
    Write(Payload),
    /// First unit and number of units of each deallocated range.
    Trim(Vec<(u64, u64)>),
    /// A page of the record of streams.
    Order(Vec<u8>),
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum State {
    Filled,
    Submitted,
    /// On the medium; members of earlier epochs are not.
    Programmed,
    Persistent,
}

/// An accepted unit.
#[derive(Clone, Debug)]
pub(super) struct Entry {
    pub(super) change: Change,
    /// Number of the version in the order of all.
    pub(super) seq: u64,
    pub(super) tags: [Tag; 2],
    pub(super) is_gc: bool,
    /// Stream and epoch of a member.
    pub(super) member: Option<(StreamId, u32)>,
    pub(super) state: State,
    /// For each unit that it changes, in the order of their numbers, the durable version; exactly one for a write.
    pub(super) before: Vec<Before>,
}

impl Entry {
    /// The durable version of a unit that the entry changes.
    pub(super) fn before(&mut self, lpn: Lpn) -> &mut Before {
        let at = self.before.binary_search_by_key(&lpn.0, |before| before.lpn.0);
        &mut self.before[at.expect("the map names the entry for units that it changes")]
    }
}

/// Number of a ring, and a position there.
pub(super) type Position = (usize, u64);

/// A ring.
#[derive(Clone, Debug)]
pub(super) struct Ring {
    number: u16,
    slots: Vec<Option<Entry>>,
    pub(super) mem: u64,
    pub(super) subm: u64,
    pub(super) sync: u64,
    pub(super) published: u64,
    /// Entries before `subm` whose programs failed, to be written again before all others.
    again: VecDeque<u64>,
    /// Entries for which a request waits, to be written before those for which none does (contract §5.6).
    urgent: VecDeque<u64>,
    /// Entries from `subm` on that programs have taken.
    taken: u64,
    /// Entries before this position are written even if they do not fill a page.
    pub(super) flush_point: u64,
}

impl Ring {
    pub(super) fn new(number: u16, entries: u32) -> Self {
        let (mem, subm, sync, published) = (0, 0, 0, 0);
        let slots = vec![None; entries as usize];
        let (again, urgent) = (VecDeque::new(), VecDeque::new());
        Self { number, slots, mem, subm, sync, published, again, urgent, taken: 0, flush_point: 0 }
    }

    pub(super) fn slot(&self, position: u64) -> Slot {
        let entries = self.slots.len() as u64;
        let (index, generation) = ((position % entries) as u32, (position / entries) as u32);
        Slot { ring: self.number, index, generation }
    }

    /// Slots that no entry occupies.
    pub(super) fn room(&self) -> u64 {
        self.slots.len() as u64 - (self.mem - self.published)
    }

    /// The position behind the last entry that is not durable in another place: a copy by GC is.
    pub(super) fn end_of_users(&self) -> u64 {
        let is_of_user = |position: &u64| self.look_at(*position).is_some_and(|entry| !entry.is_gc);
        (self.sync..self.mem).rev().find(is_of_user).map_or(self.sync, |position| position + 1)
    }

    /// Entries whose programs failed.
    pub(super) fn failures(&self) -> usize {
        self.again.len()
    }

    /// Entries that no program has taken.
    pub(super) fn pending(&self) -> u64 {
        self.mem - self.subm - self.taken + self.again.len() as u64
    }

    /// Whether entries have to be written although they may not fill a page.
    pub(super) fn is_forced(&self) -> bool {
        let is_waiting = |position: &u64| self.is_filled(*position);
        !self.again.is_empty() || self.subm < self.flush_point || self.urgent.iter().any(is_waiting)
    }

    fn is_filled(&self, position: u64) -> bool {
        let at = (position % self.slots.len() as u64) as usize;
        position >= self.subm && self.slots[at].as_ref().is_some_and(|entry| entry.state == State::Filled)
    }

    /// Has an entry written before those for which no request waits, though they may not fill a page.
    pub(super) fn hurry(&mut self, position: u64) {
        if self.is_filled(position) {
            self.urgent.push_back(position);
        }
    }

    /// The position that [`Self::push`] takes next.
    pub(super) fn push(&mut self, entry: Entry) {
        let at = (self.mem % self.slots.len() as u64) as usize;
        assert!(self.slots[at].is_none(), "a slot is free before it is used again");
        self.slots[at] = Some(entry);
        self.mem += 1;
    }

    pub(super) fn at(&mut self, position: u64) -> &mut Entry {
        let at = (position % self.slots.len() as u64) as usize;
        self.slots[at].as_mut().expect("an entry that is not published")
    }

    /// The entry of a slot, unless the slot was used again since.
    pub(super) fn find(&mut self, slot: Slot) -> Option<&mut Entry> {
        let position = u64::from(slot.generation) * self.slots.len() as u64 + u64::from(slot.index);
        let is_there = (self.published..self.mem).contains(&position);
        is_there.then(|| self.at(position))
    }

    /// The entry at a position, if it is not published.
    pub(super) fn look_at(&self, position: u64) -> Option<&Entry> {
        let is_there = (self.published..self.mem).contains(&position);
        self.slots[(position % self.slots.len() as u64) as usize].as_ref().filter(|_| is_there)
    }

    pub(super) fn look(&self, slot: Slot) -> Option<&Entry> {
        self.slots[slot.index as usize].as_ref()
    }

    /// Takes the entry of the next position to publish out of its slot.
    pub(super) fn take_published(&mut self) -> (Slot, Entry) {
        let slot = self.slot(self.published);
        let entry = self.slots[slot.index as usize].take().expect("an entry that is not published");
        self.published += 1;
        (slot, entry)
    }

    /// Takes the next position to be written.
    pub(super) fn take_pending(&mut self) -> Option<u64> {
        if let Some(position) = self.again.pop_front() {
            return Some(position);
        }
        while let Some(position) = self.urgent.pop_front() {
            if self.is_filled(position) {
                self.taken += 1;
                return Some(position);
            }
        }
        self.skip_taken();
        let position = self.subm;
        self.subm += u64::from(position < self.mem);
        (position < self.mem).then_some(position)
    }

    /// Moves `subm` over entries that programs have taken before it was their turn.
    fn skip_taken(&mut self) {
        while self.subm < self.mem && !self.is_filled(self.subm) {
            (self.subm, self.taken) = (self.subm + 1, self.taken - 1);
        }
    }

    /// The program of an entry failed: it is written again.
    pub(super) fn failed(&mut self, position: u64) {
        self.at(position).state = State::Filled;
        if position < self.subm {
            return self.again.push_back(position);
        }
        self.taken -= 1;
        self.urgent.push_front(position);
    }

    /// Moves `sync` over everything that is persistent.
    pub(super) fn advance(&mut self) {
        self.skip_taken();
        while self.sync < self.subm {
            let position = self.sync;
            if self.at(position).state != State::Persistent {
                break;
            }
            self.sync += 1;
        }
    }

    /// Entries that are not published, from the oldest on.
    pub(super) fn entries(&self) -> impl Iterator<Item = (u64, &Entry)> {
        let entries = self.slots.len() as u64;
        let entry = move |at: u64| Some((at, self.slots[(at % entries) as usize].as_ref()?));
        (self.published..self.mem).filter_map(entry)
    }
}
