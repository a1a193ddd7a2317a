//! A mounted volume: which checkpoint is valid, and where each node is.
//!
//! Mounting is a table of steps: superblock, checkpoint pack, payload, orphans, summaries with their journals. Entries of
//! a journal are newer than those of its table.
//!
//! Deliberately absent: writing, and a cache of nodes; a caller that reads a file keeps its inode.

use super::appended;
use super::appended::layout::ENTRIES_PER_BLOCK;
use super::appended::map::Map;
use super::error::{Error, Named, Result, corrupt};
use super::layout::bytes::block_bit;
use super::layout::checkpoint::{self, Checkpoint, Cursor, Epoch, Flags};
use super::layout::node::{Footer, Inode, Kind, blocks_max};
use super::layout::summary::{self, Owner, Summary};
use super::layout::tables::{self, NatEntry, SitEntry};
use super::layout::{Addr, Geometry, Log, Nid, SEGMENT_BLOCKS, SegNo, Superblock};
use crate::port::{BLOCK_BYTES, Block, BlockPort, bytes_of};
use std::cell::RefCell;
use std::collections::BTreeMap;
use std::rc::Rc;
use std::sync::Arc;

/// A mounted volume.
#[derive(Debug)]
pub struct Volume {
    port: Rc<dyn BlockPort>,
    superblock: Superblock,
    geometry: Geometry,
    checkpoint: Checkpoint,
    /// Stamp of the nodes that were written after the checkpoint.
    epoch: Epoch,
    /// Number of the checkpoint pack that is valid.
    pack: usize,
    /// Inodes without a name that were still open.
    orphans: Vec<Nid>,
    /// Summaries of the six logs; those of node logs only if the pack has them.
    summaries: Vec<Option<Summary>>,
    nat_journal: BTreeMap<Nid, NatEntry>,
    sit_journal: BTreeMap<SegNo, SitEntry>,
    /// Blocks of the NAT, or of the inode map, that were read.
    nat_blocks: RefCell<BTreeMap<u32, Arc<[u8]>>>,
    /// Where the tables are on a disk of append segments; they are at fixed places otherwise.
    map: Option<Box<Map>>,
}

/// Reads the block at an address.
async fn block_at(port: &dyn BlockPort, addr: Addr) -> Result<Arc<[u8]>> {
    let answer = port.read(Geometry::block(addr), 1).completed().await?;
    Ok(bytes_of(&answer[0]))
}

/// Reads consecutive blocks as one string of bytes.
async fn blocks_at(port: &dyn BlockPort, addr: Addr, count: u32) -> Result<Vec<u8>> {
    let answer = port.read(Geometry::block(addr), count).completed().await?;
    let mut bytes = Vec::with_capacity(answer.len() * BLOCK_BYTES);
    for payload in &answer {
        bytes.extend_from_slice(&bytes_of(payload));
    }
    Ok(bytes)
}

/// The first of the two superblocks that is valid.
pub(super) async fn superblock_of(port: &dyn BlockPort) -> Result<Superblock> {
    if port.capacity_blocks() < 2 {
        let blocks = port.capacity_blocks();
        return Err(Error::Absent(Named, format!("the disk has {blocks} blocks of 4096 bytes")));
    }
    let mut errors = Vec::new();
    for block in 0..2 {
        let answer = match port.read(Block(block), 1).completed().await {
            Ok(answer) => answer,
            Err(error) => {
                errors.push(error.into());
                continue;
            }
        };
        match Superblock::decode(&bytes_of(&answer[0])) {
            Ok(superblock) if superblock.block_count > port.capacity_blocks() => {
                let (has, needs) = (port.capacity_blocks(), superblock.block_count);
                errors.push(Error::Corrupt(format!("the volume has {needs} blocks, its disk {has}")));
            }
            Ok(superblock) => return Ok(superblock),
            Err(error) => errors.push(error),
        }
    }
    // An unsupported, broken or unreadable copy is reported rather than the absence of the other one.
    errors.sort_by_key(|error| match error {
        Error::Refused(_) => 0,
        Error::Corrupt(_) => 1,
        Error::Port(_) => 2,
        _ => 3,
    });
    Err(errors.swap_remove(0))
}

