//! A volume that is mounted for writing, as the vfs uses it.
//!
//! Operations change the [`state`] in memory; [`space`] allocates their places on the disk. Pages of files go to the disk when they
//! are written, everything else with the next [`checkpoint`]; [`area`] handles the structures with a fixed place. `sync` is a
//! checkpoint; [`fsync`] writes only the nodes of one file where that is enough, and [`recover`] finds them at the next mount. On a
//! disk that keeps order all of that may be dispatched without waiting ([`order`]).
//!
//! Invariants: an operation runs on the state without waiting, or not at all ([`stop::Stop`]); a checkpoint waits for all writes
//! that were submitted before it.
//!
//! Operations that take room call [`clean`] first if free space is short.
//!
//! Deliberately absent: eviction of nodes that were read; they stay in memory.

mod area;
mod audit;
mod behind;
mod by_nid;
mod checkpoint;
mod clean;
mod fs;
mod fsync;
mod moving;
mod names;
mod options;
mod order;
mod ordered;
mod recover;
mod recovered;
mod segments;
mod since;
mod space;
#[cfg(test)]
mod space_tests;
mod state;
mod stop;
mod tags;
#[cfg(test)]
mod tests;

use super::error::{Error, Result};
use super::layout::checkpoint::Flags;
use super::layout::tables::{NatEntry, SitEntry};
use super::layout::{Addr, Geometry, Log, Nid, SegNo};
use super::volume::Volume;
use crate::boxed::Boxed;
use crate::engine::errno;
use crate::order::{CommitMode, answer, answers, is_kept};
use crate::port::{Block, BlockPort, Selection, Ticket, Write, bytes_of};
use crate::set::Scratch;
use crate::vfs::{Errno, Event};
pub use area::AlfsMetrics;
use area::Area;
use by_nid::{ByNid, DirtyNodes};
use flashweir_core::command::Tag;
use flashweir_core::{Duration, Order};
use moving::Moving;
pub use options::{Background, CleanBy, F2fsMetrics, F2fsOptions, Flushing, InPlace, PlantedBug};
use ordered::Ordered;
pub use recovered::Recovered;
pub(crate) use segments::OPEN_SECTIONS;
use segments::Space;
use since::Since;
use space::Discarded;
use state::{OpenLog, State};
use std::cell::{Cell, RefCell};
use std::collections::{BTreeMap, BTreeSet};
use std::rc::Rc;
use stop::{Step, Stop};
pub use tags::METADATA;
use tags::in_place_tag;

/// Times of background work, in seconds of the file system's clock.
#[derive(Clone, Copy, Debug, Default)]
struct Turns {
    /// Time of the next turn of cleaning.
    clean_s: u64,
    /// Time of the last check whether a checkpoint is due.
    looked_s: u64,
    /// Number of checkpoints that had been begun at that time.
    begun: u64,
}

