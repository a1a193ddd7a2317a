//! The agenda: what will happen, in the order in which it will.
//!
//! Invariants: equal times are served in the order in which they were scheduled, so a run is a function
//! of configuration and seed; nothing is ever scheduled in the past.
//!
//! Deliberately absent: cancellation. A timer that may become void carries a generation that its owner
//! compares when it fires.

use crate::time::Instant;
use std::cmp::Ordering;
use std::collections::BinaryHeap;

#[derive(Clone, Debug)]
struct Entry<E> {
    /// Time in the upper half, order of scheduling in the lower: one comparison decides.
    key: u128,
    event: E,
}

impl<E> PartialEq for Entry<E> {
    fn eq(&self, other: &Self) -> bool {
        self.key == other.key
    }
}
impl<E> Eq for Entry<E> {}
impl<E> PartialOrd for Entry<E> {
    fn partial_cmp(&self, other: &Self) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}
impl<E> Ord for Entry<E> {
    /// Reversed: the standard heap gives the greatest first, an agenda the earliest.
    fn cmp(&self, other: &Self) -> Ordering {
        other.key.cmp(&self.key)
    }
}

/// A queue of future events, keyed `(Instant, Seq)`.
#[derive(Clone, Debug)]
pub struct Agenda<E> {
    heap: BinaryHeap<Entry<E>>,
    scheduled: u64,
    now: Instant,
}

impl<E> Default for Agenda<E> {
    fn default() -> Self {
        Self { heap: BinaryHeap::with_capacity(256), scheduled: 0, now: Instant::ZERO }
    }
}

impl<E> Agenda<E> {
    /// The time of the last event that was taken.
    #[inline]
    pub fn now(&self) -> Instant {
        self.now
    }

    /// Schedules `event` at `at`; panics if that is in the past (a bug of ours).
    #[inline]
    pub fn at(&mut self, at: Instant, event: E) {
        assert!(at >= self.now, "scheduled {at:?} in the past of {:?}", self.now);
        let key = (u128::from(at.as_nanos()) << 64) | u128::from(self.scheduled);
        self.scheduled += 1;
        self.heap.push(Entry { key, event });
    }

    /// Takes the next event and moves time to it.
    #[inline]
    pub fn pop(&mut self) -> Option<(Instant, E)> {
        let Entry { key, event } = self.heap.pop()?;
        self.now = Instant::from_nanos((key >> 64) as u64);
        Some((self.now, event))
    }

    /// When the next event happens.
    pub fn peek(&self) -> Option<Instant> {
        self.heap.peek().map(|e| Instant::from_nanos((e.key >> 64) as u64))
    }

    /// Number of events that wait.
    pub fn len(&self) -> usize {
        self.heap.len()
    }

    /// Whether nothing will happen any more.
    pub fn is_empty(&self) -> bool {
        self.heap.is_empty()
    }

    /// How many events were ever scheduled.
    pub fn scheduled(&self) -> u64 {
        self.scheduled
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::time::Duration;

    #[test]
    fn equal_times_keep_their_order() {
        let mut agenda = Agenda::default();
        let at = |ns| Instant::from_nanos(ns);
        agenda.at(at(5), 'b');
        agenda.at(at(1), 'a');
        agenda.at(at(5), 'c');
        agenda.at(at(5), 'd');
        let order: String = std::iter::from_fn(|| agenda.pop().map(|(_, e)| e)).collect();
        assert_eq!(order, "abcd");
        assert_eq!(agenda.now(), Instant::ZERO + Duration::from_nanos(5));
    }

    #[test]
    #[should_panic(expected = "in the past")]
    fn the_past_is_refused() {
        let mut agenda = Agenda::default();
        agenda.at(Instant::from_nanos(5), ());
        agenda.pop();
        agenda.at(Instant::from_nanos(4), ());
    }
}
