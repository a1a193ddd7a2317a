//! A deterministic executor for straight-line host code: file systems, recovery, workloads.
//!
//! Place in the data flow: the world takes the earlier of its agenda's next event and the executor's next timer
//! ([`Executor::next_timer`]), moves time there and calls [`Executor::run_ready`]; state machines answer tasks through
//! [`oneshot`] channels.
//!
//! Invariants: tasks run in the order in which they were woken, each at most once per wake; timers of one instant fire
//! in the order in which they were set; time never moves while a task runs. A power cut is [`Executor::clear`]: it
//! drops every future, so destructors run, and later wakes have no effect.
//!
//! Deliberately absent: a clock, threads, I/O. A waker may be called from another thread, since the standard type
//! allows that, but the executor never waits for one.

use crate::keys::{Key, Keys};
use crate::time::Instant;
use std::cell::RefCell;
use std::collections::VecDeque;
use std::fmt;
use std::future::Future;
use std::mem;
use std::pin::Pin;
use std::rc::Rc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::task::{Context, Poll, Wake, Waker};

/// Maximum number of polls in one [`Executor::run_ready`]; beyond it some task wakes itself for ever.
const POLLS_MAX: u64 = 100_000_000;

/// Identifies a task; never reused.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct TaskId {
    /// Number of the task, in the order of spawning.
    number: u64,
    /// Index of the slot that holds it.
    place: u32,
}

type BoxedFuture = Pin<Box<dyn Future<Output = ()>>>;

/// Queue of woken tasks that the executor has not taken over yet, in order.
#[derive(Default)]
struct ReadyQueue {
    tasks: Mutex<VecDeque<TaskId>>,
    /// Whether the queue holds a task: read without the lock, written under it.
    has_some: AtomicBool,
}

impl ReadyQueue {
    fn push(&self, task: TaskId) {
        let mut tasks = self.tasks.lock().unwrap_or_else(PoisonError::into_inner);
        tasks.push_back(task);
        self.has_some.store(true, Ordering::Release);
    }

    /// Swaps the queue with `done`, which is empty.
    fn take(&self, done: &mut VecDeque<TaskId>) {
        if self.has_some() {
            let mut tasks = self.tasks.lock().unwrap_or_else(PoisonError::into_inner);
            mem::swap(&mut *tasks, done);
            self.has_some.store(false, Ordering::Release);
        }
    }

    #[inline]
    fn has_some(&self) -> bool {
        self.has_some.load(Ordering::Acquire)
    }
}

/// Wakes one task.
struct TaskWaker {
    task: TaskId,
    ready: Arc<ReadyQueue>,
    /// Whether the task is in the queue: two wakes before one poll count once.
    queued: AtomicBool,
}

impl Wake for TaskWaker {
    fn wake(self: Arc<Self>) {
        self.wake_by_ref();
    }

    fn wake_by_ref(self: &Arc<Self>) {
        // A load and a store instead of a swap, which costs more: wakes from several threads at once cause at worst one
        // poll too many.
        if !self.queued.load(Ordering::Acquire) {
            self.queued.store(true, Ordering::Release);
            self.ready.push(self.task);
        }
    }
}

/// The future of a task with the waker that its polls hand out.
struct Running {
    future: BoxedFuture,
    mark: Arc<TaskWaker>,
    waker: Waker,
}

/// A slot for tasks.
struct Task {
    /// Number of the task that occupies the slot, or of the last one that did.
    number: u64,
    is_alive: bool,
    /// `None` while the task is polled, so that nothing is borrowed meanwhile.
    running: Option<Running>,
}

/// Wakers and their due times. The key of a removed timer stays behind until it is the first one or until most keys are
/// stale.
#[derive(Default)]
struct Timers {
    keys: Keys,
    /// Each waker with the number of its timer, because slots are reused.
    wakers: Vec<Option<(u64, Waker)>>,
    free: Vec<u32>,
    set: u64,
    live: usize,
}

