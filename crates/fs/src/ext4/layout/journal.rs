//! The journal (jbd2): its superblock, and the blocks of its transactions. Its numbers are big-endian.
//!
//! A transaction is descriptor blocks with tags, each followed by the blocks that the tags name, revoke blocks, and one
//! commit block. All carry the sequence number of the transaction.

use super::Addr;
use super::checksum::{START, crc32_big_endian, crc32c};
use crate::ext4::error::{Error, Result, corrupt};
use crate::format::{array_at, put};

/// The first word of each block of the journal that is not a copy of another one.
pub const MAGIC: u32 = 0xc03b_3998;
/// Bytes of the superblock.
pub const BYTES: usize = 1024;
/// Bytes of the header of each block.
pub const HEADER_BYTES: usize = 12;
const CHECKSUM_AT: usize = 0xfc;
/// Bytes at the end of descriptor and revoke blocks that hold a checksum.
const TAIL_BYTES: usize = 4;
const UUID_BYTES: usize = 16;
/// Bytes of a revoke block before its records.
const REVOKE_HEADER_BYTES: usize = 16;
const COMMIT_CHECKSUM_AT: usize = 16;
/// Blocks of the area of fast commits if the superblock does not say their number.
const FAST_COMMIT_BLOCKS: u32 = 256;
/// Least blocks of a log beside an area of fast commits.
const LOG_BLOCKS_MIN: u32 = 1024;

fn u16_be(bytes: &[u8], at: usize) -> u16 {
    u16::from_be_bytes(array_at(bytes, at))
}

fn u32_be(bytes: &[u8], at: usize) -> u32 {
    u32::from_be_bytes(array_at(bytes, at))
}

/// Kind of a block of the journal.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum BlockKind {
    /// Names the blocks that follow.
    Descriptor,
    /// Ends a transaction.
    Commit,
    /// The superblock of the first version, without features.
    Superblock1,
    /// The superblock.
    Superblock2,
    /// Names blocks that must not be replayed from earlier transactions.
    Revoke,
}

impl BlockKind {
    const ALL: [Self; 5] =
        [Self::Descriptor, Self::Commit, Self::Superblock1, Self::Superblock2, Self::Revoke];

    fn number(self) -> u32 {
        self as u32 + 1
    }
}

/// The header of a block.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Header {
    /// Its kind.
    pub kind: BlockKind,
    /// Sequence number of the transaction.
    pub sequence: u32,
}

impl Header {
    /// Decodes the header of a block; `None` if it has none, or one of unknown kind.
    pub fn decode(block: &[u8]) -> Option<Self> {
        if u32_be(block, 0) != MAGIC {
            return None;
        }
        let kind = BlockKind::ALL.into_iter().find(|kind| kind.number() == u32_be(block, 4))?;
        Some(Self { kind, sequence: u32_be(block, 8) })
    }

    /// Encodes the header into a block.
    pub fn encode(self, block: &mut [u8]) {
        for (at, word) in [(0, MAGIC), (4, self.kind.number()), (8, self.sequence)] {
            put(block, at, &word.to_be_bytes());
        }
    }
}

/// Bits of [`JournalSuperblock::compat`].
pub mod compat {
    /// Commit blocks have a checksum of their transaction (version 1).
    pub const CHECKSUM: u32 = 0x1;
}

/// Bits of [`JournalSuperblock::incompat`].
pub mod incompat {
    /// There may be revoke blocks.
    pub const REVOKE: u32 = 0x1;
    /// Block numbers have 64 bits.
    pub const WIDE: u32 = 0x2;
    /// Commit blocks are not ordered after their transactions.
    pub const ASYNC_COMMIT: u32 = 0x4;
    /// Checksums of version 2.
    pub const CSUM_V2: u32 = 0x8;
    /// Checksums of version 3.
    pub const CSUM_V3: u32 = 0x10;
    /// The journal ends with an area of fast commits.
    pub const FAST_COMMIT: u32 = 0x20;

