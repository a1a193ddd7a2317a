//! Converts the device's records into the pieces of a command's time.
//!
//! Place in the data flow: [`Spans::feed`] takes [`Record`]s in order and keeps the history of each die, channel and
//! plane. When a command completes, it follows the chain of causes backward from the last one and attributes every
//! nanosecond between arrival and completion.
//!
//! The chain: a command completes because an operation ended. Before that, the operation used the bus and the array, or
//! waited for its die, whose activity is known. The operation was queued because another one ended, and so on, back to
//! the arrival.
//!
//! Invariants: the pieces of a command follow each other without a gap from its arrival to its completion; history is
//! kept as far back as a command in service needs it, and no further.
//!
//! Deliberately absent: the host's side of a request, and sums over requests.

use flashweir_core::{Duration, IndexVec, Instant};
use flashweir_device::Geometry;
use flashweir_device::flash::{Class, Op, OpKind, Purpose};
use flashweir_device::geometry::{ChannelId, StationId};
use flashweir_device::trace::{Record, Traced};
use flashweir_ftl::PlaneId;
use std::collections::{BTreeSet, VecDeque};

/// Purpose of a die's work.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Work {
    /// Reads that a host waits for, including reads of old content for a write of part of a unit.
    HostRead,
    /// Programs of host data, and of padding for them.
    HostProgram,
    /// Reads of garbage collection.
    GcRead,
    /// Programs of garbage collection.
    GcProgram,
    /// Erases of garbage collection.
    Erase,
    /// The map log.
    Metadata,
}

impl Work {
    /// All purposes.
    pub const ALL: [Self; 6] =
        [Self::HostRead, Self::HostProgram, Self::GcRead, Self::GcProgram, Self::Erase, Self::Metadata];

    /// Returns the purpose of an operation.
    pub fn of(op: &Op) -> Self {
        match op.purpose {
            Purpose::HostRead { .. } | Purpose::Merge { .. } => Self::HostRead,
            Purpose::HostData => Self::HostProgram,
            Purpose::Filler if op.class == Class::Write => Self::HostProgram,
            Purpose::GcRead => Self::GcRead,
            Purpose::GcCopy | Purpose::Filler => Self::GcProgram,
            Purpose::GcErase | Purpose::HostErase => Self::Erase,
            Purpose::Metadata => Self::Metadata,
        }
    }

    /// Returns its name in words.
    pub fn name(self) -> &'static str {
        match self {
            Self::HostRead => "host read",
            Self::HostProgram => "host program",
            Self::GcRead => "GC read",
            Self::GcProgram => "GC program",
            Self::Erase => "erase",
            Self::Metadata => "metadata",
        }
    }
}

/// The stage that a request is in.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Stage {
    /// The host holds the request back: its job or its queue is full.
    HostQueue,
    /// The request waits in the block layer for an earlier epoch or for earlier requests on the same sectors.
    LayerHeld,
    /// The request waits in the block layer's scheduler.
    LayerScheduler,
    /// The request is part of another one, which waits in the block layer.
    LayerMerged,
    /// The request has left the scheduler, and the device's queue has no room for it.
    LayerDispatch,
    /// The threads of the host FTL are at work on the request, or it waits for their CPUs.
    FtlThread,
    /// The request waits for the limiters of the host FTL, or for room in its rings.
    FtlAdmission,
    /// The host FTL has not yet sent the command that the request waits for: the rest of a page, other programs of the die.
    FtlHeld,
    /// The request travels from the host to the device.
    LinkDown,
    /// Data move into or out of the buffer memory.
    Memory,
    /// The old content of a unit is read, because a write covers only part of it.
    Merge,
    /// The command waits behind one that arrived earlier and is not accepted yet.
    Behind,
    /// A write, first among those not yet accepted, waits for room in the buffer.
    BufferFull,
    /// A deallocation, first among those not yet accepted, waits for room in the map log.
    LogFull,
    /// The flash pages of a read are read.
    Flash,
    /// The command is accepted and waits until something is durable: FLUSH, FUA, write-through.
    Durable,
    /// The completion travels from the device to the host.
    LinkUp,
}

/// Number of stages.
pub const STAGES: usize = 17;

