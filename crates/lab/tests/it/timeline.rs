//! Timelines: the file for Perfetto is well formed and complete, and every nanosecond of a request is accounted for.

use crate::support::{device, filled};
use flashweir_core::{Bytes, Data, Duration, Instant, Lba, Op, RandomStream};
use flashweir_device::config::{Allocation, BufferMode, BusOrder, Cell, Metadata, PageTimes, SuspendConfig};
use flashweir_device::presets::preset;
use flashweir_device::{Device, DeviceConfig, DeviceOptions};
use flashweir_host::{CfqConfig, DeadlineConfig, HostConfig, HostFtlConfig, Scheduler};
use flashweir_sim::host_ftl::{Disk, capacity_lbas};
use flashweir_sim::live::Live;
use flashweir_sim::measure::RunResult;
use flashweir_sim::precondition::{Mode, Pattern, Precondition};
use flashweir_sim::request::Kind;
use flashweir_sim::timeline::{
    Findings, HEAD, Ledger, Limits, Means, Perfetto, Reason, Stage, TAIL, Timeline, Work,
};
use flashweir_sim::world::{JobSetup, World};
use flashweir_workload::fio::{FioJob, parse_job_file};
use serde_json::Value;
use std::collections::BTreeMap;
use std::io::Write;
use std::sync::{Arc, Mutex};

/// A writer whose bytes can be inspected.
#[derive(Clone, Default)]
struct Shared(Arc<Mutex<Vec<u8>>>);

impl Write for Shared {
    fn write(&mut self, bytes: &[u8]) -> std::io::Result<usize> {
        self.0.lock().unwrap().extend_from_slice(bytes);
        Ok(bytes.len())
    }
    fn flush(&mut self) -> std::io::Result<()> {
        Ok(())
    }
}

impl Shared {
    fn events(&self) -> Vec<Value> {
        let events = String::from_utf8(self.0.lock().unwrap().clone()).unwrap();
        let whole: Value = serde_json::from_str(&format!("{HEAD}{events}{TAIL}")).unwrap();
        whole["traceEvents"].as_array().unwrap().clone()
    }
}

struct Traced {
    run: RunResult,
    device: Device,
    findings: Findings,
    hash: u64,
}

fn jobs(text: &str, seed: u64, capacity: Bytes) -> Vec<JobSetup> {
    let file = parse_job_file("test.fio", text, capacity).unwrap_or_else(|e| panic!("{e}\n{text}"));
    file.jobs.into_iter().map(|spec| JobSetup::new(spec.name.clone(), FioJob::new(spec, seed))).collect()
}

fn world(device: Device, seed: u64, text: &str, layer: Option<&HostConfig>) -> World {
    let jobs = jobs(text, seed, Bytes(device.geometry().capacity_lbas() * 512));
    match layer {
        Some(layer) => World::with_block_layer(device, jobs, Duration::from_secs(1), layer.clone()),
        None => World::new(device, jobs, Duration::from_secs(1)),
    }
}

fn traced(
    device: Device,
    seed: u64,
    text: &str,
    perfetto: Option<Perfetto>,
    ledger: Option<Ledger>,
) -> Traced {
    trace(world(device, seed, text, None), seed, perfetto, ledger)
}

fn trace(mut world: World, seed: u64, perfetto: Option<Perfetto>, ledger: Option<Ledger>) -> Traced {
    world.trace(|device| Timeline::new(device, perfetto, ledger));
    assert!(world.run(|_| true));
    let findings = world.end_trace().unwrap();
    let hash = world.trace_hash();
    let (run, device) = world.finish("device", "test", seed);
    Traced { run, device, findings, hash }
}

/// Nanoseconds of a number of microseconds.
fn ns(value: &Value) -> u64 {
    (value.as_f64().unwrap() * 1000.0).round() as u64
}

