//! The kernel's requests: each becomes a job for the world, with its reply inside.
//!
//! Place in the data flow: threads of fuser call [`Front`]; nothing is decided here but what the bits of a request mean. A job
//! that never runs, or whose task is dropped, answers EIO by dropping its reply.

use super::lazyfs::Operation;
use super::table::{How, Table};
use super::world::{Job, Message};
use flashweir_fs::vfs::{
    self, Attr, Barrier, Creds, Fs, Kind, PAGE_BYTES, RenameMode, SetAttr, SetTime, SyncKind, Timestamp,
    XattrMode,
};
use flashweir_lab::crash::recorded::Room;
use fuser::{
    BsdFileFlags, Errno, FileAttr, FileHandle, FileType, Filesystem, FopenFlags, Generation, INodeNo,
    InitFlags, IoctlFlags, KernelConfig, LockOwner, OpenAccMode, OpenFlags, RenameFlags, ReplyAttr,
    ReplyCreate, ReplyData, ReplyDirectory, ReplyDirectoryPlus, ReplyEmpty, ReplyEntry, ReplyIoctl,
    ReplyOpen, ReplyStatfs, ReplyWrite, ReplyXattr, Request, TimeOrNow, WriteFlags,
};
use rustix::fs::{FallocateFlags, OFlags, XattrFlags};
use std::ffi::OsStr;
use std::future::Future;
use std::io;
use std::os::unix::ffi::{OsStrExt as _, OsStringExt as _};
use std::path::Path;
use std::rc::Rc;
use std::sync::mpsc::SyncSender;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

/// For how long the kernel may believe names: nobody else changes them, and a power cut takes them back.
const NAMES_TTL: Duration = Duration::from_secs(3600);

/// For how long it may believe attributes; the blocks that a file takes change behind its back.
const ATTRS_TTL: Duration = Duration::from_secs(1);

/// Bytes of one write at most.
const WRITE_BYTES_MAX: u32 = 1 << 20;

/// Of `include/flashweir.h`: `_IO('W', 1)` and `_IO('W', 2)`.
const IOCTL_FBARRIER: u32 = 0x5701;
const IOCTL_FDATABARRIER: u32 = 0x5702;

/// See the module.
pub(super) struct Front<F: Fs> {
    pub(super) queue: SyncSender<Message<F>>,
    /// The kernel keeps what programs write until it is asked for it or it is old.
    pub(super) writes_back: bool,
}

