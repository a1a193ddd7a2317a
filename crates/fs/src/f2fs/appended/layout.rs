//! The layout of the format: superblock, checkpoints, and blocks of the map. Inodes, directories, nodes and summaries are those of F2FS.
//!
//! ```text
//! segment 0      superblock, and a copy in the second block
//! segments 1, 2  packs: lists of inodes without names, summaries of the logs' segments, and last the checkpoint itself, one block
//! 3 …            map: blocks of entries (512 nodes each), usage blocks (55 segments of 2 MiB each), and blocks of places of both
//! then           main area, in parts of 2 MiB whose last block is the part's summary
//! ```
//!
//! All numbers are little-endian. Decoding never panics, whatever the bytes are.

use super::super::error::{Error, Named, Result, corrupt};
use super::super::layout::bytes::{array_at, crc32, put, u16_at, u32_at, u64_at};
use super::super::layout::checkpoint::{Checkpoint, Cursor, Flags};
use super::super::layout::superblock::{Features, Geometry, SIT_PER_BLOCK, Superblock as Described};
use super::super::layout::tables::NatEntry;
use super::super::layout::{Addr, Log, Nid, SEGMENT_BLOCKS, SegNo};
use crate::port::{BLOCK_BYTES, BlockBytes};

/// The first word of a superblock, "ALFS".
pub(crate) const MAGIC: u32 = u32::from_le_bytes(*b"ALFS");
/// The first word of a checkpoint, "ALCP".
const CHECKPOINT_MAGIC: u32 = u32::from_le_bytes(*b"ALCP");
/// Version of the layout.
const VERSION: u32 = 1;
/// Segments before those of the map.
pub(crate) const MAP_AT: u32 = 3;
/// Entries of the inode map in a block.
pub(crate) const ENTRIES_PER_BLOCK: u32 = 512;
/// Places of blocks in a block of places.
pub(crate) const PLACES_PER_BLOCK: u32 = 1024;
/// Offset of the checksum of superblocks and checkpoints.
const CRC_AT: usize = BLOCK_BYTES - 4;
/// Longest label in bytes.
pub(crate) const LABEL_BYTES_MAX: usize = 512;
const LABEL_AT: usize = 1024;
const EXTENSIONS_AT: usize = 64;
const EXTENSIONS_MAX: usize = 64;
/// Bytes of a checkpoint before its places.
const PLACES_AT: usize = 192;
/// Most places in a checkpoint.
pub(crate) const PLACES_MAX: u32 = ((CRC_AT - PLACES_AT) / 4) as u32;

/// The superblock.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Superblock {
    /// Blocks of a segment of the disk: 512, or a multiple.
    pub segment_blocks: u32,
    /// Segments of the volume.
    pub segments: u32,
    /// Number of these that the map has.
    pub map_segments: u32,
    /// Identity of the volume.
    pub uuid: [u8; 16],
    /// Label of the volume.
    pub label: String,
    /// File name extensions whose contents are cold, then those whose contents are hot.
    pub extensions: (Vec<String>, Vec<String>),
    /// Optional fields of inodes, as F2FS has them.
    pub features: Features,
}

impl Superblock {
    /// Decodes a copy. Errors: it is no superblock, contradicts itself, or has a feature that is not supported.
    pub fn decode(block: &[u8]) -> Result<Self> {
        let magic = u32_at(block, 0);
        if magic != MAGIC {
            let what = format!("the superblock begins with {magic:#010x}, expected {MAGIC:#010x}");
            return Err(Error::Absent(Named, what));
        }
        let (stored, computed) = (u32_at(block, CRC_AT), crc32(MAGIC, &block[..CRC_AT]));
        if stored != computed {
            return corrupt(format!(
                "the superblock's checksum is {stored:#010x}, expected {computed:#010x}"
            ));
        }
        if u32_at(block, 4) != VERSION {
            return Err(Error::Refused(format!("version {} of the layout", u32_at(block, 4))));
        }
        let features = Features(u32_at(block, 20));
        if !features.refused().is_empty() {
            return Err(Error::Refused(format!("the feature {}", features.refused().join(", "))));
        }
        let text = |bytes: &[u8]| {
            let end = bytes.iter().position(|&byte| byte == 0).unwrap_or(bytes.len());
            String::from_utf8_lossy(&bytes[..end]).into_owned()
        };
        let extension = |index: usize| text(&block[EXTENSIONS_AT + 8 * index..][..8]);
        let cold = usize::from(block[40]).min(EXTENSIONS_MAX);
        let hot = usize::from(block[41]).min(EXTENSIONS_MAX - cold);
        let superblock = Self {
            segment_blocks: u32_at(block, 8),
            segments: u32_at(block, 12),
            map_segments: u32_at(block, 16),
            uuid: array_at(block, 24),
            label: text(&block[LABEL_AT..LABEL_AT + LABEL_BYTES_MAX]),
            extensions: ((0..cold).map(extension).collect(), (cold..cold + hot).map(extension).collect()),
            features,
        };
        superblock.check()?;
        Ok(superblock)
    }

