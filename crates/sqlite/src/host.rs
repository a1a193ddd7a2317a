//! The world's side: what SQLite asks for, done on files in virtual time as its VFS for Unix does it.
//!
//! Place in the data flow: [`Guest::run`] is a task of a stack; each [`Call`] becomes calls of a [`Process`].
//!
//! Like SQLite's own VFS for Unix, built with fdatasync: the first sync of a new journal or log syncs the directory, too; an empty
//! journal counts as none; reads beyond the end give zeros and say so. A barrier replaces fdatasync, so it is fdatabarrier only if nothing
//! but data has changed; a file that has grown, or got blocks where it had none, needs fbarrier (barriers §6.11).
//!
//! Invariant: which sync of the protocol a call is, is seen from the file and from what was written since the last one.
#![forbid(unsafe_code)]

use crate::guest::{Answer, Beginning, Call, Clock, FileKind, Link, Opening, Phase, Phases, Value};
use crate::interface;
use crate::locks::{Locks, Owner};
use crate::order::{JournalMode, Plan, PlantedBug, SyncCall, SyncPoint};
use flashweir_core::executor::Handle;
use flashweir_core::{Duration, Instant, RandomStream};
use flashweir_fs::vfs::{Barrier, Errno, File, Follow, Fs, OpenFlags, Process, Sink, Source, SyncKind};
use std::cell::{Cell, RefCell};
use std::collections::BTreeMap;
use std::fmt;
use std::rc::Rc;

/// Bytes that SQLite writes over the header of a journal to end it.
const JOURNAL_HEADER: usize = 28;
/// Bytes of the header of a log.
const WAL_HEADER: usize = 32;

/// How a SQLite runs.
#[derive(Clone, Copy, Debug, Default)]
pub struct HostOptions {
    /// Treatment of its syncs.
    pub plan: Plan,
    /// Seed of its random numbers.
    pub seed: u64,
    /// Civil time, in seconds since 1970, at which virtual time is zero.
    pub epoch_seconds: i64,
}

/// A file of SQLite.
struct Opened<F: Fs> {
    file: File<F>,
    /// The same as an atomic file, while SQLite writes a set.
    set: Option<File<F>>,
    kind: FileKind,
    path: String,
    /// The directory was not synced since the file was opened, and perhaps made.
    is_new: bool,
    /// Kind of the writes to it since the last sync.
    written: Written,
}

/// Kind of the writes to a file since its last sync.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
enum Written {
    #[default]
    Nothing,
    /// A journal was ended; a log has a new header.
    Header,
    /// Anything else.
    Content,
}

/// Metadata that barriers of a file have to order besides data, for all connections that have it open. A file that is not known has
/// changed.
#[derive(Clone, Copy, Debug, Default)]
struct Settled {
    /// Space that it had at the last sync.
    blocks_512: u64,
}

/// Callback for marks.
type Told = Box<dyn FnMut(u64)>;

/// SQLite on the files of a mount. Clones share everything: each [`Self::run`] is a connection, or a program of several.
pub struct Guest<F: Fs> {
    process: Process<F>,
    handle: Handle,
    options: HostOptions,
    locks: Locks,
    phases: Rc<RefCell<Phases>>,
    told: Rc<RefCell<Option<Told>>>,
    /// Files of which nothing but data has changed since their last sync: not made, not grown, not cut off.
    settled: Rc<RefCell<BTreeMap<String, Settled>>>,
    /// Programs begun, and files opened.
    begun: Rc<Cell<u64>>,
    opened: Rc<Cell<Owner>>,
}

impl<F: Fs> fmt::Debug for Guest<F> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Guest").field("options", &self.options).finish_non_exhaustive()
    }
}

impl<F: Fs> Clone for Guest<F> {
    fn clone(&self) -> Self {
        Self {
            process: self.process.clone(),
            handle: self.handle.clone(),
            options: self.options,
            locks: self.locks.clone(),
            phases: Rc::clone(&self.phases),
            told: Rc::clone(&self.told),
            settled: Rc::clone(&self.settled),
            begun: Rc::clone(&self.begun),
            opened: Rc::clone(&self.opened),
        }
    }
}

