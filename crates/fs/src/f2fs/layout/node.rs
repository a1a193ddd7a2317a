//! Nodes: inodes, direct nodes (addresses of data) and indirect nodes (numbers of nodes), each a block with a footer.
//!
//! A file's blocks are mapped by the addresses in its inode, then by two direct nodes, two indirect nodes and one double
//! indirect node. Small contents and small directories are in the inode instead of addresses, followed by extended attributes.
//!
//! Invariant: an [`Inode`]'s room is checked when it is decoded, so that no address is outside of its block.

use super::bytes::{crc32, put, u16_at, u32_at, u64_at};
use super::superblock::Features;
use super::{Addr, Nid};
use crate::f2fs::error::{Result, corrupt};
use crate::port::{BLOCK_BYTES, BlockBytes};
use std::sync::Arc;

pub use crate::format::{Kind, Time};

/// Words for addresses in an inode that has no other fields there.
pub const INODE_WORDS: u32 = 923;
/// Number of addresses in a direct node, and of node numbers in an indirect one.
pub const NODE_WORDS: u32 = 1018;
/// Words that inodes keep for extended attributes unless they say otherwise.
pub const INLINE_XATTR_WORDS: u16 = 50;
/// The longest name in bytes.
pub const NAME_BYTES_MAX: usize = 255;

const FOOTER_AT: usize = 4072;
const ADDRS_AT: usize = 360;
const NIDS_AT: usize = 4052;
const EXTRA_BYTES_MAX: u16 = 36;
/// Offsets of the extra fields, in bytes from the first.
const EXTRA_CHECKSUM: usize = 8;
const EXTRA_CRTIME: usize = 12;

/// The end of each node: its identity, and the address at which recovery finds the next node.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Footer {
    /// Number of the node.
    pub nid: Nid,
    /// The inode to which it belongs.
    pub ino: Nid,
    /// Position among the inode's nodes; see [`Path`].
    pub offset: u32,
    /// Whether its data are cold.
    pub is_cold: bool,
    /// Whether fsync completed with it, so that roll-forward recovery takes it.
    pub is_fsynced: bool,
    /// Whether recovery has to enter its name into the parent directory.
    pub has_dentry: bool,
    /// Version of the checkpoint on which it is based, in the lower half; the checkpoint's checksum in the upper half if the
    /// checkpoint has the flag for that.
    pub checkpoint: u64,
    /// Address of the block of the same log that is written after it.
    pub next: Addr,
}

impl Footer {
    /// The offset of the node that holds extended attributes.
    pub const XATTR_OFFSET: u32 = u32::MAX >> 3;

    /// Decodes the footer of a node block.
    pub fn decode(block: &[u8]) -> Self {
        let flags = u32_at(block, FOOTER_AT + 8);
        Self {
            nid: Nid(u32_at(block, FOOTER_AT)),
            ino: Nid(u32_at(block, FOOTER_AT + 4)),
            offset: flags >> 3,
            is_cold: flags & 1 != 0,
            is_fsynced: flags & 2 != 0,
            has_dentry: flags & 4 != 0,
            checkpoint: u64_at(block, FOOTER_AT + 12),
            next: Addr(u32_at(block, FOOTER_AT + 20)),
        }
    }

    /// Encodes the footer into a node block.
    pub fn encode(self, block: &mut [u8]) {
        let flags = self.offset << 3
            | u32::from(self.is_cold)
            | u32::from(self.is_fsynced) << 1
            | u32::from(self.has_dentry) << 2;
        put(block, FOOTER_AT, &self.nid.0.to_le_bytes());
        put(block, FOOTER_AT + 4, &self.ino.0.to_le_bytes());
        put(block, FOOTER_AT + 8, &flags.to_le_bytes());
        put(block, FOOTER_AT + 12, &self.checkpoint.to_le_bytes());
        put(block, FOOTER_AT + 20, &self.next.0.to_le_bytes());
    }
}

/// Word `index` of a direct or indirect node.
pub fn word(block: &[u8], index: u32) -> u32 {
    debug_assert!(index < NODE_WORDS);
    u32_at(block, 4 * index as usize)
}

/// Changes a word of a direct or indirect node.
pub fn set_word(block: &mut [u8], index: u32, value: u32) {
    debug_assert!(index < NODE_WORDS);
    put(block, 4 * index as usize, &value.to_le_bytes());
}

