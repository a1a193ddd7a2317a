//! Append segments: which commands a device refuses, how it answers, and what they cost.

use crate::harness::OneByOne;
use flashweir_core::command::{
    APPEND_NAMESPACE, EpochStamp, OutOfRange, RangeFlush, SegmentId, SegmentReport, StreamId, Tag, pattern,
};
use flashweir_core::random::{RandomStream, mix};
use flashweir_core::{
    Address, Agenda, Bytes, Command, Data, DeviceError, Done, Instant, Lba, Lpn, Op, Order, Payload,
};
use flashweir_device::config::{AppendMode, BufferMode, EraseTime, PersistPolicy};
use flashweir_device::presets::preset;
use flashweir_device::{Device, DeviceConfig, DeviceOptions, Effect, Event, Recovery, Torn};

/// Four ways, eight pages of one unit of 4 KiB in a block: segments of 32 units.
fn config() -> DeviceConfig {
    let mut config = preset("amf").unwrap();
    let g = &mut config.geometry;
    (g.channels, g.chips_per_channel, g.blocks_per_plane, g.pages_per_block) = (2, 2, 24, 8);
    (config.append.segments, config.append.spare_blocks) = (8, 4);
    config.buffer.capacity = Bytes::kib(64);
    config
}

fn host(change: impl Fn(&mut DeviceConfig)) -> OneByOne {
    let mut config = config();
    change(&mut config);
    OneByOne::new(config, APPEND_NAMESPACE)
}

const SECTORS: u32 = 8;
const S: SegmentId = SegmentId(3);

fn append(segment: SegmentId, units: u32, number: u64) -> Op {
    Op::SegAppend { segment, blocks: units * SECTORS, data: Data::Pattern(number) }
}

fn write(segment: SegmentId, unit: u32, units: u32, number: u64) -> Op {
    let (offset, blocks) = (unit * SECTORS, units * SECTORS);
    Op::SegWrite { segment, offset, blocks, data: Data::Pattern(number) }
}

fn read(segment: SegmentId, unit: u32, units: u32) -> Op {
    let lba = Lba(u64::from(segment.0 * 32 + unit) * 8);
    Op::Read { lba, blocks: units * SECTORS }
}

fn at(segment: SegmentId, unit: u32) -> Address {
    Address::Seg { segment, offset: unit * SECTORS }
}

fn contents(segment: SegmentId, units: std::ops::Range<u32>, number: u64) -> Done {
    let unit = |unit: u32| Payload::Tag(pattern(number, Lpn(u64::from(segment.0 * 32 + unit))));
    Done::Data(units.map(unit).collect())
}

fn report(host: &mut OneByOne, segment: SegmentId) -> SegmentReport {
    match host.run(Op::SegReport { segment }) {
        Ok(Done::Segment(report)) => *report,
        other => panic!("{other:?}"),
    }
}

#[test]
fn segments_are_written_in_order_read_and_deallocated() {
    let mut host = host(|_| {});
    assert_eq!(host.run(append(S, 3, 1)), Ok(Done::Appended { offset: 0 }));
    assert_eq!(host.run(write(S, 3, 2, 2)), Ok(Done::Ok));
    assert_eq!(host.run(append(S, 1, 3)), Ok(Done::Appended { offset: 5 * SECTORS }));
    assert_eq!(host.run(read(S, 0, 3)), Ok(contents(S, 0..3, 1)));
    assert_eq!(host.run(read(S, 3, 2)), Ok(contents(S, 3..5, 2)));
    assert_eq!(host.run(read(S, 5, 2)), Err(DeviceError::NotWritten { at: at(S, 6) }));
    for unit in [0, 5, 7] {
        let error = DeviceError::OutOfOrder { at: at(S, unit), expected: 6 * SECTORS };
        assert_eq!(host.run(write(S, unit, 1, 4)), Err(error));
    }
    let (write_pointer, durable_pointer) = (6 * SECTORS, 6 * SECTORS);
    let expected = SegmentReport { write_pointer, durable_pointer, generation: 0, gaps: Vec::new() };
    assert_eq!(report(&mut host, S), expected);
    assert_eq!(host.run(Op::SegTrim { segment: S }), Ok(Done::Ok));
    assert_eq!(host.run(read(S, 0, 1)), Err(DeviceError::NotWritten { at: at(S, 0) }));
    assert_eq!(report(&mut host, S), SegmentReport { generation: 1, ..SegmentReport::default() });
    // To deallocate nothing changes nothing.
    assert_eq!(host.run(Op::SegTrim { segment: S }), Ok(Done::Ok));
    assert_eq!(report(&mut host, S).generation, 1);
    assert_eq!(host.run(append(S, 32, 9)), Ok(Done::Appended { offset: 0 }));
    assert_eq!(host.run(read(S, 0, 32)), Ok(contents(S, 0..32, 9)));
    let full = OutOfRange { at: at(S, 32), count: SECTORS, capacity: 32 * 8 };
    assert_eq!(host.run(append(S, 1, 10)), Err(full.into()));
}

