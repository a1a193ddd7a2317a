//! Server of a disk on real threads: a thread, and a handle of the FTL, for each connection.
//!
//! Place in the data flow: as [`crate::server`], but what [`crate::nbd`] makes of bytes goes to `flashweir-threads`, whose medium is memory, a
//! file or a block device. There is no virtual time and no simulated device.
//!
//! A turn of a connection: take in what its client sent, begin all of it, answer what is done, wait for what has to be durable,
//! answer that. Reads of a turn are on their way at the same time.
//!
//! Invariants: as the server's; and a client whose thread waits for the FTL stops no other.

use crate::control::{Ask, CutDone, CutOrder, LINE_BYTES_MAX, Reply};
use crate::listen::{Endpoint, Listener, ServeError, Sockets, Stream, failed, listen, reserve_files};
use crate::nbd::{
    Command, Config, Connection, EXTENT_UNITS_MAX, EXTENTS_MAX, Errno, Extent, Progress, Request, TlsKeys,
    Token,
};
use flashweir_core::{Lpn, RandomStream};
use flashweir_threads::content::{UNIT_BYTES, Unit, WORDS, unit_to_bytes};
use flashweir_threads::{Assembly, Disk, Fault, Handle, ThreadsMetrics, Ticket};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use std::io::{self, Read as _, Write as _};
use std::os::fd::AsFd as _;
use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Weak};
use std::time::{Duration, Instant};

/// Configuration of a server.
#[derive(Clone, Debug)]
pub struct ParallelConfig {
    /// Addresses at which clients connect.
    pub endpoints: Vec<Endpoint>,
    /// A unix socket for `weir cut`.
    pub control: Option<PathBuf>,
    /// Certificate and key, where TLS is offered.
    pub keys: Option<TlsKeys>,
    /// Longest time of a handshake, of one message of a client, and of taking an answer.
    pub patience: Duration,
    /// How long a thread looks for requests before it sleeps.
    pub spin: Duration,
    /// Function for messages to users.
    pub say: fn(String),
}

/// Patience with clients while the server ends.
const PATIENCE_AT_END: Duration = Duration::from_secs(5);
/// Longest sleep, so that a signal is noticed.
const SLEEP_MAX: Duration = Duration::from_millis(200);
/// Longest time for which a controller may be silent in its question; no new client is accepted meanwhile. On a busy machine a second can pass
/// between a controller's `connect` and its `write`.
const QUESTION_MAX: Duration = Duration::from_secs(5);
/// Longest time that a connection needs to end when the power is cut.
const ENDING_MAX: Duration = Duration::from_secs(30);

/// What threads of connections share.
#[derive(Debug)]
struct Common {
    config: ParallelConfig,
    nbd: Arc<Config>,
    connections: AtomicU64,
    dropped: AtomicU64,
    has_failed: AtomicBool,
    /// Requests without an answer, of connections that lost the power.
    lost: AtomicU64,
}

/// A running server.
#[derive(Debug)]
pub struct ParallelServer {
    common: Arc<Common>,
    /// It is there but while the power is off.
    disk: Option<Disk>,
    /// Counters of its lives before the last power cut.
    counted: ThreadsMetrics,
    assembly: Assembly,
    listeners: Vec<Listener>,
    sockets: Sockets,
    is_stopping: bool,
}

/// A connection, seen by the server: its thread has the other end of the first, and of the second.
struct Live(Weak<()>, Stream);

impl ParallelServer {
    /// Opens the sockets. The disk, which has this assembly, is the only export of `nbd`.
    ///
    /// # Errors
    /// A socket cannot be opened, for instance because another server uses it.
    pub fn bind(
        config: ParallelConfig,
        nbd: Config,
        mut disk: Disk,
        assembly: Assembly,
    ) -> Result<Self, ServeError> {
        assert_eq!(nbd.exports().len(), 1, "one disk is one export");
        // Its socket, the server's twin of it, and the queue of its thread.
        let listening = reserve_files(disk.workers() as usize, 3)
            .and_then(|()| listen(config.control.as_deref(), &config.endpoints));
        let (listeners, sockets) = match listening {
            Ok(listening) => listening,
            Err(error) => {
                // Nobody has written: the volume is closed as it was.
                let _ = disk.seal();
                return Err(error);
            }
        };
        let number = || AtomicU64::new(0);
        let common = Common {
            config,
            nbd: Arc::new(nbd),
            connections: number(),
            dropped: number(),
            has_failed: AtomicBool::new(false),
            lost: number(),
        };
        let common = Arc::new(common);
        Ok(Self {
            common,
            disk: Some(disk),
            counted: ThreadsMetrics::default(),
            assembly,
            listeners,
            sockets,
            is_stopping: false,
        })
    }