/// Bits of [`Inode::inline`].
pub mod inline {
    /// There is room for extended attributes.
    pub const XATTR: u8 = 0x01;
    /// The contents are in the inode.
    pub const DATA: u8 = 0x02;
    /// The entries of the directory are in the inode.
    pub const DENTRY: u8 = 0x04;
    /// There are contents in the inode.
    pub const DATA_EXIST: u8 = 0x08;
    /// The directory lacks its entries `.` and `..`.
    pub const DOTS: u8 = 0x10;
    /// There are extra fields.
    pub const EXTRA_ATTR: u8 = 0x20;
    /// Cleaning does not move the file.
    pub const PINNED: u8 = 0x40;
}

/// Bits of [`Inode::advise`].
pub mod advise {
    /// The contents are cold.
    pub const COLD: u8 = 0x01;
    /// The number of the parent is wrong.
    pub const LOST_PARENT: u8 = 0x02;
    /// Blocks beyond the end are there on purpose.
    pub const KEEPS_SIZE: u8 = 0x10;
    /// The contents are encrypted.
    pub const ENCRYPTED: u8 = 0x04;
    /// The contents are verified by a tree of hashes.
    pub const VERITY: u8 = 0x40;
}

/// The largest run of consecutive blocks of a file, as a hint.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Extent {
    /// Number of its first block in the file.
    pub index: u32,
    /// Address of that block.
    pub addr: Addr,
    /// Number of blocks.
    pub blocks: u32,
}

impl Extent {
    /// Whether all of it is in these blocks of the file, each of which is given once, with its number and its address.
    pub fn is_in(self, data: &[(u64, Addr)]) -> bool {
        let is_of = |&&(index, addr): &&(u64, Addr)| {
            let at = index.checked_sub(self.index.into()).filter(|at| *at < self.blocks.into());
            at.is_some_and(|at| u64::from(self.addr.0) + at == u64::from(addr.0))
        };
        data.iter().filter(is_of).count() as u64 == u64::from(self.blocks)
    }
}

/// An inode. The fields have been decoded or are to be encoded; addresses stay in the block.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Inode {
    /// Number of the inode.
    pub nid: Nid,
    /// Type and permissions.
    pub mode: u16,
    /// Bits of [`advise`].
    pub advise: u8,
    /// Bits of [`inline`].
    pub inline: u8,
    /// Owning user.
    pub uid: u32,
    /// Owning group.
    pub gid: u32,
    /// Number of names.
    pub links: u32,
    /// Size in bytes.
    pub size: u64,
    /// Number of blocks: data, nodes, and the inode itself.
    pub blocks: u64,
    /// Last access.
    pub atime: Time,
    /// Last change of the inode.
    pub ctime: Time,
    /// Last change of the contents.
    pub mtime: Time,
    /// Time of creation, if the volume keeps it.
    pub crtime: Option<Time>,
    /// Generation, which changes when the inode number is used again.
    pub generation: u32,
    /// Levels of a directory's hash table.
    pub depth: u32,
    /// The node with extended attributes; 0 if there is none.
    pub xattr_nid: Nid,
    /// Attributes as `chattr` sets them.
    pub flags: u32,
    /// The parent directory, for recovery.
    pub parent: Nid,
    /// The name in the parent directory, for recovery.
    pub name: Vec<u8>,
    /// Base-two logarithm of the factor by which the first level of a directory is wider than usual.
    pub dir_level: u8,
    /// The largest extent.
    pub extent: Extent,
    /// Bytes of extra fields.
    extra_bytes: u16,
    /// Words of inline extended attributes.
    xattr_words: u16,
    block: Arc<[u8]>,
}

