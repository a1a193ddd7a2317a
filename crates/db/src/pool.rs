//! The buffer pool: the positions of pages in memory, which may be evicted, which are dirty and since when.
//!
//! Place in the data flow: trees look pages up; `page_io.rs` reads missing pages and writes dirty ones.
//!
//! Invariants:
//! 1. A page is in at most one frame.
//! 2. Only clean pages that are neither pinned nor being written are evicted, by the clock algorithm: the hand moves
//!    over the frames, and a page that was used since its last visit stays for one more round. A page that was read and
//!    not used again is evicted at the hand's first visit, so a scan does not displace pages in use.
//! 3. The flush list holds each dirty page once, ordered by the position of its oldest change that the data file does
//!    not have.
//!
//! Deliberately absent: I/O and waiting.

use crate::page::{Lsn, Page, PageNo, file_of, index_of};
use std::collections::BTreeSet;

const NOWHERE: u32 = u32::MAX;

#[derive(Debug)]
struct Frame {
    page: Page,
    number: PageNo,
    pins: u32,
    /// Whether it was used since the hand's last visit.
    used: bool,
    /// Start of the oldest change that is not in the data file.
    dirty_since: Option<Lsn>,
    /// Whether a copy is being written to the data file.
    writing: bool,
}

/// The buffer pool (see the module).
#[derive(Debug)]
pub(crate) struct Pool {
    frames: Vec<Option<Frame>>,
    free: Vec<u32>,
    /// Index of the frame, by data file and place in it.
    tables: Vec<Vec<u32>>,
    hand: usize,
    flush_list: BTreeSet<(Lsn, PageNo)>,
    pub(crate) hits: u64,
    page_bytes: usize,
}

/// A copy of a page for the data file.
#[derive(Clone, Debug)]
pub(crate) struct Copy {
    pub(crate) number: PageNo,
    pub(crate) page: Page,
}

impl Pool {
    pub(crate) fn new(pages: usize, page_bytes: usize) -> Self {
        Self {
            frames: (0..pages).map(|_| None).collect(),
            free: (0..pages as u32).rev().collect(),
            tables: Vec::new(),
            hand: 0,
            flush_list: BTreeSet::new(),
            hits: 0,
            page_bytes,
        }
    }

    pub(crate) fn page_bytes(&self) -> usize {
        self.page_bytes
    }

    fn place(&self, number: PageNo) -> Option<usize> {
        let table = self.tables.get(usize::from(file_of(number)))?;
        table.get(index_of(number) as usize).filter(|place| **place != NOWHERE).map(|place| *place as usize)
    }

    fn frame(&self, number: PageNo) -> &Frame {
        let place = self.place(number).expect("the page is in memory");
        self.frames[place].as_ref().expect("the table leads to frames in use")
    }

    fn frame_mut(&mut self, number: PageNo) -> &mut Frame {
        let place = self.place(number).expect("the page is in memory");
        self.frames[place].as_mut().expect("the table leads to frames in use")
    }

    pub(crate) fn has(&self, number: PageNo) -> bool {
        self.place(number).is_some()
    }

    /// Returns the page, if it is in memory.
    pub(crate) fn get(&mut self, number: PageNo) -> Option<&Page> {
        let place = self.place(number)?;
        self.hits += 1;
        let frame = self.frames[place].as_mut().expect("the table leads to frames in use");
        frame.used = true;
        Some(&frame.page)
    }

    /// Returns the page, which must be in memory.
    pub(crate) fn page(&self, number: PageNo) -> &Page {
        &self.frame(number).page
    }

    pub(crate) fn page_mut(&mut self, number: PageNo) -> &mut Page {
        &mut self.frame_mut(number).page
    }

    pub(crate) fn pin(&mut self, number: PageNo) {
        self.frame_mut(number).pins += 1;
    }

    pub(crate) fn unpin(&mut self, number: PageNo) {
        let frame = self.frame_mut(number);
        frame.pins -= 1;
    }

    /// Returns the number of free frames.
    pub(crate) fn free_frames(&self) -> usize {
        self.free.len()
    }

    /// Ensures that `count` frames are free; returns false if too few pages can be evicted now. Any page that is not
    /// pinned may be evicted, so no operation calls this halfway.
    pub(crate) fn has_free(&mut self, count: usize) -> bool {
        let mut steps = 2 * self.frames.len();
        while self.free.len() < count && steps > 0 {
            steps -= 1;
            let place = self.hand;
            self.hand = (self.hand + 1) % self.frames.len();
            let Some(frame) = &mut self.frames[place] else { continue };
            if frame.pins > 0 || frame.writing || frame.dirty_since.is_some() {
                continue;
            }
            if std::mem::take(&mut frame.used) {
                continue;
            }
            let (file, index) = (file_of(frame.number), index_of(frame.number));
            self.tables[usize::from(file)][index as usize] = NOWHERE;
            self.frames[place] = None;
            self.free.push(place as u32);
        }
        self.free.len() >= count
    }

    /// Puts a page into a free frame, which must exist.
    pub(crate) fn put(&mut self, number: PageNo, page: Page) {
        debug_assert!(!self.has(number), "page {number} is in memory twice");
        let place = self.free.pop().expect("a frame was made free before");
        let (file, index) = (usize::from(file_of(number)), index_of(number) as usize);
        if self.tables.len() <= file {
            self.tables.resize(file + 1, Vec::new());
        }
        let table = &mut self.tables[file];
        if table.len() <= index {
            table.resize(index + 1, NOWHERE);
        }
        table[index] = place;
        let frame = Frame { page, number, pins: 0, used: false, dirty_since: None, writing: false };
        self.frames[place as usize] = Some(frame);
    }

