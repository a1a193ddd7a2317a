//! The index of a directory: a tree of hashes of names, whose root is in the directory's first block, behind `.` and `..`.
//! A reader that does not know of it sees free records there.
//!
//! Invariant: the entries of a decoded node are in the order of their hashes.

use super::checksum::crc32c;
use super::superblock::{Feature, Geometry};
use super::{Ino, dirent};
use crate::ext4::error::{Error, Result, corrupt};
use crate::format::{put, u16_at, u32_at};

/// Offset of the description of the tree in the root's block, and its bytes.
const INFO_AT: usize = 0x18;
const INFO_BYTES: usize = 8;
/// Offset of limit and count in the root's block, and in that of another node.
const ROOT_COUNT_AT: usize = INFO_AT + INFO_BYTES;
const NODE_COUNT_AT: usize = 8;
const ENTRY_BYTES: usize = 8;
const TAIL_BYTES: usize = 8;
/// The hash that marks the end in the kernel's cursors; no name has it.
const END: u32 = 0xffff_fffe;

/// The hash function of names.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Hash {
    /// The first hash function, which has no seed.
    Legacy,
    /// A part of MD4.
    HalfMd4,
    /// The cipher TEA.
    Tea,
}

impl Hash {
    /// The function with this number in a root or in the superblock; `None` if it is unknown. Numbers from 3 on, for names of
    /// unsigned bytes, exist in memory only.
    pub fn of(version: u8) -> Option<Self> {
        [Self::Legacy, Self::HalfMd4, Self::Tea].get(usize::from(version)).copied()
    }

    /// Number of the function.
    pub fn version(self) -> u8 {
        self as u8
    }

    /// The hash of a name, whose lowest bit is not used, and a second one. `is_unsigned` comes from the flags of the superblock.
    pub fn of_name(self, name: &[u8], seed: &[u32; 4], is_unsigned: bool) -> (u32, u32) {
        let mut state = match seed {
            [0, 0, 0, 0] => [0x6745_2301, 0xefcd_ab89, 0x98ba_dcfe, 0x1032_5476],
            seed => *seed,
        };
        let (hash, minor) = match self {
            Self::Legacy => (legacy(name, is_unsigned), 0),
            Self::HalfMd4 => {
                for start in (0..name.len()).step_by(32) {
                    half_md4(&mut state, &words::<8>(&name[start..], is_unsigned));
                }
                (state[1], state[2])
            }
            Self::Tea => {
                for start in (0..name.len()).step_by(16) {
                    tea(&mut state, &words::<4>(&name[start..], is_unsigned));
                }
                (state[0], state[1])
            }
        };
        let hash = hash & !1;
        (if hash == END { END - 2 } else { hash }, minor)
    }
}

/// A byte of a name as a number.
fn number(byte: u8, is_unsigned: bool) -> u32 {
    if is_unsigned { u32::from(byte) } else { i32::from(byte.cast_signed()).cast_unsigned() }
}

/// The next `N` words of a name, padded with a value made of the length of the rest.
fn words<const N: usize>(rest: &[u8], is_unsigned: bool) -> [u32; N] {
    let length = rest.len() as u32;
    let pad = length | length << 8;
    let pad = pad | pad << 16;
    let mut words = [pad; N];
    for (word, bytes) in words.iter_mut().zip(rest.chunks(4)) {
        *word = bytes.iter().fold(pad, |word, &byte| number(byte, is_unsigned).wrapping_add(word << 8));
    }
    words
}

fn legacy(name: &[u8], is_unsigned: bool) -> u32 {
    let (mut last, mut before) = (0x12a3_fe2d_u32, 0x37ab_e8f9_u32);
    for &byte in name {
        let mut next = before.wrapping_add(last ^ number(byte, is_unsigned).wrapping_mul(7_152_373));
        if next & 0x8000_0000 != 0 {
            next = next.wrapping_sub(0x7fff_ffff);
        }
        (last, before) = (next, last);
    }
    last << 1
}

fn tea(state: &mut [u32; 4], key: &[u32; 4]) {
    let (mut left, mut right, mut sum) = (state[0], state[1], 0_u32);
    let mix = |value: u32, sum: u32, a: u32, b: u32| {
        (value << 4).wrapping_add(a) ^ value.wrapping_add(sum) ^ (value >> 5).wrapping_add(b)
    };
    for _ in 0..16 {
        sum = sum.wrapping_add(0x9e37_79b9);
        left = left.wrapping_add(mix(right, sum, key[0], key[1]));
        right = right.wrapping_add(mix(left, sum, key[2], key[3]));
    }
    state[0] = state[0].wrapping_add(left);
    state[1] = state[1].wrapping_add(right);
}

