//! A client that does whatever the input says, and an engine that answers in any order, on one NBD session.
#![no_main]

#[path = "../../crates/serve/tests/it/nbd/client.rs"]
mod client;

use arbitrary::{Result, Unstructured};
use client::{DISK_BYTES, Memory, Message};
use flashweir_serve::nbd::wire::{BASE_ALLOCATION, OPTION_REPLY_MAGIC, chunk, command, option};
use flashweir_serve::nbd::{Command, Errno, Limits, Request, Session, TlsMode};
use libfuzzer_sys::fuzz_target;

fuzz_target!(|data: &[u8]| {
    // It ends when the input does; what is left then is answered.
    let mut input = Unstructured::new(data);
    if let Ok(mut run) = Run::new(&mut input) {
        while !input.is_empty() && run.action(&mut input).is_ok() {}
        run.finish();
    }
});

struct Run {
    session: Session,
    limits: Limits,
    memory: Memory,
    /// Requests that wait for an answer.
    waiting: Vec<Request>,
    structured: bool,
    /// Output that was looked at.
    seen: usize,
}

impl Run {
    fn new(input: &mut Unstructured<'_>) -> Result<Self> {
        let tls = *input.choose(&[TlsMode::Off, TlsMode::Offered, TlsMode::Required])?;
        let limits = *input.choose(&[
            Limits::default(),
            Limits { requests: 1, request_bytes: 1, output_bytes: 1 },
            Limits { requests: 4, request_bytes: 100_000, output_bytes: 20_000 },
        ])?;
        let session = Session::new(client::config(tls, limits));
        let seen = session.output().len();
        let mut run =
            Self { session, limits, memory: Memory::new(), waiting: Vec::new(), structured: false, seen };
        match input.int_in_range(0..=4)? {
            0 => {}
            1 => run.feed(&client::client_flags()),
            2 => run.feed(&client::negotiation(false, "disk")),
            3 => run.feed(&client::negotiation(true, "old")),
            _ => run.feed(&client::negotiation(true, "disk")),
        }
        Ok(run)
    }

    fn action(&mut self, input: &mut Unstructured<'_>) -> Result<()> {
        match input.int_in_range(0..=11_u8)? {
            0 => {
                let n = input.int_in_range(0..=64)?;
                let noise = input.bytes(usize::min(n, input.len()))?.to_vec();
                self.feed(&noise);
            }
            1 => {
                let bytes = any_option(input)?;
                self.feed(&bytes);
            }
            2..=5 => {
                let bytes = any_request(input)?;
                self.feed(&bytes);
            }
            6 => {
                let (byte, n) = (input.arbitrary()?, input.int_in_range(0..=150_000)?);
                self.feed(&vec![byte; n]);
            }
            7..=8 if !self.waiting.is_empty() => {
                let which = input.choose_index(self.waiting.len())?;
                let how = input.arbitrary()?;
                self.answer(which, how);
            }
            9 => {
                let n = input.int_in_range(0..=100_000)?;
                self.take(n);
            }
            10 => {
                self.take(usize::MAX);
                if self.session.is_starting_tls() {
                    self.session.tls_started();
                    self.structured = false;
                }
            }
            11 if input.ratio(1, 50)? => self.session.shut_down(),
            _ => {}
        }
        self.parse();
        Ok(())
    }

    /// Gives bytes to the session as long as it wants any.
    fn feed(&mut self, bytes: &[u8]) {
        let mut left = bytes;
        while !left.is_empty() && self.session.wants_read() {
            let space = self.session.space();
            assert!(!space.is_empty(), "a session that wants bytes has room");
            let n = space.len().min(left.len());
            space[..n].copy_from_slice(&left[..n]);
            self.session.received(n);
            left = &left[n..];
            self.parse();
        }
    }

