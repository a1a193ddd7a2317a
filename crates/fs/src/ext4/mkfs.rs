//! Making an empty volume.
//!
//! Each flex group begins with the bitmaps and inode tables of its groups, the first one also with the root and
//! `lost+found`; the journal is in the middle. Superblock and descriptors have copies where `sparse_super` wants them.
//!
//! Invariants: a volume is a function of its options. What the disk held before shows through only where the format calls
//! it undefined: in free blocks, in bitmaps of groups that were never used, and, if that was asked for, in inode tables.

use super::error::{Error, Result};
use super::layout::extent::{self, Entries, Extent, Index, Node};
use super::layout::group::{self, GroupDesc};
use super::layout::htree::Hash;
use super::layout::inode::{self, Inode};
use super::layout::journal::JournalSuperblock;
use super::layout::superblock::{self, BYTES, Feature, Features, state};
use super::layout::{Addr, Geometry, Group, Ino, Superblock, dirent};
use crate::boxed::Boxed;
use crate::format::{Kind, Time, set_slot_bit};
use crate::port::{BLOCK_BYTES, Block, BlockPort, Write, bytes_of};
use flashweir_core::Payload;
use std::collections::BTreeMap;
use std::sync::Arc;

/// Number of blocks that are written at once.
const CHUNK_BLOCKS: u32 = 256;
const BLOCKS_PER_GROUP: u32 = 8 * BLOCK_BYTES as u32;
const INODE_BYTES: u16 = 256;
/// Base-two logarithm of the groups in a flex group: 16, as mke2fs makes them.
const LOG_GROUPS_PER_FLEX: u8 = 4;
/// A last group with less room for contents than this is left out.
const LAST_GROUP_BLOCKS_MIN: u64 = 50;
/// Numbers of blocks in old structures have 32 bits.
const BLOCKS_MAX: u64 = u32::MAX as u64;
/// Most inodes: their numbers have 32 bits, and they fill whole blocks.
const INODES_MAX: u64 = u32::MAX as u64 / 16 * 16;
/// Least blocks of a journal that the format allows.
pub const JOURNAL_BLOCKS_MIN: u32 = 1024;
/// The largest one that mke2fs makes: 40 GiB.
pub const JOURNAL_BLOCKS_MAX: u32 = 10_240_000;
/// `lost+found` has these blocks from the beginning, because fsck cannot allocate.
const LOST_AND_FOUND_BLOCKS: u16 = 4;
const LOST_AND_FOUND: Ino = Ino::FIRST;
const LABEL_BYTES: usize = 16;
/// Default mount options: user attributes, and access control lists.
const MOUNT_OPTIONS: u32 = 0x4 | 0x8;

/// Contents of a disk before a volume is made on it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Before {
    /// It reads as zeros.
    Zeros,
    /// Anything: the journal and all inode tables are wiped.
    #[default]
    Anything,
    /// Anything: the journal is wiped, and inode tables are left to the system that mounts the volume, as Linux supports.
    Later,
}

/// Options of a new volume.
#[derive(Clone, Debug)]
pub struct Options {
    /// Size of the volume in blocks of 4 KiB. A last group that is too small is left out.
    pub blocks: u64,
    /// Label of the volume, at most 16 bytes.
    pub label: String,
    /// UUID of the volume.
    pub uuid: [u8; 16],
    /// Seed of the hashes of names.
    pub hash_seed: [u32; 4],
    /// Time stamp of the first directories.
    pub time: Time,
    /// Bytes of the volume for each inode; `None` is the default of mke2fs for this size.
    pub inode_ratio: Option<u32>,
    /// Least number of inodes; `None` uses the ratio.
    pub inodes: Option<u32>,
    /// Part of the volume that only the superuser may take, in per cent, at most 50.
    pub reserved_percent: u32,
    /// Number of blocks of the journal; `None` is the default of mke2fs for this size.
    pub journal_blocks: Option<u32>,
    /// Optional features, of those that can be written.
    pub features: Features,
    /// Contents of the disk beforehand.
    pub before: Before,
    /// User and group that own the root directory.
    pub root_owner: (u32, u32),
}

impl Options {
    /// The usual options for a volume of `blocks` blocks. UUID and hash seed are all zeros.
    pub fn new(blocks: u64) -> Self {
        Self {
            blocks,
            label: String::new(),
            uuid: [0; 16],
            hash_seed: [0; 4],
            time: Time::default(),
            inode_ratio: None,
            inodes: None,
            reserved_percent: 5,
            journal_blocks: None,
            features: Features::of(&[
                Feature::HAS_JOURNAL,
                Feature::EXT_ATTR,
                Feature::DIR_INDEX,
                Feature::FILETYPE,
                Feature::EXTENT,
                Feature::WIDE,
                Feature::FLEX_BG,
                Feature::SPARSE_SUPER,
                Feature::LARGE_FILE,
                Feature::HUGE_FILE,
                Feature::DIR_NLINK,
                Feature::EXTRA_ISIZE,
                Feature::METADATA_CSUM,
            ]),
            before: Before::default(),
            root_owner: (0, 0),
        }
    }

