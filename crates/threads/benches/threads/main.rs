//! Random reads and writes of 4 KiB by one and two threads, for each step from pblk to QBLKe: one JSON document.
//!
//! Place: `cargo xtask threads` runs it and keeps the answer. The model's prediction is held against it (open-channel §10.6).
//!
//! The medium is memory: a program is a copy, which its ring's writer pays for. On two CPUs that writer and the collector take time from
//! the clients, as kernel threads do.

#[path = "../kernel/mod.rs"]
mod kernel;

use flashweir_core::Lpn;
use flashweir_threads::content::{Unit, WORDS};
use flashweir_threads::{Assembly, Disk, Geometry, Handle, STEPS, ThreadsMetrics};
use serde_json::{Value, json};
use std::collections::BTreeMap;
use std::time::{Duration, Instant};

const SHAPE: Geometry = Geometry {
    channels: 8,
    dies_per_channel: 2,
    blocks_per_die: 64,
    programs_per_block: 32,
    units_per_program: 8,
    user_units: 0,
    cpus: 2,
    workers: 4,
};

/// Requests of a client between two looks at its tickets.
const DEPTH: u64 = 2;

#[derive(Clone, Copy, Debug, PartialEq)]
enum Job {
    /// Each unit once, in a random order, as far as the device takes it without GC.
    FirstWrites,
    /// Reads of what was written.
    Reads,
    /// Overwrites of a full device.
    Overwrites,
}

const JOBS: [(&str, Job); 3] =
    [("write-no-gc", Job::FirstWrites), ("read", Job::Reads), ("write-gc", Job::Overwrites)];

fn main() {
    let args: Vec<String> = std::env::args().skip(1).collect();
    let number = |name: &str, otherwise: u64| {
        let at = args.iter().position(|arg| arg == name);
        at.and_then(|at| args.get(at + 1)?.parse().ok()).unwrap_or(otherwise)
    };
    let rounds = [number("--rounds", 15), number("--gc-rounds", 3)];
    let has_priority = kernel::hurry();
    let geometry = SHAPE.over_provisioned(11);
    let mut rows = Vec::new();
    for threads in [1, 2] {
        for (name, assembly) in STEPS {
            rows.extend(measure(name, assembly, geometry, threads, rounds));
        }
    }
    let document = json!({
        "how": format!(
            "{} rounds without GC and {} with it, each on a disk of its own; client n is bound to CPU n; requests of one unit, depth {DEPTH}; per_s is the upper quartile of the rounds, which is what a quiet machine has, and the other figures of a row are of that round",
            rounds[0], rounds[1]
        ),
        "geometry": geometry,
        "prefers_us": has_priority,
        "measures_locks": cfg!(feature = "measure"),
        "rows": rows,
        "not_measured": ["time of a device", "the kernel's block layer, its interrupts and system calls"],
    });
    println!("{document:#}");
}

/// What a round gave.
struct Round {
    per_s: f64,
    /// Nanoseconds of CPU time for an operation, by kind of thread.
    cpu_ns: BTreeMap<&'static str, f64>,
    metrics: ThreadsMetrics,
    parts: Value,
}

fn measure(name: &str, assembly: Assembly, geometry: Geometry, threads: u64, rounds: [u64; 2]) -> Vec<Value> {
    let mut all: [Vec<Round>; JOBS.len()] = Default::default();
    let open = || Disk::open(assembly, geometry).expect("a geometry that can be");
    for _ in 0..rounds[0] {
        let disk = open();
        all[0].push(run(&disk, Job::FirstWrites, threads, 0));
        all[1].push(run(&disk, Job::Reads, threads, 200));
    }
    for _ in 0..rounds[1] {
        let disk = open();
        fill(&disk);
        all[2].push(run(&disk, Job::Overwrites, threads, 500));
    }
    let measured = JOBS.iter().zip(all).filter(|(_, rounds)| !rounds.is_empty());
    let rows = measured.map(|((job, _), mut rounds)| {
        rounds.sort_by(|a, b| a.per_s.total_cmp(&b.per_s));
        let (least, most) = (rounds[0].per_s, rounds[rounds.len() - 1].per_s);
        let (median, round) = (rounds[rounds.len() / 2].per_s, &rounds[rounds.len() * 3 / 4]);
        let cpu: Vec<String> = round.cpu_ns.iter().map(|(who, ns)| format!("{who} {ns:.0}")).collect();
        eprintln!(
            "{name:<6} {job:<12} {threads} thread{}  {:>10.0} /s  ({least:.0} to {most:.0})  CPU ns: {}  {}",
            if threads == 1 { " " } else { "s" },
            round.per_s,
            cpu.join(", "),
            round.parts
        );
        json!({
            "assembly": name, "job": job, "threads": threads,
            "per_s": round.per_s.round(), "per_s_median": median.round(), "per_s_min": least.round(), "per_s_max": most.round(),
            "cpu_ns_per_operation": round.cpu_ns, "metrics": round.metrics, "parts": round.parts,
        })
    });
    rows.collect()
}

/// Writes every unit of a disk, and as many again in a random order, so that lines are as stale as they stay.
fn fill(disk: &Disk) {
    let mut handle = disk.handle().expect("a handle");
    for lpn in 0..disk.units() {
        handle.write(Lpn(lpn), &[[lpn; WORDS]], false).expect("room");
    }
    let mut random = Random(7);
    for _ in 0..disk.units() {
        let lpn = random.below(disk.units());
        handle.write(Lpn(lpn), &[[lpn; WORDS]], false).expect("room");
    }
    handle.flush().expect("power");
}

/// Numbers that look random.
struct Random(u64);

impl Random {
    fn below(&mut self, limit: u64) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        ((u128::from(self.0) * u128::from(limit)) >> 64) as u64
    }
}