/// A volume that is mounted for writing.
#[derive(Debug)]
pub struct F2fs {
    /// The volume as read, through which blocks are loaded that the tables in memory name.
    volume: Volume,
    port: Rc<dyn BlockPort>,
    state: RefCell<State>,
    /// Writes of metadata that have not been awaited.
    tickets: RefCell<Vec<Ticket>>,
    /// Writes of files that have not ended, by number, with the inode of the file.
    writing: RefCell<BTreeMap<u64, Nid>>,
    writes: Cell<u64>,
    /// Numbers of reads that have looked up their blocks and have not ended.
    reading: RefCell<BTreeSet<u64>>,
    reads: Cell<u64>,
    /// Blocks that cleaning has moved and that have not arrived, by their new places.
    moving: RefCell<BTreeMap<Addr, Moving>>,
    options: F2fsOptions,
    /// Whether the disk has a placement handle for each log.
    has_handles: bool,
    /// Blocks of an append segment of the disk; 0 if it has none.
    segment_blocks: u32,
    /// State of the mode that uses order instead of waiting.
    ordered: Ordered,
    recovered: Cell<Recovered>,
    /// Files with data that were written and have not been made durable since. On append segments also where in each segment they end.
    wet: RefCell<BTreeMap<Nid, Ends>>,
    /// Files whose data must not be written now.
    frozen: RefCell<BTreeSet<Nid>>,
    /// Numbers of node writes by fsync that have not ended; the next field is the next number.
    linking: RefCell<BTreeSet<u64>>,
    links: Cell<u64>,
    /// The last such write of each fsync that has not returned, with the inode of the file.
    syncing: RefCell<BTreeMap<u64, Nid>>,
    is_checkpointing: Cell<bool>,
    scratch: Scratch,
    asked: RefCell<Asked>,
    /// The first period whose pages that were written in place may not be durable.
    in_place_since: Cell<Option<u64>>,
    /// Since then a file became shorter in the middle of a page: any checkpoint has its length, so it flushes that page, too.
    has_cut: Cell<bool>,
    checkpoints_begun: Cell<u64>,
    /// Number of the last checkpoint that succeeded.
    checkpoint_ended: Cell<u64>,
    /// Number of the last one that succeeded and also flushed whatever was written in place before it began.
    whole_checkpoint_ended: Cell<u64>,
    is_settling: Cell<bool>,
    is_cleaning: Cell<bool>,
    /// Whether background cleaning sleeps until the next write.
    is_asleep: Cell<bool>,
    /// Whether pages were written since background cleaning found nothing to do.
    has_new_holes: Cell<bool>,
    /// How long background cleaning slept the last time.
    sleep: Cell<Option<Duration>>,
    /// Times of background work.
    turns: Cell<Turns>,
    /// Set when a checkpoint or an fsync failed: the disk holds the state of the checkpoint before.
    failed: Cell<bool>,
    /// Notified when something that a task may wait for has changed: a write or a checkpoint has ended.
    changes: Event,
}

/// Purpose of a checkpoint.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Scope {
    /// Makes durable the state of the volume, and the data to which it newly refers.
    Metadata,
    /// Makes durable the data of this file as well.
    File(Nid),
    /// Makes all data durable.
    All,
    /// Makes all data durable, and nothing follows.
    Unmount,
}

/// The last block of a file's data in each segment of the disk.
type Ends = BTreeMap<u64, Block>;

/// Number of files, or periods, that a range flush of a checkpoint can name besides its own two tags.
const OTHERS_MAX: usize = 14;

/// Data that the next checkpoint has to make durable, besides the data to which it newly refers.
#[derive(Clone, Debug, Default)]
struct Asked {
    all: bool,
    files: BTreeSet<Nid>,
}

impl Asked {
    fn is_all(&self) -> bool {
        self.all || self.files.len() > OTHERS_MAX
    }
}

/// Refuses tables that contradict themselves, before anything is written by them.
fn check_tables(
    geometry: &Geometry,
    sit: &[SitEntry],
    nat: &BTreeMap<Nid, NatEntry>,
    mut journalled: impl Iterator<Item = Nid>,
) -> Result<()> {
    let beyond = nat.range(geometry.nid_end()..).next().map(|(&nid, _)| nid);
    if let Some(nid) = beyond.or_else(|| journalled.find(|nid| *nid >= geometry.nid_end())) {
        return Err(Error::Corrupt(format!(
            "node {nid} has an entry, expected one below {}",
            geometry.nid_end()
        )));
    }
    for (segment, entry) in sit.iter().enumerate() {
        if entry.valid != entry.counted() || usize::from(entry.log) >= Log::ALL.len() {
            return Err(Error::Corrupt(format!(
                "segment {segment} of log {} has {} valid blocks, and its map has {}",
                entry.log,
                entry.valid,
                entry.counted()
            )));
        }
    }
    Ok(())
}

impl F2fs {
    /// Mounts a volume for writing with the default options of Linux; see [`Self::mount_with`].
    pub async fn mount(port: Rc<dyn BlockPort>) -> Result<Self> {
        Self::mount_with(port, F2fsOptions::default()).await
    }