    /// All bits that are known.
    pub(super) const ALL: u32 = REVOKE | WIDE | ASYNC_COMMIT | CSUM_V2 | CSUM_V3 | FAST_COMMIT;
}

/// The journal's superblock. Bytes without a field here stay as they were read.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct JournalSuperblock {
    pub(in crate::ext4) raw: Box<[u8; BYTES]>,
    /// Whether it is of the first version, which has no features.
    pub is_first_version: bool,
    /// Bytes of a block.
    pub block_bytes: u32,
    /// Number of blocks of the journal, this one included.
    pub blocks: u32,
    /// The first block of the log.
    pub first: u32,
    /// The sequence number of the first transaction in the log.
    pub sequence: u32,
    /// The block where the log begins; 0 if there is nothing to replay.
    pub start: u32,
    /// Why the journal was aborted; 0 if it was not.
    pub error: i32,
    /// Bits of [`compat`].
    pub compat: u32,
    /// Bits of [`incompat`].
    pub incompat: u32,
    /// Features that have to be known to write a journal; a reader may ignore them.
    pub ro_compat: u32,
    /// Identity of the journal; all zeros or that of its volume.
    pub uuid: [u8; 16],
    /// Number of volumes that use it.
    pub users: u32,
    /// Type of checksums; 4 is CRC-32C.
    pub checksum_type: u8,
    /// Blocks of the area of fast commits; 0 is 256.
    pub fast_commit_blocks: u32,
    /// End of the log if `start` is 0, so that the next writer continues there.
    pub head: u32,
}

impl JournalSuperblock {
    /// Returns the superblock of a new, empty journal.
    pub fn new(block_bytes: u32, blocks: u32) -> Self {
        let raw = Box::new([0; BYTES]);
        let blank = Self::fields(raw, false);
        Self { block_bytes, blocks, first: 1, sequence: 1, users: 1, ..blank }
    }

    fn fields(raw: Box<[u8; BYTES]>, is_first_version: bool) -> Self {
        let word = |at| u32_be(&raw[..], at);
        let later = |at| if is_first_version { 0 } else { word(at) };
        Self {
            is_first_version,
            block_bytes: word(0xc),
            blocks: word(0x10),
            first: word(0x14),
            sequence: word(0x18),
            start: word(0x1c),
            error: word(0x20).cast_signed(),
            compat: later(0x24),
            incompat: later(0x28),
            ro_compat: later(0x2c),
            uuid: if is_first_version { [0; 16] } else { array_at(&raw[..], 0x30) },
            users: later(0x40),
            checksum_type: if is_first_version { 0 } else { raw[0x50] },
            fast_commit_blocks: later(0x54),
            head: later(0x58),
            raw,
        }
    }

    /// Decodes the journal's first block. Errors: it is no superblock, contradicts itself, or has an unsupported feature.
    pub fn decode(block: &[u8]) -> Result<Self> {
        let is_first_version = match Header::decode(block).map(|header| header.kind) {
            Some(BlockKind::Superblock1) => true,
            Some(BlockKind::Superblock2) => false,
            _ => return corrupt("the first block of the journal is not its superblock"),
        };
        let superblock = Self::fields(Box::new(array_at(block, 0)), is_first_version);
        let unknown = superblock.incompat & !incompat::ALL;
        if unknown != 0 {
            return Err(Error::Refused(format!("the unknown features {unknown:#x} of the journal")));
        }
        let versions = [
            superblock.compat & compat::CHECKSUM != 0,
            superblock.incompat & incompat::CSUM_V2 != 0,
            superblock.incompat & incompat::CSUM_V3 != 0,
        ];
        if versions.into_iter().filter(|&has| has).count() > 1 {
            return corrupt("the journal has checksums of more than one version");
        }
        if superblock.has_crc32c() {
            if superblock.checksum_type != 4 {
                return Err(Error::Refused(format!(
                    "journal checksums of type {}",
                    superblock.checksum_type
                )));
            }
            let (stored, computed) = (u32_be(block, CHECKSUM_AT), superblock_checksum(&superblock.raw));
            if stored != computed {
                return corrupt(format!(
                    "the checksum of the journal's superblock is {stored:#010x}, expected {computed:#010x}"
                ));
            }
        }
        if !(1024..=65536).contains(&superblock.block_bytes) || !superblock.block_bytes.is_power_of_two() {
            return corrupt(format!("the journal has blocks of {} bytes", superblock.block_bytes));
        }
        let end = superblock.log_end();
        let (first, start) = (superblock.first, superblock.start);
        if first == 0 || first >= end || (start != 0 && !(first..end).contains(&start)) {
            return corrupt(format!(
                "the log is in blocks {first} to {end} of the journal, and begins at {start}"
            ));
        }
        Ok(superblock)
    }

