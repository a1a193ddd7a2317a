//! A volume that is mounted for writing, as the vfs uses it.
//!
//! Operations change the [`state`] in memory: [`names`], [`map`], [`space`], [`xattr`], [`orphan`]. Pages of files get their blocks
//! when they are written, and go there at once, unless data are journalled; everything else goes to the [`journal`] with the
//! transaction in which it was changed ([`sync`]), and from there to its place.
//!
//! Invariants: an operation runs on the state without waiting, or not at all ([`state::Stop`]); the data of files for which a
//! transaction has blocks are written before it is committed.
//!
//! Deliberately absent: writing to files that are not mapped by extents, a journal on another disk, and eviction of metadata blocks
//! that were read.

mod by_addr;
mod flight;
mod fs;
mod growth;
mod journal;
mod map;
mod names;
mod options;
mod order;
mod orphan;
mod placed;
mod set;
mod space;
mod spans;
mod state;
mod sync;
mod xattr;

use super::error::{Error, Result, corrupt};
use super::layout::journal::{JournalSuperblock, compat, incompat};
use super::layout::superblock::{self, Feature};
use super::layout::{Addr, Geometry, Ino};
use super::recover::{Recovered, recover_trusting};
use super::volume::Volume;
use crate::boxed::Boxed;
use crate::engine::errno;
use crate::order::{CommitMode, Dispatched, is_kept};
use crate::port::{BLOCK_BYTES, Block, BlockPort, Write, bytes_of};
use crate::set::Scratch;
use crate::vfs::{Errno, Event, Pool};
use flashweir_core::Payload;
use flight::Flight;
use journal::{Journal, Run};
pub use options::{CheckpointBy, Ext4Metrics, Ext4Options, Journaling, PlantedBug};
use state::{State, Step, Stop, block_of};
use std::cell::{Cell, RefCell};
use std::collections::VecDeque;
use std::rc::Rc;

/// Most blocks that one operation changes; the transaction must have room for them.
const OPERATION_BLOCKS: usize = 100;
/// Least number of blocks that one revoke block can name.
const REVOKES_PER_BLOCK: usize = 500;

/// A volume that is mounted for writing.
#[derive(Debug)]
pub struct Ext4 {
    /// The volume as read; reads files that are mapped in an old way.
    volume: Volume,
    port: Rc<dyn BlockPort>,
    state: RefCell<State>,
    journal: Journal,
    options: Ext4Options,
    /// Number of blocks that are not available to files.
    overhead: Cell<u64>,
    /// Blocks that the log gets next ([`growth`]).
    growth: RefCell<Vec<Run>>,
    recovered: AtMount,
    /// Numbers of the writes of data that have not ended, ascending; the next field is the next number.
    writing: RefCell<VecDeque<u64>>,
    writes: Cell<u64>,
    is_committing: Cell<bool>,
    /// Number of open handles, whose changes have to be in one transaction; the next field says whether the running transaction
    /// waits for their end.
    handles: Cell<u32>,
    /// Blocks of files for which the open handles have room.
    promised: Cell<usize>,
    is_closing: Cell<bool>,
    /// The last transaction that was dispatched, and the last one that is durable; in legacy mode they are the same.
    dispatched: Cell<u64>,
    committed: Cell<u64>,
    /// Legacy mode: the last transaction whose flush before the commit block has begun; data written later are not covered by that
    /// flush.
    flushed: Cell<u64>,
    /// The last dispatched transaction for whose durability a task waits or has waited.
    awaited: Cell<u64>,
    /// Transactions that were dispatched and are not durable, the oldest first.
    flights: RefCell<Vec<Rc<Flight>>>,
    is_flushing: Cell<bool>,
    /// Data that were dispatched and are not all known to have been answered.
    data: RefCell<Vec<(Ino, Rc<Dispatched>)>>,
    /// Set when a commit failed: the disk holds the state of the transaction before.
    failed: Cell<bool>,
    /// Notified when something that a task may wait for has changed: a write or a commit has ended.
    changes: Event,
    /// Reused memory for the writes of a call.
    begun: Pool<placed::Begun>,
    scratch: Scratch,
}

