//! Making an empty volume on a disk of append segments.
//!
//! All segments are discarded first. The volume has one directory, the root, and a first checkpoint in segment 1; the superblocks are
//! written last, so that after a power cut before that there is no volume.

use super::error::{Error, Result};
use crate::boxed::Boxed;
use crate::f2fs;
use crate::f2fs::appended::layout::{
    ENTRIES_PER_BLOCK, LABEL_BYTES_MAX, MAP_AT, PLACES_PER_BLOCK, Root, Superblock, encode_places, set_entry,
};
use crate::f2fs::appended::map::pointers;
use crate::f2fs::layout::bytes::array_at;
use crate::f2fs::layout::checkpoint::{Checkpoint, Cursor, Flags};
use crate::f2fs::layout::node::Time;
use crate::f2fs::layout::summary::{Owner, Summary, encode_compact};
use crate::f2fs::layout::superblock::{Features, SIT_PER_BLOCK};
use crate::f2fs::layout::tables::{NatEntry, SitEntry};
use crate::f2fs::layout::{Addr, Geometry, Log, Nid, SEGMENT_BLOCKS, SegNo};
use crate::f2fs::mkfs::{self, COLD_EXTENSIONS, HOT_EXTENSIONS, Overprovision};
use crate::f2fs::write::OPEN_SECTIONS;
use crate::port::{BLOCK_BYTES, Block, BlockBytes, BlockPort, Write, payload_of};
use std::collections::BTreeMap;

/// The map has this number of times the blocks that it holds (append-segments §4.6), and at least as many segments.
const MAP_FACTOR: u32 = 4;

/// Options of a new volume.
#[derive(Clone, Debug)]
pub struct Options {
    /// Size of the volume in blocks; whole segments of the disk are used.
    pub blocks: u64,
    /// Label of the volume, at most 512 bytes.
    pub label: String,
    /// UUID of the volume.
    pub uuid: [u8; 16],
    /// Part of the main area that is not available to users, in hundredths of a per cent, beside segments that cleaning needs; `None`
    /// chooses the part that leaves users most.
    pub overprovision: Option<u32>,
    /// Optional fields of inodes, of those that can be written.
    pub features: Features,
    /// Time stamp of the root directory.
    pub time: Time,
    /// User and group that own the root directory.
    pub root_owner: (u32, u32),
}

impl Options {
    /// The usual options for a volume of `blocks` blocks. Its UUID is all zeros.
    pub fn new(blocks: u64) -> Self {
        Self {
            blocks,
            label: String::new(),
            uuid: [0; 16],
            overprovision: None,
            features: Features(0),
            time: Time::default(),
            root_owner: (0, 0),
        }
    }

