//! The calls of the vfs, as far as all formats answer them alike.
//!
//! Place in the data flow: the vfs calls [`Fs`], which is written here once for whatever is an [`Engine`]. An engine runs operations on
//! what it has in memory ([`Engine::run`], [`Engine::change`]), of which names, inodes and attributes are seen as [`Nodes`]; pages of files,
//! room and durability are its own.
//!
//! Invariant: an operation happens without waiting or not at all, so a call that is one operation is never seen half done.

use crate::acl::{Acl, AclKind};
use crate::format::{Error, Kind as NodeKind, Time};
use crate::order::errno_of;
use crate::port::{Block, BlockPort};
use crate::vfs::{
    Attr, Barrier, Cookie, DirEntry, DirtyPage, Errno, Fs, Ino, Kind, Limits, NewNode, PageRun, RenameMode,
    Result, SetAttr, SetPart, StatFs, SyncKind, Ticket, Timestamp, WriteCause, XattrMode,
};
use crate::xattrs::{self, Prefixes, Xattr};
use flashweir_core::{Duration, Payload};
use std::cell::RefCell;
use std::collections::BTreeMap;

/// State of an engine in memory: names, inodes and attributes.
pub(crate) trait Nodes {
    /// The number of an inode.
    type Number: Copy + Ord;
    /// Why an operation cannot go on.
    type Stop: From<Errno>;
    /// The root directory.
    const ROOT: Self::Number;
    /// The prefixes of names of extended attributes.
    const PREFIXES: &'static Prefixes;

    /// The number of an inode of the vfs; `ESTALE`.
    fn number(ino: Ino) -> Result<Self::Number>;
    /// And back.
    fn ino(number: Self::Number) -> Ino;

    // Names.

    /// The inode that a name refers to.
    fn named(&mut self, dir: Self::Number, name: &[u8]) -> StepOf<Self, Option<Self::Number>>;
    /// At least one entry behind a cookie, if there is one, and about so many.
    fn entries(&mut self, dir: Self::Number, after: u64, most: usize) -> StepOf<Self, Vec<Listed<Self>>>;
    /// Kind of an inode whose directory entry does not contain it.
    fn kind_of(&self, ino: Self::Number) -> StepOf<Self, NodeKind>;
    /// Makes an inode with a name, a link with its target.
    fn create(
        &mut self,
        dir: Self::Number,
        name: &[u8],
        new: &NewNode,
        target: Option<&[u8]>,
    ) -> StepOf<Self, Attr>;
    /// Makes a file without a name, which is held.
    fn create_nameless(&mut self, dir: Self::Number, new: &NewNode) -> StepOf<Self, Attr>;
    /// Gives an inode another name, or its first one.
    fn link(
        &mut self,
        ino: Self::Number,
        dir: Self::Number,
        name: &[u8],
        now: Timestamp,
    ) -> StepOf<Self, Attr>;
    /// Removes a name; gives the inode if it has to be freed now.
    fn unlink(
        &mut self,
        dir: Self::Number,
        name: &[u8],
        now: Timestamp,
    ) -> StepOf<Self, Option<Self::Number>>;
    /// See [`Fs::rename`]; gives the inode that lost its last name and has to be freed now.
    fn rename(
        &mut self,
        from: (Self::Number, &[u8]),
        to: (Self::Number, &[u8]),
        mode: RenameMode,
        now: Timestamp,
    ) -> StepOf<Self, Option<Self::Number>>;
    /// How often each inode is held.
    fn held(&mut self) -> &mut BTreeMap<Self::Number, u32>;
    /// Whether an inode has no names.
    fn is_nameless(&self, ino: Self::Number) -> bool;

    // Attributes.

    /// All of an inode.
    fn attr(&self, ino: Self::Number) -> StepOf<Self, Attr>;
    /// Those of its fields that [`Fs::setattr`] changes; fdatasync need not make them durable.
    fn attributes(&mut self, ino: Self::Number) -> StepOf<Self, Fields<'_>>;
    /// The same, where something else of the inode changes at `now`.
    fn changed(&mut self, ino: Self::Number, now: Timestamp) -> StepOf<Self, Fields<'_>>;
    /// All extended attributes of an inode.
    fn xattrs(&self, ino: Self::Number) -> StepOf<Self, Vec<Xattr>>;
    /// Replaces all of an inode, after [`Self::xattrs`].
    fn set_xattrs(&mut self, ino: Self::Number, xattrs: &[Xattr]) -> StepOf<Self, ()>;

