//! Write amplification compared with theory and with another simulator, and the two ways to age a device.

use crate::support::{device, filled, run_fio};
use flashweir_core::random::RandomStream;
use flashweir_core::{Bytes, Lpn, Payload};
use flashweir_device::presets::preset;
use flashweir_device::{DeviceConfig, FastForward};
use flashweir_ftl::{GcPolicy, theory};
use flashweir_sim::precondition::{Mode, Pattern, Precondition};
use flashweir_sim::request::Kind;

/// A device with one plane and one write frontier, as the theory and Desnoyers' simulator assume.
fn one_plane(policy: GcPolicy, spare: f64, blocks: u32, pages: u32) -> DeviceConfig {
    let mut config = preset("mqsim-small-ideal").unwrap();
    let g = &mut config.geometry;
    (g.channels, g.chips_per_channel, g.dies_per_chip, g.planes_per_die) = (1, 1, 1, 1);
    (g.blocks_per_plane, g.pages_per_block) = (blocks, pages);
    (g.page_bytes, g.unit_bytes) = (Bytes::kib(4), Bytes::kib(4));
    let ftl = &mut config.ftl;
    (ftl.over_provisioning, ftl.gc.policy, ftl.gc.hot_cold) = (spare, policy, false);
    (ftl.gc.start_below_blocks, ftl.gc.reserve_blocks) = (2, 1);
    ftl.wear.static_threshold = 0;
    config
}

/// Write amplification of random writes of `turns` times the user's capacity, after a sequential fill and as many random writes.
fn measured(config: &DeviceConfig, turns: u64) -> f64 {
    let mut device = device(config, 1);
    let units = device.geometry().user_units;
    let mut random = RandomStream::new(1, "uniform");
    let mut write = |device: &mut flashweir_device::Device, count: u64, sequential: bool| {
        let mut forward = FastForward::new(device);
        (0..count).for_each(|i| {
            let lpn = if sequential { i } else { random.below(units) };
            forward.write(Lpn(lpn), Payload::Zero);
        });
        forward.finish();
    };
    write(&mut device, units, true);
    write(&mut device, turns * units, false);
    let before = *device.metrics();
    write(&mut device, turns * units, false);
    device.audit();
    device.metrics().since(&before).write_amplification().unwrap()
}

fn close(what: &str, ours: f64, theirs: f64, band: f64) {
    println!("{what}: ours {ours:.4}, theirs {theirs:.4}, {:+.2} %", (ours / theirs - 1.0) * 100.0);
    assert!((ours / theirs - 1.0).abs() <= band, "{what}: {ours} against {theirs}");
}

#[test]
fn greedy_and_fifo_match_theory_at_three_spare_factors() {
    for spare in [0.10, 0.25, 0.40] {
        let fifo = measured(&one_plane(GcPolicy::Fifo, spare, 1024, 64), 4);
        close(&format!("FIFO, spare {spare}"), fifo, theory::fifo(1.0 - spare), 0.03);
        let greedy = measured(&one_plane(GcPolicy::Greedy, spare, 1024, 64), 4);
        close(&format!("greedy, spare {spare}"), greedy, theory::greedy(1.0 - spare, 64), 0.03);
    }
}

#[test]
fn greedy_matches_ftlsim() {
    close("256 pages", measured(&one_plane(GcPolicy::Greedy, 0.25, 1024, 256), 4), 2.19, 0.03);
    close("64 pages", measured(&one_plane(GcPolicy::Greedy, 0.25, 1024, 64), 4), 2.14, 0.03);
}

#[test]
fn d_choices_lies_between_random_and_greedy() {
    let mut config = one_plane(GcPolicy::DChoices, 0.25, 1024, 64);
    for d in [2, 10] {
        config.ftl.gc.choices = d;
        let ours = measured(&config, 4);
        close(&format!("{d} choices"), ours, theory::d_choices(0.75, 64, f64::from(d)), 0.03);
    }
}

#[test]
fn instant_preconditioning_and_ageing_by_writing_amplify_alike() {
    for (preset_name, allocation) in [("mqsim-small-ideal", None), ("mqsim-small-ideal", Some(()))] {
        let mut config = preset(preset_name).unwrap();
        config.geometry.pages_per_block = 32;
        config.ftl.over_provisioning = 0.2;
        config.ftl.gc.start_below_blocks = 4;
        config.ftl.gc.policy = GcPolicy::Greedy;
        if allocation.is_some() {
            config.ftl.allocation = flashweir_device::config::Allocation::Dynamic;
        }
        let amplification = |mode| {
            let state = Precondition { mode, fill: 1.0, overwrite: 3.0, pattern: Pattern::Random };
            let (device, _) = state.apply(device(&config, 1), 1, |_| true);
            // The state is judged by the cost of the same further writes.
            let before = *device.metrics();
            let more = Precondition {
                mode: Mode::AgeByWriting,
                fill: 1.0,
                overwrite: 1.0,
                pattern: Pattern::Random,
            };
            let (device, _) = more.apply(device, 2, |_| true);
            device.audit();
            device.metrics().since(&before).write_amplification().unwrap()
        };
        close(
            "instant and by writing",
            amplification(Mode::Instant),
            amplification(Mode::AgeByWriting),
            0.02,
        );
    }
}

#[test]
fn host_writes_keep_the_pace_of_collection_on_a_full_device() {
    let mut config = preset("sata-mlc").unwrap();
    let slowest_ns = |config: &DeviceConfig| {
        let job = "[j]\nrw=randwrite\nbs=4k\niodepth=32\nnorandommap\nruntime=12\ntime_based\n";
        let (run, device) = run_fio(filled(config, 1, 1.0), 1, job);
        assert!(device.metrics().gc_victims > 0, "the device never collected");
        run.jobs[0].kind(Kind::Write).expect("it wrote").lat.summary.max_ns
    };
    let paced = slowest_ns(&config);
    config.ftl.gc.preemptible = false;
    let unpaced = slowest_ns(&config);
    println!("slowest write: {paced} ns paced, {unpaced} ns where collection goes first");
    assert!(paced * 10 < unpaced, "{paced} ns paced, {unpaced} ns where collection goes first");
}
