//! The crash laboratory against the simulated SSD (crash-laboratory §3).
//!
//! `FLASHWEIR_SEED` varies the seeds, `FLASHWEIR_CRASH_STATES` sets the number of distinct media that are recovered.

use crate::assert_no_violation;
use flashweir_contract::{Oracle, Verdict};
use flashweir_core::random::RandomStream;
use flashweir_crash::devices::{drawn_name, names, tiny};
use flashweir_crash::explorer::{
    WorldSpec, boot_device, boot_history, contents, cut, exercise_device, explore_world, kind_of, observed,
};
use flashweir_crash::sim::Sim;
use flashweir_crash::workload::{history, with_range_flushes};
use flashweir_crash::{CrashConfig, Effort, LitmusResult, Token, explore, litmus, replay};
use flashweir_device::config::RangeFlushSupport;
use flashweir_device::{Device, DeviceConfig, DeviceOptions, Geometry, Media, PlantedBug, Recovery, Torn};
use flashweir_host::HostMetrics;
use std::collections::BTreeMap;

fn seed() -> u64 {
    std::env::var("FLASHWEIR_SEED").ok().and_then(|seed| seed.parse().ok()).unwrap_or(1)
}

fn number(name: &str, otherwise: u64) -> u64 {
    std::env::var(name).ok().and_then(|n| n.parse().ok()).unwrap_or(otherwise)
}

#[test]
fn no_cut_breaks_the_contract() {
    let states = number("FLASHWEIR_CRASH_STATES", 60_000);
    let config = CrashConfig { seed: seed(), states: Some(states), jobs: 2, ..CrashConfig::default() };
    let report = explore(&config, |_| true).unwrap();
    for (device, counts) in &report.devices {
        println!("{device}: {counts:?}");
    }
    assert_no_violation(&report);
    assert!(report.totals.distinct >= states);
}

/// The description of a hang names what waits for what; here it is taken from devices that do not hang.
#[test]
fn a_hang_says_who_waits_for_whom() {
    let mut said = String::new();
    for name in ["tiny-d3", "tiny-d3-fused", "tiny-d1-range", "tiny-host-queues"] {
        let spec = WorldSpec { config: tiny(name).unwrap(), seed: 3, planted: None, effort: Effort::SHALLOW };
        let mut sim = Sim::new(boot_device(&spec, 0).unwrap(), boot_history(&spec, 0));
        while sim.step() {
            said += &sim.device().describe();
        }
    }
    for what in [
        "(FLUSH) waits for 1 versions, the oldest of unit ",
        "(RFLUSH) waits for ",
        "(write) waits for room in the buffer, ",
        " commands before it to be accepted",
        " commands that arrived in its stream before",
        "(write) waits for epoch ",
        "of stream 1 epoch ",
        "stream 1: epoch 1 waits for ",
    ] {
        assert!(said.contains(what), "nobody waits for {what:?}");
    }
}