    /// Addresses at which clients reach it; of TCP with the port that the system chose, where that was 0.
    pub fn addresses(&self) -> Vec<String> {
        self.listeners.iter().filter_map(Listener::address).collect()
    }

    /// The disk.
    pub fn disk(&self) -> &Disk {
        self.disk.as_ref().expect("the power is on")
    }

    /// Counters since the server began, over all power cuts; requests that a cut interrupts may be missing.
    pub fn metrics(&self) -> ThreadsMetrics {
        let mut sum = self.counted;
        sum.add(&self.disk().metrics());
        sum
    }

    /// Connections that were ever accepted, and those that were refused or dropped because they stalled.
    pub fn connections(&self) -> (u64, u64) {
        (self.common.connections.load(Ordering::Relaxed), self.common.dropped.load(Ordering::Relaxed))
    }

    /// Serves until `stop` is set or a stop is requested on the control socket, answers what is under way, and makes everything durable.
    ///
    /// # Errors
    /// Polling fails, or the file or block device has failed.
    pub fn run(&mut self, stop: &AtomicBool) -> Result<(), ServeError> {
        let is_over = AtomicBool::new(false);
        let ended = std::thread::scope(|scope| {
            let ended = self.listen(stop, |client| {
                let thread = std::thread::Builder::new().name("connection".into());
                let is_over = &is_over;
                thread.spawn_scoped(scope, move || client.run(is_over)).map(drop)
            });
            is_over.store(true, Ordering::Relaxed);
            ended
        });
        self.listeners.clear();
        self.sockets.remove();
        ended?;
        let disk = self.disk.as_mut().expect("the power is on");
        let mut handle = disk.handle().expect("all connections have ended");
        handle.flush().map_err(failed("what was written last is not durable"))?;
        drop(handle);
        disk.seal().map_err(failed("the disk cannot be closed"))
    }

    fn listen(
        &mut self,
        stop: &AtomicBool,
        start: impl Fn(Client) -> io::Result<()>,
    ) -> Result<(), ServeError> {
        let mut live: Vec<Live> = Vec::new();
        while !self.is_stopping && !stop.load(Ordering::Relaxed) {
            sleep(&self.listeners)?;
            for at in 0..self.listeners.len() {
                // Nobody, a client that has gone already, or a lack of descriptors: the next turn tries again.
                let Ok(stream) = self.listeners[at].accept() else { continue };
                if matches!(self.listeners[at], Listener::Control(_)) {
                    self.control(stream, &mut live, stop)?;
                    continue;
                }
                let (Some(handle), Ok(twin)) = (self.disk().handle(), stream.twin()) else {
                    self.common.dropped.fetch_add(1, Ordering::Relaxed);
                    continue;
                };
                self.common.connections.fetch_add(1, Ordering::Relaxed);
                live.retain(|Live(thread, _)| thread.strong_count() > 0);
                let common = Arc::clone(&self.common);
                let connection = Connection::new(stream, Arc::clone(&common.nbd), common.config.keys.clone());
                let is_there = Arc::new(());
                live.push(Live(Arc::downgrade(&is_there), twin));
                let waits = Vec::new();
                let client = Client { connection, handle, common, waits, has_power: true, is_there };
                // Without a thread for it, it is dropped; the others go on.
                if start(client).is_err() {
                    live.pop().into_iter().for_each(|Live(_, twin)| twin.shutdown());
                    self.common.dropped.fetch_add(1, Ordering::Relaxed);
                }
            }
        }
        Ok(())
    }

