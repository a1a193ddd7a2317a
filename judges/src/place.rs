//! The directory in which one judge works.
//!
//! Invariants: its path is short, because the name of a unix socket has at most 107 bytes. It is only removed when
//! nothing is mounted in it.

use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::atomic::{AtomicU32, Ordering};

/// Beginning of the names of runs' directories; the process id follows.
const PREFIX: &str = "weir-judges-";

/// A directory of one judge.
#[derive(Debug)]
pub(crate) struct Place {
    dir: PathBuf,
    seed: u64,
    outputs: AtomicU32,
}

impl Place {
    /// Makes a new directory, after it has cleared what dead runs left behind.
    pub(crate) fn new(name: &str, seed: u64) -> Result<Self, String> {
        clear_dead_runs();
        let dir = std::env::temp_dir().join(format!("{PREFIX}{}", std::process::id())).join(name);
        std::fs::create_dir_all(&dir).map_err(|error| format!("{}: {error}", dir.display()))?;
        Ok(Self { dir, seed, outputs: AtomicU32::new(0) })
    }

    pub(crate) fn seed(&self) -> u64 {
        self.seed
    }

    /// The directory.
    pub(crate) fn dir(&self) -> &Path {
        &self.dir
    }

    /// Path of a file in this directory.
    pub(crate) fn path(&self, name: &str) -> String {
        self.dir.join(name).display().to_string()
    }

    /// Makes a directory in this one, unless it exists.
    pub(crate) fn make_dir(&self, name: &str) -> Result<String, String> {
        let path = self.path(name);
        std::fs::create_dir_all(&path).map_err(|error| format!("{path}: {error}"))?;
        Ok(path)
    }

    /// Writes a file in this directory; returns its path.
    pub(crate) fn write(&self, name: &str, content: &[u8]) -> Result<String, String> {
        let path = self.path(name);
        std::fs::write(&path, content).map_err(|error| format!("{path}: {error}"))?;
        Ok(path)
    }

    /// Makes a new file for the output of a program.
    pub(crate) fn new_output(&self, program: &str, line: &str) -> Result<PathBuf, String> {
        let number = self.outputs.fetch_add(1, Ordering::Relaxed);
        let program = program.rsplit('/').next().unwrap_or_default();
        let path = self.dir.join(format!("{number:03}-{program}.log"));
        std::fs::write(self.dir.join(format!("{number:03}-{program}.line")), line)
            .and_then(|()| std::fs::write(&path, ""))
            .map_err(|error| format!("{}: {error}", path.display()))?;
        Ok(path)
    }

    /// Prints the output of the last programs.
    pub(crate) fn show_log(&self) {
        const PROGRAMS: usize = 8;
        const LINES: usize = 12;
        let mut logs: Vec<PathBuf> = std::fs::read_dir(&self.dir)
            .map(|entries| entries.flatten().map(|entry| entry.path()).collect())
            .unwrap_or_default();
        logs.retain(|path| path.extension().is_some_and(|extension| extension == "log"));
        logs.sort();
        // The first one is usually the server, and always of interest.
        let skipped = logs.len().saturating_sub(PROGRAMS);
        for log in logs.iter().take(1).chain(logs.iter().skip(1.max(skipped))) {
            let line = std::fs::read_to_string(log.with_extension("line")).unwrap_or_default();
            let text = String::from_utf8_lossy(&std::fs::read(log).unwrap_or_default()).into_owned();
            let lines: Vec<&str> = text.lines().collect();
            println!("   $ {line}");
            for line in &lines[lines.len().saturating_sub(LINES)..] {
                println!("     {line}");
            }
        }
    }

    /// Mounts and attached devices that are left in it.
    pub(crate) fn leftovers(&self) -> Option<String> {
        let mut left = mounts_below(&self.dir);
        left.extend(loops_below(&self.dir));
        (!left.is_empty()).then(|| left.join(", "))
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        clear(&self.dir);
        if let Some(run) = self.dir.parent() {
            // Only the last judge finds it empty.
            let _ = std::fs::remove_dir(run);
        }
    }
}

/// Removes the remains of runs whose process has ended.
fn clear_dead_runs() {
    let Ok(entries) = std::fs::read_dir(std::env::temp_dir()) else { return };
    for entry in entries.flatten() {
        let name = entry.file_name().to_string_lossy().into_owned();
        let Some(process) = name.strip_prefix(PREFIX) else { continue };
        if process.parse::<u32>().is_ok() && !Path::new("/proc").join(process).exists() {
            clear(&entry.path());
        }
    }
}

/// Unmounts and detaches everything in a directory, then removes it. If a mount stays, so does the directory, because
/// the files in a mount are not ours.
fn clear(dir: &Path) {
    let quiet = |program: &str, args: &[&str]| {
        let mut command = Command::new(program);
        let _ = command.args(args).stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null()).status();
    };
    for _ in 0..2 {
        for mount in mounts_below(dir).iter().rev() {
            quiet("umount", &["-l", mount]);
        }
        for device in loops_below(dir) {
            quiet("losetup", &["-d", &device]);
        }
    }
    if mounts_below(dir).is_empty() {
        let _ = std::fs::remove_dir_all(dir);
    }
}

/// Mount points in a directory, in order of mounting.
fn mounts_below(dir: &Path) -> Vec<String> {
    let table = std::fs::read_to_string("/proc/self/mountinfo").unwrap_or_default();
    let points = table.lines().filter_map(|line| line.split(' ').nth(4));
    points.filter(|point| Path::new(point).starts_with(dir)).map(str::to_owned).collect()
}

/// Loop devices on files in a directory.
fn loops_below(dir: &Path) -> Vec<String> {
    let Ok(entries) = std::fs::read_dir("/sys/block") else { return Vec::new() };
    let names = entries.flatten().map(|entry| entry.file_name().to_string_lossy().into_owned());
    let is_ours = |name: &String| {
        let file = format!("/sys/block/{name}/loop/backing_file");
        std::fs::read_to_string(file).is_ok_and(|file| Path::new(file.trim_end()).starts_with(dir))
    };
    names.filter(is_ours).map(|name| format!("/dev/{name}")).collect()
}