    /// Takes all requests that are complete.
    fn parse(&mut self) {
        loop {
            let transmitting = self.session.is_transmitting();
            let idle = self.is_full() || !self.session.is_runnable();
            let before = self.session.output().len();
            let result = self.session.next_request();
            assert!(
                !idle || (result == Ok(None) && self.session.output().len() == before),
                "a session that is full, or says that there is nothing to do, does nothing"
            );
            self.look(transmitting);
            match result {
                Ok(Some(request)) => {
                    self.check(&request);
                    self.waiting.push(request);
                }
                Ok(None) => break,
                Err(_) => {
                    assert!(self.session.wants_close() && !self.session.wants_read());
                    assert_eq!(self.session.next_request(), Ok(None));
                    break;
                }
            }
        }
        assert!(!self.session.is_runnable(), "everything that could be parsed was");
        assert_eq!(self.session.in_flight(), self.waiting.len());
        let Limits { request_bytes, output_bytes, .. } = self.limits;
        let one = 2 * DISK_BYTES as usize;
        let bytes = self.bytes_in_flight();
        // Requests and the payload that arrives, output in a buffer that doubles, input, and the table.
        let output = 2 * (output_bytes + request_bytes as usize + one);
        let bound = bytes as usize + one + output + (2 << 20) + (512 << 10);
        assert!(self.session.memory_bytes() <= bound, "{} of {bound}", self.session.memory_bytes());
        assert!(
            self.session.output().len() <= output_bytes + request_bytes as usize + one,
            "output is bounded"
        );
    }

    /// What requests in flight count of the connection's memory.
    fn bytes_in_flight(&self) -> u64 {
        self.waiting
            .iter()
            .map(|request| match request.command {
                Command::Read | Command::Write { .. } => request.length.into(),
                Command::BlockStatus { one: false } => 4096 * 8,
                Command::BlockStatus { one: true } => 8,
                _ => 0,
            })
            .sum()
    }

    /// The session holds as much as it may.
    fn is_full(&self) -> bool {
        let Limits { request_bytes, output_bytes, requests } = self.limits;
        self.waiting.len() >= requests
            || self.bytes_in_flight() >= request_bytes
            || self.session.output().len() >= output_bytes
    }

    /// What reaches the engine is what it may do.
    fn check(&self, request: &Request) {
        let Request { token, offset, length, command } = request;
        assert!(self.waiting.iter().all(|other| other.token != *token), "tokens do not repeat");
        let writes =
            matches!(command, Command::Write { .. } | Command::Trim { .. } | Command::WriteZeroes { .. });
        let export = &self.session.config().exports()[self.session.export().expect("an export")];
        assert!(!writes || !export.read_only);
        if *command == Command::Flush {
            return assert_eq!((*offset, *length), (0, 0));
        }
        assert!(*length > 0 && offset % 512 == 0 && length % 512 == 0);
        assert!(offset + u64::from(*length) <= DISK_BYTES);
        if let Command::Write { data, .. } = command {
            assert_eq!(data.len(), *length as usize);
        }
        assert!(self.structured || !matches!(command, Command::BlockStatus { .. }));
    }

    /// Looks at output of negotiation and rejections.
    fn look(&mut self, transmitting: bool) {
        let mut new = &self.session.output()[self.seen..];
        let mut messages = Vec::new();
        self.seen = self.session.output().len();
        while let Some(rest) = new.strip_prefix(&OPTION_REPLY_MAGIC.to_be_bytes()) {
            let length = u32::from_be_bytes(rest[8..12].try_into().expect("four bytes")) as usize;
            let (reply, rest) = new.split_at(20 + length);
            messages.extend(client::messages(reply, 0));
            new = rest;
        }
        if !transmitting
            && self.session.is_transmitting()
            && let Some(rest) = new.strip_prefix(&DISK_BYTES.to_be_bytes())
        {
            // The reply to EXPORT NAME has no magic: size, flags, perhaps zeros.
            new = rest[2..].strip_prefix(&[0; 124]).unwrap_or(&rest[2..]);
        }
        messages.extend(client::messages(new, 0));
        self.note(&messages);
    }

    /// Nothing but errors comes without the engine, and replies to options.
    fn note(&mut self, messages: &[Message]) {
        for message in messages {
            match message {
                Message::Option { option: option::STRUCTURED_REPLY, kind: 1, .. } => self.structured = true,
                Message::Option { .. } => {}
                Message::Simple { errno, .. } => assert!(*errno != 0 && !self.structured),
                Message::Chunk { done, kind, .. } => {
                    assert!(*done && *kind == chunk::ERROR && self.structured)
                }
            }
        }
    }