    /// Features that [`mkfs()`] can switch on.
    pub const FEATURES: [&'static str; 4] =
        ["extra_attr", "flexible_inline_xattr", "inode_checksum", "inode_crtime"];

    /// Checks whether these options make a volume on segments of so many blocks. Errors: the option that does not.
    pub fn check(&self, segment_blocks: u32) -> Result<()> {
        plan(self, segment_blocks).map(|_| ())
    }

    /// Switches a feature on by its name. Errors: [`mkfs()`] does not support it.
    pub fn add_feature(&mut self, name: &str) -> Result<()> {
        if !Self::FEATURES.contains(&name) {
            let known = Self::FEATURES.join(", ");
            return Err(Error::Option(format!("no feature {name:?} to make; there are {known}")));
        }
        let mut options = f2fs::Options { features: self.features, ..f2fs::Options::new(0) };
        options.add_feature(name)?;
        self.features = options.features;
        Ok(())
    }
}

/// The superblock of a volume with these options on segments of so many blocks. Errors: options that make no volume.
fn plan(options: &Options, segment_blocks: u32) -> Result<(Superblock, Overprovision)> {
    let fail = |what: String| Err(Error::Option(what));
    if segment_blocks == 0 {
        return fail(
            "the disk has no append segments, which ALFS needs: expected a device such as `amf`".into(),
        );
    }
    if !segment_blocks.is_multiple_of(SEGMENT_BLOCKS) {
        let what =
            format!("segments of {segment_blocks} blocks: expected a multiple of {SEGMENT_BLOCKS} (2 MiB)");
        return fail(what);
    }
    if options.label.len() > LABEL_BYTES_MAX {
        return fail(format!("a label of more than {LABEL_BYTES_MAX} bytes"));
    }
    if let Some(part) = options.overprovision
        && !(1..=9500).contains(&part)
    {
        return fail(format!("over-provision of {}.{:02} %: expected 0.01 to 95", part / 100, part % 100));
    }
    let mib = options.blocks / 256;
    let segments = options.blocks / u64::from(segment_blocks);
    if options.blocks > u64::from(Addr::COMPRESSED.0) {
        return fail(format!("{mib} MiB are too large: expected less than 16 TiB"));
    }
    let segments = segments as u32;
    let too_small = |why: String| {
        let segment_mib = segment_blocks / 256;
        Error::Option(format!("{mib} MiB are too small for segments of {segment_mib} MiB: {why}"))
    };
    let least = MAP_AT + MAP_FACTOR + OPEN_SECTIONS + 1;
    if segments < least {
        return Err(too_small(format!("{segments} segments, expected {least} or more")));
    }
    let texts = |names: &[&str]| names.iter().map(|name| (*name).to_string()).collect();
    let mut superblock = Superblock {
        segment_blocks,
        segments,
        map_segments: MAP_FACTOR,
        uuid: options.uuid,
        label: options.label.clone(),
        extensions: (texts(&COLD_EXTENSIONS), texts(&HOT_EXTENSIONS)),
        features: options.features,
    };
    let room = u64::from(MAP_FACTOR) * u64::from(superblock.map_blocks());
    superblock.map_segments = (room.div_ceil(segment_blocks.into()) as u32).max(MAP_FACTOR);
    // The same checks as at a mount.
    match Superblock::decode(&superblock.encode()) {
        Err(f2fs::Error::Corrupt(what)) => return fail(format!("a volume of {mib} MiB: {what}")),
        checked => drop(checked?),
    }
    let geometry = superblock.geometry();
    let (main, per_section) = (geometry.main_segments, geometry.segments_per_section);
    let open = OPEN_SECTIONS * per_section;
    let rest = main.saturating_sub(open);
    let part = match options.overprovision {
        Some(part) => Overprovision::new(rest, per_section, part),
        None => Overprovision::best(rest, per_section),
    };
    let overprovision = Overprovision { reserved: part.reserved, total: part.total + open };
    if overprovision.total + per_section >= main {
        let (needs, has) = (overprovision.total / per_section, main / per_section);
        return Err(too_small(format!("logs and cleaning need {needs} of {has} segments")));
    }
    Ok((superblock, overprovision))
}

/// Makes an empty volume. Errors: options that make no volume, and those of the port.
pub fn mkfs<'a>(port: &'a dyn BlockPort, options: &'a Options) -> Boxed<'a, Result<Superblock>> {
    Box::pin(make(port, options))
}

async fn make(port: &dyn BlockPort, options: &Options) -> Result<Superblock> {
    let (superblock, overprovision) = plan(options, port.segment_blocks())?;
    if options.blocks > port.capacity_blocks() {
        let (wanted, has) = (options.blocks, port.capacity_blocks());
        return Err(Error::Option(format!("a volume of {wanted} blocks on a disk of {has}")));
    }
    empty(port, superblock.segments).await?;
    let geometry = superblock.geometry();
    let per_section = geometry.segments_per_section;
    // Each log begins in a segment of its own.
    let mut cursors =
        [3, 4, 5, 0, 1, 2].map(|place| Cursor { segment: SegNo(place * per_section), ..Cursor::default() });
    let (node_log, data_log) = (Log::HotNode.index(), Log::HotData.index());
    let node_at = geometry.main_block(cursors[node_log].segment, 0);
    let data_at = geometry.main_block(cursors[data_log].segment, 0);
    for log in [node_log, data_log] {
        cursors[log].offset = 1;
    }
    // Odd, and different for each volume, as in F2FS.
    let version = u64::from(u32::from_le_bytes(array_at(&options.uuid, 0)) >> 1 | 1);
    let root = mkfs::Root {
        features: options.features,
        uuid: &options.uuid,
        time: options.time,
        owner: options.root_owner,
    };
    let mut written = vec![
        (node_at, mkfs::root_inode(&root, version, data_at, Addr(node_at.0 + 1))),
        (data_at, mkfs::root_entries()),
    ];
    let (cursor, timb, usage) = first_map(&superblock, &cursors, node_at, &mut written);
    let checkpoint = Checkpoint {
        version,
        user_blocks: u64::from(geometry.main_segments - overprovision.total) * u64::from(geometry.log_blocks),
        valid_blocks: 2,
        reserved_segments: overprovision.reserved,
        overprovision_segments: overprovision.total,
        free_segments: geometry.main_segments - Log::ALL.len() as u32,
        cursors,
        flags: Flags(Flags::UNMOUNTED | Flags::COMPACT_SUMMARIES | Flags::CRC_RECOVERY),
        pack_blocks: 2,
        summary_start: 0,
        valid_nodes: 1,
        valid_inodes: 1,
        next_free_nid: Nid(Nid::ROOT.0 + 1),
        elapsed_s: 0,
        sit_versions: Vec::new(),
        nat_versions: Vec::new(),
    };
    let mut summary = Summary::new(false);
    summary.owners[0] = Owner { nid: Nid::ROOT, version: 0, offset: 0 };
    let empty = Summary::new(false);
    let pack = superblock.first_block(1);
    for (at, block) in (pack.0..).zip(encode_compact([&summary, &empty, &empty], &cursors)) {
        written.push((Addr(at), block));
    }
    for (addr, block) in &written {
        write(port, *addr, block).await?;
    }
    port.flush().completed().await?;
    let root = Root { checkpoint, cursor: (MAP_AT, cursor), timb, usage };
    write(port, Addr(pack.0 + 1), &root.encode()).await?;
    port.flush().completed().await?;
    for block in 0..2 {
        write(port, Addr(block), &superblock.encode()).await?;
    }
    port.flush().completed().await?;
    Ok(superblock)
}

/// Discards all segments in which something is written.
async fn empty(port: &dyn BlockPort, segments: u32) -> Result<()> {
    let blocks = port.segment_blocks();
    let written = pointers(port, 0..segments).await?;
    for (segment, _) in (0u64..).zip(written).filter(|(_, written)| *written > 0) {
        port.discard(Block(segment * u64::from(blocks)), blocks).completed().await?;
        if segment == 0 {
            // An old superblock must not be left above segments that are empty.
            port.flush().completed().await?;
        }
    }
    Ok(port.flush().completed().await.map(drop)?)
}

/// The first blocks of the map: where the root is, and which blocks are valid. Returns how many blocks it has, and the places for the
/// checkpoint.
fn first_map(
    superblock: &Superblock,
    cursors: &[Cursor; 6],
    node_at: Addr,
    written: &mut Vec<(Addr, BlockBytes)>,
) -> (u32, Vec<Addr>, Vec<Addr>) {
    let mut next = superblock.first_block(MAP_AT);
    let mut put = |block: BlockBytes| {
        written.push((next, block));
        next.0 += 1;
        Addr(next.0 - 1)
    };
    let mut entries = [0; BLOCK_BYTES];
    set_entry(
        &mut entries,
        Nid::ROOT.0 % ENTRIES_PER_BLOCK,
        NatEntry { version: 0, ino: Nid::ROOT, addr: node_at },
    );
    let mut entry_places = vec![Addr::NULL; superblock.entry_blocks().min(PLACES_PER_BLOCK) as usize];
    entry_places[0] = put(entries);
    let mut blocks: BTreeMap<u32, BlockBytes> = BTreeMap::new();
    for (log, cursor) in Log::ALL.into_iter().zip(cursors) {
        let mut entry = SitEntry { log: log.index() as u8, ..SitEntry::default() };
        (0..cursor.offset).for_each(|offset| entry.set_valid(offset.into(), true));
        let (index, place) = Geometry::sit_place(cursor.segment);
        entry.into_block(blocks.entry(index).or_insert([0; BLOCK_BYTES]), place);
    }
    let mut usage_places = vec![Addr::NULL; superblock.usage_blocks().min(PLACES_PER_BLOCK) as usize];
    debug_assert!(SIT_PER_BLOCK * PLACES_PER_BLOCK > 6 * cursors[Log::ColdData.index()].segment.0);
    for (index, block) in blocks {
        usage_places[index as usize] = put(block);
    }
    let mut timb = vec![Addr::NULL; superblock.timb_blocks() as usize];
    timb[0] = put(encode_places(&entry_places));
    let mut usage = vec![Addr::NULL; superblock.usage_blocks().div_ceil(PLACES_PER_BLOCK) as usize];
    usage[0] = put(encode_places(&usage_places));
    (next.0 - superblock.first_block(MAP_AT).0, timb, usage)
}

async fn write(port: &dyn BlockPort, addr: Addr, content: &BlockBytes) -> Result<()> {
    let write = Write::new(Geometry::block(addr), vec![payload_of(content)]);
    port.write(write).completed().await?;
    Ok(())
}
