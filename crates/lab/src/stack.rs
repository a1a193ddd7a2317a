//! A host above a device, in virtual time: tasks (file systems, workloads) on one executor, a block port onto the
//! device behind its link.
//!
//! Place in the data flow: a task submits a request to [`Port`] and waits for its ticket; the request becomes a command,
//! and what the device answers wakes the task. [`Stack::turn`] takes whatever comes first, the device's next moment or
//! the tasks' next timer.
//!
//! Invariants: tasks and device share one clock, and neither sees time move while it works; a request is one command;
//! a power cut drops every task, and what a port is asked for afterwards is refused.
//!
//! Deliberately absent: a block layer. Requests go to the device as they come, and in their order.

use crate::live::{Finished, Live, Tear};
use flashweir_core::command::RangeFlush;
use flashweir_core::units::LBA_BYTES;
use flashweir_core::{
    Command, Data, DeviceError, Done, Executor, Instant, Lba, Op, Order, Payload, executor::Handle,
};
use flashweir_device::{Device, DeviceOptions, RecoveryReport};
use flashweir_fs::port::{
    Answer, BLOCK_BYTES, Block, BlockPort, InOrder, PortError, Progress, Request, Selection, Ticket, Write,
    bytes_of,
};
use std::cell::RefCell;
use std::fmt;
use std::future::Future;
use std::rc::Rc;
use std::sync::Arc;

/// What the stack makes of a host's wish for durability (spec 1.4: the three configurations of the RFLUSH paper).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum FlushMode {
    /// A range flush becomes a FLUSH.
    Flush,
    /// Each goes to the device as it is.
    #[default]
    RangeFlush,
    /// Neither goes anywhere. Nothing survives a power cut for sure.
    NoFlush,
}

impl FlushMode {
    /// All of them, in the paper's order.
    pub const ALL: [Self; 3] = [Self::Flush, Self::RangeFlush, Self::NoFlush];

    /// Its name in the paper.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Flush => "FLUSH",
            Self::RangeFlush => "RFLUSH",
            Self::NoFlush => "NOFLUSH",
        }
    }
}

/// Blocks of the command set in one block of the port.
pub(crate) const LBAS: u64 = BLOCK_BYTES as u64 / LBA_BYTES;

/// A request under way.
struct Pending {
    progress: Progress,
    /// Of a read, its range.
    range: Option<(Block, u32)>,
}

struct Shared {
    /// Absent after the power was cut.
    live: Option<Live>,
    now: Instant,
    mode: FlushMode,
    unit_bytes: usize,
    pending: Vec<Option<Pending>>,
    free: Vec<u32>,
    finished: Vec<Finished>,
}

/// The port of a [`Stack`].
#[derive(Clone)]
pub struct Port(Rc<RefCell<Shared>>);

impl fmt::Debug for Port {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Port({} blocks)", self.capacity_blocks())
    }
}

impl Shared {
    fn submit(&mut self, request: Request) -> Ticket {
        let Some(live) = &mut self.live else {
            return Ticket::done(Err(PortError::Device(DeviceError::NotSupported("anything without power"))));
        };
        let range = read_range(&request);
        let Some(command) = command(request, self.mode, self.unit_bytes == BLOCK_BYTES) else {
            return Ticket::done(Ok(Box::default()));
        };
        let (progress, ticket) = Ticket::new();
        progress.dispatched();
        let pending = Pending { progress, range };
        let place = self.free.pop().unwrap_or(self.pending.len() as u32);
        match self.pending.get_mut(place as usize) {
            Some(free) => *free = Some(pending),
            None => self.pending.push(Some(pending)),
        }
        live.submit_command(
            self.now,
            Command { id: flashweir_core::CommandId(place.into()), ..command },
            &mut self.finished,
        );
        ticket
    }
}

/// What a read asks for; `None` for other requests.
pub(crate) fn read_range(request: &Request) -> Option<(Block, u32)> {
    match *request {
        Request::Read { block, count } => Some((block, count)),
        _ => None,
    }
}

