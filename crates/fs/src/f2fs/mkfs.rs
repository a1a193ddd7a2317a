//! Making an empty volume.
//!
//! The areas follow each other, each as large as what it describes needs; the main area begins at a zone. The volume has
//! one directory, the root, and a first checkpoint in pack 0. Pack 1 has version 0.
//!
//! Invariant: a volume is a function of its options, and nothing that the disk held before shows through.

use super::error::{Error, Result};
use super::layout::bytes::array_at;
use super::layout::checkpoint::{Checkpoint, Cursor, Flags};
use super::layout::dentry::{Entry, Slots};
use super::layout::node::{Footer, Inode, Kind, Time, inline};
use super::layout::summary::{Owner, Summary, encode_compact};
use super::layout::superblock::{BITMAP_BYTES_MAX, Features, LABEL_UNITS, NAT_PER_BLOCK, SIT_PER_BLOCK};
use super::layout::tables::{NatEntry, SitEntry, encode_sit_journal};
use super::layout::{Addr, Geometry, Log, Nid, SEGMENT_BLOCKS, SegNo, Superblock};
use crate::boxed::Boxed;
use crate::port::{BLOCK_BYTES, Block, BlockBytes, BlockPort, Write, bytes_of, payload_of};
use flashweir_core::Payload;

/// Number of blocks that are read at once to find those that have to be wiped.
const WIPE_BLOCKS: u32 = 256;
/// A zone for each log, and as many again to write on.
const ZONES_MIN: u32 = 2 * Log::ALL.len() as u32;
/// Contents of files with these extensions hardly change.
pub(crate) const COLD_EXTENSIONS: [&str; 22] = [
    "jpg", "jpeg", "gif", "png", "webp", "heic", "mp3", "ogg", "opus", "flac", "m4a", "mp4", "mkv", "webm",
    "mov", "avi", "pdf", "zip", "gz", "xz", "zst", "apk",
];
/// Contents of files with these extensions change often.
pub(crate) const HOT_EXTENSIONS: [&str; 1] = ["db"];

/// Options of a new volume.
#[derive(Clone, Debug)]
pub struct Options {
    /// Size of the volume in blocks.
    pub blocks: u64,
    /// Label of the volume, at most 511 UTF-16 units.
    pub label: String,
    /// UUID of the volume.
    pub uuid: [u8; 16],
    /// Part of the main area that is not available to users, in hundredths of a per cent; `None` chooses the part that leaves users
    /// most.
    pub overprovision: Option<u32>,
    /// Segments of 2 MiB in a section, which is the unit of cleaning.
    pub segments_per_section: u32,
    /// Sections in a zone.
    pub sections_per_zone: u32,
    /// Optional features, of those that can be written.
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
            segments_per_section: 1,
            sections_per_zone: 1,
            features: Features(0),
            time: Time::default(),
            root_owner: (0, 0),
        }
    }

    /// Features that [`mkfs`] can switch on.
    pub const FEATURES: [&'static str; 5] =
        ["extra_attr", "flexible_inline_xattr", "inode_checksum", "inode_crtime", "sb_checksum"];

    /// Checks whether these options make a volume. Errors: the option that does not.
    pub fn check(&self) -> Result<()> {
        plan(self).map(|_| ())
    }

    /// Switches a feature on by its name. Errors: [`mkfs`] does not support it.
    pub fn add_feature(&mut self, name: &str) -> Result<()> {
        let bits = match name {
            "extra_attr" => Features::EXTRA_ATTR,
            // These are among the extra fields of inodes.
            "flexible_inline_xattr" => Features::EXTRA_ATTR | Features::FLEXIBLE_INLINE_XATTR,
            "inode_checksum" => Features::EXTRA_ATTR | Features::INODE_CHECKSUM,
            "inode_crtime" => Features::EXTRA_ATTR | Features::INODE_CRTIME,
            "sb_checksum" => Features::SB_CHECKSUM,
            other => {
                let known = Self::FEATURES.join(", ");
                return Err(Error::Option(format!("no feature {other:?} to make; there are {known}")));
            }
        };
        self.features.0 |= bits;
        Ok(())
    }
}

/// The part of the main area that is not available to users.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Overprovision {
    /// Segments that only cleaning may use.
    pub(crate) reserved: u32,
    /// The reserved segments, and those that make cleaning cheap.
    pub(crate) total: u32,
}

