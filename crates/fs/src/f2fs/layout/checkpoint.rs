//! Checkpoints: the roots of all that is valid, and the lists of orphans beside them.
//!
//! A checkpoint pack is, in its segment: the checkpoint block, blocks of payload (the version bitmap of the SIT where it
//! does not fit), blocks of orphans, data summaries, node summaries if the volume was unmounted, and the checkpoint block
//! again. A pack is valid when both blocks are, with the same version; the newer of two valid packs counts.

use super::bytes::{crc32, put, u16_at, u32_at, u64_at};
use super::superblock::BITMAP_BYTES_MAX;
use super::{Log, MAGIC, Nid, SEGMENT_BLOCKS, SegNo};
use crate::f2fs::error::{Result, corrupt};
use crate::port::{BLOCK_BYTES, BlockBytes};

/// Offset at which the version bitmaps begin.
const BITMAPS_AT: usize = 192;
/// Usual offset of the checksum.
const CHECKSUM_AT: usize = 4092;
/// Number of orphans in a block.
pub const ORPHANS_PER_BLOCK: usize = 1020;

/// Flags of a checkpoint.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Flags(pub u32);

impl Flags {
    /// The volume was unmounted: node summaries are there, nothing needs to be recovered.
    pub const UNMOUNTED: u32 = 0x1;
    /// There are orphans.
    pub const ORPHANS: u32 = 0x2;
    /// Data summaries are compact.
    pub const COMPACT_SUMMARIES: u32 = 0x4;
    /// An error was seen.
    pub const ERROR: u32 = 0x8;
    /// A check by fsck is requested.
    pub const FSCK: u32 = 0x10;
    /// Node summaries are there although the volume was not unmounted.
    pub const FASTBOOT: u32 = 0x20;
    /// Node footers have the checkpoint's checksum beside its version.
    pub const CRC_RECOVERY: u32 = 0x40;
    /// The pack ends with bitmaps of full and empty NAT blocks.
    pub const NAT_BITS: u32 = 0x80;
    /// All free segments were discarded.
    pub const TRIMMED: u32 = 0x100;
    /// Node footers are to be compared without the checkpoint's checksum.
    pub const NO_CRC_RECOVERY: u32 = 0x200;
    /// The checksum is in front of the bitmaps; the NAT's bitmap comes first.
    pub const LARGE_NAT_BITMAP: u32 = 0x400;
    /// Quota files have to be checked.
    pub const QUOTA_NEEDS_FSCK: u32 = 0x800;
    /// Checkpoints are off: some blocks that count as free have to be moved by cleaning first.
    pub const DISABLED: u32 = 0x1000;
    /// The same, for quota files.
    pub const DISABLED_QUICK: u32 = 0x2000;
    /// The volume's size was being changed.
    pub const RESIZING: u32 = 0x4000;

    const SUPPORTED: u32 = Self::UNMOUNTED
        | Self::ORPHANS
        | Self::COMPACT_SUMMARIES
        | Self::ERROR
        | Self::FSCK
        | Self::FASTBOOT
        | Self::CRC_RECOVERY
        | Self::NAT_BITS
        | Self::TRIMMED
        | Self::NO_CRC_RECOVERY
        | Self::LARGE_NAT_BITMAP;

    const NAMES: [(u32, &'static str); 4] = [
        (Self::QUOTA_NEEDS_FSCK, "quota_need_fsck"),
        (Self::DISABLED, "disabled"),
        (Self::DISABLED_QUICK, "disabled_quick"),
        (Self::RESIZING, "resizefs"),
    ];

    /// Whether this flag is set.
    pub const fn has(self, bit: u32) -> bool {
        self.0 & bit != 0
    }

    /// Whether the summaries of nodes are in the pack.
    pub const fn has_node_summaries(self) -> bool {
        self.has(Self::UNMOUNTED) || self.has(Self::FASTBOOT)
    }

    /// Names of the flags that are set and not supported.
    pub fn refused(self) -> Vec<String> {
        let bits = (0..32).map(|bit| 1 << bit).filter(|bit| self.has(*bit) && Self::SUPPORTED & bit == 0);
        bits.map(|bit| match Self::NAMES.iter().find(|(known, _)| *known == bit) {
            Some((_, name)) => (*name).to_string(),
            None => format!("unknown checkpoint flag {bit:#x}"),
        })
        .collect()
    }
}

/// Write position of a log.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Cursor {
    /// Segment to which it writes.
    pub segment: SegNo,
    /// Next block in the segment.
    pub offset: u16,
    /// Whether it fills the holes of a segment (SSR) instead of appending to a free one (LFS).
    pub fills_holes: bool,
}

