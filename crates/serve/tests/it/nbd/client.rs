//! What a client sends, a reader of what it gets, and a small disk in memory. The fuzzer uses this file as well.
#![allow(dead_code)]

use flashweir_serve::nbd::wire::{self, OPTION_MAGIC, REQUEST_MAGIC, RequestHeader, chunk, info, option};
use flashweir_serve::nbd::{Command, Config, Export, Extent, Limits, Request, Session, TlsMode};
use std::sync::Arc;

/// Bytes of the disk in memory.
pub(crate) const DISK_BYTES: u64 = 1 << 20;
/// What the disk allocates at once.
pub(crate) const UNIT_BYTES: usize = 4096;

/// A writable and a read-only export of the same size.
pub(crate) fn config(tls: TlsMode, limits: Limits) -> Arc<Config> {
    let export = |name: &str, description: &str, read_only| Export {
        name: name.into(),
        description: description.into(),
        size: DISK_BYTES,
        read_only,
        least_block: 512,
        preferred_block: UNIT_BYTES as u32,
    };
    let exports = vec![export("disk", "a disk", false), export("old", "", true)];
    Arc::new(Config::new(exports, tls, limits).expect("a good configuration"))
}

/// A session without TLS.
pub(crate) fn session() -> Session {
    Session::new(config(TlsMode::Off, Limits::default()))
}

/// Flags of a client that speaks the fixed newstyle protocol and wants no zeros.
pub(crate) fn client_flags() -> Vec<u8> {
    vec![0, 0, 0, 3]
}

/// An option.
pub(crate) fn option(number: u32, data: &[u8]) -> Vec<u8> {
    let length = (data.len() as u32).to_be_bytes();
    [&OPTION_MAGIC.to_be_bytes()[..], &number.to_be_bytes(), &length, data].concat()
}

/// A string with its length before it.
pub(crate) fn string(text: &[u8]) -> Vec<u8> {
    [&(text.len() as u32).to_be_bytes(), text].concat()
}

/// Data of INFO and GO.
pub(crate) fn info_data(name: &str, kinds: &[u16]) -> Vec<u8> {
    let mut data = string(name.as_bytes());
    data.extend((kinds.len() as u16).to_be_bytes());
    data.extend(kinds.iter().flat_map(|kind| kind.to_be_bytes()));
    data
}

/// Data of the options for metadata contexts.
pub(crate) fn context_data(name: &str, queries: &[&str]) -> Vec<u8> {
    let mut data = string(name.as_bytes());
    data.extend((queries.len() as u32).to_be_bytes());
    data.extend(queries.iter().flat_map(|query| string(query.as_bytes())));
    data
}

/// A request; the payload of a write is the caller's.
pub(crate) fn request(flags: u16, command: u16, cookie: u64, offset: u64, length: u32) -> Vec<u8> {
    RequestHeader { magic: REQUEST_MAGIC, flags, command, cookie, offset, length }.to_bytes().to_vec()
}

/// Everything up to the transmission phase.
pub(crate) fn negotiation(structured: bool, export: &str) -> Vec<u8> {
    let mut bytes = client_flags();
    if structured {
        bytes.extend(option(option::STRUCTURED_REPLY, &[]));
        bytes.extend(option(option::SET_META_CONTEXT, &context_data(export, &[wire::BASE_ALLOCATION])));
    }
    bytes.extend(option(option::GO, &info_data(export, &[info::BLOCK_SIZE])));
    bytes
}

/// Gives all of `bytes` to the session, which has to have room for them.
pub(crate) fn feed(session: &mut Session, bytes: &[u8]) {
    let mut left = bytes;
    while !left.is_empty() {
        let space = session.space();
        let n = space.len().min(left.len());
        assert!(n > 0, "the session has no room");
        space[..n].copy_from_slice(&left[..n]);
        session.received(n);
        left = &left[n..];
    }
}

