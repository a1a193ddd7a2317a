//! Reads and writes pages of the data files: single reads, batches of writes, adaptive flushing, checkpoints.
//!
//! Place in the data flow: operations that miss a page call this; the cleaner, a task, writes dirty pages when many are
//! dirty, when the log is long, or when a task needs a frame; a second one writes some each second (adaptive flushing).
//!
//! Invariants:
//! 1. The log is durable up to a page's last change before the page is written anywhere.
//! 2. With [`DoubleWrite::On`] a copy of each page is durable in the area before the page is written in place, and stays
//!    until the data files are synced. So one of copy and page is always intact. With [`DoubleWrite::Atomic`] a data file
//!    has all of a page or nothing of it, and no copy is needed.
//! 3. One batch at a time, including checkpoints, and sets of loaders where data files withhold what is written.

use crate::config::DoubleWrite;
use crate::core::HEAD_PAGE;
use crate::db::Shared;
use crate::error::{DbError, Result};
use crate::file::DbFile;
use crate::page::{FileNo, Page, PageNo, file_of, index_of};
use crate::pool::Copy;
use flashweir_core::Duration;
use flashweir_core::executor::Handle;
use flashweir_core::signal::Signal;
use flashweir_fs::vfs::{File, Fs, Sink, Source, SyncKind};
use std::cell::{Cell, RefCell};
use std::rc::{Rc, Weak};

/// Writes in progress.
#[derive(Default)]
struct Writes {
    left: Cell<usize>,
    failed: RefCell<Option<DbError>>,
    done: Signal,
}

impl<F: Fs> Shared<F> {
    /// Loads the head page permanently and starts the cleaner.
    pub(crate) async fn start(self: &Rc<Self>) -> Result<()> {
        self.handle.spawn(clean(Rc::downgrade(self), Rc::clone(&self.work)));
        if self.config.io_capacity > 0 {
            self.handle.spawn(clean_ahead(Rc::downgrade(self), self.handle.clone()));
        }
        self.fetch(HEAD_PAGE).await
    }

    /// Returns the data file of a page, and the page's offset in it.
    fn place_of(&self, number: PageNo) -> Result<(Rc<DbFile<F>>, u64)> {
        let files = self.data.borrow();
        let file = files.get(usize::from(file_of(number))).map(Rc::clone);
        let file = file.ok_or_else(|| {
            DbError::Damaged(format!("page {number} is of data file {}, which is not there", file_of(number)))
        })?;
        Ok((file, u64::from(index_of(number)) * u64::from(self.config.page_bytes)))
    }

    /// Writes pages, of which this is the first, to their data file.
    pub(crate) async fn write_data(&self, first: PageNo, bytes: &[u8]) -> Result<()> {
        let (file, offset) = self.place_of(first)?;
        self.data_unsynced.borrow_mut().insert(file_of(first));
        file.write(offset, Source::bytes(bytes)).await
    }

    /// Reads a page; one that was never written is blank. The second value says whether the page is intact.
    pub(crate) async fn read_page(&self, number: PageNo) -> Result<(Page, bool)> {
        let mut page = Page::blank(self.config.page_bytes as usize);
        let (file, offset) = self.place_of(number)?;
        file.read(offset, Sink::bytes(page.bytes_mut())).await?;
        let is_whole = page.is_sound(number) || page.is_blank();
        Ok((page, is_whole))
    }

    /// Loads a page into memory and pins it.
    pub(crate) async fn fetch(&self, number: PageNo) -> Result<()> {
        self.fetch_for(number, false).await
    }

    /// [`Self::fetch`]; one that `is_made` by what follows is blank if it is torn.
    pub(crate) async fn fetch_for(&self, number: PageNo, is_made: bool) -> Result<()> {
        loop {
            self.check_alive()?;
            {
                let pool = &mut self.core.borrow_mut().pool;
                if pool.has(number) {
                    pool.pin(number);
                    return Ok(());
                }
            }
            if self.reading.borrow_mut().insert(number) {
                break;
            }
            self.read_done.wait().await;
        }
        let read = self.read_into_pool(number, is_made).await;
        self.reading.borrow_mut().remove(&number);
        self.read_done.notify();
        read
    }

    async fn read_into_pool(&self, number: PageNo, is_made: bool) -> Result<()> {
        let (mut page, is_whole) = self.read_page(number).await?;
        if !is_whole && is_made {
            page = Page::blank(self.config.page_bytes as usize);
        } else if !is_whole {
            return Err(DbError::Damaged(format!("page {number} is torn: its checksum is wrong")));
        }
        self.make_frames(1).await?;
        let mut core = self.core.borrow_mut();
        core.metrics.page_reads += 1;
        core.pool.put(number, page);
        core.pool.pin(number);
        Ok(())
    }

    /// Waits until `count` frames are free.
    pub(crate) async fn make_frames(&self, count: usize) -> Result<()> {
        while !self.core.borrow_mut().pool.has_free(count) {
            self.check_alive()?;
            self.core.borrow_mut().metrics.pool_waits += 1;
            self.frames_wanted.set(true);
            self.work.notify();
            self.frames_freed.wait().await;
        }
        Ok(())
    }

