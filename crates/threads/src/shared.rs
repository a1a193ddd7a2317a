//! What all threads of an FTL share: parts, limits, and how they wake each other.

use crate::assembly::{Assembly, Geometry, REQUEST_UNITS};
use crate::fault::Fault;
use crate::limiter::{SharedScores, SharedWindows};
use crate::lines::{Lines, Program};
use crate::map::AtomicMap;
use crate::medium::Medium;
use crate::metrics::Counters;
use crate::pool::{Pool, Worker};
use crate::spin::SpinLock;
use crate::sync::{Alone, Arc, AtomicBool, AtomicU64, Ordering, Thread, current, fence, park_timeout};
use crate::versions::Versions;
use flashweir_ftl::limiter::Marks;
use std::sync::OnceLock;
use std::time::Duration;

/// A thread that sleeps until there is work.
#[derive(Debug, Default)]
pub(crate) struct Sleeper {
    is_asleep: AtomicBool,
    thread: OnceLock<Thread>,
}

impl Sleeper {
    /// The calling thread is the one that sleeps here.
    pub(crate) fn is_me(&self) {
        self.thread.set(current()).expect("one thread sleeps here");
    }

    /// Sleeps for a while unless there is work.
    pub(crate) fn sleep(&self, pause: Duration, has_work: impl FnOnce() -> bool) {
        self.is_asleep.store(true, Ordering::Relaxed);
        // Either who brings work sees that this thread sleeps, or this thread sees the work.
        fence(Ordering::SeqCst);
        if !has_work() {
            park_timeout(pause);
        }
        self.is_asleep.store(false, Ordering::Relaxed);
    }

    /// Wakes the thread if it sleeps.
    pub(crate) fn wake(&self) {
        fence(Ordering::SeqCst);
        if self.is_asleep.load(Ordering::Relaxed)
            && self.is_asleep.swap(false, Ordering::Relaxed)
            && let Some(thread) = self.thread.get()
        {
            thread.unpark();
        }
    }
}

/// Admission to the rings.
#[derive(Debug)]
pub(crate) enum Limiter {
    Windows(SharedWindows),
    Scores(SharedScores),
}

/// An FTL, seen by its threads.
#[derive(Debug)]
pub(crate) struct Shared {
    pub(crate) geometry: Geometry,
    pub(crate) medium: Arc<Medium>,
    pub(crate) versions: Versions,
    pub(crate) lines: Lines,
    pub(crate) pool: Pool,
    pub(crate) limiter: Limiter,
    limits: SpinLock<()>,
    pub(crate) marks: Marks,
    /// Of handles, then of rings' writers, then of the collector.
    pub(crate) counters: Box<[Alone<Counters>]>,
    pub(crate) writers: Box<[Sleeper]>,
    pub(crate) collector: Sleeper,
    /// Groups that GC works on.
    pub(crate) collecting: Alone<AtomicU64>,
    /// GC has copies to bring.
    pub(crate) gc_waits: AtomicBool,
    /// Tens of milliseconds since the beginning, and the last one in which the user wrote.
    pub(crate) tick: Alone<AtomicU64>,
    pub(crate) user_tick: Alone<AtomicU64>,
    /// Units of users that were admitted and have no entries yet.
    waiting: Alone<AtomicU64>,
    /// GC gains nothing any more.
    pub(crate) is_full: AtomicBool,
    is_ending: AtomicBool,
    turn: Alone<AtomicU64>,
    wheel: Alone<AtomicU64>,
    /// With less room on the medium users wait.
    pub(crate) gate: i64,
}

/// The user is active for five seconds after a write (open-channel §7.3).
const ACTIVE_TICKS: u64 = 500;

impl Shared {
    /// Parts of an FTL on a medium, and the ends of the pool: of handles, then of writers, then of the collector.
    pub(crate) fn new(assembly: Assembly, medium: Arc<Medium>) -> (Self, Vec<Worker>) {
        let geometry = *medium.geometry();
        let rings = geometry.rings(assembly);
        let lines = Lines::new(medium.clone(), assembly);
        let marks = geometry.marks(assembly);
        let groups = lines.groups() as u32;
        let free: Vec<u32> = (0..lines.groups()).map(|group| lines.free_blocks(group)).collect();
        let limiter = match assembly.scores {
            true => Limiter::Scores(SharedScores::new(marks, &free)),
            false => Limiter::Windows(SharedWindows::new(marks.times(groups), free.iter().sum())),
        };
        let map = AtomicMap::new(geometry.user_units, !assembly.map_is_atomic);
        let threads = geometry.workers + rings.len() as u32 + 1;
        let (pool, ends) = Pool::new(threads, 16, !assembly.pool_per_cpu);
        let number = || Alone(AtomicU64::new(0));
        let shared = Self {
            geometry,
            versions: Versions::new(map, &rings, geometry.workers as usize, !assembly.map_is_atomic),
            lines,
            pool,
            limiter,
            limits: SpinLock::new(()),
            marks,
            counters: (0..threads).map(|_| Alone(Counters::default())).collect(),
            writers: rings.iter().map(|_| Sleeper::default()).collect(),
            collector: Sleeper::default(),
            collecting: number(),
            gc_waits: AtomicBool::new(false),
            tick: Alone(AtomicU64::new(ACTIVE_TICKS)),
            user_tick: number(),
            waiting: number(),
            is_full: AtomicBool::new(false),
            is_ending: AtomicBool::new(false),
            turn: number(),
            wheel: number(),
            gate: geometry.gate(assembly) as i64,
            medium,
        };
        (shared, ends)
    }

