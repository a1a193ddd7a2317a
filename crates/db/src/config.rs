//! Configuration of a database, the CPU cost of its work, and its counters.

use crate::error::{DbError, Result};
use flashweir_core::{Duration, metrics};
use flashweir_fs::vfs::SyncKind;
use serde::{Deserialize, Serialize};

/// Bytes of the two checkpoint records at the head of each log file.
pub(crate) const LOG_HEAD_BYTES: u64 = 8192;

/// The time at which a commit is durable.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum CommitMode {
    /// Before it returns: the log is written and synced. InnoDB's `innodb_flush_log_at_trx_commit = 1`.
    #[default]
    Sync,
    /// Within a second: the log is written before it returns, and synced once a second (`= 2`). A power cut loses at
    /// most the commits of that second.
    Write,
    /// Within a second: the log is written and synced once a second (`= 0`).
    Lazy,
}

/// What keeps a power cut from leaving half of a page, which the log cannot repair.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum DoubleWrite {
    /// Each batch of pages is written to the double-write area, which is synced, then to the data files, which are
    /// synced before the area is used again.
    #[default]
    On,
    /// As [`Self::On`], but the data files are synced by checkpoints only: MariaDB's `innodb_doublewrite = fast`. Safe only
    /// where a completed write is durable and bypasses the page cache: a volatile buffer may let the next batch overwrite
    /// copies of pages whose own writes it still holds.
    Fast,
    /// Nothing: pages are written to the data files, which are synced after each batch, as in InnoDB. Safe only where a
    /// page is written wholly or not at all, that is, with pages of 4 KiB on a device that writes 4 KiB atomically, or above
    /// a file system that journals data.
    Off,
    /// Data files are atomic files (share §7): a batch becomes durable as a whole, by one `syncv` of all of them.
    Atomic,
}

impl DoubleWrite {
    /// Whether pages are written to the double-write area first.
    pub(crate) fn has_area(self) -> bool {
        matches!(self, Self::On | Self::Fast)
    }
}

/// How the data files are read and written.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum DataIo {
    /// Bypasses the page cache (`O_DIRECT`), as the papers run InnoDB. The log stays buffered, as InnoDB's does.
    #[default]
    Direct,
    /// Through the page cache.
    Buffered,
}

/// CPU time of the engine's own work, in virtual time. The cost of VFS calls is added to it.
///
/// The time is spent on the CPUs of the mount, which all calls share (`HostCosts::cpus`).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct CpuCosts {
    /// One row found, inserted, changed or deleted by its key.
    pub row: Duration,
    /// One further row of a range scan.
    pub scan_row: Duration,
    /// Begin and commit of a transaction, and the client's round trip.
    pub transaction: Duration,
}

impl CpuCosts {
    /// No cost at all.
    pub const ZERO: Self =
        Self { row: Duration::ZERO, scan_row: Duration::ZERO, transaction: Duration::ZERO };
}

impl Default for CpuCosts {
    /// Estimates: 10 µs per row (statement, search, row and index work in memory), 0.5 µs per row of a scan, 50 µs per
    /// transaction. With these, a TPC-C-like New-Order of about 45 statements takes half a millisecond of CPU, the
    /// order of magnitude of MySQL running from memory.
    fn default() -> Self {
        Self {
            row: Duration::from_micros(10),
            scan_row: Duration::from_nanos(500),
            transaction: Duration::from_micros(50),
        }
    }
}

/// Configuration of a database. The values that determine its files (`page_bytes`, `log_files`, `log_file_bytes`,
/// `transactions_max`, `batch_pages`) must be the same when it is opened again.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Config {
    /// Size of a page in bytes: 4096, 8192 or 16384.
    pub page_bytes: u32,
    /// Memory for pages, in bytes.
    pub pool_bytes: u64,
    /// Number of files of the redo log.
    pub log_files: u32,
    /// Length of each log file in bytes, a multiple of 4096.
    pub log_file_bytes: u64,
    /// Durability of a commit when it returns.
    pub commit: CommitMode,
    /// Whether the log is synced by fsync, as InnoDB does by default, or by fdatasync, which omits the file's times.
    pub log_fsync: bool,
    /// What keeps pages from being torn.
    pub double_write: DoubleWrite,
    /// Whether each new tree gets a data file of its own, as InnoDB's tables do (`innodb_file_per_table`), which it shares
    /// with its indexes ([`Db::create_index`](crate::Db::create_index)). Otherwise all trees are in one file.
    pub file_per_table: bool,
    /// How the data files are read and written.
    pub data_io: DataIo,
    /// Number of pages written at once, and length of the double-write area in pages.
    pub batch_pages: u32,
    /// Percentage of dirty pages in the pool above which pages are written back.
    pub dirty_percent_max: u8,
    /// Pages that adaptive flushing writes in a second when the log is half full (see `page_io.rs`); 0 turns it off.
    /// InnoDB's `innodb_io_capacity`.
    pub io_capacity: u32,
    /// Maximum number of concurrent transactions.
    pub transactions_max: u32,
    /// CPU cost of the engine's work.
    pub costs: CpuCosts,
}

