//! The threads of a host FTL on the host's CPUs: what each path costs, and which locks it takes (open-channel §9.5).
//!
//! ```text
//!  write    job, system call ─► hold ring [ publish: map ] ─► copy ─► map ─► answer
//!  read     job, system call ─► map ─► pool ─► (device) ─► pool ─► answer       from a ring: hold ring, copy
//!  program  pool ─► entries ─► (device) ─► hold sync ─► pool
//!  GC       (device) ─► hold ring, copy, map for each unit
//! ```
//!
//! Place in the data flow: the FTL asks for a path and acts when it has ended. Without CPUs there are no paths, and it acts at once.
//!
//! Invariant: time is spent here and nothing else happens; contents and order of the rings are the FTL's.
//!
//! Deliberately absent: the page cache, and the cost of erases and metadata, which are few. An entry may be programmed during the
//! microsecond in which its submitter still copies.

use super::config::{HostFtlConfig, Sequence};
use super::costs::{Costs, Shared};
use super::metrics::HostFtlMetrics;
use super::tasks::Task;
use crate::smp::{LockCosts, LockId, Smp, Step};
use flashweir_core::{Command, DeviceError, Done, Duration, Instant, Op};
use std::collections::{BTreeMap, VecDeque};

/// What follows when a path has ended.
#[derive(Clone, Debug)]
pub(super) enum Then {
    /// A request reaches the FTL.
    Submit { command: Command, submitter: u16 },
    /// A request that found no room tries again.
    Retry { token: u64, ring: usize },
    /// A request is answered.
    Complete { token: u64, result: Result<Done, DeviceError> },
    /// A ring's writer has built a program of this die.
    Send { ring: usize, die: u32, id: u64 },
    /// An answer from below to the command of this id is handled.
    Answer { id: u64, task: Task, result: Result<Done, DeviceError> },
}

/// A request under way.
#[derive(Clone, Copy, Debug)]
struct Origin {
    cpu: usize,
    is_write: bool,
    units: u64,
    /// End of the last burst in which its thread asked for it.
    awake: Option<Instant>,
}

/// The threads.
#[derive(Clone, Debug)]
pub(super) struct Threads {
    smp: Smp<Then>,
    costs: Costs,
    map: Shared,
    pool: Shared,
    sequence: Sequence,
    rings: usize,
    unit_sectors: u64,
    origins: BTreeMap<u64, Origin>,
    /// Whether each ring's writer is at work.
    writers: Vec<bool>,
    /// CPU on which a writer ran last, where there are fewer writers than CPUs.
    last: usize,
    retries: u64,
    /// Programs of each die that were given places and have not left, in the order of their places, and whether they are built. They
    /// leave in this order: a chunk is written from its beginning to its end, whichever writer is faster.
    leaving: BTreeMap<u32, VecDeque<(Command, bool)>>,
}

impl Threads {
    /// Returns the threads on `config.cpus` CPUs; none if it is zero.
    pub(super) fn new(config: &HostFtlConfig, unit_sectors: u64) -> Option<Box<Self>> {
        let rings = usize::from(config.rings);
        let costs = config.costs.clone();
        let of_locks = LockCosts { alone: costs.lock, hand_over: costs.hand_over };
        (config.cpus > 0).then(|| {
            Box::new(Self {
                smp: Smp::new(usize::from(config.cpus), 2 * rings + 2, of_locks),
                map: config.map,
                pool: config.pool,
                sequence: config.sequence,
                rings,
                unit_sectors,
                origins: BTreeMap::new(),
                writers: vec![false; rings],
                last: 0,
                retries: 0,
                leaving: BTreeMap::new(),
                costs,
            })
        })
    }

    // ---- locks ----

    fn producers(ring: usize) -> LockId {
        LockId(ring)
    }

    fn sync(&self, ring: usize) -> LockId {
        LockId(self.rings + ring)
    }

    fn map_lock(&self) -> LockId {
        LockId(2 * self.rings)
    }

    fn pool_lock(&self) -> LockId {
        LockId(2 * self.rings + 1)
    }

    /// Changes of `count` words of the map, each under the lock if there is one.
    fn on_map(&self, steps: &mut Vec<Step>, count: u64) {
        let change = self.costs.change;
        match self.map {
            Shared::Apart => steps.push(Step::Work(change * count)),
            Shared::Lock => (0..count).for_each(|_| hold(steps, self.map_lock(), change)),
        }
    }

