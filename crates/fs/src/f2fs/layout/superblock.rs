//! The superblock, and the geometry that follows from it.
//!
//! Two copies, in blocks 0 and 1, each 1,024 bytes from the start of its block. It is written once, when the volume is
//! made; everything that changes is in checkpoints.

use super::bytes::{array_at, crc32, put, u16_at, u32_at, u64_at};
use super::{Addr, MAGIC, Nid, SEGMENT_BLOCKS, SEGMENT_BLOCKS_LOG2, SegNo};
use crate::f2fs::error::{Error, Named, Result, corrupt};
use crate::port::{BLOCK_BYTES, Block, BlockBytes};

/// Offset of the structure in its block.
const OFFSET: usize = 1024;
/// Bytes of the structure.
const BYTES: usize = 3072;
const CRC_AT: usize = 3068;
/// UTF-16 units of a label.
pub const LABEL_UNITS: usize = 512;
const VERSION_BYTES: usize = 256;
const EXTENSIONS_MAX: usize = 64;

/// NAT entries in a block.
pub const NAT_PER_BLOCK: u32 = 455;
/// SIT entries in a block.
pub const SIT_PER_BLOCK: u32 = 55;
/// Bytes of a checkpoint block that the bitmaps can take.
pub(crate) const BITMAP_BYTES_MAX: u32 = 4092 - 192;

/// Optional parts of the format, as bits of the superblock.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Features(pub u32);

impl Features {
    /// Inodes have more fields, at the front of their addresses.
    pub const EXTRA_ATTR: u32 = 0x8;
    /// Inodes have a checksum.
    pub const INODE_CHECKSUM: u32 = 0x20;
    /// The inline room for extended attributes has a size of its own in each inode.
    pub const FLEXIBLE_INLINE_XATTR: u32 = 0x40;
    /// Inodes have the time of their creation.
    pub const INODE_CRTIME: u32 = 0x100;
    /// There is a directory `lost+found`.
    pub const LOST_FOUND: u32 = 0x200;
    /// The superblock has a checksum.
    pub const SB_CHECKSUM: u32 = 0x800;

    /// Features that this file system supports.
    const SUPPORTED: u32 = Self::EXTRA_ATTR
        | Self::INODE_CHECKSUM
        | Self::FLEXIBLE_INLINE_XATTR
        | Self::INODE_CRTIME
        | Self::LOST_FOUND
        | Self::SB_CHECKSUM;

    const NAMES: [(u32, &'static str); 17] = [
        (0x1, "encrypt"),
        (0x2, "blkzoned"),
        (0x4, "atomic_write"),
        (Self::EXTRA_ATTR, "extra_attr"),
        (0x10, "project_quota"),
        (Self::INODE_CHECKSUM, "inode_checksum"),
        (Self::FLEXIBLE_INLINE_XATTR, "flexible_inline_xattr"),
        (0x80, "quota"),
        (Self::INODE_CRTIME, "inode_crtime"),
        (Self::LOST_FOUND, "lost_found"),
        (0x400, "verity"),
        (Self::SB_CHECKSUM, "sb_checksum"),
        (0x1000, "casefold"),
        (0x2000, "compression"),
        (0x4000, "ro"),
        (0x8000, "device_alias"),
        (0x10000, "packed_ssa"),
    ];

    /// Whether this feature is on.
    pub const fn has(self, bit: u32) -> bool {
        self.0 & bit != 0
    }

    /// Names of the features that the volume has and this file system does not support.
    pub fn refused(self) -> Vec<String> {
        let bits = (0..32).map(|bit| 1 << bit).filter(|bit| self.has(*bit) && Self::SUPPORTED & bit == 0);
        bits.map(|bit| match Self::NAMES.iter().find(|(known, _)| *known == bit) {
            Some((_, name)) => (*name).to_string(),
            None => format!("unknown feature bit {bit:#x}"),
        })
        .collect()
    }

    /// Names of all features that are on.
    pub fn names(self) -> Vec<&'static str> {
        Self::NAMES.iter().filter(|(bit, _)| self.has(*bit)).map(|(_, name)| *name).collect()
    }
}