/// A checkpoint.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Checkpoint {
    /// Version; grows by one with each checkpoint.
    pub version: u64,
    /// Number of blocks that are available to users.
    pub user_blocks: u64,
    /// Number of blocks that are in use, nodes and reserved ones included.
    pub valid_blocks: u64,
    /// Number of segments that only cleaning may use.
    pub reserved_segments: u32,
    /// Number of segments that are not available to users, the reserved ones included.
    pub overprovision_segments: u32,
    /// Free segments of the main area.
    pub free_segments: u32,
    /// The six logs, in the order of [`Log::ALL`].
    pub cursors: [Cursor; 6],
    /// Flags.
    pub flags: Flags,
    /// Number of blocks of the pack, both checkpoint blocks included.
    pub pack_blocks: u32,
    /// Block of the pack at which the data summaries begin.
    pub summary_start: u32,
    /// Number of nodes.
    pub valid_nodes: u32,
    /// Number of inodes.
    pub valid_inodes: u32,
    /// Node number from which to search for a free one.
    pub next_free_nid: Nid,
    /// Seconds during which the volume was mounted.
    pub elapsed_s: u64,
    /// Which copy of each block of the SIT is valid.
    pub sit_versions: Vec<u8>,
    /// Which copy of each block of the NAT is valid.
    pub nat_versions: Vec<u8>,
}

/// Place of the version bitmaps.
enum Bitmaps {
    /// Both are in the checkpoint block, at these offsets.
    Inside { sit: usize, nat: usize },
    /// The SIT's bitmap is in the payload, the NAT's in the checkpoint block.
    Payload { nat: usize },
}

fn bitmaps(flags: Flags, payload_blocks: u32, sit_bytes: usize, nat_bytes: usize) -> Bitmaps {
    if flags.has(Flags::LARGE_NAT_BITMAP) {
        // The bitmaps continue in the payload, which follows in memory and on the disk.
        Bitmaps::Inside { sit: BITMAPS_AT + 4 + nat_bytes, nat: BITMAPS_AT + 4 }
    } else if payload_blocks > 0 {
        Bitmaps::Payload { nat: BITMAPS_AT }
    } else {
        Bitmaps::Inside { sit: BITMAPS_AT, nat: BITMAPS_AT + sit_bytes }
    }
}

/// The checksum of a checkpoint block, over all its bytes except the checksum itself.
fn checksum(block: &[u8], at: usize) -> u32 {
    let front = crc32(MAGIC, &block[..at]);
    if at < CHECKSUM_AT { crc32(front, &block[at + 4..]) } else { front }
}

/// The version of the checkpoint block, if its checksum is right.
pub(crate) fn version_of(block: &[u8]) -> Option<u64> {
    let at = u32_at(block, 164) as usize;
    if !(BITMAPS_AT..=CHECKSUM_AT).contains(&at) {
        return None;
    }
    (u32_at(block, at) == checksum(block, at)).then(|| u64_at(block, 0))
}

/// The checksum that is stored in a checkpoint block.
pub(crate) fn crc_of(block: &[u8]) -> u32 {
    u32_at(block, (u32_at(block, 164) as usize).min(CHECKSUM_AT))
}

/// Stamp in the footers of nodes that are written after a checkpoint, by which recovery distinguishes them from older ones.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Epoch {
    /// Version of the checkpoint; also its checksum, in the upper half, if the checkpoint has the flag for that.
    pub stamp: u64,
    mask: u64,
}

