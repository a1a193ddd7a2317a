//! Requests: which are refused, what they are answered, what they wait for, and what is counted.

use super::{Rig, SECTORS, config, read, trim, write};
use crate::HostFtlConfig;
use flashweir_core::command::{
    EpochStamp, Handle, OPEN_NAMESPACE, RangeFlush, SharePair, StreamId, Tag, Units,
};
use flashweir_core::{Command, Data, DeviceError, Done, Lba, Op, Order, Payload};

fn flush(first: u64, sectors: u32, tags: Vec<Tag>) -> Op {
    let ranges = if sectors > 0 { vec![(Lba(first), sectors)] } else { Vec::new() };
    Op::RFlush(Box::new(RangeFlush { ranges, tags, segments: Vec::new() }))
}

/// Which sort of error a request is refused with.
fn refusal(rig: &mut Rig, change: impl FnOnce(Command) -> Command, op: Op) -> &'static str {
    let number = rig.submit_as(change, op);
    match rig.answers.remove(&number) {
        Some(Err(DeviceError::InvalidField(_))) => "invalid",
        Some(Err(DeviceError::NotSupported(_))) => "not supported",
        Some(Err(DeviceError::OutOfRange(_))) => "out of range",
        Some(Err(DeviceError::Misaligned { .. })) => "misaligned",
        other => panic!("{other:?}"),
    }
}

#[test]
fn wrong_requests_are_refused_at_once_and_leave_nothing() {
    let mut rig = Rig::new(config());
    let end = rig.ftl.layout().user_units;
    let same = |command| command;
    let before = format!("{:?} {}", rig.ftl.metrics(), rig.ftl.describe());
    let ns = |command| Command { ns: OPEN_NAMESPACE, ..command };
    assert_eq!(refusal(&mut rig, ns, write(0, 1)), "invalid");
    let handle = |command| Command { handle: Handle(1), ..command };
    assert_eq!(refusal(&mut rig, handle, write(0, 1)), "invalid");
    for op in [read(end, 1), trim(end - 1, 2), write(end, 1), write(end - 1, 2)] {
        assert_eq!(refusal(&mut rig, same, op), "out of range");
    }
    let zeroes = |lba, blocks| Op::WriteZeroes { lba: Lba(lba), blocks };
    assert_eq!(refusal(&mut rig, same, zeroes(end * SECTORS, 2)), "out of range");
    assert_eq!(refusal(&mut rig, same, flush(end * SECTORS, 1, Vec::new())), "out of range");
    for op in [zeroes(1, 2), zeroes(2, 1), zeroes(1, 1)] {
        assert_eq!(refusal(&mut rig, same, op), "misaligned");
    }
    let with = |data| Op::Write { lba: Lba(0), blocks: 4, data };
    let unit = || Payload::Tag(1);
    for data in [
        Data::Bytes(vec![0; 1024].into()),
        Data::Units([unit()].into_iter().collect()),
        Data::Units([unit(), unit(), unit()].into_iter().collect()),
    ] {
        assert_eq!(refusal(&mut rig, same, with(data)), "invalid");
    }
    let share = Op::Share([SharePair { dst: Lba(0), src: Lba(2), blocks: 2 }].into());
    assert_eq!(refusal(&mut rig, same, share), "not supported");
    assert_eq!(refusal(&mut rig, same, Op::OpenGeometry), "not supported");
    let stream = Some(StreamId(1));
    let within = |command| Command { order: Some(Order::Within), ..command };
    assert_eq!(refusal(&mut rig, within, write(0, 1)), "invalid");
    assert_eq!(refusal(&mut rig, same, Op::Barrier), "invalid");
    let no_length = |command| Command { stream, order: Some(Order::Within), ..command };
    assert_eq!(refusal(&mut rig, no_length, Op::Barrier), "invalid");
    let epoch = Some(EpochStamp { number: 0, members: None });
    let numbered = |command| Command { stream, order: Some(Order::Within), epoch, ..command };
    assert_eq!(refusal(&mut rig, numbered, write(0, 1)), "not supported");
    assert_eq!(format!("{:?} {}", rig.ftl.metrics(), rig.ftl.describe()), before);
    assert!(rig.below.is_empty());
    assert_eq!(rig.run(with(Data::Bytes(vec![0; 2048].into()))), Ok(Done::Ok));
}

