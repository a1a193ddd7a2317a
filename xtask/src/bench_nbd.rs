//! The bars of `weir serve`: its speed compared with another server's, and its latency with its own model's.
//!
//! Both servers have their disk in memory and get requests from fio through the same kind of socket. They take turns, so
//! that other load on the machine affects both. The median of the turns counts.

use crate::bench_turns::median;
use flashweir_judges::host::{on_path, published};
use flashweir_judges::steps::take;
use serde_json::Value;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

/// Number of turns of each server; odd, so that there is a median.
const TURNS: usize = 5;
/// Seconds of one turn.
const TURN_S: u32 = 2;

/// A served disk: the arguments of `weir`.
type Disk = &'static [&'static str];

const PAGES: Disk = &["serve", "--speed", "max", "consumer-tlc-nvme"];
const HOST_FTL: Disk = &[
    "serve",
    "--speed",
    "max",
    "qblke",
    "--set",
    "geometry.pages_per_block=64",
    "--host-ftl",
    "qblke,rings=2",
];
const THREADS: Disk = &["threads", "--memory", "2GiB"];

/// Name of each bar, with the disk and fio's `rw` and `iodepth`.
pub(crate) const SPEEDS: [(&str, Disk, &str, u32); 12] = [
    ("nbd-read-qd1", PAGES, "randread", 1),
    ("nbd-read-qd16", PAGES, "randread", 16),
    ("nbd-write-qd1", PAGES, "randwrite", 1),
    ("nbd-write-qd16", PAGES, "randwrite", 16),
    ("qblke-read-qd1", HOST_FTL, "randread", 1),
    ("qblke-read-qd16", HOST_FTL, "randread", 16),
    ("qblke-write-qd1", HOST_FTL, "randwrite", 1),
    ("qblke-write-qd16", HOST_FTL, "randwrite", 16),
    ("threads-read-qd1", THREADS, "randread", 1),
    ("threads-read-qd16", THREADS, "randread", 16),
    ("threads-write-qd1", THREADS, "randwrite", 1),
    ("threads-write-qd16", THREADS, "randwrite", 16),
];

/// A running server, which is killed when this is dropped.
struct Server {
    child: Child,
    socket: PathBuf,
}

impl Server {
    fn start(mut command: Command, socket: &Path) -> Result<Self, String> {
        let _ = std::fs::remove_file(socket);
        let child = command.stdout(Stdio::piped()).stderr(Stdio::null()).spawn();
        let server =
            Self { child: child.map_err(|error| format!("{command:?}: {error}"))?, socket: socket.into() };
        let begun = Instant::now();
        while std::os::unix::net::UnixStream::connect(socket).is_err() {
            if begun.elapsed() > Duration::from_secs(20) {
                return Err(format!("{command:?} does not listen"));
            }
            std::thread::sleep(Duration::from_millis(20));
        }
        Ok(server)
    }

    /// Ends it as Ctrl-C does; returns its output.
    fn end(mut self) -> Result<String, String> {
        let pid = self.child.id().to_string();
        take(Command::new("kill").args(["-INT", &pid]))?;
        let mut text = String::new();
        if let Some(mut out) = self.child.stdout.take() {
            std::io::Read::read_to_string(&mut out, &mut text).map_err(|error| error.to_string())?;
        }
        self.child.wait().map_err(|error| error.to_string())?;
        Ok(text)
    }

    /// Requests per second of fio on this server.
    fn iops(&self, rw: &str, depth: u32, seconds: u32) -> Result<f64, String> {
        let uri = format!("--uri=nbd+unix:///?socket={}", self.socket.display());
        fio_iops(&["--ioengine=nbd", &uri, "--size=1g"], rw, depth, seconds)
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
        let _ = std::fs::remove_file(&self.socket);
    }
}