    /// Answers one of the waiting requests.
    fn answer(&mut self, which: usize, how: u8) {
        let request = self.waiting.swap_remove(which);
        let Request { token, offset, length, ref command } = request;
        let is_read = *command == Command::Read;
        match how {
            0..32 => self.session.reply_error(token, Errno::Io, "as you like it"),
            32..48 if length > 0 => {
                let at = offset + u64::from(how) * u64::from(length) / 256;
                self.session.reply_error_at(token, Errno::NoSpc, "here", at);
            }
            _ => self.memory.answer(&mut self.session, request),
        }
        let replies =
            client::messages(&self.session.output()[self.seen..], if is_read { length as usize } else { 0 });
        self.seen = self.session.output().len();
        assert!(!replies.is_empty());
        if is_read && how >= 48 {
            let cookie = match replies[0] {
                Message::Simple { cookie, .. } | Message::Chunk { cookie, .. } => cookie,
                Message::Option { .. } => panic!("no option is open"),
            };
            let range = offset as usize..offset as usize + length as usize;
            assert!(client::content(&replies, cookie, offset, length) == self.memory.bytes[range]);
        } else {
            assert_eq!(replies.len(), 1);
        }
    }

    /// The client takes some output.
    fn take(&mut self, n: usize) {
        let n = n.min(self.session.output().len());
        self.session.sent(n);
        self.seen = self.session.output().len();
    }

    /// Answers what is left, in the order in which it lies.
    fn finish(mut self) {
        while !self.waiting.is_empty() || !self.session.output().is_empty() {
            if !self.waiting.is_empty() {
                self.answer(0, 255);
            }
            self.take(usize::MAX);
            self.parse();
        }
        assert_eq!(self.session.in_flight(), 0);
        assert!(!self.session.is_throttled());
    }
}

fn any_option(input: &mut Unstructured<'_>) -> Result<Vec<u8>> {
    let name = *input.choose(&["", "disk", "old", "nope"])?;
    let number = input.int_in_range(0..=12)?;
    let data = match input.int_in_range(0..=4)? {
        0 => Vec::new(),
        1 => name.as_bytes().to_vec(),
        2 => client::info_data(name, &[input.int_in_range(0..=4)?, 1]),
        3 => client::context_data(name, &[BASE_ALLOCATION, "base:"]),
        _ => {
            let n = input.int_in_range(0..=40)?;
            input.bytes(usize::min(n, input.len()))?.to_vec()
        }
    };
    Ok(client::option(number, &data))
}

/// A request, mostly a good one; the payload of a small write comes with it.
fn any_request(input: &mut Unstructured<'_>) -> Result<Vec<u8>> {
    let number = input.int_in_range(0..=8)?;
    let flags = if input.ratio(1, 3)? { input.int_in_range(0..=63)? } else { 0 };
    let cookie = input.int_in_range(0..=3)?;
    let (offset, length) = match number {
        command::FLUSH => (0, 0),
        _ if input.ratio(1, 16)? => (input.arbitrary()?, input.arbitrary()?),
        // About the ends of the export and of the numbers.
        _ if input.ratio(1, 8)? => {
            let offset = *input.choose(&[DISK_BYTES - 512, DISK_BYTES, 1 << 63, u64::MAX - 511, u64::MAX])?;
            (offset, *input.choose(&[0, 512, 1024, 32 << 20, u32::MAX - 511, u32::MAX])?)
        }
        _ => {
            let offset = input.int_in_range(0..=2047_u64)?;
            let blocks = if input.ratio(1, 4)? {
                input.int_in_range(1..=2048_u32)?
            } else {
                input.int_in_range(1..=32)?
            };
            (offset * 512, blocks * 512)
        }
    };
    let mut bytes = client::request(flags, number, cookie, offset, length);
    if number == command::WRITE && length < 100_000 && input.ratio(7, 8)? {
        bytes.resize(bytes.len() + length as usize, input.arbitrary()?);
    }
    Ok(bytes)
}
