//! An NBD client on a unix socket that does not block: several requests in flight, replies in any order.
//!
//! Invariant: a request is in flight from [`Client::send`] until its reply is taken out.

use super::replies::{Ask, Facts, Replies, Reply};
use crate::clock::{Clock, Speed};
use crate::nbd::wire::{
    FLAG_FIXED_NEWSTYLE, FLAG_NO_ZEROES, GREETING_MAGIC, OPTION_MAGIC, OPTION_REPLY_MAGIC, info, option,
    option_reply,
};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use std::fmt;
use std::io::{self, ErrorKind, Read, Write};
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::time::Duration;

/// Bytes of one read of the stream.
const CHUNK: usize = 256 << 10;

/// Why a client cannot continue.
#[derive(Debug)]
pub enum ClientError {
    /// The server closed the connection, or the stream failed.
    Gone(String),
    /// The server refused, or broke the protocol.
    Protocol(String),
    /// Nothing arrived within this time.
    Silent(Duration),
}

impl fmt::Display for ClientError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Gone(why) => write!(f, "the connection is gone: {why}"),
            Self::Protocol(why) => f.write_str(why),
            Self::Silent(patience) => write!(f, "no answer within {:.1} s", patience.as_secs_f64()),
        }
    }
}

impl std::error::Error for ClientError {}

impl From<io::Error> for ClientError {
    fn from(error: io::Error) -> Self {
        Self::Gone(error.to_string())
    }
}

/// One connection in its transmission phase.
#[derive(Debug)]
pub struct Client {
    stream: UnixStream,
    facts: Facts,
    replies: Replies,
    output: Vec<u8>,
    sent: usize,
    next_cookie: u64,
    gone: Option<String>,
}

impl Client {
    /// Connects to the server at `socket` and chooses `export`.
    ///
    /// # Errors
    /// No server listens there, the server refuses, or it does not answer within `patience`.
    pub fn connect(
        socket: &Path,
        export: &str,
        structured: bool,
        patience: Duration,
    ) -> Result<Self, ClientError> {
        let mut stream = UnixStream::connect(socket)?;
        stream.set_read_timeout(Some(patience))?;
        stream.set_write_timeout(Some(patience))?;
        let facts = negotiate(&mut stream, export, structured).map_err(|error| match error {
            ClientError::Gone(why) if why.contains("temporarily unavailable") => {
                ClientError::Silent(patience)
            }
            error => error,
        })?;
        stream.set_nonblocking(true)?;
        let replies = Replies::default();
        Ok(Self { stream, facts, replies, output: Vec::new(), sent: 0, next_cookie: 1, gone: None })
    }

    /// The server's data about the export.
    pub fn facts(&self) -> Facts {
        self.facts
    }

    /// Requests without a reply.
    pub fn in_flight(&self) -> usize {
        self.replies.in_flight()
    }

    /// Why the connection has ended, if it has. Replies that came before can still be taken out.
    pub fn gone(&self) -> Option<&str> {
        self.gone.as_deref()
    }

    /// Queues a request with the data of a write; returns the cookie that its reply will have.
    pub fn send(&mut self, ask: Ask, data: &[u8]) -> u64 {
        let cookie = self.next_cookie;
        self.next_cookie += 1;
        self.output.extend_from_slice(&ask.header(cookie).to_bytes());
        self.output.extend_from_slice(data);
        self.replies.expect(cookie, ask);
        cookie
    }

    /// Queues bytes that need not form a request.
    pub fn send_raw(&mut self, bytes: &[u8]) {
        self.output.extend_from_slice(bytes);
    }

    /// Sends and receives as much as the stream allows, without waiting.
    pub fn pump(&mut self) {
        if self.gone.is_none()
            && let Err(error) = self.write()
        {
            // What the server answered before its end is still to be read.
            self.gone = Some(error.to_string());
        }
        let mut chunk = [0; 16 << 10];
        for _ in 0..CHUNK / chunk.len() {
            match self.stream.read(&mut chunk) {
                Ok(0) => {
                    self.gone.get_or_insert_with(|| "closed by the server".into());
                    return;
                }
                Ok(n) => self.replies.feed(&chunk[..n]),
                Err(error) if error.kind() == ErrorKind::Interrupted => {}
                Err(error) if error.kind() == ErrorKind::WouldBlock => return,
                Err(error) => {
                    self.gone.get_or_insert_with(|| error.to_string());
                    return;
                }
            }
        }
    }

