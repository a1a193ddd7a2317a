//! A host above a device, in virtual time: tasks (file systems, workloads) on one executor, and a block port onto the
//! device behind its link.
//!
//! Place in the data flow: a task submits a request to [`Port`] and waits for its ticket; the request becomes a
//! command, and the device's answer wakes the task. [`Stack::turn`] takes the earlier of the device's next event and
//! the tasks' next timer. A stack may have a block layer ([`flashweir_host`]) in between; without one, requests go to
//! the device directly, in their order.
//!
//! Invariants: tasks and device share one clock, which stands still while either works; a request is one command, or a
//! part of one that a block layer merged; a power cut drops every task and all requests that wait in a block layer, and
//! later requests to a port are refused.

use crate::engine::{self, Engine, Host, Nothing, Tear, layers_of};
use crate::host_ftl::{Disk, peek_above};
use crate::measure::{Distribution, LatencyRecorder};
use flashweir_core::command::{APPEND_NAMESPACE, Contents, RangeFlush, SegmentId, SharePair};
use flashweir_core::units::LBA_BYTES;
use flashweir_core::{
    Address, Command, CommandId, Data, DeviceError, Done, Executor, Instant, Lba, Lpn, Op, Order, Payload,
    executor::Handle,
};
use flashweir_device::config::{DeviceConfig, FirmwareKind};
use flashweir_device::{Device, DeviceMetrics, DeviceOptions, Recovery, RecoveryReport};
use flashweir_fs::port::{
    Answer, AppendPort, BLOCK_BYTES, Block, BlockPort, InOrder, PortError, Progress, Remap, Request,
    Selection, Share, Ticket, Tickets, Write, bytes_of,
};
use flashweir_host::{BlockLayer, HostConfig, HostFtlConfig, HostFtlMetrics};
use std::cell::RefCell;
use std::fmt;
use std::future::Future;
use std::rc::Rc;
use std::sync::Arc;

/// How the stack passes a host's flushes to the device (range-flush §6.3: the three configurations of the RFLUSH
/// paper).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum FlushMode {
    /// A range flush becomes a FLUSH.
    Flush,
    /// Flushes and range flushes go to the device unchanged.
    #[default]
    RangeFlush,
    /// Neither goes to the device. Nothing is certain to survive a power cut.
    NoFlush,
}

impl FlushMode {
    /// All modes, in the paper's order.
    pub const ALL: [Self; 3] = [Self::Flush, Self::RangeFlush, Self::NoFlush];

    /// Returns its name in the paper.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Flush => "FLUSH",
            Self::RangeFlush => "RFLUSH",
            Self::NoFlush => "NOFLUSH",
        }
    }
}

/// Sectors of the command set in one block of the port.
pub(crate) const LBAS: u64 = BLOCK_BYTES as u64 / LBA_BYTES;

/// A request in flight.
struct Pending {
    progress: Progress,
    /// Range of a read; `None` for other requests.
    range: Option<(Block, u32)>,
    /// Time at which it was submitted, if it is a write.
    written: Option<Instant>,
}

/// Requests that are not answered yet.
struct Requests {
    pending: Vec<Option<Pending>>,
    free: Vec<u32>,
    tickets: Tickets,
    unit_bytes: usize,
    /// Blocks of a segment of a device that consists of append segments, else 0.
    segment_blocks: u32,
    /// Latencies of writes from an instant on, once they are measured.
    writes: Option<(Instant, LatencyRecorder)>,
}

impl Requests {
    fn place(&mut self, pending: Pending) -> u32 {
        let place = self.free.pop().unwrap_or(self.pending.len() as u32);
        match self.pending.get_mut(place as usize) {
            Some(free) => *free = Some(pending),
            None => self.pending.push(Some(pending)),
        }
        place
    }

    fn progress(&self, token: u64) -> &Progress {
        &self.pending[token as usize].as_ref().expect("a request has not finished").progress
    }
}

/// Effects of a block layer are passed to tickets at once: no task runs meanwhile.
impl Host for Requests {
    fn dispatched(&mut self, _: Instant, token: u64) {
        self.progress(token).dispatched();
    }

    fn transferred(&mut self, token: u64) {
        self.progress(token).transferred();
    }

    fn completed(&mut self, now: Instant, token: u64, _: Instant, result: engine::Answer) {
        let pending = self.pending[token as usize].take().expect("a request finishes once");
        self.free.push(token as u32);
        if let (Some(written), Some((from, writes))) = (pending.written, &mut self.writes)
            && written >= *from
        {
            writes.record(now.since(written));
        }
        match &result {
            Ok(Done::Appended { offset }) => pending.progress.at_offset(offset / LBAS as u32),
            Ok(Done::Segment(report)) => pending.progress.at_offset(report.write_pointer / LBAS as u32),
            _ => (),
        }
        self.tickets.complete(pending.progress, answer(result, pending.range, self.unit_bytes));
    }
}

/// Events without a block layer, kept until the tasks of the instant have run.
#[derive(Default)]
struct News {
    arrived: Vec<u64>,
    finished: Vec<(u64, engine::Answer)>,
}

impl Host for News {
    fn transferred(&mut self, token: u64) {
        self.arrived.push(token);
    }

    fn completed(&mut self, _: Instant, token: u64, _: Instant, result: engine::Answer) {
        self.finished.push((token, result));
    }
}

struct Shared {
    /// Absent after a power cut.
    engine: Option<Engine<Nothing>>,
    now: Instant,
    mode: FlushMode,
    requests: Requests,
    news: News,
    has_layers: bool,
    /// Configuration of the block layer, if there is one.
    block_layer: Option<HostConfig>,
}

/// The port of a [`Stack`].
#[derive(Clone)]
pub struct Port {
    shared: Rc<RefCell<Shared>>,
    submitter: u16,
}

impl fmt::Debug for Port {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Port({} blocks)", self.capacity_blocks())
    }
}

