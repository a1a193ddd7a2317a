//! fsync of one file without a checkpoint: its nodes go to the log of warm nodes, the last of them with a mark, and
//! [recovery](super::recover) takes them from there.
//!
//! Place in the data flow: [`fs`](super::fs) asks, [`checkpoint`](super::checkpoint) begins a new chain.
//!
//! # The chain
//!
//! Each node block names the block of its log that is written next. So the nodes written since a checkpoint are a chain
//! that begins at the cursor which the checkpoint has for the log of warm nodes, and ends where a block does not carry the
//! checkpoint's stamp. Recovery can find them only this way.
//!
//! # What has to be durable before what
//!
//! 1. *Data before the nodes that refer to them.* A node is found by recovery as soon as it is durable, which may be before any flush. If
//!    its data were not durable then, the file would have the bytes of the previous owner of those blocks, and would have lost even what an
//!    earlier fsync had promised. So the file's data are made durable first, and its nodes are submitted after that. From the flush of the
//!    data to the submission of the nodes no data of the file are written (`frozen`), because the nodes would refer to them.
//! 2. *The nodes of one fsync are one.* Only the last carries the mark, and a node without one counts only if a marked one
//!    of the same inode follows. As the chain ends at the first block that is missing, recovery has all nodes of an fsync or
//!    none.
//! 3. *The whole chain up to the last node, before fsync returns*, also nodes of other files: recovery does not get past
//!    one that is missing. So fsync waits until all writes of nodes before its own have completed, and then makes *all*
//!    nodes durable.
//! 4. *Nothing else.* Tables, directories and indirect nodes are rebuilt from the last checkpoint and the chain.
//!
//! # The pair of range flushes
//!
//! With [`Flushing::RangeFlush`] the first of these is RFLUSH(inode) and the third RFLUSH([`METADATA`]) (the paper's
//! pair, range-flush §1.5). Each data block carries the tag of its inode, each node and each block of tables and packs that of metadata.
//!
//! * RFLUSH(inode) covers the data: each was written by a command with the inode's tag that completed before, and if another
//!   file had the block in the buffer before, tags are united.
//! * RFLUSH(metadata) covers the chain by 3., since every node carries its tag. It also covers nodes of other files, which is necessary and
//!   does no harm: by 1. their data have been durable since before they were submitted.
//!
//! With [`Flushing::Flush`] the first is a FLUSH, and the nodes are written with FUA: a second FLUSH would do the same.
//!
//! # On append segments
//!
//! What a command with FUA, or a range flush, makes durable there is a prefix of its segment. So fsync writes a few pages with FUA and flushes
//! nothing; what write-back or cleaning wrote of the file before, and more than a few pages, take a flush: with [`Flushing::RangeFlush`] one
//! of the prefixes that end with the file's data. Nodes have FUA in both modes; what stands before them in their segment is the
//! chain.
//!
//! # When a checkpoint is made instead
//!
//! Where the chain cannot say what happened ([`State::needs_checkpoint`]), as in Linux: not a file, several names, a name that
//! is not that of its creation, a directory that the checkpoint lacks, nodes that are gone, no room for what recovery takes; and a
//! checkpoint that was given up when it had placed nodes.
//!
//! Invariants:
//! 1. Between the preparation of a checkpoint and its end no node is written: it would belong to a chain that ends there.
//! 2. No block that was written since the last checkpoint is overwritten before the next one (`kept` in [`space`](super::space)), and no
//!    number of a freed node is allocated again. So a chain never refers to another file's bytes.
//! 3. The first fsync after an unmount is a checkpoint. So no block of a chain that an earlier mount left carries a stamp that
//!    is still in use.

use super::super::layout::checkpoint::Flags;
use super::super::layout::node::{Footer, Kind};
use super::super::layout::{Log, Nid, SEGMENT_BLOCKS};
use super::checkpoint::NodeMarks;
use super::options::{Flushing, PlantedBug};
use super::space::NAMES_BLOCKS;
use super::state::State;
use super::stop::{Step, Stop};
use super::tags::METADATA;
use super::{Ends, F2fs, Scope, errno};
use crate::order::{answer, answers};
use crate::port::{Selection, Ticket, Write};
use crate::vfs::{Errno, SyncKind};
use flashweir_core::command::Tag;

impl State {
    /// The period of writes that are made now: the number of the last checkpoint without a part in them.
    pub(super) fn period(&self) -> u64 {
        self.checkpoint.version + u64::from(self.is_pending)
    }

    /// The second owner of data that are written to new blocks now, to which the next checkpoint refers.
    pub(super) fn data_tag(&self) -> Tag {
        Tag(2 << 32 | self.period() & u64::from(u32::MAX))
    }