impl Epoch {
    /// The stamp of no checkpoint: versions begin at 1. A node with this stamp is in no chain.
    pub const NONE: Self = Self { stamp: 0, mask: u64::MAX };

    /// The stamp of a checkpoint whose block has this checksum.
    pub fn of(checkpoint: &Checkpoint, crc: u32) -> Self {
        let has_crc = checkpoint.flags.has(Flags::CRC_RECOVERY);
        let mask = if checkpoint.flags.has(Flags::NO_CRC_RECOVERY) { u64::from(u32::MAX) } else { u64::MAX };
        let crc = if has_crc { u64::from(crc) << 32 } else { 0 };
        Self { stamp: checkpoint.version | crc, mask }
    }

    /// Whether a node with this footer was written after the checkpoint.
    pub fn admits(self, footer: &super::node::Footer) -> bool {
        (footer.checkpoint ^ self.stamp) & self.mask == 0
    }
}

/// Number of blocks of the pack, according to the checkpoint block.
pub(crate) fn pack_blocks_of(block: &[u8]) -> u32 {
    u32_at(block, 136)
}

impl Checkpoint {
    /// Decodes a checkpoint block and the payload behind it. Its checksum must have been checked before. Errors: numbers that
    /// contradict each other.
    pub fn decode(blocks: &[u8], payload_blocks: u32, geometry: &super::Geometry) -> Result<Self> {
        let word = |at| u32_at(blocks, at);
        let flags = Flags(word(132));
        let (sit_bytes, nat_bytes) = (word(156), word(160));
        for (name, bytes, blocks) in
            [("SIT", sit_bytes, geometry.sit_blocks), ("NAT", nat_bytes, geometry.nat_blocks)]
        {
            if bytes != blocks / 8 {
                return corrupt(format!(
                    "the version bitmap of the {name} has {bytes} bytes, expected {}",
                    blocks / 8
                ));
            }
        }
        let (sit_bytes, nat_bytes) = (sit_bytes as usize, nat_bytes as usize);
        let (sit, nat, end) = match bitmaps(flags, payload_blocks, sit_bytes, nat_bytes) {
            Bitmaps::Inside { sit, nat } => (sit, nat, blocks.len()),
            Bitmaps::Payload { nat } => (BLOCK_BYTES, nat, blocks.len()),
        };
        let within = |at: usize, bytes: usize| {
            let limit = if payload_blocks == 0 { BITMAPS_AT + BITMAP_BYTES_MAX as usize } else { end };
            at + bytes <= limit
        };
        if !within(sit, sit_bytes) || !within(nat, nat_bytes) {
            return corrupt(format!(
                "version bitmaps of {sit_bytes} and {nat_bytes} bytes do not fit a checkpoint"
            ));
        }
        let mut cursors = [Cursor::default(); 6];
        for log in Log::ALL {
            let (index, base) = if log.is_node() { (log.index() - 3, 36) } else { (log.index(), 84) };
            cursors[log.index()] = Cursor {
                segment: SegNo(word(base + 4 * index)),
                offset: u16_at(blocks, base + 32 + 2 * index),
                fills_holes: blocks[176 + log.index()] != 0,
            };
        }
        let checkpoint = Self {
            version: u64_at(blocks, 0),
            user_blocks: u64_at(blocks, 8),
            valid_blocks: u64_at(blocks, 16),
            reserved_segments: word(24),
            overprovision_segments: word(28),
            free_segments: word(32),
            cursors,
            flags,
            pack_blocks: word(136),
            summary_start: word(140),
            valid_nodes: word(144),
            valid_inodes: word(148),
            next_free_nid: Nid(word(152)),
            elapsed_s: u64_at(blocks, 168),
            sit_versions: blocks[sit..sit + sit_bytes].to_vec(),
            nat_versions: blocks[nat..nat + nat_bytes].to_vec(),
        };
        checkpoint.check(payload_blocks, geometry)?;
        Ok(checkpoint)
    }