impl<F: Fs> Guest<F> {
    /// SQLite for this caller.
    pub fn new(process: Process<F>, handle: Handle, options: HostOptions) -> Self {
        Self {
            process,
            handle,
            options,
            locks: Locks::default(),
            phases: Rc::default(),
            told: Rc::default(),
            settled: Rc::default(),
            begun: Rc::default(),
            opened: Rc::default(),
        }
    }

    /// Takes the phases of the calls so far.
    pub fn take_phases(&self) -> Phases {
        self.phases.take()
    }

    /// Calls `told` for each [`Clock::mark`] from now on.
    pub fn on_mark(&self, told: impl FnMut(u64) + 'static) {
        self.told.replace(Some(Box::new(told)));
    }

    /// Runs a program that uses SQLite by the VFS [`crate::VFS`], on a thread of its own, and gives what it gives. A panic of the
    /// program is one here.
    pub async fn run<T: Send + 'static>(&self, work: impl FnOnce(&Clock) -> T + Send + 'static) -> T {
        let number = self.begun.replace(self.begun.get() + 1);
        let beginning = Beginning {
            now: self.handle.now(),
            epoch_seconds: self.options.epoch_seconds,
            random: RandomStream::new(self.options.seed.wrapping_add(number << 32), "sqlite"),
            locks: self.locks.clone(),
            register: interface::register,
            seed_random: interface::seed_random,
            has_sets: self.options.plan.journal_mode == JournalMode::BatchAtomic,
        };
        let mut files = BTreeMap::new();
        let mut link = Link::begin(beginning, work);
        loop {
            match link.next() {
                Ok(call) => {
                    let result = self.serve(&mut files, call).await;
                    link.answer(Answer { now: self.handle.now(), result });
                }
                Err(result) => return result,
            }
        }
    }

    async fn serve(&self, files: &mut BTreeMap<Owner, Opened<F>>, call: Call) -> Result<Value, Errno> {
        let begun = self.handle.now();
        let file = |file: &Owner| files.get(file).ok_or(Errno::EBADF);
        match call {
            Call::Open { path, opening } => {
                let opened = self.open(&path, opening).await;
                self.note(begun, what(opening.kind), "open");
                let number = self.opened.get() + 1;
                self.opened.set(number);
                files.insert(number, opened?);
                Ok(Value::File(number))
            }
            Call::Close { file } => {
                let opened = files.remove(&file).ok_or(Errno::EBADF)?;
                self.forget_set(opened.set).await?;
                opened.file.close().await.map(|()| Value::Nothing)
            }
            Call::Read { file: number, offset, len } => {
                let opened = file(&number)?;
                let mut bytes = vec![0; len];
                let read = opened.file.pread(offset, Sink::bytes(&mut bytes)).await?;
                self.note(begun, what(opened.kind), "read");
                bytes.truncate(read as usize);
                Ok(Value::Bytes(bytes))
            }
            Call::Write { file, offset, bytes } => {
                let opened = files.get_mut(&file).ok_or(Errno::EBADF)?;
                opened.note_write(offset, &bytes);
                let size = opened.file.size();
                let target = opened.set.as_ref().unwrap_or(&opened.file);
                let written = target.pwrite(offset, Source::bytes(&bytes)).await;
                if opened.file.size() != size {
                    self.settled.borrow_mut().remove(&opened.path);
                }
                self.note(begun, what(opened.kind), "write");
                match written? {
                    written if written == bytes.len() as u64 => Ok(Value::Nothing),
                    _ => Err(Errno::ENOSPC),
                }
            }
            Call::Truncate { file, size } => {
                let opened = files.get_mut(&file).ok_or(Errno::EBADF)?;
                if opened.file.size() != size {
                    self.settled.borrow_mut().remove(&opened.path);
                }
                opened.written = match (opened.kind, size) {
                    (FileKind::Journal, 0) => Written::Header,
                    _ => Written::Content,
                };
                let done = opened.file.truncate(size).await;
                self.note(begun, what(opened.kind), "truncate");
                done.map(|()| Value::Nothing)
            }
            Call::Sync { file } => {
                let opened = files.get_mut(&file).ok_or(Errno::EBADF)?;
                self.sync(opened).await.map(|()| Value::Nothing)
            }
            Call::BeginSet { file } => {
                let opened = files.get_mut(&file).ok_or(Errno::EBADF)?;
                let atomic = self.options.plan.planted != Some(PlantedBug::LooseSet);
                let flags = OpenFlags { atomic, ..OpenFlags::READ_WRITE };
                opened.set = Some(self.process.open(&opened.path, flags, 0).await?);
                self.note(begun, what(opened.kind), "begin of a set");
                Ok(Value::Nothing)
            }
            Call::ReleaseSet { file } => {
                let opened = files.get_mut(&file).ok_or(Errno::EBADF)?;
                let set = opened.set.as_ref().ok_or(Errno::EINVAL)?;
                // Refused, it can still be forgotten.
                set.release().await?;
                if let Some(set) = opened.set.take() {
                    set.close().await?;
                }
                self.note(begun, what(opened.kind), "release of a set");
                Ok(Value::Nothing)
            }
            Call::ForgetSet { file } => {
                let opened = files.get_mut(&file).ok_or(Errno::EBADF)?;
                let set = opened.set.take();
                self.forget_set(set).await?;
                Ok(Value::Nothing)
            }
            Call::Size { file: number } => Ok(Value::Number(file(&number)?.file.attr().await?.size)),
            Call::Delete { path, syncs_dir } => {
                self.settled.borrow_mut().remove(&path);
                self.process.unlink(&path).await?;
                self.note(begun, "directory", "unlink");
                if syncs_dir {
                    self.sync_dir(dir_of(&path), self.options.plan.call(SyncPoint::Deletion)).await?;
                }
                Ok(Value::Nothing)
            }
            Call::Exists { path } => match self.process.stat(&path, Follow::Yes).await {
                // An empty journal is none.
                Ok(attr) => Ok(Value::Number(u64::from(!attr.kind.is_file() || attr.size > 0))),
                Err(Errno::ENOENT) => Ok(Value::Number(0)),
                Err(errno) => Err(errno),
            },
            Call::Sleep(span) => {
                self.handle.sleep_until(begun + span).await;
                Ok(Value::Nothing)
            }
            Call::Compute(span) => {
                self.process.vfs().compute(span).await;
                self.note(begun, "program", "compute");
                Ok(Value::Nothing)
            }
            Call::Mark(number) => {
                if let Some(told) = &mut *self.told.borrow_mut() {
                    told(number);
                }
                Ok(Value::Nothing)
            }
        }
    }

    async fn open(&self, path: &str, opening: Opening) -> Result<Opened<F>, Errno> {
        let mut flags = if opening.writes { OpenFlags::READ_WRITE } else { OpenFlags::READ };
        if opening.creates {
            flags = if opening.is_exclusive { flags.create_new() } else { flags.create() };
        }
        let file = self.process.open(path, flags, 0o644).await?;
        Ok(Opened {
            file,
            set: None,
            kind: opening.kind,
            path: path.to_owned(),
            is_new: opening.creates && matches!(opening.kind, FileKind::Journal | FileKind::Wal),
            written: Written::Nothing,
        })
    }

    async fn forget_set(&self, set: Option<File<F>>) -> Result<(), Errno> {
        let Some(set) = set else { return Ok(()) };
        set.abort().await?;
        set.close().await
    }

    /// xSync: what the plan has in its place.
    async fn sync(&self, opened: &mut Opened<F>) -> Result<(), Errno> {
        let begun = self.handle.now();
        let (point, plan) = (opened.point(), self.options.plan);
        let call = plan.call(point);
        let name = match call {
            SyncCall::Nothing => return Ok(()),
            SyncCall::Sync => {
                opened.file.sync(SyncKind::Data).await?;
                "fdatasync"
            }
            SyncCall::Barrier => {
                // Holes that were filled do not show in the size.
                let now = Settled { blocks_512: opened.file.attr().await?.blocks_512 };
                let before = self.settled.borrow_mut().insert(opened.path.clone(), now);
                let is_same = before.is_some_and(|before| before.blocks_512 == now.blocks_512);
                let (kind, name) = match is_same || plan.planted == Some(PlantedBug::DataBarriers) {
                    true => (Barrier::Data, "fdatabarrier"),
                    false => (Barrier::All, "fbarrier"),
                };
                // What changes meanwhile has removed the note; a barrier that fails has ordered nothing.
                let barrier = opened.file.barrier(kind).await;
                if barrier.is_err() {
                    self.settled.borrow_mut().remove(&opened.path);
                }
                barrier?;
                name
            }
        };
        opened.written = Written::Nothing;
        self.note(begun, name_of(point), name);
        if std::mem::take(&mut opened.is_new) {
            self.sync_dir(dir_of(&opened.path), call).await?;
        }
        Ok(())
    }

    async fn sync_dir(&self, dir: &str, call: SyncCall) -> Result<(), Errno> {
        let begun = self.handle.now();
        let dir = self.process.open(dir, OpenFlags::READ.directory(), 0).await?;
        let (done, name) = match call {
            SyncCall::Nothing => (Ok(()), "nothing"),
            SyncCall::Sync => (dir.sync(SyncKind::All).await, "fsync"),
            SyncCall::Barrier => (dir.barrier(Barrier::All).await, "fbarrier"),
        };
        self.note(begun, "directory", name);
        dir.close().await.and(done)
    }

    fn note(&self, begun: Instant, what: &'static str, call: &'static str) {
        let span = self.handle.now().since(begun);
        let mut phases = self.phases.borrow_mut();
        let stats = phases.entry(Phase { what, call }).or_default();
        stats.calls += 1;
        stats.total_ns += span.as_nanos();
        stats.max_ns = stats.max_ns.max(span.max(Duration::ZERO).as_nanos());
    }
}

