//! A file for Perfetto: Chrome's trace-event JSON, with a track for each queue, channel, die and plane under garbage
//! collection, and for flushes. `docs/perfetto.md` describes each track.
//!
//! Place in the data flow: the [`Timeline`](super::Timeline) passes records and finished requests; each event is
//! written as one line, as soon as its end is known.
//!
//! Invariants: slices of one thread never overlap; the end of each asynchronous slice directly follows its beginning or
//! its children; thread numbers are unique in the file, since Perfetto names threads by number alone; slices that are
//! open when the file ends are written up to there and marked `unfinished`.
//!
//! Deliberately absent: sorting. Perfetto sorts events by time and keeps the order of equal times.

use super::request::{Open, Request, Unfinished};
use super::spans::{NO_ROOM, Piece, Reason, Spans, Work};
use crate::request::Kind;
use flashweir_core::units::LBA_BYTES;
use flashweir_core::{Duration, Instant};
use flashweir_device::Device;
use flashweir_device::flash::{Op, OpKind, Purpose};
use flashweir_device::geometry::{Geometry, StationId};
use flashweir_device::trace::{LogWork, Record, Traced};
use flashweir_ftl::{BlockId, PlaneId};
use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write as _;
use std::io::{self, Write};

/// Default limit of the number of events in a file; about 40 MB.
pub const EVENTS_MAX: u64 = 300_000;

/// The part of a run that goes into the file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Limits {
    /// Slices that end before this time are left out.
    pub from: Instant,
    /// End of the file.
    pub until: Instant,
    /// Number of events at which it ends at the latest; slices that are open then are still added.
    pub events: u64,
}

impl Default for Limits {
    fn default() -> Self {
        Self { from: Instant::ZERO, until: Instant::MAX, events: EVENTS_MAX }
    }
}

/// Processes (groups of tracks) of a run, in the order of their numbers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Process {
    Queues,
    Channels,
    Dies,
    Background,
}

const PROCESSES: [(Process, &str); 4] = [
    (Process::Queues, "1 host queues"),
    (Process::Channels, "2 channels"),
    (Process::Dies, "3 dies"),
    (Process::Background, "4 flush & collection"),
];

/// Range of process and thread numbers per run: those of the nth run lie from n times this value on.
const RUN: u64 = 1_000_000;
/// Range of thread numbers per process.
const PROCESS: u64 = 200_000;

/// Summary of a written file.
#[derive(Debug)]
pub struct Written {
    /// Number of events in it.
    pub events: u64,
    /// Time up to which it is complete.
    pub until: Instant,
    /// Whether it ends before the run because it reached its number of events.
    pub cut: bool,
    /// The writer's first error; nothing was written after it.
    pub error: Option<io::Error>,
}

/// An array operation in progress since a given time.
#[derive(Clone, Copy, Debug)]
struct Working {
    leader: usize,
    op: Op,
    planes: u8,
    from: Instant,
}

#[derive(Clone, Copy, Debug, Default)]
struct Die {
    working: Option<Working>,
    suspended: Option<(Working, Instant)>,
    /// End of the last slice.
    drawn_until: Instant,
}

/// Writer of the events.
pub struct Perfetto {
    out: Box<dyn Write + Send>,
    error: Option<io::Error>,
    limits: Limits,
    base: u64,
    prefix: String,
    line: String,
    events: u64,
    until: Instant,
    cut: bool,
    named: BTreeSet<u64>,
    geometry: Option<Geometry>,
    dies: Vec<Die>,
    victims: BTreeMap<u32, (BlockId, u32, Instant)>,
    no_room: BTreeMap<u32, Instant>,
    log: Option<(LogWork, u32, Instant)>,
    waits: BTreeMap<u32, (u32, bool, Instant)>,
    flushes: u64,
    in_device: u64,
    shown: [Option<u64>; 3],
    blocks_changed: bool,
}

