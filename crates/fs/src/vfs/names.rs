//! Creating, removing and moving names: the rules of POSIX, and the locks on which file systems rely.
//!
//! Order of locks: the lock of renames; directories, ancestors before descendants, others by number; inodes in them, directories first, by
//! number. A directory that is renamed within its own is not locked: between two of one directory there is no order that fits the others, which
//! are held while what is in them is waited for.

use super::mount::InodeRef;
use super::rights::{self, Wish};
use super::state::Vfs;
use super::sync::Guard;
use super::types::*;
use super::{AclKind, Errno, Fs, NewAcls, mode};

/// Kind of the inode to create.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Make<'a> {
    Node(Kind),
    Symlink(&'a [u8]),
}

impl<F: Fs> Vfs<F> {
    /// The attributes of a directory whose lock is held, if it has a name.
    async fn dir_attr(&self, dir: &InodeRef<F>) -> Result<Attr> {
        if dir.gone.get() {
            return Err(Errno::ENOENT);
        }
        let attr = self.0.fs.getattr(dir.ino).await?;
        if attr.kind.is_dir() { Ok(attr) } else { Err(Errno::ENOTDIR) }
    }

    async fn lookup_optional(&self, dir: Ino, name: &[u8]) -> Result<Option<Attr>> {
        match self.0.fs.lookup(dir, name).await {
            Ok(attr) => Ok(Some(attr)),
            Err(Errno::ENOENT) => Ok(None),
            Err(errno) => Err(errno),
        }
    }

    /// Creates an inode with its name. If the name exists, the error has the existing inode.
    pub(crate) async fn make(
        &self,
        creds: &Creds,
        dir: Ino,
        name: &[u8],
        what: Make<'_>,
        permissions: u16,
    ) -> std::result::Result<Attr, (Errno, Option<Attr>)> {
        self.make_inner(creds, dir, name, what, permissions).await.map_err(|error| match error {
            Refused::Errno(errno) => (errno, None),
            Refused::Exists(attr) => (Errno::EEXIST, Some(attr)),
        })
    }

    async fn make_inner(
        &self,
        creds: &Creds,
        dir: Ino,
        name: &[u8],
        what: Make<'_>,
        permissions: u16,
    ) -> std::result::Result<Attr, Refused> {
        let dir = self.inode(dir);
        let _lock = dir.lock.alone().await;
        let parent = self.dir_attr(&dir).await?;
        rights::check(creds, &parent, Wish::EXECUTE)?;
        if let Some(attr) = self.lookup_optional(dir.ino, name).await? {
            return Err(Refused::Exists(attr));
        }
        self.check_writable()?;
        rights::check(creds, &parent, Wish::CHANGE_NAMES)?;
        let node = self.new_node(creds, &parent, what, permissions).await?;
        Ok(match what {
            Make::Node(_) => self.0.fs.create(dir.ino, name, &node).await?,
            Make::Symlink(target) => self.0.fs.symlink(dir.ino, name, target, &node).await?,
        })
    }

    /// Creates a file without a name in the file system of a directory; the caller is its user.
    pub(crate) async fn make_nameless(
        &self,
        creds: &Creds,
        dir: Ino,
        permissions: u16,
        is_linkable: bool,
    ) -> Result<InodeRef<F>> {
        let dir = self.inode(dir);
        let _lock = dir.lock.shared().await;
        let parent = self.dir_attr(&dir).await?;
        self.check_writable()?;
        rights::check(creds, &parent, Wish::CHANGE_NAMES)?;
        let node = self.new_node(creds, &parent, Make::Node(Kind::File), permissions).await?;
        let attr = self.0.fs.create_nameless(dir.ino, &node).await?;
        Ok(self.use_nameless(&attr, is_linkable))
    }

    /// The inode to create: a default access control list of the directory replaces the caller's mask.
    async fn new_node(
        &self,
        creds: &Creds,
        parent: &Attr,
        what: Make<'_>,
        permissions: u16,
    ) -> Result<NewNode> {
        let kind = match what {
            Make::Symlink(_) => Kind::Symlink,
            Make::Node(kind) => kind,
        };
        if matches!(kind, Kind::CharDevice(_) | Kind::BlockDevice(_)) && !creds.is_root() {
            return Err(Errno::EPERM);
        }
        let mut mode = permissions & mode::ALL;
        let mut acls = NewAcls::default();
        if !kind.is_symlink() {
            match self.0.fs.acl(parent.ino, AclKind::Default).await? {
                None => mode &= !creds.umask,
                Some(default) => {
                    let (access, less) = default.inherited(mode);
                    mode = less;
                    acls.access = Some(access).filter(|access| !access.is_mode());
                    acls.default = kind.is_dir().then_some(default);
                }
            }
        }
        let mut gid = creds.gid;
        if parent.mode & mode::SETGID != 0 {
            gid = parent.gid;
            if kind.is_dir() {
                mode |= mode::SETGID;
            }
        }
        if kind.is_file() && !creds.is_root() && !creds.in_group(gid) {
            mode &= !mode::SETGID;
        }
        Ok(NewNode { kind, mode, uid: creds.uid, gid, now: self.timestamp(), acls })
    }