    /// Encodes the superblock, with its checksum if the journal has checksums of version 2 or 3.
    pub fn encode(&self) -> [u8; BYTES] {
        let mut raw = *self.raw;
        let kind = if self.is_first_version { BlockKind::Superblock1 } else { BlockKind::Superblock2 };
        Header { kind, sequence: u32_be(&raw, 8) }.encode(&mut raw);
        for (at, word) in [
            (0xc, self.block_bytes),
            (0x10, self.blocks),
            (0x14, self.first),
            (0x18, self.sequence),
            (0x1c, self.start),
            (0x20, self.error.cast_unsigned()),
        ] {
            put(&mut raw, at, &word.to_be_bytes());
        }
        if !self.is_first_version {
            for (at, word) in [
                (0x24, self.compat),
                (0x28, self.incompat),
                (0x2c, self.ro_compat),
                (0x40, self.users),
                (0x54, self.fast_commit_blocks),
                (0x58, self.head),
            ] {
                put(&mut raw, at, &word.to_be_bytes());
            }
            put(&mut raw, 0x30, &self.uuid);
            raw[0x50] = self.checksum_type;
        }
        if self.has_crc32c() {
            let crc = superblock_checksum(&raw);
            put(&mut raw, CHECKSUM_AT, &crc.to_be_bytes());
        }
        raw
    }

    fn has_crc32c(&self) -> bool {
        self.incompat & (incompat::CSUM_V2 | incompat::CSUM_V3) != 0
    }

    /// The block behind the log.
    pub fn log_end(&self) -> u32 {
        if self.incompat & incompat::FAST_COMMIT == 0 {
            return self.blocks;
        }
        let area = if self.fast_commit_blocks == 0 { FAST_COMMIT_BLOCKS } else { self.fast_commit_blocks };
        self.blocks.checked_sub(area).filter(|&end| end >= LOG_BLOCKS_MIN).unwrap_or(self.blocks)
    }

    /// The block where fast commits begin, if there are any.
    pub fn fast_commit_start(&self) -> Option<u32> {
        // One block behind the log is not used.
        let start = self.log_end().saturating_add(1);
        (start < self.blocks).then_some(start)
    }

    /// The format of its blocks.
    pub fn format(&self) -> JournalFormat {
        let checksums = if self.incompat & incompat::CSUM_V3 != 0 {
            Checksums::V3
        } else if self.incompat & incompat::CSUM_V2 != 0 {
            Checksums::V2
        } else if self.compat & compat::CHECKSUM != 0 {
            Checksums::V1
        } else {
            Checksums::None
        };
        JournalFormat {
            block_bytes: self.block_bytes,
            is_wide: self.incompat & incompat::WIDE != 0,
            is_async: self.incompat & incompat::ASYNC_COMMIT != 0,
            checksums,
            seed: crc32c(START, &self.uuid),
        }
    }
}

fn superblock_checksum(raw: &[u8; BYTES]) -> u32 {
    let parts: [&[u8]; 3] = [&raw[..CHECKSUM_AT], &[0; 4], &raw[CHECKSUM_AT + 4..]];
    parts.into_iter().fold(START, crc32c)
}

