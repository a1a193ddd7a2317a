//! Inodes: 128 bytes, and on larger ones extra fields and the room for extended attributes.
//!
//! Invariant: the extra fields of a decoded [`Inode`] end inside of it, at a multiple of four bytes.

use super::checksum::{crc32c, inode_seed};
use super::superblock::{Feature, Geometry};
use super::{Addr, Ino};
use crate::ext4::error::{Result, corrupt};
use crate::format::{Kind, Time, array_at, put, u16_at, u32_at};

/// Bytes of the fields that all inodes have.
pub const BASE_BYTES: usize = 128;
/// Bytes of `i_block`: the root of extents, addresses, a short symbolic link, or inline contents.
pub const BLOCK_ROOM_BYTES: usize = 60;
/// First and last second that an inode of 128 bytes can have as a time.
pub const NARROW_SECONDS: (i64, i64) = (i32::MIN as i64, i32::MAX as i64);
/// The same with extra fields: two bits more.
pub const WIDE_SECONDS: (i64, i64) = (i32::MIN as i64, (1 << 34) - 1 + i32::MIN as i64);
/// Bytes of the extra fields that are known.
pub const EXTRA_BYTES: u16 = 32;
const CHECKSUM_LOW_AT: usize = 0x7c;
const CHECKSUM_HIGH_AT: usize = 0x82;

/// Bits of [`Inode::flags`].
pub mod flags {
    /// Writes are synchronous.
    pub const SYNC: u32 = 0x8;
    /// Nothing may change.
    pub const IMMUTABLE: u32 = 0x10;
    /// Contents may only grow.
    pub const APPEND: u32 = 0x20;
    /// Not part of backups.
    pub const NODUMP: u32 = 0x40;
    /// Reading does not change the time of access.
    pub const NOATIME: u32 = 0x80;
    /// Contents are encrypted.
    pub const ENCRYPT: u32 = 0x800;
    /// The directory has an index.
    pub const INDEX: u32 = 0x1000;
    /// Contents are journalled.
    pub const JOURNAL_DATA: u32 = 0x4000;
    /// Changes of the directory are synchronous.
    pub const DIRSYNC: u32 = 0x1_0000;
    /// The directory is the top of a hierarchy.
    pub const TOPDIR: u32 = 0x2_0000;
    /// [`super::Inode::blocks`] counts blocks of the volume instead of sectors of 512 bytes.
    pub const HUGE_FILE: u32 = 0x4_0000;
    /// Blocks are mapped by extents.
    pub const EXTENTS: u32 = 0x8_0000;
    /// Contents are verified by a tree of hashes.
    pub const VERITY: u32 = 0x10_0000;
    /// It holds the value of an extended attribute.
    pub const EA_INODE: u32 = 0x20_0000;
    /// Contents are in the inode.
    pub const INLINE_DATA: u32 = 0x1000_0000;
    /// Children belong to the same project.
    pub const PROJECT_INHERIT: u32 = 0x2000_0000;
    /// Names may be found in any case.
    pub const CASEFOLD: u32 = 0x4000_0000;
}

/// An inode. Bytes without a field here stay as they were read.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Inode {
    pub(in crate::ext4) raw: Vec<u8>,
    /// Its number.
    pub ino: Ino,
    /// Type and permissions; 0 if it was never used.
    pub mode: u16,
    /// Owning user.
    pub uid: u32,
    /// Owning group.
    pub gid: u32,
    /// Size of the contents in bytes.
    pub size: u64,
    /// Number of names. A directory has 1 if it has too many subdirectories to count.
    pub links: u16,
    /// Space of contents and metadata, in the unit of [`flags::HUGE_FILE`]; see [`Self::sectors`].
    pub blocks: u64,
    /// Bits of [`flags`].
    pub flags: u32,
    /// Last read.
    pub atime: Time,
    /// Last change of the inode.
    pub ctime: Time,
    /// Last change of the contents.
    pub mtime: Time,
    /// Time of creation; `None` if there is no room for it.
    pub crtime: Option<Time>,
    /// Time of deletion, in seconds since 1970; in the list of orphans, the number of the next one.
    pub dtime: u32,
    /// Generation, which changes when the number is used again.
    pub generation: u32,
    /// Version, which changes with the inode.
    pub version: u64,
    /// The block with more extended attributes.
    pub xattr_block: Addr,
    /// Its project.
    pub project: u32,
    /// `i_block`.
    pub block: [u8; BLOCK_ROOM_BYTES],
    /// Number of bytes of extra fields behind the first 128.
    pub extra_bytes: u16,
}

