//! The model device as a device: its reads, its refusals and its state after waking up.

use flashweir_contract::{Content, DeviceKind, Exploration, ModelDevice, Observed, Oracle};
use flashweir_core::command::{RangeFlush, SegmentId, SharePair, StreamId, Tag, pattern};
use flashweir_core::{Command, CommandId, Data, DeviceError, Done, Lba, Lpn, Op, Order, Payload};
use std::collections::BTreeSet;
use std::sync::Arc;

/// A device of 16 units of 4 KiB.
fn device(kind: DeviceKind) -> ModelDevice {
    ModelDevice::new(kind.policy(), 8, 16)
}

fn write(id: u64, lba: u64, blocks: u32, data: Data) -> Command {
    Command::new(id, Op::Write { lba: Lba(lba), blocks, data })
}

fn run(device: &mut ModelDevice, command: &Command) -> Result<Done, DeviceError> {
    let completion = device.submit(command).expect("completions are not held");
    assert_eq!(completion.id, command.id);
    completion.result
}

fn read(device: &mut ModelDevice, lba: u64, blocks: u32) -> Vec<Payload> {
    match run(device, &Command::new(99, Op::Read { lba: Lba(lba), blocks })) {
        Ok(Done::Data(units)) => units.into_vec(),
        other => panic!("a read gives data, not {other:?}"),
    }
}

#[test]
fn reads_show_the_newest_content() {
    let mut device = device(DeviceKind::D1);
    run(&mut device, &write(1, 0, 16, Data::Pattern(7))).unwrap();
    let tag = |lpn| Payload::Tag(pattern(7, Lpn(lpn)));
    assert_eq!(read(&mut device, 0, 24), [tag(0), tag(1), Payload::Zero]);
    run(&mut device, &Command::new(2, Op::Trim { lba: Lba(4), blocks: 12 })).unwrap();
    assert_eq!(read(&mut device, 0, 16), [tag(0), Payload::Zero], "only whole units are deallocated");
}

#[test]
fn part_of_a_unit_is_merged_with_the_rest() {
    let mut device = device(DeviceKind::D1);
    let bytes = |value: u8, blocks: usize| Data::Bytes(Arc::from(vec![value; blocks * 512]));
    run(&mut device, &write(1, 0, 8, bytes(1, 8))).unwrap();
    run(&mut device, &write(2, 6, 4, bytes(2, 4))).unwrap();
    run(&mut device, &Command::new(3, Op::WriteZeroes { lba: Lba(0), blocks: 1 })).unwrap();
    let mut expected = [[0u8; 4096], [0u8; 4096]];
    expected[0][512..3072].fill(1);
    expected[0][3072..].fill(2);
    expected[1][..1024].fill(2);
    for (payload, expected) in read(&mut device, 0, 16).iter().zip(expected) {
        let mut unit = [9; 4096];
        payload.expand(&mut unit);
        assert_eq!(unit, expected);
    }
}

#[test]
fn refusals_change_nothing() {
    let mut device = device(DeviceKind::D1);
    let mut barrier = Command::new(4, Op::Barrier);
    barrier.stream = Some(StreamId(1));
    let mut orphan = write(5, 0, 8, Data::Zero);
    orphan.order = Some(Order::Within);
    let flush = |id, flush| Command::new(id, Op::RFlush(Box::new(flush)));
    let ranges = vec![(Lba(0), 8); RangeFlush::RANGES_MAX + 1];
    let tags = vec![Tag(1); RangeFlush::TAGS_MAX + 1];
    let pair = SharePair { dst: Lba(0), src: Lba(8), blocks: 8 };
    let refused = [
        flush(10, RangeFlush { ranges, ..RangeFlush::default() }),
        flush(11, RangeFlush { tags, ..RangeFlush::default() }),
        flush(12, RangeFlush { tags: vec![Tag(0)], ..RangeFlush::default() }),
        flush(13, RangeFlush { segments: vec![(SegmentId(0), 1)], ..RangeFlush::default() }),
        write(1, 124, 8, Data::Zero),
        write(2, u64::MAX, 8, Data::Zero),
        write(3, 0, 8, Data::Bytes(Arc::from(vec![0; 512]))),
        barrier,
        orphan,
        Command::new(6, Op::Share(Box::new([pair]))),
        Command::new(7, Op::SegTrim { segment: SegmentId(0) }),
        Command::new(8, Op::Read { lba: Lba(128), blocks: 1 }),
    ];
    for command in &refused {
        assert!(run(&mut device, command).is_err(), "{command:?}");
    }
    assert!(device.log().ops().is_empty());
    let mut within = Command::new(14, Op::Barrier);
    (within.stream, within.order) = (Some(StreamId(1)), Some(Order::Within));
    let mut ordered = ModelDevice::new(DeviceKind::D3.policy(), 8, 16);
    assert!(run(&mut ordered, &within).is_err(), "a barrier of no length closes an epoch");
}

