//! The engine below every host: one device, one link, one agenda, and layers between the host and the link, or none.
//!
//! Place in the data flow: a host submits commands and pops moments; the engine lets them happen and tells the host what has
//! become of its commands ([`Host`]). Raw jobs ([`crate::world`]), requests from outside ([`crate::live`]) and tasks of file
//! systems ([`crate::stack`]) are such hosts.
//!
//! Without layers a command of the host is one on the link, and the host is told at the moment at which something happens. With
//! layers, commands on the link are theirs: what happens to these is kept until [`Engine::deliver`], where the layers and the link
//! talk until neither has anything to say at this instant.
//!
//! Invariants:
//! 1. What happens is a function of the submissions and their instants; at one instant, things happen in the order in which they
//!    were scheduled.
//! 2. Each command is completed exactly once. A full queue of the link makes commands of a host wait in the order of their
//!    submission, and is busy to layers.
//! 3. An engine without layers makes no dynamic call and no copy of a command on their account.
//!
//! Deliberately absent: clocks, and what a host does with an answer.

use crate::request::Kind;
use crate::timeline::{Asked, Findings, Timeline};
use flashweir_core::random::mix;
use flashweir_core::{Agenda, Command, CommandId, DeviceError, Done, Instant, Lba, Link, Lpn, Op};
use flashweir_device::{Device, Effect, Event, Media, Torn};
use flashweir_host::{BlockLayer, Chain, Dispatch, Effect as Said, HostConfig, Input};
use std::collections::{BTreeSet, VecDeque};
use std::fmt::Debug;

/// Who is above an engine.
pub(crate) trait Host {
    /// The command with this token is on its way to the device.
    fn dispatched(&mut self, now: Instant, token: u64) {
        let _ = (now, token);
    }

    /// The device has its data.
    fn transferred(&mut self, token: u64) {
        let _ = token;
    }

    /// It was answered. With layers, `submitted` is not known here.
    fn completed(&mut self, now: Instant, token: u64, submitted: Instant, result: Answer);

    /// Whether a command that completes now counts in results.
    fn counts(&self, now: Instant, token: u64) -> bool {
        let _ = (now, token);
        true
    }
}

/// What a device answers.
pub(crate) type Answer = Result<Done, DeviceError>;

/// Nobody wants to know.
impl Host for () {
    fn completed(&mut self, _: Instant, _: u64, _: Instant, _: Answer) {}
}

/// Moments of a host that stand on the engine's agenda.
pub(crate) trait Own: Copy + Debug {
    /// Whether each moment of the engine goes into its trace hash.
    const HASHED: bool;
}

/// A host has no moments on the agenda.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Nothing {}

impl Own for Nothing {
    const HASHED: bool = true;
}

/// What happens at an instant.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Moment<O> {
    Arrive(u32),
    Device(Event),
    Complete(u32),
    /// A layer wants to be called; not on the agenda.
    Wake,
    Own(O),
}

/// What a host has to look at.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Happened<O> {
    /// Nothing of its own.
    Below,
    /// It was told of the completion of a command.
    Completed,
    /// A moment of its own has come.
    Own(O),
}

/// A command that waits for the link, or is on its way.
#[derive(Debug)]
struct Flight {
    token: u64,
    queue: u16,
    submitted: Instant,
    /// Bytes that come back with its completion.
    bytes_up: u64,
    /// Until it arrives at the device.
    command: Option<Command>,
    /// From its completion at the device on.
    result: Option<Answer>,
}

/// What a cut does to programs and erases that are in the cells.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Tear {
    /// Each is interrupted half-way.
    Likeliest,
    /// For each it is drawn whether it had not begun, is torn, or had just ended.
    Drawn(u64),
}

