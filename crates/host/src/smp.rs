//! CPUs that run threads, and the spin locks that they share: the time that work takes beside other work (open-channel §10.6).
//!
//! Place in the data flow: a host FTL gives each of its steps to a CPU as a *burst*, a list of work and locks, and acts when the burst
//! has ended. One CPU runs one burst at a time, in the order of their arrival; interrupts go first.
//!
//! ```text
//!  CPU 0   ──work──┤spin├──hold ring──┤──copy──┤          spin: until the holder has released it, and then the hand-over
//!  CPU 1   ──work────────────┤spin────├──hold ring──┤
//! ```
//!
//! Invariants:
//! 1. A lock has at most one holder and serves those who spin in the order of their arrival, as queued spin locks do.
//! 2. A lock that another CPU held last costs a hand-over: its cache line has to move.
//! 3. A burst is never interrupted: it lasts microseconds, a time slice milliseconds.
//!
//! Deliberately absent: sleeping locks, caches beyond the line of a lock, CPUs of different speeds, and bursts that move to another CPU.

use flashweir_core::{Duration, Instant};
use std::cmp::Reverse;
use std::collections::{BinaryHeap, VecDeque};

/// Number of a lock.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct LockId(pub(crate) usize);

/// A part of a burst.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Step {
    Work(Duration),
    Acquire(LockId),
    Release(LockId),
}

/// What threads spent on a lock.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct LockTimes {
    pub(crate) acquisitions: u64,
    /// Acquisitions that found another holder.
    pub(crate) contended: u64,
    /// From the attempt to the acquisition.
    pub(crate) spin_ns: u64,
    pub(crate) held_ns: u64,
}

#[derive(Clone, Debug)]
struct Burst<T> {
    is_interrupt: bool,
    steps: Vec<Step>,
    next: usize,
    then: T,
}

#[derive(Clone, Debug)]
struct Cpu<T> {
    running: Option<Burst<T>>,
    waiting: VecDeque<Burst<T>>,
    /// Beginning of the burst, or of the wait for a lock.
    since: Instant,
    spins_since: Instant,
}

#[derive(Clone, Debug, Default)]
struct Lock {
    holder: Option<usize>,
    last: Option<usize>,
    held_since: Instant,
    waiting: VecDeque<usize>,
    times: LockTimes,
}

/// Time of a lock's own operations.
#[derive(Clone, Copy, Debug)]
pub(crate) struct LockCosts {
    /// Acquisition and release of a lock that this CPU held last.
    pub(crate) alone: Duration,
    /// What is added if another CPU held it last.
    pub(crate) hand_over: Duration,
}

/// The CPUs and locks of a host.
#[derive(Clone, Debug)]
pub(crate) struct Smp<T> {
    cpus: Vec<Cpu<T>>,
    locks: Vec<Lock>,
    costs: LockCosts,
    /// Time at which a CPU's present step ends.
    agenda: BinaryHeap<Reverse<(Instant, u64, usize)>>,
    scheduled: u64,
    ended: Vec<T>,
    busy_ns: u64,
}

impl<T> Smp<T> {
    pub(crate) fn new(cpus: usize, locks: usize, costs: LockCosts) -> Self {
        let idle = || Cpu {
            running: None,
            waiting: VecDeque::new(),
            since: Instant::ZERO,
            spins_since: Instant::ZERO,
        };
        Self {
            cpus: (0..cpus).map(|_| idle()).collect(),
            locks: (0..locks).map(|_| Lock::default()).collect(),
            costs,
            agenda: BinaryHeap::new(),
            scheduled: 0,
            ended: Vec::new(),
            busy_ns: 0,
        }
    }

    pub(crate) fn cpus(&self) -> usize {
        self.cpus.len()
    }

    /// Whether a burst that begins now would run at once.
    pub(crate) fn is_idle(&self, cpu: usize) -> bool {
        self.cpus[cpu].running.is_none()
    }

    /// The CPU with the fewest bursts, the first one from `from` on.
    pub(crate) fn least_busy(&self, from: usize) -> usize {
        let load = |cpu: usize| self.cpus[cpu].waiting.len() + usize::from(!self.is_idle(cpu));
        let in_turn = (0..self.cpus.len()).map(|nth| (from + nth) % self.cpus.len());
        in_turn.min_by_key(|&cpu| load(cpu)).unwrap_or(0)
    }

    /// Time of all CPUs in bursts that have ended, in nanoseconds; spinning is a part of it.
    pub(crate) fn busy_ns(&self) -> u64 {
        self.busy_ns
    }

    pub(crate) fn times(&self, lock: LockId) -> &LockTimes {
        &self.locks[lock.0].times
    }

