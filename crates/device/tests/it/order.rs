//! Streams and epochs: what a barrier holds back, what it costs, and what a closure includes (barriers §2, contract §5).

use crate::harness::Host;
use flashweir_core::command::{Data, EpochStamp, RangeFlush, SharePair, StreamId, Tag};
use flashweir_core::{Bytes, DeviceError, Duration, Lba, Op, Order};
use flashweir_device::config::{
    Allocation, BufferMode, DeviceConfig, PersistPolicy, RangeFlushSupport, ShareConfig,
};
use flashweir_device::presets::preset;

const POLICIES: [PersistPolicy; 3] =
    [PersistPolicy::InOrderWriteBack, PersistPolicy::Transactional, PersistPolicy::InOrderRecovery];

/// The phone of the barrier paper, scaled down.
fn small(policy: PersistPolicy) -> DeviceConfig {
    let mut config = preset("barrier-ufs").unwrap();
    config.geometry.blocks_per_plane = 32;
    config.geometry.pages_per_block = 16;
    config.ftl.over_provisioning = 0.4;
    config.buffer.capacity = Bytes::mib(1);
    config.buffer.range_flush = RangeFlushSupport::Selective;
    config.order.policy = policy;
    config
}

const WITHIN: Option<(StreamId, Order)> = Some((StreamId(1), Order::Within));
const BARRIER: Option<(StreamId, Order)> = Some((StreamId(1), Order::Barrier));

/// One page to each of `units`, each an epoch of its own.
fn epochs(host: &mut Host, units: std::ops::Range<u64>) {
    host.order = BARRIER;
    units.for_each(|unit| host.write(unit, 1, false));
    host.order = None;
}

fn range_flush(tag: u64) -> Op {
    Op::RFlush(Box::new(RangeFlush { ranges: Vec::new(), tags: vec![Tag(tag)], segments: Vec::new() }))
}

/// A stream that lost a member refuses all later commands, and a FLUSH reports it.
#[test]
fn a_stream_that_lost_a_member_refuses_what_comes_after() {
    for policy in POLICIES {
        let mut failed = 0;
        for seed in 1..=10 {
            let mut config = small(policy);
            config.ftl.allocation = Allocation::Static;
            config.ftl.over_provisioning = 0.8;
            config.ftl.gc.reserve_blocks = 3;
            config.ftl.gc.start_below_blocks = 4;
            config.faults.program_fail = 0.5;
            let mut host = Host::new(&config, seed);
            let units = host.device.geometry().user_units;
            while !host.device.is_read_only() {
                host.order = BARRIER;
                (0..units).for_each(|unit| host.write(unit, 1, false));
                host.wait(0);
            }
            let refused = |failures: &[(u64, DeviceError)], id: u64| {
                failures
                    .iter()
                    .any(|(of, error)| *of == id && *error == DeviceError::StreamFailed(StreamId(1)))
            };
            host.order = None;
            host.submit(Op::Flush, false);
            host.wait(0);
            host.order = BARRIER;
            let barrier = host.submit(Op::Barrier, false);
            host.wait(0);
            let has_failed =
                host.failures.iter().any(|(_, error)| matches!(error, DeviceError::StreamFailed(_)));
            assert_eq!(
                refused(&host.failures, barrier),
                has_failed,
                "{policy:?}, seed {seed}: {:?}",
                host.failures
            );
            failed += u64::from(has_failed);
            // What waits for a plane that was given up is no work.
            host.rest();
            assert!(host.device.is_quiet(), "{policy:?}, seed {seed}\n{}", host.device.describe());
        }
        assert!(failed > 0, "{policy:?}: no stream lost a member");
    }
}

