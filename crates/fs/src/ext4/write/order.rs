//! Order in the place of waiting (dual-mode journaling, barriers §6.8): calls that order and do not wait, and data that are under way.
//!
//! | call | dispatches | waits for |
//! |---|---|---|
//! | fsync | data, blocks of the journal; commit block | the flush behind them |
//! | fdatasync | the same, if data need it to be found; else data | the flush behind them |
//! | fbarrier | data, blocks of the journal; commit block | their dispatch |
//! | fdatabarrier | data, the last one as a barrier; a barrier of no length if there are none | their dispatch |
//!
//! A semicolon is the end of an epoch.
//!
//! Invariants: all data are ordered, so a commit block that persists says that what was dispatched before its transaction does, too.
//! A flush covers what was answered before it: of a transaction that is the commit block, of data that no transaction
//! follows their own requests.
//!
//! Conflicts: a block of the running transaction may be in one that was dispatched. Then it is committed when that one is over
//! ([`Ext4::settle_conflicts`]); changes that come meanwhile are in it, too. With [`super::Ext4Options::multi_version`] it does not
//! wait: each transaction has its own copy of the block anyhow.

use super::super::layout::Ino;
use super::flight::Flight;
use super::journal::Closed;
use super::placed::Placed;
use super::{CommitMode, Ext4, Journaling, PlantedBug};
use crate::order::{Dispatched, STREAM};
use crate::port::{Block, Ticket, Write};
use crate::vfs::{Barrier, DirtyPage, Errno, WriteCause};
use flashweir_core::{Contents, Order};
use std::rc::Rc;

type Result<T> = std::result::Result<T, Errno>;

impl Ext4 {
    /// Whether order is used instead of waiting.
    pub(super) fn is_dual(&self) -> bool {
        self.options.commit_mode == CommitMode::DualMode
    }

    /// The order of data.
    pub(super) fn data_order(&self, order: Order) -> crate::port::InOrder {
        let is_loose = self.options.planted == Some(PlantedBug::UnorderedData);
        (self.is_dual() && !is_loose).then_some((STREAM, order))
    }

    /// fbarrier and fdatabarrier, and the first half of fsync and fdatasync: dispatches the pages and, unless only data are
    /// ordered, the transaction that has the file. Returns what ends when the pages have been answered.
    pub(super) async fn order_file(
        &self,
        ino: Ino,
        pages: &[DirtyPage],
        kind: Barrier,
    ) -> Result<Rc<Dispatched>> {
        if self.failed.get() {
            return Err(Errno::EROFS);
        }
        self.state.borrow_mut().metrics.barriers += 1;
        let is_journalled = self.options.journaling == Journaling::Journal;
        let tickets = match is_journalled {
            true => self.journal_pages(ino, pages, WriteCause::Sync, None).await.map(|()| Vec::new())?,
            false => self.dispatch_pages(ino, pages, kind).await?,
        };
        let data = Dispatched::new(tickets);
        self.data.borrow_mut().retain(|(_, data)| !data.has_ended());
        self.data.borrow_mut().push((ino, Rc::clone(&data)));
        if kind == Barrier::Data && !is_journalled {
            return Ok(data);
        }
        let (wanted, written) =
            self.run(|state| state.node(ino).map(|node| (node.tid, node.written_tid))).await?;
        let is_new = wanted > self.dispatched.get();
        self.dispatch_until(wanted).await?;
        if !is_new || written > wanted {
            // No commit block follows the data.
            self.port.barrier(STREAM).dispatched().await;
        }
        Ok(data)
    }

