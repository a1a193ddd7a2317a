//! Permission checks: owner, group, others; sticky directories; root.

use super::types::*;
use super::{Errno, mode};

/// Access that a caller wants to an inode.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Wish {
    /// To read it.
    pub read: bool,
    /// To change it.
    pub write: bool,
    /// To execute the file, or to search the directory.
    pub execute: bool,
}

impl Wish {
    /// To read.
    pub const READ: Self = Self { read: true, write: false, execute: false };
    /// To change.
    pub const WRITE: Self = Self { read: false, write: true, execute: false };
    /// To search a directory, or to execute a file.
    pub const EXECUTE: Self = Self { read: false, write: false, execute: true };
    /// To change the names of a directory.
    pub const CHANGE_NAMES: Self = Self { read: false, write: true, execute: true };

    const fn bits(self) -> u16 {
        (self.read as u16) << 2 | (self.write as u16) << 1 | self.execute as u16
    }
}

/// `EACCES` if the permission bits deny the access. The first class that fits decides: an owner gets no right from the bits of the
/// group.
pub(crate) fn check(creds: &Creds, attr: &Attr, wish: Wish) -> Result<()> {
    let wanted = wish.bits();
    let granted = if creds.is_root() {
        // Root executes only files with an execute bit, but may search every directory.
        let runs = attr.kind.is_dir() || attr.mode & 0o111 != 0;
        if runs { 0o7 } else { 0o6 }
    } else if creds.uid == attr.uid {
        attr.mode >> 6
    } else if creds.in_group(attr.gid) {
        attr.mode >> 3
    } else {
        attr.mode
    };
    if wanted & !granted & 0o7 == 0 { Ok(()) } else { Err(Errno::EACCES) }
}

/// `EPERM` unless the caller is the owner or root.
pub(crate) fn check_owner(creds: &Creds, attr: &Attr) -> Result<()> {
    if creds.is_root() || creds.uid == attr.uid { Ok(()) } else { Err(Errno::EPERM) }
}

/// Whether the name of `victim` may be removed from `dir`.
pub(crate) fn check_remove(creds: &Creds, dir: &Attr, victim: &Attr) -> Result<()> {
    check(creds, dir, Wish::CHANGE_NAMES)?;
    let is_sticky = dir.mode & mode::STICKY != 0;
    if is_sticky && !creds.is_root() && creds.uid != victim.uid && creds.uid != dir.uid {
        return Err(Errno::EPERM);
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn attr(kind: Kind, mode: u16, uid: u32, gid: u32) -> Attr {
        let time = Timestamp::default();
        Attr {
            ino: Ino(1),
            generation: 0,
            kind,
            mode,
            links: 1,
            uid,
            gid,
            size: 0,
            blocks_512: 0,
            atime: time,
            mtime: time,
            ctime: time,
        }
    }

    #[test]
    fn the_first_class_that_fits_decides() {
        let file = attr(Kind::File, 0o074, 10, 20);
        let owner = Creds::user(10, 20);
        assert_eq!(check(&owner, &file, Wish::READ), Err(Errno::EACCES));
        assert_eq!(check(&Creds::user(11, 20), &file, Wish::CHANGE_NAMES), Ok(()));
        let further = Creds { groups: vec![20], ..Creds::user(11, 1) };
        assert_eq!(check(&further, &file, Wish::EXECUTE), Ok(()));
        let other = Creds::user(11, 21);
        assert_eq!(check(&other, &file, Wish::READ), Ok(()));
        assert_eq!(check(&other, &file, Wish::WRITE), Err(Errno::EACCES));
    }

    #[test]
    fn root_runs_only_what_somebody_may_run() {
        let none = attr(Kind::File, 0, 10, 20);
        assert_eq!(check(&Creds::ROOT, &none, Wish { execute: false, ..Wish::CHANGE_NAMES }), Ok(()));
        assert_eq!(check(&Creds::ROOT, &none, Wish::EXECUTE), Err(Errno::EACCES));
        assert_eq!(check(&Creds::ROOT, &attr(Kind::File, 0o001, 1, 1), Wish::EXECUTE), Ok(()));
        assert_eq!(check(&Creds::ROOT, &attr(Kind::Directory, 0, 1, 1), Wish::EXECUTE), Ok(()));
    }

    #[test]
    fn only_owners_remove_from_a_sticky_directory() {
        let dir = attr(Kind::Directory, 0o1777, 1, 1);
        let victim = attr(Kind::File, 0o666, 2, 2);
        assert_eq!(check_remove(&Creds::user(3, 3), &dir, &victim), Err(Errno::EPERM));
        for uid in [0, 1, 2] {
            assert_eq!(check_remove(&Creds::user(uid, 9), &dir, &victim), Ok(()));
        }
    }
}
