//! Counters of a host FTL.

use serde::Serialize;

/// Counters since the FTL began.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub struct HostFtlMetrics {
    /// Read requests.
    pub reads: u64,
    /// Write requests.
    pub writes: u64,
    /// TRIM requests.
    pub trims: u64,
    /// FLUSH requests.
    pub flushes: u64,
    /// Range flushes.
    pub range_flushes: u64,
    /// Units that reads found in a ring.
    pub ring_hits: u64,
    /// Units of the user that entered rings.
    pub user_units: u64,
    /// Units that GC copied into rings.
    pub gc_units: u64,
    /// Units that fill up programs.
    pub padded_units: u64,
    /// Units of start and end metadata of lines, with what fills up their pages.
    pub meta_units: u64,
    /// All units of all programs.
    pub programmed_units: u64,
    /// Lines that GC chose.
    pub lines_collected: u64,
    /// Lines that were erased.
    pub lines_erased: u64,
    /// Programs that failed.
    pub program_failures: u64,
    /// Erases that failed.
    pub erase_failures: u64,
    /// Reads of a recovery.
    pub recovery_reads: u64,
    /// Time of all CPUs at work, spinning included.
    pub cpu_busy_ns: u64,
    /// Time in which threads waited for the locks of rings.
    pub ring_spin_ns: u64,
    /// Time in which threads held the locks of rings.
    pub ring_held_ns: u64,
    /// Acquisitions of the locks of rings.
    pub ring_locks: u64,
    /// Those of them that found another holder.
    pub ring_locks_contended: u64,
    /// Time in which threads waited for the lock of the map.
    pub map_spin_ns: u64,
    /// Time in which threads held the lock of the map.
    pub map_held_ns: u64,
    /// Time in which threads waited for the lock of the pool.
    pub pool_spin_ns: u64,
    /// Time in which threads held the lock of the pool.
    pub pool_held_ns: u64,
    /// Tries of threads that found no room in a ring.
    pub retries: u64,
}
