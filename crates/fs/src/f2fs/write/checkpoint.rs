//! Making a checkpoint: everything in memory gets its place on the disk, and a pack that refers to all of it.
//!
//! The order on the disk is: data, nodes, tables and the pack but for its last block; a flush; the last block, durable by
//! itself. Until then the pack before it is the valid one, and no block of it is written.
//!
//! Summaries of nodes are in the pack of an unmount only. After a cut the nodes themselves say who they are.

use super::super::layout::bytes::{block_bit, set_block_bit};
use super::super::layout::checkpoint::{Checkpoint, Epoch, Flags, crc_of, encode_orphans};
use super::super::layout::node::Footer;
use super::super::layout::summary::{Owner, Summary, compact_blocks, encode_compact};
use super::super::layout::superblock::{NAT_PER_BLOCK, SIT_PER_BLOCK};
use super::super::layout::tables::{
    NAT_JOURNAL_MAX, NatEntry, SIT_JOURNAL_MAX, SitEntry, encode_nat_journal, encode_sit_journal,
};
use super::super::layout::{Addr, Geometry, Log, Nid, SEGMENT_BLOCKS, SegNo};
use super::options::PlantedBug;
use super::segments::Kept;
use super::state::State;
use super::stop::Step;
use crate::port::{BLOCK_BYTES, Block, BlockBytes};
use std::collections::BTreeSet;

/// A checkpoint of which all but the last block is on its way.
#[derive(Debug)]
pub(super) struct Pending {
    pub(super) checkpoint: Checkpoint,
    pack: usize,
    /// Segments as it has them.
    pub(super) kept: Vec<Kept>,
    /// Numbers of nodes that are free in it.
    freed: BTreeSet<Nid>,
    /// The last block of its pack.
    pub(super) last: (Addr, BlockBytes),
}

/// What the footer of a node says beside who it is.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct NodeMarks {
    pub(super) is_fsynced: bool,
    pub(super) has_dentry: bool,
}

/// Changed entries of the NAT and of the SIT that stand in journals.
type Journals<'a> = (&'a [(Nid, NatEntry)], &'a [(SegNo, SitEntry)]);

impl State {
    /// Gives everything its place and fills the outbox. May be run again after it has stopped.
    pub(super) fn prepare(&mut self, is_unmount: bool) -> Step<Pending> {
        while let Some(&(ino, index)) = self.blocks_dirty.first() {
            self.place_block(ino, index)?;
        }
        while let Some(&(_, nid)) = self.dirty.first() {
            self.place_node(nid, NodeMarks::default())?;
        }
        let next = self.pack ^ 1;
        let mut checkpoint = Checkpoint { version: self.checkpoint.version + 1, ..self.checkpoint.clone() };
        let nat_journal = self.store_nat(&mut checkpoint);
        let sit_journal = self.store_sit(&mut checkpoint);
        checkpoint.valid_blocks = self.valid_blocks;
        checkpoint.valid_nodes = self.valid_nodes;
        checkpoint.valid_inodes = self.valid_inodes;
        checkpoint.next_free_nid = self.next_nid;
        checkpoint.cursors = std::array::from_fn(|log| self.logs[log].cursor);
        checkpoint.free_segments = self.segments_without_blocks();
        checkpoint.elapsed_s = self.space.clock.now_s();
        let last = self.store_pack(&mut checkpoint, next, (&nat_journal, &sit_journal), is_unmount);
        let kept = self.keep_valid();
        self.metrics.checkpoints += 1;
        self.changed = false;
        self.is_pending = true;
        let freed = std::mem::take(&mut self.since).freed;
        self.since.freed = freed.clone();
        Ok(Pending { checkpoint, pack: next, kept, freed, last })
    }

