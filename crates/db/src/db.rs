//! A database: its files, its tasks, its trees, and operations that are repeated until every page is in memory.
//!
//! Place in the data flow: workloads hold a [`Db`] and begin [`Transaction`](crate::Transaction)s on it.
//!
//! Invariants: a call runs to its end; only a power cut drops futures. After a failed write or sync the engine stops,
//! and every later call returns the error, because the engine cannot know what is durable.

use crate::config::{Config, DataIo, DbMetrics, DoubleWrite};
use crate::core::{Core, HEAD_PAGE, Halt, Step};
use crate::error::{DbError, Result};
use crate::file::DbFile;
use crate::log::{FIRST_LSN, Log};
use crate::page::{FileNo, Kind, Page, PageNo, file_of, head_for, head_of};
use crate::redo::Op;
use crate::tree;
use crate::undo::page_of;
use flashweir_core::Duration;
use flashweir_core::executor::Handle;
use flashweir_core::signal::Signal;
use flashweir_fs::vfs::{Errno, Fs, OpenFlags, Process, Source, SyncKind, Vfs};
use std::cell::{Cell, RefCell};
use std::collections::BTreeSet;
use std::fmt;
use std::rc::Rc;

/// Number of bytes written at once when files are made.
const CHUNK_BYTES: usize = 1 << 20;

/// A key and its value.
pub type Row = (Vec<u8>, Vec<u8>);

/// A tree of a database. Keys are bytes and sort lexicographically.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Tree(pub(crate) PageNo);

/// An open database; a clone refers to the same one.
pub struct Db<F: Fs>(pub(crate) Rc<Shared<F>>);

impl<F: Fs> Clone for Db<F> {
    fn clone(&self) -> Self {
        Self(Rc::clone(&self.0))
    }
}

impl<F: Fs> fmt::Debug for Db<F> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let core = self.0.core.borrow();
        f.debug_struct("Db")
            .field("log", &core.log.lsn())
            .field("dirty_pages", &core.pool.dirty_pages())
            .finish_non_exhaustive()
    }
}

pub(crate) struct Shared<F: Fs> {
    pub(crate) config: Config,
    /// Most pages that are written together: `batch_pages`, or as many as a set of atomic files has.
    pub(crate) batch_limit: usize,
    pub(crate) handle: Handle,
    pub(crate) vfs: Vfs<F>,
    pub(crate) core: RefCell<Core>,
    /// The data files, by number.
    pub(crate) data: RefCell<Vec<Rc<DbFile<F>>>>,
    /// Data files that were written since their last sync.
    pub(crate) data_unsynced: RefCell<BTreeSet<FileNo>>,
    /// Whether a task makes a tree.
    making_tree: Cell<bool>,
    tree_made: Signal,
    dir: String,
    process: Process<F>,
    pub(crate) double_write: Option<DbFile<F>>,
    pub(crate) logs: Vec<DbFile<F>>,

    /// Whether a task writes or syncs the log.
    pub(crate) log_busy: Cell<bool>,
    pub(crate) log_idle: Signal,
    /// Log files that were written since their last sync.
    pub(crate) logs_unsynced: RefCell<BTreeSet<usize>>,
    /// Whether a task will sync the log within a second.
    pub(crate) sync_is_due: Cell<bool>,
    /// Number of checkpoint records written.
    pub(crate) checkpoints: Cell<u64>,
    /// Notified when the checkpoint has moved.
    pub(crate) log_room: Signal,

    /// Pages that are being read.
    pub(crate) reading: RefCell<BTreeSet<PageNo>>,
    pub(crate) read_done: Signal,
    /// Whether a task writes a batch of pages or a checkpoint.
    pub(crate) batch_busy: Cell<bool>,
    pub(crate) batch_idle: Signal,
    /// Whether a task waits for a frame.
    pub(crate) frames_wanted: Cell<bool>,
    /// Notified when a page may be evicted that could not before.
    pub(crate) frames_freed: Signal,
    /// Notified when there is work for the cleaner.
    pub(crate) work: Rc<Signal>,
    /// Notified when a transaction has ended.
    pub(crate) slot_freed: Signal,

    pub(crate) is_recovering: Cell<bool>,
    pub(crate) is_closed: Cell<bool>,
    failure: RefCell<Option<DbError>>,
}

