//! The world of a mount: one thread with the device, the file system and a task for each request of the kernel.
//!
//! Place in the data flow: jobs come through one bounded queue, or from the kernel itself while the world has nothing to do (then
//! [`Bell`] wakes it for what is in the queue); virtual time follows the wall clock, or runs as fast as possible while a request waits. The
//! kernel's knowledge outlives a power cut in [`Told`]; everything else is rebuilt.
//!
//! Invariants: while the power is off every job is dropped, which answers EIO; the power comes back when the kernel has dropped every page
//! from before, so that none of them is written to the recovered file system.

use super::bell::Bell;
use super::config::MountConfig;
use super::kernel::{NodeId, Notifier, Place};
use super::lazyfs::{COMMANDS, Command, Kept};
use super::medium::{Held, Medium, OpenImage, Unkept, make};
use super::message::{Message, Own, QUEUE_MAX, Queue, Turn};
use super::ready::Ready;
use super::table::{Due, Name, OpenAs, Table, Told};
use crate::clock::{Clock, Speed, civil_time};
use crate::control::{Ask, CutDone, CutOrder, DiskStatus, Reply, Status};
use crate::memory::GiveBack;
use flashweir_core::{Duration, Instant};
use flashweir_device::RecoveryReport;
use flashweir_device::config::Metadata;
use flashweir_fs::port::{BLOCK_BYTES, BlockPort as _};
use flashweir_fs::vfs::Vfs;
use flashweir_fs::{AnyFs, Kind, Mode};
use flashweir_sim::live::Tear;
use flashweir_sim::stack::Stack;
use flashweir_sim::volume::mount_on;
use std::cell::Cell;
use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::ops::ControlFlow;
use std::rc::Rc;
use std::sync::Arc;
use std::sync::mpsc::{Receiver, Sender, SyncSender, TryRecvError, sync_channel};
use std::time::Duration as WallDuration;

/// Most messages that are taken before events are handled, and most events before the queue is checked again.
const TURNS_MAX: u32 = 256;

/// Longest time between two checks.
const NAP: WallDuration = WallDuration::from_secs(1);

/// Longest time for which the world polls for requests after an answer; a client that takes longer than that is not slowed down noticeably
/// by a wake-up.
const LINGER_MAX: WallDuration = WallDuration::from_micros(50);

/// Maximum number of times that polling is skipped after it found nothing.
const SKIPS_MAX: u32 = 1024;

/// Most messages that tidy up and wait.
const UNTIDY_MAX: usize = 64;

/// Pause between attempts to write an image.
const SAVE_PAUSE: WallDuration = WallDuration::from_secs(5);

/// How long requests that were begun may take before the cache is cleared, virtual time.
const PATIENCE: Duration = Duration::from_secs(1);

/// Virtual time beside the wall clock.
#[derive(Debug)]
struct Pace {
    clock: Clock,
    /// Virtual time of the stack less that of the clock.
    ahead_ns: i64,
}

impl Pace {
    fn now(&self) -> Instant {
        let clock = self.clock.virtual_at(self.clock.wall()).as_nanos();
        Instant::from_nanos(clock.saturating_add_signed(self.ahead_ns))
    }

    /// Sets the virtual time of the stack to `now`.
    fn set(&mut self, now: Instant) {
        let clock = self.clock.virtual_at(self.clock.wall()).as_nanos();
        self.ahead_ns = now.as_nanos() as i64 - clock as i64;
    }
}

enum Power {
    On,
    /// The power is off until this time of the wall clock, and until the kernel has dropped its pages.
    Off {
        until: WallDuration,
        is_let_go: bool,
        names: Vec<Name>,
        done: CutDone,
        reply: SyncSender<Reply>,
    },
    /// The file system could not be mounted again, for this reason.
    Lost(String),
}

/// Time after which F2FS makes a checkpoint without a call that needs one, as on Linux.
const CHECKPOINT_INTERVAL: Duration = Duration::from_secs(60);

