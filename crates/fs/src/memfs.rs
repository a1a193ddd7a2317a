//! A file system in memory: the reference that others are compared with, and the disk of tests of the vfs.
//!
//! Place in the data flow: an [`Fs`] below the vfs, with nothing below it.
//!
//! It is complete but for durability: nothing survives the end of the process, so syncs have nothing to do. It can be
//! slow (a disk that does one thing at a time; other tasks run during each call) and fail on request. It asserts what the
//! vfs has to keep to: inodes are locked as `vfs/fs.rs` says, room is reserved before pages are written, no page is in two
//! writes or read while it is written, only files that are held are read and written.

use crate::any::{AnyFs, Mounted};
use crate::vfs::*;
use flashweir_core::executor::{Handle, oneshot};
use flashweir_core::{Duration, Instant, Payload};
use std::cell::{Cell, RefCell};
use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::rc::Rc;

/// How large it is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct MemFsConfig {
    /// Pages of files.
    pub pages: u64,
    /// Inodes, that of the root included.
    pub inodes: u64,
    /// Bounds.
    pub limits: Limits,
}

impl Default for MemFsConfig {
    /// 1 GiB, a million inodes, the bounds of ext4.
    fn default() -> Self {
        let limits = Limits {
            name_bytes_max: 255,
            symlink_bytes_max: 4095,
            file_bytes_max: 1 << 44,
            links_max: 65_000,
            xattr_value_bytes_max: 65_536,
            time_seconds: (i64::MIN, i64::MAX),
            has_nanos: true,
        };
        Self { pages: 1 << 18, inodes: 1 << 20, limits }
    }
}

/// Makes calls fail, for tests.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Faults {
    /// Reads of pages fail with this.
    pub reads: Option<Errno>,
    /// Writes of pages fail with this.
    pub writes: Option<Errno>,
    /// The file of which they fail; all if `None`.
    pub writes_of: Option<Ino>,
    /// fsync and sync fail with this.
    pub syncs: Option<Errno>,
}

/// Numbers of calls of the file system.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct MemFsCounts {
    /// Calls of `read_pages`.
    pub reads: u64,
    /// Pages read.
    pub read_pages: u64,
    /// Calls of `write_pages`.
    pub writes: u64,
    /// Pages written.
    pub written_pages: u64,
    /// Calls of `fsync` and `sync`.
    pub syncs: u64,
}

/// See the module. A clone is the same file system.
#[derive(Clone)]
pub struct MemFs(Rc<Shared>);

struct Shared {
    config: MemFsConfig,
    state: RefCell<State>,
    faults: Cell<Faults>,
    counts: Cell<MemFsCounts>,
    disk: Option<Disk>,
    /// Pages under I/O; true is a write.
    under_way: RefCell<BTreeSet<(Ino, u64, bool)>>,
    /// Inodes in calls that need their lock: how many share it, or -1.
    locked: RefCell<BTreeMap<Ino, i32>>,
    is_renaming: Cell<bool>,
}

struct Disk {
    handle: Handle,
    time_per_page: Duration,
    free_at: Cell<Instant>,
}

#[derive(Default)]
struct State {
    nodes: BTreeMap<Ino, Node>,
    /// Numbers up to the highest that was ever in use, which are not in use.
    numbers_free: BTreeSet<Ino>,
    /// How often a number was in use before.
    generations: BTreeMap<Ino, u32>,
    used_pages: u64,
}

struct Node {
    attr: Attr,
    body: Body,
    xattrs: BTreeMap<Box<[u8]>, Box<[u8]>>,
    acls: NewAcls,
    held: bool,
}

impl Node {
    fn new(attr: Attr, body: Body, acls: NewAcls) -> Self {
        Self { attr, body, xattrs: BTreeMap::new(), acls, held: false }
    }

    fn acl_mut(&mut self, kind: AclKind) -> &mut Option<Acl> {
        match kind {
            AclKind::Access => &mut self.acls.access,
            AclKind::Default => &mut self.acls.default,
        }
    }
}

enum Body {
    /// A page without a payload has room and nothing else.
    File(BTreeMap<u64, Option<Payload>>),
    Directory(Directory),
    Symlink(Box<[u8]>),
    Special,
}

struct Directory {
    parent: Ino,
    entries: BTreeMap<Box<[u8]>, (Ino, u64)>,
    /// The same by their cookies, which are never used again.
    names: BTreeMap<u64, Box<[u8]>>,
    cookies: u64,
}

