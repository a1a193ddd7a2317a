//! Changes of pages as they are stored in the redo log (database §5).
//!
//! Place in the data flow: a mini-transaction applies operations to pages in memory and appends them to the log as one
//! group; recovery reads groups and applies the same operations to older pages.
//!
//! Invariant: only [`Op::apply`] changes pages, in normal operation and in recovery.

use crate::page::{Kind, Page, PageNo};

/// A change of one page.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Op<'a> {
    /// Make the page an empty one.
    Init { kind: Kind, level: u8 },
    /// Insert a record at a slot.
    Insert { slot: usize, key: &'a [u8], value: &'a [u8] },
    /// Remove a record.
    Remove { slot: usize },
    /// Replace the value of a record.
    Replace { slot: usize, value: &'a [u8] },
    /// Change bytes of a value.
    Patch { slot: usize, at: usize, bytes: &'a [u8] },
    /// Remove the records from a slot on.
    Truncate { slot: usize },
    /// Set the next page of the chain.
    SetNext { next: PageNo },
    /// Set the number of pages in the head of a data file.
    SetPages { pages: u32 },
}

fn put_bytes(out: &mut Vec<u8>, bytes: &[u8]) {
    put_u16(out, bytes.len());
    out.extend_from_slice(bytes);
}

fn put_u16(out: &mut Vec<u8>, value: usize) {
    debug_assert!(value <= usize::from(u16::MAX), "slots and lengths are those of a page");
    out.extend_from_slice(&(value as u16).to_le_bytes());
}

/// Reads numbers from the front of a byte slice.
pub(crate) struct Reader<'a>(pub(crate) &'a [u8]);

impl<'a> Reader<'a> {
    pub(crate) fn take(&mut self, bytes: usize) -> Option<&'a [u8]> {
        let (head, rest) = self.0.split_at_checked(bytes)?;
        self.0 = rest;
        Some(head)
    }
    pub(crate) fn u8(&mut self) -> Option<u8> {
        self.take(1).map(|bytes| bytes[0])
    }
    pub(crate) fn u16(&mut self) -> Option<usize> {
        self.take(2).map(|bytes| usize::from(u16::from_le_bytes([bytes[0], bytes[1]])))
    }
    pub(crate) fn u32(&mut self) -> Option<u32> {
        self.take(4).map(|bytes| u32::from_le_bytes(std::array::from_fn(|i| bytes[i])))
    }
    fn bytes(&mut self) -> Option<&'a [u8]> {
        let len = self.u16()?;
        self.take(len)
    }
}

impl<'a> Op<'a> {
    /// Appends the encoded operation on page `number`.
    pub(crate) fn encode(&self, number: PageNo, out: &mut Vec<u8>) {
        let mut begin = |tag: u8| {
            out.push(tag);
            out.extend_from_slice(&number.to_le_bytes());
        };
        match *self {
            Self::Init { kind, level } => {
                begin(1);
                out.extend_from_slice(&[kind as u8, level]);
            }
            Self::Insert { slot, key, value } => {
                begin(2);
                put_u16(out, slot);
                put_bytes(out, key);
                put_bytes(out, value);
            }
            Self::Remove { slot } => {
                begin(3);
                put_u16(out, slot);
            }
            Self::Replace { slot, value } => {
                begin(4);
                put_u16(out, slot);
                put_bytes(out, value);
            }
            Self::Patch { slot, at, bytes } => {
                begin(5);
                put_u16(out, slot);
                put_u16(out, at);
                put_bytes(out, bytes);
            }
            Self::Truncate { slot } => {
                begin(6);
                put_u16(out, slot);
            }
            Self::SetNext { next } => {
                begin(7);
                out.extend_from_slice(&next.to_le_bytes());
            }
            Self::SetPages { pages } => {
                begin(8);
                out.extend_from_slice(&pages.to_le_bytes());
            }
        }
    }

    /// Decodes one operation and its page; returns `None` if there is no valid one.
    pub(crate) fn decode(reader: &mut Reader<'a>) -> Option<(PageNo, Self)> {
        let (tag, number) = (reader.u8()?, reader.u32()?);
        let op = match tag {
            1 => Self::Init { kind: Kind::of(reader.u8()?)?, level: reader.u8()? },
            2 => Self::Insert { slot: reader.u16()?, key: reader.bytes()?, value: reader.bytes()? },
            3 => Self::Remove { slot: reader.u16()? },
            4 => Self::Replace { slot: reader.u16()?, value: reader.bytes()? },
            5 => Self::Patch { slot: reader.u16()?, at: reader.u16()?, bytes: reader.bytes()? },
            6 => Self::Truncate { slot: reader.u16()? },
            7 => Self::SetNext { next: reader.u32()? },
            8 => Self::SetPages { pages: reader.u32()? },
            _ => return None,
        };
        Some((number, op))
    }

