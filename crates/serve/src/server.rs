//! The server: one thread that polls its sockets, reads the clock once per turn, and processes the events of its disks.
//!
//! Place in the data flow: bytes of clients become requests in [`crate::nbd`], requests become commands in
//! [`crate::disk`]; answers go back the same way. Nothing is handed to another thread on the way.
//!
//! A turn: poll, read the clock, process the disks' events up to it, take in what clients sent, answer what is due, write.
//! Before a deadline that is near the poll does not sleep: a sleep of 75 µs takes up to 187 µs on a common kernel.
//!
//! Invariants: a client that breaks the protocol, stalls, or vanishes is dropped without an effect on other clients; memory for each client
//! is bounded, and so is the number of clients. The place of a client that vanished is free when the device has executed its requests, so
//! that a client gains nothing by connecting again and again.

use crate::clock::{Clock, Speed};
use crate::control::{Ask, CutDone, CutOrder, DiskStatus, LINE_BYTES_MAX, Reply, Status};
use crate::disk::{Answer, Body, ClientId, Disk, OnCut};
use crate::listen::{Endpoint, Listener, ServeError, Sockets, Stream, failed, listen, reserve_files};
use crate::nbd::{Command, Config, Connection, Errno, Progress, TlsKeys};
use flashweir_core::{Duration, Instant, Payload};
use flashweir_sim::live::Tear;
use rustix::event::Timespec;
use rustix::event::epoll::{self, EventData, EventFlags};
use std::io::{self, Read, Write};
use std::os::fd::OwnedFd;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration as WallDuration;

/// Configuration of a server.
#[derive(Clone, Debug)]
pub struct ServerConfig {
    /// Addresses at which clients connect.
    pub endpoints: Vec<Endpoint>,
    /// A unix socket for `weir cut` and live views.
    pub control: Option<PathBuf>,
    /// The clock, and the speed of virtual time.
    pub clock: Clock,
    /// Certificate and key, where TLS is offered.
    pub keys: Option<TlsKeys>,
    /// Most connections at a time.
    pub connections_max: usize,
    /// Longest time of a handshake, of one message of a client, and of taking an answer.
    pub patience: WallDuration,
    /// How long before a deadline the server stops sleeping, and how long it looks for requests before it sleeps.
    pub spin: WallDuration,
    /// Function that returns freed memory of the process to the system.
    pub give_back: Option<fn()>,
    /// Function for messages to users.
    pub say: fn(String),
}

/// A connection of an NBD client.
#[derive(Debug)]
struct Client {
    id: ClientId,
    connection: Connection<Stream>,
    interest: EventFlags,
    /// Wall time since which the server waits for the rest of a message, or for an answer to be taken.
    moved: WallDuration,
    /// Bytes that went either way since then.
    bytes: usize,
    /// Output or interest may have changed in this turn.
    touched: bool,
    /// Its next flush fails: the power was cut and the connection was not, so what it took for done may be gone.
    flush_fails: bool,
}

impl Client {
    /// Bytes went either way. They count when they are many or end something: a client that sends byte by byte, or
    /// takes its answers so, does not move. Nothing counts in a handshake, which has its time as a whole.
    fn progressed(&mut self, wall: WallDuration, bytes: usize, ends: bool) {
        self.bytes += bytes;
        if (ends || self.bytes >= PROGRESS_BYTES) && self.connection.session().is_transmitting() {
            (self.moved, self.bytes) = (wall, 0);
        }
    }
}

/// A connection to the control socket.
#[derive(Debug)]
struct Controller {
    stream: Stream,
    /// Wall time of its last sign of life.
    moved: WallDuration,
    input: Vec<u8>,
    output: Vec<u8>,
}

/// Source of an event of the poll: a kind and a place in its table. A client's has the generation of the place,
/// so that an event of one that was dropped in the same turn is not taken for one of its successor.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Source {
    Listener(u32),
    Client { place: u32, generation: u32 },
    Controller(u32),
}

/// Bits of a generation that an event carries.
const GENERATION_BITS: u32 = 30;

impl Source {
    fn of(id: ClientId) -> Self {
        Self::Client { place: id.place, generation: id.generation % (1 << GENERATION_BITS) }
    }

