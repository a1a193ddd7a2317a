//! The open channel under power cuts.

use flashweir_crash::{CrashConfig, Token, explore, replay};
use flashweir_device::PlantedBug;

fn open_devices() -> CrashConfig {
    let devices = [
        "tiny-open",
        "tiny-open-planes",
        "tiny-open-failing",
        "tiny-open-wide",
        "tiny-open-programmed",
        "tiny-open-programmed-wide",
        "tiny-open-1.2",
        "tiny-open-1.2-failing",
        "tiny-open-wide-failing",
    ];
    let devices = devices.map(String::from).into();
    CrashConfig { devices, states: None, worlds_each: Some(3), ..CrashConfig::default() }
}

#[test]
fn an_open_channel_keeps_what_completed_whenever_the_power_goes() {
    let report = explore(&open_devices(), |_| true).unwrap();
    assert!(report.violations.is_empty(), "{:?}", report.violations);
    assert_eq!((report.totals.worlds, report.devices.len()), (27, 9));
    println!("{:?}", report.totals);
    assert!(report.totals.distinct > 18_000, "{:?}", report.totals);
}

/// Each is found, told by its first commands, and shown again by the line that it prints.
#[test]
fn planted_bugs_of_an_open_channel_are_found_drawn_and_replayed() {
    for bug in [
        PlantedBug::EraseUnderPrograms,
        PlantedBug::EarlyErase,
        PlantedBug::RecordsMixed,
        PlantedBug::FailedProgramAcknowledged,
        PlantedBug::ReadPassesErase,
        PlantedBug::HalfErasedWritten,
        PlantedBug::EarlyCopy,
        PlantedBug::CopyForgetsRecords,
        PlantedBug::WritePassesCopy,
        PlantedBug::RecentUnitsRead,
        PlantedBug::PointerAheadOfProgram,
        PlantedBug::DamagedChunkReopened,
        PlantedBug::UnevenChunkReopened,
    ] {
        let config = CrashConfig { worlds_each: None, states: Some(100_000), ..CrashConfig::default() };
        let config = CrashConfig { minimise: true, ..config.with_planted(bug.into()) };
        let report = explore(&config, |_| true).unwrap();
        let [violation] = &report.violations[..] else { panic!("{bug:?}: {:?}", report.totals) };
        assert!(
            violation.ops < 48 && violation.drawing.contains("power loss after"),
            "{bug:?}: {violation:?}"
        );
        for line in [&violation.token, &violation.found_as] {
            let token: Token = line.parse().unwrap();
            assert_eq!(token.to_string(), *line);
            let replayed = replay(&token).unwrap();
            assert!(replayed.fault.is_some(), "{bug:?}: {line}\n{}", replayed.drawing);
            let sound = Token { planted: None, ..token };
            assert_eq!(replay(&sound).unwrap().fault, None, "{bug:?}: {line}");
        }
    }
}

/// The interrupted program that is finished at the cut is one that the medium forbids.
#[test]
fn regression_an_assertion_inside_of_a_cut_is_a_violation() {
    let config = CrashConfig { seed: 61_620_782, states: Some(100_000), ..CrashConfig::default() };
    let report = explore(&config.with_planted(PlantedBug::EraseUnderPrograms.into()), |_| true).unwrap();
    assert_eq!(report.violations.len(), 1);
}

#[test]
fn what_no_open_channel_can_do_is_refused() {
    for (line, why) in [
        ("tiny-open/1/0/2-4/c3/-/-", "expected the first commands"),
        ("tiny-open/1/0/all/c3/-/0a", "no recovery that could be cut"),
    ] {
        let error = replay(&line.parse().unwrap()).unwrap_err();
        assert!(error.contains(why), "{error}");
    }
}
