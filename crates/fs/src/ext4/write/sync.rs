//! Durability: transactions are closed and committed, one after the other.
//!
//! A caller that needs durability waits for the commit of the transaction that was running then, or the one before; all callers
//! that come meanwhile share the next one. With ordered data a commit waits for the writes of data that had begun when its
//! transaction was closed; the journal makes them durable before its last block. In dual mode order replaces that wait; a
//! transaction is first dispatched and later made durable, and callers wait for each separately ([`super::order`]).

use super::super::layout::superblock::Feature;
use super::super::layout::{Addr, Ino};
use super::journal::Closed;
use super::state::Stop;
use super::{Ext4, Journaling, PlantedBug, errno};
use crate::boxed::Boxed;
use crate::order::answer;
use crate::port::{Block, Request};
use crate::vfs::{Errno, SyncKind, Timestamp};
use flashweir_core::{Duration, Order};
use std::cell::Cell;

type Result<T> = std::result::Result<T, Errno>;

impl Ext4 {
    /// Makes all changes until now durable.
    pub async fn commit(&self) -> Result<()> {
        self.commit_until(self.newest()).await
    }

    /// Ends the running transaction: then there is room for changes, and the blocks that it frees can be used again. In a box,
    /// because otherwise the future of each change would be larger by this one, which it seldom needs.
    pub(super) fn turn_over(&self) -> Boxed<'_, Result<()>> {
        Box::pin(async move { self.dispatch_until(self.newest()).await })
    }

    /// The newest transaction that has changes.
    fn newest(&self) -> u64 {
        let state = self.state.borrow();
        state.running.tid - u64::from(!state.is_changed())
    }

    /// Commits transactions until `wanted` is durable.
    async fn commit_until(&self, wanted: u64) -> Result<()> {
        self.dispatch_until(wanted).await?;
        if !self.is_dual() {
            return Ok(());
        }
        self.awaited.set(self.awaited.get().max(wanted));
        self.flush_until(wanted).await
    }

    /// Dispatches transactions in order until `wanted` is dispatched; in legacy mode it is durable then.
    pub(super) async fn dispatch_until(&self, wanted: u64) -> Result<()> {
        self.advance(&self.is_committing, &self.dispatched, wanted, async || self.commit_running().await)
            .await
    }

    /// Executes steps until `reached`, one task at a time: a task that comes while another one works waits for its result.
    pub(super) async fn advance(
        &self,
        is_working: &Cell<bool>,
        reached: &Cell<u64>,
        wanted: u64,
        step: impl AsyncFn() -> Result<()>,
    ) -> Result<()> {
        loop {
            self.changes.until(|| !is_working.get() || reached.get() >= wanted || self.failed.get()).await;
            if reached.get() >= wanted {
                return Ok(());
            }
            if self.failed.get() {
                return Err(Errno::EROFS);
            }
            is_working.set(true);
            let result = step().await;
            is_working.set(false);
            self.fail_if(result.is_err());
            self.changes.notify();
            result?;
        }
    }

    async fn commit_running(&self) -> Result<()> {
        self.grow_journal().await?;
        self.settle_conflicts().await?;
        self.is_closing.set(true);
        self.changes.until(|| self.handles.get() == 0).await;
        self.is_closing.set(false);
        self.changes.notify();
        // All blocks of a transaction are in memory.
        let closed = self.state.borrow_mut().close().map_err(|stop| match stop {
            Stop::Failed(errno) => errno,
            Stop::Block(_) | Stop::Inode(_) => Errno::EUCLEAN,
        })?;
        let before = self.writes.get();
        let planted = |bug| self.options.planted == Some(bug);
        if self.options.journaling == Journaling::Ordered
            && !self.is_dual()
            && !planted(PlantedBug::UnorderedData)
        {
            self.changes.until(|| self.writing.borrow().front().is_none_or(|&first| first >= before)).await;
        }
        let now = self.state.borrow().clock;
        if planted(PlantedBug::EarlyDiscard) {
            self.discard(&closed.freed).await;
        }
        let revoked = if planted(PlantedBug::NoRevoke) { Vec::new() } else { closed.revoked };
        if !closed.blocks.is_empty() || !revoked.is_empty() {
            let transaction = Closed { blocks: closed.blocks, revoked, now };
            match self.is_dual() {
                true => self.dispatch_transaction(closed.tid, transaction).await?,
                false => self.journal.commit(transaction, || self.flushed.set(closed.tid)).await?,
            }
        }
        self.state.borrow_mut().closed_data.clear();
        if self.options.discard {
            self.discard(&closed.freed).await;
        }
        self.state.borrow_mut().release_freed(&closed.freed);
        self.flushed.set(closed.tid);
        self.dispatched.set(closed.tid);
        if !self.is_dual() {
            self.committed.set(closed.tid);
        }
        Ok(())
    }

    /// Discards blocks that were freed and are not in use again, neighbours together.
    async fn discard(&self, freed: &[(Addr, u32)]) {
        let mut tickets = Vec::new();
        for (addr, count) in merged(freed) {
            self.state.borrow_mut().metrics.discarded_blocks += u64::from(count);
            let order = self.data_order(Order::Within);
            tickets.push(self.port.submit(Request::Discard { block: Block(addr.0), count, order }));
        }
        if self.is_dual() {
            // The discards are ordered after the transaction.
            return;
        }
        for ticket in tickets {
            // The state is the same if the disk cannot discard.
            let _ = ticket.completed().await;
        }
    }

    pub(super) async fn flush(&self) -> Result<()> {
        match self.options.barrier && self.options.planted != Some(PlantedBug::NoBarriers) {
            true => answer(self.port.flush()).await,
            false => Ok(()),
        }
    }

    /// Commits transactions until `wanted` is durable, and makes all data durable that were written before: the transaction may
    /// have been flushed before they were written.
    async fn commit_with_data(&self, wanted: u64) -> Result<()> {
        let is_flushed = wanted <= self.flushed.get();
        self.commit_until(wanted).await?;
        // Journalled data are in a transaction.
        let needs_flush = is_flushed && self.options.journaling != Journaling::Journal;
        if needs_flush { self.flush().await } else { Ok(()) }
    }

    /// fsync and fdatasync of inodes whose dirty pages were written, by one commit or one flush.
    pub(super) async fn sync_files(&self, inos: &[Ino], kind: SyncKind) -> Result<()> {
        if self.failed.get() {
            return Err(Errno::EROFS);
        }
        let tids = self.run(|state| {
            let mut tids = Vec::with_capacity(inos.len());
            for &ino in inos {
                let node = state.node(ino)?;
                tids.push((if kind == SyncKind::Data { node.data_tid } else { node.tid }, node.written_tid));
            }
            Ok(tids)
        });
        let tids = tids.await?;
        let forced = self.options.forced_commits && self.options.journaling == Journaling::Journal;
        let forced = forced.then(|| self.newest());
        {
            let metrics = &mut self.state.borrow_mut().metrics;
            let is_later = |wanted: u64| self.committed.get() < forced.unwrap_or(wanted);
            let by_commit = tids.iter().filter(|(wanted, _)| is_later(*wanted)).count();
            metrics.fsyncs_by_commit += by_commit as u64;
            metrics.fsyncs_by_flush += (tids.len() - by_commit) as u64;
        }
        let wanted = forced.or(tids.iter().map(|(wanted, _)| *wanted).max()).unwrap_or(0);
        if !self.is_dual() {
            return self.commit_with_data(wanted).await;
        }
        self.commit_until(wanted).await?;
        // The data that were dispatched while a transaction was running come before that transaction.
        let is_late = |written: &u64| *written > self.committed.get();
        let late = inos.iter().zip(&tids).filter(|(_, (_, written))| is_late(written)).map(|(ino, _)| *ino);
        let late: Vec<Ino> = late.collect();
        if late.is_empty() { Ok(()) } else { self.flush_data(&late).await }
    }

    /// Makes everything durable.
    pub(super) async fn sync_all(&self) -> Result<()> {
        if self.failed.get() {
            return Err(Errno::EROFS);
        }
        self.commit_with_data(self.newest()).await
    }

    /// Commits, empties the journal, and records on the disk that there is nothing to replay.
    pub(super) async fn end(&self) -> Result<()> {
        self.sync_all().await?;
        let ended = self.end_journal().await;
        // The journal on the disk may hold what is not at its place: another attempt must not declare it empty.
        self.fail_if(ended.is_err());
        ended
    }

    /// Ends all changes of this mount if something has failed that the next one has to mend.
    pub(super) fn fail_if(&self, has_failed: bool) {
        if has_failed {
            self.failed.set(true);
            self.changes.notify();
        }
    }

    async fn end_journal(&self) -> Result<()> {
        self.journal.empty().await?;
        let block = {
            let mut state = self.state.borrow_mut();
            state.superblock.features.set(Feature::RECOVER, false);
            state.update_superblock();
            state.superblock_block().map_err(|_| Errno::EUCLEAN)?
        };
        self.write_superblock(block).await.map_err(|error| errno(&error))
    }

    /// Commits changes after an interval, even without a sync.
    pub(super) async fn commit_in_background(&self, now: Timestamp) -> Option<Duration> {
        self.state.borrow_mut().tick(now);
        // Callers that need the commit get its error.
        let _ = self.commit().await;
        Some(self.options.commit_interval)
    }
}