impl<F: Fs> Front<F> {
    fn submit<T>(&self, job: impl FnOnce(Rc<Table<F>>) -> T + Send + 'static)
    where
        T: Future<Output = ()> + 'static,
    {
        let job: Job<F> = Box::new(move |table| Box::pin(job(table)));
        // After the end of the world the job is dropped, which answers.
        let _ = self.queue.send(Message::Job(job));
    }
}

fn errno(errno: vfs::Errno) -> Errno {
    Errno::from_i32(errno.number())
}

fn creds(request: &Request) -> Creds {
    Creds::checked(request.uid(), request.gid())
}

fn time_of(time: Timestamp) -> SystemTime {
    let nanos = Duration::from_nanos(time.nanos.into());
    match u64::try_from(time.seconds) {
        Ok(seconds) => UNIX_EPOCH + Duration::from_secs(seconds) + nanos,
        Err(_) => UNIX_EPOCH - Duration::from_secs(time.seconds.unsigned_abs()) + nanos,
    }
}

fn timestamp_of(time: SystemTime) -> Timestamp {
    match time.duration_since(UNIX_EPOCH) {
        Ok(since) => Timestamp { seconds: since.as_secs() as i64, nanos: since.subsec_nanos() },
        Err(before) => {
            let before = before.duration();
            let up = u64::from(before.subsec_nanos() > 0);
            let nanos = (1_000_000_000 - before.subsec_nanos()) % 1_000_000_000;
            Timestamp { seconds: -((before.as_secs() + up) as i64), nanos }
        }
    }
}

fn set_time(time: Option<TimeOrNow>) -> SetTime {
    match time {
        None => SetTime::Omit,
        Some(TimeOrNow::Now) => SetTime::Now,
        Some(TimeOrNow::SpecificTime(time)) => SetTime::At(timestamp_of(time)),
    }
}

fn type_of(kind: Kind) -> (FileType, u32) {
    match kind {
        Kind::File => (FileType::RegularFile, 0),
        Kind::Directory => (FileType::Directory, 0),
        Kind::Symlink => (FileType::Symlink, 0),
        Kind::Fifo => (FileType::NamedPipe, 0),
        Kind::Socket => (FileType::Socket, 0),
        Kind::CharDevice(number) => (FileType::CharDevice, number),
        Kind::BlockDevice(number) => (FileType::BlockDevice, number),
    }
}

fn attr_of(number: INodeNo, attr: &Attr) -> FileAttr {
    let (kind, rdev) = type_of(attr.kind);
    FileAttr {
        ino: number,
        size: attr.size,
        blocks: attr.blocks_512,
        atime: time_of(attr.atime),
        mtime: time_of(attr.mtime),
        ctime: time_of(attr.ctime),
        crtime: UNIX_EPOCH,
        kind,
        perm: attr.mode,
        nlink: attr.links,
        uid: attr.uid,
        gid: attr.gid,
        rdev,
        blksize: PAGE_BYTES as u32,
        flags: 0,
    }
}

/// What is asked for by the type bits of a mode.
fn kind_of(mode: u32, rdev: u32) -> Option<Kind> {
    Some(match mode & 0o170_000 {
        0o100_000 | 0 => Kind::File,
        0o010_000 => Kind::Fifo,
        0o140_000 => Kind::Socket,
        0o020_000 => Kind::CharDevice(rdev),
        0o060_000 => Kind::BlockDevice(rdev),
        _ => return None,
    })
}

fn is_direct(flags: i32) -> bool {
    OFlags::from_bits_retain(flags as u32).contains(OFlags::DIRECT)
}

fn how(flags: i32) -> How {
    How { writes: OpenFlags(flags).acc_mode() != OpenAccMode::O_RDONLY, direct: is_direct(flags) }
}

/// What the kernel does with an open file: pages of it stay from one opening to the next, and direct writes go side by side.
fn opened() -> FopenFlags {
    FopenFlags::FOPEN_KEEP_CACHE | FopenFlags::FOPEN_PARALLEL_DIRECT_WRITES
}

fn reply_entry<F: Fs>(table: &Table<F>, reply: ReplyEntry, result: vfs::Result<Attr>) {
    match table.vouch(result) {
        Ok(attr) => reply.entry_with_ttls(
            &ATTRS_TTL,
            &NAMES_TTL,
            &attr_of(table.number(attr.ino), &attr),
            Generation(table.generation(&attr)),
        ),
        Err(error) => reply.error(errno(error)),
    }
}

fn reply_empty<F: Fs>(table: &Table<F>, reply: ReplyEmpty, result: vfs::Result<()>) {
    match table.vouch(result) {
        Ok(()) => reply.ok(),
        Err(error) => reply.error(errno(error)),
    }
}

/// Answers with a value, or with its length where the caller has no room yet.
fn reply_value(reply: ReplyXattr, size: u32, result: vfs::Result<impl AsRef<[u8]>>) {
    match result {
        Ok(value) if size == 0 => reply.size(value.as_ref().len() as u32),
        Ok(value) if value.as_ref().len() > size as usize => reply.error(Errno::ERANGE),
        Ok(value) => reply.data(value.as_ref()),
        Err(error) => reply.error(errno(error)),
    }
}

impl<F: Fs> Filesystem for Front<F> {
    fn init(&mut self, _request: &Request, config: &mut KernelConfig) -> io::Result<()> {
        let wanted = [
            InitFlags::FUSE_ASYNC_DIO,
            InitFlags::FUSE_CACHE_SYMLINKS,
            InitFlags::FUSE_DO_READDIRPLUS,
            InitFlags::FUSE_READDIRPLUS_AUTO,
            InitFlags::FUSE_PARALLEL_DIROPS,
        ];
        let writes_back = self.writes_back.then_some(InitFlags::FUSE_WRITEBACK_CACHE);
        for capability in wanted.into_iter().chain(writes_back) {
            // An older kernel does without.
            let _ = config.add_capabilities(capability);
        }
        let _ = config.set_max_write(WRITE_BYTES_MAX);
        let _ = config.set_max_background(64);
        Ok(())
    }

    fn lookup(&self, _request: &Request, parent: INodeNo, name: &OsStr, reply: ReplyEntry) {
        let name = name.as_bytes().to_owned();
        self.submit(move |table| async move {
            let found = table.lookup(parent, &name).await;
            reply_entry(&table, reply, found);
        });
    }

