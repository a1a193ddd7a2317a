//! Source of written data and destination of read data: real bytes, or synthetic contents of eight bytes a page.

use super::types::PAGE_BYTES;
use flashweir_core::command::pattern;
use flashweir_core::{Lpn, Payload};
use std::sync::Arc;

const PAGE: u64 = PAGE_BYTES as u64;

/// Data to write.
#[derive(Clone, Copy, Debug)]
pub struct Source<'a> {
    content: Content<'a>,
    len: u64,
}

#[derive(Clone, Copy, Debug)]
enum Content<'a> {
    Zero,
    Pattern(u64),
    Bytes(&'a [u8]),
}

impl<'a> Source<'a> {
    /// These bytes.
    pub const fn bytes(bytes: &'a [u8]) -> Self {
        Self { content: Content::Bytes(bytes), len: bytes.len() as u64 }
    }

    /// This many zeros.
    pub const fn zeros(len: u64) -> Self {
        Self { content: Content::Zero, len }
    }

    /// Synthetic data: page `n` of the file gets the content for which `pattern(operation, n)` stands. A part of a page gets the
    /// same part of that content.
    pub const fn pattern(operation: u64, len: u64) -> Self {
        Self { content: Content::Pattern(operation), len }
    }

    /// Length in bytes.
    #[inline]
    pub const fn len(&self) -> u64 {
        self.len
    }

    /// Whether there is nothing to write.
    pub const fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// The first `len` bytes.
    pub(crate) const fn truncated(self, len: u64) -> Self {
        Self { content: self.content, len }
    }

    /// The payload of the whole page `index`, which begins `at` bytes after the beginning of the source.
    #[inline]
    pub(crate) fn page(&self, index: u64, at: u64) -> Payload {
        match self.content {
            Content::Zero => Payload::Zero,
            Content::Pattern(operation) => Payload::Tag(pattern(operation, Lpn(index))),
            Content::Bytes(bytes) => Payload::Bytes(Arc::from(&bytes[at as usize..at as usize + PAGE_BYTES])),
        }
    }

    /// Copies the bytes of the source from `at` on into bytes `from..to` of the page `index`, whose content is `payload`.
    pub(crate) fn merge(&self, index: u64, at: u64, (from, to): (usize, usize), payload: &mut Payload) {
        let page = bytes_mut(payload);
        let part = &mut page[from..to];
        match self.content {
            Content::Zero => part.fill(0),
            Content::Bytes(bytes) => part.copy_from_slice(&bytes[at as usize..at as usize + (to - from)]),
            Content::Pattern(operation) => {
                let mut whole = [0; PAGE_BYTES];
                Payload::Tag(pattern(operation, Lpn(index))).expand(&mut whole);
                part.copy_from_slice(&whole[from..to]);
            }
        }
    }
}

/// The payload as bytes that may be changed. A shared payload is copied first.
pub(crate) fn bytes_mut(payload: &mut Payload) -> &mut [u8] {
    if !matches!(payload, Payload::Bytes(_)) {
        let mut whole = [0; PAGE_BYTES];
        payload.expand(&mut whole);
        *payload = Payload::Bytes(Arc::from(&whole[..]));
    }
    match payload {
        Payload::Bytes(bytes) => Arc::make_mut(bytes),
        Payload::Zero | Payload::Tag(_) => unreachable!("it was made bytes above"),
    }
}

/// Zeroes the page from byte `from` on. Returns whether any of these bytes was not zero.
pub(crate) fn zero_tail(payload: &mut Payload, from: usize) -> bool {
    if has_zero_tail(payload, from) {
        return false;
    }
    bytes_mut(payload)[from..].fill(0);
    true
}

/// Whether the page holds only zeros from byte `from` on.
pub(crate) fn has_zero_tail(payload: &Payload, from: usize) -> bool {
    match payload {
        Payload::Zero => true,
        Payload::Tag(_) => false,
        Payload::Bytes(bytes) => bytes[from..].iter().all(|&byte| byte == 0),
    }
}

/// Destination of data that are read.
#[derive(Debug)]
pub struct Sink<'a> {
    target: Target<'a>,
    len: u64,
}

