//! The engine's state in memory, and the mini-transactions that change it.
//!
//! Place in the data flow: operations of `tree.rs` and `undo.rs` run on this without waiting; `db.rs` repeats them when
//! a page was missing.
//!
//! Invariants: a mini-transaction is one group of the redo log, so after a cut it is there wholly or not at all. Before
//! its first change, everything that it needs is in memory and free: an attempt that ends with a [`Halt`] has changed
//! nothing.

use crate::config::{Config, DbMetrics};
use crate::error::DbError;
use crate::locks::Locks;
use crate::log::Log;
use crate::page::{FILE_PAGES_MAX, Kind, Lsn, Page, PageNo, file_of, head_for, head_of};
use crate::pool::Pool;
use crate::redo::Op;

/// The head of data file 0, which has the names of trees. It is always in memory.
pub(crate) const HEAD_PAGE: PageNo = head_of(0);

/// Reason why an attempt has to be repeated, or failed.
#[derive(Debug)]
pub(crate) enum Halt {
    /// This page is not in memory.
    Miss(PageNo),
    /// This number of frames of the pool must be free.
    NoFrames(usize),
    /// The log is full.
    LogFull,
    /// The operation failed.
    Error(DbError),
}

impl From<DbError> for Halt {
    fn from(error: DbError) -> Self {
        Self::Error(error)
    }
}

/// Result of an attempt.
pub(crate) type Step<T> = Result<T, Halt>;

/// The engine's state in memory.
#[derive(Debug)]
pub(crate) struct Core {
    pub(crate) pool: Pool,
    pub(crate) log: Log,
    pub(crate) locks: Locks,
    /// Free slots for transactions.
    pub(crate) slots_free: Vec<u32>,
    pub(crate) transactions: u64,
    /// The oldest change among pages whose copies may not be durable in the data files.
    pub(crate) unsynced_since: Option<Lsn>,
    pub(crate) metrics: DbMetrics,
    /// The current group, and the pages that it changes.
    group: Vec<u8>,
    touched: Vec<PageNo>,
    dirty_pages_max: usize,
}

impl Core {
    pub(crate) fn new(config: &Config, log: Log) -> Self {
        let pages = config.pool_pages();
        Self {
            pool: Pool::new(pages, config.page_bytes as usize),
            log,
            locks: Locks::default(),
            slots_free: (0..config.transactions_max).rev().collect(),
            transactions: 0,
            unsynced_since: None,
            metrics: DbMetrics::default(),
            group: Vec::new(),
            touched: Vec::new(),
            dirty_pages_max: pages * usize::from(config.dirty_percent_max) / 100,
        }
    }

    /// Returns the page, if it is in memory.
    pub(crate) fn page(&mut self, number: PageNo) -> Step<&Page> {
        self.pool.get(number).ok_or(Halt::Miss(number))
    }

    /// Whether pages should be written because many are dirty or the log is long.
    pub(crate) fn should_clean(&self) -> bool {
        self.pool.dirty_pages() > self.dirty_pages_max || self.log.is_long()
    }

    /// Returns the position from which recovery would have to begin.
    pub(crate) fn oldest_needed(&self) -> Lsn {
        let pages = [self.pool.oldest_change(), self.unsynced_since].into_iter().flatten().min();
        pages.unwrap_or(self.log.lsn())
    }

    /// Ensures that pages can be allocated, and freed, without waiting: so many in the data file of each of these pages.
    pub(crate) fn prepare_pages(&mut self, wanted: &[(PageNo, usize)]) -> Step<()> {
        let mut frames = 0;
        for &(near, count) in wanted {
            let head = self.page(head_for(near))?;
            let (mut next, pages, mut new) = (head.next(), head.pages(), count);
            while new > 0 && next != 0 {
                next = self.page(next)?.next();
                new -= 1;
            }
            if pages as usize + new > FILE_PAGES_MAX as usize {
                return Err(DbError::Full(file_of(near)).into());
            }
            frames += count;
        }
        if self.pool.free_frames() >= frames { Ok(()) } else { Err(Halt::NoFrames(frames)) }
    }

    /// Begins a mini-transaction, if the log has room for it.
    pub(crate) fn begin(&mut self) -> Step<()> {
        debug_assert!(self.group.is_empty(), "one mini-transaction at a time");
        if self.log.is_full() { Err(Halt::LogFull) } else { Ok(()) }
    }

    /// Changes a page, which must be in memory, as part of the mini-transaction.
    pub(crate) fn apply(&mut self, number: PageNo, op: Op<'_>) {
        op.encode(number, &mut self.group);
        op.apply(number, self.pool.page_mut(number));
        if !self.touched.contains(&number) {
            self.touched.push(number);
        }
    }

    /// Takes a prepared page of the data file of `near` and makes it an empty one.
    pub(crate) fn allocate(&mut self, near: PageNo, kind: Kind, level: u8) -> PageNo {
        let head = head_for(near);
        let page = self.pool.page(head);
        let (free, pages) = (page.next(), page.pages());
        let number = if free != 0 {
            let next = self.pool.page(free).next();
            self.apply(head, Op::SetNext { next });
            free
        } else {
            self.pool.put(head + pages, Page::blank(self.pool.page_bytes()));
            self.apply(head, Op::SetPages { pages: pages + 1 });
            head + pages
        };
        self.apply(number, Op::Init { kind, level });
        number
    }

    /// Frees a page, which must be in memory with the head of its data file.
    pub(crate) fn free(&mut self, number: PageNo) {
        let head = head_for(number);
        let next = self.pool.page(head).next();
        self.apply(number, Op::Init { kind: Kind::Free, level: 0 });
        self.apply(number, Op::SetNext { next });
        self.apply(head, Op::SetNext { next: number });
    }

    /// Ends the mini-transaction, which becomes a group of the log. Returns the group's end.
    pub(crate) fn end(&mut self) -> Lsn {
        if self.group.is_empty() {
            return self.log.lsn();
        }
        let (start, end) = self.log.append(&self.group);
        self.group.clear();
        for number in self.touched.drain(..) {
            self.pool.note_change(number, (start, end));
        }
        end
    }
}