const ROOT: Ino = Ino(1);
const PAGE: u64 = PAGE_BYTES as u64;
const DAY_SECONDS: i64 = 86_400;

impl fmt::Debug for MemFs {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let state = self.0.state.borrow();
        f.debug_struct("MemFs")
            .field("inodes", &state.nodes.len())
            .field("used_pages", &state.used_pages)
            .finish_non_exhaustive()
    }
}

impl Directory {
    fn new(parent: Ino) -> Self {
        Self { parent, entries: BTreeMap::new(), names: BTreeMap::new(), cookies: 0 }
    }

    fn insert(&mut self, name: &[u8], ino: Ino) {
        self.cookies += 1;
        self.names.insert(self.cookies, name.into());
        self.entries.insert(name.into(), (ino, self.cookies));
    }

    fn remove(&mut self, name: &[u8]) -> Result<Ino> {
        let (ino, cookie) = self.entries.remove(name).ok_or(Errno::ENOENT)?;
        self.names.remove(&cookie);
        Ok(ino)
    }

    fn find(&self, name: &[u8]) -> Option<Ino> {
        self.entries.get(name).map(|(ino, _)| *ino)
    }
}

impl State {
    fn node(&self, ino: Ino) -> Result<&Node> {
        self.nodes.get(&ino).ok_or(Errno::ESTALE)
    }

    fn node_mut(&mut self, ino: Ino) -> Result<&mut Node> {
        self.nodes.get_mut(&ino).ok_or(Errno::ESTALE)
    }

    fn dir(&self, ino: Ino) -> Result<&Directory> {
        match &self.node(ino)?.body {
            Body::Directory(directory) => Ok(directory),
            _ => Err(Errno::ENOTDIR),
        }
    }

    /// The directory, which changes now.
    fn dir_mut(&mut self, ino: Ino, now: Timestamp) -> Result<&mut Directory> {
        let node = self.node_mut(ino)?;
        let Body::Directory(directory) = &mut node.body else { return Err(Errno::ENOTDIR) };
        (node.attr.mtime, node.attr.ctime) = (now, now);
        Ok(directory)
    }

    /// Counts a directory more or less in `dir`.
    fn count_subdirectory(&mut self, dir: Ino, kind: Kind, more: bool) -> Result<()> {
        if kind.is_dir() {
            let links = &mut self.node_mut(dir)?.attr.links;
            *links = if more { *links + 1 } else { *links - 1 };
        }
        Ok(())
    }

    /// The lowest number that is free: what keeps a number beyond the life of its inode is found out.
    fn take_number(&mut self) -> Ino {
        self.numbers_free.pop_first().unwrap_or(Ino(self.nodes.len() as u64 + 1))
    }

    /// Makes an inode with its name.
    fn add(
        &mut self,
        dir: Ino,
        name: &[u8],
        new: &NewNode,
        body: Body,
        config: &MemFsConfig,
    ) -> Result<Attr> {
        if self.dir(dir)?.find(name).is_some() {
            return Err(Errno::EEXIST);
        }
        if self.nodes.len() as u64 >= config.inodes {
            return Err(Errno::ENOSPC);
        }
        if new.kind.is_dir() && self.node(dir)?.attr.links >= config.limits.links_max {
            return Err(Errno::EMLINK);
        }
        let ino = self.take_number();
        let attr = self.new_attr(ino, new, &body);
        self.nodes.insert(ino, Node::new(attr, body, new.acls.clone()));
        self.dir_mut(dir, new.now)?.insert(name, ino);
        self.count_subdirectory(dir, new.kind, true)?;
        Ok(attr)
    }

    /// Makes a file without a name, which is held.
    fn add_nameless(&mut self, new: &NewNode, config: &MemFsConfig) -> Result<Attr> {
        if self.nodes.len() as u64 >= config.inodes {
            return Err(Errno::ENOSPC);
        }
        let (ino, body) = (self.take_number(), Body::File(BTreeMap::new()));
        let attr = Attr { links: 0, ..self.new_attr(ino, new, &body) };
        self.nodes.insert(ino, Node { held: true, ..Node::new(attr, body, new.acls.clone()) });
        Ok(attr)
    }