/// A device, a link, and layers.
#[derive(Debug)]
pub(crate) struct Engine<O> {
    agenda: Agenda<Moment<O>>,
    link: Link,
    device: Device,
    lbas_per_unit: u64,
    flights: Vec<Flight>,
    free: Vec<u32>,
    /// Commands that wait for room on their queue.
    waiting: Vec<VecDeque<u32>>,
    effects: Vec<Effect>,
    hash: u64,
    timeline: Option<Box<Timeline>>,
    layers: Chain,
    said: Vec<Said>,
    /// When a layer wants to be called.
    wakes: BTreeSet<Instant>,
    /// Requests have come since the layers were unplugged.
    is_plugged: bool,
    /// Commands of layers whose data the device has taken, and those that were answered.
    arrived: VecDeque<u64>,
    finished: VecDeque<(u64, Answer)>,
}

/// A chain of one block layer before a device. Panics where [`check_block_layer`] finds something.
pub(crate) fn block_layer(device: &Device, config: HostConfig) -> Chain {
    check_block_layer(&config, &device.config().link).unwrap_or_else(|reason| panic!("{reason}"));
    Chain::new().above(BlockLayer::new(config, device.geometry().lbas_per_unit))
}

/// Checks a block layer, alone and before this link.
///
/// # Errors
/// Key, value, and what would have been valid.
pub fn check_block_layer(config: &HostConfig, link: &flashweir_core::LinkConfig) -> Result<(), String> {
    config.validate()?;
    // Otherwise a queue of the link has no place left for what the device waits for.
    let fits = config.queues <= link.queues && config.depth <= link.queue_depth;
    if config.dispatch == Dispatch::MultiQueue && !fits {
        return Err(format!(
            "block_layer.queues = {}, block_layer.depth = {}: expected at most {} queues of {} with multi-queue, \
             as the link has",
            config.queues, config.depth, link.queues, link.queue_depth
        ));
    }
    Ok(())
}

impl<O: Own> Engine<O> {
    /// A device that has just woken up, at virtual time zero, below these layers.
    pub(crate) fn new(device: Device, layers: Chain) -> Self {
        let link = Link::new(device.config().link.clone());
        Self {
            agenda: Agenda::default(),
            flights: Vec::new(),
            free: Vec::new(),
            waiting: vec![VecDeque::new(); usize::from(link.config().queues)],
            effects: Vec::new(),
            lbas_per_unit: device.geometry().lbas_per_unit,
            hash: 0,
            timeline: None,
            layers,
            said: Vec::new(),
            wakes: BTreeSet::new(),
            is_plugged: false,
            arrived: VecDeque::new(),
            finished: VecDeque::new(),
            link,
            device,
        }
    }

    /// The instant of the last moment of the agenda that happened.
    #[inline]
    pub(crate) fn now(&self) -> Instant {
        self.agenda.now()
    }

    /// When the next moment of the agenda comes.
    #[inline]
    pub(crate) fn peek(&self) -> Option<Instant> {
        self.agenda.peek()
    }

    /// When a layer wants to be called.
    pub(crate) fn next_wake(&self) -> Option<Instant> {
        self.wakes.first().copied()
    }

    /// Moments that have passed or wait.
    pub(crate) fn scheduled(&self) -> u64 {
        self.agenda.scheduled()
    }

    /// Commands on their way or waiting for the link.
    #[inline]
    pub(crate) fn in_flight(&self) -> usize {
        self.flights.len() - self.free.len()
    }

    pub(crate) fn device(&self) -> &Device {
        &self.device
    }

    /// The device, when nothing is to happen to it any more.
    pub(crate) fn into_device(self) -> Device {
        self.device
    }

    /// Number of queues of the link.
    pub(crate) fn queues(&self) -> u16 {
        self.link.config().queues
    }

    pub(crate) fn has_layers(&self) -> bool {
        !self.layers.is_empty()
    }

    pub(crate) fn layers(&self) -> &Chain {
        &self.layers
    }

    pub(crate) fn layers_mut(&mut self) -> &mut Chain {
        &mut self.layers
    }

    /// A hash over everything that happened and when, where the host asks for one.
    pub(crate) fn hash(&self) -> u64 {
        self.hash
    }

    /// Lets `make` follow what happens from now on; no command is in flight. With layers, it follows their commands.
    pub(crate) fn trace(&mut self, make: impl FnOnce(&mut Device) -> Timeline) {
        assert_eq!(self.in_flight(), 0, "a time line begins between commands");
        self.timeline = Some(Box::new(make(&mut self.device)));
    }