    /// Notes that an inode got another name or lost one, in these directories.
    pub(super) fn note_renamed(&mut self, ino: Nid, dirs: [Nid; 2]) {
        self.since.renamed.insert(ino);
        self.since.reshaped.extend(dirs);
    }

    /// Whether this bug is planted.
    pub(super) fn plants(&self, bug: PlantedBug) -> bool {
        self.planted == Some(bug)
    }

    /// Whether recovery could not restore this inode from its nodes alone.
    pub(super) fn needs_checkpoint(&self, ino: Nid) -> Step<bool> {
        let inode = self.inode(ino)?;
        let since = &self.since;
        let is_new = since.new.contains(&ino);
        // What recovery rebuilds has to fit beside everything that was deleted meanwhile.
        let room = self.checkpoint.user_blocks.saturating_sub(self.checkpoint.valid_blocks);
        // Names go into places of deleted ones, which recovery finds taken: each may need a block, and its directory another one.
        let names = if since.new.is_empty() { 0 } else { 2 * since.new.len() as u64 + NAMES_BLOCKS };
        Ok(self.fastboot
            || self.is_abandoned
            || self.checkpoint.flags.has(Flags::UNMOUNTED)
            || inode.kind() != Kind::Regular
            || inode.links != 1 && !self.plants(PlantedBug::ForgottenLinks)
            || since.renamed.contains(&ino) && !self.plants(PlantedBug::ForgottenRename)
            || since.shrunk.contains(&ino)
            || is_new
                && (since.new.contains(&inode.parent) || since.reshaped.contains(&inode.parent))
                && !self.plants(PlantedBug::ForgottenDirectory)
            || since.taken + names > room
            // Blocks that are not needed any more are free only after a checkpoint.
            || self.is_short(0)
            // Recovery writes the nodes of the chain and the names again before it can clean anything.
            || !self.has_room_to_recover(since.linked.len() as u64 + names))
    }

    /// The nodes that an fsync of this inode has to write, the inode last. Indirect nodes are not among them: recovery builds them
    /// anew.
    fn nodes_to_sync(&self, ino: Nid, kind: SyncKind) -> Vec<Nid> {
        let is_wanted = |nid: Nid| match self.nodes.get(&nid) {
            _ if nid == ino && kind == SyncKind::Data && self.plants(PlantedBug::NoInode) => false,
            _ if nid == ino => kind == SyncKind::All || !self.only_times.contains(&ino),
            Some(block) => !super::checkpoint::is_indirect(Footer::decode(&block[..]).offset),
            None => false,
        };
        let dirty = self.dirty.range((ino, Nid(0))..=(ino, Nid(u32::MAX))).map(|(_, nid)| *nid);
        let mut nodes: Vec<Nid> = dirty.filter(|&nid| is_wanted(nid)).collect();
        nodes.sort_by_key(|&nid| nid == ino);
        nodes
    }

    /// Whether an fsync has to write nodes, or data that are in no page cache.
    pub(super) fn has_to_sync(&self, ino: Nid, kind: SyncKind) -> bool {
        self.next_block(ino).is_some() || !self.nodes_to_sync(ino, kind).is_empty()
    }

    /// Adds the nodes of an inode to the chain. It may be run again after it has stopped. Returns whether they were added, which is
    /// not done while a checkpoint is being made, nor if the file needs one since it was asked last: its name may have changed meanwhile.
    pub(super) fn link(&mut self, ino: Nid, kind: SyncKind) -> Step<bool> {
        if self.is_pending || self.needs_checkpoint(ino)? {
            return Ok(false);
        }
        // Contents that were inline until now: their data come first.
        if self.next_block(ino).is_some() {
            return Ok(false);
        }
        let nodes = self.nodes_to_sync(ino, kind);
        for (left, &nid) in (0..nodes.len()).rev().zip(&nodes) {
            let has_dentry =
                nid == ino && self.since.new.contains(&ino) && !self.plants(PlantedBug::NoDentryMark);
            let is_fsynced = match self.plants(PlantedBug::EarlyMark) {
                true => left + 1 == nodes.len(),
                false => left == 0,
            };
            self.place_node(nid, NodeMarks { is_fsynced, has_dentry })?;
            self.since.linked.insert(nid);
        }
        Ok(true)
    }

    /// The first block of an inode that waits for a checkpoint.
    fn next_block(&self, ino: Nid) -> Option<u64> {
        self.blocks_dirty.range((ino, 0)..=(ino, u64::MAX)).next().map(|(_, index)| *index)
    }