impl Inode {
    /// Returns an empty inode with a block of its own; `features` determine its layout.
    pub fn new(nid: Nid, mode: u16, features: Features) -> Self {
        let extra_bytes = match features {
            features if !features.has(Features::EXTRA_ATTR) => 0,
            features if features.has(Features::INODE_CRTIME) => 24,
            features if features.has(Features::INODE_CHECKSUM) => 12,
            _ => 4,
        };
        let mut block = [0; BLOCK_BYTES];
        Footer { nid, ino: nid, ..Footer::default() }.encode(&mut block);
        Self {
            nid,
            mode,
            advise: 0,
            inline: inline::XATTR | if extra_bytes > 0 { inline::EXTRA_ATTR } else { 0 },
            uid: 0,
            gid: 0,
            links: 1,
            size: 0,
            blocks: 1,
            atime: Time::default(),
            ctime: Time::default(),
            mtime: Time::default(),
            crtime: (extra_bytes >= 24).then(Time::default),
            generation: 0,
            depth: 0,
            xattr_nid: Nid(0),
            flags: 0,
            parent: Nid(0),
            name: Vec::new(),
            dir_level: 0,
            extent: Extent::default(),
            extra_bytes,
            xattr_words: INLINE_XATTR_WORDS,
            block: Arc::from(&block[..]),
        }
    }

    /// Decodes an inode. `seed` is that of the volume's inode checksums. Errors: fields that contradict each other.
    pub fn decode(block: Arc<[u8]>, features: Features, seed: u32) -> Result<Self> {
        let nid = Footer::decode(&block).nid;
        let word = |at| u32_at(&block, at);
        let time = |at, nanos_at| Time { seconds: u64_at(&block, at) as i64, nanos: word(nanos_at) };
        let (mode, inline) = (u16_at(&block, 0), block[3]);
        if Kind::of_mode(mode).is_none() {
            return corrupt(format!("inode {nid} has the mode {mode:#o}"));
        }
        let can_be_inline = match Kind::of_mode(mode) {
            Some(Kind::Regular | Kind::Symlink) => inline::DATA,
            Some(Kind::Directory) => inline::DENTRY,
            _ => 0,
        };
        if inline & (inline::DATA | inline::DENTRY) & !can_be_inline != 0 {
            return corrupt(format!("inode {nid} of mode {mode:#o} says that it has {inline:#x} inline"));
        }
        let extra_bytes = if inline & inline::EXTRA_ATTR == 0 { 0 } else { u16_at(&block, ADDRS_AT) };
        if inline & inline::EXTRA_ATTR != 0 {
            if !features.has(Features::EXTRA_ATTR) {
                return corrupt(format!("inode {nid} has extra fields, which the superblock denies"));
            }
            if !(4..=EXTRA_BYTES_MAX).contains(&extra_bytes) || !extra_bytes.is_multiple_of(4) {
                return corrupt(format!("inode {nid} has {extra_bytes} bytes of extra fields"));
            }
        }
        let xattr_words = if features.has(Features::FLEXIBLE_INLINE_XATTR) && extra_bytes > 0 {
            u16_at(&block, ADDRS_AT + 2)
        } else if inline & (inline::XATTR | inline::DENTRY) != 0 {
            INLINE_XATTR_WORDS
        } else {
            0
        };
        if u32::from(xattr_words) + u32::from(extra_bytes / 4) + 1 > INODE_WORDS {
            return corrupt(format!("inode {nid} keeps {xattr_words} words for extended attributes"));
        }
        let has_checksum =
            features.has(Features::INODE_CHECKSUM) && usize::from(extra_bytes) >= EXTRA_CHECKSUM + 4;
        if has_checksum {
            let (stored, computed) = (word(ADDRS_AT + EXTRA_CHECKSUM), checksum(&block, seed));
            if stored != computed {
                return corrupt(format!(
                    "the checksum of inode {nid} is {stored:#010x}, expected {computed:#010x}"
                ));
            }
        }
        let has_crtime =
            features.has(Features::INODE_CRTIME) && usize::from(extra_bytes) >= EXTRA_CRTIME + 12;
        let name_bytes = word(88) as usize;
        if name_bytes > NAME_BYTES_MAX {
            return corrupt(format!("inode {nid} has a name of {name_bytes} bytes"));
        }
        Ok(Self {
            nid,
            mode,
            advise: block[2],
            inline,
            uid: word(4),
            gid: word(8),
            links: word(12),
            size: u64_at(&block, 16),
            blocks: u64_at(&block, 24),
            atime: time(32, 56),
            ctime: time(40, 60),
            mtime: time(48, 64),
            crtime: has_crtime.then(|| time(ADDRS_AT + EXTRA_CRTIME, ADDRS_AT + EXTRA_CRTIME + 8)),
            generation: word(68),
            depth: word(72),
            xattr_nid: Nid(word(76)),
            flags: word(80),
            parent: Nid(word(84)),
            name: block[92..92 + name_bytes].to_vec(),
            dir_level: block[347],
            extent: Extent { index: word(348), addr: Addr(word(352)), blocks: word(356) },
            extra_bytes,
            xattr_words,
            block,
        })
    }