    /// Lookups of `count` words of the map, under one hold of the lock if there is one.
    fn look_up(&self, steps: &mut Vec<Step>, count: u64) {
        let work = self.costs.lookup * count;
        match self.map {
            Shared::Apart => steps.push(Step::Work(work)),
            Shared::Lock => hold(steps, self.map_lock(), work),
        }
    }

    /// A descriptor or buffer is taken, which is one half of the pool's cost, or returned, which is the other one.
    fn on_pool(&self, steps: &mut Vec<Step>, is_taken: bool) {
        let half = self.costs.pool / 2;
        let work = if is_taken { self.costs.pool - half } else { half };
        match self.pool {
            Shared::Apart => steps.push(Step::Work(work)),
            Shared::Lock => hold(steps, self.pool_lock(), work),
        }
    }

    /// Reservation of entries: their slots are published first.
    fn on_ring(&self, steps: &mut Vec<Step>, ring: usize, units: u64) {
        // Two lines of positions; for each entry the line that the writer has marked, and that of the number that orders all rings.
        let numbers = if self.sequence == Sequence::Device { units } else { 0 };
        let lines = Step::Work(self.costs.line * (2 + units + numbers));
        steps.extend([Step::Acquire(Self::producers(ring)), lines]);
        self.on_map(steps, units);
        steps.push(Step::Release(Self::producers(ring)));
    }

    // ---- paths ----

    /// A request of a job begins.
    pub(super) fn submit(&mut self, now: Instant, command: Command, submitter: u16) {
        let cpu = usize::from(submitter) % self.smp.cpus();
        let ring = usize::from(submitter) % self.rings;
        let mut steps = vec![Step::Work(self.costs.application + self.costs.system)];
        let blocks = match &command.op {
            Op::Read { blocks, .. } | Op::Write { blocks, .. } => *blocks,
            Op::WriteZeroes { blocks, .. } | Op::Trim { blocks, .. } => *blocks,
            _ => 0,
        };
        let units = u64::from(blocks).div_ceil(self.unit_sectors);
        let is_write = matches!(command.op, Op::Write { .. } | Op::WriteZeroes { .. });
        match &command.op {
            Op::Read { .. } => {
                self.look_up(&mut steps, units);
                self.on_pool(&mut steps, true);
            }
            Op::Write { .. } | Op::WriteZeroes { .. } => self.on_ring(&mut steps, ring, units),
            Op::Trim { .. } => self.on_map(&mut steps, units),
            _ => (0..self.rings).for_each(|ring| hold(&mut steps, self.sync(ring), self.costs.line)),
        }
        self.origins.insert(command.id.0, Origin { cpu, is_write, units, awake: None });
        self.smp.begin(now, cpu, false, steps, Then::Submit { command, submitter });
    }

    /// The burst in which a request was submitted, or tried again, ends now.
    pub(super) fn submitted(&mut self, now: Instant, token: u64) {
        if let Some(origin) = self.origins.get_mut(&token) {
            origin.awake = Some(now);
        }
    }

    /// A request found no room: its thread yields and tries again.
    pub(super) fn retry(&mut self, now: Instant, token: u64, ring: usize) {
        self.retries += 1;
        let Origin { cpu, .. } = self.origins[&token];
        let mut steps = vec![Step::Work(self.costs.turn)];
        hold(&mut steps, Self::producers(ring), self.costs.line * 2);
        self.smp.begin(now, cpu, false, steps, Then::Retry { token, ring });
    }

    /// A request is done, but for what its own thread still does: copies `from_rings` units out of rings, for one.
    pub(super) fn complete(
        &mut self,
        now: Instant,
        token: u64,
        result: Result<Done, DeviceError>,
        from_rings: u64,
    ) {
        let origin = self.origins.remove(&token).expect("each request begins once");
        let Origin { cpu, is_write, units, awake } = origin;
        let mut steps = Vec::new();
        if is_write {
            steps.push(Step::Work(self.costs.copy * units));
            self.on_map(&mut steps, units);
        } else if from_rings > 0 {
            hold(&mut steps, Self::producers(cpu % self.rings), self.costs.copy * from_rings);
        }
        // A thread that is answered at once has not gone to sleep.
        if self.smp.is_idle(cpu) && awake != Some(now) {
            steps.push(Step::Work(self.costs.wake));
        }
        self.smp.begin(now, cpu, false, steps, Then::Complete { token, result });
    }

