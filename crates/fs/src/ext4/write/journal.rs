//! Writing the journal (jbd2): transactions go to the log, and from there to their places.
//!
//! The order on the disk for a transaction: its blocks; a flush, which also covers the data written before; its commit block, which
//! is written durably. From then on the transaction counts, whatever is at the places of its blocks.
//!
//! Invariants:
//! 1. A place is written only from a committed transaction, with the newest committed content of the block. (A new node of the journal's
//!    own extent tree is there before: `growth.rs`.)
//! 2. A part of the log is written again only when what it held is durable at its places and the journal's superblock, also
//!    durable, begins behind it.
//! 3. A block that a transaction revokes is not written to its place any more from that commit on: it may be one of a file.
//!
//! In dual mode ([`Journal::dispatch`]) order takes the place of the first flush, and the second one comes when a task waits for
//! durability: the blocks of a transaction are one epoch with the data written before, its commit block is the next. Several transactions
//! may have been dispatched that are not durable; what each holds was copied when it was closed, so a block may be in any number of them.
//!
//! With [`CheckpointBy::Share`] a checkpoint writes nothing: the places take over the copies in the log (share §5). The table of what
//! was committed and is not at its place names the newest copy of each block (the A-tree of SOJ and SDJ), and gives it up when the block
//! is revoked or committed again. Blocks that are escaped in the log are written as without SHARE.
//!
//! Without barriers the flushes are left out, and what was written is taken for durable when the device has answered.
//!
//! Deliberately absent: fast commits.

use super::super::error::{Error, Result as FormatResult};
use super::super::layout::Addr;
use super::super::layout::checksum::START;
use super::super::layout::journal::{
    Checksums, Commit, JournalFormat, JournalSuperblock, Tag, escape, transaction_checksum,
};
use super::{CheckpointBy, Ext4Options, PlantedBug};
use crate::order::{STREAM, answer, answers};
use crate::port::{BLOCK_BYTES, Block, BlockPort, InOrder, Request, Share, Ticket, Write, bytes_of};
use crate::vfs::{Errno, Timestamp};
use flashweir_core::{Contents, Order, Payload};
use std::cell::{Cell, RefCell};
use std::collections::{BTreeMap, VecDeque};
use std::rc::Rc;

type Result<T> = std::result::Result<T, Errno>;

/// A transaction as it is committed.
#[derive(Debug)]
pub(super) struct Closed {
    /// Blocks with their contents, each once.
    pub(super) blocks: Vec<(Addr, Payload)>,
    /// Blocks whose versions in earlier transactions do not count any more; none of the blocks above.
    pub(super) revoked: Vec<Addr>,
    /// Time of the commit.
    pub(super) now: Timestamp,
}

/// A committed transaction that the log still has to hold.
#[derive(Debug)]
struct Live {
    sequence: u32,
    /// Where it begins in the log; the next field is its length.
    start: u32,
    blocks: u32,
    addrs: Vec<Addr>,
}

/// The newest committed version of a block that is not at its place.
#[derive(Clone, Debug)]
struct Committed {
    payload: Payload,
    /// Its copy in the log, unless that is escaped.
    copy: Option<Addr>,
}

/// A transaction as blocks of the log.
struct Encoded {
    /// All but the commit block.
    body: Vec<Payload>,
    /// Where in `body` each block of the transaction is, and whether it is escaped there.
    copies: Vec<(u32, bool)>,
    commit: Payload,
}

/// Blocks in a row: the first one, and their number.
pub(super) type Run = (Addr, u32);

/// What checkpoints did.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct CheckpointCounts {
    pub(super) checkpoints: u64,
    pub(super) home_writes: u64,
    pub(super) shared_blocks: u64,
    pub(super) shares: u64,
    pub(super) escaped_blocks: u64,
    /// Not of a checkpoint: blocks that the log got.
    pub(super) grown_blocks: u64,
}

#[derive(Debug)]
struct Log {
    superblock: JournalSuperblock,
    format: JournalFormat,
    /// Sequence number of the next transaction; the next field is where it begins.
    sequence: u32,
    head: u32,
    /// Committed transactions, the oldest first.
    live: VecDeque<Live>,
    /// Number of their blocks.
    live_blocks: u32,
    /// Blocks of which the newest committed version is not at its place.
    pending: BTreeMap<Addr, Committed>,
    /// Blocks that are being brought to their places.
    leaving: BTreeMap<Addr, Payload>,
}

