//! The kernel's view of the mounted file system: inodes by number, with the number of times that the kernel was told of each, and open
//! files.
//!
//! Invariants:
//! 1. An inode that the kernel knows is kept: it is not freed, and its number not used for another.
//! 2. The kernel calls the root 1, whatever its number is; no format gives that number to anything else.
//! 3. The numbers of open files go on after a power cut, so that one from before it is none of today's.
//! 4. A listing of a directory is taken when its reading begins; places in it are indexes, so no entry is returned twice or left out.

use super::exchange::Exchange;
use super::kernel::{NodeId, Stale};
use super::lazyfs::Faults;
use super::recorder::Recorder;
use flashweir_crash::recorded::{Call, Room, Step};
use flashweir_fs::vfs::{
    Access, AclKind, Attr, Barrier, Cookie, Creds, DirEntry, Errno, Event, File, Fs, Ino, Kept, Kind,
    OpenFlags, RenameMode, Result, Seek, SetAttr, SetTime, Sink, Source, StatFs, SyncKind, Vfs, XattrMode,
};
use flashweir_sim::stack::Port;
use std::cell::{Cell, RefCell};
use std::collections::{BTreeMap, BTreeSet};
use std::future::Future;
use std::ops::Deref;
use std::rc::Rc;
use std::time::Duration;

/// Bytes of a page.
const PAGE: u64 = 4096;

/// When the power fails because of a fault.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Due {
    /// Now.
    Now,
    /// Before the next request.
    Next,
}

/// An entry of the kernel's cache of names: the directory, by the kernel's number, and the name.
pub(super) type Name = (u64, Box<[u8]>);

/// The kernel's knowledge of an inode.
#[derive(Clone, Debug, Default)]
pub(super) struct Told {
    /// Number of times that the kernel was told of it; the kernel says how many it forgets.
    pub(super) lookups: u64,
    pub(super) generation: u32,
    /// Names under which the kernel knows it.
    pub(super) names: BTreeSet<Name>,
}

pub(super) struct Node<F: Fs> {
    pub(super) told: Told,
    /// `None` if a power cut took the inode.
    kept: Option<Kept<F>>,
    keeps: Keeps,
}

impl<F: Fs> Node<F> {
    fn new(told: Told, kept: Option<Kept<F>>) -> Self {
        Self { told, kept, keeps: Keeps::default() }
    }
}

/// Parts of an inode that the kernel may cache.
#[derive(Clone, Copy, Debug, Default)]
struct Keeps {
    /// Pages that it has read, or has written to us out of its cache. Of a page that a program has just filled it is not known
    /// yet, but the kernel writes it to us before it begins a direct write to the file.
    pages: bool,
    /// Attributes, for as long as the kernel likes.
    attributes: bool,
    /// Whether a notice that they are stale is under way.
    is_being_told: bool,
    /// Number of files that are open without O_DIRECT.
    buffered_files: u32,
}

/// Time for which the kernel may cache attributes that change only by its own requests: then it drops them by itself, or is told.
const ATTRS_TTL: Duration = Duration::from_secs(3600);

/// The same for a file whose pages wait to be written, if the kernel keeps writes: it reads attributes before each write.
const UNSETTLED_TTL: Duration = Duration::from_secs(1);

/// A file that a program has open.
pub(super) struct Open<F: Fs> {
    number: NodeId,
    how: How,
    file: File<F>,
    /// The same past the page cache, if it was opened with O_DIRECT.
    direct: Option<File<F>>,
    /// The same as an atomic file, once the program has asked for that.
    atomic: RefCell<Option<Withholding<F>>>,
    /// Whether a part of what it has written since its start is lost, so that it cannot commit.
    is_torn: Cell<bool>,
    /// Its entries, once they were read.
    listing: RefCell<Option<Rc<[DirEntry]>>>,
    /// Number of tasks that work on it.
    uses: Cell<u32>,
    /// One of them has ended.
    unused: Event,
    /// The kernel has closed it, and will not do that again.
    is_closing: Cell<bool>,
}

/// An open file for as long as a task works on it, which may be longer than the process lives: until then it is not closed.
struct Use<F: Fs>(Rc<Open<F>>);

impl<F: Fs> Use<F> {
    fn of(open: &Rc<Open<F>>) -> Self {
        open.uses.set(open.uses.get() + 1);
        Self(Rc::clone(open))
    }
}

impl<F: Fs> Deref for Use<F> {
    type Target = Open<F>;

    fn deref(&self) -> &Open<F> {
        &self.0
    }
}

impl<F: Fs> Drop for Use<F> {
    fn drop(&mut self) {
        self.0.uses.set(self.0.uses.get() - 1);
        self.0.unused.notify();
    }
}

/// A file that is open as atomic.
struct Withholding<F: Fs> {
    /// Its number in a recording.
    number: u64,
    file: Rc<File<F>>,
    until: Until,
}

impl<F: Fs> Clone for Withholding<F> {
    fn clone(&self) -> Self {
        Self { file: Rc::clone(&self.file), ..*self }
    }
}

impl<F: Fs> Open<F> {
    fn atomic(&self) -> Option<Withholding<F>> {
        self.atomic.borrow().clone()
    }

    fn until(&self) -> Option<Until> {
        self.atomic.borrow().as_ref().map(|atomic| atomic.until)
    }
}

/// What ends the withholding of a file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Until {
    /// A sync or an abort releases or forgets what is withheld; the file stays atomic.
    Close,
    /// A commit or an abort, and closing is an abort: F2FS's atomic writes (share §10.4).
    Commit,
    /// Each write is a set of its own (share §10.2).
    Written,
}

/// Source of the bytes of a write.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum From {
    /// From a program, which waits; the kernel puts them into its pages, too.
    Program,
    /// From a program that wrote with O_DIRECT.
    Direct,
    /// Out of the kernel's pages.
    Pages,
}

/// How a program opens a file.
#[derive(Clone, Copy, Debug)]
pub(super) struct How {
    pub(super) reads: bool,
    pub(super) writes: bool,
    pub(super) direct: bool,
}

/// See the module.
pub(super) struct Table<F: Fs> {
    vfs: Vfs<F>,
    port: Port,
    pub(super) nodes: RefCell<BTreeMap<u64, Node<F>>>,
    /// The inode of each name that the kernel was told of since the last cut: the names of all [`Told`].
    named: RefCell<BTreeMap<Name, u64>>,
    files: RefCell<BTreeMap<u64, Rc<Open<F>>>>,
    next_file: Cell<u64>,
    /// Number of power cuts so far: numbers from before one of them are of another generation.
    cuts: u32,
    /// Faults that a test rig for LazyFS has asked for.
    pub(super) faults: RefCell<Faults>,
    pub(super) crash: Cell<Option<Due>>,
    /// Recorder of changes, if there is one.
    recorder: Option<Recorder>,
    /// Files with a change under way that is a set of its own.
    changing: RefCell<BTreeSet<Ino>>,
    /// One of them is over.
    changed: Event,
    /// Time for which the kernel may cache attributes of a file whose pages wait to be written.
    unsettled_ttl: Duration,
}

