//! SHARE: what it does to contents, what it costs, and what it refuses (share §2, share §3).

use crate::harness::Host;
use flashweir_core::command::{OutOfRange, SharePair};
use flashweir_core::random::RandomStream;
use flashweir_core::{Address, Bytes, DeviceError, Lba, Op};
use flashweir_device::config::{BufferMode, DeviceConfig, FtlConfig, ShareConfig, Translation};
use flashweir_device::presets::preset;

/// A small device with room for `pages` virtual pages.
fn small(pages: u32) -> DeviceConfig {
    let mut config = preset("rflush").unwrap();
    config.geometry.channels = 2;
    config.geometry.chips_per_channel = 2;
    config.geometry.blocks_per_plane = 32;
    config.geometry.pages_per_block = 16;
    config.buffer.capacity = Bytes::mib(1);
    let share = ShareConfig { pages, batch: 64, ..ShareConfig::default() };
    config.ftl = FtlConfig { over_provisioning: 0.4, share, ..FtlConfig::default() };
    config
}

/// Pairs of units: destination, source, number.
fn share(pairs: &[(u64, u64, u32)]) -> Op {
    let pair = |&(dst, src, units): &(u64, u64, u32)| SharePair {
        dst: Lba(dst * 8),
        src: Lba(src * 8),
        blocks: units * 8,
    };
    Op::Share(pairs.iter().map(pair).collect())
}

/// Submits a SHARE that succeeds, and notes what the host may expect of it.
fn shares(host: &mut Host, pairs: &[(u64, u64, u32)], fua: bool) {
    let units = || {
        pairs.iter().flat_map(|&(dst, src, units)| {
            (0..u64::from(units)).map(move |i| ((dst + i) as usize, (src + i) as usize))
        })
    };
    let bound: Vec<u64> = units().map(|(_, src)| host.expected[src]).collect();
    for ((dst, _), content) in units().zip(bound) {
        host.expected[dst] = content;
    }
    host.submit(share(pairs), fua);
    host.wait(0);
}

fn written(config: &DeviceConfig, units: u64) -> Host {
    let mut host = Host::new(config, 1);
    (0..units).for_each(|unit| host.write(unit, 1, false));
    host.submit(Op::Flush, false);
    host.wait(0);
    host
}

#[test]
fn pages_take_over_contents_and_no_data_move() {
    for translation in [Translation::Resident, Translation::DemandCached] {
        let mut config = small(64);
        config.ftl.translation = translation;
        let mut host = written(&config, 40);
        let programmed = host.device.metrics().user_units_programmed;
        // A copy, a swap of two pages, a chain, a page to itself, and a source that has an owner already.
        shares(&mut host, &[(100, 3, 4)], false);
        shares(&mut host, &[(10, 11, 1), (11, 10, 1)], false);
        shares(&mut host, &[(20, 21, 3)], false);
        shares(&mut host, &[(30, 30, 1), (101, 102, 1)], false);
        shares(&mut host, &[(200, 100, 1), (201, 200, 0)], true);
        assert_eq!(host.device.metrics().user_units_programmed, programmed, "{translation:?}");
        // Whoever is overwritten or deallocated, the others keep the content.
        host.write(3, 1, false);
        host.trim(100, 1, false);
        host.submit(Op::Flush, false);
        host.check("after it");
        let metrics = host.device.metrics();
        assert_eq!((metrics.shares, metrics.host_units_shared, metrics.share_copies), (5, 11, 0));
        host.device.audit();
    }
}

#[test]
fn a_full_table_copies_and_counts() {
    let mut host = written(&small(2), 40);
    let programmed = host.device.metrics().user_units_programmed;
    shares(&mut host, &[(100, 0, 6)], false);
    host.check("with copies");
    let metrics = host.device.metrics();
    assert_eq!((metrics.host_units_shared, metrics.share_copies), (6, 4));
    assert_eq!(metrics.user_units_programmed - programmed, 4);
    // Pages that are their own again make room.
    (0..2).for_each(|unit| host.write(100 + unit, 1, false));
    host.submit(Op::Flush, false);
    host.wait(0);
    (0..2).for_each(|unit| host.write(unit, 1, false));
    host.submit(Op::Flush, false);
    host.wait(0);
    shares(&mut host, &[(110, 10, 2)], false);
    host.check("with room again");
    assert_eq!(host.device.metrics().share_copies, 4);
    host.device.audit();
}

