//! Sets of pages of several files in one transaction (share §7): what atomic files withheld until a sync.
//!
//! Invariants: room is claimed before anything changes, so that no page of a set lacks it; one handle is open from the first page
//! to the last, so that no commit comes in between. If reading metadata fails in between, the journal ends as after a failed
//! commit: the running transaction, which has a part of the set, is never committed.

use super::super::layout::Ino;
use super::fs::{BLOCK, row};
use super::state::{State, Step};
use super::{Ext4, OPERATION_BLOCKS, PlantedBug};
use crate::engine::{Nodes, time};
use crate::vfs::{DirtyPage, Errno, SetPart, WriteCause};

type Result<T> = std::result::Result<T, Errno>;

/// Blocks of metadata that a row of pages without blocks may change: bitmap, descriptors, and two nodes of the extent tree.
const ROW_BLOCKS: usize = 4;
/// Blocks of metadata that a file of a set changes: its inode, and the root of what it grows by.
const FILE_BLOCKS: usize = 2;

impl Ext4 {
    /// See [`Fs::write_set`](crate::vfs::Fs::write_set). A set has at most a quarter of the journal as it is now (share §7.5), with
    /// its metadata and an operation that was let in before.
    pub(super) async fn journal_set(&self, parts: &[SetPart]) -> Result<()> {
        if self.options.planted == Some(PlantedBug::LeftOutOfSet)
            && let Some((last, others)) = parts.split_last().filter(|(_, others)| !others.is_empty())
        {
            self.journal_whole(others).await?;
            self.commit().await?;
            return self.journal_whole(std::slice::from_ref(last)).await;
        }
        self.journal_whole(parts).await
    }

    async fn journal_whole(&self, parts: &[SetPart]) -> Result<()> {
        let mut blocks = 0;
        for part in parts {
            let ino = number(part)?;
            blocks += part.pages.len() + FILE_BLOCKS;
            for (first, count) in rows(&part.pages) {
                let is_in_place = self.run(|state| state.is_in_place(ino, first, first + count)).await?;
                blocks += if is_in_place { 0 } else { ROW_BLOCKS };
            }
        }
        if blocks + OPERATION_BLOCKS > self.journal.blocks_max() {
            return Err(Errno::EFBIG);
        }
        if let Err(errno) = self.claim_all(parts).await {
            let mut state = self.state.borrow_mut();
            for part in parts {
                let ino = number(part)?;
                rows(&part.pages).for_each(|(first, count)| state.end_claim(ino, first, first + count));
            }
            return Err(errno);
        }
        let _handle = self.handle(blocks).await?;
        for part in parts {
            let placed = self.put_part(number(part)?, part).await;
            if placed.is_err() {
                self.fail_if(true);
                return placed;
            }
        }
        Ok(())
    }

    /// Claims room for all pages of a set.
    async fn claim_all(&self, parts: &[SetPart]) -> Result<()> {
        for part in parts {
            let ino = number(part)?;
            for (first, count) in rows(&part.pages) {
                let range = (first * BLOCK, (first + count) * BLOCK);
                self.change(|state| state.reserve(ino, range)).await?;
            }
        }
        Ok(())
    }

    /// Puts what a set has of one file into the running transaction.
    async fn put_part(&self, ino: Ino, part: &SetPart) -> Result<()> {
        {
            let mut state = self.state.borrow_mut();
            state.note_written(ino, |node| {
                node.size = node.size.max(part.end);
                node.written_end = node.written_end.max(part.end);
                if let Some(changed) = part.changed {
                    (node.inode.mtime, node.inode.ctime) = (time(changed), time(changed));
                }
            });
            // Setting another feature cannot fail.
            let _ = state.note_size(ino);
        }
        self.put_pages(ino, &part.pages, WriteCause::Sync).await
    }
}

impl State {
    /// Whether all pages of a range have blocks that were written before.
    fn is_in_place(&mut self, ino: Ino, first: u64, end: u64) -> Step<bool> {
        let mut at = first;
        while at < end {
            let span = self.span(ino, at)?;
            if span.written(at).is_none() {
                return Ok(false);
            }
            at = span.end;
        }
        Ok(true)
    }
}

fn number(part: &SetPart) -> Result<Ino> {
    State::number(part.ino)
}

/// First page and count of each row of pages.
fn rows(pages: &[DirtyPage]) -> impl Iterator<Item = (u64, u64)> {
    let mut at = 0;
    std::iter::from_fn(move || {
        let rest = pages.get(at..).filter(|rest| !rest.is_empty())?;
        let count = row(rest);
        at += count as usize;
        Some((rest[0].index, count.into()))
    })
}
