//! The NAND machine: when operations happen. It has stations (dies, or chips whose dies do not interleave), channels and queues.
//!
//! Place in the data flow: a firmware pushes operations, each with a job that the machine carries and never looks at; the machine
//! decides when each begins and ends, and reports its end; the effect on the medium is the caller's business.
//!
//! A read holds the bus for its command, then the array, then waits for the bus again and moves its data. A program holds the bus
//! for command and data, then the array. Data that wait for the bus go before new commands, or behind them, as the configuration
//! says. Programs are bound to a page only when they begin, so pages are programmed in order.
//!
//! Invariants: a station works on one command at a time, a channel moves one transfer at a time; every operation that was pushed
//! finishes exactly once; a die serves the queued reads of a block before it erases the block, so an address that a queued read
//! holds stays readable.

use super::op::{Class, Frontier, Interrupted, Op, OpId, OpKind, Programs, Purpose};
use super::trace::{Traced, Tracer};
use crate::config::{BusOrder, PageTimes, SuspendConfig, TimingConfig};
use crate::geometry::{ChannelId, Geometry, PageAddr, StationId};
use crate::metrics::NandMetrics;
use flashweir_core::{Divisor, Duration, IndexVec, Instant};
use flashweir_ftl::{Blocks, PlaneId};
use std::collections::VecDeque;

/// A scheduled event of the machine.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum NandEvent {
    /// The bus is free, and a station waits for it.
    Wake(ChannelId),
    /// The array of a station has finished, unless the generation is outdated.
    Array { station: StationId, generation: u32 },
    /// A transfer to the host side has finished.
    Output(ChannelId),
}

/// Assigns a page to a late-bound program from the pool of blocks, and work from a shared queue to an idle station.
pub(crate) trait Placer<J> {
    /// The page number that the next program of this frontier would get; `None` if there is no room.
    fn offer(&self, pool: &Blocks, plane: PlaneId, frontier: Frontier) -> Option<u32>;
    /// Takes that page.
    fn bind(&mut self, pool: &mut Blocks, plane: PlaneId, frontier: Frontier) -> PageAddr;
    /// Takes work from the shared queue for one of the planes of a station that would otherwise be idle.
    fn pull(&mut self, pool: &Blocks, planes: std::ops::Range<u32>) -> Option<Op<J>>;
    /// Takes work from the shared queue for this plane, if its next page has this number, so that it can join a command of its die.
    fn pull_beside(&mut self, pool: &Blocks, plane: PlaneId, page: u32) -> Option<Op<J>>;
    /// Returns the bytes to move for a page write with the units that it has now; no further unit may join it.
    fn seal(&mut self, job: J) -> u32;
}

/// A placer and the pool from which it takes blocks, for one pass over a channel.
struct Pages<'a, P> {
    pool: &'a mut Blocks,
    placer: &'a mut P,
}

/// Most reads in a row that pass waiting programs and erases of a station.
const READ_STREAK_MAX: u32 = 64;
/// Number of queued reads that are searched for a partner of a multi-plane command.
const MULTI_PLANE_WINDOW: usize = 32;
/// Most planes of a die.
const PLANES_MAX: usize = 8;

#[derive(Clone, Copy, Debug, Default)]
struct Batch {
    ops: [u32; PLANES_MAX],
    len: u8,
}

impl Batch {
    fn push(&mut self, op: OpId) {
        self.ops[usize::from(self.len)] = op.0;
        self.len += 1;
    }
    fn iter(&self) -> impl Iterator<Item = OpId> + use<> {
        let ops = self.ops;
        (0..usize::from(self.len)).map(move |i| OpId(ops[i]))
    }
}

#[derive(Clone, Copy, Debug)]
enum Phase {
    Idle,
    /// Command, and for programs data, cross the bus until `since`; then the array works until `until`.
    Array {
        kind: OpKind,
        batch: Batch,
        since: Instant,
        until: Instant,
    },
    /// Reads wait for the bus or use it; `left` of them are left.
    Output {
        left: u8,
    },
    /// The array is being stopped for a read.
    Suspending,
}

#[derive(Clone, Copy, Debug)]
struct Suspended {
    kind: OpKind,
    batch: Batch,
    left: Duration,
}

#[derive(Clone, Debug)]
struct Station {
    phase: Phase,
    generation: u32,
    suspended: Option<Suspended>,
    suspensions: u32,
    read_streak: u32,
    /// Whether the last command other than a host read served GC.
    collected_last: bool,
    meta: VecDeque<OpId>,
    reads: VecDeque<OpId>,
    gc_reads: VecDeque<OpId>,
    erases: VecDeque<OpId>,
    gc_writes: Vec<VecDeque<OpId>>,
    writes: Vec<VecDeque<OpId>>,
    /// Number of programs in these queues, over all planes, by [`Programs`].
    waiting: [u32; 2],
    write_turn: u32,
    /// Programs of segments, by plane, and their number.
    placed: Vec<VecDeque<OpId>>,
    placed_waiting: u32,
    placed_turn: u32,
    /// Whether the last program of host data was one of a segment.
    placed_last: bool,
    busy: Duration,
}