impl std::fmt::Debug for Perfetto {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Perfetto").field("limits", &self.limits).field("events", &self.events).finish()
    }
}

/// Text before the events of a file.
pub const HEAD: &str = "{\"displayTimeUnit\":\"ns\",\"traceEvents\":[\n";

/// Text after the events. Every event ends with a comma, so this begins with a further one without meaning.
pub const TAIL: &str =
    "{\"ph\":\"M\",\"pid\":1,\"name\":\"process_labels\",\"args\":{\"labels\":\"\"}}\n]}\n";

impl Perfetto {
    /// Makes a writer for the events of the `nth` run of a file, from 0 on, whose track names begin with `prefix`. The
    /// caller writes [`HEAD`] before the first run and [`TAIL`] after the last one.
    pub fn new(out: Box<dyn Write + Send>, limits: Limits, nth: usize, prefix: &str) -> Self {
        Self {
            out,
            error: None,
            limits,
            base: nth as u64 * RUN,
            prefix: if prefix.is_empty() { String::new() } else { format!("{prefix} · ") },
            line: String::new(),
            events: 0,
            until: Instant::ZERO,
            cut: false,
            named: BTreeSet::new(),
            geometry: None,
            dies: Vec::new(),
            victims: BTreeMap::new(),
            no_room: BTreeMap::new(),
            log: None,
            waits: BTreeMap::new(),
            flushes: 0,
            in_device: 0,
            shown: [None; 3],
            blocks_changed: true,
        }
    }

    /// Sets the device whose records follow.
    pub(super) fn begin(&mut self, device: &Device) {
        let geometry = device.geometry().clone();
        self.dies = vec![Die::default(); geometry.stations() as usize];
        self.geometry = Some(geometry);
        for (process, name) in PROCESSES {
            let name = text(&format!("{}{name}", self.prefix));
            let pid = self.pid(process);
            self.metadata(&format!("\"pid\":{pid},\"name\":\"process_name\",\"args\":{{\"name\":{name}}}"));
            self.metadata(&format!(
                "\"pid\":{pid},\"name\":\"process_sort_index\",\"args\":{{\"sort_index\":{pid}}}"
            ));
        }
    }

    /// Whether the file takes no more events at `now`.
    pub(super) fn is_full(&mut self, now: Instant) -> bool {
        self.cut |= self.events >= self.limits.events && now < self.limits.until;
        self.events >= self.limits.events || now >= self.limits.until || self.error.is_some()
    }

    fn pid(&self, process: Process) -> u64 {
        self.base + process as u64 + 1
    }

    fn tid(&self, process: Process, nth: u64) -> u64 {
        self.base + (process as u64 + 1) * PROCESS + nth
    }

    fn put(&mut self) {
        self.line.push_str("},\n");
        if self.error.is_none()
            && let Err(error) = self.out.write_all(self.line.as_bytes())
        {
            self.error = Some(error);
        }
    }

    fn metadata(&mut self, fields: &str) {
        self.line.clear();
        let _ = write!(self.line, "{{\"ph\":\"M\",{fields}");
        self.put();
    }

    /// Names a thread before its first slice.
    fn name(&mut self, process: Process, tid: u64, name: impl FnOnce(&Geometry) -> String) {
        if self.named.insert(tid) {
            let Some(geometry) = &self.geometry else { return };
            let (pid, name) = (self.pid(process), text(&name(geometry)));
            self.metadata(&format!(
                "\"pid\":{pid},\"tid\":{tid},\"name\":\"thread_name\",\"args\":{{\"name\":{name}}}"
            ));
        }
    }

    fn wanted(&self, from: Instant, until: Instant) -> bool {
        until >= self.limits.from && from < self.limits.until
    }