/// A small device of any kind.
fn any_device(random: &mut RandomStream) -> DeviceConfig {
    loop {
        let mut config = preset("consumer-tlc-nvme").unwrap();
        let g = &mut config.geometry;
        g.channels = 1 + random.below(3) as u32;
        g.chips_per_channel = 1 + random.below(2) as u32;
        g.dies_per_chip = 1 + random.below(2) as u32;
        g.planes_per_die = 1 + random.below(2) as u32;
        g.blocks_per_plane = 40 + random.below(30) as u32;
        g.pages_per_block = 12 * (1 + random.below(3) as u32);
        g.unit_bytes = Bytes::kib(4);
        g.page_bytes = Bytes::kib(4 << random.below(3));
        let t = &mut config.timing;
        t.cell = [Cell::Slc, Cell::Tlc][random.below(2) as usize];
        let us = Duration::from_micros;
        if random.chance(0.5) {
            t.cell = Cell::Tlc;
            t.read = PageTimes::Each(vec![us(40), us(60), us(80)]);
            t.program = PageTimes::Each(vec![us(200), us(500), us(900)]);
        }
        t.bus_order = [BusOrder::DataFirst, BusOrder::CommandsFirst][random.below(2) as usize];
        t.multi_plane = random.chance(0.7);
        t.die_interleaving = random.chance(0.7);
        t.suspend = random.chance(0.5).then(|| SuspendConfig {
            program: true,
            erase: random.chance(0.7),
            latency: us(random.below(20)),
            max_per_operation: 3,
        });
        config.faults.paired_page_loss = random.chance(0.4);
        config.ftl.allocation = [Allocation::Static, Allocation::Dynamic][random.below(2) as usize];
        config.ftl.metadata = [Metadata::Log, Metadata::None][random.below(2) as usize];
        config.ftl.over_provisioning = 0.35;
        config.ftl.gc.preemptible = random.chance(0.5);
        config.ftl.gc.hot_cold = random.chance(0.5);
        config.buffer.mode =
            [BufferMode::WriteBack, BufferMode::WriteThrough, BufferMode::PowerLossProtected]
                [random.below(3) as usize];
        config.buffer.capacity = Bytes::kib(256 << random.below(4));
        if random.chance(0.4) {
            (config.buffer.bytes_per_s, config.buffer.access_latency) = (0, Duration::ZERO);
        }
        config.link.queues = 1 + random.below(3) as u16;
        config.link.queue_depth = 1 + random.below(40) as u32;
        config.link.half_duplex = random.chance(0.3);
        if config.validate().is_ok() {
            return config;
        }
    }
}

/// A job file of some jobs that run at once.
fn any_jobs(random: &mut RandomStream) -> String {
    let mut text = "[global]\nnorandommap\nnumber_ios=1500\n".to_owned();
    for job in 0..1 + random.below(3) {
        let rw = ["randread", "randwrite", "randrw", "randtrim", "write"][random.below(5) as usize];
        let bs = ["4k", "2k", "16k", "512-32k", "8k"][random.below(5) as usize];
        let depth = 1 + random.below(40);
        text += &format!("[{job}]\nrw={rw}\nbsrange={}\niodepth={depth}\n", range(bs));
        if rw == "randtrim" {
            text =
                text.replace("bsrange=512-32k", "bsrange=4k-32k").replace("bsrange=2k-2k", "bsrange=4k-4k");
        }
        if random.chance(0.4) && rw != "randread" && rw != "randtrim" {
            text += &format!("fsync={}\n", 1 + random.below(20));
        }
        if random.chance(0.2) {
            text += "rate_iops=20000\n";
        }
    }
    text
}

fn range(bs: &str) -> String {
    if bs.contains('-') { bs.to_owned() } else { format!("{bs}-{bs}") }
}

#[test]
fn every_nanosecond_of_every_request_is_accounted_for_on_any_device() {
    let mut random = RandomStream::new(3, "timeline");
    let (mut all_ns, mut held_ns) = (0.0, 0.0);
    let mut seen: BTreeMap<(Stage, String), u64> = BTreeMap::new();
    for seed in 0..42 {
        let config = any_device(&mut random);
        let text = any_jobs(&mut random);
        let context = || format!("seed {seed}\n{config:?}\n{text}");
        let state = Precondition {
            mode: Mode::Instant,
            fill: [0.0, 0.6, 1.0][random.below(3) as usize],
            overwrite: 0.4,
            pattern: Pattern::Random,
        };
        let start = state.apply(device(&config, seed), seed, |_| true).0;
        let make = || world(start.clone(), seed, &text, None);
        let (means, _, out, device) = accounted(&make, seed, &context);
        all_ns += means.latency_ns * means.requests as f64;
        for stage in Stage::ALL {
            held_ns += means.reason(stage, Reason::Held) * means.requests as f64;
            for reason in Reason::all() {
                let ns = means.reason(stage, reason) * means.requests as f64;
                if ns > 0.0 {
                    *seen.entry((stage, reason.name())).or_default() += ns as u64;
                }
            }
        }
        if seed % 6 == 0 {
            check_file(&out.events(), &device, &context());
        }
    }
    for ((stage, reason), ns) in &seen {
        println!("{:40} {reason:28} {:>12.3} ms", stage.name(), *ns as f64 / 1e6);
    }
    println!("held: {:.4} %", held_ns / all_ns * 100.0);
    assert!(held_ns / all_ns < 0.01, "{} of the time has no explanation", held_ns / all_ns);
    for stage in Stage::ALL {
        let met = seen.keys().any(|(of, _)| *of == stage) || stage == Stage::LogFull;
        assert!(met || LAYER.contains(&stage) || FTL.contains(&stage), "no request met {stage:?}");
    }
}

