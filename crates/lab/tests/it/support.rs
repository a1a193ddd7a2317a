//! Helpers that make and run worlds.

use flashweir_core::{Bytes, Duration};
use flashweir_device::{Device, DeviceConfig, DeviceOptions};
use flashweir_sim::measure::RunResult;
use flashweir_sim::precondition::{Mode, Pattern, Precondition};
use flashweir_sim::world::{JobSetup, World};
use flashweir_workload::fio::{FioJob, parse_job_file};

pub(crate) fn device(config: &DeviceConfig, seed: u64) -> Device {
    config.validate().unwrap_or_else(|e| panic!("{}: {e}", config.name));
    Device::new(config.clone(), DeviceOptions { seed, track_contents: false, planted: None })
}

pub(crate) fn filled(config: &DeviceConfig, seed: u64, fill: f64) -> Device {
    let state = Precondition { mode: Mode::Instant, fill, overwrite: 0.0, pattern: Pattern::Sequential };
    state.apply(device(config, seed), seed, |_| true).0
}

/// Runs the jobs of a job file, all at once.
pub(crate) fn run_fio(device: Device, seed: u64, text: &str) -> (RunResult, Device) {
    let capacity = Bytes(device.geometry().capacity_lbas() * 512);
    let file = parse_job_file("test.fio", text, capacity).unwrap_or_else(|e| panic!("{e}"));
    let jobs =
        file.jobs.into_iter().map(|spec| JobSetup::new(spec.name.clone(), FioJob::new(spec, seed))).collect();
    let mut world = World::new(device, jobs, Duration::from_secs(1));
    assert!(world.run(|_| true));
    assert_eq!(world.errors(), (0, None));
    world.finish("device", "test", seed)
}