/// Page `p` of a segment is page `p / lanes` of the block of lane `p % lanes`, and lanes go through the channels first.
#[test]
fn pages_go_round_the_ways_channels_first() {
    let mut host = host(|_| {});
    host.run(append(S, 32, 1)).unwrap();
    let geometry = host.device.geometry();
    let place = |unit: u32| {
        let owner = flashweir_core::oob::Owner::Seg { segment: S, offset: unit };
        let mut all = (0..geometry.physical_units()).map(flashweir_core::Ppa);
        geometry
            .page_of(all.find(|ppa| host.device.owner(*ppa) == Some(owner)).expect("it is on the flash"))
            .0
    };
    let channel_and_way = |unit: u32| {
        let station = geometry.station(geometry.plane_of(place(unit).block));
        (geometry.channel(station).0, station.0 % 2)
    };
    let first: Vec<(u32, u32)> = (0..5).map(channel_and_way).collect();
    assert_eq!(first, [(0, 0), (1, 0), (0, 1), (1, 1), (0, 0)]);
    assert_eq!((place(0).page, place(4).page, place(31).page), (0, 1, 7));
    assert_eq!(place(0).block, place(28).block);
}

#[test]
fn narrow_segments_have_few_channels() {
    let mut host = host(|config| config.append.lanes = 2);
    assert_eq!(host.device.geometry().append.units, 16);
    host.run(append(SegmentId(0), 16, 1)).unwrap();
    host.run(append(SegmentId(1), 16, 1)).unwrap();
    let planes = |segment: u32| host.device.geometry().segment_planes(segment).to_vec();
    let channel = |segment: u32| {
        let geometry = host.device.geometry();
        let mut channels: Vec<u32> =
            planes(segment).iter().map(|plane| geometry.channel(geometry.station(*plane)).0).collect();
        channels.dedup();
        channels
    };
    assert_eq!((channel(0), channel(1), channel(2)), (vec![0], vec![1], vec![0]));
}

#[test]
fn any_sector_is_written_once_where_the_host_asks_for_it() {
    let mut host = host(|config| config.append.mode = AppendMode::WriteOnce);
    assert_eq!(host.run(write(S, 6, 2, 1)), Ok(Done::Ok));
    assert_eq!(host.run(write(S, 1, 2, 2)), Ok(Done::Ok));
    assert_eq!(host.run(write(S, 5, 2, 3)), Err(DeviceError::Overwrite { at: at(S, 6) }));
    let gaps: Vec<u32> = [0, 3, 4, 5].map(|unit| unit * SECTORS).into();
    let before = report(&mut host, S);
    assert_eq!((before.write_pointer, before.gaps), (8 * SECTORS, gaps.clone()));
    assert_eq!(host.run(read(S, 5, 1)), Err(DeviceError::NotWritten { at: at(S, 5) }));
    assert_eq!(host.run(Op::Flush), Ok(Done::Ok));
    assert_eq!(report(&mut host, S).durable_pointer, 8 * SECTORS);
    // The gaps were programmed, so what comes for them is put there by a copy of its block.
    assert_eq!(host.device.metrics().segment_moves, 0);
    assert_eq!(host.run(write(S, 3, 1, 4)), Ok(Done::Ok));
    assert_eq!(report(&mut host, S).durable_pointer, 3 * SECTORS);
    assert_eq!(host.run(read(S, 3, 1)), Ok(contents(S, 3..4, 4)));
    assert_eq!(host.run(Op::Flush), Ok(Done::Ok));
    assert_eq!(host.device.metrics().segment_moves, 1);
    let after = report(&mut host, S);
    assert_eq!(
        (after.durable_pointer, after.gaps),
        (8 * SECTORS, [0, 4, 5].map(|unit| unit * SECTORS).into())
    );
    // An append goes behind everything.
    assert_eq!(host.run(append(S, 1, 5)), Ok(Done::Appended { offset: 8 * SECTORS }));
    for (unit, number) in [(1, 2), (2, 2), (3, 4), (6, 1), (7, 1), (8, 5)] {
        assert_eq!(host.run(read(S, unit, 1)), Ok(contents(S, unit..unit + 1, number)));
    }
}