    /// Features that can be switched on and off.
    pub const FEATURES: [Feature; 9] = [
        Feature::HAS_JOURNAL,
        Feature::DIR_INDEX,
        Feature::WIDE,
        Feature::FLEX_BG,
        Feature::SPARSE_SUPER,
        Feature::HUGE_FILE,
        Feature::DIR_NLINK,
        Feature::GDT_CSUM,
        Feature::METADATA_CSUM,
    ];

    /// Switches a feature on by its name, or off with `^` before it. Errors: it cannot be switched.
    pub fn set_feature(&mut self, name: &str) -> Result<()> {
        let (on, name) = name.strip_prefix('^').map_or((true, name), |name| (false, name));
        let Some(feature) = Self::FEATURES.into_iter().find(|feature| feature.name == name) else {
            let known = Self::FEATURES.map(|feature| feature.name).join(", ");
            return Err(Error::Option(format!("no feature {name:?} to switch; there are {known}")));
        };
        self.features.set(feature, on);
        // The two exclude each other: the one that was named last counts.
        match feature {
            Feature::METADATA_CSUM if on => self.features.set(Feature::GDT_CSUM, false),
            Feature::GDT_CSUM if on => self.features.set(Feature::METADATA_CSUM, false),
            _ => (),
        }
        Ok(())
    }

    /// Checks whether these options make a volume. Errors: the option that does not.
    pub fn check(&self) -> Result<()> {
        plan(self).map(|_| ())
    }
}

/// Number of blocks of the journal that mke2fs chooses; `None` if the volume is too small for one.
fn usual_journal_blocks(blocks: u64) -> Option<u32> {
    const KI: u64 = 1024;
    match blocks {
        0..2048 => None,
        2048..32768 => Some(1024),
        blocks if blocks < 256 * KI => Some(4096),
        blocks if blocks < 512 * KI => Some(8192),
        blocks if blocks < 4096 * KI => Some(16384),
        blocks if blocks < 8192 * KI => Some(32768),
        blocks if blocks < 16384 * KI => Some(65536),
        blocks if blocks < 32768 * KI => Some(131_072),
        _ => Some(262_144),
    }
}

/// Bytes of a volume for each inode that mke2fs chooses.
fn usual_inode_ratio(blocks: u64) -> u32 {
    match blocks * BLOCK_BYTES as u64 {
        bytes if bytes < 512 << 20 => 4096,
        bytes if bytes < 4 << 40 => 16384,
        _ => 32768,
    }
}

/// Blocks that are taken: ranges by their starts, with their ends.
#[derive(Debug, Default)]
struct Space {
    taken: BTreeMap<u64, u64>,
}

impl Space {
    fn take(&mut self, start: u64, end: u64) {
        match self.taken.range_mut(..start).next_back() {
            Some((_, before)) if *before == start => *before = end,
            _ => drop(self.taken.insert(start, end)),
        }
    }

    /// The free ranges within a range, in order.
    fn free(&self, from: u64, to: u64) -> Vec<(u64, u64)> {
        let mut at = self.taken.range(..=from).next_back().map_or(from, |(_, end)| from.max(*end));
        let mut free = Vec::new();
        for (&start, &end) in self.taken.range(from..to) {
            if start > at {
                free.push((at, start));
            }
            at = at.max(end);
        }
        if at < to {
            free.push((at, to));
        }
        free
    }

    /// Takes the first run of `blocks` free blocks in a range.
    fn run(&mut self, from: u64, to: u64, blocks: u64) -> Option<Addr> {
        let (start, _) = self.free(from, to).into_iter().find(|(start, end)| end - start >= blocks)?;
        self.take(start, start + blocks);
        Some(Addr(start))
    }

    fn bitmap(&self, group: Group, geometry: &Geometry) -> Vec<u8> {
        let start = geometry.group_start(group).0;
        let blocks = geometry.group_blocks(group);
        let end = start + u64::from(blocks);
        let mut bitmap = vec![0xff; geometry.block_bytes as usize];
        for (from, to) in self.free(start, end) {
            for block in from..to {
                set_slot_bit(&mut bitmap, (block - start) as usize, false);
            }
        }
        bitmap
    }
}

/// Layout of a new volume.
#[derive(Debug)]
struct Plan {
    superblock: Superblock,
    descs: Vec<GroupDesc>,
    /// Bitmaps of groups that are in use; of all groups if the format requires that.
    block_bitmaps: BTreeMap<Group, Vec<u8>>,
    root: Addr,
    lost_and_found: Addr,
    journal: Vec<Extent>,
    /// The block of the journal's extents, if its inode has no room for them.
    journal_node: Option<Addr>,
}