/// See the module.
#[derive(Debug)]
pub(super) struct Journal {
    port: Rc<dyn BlockPort>,
    /// Addresses of its blocks on the disk.
    blocks: RefCell<Vec<Addr>>,
    /// Whether a commit had to make room since [`Journal::wanted_growth`] was asked.
    was_short: Cell<bool>,
    has_barriers: bool,
    planted: Option<PlantedBug>,
    /// See [`Ext4Options::checkpoint_blocks`].
    checkpoint_blocks: u32,
    /// Most blocks of a SHARE; 0 where checkpoints write.
    share_blocks_max: u32,
    counts: Cell<CheckpointCounts>,
    log: RefCell<Log>,
}

impl Log {
    /// Number of blocks of the log.
    fn capacity(&self) -> u32 {
        self.end() - self.superblock.first
    }

    fn end(&self) -> u32 {
        self.superblock.log_end()
    }

    fn free(&self) -> u32 {
        self.capacity() - self.live_blocks
    }

    /// The block of the log that is `blocks` behind another one, wrapping around.
    fn behind(&self, at: u32, blocks: u32) -> u32 {
        let (first, capacity) = (self.superblock.first, self.capacity());
        first + (at - first + blocks % capacity) % capacity
    }

    /// Sets the start of the log in the superblock, or, if the log is empty, the block at which the next mount continues.
    fn set_tail(&mut self) {
        self.superblock.head = self.head;
        (self.superblock.start, self.superblock.sequence) = match self.live.front() {
            Some(live) => (live.start, live.sequence),
            None => (0, self.sequence),
        };
    }

    /// Number of blocks of a transaction in the log: descriptors, contents, revoke blocks and the commit block.
    fn blocks_of(&self, closed: &Closed) -> u32 {
        let descriptors = closed.blocks.len().div_ceil(self.format.tags_max());
        let revokes = closed.revoked.len().div_ceil(self.format.revokes_max());
        (revokes + descriptors + closed.blocks.len() + 1) as u32
    }

    fn encode(&self, closed: &Closed) -> Encoded {
        let (format, sequence) = (self.format, self.sequence);
        let has_checksum = format.checksums == Checksums::V1;
        let mut checksum = START;
        let mut add = |block: &[u8]| {
            if has_checksum {
                checksum = transaction_checksum(checksum, block);
            }
        };
        let (mut body, mut places): (Vec<Payload>, _) = (Vec::new(), Vec::with_capacity(closed.blocks.len()));
        for addrs in closed.revoked.chunks(format.revokes_max()) {
            body.push(Payload::Bytes(format.revoke_block(sequence, addrs).into()));
        }
        for blocks in closed.blocks.chunks(format.tags_max()) {
            let mut tags = Vec::with_capacity(blocks.len());
            let mut copies = Vec::with_capacity(blocks.len());
            for (addr, payload) in blocks {
                let bytes = bytes_of(payload);
                let mut copy = payload.clone();
                let mut escaped = bytes[..4].to_vec();
                let is_escaped = escape(&mut escaped);
                if is_escaped {
                    let mut bytes = bytes.to_vec();
                    escape(&mut bytes);
                    copy = Payload::Bytes(bytes.into());
                }
                let checksum = format.data_checksum(sequence, &bytes_of(&copy));
                let place = (body.len() + 1 + copies.len()) as u32;
                places.push((place, is_escaped));
                tags.push(Tag { addr: *addr, is_escaped, is_deleted: false, checksum });
                copies.push(copy);
            }
            let descriptor = format.descriptor(sequence, &tags, &self.superblock.uuid);
            add(&descriptor);
            copies.iter().for_each(|copy| add(&bytes_of(copy)));
            body.push(Payload::Bytes(descriptor.into()));
            body.extend(copies);
        }
        let commit = Commit {
            sequence,
            seconds: closed.now.seconds.cast_unsigned(),
            nanos: closed.now.nanos,
            checksum: if has_checksum { (1, 4, checksum) } else { (0, 0, 0) },
        };
        Encoded { body, copies: places, commit: Payload::Bytes(format.commit_block(&commit).into()) }
    }
}