    fn pack(self) -> EventData {
        let (kind, generation, place) = match self {
            Self::Listener(place) => (0, 0, place),
            Self::Client { place, generation } => (1, generation, place),
            Self::Controller(place) => (2, 0, place),
        };
        EventData::new_u64(kind << (32 + GENERATION_BITS) | u64::from(generation) << 32 | u64::from(place))
    }

    fn unpack(data: EventData) -> Self {
        let (place, generation) = (data.u64() as u32, (data.u64() >> 32) as u32 % (1 << GENERATION_BITS));
        match data.u64() >> (32 + GENERATION_BITS) {
            0 => Self::Listener(place),
            1 => Self::Client { place, generation },
            _ => Self::Controller(place),
        }
    }
}

/// Most controllers at a time.
const CONTROLLERS_MAX: usize = 16;
/// Number of bytes within a client's patience that count as progress.
const PROGRESS_BYTES: usize = 64 << 10;
/// Events of one poll.
const EVENTS: usize = 64;
/// Longest sleep, so that a signal is noticed and stalled clients are.
const SLEEP_MAX: WallDuration = WallDuration::from_millis(200);

/// A running server.
#[derive(Debug)]
pub struct Server {
    config: ServerConfig,
    nbd: Arc<Config>,
    disks: Vec<Disk>,
    epoll: OwnedFd,
    listeners: Vec<Listener>,
    clients: Vec<Option<Client>>,
    controllers: Vec<Option<Controller>>,
    generation: u32,
    sockets: Sockets,
    /// Clients that have something left to do without an event.
    runnable: Vec<u32>,
    touched: Vec<u32>,
    answers: Vec<Answer>,
    /// Wall time until which the poll does not sleep because clients were active.
    awake_until: WallDuration,
    looked_for_stalls: WallDuration,
    /// Wall time when the clock was read last.
    wall: WallDuration,
    stopping: bool,
    connections_total: u64,
    dropped: u64,
}

impl Server {
    /// Opens the sockets. The disks are the exports of `nbd`, in the same order.
    ///
    /// # Errors
    /// A socket cannot be opened, for instance because another server uses it.
    pub fn bind(config: ServerConfig, nbd: Config, mut disks: Vec<Disk>) -> Result<Self, ServeError> {
        assert_eq!(nbd.exports().len(), disks.len(), "each export is one disk");
        let epoll = epoll::create(epoll::CreateFlags::CLOEXEC).map_err(failed("epoll"))?;
        let listening = reserve_files(config.connections_max, 1)
            .and_then(|()| listen(config.control.as_deref(), &config.endpoints));
        let (listeners, sockets) = match listening {
            Ok(listening) => listening,
            Err(error) => {
                // Nobody has written: their volumes are closed as they were.
                disks.into_iter().for_each(|disk| drop(disk.shut_down()));
                return Err(error);
            }
        };
        for (place, listener) in (0..).zip(&listeners) {
            let added = epoll::add(&epoll, listener, Source::Listener(place).pack(), EventFlags::IN);
            added.map_err(failed("epoll"))?;
        }
        let follows = config.clock.speed() != Speed::Max;
        disks.iter_mut().for_each(|disk| disk.follow_clock(follows));
        Ok(Self {
            nbd: Arc::new(nbd),
            disks,
            epoll,
            listeners,
            clients: Vec::new(),
            controllers: Vec::new(),
            generation: 0,
            sockets,
            runnable: Vec::new(),
            touched: Vec::new(),
            answers: Vec::new(),
            awake_until: WallDuration::ZERO,
            looked_for_stalls: WallDuration::ZERO,
            wall: WallDuration::ZERO,
            stopping: false,
            connections_total: 0,
            dropped: 0,
            config,
        })
    }

    /// Addresses at which clients reach it; of TCP with the port that the system chose, where that was 0.
    pub fn addresses(&self) -> Vec<String> {
        self.listeners.iter().filter_map(Listener::address).collect()
    }

    /// Serves until `stop` is set or a stop is requested on the control socket, then ends every connection cleanly.
    ///
    /// # Errors
    /// Polling fails, a recording cannot be written, or a volume's host disk fails.
    pub fn run(&mut self, stop: &AtomicBool) -> Result<(), ServeError> {
        while !self.stopping && !stop.load(Ordering::Relaxed) {
            self.turn()?;
        }
        self.say_farewell()
    }