/// The checkpoint block of a pack and its version, if both of its checkpoint blocks are good and of the same version.
async fn valid_pack(
    port: &dyn BlockPort,
    geometry: &Geometry,
    pack: usize,
) -> Result<Option<(u64, Arc<[u8]>)>> {
    let start = geometry.checkpoint_pack(pack);
    let first = block_at(port, start).await?;
    let (version, blocks) = (checkpoint::version_of(&first), checkpoint::pack_blocks_of(&first));
    let Some(version) = version else { return Ok(None) };
    if !(2..=SEGMENT_BLOCKS).contains(&blocks) {
        return Ok(None);
    }
    let last = block_at(port, Addr(start.0 + blocks - 1)).await?;
    Ok((checkpoint::version_of(&last) == Some(version)).then_some((version, first)))
}

impl Volume {
    /// Mounts a volume for reading. Errors: there is no volume, it is corrupt, or it has an unsupported feature.
    pub async fn mount(port: Rc<dyn BlockPort>) -> Result<Self> {
        let superblock = superblock_of(&*port).await?;
        let geometry = superblock.geometry();
        let packs = [valid_pack(&*port, &geometry, 0).await?, valid_pack(&*port, &geometry, 1).await?];
        let newest = packs.into_iter().enumerate().filter_map(|(pack, valid)| Some((pack, valid?)));
        let Some((pack, (_, first))) = newest.max_by_key(|(_, (version, _))| *version) else {
            return corrupt("no checkpoint pack is valid");
        };
        let payload_blocks = superblock.checkpoint_payload;
        let start = geometry.checkpoint_pack(pack);
        let mut blocks = first.to_vec();
        if payload_blocks > 0 {
            blocks.extend(blocks_at(&*port, Addr(start.0 + 1), payload_blocks).await?);
        }
        let checkpoint = Checkpoint::decode(&blocks, payload_blocks, &geometry)?;
        let refused = checkpoint.flags.refused();
        if !refused.is_empty() {
            return Err(Error::Refused(format!("the checkpoint flag {}", refused.join(", "))));
        }
        let mut volume = Self {
            port,
            superblock,
            geometry,
            epoch: Epoch::of(&checkpoint, checkpoint::crc_of(&blocks)),
            checkpoint,
            pack,
            orphans: Vec::new(),
            summaries: Vec::new(),
            nat_journal: BTreeMap::new(),
            sit_journal: BTreeMap::new(),
            nat_blocks: RefCell::default(),
            map: None,
        };
        volume.load_orphans().await?;
        volume.load_summaries().await?;
        Ok(volume)
    }

    /// A volume on a disk of append segments, whose checkpoint and map were found.
    pub(crate) fn appended(
        port: Rc<dyn BlockPort>,
        map: Map,
        checkpoint: Checkpoint,
        epoch: Epoch,
        orphans: Vec<Nid>,
        summaries: [Summary; 3],
    ) -> Self {
        let summaries = summaries.map(Some).into_iter().chain([None, None, None]).collect();
        Self {
            port,
            superblock: map.superblock.described(),
            geometry: map.superblock.geometry(),
            checkpoint,
            epoch,
            pack: 0,
            orphans,
            summaries,
            nat_journal: BTreeMap::new(),
            sit_journal: BTreeMap::new(),
            nat_blocks: RefCell::default(),
            map: Some(Box::new(map)),
        }
    }

    /// Where the tables are on a disk of append segments.
    pub(crate) fn node_map(&self) -> Option<&Map> {
        self.map.as_deref()
    }

    /// The same, for what a mount does before anything else.
    pub(crate) fn node_map_mut(&mut self) -> Option<&mut Map> {
        self.map.as_deref_mut()
    }

    /// The address of block `index` of the valid checkpoint pack.
    fn pack_block(&self, index: u32) -> Addr {
        Addr(self.geometry.checkpoint_pack(self.pack).0 + index)
    }

