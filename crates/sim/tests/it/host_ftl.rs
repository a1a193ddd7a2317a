//! Raw jobs above a host FTL: what they write is what they read, each through a ring of its own, and what the FTL counts is in the results.

use flashweir_core::command::Handle;
use flashweir_core::{Duration, Instant, Lba};
use flashweir_device::config::{ChunkSpan, DeviceConfig};
use flashweir_device::presets::preset;
use flashweir_device::{Device, DeviceOptions};
use flashweir_host::{BlockLayer, HostConfig, HostFtlConfig};
use flashweir_sim::host_ftl::{Disk, capacity_lbas, check_host_ftl};
use flashweir_sim::measure::{MetricValue, RunResult};
use flashweir_sim::precondition::{Mode, Precondition};
use flashweir_sim::request::{Kind, Request};
use flashweir_sim::workload::{Step, Workload};
use flashweir_sim::world::{JobSetup, World};

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
        let is_there = |unit| above.find(flashweir_core::Lpn(unit)).is_some();
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
    assert_eq!(
        of(|config| *config = preset("ocssd-2.0").unwrap()),
        "open.cached_units = 64: expected 0 below a host FTL, which does not serve the last units of an open chunk itself; or \
         open.version = \"1.2\", whose device does"
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
