//! Directory entries, in blocks and inline, and the hash by which blocks are found.
//!
//! A directory is a hash table of levels: level `n` has twice as many buckets as the one before, of two blocks each (four
//! from level 31 on), and all levels follow one another. A name is in the bucket of its hash on any level. An entry
//! takes one slot for each eight bytes of its name.

use super::Nid;
use super::bytes::{put, set_slot_bit, slot_bit, u16_at, u32_at};
use super::node::{Kind, NAME_BYTES_MAX};
use crate::f2fs::error::{Result, corrupt};
use crate::port::BLOCK_BYTES;

/// Bytes of a name that one slot holds.
const SLOT_BYTES: usize = 8;
const ENTRY_BYTES: usize = 11;
/// Most levels of a directory.
pub const LEVELS_MAX: u32 = 63;

/// Division of a room for entries: bitmap, padding, entries, names.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Slots {
    count: usize,
    entries_at: usize,
    names_at: usize,
    bytes: usize,
}

impl Slots {
    /// The slots of a directory block.
    pub const BLOCK: Self = Self::in_room(BLOCK_BYTES);

    /// The slots of an inline room of `bytes` bytes.
    pub const fn in_room(bytes: usize) -> Self {
        let count = bytes * 8 / ((ENTRY_BYTES + SLOT_BYTES) * 8 + 1);
        let names_at = bytes - count * SLOT_BYTES;
        Self { count, entries_at: names_at - count * ENTRY_BYTES, names_at, bytes }
    }

    /// Number of slots.
    pub const fn count(self) -> usize {
        self.count
    }

    /// Number of slots that a name takes.
    pub const fn needed(name_bytes: usize) -> usize {
        name_bytes.div_ceil(SLOT_BYTES)
    }

    /// Whether no slot of a room is in use.
    pub fn is_empty(self, room: &[u8]) -> bool {
        (0..self.count).all(|slot| !slot_bit(room, slot))
    }

    /// Whether all slots of a name are in use.
    pub fn are_taken(self, room: &[u8], slot: usize, name_bytes: usize) -> bool {
        (slot..slot + Self::needed(name_bytes)).all(|slot| slot_bit(room, slot))
    }

    /// All entries of a room, each with its first slot. An entry that contradicts the format ends the walk with an error.
    pub fn entries(self, room: &[u8]) -> impl Iterator<Item = Result<(usize, Entry)>> + '_ {
        self.raw(room).map(|raw| raw.map(|raw| (raw.slot, raw.entry())))
    }

    /// The entry of a name with its first slot; `hash` is that of the name.
    ///
    /// # Errors
    /// An entry before it contradicts the format.
    pub fn find(self, room: &[u8], hash: u32, name: &[u8]) -> Result<Option<(usize, Entry)>> {
        for raw in self.raw(room) {
            let raw = raw?;
            if raw.hash() == hash && raw.name == name {
                return Ok(Some((raw.slot, raw.entry())));
            }
        }
        Ok(None)
    }

    fn raw(self, room: &[u8]) -> impl Iterator<Item = Result<RawEntry<'_>>> {
        let mut slot = 0;
        std::iter::from_fn(move || {
            while slot < self.count && !slot_bit(room, slot) {
                slot += 1;
            }
            if slot >= self.count {
                return None;
            }
            let raw = self.raw_entry(room, slot);
            slot = raw.as_ref().map_or(self.count, |raw| slot + Self::needed(raw.name.len()));
            Some(raw)
        })
    }

    fn raw_entry(self, room: &[u8], slot: usize) -> Result<RawEntry<'_>> {
        let head = &room[self.entries_at + slot * ENTRY_BYTES..][..ENTRY_BYTES];
        let name_bytes = usize::from(u16_at(head, 8));
        if name_bytes == 0 || name_bytes > NAME_BYTES_MAX || slot + Self::needed(name_bytes) > self.count {
            return corrupt(format!("the directory entry in slot {slot} has a name of {name_bytes} bytes"));
        }
        let name_at = self.names_at + slot * SLOT_BYTES;
        Ok(RawEntry { slot, head, name: &room[name_at..name_at + name_bytes] })
    }

    /// The first of `slots` free slots in a row.
    pub fn find_room(self, room: &[u8], slots: usize) -> Option<usize> {
        let mut free = 0;
        for slot in 0..self.count {
            free = if slot_bit(room, slot) { 0 } else { free + 1 };
            if free == slots {
                return Some(slot + 1 - slots);
            }
        }
        None
    }

    /// Puts an entry into free slots.
    pub fn insert(self, room: &mut [u8], slot: usize, entry: &Entry) {
        debug_assert_eq!(room.len(), self.bytes);
        let needed = Self::needed(entry.name.len());
        for slot in slot..slot + needed {
            set_slot_bit(room, slot, true);
        }
        let raw = &mut room[self.entries_at + slot * ENTRY_BYTES..][..needed * ENTRY_BYTES];
        raw.fill(0);
        put(raw, 0, &entry.hash.to_le_bytes());
        put(raw, 4, &entry.ino.0.to_le_bytes());
        put(raw, 8, &(entry.name.len() as u16).to_le_bytes());
        raw[10] = entry.kind.map_or(0, Kind::dentry_byte);
        let names = &mut room[self.names_at + slot * SLOT_BYTES..][..needed * SLOT_BYTES];
        names.fill(0);
        put(names, 0, &entry.name);
    }

    /// Frees the slots of an entry.
    pub fn remove(self, room: &mut [u8], slot: usize, name_bytes: usize) {
        for slot in slot..slot + Self::needed(name_bytes) {
            set_slot_bit(room, slot, false);
        }
    }
}

