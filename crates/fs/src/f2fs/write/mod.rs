//! A volume that is mounted for writing, as the vfs uses it.
//!
//! Operations change the [`state`] in memory. Pages of files go to the disk when they are written, everything else with
//! the next [`checkpoint`]. `fsync` and `sync` are a checkpoint.
//!
//! Invariants: an operation runs on the state without waiting, or not at all ([`state::Stop`]); a checkpoint waits for
//! all writes that were submitted before it.
//!
//! Deliberately absent: cleaning (full segments whose blocks are stale are filled again where they have holes), fsync
//! without a checkpoint, recovery of such, changing extended attributes. Nodes that were read stay in memory.

mod checkpoint;
mod fs;
mod names;
mod state;

use super::error::{Error, Result};
use super::layout::checkpoint::Flags;
use super::layout::{Addr, Geometry, Log, Nid, SegNo};
use super::volume::Volume;
use crate::port::{BlockPort, PortError, Ticket, Write, payload_of};
use crate::vfs::Errno;
use state::{OpenLog, State, Step, Stop};
use std::cell::{Cell, RefCell};
use std::collections::{BTreeMap, BTreeSet};
use std::future::poll_fn;
use std::rc::Rc;
use std::task::{Poll, Waker};

/// A volume that is mounted for writing.
#[derive(Debug)]
pub struct F2fs {
    /// For reading, of what the tables in memory know to be there.
    volume: Volume,
    port: Rc<dyn BlockPort>,
    state: RefCell<State>,
    /// Writes of metadata that nobody has waited for.
    tickets: RefCell<Vec<Ticket>>,
    /// Writes of files that have not ended, by number.
    writing: RefCell<BTreeSet<u64>>,
    writes: Cell<u64>,
    is_checkpointing: Cell<bool>,
    /// Set when a checkpoint failed: what is on the disk is the one before.
    failed: Cell<bool>,
    wakers: RefCell<Vec<Waker>>,
}

fn errno(error: &Error) -> Errno {
    match error {
        Error::Port(PortError::Device(flashweir_core::DeviceError::ReadOnly)) => Errno::EROFS,
        Error::Port(_) => Errno::EIO,
        _ => Errno::EUCLEAN,
    }
}

impl F2fs {
    /// Mounts a volume for writing. Inodes that had lost their names are freed. Errors: those of [`Volume::mount`], and a
    /// volume that was not unmounted, because what fsync wrote since its last checkpoint would be lost.
    pub async fn mount(port: Rc<dyn BlockPort>) -> Result<Self> {
        let volume = Volume::mount(Rc::clone(&port)).await?;
        let checkpoint = volume.checkpoint().clone();
        if !volume.is_clean() {
            return Err(Error::Refused("roll-forward recovery (it was not unmounted)".into()));
        }
        if checkpoint.flags.has(Flags::ERROR) || checkpoint.flags.has(Flags::FSCK) {
            return Err(Error::Corrupt("it says that it has to be checked".into()));
        }
        let geometry = *volume.geometry();
        let sit = volume.sit_entries().await?;
        let mut logs = Vec::new();
        for log in Log::ALL {
            let cursor = checkpoint.cursor(log);
            logs.push(OpenLog { cursor, summary: volume.summary(cursor.segment).await? });
        }
        let is_open = |segment: SegNo| logs.iter().any(|log| log.cursor.segment == segment);
        let segments = (0..geometry.main_segments).map(SegNo);
        let free =
            segments.filter(|&segment| sit[segment.0 as usize].valid == 0 && !is_open(segment)).collect();
        let state = State {
            superblock: volume.superblock().clone(),
            geometry,
            seed: volume.superblock().inode_checksum_seed(),
            pack: volume.pack(),
            nat: volume.nat_entries().await?,
            nat_changed: volume.nat_journal_nids().collect(),
            sit_changed: volume
                .sit_journal_segments()
                .filter(|segment| segment.0 < geometry.main_segments)
                .collect(),
            kept: sit.iter().map(|entry| entry.map).collect(),
            sit,
            free,
            logs,
            summaries: BTreeMap::new(),
            inodes: BTreeMap::new(),
            nodes: BTreeMap::new(),
            dirty: BTreeSet::new(),
            blocks: BTreeMap::new(),
            blocks_dirty: BTreeSet::new(),
            orphans: volume.orphans().iter().copied().collect(),
            held: BTreeMap::new(),
            valid_blocks: checkpoint.valid_blocks,
            valid_nodes: checkpoint.valid_nodes,
            valid_inodes: checkpoint.valid_inodes,
            next_nid: checkpoint.next_free_nid,
            outbox: Vec::new(),
            changed: false,
            checkpoint,
        };
        let fs = Self {
            volume,
            port,
            state: RefCell::new(state),
            tickets: RefCell::default(),
            writing: RefCell::default(),
            writes: Cell::new(0),
            is_checkpointing: Cell::new(false),
            failed: Cell::new(false),
            wakers: RefCell::default(),
        };
        let orphans: Vec<Nid> = fs.state.borrow().orphans.iter().copied().collect();
        for ino in orphans {
            fs.run(|state| state.destroy(ino))
                .await
                .map_err(|errno| Error::Corrupt(format!("orphan {ino} cannot be freed: {errno:?}")))?;
        }
        Ok(fs)
    }

