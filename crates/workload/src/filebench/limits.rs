//! Limits of threads: semaphores between them, and events that occur at a rate.

use flashweir_core::signal::Signal;
use flashweir_core::{Duration, Instant};
use std::cell::Cell;

/// The semaphore of one `semblock`: posts that are not taken yet, and the number of further posts allowed.
#[derive(Debug)]
pub(super) struct Semaphore {
    posts: Cell<u64>,
    /// Number of further posts that blocking posters may make: initially `highwater`; each `semblock` adds the number
    /// that it takes.
    room: Cell<u64>,
    pub(super) changed: Signal,
}

impl Semaphore {
    pub(super) fn new(highwater: u64) -> Self {
        Self { posts: Cell::new(0), room: Cell::new(highwater), changed: Signal::default() }
    }

    /// Allows further posts, before the same number of them is taken.
    pub(super) fn add_room(&self, posts: u64) {
        self.room.set(self.room.get().saturating_add(posts));
        self.changed.notify();
    }

    pub(super) fn try_take(&self, posts: u64) -> bool {
        let left = self.posts.get().checked_sub(posts);
        left.inspect(|&left| self.posts.set(left)).is_some()
    }

    /// Posts, if there is room or the poster does not block; returns whether it did.
    pub(super) fn try_post(&self, posts: u64, is_blocking: bool) -> bool {
        if is_blocking {
            let Some(room) = self.room.get().checked_sub(posts) else { return false };
            self.room.set(room);
        }
        self.posts.set(self.posts.get().saturating_add(posts));
        self.changed.notify();
        true
    }
}

/// Events at equal intervals, with one queue for all waiting threads.
#[derive(Debug)]
pub(super) struct Events {
    per_second: u64,
    start: Instant,
    taken: Cell<u64>,
}

/// Maximum number of events kept; further events that no thread took are lost.
const EVENTS_KEPT: u64 = 10_000;

impl Events {
    pub(super) fn new(per_second: u64, start: Instant) -> Self {
        Self { per_second, start, taken: Cell::new(0) }
    }

    /// Takes the next `count` events; returns the time of the last of them.
    pub(super) fn take(&self, count: u64, now: Instant) -> Instant {
        let so_far =
            u128::from(now.since(self.start).as_nanos()) * u128::from(self.per_second) / 1_000_000_000;
        let oldest = (so_far as u64).saturating_sub(EVENTS_KEPT);
        let last = self.taken.get().max(oldest).saturating_add(count);
        self.taken.set(last);
        let ns = (u128::from(last) * 1_000_000_000).div_ceil(u128::from(self.per_second));
        self.start.saturating_add(Duration::from_nanos(u64::try_from(ns).unwrap_or(u64::MAX)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn posts_stop_where_the_high_water_is() {
        let semaphore = Semaphore::new(2);
        assert!(semaphore.try_post(2, true) && !semaphore.try_post(1, true) && semaphore.try_post(1, false));
        assert!(!semaphore.try_take(4));
        semaphore.add_room(3);
        assert!(semaphore.try_take(3) && semaphore.try_post(3, true) && !semaphore.try_post(1, true));
    }

    #[test]
    fn events_come_evenly_and_are_not_kept_for_ever() {
        let second = |n| Instant::ZERO + Duration::from_secs(n);
        let events = Events::new(100, Instant::ZERO);
        assert_eq!(events.take(1, Instant::ZERO), Instant::ZERO + Duration::from_millis(10));
        assert_eq!(events.take(99, Instant::ZERO), second(1));
        // After 1000 seconds 99,900 events were pending, of which 10,000 are left.
        assert_eq!(events.take(10_000, second(1000)), second(1000));
        assert_eq!(events.take(100, second(1000)), second(1001));
    }
}