/// Three rounds over eight words: a function, a constant, the order of the words, and the rotation of each step.
fn half_md4(state: &mut [u32; 4], input: &[u32; 8]) {
    type Mix = fn(u32, u32, u32) -> u32;
    let rounds: [(Mix, u32, [usize; 8], [u32; 4]); 3] = [
        (|x, y, z| z ^ (x & (y ^ z)), 0, [0, 1, 2, 3, 4, 5, 6, 7], [3, 7, 11, 19]),
        (|x, y, z| (x & y) | (x & z) | (y & z), 0x5a82_7999, [1, 3, 5, 7, 0, 2, 4, 6], [3, 5, 9, 13]),
        (|x, y, z| x ^ y ^ z, 0x6ed9_eba1, [3, 7, 2, 6, 1, 5, 0, 4], [3, 9, 11, 15]),
    ];
    let [mut a, mut b, mut c, mut d] = *state;
    for (mix, constant, order, turns) in rounds {
        for (step, word) in order.into_iter().enumerate() {
            let sum = a.wrapping_add(mix(b, c, d)).wrapping_add(input[word]).wrapping_add(constant);
            (a, b, c, d) = (d, sum.rotate_left(turns[step % 4]), b, c);
        }
    }
    for (word, more) in state.iter_mut().zip([a, b, c, d]) {
        *word = word.wrapping_add(more);
    }
}

/// An entry: names with hashes from `hash` on, up to that of the next entry, are below this block of the directory. If the lowest
/// bit of the hash is set, the block before has more names with the same hash.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Entry {
    /// The first hash; that of a node's first entry is 0, or the one in its parent.
    pub hash: u32,
    /// Number of the block in the directory.
    pub block: u32,
}

/// The root of an index.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Root {
    /// The directory.
    pub ino: Ino,
    /// Its parent.
    pub parent: Ino,
    /// The hash function of names.
    pub hash: Hash,
    /// Number of levels of nodes between the root and the blocks of entries.
    pub levels: u8,
    /// The entries, at least one.
    pub entries: Vec<Entry>,
}

fn tail_bytes(geometry: &Geometry) -> usize {
    if geometry.has_checksums() { TAIL_BYTES } else { 0 }
}

/// Most entries of a root.
pub fn root_limit(geometry: &Geometry) -> usize {
    (geometry.block_bytes as usize - ROOT_COUNT_AT - tail_bytes(geometry)) / ENTRY_BYTES
}

/// Most entries of a node below the root.
pub fn node_limit(geometry: &Geometry) -> usize {
    (geometry.block_bytes as usize - NODE_COUNT_AT - tail_bytes(geometry)) / ENTRY_BYTES
}

/// Most levels of nodes below a root on this volume.
pub fn levels_max(geometry: &Geometry) -> u8 {
    if geometry.features.has(Feature::LARGEDIR) { 2 } else { 1 }
}

/// The checksum of a node, over the bytes before the entries, the entries, and the first half of the tail.
fn checksum(block: &[u8], count_at: usize, count: usize, limit: usize, inode_seed: u32) -> u32 {
    let tail = count_at + limit * ENTRY_BYTES;
    let crc = crc32c(inode_seed, &block[..count_at + count * ENTRY_BYTES]);
    crc32c(crc32c(crc, &block[tail..tail + 4]), &[0; 4])
}

fn decode_entries(
    block: &[u8],
    count_at: usize,
    limit: usize,
    inode_seed: u32,
    geometry: &Geometry,
) -> Result<Vec<Entry>> {
    let (stored_limit, count) =
        (usize::from(u16_at(block, count_at)), usize::from(u16_at(block, count_at + 2)));
    if stored_limit != limit || count == 0 || count > limit {
        return corrupt(format!(
            "a directory's index has {count} of {stored_limit} entries, expected 1 to {limit}"
        ));
    }
    if geometry.has_checksums() {
        let stored = u32_at(block, count_at + limit * ENTRY_BYTES + 4);
        let computed = checksum(block, count_at, count, limit, inode_seed);
        if stored != computed {
            return corrupt(format!(
                "the checksum of a directory's index is {stored:#010x}, expected {computed:#010x}"
            ));
        }
    }
    let mut entries: Vec<Entry> = Vec::with_capacity(count);
    for index in 0..count {
        let at = count_at + index * ENTRY_BYTES;
        // In place of the first entry's hash there are limit and count.
        let hash = if index == 0 { 0 } else { u32_at(block, at) };
        if entries.last().is_some_and(|last| last.hash > hash) {
            return corrupt(format!(
                "entry {index} of a directory's index has the hash {hash:#x}, less than the one before"
            ));
        }
        entries.push(Entry { hash, block: u32_at(block, at + 4) & 0x0fff_ffff });
    }
    Ok(entries)
}

