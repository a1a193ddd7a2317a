//! An open file.

use super::attrs::check_size;
use super::buffer::{Sink, Source, pages_of};
use super::direct::ALIGNMENT;
use super::io::PAGE;
use super::mount::InodeRef;
use super::state::Vfs;
use super::sync::RwLock;
use super::types::*;
use super::window::Window;
use super::{Barrier, Errno, Fs, SyncKind, WriteCause};
use std::cell::Cell;
use std::fmt;
use std::rc::Rc;

/// Most bytes of one read or write, as on Linux; a larger one is short.
pub(super) const TRANSFER_BYTES_MAX: u64 = 0x7fff_f000;

/// Most entries that one call of the file system reads.
const ENTRIES_MAX: usize = 1024;

/// Access for which a file is opened.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Access {
    /// `O_RDONLY`
    #[default]
    Read,
    /// `O_WRONLY`
    Write,
    /// `O_RDWR`
    ReadWrite,
}

impl Access {
    /// Whether reads are allowed.
    pub const fn reads(self) -> bool {
        !matches!(self, Self::Write)
    }
    /// Whether writes are allowed.
    pub const fn writes(self) -> bool {
        !matches!(self, Self::Read)
    }
}

/// Flags with which a file is opened.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct OpenFlags {
    /// Reading, writing or both.
    pub access: Access,
    /// `O_CREAT`: a file that does not exist is made.
    pub create: bool,
    /// `O_EXCL`: with `create`, the file must not exist; a file without a name never gets one.
    pub exclusive: bool,
    /// `O_TRUNC`: the file is emptied; needs the right to write.
    pub truncate: bool,
    /// `O_APPEND`: each write goes to the end.
    pub append: bool,
    /// `O_DIRECT`: past the page cache; offsets and lengths are multiples of 512.
    pub direct: bool,
    /// `O_DIRECTORY`: only a directory may be opened.
    pub directory: bool,
    /// `O_NOFOLLOW`: the last name must not be a symbolic link.
    pub no_follow: bool,
    /// `O_SYNC` or `O_DSYNC`: each write is durable when it returns.
    pub sync: Option<SyncKind>,
    /// `O_ATOMIC` (share §7): what is written stays in memory until fsync, fdatasync or [`Vfs::syncv`], and is then there as a whole
    /// or not at all; what was not synced is lost when the mount ends. It takes a file system that journals data (`EOPNOTSUPP`), and
    /// the right to write (`EINVAL`). The file may become shorter at once, as may its names and attributes change.
    pub atomic: bool,
}

impl OpenFlags {
    /// For reading.
    pub const READ: Self = Self::of(Access::Read);
    /// For writing.
    pub const WRITE: Self = Self::of(Access::Write);
    /// For both.
    pub const READ_WRITE: Self = Self::of(Access::ReadWrite);

    const fn of(access: Access) -> Self {
        Self {
            access,
            create: false,
            exclusive: false,
            truncate: false,
            append: false,
            direct: false,
            directory: false,
            no_follow: false,
            sync: None,
            atomic: false,
        }
    }

    /// With `O_CREAT`.
    pub const fn create(self) -> Self {
        Self { create: true, ..self }
    }
    /// With `O_CREAT` and `O_EXCL`.
    pub const fn create_new(self) -> Self {
        Self { create: true, exclusive: true, ..self }
    }
    /// With `O_TRUNC`.
    pub const fn truncate(self) -> Self {
        Self { truncate: true, ..self }
    }
    /// With `O_APPEND`.
    pub const fn append(self) -> Self {
        Self { append: true, ..self }
    }
    /// With `O_DIRECT`.
    pub const fn direct(self) -> Self {
        Self { direct: true, ..self }
    }
    /// With `O_DIRECTORY`.
    pub const fn directory(self) -> Self {
        Self { directory: true, ..self }
    }
    /// With `O_NOFOLLOW`.
    pub const fn no_follow(self) -> Self {
        Self { no_follow: true, ..self }
    }
    /// With `O_SYNC` or `O_DSYNC`.
    pub const fn sync(self, kind: SyncKind) -> Self {
        Self { sync: Some(kind), ..self }
    }
    /// With `O_ATOMIC`.
    pub const fn atomic(self) -> Self {
        Self { atomic: true, ..self }
    }
}

/// Target of a seek.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Seek {
    /// From the beginning.
    Start(u64),
    /// From the current position.
    Current(i64),
    /// From the end.
    End(i64),
    /// To the first byte of data at or after this one.
    Data(u64),
    /// To the first byte of a hole at or after this one; there is a hole behind the end of the file.
    Hole(u64),
}

