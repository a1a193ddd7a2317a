//! The calls of a program: paths, with credentials, a working directory and a mask of permission bits.

use super::attrs::SetTime;
use super::file::{File, OpenFlags};
use super::mount::InodeRef;
use super::names::Make;
use super::rights::{self, Wish};
use super::state::Vfs;
use super::types::*;
use super::walk::{Last, LastName, Place};
use super::{Errno, Fs};
use std::fmt;

/// Most retries of `open` when other tasks create or remove what it has to open.
const OPEN_RETRIES_MAX: u32 = 40;

/// A caller. Paths are bytes; a path without a slash at the beginning starts at the working directory.
pub struct Process<F: Fs> {
    vfs: Vfs<F>,
    creds: Creds,
    dir: Ino,
}

impl<F: Fs> Clone for Process<F> {
    fn clone(&self) -> Self {
        Self { vfs: self.vfs.clone(), creds: self.creds.clone(), ..*self }
    }
}

impl<F: Fs> fmt::Debug for Process<F> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Process")
            .field("creds", &self.creds)
            .field("umask", &format_args!("{:o}", self.creds.umask))
            .field("dir", &self.dir)
            .finish_non_exhaustive()
    }
}

/// Whether a symbolic link at the end of a path is followed.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Follow {
    /// It is followed.
    #[default]
    Yes,
    /// The link itself is used.
    No,
}

impl Follow {
    const fn last(self) -> Last {
        match self {
            Self::Yes => Last::Follow,
            Self::No => Last::NoFollow,
        }
    }
}

impl<F: Fs> Vfs<F> {
    /// Returns a caller with these credentials, the mask 022 and the root as working directory.
    pub fn process(&self, creds: Creds) -> Process<F> {
        Process { vfs: self.clone(), creds: creds.with_umask(0o022), dir: self.0.fs.root() }
    }

    /// Opens an inode by its number; nothing is created.
    pub async fn open_inode(&self, creds: &Creds, ino: Ino, flags: OpenFlags) -> Result<File<F>> {
        self.check_atomic(flags)?;
        let attr = self.0.fs.getattr(ino).await?;
        self.open_found(creds, &attr, flags, false).await
    }

    /// Creates a file without a name in the file system of a directory, which is given by its number, and opens it; see
    /// [`Process::open_nameless`]. Its first name comes from [`Self::link_name`].
    pub async fn open_nameless_in(
        &self,
        creds: &Creds,
        dir: Ino,
        flags: OpenFlags,
        permissions: u16,
    ) -> Result<File<F>> {
        if !flags.access.writes() || flags.create {
            return Err(Errno::EINVAL);
        }
        self.check_atomic(flags)?;
        let inode = self.make_nameless(creds, dir, permissions, !flags.exclusive).await?;
        self.opened(inode, Kind::File, flags, creds).await
    }

    /// The open file of an inode that is in use for it.
    async fn opened(
        &self,
        inode: InodeRef<F>,
        kind: Kind,
        flags: OpenFlags,
        creds: &Creds,
    ) -> Result<File<F>> {
        if flags.atomic
            && let Err(errno) = self.begin_atomic(inode.rc()).await
        {
            let _ = self.end_use(inode).await;
            return Err(errno);
        }
        Ok(File::new(inode, kind, flags, creds.is_root()))
    }