/// The kind of checksums of a journal.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Checksums {
    /// None.
    None,
    /// One for each transaction, in its commit block.
    V1,
    /// One for each block; for data only 16 bits of it.
    V2,
    /// One for each block.
    V3,
}

/// The format of the blocks of a journal.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct JournalFormat {
    /// Bytes of a block.
    pub block_bytes: u32,
    /// Whether block numbers have 64 bits.
    pub is_wide: bool,
    /// Whether commit blocks are not ordered after their transactions.
    pub is_async: bool,
    /// Kind of checksums.
    pub checksums: Checksums,
    /// The seed of checksums of version 2 and 3.
    pub seed: u32,
}

/// A tag of a descriptor block: the address of the block that the next block of the journal holds.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Tag {
    /// Address in the volume.
    pub addr: Addr,
    /// Whether its first word was [`MAGIC`] and is zero in the journal.
    pub is_escaped: bool,
    /// Whether it does not count any more.
    pub is_deleted: bool,
    /// Checksum of the block as it is in the journal; only 16 bits of it with version 2, 0 without checksums.
    pub checksum: u32,
}

/// Bits of a tag.
mod tag_flags {
    pub(super) const ESCAPE: u32 = 1;
    pub(super) const SAME_UUID: u32 = 2;
    pub(super) const DELETED: u32 = 4;
    pub(super) const LAST: u32 = 8;
}

/// A commit block.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Commit {
    /// Sequence number of the transaction.
    pub sequence: u32,
    /// Time of the commit, in seconds since 1970.
    pub seconds: u64,
    /// Nanoseconds of the second.
    pub nanos: u32,
    /// Type, length and value of the checksum of the transaction (version 1).
    pub checksum: (u8, u8, u32),
}

impl JournalFormat {
    fn has_crc32c(&self) -> bool {
        matches!(self.checksums, Checksums::V2 | Checksums::V3)
    }

    /// Bytes of a tag, without the UUID behind the first one.
    fn tag_bytes(&self) -> usize {
        match (self.checksums, self.is_wide) {
            (Checksums::V3, _) => 16,
            // Tags of version 2 have two unused bytes.
            (Checksums::V2, true) => 14,
            (Checksums::V2, false) => 10,
            (_, true) => 12,
            (_, false) => 8,
        }
    }

    /// Number of bytes of a descriptor or revoke block before its checksum.
    fn room_end(&self) -> usize {
        self.block_bytes as usize - if self.has_crc32c() { TAIL_BYTES } else { 0 }
    }

    /// Most tags of a descriptor block.
    pub fn tags_max(&self) -> usize {
        (self.room_end() - HEADER_BYTES - UUID_BYTES) / self.tag_bytes()
    }

    /// Whether the checksum at the end of a descriptor or revoke block is right, or the journal has none.
    pub fn is_tail_right(&self, block: &[u8]) -> bool {
        !self.has_crc32c() || u32_be(block, self.room_end()) == self.tail_of(block)
    }

    fn tail_of(&self, block: &[u8]) -> u32 {
        crc32c(crc32c(self.seed, &block[..self.room_end()]), &[0; TAIL_BYTES])
    }

    fn put_tail(&self, block: &mut [u8]) {
        if self.has_crc32c() {
            let crc = self.tail_of(block);
            put(block, self.room_end(), &crc.to_be_bytes());
        }
    }

    /// Checksum of a block as it is in the journal, for its tag; 0 if tags have none.
    pub fn data_checksum(&self, sequence: u32, data: &[u8]) -> u32 {
        let crc = crc32c(crc32c(self.seed, &sequence.to_be_bytes()), data);
        match self.checksums {
            Checksums::V3 => crc,
            Checksums::V2 => crc & 0xffff,
            _ => 0,
        }
    }