/// An open file or directory. It is closed by [`File::close`], or by background write-back some time after it is dropped.
pub struct File<F: Fs> {
    inode: InodeRef<F>,
    kind: Kind,
    flags: OpenFlags,
    is_root: bool,
    position: Cell<u64>,
    /// Held by calls that use and move the position.
    positioning: RwLock,
    pub(crate) window: Cell<Window>,
    /// Number of failed write-backs that this file has reported.
    errors_seen: Cell<u64>,
    is_closed: Cell<bool>,
}

impl<F: Fs> fmt::Debug for File<F> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("File")
            .field("ino", &self.inode.ino)
            .field("flags", &self.flags)
            .field("position", &self.position.get())
            .finish_non_exhaustive()
    }
}

impl<F: Fs> Drop for File<F> {
    fn drop(&mut self) {
        if !self.is_closed.get() {
            self.end();
            self.vfs().0.dropped.borrow_mut().push(Rc::clone(self.inode.rc()));
            self.vfs().0.work.notify();
        }
    }
}

impl<F: Fs> File<F> {
    pub(crate) fn new(inode: InodeRef<F>, kind: Kind, flags: OpenFlags, is_root: bool) -> Self {
        let errors_seen = Cell::new(inode.errors_at_open());
        Self {
            inode,
            kind,
            flags,
            is_root,
            position: Cell::new(0),
            positioning: RwLock::default(),
            window: Cell::default(),
            errors_seen,
            is_closed: Cell::new(false),
        }
    }

    pub(crate) fn inode(&self) -> &InodeRef<F> {
        &self.inode
    }

    pub(crate) fn vfs(&self) -> &Vfs<F> {
        self.inode.vfs()
    }

    /// Inode of the file.
    pub fn ino(&self) -> Ino {
        self.inode.ino
    }

    /// Kind of the file.
    pub fn kind(&self) -> Kind {
        self.kind
    }

    /// Flags with which it was opened.
    pub fn flags(&self) -> OpenFlags {
        self.flags
    }

    /// Attributes of the file.
    pub async fn attr(&self) -> Result<Attr> {
        self.vfs().charge_call(0, 0).await;
        self.vfs().attr_of(self.ino()).await
    }

    /// Length in bytes.
    pub fn size(&self) -> u64 {
        self.inode.size.get()
    }

    /// Closes the file. If its last name is gone too, the inode is freed now, and an error of that is returned.
    pub async fn close(self) -> Result<()> {
        self.is_closed.set(true);
        self.end();
        self.vfs().settle(self.inode.rc()).await
    }

    /// The file does not use its inode any more.
    fn end(&self) {
        self.inode.users.set(self.inode.users.get() - 1);
        if self.flags.atomic {
            self.inode.atomic_users.set(self.inode.atomic_users.get() - 1);
        }
    }

    // Reading.

    /// Reads from the position on and moves it. Returns the number of bytes; less than asked for only at the end of the file, or
    /// after an error in the middle.
    pub async fn read(&self, sink: Sink<'_>) -> Result<u64> {
        let _position = self.positioning.alone().await;
        let at = self.position.get();
        let read = self.pread(at, sink).await?;
        self.position.set(at + read);
        Ok(read)
    }

    /// Reads from `offset` on. `EBADF` if the file is open for writing only, `EISDIR`; direct reads are aligned to 512
    /// bytes (`EINVAL`).
    pub async fn pread(&self, offset: u64, mut sink: Sink<'_>) -> Result<u64> {
        if !self.flags.access.reads() {
            return Err(Errno::EBADF);
        }
        if self.kind.is_dir() {
            return Err(Errno::EISDIR);
        }
        if offset > i64::MAX as u64 {
            return Err(Errno::EINVAL);
        }
        let vfs = self.vfs();
        let (first, end) = pages_of(offset, sink.len().min(u64::MAX - offset));
        let is_direct = self.flags.direct;
        if is_direct {
            vfs.charge_call(0, 0).await;
        } else {
            // Only existing bytes are copied, whatever room the caller has.
            let got = sink.len().min(self.inode.size.get().saturating_sub(offset));
            let (first, end) = pages_of(offset, got);
            vfs.charge_call(got, end - first).await;
        }
        let start = vfs.now();
        let result = if sink.is_empty() {
            Ok(0)
        } else if is_direct {
            vfs.read_direct(self.inode.rc(), offset, &mut sink).await
        } else {
            let want = self.plan_read(first, end);
            self.read_ahead(self.inode.size.get().div_ceil(PAGE));
            vfs.read_buffered(self.inode.rc(), offset, &mut sink, want).await
        };
        vfs.count(|count| count.reads += 1);
        if result.is_ok() && !vfs.0.options.read_only {
            vfs.0.fs.accessed(self.ino(), vfs.timestamp());
        }
        vfs.charge_wait(start).await;
        result
    }

