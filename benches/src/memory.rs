//! Memory of a 512 GiB device, fresh, after MQSim's trace `tpcc-small`.

use crate::cpu;
use flashweir_core::Duration;
use flashweir_device::presets::preset;
use flashweir_device::{Device, DeviceOptions};
use flashweir_sim::world::{JobSetup, World};
use flashweir_workload::trace::{Fit, ReadOptions, Replay, ReplayConfig, Trace};
use std::path::Path;
use std::sync::Arc;

pub(crate) fn after_tpcc() -> Result<Vec<(&'static str, f64)>, String> {
    let config = preset("mqsim-default").ok_or("no preset mqsim-default")?;
    let device = Device::new(config, DeviceOptions { seed: 1, track_contents: false, planted: None });
    let units = device.geometry().user_units as f64;
    let file = Path::new(env!("CARGO_MANIFEST_DIR")).join("../data/mqsim/tpcc-small.trace");
    let trace = Trace::open(&file, &ReadOptions::default()).map_err(|error| error.to_string())?;
    let records = trace.records().len() as f64;
    let replay = ReplayConfig { fit: Fit::Wrap, ..ReplayConfig::default() };
    let replay = Replay::new(Arc::new(trace), &replay, device.geometry().capacity_lbas());
    let setup = JobSetup::new("tpcc-small", replay.map_err(|error| error.to_string())?);
    let mut world = World::new(device, vec![setup], Duration::from_secs(1));
    world.run(|_| true);
    if world.requests() as f64 != records {
        return Err(format!("{} of {records} requests were answered", world.requests()));
    }
    let device = world.device();
    let metrics = device.metrics();
    let written = (metrics.user_units_programmed + metrics.gc_units_moved + metrics.filler_units) as f64;
    let bytes = device.memory_bytes() as f64;
    Ok(vec![
        ("peak_resident_bytes", cpu::peak_resident_bytes()?),
        ("device_bytes", bytes),
        ("written_units", written),
        ("device_bytes_per_written_unit", bytes / written),
        ("logical_units", units),
        ("requests", records),
    ])
}