impl Overprovision {
    /// The segments for an over-provisioned part in hundredths of a per cent. With a smaller part sections are fuller when they are
    /// cleaned, so more of them are needed at once to gain one.
    pub(crate) fn new(main_segments: u32, segments_per_section: u32, part: u32) -> Self {
        let sections = 2 * (10_000 / part + 1) + Log::ALL.len() as u32;
        let reserved = sections.saturating_mul(segments_per_section);
        let rest = u64::from(main_segments.saturating_sub(reserved));
        Self { reserved, total: reserved.saturating_add((rest * u64::from(part) / 10_000) as u32) }
    }

    /// The part that leaves users most blocks.
    pub(crate) fn best(main_segments: u32, segments_per_section: u32) -> Self {
        let parts = (1..=95 * 100).map(|part| Self::new(main_segments, segments_per_section, part));
        parts.min_by_key(|overprovision| overprovision.total).expect("there are parts")
    }
}

/// The superblock of a volume with these options. Errors: options that make no volume.
fn plan(options: &Options) -> Result<(Superblock, Overprovision)> {
    let fail = |what: String| Err(Error::Option(what));
    let Options { segments_per_section: per_section, sections_per_zone: per_zone, .. } = *options;
    for (name, value) in [("segments per section", per_section), ("sections per zone", per_zone)] {
        if !(1..=1024).contains(&value) {
            return fail(format!("{value} {name}: expected 1 to 1024"));
        }
    }
    if options.label.encode_utf16().count() >= LABEL_UNITS {
        return fail(format!("a label of more than {} characters", LABEL_UNITS - 1));
    }
    if let Some(part) = options.overprovision
        && !(1..=9500).contains(&part)
    {
        return fail(format!("over-provision of {}.{:02} %: expected 0.01 to 95", part / 100, part % 100));
    }
    let zone = per_section * per_zone;
    let too_small = |why: &str| {
        let mib = options.blocks / 256;
        Error::Option(format!("{mib} MiB are too small for zones of {} MiB: {why}", 2 * zone))
    };
    if options.blocks > u64::from(u32::MAX - 1) / 2 {
        return fail(format!("{} blocks: expected at most 8 TiB", options.blocks));
    }
    let segment0 = zone * SEGMENT_BLOCKS;
    let segments = (options.blocks as u32).saturating_sub(segment0) / SEGMENT_BLOCKS / zone * zone;
    let checkpoint = 2;
    let sit = 2 * segments.div_ceil(SIT_PER_BLOCK).div_ceil(SEGMENT_BLOCKS);
    let sit_bytes = sit / 2 * SEGMENT_BLOCKS / 8;
    let (payload, nat_bytes_max) = if sit_bytes + SEGMENT_BLOCKS / 8 > BITMAP_BYTES_MAX {
        (sit_bytes.div_ceil(BLOCK_BYTES as u32), BITMAP_BYTES_MAX)
    } else {
        (0, BITMAP_BYTES_MAX - sit_bytes)
    };
    let Some(rest) = segments.checked_sub(checkpoint + sit).filter(|rest| *rest > 0) else {
        return Err(too_small("there is no room for the tables"));
    };
    // As many node numbers as there are blocks, if the version bitmap has room.
    let nat_copy = (rest * SEGMENT_BLOCKS).div_ceil(NAT_PER_BLOCK).div_ceil(SEGMENT_BLOCKS);
    let nat = 2 * nat_copy.min(nat_bytes_max * 8 / SEGMENT_BLOCKS);
    let rest = rest.saturating_sub(nat);
    let tables = checkpoint + sit + nat + rest.div_ceil(SEGMENT_BLOCKS).max(1);
    let tables_end = tables.next_multiple_of(zone);
    let zones = (segments.saturating_sub(tables_end)) / zone;
    if zones < ZONES_MIN {
        return Err(too_small(&format!(
            "{zones} zones are left for contents, expected at least {ZONES_MIN}"
        )));
    }
    let main = zones * zone;
    let overprovision = match options.overprovision {
        Some(part) => Overprovision::new(main, per_section, part),
        None => Overprovision::best(main, per_section),
    };
    if overprovision.total + zone >= main {
        return Err(too_small(&format!("cleaning needs {} of {main} segments", overprovision.total)));
    }
    let ssa = tables_end - checkpoint - sit - nat;
    let after = |addr: Addr, segments: u32| Addr(addr.0 + segments * SEGMENT_BLOCKS);
    let checkpoint_at = Addr(segment0);
    let sit_at = after(checkpoint_at, checkpoint);
    let nat_at = after(sit_at, sit);
    let ssa_at = after(nat_at, nat);
    let texts = |names: &[&str]| names.iter().map(|name| (*name).to_string()).collect();
    let superblock = Superblock {
        block_count: options.blocks,
        segments_per_section: per_section,
        sections_per_zone: per_zone,
        section_count: zones * per_zone,
        segment_count: segments,
        segments_checkpoint: checkpoint,
        segments_sit: sit,
        segments_nat: nat,
        segments_ssa: ssa,
        segments_main: main,
        segment0: checkpoint_at,
        checkpoint: checkpoint_at,
        sit: sit_at,
        nat: nat_at,
        ssa: ssa_at,
        main: after(ssa_at, ssa),
        root: Nid::ROOT,
        uuid: options.uuid,
        label: options.label.clone(),
        extensions: (texts(&COLD_EXTENSIONS), texts(&HOT_EXTENSIONS)),
        checkpoint_payload: payload,
        version: format!("Flashweir {}", env!("CARGO_PKG_VERSION")),
        features: options.features,
    };
    Ok((superblock, overprovision))
}