/// A file that a program has open, for the table after a cut.
#[derive(Clone, Copy, Debug)]
pub(super) struct OpenAs {
    number: u64,
    how: How,
    atomic: Option<Until>,
    /// Something that was written to it was withheld.
    has_withheld: bool,
}

/// A change to a file that is a set of its own: no other one is under way.
struct OwnSet<'a, F: Fs> {
    table: &'a Table<F>,
    ino: Ino,
}

impl<F: Fs> Drop for OwnSet<'_, F> {
    fn drop(&mut self) {
        self.table.changing.borrow_mut().remove(&self.ino);
        self.table.changed.notify();
    }
}

impl<F: Fs> Table<F> {
    /// A table with the root, and with the inodes that the kernel knew before a power cut and that still exist.
    pub(super) async fn new(
        vfs: Vfs<F>,
        port: Port,
        told: BTreeMap<u64, Told>,
        next_file: u64,
        cuts: u32,
    ) -> Result<Self> {
        let table = Self {
            vfs,
            port,
            nodes: RefCell::default(),
            named: RefCell::default(),
            files: RefCell::default(),
            next_file: Cell::new(next_file),
            cuts,
            faults: RefCell::default(),
            crash: Cell::default(),
            recorder: None,
            changing: RefCell::default(),
            changed: Event::default(),
            unsettled_ttl: Duration::ZERO,
        };
        for (number, told) in told.into_iter().filter(|(number, _)| *number != NodeId::ROOT.0) {
            let is_same = |attr: Attr| attr.generation == told.generation;
            let kept = match table.vfs.attr_of(Ino(number)).await.is_ok_and(is_same) {
                true => table.vfs.keep(Ino(number)).await.ok(),
                false => None,
            };
            table.nodes.borrow_mut().insert(number, Node::new(told, kept));
        }
        let root = table.vfs.keep(table.vfs.root()).await?;
        let told = Told { lookups: 1, ..Told::default() };
        table.nodes.borrow_mut().insert(NodeId::ROOT.0, Node::new(told, Some(root)));
        Ok(table)
    }

    /// The same, for a kernel that keeps what programs write.
    pub(super) fn with_write_back(self, writes_back: bool) -> Self {
        let unsettled_ttl = if writes_back { UNSETTLED_TTL } else { Duration::ZERO };
        Self { unsettled_ttl, ..self }
    }

    /// The same, which notes what changes.
    pub(super) fn recorded(self, recorder: Option<Recorder>) -> Self {
        Self { recorder, ..self }
    }

    /// Runs a call, and notes it if it succeeds.
    async fn noted<T>(
        &self,
        work: impl Future<Output = Result<T>>,
        call: impl FnOnce(&T) -> (Call, String),
    ) -> Result<T> {
        let Some(recorder) = &self.recorder else { return work.await };
        let printed = recorder.printed();
        let result = work.await?;
        let (call, shown) = call(&result);
        recorder.note(Step { call, shown, printed, printed_after: recorder.printed() });
        Ok(result)
    }

    /// A path for messages.
    fn shown(&self, number: NodeId) -> String {
        let path = self.path(number);
        if path.is_empty() { ".".into() } else { path.trim_start_matches('/').into() }
    }

    fn shown_in(&self, dir: NodeId, name: &[u8]) -> String {
        self.path_in(dir, name).trim_start_matches('/').into()
    }

    pub(super) fn vfs(&self) -> &Vfs<F> {
        &self.vfs
    }

    /// The kernel's knowledge, and the number of the next open file, for the table after a power cut.
    pub(super) fn told(&self) -> (BTreeMap<u64, Told>, u64) {
        let nodes = self.nodes.borrow();
        (nodes.iter().map(|(number, node)| (*number, node.told.clone())).collect(), self.next_file.get())
    }

    /// Closes all files and forgets all inodes.
    pub(super) async fn clear(&self) {
        let files = self.files.take();
        for open in files.into_values().filter_map(Rc::into_inner) {
            self.close(open).await;
        }
        let nodes = self.nodes.take();
        for kept in nodes.into_values().filter_map(|node| node.kept) {
            // An inode that could not be freed is freed by recovery.
            let _ = kept.end().await;
        }
    }

    /// The result, unless what the device writes did not reach its volume: then nothing is acknowledged.
    pub(super) fn vouch<T>(&self, result: Result<T>) -> Result<T> {
        match self.port.with_device(|device| device.store_error().is_some()) {
            true => Err(Errno::EIO),
            false => result,
        }
    }

    // Inodes.

    /// The number that the file system knows; `ESTALE` if a power cut took the inode.
    fn ino(&self, number: NodeId) -> Result<Ino> {
        let nodes = self.nodes.borrow();
        match nodes.get(&number.0) {
            Some(Node { kept: Some(_), .. }) if number == NodeId::ROOT => Ok(self.vfs.root()),
            Some(Node { kept: Some(_), .. }) => Ok(Ino(number.0)),
            _ => Err(Errno::ESTALE),
        }
    }

    /// The number that the kernel knows.
    pub(super) fn number(&self, ino: Ino) -> NodeId {
        if ino == self.vfs.root() { NodeId::ROOT } else { NodeId(ino.0) }
    }

    // What the kernel keeps of inodes.

    fn keeps<T>(&self, number: NodeId, change: impl FnOnce(&mut Keeps) -> T) -> Option<T> {
        self.nodes.borrow_mut().get_mut(&number.0).map(|node| change(&mut node.keeps))
    }

    /// Time for which the kernel may cache attributes that it gets now: short while pages of the file wait to be written, because its block
    /// count grows then without a request.
    pub(super) fn lifetime(&self, attr: &Attr) -> Duration {
        let lifetime = if self.vfs.is_settled(attr.ino) { ATTRS_TTL } else { self.unsettled_ttl };
        self.keeps(self.number(attr.ino), |keeps| keeps.attributes = lifetime > Duration::ZERO);
        lifetime
    }

    /// The kernel has read pages, or has written some out of its cache; the latter makes attributes stale that it believes.
    fn keeps_pages(&self, number: NodeId, has_written: bool) -> Option<Stale> {
        self.keeps(number, |keeps| {
            keeps.pages = true;
            let is_stale = has_written && std::mem::take(&mut keeps.attributes);
            keeps.is_being_told |= is_stale;
            is_stale.then_some(Stale::Attributes)
        })?
    }