    /// Ends what [`Self::trace`] began, at the instant of the last thing that happened.
    pub(crate) fn end_trace(&mut self) -> Option<Findings> {
        Some(self.timeline.take()?.finish(self.agenda.now(), &mut self.device))
    }

    /// Puts a moment of the host onto the agenda.
    #[inline]
    pub(crate) fn at(&mut self, at: Instant, own: O) {
        self.agenda.at(at, Moment::Own(own));
    }

    /// Submits a command at `now`, which no moment before it waits for; its id is the host's token, and its latency counts from
    /// `intended`. Layers keep it until [`Self::deliver`].
    #[inline]
    pub(crate) fn submit(
        &mut self,
        now: Instant,
        intended: Instant,
        command: Command,
        submitter: u16,
        host: &mut impl Host,
    ) {
        if self.layers.is_empty() {
            self.put(now, intended, command, host);
        } else {
            self.is_plugged = true;
            self.layers.handle(now, Input::Submit { command, submitter }, &mut self.said);
        }
    }

    /// Puts a command onto the link, or has it wait for room there.
    #[inline]
    fn put(&mut self, now: Instant, intended: Instant, mut command: Command, host: &mut impl Host) {
        let (token, queue, bytes_up) = (command.id.0, command.queue, command.bytes_up());
        let place = self.free.pop().unwrap_or_else(|| {
            let submitted = now;
            self.flights.push(Flight { token, queue, submitted, bytes_up, command: None, result: None });
            self.flights.len() as u32 - 1
        });
        command.id = CommandId(u64::from(place));
        if let Some(timeline) = &mut self.timeline {
            timeline.submitted(u64::from(place), asked(intended, &command));
        }
        // Field by field: a command is large, and is moved once.
        let flight = &mut self.flights[place as usize];
        (flight.token, flight.queue, flight.submitted, flight.bytes_up) = (token, queue, now, bytes_up);
        flight.command = Some(command);
        if self.has_room(queue) {
            self.send(now, place, host);
        } else {
            self.waiting[usize::from(queue)].push_back(place);
        }
    }

    /// Whether a command on `queue` would go onto the link at once.
    #[inline]
    pub(crate) fn has_room(&self, queue: u16) -> bool {
        self.link.has_room(queue) && self.waiting[usize::from(queue)].is_empty()
    }

    #[inline]
    fn send(&mut self, now: Instant, place: u32, host: &mut impl Host) {
        let flight = &self.flights[place as usize];
        let command = flight.command.as_ref().expect("a command is sent once");
        if let Op::Read { lba, .. } | Op::Write { lba, .. } = command.op {
            // The look-up at arrival would wait for memory; begun here, it is there by then.
            self.device.prefetch(Lpn(lba.0 / self.lbas_per_unit));
        }
        let arrives = self.link.submit(now, command);
        if let Some(timeline) = &mut self.timeline {
            timeline.sent(now, u64::from(place));
        }
        if self.layers.is_empty() {
            host.dispatched(now, flight.token);
        }
        self.agenda.at(arrives, Moment::Arrive(place));
    }

    /// Takes the next moment, of the agenda or of a layer; at one instant layers come last.
    pub(crate) fn pop(&mut self) -> Option<(Instant, Moment<O>)> {
        match self.next_wake() {
            Some(wake) if self.agenda.peek().is_none_or(|next| next > wake) => Some((wake, Moment::Wake)),
            _ => self.agenda.pop(),
        }
    }

    /// Takes the next moment, where no layer can have one.
    #[inline]
    pub(crate) fn pop_without_layers(&mut self) -> Option<(Instant, Moment<O>)> {
        self.agenda.pop()
    }