/// Makes an empty volume. Errors: options that make no volume, and those of the port.
pub fn mkfs<'a>(port: &'a dyn BlockPort, options: &'a Options) -> Boxed<'a, Result<Superblock>> {
    Box::pin(make(port, options))
}

async fn make(port: &dyn BlockPort, options: &Options) -> Result<Superblock> {
    let (superblock, overprovision) = plan(options)?;
    if options.blocks > port.capacity_blocks() {
        let (wanted, has) = (options.blocks, port.capacity_blocks());
        return Err(Error::Option(format!("a volume of {wanted} blocks on a disk of {has}")));
    }
    let geometry = superblock.geometry();
    let zone = superblock.segments_per_section * superblock.sections_per_zone;
    // Each log begins in a zone of its own.
    let starts = [3, 4, 5, 0, 1, 2].map(|place| SegNo(place * zone));
    wipe(port, 0, superblock.main.0).await?;
    for segment in starts {
        // Recovery would follow a node that an older volume left here.
        wipe(port, geometry.main_block(segment, 0).0, 1).await?;
    }

    let node_at = geometry.main_block(starts[Log::HotNode.index()], 0);
    let data_at = geometry.main_block(starts[Log::HotData.index()], 0);
    // Odd, and different for each volume: recovery must not take the nodes of an older volume for its own.
    let version = u64::from(u32::from_le_bytes(array_at(&options.uuid, 0)) >> 1 | 1);
    let root = Root {
        features: options.features,
        uuid: &options.uuid,
        time: options.time,
        owner: options.root_owner,
    };
    write(port, node_at, &root_inode(&root, version, data_at, Addr(node_at.0 + 1))).await?;
    write(port, data_at, &root_entries()).await?;
    write(port, geometry.nat_block(0, false), &first_nat_block(node_at)).await?;

    let mut cursors = starts.map(|segment| Cursor { segment, ..Cursor::default() });
    for log in [Log::HotData, Log::HotNode] {
        cursors[log.index()].offset = 1;
    }
    let payload = superblock.checkpoint_payload;
    let checkpoint = Checkpoint {
        version,
        user_blocks: u64::from(geometry.main_segments - overprovision.total) * u64::from(SEGMENT_BLOCKS),
        valid_blocks: 2,
        reserved_segments: overprovision.reserved,
        overprovision_segments: overprovision.total,
        free_segments: geometry.main_segments - Log::ALL.len() as u32,
        cursors,
        flags: Flags(Flags::UNMOUNTED | Flags::COMPACT_SUMMARIES),
        pack_blocks: 6 + payload,
        summary_start: 1 + payload,
        valid_nodes: 1,
        valid_inodes: 1,
        next_free_nid: Nid(Nid::ROOT.0 + 1),
        elapsed_s: 0,
        sit_versions: vec![0; geometry.sit_blocks as usize / 8],
        nat_versions: vec![0; geometry.nat_blocks as usize / 8],
    };
    let older = Checkpoint { version: 0, ..checkpoint.clone() };
    for (pack, checkpoint) in [&checkpoint, &older].into_iter().enumerate() {
        let mut blocks = checkpoint.encode(payload);
        let head = blocks[0];
        blocks.extend(first_summaries(&cursors));
        blocks.push(head);
        let start = geometry.checkpoint_pack(pack);
        for (index, block) in blocks.iter().enumerate() {
            write(port, Addr(start.0 + index as u32), block).await?;
        }
    }
    port.flush().completed().await?;
    // The superblocks are written last: after a power cut before that there is no volume.
    for block in 0..2 {
        let mut content = [0; BLOCK_BYTES];
        superblock.encode(&mut content);
        write(port, Addr(block), &content).await?;
    }
    port.flush().completed().await?;
    Ok(superblock)
}

