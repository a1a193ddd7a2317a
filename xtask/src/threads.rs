//! `cargo xtask loom`, `cargo xtask shuttle`, `cargo xtask smp-costs` and `cargo xtask threads`: models of interleavings, and what real threads measure, kept as evidence.

use flashweir_judges::builds::cargo;
use flashweir_judges::host::{commit, machine, root, seed, target_dir};
use flashweir_judges::steps::{Verdict, show, take};
use serde_json::{Value, json};
use std::process::Command;

/// Runs loom's models; returns whether all hold.
pub(crate) fn loom() -> Result<bool, String> {
    Ok(matches!(models(seed()?), Verdict::Passed(_)))
}

/// Runs whole disks in schedules of shuttle; returns whether all keep their promises.
pub(crate) fn shuttle() -> Result<bool, String> {
    Ok(matches!(schedules(seed()?), Verdict::Passed(_)))
}

/// Loom's models of `flashweir-threads`.
pub(crate) fn models(seed: u64) -> Verdict {
    with_atomics_of("loom", &["--lib", "models"], seed)
}

/// Shuttle's schedules of whole disks.
pub(crate) fn schedules(seed: u64) -> Verdict {
    with_atomics_of("shuttle", &["--test", "schedules", "--", "--nocapture"], seed)
}

/// Tests of `flashweir-threads` with other atomics; they are compiled into a directory of their own.
fn with_atomics_of(checker: &str, tests: &[&str], seed: u64) -> Verdict {
    let what = ["test", "--locked", "--release", "--quiet", "-p", "flashweir-threads"];
    let mut command = cargo(seed);
    // The planted bugs panic by the dozen.
    command.env("RUSTFLAGS", format!("--cfg {checker}")).env("RUST_BACKTRACE", "0");
    command.env("CARGO_TARGET_DIR", target_dir().join(checker));
    show(command.args(what).args(tests))
}

/// Measures the costs of the parts of host FTLs and writes them down.
pub(crate) fn costs() -> Result<bool, String> {
    keep("smp-costs", bench("costs", &[], &[])?)
}

/// Measures the assemblies on two CPUs, and where their time goes in a build that measures it, and writes them down.
pub(crate) fn speeds() -> Result<bool, String> {
    let mut document = bench("threads", &[], &[])?;
    document["measuring_build"] =
        bench("threads", &["--features", "measure"], &["--rounds", "5", "--gc-rounds", "0"])?;
    document["fio_null"] = fio_null()?;
    keep("threads", document)
}

/// Requests per second of fio's engine that does nothing, in its threads on as many CPUs, with the same depth: the most that a program
/// which asks as fio does could see here. Upper quartiles, as of our rounds.
fn fio_null() -> Result<Value, String> {
    const RUNS: usize = 7;
    let mut rows = Vec::new();
    for (rw, threads) in [("randwrite", "1"), ("randwrite", "2"), ("randread", "1"), ("randread", "2")] {
        let line = format!(
            "--name=null --ioengine=null --rw={rw} --bs=4k --iodepth=2 --size=1g --thread --numjobs={threads} --group_reporting \
             --cpus_allowed=0,1 --cpus_allowed_policy=split --time_based --runtime=2 --norandommap --randrepeat=0 \
             --output-format=json"
        );
        let mut per_s = Vec::new();
        for _ in 0..RUNS {
            let text = take(Command::new("fio").args(line.split(' ')))?;
            let said: Value = serde_json::from_str(&text).map_err(|error| format!("fio: {error}: {text}"))?;
            let side = rw.trim_start_matches("rand");
            let iops =
                said["jobs"][0][side]["iops"].as_f64().ok_or_else(|| format!("fio said no IOPS: {text}"))?;
            per_s.push(iops.round());
        }
        per_s.sort_by(f64::total_cmp);
        rows.push(json!({ "job": rw, "threads": threads.parse::<u32>().ok(), "per_s": per_s[RUNS * 3 / 4], "runs": per_s }));
    }
    Ok(json!({ "how": format!("{RUNS} runs of two seconds; per_s is their upper quartile"), "rows": rows }))
}

/// The document that a bench of `flashweir-threads` prints.
fn bench(name: &str, options: &[&str], args: &[&str]) -> Result<Value, String> {
    let what =
        ["bench", "--locked", "--profile", "dist", "--quiet", "-p", "flashweir-threads", "--bench", name];
    let text = take(cargo(seed()?).args(what).args(options).arg("--").args(args))?;
    serde_json::from_str(&text).map_err(|error| format!("{name}: {error}: {text}"))
}

/// Writes a document to `docs/evidence`.
fn keep(name: &str, mut document: Value) -> Result<bool, String> {
    document["commit"] = commit().into();
    document["machine"] = machine().into();
    document["name"] = name.into();
    let file = root().join("docs/evidence").join(format!("{name}.json"));
    std::fs::write(&file, format!("{document:#}\n"))
        .map_err(|error| format!("{}: {error}", file.display()))?;
    println!("{}", file.display());
    Ok(true)
}