    // Dirty pages.

    /// Records a change of a page by a group that begins and ends at these positions of the log.
    pub(crate) fn note_change(&mut self, number: PageNo, (start, end): (Lsn, Lsn)) {
        let frame = self.frame_mut(number);
        frame.page.set_lsn(end);
        if frame.dirty_since.is_none() {
            frame.dirty_since = Some(start);
            self.flush_list.insert((start, number));
        }
    }

    pub(crate) fn dirty_pages(&self) -> usize {
        self.flush_list.len()
    }

    /// Returns the start of the oldest change that is in no copy made since.
    pub(crate) fn oldest_change(&self) -> Option<Lsn> {
        self.flush_list.first().map(|(lsn, _)| *lsn)
    }

    /// Returns the dirty pages with the oldest changes, in the order of their numbers.
    pub(crate) fn oldest_dirty(&self, count: usize) -> Vec<PageNo> {
        let mut numbers: Vec<PageNo> =
            self.flush_list.iter().take(count).map(|(_, number)| *number).collect();
        numbers.sort_unstable();
        numbers
    }

    /// Returns the dirty pages that the hand will meet next, those that are not in use first.
    pub(crate) fn next_to_leave(&self, count: usize) -> Vec<PageNo> {
        let mut classes: [Vec<PageNo>; 2] = Default::default();
        for step in 0..self.frames.len() {
            let place = (self.hand + step) % self.frames.len();
            let Some(frame) = &self.frames[place] else { continue };
            if frame.dirty_since.is_some() && frame.pins == 0 {
                classes[usize::from(frame.used)].push(frame.number);
                if classes[0].len() == count {
                    break;
                }
            }
        }
        let [mut numbers, used] = classes;
        numbers.extend(used);
        numbers.truncate(count);
        numbers.sort_unstable();
        numbers
    }

    /// Returns sealed copies of those of these pages that are dirty; they count as being written until [`Pool::written`].
    /// The first value is the position of the oldest change in them.
    pub(crate) fn begin_write(&mut self, numbers: &[PageNo]) -> (Option<Lsn>, Vec<Copy>) {
        let mut oldest = None;
        let mut copies = Vec::with_capacity(numbers.len());
        for &number in numbers {
            // Since it was chosen, another batch may have had it, and it may have been evicted.
            if !self.has(number) {
                continue;
            }
            let frame = self.frame_mut(number);
            let Some(since) = frame.dirty_since.take() else { continue };
            debug_assert!(!frame.writing, "one batch at a time");
            frame.writing = true;
            frame.page.seal();
            copies.push(Copy { number, page: frame.page.clone() });
            self.flush_list.remove(&(since, number));
            oldest = Some(oldest.map_or(since, |oldest: Lsn| oldest.min(since)));
        }
        (oldest, copies)
    }

    /// Records that the copies were written.
    pub(crate) fn written(&mut self, numbers: impl Iterator<Item = PageNo>) {
        for number in numbers {
            self.frame_mut(number).writing = false;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::page::Kind;

    fn filled(pages: usize) -> Pool {
        let mut pool = Pool::new(pages, 4096);
        for number in 0..pages as u32 {
            pool.put(number, Page::of(Kind::Tree, 0, number, 4096));
        }
        pool
    }

    #[test]
    fn what_is_used_dirty_or_pinned_stays() {
        let mut pool = filled(6);
        pool.get(1);
        pool.pin(2);
        pool.note_change(3, (100, 110));
        assert!(pool.has_free(2));
        assert_eq!((0..6).map(|n| pool.has(n)).collect::<Vec<_>>(), [false, true, true, true, false, true]);
        // The hand gives the used page a second round.
        assert!(pool.has_free(4));
        assert!(!pool.has_free(5), "one is pinned and one is dirty");
        let (oldest, copies) = pool.begin_write(&[3]);
        assert_eq!((oldest, copies.len()), (Some(100), 1));
        assert!(!pool.has_free(5), "it is being written");
        pool.written([3].into_iter());
        assert!(pool.has_free(5));
        pool.unpin(2);
        assert!(pool.has_free(6));
        assert_eq!(pool.begin_write(&[3]).0, None, "it was written and evicted");
    }

    #[test]
    fn a_page_that_changes_while_it_is_written_is_dirty_again() {
        let mut pool = filled(3);
        pool.note_change(1, (100, 110));
        pool.note_change(0, (110, 120));
        pool.note_change(1, (120, 130));
        assert_eq!((pool.dirty_pages(), pool.oldest_change()), (2, Some(100)));
        let (oldest, copies) = pool.begin_write(&pool.oldest_dirty(1));
        assert_eq!((oldest, copies[0].number, copies[0].page.lsn()), (Some(100), 1, 130));
        pool.note_change(1, (130, 140));
        assert_eq!(pool.oldest_change(), Some(110));
        pool.written([1].into_iter());
        assert_eq!((pool.dirty_pages(), pool.oldest_dirty(9)), (2, vec![0, 1]));
    }

    #[test]
    fn a_batch_has_the_position_of_its_oldest_change() {
        for numbers in [[0, 1], [1, 0]] {
            let mut pool = filled(3);
            pool.note_change(1, (100, 110));
            pool.note_change(0, (110, 120));
            assert_eq!(pool.begin_write(&numbers).0, Some(100), "{numbers:?}");
        }
    }
}