    fn write(&mut self) -> io::Result<()> {
        while self.sent < self.output.len() {
            match self.stream.write(&self.output[self.sent..]) {
                Ok(0) => return Err(ErrorKind::WriteZero.into()),
                Ok(n) => self.sent += n,
                Err(error) if error.kind() == ErrorKind::Interrupted => {}
                Err(error) if error.kind() == ErrorKind::WouldBlock => return Ok(()),
                Err(error) => return Err(error),
            }
        }
        self.output.clear();
        self.sent = 0;
        Ok(())
    }

    /// The next reply that has arrived.
    ///
    /// # Errors
    /// The server said what it must not say.
    pub fn reply(&mut self) -> Result<Option<Reply>, ClientError> {
        self.replies.next().map_err(ClientError::Protocol)
    }

    /// Waits for the next reply.
    ///
    /// # Errors
    /// The connection ends, the server breaks the protocol, or nothing comes within `patience`.
    pub fn wait(&mut self, patience: Duration) -> Result<Reply, ClientError> {
        let clock = Clock::new(Speed::Max);
        loop {
            self.pump();
            if let Some(reply) = self.reply()? {
                return Ok(reply);
            }
            if let Some(why) = &self.gone {
                return Err(ClientError::Gone(why.clone()));
            }
            let Some(left) = patience.checked_sub(clock.wall()) else {
                return Err(ClientError::Silent(patience));
            };
            wait_for(&[&*self], left)?;
        }
    }

    /// Sends a request and waits for its reply; nothing else may be in flight.
    ///
    /// # Errors
    /// As [`Self::wait`].
    pub fn call(&mut self, ask: Ask, data: &[u8], patience: Duration) -> Result<Reply, ClientError> {
        assert_eq!(self.in_flight(), 0, "a call has the connection for itself");
        self.send(ask, data);
        self.wait(patience)
    }

    /// Reads a range of any length, several requests at a time; nothing else may be in flight.
    ///
    /// # Errors
    /// As [`Self::wait`], or a read fails: `Ok(Err(errno))`.
    pub fn read_range(
        &mut self,
        from: u64,
        bytes: u64,
        patience: Duration,
    ) -> Result<Result<Vec<u8>, u32>, ClientError> {
        const PART: u64 = 256 << 10;
        assert_eq!(self.in_flight(), 0, "a long read has the connection for itself");
        let mut content = vec![0; bytes as usize];
        let (mut asked, mut failed) = (0, None);
        while asked < bytes || self.in_flight() > 0 {
            while asked < bytes && self.in_flight() < 8 {
                let length = PART.min(bytes - asked) as u32;
                self.send(Ask { offset: from + asked, length, ..Ask::default() }, &[]);
                asked += u64::from(length);
            }
            let reply = self.wait(patience)?;
            match reply.result {
                Ok(part) => {
                    let at = (reply.ask.offset - from) as usize;
                    content[at..at + part.len()].copy_from_slice(&part);
                }
                Err(errno) => failed = Some(errno),
            }
        }
        Ok(failed.map_or(Ok(content), Err))
    }
}

/// Waits until one of the clients can go on, `patience` at most.
///
/// # Errors
/// The system cannot poll.
pub fn wait_for(clients: &[&Client], patience: Duration) -> io::Result<()> {
    let mut polled: Vec<PollFd<'_>> = clients
        .iter()
        .filter(|client| client.gone.is_none())
        .map(|client| {
            let mut events = PollFlags::IN;
            events.set(PollFlags::OUT, client.sent < client.output.len());
            PollFd::new(&client.stream, events)
        })
        .collect();
    let timeout = Timespec { tv_sec: patience.as_secs() as i64, tv_nsec: patience.subsec_nanos().into() };
    match poll(&mut polled, Some(&timeout)) {
        Ok(_) | Err(rustix::io::Errno::INTR) => Ok(()),
        Err(error) => Err(error.into()),
    }
}