    /// Opens an existing inode; rights are not checked for one that the caller has just created.
    async fn open_found(
        &self,
        creds: &Creds,
        attr: &Attr,
        flags: OpenFlags,
        is_new: bool,
    ) -> Result<File<F>> {
        let writes = flags.access.writes() || flags.truncate;
        match attr.kind {
            Kind::Symlink => return Err(Errno::ELOOP),
            Kind::Directory if writes || flags.create => return Err(Errno::EISDIR),
            Kind::File if flags.directory => return Err(Errno::ENOTDIR),
            Kind::File | Kind::Directory => {}
            Kind::Fifo | Kind::Socket | Kind::CharDevice(_) | Kind::BlockDevice(_) => {
                return Err(if flags.directory { Errno::ENOTDIR } else { Errno::ENXIO });
            }
        }
        if !is_new {
            rights::check(creds, attr, Wish { read: flags.access.reads(), write: writes, execute: false })?;
        }
        if writes {
            self.check_writable()?;
        }
        let inode = self.use_found(attr).await?;
        if flags.truncate && !is_new {
            // This includes an empty file, because its times change.
            if let Err(errno) = self.resize_checked(&inode, 0, creds.is_root()).await {
                let _ = self.end_use(inode).await;
                return Err(errno);
            }
        }
        self.opened(inode, attr.kind, flags, creds).await
    }
}

impl<F: Fs> Process<F> {
    /// The mount.
    pub fn vfs(&self) -> &Vfs<F> {
        &self.vfs
    }

    /// Credentials of the caller.
    pub fn creds(&self) -> &Creds {
        &self.creds
    }

    /// The working directory.
    pub fn dir(&self) -> Ino {
        self.dir
    }

    /// The same caller with another mask.
    pub fn with_umask(&self, umask: u16) -> Self {
        Self { creds: self.creds.clone().with_umask(umask), ..self.clone() }
    }

    /// The same caller in the directory with this number, for front ends that know inodes instead of paths.
    pub fn at(&self, dir: Ino) -> Self {
        Self { dir, ..self.clone() }
    }

    /// The same caller with another working directory, which it must be able to enter.
    pub async fn with_dir(&self, path: impl AsRef<[u8]>) -> Result<Self> {
        let attr = self.find(path.as_ref(), Follow::Yes).await?;
        if !attr.kind.is_dir() {
            return Err(Errno::ENOTDIR);
        }
        rights::check(&self.creds, &attr, Wish::EXECUTE)?;
        Ok(self.at(attr.ino))
    }

    async fn walk(&self, path: &[u8], last: Last) -> Result<Place> {
        self.vfs.charge_call(0, 0).await;
        self.vfs.walk(&self.creds, self.dir, path, last).await
    }

    async fn find(&self, path: &[u8], follow: Follow) -> Result<Attr> {
        self.vfs.charge_call(0, 0).await;
        self.vfs.find(&self.creds, self.dir, path, follow.last()).await
    }

    // Files.

    /// Opens a file or a directory. A new file gets `permissions` without the bits of the mask.
    pub async fn open(&self, path: impl AsRef<[u8]>, flags: OpenFlags, permissions: u16) -> Result<File<F>> {
        if flags.create && flags.directory {
            return Err(Errno::EINVAL);
        }
        self.vfs.check_atomic(flags)?;
        let is_exclusive = flags.create && flags.exclusive;
        let last = if flags.no_follow || is_exclusive { Last::NoFollow } else { Last::Follow };
        let mut tries = 0;
        loop {
            let place = self.walk(path.as_ref(), last).await?;
            if let Some(attr) = place.node {
                if is_exclusive {
                    return Err(Errno::EEXIST);
                }
                if attr.kind.is_symlink() && flags.directory {
                    return Err(Errno::ENOTDIR);
                }
                match self.vfs.open_found(&self.creds, &attr, flags, false).await {
                    // The file was removed meanwhile.
                    Err(Errno::ESTALE) if tries < OPEN_RETRIES_MAX => tries += 1,
                    opened => return opened,
                }
                continue;
            }
            let LastName::Name(name) = &place.name else { return Err(Errno::ENOENT) };
            if !flags.create {
                return Err(Errno::ENOENT);
            }
            if place.is_dir_wanted {
                return Err(Errno::EISDIR);
            }
            let what = Make::Node(Kind::File);
            match self.vfs.make(&self.creds, place.dir, name, what, permissions).await {
                Ok(attr) => match self.vfs.open_found(&self.creds, &attr, flags, true).await {
                    Err(Errno::ESTALE) if !is_exclusive && tries < OPEN_RETRIES_MAX => tries += 1,
                    opened => return opened,
                },
                // Another task created the file first; it is opened.
                Err((Errno::EEXIST, Some(_))) if !is_exclusive && tries < OPEN_RETRIES_MAX => tries += 1,
                Err((errno, _)) => return Err(errno),
            }
        }
    }

