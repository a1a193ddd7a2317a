//! What an open channel counts, describes and finds, and the memory of a device without contents.

use super::{at, config, host, host_of, open, places, read, write};
use crate::harness::OneByOne;
use flashweir_core::command::Units;
use flashweir_core::open::{ChunkReport, ChunkState, MarkBlocks, Notice, NoticeReason, OpenError, PpaCopy};
use flashweir_core::{Command, Data, DeviceError, Done, Lpn, Op, Ppa};
use flashweir_device::config::{ChunkSpan, OpenVersion};
use flashweir_device::{Device, DeviceOptions, Effect, Recovery, Torn};

fn copy(from: u64, to: u64, count: u64) -> Op {
    let (sources, destinations) = (places(from, count), places(to, count));
    Op::PpaCopy(Box::new(PpaCopy { sources, destinations, records: None }))
}

#[test]
fn each_command_and_operation_is_counted_once() {
    let mut host = host();
    host.run(write(0, 12)).unwrap();
    host.run(write(32, 4)).unwrap();
    host.run(read(2, 7)).unwrap();
    host.run(read(0, 1)).unwrap();
    host.run(copy(4, 64, 8)).unwrap();
    host.run(Op::Flush).unwrap();
    host.run(Op::PpaErase([Ppa(0), Ppa(32)].into())).unwrap();
    let metrics = host.device.metrics();
    assert_eq!((metrics.host_writes, metrics.host_units_written), (2, 16));
    assert_eq!((metrics.host_reads, metrics.host_units_read), (2, 8));
    assert_eq!((metrics.host_copies, metrics.host_units_copied), (1, 8));
    assert_eq!((metrics.flushes, metrics.erases), (1, 2));
    // Three pages of the first read, one of the second, two of the copy.
    assert_eq!(metrics.pages_read, 6);
    assert_eq!((metrics.pages_programmed, metrics.user_units_programmed), (6, 24));
    assert_eq!((metrics.commands, metrics.completions, metrics.errors), (7, 7, 0));
}

#[test]
fn failures_are_counted_once() {
    let mut config = config();
    (config.faults.program_fail, config.faults.chunk_goes_on, config.faults.refresh) = (0.5, 1.0, 1.0);
    let mut host = host_of(config.clone());
    let places = (0..32).step_by(4);
    let failed: Vec<u64> = places.filter(|first| host.run(write(*first, 4)).is_err()).collect();
    let failures = failed.len() as u64;
    let metrics = host.device.metrics();
    assert!(failures > 0);
    assert_eq!((metrics.program_failures, metrics.pages_programmed), (failures, 8 - failures));
    host.run(read(failed[0], 1)).unwrap_err();
    host.run(copy(failed[0], 32, 4)).unwrap_err();
    // The read of one unit, and the four sources of the copy; each of the two has read one page.
    let metrics = host.device.metrics();
    assert_eq!((metrics.uncorrectable_reads, metrics.refresh_reads, metrics.pages_read), (5, 2, 2));
    assert_eq!(metrics.program_failures + metrics.pages_programmed, 9);
    config.faults = flashweir_device::config::FaultConfig { endurance: 1, ..Default::default() };
    let mut host = host_of(config);
    host.run(write(0, 4)).unwrap();
    host.run(Op::PpaErase(super::places(0, 1))).unwrap();
    host.run(write(0, 4)).unwrap();
    // The second one is refused, and erases nothing.
    for _ in 0..2 {
        assert_eq!(host.run(Op::PpaErase(super::places(0, 1))), open(0, OpenError::Offline));
    }
    let metrics = host.device.metrics();
    assert_eq!((metrics.erase_failures, metrics.grown_bad_blocks, metrics.erases), (1, 1, 1));
}