/// The superblock. Fields that are not listed here are written as zero.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Superblock {
    /// Size of the volume in blocks.
    pub block_count: u64,
    /// Segments in a section, which is the unit of cleaning.
    pub segments_per_section: u32,
    /// Sections in a zone; the logs are in different zones at first.
    pub sections_per_zone: u32,
    /// Sections of the main area.
    pub section_count: u32,
    /// Number of segments from `segment0` on.
    pub segment_count: u32,
    /// Number of segments of the checkpoint packs: 2.
    pub segments_checkpoint: u32,
    /// Number of segments of the SIT, both copies.
    pub segments_sit: u32,
    /// Number of segments of the NAT, both copies.
    pub segments_nat: u32,
    /// Number of segments of the SSA.
    pub segments_ssa: u32,
    /// Number of segments of the main area.
    pub segments_main: u32,
    /// Address of the first segment.
    pub segment0: Addr,
    /// Address of the first checkpoint pack.
    pub checkpoint: Addr,
    /// Address of the SIT.
    pub sit: Addr,
    /// Address of the NAT.
    pub nat: Addr,
    /// Address of the SSA.
    pub ssa: Addr,
    /// Address of the main area.
    pub main: Addr,
    /// Root directory.
    pub root: Nid,
    /// Identity of the volume.
    pub uuid: [u8; 16],
    /// Label of the volume.
    pub label: String,
    /// File name extensions whose contents are cold, then those whose contents are hot.
    pub extensions: (Vec<String>, Vec<String>),
    /// Blocks of a checkpoint pack that hold the version bitmap of the SIT, where it does not fit into the checkpoint block.
    pub checkpoint_payload: u32,
    /// Description of the system that made the volume.
    pub version: String,
    /// Optional parts.
    pub features: Features,
}

impl Superblock {
    /// Decodes a copy. Errors: it is no superblock, contradicts itself, or has a feature that is not supported.
    pub fn decode(block: &[u8]) -> Result<Self> {
        let raw = &block[OFFSET..OFFSET + BYTES];
        let magic = u32_at(raw, 0);
        if magic != MAGIC {
            return Err(Error::Absent(
                Named,
                format!("the superblock begins with {magic:#010x}, expected {MAGIC:#010x}"),
            ));
        }
        let features = Features(u32_at(raw, 2180));
        if features.has(Features::SB_CHECKSUM) {
            let (at, stored) = (u32_at(raw, 32), u32_at(raw, CRC_AT));
            let computed = crc32(MAGIC, &raw[..CRC_AT]);
            if at as usize != CRC_AT || stored != computed {
                return corrupt(format!(
                    "the superblock's checksum is {stored:#010x}, expected {computed:#010x}"
                ));
            }
        }
        let refused = features.refused();
        if !refused.is_empty() {
            return Err(Error::Refused(format!("the feature {}", refused.join(", "))));
        }
        for (at, name, expected) in [
            (16, "log_blocksize", BLOCK_BYTES.ilog2()),
            (20, "log_blocks_per_seg", SEGMENT_BLOCKS_LOG2),
            (100, "node_ino", Nid::NODE.0),
            (104, "meta_ino", Nid::META.0),
            (96, "root_ino", Nid::ROOT.0),
            (52, "segment_count_ckpt", 2),
        ] {
            let value = u32_at(raw, at);
            if value != expected {
                return corrupt(format!("{name} of the superblock is {value}, expected {expected}"));
            }
        }
        let (sector, per_block) = (u32_at(raw, 8), u32_at(raw, 12));
        if !(9..=12).contains(&sector) || sector.saturating_add(per_block) != 12 {
            return corrupt(format!("sectors of 2^{sector} bytes, 2^{per_block} in a block of 2^12"));
        }
        if raw[2201] != 0 {
            return Err(Error::Refused("several devices".into()));
        }
        let superblock = Self::fields(raw, features);
        superblock.check()?;
        Ok(superblock)
    }