    /// Whether a ring's writer can take the next program.
    pub(super) fn is_writer_idle(&self, ring: usize) -> bool {
        !self.writers[ring]
    }

    /// A ring's writer builds a program of so many entries.
    pub(super) fn send(&mut self, now: Instant, (ring, die): (usize, u32), units: u64, command: Command) {
        let id = command.id.0;
        self.leaving.entry(die).or_default().push_back((command, false));
        self.writers[ring] = true;
        if self.rings != self.smp.cpus() {
            self.last = self.smp.least_busy(self.last);
        }
        let cpu = self.writer_cpu(ring);
        let mut steps = Vec::new();
        self.on_pool(&mut steps, true);
        // The lines of positions and line, and for each entry the one that its submitter has filled.
        steps.push(Step::Work(self.costs.line * (2 + units)));
        self.smp.begin(now, cpu, false, steps, Then::Send { ring, die, id });
    }

    /// A ring's writer has built its program; returns those of the die that may leave now.
    pub(super) fn built(&mut self, ring: usize, die: u32, id: u64) -> Vec<Command> {
        self.writers[ring] = false;
        let Some(leaving) = self.leaving.get_mut(&die) else { return Vec::new() };
        leaving
            .iter_mut()
            .filter(|(command, _)| command.id.0 == id)
            .for_each(|(_, is_built)| *is_built = true);
        let count = leaving.iter().take_while(|(_, is_built)| *is_built).count();
        leaving.drain(..count).map(|(command, _)| command).collect()
    }

    /// The CPU of a ring's writer: the ring's own, or the least busy one where CPUs share a ring.
    fn writer_cpu(&self, ring: usize) -> usize {
        if self.rings == self.smp.cpus() { ring } else { self.last }
    }

    /// An answer from below comes as an interrupt.
    pub(super) fn hear(&mut self, now: Instant, id: u64, task: Task, result: Result<Done, DeviceError>) {
        let mut steps = Vec::new();
        self.on_pool(&mut steps, false);
        let cpu = match &task {
            Task::Read { token, .. } => self.origins[token].cpu,
            Task::Program { ring, entries, .. } => {
                let lines = 1 + entries.len() as u64;
                hold(&mut steps, self.sync(*ring), self.costs.line * lines);
                self.writer_cpu(*ring)
            }
            Task::Collect { group, units } => {
                for _ in units {
                    hold(&mut steps, Self::producers(group % self.rings), self.costs.line * 3);
                    steps.push(Step::Work(self.costs.copy));
                    self.on_map(&mut steps, 1);
                }
                group % self.smp.cpus()
            }
            Task::Meta { .. } | Task::Erase { .. } | Task::Recover(_) => self.last,
        };
        self.smp.begin(now, cpu, true, steps, Then::Answer { id, task, result });
    }

    /// Executes everything up to `now`, and returns what follows.
    pub(super) fn advance(&mut self, now: Instant) -> Vec<Then> {
        self.smp.advance(now);
        self.smp.take_ended()
    }

    /// Time of the next step.
    pub(super) fn next(&self) -> Option<Instant> {
        self.smp.next()
    }

    /// Adds what CPUs and locks did to the counters.
    pub(super) fn count(&self, metrics: &mut HostFtlMetrics) {
        metrics.cpu_busy_ns = self.smp.busy_ns();
        metrics.retries = self.retries;
        let sum = |locks: std::ops::Range<usize>| {
            let times = locks.map(|lock| *self.smp.times(LockId(lock)));
            times.fold((0, 0, 0, 0), |(a, b, c, d), times| {
                (a + times.spin_ns, b + times.held_ns, c + times.acquisitions, d + times.contended)
            })
        };
        let (rings, map) = (self.rings, 2 * self.rings);
        (metrics.ring_spin_ns, metrics.ring_held_ns, metrics.ring_locks, metrics.ring_locks_contended) =
            sum(0..2 * rings);
        (metrics.map_spin_ns, metrics.map_held_ns, ..) = sum(map..map + 1);
        (metrics.pool_spin_ns, metrics.pool_held_ns, ..) = sum(map + 1..map + 2);
    }
}

/// Work under a lock.
fn hold(steps: &mut Vec<Step>, lock: LockId, work: Duration) {
    steps.extend([Step::Acquire(lock), Step::Work(work), Step::Release(lock)]);
}
