//! Power cuts of running `weir serve` processes, judged by the crash contract: the program behind
//! `cargo xtask evidence live-cuts`.
//!
//! ```text
//! cargo run --release -p flashweir-serve --example live_cuts -- --weir target/release/weir --cuts 40 --fio 3 --seed 1
//! ```
//!
//! Prints one object of JSON for each case: how often the power was cut and what was counted. Ends with a failure at
//! the first state that the contract forbids.

use flashweir_contract::DeviceKind;
use flashweir_core::random::mix;
use flashweir_serve::client::campaign::{Counts, Plan, Target, run};
use flashweir_serve::client::{Client, fio};
use flashweir_serve::control::{self, Ask, Reply};
use std::error::Error;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::Duration;

/// How long a server may be silent.
const PATIENCE: Duration = Duration::from_secs(60);

/// One way to serve a device.
struct Case {
    name: &'static str,
    device: &'static str,
    /// The host FTL above it.
    host_ftl: Option<&'static str>,
    /// It is on threads, in memory or in a file: `weir threads` serves it.
    threads: bool,
    /// Keys of the device.
    set: &'static [&'static str],
    kind: DeviceKind,
    speed: &'static str,
    /// Cuts draw any state that the contract allows.
    worst: bool,
    /// The client's requests in flight share mapping units.
    blocks: bool,
    /// Size of the region that is used.
    mib: u64,
}

/// A few dies and blocks, so that GC runs under the load.
const SMALL: &[&str] = &[
    "geometry.channels=2",
    "geometry.chips_per_channel=1",
    "geometry.blocks_per_plane=40",
    "geometry.pages_per_block=32",
    "buffer.capacity=1MiB",
    "ftl.over_provisioning=0.35",
];
const SMALL_D0: &[&str] = &[
    "geometry.channels=2",
    "geometry.chips_per_channel=1",
    "geometry.blocks_per_plane=40",
    "geometry.pages_per_block=32",
    "buffer.mode=write-through",
    "buffer.capacity=1MiB",
    "ftl.over_provisioning=0.35",
];

/// An open channel of 32 MiB.
const CHANNELS: &[&str] =
    &["geometry.channels=2", "geometry.chips_per_channel=1", "geometry.pages_per_block=16"];