/// Stages in a block layer.
const LAYER: [Stage; 4] = [Stage::LayerHeld, Stage::LayerScheduler, Stage::LayerMerged, Stage::LayerDispatch];

/// Stages in a host FTL.
const FTL: [Stage; 3] = [Stage::FtlThread, Stage::FtlAdmission, Stage::FtlHeld];

/// Runs jobs with a timeline and without; returns the means over all requests, the ledger, the file, and the device. Panics
/// unless tracing changed nothing and the parts add up to the latencies that were measured.
fn accounted(
    make: &dyn Fn() -> World,
    seed: u64,
    context: &dyn Fn() -> String,
) -> (Means, Ledger, Shared, Device) {
    let mut plain = make();
    assert!(plain.run(|_| true));
    let out = Shared::default();
    let limits = Limits { events: u64::MAX, ..Limits::default() };
    let perfetto = Perfetto::new(Box::new(out.clone()), limits, 0, "");
    let ledger = Some(Ledger::new(None, None));
    let traced = trace(make(), seed, Some(perfetto), ledger);
    assert_eq!(traced.hash, plain.trace_hash(), "tracing changes nothing: {}", context());
    let ledger = traced.findings.ledger.unwrap();
    for kind in ledger.kinds() {
        let means = ledger.all(Some(kind)).unwrap();
        let jobs = traced.run.jobs.iter().filter_map(|job| job.kind(kind));
        let (mut requests, mut sum) = (0, 0.0);
        for of in jobs {
            requests += of.requests;
            sum += of.lat.summary.mean_ns * of.requests as f64;
        }
        assert_eq!(means.requests, requests, "{}", context());
        let off = means.latency_ns * requests as f64 - sum;
        assert!(off.abs() <= 1e-9 * sum, "{kind:?}: {off} {}", context());
    }
    let means = ledger.all(None).unwrap();
    let parts: f64 = means.by.iter().flatten().sum();
    assert!((parts / means.latency_ns - 1.0).abs() < 1e-9);
    (means, ledger, out, traced.device)
}

#[test]
fn a_block_layer_has_stages_of_its_own_and_every_request_in_it_is_accounted_for() {
    let mut random = RandomStream::new(5, "timeline on a layer");
    let (deadline, cfq) = (DeadlineConfig::default(), CfqConfig::default());
    let schedulers = [Scheduler::None, Scheduler::Deadline(deadline), Scheduler::Cfq(cfq)];
    let mut met: BTreeMap<Stage, f64> = BTreeMap::new();
    for seed in 0..24 {
        let config = any_device(&mut random);
        let text = any_jobs(&mut random) + "[neighbours]\nrw=write\nbs=4k\niodepth=16\nsize=64k\nloops=20\n";
        let host = HostConfig {
            scheduler: schedulers[seed as usize % 3],
            depth: 1 + random.below(40) as u32,
            merge_blocks_max: [0, 64, 1024][random.below(3) as usize],
            retry_on_completion: random.chance(0.8),
            ..HostConfig::default()
        };
        let context = || format!("seed {seed}\n{config:?}\n{host:?}\n{text}");
        let start = filled(&config, seed, 0.6);
        let make = || world(start.clone(), seed, &text, Some(&host));
        let (means, _, out, device) = accounted(&make, seed, &context);
        for stage in LAYER {
            *met.entry(stage).or_default() += means.stage(stage);
        }
        assert!(host.merge_blocks_max > 0 || means.stage(Stage::LayerMerged) == 0.0, "{}", context());
        if seed % 6 == 0 {
            check_file(&out.events(), &device, &context());
        }
    }
    assert!(met.values().all(|ns| *ns > 0.0), "{met:?}");
}

