//! Golden records: what jobs, servers and file systems observe of a device, compared with the stored records.
//!
//! Each run is one line of `tests/golden/records.txt`: the hash over all events and their times, the number of events,
//! the end time, and a digest of the measurements or answers. The raw jobs submit more than the link has room for, and
//! several share a queue, so the records also show the order of waiting requests.
//!
//! Invariant: a record is a function of the code alone. A change that is meant to alter one says so, and records anew:
//!
//! ```text
//! FLASHWEIR_GOLDEN=record cargo test -p flashweir-sim golden
//! ```

use flashweir_core::command::Handle;
use flashweir_core::command::{StreamId, Tag};
use flashweir_core::random::{RandomStream, mix};
use flashweir_core::{Bytes, Data, Duration, Instant, Lba, LinkConfig, Op, Order, Payload};
use flashweir_device::config::{Metadata, PersistPolicy};
use flashweir_device::presets::preset;
use flashweir_device::{Device, DeviceOptions};
use flashweir_fs::port::{Block, BlockPort, Selection, Write};
use flashweir_host::{CfqConfig, DeadlineConfig, Dispatch, Epochs, HostConfig, Scheduler, Wait};
use flashweir_sim::live::{Live, Tear};
use flashweir_sim::request::{Kind, Request};
use flashweir_sim::stack::{FlushMode, Stack};
use flashweir_sim::timeline::{Ledger, Timeline};
use flashweir_sim::workload::{Step, Workload};
use flashweir_sim::world::{JobSetup, World};
use std::collections::BTreeMap;
use std::fmt::Write as _;

const RECORDS: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/golden/records.txt");
pub(crate) const OPTIONS: DeviceOptions = DeviceOptions { seed: 1, track_contents: true, planted: None };

pub(crate) fn device(name: &str) -> Device {
    let mut config = preset(name).unwrap();
    config.geometry.channels = 2;
    config.geometry.chips_per_channel = 2;
    config.geometry.blocks_per_plane = 64;
    config.ftl.over_provisioning = 0.3;
    config.ftl.metadata = Metadata::Log;
    config.buffer.capacity = Bytes::mib(1);
    config.validate().unwrap();
    Device::new(config, OPTIONS)
}

pub(crate) fn digest(text: &str) -> u64 {
    text.bytes().fold(0, |hash, byte| mix(hash ^ u64::from(byte)))
}

/// Issues requests of all kinds, as many at a time as the job may have.
#[derive(Debug)]
pub(crate) struct Job {
    random: RandomStream,
    left: u64,
    depth: u32,
    open: u32,
    units: u64,
    unit_blocks: u64,
    /// Shortest time between two requests.
    pace: Duration,
    next: Instant,
    /// Whether it writes its units in order and then reads all of them back.
    verifies: bool,
    written: u64,
}

impl Job {
    pub(crate) fn new(device: &Device, number: u32, depth: u32, verifies: bool) -> Self {
        let unit_blocks = device.geometry().lbas_per_unit;
        Self {
            random: RandomStream::new(u64::from(number), "golden job"),
            left: 1200,
            depth,
            open: 0,
            units: device.geometry().capacity_lbas() / unit_blocks,
            unit_blocks,
            pace: Duration::from_micros(if number == 2 { 37 } else { 0 }),
            next: Instant::ZERO,
            verifies,
            written: 0,
        }
    }

    fn request(&mut self, now: Instant) -> Request {
        let total = self.left + self.written;
        let (kind, unit, units) = match self.random.below(16) {
            _ if self.verifies && self.written < total / 2 => (Kind::Write, self.written, 1),
            _ if self.verifies => (Kind::Read, self.written - total / 2, 1),
            drawn => {
                let kind = match drawn {
                    0..7 => Kind::Read,
                    7..13 => Kind::Write,
                    13 => Kind::Trim,
                    14 => Kind::WriteZeroes,
                    _ => Kind::Flush,
                };
                let (unit, units) = (self.random.below(self.units - 4), 1 + self.random.below(3));
                if kind == Kind::Flush { (kind, 0, 0) } else { (kind, unit, units) }
            }
        };
        let fua = kind == Kind::Write && !self.verifies && self.random.chance(0.1);
        Request {
            kind,
            lba: Lba(unit * self.unit_blocks),
            blocks: (units * self.unit_blocks) as u32,
            source: Lba(0),
            fua,
            handle: Handle(0),
            intended: now,
            token: u32::from(kind == Kind::Read),
        }
    }
}

impl Workload for Job {
    fn poll(&mut self, now: Instant) -> Step {
        let turns_back = self.verifies && self.left == self.written && self.open > 0;
        if self.left == 0 {
            Step::Done
        } else if self.open == self.depth || turns_back {
            Step::Blocked
        } else if now < self.next {
            Step::Wait(self.next)
        } else {
            let request = self.request(now);
            (self.left, self.written, self.open) = (self.left - 1, self.written + 1, self.open + 1);
            self.next = now + self.pace;
            Step::Submit(request)
        }
    }

