//! Requests per CPU second on the configuration and the closed loops on which MQSim was measured.
//!
//! Deliberately absent from the measured time: building the device and filling it.

use crate::cpu;
use flashweir_core::{Bytes, Duration};
use flashweir_device::presets::preset;
use flashweir_device::{Device, DeviceOptions};
use flashweir_sim::precondition::{Mode, Pattern, Precondition};
use flashweir_sim::world::{JobSetup, World};
use flashweir_workload::fio::{FioJob, parse_job_file};

/// 8 KiB at random over half of the device, 32 in flight; a long time, so that a run takes a second.
const JOB: &str = "[j]\nbs=8k\niodepth=32\nnorandommap\nsize=50%\ntime_based\n";

pub(crate) fn read() -> Result<Vec<(&'static str, f64)>, String> {
    run("rw=randread\nruntime=30\n", 0.6)
}

pub(crate) fn write() -> Result<Vec<(&'static str, f64)>, String> {
    run("rw=randwrite\nruntime=60\n", 0.0)
}

fn run(options: &str, fill: f64) -> Result<Vec<(&'static str, f64)>, String> {
    let config = preset("mqsim-small-ideal").ok_or("no preset mqsim-small-ideal")?;
    let device = Device::new(config, DeviceOptions { seed: 1, track_contents: false, planted: None });
    let state = Precondition { mode: Mode::Instant, fill, overwrite: 0.0, pattern: Pattern::Sequential };
    let (device, _) = state.apply(device, 1, |_| true);
    let mut world = world(device, &format!("{JOB}{options}"))?;
    let before = cpu::seconds()?;
    world.run(|_| true);
    let time = cpu::seconds()? - before;
    let (requests, moments) = (world.requests() as f64, world.moments() as f64);
    Ok(vec![
        ("requests_per_cpu_s", requests / time),
        ("moments_per_cpu_s", moments / time),
        ("requests", requests),
        ("cpu_s", time),
    ])
}

fn world(device: Device, text: &str) -> Result<World, String> {
    let capacity = Bytes(device.geometry().capacity_lbas() * 512);
    let file = parse_job_file("bench.fio", text, capacity).map_err(|error| error.to_string())?;
    let jobs = file.jobs.into_iter().map(|spec| JobSetup::new(spec.name.clone(), FioJob::new(spec, 1)));
    Ok(World::new(device, jobs.collect(), Duration::from_secs(1)))
}
