//! Every pair of format and family of sequences, on every device that `weir crash files` knows, so that none is forgotten.
//!
//! F2FS with blocks that change owners (`reuse`) on a late device once had a violation, and was in no run of CI and in no evidence.

use std::fmt::Write as _;

const FORMATS: [&str; 11] = [
    "f2fs",
    "f2fs-dual",
    "ext4",
    "ext4-journal",
    "ext4-dual",
    "ext4-soj",
    "ext4-sdj",
    "ext4-sdj-dual",
    "f2fs-ssc",
    "f2fs-ssc-dual",
    "alfs",
];

const DEVICES: [&str; 5] = ["model", "late", "device", "layer", "host-ftl"];

/// Whether a format is tested on a device, as `weir crash files` says.
fn is_possible(format: &str, on: &str) -> bool {
    match on {
        // Append segments in memory answer at once, and nothing between passes them.
        "late" | "layer" => format != "alfs",
        "host-ftl" => format != "alfs" && !format.starts_with("ext4-s") && !format.starts_with("f2fs-ssc"),
        _ => true,
    }
}

/// Families, with the number of their sequences in CI: on a device whose states are cheap, and on simulated ones.
const FAMILIES: [(&str, [u64; 2]); 10] = [
    ("seq-1", [24, 6]),
    ("seq-2", [4, 3]),
    ("random", [2, 1]),
    ("reuse", [4, 2]),
    ("nameless", [3, 2]),
    ("trees", [3, 2]),
    ("tasks", [6, 2]),
    ("sets", [4, 2]),
    ("copies", [4, 2]),
    ("cleaning", [1, 2]),
];

/// Number of sequences in the evidence for each one in CI.
const EVIDENCE: u64 = 12;

/// Options of a command for each pair and device; F2FS, which has two ways to flush, has both on all but simulated devices. F2FS uses
/// SHARE in cleaning, copies and sets only.
fn pairs(times: u64, states_each: u64) -> Vec<String> {
    let mut all = Vec::new();
    for format in FORMATS {
        for (family, counts) in FAMILIES {
            let is_shared = format.starts_with("f2fs-ssc") || format == "ext4-soj";
            if format.starts_with("f2fs-ssc") && !["cleaning", "copies", "sets"].contains(&family) {
                continue;
            }
            // Without SHARE a copy is a write of what was read.
            if family == "copies" && !is_shared {
                continue;
            }
            // Atomic files take a file system that journals data, or SHARE.
            if family == "sets" && !(format == "ext4-journal" || format.starts_with("ext4-sdj") || is_shared)
            {
                continue;
            }
            for on in DEVICES {
                if !is_possible(format, on) {
                    continue;
                }
                let is_simulated = !["model", "late"].contains(&on);
                let count = counts[usize::from(is_simulated)] * times;
                let mut pair = format!("--format {format} --sequences {family} --on {on}");
                let _ = write!(pair, " --count {count} --states-each {states_each}");
                if format == "f2fs" && !is_simulated {
                    all.push(format!("{pair} --flush flush"));
                }
                all.push(pair);
            }
        }
    }
    all
}

/// Whether a pair is on a simulated device below a block layer or a host FTL.
fn is_layered(pair: &str) -> bool {
    pair.contains("--on layer") || pair.contains("--on host-ftl")
}

/// CI's share. A late device shows what the model shows, so ext4 with SHARE has only that; and so has ext4 on a volume that is almost full,
/// where it has nothing to clean, which was half of the time of all pairs. Below a block layer or a host FTL requests overlap most in longer
/// sequences, so these have the others in the evidence only.
pub(crate) fn of_ci() -> Vec<String> {
    let is_short =
        |pair: &String| ["seq-1", "seq-2", "nameless", "trees"].iter().any(|family| pair.contains(family));
    let is_wanted = |pair: &String| match pair {
        layered if is_layered(layered) => {
            !(is_short(layered) || layered.contains("ext4") && layered.contains("cleaning"))
        }
        ext4 if ext4.contains("ext4") && ext4.contains("cleaning") => ext4.contains("--on late"),
        shared if shared.contains("ext4-s") => !shared.contains("--on model"),
        _ => true,
    };
    pairs(1, 40).into_iter().filter(is_wanted).collect()
}

/// Those of one run: a third of the pairs on a block layer or a host FTL, another one with the next seed.
pub(crate) fn of_run(seed: u64) -> Vec<String> {
    let (below, mut all): (Vec<String>, Vec<String>) = of_ci().into_iter().partition(|pair| is_layered(pair));
    all.extend((seed..).zip(below).filter(|(number, _)| number.is_multiple_of(3)).map(|(_, pair)| pair));
    all
}

/// Whether a program outside checks the volumes of a campaign: none knows ALFS.
pub(crate) fn has_judge(what: &str) -> bool {
    !what.contains("--format alfs")
}

/// Full counts.
pub(crate) fn of_evidence() -> Vec<String> {
    let judged = |pair: String| if has_judge(&pair) { pair + " --fsck-every 200" } else { pair };
    pairs(EVIDENCE, 120).into_iter().map(judged).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::BTreeSet;

    #[test]
    fn three_runs_have_all_pairs() {
        for seed in [1, 98_420_787] {
            let runs = [seed, seed + 100_000, seed + 200_000].map(of_run);
            let all: BTreeSet<String> = runs.iter().flatten().cloned().collect();
            assert_eq!(all, of_ci().into_iter().collect());
            assert!(runs.iter().all(|run| run.len() < all.len()));
        }
    }
}