#[rustfmt::skip]
const CASES: [Case; 17] = [
    Case { name: "d1", device: "sata-mlc", host_ftl: None, threads: false, set: &[], kind: DeviceKind::D1, speed: "real", worst: false, blocks: false, mib: 32 },
    Case { name: "d2-small", device: "datacenter-tlc-plp-nvme", host_ftl: None, threads: false, set: SMALL, kind: DeviceKind::D2, speed: "real", worst: false, blocks: true, mib: 16 },
    Case { name: "d0", device: "remap-ssd", host_ftl: None, threads: false, set: &[], kind: DeviceKind::D0, speed: "real", worst: false, blocks: false, mib: 32 },
    Case { name: "d1-worst", device: "consumer-tlc-nvme", host_ftl: None, threads: false, set: &[], kind: DeviceKind::D1, speed: "real", worst: true, blocks: false, mib: 32 },
    Case { name: "d1-small", device: "sata-mlc", host_ftl: None, threads: false, set: SMALL, kind: DeviceKind::D1, speed: "real", worst: false, blocks: true, mib: 16 },
    Case { name: "d2", device: "low-latency-slc", host_ftl: None, threads: false, set: &[], kind: DeviceKind::D2, speed: "real", worst: true, blocks: false, mib: 32 },
    Case { name: "d0-small", device: "sata-mlc", host_ftl: None, threads: false, set: SMALL_D0, kind: DeviceKind::D0, speed: "10x", worst: false, blocks: true, mib: 16 },
    Case { name: "d1-small-worst", device: "consumer-tlc-nvme", host_ftl: None, threads: false, set: SMALL, kind: DeviceKind::D1, speed: "real", worst: true, blocks: true, mib: 16 },
    Case { name: "d1-slow", device: "mobile-ufs", host_ftl: None, threads: false, set: &[], kind: DeviceKind::D1, speed: "0.5", worst: false, blocks: false, mib: 16 },
    Case { name: "d2-max", device: "datacenter-tlc-plp-nvme", host_ftl: None, threads: false, set: &[], kind: DeviceKind::D2, speed: "max", worst: false, blocks: false, mib: 64 },
    Case { name: "d1-max", device: "barrier-850", host_ftl: None, threads: false, set: SMALL, kind: DeviceKind::D1, speed: "max", worst: true, blocks: false, mib: 16 },
    Case { name: "d0-8k", device: "mqsim-default", host_ftl: None, threads: false, set: &["ftl.metadata=log"], kind: DeviceKind::D0, speed: "10x", worst: false, blocks: false, mib: 32 },
    Case { name: "qblke", device: "qblke", host_ftl: Some("qblke,rings=4"), threads: false, set: CHANNELS, kind: DeviceKind::D1, speed: "real", worst: false, blocks: false, mib: 16 },
    Case { name: "pblk-worst", device: "qblke", host_ftl: Some("pblk"), threads: false, set: CHANNELS, kind: DeviceKind::D1, speed: "max", worst: true, blocks: false, mib: 16 },
    Case { name: "threads", device: "memory", host_ftl: Some("qblke"), threads: true, set: &[], kind: DeviceKind::D1, speed: "real", worst: false, blocks: true, mib: 16 },
    Case { name: "threads-file", device: "file", host_ftl: Some("qblke"), threads: true, set: &[], kind: DeviceKind::D1, speed: "real", worst: true, blocks: false, mib: 16 },
    Case { name: "threads-pblk", device: "file", host_ftl: Some("pblk"), threads: true, set: &[], kind: DeviceKind::D1, speed: "real", worst: true, blocks: true, mib: 16 },
];

/// A server, ended with us.
struct Serving {
    child: Child,
    target: Target,
}

