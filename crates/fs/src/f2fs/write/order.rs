//! Order in the place of waiting (barriers §6): everything is written in order in one stream, calls wait for dispatch only, and a call that
//! needs durability waits for one flush.
//!
//! | call | dispatches | waits for |
//! |---|---|---|
//! | fsync | data; nodes; or a checkpoint | the flush behind them |
//! | fdatasync | the same, the inode only if more than its times changed | the flush behind them |
//! | fbarrier | as fsync | their dispatch |
//! | fdatabarrier | data; nodes only if a page of them had another place before | their dispatch, and that of a checkpoint with them |
//! | checkpoint | data, nodes, tables and pack; its last block; discards; | dispatch, and a flush where durability was promised |
//!
//! A semicolon is the end of an epoch.
//!
//! # What has to be in an epoch before what
//!
//! 1. *Data before the nodes that refer to them*, for the reason in [`fsync`](super::fsync). Between the end of the epoch and
//!    the nodes no page is placed: that is one step without waiting, taken when all that were placed have been submitted.
//! 2. *Nodes before later nodes of the chain.* Each run of nodes ends an epoch. So a flush that covers the last node of an fsync
//!    covers the whole chain up to it, and everything that was ordered before it, of any file.
//! 3. *All that a pack refers to before its last block*, and that before everything later: what is written over blocks
//!    that it frees, their discards, the pack behind it, nodes with its stamp. So blocks are free again when it is
//!    dispatched.
//! 4. *Nothing else.* What a node or a pack says persists with all that was dispatched before it.
//!
//! fdatabarrier orders overwrites. For pages written in place the data are enough; a page that moved to another block is visible only with
//! its node, so the nodes of a file with such pages are written, too (`moved`).
//!
//! Invariants:
//! 1. What was dispatched and not flushed is known: of files in `volatile`, of checkpoints by their number.
//! 2. A disk that fails an ordered write keeps nothing of later epochs; the volume is not changed any more.
//! 3. What must not be read from the disk before it has arrived is read after an answer: summaries stay in memory until then,
//!    and cleaning waits for data that are under way.

use super::super::layout::{Addr, Geometry, Log, Nid};
use super::checkpoint::Pending;
use super::fs::Durable;
use super::options::{Flushing, PlantedBug};
use super::ordered::Ordered;
use super::space::Discarded;
use super::stop::Stop;
use super::tags::METADATA;
use super::{F2fs, Scope, errno};
use crate::order::{CommitMode, Dispatched, STREAM};
use crate::port::{Block, InOrder, Request, Selection, Share, Ticket, Write, payload_of};
use crate::vfs::{Barrier, DirtyPage, Errno, SyncKind, WriteCause};
use flashweir_core::Order;
use flashweir_core::command::{Handle, Tag};
use std::rc::Rc;

type Result<T> = std::result::Result<T, Errno>;

impl F2fs {
    /// Whether order is used instead of waiting.
    pub(super) fn is_dual(&self) -> bool {
        self.options.commit_mode == CommitMode::DualMode
    }

    fn plants(&self, bug: PlantedBug) -> bool {
        self.options.planted == Some(bug)
    }

    // Requests.

    fn in_order(&self, order: Order) -> InOrder {
        if !self.is_dual() {
            return None;
        }
        self.ordered.is_open.set(order == Order::Within);
        self.ordered.epochs.set(self.ordered.epochs.get() + u64::from(order == Order::Barrier));
        Some((STREAM, order))
    }

    /// Submits a write, in order in dual mode.
    pub(super) fn submit(&self, write: Write, order: Order) -> Ticket {
        let order = self.in_order(order);
        self.port.write(Write { order, ..self.placed(write) })
    }