impl Journal {
    /// Opens a journal with nothing to replay; `blocks` are all of its blocks in order. Errors: its blocks are not of 4 KiB, or are
    /// fewer than it says.
    pub(super) async fn open(
        port: Rc<dyn BlockPort>,
        superblock: JournalSuperblock,
        blocks: Vec<Addr>,
        options: &Ext4Options,
    ) -> FormatResult<Self> {
        let format = superblock.format();
        if format.block_bytes as usize != BLOCK_BYTES || (superblock.blocks as usize) > blocks.len() {
            let (bytes, says, has) = (format.block_bytes, superblock.blocks, blocks.len());
            return Err(Error::Corrupt(format!(
                "the journal has {has} blocks, and says {says} of {bytes} bytes"
            )));
        }
        // As Linux does since 6.3: the log continues where the last mount left it, so that its first blocks do not wear more than
        // the others.
        let log_blocks = superblock.first..superblock.log_end();
        let goes_on = superblock.start == 0 && log_blocks.contains(&superblock.head);
        let head = if goes_on { superblock.head } else { superblock.first };
        let log = Log {
            format,
            sequence: superblock.sequence.max(1),
            head,
            superblock,
            live: VecDeque::new(),
            live_blocks: 0,
            pending: BTreeMap::new(),
            leaving: BTreeMap::new(),
        };
        let planted = options.planted;
        let has_barriers = options.barrier && planted != Some(PlantedBug::NoBarriers);
        let share_blocks_max = match options.checkpoint_by {
            CheckpointBy::Write => 0,
            CheckpointBy::Share => port.share_blocks_max(),
        };
        Ok(Self {
            port,
            blocks: RefCell::new(blocks),
            was_short: Cell::new(false),
            has_barriers,
            planted,
            checkpoint_blocks: options.checkpoint_blocks,
            share_blocks_max,
            counts: Cell::default(),
            log: RefCell::new(log),
        })
    }

    /// Most blocks of one transaction: a quarter of the log, as with Linux.
    pub(super) fn blocks_max(&self) -> usize {
        self.log.borrow().capacity() as usize / 4
    }

    /// Number of blocks from where the next transaction begins to the end of the log.
    pub(super) fn blocks_left(&self) -> u32 {
        let log = self.log.borrow();
        log.end() - log.head
    }

    /// Number of its blocks, with its superblock.
    pub(super) fn blocks(&self) -> u32 {
        self.log.borrow().superblock.blocks
    }

    fn addr(&self, at: u32) -> Addr {
        self.blocks.borrow()[at as usize]
    }

    /// Number of blocks by which the journal is to grow, at most to `most`, because a commit had to make room since the last call.
    pub(super) fn wanted_growth(&self, most: u32) -> u32 {
        let blocks = self.blocks();
        if self.was_short.take() { blocks.min(most.saturating_sub(blocks)) } else { 0 }
    }

    /// Empties the log, and adds blocks to it, which the inode at its place has then. Must not run beside a commit; all transactions are
    /// durable.
    pub(super) async fn extend(&self, runs: &[Run]) -> Result<()> {
        if self.planted != Some(PlantedBug::LogBeforeInode) {
            self.empty().await?;
        }
        // What was there before may look like transactions.
        let zeros = runs.iter().map(|&(addr, count)| {
            Write::new(Block(addr.0), Contents::from_iter((0..count).map(|_| Payload::Zero)))
        });
        answers(zeros.map(|write| self.port.write(write)).collect::<Vec<_>>()).await?;
        self.flush().await?;
        let more = runs.iter().flat_map(|&(addr, count)| (addr.0..).take(count as usize).map(Addr));
        self.blocks.borrow_mut().extend(more);
        let more = runs.iter().map(|(_, count)| count).sum::<u32>();
        self.log.borrow_mut().superblock.blocks += more;
        let mut counts = self.counts.get();
        counts.grown_blocks += u64::from(more);
        self.counts.set(counts);
        self.write_superblock().await
    }

    /// Writes blocks, which nothing that is durable has, to their places durably, before the transaction that has them is committed. They have
    /// the order of data: a discard of what was there before may be on its way.
    pub(super) async fn write_ahead(&self, blocks: Vec<(Addr, Payload)>, order: InOrder) -> Result<()> {
        let writes = runs(blocks).into_iter().map(|write| Write { order, ..write });
        answers(writes.map(|write| self.port.write(write))).await?;
        self.flush().await
    }

    /// The newest committed content of a block, unless it is at its place already.
    pub(super) fn newest(&self, addr: Addr) -> Option<Payload> {
        let log = self.log.borrow();
        let pending = log.pending.get(&addr).map(|committed| &committed.payload);
        pending.or_else(|| log.leaving.get(&addr)).cloned()
    }

    /// Writes a transaction to the log; then it is durable, or has been answered if there are no barriers. `flushes` is called
    /// before the flush that makes durable what was answered until then. There must be one call at a time. Errors: of the port; the
    /// transaction does not count then.
    pub(super) async fn commit(&self, closed: Closed, flushes: impl FnOnce()) -> Result<()> {
        let Encoded { body, copies, commit } = self.log.borrow().encode(&closed);
        let blocks = body.len() as u32 + 1;
        let (start, commit_at, is_first) = self.begin(blocks).await?;
        if is_first {
            // Durable with the flush below, and so before the commit block.
            answer(self.port.write(self.superblock_write())).await?;
        }
        answers(self.write_log(start, body).into_iter().map(|write| self.port.write(write))).await?;
        flushes();
        if self.planted != Some(PlantedBug::NoFlushBeforeCommit) {
            self.flush().await?;
        }
        let write = Write {
            fua: self.has_barriers && self.planted != Some(PlantedBug::LazyCommit),
            ..Write::new(Block(self.addr(commit_at).0), vec![commit])
        };
        answer(self.port.write(write)).await?;
        self.note(closed, &copies, start, blocks);
        Ok(())
    }