impl Shared {
    fn submit(&mut self, request: Request, submitter: u16) -> Ticket {
        let range = read_range(&request);
        let command = match self.requests.segment_blocks {
            0 => Ok(command(request, self.mode, self.has_whole_units())),
            segment_blocks => segment_command(request, self.mode, self.has_whole_units(), segment_blocks),
        };
        match command {
            Ok(Some(command)) => self.submit_command(command, range, submitter),
            Ok(None) => Ticket::done(Ok(Box::default())),
            Err(error) => Ticket::done(Err(error.into())),
        }
    }

    /// Whether a block of the port is exactly one mapping unit.
    fn has_whole_units(&self) -> bool {
        self.requests.unit_bytes == BLOCK_BYTES
    }

    fn submit_command(&mut self, command: Command, range: Option<(Block, u32)>, submitter: u16) -> Ticket {
        let Some(engine) = &mut self.engine else {
            return Ticket::done(Err(PortError::Device(DeviceError::NotSupported("anything without power"))));
        };
        let (progress, ticket) = self.requests.tickets.ticket();
        if !self.has_layers {
            progress.dispatched();
            engine.advance(self.now, &mut self.news);
        }
        let is_write = matches!(command.op, Op::Write { .. } | Op::SegWrite { .. } | Op::SegAppend { .. });
        let written = is_write.then_some(self.now);
        let place = self.requests.place(Pending { progress, range, written });
        let command = Command { id: CommandId(place.into()), ..command };
        engine.submit(self.now, self.now, command, submitter, &mut self.news);
        ticket
    }

    /// Whether requests wait in a block layer for the end of their instant.
    fn is_plugged(&self) -> bool {
        self.engine.as_ref().is_some_and(Engine::is_plugged)
    }

    /// Returns the next time at which a block layer wants to be called.
    fn next_wake(&self) -> Option<Instant> {
        self.engine.as_ref().and_then(Engine::next_wake)
    }

    /// Passes the progress of requests to their tickets.
    fn deliver(&mut self) {
        if self.has_layers {
            if let Some(engine) = &mut self.engine {
                engine.deliver(self.now, &mut self.requests);
            }
            return;
        }
        let Self { news, requests, .. } = self;
        for place in news.arrived.drain(..) {
            if let Some(pending) = &requests.pending[place as usize] {
                pending.progress.transferred();
            }
        }
        for (token, result) in news.finished.drain(..) {
            requests.completed(self.now, token, self.now, result);
        }
    }
}

/// Returns the earlier of two times, either of which may be absent.
#[inline]
fn earlier(one: Option<Instant>, other: Option<Instant>) -> Option<Instant> {
    match (one, other) {
        (Some(one), Some(other)) => Some(one.min(other)),
        (one, other) => one.or(other),
    }
}

/// Returns the range of a read; `None` for other requests.
pub(crate) fn read_range(request: &Request) -> Option<(Block, u32)> {
    match *request {
        Request::Read { block, count } => Some((block, count)),
        _ => None,
    }
}

/// Returns the command for a request; `None` if nothing has to be done.
pub(crate) fn command(request: Request, mode: FlushMode, whole_units: bool) -> Option<Command> {
    let range = |block: Block, count: usize| (Lba(block.0 * LBAS), (count as u64 * LBAS) as u32);
    let plain = |op: Op| Some(Command::new(0, op));
    let ordered = |mut command: Command, order: InOrder| {
        (command.stream, command.order) = order.unzip();
        Some(command)
    };
    match request {
        Request::Read { block, count } => {
            let (lba, blocks) = range(block, count as usize);
            plain(Op::Read { lba, blocks })
        }
        Request::Write(Write { block, payloads, tags, order, fua, handle }) => {
            let (lba, blocks) = range(block, payloads.len());
            let data = data(payloads, whole_units);
            let mut command = Command::new(0, Op::Write { lba, blocks, data });
            (command.tags, command.fua) = (tags, fua && mode != FlushMode::NoFlush);
            command.handle = handle;
            ordered(command, order)
        }
        Request::Discard { block, count, order } => {
            let (lba, blocks) = range(block, count as usize);
            ordered(Command::new(0, Op::Trim { lba, blocks }), order)
        }
        Request::Barrier(stream) => ordered(Command::new(0, Op::Barrier), Some((stream, Order::Barrier))),
        Request::Share(Share { remaps, tags, order }) => {
            let pair = |Remap { dst, src, count }| {
                let (dst, blocks) = range(dst, count as usize);
                SharePair { dst, src: range(src, 0).0, blocks }
            };
            let command = Command::new(0, Op::Share(remaps.into_iter().map(pair).collect()));
            ordered(Command { tags, ..command }, order)
        }
        Request::Flush | Request::RangeFlush(_) if mode == FlushMode::NoFlush => None,
        Request::RangeFlush(Selection { ranges, tags }) if mode == FlushMode::RangeFlush => {
            let ranges = ranges.into_iter().map(|(block, count)| range(block, count as usize)).collect();
            plain(Op::RFlush(Box::new(RangeFlush { ranges, tags, segments: Vec::new() })))
        }
        Request::Flush | Request::RangeFlush(_) => plain(Op::Flush),
        Request::Report(segment) => plain(Op::SegReport { segment }),
    }
}

/// Returns the same for a device of append segments of so many blocks.
///
/// # Errors
/// What segments do not have, or a range that is not within one segment, or not all of it.
fn segment_command(
    request: Request,
    mode: FlushMode,
    whole_units: bool,
    segment_blocks: u32,
) -> Result<Option<Command>, DeviceError> {
    let place = |block: Block| {
        let (segment, offset) = (block.0 / u64::from(segment_blocks), block.0 % u64::from(segment_blocks));
        (SegmentId(segment as u32), (offset * LBAS) as u32)
    };
    let is_whole = |block: Block, count: u32| place(block).1 == 0 && count == segment_blocks;
    let lacks = |what| Err(DeviceError::NotSupported(what));
    let command = match request {
        Request::Write(write) => {
            let (segment, offset) = place(write.block);
            let fits = u64::from(offset) / LBAS + write.payloads.len() as u64 <= segment_blocks.into();
            if !fits {
                return Err(DeviceError::InvalidField("a write goes past the end of its segment"));
            }
            command(Request::Write(write), mode, whole_units).map(|command| {
                let Op::Write { blocks, data, .. } = command.op else { unreachable!("it is a write") };
                Command { op: Op::SegWrite { segment, offset, blocks, data }, ..command }
            })
        }
        Request::Discard { block, count, .. } if !is_whole(block, count) => {
            let (segment, offset) = place(block);
            return Err(DeviceError::Misaligned { at: Address::Seg { segment, offset } });
        }
        Request::Discard { block, count, order } => {
            let trim = Op::SegTrim { segment: place(block).0 };
            command(Request::Discard { block, count, order }, mode, whole_units)
                .map(|command| Command { op: trim, ..command })
        }
        Request::Share(_) => return lacks("SHARE of segments"),
        Request::RangeFlush(Selection { tags, .. }) if !tags.is_empty() => {
            return lacks("owners of segments");
        }
        other => command(other, mode, whole_units),
    };
    Ok(command.map(|command| Command { ns: APPEND_NAMESPACE, ..command }))
}