fn encode_entries(
    block: &mut [u8],
    count_at: usize,
    limit: usize,
    entries: &[Entry],
    inode_seed: u32,
    geometry: &Geometry,
) {
    assert!(!entries.is_empty() && entries.len() <= limit);
    for (index, entry) in entries.iter().enumerate() {
        put(block, count_at + index * ENTRY_BYTES, &entry.hash.to_le_bytes());
        put(block, count_at + index * ENTRY_BYTES + 4, &entry.block.to_le_bytes());
    }
    put(block, count_at, &(limit as u16).to_le_bytes());
    put(block, count_at + 2, &(entries.len() as u16).to_le_bytes());
    if geometry.has_checksums() {
        let tail = count_at + limit * ENTRY_BYTES;
        put(block, tail, &[0; 4]);
        let crc = checksum(block, count_at, entries.len(), limit, inode_seed);
        put(block, tail + 4, &crc.to_le_bytes());
    }
}

impl Root {
    /// Decodes the first block of a directory with an index. Errors: the checksum, contradictions to the format, or an unknown
    /// hash.
    pub fn decode(block: &[u8], inode_seed: u32, geometry: &Geometry) -> Result<Self> {
        let info = &block[INFO_AT..INFO_AT + INFO_BYTES];
        if u16_at(block, 4) != 12 || u32_at(info, 0) != 0 || usize::from(info[5]) != INFO_BYTES {
            return corrupt("the first block of a directory with an index holds none");
        }
        let Some(hash) = Hash::of(info[4]) else {
            return Err(Error::Refused(format!("the hash {} in the index of a directory", info[4])));
        };
        let (levels, max) = (info[6], levels_max(geometry));
        if levels > max {
            return corrupt(format!("the index of a directory has {levels} levels, expected at most {max}"));
        }
        let entries = decode_entries(block, ROOT_COUNT_AT, root_limit(geometry), inode_seed, geometry)?;
        Ok(Self { ino: Ino(u32_at(block, 0)), parent: Ino(u32_at(block, 12)), hash, levels, entries })
    }

    /// Encodes the root into the first block of the directory; other bytes become zeros.
    pub fn encode(&self, block: &mut [u8], inode_seed: u32, geometry: &Geometry) {
        block.fill(0);
        let plain = Geometry { features: without_checksums(geometry), ..*geometry };
        put(block, 0, &dirent::first_block(self.ino, self.parent, &plain));
        block[INFO_AT + 4] = self.hash.version();
        block[INFO_AT + 5] = INFO_BYTES as u8;
        block[INFO_AT + 6] = self.levels;
        encode_entries(block, ROOT_COUNT_AT, root_limit(geometry), &self.entries, inode_seed, geometry);
    }
}

fn without_checksums(geometry: &Geometry) -> super::Features {
    let mut features = geometry.features;
    features.set(Feature::METADATA_CSUM, false);
    features
}

/// Decodes a node below the root. Errors: the checksum, or contradictions to the format.
pub fn decode_node(block: &[u8], inode_seed: u32, geometry: &Geometry) -> Result<Vec<Entry>> {
    if u32_at(block, 0) != 0 || u32::from(u16_at(block, 4)) != geometry.block_bytes || block[6] != 0 {
        return corrupt("a node of a directory's index does not begin with a free record over its block");
    }
    decode_entries(block, NODE_COUNT_AT, node_limit(geometry), inode_seed, geometry)
}

/// Encodes a node below the root into its block; other bytes become zeros.
pub fn encode_node(entries: &[Entry], block: &mut [u8], inode_seed: u32, geometry: &Geometry) {
    block.fill(0);
    put(block, 4, &(geometry.block_bytes as u16).to_le_bytes());
    encode_entries(block, NODE_COUNT_AT, node_limit(geometry), entries, inode_seed, geometry);
}

/// Index of the entry whose block holds the names with a hash; the last of several entries with the same hash.
pub fn position(entries: &[Entry], hash: u32) -> usize {
    entries[1..].partition_point(|entry| entry.hash <= hash)
}

#[cfg(test)]
mod tests {
    use super::super::superblock::tests::small;
    use super::*;