/// Units that are written without GC.
fn first_units(disk: &Disk) -> u64 {
    disk.units() * 4 / 5
}

/// The unit of a client's request number `at` of a permutation: all of `units`, each once, in no order that shows.
fn scattered(at: u64, units: u64) -> u64 {
    // A prime that divides no number of units here.
    const STEP: u64 = 1_000_003;
    (at as u128 * u128::from(STEP) % u128::from(units)) as u64
}

fn run(disk: &Disk, job: Job, threads: u64, millis: u64) -> Round {
    let units = if job == Job::Overwrites { disk.units() } else { first_units(disk) };
    let before = disk.metrics();
    #[cfg(feature = "measure")]
    let waited_before = disk.waited_ns();
    let cpu_before = kernel::cpu_times();
    let begin = Instant::now();
    let results: Vec<(u64, Duration, u64, Vec<u64>)> = std::thread::scope(|scope| {
        let client = |client: u64| {
            let handle = disk.handle().expect("a handle");
            let work = move || {
                kernel::pin(client as usize).expect("two CPUs");
                work(handle, job, client, threads, units, Duration::from_millis(millis))
            };
            std::thread::Builder::new().name("client".into()).spawn_scoped(scope, work).expect("a thread")
        };
        let clients: Vec<_> = (0..threads).map(client).collect();
        clients.into_iter().map(|client| client.join().expect("a client")).collect()
    });
    let wall = begin.elapsed();
    let operations: u64 = results.iter().map(|result| result.0).sum();
    let slowest = results.iter().map(|result| result.1).max().expect("a client");
    let mut cpu_ns = BTreeMap::new();
    for (who, ns) in kernel::cpu_times() {
        let spent = ns - cpu_before.get(who).copied().unwrap_or(0).min(ns);
        cpu_ns.insert(who, spent as f64 / operations as f64);
    }
    let client_cpu: u64 = results.iter().map(|result| result.2).sum();
    cpu_ns.insert("client", client_cpu as f64 / operations as f64);
    #[cfg(feature = "measure")]
    let parts = {
        let each = |ns: u64| (ns as f64 / operations as f64 * 10.0).round() / 10.0;
        let laps = (0..flashweir_threads::LAPS.len()).map(|at| {
            let ns: u64 = results.iter().map(|result| result.3[at]).sum();
            (flashweir_threads::LAPS[at].to_string(), json!(each(ns)))
        });
        let waited: Vec<f64> =
            disk.waited_ns().iter().zip(waited_before).map(|(now, then)| each(now - then)).collect();
        json!({
            "laps_ns": laps.filter(|lap| lap.1 != json!(0.0)).collect::<serde_json::Map<_, _>>(),
            "waited_ns": { "rings": waited[0], "map": waited[1], "pool": waited[2] },
        })
    };
    #[cfg(not(feature = "measure"))]
    let parts = Value::Null;
    let metrics = difference(disk.metrics(), before);
    assert!(wall >= slowest, "clients end before the measurement does");
    Round { per_s: operations as f64 / slowest.as_secs_f64(), cpu_ns, metrics, parts }
}

fn difference(after: ThreadsMetrics, before: ThreadsMetrics) -> ThreadsMetrics {
    ThreadsMetrics {
        reads: after.reads - before.reads,
        writes: after.writes - before.writes,
        ring_hits: after.ring_hits - before.ring_hits,
        user_units: after.user_units - before.user_units,
        gc_units: after.gc_units - before.gc_units,
        padded_units: after.padded_units - before.padded_units,
        programmed_units: after.programmed_units - before.programmed_units,
        lines_collected: after.lines_collected - before.lines_collected,
        lines_erased: after.lines_erased - before.lines_erased,
        busy_rings: after.busy_rings - before.busy_rings,
        limited: after.limited - before.limited,
        gated: after.gated - before.gated,
        dropped_copies: after.dropped_copies - before.dropped_copies,
        ..ThreadsMetrics::default()
    }
}

/// One client; returns its operations, its time, its CPU time and the parts of its requests.
fn work(
    mut handle: Handle,
    job: Job,
    client: u64,
    clients: u64,
    units: u64,
    limit: Duration,
) -> (u64, Duration, u64, Vec<u64>) {
    let sources: Vec<Unit> = (0..64).map(|at| [at; WORDS]).collect();
    let mut unit = [[0; WORDS]];
    let mut random = Random(0x9e37_79b9_7f4a_7c15 ^ (client + 1));
    let begin = Instant::now();
    let cpu = kernel::my_cpu_time();
    let mut done = 0;
    loop {
        for _ in 0..DEPTH {
            let any = random.below(units);
            let source = std::slice::from_ref(&sources[done as usize % 64]);
            match job {
                Job::FirstWrites => {
                    let lpn = Lpn(scattered(done * clients + client, units));
                    handle
                        .submit_write(lpn, source, false)
                        .and_then(flashweir_threads::Ticket::wait)
                        .expect("room");
                }
                Job::Overwrites => {
                    handle
                        .submit_write(Lpn(any), source, false)
                        .and_then(flashweir_threads::Ticket::wait)
                        .expect("room");
                }
                Job::Reads => handle.read(Lpn(any), &mut unit).expect("power"),
            }
            done += 1;
        }
        let is_over = match job {
            Job::FirstWrites => (done + DEPTH) * clients + client > units,
            _ => done % 64 == 0 && begin.elapsed() >= limit,
        };
        if is_over {
            break;
        }
    }
    let time = begin.elapsed();
    let cpu = kernel::my_cpu_time() - cpu;
    #[cfg(feature = "measure")]
    let parts = handle.laps_ns().to_vec();
    #[cfg(not(feature = "measure"))]
    let parts = Vec::new();
    (done, time, cpu, parts)
}