    /// Answers the question of a controller.
    fn control(
        &mut self,
        mut stream: Stream,
        live: &mut Vec<Live>,
        stop: &AtomicBool,
    ) -> Result<(), ServeError> {
        // A controller that takes too long is dropped, as one that does not want to know: nobody else is served meanwhile.
        let Ok(line) = question(&mut stream) else { return Ok(()) };
        let obeyed = match serde_json::from_slice(&line) {
            Ok(ask) => self.obey(ask, live, stop),
            Err(error) => Ok(Reply::Error(format!("not a question that a server knows: {error}"))),
        };
        let said = match &obeyed {
            Ok(reply) => serde_json::to_string(reply),
            Err(error) => serde_json::to_string(&Reply::Error(format!("the server ends: {error}"))),
        };
        let _ = writeln!(stream, "{}", said.expect("an answer is JSON"));
        obeyed.map(drop)
    }

    fn obey(&mut self, ask: Ask, live: &mut Vec<Live>, stop: &AtomicBool) -> Result<Reply, ServeError> {
        let refused = |why: &str| Ok(Reply::Error(why.into()));
        match ask {
            Ask::Stop => {
                self.is_stopping = true;
                Ok(Reply::Stopping)
            }
            Ask::Status => refused("a disk on threads has no status; its counters are printed when it ends"),
            Ask::Save(_) => refused("this is a server of a disk: expected the control socket of a mount"),
            Ask::Cut(CutOrder { eio: true, .. }) => {
                refused("connections to a disk on threads end with its power: expected no --eio")
            }
            Ask::Cut(CutOrder { seed: Some(_), .. }) if !self.disk().medium().can_lose() => refused(
                "what a power cut takes from this disk is not drawn: expected no --seed, or a disk that keeps what was overwritten, as \
                 weir threads FILE --worst has it",
            ),
            // Whether what it has was kept, nobody knows.
            Ask::Cut(_) if self.disk().medium().failure().is_some() => {
                refused("the disk has failed: expected a new server, which reads what is there")
            }
            Ask::Cut(order) => self.cut(&order, live, stop),
        }
    }

    /// Cuts the power: connections end, and the disk recovers from its medium. A server that is to stop waits no longer.
    fn cut(
        &mut self,
        order: &CutOrder,
        live: &mut Vec<Live>,
        stop: &AtomicBool,
    ) -> Result<Reply, ServeError> {
        let export = &self.common.nbd.exports()[0].name;
        if let Some(name) = order.export.as_ref().filter(|name| *name != export) {
            let there = if export.is_empty() { "one without a name".into() } else { format!("`{export}`") };
            return Ok(Reply::Error(format!("there is no export `{name}`; there is {there}")));
        }
        let disk = self.disk.take().expect("the power is on");
        self.counted.add(&disk.metrics());
        let medium = disk.cut();
        live.retain(|Live(thread, _)| thread.strong_count() > 0);
        let connections_dropped = live.len() as u64;
        for Live(_, stream) in live.iter() {
            stream.shutdown();
        }
        let begin = Instant::now();
        while live.iter().any(|Live(thread, _)| thread.strong_count() > 0) {
            if begin.elapsed() > ENDING_MAX {
                return Err(failed("power cut")("a connection does not end"));
            }
            std::thread::yield_now();
        }
        live.clear();
        if let Some(seed) = order.seed {
            let mut random = RandomStream::new(seed, "threads: what a power cut takes");
            let loses = random.unit();
            medium.lose(|| random.chance(loses)).map_err(failed("power cut"))?;
        }
        let (begin, off) = (Instant::now(), Duration::from_nanos(order.off_ns));
        while let Some(left) = off.checked_sub(begin.elapsed()).filter(|_| !stop.load(Ordering::Relaxed)) {
            std::thread::sleep(left.min(SLEEP_MAX));
        }
        let begin = Instant::now();
        let disk = Disk::open_medium(self.assembly, medium).map_err(failed("recovery"))?;
        let done = CutDone {
            export: export.clone(),
            requests_lost: self.common.lost.swap(0, Ordering::Relaxed),
            connections_dropped,
            pages_read: disk.metrics().recovery_reads,
            steps: 0,
            units: disk.mapped_units(),
            recovery_ns: begin.elapsed().as_nanos() as u64,
            on_threads: true,
        };
        self.disk = Some(disk);
        Ok(Reply::Cut(vec![done]))
    }
}

impl Common {
    fn has_failed(&self, fault: Fault) -> (Errno, String) {
        if fault == Fault::Full {
            return (Errno::NoSpc, fault.to_string());
        }
        if !self.has_failed.swap(true, Ordering::Relaxed) {
            (self.config.say)(format!("{fault}; every request is answered by EIO from now on"));
        }
        (Errno::Io, fault.to_string())
    }
}

