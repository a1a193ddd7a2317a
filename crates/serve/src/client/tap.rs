//! The record of another program: the messages between it and a server, recorded on the way.
//!
//! A request is recorded when it is complete here, before it goes on to the server; a reply when it is complete here,
//! before it goes on to the program. A reply that was recorded before a flush was, had therefore been given by the
//! server before it saw the flush: whatever the contract promises by this record, it has to promise.
//!
//! Deliberately absent: TLS, and options other than those that end in `NBD_OPT_GO`.

use super::record::{Failure, FailureKind, Record};
use super::replies::{Ask, Replies};
use crate::nbd::wire::{
    OPTION_BYTES, OPTION_REPLY_MAGIC, REQUEST_BYTES, REQUEST_MAGIC, RequestHeader, command, option,
    option_reply,
};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use std::collections::BTreeMap;
use std::io::{self, ErrorKind, Read, Write};
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::{Path, PathBuf};
use std::time::Duration;

/// Bytes that wait to be sent to one side.
#[derive(Debug)]
struct Side {
    stream: UnixStream,
    output: Vec<u8>,
    open: bool,
}

impl Side {
    fn new(stream: UnixStream) -> io::Result<Self> {
        stream.set_nonblocking(true)?;
        Ok(Self { stream, output: Vec::new(), open: true })
    }

    fn read(&mut self, into: &mut Vec<u8>) {
        let mut chunk = [0; 64 << 10];
        for _ in 0..16 {
            match self.stream.read(&mut chunk) {
                Ok(0) => self.open = false,
                Ok(n) => {
                    into.extend_from_slice(&chunk[..n]);
                    continue;
                }
                Err(error) if error.kind() == ErrorKind::Interrupted => continue,
                Err(error) if error.kind() == ErrorKind::WouldBlock => {}
                Err(_) => self.open = false,
            }
            return;
        }
    }

    fn write(&mut self) {
        let mut sent = 0;
        while sent < self.output.len() {
            match self.stream.write(&self.output[sent..]) {
                Ok(n) if n > 0 => sent += n,
                Err(error) if error.kind() == ErrorKind::Interrupted => {}
                Err(error) if error.kind() == ErrorKind::WouldBlock => break,
                Ok(_) | Err(_) => {
                    self.open = false;
                    sent = self.output.len();
                }
            }
        }
        self.output.drain(..sent);
    }
}

/// One connection through the tap.
#[derive(Debug)]
struct Pair {
    program: Side,
    server: Side,
    /// Bytes from the program that are not a complete message yet.
    asking: Vec<u8>,
    /// The same from the server, before its replies to requests begin.
    answering: Vec<u8>,
    greeted: bool,
    transmitting: bool,
    replies: Replies,
    names: BTreeMap<u64, u64>,
}

/// Events on the wire, in the order of the record.
#[derive(Debug)]
pub enum Tapped<'a> {
    /// A request with the data of a write.
    Asked(u64, &'a Ask, &'a [u8]),
    /// It was answered successfully.
    Answered(u64, &'a Ask),
}

/// A unix socket whose clients reach a server behind it.
#[derive(Debug)]
pub struct Tap {
    listener: UnixListener,
    path: PathBuf,
    server: PathBuf,
    pairs: Vec<Pair>,
}

impl Drop for Tap {
    fn drop(&mut self) {
        // The file may be gone already.
        let _ = std::fs::remove_file(&self.path);
    }
}

impl Tap {
    /// Listens on `path` for clients of the server at `server`.
    ///
    /// # Errors
    /// The socket cannot be opened.
    pub fn bind(path: &Path, server: &Path) -> io::Result<Self> {
        let listener = UnixListener::bind(path)?;
        listener.set_nonblocking(true)?;
        Ok(Self { listener, path: path.to_owned(), server: server.to_owned(), pairs: Vec::new() })
    }

    /// Whether a connection is open.
    pub fn is_connected(&self) -> bool {
        !self.pairs.is_empty()
    }

