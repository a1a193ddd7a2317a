//! A journal that grows: a log in which commits have to wait for room gets more blocks.
//!
//! ```text
//!  1. new nodes of the journal's extent tree go to their places, durably: blocks that are free until step 2
//!  2. a transaction has the journal's inode with more blocks, their bitmaps, and the superblock's copy of the inode
//!  3. it is durable ► the log is emptied, so that the inode is at its place ► zeros to the new blocks ► flush
//!  4. the journal's superblock, durably: from here on the log has them
//! ```
//!
//! Invariants:
//! 1. The journal's superblock never counts more blocks than the inode at its place has. A power cut before step 4 leaves an inode with
//!    blocks that the log does not use; the next growth takes them first.
//! 2. The inode at its place never names a node that is not at its own: who replays the log finds the log by them, and a checkpoint or a
//!    replay that is cut may have written the inode only. Nodes that are not new may be older than the inode: they map what the
//!    superblock counts.
//!
//! Deliberately absent: a journal that becomes smaller.

use super::super::layout::extent::{BLOCKS_MAX, Extent};
use super::super::layout::{Addr, Ino};
use super::journal::Run;
use super::state::{State, Step};
use super::{Ext4, PlantedBug};
use crate::port::{BLOCK_BYTES, payload_of};
use crate::vfs::Errno;
use flashweir_core::{Order, Payload};

type Result<T> = std::result::Result<T, Errno>;
/// Nodes of an extent tree with their addresses.
type Nodes = Vec<(Addr, Payload)>;
/// Most extents that one growth adds: so many groups may a transaction touch beside its operation.
const RUNS_MAX: usize = 16;
/// Part of the free blocks that one growth may take.
const FREE_PART: u64 = 4;

impl Ext4 {
    /// Takes the next step of a growth, if one is due. Runs before a transaction is closed, and beside no commit.
    pub(super) async fn grow_journal(&self) -> Result<()> {
        let most = self.options.journal_blocks_max;
        if most == 0 {
            return Ok(());
        }
        let runs = self.growth.take();
        if !runs.is_empty() {
            // The transaction that was dispatched last has the inode with them.
            if self.is_dual() {
                self.flush_until(self.dispatched.get()).await?;
            }
            return self.journal.extend(&runs).await;
        }
        let wanted = self.journal.wanted_growth(most);
        if wanted == 0 {
            return Ok(());
        }
        let used = self.journal.blocks();
        let (runs, nodes) = match self.run(|state| state.extend_journal(used, wanted)).await {
            // It may have room later.
            Err(Errno::ENOSPC) => return Ok(()),
            extended => extended?,
        };
        if !nodes.is_empty() {
            // What has freed these blocks is durable then.
            if self.is_dual() {
                self.flush_until(self.dispatched.get()).await?;
            }
            self.journal.write_ahead(nodes, self.data_order(Order::Within)).await?;
        }
        let more = runs.iter().map(|(_, count)| u64::from(*count)).sum::<u64>();
        self.overhead.set(self.overhead.get() + more);
        if self.options.planted == Some(PlantedBug::LogBeforeInode) {
            return self.journal.extend(&runs).await;
        }
        self.growth.replace(runs);
        Ok(())
    }
}