struct World {
    queue: Receiver<Message<AnyFs>>,
    sender: Queue<AnyFs>,
    bell: Arc<Bell>,
    inbox: VecDeque<Message<AnyFs>>,
    /// Messages that only tidy up, in their order; see [`Turn::Tidies`].
    untidy: VecDeque<Message<AnyFs>>,
    notifier: Option<Notifier>,
    /// `None` before the kernel is there and after it has gone.
    own: Option<Own<AnyFs>>,
    /// It waits for requests by itself: since it took one, and until it has to wait for something else to answer one.
    place: Option<Place>,
    /// Whether there were messages since it last had nothing to do.
    is_asked: bool,
    /// Whether it looks for more after an answer.
    patience: Patience,
    /// How long it looks for more after an answer; it needs a processor for that.
    linger: WallDuration,
    config: MountConfig,
    give_back: GiveBack,
    mode: Mode,
    /// `None` only at the end.
    held: Option<Held>,
    /// `None` only while its power is being cut.
    stack: Option<Stack>,
    table: Option<Rc<Table<AnyFs>>>,
    power: Power,
    pace: Pace,
    /// Requests that have not been answered.
    outstanding: Rc<Cell<u64>>,
    /// Tasks that free what the kernel has forgotten.
    forgetting: Rc<Cell<u64>>,
    cuts: u32,
}

/// Runs the world of a mount from its beginning to its end. `ready` is told when it can be mounted, or why not.
pub(super) fn run(
    mut config: MountConfig,
    medium: Medium,
    ready: &Sender<Result<Ready, String>>,
) -> Result<(), String> {
    let path = medium.path().display().to_string();
    let named = |why| format!("{path}: {why}");
    let opened = medium.open(config.flush, config.mount.read_only);
    let begun = opened.and_then(|(held, mut stack)| {
        let mode = match mode_of(&config, &mut stack) {
            Ok(mode) => mode,
            Err(why) => {
                // No file system was mounted: a volume stays closed, an image as it is.
                let _ = held.close(stack, true);
                return Err(named(why));
            }
        };
        Ok((held, stack, mode))
    });
    let (held, stack, mode) = match begun {
        Ok(begun) => begun,
        Err(error) => {
            let _ = ready.send(Err(error));
            return Ok(());
        }
    };
    config.mount.epoch_seconds = civil_time().seconds;
    World::live(config, held, stack, mode, &path, ready)
}

/// How the file system of a medium is mounted, which is made first if that was asked for.
fn mode_of(config: &MountConfig, stack: &mut Stack) -> Result<Mode, String> {
    let (port, wanted) = (stack.port(), config.make);
    let kind = stack.block_on(async move {
        match (Kind::find(&port).await.map_err(|error| error.to_string())?, wanted) {
            (Ok(_), Some(_)) => Err("there is a file system already: expected no --mkfs".to_owned()),
            (Ok(kind), None) => Ok(kind),
            (Err(_), Some(kind)) => make(&port, kind).await.map(|()| kind),
            (Err(_), None) => Err("no volume of ext4, F2FS or ALFS; --mkfs makes one".to_owned()),
        }
    });
    let kind = kind.unwrap_or_else(|| Err("the device does not answer".into()))?;
    stack.port().with_disk(|device, host_ftl| (config.choose)(kind, device, host_ftl))
}

impl World {
    fn live(
        config: MountConfig,
        held: Held,
        stack: Stack,
        mode: Mode,
        path: &str,
        ready: &Sender<Result<Ready, String>>,
    ) -> Result<(), String> {
        let (messages, queue) = sync_channel(QUEUE_MAX);
        let bell = match Bell::new() {
            Ok(bell) => Arc::new(bell),
            Err(error) => {
                let _ = held.close(stack, true);
                let _ = ready.send(Err(format!("{path}: {error}")));
                return Ok(());
            }
        };
        let sender = Queue { messages, bell: Some(Arc::clone(&bell)) };
        let pace = Pace { clock: Clock::new(config.speed), ahead_ns: 0 };
        let mut world = Self {
            queue,
            sender,
            bell,
            inbox: VecDeque::new(),
            untidy: VecDeque::new(),
            notifier: None,
            own: None,
            place: None,
            is_asked: false,
            patience: Patience::default(),
            linger: match std::thread::available_parallelism() {
                Ok(processors) if processors.get() > 1 => config.spin.min(LINGER_MAX),
                _ => WallDuration::ZERO,
            },
            config,
            give_back: GiveBack::default(),
            mode,
            held: Some(held),
            stack: Some(stack),
            table: None,
            power: Power::On,
            pace,
            outstanding: Rc::default(),
            forgetting: Rc::default(),
            cuts: 0,
        };
        if let Err(error) = world.mount(BTreeMap::new(), 1) {
            if let (Some(held), Some(stack)) = (world.held.take(), world.stack.take()) {
                // As in `run`.
                let _ = held.close(stack, true);
            }
            let _ = ready.send(Err(format!("{path}: {error}")));
            return Ok(());
        }
        let (device, bytes) = world.stack().with_device(|device| {
            let geometry = device.geometry();
            (device.config().name.clone(), geometry.user_units * geometry.unit_bytes)
        });
        let begun = Ready::new(
            world.sender.clone(),
            world.mode.kind.title(),
            device,
            bytes,
            !world.config.write_through,
        );
        world.pace.set(world.stack().now());
        if ready.send(Ok(begun)).is_err() {
            return Ok(());
        }
        while world.turn().is_continue() {}
        world.end()
    }