    /// Whether the operation can be applied to the page. Recovery checks it; in normal operation it always holds.
    pub(crate) fn is_possible(&self, page: &Page) -> bool {
        if matches!(self, Self::Init { .. }) {
            return true;
        }
        if page.fault().is_some() {
            return false;
        }
        match *self {
            Self::Insert { slot, key, value } => slot <= page.count() && page.fits(key.len(), value.len()),
            Self::Remove { slot } => slot < page.count(),
            Self::Replace { slot, value } => slot < page.count() && page.fits_instead(slot, value.len()),
            Self::Patch { slot, at, bytes } => {
                slot < page.count() && at + bytes.len() <= page.value(slot).len()
            }
            Self::Truncate { slot } => slot <= page.count(),
            Self::Init { .. } | Self::SetNext { .. } | Self::SetPages { .. } => true,
        }
    }

    /// Applies the operation to the page.
    pub(crate) fn apply(&self, number: PageNo, page: &mut Page) {
        match *self {
            Self::Init { kind, level } => page.init(kind, level, number),
            Self::Insert { slot, key, value } => page.insert(slot, key, value),
            Self::Remove { slot } => page.remove(slot),
            Self::Replace { slot, value } => page.replace(slot, value),
            Self::Patch { slot, at, bytes } => page.patch(slot, at, bytes),
            Self::Truncate { slot } => page.truncate(slot),
            Self::SetNext { next } => page.set_next(next),
            Self::SetPages { pages } => page.set_pages(pages),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn operations_are_read_as_they_were_written() {
        let ops = [
            Op::Init { kind: Kind::Undo, level: 3 },
            Op::Insert { slot: 7, key: b"k", value: b"value" },
            Op::Remove { slot: 500 },
            Op::Replace { slot: 1, value: b"" },
            Op::Patch { slot: 2, at: 300, bytes: b"xy" },
            Op::Truncate { slot: 9 },
            Op::SetNext { next: 1 << 20 },
            Op::SetPages { pages: u32::MAX },
        ];
        let mut bytes = Vec::new();
        for (number, op) in ops.iter().enumerate() {
            op.encode(number as u32, &mut bytes);
        }
        let mut reader = Reader(&bytes);
        for (number, op) in ops.iter().enumerate() {
            assert_eq!(Op::decode(&mut reader), Some((number as u32, *op)));
        }
        assert!(reader.0.is_empty());
        // No proper prefix of an operation is a valid one.
        let mut last = Vec::new();
        ops[1].encode(5, &mut last);
        for len in 0..last.len() {
            assert_eq!(Op::decode(&mut Reader(&last[..len])), None);
        }
    }

    #[test]
    fn what_cannot_be_done_is_noticed() {
        let mut page = Page::of(Kind::Tree, 0, 1, 4096);
        page.insert(0, b"a", b"12345");
        let long = [0; 4096];
        for (op, possible) in [
            (Op::Insert { slot: 1, key: b"b", value: b"" }, true),
            (Op::Insert { slot: 2, key: b"b", value: b"" }, false),
            (Op::Insert { slot: 1, key: b"b", value: &long }, false),
            (Op::Remove { slot: 0 }, true),
            (Op::Remove { slot: 1 }, false),
            (Op::Patch { slot: 0, at: 3, bytes: b"xy" }, true),
            (Op::Patch { slot: 0, at: 4, bytes: b"xy" }, false),
            (Op::Patch { slot: 1, at: 0, bytes: b"" }, false),
            (Op::Replace { slot: 0, value: &long }, false),
            (Op::Replace { slot: 0, value: b"1" }, true),
            (Op::Replace { slot: 1, value: b"1" }, false),
            (Op::Truncate { slot: 1 }, true),
            (Op::Truncate { slot: 2 }, false),
        ] {
            assert_eq!(op.is_possible(&page), possible, "{op:?}");
        }
        assert!(!Op::Remove { slot: 0 }.is_possible(&Page::blank(4096)));
    }
}