impl Inode {
    /// Returns an inode without contents, links and times, with the extra fields that fit.
    pub fn new(ino: Ino, mode: u16, geometry: &Geometry) -> Self {
        let bytes = usize::from(geometry.inode_bytes);
        let extra = EXTRA_BYTES.min((bytes - BASE_BYTES) as u16);
        Self {
            raw: vec![0; bytes],
            ino,
            mode,
            uid: 0,
            gid: 0,
            size: 0,
            links: 0,
            blocks: 0,
            flags: 0,
            atime: Time::default(),
            ctime: Time::default(),
            mtime: Time::default(),
            crtime: (extra > 0).then(Time::default),
            dtime: 0,
            generation: 0,
            version: 0,
            xattr_block: Addr::NULL,
            project: 0,
            block: [0; BLOCK_ROOM_BYTES],
            extra_bytes: extra,
        }
    }

    /// Decodes an inode of [`Geometry::inode_bytes`] bytes. One that was never used is all zeros and has no checksum. Errors: the
    /// checksum, or extra fields that exceed the inode.
    pub fn decode(raw: &[u8], ino: Ino, geometry: &Geometry) -> Result<Self> {
        let inode = Self::parse(raw, ino, geometry)?;
        if geometry.has_checksums() && raw.iter().any(|&byte| byte != 0) {
            let mask = if inode.has_extra(CHECKSUM_HIGH_AT, 2) { u32::MAX } else { 0xffff };
            let (stored, computed) = (inode.stored_checksum(), inode.checksum(raw, geometry) & mask);
            if stored != computed {
                return corrupt(format!(
                    "the checksum of inode {ino} is {stored:#010x}, expected {computed:#010x}"
                ));
            }
        }
        Ok(inode)
    }

    /// Decodes an inode without checking its checksum.
    pub fn parse(raw: &[u8], ino: Ino, geometry: &Geometry) -> Result<Self> {
        let raw = raw[..usize::from(geometry.inode_bytes)].to_vec();
        let half = |at| u16_at(&raw, at);
        let word = |at| u32_at(&raw, at);
        let mut extra_bytes = 0;
        if raw.len() > BASE_BYTES {
            extra_bytes = half(BASE_BYTES);
            if usize::from(extra_bytes) > raw.len() - BASE_BYTES || !extra_bytes.is_multiple_of(4) {
                return corrupt(format!("inode {ino} has {extra_bytes} bytes of extra fields"));
            }
        }
        let extra = |at: usize| if has_extra(extra_bytes, at, 4) { word(at) } else { 0 };
        let time = |at, extra_at| time_of(word(at), extra(extra_at));
        let flags = word(0x20);
        let huge = geometry.features.has(Feature::HUGE_FILE);
        let wide = geometry.features.has(Feature::WIDE);
        let mode = half(0);
        let size_high = has_size_high(mode, geometry);
        Ok(Self {
            ino,
            mode,
            uid: u32::from(half(2)) | u32::from(half(0x78)) << 16,
            gid: u32::from(half(0x18)) | u32::from(half(0x7a)) << 16,
            size: u64::from(word(4)) | if size_high { u64::from(word(0x6c)) << 32 } else { 0 },
            links: half(0x1a),
            blocks: u64::from(word(0x1c)) | if huge { u64::from(half(0x74)) << 32 } else { 0 },
            flags,
            atime: time(8, 0x8c),
            ctime: time(0xc, 0x84),
            mtime: time(0x10, 0x88),
            crtime: has_extra(extra_bytes, 0x90, 4).then(|| time(0x90, 0x94)),
            dtime: word(0x14),
            generation: word(0x64),
            version: u64::from(word(0x24)) | u64::from(extra(0x98)) << 32,
            xattr_block: Addr(u64::from(word(0x68)) | if wide { u64::from(half(0x76)) << 32 } else { 0 }),
            project: extra(0x9c),
            block: array_at(&raw, 0x28),
            extra_bytes,
            raw,
        })
    }