    /// Hashes as the command `dx_hash` of debugfs 1.47 prints them.
    #[test]
    fn hashes_of_debugfs() {
        let seed = {
            let bytes: [u8; 16] = 0x01020304_0506_0708_090a_0b0c0d0e0f10_u128.to_be_bytes();
            [0, 4, 8, 12].map(|at| u32_at(&bytes, at))
        };
        let none = [0; 4];
        let long = "a-rather-long-name-of-more-than-32-bytes.txt";
        for (hash, is_unsigned, seed, name, expected) in [
            (Hash::Legacy, false, &seed, "a", (0xe74b_53e2, 0)),
            (Hash::Legacy, false, &none, "hello.txt", (0x65a0_5776, 0)),
            (Hash::Legacy, false, &none, long, (0xa5_3af2, 0)),
            (Hash::Legacy, false, &none, "grüße", (0xcc69_faba, 0)),
            (Hash::Legacy, true, &none, "grüße", (0xfa34_84be, 0)),
            (Hash::HalfMd4, false, &seed, "a", (0x8d08_ec4c, 0x2fbc_cd78)),
            (Hash::HalfMd4, false, &none, "a", (0xd5fa_7d7a, 0xacb4_8187)),
            (Hash::HalfMd4, false, &seed, "hello.txt", (0xac15_d19c, 0x0021_f363)),
            (Hash::HalfMd4, false, &none, long, (0xb0d5_3300, 0xf639_df78)),
            (Hash::HalfMd4, false, &seed, "grüße", (0x502c_a218, 0x33dd_ce59)),
            (Hash::HalfMd4, true, &seed, "grüße", (0x8815_16dc, 0x3c83_7ac6)),
            (Hash::Tea, false, &seed, "a", (0xf535_28f0, 0xea54_fb01)),
            (Hash::Tea, false, &none, "hello.txt", (0x5107_c3f2, 0x0384_0cb7)),
            (Hash::Tea, false, &seed, long, (0x86ca_5e9a, 0xf90e_2389)),
            (Hash::Tea, false, &seed, "grüße", (0xe017_506c, 0xf8ec_f413)),
            (Hash::Tea, true, &seed, "grüße", (0x7152_db06, 0x1ba8_cb9f)),
        ] {
            let (major, minor) = hash.of_name(name.as_bytes(), seed, is_unsigned);
            assert_eq!((major, minor), expected, "{hash:?} {is_unsigned} {name}");
        }
    }

    #[test]
    fn nodes_there_and_back() {
        for features in [&[Feature::FILETYPE][..], &[Feature::FILETYPE, Feature::METADATA_CSUM]] {
            let geometry = small(100_000, features).geometry();
            let expected = if geometry.has_checksums() { (507, 510) } else { (508, 511) };
            assert_eq!((root_limit(&geometry), node_limit(&geometry)), expected);
            let entries =
                |count: u32| (0..count).map(|at| Entry { hash: 20 * at, block: at + 1 }).collect::<Vec<_>>();
            let root =
                Root { ino: Ino(12), parent: Ino(2), hash: Hash::HalfMd4, levels: 1, entries: entries(507) };
            let mut block = vec![0xff; 4096];
            root.encode(&mut block, 9, &geometry);
            assert_eq!(Root::decode(&block, 9, &geometry).unwrap(), root);
            let dots: Vec<_> = dirent::entries(&block, &geometry).map(|entry| entry.unwrap().name).collect();
            assert_eq!(dots, [&b"."[..], b".."]);
            let change = |at: usize, value: u8| {
                let mut block = block.clone();
                block[at] = value;
                Root::decode(&block, 9, &geometry).unwrap_err().to_string()
            };
            assert!(change(0x1c, 6).contains("the hash 6"));
            assert!(change(0x1d, 9).contains("holds none"));
            assert!(change(0x1e, 2).contains("2 levels"));
            assert!(change(0x20, 9).contains("507 of 265 entries"));
            let mut block = vec![0xff; 4096];
            encode_node(&entries(300), &mut block, 9, &geometry);
            assert_eq!(decode_node(&block, 9, &geometry).unwrap(), entries(300));
            assert!(dirent::entries(&block, &geometry).next().is_none());
            assert_eq!(decode_node(&block, 8, &geometry).is_err(), geometry.has_checksums());
        }
    }

    #[test]
    fn positions() {
        let entries = [(0, 1), (10, 2), (11, 3), (30, 4)].map(|(hash, block)| Entry { hash, block });
        for (hash, expected) in [(0, 0), (9, 0), (10, 1), (12, 2), (29, 2), (30, 3), (u32::MAX, 3)] {
            assert_eq!(position(&entries, hash), expected);
        }
    }
}
