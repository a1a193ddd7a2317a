//! `cargo xtask loom`, `cargo xtask smp-costs` and `cargo xtask threads`: models of interleavings, and what real threads measure, kept as evidence.

use flashweir_judges::builds::cargo;
use flashweir_judges::host::{commit, machine, root, seed, target_dir};
use flashweir_judges::steps::{Verdict, show, take};
use serde_json::Value;

/// Runs loom's models; returns whether all hold.
pub(crate) fn loom() -> Result<bool, String> {
    Ok(matches!(models(seed()?), Verdict::Passed(_)))
}

/// Loom's models of `flashweir-threads`. Code is compiled with other atomics for them, and so into a directory of their own.
pub(crate) fn models(seed: u64) -> Verdict {
    let what = ["test", "--locked", "--release", "--quiet", "-p", "flashweir-threads", "--lib", "models"];
    let dir = target_dir().join("loom");
    // The planted bugs panic by the dozen.
    let mut command = cargo(seed);
    command.env("RUSTFLAGS", "--cfg loom").env("CARGO_TARGET_DIR", dir).env("RUST_BACKTRACE", "0");
    show(command.args(what))
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
    keep("threads", document)
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