fn fail<T>(what: String) -> Result<T> {
    Err(Error::Option(what))
}

/// The superblock, without the counts of free blocks and inodes. Errors: options that make no volume.
fn plan_superblock(options: &Options) -> Result<Superblock> {
    if options.label.len() > LABEL_BYTES {
        return fail(format!("a label of {} bytes: expected at most {LABEL_BYTES}", options.label.len()));
    }
    if options.reserved_percent > 50 {
        return fail(format!("{} % are reserved: expected 0 to 50", options.reserved_percent));
    }
    if options.blocks > BLOCKS_MAX {
        return fail(format!("{} blocks: expected less than 16 TiB", options.blocks));
    }
    let ratio = options.inode_ratio.unwrap_or_else(|| usual_inode_ratio(options.blocks));
    if !(4096..=1 << 26).contains(&ratio) {
        return fail(format!("{ratio} bytes for each inode: expected 4096 to 67108864"));
    }
    let mut label = [0; LABEL_BYTES];
    label[..options.label.len()].copy_from_slice(options.label.as_bytes());
    let features = options.features;
    let flex = features.has(Feature::FLEX_BG);
    let seconds = options.time.seconds.max(0).cast_unsigned();
    let mut blocks = options.blocks;
    loop {
        let groups = blocks.div_ceil(BLOCKS_PER_GROUP.into());
        let by_ratio = blocks * BLOCK_BYTES as u64 / u64::from(ratio);
        let inodes = options.inodes.map_or(by_ratio, u64::from).max(u64::from(Ino::FIRST.0) + 1);
        let per_block = (BLOCK_BYTES / usize::from(INODE_BYTES)) as u64;
        let per_group = inodes.div_ceil(groups.max(1)).next_multiple_of(per_block);
        if per_group > u64::from(BLOCKS_PER_GROUP) || groups * per_group > INODES_MAX {
            let most = (groups * u64::from(BLOCKS_PER_GROUP)).min(INODES_MAX);
            return fail(format!(
                "{inodes} inodes are too many for a volume of {blocks} blocks: expected at most {most}"
            ));
        }
        let superblock = Superblock {
            inodes_count: (groups * per_group) as u32,
            blocks_count: blocks,
            reserved_blocks: blocks * u64::from(options.reserved_percent) / 100,
            log_block_size: 2,
            log_cluster_size: 2,
            blocks_per_group: BLOCKS_PER_GROUP,
            clusters_per_group: BLOCKS_PER_GROUP,
            inodes_per_group: per_group as u32,
            write_time: seconds,
            mount_count_max: u16::MAX,
            state: state::VALID,
            errors: 1,
            check_time: seconds,
            first_ino: Ino::FIRST.0,
            inode_bytes: INODE_BYTES,
            features,
            uuid: options.uuid,
            label,
            hash_seed: options.hash_seed,
            hash_version: Hash::HalfMd4.version(),
            desc_bytes: if features.has(Feature::WIDE) { 64 } else { 0 },
            mount_options: MOUNT_OPTIONS,
            mkfs_time: seconds,
            extra_isize_min: inode::EXTRA_BYTES,
            extra_isize_want: inode::EXTRA_BYTES,
            flags: superblock::flags::SIGNED_HASH,
            log_groups_per_flex: if flex { LOG_GROUPS_PER_FLEX } else { 0 },
            checksum_type: u8::from(features.has(Feature::METADATA_CSUM)),
            ..Superblock::blank()
        };
        let too_small = |_| Error::Option(format!("{} blocks are too small for a volume", options.blocks));
        let decoded = Superblock::decode(&superblock.encode()).map_err(too_small)?;
        let geometry = decoded.geometry();
        let last = Group(geometry.group_count - 1);
        let needed = u64::from(geometry.backup_blocks_of(last) + 2 + geometry.inode_table_blocks());
        if u64::from(geometry.group_blocks(last)) >= needed + LAST_GROUP_BLOCKS_MIN || last.0 == 0 {
            return Ok(superblock);
        }
        blocks = geometry.group_start(last).0;
    }
}