fn sleep(listeners: &[Listener]) -> Result<(), ServeError> {
    let mut all: Vec<PollFd<'_>> =
        listeners.iter().map(|listener| PollFd::from_borrowed_fd(listener.as_fd(), PollFlags::IN)).collect();
    match poll(&mut all, Some(&timespec(SLEEP_MAX))) {
        Ok(_) | Err(rustix::io::Errno::INTR) => Ok(()),
        Err(error) => Err(failed("poll")(error)),
    }
}

fn timespec(span: Duration) -> Timespec {
    Timespec { tv_sec: span.as_secs() as i64, tv_nsec: span.subsec_nanos().into() }
}

/// Waits until there is something to read or write; returns whether there is.
fn wait(stream: &impl std::os::fd::AsFd, interest: PollFlags, most: Duration) -> bool {
    let mut one = [PollFd::from_borrowed_fd(stream.as_fd(), interest)];
    matches!(poll(&mut one, Some(&timespec(most))), Ok(ready) if ready > 0)
}

/// A connection with its thread.
struct Client {
    connection: Connection<Stream>,
    handle: Handle,
    common: Arc<Common>,
    /// Requests that are answered when they are durable.
    waits: Vec<(Token, Ticket)>,
    /// The disk has not lost its power.
    has_power: bool,
    /// It goes with this.
    is_there: Arc<()>,
}

/// A read of a turn.
struct Read {
    token: Token,
    lpn: Lpn,
    units: Vec<Unit>,
    /// Bytes of the first unit that are not wanted.
    skip: usize,
    length: usize,
}

impl Client {
    /// Serves the client until it goes or the server stops.
    fn run(mut self, stop: &AtomicBool) {
        let (mut moved, mut active) = (Instant::now(), Instant::now());
        let mut is_stopping = false;
        loop {
            if stop.load(Ordering::Relaxed) && !is_stopping {
                (is_stopping, moved) = (true, Instant::now());
                self.connection.session().shut_down();
            }
            if !self.connection.is_runnable() {
                let mut interest = PollFlags::empty();
                interest.set(PollFlags::IN, self.connection.wants_read());
                interest.set(PollFlags::OUT, self.connection.wants_write());
                let is_awake = active.elapsed() < self.common.config.spin;
                if is_awake {
                    std::thread::yield_now();
                }
                let most = if is_awake { Duration::ZERO } else { SLEEP_MAX };
                if !wait(self.connection.stream(), interest, most) && is_awake {
                    continue;
                }
            }
            let is_over = match self.connection.read() {
                Ok(Progress::Done(count)) => {
                    if count > 0 {
                        (moved, active) = (Instant::now(), Instant::now());
                    }
                    false
                }
                Ok(Progress::Blocked) => false,
                Ok(Progress::Closed) | Err(_) => true,
            };
            let before = self.connection.session().output().len();
            let Ok(has_worked) = self.turn() else {
                self.send_rest(stop);
                break;
            };
            if !self.has_power {
                self.common.lost.fetch_add(self.connection.session().in_flight() as u64, Ordering::Relaxed);
                break;
            }
            if has_worked {
                (moved, active) = (Instant::now(), Instant::now());
            }
            if self.connection.flush().is_err() || self.connection.session().wants_close() {
                break;
            }
            if is_over {
                self.send_rest(stop);
                break;
            }
            let waits_for_client = self.connection.wants_write();
            let session = self.connection.session();
            if session.output().len() < before {
                moved = Instant::now();
            }
            let is_busy = !session.is_transmitting() || session.is_mid_message() || waits_for_client;
            if is_stopping && !is_busy {
                break;
            }
            let of_all = self.common.config.patience;
            let patience = if is_stopping { of_all.min(PATIENCE_AT_END) } else { of_all };
            if !is_busy {
                moved = Instant::now();
            } else if moved.elapsed() > patience {
                self.common.dropped.fetch_add(1, Ordering::Relaxed);
                break;
            }
        }
        // The server has a descriptor of its own for it, so the client would not notice a mere close.
        self.connection.close().shutdown();
        drop(self.handle);
        drop(self.is_there);
    }

