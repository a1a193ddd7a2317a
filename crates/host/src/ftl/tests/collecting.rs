//! GC: when it begins, what it reads at once, and what becomes of a line that it cannot read.

use super::ordering::member;
use super::{Rig, config, trim, write};
use crate::ftl::lines::{LineId, LineState};
use crate::ftl::map::Word;
use crate::ftl::state::Collecting;
use crate::{HostFtlConfig, Input, WhenFull};
use flashweir_core::oob::{OobRecord, Owner};
use flashweir_core::{Address, DeviceError, Done, Lpn, Op, Order, Payload, Ppa};
use std::collections::VecDeque;

/// An FTL of twelve lines, of which so many are free; line 0 is closed and has so many valid units of 28.
fn with(config: HostFtlConfig, free: u32, valid: usize) -> Rig {
    let mut rig = Rig::new(config);
    assert_eq!(rig.ftl.layout.data_units(), 28);
    let lines = &mut rig.ftl.lines;
    while lines.free_count(0) > free {
        lines.open_next(0);
        lines.end(0);
    }
    lines.get_mut(LineId(0)).state = LineState::Closed;
    for number in 2..2 + valid {
        let ppa = lines.unit_at(LineId(0), number);
        lines.set_valid(ppa);
    }
    rig
}

fn begins(mut rig: Rig) -> bool {
    rig.ftl.collect_all();
    let is_collecting = rig.ftl.lines.get(LineId(0)).state == LineState::Collecting;
    assert_eq!(is_collecting, rig.ftl.collecting[0].is_some());
    assert_eq!(rig.ftl.metrics().lines_collected, u64::from(is_collecting));
    is_collecting
}

/// The marks are at 9 and 2 blocks of 24, two to a line. In between GC waits until a line is as stale as the device is spare, which is half.
#[test]
fn a_line_is_collected_when_that_is_worth_it() {
    for (free, valid, is_begun) in
        [(5, 2, false), (4, 14, true), (4, 15, false), (2, 15, false), (1, 15, true)]
    {
        assert_eq!(
            begins(with(config(), free, valid)),
            is_begun,
            "{free} lines are free, {valid} units valid"
        );
    }
    assert!(begins(with(HostFtlConfig { gc_waits: false, ..config() }, 4, 20)), "as released");
    let changes: [fn(&mut Rig); 3] = [
        |rig| rig.ftl.user_waits_for_space = true,
        |rig| rig.ftl.user_is_stuck = true,
        |rig| rig.ftl.lines.get_mut(LineId(0)).has_failed = true,
    ];
    for (nth, change) in changes.into_iter().enumerate() {
        let mut rig = with(config(), 4, 20);
        change(&mut rig);
        assert!(begins(rig), "case {nth}");
    }
}

/// Reads below, by their numbers of units.
fn reads(rig: &Rig) -> Vec<usize> {
    let units = |op: &Op| match op {
        Op::PpaRead { ppas, .. } => Some(ppas.len()),
        _ => None,
    };
    rig.ftl.out[0].iter().filter_map(|command| units(&command.op)).collect()
}

#[test]
fn each_reader_reads_eight_pages() {
    for (gc_readers, expected) in [(1, vec![16]), (2, vec![16, 6]), (8, vec![16, 6])] {
        let mut rig = with(HostFtlConfig { gc_readers, gc_waits: false, ..config() }, 4, 22);
        rig.ftl.collect_all();
        assert_eq!(reads(&rig), expected, "{gc_readers} readers");
        let collecting = rig.ftl.collecting[0].as_ref().unwrap();
        assert_eq!(
            (collecting.reads, collecting.todo.len()),
            (expected.len(), 22 - expected.iter().sum::<usize>())
        );
        assert!(collecting.has_copies() && !collecting.is_kicked && !collecting.is_hurried);
    }
}

/// Units that became stale in the meantime are not read.
#[test]
fn what_is_stale_by_now_is_not_read() {
    let mut rig = with(HostFtlConfig { gc_readers: 1, gc_waits: false, ..config() }, 4, 22);
    rig.ftl.collect_all();
    let last = rig.ftl.collecting[0].as_ref().unwrap().todo[0];
    rig.ftl.lines.set_invalid(last);
    rig.ftl.collecting[0].as_mut().unwrap().reads = 0;
    rig.ftl.collect_all();
    assert_eq!(reads(&rig), [16, 5]);
    // Nothing is left to be read of a line whose last units are stale.
    let mut rig = with(HostFtlConfig { gc_readers: 1, gc_waits: false, ..config() }, 4, 22);
    rig.ftl.collect_all();
    for ppa in rig.ftl.collecting[0].as_ref().unwrap().todo.clone() {
        rig.ftl.lines.set_invalid(ppa);
    }
    rig.ftl.collecting[0].as_mut().unwrap().reads = 0;
    rig.ftl.collect_all();
    assert_eq!((reads(&rig), rig.ftl.collecting[0].as_ref().unwrap().todo.len()), (vec![16], 0));
}