    /// The data that the kernel has to drop before a write is answered.
    fn stale_after(&self, number: NodeId, direct: Option<(u64, u64)>, ended_set_id: bool) -> Option<Stale> {
        let pages = self.keeps(number, |keeps| match direct {
            Some((offset, bytes)) if keeps.pages && bytes > 0 => Some(match keeps.buffered_files {
                // They are not read any more.
                0 => {
                    keeps.pages = false;
                    Stale::Pages
                }
                _ => Stale::Range { offset, bytes },
            }),
            _ => None,
        });
        pages.flatten().or(ended_set_id.then_some(Stale::Attributes))
    }

    /// Whether the kernel is being notified about an inode: then a sync waits for that, too.
    pub(super) fn is_being_told(&self, number: NodeId) -> bool {
        self.keeps(number, |keeps| std::mem::take(&mut keeps.is_being_told)).unwrap_or(false)
    }

    /// The generation for the kernel. It changes with each power cut: descriptors from before become invalid.
    pub(super) fn generation(&self, attr: &Attr) -> u64 {
        u64::from(attr.generation.wrapping_add(self.cuts.wrapping_mul(0x9e37_79b9)))
    }

    /// The kernel is about to be told of an inode, under a name.
    async fn tell(&self, dir: NodeId, name: &[u8], attr: Attr) -> Result<Attr> {
        let number = self.number(attr.ino).0;
        let is_known = |node: &Node<F>| node.kept.is_some() && node.told.generation == attr.generation;
        let is_kept = number == NodeId::ROOT.0 || self.nodes.borrow().get(&number).is_some_and(is_known);
        let kept = match is_kept {
            true => None,
            false => Some(self.vfs.keep(attr.ino).await.map_err(|errno| match errno {
                // It was removed since it was found.
                Errno::ESTALE => Errno::ENOENT,
                errno => errno,
            })?),
        };
        let spare = {
            let mut nodes = self.nodes.borrow_mut();
            match nodes.get_mut(&number) {
                None if kept.is_none() => return Err(Errno::ENOENT),
                None => {
                    let told = Told { lookups: 1, generation: attr.generation, ..Told::default() };
                    nodes.insert(number, Node::new(told, kept));
                    None
                }
                Some(node) => {
                    node.told.lookups += 1;
                    node.told.generation = attr.generation;
                    match (&node.kept, kept) {
                        (None, kept) => {
                            node.kept = kept;
                            None
                        }
                        (Some(_), spare) => spare,
                    }
                }
            }
        };
        self.name(NodeId(number), (dir.0, name.into()));
        match spare {
            Some(spare) => spare.end().await.map(|()| attr),
            None => Ok(attr),
        }
    }

    /// The kernel has forgotten inodes: for each its number, and the count of lookups that it drops.
    pub(super) async fn forget(&self, forgotten: Vec<(u64, u64)>) {
        for (number, count) in forgotten {
            let kept = {
                let mut nodes = self.nodes.borrow_mut();
                let Some(node) = nodes.get_mut(&number) else { continue };
                node.told.lookups = node.told.lookups.saturating_sub(count);
                if node.told.lookups > 0 || number == NodeId::ROOT.0 {
                    continue;
                }
                nodes.remove(&number).and_then(|node| {
                    let mut named = self.named.borrow_mut();
                    for name in &node.told.names {
                        named.remove(name);
                    }
                    node.kept
                })
            };
            if let Some(kept) = kept {
                let forget = |(): &()| (Call::Forget { ino: Ino(number) }, "forget".into());
                // One that cannot be freed now is freed by recovery.
                let _ = self.noted(kept.end(), forget).await;
            }
        }
    }

    /// The kernel knows an inode under a name.
    fn name(&self, number: NodeId, name: Name) {
        let before = self.named.borrow_mut().insert(name.clone(), number.0);
        let mut nodes = self.nodes.borrow_mut();
        if let Some(other) =
            before.filter(|&before| before != number.0).and_then(|other| nodes.get_mut(&other))
        {
            other.told.names.remove(&name);
        }
        if let Some(node) = nodes.get_mut(&number.0) {
            node.told.names.insert(name);
        }
    }

    /// Removes a name; returns the inode that the kernel knew by it.
    fn unname(&self, name: &Name) -> Option<NodeId> {
        let number = self.named.borrow_mut().remove(name)?;
        if let Some(node) = self.nodes.borrow_mut().get_mut(&number) {
            node.told.names.remove(name);
        }
        Some(NodeId(number))
    }

    pub(super) async fn lookup(&self, dir: NodeId, name: &[u8]) -> Result<Attr> {
        let attr = self.vfs.lookup_name(self.ino(dir)?, name).await?;
        self.tell(dir, name, attr).await
    }

    pub(super) async fn attr(&self, number: NodeId) -> Result<Attr> {
        self.vfs.attr_of(self.ino(number)?).await
    }

    pub(super) async fn set_attr(
        &self,
        number: NodeId,
        changes: SetAttr,
        atime: SetTime,
        mtime: SetTime,
    ) -> Result<Attr> {
        let time = |set| match set {
            SetTime::Omit => None,
            SetTime::Now => Some(self.vfs.timestamp()),
            SetTime::At(time) => Some(time),
        };
        let changes = SetAttr { atime: time(atime), mtime: time(mtime), ..changes };
        let ino = self.ino(number)?;
        let own = if changes.size.is_some() { self.own_set(ino).await } else { None };
        let call = |_: &Attr| {
            let what = changes.size.map_or("attributes".into(), |size| format!("truncate to {size}"));
            (Call::SetAttr { ino, changes }, format!("{what} {}", self.shown(number)))
        };
        let set = self.noted(self.vfs.set_attr_of(ino, &changes), call).await;
        self.end_or_forget(own, set).await
    }

    /// Takes from a mode what lends the rights of owner and group; that of the group stays where the group may not execute, since
    /// it means something else there.
    ///
    /// Says whether there was something to take.
    pub(super) async fn end_set_id(&self, number: NodeId) -> Result<bool> {
        let attr = self.attr(number).await?;
        let mode = without_set_id(attr.mode);
        let ends = mode != attr.mode && attr.kind != Kind::Directory;
        if ends {
            let changes = SetAttr { mode: Some(mode), ..SetAttr::default() };
            self.set_attr(number, changes, SetTime::Omit, SetTime::Omit).await?;
        }
        Ok(ends)
    }

