//! 4 KiB writes per CPU second through the whole stack: fio's job, vfs, file system, device; ext4's with a block layer.

use crate::cpu;
use flashweir_core::Duration;
use flashweir_device::presets::preset;
use flashweir_fs::Kind;
use flashweir_fs::vfs::{HostCosts, MountOptions};
use flashweir_host::HostConfig;
use flashweir_lab::files::{self, Setup, Work};
use flashweir_sim::stack::FlushMode;
use flashweir_sim::volume::MakeOptions;
use flashweir_workload::fio::parse_job_file_on_files;

/// Random writes past the page cache, 32 in flight, to a file that fills an eighth of the volume.
const DIRECT: &str = "[writes]\nrw=randwrite\nbs=4k\nsize=2g\ndirect=1\nioengine=libaio\niodepth=32\n";
/// The same into the page cache, whose write-back is the device's load.
const BUFFERED: &str = "[writes]\nrw=randwrite\nbs=4k\nsize=2g\n";
/// One after the other, which write-back makes into large requests.
const SEQUENTIAL: &str = "[writes]\nrw=write\nbs=4k\nsize=2g\n";

type Values = Vec<(&'static str, f64)>;

pub(crate) fn direct() -> Result<Values, String> {
    writes(DIRECT, Kind::F2fs)
}

pub(crate) fn buffered() -> Result<Values, String> {
    writes(BUFFERED, Kind::F2fs)
}

pub(crate) fn ext4_direct() -> Result<Values, String> {
    writes(DIRECT, Kind::Ext4)
}

pub(crate) fn ext4_buffered() -> Result<Values, String> {
    writes(BUFFERED, Kind::Ext4)
}

pub(crate) fn ext4_sequential() -> Result<Values, String> {
    writes(SEQUENTIAL, Kind::Ext4)
}

/// The stack is that of `weir files`.
fn writes(job: &str, kind: Kind) -> Result<Values, String> {
    let jobs = parse_job_file_on_files("writes.fio", job).map_err(|error| error.to_string())?.jobs;
    let mut device = preset("rflush").ok_or("no preset rflush")?;
    // 16 GiB: the file takes an eighth of it.
    device.geometry.chips_per_channel = 12;
    let setup = Setup {
        device,
        flush: if kind.has_range_flushes() { FlushMode::RangeFlush } else { FlushMode::Flush },
        block_layer: (kind == Kind::Ext4).then(HostConfig::default),
        host_ftl: None,
        mode: kind.into(),
        mount: MountOptions { costs: HostCosts::preset("server")?, ..MountOptions::default() },
        workloads: vec![("writes".into(), Work::Fio(jobs))],
        seed: 1,
        interval: Duration::from_millis(100),
        ramp: Duration::ZERO,
        runtime: Some(Duration::from_secs(20)),
        is_direct: false,
        volume: MakeOptions::default(),
        is_aged: false,
        is_atomic: false,
        is_cut: false,
        ballast_bytes: 0,
    };
    let mut before = None;
    let result = files::run(&setup, &mut |fraction| {
        if fraction.is_some() && before.is_none() {
            before = cpu::seconds().ok();
        }
        true
    });
    let after = cpu::seconds()?;
    let result = result.map_err(|error| error.to_string())?.ok_or("nobody stops it")?;
    let writes = result.workloads[0].sum(&["write"]).calls as f64;
    let time = after - before.ok_or("the run has no middle")?;
    Ok(vec![
        ("writes_per_cpu_s", writes / time),
        ("writes", writes),
        ("cpu_s", time),
        ("host_units_written", result.metrics["device.host_units_written"] as f64),
    ])
}