impl Stage {
    /// All stages, in the order in which a request passes them.
    pub const ALL: [Self; STAGES] = [
        Self::HostQueue,
        Self::LayerHeld,
        Self::LayerScheduler,
        Self::LayerMerged,
        Self::LayerDispatch,
        Self::FtlThread,
        Self::FtlAdmission,
        Self::FtlHeld,
        Self::LinkDown,
        Self::Memory,
        Self::Merge,
        Self::Behind,
        Self::BufferFull,
        Self::LogFull,
        Self::Flash,
        Self::Durable,
        Self::LinkUp,
    ];

    /// Returns its name in words.
    pub fn name(self) -> &'static str {
        match self {
            Self::HostQueue => "host queue",
            Self::LayerHeld => "block layer: behind earlier requests",
            Self::LayerScheduler => "block layer: in the scheduler",
            Self::LayerMerged => "block layer: merged into a waiting request",
            Self::LayerDispatch => "block layer: device queue full",
            Self::FtlThread => "host FTL: threads",
            Self::FtlAdmission => "host FTL: limiters and full rings",
            Self::FtlHeld => "host FTL: command not sent yet",
            Self::LinkDown => "link down",
            Self::Memory => "buffer memory",
            Self::Merge => "old content of a partial unit",
            Self::Behind => "admission: behind an earlier command",
            Self::BufferFull => "admission: buffer full",
            Self::LogFull => "admission: map log full",
            Self::Flash => "flash",
            Self::Durable => "flush wait",
            Self::LinkUp => "link up",
        }
    }
}

/// What a piece of time was spent on.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Reason {
    /// The stage itself: the link moves data, a queue is full.
    Itself,
    /// The plane has no free erase block for host data, or garbage collection holds them back; meanwhile the die does
    /// this work.
    NoRoom(Option<Work>),
    /// The die does other work.
    Die(Work),
    /// The array works on the operation.
    Array(Work),
    /// The die is free, or its data are ready, but the bus is not free.
    BusWait,
    /// The bus moves the command or its data.
    Bus,
    /// The buffer memory moves data of another command.
    MemoryWait,
    /// The buffer memory moves the command's data.
    Memory,
    /// The device has not yet issued the flash operation that is waited for: a page or a word line waits until it is
    /// full.
    Held,
}

/// Name of [`Reason::NoRoom`], whatever the die does.
pub const NO_ROOM: &str = "plane out of room";

/// Number of reasons.
pub const REASONS: usize = 25;

impl Reason {
    /// Returns its index in a table.
    pub fn index(self) -> usize {
        match self {
            Self::Itself => 0,
            Self::NoRoom(None) => 1,
            Self::NoRoom(Some(work)) => 2 + work as usize,
            Self::Die(work) => 8 + work as usize,
            Self::Array(work) => 14 + work as usize,
            Self::BusWait => 20,
            Self::Bus => 21,
            Self::MemoryWait => 22,
            Self::Memory => 23,
            Self::Held => 24,
        }
    }

    /// Iterates over all reasons, in the order of their indices.
    pub fn all() -> impl Iterator<Item = Self> {
        let no_room = Work::ALL.into_iter().map(|work| Self::NoRoom(Some(work)));
        let die = no_room.chain(Work::ALL.into_iter().map(Self::Die));
        let array = Work::ALL.into_iter().map(Self::Array);
        let rest = [Self::BusWait, Self::Bus, Self::MemoryWait, Self::Memory, Self::Held];
        [Self::Itself, Self::NoRoom(None)].into_iter().chain(die).chain(array).chain(rest)
    }

    /// Returns its name in words.
    pub fn name(self) -> String {
        match self {
            Self::Itself => "itself".into(),
            Self::NoRoom(None) => format!("{NO_ROOM}, die idle"),
            Self::NoRoom(Some(work)) => format!("{NO_ROOM}, die at {}", work.name()),
            Self::Die(work) => format!("die busy with {}", work.name()),
            Self::Array(work) => format!("array, {}", work.name()),
            Self::BusWait => "waiting for the bus".into(),
            Self::Bus => "bus transfer".into(),
            Self::MemoryWait => "buffer memory busy".into(),
            Self::Memory => "buffer memory transfer".into(),
            Self::Held => "held for a full page or word line".into(),
        }
    }
}

