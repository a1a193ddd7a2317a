//! Extent trees: runs of blocks of a file in the order of the file. The root is in the inode's `i_block`, other nodes are in blocks of
//! their own, which end with a checksum.
//!
//! Invariant: the entries of a decoded [`Node`] are in order, do not overlap, lie in the range that its parent gave, and
//! point into the volume. A child has a smaller depth than its parent, so that each walk ends.

use super::Addr;
use super::checksum::crc32c;
use super::superblock::Geometry;
use crate::ext4::error::{Result, corrupt};
use crate::format::{put, u16_at, u32_at};
use std::ops::Range;

const MAGIC: u16 = 0xf30a;
/// Bytes of the header, and of each entry.
pub const ENTRY_BYTES: usize = 12;
/// Largest depth of a tree.
pub const DEPTH_MAX: u16 = 5;
/// Most blocks of an extent that is written.
pub const BLOCKS_MAX: u16 = 32768;
/// Most blocks of an extent that is not written.
pub const UNWRITTEN_BLOCKS_MAX: u16 = 32767;
/// Most entries of a root in `i_block`.
pub const ROOT_ENTRIES: u16 = 4;

/// A run of blocks of a file.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Extent {
    /// Number of its first block in the file.
    pub first: u32,
    /// Number of blocks; at least 1.
    pub blocks: u16,
    /// Address of its first block.
    pub addr: Addr,
    /// Whether its blocks were allocated and never written, so that they read as zeros.
    pub is_unwritten: bool,
}

impl Extent {
    /// Number in the file of the first block behind it.
    pub fn end(&self) -> u64 {
        u64::from(self.first) + u64::from(self.blocks)
    }
}

/// A child of a node.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Index {
    /// Number of the first block of the file that it may map.
    pub first: u32,
    /// Address of the child's block.
    pub child: Addr,
}

/// Contents of a node.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Entries {
    /// Extents, in a node of depth 0.
    Leaf(Vec<Extent>),
    /// Children, in a node of larger depth.
    Index(Vec<Index>),
}

/// A node of a tree.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Node {
    /// Number of levels below.
    pub depth: u16,
    /// Most entries.
    pub max: u16,
    /// Generation, which is not used.
    pub generation: u32,
    /// Its entries.
    pub entries: Entries,
}

/// Most entries of a node in a block.
pub fn block_entries(block_bytes: u32) -> u16 {
    // The rest of the block has room for the checksum, for all block sizes.
    ((block_bytes as usize - ENTRY_BYTES) / ENTRY_BYTES) as u16
}

fn tail_at(max: u16) -> usize {
    ENTRY_BYTES * (1 + usize::from(max))
}

/// Position of a node in the tree, for checks: the depth that its parent expects, and the blocks of the file that it may map.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Place {
    /// The depth, or the largest one for a root.
    pub depth: u16,
    /// Range of blocks of the file.
    pub range: Range<u64>,
}

impl Node {
    /// An empty root of depth 0.
    pub fn empty_root() -> Self {
        Self { depth: 0, max: ROOT_ENTRIES, generation: 0, entries: Entries::Leaf(Vec::new()) }
    }

    /// Decodes the root in `i_block`. Errors: contradictions to the format.
    pub fn decode_root(room: &[u8; 60], geometry: &Geometry) -> Result<Self> {
        let depth = u16_at(room, 6);
        if depth > DEPTH_MAX {
            return corrupt(format!("an extent tree of depth {depth}, expected at most {DEPTH_MAX}"));
        }
        let place = Place { depth, range: 0..u64::from(u32::MAX) };
        Self::entries_of(room, &place, ROOT_ENTRIES, geometry)
    }

    /// Decodes a node. Errors: the checksum, or contradictions to the format or to the place in the tree.
    pub fn decode(block: &[u8], place: &Place, inode_seed: u32, geometry: &Geometry) -> Result<Self> {
        let room = block_entries(geometry.block_bytes);
        let node = Self::entries_of(block, place, room, geometry)?;
        let at = tail_at(node.max);
        if geometry.has_checksums() {
            if at + 4 > block.len() {
                return corrupt(format!(
                    "an extent node has room for {} entries, and none for a checksum",
                    node.max
                ));
            }
            let (stored, computed) = (u32_at(block, at), crc32c(inode_seed, &block[..at]));
            if stored != computed {
                return corrupt(format!(
                    "the checksum of an extent node is {stored:#010x}, expected {computed:#010x}"
                ));
            }
        }
        Ok(node)
    }

    /// First block of the file of its first entry.
    pub fn first(&self) -> Option<u32> {
        match &self.entries {
            Entries::Leaf(extents) => extents.first().map(|extent| extent.first),
            Entries::Index(children) => children.first().map(|child| child.first),
        }
    }