    /// The same write with the handle of its log, where the disk has one for each: data of one log are then in erase blocks of their own
    /// (append-segments §7.5). Checkpoints and tables have the default handle, that of directories.
    pub(super) fn placed(&self, write: Write) -> Write {
        if !self.has_handles {
            return write;
        }
        let state = self.state.borrow();
        let place = state.geometry.place_of(Addr(write.block.0 as u32));
        let log = place.map_or(0, |(segment, _)| state.sit[segment.0 as usize].log);
        Write { handle: Handle(log.min(Log::ALL.len() as u8 - 1)), ..write }
    }

    /// Submits a write of data, in order in dual mode.
    pub(super) fn submit_data(&self, write: Write, order: Order) -> Ticket {
        match self.plants(PlantedBug::UnorderedData) {
            true => self.port.write(self.placed(write)),
            false => self.submit(write, order),
        }
    }

    /// Submits a SHARE of data, in order in dual mode.
    pub(super) fn submit_share(&self, share: Share) -> Ticket {
        let is_loose = self.plants(PlantedBug::UnorderedData);
        let order = if is_loose { None } else { self.in_order(Order::Within) };
        self.port.share(Share { order, ..share })
    }

    /// Ends the open epoch, if it has members.
    fn close_epoch(&self) -> Option<Ticket> {
        self.ordered.is_open.get().then(|| {
            let _ = self.in_order(Order::Barrier);
            self.port.barrier(STREAM)
        })
    }

    // Data that have their places.

    pub(super) fn begin_placing(&self, number: u64, ino: Nid) {
        if self.is_dual() {
            self.ordered.placing.borrow_mut().insert(number, ino);
        }
    }

    /// All pages of a write of data have been submitted.
    pub(super) fn end_placing(&self, number: u64) {
        if self.ordered.placing.borrow_mut().remove(&number).is_some() {
            self.changes.notify();
        }
    }

    /// Whether data of a file have places and are not submitted; number 0 is cleaning, which moves blocks of any file.
    fn is_placing(&self, ino: Nid) -> bool {
        self.ordered.placing.borrow().values().any(|&other| other == ino || other == Nid(0))
    }

    /// Notes that a page of a file moves to another place.
    pub(super) fn note_moved_page(&self, ino: Nid) {
        if self.is_dual() {
            self.ordered.moved.borrow_mut().insert(ino);
        }
    }

    /// Notes that something of a file is under way and may not be durable.
    pub(super) fn note_volatile(&self, ino: Nid) {
        let number = self.ordered.dispatches.get() + 1;
        self.ordered.dispatches.set(number);
        self.ordered.volatile.borrow_mut().insert(ino, number);
    }

    // Calls.

    /// fbarrier and fdatabarrier, and the first half of fsync and fdatasync. Returns the requests that the device has to answer.
    pub(super) async fn order_file(
        &self,
        ino: Nid,
        pages: &[DirtyPage],
        kind: Barrier,
    ) -> Result<Vec<Rc<Dispatched>>> {
        self.sweep().await;
        let epochs = self.ordered.epochs.get();
        let mut all = self.dispatch_pages(ino, pages, kind).await?;
        let Ordered { moved, leaving, .. } = &self.ordered;
        let is_moved = moved.borrow().contains(&ino) || leaving.borrow().contains(&ino);
        match kind {
            Barrier::All => all.extend(self.order_nodes(ino, SyncKind::All).await?),
            Barrier::Data if is_moved && !self.plants(PlantedBug::ForgottenMoves) => {
                all.extend(self.order_nodes(ino, SyncKind::Data).await?);
            }
            Barrier::Data => (),
        }
        // If an epoch has ended meanwhile, everything that was dispatched before this call is in an earlier one already.
        if self.ordered.epochs.get() == epochs
            && !(kind == Barrier::Data && self.plants(PlantedBug::LostBarrier))
            && let Some(barrier) = self.close_epoch()
        {
            barrier.dispatched().await;
        }
        Ok(all)
    }