impl Station {
    /// Queues by plane.
    #[inline]
    fn programs(&self, programs: Programs) -> &[VecDeque<OpId>] {
        match programs {
            Programs::User => &self.writes,
            Programs::Gc => &self.gc_writes,
        }
    }
}

#[derive(Clone, Debug)]
struct Channel {
    busy_until: Instant,
    transfer: Option<OpId>,
    outputs: VecDeque<OpId>,
    wake: bool,
    /// A bit for each station of the channel that is idle and may have work.
    ready: u64,
    turn: u32,
    busy: Duration,
}

/// The NAND machine.
#[derive(Clone, Debug)]
pub(crate) struct Machine<J> {
    stations: IndexVec<StationId, Station>,
    channels: IndexVec<ChannelId, Channel>,
    /// A bit for each station that neither works nor outputs; the order takes one station of each channel in turn.
    resting: Vec<u64>,
    ops: Vec<Op<J>>,
    free_ops: Vec<u32>,
    per_channel: Divisor,
    planes_per_station: Divisor,
    planes_per_die: Divisor,
    bus_bytes_per_s: u64,
    command: [Duration; 3],
    command_next_plane: [Duration; 3],
    commands_first: bool,
    read: PageTimes,
    program: PageTimes,
    erase: Duration,
    multi_plane: bool,
    preemptible: bool,
    suspend: Option<SuspendConfig>,
    metrics: NandMetrics,
    /// The transfer length that was asked for last, and its time.
    transfer_memo: (u64, Duration),
    /// Records what the machine does and when, while the tracer is on.
    pub(crate) trace: Tracer,
}

impl<J: Copy> Machine<J> {
    /// An idle machine; `preemptible` as in [`crate::config::GcConfig`].
    pub(crate) fn new(geometry: &Geometry, timing: &TimingConfig, preemptible: bool) -> Self {
        let planes = geometry.planes_per_station() as usize;
        let station = |_| Station {
            phase: Phase::Idle,
            generation: 0,
            suspended: None,
            suspensions: 0,
            read_streak: 0,
            collected_last: false,
            meta: VecDeque::new(),
            reads: VecDeque::new(),
            gc_reads: VecDeque::new(),
            erases: VecDeque::new(),
            gc_writes: vec![VecDeque::new(); planes],
            writes: vec![VecDeque::new(); planes],
            waiting: [0; 2],
            write_turn: 0,
            placed: vec![VecDeque::new(); planes],
            placed_waiting: 0,
            placed_turn: 0,
            placed_last: false,
            busy: Duration::ZERO,
        };
        let channel = |_| Channel {
            busy_until: Instant::ZERO,
            transfer: None,
            outputs: VecDeque::new(),
            wake: false,
            ready: 0,
            turn: 0,
            busy: Duration::ZERO,
        };
        Self {
            stations: IndexVec::from_fn(geometry.stations() as usize, station),
            channels: IndexVec::from_fn(geometry.channels() as usize, channel),
            resting: (0..geometry.stations().div_ceil(64))
                .map(|word| u64::MAX >> 64u32.saturating_sub(geometry.stations() - 64 * word))
                .collect(),
            ops: Vec::new(),
            free_ops: Vec::new(),
            per_channel: Divisor::new(u64::from(geometry.stations_per_channel())),
            planes_per_station: Divisor::new(u64::from(geometry.planes_per_station())),
            planes_per_die: Divisor::new(u64::from(geometry.planes_per_die())),
            bus_bytes_per_s: timing.bus_bytes_per_s,
            command: timing.command,
            command_next_plane: timing.command_next_plane,
            commands_first: timing.bus_order == BusOrder::CommandsFirst,
            read: timing.read.clone(),
            program: timing.program.clone(),
            erase: timing.erase,
            multi_plane: timing.multi_plane,
            preemptible,
            suspend: timing.suspend.clone(),
            metrics: NandMetrics::default(),
            transfer_memo: (0, Duration::ZERO),
            trace: Tracer::default(),
        }
    }

    /// Counters since the machine was made.
    pub(crate) fn metrics(&self) -> &NandMetrics {
        &self.metrics
    }

    /// The operation `id`.
    pub(crate) fn op(&self, id: OpId) -> &Op<J> {
        &self.ops[id.0 as usize]
    }

    /// Takes out a finished operation.
    pub(crate) fn take(&mut self, id: OpId) -> Op<J> {
        self.trace.record(|| Traced::Finished { op: id });
        self.free_ops.push(id.0);
        self.ops[id.0 as usize]
    }

    /// Queues an operation; it begins when [`Self::start`] is called for its channel.
    pub(crate) fn push(&mut self, op: Op<J>) -> StationId {
        let (station_id, plane) = self.planes_per_station.div_rem_u32(op.plane.0);
        let (station_id, plane) = (StationId(station_id), plane as usize);
        let class = op.class;
        let id = self.insert(op);
        let station = &mut self.stations[station_id];
        let queue = match class {
            Class::Meta => &mut station.meta,
            Class::Read => &mut station.reads,
            Class::GcRead => &mut station.gc_reads,
            Class::Erase => &mut station.erases,
            Class::GcWrite => {
                station.waiting[Programs::Gc as usize] += 1;
                &mut station.gc_writes[plane]
            }
            Class::Write => {
                station.waiting[Programs::User as usize] += 1;
                &mut station.writes[plane]
            }
            Class::Placed => {
                station.placed_waiting += 1;
                &mut station.placed[plane]
            }
        };
        queue.push_back(id);
        self.wake(station_id);
        station_id
    }