/// Work of a mount of a volume that was not unmounted.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct AtMount {
    /// Result of replaying the log.
    pub log: Recovered,
    /// Number of inodes that were freed or truncated.
    pub orphans: u64,
}

impl Ext4 {
    /// Mounts a volume for writing with the default options of Linux; see [`Self::mount_with`].
    pub async fn mount(port: Rc<dyn BlockPort>) -> Result<Self> {
        Self::mount_with(port, Ext4Options::default()).await
    }

    /// Mounts a volume for writing. If it was not unmounted, the journal is replayed first, and inodes that had lost their names
    /// are freed. Errors: those of [`Volume::mount`]; the volume can only be read, or has to be checked.
    pub fn mount_with(port: Rc<dyn BlockPort>, options: Ext4Options) -> Boxed<'static, Result<Self>> {
        Box::pin(Self::open(port, options))
    }

    async fn open(port: Rc<dyn BlockPort>, options: Ext4Options) -> Result<Self> {
        let trusts_old = options.planted == Some(PlantedBug::TrustedOldCommits);
        let mut volume = Volume::mount_trusting(Rc::clone(&port), trusts_old).await?;
        check_writable(&volume)?;
        if options.commit_mode == CommitMode::DualMode && !is_kept(&*port).await {
            return Err(Error::Refused("dual-mode journaling on a disk without barriers".into()));
        }
        if options.checkpoint_by == CheckpointBy::Share && port.share_blocks_max() == 0 {
            return Err(Error::Refused("checkpoints by SHARE on a disk without that command".into()));
        }
        let mut recovered = AtMount::default();
        if volume.needs_recovery() {
            recovered.log = recover_trusting(Rc::clone(&port), trusts_old).await?;
            volume = Volume::mount(Rc::clone(&port)).await?;
        }
        let log = journal_blocks(&volume).await?;
        let (mut journal, replayed) = match volume.journal() {
            Some(journal) => (journal.superblock.clone(), journal.replayed.next_sequence),
            None => return Err(no_journal()),
        };
        if journal.start != 0 {
            // The volume says that its log has to be left out; none of it may count later.
            (journal.start, journal.sequence) = (0, replayed.wrapping_add(journal.blocks));
            let mut block = bytes_of(&port.read(Block(log[0].0), 1).completed().await?[0]).to_vec();
            let raw = journal.encode();
            block[..raw.len()].copy_from_slice(&raw);
            port.write(Write::new(Block(log[0].0), vec![Payload::Bytes(block.into())])).completed().await?;
            port.flush().completed().await?;
            volume = Volume::mount(Rc::clone(&port)).await?;
        }
        let orphans = volume.orphans().await?;
        let mut state = State::new(volume.superblock().clone(), volume.groups().to_vec());
        let geometry = state.geometry;
        let metadata =
            [Addr(0)].into_iter().chain((0..u64::from(geometry.desc_blocks())).map(|at| Addr(1 + at)));
        for addr in metadata {
            let block = bytes_of(&port.read(Block(addr.0), 1).completed().await?[0]);
            state.loaded(addr, block_of(&block)?);
        }
        state.orphans = orphans;
        let overhead = overhead(&geometry, log.len() as u64);
        set_journal_features(&mut journal, &geometry);
        state.planted = options.planted;
        state.journals_data = options.journaling == Journaling::Journal;
        let journal = Journal::open(Rc::clone(&port), journal, log, &options).await?;
        if journal.blocks_max() <= OPERATION_BLOCKS {
            let least = 4 * (OPERATION_BLOCKS + 1);
            return Err(Error::Refused(format!("a journal of fewer than {least} blocks")));
        }
        let mut fs = Self {
            volume,
            port,
            state: RefCell::new(state),
            journal,
            options,
            overhead: Cell::new(overhead),
            growth: RefCell::default(),
            recovered,
            writing: RefCell::default(),
            writes: Cell::new(0),
            is_committing: Cell::new(false),
            handles: Cell::new(0),
            promised: Cell::new(0),
            is_closing: Cell::new(false),
            dispatched: Cell::new(0),
            committed: Cell::new(0),
            flushed: Cell::new(0),
            awaited: Cell::new(0),
            flights: RefCell::default(),
            is_flushing: Cell::new(false),
            data: RefCell::default(),
            failed: Cell::new(false),
            changes: Event::default(),
            begun: Pool::new(),
            scratch: Scratch::default(),
        };
        fs.begin().await?;
        fs.recovered.orphans = fs.free_orphans().await?;
        Ok(fs)
    }

    /// Records on the disk that the journal counts from now on.
    async fn begin(&self) -> Result<()> {
        let block = {
            let mut state = self.state.borrow_mut();
            state.superblock.features.set(Feature::RECOVER, true);
            state.superblock.mount_count = state.superblock.mount_count.saturating_add(1);
            state.superblock.mount_time = state.clock.seconds.max(0) as u64;
            state.geometry.features = state.superblock.features;
            state.superblock_block().map_err(|_| Error::Corrupt("no superblock".into()))?
        };
        self.write_superblock(block).await
    }

    async fn write_superblock(&self, block: Box<crate::port::BlockBytes>) -> Result<()> {
        self.state.borrow_mut().put_superblock(block.clone());
        self.port.write(Write::new(Block(0), vec![Payload::Bytes(block[..].into())])).completed().await?;
        if self.options.barrier {
            self.port.flush().completed().await?;
        }
        Ok(())
    }

    /// Frees or truncates the orphans that the mount before left. Returns their number. One that is broken stays in the list, as when it was
    /// unlinked: it must not keep the rest of the volume from its user.
    async fn free_orphans(&self) -> Result<u64> {
        let orphans = self.state.borrow().orphans.clone();
        for &ino in &orphans {
            match self.free_orphan(ino).await {
                // Of an inode with a block map, as of ext3, blocks are not freed here.
                Ok(()) | Err(Errno::EUCLEAN | Errno::EOPNOTSUPP) => {}
                Err(errno) => return Err(Error::Corrupt(format!("the orphan {ino}: {}", errno.message()))),
            }
        }
        Ok(orphans.len() as u64)
    }

    async fn free_orphan(&self, ino: Ino) -> std::result::Result<(), Errno> {
        let links = self.run(|state| Ok(state.inode(ino)?.links)).await?;
        self.run(|state| state.check_freeable(ino)).await?;
        match links {
            0 => self.destroy(Some(ino)).await,
            _ => self.end_truncation(ino, false).await,
        }
    }

    /// Recovery work of the mount.
    pub fn recovered(&self) -> AtMount {
        self.recovered
    }

    /// Number of blocks from where the next transaction begins to the end of the log, where the log wraps around.
    pub fn log_blocks_left(&self) -> u32 {
        self.journal.blocks_left()
    }

    /// Counters since the mount.
    pub fn metrics(&self) -> Ext4Metrics {
        let journal = self.journal.counts();
        Ext4Metrics {
            checkpoints: journal.checkpoints,
            home_writes: journal.home_writes,
            shared_blocks: journal.shared_blocks,
            shares: journal.shares,
            escaped_blocks: journal.escaped_blocks,
            grown_blocks: journal.grown_blocks,
            ..self.state.borrow().metrics
        }
    }

    /// Runs an operation on the state, and again each time that a block which it needs has been loaded.
    async fn run<T>(
        &self,
        mut operation: impl FnMut(&mut State) -> Step<T>,
    ) -> std::result::Result<T, Errno> {
        loop {
            let step = self.state.borrow_mut().attempt(&mut operation);
            match step {
                Ok(value) => return Ok(value),
                Err(Stop::Failed(errno)) => return Err(errno),
                Err(Stop::Block(addr)) => self.load(addr).await.map_err(|error| errno(&error))?,
                Err(Stop::Inode(ino)) => self.load_inode(ino).await?,
            }
        }
    }

    /// Runs an operation that changes the state, when the transaction has room for it.
    async fn change<T>(
        &self,
        mut operation: impl FnMut(&mut State) -> Step<T>,
    ) -> std::result::Result<T, Errno> {
        if self.failed.get() {
            return Err(Errno::EROFS);
        }
        while self.is_full(0) {
            self.turn_over().await?;
        }
        let result = self.run(&mut operation).await;
        if matches!(result, Err(Errno::ENOSPC)) && self.state.borrow().counts.waiting > 0 {
            // Blocks become free with a commit.
            self.turn_over().await?;
            return self.run(&mut operation).await;
        }
        result
    }

    /// Whether the running transaction may have no room for another operation, and for `data` blocks of files.
    fn is_full(&self, data: usize) -> bool {
        let state = self.state.borrow();
        // A revoked block takes a word of a revoke block.
        let revoking = state.running.revoked.len() / REVOKES_PER_BLOCK;
        let blocks = state.running.blocks.len() + state.running.data.len() + data;
        blocks + revoking + OPERATION_BLOCKS > self.journal.blocks_max()
    }

    /// Most blocks of files that are journalled in one transaction, whatever else it has.
    fn data_blocks_max(&self) -> usize {
        (self.journal.blocks_max().saturating_sub(OPERATION_BLOCKS) / 2).max(1)
    }

    /// Opens a handle: all changes until it is dropped are in one transaction, which has room for `data` blocks of files. The
    /// caller must not wait for a commit meanwhile.
    async fn handle(&self, data: usize) -> std::result::Result<OpenHandle<'_>, Errno> {
        loop {
            self.changes.until(|| !self.is_closing.get()).await;
            if self.failed.get() {
                return Err(Errno::EROFS);
            }
            // What open handles have not put yet has to find room, too: they may wait for a block of metadata meanwhile.
            if !self.is_full(data + self.promised.get()) {
                self.handles.set(self.handles.get() + 1);
                self.promised.set(self.promised.get() + data);
                return Ok(OpenHandle { fs: self, data });
            }
            // With nothing to commit, what is promised to open handles is put first, or given back.
            if self.handles.get() > 0 && !self.state.borrow().is_changed() {
                self.changes.wait().await;
                continue;
            }
            self.turn_over().await?;
        }
    }

    /// Loads a block of metadata, unless it has come into memory meanwhile. In a box, because operations seldom stop and each of
    /// their futures would be larger by this one.
    fn load(&self, addr: Addr) -> Boxed<'_, Result<()>> {
        Box::pin(async move {
            let geometry = self.state.borrow().geometry;
            if !geometry.is_data(addr, 1) {
                return corrupt(format!("a block of metadata is at {addr}, outside of the volume"));
            }
            let answer = self.port.read(Block(addr.0), 1).completed().await?;
            self.state.borrow_mut().loaded(addr, block_of(&bytes_of(&answer[0]))?);
            Ok(())
        })
    }

    fn load_inode(&self, ino: Ino) -> Boxed<'_, std::result::Result<(), Errno>> {
        Box::pin(async move {
            loop {
                let step = self.state.borrow_mut().loaded_inode(ino);
                match step {
                    Ok(()) => return Ok(()),
                    Err(Stop::Failed(errno)) => return Err(errno),
                    Err(Stop::Block(addr)) => self.load(addr).await.map_err(|error| errno(&error))?,
                    Err(Stop::Inode(_)) => return Err(Errno::EUCLEAN),
                }
            }
        })
    }

    // Writes of data.

    /// Begins a write of data; transactions that are closed from now on wait for its end.
    fn begin_write(&self) -> u64 {
        let number = self.writes.get();
        self.writes.set(number + 1);
        self.writing.borrow_mut().push_back(number);
        number
    }

    fn end_write(&self, number: u64) {
        let mut writing = self.writing.borrow_mut();
        let at = writing.binary_search(&number).expect("a write ends once");
        writing.remove(at);
        drop(writing);
        self.changes.notify();
    }
}

