//! Group descriptors, and the bitmaps that they point to.

use super::checksum::{crc16, crc32c};
use super::superblock::{Feature, Geometry};
use super::{Addr, Group};
use crate::ext4::error::{Result, corrupt};
use crate::format::{put, set_slot_bit, u16_at, u32_at};

const CHECKSUM_AT: usize = 0x1e;
/// Bytes of the descriptor without the upper halves of its fields.
const SMALL_BYTES: usize = 32;

/// Bits of [`GroupDesc::flags`].
pub mod flags {
    /// The inode table and the bitmap of inodes were never written: all inodes are free.
    pub const INODE_UNINIT: u16 = 0x1;
    /// The bitmap of blocks was never written: all blocks that no metadata take are free.
    pub const BLOCK_UNINIT: u16 = 0x2;
    /// The unused part of the inode table is zeroed.
    pub const INODE_ZEROED: u16 = 0x4;
}

/// The descriptor of a group.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct GroupDesc {
    /// Address of the bitmap of its blocks.
    pub block_bitmap: Addr,
    /// Address of the bitmap of its inodes.
    pub inode_bitmap: Addr,
    /// Address of the first block of its inode table.
    pub inode_table: Addr,
    /// Number of free blocks.
    pub free_blocks: u32,
    /// Number of free inodes.
    pub free_inodes: u32,
    /// Number of directories.
    pub directories: u32,
    /// Bits of [`flags`].
    pub flags: u16,
    /// Number of inodes at the end of the table that were never used.
    pub unused_inodes: u32,
    /// Checksum of the bitmap of blocks; only 16 bits of it in descriptors of 32 bytes.
    pub block_bitmap_checksum: u32,
    /// Checksum of the bitmap of inodes; only 16 bits of it in descriptors of 32 bytes.
    pub inode_bitmap_checksum: u32,
    /// Fields of snapshots, which are kept.
    pub(in crate::ext4) exclude: [u32; 2],
    pub(in crate::ext4) last: u32,
}

fn checksum(geometry: &Geometry, group: Group, raw: &[u8]) -> Option<u16> {
    let number = group.0.to_le_bytes();
    let (front, back) = (&raw[..CHECKSUM_AT], &raw[CHECKSUM_AT + 2..]);
    if geometry.has_checksums() {
        let parts: [&[u8]; 4] = [&number, front, &[0; 2], back];
        Some(parts.into_iter().fold(geometry.seed, crc32c) as u16)
    } else if geometry.features.has(Feature::GDT_CSUM) {
        Some([&number, front, back].into_iter().fold(geometry.seed16(), crc16))
    } else {
        None
    }
}

impl GroupDesc {
    /// Decodes a descriptor of [`Geometry::desc_bytes`] bytes. Errors: the checksum, or addresses outside of the volume.
    pub fn decode(raw: &[u8], group: Group, geometry: &Geometry) -> Result<Self> {
        let raw = &raw[..usize::from(geometry.desc_bytes)];
        if let Some(computed) = checksum(geometry, group, raw) {
            let stored = u16_at(raw, CHECKSUM_AT);
            if stored != computed {
                return corrupt(format!(
                    "the checksum of group {group} is {stored:#06x}, expected {computed:#06x}"
                ));
            }
        }
        let desc = Self::parse(raw);
        desc.check(group, geometry)?;
        Ok(desc)
    }

    /// Decodes a descriptor of 32 or 64 bytes without checks.
    pub fn parse(raw: &[u8]) -> Self {
        let wide = raw.len() > SMALL_BYTES;
        let half = |low, high| {
            u32::from(u16_at(raw, low)) | if wide { u32::from(u16_at(raw, high)) << 16 } else { 0 }
        };
        let word = |low, high| {
            u64::from(u32_at(raw, low)) | if wide { u64::from(u32_at(raw, high)) << 32 } else { 0 }
        };
        Self {
            block_bitmap: Addr(word(0, 0x20)),
            inode_bitmap: Addr(word(4, 0x24)),
            inode_table: Addr(word(8, 0x28)),
            free_blocks: half(0xc, 0x2c),
            free_inodes: half(0xe, 0x2e),
            directories: half(0x10, 0x30),
            flags: u16_at(raw, 0x12),
            unused_inodes: half(0x1c, 0x32),
            block_bitmap_checksum: half(0x18, 0x38),
            inode_bitmap_checksum: half(0x1a, 0x3a),
            exclude: [u32_at(raw, 0x14), if wide { u32_at(raw, 0x34) } else { 0 }],
            last: if wide { u32_at(raw, 0x3c) } else { 0 },
        }
    }

