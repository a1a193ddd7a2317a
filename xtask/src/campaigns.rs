//! CI's power cuts: arguments of `weir crash` and its subcommands, without seeds.
//!
//! Place: [`crate::ci`] runs them, and [`crate::mutants`] as suites. Every pair of format and family is in [`crate::file_pairs`].

/// Number of worlds of each tiny device, with three random histories each; `cargo xtask evidence crash-devices` runs more.
pub(crate) const CRASH_WORLDS: u32 = 20;

/// Most states of each of them but of the deep ones and of those with segments or an open channel: many histories with few states find more than few with many
/// (crash-laboratory §3.10).
pub(crate) const CRASH_STATES_EACH: u32 = 1_000;

/// Number of devices whose features are drawn, with one world each; `cargo xtask evidence crash-drawn` runs more.
pub(crate) const CRASH_DRAWN: u32 = 200;

/// Campaigns of power cuts of file systems.
pub(crate) const FILE_CUTS: [&str; 33] = [
    "--sequences seq-1 --states-each 5",
    "--format ext4 --sequences seq-1 --states-each 6",
    "--format ext4-journal --sequences seq-1 --states-each 6",
    "--format ext4-dual --sequences seq-1 --states-each 6",
    "--format f2fs-dual --sequences seq-1 --states-each 3",
    "--sequences seq-2 --count 40 --states-each 80",
    "--sequences random --count 60 --states-each 80",
    "--sequences random --count 20 --states-each 80 --flush flush",
    "--sequences random --count 12 --states-each 60 --on device",
    "--sequences cleaning --count 6 --states-each 10",
    "--format ext4 --sequences seq-2 --count 40 --states-each 80",
    "--format ext4 --sequences random --count 40 --states-each 80 --kernel-every 400",
    "--format ext4 --sequences reuse --on late --count 30 --states-each 40",
    "--format ext4-journal --sequences random --count 30 --states-each 40 --kernel-every 400",
    "--format f2fs-dual --sequences random --count 30 --states-each 40",
    "--format f2fs-dual --sequences reuse --on late --count 30 --states-each 40",
    "--format ext4-dual --sequences random --count 30 --states-each 40 --kernel-every 400",
    "--format ext4-dual --sequences reuse --on late --count 30 --states-each 40",
    "--format ext4 --sequences random --count 4 --states-each 40 --on device",
    "--format ext4-dual --sequences random --count 6 --states-each 40 --on device",
    "--format f2fs-dual --sequences random --count 6 --states-each 40 --on device",
    "--format ext4-soj --sequences seq-1 --states-each 4",
    "--format ext4-sdj --sequences seq-1 --states-each 4",
    "--format ext4-soj --sequences reuse --on late --count 30 --states-each 40 --kernel-every 400",
    "--format ext4-sdj-dual --sequences random --count 30 --states-each 40 --kernel-every 400",
    "--format ext4-sdj-dual --sequences random --count 6 --states-each 40 --on device",
    "--format f2fs-ssc --sequences cleaning --count 3 --states-each 10 --on late",
    "--format f2fs-ssc-dual --sequences cleaning --count 3 --states-each 10",
    "--format ext4-dual --sequences random --count 6 --states-each 40 --on layer",
    "--format f2fs --sequences random --count 6 --states-each 40 --on host-ftl",
    "--format alfs --sequences seq-1 --states-each 4",
    "--format alfs --sequences random --count 40 --states-each 60",
    "--format alfs --sequences random --count 8 --states-each 40 --on device",
];

/// Campaigns of power cuts below SQLite: its journal modes with waiting, with order where durability is kept, and with order alone.
pub(crate) const SQLITE_CUTS: [&str; 7] = [
    "--cuts 100 --format ext4 --order none --journal delete,truncate,persist,wal",
    "--cuts 100 --format ext4-dual --order durable,all --journal delete,persist,wal",
    "--cuts 100 --format f2fs-dual --order durable,all --journal delete,wal",
    "--cuts 100 --format ext4-sdj --order none --journal batch-atomic",
    "--cuts 100 --format f2fs-ssc --order none --journal batch-atomic",
    "--cuts 100 --format ext4-dual --on layer --order durable --journal delete,wal",
    "--cuts 100 --format f2fs --on host-ftl --order none --journal delete,wal",
];

/// CI's power cuts of devices, after shorter ones. A violation is not minimised.
pub(crate) fn device_cuts() -> Vec<String> {
    let table = worlds("");
    let drawn = format!(
        "crash --quiet --no-minimise --drawn {CRASH_DRAWN} --worlds 1 --states-each {CRASH_STATES_EACH}"
    );
    table.into_iter().chain([drawn]).collect()
}

/// CI's power cuts of devices with segments, after shorter ones.
pub(crate) fn segment_cuts() -> Vec<String> {
    worlds(" --device tiny-d5*").to_vec()
}

/// CI's power cuts of devices with an open channel, after shorter ones.
pub(crate) fn open_cuts() -> Vec<String> {
    worlds(" --device tiny-open*").to_vec()
}

/// CI's power cuts of devices below host FTLs, after shorter ones.
pub(crate) fn host_ftl_cuts() -> Vec<String> {
    worlds(" --device tiny-pblk* --device tiny-qblke*").to_vec()
}

fn worlds(which: &str) -> [String; 3] {
    let some = |worlds: u32| format!("crash --quiet --no-minimise --worlds {worlds}{which}");
    [some(1), some(4), format!("{} --states-each {CRASH_STATES_EACH}", some(CRASH_WORLDS))]
}
