//! The list of the Debian packages that `ci` needs besides the Rust toolchain.

use crate::host::{is_root, on_path};
use std::process::Command;

/// Packages, each with a program of it and its use here.
const PACKAGES: [(&str, &str, &str); 24] = [
    ("fio", "fio", "reads our example job files (--parse-only); a client of the server"),
    ("libnbd-bin", "nbdfuse", "clients of the server: nbdinfo, nbdcopy, nbdfuse"),
    ("qemu-utils", "qemu-io", "clients of the server: qemu-img, qemu-io"),
    ("qemu-system-x86", "qemu-system-x86_64", "a machine with a zoned device"),
    ("busybox-static", "busybox", "the shell of that machine"),
    ("cpio", "cpio", "packs its files"),
    ("openssl", "openssl", "certificates for TLS"),
    ("fuse3", "fusermount3", "mounts for users that are not root"),
    ("mount", "losetup", "mounts what is served"),
    ("e2fsprogs", "mkfs.ext4", "makes and checks ext4"),
    ("xfsprogs", "mkfs.xfs", "makes and checks XFS"),
    ("f2fs-tools", "mkfs.f2fs", "makes and checks F2FS"),
    ("user-mode-linux", "linux.uml", "a kernel with F2FS"),
    ("kmod", "modprobe", "loads F2FS in that kernel"),
    ("git", "git", "works on a mount"),
    ("sqlite3", "sqlite3", "works on a mount"),
    ("vim", "vim", "an example of weir check"),
    ("gcc", "cc", "compiles the example for a mount"),
    ("make", "make", "builds a project on a mount"),
    ("mariadb-server", "mariadbd", "a database on a mount"),
    ("sysbench", "sysbench", "works on that database"),
    ("redis-server", "redis-server", "the first example of weir check"),
    ("acl", "setfacl", "access control lists on a mount"),
    ("rocksdb-tools", "db_bench", "a database on a mount"),
];

/// Runs `apt-get` with root's rights; returns whether it succeeded.
pub(crate) fn apt(args: &[&str]) -> bool {
    let mut command = if is_root() { Command::new("apt-get") } else { Command::new("sudo") };
    if !is_root() {
        command.args(["-n", "apt-get"]);
    }
    command.env("DEBIAN_FRONTEND", "noninteractive").args(["-qq", "-y"]).args(args);
    matches!(command.status(), Ok(status) if status.success())
}

/// Installs missing packages, and prints their purposes; returns a note of what it did.
pub fn install_missing() -> Result<String, String> {
    let missing: Vec<&str> = PACKAGES.iter().filter(|p| !on_path(p.1)).map(|p| p.0).collect();
    if missing.is_empty() {
        return Ok("nothing was missing".into());
    }
    if !on_path("apt-get") {
        return Err(format!("please install {}; this is not a Debian system", missing.join(", ")));
    }
    for (package, _, purpose) in PACKAGES.iter().filter(|package| missing.contains(&package.0)) {
        println!("   installs {package}: {purpose}");
    }
    let install: Vec<&str> =
        ["install", "--no-install-recommends"].into_iter().chain(missing.iter().copied()).collect();
    if apt(&install) || (apt(&["update"]) && apt(&install)) {
        Ok(format!("installed {}", missing.join(", ")))
    } else {
        Err(format!("apt-get could not install {}", missing.join(", ")))
    }
}