fn plan(options: &Options) -> Result<Plan> {
    let mut superblock = plan_superblock(options)?;
    let geometry = superblock.geometry();
    let too_small =
        || Error::Option(format!("{} blocks are too small for tables and journal", options.blocks));
    let mut space = Space::default();
    for group in geometry.groups() {
        let start = geometry.group_start(group).0;
        let backup = u64::from(geometry.backup_blocks_of(group));
        if backup > u64::from(geometry.group_blocks(group)) {
            return Err(too_small());
        }
        if backup > 0 {
            space.take(start, start + backup);
        }
    }
    let mut descs = vec![GroupDesc::default(); geometry.group_count as usize];
    let table = u64::from(geometry.inode_table_blocks());
    for (flex, members) in descs.chunks_mut(1 << superblock.log_groups_per_flex).enumerate() {
        let first = Group((flex << superblock.log_groups_per_flex) as u32);
        let last = Group(first.0 + members.len() as u32 - 1);
        let from = geometry.group_start(first).0;
        let to = geometry.group_start(last).0 + u64::from(geometry.group_blocks(last));
        let mut run = |blocks| space.run(from, to, blocks).ok_or_else(too_small);
        for desc in &mut *members {
            desc.block_bitmap = run(1)?;
        }
        for desc in &mut *members {
            desc.inode_bitmap = run(1)?;
        }
        for desc in members {
            desc.inode_table = run(table)?;
        }
    }
    let end = geometry.blocks_count;
    let root = space.run(0, end, 1).ok_or_else(too_small)?;
    let lost_and_found = space.run(0, end, LOST_AND_FOUND_BLOCKS.into()).ok_or_else(too_small)?;
    let (journal, journal_node) = match journal_blocks(options)? {
        Some(blocks) => plan_journal(&mut space, &superblock, blocks).ok_or_else(too_small)?,
        None => (Vec::new(), None),
    };

    let may_be_unused = superblock.features.has_group_checksums();
    let mut block_bitmaps = BTreeMap::new();
    for (group, desc) in geometry.groups().zip(&mut descs) {
        let bitmap = space.bitmap(group, &geometry);
        let in_group = geometry.group_blocks(group);
        let used: u32 = bitmap.iter().map(|byte| byte.count_ones()).sum();
        desc.free_blocks = BLOCKS_PER_GROUP - used;
        desc.free_inodes = geometry.inodes_per_group;
        if group.0 == 0 {
            desc.free_inodes -= LOST_AND_FOUND.0;
            desc.directories = 2;
        }
        if may_be_unused {
            desc.unused_inodes = desc.free_inodes;
            let unused = bitmap == desc.uninitialised_block_bitmap(group, &geometry);
            let is_last = in_group < BLOCKS_PER_GROUP || group.0 + 1 == geometry.group_count;
            desc.flags = 0;
            if group.0 > 0 {
                desc.flags |= group::flags::INODE_UNINIT;
                // As with mke2fs, the last bitmap is always written.
                if unused && !is_last {
                    desc.flags |= group::flags::BLOCK_UNINIT;
                }
            }
            if options.before != Before::Later {
                desc.flags |= group::flags::INODE_ZEROED;
            }
        }
        if desc.flags & group::flags::BLOCK_UNINIT == 0 {
            if geometry.has_checksums() {
                desc.block_bitmap_checksum = group::block_bitmap_checksum(&geometry, &bitmap);
            }
            block_bitmaps.insert(group, bitmap);
        }
        superblock.free_blocks += u64::from(desc.free_blocks);
        superblock.free_inodes += desc.free_inodes;
    }
    let journal_total: u64 = journal.iter().map(|extent| u64::from(extent.blocks)).sum();
    let contents = 1 + u64::from(LOST_AND_FOUND_BLOCKS) + u64::from(journal_node.is_some());
    superblock.overhead_blocks = (end - superblock.free_blocks - contents) as u32;
    debug_assert!(u64::from(superblock.overhead_blocks) > journal_total);
    Ok(Plan { superblock, descs, block_bitmaps, root, lost_and_found, journal, journal_node })
}

/// Number of blocks of the journal, if there is to be one.
fn journal_blocks(options: &Options) -> Result<Option<u32>> {
    if !options.features.has(Feature::HAS_JOURNAL) {
        return match options.journal_blocks {
            Some(blocks) => {
                fail(format!("a journal of {blocks} blocks, and none: the feature has_journal is off"))
            }
            None => Ok(None),
        };
    }
    match options.journal_blocks.or_else(|| usual_journal_blocks(options.blocks)) {
        Some(blocks) if !(JOURNAL_BLOCKS_MIN..=JOURNAL_BLOCKS_MAX).contains(&blocks) => fail(format!(
            "a journal of {blocks} blocks: expected {JOURNAL_BLOCKS_MIN} to {JOURNAL_BLOCKS_MAX}"
        )),
        Some(blocks) if u64::from(blocks) > options.blocks / 2 => fail(format!(
            "a journal of {blocks} blocks on a volume of {}: expected at most half",
            options.blocks
        )),
        Some(blocks) => Ok(Some(blocks)),
        None => fail(format!(
            "{} blocks are too small for a journal: expected at least 2048, or ^has_journal",
            options.blocks
        )),
    }
}

