//! The crash laboratory against the simulated SSD.

use flashweir_lab::crash::{CrashConfig, Token, explore, litmus, mutation_score, replay};

fn seed() -> u64 {
    std::env::var("FLASHWEIR_SEED").ok().and_then(|seed| seed.parse().ok()).unwrap_or(1)
}

fn number(name: &str, otherwise: u64) -> u64 {
    std::env::var(name).ok().and_then(|n| n.parse().ok()).unwrap_or(otherwise)
}

#[test]
fn no_cut_breaks_the_contract() {
    let states = number("FLASHWEIR_CRASH_STATES", 250_000);
    let devices = std::env::var("DEVICE").ok().into_iter().collect();
    let config = CrashConfig { seed: seed(), states, jobs: 2, devices, ..CrashConfig::default() };
    let report = explore(&config, |_| true).unwrap();
    println!("{} worlds, {:?}", report.worlds, report.totals);
    for (device, counts) in &report.devices {
        println!("{device}: {counts:?}");
    }
    for violation in &report.violations {
        println!("{}\n{}\nweir crash --replay {}", violation.drawing, violation.what, violation.token);
        println!("found as {}", violation.found_as);
    }
    assert!(report.violations.is_empty());
    assert!(report.totals.distinct >= states);
}

#[test]
fn every_planted_bug_is_found() {
    let config = CrashConfig { seed: seed(), states: number("MUTANT_STATES", 200_000), jobs: 2, minimise: false, ..CrashConfig::default() };
    let score = mutation_score(&config, |mutant| {
        let by = mutant.killed_by.as_ref().map_or("NOT FOUND".into(), |v| format!("{} ({})", v.what, v.token));
        println!("{}: {} states, {by}", mutant.bug, mutant.distinct);
    });
    let score = score.unwrap();
    println!("mutation score {} / {}", score.killed(), score.mutants.len());
    assert_eq!(score.killed(), score.mutants.len());
}

#[test]
fn a_token_replays_what_was_found() {
    let config = CrashConfig {
        seed: seed(),
        planted: Some(flashweir_device::PlantedBug::EarlyFlush),
        devices: vec!["tiny-d1".into()],
        ..CrashConfig::default()
    };
    let report = explore(&config, |_| true).unwrap();
    let violation = &report.violations[0];
    println!("{}\n{}", violation.token, violation.drawing);
    assert!(violation.ops <= 4, "{} operations", violation.ops);
    for text in [&violation.token, &violation.found_as] {
        let mut token: Token = text.parse().unwrap();
        assert_eq!(&token.to_string(), text);
        let replayed = replay(&token).unwrap();
        assert!(replayed.fault.is_some(), "{text}\n{}", replayed.drawing);
        token.planted = None;
        assert_eq!(replay(&token).unwrap().fault, None, "without the bug nothing is wrong");
    }
}

/// Each allowed state that the SSD does not reach is reached by the model device: the contract's own tests
/// show that it reaches all of them.
#[test]
fn litmus_tests_from_both_sides() {
    let results = litmus(None);
    let (mut allowed, mut reached, mut states) = (0, 0, 0);
    for result in &results {
        allowed += result.allowed;
        reached += result.reached;
        states += result.states;
        if !result.missed.is_empty() || result.forbidden.is_some() {
            println!("{} {}: {}/{} missed {:?} {:?}", result.name, result.kind, result.reached, result.allowed, result.missed, result.forbidden);
        }
    }
    println!("{} tests × kinds, {states} states: {reached} of {allowed} allowed states reached by the SSD", results.len());
    assert!(results.iter().all(|result| result.forbidden.is_none()));
}
