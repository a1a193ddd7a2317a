//! Attributes: permission to change them, and what changes along with them.
//!
//! All of this takes inodes, not paths, so that front ends that know inodes (FUSE) need no path.

use super::rights::{self, Wish};
use super::state::Vfs;
use super::types::*;
use super::{Acl, AclKind, Errno, Fs, mode};

/// A new time of an inode.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum SetTime {
    /// The time stays.
    #[default]
    Omit,
    /// The current time.
    Now,
    /// This time.
    At(Timestamp),
}

/// Longest name of an extended attribute in bytes.
pub const XATTR_NAME_BYTES_MAX: usize = 255;

impl<F: Fs> Vfs<F> {
    /// The attributes of an inode.
    pub async fn attr_of(&self, ino: Ino) -> Result<Attr> {
        self.0.fs.getattr(ino).await.map(|attr| self.seen(attr))
    }

    /// Changes attributes under the inode's lock; `decide` returns the changes for the current attributes.
    async fn change(&self, ino: Ino, decide: impl FnOnce(&Attr) -> Result<SetAttr>) -> Result<Attr> {
        let inode = self.inode(ino);
        let _lock = inode.lock.alone().await;
        self.check_writable()?;
        let before = self.0.fs.getattr(ino).await?;
        let changes = decide(&before)?;
        let after = self.0.fs.setattr(ino, &changes).await?;
        if changes.mtime.is_some() {
            inode.note_times_set();
        }
        inode.note_mode(&after);
        Ok(self.seen(after))
    }

    /// chmod. `EPERM` unless owner or root; the set-group bit is cleared if the caller is not in the file's group.
    pub async fn change_mode(&self, creds: &Creds, ino: Ino, permissions: u16) -> Result<Attr> {
        self.change(ino, |attr| {
            rights::check_owner(creds, attr)?;
            let mut bits = permissions & mode::ALL;
            if !creds.is_root() && !creds.in_group(attr.gid) {
                bits &= !mode::SETGID;
            }
            Ok(SetAttr { mode: Some(bits), ctime: Some(self.timestamp()), ..SetAttr::default() })
        })
        .await
    }

    /// chown; `None` leaves user or group as it is. Only root can change the owner; an owner may choose among its own groups.
    pub async fn change_owner(
        &self,
        creds: &Creds,
        ino: Ino,
        uid: Option<u32>,
        gid: Option<u32>,
    ) -> Result<Attr> {
        self.change(ino, |attr| {
            let is_given_away = uid.is_some_and(|uid| uid != attr.uid);
            let is_foreign_group = gid.is_some_and(|gid| gid != attr.gid && !creds.in_group(gid));
            if !creds.is_root() && (creds.uid != attr.uid || is_given_away || is_foreign_group) {
                let changes_nothing = uid.is_none() && gid.is_none();
                if !changes_nothing {
                    return Err(Errno::EPERM);
                }
            }
            let kept = if attr.kind.is_dir() { attr.mode } else { without_privileges(attr.mode) };
            let mode = (kept != attr.mode).then_some(kept);
            Ok(SetAttr { uid, gid, mode, ctime: Some(self.timestamp()), ..SetAttr::default() })
        })
        .await
    }

    /// utimensat. Only owner and root may set arbitrary times (`EPERM`); callers with write permission may also set the current time
    /// (`EACCES`).
    pub async fn set_times(&self, creds: &Creds, ino: Ino, atime: SetTime, mtime: SetTime) -> Result<Attr> {
        if (atime, mtime) == (SetTime::Omit, SetTime::Omit) {
            return self.attr_of(ino).await;
        }
        self.change(ino, |attr| {
            if rights::check_owner(creds, attr).is_err() {
                if (atime, mtime) != (SetTime::Now, SetTime::Now) {
                    return Err(Errno::EPERM);
                }
                rights::check(creds, attr, Wish::WRITE)?;
            }
            let now = self.timestamp();
            let time = |set| match set {
                SetTime::Omit => None,
                SetTime::Now => Some(now),
                SetTime::At(time) => Some(time),
            };
            Ok(SetAttr { atime: time(atime), mtime: time(mtime), ctime: Some(now), ..SetAttr::default() })
        })
        .await
    }