    /// Mounts the file system of the stack.
    fn mount(&mut self, told: BTreeMap<u64, Told>, next_file: u64) -> Result<(), String> {
        let stack = self.stack.as_mut().expect("the power is on");
        let (port, handle) = (stack.port(), stack.handle());
        let (flush, mut mode, options) = (self.config.flush, self.mode.clone(), self.config.mount.clone());
        let (cuts, recorder) = (self.cuts, self.config.recorder.clone());
        let writes_back = !self.config.write_through;
        // A test rig for LazyFS wants nothing on the device that was not synced.
        let interval = self.config.lazyfs.is_none().then_some(CHECKPOINT_INTERVAL);
        (mode.f2fs.checkpoint_interval, mode.alfs.checkpoint_interval) = (interval, interval);
        let table: Option<Result<Table<AnyFs>, String>> = stack.block_on(async move {
            let fs =
                mount_on(Rc::new(port.clone()), flush, &mode).await.map_err(|error| error.to_string())?;
            let vfs = Vfs::mount(fs, handle, options).map_err(|error| error.to_string())?;
            vfs.set_civil(civil_time());
            let table =
                Table::new(vfs, port, told, next_file, cuts).await.map_err(|error| error.to_string())?;
            Ok(table.recorded(recorder).with_write_back(writes_back))
        });
        let table = table.unwrap_or_else(|| Err("the device does not answer".into()))?;
        self.table = Some(Rc::new(table));
        Ok(())
    }

    fn stack(&self) -> &Stack {
        self.stack.as_ref().expect("the power is on")
    }

    fn stack_mut(&mut self) -> &mut Stack {
        self.stack.as_mut().expect("the power is on")
    }

    /// Messages, what happens, and a wait until there is more of either; breaks at the end.
    fn turn(&mut self) -> ControlFlow<()> {
        self.is_asked |= self.take_all()?;
        let is_idle = self.is_idle();
        self.leave_others_room();
        if is_idle && !(std::mem::take(&mut self.is_asked) && self.linger()?) {
            match self.untidy.is_empty() {
                true => self.wait(),
                false => self.tidy()?,
            }
        }
        ControlFlow::Continue(())
    }

    /// Takes the messages that were sent; returns whether there were any.
    fn take_all(&mut self) -> ControlFlow<(), bool> {
        for turn in 0..TURNS_MAX {
            let message = match self.inbox.pop_front() {
                Some(message) => message,
                None => match self.queue.try_recv() {
                    Ok(message) => message,
                    Err(TryRecvError::Empty) => return ControlFlow::Continue(turn > 0),
                    Err(TryRecvError::Disconnected) => return ControlFlow::Break(()),
                },
            };
            if turn == 0 {
                self.catch_up();
            }
            self.take(message)?;
        }
        ControlFlow::Continue(true)
    }

    /// A client that got an answer asks again soon: for a while the world polls for requests itself, so that no thread has to be woken for
    /// them. True if there is more to do than to wait.
    fn linger(&mut self) -> ControlFlow<(), bool> {
        if self.own.is_none() || !matches!(self.power, Power::On) || !self.patience.lasts() {
            return ControlFlow::Continue(false);
        }
        let clock = self.pace.clock.clone();
        let mut until = clock.wall() + self.linger;
        while self.outstanding.get() == 0 && clock.wall() < until {
            if let Ok(message) = self.queue.try_recv() {
                self.inbox.push_back(message);
                return ControlFlow::Continue(true);
            }
            match self.own.as_mut().map_or(Ok(None), Own::next) {
                Ok(Some(message)) => {
                    self.patience.is_rewarded();
                    if self.place.is_none() {
                        self.place = self.own.as_ref().and_then(|own| own.inlet.hold());
                    }
                    self.catch_up();
                    self.take(message)?;
                    if !self.is_idle() {
                        return ControlFlow::Continue(true);
                    }
                    until = clock.wall() + self.linger;
                }
                Ok(None) => match self.untidy.pop_front() {
                    Some(message) => {
                        self.begin(message)?;
                        if !self.is_idle() {
                            return ControlFlow::Continue(true);
                        }
                    }
                    None => std::hint::spin_loop(),
                },
                Err(_) => self.disown(),
            }
        }
        ControlFlow::Continue(false)
    }