    /// Dispatches a transaction: its blocks, in one epoch of [`STREAM`] with what was written in order before, then its commit
    /// block as the next epoch. Returns the requests; when the last one is answered, a flush makes all of it durable. There must be
    /// one call at a time; if [`Self::is_short_of`] it, all earlier transactions must be durable. Errors: of the port, if the log
    /// had to be emptied first.
    pub(super) async fn dispatch(&self, closed: Closed) -> Result<Vec<Ticket>> {
        let Encoded { body, copies, commit } = self.log.borrow().encode(&closed);
        let blocks = body.len() as u32 + 1;
        debug_assert_eq!(blocks, self.log.borrow().blocks_of(&closed), "of a transaction");
        let (start, commit_at, is_first) = self.begin(blocks).await?;
        let mut writes: Vec<Write> = is_first.then(|| self.superblock_write()).into_iter().collect();
        writes.extend(self.write_log(start, body));
        writes.push(Write::new(Block(self.addr(commit_at).0), vec![commit]));
        let (count, is_loose) = (writes.len(), self.planted == Some(PlantedBug::NoFlushBeforeCommit));
        let order = |at: usize| match at + 1 == count || at + 2 == count && !is_loose {
            true => Order::Barrier,
            false => Order::Within,
        };
        let ordered = |(at, write)| Write { order: Some((STREAM, order(at))), ..write };
        let tickets: Vec<Ticket> =
            writes.into_iter().enumerate().map(ordered).map(|write| self.port.write(write)).collect();
        self.note(closed, &copies, start, blocks);
        for ticket in &tickets {
            ticket.dispatched().await;
        }
        Ok(tickets)
    }

    /// Makes room for a transaction. Returns its start, the place of its commit block, and whether the log was empty, so that the
    /// journal's superblock has to name this start.
    async fn begin(&self, blocks: u32) -> Result<(u32, u32, bool)> {
        if blocks > self.log.borrow().capacity() {
            return Err(Errno::EUCLEAN);
        }
        self.make_room(blocks).await?;
        let mut log = self.log.borrow_mut();
        let (start, is_first) = (log.head, log.live.is_empty());
        if is_first {
            (log.superblock.start, log.superblock.sequence) = (start, log.sequence);
        }
        Ok((start, log.behind(start, blocks - 1), is_first))
    }

    /// Notes that a transaction is in the log; `copies` says where from `start` on each block is.
    fn note(&self, closed: Closed, copies: &[(u32, bool)], start: u32, blocks: u32) {
        let mut log = self.log.borrow_mut();
        let sequence = log.sequence;
        for addr in closed.revoked.iter().filter(|_| self.planted != Some(PlantedBug::PairAfterRevoke)) {
            log.pending.remove(addr);
        }
        let addrs = closed.blocks.iter().map(|(addr, _)| *addr).collect();
        for ((addr, payload), &(index, is_escaped)) in closed.blocks.into_iter().zip(copies) {
            let may_be_shared = !is_escaped || self.planted == Some(PlantedBug::SharedEscaped);
            let mut copy = may_be_shared.then(|| self.addr(log.behind(start, index)));
            if self.planted == Some(PlantedBug::OlderPair)
                && let Some(older) = log.pending.get(&addr)
            {
                copy = older.copy;
            }
            log.pending.insert(addr, Committed { payload, copy });
        }
        log.live.push_back(Live { sequence, start, blocks, addrs });
        log.live_blocks += blocks;
        log.head = log.behind(start, blocks);
        log.sequence = sequence.wrapping_add(1);
    }

    /// Whether blocks of the log have to be written to their places before a transaction.
    pub(super) fn is_short_of(&self, closed: &Closed) -> bool {
        self.has_to_make_room(self.log.borrow().blocks_of(closed))
    }

    fn has_to_make_room(&self, blocks: u32) -> bool {
        let log = self.log.borrow();
        let is_long = self.checkpoint_blocks > 0
            && !log.live.is_empty()
            && log.capacity() - log.free() + blocks > self.checkpoint_blocks;
        log.free() < blocks || is_long
    }

    /// Brings everything that was committed to its place, durably, and empties the log. Must not run beside a commit.
    pub(super) async fn empty(&self) -> Result<()> {
        if self.log.borrow().live.is_empty() && self.log.borrow().superblock.start == 0 {
            return Ok(());
        }
        self.checkpoint(|_| true).await
    }