    /// Writes a slice of a thread.
    fn slice(
        &mut self,
        process: Process,
        tid: u64,
        (from, until): (Instant, Instant),
        name: &str,
        cat: &str,
        args: &str,
    ) {
        if from >= until || !self.wanted(from, until) {
            return;
        }
        let pid = self.pid(process);
        self.line.clear();
        let _ = write!(self.line, "{{\"ph\":\"X\",\"pid\":{pid},\"tid\":{tid},\"ts\":{}", Micros(from));
        let _ = write!(self.line, ",\"dur\":{}", Micros(Instant::ZERO + until.since(from)));
        let _ = write!(self.line, ",\"cat\":\"{cat}\",\"name\":\"{name}\",\"args\":{{{args}}}");
        self.put();
        self.events += 1;
    }

    /// Writes one end of an asynchronous slice.
    fn edge(&mut self, process: Process, begin: bool, at: Instant, id: u64, name: &str, args: &str) {
        let (pid, tid, ph) = (self.pid(process), self.tid(process, 0), if begin { 'b' } else { 'e' });
        self.line.clear();
        let _ = write!(self.line, "{{\"ph\":\"{ph}\",\"pid\":{pid},\"tid\":{tid},\"ts\":{}", Micros(at));
        let _ =
            write!(self.line, ",\"cat\":\"request\",\"id2\":{{\"local\":\"0x{id:x}\"}},\"name\":\"{name}\"");
        if begin {
            let _ = write!(self.line, ",\"args\":{{{args}}}");
        }
        self.put();
        self.events += 1;
    }

    fn counter(&mut self, process: Process, at: Instant, which: usize, name: &str, unit: &str, value: u64) {
        if self.shown[which] == Some(value) || !self.wanted(at, at) {
            return;
        }
        self.shown[which] = Some(value);
        let (pid, tid) = (self.pid(process), self.tid(process, 0));
        self.line.clear();
        let _ = write!(self.line, "{{\"ph\":\"C\",\"pid\":{pid},\"tid\":{tid},\"ts\":{}", Micros(at));
        let _ = write!(self.line, ",\"name\":\"{name}\",\"args\":{{\"{unit}\":{value}}}");
        self.put();
        self.events += 1;
    }

    /// Writes the counters after an event of the device.
    pub(super) fn counters(&mut self, now: Instant, device: &Device) {
        self.counter(Process::Queues, now, 0, "in the device:", "commands", self.in_device);
        let units = device.buffer_use()[1];
        self.counter(Process::Background, now, 1, "buffer:", "units", units);
        if std::mem::take(&mut self.blocks_changed) {
            self.counter(
                Process::Background,
                now,
                2,
                "least free of a plane:",
                "blocks",
                device.free_blocks().0,
            );
        }
    }

    /// Takes a record before the spans take it.
    pub(super) fn record(&mut self, record: &Record, spans: &Spans, open: &BTreeMap<u64, Open>) {
        let now = record.at;
        match record.what {
            Traced::Arrived { .. } => self.in_device += 1,
            Traced::Completed { command, .. } => {
                self.in_device = self.in_device.saturating_sub(1);
                if let Some(wait) = self.waits.remove(&command) {
                    let asked = first_of(command, spans, open);
                    self.flush(now, wait, asked, "");
                }
            }
            Traced::Waits { command, units, log } => {
                self.waits.insert(command, (units, log, now));
            }
            Traced::Issued { op, at, bytes, planes, bus, array } => {
                if planes > 0
                    && let Some(span) = spans.op(op.index())
                {
                    let what = Op { at, bytes, ..span.op };
                    self.issued(now, op.index(), &what, planes, (bus, array), spans, open);
                }
            }
            Traced::Output { op, until } => {
                if let Some(span) = spans.op(op.index()) {
                    let (what, ready) = (span.op, span.array_until);
                    self.output(now, until, &what, ready, spans, open);
                }
            }
            Traced::Finished { op } => self.finished(now, op.index(), spans),
            Traced::Suspended { station, until } => self.suspended(now, until, station),
            Traced::Resumed { station, .. } => self.resumed(now, station),
            Traced::Victim { plane, block, valid } => {
                self.victims.insert(plane.0, (block, valid, now));
            }
            Traced::Log { work, count } => {
                self.log_ends(now, "");
                self.log = Some((work, count, now));
            }
            Traced::LogDone => self.log_ends(now, ""),
            Traced::Room { plane, room: false } => {
                self.no_room.insert(plane.0, now);
            }
            Traced::Room { plane, room: true } => self.room(now, plane, ""),
            Traced::Queued { .. }
            | Traced::Enqueued { .. }
            | Traced::Admitted { .. }
            | Traced::Memory { .. }
            | Traced::MemoryDone { .. } => {}
        }
    }