#[test]
fn a_limit_of_open_segments_is_kept_if_there_is_one() {
    let mut unlimited = host(|_| {});
    for segment in (0..8).map(SegmentId) {
        unlimited.run(append(segment, 1, 1)).unwrap();
    }
    let mut host = host(|config| config.append.max_open = 2);
    host.run(append(SegmentId(0), 1, 1)).unwrap();
    host.run(append(SegmentId(1), 1, 1)).unwrap();
    let error = DeviceError::TooManyOpen { limit: 2 };
    assert_eq!(host.run(append(SegmentId(2), 1, 1)), Err(error.clone()));
    host.run(append(SegmentId(0), 31, 2)).unwrap();
    assert_eq!(
        host.run(append(SegmentId(2), 1, 1)),
        Ok(Done::Appended { offset: 0 }),
        "a full one is not open"
    );
    assert_eq!(host.run(append(SegmentId(4), 1, 1)), Err(error));
    host.run(Op::SegTrim { segment: SegmentId(1) }).unwrap();
    assert_eq!(host.run(append(SegmentId(4), 1, 1)), Ok(Done::Appended { offset: 0 }));
}

/// A command is answered when its data are in the buffer; a flush, FUA or write-through waits for the flash.
#[test]
fn durability_is_what_was_asked_for() {
    let programmed = |host: &OneByOne| host.device.metrics().pages_programmed;
    let mut back = host(|_| {});
    let command = back.open(append(S, 4, 1));
    assert_eq!(back.submit(command), Some(Ok(Done::Appended { offset: 0 })));
    assert_eq!(programmed(&back), 0);
    assert!(back.device.is_volatile());
    let command = Command { fua: true, ..back.open(append(S, 1, 2)) };
    assert_eq!(back.submit(command), None);
    assert_eq!(back.rest(), Some(Ok(Done::Appended { offset: 4 * SECTORS })));
    assert_eq!(programmed(&back), 5, "FUA brings what lies in front");
    let mut through = host(|config| config.buffer.mode = BufferMode::WriteThrough);
    let command = through.open(append(S, 1, 1));
    assert_eq!(through.submit(command), None);
    through.rest().unwrap().unwrap();
    let mut protected = host(|config| config.buffer.mode = BufferMode::PowerLossProtected);
    let command = protected.open(append(S, 4, 1));
    protected.submit(command).unwrap().unwrap();
    let command = protected.open(Op::Flush);
    assert_eq!(protected.submit(command), Some(Ok(Done::Ok)), "there is nothing to wait for");
}