    fn forget(&self, _request: &Request, number: INodeNo, count: u64) {
        let _ = self.queue.send(Message::Forget(vec![(number.0, count)]));
    }

    fn getattr(&self, _request: &Request, number: INodeNo, _handle: Option<FileHandle>, reply: ReplyAttr) {
        self.submit(move |table| async move {
            match table.attr(number).await {
                Ok(attr) => reply.attr(&ATTRS_TTL, &attr_of(number, &attr)),
                Err(error) => reply.error(errno(error)),
            }
        });
    }

    fn setattr(
        &self,
        _request: &Request,
        number: INodeNo,
        mode: Option<u32>,
        uid: Option<u32>,
        gid: Option<u32>,
        size: Option<u64>,
        atime: Option<TimeOrNow>,
        mtime: Option<TimeOrNow>,
        ctime: Option<SystemTime>,
        _handle: Option<FileHandle>,
        _crtime: Option<SystemTime>,
        _chgtime: Option<SystemTime>,
        _bkuptime: Option<SystemTime>,
        _flags: Option<BsdFileFlags>,
        reply: ReplyAttr,
    ) {
        let mode = mode.map(|mode| mode as u16 & vfs::mode::ALL);
        let ctime = ctime.map(timestamp_of);
        let changes = SetAttr { mode, uid, gid, size, ctime, ..SetAttr::default() };
        let (atime, mtime) = (set_time(atime), set_time(mtime));
        self.submit(move |table| async move {
            let paths = || (table.path(number), None);
            let work = table.set_attr(number, changes, atime, mtime);
            let result = match size {
                Some(_) => table.around(Operation::Truncate, paths, work).await,
                None => work.await,
            };
            match table.vouch(result) {
                Ok(attr) => reply.attr(&ATTRS_TTL, &attr_of(number, &attr)),
                Err(error) => reply.error(errno(error)),
            }
        });
    }

    fn readlink(&self, _request: &Request, number: INodeNo, reply: ReplyData) {
        self.submit(move |table| async move {
            match table.target(number).await {
                Ok(target) => reply.data(&target),
                Err(error) => reply.error(errno(error)),
            }
        });
    }

    fn mknod(
        &self,
        request: &Request,
        parent: INodeNo,
        name: &OsStr,
        mode: u32,
        _umask: u32,
        rdev: u32,
        reply: ReplyEntry,
    ) {
        let Some(kind) = kind_of(mode, rdev) else { return reply.error(Errno::EINVAL) };
        let (name, creds) = (name.as_bytes().to_owned(), creds(request));
        self.submit(move |table| async move {
            let made = table.make(&creds, parent, &name, kind, mode as u16 & vfs::mode::ALL).await;
            reply_entry(&table, reply, made);
        });
    }

    fn mkdir(
        &self,
        request: &Request,
        parent: INodeNo,
        name: &OsStr,
        mode: u32,
        _umask: u32,
        reply: ReplyEntry,
    ) {
        let (name, creds) = (name.as_bytes().to_owned(), creds(request));
        self.submit(move |table| async move {
            let permissions = mode as u16 & vfs::mode::ALL;
            let made = table.make(&creds, parent, &name, Kind::Directory, permissions).await;
            reply_entry(&table, reply, made);
        });
    }

    fn unlink(&self, request: &Request, parent: INodeNo, name: &OsStr, reply: ReplyEmpty) {
        let (name, creds) = (name.as_bytes().to_owned(), creds(request));
        self.submit(move |table| async move {
            let paths = || (table.path_in(parent, &name), None);
            let work = table.remove(&creds, parent, &name, false);
            let result = table.around(Operation::Unlink, paths, work).await;
            reply_empty(&table, reply, result);
        });
    }

    fn rmdir(&self, request: &Request, parent: INodeNo, name: &OsStr, reply: ReplyEmpty) {
        let (name, creds) = (name.as_bytes().to_owned(), creds(request));
        self.submit(move |table| async move {
            let result = table.remove(&creds, parent, &name, true).await;
            reply_empty(&table, reply, result);
        });
    }