    /// A request that waits for the device may take long, and while the power is off the kernel drops pages only when its requests are
    /// answered: so the other threads read requests meanwhile.
    fn leave_others_room(&mut self) {
        if self.outstanding.get() > 0 || !matches!(self.power, Power::On) {
            self.place = None;
        }
    }

    /// The mount has ended: the threads have to see that, too.
    fn disown(&mut self) {
        (self.own, self.place) = (None, None);
    }

    /// Handles the events that are due; returns false if there are more.
    fn advance(&mut self) -> bool {
        let now = self.pace.now();
        self.stack_mut().advance(now, TURNS_MAX)
    }

    /// It is now in the stack and in its file system.
    fn catch_up(&mut self) {
        if matches!(self.power, Power::On) {
            self.advance();
            if let Some(table) = &self.table {
                table.vfs().set_civil(civil_time());
            }
        }
    }

    /// Begins what a message asks for, as soon as it may be.
    fn take(&mut self, message: Message<AnyFs>) -> ControlFlow<()> {
        match message {
            Message::Job(Turn::Tidies, _) | Message::Forget(_) if self.untidy.len() < UNTIDY_MAX => {
                self.untidy.push_back(message);
                return ControlFlow::Continue(());
            }
            Message::Job(Turn::Looks, _) => {}
            _ => self.tidy()?,
        }
        self.begin(message)
    }

    /// Begins all that tidies up.
    fn tidy(&mut self) -> ControlFlow<()> {
        while let Some(message) = self.untidy.pop_front() {
            self.begin(message)?;
        }
        ControlFlow::Continue(())
    }

    fn begin(&mut self, message: Message<AnyFs>) -> ControlFlow<()> {
        match message {
            Message::Job(_, job) => {
                if let Some(kept) = self.table.as_ref().and_then(|table| table.take_crash(Due::Next)) {
                    self.crash(kept);
                }
                // Without power its reply says EIO.
                if let (Power::On, Some(table)) = (&self.power, &self.table) {
                    let task = job(Rc::clone(table));
                    let running = Running::new(&self.outstanding);
                    self.stack_mut().spawn(async move {
                        let _running = running;
                        task.await;
                    });
                }
            }
            Message::Forget(forgotten) => {
                if let Some(table) = &self.table {
                    let (table, running) = (Rc::clone(table), Running::new(&self.forgetting));
                    self.stack_mut().spawn(async move {
                        let _running = running;
                        table.forget(forgotten).await;
                    });
                }
            }
            Message::Kernel(notifier, own) => {
                self.notifier = Some(notifier);
                self.own = Some(own);
            }
            Message::Lazy(command, reply) => self.lazy(command, reply),
            Message::Ask(Ask::Cut(order), reply) => self.cut(&order, reply),
            Message::Ask(ask, reply) => {
                let answer = match ask {
                    Ask::Status => Reply::Status(self.status()),
                    Ask::Save(_) => {
                        Reply::Error("it is mounted: its image is written when the mount ends".into())
                    }
                    _ => Reply::Error("a mount is ended by umount or Ctrl-C".into()),
                };
                let _ = reply.try_send(answer);
            }
            Message::Invalidated => {
                if let Power::Off { is_let_go, .. } = &mut self.power {
                    *is_let_go = true;
                }
            }
            Message::End => return ControlFlow::Break(()),
        }
        ControlFlow::Continue(())
    }

