//! A configuration of the AMF paper under one of its workloads (append-segments §8.3 to append-segments §8.9): each run serves all figures.
//!
//! Place in the data flow: [`run`] makes a [`Setup`] of variant and workload, and returns one value for each of [`METRICS`].
//!
//! Invariants: all variants have the same flash but for its amount, the same buffer, link, page cache and host. A cell is what `weir files`
//! does with the options that docs/amf.md lists; scenarios/amf has its workloads at the full scale.

use super::super::study::{RATE_CALLS_MIN, Scale, Study, measure, micros};
use crate::files::{FilesResult, Setup, Work};
use flashweir_core::{Bytes, Duration};
use flashweir_db::{Config, DataIo};
use flashweir_device::DeviceConfig;
use flashweir_device::presets::preset;
use flashweir_fs::alfs::AlfsOptions;
use flashweir_fs::vfs::{CacheConfig, HostCosts, MountOptions};
use flashweir_fs::{Kind, Mode};
use flashweir_host::HostConfig;
use flashweir_sim::measure::Percentile;
use flashweir_sim::stack::FlushMode;
use flashweir_sim::volume::MakeOptions;
use flashweir_workload::filebench::parse_model;
use flashweir_workload::fio::parse_job_file_on_files;
use flashweir_workload::oltp::sysbench::{Script, SysbenchOptions};
use flashweir_workload::oltp::tpcc::{Scale as Warehouses, TpccOptions};
use flashweir_workload::postmark;

/// The paper's five configurations, the two that have been added (append-segments §7.3, append-segments §7.5), and the paper's fsync.
const VARIANTS: &[&str] = &[
    "EXT4+PFTL",
    "EXT4+DFTL",
    "F2FS+PFTL",
    "F2FS+DFTL",
    "F2FS-sections+PFTL",
    "F2FS+FDP",
    "AMF",
    "AMF-checkpoints",
];

const METRICS: &[(&str, &str)] = &[
    ("ops", "calls/s of fio, Postmark and the tasks of Hadoop, transactions/s of databases"),
    ("waf", "pages programmed for each page that files were written, by write-back or past the cache"),
    ("waf_fs", "pages that the host wrote for each of these"),
    ("waf_ftl", "pages programmed for each page that the host wrote"),
    (
        "copies_after_trims",
        "copies of the device's GC out of blocks that deallocations made stale, of all; writing in place did the rest",
    ),
    ("erases", "blocks erased for each GiB of these pages"),
    ("moved_share", "blocks of data that the file system's cleaning moved, of all that the host wrote"),
    ("map_share", "blocks of the inode map and TIMB, of all that the host wrote"),
    ("map_moved_share", "blocks of the map that its cleaning moved, of all blocks that cleaning moved"),
    ("timb_per_checkpoint", "blocks of TIMB written with each checkpoint"),
    ("map_misses", "lookups of the device in pages of its map that were not in its cache, of all"),
    ("cpu_us", "CPU time of the host for each call, µs"),
    ("write_p50_us", "writes of the disk: median, µs"),
    ("write_p999_us", "writes of the disk: 99.9th percentile, µs"),
    ("write_max_us", "writes of the disk: longest, µs"),
];

const WHAT: &str = "buffered, on a card that is as large for the host with any map (16 GiB; page maps have 15 % more flash), whose volume was \
                    filled and emptied before, so that no block is fresh; the file systems have 5 % over-provisioning, the page cache 1.5 \
                    GiB. Postmark's files grow while it runs, and fill 40 and 80 % in the mean, with a ballast. The quick scale has a card of a \
                    quarter of the ways, so of 4 GiB, with segments of 4 MiB, and a quarter of cache and files; its databases have a fortieth \
                    of the rows, beside a ballast";

const MISSING: &str = "MySQL and Hadoop, of which the page engine and the models have the shape; 1,200 s of TPC-C, of which we run 60; \
                       the paper's host, and its kernel; its CPU is our model of it";

