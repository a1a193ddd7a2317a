//! Directory entries: a chain of records that fills each block, with a checksum at its end where the volume has them.
//!
//! A record without an inode is free; removing one adds its bytes to the record before it.
//!
//! Invariant: a walk over a room goes forward by at least eight bytes with each record and ends at its end, or with an
//! error.

use super::Ino;
use super::checksum::crc32c;
use super::superblock::{Feature, Geometry};
use crate::ext4::error::{Result, corrupt};
use crate::format::{Kind, put, u16_at, u32_at};

/// Bytes of a record before its name.
const HEADER_BYTES: usize = 8;
/// The longest name in bytes.
pub const NAME_BYTES_MAX: usize = 255;
/// Bytes of the record at the end of a block that holds its checksum.
pub const TAIL_BYTES: usize = 12;
/// Type of that record.
const TAIL_TYPE: u8 = 0xde;

/// An entry of a directory.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Entry {
    /// The inode.
    pub ino: Ino,
    /// Kind of the inode; `None` if the entry does not say it.
    pub kind: Option<Kind>,
    /// The name.
    pub name: Vec<u8>,
}

impl Entry {
    /// An entry.
    pub fn new(name: &[u8], ino: Ino, kind: Kind) -> Self {
        Self { ino, kind: Some(kind), name: name.to_vec() }
    }

    /// Whether it is `.` or `..`.
    pub fn is_dot(&self) -> bool {
        self.name == b"." || self.name == b".."
    }
}

/// A record: its position, its length, and its entry unless it is free.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Record {
    /// Offset of its first byte in the room.
    pub at: usize,
    /// Length in bytes, including those behind its name.
    pub bytes: usize,
    /// The entry; `None` if the record is free.
    pub entry: Option<Entry>,
}

/// Bytes that an entry with a name of this length needs.
pub const fn bytes_needed(name_bytes: usize) -> usize {
    (HEADER_BYTES + name_bytes).next_multiple_of(4)
}

/// Bytes of a block that records fill: all but the checksum.
pub fn room_bytes(geometry: &Geometry) -> usize {
    geometry.block_bytes as usize - if geometry.has_checksums() { TAIL_BYTES } else { 0 }
}

/// A record in place: the form that a walk uses, without a copy of its name.
struct RawRecord<'a> {
    at: usize,
    bytes: usize,
    entry: Option<RawEntry<'a>>,
}

struct RawEntry<'a> {
    ino: Ino,
    kind: Option<Kind>,
    name: &'a [u8],
}

impl RawRecord<'_> {
    fn record(self) -> Record {
        let owned = |RawEntry { ino, kind, name }: RawEntry<'_>| Entry { ino, kind, name: name.to_vec() };
        Record { at: self.at, bytes: self.bytes, entry: self.entry.map(owned) }
    }
}

fn record_at(room: &[u8], at: usize, has_types: bool) -> Result<RawRecord<'_>> {
    let left = room.len() - at;
    if left < HEADER_BYTES {
        return corrupt(format!("{left} bytes are left at byte {at} behind the last directory entry"));
    }
    let (ino, bytes) = (u32_at(room, at), usize::from(u16_at(room, at + 4)));
    let name_bytes = if has_types { usize::from(room[at + 6]) } else { u16_at(room, at + 6).into() };
    if bytes < HEADER_BYTES || !bytes.is_multiple_of(4) || bytes > left {
        return corrupt(format!("the directory entry at byte {at} has {bytes} bytes, {left} are left"));
    }
    if ino == 0 {
        return Ok(RawRecord { at, bytes, entry: None });
    }
    if name_bytes == 0 || name_bytes > NAME_BYTES_MAX || bytes_needed(name_bytes) > bytes {
        return corrupt(format!(
            "the directory entry at byte {at} has a name of {name_bytes} bytes in {bytes}"
        ));
    }
    let name = &room[at + HEADER_BYTES..][..name_bytes];
    if name.iter().any(|&byte| byte == 0 || byte == b'/') {
        return corrupt(format!(
            "the directory entry at byte {at} has the name {:?}",
            name.escape_ascii().to_string()
        ));
    }
    // `dirdata`, which has the upper half of the byte, is refused.
    let kind = if has_types { Kind::of_dentry(room[at + 7]) } else { None };
    Ok(RawRecord { at, bytes, entry: Some(RawEntry { ino: Ino(ino), kind, name }) })
}

fn raw_records<'a>(
    room: &'a [u8],
    geometry: &Geometry,
) -> impl Iterator<Item = Result<RawRecord<'a>>> + use<'a> {
    let has_types = geometry.features.has(Feature::FILETYPE);
    let mut at = 0;
    std::iter::from_fn(move || {
        if at >= room.len() {
            return None;
        }
        let record = record_at(room, at, has_types);
        at = record.as_ref().map_or(room.len(), |record| at + record.bytes);
        Some(record)
    })
}