#[test]
fn released_rings_have_no_order() {
    let mut rig = Rig::new(config().as_released());
    let ordered = |command| Command { stream: Some(StreamId(1)), order: Some(Order::Within), ..command };
    assert_eq!(refusal(&mut rig, ordered, write(0, 1)), "not supported");
    assert_eq!(rig.run(write(0, 1)), Ok(Done::Ok));
}

#[test]
fn each_request_is_counted_once() {
    let mut rig = Rig::new(config());
    assert_eq!(rig.run(write(0, 3)), Ok(Done::Ok));
    assert_eq!(rig.run(Op::WriteZeroes { lba: Lba(20), blocks: 4 }), Ok(Done::Ok));
    let units = |result| match result {
        Ok(Done::Data(units)) => units.into_vec(),
        other => panic!("{other:?}"),
    };
    let tags = [1, 2, 3].map(Payload::Tag);
    assert_eq!(units(rig.run(read(0, 3))), tags);
    assert_eq!(rig.ftl.metrics().ring_hits, 3);
    assert_eq!(units(rig.run(read(10, 3))), [Payload::Zero, Payload::Zero, Payload::Zero]);
    assert_eq!(rig.run(trim(1, 1)), Ok(Done::Ok));
    // There is nothing in these units, so nothing is recorded.
    assert_eq!(rig.run(trim(40, 5)), Ok(Done::Ok));
    assert_eq!(rig.run(Op::Flush), Ok(Done::Ok));
    assert_eq!(rig.run(flush(0, 2, Vec::new())), Ok(Done::Ok));
    assert_eq!(rig.run(Op::Read { lba: Lba(0), blocks: 0 }), Ok(Done::Ok));
    let all: Vec<u64> = (1..=9).collect();
    assert_eq!(rig.passed, [all.clone(), all], "each is dispatched and transferred once");
    let metrics = rig.ftl.metrics();
    assert_eq!((metrics.writes, metrics.user_units), (2, 5));
    assert_eq!((metrics.reads, metrics.ring_hits), (3, 5), "zeros in a ring are found there");
    assert_eq!((metrics.trims, metrics.flushes, metrics.range_flushes), (2, 1, 1));
    // Three programs of two units, the last of them half empty twice: after the pauses of the first write and of the TRIM; and one page of
    // start metadata.
    assert_eq!((metrics.padded_units, metrics.meta_units), (2, 2));
    assert_eq!(metrics.programmed_units, 5 + 1 + 2 + 2);
    assert_eq!((metrics.gc_units, metrics.lines_erased, metrics.program_failures), (0, 0, 0));
}

/// What is deallocated reads as zeros; of a unit of which a part is named nothing is deallocated.
#[test]
fn only_whole_units_are_deallocated() {
    let mut rig = Rig::new(config());
    rig.run(write(0, 4)).unwrap();
    rig.run(Op::Trim { lba: Lba(1), blocks: 6 }).unwrap();
    let tags = [1, 2, 3, 4].map(Payload::Tag);
    let expected = [tags[0].clone(), Payload::Zero, Payload::Zero, tags[3].clone()];
    assert_eq!(rig.run(read(0, 4)), Ok(Done::Data(expected.into())));
    rig.run(Op::Trim { lba: Lba(1), blocks: 1 }).unwrap();
    assert!(matches!(rig.run(read(0, 1)), Ok(Done::Data(units)) if units[0] == tags[0]));
}

