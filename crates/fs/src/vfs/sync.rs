//! Locks and events for tasks of one executor.
//!
//! Invariants: locks are granted in the order of the requests, so that no task starves and runs repeat; a future that is dropped leaves no
//! trace. Nothing allocates while no task has to wait.
//!
//! Deliberately absent: threads.

use std::cell::RefCell;
use std::collections::VecDeque;
use std::future::Future;
use std::pin::Pin;
use std::task::{Context, Poll, Waker};

/// A lock that many tasks may share, or one may hold alone.
#[derive(Debug, Default)]
pub(crate) struct RwLock {
    state: RefCell<LockState>,
}

#[derive(Debug, Default)]
struct LockState {
    sharers: u32,
    alone: bool,
    queue: VecDeque<Waiter>,
    /// Waiters that have the lock and were not polled since.
    granted: Vec<u64>,
    waiters: u64,
}

#[derive(Debug)]
struct Waiter {
    number: u64,
    alone: bool,
    waker: Waker,
}

impl LockState {
    fn is_free_for(&self, alone: bool) -> bool {
        !self.alone && (!alone || self.sharers == 0)
    }

    fn take(&mut self, alone: bool) {
        if alone {
            self.alone = true;
        } else {
            self.sharers += 1;
        }
    }

    /// Grants the lock to the tasks at the front of the queue that can have it.
    fn grant(&mut self) {
        while self.queue.front().is_some_and(|waiter| self.is_free_for(waiter.alone)) {
            let Some(waiter) = self.queue.pop_front() else { return };
            self.take(waiter.alone);
            self.granted.push(waiter.number);
            waiter.waker.wake();
        }
    }

    fn release(&mut self, alone: bool) {
        if alone {
            debug_assert!(self.alone, "nobody has the lock alone");
            self.alone = false;
        } else {
            debug_assert!(self.sharers > 0, "nobody shares the lock");
            self.sharers -= 1;
        }
        self.grant();
    }
}

impl RwLock {
    /// Waits until no task holds the lock alone.
    pub(crate) fn shared(&self) -> Acquire<'_> {
        Acquire { lock: self, alone: false, number: None }
    }

    /// Waits until no task holds the lock.
    pub(crate) fn alone(&self) -> Acquire<'_> {
        Acquire { lock: self, alone: true, number: None }
    }
}

/// Future of a [`Guard`].
#[derive(Debug)]
pub(crate) struct Acquire<'a> {
    lock: &'a RwLock,
    alone: bool,
    /// Number of this waiter while it is in the queue, or was granted the lock and does not know it.
    number: Option<u64>,
}

impl<'a> Future for Acquire<'a> {
    type Output = Guard<'a>;

    #[inline]
    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Guard<'a>> {
        let (lock, alone) = (self.lock, self.alone);
        let mut state = lock.state.borrow_mut();
        match self.number {
            None if state.queue.is_empty() && state.is_free_for(alone) => {
                state.take(alone);
                return Poll::Ready(Guard { lock, alone });
            }
            None => {
                let number = state.waiters;
                state.waiters += 1;
                state.queue.push_back(Waiter { number, alone, waker: context.waker().clone() });
                self.number = Some(number);
            }
            Some(number) => {
                if let Some(at) = state.granted.iter().position(|&granted| granted == number) {
                    state.granted.swap_remove(at);
                    self.number = None;
                    return Poll::Ready(Guard { lock, alone });
                }
                if let Some(waiter) = state.queue.iter_mut().find(|waiter| waiter.number == number) {
                    waiter.waker.clone_from(context.waker());
                }
            }
        }
        Poll::Pending
    }
}

impl Drop for Acquire<'_> {
    fn drop(&mut self) {
        let Some(number) = self.number else { return };
        let mut state = self.lock.state.borrow_mut();
        if let Some(at) = state.granted.iter().position(|&granted| granted == number) {
            state.granted.swap_remove(at);
            state.release(self.alone);
        } else {
            state.queue.retain(|waiter| waiter.number != number);
            state.grant();
        }
    }
}

