//! Recovery of the journal: which blocks of the volume its log has in a newer version.
//!
//! The log is taken block by block in its order. What a transaction holds counts from its commit block on; a block that a
//! later transaction, or the same one, revoked does not count. So one pass does what three do that keep nothing in memory.
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

/// What a log holds.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Replayed {
    /// The newest contents of blocks of the volume.
    pub blocks: BTreeMap<Addr, Arc<[u8]>>,
    /// Transactions that count.
    pub transactions: u32,
    /// The sequence number that the next transaction has to have, so that none of the log counts again.
    pub next_sequence: u32,
    /// Blocks that were revoked, with the transaction.
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
    /// What the open transaction revokes.
    open_revoked: Vec<Addr>,
    /// A checksum of version 1 over the open transaction.
    checksum: u32,
    /// What is wrong in the open transaction, should it turn out to have been committed.
    wrong: Option<String>,
    last_commit_seconds: u64,
    /// Blocks that count, each with its transaction.
    blocks: BTreeMap<Addr, (u32, Arc<[u8]>)>,
    revoked: BTreeMap<Addr, u32>,
    transactions: u32,
}

impl Recovery {
    /// A recovery that begins at the start of the log. The journal's blocks are those of the volume.
    pub fn new(superblock: &JournalSuperblock, geometry: &Geometry) -> Self {
        Self {
            format: superblock.format(),
            geometry: *geometry,
            sequence: superblock.sequence,
            blocks_left: superblock.log_end().unwrap_or(0).saturating_sub(superblock.first),
            tags: Vec::new(),
            open: Vec::new(),
            open_revoked: Vec::new(),
            checksum: START,
            wrong: None,
            last_commit_seconds: 0,
            blocks: BTreeMap::new(),
            revoked: BTreeMap::new(),
            transactions: 0,
        }
    }

    /// Takes the next block of the log; false says that the log ends before it. Errors: a transaction was committed and
    /// is broken nevertheless.
    pub fn take(&mut self, block: &Arc<[u8]>) -> Result<bool> {
        if self.blocks_left == 0 {
            return Ok(false);
        }
        self.blocks_left -= 1;
        if let Some(tag) = self.tags.pop() {
            self.take_data(tag, block);
            return Ok(true);
        }
        let header = Header::decode(block).filter(|header| header.sequence == self.sequence);
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
        self.wrong.get_or_insert(what);
    }

    fn check_tail(&mut self, name: &str, block: &[u8]) {
        if !self.format.is_tail_right(block) {
            self.set_wrong(format!("the checksum of a {name} block is wrong"));
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

    /// Whether the commit block of version 1 fits the transaction. Those of type 0 have no checksum.
    fn is_transaction_right(&self, commit: &Commit) -> bool {
        self.format.checksums != Checksums::V1
            || commit.checksum == (1, 4, self.checksum)
            || commit.checksum == (0, 0, 0)
    }

    fn take_commit(&mut self, block: &[u8]) -> Result<bool> {
        let commit = self.format.commit(block);
        // What is older than the transaction before is of an earlier use of the journal.
        let is_stale = commit.seconds < self.last_commit_seconds;
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

    /// The transaction that would be next in the log.
    pub fn sequence(&self) -> u32 {
        self.sequence
    }

    /// What the log holds. The transaction that was not committed does not count.
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

/// What a log holds, whose blocks are the whole journal.
pub fn replay(
    superblock: &JournalSuperblock,
    journal: &[Arc<[u8]>],
    geometry: &Geometry,
) -> Result<Replayed> {
    let mut recovery = Recovery::new(superblock, geometry);
    if superblock.start == 0 {
        return Ok(recovery.finish());
    }
    let Some(end) = superblock.log_end().filter(|&end| end as usize <= journal.len()) else {
        return corrupt(format!("the journal has {} blocks of {}", journal.len(), superblock.blocks));
    };
    let mut at = superblock.start;
    while recovery.take(&journal[at as usize])? {
        at = if at + 1 == end { superblock.first } else { at + 1 };
    }
    if superblock.fast_commit_blocks() > 0 && (end as usize) < journal.len() {
        refuse_fast_commits(&journal[end as usize], recovery.sequence())?;
    }
    Ok(recovery.finish())
}