/// Converts contents for the device; they are passed unchanged where a block is a mapping unit.
fn data(payloads: Contents, whole_units: bool) -> Data {
    if whole_units {
        Data::Units(payloads)
    } else {
        Data::Bytes(payloads.iter().flat_map(|payload| bytes_of(payload).to_vec()).collect::<Vec<_>>().into())
    }
}

/// Returns the command that appends contents to a segment.
fn append(segment: SegmentId, payloads: Contents, whole_units: bool) -> Command {
    let blocks = (payloads.len() as u64 * LBAS) as u32;
    let data = data(payloads, whole_units);
    Command { ns: APPEND_NAMESPACE, ..Command::new(0, Op::SegAppend { segment, blocks, data }) }
}

impl AppendPort for Port {
    fn append(&self, segment: SegmentId, payloads: Contents) -> Ticket {
        let mut shared = self.shared.borrow_mut();
        let command = append(segment, payloads, shared.has_whole_units());
        shared.submit_command(command, None, self.submitter)
    }
}

impl BlockPort for Port {
    fn capacity_blocks(&self) -> u64 {
        let shared = self.shared.borrow();
        shared.engine.as_ref().map_or(0, |engine| engine.capacity_lbas() / LBAS)
    }

    fn handles(&self) -> u8 {
        let shared = self.shared.borrow();
        shared.engine.as_ref().map_or(1, |engine| engine.device().config().ftl.placement.handles)
    }

    fn segment_blocks(&self) -> u32 {
        self.shared.borrow().requests.segment_blocks
    }

    fn share_blocks_max(&self) -> u32 {
        let shared = self.shared.borrow();
        match &shared.engine {
            Some(engine) if shared.has_whole_units() => engine.device().share_units_max(),
            _ => 0,
        }
    }

    fn has_content(&self, block: Block) -> bool {
        let shared = self.shared.borrow();
        // SHARE needs a block that is a mapping unit.
        shared.engine.as_ref().is_some_and(|engine| engine.device().is_mapped(Lpn(block.0)))
    }

    fn submit(&self, request: Request) -> Ticket {
        self.shared.borrow_mut().submit(request, self.submitter)
    }
}

impl Port {
    /// Measures, from now on, how long the disk takes to answer writes; a block layer belongs to it.
    pub fn measure_writes(&self) {
        let mut shared = self.shared.borrow_mut();
        shared.requests.writes = Some((shared.now, LatencyRecorder::new()));
    }

    /// Latencies of the writes that began after [`Self::measure_writes`] and have been answered.
    pub fn write_latencies(&self) -> Distribution {
        let shared = self.shared.borrow();
        shared
            .requests
            .writes
            .as_ref()
            .map_or_else(Distribution::default, |(_, writes)| writes.distribution())
    }

    /// Counters of the device, as they are for those above a host FTL. Panics after a power cut.
    pub fn device_metrics(&self) -> DeviceMetrics {
        self.shared.borrow().engine.as_ref().expect("the power is on").metrics()
    }

    /// Counters of the host FTL, if there is one. Panics after a power cut.
    pub fn host_ftl_metrics(&self) -> Option<HostFtlMetrics> {
        let shared = self.shared.borrow();
        shared.engine.as_ref().expect("the power is on").host_ftl().map(|ftl| ftl.metrics())
    }

    /// Passes the configurations of the device and of the host FTL above it to `look`. Panics after a power cut.
    pub fn with_disk<T>(&self, look: impl FnOnce(&DeviceConfig, Option<&HostFtlConfig>) -> T) -> T {
        let shared = self.shared.borrow();
        let engine = shared.engine.as_ref().expect("the power is on");
        look(engine.device().config(), engine.host_ftl().map(|ftl| ftl.config()))
    }

    /// Passes the device to `look`. Panics after a power cut.
    pub fn with_device<T>(&self, look: impl FnOnce(&Device) -> T) -> T {
        look(self.shared.borrow().engine.as_ref().expect("the power is on").device())
    }
}

/// The future result of a task.
#[derive(Debug)]
pub struct Slot<T>(Rc<RefCell<Option<T>>>);

impl<T> Slot<T> {
    /// Whether the result has arrived.
    pub fn is_set(&self) -> bool {
        self.0.borrow().is_some()
    }

    /// Takes the result.
    pub fn take(&self) -> Option<T> {
        self.0.take()
    }
}

/// Tasks, a port, and a device.
pub struct Stack {
    executor: Executor,
    shared: Rc<RefCell<Shared>>,
}

impl fmt::Debug for Stack {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Stack({} tasks at {:?})", self.executor.len(), self.now())
    }
}

impl Stack {
    /// Makes a stack on a device that has just woken up, at virtual time zero.
    pub fn new(device: Device, mode: FlushMode) -> Self {
        Self::on(device, mode, None)
    }

    /// Makes a stack with a block layer, whose own flushes between epochs go to the device in any mode. Panics if its
    /// configuration is not valid, or has more queues than the link or deeper ones.
    pub fn with_block_layer(device: Device, mode: FlushMode, host: HostConfig) -> Self {
        Self::on(device, mode, Some(host))
    }

    /// Makes a stack on a disk, which may have a host FTL, with a block layer on top if one is configured. Panics if that is not valid
    /// there.
    pub fn above(mut disk: Disk, mode: FlushMode, block_layer: Option<HostConfig>) -> Self {
        disk.device.forgo_digest();
        Self::with_digest(disk, mode, block_layer)
    }