    fn completed(&mut self, _: Instant, _: u32) {
        self.open -= 1;
    }

    fn verifies(&self) -> bool {
        self.verifies
    }

    fn is_verification(&self, token: u32) -> bool {
        token == 1
    }
}

/// Five jobs: two without pauses, one with pauses, one that reads back what it wrote while others write there, too (so
/// that its findings are a record of contents), and one that begins when these have ended.
fn world(name: &str, link: Option<LinkConfig>, depth: u32, traced: bool) -> String {
    let mut device = device(name);
    if let Some(link) = link {
        let mut config = device.config().clone();
        config.link = link;
        device = Device::new(config, OPTIONS);
    }
    let setup = |number: u32| JobSetup {
        name: format!("job {number}"),
        options: BTreeMap::new(),
        workload: Box::new(Job::new(&device, number, depth >> number, number == 3)),
        group: u32::from(number == 4),
        ramp: Duration::from_millis(u64::from(number == 1) * 5),
        report_group: number / 2,
        stats: number != 2,
    };
    let jobs = (0..5).map(setup).collect();
    let mut world = World::new(device, jobs, Duration::from_millis(10));
    if traced {
        world.trace(|device| Timeline::new(device, None, Some(Ledger::new(None, None))));
    }
    world.keep_course();
    assert!(world.run(|_| true));
    let findings = digest(&format!("{:?}", world.end_trace().map(|findings| findings.ledger)));
    let (hash, moments, requests) = (world.trace_hash(), world.moments(), world.requests());
    let errors = format!("{:?}", world.errors());
    let (result, _) = world.finish("device", "golden", 1);
    let measured = digest(&serde_json::to_string(&result).unwrap());
    format!(
        "hash {hash:016x} moments {moments} requests {requests} end {} measured {measured:016x} \
         findings {findings:016x} errors {errors}",
        result.virtual_time_ns
    )
}

/// Bursts of commands from outside, a cut, and further bursts.
fn live(name: &str, traced: bool) -> String {
    let device = device(name);
    let unit_blocks = device.geometry().lbas_per_unit;
    let units = device.geometry().capacity_lbas() / unit_blocks;
    let mut random = RandomStream::new(7, "golden live");
    let mut live = Live::new(device);
    let mut finished = Vec::new();
    let mut findings = 0;
    let mut text = String::new();
    for round in 0..2 {
        if traced {
            live.trace(|device| Timeline::new(device, None, Some(Ledger::new(None, None))));
        }
        for number in 0..2500 {
            let lba = Lba(random.below(units - 4) * unit_blocks);
            let blocks = ((1 + random.below(3)) * unit_blocks) as u32;
            let op = match random.below(16) {
                0..7 => Op::Read { lba, blocks },
                7..14 => Op::Write { lba, blocks, data: Data::Pattern(number) },
                14 => Op::Trim { lba, blocks },
                _ => Op::Flush,
            };
            let pause = if number % 64 == 0 { random.below(5_000_000) } else { random.below(900) };
            let at = live.now() + Duration::from_nanos(pause);
            live.submit(at, random.below(7) as u16, op, random.chance(0.05), number, &mut finished);
        }
        let now = live.now();
        if traced {
            while live.in_flight() > 0 && live.step(&mut finished) {}
            findings = digest(&format!("{:?}", live.end_trace().map(|findings| findings.ledger)));
        }
        let answers = finished.drain(..).fold(0, |hash, done| mix(hash ^ digest(&format!("{done:?}"))));
        write!(
            text,
            "hash {:016x} end {} answers {answers:016x} findings {findings:016x} ",
            live.trace_hash(),
            now.as_nanos()
        )
        .unwrap();
        if round == 0 {
            (live, _) = live.cut(now, OPTIONS, Tear::Drawn(3));
        }
    }
    text.truncate(text.trim_end().len());
    text
}

