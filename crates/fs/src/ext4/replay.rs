//! Recovery of the journal: the blocks of the volume of which its log has a newer version.
//!
//! The log is read block by block, in its order. The blocks of a transaction are valid from its commit block on, except those that the same
//! transaction or a later one revoked. So one pass does the work of the three passes of a replay that keeps nothing in memory.
//!
//! Invariant: at most as many blocks are taken as the log has.
//!
//! Deliberately absent: writing the result, and fast commits, which are refused.

use super::error::{Error, Result, corrupt};
use super::layout::checksum::START;
use super::layout::journal::{
    BlockKind, Checksums, Commit, Header, JournalFormat, JournalSuperblock, Tag, transaction_checksum,
    unescape,
};
use super::layout::{Addr, Geometry};
use crate::format::{u16_at, u32_at};
use std::collections::BTreeMap;
use std::sync::Arc;

/// The tag with which a fast commit begins.
const FAST_COMMIT_HEAD: u16 = 9;

/// Contents of a log.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Replayed {
    /// The newest contents of blocks of the volume.
    pub blocks: BTreeMap<Addr, Arc<[u8]>>,
    /// Number of transactions that count.
    pub transactions: u32,
    /// The sequence number of the next transaction, with which none of the log counts again.
    pub next_sequence: u32,
    /// Blocks that were revoked, with the sequence number of the transaction.
    pub revoked: BTreeMap<Addr, u32>,
}

/// Whether the sequence number `a` is later than `b`; they wrap around.
fn is_later(a: u32, b: u32) -> bool {
    a.wrapping_sub(b).cast_signed() > 0
}

/// A recovery that is under way.
#[derive(Debug)]
pub struct Recovery {
    format: JournalFormat,
    geometry: Geometry,
    sequence: u32,
    blocks_left: u32,
    /// Tags whose blocks follow, the last one first.
    tags: Vec<Tag>,
    /// Data of the open transaction.
    open: Vec<(Addr, Arc<[u8]>)>,
    /// Blocks that the open transaction revokes.
    open_revoked: Vec<Addr>,
    /// Checksum of version 1 over the open transaction.
    checksum: u32,
    /// The fault of the open transaction, reported if it turns out to have been committed.
    wrong: Option<String>,
    /// Whether the fault may come from an earlier use of the journal.
    may_be_stale: bool,
    last_commit_seconds: u64,
    /// Blocks that count, each with its transaction.
    blocks: BTreeMap<Addr, (u32, Arc<[u8]>)>,
    revoked: BTreeMap<Addr, u32>,
    transactions: u32,
    /// A bug that tests have to find: transactions behind the end of the log, left by an earlier use of the journal, count.
    pub(super) trusts_old_commits: bool,
}

impl Recovery {
    /// Returns a recovery that begins at the start of the log. The journal's blocks must have the size of the volume's.
    pub fn new(superblock: &JournalSuperblock, geometry: &Geometry) -> Self {
        Self {
            format: superblock.format(),
            geometry: *geometry,
            sequence: superblock.sequence,
            blocks_left: superblock.log_end().saturating_sub(superblock.first),
            tags: Vec::new(),
            open: Vec::new(),
            open_revoked: Vec::new(),
            checksum: START,
            wrong: None,
            may_be_stale: false,
            last_commit_seconds: 0,
            blocks: BTreeMap::new(),
            revoked: BTreeMap::new(),
            transactions: 0,
            trusts_old_commits: false,
        }
    }

    /// Takes the next block of the log; returns false if the log ends before it. Errors: a transaction was committed and is broken
    /// nevertheless.
    pub fn take(&mut self, block: &Arc<[u8]>) -> Result<bool> {
        if self.blocks_left == 0 {
            return Ok(false);
        }
        self.blocks_left -= 1;
        if let Some(tag) = self.tags.pop() {
            self.take_data(tag, block);
            return Ok(true);
        }
        let is_next = |header: &Header| header.sequence == self.sequence || self.trusts_old_commits;
        let header = Header::decode(block).filter(is_next);
        match header.map(|header| header.kind) {
            Some(BlockKind::Descriptor) => {
                self.check_tail("descriptor", block);
                self.tags = self.format.tags(block);
                self.tags.reverse();
                self.add_to_checksum(block);
                Ok(true)
            }
            Some(BlockKind::Revoke) => {
                self.check_tail("revoke", block);
                match self.format.revokes(block) {
                    Ok(addrs) => self.open_revoked.extend(addrs),
                    Err(error) => self.set_wrong(error.to_string()),
                }
                Ok(true)
            }
            Some(BlockKind::Commit) => self.take_commit(block),
            _ => Ok(false),
        }
    }