    fn symlink(&self, request: &Request, parent: INodeNo, name: &OsStr, target: &Path, reply: ReplyEntry) {
        let (name, creds) = (name.as_bytes().to_owned(), creds(request));
        let target = target.as_os_str().to_owned().into_vec();
        self.submit(move |table| async move {
            let paths =
                || (String::from_utf8_lossy(&target).into_owned(), Some(table.path_in(parent, &name)));
            let work = table.symlink(&creds, parent, &name, &target);
            let made = table.around(Operation::Symlink, paths, work).await;
            reply_entry(&table, reply, made);
        });
    }

    fn rename(
        &self,
        request: &Request,
        parent: INodeNo,
        name: &OsStr,
        new_parent: INodeNo,
        new_name: &OsStr,
        flags: RenameFlags,
        reply: ReplyEmpty,
    ) {
        let mode = match flags {
            _ if flags.is_empty() => RenameMode::Replace,
            _ if flags == RenameFlags::RENAME_NOREPLACE => RenameMode::NoReplace,
            _ if flags == RenameFlags::RENAME_EXCHANGE => RenameMode::Exchange,
            _ => return reply.error(Errno::EINVAL),
        };
        let (name, new_name) = (name.as_bytes().to_owned(), new_name.as_bytes().to_owned());
        let creds = creds(request);
        self.submit(move |table| async move {
            let paths = || (table.path_in(parent, &name), Some(table.path_in(new_parent, &new_name)));
            let work = table.rename(&creds, (parent, &name), (new_parent, &new_name), mode);
            let result = table.around(Operation::Rename, paths, work).await;
            reply_empty(&table, reply, result);
        });
    }

    fn link(
        &self,
        request: &Request,
        number: INodeNo,
        new_parent: INodeNo,
        new_name: &OsStr,
        reply: ReplyEntry,
    ) {
        let (name, creds) = (new_name.as_bytes().to_owned(), creds(request));
        self.submit(move |table| async move {
            let paths = || (table.path(number), Some(table.path_in(new_parent, &name)));
            let work = table.link(&creds, number, new_parent, &name);
            let linked = table.around(Operation::Link, paths, work).await;
            reply_entry(&table, reply, linked);
        });
    }

    fn open(&self, _request: &Request, number: INodeNo, flags: OpenFlags, reply: ReplyOpen) {
        self.submit(move |table| async move {
            let work = table.open(number, how(flags.0));
            match table.around(Operation::Open, || (table.path(number), None), work).await {
                Ok(handle) => reply.opened(FileHandle(handle), opened()),
                Err(error) => reply.error(errno(error)),
            }
        });
    }

    fn create(
        &self,
        request: &Request,
        parent: INodeNo,
        name: &OsStr,
        mode: u32,
        _umask: u32,
        flags: i32,
        reply: ReplyCreate,
    ) {
        let (name, creds) = (name.as_bytes().to_owned(), creds(request));
        let is_exclusive = OFlags::from_bits_retain(flags as u32).contains(OFlags::EXCL);
        self.submit(move |table| async move {
            let permissions = mode as u16 & vfs::mode::ALL;
            let paths = || (table.path_in(parent, &name), None);
            let work = table.create(&creds, parent, &name, permissions, (is_exclusive, how(flags)));
            let made = table.around(Operation::Create, paths, work).await;
            match table.vouch(made) {
                Ok((attr, handle)) => reply.created(
                    &ATTRS_TTL,
                    &attr_of(table.number(attr.ino), &attr),
                    Generation(table.generation(&attr)),
                    FileHandle(handle),
                    opened(),
                ),
                Err(error) => reply.error(errno(error)),
            }
        });
    }

    fn read(
        &self,
        _request: &Request,
        number: INodeNo,
        handle: FileHandle,
        offset: u64,
        size: u32,
        flags: OpenFlags,
        _owner: Option<LockOwner>,
        reply: ReplyData,
    ) {
        self.submit(move |table| async move {
            let mut bytes = vec![0; size as usize];
            let work = table.read(handle.0, offset, &mut bytes, is_direct(flags.0));
            match table.around(Operation::Read, || (table.path(number), None), work).await {
                Ok(read) => reply.data(&bytes[..read]),
                Err(error) => reply.error(errno(error)),
            }
        });
    }

