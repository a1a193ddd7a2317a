//! Types for files: inodes, attributes, kinds, times, and what a caller may ask to change.

use super::Errno;
use crate::acl::NewAcls;
use std::fmt;

/// Bytes in a page of the cache, and in a block of a file.
pub const PAGE_BYTES: usize = 4096;

/// Result of an operation on files.
pub type Result<T> = std::result::Result<T, Errno>;

/// The number of an inode; unique among those that exist.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Ino(pub u64);

/// Kind of an inode.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// Bytes.
    File,
    /// Names.
    Directory,
    /// A path.
    Symlink,
    /// A named pipe; it exists here, but cannot be opened.
    Fifo,
    /// A socket; likewise.
    Socket,
    /// A character device of this number; likewise.
    CharDevice(u32),
    /// A block device of this number; likewise.
    BlockDevice(u32),
}

/// A point in civil time, since 1970-01-01 00:00 UTC.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub struct Timestamp {
    /// Whole seconds; negative before 1970.
    pub seconds: i64,
    /// Below 1,000,000,000.
    pub nanos: u32,
}

/// Permission bits: `rwxrwxrwx` and the three above them.
pub mod mode {
    /// The file runs with the rights of its owner.
    pub const SETUID: u16 = 0o4000;
    /// The file runs with the rights of its group; what is created in the directory inherits its group.
    pub const SETGID: u16 = 0o2000;
    /// Only owners remove what is in the directory.
    pub const STICKY: u16 = 0o1000;
    /// All bits that a mode has.
    pub const ALL: u16 = 0o7777;
    /// Group may execute.
    pub const GROUP_EXEC: u16 = 0o010;
}

/// The attributes of an inode.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Attr {
    /// Its number.
    pub ino: Ino,
    /// How often the number was in use before; with it the number is unique for ever.
    pub generation: u32,
    /// Its kind.
    pub kind: Kind,
    /// Permission bits, see [`mode`].
    pub mode: u16,
    /// Names that refer to it.
    pub links: u32,
    /// Owner.
    pub uid: u32,
    /// Group.
    pub gid: u32,
    /// Length in bytes.
    pub size: u64,
    /// Space taken, in blocks of 512 bytes, space that is reserved for dirty pages included.
    pub blocks_512: u64,
    /// Last access.
    pub atime: Timestamp,
    /// Last change of the content.
    pub mtime: Timestamp,
    /// Last change of content or attributes.
    pub ctime: Timestamp,
}

/// Changes of attributes; what is `None` stays.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct SetAttr {
    /// Permission bits.
    pub mode: Option<u16>,
    /// Owner.
    pub uid: Option<u32>,
    /// Group.
    pub gid: Option<u32>,
    /// Length in bytes: what is beyond is gone, what is added reads as zeros.
    pub size: Option<u64>,
    /// Last access.
    pub atime: Option<Timestamp>,
    /// Last change of the content.
    pub mtime: Option<Timestamp>,
    /// Last change of anything.
    pub ctime: Option<Timestamp>,
}

/// A new inode.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NewNode {
    /// Its kind.
    pub kind: Kind,
    /// Permission bits.
    pub mode: u16,
    /// Owner.
    pub uid: u32,
    /// Group.
    pub gid: u32,
    /// All its times, and those of the directory.
    pub now: Timestamp,
    /// Its access control lists; the permission bits agree with them.
    pub acls: NewAcls,
}

/// An entry of a directory.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DirEntry {
    /// Its name; never `.` or `..`.
    pub name: Box<[u8]>,
    /// The inode.
    pub ino: Ino,
    /// Its kind, without the number of a device.
    pub kind: Kind,
    /// Reading goes on after this entry with this cookie.
    pub cookie: Cookie,
}

/// A place in a directory. It stays valid while entries come and go: an entry that exists all the time is seen
/// exactly once, whatever happens to others.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub struct Cookie(pub u64);

impl Cookie {
    /// Before the first entry.
    pub const START: Self = Self(0);
}