    /// Makes room for `blocks` blocks: frees a quarter of the log at once, so that this is not done for each commit.
    async fn make_room(&self, blocks: u32) -> Result<()> {
        if !self.has_to_make_room(blocks) {
            return Ok(());
        }
        self.was_short.set(true);
        let capacity = self.log.borrow().capacity();
        let free = match self.checkpoint_blocks {
            0 => capacity / 4,
            most => capacity - (most / 2).min(capacity),
        };
        let wanted = blocks.max(free);
        self.checkpoint(|log| log.free() < wanted).await
    }

    /// Writes the blocks of the oldest transactions to their places as long as `goes_on`, and moves the start of the log past them.
    async fn checkpoint(&self, goes_on: impl Fn(&Log) -> bool) -> Result<()> {
        let mut home = BTreeMap::new();
        {
            let mut log = self.log.borrow_mut();
            while goes_on(&log) {
                let Some(live) = log.live.pop_front() else { break };
                log.live_blocks -= live.blocks;
                for addr in live.addrs {
                    home.extend(log.pending.remove(&addr).map(|committed| (addr, committed)));
                }
            }
            log.set_tail();
            log.leaving = home.iter().map(|(addr, committed)| (*addr, committed.payload.clone())).collect();
        }
        let submit = |request| {
            let share = if let Request::Share(share) = &request { Some(share.clone()) } else { None };
            (self.port.submit(request), share)
        };
        let under_way: Vec<_> = self.to_places(home).into_iter().map(submit).collect();
        let mut done = Ok(());
        for (ticket, share) in under_way {
            let mut ended = answer(ticket).await;
            if let (Err(_), Some(share)) = (ended, share) {
                ended = self.write_home(&share).await;
            }
            done = done.and(ended);
        }
        // After an error the places have old contents.
        done?;
        self.log.borrow_mut().leaving.clear();
        if self.planted != Some(PlantedBug::TailBeforeShare) {
            self.flush().await?;
        }
        self.write_superblock().await
    }

    /// Writes what a SHARE was to bring to its places, and which the device has refused: it had no room for copies, say.
    async fn write_home(&self, share: &Share) -> Result<()> {
        let blocks: Vec<(Addr, Payload)> = {
            let log = self.log.borrow();
            let places =
                share.remaps.iter().flat_map(|remap| remap.dst.0..remap.dst.0 + u64::from(remap.count));
            places
                .filter_map(|place| log.leaving.get_key_value(&Addr(place)))
                .map(|(at, it)| (*at, it.clone()))
                .collect()
        };
        let mut counts = self.counts.get();
        counts.shared_blocks -= blocks.len() as u64;
        counts.home_writes += blocks.len() as u64;
        self.counts.set(counts);
        answers(runs(blocks).into_iter().map(|write| self.port.write(write))).await
    }

    /// Requests that bring blocks to their places, and counts them.
    fn to_places(&self, mut home: BTreeMap<Addr, Committed>) -> Vec<Request> {
        let mut counts = self.counts.get();
        counts.checkpoints += 1;
        let mut requests = Vec::new();
        if self.share_blocks_max > 0 {
            let pairs: Vec<(Addr, Addr)> =
                home.iter().filter_map(|(addr, committed)| Some((*addr, committed.copy?))).collect();
            home.retain(|_, committed| committed.copy.is_none());
            counts.shared_blocks += pairs.len() as u64;
            counts.escaped_blocks += home.len() as u64;
            for pairs in pairs.chunks(self.share_blocks_max as usize) {
                let mut share = Share::default();
                pairs.iter().for_each(|(home, copy)| share.add(Block(home.0), Block(copy.0)));
                requests.push(Request::Share(share));
            }
            counts.shares += requests.len() as u64;
        }
        counts.home_writes += home.len() as u64;
        requests.extend(
            runs(home.into_iter().map(|(addr, it)| (addr, it.payload))).into_iter().map(Request::Write),
        );
        self.counts.set(counts);
        requests
    }

    pub(super) fn counts(&self) -> CheckpointCounts {
        self.counts.get()
    }

    async fn flush(&self) -> Result<()> {
        match self.has_barriers {
            true => answer(self.port.flush()).await,
            false => Ok(()),
        }
    }

    /// Writes for consecutive blocks of the log.
    fn write_log(&self, start: u32, body: Vec<Payload>) -> Vec<Write> {
        let log = self.log.borrow();
        let addr = |index: u32| self.addr(log.behind(start, index));
        runs((0..).map(addr).zip(body))
    }

    /// Writes its superblock durably.
    async fn write_superblock(&self) -> Result<()> {
        let write = Write { fua: self.has_barriers, ..self.superblock_write() };
        answer(self.port.write(write)).await
    }

