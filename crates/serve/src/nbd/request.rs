//! A request of a client, what replies say of extents, and the payload of a large write while it arrives.
//!
//! Place in the data flow: [`super::transmit`] makes them of bytes, [`super::session`] holds the one that is under way.

use super::in_flight::Token;
use super::wire::{Errno, RequestHeader, STATE_HOLE, STATE_ZERO};
use std::sync::Arc;

/// First size of the buffer of a large payload, bytes.
const PAYLOAD_BYTES_FIRST: usize = 256 << 10;
/// A request of a client. Ranges are aligned to 512 bytes and lie in the export.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Request {
    /// Token that the answer names.
    pub token: Token,
    /// First byte of the range; 0 for a flush.
    pub offset: u64,
    /// Bytes of the range; 0 for a flush. Reads and writes have up to 32 MiB, others less than 4 GiB.
    pub length: u32,
    /// The command.
    pub command: Command,
}

/// Commands on a range.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Command {
    /// Answer with its content: [`Session::reply_read`](super::Session::reply_read).
    Read,
    /// Replace its content.
    Write {
        /// The new content, as long as the range.
        data: Arc<[u8]>,
        /// Answer when it is durable.
        fua: bool,
    },
    /// Deallocate it.
    Trim {
        /// Answer when it is durable.
        fua: bool,
    },
    /// Make it read as zeros.
    WriteZeroes {
        /// Answer when it is durable.
        fua: bool,
        /// It has to stay allocated.
        no_hole: bool,
        /// Answer ENOTSUP, and change nothing, if it would not be faster than a write.
        fast: bool,
    },
    /// Make everything durable that was answered before, on any connection.
    Flush,
    /// It will be read soon.
    Cache,
    /// Say what of it is allocated: [`Session::reply_block_status`](super::Session::reply_block_status).
    BlockStatus {
        /// The first extent is enough.
        one: bool,
    },
}

/// A part of a range that is all alike.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Extent {
    /// Bytes.
    pub length: u32,
    /// It is not allocated.
    pub hole: bool,
    /// It reads as zeros.
    pub zero: bool,
}

impl Extent {
    pub(super) fn state(self) -> u32 {
        (if self.hole { STATE_HOLE } else { 0 }) | (if self.zero { STATE_ZERO } else { 0 })
    }
}

/// Why a request gets an error without the engine.
#[derive(Clone, Copy, Debug)]
pub(super) struct Rejection {
    pub(super) cookie: u64,
    /// Reads are answered by structured replies where these were agreed on, errors as well.
    pub(super) errno: Errno,
    pub(super) why: &'static str,
}

/// A large write whose payload is arriving.
#[derive(Debug)]
pub(super) struct Payload {
    pub(super) header: RequestHeader,
    pub(super) data: Vec<u8>,
    pub(super) filled: usize,
}

impl Payload {
    pub(super) fn new(header: RequestHeader) -> Self {
        Self { header, data: Vec::new(), filled: 0 }
    }

    /// Bytes of the buffer.
    pub(super) fn capacity(&self) -> usize {
        self.data.capacity()
    }

    pub(super) fn is_complete(&self) -> bool {
        self.filled == self.header.length as usize
    }

    /// Room for bytes of the payload. It doubles when it is full.
    pub(super) fn space(&mut self) -> &mut [u8] {
        let length = self.header.length as usize;
        if self.filled == self.data.len() {
            self.data.resize((self.filled * 2).max(PAYLOAD_BYTES_FIRST).min(length), 0);
        }
        &mut self.data[self.filled..]
    }

    #[track_caller]
    pub(super) fn received(&mut self, n: usize) {
        assert!(n <= self.data.len() - self.filled, "more bytes were received than there was room for");
        self.filled += n;
    }

    /// Takes what it can of `bytes`; says how many.
    pub(super) fn take(&mut self, bytes: &[u8]) -> usize {
        let mut taken = 0;
        while taken < bytes.len() && !self.is_complete() {
            let space = self.space();
            let n = space.len().min(bytes.len() - taken);
            space[..n].copy_from_slice(&bytes[taken..taken + n]);
            self.filled += n;
            taken += n;
        }
        taken
    }
}