    async fn load_orphans(&mut self) -> Result<()> {
        if self.checkpoint.flags.has(Flags::ORPHANS) {
            for index in 1 + self.superblock.checkpoint_payload..self.checkpoint.summary_start {
                let block = self.block(self.pack_block(index)).await?;
                self.orphans.extend(checkpoint::decode_orphans(&block)?);
            }
        }
        Ok(())
    }

    async fn load_summaries(&mut self) -> Result<()> {
        let flags = self.checkpoint.flags;
        if flags.has(Flags::COMPACT_SUMMARIES) {
            let start = self.checkpoint.summary_start;
            let room = self.checkpoint.pack_blocks - 1 - start;
            let count = summary::compact_blocks(&self.checkpoint.cursors).min(room);
            let blocks = blocks_at(&*self.port, self.pack_block(start), count).await?;
            let summaries = summary::decode_compact(&blocks, &self.checkpoint.cursors)?;
            self.summaries.extend(summaries.map(Some));
        } else {
            for log in &Log::ALL[..3] {
                let block = self.block(self.pack_block(self.checkpoint.summary_block(*log))).await?;
                self.summaries.push(Some(Summary::decode(&block)));
            }
        }
        for log in &Log::ALL[3..] {
            let mut summary = None;
            if flags.has_node_summaries() {
                let block = self.block(self.pack_block(self.checkpoint.summary_block(*log))).await?;
                summary = Some(Summary::decode(&block));
            }
            self.summaries.push(summary);
        }
        let journal = |log: Log| {
            let summary = self.summaries[log.index()].as_ref();
            summary.expect("data logs have summaries in each pack").journal
        };
        self.nat_journal = tables::decode_nat_journal(&journal(Log::HotData))?.into_iter().collect();
        self.sit_journal = tables::decode_sit_journal(&journal(Log::ColdData))?.into_iter().collect();
        Ok(())
    }

    /// The superblock.
    pub fn superblock(&self) -> &Superblock {
        &self.superblock
    }

    /// The valid checkpoint.
    pub fn checkpoint(&self) -> &Checkpoint {
        &self.checkpoint
    }

    /// Stamp of the nodes that were written after the checkpoint.
    pub(super) fn epoch(&self) -> Epoch {
        self.epoch
    }

    /// Layout of the volume.
    pub fn geometry(&self) -> &Geometry {
        &self.geometry
    }

    /// Inodes without a name that were open when the checkpoint was made.
    pub fn orphans(&self) -> &[Nid] {
        &self.orphans
    }

    /// Whether the checkpoint is that of an unmount. Even then Linux may have written after it; see [`Self::chain`].
    pub fn is_clean(&self) -> bool {
        self.checkpoint.flags.has(Flags::UNMOUNTED)
    }

    /// The port.
    pub fn port(&self) -> &Rc<dyn BlockPort> {
        &self.port
    }

    /// Reads a block of the disk.
    pub async fn block(&self, addr: Addr) -> Result<Arc<[u8]>> {
        block_at(&*self.port, addr).await
    }

    /// The NAT's entry of a node. Errors: the number is outside of the NAT.
    pub async fn nat_entry(&self, nid: Nid) -> Result<NatEntry> {
        if nid >= self.geometry.nid_end() {
            return corrupt(format!(
                "node {nid} is beyond the NAT, which ends at {}",
                self.geometry.nid_end()
            ));
        }
        if let Some(entry) = self.nat_journal.get(&nid) {
            return Ok(*entry);
        }
        if self.map.is_some() {
            let block = self.nat_block(nid.0 / ENTRIES_PER_BLOCK).await?;
            return Ok(appended::layout::entry(&block, nid.0 % ENTRIES_PER_BLOCK));
        }
        let (index, place) = Geometry::nat_place(nid);
        Ok(NatEntry::from_block(&self.nat_block(index).await?, place))
    }