    /// Encodes the block with all fields, and with the checksum if the volume has one.
    pub fn encode(&self, features: Features, seed: u32) -> BlockBytes {
        let mut block: BlockBytes = self.block[..].try_into().expect("a block");
        put(&mut block, 0, &self.mode.to_le_bytes());
        (block[2], block[3]) = (self.advise, self.inline);
        for (at, word) in [
            (4, self.uid),
            (8, self.gid),
            (12, self.links),
            (56, self.atime.nanos),
            (60, self.ctime.nanos),
            (64, self.mtime.nanos),
            (68, self.generation),
            (72, self.depth),
            (76, self.xattr_nid.0),
            (80, self.flags),
            (84, self.parent.0),
            (88, self.name.len() as u32),
            (348, self.extent.index),
            (352, self.extent.addr.0),
            (356, self.extent.blocks),
        ] {
            put(&mut block, at, &word.to_le_bytes());
        }
        put(&mut block, 16, &self.size.to_le_bytes());
        put(&mut block, 24, &self.blocks.to_le_bytes());
        for (at, time) in [(32, self.atime), (40, self.ctime), (48, self.mtime)] {
            put(&mut block, at, &time.seconds.to_le_bytes());
        }
        block[92..92 + NAME_BYTES_MAX].fill(0);
        put(&mut block, 92, &self.name);
        block[347] = self.dir_level;
        if self.extra_bytes > 0 {
            put(&mut block, ADDRS_AT, &self.extra_bytes.to_le_bytes());
            if features.has(Features::FLEXIBLE_INLINE_XATTR) {
                put(&mut block, ADDRS_AT + 2, &self.xattr_words.to_le_bytes());
            }
        }
        if let Some(time) = self.crtime {
            put(&mut block, ADDRS_AT + EXTRA_CRTIME, &time.seconds.to_le_bytes());
            put(&mut block, ADDRS_AT + EXTRA_CRTIME + 8, &time.nanos.to_le_bytes());
        }
        if features.has(Features::INODE_CHECKSUM) && usize::from(self.extra_bytes) >= EXTRA_CHECKSUM + 4 {
            let crc = checksum(&block, seed);
            put(&mut block, ADDRS_AT + EXTRA_CHECKSUM, &crc.to_le_bytes());
        }
        block
    }

    /// The same inode without contents and attributes, with which recovery begins if the checkpoint lacks the inode.
    pub fn emptied(mut self) -> Self {
        let start = ADDRS_AT + usize::from(self.extra_bytes);
        self.block_mut()[start..FOOTER_AT].fill(0);
        self.inline &= inline::XATTR | inline::EXTRA_ATTR;
        (self.links, self.size, self.blocks, self.xattr_nid) = (1, 0, 1, Nid(0));
        self.extent = Extent::default();
        self
    }

    /// Kind of the inode.
    pub fn kind(&self) -> Kind {
        Kind::of_mode(self.mode).expect("checked when it was decoded")
    }

    /// Whether a bit of [`inline`] is set.
    pub fn has_inline(&self, bit: u8) -> bool {
        self.inline & bit != 0
    }

    /// Whether its contents are in blocks, to which it has addresses.
    pub fn has_addresses(&self) -> bool {
        !self.has_inline(inline::DATA | inline::DENTRY)
            && matches!(self.kind(), Kind::Regular | Kind::Directory | Kind::Symlink)
    }

    /// Number of data addresses in the inode.
    pub fn address_count(&self) -> u32 {
        INODE_WORDS - u32::from(self.extra_bytes / 4) - u32::from(self.xattr_words)
    }

    /// Offset of data address `index`; the offset in the node that summaries give counts from the first address.
    fn address_at(&self, index: u32) -> usize {
        debug_assert!(index < self.address_count());
        ADDRS_AT + usize::from(self.extra_bytes) + 4 * index as usize
    }