    /// Lets things happen; true if nothing is left to do now.
    fn is_idle(&mut self) -> bool {
        if let Some(kept) = self.table.as_ref().and_then(|table| table.take_crash(Due::Now)) {
            self.crash(kept);
        }
        self.power_on();
        if !matches!(self.power, Power::On) {
            return true;
        }
        if self.config.speed == Speed::Max && self.outstanding.get() > 0 {
            let mut is_moving = true;
            for _ in 0..TURNS_MAX {
                if self.outstanding.get() == 0 || !is_moving {
                    break;
                }
                is_moving = self.stack_mut().turn();
            }
            let now = self.stack().now();
            self.pace.set(now);
            if self.outstanding.get() > 0 {
                return !is_moving;
            }
        }
        self.advance()
    }

    /// Waits for a message or for the next event. Shortly before an event for which a request waits it does not sleep.
    fn wait(&mut self) {
        if let (Power::On, Some(stack)) = (&self.power, &self.stack) {
            let (watch, give_back) = (&mut self.give_back, self.config.give_back);
            if let Some(line) = stack.with_device(|device| watch.look(device, give_back)) {
                (self.config.say)(line);
            }
        }
        let clock = self.pace.clock.clone();
        let span = match &self.power {
            Power::On => {
                let now = self.pace.now();
                self.stack().next().map(|next| clock.wall_of(next.saturating_since(now)))
            }
            Power::Off { until, .. } => Some(until.saturating_sub(clock.wall())),
            Power::Lost(_) => None,
        };
        let span = span.unwrap_or(NAP).min(NAP);
        let spins = self.outstanding.get() > 0;
        let deadline = clock.wall() + span;
        let sleep = if spins { span.saturating_sub(self.config.spin) } else { span };
        if sleep > WallDuration::ZERO {
            self.sleep(sleep);
            if !self.inbox.is_empty() {
                return;
            }
        }
        while spins && clock.wall() < deadline {
            if let Ok(message) = self.queue.try_recv() {
                return self.inbox.push_back(message);
            }
            std::hint::spin_loop();
        }
    }

    /// Sleeps until there is a message, or a request if it waits for those itself.
    fn sleep(&mut self, most: WallDuration) {
        self.leave_others_room();
        self.bell.prepare();
        if let Ok(message) = self.queue.try_recv() {
            self.bell.end();
            return self.inbox.push_back(message);
        }
        let is_asked = self.bell.sleep(self.place.as_ref().map(Place::device), most);
        match self.queue.try_recv() {
            Ok(message) => self.inbox.push_back(message),
            Err(_) if !is_asked => {}
            Err(_) => match self.own.as_mut().map_or(Ok(None), Own::next) {
                Ok(message) => self.inbox.extend(message),
                Err(_) => self.disown(),
            },
        }
    }

    // Power.

    /// Cuts the power of the device, which recovers at once. The error says what its recovery could not read.
    fn cut_stack(&mut self, tear: Tear) -> (RecoveryReport, Result<(), String>) {
        let stack = self.stack.take().expect("the power is on");
        let held = self.held.as_ref().expect("it is not the end yet");
        let (stack, report, recovered) = held.cut(stack, tear);
        self.stack = Some(stack);
        (report, recovered)
    }