/// An entry in place: the form that a search uses, thousands of times, without a copy.
struct RawEntry<'a> {
    slot: usize,
    head: &'a [u8],
    name: &'a [u8],
}

impl RawEntry<'_> {
    fn hash(&self) -> u32 {
        u32_at(self.head, 0)
    }

    fn entry(&self) -> Entry {
        Entry {
            hash: self.hash(),
            ino: Nid(u32_at(self.head, 4)),
            kind: Kind::of_dentry(self.head[10]),
            name: self.name.to_vec(),
        }
    }
}

/// An entry of a directory.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Entry {
    /// Hash of the name; 0 for `.` and `..`.
    pub hash: u32,
    /// Inode of the entry.
    pub ino: Nid,
    /// Kind of the inode; `None` if the entry does not say it.
    pub kind: Option<Kind>,
    /// The name.
    pub name: Vec<u8>,
}

impl Entry {
    /// Returns an entry with the hash of its name.
    pub fn new(name: &[u8], ino: Nid, kind: Kind) -> Self {
        Self { hash: hash(name), ino, kind: Some(kind), name: name.to_vec() }
    }

    /// Whether it is `.` or `..`.
    pub fn is_dot(&self) -> bool {
        is_dot(&self.name)
    }
}

fn is_dot(name: &[u8]) -> bool {
    name == b"." || name == b".."
}

/// The hash of a name: TEA with sixteen bytes of it at a time as the key.
pub fn hash(name: &[u8]) -> u32 {
    if is_dot(name) {
        return 0;
    }
    let mut state = [0x6745_2301_u32, 0xefcd_ab89];
    let mut rest = name;
    loop {
        encipher(&mut state, words_of(rest));
        if rest.len() <= 16 {
            return state[0];
        }
        rest = &rest[16..];
    }
}

/// The first sixteen bytes as four big-endian words; missing bytes are filled with the length of the rest, which fits into a byte.
fn words_of(rest: &[u8]) -> [u32; 4] {
    let pad = (rest.len() as u32 & 0xff) * 0x0101_0101;
    let mut words = [pad; 4];
    for (word, bytes) in words.iter_mut().zip(rest.chunks(4)) {
        for &byte in bytes {
            // The format treats bytes as unsigned numbers.
            *word = (*word << 8).wrapping_add(u32::from(byte));
        }
    }
    words
}

/// Sixteen rounds of the Tiny Encryption Algorithm with `key`, added to the state.
fn encipher(state: &mut [u32; 2], key: [u32; 4]) {
    let (mut first, mut second) = (state[0], state[1]);
    let mut sum = 0_u32;
    let mix = |value: u32, sum: u32, low: u32, high: u32| {
        (value << 4).wrapping_add(low) ^ value.wrapping_add(sum) ^ (value >> 5).wrapping_add(high)
    };
    for _ in 0..16 {
        sum = sum.wrapping_add(0x9e37_79b9);
        first = first.wrapping_add(mix(second, sum, key[0], key[1]));
        second = second.wrapping_add(mix(first, sum, key[2], key[3]));
    }
    state[0] = state[0].wrapping_add(first);
    state[1] = state[1].wrapping_add(second);
}