/// The recovery looks at the first page of each written block, block after block of a die.
#[test]
fn a_recovery_says_what_it_found() {
    let mut host = host();
    host.run(write(0, 12)).unwrap();
    host.run(write(32, 4)).unwrap();
    let (config, now) = (host.device.config().clone(), host.agenda.now());
    let media = host.device.cut(now, |_| Torn::Absent);
    let options = DeviceOptions { seed: 1, track_contents: true, planted: None };
    let (_, report) = Recovery::begin(&config, options, media).finish();
    assert_eq!((report.pages_read, report.units, report.steps), (2, 16, 0));
    let empty = Device::new(config.clone(), options).cut(now, |_| Torn::Absent);
    let (_, nothing) = Recovery::begin(&config, options, empty).finish();
    assert_eq!((nothing.pages_read, nothing.units), (0, 0));
    assert!(report.time > nothing.time);
}

/// A device may keep no contents: records are still there.
#[test]
fn without_contents_records_are_read_and_copied() {
    let options = DeviceOptions { seed: 1, track_contents: false, planted: None };
    let mut config = config();
    (config.open.version, config.open.cached_units) = (OpenVersion::V12, 4);
    let mut host = host_of(config.clone());
    host.device = Device::new(config, options);
    host.run(write(0, 8)).unwrap();
    let records = |host: &mut OneByOne, first| match host.run(read(first, 8)) {
        Ok(Done::Units(units)) => {
            let Units { data, records, .. } = *units;
            assert_eq!(data, [], "it has no contents");
            records
        }
        other => panic!("{other:?}"),
    };
    let expected: Vec<_> = (0..8).map(|ppa| super::record(Ppa(ppa))).collect();
    assert_eq!(records(&mut host, 0), expected);
    let mut host = super::host();
    host.device = Device::new(host.device.config().clone(), options);
    host.run(write(0, 8)).unwrap();
    host.run(copy(0, 32, 8)).unwrap();
    assert_eq!(records(&mut host, 32), expected);
}

#[test]
fn only_so_many_notices_are_kept() {
    let mut config = config();
    config.faults.refresh = 1.0;
    config.geometry.blocks_per_plane = 80;
    let mut host = host_of(config);
    let chunks = Notice::KEPT_MAX as u64 + 2;
    for chunk in 0..chunks {
        host.run(write(32 * chunk, 4)).unwrap();
        host.run(read(32 * chunk, 1)).unwrap();
        host.run(read(32 * chunk, 1)).unwrap();
    }
    let Ok(Done::Notices(notices)) = host.run(Op::ChunkNotices { after: 0 }) else {
        panic!("it has notices")
    };
    let expected =
        |chunk| Notice { number: chunk + 1, first: Ppa(32 * chunk), reason: NoticeReason::Refresh };
    assert_eq!(notices.into_vec(), (2..chunks).map(expected).collect::<Vec<_>>());
}

#[test]
fn what_waits_is_described() {
    let mut host = host();
    host.run(write(0, 8)).unwrap();
    assert_eq!(host.device.describe().lines().filter(|line| line.starts_with("chunk")).count(), 0);
    let ops = [copy(0, 32, 8), write(40, 4), write(64, 4), Op::PpaErase(places(32, 1))];
    assert_eq!(super::together(&mut host, ops), [None, None, None, None]);
    let text = host.device.describe();
    let lines: Vec<&str> = text.lines().filter(|line| line.starts_with("chunk")).collect();
    assert_eq!(lines.len(), 2, "{text}");
    assert!(
        lines[0].starts_with("chunk 1: 3 programs have not ended, 3 of them wait for a copy, and command ")
    );
    assert_eq!(lines[1], "chunk 2: 1 programs have not ended");
    host.rest();
    assert_eq!(host.device.describe().lines().filter(|line| line.starts_with("chunk")).count(), 0);
}

#[test]
fn nothing_is_volatile_mapped_or_lost() {
    let mut host = host();
    assert_eq!(super::together(&mut host, [write(0, 4)]), [None]);
    let device = &host.device;
    assert!(!device.is_volatile() && !device.is_mapped(Lpn(0)) && !device.has_lost(Lpn(0)));
}