/// All records of a room, which is a block without its checksum, or a part of an inode. A record that contradicts the
/// format ends the walk with an error.
pub fn records<'a>(room: &'a [u8], geometry: &Geometry) -> impl Iterator<Item = Result<Record>> + use<'a> {
    raw_records(room, geometry).map(|record| record.map(RawRecord::record))
}

/// The entries of a room.
pub fn entries<'a>(room: &'a [u8], geometry: &Geometry) -> impl Iterator<Item = Result<Entry>> + use<'a> {
    records(room, geometry).filter_map(|record| record.map(|record| record.entry).transpose())
}

/// The record of a name; `None` if there is none. Errors: a record before it is broken.
pub fn find(room: &[u8], name: &[u8], geometry: &Geometry) -> Result<Option<Record>> {
    for record in raw_records(room, geometry) {
        let record = record?;
        if record.entry.as_ref().is_some_and(|entry| entry.name == name) {
            return Ok(Some(record.record()));
        }
    }
    Ok(None)
}

/// Writes a record of `bytes` bytes at an offset.
pub fn put_record(room: &mut [u8], at: usize, bytes: usize, entry: Option<&Entry>, geometry: &Geometry) {
    let has_types = geometry.features.has(Feature::FILETYPE);
    put(room, at, &entry.map_or(0, |entry| entry.ino.0).to_le_bytes());
    put(room, at + 4, &(bytes as u16).to_le_bytes());
    put(room, at + 6, &[0; 2]);
    if let Some(entry) = entry {
        assert!(!entry.name.is_empty() && bytes_needed(entry.name.len()) <= bytes);
        room[at + 6] = entry.name.len() as u8;
        if has_types {
            room[at + 7] = entry.kind.map_or(0, Kind::dentry_byte);
        }
        put(room, at + HEADER_BYTES, &entry.name);
        room[at + HEADER_BYTES + entry.name.len()..at + bytes_needed(entry.name.len())].fill(0);
    }
}

/// Inserts an entry into the first record that has room for it; returns its offset, or `None` if no record has room.
pub fn insert(room: &mut [u8], entry: &Entry, geometry: &Geometry) -> Result<Option<usize>> {
    let needed = bytes_needed(entry.name.len());
    let mut place = None;
    for record in raw_records(room, geometry) {
        let record = record?;
        let taken = record.entry.as_ref().map_or(0, |entry| bytes_needed(entry.name.len()));
        if record.bytes - taken >= needed {
            place = Some((record.at, record.bytes, taken));
            break;
        }
    }
    let Some((at, bytes, taken)) = place else { return Ok(None) };
    if taken > 0 {
        put(room, at + 4, &(taken as u16).to_le_bytes());
    }
    put_record(room, at + taken, bytes - taken, Some(entry), geometry);
    Ok(Some(at + taken))
}

/// Frees the record at an offset: the one before it takes its bytes. Errors: there is no record.
pub fn remove(room: &mut [u8], at: usize, geometry: &Geometry) -> Result<()> {
    let mut before = None;
    let mut found = None;
    for record in raw_records(room, geometry) {
        let record = record?;
        if record.at == at {
            found = Some(record.bytes);
            break;
        }
        before = Some((record.at, record.bytes));
    }
    let Some(bytes) = found else { return corrupt(format!("no directory entry begins at byte {at}")) };
    match before {
        Some((before, before_bytes)) => {
            put(room, before + 4, &((before_bytes + bytes) as u16).to_le_bytes());
            room[at..at + bytes].fill(0);
        }
        None => put_record(room, at, bytes, None, geometry),
    }
    Ok(())
}

/// Returns a block without entries, and without its checksum.
pub fn empty_block(geometry: &Geometry) -> Vec<u8> {
    let mut block = vec![0; geometry.block_bytes as usize];
    put_record(&mut block, 0, room_bytes(geometry), None, geometry);
    block
}

/// Returns the first block of a directory with no entries but `.` and `..`, without its checksum.
pub fn first_block(ino: Ino, parent: Ino, geometry: &Geometry) -> Vec<u8> {
    let mut block = vec![0; geometry.block_bytes as usize];
    put_record(&mut block, 0, 12, Some(&Entry::new(b".", ino, Kind::Directory)), geometry);
    let rest = room_bytes(geometry) - 12;
    put_record(&mut block, 12, rest, Some(&Entry::new(b"..", parent, Kind::Directory)), geometry);
    block
}

/// Whether a block ends with the record of a checksum. The nodes of an index, including its root, do not.
pub fn has_tail(block: &[u8]) -> bool {
    let tail = &block[block.len() - TAIL_BYTES..];
    u32_at(tail, 0) == 0 && u16_at(tail, 4) == 12 && tail[6] == 0 && tail[7] == TAIL_TYPE
}

