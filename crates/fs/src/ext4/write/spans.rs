//! Parts of files that were looked up, to be found again without a walk through the extent tree.
//!
//! Place in the data flow: each page that is written is looked up twice, when room is reserved for it and when it gets its place; and
//! random writes to a large file hit few parts repeatedly.
//!
//! Invariant: after a change of any tree no earlier part is found.

use super::super::layout::{Addr, Ino};
use std::cell::Cell;

/// Number of places in the table: few enough to stay in a processor's cache.
const PLACES: usize = 2048;
/// Blocks of a file whose parts share a place.
const BLOCKS: u64 = 256;

/// Part of a file: an extent, or a hole.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Span {
    pub(super) first: u64,
    pub(super) end: u64,
    /// Address of its first block; `None` for a hole.
    pub(super) addr: Option<Addr>,
    pub(super) is_unwritten: bool,
}

impl Span {
    /// Address of a block of the file, if it was written.
    pub(super) fn written(&self, block: u64) -> Option<Addr> {
        let addr = self.addr.filter(|_| !self.is_unwritten)?;
        Some(Addr(addr.0 + (block - self.first)))
    }
}

#[derive(Clone, Copy, Debug)]
struct Entry {
    ino: Ino,
    /// Number of changes of trees before the lookup.
    changes: u64,
    span: Span,
}

/// A place in the table is a line of the processor's caches.
#[derive(Clone, Debug, Default)]
#[repr(align(64))]
struct Place(Cell<Option<Entry>>);

/// The table; each part is kept at the place of the block that was looked up.
#[derive(Debug)]
pub(super) struct Spans {
    places: Box<[Place]>,
    changes: u64,
}

impl Default for Spans {
    fn default() -> Self {
        Self { places: vec![Place::default(); PLACES].into(), changes: 0 }
    }
}

impl Spans {
    fn place(&self, ino: Ino, block: u64) -> &Place {
        &self.places[(u64::from(ino.0) + block / BLOCKS) as usize % PLACES]
    }

    /// Begins to fetch the place of a block that will be looked up soon.
    #[inline]
    pub(super) fn prefetch(&self, ino: Ino, block: u64) {
        flashweir_core::prefetch(self.place(ino, block));
    }

    #[inline]
    pub(super) fn get(&self, ino: Ino, block: u64) -> Option<Span> {
        let Entry { ino: of, changes, span } = self.place(ino, block).0.get()?;
        let is_it = of == ino && changes == self.changes && (span.first..span.end).contains(&block);
        is_it.then_some(span)
    }

    pub(super) fn insert(&self, ino: Ino, block: u64, span: Span) {
        self.place(ino, block).0.set(Some(Entry { ino, changes: self.changes, span }));
    }

    /// A tree has changed: no earlier part is found any more.
    pub(super) fn forget(&mut self) {
        self.changes += 1;
    }
}

#[cfg(test)]
mod tests {
    use super::super::super::layout::Addr;
    use super::*;

    #[test]
    fn a_part_is_found_until_a_tree_changes() {
        assert_eq!(size_of::<Place>(), 64);
        let mut spans = Spans::default();
        let span = Span { first: 10, end: 300, addr: Some(Addr(7)), is_unwritten: false };
        spans.insert(Ino(1), 20, span);
        assert_eq!([10, 20, 255].map(|block| spans.get(Ino(1), block)), [Some(span); 3]);
        // Outside of the part, at another place, of another file, and of one that shares the place.
        assert_eq!([9, 256, 299].map(|block| spans.get(Ino(1), block)), [None; 3]);
        assert_eq!([2, 1 + PLACES as u32].map(|ino| spans.get(Ino(ino), 20)), [None; 2]);
        spans.forget();
        assert_eq!(spans.get(Ino(1), 20), None);
    }
}