pub(super) const READS: Study = Study {
    name: "reads",
    what: "fio of figure 9: eight jobs read one file of 10 GiB, 4 KiB at a time, in order and at random",
    missing: MISSING,
    parameter: "job",
    names: &["SR", "RR"],
    metrics: METRICS,
    variants: VARIANTS,
    points: |_| vec![1.0, 2.0],
    measure: |variant, x, seed, scale| {
        let workload = [Workload::Fio("sr"), Workload::Fio("rr")][x as usize - 1];
        run(variant, workload, Flash::EqualExported, seed, scale)
    },
};

/// The ten workloads of figure 13 (append-segments §8.8), by [`WRITES`]' names.
const TEN: [Workload; 10] = [
    Workload::Fio("sw"),
    Workload::Fio("rw"),
    Workload::Postmark { script: "postmark-l", ballast_mib: 1946 },
    Workload::Postmark { script: "postmark-h", ballast_mib: 4403 },
    Workload::Sysbench(Script::NonTransactional),
    Workload::Sysbench(Script::ReadWrite),
    Workload::Tpcc { clients: 16 },
    Workload::Hadoop("hfsio"),
    Workload::Hadoop("terasort"),
    Workload::Hadoop("wordcount"),
];

pub(super) const WRITES: Study = Study {
    name: "writes",
    what: WHAT,
    parameter: "workload",
    names: &[
        "SW",
        "RW",
        "Postmark-L",
        "Postmark-H",
        "Non-Trans",
        "OLTP",
        "TPC-C",
        "HFSIO",
        "TeraSort",
        "WordCount",
    ],
    points: |_| (1..=TEN.len()).map(|number| number as f64).collect(),
    measure: |variant, x, seed, scale| run(variant, TEN[x as usize - 1], Flash::EqualExported, seed, scale),
    ..READS
};

pub(super) const OTHER_READINGS: Study = Study {
    name: "other-readings",
    what: "as `writes`: Postmark with the paper's number of files and no ballast, which fill 24 and 48 % instead of 40 and 80, and TPC-C with \
           16 clients for each warehouse (append-segments §8.11)",
    parameter: "workload",
    names: &["Postmark-L", "Postmark-H", "TPC-C-224"],
    points: |_| vec![1.0, 2.0, 3.0],
    measure: |variant, x, seed, scale| {
        let workload = [
            Workload::Postmark { script: "postmark-l", ballast_mib: 0 },
            Workload::Postmark { script: "postmark-h", ballast_mib: 0 },
            Workload::Tpcc { clients: 224 },
        ][x as usize - 1];
        run(variant, workload, Flash::EqualExported, seed, scale)
    },
    ..READS
};

pub(super) const EQUAL_RAW: Study = Study {
    name: "equal-raw",
    what: "as `writes`, with equal flash: page maps hide 15 % of it from the host",
    parameter: "workload",
    names: &["RW", "Postmark-L", "OLTP"],
    points: |_| vec![1.0, 2.0, 3.0],
    measure: |variant, x, seed, scale| {
        let workload = [TEN[1], TEN[2], TEN[5]][x as usize - 1];
        run(variant, workload, Flash::EqualRaw, seed, scale)
    },
    ..READS
};

/// What is equal: the capacity that hosts see, or the flash.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Flash {
    EqualExported,
    EqualRaw,
}

