//! GC: when it begins, what it reads at once, and what becomes of a line that it cannot read.

use super::{Rig, config, write};
use crate::HostFtlConfig;
use crate::ftl::lines::{LineId, LineState};
use flashweir_core::{Address, DeviceError, Done, Op, Payload, Ppa};

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
        assert!(collecting.has_copies());
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
}

/// An FTL whose units are all written.
fn full() -> Rig {
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
