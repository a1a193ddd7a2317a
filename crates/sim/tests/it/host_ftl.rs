//! Raw jobs above a host FTL: what they write is what they read, each through a ring of its own, and what the FTL counts is in the results.

use flashweir_core::command::{Handle, pattern};
use flashweir_core::{Data, Duration, Instant, Lba, Lpn, Op, Payload};
use flashweir_device::config::{ChunkSpan, DeviceConfig};
use flashweir_device::presets::preset;
use flashweir_device::{Device, DeviceOptions, Recovery, Torn};
use flashweir_fs::port::{Block, BlockPort as _, Write};
use flashweir_fs::vfs::{Creds, MountOptions, OpenFlags, Sink, Source, SyncKind, Vfs};
use flashweir_host::{BlockLayer, HostConfig, HostFtlConfig};
use flashweir_sim::host_ftl::{Disk, capacity_lbas, check_host_ftl};
use flashweir_sim::live::{Live, Tear};
use flashweir_sim::measure::{MetricValue, RunResult};
use flashweir_sim::precondition::{Mode, Precondition};
use flashweir_sim::request::{Kind, Request};
use flashweir_sim::stack::{FlushMode, Stack};
use flashweir_sim::volume::{MakeOptions, make, mount_on};
use flashweir_sim::workload::{Step, Workload};
use flashweir_sim::world::{JobSetup, World};
use std::rc::Rc;

/// Sectors of a mapping unit.
const UNIT: u64 = 8;
const ROUNDS: u64 = 600;

/// Writes its own units again and again, deallocates and zeroes some that it leaves alone afterwards, flushes, and reads all back at the end.
#[derive(Debug)]
struct Mixed {
    first: u64,
    units: u64,
    next: u64,
    in_flight: u32,
}

impl Workload for Mixed {
    fn poll(&mut self, now: Instant) -> Step {
        // What is read back was written before.
        let depth = if self.next < ROUNDS { 16 } else { 1 };
        if self.in_flight >= depth {
            return Step::Blocked;
        }
        if self.next == ROUNDS + self.units {
            return Step::Done;
        }
        let nth = self.next;
        self.next += 1;
        self.in_flight += 1;
        let own = self.first + nth * 7 % self.units;
        let beside = self.first + self.units + nth % 8;
        let (kind, unit, fua) = match nth {
            _ if nth >= ROUNDS => (Kind::Read, self.first + nth - ROUNDS, false),
            _ if nth % 50 == 49 => (Kind::Flush, 0, false),
            _ if nth % 50 == 48 => (Kind::Trim, beside, false),
            _ if nth % 50 == 47 => (Kind::WriteZeroes, beside, false),
            _ => (Kind::Write, own, nth % 10 == 3),
        };
        Step::Submit(Request {
            kind,
            lba: Lba(unit * UNIT),
            blocks: if kind == Kind::Flush { 0 } else { UNIT as u32 },
            source: Lba(0),
            fua,
            handle: Handle(0),
            intended: now,
            token: u32::from(kind == Kind::Read),
        })
    }

    fn completed(&mut self, _: Instant, _: u32) {
        self.in_flight -= 1;
    }

    fn verifies(&self) -> bool {
        true
    }

    fn is_verification(&self, token: u32) -> bool {
        token == 1
    }
}

/// The medium of QBLKe with two channels and short blocks.
fn small(chunk: ChunkSpan) -> DeviceConfig {
    let mut config = preset("qblke").unwrap();
    (config.geometry.channels, config.geometry.pages_per_block) = (2, 16);
    config.open.chunk = chunk;
    if chunk == ChunkSpan::Plane {
        config.open.write_pages = 1;
        config.open.write_best_pages = 0;
    }
    config.validate().unwrap();
    config
}

fn all() -> impl Iterator<Item = (DeviceConfig, HostFtlConfig)> {
    [ChunkSpan::Die, ChunkSpan::Plane].into_iter().flat_map(|chunk| {
        let ftls = [HostFtlConfig::pblk(), HostFtlConfig::qblke(3)];
        ftls.map(|ftl| (small(chunk), HostFtlConfig { queues: 0, ..ftl }))
    })
}

fn disk(config: &DeviceConfig, ftl: &HostFtlConfig, track_contents: bool) -> Disk {
    let options = DeviceOptions { seed: 1, track_contents, planted: None };
    Disk::new(Device::new(config.clone(), options), Some(ftl))
}

fn mixed(disk: Disk, block_layer: Option<HostConfig>) -> World {
    let job = |number: u64| {
        let workload = Mixed { first: number * 500, units: 90, next: 0, in_flight: 0 };
        JobSetup::new(format!("job {number}"), workload)
    };
    let mut world = World::above(disk, block_layer, (0..3).map(job).collect(), Duration::from_millis(10));
    world.keep_course();
    assert!(world.run(|_| true));
    assert_eq!(world.errors(), (0, None));
    world
}