    fn superblock_write(&self) -> Write {
        let mut block = vec![0; BLOCK_BYTES];
        let raw = self.log.borrow().superblock.encode();
        block[..raw.len()].copy_from_slice(&raw);
        Write::new(Block(self.addr(0).0), vec![Payload::Bytes(block.into())])
    }
}

/// Writes for blocks, one for each consecutive run.
fn runs(blocks: impl IntoIterator<Item = (Addr, Payload)>) -> Vec<Write> {
    let mut writes: Vec<Write> = Vec::new();
    for (addr, payload) in blocks {
        match writes.last_mut() {
            Some(run) if run.block.0 + run.payloads.len() as u64 == addr.0 => run.payloads.push(payload),
            _ => writes.push(Write::new(Block(addr.0), vec![payload])),
        }
    }
    writes
}

#[cfg(test)]
mod tests {
    use super::super::super::layout::journal::incompat;
    use super::super::super::layout::superblock::tests::small;
    use super::super::super::replay::replay;
    use super::*;
    use crate::port::{Image, block_on};
    use flashweir_core::RandomStream;
    use flashweir_core::random::mix;
    use std::collections::BTreeSet;

    /// A disk in memory that records its requests in order.
    #[derive(Debug)]
    struct Recorder {
        image: Image,
        requests: RefCell<Vec<Request>>,
    }

    impl BlockPort for Recorder {
        fn capacity_blocks(&self) -> u64 {
            self.image.capacity_blocks()
        }

        fn submit(&self, request: Request) -> Ticket {
            self.requests.borrow_mut().push(request.clone());
            self.image.submit(request)
        }

        fn share_blocks_max(&self) -> u32 {
            // Few, so that a checkpoint needs several commands.
            5
        }
    }

    const BLOCKS: u64 = 1024;
    /// The journal's blocks, in two parts.
    fn log_blocks() -> Vec<Addr> {
        (600..630).chain(700..734).map(Addr).collect()
    }

    /// A content that names itself; some begin with the journal's magic number.
    fn content(number: u64) -> Payload {
        let mut bytes: Vec<u8> = (0..512).flat_map(|word| mix(number ^ word << 40).to_le_bytes()).collect();
        if number.is_multiple_of(3) {
            super::super::super::layout::journal::unescape(&mut bytes);
        }
        Payload::Bytes(bytes.into())
    }

    fn superblock(features: u32) -> JournalSuperblock {
        let mut superblock = JournalSuperblock::new(4096, 64);
        (superblock.incompat, superblock.checksum_type) = (features, 4);
        superblock
    }

    /// Contents after a power cut and recovery: for each place the newest version in the log, or else that on the disk.
    fn recovered(disk: &BTreeMap<u64, Payload>) -> BTreeMap<u64, Payload> {
        let journal: Vec<_> =
            log_blocks().iter().map(|addr| bytes_of(disk.get(&addr.0).unwrap_or(&Payload::Zero))).collect();
        let superblock = JournalSuperblock::decode(&journal[0]).unwrap();
        let replayed = replay(&superblock, &journal, &small(4096, &[]).geometry()).unwrap();
        let newest = replayed.blocks.into_iter().map(|(addr, bytes)| (addr.0, Payload::Bytes(bytes)));
        disk.clone().into_iter().chain(newest).collect()
    }

    /// A state that a power cut after `requests` may leave: everything flushed, and any part of the rest. A SHARE takes effect wholly
    /// or not at all, and with it the contents that it bound when it was submitted.
    fn cut(requests: &[Request], random: &mut RandomStream) -> BTreeMap<u64, Payload> {
        let flushed = requests.iter().rposition(|request| *request == Request::Flush).unwrap_or(0);
        // What the disk shows while it has power, and what is left without.
        let (mut live, mut disk) = (BTreeMap::new(), BTreeMap::new());
        for (at, request) in requests.iter().enumerate() {
            match request {
                Request::Write(write) => {
                    for (block, payload) in (write.block.0..).zip(write.payloads.iter()) {
                        live.insert(block, payload.clone());
                        if at < flushed || write.fua || random.chance(0.5) {
                            disk.insert(block, payload.clone());
                        }
                    }
                }
                Request::Share(Share { remaps, .. }) => {
                    let content = |block: u64| live.get(&block).cloned().unwrap_or_default();
                    let bound: Vec<(u64, Payload)> = remaps
                        .iter()
                        .flat_map(|r| (0..u64::from(r.count)).map(|i| (r.dst.0 + i, content(r.src.0 + i))))
                        .collect();
                    live.extend(bound.iter().cloned());
                    if at < flushed || random.chance(0.5) {
                        disk.extend(bound);
                    }
                }
                _ => {}
            }
        }
        disk
    }