    /// Lets a moment happen.
    #[inline]
    pub(crate) fn happen(&mut self, now: Instant, moment: Moment<O>, host: &mut impl Host) -> Happened<O> {
        match moment {
            Moment::Device(event) => {
                self.note(now, 1);
                self.device.event(now, event, &mut self.effects);
                self.carry_out(now);
            }
            Moment::Arrive(place) => {
                self.note(now, 2 | u64::from(place) << 8);
                let flight = &mut self.flights[place as usize];
                let command = flight.command.take().expect("a command arrives once");
                if self.layers.is_empty() {
                    host.transferred(flight.token);
                } else {
                    self.arrived.push_back(flight.token);
                }
                self.device.command(now, command, &mut self.effects);
                self.carry_out(now);
            }
            Moment::Complete(place) => {
                self.note(now, 3 | u64::from(place) << 8);
                let flight = &mut self.flights[place as usize];
                let result = flight.result.take().expect("a command finishes once");
                let (token, submitted, queue) = (flight.token, flight.submitted, flight.queue);
                self.free.push(place);
                if let Some(timeline) = &mut self.timeline {
                    let counts = !self.layers.is_empty() || host.counts(now, token);
                    timeline.seen(now, u64::from(place), counts);
                }
                self.link.release(queue);
                if let Some(next) = self.waiting[usize::from(queue)].pop_front() {
                    self.send(now, next, host);
                }
                if self.layers.is_empty() {
                    host.completed(now, token, submitted, result);
                    return Happened::Completed;
                }
                self.finished.push_back((token, result));
            }
            Moment::Wake => self.wake(now),
            Moment::Own(own) => return Happened::Own(own),
        }
        Happened::Below
    }

    /// Lets the next moment of the agenda happen; false if there is none, or it is the host's own.
    pub(crate) fn step(&mut self, host: &mut impl Host) -> bool {
        if matches!(self.agenda.peek_event(), Some(Moment::Own(_)) | None) {
            return false;
        }
        let Some((now, moment)) = self.agenda.pop() else { return false };
        if let Some(&Moment::Device(event)) = self.agenda.peek_event() {
            self.device.prefetch_for(event);
        }
        self.happen(now, moment, host);
        true
    }

    /// Lets everything happen up to and at `until`, or up to the host's next moment.
    pub(crate) fn advance(&mut self, until: Instant, host: &mut impl Host) {
        while self.agenda.peek().is_some_and(|next| next <= until) {
            if !self.step(host) {
                break;
            }
        }
    }

    #[inline]
    fn note(&mut self, now: Instant, what: u64) {
        if O::HASHED {
            self.hash = mix(self.hash ^ now.as_nanos() ^ what << 48);
        }
    }

    /// Does what the device asked for.
    #[inline]
    fn carry_out(&mut self, now: Instant) {
        if let Some(timeline) = &mut self.timeline {
            timeline.device(now, &mut self.device);
        }
        for effect in self.effects.drain(..) {
            match effect {
                Effect::At(at, event) => self.agenda.at(at, Moment::Device(event)),
                Effect::Accepted { .. } => {}
                Effect::Complete(completion) => {
                    let place = completion.id.0 as u32;
                    let flight = &mut self.flights[place as usize];
                    let up = if completion.result.is_ok() { flight.bytes_up } else { 0 };
                    flight.result = Some(completion.result);
                    let seen = self.link.complete(now, up);
                    self.agenda.at(seen, Moment::Complete(place));
                }
            }
        }
    }

    // ---- layers ----

    /// Whether requests wait in the layers for the end of their instant.
    pub(crate) fn is_plugged(&self) -> bool {
        self.is_plugged
    }

    /// An instant for which a layer has asked has come.
    pub(crate) fn wake(&mut self, now: Instant) {
        self.wakes.pop_first();
        self.layers.handle(now, Input::Wake, &mut self.said);
    }

    /// Whether neither the host nor the device nor time have anything new for the layers.
    pub(crate) fn has_no_news(&self) -> bool {
        self.finished.is_empty() && !self.is_plugged && self.said.is_empty() && self.arrived.is_empty()
    }