    /// An address of data.
    pub fn address(&self, index: u32) -> Addr {
        Addr(u32_at(&self.block, self.address_at(index)))
    }

    /// Changes an address of data.
    pub fn set_address(&mut self, index: u32, addr: Addr) {
        let at = self.address_at(index);
        put(self.block_mut(), at, &addr.0.to_le_bytes());
    }

    /// Major and minor number of a device. Small numbers are in the first address, in Linux's old encoding, others in the second,
    /// in the new one.
    pub fn device(&self) -> (u32, u32) {
        let (old, new) = (self.address(0).0, self.address(1).0);
        if old != 0 {
            (old >> 8 & 0xff, old & 0xff)
        } else {
            (new >> 8 & 0xfff, new & 0xff | new >> 12 & 0xf_ff00)
        }
    }

    /// One of the five nodes that map what the inode itself does not: two direct, two indirect, one double indirect.
    pub fn node(&self, slot: usize) -> Nid {
        Nid(u32_at(&self.block, NIDS_AT + 4 * slot))
    }

    /// Changes one of the five nodes.
    pub fn set_node(&mut self, slot: usize, nid: Nid) {
        put(self.block_mut(), NIDS_AT + 4 * slot, &nid.0.to_le_bytes());
    }

    fn inline_range(&self) -> std::ops::Range<usize> {
        // The format leaves the first address unused.
        let start = ADDRS_AT + usize::from(self.extra_bytes) + 4;
        start..NIDS_AT - 4 * usize::from(self.xattr_words)
    }

    /// The room for inline contents or entries.
    pub fn inline_bytes(&self) -> &[u8] {
        &self.block[self.inline_range()]
    }

    /// The room for inline contents or entries.
    pub fn inline_bytes_mut(&mut self) -> &mut [u8] {
        let range = self.inline_range();
        &mut self.block_mut()[range]
    }

    /// Sets up the inode for directory entries in blocks. Without the flag [`inline::XATTR`] it keeps no room for extended attributes
    /// then, unless it states the size of that room.
    pub fn leave_inline_entries(&mut self, features: Features) {
        self.inline_bytes_mut().fill(0);
        self.inline &= !inline::DENTRY;
        let says_how_much = features.has(Features::FLEXIBLE_INLINE_XATTR) && self.extra_bytes > 0;
        if !says_how_much && !self.has_inline(inline::XATTR) {
            self.xattr_words = 0;
        }
    }

    fn xattr_range(&self) -> std::ops::Range<usize> {
        NIDS_AT - 4 * usize::from(self.xattr_words)..NIDS_AT
    }

    /// The room for inline extended attributes.
    pub fn xattr_bytes(&self) -> &[u8] {
        if self.has_inline(inline::XATTR) { &self.block[self.xattr_range()] } else { &[] }
    }

    /// The room for inline extended attributes.
    pub fn xattr_bytes_mut(&mut self) -> &mut [u8] {
        let range = if self.has_inline(inline::XATTR) { self.xattr_range() } else { 0..0 };
        &mut self.block_mut()[range]
    }

    /// The footer.
    pub fn footer(&self) -> Footer {
        Footer::decode(&self.block)
    }

    /// Changes the footer.
    pub fn set_footer(&mut self, footer: Footer) {
        footer.encode(self.block_mut());
    }

    fn block_mut(&mut self) -> &mut [u8] {
        Arc::make_mut(&mut self.block)
    }
}

/// The checksum of an inode's block: number, generation, and all bytes with zeros instead of the checksum.
fn checksum(block: &[u8], seed: u32) -> u32 {
    let at = ADDRS_AT + EXTRA_CHECKSUM;
    let parts: [&[u8]; 5] =
        [&block[FOOTER_AT + 4..FOOTER_AT + 8], &block[68..72], &block[..at], &[0; 4], &block[at + 4..]];
    parts.into_iter().fold(seed, crc32)
}

/// The path to a block of a file: through which nodes, and which address of the last one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Path {
    steps: [Step; 3],
    depth: usize,
    /// Index of the address in the last node, which is the inode if there are no steps.
    pub index: u32,
}