/// A checkpoint has room for the contents of all copies that were made (device-metadata §10): each page of the device takes over that of
/// page 0, one copy after the other. What has no room is refused and changes nothing, and has room again when copies were overwritten.
#[test]
fn copies_never_outgrow_a_checkpoint() {
    for translation in [Translation::Resident, Translation::DemandCached] {
        let mut config = small(1);
        config.geometry.blocks_per_plane = 256;
        config.ftl.translation = translation;
        let mut host = Host::new(&config, 1);
        let units = host.expected.len() as u64;
        host.write_all();
        let mut refused = 0;
        let mut fill = |host: &mut Host| {
            for dst in (1..units).step_by(64) {
                let count = 64.min(units - dst);
                let pairs: Vec<_> = (dst..dst + count).map(|dst| (dst, 0, 1)).collect();
                host.submit(share(&pairs), false);
                host.wait(0);
                match host.failures.pop() {
                    None => {
                        pairs.iter().for_each(|&(dst, ..)| host.expected[dst as usize] = host.expected[0])
                    }
                    Some((_, DeviceError::WriteFault { .. })) => refused += 1,
                    Some((_, error)) => panic!("{translation:?}: {error}"),
                }
            }
            refused
        };
        let first = fill(&mut host);
        host.check("with as many copies as fit");
        host.device.audit();
        assert!(
            first > 0 && first < units.div_ceil(64),
            "{translation:?}: {first} of {}",
            units.div_ceil(64)
        );
        host.write_all();
        host.submit(Op::Flush, false);
        host.wait(0);
        assert_eq!(fill(&mut host) - first, first, "{translation:?}");
        host.check("again");
        host.device.audit();
    }
}

/// A SHARE of `n` units takes 1 + n records (share §4.4).
#[test]
fn an_nvram_holds_so_many_records_and_spills_to_the_flash() {
    let mut config = small(64);
    config.ftl.share.nvram_records = 8;
    config.buffer.mode = BufferMode::WriteBack;
    config.validate().unwrap();
    let mut host = written(&config, 40);
    let flush = |host: &mut Host| {
        host.submit(Op::Flush, false);
        host.wait(0);
        host.device.metrics().log_pages
    };
    let before = flush(&mut host);
    shares(&mut host, &[(100, 3, 3)], true);
    shares(&mut host, &[(110, 100, 1), (115, 4, 2)], false);
    assert_eq!(flush(&mut host), before, "the NVRAM has both, and is full");
    shares(&mut host, &[(120, 9, 1)], false);
    assert_eq!(flush(&mut host), before + 1, "one page of the log has all three");
    shares(&mut host, &[(130, 10, 7)], false);
    assert_eq!(flush(&mut host), before + 1, "the NVRAM is empty again");
    shares(&mut host, &[(130, 20, 8)], false);
    assert_eq!(flush(&mut host), before + 2, "no NVRAM of this size can hold it");
    host.check("with an NVRAM");
    host.device.audit();

    config.ftl.share.pages = 0;
    let error = config.validate().unwrap_err();
    assert!(error.starts_with("ftl.share.nvram_records = 8: expected 0"), "{error}");
}

#[test]
fn what_makes_no_sense_is_refused_and_changes_nothing() {
    let config = small(64);
    let mut host = written(&config, 40);
    let end = host.device.geometry().user_units;
    let capacity = end * 8;
    let refused = [
        (share(&[(100, 39, 2)]), DeviceError::SourceUnmapped { lba: Lba(320) }),
        (share(&[(100, 1, 2), (101, 5, 1)]), DeviceError::InvalidBatch { lba: Lba(808) }),
        (share(&[(end, 1, 1)]), OutOfRange { at: Address::Lba(Lba(end * 8)), count: 8, capacity }.into()),
        (
            share(&[(100, 0, 65)]),
            DeviceError::InvalidField("a SHARE of more mapping units than ftl.share.batch"),
        ),
        (
            Op::Share([SharePair { dst: Lba(801), src: Lba(0), blocks: 8 }].into()),
            DeviceError::InvalidField("SHARE works on whole mapping units"),
        ),
        (
            Op::Share([SharePair { dst: Lba(u64::MAX), src: Lba(0), blocks: 8 }].into()),
            OutOfRange { at: Address::Lba(Lba(u64::MAX)), count: 8, capacity }.into(),
        ),
    ];
    for (op, error) in refused {
        host.submit(op.clone(), false);
        host.wait(0);
        assert_eq!(host.failures.pop().map(|(_, error)| error), Some(error), "{op:?}");
        host.check("after a refusal");
    }
    assert_eq!(host.device.metrics().shares, 0);
    let mut host = written(&small(0), 4);
    host.submit(share(&[(9, 1, 1)]), false);
    assert_eq!(host.failures.pop().map(|(_, error)| error), Some(DeviceError::NotSupported("SHARE")));
}