/// Pages of four units: a flush of a part of one puts it into the log, and no pad moves the write pointer.
#[test]
fn a_flush_of_part_of_a_page_does_not_move_the_write_pointer() {
    let mut host = host(|config| config.geometry.page_bytes = Bytes::kib(16));
    let segment = SegmentId(1);
    let unit = |unit: u32| Lba(u64::from(128 + unit) * 8);
    host.run(append(segment, 6, 1)).unwrap();
    assert_eq!(
        (host.device.metrics().segment_tails, report(&mut host, segment).durable_pointer),
        (0, 4 * SECTORS)
    );
    let prefix = RangeFlush { segments: vec![(segment, 5 * SECTORS)], ..RangeFlush::default() };
    assert_eq!(host.run(Op::RFlush(Box::new(prefix.clone()))), Ok(Done::Ok));
    let flushed = report(&mut host, segment);
    assert_eq!((host.device.metrics().segment_tails, flushed.durable_pointer), (1, 6 * SECTORS));
    assert_eq!(flushed.write_pointer, 6 * SECTORS);
    // What is durable is not written again.
    assert_eq!(host.run(Op::RFlush(Box::new(prefix))), Ok(Done::Ok));
    assert_eq!(host.run(Op::Flush), Ok(Done::Ok));
    assert_eq!(host.device.metrics().segment_tails, 1);
    let options = DeviceOptions { seed: 1, track_contents: true, planted: None };
    let media = host.device.cut(host.agenda.now(), |_| Torn::Absent);
    (host.device, _) = Recovery::begin(host.device.config(), options, media).finish();
    assert_eq!(report(&mut host, segment), flushed);
    host.run(append(segment, 2, 2)).unwrap();
    let answer = host.run(Op::Read { lba: unit(5), blocks: 3 * SECTORS });
    let content = |number: u64, nth: u64| Payload::Tag(pattern(number, Lpn(128 + nth)));
    assert_eq!(answer, Ok(Done::Data([content(1, 5), content(2, 6), content(2, 7)].into())));
}

#[test]
fn range_flushes_name_prefixes_or_ranges() {
    let mut host = host(|config| config.append.mode = AppendMode::WriteOnce);
    for segment in (0..3).map(SegmentId) {
        host.run(write(segment, 2, 1, 1)).unwrap();
    }
    let durable =
        |host: &mut OneByOne| [0, 1, 2].map(|at| report(host, SegmentId(at)).durable_pointer / SECTORS);
    assert_eq!(durable(&mut host), [0; 3], "gaps are filled when someone asks for what is behind them");
    let segments = vec![(SegmentId(1), 3 * SECTORS)];
    host.run(Op::RFlush(Box::new(RangeFlush { segments, ..RangeFlush::default() }))).unwrap();
    assert_eq!(durable(&mut host), [0, 3, 0]);
    let ranges = vec![(Lba(2 * 8), 8)];
    host.run(Op::RFlush(Box::new(RangeFlush { ranges, ..RangeFlush::default() }))).unwrap();
    assert_eq!(durable(&mut host), [3, 3, 0]);
}

#[test]
fn blocks_are_erased_in_the_background_or_when_they_are_needed() {
    for (erase, before, after) in [(EraseTime::Background, 4, 4), (EraseTime::FirstWrite, 0, 4)] {
        let mut host = host(|config| {
            config.append.erase = erase;
            config.append.segments = 19;
        });
        host.run(append(S, 32, 1)).unwrap();
        host.run(Op::SegTrim { segment: S }).unwrap();
        let erases = |host: &OneByOne| host.device.metrics().erases;
        assert_eq!(erases(&host), before, "{erase:?}");
        // All other free blocks are used first, because they are worn less.
        for segment in (0..19).map(SegmentId) {
            host.run(append(segment, 1, 2)).unwrap();
        }
        for segment in (0..19).map(SegmentId) {
            host.run(Op::SegTrim { segment }).unwrap();
            host.run(append(segment, 1, 3)).unwrap();
        }
        assert!(erases(&host) > after, "{erase:?}");
        assert_eq!(host.run(read(S, 0, 1)), Ok(contents(S, 0..1, 3)));
    }
}

/// One hot segment between full ones that never change.
#[test]
fn static_wear_levelling_brings_erase_counts_together() {
    let spread = |threshold: u32| {
        let mut host = host(|config| config.append.static_threshold = threshold);
        for segment in (1..8).map(SegmentId) {
            host.run(append(segment, 32, 1)).unwrap();
        }
        for _ in 0..400 {
            host.run(append(SegmentId(0), 32, 2)).unwrap();
            host.run(Op::SegTrim { segment: SegmentId(0) }).unwrap();
        }
        for segment in (1..8).map(SegmentId) {
            assert_eq!(host.run(read(segment, 0, 32)), Ok(contents(segment, 0..32, 1)));
        }
        let (least, _, most) = host.device.wear();
        (most - least, host.device.metrics().wear_victims)
    };
    let (apart, none) = spread(0);
    let (near, moved) = spread(3);
    // The blocks of the log are among those that are compared, and are not levelled.
    assert!(near * 2 < apart && moved > 0 && none == 0, "{apart} without, {near} with {moved} moves");
}