    /// Encodes the inode, with its checksum if the volume has checksums. Its raw bytes must have the size of the volume's inodes.
    pub fn encode(&self, geometry: &Geometry) -> Vec<u8> {
        let mut raw = self.raw.clone();
        raw.resize(geometry.inode_bytes.into(), 0);
        let upper = |value: u32| (value >> 16) as u16;
        for (at, half) in [
            (0, self.mode),
            (2, self.uid as u16),
            (0x18, self.gid as u16),
            (0x1a, self.links),
            (0x78, upper(self.uid)),
            (0x7a, upper(self.gid)),
        ] {
            put(&mut raw, at, &half.to_le_bytes());
        }
        for (at, word) in [
            (4, self.size as u32),
            (8, self.atime.seconds as u32),
            (0xc, self.ctime.seconds as u32),
            (0x10, self.mtime.seconds as u32),
            (0x14, self.dtime),
            (0x1c, self.blocks as u32),
            (0x20, self.flags),
            (0x24, self.version as u32),
            (0x64, self.generation),
            (0x68, self.xattr_block.0 as u32),
        ] {
            put(&mut raw, at, &word.to_le_bytes());
        }
        if has_size_high(self.mode, geometry) {
            put(&mut raw, 0x6c, &((self.size >> 32) as u32).to_le_bytes());
        }
        if geometry.features.has(Feature::HUGE_FILE) {
            put(&mut raw, 0x74, &((self.blocks >> 32) as u16).to_le_bytes());
        }
        if geometry.features.has(Feature::WIDE) {
            put(&mut raw, 0x76, &((self.xattr_block.0 >> 32) as u16).to_le_bytes());
        }
        put(&mut raw, 0x28, &self.block);
        if raw.len() > BASE_BYTES {
            put(&mut raw, BASE_BYTES, &self.extra_bytes.to_le_bytes());
        }
        let crtime = self.crtime.unwrap_or_default();
        for (at, word) in [
            (0x84, extra_of(self.ctime)),
            (0x88, extra_of(self.mtime)),
            (0x8c, extra_of(self.atime)),
            (0x90, crtime.seconds as u32),
            (0x94, extra_of(crtime)),
            (0x98, (self.version >> 32) as u32),
            (0x9c, self.project),
        ] {
            if self.has_extra(at, 4) {
                put(&mut raw, at, &word.to_le_bytes());
            }
        }
        if geometry.has_checksums() {
            let crc = self.checksum(&raw, geometry);
            put(&mut raw, CHECKSUM_LOW_AT, &(crc as u16).to_le_bytes());
            if self.has_extra(CHECKSUM_HIGH_AT, 2) {
                put(&mut raw, CHECKSUM_HIGH_AT, &upper(crc).to_le_bytes());
            }
        }
        raw
    }

    /// Whether the extra fields include `bytes` bytes at an offset.
    fn has_extra(&self, at: usize, bytes: usize) -> bool {
        has_extra(self.extra_bytes, at, bytes)
    }

    fn stored_checksum(&self) -> u32 {
        let high = if self.has_extra(CHECKSUM_HIGH_AT, 2) { u16_at(&self.raw, CHECKSUM_HIGH_AT) } else { 0 };
        u32::from(u16_at(&self.raw, CHECKSUM_LOW_AT)) | u32::from(high) << 16
    }

    /// The checksum of the inode's bytes, with zeros in place of the checksum.
    fn checksum(&self, raw: &[u8], geometry: &Geometry) -> u32 {
        let seed = self.seed(geometry);
        let raw = &raw[..usize::from(geometry.inode_bytes)];
        let crc = crc32c(crc32c(seed, &raw[..CHECKSUM_LOW_AT]), &[0; 2]);
        if !self.has_extra(CHECKSUM_HIGH_AT, 2) {
            return crc32c(crc, &raw[CHECKSUM_LOW_AT + 2..]);
        }
        let crc = crc32c(crc, &raw[CHECKSUM_LOW_AT + 2..CHECKSUM_HIGH_AT]);
        crc32c(crc32c(crc, &[0; 2]), &raw[CHECKSUM_HIGH_AT + 2..])
    }

    /// The seed of the checksums of its blocks.
    pub fn seed(&self, geometry: &Geometry) -> u32 {
        inode_seed(geometry.seed, self.ino, self.generation)
    }

    /// Kind of the inode; `None` if its mode has no known kind.
    pub fn kind(&self) -> Option<Kind> {
        Kind::of_mode(self.mode)
    }

    /// Whether a bit of [`flags`] is set.
    pub fn has(&self, flag: u32) -> bool {
        self.flags & flag != 0
    }

    /// Space of its contents and metadata, in sectors of 512 bytes.
    pub fn sectors(&self, geometry: &Geometry) -> u64 {
        let counts_blocks = geometry.features.has(Feature::HUGE_FILE) && self.has(flags::HUGE_FILE);
        if counts_blocks { self.blocks * u64::from(geometry.block_bytes / 512) } else { self.blocks }
    }

