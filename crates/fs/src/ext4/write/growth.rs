//! A journal that grows: a log in which commits have to wait for room gets more blocks.
//!
//! ```text
//!  1. a transaction has the journal's inode with more blocks, their bitmaps, and the superblock's copy of the inode
//!  2. it is durable ► the log is emptied, so that the inode is at its place ► zeros to the new blocks ► flush
//!  3. the journal's superblock, durably: from here on the log has them
//! ```
//!
//! Invariant: the journal's superblock never counts more blocks than the inode at its place has. A power cut before step 3 leaves an inode
//! with blocks that the log does not use; the next growth takes them first.
//!
//! Deliberately absent: a journal that becomes smaller.

use super::super::layout::Ino;
use super::super::layout::extent::{BLOCKS_MAX, Extent};
use super::journal::{Growth, Run};
use super::state::{State, Step};
use super::{Ext4, PlantedBug};
use crate::port::BLOCK_BYTES;
use crate::vfs::Errno;

type Result<T> = std::result::Result<T, Errno>;
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
        if let Some(growth) = self.growth.take() {
            if self.is_dual() {
                self.flush_until(growth.tid).await?;
            }
            return self.journal.extend(&growth.runs).await;
        }
        let wanted = self.journal.wanted_growth(most);
        if wanted == 0 {
            return Ok(());
        }
        let used = self.journal.blocks();
        let extended = self.run(|state| Ok((state.extend_journal(used, wanted)?, state.running.tid))).await;
        match extended {
            // It may have room later.
            Err(Errno::ENOSPC) => Ok(()),
            Err(errno) => Err(errno),
            Ok((runs, tid)) => {
                let more: u64 = runs.iter().map(|(_, count)| u64::from(*count)).sum();
                self.overhead.set(self.overhead.get() + more);
                match self.options.planted == Some(PlantedBug::LogBeforeInode) {
                    true => self.journal.extend(&runs).await?,
                    false => *self.growth.borrow_mut() = Some(Growth { tid, runs }),
                }
                Ok(())
            }
        }
    }
}

impl State {
    /// Gives the journal's inode up to `wanted` blocks behind the `used` ones of the log, and returns them: first those that it has.
    fn extend_journal(&mut self, used: u32, wanted: u32) -> Step<Vec<Run>> {
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
            return Ok(runs);
        }
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
        self.note_journal_copy()?;
        Ok(runs)
    }

    /// Brings the superblock's copy of the journal's inode up to date.
    fn note_journal_copy(&mut self) -> Step<()> {
        let inode = &self.node(Ino::JOURNAL)?.inode;
        let (words, bytes): (Vec<u32>, u64) = ((0..15).map(|at| inode.word(at)).collect(), inode.size);
        let copy = &mut self.superblock.journal_blocks;
        copy[..15].copy_from_slice(&words);
        (copy[15], copy[16]) = ((bytes >> 32) as u32, bytes as u32);
        self.running.has_superblock = true;
        Ok(())
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
        while fs.growth.borrow().is_none() {
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