    /// Gives a burst to a CPU. An interrupt runs before everything that waits there but earlier interrupts.
    pub(crate) fn begin(&mut self, now: Instant, cpu: usize, is_interrupt: bool, steps: Vec<Step>, then: T) {
        let burst = Burst { is_interrupt, steps, next: 0, then };
        match &mut self.cpus[cpu] {
            Cpu { running: Some(_), waiting, .. } if is_interrupt => {
                let earlier = waiting.iter().take_while(|burst| burst.is_interrupt).count();
                waiting.insert(earlier, burst);
            }
            Cpu { running: Some(_), waiting, .. } => waiting.push_back(burst),
            idle => {
                (idle.running, idle.since) = (Some(burst), now);
                self.go_on(now, cpu);
            }
        }
    }

    /// Time of the next step.
    pub(crate) fn next(&self) -> Option<Instant> {
        self.agenda.peek().map(|Reverse((at, _, _))| *at)
    }

    /// Executes all steps up to `now`.
    pub(crate) fn advance(&mut self, now: Instant) {
        while self.next().is_some_and(|at| at <= now) {
            let Some(Reverse((at, _, cpu))) = self.agenda.pop() else { return };
            self.go_on(at, cpu);
        }
    }

    /// Takes what follows the bursts that have ended, in the order of their ends.
    pub(crate) fn take_ended(&mut self) -> Vec<T> {
        std::mem::take(&mut self.ended)
    }

    fn schedule(&mut self, at: Instant, cpu: usize) {
        self.scheduled += 1;
        self.agenda.push(Reverse((at, self.scheduled, cpu)));
    }

    /// Goes on with a CPU's burst from its next step.
    fn go_on(&mut self, now: Instant, cpu: usize) {
        while let Some(burst) = &mut self.cpus[cpu].running {
            let Some(&step) = burst.steps.get(burst.next) else {
                let burst = self.cpus[cpu].running.take().expect("it runs");
                self.busy_ns += now.since(self.cpus[cpu].since).as_nanos();
                self.ended.push(burst.then);
                self.cpus[cpu].running = self.cpus[cpu].waiting.pop_front();
                self.cpus[cpu].since = now;
                continue;
            };
            burst.next += 1;
            match step {
                Step::Work(work) => return self.schedule(now + work, cpu),
                Step::Acquire(LockId(lock)) => {
                    self.cpus[cpu].spins_since = now;
                    if self.locks[lock].holder.is_none() {
                        return self.take(now, cpu, lock);
                    }
                    self.locks[lock].times.contended += 1;
                    return self.locks[lock].waiting.push_back(cpu);
                }
                Step::Release(LockId(at)) => {
                    let lock = &mut self.locks[at];
                    debug_assert_eq!(lock.holder, Some(cpu), "the holder releases a lock");
                    lock.times.held_ns += now.saturating_since(lock.held_since).as_nanos();
                    (lock.holder, lock.last) = (None, Some(cpu));
                    if let Some(next) = lock.waiting.pop_front() {
                        self.take(now, next, at);
                    }
                }
            }
        }
    }