    /// Moves the waiting program of host data for which `is_it` holds before all those for which `first` does not hold.
    pub(crate) fn promote_program(
        &mut self,
        plane: PlaneId,
        is_it: impl Fn(J) -> bool,
        first: impl Fn(J) -> bool,
    ) {
        let (station, nth) = (self.station_of(plane), self.nth_plane(plane));
        let ops = &self.ops;
        let queue = &mut self.stations[station].writes[nth];
        let job = |op: &OpId| ops[op.0 as usize].job;
        let Some(at) = queue.iter().position(|op| is_it(job(op))) else { return };
        let to = queue.iter().position(|op| !first(job(op))).unwrap_or(at);
        if to < at
            && let Some(op) = queue.remove(at)
        {
            queue.insert(to, op);
        }
    }

    #[inline]
    fn station_of(&self, plane: PlaneId) -> StationId {
        StationId(self.planes_per_station.div_u32(plane.0))
    }

    /// The number of a plane within its station.
    #[inline]
    fn nth_plane(&self, plane: PlaneId) -> usize {
        self.planes_per_station.div_rem_u32(plane.0).1 as usize
    }

    #[inline]
    fn channel_of(&self, station: StationId) -> ChannelId {
        ChannelId(self.per_channel.div_u32(station.0))
    }

    fn insert(&mut self, op: Op<J>) -> OpId {
        let id = match self.free_ops.pop() {
            Some(free) => {
                self.ops[free as usize] = op;
                OpId(free)
            }
            None => {
                self.ops.push(op);
                OpId(self.ops.len() as u32 - 1)
            }
        };
        self.trace.record(|| Traced::Queued { op: id, what: op.without_job() });
        id
    }

    /// Notes that the station may have work that it could not do before.
    pub(crate) fn wake(&mut self, station: StationId) {
        let idle = match self.stations[station].phase {
            Phase::Idle => true,
            // A read may suspend what the array does.
            Phase::Array { .. } => self.suspend.is_some(),
            Phase::Output { .. } | Phase::Suspending => false,
        };
        if idle {
            let (channel, nth) = self.per_channel.div_rem_u32(station.0);
            self.channels[ChannelId(channel)].ready |= 1 << nth;
        }
    }

    /// The bit of a station in [`Self::resting`].
    #[inline]
    fn nth(&self, station: StationId) -> u32 {
        let (channel, nth) = self.per_channel.div_rem_u32(station.0);
        nth * self.channels.len() as u32 + channel
    }

    /// The station's array, or its output, has ended.
    fn rest(&mut self, station: StationId) {
        let nth = self.nth(station);
        self.stations[station].phase = Phase::Idle;
        self.resting[nth as usize / 64] |= 1 << (nth % 64);
    }

    /// The station's array begins to work.
    fn work(&mut self, station: StationId, phase: Phase) {
        let nth = self.nth(station);
        self.stations[station].phase = phase;
        self.resting[nth as usize / 64] &= !(1 << (nth % 64));
    }