    // Writing.

    /// Writes at the position (with `append`: at the end) and moves it behind the written bytes.
    pub async fn write(&self, source: Source<'_>) -> Result<u64> {
        let _position = self.positioning.alone().await;
        let (at, written) = self.write_at(self.position.get(), source).await?;
        self.position.set(at + written);
        Ok(written)
    }

    /// Writes at `offset`; with `append` at the end, as Linux does. Returns the number of bytes: less than given if room ran out or
    /// an error occurred in the middle. `EBADF` if the file is open for reading only, `EFBIG` beyond the largest size, `ENOSPC`;
    /// direct writes are aligned to 512 bytes (`EINVAL`).
    pub async fn pwrite(&self, offset: u64, source: Source<'_>) -> Result<u64> {
        self.write_at(offset, source).await.map(|(_, written)| written)
    }

    async fn write_at(&self, offset: u64, source: Source<'_>) -> Result<(u64, u64)> {
        if !self.flags.access.writes() {
            return Err(Errno::EBADF);
        }
        if offset > i64::MAX as u64 {
            return Err(Errno::EINVAL);
        }
        if self.flags.direct && !(offset | source.len()).is_multiple_of(ALIGNMENT) {
            return Err(Errno::EINVAL);
        }
        let vfs = self.vfs();
        let source = source.truncated(source.len().min(TRANSFER_BYTES_MAX));
        let (first, end) = pages_of(offset, source.len());
        vfs.0.fs.prefetch(self.inode.ino, first);
        if self.flags.direct {
            vfs.charge_call(0, 0).await;
        } else {
            vfs.0.pages.borrow().prefetch_place(self.inode.owner, first);
            vfs.charge_call(source.len(), end - first).await;
        }
        vfs.count(|count| count.writes += 1);
        if source.is_empty() {
            return Ok((offset, 0));
        }
        let start = vfs.now();
        let result = self.write_locked(offset, source).await;
        let result = match (result, self.flags.sync) {
            (Ok((at, written)), Some(kind)) => {
                self.sync_written(at, written, kind).await.map(|()| (at, written))
            }
            (result, _) => result,
        };
        vfs.charge_wait(start).await;
        result
    }

    async fn write_locked(&self, offset: u64, source: Source<'_>) -> Result<(u64, u64)> {
        let (vfs, inode) = (self.vfs(), self.inode.rc());
        let loses_privileges = inode.privileged.get() && !self.is_root;
        // A write to a part of a page goes through the cache, where two of one page would lose each other.
        let is_whole = (offset | source.len()).is_multiple_of(PAGE);
        let may_share = self.flags.direct && is_whole && !self.flags.append && !loses_privileges;
        let _lock = loop {
            let shares = may_share && !inode.withholds();
            let lock = if shares {
                vfs.lock_for_direct(inode, offset, source.len()).await
            } else {
                inode.lock.alone().await
            };
            // The file may have been opened as atomic during the wait; from here on the lock prevents that.
            if !shares || !inode.withholds() {
                break lock;
            }
        };
        let offset = if self.flags.append { inode.size.get() } else { offset };
        check_size(offset.saturating_add(1), vfs.0.limits.file_bytes_max)?;
        let source = source.truncated(source.len().min(vfs.0.limits.file_bytes_max - offset));
        self.end_privileges().await?;
        if !self.flags.direct || inode.withholds() {
            return vfs.write_buffered(inode, offset, &source).await.map(|written| (offset, written));
        }
        if (offset | source.len()).is_multiple_of(PAGE) {
            return vfs.write_direct(inode, offset, &source).await.map(|written| (offset, written));
        }
        // A write to a part of a page needs the rest of the page.
        let (first, end) = pages_of(offset, source.len());
        let written = vfs.write_buffered(inode, offset, &source).await?;
        // Not as direct: what is written past the page cache ends with its pages, and the file need not.
        vfs.write_range(inode, (first, end), WriteCause::Sync).await?;
        vfs.drop_pages(inode, (first, end)).await;
        Ok((offset, written))
    }

    /// Clears the set-user and set-group bits as a write by this caller does. It has the inode's lock alone, or need not clear any.
    pub(super) async fn end_privileges(&self) -> Result<()> {
        let (vfs, inode) = (self.vfs(), self.inode.rc());
        if let Some(mode) = vfs.mode_after_write(inode, self.is_root).await? {
            let now = Some(vfs.timestamp());
            let changes = SetAttr { mode: Some(mode), ctime: now, ..SetAttr::default() };
            inode.note_mode(&vfs.0.fs.setattr(inode.ino, &changes).await?);
        }
        Ok(())
    }

