//! The project's tool: `cargo xtask` checks, judges, measures, gathers evidence and makes archives.
//!
//! Place: outside the simulator; it starts cargo, `weir` and other programs, and judges their answers.
//!
//! Invariant: CI runs nothing that is not started from here, so that everyone can run all of it.
//!
//! Deliberately absent: any logic of the simulator.
#![forbid(unsafe_code)]

mod bench;
mod bench_metadata;
mod bench_mount;
mod bench_mqsim;
mod bench_nbd;
mod bench_turns;
mod campaigns;
mod ci;
#[cfg(test)]
mod citations;
mod dist;
mod evidence;
mod file_pairs;
mod freshness;
#[cfg(test)]
mod imports;
mod mutants;
mod threads;

use flashweir_judges::{ext4, f2fs, fio_formats, mount, serve};
use std::process::ExitCode;

const USAGE: &str = "usage: cargo xtask <command>

  check                    format, lints, documentation, tests: the toolchain is enough, root is not needed
  ci                       everything that CI runs, one summary at the end: `check`, and what needs root, /dev/fuse and
                           Debian packages, which it installs and names
  serve-judges [NAME...]   outside tools and file systems against a running `weir serve`; without a name: all
  f2fs-judges [NAME...]    the F2FS format before its own tools and the Linux kernel; without a name: all
  ext4-judges [NAME...]    the ext4 format before its own tools and the Linux kernel; without a name: all
  mount-judges [NAME...]   programs, test suites and power cuts on `weir mount`; without a name: all
  fio-judges [NAME...]     our logs beside those of fio; fio-plot draws them and our JSON
  mutants [--count N] [--seed S] [--layer NAME] [--suites-seconds N] [--suites NAME] [--only ID]... [--show ID] [--list] [--again N]
                           bugs made by rule in the durability paths, all in one build; counts those that CI's suites find
  bench [--check] [--runs N] [NAME...]
                           speed and memory bars, profile dist; --check fails where a bar is missed
  loom                     every interleaving of a few threads of the host FTL on threads, and its planted bugs; part of `check`
  shuttle                  whole disks on threads in schedules that a seed draws, and planted bugs; part of `check`.
                           FLASHWEIR_SCHEDULES: for each assembly and scheduler (100)
  smp-costs                what locks, atomics, copies and wake-ups cost on two CPUs, into docs/evidence/smp-costs.json
  threads                  random reads and writes by one and two threads, step by step from pblk to QBLKe, into
                           docs/evidence/threads.json
  dist [--uncommitted]     an archive to publish: program, completions, manual, licences, and its SHA-256
  evidence [NAME...]       full counts, resumable, into docs/evidence/NAME.json; without a name: all

environment:
  FLASHWEIR_SEED           seed of the rotating parts; without it, one made of commit count and day";

fn main() -> ExitCode {
    let args: Vec<String> = std::env::args().skip(1).collect();
    let args: Vec<&str> = args.iter().map(String::as_str).collect();
    let outcome = match args.as_slice() {
        ["check"] => ci::check(),
        ["ci"] => ci::run(),
        ["serve-judges", rest @ ..] => serve::JUDGES.run(rest),
        ["f2fs-judges", rest @ ..] => f2fs::JUDGES.run(rest),
        ["ext4-judges", rest @ ..] => ext4::JUDGES.run(rest),
        ["mount-judges", rest @ ..] => mount::JUDGES.run(rest),
        ["fio-judges", rest @ ..] => fio_formats::JUDGES.run(rest),
        ["bench", rest @ ..] => bench::run(rest),
        ["mutants", rest @ ..] => mutants::command(rest),
        ["evidence", rest @ ..] => evidence::run(rest),
        ["loom"] => threads::loom(),
        ["shuttle"] => threads::shuttle(),
        ["smp-costs"] => threads::costs(),
        ["threads"] => threads::speeds(),
        ["dist", rest @ ..] => dist::run(rest),
        ["help" | "--help" | "-h"] => {
            println!("{USAGE}");
            Ok(true)
        }
        _ => Err(format!("unknown command {:?}\n\n{USAGE}", args.join(" "))),
    };
    match outcome {
        Ok(true) => ExitCode::SUCCESS,
        Ok(false) => ExitCode::FAILURE,
        Err(error) => {
            eprintln!("xtask: {error}");
            ExitCode::from(2)
        }
    }
}