#[test]
fn malformed_commands_are_refused_and_change_nothing() {
    let mut host = host(|_| {});
    host.run(append(S, 4, 1)).unwrap();
    let digest = host.device.media().digest();
    let far = SegmentId(8);
    let outside =
        DeviceError::from(OutOfRange { at: Address::Seg { segment: far, offset: 0 }, count: 1, capacity: 8 });
    for op in
        [append(far, 1, 1), write(far, 0, 1, 1), Op::SegTrim { segment: far }, Op::SegReport { segment: far }]
    {
        assert_eq!(host.run(op), Err(outside.clone()));
    }
    let odd = |offset: u32, blocks: u32| Op::SegWrite { segment: S, offset, blocks, data: Data::Zero };
    assert_eq!(
        host.run(odd(33, 8)),
        Err(DeviceError::Misaligned { at: Address::Seg { segment: S, offset: 33 } })
    );
    assert_eq!(host.run(odd(32, 7)), Err(DeviceError::Misaligned { at: at(S, 4) }));
    let long = OutOfRange { at: at(S, 4), count: 29 * SECTORS, capacity: 256 };
    assert_eq!(host.run(write(S, 4, 29, 1)), Err(long.into()));
    let past = OutOfRange { at: Address::Lba(Lba(2040)), count: 16, capacity: 2048 };
    assert_eq!(host.run(Op::Read { lba: Lba(2040), blocks: 16 }), Err(past.into()));
    for data in [Data::Bytes(vec![0; 4095].into()), Data::Units((0..2).map(Payload::Tag).collect())] {
        let op = Op::SegAppend { segment: S, blocks: SECTORS, data };
        assert!(matches!(host.run(op), Err(DeviceError::InvalidField(_))));
    }
    let far_prefix = RangeFlush { segments: vec![(S, 257)], ..RangeFlush::default() };
    assert!(matches!(host.run(Op::RFlush(Box::new(far_prefix))), Err(DeviceError::OutOfRange(_))));
    let tags = RangeFlush { tags: vec![Tag(1)], ..RangeFlush::default() };
    let lba = Lba(0);
    for op in [
        Op::Write { lba, blocks: 8, data: Data::Zero },
        Op::WriteZeroes { lba, blocks: 8 },
        Op::Trim { lba, blocks: 8 },
        Op::Share(Box::default()),
        Op::PpaErase(Box::default()),
        Op::RFlush(Box::new(tags)),
    ] {
        assert!(matches!(host.run(op), Err(DeviceError::NotSupported(_))));
    }
    let elsewhere = Command::new(99, append(S, 1, 1));
    assert!(matches!(host.submit(elsewhere), Some(Err(DeviceError::InvalidField(_)))));
    let ordered = Command { stream: Some(StreamId(1)), ..host.open(append(S, 1, 1)) };
    assert!(
        matches!(host.submit(ordered), Some(Err(DeviceError::NotSupported(_)))),
        "no order was asked for"
    );
    assert_eq!(host.device.media().digest(), digest);
    assert_eq!(host.run(write(S, 4, 1, 2)), Ok(Done::Ok), "the write pointer has not moved");
}

#[test]
fn epochs_that_contradict_offsets_and_numbered_ones_are_refused() {
    let mut host = host(|config| {
        config.append.mode = AppendMode::WriteOnce;
        config.order.policy = PersistPolicy::InOrderWriteBack;
    });
    let stream = Some(StreamId(1));
    let ordered = |host: &mut OneByOne, op| {
        let command = Command { stream, order: Some(Order::Barrier), ..host.open(op) };
        host.run_command(command)
    };
    assert_eq!(ordered(&mut host, write(S, 8, 1, 1)), Ok(Done::Ok));
    assert_eq!(ordered(&mut host, write(S, 7, 1, 1)), Err(DeviceError::OrderConflict));
    assert_eq!(host.run(write(S, 7, 1, 1)), Ok(Done::Ok), "without a stream");
    assert_eq!(ordered(&mut host, write(S, 9, 1, 1)), Ok(Done::Ok));
    let numbered = Command {
        stream,
        epoch: Some(EpochStamp { number: 0, members: None }),
        ..host.open(append(S, 1, 1))
    };
    assert!(matches!(host.submit(numbered), Some(Err(DeviceError::NotSupported(_)))));
}