#[derive(Clone, Copy)]
enum Workload {
    /// A job file of scenarios/amf.
    Fio(&'static str),
    /// A script of scenarios/amf, beside a ballast of so many MiB at the full scale.
    Postmark {
        script: &'static str,
        ballast_mib: u64,
    },
    Sysbench(Script),
    Tpcc {
        clients: u32,
    },
    /// A model of scenarios/amf.
    Hadoop(&'static str),
}

impl Workload {
    /// Name of the workload, which its random numbers depend on: that of its file, or word on the command line.
    fn name(self) -> &'static str {
        match self {
            Self::Fio(name) | Self::Postmark { script: name, .. } | Self::Hadoop(name) => name,
            Self::Sysbench(script) => script.name(),
            Self::Tpcc { .. } => "tpcc",
        }
    }
}

/// Segments that a host sees: of 16 MiB, or at the quick scale, which has a quarter of the ways, of 4 MiB.
const SEGMENTS: u32 = 1024;

/// The part of the full scale's sizes that a scale has.
fn scaled(full: u64, scale: Scale) -> u64 {
    match scale {
        Scale::Quick => full / 4,
        Scale::Full => full,
    }
}

/// The card of a variant.
fn card(variant: usize, flash: Flash, scale: Scale) -> DeviceConfig {
    let name = match VARIANTS[variant] {
        "EXT4+DFTL" | "F2FS+DFTL" => "amf-dftl",
        "F2FS+FDP" => "amf-fdp",
        "AMF" | "AMF-checkpoints" => "amf",
        _ => "amf-page",
    };
    let mut device = preset(name).expect("it comes with the program");
    let chips = device.geometry.chips_per_channel;
    device.geometry.chips_per_channel = scaled(chips.into(), scale) as u32;
    device.buffer.capacity = Bytes(scaled(device.buffer.capacity.0, scale));
    if name != "amf" && flash == Flash::EqualExported {
        // 15 % more flash, and a share of it for the host that makes as many segments; four digits, as one would type them.
        let blocks = &mut device.geometry.blocks_per_plane;
        *blocks = (SEGMENTS * 115).div_ceil(100);
        let hidden = 1.0 - f64::from(SEGMENTS) / f64::from(*blocks);
        device.ftl.over_provisioning = (hidden * 1e4).floor() / 1e4;
    }
    if name == "amf-dftl" {
        // 2 % of the blocks (append-segments §7.2).
        device.ftl.gc.start_below_blocks = device.geometry.blocks_per_plane / 50;
    }
    device.validate().expect("a card of another size is possible");
    device
}

/// The file system of a variant.
fn mode(variant: usize) -> Mode {
    match VARIANTS[variant] {
        "EXT4+PFTL" | "EXT4+DFTL" => Kind::Ext4.into(),
        "AMF" => Kind::Alfs.into(),
        "AMF-checkpoints" => {
            let alfs = AlfsOptions { fsync_checkpoints: true, ..AlfsOptions::default() };
            Mode { alfs, ..Kind::Alfs.into() }
        }
        _ => Kind::F2fs.into(),
    }
}

/// The file of scenarios/amf of this name.
fn scenario(name: &str) -> &'static str {
    macro_rules! files {
        ($($name:literal: $file:literal),*) => {
            match name {
                $($name => include_str!(concat!("../../../../../scenarios/amf/", $file)),)*
                _ => unreachable!("a workload of ours"),
            }
        };
    }
    files!(
        "sr": "sr.fio", "rr": "rr.fio", "sw": "sw.fio", "rw": "rw.fio",
        "postmark-l": "postmark-l.pmrc", "postmark-h": "postmark-h.pmrc",
        "hfsio": "hfsio.f", "terasort": "terasort.f", "wordcount": "wordcount.f"
    )
}

/// Work, times that are not and that are measured, and ballast.
struct Load {
    work: Work,
    ramp: Duration,
    runtime: Option<Duration>,
    ballast_bytes: u64,
}

fn load(workload: Workload, seed: u64, scale: Scale) -> Load {
    let times = |ramp, runtime| (Duration::from_secs(ramp), Some(Duration::from_secs(runtime)));
    let (work, (ramp, runtime), ballast_bytes) = match workload {
        Workload::Fio(name) => (fio(name, scale), times(20, 60), 0),
        Workload::Postmark { script, ballast_mib } => {
            (postmark(script, scale), (Duration::ZERO, None), scaled(ballast_mib << 20, scale))
        }
        Workload::Sysbench(script) => {
            let mut options = SysbenchOptions::new(script.name(), seed, script);
            let (rows, ballast_bytes) = match scale {
                Scale::Quick => (1_000_000, 2 << 30),
                Scale::Full => (40_000_000, 0),
            };
            (options.rows, options.run.connections, options.db) = (rows, 6, database(scale));
            (Work::Sysbench(options), times(20, 60), ballast_bytes)
        }
        Workload::Tpcc { clients } => {
            let mut options = TpccOptions::new("tpcc", seed, 1);
            options.scale = Warehouses::of_warehouses(scaled(14, scale) as u16);
            (options.run.connections, options.db) = (clients, database(scale));
            // Each may need 16 pages at a time.
            options.db.pool_bytes = options.db.pool_bytes.max(u64::from(clients) << 18);
            (Work::Tpcc(options), times(20, 60), 0)
        }
        Workload::Hadoop(name) => (hadoop(name, scale), times(10, 60), 0),
    };
    Load { work, ramp, runtime, ballast_bytes }
}