    /// Whether a node that was decoded before fits this place in the tree.
    pub fn fits(&self, place: &Place) -> bool {
        let range = match &self.entries {
            Entries::Leaf(extents) => extents.first().zip(extents.last()).map(|(a, b)| (a.first, b.end())),
            Entries::Index(children) => {
                children.first().zip(children.last()).map(|(a, b)| (a.first, u64::from(b.first) + 1))
            }
        };
        let is_inside = |(first, end)| place.range.start <= u64::from(first) && end <= place.range.end;
        self.depth == place.depth && range.is_none_or(is_inside)
    }

    fn entries_of(room: &[u8], place: &Place, max: u16, geometry: &Geometry) -> Result<Self> {
        let header = [0, 2, 4, 6].map(|at| u16_at(room, at));
        let [magic, count, stored_max, depth] = header;
        if magic != MAGIC {
            return corrupt(format!("an extent node begins with {magic:#06x}, expected {MAGIC:#06x}"));
        }
        if depth != place.depth {
            return corrupt(format!("an extent node has the depth {depth}, expected {}", place.depth));
        }
        if stored_max == 0 || stored_max > max || count > stored_max || (count == 0 && depth > 0) {
            return corrupt(format!("an extent node has {count} of {stored_max} entries, {max} fit"));
        }
        let raw = |index: u16| &room[ENTRY_BYTES * (1 + usize::from(index))..][..ENTRY_BYTES];
        let mut end = place.range.start;
        let entries = if depth == 0 {
            let mut extents = Vec::with_capacity(count.into());
            for index in 0..count {
                let extent = extent_of(raw(index));
                if extent.blocks == 0 || u64::from(extent.first) < end || extent.end() > place.range.end {
                    return corrupt(format!(
                        "an extent of {} blocks from block {} of the file on, expected within {} to {}",
                        extent.blocks, extent.first, end, place.range.end
                    ));
                }
                if !geometry.is_data(extent.addr, extent.blocks.into()) {
                    return corrupt(format!(
                        "block {} of the file is one of {} blocks at {}, outside of the volume",
                        extent.first, extent.blocks, extent.addr
                    ));
                }
                end = extent.end();
                extents.push(extent);
            }
            Entries::Leaf(extents)
        } else {
            let mut children = Vec::with_capacity(count.into());
            for index in 0..count {
                let child = index_of(raw(index));
                let first = u64::from(child.first);
                if first < end || first >= place.range.end {
                    return corrupt(format!(
                        "a child of an extent node begins with block {first} of the file, expected {end} to {}",
                        place.range.end
                    ));
                }
                if !geometry.is_data(child.child, 1) {
                    return corrupt(format!(
                        "a child of an extent node is at block {}, outside of the volume",
                        child.child
                    ));
                }
                end = first + 1;
                children.push(child);
            }
            Entries::Index(children)
        };
        Ok(Self { depth, max: stored_max, generation: u32_at(room, 8), entries })
    }

    /// Position of a child of the node at `place`.
    pub fn child_place(&self, child: usize, place: &Place) -> Place {
        let Entries::Index(children) = &self.entries else { panic!("a leaf has no children") };
        let end = children.get(child + 1).map_or(place.range.end, |next| u64::from(next.first));
        Place { depth: self.depth - 1, range: children[child].first.into()..end }
    }

    /// Place of the root.
    pub fn root_place(&self) -> Place {
        Place { depth: self.depth, range: 0..u64::from(u32::MAX) }
    }

    /// Number of entries.
    pub fn len(&self) -> usize {
        match &self.entries {
            Entries::Leaf(extents) => extents.len(),
            Entries::Index(children) => children.len(),
        }
    }

    /// Whether it has no entries.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Encodes the node at the front of `i_block` or of a block; bytes behind the entries stay.
    fn put(&self, room: &mut [u8]) {
        for (at, half) in [(0, MAGIC), (2, self.len() as u16), (4, self.max), (6, self.depth)] {
            put(room, at, &half.to_le_bytes());
        }
        put(room, 8, &self.generation.to_le_bytes());
        let mut rows = room[ENTRY_BYTES..].chunks_exact_mut(ENTRY_BYTES);
        match &self.entries {
            Entries::Leaf(extents) => {
                for (row, extent) in rows.by_ref().zip(extents) {
                    let length = extent.blocks + if extent.is_unwritten { BLOCKS_MAX } else { 0 };
                    put(row, 0, &extent.first.to_le_bytes());
                    put(row, 4, &length.to_le_bytes());
                    put(row, 6, &((extent.addr.0 >> 32) as u16).to_le_bytes());
                    put(row, 8, &(extent.addr.0 as u32).to_le_bytes());
                }
            }
            Entries::Index(children) => {
                for (row, child) in rows.by_ref().zip(children) {
                    row.fill(0);
                    put(row, 0, &child.first.to_le_bytes());
                    put(row, 4, &(child.child.0 as u32).to_le_bytes());
                    put(row, 8, &((child.child.0 >> 32) as u16).to_le_bytes());
                }
            }
        }
    }