impl Default for Config {
    /// Pages of 16 KiB, a pool of 128 MiB, two log files of 48 MiB (InnoDB's defaults), 64 transactions.
    fn default() -> Self {
        Self {
            page_bytes: 16_384,
            pool_bytes: 128 << 20,
            log_files: 2,
            log_file_bytes: 48 << 20,
            commit: CommitMode::Sync,
            log_fsync: false,
            double_write: DoubleWrite::On,
            file_per_table: false,
            data_io: DataIo::Direct,
            batch_pages: 64,
            dirty_percent_max: 75,
            io_capacity: 0,
            transactions_max: 64,
            costs: CpuCosts::default(),
        }
    }
}

impl Config {
    /// Returns the kind of sync for the log.
    pub(crate) fn log_sync(&self) -> SyncKind {
        if self.log_fsync { SyncKind::All } else { SyncKind::Data }
    }

    /// Minimum number of pool pages per transaction, so that no operation waits for pages that others hold.
    const POOL_PAGES_PER_TRANSACTION: u64 = 16;

    /// Checks the bounds of all values.
    ///
    /// # Errors
    /// The first value that is out of its range.
    pub fn validate(&self) -> Result<()> {
        let expect = |ok: bool, key, value: u64, expected: String| {
            if ok { Ok(()) } else { Err(DbError::Config { key, value, expected }) }
        };
        let range = |key, value: u64, min: u64, max: u64| {
            expect((min..=max).contains(&value), key, value, format!("{min} to {max}"))
        };
        let page = u64::from(self.page_bytes);
        expect([4096, 8192, 16_384].contains(&page), "page_bytes", page, "4096, 8192 or 16384".into())?;
        range("transactions_max", self.transactions_max.into(), 1, 4096)?;
        let pool_min = 64.max(Self::POOL_PAGES_PER_TRANSACTION * u64::from(self.transactions_max));
        range("pool_bytes", self.pool_bytes, pool_min * page, 1 << 40)?;
        range("log_files", self.log_files.into(), 1, 64)?;
        let file = self.log_file_bytes;
        range("log_file_bytes", file, LOG_HEAD_BYTES + (512 << 10), 1 << 36)?;
        expect(file.is_multiple_of(4096), "log_file_bytes", file, "a multiple of 4096".into())?;
        range("batch_pages", self.batch_pages.into(), 1, 4096)?;
        range("dirty_percent_max", self.dirty_percent_max.into(), 1, 90)?;
        range("io_capacity", self.io_capacity.into(), 0, 1 << 20)
    }

    pub(crate) fn pool_pages(&self) -> usize {
        (self.pool_bytes / u64::from(self.page_bytes)) as usize
    }

    /// Returns the size of the ring that the log files form, in bytes.
    pub(crate) fn ring_bytes(&self) -> u64 {
        u64::from(self.log_files) * (self.log_file_bytes - LOG_HEAD_BYTES)
    }
}

metrics! {
    /// Counters of the engine since it was opened.
    pub struct DbMetrics {
        /// Transactions that were committed.
        commits,
        /// Transactions that were rolled back.
        rollbacks,
        /// Waits for a row that another transaction had locked.
        lock_waits,
        /// Waits that would have been for ever.
        deadlocks,
        /// Pages found in the pool.
        pool_hits,
        /// Pages read from the data files.
        page_reads,
        /// Pages written to the data files.
        page_writes,
        /// Pages of these that adaptive flushing wrote.
        adaptive_writes,
        /// Syncs of data files; a `syncv` of several is one.
        data_syncs,
        /// Pages written to the double-write area.
        double_writes,
        /// Pages written to the data files by loading.
        loaded_pages,
        /// Waits for a free page of the pool.
        pool_waits,
        /// Waits for room in the log.
        log_waits,
        /// Writes of the log.
        log_writes,
        /// Bytes written to the log.
        log_written_bytes,
        /// Syncs of the log. Commits that share one are the group commit.
        log_syncs,
        /// Checkpoints.
        checkpoints,
        /// Page splits.
        splits,
        /// Pages whose rows went to a neighbour, or that became empty.
        merges,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_out_of_range_is_named() {
        Config::default().validate().unwrap();
        let refused = |config: Config| config.validate().unwrap_err().to_string();
        let page = Config { page_bytes: 5000, ..Config::default() };
        assert_eq!(refused(page), "page_bytes is 5000: expected 4096, 8192 or 16384");
        let pool = Config { pool_bytes: 1 << 20, ..Config::default() };
        assert_eq!(refused(pool), "pool_bytes is 1048576: expected 16777216 to 1099511627776");
        let log = Config { log_file_bytes: 1 << 20 | 1, ..Config::default() };
        assert_eq!(refused(log), "log_file_bytes is 1048577: expected a multiple of 4096");
    }
}
