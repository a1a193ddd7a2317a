//! The kernel's requests: each becomes a job for the world, with its reply inside.
//!
//! Place in the data flow: the threads of [`super::kernel`] call [`Front`]; this module only interprets the bits of a request. A job that
//! never runs, or whose task is dropped, answers EIO by dropping its reply.
//!
//! Everything that has begun is finished, in the device's time. If the thread that waits is killed meanwhile, it leaves without its
//! answer, and what it would have got (a name in the kernel's cache, an open file) is released here.

use super::exchange::{Exchange, IOCTL_EXCHANGE};
use super::kernel::{
    Attributes, Entry, Features, Handler, Listing, NodeId, Op, OpenFlags, Reply, Request, SetAttributes,
    Stale, Statistics, Wanted, When,
};
use super::lazyfs::Operation;
use super::message::{Job, Message, Queue, Turn};
use super::stale::Teller;
use super::table::{From, How, Table, Until};
use flashweir_crash::recorded::Room;
use flashweir_fs::vfs::{
    self, Attr, Barrier, Creds, Fs, Kind, PAGE_BYTES, RenameMode, Seek, SetAttr, SetTime, SyncKind,
    Timestamp, XattrMode,
};
use rustix::fs::{FallocateFlags, OFlags, RenameFlags, XattrFlags};
use rustix::io::Errno;
use std::future::Future;
use std::path::PathBuf;
use std::rc::Rc;
use std::time::Duration;

/// Time for which the kernel may cache names: they change only through it, and a power cut invalidates them.
const NAMES_TTL: Duration = Duration::from_secs(3600);

/// Time for which it may cache names of a listing, which were not looked up.
const LISTED_TTL: Duration = Duration::from_secs(1);

/// Most bytes of one write.
const WRITE_BYTES_MAX: u32 = 1 << 20;

/// Of `include/flashweir.h`: `_IO('W', 1)` to `_IO('W', 4)`.
const IOCTL_FBARRIER: u32 = 0x5701;
const IOCTL_FDATABARRIER: u32 = 0x5702;
const IOCTL_ATOMIC: u32 = 0x5703;
const IOCTL_ABORT: u32 = 0x5704;
/// `_IOW('W', 5, struct flashweir_set)`.
const IOCTL_SYNCV: u32 = 0x4000_5705 | (SET_BYTES as u32) << 16;
/// F2FS's: `_IOR(0xf5, 12, u32)`, and `_IO(0xf5, 1)`, 2 and 5, by which SQLite writes a transaction without a journal (share §10.4).
const IOCTL_FEATURES: u32 = 0x8004_f50c;
const IOCTL_START: u32 = 0xf501;
const IOCTL_COMMIT: u32 = 0xf502;
const IOCTL_ABORT_STARTED: u32 = 0xf505;
/// The feature that SQLite looks for.
const FEATURE_ATOMIC_WRITE: u32 = 4;
/// `_IOW(0x95, 2, u32)`: from here on each write is all or nothing, by which MariaDB does without its doublewrite buffer (share §10.2).
const IOCTL_EACH_WRITE: u32 = 0x4004_9502;
/// A number of files, whether their data suffice, and room for so many inodes.
const SET_BYTES: usize = 8 + 8 * SET_FILES_MAX;
const SET_FILES_MAX: usize = 62;

/// Of `lseek`.
const SEEK_DATA: u32 = 3;
const SEEK_HOLE: u32 = 4;

/// Pages of a file stay from one opening to the next, and direct writes go side by side.
const FILE_FLAGS: OpenFlags = OpenFlags::KEEP_PAGES.and(OpenFlags::PARALLEL_WRITES);

/// Features wanted of the kernel. `writes_back`: it keeps written data until a sync, or until they are old.
pub(super) fn wanted(writes_back: bool) -> Wanted {
    let features = Features::ASYNC_READ
        .and(Features::BIG_WRITES)
        .and(Features::LISTING_PLUS)
        .and(Features::LISTING_PLUS_AUTO)
        .and(Features::ASYNC_DIRECT)
        .and(Features::PARALLEL_DIRECTORIES)
        .and(Features::KEEP_LINKS)
        .and(Features::ENDS_SET_ID)
        .and(Features::MASKS)
        .and(Features::ACCESS_LISTS)
        .and(Features::XATTR_FLAGS);
    let features = if writes_back { features.and(Features::WRITE_BACK) } else { features };
    Wanted { features, write_bytes_max: WRITE_BYTES_MAX, background_max: 64 }
}

/// See the module.
pub(super) struct Front<F: Fs> {
    /// Queue for jobs that are sent before [`Handler::handle`] returns.
    pub(super) queue: Queue<F>,
    /// Queue for jobs that are sent later.
    pub(super) later: Queue<F>,
    pub(super) teller: Teller,
    /// Whether the kernel keeps written data until a sync, or until they are old.
    pub(super) writes_back: bool,
    /// Where it is mounted.
    pub(super) directory: PathBuf,
}

