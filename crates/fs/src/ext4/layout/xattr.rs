//! Extended attributes: entries from the front of a room, their values from its end. The rooms are the end of an inode,
//! and a block that several inodes may share.

use super::Addr;
use super::checksum::crc32c;
use super::superblock::Geometry;
use crate::ext4::error::{Error, Result, corrupt};
use crate::format::{put, u16_at, u32_at};
use crate::xattrs::{Name, Xattr};

const MAGIC: u32 = 0xea02_0000;
const INODE_HEADER_BYTES: usize = 4;
const BLOCK_HEADER_BYTES: usize = 32;
const ENTRY_BYTES: usize = 16;
const CHECKSUM_AT: usize = 16;
/// Most references to a block.
pub const REFERENCES_MAX: u32 = 1024;

/// Indexes of name prefixes, with the prefixes.
pub const PREFIXES: [(u8, &str); 9] = [
    (1, "user."),
    (2, "system.posix_acl_access"),
    (3, "system.posix_acl_default"),
    (4, "trusted."),
    (6, "security."),
    (8, "system.richacl"),
    (7, "system."),
    (9, "encryption."),
    (10, "gnu."),
];

/// The name of the attribute that holds the rest of inline contents, with the prefix 7.
pub const INLINE_DATA: Name<'_> = (7, b"data");

impl Xattr {
    /// Bytes of its entry.
    fn entry_bytes(&self) -> usize {
        (ENTRY_BYTES + self.name.len()).next_multiple_of(4)
    }

    /// Bytes of its value in the room.
    fn value_bytes(&self) -> usize {
        self.value.len().next_multiple_of(4)
    }

    /// The hash of name and value that entries in blocks have.
    fn hash(&self) -> u32 {
        self.hash_of(u32::from)
    }

    fn hash_of(&self, number: fn(u8) -> u32) -> u32 {
        let hash = self.name.iter().fold(0_u32, |hash, &byte| hash.rotate_left(5) ^ number(byte));
        self.value.chunks(4).fold(hash, |hash, bytes| {
            let mut word = [0; 4];
            word[..bytes.len()].copy_from_slice(bytes);
            hash.rotate_left(16) ^ u32::from_le_bytes(word)
        })
    }
}

/// Decodes entries that begin at `entries_at` in `room`.
fn decode_entries(room: &[u8], entries_at: usize) -> Result<Vec<Xattr>> {
    let mut xattrs: Vec<Xattr> = Vec::new();
    let mut ends = Vec::new();
    let mut at = entries_at;
    loop {
        if at + 4 > room.len() {
            return corrupt("the list of extended attributes has no end");
        }
        if u32_at(room, at) == 0 {
            break;
        }
        let name_bytes = usize::from(room[at]);
        let entry_bytes = (ENTRY_BYTES + name_bytes).next_multiple_of(4);
        if at + entry_bytes > room.len() {
            return corrupt(format!("the extended attribute at byte {at} has a name of {name_bytes} bytes"));
        }
        let (value_at, inode, bytes) =
            (usize::from(u16_at(room, at + 2)), u32_at(room, at + 4), u32_at(room, at + 8) as usize);
        if inode != 0 {
            return Err(Error::Refused(format!("the inode {inode} for the value of an extended attribute")));
        }
        if bytes > 0 {
            ends.push((at, value_at, bytes));
        }
        let value = match bytes {
            0 => &[][..],
            _ => match value_at.checked_add(bytes) {
                Some(end) if end <= room.len() => &room[value_at..end],
                _ => {
                    return corrupt(format!(
                        "the extended attribute at byte {at} has {bytes} bytes at {value_at} of {}",
                        room.len()
                    ));
                }
            },
        };
        xattrs.push(Xattr {
            index: room[at + 1],
            name: room[at + ENTRY_BYTES..][..name_bytes].to_vec(),
            value: value.to_vec(),
        });
        at += entry_bytes;
    }
    if let Some((entry, value_at, _)) = ends.into_iter().find(|(_, value_at, _)| *value_at < at + 4) {
        return corrupt(format!(
            "the value of the extended attribute at byte {entry} is at {value_at}, among the entries"
        ));
    }
    Ok(xattrs)
}