#[test]
fn a_host_ftl_has_stages_of_its_own_and_every_request_in_it_is_accounted_for() {
    let mut random = RandomStream::new(6, "timeline on a host FTL");
    let mut met: BTreeMap<Stage, f64> = BTreeMap::new();
    for seed in 0..16 {
        let mut config = preset(["qblke", "ocssd-2.0"][seed as usize % 2]).unwrap();
        let g = &mut config.geometry;
        (g.channels, g.chips_per_channel) = (2, 1 + random.below(2) as u32);
        (g.blocks_per_plane, g.pages_per_block) = (40, 48);
        let assembly = if random.chance(0.5) { HostFtlConfig::pblk() } else { HostFtlConfig::qblke(2) };
        let cpus = if random.chance(0.5) { assembly.rings } else { 0 };
        let ftl = HostFtlConfig { cpus, queues: 0, ..assembly };
        let text = "[global]\nnorandommap\nnumber_ios=1500\nsize=16m\nbs=4k\n\
                    [fill]\nrw=write\nbs=16k\n\
                    [read]\nstonewall\nrw=randread\niodepth=4\n\
                    [write]\nrw=randwrite\niodepth=32\nfsync=40\n\
                    [trim]\nrw=randtrim\nbsrange=4k-32k\nnumber_ios=100\nrate_iops=20000\n";
        let context = || format!("seed {seed}\n{config:?}\n{ftl:?}");
        let options = DeviceOptions { seed, track_contents: false, planted: None };
        let make = || {
            let disk = Disk::new(Device::new(config.clone(), options), Some(&ftl));
            let capacity = Bytes(capacity_lbas(&config, Some(&ftl)).unwrap() * 512);
            World::above(disk, None, jobs(text, seed, capacity), Duration::from_secs(1))
        };
        let (means, _, out, device) = accounted(&make, seed, &context);
        for stage in FTL {
            *met.entry(stage).or_default() += means.stage(stage);
        }
        assert!(means.stage(Stage::Flash) > 0.0, "{}", context());
        if seed % 4 == 0 {
            check_file(&out.events(), &device, &context());
        }
    }
    assert!(met.values().all(|ns| *ns > 0.0), "{met:?}");
}

#[test]
fn requests_wait_in_a_block_layer_for_what_they_met_there() {
    // One die, reads of one length, one command at a time: the closed form of a queue.
    let mut config = preset("mqsim-small-ideal").unwrap();
    let g = &mut config.geometry;
    (g.channels, g.chips_per_channel, g.dies_per_chip, g.planes_per_die) = (1, 1, 1, 1);
    config.timing.multi_plane = false;
    let host = |depth, merge_blocks_max| HostConfig {
        scheduler: Scheduler::None,
        depth,
        merge_blocks_max,
        ..HostConfig::default()
    };
    let explained = |config: &DeviceConfig, text: &str, host: &HostConfig| {
        let make = || world(filled(config, 1, 0.6), 1, text, Some(host));
        accounted(&make, 1, &|| text.to_owned()).1
    };
    // Eight in flight, of which the device has one: a request waits for the seven before it.
    let text = "[j]\nrw=randread\nbs=8k\niodepth=8\nnorandommap\nsize=50%\nnumber_ios=4000\n";
    let median = explained(&config, text, &host(1, 0)).median(Some(Kind::Read)).unwrap();
    let alone = 102_442.0;
    assert!((median.stage(Stage::LayerScheduler) - 7.0 * alone).abs() < 1.0, "{median:?}");
    assert!((median.latency_ns - 8.0 * alone).abs() < 1.0, "{median:?}");
    assert!(
        [Stage::LayerHeld, Stage::LayerMerged, Stage::LayerDispatch]
            .iter()
            .all(|stage| median.stage(*stage) == 0.0)
    );
    // The link has room for fewer commands than the layer believes, so that a command is refused and offered again.
    config.link.queue_depth = 1;
    let median = explained(&config, text, &host(32, 0)).median(Some(Kind::Read)).unwrap();
    let (scheduler, dispatch) = (median.stage(Stage::LayerScheduler), median.stage(Stage::LayerDispatch));
    assert!((scheduler + dispatch - 7.0 * alone).abs() < 1.0, "{median:?}");
    assert!((dispatch - alone).abs() < 1.0, "the one that was refused is the next: {median:?}");
    // Writes of the same place leave one after the other, and each waits until the one before it has left.
    let text = "[j]\nrw=randwrite\nbs=8k\niodepth=4\nnorandommap\nsize=8k\nio_size=3200k\n";
    let means = explained(&config, text, &host(1, 0)).all(None).unwrap();
    assert!(means.stage(Stage::LayerHeld) > means.stage(Stage::LayerScheduler), "{means:?}");
}