    /// An access control list.
    fn acl(&self, ino: Self::Number, kind: AclKind) -> StepOf<Self, Option<Acl>> {
        Ok(xattrs::acl(&self.xattrs(ino)?, kind)?)
    }

    /// Sets an access control list, or removes it. When it fails nothing has changed.
    fn put_acl(&mut self, ino: Self::Number, kind: AclKind, acl: Option<&Acl>) -> StepOf<Self, ()> {
        let mut xattrs = self.xattrs(ino)?;
        match xattrs::replace(&mut xattrs, kind.on_disk(), acl.map(Acl::to_disk)) {
            true => self.set_xattrs(ino, &xattrs),
            false => Ok(()),
        }
    }

    /// Permission bits become others: so does the list.
    fn change_acl_mode(&mut self, ino: Self::Number, mode: u16) -> StepOf<Self, ()> {
        match self.acl(ino, AclKind::Access)? {
            Some(acl) => self.put_acl(ino, AclKind::Access, Some(&acl.with_mode(mode))),
            None => Ok(()),
        }
    }
}

/// Result of an operation.
pub(crate) type StepOf<S, T> = std::result::Result<T, <S as Nodes>::Stop>;

/// Numbers of inodes.
type NumberOf<E> = <<E as Engine>::State as Nodes>::Number;

/// An entry of a directory, with what comes behind it.
pub(crate) struct Listed<S: Nodes + ?Sized> {
    pub(crate) cookie: u64,
    pub(crate) name: Box<[u8]>,
    pub(crate) ino: S::Number,
    pub(crate) kind: Option<NodeKind>,
}

/// Fields of an inode.
pub(crate) struct Fields<'a> {
    pub(crate) mode: &'a mut u16,
    pub(crate) uid: &'a mut u32,
    pub(crate) gid: &'a mut u32,
    pub(crate) atime: &'a mut Time,
    pub(crate) mtime: &'a mut Time,
    pub(crate) ctime: &'a mut Time,
}

/// A volume that is mounted for writing. Calls are those of [`Fs`], with the volume's own numbers of inodes.
pub(crate) trait Engine: 'static {
    /// State in memory.
    type State: Nodes;

    /// The same.
    fn state(&self) -> &RefCell<Self::State>;
    /// Runs an operation on the state, and again when what it needs is in memory.
    fn run<T>(
        &self,
        operation: impl FnMut(&mut Self::State) -> StepOf<Self::State, T>,
    ) -> impl Future<Output = Result<T>>;
    /// Runs an operation that changes something, when there is room.
    fn change<T>(
        &self,
        operation: impl FnMut(&mut Self::State) -> StepOf<Self::State, T>,
    ) -> impl Future<Output = Result<T>>;
    /// Frees an inode without names that is not held.
    async fn destroy(&self, ino: Option<NumberOf<Self>>) -> Result<()>;
    /// Whether order takes the place of waiting.
    fn is_dual(&self) -> bool;

    fn limits(&self) -> Limits;
    async fn readlink(&self, ino: NumberOf<Self>) -> Result<Box<[u8]>>;
    /// Another size, and what is behind it is gone.
    async fn resize(&self, ino: NumberOf<Self>, size: u64) -> Result<()>;
    /// A file that is held less often than before, and not freed.
    async fn let_go(&self, _ino: NumberOf<Self>) -> Result<()> {
        Ok(())
    }
    async fn read_pages(&self, ino: NumberOf<Self>, first: u64, pages: &mut [Payload]) -> Result<()>;
    /// Returns whether a page of the range had no room.
    async fn reserve(&self, ino: NumberOf<Self>, range: (u64, u64)) -> Result<bool>;
    fn wrote(&self, ino: NumberOf<Self>, end: u64, now: Timestamp);
    fn prefetch(&self, _ino: NumberOf<Self>, _index: u64) {}
    async fn write_pages(&self, ino: NumberOf<Self>, pages: &[DirtyPage], cause: WriteCause) -> Result<()>;
    async fn write_at_once(
        &self,
        _ino: NumberOf<Self>,
        _pages: &[DirtyPage],
        _end: u64,
        _now: Timestamp,
    ) -> Result<()> {
        Err(Errno::EOPNOTSUPP)
    }
    async fn write_set(&self, parts: &[SetPart]) -> Result<()>;
    fn has_sets(&self) -> bool;
    fn set_pages_max(&self) -> u64;
    fn at_once_max(&self) -> Option<u64> {
        None
    }
    async fn share_pages(
        &self,
        from: (NumberOf<Self>, u64),
        to: (NumberOf<Self>, u64),
        count: u64,
    ) -> Result<u64>;
    async fn exchange_pages(
        &self,
        one: (NumberOf<Self>, u64),
        other: (NumberOf<Self>, u64),
        count: u64,
    ) -> Result<()>;
    fn shares_pages(&self) -> bool;
    async fn allocate(
        &self,
        ino: NumberOf<Self>,
        range: (u64, u64),
        keep_size: bool,
        now: Timestamp,
    ) -> Result<()>;
    async fn pages_from(&self, ino: NumberOf<Self>, first: u64) -> Result<PageRun>;
    async fn punch_pages(&self, ino: NumberOf<Self>, first: u64, count: u64, now: Timestamp) -> Result<()>;
    async fn fsync(&self, ino: NumberOf<Self>, kind: SyncKind) -> Result<()>;
    async fn fsync_all(&self, inos: &[NumberOf<Self>], kind: SyncKind) -> Result<()> {
        for ino in inos {
            self.fsync(*ino, kind).await?;
        }
        Ok(())
    }
    async fn sync(&self) -> Result<()>;
    async fn unmount(&self) -> Result<()>;
    /// Asked only where [`Self::is_dual`].
    async fn barrier(&self, ino: NumberOf<Self>, pages: &[DirtyPage], kind: Barrier) -> Result<Ticket>;
    async fn background(&self, now: Timestamp) -> Option<Duration>;
    fn has_background(&self) -> bool;
    fn statfs(&self) -> StatFs;
}