    fn check(&self) -> Result<()> {
        let Self { segment_blocks, segments, map_segments, .. } = *self;
        if segment_blocks == 0 || !segment_blocks.is_multiple_of(SEGMENT_BLOCKS) {
            return corrupt(format!(
                "segments of {segment_blocks} blocks, expected a multiple of {SEGMENT_BLOCKS}"
            ));
        }
        if u64::from(segments) * u64::from(segment_blocks) > u64::from(Addr::COMPRESSED.0) {
            return corrupt(format!(
                "{segments} segments of {segment_blocks} blocks: expected less than 16 TiB"
            ));
        }
        let least = map_segments.saturating_add(MAP_AT + Log::ALL.len() as u32);
        if map_segments < 2 || segments <= least {
            return corrupt(format!("{segments} segments, {map_segments} of them for the map"));
        }
        let (map, least) = (map_segments * segment_blocks, 2 * (self.map_blocks() + segment_blocks));
        if map < least {
            return corrupt(format!("a map of {map} blocks, expected at least {least}"));
        }
        if self.places() > PLACES_MAX {
            return corrupt(format!("{} blocks of places, expected at most {PLACES_MAX}", self.places()));
        }
        Ok(())
    }

    /// Encodes a copy.
    pub fn encode(&self) -> BlockBytes {
        let mut block = [0; BLOCK_BYTES];
        let words = [MAGIC, VERSION, self.segment_blocks, self.segments, self.map_segments, self.features.0];
        for (index, word) in words.into_iter().enumerate() {
            put(&mut block, 4 * index, &word.to_le_bytes());
        }
        put(&mut block, 24, &self.uuid);
        (block[40], block[41]) = (self.extensions.0.len() as u8, self.extensions.1.len() as u8);
        let extensions = self.extensions.0.iter().chain(&self.extensions.1).take(EXTENSIONS_MAX);
        for (index, extension) in extensions.enumerate() {
            let bytes = extension.as_bytes();
            put(&mut block, EXTENSIONS_AT + 8 * index, &bytes[..bytes.len().min(7)]);
        }
        let label = self.label.as_bytes();
        put(&mut block, LABEL_AT, &label[..label.len().min(LABEL_BYTES_MAX)]);
        let crc = crc32(MAGIC, &block[..CRC_AT]);
        put(&mut block, CRC_AT, &crc.to_le_bytes());
        block
    }

    /// Size of the volume in blocks.
    pub fn blocks(&self) -> u64 {
        u64::from(self.segments) * u64::from(self.segment_blocks)
    }

    /// The first block of a segment.
    pub fn first_block(&self, segment: u32) -> Addr {
        Addr(segment * self.segment_blocks)
    }

    /// Segments of the map.
    pub fn map(&self) -> std::ops::Range<u32> {
        MAP_AT..MAP_AT + self.map_segments
    }

    /// Parts of 2 MiB of the main area. Each has as many node numbers as blocks.
    fn main_segments(&self) -> u32 {
        (self.segments - MAP_AT - self.map_segments) * (self.segment_blocks / SEGMENT_BLOCKS)
    }