impl Drop for Serving {
    fn drop(&mut self) {
        // It has ended already where all went well.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

impl Serving {
    fn start(weir: &Path, case: &Case, seed: u64, scratch: &Path) -> Result<Self, Box<dyn Error>> {
        let socket = scratch.join("disk.sock");
        let mut command = Command::new(weir);
        if case.threads {
            command.args(["threads", "--export", "disk", "--quiet", "--cpus", "2"]);
            command.args(case.host_ftl.iter().flat_map(|ftl| ["--ftl", ftl]));
            match case.device {
                "file" => command.arg(scratch.join("disk.weir")).args(["--create", "20MiB"]),
                _ => command.args(["--memory", "20MiB"]),
            };
        } else {
            command.args(["serve", &format!("disk={}", case.device), "--quiet", "--speed", case.speed]);
            command.args(["--seed", &seed.to_string()]);
            command.args(case.set.iter().flat_map(|set| ["--set", set]));
            command.args(case.host_ftl.iter().flat_map(|ftl| ["--host-ftl", ftl]));
        }
        command.arg("--unix").arg(&socket);
        if case.worst {
            command.arg("--worst");
        }
        let child = command.stdin(Stdio::null()).spawn()?;
        let control = scratch.join("disk.sock.control");
        let draws = !case.threads || case.worst;
        let target =
            Target { socket, control, export: "disk".into(), kind: case.kind, patience: PATIENCE, draws };
        let mut serving = Self { child, target };
        for _ in 0..6_000 {
            if serving.target.control.exists() {
                return Ok(serving);
            }
            if let Some(status) = serving.child.try_wait()? {
                return Err(format!("{}: weir serve ended with {status}", case.name).into());
            }
            std::thread::sleep(Duration::from_millis(10));
        }
        Err(format!("{}: weir serve opens no socket", case.name).into())
    }

    /// Ends it in order; what it has left in flight is none.
    fn stop(mut self, case: &Case) -> Result<(), Box<dyn Error>> {
        let control = &self.target.control;
        if !case.threads {
            let Reply::Status(status) = control::ask(control, &Ask::Status)? else {
                return Err("no status".into());
            };
            if status.disks[0].in_flight != 0 {
                return Err(format!("{} requests are left", status.disks[0].in_flight).into());
            }
        }
        control::ask(control, &Ask::Stop)?;
        let status = self.child.wait()?;
        if status.success() { Ok(()) } else { Err(format!("weir serve ended with {status}").into()) }
    }
}

/// A place for sockets, removed with us.
struct Scratch(PathBuf);

impl Drop for Scratch {
    fn drop(&mut self) {
        // If it is gone already, so much the better.
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

fn one(weir: &Path, case: &Case, seed: u64, cuts: u32, with_fio: bool) -> Result<Counts, Box<dyn Error>> {
    let scratch = std::env::temp_dir().join(format!("weir-cuts-{}", std::process::id()));
    std::fs::create_dir_all(&scratch)?;
    let scratch = Scratch(scratch);
    let serving = Serving::start(weir, case, seed, &scratch.0)?;
    let target = serving.target.clone();
    let facts = Client::connect(&target.socket, &target.export, false, PATIENCE)?.facts();
    let unit = u64::from(facts.blocks[1]);
    let length = (case.mib << 20).min(facts.size / unit * unit);
    let from = if with_fio { 0 } else { mix(seed) % ((facts.size - length) / unit + 1) * unit };
    let region = from..from + length;
    let counts = if with_fio {
        fio::run(&target, &region, unit, seed, cuts, &scratch.0)?
    } else {
        // Connections to a disk on threads end with its power.
        let eio = if case.threads { 0.0 } else { 0.3 };
        let plan = Plan { seed, cuts, region, blocks: case.blocks, requests_max: 600, eio };
        run(&target, &plan)?
    };
    serving.stop(case)?;
    Ok(counts)
}

fn main() -> Result<(), Box<dyn Error>> {
    let (mut weir, mut cuts, mut fios, mut seed, mut only) = (PathBuf::from("weir"), 0u32, 0u32, 1u64, None);
    let mut args = std::env::args().skip(1);
    while let Some(key) = args.next() {
        let value = args.next().ok_or_else(|| format!("{key} needs a value"))?;
        match key.as_str() {
            "--weir" => weir = value.into(),
            "--cuts" => cuts = value.parse()?,
            "--fio" => fios = value.parse()?,
            "--seed" => seed = value.parse()?,
            "--case" => only = Some(value),
            _ => return Err(format!("{key}: expected --weir, --cuts, --fio, --seed or --case").into()),
        }
    }
    for (driver, total) in [("client", cuts), ("fio", fios)] {
        let cases: Vec<&Case> =
            CASES.iter().filter(|case| only.as_ref().is_none_or(|only| only == case.name)).collect();
        if cases.is_empty() {
            let names: Vec<&str> = CASES.iter().map(|case| case.name).collect();
            return Err(format!("--case: expected one of {}", names.join(", ")).into());
        }
        // The seed says where few cuts begin, so that all cases have their turn.
        let turn = if driver == "fio" { seed as usize } else { 0 };
        for at in 0..cases.len() {
            let case = cases[(at + turn) % cases.len()];
            let share = (total as usize + cases.len() - 1 - at) / cases.len();
            if share == 0 {
                continue;
            }
            let seed = mix(seed ^ (at as u64) << 32);
            let clock = std::time::Instant::now();
            let counts = one(&weir, case, seed, share as u32, driver == "fio")
                .map_err(|error| format!("{} by {driver}: {error}", case.name))?;
            let kind = format!("{:?}", case.kind);
            println!(
                "{}",
                serde_json::json!({
                    "case": case.name, "by": driver, "kind": kind, "device": case.device, "speed": case.speed,
                    "worst": case.worst, "seed": seed, "counts": counts, "seconds": clock.elapsed().as_secs_f64(),
                })
            );
        }
    }
    Ok(())
}