    struct Run {
        requests: Vec<Request>,
        /// For each number of commits, the contents of all places, and the number of requests until then.
        states: Vec<(BTreeMap<u64, u64>, usize)>,
    }

    /// Commits transactions; revoked blocks are then written as data, which count from the next commit on.
    fn run(seed: u64, features: u32, has_barriers: bool) -> Run {
        run_with(seed, features, Ext4Options { barrier: has_barriers, ..Ext4Options::default() }).0
    }

    fn run_with(seed: u64, features: u32, options: Ext4Options) -> (Run, CheckpointCounts) {
        let port = Rc::new(Recorder { image: Image::in_memory(BLOCKS), requests: RefCell::default() });
        let first = superblock(features).encode();
        let mut block = vec![0; BLOCK_BYTES];
        block[..first.len()].copy_from_slice(&first);
        let write = Write::new(Block(600), vec![Payload::Bytes(block.into())]);
        block_on(port.write(write).completed()).unwrap();
        block_on(port.flush().completed()).unwrap();
        let journal = Journal::open(Rc::clone(&port) as _, superblock(features), log_blocks(), &options);
        let journal = block_on(journal).unwrap();
        let mut random = RandomStream::new(seed, "transactions");
        let (mut held, mut number) = (BTreeMap::new(), 0_u64);
        let mut states = vec![(held.clone(), port.requests.borrow().len())];
        for _ in 0..60 {
            let changed: BTreeSet<u64> =
                (0..random.below(journal.blocks_max() as u64)).map(|_| random.below(40)).collect();
            let revoked: BTreeSet<u64> = (0..random.below(4)).map(|_| random.below(40)).collect();
            let revoked: Vec<u64> = revoked.difference(&changed).copied().collect();
            let numbers: Vec<(u64, u64)> =
                changed.iter().zip(number + 1..).map(|(&addr, number)| (addr, number)).collect();
            number += numbers.len() as u64;
            held.extend(numbers.iter().copied());
            held.retain(|addr, _| !revoked.contains(addr));
            let closed = Closed {
                blocks: numbers.iter().map(|&(addr, number)| (Addr(addr), content(number))).collect(),
                revoked: revoked.iter().copied().map(Addr).collect(),
                now: Timestamp { seconds: number as i64, nanos: 0 },
            };
            block_on(journal.commit(closed, || ())).unwrap();
            states.push((held.clone(), port.requests.borrow().len()));
            for addr in revoked {
                number += 1;
                let write = Write::new(Block(addr), vec![content(number)]);
                block_on(port.write(write).completed()).unwrap();
                held.insert(addr, number);
            }
            if random.chance(0.03) {
                block_on(journal.empty()).unwrap();
            }
        }
        block_on(journal.empty()).unwrap();
        let requests = port.requests.borrow().clone();
        (Run { requests, states }, journal.counts())
    }

    /// The number of transactions whose state a disk shows, if it is one of the states from `least` on.
    fn shows(disk: &BTreeMap<u64, Payload>, run: &Run, least: usize) -> Option<usize> {
        let disk = recovered(disk);
        let is = |state: &BTreeMap<u64, u64>| {
            state.iter().all(|(addr, number)| {
                disk.get(addr).is_some_and(|found| bytes_of(found) == bytes_of(&content(*number)))
            })
        };
        (least..run.states.len().min(least + 2)).find(|&at| is(&run.states[at].0))
    }

    const V3: u32 = incompat::REVOKE | incompat::WIDE | incompat::CSUM_V3;

    /// The first state after a cut that is none of those that it may show.
    fn wrong_after_cuts(run: &Run, seed: u64) -> Option<String> {
        let mut random = RandomStream::new(seed, "cuts");
        (run.states[0].1..=run.requests.len()).flat_map(|after| [after; 3]).find_map(|after| {
            let committed = run.states.iter().rposition(|(_, requests)| *requests <= after).unwrap();
            let disk = cut(&run.requests[..after], &mut random);
            shows(&disk, run, committed).is_none().then(|| format!("seed {seed}, after {after} requests"))
        })
    }

    #[test]
    fn what_was_committed_survives_any_cut_and_what_was_revoked_does_not_come_back() {
        for (seed, features) in [(1, incompat::REVOKE), (2, V3), (3, incompat::REVOKE | incompat::CSUM_V2)] {
            for checkpoint_by in [CheckpointBy::Write, CheckpointBy::Share] {
                let options = Ext4Options { checkpoint_by, ..Ext4Options::default() };
                assert_eq!(wrong_after_cuts(&run_with(seed, features, options).0, seed), None);
            }
        }
    }