fn number<E: Engine>(ino: Ino) -> Result<NumberOf<E>> {
    E::State::number(ino)
}

async fn make<E: Engine>(
    fs: &E,
    dir: Ino,
    name: &[u8],
    new: &NewNode,
    target: Option<&[u8]>,
) -> Result<Attr> {
    let dir = number::<E>(dir)?;
    fs.change(|state| state.create(dir, name, new, target)).await
}

async fn xattrs_of<E: Engine>(fs: &E, ino: Ino) -> Result<Vec<Xattr>> {
    let ino = number::<E>(ino)?;
    fs.run(|state| state.xattrs(ino)).await
}

/// Replaces one attribute, or removes it.
async fn change_xattr<E: Engine>(
    fs: &E,
    ino: Ino,
    (name, value): (&[u8], Option<&[u8]>),
    mode: XattrMode,
    now: Timestamp,
) -> Result<()> {
    let ino = number::<E>(ino)?;
    let name = xattrs::split(name, E::State::PREFIXES)?;
    fs.change(|state| {
        let mut xattrs = state.xattrs(ino)?;
        xattrs::change(&mut xattrs, name, value, mode)?;
        state.set_xattrs(ino, &xattrs)?;
        *state.changed(ino, now)?.ctime = time(now);
        Ok(())
    })
    .await
}

impl<E: Engine> Fs for E {
    fn root(&self) -> Ino {
        E::State::ino(E::State::ROOT)
    }

    fn limits(&self) -> Limits {
        Engine::limits(self)
    }

    async fn lookup(&self, dir: Ino, name: &[u8]) -> Result<Attr> {
        let dir = number::<E>(dir)?;
        self.run(|state| {
            let ino = state.named(dir, name)?.ok_or(Errno::ENOENT)?;
            state.attr(ino)
        })
        .await
    }

    async fn parent(&self, dir: Ino) -> Result<Ino> {
        let dir = number::<E>(dir)?;
        self.run(|state| state.named(dir, b"..")).await?.map(E::State::ino).ok_or(Errno::EUCLEAN)
    }

    async fn readdir(
        &self,
        dir: Ino,
        after: Cookie,
        entries: &mut Vec<DirEntry>,
        entries_max: usize,
    ) -> Result<()> {
        let dir = number::<E>(dir)?;
        let most = entries_max.saturating_sub(entries.len());
        if most == 0 {
            return Ok(());
        }
        for listed in self.run(|state| state.entries(dir, after.0, most)).await? {
            let Listed { cookie, name, ino, kind } = listed;
            let kind = match kind {
                Some(kind) => kind,
                None => self.run(|state| state.kind_of(ino)).await?,
            };
            let (ino, kind) = (E::State::ino(ino), vfs_kind(kind, || 0));
            entries.push(DirEntry { name, ino, kind, cookie: Cookie(cookie) });
        }
        Ok(())
    }

