//! Reads and writes pages of the data file: single reads, batches of writes through the double-write area, checkpoints.
//!
//! Place in the data flow: operations that miss a page call this; the cleaner, a task, writes dirty pages when many are
//! dirty, when the log is long, or when a task needs a frame.
//!
//! Invariants:
//! 1. The log is durable up to a page's last change before the page is written anywhere.
//! 2. With the double-write area: a copy of each page is durable there before the page is written in place, and stays
//!    until the data file is synced. So one of copy and page is always intact.
//! 3. One batch at a time, including checkpoints.

use crate::core::HEAD_PAGE;
use crate::db::Shared;
use crate::error::{DbError, Result};
use crate::page::{Page, PageNo};
use crate::pool::Copy;
use flashweir_core::signal::Signal;
use flashweir_fs::vfs::{Fs, Sink, Source, SyncKind};
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
        self.fetch(HEAD_PAGE).await
    }

    pub(crate) fn offset(&self, number: PageNo) -> u64 {
        u64::from(number) * u64::from(self.config.page_bytes)
    }

    /// Reads a page; one that was never written is blank. The second value says whether the page is intact.
    pub(crate) async fn read_page(&self, number: PageNo) -> Result<(Page, bool)> {
        let mut page = Page::blank(self.config.page_bytes as usize);
        self.data.read(self.offset(number), Sink::bytes(page.bytes_mut())).await?;
        let is_whole = page.is_sound(number) || page.is_blank();
        Ok((page, is_whole))
    }

    /// Loads a page into memory and pins it.
    pub(crate) async fn fetch(&self, number: PageNo) -> Result<()> {
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
        let read = self.read_into_pool(number).await;
        self.reading.borrow_mut().remove(&number);
        self.read_done.notify();
        read
    }

    async fn read_into_pool(&self, number: PageNo) -> Result<()> {
        let (page, is_whole) = self.read_page(number).await?;
        if !is_whole {
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

    /// Writes those of these pages that are dirty.
    pub(crate) async fn write_pages(self: &Rc<Self>, numbers: &[PageNo]) -> Result<()> {
        self.lock_batches().await?;
        let result = self.write_batch(numbers).await;
        self.unlock_batches();
        if let Err(error) = &result {
            self.fail(error.clone());
        }
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
        let area = self.double_write.as_ref().filter(|_| self.config.double_write);
        if let Some(area) = area {
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
        if area.is_some() {
            self.sync_data().await?;
        }
        Ok(())
    }

    /// Writes all copies concurrently.
    async fn write_in_place(self: &Rc<Self>, copies: Vec<Copy>) -> Result<()> {
        let writes = Rc::new(Writes { left: Cell::new(copies.len()), ..Writes::default() });
        for Copy { number, page } in copies {
            let (shared, writes) = (Rc::clone(self), Rc::clone(&writes));
            self.handle.spawn(async move {
                let result = shared.data.write(shared.offset(number), Source::bytes(page.bytes())).await;
                if let Err(error) = result {
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

    /// Makes the data file durable. The caller must have the right to write batches.
    pub(crate) async fn sync_data(&self) -> Result<()> {
        self.data.sync(SyncKind::Data).await?;
        self.core.borrow_mut().unsynced_since = None;
        Ok(())
    }

    /// Advances the start of recovery as far as the written pages allow.
    pub(crate) async fn checkpoint(&self) -> Result<()> {
        self.lock_batches().await?;
        let result = self.checkpoint_alone().await;
        self.unlock_batches();
        if let Err(error) = &result {
            self.fail(error.clone());
        }
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
        let count = self.config.batch_pages as usize;
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