#[test]
fn the_parts_of_a_read_and_a_write_at_depth_1_are_the_closed_form() {
    let config = preset("mqsim-small-ideal").unwrap();
    let job = |rw: &str| format!("[j]\nrw={rw}\nbs=8k\niodepth=1\nnorandommap\nsize=50%\nnumber_ios=500\n");
    let run = |device, rw: &str, kind| {
        let ledger = Some(Ledger::new(None, Some(7)));
        let ledger = traced(device, 1, &job(rw), None, ledger).findings.ledger.unwrap();
        assert_eq!(ledger.found().unwrap().number, 7);
        // All requests are alike, so the mean of each part is exact.
        (ledger.all(Some(kind)).unwrap(), ledger.tail(Some(kind), 0.001).unwrap())
    };
    let (read, slowest) = run(filled(&config, 1, 0.6), "randread", Kind::Read);
    let transfer = 24_576.0;
    let parts = [
        (Stage::LinkDown, Reason::Itself, 49.0),
        (Stage::Flash, Reason::Bus, 290.0 + transfer),
        (Stage::Flash, Reason::Array(Work::HostRead), 75_020.0),
        (Stage::LinkUp, Reason::Itself, 2_496.0 + 11.0),
    ];
    for (stage, reason, ns) in parts {
        assert!((read.reason(stage, reason) - ns).abs() < 1e-6, "{stage:?} {reason:?}: {read:?}");
    }
    assert!((read.latency_ns - 102_442.0).abs() < 1e-6);
    assert_eq!((read.requests, slowest.requests), (500, 1));
    assert_eq!(slowest.latency_ns, read.latency_ns);
    let (write, _) = run(device(&config, 1), "randwrite", Kind::Write);
    let parts = [
        (Stage::LinkDown, Reason::Itself, 49.0 + 2_496.0),
        (Stage::Durable, Reason::Bus, 361.0 + transfer),
        (Stage::Durable, Reason::Array(Work::HostProgram), 750_000.0),
        (Stage::LinkUp, Reason::Itself, 11.0),
    ];
    for (stage, reason, ns) in parts {
        assert!((write.reason(stage, reason) - ns).abs() < 1e-6, "{stage:?} {reason:?}: {write:?}");
    }
}

#[test]
fn reads_behind_one_die_wait_for_each_other_as_queueing_says() {
    // With one die, each of 8 reads in flight waits for the 7 before it.
    let mut config = preset("mqsim-small-ideal").unwrap();
    let g = &mut config.geometry;
    (g.channels, g.chips_per_channel, g.dies_per_chip, g.planes_per_die) = (1, 1, 1, 1);
    config.timing.multi_plane = false;
    let text = "[j]\nrw=randread\nbs=8k\niodepth=8\nnorandommap\nsize=50%\nnumber_ios=4000\n";
    let traced = traced(filled(&config, 1, 0.6), 1, text, None, Some(Ledger::new(None, None)));
    let means = traced.findings.ledger.unwrap().median(Some(Kind::Read)).unwrap();
    let one = 290.0 + 75_020.0 + 24_576.0;
    let waits = means.reason(Stage::Flash, Reason::Die(Work::HostRead));
    // Time on the link is not time at the die.
    let on_link = 49.0 + 2_496.0 + 11.0;
    assert!((waits - (7.0 * one - on_link)).abs() < 1.0, "{waits}");
}

