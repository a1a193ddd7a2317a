//! Counters of a host FTL.

flashweir_core::metrics! {
    /// Counters since the FTL began.
    pub struct HostFtlMetrics {
        /// Read requests.
        reads,
        /// Write requests.
        writes,
        /// TRIM requests.
        trims,
        /// FLUSH requests.
        flushes,
        /// Range flushes.
        range_flushes,
        /// Units that reads found in a ring.
        ring_hits,
        /// Units of the user that entered rings.
        user_units,
        /// Units that GC copied into rings.
        gc_units,
        /// Units that fill up programs.
        padded_units,
        /// Units of start and end metadata of lines, with what fills up their pages.
        meta_units,
        /// All units of all programs.
        programmed_units,
        /// Those of the user among them, each time that they are programmed.
        user_programmed_units,
        /// Lines that GC chose.
        lines_collected,
        /// Lines that were erased.
        lines_erased,
        /// Programs that failed.
        program_failures,
        /// Erases that failed.
        erase_failures,
        /// Epochs of streams that were closed.
        epochs,
        /// Records of streams that were written.
        order_records,
        /// Reads of a recovery.
        recovery_reads,
        /// Time of all CPUs at work, spinning included.
        cpu_busy_ns,
        /// Time in which threads waited for the locks of rings.
        ring_spin_ns,
        /// Time in which threads held the locks of rings.
        ring_held_ns,
        /// Acquisitions of the locks of rings.
        ring_locks,
        /// Those of them that found another holder.
        ring_locks_contended,
        /// Time in which threads waited for the lock of the map.
        map_spin_ns,
        /// Time in which threads held the lock of the map.
        map_held_ns,
        /// Time in which threads waited for the lock of the pool.
        pool_spin_ns,
        /// Time in which threads held the lock of the pool.
        pool_held_ns,
        /// Tries of threads that found no room in a ring.
        retries,
    }
}