/// A piece of a request's time.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Piece {
    /// Stage of the request.
    pub stage: Stage,
    /// What the time was spent on.
    pub reason: Reason,
    /// Start of the piece.
    pub from: Instant,
    /// End of the piece.
    pub until: Instant,
    /// The operation that the piece belongs to, if any.
    pub op: Option<Op>,
    /// Number of other commands that the die worked on, for [`Reason::Die`].
    pub others: u32,
}

impl Piece {
    /// Makes a piece outside the flash.
    pub fn plain(stage: Stage, reason: Reason, from: Instant, until: Instant) -> Self {
        Self { stage, reason, from, until, op: None, others: 0 }
    }

    /// Returns its length.
    pub fn length(&self) -> Duration {
        self.until.since(self.from)
    }
}

/// Time by reason, in nanoseconds.
pub type ByReason = [u64; REASONS];

/// A completed command.
#[derive(Clone, Debug)]
pub struct Served {
    /// The host's id of the command.
    pub id: u64,
    /// Time of its arrival at the device.
    pub arrived: Instant,
    /// Time of its completion by the device.
    pub completed: Instant,
    /// The pieces of the time in between, without a gap.
    pub pieces: Vec<Piece>,
    /// Reasons for which earlier commands waited while it was [`Stage::Behind`] them; adds up to that stage's length.
    pub behind: ByReason,
    /// Whether it completed with an error.
    pub failed: bool,
}

/// History of an object's states, each from one time to the next.
#[derive(Clone, Debug)]
struct History<S> {
    states: VecDeque<(Instant, S)>,
}

impl<S: Copy> History<S> {
    fn new(state: S) -> Self {
        Self { states: VecDeque::from([(Instant::ZERO, state)]) }
    }

    /// Sets the state from `at` on, replacing plans; history before `floor` is not needed any more.
    fn set(&mut self, at: Instant, state: S, floor: Instant) {
        while self.states.back().is_some_and(|(from, _)| *from >= at) {
            self.states.pop_back();
        }
        self.states.push_back((at, state));
        while self.states.len() > 1 && self.states[1].0 <= floor {
            self.states.pop_front();
        }
    }

    /// Plans the state from `at` on; a later `set` may replace it.
    fn plan(&mut self, at: Instant, state: S) {
        debug_assert!(self.states.back().is_none_or(|(from, _)| *from <= at), "plans follow each other");
        self.states.push_back((at, state));
    }

    /// Visits the states between two times, without a gap.
    fn walk(&self, from: Instant, until: Instant, mut each: impl FnMut(Instant, Instant, S)) {
        let first = self.states.partition_point(|(at, _)| *at <= from);
        assert!(first > 0 || from >= until, "history was forgotten that is still needed");
        let mut at = from;
        for i in first.saturating_sub(1)..self.states.len() {
            let next = self.states.get(i + 1).map_or(Instant::MAX, |(next, _)| *next).min(until);
            if next > at {
                each(at, next, self.states[i].1);
                at = next;
            }
            if at >= until {
                return;
            }
        }
    }
}

/// Activity of a die.
#[derive(Clone, Copy, Debug)]
enum Doing {
    Nothing,
    /// Busy with the operation of this number, counted over all operations.
    Busy(Work, u64),
}

#[derive(Clone, Debug)]
struct Station {
    doing: History<Doing>,
    /// Operations of the command that the die works on.
    current: Vec<usize>,
    suspended: Vec<usize>,
    /// Number of reads of the command whose data are still in the die.
    outputs: usize,
}

/// Cause of an event.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Cause {
    /// A command arrived, or the cause is unknown.
    Host,
    /// The buffer memory has moved the data of a command.
    Memory,
    /// An operation ended; the number counts ended operations.
    Ended(u64),
}

/// An operation.
#[derive(Clone, Debug)]
pub(crate) struct OpSpan {
    pub(crate) op: Op,
    /// Number of the first operation of its command, counted over all operations.
    batch: u64,
    queued: Instant,
    cause: Cause,
    /// Start of its command; later than any time while it waits.
    pub(crate) issued: Instant,
    /// Start of the array's work.
    pub(crate) array_from: Instant,
    /// End of the array's work.
    pub(crate) array_until: Instant,
    /// Start of the array's last uninterrupted work.
    pub(crate) part_from: Instant,
    /// Times in which the array did something else.
    breaks: Vec<(Instant, Instant)>,
    /// Time in which its data were transferred out.
    output: Option<(Instant, Instant)>,
    ended: Instant,
}