#[test]
fn deallocations_wait_for_room_in_the_map_log() {
    let mut config = preset("consumer-tlc-nvme").unwrap();
    let g = &mut config.geometry;
    (g.channels, g.chips_per_channel, g.dies_per_chip, g.planes_per_die) = (1, 1, 1, 1);
    (g.blocks_per_plane, g.pages_per_block, g.page_bytes) = (40, 12, Bytes::kib(4));
    config.buffer.capacity = Bytes::kib(64);
    config.ftl.over_provisioning = 0.5;
    config.validate().unwrap();
    let text = "[t]\nrw=randtrim\nbs=4k\niodepth=32\nnorandommap\nio_size=32m\nrate_iops=3000\n\
                [w]\nrw=randwrite\nbs=4k\niodepth=32\nnorandommap\nio_size=32m\n";
    let traced = traced(filled(&config, 1, 1.0), 1, text, None, Some(Ledger::new(None, None)));
    let ledger = traced.findings.ledger.unwrap();
    let means = ledger.all(Some(Kind::Trim)).unwrap();
    assert!(means.stage(Stage::LogFull) > 0.0, "{means:?}");
    assert_eq!(ledger.all(Some(Kind::Write)).unwrap().stage(Stage::LogFull), 0.0);
}

#[test]
fn a_device_behind_a_front_end_is_followed_too() {
    let mut config = preset("consumer-tlc-nvme").unwrap();
    config.link.queue_depth = 4;
    let run = |trace: bool| {
        let out = Shared::default();
        let mut live = Live::new(device(&config, 1));
        if trace {
            let perfetto = Perfetto::new(Box::new(out.clone()), Limits::default(), 0, "");
            live.trace(|device| Timeline::new(device, Some(perfetto), Some(Ledger::new(None, None))));
        }
        let mut finished = Vec::new();
        for i in 0..300 {
            let (lba, blocks) = (Lba(i * 8 % 256), 8);
            let op = match i % 5 {
                0 => Op::Flush,
                1 | 2 => Op::Read { lba, blocks },
                3 => Op::Write { lba, blocks, data: Data::Pattern(i) },
                _ => Op::Trim { lba, blocks },
            };
            live.submit(Instant::ZERO + Duration::from_micros(i), 0, op, i % 2 == 0, i, &mut finished);
        }
        while finished.len() < 300 && live.step(&mut finished) {}
        let latency: u64 = finished.iter().map(|f| f.at.since(f.submitted).as_nanos()).sum();
        (live.end_trace(), live.trace_hash(), latency, out, live)
    };
    let (findings, hash, latency, out, live) = run(true);
    assert_eq!(hash, run(false).1);
    let means = findings.unwrap().ledger.unwrap().all(None).unwrap();
    assert_eq!(means.requests, 300);
    assert!((means.latency_ns * 300.0 / latency as f64 - 1.0).abs() < 1e-9);
    assert!(means.stage(Stage::HostQueue) > 0.0 && means.stage(Stage::Durable) > 0.0);
    check_file(&out.events(), live.device(), "live");
}

#[test]
fn a_file_shows_a_window_or_is_cut_and_says_so() {
    let config = preset("consumer-tlc-nvme").unwrap();
    let text = "[j]\nrw=randrw\nbs=4k\niodepth=8\nnumber_ios=1200\nfsync=50\n";
    let at = |us| Instant::ZERO + Duration::from_micros(us);
    let run = |limits| {
        let out = Shared::default();
        let perfetto = Perfetto::new(Box::new(out.clone()), limits, 3, "a \"device\"");
        let traced = traced(filled(&config, 1, 0.5), 1, text, Some(perfetto), None);
        (traced.findings.perfetto.unwrap(), out.events(), traced.hash)
    };
    let (whole, all, hash) = run(Limits::default());
    assert!(!whole.cut && whole.error.is_none() && whole.until > at(6000));
    let (cut, events, same) = run(Limits { events: 2000, ..Limits::default() });
    assert!(cut.cut && cut.events >= 2000 && cut.events < 2300 && cut.until < whole.until, "{cut:?}");
    assert_eq!(hash, same, "a tracer that is turned off in the middle changes nothing");
    let (window, shown, _) = run(Limits { from: at(4000), until: at(6000), events: u64::MAX });
    assert!(!window.cut && window.until == at(6000));
    let slices = |events: &[Value]| {
        let slices = events.iter().filter(|event| event["ph"] == "X");
        slices.map(|e| (ns(&e["ts"]), ns(&e["ts"]) + ns(&e["dur"]), e["tid"].as_u64())).collect::<Vec<_>>()
    };
    let inside = |(from, until, _): &(u64, u64, Option<u64>)| *until >= 4_000_000 && *from < 6_000_000;
    let mut expected: Vec<_> = slices(&all).into_iter().filter(inside).collect();
    let mut shown = slices(&shown);
    assert!(!shown.is_empty() && shown.iter().all(inside));
    // Slices of GC and flushes that are open at the end of the window end there.
    expected.retain(|(_, until, _)| *until <= 5_500_000);
    shown.retain(|(_, until, _)| *until <= 5_500_000);
    expected.sort_unstable();
    shown.sort_unstable();
    assert_eq!(expected, shown);
    let name = events.iter().find(|event| event["name"] == "process_name").unwrap();
    assert_eq!(
        (&name["args"]["name"], &name["pid"]),
        (&"a \"device\" · 1 host queues".into(), &3_000_001.into())
    );
}