impl<F: Fs> Drop for Shared<F> {
    /// Wakes the cleaner, which ends because the database is gone.
    fn drop(&mut self) {
        self.work.notify();
    }
}

/// Pages that an operation has fetched and still needs.
struct Pins<'a, F: Fs> {
    shared: &'a Shared<F>,
    pages: Vec<PageNo>,
}

impl<F: Fs> Drop for Pins<'_, F> {
    fn drop(&mut self) {
        if self.pages.is_empty() {
            return;
        }
        let mut core = self.shared.core.borrow_mut();
        for &page in &self.pages {
            core.pool.unpin(page);
        }
        drop(core);
        self.shared.frames_freed.notify();
    }
}

/// Flags with which data files are opened.
fn data_flags(config: &Config) -> OpenFlags {
    OpenFlags {
        direct: config.data_io == DataIo::Direct,
        atomic: config.double_write == DoubleWrite::Atomic,
        ..OpenFlags::READ_WRITE
    }
}

/// Makes the names in the directory durable.
async fn sync_dir<F: Fs>(process: &Process<F>, dir: &str) -> Result<()> {
    let flags = OpenFlags { directory: true, ..OpenFlags::READ };
    let synced = match process.open(dir, flags, 0).await {
        Ok(dir) => dir.sync(SyncKind::All).await,
        Err(errno) => Err(errno),
    };
    synced.map_err(|errno| DbError::File { what: format!("syncing {dir}"), errno })
}

async fn open_file<F: Fs>(
    process: &Process<F>,
    dir: &str,
    name: &str,
    flags: OpenFlags,
) -> Result<DbFile<F>> {
    let name = format!("{dir}/{name}");
    match process.open(&name, flags, 0o640).await {
        Ok(file) => Ok(DbFile { name, file }),
        Err(Errno::EOPNOTSUPP) if flags.atomic => Err(DbError::NoAtomicFiles),
        Err(errno) => Err(DbError::File { what: format!("opening {name}"), errno }),
    }
}

impl<F: Fs> Shared<F> {
    /// Opens the files of a database in `dir`; with `make` they are created first.
    pub(crate) async fn open_files(
        process: &Process<F>,
        handle: Handle,
        dir: &str,
        config: Config,
        make: bool,
    ) -> Result<Self> {
        config.validate()?;
        let mut batch_limit = config.batch_pages as usize;
        if config.double_write == DoubleWrite::Atomic {
            // A batch is released as one set, or as several smaller ones.
            let set_bytes =
                process.vfs().fs().set_pages_max() * u64::from(flashweir_fs::vfs::PAGE_BYTES as u32);
            batch_limit = ((set_bytes / u64::from(config.page_bytes)) as usize).clamp(1, batch_limit);
        }
        let flags = if make { OpenFlags::READ_WRITE.create_new() } else { OpenFlags::READ_WRITE };
        let open = async |name: &str, flags| open_file(process, dir, name, flags).await;
        let data_flags = data_flags(&config);
        let of_data = OpenFlags { create: flags.create, exclusive: flags.exclusive, ..data_flags };
        let mut data = vec![open("data", of_data).await?];
        while !make && data.len() <= usize::from(FileNo::MAX) {
            match open(&format!("data-{}", data.len()), data_flags).await {
                Ok(file) => data.push(file),
                Err(DbError::File { errno: Errno::ENOENT, .. }) => break,
                Err(error) => return Err(error),
            }
        }
        let direct = data_flags.direct;
        let double_write = match open("double-write", OpenFlags { direct, ..flags }).await {
            Ok(area) => Some(area),
            // A database that was made without a double-write area gets one when it is first asked for.
            Err(DbError::File { errno: Errno::ENOENT, .. }) if config.double_write.has_area() => {
                let flags = OpenFlags { direct, ..OpenFlags::READ_WRITE.create_new() };
                let area = open("double-write", flags).await?;
                area.sync(SyncKind::All).await?;
                sync_dir(process, dir).await?;
                Some(area)
            }
            Err(DbError::File { errno: Errno::ENOENT, .. }) => None,
            Err(error) => return Err(error),
        };
        let mut logs = Vec::new();
        for index in 0..config.log_files {
            logs.push(open(&format!("log-{index}"), flags).await?);
        }
        let log = Log::new(config.ring_bytes(), FIRST_LSN, &[], 1, FIRST_LSN);
        Ok(Self {
            core: RefCell::new(Core::new(&config, log)),
            config,
            batch_limit,
            handle,
            vfs: process.vfs().clone(),
            data: RefCell::new(data.into_iter().map(Rc::new).collect()),
            data_unsynced: RefCell::default(),
            making_tree: Cell::new(false),
            tree_made: Signal::default(),
            dir: dir.to_owned(),
            process: process.clone(),
            double_write,
            logs,
            log_busy: Cell::new(false),
            log_idle: Signal::default(),
            logs_unsynced: RefCell::default(),
            sync_is_due: Cell::new(false),
            checkpoints: Cell::new(0),
            log_room: Signal::default(),
            reading: RefCell::default(),
            read_done: Signal::default(),
            batch_busy: Cell::new(false),
            batch_idle: Signal::default(),
            frames_wanted: Cell::new(false),
            frames_freed: Signal::default(),
            work: Rc::default(),
            slot_freed: Signal::default(),
            is_recovering: Cell::new(false),
            is_closed: Cell::new(false),
            failure: RefCell::default(),
        })
    }