#[derive(Clone, Debug)]
struct Command {
    id: u64,
    arrived: Instant,
    /// Time up to which its pieces are known.
    explained: Instant,
    pieces: Vec<Piece>,
    behind: ByReason,
    memory: Option<(Instant, Instant)>,
    /// Time at which it entered the queue of commands that change something; kept after it has left.
    enqueued: Option<Instant>,
    /// Time since which it is the first in the queue.
    first_since: Instant,
    admitted: bool,
    is_trim: bool,
    /// Time from which on it needs history.
    needs: Option<Instant>,
}

/// A piece of the waiting time of the queue's first command, with the sums before it.
#[derive(Clone, Debug)]
struct FirstPiece {
    from: Instant,
    until: Instant,
    reason: Reason,
    before: ByReason,
}

/// History of the device, as far back as it is needed.
#[derive(Clone, Debug)]
pub struct Spans {
    planes_per_station: u32,
    per_channel: u32,
    /// Whether pages wait for any die, not for a particular one.
    dynamic: bool,
    stations: IndexVec<StationId, Station>,
    channels: IndexVec<ChannelId, History<bool>>,
    rooms: IndexVec<PlaneId, History<bool>>,
    ops: Vec<Option<OpSpan>>,
    numbers: u64,
    /// Ended operations that are still needed, and the number of ended operations before the first of them.
    ended: VecDeque<OpSpan>,
    forgotten: u64,
    commands: Vec<Option<Command>>,
    /// Commands that wait to be accepted.
    queue: VecDeque<u32>,
    first_pieces: VecDeque<FirstPiece>,
    first_sums: ByReason,
    cause: Cause,
    cause_at: Instant,
    /// Time since which each command needs history.
    needs: BTreeSet<(Instant, u32)>,
    served: Vec<Served>,
}

impl Spans {
    /// Makes the spans of a device of this geometry; `dynamic` if all dies take pages of host data from one queue.
    pub fn new(geometry: &Geometry, dynamic: bool) -> Self {
        let station = |_| Station {
            doing: History::new(Doing::Nothing),
            current: Vec::new(),
            suspended: Vec::new(),
            outputs: 0,
        };
        Self {
            planes_per_station: geometry.planes_per_station(),
            per_channel: geometry.stations_per_channel(),
            dynamic,
            stations: IndexVec::from_fn(geometry.stations() as usize, station),
            channels: IndexVec::from_fn(geometry.channels() as usize, |_| History::new(false)),
            rooms: IndexVec::from_fn(geometry.planes() as usize, |_| History::new(true)),
            ops: Vec::new(),
            numbers: 0,
            ended: VecDeque::new(),
            forgotten: 0,
            commands: Vec::new(),
            queue: VecDeque::new(),
            first_pieces: VecDeque::new(),
            first_sums: [0; REASONS],
            cause: Cause::Host,
            cause_at: Instant::ZERO,
            needs: BTreeSet::new(),
            served: Vec::new(),
        }
    }