    fn new_attr(&self, ino: Ino, new: &NewNode, body: &Body) -> Attr {
        let size = if let Body::Symlink(target) = body { target.len() as u64 } else { 0 };
        Attr {
            ino,
            generation: self.generations.get(&ino).copied().unwrap_or(0),
            kind: new.kind,
            mode: new.mode,
            links: if new.kind.is_dir() { 2 } else { 1 },
            uid: new.uid,
            gid: new.gid,
            size,
            blocks_512: 0,
            atime: new.now,
            mtime: new.now,
            ctime: new.now,
        }
    }

    /// Removes a link; frees the inode if it was the last one and the inode is not held.
    fn drop_link(&mut self, ino: Ino, now: Timestamp) -> Result<()> {
        let node = self.node_mut(ino)?;
        node.attr.links = if node.attr.kind.is_dir() { 0 } else { node.attr.links - 1 };
        node.attr.ctime = now;
        self.free_if_unused(ino)
    }

    fn free_if_unused(&mut self, ino: Ino) -> Result<()> {
        let node = self.node(ino)?;
        if node.attr.links > 0 || node.held {
            return Ok(());
        }
        if let Body::File(pages) = &node.body {
            self.used_pages -= pages.len() as u64;
        }
        self.nodes.remove(&ino);
        self.numbers_free.insert(ino);
        *self.generations.entry(ino).or_default() += 1;
        Ok(())
    }

    fn file(&mut self, ino: Ino) -> Result<&mut BTreeMap<u64, Option<Payload>>> {
        let node = self.node_mut(ino)?;
        assert!(node.held, "{ino} is read or written and not held");
        match &mut node.body {
            Body::File(pages) => Ok(pages),
            _ => panic!("{ino} is read or written and is no file"),
        }
    }

    /// Takes pages away that `keep` does not keep.
    fn retain_pages(&mut self, ino: Ino, keep: impl Fn(u64) -> bool) -> Result<()> {
        let Body::File(pages) = &mut self.node_mut(ino)?.body else { return Ok(()) };
        let before = pages.len();
        pages.retain(|&index, _| keep(index));
        let freed = (before - pages.len()) as u64;
        self.used_pages -= freed;
        Ok(())
    }

    fn with_blocks(node: &Node) -> Attr {
        let pages = if let Body::File(pages) = &node.body { pages.len() as u64 } else { 0 };
        Attr { blocks_512: pages * (PAGE / 512), ..node.attr }
    }
}

/// Pages under I/O, until this is dropped.
struct UnderWay<'a> {
    shared: &'a Shared,
    keys: Vec<(Ino, u64, bool)>,
}

impl Drop for UnderWay<'_> {
    fn drop(&mut self) {
        let mut all = self.shared.under_way.borrow_mut();
        for key in &self.keys {
            all.remove(key);
        }
    }
}

/// Inodes that a call needs locked, until this is dropped.
struct Locked<'a> {
    shared: &'a Shared,
    inodes: Vec<Ino>,
    between_directories: bool,
}

impl Drop for Locked<'_> {
    fn drop(&mut self) {
        let mut locked = self.shared.locked.borrow_mut();
        for ino in &self.inodes {
            match locked.get_mut(ino) {
                Some(sharers) if *sharers > 1 => *sharers -= 1,
                _ => drop(locked.remove(ino)),
            }
        }
        if self.between_directories {
            self.shared.is_renaming.set(false);
        }
    }
}

impl MemFs {
    /// An empty file system whose calls take no time.
    pub fn new(config: MemFsConfig) -> Self {
        Self::build(config, None)
    }

    /// One with a disk that does one thing at a time and takes `time_per_page` for each page read or written.
    pub fn with_disk(config: MemFsConfig, handle: Handle, time_per_page: Duration) -> Self {
        Self::build(config, Some(Disk { handle, time_per_page, free_at: Cell::new(Instant::ZERO) }))
    }

    fn build(config: MemFsConfig, disk: Option<Disk>) -> Self {
        let mut state = State::default();
        let now = Timestamp::default();
        let acls = NewAcls::default();
        let new = NewNode { kind: Kind::Directory, mode: 0o755, uid: 0, gid: 0, now, acls };
        let body = Body::Directory(Directory::new(ROOT));
        let attr = state.new_attr(ROOT, &new, &body);
        state.nodes.insert(ROOT, Node::new(attr, body, new.acls));
        Self(Rc::new(Shared {
            config,
            state: RefCell::new(state),
            faults: Cell::default(),
            counts: Cell::default(),
            disk,
            under_way: RefCell::default(),
            locked: RefCell::default(),
            is_renaming: Cell::new(false),
        }))
    }