/// An offline chunk is open no more, whatever it holds; so a device finds it after a power loss, too.
#[test]
fn an_offline_chunk_does_not_count_as_open() {
    let mut config = config();
    (config.faults.endurance, config.open.max_open) = (1, 1);
    let mut host = host_of(config.clone());
    host.run(write(0, 4)).unwrap();
    host.run(Op::PpaErase(places(0, 1))).unwrap();
    host.run(write(0, 4)).unwrap();
    assert_eq!(host.run(write(32, 4)), Err(DeviceError::TooManyOpen { limit: 1 }));
    assert_eq!(host.run(Op::PpaErase(places(0, 1))), open(0, OpenError::Offline));
    assert_eq!(host.run(write(32, 4)), Ok(Done::Ok));
    assert_eq!(host.run(write(64, 4)), Err(DeviceError::TooManyOpen { limit: 1 }));
    let media = host.device.cut(host.agenda.now(), |_| Torn::Absent);
    let options = DeviceOptions { seed: 1, track_contents: true, planted: None };
    (host.device, _) = Recovery::begin(&config, options, media).finish();
    assert_eq!(host.run(write(64, 4)), Err(DeviceError::TooManyOpen { limit: 1 }), "chunk 1 is open");
    host.run(write(36, 28)).unwrap();
    assert_eq!(host.run(write(64, 4)), Ok(Done::Ok), "chunk 0 is not");
}

#[test]
fn what_is_not_of_an_open_channel_is_refused() {
    use flashweir_core::Order;
    use flashweir_core::command::{Handle, PpaWrite, StreamId};
    let mut host = host();
    host.run(write(0, 8)).unwrap();
    let units = host.device.geometry().physical_units();
    let stream = Some(StreamId(1));
    let ordered = Command { stream, order: Some(Order::Within), ..host.open(write(8, 4)) };
    assert!(matches!(host.run_command(ordered), Err(DeviceError::NotSupported(_))));
    let handled = Command { handle: Handle(1), ..host.open(write(8, 4)) };
    assert!(matches!(host.run_command(handled), Err(DeviceError::InvalidField(_))));
    let far = |answer| assert!(matches!(answer, Err(DeviceError::OutOfRange(_))), "{answer:?}");
    far(host.run(copy(units, 32, 4)));
    far(host.run(copy(0, units, 4)));
    let records: Box<[_]> = (8..12).map(|ppa| super::record(Ppa(ppa))).collect();
    let with = |ppas: Box<[Ppa]>, blocks| {
        let records = records.clone();
        Op::from(PpaWrite { ppas, blocks, records, data: Data::Zero })
    };
    for blocks in [0, 31, 33, 64] {
        assert!(matches!(host.run(with(places(8, 4), blocks)), Err(DeviceError::InvalidField(_))));
    }
    for mixed in [[8, 10, 9, 11], [8, 9, 10, 12], [9, 8, 10, 11]] {
        let answer = host.run(with(mixed.map(Ppa).into(), 32));
        assert_eq!(answer, Err(DeviceError::Misaligned { at: at(mixed[0]) }));
    }
    assert_eq!(host.run(with(places(8, 4), 32)), Ok(Done::Ok));
}

/// Marks name places that there are, and none of a block that is being written or erased becomes bad.
#[test]
fn a_block_at_work_is_not_marked_as_bad() {
    use flashweir_core::open::BlockMark;
    let mut config = config();
    config.open.version = OpenVersion::V12;
    let mut host = host_of(config);
    let marks = |places, mark| Op::MarkBlocks(Box::new(MarkBlocks { places, mark }));
    let bad = |first| marks(places(first, 1), BlockMark::GrownBad);
    let units = host.device.geometry().physical_units();
    assert!(matches!(host.run(bad(units)), Err(DeviceError::OutOfRange(_))));
    let none = host.run(marks(places(0, 0), BlockMark::Good));
    assert!(matches!(none, Err(DeviceError::InvalidField(_))));
    let reserved = marks(places(0, 1), BlockMark::HostReserved);
    let answers = super::together(&mut host, [write(0, 4), bad(0), reserved]);
    assert!(matches!(answers, [None, Some(Err(DeviceError::InvalidField(_))), Some(Ok(Done::Ok))]));
    host.rest();
    let answers = super::together(&mut host, [Op::PpaErase(places(0, 1)), bad(0)]);
    assert!(matches!(answers, [None, Some(Err(DeviceError::InvalidField(_)))]));
    host.rest();
    host.run(bad(0)).unwrap();
    assert_eq!(host.device.metrics().grown_bad_blocks, 1);
}