impl Timers {
    fn insert(&mut self, at: Instant, waker: Waker) -> Key {
        let place = self.free.pop().unwrap_or(self.wakers.len() as u32);
        self.set += 1;
        self.live += 1;
        let waker = Some((self.set, waker));
        match self.wakers.get_mut(place as usize) {
            Some(free) => *free = waker,
            None => self.wakers.push(waker),
        }
        let key = Key::new(at, self.set, place);
        self.keys.push(key);
        key
    }

    /// Returns the slot of a timer's waker, unless the timer has fired.
    fn entry(&mut self, key: Key) -> Option<&mut Option<(u64, Waker)>> {
        let entry = self.wakers.get_mut(key.place())?;
        entry.as_ref().is_some_and(|(of, _)| *of == key.order()).then_some(entry)
    }

    /// Removes a timer, unless it has fired.
    fn remove(&mut self, key: Key) -> Option<Waker> {
        let (_, waker) = self.entry(key)?.take()?;
        self.live -= 1;
        if self.keys.len() > 2 * self.live + 64 {
            let (wakers, free) = (&self.wakers, &mut self.free);
            self.keys.retain(|key| {
                let is_live = wakers[key.place()].is_some();
                if !is_live {
                    free.push(key.place() as u32);
                }
                is_live
            });
        }
        self.drop_void();
        Some(waker)
    }

    /// Removes stale keys from the front: the first key always belongs to a timer that will fire.
    #[inline]
    fn drop_void(&mut self) {
        while let Some(key) = self.keys.first()
            && self.wakers[key.place()].is_none()
        {
            self.keys.pop();
            self.free.push(key.place() as u32);
        }
    }

    #[inline]
    fn next(&self) -> Option<Instant> {
        self.keys.first().map(Key::at)
    }

    /// Removes the next timer that is due and returns its waker.
    #[inline]
    fn pop_due(&mut self, now: Instant) -> Option<Waker> {
        let key = self.keys.first().filter(|key| key.at() <= now)?;
        self.keys.pop();
        self.free.push(key.place() as u32);
        self.live -= 1;
        let (_, waker) = self.wakers[key.place()].take()?;
        self.drop_void();
        Some(waker)
    }
}

#[derive(Default)]
struct Shared {
    now: Instant,
    tasks: Vec<Task>,
    free: Vec<u32>,
    alive: usize,
    spawned: u64,
    timers: Timers,
    /// Tasks to be polled before those that wait in the queue.
    ready: VecDeque<TaskId>,
}

impl Shared {
    fn task_mut(&mut self, task: TaskId) -> Option<&mut Task> {
        self.tasks.get_mut(task.place as usize).filter(|kept| kept.is_alive && kept.number == task.number)
    }

    /// Frees the slot of a task. The caller drops the task's parts when nothing is borrowed.
    fn remove(&mut self, task: TaskId) -> Option<Running> {
        let kept = self.task_mut(task)?;
        kept.is_alive = false;
        let running = kept.running.take();
        self.alive -= 1;
        self.free.push(task.place);
        running
    }
}

/// State that the executor and its handles share.
#[derive(Clone, Default)]
struct Core {
    shared: Rc<RefCell<Shared>>,
    ready: Arc<ReadyQueue>,
}

impl Core {
    fn spawn(&self, future: BoxedFuture) -> TaskId {
        let mut shared = self.shared.borrow_mut();
        let number = shared.spawned;
        shared.spawned += 1;
        shared.alive += 1;
        let place = shared.free.pop().unwrap_or(shared.tasks.len() as u32);
        let task = TaskId { number, place };
        let mark =
            Arc::new(TaskWaker { task, ready: Arc::clone(&self.ready), queued: AtomicBool::new(true) });
        let waker = Waker::from(Arc::clone(&mark));
        let kept = Task { number, is_alive: true, running: Some(Running { future, mark, waker }) };
        match shared.tasks.get_mut(place as usize) {
            Some(free) => *free = kept,
            None => shared.tasks.push(kept),
        }
        drop(shared);
        self.ready.push(task);
        task
    }