/// Epochs that all go to one plane of many: each keeps what it replaces until all earlier ones are stable, so they have to be programmed in
/// their order. A FLUSH that began with the newest ones filled the plane, and waited for ever.
#[test]
fn regression_epochs_of_one_plane_become_stable_in_their_order() {
    for policy in POLICIES {
        let mut config = small(policy);
        config.geometry.channels = 4;
        config.geometry.chips_per_channel = 4;
        config.geometry.blocks_per_plane = 64;
        config.ftl.allocation = Allocation::Static;
        config.buffer.capacity = Bytes::mib(2);
        config.ftl.over_provisioning = 0.05;
        while config.validate().is_err() {
            config.ftl.over_provisioning += 0.01;
        }
        let mut host = Host::new(&config, 1);
        let geometry = host.device.geometry();
        let (units, page) = (geometry.user_units, u64::from(geometry.units_per_page));
        let stripe = u64::from(geometry.planes()) * page;
        host.write_all();
        host.submit(Op::Flush, false);
        host.wait(0);
        for round in 0..3 {
            let count = (units / stripe).min(512 * 85 / 100 / page);
            host.order = BARRIER;
            (0..count).for_each(|nth| host.write(nth * stripe + round * page, page, false));
            host.order = None;
            host.submit(Op::Flush, false);
            host.check(&format!("{policy:?}, round {round}"));
        }
        host.device.audit();
    }
}

/// A checkpoint has a record of each stream: one more than it has room for is refused, and the others go on.
#[test]
fn streams_have_room_in_a_checkpoint() {
    // In-order write-back records no epochs, and has no such limit.
    let mut host = Host::new(&small(PersistPolicy::InOrderWriteBack), 1);
    for stream in 0..3_000 {
        host.order = Some((StreamId(stream), Order::Barrier));
        host.write(u64::from(stream) % 64, 1, false);
        host.wait(8);
    }
    assert!(host.failures.is_empty());
    for policy in [PersistPolicy::Transactional, PersistPolicy::InOrderRecovery] {
        let mut host = Host::new(&small(policy), 1);
        let mut used = 0;
        while host.failures.is_empty() {
            host.order = Some((StreamId(used), Order::Barrier));
            host.write(u64::from(used) % 64, 1, false);
            host.wait(0);
            used += 1;
        }
        assert!(matches!(host.failures.pop(), Some((_, DeviceError::InvalidField(_)))), "{policy:?}");
        assert!(used > 64, "{policy:?}: {used}");
        // A read ignores its stream.
        host.order = Some((StreamId(used), Order::Within));
        host.submit(Op::Read { lba: Lba(0), blocks: 8 }, false);
        host.wait(0);
        assert!(host.failures.is_empty());
        for stream in (0..used - 1).cycle().take(40_000) {
            if host.device.metrics().checkpoints > 1 {
                break;
            }
            host.order = Some((StreamId(stream), Order::Barrier));
            host.write(64 + u64::from(stream) % 64, 1, false);
            host.wait(8);
        }
        host.order = None;
        host.submit(Op::Flush, false);
        host.wait(0);
        assert!(host.failures.is_empty() && host.device.metrics().checkpoints > 1, "{policy:?}");
        host.device.audit();
    }
}

/// Epochs of one page each become durable one after the other, in parallel, or all at once; a FLUSH waits for all.
#[test]
fn what_a_policy_costs() {
    let mut programs = Vec::new();
    for policy in POLICIES {
        let mut host = Host::new(&small(policy), 1);
        epochs(&mut host, 0..64);
        host.wait(0);
        assert_eq!(host.survivors(64), [false; 64], "a barrier makes nothing durable");
        host.submit(Op::Flush, false);
        host.check("after a FLUSH");
        assert_eq!(host.survivors(64), [true; 64]);
        let metrics = host.device.metrics();
        assert_eq!((metrics.epochs, metrics.ordered_units), (64, 64));
        assert_eq!(metrics.order_records > 0, policy == PersistPolicy::Transactional, "{policy:?}");
        programs.push((metrics.pages_programmed, host.agenda.now().as_nanos() / 1_000_000));
    }
    let [(_, in_order), (_, transactional), (_, in_recovery)] = programs[..] else { unreachable!() };
    // 64 programs of 0.8 ms one after the other; or 16 word lines on four dies, side by side, and then the records of the epochs.
    assert!(in_order >= 51 && in_recovery <= 4 && transactional <= in_recovery + 3, "{programs:?}");
}

