//! Devices with the map on the medium in the crash laboratory: cuts at every event, and bugs that must be found.

use crate::assert_no_violation;
use flashweir_crash::devices::{names, tiny};
use flashweir_crash::explorer::{WorldSpec, explore_world};
use flashweir_crash::{CrashConfig, Effort, explore};
use flashweir_device::PlantedBug;

fn devices() -> Vec<String> {
    names().filter(|name| name.starts_with("tiny-dftl")).map(str::to_owned).collect()
}

#[test]
fn no_cut_of_a_map_on_the_medium_breaks_the_contract() {
    let states = std::env::var("FLASHWEIR_CRASH_STATES").ok().and_then(|n| n.parse().ok()).unwrap_or(4_000);
    for device in devices() {
        let config = CrashConfig {
            devices: vec![device.clone()],
            states: Some(states),
            jobs: 2,
            ..CrashConfig::default()
        };
        let report = explore(&config, |_| true).unwrap();
        println!("{device}");
        assert_no_violation(&report);
        assert!(report.totals.distinct >= states, "{device}");
    }
}

/// Every event of one world of each device, and every cut of many of its recoveries.
#[test]
fn no_event_of_a_map_on_the_medium_is_left_out() {
    for device in devices() {
        let effort = Effort { boots: 1, states_max: None, exercise_every: 64, ..Effort::DEEP };
        let spec = WorldSpec { config: tiny(&device).unwrap(), seed: 5, planted: None, effort };
        let (counts, found) = explore_world(&spec);
        println!("{device}: {counts:?}");
        assert_eq!(found, None, "{device}");
        assert!(counts.distinct > 1_000 && counts.exercised > 0 && counts.moments_left_out == 0, "{device}");
    }
}

/// A plane whose collection waits for translation pages is not stuck. It was given up, with what had been accepted for it, on a medium
/// where programs fail.
#[test]
fn regression_a_plane_is_not_given_up_while_its_collection_waits_for_the_map() {
    let effort = Effort { boots: 1, states_max: Some(2_000), ..Effort::DEEP };
    for seed in 500..504 {
        let config = tiny("tiny-dftl-failing").unwrap();
        let (counts, found) = explore_world(&WorldSpec { config, seed, planted: None, effort });
        assert_eq!(found, None, "seed {seed}: {counts:?}");
    }
}

#[test]
fn planted_bugs_of_a_map_on_the_medium_are_found() {
    for bug in [
        PlantedBug::EvictionForgets,
        PlantedBug::MoveForgotten,
        PlantedBug::StaleMapPageMoved,
        PlantedBug::DirectoryBeforePage,
        PlantedBug::OldMapPageErased,
        PlantedBug::CheckpointForgetsChanges,
        PlantedBug::MovedMapPageTakenForNewer,
    ] {
        let config = CrashConfig { states: Some(1_000_000), jobs: 2, ..CrashConfig::default() };
        let report = explore(&config.with_planted(bug.into()), |_| true).unwrap();
        let found = report.violations.first();
        println!("{bug:?}: {} states, {:?}", report.totals.distinct, found.map(|found| &found.what));
        assert!(found.is_some(), "{bug:?}");
    }
}