fn counted(result: &RunResult, name: &str) -> u64 {
    match result.metrics[&format!("host_ftl.{name}")] {
        MetricValue::Count(count) => count,
        MetricValue::Ratio(_) => panic!("{name} is a ratio"),
    }
}

#[test]
fn jobs_read_what_they_wrote_and_runs_repeat() {
    let layer = HostConfig { depth: 8, ..HostConfig::default() };
    for (config, ftl) in all() {
        for block_layer in [None, Some(layer.clone())] {
            let run = || {
                let world = mixed(disk(&config, &ftl, true), block_layer.clone());
                let merges = |layer: &BlockLayer| layer.metrics().back_merges + layer.metrics().front_merges;
                let merged = world.block_layer().map_or(0, merges);
                (world.finish("small", "mixed", 1).0, merged)
            };
            let (result, merged) = run();
            assert_eq!(run().0, result, "a run is a function of its configuration");
            assert_eq!(merged > 0, block_layer.is_some(), "writes of neighbours wait in it");
            let of_each = 3 * ROUNDS / 50;
            assert_eq!(counted(&result, "flushes"), of_each);
            assert_eq!(counted(&result, "user_units"), 3 * ROUNDS - 2 * of_each);
            let requests = ["writes", "trims", "reads"].map(|name| counted(&result, name));
            assert_eq!(requests.iter().sum::<u64>() + merged, 3 * (ROUNDS + 90) - of_each);
            assert_eq!(result.totals.flushes, of_each);
            assert_eq!(result.totals.host_written_bytes, (3 * ROUNDS - 2 * of_each) * 4096);
            let programmed = counted(&result, "programmed_units");
            let waf = programmed as f64 / counted(&result, "user_units") as f64;
            assert_eq!(result.metrics["host_ftl.waf"], MetricValue::Ratio(waf));
            assert!(waf > 1.0, "padding and metadata are written too");
            // The columns of the course add up to what the whole run counts, to its very end.
            let course = result.course.as_ref().unwrap();
            assert_eq!(course.host_units.iter().sum::<u64>(), counted(&result, "user_units"));
            let parts = [&course.user_units, &course.gc_units, &course.filler_units, &course.meta_units];
            let names = ["user_programmed_units", "gc_units", "padded_units", "meta_units"];
            let parts = parts.map(|units| units.iter().sum::<u64>());
            assert_eq!(parts, names.map(|name| counted(&result, name)));
            assert_eq!(parts.iter().sum::<u64>(), programmed);
        }
    }
}

/// The submitter of a request chooses its ring, also through a block layer.
#[test]
fn each_job_has_a_ring() {
    let (config, ftl) = (small(ChunkSpan::Die), HostFtlConfig::qblke(3));
    for block_layer in [None, Some(HostConfig::default())] {
        let world = mixed(disk(&config, &ftl, true), block_layer);
        let described = world.host_ftl().unwrap().describe();
        let rings = described.split("rings ").nth(1).unwrap().split(';').next().unwrap();
        let filled: Vec<u64> =
            rings.split(' ').map(|ring| ring.split(['/', '+']).nth(3).unwrap().parse().unwrap()).collect();
        // Each job fills as many entries; a full ring sends some to another.
        assert!(filled.len() == 3 && filled.iter().all(|&entries| entries > 400), "{described}");
    }
}

#[test]
fn the_capacity_is_that_of_the_ftl() {
    for (config, ftl) in all() {
        let layout = check_host_ftl(&ftl, &config).unwrap();
        let capacity = capacity_lbas(&config, Some(&ftl)).unwrap();
        assert_eq!(capacity, layout.user_units * UNIT);
        let physical = capacity_lbas(&config, None).unwrap();
        let share = capacity as f64 / physical as f64;
        assert!((0.8..0.9).contains(&share), "11 % and metadata of {physical} sectors: {capacity}");
    }
}

