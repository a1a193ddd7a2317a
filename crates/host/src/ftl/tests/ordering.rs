//! Streams: when a request may enter a ring, when a member counts, and what is written about epochs.

use super::{PAD_AFTER, Rig, SECTORS, config, read, write};
use crate::ftl::lines::LineId;
use crate::ftl::streams::Writing;
use crate::{HostFtlConfig, Input};
use flashweir_core::command::{RangeFlush, StreamId};
use flashweir_core::{Address, Command, DeviceError, Done, Lba, Op, Order, Payload, Ppa};
use std::collections::BTreeMap;

pub(super) fn member(rig: &mut Rig, order: Order, op: Op) -> u64 {
    rig.submit_as(|command| Command { stream: Some(StreamId(1)), order: Some(order), ..command }, op)
}

fn range_flush(rig: &mut Rig, first: u64) -> u64 {
    let ranges = vec![(Lba(first * SECTORS), SECTORS as u32)];
    rig.submit(Op::RFlush(Box::new(RangeFlush { ranges, tags: Vec::new(), segments: Vec::new() })))
}

/// Position below of the program that holds this content.
pub(super) fn program_of(rig: &Rig, tag: u64) -> usize {
    let holds = |op: &Op| match op {
        Op::PpaWrite(write) => (0..write.ppas.len())
            .any(|nth| write.data.unit(flashweir_core::Lpn(0), nth, 0..0) == Payload::Tag(tag)),
        _ => false,
    };
    rig.below.iter().position(|command| holds(&command.op)).expect("it is below")
}

/// A member counts when those of earlier epochs are on the medium, and its older version stays until then.
#[test]
fn a_member_counts_when_all_before_it_are_there() {
    let mut rig = Rig::new(config());
    rig.run(write(8, 2)).unwrap();
    // The ring is filled, so that the map names their places.
    for first in [20, 30, 40, 50] {
        rig.run(write(first, 8)).unwrap();
    }
    let Some(Err(old)) = rig.ftl.find(flashweir_core::Lpn(8)) else { panic!("it is on the medium") };
    member(&mut rig, Order::Barrier, write(0, 2));
    member(&mut rig, Order::Within, write(8, 2));
    let flushed = rig.submit(Op::Flush);
    let asked = range_flush(&mut rig, 8);
    let fua = rig.submit_as(|command| Command { fua: true, ..command }, write(60, 2));
    let line = |rig: &Rig| {
        let open = rig.ftl.lines.ids().map(|line| rig.ftl.lines.get(line).unstable);
        open.sum::<u32>()
    };
    let later = program_of(&rig, 9);
    rig.answer(later);
    assert_eq!(line(&rig), 2);
    assert!(rig.ftl.lines.is_valid(old), "the newer version does not count yet");
    assert_eq!([flushed, asked].map(|number| rig.answers.contains_key(&number)), [false; 2]);
    let alone = program_of(&rig, 61);
    rig.answer(alone);
    assert!(rig.answers.contains_key(&fua), "it is in no stream");
    let first = program_of(&rig, 1);
    rig.answer(first);
    assert_eq!(line(&rig), 0);
    assert!(!rig.ftl.lines.is_valid(old));
    assert_eq!([flushed, asked].map(|number| rig.answers.get(&number)), [Some(&Ok(Done::Ok)); 2]);
    rig.rest();
}

/// Requests of an epoch wait outside until the one before is wholly in rings; those of no stream pass them.
#[test]
fn epochs_enter_rings_one_after_the_other() {
    let mut rig = Rig::new(HostFtlConfig { programs_per_die: 1, ..config() });
    // More than the ring holds.
    let long = member(&mut rig, Order::Barrier, write(0, 24));
    let next = member(&mut rig, Order::Within, write(30, 1));
    assert!(!rig.answers.contains_key(&long) && !rig.answers.contains_key(&next));
    while !rig.answers.contains_key(&long) && !rig.below.is_empty() {
        assert!(!rig.answers.contains_key(&next), "a later epoch waits");
        rig.answer(0);
    }
    rig.rest();
    assert_eq!(rig.answers.get(&next), Some(&Ok(Done::Ok)));
    assert_eq!(rig.ftl.metrics().epochs, 1);
    // A barrier without members closes nothing.
    for _ in 0..3 {
        let barrier = rig.submit_as(|command| Command { stream: Some(StreamId(1)), ..command }, Op::Barrier);
        assert_eq!(rig.answers.get(&barrier), Some(&Ok(Done::Ok)));
    }
    assert_eq!(rig.ftl.metrics().epochs, 2);
    let last = member(&mut rig, Order::Within, write(40, 1));
    assert_eq!(rig.answers.get(&last), Some(&Ok(Done::Ok)), "no epoch is before it");
}