    fn cut(&mut self, order: &CutOrder, reply: SyncSender<Reply>) {
        let refused = match &self.power {
            _ if order.export.as_ref().is_some_and(|export| *export != self.config.name()) => {
                let (wanted, own) = (order.export.as_deref().unwrap_or_default(), self.config.name());
                Some(format!("there is no export `{wanted}`; there is `{own}`"))
            }
            Power::Off { .. } => Some("the power is off already".to_owned()),
            Power::Lost(why) => Some(why.clone()),
            Power::On
                if self.stack().with_device(|device| device.config().ftl.metadata == Metadata::None) =>
            {
                Some("ftl.metadata is none: nothing could be recovered".to_owned())
            }
            Power::On => None,
        };
        if let Some(why) = refused {
            let _ = reply.try_send(Reply::Error(why));
            return;
        }
        let tear = order.seed.map_or(Tear::Likeliest, Tear::Drawn);
        let (told, next_file) = self.table.take().map(|table| table.told()).unwrap_or_default();
        let requests_lost = self.outstanding.get();
        let (report, recovered) = self.cut_stack(tear);
        self.cuts += 1;
        let numbers: Vec<u64> = told.keys().copied().collect();
        let names: Vec<Name> = told.values().flat_map(|told| told.names.iter().cloned()).collect();
        let told = told
            .into_iter()
            .map(|(number, told)| (number, Told { names: Default::default(), ..told }))
            .collect();
        let mounted = recovered.and_then(|()| self.mount(told, next_file));
        let done = CutDone {
            export: self.config.name(),
            requests_lost,
            connections_dropped: 0,
            pages_read: report.pages_read,
            steps: report.steps,
            units: report.units,
            recovery_ns: report.time.as_nanos(),
            on_threads: false,
        };
        let spent = match self.config.speed {
            Speed::Max => Duration::ZERO,
            Speed::Scaled(_) => report.time + self.stack().now().since(Instant::ZERO),
        };
        let off = Duration::from_nanos(order.off_ns).max(spent);
        self.power = match mounted {
            Ok(()) => {
                let until = self.pace.clock.wall() + self.pace.clock.wall_of(off);
                Power::Off { until, is_let_go: false, names, done, reply }
            }
            Err(why) => {
                let why = format!("the file system does not come back: {why}");
                let _ = reply.try_send(Reply::Error(why.clone()));
                Power::Lost(why)
            }
        };
        // The kernel may write pages out before it drops them, and waits for an answer: so another thread notifies it.
        let (notifier, sender) = (self.notifier.clone(), self.sender.clone());
        apart(move |may_tell| {
            for number in numbers {
                if let Some(notifier) = notifier.as_ref().filter(|_| may_tell) {
                    // What the kernel has already forgotten, it need not drop.
                    let _ = notifier.forget_pages(NodeId(number));
                }
            }
            sender.send(Message::Invalidated);
        });
    }

    // As in LazyFS, programs notice the power cut only by the data that are lost.

    fn lazy(&mut self, command: Command, reply: SyncSender<String>) {
        let table = match (&self.power, &self.table) {
            (Power::On, Some(table)) => Rc::clone(table),
            _ => return drop(reply.try_send("the power is off".into())),
        };
        let answer = match command {
            Command::ClearCache => return self.clear_cache(reply),
            Command::Fault(fault) => {
                let roots = self.config.lazyfs.as_ref().and_then(|lazyfs| lazyfs.root.clone());
                let directory = self.config.directory.clone();
                let roots: Vec<_> =
                    roots.into_iter().chain(directory.canonicalize()).chain([directory]).collect();
                match table.arm(fault.below(&roots)) {
                    Ok(()) => "the fault waits for its operation".to_owned(),
                    Err(error) => error.to_string(),
                }
            }
            Command::Checkpoint => {
                self.stack_mut().spawn(async move {
                    let synced = table.vfs().sync_all().await;
                    let _ = reply.try_send(match synced {
                        Ok(()) => "everything is written".into(),
                        Err(errno) => format!("not everything could be written: {errno}"),
                    });
                });
                return;
            }
            Command::Usage => {
                let (pages, capacity) = (table.vfs().cached_pages(), self.config.mount.cache.capacity_pages);
                format!(
                    "{pages} of {capacity} pages are in memory ({:.2} %)",
                    100.0 * pages as f64 / capacity as f64
                )
            }
            Command::Report => format!("{} pages are not synced", table.vfs().dirty_pages()),
            Command::Help => COMMANDS.join("\n"),
        };
        let _ = reply.try_send(answer);
    }

    /// The power goes and is back at once: what was not synced is gone. Returns the files that were open, and what the kernel knows.
    fn restart(&mut self) -> Result<(BTreeMap<u64, OpenAs>, Known), String> {
        let table = self.table.take().ok_or("the file system is not there")?;
        let (files, (told, next_file), faults) = (table.open_files(), table.told(), table.faults.take());
        drop(table);
        let numbers = told.keys().copied().collect();
        let names = told.values().flat_map(|told| told.names.iter().cloned()).collect();
        self.cut_stack(Tear::Likeliest).1?;
        self.mount(told, next_file)?;
        self.table.as_ref().expect("it was mounted").faults.replace(faults);
        Ok((files, (numbers, names)))
    }

    /// What was open is open again, and parts of writes that a fault keeps are written.
    fn reopen(&mut self, files: BTreeMap<u64, OpenAs>, kept: Vec<Kept>) -> Result<(), String> {
        let table = Rc::clone(self.table.as_ref().expect("it was mounted"));
        let written = self.stack_mut().block_on(async move {
            table.reopen(files).await;
            for kept in kept {
                table.write_kept(&kept).await.map_err(|errno| format!("{}: {errno}", kept.file))?;
            }
            table.vfs().sync_all().await.map_err(|errno| errno.to_string())
        });
        written.unwrap_or_else(|| Err("the device does not answer".into()))?;
        let now = self.stack().now();
        self.pace.set(now);
        Ok(())
    }