    /// Sets the space of contents and metadata, in sectors of 512 bytes, which must be whole blocks. If 48 bits cannot hold the
    /// number, blocks are counted.
    pub fn set_sectors(&mut self, sectors: u64, geometry: &Geometry) {
        if sectors < 1 << 48 || !geometry.features.has(Feature::HUGE_FILE) {
            self.blocks = sectors;
            self.flags &= !flags::HUGE_FILE;
        } else {
            self.blocks = sectors / u64::from(geometry.block_bytes / 512);
            self.flags |= flags::HUGE_FILE;
        }
    }

    /// A word of `i_block`.
    pub fn word(&self, index: usize) -> u32 {
        u32_at(&self.block, 4 * index)
    }

    /// What the superblock keeps of the journal's inode: the words of `i_block`, and the size.
    pub fn journal_copy(&self) -> [u32; 17] {
        std::array::from_fn(|index| match index {
            15 => (self.size >> 32) as u32,
            16 => self.size as u32,
            _ => self.word(index),
        })
    }

    /// Changes a word of `i_block`.
    pub fn set_word(&mut self, index: usize, value: u32) {
        put(&mut self.block, 4 * index, &value.to_le_bytes());
    }

    /// Major and minor number of a device: in Linux's old encoding in the first word, or in the new one in the second.
    pub fn device(&self) -> (u32, u32) {
        let (old, new) = (self.word(0), self.word(1));
        if old != 0 {
            (old >> 8 & 0xff, old & 0xff)
        } else {
            (new >> 8 & 0xfff, new & 0xff | new >> 12 & 0xf_ff00)
        }
    }

    /// Sets the numbers of a device.
    pub fn set_device(&mut self, major: u32, minor: u32) {
        if major < 256 && minor < 256 {
            self.set_word(0, major << 8 | minor);
            self.set_word(1, 0);
        } else {
            self.set_word(0, 0);
            self.set_word(1, minor & 0xff | (major & 0xfff) << 8 | (minor & 0xf_ff00) << 12);
        }
    }

    /// Whether the target of a symbolic link is in `i_block`.
    pub fn is_fast_link(&self) -> bool {
        let inline = self.has(flags::EXTENTS | flags::INLINE_DATA);
        self.kind() == Some(Kind::Symlink) && !inline && self.size < BLOCK_ROOM_BYTES as u64
    }

    /// The room for extended attributes behind the extra fields; empty in small inodes.
    pub fn xattr_room(&self) -> &[u8] {
        &self.raw[self.xattr_at()..]
    }

    /// The room for extended attributes behind the extra fields.
    pub fn xattr_room_mut(&mut self) -> &mut [u8] {
        let at = self.xattr_at();
        &mut self.raw[at..]
    }

    fn xattr_at(&self) -> usize {
        // An inode whose extra fields were never set has no such room: its bytes there have no meaning.
        match self.extra_bytes {
            0 => self.raw.len(),
            extra => BASE_BYTES + usize::from(extra),
        }
    }
}

fn has_extra(extra_bytes: u16, at: usize, bytes: usize) -> bool {
    at + bytes <= BASE_BYTES + usize::from(extra_bytes)
}

/// Whether the upper half of the size is used: directories of old volumes have another field there.
fn has_size_high(mode: u16, geometry: &Geometry) -> bool {
    Kind::of_mode(mode) == Some(Kind::Regular) || geometry.features.has(Feature::LARGEDIR)
}

/// Decodes a time from a word of seconds, and a word with two more bits of seconds and with nanoseconds.
fn time_of(seconds: u32, extra: u32) -> Time {
    let epoch = i64::from(extra & 3) << 32;
    Time { seconds: i64::from(seconds as i32) + epoch, nanos: extra >> 2 }
}

fn extra_of(time: Time) -> u32 {
    let epoch = (time.seconds - i64::from(time.seconds as i32)) >> 32;
    time.nanos << 2 | (epoch & 3) as u32
}

#[cfg(test)]
mod tests {
    use super::super::superblock::tests::small;
    use super::*;

