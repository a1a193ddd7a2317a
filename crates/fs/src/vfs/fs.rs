//! The port between the vfs and a file system.
//!
//! Place in the data flow: `Vfs` above asks, an implementation below (F2FS format, ext4 format, [`MemFs`](crate::memfs::MemFs))
//! answers. The vfs knows the rules of POSIX (paths, permissions, types, what may replace what) and keeps pages of files in memory;
//! a file system knows names, inodes, blocks, space and durability.
//!
//! The vfs guarantees, so that a file system need not check it:
//! 1. Names are neither empty nor `.` or `..`, contain no `/` and are within the [`Limits`].
//! 2. Calls that change a directory hold its lock alone; [`Fs::lookup`] and [`Fs::readdir`] hold it shared. An inode whose link
//!    count changes, or that goes through [`Fs::setattr`] or the calls for attributes, is locked alone. An inode without names that
//!    gets one is held. Of two renames between different directories only one runs. A directory that is renamed within its own is not locked.
//! 3. [`Fs::read_pages`], [`Fs::reserve`], [`Fs::wrote`] and [`Fs::write_pages`] are called for files only, and between
//!    [`Fs::hold`] and [`Fs::release`]. They and [`Fs::fsync`] may run at the same time as each other and as any other call, but no
//!    page is in two writes at once, no page is read while it is written, and no page that a truncation removes is in either.
//! 4. Each page was reserved before it is written.
//!
//! A file system guarantees:
//! 1. A call that fails changed nothing that a later call could see, unless its description says otherwise.
//! 2. A future may be dropped anywhere (a power cut); nothing of the file system is used afterwards.
//! 3. `EIO` if the medium cannot return the data, `ENOSPC` if there is no room, `EROFS` if it was mounted read-only, `EUCLEAN` for
//!    contradictions to the format. Other errors are named at each call.
//!

use super::types::*;
use super::{Barrier, DirtyPage, Errno, SetPart, SyncKind, Ticket, WriteCause};
use crate::acl::{Acl, AclKind};
use flashweir_core::{Duration, Payload};