    /// Polls one task; returns false if none is ready.
    fn poll_next(&self) -> bool {
        let mut shared = self.shared.borrow_mut();
        if shared.ready.is_empty() {
            self.ready.take(&mut shared.ready);
        }
        let Some(task) = shared.ready.pop_front() else { return false };
        let running = shared.task_mut(task).and_then(|kept| kept.running.take());
        drop(shared);
        let Some(mut running) = running else { return true };
        running.mark.queued.store(false, Ordering::Release);
        // The cell is not borrowed here, because the task may spawn, sleep, send and drop.
        let poll = running.future.as_mut().poll(&mut Context::from_waker(&running.waker));
        let mut shared = self.shared.borrow_mut();
        match (poll, shared.task_mut(task)) {
            (Poll::Pending, Some(kept)) => {
                kept.running = Some(running);
                return true;
            }
            (Poll::Ready(()), Some(_)) => drop(shared.remove(task)),
            (_, None) => (),
        }
        drop(shared);
        drop(running);
        true
    }
}

/// The executor. See the module for its invariants.
#[derive(Default)]
pub struct Executor {
    core: Core,
}

impl Executor {
    /// Makes an executor without tasks at the beginning of time.
    pub fn new() -> Self {
        Self::default()
    }

    /// Adds a task; it first runs after all tasks that are ready now.
    pub fn spawn(&mut self, future: impl Future<Output = ()> + 'static) -> TaskId {
        self.core.spawn(Box::pin(future))
    }

    /// Returns a handle with which tasks spawn, sleep and ask for the time.
    pub fn handle(&self) -> Handle {
        Handle { core: self.core.clone() }
    }

    /// Moves time to `now`, fires the timers that are due and runs tasks until none is ready. Returns the number of
    /// polls. Panics if `now` is in the past (a bug of ours).
    pub fn run_ready(&mut self, now: Instant) -> u64 {
        {
            let mut shared = self.core.shared.borrow_mut();
            assert!(now >= shared.now, "run at {now:?} in the past of {:?}", shared.now);
            shared.now = now;
        }
        let is_due = self.next_timer().is_some_and(|next| next <= now);
        if !is_due && !self.has_ready() {
            return 0;
        }
        self.fire_due(now);
        let mut polls = 0;
        while self.core.poll_next() {
            polls += 1;
            assert!(polls < POLLS_MAX, "a task wakes itself for ever at {now:?}");
        }
        polls
    }

    /// Called once per turn, which is enough: a sleep that is over when it begins sets no timer.
    fn fire_due(&mut self, now: Instant) {
        loop {
            let due = self.core.shared.borrow_mut().timers.pop_due(now);
            let Some(timer) = due else { return };
            timer.wake();
        }
    }

    /// Returns the time of the next timer; the world merges it with its agenda.
    pub fn next_timer(&self) -> Option<Instant> {
        self.core.shared.borrow().timers.next()
    }

    /// Whether a task is ready to be polled.
    pub fn has_ready(&self) -> bool {
        self.core.ready.has_some() || !self.core.shared.borrow().ready.is_empty()
    }

    /// Whether `task` has neither returned nor been dropped.
    pub fn is_alive(&self, task: TaskId) -> bool {
        self.core.shared.borrow_mut().task_mut(task).is_some()
    }

    /// Returns the number of tasks that have not returned.
    pub fn len(&self) -> usize {
        self.core.shared.borrow().alive
    }

    /// Whether all tasks have returned.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Drops one task and runs its destructors; does nothing if the task is not alive.
    pub fn cancel(&mut self, task: TaskId) {
        let dropped = self.core.shared.borrow_mut().remove(task);
        drop(dropped);
    }