/// Requests of 4 KiB per second of fio on `target`.
pub(crate) fn fio_iops(target: &[&str], rw: &str, depth: u32, seconds: u32) -> Result<f64, String> {
    let text = take(Command::new("fio").arg("--name=bench").args(target).args([
        &format!("--rw={rw}"),
        "--bs=4k",
        &format!("--iodepth={depth}"),
        "--time_based",
        &format!("--runtime={seconds}"),
        "--output-format=json",
    ]))?;
    let json = text.find('{').map_or("", |at| &text[at..]);
    let answer: Value = serde_json::from_str(json).map_err(|error| format!("fio: {error}"))?;
    let job = &answer["jobs"][0];
    let iops = |kind: &str| job[kind]["iops"].as_f64().unwrap_or(0.0);
    match iops("read") + iops("write") {
        iops if iops > 0.0 => Ok(iops),
        _ => Err(format!("fio did nothing: {}", job["error"])),
    }
}

fn weir(arguments: &[&str], socket: &Path) -> Result<Server, String> {
    let mut command = Command::new(published("weir"));
    command.args(arguments).args(["--output", "json"]).arg("--unix").arg(socket);
    Server::start(command, socket)
}

fn sockets() -> Result<[PathBuf; 2], String> {
    for tool in ["fio", "nbdkit"] {
        if !on_path(tool) {
            return Err(format!("{tool} is not installed"));
        }
    }
    let socket = |name: &str| std::env::temp_dir().join(format!("weir-bench-{}-{name}", std::process::id()));
    Ok([socket("ours"), socket("nbdkit")])
}

/// Median requests per second of ours and of nbdkit's memory plugin.
pub(crate) fn speed(disk: Disk, rw: &str, depth: u32) -> Result<(f64, f64), String> {
    let [ours, theirs] = sockets()?;
    let ours = weir(disk, &ours)?;
    let mut nbdkit = Command::new("nbdkit");
    nbdkit.arg("--foreground").arg("--unix").arg(&theirs).args(["memory", "2G"]);
    let theirs = Server::start(nbdkit, &theirs)?;
    // Both begin with a written disk, so that reads find data.
    for server in [&ours, &theirs] {
        server.iops("randwrite", 16, TURN_S)?;
    }
    let mut turns = [Vec::new(), Vec::new()];
    for _ in 0..TURNS {
        for (server, turns) in [&ours, &theirs].into_iter().zip(&mut turns) {
            turns.push(server.iops(rw, depth, TURN_S)?);
        }
    }
    let [ours, theirs] = turns.map(median);
    Ok((ours, theirs))
}

/// Latency of a read at queue depth 1 in real time.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Latency {
    /// Median of the model, ns.
    pub(crate) model: f64,
    /// Median of the server from a decoded request to its queued answer, ns.
    pub(crate) server: f64,
    /// Delay of answers after their due time: median and 99th percentile, ns.
    pub(crate) late: [f64; 2],
}

/// Measures reads at queue depth 1 on a device whose array read takes 75 µs.
pub(crate) fn latency() -> Result<Latency, String> {
    let [socket, _] = sockets()?;
    let server = weir(&["serve", "mqsim-small-ideal", "--precondition", "instant"], &socket)?;
    server.iops("randread", 1, 5)?;
    let text = server.end()?;
    let last = text.lines().last().unwrap_or_default();
    let status: Value = serde_json::from_str(last).map_err(|error| format!("weir serve: {error}: {text}"))?;
    let disk = &status["disks"][0];
    let number = |value: &Value| value.as_f64().ok_or_else(|| format!("no number in {status}"));
    let read = disk["kinds"].as_array().and_then(|kinds| kinds.iter().find(|kind| kind["kind"] == "read"));
    let read = read.ok_or("no reads were answered")?;
    Ok(Latency {
        model: number(&read["model_ns"]["p50"])?,
        server: number(&read["server_ns"]["p50"])?,
        late: [number(&disk["misses_ns"]["p50"])?, number(&disk["misses_ns"]["p99"])?],
    })
}
