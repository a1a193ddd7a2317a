//! The engine below every host: one device, one link, one agenda, and possibly layers between the host and the link.
//!
//! Place in the data flow: a host submits commands and pops events; the engine executes them and reports the progress
//! of the host's commands ([`Host`]). Raw jobs ([`crate::world`]), requests from outside ([`crate::live`]) and tasks of
//! file systems ([`crate::stack`]) are such hosts.
//!
//! Without layers, a command of the host is a command on the link, and the host is notified as soon as an event is
//! executed. With layers, the commands on the link are those of the layers: their events are kept until
//! [`Engine::deliver`], where layers and link exchange messages until neither has one left at this instant.
//!
//! Invariants:
//! 1. A run is a function of the submissions and their times; at one instant, events are executed in the order in which
//!    they were scheduled.
//! 2. Each command is completed exactly once. Commands of a host wait for a full queue of the link in the order of
//!    their submission; to layers, a full queue is busy.
//! 3. An engine without layers makes no dynamic call and no copy of a command on their account.
//!
//! Deliberately absent: clocks, and the use that a host makes of an answer.

use crate::host_ftl::{Disk, check_above, seen_above};
use crate::request::Kind;
use crate::timeline::{Asked, Findings, Timeline};
use flashweir_core::random::mix;
use flashweir_core::{Agenda, Command, CommandId, DeviceError, Done, Duration, Instant, Lba, Link, Lpn, Op};
use flashweir_device::{Device, DeviceMetrics, Effect, Event, Media, Torn};
use flashweir_host::{BlockLayer, Chain, Dispatch, Effect as Said, HostConfig, HostFtl, Input};
use std::collections::{BTreeSet, VecDeque};
use std::fmt::Debug;

/// The host above an engine.
pub(crate) trait Host {
    /// The command with this token is on its way to the device.
    fn dispatched(&mut self, now: Instant, token: u64) {
        let _ = (now, token);
    }

    /// The device has the data of the command with this token.
    fn transferred(&mut self, token: u64) {
        let _ = token;
    }

    /// The command with this token was answered. With layers, `submitted` is not known.
    fn completed(&mut self, now: Instant, token: u64, submitted: Instant, result: Answer);

    /// Whether a command that completes now counts in results.
    fn counts(&self, now: Instant, token: u64) -> bool {
        let _ = (now, token);
        true
    }
}

/// A device's answer.
pub(crate) type Answer = Result<Done, DeviceError>;

/// A host that ignores every notification.
impl Host for () {
    fn completed(&mut self, _: Instant, _: u64, _: Instant, _: Answer) {}
}

/// Events of a host on the engine's agenda.
pub(crate) trait Own: Copy + Debug {
    /// Whether each event of the engine is part of its trace hash.
    const HASHED: bool;
}

/// The events of a host that has none on the agenda.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Nothing {}

impl Own for Nothing {
    const HASHED: bool = true;
}

/// An event.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Moment<O> {
    Arrive(u32),
    Device(Event),
    Complete(u32),
    /// A layer wants to be called; never on the agenda.
    Wake,
    Own(O),
}

/// What a host has to handle after an event.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Happened<O> {
    /// An event below the host.
    Below,
    /// The host was notified of the completion of a command.
    Completed,
    /// An event of the host's own.
    Own(O),
}

/// A command that waits for the link, or is on its way.
#[derive(Debug)]
struct Flight {
    token: u64,
    queue: u16,
    submitted: Instant,
    /// Bytes that return with its completion.
    bytes_up: u64,
    /// The command, until it arrives at the device.
    command: Option<Command>,
    /// The answer, from its completion at the device on.
    result: Option<Answer>,
}

/// Effect of a power cut on programs and erases that are in progress in the flash array.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Tear {
    /// Each one is interrupted half-way.
    Likeliest,
    /// For each one, the seed draws whether it had not begun, is torn, or had just ended.
    Drawn(u64),
}

