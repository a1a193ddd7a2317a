//! Multi-plane programs of host data: dynamic allocation must be as fast as static striping.

use crate::support::{device, run_fio};
use flashweir_device::config::{Allocation, DeviceConfig};
use flashweir_device::presets;
use flashweir_sim::measure::{MetricValue, RunResult};
use flashweir_sim::request::Kind;

/// Presets with dynamic allocation and dies of several planes.
fn presets_with_planes() -> Vec<DeviceConfig> {
    let fits = |config: &DeviceConfig| {
        config.ftl.allocation == Allocation::Dynamic
            && config.geometry.planes_per_die > 1
            && config.timing.multi_plane
    };
    presets::all().into_iter().filter(fits).collect()
}

fn metric(run: &RunResult, name: &str) -> f64 {
    run.metrics.get(name).copied().map_or(0.0, MetricValue::as_f64)
}

/// Bytes written per second of virtual time, and the run.
fn written(config: &DeviceConfig, job: &str) -> (f64, RunResult) {
    let (run, _) = run_fio(device(config, 1), 1, job);
    let job = &run.jobs[0];
    let bytes_per_s = job.bytes_per_s(job.kind(Kind::Write).expect("the job writes"));
    (bytes_per_s, run)
}

/// Each ready page went to the next die alone, so two planes never worked at once, and devices had half of their
/// bandwidth.
#[test]
fn regression_dynamic_allocation_writes_as_fast_as_static_striping() {
    // Far more than the buffer of any preset, far less than what starts GC.
    let job = "[j]\nrw=write\nbs=128k\niodepth=32\nsize=1g\n";
    let presets = presets_with_planes();
    assert!(!presets.is_empty());
    for config in presets {
        let (dynamic, run) = written(&config, job);
        let mut fixed = config.clone();
        fixed.ftl.allocation = Allocation::Static;
        let (fixed, _) = written(&fixed, job);
        let [all, several] =
            ["nand.host_programs", "nand.host_multi_plane_programs"].map(|n| metric(&run, n));
        println!(
            "{}: {:.0} MB/s dynamic, {:.0} static, ratio {:.3}; {several} of {all} programs to several planes",
            config.name,
            dynamic / 1e6,
            fixed / 1e6,
            dynamic / fixed
        );
        assert!(dynamic >= 0.95 * fixed, "{}: {dynamic} of {fixed}", config.name);
        assert!(several > 0.9 * all, "{}: {several} of {all} programs", config.name);
    }
}
