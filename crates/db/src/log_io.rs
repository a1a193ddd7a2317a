//! Writing and syncing the redo log, and checkpoint records.
//!
//! Place in the data flow: commits and page writes wait here until the log is durable up to their position.
//!
//! Invariant: one task at a time writes and syncs the log; it takes everything that was appended by then. Tasks that
//! arrive meanwhile wait, and the first of them takes everything appended in the meantime: group commit.

use crate::config::{CommitMode, Config, LOG_HEAD_BYTES};
use crate::db::Shared;
use crate::error::{DbError, Result};
use crate::log::UNIT;
use crate::page::Lsn;
use crate::redo::Reader;
use flashweir_core::Duration;
use flashweir_fs::vfs::{Fs, Sink, Source};
use std::rc::Rc;

/// Maximum delay of a commit's sync in the modes that do not wait for it.
const LAZY_SYNC: Duration = Duration::from_secs(1);

const MAGIC: u32 = u32::from_le_bytes(*b"FWDB");
const VERSION: u32 = 1;

/// The record at the head of a log file: the position where recovery begins, and the values that the database was made
/// with.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct CheckpointRecord {
    pub(crate) lsn: Lsn,
    /// Sequence number; of the two records, the one with the higher number is valid.
    pub(crate) sequence: u64,
    pub(crate) incarnation: u32,
    /// No block of the log after `lsn` has a lower incarnation.
    pub(crate) least: u32,
    pub(crate) made_with: MadeWith,
}

/// Values that cannot change after a database was made.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct MadeWith {
    page_bytes: u32,
    log_files: u32,
    log_file_bytes: u64,
    transactions_max: u32,
    batch_pages: u32,
}

impl MadeWith {
    pub(crate) fn of(config: &Config) -> Self {
        Self {
            page_bytes: config.page_bytes,
            log_files: config.log_files,
            log_file_bytes: config.log_file_bytes,
            transactions_max: config.transactions_max,
            batch_pages: config.batch_pages,
        }
    }

    /// Checks that the configuration is the one of this database.
    pub(crate) fn check(&self, config: &Config) -> Result<()> {
        let ours = Self::of(config);
        let same = |key, ours: u64, theirs: u64| {
            let expected = || format!("{theirs}, with which the database was made");
            if ours == theirs {
                Ok(())
            } else {
                Err(DbError::Config { key, value: ours, expected: expected() })
            }
        };
        same("page_bytes", ours.page_bytes.into(), self.page_bytes.into())?;
        same("log_files", ours.log_files.into(), self.log_files.into())?;
        same("log_file_bytes", ours.log_file_bytes, self.log_file_bytes)?;
        same("transactions_max", ours.transactions_max.into(), self.transactions_max.into())?;
        same("batch_pages", ours.batch_pages.into(), self.batch_pages.into())
    }
}

impl CheckpointRecord {
    pub(crate) fn encode(&self) -> Vec<u8> {
        let mut out = Vec::with_capacity(UNIT as usize);
        let made = &self.made_with;
        for word in [MAGIC, VERSION, self.incarnation, self.least, made.page_bytes, made.log_files] {
            out.extend_from_slice(&word.to_le_bytes());
        }
        for word in [made.transactions_max, made.batch_pages] {
            out.extend_from_slice(&word.to_le_bytes());
        }
        for long in [made.log_file_bytes, self.lsn, self.sequence] {
            out.extend_from_slice(&long.to_le_bytes());
        }
        let sum = crc32c::crc32c(&out);
        out.extend_from_slice(&sum.to_le_bytes());
        out.resize(UNIT as usize, 0);
        out
    }

    pub(crate) fn decode(bytes: &[u8]) -> Option<Self> {
        let mut reader = Reader(bytes);
        let long = |reader: &mut Reader<'_>| {
            reader.take(8).map(|bytes| u64::from_le_bytes(std::array::from_fn(|i| bytes[i])))
        };
        if reader.u32()? != MAGIC || reader.u32()? != VERSION {
            return None;
        }
        let (incarnation, least) = (reader.u32()?, reader.u32()?);
        let (page_bytes, log_files) = (reader.u32()?, reader.u32()?);
        let (transactions_max, batch_pages) = (reader.u32()?, reader.u32()?);
        let (log_file_bytes, lsn, sequence) = (long(&mut reader)?, long(&mut reader)?, long(&mut reader)?);
        let used = bytes.len() - reader.0.len();
        let made_with = MadeWith { page_bytes, log_files, log_file_bytes, transactions_max, batch_pages };
        (reader.u32()? == crc32c::crc32c(&bytes[..used])).then_some(Self {
            lsn,
            sequence,
            incarnation,
            least,
            made_with,
        })
    }
}

/// Returns the log file and the offset in it of position `lsn`, and the number of bytes of the ring that follow there.
pub(crate) fn place_of(config: &Config, lsn: Lsn) -> (usize, u64, u64) {
    let body = config.log_file_bytes - LOG_HEAD_BYTES;
    let at = lsn % config.ring_bytes();
    ((at / body) as usize, LOG_HEAD_BYTES + at % body, body - at % body)
}