    async fn create(&self, dir: Ino, name: &[u8], node: &NewNode) -> Result<Attr> {
        make(self, dir, name, node, None).await
    }

    async fn create_nameless(&self, dir: Ino, node: &NewNode) -> Result<Attr> {
        let dir = number::<E>(dir)?;
        self.change(|state| state.create_nameless(dir, node)).await
    }

    async fn symlink(&self, dir: Ino, name: &[u8], target: &[u8], node: &NewNode) -> Result<Attr> {
        make(self, dir, name, node, Some(target)).await
    }

    async fn link(&self, ino: Ino, dir: Ino, name: &[u8], now: Timestamp) -> Result<Attr> {
        let (ino, dir) = (number::<E>(ino)?, number::<E>(dir)?);
        self.change(|state| state.link(ino, dir, name, now)).await
    }

    async fn unlink(&self, dir: Ino, name: &[u8], now: Timestamp) -> Result<()> {
        let dir = number::<E>(dir)?;
        let gone = self.change(|state| state.unlink(dir, name, now)).await?;
        // The name is gone. What cannot be freed now is freed by recovery.
        let _ = self.destroy(gone).await;
        Ok(())
    }

    async fn rmdir(&self, dir: Ino, name: &[u8], now: Timestamp) -> Result<()> {
        self.unlink(dir, name, now).await
    }

    async fn rename(
        &self,
        from: (Ino, &[u8]),
        to: (Ino, &[u8]),
        mode: RenameMode,
        now: Timestamp,
    ) -> Result<()> {
        let (from, to) = ((number::<E>(from.0)?, from.1), (number::<E>(to.0)?, to.1));
        let gone = self.change(|state| state.rename(from, to, mode, now)).await?;
        // As after `unlink`.
        let _ = self.destroy(gone).await;
        Ok(())
    }

    async fn readlink(&self, ino: Ino) -> Result<Box<[u8]>> {
        Engine::readlink(self, number::<E>(ino)?).await
    }

    async fn getattr(&self, ino: Ino) -> Result<Attr> {
        let ino = number::<E>(ino)?;
        self.run(|state| state.attr(ino)).await
    }

    async fn setattr(&self, ino: Ino, changes: &SetAttr) -> Result<Attr> {
        let ino = number::<E>(ino)?;
        if let Some(size) = changes.size {
            self.resize(ino, size).await?;
        }
        let limits = Engine::limits(self);
        self.change(|state| {
            if let Some(mode) = changes.mode {
                state.change_acl_mode(ino, mode)?;
            }
            let fields = state.attributes(ino)?;
            *fields.mode = changes.mode.map_or(*fields.mode, |mode| with_permissions(*fields.mode, mode));
            *fields.uid = changes.uid.unwrap_or(*fields.uid);
            *fields.gid = changes.gid.unwrap_or(*fields.gid);
            let kept = |stamp| time(limits.time(stamp));
            *fields.atime = changes.atime.map_or(*fields.atime, kept);
            *fields.mtime = changes.mtime.map_or(*fields.mtime, kept);
            *fields.ctime = changes.ctime.map_or(*fields.ctime, kept);
            state.attr(ino)
        })
        .await
    }

    async fn acl(&self, ino: Ino, kind: AclKind) -> Result<Option<Acl>> {
        let ino = number::<E>(ino)?;
        self.run(|state| state.acl(ino, kind)).await
    }

    async fn set_acl(
        &self,
        ino: Ino,
        kind: AclKind,
        acl: Option<&Acl>,
        mode: Option<u16>,
        now: Timestamp,
    ) -> Result<Attr> {
        let ino = number::<E>(ino)?;
        self.change(|state| {
            state.put_acl(ino, kind, acl)?;
            let fields = state.changed(ino, now)?;
            *fields.mode = mode.map_or(*fields.mode, |mode| with_permissions(*fields.mode, mode));
            *fields.ctime = time(now);
            state.attr(ino)
        })
        .await
    }

    async fn getxattr(&self, ino: Ino, name: &[u8]) -> Result<Box<[u8]>> {
        let name = xattrs::split(name, E::State::PREFIXES)?;
        let xattrs = xattrs_of(self, ino).await?;
        xattrs::value(&xattrs, name).map(Box::from).ok_or(Errno::ENODATA)
    }

