//! Entries of the NAT (where a node is) and of the SIT (which blocks of a segment are valid), and the journals that hold changed entries
//! before they reach their tables.

use super::bytes::{array_at, block_bit, put, set_block_bit, u16_at, u32_at, u64_at};
use super::superblock::{NAT_PER_BLOCK, SIT_PER_BLOCK};
use super::{Addr, Nid, SEGMENT_BLOCKS, SegNo};
use crate::f2fs::error::{Result, corrupt};

const NAT_BYTES: usize = 9;
const SIT_BYTES: usize = 74;
/// Bytes of a journal in a summary.
pub(crate) const JOURNAL_BYTES: usize = 507;
/// Most entries of a journal of the NAT.
pub const NAT_JOURNAL_MAX: usize = (JOURNAL_BYTES - 2) / (4 + NAT_BYTES);
/// Most entries of a journal of the SIT.
pub const SIT_JOURNAL_MAX: usize = (JOURNAL_BYTES - 2) / (4 + SIT_BYTES);

/// An entry of the NAT: the address of a node.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct NatEntry {
    /// Version; grows when the number is given to a new node.
    pub version: u8,
    /// The inode to which the node belongs.
    pub ino: Nid,
    /// Address of its block; [`Addr::NULL`] if the number is free.
    pub addr: Addr,
}

impl NatEntry {
    fn decode(bytes: &[u8]) -> Self {
        Self { version: bytes[0], ino: Nid(u32_at(bytes, 1)), addr: Addr(u32_at(bytes, 5)) }
    }

    fn encode(self, bytes: &mut [u8]) {
        bytes[0] = self.version;
        put(bytes, 1, &self.ino.0.to_le_bytes());
        put(bytes, 5, &self.addr.0.to_le_bytes());
    }

    /// Decodes entry `index` of a block of the NAT.
    pub fn from_block(block: &[u8], index: usize) -> Self {
        debug_assert!(index < NAT_PER_BLOCK as usize);
        Self::decode(&block[index * NAT_BYTES..])
    }

    /// Encodes the entry into a block of the NAT.
    pub fn into_block(self, block: &mut [u8], index: usize) {
        debug_assert!(index < NAT_PER_BLOCK as usize);
        self.encode(&mut block[index * NAT_BYTES..]);
    }
}

/// An entry of the SIT: the valid blocks of a segment.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SitEntry {
    /// Number of valid blocks.
    pub valid: u16,
    /// The log to which the segment belongs, as the format numbers it.
    pub log: u8,
    /// A bit for each block that is valid.
    pub map: [u8; SEGMENT_BLOCKS as usize / 8],
    /// Time of the last change, in seconds during which the volume was mounted.
    pub mtime_s: u64,
}

impl Default for SitEntry {
    fn default() -> Self {
        Self { valid: 0, log: 0, map: [0; 64], mtime_s: 0 }
    }
}

impl SitEntry {
    fn decode(bytes: &[u8]) -> Self {
        let word = u16_at(bytes, 0);
        Self {
            valid: word & 0x3ff,
            log: (word >> 10) as u8,
            map: array_at(bytes, 2),
            mtime_s: u64_at(bytes, 66),
        }
    }

    fn encode(&self, bytes: &mut [u8]) {
        put(bytes, 0, &(self.valid | u16::from(self.log) << 10).to_le_bytes());
        put(bytes, 2, &self.map);
        put(bytes, 66, &self.mtime_s.to_le_bytes());
    }

    /// Decodes entry `index` of a block of the SIT.
    pub fn from_block(block: &[u8], index: usize) -> Self {
        debug_assert!(index < SIT_PER_BLOCK as usize);
        Self::decode(&block[index * SIT_BYTES..])
    }

    /// Encodes the entry into a block of the SIT.
    pub fn into_block(&self, block: &mut [u8], index: usize) {
        debug_assert!(index < SIT_PER_BLOCK as usize);
        self.encode(&mut block[index * SIT_BYTES..]);
    }

    /// Whether a block is valid.
    pub fn is_valid(&self, offset: u32) -> bool {
        block_bit(&self.map, offset as usize)
    }

    /// Marks a block as valid or not, and adjusts the count.
    pub fn set_valid(&mut self, offset: u32, valid: bool) {
        if self.is_valid(offset) != valid {
            set_block_bit(&mut self.map, offset as usize, valid);
            self.valid = if valid { self.valid + 1 } else { self.valid - 1 };
        }
    }

    /// Number of set bits.
    pub fn counted(&self) -> u16 {
        self.map.iter().map(|byte| byte.count_ones() as u16).sum()
    }
}