    fn clear_cache(&mut self, reply: SyncSender<String>) {
        // What was begun is done first, unless it waits for something that has not begun.
        let until = self.stack().now().saturating_add(PATIENCE);
        while self.outstanding.get() > 0 && self.stack().now() < until && self.stack_mut().turn() {}
        let restarted = self.restart();
        let restarted = restarted.and_then(|(files, known)| self.reopen(files, Vec::new()).map(|()| known));
        let (numbers, names) = match restarted {
            Ok(known) => known,
            Err(why) => {
                let why = format!("the file system does not come back: {why}");
                self.power = Power::Lost(why.clone());
                return drop(reply.try_send(why));
            }
        };
        let notifier = self.notifier.clone();
        apart(move |may_tell| {
            if let Some(notifier) = notifier.filter(|_| may_tell) {
                for number in numbers {
                    let _ = notifier.forget_pages(NodeId(number));
                }
                for (dir, name) in names {
                    let _ = notifier.forget_name(NodeId(dir), &name);
                }
            }
            let _ = reply.try_send("finished::clear-cache".into());
        });
    }

    /// The power goes, and the mount with it, as LazyFS ends: killed. The medium is as the cut left it.
    fn crash(&mut self, kept: Vec<Kept>) {
        let said = |what: Result<(), String>| {
            if let Err(why) = what {
                eprintln!("weir: after the crash: {why}");
            }
        };
        match self.restart() {
            Ok((files, _)) => {
                said(self.reopen(files, kept));
                if let (Some(stack), Some(held)) = (self.stack.take(), self.held.take()) {
                    let closed = held.close(stack, self.config.mount.read_only);
                    said(closed.map_err(|unkept| unkept.why));
                }
            }
            // Then an image stays as it was, and a volume as the cut left it.
            Err(why) => said(Err(why)),
        }
        let _ = rustix::process::kill_process(rustix::process::getpid(), rustix::process::Signal::KILL);
    }

    /// Brings the power back when that is due.
    fn power_on(&mut self) {
        match &self.power {
            Power::Off { until, is_let_go: true, .. } if self.pace.clock.wall() >= *until => {}
            _ => return,
        }
        let Power::Off { names, done, reply, .. } = std::mem::replace(&mut self.power, Power::On) else {
            return;
        };
        let now = self.stack().now();
        self.pace.set(now);
        self.catch_up();
        let notifier = self.notifier.clone();
        // Directories may be locked by requests that wait for this thread.
        apart(move |may_tell| {
            for (dir, name) in names {
                if let Some(notifier) = notifier.as_ref().filter(|_| may_tell) {
                    let _ = notifier.forget_name(NodeId(dir), &name);
                }
            }
            let _ = reply.try_send(Reply::Cut(vec![done]));
        });
    }

    fn status(&self) -> Status {
        let port = self.stack().port();
        let (size, metrics) = (port.capacity_blocks() * BLOCK_BYTES as u64, port.device_metrics());
        let disk = self.stack().with_device(|device| DiskStatus {
            on: matches!(self.power, Power::On),
            cuts: self.cuts.into(),
            in_flight: self.outstanding.get(),
            time_ns: self.stack().now().as_nanos(),
            ..DiskStatus::of(&self.config.name(), device, size, &metrics)
        });
        Status {
            uptime_ns: self.pace.clock.wall().as_nanos() as u64,
            speed: self.config.speed.to_string(),
            connections: 1,
            disks: vec![disk],
        }
    }