    /// Makes calls fail from here on, or work again.
    pub fn set_faults(&self, faults: Faults) {
        self.0.faults.set(faults);
    }

    /// Numbers of calls so far.
    pub fn counts(&self) -> MemFsCounts {
        self.0.counts.get()
    }

    /// Pages that are written or reserved.
    pub fn used_pages(&self) -> u64 {
        self.0.state.borrow().used_pages
    }

    /// Inodes that exist.
    pub fn inodes(&self) -> u64 {
        self.0.state.borrow().nodes.len() as u64
    }

    /// Pages that are being read or written now; 0 without a disk.
    pub fn pages_under_way(&self) -> usize {
        self.0.under_way.borrow().len()
    }

    fn count(&self, count: impl FnOnce(&mut MemFsCounts)) {
        let mut counts = self.0.counts.get();
        count(&mut counts);
        self.0.counts.set(counts);
    }

    /// Lets the time of `pages` pass.
    async fn wait_for_disk(&self, pages: u64) {
        let Some(disk) = &self.0.disk else { return };
        let begin = disk.free_at.get().max(disk.handle.now());
        let end = begin + disk.time_per_page * pages;
        disk.free_at.set(end);
        disk.handle.sleep_until(end).await;
    }

    fn begin(&self, ino: Ino, indices: impl Iterator<Item = u64>, is_write: bool) -> Option<UnderWay<'_>> {
        self.0.disk.as_ref()?;
        let mut all = self.0.under_way.borrow_mut();
        let keys: Vec<_> = indices.map(|index| (ino, index, is_write)).collect();
        for &(ino, index, _) in &keys {
            assert!(!all.contains(&(ino, index, true)), "page {index} of {ino} is being written");
            assert!(!is_write || !all.contains(&(ino, index, false)), "page {index} of {ino} is being read");
        }
        all.extend(&keys);
        Some(UnderWay { shared: &self.0, keys })
    }

    /// Asserts that the vfs has these inodes locked, as far as that is visible, and yields to other tasks if there is a disk.
    async fn lock(&self, inodes: &[Ino], alone: bool) -> Locked<'_> {
        let locked = self.note_locked(inodes, alone);
        self.yield_now().await;
        locked
    }

    fn note_locked(&self, inodes: &[Ino], alone: bool) -> Locked<'_> {
        let mut locked = self.0.locked.borrow_mut();
        let mut inodes = inodes.to_vec();
        inodes.sort();
        inodes.dedup();
        for ino in &inodes {
            let sharers = locked.entry(*ino).or_default();
            assert!(if alone { *sharers == 0 } else { *sharers >= 0 }, "{ino} is not locked");
            *sharers = if alone { -1 } else { *sharers + 1 };
        }
        Locked { shared: &self.0, inodes, between_directories: false }
    }

    async fn yield_now(&self) {
        if let Some(disk) = &self.0.disk {
            disk.handle.yield_now().await;
        }
    }

    fn store(&self, ino: Ino, pages: &[DirtyPage]) -> Result<()> {
        let mut state = self.0.state.borrow_mut();
        let file = state.file(ino)?;
        for page in pages {
            let slot = file.get_mut(&page.index);
            let slot = slot.unwrap_or_else(|| panic!("page {} of {ino} was not reserved", page.index));
            *slot = Some(page.payload.clone());
        }
        self.count(|counts| {
            counts.writes += 1;
            counts.written_pages += pages.len() as u64;
        });
        Ok(())
    }

    fn make(&self, dir: Ino, name: &[u8], new: &NewNode, body: Body) -> Result<Attr> {
        self.0.state.borrow_mut().add(dir, name, new, body, &self.0.config)
    }

    fn fault(&self, which: impl FnOnce(Faults) -> Option<Errno>) -> Result<()> {
        which(self.0.faults.get()).map_or(Ok(()), Err)
    }
}

impl Mounted for MemFs {
    fn name(&self) -> &'static str {
        "memory"
    }
}

impl From<MemFs> for AnyFs {
    fn from(fs: MemFs) -> Self {
        Self::new(fs)
    }
}

impl Fs for MemFs {
    fn root(&self) -> Ino {
        ROOT
    }

    fn limits(&self) -> Limits {
        self.0.config.limits
    }