/// A device, a link, and the layers above them.
#[derive(Debug)]
pub(crate) struct Engine<O> {
    agenda: Agenda<Moment<O>>,
    link: Link,
    device: Device,
    lbas_per_unit: u64,
    flights: Vec<Flight>,
    free: Vec<u32>,
    /// Commands that wait for room in their submission queue.
    waiting: Vec<VecDeque<u32>>,
    effects: Vec<Effect>,
    hash: u64,
    timeline: Option<Box<Timeline>>,
    layers: Chain,
    said: Vec<Said>,
    /// Times at which a layer wants to be called.
    wakes: BTreeSet<Instant>,
    /// Whether requests have arrived since the layers were unplugged.
    is_plugged: bool,
    /// Commands of layers whose data the device has taken, and those that were answered.
    arrived: VecDeque<u64>,
    finished: VecDeque<(u64, Answer)>,
}

/// Returns a chain of one block layer in front of a device. Panics where [`check_block_layer`] fails.
pub(crate) fn block_layer(device: &Device, config: HostConfig) -> Chain {
    check_block_layer(&config, &device.config().link).unwrap_or_else(|reason| panic!("{reason}"));
    Chain::new().above(BlockLayer::new(config, device.geometry().lbas_per_unit))
}

/// Splits a disk into its device and the layers above that, with a block layer on top if there is one. Panics where
/// [`check_block_layer`] or [`check_above`] fails.
pub(crate) fn layers_of(disk: Disk, block_layer: Option<HostConfig>) -> (Device, Chain) {
    let mut layers = Chain::new();
    if let Some(config) = block_layer {
        if disk.host_ftl.is_some() {
            check_above(&config).unwrap_or_else(|reason| panic!("{reason}"));
        }
        layers = self::block_layer(&disk.device, config);
    }
    if let Some(ftl) = disk.host_ftl {
        layers = layers.above(*ftl);
    }
    (disk.device, layers)
}