impl<F: Fs> Opened<F> {
    fn note_write(&mut self, offset: u64, bytes: &[u8]) {
        let is_header = match self.kind {
            FileKind::Journal => {
                offset == 0 && bytes.len() == JOURNAL_HEADER && bytes.iter().all(|byte| *byte == 0)
            }
            FileKind::Wal => offset == 0 && bytes.len() == WAL_HEADER && self.written == Written::Nothing,
            FileKind::Database | FileKind::Other => false,
        };
        self.written = if is_header { Written::Header } else { Written::Content };
    }

    /// Which sync of SQLite's protocol is asked for now.
    fn point(&self) -> SyncPoint {
        match (self.kind, self.written) {
            (FileKind::Journal | FileKind::Other, Written::Header) => SyncPoint::JournalEnd,
            (FileKind::Journal | FileKind::Other, _) => SyncPoint::Journal,
            (FileKind::Database, _) => SyncPoint::Database,
            (FileKind::Wal, Written::Content) => SyncPoint::Wal,
            (FileKind::Wal, Written::Header) => SyncPoint::WalHeader,
            (FileKind::Wal, Written::Nothing) => SyncPoint::WalCheckpoint,
        }
    }
}

fn dir_of(path: &str) -> &str {
    match path.rfind('/') {
        None | Some(0) => "/",
        Some(at) => &path[..at],
    }
}

fn what(kind: FileKind) -> &'static str {
    match kind {
        FileKind::Database => "database",
        FileKind::Journal => "journal",
        FileKind::Wal => "log",
        FileKind::Other => "other",
    }
}

fn name_of(point: SyncPoint) -> &'static str {
    match point {
        SyncPoint::Journal => "journal",
        SyncPoint::JournalEnd => "journal's end",
        SyncPoint::Database => "database",
        SyncPoint::Wal => "log",
        SyncPoint::WalHeader => "log's header",
        SyncPoint::WalCheckpoint => "log before checkpoint",
        SyncPoint::Deletion => "directory",
    }
}