    /// The tags of a descriptor block. If no tag is marked as the last, there are as many as fit.
    pub fn tags(&self, block: &[u8]) -> Vec<Tag> {
        let end = self.room_end();
        let mut tags = Vec::new();
        let mut at = HEADER_BYTES;
        while at + self.tag_bytes() <= end {
            let v3 = self.checksums == Checksums::V3;
            let flags = if v3 { u32_be(block, at + 4) } else { u16_be(block, at + 6).into() };
            let high = if self.is_wide { u64::from(u32_be(block, at + 8)) << 32 } else { 0 };
            tags.push(Tag {
                addr: Addr(u64::from(u32_be(block, at)) | high),
                is_escaped: flags & tag_flags::ESCAPE != 0,
                is_deleted: flags & tag_flags::DELETED != 0,
                checksum: match self.checksums {
                    Checksums::V3 => u32_be(block, at + 12),
                    Checksums::V2 => u16_be(block, at + 4).into(),
                    _ => 0,
                },
            });
            if flags & tag_flags::LAST != 0 {
                break;
            }
            at += self.tag_bytes() + if flags & tag_flags::SAME_UUID == 0 { UUID_BYTES } else { 0 };
        }
        tags
    }

    /// Encodes a descriptor block with these tags, at least one and at most [`Self::tags_max`]; `uuid` follows the first one. Linux
    /// writes zeros there.
    pub fn descriptor(&self, sequence: u32, tags: &[Tag], uuid: &[u8; 16]) -> Vec<u8> {
        assert!(!tags.is_empty() && tags.len() <= self.tags_max());
        let mut block = vec![0; self.block_bytes as usize];
        Header { kind: BlockKind::Descriptor, sequence }.encode(&mut block);
        let mut at = HEADER_BYTES;
        for (index, tag) in tags.iter().enumerate() {
            let flag = |on: bool, bit: u32| if on { bit } else { 0 };
            let flags = flag(tag.is_escaped, tag_flags::ESCAPE)
                | flag(tag.is_deleted, tag_flags::DELETED)
                | flag(index > 0, tag_flags::SAME_UUID)
                | flag(index + 1 == tags.len(), tag_flags::LAST);
            put(&mut block, at, &(tag.addr.0 as u32).to_be_bytes());
            match self.checksums {
                Checksums::V3 => {
                    put(&mut block, at + 4, &flags.to_be_bytes());
                    put(&mut block, at + 12, &tag.checksum.to_be_bytes());
                }
                _ => {
                    put(&mut block, at + 4, &(tag.checksum as u16).to_be_bytes());
                    put(&mut block, at + 6, &(flags as u16).to_be_bytes());
                }
            }
            if self.is_wide {
                put(&mut block, at + 8, &((tag.addr.0 >> 32) as u32).to_be_bytes());
            }
            at += self.tag_bytes();
            if index == 0 {
                put(&mut block, at, uuid);
                at += UUID_BYTES;
            }
        }
        self.put_tail(&mut block);
        block
    }

    fn revoke_bytes(&self) -> usize {
        if self.is_wide { 8 } else { 4 }
    }

    /// Most addresses in a revoke block.
    pub fn revokes_max(&self) -> usize {
        (self.room_end() - REVOKE_HEADER_BYTES) / self.revoke_bytes()
    }

    /// The addresses in a revoke block. Errors: it claims to have more than fit.
    pub fn revokes(&self, block: &[u8]) -> Result<Vec<Addr>> {
        let bytes = u32_be(block, HEADER_BYTES) as usize;
        if bytes < REVOKE_HEADER_BYTES || bytes > self.room_end() {
            return corrupt(format!("a revoke block of the journal has {bytes} bytes"));
        }
        let records = block[REVOKE_HEADER_BYTES..bytes].chunks_exact(self.revoke_bytes());
        let addr = |record: &[u8]| record.iter().fold(0, |addr, &byte| addr << 8 | u64::from(byte));
        Ok(records.map(|record| Addr(addr(record))).collect())
    }

