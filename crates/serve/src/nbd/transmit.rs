//! Requests and their answers.
//!
//! Invariants: a request that reaches the engine is aligned, inside its export, not empty, and allowed there; every
//! other one is answered in here. A payload is kept in memory only as far as it has arrived.
//!
//! Deliberately absent: an order of answers. NBD has none; a client that wants one waits.

use super::export::{BLOCK_BYTES_MIN, PAYLOAD_BYTES_MAX};
use super::in_flight::{Kind, Pending, Token};
use super::request::{Command, Extent, Payload, Rejection, Request};
use super::session::{Discarded, Fatal, Phase, Session, Step};
use super::wire::{
    BASE_ALLOCATION_ID, CHUNK_BYTES, Errno, REQUEST_BYTES, REQUEST_MAGIC, RequestHeader, SIMPLE_REPLY_MAGIC,
    STRUCTURED_REPLY_MAGIC, chunk, command, command_flag,
};
use std::sync::Arc;

/// Payloads up to this many bytes are copied out of the input when they are complete; larger ones get a buffer.
const INPUT_PAYLOAD_BYTES_MAX: usize = 64 << 10;
/// Extents of one answer to a question for block status. The client asks again for the rest.
pub(crate) const EXTENTS_MAX: usize = 4096;
/// Units of a disk that are looked at for one answer.
pub(crate) const EXTENT_UNITS_MAX: u64 = 1 << 16;
/// Longest text of an error, bytes.
const MESSAGE_BYTES_MAX: usize = 256;
/// Holes below this many bytes are sent as zeros: a chunk of their own would cost as much.
const HOLE_BYTES_MIN: u32 = 512;

impl Session {
    /// Looks for the next request.
    #[inline]
    pub(super) fn request(&mut self) -> Result<Step, Fatal> {
        if self.payload.is_some() {
            return Ok(self.large_payload());
        }
        let unread = self.input.unread();
        let Some(header) = unread.first_chunk::<REQUEST_BYTES>() else { return Ok(Step::NeedBytes) };
        let header = RequestHeader::parse(header);
        if header.magic != REQUEST_MAGIC {
            return Err(Fatal::RequestMagic(header.magic));
        }
        if header.command == command::DISC {
            self.input.clear();
            self.phase = Phase::Leaving;
            return Ok(Step::NeedBytes);
        }
        if let Err((errno, why)) = self.check(&header) {
            let rejection = Rejection { cookie: header.cookie, errno, why };
            self.input.consume(REQUEST_BYTES);
            if header.command == command::WRITE {
                self.discard = Some((header.length.into(), Discarded::Write(rejection)));
            } else {
                self.reject(rejection);
            }
            return Ok(Step::Again);
        }
        if header.command != command::WRITE {
            self.input.consume(REQUEST_BYTES);
            return Ok(Step::Ready(self.admit(&header, None)));
        }
        let length = header.length as usize;
        if length > INPUT_PAYLOAD_BYTES_MAX {
            let mut payload = Payload::new(header);
            let taken = payload.take(&unread[REQUEST_BYTES..]);
            self.input.consume(REQUEST_BYTES + taken);
            self.payload = Some(payload);
            return Ok(Step::Again);
        }
        let Some(data) = unread.get(REQUEST_BYTES..REQUEST_BYTES + length) else {
            return Ok(Step::NeedBytes);
        };
        let data = Arc::from(data);
        self.input.consume(REQUEST_BYTES + length);
        Ok(Step::Ready(self.admit(&header, Some(data))))
    }

    fn large_payload(&mut self) -> Step {
        let Some(mut payload) = self.payload.take() else { return Step::Again };
        let taken = payload.take(self.input.unread());
        self.input.consume(taken);
        if payload.is_complete() {
            return Step::Ready(self.admit(&payload.header, Some(Arc::from(payload.data))));
        }
        self.payload = Some(payload);
        Step::NeedBytes
    }