    /// Writes everything that a new database consists of.
    async fn make_files(&self) -> Result<()> {
        let page_bytes = self.config.page_bytes as usize;
        let mut head = Page::of(Kind::Head, 0, HEAD_PAGE, page_bytes);
        head.set_pages(page_of(self.config.transactions_max));
        head.seal();
        let mut bytes = head.bytes().to_vec();
        for slot in 0..self.config.transactions_max {
            let mut page = Page::of(Kind::Undo, 0, page_of(slot), page_bytes);
            page.seal();
            bytes.extend_from_slice(page.bytes());
        }
        let set = self.set_pages().min(bytes.len() / page_bytes);
        for (first, pages) in (HEAD_PAGE..).step_by(set).zip(bytes.chunks(set * page_bytes)) {
            self.write_data(first, pages).await?;
            self.release(first).await?;
        }
        if let Some(area) = self.area() {
            // Allocates the area, so that no later write extends the file.
            let len = u64::from(self.config.batch_pages) * page_bytes as u64;
            area.write(0, Source::zeros(len)).await?;
        }
        let zeros = vec![0; CHUNK_BYTES];
        for log in &self.logs {
            let mut at = 0;
            while at < self.config.log_file_bytes {
                let now = (self.config.log_file_bytes - at).min(CHUNK_BYTES as u64);
                log.write(at, Source::bytes(&zeros[..now as usize])).await?;
                at += now;
            }
        }
        let data = Rc::clone(&self.data.borrow()[0]);
        for file in [&*data].into_iter().chain(&self.double_write).chain(&self.logs) {
            file.sync(SyncKind::All).await?;
        }
        // Written last: without it, these files are no database.
        self.write_checkpoint_record(FIRST_LSN).await
    }

    /// Ensures that the data file of this number exists; it is durable, and nothing was ever written to it.
    async fn make_data_file(&self, number: FileNo) -> Result<FileNo> {
        // A file that was made by a call that then failed, or was cut off, is used now.
        if self.data.borrow().len() <= usize::from(number) {
            let flags = OpenFlags { create: true, ..data_flags(&self.config) };
            let file = open_file(&self.process, &self.dir, &format!("data-{number}"), flags).await?;
            self.data.borrow_mut().push(Rc::new(file));
        }
        let file = Rc::clone(&self.data.borrow()[usize::from(number)]);
        file.sync(SyncKind::All).await?;
        self.sync_dir().await?;
        Ok(number)
    }

    async fn sync_dir(&self) -> Result<()> {
        sync_dir(&self.process, &self.dir).await
    }

    /// Returns the double-write area, if pages are written to it.
    pub(crate) fn area(&self) -> Option<&DbFile<F>> {
        self.double_write.as_ref().filter(|_| self.config.double_write.has_area())
    }

    pub(crate) fn check_alive(&self) -> Result<()> {
        match &*self.failure.borrow() {
            Some(failure) => Err(failure.clone()),
            None => Ok(()),
        }
    }

    /// Stops the engine.
    pub(crate) fn fail(&self, error: DbError) {
        self.failure.borrow_mut().get_or_insert(error);
        self.core.borrow_mut().locks.give_up_waits();
        self.wake_all();
    }