    async fn lookup(&self, dir: Ino, name: &[u8]) -> Result<Attr> {
        let _locked = self.lock(&[dir], false).await;
        let state = self.0.state.borrow();
        let ino = state.dir(dir)?.find(name).ok_or(Errno::ENOENT)?;
        state.node(ino).map(State::with_blocks)
    }

    async fn parent(&self, dir: Ino) -> Result<Ino> {
        Ok(self.0.state.borrow().dir(dir)?.parent)
    }

    async fn readdir(
        &self,
        dir: Ino,
        after: Cookie,
        entries: &mut Vec<DirEntry>,
        entries_max: usize,
    ) -> Result<()> {
        let _locked = self.lock(&[dir], false).await;
        let state = self.0.state.borrow();
        let directory = state.dir(dir)?;
        let room = entries_max.saturating_sub(entries.len());
        for (&cookie, name) in directory.names.range(after.0 + 1..).take(room) {
            let ino = directory.find(name).expect("names and entries are the same");
            let kind = state.node(ino)?.attr.kind;
            entries.push(DirEntry { name: name.clone(), ino, kind, cookie: Cookie(cookie) });
        }
        Ok(())
    }

    async fn create(&self, dir: Ino, name: &[u8], node: &NewNode) -> Result<Attr> {
        let body = match node.kind {
            Kind::File => Body::File(BTreeMap::new()),
            Kind::Directory => Body::Directory(Directory::new(dir)),
            _ => Body::Special,
        };
        let _locked = self.lock(&[dir], true).await;
        self.make(dir, name, node, body)
    }

    async fn create_nameless(&self, dir: Ino, node: &NewNode) -> Result<Attr> {
        let _locked = self.lock(&[dir], false).await;
        let mut state = self.0.state.borrow_mut();
        state.dir(dir)?;
        state.add_nameless(node, &self.0.config)
    }

    async fn symlink(&self, dir: Ino, name: &[u8], target: &[u8], node: &NewNode) -> Result<Attr> {
        let _locked = self.lock(&[dir], true).await;
        self.make(dir, name, node, Body::Symlink(target.into()))
    }

    async fn link(&self, ino: Ino, dir: Ino, name: &[u8], now: Timestamp) -> Result<Attr> {
        let _locked = self.lock(&[ino, dir], true).await;
        let mut state = self.0.state.borrow_mut();
        if state.dir(dir)?.find(name).is_some() {
            return Err(Errno::EEXIST);
        }
        if state.node(ino)?.attr.links >= self.0.config.limits.links_max {
            return Err(Errno::EMLINK);
        }
        let node = state.node(ino)?;
        assert!(node.attr.links > 0 || node.held, "{ino} has no name, is not held, and gets a name");
        state.dir_mut(dir, now)?.insert(name, ino);
        let node = state.node_mut(ino)?;
        node.attr.links += 1;
        node.attr.ctime = now;
        Ok(State::with_blocks(node))
    }

    async fn unlink(&self, dir: Ino, name: &[u8], now: Timestamp) -> Result<()> {
        let ino = self.0.state.borrow().dir(dir)?.find(name).ok_or(Errno::ENOENT)?;
        let _locked = self.lock(&[ino, dir], true).await;
        let mut state = self.0.state.borrow_mut();
        state.dir_mut(dir, now)?.remove(name)?;
        state.drop_link(ino, now)
    }

    async fn rmdir(&self, dir: Ino, name: &[u8], now: Timestamp) -> Result<()> {
        let ino = self.0.state.borrow().dir(dir)?.find(name).ok_or(Errno::ENOENT)?;
        let _locked = self.lock(&[ino, dir], true).await;
        let mut state = self.0.state.borrow_mut();
        if !state.dir(ino)?.entries.is_empty() {
            return Err(Errno::ENOTEMPTY);
        }
        state.dir_mut(dir, now)?.remove(name)?;
        state.count_subdirectory(dir, Kind::Directory, false)?;
        state.drop_link(ino, now)
    }