    fn fields(raw: &[u8], features: Features) -> Self {
        let word = |at| u32_at(raw, at);
        let text = |at: usize| {
            let bytes = &raw[at..at + VERSION_BYTES];
            let end = bytes.iter().position(|&byte| byte == 0).unwrap_or(bytes.len());
            String::from_utf8_lossy(&bytes[..end]).into_owned()
        };
        let label = (0..LABEL_UNITS).map(|unit| u16_at(raw, 124 + 2 * unit)).take_while(|&unit| unit != 0);
        let label: Vec<u16> = label.collect();
        let extension = |index: usize| {
            let bytes: [u8; 8] = array_at(raw, 1152 + 8 * index);
            let end = bytes.iter().position(|&byte| byte == 0).unwrap_or(bytes.len());
            String::from_utf8_lossy(&bytes[..end]).into_owned()
        };
        let cold = (word(1148) as usize).min(EXTENSIONS_MAX);
        let hot = usize::from(raw[2757]).min(EXTENSIONS_MAX - cold);
        Self {
            block_count: u64_at(raw, 36),
            segments_per_section: word(24),
            sections_per_zone: word(28),
            section_count: word(44),
            segment_count: word(48),
            segments_checkpoint: word(52),
            segments_sit: word(56),
            segments_nat: word(60),
            segments_ssa: word(64),
            segments_main: word(68),
            segment0: Addr(word(72)),
            checkpoint: Addr(word(76)),
            sit: Addr(word(80)),
            nat: Addr(word(84)),
            ssa: Addr(word(88)),
            main: Addr(word(92)),
            root: Nid(word(96)),
            uuid: array_at(raw, 108),
            label: String::from_utf16_lossy(&label),
            extensions: ((0..cold).map(extension).collect(), (cold..cold + hot).map(extension).collect()),
            checkpoint_payload: word(1664),
            version: text(1668),
            features,
        }
    }

    /// Whether areas follow each other and are large enough for what they hold.
    fn check(&self) -> Result<()> {
        let areas = [
            ("checkpoint", self.checkpoint, self.segments_checkpoint),
            ("SIT", self.sit, self.segments_sit),
            ("NAT", self.nat, self.segments_nat),
            ("SSA", self.ssa, self.segments_ssa),
            ("main", self.main, self.segments_main),
        ];
        let mut next = u64::from(self.segment0.0);
        if next < 2 {
            return corrupt(format!("segment0_blkaddr is {next}, before the end of the superblocks"));
        }
        for (name, address, segments) in areas {
            if u64::from(address.0) != next {
                return corrupt(format!("the {name} area begins at block {address}, expected {next}"));
            }
            if segments == 0 {
                return corrupt(format!("the {name} area is empty"));
            }
            next += u64::from(segments) * u64::from(SEGMENT_BLOCKS);
        }
        if next > self.block_count || next > u64::from(Addr::COMPRESSED.0) {
            return corrupt(format!("the main area ends at block {next} of {}", self.block_count));
        }
        let end = u64::from(self.segment0.0) + u64::from(self.segment_count) * u64::from(SEGMENT_BLOCKS);
        if end < next {
            return corrupt(format!("segment_count is {}, less than the areas have", self.segment_count));
        }
        let sections = u64::from(self.section_count) * u64::from(self.segments_per_section);
        if self.segments_per_section == 0 || sections != u64::from(self.segments_main) {
            return corrupt(format!(
                "{} sections of {} segments are not the main area's {} segments",
                self.section_count, self.segments_per_section, self.segments_main
            ));
        }
        if self.sections_per_zone == 0 || self.sections_per_zone > self.section_count {
            return corrupt(format!(
                "secs_per_zone is {}, sections {}",
                self.sections_per_zone, self.section_count
            ));
        }
        let sit = u64::from(self.segments_sit / 2) * u64::from(SEGMENT_BLOCKS * SIT_PER_BLOCK);
        if !self.segments_sit.is_multiple_of(2) || sit < u64::from(self.segments_main) {
            return corrupt(format!(
                "{} segments of SIT for {} segments",
                self.segments_sit, self.segments_main
            ));
        }
        if !self.segments_nat.is_multiple_of(2) {
            return corrupt(format!("{} segments of NAT, expected an even number", self.segments_nat));
        }
        if u64::from(self.segments_ssa) * u64::from(SEGMENT_BLOCKS) < u64::from(self.segments_main) {
            return corrupt(format!(
                "{} segments of SSA for {} segments",
                self.segments_ssa, self.segments_main
            ));
        }
        if self.checkpoint_payload > SEGMENT_BLOCKS - 8 {
            return corrupt(format!(
                "cp_payload is {}, more than a checkpoint pack holds",
                self.checkpoint_payload
            ));
        }
        Ok(())
    }

