//! The layout of the format: each structure is decoded from bytes and encoded into bytes, and knows nothing of disks.
//!
//! Place in the data flow: [`crate::ext4`] reads and writes blocks through the port; their meaning is defined here. Facts are from
//! the Linux kernel's documentation of the ext4 data structures and of the jbd2 journal.
//!
//! Invariants: decoding never panics, whatever the bytes are; decoding and encoding again gives the same bytes, apart from room
//! without a field. Only [`Geometry`] converts between addresses.

pub mod checksum;
pub mod dirent;
pub mod extent;
pub mod group;
pub mod htree;
pub mod inode;
pub mod journal;
pub mod superblock;
pub mod xattr;

pub use superblock::{Feature, Features, Geometry, Superblock};

use std::fmt;

/// The number of an inode. 0 is none.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Ino(pub u32);

impl Ino {
    /// Blocks that are known to be bad.
    pub const BAD_BLOCKS: Self = Self(1);
    /// The root directory.
    pub const ROOT: Self = Self(2);
    /// For a directory of deleted files, which nobody has.
    pub const UNDELETE: Self = Self(6);
    /// Blocks that are kept for more group descriptors.
    pub const RESIZE: Self = Self(7);
    /// The journal, if the superblock names no other inode.
    pub const JOURNAL: Self = Self(8);
    /// For snapshots, which no kernel of Linux has.
    pub const EXCLUDE: Self = Self(9);
    /// The same.
    pub const REPLICA: Self = Self(10);
    /// The first inode that is not reserved, on volumes without a field for it and on all that are made today.
    pub const FIRST: Self = Self(11);
}

/// The number of a block of the volume, in the volume's own block size. 0 is none, or a hole.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Addr(pub u64);

impl Addr {
    /// No block.
    pub const NULL: Self = Self(0);
}

/// The number of a block group.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Group(pub u32);

impl fmt::Display for Ino {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}
impl fmt::Display for Addr {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}
impl fmt::Display for Group {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}
