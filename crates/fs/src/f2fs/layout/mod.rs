//! The layout of the format: each structure is decoded from a block and encoded into one, and knows nothing of disks.
//!
//! Place in the data flow: [`crate::f2fs`] reads and writes blocks through the port; their meaning is defined here.
//!
//! Invariants: decoding never panics, whatever the bytes are; decoding and encoding again gives the same bytes. Only [`Geometry`]
//! converts between addresses.

pub(crate) mod bytes;
pub mod checkpoint;
pub mod dentry;
pub mod node;
pub mod summary;
pub mod superblock;
pub mod tables;
pub mod xattr;

pub use superblock::{Geometry, Superblock};

use std::fmt;

/// The first word of a superblock, and the seed of most checksums.
pub const MAGIC: u32 = 0xf2f5_2010;
/// Blocks in a segment. The format's field for it has no other legal value.
pub const SEGMENT_BLOCKS: u32 = 512;
/// Base-two logarithm of [`SEGMENT_BLOCKS`].
pub const SEGMENT_BLOCKS_LOG2: u32 = 9;

/// Number of a node: inodes, and the blocks that map their data. 0 is none.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Nid(pub u32);

impl Nid {
    /// The inode of all nodes; only its number is used.
    pub const NODE: Self = Self(1);
    /// The inode of metadata; only its number is used.
    pub const META: Self = Self(2);
    /// The root directory.
    pub const ROOT: Self = Self(3);
}

impl fmt::Display for Nid {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

/// An address of a block on the disk, or one of the special values used instead.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Addr(pub u32);

impl Addr {
    /// A hole.
    pub const NULL: Self = Self(0);
    /// Reserved and never written; reads as zeros.
    pub const NEW: Self = Self(u32::MAX);
    /// The first word of a compressed cluster.
    pub const COMPRESSED: Self = Self(u32::MAX - 1);

    /// Whether this is an address, and not one of the special values.
    pub const fn is_place(self) -> bool {
        self.0 != Self::NULL.0 && self.0 != Self::NEW.0 && self.0 != Self::COMPRESSED.0
    }
}

impl fmt::Display for Addr {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

/// The number of a segment of the main area.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct SegNo(pub u32);

impl fmt::Display for SegNo {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

/// The six logs, in the order of the format. A segment belongs to one of them.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Log {
    /// Directory blocks.
    HotData,
    /// Contents of files.
    WarmData,
    /// Contents that will hardly change: moved by cleaning, or of files with certain extensions.
    ColdData,
    /// Nodes of directories.
    HotNode,
    /// Inodes and direct nodes of files.
    WarmNode,
    /// Indirect nodes.
    ColdNode,
}

impl Log {
    /// All of them, in the order of the format.
    pub const ALL: [Self; 6] =
        [Self::HotData, Self::WarmData, Self::ColdData, Self::HotNode, Self::WarmNode, Self::ColdNode];

    /// Index in [`Self::ALL`].
    pub const fn index(self) -> usize {
        self as usize
    }

    /// Whether its blocks are nodes.
    pub const fn is_node(self) -> bool {
        self.index() >= Self::HotNode.index()
    }
}