    /// Sends the answers that are left to a client that may have closed only its own side.
    fn send_rest(&mut self, stop: &AtomicBool) {
        let mut moved = Instant::now();
        let of_all = self.common.config.patience;
        let patience = || if stop.load(Ordering::Relaxed) { of_all.min(PATIENCE_AT_END) } else { of_all };
        while self.connection.wants_write() && moved.elapsed() < patience() {
            let before = self.connection.session().output().len();
            wait(self.connection.stream(), PollFlags::OUT, SLEEP_MAX);
            if self.connection.flush().is_err() {
                return;
            }
            if self.connection.session().output().len() < before {
                moved = Instant::now();
            }
        }
    }

    /// Executes what has arrived; returns whether there was something.
    fn turn(&mut self) -> Result<bool, crate::nbd::Fatal> {
        let mut reads = Vec::new();
        let mut has_worked = false;
        let mut ended = Ok(());
        loop {
            match self.connection.session().next_request() {
                Ok(Some(request)) => {
                    has_worked = true;
                    self.begin(request, &mut reads);
                }
                Ok(None) => break,
                Err(fatal) => {
                    // What came before is executed; there is nobody to answer.
                    ended = Err(fatal);
                    break;
                }
            }
        }
        self.answer_reads(reads);
        if !self.waits.is_empty() {
            // Who waits for these does not hold up the others. What cannot be sent now is sent later.
            let _ = self.connection.flush();
            for (token, ticket) in std::mem::take(&mut self.waits) {
                self.answer(token, ticket.wait());
            }
        }
        ended.map(|()| has_worked)
    }

    fn begin(&mut self, Request { token, offset, length, command }: Request, reads: &mut Vec<Read>) {
        let unit = UNIT_BYTES as u64;
        let (lpn, end) = (offset / unit, offset + u64::from(length));
        match command {
            Command::Read => {
                let units = vec![[0; WORDS]; (end.div_ceil(unit) - lpn) as usize];
                let skip = (offset % unit) as usize;
                reads.push(Read { token, lpn: Lpn(lpn), units, skip, length: length as usize });
            }
            Command::Write { data, fua } => {
                let ticket = self.write(offset, &data, fua);
                self.later(token, ticket, fua);
            }
            Command::Trim { fua } => {
                // Parts of units stay as they are.
                let (first, last) = (offset.div_ceil(unit), end / unit);
                let ticket = self.handle.submit_trim(Lpn(first), last.saturating_sub(first), fua);
                self.later(token, ticket, fua);
            }
            Command::WriteZeroes { fast: true, no_hole: true, .. } => {
                let session = self.connection.session();
                session.reply_error(
                    token,
                    Errno::NotSup,
                    "zeros that stay allocated are no faster than a write",
                );
            }
            Command::WriteZeroes { fua, no_hole, .. } => {
                let ticket = self.write_zeroes(offset, end, !no_hole, fua);
                self.later(token, ticket, fua);
            }
            Command::Flush => {
                let ticket = self.handle.submit_flush();
                self.waits.push((token, ticket));
            }
            Command::Cache => self.connection.session().reply_ok(token),
            Command::BlockStatus { one } => self.extents(token, offset, end, one),
        }
    }

    /// Writes bytes: whole units, and parts of units before and behind them. The last ticket answers for all, if that is to be durable.
    fn write(&mut self, offset: u64, data: &[u8], fua: bool) -> Result<Ticket, Fault> {
        let unit = UNIT_BYTES as u64;
        let (lpn, from) = (Lpn(offset / unit), (offset % unit) as usize);
        if from == 0 && data.len().is_multiple_of(UNIT_BYTES) {
            return self.handle.submit_bytes(lpn, data, fua);
        }
        let (head, rest) = data.split_at(((UNIT_BYTES - from) % UNIT_BYTES).min(data.len()));
        let (whole, tail) = rest.split_at(rest.len() / UNIT_BYTES * UNIT_BYTES);
        let first = Lpn((offset + head.len() as u64).div_ceil(unit));
        let mut ticket = Ticket::answered();
        if !head.is_empty() {
            ticket = self.handle.submit_part(lpn, from, head, false)?;
        }
        if !whole.is_empty() {
            ticket = self.handle.submit_bytes(first, whole, false)?;
        }
        if !tail.is_empty() {
            let last = Lpn(first.0 + (whole.len() / UNIT_BYTES) as u64);
            ticket = self.handle.submit_part(last, 0, tail, false)?;
        }
        Ok(if fua { self.handle.submit_flush() } else { ticket })
    }