    /// The layers learn what the device did and say what goes there next, until neither has anything to say at this instant. The
    /// submitters of this instant are done.
    pub(crate) fn deliver(&mut self, now: Instant, host: &mut impl Host) {
        if self.has_no_news() {
            return;
        }
        self.listen(now, host);
        if std::mem::take(&mut self.is_plugged) {
            self.tell(now, Input::Unplug, host);
        }
        // What comes while these are looked at is looked at in the next round.
        while !(self.arrived.is_empty() && self.finished.is_empty()) {
            for _ in 0..self.arrived.len() {
                let Some(id) = self.arrived.pop_front() else { break };
                self.tell(now, Input::Transferred(CommandId(id)), host);
            }
            for _ in 0..self.finished.len() {
                let Some((id, result)) = self.finished.pop_front() else { break };
                self.tell(now, Input::Completed { id: CommandId(id), result }, host);
            }
        }
    }

    fn tell(&mut self, now: Instant, input: Input, host: &mut impl Host) {
        self.layers.handle(now, input, &mut self.said);
        self.listen(now, host);
    }

    /// Does what the layers ask for. What is done may have effects of its own, which come behind the others.
    fn listen(&mut self, now: Instant, host: &mut impl Host) {
        let mut done = 0;
        while let Some(said) = self.said.get_mut(done) {
            done += 1;
            match std::mem::replace(said, Said::At(now)) {
                Said::Offer(offer) => {
                    let input = if self.has_room(offer.command.queue) {
                        self.advance(now, host);
                        self.put(now, now, offer.command, host);
                        Input::Accepted
                    } else {
                        Input::Busy
                    };
                    self.layers.handle(now, input, &mut self.said);
                }
                Said::Dispatched(token) => host.dispatched(now, token),
                Said::Transferred(token) => host.transferred(token),
                Said::Completed { token, result } => host.completed(now, token, now, result),
                Said::At(at) => drop(self.wakes.insert(at)),
            }
        }
        self.said.clear();
    }

    // ---- the end ----

    /// What a cut at `at` leaves on the medium.
    pub(crate) fn cut_media(&self, at: Instant, tear: Tear) -> Media {
        let mut drawn = match tear {
            Tear::Likeliest => 0,
            Tear::Drawn(seed) => mix(seed ^ self.hash),
        };
        self.device.cut(at.max(self.agenda.now()), |_| match tear {
            Tear::Likeliest => Torn::Damaged,
            Tear::Drawn(_) => {
                drawn = mix(drawn);
                [Torn::Absent, Torn::Damaged, Torn::Done][(drawn % 3) as usize]
            }
        })
    }

    /// Ends a device in order: what it was given is finished and flushed. What waits in layers is gone.
    pub(crate) fn shut_down(mut self) -> Device {
        self.layers = Chain::new();
        // A flush covers what has completed; on the link it could overtake a write.
        while self.in_flight() > 0 && self.step(&mut ()) {}
        let now = self.now();
        self.submit(now, now, Command::new(u64::MAX, Op::Flush), 0, &mut ());
        while self.in_flight() > 0 || !self.device.is_quiet() {
            if !self.step(&mut ()) {
                break;
            }
        }
        self.device
    }

    /// Lets the device finish what it does on its own, and sets its clock back; no command is in flight.
    pub(crate) fn settle(mut self) -> Device {
        while let Some((now, moment)) = self.agenda.pop() {
            if let Moment::Device(_) = moment {
                self.happen(now, moment, &mut ());
            }
        }
        self.device.reset_clock();
        self.device
    }
}

/// A command as a time line shows it; commands that no device of today does count as writes of nothing.
fn asked(intended: Instant, command: &Command) -> Asked {
    let (kind, lba, blocks) = match command.op {
        Op::Read { lba, blocks } => (Kind::Read, lba, blocks),
        Op::Write { lba, blocks, .. } => (Kind::Write, lba, blocks),
        Op::Trim { lba, blocks } => (Kind::Trim, lba, blocks),
        Op::WriteZeroes { lba, blocks } => (Kind::WriteZeroes, lba, blocks),
        Op::Flush | Op::RFlush(_) => (Kind::Flush, Lba(0), 0),
        _ => (Kind::Write, Lba(0), 0),
    };
    Asked { kind, lba, blocks, fua: command.fua, queue: command.queue, intended }
}