    /// Dispatches pages, the last one as a barrier.
    async fn dispatch_pages(
        &self,
        ino: Nid,
        pages: &[DirtyPage],
        kind: Barrier,
    ) -> Result<Vec<Rc<Dispatched>>> {
        let (cause, lost) = match kind {
            Barrier::All => (WriteCause::Sync, PlantedBug::NoDataFlush),
            Barrier::Data => (WriteCause::DataSync, PlantedBug::LostBarrier),
        };
        let mut all = Vec::new();
        if pages.is_empty() || self.write_inline(ino, pages).await? {
            return Ok(all);
        }
        let in_place = self.is_in_place(ino, pages.len(), cause).await?;
        let last = if self.plants(lost) { Order::Within } else { Order::Barrier };
        let mut rest = pages;
        while !rest.is_empty() {
            if self.failed.get() {
                return Err(Errno::EROFS);
            }
            self.balance().await?;
            let dispatched = self.begin_dispatch(ino);
            let placed = self.place_some(ino, rest, in_place, last, Durable::Later).await;
            // Callers that need the answer ask for it.
            self.end_write(placed.number);
            dispatched.dispatch(placed.tickets).await;
            all.push(dispatched);
            placed.result?;
            rest = &rest[placed.count..];
        }
        Ok(all)
    }

    fn begin_dispatch(&self, ino: Nid) -> Rc<Dispatched> {
        let dispatched = Dispatched::begin();
        self.ordered.under_way.borrow_mut().push((ino, Rc::clone(&dispatched)));
        self.note_volatile(ino);
        dispatched
    }

    /// Dispatches the nodes by which a file is found in its current state, or a checkpoint if nodes are not enough.
    async fn order_nodes(&self, ino: Nid, kind: SyncKind) -> Result<Option<Rc<Dispatched>>> {
        // A checkpoint that begins after this point covers everything that was done before.
        let wanted = self.checkpoints_begun.get() + 1;
        loop {
            self.changes.until(|| self.has_checkpoint(wanted) || !self.is_checkpointing.get()).await;
            if self.failed.get() {
                return Err(Errno::EROFS);
            }
            if self.has_checkpoint(wanted) {
                return Ok(None);
            }
            self.balance().await?;
            if self.run(|state| state.needs_checkpoint(ino)).await? {
                {
                    let mut state = self.state.borrow_mut();
                    state.metrics.fsyncs_by_checkpoint += u64::from(state.changed);
                }
                self.dispatch_checkpoint(Scope::File(ino)).await?;
                return Ok(None);
            }
            if !self.state.borrow().has_to_sync(ino, kind) {
                return Ok(None);
            }
            let (mut tickets, dispatched) = (Vec::new(), self.begin_dispatch(ino));
            let linked = self.link_in_order(ino, kind, &mut tickets).await;
            dispatched.dispatch(tickets).await;
            if linked? {
                self.state.borrow_mut().metrics.fsyncs_by_nodes += 1;
                return Ok(Some(dispatched));
            }
        }
    }

    /// Submits the nodes of a file behind its data. Returns false if a checkpoint is being made, or needed since.
    async fn link_in_order(&self, ino: Nid, kind: SyncKind, tickets: &mut Vec<Ticket>) -> Result<bool> {
        loop {
            self.changes.until(|| !self.is_placing(ino)).await;
            if self.is_checkpointing.get() {
                return Ok(false);
            }
            // Nothing waits from here on: the nodes refer to data in epochs that have ended.
            let step = self.state.borrow_mut().place_blocks(ino);
            tickets
                .extend(self.take_outbox().into_iter().map(|write| self.submit_data(write, Order::Within)));
            if let Err(stop) = step {
                self.go_on(stop).await?;
                continue;
            }
            if !self.plants(PlantedBug::NoDataFlush) {
                tickets.extend(self.close_epoch());
            }
            let step = self.state.borrow_mut().link(ino, kind);
            let writes = self.take_outbox();
            let (count, is_open) = (writes.len(), self.plants(PlantedBug::OpenNodes));
            for (at, write) in (1..).zip(writes) {
                let order = if at == count && !is_open { Order::Barrier } else { Order::Within };
                tickets.push(self.submit(write, order));
            }
            match step {
                Ok(is_linked) => {
                    if is_linked {
                        self.ordered.moved.borrow_mut().remove(&ino);
                    }
                    return Ok(is_linked);
                }
                Err(stop) => self.go_on(stop).await?,
            }
        }
    }

