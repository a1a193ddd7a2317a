//! Going on after a power cut on append segments: a block that is written cannot be written again, so logs go on behind everything that
//! the mount before has written, whether or not anything refers to it.
//!
//! Place in the data flow: the part of [recovery](super::recover) that such a volume has instead of `dodge`, after the synced files were
//! adopted and before the checkpoint.
//!
//! Summaries cannot be written again either. Those of full segments are there, from the mount before, and right: adopted nodes keep their
//! numbers ([`Since::numbers`](super::since::Since)). A segment that is written in part, holds adopted blocks and has no log is filled up
//! with zeros and gets its summary.
//!
//! Invariant: nothing here writes to a block that was written, so a cut in the middle leaves everything to the next mount.

use super::super::appended::written_in;
use super::super::chain::Link;
use super::super::layout::checkpoint::Cursor;
use super::super::layout::summary::Summary;
use super::super::layout::{Log, Nid, SEGMENT_BLOCKS, SegNo};
use super::space::Summarised;
use super::state::{OpenLog, State};
use super::stop::Step;
use super::{Error, F2fs, Result};
use crate::port::BLOCK_BYTES;
use std::collections::BTreeSet;

impl State {
    /// Lets the nodes of a chain keep their numbers. Errors: one that no node can have.
    pub(super) fn keep_numbers(&mut self, chain: &[Link]) -> Result<()> {
        let end = self.geometry.nid_end();
        for Link { footer, addr, .. } in chain {
            if !(Nid::ROOT < footer.nid && footer.nid < end) {
                return Err(Error::Corrupt(format!(
                    "the node synced at {addr} has the number {}, expected one from {} to {}",
                    footer.nid,
                    Nid::ROOT.0 + 1,
                    end.0 - 1
                )));
            }
            self.since.numbers.insert((footer.ino, footer.offset), footer.nid);
            self.since.chained.insert(footer.nid);
        }
        Ok(())
    }

    /// Moves the logs behind what is written in their sections. It may be run again after it has stopped.
    fn pass_written(&mut self, written: &[u32]) -> Step<()> {
        let per_section = self.geometry.segments_per_section;
        for log in Log::ALL {
            let cursor = self.logs[log.index()].cursor;
            let section = self.section_of(cursor.segment);
            let first = section * per_section;
            let end = written.get(section as usize).copied().unwrap_or(0);
            let here = (cursor.segment.0 - first) * SEGMENT_BLOCKS + u32::from(cursor.offset);
            if end <= here {
                continue;
            }
            let (segment, offset) = (SegNo(first + end / SEGMENT_BLOCKS), end % SEGMENT_BLOCKS);
            if segment == cursor.segment {
                self.logs[log.index()].cursor.offset = offset as u16;
            } else if segment.0 == first + per_section {
                let successor = self.successor(log)?;
                self.go_on(log, successor, Summarised::Before);
                continue;
            } else {
                let adopted = self.space.summaries.get(&segment).map(|(_, summary)| summary.clone());
                let summary = adopted.unwrap_or_else(|| Summary::new(log.is_node()));
                let cursor = Cursor { segment, offset: offset as u16, fills_holes: false };
                self.go_on(log, OpenLog { cursor, summary }, Summarised::Before);
            }
            if offset == self.geometry.log_blocks {
                self.move_on(log)?;
            }
        }
        Ok(())
    }

    /// Fills up a segment that is written in part, and writes its summary.
    fn fill_up(&mut self, segment: SegNo, from: u32) {
        for offset in from..self.geometry.log_blocks {
            self.write(self.geometry.main_block(segment, offset), &[0; BLOCK_BYTES], 0);
        }
        self.store_summary(segment);
    }
}

impl F2fs {
    /// See the module. `adopted` are the segments in which blocks were adopted and that no log has.
    pub(super) async fn go_on_behind(&self, written: &[u32], adopted: &BTreeSet<SegNo>) -> Result<()> {
        let failed = |errno| Error::Corrupt(format!("recovery: a log has no place to go on: {errno:?}"));
        self.run(|state| state.pass_written(written)).await.map_err(failed)?;
        for &segment in adopted {
            let (is_open, here) = {
                let state = self.state.borrow();
                let is_open = state.logs.iter().any(|log| log.cursor.segment == segment);
                (is_open, written_in(&state.geometry, written, segment))
            };
            match here {
                _ if is_open => (),
                SEGMENT_BLOCKS => self.compare_summary(segment).await?,
                here => self.state.borrow_mut().fill_up(segment, here),
            }
        }
        self.submit_outbox();
        Ok(())
    }

    /// Moves the blocks of a full segment whose summary does not lead to their owners.
    async fn compare_summary(&self, segment: SegNo) -> Result<()> {
        let there = Summary::decode(&self.volume.block(self.volume.geometry().summary_block(segment)).await?);
        let valid = self.run(|state| state.valid_blocks_of(segment)).await;
        let valid =
            valid.map_err(|errno| Error::Corrupt(format!("recovery: segment {segment}: {errno:?}")))?;
        let offset = |addr| self.volume.geometry().place_of(addr).map_or(0, |(_, offset)| offset);
        if valid.iter().all(|(addr, owner)| there.owners[offset(*addr) as usize] == *owner) {
            return Ok(());
        }
        let moved = self.move_data(valid).await;
        moved.map_err(|errno| {
            Error::Corrupt(format!("recovery: segment {segment} cannot be moved: {errno:?}"))
        })
    }
}
