//! A device behind its link, for requests that come from outside: from a socket, or from a recording of one.
//!
//! Place in the data flow: a front end submits commands with the instant of their arrival and takes out what has
//! finished; this file decides nothing about time. Who calls [`Live::advance`] with a wall clock runs the device in
//! real time, who calls it with the next instant runs it in virtual time.
//!
//! Invariants: everything up to the instant of a submission happens before it, so what the device does is a function
//! of the submissions and their instants, however often `advance` was called in between; each command finishes
//! exactly once.
//!
//! Deliberately absent: clocks, sockets, bytes of any protocol.

use crate::request::Kind;
use crate::timeline::{Asked, Findings, Timeline};
use flashweir_core::random::mix;
use flashweir_core::{Agenda, Command, CommandId, DeviceError, Done, Duration, Instant, Lba, Link, Lpn, Op};
use flashweir_device::{Device, DeviceOptions, Effect, Event, Media, Recovery, RecoveryReport, Torn};
use std::collections::VecDeque;

#[derive(Clone, Copy, Debug)]
enum Moment {
    Arrive(u32),
    Device(Event),
    Complete(u32),
}

/// A command on its way.
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
    result: Option<Result<Done, DeviceError>>,
}

/// A command that has come back to the host.
#[derive(Clone, Debug, PartialEq)]
pub struct Finished {
    /// The caller's name for it.
    pub token: u64,
    /// When it was submitted.
    pub submitted: Instant,
    /// When the host has its completion.
    pub at: Instant,
    /// What became of it.
    pub result: Result<Done, DeviceError>,
}

/// One device and one link.
#[derive(Debug)]
pub struct Live {
    agenda: Agenda<Moment>,
    link: Link,
    device: Device,
    flights: Vec<Flight>,
    free: Vec<u32>,
    waiting: Vec<VecDeque<u32>>,
    effects: Vec<Effect>,
    lbas_per_unit: u64,
    hash: u64,
    timeline: Option<Box<Timeline>>,
    /// Tokens of commands that the device has with their data, for who asked for them.
    arrived: Option<Vec<u64>>,
}

impl Live {
    /// A device that has just woken up, at virtual time zero.
    pub fn new(mut device: Device) -> Self {
        device.forgo_digest();
        Self::with_digest(device)
    }