    pub(super) async fn target(&self, number: NodeId) -> Result<Box<[u8]>> {
        self.vfs.target_of(self.ino(number)?).await
    }

    // Names.

    pub(super) async fn make(
        &self,
        creds: &Creds,
        dir: NodeId,
        name: &[u8],
        kind: Kind,
        permissions: u16,
    ) -> Result<Attr> {
        let parent = self.ino(dir)?;
        let call = |attr: &Attr| {
            let (creds, made) = (creds.clone(), attr.ino);
            let what = if kind.is_dir() { "mkdir" } else { "create" };
            let call = Call::Make { creds, dir: parent, name: name.into(), kind, permissions, made };
            (call, format!("{what} {}", self.shown_in(dir, name)))
        };
        let attr = self.noted(self.vfs.make_node(creds, parent, name, kind, permissions), call).await?;
        self.tell(dir, name, attr).await
    }

    pub(super) async fn symlink(
        &self,
        creds: &Creds,
        dir: NodeId,
        name: &[u8],
        target: &[u8],
    ) -> Result<Attr> {
        let parent = self.ino(dir)?;
        let call = |attr: &Attr| {
            let (creds, made) = (creds.clone(), attr.ino);
            let call = Call::Symlink { creds, dir: parent, name: name.into(), target: target.into(), made };
            (call, format!("symlink {}", self.shown_in(dir, name)))
        };
        let attr = self.noted(self.vfs.make_symlink(creds, parent, name, target), call).await?;
        self.tell(dir, name, attr).await
    }

    pub(super) async fn link(&self, creds: &Creds, number: NodeId, dir: NodeId, name: &[u8]) -> Result<Attr> {
        let (ino, parent) = (self.ino(number)?, self.ino(dir)?);
        let call = |_: &Attr| {
            let call = Call::Link { creds: creds.clone(), ino, dir: parent, name: name.into() };
            (call, format!("link {} {}", self.shown(number), self.shown_in(dir, name)))
        };
        let attr = self.noted(self.vfs.link_name(creds, ino, parent, name), call).await?;
        self.tell(dir, name, attr).await
    }

    pub(super) async fn remove(&self, creds: &Creds, dir: NodeId, name: &[u8], of_dir: bool) -> Result<()> {
        let parent = self.ino(dir)?;
        let call = |(): &()| {
            let what = if of_dir { "rmdir" } else { "unlink" };
            let call = Call::Remove { creds: creds.clone(), dir: parent, name: name.into(), of_dir };
            (call, format!("{what} {}", self.shown_in(dir, name)))
        };
        self.noted(self.vfs.remove_name(creds, parent, name, of_dir), call).await?;
        self.unname(&(dir.0, name.into()));
        Ok(())
    }

    pub(super) async fn rename(
        &self,
        creds: &Creds,
        from: (NodeId, &[u8]),
        to: (NodeId, &[u8]),
        mode: RenameMode,
    ) -> Result<()> {
        let (from_dir, to_dir) = (self.ino(from.0)?, self.ino(to.0)?);
        let call = |(): &()| {
            let (old, new) = ((from_dir, from.1.into()), (to_dir, to.1.into()));
            let call = Call::Rename { creds: creds.clone(), from: old, to: new, mode };
            (call, format!("rename {} {}", self.shown_in(from.0, from.1), self.shown_in(to.0, to.1)))
        };
        self.noted(self.vfs.rename_name(creds, (from_dir, from.1), (to_dir, to.1), mode), call).await?;
        let (old, new): (Name, Name) = ((from.0.0, from.1.into()), (to.0.0, to.1.into()));
        let (moved, met) = (self.unname(&old), self.unname(&new));
        if let Some(moved) = moved {
            self.name(moved, new);
        }
        if let Some(met) = met.filter(|_| mode == RenameMode::Exchange) {
            self.name(met, old);
        }
        Ok(())
    }

    // Open files.

    fn file(&self, handle: u64) -> Result<Use<F>> {
        // One from before a power cut is none of ours.
        self.files.borrow().get(&handle).map(Use::of).ok_or(Errno::EIO)
    }

    /// Checks that a program has opened a file since the last power cut.
    pub(super) fn check_open(&self, handle: u64) -> Result<()> {
        self.file(handle).map(drop)
    }

    pub(super) async fn open(&self, number: NodeId, how: How) -> Result<u64> {
        let ino = self.ino(number)?;
        // The kernel reads what it is to change a part of, whatever the program may do.
        let access = if how.writes { Access::ReadWrite } else { Access::Read };
        let flags = OpenFlags { access, ..OpenFlags::default() };
        let creds = Creds::checked(0, 0);
        let file = self.vfs.open_inode(&creds, ino, flags).await?;
        let direct = match how.direct && file.kind().is_file() {
            true => match self.vfs.open_inode(&creds, ino, flags.direct()).await {
                Ok(direct) => Some(direct),
                Err(errno) => {
                    let _ = file.close().await;
                    return Err(errno);
                }
            },
            false => None,
        };
        let handle = self.next_file.get();
        self.next_file.set(handle + 1);
        let (atomic, is_torn, listing) = (RefCell::default(), Cell::new(false), RefCell::default());
        let (uses, unused, is_closing) = Default::default();
        let open = Open { number, how, file, direct, atomic, is_torn, listing, uses, unused, is_closing };
        if !open.how.direct {
            self.keeps(number, |keeps| keeps.buffered_files += 1);
        }
        self.files.borrow_mut().insert(handle, Rc::new(open));
        Ok(handle)
    }

    /// The open files, for [`Self::reopen`].
    pub(super) fn open_files(&self) -> BTreeMap<u64, OpenAs> {
        let files = self.files.borrow();
        files
            .iter()
            .filter(|(_, open)| !open.is_closing.get())
            .map(|(handle, open)| {
                let (number, how, atomic) = (open.number.0, open.how, open.until());
                let has_withheld = self.vfs.has_withheld(open.file.ino());
                (*handle, OpenAs { number, how, atomic, has_withheld })
            })
            .collect()
    }

    /// Opens files again that were open before a cut, under the same handles. Those that are gone answer EIO.
    pub(super) async fn reopen(&self, files: BTreeMap<u64, OpenAs>) {
        let next = self.next_file.get();
        for (handle, OpenAs { number, how, atomic, has_withheld }) in files {
            self.next_file.set(handle);
            if self.open(NodeId(number), how).await.is_ok()
                && let Some(until) = atomic
            {
                let _ = self.begin_atomic(handle, until).await;
                if let Ok(open) = self.file(handle) {
                    // What was withheld went with the cut.
                    open.is_torn.set(until == Until::Commit || until == Until::Close && has_withheld);
                }
            }
        }
        self.next_file.set(next);
    }

