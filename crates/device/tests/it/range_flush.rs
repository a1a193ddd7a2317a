//! Range flush: what it makes durable, what it leaves alone, and what it waits for (range-flush §4).

use crate::harness::{Host, random_config};
use flashweir_core::command::{OutOfRange, RangeFlush, Tag};
use flashweir_core::random::RandomStream;
use flashweir_core::{Address, Bytes, DeviceError, Lba, Lpn, Op, Ppa};
use flashweir_device::config::{BufferMode, Cell, DeviceConfig, OrderConfig, RangeFlushSupport};
use flashweir_device::flash::Owner;
use flashweir_device::presets::preset;

/// The paper's emulator, scaled down.
fn small() -> DeviceConfig {
    let mut config = preset("rflush").unwrap();
    config.geometry.channels = 2;
    config.geometry.chips_per_channel = 2;
    config.geometry.blocks_per_plane = 32;
    config.geometry.pages_per_block = 16;
    config.ftl.over_provisioning = 0.4;
    config.buffer.capacity = Bytes::mib(1);
    config
}

fn flush(tags: &[u64], units: &[(u64, u64)]) -> Op {
    let ranges = units.iter().map(|(first, count)| (Lba(first * 8), (count * 8) as u32)).collect();
    Op::RFlush(Box::new(RangeFlush {
        ranges,
        tags: tags.iter().copied().map(Tag).collect(),
        segments: Vec::new(),
    }))
}

#[test]
fn only_what_is_selected_becomes_durable() {
    let mut host = Host::new(&small(), 1);
    for unit in 0..100 {
        host.write_tagged(unit, 1, false, if unit % 10 == 3 { [7, 0] } else { [8, 0] });
    }
    host.wait(0);
    host.submit(flush(&[7], &[(50, 2)]), false);
    host.wait(0);
    let selected = |unit: u64| unit % 10 == 3 || (50..52).contains(&unit);
    assert_eq!(host.survivors(100), (0..100).map(selected).collect::<Vec<_>>());
    let metrics = host.device.metrics();
    assert_eq!(
        (metrics.range_units_asked, metrics.range_units_closure, metrics.user_units_programmed),
        (12, 12, 12)
    );
    assert_eq!(metrics.entanglement(), Some(1.0));
    // Nothing of the selection is left to wait for.
    host.submit(flush(&[7], &[(50, 2)]), false);
    host.wait(0);
    assert_eq!(host.device.metrics().user_units_programmed, 12);
    host.submit(Op::Flush, false);
    host.check("a FLUSH after it");
    assert_eq!(host.survivors(100), [true; 100]);
}

#[test]
fn a_device_without_it_makes_everything_durable_or_refuses() {
    let mut config = small();
    config.buffer.range_flush = RangeFlushSupport::Whole;
    let mut host = Host::new(&config, 1);
    (0..100).for_each(|unit| host.write_tagged(unit, 1, false, [1 + unit % 10, 0]));
    host.submit(flush(&[3], &[]), false);
    host.wait(0);
    assert_eq!(host.survivors(100), [true; 100]);
    assert_eq!(host.device.metrics().entanglement(), Some(10.0));
    config.buffer.range_flush = RangeFlushSupport::None;
    let mut host = Host::new(&config, 1);
    host.submit(flush(&[3], &[]), false);
    assert_eq!(host.failures, [(1, DeviceError::NotSupported("range flush"))]);
}

/// The urgent lane: the page that is asked for goes before many pages for which no command waits.
#[test]
fn it_goes_before_what_nobody_waits_for() {
    for (dynamic, fua) in [(true, false), (false, false), (true, true), (false, true)] {
        let mut config = small();
        if !dynamic {
            config.ftl.allocation = flashweir_device::config::Allocation::Static;
        }
        (config.buffer.high_water, config.buffer.low_water) = (0.0, 0.0);
        let mut host = Host::new(&config, 1);
        (0..200).for_each(|unit| host.write(unit, 1, false));
        if !fua {
            host.write_tagged(200, 1, false, [7, 0]);
        }
        host.wait(0);
        match fua {
            false => _ = host.submit(flush(&[7], &[]), false),
            true => host.write(200, 1, true),
        }
        let before = host.device.metrics().pages_programmed;
        host.wait(0);
        let programmed = host.device.metrics().pages_programmed - before;
        // Programs on the four chips end first, and then nothing but this page has to be programmed.
        assert!(programmed <= 8, "{programmed} pages went before it (dynamic: {dynamic}, FUA: {fua})");
        assert!(host.survivors(201)[200]);
    }
}