    fn channel_tid(&mut self, spans: &Spans, station: StationId) -> u64 {
        let channel = spans.channel(station).0;
        let tid = self.tid(Process::Channels, u64::from(channel) + 1);
        self.name(Process::Channels, tid, |_| format!("channel {channel}"));
        tid
    }

    fn die_tid(&mut self, station: StationId, suspended: bool) -> u64 {
        let tid = self.tid(Process::Dies, 2 * u64::from(station.0) + 1 + u64::from(suspended));
        self.name(Process::Dies, tid, |geometry| {
            let name = die_name(geometry, station);
            if suspended { format!("{name}, suspended") } else { name }
        });
        tid
    }

    fn issued(
        &mut self,
        now: Instant,
        leader: usize,
        op: &Op,
        planes: u8,
        (bus, array): (Duration, Duration),
        spans: &Spans,
        open: &BTreeMap<u64, Open>,
    ) {
        self.blocks_changed |= op.kind == OpKind::Program && op.at.page == 0;
        let station = spans.station(op.plane);
        let (channel, die) = (self.channel_tid(spans, station), self.die_tid(station, false));
        let name = if op.kind == OpKind::Program { "data in" } else { "command" };
        let args =
            format!("\"for\":\"{}\",\"die\":{},{}", Work::of(op).name(), station.0, of(op, spans, open));
        self.slice(Process::Channels, channel, (now, now + bus), name, "bus", &args);
        self.slice(Process::Dies, die, (now, now + bus), name, "bus", &args);
        let working = Working { leader, op: *op, planes, from: now + bus };
        self.dies[station.0 as usize].drawn_until = now + bus;
        if op.kind == OpKind::Read {
            self.array(station, working, now + bus + array, &of(op, spans, open));
        } else {
            self.dies[station.0 as usize].working = Some(working);
        }
    }

    /// Writes the slice of a finished array operation.
    fn array(&mut self, station: StationId, working: Working, until: Instant, args: &str) {
        let Working { op, planes, from, .. } = working;
        let page = if op.kind == OpKind::Erase { String::new() } else { format!(",\"page\":{}", op.at.page) };
        let args =
            format!("\"plane\":{},\"planes\":{planes},\"block\":{}{page},{args}", op.plane.0, op.at.block.0);
        let die = self.die_tid(station, false);
        self.slice(Process::Dies, die, (from, until), Work::of(&op).name(), "array", &args);
        self.dies[station.0 as usize].drawn_until = until;
    }

    fn output(
        &mut self,
        now: Instant,
        until: Instant,
        op: &Op,
        ready: Instant,
        spans: &Spans,
        open: &BTreeMap<u64, Open>,
    ) {
        let station = spans.station(op.plane);
        let (channel, die) = (self.channel_tid(spans, station), self.die_tid(station, false));
        let args =
            format!("\"for\":\"{}\",\"die\":{},{}", Work::of(op).name(), station.0, of(op, spans, open));
        let since = ready.max(self.dies[station.0 as usize].drawn_until);
        self.slice(Process::Dies, die, (since, now), "waits for the bus", "wait", "");
        self.slice(Process::Channels, channel, (now, until), "data out", "bus", &args);
        self.slice(Process::Dies, die, (now, until), "data out", "bus", &args);
        self.dies[station.0 as usize].drawn_until = until;
    }