    /// Makes a file and opens it; one that is there is opened unless it must not be.
    pub(super) async fn create(
        &self,
        creds: &Creds,
        dir: NodeId,
        name: &[u8],
        permissions: u16,
        (exclusive, how): (bool, How),
    ) -> Result<(Attr, u64)> {
        let attr = match self.make(creds, dir, name, Kind::File, permissions).await {
            Err(Errno::EEXIST) if !exclusive => self.lookup(dir, name).await?,
            made => made?,
        };
        match self.open(self.number(attr.ino), how).await {
            Ok(handle) => Ok((attr, handle)),
            Err(errno) => {
                self.forget(vec![(self.number(attr.ino).0, 1)]).await;
                Err(errno)
            }
        }
    }

    /// Makes a file without a name and opens it; `exclusive`: it never gets one.
    pub(super) async fn make_nameless(
        &self,
        creds: &Creds,
        dir: NodeId,
        permissions: u16,
        (exclusive, how): (bool, How),
    ) -> Result<(Attr, u64)> {
        let parent = self.ino(dir)?;
        let flags = OpenFlags { access: Access::ReadWrite, exclusive, ..OpenFlags::default() };
        let work = async {
            let file = self.vfs.open_nameless_in(creds, parent, flags, permissions).await?;
            let attr = file.attr().await?;
            Ok((file, attr))
        };
        let call = |(_, attr): &(File<F>, Attr)| {
            let (creds, made) = (creds.clone(), attr.ino);
            let call = Call::MakeNameless { creds, dir: parent, permissions, exclusive, made };
            (call, format!("create without a name in {}", self.shown(dir)))
        };
        let (file, attr) = self.noted(work, call).await?;
        let number = self.number(attr.ino);
        let is_told = Cell::new(false);
        let opened = async {
            let kept = self.vfs.keep(attr.ino).await?;
            is_told.set(true);
            {
                let mut nodes = self.nodes.borrow_mut();
                // The kernel still has to forget what it knew of the number before a power cut.
                let gone = || Node::new(Told::default(), None);
                let node = nodes.entry(number.0).or_insert_with(gone);
                node.told.lookups += 1;
                node.told.generation = attr.generation;
                node.kept = Some(kept);
            }
            self.open(number, how).await
        };
        let mut opened = opened.await;
        if let (Ok(handle), Err(errno)) = (opened, file.close().await) {
            self.release(handle).await;
            opened = Err(errno);
        }
        // Of what fails the kernel learns nothing.
        if opened.is_err() && is_told.get() {
            self.forget(vec![(number.0, 1)]).await;
        }
        Ok((attr, opened?))
    }

    /// Data or a hole.
    pub(super) async fn seek(&self, handle: u64, to: Seek) -> Result<u64> {
        self.file(handle)?.file.seek(to).await
    }

    pub(super) async fn release(&self, handle: u64) {
        let open = self.files.borrow().get(&handle).cloned();
        let Some(open) = open else { return };
        open.is_closing.set(true);
        // A process that is killed leaves tasks that work on. What it withholds is withheld until they end.
        open.unused.until(|| open.uses.get() == 0).await;
        self.files.borrow_mut().remove(&handle);
        if let Some(open) = Rc::into_inner(open) {
            self.close(open).await;
        }
    }

    async fn close(&self, open: Open<F>) {
        if !open.how.direct {
            self.keeps(open.number, |keeps| keeps.buffered_files = keeps.buffered_files.saturating_sub(1));
        }
        if let Some(atomic) = open.atomic.take() {
            if atomic.until == Until::Commit {
                let _ = self.forget_withheld(&open, &atomic).await;
            }
            let _ = self.end(&open, atomic).await;
        }
        // An inode that cannot be freed now is freed by recovery.
        if let Some(direct) = open.direct {
            let _ = direct.close().await;
        }
        let _ = open.file.close().await;
    }

    /// Reads; `direct` goes past the page cache if the file was opened for that.
    pub(super) async fn read(
        &self,
        handle: u64,
        offset: u64,
        bytes: &mut [u8],
        direct: bool,
    ) -> Result<usize> {
        let open = self.file(handle)?;
        if !direct {
            self.keeps_pages(open.number, false);
        }
        let file = open.direct.as_ref().filter(|_| direct).unwrap_or(&open.file);
        file.pread(offset, Sink::bytes(bytes)).await.map(|read| read as usize)
    }

    /// Writes; returns the number of bytes, and what the kernel has to drop then.
    pub(super) async fn write(
        &self,
        handle: u64,
        offset: u64,
        bytes: &[u8],
        from: From,
        ends_set_id: bool,
    ) -> Result<(u32, Option<Stale>)> {
        let open = self.file(handle)?;
        let ended_set_id = ends_set_id && self.end_set_id(open.number).await?;
        let own = self.own_set(open.file.ino()).await;
        // What is larger than a set is written in part, as `write` may do; the kernel writes all of its pages at once.
        let most = if own.is_some() && from != From::Pages { self.set_bytes_max(offset) } else { usize::MAX };
        let bytes = &bytes[..bytes.len().min(most)];
        let direct = open.direct.as_ref().filter(|_| from == From::Direct);
        let file = direct.unwrap_or(&open.file);
        let write = async |done: usize| {
            let (offset, bytes) = (offset + done as u64, &bytes[done..]);
            let call = |written: &u64| {
                let (bytes, ino) = (bytes[..*written as usize].into(), open.file.ino());
                let shown = format!("write {} at {offset}, {written} bytes", self.shown(open.number));
                (Call::Write { ino, offset, bytes, direct: direct.is_some() }, shown)
            };
            self.noted(file.pwrite(offset, Source::bytes(bytes)), call).await
        };
        let mut written = write(0).await;
        // The kernel reads no count for its own pages: to it all of them are written. What stopped a part stops the rest, too, and says why.
        while let Ok(done) = written
            && from == From::Pages
            && done < bytes.len() as u64
        {
            written = write(done as usize).await.and_then(|more| match more {
                0 => Err(Errno::EIO),
                more => Ok(done + more),
            });
        }
        // A page could not be read whose rest is as it was. A part of a set is none.
        if own.is_some() && written.is_ok_and(|count| count < bytes.len() as u64) {
            written = Err(Errno::EIO);
        }
        let written = self.end_or_forget(own, written).await;
        // The program was told long ago that it has written this.
        if written.is_err() && from == From::Pages {
            let started = self.withholders(open.file.ino(), Until::Commit);
            started.iter().for_each(|started| started.is_torn.set(true));
        }
        let stale = match from {
            From::Pages => self.keeps_pages(open.number, true),
            // The kernel fills the pages that it has of the file as it writes.
            From::Program => {
                self.keeps_pages(open.number, false);
                self.stale_after(open.number, None, ended_set_id)
            }
            From::Direct => {
                let range = written.as_ref().map_or(0, |written| *written);
                self.stale_after(open.number, Some((offset, range)), ended_set_id)
            }
        };
        written.map(|written| (written as u32, stale))
    }

