//! SQLite's batch-atomic writes: no rollback journal where the mount has sets, one for each transaction elsewhere, and whole
//! transactions after power cuts.

use super::mounted::{END, Mount, image, is_good, number_in};
use crate::builds::cargo;
use crate::judge::Finding;
use crate::place::Place;
use crate::program::{Program, run as program, wait_until};
use std::path::{Path, PathBuf};

/// The example, and the options of mounts with sets: by SHARE on both formats, with and without the kernel keeping what is written, and by
/// the journal.
const SETS: [(&str, &str); 5] = [
    ("ext4", "--speed real --device share-960evo"),
    ("f2fs", "--speed real --device share-960evo"),
    ("ext4", "--speed real --device share-960evo --write-back"),
    ("f2fs", "--speed real --device share-960evo --write-back"),
    ("ext4", "--speed real --journal-mode journal"),
];
const CUTS: u64 = 2;

pub(super) fn judge(place: &Place) -> Finding {
    let example = place.path("batch");
    let (sqlite, source) = (sqlite()?, place.path("batch.c"));
    std::fs::write(&source, include_str!("batch.c")).map_err(|error| format!("{source}: {error}"))?;
    let (include, amalgamation) = (format!("-I{}", sqlite.display()), sqlite.join("sqlite3.c"));
    let amalgamation = amalgamation.display().to_string();
    let feature = "-DSQLITE_ENABLE_BATCH_ATOMIC_WRITE";
    program(
        place,
        &[
            "cc",
            "-O1",
            "-w",
            feature,
            &include,
            "-o",
            &example,
            &source,
            &amalgamation,
            "-lpthread",
            "-ldl",
            "-lm",
        ],
    )?;
    let mut rounds = 0;
    for (format, options) in SETS {
        let image = image(place, format)?;
        let mount = Mount::new(place, &image, options)?;
        let database = mount.path("db");
        said(place, &[&example, &database, "20"], "20 transactions, 0 journals")?;
        for cut in 0..CUTS {
            let mut batch = Program::start(place, &[&example, &database, "1000000000"])?;
            let wanted = format!("{} transactions, 0 journals", 100 * (1 + cut));
            wait_until(&format!("{format} {options}: {wanted}"), || Ok(batch.output().contains(&wanted)))?;
            mount.cut(place.seed() + cut)?;
            if batch.wait(END)?.success() {
                return Err(format!("{format} {options}: SQLite saw no cut"));
            }
            let checked = program(place, &[&example, "--check", &database])?;
            let round = number_in(&checked);
            rounds += 100 * (1 + cut);
            if round < rounds_of(cut) {
                return Err(format!(
                    "{format} {options}: round {round} after {} were committed",
                    rounds_of(cut)
                ));
            }
        }
        mount.unmount()?;
        is_good(place, format, &image)?;
    }
    for format in ["ext4", "f2fs"] {
        let image = image(place, format)?;
        let mount = Mount::new(place, &image, "--speed max")?;
        said(place, &[&example, &mount.path("db"), "20"], "20 transactions, 20 journals")?;
        mount.unmount()?;
    }
    Ok(format!("{} cuts, at least {rounds} transactions without a journal", SETS.len() as u64 * CUTS))
}

/// Number of transactions that are committed at the least when the power is cut this time.
fn rounds_of(cut: u64) -> u64 {
    20 + (0..=cut).map(|cut| 100 * (1 + cut)).sum::<u64>()
}

fn said(place: &Place, command: &[&str], wanted: &str) -> Result<(), String> {
    let said = program(place, command)?;
    match said.lines().any(|line| line == wanted) {
        true => Ok(()),
        false => Err(format!("{}: expected `{wanted}`, found `{}`", command.join(" "), said.trim())),
    }
}

/// The directory of SQLite's source, which cargo has fetched for our own use of it.
fn sqlite() -> Result<PathBuf, String> {
    let output = cargo(0)
        .args(["metadata", "--format-version", "1", "--locked"])
        .output()
        .map_err(|error| format!("cargo metadata: {error}"))?;
    let metadata: serde_json::Value =
        serde_json::from_slice(&output.stdout).map_err(|error| format!("cargo metadata: {error}"))?;
    let packages = metadata["packages"].as_array().into_iter().flatten();
    let mut manifests = packages
        .filter(|package| package["name"] == "libsqlite3-sys")
        .filter_map(|package| Some(Path::new(package["manifest_path"].as_str()?).with_file_name("sqlite3")));
    manifests.next().ok_or_else(|| "cargo metadata: expected libsqlite3-sys".into())
}