/// A range flush of one page also makes the earlier epochs of its stream durable, and nothing that came later.
#[test]
fn a_range_flush_brings_its_closure() {
    for policy in POLICIES {
        let mut host = Host::new(&small(policy), 1);
        epochs(&mut host, 0..10);
        host.order = WITHIN;
        host.write_tagged(10, 1, false, [7, 0]);
        host.order = BARRIER;
        host.write(11, 1, false);
        host.write(12, 1, false);
        host.order = None;
        host.write(13, 1, false);
        host.wait(0);
        host.submit(range_flush(7), false);
        host.wait(0);
        let there = host.survivors(14);
        assert_eq!(there[..11], [true; 11], "{policy:?}");
        assert_eq!(there[12..], [false; 2], "{policy:?}");
        // A transaction is complete with its whole epoch.
        let whole_epoch = policy == PersistPolicy::Transactional;
        assert_eq!(there[11], whole_epoch);
        let metrics = host.device.metrics();
        let closure = 11 + u64::from(whole_epoch);
        assert_eq!((metrics.range_units_asked, metrics.range_units_closure), (1, closure), "{policy:?}");
        host.check("after a range flush");
    }
}

/// Regression, found by a power cut: an epoch that counts together with the open one held back a deallocation for ever.
#[test]
fn regression_a_deallocation_ends_the_epoch_that_it_would_wait_for() {
    let mut config = small(PersistPolicy::Transactional);
    config.order.fuse_epochs = 4;
    let mut host = Host::new(&config, 1);
    host.order = BARRIER;
    host.write(0, 2, false);
    host.order = WITHIN;
    host.write(1, 1, false);
    host.wait(0);
    assert_eq!(host.device.metrics().epochs_fused, 1);
    host.trim(2, 1, false);
    host.check("the deallocation came through");
    assert_eq!(host.survivors(2), [true; 2]);
}

/// Regression, found by a power cut: a range flush left out a version that a newer one of another stream had superseded, and with
/// it the versions on which that one depends.
#[test]
fn regression_a_superseded_version_brings_its_closure() {
    let mut config = small(PersistPolicy::InOrderRecovery);
    config.buffer.high_water = 1.0;
    let mut host = Host::new(&config, 1);
    epochs(&mut host, 0..1);
    host.order = WITHIN;
    host.write_tagged(5, 1, false, [7, 0]);
    host.order = Some((StreamId(2), Order::Within));
    host.wait(0);
    host.write(5, 1, true);
    host.wait(0);
    assert_eq!(host.survivors(1), [false]);
    host.submit(range_flush(7), false);
    host.wait(0);
    assert_eq!(host.survivors(1), [true], "the epoch before the tagged version");
}

/// Regression, found by a power cut of F2FS on a phone: a barrier of no length, which has no data to take, overtook the writes
/// before it; and deallocations and writes of whole units overtook writes that have to read something first.
#[test]
fn regression_commands_of_a_stream_are_accepted_as_they_arrive() {
    commands_of_a_stream_are_accepted_as_they_arrive(BufferMode::WriteBack);
}

/// What is accepted is durable there, so a TRIM that overtook a write survived a cut that the write did not.
#[test]
fn regression_commands_of_a_stream_are_accepted_as_they_arrive_in_a_protected_buffer() {
    commands_of_a_stream_are_accepted_as_they_arrive(BufferMode::PowerLossProtected);
}

fn commands_of_a_stream_are_accepted_as_they_arrive(mode: BufferMode) {
    let mut config = small(PersistPolicy::InOrderRecovery);
    config.buffer.mode = mode;
    config.buffer.access_latency = Duration::from_micros(10);
    let mut host = Host::new(&config, 1);
    host.write(0, 4, false);
    host.wait(0);
    host.submit(Op::Flush, false);
    host.wait(0);
    host.accepted.clear();
    host.order = WITHIN;
    // Half of a unit.
    let per_unit = host.device.geometry().lbas_per_unit;
    let part = Op::Write { lba: Lba(0), blocks: per_unit as u32 / 2, data: Data::Pattern(1) };
    let mut ids = vec![host.submit(part, false)];
    let write = |unit: u64| Op::Write {
        lba: Lba(unit * per_unit),
        blocks: per_unit as u32,
        data: Data::Pattern(unit),
    };
    ids.push(host.submit(write(1), false));
    host.order = BARRIER;
    ids.push(host.submit(Op::Barrier, false));
    host.order = WITHIN;
    ids.push(host.submit(Op::Trim { lba: Lba(2 * per_unit), blocks: per_unit as u32 }, false));
    ids.push(host.submit(write(3), false));
    // A command of another stream does not wait for them.
    host.order = Some((StreamId(9), Order::Barrier));
    let other = host.submit(Op::Barrier, false);
    host.wait(0);
    // A protected buffer has it still.
    let is_protected = mode == BufferMode::PowerLossProtected;
    assert!(is_protected || host.device.metrics().modify_pages_read > 0, "the first one had to read");
    let theirs: Vec<u64> = host.accepted.iter().copied().filter(|id| *id != other).collect();
    assert_eq!(theirs, ids);
    assert_eq!(host.accepted[0], other);
}

