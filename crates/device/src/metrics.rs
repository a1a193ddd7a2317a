//! What the device counts.

flashweir_core::metrics! {
    /// Counters of one device since it was made.
    pub struct DeviceMetrics {
        /// Commands accepted.
        commands,
        /// Commands completed.
        completions,
        /// Read commands completed.
        host_reads,
        /// Write commands completed.
        host_writes,
        /// TRIM and WRITE ZEROES commands completed.
        host_trims,
        /// SHARE commands accepted.
        shares,
        /// Mapping units that they remapped.
        host_units_shared,
        /// Mapping units that were copied because the table of virtual pages was full.
        share_copies,
        /// Shared units that came to one page alone and became its own when GC moved them.
        share_collapses,
        /// Copies inside of an open channel accepted.
        host_copies,
        /// Mapping units that they copied.
        host_units_copied,
        /// Reads of pages of an open channel that needed so much error correction that the host was told.
        refresh_reads,
        /// FLUSH commands completed.
        flushes,
        /// Range flushes accepted.
        range_flushes,
        /// Volatile versions that range flushes selected.
        range_units_asked,
        /// Volatile versions that they waited for: the selected ones and what these depend on.
        range_units_closure,
        /// Dirty versions that a FLUSH or a range flush wrote before their turn.
        flush_units_forced,
        /// Barriers of no length accepted.
        barriers,
        /// Epochs that ended.
        epochs,
        /// Versions that were replaced by one of a later epoch of the same transaction.
        epochs_fused,
        /// Mapping units written that belong to a stream.
        ordered_units,
        /// Records in the map log that say which epochs are complete.
        order_records,
        /// Commands that completed with an error.
        errors,
        /// Mapping units read by the host.
        host_units_read,
        /// Mapping units written by the host, parts of a unit counted as one.
        host_units_written,
        /// Mapping units deallocated by the host.
        host_units_trimmed,
        /// Mapping units that the host read from the buffer.
        buffer_read_hits,
        /// Mapping units overwritten in the buffer before they were on the medium.
        buffer_write_hits,
        /// Mapping units of host data programmed.
        user_units_programmed,
        /// Mapping units moved by garbage collection.
        gc_units_moved,
        /// Number of these whose victims TRIM had made stale, in proportion where newer versions of pages had, too.
        gc_moves_after_trims,
        /// Mapping units of filler programmed.
        filler_units,
        /// Mapping units of the device's own metadata programmed.
        meta_units,
        /// Pages read from the medium for the host.
        pages_read,
        /// Pages read to complete a partial write.
        modify_pages_read,
        /// Pages read by garbage collection.
        gc_pages_read,
        /// Pages programmed, of all kinds.
        pages_programmed,
        /// Blocks erased.
        erases,
        /// Victims of garbage collection.
        gc_victims,
        /// Victims that were chosen for static wear-levelling.
        wear_victims,
        /// Programs that failed.
        program_failures,
        /// Erases that failed.
        erase_failures,
        /// Reads that were uncorrectable.
        uncorrectable_reads,
        /// Blocks that became bad.
        grown_bad_blocks,
        /// Pages of the map log written.
        log_pages,
        /// Map checkpoints completed.
        checkpoints,
        /// Look-ups in a translation page that was in the cache.
        map_hits,
        /// Look-ups that had to wait for a translation page.
        map_misses,
        /// Translation pages read into the cache.
        map_pages_read,
        /// Translation pages loaded because too many changes to pages outside of the cache had accumulated.
        map_merges,
        /// Translation pages written because their place in the cache was needed.
        map_pages_written,
        /// Translation pages moved by GC of their blocks.
        map_pages_moved,
        /// GC victims among the blocks of translation pages.
        map_victims,
        /// Blocks of segments copied to other blocks: failed programs, torn ends, gaps that were filled late, wear-levelling.
        segment_moves,
        /// Pages of the log with the last units of a segment, which a flush asked for before their page was complete.
        segment_tails,
    }
}

/// Counters of one placement handle since the device was made or recovered.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct HandleCounts {
    /// Mapping units of the host that were programmed in its blocks.
    pub units_written: u64,
    /// Mapping units that GC moved out of its blocks, to blocks of GC.
    pub units_moved: u64,
}

flashweir_core::metrics! {
    /// Counters of the NAND machine of one device since it was made.
    pub struct NandMetrics {
        /// Commands to several planes of a die at once, of all kinds.
        multi_plane_commands,
        /// Interruptions of programs and erases by reads.
        suspends,
        /// Commands that program host data, to one plane or to several.
        host_programs,
        /// Commands that program host data in several planes of a die at once.
        host_multi_plane_programs,
    }
}

impl NandMetrics {
    /// Part of the commands with host data that programmed several planes at once; `None` if there was none.
    pub fn multi_plane_share(&self) -> Option<f64> {
        (self.host_programs > 0).then(|| self.host_multi_plane_programs as f64 / self.host_programs as f64)
    }
}

impl DeviceMetrics {
    /// Versions that range flushes waited for, for each one that they selected; `None` if they selected none. 1 is
    /// perfect; above it, versions that were not asked for had to become durable too (contract §5.7: entanglement).
    pub fn entanglement(&self) -> Option<f64> {
        (self.range_units_asked > 0).then(|| self.range_units_closure as f64 / self.range_units_asked as f64)
    }

    /// Units programmed, of all kinds, for each unit that the host wrote; `None` if it wrote none.
    pub fn write_amplification(&self) -> Option<f64> {
        let all = self.user_units_programmed + self.gc_units_moved + self.filler_units + self.meta_units;
        (self.host_units_written > 0).then(|| all as f64 / self.host_units_written as f64)
    }
}