    /// Creates a file without a name in the file system of a directory and opens it (`O_TMPFILE`): it is gone when it is closed, or
    /// after a power cut, unless [`Self::link_inode`] has given it a name before; with [`OpenFlags::exclusive`] that is impossible.
    /// `EINVAL` if it is not opened for writing.
    pub async fn open_nameless(
        &self,
        dir: impl AsRef<[u8]>,
        flags: OpenFlags,
        permissions: u16,
    ) -> Result<File<F>> {
        let attr = self.find(dir.as_ref(), Follow::Yes).await?;
        self.vfs.open_nameless_in(&self.creds, attr.ino, flags, permissions).await
    }

    /// Creates a file, or empties an existing one, and opens it for writing, with permissions 0666 less the mask.
    pub async fn create(&self, path: impl AsRef<[u8]>) -> Result<File<F>> {
        self.open(path, OpenFlags::WRITE.create().truncate(), 0o666).await
    }

    /// The attributes of the inode at a path.
    pub async fn stat(&self, path: impl AsRef<[u8]>, follow: Follow) -> Result<Attr> {
        self.find(path.as_ref(), follow).await.map(|attr| self.vfs.seen(attr))
    }

    /// `EACCES` if the caller lacks this right on the path's target, `EROFS` if no caller may write.
    pub async fn access(&self, path: impl AsRef<[u8]>, wish: Wish) -> Result<()> {
        let attr = self.find(path.as_ref(), Follow::Yes).await?;
        if wish.write && (attr.kind.is_file() || attr.kind.is_dir() || attr.kind.is_symlink()) {
            self.vfs.check_writable()?;
        }
        rights::check(&self.creds, &attr, wish)
    }

    /// Changes the length of a file.
    pub async fn truncate(&self, path: impl AsRef<[u8]>, size: u64) -> Result<()> {
        let attr = self.find(path.as_ref(), Follow::Yes).await?;
        self.vfs.truncate_inode(&self.creds, attr.ino, size).await.map(drop)
    }

    // Names.

    /// Creates a directory.
    pub async fn mkdir(&self, path: impl AsRef<[u8]>, permissions: u16) -> Result<Attr> {
        let place = self.walk(path.as_ref(), Last::Name).await?;
        let LastName::Name(name) = &place.name else { return Err(Errno::EEXIST) };
        let permissions = permissions & 0o1777;
        let what = Make::Node(Kind::Directory);
        self.vfs.make(&self.creds, place.dir, name, what, permissions).await.map_err(|(errno, _)| errno)
    }

    /// Creates a file, a named pipe, a socket or (root only) a device. `EPERM` for a directory, `EINVAL` for a link.
    pub async fn mknod(&self, path: impl AsRef<[u8]>, kind: Kind, permissions: u16) -> Result<Attr> {
        match kind {
            Kind::Directory => return Err(Errno::EPERM),
            Kind::Symlink => return Err(Errno::EINVAL),
            _ => {}
        }
        self.make_leaf(path.as_ref(), Make::Node(kind), permissions).await
    }

    /// Creates a symbolic link. `ENOENT` for an empty target, `ENAMETOOLONG` for a long one.
    pub async fn symlink(&self, target: impl AsRef<[u8]>, path: impl AsRef<[u8]>) -> Result<Attr> {
        let target = target.as_ref();
        self.vfs.check_target(target)?;
        self.make_leaf(path.as_ref(), Make::Symlink(target), 0o777).await
    }