    pub(super) async fn sync(&self, handle: u64, kind: SyncKind) -> Result<()> {
        let open = self.file(handle)?;
        // What a program has started, only its commit releases.
        let releases = self.withholders(open.file.ino(), Until::Commit).is_empty();
        if releases {
            self.forget_torn(open.file.ino()).await?;
        }
        let call = |(): &()| {
            let what = if kind == SyncKind::Data { "fdatasync" } else { "fsync" };
            let ino = open.file.ino();
            (Call::Sync { ino, kind, releases }, format!("{what} {}", self.shown(open.number)))
        };
        self.noted(open.file.sync_as(kind, releases), call).await
    }

    pub(super) async fn barrier(&self, handle: u64, kind: Barrier) -> Result<()> {
        let open = self.file(handle)?;
        let releases = self.withholders(open.file.ino(), Until::Commit).is_empty();
        if releases {
            self.forget_torn(open.file.ino()).await?;
        }
        let call = |(): &()| {
            let what = if kind == Barrier::Data { "fdatabarrier" } else { "fbarrier" };
            let ino = open.file.ino();
            (Call::Barrier { ino, kind, releases }, format!("{what} {}", self.shown(open.number)))
        };
        self.noted(open.file.barrier_as(kind, releases), call).await
    }

    /// Copies by SHARE; returns the number of bytes, and what the kernel has to drop of the target, whose pages of the range it drops by
    /// itself. Where that cannot be, `EOPNOTSUPP`, and Linux reads and writes.
    pub(super) async fn copy(
        &self,
        (from, offset): (u64, u64),
        (to, to_offset): (u64, u64),
        bytes: u64,
        ends_set_id: bool,
    ) -> Result<(u32, Option<Stale>)> {
        if !self.vfs.fs().shares_pages() {
            return Err(Errno::EOPNOTSUPP);
        }
        let (source, target) = (self.file(from)?, self.file(to)?);
        let ended_set_id = ends_set_id && self.end_set_id(target.number).await?;
        let own = self.own_set(target.file.ino()).await;
        let bytes = if own.is_some() { bytes.min(self.set_bytes_max(to_offset) as u64) } else { bytes };
        let work = self.vfs.copy_range((&source.file, offset), (&target.file, to_offset), bytes);
        let call = |copied: &u64| {
            let (from, to) = ((source.file.ino(), offset), (target.file.ino(), to_offset));
            let (source, target) = (self.shown(source.number), self.shown(target.number));
            let shown = format!("copy {source} at {offset} to {target} at {to_offset}, {copied} bytes");
            (Call::Copy { from, to, bytes: *copied }, shown)
        };
        let copied = self.noted(work, call).await;
        let copied = self.end_or_forget(own, copied).await?;
        let stale = self.stale_after(target.number, None, ended_set_id);
        Ok((copied as u32, stale))
    }

    /// Exchanges ranges of this file and of another one; `ENOTTY` where that cannot be.
    pub(super) async fn exchange(
        &self,
        handle: u64,
        other: NodeId,
        wanted: &Exchange,
        ends_set_id: bool,
    ) -> Result<()> {
        if !self.has_sets() {
            return Err(Errno::ENOTTY);
        }
        let open = self.file(handle)?;
        if !open.how.reads || !open.how.writes {
            return Err(Errno::EBADF);
        }
        if ends_set_id {
            self.end_set_id(open.number).await?;
            self.end_set_id(other).await?;
        }
        let (creds, flags) = (Creds::checked(0, 0), OpenFlags::READ_WRITE);
        let own = self.vfs.open_inode(&creds, open.file.ino(), flags).await?;
        let first = match self.ino(other) {
            Ok(ino) => self.vfs.open_inode(&creds, ino, flags).await,
            Err(errno) => Err(errno),
        };
        let first = match first {
            Ok(first) => first,
            Err(errno) => return own.close().await.and(Err(errno)),
        };
        let exchanged = async {
            let left = [(&first, wanted.offset), (&own, wanted.own_offset)];
            let left = left.map(|(file, offset)| file.size().checked_sub(offset));
            let bytes = match (wanted.bytes, left) {
                (Some(bytes), _) => bytes,
                (None, [Some(first), Some(own)]) if first == own => own,
                (None, [Some(_), Some(_)]) => return Err(Errno::EOPNOTSUPP),
                (None, _) => return Err(Errno::EINVAL),
            };
            let work = self.vfs.exchange((&first, wanted.offset), (&own, wanted.own_offset), bytes);
            let call = |(): &()| {
                let (one, at) = ((first.ino(), wanted.offset), (own.ino(), wanted.own_offset));
                let (first, own) = (self.shown(other), self.shown(open.number));
                let shown = format!("exchange {own} at {} with {first} at {}, {bytes} bytes", at.1, one.1);
                (Call::Exchange { one, other: at, bytes }, shown)
            };
            self.noted(work, call).await?;
            if wanted.syncs {
                for (file, number) in [(&first, other), (&own, open.number)] {
                    let call = |(): &()| {
                        let call = Call::Sync { ino: file.ino(), kind: SyncKind::Data, releases: true };
                        (call, format!("fdatasync {}", self.shown(number)))
                    };
                    self.noted(file.sync(SyncKind::Data), call).await?;
                }
            }
            Ok(())
        };
        let exchanged = exchanged.await;
        let closed = first.close().await.and(own.close().await);
        exchanged.and(closed)
    }

    // Atomic files.

    /// Whether there are atomic files.
    pub(super) fn has_sets(&self) -> bool {
        self.vfs.fs().has_sets()
    }

    /// Whether a file is open with O_DIRECT.
    pub(super) fn is_direct(&self, handle: u64) -> bool {
        self.file(handle).is_ok_and(|open| open.how.direct)
    }