/// An FTL whose units are all written.
pub(super) fn full() -> Rig {
    let mut rig = Rig::new(config());
    let units = rig.ftl.layout().user_units;
    for first in (0..units).step_by(4) {
        assert_eq!(rig.run(write(first, 4.min(units - first))), Ok(Done::Ok));
    }
    rig
}

/// A device that is written over and over: nothing is lost, lines are emptied and erased, and what cannot be read is not erased.
#[test]
fn lines_are_emptied_and_erased() {
    let mut rig = full();
    let units = rig.ftl.layout().user_units;
    for round in 0..400 {
        assert_eq!(rig.run(write(round * 7 % units, 1)), Ok(Done::Ok), "{}", rig.ftl.describe());
    }
    let metrics = rig.ftl.metrics();
    assert!(metrics.gc_units > 0 && metrics.lines_collected > 5, "{metrics:?}");
    assert!(metrics.lines_erased > 5);
    for unit in 0..units {
        let found = rig.run(super::read(unit, 1));
        assert_eq!(found, Ok(Done::Data([Payload::Tag(1 + unit)].into())));
    }
}

#[test]
fn a_line_that_cannot_be_read_stays() {
    let mut rig = full();
    let units = rig.ftl.layout().user_units;
    let is_read = |rig: &Rig| rig.below.iter().position(|command| matches!(command.op, Op::PpaRead { .. }));
    let mut round = 0;
    let at = loop {
        rig.write(round * 7 % units, 1);
        while !rig.below.is_empty() && is_read(&rig).is_none() {
            rig.answer(0);
        }
        if let Some(at) = is_read(&rig) {
            break at;
        }
        round += 1;
        assert!(round < 2_000, "GC reads a line: {}", rig.ftl.describe());
        if round % 8 == 0 {
            rig.rest();
        }
    };
    let Op::PpaRead { ppas, .. } = rig.below[at].op.clone() else { unreachable!() };
    let line = rig.ftl.lines.line_of(ppas[0]).0;
    let valid = |rig: &Rig, ppas: &[Ppa]| ppas.iter().filter(|ppa| rig.ftl.lines.is_valid(**ppa)).count();
    let before = valid(&rig, &ppas);
    assert!(before > 0);
    rig.answer_with(at, Err(DeviceError::Uncorrectable { at: Address::Ppa(ppas[0]) }));
    assert_eq!(rig.ftl.lines.get(line).state, LineState::Retired);
    rig.rest();
    assert_eq!(rig.ftl.lines.get(line).state, LineState::Retired, "nobody erases it");
    assert!(ppas.iter().all(|ppa| rig.medium.contains_key(ppa)));
}

/// A copy of what is stale by now is dropped; one that finds no room waits, and the FTL asks for the time at which the user counts as inactive.
#[test]
fn copies_wait_for_room_or_are_dropped() {
    for cpus in [0, 2] {
        let mut rig = with(HostFtlConfig { cpus, full: WhenFull::Wait, ..config() }, 4, 20);
        let [kept, stale] = [4, 5].map(|number| rig.ftl.lines.unit_at(LineId(0), number));
        rig.ftl.lines.set_invalid(stale);
        rig.ftl.map.exchange(Lpn(90), Word::Place(kept));
        rig.ftl.lines.get_mut(LineId(0)).state = LineState::Collecting;
        let record = |lpn| OobRecord { owner: Owner::Lpn(Lpn(lpn)), seq: 1, member: None };
        let copies = [(stale, record(91), Payload::Tag(91)), (kept, record(90), Payload::Tag(90))].into();
        let (line, todo, reads) = (LineId(0), VecDeque::new(), 0);
        let collecting = Collecting { line, todo, reads, copies, is_kicked: false, is_hurried: false };
        rig.ftl.collecting[0] = Some(collecting);
        (rig.ftl.rings[0].mem, rig.ftl.rings[0].subm) = (16, 16);
        rig.ftl.user_was_active = Some(rig.now);
        rig.tell(Input::Unplug);
        let left = |rig: &Rig| -> Vec<Ppa> {
            rig.ftl.collecting[0].iter().flat_map(|now| now.copies.iter().map(|copy| copy.0)).collect()
        };
        assert_eq!(left(&rig), [kept], "the ring has no room");
        let inactive = rig.now + rig.ftl.config().user_active_for;
        assert_eq!(rig.wakes.iter().copied().collect::<Vec<_>>(), [inactive]);
        rig.wakes.clear();
        rig.tell(Input::Unplug);
        assert!(rig.wakes.is_empty(), "once is enough");
        (rig.ftl.rings[0].mem, rig.ftl.rings[0].subm) = (0, 0);
        rig.now = inactive;
        rig.tell(Input::Wake);
        assert_eq!((left(&rig), rig.ftl.metrics().gc_units), (Vec::new(), 1));
    }
}