/// Such a command succeeded, and its epoch went on.
#[test]
fn regression_a_barrier_on_a_command_without_a_sector_counts() {
    for op in [
        Op::Write { lba: Lba(0), blocks: 0, data: Data::Pattern(1) },
        Op::Trim { lba: Lba(0), blocks: 0 },
        Op::WriteZeroes { lba: Lba(0), blocks: 0 },
    ] {
        let mut host = Host::new(&small(PersistPolicy::InOrderRecovery), 1);
        host.order = WITHIN;
        host.write(0, 1, false);
        host.order = BARRIER;
        host.submit(op, false);
        host.wait(0);
        assert_eq!(host.device.metrics().epochs, 1);
    }
}

/// With a flush that keeps commands from the buffer, a read waits among those that change something; it gave its stream an order
/// without numbers, and the next command of the stream, with one, was refused.
#[test]
fn regression_a_read_is_no_member_of_a_stream() {
    let mut config = small(PersistPolicy::InOrderRecovery);
    config.buffer.exclusive_flush = true;
    let mut host = Host::new(&config, 1);
    let per_unit = host.device.geometry().lbas_per_unit as u32;
    host.write(0, 4, false);
    host.wait(0);
    host.submit(Op::Flush, false);
    host.order = WITHIN;
    host.submit(Op::Read { lba: Lba(0), blocks: per_unit }, false);
    host.epoch = Some(EpochStamp { number: 0, members: None });
    host.submit(Op::Write { lba: Lba(0), blocks: per_unit, data: Data::Pattern(1) }, false);
    host.wait(0);
    assert_eq!(host.failures, []);
}

/// A protected buffer loses nothing, so there is nothing to keep in order.
#[test]
fn order_is_free_where_nothing_is_lost() {
    let mut config = small(PersistPolicy::InOrderWriteBack);
    config.buffer.mode = BufferMode::PowerLossProtected;
    let mut host = Host::new(&config, 1);
    epochs(&mut host, 0..64);
    host.wait(0);
    assert_eq!(host.survivors(64), [true; 64]);
    assert_eq!(host.device.metrics().ordered_units, 0);
}

#[test]
fn what_makes_no_sense_is_refused() {
    let mut host = Host::new(&small(PersistPolicy::None), 1);
    host.order = WITHIN;
    host.write(0, 1, false);
    host.submit(Op::Barrier, false);
    let refused = |what| DeviceError::NotSupported(what);
    assert_eq!(host.failures, [(1, refused("ordered commands")), (2, refused("barrier"))]);
    let mut host = Host::new(&small(PersistPolicy::InOrderRecovery), 1);
    host.submit(Op::Barrier, false);
    host.order = WITHIN;
    host.submit(Op::Barrier, false);
    host.order = BARRIER;
    host.submit(Op::Barrier, false);
    let wrong = |what| DeviceError::InvalidField(what);
    assert_eq!(
        host.failures,
        [(1, wrong("an order needs a stream")), (2, wrong("a barrier of no length closes an epoch"))]
    );
    assert_eq!(host.device.metrics().epochs, 0, "an empty epoch stays open");
    let mut config = small(PersistPolicy::InOrderRecovery);
    config.order.fuse_epochs = 2;
    let error = config.validate().unwrap_err();
    assert_eq!(error, "order.fuse_epochs = 2: expected 1, unless order.policy = \"transactional\"");
}