    /// One turn.
    fn turn(&mut self) -> Result<(), ServeError> {
        let mut events: [epoll::Event; EVENTS] =
            [epoll::Event { flags: EventFlags::empty(), data: EventData::new_u64(0) }; EVENTS];
        let timeout = self.timeout(self.wall);
        let timeout = Timespec { tv_sec: timeout.as_secs() as i64, tv_nsec: timeout.subsec_nanos() as i64 };
        let count = match epoll::wait(&self.epoll, &mut events[..], Some(&timeout)) {
            Ok(count) => count,
            Err(rustix::io::Errno::INTR) => 0,
            Err(error) => return Err(failed("epoll")(error)),
        };
        let wall = self.config.clock.wall();
        let now = self.config.clock.virtual_at(wall);
        self.wall = wall;
        self.advance(now)?;
        for event in &events[..count] {
            match Source::unpack(event.data) {
                Source::Listener(place) => self.accept(place, wall),
                source @ Source::Client { place, .. } => {
                    let client = self.clients[place as usize].as_ref();
                    if client.is_some_and(|client| Source::of(client.id) == source) {
                        self.serve(place, event.flags, wall, now)?;
                    }
                }
                Source::Controller(place) => self.control(place, wall, now)?,
            }
        }
        for place in std::mem::take(&mut self.runnable) {
            self.serve(place, EventFlags::IN, wall, now)?;
        }
        if count > 0 {
            self.awake_until = wall + self.config.spin;
        }
        self.advance(now)?;
        self.answer();
        self.write(wall);
        self.drop_stalled(wall);
        Ok(())
    }

    /// How long the poll may sleep, `wall` being the time of the last turn.
    fn timeout(&self, wall: WallDuration) -> WallDuration {
        if !self.runnable.is_empty() || wall < self.awake_until {
            return WallDuration::ZERO;
        }
        let Some(next) = self.disks.iter().filter_map(Disk::next).min() else { return SLEEP_MAX };
        let left = self.config.clock.wall_of(next.saturating_since(self.config.clock.virtual_at(wall)));
        left.saturating_sub(self.config.spin).min(SLEEP_MAX)
    }

    fn advance(&mut self, now: Instant) -> Result<(), ServeError> {
        for disk in &mut self.disks {
            disk.advance(now, &mut self.answers).map_err(failed(disk.name()))?;
            if let Some(line) = disk.look_at_memory(self.config.give_back) {
                (self.config.say)(line);
            }
        }
        Ok(())
    }

    /// Passes answers that are due to the sessions.
    fn answer(&mut self) {
        if self.disks.iter().any(Disk::has_finished) {
            // As late as possible: what this turn did is part of what clients wait for.
            self.wall = self.config.clock.wall();
        }
        let (queued, factor) = (self.config.clock.virtual_at(self.wall), self.config.clock.factor());
        for disk in &mut self.disks {
            disk.answer(queued, factor, &mut self.answers);
        }
        for Answer { client: id, token, body } in self.answers.drain(..) {
            let client = self.clients.get_mut(id.place as usize).and_then(Option::as_mut);
            // A client that has gone gets no answer.
            let Some(client) = client.filter(|client| client.id == id) else { continue };
            let session = client.connection.session();
            match body {
                Body::Done => session.reply_ok(token),
                Body::Failed(errno, why) => session.reply_error(token, errno, &why),
                Body::Extents(extents) => session.reply_block_status(token, extents),
                Body::Data { units, skip, unit_bytes, length } => session.reply_read(token, |reply| {
                    let (mut skip, mut left) = (skip, length);
                    for unit in &units {
                        let part = (unit_bytes - skip).min(left);
                        match unit {
                            Payload::Zero => reply.hole(part),
                            Payload::Bytes(bytes) => reply.data(&bytes[skip..skip + part]),
                            Payload::Tag(_) => {
                                let mut bytes = vec![0; unit_bytes];
                                unit.expand(&mut bytes);
                                reply.data(&bytes[skip..skip + part]);
                            }
                        }
                        (skip, left) = (0, left - part);
                    }
                }),
            }
            touch(client, &mut self.touched);
        }
    }

