//! `cargo xtask serve-judges`: the running `weir serve`, judged from outside: by tools and file systems that know nothing of this project.
//!
//! Place: `ci` runs all of them; `serve-judges NAME` runs one. Each judge has a directory of its own ([`crate::place`]), starts
//! servers ([`server`]) and whatever else it needs ([`crate::program`], [`crate::disk`]), and reports its finding in one line.
//!
//! Invariants: a judge is never skipped; if something that it needs is missing, it fails and names it. However a judge
//! ends, its processes, mounts and loop devices end with it, because each has a guard. The next run clears what a
//! killed one left behind.
//!
//! Deliberately absent: NBD. All clients of the server here are third-party programs.

mod clients;
mod cuts;
mod files;
mod filesystems;
mod fio;
mod qemu;
mod records;
mod restarts;
mod server;
mod tls;
mod zones;

use crate::judge::{Judge, Judges};

/// The judges of `weir serve`.
pub const JUDGES: Judges = Judges { subject: "serve", all: &ALL };

/// All of them, in the order of CI.
const ALL: [Judge; 17] = [
    ("nbdinfo", "exports, sizes, block sizes, flags and maps", clients::nbdinfo),
    ("nbdcopy", "images with holes, there and back", clients::nbdcopy),
    ("qemu-img", "images converted, compared and mapped", qemu::img),
    ("qemu-io", "patterns, zeroes, discards, FUA, unaligned, beyond the end", qemu::io),
    ("fio-unix", "writes, trims and flushes with verification, in real time", fio::unix),
    ("fio-tcp", "the same over TCP, as fast as possible", fio::tcp),
    ("tls", "certificates, and clients without them", tls::tls),
    ("ext4", "made, filled, checked, mounted again", filesystems::ext4),
    ("xfs", "made, filled, checked, mounted again", filesystems::xfs),
    ("f2fs", "made, filled, checked, mounted again by User-Mode Linux", filesystems::f2fs),
    ("restart-stop", "ext4 on a volume whose server was stopped", restarts::stopped),
    ("restart-kill", "what was synced is there after kill -9", restarts::killed),
    ("restart-threads", "the same above a host FTL on threads, in a file", restarts::threads_killed),
    ("zones-threads", "the same above zones, in a kernel with a zoned device", zones::killed),
    ("rerun", "a recorded session with a power cut, run again", cuts::rerun),
    ("cut-eio", "clients that stay connected while the power is off", cuts::eio),
    ("cut-ext4", "what was synced is there after power cuts", cuts::ext4),
];