    /// What is written to the file is withheld from here on.
    pub(super) async fn begin_atomic(&self, handle: u64, until: Until) -> Result<()> {
        let open = self.file(handle)?;
        if open.atomic().is_some() {
            return Ok(());
        }
        if !open.how.writes {
            return Err(Errno::EBADF);
        }
        let number = self.next_file.get();
        self.next_file.set(number + 1);
        let (creds, flags) = (Creds::checked(0, 0), OpenFlags::READ_WRITE.atomic());
        let call = |_: &File<F>| {
            let call = Call::BeginAtomic { open: number, ino: open.file.ino() };
            (call, format!("start withholding {}", self.shown(open.number)))
        };
        let file = self.noted(self.vfs.open_inode(&creds, open.file.ino(), flags), call).await?;
        let atomic = Withholding { number, file: Rc::new(file), until };
        if open.atomic().is_some() {
            // Another thread was faster.
            return self.close_atomic(&open, atomic).await;
        }
        *open.atomic.borrow_mut() = Some(atomic);
        open.is_torn.set(false);
        Ok(())
    }

    /// The open files of an inode that withhold so.
    fn withholders(&self, ino: Ino, until: Until) -> Vec<Use<F>> {
        if !self.vfs.is_atomic(ino) {
            return Vec::new();
        }
        let files = self.files.borrow();
        let is_it = |open: &&Rc<Open<F>>| open.file.ino() == ino && open.until() == Some(until);
        files.values().filter(is_it).map(Use::of).collect()
    }

