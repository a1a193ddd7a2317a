//! A mounted volume: superblock, groups, and what the journal has in a newer version than the disk.
//!
//! Mounting is a table of steps: superblock, the journal's inode, the log, then superblock and group descriptors as they
//! are with what the log holds. Nothing is written: blocks of the log lie over those of the disk.
//!
//! Deliberately absent: writing, and a cache; a caller that reads a file keeps its inode.

use super::error::{Error, Named, Result, corrupt};
use super::layout::checksum::crc32c;
use super::layout::group::{self, GroupDesc};
use super::layout::inode::Inode;
use super::layout::journal::JournalSuperblock;
use super::layout::superblock::{self, Feature, Geometry, Superblock};
use super::layout::{Addr, Group, Ino};
use super::replay::{Recovery, Replayed, refuse_fast_commits};
use crate::format::{Kind, Problem, array_at, u32_at, unless_port};
use crate::port::{BLOCK_BYTES, Block, BlockPort, bytes_of};
use std::collections::{BTreeMap, BTreeSet};
use std::rc::Rc;
use std::sync::Arc;

/// Most blocks of the port that one call reads.
const READ_BLOCKS: u64 = 256;
/// Magic number in the last word but one of a block of the orphan file.
const ORPHAN_MAGIC: u32 = 0x0b10_ca04;

/// A mounted volume.
#[derive(Debug)]
pub struct Volume {
    port: Rc<dyn BlockPort>,
    superblock: Superblock,
    geometry: Geometry,
    groups: Vec<GroupDesc>,
    journal: Option<Journal>,
    needs_recovery: bool,
    trusts_old_commits: bool,
}

/// The journal of a volume.
#[derive(Clone, Debug)]
pub struct Journal {
    /// Its inode.
    pub inode: Inode,
    /// Its superblock as on the disk.
    pub superblock: JournalSuperblock,
    /// Contents of its log; empty if the volume says that it needs no replay.
    pub replayed: Replayed,
}

/// Reads the superblock of a port.
pub(super) async fn superblock_of(port: &dyn BlockPort) -> Result<Superblock> {
    let bytes = port.capacity_blocks().saturating_mul(BLOCK_BYTES as u64);
    if bytes < 2 * superblock::BYTES as u64 {
        return Err(Error::Absent(Named, format!("the disk has {bytes} bytes")));
    }
    let answer = port.read(Block(0), 1).completed().await?;
    let superblock = Superblock::decode(&array_at(&bytes_of(&answer[0]), superblock::BYTES))?;
    let geometry = superblock.geometry();
    if geometry.blocks_count > bytes / u64::from(geometry.block_bytes) {
        let needs = geometry.blocks_count * u64::from(geometry.block_bytes);
        return corrupt(format!("the volume has {needs} bytes, its disk {bytes}"));
    }
    Ok(superblock)
}

impl Volume {
    /// Returns a volume of which only the superblock was read.
    async fn with_superblock(port: Rc<dyn BlockPort>) -> Result<Self> {
        let superblock = superblock_of(&*port).await?;
        let geometry = superblock.geometry();
        let needs_recovery = superblock.features.has(Feature::RECOVER);
        let (groups, journal) = (Vec::new(), None);
        Ok(Self { port, superblock, geometry, groups, journal, needs_recovery, trusts_old_commits: false })
    }

    /// Mounts a volume for reading. Errors: there is no volume, it is corrupt, or it has an unsupported feature.
    pub async fn mount(port: Rc<dyn BlockPort>) -> Result<Self> {
        Self::mount_trusting(port, false).await
    }

    /// Does the same, with a bug that tests have to find if `trusts_old_commits`: see [`Recovery::trusts_old_commits`].
    pub(super) async fn mount_trusting(port: Rc<dyn BlockPort>, trusts_old_commits: bool) -> Result<Self> {
        let mut volume = Self::with_superblock(port).await?;
        volume.trusts_old_commits = trusts_old_commits;
        volume.load_journal().await?;
        volume.load_superblock().await?;
        volume.load_groups().await?;
        Ok(volume)
    }

