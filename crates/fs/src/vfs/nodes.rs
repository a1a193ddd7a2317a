//! The mount by inodes: for front ends that know inode numbers instead of paths, such as FUSE.
//!
//! Place in the data flow: the kernel walks paths and checks rights, and calls these functions with a directory and a name, or with
//! an inode number; they do what [`Process`](super::Process) does at the end of a path.
//!
//! Invariant: an inode that is kept is not freed and its number not used again, even if all its names are removed.
//!
//! Deliberately absent: `.` as a name, and rights: callers have [`Creds::checked`].

use super::mount::InodeRef;
use super::names::Make;
use super::state::Vfs;
use super::types::*;
use super::{Errno, Fs};
use std::fmt;

/// An inode that is not freed as long as this exists.
pub struct Kept<F: Fs>(InodeRef<F>);

impl<F: Fs> fmt::Debug for Kept<F> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Kept({})", self.0.ino)
    }
}

impl<F: Fs> Kept<F> {
    /// Releases the inode; without names it is freed now. If that fails it is freed later, by recovery at the latest.
    pub async fn end(self) -> Result<()> {
        let vfs = self.0.vfs().clone();
        vfs.end_use(self.0).await
    }
}

impl<F: Fs> Vfs<F> {
    /// The root directory.
    pub fn root(&self) -> Ino {
        self.0.fs.root()
    }

    /// The bounds of the file system.
    pub fn limits(&self) -> Limits {
        self.0.limits
    }

    /// Keeps an inode until [`Kept::end`]; if it is dropped instead, the inode stays in use. `ESTALE` if it does not exist.
    pub async fn keep(&self, ino: Ino) -> Result<Kept<F>> {
        self.use_inode(ino).await.map(Kept)
    }

    /// The inode to which `name` in `dir` refers; `..` is the directory above. `ENOENT`, `ENAMETOOLONG`.
    pub async fn lookup_name(&self, dir: Ino, name: &[u8]) -> Result<Attr> {
        if name == b".." {
            return self.0.fs.getattr(self.0.fs.parent(dir).await?).await;
        }
        self.check_name(name)?;
        self.lookup_in(dir, name).await.map(|attr| self.seen(attr))
    }

    /// Creates an inode of any kind but a symbolic link; `EEXIST`.
    pub async fn make_node(
        &self,
        creds: &Creds,
        dir: Ino,
        name: &[u8],
        kind: Kind,
        permissions: u16,
    ) -> Result<Attr> {
        self.check_name(name)?;
        self.make(creds, dir, name, Make::Node(kind), permissions).await.map_err(|(errno, _)| errno)
    }

    /// Creates a symbolic link; `EEXIST`, `ENAMETOOLONG` for a long target.
    pub async fn make_symlink(&self, creds: &Creds, dir: Ino, name: &[u8], target: &[u8]) -> Result<Attr> {
        self.check_name(name)?;
        self.check_target(target)?;
        self.make(creds, dir, name, Make::Symlink(target), 0o777).await.map_err(|(errno, _)| errno)
    }

    /// Removes the name of an empty directory, or of an inode of another kind.
    pub async fn remove_name(&self, creds: &Creds, dir: Ino, name: &[u8], of_dir: bool) -> Result<()> {
        self.check_name(name)?;
        self.remove(creds, dir, name, of_dir).await
    }

    /// Gives an inode that is not a directory another name.
    pub async fn link_name(&self, creds: &Creds, ino: Ino, dir: Ino, name: &[u8]) -> Result<Attr> {
        self.check_name(name)?;
        self.add_link(creds, ino, dir, name).await
    }

    /// Moves a name; the rules are those of [`Process::rename`](super::Process::rename).
    pub async fn rename_name(
        &self,
        creds: &Creds,
        from: (Ino, &[u8]),
        to: (Ino, &[u8]),
        mode: RenameMode,
    ) -> Result<()> {
        self.check_name(from.1)?;
        self.check_name(to.1)?;
        self.move_name(creds, from, to, mode).await
    }

    /// The target of a symbolic link; `EINVAL` for anything else.
    pub async fn target_of(&self, ino: Ino) -> Result<Box<[u8]>> {
        if self.0.fs.getattr(ino).await?.kind.is_symlink() {
            self.0.fs.readlink(ino).await
        } else {
            Err(Errno::EINVAL)
        }
    }

    /// Changes attributes for a caller that has checked the rights; only files have a size to set. The time of the change is the
    /// current one unless it is among the changes.
    pub async fn set_attr_of(&self, ino: Ino, changes: &SetAttr) -> Result<Attr> {
        self.check_writable()?;
        let inode = self.use_inode(ino).await?;
        let result = self.set_attr_in_use(&inode, changes).await;
        let ended = self.end_use(inode).await;
        let attr = result?;
        ended.map(|()| attr)
    }

    async fn set_attr_in_use(&self, inode: &InodeRef<F>, changes: &SetAttr) -> Result<Attr> {
        let Some(size) = changes.size else {
            let _lock = inode.lock.alone().await;
            let changes = SetAttr { ctime: changes.ctime.or(Some(self.timestamp())), ..*changes };
            let attr = self.0.fs.setattr(inode.ino, &changes).await?;
            if changes.mtime.is_some() {
                inode.note_times_set();
            }
            inode.note_mode(&attr);
            return Ok(self.seen(attr));
        };
        match self.0.fs.getattr(inode.ino).await?.kind {
            Kind::File => {}
            Kind::Directory => return Err(Errno::EISDIR),
            _ => return Err(Errno::EINVAL),
        }
        super::attrs::check_size(size, self.0.limits.file_bytes_max)?;
        let _lock = inode.lock.alone().await;
        let now = Some(self.timestamp());
        let changes = SetAttr { mtime: changes.mtime.or(now), ctime: changes.ctime.or(now), ..*changes };
        let attr = self.resize(inode.rc(), size, &changes).await?;
        inode.note_mode(&attr);
        Ok(attr)
    }

    fn check_name(&self, name: &[u8]) -> Result<()> {
        match name {
            b"" | b"." | b".." => Err(Errno::EINVAL),
            _ if name.len() > self.0.limits.name_bytes_max => Err(Errno::ENAMETOOLONG),
            _ => Ok(()),
        }
    }

    /// `ENOENT` for an empty target of a symbolic link, `ENAMETOOLONG` for a long one.
    pub(crate) fn check_target(&self, target: &[u8]) -> Result<()> {
        match target.len() {
            0 => Err(Errno::ENOENT),
            len if len > self.0.limits.symlink_bytes_max => Err(Errno::ENAMETOOLONG),
            _ => Ok(()),
        }
    }
}