    /// Dispatches pages. If only data are ordered, the last page is a barrier, and without pages there is a barrier of no length.
    async fn dispatch_pages(&self, ino: Ino, pages: &[DirtyPage], kind: Barrier) -> Result<Vec<Ticket>> {
        let (mut at, mut tickets) = (0, Vec::new());
        while at < pages.len() {
            let rest = &pages[at..];
            let (number, Placed { addr, count, .. }) = self.place_data(ino, rest).await?;
            at += count as usize;
            let is_last = at == pages.len() && kind == Barrier::Data;
            let order = self.data_order(if is_last { Order::Barrier } else { Order::Within });
            let payloads: Contents = rest[..count as usize].iter().map(|page| page.payload.clone()).collect();
            tickets.push(self.port.write(Write { order, ..Write::new(Block(addr.0), payloads) }));
            // A commit need not wait for these pages.
            self.end_write(number);
            let mut state = self.state.borrow_mut();
            state.metrics.written_pages += u64::from(count);
            state.note_dispatched(ino);
        }
        for ticket in &tickets {
            ticket.dispatched().await;
        }
        if pages.is_empty() && kind == Barrier::Data {
            self.port.barrier(STREAM).dispatched().await;
        }
        Ok(tickets)
    }

    /// Makes the dispatched transactions durable, at least up to one: with one flush for all that were dispatched until it began.
    pub(super) async fn flush_until(&self, wanted: u64) -> Result<()> {
        self.advance(&self.is_flushing, &self.committed, wanted, async || self.flush_flights().await).await
    }

    async fn flush_flights(&self) -> Result<()> {
        let flights: Vec<Rc<Flight>> = self.flights.borrow().iter().cloned().collect();
        let last = self.dispatched.get();
        let mut result = Ok(());
        for flight in flights {
            result = result.and(flight.requests.completed().await);
        }
        result?;
        if self.options.planted != Some(PlantedBug::LazyCommit) {
            self.flush().await?;
        }
        self.flights.borrow_mut().retain(|flight| flight.tid > last);
        self.committed.set(last);
        Ok(())
    }

    /// Dispatches a transaction. Contents that a checkpoint writes to their places may belong to transactions that are not durable;
    /// these are made durable first.
    pub(super) async fn dispatch_transaction(&self, tid: u64, transaction: Closed) -> Result<()> {
        let forgets = self.options.planted == Some(PlantedBug::ForgottenConflicts);
        if self.journal.is_short_of(&transaction) && !forgets {
            self.flush_until(self.dispatched.get()).await?;
        }
        let addrs = transaction.blocks.iter().map(|(addr, _)| *addr).collect();
        let requests = Dispatched::new(self.journal.dispatch(transaction).await?);
        self.flights.borrow_mut().push(Rc::new(Flight { tid, addrs, requests }));
        Ok(())
    }

    /// Waits until no transaction under way shares a block with the running one: until it is durable if a task waits for that,
    /// otherwise for its answers (barriers §6.9, conflict pages).
    pub(super) async fn settle_conflicts(&self) -> Result<()> {
        if self.options.multi_version {
            return Ok(());
        }
        let mut is_first = true;
        while let Some((flight, count)) = self.conflict() {
            if std::mem::take(&mut is_first) {
                self.state.borrow_mut().metrics.conflicts += count;
            }
            if flight.tid <= self.awaited.get() {
                self.changes.until(|| self.committed.get() >= flight.tid || self.failed.get()).await;
                if self.failed.get() {
                    return Err(Errno::EROFS);
                }
            } else {
                flight.requests.completed().await?;
            }
        }
        Ok(())
    }

    /// The newest transaction under way that shares blocks with the running one, and the number of these blocks.
    fn conflict(&self) -> Option<(Rc<Flight>, u64)> {
        let (state, awaited) = (self.state.borrow(), self.awaited.get());
        let flights = self.flights.borrow();
        flights.iter().rev().filter(|flight| flight.tid <= awaited || !flight.requests.has_ended()).find_map(
            |flight| {
                let shared = flight.addrs.iter().filter(|addr| state.is_in_running(**addr)).count();
                (shared > 0).then(|| (Rc::clone(flight), shared as u64))
            },
        )
    }

    /// Makes data of files durable that were dispatched after the transactions up to one, which is durable.
    pub(super) async fn flush_data(&self, inos: &[Ino]) -> Result<()> {
        let under_way: Vec<_> = {
            let data = self.data.borrow();
            data.iter().filter(|(of, _)| inos.contains(of)).map(|(_, data)| Rc::clone(data)).collect()
        };
        for data in under_way {
            data.completed().await?;
        }
        self.flush().await
    }
}
