//! Received bytes that are not parsed yet.
//!
//! Invariants: `start <= end <= bytes.len()`; the buffer never grows, so an announcement costs nothing.

use std::fmt;

/// Bytes of the buffer.
pub(super) const INPUT_BYTES: usize = 256 << 10;
/// Contiguous room that [`Input::space`] makes if it can.
const SPACE_BYTES_MIN: usize = 64 << 10;

/// A buffer of fixed size whose content moves to its front when its end is near.
pub(super) struct Input {
    bytes: Box<[u8]>,
    start: usize,
    end: usize,
}

impl fmt::Debug for Input {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Input({} bytes)", self.end - self.start)
    }
}

impl Input {
    /// An empty buffer. Its pages cost memory when they are first used.
    pub(super) fn new() -> Self {
        Self { bytes: vec![0; INPUT_BYTES].into_boxed_slice(), start: 0, end: 0 }
    }

    /// Bytes that were received and not consumed.
    #[inline]
    pub(super) fn unread(&self) -> &[u8] {
        &self.bytes[self.start..self.end]
    }

    /// Room for received bytes.
    pub(super) fn space(&mut self) -> &mut [u8] {
        if self.start == self.end {
            (self.start, self.end) = (0, 0);
        } else if self.bytes.len() - self.end < SPACE_BYTES_MIN {
            self.bytes.copy_within(self.start..self.end, 0);
            (self.start, self.end) = (0, self.end - self.start);
        }
        &mut self.bytes[self.end..]
    }

    /// The first `n` bytes of the room were received.
    #[track_caller]
    pub(super) fn received(&mut self, n: usize) {
        assert!(n <= self.bytes.len() - self.end, "more bytes were received than there was room for");
        self.end += n;
    }

    /// The first `n` unread bytes are done with.
    #[inline]
    pub(super) fn consume(&mut self, n: usize) {
        debug_assert!(n <= self.end - self.start);
        self.start += n;
    }

    /// Bytes of the buffer.
    pub(super) fn capacity(&self) -> usize {
        self.bytes.len()
    }

    /// Forgets everything.
    pub(super) fn clear(&mut self) {
        (self.start, self.end) = (0, 0);
    }
}