    fn set_wrong(&mut self, what: String) {
        if self.trusts_old_commits {
            return;
        }
        self.wrong.get_or_insert(what);
    }

    fn check_tail(&mut self, name: &str, block: &[u8]) {
        if !self.format.is_tail_right(block) {
            self.set_wrong(format!("the checksum of a {name} block is wrong"));
            self.may_be_stale = true;
        }
    }

    fn add_to_checksum(&mut self, block: &[u8]) {
        if self.format.checksums == Checksums::V1 {
            self.checksum = transaction_checksum(self.checksum, block);
        }
    }

    fn take_data(&mut self, tag: Tag, block: &Arc<[u8]>) {
        self.add_to_checksum(block);
        let computed = self.format.data_checksum(self.sequence, block);
        if tag.checksum != computed {
            let (addr, stored) = (tag.addr, tag.checksum);
            self.set_wrong(format!("the checksum of block {addr} is {stored:#x}, expected {computed:#x}"));
        }
        if tag.addr.0 >= self.geometry.blocks_count {
            self.set_wrong(format!("block {} is outside of the volume", tag.addr));
        }
        let mut block = Arc::clone(block);
        if tag.is_escaped {
            unescape(Arc::make_mut(&mut block));
        }
        self.open.push((tag.addr, block));
    }

    /// Whether the checksum in the commit block of version 1 fits the transaction. Commit blocks of type 0 have no checksum.
    fn is_transaction_right(&self, commit: &Commit) -> bool {
        self.format.checksums != Checksums::V1
            || commit.checksum == (1, 4, self.checksum)
            || commit.checksum == (0, 0, 0)
    }

    fn take_commit(&mut self, block: &[u8]) -> Result<bool> {
        let commit = self.format.commit(block);
        // A commit older than the one before it comes from an earlier use of the journal.
        let is_stale = self.may_be_stale && commit.seconds < self.last_commit_seconds;
        if !self.format.is_commit_right(block) || !self.is_transaction_right(&commit) {
            return Ok(false);
        }
        if let Some(wrong) = self.wrong.take() {
            if is_stale {
                return Ok(false);
            }
            return corrupt(format!("transaction {} of the journal: {wrong}", self.sequence));
        }
        for addr in std::mem::take(&mut self.open_revoked) {
            self.revoked.insert(addr, self.sequence);
        }
        for (addr, block) in std::mem::take(&mut self.open) {
            self.blocks.insert(addr, (self.sequence, block));
        }
        self.last_commit_seconds = commit.seconds;
        self.transactions += 1;
        self.sequence = self.sequence.wrapping_add(1);
        self.checksum = START;
        Ok(true)
    }

    /// Sequence number that the next transaction in the log would have.
    pub fn sequence(&self) -> u32 {
        self.sequence
    }

    /// Contents of the log, without the transaction that was not committed.
    pub fn finish(self) -> Replayed {
        let revoked = &self.revoked;
        let counts = |addr: &Addr, sequence: u32| revoked.get(addr).is_none_or(|&by| is_later(sequence, by));
        let blocks = self.blocks.into_iter().filter(|(addr, (sequence, _))| counts(addr, *sequence));
        Replayed {
            blocks: blocks.map(|(addr, (_, block))| (addr, block)).collect(),
            transactions: self.transactions,
            next_sequence: self.sequence.wrapping_add(1),
            revoked: self.revoked,
        }
    }
}

/// Errors: the area of fast commits begins with one that continues this transaction.
pub fn refuse_fast_commits(first_block: &[u8], sequence: u32) -> Result<()> {
    if u16_at(first_block, 0) == FAST_COMMIT_HEAD && u32_at(first_block, 8) == sequence {
        return Err(Error::Refused("fast commits, which are to be replayed".into()));
    }
    Ok(())
}

/// Replays the log of a journal whose blocks are given.
pub fn replay(
    superblock: &JournalSuperblock,
    journal: &[Arc<[u8]>],
    geometry: &Geometry,
) -> Result<Replayed> {
    let mut recovery = Recovery::new(superblock, geometry);
    if superblock.start == 0 {
        return Ok(recovery.finish());
    }
    let end = superblock.log_end();
    if superblock.blocks as usize > journal.len() || superblock.block_bytes != geometry.block_bytes {
        let (blocks, bytes) = (superblock.blocks, superblock.block_bytes);
        return corrupt(format!("the journal has {blocks} blocks of {bytes} bytes"));
    }
    let mut at = superblock.start;
    while recovery.take(&journal[at as usize])? {
        at = if at + 1 == end { superblock.first } else { at + 1 };
    }
    if let Some(start) = superblock.fast_commit_start() {
        refuse_fast_commits(&journal[start as usize], recovery.sequence())?;
    }
    Ok(recovery.finish())
}