/// Takes all of the output.
pub(crate) fn take_output(session: &mut Session) -> Vec<u8> {
    let bytes = session.output().to_vec();
    session.sent(bytes.len());
    bytes
}

/// A session in its transmission phase, with an empty output.
pub(crate) fn transmitting(structured: bool, export: &str) -> Session {
    let mut session = session();
    feed(&mut session, &negotiation(structured, export));
    assert_eq!(session.next_request(), Ok(None));
    assert!(session.is_transmitting());
    take_output(&mut session);
    session
}

/// A message of the server.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Message {
    /// A reply to an option.
    Option { option: u32, kind: u32, data: Vec<u8> },
    /// A simple reply; the caller knows whether data follow.
    Simple { errno: u32, cookie: u64, data: Vec<u8> },
    /// A chunk of a structured reply.
    Chunk { done: bool, kind: u16, cookie: u64, payload: Vec<u8> },
}

/// Splits the server's bytes into messages and asserts that they are well-formed. `read_bytes` says how many bytes
/// follow a simple reply without an error.
///
/// # Panics
/// They are not.
pub(crate) fn messages(mut bytes: &[u8], read_bytes: usize) -> Vec<Message> {
    fn take<'a>(bytes: &mut &'a [u8], n: usize) -> &'a [u8] {
        let (field, rest) = bytes.split_at_checked(n).expect("a complete message");
        *bytes = rest;
        field
    }
    fn number(bytes: &[u8]) -> u64 {
        bytes.iter().fold(0, |value, &byte| value << 8 | u64::from(byte))
    }
    let mut found = Vec::new();
    while !bytes.is_empty() {
        let magic = number(take(&mut bytes, 4)) as u32;
        found.push(if magic == wire::SIMPLE_REPLY_MAGIC {
            let errno = number(take(&mut bytes, 4)) as u32;
            assert!([0, 1, 5, 12, 22, 28, 75, 95, 108].contains(&errno), "errno {errno}");
            let cookie = number(take(&mut bytes, 8));
            let data = take(&mut bytes, if errno == 0 { read_bytes } else { 0 }).to_vec();
            Message::Simple { errno, cookie, data }
        } else if magic == wire::STRUCTURED_REPLY_MAGIC {
            let flags = number(take(&mut bytes, 2)) as u16;
            assert!(flags & !chunk::FLAG_DONE == 0);
            let kind = number(take(&mut bytes, 2)) as u16;
            let cookie = number(take(&mut bytes, 8));
            let length = number(take(&mut bytes, 4)) as usize;
            Message::Chunk { done: flags == 1, kind, cookie, payload: take(&mut bytes, length).to_vec() }
        } else {
            assert_eq!(u64::from(magic), wire::OPTION_REPLY_MAGIC >> 32);
            assert_eq!(number(take(&mut bytes, 4)), wire::OPTION_REPLY_MAGIC & 0xffff_ffff);
            let option = number(take(&mut bytes, 4)) as u32;
            let kind = number(take(&mut bytes, 4)) as u32;
            let length = number(take(&mut bytes, 4)) as usize;
            Message::Option { option, kind, data: take(&mut bytes, length).to_vec() }
        });
    }
    found
}

/// The error of the only reply in `bytes`, if it is one: cookie and number.
pub(crate) fn only_error(bytes: &[u8]) -> Option<(u64, u32)> {
    match messages(bytes, 0).as_slice() {
        [Message::Simple { errno, cookie, .. }] if *errno != 0 => Some((*cookie, *errno)),
        [Message::Chunk { done: true, kind: chunk::ERROR, cookie, payload }] => {
            let errno = u32::from_be_bytes(payload[..4].try_into().expect("four bytes"));
            let message = u16::from_be_bytes(payload[4..6].try_into().expect("two bytes"));
            assert_eq!(usize::from(message), payload.len() - 6);
            Some((*cookie, errno))
        }
        _ => None,
    }
}