    /// Acts as a power cut: drops all tasks in the order in which they were spawned, including those that their
    /// destructors spawn, and forgets all wakes and timers. Time does not move.
    pub fn clear(&mut self) {
        loop {
            let mut tasks = {
                let mut shared = self.core.shared.borrow_mut();
                (shared.free, shared.alive) = (Vec::new(), 0);
                mem::take(&mut shared.tasks)
            };
            tasks.retain(|task| task.is_alive);
            if tasks.is_empty() {
                break;
            }
            tasks.sort_unstable_by_key(|task| task.number);
            drop(tasks);
        }
        let timers = {
            let mut shared = self.core.shared.borrow_mut();
            let set = shared.timers.set;
            mem::replace(&mut shared.timers, Timers { set, ..Timers::default() })
        };
        drop(timers);
        let mut woken = VecDeque::new();
        self.core.ready.take(&mut woken);
        self.core.shared.borrow_mut().ready.clear();
    }
}

impl Drop for Executor {
    /// Handles inside futures refer back to the executor; without this, they would keep each other alive.
    fn drop(&mut self) {
        self.clear();
    }
}

impl fmt::Debug for Executor {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Executor")
            .field("now", &self.core.shared.borrow().now)
            .field("tasks", &self.len())
            .field("next_timer", &self.next_timer())
            .finish()
    }
}

/// A task's access to its executor.
#[derive(Clone)]
pub struct Handle {
    core: Core,
}

impl Handle {
    /// Returns the time of the current [`Executor::run_ready`].
    pub fn now(&self) -> Instant {
        self.core.shared.borrow().now
    }

    /// Adds a task; it first runs after all tasks that are ready now.
    pub fn spawn(&self, future: impl Future<Output = ()> + 'static) -> TaskId {
        self.core.spawn(Box::pin(future))
    }

    /// Returns a future that is ready when time has reached `at`. Its timer is set at the first poll.
    pub fn sleep_until(&self, at: Instant) -> Sleep {
        Sleep { shared: Rc::clone(&self.core.shared), at, key: None }
    }

    /// Returns a future that lets all ready tasks run first.
    pub fn yield_now(&self) -> YieldNow {
        YieldNow { yielded: false }
    }
}

impl fmt::Debug for Handle {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Handle").finish_non_exhaustive()
    }
}

/// Future of [`Handle::sleep_until`]; dropping it removes the timer.
pub struct Sleep {
    shared: Rc<RefCell<Shared>>,
    at: Instant,
    key: Option<Key>,
}

impl Future for Sleep {
    type Output = ();

    fn poll(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<()> {
        let Self { shared, at, key } = self.get_mut();
        let mut shared = shared.borrow_mut();
        if shared.now >= *at {
            let timer = key.take().and_then(|key| shared.timers.remove(key));
            drop(shared);
            drop(timer);
            return Poll::Ready(());
        }
        match key.and_then(|key| shared.timers.entry(key)) {
            Some(Some((_, waker))) => waker.clone_from(context.waker()),
            _ => *key = Some(shared.timers.insert(*at, context.waker().clone())),
        }
        Poll::Pending
    }
}

impl Drop for Sleep {
    fn drop(&mut self) {
        if let Some(key) = self.key.take() {
            let removed = self.shared.borrow_mut().timers.remove(key);
            drop(removed);
        }
    }
}

impl fmt::Debug for Sleep {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Sleep").field("at", &self.at).finish_non_exhaustive()
    }
}

/// Future of [`Handle::yield_now`].
#[derive(Debug)]
pub struct YieldNow {
    yielded: bool,
}

impl Future for YieldNow {
    type Output = ();

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<()> {
        if mem::replace(&mut self.yielded, true) {
            return Poll::Ready(());
        }
        context.waker().wake_by_ref();
        Poll::Pending
    }
}

#[derive(Debug)]
struct Slot<T> {
    value: Option<T>,
    waker: Option<Waker>,
    sender_alive: bool,
    receiver_alive: bool,
}