    fn check(&self, group: Group, geometry: &Geometry) -> Result<()> {
        let table = u64::from(geometry.inode_table_blocks());
        for (name, addr, blocks) in [
            ("block bitmap", self.block_bitmap, 1),
            ("inode bitmap", self.inode_bitmap, 1),
            ("inode table", self.inode_table, table),
        ] {
            let flexible = geometry.features.has(Feature::FLEX_BG);
            let start = geometry.group_start(group).0;
            let end = start + u64::from(geometry.group_blocks(group));
            let inside = addr.0 >= start && addr.0.saturating_add(blocks) <= end;
            if !geometry.is_data(addr, blocks) || !(flexible || inside) {
                let place = if flexible { "volume" } else { "group" };
                return corrupt(format!(
                    "the {name} of group {group} is at block {addr}, outside of the {place}"
                ));
            }
        }
        for (name, value, max) in [
            ("free blocks", self.free_blocks, geometry.group_blocks(group)),
            ("free inodes", self.free_inodes, geometry.inodes_per_group),
            ("unused inodes", self.unused_inodes, geometry.inodes_per_group),
            ("directories", self.directories, geometry.inodes_per_group),
        ] {
            if value > max {
                return corrupt(format!("group {group} has {value} {name}, expected at most {max}"));
            }
        }
        Ok(())
    }

    /// Encodes a descriptor of [`Geometry::desc_bytes`] bytes, with its checksum.
    pub fn encode(&self, group: Group, geometry: &Geometry) -> Vec<u8> {
        let mut raw = vec![0; geometry.desc_bytes.into()];
        let wide = raw.len() > SMALL_BYTES;
        for (low, high, addr) in
            [(0, 0x20, self.block_bitmap), (4, 0x24, self.inode_bitmap), (8, 0x28, self.inode_table)]
        {
            put(&mut raw, low, &(addr.0 as u32).to_le_bytes());
            if wide {
                put(&mut raw, high, &((addr.0 >> 32) as u32).to_le_bytes());
            }
        }
        for (low, high, value) in [
            (0xc, 0x2c, self.free_blocks),
            (0xe, 0x2e, self.free_inodes),
            (0x10, 0x30, self.directories),
            (0x1c, 0x32, self.unused_inodes),
            (0x18, 0x38, self.block_bitmap_checksum),
            (0x1a, 0x3a, self.inode_bitmap_checksum),
        ] {
            put(&mut raw, low, &(value as u16).to_le_bytes());
            if wide {
                put(&mut raw, high, &((value >> 16) as u16).to_le_bytes());
            }
        }
        put(&mut raw, 0x12, &self.flags.to_le_bytes());
        put(&mut raw, 0x14, &self.exclude[0].to_le_bytes());
        if wide {
            put(&mut raw, 0x34, &self.exclude[1].to_le_bytes());
            put(&mut raw, 0x3c, &self.last.to_le_bytes());
        }
        if let Some(crc) = checksum(geometry, group, &raw) {
            put(&mut raw, CHECKSUM_AT, &crc.to_le_bytes());
        }
        raw
    }

    /// Whether a bit of [`flags`] is set. Volumes without checksums of groups have none.
    pub fn has(&self, flag: u16, geometry: &Geometry) -> bool {
        geometry.features.has_group_checksums() && self.flags & flag != 0
    }