    /// Writes the output of sessions.
    fn write(&mut self, wall: WallDuration) {
        for place in std::mem::take(&mut self.touched) {
            let Some(client) = self.clients[place as usize].as_mut() else { continue };
            client.touched = false;
            let before = client.connection.session().output().len();
            let ended = client.connection.flush().is_err();
            let left = client.connection.session().output().len();
            client.progressed(wall, before - left, left == 0 && before > 0);
            let connection = &mut client.connection;
            if ended || connection.session().wants_close() {
                self.drop_client(place);
                continue;
            }
            if connection.is_runnable() {
                self.runnable.push(place);
            }
            let mut interest = EventFlags::empty();
            interest.set(EventFlags::IN, connection.wants_read());
            interest.set(EventFlags::OUT, connection.wants_write());
            if interest != client.interest {
                client.interest = interest;
                let data = Source::of(client.id).pack();
                if epoll::modify(&self.epoll, connection.stream(), data, interest).is_err() {
                    self.drop_client(place);
                }
            }
        }
    }

    fn accept(&mut self, place: u32, wall: WallDuration) {
        let listener = &self.listeners[place as usize];
        // A client that has gone already, or a lack of descriptors: the next turn tries again.
        let Ok(stream) = listener.accept() else { return };
        if matches!(listener, Listener::Control(_)) {
            self.accept_controller(stream, wall);
            return;
        }
        let owed = |place: usize| self.disks.iter().any(|disk| disk.owes(place as u32));
        let Some(place) = vacancy(&mut self.clients, self.config.connections_max, owed) else {
            self.dropped += 1;
            return;
        };
        self.generation = self.generation.wrapping_add(1);
        let id = ClientId { place, generation: self.generation };
        let interest = EventFlags::IN | EventFlags::OUT;
        if epoll::add(&self.epoll, &stream, Source::of(id).pack(), interest).is_err() {
            return;
        }
        self.connections_total += 1;
        let connection = Connection::new(stream, Arc::clone(&self.nbd), self.config.keys.clone());
        let client =
            Client { id, connection, interest, moved: wall, bytes: 0, touched: false, flush_fails: false };
        let client = self.clients[place as usize].insert(client);
        touch(client, &mut self.touched);
    }

    /// Accepts a control client. If there are too many, the one that was silent longest is dropped, so that the server can always be asked.
    fn accept_controller(&mut self, stream: Stream, wall: WallDuration) {
        let place = vacancy(&mut self.controllers, CONTROLLERS_MAX, |_| false).unwrap_or_else(|| {
            let silent = (0..).zip(&self.controllers).min_by_key(|(_, c)| c.as_ref().map(|c| c.moved));
            silent.map_or(0, |(place, _)| place)
        });
        if let Some(silent) = self.controllers[place as usize].take() {
            let _ = epoll::delete(&self.epoll, &silent.stream);
        }
        if epoll::add(&self.epoll, &stream, Source::Controller(place).pack(), EventFlags::IN).is_ok() {
            let controller = Controller { stream, moved: wall, input: Vec::new(), output: Vec::new() };
            self.controllers[place as usize] = Some(controller);
        }
    }

    /// Handles what a client sent.
    fn serve(
        &mut self,
        place: u32,
        flags: EventFlags,
        wall: WallDuration,
        now: Instant,
    ) -> Result<(), ServeError> {
        let Some(client) = self.clients[place as usize].as_mut() else { return Ok(()) };
        touch(client, &mut self.touched);
        let mut ended = false;
        if flags.intersects(EventFlags::IN | EventFlags::HUP | EventFlags::ERR) {
            match client.connection.read() {
                Ok(Progress::Done(n)) if n > 0 => client.progressed(wall, n, false),
                Ok(Progress::Done(_) | Progress::Blocked) => {
                    // The other side is gone and nothing of it is wanted: no event would ever tell again.
                    ended = flags.intersects(EventFlags::HUP | EventFlags::ERR);
                }
                Ok(Progress::Closed) | Err(_) => ended = true,
            }
        }
        let id = client.id;
        let mut asked = !client.connection.session().is_transmitting();
        loop {
            let session = client.connection.session();
            match session.next_request() {
                Ok(Some(request)) => {
                    asked = true;
                    if request.command == Command::Flush && std::mem::take(&mut client.flush_fails) {
                        session.reply_error(request.token, Errno::Io, "the device lost its power before");
                        continue;
                    }
                    let disk = session.export().expect("requests come after an export was chosen");
                    let disk = &mut self.disks[disk];
                    let done = disk.request(now, id, place as u16, request, &mut self.answers);
                    done.map_err(failed(disk.name()))?;
                }
                Ok(None) => break,
                Err(_) => {
                    ended = true;
                    break;
                }
            }
        }
        client.progressed(wall, 0, asked);
        if ended {
            // Its earlier requests are executed; there is no client to answer.
            self.drop_client(place);
        }
        Ok(())
    }