    /// Makes the same with media that can be compared ([`flashweir_device::Media::digest`]), which costs a pass over every byte.
    pub fn with_digest(disk: Disk, mode: FlushMode, block_layer: Option<HostConfig>) -> Self {
        let device = &disk.device;
        let geometry = device.geometry();
        let unit_bytes = geometry.unit_bytes as usize;
        // Beside a page namespace segments are not for file systems.
        let segment_blocks = match device.config().firmware {
            FirmwareKind::Append => (geometry.segment_lbas() / LBAS) as u32,
            FirmwareKind::Page | FirmwareKind::PageAndAppend | FirmwareKind::OpenChannel => 0,
        };
        let (device, layers) = layers_of(disk, block_layer.clone());
        let (pending, free, tickets) = (Vec::new(), Vec::new(), Tickets::default());
        let shared = Shared {
            now: Instant::ZERO,
            has_layers: !layers.is_empty(),
            engine: Some(Engine::new(device, layers)),
            mode,
            requests: Requests { pending, free, tickets, unit_bytes, segment_blocks, writes: None },
            news: News::default(),
            block_layer,
        };
        Self { executor: Executor::new(), shared: Rc::new(RefCell::new(shared)) }
    }

    fn on(device: Device, mode: FlushMode, host: Option<HostConfig>) -> Self {
        Self::above(device.into(), mode, host)
    }

    /// Runs until the host FTL has recovered, if there is one. Panics if it waits for something that never happens.
    #[must_use]
    pub fn recovered(mut self) -> Self {
        let is_recovering = |shared: &Shared| {
            let ftl = shared.engine.as_ref().and_then(Engine::host_ftl);
            ftl.is_some_and(|ftl| !ftl.is_ready())
        };
        {
            let shared = &mut *self.shared.borrow_mut();
            if is_recovering(shared)
                && let Some(engine) = &mut shared.engine
            {
                engine.begin(shared.now, &mut shared.requests);
            }
        }
        while is_recovering(&self.shared.borrow()) {
            assert!(self.turn(), "a host FTL recovers by its reads");
        }
        self
    }

    /// Returns a port onto the device, for a file system.
    pub fn port(&self) -> Port {
        self.port_of(0)
    }

    /// Returns a port for one of several submitters, among which a scheduler may divide time.
    pub fn port_of(&self, submitter: u16) -> Port {
        Port { shared: Rc::clone(&self.shared), submitter }
    }

    /// Passes the block layer, if there is one, to `look`.
    pub fn with_layer<T>(&self, look: impl FnOnce(&mut BlockLayer) -> T) -> Option<T> {
        self.shared.borrow_mut().engine.as_mut()?.layers_mut().find_mut().map(look)
    }

    /// Returns the executor's handle, for tasks that start others or sleep.
    pub fn handle(&self) -> Handle {
        self.executor.handle()
    }

    /// Returns the virtual time since the device woke up.
    pub fn now(&self) -> Instant {
        self.shared.borrow().now
    }

    /// Passes the device to `look`.
    pub fn with_device<T>(&self, look: impl FnOnce(&Device) -> T) -> T {
        self.port().with_device(look)
    }

    /// Passes the content that each of the first `units` units reads as now to `look`, zeros where nothing was written. For checks: it takes
    /// no virtual time.
    pub fn peek(&self, units: u64, mut look: impl FnMut(Lpn, &Payload)) {
        let shared = self.shared.borrow();
        let engine = shared.engine.as_ref().expect("the power is on");
        let (device, host_ftl) = (engine.device(), engine.host_ftl());
        for lpn in (0..units).map(Lpn) {
            let content = match host_ftl {
                Some(ftl) => peek_above(ftl, device, lpn),
                None => device.peek(lpn).unwrap_or_default(),
            };
            look(lpn, &content);
        }
    }

    /// Returns the time before which the power may fail now: that of the next turn.
    pub fn cut_instant(&self) -> Instant {
        self.next().unwrap_or(self.now())
    }

    /// Returns the time of the next event or timer; `None` if nothing can happen without a new task.
    pub fn next(&self) -> Option<Instant> {
        let shared = self.shared.borrow();
        let is_ready = self.executor.has_ready() || shared.is_plugged();
        let device = shared.engine.as_ref().and_then(Engine::peek);
        let next = earlier(device, earlier(self.executor.next_timer(), shared.next_wake()));
        if is_ready { Some(shared.now) } else { next.map(|next| next.max(shared.now)) }
    }

    /// Returns a hash over all events of the device and their times.
    pub fn trace_hash(&self) -> u64 {
        self.shared.borrow().engine.as_ref().expect("the power is on").hash()
    }

    /// Starts a task.
    pub fn spawn(&mut self, future: impl Future<Output = ()> + 'static) {
        self.executor.spawn(future);
    }

    /// Runs the ready tasks, or else executes the next event; returns false if there is neither.
    pub fn turn(&mut self) -> bool {
        if self.executor.has_ready() || self.shared.borrow().is_plugged() {
            self.executor.run_ready(self.now());
            self.shared.borrow_mut().deliver();
            return true;
        }
        let now = {
            let mut shared = self.shared.borrow_mut();
            let shared = &mut *shared;
            let wake = shared.next_wake();
            let engine = shared.engine.as_mut().expect("the power is on");
            let (device, timer) = (engine.peek(), self.executor.next_timer());
            // At one instant the device comes first, then the tasks.
            let Some(first) = earlier(device, earlier(timer, wake)) else { return false };
            if device == Some(first) {
                engine.step(&mut shared.news);
                shared.now = shared.now.max(engine.now());
            } else if timer == Some(first) {
                shared.now = first;
            } else {
                shared.now = first;
                engine.wake(first);
            }
            shared.deliver();
            shared.now
        };
        if self.executor.run_ready(now) > 0 {
            self.shared.borrow_mut().deliver();
        }
        true
    }