    /// The checkpoint is complete, and what became free with it may have been discarded.
    pub(super) fn commit(&mut self, pending: Pending, discarded: &[(Block, u32)]) {
        self.epoch = Epoch::of(&pending.checkpoint, crc_of(&pending.last.1));
        self.checkpoint = pending.checkpoint;
        self.pack = pending.pack;
        self.since.freed.retain(|nid| !pending.freed.contains(nid));
        self.is_pending = false;
        self.forget(pending.kept, discarded);
    }

    /// Writes a block that is in memory to the next block of its log.
    pub(super) fn place_block(&mut self, ino: Nid, index: u64) -> Step<()> {
        let log = self.data_log(ino)?;
        let addr = self.place(ino, index, log)?;
        let block = self.blocks[&(ino, index)].clone();
        self.write(addr, &block, ino.0);
        self.blocks_dirty.remove(&(ino, index));
        Ok(())
    }

    /// Writes a node to the next block of its log.
    pub(super) fn place_node(&mut self, nid: Nid, marks: NodeMarks) -> Step<()> {
        let entry = self.nat[&nid];
        let is_directory = match self.inodes.get(&entry.ino) {
            Some(inode) => inode.kind() == super::super::Kind::Directory,
            None => self.inode(entry.ino).map(|_| false)?,
        };
        let footer = match self.inodes.get(&nid) {
            Some(inode) => inode.footer(),
            None => Footer::decode(&self.nodes[&nid][..]),
        };
        let log = match (footer.offset, is_directory) {
            (offset, _) if is_indirect(offset) => Log::ColdNode,
            (_, true) => Log::HotNode,
            (_, false) => Log::WarmNode,
        };
        let addr = self.allocate(log, Owner { nid, version: 0, offset: 0 })?;
        let cursor = self.logs[log.index()].cursor;
        let footer = Footer {
            is_cold: !is_directory,
            is_fsynced: marks.is_fsynced,
            has_dentry: marks.has_dentry,
            checkpoint: self.epoch.stamp,
            next: self.geometry.main_block(cursor.segment, u32::from(cursor.offset)),
            ..footer
        };
        let block = match self.inodes.get_mut(&nid) {
            Some(inode) => {
                inode.set_footer(footer);
                inode.encode(self.superblock.features, self.seed)
            }
            None => {
                let block = self.nodes.get_mut(&nid).expect("a dirty node is in memory");
                footer.encode(&mut block[..]);
                **block
            }
        };
        self.write(addr, &block, entry.ino.0);
        self.release_block(entry.addr);
        self.nat.insert(nid, NatEntry { addr, ..entry });
        self.nat_changed.insert(nid);
        self.dirty.remove(&(entry.ino, nid));
        self.only_times.remove(&nid);
        Ok(())
    }

    /// Changed entries of the NAT go into the journal, or all of them into the other copies of their blocks.
    fn store_nat(&mut self, checkpoint: &mut Checkpoint) -> Vec<(Nid, NatEntry)> {
        let entry = |state: &Self, nid: Nid| state.nat.get(&nid).copied().unwrap_or_default();
        if self.nat_changed.len() <= NAT_JOURNAL_MAX {
            return self.nat_changed.iter().map(|&nid| (nid, entry(self, nid))).collect();
        }
        let changed = std::mem::take(&mut self.nat_changed);
        let indices: BTreeSet<u32> = changed.iter().map(|&nid| Geometry::nat_place(nid).0).collect();
        for index in indices {
            let mut block = [0; BLOCK_BYTES];
            let first = index * NAT_PER_BLOCK;
            for (nid, entry) in self.nat.range(Nid(first)..Nid(first + NAT_PER_BLOCK)) {
                // What was never written is not there yet.
                let entry = if entry.addr == Addr::NEW { NatEntry::default() } else { *entry };
                entry.into_block(&mut block, (nid.0 - first) as usize);
            }
            let second = !block_bit(&checkpoint.nat_versions, index as usize);
            set_block_bit(&mut checkpoint.nat_versions, index as usize, second);
            self.write(self.geometry.nat_block(index, second), &block, 0);
        }
        Vec::new()
    }