/// A [`RwLock`] that is held; dropping it grants it to the next waiters.
#[derive(Debug)]
pub(crate) struct Guard<'a> {
    lock: &'a RwLock,
    alone: bool,
}

impl Drop for Guard<'_> {
    fn drop(&mut self) {
        self.lock.state.borrow_mut().release(self.alone);
    }
}

/// An event: waiting tasks are woken and check their condition again.
#[derive(Debug, Default)]
pub struct Event {
    wakers: RefCell<Vec<Waker>>,
}

impl Event {
    /// Wakes all waiting tasks, in the order in which they began to wait.
    #[inline]
    pub fn notify(&self) {
        if self.wakers.borrow().is_empty() {
            return;
        }
        for waker in self.wakers.take() {
            waker.wake();
        }
    }

    /// Ready after the next [`Event::notify`], or earlier, so callers check their condition in a loop. No notification is missed
    /// between the check and the wait, since no other task runs there.
    pub(crate) fn wait(&self) -> Wait<'_> {
        Wait { event: self, waited: false }
    }

    /// Waits until `is_true`, which is checked now and after each [`Event::notify`].
    pub async fn until(&self, is_true: impl Fn() -> bool) {
        while !is_true() {
            self.wait().await;
        }
    }

    fn register(&self, waker: &Waker) {
        let mut wakers = self.wakers.borrow_mut();
        if !wakers.iter().any(|other| other.will_wake(waker)) {
            wakers.push(waker.clone());
        }
    }
}

/// Future of [`Event::wait`].
#[derive(Debug)]
pub(crate) struct Wait<'a> {
    event: &'a Event,
    waited: bool,
}

impl Future for Wait<'_> {
    type Output = ();

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<()> {
        if self.waited {
            return Poll::Ready(());
        }
        self.waited = true;
        self.event.register(context.waker());
        Poll::Pending
    }
}

/// Ready when one of two futures is; then the other is dropped.
#[derive(Debug)]
pub(crate) struct Either<A, B>(pub(crate) A, pub(crate) B);

impl<A: Future + Unpin, B: Future + Unpin> Future for Either<A, B> {
    type Output = ();

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<()> {
        let first = Pin::new(&mut self.0).poll(context).is_ready();
        if first || Pin::new(&mut self.1).poll(context).is_ready() { Poll::Ready(()) } else { Poll::Pending }
    }
}

/// Locks of ranges of pages; readers share.
#[derive(Debug, Default)]
pub(crate) struct RangeLocks {
    held: RefCell<Vec<Range>>,
    freed: Event,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Range {
    first: u64,
    end: u64,
    alone: bool,
}

impl RangeLocks {
    /// Whether another task holds a part of `first..end` in a way that excludes this one.
    #[inline]
    pub(crate) fn is_taken(&self, first: u64, end: u64, alone: bool) -> bool {
        let overlaps = |held: &Range| held.first < end && first < held.end && (alone || held.alone);
        self.held.borrow().iter().any(overlaps)
    }

    /// Waits until a range may have become free.
    pub(crate) fn wait(&self) -> Wait<'_> {
        self.freed.wait()
    }

    /// Locks `first..end`.
    pub(crate) async fn lock(&self, first: u64, end: u64, alone: bool) -> RangeGuard<'_> {
        while self.is_taken(first, end, alone) {
            self.freed.wait().await;
        }
        let range = Range { first, end, alone };
        self.held.borrow_mut().push(range);
        RangeGuard { locks: self, range }
    }
}

/// A locked range; dropping this unlocks it.
#[derive(Debug)]
pub(crate) struct RangeGuard<'a> {
    locks: &'a RangeLocks,
    range: Range,
}