    /// Runs an operation on the state, and again when what it needs is in memory.
    async fn run<T>(
        &self,
        mut operation: impl FnMut(&mut State) -> Step<T>,
    ) -> std::result::Result<T, Errno> {
        loop {
            let step = operation(&mut self.state.borrow_mut());
            self.submit_outbox();
            match step {
                Ok(value) => return Ok(value),
                Err(Stop::Failed(errno)) => return Err(errno),
                Err(stop) => self.load(stop).await.map_err(|error| errno(&error))?,
            }
        }
    }

    /// Runs an operation that changes something.
    async fn change<T>(&self, operation: impl FnMut(&mut State) -> Step<T>) -> std::result::Result<T, Errno> {
        if self.failed.get() {
            return Err(Errno::EROFS);
        }
        self.run(operation).await
    }

    fn submit_outbox(&self) {
        let writes = std::mem::take(&mut self.state.borrow_mut().outbox);
        if !writes.is_empty() {
            let tickets = writes.into_iter().map(|write| self.port.write(write));
            self.tickets.borrow_mut().extend(tickets);
        }
    }

    /// Brings into memory what an operation stopped for. Whatever came in meanwhile stays: it is newer.
    async fn load(&self, stop: Stop) -> Result<()> {
        let address = |nid| {
            let addr = self.state.borrow().nat.get(&nid).map_or(Addr::NULL, |entry| entry.addr);
            let place = self.state.borrow().geometry.place_of(addr);
            place.map(|_| addr).ok_or_else(|| Error::Corrupt(format!("node {nid} is at {addr}")))
        };
        match stop {
            Stop::Inode(nid) => {
                let inode = self.volume.inode_at(nid, address(nid)?).await?;
                self.state.borrow_mut().inodes.entry(nid).or_insert(inode);
            }
            Stop::Node { nid, ino, offset } => {
                let block = self.volume.node_at(ino, nid, offset, address(nid)?).await?;
                let block: crate::port::BlockBytes = block[..].try_into().expect("a block");
                self.state.borrow_mut().nodes.entry(nid).or_insert_with(|| Box::new(block));
            }
            Stop::Block { ino, index, addr } => {
                let block = self.volume.block(addr).await?;
                let block: crate::port::BlockBytes = block[..].try_into().expect("a block");
                self.state.borrow_mut().blocks.entry((ino, index)).or_insert_with(|| Box::new(block));
            }
            Stop::Summary(segment) => {
                let addr = self.state.borrow().geometry.summary_block(segment);
                let summary = super::layout::summary::Summary::decode(&self.volume.block(addr).await?);
                self.state.borrow_mut().summaries.entry(segment).or_insert(summary);
            }
            Stop::Failed(_) => unreachable!("a failed operation is not run again"),
        }
        Ok(())
    }

    /// Waits until `is_true`; it is looked at when a write or a checkpoint has ended.
    async fn wait_until(&self, is_true: impl Fn() -> bool) {
        poll_fn(|context| {
            if is_true() {
                return Poll::Ready(());
            }
            self.wakers.borrow_mut().push(context.waker().clone());
            Poll::Pending
        })
        .await;
    }

    fn wake(&self) {
        let wakers = std::mem::take(&mut *self.wakers.borrow_mut());
        wakers.into_iter().for_each(Waker::wake);
    }

    async fn settle(&self) -> std::result::Result<(), Errno> {
        let tickets = std::mem::take(&mut *self.tickets.borrow_mut());
        for ticket in tickets {
            ticket.completed().await.map_err(|error| errno(&error.into()))?;
        }
        Ok(())
    }

    /// Makes everything durable that was done before.
    pub async fn checkpoint(&self) -> std::result::Result<(), Errno> {
        self.wait_until(|| !self.is_checkpointing.get()).await;
        if self.failed.get() {
            return Err(Errno::EROFS);
        }
        if !self.state.borrow().changed {
            return Ok(());
        }
        self.is_checkpointing.set(true);
        let result = self.make_checkpoint().await;
        self.failed.set(result.is_err_and(|errno| errno != Errno::ENOSPC));
        self.is_checkpointing.set(false);
        self.wake();
        result
    }

    async fn make_checkpoint(&self) -> std::result::Result<(), Errno> {
        let pending = self.run(State::prepare).await?;
        let before = self.writes.get();
        self.wait_until(|| self.writing.borrow().first().is_none_or(|&first| first >= before)).await;
        self.settle().await?;
        let flush = || async { self.port.flush().completed().await.map_err(|error| errno(&error.into())) };
        flush().await?;
        let (addr, block) = &pending.last;
        let last = Write { fua: true, ..Write::new(Geometry::block(*addr), vec![payload_of(block)]) };
        self.port.write(last).completed().await.map_err(|error| errno(&error.into()))?;
        flush().await?;
        self.state.borrow_mut().commit(pending);
        Ok(())
    }
}