fn fio(name: &str, scale: Scale) -> Work {
    let text = scenario(name).replace("size=10g", &format!("size={}m", scaled(10 << 10, scale)));
    let jobs = parse_job_file_on_files(name, &text).unwrap_or_else(|error| panic!("{error}")).jobs;
    Work::Fio(jobs)
}

fn postmark(script: &str, scale: Scale) -> Work {
    let options = postmark::parse(script, scenario(script)).expect("it is a script of Postmark");
    let options = options.unwrap_or_else(|error| panic!("{error}"));
    let (files, transactions) = (scaled(options.files, scale), scaled(options.transactions, scale));
    Work::Postmark(postmark::Options { files, transactions, ..options })
}

fn hadoop(name: &str, scale: Scale) -> Work {
    let quick: &[(&str, &str)] = match name {
        "hfsio" => &[("nfiles", "25")],
        // Each of the four tasks has a spill file.
        "terasort" => &[("ninputs", "6"), ("nspills", "10"), ("noutputs", "10")],
        _ => &[("ninputs", "20"), ("noutputs", "100")],
    };
    let set = match scale {
        Scale::Quick => quick,
        Scale::Full => &[],
    };
    Work::Filebench(parse_model(name, scenario(name), set).unwrap_or_else(|error| panic!("{error}")))
}

/// MySQL 5.5 with its defaults: a pool of 128 MiB, two log files of 5 MiB, double writes, one file for all tables, fsync, the page cache.
fn database(scale: Scale) -> Config {
    Config {
        pool_bytes: scaled(128 << 20, scale),
        log_file_bytes: 5 << 20,
        log_fsync: true,
        data_io: DataIo::Buffered,
        // InnoDB's default.
        io_capacity: 200,
        ..Config::default()
    }
}

fn setup(variant: usize, workload: Workload, flash: Flash, seed: u64, scale: Scale) -> Setup {
    let (device, mode) = (card(variant, flash, scale), mode(variant));
    let Load { work, ramp, runtime, ballast_bytes } = load(workload, seed, scale);
    let segments_per_section = (VARIANTS[variant] == "F2FS-sections+PFTL").then(|| scaled(8, scale) as u32);
    Setup {
        device,
        flush: FlushMode::Flush,
        // As in `weir files`.
        block_layer: (mode.kind == Kind::Ext4).then(HostConfig::default),
        host_ftl: None,
        volume: MakeOptions {
            segments_per_section,
            overprovision: (mode.kind != Kind::Ext4).then_some(500),
            ..MakeOptions::default()
        },
        mode,
        mount: MountOptions {
            cache: CacheConfig::of_bytes(Bytes::mib(scaled(1536, scale)).0),
            costs: HostCosts::preset("server").expect("it comes with the program"),
            ..MountOptions::default()
        },
        workloads: vec![(workload.name().to_owned(), work)],
        seed,
        interval: Duration::from_millis(100),
        ramp,
        runtime,
        is_direct: false,
        is_atomic: false,
        is_cut: false,
        is_aged: true,
        ballast_bytes,
    }
}

fn run(variant: usize, workload: Workload, flash: Flash, seed: u64, scale: Scale) -> Vec<f64> {
    let result = measure(&setup(variant, workload, flash, seed, scale));
    let ended_early = result.workloads.iter().find_map(|workload| workload.ended_early.as_ref());
    assert_eq!(ended_early, None, "{} on {}", workload.name(), VARIANTS[variant]);
    metrics(&result)
}