    /// Encodes a copy into its block, whose other bytes stay.
    pub fn encode(&self, block: &mut BlockBytes) {
        let raw = &mut block[OFFSET..OFFSET + BYTES];
        raw.fill(0);
        put(raw, 4, &1_u16.to_le_bytes());
        put(raw, 6, &15_u16.to_le_bytes());
        put(raw, 36, &self.block_count.to_le_bytes());
        let with_checksum = self.features.has(Features::SB_CHECKSUM);
        for (at, word) in [
            (0, MAGIC),
            (8, 9),
            (12, BLOCK_BYTES.ilog2() - 9),
            (16, BLOCK_BYTES.ilog2()),
            (20, SEGMENT_BLOCKS_LOG2),
            (24, self.segments_per_section),
            (28, self.sections_per_zone),
            (32, if with_checksum { CRC_AT as u32 } else { 0 }),
            (44, self.section_count),
            (48, self.segment_count),
            (52, self.segments_checkpoint),
            (56, self.segments_sit),
            (60, self.segments_nat),
            (64, self.segments_ssa),
            (68, self.segments_main),
            (72, self.segment0.0),
            (76, self.checkpoint.0),
            (80, self.sit.0),
            (84, self.nat.0),
            (88, self.ssa.0),
            (92, self.main.0),
            (96, self.root.0),
            (100, Nid::NODE.0),
            (104, Nid::META.0),
            (1148, self.extensions.0.len() as u32),
            (1664, self.checkpoint_payload),
            (2180, self.features.0),
        ] {
            put(raw, at, &word.to_le_bytes());
        }
        put(raw, 108, &self.uuid);
        // The last unit stays zero: it terminates the label.
        for (index, unit) in self.label.encode_utf16().take(LABEL_UNITS - 1).enumerate() {
            put(raw, 124 + 2 * index, &unit.to_le_bytes());
        }
        let extensions = self.extensions.0.iter().chain(&self.extensions.1).take(EXTENSIONS_MAX);
        for (index, extension) in extensions.enumerate() {
            let bytes = extension.as_bytes();
            put(raw, 1152 + 8 * index, &bytes[..bytes.len().min(7)]);
        }
        raw[2757] = self.extensions.1.len() as u8;
        for at in [1668, 1924] {
            let bytes = self.version.as_bytes();
            put(raw, at, &bytes[..bytes.len().min(VERSION_BYTES - 1)]);
        }
        if with_checksum {
            let crc = crc32(MAGIC, &raw[..CRC_AT]);
            put(raw, CRC_AT, &crc.to_le_bytes());
        }
    }

    /// The seed of the checksums of inodes.
    pub fn inode_checksum_seed(&self) -> u32 {
        crc32(!0, &self.uuid)
    }

    /// Layout of the volume.
    pub fn geometry(&self) -> Geometry {
        Geometry {
            checkpoint: self.checkpoint,
            sit: self.sit,
            sit_blocks: self.segments_sit / 2 * SEGMENT_BLOCKS,
            nat: self.nat,
            nat_blocks: self.segments_nat / 2 * SEGMENT_BLOCKS,
            ssa: self.ssa,
            main: self.main,
            main_segments: self.segments_main,
            segments_per_section: self.segments_per_section,
            log_blocks: SEGMENT_BLOCKS,
            nid_end: Nid((self.segments_nat / 2 * SEGMENT_BLOCKS).saturating_mul(NAT_PER_BLOCK)),
        }
    }
}

/// Layout of the volume: the only code that converts between addresses.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Geometry {
    checkpoint: Addr,
    sit: Addr,
    /// Number of blocks of one copy of the SIT.
    pub sit_blocks: u32,
    nat: Addr,
    /// Number of blocks of one copy of the NAT.
    pub nat_blocks: u32,
    ssa: Addr,
    main: Addr,
    /// Number of segments of the main area.
    pub main_segments: u32,
    /// Segments in a section.
    pub segments_per_section: u32,
    /// Blocks of a segment that a log fills. If they are not all, the next one is the segment's summary.
    pub log_blocks: u32,
    nid_end: Nid,
}

impl Geometry {
    /// Layout of a volume that has nothing but a main area at a fixed place; each segment of it ends with its summary.
    pub(crate) fn appended(main: Addr, main_segments: u32, segments_per_section: u32, nid_end: Nid) -> Self {
        Self {
            checkpoint: main,
            sit: main,
            sit_blocks: 0,
            nat: main,
            nat_blocks: 0,
            ssa: main,
            main,
            main_segments,
            segments_per_section,
            log_blocks: SEGMENT_BLOCKS - 1,
            nid_end,
        }
    }

    /// Whether nothing is written over, and a section is written from its first block to its last one.
    pub fn is_appended(&self) -> bool {
        self.log_blocks < SEGMENT_BLOCKS
    }

