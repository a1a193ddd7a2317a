//! A running `weir mount`, and helpers for judges of mounts: they make images, mount and cut them, and check them afterwards.
//!
//! Place: each judge of [`super`] has a [`Mount`]; judges do not know each other.

use crate::f2fs;
use crate::host::{root, target_dir};
use crate::judge::Finding;
use crate::place::Place;
use crate::program::{Program, run as program, wait_until};
use crate::tree::built;
use std::fs::File;
use std::io::Write as _;
use std::process::Command;
use std::time::Duration;

/// Names of the formats in options.
pub(super) const FORMATS: [&str; 2] = ["ext4", "f2fs"];
/// The same and the format for append segments, which no program outside knows.
pub(super) const ALL_FORMATS: [&str; 3] = ["ext4", "f2fs", "alfs"];

/// Longest time that a mount may take to end.
pub(super) const END: Duration = Duration::from_secs(60);

/// A running `weir mount`.
pub(super) struct Mount<'a> {
    pub(super) place: &'a Place,
    pub(super) program: Program,
    pub(super) dir: String,
}

impl<'a> Mount<'a> {
    /// Mounts an image or a volume; the options are separated by spaces.
    pub(super) fn new(place: &'a Place, medium: &str, options: &str) -> Result<Self, String> {
        let (weir, dir) = (built("weir"), place.make_dir("mnt")?);
        let mut line = vec![weir.as_str(), "mount", medium, &dir];
        line.extend(options.split_whitespace());
        let mut program = Program::start(place, &line)?;
        wait_until("a mount", || {
            if !program.is_running() {
                return Err(format!("weir mount ended at once: {}", program.output().trim()));
            }
            Ok(program.output().contains("control: "))
        })?;
        Ok(Self { place, program, dir })
    }

    /// Path of a file.
    pub(super) fn path(&self, name: &str) -> String {
        format!("{}/{name}", self.dir)
    }

    /// Cuts the power.
    pub(super) fn cut(&self, seed: u64) -> Finding {
        program(self.place, &[&built("weir"), "cut", &self.control(), "--seed", &seed.to_string()])
    }

    /// Its control socket.
    pub(super) fn control(&self) -> String {
        format!("{}.control", self.dir)
    }

    /// Unmounts it and waits for its end, when everything is stored.
    pub(super) fn unmount(mut self) -> Result<(), String> {
        program(self.place, &["umount", &self.dir])?;
        let status = self.program.wait(END)?;
        if status.success() { Ok(()) } else { Err(format!("weir mount: {}", self.program.output().trim())) }
    }

    /// Kills it, as a crash of the host would.
    pub(super) fn kill(mut self) -> Result<(), String> {
        self.program.kill();
        program(self.place, &["umount", "-l", &self.dir]).map(drop)
    }
}

/// Compiles a C program beside this file; returns its path.
pub(super) fn compiled(place: &Place, name: &str, options: &[&str]) -> Finding {
    let (program_path, source) =
        (place.path(name), root().join("judges/src/mount").join(name).with_extension("c"));
    let source = source.display().to_string();
    let line = ["cc", "-Wall", "-Wextra", "-Werror", "-o", &program_path, &source];
    program(place, &[&line[..], options].concat())?;
    Ok(program_path)
}

/// Makes a new image of 512 MiB; of append segments, most of which so small a disk keeps for logs and cleaning, 1 GiB.
pub(super) fn image(place: &Place, format: &str) -> Finding {
    let image = place.path(&format!("{format}.img"));
    let size = if format == "alfs" { "1GiB" } else { "512MiB" };
    program(place, &[&built("weir"), "mkfs", format, &image, "--force", "--size", size])?;
    Ok(image)
}

/// The first number in what a program said; 0 if there is none.
pub(super) fn number_in(said: &str) -> u64 {
    said.split_whitespace().find_map(|word| word.parse().ok()).unwrap_or(0)
}

/// Checks that neither our check nor that of the format, if it has one, finds anything.
pub(super) fn is_good(place: &Place, format: &str, image: &str) -> Result<(), String> {
    program(place, &[&built("weir"), "fsck", image])?;
    match format {
        "ext4" => program(place, &["e2fsck", "-fn", image]).map(drop),
        "alfs" => Ok(()),
        _ => f2fs::fsck(place, image),
    }
}

/// Writes a file and makes it and its name durable.
pub(super) fn synced(mount: &Mount<'_>, name: &str, content: &[u8]) -> Result<File, String> {
    let named = |error: std::io::Error| format!("{name}: {error}");
    let mut options = File::options();
    let mut file =
        options.read(true).write(true).create(true).truncate(true).open(mount.path(name)).map_err(named)?;
    file.write_all(content).and_then(|()| file.sync_all()).map_err(named)?;
    File::open(&mount.dir).and_then(|dir| dir.sync_all()).map_err(named)?;
    Ok(file)
}

/// Path of a test suite from crates.io, which is installed if it is missing.
pub(super) fn suite(name: &str, version: &str) -> Finding {
    let dir = target_dir().join("xtask").join("suites");
    let suite = dir.join("bin").join(name);
    if !suite.is_file() {
        let mut install = Command::new(std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into()));
        install.args(["install", "--quiet", "--locked", "--root"]).arg(&dir);
        install.arg("--target-dir").arg(dir.join("build")).arg(format!("{name}@{version}"));
        // Settings for this workspace are not for others.
        install.current_dir(std::env::temp_dir()).env_remove("CARGO_TARGET_DIR");
        let status = install.status().map_err(|error| format!("cargo install {name}: {error}"))?;
        if !status.success() {
            return Err(format!("cargo install {name}@{version} ended with {status}"));
        }
    }
    Ok(suite.display().to_string())
}