    /// Wakes all waiting tasks, so that they check their conditions again.
    pub(crate) fn wake_all(&self) {
        for signal in [
            &self.log_idle,
            &self.log_room,
            &self.read_done,
            &self.batch_idle,
            &self.frames_freed,
            &self.slot_freed,
            &self.tree_made,
            &*self.work,
        ] {
            signal.notify();
        }
    }

    /// Spends CPU time.
    pub(crate) async fn charge(&self, time: Duration) {
        self.vfs.compute(time).await;
    }

    /// Repeats an attempt until nothing is missing. Fetched pages stay in memory meanwhile, so each attempt gets
    /// further.
    pub(crate) async fn run<T>(&self, mut attempt: impl FnMut(&mut Core) -> Step<T>) -> Result<T> {
        let mut pins = Pins { shared: self, pages: Vec::new() };
        loop {
            self.check_alive()?;
            let step = attempt(&mut self.core.borrow_mut());
            match step {
                Ok(value) => {
                    if self.core.borrow().should_clean() {
                        self.work.notify();
                    }
                    return Ok(value);
                }
                Err(Halt::Miss(page)) => {
                    self.fetch(page).await?;
                    pins.pages.push(page);
                }
                Err(Halt::NoFrames(count)) => self.make_frames(count).await?,
                Err(Halt::LogFull) => self.make_log_room().await?,
                Err(Halt::Error(error)) => return Err(error),
            }
        }
    }
}

impl<F: Fs> Db<F> {
    /// Makes a database in the existing directory `dir`. It is durable when this returns, provided that the directory
    /// is.
    ///
    /// # Errors
    /// A value of the configuration out of its range; a failed call of the file system, such as `EEXIST`.
    pub async fn create(process: &Process<F>, handle: Handle, dir: &str, config: Config) -> Result<Self> {
        let shared = Shared::open_files(process, handle, dir, config, true).await?;
        shared.make_files().await?;
        shared.sync_dir().await?;
        let shared = Rc::new(shared);
        shared.start().await?;
        Ok(Self(shared))
    }

    /// Writes every page and a checkpoint, so that the next open has nothing to recover, and ends the tasks of the
    /// database. Waits for transactions in progress.
    ///
    /// # Errors
    /// A write or sync that failed, now or before.
    pub async fn close(self) -> Result<()> {
        let shared = &self.0;
        while shared.core.borrow().slots_free.len() < shared.config.transactions_max as usize {
            shared.check_alive()?;
            shared.slot_freed.wait().await;
        }
        self.flush().await?;
        shared.is_closed.set(true);
        shared.fail(DbError::Closed);
        Ok(())
    }

    /// Writes every page that is dirty now, and a checkpoint.
    ///
    /// # Errors
    /// A write or sync that failed, now or before.
    pub async fn flush(&self) -> Result<()> {
        let shared = &self.0;
        let end = shared.core.borrow().log.lsn();
        loop {
            let batch = {
                let core = shared.core.borrow();
                match core.pool.oldest_change() {
                    Some(oldest) if oldest < end => core.pool.oldest_dirty(shared.batch_limit),
                    _ => break,
                }
            };
            shared.write_pages(&batch).await?;
        }
        shared.checkpoint().await
    }

    /// Returns the configuration.
    pub fn config(&self) -> &Config {
        &self.0.config
    }

    /// Returns the counters since the database was opened.
    pub fn metrics(&self) -> DbMetrics {
        let core = self.0.core.borrow();
        DbMetrics { pool_hits: core.pool.hits, ..core.metrics }
    }

    // Trees.

    /// Makes an empty tree, with [`Config::file_per_table`] in a new data file. It is durable when this returns.
    ///
    /// # Errors
    /// A tree of this name exists, or the name is longer than 64 bytes; no room for more names, or more than 255 data files;
    /// the engine has stopped.
    pub async fn create_tree(&self, name: &str) -> Result<Tree> {
        self.make_tree(name, None).await
    }

    /// Makes an empty tree in the data file of another, whose rows it leads to. It is durable when this returns.
    ///
    /// # Errors
    /// As [`Db::create_tree`].
    pub async fn create_index(&self, name: &str, table: Tree) -> Result<Tree> {
        self.make_tree(name, Some(table)).await
    }

    async fn make_tree(&self, name: &str, table: Option<Tree>) -> Result<Tree> {
        let shared = &self.0;
        while shared.making_tree.replace(true) {
            shared.tree_made.wait().await;
        }
        let made = self.make_tree_alone(name, table).await;
        shared.making_tree.set(false);
        shared.tree_made.notify();
        made
    }

