//! A served disk as a block device of the kernel: `nbdfuse` makes it a file, a loop device makes that a disk, and its
//! file system is mounted.
//!
//! Invariants: each of these is undone by its guard, the last one first. If the server has already ended, guards still
//! end: a mount that cannot be written back is detached lazily.

use crate::host::is_root;
use crate::place::Place;
use crate::program::{Program, run, wait_until};
use std::path::Path;

/// The disk as a file.
#[derive(Debug)]
pub(super) struct Fuse<'a> {
    place: &'a Place,
    program: Program,
    dir: String,
}

impl<'a> Fuse<'a> {
    /// Mounts the disk behind a unix socket as `DIR/nbd`, with several connections as `nbdfuse` chooses.
    pub(super) fn mount(place: &'a Place, socket: &str) -> Result<Self, String> {
        Self::mount_with(place, socket, &[])
    }

    /// The same with one connection, so that each flush is on the connection that a cut has made fail.
    pub(super) fn mount_once(place: &'a Place, socket: &str) -> Result<Self, String> {
        Self::mount_with(place, socket, &["--connections", "1"])
    }

    fn mount_with(place: &'a Place, socket: &str, options: &[&str]) -> Result<Self, String> {
        if !is_root() {
            return Err("it mounts file systems, which takes root".into());
        }
        if !Path::new("/dev/fuse").exists() {
            return Err("there is no /dev/fuse on this machine".into());
        }
        let dir = place.make_dir("fuse")?;
        let words = [&["nbdfuse"], options, &[&dir, "--unix", socket]].concat();
        let program = Program::start(place, &words)?;
        let mut fuse = Self { place, program, dir };
        let file = fuse.file();
        wait_until("a disk by nbdfuse", || match fuse.program.is_running() {
            true => Ok(Path::new(&file).exists()),
            false => Err(format!("nbdfuse ended at once: {}", fuse.program.output().trim())),
        })?;
        Ok(fuse)
    }

    /// Path of the disk.
    pub(super) fn file(&self) -> String {
        format!("{}/nbd", self.dir)
    }

    /// Unmounts it; `nbdfuse` then flushes the disk and ends.
    pub(super) fn unmount(self) -> Result<(), String> {
        run(self.place, &["umount", &self.dir]).map(drop)
    }
}

impl Drop for Fuse<'_> {
    fn drop(&mut self) {
        if is_mounted(&self.dir) && run(self.place, &["umount", &self.dir]).is_err() {
            let _ = run(self.place, &["umount", "-l", &self.dir]);
        }
        let _ = self.program.wait(std::time::Duration::from_secs(5));
    }
}

/// A file as a disk of the kernel.
#[derive(Debug)]
pub(super) struct Loop<'a> {
    place: &'a Place,
    device: String,
    attached: bool,
}

impl<'a> Loop<'a> {
    pub(super) fn attach(place: &'a Place, file: &str) -> Result<Self, String> {
        Self::attach_at(place, file, "0")
    }

    /// Attaches the part of a file that begins at this byte.
    pub(super) fn attach_at(place: &'a Place, file: &str, offset: &str) -> Result<Self, String> {
        let device = run(place, &["losetup", "-f", "--show", "-o", offset, file])?.trim().to_owned();
        Ok(Self { place, device, attached: true })
    }

    pub(super) fn device(&self) -> &str {
        &self.device
    }

    pub(super) fn detach(mut self) -> Result<(), String> {
        self.attached = false;
        run(self.place, &["losetup", "-d", &self.device])?;
        // The kernel releases the file a little later, and nbdfuse cannot be unmounted while it is busy.
        let name = self.device.trim_start_matches("/dev/");
        let file = format!("/sys/block/{name}/loop/backing_file");
        let dir = self.place.path("");
        wait_until("a detached loop device", || {
            Ok(!std::fs::read_to_string(&file).is_ok_and(|text| text.starts_with(&dir)))
        })
    }
}

impl Drop for Loop<'_> {
    fn drop(&mut self) {
        if self.attached {
            let _ = run(self.place, &["losetup", "-d", &self.device]);
        }
    }
}

/// A mounted file system.
#[derive(Debug)]
pub(crate) struct Mount<'a> {
    place: &'a Place,
    dir: String,
}

impl<'a> Mount<'a> {
    pub(super) fn new(place: &'a Place, device: &str) -> Result<Self, String> {
        Self::with(place, &[device])
    }

    /// Mounts the file system in a file; this machine's kernel has to know its kind.
    pub(crate) fn of_file(place: &'a Place, kind: &str, options: &str, file: &str) -> Result<Self, String> {
        if !is_root() {
            return Err("it mounts file systems, which takes root".into());
        }
        let known = std::fs::read_to_string("/proc/filesystems").unwrap_or_default();
        if !known.lines().any(|line| line.trim_start_matches("nodev").trim() == kind) {
            return Err(format!("the kernel of this machine has no {kind}"));
        }
        Self::with(place, &["-t", kind, "-o", &format!("loop,{options}"), file])
    }

    fn with(place: &'a Place, what: &[&str]) -> Result<Self, String> {
        let dir = place.make_dir("mnt")?;
        run(place, &[&["mount"], what, &[&dir]].concat())?;
        Ok(Self { place, dir })
    }

    pub(crate) fn dir(&self) -> &str {
        &self.dir
    }

    pub(crate) fn unmount(self) -> Result<(), String> {
        run(self.place, &["umount", &self.dir]).map(drop)
    }
}

impl Drop for Mount<'_> {
    fn drop(&mut self) {
        if is_mounted(&self.dir) && run(self.place, &["umount", &self.dir]).is_err() {
            let _ = run(self.place, &["umount", "-l", &self.dir]);
        }
    }
}

fn is_mounted(dir: &str) -> bool {
    let table = std::fs::read_to_string("/proc/self/mountinfo").unwrap_or_default();
    table.lines().any(|line| line.split(' ').nth(4) == Some(dir))
}