    fn drop_client(&mut self, place: u32) {
        if let Some(client) = self.clients[place as usize].take() {
            self.disks.iter_mut().for_each(|disk| disk.forget(client.id));
            let _ = epoll::delete(&self.epoll, client.connection.stream());
            client.connection.close();
        }
    }

    /// Drops clients that stall in the middle of a message or answer.
    fn drop_stalled(&mut self, wall: WallDuration) {
        if wall < self.looked_for_stalls + SLEEP_MAX {
            return;
        }
        self.looked_for_stalls = wall;
        for place in 0..self.clients.len() {
            let Some(client) = self.clients[place].as_mut() else { continue };
            let waits_for_client = client.connection.wants_write();
            let session = client.connection.session();
            let busy = !session.is_transmitting() || session.is_mid_message() || waits_for_client;
            // While answers are due it is the device that the client waits for.
            if !busy || session.in_flight() > 0 {
                (client.moved, client.bytes) = (wall, 0);
            } else if wall.saturating_sub(client.moved) > self.config.patience {
                self.dropped += 1;
                self.drop_client(place as u32);
            }
        }
    }

    fn control(&mut self, place: u32, wall: WallDuration, now: Instant) -> Result<(), ServeError> {
        let Some(mut controller) = self.controllers[place as usize].take() else { return Ok(()) };
        controller.moved = wall;
        let mut chunk = [0; 4096];
        let ended = match controller.stream.read(&mut chunk) {
            Ok(0) => true,
            Ok(n) => {
                controller.input.extend_from_slice(&chunk[..n]);
                controller.input.len() > LINE_BYTES_MAX
            }
            Err(error) => error.kind() != io::ErrorKind::WouldBlock,
        };
        while let Some(end) = controller.input.iter().position(|byte| *byte == b'\n') {
            let line: Vec<u8> = controller.input.drain(..=end).collect();
            let reply = match serde_json::from_slice(&line) {
                Ok(ask) => self.obey(ask, now)?,
                Err(error) => Reply::Error(format!("not a question that a server knows: {error}")),
            };
            let reply = serde_json::to_string(&reply).expect("an answer is JSON");
            controller.output.extend_from_slice(reply.as_bytes());
            controller.output.push(b'\n');
        }
        // Answers are short; a controller that does not read them is dropped.
        let sent = controller.stream.write_all(&controller.output).is_ok();
        controller.output.clear();
        if ended || !sent {
            let _ = epoll::delete(&self.epoll, &controller.stream);
        } else {
            self.controllers[place as usize] = Some(controller);
        }
        Ok(())
    }

    fn obey(&mut self, ask: Ask, now: Instant) -> Result<Reply, ServeError> {
        Ok(match ask {
            Ask::Status => Reply::Status(self.status()),
            Ask::Stop => {
                self.stopping = true;
                Reply::Stopping
            }
            Ask::Cut(order) => self.cut(&order, now)?,
            Ask::Save(_) => {
                Reply::Error("this is a server of disks: expected the control socket of a mount".into())
            }
        })
    }