impl Drop for RangeGuard<'_> {
    fn drop(&mut self) {
        let mut held = self.locks.held.borrow_mut();
        if let Some(at) = held.iter().position(|range| *range == self.range) {
            held.swap_remove(at);
        }
        drop(held);
        self.locks.freed.notify();
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use flashweir_core::{Executor, Instant};
    use std::rc::Rc;

    type Notes = Rc<RefCell<Vec<&'static str>>>;

    /// Runs tasks that take the lock, make a note, yield and release it; returns the notes.
    fn run(tasks: &[(&'static str, bool)]) -> Vec<&'static str> {
        let (notes, lock) = (Notes::default(), Rc::new(RwLock::default()));
        let mut executor = Executor::new();
        for &(name, alone) in tasks {
            let (notes, lock, handle) = (Rc::clone(&notes), Rc::clone(&lock), executor.handle());
            executor.spawn(async move {
                let guard = if alone { lock.alone().await } else { lock.shared().await };
                notes.borrow_mut().push(name);
                handle.yield_now().await;
                notes.borrow_mut().push("-");
                drop(guard);
            });
        }
        executor.run_ready(Instant::ZERO);
        assert!(executor.is_empty(), "a task waits for ever");
        assert!(lock.state.borrow().is_free_for(true));
        notes.take()
    }

    #[test]
    fn sharers_overlap_and_nobody_overtakes() {
        assert_eq!(run(&[("r", false), ("s", false)]), ["r", "s", "-", "-"]);
        assert_eq!(run(&[("w", true), ("x", true)]), ["w", "-", "x", "-"]);
        assert_eq!(run(&[("r", false), ("w", true), ("s", false)]), ["r", "-", "w", "-", "s", "-"]);
    }

    #[test]
    fn a_dropped_waiter_leaves_the_queue() {
        let (notes, lock) = (Notes::default(), Rc::new(RwLock::default()));
        let mut executor = Executor::new();
        let held = Rc::clone(&lock);
        let handle = executor.handle();
        executor.spawn(async move {
            let _guard = held.shared().await;
            handle.sleep_until(Instant::from_nanos(10)).await;
        });
        let waiting = Rc::clone(&lock);
        let waiter = executor.spawn(async move {
            let _guard = waiting.alone().await;
        });
        let (sharing, noted) = (Rc::clone(&lock), Rc::clone(&notes));
        executor.spawn(async move {
            let _guard = sharing.shared().await;
            noted.borrow_mut().push("shared");
        });
        executor.run_ready(Instant::ZERO);
        assert!(notes.borrow().is_empty(), "a sharer overtook the one who wants it alone");
        executor.cancel(waiter);
        executor.run_ready(Instant::ZERO);
        assert_eq!(notes.take(), ["shared"]);
        executor.run_ready(Instant::from_nanos(10));
        assert!(executor.is_empty() && lock.state.borrow().is_free_for(true));
    }

    #[test]
    fn a_dropped_waiter_that_was_granted_gives_the_lock_on() {
        let lock = Rc::new(RwLock::default());
        let mut executor = Executor::new();
        let mut first = Box::pin(lock.alone());
        let mut second = Box::pin(lock.alone());
        let waker = Waker::noop();
        let mut context = Context::from_waker(waker);
        let Poll::Ready(guard) = first.as_mut().poll(&mut context) else { panic!("the lock is free") };
        assert!(second.as_mut().poll(&mut context).is_pending());
        drop(guard);
        drop(second);
        assert!(lock.state.borrow().is_free_for(true) && lock.state.borrow().granted.is_empty());
        executor.clear();
    }

    #[test]
    fn ranges_exclude_only_where_they_overlap() {
        let locks = Rc::new(RangeLocks::default());
        let notes = Notes::default();
        let mut executor = Executor::new();
        for (name, first, end, alone) in
            [("a", 0, 4, true), ("b", 4, 8, true), ("c", 3, 5, false), ("d", 9, 10, false)]
        {
            let (locks, notes, handle) = (Rc::clone(&locks), Rc::clone(&notes), executor.handle());
            executor.spawn(async move {
                let _guard = locks.lock(first, end, alone).await;
                notes.borrow_mut().push(name);
                handle.sleep_until(Instant::from_nanos(5)).await;
            });
        }
        executor.run_ready(Instant::ZERO);
        assert_eq!(notes.take(), ["a", "b", "d"]);
        executor.run_ready(Instant::from_nanos(5));
        assert_eq!(notes.take(), ["c"]);
        assert!(executor.is_empty() && !locks.is_taken(0, 100, true));
    }
}