/// What a range flush depends on leaves with it, of however many members it waits for.
#[test]
fn a_range_flush_hurries_earlier_epochs() {
    let mut rig = Rig::new(config());
    for first in [0, 10, 20] {
        member(&mut rig, Order::Barrier, write(first, 1));
    }
    rig.write(50, 1);
    rig.settle();
    member(&mut rig, Order::Barrier, write(30, 1));
    let ranges = [10, 30].map(|unit| (Lba(unit * SECTORS), SECTORS as u32)).to_vec();
    let asked =
        rig.submit(Op::RFlush(Box::new(RangeFlush { ranges, tags: Vec::new(), segments: Vec::new() })));
    rig.settle();
    assert_eq!(rig.answers.get(&asked), Some(&Ok(Done::Ok)), "no time has to pass");
}

/// What is on its way in one ring leaves for a range flush of what is in another, if that comes later in their stream.
#[test]
fn a_range_flush_hurries_other_rings() {
    let mut rig = Rig::new(HostFtlConfig { rings: 2, entries: 32, ..config() });
    for (submitter, first) in [(0, 0), (1, 10)] {
        let command = Command::new(100 + first, write(first, 1));
        let command = Command { stream: Some(StreamId(1)), order: Some(Order::Barrier), ..command };
        rig.tell(Input::Submit { command, submitter });
    }
    assert!(rig.below.is_empty(), "neither fills a page");
    let asked = range_flush(&mut rig, 10);
    rig.settle();
    assert_eq!(rig.answers.get(&asked), Some(&Ok(Done::Ok)), "no time has to pass");
}

/// A line whose members are under way is not counted out, and no record is asked for that could not say so.
#[test]
fn a_line_is_counted_out_by_a_record() {
    let line = LineId(0);
    let mut rig = Rig::new(config());
    assert!(rig.ftl.is_counted_out(line), "it has no members");
    member(&mut rig, Order::Barrier, write(0, 2));
    member(&mut rig, Order::Barrier, write(2, 2));
    assert!(!rig.ftl.is_counted_out(line) && !rig.ftl.orders.is_wanted, "epochs are not complete");
    rig.settle();
    assert!(!rig.ftl.is_counted_out(line) && rig.ftl.orders.is_wanted);
    rig.ftl.orders.is_restarting = true;
    assert!(!rig.ftl.is_counted_out(line), "its numbers mean nothing now");
    rig.ftl.orders.is_restarting = false;
    // Where a record has no room it is not written.
    let mut full = Rig::new(config());
    (full.ftl.orders.is_wanted, full.ftl.rings[0].mem) = (true, 16);
    assert!(!full.ftl.write_order_record());
    rig.ftl.hurry_counting_out(line, true);
    assert!(rig.ftl.orders.is_urgent);
    rig.tell(Input::Wake);
    rig.settle();
    assert_eq!(rig.ftl.metrics().order_records, 1, "no time has to pass");
    assert!(rig.ftl.is_counted_out(line) && !rig.ftl.orders.is_urgent);
}

/// GC meets a page of a record that is half written: that record keeps the line from being erased as soon as it is whole, so another one has
/// to follow. One of the record before goes away by itself.
#[test]
fn regression_gc_has_a_half_written_record_written_again() {
    for (places, is_wanted) in [(vec![Ppa(7)], true), (vec![Ppa(8)], false)] {
        let mut rig = Rig::new(config());
        rig.ftl.orders.writing =
            Some(Writing { ring: 0, is_kicked: false, left: 1, places, complete: BTreeMap::new() });
        rig.ftl.renew_order_record(Ppa(7));
        assert_eq!((rig.ftl.orders.is_wanted, rig.ftl.orders.is_urgent), (is_wanted, true));
    }
}

/// A request that is refused for what it says is in no epoch.
#[test]
fn a_refused_member_holds_nothing_back() {
    let mut rig = Rig::new(config());
    let end = rig.ftl.layout().user_units;
    let wrong = member(&mut rig, Order::Barrier, write(end, 1));
    assert!(matches!(rig.answers.get(&wrong), Some(Err(DeviceError::OutOfRange(_)))));
    let right = member(&mut rig, Order::Within, write(0, 1));
    assert_eq!(rig.answers.get(&right), Some(&Ok(Done::Ok)));
    rig.rest();
    assert_eq!(rig.ftl.metrics().epochs, 0);
    assert!(
        rig.ftl.describe().contains(
            "; stream 1: epoch 1 waits for 0 of 1 members, open 1, the host's epoch 0 for 0 requests"
        )
    );
}