    /// Fault of a request; the checks are in the order in which a client would want to know.
    fn check(&self, header: &RequestHeader) -> Result<(), (Errno, &'static str)> {
        use command::*;
        let RequestHeader { flags, command, offset, length, .. } = *header;
        // FUA is allowed everywhere, as some clients set it everywhere.
        let flags_known = command_flag::FUA
            | match command {
                READ if self.structured => command_flag::DF,
                WRITE_ZEROES => command_flag::NO_HOLE | command_flag::FAST_ZERO,
                BLOCK_STATUS => command_flag::REQ_ONE,
                READ | WRITE | FLUSH | TRIM | CACHE => 0,
                _ => return Err((Errno::Inval, "the command is unknown")),
            };
        if flags & !flags_known != 0 {
            return Err((Errno::Inval, "a flag is unknown or not for this command"));
        }
        if self.shutting_down {
            return Err((Errno::Shutdown, "the server stops"));
        }
        let export = self.chosen();
        if export.read_only && matches!(command, WRITE | TRIM | WRITE_ZEROES) {
            return Err((Errno::Perm, "the export is read-only"));
        }
        if command == BLOCK_STATUS && (!self.structured || self.context != self.export) {
            return Err((Errno::Inval, "no metadata context was chosen for this export"));
        }
        if command == FLUSH {
            return match (offset, length) {
                (0, 0) => Ok(()),
                _ => Err((Errno::Inval, "a flush has no range")),
            };
        }
        if length == 0 {
            return Err((Errno::Inval, "the range is empty"));
        }
        let block = u64::from(BLOCK_BYTES_MIN);
        if offset % block != 0 || u64::from(length) % block != 0 {
            return Err((Errno::Inval, "the range is not aligned to 512 bytes"));
        }
        let least = u64::from(export.least_block);
        let is_part = !offset.is_multiple_of(least) || !u64::from(length).is_multiple_of(least);
        if matches!(command, WRITE | WRITE_ZEROES) && is_part {
            return Err((
                Errno::Inval,
                "the range is not aligned to the smallest block that the export writes",
            ));
        }
        if matches!(command, READ | WRITE) && length > PAYLOAD_BYTES_MAX {
            return Err((Errno::Inval, "more than 32 MiB in one request"));
        }
        if offset.checked_add(length.into()).is_none_or(|end| end > export.size) {
            let errno = if matches!(command, WRITE | WRITE_ZEROES) { Errno::NoSpc } else { Errno::Inval };
            return Err((errno, "the range is beyond the end of the export"));
        }
        Ok(())
    }

    /// Makes a request of a header that was checked.
    #[inline]
    fn admit(&mut self, header: &RequestHeader, data: Option<Arc<[u8]>>) -> Request {
        let RequestHeader { flags, cookie, offset, length, .. } = *header;
        let has = |flag| flags & flag != 0;
        let fua = has(command_flag::FUA);
        let (kind, bytes, command) = match header.command {
            command::READ => (Kind::Read { whole: has(command_flag::DF) }, length, Command::Read),
            command::WRITE => {
                let data = data.expect("a write has a payload");
                (Kind::Other, length, Command::Write { data, fua })
            }
            command::FLUSH => (Kind::Other, 0, Command::Flush),
            command::TRIM => (Kind::Other, 0, Command::Trim { fua }),
            command::CACHE => (Kind::Other, 0, Command::Cache),
            command::WRITE_ZEROES => {
                let (no_hole, fast) = (has(command_flag::NO_HOLE), has(command_flag::FAST_ZERO));
                (Kind::Other, 0, Command::WriteZeroes { fua, no_hole, fast })
            }
            _ => {
                let one = has(command_flag::REQ_ONE);
                let extents = if one { 1 } else { EXTENTS_MAX };
                (Kind::BlockStatus { one }, extents as u32 * 8, Command::BlockStatus { one })
            }
        };
        let token = self.in_flight.insert(Pending { cookie, offset, length, kind, bytes });
        Request { token, offset, length, command }
    }

    /// Answers a request that never reached the engine.
    pub(super) fn reject(&mut self, Rejection { cookie, errno, why }: Rejection) {
        self.error(cookie, errno, why, None);
    }

    /// The request is done. Not for reads and block status.
    ///
    /// # Panics
    /// The request was answered before, or its answer has a payload.
    pub fn reply_ok(&mut self, token: Token) {
        let Pending { cookie, kind, .. } = self.in_flight.take(token);
        assert_eq!(kind, Kind::Other, "an answer to a read or to block status has a payload");
        simple_reply(self.output.end(), 0, cookie);
    }

    /// The request failed. `why` is for people, up to 256 bytes of it are sent.
    ///
    /// # Panics
    /// The request was answered before.
    pub fn reply_error(&mut self, token: Token, errno: Errno, why: &str) {
        let Pending { cookie, .. } = self.in_flight.take(token);
        self.error(cookie, errno, why, None);
    }