    async fn go_on(&self, stop: Stop) -> Result<()> {
        match stop {
            Stop::Failed(errno) => Err(errno),
            stop => self.load(stop).await.map_err(|error| errno(&error)),
        }
    }

    /// fsync and fdatasync, after [`Self::order_file`] if there were dirty pages.
    pub(super) async fn sync_in_order(&self, ino: Nid, kind: SyncKind) -> Result<()> {
        self.sweep().await;
        self.order_nodes(ino, kind).await?;
        self.make_durable(Some(ino)).await
    }

    // Checkpoints.

    /// Dispatches the last block of a checkpoint whose other blocks were submitted, or placed by writes with numbers below `before`;
    /// first waits until these are submitted.
    pub(super) async fn order_checkpoint(
        &self,
        pending: Pending,
        before: u64,
        reads_before: u64,
    ) -> Result<()> {
        let is_placing = || self.ordered.placing.borrow().keys().next().is_some_and(|&first| first < before);
        self.changes.until(|| !is_placing()).await;
        self.sweep().await;
        if self.failed.get() {
            return Err(Errno::EIO);
        }
        let mut discarded = Discarded::default();
        if self.plants(PlantedBug::EarlyDiscard) {
            discarded.ranges = self.discard_in_order(&pending, 1);
        }
        if !self.plants(PlantedBug::NoFlushBeforeLastBlock) {
            let barrier = self.close_epoch();
            self.tickets.borrow_mut().extend(barrier);
        }
        let last = self.submit(self.last_block(&pending), Order::Barrier);
        last.dispatched().await;
        self.ordered.leaving.take();
        self.tickets.borrow_mut().push(last);
        // A task that looked up a block before the checkpoint may still be reading it.
        self.changes.until(|| self.reading.borrow().first().is_none_or(|&first| first >= reads_before)).await;
        if self.options.discard && !self.plants(PlantedBug::EarlyDiscard) {
            discarded.ranges = self.discard_in_order(&pending, self.options.discard_blocks_min);
        }
        self.state.borrow_mut().commit(pending, &discarded);
        Ok(())
    }

    /// Discards blocks that a checkpoint frees, in an epoch of their own. Returns the ranges.
    fn discard_in_order(&self, pending: &Pending, blocks_min: u32) -> Vec<(Block, u32)> {
        let discarded = self.freed_by(pending, blocks_min);
        for &(block, count) in &discarded {
            let order = self.in_order(Order::Within);
            // The state is the same if the disk cannot discard.
            drop(self.port.submit(Request::Discard { block, count, order }));
        }
        let barrier = self.close_epoch();
        self.tickets.borrow_mut().extend(barrier);
        discarded
    }

    pub(super) fn last_block(&self, pending: &Pending) -> Write {
        let (addr, block) = &pending.stored.last;
        let mut last = Write::new(Geometry::block(*addr), vec![payload_of(block)]);
        last.tags[0] = METADATA;
        last
    }

    // Durability.