fn errno(errno: vfs::Errno) -> Errno {
    Errno::from_raw_os_error(errno.number())
}

fn set_time(time: Option<When>) -> SetTime {
    match time {
        None => SetTime::Omit,
        Some(When::Now) => SetTime::Now,
        Some(When::At(seconds, nanos)) => SetTime::At(Timestamp { seconds, nanos }),
    }
}

/// The bits of a mode that stand for a type, and the number of a device.
fn type_of(kind: Kind) -> (u32, u32) {
    match kind {
        Kind::File => (0o100_000, 0),
        Kind::Directory => (0o040_000, 0),
        Kind::Symlink => (0o120_000, 0),
        Kind::Fifo => (0o010_000, 0),
        Kind::Socket => (0o140_000, 0),
        Kind::CharDevice(number) => (0o020_000, number),
        Kind::BlockDevice(number) => (0o060_000, number),
    }
}

fn attributes_of(node: NodeId, attr: &Attr) -> Attributes {
    let (kind, device) = type_of(attr.kind);
    let time = |time: Timestamp| (time.seconds, time.nanos);
    Attributes {
        node: node.0,
        bytes: attr.size,
        blocks_512: attr.blocks_512,
        atime: time(attr.atime),
        mtime: time(attr.mtime),
        ctime: time(attr.ctime),
        mode: kind | u32::from(attr.mode),
        links: attr.links,
        uid: attr.uid,
        gid: attr.gid,
        device,
        block_bytes: PAGE_BYTES as u32,
    }
}

/// Kind of inode that the type bits of a mode ask for.
fn kind_of(mode: u32, device: u32) -> Option<Kind> {
    Some(match mode & 0o170_000 {
        0o100_000 | 0 => Kind::File,
        0o010_000 => Kind::Fifo,
        0o140_000 => Kind::Socket,
        0o020_000 => Kind::CharDevice(device),
        0o060_000 => Kind::BlockDevice(device),
        _ => return None,
    })
}

fn masked(creds: Creds, umask: u32) -> Creds {
    creds.with_umask(umask as u16 & 0o777)
}

fn permissions(mode: u32) -> u16 {
    mode as u16 & vfs::mode::ALL
}

fn has(flags: u32, flag: OFlags) -> bool {
    OFlags::from_bits_retain(flags).contains(flag)
}

fn how(flags: u32) -> How {
    How {
        reads: !has(flags, OFlags::WRONLY),
        writes: has(flags, OFlags::WRONLY) || has(flags, OFlags::RDWR),
        direct: has(flags, OFlags::DIRECT),
    }
}

fn entry_of<F: Fs>(table: &Table<F>, attr: &Attr) -> Entry {
    Entry {
        attributes: attributes_of(table.number(attr.ino), attr),
        generation: table.generation(attr),
        name_valid: NAMES_TTL,
        attributes_valid: table.lifetime(attr),
    }
}

async fn reply_entry<F: Fs>(table: &Table<F>, reply: Reply, result: vfs::Result<Attr>) {
    match table.vouch(result) {
        Ok(attr) => {
            if !reply.entry(&entry_of(table, &attr)) {
                table.forget(vec![(table.number(attr.ino).0, 1)]).await;
            }
        }
        Err(error) => reply.error(errno(error)),
    }
}

async fn reply_opened<F: Fs>(table: &Table<F>, reply: Reply, opened: vfs::Result<u64>, flags: OpenFlags) {
    match opened {
        Ok(handle) => {
            if !reply.opened(handle, flags) {
                table.release(handle).await;
            }
        }
        Err(error) => reply.error(errno(error)),
    }
}

async fn reply_created<F: Fs>(table: &Table<F>, reply: Reply, made: vfs::Result<(Attr, u64)>) {
    match table.vouch(made) {
        Ok((attr, handle)) => {
            if !reply.created(&entry_of(table, &attr), handle, FILE_FLAGS) {
                table.release(handle).await;
                table.forget(vec![(table.number(attr.ino).0, 1)]).await;
            }
        }
        Err(error) => reply.error(errno(error)),
    }
}

fn reply_attributes<F: Fs>(table: &Table<F>, reply: Reply, node: NodeId, result: vfs::Result<Attr>) {
    match table.vouch(result) {
        Ok(attr) => reply.attributes(&attributes_of(node, &attr), table.lifetime(&attr)),
        Err(error) => reply.error(errno(error)),
    }
}

fn reply_empty<F: Fs>(table: &Table<F>, reply: Reply, result: vfs::Result<()>) {
    match table.vouch(result) {
        Ok(()) => reply.ok(),
        Err(error) => reply.error(errno(error)),
    }
}