    /// The valid copy of a block of the NAT, without the journal.
    async fn nat_block(&self, index: u32) -> Result<Arc<[u8]>> {
        let cached = self.nat_blocks.borrow().get(&index).cloned();
        if let Some(block) = cached {
            return Ok(block);
        }
        let block = match &self.map {
            None => {
                let second = block_bit(&self.checkpoint.nat_versions, index as usize);
                self.block(self.geometry.nat_block(index, second)).await?
            }
            Some(map) => {
                let places = &map.entries.blocks[index as usize..][..1];
                appended::map::blocks_at(&*self.port, places).await?.swap_remove(0)
            }
        };
        self.nat_blocks.borrow_mut().insert(index, Arc::clone(&block));
        Ok(block)
    }

    /// All entries of the NAT that are in use, by number.
    pub async fn nat_entries(&self) -> Result<BTreeMap<Nid, NatEntry>> {
        let mut entries = BTreeMap::new();
        if let Some(map) = &self.map {
            let written = (0u32..).zip(&map.entries.blocks).filter(|(_, place)| **place != Addr::NULL);
            let (indices, places): (Vec<u32>, Vec<Addr>) = written.unzip();
            let blocks = appended::map::blocks_at(&*self.port, &places).await?;
            for (index, block) in indices.into_iter().zip(blocks) {
                let numbered = (0..ENTRIES_PER_BLOCK).map(|at| (Nid(index * ENTRIES_PER_BLOCK + at), at));
                let numbered = numbered.map(|(nid, at)| (nid, appended::layout::entry(&block, at)));
                entries.extend(numbered.filter(|(_, entry)| entry.addr != Addr::NULL));
            }
            return Ok(entries);
        }
        for index in 0..self.geometry.nat_blocks {
            let second = block_bit(&self.checkpoint.nat_versions, index as usize);
            let block = self.block(self.geometry.nat_block(index, second)).await?;
            let first = index * super::layout::superblock::NAT_PER_BLOCK;
            for place in 0..super::layout::superblock::NAT_PER_BLOCK {
                let entry = NatEntry::from_block(&block, place as usize);
                if entry.addr != Addr::NULL {
                    entries.insert(Nid(first + place), entry);
                }
            }
        }
        for (nid, entry) in &self.nat_journal {
            if entry.addr == Addr::NULL {
                entries.remove(nid);
            } else {
                entries.insert(*nid, *entry);
            }
        }
        Ok(entries)
    }

    /// The SIT: one entry for each segment of the main area.
    pub async fn sit_entries(&self) -> Result<Vec<SitEntry>> {
        let mut entries = Vec::new();
        if let Some(map) = &self.map {
            let blocks = appended::map::blocks_at(&*self.port, &map.usage.blocks).await?;
            for segment in (0..self.geometry.main_segments).map(SegNo) {
                let (index, place) = Geometry::sit_place(segment);
                entries.push(SitEntry::from_block(&blocks[index as usize], place));
            }
            return Ok(entries);
        }
        let mut block = (u32::MAX, Arc::<[u8]>::from([]));
        for segment in (0..self.geometry.main_segments).map(SegNo) {
            let (index, place) = Geometry::sit_place(segment);
            if block.0 != index {
                let second = block_bit(&self.checkpoint.sit_versions, index as usize);
                block = (index, self.block(self.geometry.sit_block(index, second)).await?);
            }
            let entry = self.sit_journal.get(&segment).cloned();
            entries.push(entry.unwrap_or_else(|| SitEntry::from_block(&block.1, place)));
        }
        Ok(entries)
    }