impl State {
    /// Gives the journal's inode up to `wanted` blocks behind the `used` ones of the log, first those that it has. Returns them, and the new
    /// nodes of its extent tree.
    fn extend_journal(&mut self, used: u32, wanted: u32) -> Step<(Vec<Run>, Nodes)> {
        let ino = Ino::JOURNAL;
        self.loaded_inode(ino)?;
        let (mut at, end) = (u64::from(used), u64::from(used) + u64::from(wanted));
        let has = self.node(ino)?.inode.size / BLOCK_BYTES as u64;
        let mut runs = Vec::new();
        while at < has.min(end) {
            let span = self.span(ino, at)?;
            let addr = span.written(at).ok_or(Errno::EUCLEAN)?;
            let count = span.end.min(end).min(has) - at;
            runs.push((addr, count as u32));
            at += count;
        }
        if !runs.is_empty() {
            return Ok((runs, Vec::new()));
        }
        let old_nodes = self.tree_path(ino, at)?;
        let end = end.min(at + self.free_blocks() / FREE_PART);
        while at < end && runs.len() < RUNS_MAX {
            let goal = self.goal(ino, at)?;
            let (addr, count) = self.allocate(goal, (end - at).min(BLOCKS_MAX.into()) as u32)?;
            let new = Extent { first: at as u32, blocks: count as u16, addr, is_unwritten: false };
            self.insert_extent(ino, new)?;
            self.count_blocks(ino, count.into())?;
            runs.push((addr, count));
            at += u64::from(count);
        }
        if runs.is_empty() {
            return Err(Errno::ENOSPC.into());
        }
        let bytes = at * BLOCK_BYTES as u64;
        let node = self.node_mut(ino)?;
        (node.inode.size, node.size, node.written_end) = (bytes, bytes, bytes);
        self.superblock.journal_blocks = node.inode.journal_copy();
        self.running.has_superblock = true;
        // Extents are added at the end, so all new nodes lead to the last one.
        let path = self.tree_path(ino, at - 1)?;
        let new = path.into_iter().filter(|addr| !old_nodes.contains(addr));
        let nodes = new.map(|addr| {
            self.encode_extent_node(addr);
            Ok((addr, payload_of(self.block(addr)?)))
        });
        Ok((runs, nodes.collect::<Step<Nodes>>()?))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ext4::{Ext4Options, Options, check, mkfs};
    use crate::order::CommitMode;
    use crate::port::{BlockPort, Image, block_on};
    use crate::vfs::{Fs, Kind, NewAcls, NewNode, Timestamp};
    use std::rc::Rc;

    const BLOCKS: u64 = 64 << 8;

    fn mounted(image: &Rc<Image>, journal_blocks_max: u32, commit_mode: CommitMode) -> Ext4 {
        let options = Ext4Options { journal_blocks_max, commit_mode, ..Ext4Options::default() };
        block_on(Ext4::mount_with(Rc::clone(image) as _, options)).unwrap()
    }

    /// Makes files, each in a transaction of its own.
    fn make_files(fs: &Ext4, names: std::ops::Range<u32>) {
        let (kind, acls) = (Kind::File, NewAcls::default());
        let node = NewNode { kind, mode: 0o600, uid: 0, gid: 0, now: Timestamp::default(), acls };
        for name in names {
            block_on(fs.create(fs.root(), format!("{name}").as_bytes(), &node)).unwrap();
            block_on(fs.commit()).unwrap();
        }
    }

    fn problems(image: &Rc<Image>) -> Vec<String> {
        let report = block_on(check(Rc::clone(image) as _)).unwrap();
        report.problems.iter().map(ToString::to_string).collect()
    }

    #[test]
    fn a_journal_that_is_short_of_room_doubles_up_to_its_limit() {
        for commit_mode in [CommitMode::Legacy, CommitMode::DualMode] {
            let image = Rc::new(Image::in_memory(BLOCKS));
            let new = Options { journal_blocks: Some(1024), ..Options::new(BLOCKS) };
            block_on(mkfs(&*image, &new)).unwrap();
            let fs = mounted(&image, 0, commit_mode);
            make_files(&fs, 0..400);
            assert_eq!((fs.journal.blocks(), fs.metrics().grown_blocks), (1024, 0), "not asked for");
            block_on(fs.unmount()).unwrap();
            let fs = mounted(&image, 3_000, commit_mode);
            let free = block_on(fs.statfs()).unwrap();
            make_files(&fs, 400..1_200);
            let grown = fs.metrics().grown_blocks;
            assert_eq!((fs.journal.blocks(), grown), (3_000, 1_976), "{commit_mode:?}");
            let left = block_on(fs.statfs()).unwrap();
            assert_eq!(free.pages - left.pages, grown, "what the journal has files cannot have");
            assert!(free.pages_free - left.pages_free >= grown);
            block_on(fs.unmount()).unwrap();
            assert_eq!(problems(&image), Vec::<String>::new());
            let fs = mounted(&image, 0, commit_mode);
            assert_eq!(fs.journal.blocks(), 3_000);
            make_files(&fs, 1_200..2_000);
            drop(fs);
            // With a log to replay.
            assert_eq!(problems(&image), Vec::<String>::new());
        }
    }

    /// A power cut between the two steps leaves an inode with more blocks than the log uses.
    #[test]
    fn blocks_that_an_interrupted_growth_left_are_taken_first() {
        let image = Rc::new(Image::in_memory(BLOCKS));
        block_on(mkfs(&*image, &Options { journal_blocks: Some(1024), ..Options::new(BLOCKS) })).unwrap();
        let fs = mounted(&image, 2_048, CommitMode::Legacy);
        let mut name = 0;
        while fs.growth.borrow().is_empty() {
            make_files(&fs, name..name + 1);
            name += 1;
        }
        drop(fs);
        assert_eq!(problems(&image), Vec::<String>::new());
        let fs = mounted(&image, 2_048, CommitMode::Legacy);
        assert_eq!(fs.journal.blocks(), 1_024);
        let free = block_on(fs.statfs()).unwrap().pages_free;
        make_files(&fs, name..name + 600);
        assert_eq!((fs.journal.blocks(), fs.metrics().grown_blocks), (2_048, 1_024));
        assert!(free - block_on(fs.statfs()).unwrap().pages_free < 300, "nothing was allocated for it");
        block_on(fs.unmount()).unwrap();
        assert_eq!(problems(&image), Vec::<String>::new());
        assert_eq!(image.capacity_blocks(), BLOCKS);
    }

    /// Found by a cut in the recovery of a cut: the replay had written the inode, and not yet the new node that it named.
    #[test]
    fn a_replay_that_is_cut_behind_the_inode_of_the_journal_finds_the_log() {
        for commit_mode in [CommitMode::Legacy, CommitMode::DualMode] {
            let image = Rc::new(Image::in_memory(BLOCKS));
            block_on(mkfs(&*image, &Options { journal_blocks: Some(1024), ..Options::new(BLOCKS) })).unwrap();
            let fs = mounted(&image, 2_048, commit_mode);
            // Free space in pieces, so that the journal needs more extents than its inode has room for.
            let every_hundredth = |state: &mut State| {
                (1..BLOCKS / 100).try_for_each(|at| state.allocate(Addr(at * 100), 1).map(drop))
            };
            block_on(fs.run(every_hundredth)).unwrap();
            let depth = |fs: &Ext4| {
                let path = |state: &mut State| {
                    state.loaded_inode(Ino::JOURNAL)?;
                    state.tree_path(Ino::JOURNAL, 0)
                };
                block_on(fs.run(path)).unwrap().len()
            };
            assert_eq!(depth(&fs), 0);
            let mut name = 0;
            while fs.growth.borrow().is_empty() {
                make_files(&fs, name..name + 1);
                name += 1;
            }
            assert_eq!(depth(&fs), 1, "{commit_mode:?}");
            let mut torn = image.to_bytes().unwrap();
            make_files(&fs, name..name + 1);
            assert_eq!(fs.journal.blocks(), 2_048);
            let Ok((Addr(table), _)) = fs.state.borrow().inode_place(Ino::JOURNAL) else { panic!() };
            let block = table as usize * BLOCK_BYTES..(table as usize + 1) * BLOCK_BYTES;
            torn[block.clone()].copy_from_slice(&image.to_bytes().unwrap()[block]);
            let fs = mounted(&Rc::new(Image::from_bytes(&torn)), 0, commit_mode);
            assert_eq!(depth(&fs), 1);
            let last = format!("{}", name - 1);
            block_on(fs.lookup(fs.root(), last.as_bytes())).unwrap();
        }
    }

    /// A growth takes a part of what is free.
    #[test]
    fn a_growth_leaves_room_for_files() {
        let image = Rc::new(Image::in_memory(BLOCKS));
        block_on(mkfs(&*image, &Options { journal_blocks: Some(1024), ..Options::new(BLOCKS) })).unwrap();
        let fs = mounted(&image, 100_000, CommitMode::Legacy);
        make_files(&fs, 0..3_000);
        let (blocks, free) = (fs.journal.blocks(), block_on(fs.statfs()).unwrap().pages_free);
        assert!(blocks > 4_096 && free > 4_096, "{blocks} blocks, {free} pages free");
        block_on(fs.unmount()).unwrap();
        assert_eq!(problems(&image), Vec::<String>::new());
    }
}