/// Encodes entries and values into a room; `None` if they do not fit.
fn encode_entries(xattrs: &[Xattr], room: &mut [u8], entries_at: usize, with_hashes: bool) -> Option<()> {
    let entries: usize = xattrs.iter().map(Xattr::entry_bytes).sum();
    let values: usize = xattrs.iter().map(Xattr::value_bytes).sum();
    if entries_at + entries + 4 + values > room.len() {
        return None;
    }
    let (mut at, mut value_at) = (entries_at, room.len() / 4 * 4);
    for xattr in xattrs {
        room[at] = xattr.name.len() as u8;
        room[at + 1] = xattr.index;
        value_at -= xattr.value_bytes();
        let place = if xattr.value.is_empty() { 0 } else { value_at as u16 };
        put(room, at + 2, &place.to_le_bytes());
        put(room, at + 8, &(xattr.value.len() as u32).to_le_bytes());
        let hash = if with_hashes { xattr.hash() } else { 0 };
        put(room, at + 12, &hash.to_le_bytes());
        put(room, at + ENTRY_BYTES, &xattr.name);
        put(room, value_at, &xattr.value);
        at += xattr.entry_bytes();
    }
    Some(())
}

/// Decodes the attributes in the room of an inode. A room without a header holds none. Errors: entries that exceed it.
pub fn decode_in_inode(room: &[u8]) -> Result<Vec<Xattr>> {
    if room.len() < INODE_HEADER_BYTES || u32_at(room, 0) != MAGIC {
        return Ok(Vec::new());
    }
    decode_entries(&room[INODE_HEADER_BYTES..], 0)
}

/// Encodes attributes into the room of an inode; other bytes become zeros. If they do not fit, returns `None` and leaves the room
/// as it was.
pub fn encode_in_inode(xattrs: &[Xattr], room: &mut [u8]) -> Option<()> {
    let mut new = vec![0; room.len()];
    if !xattrs.is_empty() {
        if room.len() < INODE_HEADER_BYTES {
            return None;
        }
        put(&mut new, 0, &MAGIC.to_le_bytes());
        encode_entries(xattrs, &mut new[INODE_HEADER_BYTES..], 0, false)?;
    }
    room.copy_from_slice(&new);
    Some(())
}

/// A block of attributes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct XattrBlock {
    /// Number of inodes that refer to it.
    pub references: u32,
    /// The attributes, in the order of prefix, length and bytes of the name.
    pub xattrs: Vec<Xattr>,
}

fn block_checksum(block: &[u8], addr: Addr, geometry: &Geometry) -> u32 {
    let parts: [&[u8]; 4] =
        [&addr.0.to_le_bytes(), &block[..CHECKSUM_AT], &[0; 4], &block[CHECKSUM_AT + 4..]];
    parts.into_iter().fold(geometry.seed, crc32c)
}

impl XattrBlock {
    /// Decodes a block of attributes. Errors: the checksum, or contradictions to the format.
    pub fn decode(block: &[u8], addr: Addr, geometry: &Geometry) -> Result<Self> {
        let magic = u32_at(block, 0);
        if magic != MAGIC || u32_at(block, 8) != 1 {
            return corrupt(format!("block {addr} has no extended attributes: it begins with {magic:#010x}"));
        }
        if geometry.has_checksums() {
            let (stored, computed) = (u32_at(block, CHECKSUM_AT), block_checksum(block, addr, geometry));
            if stored != computed {
                return corrupt(format!(
                    "the checksum of the extended attributes in block {addr} is {stored:#010x}, expected {computed:#010x}"
                ));
            }
        }
        let references = u32_at(block, 4);
        if references == 0 || references > REFERENCES_MAX {
            return corrupt(format!("block {addr} of extended attributes has {references} references"));
        }
        Ok(Self { references, xattrs: decode_entries(block, BLOCK_HEADER_BYTES)? })
    }

    /// Whether the entries of the block from which this was decoded have the right hashes of names and values. Older kernels
    /// treated the bytes of names as signed.
    pub fn has_right_hashes(&self, block: &[u8]) -> bool {
        let mut at = BLOCK_HEADER_BYTES;
        self.xattrs.iter().all(|xattr| {
            let stored = u32_at(block, at + 12);
            at += xattr.entry_bytes();
            stored == xattr.hash()
                || stored == xattr.hash_of(|byte| i32::from(byte.cast_signed()).cast_unsigned())
        })
    }