    async fn listxattr(&self, ino: Ino) -> Result<Vec<Box<[u8]>>> {
        Ok(xattrs::names(&xattrs_of(self, ino).await?, E::State::PREFIXES))
    }

    async fn setxattr(
        &self,
        ino: Ino,
        name: &[u8],
        value: &[u8],
        mode: XattrMode,
        now: Timestamp,
    ) -> Result<()> {
        change_xattr(self, ino, (name, Some(value)), mode, now).await
    }

    async fn removexattr(&self, ino: Ino, name: &[u8], now: Timestamp) -> Result<()> {
        change_xattr(self, ino, (name, None), XattrMode::Replace, now).await
    }

    async fn hold(&self, ino: Ino) -> Result<Attr> {
        let ino = number::<E>(ino)?;
        self.run(|state| {
            let attr = state.attr(ino)?;
            // Somebody who removed its last name is freeing it.
            if state.is_nameless(ino) && !state.held().contains_key(&ino) {
                return Err(Errno::ESTALE.into());
            }
            *state.held().entry(ino).or_default() += 1;
            Ok(attr)
        })
        .await
    }

    async fn release(&self, ino: Ino) -> Result<()> {
        let ino = number::<E>(ino)?;
        let is_gone = {
            let mut state = self.state().borrow_mut();
            let held = state.held().get_mut(&ino).map_or(0, |held| {
                *held -= 1;
                *held
            });
            if held == 0 {
                state.held().remove(&ino);
            }
            held == 0 && state.is_nameless(ino)
        };
        if !is_gone {
            self.let_go(ino).await?;
        }
        self.destroy(is_gone.then_some(ino)).await
    }

    async fn read_pages(&self, ino: Ino, first: u64, pages: &mut [Payload]) -> Result<()> {
        Engine::read_pages(self, number::<E>(ino)?, first, pages).await
    }

    async fn reserve(&self, ino: Ino, range: (u64, u64)) -> Result<()> {
        Engine::reserve(self, number::<E>(ino)?, range).await.map(drop)
    }

    fn wrote(&self, ino: Ino, end: u64, now: Timestamp) {
        if let Ok(ino) = number::<E>(ino) {
            Engine::wrote(self, ino, end, now);
        }
    }

    fn prefetch(&self, ino: Ino, index: u64) {
        if let Ok(ino) = number::<E>(ino) {
            Engine::prefetch(self, ino, index);
        }
    }

    async fn write_pages(&self, ino: Ino, pages: &[DirtyPage], cause: WriteCause) -> Result<()> {
        Engine::write_pages(self, number::<E>(ino)?, pages, cause).await
    }

    async fn write_at_once(&self, ino: Ino, pages: &[DirtyPage], end: u64, now: Timestamp) -> Result<()> {
        Engine::write_at_once(self, number::<E>(ino)?, pages, end, now).await
    }

    async fn write_set(&self, parts: &[SetPart]) -> Result<()> {
        Engine::write_set(self, parts).await
    }

    fn has_sets(&self) -> bool {
        Engine::has_sets(self)
    }

    fn set_pages_max(&self) -> u64 {
        Engine::set_pages_max(self)
    }

    fn at_once_max(&self) -> Option<u64> {
        Engine::at_once_max(self)
    }

    async fn share_pages(&self, from: (Ino, u64), to: (Ino, u64), count: u64) -> Result<u64> {
        let (from, to) = ((number::<E>(from.0)?, from.1), (number::<E>(to.0)?, to.1));
        Engine::share_pages(self, from, to, count).await
    }

    async fn exchange_pages(&self, one: (Ino, u64), other: (Ino, u64), count: u64) -> Result<()> {
        let (one, other) = ((number::<E>(one.0)?, one.1), (number::<E>(other.0)?, other.1));
        Engine::exchange_pages(self, one, other, count).await
    }

    fn shares_pages(&self) -> bool {
        Engine::shares_pages(self)
    }

    async fn allocate(&self, ino: Ino, range: (u64, u64), keep_size: bool, now: Timestamp) -> Result<()> {
        Engine::allocate(self, number::<E>(ino)?, range, keep_size, now).await
    }

    async fn pages_from(&self, ino: Ino, first: u64) -> Result<PageRun> {
        Engine::pages_from(self, number::<E>(ino)?, first).await
    }