    /// Number of blocks of the inode map.
    pub fn entry_blocks(&self) -> u32 {
        self.main_segments() * SEGMENT_BLOCKS / ENTRIES_PER_BLOCK
    }

    /// Number of usage blocks.
    pub fn usage_blocks(&self) -> u32 {
        self.main_segments().div_ceil(SIT_PER_BLOCK)
    }

    /// Number of blocks of places of the inode map (TIMB).
    pub fn timb_blocks(&self) -> u32 {
        self.entry_blocks().div_ceil(PLACES_PER_BLOCK)
    }

    /// Number of places in a checkpoint: those of TIMB blocks, and of blocks of places of usage blocks.
    fn places(&self) -> u32 {
        self.timb_blocks() + self.usage_blocks().div_ceil(PLACES_PER_BLOCK)
    }

    /// Most blocks that the map holds at a time.
    pub fn map_blocks(&self) -> u32 {
        self.entry_blocks() + self.usage_blocks() + self.places()
    }

    /// Layout of the main area.
    pub(crate) fn geometry(&self) -> Geometry {
        let main = self.first_block(MAP_AT + self.map_segments);
        let per_section = self.segment_blocks / SEGMENT_BLOCKS;
        Geometry::appended(
            main,
            self.main_segments(),
            per_section,
            Nid(self.entry_blocks() * ENTRIES_PER_BLOCK),
        )
    }

    /// What the writer needs to know of a volume.
    pub(crate) fn described(&self) -> Described {
        let main = self.first_block(MAP_AT + self.map_segments);
        let (per_section, main_segments) = (self.segment_blocks / SEGMENT_BLOCKS, self.main_segments());
        Described {
            block_count: self.blocks(),
            segments_per_section: per_section,
            sections_per_zone: 1,
            section_count: main_segments / per_section,
            segment_count: self.segments * per_section,
            segments_checkpoint: 2 * per_section,
            segments_sit: 0,
            segments_nat: 0,
            segments_ssa: 0,
            segments_main: main_segments,
            segment0: self.first_block(1),
            checkpoint: self.first_block(1),
            sit: main,
            nat: main,
            ssa: main,
            main,
            root: Nid::ROOT,
            uuid: self.uuid,
            label: self.label.clone(),
            extensions: self.extensions.clone(),
            checkpoint_payload: 0,
            version: String::new(),
            features: self.features,
        }
    }
}

/// A checkpoint, and where the map is.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Root {
    /// State of the volume. Its pack are the blocks before it and itself.
    pub checkpoint: Checkpoint,
    /// Segment of the map that was being written, and the next block in it; the length of the segment if that is full.
    pub cursor: (u32, u32),
    /// Places of the TIMB blocks; [`Addr::NULL`] where all entries are free.
    pub timb: Vec<Addr>,
    /// Places of the blocks with the places of usage blocks.
    pub usage: Vec<Addr>,
}

/// Words of a checkpoint before its cursors.
const WORDS_AT: usize = 40;
const CURSORS_AT: usize = 80;
/// Offset of the next block in the segment of the map; the segment is the last one of the words.
const CURSOR_AT: usize = 128;

impl Root {
    /// Encodes the block of the checkpoint.
    pub(crate) fn encode(&self) -> BlockBytes {
        let mut block = [0; BLOCK_BYTES];
        let checkpoint = &self.checkpoint;
        put(&mut block, 0, &CHECKPOINT_MAGIC.to_le_bytes());
        for (index, value) in
            [checkpoint.version, checkpoint.user_blocks, checkpoint.valid_blocks, checkpoint.elapsed_s]
                .into_iter()
                .enumerate()
        {
            put(&mut block, 8 + 8 * index, &value.to_le_bytes());
        }
        for (index, word) in [
            checkpoint.reserved_segments,
            checkpoint.overprovision_segments,
            checkpoint.free_segments,
            checkpoint.flags.0,
            checkpoint.pack_blocks,
            checkpoint.summary_start,
            checkpoint.valid_nodes,
            checkpoint.valid_inodes,
            checkpoint.next_free_nid.0,
            self.cursor.0,
        ]
        .into_iter()
        .enumerate()
        {
            put(&mut block, WORDS_AT + 4 * index, &word.to_le_bytes());
        }
        for (index, cursor) in checkpoint.cursors.iter().enumerate() {
            put(&mut block, CURSORS_AT + 8 * index, &cursor.segment.0.to_le_bytes());
            put(&mut block, CURSORS_AT + 8 * index + 4, &cursor.offset.to_le_bytes());
        }
        put(&mut block, CURSOR_AT, &self.cursor.1.to_le_bytes());
        for (index, place) in self.timb.iter().chain(&self.usage).enumerate() {
            put(&mut block, PLACES_AT + 4 * index, &place.0.to_le_bytes());
        }
        let crc = crc32(CHECKPOINT_MAGIC, &block[..CRC_AT]);
        put(&mut block, CRC_AT, &crc.to_le_bytes());
        block
    }

