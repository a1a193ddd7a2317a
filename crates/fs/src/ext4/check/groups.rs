//! Groups: copies of superblock and descriptors, bitmaps and counts.

use super::super::error::Result;
use super::super::layout::group::{self, GroupDesc};
use super::super::layout::inode::Inode;
use super::super::layout::superblock::{BYTES, Feature, Superblock};
use super::super::layout::{Addr, Geometry, Group, Ino};
use super::Checker;
use crate::format::{Kind, array_at, slot_bit, u32_at, unless_port};

/// Fields that must be the same in all copies of the superblock. Features, counts and times are newer in the first one.
fn shape(geometry: &Geometry) -> [u64; 8] {
    [
        geometry.blocks_count,
        geometry.inodes_count.into(),
        geometry.block_bytes.into(),
        geometry.blocks_per_group.into(),
        geometry.inodes_per_group.into(),
        geometry.inode_bytes.into(),
        geometry.desc_bytes.into(),
        geometry.first_data_block.into(),
    ]
}

impl Checker {
    /// Checks the copies of the superblock and of the descriptors, which must give the same places as the first ones.
    pub(super) async fn copies(&mut self) -> Result<()> {
        let geometry = self.geometry;
        let desc_blocks = u64::from(geometry.desc_blocks());
        let desc_bytes = usize::from(geometry.desc_bytes);
        for group in geometry.groups().skip(1).filter(|group| geometry.has_backup(*group)) {
            let start = geometry.group_start(group);
            if u64::from(geometry.group_blocks(group)) < 1 + desc_blocks {
                continue;
            }
            let block = self.volume.block(start).await?;
            match unless_port(Superblock::decode(&array_at::<BYTES>(&block, 0)))? {
                Ok(copy) if copy.uuid == geometry.uuid && shape(&copy.geometry()) == shape(&geometry) => (),
                Ok(_) => {
                    self.problem(
                        "superblock-copy",
                        format!("the copy in group {group} is of another volume"),
                    );
                    continue;
                }
                Err(what) => {
                    self.problem("superblock-copy", format!("the copy in group {group}: {what}"));
                    continue;
                }
            }
            let mut of = 0..geometry.group_count;
            'copy: for index in 0..desc_blocks {
                let block = self.volume.block(Addr(start.0 + 1 + index)).await?;
                for (raw, of) in block.chunks_exact(desc_bytes).zip(of.by_ref().map(Group)) {
                    let first = &self.volume.groups()[of.0 as usize];
                    let places = |desc: &GroupDesc| (desc.block_bitmap, desc.inode_bitmap, desc.inode_table);
                    let what = match unless_port(GroupDesc::decode(raw, of, &geometry))? {
                        Ok(copy) if places(&copy) == places(first) => continue,
                        Ok(_) => format!("group {of} is elsewhere in it"),
                        Err(what) => what,
                    };
                    self.problem("group-copy", format!("the copy of descriptors in group {group}: {what}"));
                    break 'copy;
                }
            }
        }
        Ok(())
    }

    /// Marks the blocks of all superblocks, descriptors, bitmaps and inode tables as taken.
    pub(super) fn tables(&mut self) {
        let geometry = self.geometry;
        for group in geometry.groups() {
            let blocks = geometry.backup_blocks_of(group).min(geometry.group_blocks(group));
            let owner = format!("the descriptors of group {group}");
            self.take(geometry.group_start(group), blocks.into(), &owner);
        }
        let table = u64::from(geometry.inode_table_blocks());
        for group in geometry.groups() {
            let desc = self.volume.groups()[group.0 as usize].clone();
            for (name, addr, blocks) in [
                ("the block bitmap", desc.block_bitmap, 1),
                ("the inode bitmap", desc.inode_bitmap, 1),
                ("the inode table", desc.inode_table, table),
            ] {
                // A place outside of the group was reported with the descriptor.
                if !geometry.is_data(addr, blocks)
                    || !self.take(addr, blocks, &format!("{name} of group {group}"))
                {
                    self.lost_tables.insert(group);
                }
            }
        }
    }

    /// Checks the inode of the blocks that are reserved for more descriptors: it lists those of group 0, each of which lists the
    /// blocks at the same place in the other groups.
    pub(super) async fn resize_inode(&mut self, inode: &Inode) -> Result<()> {
        let geometry = self.geometry;
        if !geometry.features.has(Feature::RESIZE_INODE) {
            return Ok(());
        }
        let list = Addr(inode.word(13).into());
        let others = (0..15).filter(|&index| index != 13).any(|index| inode.word(index) != 0);
        if others || !geometry.is_data(list, 1) {
            self.problem("resize", format!("inode 7 has its list at block {list}, or more than a list"));
            return Ok(());
        }
        if !self.take(list, 1, &"inode 7") {
            return Ok(());
        }
        let per_block = geometry.block_bytes / 4;
        let first = u64::from(geometry.first_data_block) + 1 + u64::from(geometry.desc_blocks());
        let reserved = u32::from(geometry.reserved_gdt_blocks);
        let copies: Vec<u64> = geometry
            .groups()
            .skip(1)
            .filter(|group| geometry.has_backup(*group))
            .map(|group| u64::from(group.0) * u64::from(geometry.blocks_per_group))
            .collect();
        let mut listed = vec![0; per_block as usize];
        for index in 0..reserved.min(per_block) {
            listed[((geometry.desc_blocks() + index) % per_block) as usize] = first + u64::from(index);
        }
        let mut wrong = self.is_other_list(list, &listed).await?.then_some(list);
        for addr in (first..first + u64::from(reserved)).map(Addr) {
            let places: Vec<u64> = copies.iter().map(|copy| copy + addr.0).collect();
            if wrong.is_none() && self.is_other_list(addr, &places).await? {
                wrong = Some(addr);
            }
        }
        if let Some(addr) = wrong {
            self.problem(
                "resize",
                format!("block {addr} of inode 7 lists other blocks than those that are kept"),
            );
        }
        let blocks = 1 + u64::from(reserved) * (1 + copies.len() as u64);
        let (sectors, says) = (blocks * u64::from(geometry.block_bytes / 512), inode.sectors(&geometry));
        if sectors != says {
            self.problem("inode-blocks", format!("inode 7 counts {says} sectors, found {sectors}"));
        }
        Ok(())
    }

    /// Whether a block lists other addresses than these.
    async fn is_other_list(&self, addr: Addr, expected: &[u64]) -> Result<bool> {
        let block = self.volume.block(addr).await?;
        let listed = block.chunks_exact(4).map(|word| u64::from(u32_at(word, 0)));
        Ok(!listed.eq(expected.iter().copied().chain(std::iter::repeat(0)).take(block.len() / 4)))
    }

    /// Checks bitmaps and counts of all groups, and the counts of the superblock.
    pub(super) async fn groups(&mut self) -> Result<()> {
        let geometry = self.geometry;
        let (mut free_blocks, mut free_inodes) = (0, 0);
        for group in geometry.groups() {
            let blocks = geometry.group_blocks(group);
            let free = (0..blocks).filter(|&bit| !self.blocks.has(group, bit)).count() as u32;
            let first = geometry.ino_at(group, 0);
            let last = geometry.ino_at(group, geometry.inodes_per_group - 1);
            let reserved = (first.0..=last.0).take_while(|&ino| ino < geometry.first_ino).map(Ino);
            let reserved = reserved.filter(|ino| !self.inodes.contains_key(ino)).count() as u32;
            let (mut used, mut directories) = (reserved, 0);
            for (_, found) in self.inodes.range(first..=last) {
                used += 1;
                directories += u32::from(found.kind == Some(Kind::Directory));
            }
            self.block_bitmap(group).await?;
            self.inode_bitmap(group).await?;
            let desc = &self.volume.groups()[group.0 as usize];
            let counts = [
                ("free blocks", desc.free_blocks, free),
                ("free inodes", desc.free_inodes, geometry.inodes_per_group - used),
                ("directories", desc.directories, directories),
            ];
            for (name, says, found) in counts {
                if says != found {
                    self.problem("group-count", format!("group {group} counts {says} {name}, found {found}"));
                }
            }
            free_blocks += u64::from(free);
            free_inodes += geometry.inodes_per_group - used;
        }
        let taken = geometry.blocks_count - u64::from(geometry.first_data_block) - free_blocks;
        self.report.free_blocks = free_blocks;
        self.report.metadata_blocks = taken.saturating_sub(self.report.data_blocks);
        // Linux does not update these counts while a volume is mounted.
        if self.report.is_clean {
            let superblock = self.volume.superblock();
            let counts = [
                ("free blocks", superblock.free_blocks, free_blocks),
                ("free inodes", superblock.free_inodes.into(), free_inodes.into()),
            ];
            for (name, says, found) in counts {
                if says != found {
                    self.problem(
                        "superblock-count",
                        format!("the superblock counts {says} {name}, found {found}"),
                    );
                }
            }
        }
        Ok(())
    }

    async fn block_bitmap(&mut self, group: Group) -> Result<()> {
        let geometry = self.geometry;
        let desc = self.volume.groups()[group.0 as usize].clone();
        let bitmap = if desc.has(group::flags::BLOCK_UNINIT, &geometry) {
            desc.uninitialised_block_bitmap(group, &geometry)
        } else if geometry.is_data(desc.block_bitmap, 1) {
            let bitmap = self.volume.block(desc.block_bitmap).await?.to_vec();
            if let Err(what) = unless_port(desc.check_block_bitmap(group, &geometry, &bitmap))? {
                self.problem("block-bitmap", what);
            }
            bitmap
        } else {
            return Ok(());
        };
        let blocks = geometry.group_blocks(group);
        let wrong: Vec<u32> = (0..blocks)
            .filter(|&bit| slot_bit(&bitmap, bit as usize) != self.blocks.has(group, bit))
            .collect();
        if let Some(&first) = wrong.first() {
            let (name, what) = match slot_bit(&bitmap, first as usize) {
                true => ("block-unused", "taken, which nothing refers to"),
                false => ("block-missing", "free, which is in use"),
            };
            let (addr, more) = (geometry.group_start(group).0 + u64::from(first), wrong.len() - 1);
            self.problem(
                name,
                format!("the bitmap of group {group} calls block {addr} {what}; {more} more of its blocks are wrong"),
            );
        }
        self.behind("block-bitmap", group, &bitmap, blocks);
        Ok(())
    }

    /// Checks that the bits behind the last block or inode are set.
    fn behind(&mut self, name: &'static str, group: Group, bitmap: &[u8], end: u32) {
        if let Some(bit) = (end as usize..8 * bitmap.len()).find(|&bit| !slot_bit(bitmap, bit)) {
            self.problem(name, format!("bit {bit} of group {group} is free, behind its end at {end}"));
        }
    }

    async fn inode_bitmap(&mut self, group: Group) -> Result<()> {
        let geometry = self.geometry;
        let desc = self.volume.groups()[group.0 as usize].clone();
        let bitmap = if desc.has(group::flags::INODE_UNINIT, &geometry) {
            group::empty_inode_bitmap(&geometry)
        } else if geometry.is_data(desc.inode_bitmap, 1) {
            let bitmap = self.volume.block(desc.inode_bitmap).await?.to_vec();
            if let Err(what) = unless_port(desc.check_inode_bitmap(group, &geometry, &bitmap))? {
                self.problem("inode-bitmap", what);
            }
            bitmap
        } else {
            return Ok(());
        };
        let is_used = |index: u32| {
            let ino = geometry.ino_at(group, index);
            ino.0 < geometry.first_ino || self.inodes.contains_key(&ino)
        };
        let wrong: Vec<u32> = (0..geometry.inodes_per_group)
            .filter(|&index| slot_bit(&bitmap, index as usize) != is_used(index))
            .collect();
        if let Some(&first) = wrong.first() {
            let (name, what) = match slot_bit(&bitmap, first as usize) {
                true => ("inode-unused", "taken, which is not in use"),
                false => ("inode-missing", "free, which is in use"),
            };
            let (ino, more) = (geometry.ino_at(group, first), wrong.len() - 1);
            self.problem(
                name,
                format!("the bitmap of group {group} calls inode {ino} {what}; {more} more of its inodes are wrong"),
            );
        }
        self.behind("inode-bitmap", group, &bitmap, geometry.inodes_per_group);
        Ok(())
    }
}