    fn finished(&mut self, now: Instant, op: usize, spans: &Spans) {
        let Some(span) = spans.op(op) else { return };
        let (what, station) = (span.op, spans.station(span.op.plane));
        let die = &mut self.dies[station.0 as usize];
        if let Some(working) = die.working.take_if(|working| working.leader == op) {
            self.array(station, working, now, "\"ended\":true");
        }
        if what.purpose == Purpose::GcErase {
            self.collected(now, what.plane, "");
            self.blocks_changed = true;
        }
    }

    fn suspended(&mut self, now: Instant, until: Instant, station: StationId) {
        let Some(working) = self.dies[station.0 as usize].working.take() else { return };
        self.array(station, working, now, "\"suspended\":true");
        let die = self.die_tid(station, false);
        self.slice(Process::Dies, die, (now, until), "suspending", "wait", "");
        let die = &mut self.dies[station.0 as usize];
        die.suspended = Some((working, now));
        die.drawn_until = until;
    }

    fn resumed(&mut self, now: Instant, station: StationId) {
        let Some((working, since)) = self.dies[station.0 as usize].suspended.take() else { return };
        let tid = self.die_tid(station, true);
        self.slice(Process::Dies, tid, (since, now), Work::of(&working.op).name(), "suspended", "");
        self.dies[station.0 as usize].working = Some(Working { from: now, ..working });
    }

    fn plane_tid(&mut self, plane: u32, what: &str, nth: u64) -> u64 {
        let tid = self.tid(Process::Background, 10 + 2 * u64::from(plane) + nth);
        self.name(Process::Background, tid, |geometry| {
            let die = die_name(geometry, geometry.station(PlaneId(plane)));
            let of_station = plane % geometry.planes_per_station();
            format!("{what}: {die} plane {of_station}")
        });
        tid
    }

    fn collected(&mut self, now: Instant, plane: PlaneId, state: &str) {
        let Some((block, valid, since)) = self.victims.remove(&plane.0) else { return };
        let units = self.geometry.as_ref().map_or(0, |geometry| geometry.units_per_block());
        let args = format!("\"block\":{},\"valid_units\":{valid},\"of\":{units}{state}", block.0);
        let tid = self.plane_tid(plane.0, "collection", 0);
        self.slice(Process::Background, tid, (since, now), "collect", "collection", &args);
    }

    fn room(&mut self, now: Instant, plane: PlaneId, state: &str) {
        let Some(since) = self.no_room.remove(&plane.0) else { return };
        let tid = self.plane_tid(plane.0, "no room", 1);
        let args = format!("\"plane\":{}{state}", plane.0);
        self.slice(Process::Background, tid, (since, now), "no room for host data", "room", &args);
    }

    fn log_ends(&mut self, now: Instant, state: &str) {
        let Some((work, count, since)) = self.log.take() else { return };
        let tid = self.tid(Process::Background, 1);
        self.name(Process::Background, tid, |_| "map log".into());
        let (name, unit) = match work {
            LogWork::Group => ("log group", "pages"),
            LogWork::Checkpoint => ("checkpoint", "pages"),
            LogWork::Erase => ("erase region", "blocks"),
        };
        let args = format!("\"{unit}\":{count}{state}");
        self.slice(Process::Background, tid, (since, now), name, "log", &args);
    }