/// A disk that was filled and written over is at rest, reads what was written last, and its GC has to move units for more.
#[test]
fn a_state_is_made_through_the_ftl() {
    for (config, ftl) in all() {
        let state =
            Precondition { mode: Mode::Instant, fill: 0.9, overwrite: 0.5, ..Precondition::default() };
        let (disk, finished) = state.apply_to(disk(&config, &ftl, true), 7, |_| true);
        assert!(finished);
        let above = disk.host_ftl.as_ref().unwrap();
        assert!(above.is_at_rest(), "{}", above.describe());
        above.audit();
        let units = above.layout().user_units;
        let filled = (units as f64 * 0.9) as u64;
        assert_eq!(above.metrics().user_units, filled + (filled as f64 * 0.5) as u64);
        let is_there = |unit| above.find(Lpn(unit)).is_some();
        assert!((0..filled).all(is_there) && !(filled..units).any(is_there));
        let world = mixed(disk, None);
        let result = world.finish("small", "mixed", 1).0;
        // What was written before the run does not count.
        assert_eq!(counted(&result, "writes"), 3 * (ROUNDS - 2 * ROUNDS / 50));
        assert!(counted(&result, "gc_units") > 0 && counted(&result, "freed_units") > 0, "{result:?}");
        let moves = counted(&result, "gc_units") as f64 / counted(&result, "freed_units") as f64;
        assert_eq!(result.metrics["host_ftl.moves_per_freed_unit"], MetricValue::Ratio(moves));
        assert_eq!(result.totals.gc_units_moved, counted(&result, "gc_units"));
    }
}

#[test]
fn what_does_not_fit_is_refused_in_one_sentence() {
    let ftl = HostFtlConfig::qblke(3);
    let of = |change: fn(&mut DeviceConfig)| {
        let mut config = small(ChunkSpan::Die);
        change(&mut config);
        check_host_ftl(&ftl, &config).unwrap_err()
    };
    assert_eq!(
        of(|config| *config = preset("sata-mlc").unwrap()),
        "host_ftl: expected none above sata-mlc, which has an FTL of its own: a host FTL needs an open channel, as `qblke` has"
    );
    assert!(check_host_ftl(&ftl, &preset("ocssd-2.0").unwrap()).is_ok());
    assert_eq!(
        of(|config| {
            *config = preset("ocssd-2.0").unwrap();
            config.open.cached_units = 65;
        }),
        "open.cached_units = 65: expected at most 64 below a host FTL, in whole write units"
    );
    assert_eq!(
        of(|config| config.geometry.blocks_per_plane = 16),
        "host_ftl.over_provisioning = 0.11: expected at least 0.188 here, 3 of 16 lines"
    );
    let config = small(ChunkSpan::Die);
    let rings = check_host_ftl(&HostFtlConfig { rings: 0, ..ftl.clone() }, &config).unwrap_err();
    assert_eq!(rings, "host_ftl.rings = 0: expected 1 to 128");
    let queues = check_host_ftl(&HostFtlConfig { queues: 65, ..ftl }, &config).unwrap_err();
    assert_eq!(queues, "host_ftl.queues = 65: expected at most 64, as the link has, or 0 for all of them");
}

/// What was synced in files is there after a power cut of the whole stack, host FTL included, and the volume is consistent.
#[test]
fn synced_files_survive_cuts_above_a_host_ftl() {
    const FILES: u8 = 12;
    let name = |file: u8| format!("/file-{file}");
    let layer = Some(HostConfig::default());
    for (kind, block_layer) in [
        (flashweir_fs::Kind::F2fs, None),
        (flashweir_fs::Kind::F2fs, layer.clone()),
        (flashweir_fs::Kind::Ext4, layer),
    ] {
        for (config, ftl) in all() {
            let mut config = config;
            config.geometry.pages_per_block = 32;
            for seed in 0..2 {
                let options = DeviceOptions { seed, track_contents: true, planted: None };
                let below = Disk::new(Device::new(config.clone(), options), Some(&ftl));
                let mut first = Stack::above(below, FlushMode::Flush, block_layer.clone());
                assert_eq!(
                    first.port().capacity_blocks() * UNIT,
                    capacity_lbas(&config, Some(&ftl)).unwrap()
                );
                let (port, handle) = (first.port(), first.handle());
                let synced = first.block_on(async move {
                    let fs =
                        make(port, FlushMode::Flush, &flashweir_fs::Mode::from(kind), MakeOptions::default())
                            .await
                            .unwrap();
                    let vfs = Vfs::mount(fs, handle, MountOptions::default()).unwrap();
                    let process = vfs.process(Creds::ROOT);
                    for file in 0..FILES {
                        let flags = OpenFlags::READ_WRITE.create();
                        let open = process.open(name(file), flags, 0o644).await.unwrap();
                        open.pwrite(0, Source::bytes(&[1 + file; 10_000])).await.unwrap();
                        // The last files are written and not synced.
                        if file < FILES - 3 {
                            open.sync(SyncKind::All).await.unwrap();
                        }
                        open.close().await.unwrap();
                    }
                });
                assert_eq!(synced, Some(()));
                let (mut second, _) = first.cut(options, Tear::Drawn(seed));
                let checked = Rc::new(second.port());
                let report = second.block_on(async move { kind.check(checked).await.unwrap() }).unwrap();
                assert!(report.problems.is_empty(), "{kind:?}, seed {seed}: {:?}", report.problems);
                let (port, handle) = (second.port(), second.handle());
                let read = second.block_on(async move {
                    let fs = mount_on(Rc::new(port), FlushMode::Flush, &flashweir_fs::Mode::from(kind))
                        .await
                        .unwrap();
                    let vfs = Vfs::mount(fs, handle, MountOptions::default()).unwrap();
                    let process = vfs.process(Creds::ROOT);
                    for file in 0..FILES - 3 {
                        let open = process.open(name(file), OpenFlags::READ, 0).await.unwrap();
                        let mut bytes = vec![0; 10_001];
                        let read = open.pread(0, Sink::bytes(&mut bytes)).await.unwrap();
                        assert_eq!((read, &bytes[..10_000]), (10_000, &[1 + file; 10_000][..]));
                    }
                });
                assert_eq!(read, Some(()), "{kind:?}, seed {seed}");
            }
        }
    }
}