    /// Takes the commands that have completed since the last call.
    pub fn take_served(&mut self) -> impl Iterator<Item = Served> + '_ {
        self.served.drain(..)
    }

    /// Returns an unfinished operation; `None` if it was queued before the tracer was turned on.
    pub(crate) fn op(&self, op: usize) -> Option<&OpSpan> {
        self.ops.get(op)?.as_ref()
    }

    /// Returns the host's id of a command in the device.
    pub(crate) fn command_id(&self, command: u32) -> Option<u64> {
        Some(self.commands.get(command as usize)?.as_ref()?.id)
    }

    /// Returns the die of a plane.
    pub(crate) fn station(&self, plane: PlaneId) -> StationId {
        StationId(plane.0 / self.planes_per_station)
    }

    /// Returns the channel of a die.
    pub(crate) fn channel(&self, station: StationId) -> ChannelId {
        ChannelId(station.0 / self.per_channel)
    }

    fn floor(&self, now: Instant) -> Instant {
        self.needs.first().map_or(now, |(at, _)| *at)
    }

    /// Takes one record.
    pub fn feed(&mut self, record: &Record) {
        let now = record.at;
        if now > self.cause_at {
            (self.cause, self.cause_at) = (Cause::Host, now);
        }
        match record.what {
            Traced::Arrived { command, id } => {
                self.cause = Cause::Host;
                self.arrived(now, command, id.0);
            }
            Traced::MemoryDone { command } => {
                self.cause = Cause::Memory;
                self.explain_memory(now, command);
            }
            Traced::Finished { op } => self.finished(now, op.index()),
            Traced::Memory { command, from, until } => {
                if let Some(command) = self.command(command) {
                    command.memory = Some((from, until));
                }
            }
            Traced::Enqueued { command } => self.enqueued(now, command),
            Traced::Admitted { command } => self.admitted(now, command),
            Traced::Waits { .. } | Traced::Victim { .. } | Traced::Log { .. } | Traced::LogDone => {}
            Traced::Completed { command, failed } => self.completed(now, command, failed),
            Traced::Queued { op, what } => self.queued(now, op.index(), what),
            Traced::Issued { op, at, bytes, planes, bus, array } => {
                if let Some(Some(span)) = self.ops.get_mut(op.index()) {
                    (span.op.at, span.op.bytes) = (at, bytes);
                    (span.issued, span.array_from) = (now, now + bus);
                    (span.part_from, span.array_until) = (now + bus, now + bus + array);
                    self.issued(now, op.index(), planes);
                }
            }
            Traced::Output { op, until } => self.output(now, op.index(), until),
            Traced::Suspended { station, until } => self.suspended(now, station, until),
            Traced::Resumed { station, until } => self.resumed(now, station, until),
            Traced::Room { plane, room } => {
                let floor = self.floor(now);
                self.rooms[plane].set(now, room, floor);
            }
        }
    }

    fn command(&mut self, command: u32) -> Option<&mut Command> {
        self.commands.get_mut(command as usize)?.as_mut()
    }

    fn need(&mut self, at: u32, from: Option<Instant>) {
        let Some(command) = self.commands.get_mut(at as usize).and_then(Option::as_mut) else { return };
        let before = std::mem::replace(&mut command.needs, from);
        if let Some(before) = before {
            self.needs.remove(&(before, at));
        }
        if let Some(from) = from {
            self.needs.insert((from, at));
        }
    }

    fn arrived(&mut self, now: Instant, at: u32, id: u64) {
        if self.commands.len() <= at as usize {
            self.commands.resize_with(at as usize + 1, || None);
        }
        self.commands[at as usize] = Some(Command {
            id,
            arrived: now,
            explained: now,
            pieces: Vec::new(),
            behind: [0; REASONS],
            memory: None,
            enqueued: None,
            first_since: now,
            admitted: false,
            is_trim: false,
            needs: None,
        });
        self.need(at, Some(now));
    }

    fn explain_memory(&mut self, now: Instant, at: u32) {
        let Some(command) = self.command(at) else { return };
        let Some((from, _)) = command.memory else { return };
        let from = from.clamp(command.explained, now);
        let parts = [(Reason::MemoryWait, command.explained, from), (Reason::Memory, from, now)];
        // A read completes later if its flash pages do; only the last part to end is on its path.
        if command.enqueued.is_none() {
            command.memory = None;
            let pieces = parts.into_iter().filter(|(_, from, until)| from < until);
            let pieces = pieces.map(|(reason, from, until)| Piece::plain(Stage::Memory, reason, from, until));
            command.pieces = pieces.collect();
            command.explained = now;
        }
    }

    fn queued(&mut self, now: Instant, op: usize, what: Op) {
        if self.ops.len() <= op {
            self.ops.resize_with(op + 1, || None);
        }
        self.numbers += 1;
        self.ops[op] = Some(OpSpan {
            op: what,
            batch: self.numbers,
            queued: now,
            cause: self.cause,
            issued: Instant::MAX,
            array_from: Instant::MAX,
            array_until: Instant::MAX,
            part_from: Instant::MAX,
            breaks: Vec::new(),
            output: None,
            ended: Instant::MAX,
        });
    }

    fn issued(&mut self, now: Instant, op: usize, planes: u8) {
        let Some(span) = self.ops[op].as_ref() else { return };
        let (work, number, kind) = (Work::of(&span.op), span.batch, span.op.kind);
        let (array_from, array_until) = (span.array_from, span.array_until);
        let id = self.station(span.op.plane);
        let (channel, floor) = (self.channel(id), self.floor(now));
        let station = &mut self.stations[id];
        if planes == 0 {
            let first = station.current.first().and_then(|first| Some(self.ops[*first].as_ref()?.batch));
            station.current.push(op);
            if let (Some(first), Some(span)) = (first, &mut self.ops[op]) {
                span.batch = first;
            }
            return;
        }
        station.current.clear();
        station.current.push(op);
        station.outputs = if kind == OpKind::Read { usize::from(planes) } else { 0 };
        station.doing.set(now, Doing::Busy(work, number), floor);
        if kind != OpKind::Read {
            station.doing.plan(array_until, Doing::Nothing);
        }
        if array_from > now {
            self.channels[channel].set(now, true, floor);
            self.channels[channel].plan(array_from, false);
        }
    }

    fn output(&mut self, now: Instant, op: usize, until: Instant) {
        let Some(Some(span)) = self.ops.get_mut(op) else { return };
        span.output = Some((now, until));
        let id = StationId(span.op.plane.0 / self.planes_per_station);
        let (channel, floor) = (self.channel(id), self.floor(now));
        let station = &mut self.stations[id];
        station.outputs = station.outputs.saturating_sub(1);
        if station.outputs == 0 {
            station.doing.plan(until, Doing::Nothing);
        }
        if until > now {
            self.channels[channel].set(now, true, floor);
            self.channels[channel].plan(until, false);
        }
    }

    fn suspended(&mut self, now: Instant, id: StationId, until: Instant) {
        let floor = self.floor(now);
        let station = &mut self.stations[id];
        station.suspended = std::mem::take(&mut station.current);
        let mut doing = Doing::Nothing;
        for op in &station.suspended {
            if let Some(Some(span)) = self.ops.get_mut(*op) {
                span.breaks.push((now, Instant::MAX));
                doing = Doing::Busy(Work::of(&span.op), span.batch);
            }
        }
        station.doing.set(now, doing, floor);
        station.doing.plan(until, Doing::Nothing);
    }

    fn resumed(&mut self, now: Instant, id: StationId, until: Instant) {
        let floor = self.floor(now);
        let station = &mut self.stations[id];
        station.current = std::mem::take(&mut station.suspended);
        let mut doing = Doing::Nothing;
        for op in &station.current {
            if let Some(Some(span)) = self.ops.get_mut(*op) {
                if let Some(last) = span.breaks.last_mut() {
                    last.1 = now;
                }
                (span.part_from, span.array_until) = (now, until);
                doing = Doing::Busy(Work::of(&span.op), span.batch);
            }
        }
        station.doing.set(now, doing, floor);
        station.doing.plan(until, Doing::Nothing);
    }

    fn finished(&mut self, now: Instant, op: usize) {
        self.cause = Cause::Host;
        let Some(mut span) = self.ops.get_mut(op).and_then(Option::take) else { return };
        span.ended = now;
        let id = self.station(span.op.plane);
        self.stations[id].current.retain(|other| *other != op);
        self.cause = Cause::Ended(self.forgotten + self.ended.len() as u64);
        self.ended.push_back(span);
        let floor = self.floor(now);
        // The newest one is the cause of what follows.
        while self.ended.len() > 1 && self.ended[0].ended < floor {
            self.ended.pop_front();
            self.forgotten += 1;
        }
    }

    fn enqueued(&mut self, now: Instant, at: u32) {
        let cause = self.cause;
        let Some(command) = self.command(at) else { return };
        let from = command.explained;
        command.enqueued = Some(now);
        command.first_since = now;
        if from < now {
            let pieces = self.chain(from, now, cause, Stage::Merge);
            self.append(at, pieces, now);
        }
        self.queue.push_back(at);
        let first = self.queue.len() == 1;
        self.need(at, first.then_some(now));
    }

    fn append(&mut self, at: u32, pieces: Vec<Piece>, now: Instant) {
        let Some(command) = self.command(at) else { return };
        command.pieces.extend(pieces);
        command.explained = now;
    }

    /// Attributes the time that a command waited in the queue.
    fn explain_admission(&mut self, now: Instant, at: u32) {
        let cause = self.cause;
        let Some(command) = self.command(at) else { return };
        let (enqueued, first_since) = (command.enqueued.unwrap_or(now), command.first_since);
        command.admitted = true;
        let stage = if command.is_trim { Stage::LogFull } else { Stage::BufferFull };
        if first_since > enqueued {
            let behind = self.first_between(enqueued, first_since);
            if let Some(command) = self.command(at) {
                command.behind = behind;
                command.pieces.push(Piece::plain(Stage::Behind, Reason::Itself, enqueued, first_since));
            }
        }
        let pieces = if now > first_since { self.chain(first_since, now, cause, stage) } else { Vec::new() };
        if self.queue.len() > 1 {
            for piece in &pieces {
                let before = self.first_sums;
                self.first_sums[piece.reason.index()] += piece.length().as_nanos();
                let Piece { from, until, reason, .. } = *piece;
                self.first_pieces.push_back(FirstPiece { from, until, reason, before });
            }
        }
        self.append(at, pieces, now);
        self.need(at, Some(now));
    }

    /// Returns the reasons for which the first command of the queue waited between two times.
    fn first_between(&self, from: Instant, until: Instant) -> ByReason {
        let mut sums = self.first_sums;
        let nth = self.first_pieces.partition_point(|piece| piece.until <= from);
        let Some(piece) = self.first_pieces.get(nth) else { return [0; REASONS] };
        let end = self.first_pieces.back().map_or(until, |piece| piece.until);
        assert!(piece.from <= from && end == until, "the queue has a first one all the time");
        for (sum, before) in sums.iter_mut().zip(piece.before) {
            *sum -= before;
        }
        sums[piece.reason.index()] -= from.since(piece.from).as_nanos();
        sums
    }

    fn admitted(&mut self, now: Instant, at: u32) {
        if self.command(at).is_some_and(|command| !command.admitted) {
            self.explain_admission(now, at);
        }
        let Some(place) = self.queue.iter().position(|other| *other == at) else { return };
        self.queue.remove(place);
        if let Some(&first) = self.queue.front() {
            if let Some(command) = self.command(first) {
                command.first_since = now;
            }
            self.need(first, Some(now));
        }
        let oldest = self.queue.front().and_then(|at| self.commands[*at as usize].as_ref()?.enqueued);
        while self.first_pieces.front().is_some_and(|piece| oldest.is_none_or(|oldest| piece.until <= oldest))
        {
            self.first_pieces.pop_front();
        }
    }

    fn completed(&mut self, now: Instant, at: u32, failed: bool) {
        let cause = self.cause;
        let Some(command) = self.command(at) else { return };
        let stage = match command.enqueued {
            None => Stage::Flash,
            Some(_) => Stage::Durable,
        };
        if command.enqueued.is_some() && !command.admitted {
            self.explain_admission(now, at);
        }
        let from = self.command(at).map_or(now, |command| command.explained);
        if from < now {
            // A read whose buffered units came first is traced back to its arrival along its last flash page.
            let from = match stage {
                Stage::Flash => self.forget_memory(at),
                _ => from,
            };
            let pieces = self.chain(from, now, cause, stage);
            self.append(at, pieces, now);
        }
        self.need(at, None);
        let Some(command) = self.commands[at as usize].take() else { return };
        let Command { id, arrived, pieces, behind, .. } = command;
        self.served.push(Served { id, arrived, completed: now, pieces, behind, failed });
    }

    fn forget_memory(&mut self, at: u32) -> Instant {
        let Some(command) = self.command(at) else { return Instant::ZERO };
        command.pieces.clear();
        command.explained = command.arrived;
        command.arrived
    }

    /// Returns the pieces between two times, the later of which was caused by `cause`.
    fn chain(&self, from: Instant, until: Instant, cause: Cause, stage: Stage) -> Vec<Piece> {
        let mut backwards = Vec::new();
        let (mut cause, mut until) = (cause, until);
        while until > from {
            let ended = match cause {
                Cause::Ended(nth) => nth.checked_sub(self.forgotten).and_then(|i| self.ended.get(i as usize)),
                Cause::Host | Cause::Memory => None,
            };
            let Some(span) = ended else {
                backwards.push(Piece::plain(stage, Reason::Held, from, until));
                break;
            };
            let pieces = self.op_pieces(span, from.max(span.queued), until, stage);
            backwards.extend(pieces.into_iter().rev());
            until = until.min(span.queued);
            cause = span.cause;
            let pulled = self.dynamic && span.queued == span.issued && from < until;
            if pulled && span.op.purpose == Purpose::HostData {
                // The page waited for any die; the activity of the die that took it stands for all of them.
                let mut pieces = Vec::new();
                self.wait_pieces(span, from, until, &mut |reason, from, until, others| {
                    pieces.push(Piece { stage, reason, from, until, op: Some(span.op), others });
                });
                backwards.extend(pieces.into_iter().rev());
                break;
            }
        }
        let mut pieces: Vec<Piece> = Vec::with_capacity(backwards.len());
        for piece in backwards.into_iter().rev() {
            match pieces.last_mut() {
                Some(last) if last.reason == piece.reason && same_place(last, &piece) => {
                    last.until = piece.until;
                    last.others += piece.others;
                }
                _ => pieces.push(piece),
            }
        }
        pieces
    }

    /// Returns the pieces of an operation between two times.
    fn op_pieces(&self, span: &OpSpan, from: Instant, until: Instant, stage: Stage) -> Vec<Piece> {
        let mut pieces = Vec::new();
        let mut add = |reason: Reason, a: Instant, b: Instant, others: u32| {
            let (a, b) = (a.max(from), b.min(until));
            if a < b {
                pieces.push(Piece { stage, reason, from: a, until: b, op: Some(span.op), others });
            }
        };
        let issued = span.issued.min(span.ended);
        if from < issued {
            self.wait_pieces(span, from, until.min(issued), &mut add);
        }
        if span.issued < span.ended {
            add(Reason::Bus, span.issued, span.array_from, 0);
            let mut at = span.array_from;
            for (stop, go) in &span.breaks {
                add(Reason::Array(Work::of(&span.op)), at, *stop, 0);
                let (a, b) = ((*stop).max(from), (*go).min(until));
                if a < b {
                    self.die_pieces(span, a, b, &mut add);
                }
                at = *go;
            }
            add(Reason::Array(Work::of(&span.op)), at, span.array_until.min(span.ended), 0);
            if let Some((out, end)) = span.output {
                add(Reason::BusWait, span.array_until, out, 0);
                add(Reason::Bus, out, end, 0);
            }
        }
        pieces
    }

    /// Adds the reasons for which an operation waited at its die.
    fn wait_pieces(
        &self,
        span: &OpSpan,
        from: Instant,
        until: Instant,
        add: &mut impl FnMut(Reason, Instant, Instant, u32),
    ) {
        if span.op.purpose != Purpose::HostData {
            self.die_pieces(span, from, until, add);
            return;
        }
        self.rooms[span.op.plane].walk(from, until, |from, until, room| match room {
            true => self.die_pieces(span, from, until, add),
            false => {
                self.stations[self.station(span.op.plane)].doing.walk(from, until, |from, until, doing| {
                    let work = match doing {
                        Doing::Nothing => None,
                        Doing::Busy(work, _) => Some(work),
                    };
                    add(Reason::NoRoom(work), from, until, 0);
                })
            }
        });
    }

    fn die_pieces(
        &self,
        span: &OpSpan,
        from: Instant,
        until: Instant,
        add: &mut impl FnMut(Reason, Instant, Instant, u32),
    ) {
        let id = self.station(span.op.plane);
        let channel = &self.channels[self.channel(id)];
        self.stations[id].doing.walk(from, until, |from, until, doing| match doing {
            // The operation's own array work, which is being suspended.
            Doing::Busy(work, number) if number == span.batch => add(Reason::Array(work), from, until, 0),
            Doing::Busy(work, _) => add(Reason::Die(work), from, until, 1),
            Doing::Nothing => channel.walk(from, until, |from, until, busy| {
                add(if busy { Reason::BusWait } else { Reason::Held }, from, until, 0);
            }),
        });
    }

    /// Notes that a command deallocates, so that its wait gets the right name.
    pub(crate) fn note_trim(&mut self, at: u32) {
        if let Some(command) = self.command(at) {
            command.is_trim = true;
        }
    }
}

/// Whether two consecutive pieces are about the same work at the same die.
fn same_place(a: &Piece, b: &Piece) -> bool {
    match (&a.op, &b.op) {
        (None, None) => true,
        (Some(a), Some(b)) => (a.plane, a.at, a.kind, a.purpose) == (b.plane, b.at, b.kind, b.purpose),
        _ => false,
    }
}