    #[test]
    fn an_inode_there_and_back() {
        let all = [Feature::METADATA_CSUM, Feature::HUGE_FILE, Feature::WIDE];
        for (features, bytes) in [(&all[..], 256), (&all, 128), (&[], 256), (&[], 128), (&all, 512)] {
            let mut superblock = small(100_000, features);
            superblock.inode_bytes = bytes;
            let geometry = superblock.geometry();
            let mut inode = Inode::new(Ino(12), 0o100_644, &geometry);
            (inode.uid, inode.gid, inode.size, inode.links) = (70_000, 5, 1 << 40, 3);
            inode.mtime = Time { seconds: 1_700_000_000, nanos: 0 };
            inode.set_word(14, 0xdead_beef);
            inode.set_sectors(80, &geometry);
            if bytes > 128 {
                inode.crtime = Some(Time { seconds: 5_000_000_000, nanos: 999_999_999 });
                inode.atime = Time { seconds: -7, nanos: 5 };
                inode.xattr_room_mut()[0] = 7;
                assert_eq!(inode.xattr_room().len(), usize::from(bytes) - 160);
            }
            let raw = inode.encode(&geometry);
            let read = Inode::decode(&raw, Ino(12), &geometry).unwrap();
            assert_eq!(read.encode(&geometry), raw);
            assert_eq!((read.crtime, read.atime, read.uid), (inode.crtime, inode.atime, 70_000));
            assert_eq!((read.size, read.sectors(&geometry), read.word(14)), (1 << 40, 80, 0xdead_beef));
            if geometry.has_checksums() {
                let error = Inode::decode(&raw, Ino(13), &geometry).unwrap_err().to_string();
                assert!(error.contains("the checksum of inode 13 is "), "{error}");
            }
        }
    }

    /// The root directory of a volume made by mke2fs 1.47 with metadata_csum and the UUID below.
    #[test]
    fn an_inode_of_mke2fs() {
        let front: [u8; 160] = [
            0xed, 0x41, 0, 0, 0, 0x04, 0, 0, 0x71, 0x80, 0x02, 0x6b, 0x71, 0x80, 0x02, 0x6b, 0x71, 0x80,
            0x02, 0x6b, 0, 0, 0, 0, 0, 0, 0x03, 0, 0x02, 0, 0, 0, 0, 0, 0x08, 0, 0, 0, 0, 0, 0x0a, 0xf3,
            0x01, 0, 0x04, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0x01, 0, 0, 0, 0x13, 0x11, 0, 0, 0, 0, 0, 0, 0,
            0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0,
            0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0xac, 0x52, 0, 0, 0x20, 0,
            0xfc, 0xde, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0x71, 0x80, 0x02, 0x6b, 0, 0, 0, 0, 0, 0, 0, 0,
            0, 0, 0, 0,
        ];
        let mut raw = front.to_vec();
        raw.resize(256, 0);
        let mut superblock = small(65536, &[Feature::WIDE, Feature::METADATA_CSUM, Feature::HUGE_FILE]);
        superblock.uuid = 0x12345678_1234_1234_1234_123456789abc_u128.to_be_bytes();
        let geometry = superblock.geometry();
        let inode = Inode::decode(&raw, Ino::ROOT, &geometry).unwrap();
        assert_eq!(inode.encode(&geometry), raw);
        assert_eq!((inode.mode, inode.links, inode.size), (0o040_755, 3, 1024));
        assert_eq!((inode.flags, inode.sectors(&geometry)), (flags::EXTENTS, 2));
        let root = super::super::extent::Node::decode_root(&inode.block, &geometry).unwrap();
        assert_eq!((root.depth, root.max, root.len()), (0, 4, 1));
    }

    #[test]
    fn unused_and_broken_inodes() {
        let geometry = small(100_000, &[Feature::METADATA_CSUM]).geometry();
        assert_eq!(Inode::decode(&[0; 256], Ino(12), &geometry).unwrap().kind(), None);
        for extra in [130_u16, 2] {
            let mut raw = [0; 256];
            put(&mut raw, 128, &extra.to_le_bytes());
            let error = Inode::decode(&raw, Ino(12), &geometry).unwrap_err().to_string();
            assert!(error.contains("bytes of extra fields"), "{error}");
        }
    }

    #[test]
    fn times_have_34_bits_of_seconds() {
        for seconds in [-(1 << 31), -1, 0, (1 << 31) - 1, 1 << 31, 1 << 32, (3 << 32) + (1 << 31) - 1] {
            let time = Time { seconds, nanos: 3 };
            assert_eq!(time_of(seconds as u32, extra_of(time)), time);
        }
    }

    #[test]
    fn devices_and_large_counts() {
        let geometry = small(100_000, &[Feature::HUGE_FILE]).geometry();
        let mut inode = Inode::new(Ino(12), 0o020_600, &geometry);
        for numbers in [(4, 64), (259, 70_000)] {
            inode.set_device(numbers.0, numbers.1);
            assert_eq!(inode.device(), numbers);
        }
        inode.set_sectors(1 << 49, &geometry);
        assert_eq!((inode.blocks, inode.sectors(&geometry)), (1 << 46, 1 << 49));
    }
}