/// Handles one event; returns whether a command was answered.
fn step(host: &mut OneByOne) -> bool {
    let (now, event) = host.agenda.pop().expect("something is under way");
    let mut effects = Vec::new();
    host.device.event(now, event, &mut effects);
    let mut is_answered = false;
    for effect in effects {
        match effect {
            Effect::At(at, event) => host.agenda.at(at, event),
            Effect::Complete(_) => is_answered = true,
            Effect::Accepted { .. } => {}
        }
    }
    is_answered
}

fn report(host: &mut OneByOne) -> ChunkReport {
    let command = host.open(Op::ChunkReport { first: 0, count: 1 });
    match host.submit(command) {
        Some(Ok(Done::Chunks(chunks))) => chunks[0],
        other => panic!("{other:?}"),
    }
}

/// The write pointer moves when all programs of the chunk have ended, not when the first one has.
#[test]
fn a_pointer_moves_after_the_last_program() {
    let mut config = config();
    config.open.pointer = flashweir_device::config::PointerMove::Programmed;
    let mut host = host_of(config);
    assert_eq!(super::together(&mut host, [write(0, 12)]), [None]);
    let mut programmed = 0;
    while !step(&mut host) {
        assert_eq!(report(&mut host).pointer, 0);
        programmed = host.device.metrics().pages_programmed;
    }
    assert_eq!((programmed, report(&mut host).pointer), (2, 12));
}

/// A power loss in a reset may leave a block of the chunk erased once more than another: the chunk is as worn as the former.
#[test]
fn a_chunk_is_as_worn_as_its_most_worn_block() {
    for first in [Torn::Absent, Torn::Done] {
        let mut config = config();
        (config.open.chunk, config.open.write_pages, config.faults.endurance) = (ChunkSpan::Die, 2, 0);
        let mut host = host_of(config.clone());
        host.run(write(0, 8)).unwrap();
        assert_eq!(super::together(&mut host, [Op::PpaErase(places(0, 1))]), [None]);
        let now = loop {
            let now = host.agenda.peek().expect("the reset is under way");
            if host.device.interrupted(now).len() == 2 {
                break now;
            }
            step(&mut host);
        };
        let other = if first == Torn::Done { Torn::Absent } else { Torn::Done };
        let mut torn = [first, other].into_iter();
        let media = host.device.cut(now, |_| torn.next().expect("two blocks are being erased"));
        let options = DeviceOptions { seed: 1, track_contents: true, planted: None };
        (host.device, _) = Recovery::begin(&config, options, media).finish();
        let seen = report(&mut host);
        assert_eq!((seen.wear, seen.state), (1, ChunkState::Closed), "{first:?}");
    }
}

/// A chunk is open as soon as it was written to, though its write pointer may move later.
#[test]
fn a_chunk_is_open_before_its_pointer_moves() {
    let mut config = config();
    config.open.pointer = flashweir_device::config::PointerMove::Programmed;
    let mut host = host_of(config);
    let report = Op::ChunkReport { first: 0, count: 1 };
    let [none, Some(Ok(Done::Chunks(chunks)))] = super::together(&mut host, [write(0, 8), report]) else {
        panic!("a report is answered at once")
    };
    assert_eq!(none, None);
    assert_eq!((chunks[0].state, chunks[0].pointer), (ChunkState::Open, 0));
    host.rest();
}