impl<F: Fs> Shared<F> {
    /// Waits until the log is written up to `upto`, and with `sync` durable.
    pub(crate) async fn write_log(&self, upto: Lsn, sync: bool) -> Result<()> {
        loop {
            self.check_alive()?;
            {
                let log = &self.core.borrow().log;
                if upto <= if sync { log.synced } else { log.written } {
                    return Ok(());
                }
            }
            if self.log_busy.replace(true) {
                self.log_idle.wait().await;
                continue;
            }
            let result = self.write_log_alone(sync).await;
            self.log_busy.set(false);
            if let Err(error) = result {
                self.fail(error);
            }
            self.log_idle.notify();
        }
    }

    async fn write_log_alone(&self, sync: bool) -> Result<()> {
        let chunk = self.core.borrow().log.unwritten();
        if let Some(chunk) = chunk {
            let (mut at, mut bytes) = (chunk.base, &chunk.bytes[..]);
            while !bytes.is_empty() {
                let (file, offset, room) = place_of(&self.config, at);
                let (now, rest) = bytes.split_at(bytes.len().min(room as usize));
                self.logs[file].write(offset, Source::bytes(now)).await?;
                self.logs_unsynced.borrow_mut().insert(file);
                (at, bytes) = (at + now.len() as u64, rest);
            }
            let mut core = self.core.borrow_mut();
            core.log.note_written(chunk.upto);
            core.metrics.log_writes += 1;
            core.metrics.log_written_bytes += chunk.bytes.len() as u64;
        }
        if !sync {
            return Ok(());
        }
        let written = self.core.borrow().log.written;
        let files = self.logs_unsynced.take();
        for file in files {
            self.logs[file].sync(self.config.log_sync()).await?;
        }
        let mut core = self.core.borrow_mut();
        core.log.synced = core.log.synced.max(written);
        core.metrics.log_syncs += 1;
        Ok(())
    }

    /// Makes a commit whose group ends at `upto` as durable as the commit mode requires.
    pub(crate) async fn commit_log(self: &Rc<Self>, upto: Lsn) -> Result<()> {
        match self.config.commit {
            CommitMode::Sync => return self.write_log(upto, true).await,
            CommitMode::Write => self.write_log(upto, false).await?,
            CommitMode::Lazy => {}
        }
        if !self.sync_is_due.replace(true) {
            let shared = Rc::clone(self);
            self.handle.spawn(async move {
                shared.handle.sleep_until(shared.handle.now() + LAZY_SYNC).await;
                shared.sync_is_due.set(false);
                let end = shared.core.borrow().log.lsn();
                // A failure stops the engine; the next operation returns it.
                let _ = shared.write_log(end, true).await;
            });
        }
        Ok(())
    }

    /// Writes a checkpoint record, which is durable when this returns.
    pub(crate) async fn write_checkpoint_record(&self, lsn: Lsn) -> Result<()> {
        let sequence = self.checkpoints.get() + 1;
        let (incarnation, least) = {
            let log = &self.core.borrow().log;
            (log.incarnation, log.least_incarnation(lsn))
        };
        let made_with = MadeWith::of(&self.config);
        let record = CheckpointRecord { lsn, sequence, incarnation, least, made_with }.encode();
        self.logs[0].write(sequence % 2 * UNIT, Source::bytes(&record)).await?;
        self.logs[0].sync(self.config.log_sync()).await?;
        self.checkpoints.set(sequence);
        Ok(())
    }

    /// Returns the newest checkpoint record.
    pub(crate) async fn read_checkpoint_record(&self) -> Result<CheckpointRecord> {
        let mut newest: Option<CheckpointRecord> = None;
        for place in 0..2 {
            let mut bytes = vec![0; UNIT as usize];
            self.logs[0].read(place * UNIT, Sink::bytes(&mut bytes)).await?;
            let record = CheckpointRecord::decode(&bytes);
            if record.as_ref().map(|record| record.sequence) > newest.as_ref().map(|record| record.sequence) {
                newest = record;
            }
        }
        newest
            .ok_or_else(|| DbError::Damaged("the log has no checkpoint: it is not that of a database".into()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_checkpoint_record_is_read_as_it_was_written() {
        let config = Config::default();
        let made_with = MadeWith::of(&config);
        let record = CheckpointRecord { lsn: 1 << 40 | 12, sequence: 7, incarnation: 3, least: 2, made_with };
        let mut bytes = record.encode();
        assert_eq!(CheckpointRecord::decode(&bytes), Some(record));
        bytes[30] ^= 1;
        assert_eq!(CheckpointRecord::decode(&bytes), None);
        let other = Config { log_files: 3, ..config };
        let error = made_with.check(&other).unwrap_err().to_string();
        assert_eq!(error, "log_files is 3: expected 2, with which the database was made");
    }

    #[test]
    fn the_ring_goes_over_all_files() {
        let config = Config { log_files: 2, log_file_bytes: LOG_HEAD_BYTES + 8192, ..Config::default() };
        assert_eq!(place_of(&config, 0), (0, LOG_HEAD_BYTES, 8192));
        assert_eq!(place_of(&config, 8191), (0, LOG_HEAD_BYTES + 8191, 1));
        assert_eq!(place_of(&config, 8192 + 4096), (1, LOG_HEAD_BYTES + 4096, 4096));
        assert_eq!(place_of(&config, 2 * 8192), (0, LOG_HEAD_BYTES, 8192));
    }
}