/// Number of buckets of a level.
pub fn buckets(level: u32, dir_level: u8) -> u64 {
    let power = level + u32::from(dir_level);
    1 << power.min(LEVELS_MAX / 2 - 1)
}

/// Number of blocks of a bucket on a level.
pub fn bucket_blocks(level: u32) -> u64 {
    if level < LEVELS_MAX / 2 { 2 } else { 4 }
}

/// The blocks of a directory that may hold an entry with this hash on a level.
pub fn bucket(level: u32, dir_level: u8, hash: u32) -> std::ops::Range<u64> {
    let before: u64 = (0..level).map(|level| buckets(level, dir_level) * bucket_blocks(level)).sum();
    let blocks = bucket_blocks(level);
    let first = before + u64::from(hash) % buckets(level, dir_level) * blocks;
    first..first + blocks
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_long_name_needs_all_of_its_slots() {
        let entry = Entry { hash: 1, ino: Nid(9), kind: Some(Kind::Regular), name: vec![b'n'; 20] };
        let mut room = vec![0; Slots::BLOCK.bytes];
        Slots::BLOCK.insert(&mut room, 5, &entry);
        assert!(Slots::BLOCK.are_taken(&room, 5, 20) && !Slots::BLOCK.are_taken(&room, 5, 25));
        set_slot_bit(&mut room, 7, false);
        assert!(!Slots::BLOCK.are_taken(&room, 5, 20) && Slots::BLOCK.are_taken(&room, 5, 16));
    }

    #[test]
    fn a_block_has_214_slots() {
        assert_eq!(Slots::BLOCK.count, 214);
        assert_eq!(Slots::BLOCK.entries_at, 30);
        // The room of an inode with the usual room for extended attributes.
        let slots = Slots::in_room(4 * (923 - 50 - 1));
        assert_eq!((slots.count, slots.entries_at), (182, 30));
    }

    #[test]
    fn entries_there_and_back() {
        let mut room = [0; 3488];
        let slots = Slots::in_room(room.len());
        let names: [&[u8]; 5] =
            [b".", b"a name of more than eight bytes", b"12345678", b"123456789", &[b'x'; 255]];
        let mut places = Vec::new();
        for (ino, name) in names.iter().enumerate() {
            let entry = Entry::new(name, Nid(ino as u32), Kind::Regular);
            let slot = slots.find_room(&room, Slots::needed(name.len())).unwrap();
            slots.insert(&mut room, slot, &entry);
            places.push((slot, entry));
        }
        let read: Vec<_> = slots.entries(&room).map(Result::unwrap).collect();
        assert_eq!(read, places);
        slots.remove(&mut room, places[1].0, places[1].1.name.len());
        assert_eq!(slots.entries(&room).count(), 4);
        assert_eq!(slots.find_room(&room, 4), Some(1));
        assert_eq!(slots.find_room(&room, 183), None);
    }

    #[test]
    fn a_bad_length_is_an_error_and_not_a_panic() {
        let mut room = [0; BLOCK_BYTES];
        let slots = Slots::BLOCK;
        slots.insert(&mut room, 213, &Entry::new(b"last", Nid(4), Kind::Fifo));
        room[slots.entries_at + 213 * ENTRY_BYTES + 8] = 9;
        let errors: Vec<_> = slots.entries(&room).collect();
        assert!(errors.len() == 1 && errors[0].is_err());
    }

    /// Hashes that Linux has written.
    #[test]
    fn hashes_are_those_of_linux() {
        let known = [
            ("phase", 0, 3_654_395_589),
            ("00272-", 1, 1_562_504_471),
            ("00032-", 2, 1_291_699_838),
            ("00281-", 10, 893_933_021),
            ("00171-", 11, 2_890_793_605),
            ("00001-", 26, 1_285_766_678),
            ("02150-", 224, 1_800_565_260),
        ];
        for (start, more, expected) in known {
            let name = format!("{start}{}", "n".repeat(more));
            assert_eq!(hash(name.as_bytes()), expected, "{name}");
        }
        assert_eq!((hash(b"."), hash(b"..")), (0, 0));
    }

    #[test]
    fn levels_follow_each_other() {
        assert_eq!(bucket(0, 0, 12345), 0..2);
        assert_eq!(bucket(1, 0, 3), 4..6);
        assert_eq!(bucket(2, 0, 2), 10..12);
        assert_eq!(bucket(0, 2, 3), 6..8);
        assert_eq!(buckets(40, 0), 1 << 30);
        assert_eq!(bucket_blocks(31), 4);
    }
}
