//! Checks of the segments in memory that must hold between any two operations: invariants 1 and 2 of [`space`](super::space).
//!
//! Deliberately absent: the contents of the disk, which [`check`](super::super::check()) checks.

use super::super::layout::{Log, SEGMENT_BLOCKS, SegNo};
use super::F2fs;
use super::segments::ones;
use super::state::State;

impl F2fs {
    /// Checks the state in memory. Errors: the first violation.
    pub fn audit(&self) -> Result<(), String> {
        let state = self.state.borrow();
        // A planted bug has to be found by its effects.
        if state.planted.is_some() { Ok(()) } else { state.audit() }
    }
}

impl State {
    fn audit(&self) -> Result<(), String> {
        let mut written = 0;
        for segment in (0..self.geometry.main_segments).map(SegNo) {
            self.audit_segment(segment).map_err(|what| format!("segment {segment}: {what}"))?;
            written += u64::from(self.sit[segment.0 as usize].valid);
        }
        match written == self.space.written {
            true => Ok(()),
            false => Err(format!("{written} blocks are valid, and {} are counted", self.space.written)),
        }
    }

    fn audit_segment(&self, segment: SegNo) -> Result<(), String> {
        let (entry, kept) = (&self.sit[segment.0 as usize], &self.space.kept[segment.0 as usize]);
        let writers: Vec<Log> =
            Log::ALL.into_iter().filter(|log| self.logs[log.index()].cursor.segment == segment).collect();
        let (is_free, is_emptied) =
            (self.space.free.contains(segment), self.space.emptied.contains(&segment));
        let is = |what: bool| u32::from(what);
        if is(is_free) + is(is_emptied) + writers.len() as u32 > 1 {
            return Err(format!("free: {is_free}, emptied: {is_emptied}, open for {writers:?}"));
        }
        let (valid, is_used) = (entry.valid, !writers.is_empty());
        if (is_free || is_emptied) != (valid == 0 && !is_used) {
            return Err(format!(
                "{valid} valid blocks, free: {is_free}, emptied: {is_emptied}, open: {is_used}"
            ));
        }
        if is_free && ones(kept) > 0 {
            return Err(format!("it is free, and {} of its blocks are kept", ones(kept)));
        }
        if ones(&entry.map) != u32::from(valid) {
            return Err(format!("{valid} blocks are valid, and {} are in its map", ones(&entry.map)));
        }
        let is_lost = |at: u32| entry.is_valid(at) && !self.space.is_kept(segment, at);
        if let Some(at) = (0..SEGMENT_BLOCKS).find(|&at| is_lost(at)) {
            return Err(format!("block {at} is valid and not kept"));
        }
        match writers.first() {
            Some(log) if usize::from(entry.log) != log.index() && valid > 0 => {
                Err(format!("{log:?} writes it, and it is of log {}", entry.log))
            }
            _ => Ok(()),
        }
    }
}