    /// The checksum of the block of a checkpoint.
    pub(crate) fn crc_of(block: &[u8]) -> u32 {
        u32_at(block, CRC_AT)
    }

    /// Decodes a block; nothing if it is no checkpoint, or a broken one. Errors: numbers that contradict the superblock.
    pub(crate) fn decode(block: &[u8], superblock: &Superblock) -> Option<Result<Self>> {
        let crc = crc32(CHECKPOINT_MAGIC, &block[..CRC_AT]);
        if u32_at(block, 0) != CHECKPOINT_MAGIC || u32_at(block, CRC_AT) != crc {
            return None;
        }
        let word = |index: usize| u32_at(block, WORDS_AT + 4 * index);
        let long = |index: usize| u64_at(block, 8 + 8 * index);
        let cursors = std::array::from_fn(|index| Cursor {
            segment: SegNo(u32_at(block, CURSORS_AT + 8 * index)),
            offset: u16_at(block, CURSORS_AT + 8 * index + 4),
            fills_holes: false,
        });
        let checkpoint = Checkpoint {
            version: long(0),
            user_blocks: long(1),
            valid_blocks: long(2),
            elapsed_s: long(3),
            reserved_segments: word(0),
            overprovision_segments: word(1),
            free_segments: word(2),
            flags: Flags(word(3)),
            pack_blocks: word(4),
            summary_start: word(5),
            valid_nodes: word(6),
            valid_inodes: word(7),
            next_free_nid: Nid(word(8)),
            cursors,
            sit_versions: Vec::new(),
            nat_versions: Vec::new(),
        };
        let (timb, places) = (superblock.timb_blocks(), superblock.places());
        let place = |index: u32| Addr(u32_at(block, PLACES_AT + 4 * index as usize));
        let root = Self {
            checkpoint,
            cursor: (word(9), u32_at(block, CURSOR_AT)),
            timb: (0..timb).map(place).collect(),
            usage: (timb..places).map(place).collect(),
        };
        Some(root.check(superblock).map(|()| root))
    }

    fn check(&self, superblock: &Superblock) -> Result<()> {
        let (checkpoint, geometry) = (&self.checkpoint, superblock.geometry());
        for (log, cursor) in Log::ALL.into_iter().zip(&checkpoint.cursors) {
            let (segment, offset) = (cursor.segment, cursor.offset);
            if segment.0 >= geometry.main_segments || u32::from(offset) >= geometry.log_blocks {
                return corrupt(format!("the log {log:?} is at block {offset} of part {segment}"));
            }
            let section = |cursor: &Cursor| cursor.segment.0 / geometry.segments_per_section;
            if checkpoint.cursors[..log.index()].iter().any(|other| section(other) == section(cursor)) {
                return corrupt(format!("the segment of part {segment} belongs to two logs"));
            }
        }
        let (map, (segment, offset)) = (superblock.map(), self.cursor);
        if !map.contains(&segment) || offset > superblock.segment_blocks {
            return corrupt(format!(
                "the map is written at block {offset} of segment {segment}, it has {map:?}"
            ));
        }
        let (pack, start) = (checkpoint.pack_blocks, checkpoint.summary_start);
        if pack == 0 || pack > superblock.segment_blocks || start >= pack {
            return corrupt(format!("a pack of {pack} blocks with summaries from block {start} on"));
        }
        checkpoint.check_counts(&geometry)
    }
}