    /// The same, for who compares media ([`Media::digest`]), which costs a look at every byte.
    pub fn with_digest(device: Device) -> Self {
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
            arrived: None,
            link,
            device,
        }
    }

    /// The instant of the last thing that happened.
    pub fn now(&self) -> Instant {
        self.agenda.now()
    }

    /// When something happens next.
    #[inline]
    pub fn next(&self) -> Option<Instant> {
        self.agenda.peek()
    }

    /// Commands that have not finished.
    #[inline]
    pub fn in_flight(&self) -> usize {
        self.flights.len() - self.free.len()
    }

    /// The device.
    pub fn device(&self) -> &Device {
        &self.device
    }

    /// A hash over everything that happened and when: equal for equal submissions at equal instants.
    pub fn trace_hash(&self) -> u64 {
        self.hash
    }

    /// Lets `make` follow what happens from now on; no command is in flight.
    pub fn trace(&mut self, make: impl FnOnce(&mut Device) -> Timeline) {
        assert_eq!(self.in_flight(), 0, "a time line begins between commands");
        self.timeline = Some(Box::new(make(&mut self.device)));
    }

    /// Ends what [`Self::trace`] began, at the instant of the last thing that happened.
    pub fn end_trace(&mut self) -> Option<Findings> {
        Some(self.timeline.take()?.finish(self.agenda.now(), &mut self.device))
    }

    /// Submits an operation at `at`, or now if `at` has passed. Queues beyond the link's are shared.
    pub fn submit(
        &mut self,
        at: Instant,
        queue: u16,
        op: Op,
        fua: bool,
        token: u64,
        finished: &mut Vec<Finished>,
    ) {
        let mut command = Command::new(token, op);
        (command.queue, command.fua) = (queue, fua);
        self.submit_command(at, command, finished);
    }

    /// Submits a command at `at`, or now if `at` has passed. Its id is the token with which it finishes.
    pub fn submit_command(&mut self, at: Instant, mut command: Command, finished: &mut Vec<Finished>) {
        self.advance(at, finished);
        let now = at.max(self.agenda.now());
        let queue = command.queue % self.link.config().queues;
        let token = command.id.0;
        let place = self.free.pop().unwrap_or(self.flights.len() as u32);
        (command.id, command.queue) = (CommandId(u64::from(place)), queue);
        let bytes_up = command.bytes_up();
        let flight = Flight { token, queue, submitted: now, bytes_up, command: Some(command), result: None };
        match self.flights.get_mut(place as usize) {
            Some(free) => *free = flight,
            None => self.flights.push(flight),
        }
        if let Some(timeline) = &mut self.timeline
            && let Some(command) = &self.flights[place as usize].command
        {
            timeline.submitted(u64::from(place), asked(now, command));
        }
        if self.link.has_room(queue) && self.waiting[usize::from(queue)].is_empty() {
            self.send(now, place);
        } else {
            self.waiting[usize::from(queue)].push_back(place);
        }
    }

    /// Whether a command on `queue` would go onto the link at once.
    pub fn has_room(&self, queue: u16) -> bool {
        let queue = queue % self.link.config().queues;
        self.link.has_room(queue) && self.waiting[usize::from(queue)].is_empty()
    }

    fn send(&mut self, now: Instant, place: u32) {
        let command = self.flights[place as usize].command.as_ref().expect("a command is sent once");
        if let Op::Read { lba, .. } | Op::Write { lba, .. } = command.op {
            self.device.prefetch(Lpn(lba.0 / self.lbas_per_unit));
        }
        let arrives = self.link.submit(now, command);
        if let Some(timeline) = &mut self.timeline {
            timeline.sent(now, u64::from(place));
        }
        self.agenda.at(arrives, Moment::Arrive(place));
    }

    /// From now on [`Self::take_arrived`] tells which commands the device has.
    pub fn note_arrivals(&mut self) {
        self.arrived.get_or_insert_default();
    }

    /// Whether [`Self::take_arrived`] has something to tell.
    pub fn has_arrived(&self) -> bool {
        self.arrived.as_ref().is_some_and(|arrived| !arrived.is_empty())
    }

    /// Moves the tokens of commands whose data the device has taken since the last call to `out`.
    pub fn take_arrived(&mut self, out: &mut Vec<u64>) {
        if let Some(arrived) = &mut self.arrived {
            out.append(arrived);
        }
    }

    /// Lets everything happen up to and at `until`.
    pub fn advance(&mut self, until: Instant, finished: &mut Vec<Finished>) {
        while self.agenda.peek().is_some_and(|next| next <= until) {
            self.step(finished);
        }
    }

    /// Lets the next thing happen; false if there is none.
    pub fn step(&mut self, finished: &mut Vec<Finished>) -> bool {
        let Some((now, moment)) = self.agenda.pop() else { return false };
        if let Some(&Moment::Device(event)) = self.agenda.peek_event() {
            self.device.prefetch_for(event);
        }
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
                if let Some(arrived) = &mut self.arrived {
                    arrived.push(flight.token);
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
                    timeline.seen(now, u64::from(place), true);
                }
                self.link.release(queue);
                finished.push(Finished { token, submitted, at: now, result });
                if let Some(next) = self.waiting[usize::from(queue)].pop_front() {
                    self.send(now, next);
                }
            }
        }
        true
    }

    #[inline]
    fn note(&mut self, now: Instant, what: u64) {
        self.hash = mix(self.hash ^ now.as_nanos() ^ what << 48);
    }

    fn carry_out(&mut self, now: Instant) {
        if let Some(timeline) = &mut self.timeline {
            timeline.device(now, &mut self.device);
        }
        let mut effects = std::mem::take(&mut self.effects);
        for effect in effects.drain(..) {
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
        self.effects = effects;
    }

    /// Cuts the power at `at`, up to which everything has happened, and brings the device back: commands that have not finished are gone, with whatever the
    /// device had not made durable. The new device begins at virtual time zero, ready after the report's time.
    /// Panics if the device keeps no metadata or no contents, so that nothing could be recovered.
    pub fn cut(self, at: Instant, options: DeviceOptions, tear: Tear) -> (Self, RecoveryReport) {
        let media = self.cut_media(at, tear);
        let config = self.device.config().clone();
        drop(self);
        let (device, report) = Recovery::begin(&config, options, media).finish();
        (Self::new(device), report)
    }

    /// What a cut at `at` leaves on the medium.
    fn cut_media(&self, at: Instant, tear: Tear) -> Media {
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

    /// Ends a device in order: what it was given is finished and flushed.
    pub fn shut_down(mut self) -> Device {
        let mut finished = Vec::new();
        // A flush covers what has completed; on the link it could overtake a write.
        while self.in_flight() > 0 && self.step(&mut finished) {}
        self.submit(self.now(), 0, Op::Flush, false, u64::MAX, &mut finished);
        while self.in_flight() > 0 || !self.device.is_quiet() {
            if !self.step(&mut finished) {
                break;
            }
        }
        self.device
    }

    /// Time from the beginning until now.
    pub fn elapsed(&self) -> Duration {
        self.now().since(Instant::ZERO)
    }
}

/// A command as a time line shows it; commands that no device of today does count as writes of nothing.
fn asked(now: Instant, command: &Command) -> Asked {
    let (kind, lba, blocks) = match command.op {
        Op::Read { lba, blocks } => (Kind::Read, lba, blocks),
        Op::Write { lba, blocks, .. } => (Kind::Write, lba, blocks),
        Op::Trim { lba, blocks } => (Kind::Trim, lba, blocks),
        Op::WriteZeroes { lba, blocks } => (Kind::WriteZeroes, lba, blocks),
        Op::Flush | Op::RFlush(_) => (Kind::Flush, Lba(0), 0),
        _ => (Kind::Write, Lba(0), 0),
    };
    Asked { kind, lba, blocks, fua: command.fua, queue: command.queue, intended: now }
}

/// What a cut does to programs and erases that are in the cells.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Tear {
    /// Each is interrupted half-way.
    Likeliest,
    /// For each it is drawn whether it had not begun, is torn, or had just ended.
    Drawn(u64),
}