    #[test]
    fn planted_mistakes_of_checkpoints_by_share_are_found() {
        for planted in [
            PlantedBug::PairAfterRevoke,
            PlantedBug::OlderPair,
            PlantedBug::TailBeforeShare,
            PlantedBug::SharedEscaped,
        ] {
            let options = Ext4Options {
                checkpoint_by: CheckpointBy::Share,
                planted: Some(planted),
                ..Ext4Options::default()
            };
            let found =
                (1..20).find_map(|seed| wrong_after_cuts(&run_with(seed, V3, options.clone()).0, seed));
            assert!(found.is_some(), "{planted:?}");
        }
    }

    /// What a checkpoint by SHARE sends is what one by writing sends, with a SHARE of the same blocks for each write (share §9.2).
    #[test]
    fn a_checkpoint_by_share_sends_the_same_without_writes_to_places() {
        for seed in 1..5 {
            let [(written, by_write), (shared, by_share)] =
                [CheckpointBy::Write, CheckpointBy::Share].map(|checkpoint_by| {
                    run_with(seed, V3, Ext4Options { checkpoint_by, ..Ext4Options::default() })
                });
            let is_home = |request: &Request, log: &[Addr]| match request {
                Request::Write(write) => !log.contains(&Addr(write.block.0)),
                _ => matches!(request, Request::Share(_)),
            };
            let log = log_blocks();
            // In the order of the requests: each request of the log and each flush, and the sorted blocks that come to their
            // places in between.
            let steps = |run: &Run| {
                let mut steps: Vec<(Option<Request>, BTreeSet<u64>)> = vec![(None, BTreeSet::new())];
                for request in &run.requests[run.states[0].1..] {
                    let homes = &mut steps.last_mut().unwrap().1;
                    match request {
                        Request::Share(Share { remaps, .. }) => {
                            homes.extend(remaps.iter().flat_map(|r| (r.dst.0..).take(r.count as usize)));
                        }
                        Request::Write(write) if is_home(request, &log) => {
                            homes.extend((write.block.0..).take(write.payloads.len()));
                        }
                        other => steps.push((Some(other.clone()), BTreeSet::new())),
                    }
                }
                steps
            };
            assert_eq!(steps(&written), steps(&shared), "seed {seed}");
            assert_eq!(by_write.home_writes, by_share.shared_blocks + by_share.escaped_blocks);
            assert_eq!(by_share.home_writes, by_share.escaped_blocks);
            assert_eq!(by_write.checkpoints, by_share.checkpoints);
            assert!(by_share.shared_blocks > 100 && by_share.escaped_blocks > 10, "{by_share:?}");
        }
    }

    #[test]
    fn without_barriers_a_cut_breaks_what_was_committed() {
        let run = run(4, incompat::REVOKE | incompat::CSUM_V3, false);
        assert!(run.requests[2..].iter().all(|request| *request != Request::Flush));
        let mut random = RandomStream::new(4, "cuts");
        let last = run.requests.len();
        let disk = cut(&run.requests[..last], &mut random);
        let journal = disk.get(&600).map(bytes_of);
        let is_broken = journal.is_none_or(|block| JournalSuperblock::decode(&block).is_err())
            || shows(&disk, &run, run.states.len() - 1).is_none();
        assert!(is_broken);
    }

    /// The transaction that has the blocks, and the flush of its commit, come later.
    #[test]
    fn what_is_written_ahead_is_in_order_and_flushed() {
        let port = Rc::new(Recorder { image: Image::in_memory(BLOCKS), requests: RefCell::default() });
        let options = Ext4Options::default();
        let journal =
            block_on(Journal::open(Rc::clone(&port) as _, superblock(0), log_blocks(), &options)).unwrap();
        let order = Some((STREAM, Order::Within));
        let blocks = [7, 8, 20].map(|at| (Addr(at), content(at))).to_vec();
        block_on(journal.write_ahead(blocks, order)).unwrap();
        let requests = port.requests.borrow();
        let [Request::Write(first), Request::Write(second), Request::Flush] = &requests[..] else {
            panic!("{requests:?}")
        };
        assert_eq!(
            (first.block, first.order, second.block, second.order),
            (Block(7), order, Block(20), order)
        );
    }

    #[test]
    fn an_emptied_journal_has_nothing_to_replay_and_all_is_in_its_place() {
        let run = run(5, incompat::REVOKE | incompat::CSUM_V3, true);
        let disk = cut(&run.requests, &mut RandomStream::new(5, "cuts"));
        let superblock = JournalSuperblock::decode(&bytes_of(&disk[&600])).unwrap();
        assert_eq!(superblock.start, 0);
        assert_eq!(superblock.sequence, 61);
        for (addr, number) in &run.states.last().unwrap().0 {
            assert_eq!(bytes_of(&disk[addr]), bytes_of(&content(*number)), "block {addr}");
        }
    }
}