/// See [`Ext4::handle`].
#[derive(Debug)]
struct OpenHandle<'a> {
    fs: &'a Ext4,
    /// Blocks of files for which it has room.
    data: usize,
}

impl Drop for OpenHandle<'_> {
    fn drop(&mut self) {
        self.fs.handles.set(self.fs.handles.get() - 1);
        self.fs.promised.set(self.fs.promised.get() - self.data);
        self.fs.changes.notify();
    }
}

fn no_journal() -> Error {
    Error::Refused("writing without a journal".into())
}

/// Errors: the volume can only be read, because of its features, or has to be checked.
fn check_writable(volume: &Volume) -> Result<()> {
    let superblock = volume.superblock();
    let unwritable = superblock.features.unwritable();
    if !unwritable.is_empty() {
        return Err(Error::Refused(format!("writing with the feature {}", unwritable.join(", "))));
    }
    if volume.geometry().block_bytes as usize != BLOCK_BYTES {
        return Err(Error::Refused(format!(
            "writing with blocks of {} bytes",
            volume.geometry().block_bytes
        )));
    }
    if !superblock.features.has(Feature::EXTENT) {
        return Err(Error::Refused("writing without extents".into()));
    }
    if superblock.state & superblock::state::ERRORS != 0 {
        return corrupt("it says that it has to be checked");
    }
    match volume.journal() {
        None => Err(no_journal()),
        Some(journal) if journal.superblock.is_first_version => {
            Err(Error::Refused("a journal of version 1".into()))
        }
        Some(journal) if journal.superblock.error != 0 => corrupt("its journal was aborted"),
        Some(_) => Ok(()),
    }
}