    /// Passes on what there is, and waits up to `patience` for more.
    ///
    /// # Errors
    /// A reply is wrong, a request failed, or one of the sides does not speak the protocol.
    pub fn turn(
        &mut self,
        record: &mut Record,
        patience: Duration,
        watch: &mut impl FnMut(Tapped<'_>),
    ) -> Result<(), Failure> {
        let broken = |error: io::Error| Failure::new(FailureKind::Server, format!("tap: {error}"));
        match self.listener.accept() {
            Ok((program, _)) => {
                let server = UnixStream::connect(&self.server).map_err(broken)?;
                let (program, server) =
                    (Side::new(program).map_err(broken)?, Side::new(server).map_err(broken)?);
                self.pairs.push(Pair {
                    program,
                    server,
                    asking: Vec::new(),
                    answering: Vec::new(),
                    greeted: false,
                    transmitting: false,
                    replies: Replies::default(),
                    names: BTreeMap::new(),
                });
            }
            Err(error) if error.kind() == ErrorKind::WouldBlock => {}
            Err(error) => return Err(broken(error)),
        }
        for pair in &mut self.pairs {
            pair.pass(record, watch)?;
        }
        self.pairs.retain(|pair| pair.program.open && pair.server.open);
        self.wait(patience).map_err(broken)
    }

    fn wait(&self, patience: Duration) -> io::Result<()> {
        let events = |side: &Side| {
            let mut events = PollFlags::IN;
            events.set(PollFlags::OUT, !side.output.is_empty());
            events
        };
        let mut polled = vec![PollFd::new(&self.listener, PollFlags::IN)];
        for pair in &self.pairs {
            polled.push(PollFd::new(&pair.program.stream, events(&pair.program)));
            polled.push(PollFd::new(&pair.server.stream, events(&pair.server)));
        }
        let timeout = Timespec { tv_sec: patience.as_secs() as i64, tv_nsec: patience.subsec_nanos().into() };
        match poll(&mut polled, Some(&timeout)) {
            Ok(_) | Err(rustix::io::Errno::INTR) => Ok(()),
            Err(error) => Err(error.into()),
        }
    }
}

fn wrong(what: impl Into<String>) -> Failure {
    Failure::new(FailureKind::Server, what)
}

fn be32(bytes: &[u8], at: usize) -> u32 {
    u32::from_be_bytes(bytes[at..at + 4].try_into().expect("the caller has looked at the length"))
}

impl Pair {
    fn pass(&mut self, record: &mut Record, watch: &mut impl FnMut(Tapped<'_>)) -> Result<(), Failure> {
        self.program.read(&mut self.asking);
        if self.transmitting {
            self.requests(record, watch)?;
        } else {
            self.server.output.append(&mut self.asking);
        }
        self.server.write();
        let mut bytes = Vec::new();
        self.server.read(&mut bytes);
        self.program.output.extend_from_slice(&bytes);
        if self.transmitting {
            self.replies.feed(&bytes);
        } else {
            self.answering.append(&mut bytes);
            self.negotiation()?;
        }
        while let Some(reply) = self.replies.next().map_err(wrong)? {
            let id = self.names.remove(&reply.cookie).expect("replies are to requests in flight");
            record.complete(id, &reply.result)?;
            watch(Tapped::Answered(id, &reply.ask));
        }
        self.program.write();
        Ok(())
    }

    /// Looks for the acknowledgement after which requests come.
    fn negotiation(&mut self) -> Result<(), Failure> {
        if !self.greeted && self.answering.len() >= 18 {
            self.answering.drain(..18);
            self.greeted = true;
        }
        while self.greeted && !self.transmitting && self.answering.len() >= OPTION_BYTES + 4 {
            let magic = u64::from_be_bytes(self.answering[..8].try_into().expect("eight bytes"));
            if magic != OPTION_REPLY_MAGIC {
                return Err(wrong(format!("tap: a reply to an option begins with {magic:#x}")));
            }
            let (number, kind) = (be32(&self.answering, 8), be32(&self.answering, 12));
            let end = OPTION_BYTES + 4 + be32(&self.answering, 16) as usize;
            if self.answering.len() < end {
                break;
            }
            self.answering.drain(..end);
            if (number, kind) == (option::GO, option_reply::ACK) {
                self.transmitting = true;
                self.replies.feed(&std::mem::take(&mut self.answering));
            }
        }
        Ok(())
    }

    fn requests(&mut self, record: &mut Record, watch: &mut impl FnMut(Tapped<'_>)) -> Result<(), Failure> {
        let mut at = 0;
        while let Some(header) = self.asking[at..].first_chunk::<REQUEST_BYTES>() {
            let header = RequestHeader::parse(header);
            if header.magic != REQUEST_MAGIC {
                return Err(wrong(format!("tap: a request begins with {:#x}", header.magic)));
            }
            let payload = if header.command == command::WRITE { header.length as usize } else { 0 };
            let Some(data) = self.asking.get(at + REQUEST_BYTES..at + REQUEST_BYTES + payload) else { break };
            if header.command != command::DISC {
                let ask = Ask::of(&header);
                if !record.covers(&ask) {
                    return Err(wrong(format!("tap: the program leaves its region of the disk: {ask:?}")));
                }
                let id = record.submit(&ask, data);
                watch(Tapped::Asked(id, &ask, data));
                self.replies.expect(header.cookie, ask);
                self.names.insert(header.cookie, id);
            }
            at += REQUEST_BYTES + payload;
        }
        self.server.output.extend_from_slice(&self.asking[..at]);
        self.asking.drain(..at);
        Ok(())
    }
}