    async fn make_leaf(&self, path: &[u8], what: Make<'_>, permissions: u16) -> Result<Attr> {
        let place = self.walk(path, Last::Name).await?;
        let LastName::Name(name) = &place.name else { return Err(Errno::EEXIST) };
        if place.is_dir_wanted {
            let node = self.vfs.find(&self.creds, self.dir, path, Last::Follow).await;
            return Err(node.map_or_else(|errno| errno, |_| Errno::EEXIST));
        }
        self.vfs.make(&self.creds, place.dir, name, what, permissions).await.map_err(|(errno, _)| errno)
    }

    /// The target of a symbolic link; `EINVAL` for anything else.
    pub async fn readlink(&self, path: impl AsRef<[u8]>) -> Result<Box<[u8]>> {
        let attr = self.find(path.as_ref(), Follow::No).await?;
        if attr.kind.is_symlink() { self.vfs.0.fs.readlink(attr.ino).await } else { Err(Errno::EINVAL) }
    }

    /// Gives the inode at `old` the further name `new`. A symbolic link is not followed.
    pub async fn link(&self, old: impl AsRef<[u8]>, new: impl AsRef<[u8]>) -> Result<Attr> {
        let attr = self.find(old.as_ref(), Follow::No).await?;
        self.link_inode(attr.ino, new).await
    }

    /// Does the same for an inode that is given by its number.
    pub async fn link_inode(&self, ino: Ino, new: impl AsRef<[u8]>) -> Result<Attr> {
        let place = self.walk(new.as_ref(), Last::Name).await?;
        let LastName::Name(name) = &place.name else { return Err(Errno::EEXIST) };
        if place.is_dir_wanted {
            return Err(Errno::ENOENT);
        }
        self.vfs.add_link(&self.creds, ino, place.dir, name).await
    }

    /// Removes the name of an inode that is not a directory.
    pub async fn unlink(&self, path: impl AsRef<[u8]>) -> Result<()> {
        let place = self.walk(path.as_ref(), Last::Name).await?;
        let LastName::Name(name) = &place.name else { return Err(Errno::EISDIR) };
        if place.is_dir_wanted {
            // A link is not followed here: the name is what would be removed.
            let attr = self.vfs.lookup_in(place.dir, name).await?;
            return Err(if attr.kind.is_dir() { Errno::EISDIR } else { Errno::ENOTDIR });
        }
        self.vfs.remove(&self.creds, place.dir, name, false).await
    }

    /// Removes an empty directory.
    pub async fn rmdir(&self, path: impl AsRef<[u8]>) -> Result<()> {
        let place = self.walk(path.as_ref(), Last::Name).await?;
        match &place.name {
            LastName::Name(name) => self.vfs.remove(&self.creds, place.dir, name, true).await,
            LastName::Root => Err(Errno::EBUSY),
            LastName::Dot => Err(Errno::EINVAL),
            LastName::DotDot => Err(Errno::ENOTEMPTY),
        }
    }

    /// Moves `old` to `new`. `EINVAL` for a directory that would be beneath itself, `ENOTEMPTY`, `EISDIR` and `ENOTDIR` for a
    /// target that must not be replaced, `EBUSY` for `.`, `..` and the root.
    pub async fn rename(&self, old: impl AsRef<[u8]>, new: impl AsRef<[u8]>, mode: RenameMode) -> Result<()> {
        let from = self.walk(old.as_ref(), Last::Name).await?;
        let to = self.vfs.walk(&self.creds, self.dir, new.as_ref(), Last::Name).await?;
        let (LastName::Name(from_name), LastName::Name(to_name)) = (&from.name, &to.name) else {
            let is_refused = mode == RenameMode::NoReplace && !matches!(to.name, LastName::Name(_));
            return Err(if is_refused { Errno::EEXIST } else { Errno::EBUSY });
        };
        // What has a slash behind it must be a directory, and a target that does not exist may become one. Links are not followed.
        let is_exchange = mode == RenameMode::Exchange;
        let wanted = [
            (from.is_dir_wanted || to.is_dir_wanted && !is_exchange, from.dir, from_name),
            (to.is_dir_wanted && is_exchange, to.dir, to_name),
        ];
        for (_, dir, name) in wanted.into_iter().filter(|(is_wanted, ..)| *is_wanted) {
            if !self.vfs.lookup_in(dir, name).await?.kind.is_dir() {
                return Err(Errno::ENOTDIR);
            }
        }
        self.vfs.move_name(&self.creds, (from.dir, from_name), (to.dir, to_name), mode).await
    }

