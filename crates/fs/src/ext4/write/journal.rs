//! Writing the journal (jbd2): transactions go to the log, and from there to their places.
//!
//! The order on the disk for a transaction: its blocks; a flush, which also covers the data written before; its commit block, which
//! is written durably. From then on the transaction counts, whatever is at the places of its blocks.
//!
//! Invariants:
//! 1. A place is written only from a committed transaction, with the newest committed content of the block.
//! 2. A part of the log is written again only when what it held is durable at its places and the journal's superblock, also
//!    durable, begins behind it.
//! 3. A block that a transaction revokes is not written to its place any more from that commit on: it may be one of a file.
//!
//! In dual mode ([`Journal::dispatch`]) order takes the place of the first flush, and the second one comes when a task waits for
//! durability: the blocks of a transaction are one epoch with the data written before, its commit block is the next. Several transactions
//! may have been dispatched that are not durable; what each holds was copied when it was closed, so a block may be in any number of them.
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
use super::{Ext4Options, PlantedBug};
use crate::order::{STREAM, answer, answers};
use crate::port::{BLOCK_BYTES, Block, BlockPort, Ticket, Write, bytes_of};
use crate::vfs::{Errno, Timestamp};
use flashweir_core::{Order, Payload};
use std::cell::RefCell;
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

#[derive(Debug)]
struct Log {
    superblock: JournalSuperblock,
    format: JournalFormat,
    /// Sequence number of the next transaction; the next field is where it begins.
    sequence: u32,
    head: u32,
    /// Committed transactions, the oldest first.
    live: VecDeque<Live>,
    /// The newest committed contents that are not at their places, with the sequence number of their transaction.
    pending: BTreeMap<Addr, (u32, Payload)>,
    /// Blocks that are being written to their places.
    leaving: BTreeMap<Addr, Payload>,
}

/// See the module.
#[derive(Debug)]
pub(super) struct Journal {
    port: Rc<dyn BlockPort>,
    /// Addresses of its blocks on the disk.
    blocks: Vec<Addr>,
    has_barriers: bool,
    planted: Option<PlantedBug>,
    /// See [`Ext4Options::checkpoint_blocks`].
    checkpoint_blocks: u32,
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
        self.capacity() - self.live.iter().map(|live| live.blocks).sum::<u32>()
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

    /// Encodes the blocks of a transaction: all but the commit block, and the commit block.
    fn encode(&self, closed: &Closed) -> (Vec<Payload>, Payload) {
        let (format, sequence) = (self.format, self.sequence);
        let has_checksum = format.checksums == Checksums::V1;
        let mut checksum = START;
        let mut add = |block: &[u8]| {
            if has_checksum {
                checksum = transaction_checksum(checksum, block);
            }
        };
        let mut body: Vec<Payload> = Vec::new();
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
        (body, Payload::Bytes(format.commit_block(&commit).into()))
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
            pending: BTreeMap::new(),
            leaving: BTreeMap::new(),
        };
        let planted = options.planted;
        let has_barriers = options.barrier && planted != Some(PlantedBug::NoBarriers);
        let checkpoint_blocks = options.checkpoint_blocks;
        Ok(Self { port, blocks, has_barriers, planted, checkpoint_blocks, log: RefCell::new(log) })
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

    /// The newest committed content of a block, unless it is at its place already.
    pub(super) fn newest(&self, addr: Addr) -> Option<Payload> {
        let log = self.log.borrow();
        let pending = log.pending.get(&addr).map(|(_, payload)| payload);
        pending.or_else(|| log.leaving.get(&addr)).cloned()
    }