/// Extents of the journal from the middle of the volume on, and the block of their node if one is needed.
fn plan_journal(
    space: &mut Space,
    superblock: &Superblock,
    blocks: u32,
) -> Option<(Vec<Extent>, Option<Addr>)> {
    let geometry = superblock.geometry();
    let middle = geometry.group_count / 2;
    let flex = middle >> superblock.log_groups_per_flex << superblock.log_groups_per_flex;
    let start = geometry.group_start(Group(if flex == 0 { middle } else { flex })).0;
    let end = geometry.blocks_count;
    let mut extents = Vec::new();
    let mut first = 0;
    for (from, to) in [space.free(start, end), space.free(0, start)].concat() {
        let mut at = from;
        while at < to && first < blocks {
            let count = (to - at).min(u64::from(blocks - first)).min(extent::BLOCKS_MAX.into());
            extents.push(Extent { first, blocks: count as u16, addr: Addr(at), is_unwritten: false });
            space.take(at, at + count);
            first += count as u32;
            at += count;
        }
    }
    if first < blocks || extents.len() > usize::from(extent::block_entries(geometry.block_bytes)) {
        return None;
    }
    let node = match extents.len() > usize::from(extent::ROOT_ENTRIES) {
        true => Some(space.run(0, end, 1)?),
        false => None,
    };
    Some((extents, node))
}

/// Makes an empty volume. Errors: options that make no volume, and those of the port.
pub fn mkfs<'a>(port: &'a dyn BlockPort, options: &'a Options) -> Boxed<'a, Result<Superblock>> {
    Box::pin(make(port, options))
}

async fn make(port: &dyn BlockPort, options: &Options) -> Result<Superblock> {
    let plan = plan(options)?;
    if options.blocks > port.capacity_blocks() {
        let (wanted, has) = (options.blocks, port.capacity_blocks());
        return fail(format!("a volume of {wanted} blocks on a disk of {has}"));
    }
    let geometry = plan.superblock.geometry();
    // An older volume ends here, and after a power cut before the end there is no volume.
    write(port, Addr(0), Payload::Zero).await?;
    port.flush().completed().await?;
    let superblock = Maker { port, options, geometry, plan }.make().await?;
    port.flush().completed().await?;
    let mut content = vec![0; BLOCK_BYTES];
    content[BYTES..2 * BYTES].copy_from_slice(&superblock.encode());
    write(port, Addr(0), content).await?;
    port.flush().completed().await?;
    Ok(superblock)
}

async fn write(port: &dyn BlockPort, addr: Addr, content: impl Into<Content>) -> Result<()> {
    let write = Write::new(Block(addr.0), vec![content.into().0]);
    port.write(write).completed().await?;
    Ok(())
}

/// The content of a block, in the form of the port.
struct Content(Payload);

impl From<Payload> for Content {
    fn from(payload: Payload) -> Self {
        Self(payload)
    }
}

impl From<Vec<u8>> for Content {
    fn from(bytes: Vec<u8>) -> Self {
        debug_assert_eq!(bytes.len(), BLOCK_BYTES);
        let is_zero = bytes.iter().all(|&byte| byte == 0);
        Self(if is_zero { Payload::Zero } else { Payload::Bytes(Arc::from(bytes)) })
    }
}

struct Maker<'a> {
    port: &'a dyn BlockPort,
    options: &'a Options,
    geometry: Geometry,
    plan: Plan,
}