    /// Writes blocks of an inode that otherwise wait for a checkpoint.
    pub(super) fn place_blocks(&mut self, ino: Nid) -> Step<()> {
        while let Some(index) = self.next_block(ino) {
            self.place_block(ino, index)?;
        }
        Ok(())
    }

    /// Whether a log can continue at its cursor; see [`Self::dodge`].
    fn is_free_from(&self, log: Log) -> bool {
        let cursor = self.logs[log.index()].cursor;
        if u32::from(cursor.offset) >= SEGMENT_BLOCKS {
            return false;
        }
        let end = if cursor.fills_holes { cursor.offset + 1 } else { SEGMENT_BLOCKS as u16 };
        (cursor.offset..end).all(|offset| self.is_hole(cursor.segment, offset.into()))
    }

    /// Moves logs past blocks behind their cursors that were written and have to stay.
    pub(super) fn dodge(&mut self) -> Step<()> {
        for log in Log::ALL {
            if self.is_free_from(log) {
                continue;
            }
            let cursor = self.logs[log.index()].cursor;
            match (u32::from(cursor.offset)..SEGMENT_BLOCKS)
                .find(|&offset| self.is_hole(cursor.segment, offset))
            {
                Some(offset) => {
                    let cursor = &mut self.logs[log.index()].cursor;
                    (cursor.offset, cursor.fills_holes) = (offset as u16, true);
                }
                None => self.move_on(log)?,
            }
        }
        Ok(())
    }
}

/// Most ranges of a range flush.
const RANGES_MAX: usize = 256;

/// Writes of an fsync: their tickets, and their numbers among all writes that belong to chains.
#[derive(Debug, Default)]
struct Submitted {
    fua: bool,
    are_nodes: bool,
    numbers: Vec<u64>,
    tickets: Vec<Ticket>,
}

impl F2fs {
    /// See [`crate::vfs::Fs::fsync`] and the module.
    pub(super) async fn sync_file(&self, ino: Nid, kind: SyncKind) -> Result<(), Errno> {
        // A checkpoint that begins after this point covers everything that was done before, but for what was written in place: one that is
        // made for other files leaves that to this call, or to another one of the same file that has begun.
        let wanted = self.checkpoints_begun.get() + 1;
        let is_busy = || self.is_checkpointing.get() || self.frozen.borrow().contains(&ino);
        let is_covered = || {
            // What a checkpoint or an fsync that has begun flushes is not among the wet any more.
            self.whole_checkpoint_ended.get() >= wanted
                || self.has_checkpoint(wanted) && !self.wet.borrow().contains_key(&ino) && !is_busy()
        };
        loop {
            self.changes.until(|| is_covered() || !is_busy()).await;
            if self.failed.get() {
                return Err(Errno::EROFS);
            }
            if is_covered() {
                return Ok(());
            }
            self.balance().await?;
            if self.run(|state| state.needs_checkpoint(ino)).await? {
                self.state.borrow_mut().metrics.fsyncs_by_checkpoint += 1;
                return self.checkpoint_of(Scope::File(ino)).await;
            }
            if is_busy() {
                continue;
            }
            if !self.wet.borrow().contains_key(&ino) && !self.state.borrow().has_to_sync(ino, kind) {
                return self.synced_before(ino).await;
            }
            self.frozen.borrow_mut().insert(ino);
            let mut nodes = Submitted {
                fua: self.options.fsync == Flushing::Flush || self.appends(),
                are_nodes: true,
                ..Submitted::default()
            };
            let linked = self.sync_frozen(ino, kind, &mut nodes).await;
            let last = nodes.numbers.last().copied();
            if let Some(last) = last {
                self.syncing.borrow_mut().insert(last, ino);
            }
            self.frozen.borrow_mut().remove(&ino);
            self.changes.notify();
            let written = self.ended(nodes).await;
            let synced = match (linked.and_then(|linked| written.map(|()| linked)), last) {
                (Ok(true), Some(last)) => self.flush_chain(last).await.map(|()| true),
                (result, _) => result,
            };
            if let Some(last) = last {
                self.syncing.borrow_mut().remove(&last);
                self.changes.notify();
            }
            match synced {
                Ok(true) => {
                    self.state.borrow_mut().metrics.fsyncs_by_nodes += 1;
                    return self.synced_before(ino).await;
                }
                // A checkpoint came in between, which may have done everything, or one is needed now.
                Ok(false) => (),
                Err(errno) => return Err(errno),
            }
        }
    }

    /// Nothing of a file has to be written, but an earlier fsync may be under way.
    async fn synced_before(&self, ino: Nid) -> Result<(), Errno> {
        self.changes.until(|| !self.syncing.borrow().values().any(|&other| other == ino)).await;
        if self.failed.get() { Err(Errno::EIO) } else { Ok(()) }
    }