    /// Mounts a volume for writing. If it was not unmounted, what fsync wrote after its last checkpoint is recovered first, and
    /// inodes that had lost their names are freed. Errors: those of [`Volume::mount`]; data written by fsync that contradict the
    /// volume; a disk that cannot do what the options ask for.
    pub fn mount_with(port: Rc<dyn BlockPort>, options: F2fsOptions) -> Boxed<'static, Result<Self>> {
        Box::pin(Self::open(port, options))
    }

    async fn open(port: Rc<dyn BlockPort>, options: F2fsOptions) -> Result<Self> {
        let volume = Volume::mount(Rc::clone(&port)).await?;
        Self::on(volume, port, options, None).await
    }

    /// Mounts a volume on append segments for writing; `written` is the number of blocks that are written in each section.
    pub(crate) fn appending(
        volume: Volume,
        port: Rc<dyn BlockPort>,
        options: F2fsOptions,
        written: Vec<u32>,
    ) -> Boxed<'static, Result<Self>> {
        Box::pin(Self::on(volume, port, options, Some(written)))
    }

    async fn on(
        volume: Volume,
        port: Rc<dyn BlockPort>,
        options: F2fsOptions,
        written: Option<Vec<u32>>,
    ) -> Result<Self> {
        let flags = volume.checkpoint().flags;
        if flags.has(Flags::ERROR) || flags.has(Flags::FSCK) {
            return Err(Error::Corrupt("it says that it has to be checked".into()));
        }
        if options.clean_by == CleanBy::Share && port.share_blocks_max() == 0 {
            return Err(Error::Refused("cleaning by SHARE on a disk without that command".into()));
        }
        if options.commit_mode == CommitMode::DualMode {
            if !is_kept(&*port).await {
                return Err(Error::Refused("dual mode on a disk without barriers".into()));
            }
            if options.checkpoint == Flushing::RangeFlush {
                return Err(Error::Refused("dual mode with range flushes of checkpoints".into()));
            }
        }
        let state = State {
            planted: options.planted,
            inline_data: options.inline_data,
            inline_dentry: options.inline_dentry,
            fastboot: options.fastboot,
            ..Self::load_state(&volume, written.as_deref()).await?
        };
        let fs = Self {
            volume,
            has_handles: usize::from(port.handles()) >= Log::ALL.len(),
            segment_blocks: port.segment_blocks(),
            port,
            options,
            ordered: Ordered::default(),
            recovered: Cell::default(),
            state: RefCell::new(state),
            tickets: RefCell::default(),
            writing: RefCell::default(),
            writes: Cell::new(0),
            reading: RefCell::default(),
            reads: Cell::new(0),
            moving: RefCell::default(),
            wet: RefCell::default(),
            frozen: RefCell::default(),
            linking: RefCell::default(),
            links: Cell::new(0),
            syncing: RefCell::default(),
            is_checkpointing: Cell::new(false),
            scratch: Scratch::default(),
            asked: RefCell::default(),
            in_place_since: Cell::new(None),
            has_cut: Cell::new(false),
            checkpoints_begun: Cell::new(0),
            checkpoint_ended: Cell::new(0),
            whole_checkpoint_ended: Cell::new(0),
            is_settling: Cell::new(false),
            is_cleaning: Cell::new(false),
            is_asleep: Cell::new(true),
            has_new_holes: Cell::new(false),
            sleep: Cell::new(None),
            turns: Cell::default(),
            failed: Cell::new(false),
            changes: Event::default(),
        };
        fs.recover(written.as_deref()).await?;
        Ok(fs)
    }

    async fn load_state(volume: &Volume, written: Option<&[u32]>) -> Result<State> {
        let checkpoint = volume.checkpoint().clone();
        let geometry = *volume.geometry();
        let sit = volume.sit_entries().await?;
        let mut logs = Vec::new();
        for log in Log::ALL {
            let cursor = checkpoint.cursor(log);
            logs.push(OpenLog { cursor, summary: volume.summary(cursor.segment).await? });
        }
        let mut space = Space::new(&geometry, &checkpoint, &sit);
        if let Some(written) = written {
            space.settle_written(&geometry, &checkpoint, &sit, written).map_err(Error::Corrupt)?;
        }
        let nat = volume.nat_entries().await?;
        check_tables(&geometry, &sit, &nat, volume.nat_journal_nids())?;
        Ok(State {
            superblock: volume.superblock().clone(),
            geometry,
            seed: volume.superblock().inode_checksum_seed(),
            area: Area::of(volume),
            nat: nat.into_iter().collect(),
            sit,
            space,
            logs,
            inodes: ByNid::default(),
            nodes: ByNid::default(),
            dirty: DirtyNodes::default(),
            only_times: BTreeSet::new(),
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
            is_abandoned: false,
            metrics: F2fsMetrics::default(),
            planted: None,
            inline_data: false,
            inline_dentry: false,
            fastboot: false,
            epoch: volume.epoch(),
            is_pending: false,
            since: Since::default(),
            checkpoint,
        })
    }

    /// Files and orphans that the mount recovered.
    pub fn recovered(&self) -> Recovered {
        self.recovered.get()
    }

    /// Runs an operation on the state, and again each time that a block which it needs has been loaded.
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

    /// Runs an operation that changes the state, when there is room.
    async fn change<T>(&self, operation: impl FnMut(&mut State) -> Step<T>) -> std::result::Result<T, Errno> {
        if self.failed.get() {
            return Err(Errno::EROFS);
        }
        self.balance().await?;
        self.run(operation).await
    }

    /// Counters since the mount.
    pub fn metrics(&self) -> F2fsMetrics {
        self.state.borrow().metrics
    }

    /// Blocks that the map of a volume on append segments takes before a checkpoint cleans it.
    pub(crate) fn map_blocks_left(&self) -> Option<u64> {
        self.state.borrow().area.map_blocks_left()
    }

    /// Bytes in memory of such a map: the table of TIMB places, and all the rest.
    pub(crate) fn map_memory_bytes(&self) -> Option<[u64; 2]> {
        self.state.borrow().area.map_memory_bytes()
    }

    /// Counters of the map since the mount, of a volume on append segments.
    pub fn map_metrics(&self) -> Option<AlfsMetrics> {
        self.state.borrow().area.map_metrics()
    }

    /// Begins a write of a file's data, or of any files (0); checkpoints wait until it has ended.
    fn begin_write(&self, ino: Nid) -> u64 {
        let number = self.writes.get();
        self.writes.set(number + 1);
        self.writing.borrow_mut().insert(number, ino);
        self.begin_placing(number, ino);
        number
    }

    /// Whether writes of data with a smaller number are under way.
    fn writes_before(&self, number: u64) -> bool {
        self.writing.borrow().keys().next().is_some_and(|&first| first < number)
    }

    /// Notes that data of a file are written or moved. In dual mode that is known elsewhere.
    fn note_wet(&self, ino: Nid) {
        if !self.is_dual() {
            self.wet.borrow_mut().entry(ino).or_default();
        }
    }

    /// Notes where on append segments such data end.
    fn note_wet_to(&self, ino: Nid, last: Block) {
        if let Some(segment) = last.0.checked_div(self.segment_blocks.into()) {
            let mut wet = self.wet.borrow_mut();
            let end = wet.entry(ino).or_default().entry(segment).or_insert(last);
            *end = last.max(*end);
        }
    }

    fn end_write(&self, number: u64) {
        self.end_placing(number);
        self.writing.borrow_mut().remove(&number);
        self.changes.notify();
    }

    /// Waits while a SHARE brings a block to its place.
    async fn arrived(&self, addr: Addr) {
        self.changes.until(|| !matches!(self.moving.borrow().get(&addr), Some(Moving::Disk))).await;
    }

    /// Begins a read: until it ends, blocks that are valid now are not allocated again.
    fn begin_read(&self) -> u64 {
        let number = self.reads.get();
        self.reads.set(number + 1);
        self.reading.borrow_mut().insert(number);
        number
    }

    fn end_read(&self, number: u64) {
        self.reading.borrow_mut().remove(&number);
        self.changes.notify();
    }

    /// Takes the writes that operations left to be submitted.
    fn take_outbox(&self) -> Vec<Write> {
        let mut state = self.state.borrow_mut();
        if state.outbox.is_empty() {
            return Vec::new();
        }
        let writes = std::mem::take(&mut state.outbox);
        state.metrics.written_blocks += writes.iter().map(|write| write.payloads.len() as u64).sum::<u64>();
        writes
    }

    fn submit_outbox(&self) {
        let writes = self.take_outbox();
        if !writes.is_empty() {
            let tickets = writes.into_iter().map(|write| self.submit(write, Order::Within));
            self.tickets.borrow_mut().extend(tickets);
        }
    }

    /// Loads what an operation stopped for. State that came into memory meanwhile is newer and stays. In a box, because operations
    /// seldom stop and each of their futures would be larger by this one.
    fn load(&self, stop: Stop) -> Boxed<'_, Result<()>> {
        Box::pin(async move {
            let number = self.begin_read();
            let loaded = self.load_block(stop).await;
            self.end_read(number);
            loaded
        })
    }

    async fn load_block(&self, stop: Stop) -> Result<()> {
        let address = |nid| {
            let addr = self.state.borrow().nat.get(&nid).map_or(Addr::NULL, |entry| entry.addr);
            let place = self.state.borrow().geometry.place_of(addr);
            place.map(|_| addr).ok_or_else(|| Error::Corrupt(format!("node {nid} is at {addr}")))
        };
        match stop {
            Stop::Inode(nid) => {
                let inode = self.volume.inode_at(nid, address(nid)?).await?;
                self.state.borrow_mut().inodes.insert_new(nid, Box::new(inode));
            }
            Stop::Node { nid, ino, offset } => {
                let block = self.volume.node_at(ino, nid, offset, address(nid)?).await?;
                let block: crate::port::BlockBytes = block[..].try_into().expect("a block");
                self.state.borrow_mut().nodes.insert_new(nid, Box::new(block));
            }
            Stop::AnyNode(nid) => self.load_any_node(nid, address(nid)?).await?,
            Stop::Block { ino, index, addr } => {
                let moving = self.moving.borrow().get(&addr).cloned();
                let block = match moving {
                    Some(Moving::Content(content)) => bytes_of(&content),
                    Some(Moving::Disk) => {
                        // The operation looks the block up again.
                        self.arrived(addr).await;
                        return Ok(());
                    }
                    None => self.volume.block(addr).await?,
                };
                let block: crate::port::BlockBytes = block[..].try_into().expect("a block");
                self.state.borrow_mut().blocks.entry((ino, index)).or_insert_with(|| Box::new(block));
            }
            Stop::Summary(segment) => {
                let addr = self.state.borrow().area.summary_place(segment);
                let summary = super::layout::summary::Summary::decode(&self.volume.block(addr).await?);
                self.state.borrow_mut().space.loaded_summary(segment, summary);
            }
            Stop::Failed(_) => unreachable!("a failed operation is not run again"),
        }
        Ok(())
    }

    /// Waits for all writes of metadata that were submitted.
    async fn settle(&self) -> std::result::Result<(), Errno> {
        self.changes.until(|| !self.is_settling.get()).await;
        self.is_settling.set(true);
        let tickets = std::mem::take(&mut *self.tickets.borrow_mut());
        let result = answers(tickets).await;
        if result.is_err() {
            // The disk does not hold what the tables in memory say.
            self.failed.set(true);
        }
        self.is_settling.set(false);
        self.changes.notify();
        result
    }

    /// Makes everything durable that was done before. All callers that come while a checkpoint is being made share the next one.
    pub async fn checkpoint(&self) -> std::result::Result<(), Errno> {
        self.checkpoint_of(Scope::All).await
    }

    /// Whether the checkpoint with this number, or a later one, has succeeded.
    fn has_checkpoint(&self, number: u64) -> bool {
        self.checkpoint_ended.get() >= number
    }

    /// Makes a checkpoint that also makes durable what `scope` says. In dual mode a checkpoint that is made only for room need not
    /// be durable, since it is in order before what is written there.
    async fn checkpoint_of(&self, scope: Scope) -> std::result::Result<(), Errno> {
        self.dispatch_checkpoint(scope).await?;
        match self.is_dual() && scope != Scope::Metadata {
            true => self.make_durable(None).await,
            false => Ok(()),
        }
    }

    /// Makes the same checkpoint; in dual mode only dispatches it.
    async fn dispatch_checkpoint(&self, scope: Scope) -> std::result::Result<(), Errno> {
        let is_unmount = scope == Scope::Unmount;
        {
            let mut asked = self.asked.borrow_mut();
            match scope {
                Scope::Metadata => (),
                Scope::File(ino) => drop(asked.files.insert(ino)),
                Scope::All | Scope::Unmount => asked.all = true,
            }
        }
        let wanted = self.checkpoints_begun.get() + 1;
        let is_done = || self.has_checkpoint(wanted) && !is_unmount;
        self.changes.until(|| !self.is_checkpointing.get() || is_done()).await;
        if self.failed.get() {
            return Err(Errno::EROFS);
        }
        let is_needed = {
            let state = self.state.borrow();
            // Pages written in place do not change the state, but have to be made durable as well.
            let wet = self.wet.borrow();
            let is_wet = if let Scope::File(ino) = scope { wet.contains_key(&ino) } else { !wet.is_empty() };
            state.changed || is_wet || is_unmount && !state.checkpoint.flags.has(Flags::UNMOUNTED)
        };
        if is_done() || !is_needed {
            return Ok(());
        }
        self.is_checkpointing.set(true);
        let number = self.checkpoints_begun.get() + 1;
        self.checkpoints_begun.set(number);
        let asked = self.asked.take();
        let is_whole = self.flushes_all(&asked);
        let again = asked.clone();
        let result = self.make_checkpoint(is_unmount, asked).await;
        match result {
            Ok(()) => {
                self.checkpoint_ended.set(number);
                if is_whole {
                    self.whole_checkpoint_ended.set(number);
                }
            }
            Err(Errno::ENOSPC) => {
                // Others wait for it, too.
                let mut asked = self.asked.borrow_mut();
                asked.all |= again.all;
                asked.files.extend(again.files);
            }
            Err(_) => self.failed.set(true),
        }
        self.is_checkpointing.set(false);
        self.changes.notify();
        result
    }

    /// Discards blocks that a checkpoint frees, if at least `blocks_min` are in a row.
    async fn discard(
        &self,
        pending: &checkpoint::Pending,
        blocks_min: u32,
    ) -> std::result::Result<Discarded, Errno> {
        if self.appends() {
            return self.discard_sections(pending).await;
        }
        let ranges = self.freed_by(pending, blocks_min);
        let tickets: Vec<_> = ranges.iter().map(|&(block, count)| self.port.discard(block, count)).collect();
        for ticket in tickets {
            // The state is the same if the disk cannot discard.
            let _ = ticket.completed().await;
        }
        Ok(Discarded { ranges, ..Discarded::default() })
    }

    /// Whether the disk consists of append segments.
    pub(super) fn appends(&self) -> bool {
        self.state.borrow().geometry.is_appended()
    }

    /// Discards the append segments that a checkpoint frees: nothing could be written there otherwise.
    async fn discard_sections(&self, pending: &checkpoint::Pending) -> std::result::Result<Discarded, Errno> {
        let sections: BTreeSet<u32> = self.state.borrow().freed_sections(&pending.kept).into_iter().collect();
        let dead = self.state.borrow().area.dead_segments();
        self.discard_all(&sections, dead.iter().map(|segment| segment.0)).await?;
        Ok(Discarded { sections, ..Discarded::default() })
    }

    /// Discards the append segments of these sections of the main area, and others by their numbers on the disk.
    async fn discard_all(
        &self,
        sections: &BTreeSet<u32>,
        others: impl Iterator<Item = u32>,
    ) -> std::result::Result<(), Errno> {
        let (blocks, geometry) = (self.segment_blocks, self.state.borrow().geometry);
        let first = |section: &u32| geometry.main_block(SegNo(section * geometry.segments_per_section), 0);
        let segments = sections.iter().map(|section| first(section).0 / blocks).chain(others);
        let discard = |segment: u32| self.port.discard(Block(u64::from(segment) * u64::from(blocks)), blocks);
        let tickets: Vec<Ticket> = segments.map(discard).collect();
        self.state.borrow_mut().metrics.discarded_blocks += tickets.len() as u64 * u64::from(blocks);
        answers(tickets).await
    }

    fn freed_by(&self, pending: &checkpoint::Pending, blocks_min: u32) -> Vec<(Block, u32)> {
        let mut state = self.state.borrow_mut();
        let freed = state.freed_ranges(&pending.kept, blocks_min);
        state.metrics.discarded_blocks += freed.iter().map(|(_, count)| u64::from(*count)).sum::<u64>();
        freed
    }

    /// Whether a checkpoint of this scope flushes whatever was written in place.
    fn flushes_all(&self, asked: &Asked) -> bool {
        asked.is_all() || self.options.checkpoint == Flushing::Flush
    }

    async fn make_checkpoint(&self, is_unmount: bool, asked: Asked) -> std::result::Result<(), Errno> {
        let (data, period) = {
            let state = self.state.borrow();
            (state.data_tag(), state.period())
        };
        let pending = self.run(|state| state.prepare(is_unmount)).await?;
        let moved = self.ordered.moved.take();
        let (before, reads_before) = (self.writes.get(), self.reads.get());
        if self.is_dual() {
            *self.ordered.leaving.borrow_mut() = moved;
            return self.order_checkpoint(pending, before, reads_before).await;
        }
        // Data that were written before this point are flushed below.
        let mut flushing = self.options.checkpoint;
        let mut others: Vec<Tag> = asked.files.iter().map(|ino| Tag(u64::from(ino.0))).collect();
        if self.has_cut.take() || self.flushes_all(&asked) {
            self.wet.borrow_mut().clear();
            let since = self.in_place_since.take().unwrap_or(period + 1);
            others = (since..=period).take(OTHERS_MAX + 1).map(in_place_tag).collect();
            if others.len() > OTHERS_MAX {
                flushing = Flushing::Flush;
            }
        } else {
            self.wet.borrow_mut().retain(|ino, _| !asked.files.contains(ino));
        }
        self.changes.until(|| !self.writes_before(before) && self.linking.borrow().is_empty()).await;
        if self.failed.get() {
            return Err(Errno::EIO);
        }
        self.settle().await?;
        let planted = |bug| self.options.planted == Some(bug);
        let mut tags = vec![METADATA, data];
        if planted(PlantedBug::NoDataInCheckpoint) {
            tags.pop();
        }
        if asked.is_all() || !planted(PlantedBug::NoFileInCheckpoint) {
            tags.extend(others);
        }
        let mut discarded = Discarded::default();
        if planted(PlantedBug::EarlyDiscard) {
            discarded = self.discard(&pending, 1).await?;
        }
        if !planted(PlantedBug::NoFlushBeforeLastBlock) {
            self.flush(flushing, Selection::of_owners(tags)).await?;
        }
        let last = Write { fua: !planted(PlantedBug::LazyLastBlock), ..self.last_block(&pending) };
        answer(self.port.write(last)).await?;
        // A task that looked up a block before the checkpoint may still be reading it.
        self.changes.until(|| self.reading.borrow().first().is_none_or(|&first| first >= reads_before)).await;
        if (self.options.discard || self.appends()) && !planted(PlantedBug::EarlyDiscard) {
            discarded = self.discard(&pending, self.options.discard_blocks_min).await?;
        }
        let mut state = self.state.borrow_mut();
        let prepared = state.space.prepared();
        state.space.note_answered(prepared);
        state.commit(pending, &discarded);
        Ok(())
    }
}