    /// Encodes a revoke block with these addresses, at most [`Self::revokes_max`].
    pub fn revoke_block(&self, sequence: u32, addrs: &[Addr]) -> Vec<u8> {
        assert!(addrs.len() <= self.revokes_max());
        let mut block = vec![0; self.block_bytes as usize];
        Header { kind: BlockKind::Revoke, sequence }.encode(&mut block);
        let bytes = self.revoke_bytes();
        let end = REVOKE_HEADER_BYTES + bytes * addrs.len();
        put(&mut block, HEADER_BYTES, &(end as u32).to_be_bytes());
        for (record, addr) in block[REVOKE_HEADER_BYTES..end].chunks_exact_mut(bytes).zip(addrs) {
            record.copy_from_slice(&addr.0.to_be_bytes()[8 - bytes..]);
        }
        self.put_tail(&mut block);
        block
    }

    /// Decodes a commit block, whose header must have been checked.
    pub fn commit(&self, block: &[u8]) -> Commit {
        Commit {
            sequence: u32_be(block, 8),
            seconds: u64::from_be_bytes(array_at(block, 0x30)),
            nanos: u32_be(block, 0x38),
            checksum: (block[12], block[13], u32_be(block, COMMIT_CHECKSUM_AT)),
        }
    }

    /// Whether the checksum of a commit block is right, or it has none of version 2 or 3.
    pub fn is_commit_right(&self, block: &[u8]) -> bool {
        !self.has_crc32c() || u32_be(block, COMMIT_CHECKSUM_AT) == self.commit_checksum(block)
    }

    fn commit_checksum(&self, block: &[u8]) -> u32 {
        let parts: [&[u8]; 3] = [
            &block[..COMMIT_CHECKSUM_AT],
            &[0; 4],
            &block[COMMIT_CHECKSUM_AT + 4..self.block_bytes as usize],
        ];
        parts.into_iter().fold(self.seed, crc32c)
    }

    /// Encodes a commit block. With checksums of version 2 or 3 it has its own instead of that of the transaction.
    pub fn commit_block(&self, commit: &Commit) -> Vec<u8> {
        let mut block = vec![0; self.block_bytes as usize];
        Header { kind: BlockKind::Commit, sequence: commit.sequence }.encode(&mut block);
        put(&mut block, 0x30, &commit.seconds.to_be_bytes());
        put(&mut block, 0x38, &commit.nanos.to_be_bytes());
        if self.has_crc32c() {
            let crc = self.commit_checksum(&block);
            put(&mut block, COMMIT_CHECKSUM_AT, &crc.to_be_bytes());
        } else {
            (block[12], block[13]) = (commit.checksum.0, commit.checksum.1);
            put(&mut block, COMMIT_CHECKSUM_AT, &commit.checksum.2.to_be_bytes());
        }
        block
    }
}

/// Continues the checksum of a transaction (version 1) over one more block: descriptors and data, as they are in the journal. It
/// begins with [`START`].
pub fn transaction_checksum(seed: u32, block: &[u8]) -> u32 {
    crc32_big_endian(seed, block)
}

/// Prepares a block for the journal: one that begins with the journal's magic number gets zeros there. Returns whether it did.
pub fn escape(data: &mut [u8]) -> bool {
    let is_magic = u32_be(data, 0) == MAGIC;
    if is_magic {
        data[..4].fill(0);
    }
    is_magic
}

/// Restores the first word of an escaped block.
pub fn unescape(data: &mut [u8]) {
    put(data, 0, &MAGIC.to_be_bytes());
}

#[cfg(test)]
mod tests {
    use super::*;

    fn formats() -> Vec<JournalFormat> {
        let mut formats = Vec::new();
        for checksums in [Checksums::None, Checksums::V1, Checksums::V2, Checksums::V3] {
            for is_wide in [false, true] {
                formats.push(JournalFormat {
                    block_bytes: 1024,
                    is_wide,
                    is_async: false,
                    checksums,
                    seed: 99,
                });
            }
        }
        formats
    }

