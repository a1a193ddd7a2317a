//! Judges: the kernel's file systems on a served disk.

use crate::disk::{Fuse, Loop, Mount};
use crate::judge::Finding;
use crate::place::Place;
use crate::program::run;
use crate::serve::files::Tree;
use crate::serve::server::{SMALL, Server};
use crate::uml;

/// Number of files that are made at first; after changes a quarter as many are added.
const FILES: u32 = 400;

pub(super) fn ext4(place: &Place) -> Finding {
    on_loop(place, &["mkfs.ext4", "-q", "-F"], &["e2fsck", "-fn"])
}

pub(super) fn xfs(place: &Place) -> Finding {
    on_loop(place, &["mkfs.xfs", "-q", "-f"], &["xfs_repair", "-n"])
}

/// Makes a file system, fills it, changes a part, checks it, and verifies its files on a new mount of a new client.
fn on_loop(place: &Place, make: &[&str], check: &[&str]) -> Finding {
    let server = Server::start(place, &[SMALL, &["--speed", "max"]])?;
    let fuse = Fuse::mount(place, server.socket())?;
    let disk = Loop::attach(place, &fuse.file())?;
    run(place, &[make, &[disk.device()]].concat())?;
    let mount = Mount::new(place, disk.device())?;
    let mut tree = Tree::new(place.seed());
    tree.fill(mount.dir(), FILES)?;
    run(place, &["sync", "-f", mount.dir()])?;
    tree.churn(mount.dir())?;
    tree.fill(mount.dir(), FILES / 4)?;
    run(place, &["fstrim", mount.dir()])?;
    mount.unmount()?;
    run(place, &[check, &[disk.device()]].concat())?;
    disk.detach()?;
    fuse.unmount()?;

    let fuse = Fuse::mount(place, server.socket())?;
    let disk = Loop::attach(place, &fuse.file())?;
    let mount = Mount::new(place, disk.device())?;
    tree.verify(mount.dir())?;
    mount.unmount()?;
    run(place, &[check, &[disk.device()]].concat())?;
    disk.detach()?;
    fuse.unmount()?;
    found(server, &tree)
}

/// F2FS on the disk, by a Linux kernel that runs as a program and has F2FS, whether this machine's kernel has it or not.
pub(super) fn f2fs(place: &Place) -> Finding {
    let server = Server::start(place, &[SMALL, &["--speed", "max"]])?;
    let (old, new) = (place.make_dir("old")?, place.path("new"));
    let mut tree = Tree::new(place.seed());
    tree.fill(&old, FILES)?;
    run(place, &["cp", "-a", &old, &new])?;
    tree.churn(&new)?;
    tree.fill(&new, FILES / 4)?;
    let fuse = Fuse::mount(place, server.socket())?;
    let disk = Loop::attach(place, &fuse.file())?;
    run(place, &["mkfs.f2fs", "-q", "-f", disk.device()])?;
    disk.detach()?;
    let files = "/run/disk/files";
    boot(place, &fuse, &format!("cp -a {old} {files} && sync && diff -r {old} {files}"))?;
    boot(place, &fuse, &format!("diff -r {old} {files} && rm -r {files} && cp -a {new} {files}"))?;
    check_f2fs(place, &fuse)?;
    boot(place, &fuse, &format!("diff -r {new} {files} && rm -r {files} && fstrim /run/disk"))?;
    check_f2fs(place, &fuse)?;
    fuse.unmount()?;
    tree.verify(&new)?;
    found(server, &tree)
}

/// Boots a Linux that mounts the disk, runs a shell command, and unmounts.
fn boot(place: &Place, fuse: &Fuse<'_>, work: &str) -> Result<(), String> {
    let work =
        format!("mkdir -p /run/disk && mount -t f2fs /dev/ubda /run/disk && ( {work} ) && umount /run/disk");
    uml::boot(place, &[&fuse.file()], &work).map(|_| ())
}

fn check_f2fs(place: &Place, fuse: &Fuse<'_>) -> Result<(), String> {
    let said = run(place, &["fsck.f2fs", "--dry-run", &fuse.file()])?;
    match said.contains("[Fail]") {
        true => Err(format!("fsck.f2fs: {}", said.trim())),
        false => Ok(()),
    }
}

fn found(server: Server, tree: &Tree) -> Finding {
    let counts = server.counts()?;
    server.stop()?;
    if counts.errors > 0 || counts.flushes == 0 || counts.trims == 0 {
        return Err(format!("not what a file system asks for: {counts:?}"));
    }
    Ok(format!(
        "{} files of {:.1} MB as they were, {} writes, {} trims, {} flushes",
        tree.len(),
        tree.bytes() as f64 / 1e6,
        counts.writes,
        counts.trims,
        counts.flushes
    ))
}