    /// Segments for which the SIT's journal has entries.
    pub fn sit_journal_segments(&self) -> impl Iterator<Item = SegNo> + '_ {
        self.sit_journal.keys().copied()
    }

    /// Nodes for which the NAT's journal has entries.
    pub(super) fn nat_journal_nids(&self) -> impl Iterator<Item = Nid> + '_ {
        self.nat_journal.keys().copied()
    }

    /// Number of the checkpoint pack that is valid.
    pub(super) fn pack(&self) -> usize {
        self.pack
    }

    /// The log that writes a segment, with its cursor.
    pub fn log_at(&self, segment: SegNo) -> Option<(Log, Cursor)> {
        Log::ALL
            .into_iter()
            .map(|log| (log, self.checkpoint.cursor(log)))
            .find(|(_, cursor)| cursor.segment == segment)
    }

    /// The summary of a segment. If the pack has none for a node log, it is built from the footers of the nodes.
    pub async fn summary(&self, segment: SegNo) -> Result<Summary> {
        let Some((log, cursor)) = self.log_at(segment) else {
            return Ok(Summary::decode(&self.block(self.geometry.summary_block(segment)).await?));
        };
        if let Some(summary) = &self.summaries[log.index()] {
            return Ok(summary.clone());
        }
        let mut summary = Summary::new(true);
        // What is behind the cursor may never have been written.
        let count = if self.geometry.is_appended() { u32::from(cursor.offset) } else { SEGMENT_BLOCKS };
        if count == 0 {
            return Ok(summary);
        }
        let blocks = blocks_at(&*self.port, self.geometry.main_block(segment, 0), count).await?;
        for (owner, block) in summary.owners.iter_mut().zip(blocks.chunks(BLOCK_BYTES)) {
            let nid = Footer::decode(block).nid;
            let known = nid < self.geometry.nid_end();
            let version = if known { self.nat_entry(nid).await?.version } else { 0 };
            *owner = Owner { nid, version, offset: 0 };
        }
        Ok(summary)
    }

    /// Reads a node's block. Errors: the number is free, or the block says that it is another node.
    pub async fn node(&self, nid: Nid) -> Result<Arc<[u8]>> {
        let entry = self.nat_entry(nid).await?;
        self.node_block(nid, entry.addr).await
    }

    /// Reads the node in a block, whatever its inode.
    pub(super) async fn node_block(&self, nid: Nid, addr: Addr) -> Result<Arc<[u8]>> {
        if self.geometry.place_of(addr).is_none() {
            return corrupt(format!("node {nid} is at block {addr}, outside of the main area"));
        }
        let block = self.block(addr).await?;
        let footer = Footer::decode(&block);
        if footer.nid != nid {
            return corrupt(format!("block {addr} is node {}, expected node {nid}", footer.nid));
        }
        Ok(block)
    }

    /// Reads the node of an inode in a block; its footer has to agree.
    pub(super) async fn node_at(&self, ino: Nid, nid: Nid, offset: u32, addr: Addr) -> Result<Arc<[u8]>> {
        let block = self.node_block(nid, addr).await?;
        let footer = Footer::decode(&block);
        if footer.ino != ino || footer.offset != offset {
            return corrupt(format!(
                "node {nid} is node {} of inode {}, expected node {offset} of inode {ino}",
                footer.offset, footer.ino
            ));
        }
        Ok(block)
    }

    /// Reads an inode. Errors: it does not exist, or contradicts itself.
    pub async fn inode(&self, nid: Nid) -> Result<Inode> {
        let entry = self.nat_entry(nid).await?;
        self.inode_at(nid, entry.addr).await
    }

    /// Reads the inode in a block.
    pub(super) async fn inode_at(&self, nid: Nid, addr: Addr) -> Result<Inode> {
        let block = self.node_at(nid, nid, 0, addr).await?;
        let seed = self.superblock.inode_checksum_seed();
        let inode = Inode::decode(block, self.superblock.features, seed)?;
        let bytes_max = blocks_max(inode.address_count()) * BLOCK_BYTES as u64;
        let has_size = matches!(inode.kind(), Kind::Regular | Kind::Directory | Kind::Symlink);
        if has_size && inode.size > bytes_max {
            return corrupt(format!(
                "inode {nid} has a size of {} bytes, expected at most {bytes_max}",
                inode.size
            ));
        }
        Ok(inode)
    }

    /// The root directory.
    pub async fn root(&self) -> Result<Inode> {
        let root = self.inode(self.superblock.root).await?;
        if root.kind() != Kind::Directory {
            return corrupt(format!("the root, inode {}, is not a directory", root.nid));
        }
        Ok(root)
    }
}
