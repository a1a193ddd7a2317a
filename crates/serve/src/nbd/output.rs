//! Bytes for the client.
//!
//! Invariants: `sent <= bytes.len()`; a buffer that was large once does not stay large.

use std::fmt;

/// Capacity that an empty buffer keeps.
const KEEP_BYTES: usize = 2 << 20;

/// A queue of bytes that is written at its end and sent from its front.
#[derive(Default)]
pub(super) struct Output {
    bytes: Vec<u8>,
    sent: usize,
}

impl fmt::Debug for Output {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Output({} bytes)", self.len())
    }
}

impl Output {
    /// Bytes that are not sent.
    #[inline]
    pub(super) fn pending(&self) -> &[u8] {
        &self.bytes[self.sent..]
    }

    /// Number of bytes that were not sent.
    #[inline]
    pub(super) fn len(&self) -> usize {
        self.bytes.len() - self.sent
    }

    /// Bytes of the buffer.
    pub(super) fn capacity(&self) -> usize {
        self.bytes.capacity()
    }

    /// The first `n` pending bytes were sent.
    #[track_caller]
    pub(super) fn sent(&mut self, n: usize) {
        assert!(n <= self.len(), "more bytes were sent than there were");
        self.sent += n;
        if self.sent == self.bytes.len() {
            self.sent = 0;
            self.bytes.clear();
            if self.bytes.capacity() > KEEP_BYTES {
                self.bytes = Vec::new();
            }
        }
    }

    /// The buffer, to be written at its end. What was sent is moved away when it is the larger part.
    #[inline]
    pub(super) fn end(&mut self) -> &mut Vec<u8> {
        if self.sent > self.bytes.len() / 2 {
            self.bytes.drain(..self.sent);
            self.sent = 0;
        }
        &mut self.bytes
    }
}