/// How a rename treats what is at the new name.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum RenameMode {
    /// It is replaced.
    #[default]
    Replace,
    /// It makes the rename fail with `EEXIST`.
    NoReplace,
    /// Both exist and change places.
    Exchange,
}

/// A part of a file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PageRun {
    /// The page behind its last one; `u64::MAX` if there is no end.
    pub end: u64,
    /// Whether it holds data; the other parts read as zeros.
    pub has_data: bool,
}

/// Whether an extended attribute may or must exist before it is set.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum XattrMode {
    /// Either.
    #[default]
    Set,
    /// It must not: `EEXIST`.
    Create,
    /// It must: `ENODATA`.
    Replace,
}

/// Fullness of a file system.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct StatFs {
    /// Pages of [`PAGE_BYTES`] that files can have at most.
    pub pages: u64,
    /// Free pages; pages that are reserved for dirty data do not count.
    pub pages_free: u64,
    /// Free pages for users other than root.
    pub pages_available: u64,
    /// Inodes at most.
    pub inodes: u64,
    /// Free inodes.
    pub inodes_free: u64,
}

/// Bounds of a file system, fixed while it is mounted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Limits {
    /// Longest name in bytes.
    pub name_bytes_max: usize,
    /// Longest target of a symbolic link in bytes.
    pub symlink_bytes_max: usize,
    /// Largest file in bytes.
    pub file_bytes_max: u64,
    /// Most links of one inode.
    pub links_max: u32,
    /// Longest value of an extended attribute in bytes.
    pub xattr_value_bytes_max: usize,
}

/// Credentials of a caller.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Creds {
    /// User; 0 is root, which may do everything.
    pub uid: u32,
    /// Main group.
    pub gid: u32,
    /// Further groups.
    pub groups: Vec<u32>,
    /// Permission bits that new inodes do not get, unless their directory has a default access control list. 0 if the layer above has
    /// removed them already.
    pub umask: u16,
    /// The layer above has checked the rights, as the kernel does for FUSE: everything is allowed, and user and group are those of what
    /// is made.
    pub is_checked: bool,
}

impl Creds {
    /// Root, which may do everything.
    pub const ROOT: Self = Self::user(0, 0);

    /// A user with one group.
    pub const fn user(uid: u32, gid: u32) -> Self {
        Self { uid, gid, groups: Vec::new(), umask: 0, is_checked: false }
    }

    /// A user whose rights the layer above has checked.
    pub const fn checked(uid: u32, gid: u32) -> Self {
        Self { uid, gid, groups: Vec::new(), umask: 0, is_checked: true }
    }

    /// The same with another mask.
    #[must_use]
    pub fn with_umask(self, umask: u16) -> Self {
        Self { umask: umask & 0o777, ..self }
    }

    /// Whether rights do not matter: for root, and if they were checked before.
    pub const fn is_root(&self) -> bool {
        self.uid == 0 || self.is_checked
    }

    /// Whether `gid` is one of the caller's groups.
    pub fn in_group(&self, gid: u32) -> bool {
        self.gid == gid || self.groups.contains(&gid)
    }
}

impl Kind {
    /// Whether these are bytes.
    pub const fn is_file(self) -> bool {
        matches!(self, Self::File)
    }
    /// Whether these are names.
    pub const fn is_dir(self) -> bool {
        matches!(self, Self::Directory)
    }
    /// Whether this is a path.
    pub const fn is_symlink(self) -> bool {
        matches!(self, Self::Symlink)
    }
}

impl Timestamp {
    /// This many nanoseconds later.
    #[inline]
    pub const fn plus_nanos(self, nanos: u64) -> Self {
        let nanos = self.nanos as u64 + nanos;
        let seconds = self.seconds.saturating_add((nanos / 1_000_000_000) as i64);
        Self { seconds, nanos: (nanos % 1_000_000_000) as u32 }
    }
}

impl fmt::Display for Ino {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "inode {}", self.0)
    }
}