/// A line without valid units waits for its readers; nothing is padded for that.
#[test]
fn a_line_waits_for_its_readers() {
    let mut rig = with(config(), 4, 0);
    rig.ftl.lines.get_mut(LineId(0)).readers = 1;
    rig.write(100, 1);
    rig.settle();
    rig.tell(Input::Wake);
    assert_eq!(rig.ftl.lines.get(LineId(0)).state, LineState::Collecting);
    assert_eq!((rig.ftl.rings[0].flush_point, rig.ftl.metrics().lines_erased), (0, 0));
    rig.ftl.lines.get_mut(LineId(0)).readers = 0;
    rig.tell(Input::Wake);
    assert_eq!((rig.ftl.lines.get(LineId(0)).state, rig.ftl.metrics().lines_erased), (LineState::Erasing, 1));
}

/// GC moves records of deallocations, as far as they still say something, and the record of streams.
#[test]
fn records_are_moved() {
    let mut rig = full();
    let units = rig.ftl.layout().user_units;
    rig.run(trim(3, 9)).unwrap();
    rig.run(trim(40, 2)).unwrap();
    rig.run(write(5, 2)).unwrap();
    for round in 0..300 {
        let unit = 50 + round * 7 % (units - 50);
        member(&mut rig, Order::Barrier, write(unit, 1));
        rig.rest();
    }
    let gone = |unit: &u64| matches!(unit, 3 | 4 | 7..12 | 40 | 41);
    let expected: Vec<Payload> =
        (0..units).map(|unit| if gone(&unit) { Payload::Zero } else { Payload::Tag(1 + unit) }).collect();
    assert_eq!(rig.contents(0..units), expected);
    let metrics = rig.ftl.metrics();
    assert!(metrics.gc_units > 20 && metrics.lines_erased > 8 && metrics.order_records > 2, "{metrics:?}");
    assert!(metrics.order_records <= metrics.lines_collected + 2, "{metrics:?}");
    let after = rig.recovered();
    assert_eq!(after.contents(0..units), expected);
    let live: u64 = after.ftl.trims.values().map(|record| record.live).sum();
    assert_eq!(live, 9, "each of these units has its record");
}

/// Of a unit with a newer version in a ring nothing is copied, and of a page of the record of streams a new one is asked for.
#[test]
fn what_a_ring_replaces_is_not_copied() {
    let mut rig = with(config(), 4, 20);
    let [old, page] = [4, 5].map(|number| rig.ftl.lines.unit_at(LineId(0), number));
    rig.write(90, 1);
    rig.ftl.orders.places = vec![page];
    rig.ftl.lines.get_mut(LineId(0)).state = LineState::Collecting;
    let record = |owner| OobRecord { owner, seq: 1, member: None };
    let copies =
        [(old, record(Owner::Lpn(Lpn(90))), Payload::Tag(7)), (page, record(Owner::Meta), Payload::Zero)];
    let (line, todo, reads, copies) = (LineId(0), VecDeque::new(), 0, copies.into());
    let collecting = Collecting { line, todo, reads, copies, is_kicked: true, is_hurried: true };
    rig.ftl.collecting[0] = Some(collecting);
    rig.ftl.collect_all();
    assert!(rig.ftl.collecting[0].as_ref().unwrap().copies.is_empty());
    assert_eq!(
        (rig.ftl.metrics().gc_units, rig.ftl.orders.is_wanted, rig.ftl.orders.is_urgent),
        (0, true, true)
    );
}