/// One node of a path.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Step {
    /// Its slot in the node before: one of the five of an inode, or a word of an indirect node.
    pub slot: u32,
    /// The offset in its footer.
    pub offset: u32,
}

impl Path {
    /// The path to block `index` of a file whose inode has `addresses` addresses; `None` beyond the largest file.
    pub fn to(index: u64, addresses: u32) -> Option<Self> {
        let words = u64::from(NODE_WORDS);
        let path = |steps: &[Step], index: u64| {
            let mut path = Self { steps: Default::default(), depth: steps.len(), index: index as u32 };
            path.steps[..steps.len()].copy_from_slice(steps);
            Some(path)
        };
        let step = |slot: u64, offset: u64| Step { slot: slot as u32, offset: offset as u32 };
        let mut rest = match index.checked_sub(u64::from(addresses)) {
            None => return path(&[], index),
            Some(rest) => rest,
        };
        for slot in 0..2 {
            if rest < words {
                return path(&[step(slot, slot + 1)], rest);
            }
            rest -= words;
        }
        for slot in 2..4 {
            let offset = 3 + (slot - 2) * (words + 1);
            if rest < words * words {
                let child = rest / words;
                return path(&[step(slot, offset), step(child, offset + 1 + child)], rest % words);
            }
            rest -= words * words;
        }
        if rest < words * words * words {
            let offset = 5 + 2 * words;
            let (child, grandchild) = (rest / (words * words), rest / words % words);
            let child_offset = offset + 1 + child * (words + 1);
            let steps =
                [step(4, offset), step(child, child_offset), step(grandchild, child_offset + 1 + grandchild)];
            return path(&steps, rest % words);
        }
        None
    }

    /// The nodes between the inode and the data.
    pub fn steps(&self) -> &[Step] {
        &self.steps[..self.depth]
    }

    /// Number of blocks of the file, from that of the path on, that the last node maps.
    pub fn blocks_left(&self, addresses: u32) -> u32 {
        if self.depth == 0 { addresses - self.index } else { NODE_WORDS - self.index }
    }
}

/// The first block of a file that the direct node at `offset` maps, if the inode has `addresses` addresses; `None` if the node at
/// that offset is indirect or holds extended attributes.
pub fn first_block(offset: u32, addresses: u32) -> Option<u64> {
    let words = NODE_WORDS;
    // Number of direct nodes before it.
    let before = match offset {
        0 => return Some(0),
        1 | 2 => offset - 1,
        _ if offset == Footer::XATTR_OFFSET => return None,
        _ if offset < 4 + words => 2 + offset.checked_sub(4)?,
        _ if offset < 5 + 2 * words => 2 + words + offset.checked_sub(5 + words)?,
        _ => {
            let below = offset.checked_sub(6 + 2 * words)?;
            let (child, rest) = (below / (words + 1), below % (words + 1));
            2 + 2 * words + child * words + rest.checked_sub(1)?
        }
    };
    Some(u64::from(addresses) + u64::from(before) * u64::from(words))
}