/// A range flush waits for entries that its ranges or tags name, of writes and of deallocations, and for no others.
#[test]
fn a_range_flush_waits_for_what_it_names() {
    let is_answered = |ops: &dyn Fn(&mut Rig), asked: Op| {
        let mut rig = Rig::new(config());
        ops(&mut rig);
        let number = rig.submit(asked);
        let at_once = rig.answers.contains_key(&number);
        rig.settle();
        assert_eq!(rig.answers.get(&number), Some(&Ok(Done::Ok)), "it is urgent, so nothing waits for time");
        at_once
    };
    // Units 4 to 7, which are sectors 8 to 15.
    let tagged = |rig: &mut Rig| {
        rig.submit_as(|command| Command { tags: [Tag(3), Tag(5)], ..command }, write(4, 4));
    };
    for (first, sectors, is_free) in [
        (7, 1, true),
        (8, 1, false),
        (15, 1, false),
        (16, 1, true),
        (0, 8, true),
        (0, 9, false),
        (6, 12, false),
    ] {
        assert_eq!(is_answered(&tagged, flush(first, sectors, Vec::new())), is_free, "{first} + {sectors}");
    }
    for (tag, is_free) in [(3, false), (5, false), (4, true)] {
        assert_eq!(is_answered(&tagged, flush(100, 1, vec![Tag(tag)])), is_free, "tag {tag}");
    }
    let trimmed = |rig: &mut Rig| {
        rig.run(write(4, 4)).unwrap();
        rig.submit(trim(5, 2));
    };
    for (first, is_free) in [(9, true), (10, false), (13, false), (14, true)] {
        assert_eq!(is_answered(&trimmed, flush(first, 1, Vec::new())), is_free, "sector {first}");
    }
    // A tag of a deallocation counts, also where the one that it relies on is in another ring, and has none.
    let tagged_trim = |rig: &mut Rig| {
        trimmed(rig);
        rig.submit_as(|command| Command { tags: [Tag(3), Tag(0)], ..command }, trim(5, 2));
    };
    for (tag, is_free) in [(3, false), (4, true)] {
        assert_eq!(is_answered(&tagged_trim, flush(100, 1, vec![Tag(tag)])), is_free, "tag {tag}");
    }
}

/// FUA and FLUSH are answered when their units are on the medium, and not before; whatever is answered first.
#[test]
fn durability_is_answered_after_the_last_program() {
    let mut rig = Rig::new(config());
    let plain = rig.write(8, 1);
    let fua = rig.submit_as(|command| Command { fua: true, ..command }, write(0, 3));
    let flushed = rig.submit(Op::Flush);
    assert_eq!(rig.answers.keys().copied().collect::<Vec<_>>(), [plain]);
    // Start metadata, and two programs for four units.
    assert_eq!((rig.below.len(), rig.ftl.metrics().padded_units), (3, 0));
    rig.answer(2);
    rig.answer(0);
    assert_eq!(rig.answers.len(), 1, "units of both are under way");
    rig.answer(0);
    assert_eq!([fua, flushed].map(|number| rig.answers.get(&number)), [Some(&Ok(Done::Ok)); 2]);
    let again = rig.submit(Op::Flush);
    assert!(rig.answers.contains_key(&again), "everything is durable");
    // What fills no page leaves at once if it is asked for.
    rig.write(20, 1);
    assert!(rig.below.is_empty());
    let last = rig.submit(Op::Flush);
    assert_eq!((rig.below.len(), rig.ftl.metrics().padded_units), (1, 1));
    rig.answer(0);
    assert!(rig.answers.contains_key(&last));
}

/// The released rings give nothing out of order, so a range flush waits for all that is before its unit.
#[test]
fn released_rings_write_in_their_order() {
    for urgent in [false, true] {
        let mut rig = Rig::new(HostFtlConfig { urgent, programs_per_die: 1, ..config() });
        rig.write(0, 16);
        let asked = rig.submit(flush(15 * SECTORS, 1, Vec::new()));
        let mut answers = 0;
        while !rig.answers.contains_key(&asked) {
            rig.answer(0);
            answers += 1;
        }
        assert_eq!(answers, if urgent { 4 } else { 9 }, "programs, and the start of the line");
        // Of several units the last one counts.
        rig.settle();
        rig.write(20, 16);
        let asked = rig.submit(flush(20 * SECTORS, 16 * SECTORS as u32, Vec::new()));
        while !rig.below.is_empty() {
            assert!(!rig.answers.contains_key(&asked));
            rig.answer(0);
        }
        assert!(rig.answers.contains_key(&asked));
    }
}

/// The released rings number versions by their positions; a recovery finds the first one, too.
#[test]
fn released_rings_are_recovered() {
    let mut rig = Rig::new(config().as_released());
    rig.run(write(0, 6)).unwrap();
    rig.run(Op::WriteZeroes { lba: Lba(2 * SECTORS), blocks: SECTORS as u32 }).unwrap();
    let expected = [1, 2, 0, 4, 5, 6].map(|tag| if tag == 0 { Payload::Zero } else { Payload::Tag(tag) });
    let again = rig.recovered();
    assert_eq!(again.contents(0..6), expected);
    assert_eq!(again.recovered().contents(0..6), expected);
}