/// The numbers of epochs begin anew behind a record; members wait for it, and go on.
#[test]
fn epochs_are_numbered_anew_behind_a_record() {
    let mut rig = Rig::new(HostFtlConfig { epochs_max: 4, ..config() });
    for round in 0..3 {
        let number = member(&mut rig, Order::Barrier, write(round, 1));
        assert_eq!(rig.answers.get(&number), Some(&Ok(Done::Ok)));
        rig.rest();
    }
    assert_eq!((rig.ftl.metrics().order_records, rig.ftl.metrics().epochs), (1, 3));
    // Start metadata, and the record; half of a page is padding each time.
    assert_eq!(rig.ftl.metrics().meta_units, 2 + 1);
    assert!(rig.ftl.is_order_recorded());
    assert_eq!(rig.ftl.order_places().count(), 1);
    let begin = rig.now + PAD_AFTER;
    rig.wait_until(begin);
    for round in 3..6 {
        member(&mut rig, Order::Barrier, write(round, 1));
        rig.rest();
    }
    assert_eq!((rig.ftl.metrics().order_records, rig.ftl.metrics().epochs), (2, 6));
    for unit in 0..6 {
        assert_eq!(rig.run(read(unit, 1)), Ok(Done::Data([Payload::Tag(1 + unit)].into())));
    }
    rig.ftl.audit();
}

/// A read is split where it names more places than a command may, and answered once, with its first error.
#[test]
fn a_long_read_is_split_and_answered_once() {
    let mut rig = Rig::new(config());
    for first in (0..120).step_by(8) {
        rig.run(write(first, 8)).unwrap();
    }
    let number = rig.submit(read(0, 96));
    let sizes: Vec<usize> = rig
        .below
        .iter()
        .map(|command| match &command.op {
            Op::PpaRead { ppas, .. } => ppas.len(),
            other => panic!("{other:?}"),
        })
        .collect();
    assert_eq!(sizes, [64, 32]);
    let readers = |rig: &Rig| rig.ftl.lines.ids().map(|line| rig.ftl.lines.get(line).readers).sum::<u32>();
    assert!(readers(&rig) >= 4, "each line that is read knows it");
    rig.answer(1);
    assert!(!rig.answers.contains_key(&number));
    rig.answer(0);
    assert_eq!(readers(&rig), 0);
    let expected: Vec<Payload> = (0..96).map(|unit| Payload::Tag(1 + unit)).collect();
    assert_eq!(rig.answers.get(&number), Some(&Ok(Done::Data(expected.into()))));
    let number = rig.submit(read(0, 96));
    let Op::PpaRead { ppas, .. } = rig.below[0].op.clone() else { unreachable!() };
    rig.answer_with(0, Err(DeviceError::Uncorrectable { at: Address::Ppa(ppas[0]) }));
    assert!(!rig.answers.contains_key(&number));
    rig.answer(0);
    let expected = Err(DeviceError::Uncorrectable { at: Address::Lba(Lba(0)) });
    assert_eq!(rig.answers.get(&number), Some(&expected));
}

/// The record beside each member says its epoch, the number of members of the one before, and how many epochs back all are complete.
#[test]
fn members_say_what_is_before_them() {
    let mut rig = Rig::new(config());
    member(&mut rig, Order::Within, write(0, 2));
    member(&mut rig, Order::Barrier, write(2, 2));
    member(&mut rig, Order::Barrier, write(4, 2));
    member(&mut rig, Order::Within, write(6, 2));
    let said: Vec<[u32; 3]> = [1, 3, 5, 7]
        .into_iter()
        .map(|tag| {
            let Op::PpaWrite(write) = &rig.below[program_of(&rig, tag)].op else { unreachable!() };
            let said = write.records[0].member.expect("it is a member");
            [said.epoch, u32::from(said.previous), u32::from(said.distance)]
        })
        .collect();
    assert_eq!(said, [[1, 0, 1], [1, 0, 1], [2, 4, 2], [3, 2, 3]]);
}

/// With numbers used up no member enters before they begin anew.
#[test]
fn members_wait_for_new_numbers() {
    let mut rig = Rig::new(HostFtlConfig { epochs_max: 4, ..config() });
    let numbers = [0, 1, 2, 3].map(|unit| member(&mut rig, Order::Barrier, write(unit, 1)));
    assert_eq!(numbers.map(|number| rig.answers.contains_key(&number)), [true, true, true, false]);
    rig.settle();
    assert_eq!(rig.answers.get(&numbers[3]), Some(&Ok(Done::Ok)), "no time has to pass");
}

/// For a line with members of an open epoch that epoch is closed, and no other.
#[test]
fn a_line_closes_its_own_epoch() {
    for (order, closed) in [(Order::Barrier, 1), (Order::Within, 2)] {
        let mut rig = Rig::new(config());
        member(&mut rig, order, write(0, 2));
        rig.settle();
        // It is in the ring, and not on the line.
        let barrier = rig.submit_as(|command| Command { stream: Some(StreamId(1)), ..command }, Op::Barrier);
        assert!(rig.answers.contains_key(&barrier));
        member(&mut rig, Order::Within, write(4, 1));
        rig.ftl.lines.get_mut(LineId(0)).members.insert(StreamId(1), if closed == 1 { 1 } else { 2 });
        assert!(!rig.ftl.is_counted_out(LineId(0)));
        assert_eq!(rig.ftl.metrics().epochs, closed);
    }
}