    fn check(&self, payload_blocks: u32, geometry: &super::Geometry) -> Result<()> {
        for (log, cursor) in Log::ALL.into_iter().zip(&self.cursors) {
            if cursor.segment.0 >= geometry.main_segments || u32::from(cursor.offset) > SEGMENT_BLOCKS {
                return corrupt(format!(
                    "the log {log:?} is at block {} of segment {}, beyond {} segments",
                    cursor.offset, cursor.segment, geometry.main_segments
                ));
            }
            let same = self.cursors[..log.index()].iter().any(|other| other.segment == cursor.segment);
            if same {
                return corrupt(format!("segment {} belongs to two logs", cursor.segment));
            }
        }
        let summaries = self.summary_blocks();
        let summaries_end = u64::from(self.summary_start) + u64::from(summaries) + 1;
        if self.summary_start < 1 + payload_blocks
            || self.pack_blocks > SEGMENT_BLOCKS
            || summaries_end > u64::from(self.pack_blocks)
        {
            return corrupt(format!(
                "a checkpoint pack of {} blocks with summaries from block {} on",
                self.pack_blocks, self.summary_start
            ));
        }
        self.check_counts(geometry)
    }

    /// Checks the numbers from which the writer counts on. Errors: one that such a volume cannot have.
    pub(crate) fn check_counts(&self, geometry: &super::Geometry) -> Result<()> {
        if self.user_blocks > u64::from(geometry.main_blocks()) || self.valid_blocks > self.user_blocks {
            return corrupt(format!("{} of {} user blocks are valid", self.valid_blocks, self.user_blocks));
        }
        for (name, segments) in
            [("reserved", self.reserved_segments), ("overprovisioned", self.overprovision_segments)]
        {
            if segments > geometry.main_segments {
                let main = geometry.main_segments;
                return corrupt(format!("{segments} of {main} segments are {name}"));
            }
        }
        for (name, count) in [("nodes", self.valid_nodes), ("inodes", self.valid_inodes)] {
            if count > geometry.nid_end().0 {
                return corrupt(format!("{count} {name}, expected at most {}", geometry.nid_end().0));
            }
        }
        if self.version > u64::MAX / 2 {
            return corrupt(format!("a checkpoint of version {}", self.version));
        }
        Ok(())
    }

    /// Least number of summary blocks: compact summaries take one or more, others three; nodes three more.
    fn summary_blocks(&self) -> u32 {
        let data = if self.flags.has(Flags::COMPACT_SUMMARIES) { 1 } else { 3 };
        data + if self.flags.has_node_summaries() { 3 } else { 0 }
    }

    /// Encodes the checkpoint block and the payload behind it: `1 + payload_blocks` blocks.
    pub fn encode(&self, payload_blocks: u32) -> Vec<BlockBytes> {
        let mut bytes = vec![0; BLOCK_BYTES * (1 + payload_blocks as usize)];
        put(&mut bytes, 0, &self.version.to_le_bytes());
        put(&mut bytes, 8, &self.user_blocks.to_le_bytes());
        put(&mut bytes, 16, &self.valid_blocks.to_le_bytes());
        put(&mut bytes, 168, &self.elapsed_s.to_le_bytes());
        let large = self.flags.has(Flags::LARGE_NAT_BITMAP);
        let checksum_at = if large { BITMAPS_AT } else { CHECKSUM_AT };
        for (at, word) in [
            (24, self.reserved_segments),
            (28, self.overprovision_segments),
            (32, self.free_segments),
            (132, self.flags.0),
            (136, self.pack_blocks),
            (140, self.summary_start),
            (144, self.valid_nodes),
            (148, self.valid_inodes),
            (152, self.next_free_nid.0),
            (156, self.sit_versions.len() as u32),
            (160, self.nat_versions.len() as u32),
            (164, checksum_at as u32),
        ] {
            put(&mut bytes, at, &word.to_le_bytes());
        }
        for base in [36, 84] {
            // The format has room for eight logs of each kind; there are three.
            bytes[base + 12..base + 32].fill(0xff);
        }
        for (log, cursor) in Log::ALL.into_iter().zip(&self.cursors) {
            let (index, base) = if log.is_node() { (log.index() - 3, 36) } else { (log.index(), 84) };
            put(&mut bytes, base + 4 * index, &cursor.segment.0.to_le_bytes());
            put(&mut bytes, base + 32 + 2 * index, &cursor.offset.to_le_bytes());
            bytes[176 + log.index()] = u8::from(cursor.fills_holes);
        }
        let (sit, nat) =
            match bitmaps(self.flags, payload_blocks, self.sit_versions.len(), self.nat_versions.len()) {
                Bitmaps::Inside { sit, nat } => (sit, nat),
                Bitmaps::Payload { nat } => (BLOCK_BYTES, nat),
            };
        put(&mut bytes, sit, &self.sit_versions);
        put(&mut bytes, nat, &self.nat_versions);
        let crc = checksum(&bytes[..BLOCK_BYTES], checksum_at);
        put(&mut bytes, checksum_at, &crc.to_le_bytes());
        bytes.chunks(BLOCK_BYTES).map(|block| block.try_into().expect("whole blocks")).collect()
    }

