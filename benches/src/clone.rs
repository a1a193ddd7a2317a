//! Copies of a whole device that was filled once, per CPU second: what a snapshot of a running simulation costs.
//!
//! Media share their contents in chunks; the map, the accounts of blocks and the buffer are copied.

use crate::cpu;
use crate::writes::write;
use flashweir_core::Lpn;
use flashweir_device::presets::preset;
use flashweir_device::{Device, DeviceOptions};
use std::hint::black_box;

/// CPU seconds of one run at least.
const SECONDS: f64 = 1.0;

pub(crate) fn device() -> Result<Vec<(&'static str, f64)>, String> {
    let config = preset("consumer-tlc-nvme").ok_or("no preset consumer-tlc-nvme")?;
    let mut device = Device::new(config, DeviceOptions { seed: 1, track_contents: false, planted: None });
    let units = device.geometry().user_units;
    write(&mut device, (0..units).map(Lpn));
    let (before, mut clones) = (cpu::seconds()?, 0.0);
    let time = loop {
        black_box(device.clone());
        clones += 1.0;
        let time = cpu::seconds()? - before;
        if time >= SECONDS {
            break time;
        }
    };
    Ok(vec![
        ("units_per_cpu_s", clones * units as f64 / time),
        ("ms_per_clone", 1e3 * time / clones),
        ("units", units as f64),
        ("device_bytes", device.memory_bytes() as f64),
    ])
}