/// A page of multi-level cells is safe when its word line is full; only word lines for which a command waits are filled.
#[test]
fn only_the_word_lines_that_hold_it_are_completed() {
    let mut config = small();
    config.timing.cell = Cell::Mlc;
    config.faults.paired_page_loss = true;
    config.ftl.allocation = flashweir_device::config::Allocation::Static;
    let mut host = Host::new(&config, 1);
    // One page on each of the four chips; the first one is asked for.
    (0..4).for_each(|unit| host.write_tagged(unit, 1, false, [1 + unit, 0]));
    host.wait(0);
    host.submit(flush(&[1], &[]), false);
    host.wait(0);
    let metrics = host.device.metrics();
    assert_eq!((metrics.user_units_programmed, metrics.filler_units), (1, 1));
    assert_eq!(host.survivors(4), [true, false, false, false]);
}

#[test]
fn a_protected_buffer_has_nothing_to_wait_for() {
    let mut config = small();
    config.buffer.mode = BufferMode::PowerLossProtected;
    (config.buffer.high_water, config.buffer.low_water) = (0.5, 0.4);
    let mut host = Host::new(&config, 1);
    (0..100).for_each(|unit| host.write_tagged(unit, 1, false, [1 + unit / 90, 0]));
    host.wait(0);
    host.submit(flush(&[2], &[]), false);
    assert_eq!((host.completed, host.device.metrics().pages_programmed), (101, 0), "it completes at once");
    // When there is something to write, the selected versions go first.
    (100..140).for_each(|unit| host.write(unit, 1, false));
    host.rest();
    let owners = host.device.metrics().user_units_programmed;
    let units = host.device.geometry().physical_units();
    let on_medium = |lpn: u64| {
        (0..units).any(|ppa| {
            host.device.media().oob(Ppa(ppa)).is_some_and(|(owner, _)| owner == Owner::Lpn(Lpn(lpn)))
        })
    };
    assert!((20..60).contains(&owners), "some, and not all: {owners}");
    assert!((90..100).all(on_medium) && !on_medium(89) && on_medium(0));
}

#[test]
fn an_overwrite_unites_the_tags_and_too_many_are_all() {
    let mut host = Host::new(&small(), 1);
    (1..=3).for_each(|tag| host.write_tagged(0, 1, false, [tag, 0]));
    (1..=6).for_each(|tag| host.write_tagged(1, 1, false, [tag, tag + 10]));
    host.write_tagged(2, 1, false, [1, 2]);
    host.wait(0);
    host.submit(flush(&[2], &[]), false);
    host.wait(0);
    assert_eq!(host.survivors(3), [true; 3]);
    host.write_tagged(0, 1, false, [5, 0]);
    host.write_tagged(1, 1, false, [9, 0]);
    host.wait(0);
    // A version that became durable has no owners any more, and the next version has only its own.
    host.submit(flush(&[1, 99], &[]), false);
    host.wait(0);
    assert_eq!(host.survivors(3), [false, false, true]);
}

#[test]
fn what_no_device_can_do_is_refused_and_changes_nothing() {
    let mut host = Host::new(&small(), 1);
    let blocks = host.device.geometry().capacity_lbas();
    let many = (0..257).map(|unit| (unit * 2, 1)).collect::<Vec<_>>();
    let cases = [
        (flush(&[], &many), DeviceError::InvalidField("a range flush has at most 256 ranges")),
        (flush(&[1; 17], &[]), DeviceError::InvalidField("a range flush has at most 16 tags")),
        (flush(&[0], &[]), DeviceError::InvalidField("tag 0 is no tag")),
        (
            flush(&[], &[(0, 1), (blocks / 8, 1)]),
            OutOfRange { at: Address::Lba(Lba(blocks)), count: 8, capacity: blocks }.into(),
        ),
    ];
    for (op, expected) in cases {
        host.submit(op, false);
        assert_eq!(host.failures.pop().map(|(_, error)| error), Some(expected));
    }
    host.submit(flush(&[1; 16], &many[..256]), false);
    assert_eq!((host.failures.len(), host.device.metrics().range_flushes), (0, 1));
}