/// An older version that becomes durable later than a newer one counts for nothing, while a third one is on its way.
#[test]
fn versions_become_durable_in_any_order() {
    let mut rig = Rig::new(HostFtlConfig { rings: 2, entries: 32, ..config() });
    let zeroes = || Op::WriteZeroes { lba: Lba(0), blocks: SECTORS as u32 };
    rig.submit_by(0, write(0, 2));
    rig.submit_by(1, zeroes());
    rig.submit_by(1, write(10, 1));
    rig.submit_by(0, zeroes());
    let programs: Vec<Vec<flashweir_core::Ppa>> =
        [1, 0].into_iter().flat_map(|die| rig.programs(die)).collect();
    assert_eq!(programs.len(), 2, "one of each ring");
    let at = |rig: &Rig, ppas: &[flashweir_core::Ppa]| {
        let is_it = |op: &Op| matches!(op, Op::PpaWrite(write) if write.ppas[..] == *ppas);
        rig.below.iter().position(|command| is_it(&command.op)).unwrap()
    };
    let [older, newer] = [&programs[0], &programs[1]];
    let second = at(&rig, newer);
    rig.answer(second);
    assert!(rig.ftl.lines.is_valid(newer[0]));
    let first = at(&rig, older);
    rig.answer(first);
    assert!(rig.ftl.lines.is_valid(newer[0]) && !rig.ftl.lines.is_valid(older[0]));
    rig.rest();
    assert!(!rig.ftl.lines.is_valid(newer[0]));
}

/// As many units of a deallocation as there are take one place in a ring.
#[test]
fn a_deallocation_is_one_entry() {
    let mut rig = Rig::new(config());
    for first in (0..40).step_by(8) {
        rig.run(write(first, 8)).unwrap();
    }
    let before = rig.ftl.rings[0].mem;
    rig.run(trim(0, 40)).unwrap();
    assert_eq!((rig.ftl.rings[0].mem, rig.ftl.trims.len()), (before + 1, 1));
    assert_eq!(rig.contents(0..41), vec![Payload::Zero; 41]);
    for round in 0..20 {
        rig.run(write(round, 1)).unwrap();
        rig.run(trim(round, 12)).unwrap();
    }
}

/// A ring that is full lets a request pass to the next one, and versions that went through two rings have one order.
#[test]
fn requests_go_through_several_rings() {
    let mut rig = Rig::new(HostFtlConfig { rings: 2, entries: 32, ..config() });
    rig.submit_by(0, write(0, 16));
    assert_eq!(rig.ftl.rings.iter().map(|ring| ring.mem).collect::<Vec<_>>(), [16, 0]);
    rig.submit_by(0, write(20, 4));
    assert_eq!(rig.ftl.rings.iter().map(|ring| ring.mem).collect::<Vec<_>>(), [16, 4]);
    rig.submit_by(3, write(30, 4));
    assert_eq!(rig.ftl.rings.iter().map(|ring| ring.mem).collect::<Vec<_>>(), [16, 8]);
    rig.rest();
    rig.submit_by(1, Op::WriteZeroes { lba: Lba(12 * SECTORS), blocks: SECTORS as u32 });
    rig.rest();
    let mut expected: Vec<Payload> = (0..16).map(|unit| Payload::Tag(1 + unit)).collect();
    expected[12] = Payload::Zero;
    assert_eq!(rig.contents(0..16), expected);
    assert_eq!(rig.recovered().contents(0..16), expected);
}

/// A unit is read out of its ring until its slot is needed.
#[test]
fn a_slot_is_given_up_when_it_is_needed() {
    let mut rig = Rig::new(config());
    rig.run(write(0, 16)).unwrap();
    rig.run(write(20, 1)).unwrap();
    let in_ring = |unit| matches!(rig.ftl.find(flashweir_core::Lpn(unit)), Some(Ok(_)));
    assert_eq!([0, 1, 15, 20].map(in_ring), [false, true, true, true]);
}