    /// The request failed at byte `offset` of the export; what lies before is done. `why` as in
    /// [`Self::reply_error`].
    ///
    /// # Panics
    /// The request was answered before, or `offset` is not in its range.
    pub fn reply_error_at(&mut self, token: Token, errno: Errno, why: &str, offset: u64) {
        let pending = self.in_flight.take(token);
        let range = pending.offset..pending.offset + u64::from(pending.length);
        assert!(range.contains(&offset), "an error lies in the range of its request");
        self.error(pending.cookie, errno, why, Some(offset));
    }

    /// The content of a read, part by part in the order of its range.
    ///
    /// # Panics
    /// The request was answered before, it was no read, or the parts are not as long as its range.
    pub fn reply_read(&mut self, token: Token, parts: impl FnOnce(&mut ReadReply<'_>)) {
        let pending = self.in_flight.take(token);
        let Kind::Read { whole } = pending.kind else { panic!("content answers a read") };
        let out = self.output.end();
        if !self.structured {
            simple_reply(out, 0, pending.cookie);
        }
        let structured = self.structured.then_some(pending.cookie);
        let mut reply = ReadReply {
            out,
            structured,
            whole,
            at: pending.offset,
            left: pending.length,
            last: Part::Nothing,
        };
        parts(&mut reply);
        reply.finish();
    }

    /// The extents of a range, in order from its begin. They may end early but not be empty; what goes beyond the
    /// range, or beyond 4,096 extents, is left out.
    ///
    /// # Panics
    /// The request was answered before, it did not ask for block status, or there is no extent.
    pub fn reply_block_status(&mut self, token: Token, extents: impl IntoIterator<Item = Extent>) {
        let pending = self.in_flight.take(token);
        let Kind::BlockStatus { one } = pending.kind else {
            panic!("extents answer a question for block status")
        };
        let extents_max = if one { 1 } else { EXTENTS_MAX };
        let out = self.output.end();
        let begin = chunk_header(out, chunk::FLAG_DONE, chunk::BLOCK_STATUS, pending.cookie);
        out.extend_from_slice(&BASE_ALLOCATION_ID.to_be_bytes());
        let (mut left, mut count) = (pending.length, 0);
        let mut open: Option<(u32, u32)> = None;
        let mut put = |(length, state): (u32, u32)| {
            out.extend_from_slice(&length.to_be_bytes());
            out.extend_from_slice(&state.to_be_bytes());
            count += 1;
            count < extents_max
        };
        for extent in extents {
            let length = extent.length.min(left);
            left -= length;
            match &mut open {
                _ if length == 0 => {}
                Some((total, state)) if *state == extent.state() => *total += length,
                _ => {
                    if let Some(done) = open.replace((length, extent.state()))
                        && !put(done)
                    {
                        open = None;
                        break;
                    }
                }
            }
        }
        if let Some(last) = open {
            put(last);
        }
        assert!(count > 0, "block status has at least one extent");
        close_chunk(out, begin);
    }

    fn error(&mut self, cookie: u64, errno: Errno, why: &str, offset: Option<u64>) {
        let out = self.output.end();
        if !self.structured {
            simple_reply(out, errno as u32, cookie);
            return;
        }
        let why = &why.as_bytes()[..why.floor_char_boundary(MESSAGE_BYTES_MAX)];
        let kind = if offset.is_some() { chunk::ERROR_OFFSET } else { chunk::ERROR };
        let begin = chunk_header(out, chunk::FLAG_DONE, kind, cookie);
        out.extend_from_slice(&(errno as u32).to_be_bytes());
        out.extend_from_slice(&(why.len() as u16).to_be_bytes());
        out.extend_from_slice(why);
        if let Some(offset) = offset {
            out.extend_from_slice(&offset.to_be_bytes());
        }
        close_chunk(out, begin);
    }
}

#[inline]
fn simple_reply(out: &mut Vec<u8>, errno: u32, cookie: u64) {
    let mut bytes = [0; 16];
    bytes[0..4].copy_from_slice(&SIMPLE_REPLY_MAGIC.to_be_bytes());
    bytes[4..8].copy_from_slice(&errno.to_be_bytes());
    bytes[8..16].copy_from_slice(&cookie.to_be_bytes());
    out.extend_from_slice(&bytes);
}

/// Begins a chunk; returns its offset, for [`close_chunk`].
#[inline]
fn chunk_header(out: &mut Vec<u8>, flags: u16, kind: u16, cookie: u64) -> usize {
    let begin = out.len();
    let mut bytes = [0; CHUNK_BYTES];
    bytes[0..4].copy_from_slice(&STRUCTURED_REPLY_MAGIC.to_be_bytes());
    bytes[4..6].copy_from_slice(&flags.to_be_bytes());
    bytes[6..8].copy_from_slice(&kind.to_be_bytes());
    bytes[8..16].copy_from_slice(&cookie.to_be_bytes());
    out.extend_from_slice(&bytes);
    begin
}

/// Writes the length of a chunk's payload, which is everything since its header.
#[inline]
fn close_chunk(out: &mut [u8], begin: usize) {
    let length = (out.len() - begin - CHUNK_BYTES) as u32;
    out[begin + 16..begin + 20].copy_from_slice(&length.to_be_bytes());
}

/// The last part of a read reply so far.
#[derive(Debug)]
enum Part {
    Nothing,
    /// Data, in the chunk that begins there.
    Data(usize),
    /// Number of zeros, in the chunk that begins at this offset.
    Hole(usize, u32),
}

/// The content of a read, as it is written into the output.
#[derive(Debug)]
pub struct ReadReply<'a> {
    out: &'a mut Vec<u8>,
    /// The cookie, where chunks were agreed on.
    structured: Option<u64>,
    whole: bool,
    at: u64,
    left: u32,
    last: Part,
}