    /// Reserves room for `len` bytes from `offset` on without writing to them; without `keep_size` the file becomes as long as
    /// that. `EOPNOTSUPP` if the file system cannot.
    pub async fn allocate(&self, offset: u64, len: u64, keep_size: bool) -> Result<()> {
        let end = self.check_range(offset, len)?;
        let (vfs, inode) = (self.vfs(), &self.inode);
        vfs.charge_call(0, 0).await;
        let _lock = inode.lock.alone().await;
        self.end_privileges().await?;
        let withholds = inode.withholds();
        if withholds {
            inode.note_withheld(vfs.timestamp());
        }
        if !keep_size {
            vfs.end_last_page(inode.rc(), (end, end)).await?;
        }
        vfs.0.fs.allocate(inode.ino, (offset, end), keep_size || withholds, vfs.timestamp()).await?;
        if !keep_size {
            inode.grow(end);
        }
        Ok(())
    }

    /// Makes `len` bytes from `offset` on zeros; whole pages among them become a hole. The length of the file stays. As on ext4 of Linux, a
    /// range that begins behind the end is left as it is, with the room that is reserved there. `EOPNOTSUPP` if the file system cannot.
    pub async fn punch_hole(&self, offset: u64, len: u64) -> Result<()> {
        let end = self.check_range(offset, len)?;
        let (vfs, inode) = (self.vfs(), self.inode.rc());
        vfs.charge_call(0, 0).await;
        let _lock = inode.lock.alone().await;
        if offset >= inode.size.get() {
            return Ok(());
        }
        self.end_privileges().await?;
        let (first, last) = match inode.withholds() {
            // A hole would be there at once, so that the whole range becomes zeros instead.
            true => (u64::MAX / PAGE, 0),
            false => (offset.div_ceil(PAGE), end / PAGE),
        };
        let mut is_changed = first < last;
        if is_changed {
            // Nobody reads a page of the range meanwhile, which would have its old content for good.
            let _range = inode.ranges.lock(first, last, true).await;
            // Dirty pages are written first: if the file system refuses, their contents are still there.
            vfs.flush_range(inode, (first, last)).await?;
            vfs.0.fs.punch_pages(inode.ino, first, last - first, vfs.timestamp()).await?;
        }
        // The rest of the pages at both ends, as far as the file goes: within one page each, and of a withheld
        // file the whole range.
        let edges = if first <= last {
            [(offset, first * PAGE), (last * PAGE, end)]
        } else {
            [(offset, end), (end, end)]
        };
        for (from, to) in edges {
            let to = to.min(inode.size.get());
            // A hole stays one: zeros that need room could fail, and would be data.
            if from < to && (inode.withholds() || !vfs.is_hole(inode, from / PAGE).await?) {
                let zeros = Source::zeros(to - from);
                if vfs.write_buffered(inode, from, &zeros).await? < to - from {
                    return Err(Errno::ENOSPC);
                }
                is_changed = true;
            }
        }
        if !is_changed {
            vfs.0.fs.wrote(inode.ino, 0, vfs.timestamp());
        }
        Ok(())
    }

    /// Makes `len` bytes from `offset` on zeros and reserves room for them; without `keep_size` the file becomes as long as that.
    /// `EOPNOTSUPP` if the file system cannot.
    pub async fn zero_range(&self, offset: u64, len: u64, keep_size: bool) -> Result<()> {
        self.punch_hole(offset, len).await?;
        self.allocate(offset, len, keep_size).await
    }

    /// Checks a range that is to be changed; returns its end.
    fn check_range(&self, offset: u64, len: u64) -> Result<u64> {
        if len == 0 || offset.max(len) > i64::MAX as u64 {
            return Err(Errno::EINVAL);
        }
        if !self.flags.access.writes() {
            return Err(Errno::EBADF);
        }
        self.vfs().check_writable()?;
        let end = offset + len;
        if end > self.vfs().0.limits.file_bytes_max { Err(Errno::EFBIG) } else { Ok(end) }
    }

    /// ftruncate. `EINVAL` if the file is not open for writing.
    pub async fn truncate(&self, size: u64) -> Result<()> {
        self.vfs().charge_call(0, 0).await;
        if !self.flags.access.writes() {
            return Err(Errno::EINVAL);
        }
        self.vfs().resize_checked(&self.inode, size, self.is_root).await.map(drop)
    }

