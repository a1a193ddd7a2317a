//! The FTL without time: written contents are there, whatever the configuration asks of GC.

use crate::harness::random_config;
use flashweir_core::command::pattern;
use flashweir_core::random::RandomStream;
use flashweir_core::{Bytes, Lpn, Payload};
use flashweir_device::config::DeviceConfig;
use flashweir_device::presets::preset;
use flashweir_device::{Device, DeviceOptions, FastForward};

/// Writes each page, then as many pages again, and checks all of them.
fn fill(config: &DeviceConfig, seed: u64) -> Device {
    let options = DeviceOptions { seed, track_contents: true, planted: None };
    let mut device = Device::new(config.clone(), options);
    let units = device.geometry().user_units;
    let mut random = RandomStream::new(seed, "writes");
    let mut expected = vec![0; units as usize];
    let mut forward = FastForward::new(&mut device);
    for write in 0..3 * units {
        let lpn = Lpn(if write < units { write } else { random.below(units) });
        expected[lpn.0 as usize] = pattern(write, lpn);
        forward.write(lpn, Payload::Tag(pattern(write, lpn)));
    }
    forward.finish();
    device.audit();
    for (lpn, expected) in (0..).map(Lpn).zip(expected) {
        assert_eq!(
            device.peek(lpn).map(|payload| payload.identity()),
            Some(expected),
            "seed {seed}, {lpn:?}"
        );
    }
    device
}

/// Regression: GC looped for ever, because pages of several units leave some unused, which were collected again and again.
#[test]
fn regression_a_plane_that_cannot_have_as_many_free_blocks_as_wanted_collects_what_it_can() {
    for seed in 0..40 {
        let mut config = random_config(seed, 0.0);
        config.ftl.gc.start_below_blocks = config.geometry.blocks_per_plane;
        config.validate().unwrap();
        let eager = fill(&config, seed).metrics().gc_units_moved;
        config.ftl.gc.start_below_blocks = config.ftl.gc.reserve_blocks + 1;
        let lazy = fill(&config, seed).metrics().gc_units_moved;
        assert!(eager >= lazy, "seed {seed}: {eager} units moved to keep more blocks free, {lazy} for fewer");
    }
}

/// Valid units scatter over the planes; one of them had no room at last, and the fill panicked.
#[test]
fn regression_a_fill_with_small_planes_leaves_out_full_ones() {
    let mut config = preset("sata-mlc").expect("a preset");
    let g = &mut config.geometry;
    (g.channels, g.chips_per_channel, g.dies_per_chip, g.planes_per_die) = (4, 1, 1, 2);
    (g.blocks_per_plane, g.pages_per_block) = (64, 8);
    (g.page_bytes, g.unit_bytes) = (Bytes(4096), Bytes(4096));
    config.faults.paired_page_loss = false;
    let percent = (1..90).find(|percent| {
        config.ftl.over_provisioning = f64::from(*percent) / 100.0;
        config.validate().is_ok()
    });
    assert!(percent.is_some());
    for seed in 0..6 {
        let options = DeviceOptions { seed, track_contents: false, planted: None };
        let mut device = Device::new(config.clone(), options);
        let units = device.geometry().user_units;
        let mut random = RandomStream::new(seed, "small-planes");
        let mut fill = FastForward::new(&mut device);
        for unit in (0..units).chain((0..20 * units).map(|_| random.below(units))) {
            fill.write(Lpn(unit), Payload::Zero);
        }
        fill.finish();
        device.audit();
    }
}