    async fn rename(
        &self,
        (from_dir, from): (Ino, &[u8]),
        (to_dir, to): (Ino, &[u8]),
        mode: RenameMode,
        now: Timestamp,
    ) -> Result<()> {
        let found = |dir: Ino, name: &[u8]| Ok(self.0.state.borrow().dir(dir)?.find(name));
        let source = found(from_dir, from)?.ok_or(Errno::ENOENT)?;
        let target = found(to_dir, to)?;
        let keeps_parent = from_dir == to_dir && self.0.state.borrow().node(source)?.attr.kind.is_dir();
        let mut changed = vec![from_dir, to_dir];
        changed.extend(target);
        changed.extend((!keeps_parent).then_some(source));
        let mut locked = self.lock(&changed, true).await;
        locked.between_directories = from_dir != to_dir;
        let is_second = locked.between_directories && self.0.is_renaming.replace(true);
        assert!(!is_second, "two renames between directories at once");
        self.yield_now().await;
        let mut state = self.0.state.borrow_mut();
        let kind = state.node(source)?.attr.kind;
        let is_replaced = mode != RenameMode::Exchange && target.is_some();
        if is_replaced
            && matches!(&state.node(target.unwrap_or(source))?.body, Body::Directory(d) if !d.entries.is_empty())
        {
            return Err(Errno::ENOTEMPTY);
        }
        let links_max = self.0.config.limits.links_max;
        let is_subdirectory_more = kind.is_dir() && from_dir != to_dir && target.is_none();
        if is_subdirectory_more && state.node(to_dir)?.attr.links >= links_max {
            return Err(Errno::EMLINK);
        }
        if mode == RenameMode::Exchange {
            let target = target.ok_or(Errno::ENOENT)?;
            let met = state.node(target)?.attr.kind;
            for (dir, name, ino) in [(from_dir, from, target), (to_dir, to, source)] {
                let entry = state.dir_mut(dir, now)?.entries.get_mut(name).ok_or(Errno::ENOENT)?;
                entry.0 = ino;
            }
            for (ino, kind, old, new) in [(source, kind, from_dir, to_dir), (target, met, to_dir, from_dir)] {
                state.count_subdirectory(old, kind, false)?;
                state.count_subdirectory(new, kind, true)?;
                state.move_inode(ino, new, now)?;
            }
            return Ok(());
        }
        if let Some(target) = target {
            let met = state.node(target)?.attr.kind;
            state.dir_mut(to_dir, now)?.remove(to)?;
            state.count_subdirectory(to_dir, met, false)?;
            state.drop_link(target, now)?;
        }
        state.dir_mut(from_dir, now)?.remove(from)?;
        state.count_subdirectory(from_dir, kind, false)?;
        state.dir_mut(to_dir, now)?.insert(to, source);
        state.count_subdirectory(to_dir, kind, true)?;
        state.move_inode(source, to_dir, now)
    }

    async fn readlink(&self, ino: Ino) -> Result<Box<[u8]>> {
        match &self.0.state.borrow().node(ino)?.body {
            Body::Symlink(target) => Ok(target.clone()),
            _ => Err(Errno::EINVAL),
        }
    }

    async fn getattr(&self, ino: Ino) -> Result<Attr> {
        self.0.state.borrow().node(ino).map(State::with_blocks)
    }

    async fn setattr(&self, ino: Ino, changes: &SetAttr) -> Result<Attr> {
        let _locked = self.lock(&[ino], true).await;
        let mut state = self.0.state.borrow_mut();
        let node = state.node_mut(ino)?;
        if let (Some(mode), Some(acl)) = (changes.mode, &mut node.acls.access) {
            *acl = acl.with_mode(mode);
        }
        let attr = &mut node.attr;
        attr.mode = changes.mode.unwrap_or(attr.mode);
        attr.uid = changes.uid.unwrap_or(attr.uid);
        attr.gid = changes.gid.unwrap_or(attr.gid);
        attr.size = changes.size.unwrap_or(attr.size);
        attr.atime = changes.atime.unwrap_or(attr.atime);
        attr.mtime = changes.mtime.unwrap_or(attr.mtime);
        attr.ctime = changes.ctime.unwrap_or(attr.ctime);
        if let Some(size) = changes.size {
            state.retain_pages(ino, |index| index < size.div_ceil(PAGE))?;
        }
        state.node(ino).map(State::with_blocks)
    }

    async fn acl(&self, ino: Ino, kind: AclKind) -> Result<Option<Acl>> {
        Ok(self.0.state.borrow_mut().node_mut(ino)?.acl_mut(kind).clone())
    }

