//! Direct I/O: past the page cache.
//!
//! Invariants:
//! 1. Within the size of a file several tasks do direct I/O side by side; a task that extends the file has it alone. Ranges that
//!    overlap wait for each other if one of them is written.
//! 2. Direct I/O of a file that withholds goes through the cache.
//! 3. Before direct I/O the dirty pages of its range are written; before a write all pages of the range leave memory,
//!    and none is read in while it lasts.
//!
//! Deliberately absent: a coherent view for buffered reads of the same range that began before the write; as on Linux, they see old or new
//! contents.

use super::buffer::{Sink, Source, pages_of, part_of};
use super::inode::Inode;
use super::io::PAGE;
use super::state::Vfs;
use super::sync::Guard;
use super::types::*;
use super::{DirtyPage, Errno, Fs, WriteCause};
use flashweir_core::Payload;
use std::rc::Rc;

/// Offsets and lengths of direct I/O are multiples of this. A part that is not a whole page goes through the cache and is written
/// at once.
pub(crate) const ALIGNMENT: u64 = 512;

/// Most pages that are written in one call of the file system.
const CHUNK_PAGES: u64 = 256;

impl<F: Fs> Vfs<F> {
    /// Reads past the cache.
    pub(crate) async fn read_direct(
        &self,
        inode: &Rc<Inode>,
        offset: u64,
        sink: &mut Sink<'_>,
    ) -> Result<u64> {
        if !(offset | sink.len()).is_multiple_of(ALIGNMENT) {
            return Err(Errno::EINVAL);
        }
        let lock = inode.lock.shared().await;
        if inode.withholds() {
            // What is withheld is in the cache only.
            drop(lock);
            return self.read_buffered(inode, offset, sink, 0).await;
        }
        let end = offset.saturating_add(sink.len()).min(inode.size.get());
        if offset >= end {
            return Ok(0);
        }
        let (first, page_end) = pages_of(offset, end - offset);
        if self.0.pages.borrow().unclean_of(inode.owner) > 0 {
            self.write_range(inode, (first, page_end), WriteCause::Sync).await?;
        }
        let _range = inode.ranges.lock(first, page_end, false).await;
        if page_end - first == 1 {
            let mut page = [Payload::Zero];
            self.0.fs.read_pages(inode.ino, first, &mut page).await?;
            sink.put(0, part_of(first, offset, end), &page[0]);
        } else {
            let mut payloads = self.0.payloads.take();
            payloads.resize((page_end - first) as usize, Payload::Zero);
            let read = self.0.fs.read_pages(inode.ino, first, &mut payloads).await;
            if read.is_ok() {
                for (index, payload) in (first..).zip(&payloads) {
                    let at = offset.max(index * PAGE) - offset;
                    sink.put(at, part_of(index, offset, end), payload);
                }
            }
            self.0.payloads.give_back(payloads);
            read?;
        }
        self.count(|count| count.direct_read_pages += page_end - first);
        Ok(end - offset)
    }

    /// Takes the inode's lock in the mode that direct I/O to `offset..offset + len` needs.
    pub(crate) async fn lock_for_direct<'a>(&self, inode: &'a Inode, offset: u64, len: u64) -> Guard<'a> {
        let shared = inode.lock.shared().await;
        // The size does not shrink while the lock is shared.
        if offset.saturating_add(len) <= inode.size.get() {
            return shared;
        }
        drop(shared);
        inode.lock.alone().await
    }

    /// Writes past the cache; the caller has the lock and has checked the range. Returns the number of bytes written, or an error
    /// if none were.
    pub(crate) async fn write_direct(
        &self,
        inode: &Rc<Inode>,
        offset: u64,
        source: &Source<'_>,
    ) -> Result<u64> {
        let (first, end) = pages_of(offset, source.len());
        self.end_last_page(inode, (offset, offset + source.len())).await?;
        let _range = inode.ranges.lock(first, end, true).await;
        self.flush_range(inode, (first, end)).await?;
        let mut at = first;
        let mut failed = None;
        let at_once_max = self.0.fs.at_once_max();
        while at < end {
            let count = (end - at).min(at_once_max.unwrap_or(CHUNK_PAGES));
            match self.write_chunk_direct(inode, (at, count), first, source).await {
                Ok(written) => at += written,
                Err(errno) => {
                    failed = Some(errno);
                    break;
                }
            }
            let bytes = (at - first) * PAGE;
            inode.grow(offset + bytes);
            if at_once_max.is_none() {
                self.0.fs.wrote(inode.ino, offset + bytes, self.timestamp());
            }
        }
        self.count(|count| count.direct_written_pages += at - first);
        match failed {
            Some(errno) if at == first => Err(errno),
            _ => Ok((at - first) * PAGE),
        }
    }

    /// Writes up to `count` pages from `at` on of a source that begins at page `first`. Returns the number of pages.
    async fn write_chunk_direct(
        &self,
        inode: &Rc<Inode>,
        (at, count): (u64, u64),
        first: u64,
        source: &Source<'_>,
    ) -> Result<u64> {
        let count = match self.0.fs.reserve(inode.ino, (at * PAGE, (at + count) * PAGE)).await {
            Err(Errno::ENOSPC | Errno::EDQUOT) if count > 1 => {
                self.0.fs.reserve(inode.ino, (at * PAGE, (at + 1) * PAGE)).await?;
                1
            }
            reserved => reserved.map(|()| count)?,
        };
        let page = |index| DirtyPage { index, payload: source.page(index, (index - first) * PAGE) };
        let fs = &self.0.fs;
        let is_at_once = fs.at_once_max().is_some();
        if count == 1 && !is_at_once {
            let written = fs.write_pages(inode.ino, &[page(at)], WriteCause::Direct).await;
            self.note_written();
            return written.map(|()| 1);
        }
        let mut batch = self.0.batches.take();
        batch.extend((at..at + count).map(page));
        let written = match is_at_once {
            true => fs.write_at_once(inode.ino, &batch, (at + count) * PAGE, self.timestamp()).await,
            false => fs.write_pages(inode.ino, &batch, WriteCause::Direct).await,
        };
        self.note_written();
        self.0.batches.give_back(batch);
        written.map(|()| count)
    }
}