/// Checks the checksum of a block. Errors: the volume has checksums, and that of the block is missing or wrong.
pub fn check_tail(block: &[u8], inode_seed: u32, geometry: &Geometry) -> Result<()> {
    if !geometry.has_checksums() {
        return Ok(());
    }
    if !has_tail(block) {
        return corrupt("a directory block has no checksum");
    }
    let at = block.len() - TAIL_BYTES;
    let (stored, computed) = (u32_at(block, at + 8), crc32c(inode_seed, &block[..at]));
    if stored != computed {
        return corrupt(format!(
            "the checksum of a directory block is {stored:#010x}, expected {computed:#010x}"
        ));
    }
    Ok(())
}

/// Writes the checksum of a block, where the volume has checksums.
pub fn put_tail(block: &mut [u8], inode_seed: u32, geometry: &Geometry) {
    if geometry.has_checksums() {
        let at = block.len() - TAIL_BYTES;
        let crc = crc32c(inode_seed, &block[..at]);
        block[at..].fill(0);
        put(block, at + 4, &(TAIL_BYTES as u16).to_le_bytes());
        block[at + 7] = TAIL_TYPE;
        put(block, at + 8, &crc.to_le_bytes());
    }
}

#[cfg(test)]
mod tests {
    use super::super::superblock::tests::small;
    use super::*;

    fn geometries() -> [Geometry; 3] {
        let sets: [&[Feature]; 3] = [&[], &[Feature::FILETYPE], &[Feature::FILETYPE, Feature::METADATA_CSUM]];
        sets.map(|features| small(100_000, features).geometry())
    }

    fn names(room: &[u8], geometry: &Geometry) -> Vec<String> {
        let entries = entries(room, geometry).map(|entry| String::from_utf8(entry.unwrap().name).unwrap());
        entries.collect()
    }

    #[test]
    fn entries_come_and_go() {
        for geometry in geometries() {
            let mut block = first_block(Ino(12), Ino(2), &geometry);
            let end = room_bytes(&geometry);
            let (room, _) = block.split_at_mut(end);
            for name in ["one", "two-is-longer", "three"] {
                let entry = Entry::new(name.as_bytes(), Ino(20), Kind::Regular);
                assert!(insert(room, &entry, &geometry).unwrap().is_some());
            }
            assert_eq!(names(room, &geometry), [".", "..", "one", "two-is-longer", "three"]);
            let second = find(room, b"two-is-longer", &geometry).unwrap().unwrap();
            let kind = geometry.features.has(Feature::FILETYPE).then_some(Kind::Regular);
            assert_eq!((second.at, second.bytes, second.entry.unwrap().kind), (36, 24, kind));
            remove(room, second.at, &geometry).unwrap();
            assert_eq!(names(room, &geometry), [".", "..", "one", "three"]);
            // The freed bytes belong to the record before, and are used again.
            let at = insert(room, &Entry::new(b"four", Ino(21), Kind::Fifo), &geometry).unwrap();
            assert_eq!(at, Some(36));
            remove(room, 0, &geometry).unwrap();
            assert_eq!(names(room, &geometry), ["..", "one", "four", "three"]);
            assert!(remove(room, 4, &geometry).is_err());
            let total: usize = records(room, &geometry).map(|record| record.unwrap().bytes).sum();
            assert_eq!(total, end);
            put_tail(&mut block, 3, &geometry);
            check_tail(&block, 3, &geometry).unwrap();
            assert_eq!(check_tail(&block, 4, &geometry).is_err(), geometry.has_checksums());
            assert_eq!(has_tail(&block), geometry.has_checksums());
        }
    }

    #[test]
    fn a_block_fills_up() {
        for geometry in geometries() {
            let mut block = empty_block(&geometry);
            let end = room_bytes(&geometry);
            let room = &mut block[..end];
            let mut count = 0;
            while insert(room, &Entry::new(&[b'x'; 16], Ino(9), Kind::Socket), &geometry).unwrap().is_some() {
                count += 1;
            }
            assert_eq!(count, end / 24);
            assert_eq!(names(room, &geometry).len(), count);
        }
    }

    #[test]
    fn records_that_contradict_the_format() {
        let geometry = small(100_000, &[Feature::FILETYPE]).geometry();
        let walk = |change: fn(&mut [u8])| {
            let mut block = first_block(Ino(12), Ino(2), &geometry);
            change(&mut block);
            records(&block, &geometry).find_map(Result::err).unwrap().to_string()
        };
        assert!(walk(|block| block[4] = 0).contains("the directory entry at byte 0 has 0 bytes"));
        assert!(walk(|block| block[4] = 13).contains("has 13 bytes"));
        assert!(walk(|block| block[17] = 0x20).contains("the directory entry at byte 12 has 8436 bytes"));
        assert!(walk(|block| block[6] = 5).contains("has a name of 5 bytes in 12"));
        assert!(walk(|block| block[8] = b'/').contains("has the name \"/\""));
        assert!(walk(|block| (block[16], block[17]) = (0xf0, 0x0f)).contains("4 bytes are left"));
    }
}