#[cfg(test)]
mod tests {
    use super::*;
    use flashweir_core::{Data, Lba};

    /// On a half-duplex link with a deep queue, a flush arrives before the data of writes that were submitted earlier.
    #[test]
    fn what_was_in_flight_at_a_clean_end_is_flushed() {
        let mut config = flashweir_device::presets::preset("sata-mlc").unwrap();
        config.geometry.blocks_per_plane = 16;
        config.ftl.over_provisioning = 0.4;
        let options = DeviceOptions { seed: 1, track_contents: true, planted: None };
        let mut live = Live::new(Device::new(config.clone(), options));
        let mut finished = Vec::new();
        for number in 0..16 {
            let op = Op::Write { lba: Lba(number * 512), blocks: 512, data: Data::Pattern(number + 1) };
            live.submit(Instant::ZERO, 0, op, false, number, &mut finished);
        }
        let device = live.shut_down();
        let media = device.cut(Instant::from_nanos(u64::MAX >> 1), |_| Torn::Damaged);
        let (back, _) = Recovery::begin(&config, options, media).finish();
        for unit in 0..16 * 64 {
            let (now, then) = (back.peek(Lpn(unit)), device.peek(Lpn(unit)));
            assert!(now.is_some() && now == then, "unit {unit}");
        }
    }
}