    fn write(
        &self,
        _request: &Request,
        number: INodeNo,
        handle: FileHandle,
        offset: u64,
        data: &[u8],
        write_flags: WriteFlags,
        flags: OpenFlags,
        _owner: Option<LockOwner>,
        reply: ReplyWrite,
    ) {
        // The kernel writes its pages through any file that is open for writing.
        let direct = is_direct(flags.0) && !write_flags.contains(WriteFlags::FUSE_WRITE_CACHE);
        let data = data.to_owned();
        self.submit(move |table| async move {
            if table.write_fault(number, offset, &data).await {
                return reply.written(data.len() as u32);
            }
            let work = table.write(handle.0, offset, &data, direct);
            let result = table.around(Operation::Write, || (table.path(number), None), work).await;
            match table.vouch(result) {
                Ok(written) => reply.written(written),
                Err(error) => reply.error(errno(error)),
            }
        });
    }

    /// Closing a descriptor makes nothing durable; the kernel does not ask again.
    fn flush(
        &self,
        _request: &Request,
        _number: INodeNo,
        _handle: FileHandle,
        _owner: LockOwner,
        reply: ReplyEmpty,
    ) {
        reply.error(Errno::ENOSYS);
    }

    fn release(
        &self,
        _request: &Request,
        _number: INodeNo,
        handle: FileHandle,
        _flags: OpenFlags,
        _owner: Option<LockOwner>,
        _flush: bool,
        reply: ReplyEmpty,
    ) {
        self.submit(move |table| async move {
            table.release(handle.0).await;
            reply.ok();
        });
    }

    fn fsync(&self, _request: &Request, number: INodeNo, handle: FileHandle, data: bool, reply: ReplyEmpty) {
        let kind = if data { SyncKind::Data } else { SyncKind::All };
        self.submit(move |table| async move {
            let work = table.sync(handle.0, kind);
            let result = table.around(Operation::Fsync, || (table.path(number), None), work).await;
            reply_empty(&table, reply, result);
        });
    }

    fn opendir(&self, _request: &Request, number: INodeNo, _flags: OpenFlags, reply: ReplyOpen) {
        self.submit(move |table| async move {
            match table.open(number, How { writes: false, direct: false }).await {
                Ok(handle) => reply.opened(FileHandle(handle), FopenFlags::empty()),
                Err(error) => reply.error(errno(error)),
            }
        });
    }

    fn readdir(
        &self,
        _request: &Request,
        dir: INodeNo,
        handle: FileHandle,
        offset: u64,
        mut reply: ReplyDirectory,
    ) {
        self.submit(move |table| async move {
            let listing = match table.listing(handle.0, offset == 0).await {
                Ok(listing) => listing,
                Err(error) => return reply.error(errno(error)),
            };
            let above = table.above(dir).await.unwrap_or(dir);
            let dots = [(dir, "."), (above, "..")];
            for (at, (number, name)) in (0..).zip(dots).skip(offset as usize) {
                if reply.add(number, at + 1, FileType::Directory, name) {
                    return reply.ok();
                }
            }
            let skipped = (offset as usize).saturating_sub(dots.len());
            for (at, entry) in (3..).zip(listing.iter()).skip(skipped) {
                let (number, kind) = (table.number(entry.ino), type_of(entry.kind).0);
                if reply.add(number, at, kind, OsStr::from_bytes(&entry.name)) {
                    break;
                }
            }
            reply.ok();
        });
    }

    fn readdirplus(
        &self,
        _request: &Request,
        dir: INodeNo,
        handle: FileHandle,
        offset: u64,
        mut reply: ReplyDirectoryPlus,
    ) {
        self.submit(move |table| async move {
            let listing = match table.listing(handle.0, offset == 0).await {
                Ok(listing) => listing,
                Err(error) => return reply.error(errno(error)),
            };
            let own = match table.attr(dir).await {
                Ok(attr) => attr,
                Err(error) => return reply.error(errno(error)),
            };
            let above = table.above(dir).await.unwrap_or(dir);
            let dots = [(dir, "."), (above, "..")];
            for (at, (number, name)) in (0..).zip(dots).skip(offset as usize) {
                // The kernel takes no more than the number from these.
                let attr = attr_of(number, &own);
                if reply.add(number, at + 1, name, &Duration::ZERO, &attr, Generation(0)) {
                    return reply.ok();
                }
            }
            let skipped = (offset as usize).saturating_sub(dots.len());
            for (at, entry) in (3..).zip(listing.iter()).skip(skipped) {
                let Some(attr) = table.entry(dir, entry).await else { continue };
                let (number, name) = (table.number(attr.ino), OsStr::from_bytes(&entry.name));
                let generation = Generation(table.generation(&attr));
                if reply.add(number, at, name, &ATTRS_TTL, &attr_of(number, &attr), generation) {
                    table.forget(vec![(number.0, 1)]).await;
                    break;
                }
            }
            reply.ok();
        });
    }