    /// truncate of an inode; `creds` must have the right to write to it.
    pub async fn truncate_inode(&self, creds: &Creds, ino: Ino, size: u64) -> Result<Attr> {
        let attr = self.0.fs.getattr(ino).await?;
        match attr.kind {
            Kind::Directory => return Err(Errno::EISDIR),
            Kind::File => {}
            _ => return Err(Errno::EINVAL),
        }
        rights::check(creds, &attr, Wish::WRITE)?;
        let inode = self.use_found(&attr).await?;
        let result = self.resize_checked(&inode, size, creds.is_root()).await;
        let ended = self.end_use(inode).await;
        let attr = result?;
        ended.map(|()| attr)
    }

    /// Changes the size of a file in use, with its times. The caller has checked the rights.
    pub(crate) async fn resize_checked(
        &self,
        inode: &super::mount::InodeRef<F>,
        size: u64,
        is_root: bool,
    ) -> Result<Attr> {
        self.check_writable()?;
        check_size(size, self.0.limits.file_bytes_max)?;
        let _lock = inode.lock.alone().await;
        let now = Some(self.timestamp());
        let mode = self.mode_after_write(inode, is_root).await?;
        let changes = SetAttr { size: Some(size), mode, mtime: now, ctime: now, ..SetAttr::default() };
        let attr = self.resize(inode.rc(), size, &changes).await?;
        inode.note_mode(&attr);
        Ok(attr)
    }

    /// The mode of a file after a write by a caller other than root, if the write changes it.
    pub(crate) async fn mode_after_write(
        &self,
        inode: &super::inode::Inode,
        is_root: bool,
    ) -> Result<Option<u16>> {
        if is_root || !inode.privileged.get() {
            return Ok(None);
        }
        let before = self.0.fs.getattr(inode.ino).await?.mode;
        let after = without_privileges(before);
        Ok((after != before).then_some(after))
    }

    // Extended attributes.

    /// The value of an extended attribute.
    pub async fn xattr_of(&self, creds: &Creds, ino: Ino, name: &[u8]) -> Result<Box<[u8]>> {
        let attr = self.0.fs.getattr(ino).await?;
        if let Some(kind) = AclKind::of_name(name) {
            let acl = self.acl_of(&attr, kind).await?.ok_or(Errno::ENODATA)?;
            return Ok(acl.to_wire().into());
        }
        match check_xattr(creds, &attr, name, Wish::READ) {
            // A caller without the right to see such attributes is told that there are none.
            Err(Errno::EPERM) => return Err(Errno::ENODATA),
            checked => checked?,
        }
        let inode = self.inode(ino);
        let _lock = inode.lock.shared().await;
        self.0.fs.getxattr(ino, name).await
    }

    /// Sets an extended attribute. `ERANGE` if the name is too long, `E2BIG` if the value is. An access control list goes through
    /// [`Self::set_acl_of`]; `creds` then decide whether the caller is in the file's group, and `mode` is ignored, as in Linux.
    pub async fn set_xattr_of(
        &self,
        creds: &Creds,
        ino: Ino,
        name: &[u8],
        value: &[u8],
        mode: XattrMode,
    ) -> Result<()> {
        if let Some(kind) = AclKind::of_name(name) {
            let attr = self.0.fs.getattr(ino).await?;
            let is_foreign = !creds.is_root() && !creds.in_group(attr.gid);
            return self.set_acl_of(creds, ino, kind, value, is_foreign).await;
        }
        let inode = self.inode(ino);
        let _lock = inode.lock.alone().await;
        self.check_writable()?;
        check_xattr(creds, &self.0.fs.getattr(ino).await?, name, Wish::WRITE)?;
        if value.len() > self.0.limits.xattr_value_bytes_max {
            return Err(Errno::E2BIG);
        }
        self.0.fs.setxattr(ino, name, value, mode, self.timestamp()).await
    }

    /// The names of the extended attributes that the caller may see.
    pub async fn xattr_names_of(&self, creds: &Creds, ino: Ino) -> Result<Vec<Box<[u8]>>> {
        let inode = self.inode(ino);
        let _lock = inode.lock.shared().await;
        let mut names = self.0.fs.listxattr(ino).await?;
        names.retain(|name| creds.is_root() || !name.starts_with(b"trusted."));
        Ok(names)
    }