    /// lseek. `EINVAL` before the beginning; for data and holes `ENXIO` at and behind the end of the file, and if there is no more
    /// data.
    pub async fn seek(&self, to: Seek) -> Result<u64> {
        let _position = self.positioning.alone().await;
        let (base, delta) = match to {
            Seek::Data(from) | Seek::Hole(from) => {
                let at = self.find_part(from, matches!(to, Seek::Data(_))).await?;
                self.position.set(at);
                return Ok(at);
            }
            Seek::Start(at) => (at, 0),
            Seek::Current(delta) => (self.position.get(), delta),
            Seek::End(delta) => (self.inode.size.get(), delta),
        };
        let at = base.checked_add_signed(delta).filter(|&at| at <= i64::MAX as u64).ok_or(Errno::EINVAL)?;
        self.position.set(at);
        Ok(at)
    }

    // Durability.

    /// fsync or fdatasync. A write-back of the file that failed since it was opened, or since the last call, is reported
    /// here, once; the pages stay dirty, so that the next call tries again.
    pub async fn sync(&self, kind: SyncKind) -> Result<()> {
        self.sync_as(kind, true).await
    }

    /// The same; `releases` says whether it also releases what is withheld of an atomic file.
    pub async fn sync_as(&self, kind: SyncKind, releases: bool) -> Result<()> {
        let vfs = self.vfs();
        // The names in a directory are its data.
        let kind = if self.kind().is_dir() { SyncKind::All } else { kind };
        if vfs.0.options.syncs_order {
            return self.barrier_as(kind.into(), releases).await;
        }
        vfs.charge_call(0, 0).await;
        vfs.count(|count| count.syncs += 1);
        if vfs.0.options.read_only {
            return Ok(());
        }
        let start = vfs.now();
        let result = match self.release_if(releases).await {
            Ok(()) => vfs.sync_inode(self.inode.rc(), kind).await,
            refused => refused,
        };
        vfs.charge_wait(start).await;
        self.told(result)
    }

    /// fbarrier or fdatabarrier: what was written before becomes durable before anything that is written later; nothing is made
    /// durable now. `EOPNOTSUPP` if the file system cannot.
    pub async fn barrier(&self, kind: Barrier) -> Result<()> {
        self.barrier_as(kind, true).await
    }

    /// The same; `releases` as in [`Self::sync_as`].
    pub async fn barrier_as(&self, kind: Barrier, releases: bool) -> Result<()> {
        let vfs = self.vfs();
        let kind = if self.kind().is_dir() { Barrier::All } else { kind };
        vfs.charge_call(0, 0).await;
        vfs.count(|count| count.barriers += 1);
        if vfs.0.options.read_only {
            return Ok(());
        }
        let result = match self.release_if(releases).await {
            Ok(()) => vfs.order_inode(self.inode.rc(), kind).await,
            refused => refused,
        };
        self.told(result)
    }

    async fn release_if(&self, releases: bool) -> Result<()> {
        if releases { self.release().await } else { Ok(()) }
    }

    /// The result for the caller: this one, or an earlier error that was not reported to it yet.
    pub(crate) fn told(&self, result: Result<()>) -> Result<()> {
        let earlier = self.inode.take_error(&self.errors_seen);
        result.and(earlier.map_or(Ok(()), Err))
    }

    /// Makes a write durable, and tells of errors that were not told yet.
    pub(crate) async fn sync_written(&self, offset: u64, len: u64, kind: SyncKind) -> Result<()> {
        self.told(self.sync_range(offset, len, kind).await)
    }

    async fn sync_range(&self, offset: u64, len: u64, kind: SyncKind) -> Result<()> {
        let (vfs, inode) = (self.vfs(), self.inode.rc());
        vfs.release_set(std::slice::from_ref(inode)).await?;
        vfs.write_range(inode, pages_of(offset, len), kind.into()).await?;
        vfs.0.fs.fsync(inode.ino, kind).await
    }

    // Directories.

    /// Entries after `after`, at most `entries_max`, and none at the end; without `.` and `..`. `ENOTDIR`.
    pub async fn read_dir(&self, after: Cookie, entries_max: usize) -> Result<Vec<DirEntry>> {
        if !self.kind.is_dir() {
            return Err(Errno::ENOTDIR);
        }
        let vfs = self.vfs();
        vfs.charge_call(0, 0).await;
        let mut entries = Vec::new();
        if !self.inode.gone.get() {
            let _lock = self.inode.lock.shared().await;
            let entries_max = entries_max.min(ENTRIES_MAX);
            vfs.0.fs.readdir(self.ino(), after, &mut entries, entries_max).await?;
        }
        Ok(entries)
    }
}