impl ReadReply<'_> {
    /// The next bytes are these.
    #[inline]
    pub fn data(&mut self, bytes: &[u8]) {
        if self.begin_data(bytes.len()) {
            self.out.extend_from_slice(bytes);
        }
    }

    /// The next `length` bytes are what `fill` makes of zeros.
    #[inline]
    pub fn fill(&mut self, length: usize, fill: impl FnOnce(&mut [u8])) {
        if self.begin_data(length) {
            let begin = self.out.len();
            self.out.resize(begin + length, 0);
            fill(&mut self.out[begin..]);
        }
    }

    /// The next `length` bytes are zeros. They are sent as a hole where the client understands that.
    pub fn hole(&mut self, length: usize) {
        let Some(cookie) = self.structured.filter(|_| !self.whole && length >= HOLE_BYTES_MIN as usize)
        else {
            return self.fill(length, |_| {});
        };
        let offset = self.advance(length);
        if let Part::Hole(_, total) = &mut self.last {
            *total += length as u32;
            return;
        }
        self.close();
        let begin = chunk_header(self.out, 0, chunk::OFFSET_HOLE, cookie);
        self.out.extend_from_slice(&offset.to_be_bytes());
        self.last = Part::Hole(begin, length as u32);
    }

    /// Bytes that are missing.
    pub fn left(&self) -> usize {
        self.left as usize
    }

    /// Advances by `length` bytes; returns the offset before.
    #[inline]
    #[track_caller]
    fn advance(&mut self, length: usize) -> u64 {
        assert!(length <= self.left as usize, "more content than was asked for");
        let offset = self.at;
        self.at += length as u64;
        self.left -= length as u32;
        offset
    }

    /// Sees to a chunk that data can be added to; false if there are none.
    #[inline]
    #[track_caller]
    fn begin_data(&mut self, length: usize) -> bool {
        let offset = self.advance(length);
        if let Some(cookie) = self.structured
            && length > 0
            && !matches!(self.last, Part::Data(_))
        {
            self.close();
            let begin = chunk_header(self.out, 0, chunk::OFFSET_DATA, cookie);
            self.out.extend_from_slice(&offset.to_be_bytes());
            self.last = Part::Data(begin);
        }
        length > 0
    }

    /// Ends the open chunk; returns its offset.
    #[inline]
    fn close(&mut self) -> Option<usize> {
        let begin = match self.last {
            Part::Nothing => return None,
            Part::Data(begin) => begin,
            Part::Hole(begin, total) => {
                self.out.extend_from_slice(&total.to_be_bytes());
                begin
            }
        };
        close_chunk(self.out, begin);
        Some(begin)
    }

    #[inline]
    fn finish(mut self) {
        assert_eq!(self.left, 0, "less content than was asked for");
        if let Some(begin) = self.close() {
            self.out[begin + 4..begin + 6].copy_from_slice(&chunk::FLAG_DONE.to_be_bytes());
        }
    }
}