    async fn punch_pages(&self, ino: Ino, first: u64, count: u64, now: Timestamp) -> Result<()> {
        Engine::punch_pages(self, number::<E>(ino)?, first, count, now).await
    }

    async fn fsync(&self, ino: Ino, kind: SyncKind) -> Result<()> {
        Engine::fsync(self, number::<E>(ino)?, kind).await
    }

    async fn fsync_all(&self, inos: &[Ino], kind: SyncKind) -> Result<()> {
        let inos: Vec<_> = inos.iter().map(|ino| number::<E>(*ino)).collect::<Result<_>>()?;
        Engine::fsync_all(self, &inos, kind).await
    }

    async fn sync(&self) -> Result<()> {
        Engine::sync(self).await
    }

    async fn unmount(&self) -> Result<()> {
        Engine::unmount(self).await
    }

    async fn barrier(&self, ino: Ino, pages: &[DirtyPage], kind: Barrier) -> Result<Ticket> {
        match self.is_dual() {
            true => Engine::barrier(self, number::<E>(ino)?, pages, kind).await,
            false => Err(Errno::EOPNOTSUPP),
        }
    }

    fn has_barriers(&self) -> bool {
        self.is_dual()
    }

    fn syncs_in_order(&self) -> bool {
        self.is_dual()
    }

    async fn background(&self, now: Timestamp) -> Option<Duration> {
        Engine::background(self, now).await
    }

    fn has_background(&self) -> bool {
        Engine::has_background(self)
    }

    async fn statfs(&self) -> Result<StatFs> {
        Ok(Engine::statfs(self))
    }
}

/// A time of an inode as the vfs has it.
pub(crate) fn stamp(time: Time) -> Timestamp {
    Timestamp { seconds: time.seconds, nanos: time.nanos.min(999_999_999) }
}

/// And back.
pub(crate) fn time(stamp: Timestamp) -> Time {
    Time { seconds: stamp.seconds, nanos: stamp.nanos }
}

/// A mode with other permission bits.
fn with_permissions(mode: u16, permissions: u16) -> u16 {
    mode & !0o7777 | permissions & 0o7777
}

/// The number of a device in Linux's new encoding.
pub(crate) fn device_number((major, minor): (u32, u32)) -> u32 {
    minor & 0xff | major << 8 | (minor & !0xff) << 12
}

/// Kind of an inode, for the vfs; of a device, with its number.
pub(crate) fn vfs_kind(kind: NodeKind, device: impl FnOnce() -> u32) -> Kind {
    match kind {
        NodeKind::Regular => Kind::File,
        NodeKind::Directory => Kind::Directory,
        NodeKind::Symlink => Kind::Symlink,
        NodeKind::Fifo => Kind::Fifo,
        NodeKind::Socket => Kind::Socket,
        NodeKind::CharDevice => Kind::CharDevice(device()),
        NodeKind::BlockDevice => Kind::BlockDevice(device()),
    }
}

/// And back.
pub(crate) fn node_kind(kind: Kind) -> NodeKind {
    match kind {
        Kind::File => NodeKind::Regular,
        Kind::Directory => NodeKind::Directory,
        Kind::Symlink => NodeKind::Symlink,
        Kind::Fifo => NodeKind::Fifo,
        Kind::Socket => NodeKind::Socket,
        Kind::CharDevice(_) => NodeKind::CharDevice,
        Kind::BlockDevice(_) => NodeKind::BlockDevice,
    }
}

/// The error number that a caller of the vfs gets for an error.
pub(crate) fn errno<F>(error: &Error<F>) -> Errno {
    match error {
        Error::Port(error) => errno_of(error),
        _ => Errno::EUCLEAN,
    }
}

/// Reads runs of blocks, all at once, each into the pages from a place on.
pub(crate) async fn read_runs(
    port: &dyn BlockPort,
    runs: impl IntoIterator<Item = (usize, Block, u32)>,
    pages: &mut [Payload],
) -> Result<()> {
    let tickets: Vec<_> = runs.into_iter().map(|(at, block, count)| (at, port.read(block, count))).collect();
    for (at, ticket) in tickets {
        let answer = ticket.completed().await.map_err(|error| errno_of(&error))?;
        for (page, read) in pages[at..].iter_mut().zip(answer) {
            *page = read;
        }
    }
    Ok(())
}