    /// Does the same for a check, which reports everything that is broken: a broken journal or group becomes a problem of its kind;
    /// the volume is then opened without the log, or with the group's broken descriptor. Errors: there is no volume.
    pub(super) async fn open_broken(port: Rc<dyn BlockPort>) -> Result<(Self, Vec<Problem>)> {
        let mut volume = Self::with_superblock(port).await?;
        let mut problems = Vec::new();
        if let Err(what) = unless_port(volume.load_journal().await)? {
            problems.push(Problem { name: "journal", what });
        }
        if let Err(what) = unless_port(volume.load_superblock().await)? {
            problems.push(Problem { name: "journal", what });
            volume.journal = None;
        }
        let geometry = volume.geometry;
        for group in geometry.groups() {
            let (addr, at) = geometry.desc_place(group);
            let block = volume.block(addr).await?;
            let raw = &block[at..at + usize::from(geometry.desc_bytes)];
            let desc = match unless_port(GroupDesc::decode(raw, group, &geometry))? {
                Ok(desc) => desc,
                Err(what) => {
                    problems.push(Problem { name: "group", what });
                    GroupDesc::parse(raw)
                }
            };
            volume.groups.push(desc);
        }
        Ok((volume, problems))
    }

    /// Reads the journal's superblock, and its log if it has to be replayed.
    async fn load_journal(&mut self) -> Result<()> {
        if !self.superblock.features.has(Feature::HAS_JOURNAL) {
            return match self.needs_recovery {
                true => corrupt("the journal has to be replayed, and there is none"),
                false => Ok(()),
            };
        }
        if self.superblock.journal_ino == Ino(0) {
            return Err(Error::Refused("a journal on another disk".into()));
        }
        let inode = self.journal_inode().await?;
        let superblock = self.journal_superblock(&inode).await?;
        let replayed = match self.needs_recovery && superblock.start != 0 {
            true => self.replay(&inode, &superblock).await?,
            false => Replayed { next_sequence: superblock.sequence, ..Replayed::default() },
        };
        self.journal = Some(Journal { inode, superblock, replayed });
        Ok(())
    }

    /// The inode of the journal. Its group's descriptor may be half written, but the address of the inode table never changes.
    async fn journal_inode(&self) -> Result<Inode> {
        let ino = self.superblock.journal_ino;
        let Some((group, index)) = self.geometry.place_of_inode(ino) else {
            return corrupt(format!("the journal is inode {ino} of {}", self.geometry.inodes_count));
        };
        let (addr, at) = self.geometry.desc_place(group);
        let block = self.block(addr).await?;
        let desc = GroupDesc::parse(&block[at..at + usize::from(self.geometry.desc_bytes)]);
        let inode = self.inode_in(desc.inode_table, ino, index).await?;
        if inode.kind() != Some(Kind::Regular) || inode.links == 0 {
            return corrupt(format!("inode {ino} of the journal is no file"));
        }
        Ok(inode)
    }

    async fn journal_superblock(&self, inode: &Inode) -> Result<JournalSuperblock> {
        let superblock = JournalSuperblock::decode(&self.journal_block(inode, 0).await?)?;
        let (bytes, expected) = (superblock.block_bytes, self.geometry.block_bytes);
        if bytes != expected {
            return corrupt(format!("the journal has blocks of {bytes} bytes, the volume of {expected}"));
        }
        let blocks = inode.size / u64::from(expected);
        if u64::from(superblock.blocks) > blocks {
            return corrupt(format!("the journal has {} blocks, its inode {blocks}", superblock.blocks));
        }
        Ok(superblock)
    }

    /// Reads a block of the journal.
    async fn journal_block(&self, inode: &Inode, index: u32) -> Result<Arc<[u8]>> {
        let run = self.run(inode, index.into()).await?;
        match run.addr {
            Some(addr) => self.block(addr).await,
            None => corrupt(format!("block {index} of the journal is a hole")),
        }
    }