/// Each device reaches the situations that it was made for: minimum counts over the histories of the same twenty worlds
/// without a cut.
#[test]
fn devices_reach_what_they_are_for() {
    let wanted: &[(&str, &[(&str, u64)])] = &[
        ("tiny-d1-erase-failing", &[("erase_failures", 5), ("grown_bad_blocks", 5)]),
        ("tiny-d1-worn", &[("erase_failures", 5), ("grown_bad_blocks", 5)]),
        ("tiny-d1-wear", &[("wear_victims", 20)]),
        ("tiny-d3-wear", &[("wear_victims", 3), ("erase_failures", 1), ("epochs", 100)]),
        ("tiny-d1-slow", &[("log_pages", 100), ("flushes", 100)]),
        ("tiny-d3-small-log", &[("checkpoints", 30), ("order_records", 100)]),
        ("tiny-d1-range-wide", &[("range_units_closure", 500)]),
        (
            "tiny-host-ordered",
            &[("back_merges", 50), ("epoch_waits", 50), ("overlap_waits", 20), ("busy", 20)],
        ),
        ("tiny-host-sorted", &[("back_merges", 5), ("front_merges", 3), ("epoch_waits", 50)]),
        ("tiny-host-queues", &[("back_merges", 5), ("barriers_sent", 100), ("overlap_waits", 20)]),
        ("tiny-host-flushes", &[("host flushes", 100), ("epoch_waits", 50)]),
        ("tiny-host-waits", &[("epoch_waits", 50), ("gc_units_moved", 100)]),
        (
            "tiny-dftl",
            &[("map_misses", 1_000), ("map_merges", 100), ("map_victims", 100), ("map_pages_moved", 100)],
        ),
        ("tiny-dftl-own", &[("map_hits", 100), ("map_pages_written", 1_000), ("checkpoints", 50)]),
        ("tiny-dftl-d0", &[("map_pages_written", 300), ("gc_units_moved", 300)]),
        ("tiny-dftl-d2", &[("map_pages_written", 300), ("range_flushes", 100)]),
        ("tiny-dftl-d3", &[("map_pages_written", 300), ("epochs", 100)]),
    ];
    let mut missed = Vec::new();
    for (name, wanted) in wanted {
        let mut sums: BTreeMap<String, u64> = BTreeMap::new();
        for world in 1..=20 {
            let spec = WorldSpec {
                config: tiny(name).unwrap(),
                seed: world,
                planted: None,
                effort: Effort::SHALLOW,
            };
            for boot in 0..3 {
                let device = boot_device(&spec, boot).unwrap();
                let before = *device.metrics();
                let mut sim = Sim::new(device, boot_history(&spec, boot));
                assert_eq!(sim.run(), None, "{name} world {world} boot {boot}");
                for metric in sim.device().metrics().since(&before).list() {
                    *sums.entry(metric.name.into()).or_default() += metric.value;
                }
                for metric in sim.host_metrics().iter().flat_map(HostMetrics::list) {
                    let name = if metric.name == "flushes" { "host flushes" } else { metric.name };
                    *sums.entry(name.into()).or_default() += metric.value;
                }
            }
        }
        sums.retain(|_, sum| *sum > 0);
        println!("{name}: {sums:?}");
        missed.extend(
            wanted
                .iter()
                .filter(|(what, least)| sums.get(*what).is_none_or(|sum| sum < least))
                .map(|what| (name, what)),
        );
    }
    assert!(missed.is_empty(), "{missed:?}");
}

/// A device in memory discards outdated contents (as all served devices do), and once discarded the source of a copy as
/// well. Source and copy are the same version, so after a cut recovery chose the source, and found zeros.
#[test]
fn what_a_device_in_memory_gives_up_is_never_missed() {
    let ran = names().zip(seed()..).map(|(name, seed)| many_boots(name, seed));
    let (cuts, copies) = ran.fold((0, 0), |sum, more| (sum.0 + more.0, sum.1 + more.1));
    println!("{cuts} cuts, {copies} units copied");
    assert!(copies > 1_000);
}

/// Where a plane had no room left, the device dropped versions that its capacitor protected: after the next cut an older one was
/// there, and nothing said so.
#[test]
fn a_worn_device_with_a_capacitor_keeps_what_it_cannot_write() {
    many_boots("tiny-d4-dftl-protected", 74_620_836);
    many_boots("tiny-d4-dftl-protected", 74_920_836);
}

/// Boots a device in memory many times, with a cut in each boot, and checks it after each; returns the number of cuts and of units
/// that GC copied.
fn many_boots(name: &str, seed: u64) -> (u64, u64) {
    let (mut cuts, mut copies) = (0, 0);
    let config = tiny(name).unwrap();
    let policy = kind_of(&config).policy();
    let options = DeviceOptions { seed, track_contents: true, planted: None };
    let mut random = RandomStream::new(seed, name);
    let mut device = Device::new(config.clone(), options);
    for boot in 0..number("FLASHWEIR_BOOTS", 8) as u32 {
        device.forgo_digest();
        let mut history = history(&Geometry::new(&config), seed, boot, 400);
        if config.buffer.range_flush != RangeFlushSupport::None {
            history = with_range_flushes(history, seed, boot);
        }
        let mut sim = Sim::new(device, history);
        for _ in 0..200 + random.below(6_000) {
            sim.step();
        }
        // A device whose programs fail wears out eventually.
        if sim.device().is_read_only() && config.faults.program_fail > 0.0 {
            break;
        }
        assert_eq!(sim.misbehaviour(), None, "{name}, seed {seed}, boot {boot}");
        copies += sim.device().metrics().gc_units_moved;
        let torn = [Torn::Absent, Torn::Damaged, Torn::Done];
        let media = sim.device().cut(sim.cut_instant(), |_| torn[random.below(3) as usize]);
        let log = sim.log().clone();
        drop(sim);
        device = Recovery::begin(&config, options, media).finish().0;
        let contents = contents(&device);
        let verdict = Oracle::new(policy).check(&log, log.position(), |lpn| observed(&contents, lpn));
        assert_eq!(verdict, Verdict::Legal, "{name}, seed {seed}, boot {boot}");
        cuts += 1;
    }
    (cuts, copies)
}

