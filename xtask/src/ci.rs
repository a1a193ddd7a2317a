//! `cargo xtask check` and `cargo xtask ci`: the steps that a change must pass.
//!
//! `check` needs the Rust toolchain and nothing else: no root, no `/dev/fuse`, no package. `ci` has the same steps and those that need
//! more: a built `weir`, and outside programs and file systems that judge it.
//!
//! Times are printed and never judged here; `cargo xtask bench --check` judges them.

use crate::campaigns::{CRASH_DRAWN, CRASH_STATES_EACH, CRASH_WORLDS, FILE_CUTS, SQLITE_CUTS};
use crate::{file_pairs, freshness, threads};
use flashweir_judges::builds::{BUILD, cargo, weir, weir_builds};
use flashweir_judges::host::{on_path, out_dir, root, seed};
use flashweir_judges::judge::Judges;
use flashweir_judges::steps::{Steps, Verdict, show, take};
use flashweir_judges::{ext4, f2fs, fio_formats, live_cuts, mount, packages, serve};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::{Mutex, PoisonError};

/// Runs the steps that need neither root nor other programs than the toolchain; returns whether none failed.
pub(crate) fn check() -> Result<bool, String> {
    let seed = seed()?;
    println!("seed {seed} (again: FLASHWEIR_SEED={seed} cargo xtask check)");
    let mut steps = Steps::default();
    checks(&mut steps, seed);
    Ok(steps.summary())
}

/// Runs all steps; returns whether none failed.
pub(crate) fn run() -> Result<bool, String> {
    let seed = seed()?;
    let out = out_dir()?;
    println!("seed {seed} (again: FLASHWEIR_SEED={seed} cargo xtask ci)");
    let mut steps = Steps::default();
    steps.step("Debian packages", || match packages::install_missing() {
        Ok(note) => Verdict::Passed(note),
        Err(why) => Verdict::Failed(why),
    });
    checks(&mut steps, seed);
    steps.step("licences and sources of dependencies", || deny(seed));
    steps.step("evidence beside the code", freshness::step);
    let built = steps.step(BUILD, || show(&mut weir_builds(seed)));
    if built {
        with_weir(&mut steps, seed, &out)?;
    }
    Ok(steps.summary())
}

fn checks(steps: &mut Steps, seed: u64) {
    steps.step("format", || show(cargo(seed).args(["fmt", "--all", "--check"])));
    steps.step("clippy", || {
        let what = ["clippy", "--locked", "--workspace", "--all-targets", "--quiet"];
        show(cargo(seed).args(what).args(["--", "-D", "warnings"]))
    });
    steps.step("documentation", || {
        let what = ["doc", "--locked", "--workspace", "--no-deps", "--document-private-items", "--quiet"];
        // Links between private modules are the map of the code; they resolve because private items are documented.
        show(cargo(seed).env("RUSTDOCFLAGS", "-D warnings -A rustdoc::private-intra-doc-links").args(what))
    });
    steps.step("tests", || tests(seed));
    steps.step("models of interleavings", || threads::models(seed));
    steps.step("schedules of disks on threads", || threads::schedules(seed));
    steps.step("documentation tests", || {
        show(cargo(seed).args(["test", "--locked", "--workspace", "--doc", "--quiet"]))
    });
}

fn with_weir(steps: &mut Steps, seed: u64, out: &Path) -> Result<(), String> {
    let jobs = files("examples", "fio")?;
    steps.step("fio accepts the example job files", || {
        if !on_path("fio") {
            return Verdict::Failed("fio is not installed".into());
        }
        for job in &jobs {
            if let Verdict::Failed(why) = show(Command::new("fio").arg("--parse-only").arg(job)) {
                return Verdict::Failed(why);
            }
        }
        Verdict::Passed(format!("{} files", jobs.len()))
    });
    let scenarios = files("scenarios", "toml")?;
    for scenario in &scenarios {
        let name = format!("run {}", name_of(scenario));
        steps.step(&name, || table(weir(seed).arg("run").arg(scenario)));
    }
    for job in &jobs {
        let name = format!("run {}", name_of(job));
        steps.step(&name, || table(weir(seed).arg("fio").arg(job).args(["--device", "consumer-tlc-nvme"])));
    }
    steps.step("same bytes with one and two workers", || same_bytes(seed, out));
    steps.step("crash laboratory", || crash(seed));
    steps.step("planted bugs are found", || planted(seed));
    steps.step("cuts of a file system", || file_cuts(seed));
    steps.step("cuts below SQLite", || sqlite_cuts(seed));
    steps.step("live power cuts", || live_cuts::ci(seed));
    Judges::steps_of(&[ext4::JUDGES, f2fs::JUDGES], steps, seed);
    serve::JUDGES.steps(steps, seed);
    mount::JUDGES.steps(steps, seed);
    fio_formats::JUDGES.steps(steps, seed);
    Ok(())
}

fn tests(seed: u64) -> Verdict {
    if on_path("cargo-nextest") {
        let what = ["nextest", "run", "--locked", "--workspace", "--status-level", "fail"];
        return show(cargo(seed).args(what).args(["--no-fail-fast", "--cargo-quiet"]));
    }
    let what = ["test", "--locked", "--workspace", "--lib", "--bins", "--tests", "--no-fail-fast", "--quiet"];
    show(cargo(seed).args(what))
}

fn deny(seed: u64) -> Verdict {
    if !on_path("cargo-deny") {
        return Verdict::Skipped("cargo-deny is not installed; deny.toml was not checked".into());
    }
    show(cargo(seed).args(["deny", "--locked", "check", "licenses", "bans", "sources"]))
}