/// Checks that slices of one thread do not overlap, that asynchronous ones nest and end, and that the busy times of dies
/// and channels are those of the device.
fn check_file(events: &[Value], device: &Device, context: &str) {
    let mut slices: BTreeMap<u64, Vec<(u64, u64, &str)>> = BTreeMap::new();
    let mut names: BTreeMap<u64, &str> = BTreeMap::new();
    let mut open: BTreeMap<(u64, &str), Vec<(&str, u64)>> = BTreeMap::new();
    let mut queues = 0;
    for event in events {
        let text = |key: &str| event[key].as_str().unwrap();
        match text("ph") {
            "X" => {
                let (ts, dur) = (ns(&event["ts"]), ns(&event["dur"]));
                assert!(dur > 0, "{event} {context}");
                slices.entry(event["tid"].as_u64().unwrap()).or_default().push((ts, ts + dur, text("cat")));
            }
            "b" => {
                let key = (event["pid"].as_u64().unwrap(), event["id2"]["local"].as_str().unwrap());
                let stack = open.entry(key).or_default();
                assert!(stack.last().is_none_or(|(_, at)| *at <= ns(&event["ts"])), "{event} {context}");
                queues += u32::from(stack.is_empty() && text("name").starts_with("queue "));
                stack.push((text("name"), ns(&event["ts"])));
            }
            "e" => {
                let key = (event["pid"].as_u64().unwrap(), event["id2"]["local"].as_str().unwrap());
                let (name, from) = open.get_mut(&key).unwrap().pop().unwrap();
                assert_eq!(name, text("name"), "{context}");
                assert!(from <= ns(&event["ts"]));
            }
            "M" if text("name") == "thread_name" => {
                let name = event["args"]["name"].as_str().unwrap();
                let before = names.insert(event["tid"].as_u64().unwrap(), name);
                assert_eq!(before, None, "a thread is named once");
            }
            "M" | "C" => {}
            other => panic!("unknown phase {other}"),
        }
    }
    assert!(open.values().all(Vec::is_empty), "every begin has an end {context}");
    assert!(queues > 0, "requests are shown");
    let mut busy: BTreeMap<&str, u64> = BTreeMap::new();
    for (tid, slices) in &mut slices {
        slices.sort_unstable();
        for pair in slices.windows(2) {
            assert!(pair[0].1 <= pair[1].0, "{}: {pair:?} overlap {context}", names[tid]);
        }
        let works = slices.iter().filter(|(.., cat)| ["bus", "array"].contains(cat));
        busy.insert(names[tid], works.map(|(from, until, _)| until - from).sum());
    }
    for (i, theirs) in device.channel_busy().into_iter().enumerate() {
        let ours = busy.get(&*format!("channel {i}")).copied().unwrap_or(0);
        assert_eq!(ours, theirs.as_nanos(), "channel {i} {context}");
    }
    for (i, theirs) in device.station_busy().into_iter().enumerate() {
        let id = flashweir_device::geometry::StationId(i as u32);
        let name = flashweir_sim::timeline::die_name(device.geometry(), id);
        let ours = busy.get(&*name).copied().unwrap_or(0);
        assert_eq!(ours, theirs.as_nanos(), "{name} {context}");
    }
}