    /// Whether threads go on: the power is on, and nobody closes the FTL.
    pub(crate) fn goes_on(&self) -> bool {
        !self.medium.is_off() && !self.is_ending.load(Ordering::Acquire)
    }

    /// Why nothing goes on.
    pub(crate) fn fault(&self) -> Fault {
        match self.medium.failure() {
            Some(error) => Fault::Device(error.raw_os_error().unwrap_or(libc::EIO)),
            None => Fault::PowerLost,
        }
    }

    /// Has all threads end.
    pub(crate) fn end(&self) {
        self.is_ending.store(true, Ordering::Release);
        self.wake_all();
    }

    pub(crate) fn wake_all(&self) {
        self.writers.iter().for_each(Sleeper::wake);
        self.collector.wake();
    }

    /// Counters of a ring's writer.
    pub(crate) fn writer_counters(&self, ring: usize) -> &Counters {
        &self.counters[self.geometry.workers as usize + ring]
    }

    /// Counters of the collector.
    pub(crate) fn collector_counters(&self) -> &Counters {
        &self.counters[self.counters.len() - 1]
    }

    /// Whether there is room for the user beside what GC may need. A window of no entries is no room either.
    pub(crate) fn has_room(&self) -> bool {
        let is_closed = matches!(&self.limiter, Limiter::Windows(windows) if windows.limits().0 == 0);
        self.lines.space.load(Ordering::Acquire) >= self.gate && !is_closed
    }

    /// Whether a request of a user may wait for entries; how many of its units are counted until [`Self::has_entered`]. Who has been let in cannot
    /// be sent back, so all who wait need room together; one of them may always go on where there is room. As long as there is far more
    /// than all of them can ask for, none is counted: the count is one for all CPUs.
    pub(crate) fn may_wait(&self, count: u32) -> Option<u32> {
        let space = || self.lines.space.load(Ordering::Acquire);
        let most = i64::from(self.geometry.workers) * REQUEST_UNITS as i64;
        if space() >= self.gate + 2 * most {
            return Some(0);
        }
        let before = self.waiting.fetch_add(count.into(), Ordering::AcqRel);
        let needed = self.gate + before as i64 + i64::from(count);
        let fits = self.has_room() && (before == 0 || space() >= needed);
        if !fits {
            self.has_entered(count);
        }
        fits.then_some(count)
    }

    /// So many counted units have entries, or need none.
    pub(crate) fn has_entered(&self, counted: u32) {
        if counted > 0 {
            self.waiting.fetch_sub(counted.into(), Ordering::AcqRel);
        }
    }

    /// The user writes now.
    pub(crate) fn user_writes(&self) {
        let now = self.tick.load(Ordering::Relaxed);
        if self.user_tick.load(Ordering::Relaxed) != now {
            self.user_tick.store(now, Ordering::Relaxed);
        }
    }

    pub(crate) fn user_is_active(&self) -> bool {
        let last = self.user_tick.load(Ordering::Relaxed);
        self.tick.load(Ordering::Relaxed).saturating_sub(last) < ACTIVE_TICKS
    }

    /// The number of free lines of a group has changed.
    pub(crate) fn free_changed(&self, group: usize) {
        match &self.limiter {
            Limiter::Scores(scores) => {
                self.lines.with_free_blocks(group, |free| scores.set_free(group, free));
            }
            Limiter::Windows(windows) => {
                // The last one to come has the last word.
                let _guard = self.limits.lock();
                windows.set_free((0..self.lines.groups()).map(|group| self.lines.free_blocks(group)).sum());
            }
        }
    }

    /// Place of the next program: groups take turns, and those that collect are passed over in proportion (open-channel §4.3).
    pub(crate) fn next_program(&self) -> Option<Program> {
        let groups = self.lines.groups() as u64;
        let active = self.collecting.load(Ordering::Relaxed);
        let turn = self.turn.fetch_add(1, Ordering::Relaxed);
        for tries in 0..2 * groups {
            let group = ((turn + tries) % groups) as usize;
            if tries < groups && active > 0 && active < groups && self.lines.is_collecting(group) {
                let wheel = self.wheel.fetch_add(1, Ordering::Relaxed);
                if wheel % groups >= active {
                    continue;
                }
            }
            if let Some(program) = self.lines.take(group) {
                if program.has_opened {
                    self.free_changed(group);
                    self.collector.wake();
                }
                return Some(program);
            }
        }
        None
    }

    /// Takes an item of the pool; there are as many as threads use at a time.
    pub(crate) fn item(&self, end: &mut Worker) -> crate::pool::Lease<'_> {
        end.take(&self.pool).expect("an item for each thread that asks")
    }
}