    /// The cursor of a log.
    pub fn cursor(&self, log: Log) -> Cursor {
        self.cursors[log.index()]
    }

    /// Block of the pack with the summary of a log: for data logs if summaries are not compact, for node logs if the pack has their
    /// summaries.
    pub fn summary_block(&self, log: Log) -> u32 {
        // Both kinds are counted from the end of the pack, where the second checkpoint block is.
        let end = self.pack_blocks - 1;
        if log.is_node() {
            return end - 3 + (log.index() - Log::HotNode.index()) as u32;
        }
        end - if self.flags.has_node_summaries() { 6 } else { 3 } + log.index() as u32
    }
}

/// Decodes the inodes of a block of orphans. Errors: the checksum or the count is wrong.
pub fn decode_orphans(block: &[u8]) -> Result<Vec<Nid>> {
    let (count, stored) = (u32_at(block, 4088), u32_at(block, 4092));
    let computed = crc32(MAGIC, &block[..4092]);
    // Packs of older kernels have no checksum in these blocks.
    if stored != 0 && stored != computed {
        return corrupt(format!(
            "the checksum of an orphan block is {stored:#010x}, expected {computed:#010x}"
        ));
    }
    if count as usize > ORPHANS_PER_BLOCK {
        return corrupt(format!("an orphan block has {count} entries, expected at most {ORPHANS_PER_BLOCK}"));
    }
    Ok((0..count as usize).map(|index| Nid(u32_at(block, 4 * index))).collect())
}

/// Encodes the blocks of orphans of a checkpoint pack.
pub fn encode_orphans(orphans: &[Nid]) -> Vec<BlockBytes> {
    let chunks = orphans.chunks(ORPHANS_PER_BLOCK);
    let blocks = chunks.len();
    chunks
        .enumerate()
        .map(|(index, orphans)| {
            let mut block = [0; BLOCK_BYTES];
            for (place, orphan) in orphans.iter().enumerate() {
                put(&mut block, 4 * place, &orphan.0.to_le_bytes());
            }
            put(&mut block, 4084, &(index as u16 + 1).to_le_bytes());
            put(&mut block, 4086, &(blocks as u16).to_le_bytes());
            put(&mut block, 4088, &(orphans.len() as u32).to_le_bytes());
            let crc = crc32(MAGIC, &block[..4092]);
            put(&mut block, 4092, &crc.to_le_bytes());
            block
        })
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn orphans_there_and_back() {
        let orphans: Vec<Nid> = (10..1500).map(Nid).collect();
        let blocks = encode_orphans(&orphans);
        assert_eq!(blocks.len(), 2);
        let read: Vec<Nid> = blocks.iter().flat_map(|block| decode_orphans(block).unwrap()).collect();
        assert_eq!(read, orphans);
        let mut broken = blocks[1];
        broken[0] ^= 1;
        assert!(decode_orphans(&broken).unwrap_err().to_string().contains("checksum of an orphan block"));
    }
}