    /// Removes a name. `of_dir` says whether it must be that of a directory.
    pub(crate) async fn remove(&self, creds: &Creds, dir: Ino, name: &[u8], of_dir: bool) -> Result<()> {
        let dir = self.inode(dir);
        let dir_lock = dir.lock.alone().await;
        let parent = self.dir_attr(&dir).await?;
        rights::check(creds, &parent, Wish::EXECUTE)?;
        let attr = self.0.fs.lookup(dir.ino, name).await?;
        self.check_writable()?;
        rights::check_remove(creds, &parent, &attr)?;
        match (of_dir, attr.kind.is_dir()) {
            (true, false) => return Err(Errno::ENOTDIR),
            (false, true) => return Err(Errno::EISDIR),
            _ => {}
        }
        let victim = self.inode(attr.ino);
        let victim_lock = victim.lock.alone().await;
        let now = self.timestamp();
        // The count may have changed before the lock was taken.
        let links = self.0.fs.getattr(attr.ino).await?.links;
        if of_dir {
            self.0.fs.rmdir(dir.ino, name, now).await?;
        } else {
            self.0.fs.unlink(dir.ino, name, now).await?;
        }
        drop((victim_lock, dir_lock));
        if of_dir || links <= 1 {
            self.note_gone(victim.rc()).await;
        }
        Ok(())
    }

    /// Gives the inode another name. An inode that was created without a name gets its first one, if it may.
    pub(crate) async fn add_link(&self, creds: &Creds, ino: Ino, dir: Ino, name: &[u8]) -> Result<Attr> {
        let inode = self.inode(ino);
        if !inode.gone.get() {
            return self.add_link_to(creds, &inode, dir, name).await;
        }
        // An inode in use is not freed.
        let user = self.use_inode(ino).await.map_err(|errno| match errno {
            Errno::ESTALE => Errno::ENOENT,
            errno => errno,
        })?;
        let linked = self.add_link_to(creds, &user, dir, name).await;
        let ended = self.end_use(user).await;
        let attr = linked?;
        ended.map(|()| attr)
    }

    async fn add_link_to(&self, creds: &Creds, inode: &InodeRef<F>, dir: Ino, name: &[u8]) -> Result<Attr> {
        let dir = self.inode(dir);
        let _dir_lock = dir.lock.alone().await;
        let parent = self.dir_attr(&dir).await?;
        rights::check(creds, &parent, Wish::EXECUTE)?;
        if self.lookup_optional(dir.ino, name).await?.is_some() {
            return Err(Errno::EEXIST);
        }
        self.check_writable()?;
        rights::check(creds, &parent, Wish::CHANGE_NAMES)?;
        // A directory may be above the one that is locked.
        match self.0.fs.getattr(inode.ino).await {
            Ok(attr) if attr.kind.is_dir() => return Err(Errno::EPERM),
            Err(_) if inode.gone.get() => return Err(Errno::ENOENT),
            found => drop(found?),
        }
        let _lock = inode.lock.alone().await;
        if inode.gone.get() && !inode.linkable.get() {
            return Err(Errno::ENOENT);
        }
        let attr = self.0.fs.getattr(inode.ino).await?;
        if attr.links >= self.0.limits.links_max {
            return Err(Errno::EMLINK);
        }
        let attr = self.0.fs.link(inode.ino, dir.ino, name, self.timestamp()).await?;
        inode.gone.set(false);
        inode.linkable.set(false);
        Ok(self.seen(attr))
    }

    /// Whether `above` is `dir` or a directory above it.
    async fn is_above(&self, above: Ino, dir: Ino) -> Result<bool> {
        /// More than any path has; a damaged volume may have a circle.
        const DEPTH_MAX: u32 = 1 << 20;
        let mut at = dir;
        for _ in 0..DEPTH_MAX {
            if at == above {
                return Ok(true);
            }
            let parent = self.0.fs.parent(at).await?;
            if parent == at {
                return Ok(false);
            }
            at = parent;
        }
        Err(Errno::EUCLEAN)
    }