    async fn set_acl(
        &self,
        ino: Ino,
        kind: AclKind,
        acl: Option<&Acl>,
        mode: Option<u16>,
        now: Timestamp,
    ) -> Result<Attr> {
        let _locked = self.lock(&[ino], true).await;
        let mut state = self.0.state.borrow_mut();
        let node = state.node_mut(ino)?;
        *node.acl_mut(kind) = acl.cloned();
        node.attr.mode = mode.unwrap_or(node.attr.mode);
        node.attr.ctime = now;
        Ok(State::with_blocks(node))
    }

    async fn getxattr(&self, ino: Ino, name: &[u8]) -> Result<Box<[u8]>> {
        self.0.state.borrow().node(ino)?.xattrs.get(name).cloned().ok_or(Errno::ENODATA)
    }

    async fn setxattr(
        &self,
        ino: Ino,
        name: &[u8],
        value: &[u8],
        mode: XattrMode,
        now: Timestamp,
    ) -> Result<()> {
        let _locked = self.lock(&[ino], true).await;
        let mut state = self.0.state.borrow_mut();
        let node = state.node_mut(ino)?;
        match (mode, node.xattrs.contains_key(name)) {
            (XattrMode::Create, true) => return Err(Errno::EEXIST),
            (XattrMode::Replace, false) => return Err(Errno::ENODATA),
            _ => {}
        }
        node.xattrs.insert(name.into(), value.into());
        node.attr.ctime = now;
        Ok(())
    }

    async fn listxattr(&self, ino: Ino) -> Result<Vec<Box<[u8]>>> {
        let state = self.0.state.borrow();
        let node = state.node(ino)?;
        let acls = node.acls.iter().map(|(kind, _)| kind.name().as_bytes().into());
        Ok(acls.chain(node.xattrs.keys().cloned()).collect())
    }

    async fn removexattr(&self, ino: Ino, name: &[u8], now: Timestamp) -> Result<()> {
        let _locked = self.lock(&[ino], true).await;
        let mut state = self.0.state.borrow_mut();
        let node = state.node_mut(ino)?;
        node.xattrs.remove(name).ok_or(Errno::ENODATA)?;
        node.attr.ctime = now;
        Ok(())
    }

    async fn hold(&self, ino: Ino) -> Result<Attr> {
        self.yield_now().await;
        let mut state = self.0.state.borrow_mut();
        let node = state.node_mut(ino)?;
        assert!(!node.held, "{ino} is held twice");
        node.held = true;
        Ok(State::with_blocks(node))
    }

    async fn release(&self, ino: Ino) -> Result<()> {
        // Longer than a hold, so that one which does not wait is found out.
        self.yield_now().await;
        self.yield_now().await;
        let mut state = self.0.state.borrow_mut();
        let node = state.node_mut(ino)?;
        assert!(node.held, "{ino} is released and not held");
        node.held = false;
        state.free_if_unused(ino)
    }

    async fn read_pages(&self, ino: Ino, first: u64, pages: &mut [Payload]) -> Result<()> {
        let count = pages.len() as u64;
        let _under_way = self.begin(ino, first..first + count, false);
        self.wait_for_disk(count).await;
        self.fault(|faults| faults.reads)?;
        let mut state = self.0.state.borrow_mut();
        let file = state.file(ino)?;
        for (index, page) in (first..).zip(pages) {
            *page = file.get(&index).cloned().flatten().unwrap_or_default();
        }
        self.count(|counts| {
            counts.reads += 1;
            counts.read_pages += count;
        });
        Ok(())
    }

    async fn reserve(&self, ino: Ino, range: (u64, u64)) -> Result<()> {
        self.yield_now().await;
        let (first, end) = (range.0 / PAGE, range.1.div_ceil(PAGE));
        let mut state = self.0.state.borrow_mut();
        let file = state.file(ino)?;
        let absent = end - first - file.range(first..end).count() as u64;
        if state.used_pages + absent > self.0.config.pages {
            return Err(Errno::ENOSPC);
        }
        state.used_pages += absent;
        let file = state.file(ino)?;
        for index in first..end {
            file.entry(index).or_insert(None);
        }
        Ok(())
    }

    fn wrote(&self, ino: Ino, end: u64, now: Timestamp) {
        let mut state = self.0.state.borrow_mut();
        let attr = &mut state.node_mut(ino).expect("what is held exists").attr;
        attr.size = attr.size.max(end);
        (attr.mtime, attr.ctime) = (now, now);
    }