/// Found by the fuzzer of commands: the first command of a stream waited for an epoch half of all numbers ahead, which never comes.
#[test]
fn the_first_command_of_a_stream_cannot_be_of_an_epoch_that_is_over() {
    let mut host = Host::new(&small(PersistPolicy::InOrderRecovery), 1);
    host.order = WITHIN;
    host.epoch = Some(EpochStamp { number: u32::MAX, members: None });
    host.write(0, 1, false);
    host.wait(0);
    let over = DeviceError::InvalidField("a member of an epoch that is over");
    assert_eq!(host.failures, [(1, over)]);
    host.epoch = Some(EpochStamp { number: 0, members: None });
    host.write(0, 1, false);
    host.check("the stream begins with epoch 0");
}

/// A command that is refused because its stream has no epoch numbers changes nothing in the stream; one that is refused for another
/// reason is a member of its epoch all the same, since the host has counted it.
#[test]
fn a_refused_command_counts_only_where_it_could_belong() {
    let numbered = |number, members| Some(EpochStamp { number, members });
    let mut host = Host::new(&small(PersistPolicy::InOrderRecovery), 1);
    host.order = WITHIN;
    host.write(0, 1, false);
    host.epoch = numbered(0, None);
    host.write(1, 1, false);
    assert!(matches!(host.failures.last(), Some((2, DeviceError::InvalidField(_)))), "{:?}", host.failures);
    host.epoch = None;
    host.write(2, 1, false);
    host.wait(0);
    assert_eq!(host.failures.len(), 1);

    let far = host.device.geometry().capacity_lbas();
    host.order = Some((StreamId(2), Order::Within));
    host.epoch = numbered(0, None);
    host.submit(Op::Trim { lba: Lba(far), blocks: 8 }, false);
    assert!(matches!(host.failures.last(), Some((4, DeviceError::OutOfRange(_)))), "{:?}", host.failures);
    host.order = Some((StreamId(2), Order::Barrier));
    host.epoch = numbered(0, Some(2));
    host.write(3, 1, false);
    host.wait(0);
    assert_eq!(host.failures.len(), 2, "the barrier passes with the two members that it counts");
}

/// Members of the next epoch are on their way when a barrier is refused. Once both epochs became one.
#[test]
fn regression_a_barrier_that_is_refused_ends_its_epoch() {
    let numbered = |number, members| Some(EpochStamp { number, members });
    for are_numbered in [false, true] {
        let mut host = Host::new(&small(PersistPolicy::InOrderRecovery), 1);
        let far = host.device.geometry().capacity_lbas();
        let stamp = |stamp| if are_numbered { stamp } else { None };
        host.order = WITHIN;
        host.epoch = stamp(numbered(0, None));
        host.write(0, 1, false);
        host.order = BARRIER;
        host.epoch = stamp(numbered(0, Some(2)));
        host.submit(Op::Trim { lba: Lba(far), blocks: 8 }, false);
        host.order = WITHIN;
        host.epoch = stamp(numbered(1, None));
        host.write(1, 1, false);
        host.wait(0);
        assert_eq!((host.failures.len(), host.device.metrics().epochs), (1, 1), "numbered: {are_numbered}");
        // Nothing is in the queue of acceptance any more.
        host.order = BARRIER;
        host.epoch = stamp(numbered(1, Some(2)));
        host.submit(Op::Trim { lba: Lba(far), blocks: 8 }, false);
        assert_eq!((host.failures.len(), host.device.metrics().epochs), (2, 2), "numbered: {are_numbered}");
    }
}

/// A SHARE of what nobody wrote is refused at its turn.
#[test]
fn regression_a_barrier_that_is_refused_at_acceptance_ends_its_epoch() {
    let mut config = small(PersistPolicy::InOrderRecovery);
    config.ftl.share = ShareConfig { pages: 8, ..ShareConfig::default() };
    let mut host = Host::new(&config, 1);
    host.order = WITHIN;
    host.write(0, 1, false);
    host.order = BARRIER;
    host.submit(Op::Share([SharePair { dst: Lba(80), src: Lba(800), blocks: 8 }].into()), false);
    host.order = WITHIN;
    host.write(1, 1, false);
    host.wait(0);
    assert_eq!((host.failures.len(), host.device.metrics().epochs), (1, 1), "{:?}", host.failures);
}