    /// All entries of a directory, by name.
    pub async fn list(&self, path: impl AsRef<[u8]>) -> Result<Vec<DirEntry>> {
        let dir = self.open(path, OpenFlags::READ.directory(), 0).await?;
        let mut all = Vec::new();
        let mut after = Cookie::START;
        loop {
            let entries = dir.read_dir(after, usize::MAX).await?;
            let Some(last) = entries.last() else { break };
            after = last.cookie;
            all.extend(entries);
        }
        dir.close().await?;
        all.sort_by(|a, b| a.name.cmp(&b.name));
        Ok(all)
    }

    // Attributes.

    /// Changes permission bits; see [`Vfs::change_mode`].
    pub async fn chmod(&self, path: impl AsRef<[u8]>, permissions: u16) -> Result<()> {
        let attr = self.find(path.as_ref(), Follow::Yes).await?;
        self.vfs.change_mode(&self.creds, attr.ino, permissions).await.map(drop)
    }

    /// Changes owner and group; see [`Vfs::change_owner`].
    pub async fn chown(
        &self,
        path: impl AsRef<[u8]>,
        uid: Option<u32>,
        gid: Option<u32>,
        follow: Follow,
    ) -> Result<()> {
        let attr = self.find(path.as_ref(), follow).await?;
        self.vfs.change_owner(&self.creds, attr.ino, uid, gid).await.map(drop)
    }

    /// Changes times; see [`Vfs::set_times`].
    pub async fn utimens(
        &self,
        path: impl AsRef<[u8]>,
        atime: SetTime,
        mtime: SetTime,
        follow: Follow,
    ) -> Result<()> {
        let attr = self.find(path.as_ref(), follow).await?;
        self.vfs.set_times(&self.creds, attr.ino, atime, mtime).await.map(drop)
    }

    /// The value of an extended attribute; see [`Vfs::xattr_of`].
    pub async fn getxattr(
        &self,
        path: impl AsRef<[u8]>,
        name: impl AsRef<[u8]>,
        follow: Follow,
    ) -> Result<Box<[u8]>> {
        let attr = self.find(path.as_ref(), follow).await?;
        self.vfs.xattr_of(&self.creds, attr.ino, name.as_ref()).await
    }

    /// Sets an extended attribute; see [`Vfs::set_xattr_of`].
    pub async fn setxattr(
        &self,
        path: impl AsRef<[u8]>,
        name: impl AsRef<[u8]>,
        value: &[u8],
        mode: XattrMode,
        follow: Follow,
    ) -> Result<()> {
        let attr = self.find(path.as_ref(), follow).await?;
        self.vfs.set_xattr_of(&self.creds, attr.ino, name.as_ref(), value, mode).await
    }

    /// The names of the extended attributes.
    pub async fn listxattr(&self, path: impl AsRef<[u8]>, follow: Follow) -> Result<Vec<Box<[u8]>>> {
        let attr = self.find(path.as_ref(), follow).await?;
        self.vfs.xattr_names_of(&self.creds, attr.ino).await
    }

    /// Removes an extended attribute.
    pub async fn removexattr(
        &self,
        path: impl AsRef<[u8]>,
        name: impl AsRef<[u8]>,
        follow: Follow,
    ) -> Result<()> {
        let attr = self.find(path.as_ref(), follow).await?;
        self.vfs.remove_xattr_of(&self.creds, attr.ino, name.as_ref()).await
    }
}
