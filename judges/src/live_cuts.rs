//! Power cuts of running servers: a share in `cargo xtask ci`, the full count in `cargo xtask evidence live-cuts`.
//!
//! The example `live_cuts` of `flashweir-serve` does the work: it starts `weir serve`, loads it with a client of its own
//! or with fio, has its power cut, and asks the oracle of the crash contract. It fails at the first state that the
//! contract forbids, so all states that it counts are legal.

use crate::host::{built, on_path};
use crate::steps::{Verdict, take};
use serde_json::{Map, Value, json};
use std::process::Command;

/// Number of cuts in CI: under the client, and under fio.
const CI_CUTS: (u32, u32) = (40, 3);

/// The step of CI.
pub fn ci(seed: u64) -> Verdict {
    match campaign(seed, CI_CUTS, None) {
        Err(why) => Verdict::Failed(why),
        Ok(counts) => {
            let number = |by: &str, key: &str| total(&counts, by, key);
            for (by, key) in [("client", "promised"), ("client", "in_flight")] {
                if number(by, key) == 0 {
                    return Verdict::Failed(format!("no cut under {by} judged anything: {key} is 0"));
                }
            }
            Verdict::Passed(format!(
                "{} cuts under the client, {} under fio, {} requests in flight, {} promises kept",
                number("client", "cuts"),
                number("fio", "cuts"),
                number("client", "in_flight") + number("fio", "in_flight"),
                number("client", "promised") + number("fio", "promised"),
            ))
        }
    }
}

/// Cuts the power of each case in turn, or of one, so often under the client and under fio, with the programs of [`crate::builds::weir_builds`]; returns counts by driver and kind of device.
pub fn campaign(seed: u64, (cuts, fio): (u32, u32), case: Option<&str>) -> Result<Value, String> {
    if fio > 0 && !on_path("fio") {
        return Err("fio is not installed".into());
    }
    let mut command = Command::new(built("examples/live_cuts"));
    command.arg("--weir").arg(built("weir"));
    for (key, value) in [("--seed", seed), ("--cuts", cuts.into()), ("--fio", fio.into())] {
        command.args([key, &value.to_string()]);
    }
    command.args(case.iter().flat_map(|case| ["--case", case]));
    let text = take(&mut command)?;
    let mut counts = json!({});
    for line in text.lines() {
        let case: Value =
            serde_json::from_str(line).map_err(|error| format!("live_cuts: {error}: {line}"))?;
        let (Some(by), Some(kind)) = (case["by"].as_str(), case["kind"].as_str()) else {
            return Err(format!("live_cuts: no driver and no kind in {line}"));
        };
        add(&mut counts[by][kind], &case["counts"]);
    }
    Ok(counts)
}

/// Adds counts to sums, by their keys.
pub fn add(sums: &mut Value, counts: &Value) {
    if sums.is_null() {
        *sums = Value::Object(Map::new());
    }
    for (key, value) in counts.as_object().into_iter().flatten() {
        match value.as_u64() {
            Some(value) => sums[key] = json!(sums[key].as_u64().unwrap_or(0) + value),
            None => add(&mut sums[key], value),
        }
    }
}

/// Sum of one driver over all kinds of device.
pub fn total(counts: &Value, by: &str, key: &str) -> u64 {
    let kinds = counts[by].as_object().into_iter().flatten();
    kinds.filter_map(|(_, counts)| counts[key].as_u64()).sum()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn counts_add_up() {
        let mut sums = json!({});
        for cuts in [1, 2] {
            add(&mut sums, &json!({ "fio": { "D0": { "cuts": cuts }, "D1": { "cuts": 10 } } }));
        }
        assert_eq!(sums, json!({ "fio": { "D0": { "cuts": 3 }, "D1": { "cuts": 20 } } }));
        assert_eq!((total(&sums, "fio", "cuts"), total(&sums, "client", "cuts")), (23, 0));
    }
}