    /// Cuts the power of one disk or of all.
    fn cut(&mut self, order: &CutOrder, now: Instant) -> Result<Reply, ServeError> {
        let names: Vec<&str> = self.disks.iter().map(Disk::name).collect();
        let chosen: Vec<usize> = match &order.export {
            None => (0..self.disks.len()).collect(),
            Some(name) => match names.iter().position(|other| other == name) {
                Some(at) => vec![at],
                None => {
                    let there = names.join("`, `");
                    return Ok(Reply::Error(format!("there is no export `{name}`; there are `{there}`")));
                }
            },
        };
        if let Some(why) = chosen.iter().find_map(|disk| self.disks[*disk].why_no_cut()) {
            return Ok(Reply::Error(why));
        }
        let tear = order.seed.map_or(Tear::Likeliest, Tear::Drawn);
        let mut done = Vec::new();
        for at in chosen {
            let requests_lost = self.disks[at].in_flight() as u64;
            let mut connections_dropped = 0;
            for place in 0..self.clients.len() {
                let Some(client) = self.clients[place].as_mut() else { continue };
                if client.connection.session().export() != Some(at) {
                    continue;
                }
                match order.on_cut() {
                    OnCut::Drop => {
                        self.drop_client(place as u32);
                        connections_dropped += 1;
                    }
                    // As an fsync does after a write-back that failed: lost data must not be taken for durable.
                    OnCut::Fail => {
                        client.flush_fails = !self.disks[at].completion_is_durable();
                    }
                }
            }
            let disk = &mut self.disks[at];
            let off = Duration::from_nanos(order.off_ns);
            let report = disk.cut(now, tear, order.on_cut(), off, &mut self.answers);
            let report = report.map_err(failed(disk.name()))?;
            done.push(CutDone {
                export: disk.name().to_owned(),
                requests_lost,
                connections_dropped,
                pages_read: report.pages_read,
                steps: report.steps,
                units: report.units,
                recovery_ns: report.time.as_nanos(),
                on_threads: false,
            });
        }
        Ok(Reply::Cut(done))
    }

    /// Status of the server.
    pub fn status(&self) -> Status {
        Status {
            uptime_ns: self.config.clock.wall().as_nanos() as u64,
            speed: self.config.clock.speed().to_string(),
            connections: self.clients.iter().flatten().count() as u64,
            disks: self.disks.iter().map(disk_status).collect(),
        }
    }

    /// Connections that were ever accepted, and those that were refused or dropped because they stalled.
    pub fn connections(&self) -> (u64, u64) {
        (self.connections_total, self.dropped)
    }

    /// Answers what is in flight, then closes every connection.
    fn say_farewell(&mut self) -> Result<(), ServeError> {
        for client in self.clients.iter_mut().flatten() {
            client.connection.session().shut_down();
            touch(client, &mut self.touched);
        }
        let deadline = self.config.clock.wall() + self.config.patience.min(WallDuration::from_secs(5));
        self.listeners.clear();
        self.sockets.remove();
        while self.clients.iter().any(Option::is_some) && self.config.clock.wall() < deadline {
            self.turn()?;
            for place in 0..self.clients.len() {
                let Some(client) = self.clients[place].as_mut() else { continue };
                let connection = &mut client.connection;
                let busy = connection.wants_write() || connection.is_runnable();
                let session = connection.session();
                if !busy && session.in_flight() == 0 && !session.is_mid_message() {
                    self.drop_client(place as u32);
                }
            }
        }
        Ok(())
    }

    /// The disks, for a clean end. The server is of no use any more.
    pub fn into_disks(mut self) -> Vec<Disk> {
        std::mem::take(&mut self.disks)
    }
}

/// Marks a client, which is then checked at the end of the turn.
fn touch(client: &mut Client, touched: &mut Vec<u32>) {
    if !std::mem::replace(&mut client.touched, true) {
        touched.push(client.id.place);
    }
}

/// A free place of a table of at most `max`, none of those that are `owed` something still.
fn vacancy<T>(table: &mut Vec<Option<T>>, max: usize, owed: impl Fn(usize) -> bool) -> Option<u32> {
    let free = (0..table.len()).find(|place| table[*place].is_none() && !owed(*place));
    if free.is_none() && table.len() < max {
        table.push(None);
        return Some(table.len() as u32 - 1);
    }
    free.map(|free| free as u32)
}

fn disk_status(disk: &Disk) -> DiskStatus {
    DiskStatus {
        on: disk.is_on(),
        cuts: disk.cuts(),
        in_flight: disk.in_flight() as u64,
        kinds: disk.stats().kinds(),
        misses_ns: disk.stats().misses(),
        time_ns: disk.time_ns(),
        ..DiskStatus::of(disk.name(), disk.device(), disk.size(), &disk.metrics())
    }
}