/// Answers with a value, or with its length where the caller has no room yet.
fn reply_value(reply: Reply, bytes_max: u32, result: vfs::Result<impl AsRef<[u8]>>) {
    match result {
        Ok(value) if bytes_max == 0 => reply.count(value.as_ref().len() as u32),
        Ok(value) if value.as_ref().len() > bytes_max as usize => reply.error(Errno::RANGE),
        Ok(value) => reply.bytes(value.as_ref()),
        Err(error) => reply.error(errno(error)),
    }
}

impl<F: Fs> Front<F> {
    /// A job that is finished once it has begun.
    fn submit<T>(&self, reply: Reply, job: impl FnOnce(Rc<Table<F>>, Reply) -> T + Send + 'static)
    where
        T: Future<Output = ()> + 'static,
    {
        self.submit_as(Turn::Own, reply, job);
    }

    fn submit_as<T>(
        &self,
        turn: Turn,
        reply: Reply,
        job: impl FnOnce(Rc<Table<F>>, Reply) -> T + Send + 'static,
    ) where
        T: Future<Output = ()> + 'static,
    {
        // After the end of the world the job is dropped, which answers.
        self.queue.send(Message::Job(turn, Self::job(reply, job)));
    }

    fn job<T>(reply: Reply, job: impl FnOnce(Rc<Table<F>>, Reply) -> T + Send + 'static) -> Job<F>
    where
        T: Future<Output = ()> + 'static,
    {
        Box::new(move |table| {
            Box::pin(async move {
                // A thread that was killed before its turn wants nothing any more.
                if reply.is_awaited() {
                    job(table, reply).await;
                }
            })
        })
    }

    /// A reply to a change that the kernel applies to what it keeps when it sees the answer. If the thread was killed by then, it sees
    /// none, and is told.
    fn known_to_kernel(&self, node: NodeId, stale: Stale, mut reply: Reply) -> Reply {
        let teller = self.teller.clone();
        reply.or_unheard(move || teller.tell(node, stale, || ()));
        reply
    }

    fn set_attributes(&self, node: NodeId, set: SetAttributes, reply: Reply) {
        let SetAttributes { mode, uid, gid, size, ends_set_id, handle, .. } = set;
        let ctime = match set.ctime {
            Some(When::At(seconds, nanos)) => Some(Timestamp { seconds, nanos }),
            _ => None,
        };
        let changes = SetAttr { mode: mode.map(permissions), uid, gid, size, ctime, ..SetAttr::default() };
        let (atime, mtime) = (set_time(set.atime), set_time(set.mtime));
        let stale = if size.is_some() { Stale::Pages } else { Stale::Attributes };
        let reply = self.known_to_kernel(node, stale, reply);
        self.submit(reply, move |table, reply| async move {
            let paths = || (table.path(node), None);
            let work = async {
                // Not by one from before a power cut.
                if let Some(handle) = handle {
                    table.check_open(handle)?;
                }
                if ends_set_id && mode.is_none() {
                    table.end_set_id(node).await?;
                }
                table.set_attr(node, changes, atime, mtime).await
            };
            let result = match size {
                Some(_) => table.around(Operation::Truncate, paths, work).await,
                None => work.await,
            };
            reply_attributes(&table, reply, node, result);
        });
    }

    fn make(&self, creds: Creds, dir: NodeId, name: &[u8], kind: Option<Kind>, mode: u32, reply: Reply) {
        let Some(kind) = kind else { return reply.error(Errno::INVAL) };
        let name = name.to_owned();
        self.submit(reply, move |table, reply| async move {
            let made = table.make(&creds, dir, &name, kind, permissions(mode)).await;
            reply_entry(&table, reply, made).await;
        });
    }

    fn symlink(&self, creds: Creds, dir: NodeId, name: &[u8], target: &[u8], reply: Reply) {
        let (name, target) = (name.to_owned(), target.to_owned());
        self.submit(reply, move |table, reply| async move {
            let paths = || (String::from_utf8_lossy(&target).into_owned(), Some(table.path_in(dir, &name)));
            let work = table.symlink(&creds, dir, &name, &target);
            let made = table.around(Operation::Symlink, paths, work).await;
            reply_entry(&table, reply, made).await;
        });
    }

    fn unlink(&self, creds: Creds, dir: NodeId, name: &[u8], reply: Reply) {
        let name = name.to_owned();
        self.submit(reply, move |table, reply| async move {
            let paths = || (table.path_in(dir, &name), None);
            let work = table.remove(&creds, dir, &name, false);
            let result = table.around(Operation::Unlink, paths, work).await;
            reply_empty(&table, reply, result);
        });
    }

    fn remove_directory(&self, creds: Creds, dir: NodeId, name: &[u8], reply: Reply) {
        let name = name.to_owned();
        self.submit(reply, move |table, reply| async move {
            let result = table.remove(&creds, dir, &name, true).await;
            reply_empty(&table, reply, result);
        });
    }

    fn rename(&self, creds: Creds, from: (NodeId, &[u8]), to: (NodeId, &[u8]), flags: u32, reply: Reply) {
        let flags = RenameFlags::from_bits_retain(flags);
        let mode = match flags {
            _ if flags.is_empty() => RenameMode::Replace,
            RenameFlags::NOREPLACE => RenameMode::NoReplace,
            RenameFlags::EXCHANGE => RenameMode::Exchange,
            _ => return reply.error(Errno::INVAL),
        };
        let ((dir, new_dir), (name, new_name)) = ((from.0, to.0), (from.1.to_owned(), to.1.to_owned()));
        self.submit(reply, move |table, reply| async move {
            let paths = || (table.path_in(dir, &name), Some(table.path_in(new_dir, &new_name)));
            let work = table.rename(&creds, (dir, &name), (new_dir, &new_name), mode);
            let result = table.around(Operation::Rename, paths, work).await;
            reply_empty(&table, reply, result);
        });
    }

    fn link(&self, creds: Creds, of: NodeId, dir: NodeId, name: &[u8], reply: Reply) {
        let name = name.to_owned();
        self.submit(reply, move |table, reply| async move {
            let paths = || (table.path(of), Some(table.path_in(dir, &name)));
            let work = table.link(&creds, of, dir, &name);
            let linked = table.around(Operation::Link, paths, work).await;
            reply_entry(&table, reply, linked).await;
        });
    }

    fn open(&self, node: NodeId, flags: u32, reply: Reply) {
        self.submit(reply, move |table, reply| async move {
            let work = table.open(node, how(flags));
            let opened = table.around(Operation::Open, || (table.path(node), None), work).await;
            reply_opened(&table, reply, opened, FILE_FLAGS).await;
        });
    }

    fn create(&self, creds: Creds, dir: NodeId, name: &[u8], mode: u32, flags: u32, reply: Reply) {
        let name = name.to_owned();
        self.submit(reply, move |table, reply| async move {
            let paths = || (table.path_in(dir, &name), None);
            let as_asked = (has(flags, OFlags::EXCL), how(flags));
            let work = table.create(&creds, dir, &name, permissions(mode), as_asked);
            let made = table.around(Operation::Create, paths, work).await;
            reply_created(&table, reply, made).await;
        });
    }

    fn make_nameless(&self, creds: Creds, dir: NodeId, mode: u32, flags: u32, reply: Reply) {
        self.submit(reply, move |table, reply| async move {
            let as_asked = (has(flags, OFlags::EXCL), how(flags));
            let made = table.make_nameless(&creds, dir, permissions(mode), as_asked).await;
            reply_created(&table, reply, made).await;
        });
    }

    /// Finds data or a hole. The kernel has not handed on what it keeps of the file, so it is told to drop its pages first: for that it
    /// writes them out and waits for us, so another thread tells it.
    fn seek(&self, node: NodeId, handle: u64, offset: u64, whence: u32, reply: Reply) {
        let to = match whence {
            SEEK_DATA => Seek::Data(offset),
            SEEK_HOLE => Seek::Hole(offset),
            _ => return reply.error(Errno::INVAL),
        };
        let job = Self::job(reply, move |table, reply| async move {
            match table.seek(handle, to).await {
                Ok(at) => reply.place(at),
                Err(error) => reply.error(errno(error)),
            }
        });
        let later = self.later.clone();
        self.teller.tell(node, Stale::Pages, move || later.send(Message::Job(Turn::Own, job)));
    }

    fn read(&self, node: NodeId, handle: u64, offset: u64, bytes: u32, flags: u32, reply: Reply) {
        self.submit(reply, move |table, reply| async move {
            let mut bytes = vec![0; bytes as usize];
            let work = table.read(handle, offset, &mut bytes, has(flags, OFlags::DIRECT));
            match table.around(Operation::Read, || (table.path(node), None), work).await {
                Ok(read) => reply.bytes(&bytes[..read]),
                Err(error) => reply.error(errno(error)),
            }
        });
    }

    fn write(
        &self,
        node: NodeId,
        handle: u64,
        (offset, data): (u64, &[u8]),
        (from, ends_set_id): (From, bool),
        reply: Reply,
    ) {
        let (data, teller) = (data.to_owned(), self.teller.clone());
        // Linux continues a direct write that was done in part as a buffered one, and keeps the page locked that this changes in part: the
        // answer cannot wait for a notice then. After a direct write of such a length Linux drops pages itself, unless it is asynchronous.
        let is_partial = !(offset | data.len() as u64).is_multiple_of(PAGE_BYTES as u64);
        let reply = if from == From::Pages { reply } else { self.known_to_kernel(node, Stale::Pages, reply) };
        self.submit(reply, move |table, reply| async move {
            if table.write_fault(node, offset, &data).await {
                return reply.count(data.len() as u32);
            }
            let work = table.write(handle, offset, &data, from, ends_set_id);
            let result = table.around(Operation::Write, || (table.path(node), None), work).await;
            match table.vouch(result) {
                Ok((written, None)) => reply.count(written),
                // The thread that drops pages waits for this answer; a sync waits for the notice.
                Ok((written, Some(stale)))
                    if from == From::Pages || is_partial && stale != Stale::Attributes =>
                {
                    teller.tell(node, stale, || ());
                    reply.count(written);
                }
                Ok((written, Some(stale))) => teller.tell(node, stale, move || reply.count(written)),
                Err(error) => reply.error(errno(error)),
            }
        });
    }

    fn release(&self, handle: u64, reply: Reply) {
        self.submit_as(Turn::Tidies, reply, move |table, reply| async move {
            table.release(handle).await;
            reply.ok();
        });
    }

    fn sync(&self, node: NodeId, handle: u64, of_data: bool, reply: Reply) {
        let kind = if of_data { SyncKind::Data } else { SyncKind::All };
        let teller = self.teller.clone();
        self.submit(reply, move |table, reply| async move {
            let work = table.sync(handle, kind);
            let result = table.around(Operation::Fsync, || (table.path(node), None), work).await;
            match result.is_ok() && table.is_being_told(node) {
                false => reply_empty(&table, reply, result),
                true => match table.vouch(result) {
                    Ok(()) => teller.tell(node, Stale::Attributes, move || reply.ok()),
                    Err(error) => reply.error(errno(error)),
                },
            }
        });
    }

    fn open_directory(&self, node: NodeId, reply: Reply) {
        self.submit(reply, move |table, reply| async move {
            let opened = table.open(node, How { reads: true, writes: false, direct: false }).await;
            reply_opened(&table, reply, opened, OpenFlags::default()).await;
        });
    }

    fn list(&self, dir: NodeId, handle: u64, offset: u64, mut listing: Listing, reply: Reply) {
        self.submit(reply, move |table, reply| async move {
            let entries = match table.listing(handle, offset == 0).await {
                Ok(entries) => entries,
                Err(error) => return reply.error(errno(error)),
            };
            let above = table.above(dir).await.unwrap_or(dir);
            let dots = [(dir, "."), (above, "..")];
            for (at, (node, name)) in (0..).zip(dots).skip(offset as usize) {
                if !listing.add(node, at + 1, type_of(Kind::Directory).0, name.as_bytes()) {
                    listing.send(reply);
                    return;
                }
            }
            let skipped = (offset as usize).saturating_sub(dots.len());
            for (at, entry) in (3..).zip(entries.iter()).skip(skipped) {
                if !listing.add(table.number(entry.ino), at, type_of(entry.kind).0, &entry.name) {
                    break;
                }
            }
            listing.send(reply);
        });
    }

    fn list_with_attributes(
        &self,
        dir: NodeId,
        handle: u64,
        offset: u64,
        mut listing: Listing,
        reply: Reply,
    ) {
        self.submit(reply, move |table, reply| async move {
            let entries = match table.listing(handle, offset == 0).await {
                Ok(entries) => entries,
                Err(error) => return reply.error(errno(error)),
            };
            let own = match table.attr(dir).await {
                Ok(attr) => attr,
                Err(error) => return reply.error(errno(error)),
            };
            let above = table.above(dir).await.unwrap_or(dir);
            let dots = [(dir, "."), (above, "..")];
            for (at, (node, name)) in (0..).zip(dots).skip(offset as usize) {
                // The kernel takes no more than the number from these.
                let entry = Entry { attributes: attributes_of(node, &own), ..Entry::default() };
                if !listing.add_entry(&entry, at + 1, name.as_bytes()) {
                    listing.send(reply);
                    return;
                }
            }
            let skipped = (offset as usize).saturating_sub(dots.len());
            let mut all_told = Vec::new();
            for (at, entry) in (3..).zip(entries.iter()).skip(skipped) {
                let attr = match table.entry(dir, entry).await {
                    Ok(attr) => attr,
                    Err(vfs::Errno::ENOENT) => continue,
                    Err(_) => {
                        let (node, mode) = (table.number(entry.ino), type_of(entry.kind).0);
                        match listing.add_unread(node, at, mode, &entry.name) {
                            true => continue,
                            false => break,
                        }
                    }
                };
                // Its name was not looked up yet.
                let told = Entry { name_valid: LISTED_TTL, ..entry_of(&table, &attr) };
                if !listing.add_entry(&told, at, &entry.name) {
                    table.forget(vec![(told.attributes.node, 1)]).await;
                    break;
                }
                all_told.push((told.attributes.node, 1));
            }
            if !listing.send(reply) {
                table.forget(all_told).await;
            }
        });
    }

    fn statistics(&self, reply: Reply) {
        self.submit(reply, move |table, reply| async move {
            match table.statfs().await {
                Ok(of) => reply.statistics(&Statistics {
                    blocks: of.pages,
                    blocks_free: of.pages_free,
                    blocks_available: of.pages_available,
                    inodes: of.inodes,
                    inodes_free: of.inodes_free,
                    block_bytes: PAGE_BYTES as u32,
                    name_bytes_max: table.vfs().limits().name_bytes_max as u32,
                }),
                Err(error) => reply.error(errno(error)),
            }
        });
    }

    fn set_xattr(
        &self,
        node: NodeId,
        (name, value): (&[u8], &[u8]),
        flags: u32,
        ends_set_group_id: bool,
        reply: Reply,
    ) {
        let mode = match XattrFlags::from_bits_retain(flags) {
            flags if flags.is_empty() => XattrMode::Set,
            XattrFlags::CREATE => XattrMode::Create,
            XattrFlags::REPLACE => XattrMode::Replace,
            _ => return reply.error(Errno::INVAL),
        };
        let (name, value) = (name.to_owned(), value.to_owned());
        self.submit(reply, move |table, reply| async move {
            let result = table.set_xattr(node, (&name, &value), mode, ends_set_group_id).await;
            reply_empty(&table, reply, result);
        });
    }

    fn xattr(&self, node: NodeId, name: &[u8], bytes_max: u32, reply: Reply) {
        let name = name.to_owned();
        self.submit(reply, move |table, reply| async move {
            reply_value(reply, bytes_max, table.xattr(node, &name).await);
        });
    }

    fn remove_xattr(&self, node: NodeId, name: &[u8], reply: Reply) {
        let name = name.to_owned();
        self.submit(reply, move |table, reply| async move {
            let result = table.remove_xattr(node, &name).await;
            reply_empty(&table, reply, result);
        });
    }

    /// Linux leaves it to the file system to clear set-ID bits, and does not say whether the caller may keep them (CAP_FSETID): only root
    /// may.
    fn allocate(&self, uid: u32, node: NodeId, handle: u64, range: (u64, u64), mode: u32, reply: Reply) {
        let mode = FallocateFlags::from_bits_retain(mode);
        let keep_size = mode.contains(FallocateFlags::KEEP_SIZE);
        let how = match mode - FallocateFlags::KEEP_SIZE {
            rest if rest.is_empty() => Room::Reserved { keep_size },
            FallocateFlags::PUNCH_HOLE if keep_size => Room::Hole,
            FallocateFlags::ZERO_RANGE => Room::Zeros { keep_size },
            _ => return reply.error(Errno::OPNOTSUPP),
        };
        let teller = self.teller.clone();
        let reply = self.known_to_kernel(node, Stale::Pages, reply);
        self.submit(reply, move |table, reply| async move {
            let result = table.allocate(handle, range, how, uid != 0).await;
            match table.vouch(result) {
                Ok(None) => reply.ok(),
                Ok(Some(stale)) => teller.tell(node, stale, move || reply.ok()),
                Err(error) => reply.error(errno(error)),
            }
        });
    }

    /// By SHARE, or not at all: then Linux copies.
    fn copy(
        &self,
        uid: u32,
        (from, offset): (u64, u64),
        (target, to, to_offset): (NodeId, u64, u64),
        (bytes, flags): (u64, u64),
        reply: Reply,
    ) {
        if flags != 0 {
            return reply.error(Errno::INVAL);
        }
        let teller = self.teller.clone();
        let reply = self.known_to_kernel(target, Stale::Pages, reply);
        self.submit(reply, move |table, reply| async move {
            let result = table.copy((from, offset), (to, to_offset), bytes, uid != 0).await;
            match table.vouch(result) {
                Ok((copied, None)) => reply.count(copied),
                Ok((copied, Some(stale))) => teller.tell(target, stale, move || reply.count(copied)),
                Err(error) => reply.error(errno(error)),
            }
        });
    }

    /// The kernel has pages of both files that are not theirs any more. Of what it keeps itself it hands on both files' before.
    fn exchange(&self, (uid, thread): (u32, u32), (node, handle): (NodeId, u64), data: &[u8], reply: Reply) {
        let wanted = match Exchange::read(data) {
            Ok(wanted) => wanted,
            Err(error) => return reply.error(error),
        };
        let other = match wanted.first_file(thread, &self.directory) {
            Ok(other) => other,
            Err(error) => return reply.error(error),
        };
        let tell_both = move |teller: Teller, then: Box<dyn FnOnce() + Send>| {
            let next = teller.clone();
            teller.tell(node, Stale::Pages, move || next.tell(other, Stale::Pages, then));
        };
        let teller = self.teller.clone();
        let job = Self::job(reply, move |table, reply| async move {
            let result = table.exchange(handle, other, &wanted, uid != 0).await;
            match table.vouch(result) {
                Ok(()) => tell_both(teller, Box::new(move || reply.ioctl(0))),
                Err(error) => reply.error(errno(error)),
            }
        });
        let later = self.later.clone();
        match self.writes_back {
            true => {
                tell_both(self.teller.clone(), Box::new(move || later.send(Message::Job(Turn::Own, job))))
            }
            false => self.queue.send(Message::Job(Turn::Own, job)),
        }
    }

    fn ioctl(&self, node: NodeId, handle: u64, (command, data): (u32, &[u8]), reply: Reply) {
        let wish = match command {
            IOCTL_FBARRIER => Wish::Barrier(Barrier::All),
            IOCTL_FDATABARRIER => Wish::Barrier(Barrier::Data),
            IOCTL_ATOMIC => Wish::Atomic(Until::Close),
            IOCTL_FEATURES => Wish::Features,
            IOCTL_START => Wish::Atomic(Until::Commit),
            IOCTL_EACH_WRITE => Wish::Atomic(Until::Written),
            IOCTL_COMMIT => Wish::Commit,
            IOCTL_ABORT | IOCTL_ABORT_STARTED => Wish::Abort,
            IOCTL_SYNCV => match set_of(data) {
                Some((files, kind)) => Wish::Sync(files, kind),
                None => return reply.error(Errno::INVAL),
            },
            _ => return reply.error(Errno::NOTTY),
        };
        let (teller, writes_back) = (self.teller.clone(), self.writes_back);
        // Programs that know nothing of us do not make the kernel hand on what it keeps; after an abort that would be written.
        let hands_on = writes_back
            && matches!(wish, Wish::Commit | Wish::Abort | Wish::Atomic(Until::Commit | Until::Written));
        let job = Self::job(reply, move |table, reply| async move {
            let is_abort = matches!(wish, Wish::Abort);
            let result = match wish {
                Wish::Barrier(kind) => table.barrier(handle, kind).await,
                Wish::Features if table.has_sets() => return reply.ioctl_number(FEATURE_ATOMIC_WRITE),
                Wish::Features => return reply.error(Errno::NOTTY),
                // The program keeps its own journal.
                Wish::Atomic(Until::Commit | Until::Written) if !table.has_sets() => {
                    return reply.error(Errno::NOTTY);
                }
                // The kernel may hand on half of a write that it keeps.
                Wish::Atomic(Until::Written) if writes_back && !table.is_direct(handle) => {
                    return reply.error(Errno::NOTTY);
                }
                Wish::Atomic(until) => table.begin_atomic(handle, until).await,
                Wish::Commit => table.commit(handle).await,
                Wish::Abort => table.abort(handle).await,
                Wish::Sync(files, kind) => table.sync_set(&files, kind).await,
            };
            match table.vouch(result) {
                // The kernel has pages of what is gone, and the length.
                Ok(()) if is_abort => teller.tell(node, Stale::Pages, move || reply.ioctl(0)),
                Ok(()) => reply.ioctl(0),
                Err(error) => reply.error(errno(error)),
            }
        });
        let later = self.later.clone();
        match hands_on {
            true => self.teller.tell(node, Stale::Pages, move || later.send(Message::Job(Turn::Own, job))),
            false => self.queue.send(Message::Job(Turn::Own, job)),
        }
    }
}

/// What an ioctl asks for.
enum Wish {
    Barrier(Barrier),
    Features,
    Atomic(Until),
    Commit,
    Abort,
    Sync(Vec<NodeId>, SyncKind),
}

/// The files of a `struct flashweir_set`, and how much of them; `None` if it has too many.
fn set_of(data: &[u8]) -> Option<(Vec<NodeId>, SyncKind)> {
    let (count, rest) = data.split_first_chunk()?;
    let (of_data, rest) = rest.split_first_chunk()?;
    let count = u32::from_ne_bytes(*count) as usize;
    let kind = if u32::from_ne_bytes(*of_data) == 0 { SyncKind::All } else { SyncKind::Data };
    let (numbers, _) = rest.as_chunks();
    let numbers = numbers.get(..count)?.iter().map(|number| NodeId(u64::from_ne_bytes(*number)));
    Some((numbers.collect(), kind))
}

impl<F: Fs> Handler for Front<F> {
    fn forget(&self, forgotten: Vec<(u64, u64)>) {
        self.queue.send(Message::Forget(forgotten));
    }

    fn handle(&self, request: Request<'_>, reply: Reply) {
        let Request { node, uid, gid, thread, op, .. } = request;
        let creds = Creds::checked(uid, gid);
        match op {
            Op::Lookup { name } => {
                let name = name.to_owned();
                self.submit_as(Turn::Looks, reply, move |table, reply| async move {
                    let found = table.lookup(node, &name).await;
                    reply_entry(&table, reply, found).await;
                });
            }
            Op::GetAttributes => self.submit_as(Turn::Looks, reply, move |table, reply| async move {
                let attr = table.attr(node).await;
                reply_attributes(&table, reply, node, attr);
            }),
            Op::SetAttributes(set) => self.set_attributes(node, set, reply),
            Op::ReadLink => self.submit(reply, move |table, reply| async move {
                match table.target(node).await {
                    Ok(target) => reply.bytes(&target),
                    Err(error) => reply.error(errno(error)),
                }
            }),
            Op::Symlink { name, target } => self.symlink(creds, node, name, target, reply),
            Op::MakeNode { name, mode, umask, device } => {
                self.make(masked(creds, umask), node, name, kind_of(mode, device), mode, reply);
            }
            Op::MakeDirectory { name, mode, umask } => {
                self.make(masked(creds, umask), node, name, Some(Kind::Directory), mode, reply);
            }
            Op::Unlink { name } => self.unlink(creds, node, name, reply),
            Op::RemoveDirectory { name } => self.remove_directory(creds, node, name, reply),
            Op::Rename { name, new_dir, new_name, flags } => {
                self.rename(creds, (node, name), (new_dir, new_name), flags, reply);
            }
            Op::Link { of, name } => self.link(creds, of, node, name, reply),
            Op::Open { flags } => self.open(node, flags, reply),
            Op::Create { name, mode, umask, flags } => {
                self.create(masked(creds, umask), node, name, mode, flags, reply);
            }
            Op::TemporaryFile { mode, umask, flags } => {
                self.make_nameless(masked(creds, umask), node, mode, flags, reply);
            }
            Op::Seek { handle, offset, whence } => self.seek(node, handle, offset, whence, reply),
            Op::Read { handle, offset, bytes, flags } => {
                // The kernel has no more room than for a write.
                self.read(node, handle, offset, bytes.min(WRITE_BYTES_MAX), flags, reply);
            }
            Op::Write { handle, offset, data, flags, is_cached, ends_set_id } => {
                let from = match (is_cached, has(flags, OFlags::DIRECT)) {
                    (true, _) => From::Pages,
                    (false, true) => From::Direct,
                    (false, false) => From::Program,
                };
                self.write(node, handle, (offset, data), (from, ends_set_id), reply);
            }
            Op::Release { handle } => self.release(handle, reply),
            Op::Sync { handle, of_data } => self.sync(node, handle, of_data, reply),
            Op::OpenDirectory => self.open_directory(node, reply),
            Op::ReadDirectory { handle, offset, bytes, with_attributes } => {
                let listing = Listing::new(bytes.min(WRITE_BYTES_MAX));
                match with_attributes {
                    false => self.list(node, handle, offset, listing, reply),
                    true => self.list_with_attributes(node, handle, offset, listing, reply),
                }
            }
            Op::Statistics => self.statistics(reply),
            Op::SetXattr { name, value, flags, ends_set_group_id } => {
                self.set_xattr(node, (name, value), flags, ends_set_group_id, reply);
            }
            Op::Xattr { name, bytes } => self.xattr(node, name, bytes, reply),
            Op::XattrNames { bytes } => self.submit(reply, move |table, reply| async move {
                reply_value(reply, bytes, table.xattr_names(node).await);
            }),
            Op::RemoveXattr { name } => self.remove_xattr(node, name, reply),
            Op::Allocate { handle, offset, bytes, mode } => {
                self.allocate(uid, node, handle, (offset, bytes), mode, reply);
            }
            Op::Copy { handle, offset, target, to_handle, to_offset, bytes, flags } => {
                self.copy(uid, (handle, offset), (target, to_handle, to_offset), (bytes, flags), reply);
            }
            Op::Ioctl { handle, command: IOCTL_EXCHANGE, data } => {
                self.exchange((uid, thread), (node, handle), data, reply);
            }
            Op::Ioctl { handle, command, data } => self.ioctl(node, handle, (command, data), reply),
            Op::Destroy => reply.ok(),
            // Closing a descriptor makes nothing durable. The kernel does not ask again for what is not there.
            Op::Flush | Op::Unknown(_) => {
                reply.error(Errno::NOSYS);
            }
            Op::Init { .. } | Op::Forget(_) | Op::Interrupt { .. } => reply.error(Errno::IO),
        }
    }
}
