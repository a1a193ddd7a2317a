//! Closed forms and MQSim's answers (spec: the cross-validation data).

use crate::support::{device, filled, run_fio};
use flashweir_device::presets::preset;
use flashweir_lab::results::{JobResult, KindResult};
use flashweir_lab::workload::Kind;

fn only(job: &JobResult, kind: Kind) -> &KindResult {
    job.kind(kind).expect("the job did this")
}

const QD32_READ: &str = "[j]\nrw=randread\nbs=8k\niodepth=32\nnorandommap\nsize=50%\nruntime=2\ntime_based\n";
const QD32_WRITE: &str =
    "[j]\nrw=randwrite\nbs=8k\niodepth=32\nnorandommap\nsize=50%\nruntime=2\ntime_based\n";

fn close(what: &str, ours: f64, theirs: f64, band: f64) {
    let off = (ours - theirs) / theirs;
    println!("{what}: ours {ours:.0}, theirs {theirs:.0}, {:+.2} %", off * 100.0);
    assert!(off.abs() <= band, "{what}: {ours} is {:.2} % off {theirs}", off * 100.0);
}

#[test]
fn mqsim_depth_1_within_1_percent() {
    let config = preset("mqsim-small-ideal").unwrap();
    let (read, _) = run_fio(filled(&config, 1, 0.6), 1, &QD32_READ.replace("iodepth=32", "iodepth=1"));
    close("read QD1 ns", only(&read.jobs[0], Kind::Read).clat.summary.mean_ns, 102_442.0, 0.01);
    let (write, _) = run_fio(device(&config, 1), 1, &QD32_WRITE.replace("iodepth=32", "iodepth=1"));
    close("write QD1 ns", only(&write.jobs[0], Kind::Write).clat.summary.mean_ns, 777_501.0, 0.01);
}

#[test]
fn mqsim_depth_32_within_5_percent() {
    let config = preset("mqsim-small-ideal").unwrap();
    let (read, _) = run_fio(filled(&config, 1, 0.6), 1, QD32_READ);
    let job = &read.jobs[0];
    close("read QD32 IOPS", job.iops(only(job, Kind::Read)), 141_500.0, 0.05);
    close("read QD32 mean ns", only(job, Kind::Read).clat.summary.mean_ns, 226_150.0, 0.05);
    let (write, _) = run_fio(device(&config, 1), 1, QD32_WRITE);
    let job = &write.jobs[0];
    close("write QD32 IOPS", job.iops(only(job, Kind::Write)), 24_528.0, 0.05);
    close("write QD32 mean ns", only(job, Kind::Write).clat.summary.mean_ns, 1_304_760.0, 0.05);
}

#[test]
fn dynamic_allocation_reaches_the_ideal_answer() {
    let mut config = preset("mqsim-small-ideal").unwrap();
    config.ftl.allocation = flashweir_device::config::Allocation::Dynamic;
    let (write, _) = run_fio(device(&config, 1), 1, QD32_WRITE);
    let job = &write.jobs[0];
    close("dynamic write QD32 IOPS", job.iops(only(job, Kind::Write)), 41_200.0, 0.05);
}