/// The command for a request; `None` if nothing is to be done.
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
        Request::Write(Write { block, payloads, tags, order, fua }) => {
            let (lba, blocks) = range(block, payloads.len());
            let data = if whole_units {
                Data::Units(payloads.into())
            } else {
                Data::Bytes(
                    payloads.iter().flat_map(|payload| bytes_of(payload).to_vec()).collect::<Vec<_>>().into(),
                )
            };
            let mut command = Command::new(0, Op::Write { lba, blocks, data });
            (command.tags, command.fua) = (tags, fua && mode != FlushMode::NoFlush);
            ordered(command, order)
        }
        Request::Discard { block, count, order } => {
            let (lba, blocks) = range(block, count as usize);
            ordered(Command::new(0, Op::Trim { lba, blocks }), order)
        }
        Request::Barrier(stream) => ordered(Command::new(0, Op::Barrier), Some((stream, Order::Barrier))),
        Request::Flush | Request::RangeFlush(_) if mode == FlushMode::NoFlush => None,
        Request::RangeFlush(Selection { ranges, tags }) if mode == FlushMode::RangeFlush => {
            let ranges = ranges.into_iter().map(|(block, count)| range(block, count as usize)).collect();
            plain(Op::RFlush(Box::new(RangeFlush { ranges, tags, segments: Vec::new() })))
        }
        Request::Flush | Request::RangeFlush(_) => plain(Op::Flush),
    }
}

impl BlockPort for Port {
    fn capacity_blocks(&self) -> u64 {
        let shared = self.0.borrow();
        shared.live.as_ref().map_or(0, |live| live.device().geometry().capacity_lbas() / LBAS)
    }

    fn submit(&self, request: Request) -> Ticket {
        self.0.borrow_mut().submit(request)
    }
}

impl Port {
    /// Looks at the device. Panics if its power was cut.
    pub fn with_device<T>(&self, look: impl FnOnce(&Device) -> T) -> T {
        look(self.0.borrow().live.as_ref().expect("the power is on").device())
    }
}

/// What a task will have given.
#[derive(Debug)]
pub struct Slot<T>(Rc<RefCell<Option<T>>>);

impl<T> Slot<T> {
    /// Whether it is there.
    pub fn is_set(&self) -> bool {
        self.0.borrow().is_some()
    }

    /// Takes it.
    pub fn take(&self) -> Option<T> {
        self.0.take()
    }
}

/// Tasks, a port, and a device.
pub struct Stack {
    executor: Executor,
    shared: Rc<RefCell<Shared>>,
    arrived: Vec<u64>,
}

impl fmt::Debug for Stack {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Stack({} tasks at {:?})", self.executor.len(), self.now())
    }
}

impl Stack {
    /// A stack on a device that has just woken up, at virtual time zero.
    pub fn new(device: Device, mode: FlushMode) -> Self {
        Self::on(Live::new(device), mode)
    }

    /// The same, for who compares media ([`flashweir_device::Media::digest`]), which costs a look at every byte.
    pub fn with_digest(device: Device, mode: FlushMode) -> Self {
        Self::on(Live::with_digest(device), mode)
    }

    fn on(mut live: Live, mode: FlushMode) -> Self {
        live.note_arrivals();
        let shared = Shared {
            now: live.now(),
            unit_bytes: live.device().geometry().unit_bytes as usize,
            live: Some(live),
            mode,
            pending: Vec::new(),
            free: Vec::new(),
            finished: Vec::new(),
        };
        Self { executor: Executor::new(), shared: Rc::new(RefCell::new(shared)), arrived: Vec::new() }
    }

    /// A port onto the device, for a file system.
    pub fn port(&self) -> Port {
        Port(Rc::clone(&self.shared))
    }

    /// The executor's handle, for tasks that start others or sleep.
    pub fn handle(&self) -> Handle {
        self.executor.handle()
    }

    /// Virtual time since the device woke up.
    pub fn now(&self) -> Instant {
        self.shared.borrow().now
    }

    /// Looks at the device.
    pub fn with_device<T>(&self, look: impl FnOnce(&Device) -> T) -> T {
        self.port().with_device(look)
    }

    /// The instant before which the power may fail now: that of the next turn.
    pub fn cut_instant(&self) -> Instant {
        let now = self.now();
        if self.executor.has_ready() {
            return now;
        }
        let device = self.shared.borrow().live.as_ref().and_then(Live::next);
        let next = [device, self.executor.next_timer()].into_iter().flatten().min();
        next.map_or(now, |next| next.max(now))
    }

    /// A hash over everything that the device did and when.
    pub fn trace_hash(&self) -> u64 {
        self.shared.borrow().live.as_ref().expect("the power is on").trace_hash()
    }

    /// Begins a task.
    pub fn spawn(&mut self, future: impl Future<Output = ()> + 'static) {
        self.executor.spawn(future);
    }

    /// Lets the tasks work, or else lets the next thing happen; false if nothing ever will.
    pub fn turn(&mut self) -> bool {
        if self.executor.has_ready() {
            self.executor.run_ready(self.now());
            self.deliver();
            return true;
        }
        let now = {
            let mut shared = self.shared.borrow_mut();
            let shared = &mut *shared;
            let live = shared.live.as_mut().expect("the power is on");
            match (live.next(), self.executor.next_timer()) {
                (None, None) => return false,
                (Some(device), timer) if timer.is_none_or(|timer| device <= timer) => {
                    live.step(&mut shared.finished);
                    shared.now = shared.now.max(live.now());
                }
                (_, timer) => shared.now = timer.expect("the device's moment comes before no timer"),
            }
            shared.now
        };
        self.deliver();
        self.executor.run_ready(now);
        self.deliver();
        true
    }