/// A random command, often a malformed one.
fn random_op(r: &mut RandomStream, number: u64) -> Op {
    let segment = SegmentId(r.below(10) as u32);
    let offset = if r.below(4) == 0 { r.below(300) as u32 } else { r.below(9) as u32 * SECTORS };
    let blocks = if r.below(4) == 0 { r.below(70) as u32 } else { r.below(6) as u32 * SECTORS };
    let (lba, data) = (Lba(r.below(2100)), Data::Pattern(number));
    match r.below(9) {
        0 | 1 => Op::SegAppend { segment, blocks, data },
        2 | 3 => Op::SegWrite { segment, offset, blocks, data },
        4 => Op::SegTrim { segment },
        5 => Op::SegReport { segment },
        6 => Op::Read { lba, blocks },
        7 => Op::Flush,
        _ => Op::RFlush(Box::new(RangeFlush {
            ranges: vec![(lba, blocks)],
            segments: vec![(segment, offset)],
            ..RangeFlush::default()
        })),
    }
}

/// Drives a device with random commands, several at a time; returns a hash of all that it did and when.
fn drive(host: &mut OneByOne, seed: u64) -> u64 {
    let mut r = RandomStream::new(seed, "random commands");
    let (mut asked, mut answered, mut hash) = (0, 0, 0);
    let mut take = |host: &mut OneByOne, now: Instant, effects: Vec<Effect>| {
        for effect in effects {
            match effect {
                Effect::At(at, event) => host.agenda.at(at, event),
                Effect::Accepted { id, .. } => hash = mix(hash ^ id.0),
                Effect::Complete(completion) => {
                    answered += 1;
                    let text = format!("{:?}", completion.result);
                    let said = text.bytes().fold(completion.id.0, |hash, byte| mix(hash ^ u64::from(byte)));
                    hash = mix(hash ^ now.as_nanos() ^ said);
                }
            }
        }
    };
    for number in 0..300 {
        let op = random_op(&mut r, number);
        let command = Command { fua: r.below(5) == 0, ..host.open(op) };
        asked += 1;
        let (mut effects, now) = (Vec::new(), host.agenda.now());
        host.device.command(now, command, &mut effects);
        take(host, now, effects);
        let events = if number == 299 { u64::MAX } else { r.below(8) };
        for _ in 0..events {
            let Some((now, event)) = host.agenda.pop() else { break };
            let mut effects = Vec::new();
            host.device.event(now, event, &mut effects);
            take(host, now, effects);
        }
    }
    assert_eq!(asked, answered, "seed {seed}");
    host.device.audit();
    mix(hash ^ host.device.media().digest())
}

/// A device of each mode, size of pages and promise of the buffer, by number.
fn variant(number: u64) -> OneByOne {
    host(|config| {
        config.append.mode = [AppendMode::Sequential, AppendMode::WriteOnce][number as usize % 2];
        config.geometry.page_bytes = Bytes::kib([4, 8][number as usize / 2 % 2]);
        let modes = [BufferMode::WriteBack, BufferMode::PowerLossProtected, BufferMode::WriteThrough];
        config.buffer.mode = modes[number as usize / 4 % 3];
        config.append.erase = [EraseTime::Background, EraseTime::FirstWrite][number as usize / 12 % 2];
        config.faults.program_fail = [0.0, 0.01][number as usize / 24 % 2];
    })
}

/// Whatever is sent: a typed error or success, no panic, and the accounts balance.
#[test]
fn random_commands_are_answered_once_and_leave_a_sound_device() {
    for seed in 100..148 {
        drive(&mut variant(seed), seed);
    }
}

