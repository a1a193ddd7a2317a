//! Buffered reads and writes, truncation.
//!
//! Place in the data flow: a [`File`](super::File) comes in, pages are looked up in `pages`, absent ones are read by
//! the file system, written ones become dirty and go on to `writeback`.
//!
//! Invariants:
//! 1. Bytes of a page beyond the end of the file are zeros.
//! 2. A task that changes content or size of a file has its lock alone; readers take no lock and look at the size again after each wait. A
//!    read that runs beside a write sees each page either old or new.
//! 3. A page that is being read is waited for, also by writers, so that an old content never replaces a new one.
//! 4. Room is reserved before a page becomes dirty: ENOSPC is an answer to write, not to write-back.

use super::buffer::{Sink, Source, has_zero_tail, pages_of, part_of, zero_tail};
use super::inode::Inode;
use super::pages::State;
use super::state::Vfs;
use super::types::*;
use super::{Errno, Fs, WriteCause};
use flashweir_core::Payload;
use std::rc::Rc;

pub(crate) const PAGE: u64 = PAGE_BYTES as u64;

/// Number of pages for which room is reserved at once.
const CHUNK_PAGES: u64 = 256;

/// The bytes of a page behind the end of its file.
enum Tail {
    /// Zeros, in memory and on the disk.
    Zeros,
    /// Zeros from now on; the disk has something else.
    Changed,
    /// The page is in use.
    Busy,
    /// The page is not in memory.
    Absent,
    /// The page needs room before it can change.
    Homeless,
}

/// Outcome of a step at one page.
enum Step {
    /// The step is done.
    Done,

    /// The page is being read.
    Busy,
    /// The page is not in memory.
    Absent,
}

/// Whether a page has to be awaited before it can change: it is being read, or it will be withheld and is still being written.
fn is_busy(state: State, withholds: bool) -> bool {
    match state {
        State::Reading => true,
        State::Writing | State::Redirtied => withholds,
        State::Clean | State::Dirty | State::Withheld => false,
    }
}

/// Pages that are being read; if this is dropped before they are there, they are absent again.
struct Reading<'a, F: Fs> {
    vfs: &'a Vfs<F>,
    inode: &'a Inode,
    first: u64,
    payloads: Vec<Payload>,
    is_read: bool,
}

impl<F: Fs> Drop for Reading<'_, F> {
    fn drop(&mut self) {
        let size = self.inode.size.get();
        let mut pages = self.vfs.0.pages.borrow_mut();
        for (index, payload) in (self.first..).zip(&mut self.payloads) {
            let slot = pages.find(self.inode.owner, index).expect("pages that are being read stay");
            if self.is_read {
                let mut payload = std::mem::take(payload);
                let is_last = index == size / PAGE;
                let has_stale_tail = is_last && zero_tail(&mut payload, (size % PAGE) as usize);
                pages.end_read(slot, payload, has_stale_tail);
            } else {
                pages.remove(slot);
            }
        }
        drop(pages);
        self.vfs.0.payloads.give_back(std::mem::take(&mut self.payloads));
        self.inode.changed.notify();
    }
}

impl<F: Fs> Vfs<F> {
    // Reading.

    /// Reads from `offset` on, up to the end of the file. Where a page is absent, it is read with all behind it up to `want_pages`
    /// pages from that of `offset` on.
    pub(crate) async fn read_buffered(
        &self,
        inode: &Rc<Inode>,
        offset: u64,
        sink: &mut Sink<'_>,
        want_pages: u64,
    ) -> Result<u64> {
        let asked = offset.saturating_add(sink.len());
        let wanted_end = offset / PAGE + want_pages;
        let (mut at, mut touched, mut misses, mut ahead) = (offset, 0u64, 0u64, 0);
        let result = loop {
            let end = asked.min(inode.size.get());
            if at >= end {
                break Ok(());
            }
            let index = at / PAGE;
            match self.copy_page(inode, index, (offset, at, end), sink) {
                Step::Done => {
                    at = end.min((index + 1) * PAGE);
                    touched += 1;
                }
                Step::Busy => inode.changed.wait().await,
                Step::Absent => {
                    let needed_end = pages_of(at, end - at).1.min(index + CHUNK_PAGES);
                    match self.fill(inode, (index, needed_end.max(wanted_end))).await {
                        Ok((first, end)) => {
                            misses += end.min(needed_end).saturating_sub(first);
                            ahead += end.saturating_sub(needed_end);
                        }
                        Err(errno) => break Err(errno),
                    }
                }
            }
        };
        self.count(|count| {
            count.read_miss_pages += misses.min(touched);
            count.read_hit_pages += touched.saturating_sub(misses);
            count.readahead_pages += ahead;
        });
        match result {
            Err(errno) if at == offset => Err(errno),
            _ => Ok(at.saturating_sub(offset)),
        }
    }