/// Sets how the log is written from now on, as Linux does on such a volume. It must have nothing to replay.
fn set_journal_features(journal: &mut JournalSuperblock, geometry: &Geometry) {
    journal.incompat |= incompat::REVOKE;
    journal.incompat &= !incompat::ASYNC_COMMIT;
    if geometry.features.has(Feature::WIDE) {
        journal.incompat |= incompat::WIDE;
    }
    if geometry.has_checksums() {
        journal.compat &= !compat::CHECKSUM;
        journal.incompat = journal.incompat & !incompat::CSUM_V2 | incompat::CSUM_V3;
        journal.checksum_type = 4;
    }
}

/// The blocks of the journal in order.
async fn journal_blocks(volume: &Volume) -> Result<Vec<Addr>> {
    let journal = volume.journal().ok_or_else(no_journal)?;
    let count = u64::from(journal.superblock.blocks);
    let mut blocks = Vec::new();
    while (blocks.len() as u64) < count {
        let at = blocks.len() as u64;
        let run = volume.run(&journal.inode, at).await?;
        let Some(addr) = run.addr else { return corrupt(format!("block {at} of the journal is a hole")) };
        blocks.extend((addr.0..).take(run.blocks.min(count - at).max(1) as usize).map(Addr));
    }
    Ok(blocks)
}

/// Number of blocks that are not available to files: copies of superblock and descriptors, bitmaps, tables, the journal.
fn overhead(geometry: &Geometry, journal_blocks: u64) -> u64 {
    let of_group = 2 + u64::from(geometry.inode_table_blocks());
    let backups: u64 = geometry.groups().map(|group| u64::from(geometry.backup_blocks_of(group))).sum();
    u64::from(geometry.first_data_block)
        + backups
        + of_group * u64::from(geometry.group_count)
        + journal_blocks
}