/// Makes a channel for one value.
pub fn oneshot<T>() -> (Sender<T>, Receiver<T>) {
    let slot = Slot { value: None, waker: None, sender_alive: true, receiver_alive: true };
    let slot = Rc::new(RefCell::new(slot));
    (Sender { slot: Rc::clone(&slot) }, Receiver { slot })
}

/// Error of a receiver whose sender was dropped without a value.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SenderDropped;

impl fmt::Display for SenderDropped {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("the sender was dropped without a value")
    }
}
impl std::error::Error for SenderDropped {}

/// The sending end of a [`oneshot`] channel.
#[derive(Debug)]
pub struct Sender<T> {
    slot: Rc<RefCell<Slot<T>>>,
}

impl<T> Sender<T> {
    /// Sends the value and wakes the receiver; returns the value if the receiver is gone.
    pub fn send(self, value: T) -> Result<(), T> {
        let mut slot = self.slot.borrow_mut();
        if !slot.receiver_alive {
            return Err(value);
        }
        slot.value = Some(value);
        Ok(())
    }

    /// Whether the receiver is gone.
    pub fn is_closed(&self) -> bool {
        !self.slot.borrow().receiver_alive
    }
}

impl<T> Drop for Sender<T> {
    /// Wakes the receiver, with or without a value.
    fn drop(&mut self) {
        let waker = {
            let mut slot = self.slot.borrow_mut();
            slot.sender_alive = false;
            slot.waker.take()
        };
        if let Some(waker) = waker {
            waker.wake();
        }
    }
}

/// The receiving end of a [`oneshot`] channel: a future of the value.
#[derive(Debug)]
pub struct Receiver<T> {
    slot: Rc<RefCell<Slot<T>>>,
}

impl<T> Receiver<T> {
    /// Returns the value, if it has arrived.
    pub fn try_receive(&mut self) -> Option<T> {
        self.slot.borrow_mut().value.take()
    }
}

impl<T> Future for Receiver<T> {
    type Output = Result<T, SenderDropped>;