    /// Encodes the block, with sorted entries, their hashes, and its checksum if the volume has checksums; `None` if the attributes
    /// do not fit.
    pub fn encode(&self, addr: Addr, geometry: &Geometry) -> Option<Vec<u8>> {
        let mut xattrs = self.xattrs.clone();
        xattrs.sort_by(|a, b| (a.index, a.name.len(), &a.name).cmp(&(b.index, b.name.len(), &b.name)));
        let mut block = vec![0; geometry.block_bytes as usize];
        encode_entries(&xattrs, &mut block, BLOCK_HEADER_BYTES, true)?;
        let hashes: Vec<u32> = xattrs.iter().map(Xattr::hash).collect();
        // A hash of zero marks a block that cannot be shared.
        let hash = match hashes.contains(&0) {
            true => 0,
            false => hashes.into_iter().fold(0_u32, |hash, entry| hash.rotate_left(16) ^ entry),
        };
        for (at, word) in [(0, MAGIC), (4, self.references), (8, 1), (12, hash)] {
            put(&mut block, at, &word.to_le_bytes());
        }
        if geometry.has_checksums() {
            let crc = block_checksum(&block, addr, geometry);
            put(&mut block, CHECKSUM_AT, &crc.to_le_bytes());
        }
        Some(block)
    }
}

#[cfg(test)]
mod tests {
    use super::super::superblock::{Feature, tests::small};
    use super::*;

    fn some() -> Vec<Xattr> {
        let of = |n: u8| Xattr {
            index: 1,
            name: vec![b'a' + n; usize::from(n) + 1],
            value: vec![n; 11 * usize::from(n)],
        };
        (0..5).map(of).collect()
    }

    #[test]
    fn attributes_in_an_inode() {
        let mut room = [7; 300];
        encode_in_inode(&some(), &mut room).unwrap();
        assert_eq!(decode_in_inode(&room).unwrap(), some());
        assert_eq!(encode_in_inode(&some(), &mut [0; 96]), None);
        encode_in_inode(&[], &mut room).unwrap();
        assert_eq!((decode_in_inode(&room).unwrap(), room), (vec![], [0; 300]));
        assert_eq!(decode_in_inode(&[]).unwrap(), []);
    }

    #[test]
    fn attributes_in_a_block() {
        for features in [&[][..], &[Feature::METADATA_CSUM]] {
            let geometry = small(100_000, features).geometry();
            let block = XattrBlock { references: 3, xattrs: some() };
            let bytes = block.encode(Addr(77), &geometry).unwrap();
            assert_eq!(XattrBlock::decode(&bytes, Addr(77), &geometry).unwrap(), block);
            assert_eq!(XattrBlock::decode(&bytes, Addr(78), &geometry).is_err(), geometry.has_checksums());
            let large = Xattr { value: vec![0; 4096], ..some()[0].clone() };
            assert_eq!(XattrBlock { references: 1, xattrs: vec![large] }.encode(Addr(77), &geometry), None);
        }
    }

    #[test]
    fn rooms_that_contradict_the_format() {
        let change = |at: usize, value: u8| {
            let mut room = [0; 100];
            let xattr = Xattr { index: 1, name: b"name".to_vec(), value: b"value".to_vec() };
            encode_in_inode(&[xattr], &mut room).unwrap();
            room[at] = value;
            decode_in_inode(&room).unwrap_err().to_string()
        };
        assert!(change(4, 200).contains("the extended attribute at byte 0 has a name of 200 bytes"));
        assert!(change(6, 95).contains("has 5 bytes at 95 of 96"));
        assert!(change(6, 20).contains("is at 20, among the entries"));
        assert!(change(8, 1).contains("the inode 1 for the value"));
        let mut endless = [1; 40];
        put(&mut endless, 0, &MAGIC.to_le_bytes());
        put(&mut endless, 6, &[0; 20]);
        endless[4] = 19;
        assert!(decode_in_inode(&endless).is_err());
    }
}
