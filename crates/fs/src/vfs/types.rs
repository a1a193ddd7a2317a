//! Types for files: inodes, attributes, kinds, times, and the changes that a caller may ask for.

use super::Errno;
use crate::acl::NewAcls;
use std::fmt;

/// Bytes in a page of the cache, and in a block of a file.
pub const PAGE_BYTES: usize = 4096;

/// Result of an operation on files.
pub type Result<T> = std::result::Result<T, Errno>;

/// The number of an inode; unique among existing inodes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Ino(pub u64);

/// Kind of an inode.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// A regular file.
    File,
    /// A directory.
    Directory,
    /// A symbolic link.
    Symlink,
    /// A named pipe; it can exist, but not be opened.
    Fifo,
    /// A socket; it can exist, but not be opened.
    Socket,
    /// A character device with this number; it can exist, but not be opened.
    CharDevice(u32),
    /// A block device with this number; it can exist, but not be opened.
    BlockDevice(u32),
}

/// A point in civil time, since 1970-01-01 00:00 UTC.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub struct Timestamp {
    /// Whole seconds; negative before 1970.
    pub seconds: i64,
    /// Nanoseconds, below 1,000,000,000.
    pub nanos: u32,
}

/// Permission bits: `rwxrwxrwx` and the three bits above them.
pub mod mode {
    /// The file runs with the rights of its owner.
    pub const SETUID: u16 = 0o4000;
    /// The file runs with the rights of its group; new inodes in the directory inherit its group.
    pub const SETGID: u16 = 0o2000;
    /// Only owners may remove names from the directory.
    pub const STICKY: u16 = 0o1000;
    /// All bits that a mode has.
    pub const ALL: u16 = 0o7777;
    /// Group may execute.
    pub const GROUP_EXEC: u16 = 0o010;
}

/// The attributes of an inode.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Attr {
    /// Number of the inode.
    pub ino: Ino,
    /// How often the number was used before; with the number it is unique for ever.
    pub generation: u32,
    /// Its kind.
    pub kind: Kind,
    /// Permission bits, see [`mode`].
    pub mode: u16,
    /// Number of names that refer to it.
    pub links: u32,
    /// Owning user.
    pub uid: u32,
    /// Owning group.
    pub gid: u32,
    /// Length in bytes.
    pub size: u64,
    /// Space in blocks of 512 bytes, including space that is reserved for dirty pages.
    pub blocks_512: u64,
    /// Last access.
    pub atime: Timestamp,
    /// Last change of the content.
    pub mtime: Timestamp,
    /// Last change of content or attributes.
    pub ctime: Timestamp,
}

/// Changes of attributes; an attribute that is `None` stays.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct SetAttr {
    /// New permission bits.
    pub mode: Option<u16>,
    /// New owning user.
    pub uid: Option<u32>,
    /// New owning group.
    pub gid: Option<u32>,
    /// New length in bytes: bytes beyond it are removed, added bytes read as zeros.
    pub size: Option<u64>,
    /// New time of the last access.
    pub atime: Option<Timestamp>,
    /// New time of the last change of the content.
    pub mtime: Option<Timestamp>,
    /// New time of the last change of anything.
    pub ctime: Option<Timestamp>,
}

/// Attributes of a new inode.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NewNode {
    /// Its kind.
    pub kind: Kind,
    /// Permission bits.
    pub mode: u16,
    /// Owning user.
    pub uid: u32,
    /// Owning group.
    pub gid: u32,
    /// Time for all its times, and for those of the directory.
    pub now: Timestamp,
    /// Its access control lists; the permission bits must agree with them.
    pub acls: NewAcls,
}

/// An entry of a directory.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DirEntry {
    /// Name of the entry; never `.` or `..`.
    pub name: Box<[u8]>,
    /// Inode of the entry.
    pub ino: Ino,
    /// Kind of the inode, without the number of a device.
    pub kind: Kind,
    /// Cookie with which reading continues after this entry.
    pub cookie: Cookie,
}