#[test]
fn a_report_does_not_depend_on_the_number_of_threads() {
    let report = |jobs| {
        let config = CrashConfig { seed: seed(), states: Some(10_000), jobs, ..CrashConfig::default() };
        serde_json::to_string(&explore(&config, |_| true).unwrap()).unwrap()
    };
    let alone = report(1);
    assert_eq!(alone, report(1));
    assert_eq!(alone, report(3));
}

/// Tests a tenth of the bugs, a different one with each seed; `weir crash --mutants` looks for all.
#[test]
fn planted_bugs_are_found() {
    let config = CrashConfig {
        seed: seed(),
        states: Some(1_000_000),
        jobs: 2,
        minimise: false,
        ..CrashConfig::default()
    };
    for (bug, name) in PlantedBug::ALL.into_iter().skip(seed() as usize % 10).step_by(10) {
        let report = explore(&config.with_planted(bug.into()), |_| true).unwrap();
        let by =
            report.violations.first().map(|violation| format!("{} ({})", violation.what, violation.token));
        println!("{name}: {} states, {by:?}", report.totals.distinct);
        assert!(by.is_some(), "{name} was not found");
    }
}

#[test]
fn a_token_replays_what_was_found() {
    let config = CrashConfig {
        seed: seed(),
        planted: Some(PlantedBug::EarlyFlush.into()),
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

/// No forbidden state is observed; each allowed one is reached by a variant of the SSD or by the model device.
#[test]
fn litmus_tests_from_both_sides() {
    let results = litmus(None);
    let sum = |of: fn(&LitmusResult) -> u64| results.iter().map(of).sum::<u64>();
    for result in results.iter().filter(|r| !r.missed.is_empty() || r.forbidden.is_some()) {
        println!("{} {}: missed {:?}, {:?}", result.name, result.kind, result.missed, result.forbidden);
    }
    let (allowed, reached) = (sum(|r| u64::from(r.allowed)), sum(|r| u64::from(r.reached)));
    let states = sum(|r| r.states);
    println!(
        "{} tests, {states} media, {reached} of {allowed} allowed states reached by the SSD",
        results.len()
    );
    assert!(results.iter().all(|result| result.forbidden.is_none()));
    assert_eq!(reached + sum(|r| u64::from(r.model)), allowed, "the model device reaches the others");
}

const TORN: [Torn; 3] = [Torn::Absent, Torn::Damaged, Torn::Done];

fn options(seed: u64) -> DeviceOptions {
    DeviceOptions { seed, track_contents: true, planted: None }
}

/// Returns the medium of a device that ran some events of a short history and then lost its power.
fn cut_short(config: &DeviceConfig, device: Device, boot: u32, random: &mut RandomStream) -> Media {
    let geometry = device.geometry().clone();
    let mut sim = Sim::new(device, history(&geometry, 5, boot, 40));
    for _ in 0..random.below(200) {
        if !sim.step() {
            break;
        }
    }
    assert_eq!(sim.misbehaviour(), None, "{} boot {boot}", config.name);
    let cells = sim.device().interrupted(sim.cut_instant()).len();
    let torn: Vec<Torn> = (0..cells).map(|_| TORN[random.below(3) as usize]).collect();
    cut(&sim, &torn)
}

/// Each boot leaves blocks half filled and ends before garbage collection has had its time. A plane that was short of
/// free blocks when the device woke up then waited for a program that could not happen.
#[test]
fn regression_cuts_that_follow_each_other_soon_do_not_use_up_a_plane() {
    for name in names() {
        let config = tiny(name).unwrap();
        let mut random = RandomStream::new(seed(), name);
        let mut device = Device::new(config.clone(), options(1));
        for boot in 0..60 {
            let media = cut_short(&config, device, boot, &mut random);
            let mut recovery = Recovery::begin(&config, options(1), media);
            if random.chance(0.3) {
                let steps = random.below(recovery.steps_left() as u64 + 1);
                (0..steps).for_each(|_| assert!(recovery.advance()));
                recovery = Recovery::begin(&config, options(1), recovery.cut(TORN[random.below(2) as usize]));
            }
            device = recovery.finish().0;
            device.audit();
        }
        assert_eq!(exercise_device(device, 1), Ok(()), "{name}");
    }
}

/// Each attempt wrote what the capacitor had saved to new blocks, until none was left; and blocks that the recovery
/// itself was going to erase counted as written.
#[test]
fn regression_a_recovery_that_is_cut_again_and_again_ends_some_day() {
    for name in names().filter(|name| name.starts_with("tiny-d2")) {
        let config = tiny(name).unwrap();
        let mut random = RandomStream::new(seed(), name);
        let mut device = Device::new(config.clone(), options(1));
        for boot in 0..6 {
            let mut media = cut_short(&config, device, boot, &mut random);
            let expected = contents(&Recovery::begin(&config, options(1), media.clone()).finish().0);
            for attempt in 0..40 {
                let mut recovery = Recovery::begin(&config, options(1), media);
                let steps = attempt % (recovery.steps_left() + 1);
                (0..steps).for_each(|_| assert!(recovery.advance()));
                media = recovery.cut(Torn::Damaged);
            }
            device = Recovery::begin(&config, options(1), media).finish().0;
            assert_eq!(contents(&device), expected, "{name} boot {boot}");
        }
        assert_eq!(exercise_device(device, 1), Ok(()), "{name}");
    }
}

fn explored(name: &str, seed: u64, effort: Effort) {
    let spec = WorldSpec { config: tiny(name).unwrap(), seed, planted: None, effort };
    assert_eq!(explore_world(&spec).1, None, "{name} seed {seed}");
}

/// The first program after preconditioning could destroy a page that had been durable since then.
#[test]
fn regression_preconditioning_leaves_no_open_word_line() {
    let effort = Effort { boots: 1, nested_depth: 0, exercise_every: 0, ..Effort::EVERYTHING };
    for seed in [0, 2, 4, 6] {
        for name in ["tiny-d1-mlc", "tiny-d1-mixed", "tiny-d0-mlc", "tiny-d2-mlc"] {
            explored(name, seed, effort);
        }
    }
}

/// Found while SHARE was built: a checkpoint vouched for the block of a copy whose SHARE was not accepted yet; a newer translation
/// page hid the place of a content; a copy for a last owner counted as a member of its source's epoch; the place of a deallocation in
/// an epoch was taken for that of the SHARE before it; and GC waited for a copy that waited for GC.
#[test]
fn regression_a_share_is_found_again_by_recovery() {
    for found in [
        "tiny-d4-through/2/0/0-12,14-21,28-41,43,48-49,51,55-56/c485/f/-",
        "tiny-d4-dftl/2/0/62-75,77-78,84-86,105-106,109,111-113,115/c359/af/-",
        "tiny-d4-ordered/4/2/17-18,30,32-39,52-53,58-59/c89/-/-",
        "tiny-d4-ordered/123/2/2-7,10-14,16-21,23,25-26,28-29,31-35,39,41,43-44,46-47/c101/a/-",
        "tiny-d4-failing/108/1/2-3,16-17,19,22-23,25-28,30,34-41,43-52,54-55,57,63-64/c393/-/-",
        "tiny-d4-failing/4/1/1-11,16-17/c128/-/-",
        // A refusal after the host had been told that the command was accepted; and pages that take over their own contents.
        "tiny-d4-failing/7014/2/10-11,40-44,48-53,55/c747/f/-",
        "tiny-d4-ordered/7005/1/20,22,41-42,79-80,85-90/c16/aa/-",
        // Copies filled a plane that had lost blocks, and the device gave it up for ever instead of refusing the SHARE.
        "tiny-d4-failing/500276/0/all/c806/-/-",
        "tiny-d4-failing/500338/0/all/c1251/-/-",
        "tiny-d4-failing/500276/0/1-7,18,20-21,26,28-30,32-41,44-45,47,50-55,60-61/c625/-/-",
        // A checkpoint had a unit that its page did not share any more; recovery took it for the content of the SHARE.
        "tiny-d4-through/69220792/0/0-28,30-31,36-38,56/c149/af/-",
        // GC gave the copy that a full table had made another identity than the SHARE had named, once it was a source and its page
        // the last owner.
        "tiny-d4-failing/69120784/2/0,3-4,6-10,12-18,20,22-26,29-31,33-35,37-40,42-44,46-47,50-51,57-58,64,67-69,71-72,75,77,79,81-86/c755/da/-",
        // A recovery that was cut after its checkpoint was complete let what had outlived the first cut beside the flash win over it.
        "tiny-d4-nvram-full/32/0/2,10,25,71-74,82-83,86,88,90,94/c172/fd/0a+10d",
        // GC had moved a content that a SHARE had named out of a block whose erase then failed; recovery mapped the page to that block.
        "tiny-drawn-73021190/73020784/0/8-20,22-23,25-26,28-29,62,65,67,71,73-74,92-93,97,100,103/c271/a/3a",
    ] {
        assert_eq!(replay(&found.parse().unwrap()).unwrap().fault, None, "{found}");
    }
}

/// A device whose programs fail wore out after a few boots, and its refusal to write was then called a violation.
#[test]
fn regression_a_device_without_spare_blocks_may_refuse_but_not_forget() {
    for found in [
        "tiny-d1-failing/18620779/2/all/c237/ff/3a+3a+3a",
        // Here the device had accepted writes, and reported that they failed.
        "tiny-d1-failing/99087109/1/90,93,98-99,102/c10/f/5a",
        // Programs of four blocks of a plane had failed, and only one block was empty yet and marked bad.
        "tiny-d1-failing/65336806/2/2,9-10/c63/ad/4a",
    ] {
        assert_eq!(replay(&found.parse().unwrap()).unwrap().fault, None, "{found}");
    }

    // A FLUSH after a failed one succeeded, and promised data that were lost; and data that no request had waited for
    // were called wrong at rest.
    for found in [
        "tiny-d1-worn/2/2/23,25-26,28-30,35,38-39,41-42,49,52-54/c359/-/-",
        "tiny-d1-erase-failing/12/2/60-63,68-69,71,76-77,80,84-85,88-91,94-98/c301/-/-",
        "tiny-d1-worn/6/1/all/c730/-/-",
    ] {
        assert_eq!(replay(&found.parse().unwrap()).unwrap().fault, None, "{found}");
    }

    let mut config = tiny("tiny-d1-failing").unwrap();
    config.faults.program_fail = 0.02;
    let mut worn_out = 0;
    for world in 0..10 {
        let mut random = RandomStream::new(seed() + world, "worn-out");
        let mut device = Device::new(config.clone(), options(world));
        for boot in 0..30 {
            device = Recovery::begin(&config, options(world), cut_short(&config, device, boot, &mut random))
                .finish()
                .0;
            device.audit();
        }
        worn_out += u32::from(device.is_read_only());
        assert_eq!(exercise_device(device, world), Ok(()), "world {world}");
    }
    assert!(worn_out > 0, "no device wore out");
}

/// Recovery compared the version that the capacitor had saved with what was at the place to which it was about to move the durable one: there
/// could be the remains of an earlier recovery, whose number made it drop the saved version.
#[test]
fn regression_what_was_saved_outlives_recoveries_that_are_cut() {
    for seed in 0..8 {
        let config = tiny("tiny-d2-slow").unwrap();
        let (counts, found) =
            explore_world(&WorldSpec { config, seed, planted: None, effort: Effort::SHALLOW });
        assert_eq!(found, None, "seed {seed}: {counts:?}");
    }
}

/// Devices with features that a seed combines, as many as `FLASHWEIR_CRASH_DRAWN` says.
#[test]
fn no_cut_of_drawn_devices_breaks_the_contract() {
    let (first, count) = (seed(), number("FLASHWEIR_CRASH_DRAWN", 30));
    let devices: Vec<String> = (first..first + count).map(drawn_name).collect();
    let config = CrashConfig {
        devices,
        states: None,
        worlds_each: Some(1),
        seed: first,
        jobs: 2,
        ..CrashConfig::default()
    };
    let report = explore(&config, |_| true).unwrap();
    assert_no_violation(&report);
    assert!(report.totals.distinct > 500 * count);
}

/// A device that is worn out refuses a write, which then changes nothing. Behind a block layer the laboratory took it for written.
#[test]
fn regression_a_write_that_was_refused_behind_a_layer_is_no_version() {
    let config = tiny("tiny-drawn-3122").unwrap();
    let spec = WorldSpec { config, seed: 3028, planted: None, effort: Effort::SHALLOW };
    let (counts, found) = explore_world(&spec);
    assert_eq!(found, None, "{counts:?}");
}