/// A file system. The module says what both sides guarantee.
///
/// Its calls are `async` functions on one thread: a caller names the implementation as a type parameter, so that no call costs an
/// allocation.
#[expect(async_fn_in_trait, reason = "the executor has one thread: no future needs to be Send")]
pub trait Fs: 'static {
    /// The inode of the root directory.
    fn root(&self) -> Ino;

    /// The bounds of the file system.
    fn limits(&self) -> Limits;

    // Names.

    /// The inode that `name` refers to; `ENOENT`.
    async fn lookup(&self, dir: Ino, name: &[u8]) -> Result<Attr>;

    /// The directory that contains `dir`; the root contains itself.
    async fn parent(&self, dir: Ino) -> Result<Ino>;

    /// Appends entries after `after` to `entries`, at least one if there is one, until there are `entries_max`.
    async fn readdir(
        &self,
        dir: Ino,
        after: Cookie,
        entries: &mut Vec<DirEntry>,
        entries_max: usize,
    ) -> Result<()>;

    /// Creates an inode of any kind but a symbolic link, with its name. `EEXIST` if the name exists, `EMLINK` if the inode is a
    /// directory and `dir` can have no more of them.
    async fn create(&self, dir: Ino, name: &[u8], node: &NewNode) -> Result<Attr>;

    /// Creates a file without a name, placed as if it were in `dir`. It is held from the start, and freed like a file that lost its
    /// last name while it was held: when it is released, or by recovery. [`Fs::link`] may give it a name. `EOPNOTSUPP` if the file
    /// system cannot.
    async fn create_nameless(&self, _dir: Ino, _node: &NewNode) -> Result<Attr> {
        Err(Errno::EOPNOTSUPP)
    }

    /// Creates a symbolic link; `EEXIST`.
    async fn symlink(&self, dir: Ino, name: &[u8], target: &[u8], node: &NewNode) -> Result<Attr>;

    /// Gives an inode that is not a directory another name, or its first one; `EEXIST`, `EMLINK`. Recovery finds it with the name,
    /// or as it was before.
    async fn link(&self, ino: Ino, dir: Ino, name: &[u8], now: Timestamp) -> Result<Attr>;

    /// Removes a name of an inode that is not a directory. An inode without names is freed, but not while it is held.
    async fn unlink(&self, dir: Ino, name: &[u8], now: Timestamp) -> Result<()>;

    /// Removes a directory; `ENOTEMPTY`.
    async fn rmdir(&self, dir: Ino, name: &[u8], now: Timestamp) -> Result<()>;

    /// Moves an entry, atomically also with respect to power cuts. The source exists, and the vfs has checked that the target may
    /// be replaced and that no directory moves beneath itself. `ENOTEMPTY` if the target is a directory with entries, `EMLINK`.
    async fn rename(
        &self,
        from: (Ino, &[u8]),
        to: (Ino, &[u8]),
        mode: RenameMode,
        now: Timestamp,
    ) -> Result<()>;

    /// The target of a symbolic link.
    async fn readlink(&self, ino: Ino) -> Result<Box<[u8]>>;

    // Attributes.

    /// The attributes, including the changes by [`Fs::wrote`]; `ESTALE` if there is no such inode.
    async fn getattr(&self, ino: Ino) -> Result<Attr>;

    /// Changes attributes. A smaller size frees pages, and reservations, that lie entirely beyond it; the vfs has zeroed the rest
    /// of the last page. If it fails, pages beyond the new size may be gone. New permission bits change the access control list, if
    /// there is one, as [`Acl::with_mode`] says, in the same step.
    async fn setattr(&self, ino: Ino, changes: &SetAttr) -> Result<Attr>;

    /// An access control list; `None` if the permission bits express everything.
    async fn acl(&self, _ino: Ino, _kind: AclKind) -> Result<Option<Acl>> {
        Ok(None)
    }

    /// Sets or removes an access control list, and changes the permission bits in the same step. `ENOSPC` if the inode has no room,
    /// `EOPNOTSUPP` if the file system has no such lists.
    async fn set_acl(
        &self,
        _ino: Ino,
        _kind: AclKind,
        _acl: Option<&Acl>,
        _mode: Option<u16>,
        _now: Timestamp,
    ) -> Result<Attr> {
        Err(Errno::EOPNOTSUPP)
    }

    /// The value of an extended attribute that is not an access control list; `ENODATA`.
    async fn getxattr(&self, _ino: Ino, _name: &[u8]) -> Result<Box<[u8]>> {
        Err(Errno::EOPNOTSUPP)
    }

    /// Sets an extended attribute; `EEXIST` and `ENODATA` according to `mode`, `ENOSPC` if the inode has no room.
    async fn setxattr(
        &self,
        _ino: Ino,
        _name: &[u8],
        _value: &[u8],
        _mode: XattrMode,
        _now: Timestamp,
    ) -> Result<()> {
        Err(Errno::EOPNOTSUPP)
    }

    /// The names of all extended attributes, access control lists among them.
    async fn listxattr(&self, _ino: Ino) -> Result<Vec<Box<[u8]>>> {
        Err(Errno::EOPNOTSUPP)
    }

    /// Removes an extended attribute; `ENODATA`.
    async fn removexattr(&self, _ino: Ino, _name: &[u8], _now: Timestamp) -> Result<()> {
        Err(Errno::EOPNOTSUPP)
    }

    // Files in use.

    /// From here on the inode is in use: it is not freed when its last name is removed. Called once before a release.
    async fn hold(&self, ino: Ino) -> Result<Attr>;

    /// The inode is not in use any more; without names it is freed now. If that fails it is freed later, by recovery at the latest.
    async fn release(&self, ino: Ino) -> Result<()>;

    // Pages of files.

    /// Fills `pages` with the contents from page `first` on. Holes, and pages that were reserved but never written, are
    /// `Payload::Zero`.
    async fn read_pages(&self, ino: Ino, first: u64, pages: &mut [Payload]) -> Result<()>;

    /// Reserves room for the pages of a range of bytes that is about to be written, so that writing them later cannot lack space;
    /// on `ENOSPC` nothing is reserved. Pages that have room already, because they were reserved or are written in place, take no
    /// more. Truncation frees unused room.
    async fn reserve(&self, ino: Ino, range: (u64, u64)) -> Result<()>;

    /// Data were written to the page cache: the file is at least `end` bytes long, and its content changed at `now`. This only
    /// changes state in memory.
    fn wrote(&self, ino: Ino, end: u64, now: Timestamp);

    /// Page `index` will be written soon: state that this needs may be fetched into the processor's caches.
    fn prefetch(&self, _ino: Ino, _index: u64) {}

    /// The file was read at `now`; this only changes state in memory, by the file system's own rules.
    fn accessed(&self, _ino: Ino, _now: Timestamp) {}

    /// Writes pages, given in ascending order and not necessarily consecutive. Completes when the device has answered, which does
    /// not make them durable. After an error the vfs treats all of them as unwritten.
    async fn write_pages(&self, ino: Ino, pages: &[DirtyPage], cause: WriteCause) -> Result<()>;

    /// Where data are journalled: pages that were just written, and what [`Fs::wrote`] notes, in one step, so that everything enters
    /// the journal in the order of the calls. The vfs asks only a file system that has [`Fs::at_once_max`].
    async fn write_at_once(&self, _ino: Ino, _pages: &[DirtyPage], _end: u64, _now: Timestamp) -> Result<()> {
        Err(Errno::EOPNOTSUPP)
    }

    /// Writes the pages of a set, of several files, and what [`Fs::wrote`] notes of each, in one step: a power cut shows all of it
    /// or nothing; where data are not journalled, new lengths come before. No page was reserved. `EFBIG` if the set is larger than the
    /// file system can write in one step, `ENOSPC`; then nothing has changed, and room that was reserved is free again. The vfs asks
    /// only a file system that [`Fs::has_sets`].
    async fn write_set(&self, _parts: &[SetPart]) -> Result<()> {
        Err(Errno::EOPNOTSUPP)
    }

    /// Whether [`Fs::write_set`] is supported.
    fn has_sets(&self) -> bool {
        false
    }

    /// Most pages of a set: of [`Fs::write_set`]. 0 without sets.
    fn set_pages_max(&self) -> u64 {
        0
    }

    /// Most pages of one call of [`Fs::write_at_once`] that a power cut shows wholly or not at all; `None` where pages are written
    /// later, by [`Fs::write_pages`].
    fn at_once_max(&self) -> Option<u64> {
        None
    }

    /// Lets pages of `to` take over the contents of pages of `from`, without moving data (share §10): the first of `count`, as many as can
    /// be. Returns their number; 0 if the first is a hole, or has no block of its own. Both files are locked; the pages of `from` were
    /// written, those of `to` are not in memory. Completes as [`Fs::write_pages`] does. The vfs asks only where [`Fs::shares_pages`].
    async fn share_pages(&self, _from: (Ino, u64), _to: (Ino, u64), _count: u64) -> Result<u64> {
        Err(Errno::EOPNOTSUPP)
    }

    /// Exchanges the contents of `count` pages of two files, or of two ranges of one (share §10.5): a power cut shows all of them
    /// exchanged, or none. Both files are locked, and their pages of the ranges were written and are not in memory. Completes as
    /// [`Fs::write_pages`] does. `EFBIG` if they are more than the disk can exchange at once, `ENOSPC`; then nothing has changed. The vfs
    /// asks only where [`Fs::shares_pages`].
    async fn exchange_pages(&self, _one: (Ino, u64), _other: (Ino, u64), _count: u64) -> Result<()> {
        Err(Errno::EOPNOTSUPP)
    }

    /// Whether the disk has SHARE, and a page of a file may take over another one.
    fn shares_pages(&self) -> bool {
        false
    }

    /// Reserves room for the range without writing to it, for writes that come later; `keep_size` leaves the length of the file as
    /// it is.
    async fn allocate(&self, _ino: Ino, _range: (u64, u64), _keep_size: bool, _now: Timestamp) -> Result<()> {
        Err(Errno::EOPNOTSUPP)
    }

    /// The run of pages from page `first` on that are all data or all hole on the disk, or a part of the run; at least one page.
    /// Space that was reserved and never written is not data. The answer still holds when the call returns: nothing waits in
    /// between.
    async fn pages_from(&self, _ino: Ino, _first: u64) -> Result<PageRun> {
        Ok(PageRun { end: u64::MAX, has_data: true })
    }

    /// Makes `count` whole pages from `first` on a hole; they are not in the page cache.
    async fn punch_pages(&self, _ino: Ino, _first: u64, _count: u64, _now: Timestamp) -> Result<()> {
        Err(Errno::EOPNOTSUPP)
    }

    // Durability.

    /// Makes durable what was written of the inode, and what is needed to find it after a power cut; with [`SyncKind::All`] also
    /// its attributes and its name. The vfs has written its dirty pages before, with [`WriteCause::Sync`] or
    /// [`WriteCause::DataSync`].
    async fn fsync(&self, ino: Ino, kind: SyncKind) -> Result<()>;

    /// The same of several inodes.
    async fn fsync_all(&self, inos: &[Ino], kind: SyncKind) -> Result<()> {
        for ino in inos {
            self.fsync(*ino, kind).await?;
        }
        Ok(())
    }

    /// Makes everything durable; all dirty pages have been written before.
    async fn sync(&self) -> Result<()>;

    /// The last call, after all dirty pages were written: makes everything durable and marks the volume as unmounted.
    async fn unmount(&self) -> Result<()> {
        self.sync().await
    }

    /// Writes `pages` (all dirty pages of the inode) in order before everything that follows, without waiting for
    /// them to be durable or even transferred. Returns when they are dispatched (barriers §6.5); the ticket resolves when
    /// the device has answered. The vfs asks only a file system that has [`Fs::has_barriers`].
    async fn barrier(&self, _ino: Ino, _pages: &[DirtyPage], _kind: Barrier) -> Result<Ticket> {
        Err(Errno::EOPNOTSUPP)
    }

    /// Whether [`Fs::barrier`] is supported.
    fn has_barriers(&self) -> bool {
        false
    }

    /// Whether fsync and fdatasync pass their pages to [`Fs::barrier`] before they call [`Fs::fsync`], which then makes durable
    /// what was dispatched: there is no wait for a transfer in between (barriers §6.2).
    fn syncs_in_order(&self) -> bool {
        false
    }

    /// Does a turn of background work, such as cleaning. Returns the time until the next turn; after `None` the next turn comes
    /// when pages were written, if ever. The vfs calls it from one task and waits for its end before it unmounts.
    async fn background(&self, _now: Timestamp) -> Option<Duration> {
        None
    }

    /// Whether [`Fs::background`] may ever have work.
    fn has_background(&self) -> bool {
        false
    }

    /// The number of pages and inodes, in all and free.
    async fn statfs(&self) -> Result<StatFs>;
}