fn take<const N: usize>(stream: &mut UnixStream) -> io::Result<[u8; N]> {
    let mut bytes = [0; N];
    stream.read_exact(&mut bytes)?;
    Ok(bytes)
}

fn ask_option(stream: &mut UnixStream, number: u32, data: &[u8]) -> io::Result<()> {
    let mut bytes = OPTION_MAGIC.to_be_bytes().to_vec();
    bytes.extend_from_slice(&number.to_be_bytes());
    bytes.extend_from_slice(&(data.len() as u32).to_be_bytes());
    bytes.extend_from_slice(data);
    stream.write_all(&bytes)
}

/// Type and data of the next reply to an option.
fn option_answer(stream: &mut UnixStream, number: u32) -> Result<(u32, Vec<u8>), ClientError> {
    let (magic, option) = (u64::from_be_bytes(take(stream)?), u32::from_be_bytes(take(stream)?));
    let (kind, length) = (u32::from_be_bytes(take(stream)?), u32::from_be_bytes(take(stream)?));
    if (magic, option) != (OPTION_REPLY_MAGIC, number) || length > 1 << 20 {
        return Err(ClientError::Protocol(format!("no reply to option {number}: {magic:#x}, {option}")));
    }
    let mut data = vec![0; length as usize];
    stream.read_exact(&mut data)?;
    Ok((kind, data))
}

fn negotiate(stream: &mut UnixStream, export: &str, structured: bool) -> Result<Facts, ClientError> {
    let (greeting, options) = (u64::from_be_bytes(take(stream)?), u64::from_be_bytes(take(stream)?));
    let flags = u16::from_be_bytes(take(stream)?);
    if (greeting, options) != (GREETING_MAGIC, OPTION_MAGIC) || flags & FLAG_FIXED_NEWSTYLE == 0 {
        return Err(ClientError::Protocol(format!(
            "no greeting of NBD: {greeting:#x}, {options:#x}, {flags}"
        )));
    }
    stream.write_all(&u32::from(FLAG_FIXED_NEWSTYLE | FLAG_NO_ZEROES).to_be_bytes())?;
    if structured {
        ask_option(stream, option::STRUCTURED_REPLY, &[])?;
        let (kind, _) = option_answer(stream, option::STRUCTURED_REPLY)?;
        if kind != option_reply::ACK {
            return Err(ClientError::Protocol("the server has no structured replies".into()));
        }
    }
    let mut data = (export.len() as u32).to_be_bytes().to_vec();
    data.extend_from_slice(export.as_bytes());
    data.extend_from_slice(&1u16.to_be_bytes());
    data.extend_from_slice(&info::BLOCK_SIZE.to_be_bytes());
    ask_option(stream, option::GO, &data)?;
    let mut facts = Facts::default();
    loop {
        let (kind, data) = option_answer(stream, option::GO)?;
        let word = |at: usize| u16::from_be_bytes([data[at], data[at + 1]]);
        match kind {
            option_reply::ACK => return Ok(facts),
            option_reply::INFO if data.len() == 12 && word(0) == info::EXPORT => {
                facts.size = u64::from_be_bytes(data[2..10].try_into().expect("eight bytes"));
                facts.flags = word(10);
            }
            option_reply::INFO if data.len() == 14 && word(0) == info::BLOCK_SIZE => {
                let four = |at: usize| u32::from_be_bytes(data[at..at + 4].try_into().expect("four bytes"));
                facts.blocks = [four(2), four(6), four(10)];
            }
            option_reply::INFO => {}
            _ => {
                let why = String::from_utf8_lossy(&data);
                return Err(ClientError::Protocol(format!(
                    "the server refuses the export: {kind:#x}, {why}"
                )));
            }
        }
    }
}
