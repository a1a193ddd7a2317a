//! The names of fio's options (all of 3.33 and most of the later ones) and the treatment of each.
//!
//! Invariant: every name is in exactly one table, and fio has each of them but those of [`OURS`] and `atomic_files`, so that a
//! misspelling is never accepted as an option.

use crate::spelling;

/// Treatment of an option.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Fate {
    /// The option is supported; the name is the canonical one.
    Supported(&'static str),
    /// The option concerns files, threads, the kernel or the output of fio, and has no meaning here.
    Meaningless,
    /// The option is ignored, for a reason that the user should know.
    Ignored(&'static str),
    /// Ignoring the option would change the requests. The first text is the value that disables it, the second the
    /// reason.
    Refused(&'static str, &'static str),
}

/// Options that are supported.
const SUPPORTED: &[&str] = &[
    "name",
    "description",
    "rw",
    "bs",
    "blockalign",
    "bsrange",
    "bssplit",
    "size",
    "io_size",
    "filesize",
    "offset",
    "offset_increment",
    "offset_align",
    "numjobs",
    "iodepth",
    "fsync",
    "fdatasync",
    "end_fsync",
    "fsync_on_close",
    "sync",
    "writefua",
    "fdp",
    "dataplacement",
    "fdp_pli",
    "plids",
    "fdp_pli_select",
    "plid_select",
    "rwmixread",
    "rwmixwrite",
    "runtime",
    "time_based",
    "loops",
    "zonemode",
    "zonesize",
    "max_open_zones",
    "number_ios",
    "random_distribution",
    "random_generator",
    "norandommap",
    "percentage_random",
    "randseed",
    "randrepeat",
    "allrandrepeat",
    "thinktime",
    "thinktime_blocks",
    "thinktime_blocks_type",
    "thinktime_iotime",
    "rate",
    "rate_iops",
    "rate_process",
    "rate_ignore_thinktime",
    "startdelay",
    "ramp_time",
    "stonewall",
    "group_reporting",
    "new_group",
    "stats",
    "kb_base",
    "rw_sequencer",
    "ioengine",
    "write_bw_log",
    "write_lat_log",
    "write_iops_log",
    "log_avg_msec",
    "log_max_value",
    "log_offset",
    "per_job_logs",
    "verify",
    "do_verify",
    "steadystate",
    "steadystate_duration",
    "steadystate_ramp_time",
    "steadystate_check_interval",
];

/// Options that fio does not have. Each stands in `docs/fio.md` as one of ours; fio refuses a file with one.
const OURS: &[&str] = &["share_from"];

/// Aliases of options that are supported or refused.
const ALIASES: &[(&str, &str)] = &[
    ("readwrite", "rw"),
    ("blocksize", "bs"),
    ("ba", "blockalign"),
    ("blocksize_range", "bsrange"),
    ("io_limit", "io_size"),
    ("fileoffset", "offset"),
    ("timeout", "runtime"),
    ("wait_for_previous", "stonewall"),
    ("nr_files", "nrfiles"),
    ("blocksize_unaligned", "bs_unaligned"),
    ("ss", "steadystate"),
    ("ss_dur", "steadystate_duration"),
    ("ss_ramp", "steadystate_ramp_time"),
    ("ss_interval", "steadystate_check_interval"),
];

/// Options whose absence would change the requests: name, harmless value, reason.
const REFUSED: &[(&str, &str, &str)] = &[
    ("wait_for", "none", "jobs are ordered with `stonewall` only"),
    ("read_iolog", "", "recorded requests are replayed by the trace workload"),
    ("flow", "0", "jobs do not throttle one another"),
    ("latency_target", "0", "the depth does not adapt to a latency"),
    ("profile", "", "profiles replace the options of the job"),
    ("trim_percentage", "0", "reads do not turn into trims; use rw=trimwrite"),
    ("nrfiles", "1", "the device is one file; divide it with `offset` and `size`"),
    ("create_only", "0", "there are no files to create"),
    ("atomic_files", "0", "a device has no files; `weir files` runs jobs on some"),
    ("verify_only", "0", "a job reads back what it has written itself"),
    ("verify_backlog", "0", "what was written is read back at the end"),
    ("sprandom", "0", "the preconditioning pattern is not modelled"),
    ("write_mode", "write", "other forms of write are not modelled"),
    ("num_range", "1", "a trim has one range"),
    ("ramp_size", "0", "the ramp is a time; use `ramp_time`"),
    ("bs_is_seq_rand", "0", "sizes belong to directions, not to kinds of address"),
    ("thinkcycles", "0", "a processor is not modelled; use `thinktime`"),
    ("bs_unaligned", "0", "requests are multiples of 512 bytes"),
];

/// Options that are ignored for a reason that the user should know.
const IGNORED: &[(&str, &[&str])] = &[
    (
        "contents are compared whole, whatever their header and form",
        &[
            "verify_async",
            "verify_async_cpus",
            "verify_backlog_batch",
            "verify_dump",
            "verify_fatal",
            "verify_interval",
            "verify_offset",
            "verify_pattern",
            "verify_state_load",
            "verify_state_save",
            "verify_header_seed",
            "verify_write_sequence",
            "verify_mode",
            "experimental_verify",
            "trim_verify_zero",
            "trim_backlog",
            "trim_backlog_batch",
        ],
    ),
    (
        "requests are submitted and completed one by one",
        &[
            "iodepth_batch",
            "iodepth_batch_submit",
            "iodepth_batch_complete",
            "iodepth_batch_complete_min",
            "iodepth_batch_complete_max",
            "iodepth_low",
        ],
    ),
    ("requests may overlap", &["serialize_overlap"]),
    (
        "the job runs to its own end",
        &[
            "exitall",
            "exit_what",
            "exitall_on_error",
            "rate_min",
            "ratemin",
            "rate_iops_min",
            "rate_cycle",
            "ratecycle",
            "max_latency",
            "latency_window",
            "latency_percentile",
            "latency_run",
        ],
    ),
    (
        "there is no page cache",
        &["buffered", "invalidate", "pre_read", "sync_file_range", "write_barrier", "fadvise_hint"],
    ),
    (
        "zones are segments of the device, which are reset when a job writes to a full one",
        &[
            "zonerange",
            "zonecapacity",
            "zoneskip",
            "read_beyond_wp",
            "job_max_open_zones",
            "ignore_zone_limits",
            "zone_reset_threshold",
            "zone_reset_frequency",
        ],
    ),
    (
        "hints of lifetime, data streams and placement schemes are not modelled",
        &["write_hint", "dp_scheme", "stream_id"],
    ),
    (
        "every job uses the one simulated device",
        &[
            "filename",
            "directory",
            "filename_format",
            "unique_filename",
            "opendir",
            "file_service_type",
            "openfiles",
        ],
    ),
];

/// Options without meaning on a simulated device.
const MEANINGLESS: &[&str] = &[
    "allow_file_create",
    "allow_mounted_write",
    "apptag",
    "apptag_mask",
    "arguments",
    "atomic",
    "bindname",
    "block_error_percentiles",
    "brick",
    "buffer_compress_chunk",
    "buffer_compress_percentage",
    "buffer_pattern",
    "busy_poll",
    "busy_wait_polling",
    "bwavgtime",
    "cgroup",
    "cgroup_nodelete",
    "cgroup_weight",
    "chunk_size",
    "clat_percentiles",
    "clientname",
    "clocksource",
    "clustername",
    "cmd_type",
    "cmdprio",
    "cmdprio_bssplit",
    "cmdprio_class",
    "cmdprio_hint",
    "cmdprio_percentage",
    "conf",
    "continue_on_error",
    "cpuchunks",
    "cpuload",
    "cpumask",
    "cpumode",
    "cpus_allowed",
    "cpus_allowed_policy",
    "create_fsync",
    "create_on_open",
    "create_serialize",
    "cuda_io",
    "deac",
    "dedupe_global",
    "dedupe_mode",
    "dedupe_percentage",
    "dedupe_working_set_percentage",
    "direct",
    "direct_write_to_pmem",
    "disable_bw",
    "disable_bw_measurement",
    "disable_clat",
    "disable_lat",
    "disable_slat",
    "disk_util",
    "donorname",
    "error_dump",
    "exec_postrun",
    "exec_prerun",
    "exit_on_io_done",
    "fallocate",
    "file_append",
    "fill_device",
    "fill_fs",
    "fixedbufs",
    "flow_id",
    "flow_sleep",
    "force_async",
    "gid",
    "gpu_dev_ids",
    "grace_time",
    "gtod_cpu",
    "gtod_reduce",
    "hdfsdirectory",
    "hipri",
    "hipri_percentage",
    "hostname",
    "http_host",
    "http_mode",
    "http_pass",
    "http_s3_key",
    "http_s3_keyid",
    "http_s3_region",
    "http_s3_security_token",
    "http_s3_sse_customer_algorithm",
    "http_s3_sse_customer_key",
    "http_s3_storage_class",
    "http_swift_auth_token",
    "http_user",
    "http_verbose",
    "https",
    "hugepage-size",
    "ignore_error",
    "inplace",
    "interface",
    "io_submit_mode",
    "iomem",
    "iomem_align",
    "mem_align",
    "iopsavgtime",
    "ioscheduler",
    "job_start_clock_id",
    "lat_percentiles",
    "libblkio_driver",
    "libblkio_force_enable_completion_eventfd",
    "libblkio_num_entries",
    "libblkio_path",
    "libblkio_pre_connect_props",
    "libblkio_pre_start_props",
    "libblkio_queue_size",
    "libblkio_vectored",
    "libblkio_wait_mode",
    "libblkio_write_zeroes_on_trim",
    "listen",
    "lockfile",
    "lockmem",
    "log_alternate_epoch",
    "log_alternate_epoch_clock_id",
    "log_compression",
    "log_compression_cpus",
    "log_entries",
    "log_hist_coarseness",
    "log_hist_msec",
    "log_issue_time",
    "log_prio",
    "log_store_compressed",
    "log_unix_epoch",
    "log_window_value",
    "md_per_io_size",
    "mem",
    "merge_blktrace_file",
    "merge_blktrace_iters",
    "merge_blktrace_scalars",
    "mss",
    "namenode",
    "nfs_url",
    "nice",
    "nodelay",
    "nonvectored",
    "nowait",
    "numa_cpu_nodes",
    "numa_mem_policy",
    "object_class",
    "overwrite",
    "percentile_list",
    "pi_act",
    "pi_chk",
    "pingpong",
    "pool",
    "port",
    "prio",
    "prioclass",
    "priohint",
    "program",
    "protocol",
    "rbdname",
    "read_iolog_chunked",
    "readfua",
    "refill_buffers",
    "registerfiles",
    "replay_align",
    "replay_no_stall",
    "replay_redirect",
    "replay_scale",
    "replay_skip",
    "replay_time_scale",
    "scramble_buffers",
    "sg_write_mode",
    "significant_figures",
    "skip_bad",
    "slat_percentiles",
    "softrandommap",
    "spr_cs",
    "spr_num_regions",
    "spr_op",
    "sqthread_poll",
    "sqthread_poll_cpu",
    "stat_type",
    "std_redirect",
    "thinktime_spin",
    "thp",
    "thread",
    "touch_objects",
    "ttl",
    "uid",
    "uncached",
    "unified_rw_reporting",
    "unit_base",
    "unlink",
    "unlink_each_loop",
    "uri",
    "userspace_reap",
    "verb",
    "volume",
    "window_size",
    "write_hist_log",
    "write_iolog",
    "xnvme_admin",
    "xnvme_async",
    "xnvme_be",
    "xnvme_dev_nsid",
    "xnvme_dev_subnqn",
    "xnvme_iovec",
    "xnvme_mem",
    "xnvme_sync",
    "zero_buffers",
];

/// Looks up an option by any of its names.
pub(super) fn fate(name: &str) -> Option<Fate> {
    let name = ALIASES.iter().find(|(alias, _)| *alias == name).map_or(name, |(_, canonical)| canonical);
    if let Some(canonical) = SUPPORTED.iter().chain(OURS).find(|known| **known == name) {
        return Some(Fate::Supported(canonical));
    }
    if let Some((_, harmless, reason)) = REFUSED.iter().find(|(known, ..)| *known == name) {
        return Some(Fate::Refused(harmless, reason));
    }
    if let Some((reason, _)) = IGNORED.iter().find(|(_, names)| names.contains(&name)) {
        return Some(Fate::Ignored(reason));
    }
    MEANINGLESS.contains(&name).then_some(Fate::Meaningless)
}

/// Iterates over all names, the most useful ones first.
fn names() -> impl Iterator<Item = &'static str> {
    let ignored = IGNORED.iter().flat_map(|(_, names)| names.iter().copied());
    SUPPORTED
        .iter()
        .copied()
        .chain(OURS.iter().copied())
        .chain(ALIASES.iter().map(|(alias, _)| *alias))
        .chain(REFUSED.iter().map(|(name, ..)| *name))
        .chain(ignored)
        .chain(MEANINGLESS.iter().copied())
}

/// Returns the valid name that is spelled most like `wrong`, if one is close enough.
pub(super) fn nearest(wrong: &str) -> Option<&'static str> {
    spelling::nearest(wrong, names())
}

#[cfg(test)]
pub(super) fn supported_names() -> impl Iterator<Item = &'static str> {
    SUPPORTED.iter().chain(OURS).copied()
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::BTreeSet;

    #[test]
    fn every_name_is_in_one_table() {
        let all: Vec<_> = names().collect();
        let unique: BTreeSet<_> = all.iter().collect();
        assert_eq!(all.len(), unique.len());
        assert!(all.iter().all(|name| fate(name).is_some()));
        assert!(all.len() > 300, "{}", all.len());
    }

    #[test]
    fn near_spellings_are_found() {
        for (wrong, right) in [
            ("iodept", Some("iodepth")),
            ("RW", Some("rw")),
            ("blokcsize", Some("blocksize")),
            ("block-size", Some("blocksize")),
            ("time-based", Some("time_based")),
            ("random_distributon", Some("random_distribution")),
            ("iodepth_bach", Some("iodepth_batch")),
            ("quux", None),
        ] {
            assert_eq!(nearest(wrong), right, "{wrong}");
        }
    }
}