/// Commands drawn at random, most of them malformed in one way or several: each is carried out, or refused with a typed error and
/// nothing has changed. `FLASHWEIR_SEED` varies them.
#[test]
fn any_command_is_carried_out_or_refused_without_effect() {
    let seed = std::env::var("FLASHWEIR_SEED").ok().and_then(|seed| seed.parse().ok()).unwrap_or(1);
    for (pages, translation) in [(64, Translation::Resident), (3, Translation::DemandCached)] {
        let mut config = small(pages);
        config.ftl.translation = translation;
        let mut host = written(&config, 30);
        let capacity = host.device.geometry().capacity_lbas();
        let mut random = RandomStream::new(seed, "malformed SHARE");
        let (mut done, mut refused) = (0, 0);
        for _ in 0..400 {
            let lba = |random: &mut RandomStream| match random.below(30) {
                0 => random.below(400),
                1 => capacity - 8 * random.below(3),
                2 => u64::MAX - random.below(9),
                _ => 8 * random.below(45),
            };
            let pairs: Vec<SharePair> = (0..random.below(4))
                .map(|_| SharePair {
                    dst: Lba(lba(&mut random)),
                    src: Lba(lba(&mut random)),
                    blocks: match random.below(30) {
                        0 => u32::MAX,
                        1 => random.below(20) as u32,
                        2 => 8 * 65,
                        _ => 8 * random.below(3) as u32,
                    },
                })
                .collect();
            let is_range =
                |at: Lba, blocks: u32| at.0.checked_add(blocks.into()).is_some_and(|end| end <= capacity);
            let units =
                |at: Lba, blocks: u32| (0..u64::from(blocks) / 8).map(move |i| (at.0 / 8 + i) as usize);
            let is_good = pairs.iter().all(|p| {
                is_range(p.dst, p.blocks)
                    && is_range(p.src, p.blocks)
                    && [p.dst.0, p.src.0, p.blocks.into()].iter().all(|at| at % 8 == 0)
                    && units(p.src, p.blocks).all(|unit| host.expected[unit] != 0)
            });
            let mut bound: Vec<(usize, u64)> = Vec::new();
            if is_good {
                let of = |p: &SharePair| units(p.dst, p.blocks).zip(units(p.src, p.blocks));
                bound = pairs.iter().flat_map(of).map(|(dst, src)| (dst, host.expected[src])).collect();
            }
            let mut places: Vec<usize> = bound.iter().map(|(dst, _)| *dst).collect();
            places.sort_unstable();
            let is_good = is_good && places.len() <= 64 && places.windows(2).all(|two| two[0] != two[1]);
            host.submit(Op::Share(pairs.clone().into()), false);
            host.wait(0);
            let error = host.failures.pop().map(|(_, error)| error);
            assert_eq!(error.is_none(), is_good, "FLASHWEIR_SEED={seed}: {pairs:?}: {error:?}");
            match error {
                None => {
                    done += 1;
                    bound.into_iter().for_each(|(dst, content)| host.expected[dst] = content);
                }
                Some(
                    DeviceError::OutOfRange(_)
                    | DeviceError::InvalidField(_)
                    | DeviceError::InvalidBatch { .. }
                    | DeviceError::SourceUnmapped { .. },
                ) => refused += 1,
                Some(other) => panic!("FLASHWEIR_SEED={seed}: {pairs:?}: {other}"),
            }
            host.check("after a SHARE");
        }
        assert!(done > 100 && refused > 100, "{done} carried out, {refused} refused");
    }
}

/// GC moves shared units, one place for all owners, and gives a unit to the last owner.
#[test]
fn contents_outlive_garbage_collection() {
    let mut random = RandomStream::new(7, "share-gc");
    let mut config = small(400);
    config.geometry.blocks_per_plane = 20;
    let mut host = written(&config, 600);
    for _ in 0..60 {
        for _ in 0..8 {
            let (dst, src) = (random.below(600), random.below(600));
            shares(&mut host, &[(dst, src, 1 + random.below(3) as u32)], random.chance(0.3));
        }
        for _ in 0..60 {
            host.write(random.below(600), 1, false);
        }
        host.submit(Op::Flush, false);
        host.check("a round");
    }
    let metrics = host.device.metrics();
    assert!(metrics.gc_units_moved > 300 && metrics.share_collapses > 5, "{metrics:?}");
    host.device.audit();
}

/// A source that its only copy has left is its own again once GC has moved it. Once its place in the table was taken for ever, and with a full
/// table every SHARE copied.
#[test]
fn regression_a_source_without_copies_leaves_the_table() {
    let mut random = RandomStream::new(3, "sources");
    let mut config = small(2);
    config.geometry.blocks_per_plane = 20;
    let mut host = written(&config, 700);
    for round in 0..8 {
        shares(&mut host, &[(760, round, 1)], false);
        host.submit(Op::Flush, false);
        host.trim(760, 1, false);
        for _ in 0..3_000 {
            host.write(8 + random.below(690), 1, false);
        }
        host.submit(Op::Flush, false);
        host.check("a round");
    }
    let metrics = host.device.metrics();
    assert!(metrics.share_copies == 0 && metrics.share_collapses > 5, "{metrics:?}");
    host.device.audit();
}

/// A device whose buffer is protected saves a SHARE whose record is not in the log.
#[test]
fn a_protected_device_saves_it() {
    let mut config = small(64);
    config.buffer.mode = BufferMode::PowerLossProtected;
    config.buffer.protected = None;
    let mut host = written(&config, 40);
    shares(&mut host, &[(100, 3, 4)], false);
    assert_eq!(host.survivors(110), [true; 110]);
}