    fn flush(
        &mut self,
        now: Instant,
        (units, log, since): (u32, bool, Instant),
        asked: Option<&Unfinished>,
        state: &str,
    ) {
        if !self.wanted(since, now) || since == now {
            return;
        }
        let name = match asked.map(|open| open.asked.kind) {
            Some(Kind::Flush) => "FLUSH",
            Some(Kind::Trim | Kind::WriteZeroes) => "durable deallocation",
            Some(Kind::Share) => "durable remap",
            _ => "durable write",
        };
        let number = asked.map_or(String::new(), |open| format!(",\"request\":{}", open.number));
        let args = format!("\"units_to_program\":{units},\"waits_for_log\":{log}{number}{state}");
        self.flushes += 1;
        // Requests have numbers of their own in another process, so these numbers do not collide with them.
        self.edge(Process::Background, true, since, self.flushes, name, &args);
        self.edge(Process::Background, false, now, self.flushes, name, "");
    }

    /// Writes a finished request.
    pub(super) fn request(&mut self, request: &Request) {
        let Request { number, asked, from, until, failed, .. } = request;
        if !self.wanted(*from, *until) || from == until {
            return;
        }
        let latency = Micros(Instant::ZERO + until.since(*from));
        let mut args = asked_args(*number, asked.lba.0, asked.blocks, asked.fua);
        let _ = write!(args, ",\"latency_us\":{latency}");
        if *failed {
            args.push_str(",\"failed\":true");
        }
        let queue = format!("queue {}", asked.queue);
        self.edge(Process::Queues, true, *from, *number, &queue, "");
        self.edge(Process::Queues, true, *from, *number, kind_name(asked.kind), &args);
        let mut stage: Option<&Piece> = None;
        let no_room = |piece: &Piece| matches!(piece.reason, Reason::NoRoom(_));
        // The die's own track shows what the die does while a plane has no room.
        for pieces in request.pieces.chunk_by(|a, b| a.stage == b.stage && no_room(a) && no_room(b)) {
            let (piece, until) = (&pieces[0], pieces[pieces.len() - 1].until);
            if stage.is_none_or(|stage| stage.stage != piece.stage) {
                if let Some(before) = stage {
                    self.edge(Process::Queues, false, piece.from, *number, before.stage.name(), "");
                }
                self.edge(Process::Queues, true, piece.from, *number, piece.stage.name(), "");
                stage = Some(piece);
            }
            if piece.reason != Reason::Itself {
                let name = if no_room(piece) { NO_ROOM.to_owned() } else { piece.reason.name() };
                let die = piece.op.map_or(String::new(), |op| {
                    format!("\"plane\":{},\"other_commands\":{}", op.plane.0, piece.others)
                });
                self.edge(Process::Queues, true, piece.from, *number, &name, &die);
                self.edge(Process::Queues, false, until, *number, &name, "");
            }
        }
        if let Some(last) = stage {
            self.edge(Process::Queues, false, *until, *number, last.stage.name(), "");
        }
        self.edge(Process::Queues, false, *until, *number, kind_name(asked.kind), "");
        self.edge(Process::Queues, false, *until, *number, &queue, "");
    }

