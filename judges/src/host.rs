//! The machine and the checkout on which judges and steps run.

use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::{SystemTime, UNIX_EPOCH};

/// Root of the workspace.
pub fn root() -> PathBuf {
    let here = Path::new(env!("CARGO_MANIFEST_DIR"));
    here.parent().expect("this crate is a directory of the workspace").to_path_buf()
}

/// Cargo's target directory.
pub fn target_dir() -> PathBuf {
    match std::env::var_os("CARGO_TARGET_DIR") {
        Some(dir) => root().join(dir),
        None => root().join("target"),
    }
}

/// Path of a program that was built in the profile `release`.
pub fn built(name: &str) -> PathBuf {
    target_dir().join("release").join(name)
}

/// Path of a program that was built in the profile `dist`.
pub fn published(name: &str) -> PathBuf {
    target_dir().join("dist").join(name)
}

/// Directory for the output of this tool.
pub fn out_dir() -> Result<PathBuf, String> {
    let dir = target_dir().join("xtask");
    std::fs::create_dir_all(&dir).map_err(|e| format!("{}: {e}", dir.display()))?;
    Ok(dir)
}

/// Directories of administration tools, which are not on every user's path.
pub const ADMIN_PATH: &str = "/usr/local/sbin:/usr/sbin:/sbin";

/// Whether a program is on the path or among the administration tools.
pub fn on_path(program: &str) -> bool {
    let path = std::env::var_os("PATH").unwrap_or_default();
    let mut dirs = std::env::split_paths(&path).chain(std::env::split_paths(ADMIN_PATH));
    dirs.any(|dir| dir.join(program).is_file())
}

/// Whether we are root.
pub fn is_root() -> bool {
    output("id", &["-u"]).is_some_and(|id| id == "0")
}

/// Trimmed standard output of a program that succeeded.
pub fn output(program: &str, args: &[&str]) -> Option<String> {
    let output = Command::new(program).args(args).current_dir(root()).output().ok()?;
    output.status.success().then(|| String::from_utf8_lossy(&output.stdout).trim().to_string())
}

/// Hash of the commit, with `+changes` if the checkout differs from it, except in evidence, which changes while it is gathered.
pub fn commit() -> String {
    let commit = output("git", &["rev-parse", "HEAD"]).unwrap_or_else(|| "unknown".into());
    let differs =
        ["status", "--porcelain", "--untracked-files=no", "--", ":/", ":(top,exclude)docs/evidence"];
    match output("git", &differs) {
        Some(changes) if changes.is_empty() => commit,
        _ => format!("{commit}+changes"),
    }
}

/// Name and number of processors.
pub fn machine() -> String {
    let info = std::fs::read_to_string("/proc/cpuinfo").unwrap_or_default();
    let model = info.lines().find_map(|line| line.strip_prefix("model name")?.split_once(": "));
    let model = model.map_or("unknown processor", |(_, name)| name.trim());
    let cores = std::thread::available_parallelism().map_or(1, usize::from);
    format!("{model}, {cores} cores")
}

/// Seconds since 1970.
pub fn unix_seconds() -> u64 {
    SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |time| time.as_secs())
}

/// Seed of the rotating parts: `FLASHWEIR_SEED`, or one that changes with each commit and each day.
pub fn seed() -> Result<u64, String> {
    if let Ok(text) = std::env::var("FLASHWEIR_SEED") {
        return text.parse().map_err(|_| format!("FLASHWEIR_SEED={text}: expected a number below 2^64"));
    }
    let commits = output("git", &["rev-list", "--count", "HEAD"]);
    let commits: u64 = commits.and_then(|count| count.parse().ok()).unwrap_or(0);
    Ok(commits * 100_000 + unix_seconds() / 86_400)
}

/// Count in this environment variable, or the usual one.
pub fn count_or(variable: &str, usual: u64) -> Result<u64, String> {
    let Ok(text) = std::env::var(variable) else { return Ok(usual) };
    text.parse().map_err(|_| format!("{variable}={text}: expected a number below 2^64"))
}