    #[test]
    fn a_superblock_there_and_back() {
        for features in [0, incompat::WIDE | incompat::CSUM_V3 | incompat::REVOKE] {
            let mut superblock = JournalSuperblock::new(4096, 2048);
            superblock.incompat = features;
            superblock.checksum_type = 4;
            superblock.start = 5;
            superblock.error = -5;
            let raw = superblock.encode();
            let read = JournalSuperblock::decode(&raw).unwrap();
            assert_eq!((read.encode(), read.start, read.error), (raw, 5, -5));
            let change = |at: usize, value: u8| {
                let mut raw = raw;
                raw[at] = value;
                JournalSuperblock::decode(&raw).map_err(|error| error.to_string())
            };
            assert!(change(7, 1).unwrap_err().contains("is not its superblock"));
            assert!(change(0x28, 1).unwrap_err().contains("unknown features 0x1000000"));
            if features == 0 {
                assert!(change(0x1e, 8).unwrap_err().contains("begins at 2053"));
                assert!(change(0xf, 1).unwrap_err().contains("blocks of 4097 bytes"));
                assert!(change(0x2b, 0x18).unwrap_err().contains("more than one version"));
                let fast = change(0x2b, 0x20).unwrap();
                assert_eq!((fast.log_end(), fast.fast_commit_start()), (1792, Some(1793)));
                assert_eq!(JournalSuperblock { blocks: 1024, ..fast }.log_end(), 1024);
                assert_eq!(change(7, 3).unwrap().encode()[7], 3);
            } else {
                assert!(change(0x60, 1).unwrap_err().contains("the checksum of the journal's superblock"));
            }
        }
    }

    #[test]
    fn tags_there_and_back() {
        for format in formats() {
            let tags: Vec<Tag> = (0..format.tags_max() as u64)
                .map(|at| Tag {
                    addr: Addr(at << if format.is_wide { 30 } else { 3 }),
                    is_escaped: at % 3 == 0,
                    is_deleted: at % 5 == 0,
                    checksum: format.data_checksum(7, &at.to_be_bytes()),
                })
                .collect();
            for count in [1, 2, tags.len()] {
                let mut block = format.descriptor(7, &tags[..count], &[3; 16]);
                assert_eq!(Header::decode(&block), Some(Header { kind: BlockKind::Descriptor, sequence: 7 }));
                assert_eq!(format.tags(&block), tags[..count]);
                assert!(format.is_tail_right(&block));
                block[13] ^= 1;
                assert_eq!(format.is_tail_right(&block), !format.has_crc32c());
            }
            // At most as many as fit, whatever a broken block says.
            assert!(format.tags(&[0xf7; 1024]).len() <= 1024 / 8);
            assert!(format.tags(&[0; 1024]).len() <= 1024 / 8);
        }
    }

    #[test]
    fn revokes_and_commits_there_and_back() {
        for format in formats() {
            let addrs: Vec<Addr> = (0..format.revokes_max() as u64).map(|at| Addr(at * 77)).collect();
            for count in [0, 1, addrs.len()] {
                let mut block = format.revoke_block(9, &addrs[..count]);
                assert_eq!(format.revokes(&block).unwrap(), addrs[..count]);
                assert!(format.is_tail_right(&block));
                block[12] = 1;
                assert!(format.revokes(&block).unwrap_err().to_string().contains("a revoke block"));
            }
            let plain = !format.has_crc32c();
            let commit = Commit { sequence: 9, seconds: 1 << 33, nanos: 5, checksum: (1, 4, 77) };
            let mut block = format.commit_block(&commit);
            let read = format.commit(&block);
            assert_eq!((read.sequence, read.seconds, read.nanos), (9, 1 << 33, 5));
            assert_eq!(read.checksum == commit.checksum, plain);
            assert!(format.is_commit_right(&block));
            block[0x30] = 1;
            assert_eq!(format.is_commit_right(&block), plain);
        }
    }

    #[test]
    fn data_are_escaped() {
        let mut data = MAGIC.to_be_bytes().to_vec();
        data.push(9);
        assert!(escape(&mut data));
        assert_eq!(data, [0, 0, 0, 0, 9]);
        assert!(!escape(&mut data));
        unescape(&mut data);
        assert_eq!(data[..4], MAGIC.to_be_bytes());
    }
}