/// Tasks that write, in order or not, read, discard and flush; power fails in the middle, and they start again.
fn stack(name: &str, queues: u16, host: Option<HostConfig>) -> String {
    let mut config = device(name).config().clone();
    config.link.queues = queues;
    if name == "barrier-ufs" {
        config.order.policy = PersistPolicy::InOrderRecovery;
    }
    let device = Device::new(config, OPTIONS);
    let is_ordered = host.is_some() || name == "barrier-ufs";
    let mut stack = match host {
        Some(host) => Stack::with_block_layer(device, FlushMode::RangeFlush, host),
        None => Stack::new(device, FlushMode::RangeFlush),
    };
    let mut text = String::new();
    for round in 0..2u64 {
        for task in 0..6u16 {
            let (port, handle) = (stack.port_of(task), stack.handle());
            let mut random = RandomStream::new(round * 100 + u64::from(task), "golden task");
            stack.spawn(async move {
                for number in 0..60u64 {
                    let block = u64::from(task) * 200 + random.below(60);
                    let order = (is_ordered && random.chance(0.5)).then(|| {
                        let ends = if random.chance(0.3) { Order::Barrier } else { Order::Within };
                        (StreamId(task / 2), ends)
                    });
                    let payloads = vec![Payload::Tag(number + 1); 1 + random.below(3) as usize];
                    let write = Write { order, tags: [Tag(1), Tag(0)], ..Write::new(Block(block), payloads) };
                    let ticket = port.write(write);
                    match random.below(10) {
                        0 => ticket.dispatched().await,
                        1 => ticket.transferred().await,
                        2..6 => drop(ticket.completed().await),
                        _ => drop(ticket),
                    }
                    match random.below(12) {
                        0 => drop(port.flush().completed().await),
                        1 => {
                            let tags = vec![Tag(1)];
                            let selection = Selection { ranges: Vec::new(), tags };
                            drop(port.range_flush(selection).completed().await);
                        }
                        2 => drop(port.read(Block(block), 4).completed().await),
                        3 => drop(port.discard(Block(block), 2)),
                        4 if is_ordered => drop(port.barrier(StreamId(task / 2)).completed().await),
                        5 => {
                            let pause = Duration::from_nanos(random.below(300_000));
                            handle.sleep_until(handle.now() + pause).await;
                        }
                        _ => {}
                    }
                }
            });
        }
        let mut turns = 0;
        while (round == 1 || turns < 900) && stack.turn() {
            turns += 1;
        }
        let metrics = stack.with_layer(|layer| format!("{:?}", layer.metrics()));
        write!(
            text,
            "hash {:016x} turns {turns} end {} layer {:016x} ",
            stack.trace_hash(),
            stack.now().as_nanos(),
            digest(&format!("{metrics:?}"))
        )
        .unwrap();
        if round == 0 {
            (stack, _) = stack.cut(OPTIONS, Tear::Drawn(5));
        }
    }
    text.truncate(text.trim_end().len());
    text
}

fn records() -> String {
    let mut lines = Vec::new();
    let ideal = |queues, queue_depth| LinkConfig { queues, queue_depth, ..LinkConfig::ideal() };
    for name in ["sata-mlc", "mobile-ufs", "consumer-tlc-nvme", "mqsim-default", "rflush"] {
        lines.push(format!("world {name}: {}", world(name, None, 64, false)));
        lines.push(format!("world {name} traced: {}", world(name, None, 32, true)));
        lines.push(format!("live {name}: {}", live(name, name == "sata-mlc")));
        lines.push(format!("stack {name}: {}", stack(name, 1, None)));
    }
    lines.push(format!("world ideal link: {}", world("sata-mlc", Some(ideal(2, 3)), 64, false)));
    let nvme = LinkConfig { queues: 3, queue_depth: 5, ..LinkConfig::nvme() };
    lines.push(format!("world shallow link: {}", world("consumer-tlc-nvme", Some(nvme), 64, false)));
    lines.push(format!("stack barriers: {}", stack("barrier-ufs", 1, None)));
    let schedulers = [
        Scheduler::None,
        Scheduler::Deadline(DeadlineConfig::default()),
        Scheduler::Cfq(CfqConfig::default()),
    ];
    for (at, scheduler) in schedulers.into_iter().enumerate() {
        for depth in [1, 3, 100] {
            let host = HostConfig { scheduler, depth, ..HostConfig::default() };
            lines.push(format!("layer {at} of {depth}: {}", stack("barrier-ufs", 1, Some(host))));
        }
        let host = HostConfig {
            scheduler,
            epochs: Epochs::Closing,
            retry_on_completion: false,
            depth: 3,
            ..HostConfig::default()
        };
        lines.push(format!("layer {at} closing: {}", stack("barrier-ufs", 1, Some(host))));
        let dispatch = Dispatch::MultiQueue;
        let host = HostConfig { scheduler, dispatch, queues: 4, depth: 6, ..HostConfig::default() };
        lines.push(format!("layer {at} queues: {}", stack("barrier-ufs", 4, Some(host))));
        for wait in [Wait::Transfer, Wait::Completion, Wait::TransferAndFlush] {
            let host = HostConfig { scheduler, dispatch: Dispatch::Legacy(wait), ..HostConfig::default() };
            lines.push(format!("layer {at} {wait:?}: {}", stack("mobile-ufs", 1, Some(host))));
        }
    }
    lines.join("\n") + "\n"
}

/// Compares records with those of a file, or writes them there if `FLASHWEIR_GOLDEN` says so.
pub(crate) fn compare(path: &str, records: &str) {
    if std::env::var("FLASHWEIR_GOLDEN").is_ok_and(|what| what == "record") {
        std::fs::write(path, records).unwrap();
    }
    let golden = std::fs::read_to_string(path).unwrap_or_default();
    for (now, then) in records.lines().zip(golden.lines()) {
        assert_eq!(now, then);
    }
    assert_eq!(records.lines().count(), golden.lines().count());
}

#[test]
fn golden_records_are_what_they_were() {
    compare(RECORDS, &records());
}