#[cfg(test)]
mod tests {
    use super::super::layout::journal::{compat, incompat};
    use super::super::layout::superblock::tests::small;
    use super::*;

    /// A journal of 64 blocks of 4 KiB that is written block by block.
    struct Log {
        superblock: JournalSuperblock,
        blocks: Vec<Arc<[u8]>>,
        at: u32,
        sequence: u32,
        checksum: u32,
    }

    /// A change of a transaction.
    enum Change {
        Write(u64, u8),
        Revoke(u64),
    }
    use Change::{Revoke, Write};

    impl Log {
        fn new(features: (u32, u32), start: u32, sequence: u32) -> Self {
            let mut superblock = JournalSuperblock::new(4096, 64);
            (superblock.compat, superblock.incompat) = features;
            (superblock.start, superblock.sequence, superblock.checksum_type) = (start, sequence, 4);
            let blocks = vec![Arc::from(vec![0; 4096]); 64];
            Self { superblock, blocks, at: start, sequence, checksum: START }
        }

        fn push(&mut self, block: Vec<u8>) {
            self.checksum = transaction_checksum(self.checksum, &block);
            self.blocks[self.at as usize] = block.into();
            self.at = if self.at == 63 { 1 } else { self.at + 1 };
        }

        /// Content of a block; some begin with the journal's magic number.
        fn content(byte: u8) -> Vec<u8> {
            let mut data = vec![byte; 4096];
            if byte.is_multiple_of(2) {
                unescape(&mut data);
            }
            data
        }

        fn body(&mut self, changes: &[Change]) {
            let format = self.superblock.format();
            let mut data = Vec::new();
            let mut tags = Vec::new();
            let mut revoked = Vec::new();
            for change in changes {
                match change {
                    Write(addr, byte) => {
                        let mut block = Self::content(*byte);
                        let is_escaped = super::super::layout::journal::escape(&mut block);
                        let checksum = format.data_checksum(self.sequence, &block);
                        tags.push(Tag { addr: Addr(*addr), is_escaped, is_deleted: false, checksum });
                        data.push(block);
                    }
                    Revoke(addr) => revoked.push(Addr(*addr)),
                }
            }
            if !revoked.is_empty() {
                let checksum = self.checksum;
                self.push(format.revoke_block(self.sequence, &revoked));
                // Checksums of version 1 do not cover revoke blocks.
                self.checksum = checksum;
            }
            if !tags.is_empty() {
                self.push(format.descriptor(self.sequence, &tags, &[0; 16]));
            }
            for block in data {
                self.push(block);
            }
        }

        fn commit(&mut self, seconds: u64) {
            let checksum = match self.superblock.format().checksums {
                Checksums::V1 => (1, 4, self.checksum),
                _ => (0, 0, 0),
            };
            let commit = Commit { sequence: self.sequence, seconds, nanos: 0, checksum };
            let block = self.superblock.format().commit_block(&commit);
            self.push(block);
            self.sequence = self.sequence.wrapping_add(1);
            self.checksum = START;
        }

        fn transaction(&mut self, changes: &[Change]) {
            self.body(changes);
            self.commit(1000);
        }

        fn replay(&self) -> Result<Replayed> {
            replay(&self.superblock, &self.blocks, &small(100_000, &[]).geometry())
        }

        /// Blocks that count, with the byte with which they are filled.
        fn found(&self) -> Vec<(u64, u8)> {
            let blocks = self.replay().unwrap().blocks;
            let byte = |block: &[u8]| {
                assert_eq!(block, Self::content(block[5]));
                block[5]
            };
            blocks.iter().map(|(addr, block)| (addr.0, byte(block))).collect()
        }
    }

    /// All kinds of checksums, with block numbers of both widths.
    fn features() -> Vec<(u32, u32)> {
        let sums = [(0, 0), (compat::CHECKSUM, 0), (0, incompat::CSUM_V2), (0, incompat::CSUM_V3)];
        let wide = |(compat, sums): (u32, u32)| [(compat, sums), (compat, sums | incompat::WIDE)];
        sums.into_iter().flat_map(wide).collect()
    }

