//! The superblock, and the geometry that follows from it.
//!
//! The first copy is 1,024 bytes from the start of the volume, whatever its block size is; groups with a backup have one
//! at their start.

use super::checksum::{START, crc16, crc32c};
use super::{Addr, Group, Ino};
use crate::ext4::error::{Error, Named, Result, corrupt};
use crate::format::{array_at, put, u16_at, u32_at, u64_at};
use crate::port::{BLOCK_BYTES, Block};

/// Bytes of the structure, and its offset in the volume.
pub const BYTES: usize = 1024;
const MAGIC: u16 = 0xef53;
const CHECKSUM_AT: usize = 0x3fc;
/// Bytes of inodes of the first revision.
const OLD_INODE_BYTES: u16 = 128;
/// Most blocks that the kernel and e2fsprogs can address.
const BLOCKS_MAX: u64 = 1 << 48;

/// The word of the superblock that holds the bit of a feature.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Word {
    /// Code that does not know the feature may read and write.
    Compat,
    /// Code that does not know the feature must not mount the volume.
    Incompat,
    /// Code that does not know the feature may only read.
    RoCompat,
}

/// An optional part of the format.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Feature {
    /// The word that holds its bit.
    pub word: Word,
    /// The bit.
    pub bit: u32,
    /// Its name, as mke2fs knows it.
    pub name: &'static str,
}

