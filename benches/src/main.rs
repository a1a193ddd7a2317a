//! Benches: each prints one line of JSON with the median of its runs, in CPU seconds or bytes.
//!
//! Place: started by `cargo xtask bench`, one process for each bench, so that peaks of memory do not mix.
//!
//! Invariant: a bench counts what the simulator counts (requests, flash writes, states) and divides by CPU
//! seconds of this process; wall-clock time appears nowhere.
#![forbid(unsafe_code)]

mod block_layer;
mod clone;
mod cpu;
mod crash;
mod files;
mod memory;
mod nbd;
mod requests;
mod writes;

use serde_json::{Value, json};
use std::process::ExitCode;

type Bench = fn() -> Result<Vec<(&'static str, f64)>, String>;

/// Name, what one run does, whether it is repeated (a peak of memory is reached once).
const BENCHES: [(&str, Bench, bool); 13] = [
    ("qd32-read", requests::read, true),
    ("qd32-write", requests::write, true),
    ("waf-only", writes::uniform, true),
    ("memory-512g", memory::after_tpcc, false),
    ("crash-states", crash::states, true),
    ("device-clone", clone::device, true),
    ("stack-direct", files::direct, true),
    ("stack-buffered", files::buffered, true),
    ("ext4-direct", files::ext4_direct, true),
    ("ext4-buffered", files::ext4_buffered, true),
    ("ext4-sequential", files::ext4_sequential, true),
    ("block-layer", block_layer::requests, true),
    ("nbd-session", nbd::session, true),
];

fn main() -> ExitCode {
    let args: Vec<String> = std::env::args().skip(1).collect();
    let args: Vec<&str> = args.iter().map(String::as_str).collect();
    let outcome = match args.as_slice() {
        [name] => measure(name, "5"),
        [name, "--runs", runs] => measure(name, runs),
        _ => Err("usage: flashweir-benches NAME [--runs N]".into()),
    };
    match outcome {
        Ok(answer) => {
            println!("{answer}");
            ExitCode::SUCCESS
        }
        Err(error) => {
            eprintln!("{error}");
            ExitCode::FAILURE
        }
    }
}

/// Runs a bench and gives the median of each value that it measures.
fn measure(name: &str, runs: &str) -> Result<Value, String> {
    let known: Vec<&str> = BENCHES.iter().map(|bench| bench.0).collect();
    let bench = BENCHES.iter().find(|bench| bench.0 == name);
    let (_, run, repeated) =
        bench.ok_or_else(|| format!("no bench {name:?}; there are {}", known.join(", ")))?;
    let runs: usize = match runs.parse() {
        Ok(runs @ 1..=1000) => runs,
        _ => return Err(format!("--runs {runs}: expected 1 to 1000")),
    };
    let runs = if *repeated { runs } else { 1 };
    let all: Vec<_> = (0..runs).map(|_| run()).collect::<Result<_, _>>()?;
    let mut answer = json!({ "name": name, "runs": runs });
    for (at, (key, _)) in all[0].iter().enumerate() {
        let mut values: Vec<f64> = all.iter().map(|values| values[at].1).collect();
        values.sort_by(f64::total_cmp);
        answer[*key] = json!(values[runs / 2]);
    }
    Ok(answer)
}
