//! Replies of a server, simple and structured, as they come out of a stream.
//!
//! Invariants: a reply is returned once it is complete, with the whole content of a read, and once for each request;
//! whatever a server says that it must not say is an error with its reason.

use crate::nbd::wire::{
    CHUNK_BYTES, RequestHeader, SIMPLE_REPLY_BYTES, SIMPLE_REPLY_MAGIC, STRUCTURED_REPLY_MAGIC, chunk,
    command,
};
use std::collections::BTreeMap;

/// A request, as far as its reply depends on it.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Ask {
    /// One of [`crate::nbd::wire::command`].
    pub command: u16,
    /// Bits of [`crate::nbd::wire::command_flag`].
    pub flags: u16,
    /// First byte.
    pub offset: u64,
    /// Bytes.
    pub length: u32,
}

impl Ask {
    /// Its header on the wire.
    pub fn header(&self, cookie: u64) -> RequestHeader {
        RequestHeader {
            magic: crate::nbd::wire::REQUEST_MAGIC,
            flags: self.flags,
            command: self.command,
            cookie,
            offset: self.offset,
            length: self.length,
        }
    }

    /// The request in a header.
    pub fn of(header: &RequestHeader) -> Self {
        let RequestHeader { flags, command, offset, length, .. } = *header;
        Self { command, flags, offset, length }
    }
}

/// The server's offer for an export.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Facts {
    /// Bytes.
    pub size: u64,
    /// Bits of [`crate::nbd::wire::export_flag`].
    pub flags: u16,
    /// Smallest and preferred block, largest payload, bytes; zeros where the server did not say.
    pub blocks: [u32; 3],
}

/// The answer to a request.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Reply {
    /// Cookie of the request.
    pub cookie: u64,
    /// The request.
    pub ask: Ask,
    /// Content of a read, nothing for other requests; or an error number.
    pub result: Result<Vec<u8>, u32>,
}

#[derive(Debug)]
struct Waiting {
    ask: Ask,
    content: Vec<u8>,
    filled: u64,
    error: Option<u32>,
}

/// The replies of one connection.
#[derive(Debug, Default)]
pub(super) struct Replies {
    bytes: Vec<u8>,
    start: usize,
    waiting: BTreeMap<u64, Waiting>,
}

fn field<const N: usize>(bytes: &[u8], at: usize) -> [u8; N] {
    bytes[at..at + N].try_into().expect("the caller has looked at the length")
}

fn be32(bytes: &[u8], at: usize) -> u32 {
    u32::from_be_bytes(field(bytes, at))
}

fn be64(bytes: &[u8], at: usize) -> u64 {
    u64::from_be_bytes(field(bytes, at))
}

impl Replies {
    /// Requests without a reply.
    pub(super) fn in_flight(&self) -> usize {
        self.waiting.len()
    }

    /// Notes that a request was sent.
    pub(super) fn expect(&mut self, cookie: u64, ask: Ask) {
        let length = if ask.command == command::READ { ask.length as usize } else { 0 };
        let waiting = Waiting { ask, content: vec![0; length], filled: 0, error: None };
        assert!(self.waiting.insert(cookie, waiting).is_none(), "cookie {cookie} is in use");
    }

    /// Takes bytes from the server.
    pub(super) fn feed(&mut self, bytes: &[u8]) {
        if self.start > self.bytes.len() / 2 {
            self.bytes.drain(..self.start);
            self.start = 0;
        }
        self.bytes.extend_from_slice(bytes);
    }

    /// The next complete reply.
    pub(super) fn next(&mut self) -> Result<Option<Reply>, String> {
        loop {
            let unread = &self.bytes[self.start..];
            if unread.len() < 4 {
                return Ok(None);
            }
            let (used, done) = match be32(unread, 0) {
                SIMPLE_REPLY_MAGIC => match simple(unread, &mut self.waiting)? {
                    Some(found) => found,
                    None => return Ok(None),
                },
                STRUCTURED_REPLY_MAGIC => match structured(unread, &mut self.waiting)? {
                    Some(found) => found,
                    None => return Ok(None),
                },
                magic => return Err(format!("a reply begins with {magic:#010x}")),
            };
            self.start += used;
            if let Some(cookie) = done {
                let Waiting { ask, content, error, .. } = self.waiting.remove(&cookie).expect("it was found");
                return Ok(Some(Reply { cookie, ask, result: error.map_or(Ok(content), Err) }));
            }
        }
    }
}

/// Bytes used, and the request that is answered by them.
type Found = Option<(usize, Option<u64>)>;

fn simple(unread: &[u8], waiting: &mut BTreeMap<u64, Waiting>) -> Result<Found, String> {
    if unread.len() < SIMPLE_REPLY_BYTES {
        return Ok(None);
    }
    let (error, cookie) = (be32(unread, 4), be64(unread, 8));
    let Some(request) = waiting.get_mut(&cookie) else {
        return Err(format!("a reply to request {cookie}, which is not in flight"));
    };
    if error != 0 {
        request.error = Some(error);
        return Ok(Some((SIMPLE_REPLY_BYTES, Some(cookie))));
    }
    let end = SIMPLE_REPLY_BYTES + request.content.len();
    let Some(content) = unread.get(SIMPLE_REPLY_BYTES..end) else { return Ok(None) };
    request.content.copy_from_slice(content);
    Ok(Some((end, Some(cookie))))
}

fn structured(unread: &[u8], waiting: &mut BTreeMap<u64, Waiting>) -> Result<Found, String> {
    if unread.len() < CHUNK_BYTES {
        return Ok(None);
    }
    let (flags, kind) = (u16::from_be_bytes(field(unread, 4)), u16::from_be_bytes(field(unread, 6)));
    let (cookie, length) = (be64(unread, 8), be32(unread, 16) as usize);
    let Some(payload) = unread.get(CHUNK_BYTES..CHUNK_BYTES + length) else { return Ok(None) };
    let Some(request) = waiting.get_mut(&cookie) else {
        return Err(format!("a chunk for request {cookie}, which is not in flight"));
    };
    let place = |offset: u64, length: u64| {
        let from = offset.checked_sub(request.ask.offset)?;
        (from + length <= request.content.len() as u64).then_some(from as usize..(from + length) as usize)
    };
    match kind {
        chunk::NONE => {}
        chunk::OFFSET_DATA if length > 8 => {
            let data = &payload[8..];
            let range =
                place(be64(payload, 0), data.len() as u64).ok_or("data beyond the range of a read")?;
            request.content[range].copy_from_slice(data);
            request.filled += data.len() as u64;
        }
        chunk::OFFSET_HOLE if length == 12 => {
            let zeros = u64::from(be32(payload, 8));
            let range = place(be64(payload, 0), zeros).ok_or("a hole beyond the range of a read")?;
            request.content[range].fill(0);
            request.filled += zeros;
        }
        chunk::ERROR | chunk::ERROR_OFFSET if length >= 6 => request.error = Some(be32(payload, 0)),
        chunk::BLOCK_STATUS => {}
        _ => return Err(format!("a chunk of type {kind} with {length} bytes")),
    }
    let used = CHUNK_BYTES + length;
    if flags & chunk::FLAG_DONE == 0 {
        return Ok(Some((used, None)));
    }
    if request.error.is_none() && request.filled != request.content.len() as u64 {
        let (filled, length) = (request.filled, request.content.len());
        return Err(format!("a read of {length} bytes was answered with {filled}"));
    }
    Ok(Some((used, Some(cookie))))
}