    /// Makes the data of a file durable and submits its nodes. Returns false if a checkpoint is being made, or needed since.
    async fn sync_frozen(&self, ino: Nid, kind: SyncKind, nodes: &mut Submitted) -> Result<bool, Errno> {
        let is_planted = self.options.planted == Some(PlantedBug::NoDataFlush);
        let mut blocks = Submitted { fua: self.appends() && !is_planted, ..Submitted::default() };
        // A checkpoint that refers to these blocks waits for them.
        let number = self.begin_write(ino);
        let placed = self.run_into(&mut blocks, |state| state.place_blocks(ino)).await;
        let is_wet = !blocks.tickets.is_empty() && !blocks.fua;
        let ended = self.ended(blocks).await;
        self.end_write(number);
        ended.and(placed)?;
        // Number 0 is cleaning, which moves blocks of any file.
        self.changes
            .until(|| !self.writing.borrow().values().any(|&other| other == ino || other == Nid(0)))
            .await;
        let ends = self.wet.borrow_mut().remove(&ino);
        if (ends.is_some() || is_wet) && !is_planted {
            let (by, selection) = self.data_of_file(ino, ends.unwrap_or_default());
            let flushed = self.flush(by, selection).await;
            // The next call tries again.
            flushed.inspect_err(|_| self.note_wet(ino))?;
        }
        // A checkpoint that has begun may already have placed nodes, for which no chain waits.
        self.run_into(nodes, |state| Ok(!self.is_checkpointing.get() && state.link(ino, kind)?)).await
    }

    /// The flush that makes the data of a file durable: by its tag, or on append segments by where they end.
    fn data_of_file(&self, ino: Nid, ends: Ends) -> (Flushing, Selection) {
        if !self.appends() {
            return (self.options.fsync, Selection::of_owners([Tag(u64::from(ino.0))]));
        }
        match ends.len() > RANGES_MAX {
            true => (Flushing::Flush, Selection::default()),
            false => {
                let ranges = ends.into_values().map(|last| (last, 1)).collect();
                (self.options.fsync, Selection { ranges, ..Selection::default() })
            }
        }
    }

    /// Makes the chain durable up to the nodes with this number.
    async fn flush_chain(&self, number: u64) -> Result<(), Errno> {
        self.changes.until(|| self.linking.borrow().first().is_none_or(|&first| first > number)).await;
        if self.failed.get() {
            return Err(Errno::EIO);
        }
        let is_planted = self.options.planted == Some(PlantedBug::NoMetadataFlush);
        if self.options.fsync == Flushing::RangeFlush && !self.appends() && !is_planted {
            self.flush(Flushing::RangeFlush, Selection::of_owners([METADATA])).await?;
        }
        Ok(())
    }

    /// Like [`F2fs::run`], but the caller gets the tickets.
    async fn run_into<T>(
        &self,
        out: &mut Submitted,
        mut operation: impl FnMut(&mut State) -> Step<T>,
    ) -> Result<T, Errno> {
        loop {
            let step = operation(&mut self.state.borrow_mut());
            let writes = self.take_outbox();
            if out.are_nodes && !writes.is_empty() {
                let number = self.links.get();
                self.links.set(number + 1);
                self.linking.borrow_mut().insert(number);
                out.numbers.push(number);
            }
            let fua = out.fua;
            let submit = |write| self.port.write(Write { fua, ..self.placed(write) });
            out.tickets.extend(writes.into_iter().map(submit));
            match step {
                Ok(value) => return Ok(value),
                Err(Stop::Failed(errno)) => return Err(errno),
                Err(stop) => self.load(stop).await.map_err(|error| errno(&error))?,
            }
        }
    }

    /// Waits for writes. If one fails, the volume is not changed any more, because the state in memory assumes that it succeeded.
    async fn ended(&self, submitted: Submitted) -> Result<(), Errno> {
        let result = answers(submitted.tickets).await;
        if result.is_err() {
            self.failed.set(true);
        }
        for number in submitted.numbers {
            self.linking.borrow_mut().remove(&number);
        }
        self.changes.notify();
        result
    }

    /// Makes everything durable that completed before, or only what is selected. If that fails, the state of the disk is
    /// unknown, and the volume is not changed any more.
    pub(super) async fn flush(&self, by: Flushing, selection: Selection) -> Result<(), Errno> {
        let ticket = match by {
            Flushing::Flush => self.port.flush(),
            Flushing::RangeFlush => self.port.range_flush(selection),
        };
        let flushed = answer(ticket).await;
        if flushed.is_err() {
            self.failed.set(true);
        }
        flushed
    }
}