    fn take(&mut self, now: Instant, cpu: usize, at: usize) {
        let lock = &mut self.locks[at];
        let is_remote = lock.last.is_some_and(|last| last != cpu);
        let held_from =
            now + self.costs.alone + if is_remote { self.costs.hand_over } else { Duration::ZERO };
        (lock.holder, lock.held_since) = (Some(cpu), held_from);
        lock.times.acquisitions += 1;
        lock.times.spin_ns += held_from.since(self.cpus[cpu].spins_since).as_nanos();
        self.schedule(held_from, cpu);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use flashweir_core::random::RandomStream;

    const NS: fn(u64) -> Duration = Duration::from_nanos;

    /// Answers that come while a CPU is busy are heard in their order, before what waits.
    #[test]
    fn interrupts_run_in_their_order() {
        let mut smp = Smp::new(1, 0, LockCosts { alone: NS(0), hand_over: NS(0) });
        for (is_interrupt, name) in [(false, "runs"), (false, "waits"), (true, "first"), (true, "second")] {
            smp.begin(Instant::ZERO, 0, is_interrupt, vec![Step::Work(NS(10))], name);
        }
        smp.advance(Instant::ZERO + NS(100));
        assert_eq!(smp.take_ended(), ["runs", "first", "second", "waits"]);
    }

    /// CPUs that each repeat a burst; returns the bursts that have ended within a span, and the state after it.
    fn repeat(cpus: usize, work: u64, held: u64, costs: LockCosts, span: u64) -> (u64, Smp<usize>) {
        let mut smp = Smp::new(cpus, 1, costs);
        let lock = LockId(0);
        let steps =
            || vec![Step::Work(NS(work)), Step::Acquire(lock), Step::Work(NS(held)), Step::Release(lock)];
        for cpu in 0..cpus {
            smp.begin(Instant::ZERO, cpu, false, steps(), cpu);
        }
        let mut ended = 0;
        while let Some(now) = smp.next().filter(|now| now.as_nanos() <= span) {
            smp.advance(now);
            for cpu in smp.take_ended() {
                ended += 1;
                smp.begin(now, cpu, false, steps(), cpu);
            }
        }
        (ended, smp)
    }

    /// With constant times, n CPUs end a burst each max(work + lock + held, n · (lock + hand-over + held)).
    #[test]
    fn throughput_is_that_of_the_asymptotes() {
        let costs = LockCosts { alone: NS(20), hand_over: NS(80) };
        for cpus in [1u64, 2, 4, 8, 32] {
            let (ended, smp) = repeat(cpus as usize, 1_000, 100, costs, 10_000_000);
            let served = if cpus == 1 { 120 } else { 200 };
            let round = (1_000 + served).max(cpus * served);
            let expected = cpus * 10_000_000 / round;
            assert!(ended.abs_diff(expected) <= expected / 100 + cpus, "{cpus} CPUs: {ended}, {expected}");
            let times = smp.times(LockId(0));
            let share = (times.spin_ns + times.held_ns) as f64 / smp.busy_ns() as f64;
            let expected = 1.0 - 1_000.0 / round as f64;
            assert!((share - expected).abs() < 0.02, "{cpus} CPUs: share {share}, {expected}");
        }
    }

    #[test]
    fn those_who_spin_are_served_in_the_order_of_their_arrival() {
        let mut smp = Smp::new(4, 1, LockCosts { alone: NS(0), hand_over: NS(10) });
        let lock = LockId(0);
        for (cpu, late) in [(2, 0), (0, 1), (3, 2), (1, 3)] {
            let steps =
                vec![Step::Work(NS(late)), Step::Acquire(lock), Step::Work(NS(100)), Step::Release(lock)];
            smp.begin(Instant::ZERO, cpu, false, steps, cpu);
        }
        smp.advance(Instant::from_nanos(429));
        assert_eq!(smp.take_ended(), [2, 0, 3]);
        smp.advance(Instant::from_nanos(430));
        assert_eq!(smp.take_ended(), [1]);
        assert_eq!((smp.times(lock).acquisitions, smp.times(lock).contended), (4, 3));
        assert_eq!(smp.times(lock).held_ns, 400);
    }

    #[test]
    fn an_interrupt_runs_before_what_waits() {
        let mut smp = Smp::new(1, 0, LockCosts { alone: NS(0), hand_over: NS(0) });
        for (is_interrupt, name) in [(false, "first"), (false, "last"), (true, "interrupt")] {
            smp.begin(Instant::ZERO, 0, is_interrupt, vec![Step::Work(NS(5))], name);
        }
        smp.advance(Instant::from_nanos(15));
        assert_eq!(smp.take_ended(), ["first", "interrupt", "last"]);
        assert_eq!(smp.busy_ns(), 15);
        assert!(smp.is_idle(0) && smp.next().is_none());
    }

    /// Whatever the bursts: each ends once, a lock never has two holders, and no time is lost or counted twice.
    #[test]
    fn each_burst_ends_once_and_locks_exclude() {
        let mut random = RandomStream::new(7, "smp");
        for _ in 0..200 {
            let cpus = 1 + random.below(5) as usize;
            let mut smp = Smp::new(cpus, 2, LockCosts { alone: NS(3), hand_over: NS(random.below(30)) });
            let mut work = 0;
            for burst in 0..40u64 {
                let mut steps = Vec::new();
                let mut add = |steps: &mut Vec<Step>| {
                    let ns = random.below(50);
                    work += ns;
                    steps.push(Step::Work(NS(ns)));
                };
                for lock in [0, 1].map(LockId) {
                    add(&mut steps);
                    steps.push(Step::Acquire(lock));
                }
                add(&mut steps);
                steps.extend([1, 0].map(|lock| Step::Release(LockId(lock))));
                smp.begin(Instant::ZERO, random.below(cpus as u64) as usize, burst % 3 == 0, steps, burst);
            }
            let mut ended = Vec::new();
            while let Some(now) = smp.next() {
                smp.advance(now);
                ended.append(&mut smp.take_ended());
            }
            ended.sort_unstable();
            assert_eq!(ended, (0..40).collect::<Vec<_>>());
            let [outer, inner] = [0, 1].map(|lock| *smp.times(LockId(lock)));
            assert_eq!((outer.acquisitions, inner.acquisitions), (40, 40));
            assert_eq!(inner.contended, 0, "the outer lock keeps all others away");
            // Busy is work and waiting for locks; the time that the inner lock takes is held time of the outer.
            assert_eq!(smp.busy_ns(), work + outer.spin_ns + inner.spin_ns);
        }
    }
}