    /// Writes a transaction to the log; then it is durable, or has been answered if there are no barriers. `flushes` is called
    /// before the flush that makes durable what was answered until then. There must be one call at a time. Errors: of the port; the
    /// transaction does not count then.
    pub(super) async fn commit(&self, closed: Closed, flushes: impl FnOnce()) -> Result<()> {
        let (body, commit) = self.log.borrow().encode(&closed);
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
            ..Write::new(Block(self.blocks[commit_at as usize].0), vec![commit])
        };
        answer(self.port.write(write)).await?;
        self.note(closed, start, blocks);
        Ok(())
    }

    /// Dispatches a transaction: its blocks, in one epoch of [`STREAM`] with what was written in order before, then its commit
    /// block as the next epoch. Returns the requests; when the last one is answered, a flush makes all of it durable. There must be
    /// one call at a time; if [`Self::is_short_of`] it, all earlier transactions must be durable. Errors: of the port, if the log
    /// had to be emptied first.
    pub(super) async fn dispatch(&self, closed: Closed) -> Result<Vec<Ticket>> {
        let (body, commit) = self.log.borrow().encode(&closed);
        let blocks = body.len() as u32 + 1;
        let (start, commit_at, is_first) = self.begin(blocks).await?;
        let mut writes: Vec<Write> = is_first.then(|| self.superblock_write()).into_iter().collect();
        writes.extend(self.write_log(start, body));
        writes.push(Write::new(Block(self.blocks[commit_at as usize].0), vec![commit]));
        let (count, is_loose) = (writes.len(), self.planted == Some(PlantedBug::NoFlushBeforeCommit));
        let order = |at: usize| match at + 1 == count || at + 2 == count && !is_loose {
            true => Order::Barrier,
            false => Order::Within,
        };
        let ordered = |(at, write)| Write { order: Some((STREAM, order(at))), ..write };
        let tickets: Vec<Ticket> =
            writes.into_iter().enumerate().map(ordered).map(|write| self.port.write(write)).collect();
        self.note(closed, start, blocks);
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

    /// Notes that a transaction is in the log.
    fn note(&self, closed: Closed, start: u32, blocks: u32) {
        let mut log = self.log.borrow_mut();
        let sequence = log.sequence;
        for addr in &closed.revoked {
            log.pending.remove(addr);
        }
        let addrs = closed.blocks.iter().map(|(addr, _)| *addr).collect();
        log.pending.extend(closed.blocks.into_iter().map(|(addr, payload)| (addr, (sequence, payload))));
        log.live.push_back(Live { sequence, start, blocks, addrs });
        log.head = log.behind(start, blocks);
        log.sequence = sequence.wrapping_add(1);
    }

    /// Whether blocks of the log have to be written to their places before a transaction.
    pub(super) fn is_short_of(&self, closed: &Closed) -> bool {
        self.has_to_make_room(self.log.borrow().encode(closed).0.len() as u32 + 1)
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
                for addr in live.addrs {
                    if let Some((_, payload)) = log.pending.remove(&addr) {
                        home.insert(addr, payload);
                    }
                }
            }
            log.set_tail();
            log.leaving.clone_from(&home);
        }
        let writes = runs(home).into_iter();
        let written = answers(writes.map(|write| self.port.write(write))).await;
        self.log.borrow_mut().leaving.clear();
        written?;
        self.flush().await?;
        let write = Write { fua: self.has_barriers, ..self.superblock_write() };
        answer(self.port.write(write)).await
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
        let addr = |index: u32| self.blocks[log.behind(start, index) as usize];
        runs((0..).map(addr).zip(body))
    }

    fn superblock_write(&self) -> Write {
        let mut block = vec![0; BLOCK_BYTES];
        let raw = self.log.borrow().superblock.encode();
        block[..raw.len()].copy_from_slice(&raw);
        Write::new(Block(self.blocks[0].0), vec![Payload::Bytes(block.into())])
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
    use crate::port::{Image, Request, block_on};
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

    /// A state that a power cut after `requests` may leave: everything flushed, and any part of the rest.
    fn cut(requests: &[Request], random: &mut RandomStream) -> BTreeMap<u64, Payload> {
        let flushed = requests.iter().rposition(|request| *request == Request::Flush).unwrap_or(0);
        let mut disk = BTreeMap::new();
        for (at, request) in requests.iter().enumerate() {
            let Request::Write(write) = request else { continue };
            for (index, payload) in write.payloads.iter().enumerate() {
                if at < flushed || write.fua || random.chance(0.5) {
                    disk.insert(write.block.0 + index as u64, payload.clone());
                }
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
        let port = Rc::new(Recorder { image: Image::in_memory(BLOCKS), requests: RefCell::default() });
        let first = superblock(features).encode();
        let mut block = vec![0; BLOCK_BYTES];
        block[..first.len()].copy_from_slice(&first);
        let write = Write::new(Block(600), vec![Payload::Bytes(block.into())]);
        block_on(port.write(write).completed()).unwrap();
        block_on(port.flush().completed()).unwrap();
        let options = Ext4Options { barrier: has_barriers, ..Ext4Options::default() };
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
        Run { requests, states }
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

    #[test]
    fn what_was_committed_survives_any_cut_and_what_was_revoked_does_not_come_back() {
        for (seed, features) in [
            (1, incompat::REVOKE),
            (2, incompat::REVOKE | incompat::WIDE | incompat::CSUM_V3),
            (3, incompat::REVOKE | incompat::CSUM_V2),
        ] {
            let run = run(seed, features, true);
            let mut random = RandomStream::new(seed, "cuts");
            for after in run.states[0].1..=run.requests.len() {
                let committed = run.states.iter().rposition(|(_, requests)| *requests <= after).unwrap();
                for _ in 0..3 {
                    let disk = cut(&run.requests[..after], &mut random);
                    assert!(shows(&disk, &run, committed).is_some(), "seed {seed}, after {after} requests");
                }
            }
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
