//! `cargo xtask bench`: the bars of speed and memory, measured by `benches/`, each in a process of its own, and beside rivals.
//!
//! A bar of `benches/` is a count per CPU second or a number of bytes. The others compare `weir` with another program, or a
//! server with its model, in the same run; wall-clock time by itself is judged nowhere.

use crate::{bench_metadata, bench_mount, bench_mqsim, bench_nbd};
use flashweir_judges::builds::cargo;
use flashweir_judges::host::{commit, machine, out_dir, published, seed};
use flashweir_judges::steps::take;
use serde_json::{Value, json};
use std::process::Command;

/// Requirement on a measured value.
#[derive(Clone, Copy, Debug)]
enum Bar {
    AtLeast(f64),
    AtMost(f64),
}

/// Name of the bench, the value that it prints, its unit, the bar.
const BARS: [(&str, &str, &str, Bar); 13] = [
    ("qd32-read", "requests_per_cpu_s", "requests/CPU s", Bar::AtLeast(2e6)),
    ("qd32-write", "requests_per_cpu_s", "requests/CPU s", Bar::AtLeast(2e6)),
    ("waf-only", "flash_writes_per_cpu_s", "flash writes/CPU s", Bar::AtLeast(10e6)),
    ("memory-512g", "peak_resident_bytes", "bytes", Bar::AtMost(300e6)),
    ("crash-states", "states_per_cpu_s", "states/CPU s", Bar::AtLeast(10e3)),
    ("device-clone", "units_per_cpu_s", "units/CPU s", Bar::AtLeast(100e6)),
    ("stack-direct", "writes_per_cpu_s", "writes/CPU s", Bar::AtLeast(400e3)),
    ("stack-buffered", "writes_per_cpu_s", "writes/CPU s", Bar::AtLeast(400e3)),
    ("ext4-direct", "writes_per_cpu_s", "writes/CPU s", Bar::AtLeast(400e3)),
    ("ext4-buffered", "writes_per_cpu_s", "writes/CPU s", Bar::AtLeast(400e3)),
    ("ext4-sequential", "writes_per_cpu_s", "writes/CPU s", Bar::AtLeast(400e3)),
    ("block-layer", "requests_per_cpu_s", "requests/CPU s", Bar::AtLeast(500e3)),
    ("nbd-session", "requests_per_cpu_s", "requests/CPU s", Bar::AtLeast(1e6)),
];

