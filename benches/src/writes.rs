//! Flash writes per CPU second where only write amplification is asked for: no time, no contents.
//!
//! The configuration is the one of Desnoyers' ftlsim: one plane, 256 pages per block, spare factor 0.25,
//! greedy GC, uniform random writes.

use crate::cpu;
use flashweir_core::random::RandomStream;
use flashweir_core::{Bytes, Lpn, Payload};
use flashweir_device::presets::preset;
use flashweir_device::{Device, DeviceOptions, FastForward};
use flashweir_ftl::GcPolicy;

/// Host writes of the measured part, in multiples of the capacity.
const TURNS: u64 = 20;

pub(crate) fn uniform() -> Result<Vec<(&'static str, f64)>, String> {
    let mut config = preset("mqsim-small-ideal").ok_or("no preset mqsim-small-ideal")?;
    let g = &mut config.geometry;
    (g.channels, g.chips_per_channel, g.dies_per_chip, g.planes_per_die) = (1, 1, 1, 1);
    (g.blocks_per_plane, g.pages_per_block) = (1024, 256);
    (g.page_bytes, g.unit_bytes) = (Bytes::kib(4), Bytes::kib(4));
    let ftl = &mut config.ftl;
    (ftl.over_provisioning, ftl.gc.policy, ftl.gc.hot_cold) = (0.25, GcPolicy::Greedy, false);
    (ftl.gc.start_below_blocks, ftl.gc.reserve_blocks) = (2, 1);
    ftl.wear.static_threshold = 0;
    config.validate()?;
    let mut device = Device::new(config, DeviceOptions { seed: 1, track_contents: false, planted: None });
    let units = device.geometry().user_units;
    let mut random = RandomStream::new(1, "uniform");
    write(&mut device, (0..units).map(Lpn));
    write(&mut device, (0..2 * units).map(|_| Lpn(random.below(units))));
    let earlier = *device.metrics();
    let before = cpu::seconds()?;
    write(&mut device, (0..TURNS * units).map(|_| Lpn(random.below(units))));
    let time = cpu::seconds()? - before;
    let metrics = device.metrics().since(&earlier);
    let writes = (metrics.user_units_programmed + metrics.gc_units_moved + metrics.filler_units) as f64;
    let amplification = metrics.write_amplification().ok_or("nothing was written")?;
    Ok(vec![
        ("flash_writes_per_cpu_s", writes / time),
        ("host_writes_per_cpu_s", metrics.host_units_written as f64 / time),
        ("write_amplification", amplification),
        ("flash_writes", writes),
        ("cpu_s", time),
    ])
}

/// Writes these units without time.
pub(crate) fn write(device: &mut Device, lpns: impl Iterator<Item = Lpn>) {
    let mut forward = FastForward::new(device);
    lpns.for_each(|lpn| forward.write(lpn, Payload::Zero));
    forward.finish();
}