    /// Stations that neither work nor output, each with its number in the order that takes one station of each channel in turn;
    /// from number `turn` on, wrapping around.
    pub(crate) fn resting(&self, turn: u32) -> impl Iterator<Item = (u32, StationId)> + '_ {
        let channels = self.channels.len() as u32;
        let station = move |nth| StationId(nth % channels * self.per_channel.get() as u32 + nth / channels);
        let all = self.stations.len() as u32;
        let bits = set_bits(&self.resting, turn, all).chain(set_bits(&self.resting, 0, turn));
        bits.map(move |nth| (nth, station(nth)))
    }

    /// Whether the station is idle and has no operation queued.
    pub(crate) fn is_idle(&self, station: StationId) -> bool {
        let s = &self.stations[station];
        matches!(s.phase, Phase::Idle)
            && s.suspended.is_none()
            && s.meta.is_empty()
            && s.reads.is_empty()
            && s.gc_reads.is_empty()
            && s.erases.is_empty()
            && s.waiting == [0; 2]
            && s.placed_waiting == 0
    }

    /// Whether a program of this frontier waits in a queue of this plane.
    pub(crate) fn has_waiting_program(&self, plane: PlaneId, frontier: Frontier) -> bool {
        let (station, plane) = (self.station_of(plane), self.nth_plane(plane));
        let programs = if frontier == Frontier::Gc { Programs::Gc } else { Programs::User };
        let mut waiting = self.stations[station].programs(programs)[plane].iter();
        waiting.any(|op| self.op(*op).frontier == Some(frontier))
    }

    /// Number of programs that wait for the plane.
    pub(crate) fn waiting_programs(&self, plane: PlaneId) -> usize {
        let (station, plane) = (&self.stations[self.station_of(plane)], self.nth_plane(plane));
        station.writes[plane].len() + station.gc_writes[plane].len()
    }

    /// Whether the station is programming or erasing, or has suspended such an operation.
    pub(crate) fn is_programming(&self, station: StationId) -> bool {
        let station = &self.stations[station];
        let works = matches!(station.phase, Phase::Array { kind, .. } if kind != OpKind::Read);
        works || station.suspended.is_some()
    }

    /// The same of any station.
    pub(crate) fn is_any_programming(&self) -> bool {
        (0..self.stations.len()).any(|station| self.is_programming(StationId(station as u32)))
    }

    /// The operations that the station's array executes.
    #[inline]
    pub(crate) fn working(&self, station: StationId) -> impl Iterator<Item = OpId> + use<J> {
        let batch = match self.stations[station].phase {
            Phase::Array { batch, .. } => batch,
            _ => Batch { ops: [0; PLANES_MAX], len: 0 },
        };
        batch.iter()
    }

    /// Number of operations in the machine.
    pub(crate) fn in_flight(&self) -> usize {
        self.ops.len() - self.free_ops.len()
    }

    /// Sets the clock of an idle machine to zero.
    pub(crate) fn reset_clock(&mut self) {
        for channel in self.channels.iter_mut() {
            (channel.busy_until, channel.busy) = (Instant::ZERO, Duration::ZERO);
        }
        self.stations.iter_mut().for_each(|station| station.busy = Duration::ZERO);
    }

    /// Time that each station was busy.
    pub(crate) fn station_busy(&self) -> impl Iterator<Item = Duration> + '_ {
        self.stations.iter().map(|s| s.busy)
    }

    /// Time that each channel was busy.
    pub(crate) fn channel_busy(&self) -> impl Iterator<Item = Duration> + '_ {
        self.channels.iter().map(|c| c.busy)
    }

    /// Time that each station was busy until `now`, at which no event is overdue: the time of a command is charged when it begins,
    /// so the part that lies ahead is taken off.
    pub(crate) fn station_busy_until(&self, now: Instant) -> impl Iterator<Item = Duration> + '_ {
        self.stations.enumerate().map(move |(id, station)| {
            let ahead = match station.phase {
                Phase::Array { until, .. } => until.saturating_since(now),
                Phase::Output { .. } => {
                    let channel = &self.channels[self.channel_of(id)];
                    let is_ours = |op: OpId| self.station_of(self.op(op).plane) == id;
                    match channel.transfer {
                        Some(op) if is_ours(op) => channel.busy_until.saturating_since(now),
                        _ => Duration::ZERO,
                    }
                }
                Phase::Idle | Phase::Suspending => Duration::ZERO,
            };
            station.busy.saturating_sub(ahead)
        })
    }

    /// Time that each channel was busy until `now`, at which no event is overdue.
    pub(crate) fn channel_busy_until(&self, now: Instant) -> impl Iterator<Item = Duration> + '_ {
        self.channels
            .iter()
            .map(move |channel| channel.busy.saturating_sub(channel.busy_until.saturating_since(now)))
    }

    /// Begins everything that can begin on the channel of `station`.
    pub(crate) fn start(
        &mut self,
        now: Instant,
        station: StationId,
        (pool, placer): (&mut Blocks, &mut impl Placer<J>),
        schedule: &mut impl FnMut(Instant, NandEvent),
    ) {
        self.arbitrate(now, self.channel_of(station), &mut Pages { pool, placer }, schedule);
    }

    /// Handles a scheduled event that is due; operations that finished are appended to `finished`. The caller handles them and then
    /// calls [`Self::start`] for the station that is returned.
    pub(crate) fn handle(&mut self, event: NandEvent, finished: &mut Vec<OpId>) -> Option<StationId> {
        match event {
            NandEvent::Wake(channel) => {
                self.channels[channel].wake = false;
                Some(StationId(channel.0 * self.per_channel.get() as u32))
            }
            NandEvent::Array { station, generation } => {
                if self.stations[station].generation != generation {
                    return None;
                }
                self.array_done(station, finished);
                Some(station)
            }
            NandEvent::Output(channel) => {
                let op = self.channels[channel].transfer.take().expect("an output event ends a transfer");
                let station_id = self.station_of(self.op(op).plane);
                finished.push(op);
                if let Phase::Output { left } = &mut self.stations[station_id].phase {
                    *left -= 1;
                    if *left == 0 {
                        self.rest(station_id);
                        self.wake(station_id);
                    }
                }
                Some(station_id)
            }
        }
    }

    fn array_done(&mut self, station_id: StationId, finished: &mut Vec<OpId>) {
        let channel = self.channel_of(station_id);
        let station = &mut self.stations[station_id];
        match station.phase {
            Phase::Array { kind: OpKind::Read, batch, .. } => {
                station.phase = Phase::Output { left: batch.len };
                // Mostly one: to push it costs less than to extend by an iterator.
                batch.iter().for_each(|op| self.channels[channel].outputs.push_back(op));
            }
            Phase::Array { batch, .. } => {
                station.suspensions = 0;
                batch.iter().for_each(|op| finished.push(op));
                self.rest(station_id);
                self.wake(station_id);
            }
            Phase::Suspending => {
                self.rest(station_id);
                self.wake(station_id);
            }
            Phase::Idle | Phase::Output { .. } => unreachable!("an array event belongs to a working array"),
        }
    }

    fn arbitrate(
        &mut self,
        now: Instant,
        channel_id: ChannelId,
        pages: &mut Pages<'_, impl Placer<J>>,
        schedule: &mut impl FnMut(Instant, NandEvent),
    ) {
        loop {
            let channel = &mut self.channels[channel_id];
            if channel.busy_until > now {
                let waits = channel.ready != 0 || !channel.outputs.is_empty();
                if waits && !channel.wake && channel.transfer.is_none() {
                    channel.wake = true;
                    schedule(channel.busy_until, NandEvent::Wake(channel_id));
                }
                return;
            }
            if channel.transfer.is_some() {
                return;
            }
            let command_goes = self.commands_first && channel.ready != 0;
            if !command_goes && let Some(op) = channel.outputs.pop_front() {
                let bytes = u64::from(self.op(op).bytes);
                let time = self.transfer_time(bytes);
                let station = self.station_of(self.op(op).plane);
                self.stations[station].busy += time;
                let channel = &mut self.channels[channel_id];
                channel.transfer = Some(op);
                channel.busy_until = now + time;
                channel.busy += time;
                self.trace.record(|| Traced::Output { op, until: now + time });
                schedule(channel.busy_until, NandEvent::Output(channel_id));
                return;
            }
            let Some(nth) = next_bit(channel.ready, channel.turn) else { return };
            let per_channel = self.per_channel.get() as u32;
            let station = StationId(channel_id.0 * per_channel + nth);
            match self.issue(now, station, pages, schedule) {
                Some(bus) => {
                    let channel = &mut self.channels[channel_id];
                    channel.turn = if nth + 1 == per_channel { 0 } else { nth + 1 };
                    channel.ready &= !(1 << nth);
                    channel.busy_until = now + bus;
                    channel.busy += bus;
                }
                None => self.channels[channel_id].ready &= !(1 << nth),
            }
        }
    }

    #[inline]
    fn transfer_time(&mut self, bytes: u64) -> Duration {
        if self.transfer_memo.0 != bytes {
            self.transfer_memo = (bytes, Duration::of_transfer(bytes, self.bus_bytes_per_s));
        }
        self.transfer_memo.1
    }

    /// Begins the most urgent command of the station; returns the time for which it holds the bus.
    fn issue(
        &mut self,
        now: Instant,
        id: StationId,
        pages: &mut Pages<'_, impl Placer<J>>,
        schedule: &mut impl FnMut(Instant, NandEvent),
    ) -> Option<Duration> {
        if !matches!(self.stations[id].phase, Phase::Idle) {
            return self.try_suspend(now, id, schedule);
        }
        let batch = if self.stations[id].suspended.is_some() {
            // So that a suspended operation ends while reads keep coming.
            let may_pass = self.stations[id].read_streak < READ_STREAK_MAX;
            let Some(batch) = may_pass.then(|| self.next_reads(id)).flatten() else {
                self.stations[id].read_streak = 0;
                return self.resume(now, id, schedule);
            };
            self.stations[id].read_streak += 1;
            batch
        } else {
            self.next_batch(id, pages)?
        };
        let first = *self.op(OpId(batch.ops[0]));
        let bus = self.bus_time(&batch, first.kind);
        let array = batch.iter().map(|op| self.array_time(op)).max().unwrap_or_default();
        let since = now + bus;
        let until = since + array;
        self.work(id, Phase::Array { kind: first.kind, batch, since, until });
        let station = &mut self.stations[id];
        station.generation = station.generation.wrapping_add(1);
        station.busy += bus + array;
        let generation = station.generation;
        let several = u64::from(batch.len > 1);
        self.metrics.multi_plane_commands += several;
        if matches!(first.class, Class::Write | Class::Placed) && first.purpose != Purpose::Filler {
            self.metrics.host_programs += 1;
            self.metrics.host_multi_plane_programs += several;
        }
        if self.trace.is_on() {
            self.trace_issue(&batch, bus, array);
        }
        schedule(until, NandEvent::Array { station: id, generation });
        Some(bus)
    }

    #[cold]
    fn trace_issue(&mut self, batch: &Batch, bus: Duration, array: Duration) {
        let mut planes = batch.len;
        for op in batch.iter() {
            let Op { at, bytes, plane, .. } = self.ops[op.0 as usize];
            self.trace.record(|| Traced::Issued { op, at, bytes, planes, bus, array });
            self.trace.touch(plane);
            planes = 0;
        }
    }

    fn bus_time(&mut self, batch: &Batch, kind: OpKind) -> Duration {
        let more = u64::from(batch.len) - 1;
        let mut bus = self.command[kind as usize] + self.command_next_plane[kind as usize] * more;
        if kind == OpKind::Program {
            for op in batch.iter() {
                let bytes = u64::from(self.op(op).bytes);
                bus += self.transfer_time(bytes);
            }
        }
        bus
    }

    fn array_time(&self, id: OpId) -> Duration {
        let op = self.op(id);
        match op.kind {
            OpKind::Read => self.read.of(op.at.page),
            OpKind::Program => self.program.of(op.at.page),
            OpKind::Erase => self.erase,
        }
    }

    fn next_batch(&mut self, id: StationId, pages: &mut Pages<'_, impl Placer<J>>) -> Option<Batch> {
        if let Some(op) = self.stations[id].meta.pop_front() {
            return Some(self.single(op));
        }
        let reads_wait = self.stations[id].read_streak < READ_STREAK_MAX;
        if reads_wait && let Some(batch) = self.next_reads(id) {
            self.stations[id].read_streak += 1;
            return Some(batch);
        }
        let batch = self.next_other(id, pages).or_else(|| self.next_reads(id));
        self.stations[id].read_streak = 0;
        batch
    }

    /// The next command other than a host read. Where GC is preemptible, GC and host data take turns as long as host data have
    /// room.
    fn next_other(&mut self, id: StationId, pages: &mut Pages<'_, impl Placer<J>>) -> Option<Batch> {
        if self.preemptible && self.stations[id].collected_last {
            self.stations[id].collected_last = false;
            if let Some(batch) = self.next_user(id, pages) {
                return Some(batch);
            }
        }
        if let Some(batch) = self.next_collection(id, pages) {
            self.stations[id].collected_last = true;
            return Some(batch);
        }
        self.next_user(id, pages)
    }

    fn next_collection(&mut self, id: StationId, pages: &mut Pages<'_, impl Placer<J>>) -> Option<Batch> {
        if let Some(op) = self.stations[id].gc_reads.pop_front() {
            return Some(self.single(op));
        }
        if let Some(batch) = self.next_programs(id, Programs::Gc, pages) {
            return Some(batch);
        }
        if self.stations[id].erases.is_empty() {
            return None;
        }
        self.next_erase(id).map(|op| self.beside_erase(id, op))
    }

    /// Programs of host data; those of segments and all others take turns.
    #[inline]
    fn next_user(&mut self, id: StationId, pages: &mut Pages<'_, impl Placer<J>>) -> Option<Batch> {
        match self.stations[id].placed_waiting {
            0 => self.next_mapped(id, pages),
            _ => self.next_of_both(id, pages),
        }
    }

    #[cold]
    fn next_of_both(&mut self, id: StationId, pages: &mut Pages<'_, impl Placer<J>>) -> Option<Batch> {
        if self.stations[id].placed_last
            && let Some(batch) = self.next_mapped(id, pages)
        {
            self.stations[id].placed_last = false;
            return Some(batch);
        }
        self.stations[id].placed_last = true;
        Some(self.next_placed(id))
    }

    /// Takes programs of segments of one die at the same page offset, beginning with the plane whose turn it is. One waits.
    fn next_placed(&mut self, id: StationId) -> Batch {
        let planes = self.planes_per_station.get() as u32;
        let station = &self.stations[id];
        let turn = station.placed_turn;
        let waits = |plane: &u32| !station.placed[*plane as usize].is_empty();
        let first = (turn..planes).chain(0..turn).find(waits).expect("a program was counted");
        let op = station.placed[first as usize][0];
        let (kind, page) = (self.op(op).kind, self.op(op).at.page);
        let per_die = self.planes_per_die.get() as u32;
        let die = first - self.planes_per_die.div_rem_u32(first).1;
        let beside = |plane: &u32| {
            let next = station.placed[*plane as usize].front().map(|op| self.op(*op));
            *plane == first || next.is_some_and(|next| next.kind == kind && next.at.page == page)
        };
        let together = if self.multi_plane { die..die + per_die } else { first..first + 1 };
        let taken: Vec<u32> = together.filter(beside).collect();
        let station = &mut self.stations[id];
        station.placed_turn = if first + 1 == planes { 0 } else { first + 1 };
        station.placed_waiting -= taken.len() as u32;
        let mut batch = Batch::default();
        for plane in taken {
            batch.push(station.placed[plane as usize].pop_front().expect("it was seen"));
        }
        batch
    }

    fn next_mapped(&mut self, id: StationId, pages: &mut Pages<'_, impl Placer<J>>) -> Option<Batch> {
        if let Some(batch) = self.next_programs(id, Programs::User, pages) {
            return Some(batch);
        }
        let planes = self.planes_per_station.get() as u32;
        let planes = id.0 * planes..(id.0 + 1) * planes;
        let first = pages.placer.pull(pages.pool, planes)?;
        let op = self.insert(first);
        self.bind(op, pages);
        let mut batch = self.single(op);
        if self.multi_plane {
            let page = self.op(op).at.page;
            let per_die = self.planes_per_die.get() as u32;
            let die = first.plane.0 - self.planes_per_die.div_rem_u32(first.plane.0).1;
            for plane in (die..die + per_die).map(PlaneId).filter(|&plane| plane != first.plane) {
                let Some(op) = pages.placer.pull_beside(pages.pool, plane, page) else { continue };
                let op = self.insert(op);
                self.bind(op, pages);
                batch.push(op);
            }
        }
        Some(batch)
    }

    /// Takes the first erase whose block no queued read needs.
    #[cold]
    fn next_erase(&mut self, id: StationId) -> Option<OpId> {
        let station = &self.stations[id];
        let needed = |op: &OpId| {
            let block = self.op(*op).at.block;
            station.reads.iter().any(|read| self.op(*read).at.block == block)
        };
        let at = station.erases.iter().position(|op| !needed(op))?;
        self.stations[id].erases.remove(at)
    }

    /// An erase with those that hosts ask for in other planes of its die; one of GC is alone.
    #[cold]
    fn beside_erase(&mut self, id: StationId, first: OpId) -> Batch {
        let mut batch = self.single(first);
        let Op { plane, purpose, .. } = *self.op(first);
        if !self.multi_plane || purpose != Purpose::HostErase {
            return batch;
        }
        let (die, nth) = self.planes_per_die.div_rem_u32(plane.0);
        let mut taken = 1u64 << nth;
        let mut i = 0;
        while let Some(candidate) = self.stations[id].erases.get(i).copied() {
            let op = *self.op(candidate);
            let (other, nth) = self.planes_per_die.div_rem_u32(op.plane.0);
            let is_read = self.stations[id].reads.iter().any(|read| self.op(*read).at.block == op.at.block);
            if op.purpose == Purpose::HostErase && other == die && taken & 1 << nth == 0 && !is_read {
                taken |= 1 << nth;
                batch.push(candidate);
                self.stations[id].erases.remove(i);
            } else {
                i += 1;
            }
        }
        batch
    }

    /// Takes out the programs of host data of `plane` that wait for a page and for which `are_meant` holds.
    pub(crate) fn drop_waiting_programs(
        &mut self,
        plane: PlaneId,
        are_meant: impl Fn(J) -> bool,
    ) -> Vec<Op<J>> {
        let (station, nth) = (self.station_of(plane), self.nth_plane(plane));
        let queue = &mut self.stations[station].writes[nth];
        let (drop, keep): (Vec<OpId>, Vec<OpId>) =
            queue.drain(..).partition(|op| are_meant(self.ops[op.0 as usize].job));
        queue.extend(keep);
        self.stations[station].waiting[Programs::User as usize] -= drop.len() as u32;
        drop.into_iter().map(|op| self.take(op)).collect()
    }

    fn single(&self, op: OpId) -> Batch {
        let mut batch = Batch::default();
        batch.push(op);
        batch
    }

    fn next_reads(&mut self, id: StationId) -> Option<Batch> {
        let front = self.stations[id].reads.pop_front()?;
        let mut batch = self.single(front);
        let planes_per_die = self.planes_per_die.get() as u32;
        if !self.multi_plane || planes_per_die == 1 || self.stations[id].reads.is_empty() {
            return Some(batch);
        }
        let front = *self.op(front);
        let (die, nth) = self.planes_per_die.div_rem_u32(front.plane.0);
        let mut taken = 1u64 << nth;
        let mut i = 0;
        while i < self.stations[id].reads.len().min(MULTI_PLANE_WINDOW)
            && u32::from(batch.len) < planes_per_die
        {
            let candidate = self.stations[id].reads[i];
            let op = self.op(candidate);
            let (other_die, nth) = self.planes_per_die.div_rem_u32(op.plane.0);
            let bit = 1u64 << nth;
            let fits = other_die == die && taken & bit == 0 && op.at.page == front.at.page;
            if fits {
                taken |= bit;
                batch.push(candidate);
                self.stations[id].reads.remove(i);
            } else {
                i += 1;
            }
        }
        Some(batch)
    }

    /// Takes programs of one die at the same page offset, beginning with the plane whose turn it is. The check is apart, because it
    /// is made for each command and most find that no program waits.
    #[inline]
    fn next_programs(
        &mut self,
        id: StationId,
        programs: Programs,
        pages: &mut Pages<'_, impl Placer<J>>,
    ) -> Option<Batch> {
        match self.stations[id].waiting[programs as usize] {
            0 => None,
            _ => self.next_waiting(id, programs, pages),
        }
    }

    #[inline(never)]
    fn next_waiting(
        &mut self,
        id: StationId,
        programs: Programs,
        pages: &mut Pages<'_, impl Placer<J>>,
    ) -> Option<Batch> {
        let planes = self.planes_per_station.get() as u32;
        let turn = self.stations[id].write_turn;
        let mut plane = turn;
        // Written out, because a search through a chain of two ranges calls a closure that is not inlined, for each plane.
        let offset = loop {
            if let Some(offset) = self.offered(id, plane, programs, pages) {
                break offset;
            }
            plane = if plane + 1 == planes { 0 } else { plane + 1 };
            if plane == turn {
                return None;
            }
        };
        let mut batch = Batch::default();
        self.take_program(id, plane, programs, &mut batch, pages);
        if self.multi_plane {
            let per_die = self.planes_per_die.get() as u32;
            let die = plane - self.planes_per_die.div_rem_u32(plane).1;
            for other in (die..die + per_die).filter(|&other| other != plane) {
                if self.offered(id, other, programs, pages) == Some(offset) {
                    self.take_program(id, other, programs, &mut batch, pages);
                }
            }
        }
        self.stations[id].write_turn = if plane + 1 == planes { 0 } else { plane + 1 };
        Some(batch)
    }

    /// The page that the first waiting program of a plane of the station would get.
    #[inline]
    fn offered(
        &self,
        id: StationId,
        nth: u32,
        programs: Programs,
        pages: &Pages<'_, impl Placer<J>>,
    ) -> Option<u32> {
        let first = self.stations[id].programs(programs)[nth as usize].front()?;
        let Op { plane, frontier, .. } = self.op(*first);
        pages.placer.offer(pages.pool, *plane, (*frontier)?)
    }

    fn take_program(
        &mut self,
        id: StationId,
        plane: u32,
        programs: Programs,
        batch: &mut Batch,
        pages: &mut Pages<'_, impl Placer<J>>,
    ) {
        let station = &mut self.stations[id];
        let queues = match programs {
            Programs::User => &mut station.writes,
            Programs::Gc => &mut station.gc_writes,
        };
        let op = queues[plane as usize].pop_front().expect("the queue was seen to hold a program");
        station.waiting[programs as usize] -= 1;
        self.bind(op, pages);
        batch.push(op);
    }

    fn bind(&mut self, id: OpId, pages: &mut Pages<'_, impl Placer<J>>) {
        let op = &mut self.ops[id.0 as usize];
        if let Some(frontier) = op.frontier {
            op.at = pages.placer.bind(pages.pool, op.plane, frontier);
        }
        op.bytes = pages.placer.seal(op.job);
    }

    #[cold]
    fn try_suspend(
        &mut self,
        now: Instant,
        id: StationId,
        schedule: &mut impl FnMut(Instant, NandEvent),
    ) -> Option<Duration> {
        let suspend = self.suspend.as_ref()?;
        let station = &mut self.stations[id];
        let Phase::Array { kind, batch, since, until } = station.phase else { return None };
        let allowed = match kind {
            OpKind::Read => false,
            OpKind::Program => suspend.program,
            OpKind::Erase => suspend.erase,
        };
        let left = until.saturating_since(now);
        let worth = left > suspend.latency && now >= since && station.suspensions < suspend.max_per_operation;
        if !allowed || !worth || station.reads.is_empty() || station.suspended.is_some() {
            return None;
        }
        station.suspended = Some(Suspended { kind, batch, left });
        station.busy = station.busy.saturating_sub(left);
        station.suspensions += 1;
        station.phase = Phase::Suspending;
        station.generation = station.generation.wrapping_add(1);
        self.metrics.suspends += 1;
        let at = now + suspend.latency;
        self.trace.record(|| Traced::Suspended { station: id, until: at });
        schedule(at, NandEvent::Array { station: id, generation: self.stations[id].generation });
        Some(Duration::ZERO)
    }

    #[cold]
    fn resume(
        &mut self,
        now: Instant,
        id: StationId,
        schedule: &mut impl FnMut(Instant, NandEvent),
    ) -> Option<Duration> {
        let Suspended { kind, batch, left } = self.stations[id].suspended.take()?;
        self.work(id, Phase::Array { kind, batch, since: now, until: now + left });
        let station = &mut self.stations[id];
        station.generation = station.generation.wrapping_add(1);
        station.busy += left;
        self.trace.record(|| Traced::Resumed { station: id, until: now + left });
        schedule(now + left, NandEvent::Array { station: id, generation: station.generation });
        Some(Duration::ZERO)
    }

    /// Programs and erases that are in the cells at `now`, without those that still cross the bus.
    pub(crate) fn interrupted(&self, now: Instant) -> Vec<Interrupted> {
        let mut list = Vec::new();
        for station in self.stations.iter() {
            let mut add = |kind: OpKind, batch: &Batch| {
                if kind != OpKind::Read {
                    list.extend(batch.iter().map(|id| Interrupted { op: self.op(id).without_job(), id }));
                }
            };
            if let Phase::Array { kind, batch, since, .. } = &station.phase
                && *since <= now
            {
                add(*kind, batch);
            }
            if let Some(suspended) = &station.suspended {
                add(suspended.kind, &suspended.batch);
            }
        }
        list
    }
}

/// The first set bit at or after `turn`, wrapping around.
#[inline]
fn next_bit(bits: u64, turn: u32) -> Option<u32> {
    if bits == 0 {
        return None;
    }
    let from = bits >> turn << turn;
    Some(if from != 0 { from.trailing_zeros() } else { bits.trailing_zeros() })
}

/// The positions of the set bits from `at` on and below `end`.
fn set_bits(words: &[u64], mut at: u32, end: u32) -> impl Iterator<Item = u32> + '_ {
    std::iter::from_fn(move || {
        while at < end {
            let rest = words[at as usize / 64] >> (at % 64);
            if rest != 0 {
                let bit = at + rest.trailing_zeros();
                at = bit + 1;
                return (bit < end).then_some(bit);
            }
            at = (at / 64 + 1) * 64;
        }
        None
    })
}

#[cfg(test)]
mod tests;
