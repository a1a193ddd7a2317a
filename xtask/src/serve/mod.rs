//! `cargo xtask serve-judges`: the running `weir serve` before outside judges, tools and file systems that know
//! nothing of this project.
//!
//! Place: `ci` runs all of them; `serve-judges NAME` runs one. Each judge has a directory of its own ([`place`]),
//! starts servers ([`server`]) and whatever it needs beside them ([`program`], [`disk`]), and says in one line what it
//! saw.
//!
//! Invariants: a judge is never skipped; what it needs and does not find is a failure with its name. Whatever way a
//! judge ends, its processes, mounts and loop devices end with it: each is held by a guard. What a killed run left
//! behind is cleared by the next one.
//!
//! Deliberately absent: NBD. Whoever speaks to the server here is somebody else's program.

mod clients;
mod cuts;
mod disk;
mod files;
mod filesystems;
mod fio;
pub(crate) mod place;
pub(crate) mod program;
mod qemu;
mod random;
mod records;
mod restarts;
mod server;
mod tls;

use crate::ci::cargo;
use crate::host::seed;
use crate::packages;
use crate::steps::{Steps, Verdict, show};
use place::Place;

/// What a judge says: a line of counts, or what is wrong.
pub(crate) type Finding = Result<String, String>;

/// A judge: its name, what it shows, and how it finds that out.
pub(crate) type Judge = (&'static str, &'static str, fn(&Place) -> Finding);

/// All of them, in the order of CI.
const JUDGES: [Judge; 15] = [
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
    ("rerun", "a recorded session with a power cut, run again", cuts::rerun),
    ("cut-eio", "clients that stay connected while the power is off", cuts::eio),
    ("cut-ext4", "what was synced is there after power cuts", cuts::ext4),
];

/// The judges as steps of CI, on the release build of `weir`.
pub(crate) fn steps(steps: &mut Steps, seed: u64) {
    judge(steps, seed, &[]);
}

/// Builds `weir` and calls the judges that were named, or all.
pub(crate) fn run(names: &[&str]) -> Result<bool, String> {
    for name in names {
        if !JUDGES.iter().any(|judge| judge.0 == *name) {
            let known: Vec<String> =
                JUDGES.iter().map(|(name, what, _)| format!("  {name:<14} {what}")).collect();
            return Err(format!("no judge {name:?}; there are\n{}", known.join("\n")));
        }
    }
    let seed = seed()?;
    println!("seed {seed}");
    let mut all = Steps::default();
    all.step("Debian packages", || match packages::install_missing() {
        Ok(note) => Verdict::Passed(note),
        Err(why) => Verdict::Failed(why),
    });
    let built = all.step("build weir", || {
        show(cargo(seed).args(["build", "--locked", "--release", "--quiet", "--bin", "weir"]))
    });
    if built {
        judge(&mut all, seed, names);
    }
    Ok(all.summary())
}

fn judge(steps: &mut Steps, seed: u64, names: &[&str]) {
    for (name, what, judge) in JUDGES.iter().filter(|judge| names.is_empty() || names.contains(&judge.0)) {
        steps.step(&format!("serve, {name}: {what}"), || match call(name, seed, *judge) {
            Ok(counts) => Verdict::Passed(counts),
            Err(why) => Verdict::Failed(why),
        });
    }
}

/// One judge in a directory of its own, which is gone afterwards.
pub(crate) fn call(name: &str, seed: u64, judge: fn(&Place) -> Finding) -> Finding {
    let place = Place::new(name, seed)?;
    let finding = judge(&place);
    if finding.is_err() {
        place.show_log();
    }
    match (finding, place.leftovers()) {
        (Ok(_), Some(left)) => Err(format!("it left behind: {left}")),
        (finding, _) => finding,
    }
}