/// Every second program fails, so the planes reach their end: a command that asks for a lost version fails, and no other command
/// does.
#[test]
fn what_cannot_be_written_is_named_to_who_asked_for_it() {
    let mut config = small();
    config.ftl.allocation = flashweir_device::config::Allocation::Static;
    config.faults.program_fail = 0.5;
    config.ftl.over_provisioning = 0.8;
    let mut faults = 0;
    for seed in 1..=10 {
        let mut host = Host::new(&config, seed);
        let units = host.device.geometry().user_units;
        let mut asked = std::collections::BTreeMap::new();
        while !host.device.is_read_only() {
            (0..units).for_each(|unit| host.write_tagged(unit, 1, false, [1 + unit % 4, 0]));
            host.wait(0);
            for tag in 1..=5 {
                asked.insert(host.submit(flush(&[tag], &[]), false), tag);
            }
            host.wait(0);
        }
        for (id, error) in &host.failures {
            match (asked.get(id), error) {
                (Some(tag), DeviceError::WriteFault { at: Address::Lba(lba) }) => {
                    assert_eq!(1 + lba.0 / 8 % 4, *tag, "seed {seed}");
                    faults += 1;
                }
                (None, DeviceError::ReadOnly) => {}
                other => panic!("seed {seed}: {other:?}"),
            }
        }
    }
    assert!(faults > 10, "{faults} range flushes failed");
}

/// On random devices: after each range flush, every unit that it selected is there, or a newer version of it.
#[test]
fn random_devices_keep_what_was_asked_for() {
    let seed = std::env::var("FLASHWEIR_SEED").ok().and_then(|seed| seed.parse().ok()).unwrap_or(1);
    let (mut asked, mut left) = (0, 0);
    for seed in seed..seed + 60 {
        let mut config = random_config(seed, 0.0);
        config.buffer.mode = BufferMode::WriteBack;
        config.buffer.range_flush = RangeFlushSupport::Selective;
        if config.validate().is_err() {
            config.order = OrderConfig::default();
        }
        let mut host = Host::new(&config, seed);
        let mut random = RandomStream::new(seed, "range flush");
        let units = host.device.geometry().user_units;
        let mut owners: Vec<u64> = vec![0; units as usize];
        for _ in 0..60 {
            for _ in 0..random.below(40) {
                let (unit, tag) = (random.below(units), 1 + random.below(6));
                if random.chance(0.1) {
                    host.trim(unit, 1, false);
                    owners[unit as usize] = 0;
                } else {
                    host.write_tagged(unit, 1, false, [tag, 0]);
                    owners[unit as usize] = tag;
                }
            }
            host.wait(random.below(3));
            host.wait(0);
            let tag = 1 + random.below(6);
            let first = random.below(units);
            host.submit(flush(&[tag], &[(first, 1)]), false);
            host.wait(0);
            let there = host.survivors(units);
            for unit in 0..units {
                if owners[unit as usize] == tag || unit == first {
                    assert!(there[unit as usize], "seed {seed}: unit {unit}");
                }
            }
            left += there.iter().filter(|there| !**there).count();
        }
        host.check("at the end");
        asked += host.device.metrics().range_units_asked;
    }
    assert!(asked > 5_000 && left > 5_000, "{asked} asked for, {left} left in the buffer");
}

/// With the lock of the paper's prototype, a command that comes during a flush waits for its end; without it no command does.
#[test]
fn an_exclusive_flush_keeps_others_from_the_buffer() {
    for (exclusive, op) in
        [(true, Op::Flush), (true, flush(&[7], &[])), (false, Op::Flush), (false, flush(&[7], &[]))]
    {
        let mut config = small();
        config.buffer.exclusive_flush = exclusive;
        let mut host = Host::new(&config, 1);
        (0..100).for_each(|unit| host.write_tagged(unit, 1, false, [7, 0]));
        host.wait(0);
        host.submit(op.clone(), false);
        let flushed = host.completed;
        // A read of the buffer and a write of a new unit take no time by themselves.
        host.submit(Op::Read { lba: Lba(0), blocks: 8 }, false);
        host.write(200, 1, false);
        host.wait(1);
        // The last command is the flush, or else one that waited for it.
        let durable = host.survivors(100);
        assert_eq!(durable.iter().all(|durable| *durable), exclusive, "{op:?}");
        assert!(host.completed > flushed);
        host.wait(0);
        host.submit(Op::Flush, false);
        host.check("after all of it");
    }
}
