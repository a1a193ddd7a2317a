//! Requests that wait for durability: FLUSH, range flush, and FUA (contract §4, contract §5).
//!
//! Place in the data flow: [`target`](super::target) and [`admit`](super::admit) put requests here, programs that have ended answer them.
//!
//! Invariants:
//! 1. A FLUSH waits for its rings up to their last entries of users; a range flush and FUA wait for entries, which are urgent with the members that they depend on.
//! 2. An entry counts when it is on the medium and all members of earlier epochs of its stream are.

use super::planted::PlantedHostBug;
use super::ring::{Change, Entry, Position, State};
use super::state::{HostFtl, Waiter};
use crate::layer::Effect;
use flashweir_core::command::{RangeFlush, StreamId};
use flashweir_core::{Done, Lba};
use std::collections::{BTreeMap, BTreeSet};

impl HostFtl {
    /// Entries that a range flush selects and that are not durable. The original of a copy by GC is.
    pub(super) fn selected_by(&self, flush: &RangeFlush) -> Vec<Position> {
        let counts = |entry: &Entry| {
            entry.state != State::Persistent && !entry.is_gc && self.is_selected(flush, entry)
        };
        let of_ring = |at: usize| {
            let entries = self.rings[at].entries().filter(|(_, entry)| counts(entry));
            entries.map(move |(position, _)| (at, position))
        };
        (0..self.rings.len()).flat_map(of_ring).collect()
    }

    fn is_selected(&self, flush: &RangeFlush, entry: &Entry) -> bool {
        let per_unit = self.layout.unit_sectors;
        let overlaps = |first: u64, units: u64| {
            let (from, to) = (first * per_unit, (first + units) * per_unit);
            let meets = |&(lba, blocks): &(Lba, u32)| lba.0 < to && from < lba.0 + u64::from(blocks);
            flush.ranges.iter().any(meets)
        };
        let has_tag = entry.tags.iter().any(|tag| flush.tags.contains(tag));
        let is_in_range = match &entry.change {
            Change::Write(_) => entry.before.iter().any(|before| overlaps(before.lpn.0, 1)),
            Change::Trim(ranges) => ranges.iter().any(|&(first, units)| overlaps(first, units)),
            Change::Order(_) => false,
        };
        is_in_range || has_tag && !self.has_planted(PlantedHostBug::TagsForgotten)
    }

    /// Answers when these entries are durable, with what they depend on. They are urgent; or all before them in their rings are durable
    /// first, where a ring gives nothing out of order.
    pub(super) fn wait_for(&mut self, token: u64, entries: Vec<Position>, effects: &mut Vec<Effect>) {
        let closure = self.closure(&entries);
        if !self.config.urgent {
            let last = |ring| {
                let of_ring = closure.iter().filter(|(other, _)| *other == ring);
                (ring, of_ring.map(|(_, position)| position + 1).max().unwrap_or(0))
            };
            return self.wait(token, (0..self.rings.len()).map(last).collect(), effects);
        }
        self.hurry(&closure);
        self.waiters.push(Waiter { token, targets: Vec::new(), entries: entries.into_iter().collect() });
        self.answer_waiters(effects);
    }

    /// These entries, and the members of earlier epochs that they depend on (contract §5).
    fn closure(&self, entries: &[Position]) -> Vec<Position> {
        let mut closure = entries.to_vec();
        let mut last: BTreeMap<StreamId, u32> = BTreeMap::new();
        for &(ring, position) in entries {
            if let Some((stream, epoch)) = self.rings[ring].look_at(position).and_then(|entry| entry.member) {
                let last = last.entry(stream).or_default();
                *last = (epoch - 1).max(*last);
            }
        }
        closure.extend(self.members_up_to(&last));
        closure
    }

    /// Members in rings of epochs up to these.
    pub(super) fn members_up_to(&self, last: &BTreeMap<StreamId, u32>) -> Vec<Position> {
        let is_among = |entry: &Entry| {
            entry.member.is_some_and(|(stream, epoch)| last.get(&stream).is_some_and(|last| epoch <= *last))
        };
        let of_ring = |at: usize| {
            let entries = self.rings[at].entries().filter(|(_, entry)| is_among(entry));
            entries.map(move |(position, _)| (at, position)).collect::<Vec<_>>()
        };
        let rings = if last.is_empty() { 0..0 } else { 0..self.rings.len() };
        rings.flat_map(of_ring).collect()
    }

    /// A ring may be full since its oldest entry waits for members of earlier epochs, which may not fill a page: they are urgent then.
    pub(super) fn hurry_oldest(&mut self, ring: usize) {
        let position = self.rings[ring].sync;
        let waits = |entry: &Entry| entry.state == State::Programmed;
        if !self.rings[ring].look_at(position).is_some_and(waits) || self.hurried[ring] == position {
            return;
        }
        self.hurried[ring] = position;
        self.hurry(&self.closure(&[(ring, position)]));
    }

    /// Has these entries written before those for which no request waits.
    pub(super) fn hurry(&mut self, entries: &[Position]) {
        for &(ring, position) in entries {
            self.rings[ring].hurry(position);
        }
    }

    /// Answers when each ring is durable up to its position.
    pub(super) fn wait(&mut self, token: u64, targets: Vec<Position>, effects: &mut Vec<Effect>) {
        for &(ring, position) in &targets {
            let ring = &mut self.rings[ring];
            ring.flush_point = ring.flush_point.max(position);
        }
        self.waiters.push(Waiter { token, targets, entries: BTreeSet::new() });
        self.answer_waiters(effects);
    }

    pub(super) fn answer_waiters(&mut self, effects: &mut Vec<Effect>) {
        let mut waiters = std::mem::take(&mut self.waiters);
        waiters.retain_mut(|waiter| {
            waiter.targets.retain(|&(ring, position)| self.rings[ring].sync < position);
            waiter.entries.retain(|&(ring, position)| {
                self.rings[ring].look_at(position).is_some_and(|entry| entry.state != State::Persistent)
            });
            let is_done = waiter.targets.is_empty() && waiter.entries.is_empty();
            if is_done {
                self.complete(waiter.token, Ok(Done::Ok), 0, effects);
            }
            !is_done
        });
        self.waiters = waiters;
    }
}