/// Entry of the inode map at `index` of a block.
pub(crate) fn entry(block: &[u8], index: u32) -> NatEntry {
    let at = 8 * index as usize;
    NatEntry { version: 0, ino: Nid(u32_at(block, at)), addr: Addr(u32_at(block, at + 4)) }
}

/// Encodes an entry of the inode map.
pub(crate) fn set_entry(block: &mut BlockBytes, index: u32, entry: NatEntry) {
    put(block, 8 * index as usize, &entry.ino.0.to_le_bytes());
    put(block, 8 * index as usize + 4, &entry.addr.0.to_le_bytes());
}

/// Places in a block of them.
pub(crate) fn places(block: &[u8]) -> impl Iterator<Item = Addr> {
    block.chunks_exact(4).map(|word| Addr(u32_at(word, 0)))
}

/// Encodes a block of places.
pub(crate) fn encode_places(places: &[Addr]) -> BlockBytes {
    let mut block = [0; BLOCK_BYTES];
    for (index, place) in places.iter().enumerate() {
        put(&mut block, 4 * index, &place.0.to_le_bytes());
    }
    block
}

#[cfg(test)]
mod tests {
    use super::*;

    fn superblock() -> Superblock {
        Superblock {
            segment_blocks: 4096,
            segments: 1024,
            map_segments: 9,
            uuid: [7; 16],
            label: "a log of logs".into(),
            extensions: (vec!["mp4".into()], vec!["db".into()]),
            features: Features(Features::EXTRA_ATTR | Features::INODE_CHECKSUM),
        }
    }

    #[test]
    fn a_superblock_there_and_back() {
        let block = superblock().encode();
        assert_eq!(Superblock::decode(&block).unwrap(), superblock());
        for at in [0, 9, 100, 1030, CRC_AT] {
            let mut broken = block;
            broken[at] ^= 1;
            assert!(Superblock::decode(&broken).is_err(), "byte {at}");
        }
    }

    #[test]
    fn a_checkpoint_there_and_back() {
        let superblock = superblock();
        let places = |count: u32, from: u32| (0..count).map(|at| Addr(from + at)).collect::<Vec<_>>();
        let root = Root {
            checkpoint: Checkpoint {
                version: 9,
                user_blocks: 1000,
                valid_blocks: 900,
                reserved_segments: 1,
                overprovision_segments: 2,
                free_segments: 3,
                cursors: std::array::from_fn(|log| Cursor {
                    segment: SegNo(8 * log as u32),
                    offset: log as u16,
                    fills_holes: false,
                }),
                flags: Flags(Flags::CRC_RECOVERY),
                pack_blocks: 3,
                summary_start: 1,
                valid_nodes: 4,
                valid_inodes: 5,
                next_free_nid: Nid(6),
                elapsed_s: 7,
                sit_versions: Vec::new(),
                nat_versions: Vec::new(),
            },
            cursor: (3, 4096),
            timb: places(superblock.timb_blocks(), 50_000),
            usage: places(superblock.places() - superblock.timb_blocks(), 60_000),
        };
        let block = root.encode();
        assert_eq!(Root::decode(&block, &superblock), Some(Ok(root)));
        let mut torn = block;
        torn[300] ^= 1;
        assert_eq!(Root::decode(&torn, &superblock), None);
    }

    /// The paper's table of places takes 32 KiB for 16 GB and 2 MiB for 1 TB (append-segments §4.3).
    #[test]
    fn places_of_the_inode_map_take_what_the_paper_says() {
        let of = |segments: u32| {
            let live = Superblock { segments, map_segments: 4, ..superblock() }.map_blocks();
            let map_segments = (4 * live).div_ceil(4096);
            Superblock { segments, map_segments, ..superblock() }
        };
        let (small, large) = (of(1024), of(65_536));
        assert_eq!((small.timb_blocks(), large.timb_blocks()), (8, 508));
        assert!(large.timb_blocks() <= 512 && large.places() <= PLACES_MAX);
    }
}