/// The behaviour of the firmware, from answers and instants to the medium. A change that is meant to alter it records anew with
/// `FLASHWEIR_GOLDEN=record`.
#[test]
fn golden_records_of_segments() {
    const FILE: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/golden/segments.txt");
    let line = |number: u64| {
        let mut host = variant(number);
        let before = drive(&mut host, number);
        let options = DeviceOptions { seed: number, track_contents: true, planted: None };
        let media = host.device.cut(host.agenda.now(), |_| Torn::Absent);
        let (device, report) = Recovery::begin(host.device.config(), options, media).finish();
        host.device = device;
        let after = drive(&mut host, number + 1000);
        let steps = (report.pages_read, report.steps, report.units);
        format!("{number}: {before:016x}, recovery {steps:?}, {after:016x}\n")
    };
    let now: String = (0..48).map(line).collect();
    if std::env::var("FLASHWEIR_GOLDEN").is_ok_and(|what| what == "record") {
        return std::fs::write(FILE, now).expect("the records are written");
    }
    let recorded = std::fs::read_to_string(FILE).expect("the records");
    for (was, is) in recorded.lines().zip(now.lines()) {
        assert_eq!(is, was, "the device does something else than its record says");
    }
    assert_eq!(recorded.lines().count(), now.lines().count());
}

/// Puts the events among the effects on the agenda; returns how many commands ended, all of them with success.
fn carry_out(agenda: &mut Agenda<Event>, effects: Vec<Effect>) -> u32 {
    let mut ended = 0;
    for effect in effects {
        match effect {
            Effect::At(at, event) => agenda.at(at, event),
            Effect::Complete(completion) => {
                completion.result.unwrap();
                ended += 1;
            }
            Effect::Accepted { .. } => {}
        }
    }
    ended
}

/// The instant at which `streams` hosts have filled as many segments, eight units at a time in turn.
fn fill(streams: u32) -> Instant {
    let mut config = preset("amf").unwrap();
    config.append.segments = 64;
    let options = DeviceOptions { seed: 1, track_contents: false, planted: None };
    let mut device = Device::new(config, options);
    let mut agenda = Agenda::default();
    let (mut next, mut left) = (0u32, 0);
    let all = 4 * 4096 / 8;
    loop {
        while left < 32 && next < all {
            let segment = SegmentId(match streams {
                1 => next / 512,
                _ => next % streams,
            });
            let op = Op::SegAppend { segment, blocks: 64, data: Data::Zero };
            let command = Command { ns: APPEND_NAMESPACE, ..Command::new(u64::from(next), op) };
            (next, left) = (next + 1, left + 1);
            let mut effects = Vec::new();
            device.command(agenda.now(), command, &mut effects);
            left -= carry_out(&mut agenda, effects);
        }
        let Some((now, event)) = agenda.pop() else { return agenda.now() };
        let mut effects = Vec::new();
        device.event(now, event, &mut effects);
        left -= carry_out(&mut agenda, effects);
    }
}

/// Figure 8 of the paper: four interleaved streams are as fast as one (append-segments §9.8).
#[test]
fn interleaved_streams_reach_the_bandwidth_of_one() {
    let [one, four] = [1, 4].map(|streams| fill(streams).as_nanos() as f64);
    assert!(four / one < 1.0 / 0.95, "{one} and {four} ns");
}

/// A capacitor saved units of a segment whose blocks cannot be erased, and no other block is free in their planes.
#[test]
fn saved_units_come_back_where_no_block_is_left() {
    for seed in 1..20 {
        let mut host = host(|config| {
            config.append.segments = 19;
            config.append.spare_blocks = 2;
            config.append.erase = EraseTime::FirstWrite;
            config.buffer.mode = BufferMode::PowerLossProtected;
            config.faults.endurance = 1;
        });
        let mut r = RandomStream::new(seed, "worn out");
        let mut held = vec![0; 19];
        while !host.device.is_read_only() {
            let segment = r.below(19) as u32;
            if held[segment as usize] >= 2 {
                host.run(Op::SegTrim { segment: SegmentId(segment) }).unwrap();
                held[segment as usize] = 0;
            }
            if host.run(append(SegmentId(segment), 1, 1)).is_ok() {
                held[segment as usize] += 1;
            }
        }
        let options = DeviceOptions { seed: 1, track_contents: true, planted: None };
        let media = host.device.cut(host.agenda.now(), |_| Torn::Absent);
        (host.device, _) = Recovery::begin(host.device.config(), options, media).finish();
        for (segment, units) in (0..).map(SegmentId).zip(held) {
            let pointer = report(&mut host, segment).write_pointer;
            assert_eq!(pointer, units * SECTORS, "{segment:?} of seed {seed}");
            if units > 0 {
                assert_eq!(host.run(read(segment, 0, units)), Ok(contents(segment, 0..units, 1)));
            }
        }
    }
}
