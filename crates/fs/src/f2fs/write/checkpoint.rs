//! Making a checkpoint: everything in memory gets its place on the disk, followed by the blocks that refer to it.
//!
//! The order on the disk is: data, nodes, the blocks of [`area`](super::area) except for the last one; a flush; the last block,
//! which is written durably. Until then the checkpoint before it is the valid one, and none of its blocks is written.

use super::super::layout::checkpoint::{Checkpoint, Epoch};
use super::super::layout::node::Footer;
use super::super::layout::summary::Owner;
use super::super::layout::tables::NatEntry;
use super::super::layout::{Log, Nid};
use super::area::{Stored, Tables};
use super::options::PlantedBug;
use super::segments::Kept;
use super::space::Discarded;
use super::state::{State, push};
use super::stop::Step;
use std::collections::BTreeSet;

/// A checkpoint whose blocks have been submitted, except for the last one.
#[derive(Debug)]
pub(super) struct Pending {
    pub(super) checkpoint: Checkpoint,
    /// Valid blocks of the segments in this checkpoint.
    pub(super) kept: Vec<Kept>,
    /// Node numbers that are free in this checkpoint.
    freed: BTreeSet<Nid>,
    /// Places of its tables.
    pub(super) stored: Stored,
}

/// Fields of a node's footer beside its identity.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct NodeMarks {
    pub(super) is_fsynced: bool,
    pub(super) has_dentry: bool,
}

impl State {
    /// Gives everything its place and fills the outbox. It may be run again after it has stopped.
    pub(super) fn prepare(&mut self, is_unmount: bool) -> Step<Pending> {
        while let Some(&(ino, index)) = self.blocks_dirty.first() {
            self.place_block(ino, index)?;
        }
        while let Some(&(_, nid)) = self.dirty.first() {
            self.place_node(nid, NodeMarks::default())?;
            self.is_abandoned = true;
        }
        let mut checkpoint = Checkpoint { version: self.checkpoint.version + 1, ..self.checkpoint.clone() };
        checkpoint.valid_blocks = self.valid_blocks;
        checkpoint.valid_nodes = self.valid_nodes;
        checkpoint.valid_inodes = self.valid_inodes;
        checkpoint.next_free_nid = self.next_nid;
        checkpoint.cursors = std::array::from_fn(|log| self.logs[log].cursor);
        checkpoint.free_segments = self.segments_without_blocks();
        checkpoint.elapsed_s = self.space.clock.now_s();
        let is_forgotten = self.plants(PlantedBug::ForgottenOrphans);
        let (planted, is_apart) = (self.planted, self.geometry.is_appended());
        let Self { area, nat, sit, logs, orphans, outbox, .. } = self;
        let tables = Tables {
            nat,
            sit,
            summaries: logs.iter().map(|log| &log.summary).collect(),
            nameless: orphans.iter().copied().filter(|_| !is_forgotten).collect(),
            is_unmount,
            planted,
        };
        let stored =
            area.store(&tables, &mut checkpoint, &mut |addr, block| push(outbox, addr, block, 0, is_apart));
        let kept = self.keep_valid();
        self.metrics.checkpoints += 1;
        self.changed = false;
        self.is_abandoned = false;
        self.is_pending = true;
        let freed = std::mem::take(&mut self.since).freed;
        self.since.freed = freed.clone();
        Ok(Pending { checkpoint, kept, freed, stored })
    }

    /// The checkpoint is complete; `discarded` is what was discarded of that which it freed.
    pub(super) fn commit(&mut self, pending: Pending, discarded: &Discarded) {
        self.epoch = Epoch::of(&pending.checkpoint, pending.stored.crc);
        self.checkpoint = pending.checkpoint;
        self.area.turn();
        self.since.freed.retain(|nid| !pending.freed.contains(nid));
        // Numbers that were freed can be used again now, the lowest first.
        if let Some(&lowest) = pending.freed.first() {
            self.next_nid = self.next_nid.min(lowest);
        }
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
        self.area.note_node(nid);
        self.dirty.remove(&(entry.ino, nid));
        self.only_times.remove(&nid);
        Ok(())
    }
}

/// Whether the node at an offset holds node numbers: the two indirect ones, the double indirect one, and those below it.
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