    /// Tells tickets what has happened to their requests.
    fn deliver(&mut self) {
        let mut shared = self.shared.borrow_mut();
        let shared = &mut *shared;
        if let Some(live) = &mut shared.live {
            live.take_arrived(&mut self.arrived);
        }
        for place in self.arrived.drain(..) {
            if let Some(pending) = &shared.pending[place as usize] {
                pending.progress.transferred();
            }
        }
        for Finished { token, result, .. } in shared.finished.drain(..) {
            let pending = shared.pending[token as usize].take().expect("a request finishes once");
            shared.free.push(token as u32);
            pending.progress.complete(answer(result, pending.range, shared.unit_bytes));
        }
    }

    /// Begins a task whose answer is kept.
    pub fn spawn_for<T: 'static>(&mut self, future: impl Future<Output = T> + 'static) -> Slot<T> {
        let slot = Slot(Rc::new(RefCell::new(None)));
        let result = Rc::clone(&slot.0);
        self.executor.spawn(async move {
            let value = future.await;
            *result.borrow_mut() = Some(value);
        });
        slot
    }

    /// Runs until a task gives its answer; `None` if it waits for something that never comes.
    pub fn block_on<T: 'static>(&mut self, future: impl Future<Output = T> + 'static) -> Option<T> {
        let slot = self.spawn_for(future);
        while !slot.is_set() {
            if !self.turn() {
                return None;
            }
        }
        slot.take()
    }

    /// Cuts the power now: the tasks are gone, and the device comes back by its own recovery, at virtual time zero.
    pub fn cut(mut self, options: DeviceOptions, tear: Tear) -> (Self, RecoveryReport) {
        self.executor.clear();
        let (live, now, mode) = {
            let mut shared = self.shared.borrow_mut();
            (shared.live.take().expect("the power is on"), shared.now, shared.mode)
        };
        let (live, report) = live.cut(now, options, tear);
        (Self::on(live, mode), report)
    }
}

impl Drop for Stack {
    /// Tasks hold what holds the executor.
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

/// The contents of blocks, cut out of the mapping units that cover them.
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
    use flashweir_core::command::Tag;
    use flashweir_core::{Bytes, Duration};
    use flashweir_device::presets::preset;
    use flashweir_fs::f2fs;

    const OPTIONS: DeviceOptions = DeviceOptions { seed: 1, track_contents: true, planted: None };

    fn stack(name: &str, mode: FlushMode) -> Stack {
        let mut config = preset(name).unwrap();
        config.geometry.channels = 2;
        config.geometry.chips_per_channel = 2;
        config.geometry.blocks_per_plane = 128;
        config.ftl.over_provisioning = 0.3;
        config.ftl.metadata = flashweir_device::config::Metadata::Log;
        config.buffer.capacity = Bytes::mib(4);
        config.validate().unwrap();
        Stack::new(Device::new(config, OPTIONS), mode)
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
        // The emulator's link costs nothing, its program 1.3 ms and 100 µs of the bus (spec 1.4).
        assert_eq!(slept, Instant::ZERO + Duration::from_millis(3));
        assert_eq!(written, slept);
        assert_eq!(flushed, slept + Duration::from_micros(1_400));
        assert_eq!(stack.now(), flushed + Duration::from_micros(200));
    }

    /// The three configurations: what they make durable, and when the answer comes.
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
                    device
                        .peek(flashweir_core::Lpn(4 * block))
                        .is_some_and(|content| content != Payload::Zero)
                })
            };
            assert!(
                (0..50).all(|block| there(block) == if block % 2 == 0 { of_7 } else { of_8 }),
                "{mode:?}"
            );
        }
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

    /// Blocks of a device whose mapping unit is another: 8 KiB.
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

    /// Application, vfs, F2FS, device: what was synced before a cut is there after it, and the volume is good, whatever
    /// the cut did to the rest.
    #[test]
    fn synced_files_survive_cuts_of_the_whole_stack() {
        use flashweir_fs::vfs::{Creds, MountOptions, OpenFlags, Sink, Source, SyncKind, Vfs};
        const FILES: u64 = 12;
        let name = |file: u64| format!("/file-{file}");
        for (mode, device) in [(FlushMode::RangeFlush, "rflush"), (FlushMode::Flush, "mobile-ufs")] {
            for seed in 0..6 {
                let mut first = stack(device, mode);
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
                        // The last ones are written and not synced.
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
}