impl Maker<'_> {
    /// Writes everything except the superblock of group 0, which it returns.
    async fn make(mut self) -> Result<Superblock> {
        self.tables().await?;
        self.directories().await?;
        self.journal().await?;
        self.descriptors().await?;
        Ok(self.plan.superblock)
    }

    /// Writes bitmaps, and inode tables without inodes.
    async fn tables(&mut self) -> Result<()> {
        let geometry = self.geometry;
        let table = u64::from(geometry.inode_table_blocks());
        for (group, desc) in geometry.groups().zip(&mut self.plan.descs) {
            if let Some(bitmap) = self.plan.block_bitmaps.remove(&group) {
                write(self.port, desc.block_bitmap, bitmap).await?;
            }
            if desc.flags & group::flags::INODE_UNINIT == 0 {
                let mut bitmap = group::empty_inode_bitmap(&geometry);
                let used = if group.0 == 0 { LOST_AND_FOUND.0 } else { 0 };
                (0..used).for_each(|bit| set_slot_bit(&mut bitmap, bit as usize, true));
                if geometry.has_checksums() {
                    desc.inode_bitmap_checksum = group::inode_bitmap_checksum(&geometry, &bitmap);
                }
                write(self.port, desc.inode_bitmap, bitmap).await?;
            }
            let has_flags = geometry.features.has_group_checksums();
            match self.options.before {
                Before::Zeros => (),
                Before::Later if has_flags => (),
                _ => wipe(self.port, desc.inode_table.0, table).await?,
            }
        }
        Ok(())
    }

    fn new_inode(&self, ino: Ino, mode: u16, links: u16, blocks: u32, extents: Entries) -> Inode {
        let mut inode = Inode::new(ino, mode, &self.geometry);
        let time = self.options.time;
        (inode.atime, inode.ctime, inode.mtime) = (time, time, time);
        inode.crtime = inode.crtime.map(|_| time);
        inode.links = links;
        inode.size = u64::from(blocks) * BLOCK_BYTES as u64;
        inode.flags = inode::flags::EXTENTS;
        let depth = u16::from(matches!(extents, Entries::Index(_)));
        let node = Node { depth, entries: extents, ..Node::empty_root() };
        node.encode_root(&mut inode.block);
        let total = u64::from(blocks) + u64::from(depth);
        inode.set_sectors(total * (BLOCK_BYTES / 512) as u64, &self.geometry);
        inode
    }

    /// Writes the root, `lost+found`, and the block of the inode table that has them and the journal.
    async fn directories(&mut self) -> Result<()> {
        let geometry = self.geometry;
        let run = |addr, blocks| Entries::Leaf(vec![Extent { first: 0, blocks, addr, is_unwritten: false }]);
        let (root_at, lost_at) = (self.plan.root, self.plan.lost_and_found);
        let directory = Kind::Directory.mode_bits();
        let mut root = self.new_inode(Ino::ROOT, directory | 0o755, 3, 1, run(root_at, 1));
        (root.uid, root.gid) = self.options.root_owner;
        let lost_blocks = LOST_AND_FOUND_BLOCKS;
        let lost = self.new_inode(
            LOST_AND_FOUND,
            directory | 0o700,
            2,
            lost_blocks.into(),
            run(lost_at, lost_blocks),
        );

        let mut block = dirent::first_block(Ino::ROOT, Ino::ROOT, &geometry);
        let entry = dirent::Entry::new(b"lost+found", LOST_AND_FOUND, Kind::Directory);
        let room = dirent::room_bytes(&geometry);
        dirent::insert(&mut block[..room], &entry, &geometry)?.expect("a new directory has room");
        dirent::put_tail(&mut block, root.seed(&geometry), &geometry);
        write(self.port, root_at, block).await?;
        for index in 0..u64::from(lost_blocks) {
            let mut block = match index {
                0 => dirent::first_block(LOST_AND_FOUND, Ino::ROOT, &geometry),
                _ => dirent::empty_block(&geometry),
            };
            dirent::put_tail(&mut block, lost.seed(&geometry), &geometry);
            write(self.port, Addr(lost_at.0 + index), block).await?;
        }

        let mut inodes = vec![root, lost];
        if !self.plan.journal.is_empty() {
            inodes.push(self.journal_inode());
        }
        let mut block = vec![0; BLOCK_BYTES];
        for inode in &inodes {
            let (_, index) = geometry.place_of_inode(inode.ino).expect("it is among the first");
            let (in_table, at) = geometry.table_place(index);
            debug_assert_eq!(in_table, 0, "a block has sixteen inodes");
            block[at..at + usize::from(INODE_BYTES)].copy_from_slice(&inode.encode(&geometry));
        }
        write(self.port, self.plan.descs[0].inode_table, block).await
    }

    fn journal_inode(&mut self) -> Inode {
        let blocks = self.plan.journal.iter().map(|extent| u32::from(extent.blocks)).sum();
        let entries = match self.plan.journal_node {
            Some(child) => Entries::Index(vec![Index { first: 0, child }]),
            None => Entries::Leaf(self.plan.journal.clone()),
        };
        let inode = self.new_inode(Ino::JOURNAL, Kind::Regular.mode_bits() | 0o600, 1, blocks, entries);
        let superblock = &mut self.plan.superblock;
        superblock.journal_ino = Ino::JOURNAL;
        superblock.journal_backup = 1;
        superblock.journal_blocks = inode.journal_copy();
        inode
    }

    /// Writes the journal's blocks: its superblock, and zeros.
    async fn journal(&mut self) -> Result<()> {
        let extents = &self.plan.journal;
        let Some(first) = extents.first() else { return Ok(()) };
        let blocks = extents.iter().map(|extent| u32::from(extent.blocks)).sum();
        if self.options.before != Before::Zeros {
            for extent in extents {
                wipe(self.port, extent.addr.0, extent.blocks.into()).await?;
            }
        }
        let superblock = JournalSuperblock {
            uuid: self.options.uuid,
            ..JournalSuperblock::new(BLOCK_BYTES as u32, blocks)
        };
        let mut block = vec![0; BLOCK_BYTES];
        block[..BYTES].copy_from_slice(&superblock.encode());
        write(self.port, first.addr, block).await?;
        if let Some(addr) = self.plan.journal_node {
            let max = extent::block_entries(self.geometry.block_bytes);
            let node = Node { depth: 0, max, generation: 0, entries: Entries::Leaf(extents.clone()) };
            let seed = super::layout::checksum::inode_seed(self.geometry.seed, Ino::JOURNAL, 0);
            let mut block = vec![0; BLOCK_BYTES];
            node.encode(&mut block, seed, &self.geometry);
            write(self.port, addr, block).await?;
        }
        Ok(())
    }

    /// Writes all copies of the descriptors, and the copies of the superblock.
    async fn descriptors(&mut self) -> Result<()> {
        let geometry = self.geometry;
        let mut blocks = vec![vec![0; BLOCK_BYTES]; geometry.desc_blocks() as usize];
        for (group, desc) in geometry.groups().zip(&self.plan.descs) {
            let (addr, at) = geometry.desc_place(group);
            let block = &mut blocks[addr.0 as usize - 1];
            block[at..at + usize::from(geometry.desc_bytes)].copy_from_slice(&desc.encode(group, &geometry));
        }
        let payloads: Vec<Payload> = blocks.into_iter().map(|block| Content::from(block).0).collect();
        for group in geometry.groups().filter(|group| geometry.has_backup(*group)) {
            let start = geometry.group_start(group).0;
            if group.0 > 0 {
                let copy = Superblock { group: group.0 as u16, ..self.plan.superblock.clone() };
                let mut content = vec![0; BLOCK_BYTES];
                content[..BYTES].copy_from_slice(&copy.encode());
                write(self.port, Addr(start), content).await?;
            }
            for (index, payloads) in payloads.chunks(CHUNK_BLOCKS as usize).enumerate() {
                let block = Block(start + 1 + u64::from(CHUNK_BLOCKS) * index as u64);
                self.port.write(Write::new(block, payloads.to_vec())).completed().await?;
            }
        }
        Ok(())
    }
}