    /// The same for the SIT.
    fn store_sit(&mut self, checkpoint: &mut Checkpoint) -> Vec<(SegNo, SitEntry)> {
        if self.sit_changed.len() <= SIT_JOURNAL_MAX {
            let entry = |segment: &SegNo| (*segment, self.sit[segment.0 as usize].clone());
            return self.sit_changed.sorted().iter().map(entry).collect();
        }
        let changed = self.sit_changed.take();
        let indices: BTreeSet<u32> = changed.iter().map(|&segment| Geometry::sit_place(segment).0).collect();
        for index in indices {
            let mut block = [0; BLOCK_BYTES];
            let entries = self.sit.iter().skip((index * SIT_PER_BLOCK) as usize).take(SIT_PER_BLOCK as usize);
            for (place, entry) in entries.enumerate() {
                entry.into_block(&mut block, place);
            }
            let second = !block_bit(&checkpoint.sit_versions, index as usize);
            set_block_bit(&mut checkpoint.sit_versions, index as usize, second);
            self.write(self.geometry.sit_block(index, second), &block, 0);
        }
        Vec::new()
    }

    /// The blocks of the pack but for the last one, which is returned.
    fn store_pack(
        &mut self,
        checkpoint: &mut Checkpoint,
        pack: usize,
        (nat, sit): Journals<'_>,
        is_unmount: bool,
    ) -> (Addr, BlockBytes) {
        let payload = self.superblock.checkpoint_payload;
        let mut orphans: Vec<Nid> = self.orphans.iter().copied().collect();
        if self.plants(PlantedBug::ForgottenOrphans) {
            orphans.clear();
        }
        let orphan_blocks = encode_orphans(&orphans);
        let mut data: Vec<Summary> = self.logs[..3].iter().map(|log| log.summary.clone()).collect();
        data[Log::HotData.index()].journal = encode_nat_journal(nat);
        data[Log::ColdData.index()].journal = encode_sit_journal(sit);
        let is_compact = compact_blocks(&checkpoint.cursors) < 3;
        let mut summaries = match is_compact {
            true => encode_compact([&data[0], &data[1], &data[2]], &checkpoint.cursors),
            false => data.iter().map(Summary::encode).collect(),
        };
        let kept = Flags::LARGE_NAT_BITMAP | Flags::ERROR | Flags::FSCK;
        checkpoint.flags.0 = checkpoint.flags.0 & kept | Flags::CRC_RECOVERY;
        if is_unmount {
            summaries.extend(self.logs[3..].iter().map(|log| log.summary.encode()));
            checkpoint.flags.0 |= Flags::UNMOUNTED;
        }
        if is_compact {
            checkpoint.flags.0 |= Flags::COMPACT_SUMMARIES;
        }
        if !orphans.is_empty() {
            checkpoint.flags.0 |= Flags::ORPHANS;
        }
        checkpoint.summary_start = 1 + payload + orphan_blocks.len() as u32;
        checkpoint.pack_blocks = checkpoint.summary_start + summaries.len() as u32 + 1;
        debug_assert!(checkpoint.pack_blocks <= SEGMENT_BLOCKS);
        let head = checkpoint.encode(payload);
        let start = self.geometry.checkpoint_pack(pack).0;
        for (index, block) in head.iter().chain(&orphan_blocks).chain(&summaries).enumerate() {
            self.write(Addr(start + index as u32), block, 0);
        }
        (Addr(start + checkpoint.pack_blocks - 1), head[0])
    }
}

/// Whether the node at an offset holds numbers of nodes: the two indirect ones, the double indirect one, and those below
/// it.
pub(super) fn is_indirect(offset: u32) -> bool {
    const WORDS: u32 = super::super::layout::node::NODE_WORDS;
    if offset == Footer::XATTR_OFFSET {
        return false;
    }
    let double = 5 + 2 * WORDS;
    offset == 3
        || offset == 4 + WORDS
        || offset == double
        || offset > double && (offset - double - 1).is_multiple_of(WORDS + 1)
}
