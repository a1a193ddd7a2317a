//! The bars of directory operations on `weir mount`: compared with libfuse's `passthrough_ll` on Linux's ext4, and with that ext4.
//!
//! Files are created, looked up, renamed, removed and unpacked by tar on five file systems in turn: ours in both formats, the
//! kernel's ext4 on a loop device (with its image on tmpfs, like ours), and `passthrough_ll` on a directory of that ext4, by default
//! and with `default_permissions`. The median of the turns counts.
//!
//! `passthrough_ll` leaves permissions to the file system below. Ours has them checked by the kernel, which asks for a directory's
//! attributes after each change of it (until Linux 7): one more request for each file created, renamed or removed. With
//! `default_permissions` the same holds for passthrough. The bar is passthrough without them, and Linux's ext4 for `stat`.

use crate::bench_mount::Rig;
use crate::bench_turns::median;
use flashweir_judges::host::{on_path, root};
use flashweir_judges::steps::take;
use serde_json::{Value, json};
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Instant;

/// Number of turns of each file system; odd, so that there is a median.
const TURNS: usize = 5;
/// Number of files of one turn.
const FILES: u32 = 4000;
/// Number of files of the archive, in directories of 20; their lengths are spread from 0 to 16 KiB.
const UNPACKED: u32 = 2000;

/// Path of its source in the Debian package `libfuse3-dev`.
const PASSTHROUGH: &str = "/usr/share/doc/libfuse3-dev/examples/passthrough_ll.c";

/// Names of the measured operations.
pub(crate) const OPERATIONS: [&str; 5] = ["create", "stat", "rename", "unlink", "untar"];

/// Median rates of the operations, in operations per second.
type Rates = BTreeMap<String, f64>;

/// Rates of the five file systems.
#[derive(Clone, Debug)]
pub(crate) struct Metadata {
    pub(crate) ext4: Rates,
    pub(crate) f2fs: Rates,
    pub(crate) passthrough: Rates,
    passthrough_checked: Rates,
    pub(crate) ext4_loop: Rates,
}

impl Metadata {
    /// All rates of an operation.
    pub(crate) fn answer(&self, operation: &str) -> Value {
        json!({
            "ext4": self.ext4[operation],
            "f2fs": self.f2fs[operation],
            "passthrough_ll": self.passthrough[operation],
            "passthrough_ll_default_permissions": self.passthrough_checked[operation],
            "ext4_loop": self.ext4_loop[operation],
        })
    }
}

/// Makes an archive whose contents do not matter.
fn archive(dir: &Path) -> Result<PathBuf, String> {
    let tree = dir.join("tree");
    let wrong = |error: std::io::Error| format!("{}: {error}", tree.display());
    for at in 0..UNPACKED {
        let below = tree.join(format!("d{}", at / 20));
        std::fs::create_dir_all(&below).map_err(wrong)?;
        let bytes = vec![b'x'; (at as usize * 1361) % (16 << 10)];
        std::fs::write(below.join(format!("file{at}")), bytes).map_err(wrong)?;
    }
    let archive = dir.join("tree.tar");
    take(Command::new("tar").arg("-cf").arg(&archive).arg("-C").arg(&tree).arg("."))?;
    Ok(archive)
}

/// Takes one turn on one file system.
fn turn(program: &Path, archive: &Path, dir: &Path) -> Result<Rates, String> {
    std::fs::create_dir(dir).map_err(|error| format!("{}: {error}", dir.display()))?;
    let text = take(Command::new(program).arg(dir).arg(FILES.to_string()))?;
    let mut rates: Rates = serde_json::from_str(&text).map_err(|error| format!("{error}: {text}"))?;
    let begun = Instant::now();
    take(Command::new("tar").arg("-xf").arg(archive).arg("-C").arg(dir))?;
    rates.insert("untar".into(), f64::from(UNPACKED) / begun.elapsed().as_secs_f64());
    take(Command::new("rm").arg("-r").arg(dir))?;
    Ok(rates)
}

/// Measures all five file systems.
pub(crate) fn speed() -> Result<Metadata, String> {
    for tool in ["cc", "pkg-config", "mkfs.ext4", "tar"] {
        if !on_path(tool) {
            return Err(format!("{tool} is not installed"));
        }
    }
    if !Path::new(PASSTHROUGH).exists() {
        return Err(format!("{PASSTHROUGH} is not there: please install libfuse3-dev"));
    }
    let mut rig = Rig::new()?;
    let memory = rig.make("memory")?;
    let (program, passthrough) = (memory.join("metadata"), memory.join("passthrough_ll"));
    let source = root().join("xtask/src/bench_metadata.c");
    take(Command::new("cc").arg("-O2").arg("-o").arg(&program).arg(source))?;
    let flags = take(Command::new("pkg-config").args(["fuse3", "--cflags", "--libs"]))?;
    take(
        Command::new("cc")
            .args(["-O2", "-o"])
            .arg(&passthrough)
            .arg(PASSTHROUGH)
            .args(flags.split_whitespace()),
    )?;
    let archive = archive(&memory)?;
    let ours = [rig.ours("ext4")?, rig.ours("f2fs")?];
    let ext4_loop = rig.ext4_loop()?;
    let mut through = Vec::new();
    for (name, options) in [("passthrough", ""), ("passthrough-checked", ",default_permissions")] {
        let below = ext4_loop.join(name);
        std::fs::create_dir(&below).map_err(|error| format!("{}: {error}", below.display()))?;
        let mut command = Command::new(&passthrough);
        command.args(["-f", "-o", &format!("source={}{options}", below.display())]);
        let at = rig.make(name)?;
        command.arg(&at);
        through.push(rig.serve(command, at)?);
    }
    let [ext4, f2fs] = ours;
    let dirs = [ext4, f2fs, through[0].clone(), through[1].clone(), ext4_loop];
    let mut turns = dirs.each_ref().map(|_| BTreeMap::<String, Vec<f64>>::new());
    for at in 0..TURNS {
        for (dir, turns) in dirs.iter().zip(&mut turns) {
            for (operation, rate) in turn(&program, &archive, &dir.join(format!("turn{at}")))? {
                turns.entry(operation).or_default().push(rate);
            }
        }
    }
    let [ext4, f2fs, passthrough, passthrough_checked, ext4_loop] =
        turns.map(|turns| turns.into_iter().map(|(operation, rates)| (operation, median(rates))).collect());
    Ok(Metadata { ext4, f2fs, passthrough, passthrough_checked, ext4_loop })
}