/// Writes zeros over blocks that are not zero, so that a sparse image stays sparse.
async fn wipe(port: &dyn BlockPort, first: u64, count: u64) -> Result<()> {
    let end = first + count;
    for at in (first..end).step_by(CHUNK_BLOCKS as usize) {
        let blocks = (end - at).min(u64::from(CHUNK_BLOCKS)) as u32;
        let payloads = port.read(Block(at), blocks).completed().await?;
        for (block, payload) in (at..).zip(payloads) {
            if bytes_of(&payload).iter().any(|&byte| byte != 0) {
                port.write(Write::new(Block(block), vec![Payload::Zero])).completed().await?;
            }
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::super::{Volume, check};
    use super::*;
    use crate::port::{Image, block_on};
    use std::rc::Rc;

    fn made(options: &Options) -> (Rc<Image>, Superblock) {
        let image = Rc::new(Image::in_memory(options.blocks));
        let superblock = block_on(mkfs(&*image, options)).unwrap();
        (image, superblock)
    }

    #[test]
    fn a_new_volume_has_a_root_with_lost_and_found_and_is_good() {
        let sets: [&[&str]; 7] = [
            &[],
            &["^64bit"],
            &["^flex_bg"],
            &["^metadata_csum"],
            &["uninit_bg", "^64bit", "^sparse_super"],
            &["^has_journal", "^dir_index", "^huge_file"],
            &["uninit_bg", "metadata_csum"],
        ];
        for features in sets {
            for blocks in [2048, 33_000, 34_000, 700_000] {
                let mut options = Options { uuid: *b"flashweir tests!", ..Options::new(blocks) };
                options.label = "weir".into();
                features.iter().for_each(|name| options.set_feature(name).unwrap());
                let (image, superblock) = made(&options);
                let report = block_on(check(Rc::clone(&image) as _)).unwrap();
                assert_eq!(report.problems, [], "{blocks} {features:?}");
                assert_eq!((report.directories, report.free_blocks), (2, superblock.free_blocks));
                assert!(report.is_clean);
                let volume = block_on(Volume::mount(image as _)).unwrap();
                assert_eq!(*volume.superblock(), Superblock::decode(&superblock.encode()).unwrap());
                assert_eq!(volume.superblock().label_text(), "weir");
                assert_eq!(volume.journal().is_some(), superblock.features.has(Feature::HAS_JOURNAL));
                let root = block_on(volume.root()).unwrap();
                let found = block_on(volume.lookup(&root, b"lost+found")).unwrap().unwrap();
                assert_eq!(found.ino, LOST_AND_FOUND);
                assert_eq!(block_on(volume.inode(found.ino)).unwrap().size, 16384);
            }
        }
    }

    /// The numbers of mke2fs 1.47 for the same size without `resize_inode`.
    #[test]
    fn numbers_are_those_of_mke2fs() {
        for (blocks, inodes, free, journal) in [
            (4096, 4096, 2807, 1024),
            (25_600, 25_600, 22_967, 1024),
            (262_144, 65_536, 249_825, 8192),
            (5_242_880, 1_310_720, 5_127_823, 32_768),
        ] {
            let (image, superblock) = made(&Options { before: Before::Zeros, ..Options::new(blocks) });
            assert_eq!((superblock.inodes_count, superblock.free_blocks), (inodes, free));
            assert_eq!(superblock.free_inodes, inodes - 11);
            let volume = block_on(Volume::mount(image as _)).unwrap();
            assert_eq!(volume.journal().unwrap().superblock.blocks, journal);
        }
    }

    #[test]
    fn a_volume_is_a_function_of_its_options() {
        for features in [&[][..], &["^metadata_csum", "^flex_bg"]] {
            let mut options = Options::new(4096);
            features.iter().for_each(|name| options.set_feature(name).unwrap());
            let (image, superblock) = made(&options);
            let dirty = Image::from_bytes(&vec![0xa5; 4096 * BLOCK_BYTES]);
            block_on(mkfs(&dirty, &options)).unwrap();
            // What the disk held before remains in free blocks only.
            let (clean, bytes) = (image.to_bytes().unwrap(), dirty.to_bytes().unwrap());
            let same = |(a, b): &(&[u8], &[u8])| a == b;
            let blocks = || clean.chunks(BLOCK_BYTES).zip(bytes.chunks(BLOCK_BYTES));
            assert_eq!(blocks().filter(|pair| !same(pair)).count() as u64, superblock.free_blocks);
            assert_eq!(block_on(check(Rc::new(dirty))).unwrap().problems, []);
            // Parts of deferred tables that were never used are not checked.
            let dirty = Image::from_bytes(&vec![0xa5; 4096 * BLOCK_BYTES]);
            block_on(mkfs(&dirty, &Options { before: Before::Later, ..options })).unwrap();
            assert_eq!(block_on(check(Rc::new(dirty))).unwrap().problems, []);
        }
    }

    #[test]
    fn a_journal_of_many_extents_has_a_node() {
        let mut options = Options { before: Before::Zeros, ..Options::new(1 << 20) };
        options.journal_blocks = Some(200_000);
        options.set_feature("^flex_bg").unwrap();
        let (image, superblock) = made(&options);
        assert_eq!(block_on(check(Rc::clone(&image) as _)).unwrap().problems, []);
        let volume = block_on(Volume::mount(image as _)).unwrap();
        let journal = volume.journal().unwrap();
        assert_eq!(journal.superblock.blocks, 200_000);
        assert_eq!(block_on(volume.map(&journal.inode)).unwrap().nodes.len(), 1);
        assert_eq!(superblock.journal_blocks[16], journal.inode.size as u32);
    }

    #[test]
    fn options_that_make_no_volume() {
        let fails = |options: &Options| match block_on(mkfs(&Image::in_memory(options.blocks), options)) {
            Err(Error::Option(why)) => why,
            other => panic!("{other:?}"),
        };
        let small = Options::new(4096);
        assert!(fails(&Options::new(2047)).contains("too small for a journal: expected at least 2048"));
        assert!(fails(&Options::new(1 << 32)).contains("expected less than 16 TiB"));
        let with = |change: fn(&mut Options)| {
            let mut options = small.clone();
            change(&mut options);
            fails(&options)
        };
        assert!(with(|it| it.label = "x".repeat(17)).contains("a label of 17 bytes: expected at most 16"));
        assert!(with(|it| it.reserved_percent = 51).contains("51 % are reserved: expected 0 to 50"));
        assert!(with(|it| it.inode_ratio = Some(1)).contains("1 bytes for each inode: expected 4096 to"));
        assert!(with(|it| it.inodes = Some(32_769)).contains("expected at most 32768"));
        assert!(with(|it| it.journal_blocks = Some(1023)).contains("expected 1024 to 10240000"));
        assert!(with(|it| it.journal_blocks = Some(2049)).contains("expected at most half"));
        let mut none = small.clone();
        none.set_feature("^has_journal").unwrap();
        none.journal_blocks = Some(1024);
        assert!(fails(&none).contains("the feature has_journal is off"));
        (none.journal_blocks, none.blocks) = (None, 4);
        assert!(fails(&none).contains("4 blocks are too small for a volume"));
        none.blocks = 8;
        assert!(fails(&none).contains("too small"));
        let unknown = none.set_feature("encrypt").unwrap_err().to_string();
        assert!(unknown.contains("no feature \"encrypt\" to switch; there are has_journal"), "{unknown}");
        let short = block_on(mkfs(&Image::in_memory(5), &small)).unwrap_err().to_string();
        assert_eq!(short, "a volume of 4096 blocks on a disk of 5");
    }
}