    /// Sets the checksums of the bitmaps for these contents, if the volume has checksums.
    pub fn set_bitmap_checksums(&mut self, geometry: &Geometry, block_bitmap: &[u8], inode_bitmap: &[u8]) {
        if geometry.has_checksums() {
            self.block_bitmap_checksum = block_bitmap_checksum(geometry, block_bitmap);
            self.inode_bitmap_checksum = inode_bitmap_checksum(geometry, inode_bitmap);
        }
    }

    /// Checks the bitmap of blocks. Errors: its checksum is wrong.
    pub fn check_block_bitmap(&self, group: Group, geometry: &Geometry, bitmap: &[u8]) -> Result<()> {
        let computed = block_bitmap_checksum(geometry, bitmap);
        check_bitmap("block", group, geometry, self.block_bitmap_checksum, computed)
    }

    /// Checks the bitmap of inodes. Errors: its checksum is wrong.
    pub fn check_inode_bitmap(&self, group: Group, geometry: &Geometry, bitmap: &[u8]) -> Result<()> {
        let computed = inode_bitmap_checksum(geometry, bitmap);
        check_bitmap("inode", group, geometry, self.inode_bitmap_checksum, computed)
    }

    /// The bitmap of blocks of a group whose bitmap was never written: the group's own metadata, as far as they lie in it, and the
    /// bits behind its end. Metadata of other groups do not lie in such a group.
    pub fn uninitialised_block_bitmap(&self, group: Group, geometry: &Geometry) -> Vec<u8> {
        let mut bitmap = vec![0; geometry.block_bytes as usize];
        let blocks = geometry.group_blocks(group);
        for bit in 0..geometry.backup_blocks_of(group).min(blocks) {
            set_slot_bit(&mut bitmap, bit as usize, true);
        }
        let table = u64::from(geometry.inode_table_blocks());
        for (addr, count) in [(self.block_bitmap, 1), (self.inode_bitmap, 1), (self.inode_table, table)] {
            for block in addr.0..addr.0.saturating_add(count) {
                if let Some((home, bit)) = geometry.place_of(Addr(block))
                    && home == group
                {
                    set_slot_bit(&mut bitmap, bit as usize, true);
                }
            }
        }
        fill_behind(&mut bitmap, blocks);
        bitmap
    }
}

fn check_bitmap(name: &str, group: Group, geometry: &Geometry, stored: u32, computed: u32) -> Result<()> {
    if !geometry.has_checksums() || stored == computed {
        return Ok(());
    }
    corrupt(format!(
        "the checksum of the {name} bitmap of group {group} is {stored:#x}, expected {computed:#x}"
    ))
}

fn bitmap_checksum(geometry: &Geometry, bitmap: &[u8], bits: u32) -> u32 {
    let crc = crc32c(geometry.seed, &bitmap[..bits as usize / 8]);
    if usize::from(geometry.desc_bytes) > SMALL_BYTES { crc } else { crc & 0xffff }
}

/// The checksum of a bitmap of blocks, as its group's descriptor has it.
pub fn block_bitmap_checksum(geometry: &Geometry, bitmap: &[u8]) -> u32 {
    bitmap_checksum(geometry, bitmap, geometry.blocks_per_group)
}

/// The checksum of a bitmap of inodes, as its group's descriptor has it.
pub fn inode_bitmap_checksum(geometry: &Geometry, bitmap: &[u8]) -> u32 {
    bitmap_checksum(geometry, bitmap, geometry.inodes_per_group)
}

/// The bitmap of inodes of a group without inodes in use: only the bits behind its end are set.
pub fn empty_inode_bitmap(geometry: &Geometry) -> Vec<u8> {
    let mut bitmap = vec![0; geometry.block_bytes as usize];
    fill_behind(&mut bitmap, geometry.inodes_per_group);
    bitmap
}

/// Sets all bits from `end` on: bits to which no block or inode belongs count as taken.
pub fn fill_behind(bitmap: &mut [u8], end: u32) {
    for bit in end as usize..8 * bitmap.len() {
        set_slot_bit(bitmap, bit, true);
    }
}

#[cfg(test)]
mod tests {
    use super::super::superblock::tests::small;
    use super::*;

