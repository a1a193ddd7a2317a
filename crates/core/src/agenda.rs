//! The agenda: what will happen, in the order in which it will.
//!
//! Invariants: equal times are served in the order in which they were scheduled, so a run is a function
//! of configuration and seed; nothing is ever scheduled in the past.
//!
//! Deliberately absent: cancellation. A timer that may become void carries a generation that its owner
//! compares when it fires.

use crate::time::Instant;

/// Children of a node. Four keys are one cache line, and the heap is half as deep as a binary one.
const ARITY: usize = 4;
/// Bits of a key that say where its event is kept; the order of scheduling stands above them.
const PLACE_BITS: u32 = 24;

/// A queue of future events, keyed `(Instant, Seq)`.
#[derive(Clone, Debug)]
pub struct Agenda<E> {
    /// A heap with the earliest key first: time in the upper half; below it the order of scheduling, which makes
    /// keys differ, and the place of the event, which does not take part in any comparison that matters.
    heap: Vec<u128>,
    events: Vec<Option<E>>,
    free: Vec<u32>,
    scheduled: u64,
    now: Instant,
}

impl<E> Default for Agenda<E> {
    fn default() -> Self {
        Self { heap: Vec::new(), events: Vec::new(), free: Vec::new(), scheduled: 0, now: Instant::ZERO }
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
        let place = match self.free.pop() {
            Some(place) => {
                self.events[place as usize] = Some(event);
                place
            }
            None => {
                assert!(self.events.len() < 1 << PLACE_BITS, "no more than 2^{PLACE_BITS} events wait");
                self.events.push(Some(event));
                self.events.len() as u32 - 1
            }
        };
        let order = self.scheduled << PLACE_BITS | u64::from(place);
        self.scheduled += 1;
        assert!(self.scheduled < 1 << (64 - PLACE_BITS), "a run schedules fewer than 2^40 events");
        self.heap.push(u128::from(at.as_nanos()) << 64 | u128::from(order));
        self.rise(self.heap.len() - 1);
    }

    /// Takes the next event and moves time to it.
    #[inline]
    pub fn pop(&mut self) -> Option<(Instant, E)> {
        let last = self.heap.pop()?;
        let key = match self.heap.first_mut() {
            Some(first) => {
                let key = std::mem::replace(first, last);
                self.sink();
                key
            }
            None => last,
        };
        self.now = Instant::from_nanos((key >> 64) as u64);
        let place = (key as u64 & ((1 << PLACE_BITS) - 1)) as u32;
        self.free.push(place);
        let event = self.events[place as usize].take().expect("a key names one event");
        Some((self.now, event))
    }

    /// Moves the key at `at` up to its place.
    #[inline]
    fn rise(&mut self, mut at: usize) {
        let heap = &mut self.heap[..];
        let key = heap[at];
        while at > 0 {
            let parent = (at - 1) / ARITY;
            if heap[parent] <= key {
                break;
            }
            heap[at] = heap[parent];
            at = parent;
        }
        heap[at] = key;
    }

    /// Moves the first key down to its place.
    #[inline]
    fn sink(&mut self) {
        let heap = &mut self.heap[..];
        let (key, mut at) = (heap[0], 0);
        loop {
            let first = at * ARITY + 1;
            let children = match heap.get(first..first + ARITY) {
                Some(children) => children,
                None if first < heap.len() => &heap[first..],
                None => break,
            };
            let (mut least, mut child) = (children[0], first);
            for (i, other) in children.iter().enumerate().skip(1) {
                if *other < least {
                    (least, child) = (*other, first + i);
                }
            }
            if key <= least {
                break;
            }
            heap[at] = least;
            at = child;
        }
        heap[at] = key;
    }

    /// When the next event happens.
    pub fn peek(&self) -> Option<Instant> {
        self.heap.first().map(|key| Instant::from_nanos((key >> 64) as u64))
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
    use proptest::prelude::*;
    use std::collections::BTreeMap;

    proptest! {
        #[test]
        fn events_come_in_the_order_of_time_and_scheduling(steps in prop::collection::vec((0..5u64, 0..4u8), 1..300)) {
            let (mut agenda, mut model) = (Agenda::default(), BTreeMap::new());
            for (n, (delay, pops)) in steps.into_iter().enumerate() {
                let at = agenda.now() + Duration::from_nanos(delay);
                agenda.at(at, n);
                model.insert((at, n), n);
                for _ in 1..pops {
                    let expected = model.pop_first().map(|((at, _), n)| (at, n));
                    prop_assert_eq!(agenda.peek(), expected.map(|(at, _)| at));
                    prop_assert_eq!(agenda.pop(), expected);
                }
                prop_assert_eq!(agenda.len(), model.len());
            }
        }
    }

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