macro_rules! features {
    ($($(#[$doc:meta])* $name:ident = $word:ident $bit:literal $text:literal;)*) => {
        impl Feature {
            $($(#[$doc])* pub const $name: Self = Self { word: Word::$word, bit: $bit, name: $text };)*
            /// All features that have a name.
            pub const ALL: &'static [Self] = &[$(Self::$name),*];
        }
    };
}

features! {
    /// A directory's blocks are reserved ahead.
    DIR_PREALLOC = Compat 0x1 "dir_prealloc";
    /// Unused.
    IMAGIC_INODES = Compat 0x2 "imagic_inodes";
    /// There is a journal.
    HAS_JOURNAL = Compat 0x4 "has_journal";
    /// Inodes may have extended attributes.
    EXT_ATTR = Compat 0x8 "ext_attr";
    /// Blocks are reserved for more group descriptors.
    RESIZE_INODE = Compat 0x10 "resize_inode";
    /// Directories may have an index.
    DIR_INDEX = Compat 0x20 "dir_index";
    /// At most two groups have backups.
    SPARSE_SUPER2 = Compat 0x200 "sparse_super2";
    /// The journal may have an area of fast commits.
    FAST_COMMIT = Compat 0x400 "fast_commit";
    /// Numbers of inodes and the UUID do not change.
    STABLE_INODES = Compat 0x800 "stable_inodes";
    /// Orphans are in a file.
    ORPHAN_FILE = Compat 0x1000 "orphan_file";
    /// Contents are compressed.
    COMPRESSION = Incompat 0x1 "compression";
    /// Directory entries carry the type of their inode.
    FILETYPE = Incompat 0x2 "filetype";
    /// The journal has to be replayed.
    RECOVER = Incompat 0x4 "needs_recovery";
    /// This is a journal, for another volume.
    JOURNAL_DEV = Incompat 0x8 "journal_dev";
    /// Descriptors are in their groups.
    META_BG = Incompat 0x10 "meta_bg";
    /// Files may be mapped by extents.
    EXTENT = Incompat 0x40 "extent";
    /// Block numbers have more than 32 bits.
    WIDE = Incompat 0x80 "64bit";
    /// A block names the host that has mounted the volume.
    MMP = Incompat 0x100 "mmp";
    /// Metadata of several groups are in the first of them.
    FLEX_BG = Incompat 0x200 "flex_bg";
    /// Values of extended attributes may be inodes.
    EA_INODE = Incompat 0x400 "ea_inode";
    /// Directory entries carry data.
    DIRDATA = Incompat 0x1000 "dirdata";
    /// The seed of checksums is in the superblock.
    CSUM_SEED = Incompat 0x2000 "metadata_csum_seed";
    /// Indexes of directories may have three levels.
    LARGEDIR = Incompat 0x4000 "large_dir";
    /// Small contents are in the inode.
    INLINE_DATA = Incompat 0x8000 "inline_data";
    /// Contents may be encrypted.
    ENCRYPT = Incompat 0x10000 "encrypt";
    /// Names may be found in any case.
    CASEFOLD = Incompat 0x20000 "casefold";
    /// Groups without backups.
    SPARSE_SUPER = RoCompat 0x1 "sparse_super";
    /// Files may have 2 GiB and more.
    LARGE_FILE = RoCompat 0x2 "large_file";
    /// Files may count their blocks in units of the volume's blocks.
    HUGE_FILE = RoCompat 0x8 "huge_file";
    /// Group descriptors have a CRC-16, groups may be uninitialised.
    GDT_CSUM = RoCompat 0x10 "uninit_bg";
    /// A directory may have more subdirectories than links can count.
    DIR_NLINK = RoCompat 0x20 "dir_nlink";
    /// Large inodes have more fields.
    EXTRA_ISIZE = RoCompat 0x40 "extra_isize";
    /// Quota files are metadata.
    QUOTA = RoCompat 0x100 "quota";
    /// Blocks are allocated in clusters.
    BIGALLOC = RoCompat 0x200 "bigalloc";
    /// Metadata have a CRC-32C, groups may be uninitialised.
    METADATA_CSUM = RoCompat 0x400 "metadata_csum";
    /// The volume must not be written.
    READONLY = RoCompat 0x1000 "read-only";
    /// Inodes belong to projects.
    PROJECT = RoCompat 0x2000 "project";
    /// Files may share blocks.
    SHARED_BLOCKS = RoCompat 0x4000 "shared_blocks";
    /// Contents may be verified by a tree of hashes.
    VERITY = RoCompat 0x8000 "verity";
    /// The file of orphans has some.
    ORPHAN_PRESENT = RoCompat 0x10000 "orphan_present";
}

/// The optional parts that a volume has.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Features {
    /// Bits of [`Word::Compat`].
    pub compat: u32,
    /// Bits of [`Word::Incompat`].
    pub incompat: u32,
    /// Bits of [`Word::RoCompat`].
    pub ro_compat: u32,
}

impl Features {
    /// Supported features among those that code must know to read.
    const READ: [Feature; 8] = [
        Feature::FILETYPE,
        Feature::RECOVER,
        Feature::EXTENT,
        Feature::WIDE,
        Feature::FLEX_BG,
        Feature::CSUM_SEED,
        Feature::LARGEDIR,
        Feature::INLINE_DATA,
    ];

    /// Supported features among those that code must know to write.
    const WRITTEN: [Feature; 7] = [
        Feature::SPARSE_SUPER,
        Feature::LARGE_FILE,
        Feature::HUGE_FILE,
        Feature::GDT_CSUM,
        Feature::DIR_NLINK,
        Feature::EXTRA_ISIZE,
        Feature::METADATA_CSUM,
    ];

    /// The set of these features.
    pub fn of(features: &[Feature]) -> Self {
        let mut set = Self::default();
        for feature in features {
            set.set(*feature, true);
        }
        set
    }

    fn word(self, word: Word) -> u32 {
        match word {
            Word::Compat => self.compat,
            Word::Incompat => self.incompat,
            Word::RoCompat => self.ro_compat,
        }
    }

    /// Whether this feature is on.
    pub fn has(self, feature: Feature) -> bool {
        self.word(feature.word) & feature.bit != 0
    }

    /// Switches a feature on or off.
    pub fn set(&mut self, feature: Feature, on: bool) {
        let word = match feature.word {
            Word::Compat => &mut self.compat,
            Word::Incompat => &mut self.incompat,
            Word::RoCompat => &mut self.ro_compat,
        };
        *word = if on { *word | feature.bit } else { *word & !feature.bit };
    }

    fn bits(self, word: Word) -> impl Iterator<Item = (u32, String)> {
        (0..32).map(|bit| 1 << bit).filter(move |bit| self.word(word) & bit != 0).map(move |bit| {
            let known = Feature::ALL.iter().find(|feature| feature.word == word && feature.bit == bit);
            (bit, known.map_or_else(|| format!("{word:?} bit {bit:#x}"), |feature| feature.name.to_string()))
        })
    }

    /// Names of the volume's features with which it cannot be read.
    pub fn refused(self) -> Vec<String> {
        let read = Self::of(&Self::READ).incompat;
        let clusters = Feature::BIGALLOC;
        let incompat = self.bits(Word::Incompat).filter(|(bit, _)| read & bit == 0);
        let mut names: Vec<String> = incompat.map(|(_, name)| name).collect();
        if self.has(clusters) {
            names.push(clusters.name.to_string());
        }
        names
    }

    /// Names of the volume's features with which it can be read, but not written.
    pub fn unwritable(self) -> Vec<String> {
        let written = Self::of(&Self::WRITTEN).ro_compat;
        let mut names: Vec<String> =
            self.bits(Word::RoCompat).filter(|(bit, _)| written & bit == 0).map(|(_, name)| name).collect();
        for feature in [Feature::INLINE_DATA, Feature::SPARSE_SUPER2] {
            if self.has(feature) {
                names.push(feature.name.to_string());
            }
        }
        names
    }

    /// Names of all features that are on, in the order of their bits.
    pub fn names(self) -> Vec<String> {
        let words = [Word::Compat, Word::Incompat, Word::RoCompat];
        words.into_iter().flat_map(|word| self.bits(word)).map(|(_, name)| name).collect()
    }

    /// Whether groups may be uninitialised and count their unused inodes.
    pub fn has_group_checksums(self) -> bool {
        self.has(Feature::GDT_CSUM) || self.has(Feature::METADATA_CSUM)
    }
}

/// Bits of [`Superblock::state`].
pub mod state {
    /// The volume was unmounted.
    pub const VALID: u16 = 0x1;
    /// Errors were found.
    pub const ERRORS: u16 = 0x2;
    /// Orphans are being recovered.
    pub const ORPHANS: u16 = 0x4;
}

/// Bits of [`Superblock::flags`].
pub mod flags {
    /// Hashes of names treat bytes as signed.
    pub const SIGNED_HASH: u32 = 0x1;
    /// Hashes of names treat bytes as unsigned.
    pub const UNSIGNED_HASH: u32 = 0x2;
}

/// The superblock. Bytes without a field here stay as they were read.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Superblock {
    pub(in crate::ext4) raw: Box<[u8; BYTES]>,
    /// Number of inodes of the volume.
    pub inodes_count: u32,
    /// Size of the volume in blocks.
    pub blocks_count: u64,
    /// Number of blocks that only the superuser may take.
    pub reserved_blocks: u64,
    /// Number of free blocks. Only right after an unmount.
    pub free_blocks: u64,
    /// Number of free inodes. Only right after an unmount.
    pub free_inodes: u32,
    /// The block with the superblock: 1 for blocks of 1 KiB, else 0.
    pub first_data_block: u32,
    /// Base-two logarithm of the block size, less 10.
    pub log_block_size: u32,
    /// Base-two logarithm of the cluster size, less 10.
    pub log_cluster_size: u32,
    /// Blocks of a group.
    pub blocks_per_group: u32,
    /// Clusters of a group.
    pub clusters_per_group: u32,
    /// Inodes of a group.
    pub inodes_per_group: u32,
    /// Time of the last mount, in seconds since 1970.
    pub mount_time: u64,
    /// Time of the last write of the superblock, in seconds since 1970.
    pub write_time: u64,
    /// Mounts since the last check.
    pub mount_count: u16,
    /// Mounts after which a check is due; 0xffff is never.
    pub mount_count_max: u16,
    /// Bits of [`state`].
    pub state: u16,
    /// What to do on an error: 1 continue, 2 mount read-only, 3 panic.
    pub errors: u16,
    /// Time of the last check, in seconds since 1970.
    pub check_time: u64,
    /// Seconds after which a check is due.
    pub check_interval: u32,
    /// Operating system that made the volume: 0 is Linux.
    pub creator_os: u32,
    /// Revision: 0 has no features and inodes of 128 bytes, 1 has the fields that follow.
    pub revision: u32,
    /// User that may take reserved blocks.
    pub reserved_uid: u16,
    /// Group that may take reserved blocks.
    pub reserved_gid: u16,
    /// The first inode that is not reserved.
    pub first_ino: u32,
    /// Bytes of an inode.
    pub inode_bytes: u16,
    /// The group of this copy.
    pub group: u16,
    /// Optional parts.
    pub features: Features,
    /// Identity of the volume.
    pub uuid: [u8; 16],
    /// Label of the volume, padded with zeros.
    pub label: [u8; 16],
    /// Directory of the last mount, padded with zeros.
    pub last_mounted: [u8; 64],
    /// Number of blocks reserved for more group descriptors, behind those of each copy.
    pub reserved_gdt_blocks: u16,
    /// Identity of the device of the journal.
    pub journal_uuid: [u8; 16],
    /// The inode of the journal.
    pub journal_ino: Ino,
    /// The device of the journal.
    pub journal_dev: u32,
    /// The first inode that is to be deleted or truncated; each such inode names the next one in its `dtime`.
    pub last_orphan: Ino,
    /// Seed of the hashes of names.
    pub hash_seed: [u32; 4],
    /// Default hash of new directories; see [`super::htree::Hash`].
    pub hash_version: u8,
    /// 1 if [`Self::journal_blocks`] is a copy of the journal's inode.
    pub journal_backup: u8,
    /// Bytes of a group descriptor with [`Feature::WIDE`].
    pub desc_bytes: u16,
    /// Default mount options.
    pub mount_options: u32,
    /// Time of creation, in seconds since 1970.
    pub mkfs_time: u64,
    /// The journal's `i_block`, and the high and low half of its size, as words.
    pub journal_blocks: [u32; 17],
    /// Least bytes of extra fields in each inode.
    pub extra_isize_min: u16,
    /// Bytes that new inodes should have for extra fields.
    pub extra_isize_want: u16,
    /// Bits of [`flags`].
    pub flags: u32,
    /// Base-two logarithm of the number of groups in a flex group.
    pub log_groups_per_flex: u8,
    /// Type of checksums; 1 is CRC-32C.
    pub checksum_type: u8,
    /// KiB written to the volume since it was made.
    pub kbytes_written: u64,
    /// Number of errors that were found.
    pub error_count: u32,
    /// Number of blocks that metadata take; 0 is unknown.
    pub overhead_blocks: u32,
    /// The groups with backups, with [`Feature::SPARSE_SUPER2`].
    pub backup_groups: [u32; 2],
    /// The seed of checksums, with [`Feature::CSUM_SEED`].
    pub checksum_seed: u32,
    /// The file of orphans, with [`Feature::ORPHAN_FILE`].
    pub orphan_file: Ino,
}

impl Superblock {
    /// A blank superblock, for a new volume.
    pub fn blank() -> Self {
        let mut superblock = Self::fields(Box::new([0; BYTES]));
        superblock.revision = 1;
        superblock
    }

    /// Decodes a copy. Errors: it is no superblock, contradicts itself, or has an unsupported feature.
    pub fn decode(raw: &[u8; BYTES]) -> Result<Self> {
        let magic = u16_at(raw, 0x38);
        if magic != MAGIC {
            return Err(Error::Absent(
                Named,
                format!("the magic number of the superblock is {magic:#06x}, expected {MAGIC:#06x}"),
            ));
        }
        let superblock = Self::fields(Box::new(*raw));
        if superblock.features.has(Feature::METADATA_CSUM) {
            if superblock.checksum_type != 1 {
                return Err(Error::Refused(format!("checksums of type {}", superblock.checksum_type)));
            }
            let (stored, computed) = (u32_at(raw, CHECKSUM_AT), crc32c(START, &raw[..CHECKSUM_AT]));
            if stored != computed {
                return corrupt(format!(
                    "the superblock's checksum is {stored:#010x}, expected {computed:#010x}"
                ));
            }
        }
        if superblock.revision > 1 {
            return Err(Error::Refused(format!("revision {}", superblock.revision)));
        }
        let refused = superblock.features.refused();
        if !refused.is_empty() {
            return Err(Error::Refused(format!("the feature {}", refused.join(", "))));
        }
        superblock.check()?;
        Ok(superblock)
    }

    fn fields(raw: Box<[u8; BYTES]>) -> Self {
        let byte = |at: usize| raw[at];
        let half = |at| u16_at(&raw[..], at);
        let word = |at| u32_at(&raw[..], at);
        let dynamic = word(0x4c) >= 1;
        let features = match dynamic {
            true => Features { compat: word(0x5c), incompat: word(0x60), ro_compat: word(0x64) },
            false => Features::default(),
        };
        let wide = features.has(Feature::WIDE);
        let long = |low, high| u64::from(word(low)) | if wide { u64::from(word(high)) << 32 } else { 0 };
        let time = |low, high: usize| u64::from(word(low)) | u64::from(byte(high)) << 32;
        let mut journal_blocks = [0; 17];
        for (index, block) in journal_blocks.iter_mut().enumerate() {
            *block = word(0x10c + 4 * index);
        }
        Self {
            inodes_count: word(0),
            blocks_count: long(4, 0x150),
            reserved_blocks: long(8, 0x154),
            free_blocks: long(0xc, 0x158),
            free_inodes: word(0x10),
            first_data_block: word(0x14),
            log_block_size: word(0x18),
            log_cluster_size: word(0x1c),
            blocks_per_group: word(0x20),
            clusters_per_group: word(0x24),
            inodes_per_group: word(0x28),
            mount_time: time(0x2c, 0x275),
            write_time: time(0x30, 0x274),
            mount_count: half(0x34),
            mount_count_max: half(0x36),
            state: half(0x3a),
            errors: half(0x3c),
            check_time: time(0x40, 0x277),
            check_interval: word(0x44),
            creator_os: word(0x48),
            revision: word(0x4c),
            reserved_uid: half(0x50),
            reserved_gid: half(0x52),
            first_ino: if dynamic { word(0x54) } else { Ino::FIRST.0 },
            inode_bytes: if dynamic { half(0x58) } else { OLD_INODE_BYTES },
            group: half(0x5a),
            features,
            uuid: array_at(&raw[..], 0x68),
            label: array_at(&raw[..], 0x78),
            last_mounted: array_at(&raw[..], 0x88),
            reserved_gdt_blocks: half(0xce),
            journal_uuid: array_at(&raw[..], 0xd0),
            journal_ino: Ino(word(0xe0)),
            journal_dev: word(0xe4),
            last_orphan: Ino(word(0xe8)),
            hash_seed: [word(0xec), word(0xf0), word(0xf4), word(0xf8)],
            hash_version: byte(0xfc),
            journal_backup: byte(0xfd),
            desc_bytes: half(0xfe),
            mount_options: word(0x100),
            mkfs_time: time(0x108, 0x276),
            journal_blocks,
            extra_isize_min: half(0x15c),
            extra_isize_want: half(0x15e),
            flags: word(0x160),
            log_groups_per_flex: byte(0x174),
            checksum_type: byte(0x175),
            kbytes_written: u64_at(&raw[..], 0x178),
            error_count: word(0x194),
            overhead_blocks: word(0x248),
            backup_groups: [word(0x24c), word(0x250)],
            checksum_seed: word(0x270),
            orphan_file: Ino(word(0x280)),
            raw,
        }
    }

    /// Encodes a copy, with its checksum if the volume has checksums.
    pub fn encode(&self) -> [u8; BYTES] {
        let mut raw = *self.raw;
        let low = |value: u64| value as u32;
        let high = |value: u64| (value >> 32) as u32;
        for (at, word) in [
            (0, self.inodes_count),
            (4, low(self.blocks_count)),
            (8, low(self.reserved_blocks)),
            (0xc, low(self.free_blocks)),
            (0x10, self.free_inodes),
            (0x14, self.first_data_block),
            (0x18, self.log_block_size),
            (0x1c, self.log_cluster_size),
            (0x20, self.blocks_per_group),
            (0x24, self.clusters_per_group),
            (0x28, self.inodes_per_group),
            (0x2c, low(self.mount_time)),
            (0x30, low(self.write_time)),
            (0x40, low(self.check_time)),
            (0x44, self.check_interval),
            (0x48, self.creator_os),
            (0x4c, self.revision),
            (0xe0, self.journal_ino.0),
            (0xe4, self.journal_dev),
            (0xe8, self.last_orphan.0),
            (0xec, self.hash_seed[0]),
            (0xf0, self.hash_seed[1]),
            (0xf4, self.hash_seed[2]),
            (0xf8, self.hash_seed[3]),
            (0x100, self.mount_options),
            (0x108, low(self.mkfs_time)),
            (0x160, self.flags),
            (0x194, self.error_count),
            (0x248, self.overhead_blocks),
            (0x24c, self.backup_groups[0]),
            (0x250, self.backup_groups[1]),
            (0x270, self.checksum_seed),
            (0x280, self.orphan_file.0),
        ] {
            put(&mut raw, at, &word.to_le_bytes());
        }
        for (at, half) in [
            (0x34, self.mount_count),
            (0x36, self.mount_count_max),
            (0x38, MAGIC),
            (0x3a, self.state),
            (0x3c, self.errors),
            (0x50, self.reserved_uid),
            (0x52, self.reserved_gid),
            (0x5a, self.group),
            (0xce, self.reserved_gdt_blocks),
            (0xfe, self.desc_bytes),
            (0x15c, self.extra_isize_min),
            (0x15e, self.extra_isize_want),
        ] {
            put(&mut raw, at, &half.to_le_bytes());
        }
        if self.revision >= 1 {
            put(&mut raw, 0x54, &self.first_ino.to_le_bytes());
            put(&mut raw, 0x58, &self.inode_bytes.to_le_bytes());
            put(&mut raw, 0x5c, &self.features.compat.to_le_bytes());
            put(&mut raw, 0x60, &self.features.incompat.to_le_bytes());
            put(&mut raw, 0x64, &self.features.ro_compat.to_le_bytes());
        }
        put(&mut raw, 0x68, &self.uuid);
        put(&mut raw, 0x78, &self.label);
        put(&mut raw, 0x88, &self.last_mounted);
        put(&mut raw, 0xd0, &self.journal_uuid);
        raw[0xfc] = self.hash_version;
        raw[0xfd] = self.journal_backup;
        for (index, block) in self.journal_blocks.iter().enumerate() {
            put(&mut raw, 0x10c + 4 * index, &block.to_le_bytes());
        }
        if self.features.has(Feature::WIDE) {
            put(&mut raw, 0x150, &high(self.blocks_count).to_le_bytes());
            put(&mut raw, 0x154, &high(self.reserved_blocks).to_le_bytes());
            put(&mut raw, 0x158, &high(self.free_blocks).to_le_bytes());
        }
        raw[0x174] = self.log_groups_per_flex;
        raw[0x175] = self.checksum_type;
        put(&mut raw, 0x178, &self.kbytes_written.to_le_bytes());
        for (at, time) in [
            (0x274, self.write_time),
            (0x275, self.mount_time),
            (0x276, self.mkfs_time),
            (0x277, self.check_time),
        ] {
            raw[at] = high(time) as u8;
        }
        if self.features.has(Feature::METADATA_CSUM) {
            let crc = crc32c(START, &raw[..CHECKSUM_AT]);
            put(&mut raw, CHECKSUM_AT, &crc.to_le_bytes());
        }
        raw
    }

    /// The label as text.
    pub fn label_text(&self) -> String {
        let end = self.label.iter().position(|&byte| byte == 0).unwrap_or(self.label.len());
        String::from_utf8_lossy(&self.label[..end]).into_owned()
    }

    /// Checks that the numbers make a volume.
    fn check(&self) -> Result<()> {
        if self.log_block_size > 6 {
            return corrupt(format!("s_log_block_size is {}, expected 0 to 6", self.log_block_size));
        }
        let block_bytes = 1024_u64 << self.log_block_size;
        if block_bytes > BLOCK_BYTES as u64 {
            return Err(Error::Refused(format!("blocks of {block_bytes} bytes")));
        }
        let bits = 8 * block_bytes;
        let within = |name: &str, value: u64, valid: std::ops::RangeInclusive<u64>| {
            if valid.contains(&value) {
                return Ok(());
            }
            corrupt(format!(
                "{name} of the superblock is {value}, expected {} to {}",
                valid.start(),
                valid.end()
            ))
        };
        let first = u64::from(block_bytes == 1024);
        within("s_first_data_block", self.first_data_block.into(), first..=first)?;
        within("s_blocks_per_group", self.blocks_per_group.into(), 256..=bits)?;
        within("s_inodes_per_group", self.inodes_per_group.into(), 8..=bits)?;
        within("s_inode_size", self.inode_bytes.into(), 128..=block_bytes)?;
        within("s_blocks_count", self.blocks_count, first + 8..=BLOCKS_MAX)?;
        if !self.blocks_per_group.is_multiple_of(8) {
            return corrupt(format!("s_blocks_per_group is {}, expected whole bytes", self.blocks_per_group));
        }
        if !self.inode_bytes.is_power_of_two() {
            return corrupt(format!("s_inode_size is {}, expected a power of two", self.inode_bytes));
        }
        let inodes_per_block = block_bytes / u64::from(self.inode_bytes);
        if !u64::from(self.inodes_per_group).is_multiple_of(inodes_per_block)
            || !self.inodes_per_group.is_multiple_of(8)
        {
            return corrupt(format!(
                "s_inodes_per_group is {}, expected whole blocks of inodes and whole bytes of bits",
                self.inodes_per_group
            ));
        }
        if self.features.has(Feature::WIDE) {
            within("s_desc_size", self.desc_bytes.into(), 64..=block_bytes)?;
            if !self.desc_bytes.is_power_of_two() {
                return corrupt(format!("s_desc_size is {}, expected a power of two", self.desc_bytes));
            }
            if self.desc_bytes != 64 {
                return Err(Error::Refused(format!("group descriptors of {} bytes", self.desc_bytes)));
            }
        }
        let groups = (self.blocks_count - first).div_ceil(self.blocks_per_group.into());
        let inodes = groups * u64::from(self.inodes_per_group);
        if inodes != u64::from(self.inodes_count) {
            return corrupt(format!(
                "s_inodes_count is {}, but {groups} groups have {inodes}",
                self.inodes_count
            ));
        }
        within("s_first_ino", self.first_ino.into(), 11..=inodes)?;
        within("s_log_groups_per_flex", self.log_groups_per_flex.into(), 0..=31)?;
        within("s_reserved_gdt_blocks", self.reserved_gdt_blocks.into(), 0..=block_bytes / 4)?;
        if self.features.has(Feature::GDT_CSUM) && self.features.has(Feature::METADATA_CSUM) {
            return corrupt("the features uninit_bg and metadata_csum exclude each other");
        }
        let geometry = self.geometry();
        let overhead = u64::from(geometry.backup_blocks());
        if overhead + 2 >= u64::from(self.blocks_per_group) {
            return corrupt(format!(
                "superblock and descriptors take {overhead} blocks of a group of {}",
                self.blocks_per_group
            ));
        }
        if u64::from(self.first_data_block) + overhead >= self.blocks_count {
            return corrupt(format!(
                "superblock and descriptors take {overhead} blocks of {}",
                self.blocks_count
            ));
        }
        Ok(())
    }

    /// Layout of the volume. The superblock must have been decoded, or be valid.
    pub fn geometry(&self) -> Geometry {
        let blocks = self.blocks_count - u64::from(self.first_data_block);
        Geometry {
            block_bytes: 1024 << self.log_block_size,
            blocks_count: self.blocks_count,
            inodes_count: self.inodes_count,
            first_data_block: self.first_data_block,
            blocks_per_group: self.blocks_per_group,
            inodes_per_group: self.inodes_per_group,
            group_count: blocks.div_ceil(self.blocks_per_group.into()) as u32,
            desc_bytes: if self.features.has(Feature::WIDE) { self.desc_bytes } else { 32 },
            inode_bytes: self.inode_bytes,
            first_ino: self.first_ino,
            reserved_gdt_blocks: self.reserved_gdt_blocks,
            log_groups_per_flex: self.log_groups_per_flex,
            backup_groups: self.backup_groups,
            features: self.features,
            uuid: self.uuid,
            seed: self.seed(),
        }
    }

    /// The seed of the checksums of metadata.
    fn seed(&self) -> u32 {
        if self.features.has(Feature::CSUM_SEED) { self.checksum_seed } else { crc32c(START, &self.uuid) }
    }

    /// Whether hashes of names treat bytes as unsigned. Volumes that do not say it were written on machines with signed bytes.
    pub fn is_hash_unsigned(&self) -> bool {
        self.flags & flags::UNSIGNED_HASH != 0
    }
}

/// Layout of the volume, and the values that decoding needs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Geometry {
    /// Bytes of a block: 1,024, 2,048 or 4,096.
    pub block_bytes: u32,
    /// Size of the volume in blocks.
    pub blocks_count: u64,
    /// Number of inodes of the volume; their numbers begin with 1.
    pub inodes_count: u32,
    /// The block where the first group begins.
    pub first_data_block: u32,
    /// Blocks of a group; the last one may have fewer.
    pub blocks_per_group: u32,
    /// Inodes of a group.
    pub inodes_per_group: u32,
    /// Number of groups.
    pub group_count: u32,
    /// Bytes of a group descriptor: 32 or 64.
    pub desc_bytes: u16,
    /// Bytes of an inode.
    pub inode_bytes: u16,
    /// The first inode that is not reserved.
    pub first_ino: u32,
    /// Number of blocks reserved for more group descriptors.
    pub reserved_gdt_blocks: u16,
    /// Base-two logarithm of the number of groups in a flex group.
    pub log_groups_per_flex: u8,
    /// The groups with backups, with [`Feature::SPARSE_SUPER2`].
    pub backup_groups: [u32; 2],
    /// Optional parts.
    pub features: Features,
    /// Identity of the volume.
    pub uuid: [u8; 16],
    /// The seed of the checksums of metadata.
    pub seed: u32,
}

impl Geometry {
    /// Whether metadata have a CRC-32C.
    pub fn has_checksums(&self) -> bool {
        self.features.has(Feature::METADATA_CSUM)
    }

    /// All groups.
    pub fn groups(&self) -> impl Iterator<Item = Group> + use<> {
        (0..self.group_count).map(Group)
    }

    /// The first block of a group.
    pub fn group_start(&self, group: Group) -> Addr {
        Addr(u64::from(self.first_data_block) + u64::from(group.0) * u64::from(self.blocks_per_group))
    }

    /// Blocks of a group.
    pub fn group_blocks(&self, group: Group) -> u32 {
        let left = self.blocks_count.saturating_sub(self.group_start(group).0);
        left.min(self.blocks_per_group.into()) as u32
    }

    /// The group of a block, and its bit there; `None` outside of all groups.
    pub fn place_of(&self, addr: Addr) -> Option<(Group, u32)> {
        if addr.0 >= self.blocks_count {
            return None;
        }
        let block = addr.0.checked_sub(self.first_data_block.into())?;
        let per_group = u64::from(self.blocks_per_group);
        Some((Group((block / per_group) as u32), (block % per_group) as u32))
    }

    /// Whether `blocks` blocks from `addr` on are in the volume and are not the first superblock.
    pub fn is_data(&self, addr: Addr, blocks: u64) -> bool {
        let end = addr.0.checked_add(blocks);
        addr.0 > u64::from(self.first_data_block) && end.is_some_and(|end| end <= self.blocks_count)
    }

    /// The block of the port that holds a block, and the offset of the block in it.
    pub fn port_place(&self, addr: Addr) -> (Block, usize) {
        let per_port = BLOCK_BYTES as u64 / u64::from(self.block_bytes);
        (Block(addr.0 / per_port), (addr.0 % per_port) as usize * self.block_bytes as usize)
    }

    /// Number of blocks of group descriptors in each copy.
    pub fn desc_blocks(&self) -> u32 {
        let per_block = self.block_bytes / u32::from(self.desc_bytes);
        self.group_count.div_ceil(per_block)
    }

    /// Number of blocks of a backup: the superblock, the descriptors, and those reserved for more of them.
    pub fn backup_blocks(&self) -> u32 {
        1 + self.desc_blocks() + u32::from(self.reserved_gdt_blocks)
    }

    /// Block and offset of a group's descriptor in the first copy.
    pub fn desc_place(&self, group: Group) -> (Addr, usize) {
        let per_block = self.block_bytes / u32::from(self.desc_bytes);
        let block = u64::from(self.first_data_block) + 1 + u64::from(group.0 / per_block);
        (Addr(block), (group.0 % per_block) as usize * usize::from(self.desc_bytes))
    }

    /// Whether a group begins with a copy of superblock and descriptors. Group 0 has the first.
    pub fn has_backup(&self, group: Group) -> bool {
        if group.0 == 0 {
            return true;
        }
        if self.features.has(Feature::SPARSE_SUPER2) {
            return self.backup_groups.contains(&group.0);
        }
        if !self.features.has(Feature::SPARSE_SUPER) || group.0 == 1 {
            return true;
        }
        let is_power_of = |base: u32| {
            let mut rest = group.0;
            while rest.is_multiple_of(base) {
                rest /= base;
            }
            rest == 1
        };
        group.0 % 2 == 1 && [3, 5, 7].into_iter().any(is_power_of)
    }

    /// Number of blocks at the start of a group that superblock and descriptors take.
    pub fn backup_blocks_of(&self, group: Group) -> u32 {
        if self.has_backup(group) { self.backup_blocks() } else { 0 }
    }

    /// Number of blocks of a group's inode table.
    pub fn inode_table_blocks(&self) -> u32 {
        self.inodes_per_group / (self.block_bytes / u32::from(self.inode_bytes))
    }

    /// The group of an inode and its index there; `None` if there is no such inode.
    pub fn place_of_inode(&self, ino: Ino) -> Option<(Group, u32)> {
        let index = ino.0.checked_sub(1)?;
        (index < self.inodes_count)
            .then(|| (Group(index / self.inodes_per_group), index % self.inodes_per_group))
    }

    /// The inode at an index of a group.
    pub fn ino_at(&self, group: Group, index: u32) -> Ino {
        Ino(group.0 * self.inodes_per_group + index + 1)
    }

    /// Position of an inode in its group's inode table: block and offset.
    pub fn table_place(&self, index: u32) -> (u32, usize) {
        let per_block = self.block_bytes / u32::from(self.inode_bytes);
        (index / per_block, (index % per_block) as usize * usize::from(self.inode_bytes))
    }

    /// Initial value of the CRC-16 of group descriptors.
    pub(super) fn seed16(&self) -> u16 {
        crc16(!0, &self.uuid)
    }

    /// Blocks of the largest file that extents can map: block numbers have 32 bits, and the last number is not used.
    pub const FILE_BLOCKS_MAX: u64 = u32::MAX as u64;
}

#[cfg(test)]
pub(in crate::ext4) mod tests {
    use super::*;

    /// The superblock of a volume of `blocks` blocks of 4 KiB.
    pub(in crate::ext4) fn small(blocks: u64, features: &[Feature]) -> Superblock {
        let features = Features::of(features);
        let groups = blocks.div_ceil(32768) as u32;
        Superblock {
            blocks_count: blocks,
            inodes_count: 1024 * groups,
            log_block_size: 2,
            log_cluster_size: 2,
            blocks_per_group: 32768,
            clusters_per_group: 32768,
            inodes_per_group: 1024,
            first_ino: 11,
            inode_bytes: 256,
            desc_bytes: if features.has(Feature::WIDE) { 64 } else { 0 },
            checksum_type: 1,
            uuid: *b"0123456789abcdef",
            mkfs_time: 0x2_0000_0005,
            features,
            ..Superblock::blank()
        }
    }

    const TODAY: [Feature; 6] = [
        Feature::HAS_JOURNAL,
        Feature::EXTENT,
        Feature::WIDE,
        Feature::FILETYPE,
        Feature::SPARSE_SUPER,
        Feature::METADATA_CSUM,
    ];

    #[test]
    fn a_superblock_there_and_back() {
        let superblock = small(100_000, &TODAY);
        let raw = superblock.encode();
        let read = Superblock::decode(&raw).unwrap();
        assert_eq!(read.encode(), raw);
        assert_eq!((read.mkfs_time, read.blocks_count), (0x2_0000_0005, 100_000));
        let mut broken = raw;
        broken[0x79] ^= 1;
        let error = Superblock::decode(&broken).unwrap_err().to_string();
        assert!(error.starts_with("the ext4 volume is corrupt: the superblock's checksum is "), "{error}");
        let mut other = raw;
        other[0x38] = 0;
        let error = Superblock::decode(&other).unwrap_err().to_string();
        assert!(error.starts_with("not an ext4 volume: the magic number"), "{error}");
    }

    #[test]
    fn features_are_refused_by_name() {
        let error =
            |bits: &[Feature]| Superblock::decode(&small(9000, bits).encode()).unwrap_err().to_string();
        assert_eq!(
            error(&[Feature::META_BG, Feature::ENCRYPT, Feature::BIGALLOC]),
            "this ext4 volume uses the feature meta_bg, encrypt, bigalloc, which is not supported"
        );
        let mut unknown = small(9000, &[]);
        unknown.features.incompat |= 1 << 30;
        let error = Superblock::decode(&unknown.encode()).unwrap_err().to_string();
        assert!(error.contains("Incompat bit 0x40000000"), "{error}");
        let quota = Features::of(&[Feature::QUOTA, Feature::METADATA_CSUM, Feature::INLINE_DATA]);
        assert!(quota.refused().is_empty());
        assert_eq!(quota.unwritable(), ["quota", "inline_data"]);
        assert_eq!(quota.names(), ["inline_data", "quota", "metadata_csum"]);
    }

    #[test]
    fn superblocks_that_contradict_themselves() {
        type Change = fn(&mut Superblock);
        let changes: [(Change, &str); 8] = [
            (|it| it.log_block_size = 9, "s_log_block_size is 9"),
            (|it| it.first_data_block = 1, "s_first_data_block of the superblock is 1"),
            (|it| it.blocks_per_group = 65536, "s_blocks_per_group of the superblock is 65536"),
            (|it| it.inodes_per_group = 12, "whole blocks of inodes"),
            (|it| it.inode_bytes = 384, "expected a power of two"),
            (|it| it.inodes_count = 5, "s_inodes_count is 5, but 4 groups have 4096"),
            (|it| it.blocks_count = 0, "s_blocks_count of the superblock is 0"),
            (|it| it.desc_bytes = 32, "s_desc_size of the superblock is 32"),
        ];
        for (change, expected) in changes {
            let mut superblock = small(100_000, &TODAY);
            change(&mut superblock);
            let error = Superblock::decode(&superblock.encode()).unwrap_err().to_string();
            assert!(error.contains(expected), "{error}");
        }
    }

    #[test]
    fn geometry_of_groups_and_inodes() {
        let geometry = small(100_000, &TODAY).geometry();
        assert_eq!((geometry.group_count, geometry.desc_blocks(), geometry.backup_blocks()), (4, 1, 2));
        assert_eq!((geometry.group_blocks(Group(0)), geometry.group_blocks(Group(3))), (32768, 1696));
        assert_eq!(geometry.place_of(Addr(32768)), Some((Group(1), 0)));
        assert_eq!(geometry.place_of(Addr(100_000)), None);
        assert_eq!(geometry.place_of_inode(Ino(1025)), Some((Group(1), 0)));
        assert_eq!(geometry.ino_at(Group(1), 0), Ino(1025));
        assert_eq!((geometry.place_of_inode(Ino(0)), geometry.place_of_inode(Ino(4097))), (None, None));
        assert_eq!(geometry.table_place(17), (1, 256));
        assert_eq!(geometry.inode_table_blocks(), 64);
        assert_eq!(geometry.desc_place(Group(3)), (Addr(1), 192));
        let backups: Vec<u32> = (0..60).filter(|group| geometry.has_backup(Group(*group))).collect();
        assert_eq!(backups, [0, 1, 3, 5, 7, 9, 25, 27, 49]);
        assert!(geometry.is_data(Addr(1), 99_999) && !geometry.is_data(Addr(1), 100_000));
        assert!(!geometry.is_data(Addr(0), 1) && !geometry.is_data(Addr(u64::MAX), 2));
        let kib = Geometry { block_bytes: 1024, first_data_block: 1, ..geometry };
        assert_eq!(kib.port_place(Addr(7)), (Block(1), 3072));
        assert_eq!(kib.place_of(Addr(0)), None);
    }
}