    async fn replay(&self, inode: &Inode, superblock: &JournalSuperblock) -> Result<Replayed> {
        let end = superblock.log_end();
        let mut recovery = Recovery::new(superblock, &self.geometry);
        recovery.trusts_old_commits = self.trusts_old_commits;
        let mut at = superblock.start;
        'log: loop {
            let run = self.run(inode, at.into()).await?;
            let Some(addr) = run.addr else {
                return corrupt(format!("block {at} of the journal is a hole"));
            };
            let count = run.blocks.min(u64::from(end - at)).min(READ_BLOCKS);
            for block in self.blocks(addr, count).await? {
                if !recovery.take(&block)? {
                    break 'log;
                }
            }
            at += count as u32;
            if at == end {
                at = superblock.first;
            }
        }
        if let Some(start) = superblock.fast_commit_start() {
            refuse_fast_commits(&self.journal_block(inode, start).await?, recovery.sequence())?;
        }
        Ok(recovery.finish())
    }

    /// Reads the superblock in the log, which must not change the layout.
    async fn load_superblock(&mut self) -> Result<()> {
        if self.overlay().is_empty() {
            return Ok(());
        }
        let first = Addr(superblock::BYTES as u64 / u64::from(self.geometry.block_bytes));
        let block = self.block(first).await?;
        let at = superblock::BYTES % self.geometry.block_bytes as usize;
        let superblock = Superblock::decode(&array_at(&block, at))?;
        let geometry = superblock.geometry();
        let plain = |mut geometry: Geometry| {
            geometry.features = superblock.features;
            geometry
        };
        if geometry != plain(self.geometry) {
            return Err(Error::Refused("a log that changes the size of the volume".into()));
        }
        (self.superblock, self.geometry) = (superblock, geometry);
        Ok(())
    }

    async fn load_groups(&mut self) -> Result<()> {
        let bytes = usize::from(self.geometry.desc_bytes);
        let per_block = self.geometry.block_bytes as usize / bytes;
        let first = self.geometry.desc_place(Group(0)).0;
        let mut groups = Vec::with_capacity(self.geometry.group_count as usize);
        for index in 0..u64::from(self.geometry.desc_blocks()) {
            let block = self.block(Addr(first.0 + index)).await?;
            let left = self.geometry.group_count as usize - groups.len();
            for raw in block.chunks_exact(bytes).take(per_block.min(left)) {
                groups.push(GroupDesc::decode(raw, Group(groups.len() as u32), &self.geometry)?);
            }
        }
        self.groups = groups;
        Ok(())
    }

    /// The superblock, with the changes of the log.
    pub fn superblock(&self) -> &Superblock {
        &self.superblock
    }

    /// Layout of the volume.
    pub fn geometry(&self) -> &Geometry {
        &self.geometry
    }

    /// The descriptors of all groups.
    pub fn groups(&self) -> &[GroupDesc] {
        &self.groups
    }

    /// The journal, if there is one.
    pub fn journal(&self) -> Option<&Journal> {
        self.journal.as_ref()
    }

    /// Whether the disk says that the log has to be replayed.
    pub fn needs_recovery(&self) -> bool {
        self.needs_recovery
    }

    /// Blocks that the log has in a newer version than the disk.
    pub fn overlay(&self) -> &BTreeMap<Addr, Arc<[u8]>> {
        static EMPTY: BTreeMap<Addr, Arc<[u8]>> = BTreeMap::new();
        self.journal.as_ref().map_or(&EMPTY, |journal| &journal.replayed.blocks)
    }

    /// Whether the volume was unmounted, so that there is nothing to replay and no orphan.
    pub fn is_clean(&self) -> bool {
        let features = self.superblock.features;
        let orphans = self.superblock.last_orphan != Ino(0) || features.has(Feature::ORPHAN_PRESENT);
        !self.needs_recovery && !orphans && self.superblock.state & superblock::state::VALID != 0
    }

    /// The port.
    pub fn port(&self) -> &Rc<dyn BlockPort> {
        &self.port
    }

    /// Reads a block of the volume.
    pub async fn block(&self, addr: Addr) -> Result<Arc<[u8]>> {
        let mut blocks = self.blocks(addr, 1).await?;
        Ok(blocks.swap_remove(0))
    }

    /// Reads consecutive blocks of the volume. Errors: they are not all in the volume.
    pub async fn blocks(&self, addr: Addr, count: u64) -> Result<Vec<Arc<[u8]>>> {
        let end = addr.0.checked_add(count);
        let Some(end) = end.filter(|&end| end <= self.geometry.blocks_count) else {
            return corrupt(format!("{count} blocks at {addr} are not in the volume"));
        };
        let bytes = self.geometry.block_bytes as usize;
        let mut blocks = Vec::with_capacity(count as usize);
        let mut next = addr.0;
        while next < end {
            let per_port = (BLOCK_BYTES / bytes) as u64;
            let (first, from) = self.geometry.port_place(Addr(next));
            let ports = end.div_ceil(per_port) - first.0;
            let answer = self.port.read(first, ports.min(READ_BLOCKS) as u32).completed().await?;
            for payload in answer {
                let content = bytes_of(&payload);
                let skip = if blocks.is_empty() { from / bytes } else { 0 };
                for chunk in content.chunks_exact(bytes).skip(skip).take((end - next) as usize) {
                    let newer = self.overlay().get(&Addr(next)).cloned();
                    let is_whole = chunk.len() == content.len();
                    blocks.push(newer.unwrap_or_else(|| match is_whole {
                        true => Arc::clone(&content),
                        false => Arc::from(chunk),
                    }));
                    next += 1;
                }
            }
        }
        Ok(blocks)
    }

    /// Reads the inode at an index of a table.
    async fn inode_in(&self, table: Addr, ino: Ino, index: u32) -> Result<Inode> {
        let (block, at) = self.geometry.table_place(index);
        let addr = Addr(table.0.saturating_add(block.into()));
        if !self.geometry.is_data(addr, 1) {
            return corrupt(format!("inode {ino} is at block {addr}, outside of the volume"));
        }
        Inode::decode(&self.block(addr).await?[at..], ino, &self.geometry)
    }

    /// Reads an inode, in use or not. Errors: there is no such number, or the inode is broken.
    pub async fn any_inode(&self, ino: Ino) -> Result<Inode> {
        let Some((group, index)) = self.geometry.place_of_inode(ino) else {
            return corrupt(format!(
                "there is no inode {ino}: the volume has {}",
                self.geometry.inodes_count
            ));
        };
        let desc = &self.groups[group.0 as usize];
        if desc.has(group::flags::INODE_UNINIT, &self.geometry) {
            return corrupt(format!("inode {ino} is in group {group}, whose inodes were never used"));
        }
        self.inode_in(desc.inode_table, ino, index).await
    }

    /// Reads an inode that is in use. Errors: it is not in use, or it is broken.
    pub async fn inode(&self, ino: Ino) -> Result<Inode> {
        let inode = self.any_inode(ino).await?;
        match inode.kind() {
            Some(_) if inode.links > 0 => Ok(inode),
            Some(_) => corrupt(format!("inode {ino} was deleted")),
            None => corrupt(format!("inode {ino} has the mode {:#o}", inode.mode)),
        }
    }

    /// The root directory.
    pub async fn root(&self) -> Result<Inode> {
        self.inode(Ino::ROOT).await
    }

    /// The bitmap of a group's blocks; the bit of a block that is taken is set. Errors: the checksum.
    pub async fn block_bitmap(&self, group: Group) -> Result<Arc<[u8]>> {
        let desc = &self.groups[group.0 as usize];
        if desc.has(group::flags::BLOCK_UNINIT, &self.geometry) {
            return Ok(desc.uninitialised_block_bitmap(group, &self.geometry).into());
        }
        let bitmap = self.block(desc.block_bitmap).await?;
        desc.check_block_bitmap(group, &self.geometry, &bitmap)?;
        Ok(bitmap)
    }

    /// The bitmap of a group's inodes; the bit of an inode that is taken is set. Errors: the checksum.
    pub async fn inode_bitmap(&self, group: Group) -> Result<Arc<[u8]>> {
        let desc = &self.groups[group.0 as usize];
        if desc.has(group::flags::INODE_UNINIT, &self.geometry) {
            return Ok(group::empty_inode_bitmap(&self.geometry).into());
        }
        let bitmap = self.block(desc.inode_bitmap).await?;
        desc.check_inode_bitmap(group, &self.geometry, &bitmap)?;
        Ok(bitmap)
    }

    /// Inodes that have to be deleted or truncated: those of the list that begins in the superblock, then those of the orphan file.
    /// Errors: the list is broken or has no end.
    pub async fn orphans(&self) -> Result<Vec<Ino>> {
        let mut orphans = Vec::new();
        let mut seen = BTreeSet::new();
        let mut next = self.superblock.last_orphan;
        while next != Ino(0) {
            if !seen.insert(next) {
                return corrupt(format!("inode {next} is twice in the list of orphans"));
            }
            orphans.push(next);
            next = Ino(self.any_inode(next).await?.dtime);
        }
        if self.superblock.features.has(Feature::ORPHAN_PRESENT) {
            orphans.extend(self.orphans_of_file().await?);
        }
        Ok(orphans)
    }

    async fn orphans_of_file(&self) -> Result<Vec<Ino>> {
        let inode = self.inode(self.superblock.orphan_file).await?;
        let mut orphans = Vec::new();
        let mut index = 0;
        let end = inode.size / u64::from(self.geometry.block_bytes);
        while index < end {
            let run = self.run(&inode, index).await?;
            let Some(addr) = run.addr else {
                return corrupt(format!("block {index} of the file of orphans is a hole"));
            };
            for (addr, block) in
                (addr.0..).zip(self.blocks(addr, run.blocks.min(end - index).min(READ_BLOCKS)).await?)
            {
                let tail = block.len() - 8;
                let magic = u32_at(&block, tail);
                let seed = crc32c(inode.seed(&self.geometry), &addr.to_le_bytes());
                let (stored, computed) = (u32_at(&block, tail + 4), crc32c(seed, &block[..tail]));
                if magic != ORPHAN_MAGIC || (self.geometry.has_checksums() && stored != computed) {
                    return corrupt(format!(
                        "block {addr} of the file of orphans ends with {magic:#x} and {stored:#x}"
                    ));
                }
                let inos = block[..tail].chunks_exact(4).map(|word| Ino(u32_at(word, 0)));
                orphans.extend(inos.filter(|&ino| ino != Ino(0)));
                index += 1;
            }
        }
        Ok(orphans)
    }
}