    /// Removes an extended attribute. A missing access control list is not an error, as in Linux.
    pub async fn remove_xattr_of(&self, creds: &Creds, ino: Ino, name: &[u8]) -> Result<()> {
        if let Some(kind) = AclKind::of_name(name) {
            return self.set_acl_of(creds, ino, kind, &[], false).await;
        }
        let inode = self.inode(ino);
        let _lock = inode.lock.alone().await;
        self.check_writable()?;
        check_xattr(creds, &self.0.fs.getattr(ino).await?, name, Wish::WRITE)?;
        self.0.fs.removexattr(ino, name, self.timestamp()).await
    }
}

impl<F: Fs> Vfs<F> {
    // Access control lists.

    async fn acl_of(&self, attr: &Attr, kind: AclKind) -> Result<Option<Acl>> {
        if attr.kind.is_symlink() {
            return Err(Errno::EOPNOTSUPP);
        }
        let inode = self.inode(attr.ino);
        let _lock = inode.lock.shared().await;
        self.0.fs.acl(attr.ino, kind).await
    }

    /// Sets an access control list in the form in which programs have it (see [`Acl`]); an empty one removes it. An access list
    /// changes the permission bits, and is not kept if these express all of it. With `clears_setgid`, the caller is neither in the
    /// file's group nor privileged, and an access list that it sets clears the set-group bit. `EINVAL` for an invalid list, `EPERM`
    /// unless owner or root, `EACCES` for a default list of anything but a directory, `EOPNOTSUPP` for symbolic links.
    pub async fn set_acl_of(
        &self,
        creds: &Creds,
        ino: Ino,
        kind: AclKind,
        value: &[u8],
        clears_setgid: bool,
    ) -> Result<()> {
        let inode = self.inode(ino);
        let _lock = inode.lock.alone().await;
        self.check_writable()?;
        if value.len() > self.0.limits.xattr_value_bytes_max {
            return Err(Errno::E2BIG);
        }
        let acl = Acl::from_wire(value)?;
        let attr = self.0.fs.getattr(ino).await?;
        if attr.kind.is_symlink() {
            return Err(Errno::EOPNOTSUPP);
        }
        if kind == AclKind::Default && !attr.kind.is_dir() {
            return if acl.is_some() { Err(Errno::EACCES) } else { Ok(()) };
        }
        rights::check_owner(creds, &attr)?;
        let mode = acl.as_ref().filter(|_| kind == AclKind::Access).map(|acl| {
            let kept = if clears_setgid { !0o777 & !mode::SETGID } else { !0o777 };
            attr.mode & kept | acl.mode()
        });
        let acl = acl.filter(|acl| kind == AclKind::Default || !acl.is_mode());
        let after = self.0.fs.set_acl(ino, kind, acl.as_ref(), mode, self.timestamp()).await?;
        inode.note_mode(&after);
        Ok(())
    }
}

/// Checks a size: `EFBIG` beyond `max`, `EINVAL` if it would be negative as a signed offset.
pub(crate) fn check_size(size: u64, max: u64) -> Result<()> {
    match size {
        _ if size > i64::MAX as u64 => Err(Errno::EINVAL),
        _ if size > max => Err(Errno::EFBIG),
        _ => Ok(()),
    }
}

/// The mode without the set-user bit, and without the set-group bit unless that stands for mandatory locks.
fn without_privileges(bits: u16) -> u16 {
    let group = if bits & mode::GROUP_EXEC != 0 { mode::SETGID } else { 0 };
    bits & !mode::SETUID & !group
}

fn check_xattr(creds: &Creds, attr: &Attr, name: &[u8], wish: Wish) -> Result<()> {
    if name.is_empty() || name.len() > XATTR_NAME_BYTES_MAX {
        return Err(Errno::ERANGE);
    }
    let dot = name.iter().position(|&byte| byte == b'.').ok_or(Errno::EOPNOTSUPP)?;
    if dot + 1 == name.len() {
        return Err(Errno::EINVAL);
    }
    match &name[..dot] {
        b"user" => {
            let is_fit = attr.kind.is_file() || attr.kind.is_dir();
            let is_sticky = attr.kind.is_dir() && attr.mode & mode::STICKY != 0;
            if !is_fit || (wish.write && is_sticky && rights::check_owner(creds, attr).is_err()) {
                return Err(Errno::EPERM);
            }
            rights::check(creds, attr, wish)
        }
        b"trusted" if creds.is_root() => Ok(()),
        b"trusted" => Err(Errno::EPERM),
        b"security" if !wish.write || creds.is_root() => Ok(()),
        b"security" => Err(Errno::EPERM),
        _ => Err(Errno::EOPNOTSUPP),
    }
}