/// The released code gives up the old version when the new one is accepted; the repaired one when it is durable.
#[test]
fn an_old_version_is_valid_until_the_new_one_is_durable() {
    for (config, is_kept) in [(config(), true), (config().as_released(), false)] {
        let mut rig = Rig::new(config);
        for first in [0, 20, 30, 40] {
            rig.run(write(first, 8)).unwrap();
        }
        let Some(Err(old)) = rig.ftl.find(flashweir_core::Lpn(0)) else { panic!("it is on the medium") };
        rig.write(0, 2);
        assert_eq!(rig.ftl.lines.is_valid(old), is_kept);
        rig.rest();
        assert!(!rig.ftl.lines.is_valid(old));
    }
}

/// A version that becomes durable after a newer one was published counts for nothing.
#[test]
fn a_late_version_is_dead_on_arrival() {
    let mut rig = Rig::new(HostFtlConfig { rings: 2, entries: 32, ..config() });
    rig.submit_by(0, write(0, 2));
    let [older] = &rig.programs(1)[..] else { panic!("one program is below") };
    let older = older.clone();
    for first in [0, 20, 30, 40, 50, 60] {
        rig.submit_by(1, Op::WriteZeroes { lba: Lba(first * SECTORS), blocks: 4 * SECTORS as u32 });
        for _ in 0..8 {
            let is_other = |op: &Op| !matches!(op, Op::PpaWrite(write) if write.ppas[..] == older[..]);
            let Some(at) = rig.below.iter().position(|command| is_other(&command.op)) else { break };
            rig.answer(at);
        }
    }
    let newer = rig.ftl.find(flashweir_core::Lpn(0));
    assert!(matches!(newer, Some(Err(_))), "the newer version is published");
    rig.rest();
    assert!(older.iter().all(|ppa| !rig.ftl.lines.is_valid(*ppa)));
    assert_eq!(rig.ftl.find(flashweir_core::Lpn(0)), newer);
}

/// GC is limited while the user writes, and a while longer, unless the user waits for what only GC can give.
#[test]
fn gc_is_limited_while_the_user_is_active() {
    let mut rig = Rig::new(config());
    assert!(!rig.ftl.user_limits_gc());
    rig.write(0, 1);
    assert!(rig.ftl.user_limits_gc());
    rig.ftl.user_waits_for_space = true;
    assert!(!rig.ftl.user_limits_gc());
    rig.ftl.user_waits_for_space = false;
    let active = rig.ftl.config().user_active_for;
    rig.wait_until(flashweir_core::Instant::ZERO + active - flashweir_core::Duration::from_nanos(1));
    assert!(rig.ftl.user_limits_gc());
    rig.now = flashweir_core::Instant::ZERO + active;
    rig.submit(read(0, 1));
    assert!(!rig.ftl.user_limits_gc(), "a read counts for nothing");
}

/// A device without contents answers reads without any, and so does the FTL.
#[test]
fn reads_of_a_device_without_contents_have_none() {
    let mut rig = Rig::new(config());
    for first in [0, 20, 30, 40] {
        rig.run(write(first, 8)).unwrap();
    }
    let number = rig.submit(read(0, 2));
    let records = vec![flashweir_ftl::line_pages::PAD_RECORD; 2];
    let units = Units { data: Vec::new(), records, refresh: Vec::new() };
    rig.answer_with(0, Ok(Done::Units(Box::new(units))));
    assert_eq!(rig.answers.get(&number), Some(&Ok(Done::Data(Box::default()))));
}

/// A record of all streams enters one ring, so there are only so many.
#[test]
fn there_are_only_so_many_streams() {
    let mut rig = Rig::new(config());
    let mut barrier = |stream| {
        let number =
            rig.submit_as(|command| Command { stream: Some(StreamId(stream)), ..command }, Op::Barrier);
        rig.answers.remove(&number).expect("it is answered at once")
    };
    let refused = (0..2_000).find(|stream| barrier(*stream).is_err()).expect("not all have room");
    assert!(matches!(barrier(refused), Err(DeviceError::NotSupported(_))));
    assert_eq!(barrier(refused - 1), Ok(Done::Ok), "those that are there go on");
}

/// Once a request was admitted the user is stuck no more.
#[test]
fn who_is_admitted_is_not_stuck() {
    let mut rig = Rig::new(config());
    rig.ftl.user_is_stuck = true;
    rig.write(0, 1);
    assert!(!rig.ftl.user_is_stuck);
}