/// Checks a block layer by itself and against this link.
///
/// # Errors
/// Key, value, and the valid range.
pub fn check_block_layer(config: &HostConfig, link: &flashweir_core::LinkConfig) -> Result<(), String> {
    config.validate()?;
    // Otherwise a queue of the link may have no slot left for a command that the device waits for.
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
    /// Makes an engine at virtual time zero with a device that has just woken up, below these layers.
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

    /// Returns the time of the last executed event of the agenda.
    #[inline]
    pub(crate) fn now(&self) -> Instant {
        self.agenda.now()
    }

    /// Returns the time of the next event of the agenda.
    #[inline]
    pub(crate) fn peek(&self) -> Option<Instant> {
        self.agenda.peek()
    }

    /// Returns the next time at which a layer wants to be called.
    pub(crate) fn next_wake(&self) -> Option<Instant> {
        self.wakes.first().copied()
    }

    /// Returns the number of events scheduled so far.
    pub(crate) fn scheduled(&self) -> u64 {
        self.agenda.scheduled()
    }

    /// Returns the number of commands on their way or waiting for the link.
    #[inline]
    pub(crate) fn in_flight(&self) -> usize {
        self.flights.len() - self.free.len()
    }

    pub(crate) fn device(&self) -> &Device {
        &self.device
    }

    /// Returns the device, for which no event is executed any more.
    pub(crate) fn into_device(self) -> Device {
        self.device
    }

    /// Returns the number of queues of the link.
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

    /// Returns the hash over all events and their times, if the host asks for one.
    pub(crate) fn hash(&self) -> u64 {
        self.hash
    }

    /// The host FTL, if there is one.
    pub(crate) fn host_ftl(&self) -> Option<&HostFtl> {
        self.layers.all().next()
    }

    /// Sectors that requests of the host may name.
    pub(crate) fn capacity_lbas(&self) -> u64 {
        let of_ftl = self.host_ftl().map(|ftl| ftl.layout().user_units * ftl.layout().unit_sectors);
        of_ftl.unwrap_or_else(|| self.device.geometry().capacity_lbas())
    }

    /// Counters of the device as they are for the host.
    pub(crate) fn metrics(&self) -> DeviceMetrics {
        let device = self.device.metrics();
        self.host_ftl().map_or(*device, |ftl| seen_above(device, &ftl.metrics()))
    }

    /// Traces all following events with the timeline that `make` returns; no command may be in flight, and the only layer,
    /// if there is one, is a block layer or a host FTL.
    pub(crate) fn trace(&mut self, make: impl FnOnce(&mut Device) -> Timeline) {
        assert_eq!(self.in_flight(), 0, "a timeline begins between commands");
        let has_both = self.host_ftl().is_some() && self.layers.find_mut::<BlockLayer>().is_some();
        assert!(!has_both, "a timeline follows requests through one layer at most");
        if let Some(ftl) = self.layers.find_mut::<HostFtl>() {
            ftl.keep_passages();
        }
        if let Some(layer) = self.layers.find_mut::<BlockLayer>() {
            layer.keep_passages();
        }
        self.timeline = Some(Box::new(make(&mut self.device)));
    }

    /// Ends the trace begun by [`Self::trace`], at the time of the last event.
    pub(crate) fn end_trace(&mut self) -> Option<Findings> {
        Some(self.timeline.take()?.finish(self.agenda.now(), &mut self.device))
    }

    /// Puts an event of the host onto the agenda.
    #[inline]
    pub(crate) fn at(&mut self, at: Instant, own: O) {
        self.agenda.at(at, Moment::Own(own));
    }

    /// Submits a command at `now`; no earlier event may be pending. Its id is the host's token, and its latency counts
    /// from `intended`. Layers keep it until [`Self::deliver`].
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
            if let Some(timeline) = &mut self.timeline {
                timeline.entered(now, command.id.0, asked(intended, &command));
            }
            self.layers.handle(now, Input::Submit { command, submitter }, &mut self.said);
        }
    }

    /// Puts a command onto the link, or lets it wait for room there. Always inlined: a command is large, and is moved
    /// once less.
    #[inline(always)]
    fn put(&mut self, now: Instant, intended: Instant, mut command: Command, host: &mut impl Host) -> u32 {
        let (token, queue, bytes_up) = (command.id.0, command.queue, command.bytes_up());
        let place = self.free.pop().unwrap_or_else(|| {
            let submitted = now;
            self.flights.push(Flight { token, queue, submitted, bytes_up, command: None, result: None });
            self.flights.len() as u32 - 1
        });
        command.id = CommandId(u64::from(place));
        if let Some(timeline) = self.timeline.as_mut().filter(|_| self.layers.is_empty()) {
            timeline.submitted(u64::from(place), asked(intended, &command));
        }
        // Assigns field by field: a command is large, and is moved only once.
        let flight = &mut self.flights[place as usize];
        (flight.token, flight.queue, flight.submitted, flight.bytes_up) = (token, queue, now, bytes_up);
        flight.command = Some(command);
        if self.has_room(queue) {
            self.send(now, place, host);
        } else {
            self.waiting[usize::from(queue)].push_back(place);
        }
        place
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
            // The lookup at arrival would wait for memory; prefetched here, the entry is in the cache by then.
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

    /// Takes the next event, of the agenda or of a layer; at one instant layers come last.
    pub(crate) fn pop(&mut self) -> Option<(Instant, Moment<O>)> {
        match self.next_wake() {
            Some(wake) if self.agenda.peek().is_none_or(|next| next > wake) => Some((wake, Moment::Wake)),
            _ => self.agenda.pop(),
        }
    }

    /// Takes the next event, where no layer can have one.
    #[inline]
    pub(crate) fn pop_without_layers(&mut self) -> Option<(Instant, Moment<O>)> {
        self.agenda.pop()
    }

    /// Executes an event. Always inlined into the loop of each host.
    #[inline(always)]
    pub(crate) fn happen(&mut self, now: Instant, moment: Moment<O>, host: &mut impl Host) -> Happened<O> {
        match moment {
            Moment::Device(event) => {
                self.note(now, 1);
                self.device.event(now, event, &mut self.effects);
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
            }
            Moment::Complete(place) => {
                self.note(now, 3 | u64::from(place) << 8);
                let flight = &mut self.flights[place as usize];
                let result = flight.result.take().expect("a command finishes once");
                let (token, submitted, queue) = (flight.token, flight.submitted, flight.queue);
                self.free.push(place);
                if let Some(timeline) = &mut self.timeline {
                    if self.layers.all::<HostFtl>().next().is_some() {
                        timeline.seen_below(now, u64::from(place), token);
                    } else {
                        let is_alone = self.layers.is_empty();
                        let counts = |request| host.counts(now, if is_alone { token } else { request });
                        timeline.seen(now, u64::from(place), counts);
                    }
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
                return Happened::Below;
            }
            Moment::Wake => {
                self.wake(now);
                return Happened::Below;
            }
            Moment::Own(own) => return Happened::Own(own),
        }
        self.carry_out(now);
        Happened::Below
    }

    /// Executes the next event of the agenda; returns false if there is none, or if it is the host's own.
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

    /// Executes the next event of the agenda or of a layer, and delivers what follows from it; returns its time. The host has no events.
    pub(crate) fn turn(&mut self, host: &mut impl Host) -> Option<Instant> {
        let (now, moment) = self.pop()?;
        self.happen(now, moment, host);
        self.deliver(now, host);
        Some(now)
    }

    /// Lets a host FTL begin what it does by itself.
    pub(crate) fn begin(&mut self, now: Instant, host: &mut impl Host) {
        self.layers.wake_all(now, &mut self.said);
        self.deliver(now, host);
    }

    /// Executes all events up to and including `until`, or up to the host's next event.
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

    /// Schedules the events that the device requested. Always inlined: [`Self::happen`] has the one call.
    #[inline(always)]
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

    /// Calls a layer at the time for which it asked.
    pub(crate) fn wake(&mut self, now: Instant) {
        self.wakes.pop_first();
        self.layers.handle(now, Input::Wake, &mut self.said);
    }

    /// Whether no input of the host, the device or time is pending for the layers.
    pub(crate) fn has_no_news(&self) -> bool {
        self.finished.is_empty() && !self.is_plugged && self.said.is_empty() && self.arrived.is_empty()
    }

    /// Delivers the device's progress to the layers and carries out their effects, until nothing is left at this
    /// instant. The submitters of this instant are done.
    pub(crate) fn deliver(&mut self, now: Instant, host: &mut impl Host) {
        if self.has_no_news() {
            return;
        }
        self.listen(now, host);
        if std::mem::take(&mut self.is_plugged) {
            self.tell(now, Input::Unplug, host);
        }
        // Whatever arrives meanwhile is handled in the next round.
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

    /// Carries out the effects of the layers. Effects that result from this are handled after the others.
    fn listen(&mut self, now: Instant, host: &mut impl Host) {
        let mut done = 0;
        while let Some(said) = self.said.get_mut(done) {
            done += 1;
            match std::mem::replace(said, Said::At(now)) {
                Said::Offer(offer) => {
                    let queue = offer.command.queue;
                    if self.has_room(queue) {
                        self.advance(now, host);
                        let place = self.put(now, now, offer.command, host);
                        self.layers.handle(now, Input::Accepted, &mut self.said);
                        self.note_passages(now, place, queue);
                    } else {
                        self.layers.handle(now, Input::Busy, &mut self.said);
                    }
                }
                Said::Dispatched(token) => host.dispatched(now, token),
                Said::Transferred(token) => host.transferred(token),
                Said::Completed { token, result } => {
                    self.note_answer(now, token, result.is_err(), host);
                    host.completed(now, token, now, result);
                }
                Said::At(at) => drop(self.wakes.insert(at)),
            }
        }
        self.said.clear();
    }

    /// Passes the times that the requests of an accepted command spent in the block layer to the timeline.
    fn note_passages(&mut self, now: Instant, place: u32, queue: u16) {
        if let Some(timeline) = &mut self.timeline
            && let Some(layer) = self.layers.find_mut::<BlockLayer>()
        {
            for passage in layer.take_passages() {
                timeline.left(now, &passage, u64::from(place), queue);
            }
        }
    }

    /// Passes the way of an answered request through the host FTL to the timeline.
    fn note_answer(&mut self, now: Instant, token: u64, failed: bool, host: &mut impl Host) {
        if let Some(timeline) = &mut self.timeline
            && let Some(ftl) = self.layers.find_mut::<HostFtl>()
        {
            timeline.answered(now, token, ftl.take_passage(token), failed, host.counts(now, token));
        }
    }

    // ---- the end ----

    /// Returns the medium as a power cut at `at` leaves it.
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

    /// Shuts a device down in order: its commands are finished and flushed, by way of the layers, since a host FTL may hold what was answered.
    /// Requests that still wait in layers then are dropped. `now` is the time of the host, which may be later than the last event of the device.
    pub(crate) fn shut_down(mut self, now: Instant) -> Device {
        if self.has_layers() {
            self.flush_layers(now);
        }
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

    fn flush_layers(&mut self, mut now: Instant) {
        struct Flushed(bool);
        impl Host for Flushed {
            fn completed(&mut self, _: Instant, token: u64, _: Instant, _: Answer) {
                self.0 |= token == u64::MAX;
            }
        }
        while self.in_flight() > 0
            && let Some(turn) = self.turn(&mut ())
        {
            now = now.max(turn);
        }
        let mut flushed = Flushed(false);
        self.submit(now, now, Command::new(u64::MAX, Op::Flush), 0, &mut flushed);
        self.deliver(now, &mut flushed);
        while !flushed.0 && self.turn(&mut flushed).is_some() {}
    }

    /// Executes all events but those of the host.
    fn drain(&mut self) {
        while let Some((now, moment)) = self.pop() {
            if !matches!(moment, Moment::Own(_)) {
                self.happen(now, moment, &mut ());
                self.deliver(now, &mut ());
            }
        }
    }

    /// Lets the device, and a host FTL above it, finish their own work and resets their clocks; no command of the host is under way.
    pub(crate) fn settle(mut self) -> Disk {
        self.drain();
        if let Some(ftl) = self.host_ftl() {
            // GC may wait for the end of the time in which the user counts as active, and nothing calls it then.
            let later = self.now() + ftl.config().user_active_for + Duration::from_nanos(1);
            self.begin(later, &mut ());
            self.drain();
        }
        self.device.reset_clock();
        let host_ftl = self.host_ftl().is_some().then(|| {
            let mut ftl: HostFtl = self.layers.into_last();
            ftl.reset_clock();
            Box::new(ftl)
        });
        Disk { device: self.device, host_ftl }
    }
}

/// Describes a command for a timeline; commands that no present device supports count as empty writes.
fn asked(intended: Instant, command: &Command) -> Asked {
    let (kind, lba, blocks) = match &command.op {
        &Op::Read { lba, blocks } => (Kind::Read, lba, blocks),
        &Op::Write { lba, blocks, .. } => (Kind::Write, lba, blocks),
        &Op::Trim { lba, blocks } => (Kind::Trim, lba, blocks),
        &Op::WriteZeroes { lba, blocks } => (Kind::WriteZeroes, lba, blocks),
        Op::Share(pairs) => {
            let first = pairs.first().map_or(Lba(0), |pair| pair.dst);
            (Kind::Share, first, pairs.iter().map(|pair| pair.blocks).fold(0, u32::saturating_add))
        }
        Op::Flush | Op::RFlush(_) => (Kind::Flush, Lba(0), 0),
        _ => (Kind::Write, Lba(0), 0),
    };
    Asked { kind, lba, blocks, fua: command.fua, queue: command.queue, intended }
}
