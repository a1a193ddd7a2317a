//! Raw jobs on a block layer: the same contents and answers as without, fewer commands where neighbours are merged, and
//! the same times where the layer decides nothing.

use crate::golden::{Job, device};
use flashweir_core::command::Handle;
use flashweir_core::{Duration, Instant, Lba, Lpn};
use flashweir_device::{Device, DeviceOptions};
use flashweir_host::{CfqConfig, DeadlineConfig, Dispatch, HostConfig, Scheduler};
use flashweir_sim::measure::MetricValue;
use flashweir_sim::request::{Kind, Request};
use flashweir_sim::workload::{Step, Workload};
use flashweir_sim::world::{JobSetup, World};

const WRITES: u64 = 1500;

/// Writes units in order, some of them again, and then reads all of them back, with a limited number in flight.
#[derive(Debug)]
struct Sequential {
    unit_blocks: u64,
    depth: u32,
    open: u32,
    next: u64,
}

impl Workload for Sequential {
    fn poll(&mut self, now: Instant) -> Step {
        let turns = self.next == WRITES && self.open > 0;
        if self.next == 2 * WRITES {
            return Step::Done;
        } else if self.open == self.depth || turns {
            return Step::Blocked;
        }
        let (at, kind) = match self.next.checked_sub(WRITES) {
            None => (self.next, Kind::Write),
            Some(at) => (at, Kind::Read),
        };
        // Each tenth write goes back to an earlier unit.
        let unit = if at % 10 == 9 { at - 5 } else { at };
        (self.next, self.open) = (self.next + 1, self.open + 1);
        Step::Submit(Request {
            kind,
            lba: Lba(unit * self.unit_blocks),
            blocks: self.unit_blocks as u32,
            source: Lba(0),
            fua: false,
            handle: Handle(0),
            intended: now,
            token: u32::from(kind == Kind::Read),
        })
    }

    fn completed(&mut self, _: Instant, _: u32) {
        self.open -= 1;
    }

    fn verifies(&self) -> bool {
        true
    }

    fn is_verification(&self, token: u32) -> bool {
        token == 1
    }
}

fn world(device: Device, jobs: Vec<JobSetup>, host: Option<&HostConfig>) -> World {
    let interval = Duration::from_millis(10);
    let mut world = match host {
        Some(host) => World::with_block_layer(device, jobs, interval, host.clone()),
        None => World::new(device, jobs, interval),
    };
    assert!(world.run(|_| true));
    assert_eq!(world.errors(), (0, None), "{host:?}");
    world
}

fn schedulers() -> [Scheduler; 3] {
    let (deadline, cfq) = (DeadlineConfig::default(), CfqConfig::default());
    [Scheduler::None, Scheduler::Deadline(deadline), Scheduler::Cfq(cfq)]
}

#[test]
fn a_sequential_job_has_the_same_contents_and_fewer_commands() {
    for name in ["sata-mlc", "mqsim-default"] {
        let job = |device: &Device| {
            let unit_blocks = device.geometry().lbas_per_unit;
            vec![JobSetup::new("job", Sequential { unit_blocks, depth: 64, open: 0, next: 0 })]
        };
        let on = |device: Device, host: Option<&HostConfig>| {
            let jobs = job(&device);
            let world = world(device, jobs, host);
            let layer = world.block_layer().map(|layer| *layer.metrics());
            let (result, device) = world.finish(name, "sequential", 1);
            let contents: Vec<_> = (0..WRITES).map(|unit| device.peek(Lpn(unit))).collect();
            (result, contents, layer)
        };
        let (_, contents, _) = on(device(name), None);
        assert_eq!(contents.iter().flatten().count() as u64, WRITES - WRITES / 10);
        for scheduler in schedulers() {
            for depth in [1, 4, 32] {
                let host = HostConfig { scheduler, depth, ..HostConfig::default() };
                let (with, seen, layer) = on(device(name), Some(&host));
                let layer = layer.unwrap();
                assert!(seen == contents, "{name}, {host:?}");
                assert_eq!((layer.submitted, layer.completed), (2 * WRITES, 2 * WRITES));
                // The deeper the device's queue, the fewer requests wait for a neighbour.
                let most = if depth < 32 { WRITES / 2 } else { 4 * WRITES / 3 };
                assert!(layer.dispatched < most, "{name}, {host:?}: {layer:?}");
                assert_eq!(layer.dispatched + layer.back_merges + layer.front_merges, 2 * WRITES);
                assert_eq!(
                    with.metrics["block_layer.dispatched"],
                    MetricValue::Count(layer.dispatched),
                    "it stands in the results"
                );
                assert_eq!(on(device(name), Some(&host)).0, with, "a run is a function of its configuration");
            }
        }
    }
}

/// Where contents are not tracked, writes are merged as well.
#[test]
fn writes_are_merged_without_contents_too() {
    let config = device("sata-mlc").config().clone();
    let device = Device::new(config, DeviceOptions { seed: 1, track_contents: false, planted: None });
    let unit_blocks = device.geometry().lbas_per_unit;
    let jobs = vec![JobSetup::new("job", Sequential { unit_blocks, depth: 64, open: 0, next: 0 })];
    let world = world(device, jobs, Some(&HostConfig::default()));
    let metrics = *world.block_layer().unwrap().metrics();
    assert!(metrics.dispatched < 4 * WRITES / 3, "{metrics:?}");
}

/// On a device with one queue. These jobs submit nothing at an instant at which the device has an event, too: a layer's requests come behind
/// it, and those of raw jobs may come before.
#[test]
fn a_block_layer_that_decides_nothing_moves_no_instant() {
    let plain = HostConfig { merge_blocks_max: 0, depth: 65_536, ..HostConfig::default() };
    for (name, first) in
        [("sata-mlc", 0), ("sata-mlc", 30), ("mobile-ufs", 3), ("mobile-ufs", 10), ("mobile-ufs", 30)]
    {
        let run = |host: Option<&HostConfig>| {
            let device = device(name);
            let jobs = (0..3)
                .map(|number| JobSetup::new("job", Job::new(&device, first + number, 24 >> number, false)))
                .collect();
            let world = world(device, jobs, host);
            (world.trace_hash(), world.requests(), world.device().metrics().list())
        };
        assert_eq!(run(Some(&plain)), run(None), "{name}, {first}");
    }
}

#[test]
fn several_jobs_fill_several_queues() {
    for scheduler in schedulers() {
        let dispatch = Dispatch::MultiQueue;
        let host = HostConfig { scheduler, dispatch, queues: 3, depth: 4, ..HostConfig::default() };
        let device = device("consumer-tlc-nvme");
        let jobs = (0..4).map(|number| JobSetup::new("job", Job::new(&device, number, 16, false))).collect();
        let world = world(device, jobs, Some(&host));
        let metrics = *world.block_layer().unwrap().metrics();
        assert_eq!((metrics.submitted, metrics.completed), (4 * 1200, 4 * 1200));
        assert!(metrics.busy > 0, "{metrics:?}");
    }
}

#[test]
#[should_panic(expected = "block_layer.queues = 2, block_layer.depth = 64: expected at most 1 queues of 32")]
fn more_queues_than_the_link_has_are_refused() {
    let dispatch = Dispatch::MultiQueue;
    let host = HostConfig { dispatch, queues: 2, depth: 64, ..HostConfig::default() };
    world(device("sata-mlc"), Vec::new(), Some(&host));
}