    /// Waits until the log has room.
    pub(crate) async fn make_log_room(&self) -> Result<()> {
        self.core.borrow_mut().metrics.log_waits += 1;
        while self.core.borrow().log.is_full() {
            self.check_alive()?;
            self.work.notify();
            self.log_room.wait().await;
        }
        Ok(())
    }

    /// Acquires the exclusive right to write batches.
    async fn lock_batches(&self) -> Result<()> {
        while self.batch_busy.replace(true) {
            self.batch_idle.wait().await;
        }
        self.check_alive().inspect_err(|_| self.unlock_batches())
    }

    fn unlock_batches(&self) {
        self.batch_busy.set(false);
        self.batch_idle.notify();
    }

    /// Does this while nobody else writes a batch. The engine stops if it fails.
    pub(crate) async fn alone(&self, work: impl Future<Output = Result<()>>) -> Result<()> {
        self.lock_batches().await?;
        let result = work.await;
        self.unlock_batches();
        result.inspect_err(|error| self.fail(error.clone()))
    }

    /// Writes those of these pages that are dirty.
    pub(crate) async fn write_pages(self: &Rc<Self>, numbers: &[PageNo]) -> Result<()> {
        let result = self.alone(self.write_batch(numbers)).await;
        self.frames_freed.notify();
        result
    }

    async fn write_batch(self: &Rc<Self>, numbers: &[PageNo]) -> Result<()> {
        debug_assert!(
            numbers.len() <= self.config.batch_pages as usize,
            "the double-write area has this length"
        );
        let (oldest, copies) = {
            let mut core = self.core.borrow_mut();
            let (oldest, copies) = core.pool.begin_write(numbers);
            core.unsynced_since = [core.unsynced_since, oldest].into_iter().flatten().min();
            (oldest, copies)
        };
        if oldest.is_none() {
            return Ok(());
        }
        let newest = copies.iter().map(|copy| copy.page.lsn()).max().unwrap_or(0);
        self.write_log(newest, true).await?;
        if let Some(area) = self.area() {
            let bytes: Vec<u8> = copies.iter().flat_map(|copy| copy.page.bytes()).copied().collect();
            area.write(0, Source::bytes(&bytes)).await?;
            area.sync(SyncKind::Data).await?;
            self.core.borrow_mut().metrics.double_writes += copies.len() as u64;
        }
        let written: Vec<PageNo> = copies.iter().map(|copy| copy.number).collect();
        self.write_in_place(copies).await?;
        {
            let mut core = self.core.borrow_mut();
            core.pool.written(written.iter().copied());
            core.metrics.page_writes += written.len() as u64;
        }
        if self.config.double_write == DoubleWrite::Fast { Ok(()) } else { self.sync_data().await }
    }

    /// Writes all copies concurrently.
    async fn write_in_place(self: &Rc<Self>, copies: Vec<Copy>) -> Result<()> {
        let writes = Rc::new(Writes { left: Cell::new(copies.len()), ..Writes::default() });
        for Copy { number, page } in copies {
            let (shared, writes) = (Rc::clone(self), Rc::clone(&writes));
            self.handle.spawn(async move {
                if let Err(error) = shared.write_data(number, page.bytes()).await {
                    writes.failed.borrow_mut().get_or_insert(error);
                }
                writes.left.set(writes.left.get() - 1);
                if writes.left.get() == 0 {
                    writes.done.notify();
                }
            });
        }
        while writes.left.get() > 0 {
            writes.done.wait().await;
        }
        writes.failed.take().map_or(Ok(()), Err)
    }

    /// Makes everything durable that was written to the data files. The caller must have the right to write batches.
    pub(crate) async fn sync_data(&self) -> Result<()> {
        let files: Vec<FileNo> = self.data_unsynced.take().into_iter().collect();
        self.sync_files(&files).await?;
        self.core.borrow_mut().unsynced_since = None;
        Ok(())
    }

    /// Syncs data files: atomic ones together, others one after the other, as InnoDB does.
    pub(crate) async fn sync_files(&self, numbers: &[FileNo]) -> Result<()> {
        let files: Vec<Rc<DbFile<F>>> =
            numbers.iter().map(|number| Rc::clone(&self.data.borrow()[usize::from(*number)])).collect();
        let Some(last) = files.last() else { return Ok(()) };
        if self.config.double_write == DoubleWrite::Atomic {
            let all: Vec<&File<F>> = files.iter().map(|file| &file.file).collect();
            self.core.borrow_mut().metrics.data_syncs += 1;
            let synced = self.vfs.syncv(&all, SyncKind::Data).await;
            return synced.map_err(|errno| last.error("releasing pages of", errno));
        }
        for file in &files {
            self.core.borrow_mut().metrics.data_syncs += 1;
            file.sync(SyncKind::Data).await?;
        }
        Ok(())
    }

    /// Whether data files withhold what is written until it is released.
    pub(crate) fn withholds(&self) -> bool {
        self.config.double_write == DoubleWrite::Atomic
    }