#[test]
fn share_binds_the_content_at_acceptance() {
    let mut device = device(DeviceKind::D4);
    let share = |id, src: u64, dst: u64| {
        let pair = SharePair { dst: Lba(dst * 8), src: Lba(src * 8), blocks: 16 };
        Command::new(id, Op::Share(Box::new([pair])))
    };
    assert!(matches!(run(&mut device, &share(1, 0, 4)), Err(DeviceError::SourceUnmapped { .. })));
    run(&mut device, &write(2, 0, 16, Data::Pattern(1))).unwrap();
    run(&mut device, &share(3, 0, 4)).unwrap();
    run(&mut device, &write(4, 0, 16, Data::Pattern(2))).unwrap();
    let shared = [Payload::Tag(pattern(1, Lpn(0))), Payload::Tag(pattern(1, Lpn(1)))];
    assert_eq!(read(&mut device, 32, 16), shared);
    // Units 0 and 1 each show one of three versions, and the SHARE persists or not: 3 * 3 * 2.
    let states: Vec<_> = device.legal_states(Exploration::default()).collect();
    assert_eq!(states.len(), 18);
    for state in &states {
        let mut woken = device.after(state);
        let units = read(&mut woken, 32, 16);
        assert!(units == shared || units == [Payload::Zero, Payload::Zero], "{units:?}");
    }
}

#[test]
fn held_completions_decide_what_a_flush_promises() {
    let mut device = device(DeviceKind::D1);
    device.hold_completions(true);
    assert_eq!(device.submit(&write(1, 0, 8, Data::Pattern(1))), None);
    assert_eq!(device.submit(&write(2, 8, 8, Data::Pattern(2))), None);
    assert!(device.release(CommandId(1)).is_some());
    assert_eq!(device.submit(&Command::new(3, Op::Flush)), None);
    assert_eq!(device.held().collect::<Vec<_>>(), [CommandId(2), CommandId(3)]);
    assert!(device.release(CommandId(3)).is_some());
    assert_eq!(device.release(CommandId(3)), None);
    let shown: BTreeSet<(u64, u64)> = device
        .legal_states(Exploration::default())
        .map(|state| device.after(&state))
        .map(|woken| (identity(&woken, 0), identity(&woken, 1)))
        .collect();
    let (one, two) = (pattern(1, Lpn(0)), pattern(2, Lpn(1)));
    assert_eq!(shown, BTreeSet::from([(one, 0), (one, two)]));
}

fn identity(device: &ModelDevice, lpn: u64) -> u64 {
    device.read(Lpn(lpn)).identity()
}

/// A second cut starts from the state that the first one left, and the oracle follows.
#[test]
fn a_woken_device_is_aged() {
    let mut device = device(DeviceKind::D1);
    device.age(Lpn(3), Payload::Tag(33));
    run(&mut device, &write(1, 0, 8, Data::Pattern(1))).unwrap();
    let states: Vec<_> = device.legal_states(Exploration::default()).collect();
    assert_eq!(states.len(), 2);
    let mut oracle = Oracle::new(device.policy());
    for state in &states {
        let mut woken = device.after(state);
        let before = woken.read(Lpn(0));
        assert_eq!(woken.read(Lpn(3)), Payload::Tag(33));
        run(&mut woken, &write(2, 0, 8, Data::Pattern(2))).unwrap();
        for second in woken.legal_states(Exploration::default()) {
            let again = woken.after(&second);
            let newest = Payload::Tag(pattern(2, Lpn(0)));
            assert!(again.read(Lpn(0)) == before || again.read(Lpn(0)) == newest);
            let observed = |lpn: Lpn| Observed::Content(Content::from(&again.read(lpn)));
            assert!(oracle.check(woken.log(), woken.log().position(), observed).is_legal());
        }
    }
}