    /// Has bytes read as zeros, by deallocating whole units if that may be.
    fn write_zeroes(&mut self, offset: u64, end: u64, holes: bool, fua: bool) -> Result<Ticket, Fault> {
        static ZEROS: [u8; 16 * UNIT_BYTES] = [0; 16 * UNIT_BYTES];
        let unit = UNIT_BYTES as u64;
        let (first, last) = (offset.div_ceil(unit), end / unit);
        let mut ticket = Ticket::answered();
        let mut at = offset;
        while at < end {
            let is_whole = holes && at.is_multiple_of(unit) && at / unit < last;
            if is_whole {
                ticket = self.handle.submit_trim(Lpn(first), last - first, false)?;
                at = last * unit;
                continue;
            }
            let stop = if holes && at < first * unit { end.min(first * unit) } else { end };
            let part = (stop - at).min(ZEROS.len() as u64 - at % unit);
            ticket = self.write(at, &ZEROS[..part as usize], false)?;
            at += part;
        }
        Ok(if fua { self.handle.submit_flush() } else { ticket })
    }

    /// Has a request answered: at once, or when it is durable.
    fn later(&mut self, token: Token, ticket: Result<Ticket, Fault>, fua: bool) {
        match ticket {
            Ok(ticket) if fua => self.waits.push((token, ticket)),
            Ok(_) => self.connection.session().reply_ok(token),
            Err(fault) => self.answer(token, Err(fault)),
        }
    }

    fn answer(&mut self, token: Token, result: Result<(), Fault>) {
        match result {
            Ok(()) => self.connection.session().reply_ok(token),
            // Its answer is that the connection ends.
            Err(Fault::PowerLost) => self.has_power = false,
            Err(fault) => {
                let (errno, why) = self.common.has_failed(fault);
                self.connection.session().reply_error(token, errno, &why);
            }
        }
    }

    fn answer_reads(&mut self, mut reads: Vec<Read>) {
        let result = self.handle.read_many(reads.iter_mut().map(|read| (read.lpn, &mut read.units[..])));
        for Read { token, units, skip, length, .. } in reads {
            if let Err(fault) = result {
                self.answer(token, Err(fault));
                continue;
            }
            self.connection.session().reply_read(token, |reply| {
                let (mut skip, mut left) = (skip, length);
                for unit in &units {
                    let part = (UNIT_BYTES - skip).min(left);
                    if *unit == [0; WORDS] {
                        reply.hole(part);
                    } else {
                        reply.data(&unit_to_bytes(unit)[skip..skip + part]);
                    }
                    (skip, left) = (0, left - part);
                }
            });
        }
    }

    fn extents(&mut self, token: Token, offset: u64, end: u64, one: bool) {
        let unit = UNIT_BYTES as u64;
        let mut extents = Vec::new();
        let mut at = offset;
        let end = end.min(offset + EXTENT_UNITS_MAX * unit);
        while at < end && extents.len() < if one { 1 } else { EXTENTS_MAX } {
            let (lpn, last) = (at / unit, end.div_ceil(unit));
            let (count, hole) = match self.handle.extent(Lpn(lpn), last - lpn) {
                Ok(extent) => extent,
                Err(fault) => return self.answer(token, Err(fault)),
            };
            let to = ((lpn + count) * unit).min(end);
            extents.push(Extent { length: (to - at) as u32, hole, zero: hole });
            at = to;
        }
        self.connection.session().reply_block_status(token, extents);
    }
}

/// Reads the question of a controller, a line. The error says that it takes too long, or is too long.
fn question(stream: &mut Stream) -> io::Result<Vec<u8>> {
    let (begun, mut line, mut part) = (Instant::now(), Vec::new(), [0; 4096]);
    while !line.ends_with(b"\n") {
        let left = QUESTION_MAX.saturating_sub(begun.elapsed());
        if left.is_zero() || line.len() > LINE_BYTES_MAX {
            return Err(io::ErrorKind::TimedOut.into());
        }
        stream.block(left)?;
        match stream.read(&mut part)? {
            0 => break,
            count => line.extend_from_slice(&part[..count]),
        }
    }
    Ok(line)
}
