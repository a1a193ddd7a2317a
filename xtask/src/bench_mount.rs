//! The bars of `weir mount`'s speed, compared with a file system that passes everything on (bindfs on tmpfs), both by FUSE.
//!
//! fio reads and writes 4 KiB at random places of a file with O_DIRECT. The file systems take turns with the same jobs, so that
//! other load on the machine affects all of them. The median of the turns counts. The kernel's ext4 on a loop device, with its
//! image on the same tmpfs, is measured too: it shows the cost of FUSE itself, and is not a bar.
//!
//! bindfs opens the file below without O_DIRECT, as it does by default: tmpfs copies in both cases. Above it, each request is
//! a FUSE request, as above ours.

use crate::bench_nbd::fio_iops;
use crate::bench_turns::median;
use flashweir_judges::host::{on_path, published};
use flashweir_judges::steps::take;
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

/// Number of turns of each file system; odd, so that there is a median.
const TURNS: usize = 5;
/// Seconds of one turn.
const TURN_S: u32 = 2;
/// Size of the file, MiB.
const FILE_MIB: u32 = 256;

/// Name of each bar, with fio's `rw` and `iodepth`.
pub(crate) const SPEEDS: [(&str, &str, u32); 4] = [
    ("mount-read-qd1", "randread", 1),
    ("mount-read-qd16", "randread", 16),
    ("mount-write-qd1", "randwrite", 1),
    ("mount-write-qd16", "randwrite", 16),
];

/// Median requests per second.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Speed {
    pub(crate) ours: f64,
    pub(crate) bindfs: f64,
    pub(crate) ext4_loop: f64,
}

/// Directories with mounted file systems, which are unmounted and removed when this is dropped.
#[derive(Debug)]
pub(crate) struct Rig {
    dir: PathBuf,
    /// Mount points, in order of mounting.
    mounted: Vec<PathBuf>,
    servers: Vec<Child>,
}

impl Rig {
    pub(crate) fn new() -> Result<Self, String> {
        let dir = std::env::temp_dir().join(format!("weir-bench-{}-mount", std::process::id()));
        let mut rig = Self { dir, mounted: Vec::new(), servers: Vec::new() };
        let memory = rig.make("memory")?;
        take(Command::new("mount").args(["-t", "tmpfs", "-o", "size=3g", "bench"]).arg(&memory))?;
        rig.mounted.push(memory);
        Ok(rig)
    }

    pub(crate) fn make(&self, name: &str) -> Result<PathBuf, String> {
        let dir = self.dir.join(name);
        std::fs::create_dir_all(&dir).map_err(|error| format!("{}: {error}", dir.display()))?;
        Ok(dir)
    }

    /// Starts a FUSE server and waits until it has mounted.
    pub(crate) fn serve(&mut self, mut command: Command, at: PathBuf) -> Result<PathBuf, String> {
        let child = command.stdout(Stdio::null()).stderr(Stdio::null()).spawn();
        self.servers.push(child.map_err(|error| format!("{command:?}: {error}"))?);
        let begun = Instant::now();
        while take(Command::new("mountpoint").arg("-q").arg(&at)).is_err() {
            if begun.elapsed() > Duration::from_secs(30) {
                return Err(format!("{command:?} does not mount"));
            }
            std::thread::sleep(Duration::from_millis(50));
        }
        self.mounted.push(at.clone());
        Ok(at)
    }

    /// Mounts ours, at maximum speed.
    pub(crate) fn ours(&mut self, format: &str) -> Result<PathBuf, String> {
        let (weir, at) = (published("weir"), self.make(&format!("ours-{format}"))?);
        let image = self.dir.join("memory").join(format!("{format}.img"));
        take(Command::new(&weir).args(["mkfs", format]).arg(&image).args(["--size", "1GiB"]))?;
        let mut command = Command::new(&weir);
        command.arg("mount").arg(&image).arg(&at).args(["--speed", "max"]);
        self.serve(command, at)
    }

    fn bindfs(&mut self) -> Result<PathBuf, String> {
        let (below, at) = (self.make("memory/below")?, self.make("bindfs")?);
        let mut command = Command::new("bindfs");
        command.args(["-f", "--multithreaded"]).arg(&below).arg(&at);
        self.serve(command, at)
    }

    pub(crate) fn ext4_loop(&mut self) -> Result<PathBuf, String> {
        let (image, at) = (self.dir.join("memory").join("loop.img"), self.make("loop")?);
        take(Command::new("truncate").args(["-s", "1G"]).arg(&image))?;
        take(Command::new("mkfs.ext4").arg("-q").arg(&image))?;
        take(Command::new("mount").args(["-o", "loop"]).arg(&image).arg(&at))?;
        self.mounted.push(at.clone());
        Ok(at)
    }
}

impl Drop for Rig {
    fn drop(&mut self) {
        for at in self.mounted.iter().rev() {
            let _ = Command::new("umount").arg("-l").arg(at).status();
        }
        for server in &mut self.servers {
            let _ = server.kill();
            let _ = server.wait();
        }
        let _ = std::fs::remove_dir_all(&self.dir);
    }
}

fn iops(dir: &std::path::Path, rw: &str, depth: u32, seconds: u32) -> Result<f64, String> {
    let file = format!("--filename={}", dir.join("file").display());
    let size = format!("--size={FILE_MIB}m");
    fio_iops(&["--ioengine=libaio", "--direct=1", &file, &size], rw, depth, seconds)
}

/// Measures all three file systems.
pub(crate) fn speed(rw: &str, depth: u32) -> Result<Speed, String> {
    for tool in ["fio", "bindfs", "mkfs.ext4"] {
        if !on_path(tool) {
            return Err(format!("{tool} is not installed"));
        }
    }
    let mut rig = Rig::new()?;
    let dirs = [rig.ours("ext4")?, rig.bindfs()?, rig.ext4_loop()?];
    for dir in &dirs {
        // The whole file is written before it is measured.
        let (file, count) = (format!("of={}", dir.join("file").display()), format!("count={FILE_MIB}"));
        take(Command::new("dd").args([
            "if=/dev/urandom",
            "bs=1M",
            &file,
            &count,
            "conv=fsync",
            "status=none",
        ]))?;
        iops(dir, "randwrite", 16, TURN_S)?;
    }
    let mut turns = [Vec::new(), Vec::new(), Vec::new()];
    for _ in 0..TURNS {
        for (dir, turns) in dirs.iter().zip(&mut turns) {
            turns.push(iops(dir, rw, depth, TURN_S)?);
        }
    }
    let [ours, bindfs, ext4_loop] = turns.map(median);
    Ok(Speed { ours, bindfs, ext4_loop })
}