/// A live engine: commands of several submitters are answered, a flush covers all of them, and what it covered is there after a power cut and
/// after a stop.
#[test]
fn a_live_disk_keeps_what_was_flushed() {
    for (config, ftl) in all() {
        for seed in 0..3 {
            let options = DeviceOptions { seed, track_contents: true, planted: None };
            let mut live = Live::above(Disk::new(Device::new(config.clone(), options), Some(&ftl)));
            let mut finished = Vec::new();
            for round in 0..4u64 {
                for unit in 0..200 {
                    let op = Op::Write {
                        lba: Lba(unit * UNIT),
                        blocks: UNIT as u32,
                        data: Data::Pattern(1 + round),
                    };
                    // More submitters than rings.
                    live.submit(live.now(), unit as u16 % 7, op, false, unit, &mut finished);
                }
                while live.in_flight() > 0 && live.step(&mut finished) {}
            }
            live.submit(live.now(), 3, Op::Flush, false, 1_000, &mut finished);
            while live.in_flight() > 0 && live.step(&mut finished) {}
            assert_eq!(finished.len(), 801);
            assert!(
                finished.iter().all(|finished| finished.result.is_ok() && finished.submitted <= finished.at)
            );
            // Not flushed: it may be there or not.
            let op = Op::Write { lba: Lba(0), blocks: UNIT as u32, data: Data::Pattern(9) };
            live.submit(live.now(), 0, op, false, 0, &mut finished);
            let check = |live: &Live, least: u64| {
                for unit in least..200 {
                    let expected = Payload::Tag(pattern(4, Lpn(unit)));
                    assert_eq!(live.peek(Lpn(unit)), Some(expected), "unit {unit}, seed {seed}");
                }
                assert!((200..300).all(|unit| !live.is_mapped(Lpn(unit))));
            };
            let (mut live, report) = live.cut(Instant::ZERO, options, Tear::Drawn(seed));
            check(&live, 1);
            assert!(
                report.units >= 200 && report.time > Duration::ZERO && report.pages_read > 0,
                "{report:?}"
            );
            live.submit(live.now(), 5, Op::Trim { lba: Lba(0), blocks: 8 }, false, 0, &mut finished);
            let device = live.shut_down();
            let media = device.cut(Instant::from_nanos(u64::MAX >> 1), |_| Torn::Damaged);
            let (device, _) = Recovery::begin(&config, options, media).finish();
            let live = Live::above(Disk::recover(device, Some(&ftl)));
            assert!(!live.is_mapped(Lpn(0)), "a stop makes a deallocation durable");
            check(&live, 1);
            live.host_ftl().unwrap().audit();
        }
    }
}

/// A clean end writes out what waits in rings: nobody above may have flushed it.
#[test]
fn regression_a_clean_end_of_a_stack_empties_the_rings() {
    for (config, ftl) in all() {
        for block_layer in [None, Some(HostConfig::default())] {
            let mut stack = Stack::above(disk(&config, &ftl, true), FlushMode::NoFlush, block_layer.clone());
            // The device has no events meanwhile.
            assert!(stack.advance(Instant::from_nanos(1_000_000_000), u32::MAX));
            let port = stack.port();
            let written = stack.block_on(async move {
                let payload = Payload::Bytes(vec![7; 4096].into());
                port.write(Write::new(Block(5), vec![payload])).completed().await.map(drop)
            });
            assert_eq!(written, Some(Ok(())));
            let options = DeviceOptions { seed: 1, track_contents: true, planted: None };
            let media = stack.shut_down().cut(Instant::from_nanos(u64::MAX >> 1), |_| Torn::Damaged);
            let (device, _) = Recovery::begin(&config, options, media).finish();
            let live = Live::above(Disk::recover(device, Some(&ftl)));
            assert_eq!(live.peek(Lpn(5)), Some(Payload::Bytes(vec![7; 4096].into())), "{block_layer:?}");
        }
    }
}