    fn accessed(&self, ino: Ino, now: Timestamp) {
        let mut state = self.0.state.borrow_mut();
        let attr = &mut state.node_mut(ino).expect("what is held exists").attr;
        // As with `relatime`: at most once a day, unless something changed since.
        let is_old = attr.atime.seconds + DAY_SECONDS <= now.seconds;
        if is_old || attr.atime <= attr.mtime || attr.atime <= attr.ctime {
            attr.atime = now;
        }
    }

    async fn write_pages(&self, ino: Ino, pages: &[DirtyPage], _cause: WriteCause) -> Result<()> {
        assert!(pages.is_sorted_by_key(|page| page.index), "pages are not in order");
        let _under_way = self.begin(ino, pages.iter().map(|page| page.index), true);
        self.wait_for_disk(pages.len() as u64).await;
        self.fault(|faults| faults.writes.filter(|_| faults.writes_of.is_none_or(|of| of == ino)))?;
        self.store(ino, pages)
    }

    async fn allocate(&self, ino: Ino, range: (u64, u64), keep_size: bool, now: Timestamp) -> Result<()> {
        self.reserve(ino, range).await?;
        let mut state = self.0.state.borrow_mut();
        let node = state.node_mut(ino)?;
        if !keep_size {
            node.attr.size = node.attr.size.max(range.1);
        }
        (node.attr.mtime, node.attr.ctime) = (now, now);
        Ok(())
    }

    async fn pages_from(&self, ino: Ino, first: u64) -> Result<PageRun> {
        self.yield_now().await;
        let mut state = self.0.state.borrow_mut();
        let file = state.file(ino)?;
        let mut run = PageRun { end: first, has_data: matches!(file.get(&first), Some(Some(_))) };
        for (&index, page) in file.range(first..) {
            if page.is_some() != run.has_data || run.has_data && index != run.end {
                return Ok(PageRun { end: if run.has_data { run.end } else { index }, ..run });
            }
            run.end = index + 1;
        }
        Ok(PageRun { end: if run.has_data { run.end } else { u64::MAX }, ..run })
    }

    async fn punch_pages(&self, ino: Ino, first: u64, count: u64, now: Timestamp) -> Result<()> {
        let mut state = self.0.state.borrow_mut();
        let attr = &mut state.node_mut(ino)?.attr;
        (attr.mtime, attr.ctime) = (now, now);
        state.retain_pages(ino, |index| !(first..first + count).contains(&index))
    }

    async fn fsync(&self, _ino: Ino, _kind: SyncKind) -> Result<()> {
        self.count(|counts| counts.syncs += 1);
        self.fault(|faults| faults.syncs)
    }

    async fn sync(&self) -> Result<()> {
        self.count(|counts| counts.syncs += 1);
        self.fault(|faults| faults.syncs)
    }

    /// Everything is in order here: the pages are taken at once, the answer comes when the disk has done its work.
    async fn barrier(&self, ino: Ino, pages: &[DirtyPage], _kind: Barrier) -> Result<Ticket> {
        let (sender, ticket) = oneshot();
        let result = match self.fault(|faults| faults.writes) {
            // A directory has none.
            Ok(()) if !pages.is_empty() => self.store(ino, pages),
            result => result,
        };
        let (fs, count) = (self.clone(), pages.len() as u64);
        let answer = async move {
            fs.wait_for_disk(count).await;
            // The receiver may have been dropped.
            let _ = sender.send(result);
        };
        match &self.0.disk {
            Some(disk) => drop(disk.handle.spawn(answer)),
            None => answer.await,
        }
        Ok(Box::pin(async { ticket.await.unwrap_or(Err(Errno::EIO)) }))
    }

    fn has_barriers(&self) -> bool {
        true
    }

    async fn statfs(&self) -> Result<StatFs> {
        let state = self.0.state.borrow();
        let config = &self.0.config;
        let pages_free = config.pages - state.used_pages;
        Ok(StatFs {
            pages: config.pages,
            pages_free,
            pages_available: pages_free,
            inodes: config.inodes,
            inodes_free: config.inodes - state.nodes.len() as u64,
        })
    }
}

impl State {
    /// The inode has a name in `dir` now.
    fn move_inode(&mut self, ino: Ino, dir: Ino, now: Timestamp) -> Result<()> {
        let node = self.node_mut(ino)?;
        node.attr.ctime = now;
        if let Body::Directory(directory) = &mut node.body {
            directory.parent = dir;
        }
        Ok(())
    }
}