/// Ranges in the order of their addresses; ranges that touch are merged.
fn merged(ranges: &[(Addr, u32)]) -> Vec<(Addr, u32)> {
    let mut sorted = ranges.to_vec();
    sorted.sort_unstable_by_key(|&(addr, _)| addr.0);
    sorted.dedup_by(|next, last| {
        let touch = last.0.0 + u64::from(last.1) == next.0.0;
        if touch && let Some(sum) = last.1.checked_add(next.1) {
            last.1 = sum;
            return true;
        }
        false
    });
    sorted
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ext4::{Options, mkfs};
    use crate::port::{Image, block_on};
    use crate::vfs::{Fs, Kind, NewAcls, NewNode};
    use std::rc::Rc;

    /// No call has brought the time, so it comes with the background turn.
    #[test]
    fn a_commit_in_the_background_says_when_it_was() {
        let image = Rc::new(Image::in_memory(64 << 8));
        block_on(mkfs(&*image, &Options::new(64 << 8))).unwrap();
        let fs = block_on(Ext4::mount(image)).unwrap();
        let at = |seconds| Timestamp { seconds, nanos: 0 };
        let now = at(4_000_000_000);
        // The superblock names the first inode without a name.
        let (kind, acls) = (Kind::File, NewAcls::default());
        let node = NewNode { kind, mode: 0o600, uid: 0, gid: 0, now: at(5), acls };
        block_on(fs.create_nameless(fs.root(), &node)).unwrap();
        let next = block_on(fs.commit_in_background(now));
        assert_eq!(next, Some(fs.options.commit_interval), "the next one comes after the interval");
        assert_eq!(fs.state.borrow().superblock.write_time, 4_000_000_000);
    }

    #[test]
    fn freed_neighbours_are_discarded_at_once() {
        let ranges = [(7, 2), (3, 1), (4, 2), (20, 5), (9, 1), (6, 1)].map(|(at, count)| (Addr(at), count));
        assert_eq!(merged(&ranges), [(Addr(3), 7), (Addr(20), 5)]);
        assert_eq!(merged(&[(Addr(1), u32::MAX), (Addr(1 + u64::from(u32::MAX)), 1)]).len(), 2);
        assert_eq!(merged(&[]), []);
    }
}
