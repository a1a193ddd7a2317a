//! Writes the blocks of a log to their places, so that the volume no longer needs the log.
//!
//! Steps, each durable before the next: the blocks of the log, the journal's superblock without a log, the volume's
//! superblock, which does not ask for a recovery any more. A cut between them leaves a volume that is recovered again.
//!
//! Deliberately absent: orphans, which a mount for writing deletes.

use super::error::{Error, Result};
use super::layout::journal;
use super::layout::superblock::{self, Feature, Superblock};
use super::read::Run;
use super::volume::{Journal, Volume};
use crate::format::put;
use crate::port::{BLOCK_BYTES, Block, BlockPort, Write, bytes_of};
use flashweir_core::Payload;
use std::collections::BTreeMap;
use std::rc::Rc;

/// Number of writes that are submitted before their answers are awaited.
const WRITES: usize = 64;

/// Result of a recovery.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Recovered {
    /// Number of transactions in the log.
    pub transactions: u32,
    /// Number of blocks of the volume that were written from it.
    pub blocks: u64,
    /// The sequence number of the next transaction; 0 without a journal.
    pub next_sequence: u32,
}

/// New bytes of blocks; the other bytes of these blocks are read from the port.
struct Changes<'a> {
    port: &'a dyn BlockPort,
    blocks: BTreeMap<Block, Vec<u8>>,
}

impl<'a> Changes<'a> {
    fn new(port: &'a dyn BlockPort) -> Self {
        Self { port, blocks: BTreeMap::new() }
    }

    /// Changes the bytes from an offset in a block of the port on.
    async fn put(&mut self, block: Block, at: usize, bytes: &[u8]) -> Result<()> {
        if bytes.len() == BLOCK_BYTES {
            self.blocks.insert(block, bytes.to_vec());
            return Ok(());
        }
        if !self.blocks.contains_key(&block) {
            let answer = self.port.read(block, 1).completed().await?;
            self.blocks.insert(block, bytes_of(&answer[0]).to_vec());
        }
        let content = self.blocks.get_mut(&block).expect("it is there now");
        put(content, at, bytes);
        Ok(())
    }

    /// Writes the changed blocks and makes them durable.
    async fn write(self) -> Result<()> {
        let mut tickets = Vec::new();
        for (block, bytes) in self.blocks {
            tickets.push(self.port.write(Write::new(block, vec![Payload::Bytes(bytes.into())])));
            if tickets.len() == WRITES {
                for ticket in tickets.drain(..) {
                    ticket.completed().await?;
                }
            }
        }
        for ticket in tickets {
            ticket.completed().await?;
        }
        self.port.flush().completed().await?;
        Ok(())
    }

    async fn put_superblock(&mut self, superblock: &Superblock) -> Result<()> {
        self.put(Block(0), superblock::BYTES, &superblock.encode()).await
    }
}

/// Replays the log of a volume and writes what it holds. Errors: the volume cannot be mounted, or cannot be written.
pub async fn recover(port: Rc<dyn BlockPort>) -> Result<Recovered> {
    recover_trusting(port, false).await
}

/// Does the same, with a bug that tests have to find if `trusts_old_commits`.
pub(super) async fn recover_trusting(port: Rc<dyn BlockPort>, trusts_old_commits: bool) -> Result<Recovered> {
    let volume = Volume::mount_trusting(Rc::clone(&port), trusts_old_commits).await?;
    let mut superblock = volume.superblock().clone();
    let unwritable = superblock.features.unwritable();
    if !unwritable.is_empty() {
        return Err(Error::Refused(format!("the feature {} and is to be written", unwritable.join(", "))));
    }
    let Some(journal) = volume.journal() else { return Ok(Recovered::default()) };
    if journal.superblock.ro_compat != 0 {
        let features = journal.superblock.ro_compat;
        return Err(Error::Refused(format!(
            "the unknown features {features:#x} of the journal and is to be written"
        )));
    }
    let replayed = &journal.replayed;
    let recovered = Recovered {
        transactions: replayed.transactions,
        blocks: replayed.blocks.len() as u64,
        next_sequence: replayed.next_sequence,
    };
    if !volume.needs_recovery() {
        return Ok(recovered);
    }
    // The kernel keeps these counts up to date in the groups only.
    superblock.free_blocks = volume.groups().iter().map(|group| u64::from(group.free_blocks)).sum();
    superblock.free_inodes = volume.groups().iter().map(|group| group.free_inodes).sum();
    if journal.superblock.error != 0 {
        superblock.state |= superblock::state::ERRORS;
    }
    write_log(&*port, &volume, &mut superblock).await?;
    write_journal_superblock(&*port, &volume, journal).await?;
    superblock.features.set(Feature::RECOVER, false);
    let mut changes = Changes::new(&*port);
    changes.put_superblock(&superblock).await?;
    changes.write().await?;
    Ok(recovered)
}

/// Writes the blocks of the log, and a superblock that still asks for a recovery.
async fn write_log(port: &dyn BlockPort, volume: &Volume, superblock: &mut Superblock) -> Result<()> {
    let mut changes = Changes::new(port);
    for (addr, bytes) in volume.overlay() {
        let (block, at) = volume.geometry().port_place(*addr);
        changes.put(block, at, bytes).await?;
    }
    superblock.features.set(Feature::RECOVER, true);
    changes.put_superblock(superblock).await?;
    changes.write().await
}

async fn write_journal_superblock(port: &dyn BlockPort, volume: &Volume, journal: &Journal) -> Result<()> {
    let mut superblock = journal.superblock.clone();
    superblock.start = 0;
    superblock.sequence = journal.replayed.next_sequence;
    superblock.error = 0;
    let raw: [u8; journal::BYTES] = superblock.encode();
    let Run { addr: Some(addr), .. } = volume.run(&journal.inode, 0).await? else {
        unreachable!("the journal's superblock was read from there")
    };
    let (block, at) = volume.geometry().port_place(addr);
    let mut changes = Changes::new(port);
    changes.put(block, at, &raw).await?;
    changes.write().await
}