    /// Copies bytes `at..end` of the file from page `index`, as far as they are in it.
    #[inline]
    fn copy_page(
        &self,
        inode: &Inode,
        index: u64,
        (offset, at, end): (u64, u64, u64),
        sink: &mut Sink<'_>,
    ) -> Step {
        let mut pages = self.0.pages.borrow_mut();
        let Some(slot) = pages.find(inode.owner, index) else { return Step::Absent };
        if pages.state(slot) == State::Reading {
            return Step::Busy;
        }
        pages.touch(slot);
        sink.put(at - offset, part_of(index, at, end), pages.payload(slot));
        Step::Done
    }

    /// Reads the first consecutive absent pages of the range, but none beyond the end of the file. Returns their first and end.
    pub(crate) async fn fill(&self, inode: &Rc<Inode>, range: (u64, u64)) -> Result<(u64, u64)> {
        let Some(mut reading) = self.begin_fill(inode, range).await else { return Ok((range.1, range.1)) };
        let (first, count) = (reading.first, reading.payloads.len() as u64);
        self.0.fs.read_pages(inode.ino, first, &mut reading.payloads).await?;
        reading.is_read = true;
        Ok((first, first + count))
    }

    /// Marks these pages as being read.
    async fn begin_fill<'a>(
        &'a self,
        inode: &'a Rc<Inode>,
        (first, end): (u64, u64),
    ) -> Option<Reading<'a, F>> {
        // A page is not read while direct I/O writes it, because its place on the disk changes.
        while inode.ranges.is_taken(first, end, false) {
            inode.ranges.wait().await;
        }
        let end = end.min(inode.size.get().div_ceil(PAGE));
        let now = self.now();
        let mut payloads = self.0.payloads.take();
        let mut pages = self.0.pages.borrow_mut();
        let first = (first..end).find(|&index| pages.find(inode.owner, index).is_none());
        let first = first.unwrap_or(end);
        for index in first..end {
            if pages.find(inode.owner, index).is_some() {
                break;
            }
            pages.insert(inode.owner, index, State::Reading, Payload::Zero, now);
            payloads.push(Payload::Zero);
        }
        drop(pages);
        self.forget_emptied();
        if payloads.is_empty() {
            self.0.payloads.give_back(payloads);
            return None;
        }
        Some(Reading { vfs: self, inode, first, payloads, is_read: false })
    }

    // Writing.

    /// Writes at `offset`; the caller has the inode's lock alone and has checked the range. Returns the number of bytes written, or
    /// an error if none were.
    pub(crate) async fn write_buffered(
        &self,
        inode: &Rc<Inode>,
        offset: u64,
        source: &Source<'_>,
    ) -> Result<u64> {
        let withholds = inode.withholds();
        if withholds {
            inode.note_withheld(self.timestamp());
        }
        let end = offset + source.len();
        self.end_last_page(inode, (offset, end)).await?;
        let mut at = offset;
        let mut failed = None;
        let at_once_max = self.0.fs.at_once_max().filter(|_| !withholds);
        let chunk_max = at_once_max.unwrap_or(CHUNK_PAGES).min(self.0.options.cache.dirty_hard_pages);
        while at < end && failed.is_none() {
            let first = at / PAGE;
            let chunk = match self.prepare(inode, (at, end.min((first + chunk_max) * PAGE))).await {
                Ok(chunk) => chunk,
                Err(errno) => {
                    failed = Some(errno);
                    break;
                }
            };
            let chunk_end = end.min((first + chunk) * PAGE);
            if at_once_max.is_some() {
                match self.write_at_once(inode, offset, (at, chunk_end), source).await {
                    Ok(()) => at = chunk_end,
                    Err(errno) => failed = Some(errno),
                }
                self.forget_emptied();
                continue;
            }
            let begun = at;
            while at < chunk_end {
                let part_end = chunk_end.min((at / PAGE + 1) * PAGE);
                if let Err(errno) = self.write_page(inode, offset, (at, part_end), source).await {
                    failed = Some(errno);
                    break;
                }
                at = part_end;
                inode.grow(at);
            }
            if at > begun && withholds {
                inode.note_withheld(self.timestamp());
                self.forget_emptied();
            } else if at > begun {
                self.0.fs.wrote(inode.ino, at, self.timestamp());
                self.queue_dirty(inode);
                self.forget_emptied();
            }
        }
        match failed {
            Some(errno) if at == offset => Err(errno),
            _ => Ok(at - offset),
        }
    }

    /// Writes the bytes `at..end` of the file to a file system that journals data, all in one step. No other task gets in between: what
    /// the pages need is awaited before the first of them changes. After an error the pages leave memory, and nothing was written.
    async fn write_at_once(
        &self,
        inode: &Rc<Inode>,
        offset: u64,
        (at, end): (u64, u64),
        source: &Source<'_>,
    ) -> Result<()> {
        let (first, page_end) = pages_of(at, end - at);
        while let Some((index, step)) = self.obstacle(inode, (at, end)) {
            match step {
                Step::Absent => drop(self.fill(inode, (index, index + 1)).await?),
                Step::Busy | Step::Done => inode.changed.wait().await,
            }
        }
        // Pages in memory come first: a new page may take the place of one that is clean.
        for comes_now in [true, false] {
            for index in first..page_end {
                if self.0.pages.borrow().find(inode.owner, index).is_some() == comes_now {
                    let part = (at.max(index * PAGE), end.min((index + 1) * PAGE));
                    let step = self.put_page(inode, index, (offset, part.0, part.1), source);
                    debug_assert!(matches!(step, Step::Done), "its obstacles are gone");
                }
            }
        }
        let handed_over = self.hand_over(inode, (first, page_end), end).await;
        match handed_over {
            Ok(()) => inode.grow(end),
            Err(_) => self.drop_pages(inode, (first, page_end)).await,
        }
        handed_over
    }

    /// A page that has to be awaited before the bytes `at..end` can be put into their pages and handed over in one step: it is busy, or
    /// its old content is needed and absent.
    fn obstacle(&self, inode: &Inode, (at, end): (u64, u64)) -> Option<(u64, Step)> {
        let (first, page_end) = pages_of(at, end - at);
        let pages = self.0.pages.borrow();
        (first..page_end).find_map(|index| match pages.find(inode.owner, index) {
            Some(slot) => match pages.state(slot) {
                State::Clean | State::Dirty | State::Withheld => None,
                State::Reading | State::Writing | State::Redirtied => Some((index, Step::Busy)),
            },
            None => {
                let is_whole = at <= index * PAGE && (index + 1) * PAGE <= end;
                (!is_whole && index * PAGE < inode.size.get()).then_some((index, Step::Absent))
            }
        })
    }

    /// Makes sure that pages of the bytes `at..end` can become dirty: all of them, or the first one. Returns the number.
    async fn prepare(&self, inode: &Rc<Inode>, (at, end): (u64, u64)) -> Result<u64> {
        let (first, page_end) = pages_of(at, end - at);
        let count = page_end - first;
        // The first page of a file that becomes longer may need other room than it has.
        if (first > 0 || end <= inode.size.get())
            && self.0.pages.borrow().all_dirty(inode.owner, first, count)
        {
            return Ok(count);
        }
        if inode.withholds() {
            return self.throttle_withheld(count).await.map(|()| count);
        }
        let count = match self.0.fs.reserve(inode.ino, (at, end)).await {
            // There may be room for the first page.
            Err(Errno::ENOSPC | Errno::EDQUOT) if count > 1 => {
                self.0.fs.reserve(inode.ino, (at, (first + 1) * PAGE)).await?;
                1
            }
            reserved => reserved.map(|()| count)?,
        };
        // This comes last, so that no task runs between the wait and the pages.
        self.throttle(count).await?;
        Ok(count)
    }

    /// Writes the bytes `at..end` of the file, within one page; the source begins at `offset`.
    async fn write_page(
        &self,
        inode: &Rc<Inode>,
        offset: u64,
        (at, end): (u64, u64),
        source: &Source<'_>,
    ) -> Result<()> {
        let index = at / PAGE;
        loop {
            match self.put_page(inode, index, (offset, at, end), source) {
                Step::Done => return Ok(()),
                Step::Busy => inode.changed.wait().await,
                Step::Absent => drop(self.fill(inode, (index, index + 1)).await?),
            }
        }
    }

    /// Puts bytes `at..end` of the file into page `index`, unless the page's old content is needed and absent.
    #[inline]
    fn put_page(
        &self,
        inode: &Inode,
        index: u64,
        (offset, at, end): (u64, u64, u64),
        source: &Source<'_>,
    ) -> Step {
        let part = part_of(index, at, end);
        let is_whole = part == (0, PAGE_BYTES);
        let now = self.now();
        let withholds = inode.withholds();
        let mut pages = self.0.pages.borrow_mut();
        match pages.find(inode.owner, index) {
            Some(slot) if is_busy(pages.state(slot), withholds) => return Step::Busy,
            Some(slot) => {
                match withholds {
                    true => pages.withhold(slot, now),
                    false => pages.make_dirty(slot, now),
                }
                let payload = pages.payload_mut(slot);
                if is_whole {
                    *payload = source.page(index, at - offset);
                } else {
                    source.merge(index, at - offset, part, payload);
                }
            }
            // The old content is not needed: the whole page is overwritten, or it lies beyond the end.
            None if is_whole || index * PAGE >= inode.size.get() => {
                let mut payload = Payload::Zero;
                if is_whole {
                    payload = source.page(index, at - offset);
                } else {
                    source.merge(index, at - offset, part, &mut payload);
                }
                let state = if withholds { State::Withheld } else { State::Dirty };
                pages.insert(inode.owner, index, state, payload, now);
            }
            None => return Step::Absent,
        }
        Step::Done
    }

    // Removal of pages.

    /// Removes the pages within `range` from memory, dirty ones too. Waits for those that are being read or written.
    pub(crate) async fn drop_pages(&self, inode: &Rc<Inode>, range: (u64, u64)) {
        let mut slots = self.0.slots.take();
        loop {
            let mut is_busy = false;
            {
                let mut pages = self.0.pages.borrow_mut();
                pages.slots(inode.owner, range, &mut slots);
                for slot in slots.drain(..) {
                    match pages.state(slot) {
                        State::Clean | State::Dirty | State::Withheld => pages.remove(slot),
                        State::Reading | State::Writing | State::Redirtied => is_busy = true,
                    }
                }
            }
            // What could not be written may be gone.
            self.0.stuck.set(None);
            self.0.cleaned.notify();
            if !is_busy {
                break;
            }
            inode.changed.wait().await;
        }
        self.0.slots.give_back(slots);
    }

    /// Writes the dirty pages within the range and removes all from memory, for direct I/O.
    pub(crate) async fn flush_range(&self, inode: &Rc<Inode>, range: (u64, u64)) -> Result<()> {
        if self.0.pages.borrow().pages_of(inode.owner) == 0 {
            return Ok(());
        }
        self.write_range(inode, range, WriteCause::Sync).await?;
        self.drop_pages(inode, range).await;
        Ok(())
    }

    /// Changes the size; the caller has the inode's lock alone and is its user, and `changes` has the size.
    pub(crate) async fn resize(&self, inode: &Rc<Inode>, size: u64, changes: &SetAttr) -> Result<Attr> {
        if inode.withholds() {
            return self.resize_withheld(inode, size, changes).await;
        }
        let before = inode.size.get();
        if size >= before {
            self.end_last_page(inode, (size, size)).await?;
            let result = self.0.fs.setattr(inode.ino, changes).await;
            self.take_size(inode, result.is_ok().then_some(size), before).await;
            return result;
        }
        let tail = (size % PAGE) as usize;
        if tail != 0 {
            // This page is read first, so that an error is found before anything is lost.
            self.fill(inode, (size / PAGE, size / PAGE + 1)).await?;
        }
        inode.size.set(size);
        self.drop_pages(inode, (size.div_ceil(PAGE), u64::MAX)).await;
        let result = if self.0.fs.at_once_max().is_some() {
            // The zeros enter the journal after the new length.
            let attr = self.0.fs.setattr(inode.ino, changes).await;
            if attr.is_ok() {
                self.zero_last_page(inode, size, true).await?;
            }
            attr
        } else {
            match self.zero_last_page(inode, size, true).await {
                Ok(()) => self.0.fs.setattr(inode.ino, changes).await,
                Err(errno) => Err(errno),
            }
        };
        self.take_size(inode, result.is_ok().then_some(size), before).await;
        result
    }

    /// Takes over the size that a change has given the file. One of several steps may have ended with an error behind its first one.
    async fn take_size(&self, inode: &Inode, changed: Option<u64>, before: u64) {
        let size = match changed {
            Some(size) => size,
            None => self.0.fs.getattr(inode.ino).await.map_or(before, |attr| attr.size),
        };
        inode.size.set(size);
    }

    /// The file is about to become longer by a change of `from..to`: bytes on the disk behind the current end, which a power cut can leave,
    /// must not become visible.
    pub(crate) async fn end_last_page(&self, inode: &Rc<Inode>, (from, to): (u64, u64)) -> Result<()> {
        let size = inode.size.get();
        if size.is_multiple_of(PAGE) || to <= size {
            return Ok(());
        }
        // The change itself covers the bytes, but a cut can take it back and leave the new length.
        if from <= size && !self.has_stale_tail(inode, size / PAGE).await {
            return Ok(());
        }
        self.zero_last_page(inode, size, false).await
    }

    /// Whether the disk holds bytes behind the end of the file, in its last page. If that cannot be read, the change replaces it, or meets the
    /// same error.
    async fn has_stale_tail(&self, inode: &Rc<Inode>, index: u64) -> bool {
        loop {
            let state = {
                let pages = self.0.pages.borrow();
                pages.find(inode.owner, index).map(|slot| (pages.state(slot), pages.has_stale_tail(slot)))
            };
            match state {
                Some((State::Reading, _)) => inode.changed.wait().await,
                Some((_, is_stale)) => return is_stale,
                None if self.fill(inode, (index, index + 1)).await.is_err() => return false,
                None => {}
            }
        }
    }

    /// Zeroes the bytes between the end of the file and the end of its last page. A file that is `cut` there needs them on the disk even where
    /// the page in memory has them: it may be dirty.
    pub(crate) async fn zero_last_page(&self, inode: &Rc<Inode>, size: u64, cut: bool) -> Result<()> {
        let (index, tail) = (size / PAGE, (size % PAGE) as usize);
        if tail == 0 {
            return Ok(());
        }
        let withholds = inode.withholds();
        let mut is_reserved = withholds;
        loop {
            match self.zero_page_tail(inode, index, tail, is_reserved) {
                // Before the length changes: what is cut off, or was left there by a power cut, never comes back with a later length. What
                // is journalled goes there in order.
                Tail::Changed if !withholds => {
                    return self.write_range(inode, (index, index + 1), WriteCause::Sync).await;
                }
                Tail::Zeros if (cut || self.0.fs.at_once_max().is_some()) && !withholds => {
                    return self.write_range(inode, (index, index + 1), WriteCause::Sync).await;
                }
                Tail::Zeros | Tail::Changed => return Ok(()),
                Tail::Busy => inode.changed.wait().await,
                Tail::Absent => drop(self.fill(inode, (index, index + 1)).await?),
                Tail::Homeless => {
                    self.0.fs.reserve(inode.ino, (index * PAGE, size)).await?;
                    is_reserved = true;
                }
            }
        }
    }

    /// Zeroes page `index` from `tail` on and makes it dirty, or returns what is missing first.
    fn zero_page_tail(&self, inode: &Rc<Inode>, index: u64, tail: usize, is_reserved: bool) -> Tail {
        let mut pages = self.0.pages.borrow_mut();
        let withholds = inode.withholds();
        let Some(slot) = pages.find(inode.owner, index) else { return Tail::Absent };
        if is_busy(pages.state(slot), withholds) {
            return Tail::Busy;
        }
        // A page that was zeroed when it was read is right in memory, but not on the disk.
        if !pages.has_stale_tail(slot) && has_zero_tail(pages.payload(slot), tail) {
            return Tail::Zeros;
        }
        if !is_reserved {
            return Tail::Homeless;
        }
        zero_tail(pages.payload_mut(slot), tail);
        if withholds {
            pages.withhold(slot, self.now());
            return Tail::Changed;
        }
        pages.make_dirty(slot, self.now());
        drop(pages);
        self.queue_dirty(inode);
        Tail::Changed
    }
}
