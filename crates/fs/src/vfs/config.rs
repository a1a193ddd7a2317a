//! Options of the page cache and of a mount, and counters.

use super::HostCosts;
use super::types::PAGE_BYTES;
use flashweir_core::{Duration, metrics};
use serde::{Deserialize, Serialize};
use std::fmt;

/// The page cache. Numbers are pages of 4 KiB.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct CacheConfig {
    /// Capacity in pages. There are more pages only while more than this are under I/O.
    pub capacity_pages: u64,
    /// Number of dirty pages above which they are written back at once, whatever their age.
    pub dirty_background_pages: u64,
    /// Number of dirty pages at which a writer waits until some are written.
    pub dirty_hard_pages: u64,
    /// Age from which on dirty pages are written back.
    pub dirty_expire: Duration,
    /// Interval at which ages are checked and a failed write is tried again.
    pub writeback_interval: Duration,
    /// Number of pages that are written at once.
    pub batch_pages: u64,
    /// Most pages that are read ahead of a sequential reader; 0 disables read-ahead.
    pub readahead_pages: u64,
}

impl CacheConfig {
    /// A cache of `bytes` with Linux's default rules: background write-back from 10 % on, writers wait at 20 %, pages
    /// of 30 s are written every 5 s, 128 KiB are read ahead.
    pub fn of_bytes(bytes: u64) -> Self {
        let pages = bytes / PAGE_BYTES as u64;
        Self {
            capacity_pages: pages,
            dirty_background_pages: pages / 10,
            dirty_hard_pages: pages / 5,
            dirty_expire: Duration::from_secs(30),
            writeback_interval: Duration::from_secs(5),
            batch_pages: 1024,
            readahead_pages: 32,
        }
    }

    /// The same cache without background write-back: pages are written only for a sync, or because no more pages may become dirty.
    pub fn without_write_back(self) -> Self {
        let most = self.capacity_pages.saturating_sub(8);
        Self { dirty_background_pages: most, dirty_hard_pages: most, dirty_expire: Duration::MAX, ..self }
    }

    /// Checks the bounds; the error names key, value and range.
    pub fn validate(&self) -> Result<(), ConfigError> {
        let range = |key, value: u64, min: u64, max: u64| {
            if (min..=max).contains(&value) {
                Ok(())
            } else {
                Err(ConfigError::Range { key, value, min, max })
            }
        };
        range("capacity_pages", self.capacity_pages, 16, 1 << 31)?;
        range("dirty_hard_pages", self.dirty_hard_pages, 1, self.capacity_pages - 8)?;
        range("dirty_background_pages", self.dirty_background_pages, 0, self.dirty_hard_pages)?;
        range("batch_pages", self.batch_pages, 1, 1 << 18)?;
        range("readahead_pages", self.readahead_pages, 0, self.capacity_pages / 4)?;
        range("writeback_interval (ns)", self.writeback_interval.as_nanos(), 1, u64::MAX)
    }
}

impl Default for CacheConfig {
    /// A cache of 1 GiB.
    fn default() -> Self {
        Self::of_bytes(1 << 30)
    }
}

/// Error of an option that is not possible.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ConfigError {
    /// A value is out of its range.
    Range {
        /// Key of the option.
        key: &'static str,
        /// Its value.
        value: u64,
        /// The least valid value.
        min: u64,
        /// The largest valid value.
        max: u64,
    },
    /// Syncs are to order writes, but the file system has no barriers.
    NoBarriers,
}

impl fmt::Display for ConfigError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Range { key, value, min, max } => write!(f, "{key} is {value}: expected {min} to {max}"),
            Self::NoBarriers => f.write_str(
                "syncs_order is true: expected a file system that is mounted to order by barriers",
            ),
        }
    }
}
impl std::error::Error for ConfigError {}

/// Options of a mount.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct MountOptions {
    /// The page cache.
    pub cache: CacheConfig,
    /// CPU costs of calls.
    pub costs: HostCosts,
    /// Whether changes are refused with `EROFS`.
    pub read_only: bool,
    /// Whether fsync and fdatasync only order writes and make nothing durable, like fbarrier and fdatabarrier. For programs that
    /// use syncs for order; the file system must have barriers.
    pub syncs_order: bool,
    /// Civil time, in seconds since 1970, at which virtual time is zero.
    pub epoch_seconds: i64,
}

impl MountOptions {
    /// Checks the options for a file system; the error names the option that is not possible.
    pub fn validate(&self, has_barriers: bool) -> Result<(), ConfigError> {
        self.cache.validate()?;
        if self.syncs_order && !has_barriers { Err(ConfigError::NoBarriers) } else { Ok(()) }
    }
}

metrics! {
    /// Counters of the vfs since the mount.
    pub struct VfsMetrics {
        /// Calls of read.
        reads,
        /// Calls of write.
        writes,
        /// Pages of reads that were in memory.
        read_hit_pages,
        /// Pages of reads that were not in memory.
        read_miss_pages,
        /// Pages read ahead of any request.
        readahead_pages,
        /// Pages read past the cache.
        direct_read_pages,
        /// Pages written past the cache.
        direct_written_pages,
        /// Pages written back because they were old or many.
        background_written_pages,
        /// Pages written back because a caller waited for it.
        sync_written_pages,
        /// Pages whose write-back failed; a page can fail several times.
        failed_pages,
        /// Clean pages that were evicted.
        evicted_pages,
        /// Waits of writers at the hard limit of dirty pages.
        throttled_waits,
        /// Time that writers waited at the hard limit of dirty pages, in nanoseconds.
        throttled_ns,
        /// Calls of fsync, fdatasync and syncv.
        syncs,
        /// Calls of fbarrier and fdatabarrier.
        barriers,
        /// CPU time of calls and of what applications computed, of all CPUs together, in nanoseconds.
        cpu_busy_ns,
        /// Time that calls and applications waited for a CPU, in nanoseconds.
        cpu_waited_ns,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_out_of_range_is_named() {
        CacheConfig::default().validate().unwrap();
        let refused = |config: CacheConfig| config.validate().unwrap_err().to_string();
        let small = CacheConfig { capacity_pages: 4, ..CacheConfig::default() };
        assert_eq!(refused(small), "capacity_pages is 4: expected 16 to 2147483648");
        let hard = CacheConfig { dirty_hard_pages: 1 << 20, ..CacheConfig::default() };
        assert_eq!(refused(hard), "dirty_hard_pages is 1048576: expected 1 to 262136");
        let background = CacheConfig { dirty_background_pages: 60_000, ..CacheConfig::default() };
        assert_eq!(refused(background), "dirty_background_pages is 60000: expected 0 to 52428");
    }

    #[test]
    fn the_rules_of_linux() {
        let cache = CacheConfig::default();
        assert_eq!((cache.capacity_pages, cache.dirty_background_pages), (262_144, 26_214));
        assert_eq!((cache.dirty_hard_pages, cache.dirty_expire), (52_428, Duration::from_secs(30)));
    }
}