    /// Most pages that may be withheld at a time, where the file withholds what is written.
    pub(crate) fn set_pages(&self) -> usize {
        if self.withholds() { self.batch_limit } else { usize::MAX }
    }

    /// Hands what was written to the data file of a page to the file system, where the file withholds it.
    pub(crate) async fn release(&self, number: PageNo) -> Result<()> {
        if self.withholds() { self.place_of(number)?.0.release().await } else { Ok(()) }
    }

    /// Advances the start of recovery as far as the written pages allow.
    pub(crate) async fn checkpoint(&self) -> Result<()> {
        let result = self.alone(self.checkpoint_alone()).await;
        self.log_room.notify();
        result
    }

    async fn checkpoint_alone(&self) -> Result<()> {
        if self.core.borrow().unsynced_since.is_some() {
            self.sync_data().await?;
        }
        let lsn = self.core.borrow().oldest_needed();
        if lsn == self.core.borrow().log.checkpoint {
            return Ok(());
        }
        self.write_log(lsn, true).await?;
        self.write_checkpoint_record(lsn).await?;
        let mut core = self.core.borrow_mut();
        core.log.checkpoint = lsn;
        core.metrics.checkpoints += 1;
        Ok(())
    }

    /// Returns the next batch for the cleaner; `None` if there is nothing to do.
    fn next_batch(&self) -> Option<Vec<PageNo>> {
        let core = self.core.borrow();
        let count = self.batch_limit;
        if self.frames_wanted.take() {
            let pages = core.pool.next_to_leave(count);
            if !pages.is_empty() {
                return Some(pages);
            }
        }
        let is_stuck = self.is_recovering.get() && core.pool.dirty_pages() == 0;
        (core.should_clean() && !is_stuck).then(|| core.pool.oldest_dirty(count))
    }

    async fn clean_once(self: &Rc<Self>, batch: Vec<PageNo>) -> Result<()> {
        self.write_pages(&batch).await?;
        // Changes that are not redone yet are not in the pages.
        if self.is_recovering.get() {
            return Ok(());
        }
        let is_worth = {
            let core = self.core.borrow();
            // A sync of the data file may be all that is missing.
            let lsn = core.pool.oldest_change().unwrap_or(core.log.lsn());
            core.log.is_worth_a_checkpoint(lsn)
        };
        if is_worth { self.checkpoint().await } else { Ok(()) }
    }
}

/// Adaptive flushing, in the shape of InnoDB's page cleaner: each second it writes the more pages, the fuller the log is, so
/// that transactions do not have to wait for its end. Below a tenth of the log it writes nothing; at half of it, as many as
/// the configuration says; with growing age more than in proportion, and at most ten times as many.
fn pages_ahead(log_full_percent: u64, io_capacity: u32) -> usize {
    const LEAST_PERCENT: u64 = 10;
    const HALF_FULL: f64 = 50.0;
    if log_full_percent < LEAST_PERCENT {
        return 0;
    }
    let rate = (log_full_percent as f64 / HALF_FULL).powf(1.5).min(10.0);
    (rate * f64::from(io_capacity)) as usize
}

async fn clean_ahead<F: Fs>(shared: Weak<Shared<F>>, handle: Handle) {
    const PERIOD: Duration = Duration::from_secs(1);
    let mut next = handle.now();
    loop {
        next = handle.now().max(next + PERIOD);
        handle.sleep_until(next).await;
        let Some(shared) = shared.upgrade() else { return };
        let mut pages = pages_ahead(shared.core.borrow().log.full_percent(), shared.config.io_capacity);
        while pages > 0 && !shared.is_closed.get() {
            let batch = shared.core.borrow().pool.oldest_dirty(pages.min(shared.batch_limit));
            if batch.is_empty() {
                break;
            }
            pages -= batch.len();
            shared.core.borrow_mut().metrics.adaptive_writes += batch.len() as u64;
            if shared.clean_once(batch).await.is_err() {
                return;
            }
        }
        if shared.is_closed.get() {
            return;
        }
    }
}

/// The cleaner: a task that lives as long as the database is open.
pub(crate) async fn clean<F: Fs>(shared: Weak<Shared<F>>, work: Rc<Signal>) {
    loop {
        {
            let Some(shared) = shared.upgrade() else { return };
            while let Some(batch) = shared.next_batch() {
                if shared.clean_once(batch).await.is_err() {
                    // The failure is recorded; waiting tasks are woken to see it.
                    shared.wake_all();
                    return;
                }
            }
            if shared.is_closed.get() {
                return;
            }
        }
        work.wait().await;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_fuller_the_log_the_more_pages_are_written_ahead() {
        let pages: Vec<usize> =
            [0, 9, 10, 25, 50, 75, 100, 1000].map(|percent| pages_ahead(percent, 200)).to_vec();
        assert_eq!(pages, [0, 0, 17, 70, 200, 367, 565, 2000]);
        assert_eq!(pages_ahead(100, 0), 0);
    }
}