    /// Takes at most `turns_max` turns of those up to `until`. Returns whether these were all; the time is then
    /// `until`.
    pub fn advance(&mut self, until: Instant, turns_max: u32) -> bool {
        for _ in 0..turns_max {
            if self.next().is_none_or(|next| next > until) {
                let now = self.now().max(until);
                self.shared.borrow_mut().now = now;
                self.executor.run_ready(now);
                return true;
            }
            self.turn();
        }
        false
    }

    /// Starts a task whose result is kept.
    pub fn spawn_for<T: 'static>(&mut self, future: impl Future<Output = T> + 'static) -> Slot<T> {
        let slot = Slot(Rc::new(RefCell::new(None)));
        let result = Rc::clone(&slot.0);
        self.executor.spawn(async move {
            let value = future.await;
            *result.borrow_mut() = Some(value);
        });
        slot
    }

    /// Runs until a task returns its result; `None` if it waits for something that never happens.
    pub fn block_on<T: 'static>(&mut self, future: impl Future<Output = T> + 'static) -> Option<T> {
        let slot = self.spawn_for(future);
        while !slot.is_set() {
            if !self.turn() {
                return None;
            }
        }
        slot.take()
    }

    /// Shuts down in order: the tasks are dropped, the device's commands are finished and flushed.
    pub fn shut_down(mut self) -> Device {
        self.executor.clear();
        let now = self.now();
        let engine = self.shared.borrow_mut().engine.take().expect("the power is on");
        engine.shut_down(now)
    }

    /// Cuts the power now: the tasks are dropped, and the device comes back by its own recovery, at virtual time zero. A host FTL
    /// recovers with the first request, and answers it then.
    pub fn cut(mut self, options: DeviceOptions, tear: Tear) -> (Self, RecoveryReport) {
        self.executor.clear();
        let (engine, now, mode, block_layer) = {
            let mut shared = self.shared.borrow_mut();
            let engine = shared.engine.take().expect("the power is on");
            (engine, shared.now, shared.mode, shared.block_layer.take())
        };
        let media = engine.cut_media(now, tear);
        let config = engine.device().config().clone();
        let host_ftl = engine.host_ftl().map(|ftl| ftl.config().clone());
        drop(engine);
        let (device, report) = Recovery::begin(&config, options, media).finish();
        (Self::above(Disk::recover(device, host_ftl.as_ref()), mode, block_layer), report)
    }
}

impl Drop for Stack {
    /// Drops the tasks, which hold references to the executor's parts.
    fn drop(&mut self) {
        self.executor.clear();
    }
}

pub(crate) fn answer(
    result: Result<Done, DeviceError>,
    range: Option<(Block, u32)>,
    unit_bytes: usize,
) -> Answer {
    Ok(match (result?, range) {
        (Done::Data(units), Some(_)) if unit_bytes == BLOCK_BYTES => units,
        (Done::Data(units), Some((block, count))) => blocks(&units, block, count, unit_bytes),
        _ => Box::default(),
    })
}