    /// Begins a change to a file whose changes are sets of their own, once no other one is under way, for [`Self::end_change`].
    async fn own_set(&self, ino: Ino) -> Option<OwnSet<'_, F>> {
        if self.withholders(ino, Until::Written).is_empty() {
            return None;
        }
        self.changed.until(|| !self.changing.borrow().contains(&ino)).await;
        self.changing.borrow_mut().insert(ino);
        Some(OwnSet { table: self, ino })
    }

    /// Most bytes from here on that are a set.
    fn set_bytes_max(&self, offset: u64) -> usize {
        (self.vfs.fs().set_pages_max() * PAGE - offset % PAGE) as usize
    }

    /// Releases a change that is a set of its own, unless a program has started a larger one. If it is refused, it is forgotten.
    async fn end_change(&self, own: Option<OwnSet<'_, F>>) -> Result<()> {
        let Some(OwnSet { ino, .. }) = own else { return Ok(()) };
        let opens = self.withholders(ino, Until::Written);
        let Some(open) = opens.first().filter(|_| self.withholders(ino, Until::Commit).is_empty()) else {
            return Ok(());
        };
        let released = self.release_withheld(open).await;
        if released.is_err() {
            self.forget_change(ino).await;
        }
        released
    }

    /// Ends a change that is a set of its own, or forgets what a change that failed has done.
    async fn end_or_forget<T>(&self, own: Option<OwnSet<'_, F>>, result: Result<T>) -> Result<T> {
        match (result, own) {
            (Err(errno), Some(own)) => {
                self.forget_change(own.ino).await;
                Err(errno)
            }
            (result, own) => {
                let done = result?;
                self.end_change(own).await.map(|()| done)
            }
        }
    }

    /// Forgets a change that is a set of its own, unless it stands beside what another program withholds.
    async fn forget_change(&self, ino: Ino) {
        let is_alone =
            [Until::Close, Until::Commit].iter().all(|&until| self.withholders(ino, until).is_empty());
        let Some(open) = self.withholders(ino, Until::Written).into_iter().next().filter(|_| is_alone) else {
            return;
        };
        if let Some(atomic) = open.atomic() {
            // It has an error already.
            let _ = self.forget_withheld(&open, &atomic).await;
        }
    }

    /// A power cut took a part of what a file withheld until a sync: the sync that meets it forgets the rest.
    async fn forget_torn(&self, ino: Ino) -> Result<()> {
        let torn = self.withholders(ino, Until::Close).into_iter().filter(|open| open.is_torn.take());
        let torn: Vec<(Use<F>, Withholding<F>)> =
            torn.filter_map(|open| open.atomic().map(|atomic| (open, atomic))).collect();
        for (open, atomic) in &torn {
            self.forget_withheld(open, atomic).await?;
        }
        if torn.is_empty() { Ok(()) } else { Err(Errno::EIO) }
    }

    pub(super) async fn abort(&self, handle: u64) -> Result<()> {
        let open = self.file(handle)?;
        let atomic = open.atomic().ok_or(Errno::EINVAL)?;
        self.forget_withheld(&open, &atomic).await?;
        drop(atomic);
        self.end_atomic(&open).await
    }

    async fn forget_withheld(&self, open: &Open<F>, atomic: &Withholding<F>) -> Result<()> {
        let call = |(): &()| {
            let call = Call::Abort { open: atomic.number };
            (call, format!("abort {}", self.shown(open.number)))
        };
        self.noted(atomic.file.abort(), call).await
    }

    async fn release_withheld(&self, open: &Open<F>) -> Result<()> {
        let call = |(): &()| {
            let call = Call::Release { ino: open.file.ino() };
            (call, format!("release {}", self.shown(open.number)))
        };
        self.noted(open.file.release(), call).await
    }

    /// What was written since the file began to withhold becomes durable, all at once. `EIO` if a part of it is lost; then all is
    /// forgotten.
    pub(super) async fn commit(&self, handle: u64) -> Result<()> {
        let open = self.file(handle)?;
        if open.atomic().is_none() {
            return Err(Errno::EINVAL);
        }
        if open.is_torn.get() {
            self.abort(handle).await?;
            return Err(Errno::EIO);
        }
        self.sync_opens(std::slice::from_ref(&open), SyncKind::Data).await?;
        self.end_atomic(&open).await
    }

    /// The file is like others again, if it withheld until now only.
    async fn end_atomic(&self, open: &Open<F>) -> Result<()> {
        let ended = open.atomic.borrow_mut().take_if(|atomic| atomic.until == Until::Commit);
        match ended {
            Some(ended) => self.end(open, ended).await,
            None => Ok(()),
        }
    }

    /// A file withholds no longer for one that had it open. What others have written to it meanwhile is released with that.
    async fn end(&self, open: &Open<F>, atomic: Withholding<F>) -> Result<()> {
        let until = atomic.until;
        self.close_atomic(open, atomic).await?;
        match until {
            Until::Commit | Until::Written if !self.vfs.is_atomic(open.file.ino()) => {
                self.release_withheld(open).await
            }
            _ => Ok(()),
        }
    }

    async fn close_atomic(&self, open: &Open<F>, atomic: Withholding<F>) -> Result<()> {
        let Withholding { number, file, .. } = atomic;
        let closed = async {
            match Rc::into_inner(file) {
                Some(file) => file.close().await,
                // A task that still works on it closes it by dropping it.
                None => Ok(()),
            }
        };
        let call = |(): &()| {
            (Call::EndAtomic { open: number }, format!("stop withholding {}", self.shown(open.number)))
        };
        self.noted(closed, call).await
    }

    /// syncv of the files with these numbers, each of which a program has open as atomic. `EBUSY` if a program has started a set of one of
    /// them, which only its commit releases.
    pub(super) async fn sync_set(&self, numbers: &[NodeId], kind: SyncKind) -> Result<()> {
        let opens: Vec<Use<F>> = {
            let files = self.files.borrow();
            let atomic = |number: &NodeId| {
                let is_it = |open: &&Rc<Open<F>>| open.number == *number && open.atomic().is_some();
                files.values().find(is_it).map(Use::of).ok_or(Errno::EINVAL)
            };
            numbers.iter().map(atomic).collect::<Result<_>>()?
        };
        if opens.iter().any(|open| !self.withholders(open.file.ino(), Until::Commit).is_empty()) {
            return Err(Errno::EBUSY);
        }
        let mut torn = Ok(());
        for open in &opens {
            torn = torn.and(self.forget_torn(open.file.ino()).await);
        }
        if torn.is_err() {
            // The others belong to the same set.
            for open in &opens {
                if let Some(atomic) = open.atomic() {
                    self.forget_withheld(open, &atomic).await?;
                }
            }
            return torn;
        }
        self.sync_opens(&opens, kind).await
    }

    /// syncv of what is withheld through these open files.
    async fn sync_opens(&self, opens: &[Use<F>], kind: SyncKind) -> Result<()> {
        let set: Vec<Withholding<F>> = opens.iter().filter_map(|open| open.atomic()).collect();
        let files: Vec<&File<F>> = set.iter().map(|atomic| &*atomic.file).collect();
        let call = |(): &()| {
            let numbers = set.iter().map(|atomic| atomic.number).collect();
            let names: Vec<String> = opens.iter().map(|open| self.shown(open.number)).collect();
            (Call::SyncSet { opens: numbers, kind }, format!("commit {}", names.join(", ")))
        };
        self.noted(self.vfs.syncv(&files, kind), call).await
    }

    /// Reserves, punches or zeroes; returns what the kernel has to drop then. `ends_set_id`: the caller may not keep the set-ID bits of a
    /// file that it changes.
    pub(super) async fn allocate(
        &self,
        handle: u64,
        (offset, len): (u64, u64),
        room: Room,
        ends_set_id: bool,
    ) -> Result<Option<Stale>> {
        let open = self.file(handle)?;
        let ended_set_id = ends_set_id && self.end_set_id(open.number).await?;
        let own = self.own_set(open.file.ino()).await;
        let call = |(): &()| {
            let shown = format!("fallocate {} at {offset}, {len} bytes", self.shown(open.number));
            (Call::Allocate { ino: open.file.ino(), offset, len, room }, shown)
        };
        let made = self.noted(room.make(&open.file, offset, len), call).await;
        self.end_or_forget(own, made).await?;
        Ok(self.stale_after(open.number, None, ended_set_id))
    }

    /// The listing of an open directory, read again if `from_start`.
    pub(super) async fn listing(&self, handle: u64, from_start: bool) -> Result<Rc<[DirEntry]>> {
        let open = self.file(handle)?;
        let known = open.listing.borrow().clone().filter(|_| !from_start);
        if let Some(listing) = known {
            return Ok(listing);
        }
        let (mut all, mut after) = (Vec::new(), Cookie::START);
        loop {
            let entries = open.file.read_dir(after, usize::MAX).await?;
            let Some(last) = entries.last() else { break };
            after = last.cookie;
            all.extend(entries);
        }
        let listing: Rc<[DirEntry]> = all.into();
        *open.listing.borrow_mut() = Some(Rc::clone(&listing));
        Ok(listing)
    }

    /// The directory above an open one, by the kernel's number.
    pub(super) async fn above(&self, dir: NodeId) -> Result<NodeId> {
        let attr = self.vfs.lookup_name(self.ino(dir)?, b"..").await?;
        Ok(self.number(attr.ino))
    }

    /// Attributes of an entry, of which the kernel is about to be told; `ENOENT` if it is gone.
    pub(super) async fn entry(&self, dir: NodeId, entry: &DirEntry) -> Result<Attr> {
        let attr = self.vfs.lookup_name(self.ino(dir)?, &entry.name).await?;
        self.tell(dir, &entry.name, attr).await
    }

    // Extended attributes and the whole.

    pub(super) async fn xattr(&self, number: NodeId, name: &[u8]) -> Result<Box<[u8]>> {
        self.vfs.xattr_of(&Creds::checked(0, 0), self.ino(number)?, name).await
    }

    /// `clears_setgid`: as [`Vfs::set_acl_of`] has it.
    pub(super) async fn set_xattr(
        &self,
        number: NodeId,
        (name, value): (&[u8], &[u8]),
        mode: XattrMode,
        clears_setgid: bool,
    ) -> Result<()> {
        let (ino, creds) = (self.ino(number)?, Creds::checked(0, 0));
        let acl = AclKind::of_name(name);
        let call = |(): &()| {
            let call = match acl {
                Some(kind) => Call::SetAcl { ino, kind, value: value.into(), clears_setgid },
                None => Call::SetXattr { ino, name: name.into(), value: value.into(), mode },
            };
            (call, format!("setxattr {} {}", self.shown(number), String::from_utf8_lossy(name)))
        };
        let work = async {
            match acl {
                Some(kind) => self.vfs.set_acl_of(&creds, ino, kind, value, clears_setgid).await,
                None => self.vfs.set_xattr_of(&creds, ino, name, value, mode).await,
            }
        };
        self.noted(work, call).await
    }

    /// The names of the extended attributes, each with a zero behind it.
    pub(super) async fn xattr_names(&self, number: NodeId) -> Result<Vec<u8>> {
        let names = self.vfs.xattr_names_of(&Creds::checked(0, 0), self.ino(number)?).await?;
        Ok(names.iter().flat_map(|name| name.iter().copied().chain([0])).collect())
    }

    pub(super) async fn remove_xattr(&self, number: NodeId, name: &[u8]) -> Result<()> {
        let ino = self.ino(number)?;
        let call = |(): &()| {
            let call = Call::RemoveXattr { ino, name: name.into() };
            (call, format!("removexattr {} {}", self.shown(number), String::from_utf8_lossy(name)))
        };
        self.noted(self.vfs.remove_xattr_of(&Creds::checked(0, 0), ino, name), call).await
    }

    pub(super) async fn statfs(&self) -> Result<StatFs> {
        self.vfs.statfs().await
    }
}

fn without_set_id(mode: u16) -> u16 {
    let group = if mode & 0o010 == 0 { 0 } else { 0o2000 };
    mode & !(0o4000 | group)
}

#[cfg(test)]
mod tests;