/// Puts the content of a read together; every byte has to come once. A simple reply's content has no offset.
pub(crate) fn content(replies: &[Message], cookie: u64, offset: u64, length: u32) -> Vec<u8> {
    if let [Message::Simple { errno: 0, cookie: named, data }] = replies {
        assert_eq!((*named, data.len()), (cookie, length as usize));
        return data.clone();
    }
    let mut bytes: Vec<Option<u8>> = vec![None; length as usize];
    for (index, reply) in replies.iter().enumerate() {
        let Message::Chunk { done, kind, cookie: named, payload } = reply else {
            panic!("a read gets chunks")
        };
        assert_eq!((*named, *done), (cookie, index == replies.len() - 1));
        let at = (u64::from_be_bytes(payload[..8].try_into().expect("eight bytes")) - offset) as usize;
        let part = match *kind {
            chunk::OFFSET_DATA => payload[8..].to_vec(),
            chunk::OFFSET_HOLE => {
                assert_eq!(payload.len(), 12);
                vec![0; u32::from_be_bytes(payload[8..].try_into().expect("four bytes")) as usize]
            }
            other => panic!("chunk {other} in a read"),
        };
        assert!(!part.is_empty());
        for (place, byte) in bytes[at..at + part.len()].iter_mut().zip(part) {
            assert_eq!(place.replace(byte), None, "content comes once");
        }
    }
    bytes.into_iter().map(|byte| byte.expect("all of the content comes")).collect()
}

/// A disk in memory.
#[derive(Clone, Debug)]
pub(crate) struct Memory {
    pub(crate) bytes: Vec<u8>,
    pub(crate) allocated: Vec<bool>,
}

impl Memory {
    pub(crate) fn new() -> Self {
        let bytes = DISK_BYTES as usize;
        Self { bytes: vec![0; bytes], allocated: vec![false; bytes / UNIT_BYTES] }
    }

    /// Does a request and answers it.
    pub(crate) fn answer(&mut self, session: &mut Session, request: Request) {
        let Request { token, offset, length, command } = request;
        let range = offset as usize..offset as usize + length as usize;
        assert!(range.end <= self.bytes.len() && range.start % 512 == 0 && length % 512 == 0);
        match command {
            Command::Flush | Command::Cache => session.reply_ok(token),
            Command::Read => session.reply_read(token, |reply| {
                for (unit, part) in units(range) {
                    if self.allocated[unit] {
                        reply.data(&self.bytes[part]);
                    } else {
                        reply.hole(part.len());
                    }
                }
            }),
            Command::Write { data, .. } => {
                self.bytes[range.clone()].copy_from_slice(&data);
                units(range).for_each(|(unit, _)| self.allocated[unit] = true);
                session.reply_ok(token);
            }
            Command::Trim { .. } | Command::WriteZeroes { .. } => {
                let keep = matches!(command, Command::WriteZeroes { no_hole: true, .. });
                for (unit, part) in units(range) {
                    self.allocated[unit] = keep || (part.len() < UNIT_BYTES && self.allocated[unit]);
                    self.bytes[part].fill(0);
                }
                session.reply_ok(token);
            }
            Command::BlockStatus { .. } => {
                let extents = units(range).map(|(unit, part)| {
                    let hole = !self.allocated[unit];
                    Extent { length: part.len() as u32, hole, zero: hole }
                });
                session.reply_block_status(token, extents);
            }
        }
    }
}

/// The units that a range touches, and which part of it lies there.
fn units(range: std::ops::Range<usize>) -> impl Iterator<Item = (usize, std::ops::Range<usize>)> {
    let (first, end) = (range.start / UNIT_BYTES, range.end.div_ceil(UNIT_BYTES));
    (first..end).map(move |unit| {
        let whole = unit * UNIT_BYTES..(unit + 1) * UNIT_BYTES;
        (unit, whole.start.max(range.start)..whole.end.min(range.end))
    })
}