/// One value for each of [`METRICS`]; NaN where a variant or a workload has no such thing.
fn metrics(result: &FilesResult) -> Vec<f64> {
    let count = |name: &str| result.metrics.get(name).map_or(0.0, |count| *count as f64);
    let sum = |names: &[&str]| names.iter().map(|name| count(name)).sum::<f64>();
    // The jobs of fio are workloads of their own.
    let calls: f64 = result.workloads.iter().map(|workload| workload.sum(&[]).calls as f64).sum();
    let per_s: f64 = result.workloads.iter().map(|workload| workload.calls_per_s(&workload.sum(&[]))).sum();
    let pages = sum(&["vfs.direct_written_pages", "vfs.background_written_pages", "vfs.sync_written_pages"]);
    let written = count("device.host_units_written");
    let programmed = result.totals.nand_written_bytes as f64 / 4096.0;
    let map = sum(&["alfs.entry_blocks", "alfs.timb_blocks"]);
    let moved = sum(&["f2fs.moved_data_blocks", "f2fs.moved_node_blocks", "alfs.moved_data_blocks"])
        + sum(&["alfs.moved_node_blocks", "alfs.moved_map_blocks"]);
    let us = |percentile| micros(&result.disk_writes, percentile);
    vec![
        if calls < RATE_CALLS_MIN as f64 { f64::NAN } else { per_s },
        programmed / pages,
        written / pages,
        programmed / written,
        count("device.gc_moves_after_trims") / count("device.gc_units_moved"),
        count("device.erases") * f64::from(1 << 18) / pages,
        sum(&["f2fs.moved_data_blocks", "alfs.moved_data_blocks"]) / written,
        map / written,
        count("alfs.moved_map_blocks") / moved,
        count("alfs.timb_blocks") / count("alfs.checkpoints"),
        count("device.map_misses") / sum(&["device.map_hits", "device.map_misses"]),
        count("vfs.cpu_busy_ns") / 1e3 / calls,
        us(Percentile::P50),
        us(Percentile::P99_9),
        us(Percentile::from_ppm(1_000_000)),
    ]
}

#[cfg(test)]
mod tests {
    use super::*;
    use flashweir_device::{Device, DeviceOptions};

    /// Pages that hosts see, by variant.
    fn exported(flash: Flash, scale: Scale) -> Vec<u64> {
        let units = |variant: usize| {
            let options = DeviceOptions { seed: 1, track_contents: false, planted: None };
            Device::new(card(variant, flash, scale), options).geometry().user_units
        };
        (0..VARIANTS.len()).map(units).collect()
    }

    #[test]
    fn capacities_are_equal_to_a_tenth_of_a_per_mille() {
        for scale in [Scale::Quick, Scale::Full] {
            let wanted = scaled(u64::from(SEGMENTS) * 4096, scale);
            for units in exported(Flash::EqualExported, scale) {
                assert!((wanted..=wanted + wanted / 10_000).contains(&units), "{units} for {wanted}");
            }
            let raw = exported(Flash::EqualRaw, scale);
            assert!(raw[0] < wanted && raw[VARIANTS.len() - 1] == wanted, "{raw:?}");
        }
    }

    #[test]
    fn workloads_of_the_scenarios_are_those_of_the_study() {
        for (workload, files) in [
            (TEN[2], 15_000),
            (TEN[3], 30_000),
            (Workload::Postmark { script: "postmark-l", ballast_mib: 0 }, 15_000),
        ] {
            let Work::Postmark(options) = load(workload, 1, Scale::Full).work else { panic!("a script") };
            assert_eq!((options.files, options.transactions), (files, 60_000));
        }
        for name in ["sr", "rr", "sw", "rw"] {
            let Work::Fio(jobs) = fio(name, Scale::Quick) else { panic!("jobs") };
            assert_eq!((jobs.len(), jobs[0].file_bytes), (8, 2560 << 20), "{name}");
        }
        for name in ["hfsio", "terasort", "wordcount"] {
            drop(hadoop(name, Scale::Full));
        }
        assert_eq!(TEN.len(), WRITES.names.len());
    }
}