/// Runs the named benches, or all; with `--check` a missed bar is a failure.
pub(crate) fn run(args: &[&str]) -> Result<bool, String> {
    let mounted = bench_mount::SPEEDS.iter().map(|speed| speed.0);
    let served = bench_nbd::SPEEDS.iter().map(|speed| speed.0).chain(mounted);
    let beside_mqsim = bench_mqsim::SPEEDS.map(|speed| speed.0);
    // These benches need `weir`.
    let served: Vec<&str> = served.chain([LATENCY, METADATA]).chain(beside_mqsim).collect();
    let known: Vec<&str> = BARS.iter().map(|bar| bar.0).chain(served.clone()).collect();
    let (mut check, mut runs, mut names) = (false, "5", Vec::new());
    let mut rest = args.iter();
    while let Some(&arg) = rest.next() {
        match arg {
            "--check" => check = true,
            "--runs" => runs = rest.next().ok_or("--runs needs a number")?,
            name if known.contains(&name) => names.push(name),
            other => return Err(format!("no bench {other:?}; there are {}", known.join(", "))),
        }
    }
    let seed = seed()?;
    let build = |what: [&str; 2]| {
        take(cargo(seed).args(["build", "--locked", "--profile", "dist", "--quiet"]).args(what)).map(drop)
    };
    let program = published("flashweir-benches");
    let wanted = |name: &str| names.is_empty() || names.contains(&name);
    if BARS.iter().any(|bar| wanted(bar.0)) {
        build(["-p", "flashweir-benches"])?;
    }
    let mut table = Table::default();
    println!("{}", machine());
    println!("{:<16} {:>14} {:>14}  {:<20} verdict", "bench", "bar", "measured", "unit");
    for (name, key, unit, bar) in BARS.iter().filter(|bar| wanted(bar.0)) {
        let text = take(Command::new(&program).args([name, "--runs", runs]))?;
        let answer: Value =
            serde_json::from_str(&text).map_err(|error| format!("{name}: {error}: {text}"))?;
        let value = answer[*key].as_f64().ok_or_else(|| format!("{name}: no {key} in {text}"))?;
        table.add(name, value, unit, *bar, answer);
    }
    if served.into_iter().any(wanted) {
        build(["--bin", "weir"])?;
    }
    for (name, disk, rw, depth) in bench_nbd::SPEEDS.into_iter().filter(|speed| wanted(speed.0)) {
        let (ours, theirs) = bench_nbd::speed(disk, rw, depth)?;
        let answer = json!({ "iops": ours, "nbdkit_iops": theirs });
        table.add(name, ours / theirs, "of nbdkit's IOPS", Bar::AtLeast(0.9), answer);
    }
    for (name, rw, depth) in bench_mount::SPEEDS.into_iter().filter(|speed| wanted(speed.0)) {
        let bench_mount::Speed { ours, bindfs, ext4_loop } = bench_mount::speed(rw, depth)?;
        let answer = json!({ "iops": ours, "bindfs_iops": bindfs, "ext4_loop_iops": ext4_loop });
        table.add(name, ours / bindfs, "of bindfs's IOPS", Bar::AtLeast(0.8), answer);
    }
    if wanted(LATENCY) {
        let bench_nbd::Latency { model, server, late } = bench_nbd::latency()?;
        let answer = json!({ "model_p50_ns": model, "server_p50_ns": server, "late_p50_p99_ns": late });
        table.add(LATENCY, server / model, "of the model's p50", Bar::AtMost(1.05), answer);
    }
    if wanted(METADATA) {
        let measured = bench_metadata::speed()?;
        for (format, rates) in [("ext4", &measured.ext4), ("f2fs", &measured.f2fs)] {
            for operation in bench_metadata::OPERATIONS {
                let (name, answer) = (format!("{operation}-{format}"), measured.answer(operation));
                let (rival, unit, bar) = match operation {
                    // The kernel answers `stat` from its cache.
                    "stat" => (&measured.ext4_loop, "of Linux's ext4", 0.8),
                    _ => (&measured.passthrough, "of passthrough_ll", 1.0),
                };
                table.add(&name, rates[operation] / rival[operation], unit, Bar::AtLeast(bar), answer);
            }
        }
    }
    for (name, workload) in bench_mqsim::SPEEDS.into_iter().filter(|speed| wanted(speed.0)) {
        match bench_mqsim::program() {
            Some(mqsim) => {
                let speed = bench_mqsim::speed(&mqsim, workload)?;
                let ratio = speed.ours / speed.theirs;
                table.add(name, ratio, "of MQSim's requests/CPU s", Bar::AtLeast(20.0), speed.answer());
            }
            None if names.is_empty() => println!("{name:<16} not measured: MQSIM names no program"),
            None => return Err(format!("{name}: expected MQSim's program in the environment as MQSIM")),
        }
    }
    let Table { results, missed } = table;
    let file = out_dir()?.join("bench.json");
    let report = json!({ "commit": commit(), "machine": machine(), "runs": runs, "results": results });
    std::fs::write(&file, format!("{report:#}\n")).map_err(|error| format!("{}: {error}", file.display()))?;
    println!("{} met, {missed} missed; details in {}", results.len() as u32 - missed, file.display());
    Ok(!check || missed == 0)
}

/// Name of the bar of latency in real time.
const LATENCY: &str = "nbd-latency";

/// Name of the bars of directory operations on a mount.
const METADATA: &str = "mount-metadata";

#[derive(Default)]
struct Table {
    results: Vec<Value>,
    missed: u32,
}

impl Table {
    /// Judges a value and prints its line.
    fn add(&mut self, name: &str, value: f64, unit: &str, bar: Bar, answer: Value) {
        let (met, bar) = match bar {
            Bar::AtLeast(bar) => (value >= bar, format!("≥ {}", grouped(bar))),
            Bar::AtMost(bar) => (value <= bar, format!("≤ {}", grouped(bar))),
        };
        self.missed += u32::from(!met);
        let verdict = if met { "met" } else { "MISSED" };
        println!("{name:<16} {bar:>14} {:>14}  {unit:<20} {verdict}", grouped(value));
        self.results.push(json!({ "name": name, "bar": bar, "met": met, "answer": answer }));
    }
}

/// A number with its digits in groups of three; below 100, with two decimals.
fn grouped(value: f64) -> String {
    if value < 100.0 {
        return format!("{value:.2}");
    }
    let digits = format!("{value:.0}");
    let mut text = String::new();
    for (i, digit) in digits.chars().enumerate() {
        if i > 0 && (digits.len() - i) % 3 == 0 {
            text.push(',');
        }
        text.push(digit);
    }
    text
}

#[cfg(test)]
mod tests {
    use super::grouped;

    #[test]
    fn digits_stand_in_groups_of_three() {
        assert_eq!([0.9, 1000.4, 1e7].map(grouped), ["0.90", "1,000", "10,000,000"]);
    }
}