    /// Writes the open slices, up to `now`.
    pub(super) fn end(
        &mut self,
        now: Instant,
        spans: &Spans,
        open: &BTreeMap<u64, Open>,
        waiting: &BTreeMap<u64, Unfinished>,
    ) {
        self.until = now.min(self.limits.until);
        for station in (0..self.dies.len() as u32).map(StationId) {
            if let Some(working) = self.dies[station.0 as usize].working.take() {
                let until = spans.op(working.leader).map_or(now, |span| span.array_until);
                self.array(station, working, until.max(working.from), "\"unfinished\":true");
            }
            if let Some((working, since)) = self.dies[station.0 as usize].suspended.take() {
                let (tid, name) = (self.die_tid(station, true), Work::of(&working.op).name());
                let args = "\"unfinished\":true";
                self.slice(Process::Dies, tid, (since, now), name, "suspended", args);
            }
        }
        const UNFINISHED: &str = ",\"unfinished\":true";
        while let Some((plane, _)) = self.victims.first_key_value() {
            self.collected(now, PlaneId(*plane), UNFINISHED);
        }
        while let Some((plane, _)) = self.no_room.first_key_value() {
            self.room(now, PlaneId(*plane), UNFINISHED);
        }
        self.log_ends(now, UNFINISHED);
        while let Some((command, wait)) = self.waits.pop_first() {
            let asked = first_of(command, spans, open);
            self.flush(now, wait, asked, UNFINISHED);
        }
        let sent = open.values().flat_map(|open| open.requests.iter().map(|request| (request, open.sent)));
        for (request, sent) in sent.chain(waiting.values().map(|request| (request, None))) {
            let (Unfinished { number, asked, .. }, from) = (request, request.from(sent));
            if from < now && self.wanted(from, now) {
                let args = asked_args(*number, asked.lba.0, asked.blocks, asked.fua) + UNFINISHED;
                let (queue, kind) = (format!("queue {}", asked.queue), kind_name(asked.kind));
                self.edge(Process::Queues, true, from, *number, &queue, "");
                self.edge(Process::Queues, true, from, *number, kind, &args);
                self.edge(Process::Queues, false, now, *number, kind, "");
                self.edge(Process::Queues, false, now, *number, &queue, "");
            }
        }
        if self.error.is_none()
            && let Err(error) = self.out.flush()
        {
            self.error = Some(error);
        }
    }

    /// Returns the summary of the file.
    pub(super) fn finish(self) -> Written {
        Written { events: self.events, until: self.until, cut: self.cut, error: self.error }
    }
}

/// Returns the name of a kind of request, in the file and in `weir explain`.
pub fn kind_name(kind: Kind) -> &'static str {
    match kind {
        Kind::Read => "read",
        Kind::Write => "write",
        Kind::Trim => "trim",
        Kind::WriteZeroes => "write zeroes",
        Kind::Share => "share",
        Kind::Flush => "flush",
    }
}

fn asked_args(number: u64, lba: u64, blocks: u32, fua: bool) -> String {
    let bytes = u64::from(blocks) * LBA_BYTES;
    let fua = if fua { ",\"fua\":true" } else { "" };
    format!("\"request\":{number},\"lba\":{lba},\"bytes\":{bytes}{fua}")
}

/// Returns the first request in a command of the device.
fn first_of<'a>(command: u32, spans: &Spans, open: &'a BTreeMap<u64, Open>) -> Option<&'a Unfinished> {
    open.get(&spans.command_id(command)?)?.requests.first()
}

/// Describes the bytes of an operation and the request that it serves, the first one of several.
fn of(op: &Op, spans: &Spans, open: &BTreeMap<u64, Open>) -> String {
    let request = match op.purpose {
        Purpose::HostRead { command } | Purpose::Merge { command } => first_of(command, spans, open),
        _ => None,
    };
    match request {
        Some(request) => format!("\"bytes\":{},\"request\":{}", op.bytes, request.number),
        None => format!("\"bytes\":{}", op.bytes),
    }
}

/// Returns the name of a die by its position; a station is a chip where dies do not interleave.
pub fn die_name(geometry: &Geometry, station: StationId) -> String {
    let per_channel = geometry.stations_per_channel();
    let (channel, nth) = (station.0 / per_channel, station.0 % per_channel);
    let [_, chips, dies, _] = geometry.dimensions().map(|count| count.get() as u32);
    if per_channel == chips * dies && dies > 1 {
        format!("ch {channel} chip {} die {}", nth / dies, nth % dies)
    } else {
        format!("ch {channel} chip {nth}")
    }
}

/// Encodes a text as JSON.
fn text(text: &str) -> String {
    serde_json::Value::from(text).to_string()
}

/// Prints a time in microseconds, with all its nanoseconds.
struct Micros(Instant);

impl std::fmt::Display for Micros {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let ns = self.0.as_nanos();
        write!(f, "{}.{:03}", ns / 1000, ns % 1000)
    }
}