#[derive(Debug)]
enum Target<'a> {
    Nowhere,
    Bytes(&'a mut [u8]),
    Payloads(&'a mut Vec<Payload>),
}

impl<'a> Sink<'a> {
    /// A destination in these bytes.
    pub const fn bytes(bytes: &'a mut [u8]) -> Self {
        let len = bytes.len() as u64;
        Self { target: Target::Bytes(bytes), len }
    }

    /// Reads `len` bytes and forgets them.
    pub const fn nowhere(len: u64) -> Self {
        Self { target: Target::Nowhere, len }
    }

    /// Appends the payload of each page that `len` bytes touch, always as whole pages.
    pub const fn payloads(len: u64, payloads: &'a mut Vec<Payload>) -> Self {
        Self { target: Target::Payloads(payloads), len }
    }

    /// Length in bytes.
    #[inline]
    pub const fn len(&self) -> u64 {
        self.len
    }

    /// Whether there is nothing to read.
    pub const fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// Takes bytes `from..to` of a page as the bytes from `at` on of the destination.
    #[inline]
    pub(crate) fn put(&mut self, at: u64, (from, to): (usize, usize), payload: &Payload) {
        match &mut self.target {
            Target::Nowhere => {}
            Target::Payloads(payloads) => payloads.push(payload.clone()),
            Target::Bytes(bytes) => {
                let part = &mut bytes[at as usize..at as usize + (to - from)];
                match payload {
                    Payload::Zero => part.fill(0),
                    Payload::Bytes(page) => part.copy_from_slice(&page[from..to]),
                    Payload::Tag(_) if part.len() == PAGE_BYTES => payload.expand(part),
                    Payload::Tag(_) => {
                        let mut whole = [0; PAGE_BYTES];
                        payload.expand(&mut whole);
                        part.copy_from_slice(&whole[from..to]);
                    }
                }
            }
        }
    }
}

/// The pages that `len` bytes from `offset` on touch: first and end.
#[inline]
pub(crate) const fn pages_of(offset: u64, len: u64) -> (u64, u64) {
    if len == 0 {
        return (offset / PAGE, offset / PAGE);
    }
    (offset / PAGE, (offset + len - 1) / PAGE + 1)
}

/// The bytes of page `index` that lie within `offset..end`: from and to.
#[inline]
pub(crate) fn part_of(index: u64, offset: u64, end: u64) -> (usize, usize) {
    let begin = index * PAGE;
    ((offset.max(begin) - begin) as usize, (end.min(begin + PAGE) - begin) as usize)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_part_of_a_pattern_is_that_part_of_the_whole_page() {
        let source = Source::pattern(7, 3 * PAGE);
        let mut whole = [0; PAGE_BYTES];
        source.page(1, 0).expand(&mut whole);
        let mut payload = Payload::Zero;
        source.merge(1, 0, (100, 300), &mut payload);
        let mut merged = [0; PAGE_BYTES];
        payload.expand(&mut merged);
        assert_eq!(merged[100..300], whole[100..300]);
        assert!(merged[..100].iter().chain(&merged[300..]).all(|&byte| byte == 0));
    }

    #[test]
    fn a_payload_that_is_being_written_is_not_changed_in_place() {
        let mut payload = Payload::Bytes(Arc::from(vec![1; PAGE_BYTES]));
        let written = payload.clone();
        Source::bytes(&[2, 2]).merge(0, 0, (0, 2), &mut payload);
        assert_eq!(written, Payload::Bytes(Arc::from(vec![1; PAGE_BYTES])));
        let Payload::Bytes(bytes) = &payload else { panic!("bytes") };
        assert_eq!(bytes[..3], [2, 2, 1]);
    }

    #[test]
    fn pages_and_parts() {
        assert_eq!(pages_of(0, 0), (0, 0));
        assert_eq!(pages_of(0, 4096), (0, 1));
        assert_eq!(pages_of(4095, 2), (0, 2));
        assert_eq!(pages_of(8192, 1), (2, 3));
        assert_eq!(part_of(0, 4095, 4097), (4095, 4096));
        assert_eq!(part_of(1, 4095, 4097), (0, 1));
        assert_eq!(part_of(1, 0, 1 << 40), (0, 4096));
    }
}
