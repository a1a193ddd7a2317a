//! `cargo xtask smp-costs`: what real threads measure, kept as evidence.

use flashweir_judges::builds::cargo;
use flashweir_judges::host::{commit, machine, root, seed};
use flashweir_judges::steps::take;
use serde_json::Value;

/// Measures the costs of the parts of host FTLs and writes them down.
pub(crate) fn costs() -> Result<bool, String> {
    keep("smp-costs", &[])
}

/// Runs a bench of `flashweir-threads` and writes its document to `docs/evidence`.
fn keep(name: &str, args: &[&str]) -> Result<bool, String> {
    let bench = name.rsplit('-').next().expect("a name has a last word");
    let what =
        ["bench", "--locked", "--profile", "dist", "--quiet", "-p", "flashweir-threads", "--bench", bench];
    let text = take(cargo(seed()?).args(what).arg("--").args(args))?;
    let mut document: Value =
        serde_json::from_str(&text).map_err(|error| format!("{name}: {error}: {text}"))?;
    document["commit"] = commit().into();
    document["machine"] = machine().into();
    document["name"] = name.into();
    let file = root().join("docs/evidence").join(format!("{name}.json"));
    std::fs::write(&file, format!("{document:#}\n"))
        .map_err(|error| format!("{}: {error}", file.display()))?;
    println!("{}", file.display());
    Ok(true)
}