    fn releasedir(
        &self,
        _request: &Request,
        _number: INodeNo,
        handle: FileHandle,
        _flags: OpenFlags,
        reply: ReplyEmpty,
    ) {
        self.submit(move |table| async move {
            table.release(handle.0).await;
            reply.ok();
        });
    }

    fn fsyncdir(
        &self,
        request: &Request,
        number: INodeNo,
        handle: FileHandle,
        data: bool,
        reply: ReplyEmpty,
    ) {
        self.fsync(request, number, handle, data, reply);
    }

    fn statfs(&self, _request: &Request, _number: INodeNo, reply: ReplyStatfs) {
        self.submit(move |table| async move {
            match table.statfs().await {
                Ok(of) => reply.statfs(
                    of.pages,
                    of.pages_free,
                    of.pages_available,
                    of.inodes,
                    of.inodes_free,
                    PAGE_BYTES as u32,
                    table.vfs().limits().name_bytes_max as u32,
                    PAGE_BYTES as u32,
                ),
                Err(error) => reply.error(errno(error)),
            }
        });
    }

    fn setxattr(
        &self,
        _request: &Request,
        number: INodeNo,
        name: &OsStr,
        value: &[u8],
        flags: i32,
        _position: u32,
        reply: ReplyEmpty,
    ) {
        let mode = match XattrFlags::from_bits_retain(flags as u32) {
            flags if flags.is_empty() => XattrMode::Set,
            XattrFlags::CREATE => XattrMode::Create,
            XattrFlags::REPLACE => XattrMode::Replace,
            _ => return reply.error(Errno::EINVAL),
        };
        let (name, value) = (name.as_bytes().to_owned(), value.to_owned());
        self.submit(move |table| async move {
            let result = table.set_xattr(number, &name, &value, mode).await;
            reply_empty(&table, reply, result);
        });
    }

    fn getxattr(&self, _request: &Request, number: INodeNo, name: &OsStr, size: u32, reply: ReplyXattr) {
        let name = name.as_bytes().to_owned();
        self.submit(move |table| async move { reply_value(reply, size, table.xattr(number, &name).await) });
    }

    fn listxattr(&self, _request: &Request, number: INodeNo, size: u32, reply: ReplyXattr) {
        self.submit(move |table| async move { reply_value(reply, size, table.xattr_names(number).await) });
    }

    fn removexattr(&self, _request: &Request, number: INodeNo, name: &OsStr, reply: ReplyEmpty) {
        let name = name.as_bytes().to_owned();
        self.submit(move |table| async move {
            let result = table.remove_xattr(number, &name).await;
            reply_empty(&table, reply, result);
        });
    }

    fn fallocate(
        &self,
        _request: &Request,
        _number: INodeNo,
        handle: FileHandle,
        offset: u64,
        length: u64,
        mode: i32,
        reply: ReplyEmpty,
    ) {
        let mode = FallocateFlags::from_bits_retain(mode as u32);
        let keep_size = mode.contains(FallocateFlags::KEEP_SIZE);
        let how = match mode - FallocateFlags::KEEP_SIZE {
            rest if rest.is_empty() => Room::Reserved { keep_size },
            FallocateFlags::PUNCH_HOLE if keep_size => Room::Hole,
            FallocateFlags::ZERO_RANGE => Room::Zeros { keep_size },
            _ => return reply.error(Errno::EOPNOTSUPP),
        };
        self.submit(move |table| async move {
            let result = table.allocate(handle.0, offset, length, how).await;
            reply_empty(&table, reply, result);
        });
    }

    fn ioctl(
        &self,
        _request: &Request,
        _number: INodeNo,
        handle: FileHandle,
        _flags: IoctlFlags,
        command: u32,
        _input: &[u8],
        _output_bytes: u32,
        reply: ReplyIoctl,
    ) {
        let kind = match command {
            IOCTL_FBARRIER => Barrier::All,
            IOCTL_FDATABARRIER => Barrier::Data,
            _ => return reply.error(Errno::ENOTTY),
        };
        self.submit(move |table| async move {
            let result = table.barrier(handle.0, kind).await;
            match table.vouch(result) {
                Ok(()) => reply.ioctl(0, &[]),
                Err(error) => reply.error(errno(error)),
            }
        });
    }
}
