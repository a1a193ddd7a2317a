//! The FTL without time: written contents are there, whatever the configuration asks of GC.

use crate::harness::random_config;
use flashweir_core::command::pattern;
use flashweir_core::random::RandomStream;
use flashweir_core::{Lpn, Payload};
use flashweir_device::config::DeviceConfig;
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