    async fn make_tree_alone(&self, name: &str, table: Option<Tree>) -> Result<Tree> {
        let expected = |expected| DbError::Tree { name: name.to_owned(), expected };
        if !(1..=64).contains(&name.len()) {
            return Err(expected("a name of 1 to 64 bytes"));
        }
        let room_in = |head: &Page| {
            let Err(slot) = head.search(name.as_bytes()) else {
                return Err(expected("a name that is not taken"));
            };
            if head.fits(name.len(), 4) {
                Ok(slot)
            } else {
                Err(expected("fewer trees: the head page is full"))
            }
        };
        room_in(self.0.core.borrow().pool.page(HEAD_PAGE))?;
        let head = match table {
            Some(Tree(root)) => head_for(root),
            None if self.0.config.file_per_table => {
                let last = self.trees().into_iter().map(|(_, tree)| file_of(tree.0)).max();
                let next = last.map_or(Some(1), |last| last.checked_add(1));
                head_of(self.0.make_data_file(next.ok_or_else(|| expected("at most 255 data files"))?).await?)
            }
            None => HEAD_PAGE,
        };
        let attempt = |core: &mut Core| {
            let slot = room_in(core.page(HEAD_PAGE)?)?;
            let is_new = core.page(head)?.is_blank();
            core.prepare_pages(&[(head, 1)])?;
            core.begin()?;
            if is_new {
                core.apply(head, Op::Init { kind: Kind::Head, level: 0 });
                core.apply(head, Op::SetPages { pages: 1 });
            }
            let root = core.allocate(head, Kind::Tree, 0);
            let op = Op::Insert { slot, key: name.as_bytes(), value: &root.to_le_bytes() };
            core.apply(HEAD_PAGE, op);
            Ok((Tree(root), core.end()))
        };
        let (tree, end) = self.0.run(attempt).await?;
        self.0.write_log(end, true).await?;
        Ok(tree)
    }

    /// Returns the tree of this name.
    ///
    /// # Errors
    /// No tree has this name.
    pub fn tree(&self, name: &str) -> Result<Tree> {
        let core = self.0.core.borrow();
        let head = core.pool.page(HEAD_PAGE);
        match head.search(name.as_bytes()) {
            Ok(slot) => Ok(Tree(head.child(slot))),
            Err(_) => Err(DbError::Tree { name: name.to_owned(), expected: "one that was made" }),
        }
    }

    /// Returns the names of all trees.
    pub fn trees(&self) -> Vec<(String, Tree)> {
        let core = self.0.core.borrow();
        let head = core.pool.page(HEAD_PAGE);
        let name = |slot| String::from_utf8_lossy(head.key(slot)).into_owned();
        (0..head.count()).map(|slot| (name(slot), Tree(head.child(slot)))).collect()
    }

    // Reads.

    /// Returns the newest value of a row, committed or not.
    ///
    /// # Errors
    /// A page that is damaged or cannot be read; the engine has stopped.
    pub async fn get(&self, tree: Tree, key: &[u8]) -> Result<Option<Vec<u8>>> {
        self.0.charge(self.0.config.costs.row).await;
        self.0.run(|core| tree::get(core, tree.0, key)).await
    }

    /// Returns rows from `from` on, before `end` if there is one, in the order of their keys, at most `rows_max`. Each
    /// row is the newest; the rows of one leaf are consistent with each other, those of different leaves need not be.
    ///
    /// # Errors
    /// As [`Db::get`].
    pub async fn scan(
        &self,
        tree: Tree,
        from: &[u8],
        end: Option<&[u8]>,
        rows_max: usize,
    ) -> Result<Vec<Row>> {
        let mut rows = Vec::new();
        let mut from = from.to_vec();
        loop {
            let before = rows.len();
            // An attempt that misses a page adds no rows.
            let next =
                self.0.run(|core| tree::scan_leaf(core, tree.0, &from, end, &mut rows, rows_max)).await?;
            let costs = &self.0.config.costs;
            let further = costs.scan_row * (rows.len() - before) as u64;
            self.0.charge(if before == 0 { costs.row + further } else { further }).await;
            match next {
                Some(next) => from = next,
                None => return Ok(rows),
            }
        }
    }
}