async fn write(port: &dyn BlockPort, addr: Addr, content: &BlockBytes) -> Result<()> {
    let write = Write::new(Geometry::block(addr), vec![payload_of(content)]);
    port.write(write).completed().await?;
    Ok(())
}

/// Writes zeros over blocks that are not zero, so that a sparse image stays sparse.
async fn wipe(port: &dyn BlockPort, first: u32, count: u32) -> Result<()> {
    let mut at = u64::from(first);
    let end = at + u64::from(count);
    while at < end {
        let blocks = (end - at).min(u64::from(WIPE_BLOCKS)) as u32;
        let payloads = port.read(Block(at), blocks).completed().await?;
        for (block, payload) in (at..).zip(payloads) {
            if bytes_of(&payload).iter().any(|&byte| byte != 0) {
                port.write(Write::new(Block(block), vec![Payload::Zero])).completed().await?;
            }
        }
        at += u64::from(blocks);
    }
    Ok(())
}

/// The inode of the root directory, with one block.
pub(crate) struct Root<'a> {
    pub(crate) features: Features,
    pub(crate) uuid: &'a [u8; 16],
    pub(crate) time: Time,
    pub(crate) owner: (u32, u32),
}

pub(crate) fn root_inode(options: &Root<'_>, version: u64, data: Addr, next: Addr) -> BlockBytes {
    let mut root = Inode::new(Nid::ROOT, Kind::Directory.mode_bits() | 0o755, options.features);
    root.inline &= !inline::DENTRY;
    root.links = 2;
    (root.uid, root.gid) = options.owner;
    root.size = BLOCK_BYTES as u64;
    root.blocks = 2;
    root.depth = 1;
    (root.atime, root.ctime, root.mtime) = (options.time, options.time, options.time);
    root.crtime = root.crtime.map(|_| options.time);
    root.set_address(0, data);
    root.set_footer(Footer { checkpoint: version, next, ..root.footer() });
    let seed = super::layout::bytes::crc32(!0, options.uuid);
    root.encode(options.features, seed)
}

pub(crate) fn root_entries() -> BlockBytes {
    let mut block = [0; BLOCK_BYTES];
    for (slot, name) in [b".".as_slice(), b".."].into_iter().enumerate() {
        Slots::BLOCK.insert(&mut block, slot, &Entry::new(name, Nid::ROOT, Kind::Directory));
    }
    block
}

/// The two inodes that exist only as numbers have the address 1, as in all volumes.
fn first_nat_block(root: Addr) -> BlockBytes {
    let mut block = [0; BLOCK_BYTES];
    for (nid, addr) in [(Nid::NODE, Addr(1)), (Nid::META, Addr(1)), (Nid::ROOT, root)] {
        let (_, place) = Geometry::nat_place(nid);
        NatEntry { version: 0, ino: nid, addr }.into_block(&mut block, place);
    }
    block
}

/// Compact summaries of the data logs with the SIT's journal, and the summaries of the node logs.
fn first_summaries(cursors: &[Cursor; 6]) -> Vec<BlockBytes> {
    let sit = Log::ALL.map(|log| {
        let cursor = cursors[log.index()];
        let mut entry = SitEntry { log: log.index() as u8, ..SitEntry::default() };
        (0..cursor.offset).for_each(|offset| entry.set_valid(u32::from(offset), true));
        (cursor.segment, entry)
    });
    let mut summaries = Log::ALL.map(|log| Summary::new(log.is_node()));
    for log in [Log::HotData, Log::HotNode] {
        summaries[log.index()].owners[0] = Owner { nid: Nid::ROOT, version: 0, offset: 0 };
    }
    summaries[Log::ColdData.index()].journal = encode_sit_journal(&sit);
    let mut blocks = encode_compact([&summaries[0], &summaries[1], &summaries[2]], cursors);
    blocks.extend(summaries[3..].iter().map(Summary::encode));
    blocks
}