    /// Ends the mount in order: everything is written, and the medium kept.
    fn end(mut self) -> Result<(), String> {
        let mut stack = self.stack.take().expect("the power is on");
        // An inode that is freed during the unmount would be a part of what is written, or not.
        while self.outstanding.get() + self.forgetting.get() > 0 && stack.turn() {}
        let table = self.table.take();
        // An image stays as it was at the beginning, rather than become something that no mount accepts, and a volume as the cut left it.
        if let Power::Lost(why) = &self.power {
            return Err(why.clone());
        }
        let unmounted = match table {
            Some(table) => {
                let unmounted = stack.block_on(async move {
                    table.clear().await;
                    table.vfs().unmount().await
                });
                match unmounted {
                    Some(Ok(())) => Ok(()),
                    Some(Err(errno)) => Err(format!("not everything could be written: {errno}")),
                    None => Err("the device does not answer".into()),
                }
            }
            None => Ok(()),
        };
        let held = self.held.take().expect("it is not the end yet");
        let kept = match held.close(stack, self.config.mount.read_only) {
            Ok(()) => Ok(()),
            Err(Unkept { why, image: None }) => Err(why),
            Err(Unkept { why, image: Some(image) }) => {
                let (image, stack) = *image;
                self.save(image, stack, &why);
                Ok(())
            }
        };
        unmounted.and(kept)
    }

    /// The image cannot be written: nothing is lost while the device is in memory, so it is retried until there is room, or the user names
    /// another place.
    fn save(&self, mut image: OpenImage, mut stack: Stack, why: &str) {
        let control = self.config.control.as_ref().map(|path| path.display().to_string());
        let way_out = match &control {
            Some(control) => format!("make room there, or name another place by `weir save {control} FILE`"),
            None => "make room there".into(),
        };
        (self.config.say)(format!("{why}\nnothing is lost yet, the device is still in memory: {way_out}"));
        loop {
            match self.queue.recv_timeout(SAVE_PAUSE) {
                Ok(Message::Ask(Ask::Save(path), reply)) => match image.write_to(&mut stack, &path) {
                    Ok(()) => {
                        let _ = reply.try_send(Reply::Saved);
                        return (self.config.say)(format!("everything is in {}", path.display()));
                    }
                    Err(why) => drop(reply.try_send(Reply::Error(why))),
                },
                Ok(Message::Ask(_, reply)) => {
                    let why = format!("the mount has ended, and its image waits to be written: {way_out}");
                    let _ = reply.try_send(Reply::Error(why));
                }
                Ok(_) => {}
                Err(_) => {
                    if image.write_back(&mut stack).is_ok() {
                        return (self.config.say)("the image is written".into());
                    }
                }
            }
        }
    }
}

/// Decides whether it pays to poll after an answer. If no request comes, because the client computes, or has no processor while the world
/// spins on the client's, polling becomes rarer and rarer.
#[derive(Debug, Default)]
struct Patience {
    /// Number of polls to skip.
    skips: u32,
    /// And so many times after the next one, if nothing comes of it.
    next: u32,
}

impl Patience {
    /// Whether to look this time.
    fn lasts(&mut self) -> bool {
        match self.skips.checked_sub(1) {
            Some(skips) => {
                self.skips = skips;
                false
            }
            None => {
                self.skips = self.next;
                self.next = (2 * self.next).clamp(1, SKIPS_MAX);
                true
            }
        }
    }

    /// A poll found a request.
    fn is_rewarded(&mut self) {
        *self = Self::default();
    }
}

/// One request that is not answered, as long as it is there.
struct Running(Rc<Cell<u64>>);

impl Running {
    fn new(count: &Rc<Cell<u64>>) -> Self {
        count.set(count.get() + 1);
        Self(Rc::clone(count))
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        self.0.set(self.0.get() - 1);
    }
}

/// Inodes and names that the kernel knows.
type Known = (BTreeSet<u64>, Vec<Name>);

/// Does something on a thread of its own: the kernel may wait for this one before it takes a notice. Without a thread it is done here, with
/// `false`, and must not tell the kernel.
fn apart<W: FnOnce(bool) + Send + 'static>(work: W) {
    let (sender, receiver) = sync_channel::<W>(1);
    let thread = std::thread::Builder::new().name("notices".into());
    match thread.spawn(move || receiver.recv().map(|work| work(true))) {
        Ok(_) => drop(sender.send(work)),
        Err(error) => {
            eprintln!("weir: no thread to tell the kernel what is stale: {error}");
            work(false);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn patience_wears_out_and_comes_back() {
        let mut patience = Patience::default();
        let looks: Vec<u32> = (0..4000).filter(|_| patience.lasts()).collect();
        assert_eq!(looks, [0, 1, 3, 6, 11, 20, 37, 70, 135, 264, 521, 1034, 2059, 3084]);
        patience.is_rewarded();
        assert!(patience.lasts());
    }
}