    /// Makes durable everything that was dispatched, or that of one file.
    pub(super) async fn make_durable(&self, of: Option<Nid>) -> Result<()> {
        let Ordered { durable, volatile, dispatches, .. } = &self.ordered;
        let (upto, until, prepared) =
            (self.checkpoint_ended.get(), dispatches.get(), self.state.borrow().space.prepared());
        let has_checkpoint = durable.get() < upto;
        let is_volatile = match of {
            Some(ino) => volatile.borrow().contains_key(&ino),
            None => !volatile.borrow().is_empty(),
        };
        if self.failed.get() {
            return Err(Errno::EIO);
        }
        if !has_checkpoint && !is_volatile {
            return Ok(());
        }
        self.answered(of).await?;
        if has_checkpoint || of.is_none() {
            self.settle().await?;
        }
        // Another task may have got the error of what this one waited for.
        if self.failed.get() {
            return Err(Errno::EIO);
        }
        if of.is_none() {
            self.state.borrow_mut().space.note_answered(prepared);
        }
        let lazy = if of.is_some() { PlantedBug::NoMetadataFlush } else { PlantedBug::LazyLastBlock };
        if !self.plants(lazy) {
            self.flush_dispatched(of).await?;
        }
        if self.failed.get() {
            return Err(Errno::EIO);
        }
        durable.set(durable.get().max(upto));
        volatile.borrow_mut().retain(|&ino, &mut number| number > until || of.is_some_and(|of| ino != of));
        Ok(())
    }

    /// Waits for the answers to everything that was dispatched, or to that of one file.
    pub(super) async fn answered(&self, of: Option<Nid>) -> Result<()> {
        let under_way: Vec<_> = {
            let all = self.ordered.under_way.borrow();
            let wanted = all.iter().filter(|(ino, _)| of.is_none_or(|of| of == *ino));
            wanted.map(|(_, dispatched)| Rc::clone(dispatched)).collect()
        };
        let mut result = Ok(());
        for dispatched in under_way {
            result = result.and(dispatched.completed().await);
        }
        if result.is_err() {
            self.failed.set(true);
        }
        result
    }

    /// Forgets requests that the device has answered, but not that one failed.
    async fn sweep(&self) {
        let (ended, open) =
            self.ordered.under_way.take().into_iter().partition::<Vec<_>, _>(|(_, call)| call.has_ended());
        *self.ordered.under_way.borrow_mut() = open;
        let (complete, open) = self.tickets.take().into_iter().partition::<Vec<_>, _>(Ticket::is_complete);
        *self.tickets.borrow_mut() = open;
        let is_quiet = self.ordered.under_way.borrow().is_empty()
            && self.tickets.borrow().is_empty()
            && !self.is_settling.get();
        if is_quiet {
            let mut state = self.state.borrow_mut();
            let prepared = state.space.prepared();
            state.space.note_answered(prepared);
        }
        let mut is_good = true;
        for (_, call) in ended {
            is_good &= call.completed().await.is_ok();
        }
        for ticket in complete {
            is_good &= ticket.completed().await.is_ok();
        }
        if !is_good {
            self.failed.set(true);
        }
    }

    /// Flushes requests that were answered: by a range flush of one file, or by a flush that all callers share that came before it
    /// began.
    async fn flush_dispatched(&self, of: Option<Nid>) -> Result<()> {
        if let (Some(ino), Flushing::RangeFlush) = (of, self.options.fsync) {
            let tags = [Tag(u64::from(ino.0)), METADATA];
            return self.flush(Flushing::RangeFlush, Selection::of_owners(tags)).await;
        }
        let Ordered { flushes_begun, flushes_ended, is_flushing, .. } = &self.ordered;
        let wanted = flushes_begun.get() + 1;
        self.changes.until(|| flushes_ended.get() >= wanted || !is_flushing.get()).await;
        if flushes_ended.get() >= wanted {
            return Ok(());
        }
        if self.failed.get() {
            return Err(Errno::EIO);
        }
        is_flushing.set(true);
        let number = flushes_begun.get() + 1;
        flushes_begun.set(number);
        let flushed = self.flush(Flushing::Flush, Selection::default()).await;
        if flushed.is_ok() {
            flushes_ended.set(number);
        }
        is_flushing.set(false);
        self.changes.notify();
        flushed
    }
}