    /// Encodes a root into `i_block`.
    pub fn encode_root(&self, room: &mut [u8; 60]) {
        assert!(self.len() <= ROOT_ENTRIES.into());
        self.put(room);
    }

    /// Encodes a node into its block, with its checksum if the volume has checksums.
    pub fn encode(&self, block: &mut [u8], inode_seed: u32, geometry: &Geometry) {
        assert!(self.len() <= self.max.into() && self.max <= block_entries(geometry.block_bytes));
        self.put(block);
        if geometry.has_checksums() {
            let at = tail_at(self.max);
            let crc = crc32c(inode_seed, &block[..at]);
            put(block, at, &crc.to_le_bytes());
        }
    }
}

fn extent_of(raw: &[u8]) -> Extent {
    let length = u16_at(raw, 4);
    let is_unwritten = length > BLOCKS_MAX;
    Extent {
        first: u32_at(raw, 0),
        blocks: if is_unwritten { length - BLOCKS_MAX } else { length },
        addr: Addr(u64::from(u16_at(raw, 6)) << 32 | u64::from(u32_at(raw, 8))),
        is_unwritten,
    }
}

fn index_of(raw: &[u8]) -> Index {
    let child = u64::from(u32_at(raw, 4)) | u64::from(u16_at(raw, 8)) << 32;
    Index { first: u32_at(raw, 0), child: Addr(child) }
}

#[cfg(test)]
mod tests {
    use super::super::superblock::{Feature, tests::small};
    use super::*;

    fn extent(first: u32, blocks: u16, addr: u64) -> Extent {
        Extent { first, blocks, addr: Addr(addr), is_unwritten: false }
    }

    #[test]
    fn roots_there_and_back() {
        let geometry = small(100_000, &[]).geometry();
        let unwritten = Extent { is_unwritten: true, ..extent(9, 32767, 700) };
        for entries in [
            Entries::Leaf(vec![]),
            Entries::Leaf(vec![extent(0, 8, 9000), unwritten, extent(40_000, 32768, 50_000)]),
            Entries::Index(vec![
                Index { first: 0, child: Addr(77) },
                Index { first: 5, child: Addr(99_999) },
            ]),
        ] {
            let depth = u16::from(matches!(entries, Entries::Index(_)));
            let node = Node { depth, entries, ..Node::empty_root() };
            let mut room = [0; 60];
            node.encode_root(&mut room);
            assert_eq!(Node::decode_root(&room, &geometry).unwrap(), node);
        }
    }

    #[test]
    fn blocks_there_and_back() {
        for features in [&[][..], &[Feature::METADATA_CSUM]] {
            let geometry = small(100_000, features).geometry();
            let max = block_entries(4096);
            assert_eq!((max, block_entries(1024)), (340, 84));
            let extents = (0..340).map(|at| extent(1000 + 2 * at, 1, 5000 + u64::from(at))).collect();
            let node = Node { depth: 0, max, generation: 0, entries: Entries::Leaf(extents) };
            let mut block = vec![0; 4096];
            node.encode(&mut block, 5, &geometry);
            let place = Place { depth: 0, range: 1000..2000 };
            assert_eq!(Node::decode(&block, &place, 5, &geometry).unwrap(), node);
            let error =
                |place: &Place, seed| Node::decode(&block, place, seed, &geometry).unwrap_err().to_string();
            assert!(
                error(&Place { depth: 0, range: 1001..2000 }, 5)
                    .contains("an extent of 1 blocks from block 1000")
            );
            assert!(error(&Place { depth: 0, range: 0..1500 }, 5).contains("expected within"));
            assert!(error(&Place { depth: 1, range: 0..9000 }, 5).contains("has the depth 0, expected 1"));
            if geometry.has_checksums() {
                assert!(error(&place, 6).contains("the checksum of an extent node"));
            }
        }
    }

    #[test]
    fn nodes_that_contradict_themselves() {
        let geometry = small(100_000, &[]).geometry();
        let decode = |change: fn(&mut [u8; 60])| {
            let mut room = [0; 60];
            let extents = vec![extent(0, 8, 9000), extent(8, 8, 9100)];
            Node { entries: Entries::Leaf(extents), ..Node::empty_root() }.encode_root(&mut room);
            change(&mut room);
            Node::decode_root(&room, &geometry).unwrap_err().to_string()
        };
        assert!(decode(|room| room[0] = 0).contains("begins with 0xf300"));
        assert!(decode(|room| room[2] = 5).contains("has 5 of 4 entries"));
        assert!(decode(|room| room[4] = 200).contains("has 2 of 200 entries, 4 fit"));
        assert!(decode(|room| room[6] = 6).contains("depth 6"));
        assert!(decode(|room| room[24] = 7).contains("an extent of 8 blocks from block 7"));
        assert!(decode(|room| room[16] = 0).contains("an extent of 0 blocks"));
        assert!(decode(|room| room[18] = 1).contains("outside of the volume"));
    }
}