    /// Blocks of a section that logs fill.
    pub fn section_blocks(&self) -> u32 {
        self.segments_per_section * self.log_blocks
    }

    /// The block of the port at an address.
    pub fn block(addr: Addr) -> Block {
        Block(u64::from(addr.0))
    }

    /// The first block of checkpoint pack 0 or 1.
    pub fn checkpoint_pack(&self, pack: usize) -> Addr {
        Addr(self.checkpoint.0 + pack as u32 * SEGMENT_BLOCKS)
    }

    /// Upper bound of the node numbers of the volume.
    pub fn nid_end(&self) -> Nid {
        self.nid_end
    }

    /// The block of the NAT that has a node's entry, and the entry's index there. `nid` must be below [`Self::nid_end`].
    pub fn nat_place(nid: Nid) -> (u32, usize) {
        (nid.0 / NAT_PER_BLOCK, (nid.0 % NAT_PER_BLOCK) as usize)
    }

    /// The address of a block of the NAT; its two copies alternate by segments.
    pub fn nat_block(&self, index: u32, second: bool) -> Addr {
        let (segment, offset) = (index / SEGMENT_BLOCKS, index % SEGMENT_BLOCKS);
        Addr(self.nat.0 + (2 * segment + u32::from(second)) * SEGMENT_BLOCKS + offset)
    }

    /// The block of the SIT that has a segment's entry, and the entry's index there.
    pub fn sit_place(segment: SegNo) -> (u32, usize) {
        (segment.0 / SIT_PER_BLOCK, (segment.0 % SIT_PER_BLOCK) as usize)
    }

    /// The address of a block of the SIT; its second copy follows the first.
    pub fn sit_block(&self, index: u32, second: bool) -> Addr {
        Addr(self.sit.0 + index + if second { self.sit_blocks } else { 0 })
    }

    /// The address of a segment's summary.
    pub fn summary_block(&self, segment: SegNo) -> Addr {
        match self.is_appended() {
            true => self.main_block(segment, self.log_blocks),
            false => Addr(self.ssa.0 + segment.0),
        }
    }

    /// Segment and offset of a block of the main area; `None` for an address outside of it.
    pub fn place_of(&self, addr: Addr) -> Option<(SegNo, u32)> {
        let offset = addr.0.checked_sub(self.main.0).filter(|_| addr.is_place())?;
        let segment = SegNo(offset / SEGMENT_BLOCKS);
        (segment.0 < self.main_segments).then_some((segment, offset % SEGMENT_BLOCKS))
    }

    /// The address of a block of the main area.
    pub fn main_block(&self, segment: SegNo, offset: u32) -> Addr {
        Addr(self.main.0 + segment.0 * SEGMENT_BLOCKS + offset)
    }

    /// Number of blocks of the main area.
    pub fn main_blocks(&self) -> u32 {
        self.main_segments * SEGMENT_BLOCKS
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn copies_of_tables_alternate_as_the_format_says() {
        let geometry = Geometry {
            checkpoint: Addr(512),
            sit: Addr(1536),
            sit_blocks: 512,
            nat: Addr(2560),
            nat_blocks: 1024,
            ssa: Addr(4608),
            main: Addr(5120),
            main_segments: 24,
            segments_per_section: 1,
            log_blocks: SEGMENT_BLOCKS,
            nid_end: Nid(1024 * 455),
        };
        assert_eq!(geometry.nat_block(511, false), Addr(2560 + 511));
        assert_eq!(geometry.nat_block(511, true), Addr(2560 + 512 + 511));
        assert_eq!(geometry.nat_block(512, false), Addr(2560 + 1024));
        assert_eq!(geometry.sit_block(3, true), Addr(1536 + 512 + 3));
        assert_eq!(Geometry::nat_place(Nid(455 * 3 + 7)), (3, 7));
        assert_eq!(geometry.place_of(Addr(5119)), None);
        assert_eq!(geometry.place_of(Addr(5120 + 513)), Some((SegNo(1), 1)));
        assert_eq!(geometry.place_of(Addr(5120 + 24 * 512)), None);
        assert_eq!(geometry.place_of(Addr::NEW), None);
    }

    #[test]
    fn features_are_refused_by_name() {
        assert_eq!(
            Features(0x8 | 0x2000 | 0x80 | 1 << 30).refused(),
            ["quota", "compression", "unknown feature bit 0x40000000"]
        );
        assert!(Features(Features::SUPPORTED).refused().is_empty());
    }
}