/// Paths from the root of a directory's files with this extension, sorted.
fn files(dir: &str, extension: &str) -> Result<Vec<PathBuf>, String> {
    let entries = std::fs::read_dir(root().join(dir)).map_err(|error| format!("{dir}: {error}"))?;
    let names = entries.flatten().map(|entry| Path::new(dir).join(entry.file_name()));
    let mut files: Vec<PathBuf> =
        names.filter(|path| path.extension().is_some_and(|e| e == extension)).collect();
    files.sort();
    match files.is_empty() {
        true => Err(format!("{dir} has no *.{extension}")),
        false => Ok(files),
    }
}

fn name_of(path: &Path) -> String {
    path.display().to_string()
}

/// Passes if the program succeeds and prints a table: at least a header and one row.
fn table(command: &mut Command) -> Verdict {
    match take(command) {
        Err(why) => Verdict::Failed(why),
        Ok(text) if text.lines().filter(|line| !line.trim().is_empty()).count() < 2 => {
            Verdict::Failed("it printed no table".into())
        }
        Ok(text) => {
            print!("{text}");
            Verdict::Passed(String::new())
        }
    }
}

fn same_bytes(seed: u64, out: &Path) -> Verdict {
    let mut results = Vec::new();
    for workers in ["1", "2"] {
        let file = out.join(format!("workers-{workers}.json"));
        let what = ["run", "scenarios/first-look.toml", "--jobs", workers, "--output", "json"];
        if let Err(why) = take(weir(seed).args(what).arg("--out").arg(&file)) {
            return Verdict::Failed(why);
        }
        match std::fs::read(&file) {
            Ok(bytes) => results.push(bytes),
            Err(error) => return Verdict::Failed(format!("{}: {error}", file.display())),
        }
    }
    if results[0] == results[1] && !results[0].is_empty() {
        Verdict::Passed(format!("{} bytes of JSON", results[0].len()))
    } else {
        Verdict::Failed(format!("workers-1.json and workers-2.json in {} differ", out.display()))
    }
}

/// Runs the campaigns, in which fsck.f2fs or e2fsck checks a few volumes and Linux replays some journals, and every pair of
/// format, family and device. Then each bug that is planted in F2FS, or in ALFS, has to be found.
fn file_cuts(seed: u64) -> Verdict {
    let seed_text = seed.to_string();
    for what in FILE_CUTS {
        let all = ["crash", "files", "--quiet", "--seed", &seed_text];
        let judged: &[&str] = if file_pairs::has_judge(what) { &["--fsck-every", "500"] } else { &[] };
        if let Verdict::Failed(why) = show(weir(seed).args(all).args(judged).args(what.split(' '))) {
            return Verdict::Failed(why);
        }
    }
    if let Err(why) = pairs_of_files(seed) {
        return Verdict::Failed(why);
    }
    for format in ["f2fs", "alfs"] {
        let hunt =
            ["crash", "files", "--mutants", "--quiet", "--states-each", "30", "--count", "80", "--seed", "1"];
        let verdict = show(weir(seed).args(hunt).args(["--format", format]));
        if !matches!(verdict, Verdict::Passed(_)) {
            return verdict;
        }
    }
    Verdict::Passed(String::new())
}

/// Runs the pairs, two at once: each of them is too short for two threads of its own.
fn pairs_of_files(seed: u64) -> Result<(), String> {
    let seed_text = seed.to_string();
    let left = Mutex::new(file_pairs::of_run(seed).into_iter());
    let some = || {
        loop {
            let next = left.lock().unwrap_or_else(PoisonError::into_inner).next();
            let Some(pair) = next else { return Ok(()) };
            let all = ["crash", "files", "--quiet", "--jobs", "1", "--seed", &seed_text];
            // A hundred tables would hide a fault, so only violations are printed.
            take(weir(seed).args(all).args(pair.split(' ')))?;
        }
    };
    std::thread::scope(|scope| {
        let other = scope.spawn(some);
        let own = some();
        other.join().unwrap_or_else(|_| Err("a thread that runs pairs ended early".into())).and(own)
    })
}

fn sqlite_cuts(seed: u64) -> Verdict {
    let seed_text = seed.to_string();
    for what in SQLITE_CUTS {
        let all = ["crash", "sqlite", "--quiet", "--seed", &seed_text];
        if let Verdict::Failed(why) = show(weir(seed).args(all).args(what.split(' '))) {
            return Verdict::Failed(why);
        }
    }
    Verdict::Passed(String::new())
}

/// Each planted bug of the device has to be found, with the documented command and any seed.
fn planted(seed: u64) -> Verdict {
    show(weir(seed).args(["crash", "--mutants", "--quiet", "--seed", &seed.to_string()]))
}

fn crash(seed: u64) -> Verdict {
    let (seed_text, worlds, drawn) = (seed.to_string(), CRASH_WORLDS.to_string(), CRASH_DRAWN.to_string());
    let states_each = CRASH_STATES_EACH.to_string();
    let cut = |which: &[&str]| {
        let mut line = weir(seed);
        line.args(["crash", "--seed", &seed_text, "--states-each", &states_each]).args(which);
        line
    };
    let table = show(&mut cut(&["--worlds", &worlds]));
    if !matches!(table, Verdict::Passed(_)) {
        return table;
    }
    // A table of two hundred rows would hide a fault, so only violations are printed.
    match take(&mut cut(&["--drawn", &drawn, "--worlds", "1"])) {
        Ok(_) => Verdict::Passed(format!("and {drawn} drawn devices")),
        Err(why) => Verdict::Failed(why),
    }
}
