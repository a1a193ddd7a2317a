//! The agenda: the queue of future events.
//!
//! Invariants: events of equal times are served in the order in which they were scheduled, so a run is a function of
//! configuration and seed; nothing is ever scheduled in the past.
//!
//! Deliberately absent: cancellation. A timer that may become void carries a generation that its owner compares when
//! the timer fires.

use crate::keys::{Key, Keys};
use crate::time::Instant;

/// A queue of future events, ordered by time and, at equal times, by the order of scheduling.
#[derive(Clone, Debug)]
pub struct Agenda<E> {
    keys: Keys,
    events: Vec<Option<E>>,
    free: Vec<u32>,
    scheduled: u64,
    now: Instant,
}

impl<E> Default for Agenda<E> {
    fn default() -> Self {
        Self { keys: Keys::default(), events: Vec::new(), free: Vec::new(), scheduled: 0, now: Instant::ZERO }
    }
}

impl<E> Agenda<E> {
    /// Returns the time of the last event that was taken.
    #[inline]
    pub fn now(&self) -> Instant {
        self.now
    }

    /// Schedules `event` at `at`.
    ///
    /// # Panics
    /// If `at` is in the past (a bug of ours), if more than 2^20 events are pending, or at the 2^44-th event of a run.
    #[inline]
    pub fn at(&mut self, at: Instant, event: E) {
        assert!(at >= self.now, "scheduled {at:?} in the past of {:?}", self.now);
        let place = match self.free.pop() {
            Some(place) => {
                self.events[place as usize] = Some(event);
                place
            }
            None => {
                self.events.push(Some(event));
                self.events.len() as u32 - 1
            }
        };
        self.keys.push(Key::new(at, self.scheduled, place));
        self.scheduled += 1;
    }

    /// Takes the next event and advances time to it.
    #[inline]
    pub fn pop(&mut self) -> Option<(Instant, E)> {
        let key = self.keys.pop()?;
        self.now = key.at();
        self.free.push(key.place() as u32);
        let event = self.events[key.place()].take().expect("a key names one event");
        Some((self.now, event))
    }

    /// Returns the time of the next event.
    #[inline]
    pub fn peek(&self) -> Option<Instant> {
        self.keys.first().map(Key::at)
    }

    /// Returns the next event; an earlier one may still be scheduled before it.
    #[inline]
    pub fn peek_event(&self) -> Option<&E> {
        self.events[self.keys.first()?.place()].as_ref()
    }

    /// Returns the number of pending events.
    pub fn len(&self) -> usize {
        self.keys.len()
    }

    /// Whether no event is pending.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Returns the number of events scheduled so far.
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