/// Number of blocks of the largest file.
pub fn blocks_max(addresses: u32) -> u64 {
    let words = u64::from(NODE_WORDS);
    u64::from(addresses) + 2 * words + 2 * words * words + words * words * words
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_extent_agrees_with_the_addresses_or_not() {
        let data: Vec<(u64, Addr)> =
            [(9, 500), (4, 100), (5, 101), (6, 102), (7, 200)].map(|(at, addr)| (at, Addr(addr))).into();
        let extent = |index, addr, blocks| Extent { index, addr: Addr(addr), blocks };
        assert!(
            [extent(4, 100, 3), extent(5, 101, 1), Extent::default()].iter().all(|known| known.is_in(&data))
        );
        for wrong in [extent(4, 100, 4), extent(4, 101, 2), extent(3, 99, 2), extent(u32::MAX, u32::MAX, 2)] {
            assert!(!wrong.is_in(&data), "{wrong:?}");
        }
    }

    #[test]
    fn paths_number_nodes_as_the_format_says() {
        let offsets = |index: u64| {
            let path = Path::to(index, 873).unwrap();
            (path.steps().iter().map(|step| (step.slot, step.offset)).collect::<Vec<_>>(), path.index)
        };
        let words = 1018;
        assert_eq!(offsets(872), (vec![], 872));
        assert_eq!(offsets(873), (vec![(0, 1)], 0));
        assert_eq!(offsets(873 + 2 * words - 1), (vec![(1, 2)], 1017));
        let first_indirect = 873 + 2 * words;
        assert_eq!(offsets(first_indirect), (vec![(2, 3), (0, 4)], 0));
        assert_eq!(offsets(first_indirect + words * words), (vec![(3, 1022), (0, 1023)], 0));
        let double = first_indirect + 2 * words * words;
        assert_eq!(offsets(double), (vec![(4, 2041), (0, 2042), (0, 2043)], 0));
        assert_eq!(offsets(double + words * words + 5), (vec![(4, 2041), (1, 3061), (0, 3062)], 5));
        for index in [
            0,
            872,
            873,
            2900,
            5000,
            873 + 2 * words + 5,
            900_000,
            1_100_000,
            2_200_000,
            4_000_000,
            99_999_999,
        ] {
            let path = Path::to(index, 873).unwrap();
            let offset = path.steps().last().map_or(0, |step| step.offset);
            assert_eq!(first_block(offset, 873), Some(index - u64::from(path.index)), "{index}");
        }
        for indirect in [3, 1022, 2041, 2042, 3061, Footer::XATTR_OFFSET] {
            assert_eq!(first_block(indirect, 873), None);
        }
        assert_eq!(Path::to(blocks_max(873), 873), None);
        assert!(Path::to(blocks_max(873) - 1, 873).is_some());
    }

    #[test]
    fn an_inode_there_and_back() {
        let all = Features::EXTRA_ATTR
            | Features::INODE_CRTIME
            | Features::INODE_CHECKSUM
            | Features::FLEXIBLE_INLINE_XATTR;
        for features in [Features(0), Features(Features::EXTRA_ATTR), Features(all)] {
            let mut inode = Inode::new(Nid(77), 0o100_644, features);
            inode.name = b"name".to_vec();
            inode.size = 1 << 40;
            inode.atime = Time { seconds: -5, nanos: 7 };
            inode.set_node(4, Nid(99));
            let last = inode.address_count() - 1;
            inode.set_address(last, Addr(4711));
            inode.xattr_bytes_mut()[0] = 0x11;
            inode.set_footer(Footer { is_cold: true, next: Addr(8), ..inode.footer() });
            let block = inode.encode(features, 42);
            let read = Inode::decode(Arc::from(&block[..]), features, 42).unwrap();
            assert_eq!(read.encode(features, 42), block);
            assert_eq!((read.address(last), read.node(4), read.kind()), (Addr(4711), Nid(99), Kind::Regular));
            assert_eq!(read.xattr_bytes()[0], 0x11);
            assert_eq!(read.atime, inode.atime);
            let extra = usize::from(read.extra_bytes);
            assert_eq!(read.inline_bytes().len(), 4 * (923 - 50 - 1) - extra);
            if features.0 == all {
                let error = Inode::decode(Arc::from(&block[..]), features, 43).unwrap_err();
                assert!(error.to_string().contains("the checksum of inode 77"), "{error}");
            }
        }
    }

    #[test]
    fn inodes_that_contradict_themselves() {
        let mut inode = Inode::new(Nid(5), 0o100_644, Features(0));
        let decode =
            |block: BlockBytes, features| Inode::decode(Arc::from(&block[..]), Features(features), 0);
        inode.mode = 0o777;
        let error = decode(inode.encode(Features(0), 0), 0).unwrap_err().to_string();
        assert!(error.contains("inode 5 has the mode 0o777"), "{error}");
        inode.mode = 0o100_644;
        inode.inline |= inline::EXTRA_ATTR;
        let mut block = inode.encode(Features(0), 0);
        assert!(decode(block, 0).unwrap_err().to_string().contains("denies"));
        block[360] = 38;
        let error = decode(block, Features::EXTRA_ATTR).unwrap_err().to_string();
        assert!(error.contains("38 bytes of extra fields"), "{error}");
        (block[360], block[362], block[363]) = (36, 0xff, 0xff);
        let flexible = Features::EXTRA_ATTR | Features::FLEXIBLE_INLINE_XATTR;
        assert!(decode(block, flexible).unwrap_err().to_string().contains("65535 words"));
    }
}
