//! `cargo xtask bench`: the bars of speed and memory, each measured by `benches/` in a process of its own.
//!
//! A bar is a ratio of counts to CPU seconds, or a number of bytes; wall-clock time is judged nowhere.

use crate::ci::cargo;
use crate::host::{commit, machine, out_dir, seed, target_dir};
use crate::steps::take;
use serde_json::{Value, json};
use std::process::Command;

/// What is wanted of a measured value.
#[derive(Clone, Copy, Debug)]
enum Bar {
    AtLeast(f64),
    AtMost(f64),
}

/// Name of the bench, the value that it prints, its unit, the bar.
const BARS: [(&str, &str, &str, Bar); 5] = [
    ("qd32-read", "requests_per_cpu_s", "requests/CPU s", Bar::AtLeast(2e6)),
    ("qd32-write", "requests_per_cpu_s", "requests/CPU s", Bar::AtLeast(2e6)),
    ("waf-only", "flash_writes_per_cpu_s", "flash writes/CPU s", Bar::AtLeast(10e6)),
    ("memory-512g", "peak_resident_bytes", "bytes", Bar::AtMost(300e6)),
    ("crash-states", "states_per_cpu_s", "states/CPU s", Bar::AtLeast(10e3)),
];

/// Runs the benches that were named, or all; with `--check` a missed bar is a failure.
pub(crate) fn run(args: &[&str]) -> Result<bool, String> {
    let (mut check, mut runs, mut names) = (false, "5", Vec::new());
    let mut rest = args.iter();
    while let Some(&arg) = rest.next() {
        match arg {
            "--check" => check = true,
            "--runs" => runs = rest.next().ok_or("--runs needs a number")?,
            name if BARS.iter().any(|bar| bar.0 == name) => names.push(name),
            other => {
                let known: Vec<&str> = BARS.iter().map(|bar| bar.0).collect();
                return Err(format!("no bench {other:?}; there are {}", known.join(", ")));
            }
        }
    }
    let seed = seed()?;
    take(cargo(seed).args(["build", "--locked", "--release", "--quiet", "-p", "flashweir-benches"]))?;
    let program = target_dir().join("release").join("flashweir-benches");
    let (mut results, mut missed) = (Vec::new(), 0);
    println!("{}", machine());
    println!("{:<14} {:>14} {:>14}  {:<20} verdict", "bench", "bar", "measured", "unit");
    for (name, key, unit, bar) in BARS.iter().filter(|bar| names.is_empty() || names.contains(&bar.0)) {
        let text = take(Command::new(&program).args([name, "--runs", runs]))?;
        let answer: Value =
            serde_json::from_str(&text).map_err(|error| format!("{name}: {error}: {text}"))?;
        let value = answer[*key].as_f64().ok_or_else(|| format!("{name}: no {key} in {text}"))?;
        let (met, bar) = match *bar {
            Bar::AtLeast(bar) => (value >= bar, format!("≥ {}", grouped(bar))),
            Bar::AtMost(bar) => (value <= bar, format!("≤ {}", grouped(bar))),
        };
        missed += u32::from(!met);
        let verdict = if met { "met" } else { "MISSED" };
        println!("{name:<14} {bar:>14} {:>14}  {unit:<20} {verdict}", grouped(value));
        results.push(json!({ "name": name, "bar": bar, "met": met, "answer": answer }));
    }
    let file = out_dir()?.join("bench.json");
    let report = json!({ "commit": commit(), "machine": machine(), "runs": runs, "results": results });
    std::fs::write(&file, format!("{report:#}\n")).map_err(|error| format!("{}: {error}", file.display()))?;
    println!("{} met, {missed} missed; details in {}", results.len() as u32 - missed, file.display());
    Ok(!check || missed == 0)
}

/// Digits in groups of three.
fn grouped(value: f64) -> String {
    let digits = format!("{value:.0}");
    let mut text = String::new();
    for (i, digit) in digits.chars().enumerate() {
        if i > 0 && (digits.len() - i) % 3 == 0 {
            text.push(',');
        }
        text.push(digit);
    }
    text
}

#[cfg(test)]
mod tests {
    use super::grouped;

    #[test]
    fn digits_stand_in_groups_of_three() {
        assert_eq!([5.0, 1000.4, 1e7].map(grouped), ["5", "1,000", "10,000,000"]);
    }
}