/// Decodes a journal of the NAT. Errors: more entries than there is room for.
pub fn decode_nat_journal(journal: &[u8]) -> Result<Vec<(Nid, NatEntry)>> {
    let count = usize::from(u16_at(journal, 0));
    if count > NAT_JOURNAL_MAX {
        return corrupt(format!("the NAT journal has {count} entries, expected at most {NAT_JOURNAL_MAX}"));
    }
    let entries = journal[2..].chunks_exact(4 + NAT_BYTES).take(count);
    Ok(entries.map(|entry| (Nid(u32_at(entry, 0)), NatEntry::decode(&entry[4..]))).collect())
}

/// Decodes a journal of the SIT. Errors: more entries than there is room for.
pub fn decode_sit_journal(journal: &[u8]) -> Result<Vec<(SegNo, SitEntry)>> {
    let count = usize::from(u16_at(journal, 0));
    if count > SIT_JOURNAL_MAX {
        return corrupt(format!("the SIT journal has {count} entries, expected at most {SIT_JOURNAL_MAX}"));
    }
    let entries = journal[2..].chunks_exact(4 + SIT_BYTES).take(count);
    Ok(entries.map(|entry| (SegNo(u32_at(entry, 0)), SitEntry::decode(&entry[4..]))).collect())
}

/// Encodes a journal of the NAT. Panics on more than [`NAT_JOURNAL_MAX`] entries, which is a bug of the file system.
pub fn encode_nat_journal(entries: &[(Nid, NatEntry)]) -> [u8; JOURNAL_BYTES] {
    assert!(entries.len() <= NAT_JOURNAL_MAX, "{} entries for the NAT journal", entries.len());
    let mut journal = [0; JOURNAL_BYTES];
    put(&mut journal, 0, &(entries.len() as u16).to_le_bytes());
    for ((nid, entry), room) in entries.iter().zip(journal[2..].chunks_exact_mut(4 + NAT_BYTES)) {
        put(room, 0, &nid.0.to_le_bytes());
        entry.encode(&mut room[4..]);
    }
    journal
}

/// Encodes a journal of the SIT. Panics on more than [`SIT_JOURNAL_MAX`] entries, which is a bug of the file system.
pub fn encode_sit_journal(entries: &[(SegNo, SitEntry)]) -> [u8; JOURNAL_BYTES] {
    assert!(entries.len() <= SIT_JOURNAL_MAX, "{} entries for the SIT journal", entries.len());
    let mut journal = [0; JOURNAL_BYTES];
    put(&mut journal, 0, &(entries.len() as u16).to_le_bytes());
    for ((segment, entry), room) in entries.iter().zip(journal[2..].chunks_exact_mut(4 + SIT_BYTES)) {
        put(room, 0, &segment.0.to_le_bytes());
        entry.encode(&mut room[4..]);
    }
    journal
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn journals_have_the_room_that_the_format_gives_them() {
        assert_eq!((NAT_JOURNAL_MAX, SIT_JOURNAL_MAX), (38, 6));
    }

    #[test]
    fn journals_there_and_back() {
        let nats: Vec<_> = (0..38)
            .map(|n| (Nid(100 + n), NatEntry { version: n as u8, ino: Nid(7), addr: Addr(5000 + n) }))
            .collect();
        assert_eq!(decode_nat_journal(&encode_nat_journal(&nats)).unwrap(), nats);
        let mut entry = SitEntry { log: 5, mtime_s: 77, ..SitEntry::default() };
        entry.set_valid(0, true);
        entry.set_valid(511, true);
        entry.set_valid(511, true);
        assert_eq!((entry.valid, entry.counted()), (2, 2));
        let sits: Vec<_> = (0..6).map(|n| (SegNo(n), entry.clone())).collect();
        assert_eq!(decode_sit_journal(&encode_sit_journal(&sits)).unwrap(), sits);
        let mut journal = encode_nat_journal(&nats);
        journal[0] = 39;
        assert!(decode_nat_journal(&journal).unwrap_err().to_string().contains("39 entries"));
    }

    #[test]
    fn entries_of_blocks() {
        let mut block = [0; 4096];
        let nat = NatEntry { version: 3, ino: Nid(9), addr: Addr(10) };
        nat.into_block(&mut block, 454);
        assert_eq!(NatEntry::from_block(&block, 454), nat);
        let mut sit = SitEntry { log: 3, ..SitEntry::default() };
        sit.set_valid(100, true);
        sit.into_block(&mut block, 54);
        assert_eq!(SitEntry::from_block(&block, 54), sit);
        sit.set_valid(100, false);
        assert_eq!(sit.valid, 0);
    }
}