    fn poll(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Self::Output> {
        let mut slot = self.slot.borrow_mut();
        if let Some(value) = slot.value.take() {
            return Poll::Ready(Ok(value));
        }
        if !slot.sender_alive {
            return Poll::Ready(Err(SenderDropped));
        }
        slot.waker = Some(context.waker().clone());
        Poll::Pending
    }
}

impl<T> Drop for Receiver<T> {
    fn drop(&mut self) {
        let unread = {
            let mut slot = self.slot.borrow_mut();
            slot.receiver_alive = false;
            (slot.value.take(), slot.waker.take())
        };
        drop(unread);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::cell::Cell;

    fn at(ns: u64) -> Instant {
        Instant::from_nanos(ns)
    }

    /// A shared list of notes about what happened.
    #[derive(Clone, Default)]
    struct Notes(Rc<RefCell<Vec<String>>>);

    impl Notes {
        fn note(&self, what: impl Into<String>) {
            self.0.borrow_mut().push(what.into());
        }
        fn take(&self) -> String {
            self.0.take().join(" ")
        }
    }

    #[test]
    fn tasks_run_in_the_order_of_their_wakes() {
        let notes = Notes::default();
        let mut executor = Executor::new();
        for name in ["a", "b", "c"] {
            let (notes, handle) = (notes.clone(), executor.handle());
            executor.spawn(async move {
                for round in 0..2 {
                    notes.note(format!("{name}{round}"));
                    handle.yield_now().await;
                }
            });
        }
        assert!(executor.has_ready());
        assert_eq!(executor.run_ready(at(0)), 9);
        assert_eq!(notes.take(), "a0 b0 c0 a1 b1 c1");
        assert!(executor.is_empty() && !executor.has_ready());
    }

    #[test]
    fn sleepers_wake_by_time_then_by_order() {
        let notes = Notes::default();
        let mut executor = Executor::new();
        for (name, wake) in [("late", 30), ("first", 10), ("second", 10), ("now", 0)] {
            let (notes, handle) = (notes.clone(), executor.handle());
            executor.spawn(async move {
                handle.sleep_until(at(wake)).await;
                notes.note(format!("{name}@{:?}", handle.now()));
            });
        }
        executor.run_ready(at(0));
        assert_eq!(notes.take(), "now@0ns");
        assert_eq!(executor.next_timer(), Some(at(10)));
        while let Some(next) = executor.next_timer() {
            executor.run_ready(next);
        }
        assert_eq!(notes.take(), "first@10ns second@10ns late@30ns");
        assert!(executor.is_empty());
    }

    #[test]
    fn timers_set_while_running_fire_in_the_same_turn_if_due() {
        let mut executor = Executor::new();
        let handle = executor.handle();
        let task = executor.spawn(async move {
            handle.sleep_until(at(5)).await;
            handle.sleep_until(at(4)).await;
            handle.sleep_until(at(5)).await;
        });
        executor.run_ready(at(5));
        assert!(!executor.is_alive(task));
    }

    #[test]
    fn senders_wake_receivers_in_order() {
        let notes = Notes::default();
        let mut executor = Executor::new();
        let mut senders = Vec::new();
        for name in ["a", "b", "c"] {
            let (sender, receiver) = oneshot::<u32>();
            senders.push(sender);
            let notes = notes.clone();
            executor.spawn(async move { notes.note(format!("{name}:{:?}", receiver.await)) });
        }
        executor.run_ready(at(0));
        let c = senders.pop().unwrap();
        let b = senders.pop().unwrap();
        c.send(3).unwrap();
        drop(b);
        executor.run_ready(at(1));
        assert_eq!(notes.take(), "c:Ok(3) b:Err(SenderDropped)");
        assert_eq!(executor.len(), 1);
        let a = senders.pop().unwrap();
        executor.clear();
        assert!(a.is_closed());
        assert_eq!(a.send(1), Err(1));
    }

    #[test]
    fn a_value_sent_early_is_there_at_once() {
        let (sender, mut receiver) = oneshot();
        assert_eq!(receiver.try_receive(), None);
        sender.send(7).unwrap();
        assert_eq!(receiver.try_receive(), Some(7));
    }

    #[test]
    fn two_wakes_are_one_poll() {
        struct Twice(Rc<Cell<u32>>);
        impl Future for Twice {
            type Output = ();
            fn poll(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<()> {
                self.0.set(self.0.get() + 1);
                if self.0.get() == 2 {
                    return Poll::Ready(());
                }
                context.waker().wake_by_ref();
                context.waker().wake_by_ref();
                Poll::Pending
            }
        }
        let polls = Rc::new(Cell::new(0));
        let mut executor = Executor::new();
        executor.spawn(Twice(Rc::clone(&polls)));
        assert_eq!(executor.run_ready(at(0)), 2);
        assert_eq!(polls.get(), 2);
    }

    /// Adds a note when it is dropped, and then spawns a last task if it has a handle.
    struct Witness(Notes, &'static str, Option<Handle>);

    impl Drop for Witness {
        fn drop(&mut self) {
            self.0.note(self.1);
            if let Some(handle) = &self.2 {
                let witness = Self(self.0.clone(), "orphan", None);
                handle.spawn(async move {
                    let _witness = witness;
                });
            }
        }
    }

    #[test]
    fn a_cut_runs_destructors_and_leaves_nothing() {
        let notes = Notes::default();
        let mut executor = Executor::new();
        let handle = executor.handle();
        for (name, spawns) in [("one", true), ("two", false)] {
            let witness = Witness(notes.clone(), name, spawns.then(|| handle.clone()));
            let handle = handle.clone();
            executor.spawn(async move {
                let _witness = witness;
                handle.sleep_until(at(100)).await;
                unreachable!("the power was cut");
            });
        }
        executor.run_ready(at(1));
        executor.clear();
        assert_eq!(notes.take(), "one two orphan");
        assert!(executor.is_empty() && !executor.has_ready());
        assert_eq!(executor.next_timer(), None);
        assert_eq!(executor.run_ready(at(200)), 0);
    }

    #[test]
    fn dropping_the_executor_drops_its_tasks() {
        let notes = Notes::default();
        let mut executor = Executor::new();
        let (witness, handle) = (Witness(notes.clone(), "dropped", None), executor.handle());
        executor.spawn(async move {
            let _witness = witness;
            handle.sleep_until(Instant::MAX).await;
        });
        executor.run_ready(at(0));
        drop(executor);
        assert_eq!(notes.take(), "dropped");
    }

    #[test]
    fn a_cancelled_sleep_leaves_no_timer() {
        let mut executor = Executor::new();
        let handle = executor.handle();
        let task = executor.spawn(async move { handle.sleep_until(at(9)).await });
        executor.run_ready(at(0));
        assert_eq!(executor.next_timer(), Some(at(9)));
        executor.cancel(task);
        assert_eq!(executor.next_timer(), None);
    }

    #[test]
    fn cancelled_sleeps_do_not_pile_up() {
        let mut executor = Executor::new();
        let handle = executor.handle();
        executor.spawn(async move { handle.sleep_until(at(1_000)).await });
        executor.run_ready(at(0));
        for round in 0..10_000 {
            let handle = executor.handle();
            let task = executor.spawn(async move { handle.sleep_until(at(2_000 + round)).await });
            executor.run_ready(at(0));
            executor.cancel(task);
        }
        assert_eq!(executor.next_timer(), Some(at(1_000)));
        assert!(executor.core.shared.borrow().timers.keys.len() < 100);
        assert_eq!(executor.run_ready(at(1_000)), 1);
        assert!(executor.is_empty());
        assert_eq!(executor.next_timer(), None);
    }

    #[test]
    fn a_sleep_that_is_over_takes_no_other_timer_with_it() {
        let mut executor = Executor::new();
        let [first, second] = [executor.handle(), executor.handle()];
        executor.spawn(async move { first.sleep_until(at(5)).await });
        executor.spawn(async move {
            second.sleep_until(at(4)).await;
            // The timer reuses the slot of the first task's timer; that task was not polled since.
            second.sleep_until(at(10)).await;
        });
        executor.run_ready(at(0));
        executor.run_ready(at(5));
        assert_eq!(executor.next_timer(), Some(at(10)));
        executor.run_ready(at(10));
        assert!(executor.is_empty());
    }

    #[test]
    fn a_task_may_spawn_and_a_stale_wake_reaches_nothing() {
        let notes = Notes::default();
        let mut executor = Executor::new();
        let (sender, receiver) = oneshot::<()>();
        let (handle, inner) = (executor.handle(), notes.clone());
        executor.spawn(async move {
            let child = inner.clone();
            handle.spawn(async move { child.note("child") });
            inner.note("parent");
            let _ = receiver.await;
        });
        executor.run_ready(at(0));
        assert_eq!(notes.take(), "parent child");
        executor.clear();
        drop(sender);
        assert_eq!(executor.run_ready(at(1)), 0);
    }

    #[test]
    fn the_same_program_gives_the_same_notes() {
        let play = || {
            let notes = Notes::default();
            let mut executor = Executor::new();
            let mut random = crate::random::RandomStream::new(5, "executor");
            for task in 0..50 {
                let naps: Vec<u64> = (0..10).map(|_| random.below(20)).collect();
                let (notes, handle) = (notes.clone(), executor.handle());
                executor.spawn(async move {
                    for nap in naps {
                        handle.sleep_until(at(handle.now().as_nanos() + nap)).await;
                        notes.note(format!("{task}@{}", handle.now().as_nanos()));
                    }
                });
            }
            executor.run_ready(at(0));
            while let Some(next) = executor.next_timer() {
                executor.run_ready(next);
            }
            notes.take()
        };
        assert_eq!(play(), play());
    }
}