/// A position in a directory. It stays valid while entries come and go: an entry that exists all the time is seen exactly once.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub struct Cookie(pub u64);

impl Cookie {
    /// Before the first entry.
    pub const START: Self = Self(0);
}

/// How a rename treats an inode that has the new name.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum RenameMode {
    /// It is replaced.
    #[default]
    Replace,
    /// It makes the rename fail with `EEXIST`.
    NoReplace,
    /// Both names must exist; they exchange their inodes.
    Exchange,
}

/// A run of pages of a file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PageRun {
    /// The first page behind the run; `u64::MAX` if it has no end.
    pub end: u64,
    /// Whether the run holds data; otherwise it reads as zeros.
    pub has_data: bool,
}

/// Whether an extended attribute may or must exist before it is set.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum XattrMode {
    /// It may exist or not.
    #[default]
    Set,
    /// It must not exist: `EEXIST`.
    Create,
    /// It must exist: `ENODATA`.
    Replace,
}

/// Space and inodes of a file system.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct StatFs {
    /// Most pages of [`PAGE_BYTES`] that files can have.
    pub pages: u64,
    /// Free pages; pages that are reserved for dirty data do not count.
    pub pages_free: u64,
    /// Free pages for users other than root.
    pub pages_available: u64,
    /// Most inodes.
    pub inodes: u64,
    /// Free inodes.
    pub inodes_free: u64,
}

/// Bounds of a file system, which do not change while it is mounted.
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
    /// First and last second of times.
    pub time_seconds: (i64, i64),
    /// Whether times have nanoseconds.
    pub has_nanos: bool,
}

impl Limits {
    /// The time that is kept for one: the nearest that there is, as in Linux.
    pub fn time(&self, stamp: Timestamp) -> Timestamp {
        let (first, last) = self.time_seconds;
        let seconds = stamp.seconds.clamp(first, last);
        let has_nanos = self.has_nanos && seconds > first && seconds < last;
        Timestamp { seconds, nanos: if has_nanos { stamp.nanos } else { 0 } }
    }
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
    /// Permission bits that new inodes do not get, unless their directory has a default access control list. 0 if the layer above
    /// has removed these bits already.
    pub umask: u16,
    /// Whether the layer above has checked the rights, as the kernel does for FUSE. Then everything is allowed, and user and group
    /// are only the owners of new inodes.
    pub is_checked: bool,
}

impl Creds {
    /// Credentials of root, which may do everything.
    pub const ROOT: Self = Self::user(0, 0);

    /// Credentials of a user with one group.
    pub const fn user(uid: u32, gid: u32) -> Self {
        Self { uid, gid, groups: Vec::new(), umask: 0, is_checked: false }
    }

    /// Credentials of a user whose rights the layer above has checked.
    pub const fn checked(uid: u32, gid: u32) -> Self {
        Self { uid, gid, groups: Vec::new(), umask: 0, is_checked: true }
    }

    /// The same with another mask.
    #[must_use]
    pub fn with_umask(self, umask: u16) -> Self {
        Self { umask: umask & 0o777, ..self }
    }

    /// Whether rights are not checked: for root, and if the layer above has checked them.
    pub const fn is_root(&self) -> bool {
        self.uid == 0 || self.is_checked
    }

    /// Whether `gid` is one of the caller's groups.
    pub fn in_group(&self, gid: u32) -> bool {
        self.gid == gid || self.groups.contains(&gid)
    }
}

impl Kind {
    /// Whether it is a regular file.
    pub const fn is_file(self) -> bool {
        matches!(self, Self::File)
    }
    /// Whether it is a directory.
    pub const fn is_dir(self) -> bool {
        matches!(self, Self::Directory)
    }
    /// Whether it is a symbolic link.
    pub const fn is_symlink(self) -> bool {
        matches!(self, Self::Symlink)
    }
}

impl Timestamp {
    /// The time `nanos` nanoseconds later.
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