    /// Descriptor of group 0 of a volume made by mke2fs 1.47 with metadata_csum and the UUID below.
    const REAL: [u8; 64] = [
        0x03, 0x01, 0, 0, 0x0b, 0x01, 0, 0, 0x13, 0x01, 0, 0, 0xe0, 0x0e, 0xf5, 0x07, 0x02, 0, 0x04, 0, 0, 0,
        0, 0, 0x04, 0xcf, 0xa6, 0xcc, 0xf5, 0x07, 0x44, 0x69, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0,
        0, 0, 0, 0, 0, 0, 0, 0, 0x81, 0x9b, 0xbd, 0xad, 0, 0, 0, 0,
    ];
    const REAL_UUID: [u8; 16] = 0x12345678_1234_1234_1234_123456789abc_u128.to_be_bytes();

    fn of_real() -> Geometry {
        let mut superblock = small(65536, &[Feature::WIDE, Feature::FLEX_BG, Feature::METADATA_CSUM]);
        superblock.uuid = REAL_UUID;
        superblock.log_block_size = 0;
        superblock.blocks_per_group = 8192;
        superblock.inodes_per_group = 2048;
        superblock.first_data_block = 1;
        superblock.reserved_gdt_blocks = 256;
        superblock.geometry()
    }

    #[test]
    fn a_descriptor_of_mke2fs() {
        let geometry = of_real();
        let desc = GroupDesc::decode(&REAL, Group(0), &geometry).unwrap();
        assert_eq!(desc.encode(Group(0), &geometry), REAL);
        assert_eq!(desc.inode_table, Addr(275));
        assert_eq!(desc.flags, flags::INODE_ZEROED);
        let error = GroupDesc::decode(&REAL, Group(1), &geometry).unwrap_err().to_string();
        assert!(error.contains("the checksum of group 1 is "), "{error}");
    }

    #[test]
    fn descriptors_of_each_kind_there_and_back() {
        let sets: [&[Feature]; 4] = [
            &[],
            &[Feature::GDT_CSUM, Feature::FLEX_BG],
            &[Feature::METADATA_CSUM, Feature::FLEX_BG],
            &[Feature::GDT_CSUM, Feature::WIDE],
        ];
        for features in sets {
            let geometry = small(100_000, features).geometry();
            let desc = GroupDesc {
                block_bitmap: Addr(32_770),
                inode_bitmap: Addr(32_771),
                inode_table: Addr(32_772),
                free_blocks: 77,
                flags: flags::BLOCK_UNINIT,
                ..GroupDesc::default()
            };
            let raw = desc.encode(Group(1), &geometry);
            assert_eq!(raw.len(), usize::from(geometry.desc_bytes));
            assert_eq!(GroupDesc::decode(&raw, Group(1), &geometry).unwrap(), desc);
            assert_eq!(desc.has(flags::BLOCK_UNINIT, &geometry), !features.is_empty());
            let bitmap = desc.uninitialised_block_bitmap(Group(1), &geometry);
            let taken = bitmap.iter().map(|byte| byte.count_ones()).sum::<u32>();
            assert_eq!(taken, geometry.backup_blocks() + 2 + 64);
            let outside = GroupDesc { inode_table: Addr(99_990), ..desc.clone() };
            let raw = outside.encode(Group(1), &geometry);
            assert!(
                GroupDesc::decode(&raw, Group(1), &geometry).unwrap_err().to_string().contains("outside")
            );
        }
    }

    #[test]
    fn bits_behind_the_end_are_taken() {
        let geometry = small(100_000, &[]).geometry();
        let bitmap = GroupDesc::default().uninitialised_block_bitmap(Group(3), &geometry);
        assert_eq!((bitmap[0], bitmap[1696 / 8 - 1], bitmap[1696 / 8], bitmap[4095]), (3, 0, 0xff, 0xff));
        let inodes = empty_inode_bitmap(&geometry);
        assert_eq!((inodes[127], inodes[128]), (0, 0xff));
    }
}
