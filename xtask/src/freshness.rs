//! Age of evidence: for each file in `docs/evidence`, the code that it judges, and how much of that has changed since.
//!
//! Place: a step of `cargo xtask ci`, which reports ages and fails for none: full counts take hours, and are gathered when a change
//! deserves it.
//!
//! Invariant: the step fails if a file of evidence is not in the table, so that none is forgotten.

use flashweir_judges::host::{output, root};
use flashweir_judges::steps::Verdict;
use serde_json::Value;

/// Crates of the device, and those that judge it.
const DEVICE: &[&str] =
    &["crates/core", "crates/contract", "crates/ftl", "crates/device", "crates/host", "crates/crash"];
/// Further crates that power cuts of file systems depend on.
const FILES: &[&str] = &["crates/sim", "crates/fs"];

/// Paths that each piece of evidence judges; a directory includes everything below it.
const JUDGES: [(&str, &[&[&str]]); 18] = [
    ("claims-rflush", &[DEVICE, FILES, &["crates/workload", "crates/db", "crates/lab"]]),
    ("crash-devices", &[DEVICE]),
    ("crash-drawn", &[DEVICE]),
    ("file-cuts", &[DEVICE, FILES]),
    ("file-cuts-ext4", &[DEVICE, FILES]),
    ("file-pairs", &[DEVICE, FILES]),
    (
        "fuzz-device-commands",
        &[&[
            "crates/core",
            "crates/ftl",
            "crates/device",
            "crates/crash/src/devices",
            "crates/crash/tests/it/commands",
            "fuzz",
        ]],
    ),
    ("fuzz-nbd-session", &[&["crates/serve/src/nbd", "fuzz"]]),
    ("live-cuts", &[DEVICE, &["crates/sim", "crates/serve"]]),
    ("live-cuts-qblke", &[DEVICE, &["crates/host", "crates/sim", "crates/serve"]]),
    ("live-cuts-threads", &[&["crates/ftl", "crates/threads", "crates/serve"]]),
    ("mariadb-cuts", &[DEVICE, FILES, &["crates/serve", "examples/databases"]]),
    ("mqsim", &[&["crates/core", "crates/ftl", "crates/device", "crates/sim"]]),
    ("mutants", &[DEVICE, FILES, &["crates/db", "crates/sqlite", "xtask/src/mutants"]]),
    ("smp-costs", &[&["crates/threads"]]),
    ("sqlite-cuts", &[DEVICE, FILES, &["crates/sqlite"]]),
    ("threads", &[&["crates/ftl", "crates/threads"]]),
    ("waf-theory", &[&["crates/core", "crates/ftl", "crates/device"]]),
];

/// Names of the existing pieces of evidence, sorted.
fn files() -> Result<Vec<String>, String> {
    let dir = root().join("docs/evidence");
    let entries = std::fs::read_dir(&dir).map_err(|error| format!("{}: {error}", dir.display()))?;
    let names = entries.flatten().map(|entry| entry.file_name().to_string_lossy().into_owned());
    let mut names: Vec<String> =
        names.filter_map(|name| name.strip_suffix(".json").map(str::to_owned)).collect();
    names.sort();
    Ok(names)
}

fn read(name: &str) -> Result<Value, String> {
    let path = root().join("docs/evidence").join(format!("{name}.json"));
    let text = std::fs::read_to_string(&path).map_err(|error| format!("{}: {error}", path.display()))?;
    serde_json::from_str(&text).map_err(|error| format!("{}: {error}", path.display()))
}

/// Age of one piece of evidence: `None` if the code that it judges is unchanged.
pub(crate) fn age(name: &str, content: &Value) -> Result<Option<String>, String> {
    let Some((_, paths)) = JUDGES.iter().find(|(known, _)| *known == name) else {
        return Err(format!("docs/evidence/{name}.json is not in xtask/src/freshness.rs"));
    };
    let commit = content["commit"].as_str().unwrap_or_default();
    let (hash, rest) = commit.split_at(commit.find('+').unwrap_or(commit.len()));
    if output("git", &["cat-file", "-e", hash]).is_none() {
        return Ok(Some(format!("of commit {hash}, which this clone does not have")));
    }
    let mut arguments = vec!["diff", "--name-only", hash, "--"];
    arguments.extend(paths.iter().copied().flatten());
    let Some(changed) = output("git", &arguments) else {
        return Ok(Some(format!("of commit {hash}, to which git does not compare")));
    };
    let changed = changed.lines().count();
    let commits = format!("{hash}..HEAD");
    let commits = output("git", &["rev-list", "--count", &commits]).unwrap_or_default();
    Ok(match (changed, rest) {
        (0, "") => None,
        (0, _) => Some("of code that was not committed".into()),
        _ => Some(format!("{changed} files that it judges changed in {commits} commits since")),
    })
}

/// Reports for each piece of evidence whether the code that it judges is unchanged.
pub(crate) fn step() -> Verdict {
    let names = match files() {
        Ok(names) => names,
        Err(why) => return Verdict::Failed(why),
    };
    let mut of_today = 0;
    for name in &names {
        match read(name).and_then(|content| age(name, &content)) {
            Ok(None) => of_today += 1,
            Ok(Some(what)) => println!("   {name}: {what}"),
            Err(why) => return Verdict::Failed(why),
        }
    }
    Verdict::Passed(format!("{of_today} of {} are of the code as it is", names.len()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_piece_of_evidence_says_what_it_judges_and_that_is_there() {
        for name in files().expect("there is evidence") {
            assert!(JUDGES.iter().any(|(known, _)| *known == name), "{name}");
        }
        for path in JUDGES.iter().flat_map(|(_, paths)| paths.iter().copied().flatten()) {
            assert!(root().join(path).exists(), "{path}");
        }
    }
}