    /// Locks two directories, ancestors first. The caller holds the lock of renames if they differ.
    async fn lock_dirs<'a>(
        &self,
        a: &'a InodeRef<F>,
        b: &'a InodeRef<F>,
    ) -> Result<(Guard<'a>, Option<Guard<'a>>)> {
        if a.ino == b.ino {
            return Ok((a.lock.alone().await, None));
        }
        let is_b_first =
            self.is_above(b.ino, a.ino).await? || (b.ino < a.ino && !self.is_above(a.ino, b.ino).await?);
        let (first, second) = if is_b_first { (b, a) } else { (a, b) };
        Ok((first.lock.alone().await, Some(second.lock.alone().await)))
    }

    /// Moves an entry.
    pub(crate) async fn move_name(
        &self,
        creds: &Creds,
        (from_dir, from): (Ino, &[u8]),
        (to_dir, to): (Ino, &[u8]),
        mode: RenameMode,
    ) -> Result<()> {
        let _renames = if from_dir == to_dir { None } else { Some(self.0.renames.alone().await) };
        let (dir_a, dir_b) = (self.inode(from_dir), self.inode(to_dir));
        let dir_locks = self.lock_dirs(&dir_a, &dir_b).await?;
        let parents = (self.dir_attr(&dir_a).await?, self.dir_attr(&dir_b).await?);
        rights::check(creds, &parents.0, Wish::EXECUTE)?;
        rights::check(creds, &parents.1, Wish::EXECUTE)?;
        let source = self.0.fs.lookup(from_dir, from).await?;
        let target = self.lookup_optional(to_dir, to).await?;
        self.check_writable()?;
        if mode != RenameMode::NoReplace && target.is_some_and(|target| target.ino == source.ino) {
            return Ok(());
        }
        self.check_move(creds, &parents, &source, target.as_ref(), mode).await?;
        let moved = self.inode(source.ino);
        let met = target.map(|target| self.inode(target.ino));
        let keeps_parent = source.kind.is_dir() && from_dir == to_dir;
        let moves = (!keeps_parent).then_some((&source, &moved));
        let mut nodes: Vec<_> = moves.into_iter().chain(target.as_ref().zip(met.as_ref())).collect();
        nodes.sort_by_key(|(attr, inode)| (!attr.kind.is_dir(), inode.ino));
        let mut node_locks = Vec::new();
        for (_, inode) in nodes {
            node_locks.push(inode.lock.alone().await);
        }
        let links = match target {
            Some(target) => self.0.fs.getattr(target.ino).await?.links,
            None => 0,
        };
        self.0.fs.rename((from_dir, from), (to_dir, to), mode, self.timestamp()).await?;
        drop((node_locks, dir_locks));
        if let (Some(target), Some(met), RenameMode::Replace) = (target, &met, mode)
            && (target.kind.is_dir() || links <= 1)
        {
            self.note_gone(met.rc()).await;
        }
        Ok(())
    }

    /// Checks the rules of a rename.
    async fn check_move(
        &self,
        creds: &Creds,
        (from_dir, to_dir): &(Attr, Attr),
        source: &Attr,
        target: Option<&Attr>,
        mode: RenameMode,
    ) -> Result<()> {
        let is_same_dir = from_dir.ino == to_dir.ino;
        match (mode, target) {
            (RenameMode::NoReplace, Some(_)) => return Err(Errno::EEXIST),
            (RenameMode::Exchange, None) => return Err(Errno::ENOENT),
            _ => {}
        }
        if !is_same_dir && source.kind.is_dir() && self.is_above(source.ino, to_dir.ino).await? {
            return Err(Errno::EINVAL);
        }
        if let Some(target) = target
            && !is_same_dir
            && target.kind.is_dir()
            && self.is_above(target.ino, from_dir.ino).await?
        {
            let is_exchange = mode == RenameMode::Exchange;
            return Err(if is_exchange { Errno::EINVAL } else { Errno::ENOTEMPTY });
        }
        rights::check_remove(creds, from_dir, source)?;
        match target {
            Some(target) => rights::check_remove(creds, to_dir, target)?,
            None => rights::check(creds, to_dir, Wish::CHANGE_NAMES)?,
        }
        // A directory that moves gets another `..`, which changes the directory.
        let is_rewritten = |attr: &Attr| attr.kind.is_dir() && !is_same_dir;
        if is_rewritten(source) {
            rights::check(creds, source, Wish::WRITE)?;
        }
        let Some(target) = target else { return Ok(()) };
        if mode == RenameMode::Exchange {
            return if is_rewritten(target) { rights::check(creds, target, Wish::WRITE) } else { Ok(()) };
        }
        match (source.kind.is_dir(), target.kind.is_dir()) {
            (true, false) => Err(Errno::ENOTDIR),
            (false, true) => Err(Errno::EISDIR),
            _ => Ok(()),
        }
    }
}

/// Why nothing was created.
enum Refused {
    Errno(Errno),
    Exists(Attr),
}

impl From<Errno> for Refused {
    fn from(errno: Errno) -> Self {
        Self::Errno(errno)
    }
}