    #[test]
    fn what_was_committed_counts_and_what_was_revoked_does_not() {
        for features in features() {
            // Sequence numbers wrap around, and so does the log.
            let mut log = Log::new(features, 58, u32::MAX - 1);
            log.transaction(&[Write(10, 1), Write(11, 2), Write(12, 3)]);
            log.transaction(&[Write(10, 4), Write(13, 5)]);
            log.transaction(&[Revoke(11), Revoke(12), Write(14, 6)]);
            log.transaction(&[Write(12, 7)]);
            log.body(&[Write(10, 9), Revoke(14)]);
            assert_eq!(log.found(), [(10, 4), (12, 7), (13, 5), (14, 6)]);
            let replayed = log.replay().unwrap();
            assert_eq!((replayed.transactions, replayed.next_sequence), (4, 3));
            log.superblock.start = 0;
            assert!(log.replay().unwrap().blocks.is_empty());
        }
    }

    #[test]
    fn a_block_that_is_revoked_and_written_in_one_transaction_does_not_count() {
        let mut log = Log::new((0, 0), 1, 1);
        log.transaction(&[Write(10, 1)]);
        log.transaction(&[Revoke(10), Write(10, 3)]);
        assert_eq!(log.found(), []);
    }

    #[test]
    fn a_log_ends_before_what_is_stale_or_torn() {
        for features in features() {
            let mut log = Log::new(features, 1, 7);
            log.transaction(&[Write(10, 1)]);
            let at = log.at;
            log.transaction(&[Write(10, 3), Write(11, 3)]);
            assert_eq!(log.found(), [(10, 3), (11, 3)]);
            // The commit block is missing, torn, of another transaction, or another kind of block.
            for (place, byte) in [(0, 0), (0x30, 1), (11, 9), (7, 5)] {
                let commit = at as usize + 3;
                let old = Arc::clone(&log.blocks[commit]);
                Arc::make_mut(&mut log.blocks[commit])[place] = byte;
                let has_sum = features.1 & (incompat::CSUM_V2 | incompat::CSUM_V3) != 0;
                let counts = place == 0x30 && !has_sum;
                assert_eq!(
                    log.replay().unwrap().transactions,
                    if counts { 2 } else { 1 },
                    "{features:?} {place}"
                );
                log.blocks[commit] = old;
            }
            // The descriptor is missing.
            log.blocks[at as usize] = Arc::from(vec![0; 4096]);
            assert_eq!(log.replay().unwrap().transactions, 1);
        }
    }

    #[test]
    fn a_committed_transaction_that_is_broken_is_named() {
        for features in features() {
            let mut log = Log::new(features, 1, 7);
            log.transaction(&[Write(10, 1), Revoke(12)]);
            let is_v1 = features.0 == compat::CHECKSUM;
            let has_sums = features.1 & (incompat::CSUM_V2 | incompat::CSUM_V3) != 0;
            // A data block, the descriptor, the revoke block.
            for (block, name) in [(3, "block 10"), (2, "a descriptor block"), (1, "a revoke block")] {
                let old = Arc::clone(&log.blocks[block]);
                Arc::make_mut(&mut log.blocks[block])[4000] ^= 1;
                match log.replay() {
                    Err(error) => {
                        assert!(has_sums, "{error}");
                        let expected = format!("transaction 7 of the journal: the checksum of {name} ");
                        assert!(error.to_string().contains(&expected), "{error}");
                    }
                    Ok(replayed) => {
                        assert!(!has_sums);
                        // The transaction's own checksum covers data and descriptors.
                        assert_eq!(replayed.transactions, if is_v1 && block != 1 { 0 } else { 1 });
                    }
                }
                log.blocks[block] = old;
            }
            let mut log = Log::new(features, 1, 7);
            log.transaction(&[Write(100_000, 1)]);
            assert!(log.replay().unwrap_err().to_string().contains("block 100000 is outside of the volume"));
        }
    }

    #[test]
    fn broken_blocks_of_an_earlier_use_of_the_journal_end_the_log() {
        let mut log = Log::new((0, incompat::CSUM_V3), 1, 7);
        log.transaction(&[Write(10, 1)]);
        log.body(&[Write(11, 1)]);
        Arc::make_mut(&mut log.blocks[4])[4000] = 1;
        log.commit(999);
        assert_eq!(log.found(), [(10, 1)]);
    }

    #[test]
    fn a_log_without_an_end_is_read_once() {
        let mut log = Log::new((0, 0), 1, 7);
        let format = log.superblock.format();
        for _ in 0..63 {
            let block = format.revoke_block(7, &[]);
            log.push(block);
        }
        assert_eq!(log.replay().unwrap().transactions, 0);
    }

    #[test]
    fn fast_commits_are_refused() {
        let mut block = vec![0; 4096];
        (block[0], block[2], block[8]) = (9, 8, 5);
        let error = refuse_fast_commits(&block, 5).unwrap_err().to_string();
        assert!(error.contains("fast commits"), "{error}");
        refuse_fast_commits(&block, 6).unwrap();
    }
}
