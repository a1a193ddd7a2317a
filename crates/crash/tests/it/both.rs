//! Pages and segments on one pool of blocks under power cuts.

use flashweir_crash::{CrashConfig, Token, explore, replay};
use flashweir_device::PlantedBug;

/// Tiny devices with both namespaces.
const DEVICES: [&str; 8] = [
    "tiny-both",
    "tiny-both-pages",
    "tiny-both-through",
    "tiny-both-once",
    "tiny-both-narrow",
    "tiny-both-slow",
    "tiny-both-failing",
    "tiny-both-worn",
];

#[test]
fn both_namespaces_keep_what_they_promise_whenever_the_power_goes() {
    let devices = DEVICES.map(String::from).into();
    let config =
        CrashConfig { devices, states: None, worlds_each: Some(1), jobs: 2, ..CrashConfig::default() };
    let report = explore(&config, |_| true).unwrap();
    super::assert_no_violation(&report);
    assert_eq!(report.devices.len(), DEVICES.len());
    assert!(report.totals.distinct > 6_000 && report.totals.distinct_nested > 100, "{:?}", report.totals);
}

/// Bugs of the common pool are found on these devices alone, told by their first commands, and shown again
/// by the line that is printed.
#[test]
fn planted_bugs_of_the_common_pool_are_found_drawn_and_replayed() {
    for bug in [
        PlantedBug::SegmentBlockTakenForPage,
        PlantedBug::TakenBeforeErased,
        PlantedBug::OldBlocksErasedEarly,
        PlantedBug::NextGenerationEarly,
    ] {
        let devices = DEVICES
            .into_iter()
            .filter(|name| flashweir_crash::devices::tiny(name).is_some_and(|config| bug.concerns(&config)));
        let config = CrashConfig {
            devices: devices.map(String::from).collect(),
            states: Some(400_000),
            jobs: 2,
            planted: Some(bug.into()),
            ..CrashConfig::default()
        };
        let report = explore(&config, |_| true).unwrap();
        let [violation] = &report.violations[..] else { panic!("{bug:?}: {:?}", report.totals) };
        println!("{bug:?} after {:?}: {}", report.totals, violation.what);
        for line in [&violation.token, &violation.found_as] {
            let token: Token = line.parse().unwrap();
            let replayed = replay(&token).unwrap();
            assert!(replayed.fault.is_some(), "{bug:?}: {line}\n{}", replayed.drawing);
            let sound = Token { planted: None, ..token };
            assert_eq!(replay(&sound).unwrap().fault, None, "{bug:?}: {line}");
        }
    }
}