/// Returns the contents of blocks, cut out of the mapping units that cover them.
fn blocks(units: &[Payload], first: Block, count: u32, unit_bytes: usize) -> Box<[Payload]> {
    let mut bytes = vec![0; units.len() * unit_bytes];
    for (unit, out) in units.iter().zip(bytes.chunks_mut(unit_bytes)) {
        unit.expand(out);
    }
    let skip = (first.0 * BLOCK_BYTES as u64 % unit_bytes as u64) as usize;
    let blocks = bytes[skip..].chunks(BLOCK_BYTES).take(count as usize);
    blocks.map(|block| Payload::Bytes(Arc::from(block))).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use flashweir_core::command::{StreamId, Tag};
    use flashweir_core::{Bytes, Duration};
    use flashweir_device::presets::preset;
    use flashweir_fs::f2fs;
    use flashweir_fs::port::block_on;
    use flashweir_host::{CfqConfig, Chain, DeadlineConfig, Dispatch, Effect, Input, Scheduler, Wait};
    use std::collections::BTreeSet;

    const OPTIONS: DeviceOptions = DeviceOptions { seed: 1, track_contents: true, planted: None };

    fn stack(name: &str, mode: FlushMode) -> Stack {
        Stack::new(device(name), mode)
    }

    fn device(name: &str) -> Device {
        let mut config = preset(name).unwrap();
        config.geometry.channels = 2;
        config.geometry.chips_per_channel = 2;
        config.geometry.blocks_per_plane = 128;
        config.ftl.over_provisioning = 0.3;
        config.ftl.metadata = flashweir_device::config::Metadata::Log;
        config.buffer.capacity = Bytes::mib(4);
        config.validate().unwrap();
        Device::new(config, OPTIONS)
    }

    fn tagged(block: u64, tag: u64) -> Write {
        Write { tags: [Tag(tag), Tag(0)], ..Write::new(Block(block), vec![Payload::Tag(block + 1); 2]) }
    }

    #[test]
    fn tasks_and_device_share_one_clock() {
        let mut stack = stack("rflush", FlushMode::RangeFlush);
        let (port, handle) = (stack.port(), stack.handle());
        let times = stack.block_on(async move {
            handle.sleep_until(Instant::ZERO + Duration::from_millis(3)).await;
            let slept = handle.now();
            port.write(Write::new(Block(8), vec![Payload::Tag(7)])).completed().await.unwrap();
            let written = handle.now();
            port.flush().completed().await.unwrap();
            let flushed = handle.now();
            let seen = port.read(Block(7), 3).completed().await.unwrap();
            assert_eq!(seen[..], [Payload::Zero, Payload::Tag(7), Payload::Zero]);
            [slept, written, flushed]
        });
        let [slept, written, flushed] = times.unwrap();
        // The emulator's link costs nothing; its program takes 1.3 ms, and the bus 100 µs (range-flush §6.2).
        assert_eq!(slept, Instant::ZERO + Duration::from_millis(3));
        assert_eq!(written, slept);
        assert_eq!(flushed, slept + Duration::from_micros(1_400));
        assert_eq!(stack.now(), flushed + Duration::from_micros(200));
    }

    /// The three configurations: what they make durable, and when they answer.
    #[test]
    fn a_range_flush_is_what_the_configuration_says() {
        for (mode, [of_7, of_8]) in [
            (FlushMode::Flush, [true, true]),
            (FlushMode::RangeFlush, [true, false]),
            (FlushMode::NoFlush, [false; 2]),
        ] {
            let mut stack = stack("rflush", mode);
            let port = stack.port();
            let done = stack.block_on(async move {
                for block in 0..50 {
                    port.write(tagged(4 * block, 7 + block % 2)).completed().await.unwrap();
                }
                port.range_flush(Selection { ranges: Vec::new(), tags: vec![Tag(7)] }).completed().await
            });
            assert_eq!(done, Some(Ok(Box::default())));
            let (stack, _) = stack.cut(OPTIONS, Tear::Likeliest);
            let there = |block: u64| {
                stack.with_device(|device| {
                    device.peek(Lpn(4 * block)).is_some_and(|content| content != Payload::Zero)
                })
            };
            assert!(
                (0..50).all(|block| there(block) == if block % 2 == 0 { of_7 } else { of_8 }),
                "{mode:?}"
            );
        }
    }

    #[test]
    fn time_advances_as_far_as_it_is_asked_to() {
        let at = |ms| Instant::ZERO + Duration::from_millis(ms);
        let mut stack = stack("mobile-ufs", FlushMode::RangeFlush);
        let (port, handle) = (stack.port(), stack.handle());
        let woke = stack.spawn_for(async move {
            handle.sleep_until(at(3)).await;
            port.write(tagged(0, 0)).completed().await.unwrap();
            handle.now()
        });
        assert!(stack.advance(at(1), 100));
        assert_eq!((stack.now(), stack.next(), woke.is_set()), (at(1), Some(at(3)), false));
        assert!(!stack.advance(at(1000), 2), "the write takes more turns");
        assert!(stack.advance(at(1000), 1_000_000));
        let woke = woke.take().unwrap();
        assert!(at(3) < woke && woke < at(1000), "each thing at its own instant: {woke:?}");
        assert_eq!((stack.now(), stack.handle().now()), (at(1000), at(1000)));
        // Time does not go back.
        assert!(stack.advance(at(5), 100));
        assert_eq!(stack.now(), at(1000));
    }

    #[test]
    fn a_cut_drops_the_tasks_and_their_port() {
        let mut first = stack("mobile-ufs", FlushMode::RangeFlush);
        let port = first.port();
        let task = port.clone();
        let waits = first.block_on(async move {
            task.write(Write::new(Block(3), vec![Payload::Tag(1)])).completed().await.unwrap();
            std::future::pending::<()>().await;
        });
        assert_eq!(waits, None, "nothing will ever come");
        let (mut second, _) = first.cut(OPTIONS, Tear::Likeliest);
        let refused = second.block_on(async move { port.read(Block(3), 1).completed().await });
        assert!(matches!(refused, Some(Err(_))), "{refused:?}");
        let port = second.port();
        let seen = second.block_on(async move { port.read(Block(3), 1).completed().await.unwrap() });
        assert_eq!(seen.unwrap()[..], [Payload::Zero], "it was in the volatile buffer");
    }

    /// Runs on a test device that appends everything at the end of its one segment: the offset of each append goes
    /// through two block layers to the ticket of its request. Appends are neither merged nor sorted.
    #[test]
    fn the_offset_of_an_append_reaches_the_port() {
        let layer = || BlockLayer::new(deadline(), LBAS);
        let mut layers = Chain::new().above(layer()).above(layer());
        let (pending, free, tickets) = (Vec::new(), Vec::new(), Tickets::default());
        let mut requests =
            Requests { pending, free, tickets, unit_bytes: BLOCK_BYTES, segment_blocks: 0, writes: None };
        let (mut said, mut waiting) = (Vec::new(), Vec::new());
        for blocks in [2usize, 1, 3] {
            let (progress, ticket) = requests.tickets.ticket();
            let place = requests.place(Pending { progress, range: None, written: None });
            let payloads = Contents::from(vec![Payload::Tag(1); blocks]);
            let command = Command { id: CommandId(place.into()), ..append(SegmentId(0), payloads, true) };
            layers.handle(Instant::ZERO, Input::Submit { command, submitter: 0 }, &mut said);
            waiting.push(ticket);
        }
        let (mut end, mut answers) = (0, Vec::new());
        layers.handle(Instant::ZERO, Input::Unplug, &mut said);
        while !said.is_empty() || !answers.is_empty() {
            for effect in std::mem::take(&mut said) {
                match effect {
                    Effect::Offer(offer) => {
                        let Op::SegAppend { segment: SegmentId(0), blocks, .. } = offer.command.op else {
                            panic!("{offer:?}")
                        };
                        answers.push(Input::Completed {
                            id: offer.command.id,
                            result: Ok(Done::Appended { offset: end }),
                        });
                        end += blocks;
                        layers.handle(Instant::ZERO, Input::Accepted, &mut said);
                    }
                    Effect::Dispatched(token) => requests.dispatched(Instant::ZERO, token),
                    Effect::Transferred(token) => requests.transferred(token),
                    Effect::Completed { token, result } => {
                        requests.completed(Instant::ZERO, token, Instant::ZERO, result);
                    }
                    Effect::At(at) => panic!("there is room until {at:?}"),
                }
            }
            if said.is_empty()
                && let Some(answer) = answers.pop()
            {
                layers.handle(Instant::ZERO, answer, &mut said);
            }
        }
        let offsets = waiting.into_iter().map(|ticket| block_on(ticket.appended()));
        assert_eq!(offsets.collect::<Vec<_>>(), [Ok(0), Ok(2), Ok(3)]);
    }

    /// The present devices have no segments and report that to the port, with a block layer or without.
    #[test]
    fn an_append_is_refused_by_a_device_without_segments() {
        for host in [None, Some(deadline())] {
            let mut stack = Stack::on(device("mobile-ufs"), FlushMode::Flush, host);
            let port = stack.port();
            let payloads = Contents::from(vec![Payload::Tag(1)]);
            let answer = stack.block_on(async move { port.append(SegmentId(3), payloads).appended().await });
            assert!(
                matches!(answer, Some(Err(PortError::Device(DeviceError::NotSupported(_))))),
                "{answer:?}"
            );
        }
    }

    /// A device whose mapping unit differs from a block: 8 KiB.
    #[test]
    fn blocks_need_not_be_mapping_units() {
        let mut stack = stack("mqsim-default", FlushMode::RangeFlush);
        assert_eq!(stack.with_device(|device| device.geometry().unit_bytes), 8192);
        let port = stack.port();
        let seen = stack.block_on(async move {
            let contents: Vec<Payload> =
                (1..=3).map(|byte| Payload::Bytes(Arc::from([byte; BLOCK_BYTES]))).collect();
            port.write(Write::new(Block(5), contents)).completed().await.unwrap();
            port.read(Block(4), 5).completed().await.unwrap()
        });
        let first_bytes: Vec<u8> = seen.unwrap().iter().map(|block| bytes_of(block)[4095]).collect();
        assert_eq!(first_bytes, [0, 1, 2, 3, 0]);
    }

    /// A file system made on the simulated device, whose power then fails.
    #[test]
    fn an_f2fs_on_the_device_survives_a_cut() {
        let mut first = stack("sata-mlc", FlushMode::RangeFlush);
        let port = first.port();
        let made = first.block_on(async move {
            let options = f2fs::Options::new(port.capacity_blocks());
            f2fs::mkfs(&port, &options).await.map_err(|error| error.to_string())?;
            port.flush().completed().await.map_err(|error| error.to_string()).map(|_| ())
        });
        assert_eq!(made, Some(Ok(())));
        let (mut second, _) = first.cut(OPTIONS, Tear::Drawn(3));
        let port: Rc<dyn BlockPort> = Rc::new(second.port());
        let report =
            second.block_on(async move { f2fs::check(port).await.map_err(|error| error.to_string()) });
        let report = report.unwrap().unwrap();
        assert!(report.is_good(), "{report:?}");
    }

    /// Application, VFS, F2FS, device: what was synced before a cut is there after it, and the volume is consistent,
    /// whatever the cut did to the rest.
    #[test]
    fn synced_files_survive_cuts_of_the_whole_stack() {
        use flashweir_fs::vfs::{Creds, MountOptions, OpenFlags, Sink, Source, SyncKind, Vfs};
        const FILES: u64 = 12;
        let name = |file: u64| format!("/file-{file}");
        for (mode, device, host) in [
            (FlushMode::RangeFlush, "rflush", None),
            (FlushMode::Flush, "mobile-ufs", None),
            (FlushMode::RangeFlush, "rflush", Some(deadline())),
            (FlushMode::Flush, "mobile-ufs", Some(HostConfig { depth: 2, ..deadline() })),
        ] {
            for seed in 0..6 {
                let mut first = Stack::on(self::device(device), mode, host.clone());
                let (port, handle): (Rc<dyn BlockPort>, _) = (Rc::new(first.port()), first.handle());
                let synced = first.block_on(async move {
                    f2fs::mkfs(&*port, &f2fs::Options::new(port.capacity_blocks())).await.unwrap();
                    let fs = f2fs::F2fs::mount(port).await.unwrap();
                    let vfs = Vfs::mount(fs, handle, MountOptions::default()).unwrap();
                    let process = vfs.process(Creds::ROOT);
                    for file in 0..FILES {
                        let flags = OpenFlags::READ_WRITE.create();
                        let open = process.open(name(file), flags, 0o644).await.unwrap();
                        open.pwrite(0, Source::bytes(&[1 + file as u8; 10_000])).await.unwrap();
                        // The last files are written and not synced.
                        if file < FILES - 3 {
                            open.sync(SyncKind::All).await.unwrap();
                        }
                        open.close().await.unwrap();
                    }
                });
                assert_eq!(synced, Some(()));
                let (mut second, _) = first.cut(OPTIONS, Tear::Drawn(seed));
                let (port, handle): (Rc<dyn BlockPort>, _) = (Rc::new(second.port()), second.handle());
                let checked = Rc::clone(&port);
                let report = second.block_on(async move { f2fs::check(checked).await.unwrap() }).unwrap();
                assert!(report.is_good(), "{device}, seed {seed}: {report:?}");
                let read = second.block_on(async move {
                    let fs = f2fs::F2fs::mount(port).await.unwrap();
                    let vfs = Vfs::mount(fs, handle, MountOptions::default()).unwrap();
                    let process = vfs.process(Creds::ROOT);
                    for file in 0..FILES - 3 {
                        let open = process.open(name(file), OpenFlags::READ, 0).await.unwrap();
                        let mut bytes = vec![0; 10_001];
                        let read = open.pread(0, Sink::bytes(&mut bytes)).await.unwrap();
                        assert_eq!((read, &bytes[..10_000]), (10_000, &[1 + file as u8; 10_000][..]));
                    }
                });
                assert_eq!(read, Some(()), "{device}, seed {seed}");
            }
        }
    }

    fn deadline() -> HostConfig {
        let scheduler = Scheduler::Deadline(DeadlineConfig::default());
        HostConfig { scheduler, depth: 64, ..HostConfig::default() }
    }

    /// Runs writes, a flush and reads in several tasks; returns the hash over all events of the device.
    fn mixed_work(stack: &mut Stack) -> u64 {
        for task in 0..8 {
            let port = stack.port_of(task);
            stack.spawn(async move {
                for round in 0..30 {
                    let block = 40 * u64::from(task) + round;
                    port.write(tagged(block, 1)).completed().await.unwrap();
                    if round % 10 == 9 {
                        port.flush().completed().await.unwrap();
                        let seen = port.read(Block(block - 4), 6).completed().await.unwrap();
                        assert_eq!(seen[5], Payload::Tag(block + 1), "the last write wins");
                        assert_eq!(seen[0], Payload::Tag(block - 3));
                    }
                }
            });
        }
        while stack.turn() {}
        stack.trace_hash()
    }

    /// Uses links that take time: on an ideal link, tasks of one instant may run in another order, since a dispatch
    /// wakes tasks that wait for its answer.
    #[test]
    fn a_block_layer_that_decides_nothing_changes_nothing() {
        let plain = HostConfig { merge_blocks_max: 0, depth: 65_536, ..HostConfig::default() };
        for name in ["mobile-ufs", "sata-mlc", "consumer-tlc-nvme"] {
            let without = mixed_work(&mut stack(name, FlushMode::RangeFlush));
            let mut with = Stack::with_block_layer(device(name), FlushMode::RangeFlush, plain.clone());
            assert_eq!(mixed_work(&mut with), without, "{name}");
        }
    }

    #[test]
    fn every_scheduler_gives_right_answers_and_finds_what_to_merge() {
        let cfq = Scheduler::Cfq(CfqConfig::default());
        for scheduler in [Scheduler::None, deadline().scheduler, cfq] {
            for (depth, is_busy) in [(1, true), (2, true), (1000, false)] {
                let host = HostConfig { scheduler, depth, ..HostConfig::default() };
                let run = || {
                    let device = device("mobile-ufs");
                    let mut stack = Stack::with_block_layer(device, FlushMode::RangeFlush, host.clone());
                    let hash = mixed_work(&mut stack);
                    (hash, stack.with_layer(|layer| *layer.metrics()).unwrap())
                };
                let (hash, metrics) = run();
                assert_eq!(metrics.submitted, 8 * 36);
                assert_eq!((metrics.completed, metrics.busy > 0), (metrics.submitted, is_busy), "{host:?}");
                assert_eq!(run(), (hash, metrics), "a run is a function of its configuration");
            }
        }
    }

    /// The link has fewer slots than the block layer assumes: the device is busy, and everything completes in the end.
    #[test]
    fn a_full_link_is_a_busy_device() {
        let host = HostConfig { depth: 1000, merge_blocks_max: 64, ..HostConfig::default() };
        let mut stack = Stack::with_block_layer(device("mobile-ufs"), FlushMode::Flush, host);
        let port = stack.port();
        stack.with_layer(BlockLayer::keep_depths);
        let done = stack.block_on(async move {
            let between = Write::new(Block(2), vec![Payload::Tag(3)]);
            let writes = (0..300).map(|block| tagged(3 * block, 0)).chain([between]);
            let tickets: Vec<Ticket> = writes.map(|write| port.write(write)).collect();
            for ticket in tickets {
                ticket.completed().await.unwrap();
            }
        });
        assert_eq!(done, Some(()));
        let (metrics, depths) =
            stack.with_layer(|layer| (*layer.metrics(), layer.take_depths())).expect("it has a block layer");
        assert!(metrics.busy > 0 && metrics.completed == 301, "{metrics:?}");
        assert_eq!(
            (metrics.front_merges + metrics.back_merges, metrics.overlap_waits),
            (1, 0),
            "{metrics:?}"
        );
        assert_eq!(depths.iter().map(|sample| sample.in_flight).max(), Some(32), "UFS has a queue of 32");
        assert_eq!(depths.last().map(|last| (last.in_flight, last.queued)), Some((0, 0)));
    }

    /// A request is dispatched when it leaves the host, which has one slot at the device here.
    #[test]
    fn moments_come_one_after_the_other() {
        let host = HostConfig { depth: 1, ..HostConfig::default() };
        let mut stack = Stack::with_block_layer(device("mobile-ufs"), FlushMode::Flush, host);
        let (port, handle) = (stack.port(), stack.handle());
        let times = stack.block_on(async move {
            let (first, second) = (port.write(tagged(0, 0)), port.write(tagged(9, 0)));
            first.dispatched().await;
            let dispatched = handle.now();
            first.transferred().await;
            let transferred = handle.now();
            first.completed().await.unwrap();
            let completed = handle.now();
            second.dispatched().await;
            [dispatched, transferred, completed, handle.now()]
        });
        let [dispatched, transferred, completed, second] = times.unwrap();
        assert_eq!(dispatched, Instant::ZERO);
        assert!(dispatched < transferred && transferred < completed, "{times:?}");
        assert_eq!(second, completed);
    }

    /// A host may use barriers on a device that has none: the block layer waits, and no cut shows a later epoch without
    /// all of an earlier one.
    #[test]
    fn a_legacy_device_keeps_epochs_through_every_cut() {
        const EPOCHS: u64 = 12;
        let begin = |wait| {
            let host = HostConfig { dispatch: Dispatch::Legacy(wait), ..deadline() };
            let mut stack = Stack::with_block_layer(device("mobile-ufs"), FlushMode::Flush, host);
            let port = stack.port();
            stack.spawn(async move {
                for epoch in 0..EPOCHS {
                    // Two members, the higher address first, with orderless ones in between.
                    for (place, order) in [(1, Order::Within), (0, Order::Barrier)] {
                        let block = 4 * (2 * epoch + place);
                        let order = Some((StreamId(1), order));
                        drop(port.write(Write { order, ..tagged(block, 0) }));
                        drop(port.write(tagged(1000 + block, 0)));
                    }
                }
            });
            stack
        };
        let mut stack = begin(Wait::TransferAndFlush);
        let mut turns = 0;
        while stack.turn() {
            turns += 1;
        }
        let metrics = stack.with_layer(|layer| *layer.metrics()).unwrap();
        assert_eq!((metrics.flushes, metrics.barriers, metrics.barriers_sent), (EPOCHS - 1, EPOCHS, 0));
        let mut seen = BTreeSet::new();
        for turn in 0..turns {
            let mut stack = begin(Wait::TransferAndFlush);
            (0..turn).for_each(|_| assert!(stack.turn()));
            let (stack, _) = stack.cut(OPTIONS, Tear::Drawn(turn));
            let is_there = |member: u64| {
                let lpn = Lpn(4 * member);
                stack.with_device(|device| device.peek(lpn).is_some_and(|content| content != Payload::Zero))
            };
            let there: Vec<bool> = (0..2 * EPOCHS).map(is_there).collect();
            let whole = there.chunks(2).take_while(|members| members[0] && members[1]).count();
            let begun =
                there.chunks(2).rposition(|members| members[0] || members[1]).map_or(0, |last| last + 1);
            assert!(begun <= whole + 1, "turn {turn}: {there:?}");
            seen.insert(whole);
        }
        assert!(seen.len() > EPOCHS as usize / 2, "the cuts show little: {seen:?}");
    }
}
