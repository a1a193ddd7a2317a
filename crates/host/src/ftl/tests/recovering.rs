//! Recovery: what it reads, what counts of what it finds, and what it writes before it answers.

use super::ordering::{member, program_of};
use super::{Rig, UNIT_BYTES, config, geometry, read, trim, write};
use crate::ftl::lines::{LineId, LineState};
use crate::{HostFtlConfig, Input};
use flashweir_core::oob::{OobRecord, Owner};
use flashweir_core::open::ChunkState;
use flashweir_core::{DeviceError, Done, Lpn, Op, Order, Payload, Ppa};
use flashweir_ftl::line_pages::{LineStart, META_RECORD, PAD_RECORD};

fn tags(tags: impl IntoIterator<Item = u64>) -> Vec<Payload> {
    tags.into_iter().map(|tag| if tag == 0 { Payload::Zero } else { Payload::Tag(tag) }).collect()
}

/// Each line is asked for its start; one without is read page by page up to the first that was never written.
#[test]
fn a_recovery_reads_no_more_than_it_needs() {
    let mut rig = Rig::new(config());
    let empty = rig.recovered();
    assert_eq!(empty.ftl.metrics().recovery_reads, 12 * 3);
    assert_eq!((empty.ftl.metrics().programmed_units, empty.ftl.lines.free_count(0)), (0, 12));
    // Three programs behind the start, which are all of a row and one of the next.
    rig.run(write(0, 4)).unwrap();
    let open = rig.recovered();
    // Start, end, the pages of two columns, and the first page of each that was never written.
    assert_eq!(open.ftl.metrics().recovery_reads, 11 * 3 + 2 + 3 + 2);
    assert_eq!((open.ftl.lines.open[0], open.ftl.lines.free_count(0)), (Some(LineId(0)), 11));
    // 28 units fill a line, whose end says what they are.
    for first in (4..28).step_by(4) {
        rig.run(write(first, 4)).unwrap();
    }
    rig.run(write(30, 2)).unwrap();
    let closed = rig.recovered();
    let line = closed.ftl.lines.get(LineId(0));
    assert_eq!((line.state, line.number, line.age()), (LineState::Closed, 1, 1));
    assert_eq!(closed.ftl.metrics().recovery_reads, 10 * 3 + 2 + (2 + 2 + 2));
    assert_eq!(closed.contents(0..33), tags((1..29).chain([0, 0, 31, 32, 0])));
    assert_eq!(closed.ftl.seq, rig.ftl.seq);
}

/// The newest durable version of each unit counts, be it written or deallocated, and what is deallocated twice stays so.
#[test]
fn the_newest_version_counts() {
    let mut rig = Rig::new(config());
    rig.run(write(0, 8)).unwrap();
    rig.run(trim(2, 3)).unwrap();
    rig.run(Op::WriteZeroes { lba: flashweir_core::Lba(6), blocks: 2 }).unwrap();
    rig.run(write(4, 1)).unwrap();
    rig.run(trim(7, 20)).unwrap();
    let mut again = rig.recovered().recovered();
    let expected = tags([1, 2, 0, 0, 5, 6, 7, 0, 0]);
    assert_eq!(again.contents(0..9), expected);
    assert!(again.ftl.trims.values().all(|record| record.live > 0));
    // New versions are newer than all that were found.
    again.run(trim(0, 2)).unwrap();
    again.run(write(2, 1)).unwrap();
    assert_eq!(again.recovered().contents(0..9), tags([0, 0, 3, 0, 5, 6, 7, 0, 0]));
}

/// The line that was open goes on behind its last page; a column with a torn page takes nothing more, and such a line gets no end.
#[test]
fn the_open_line_goes_on() {
    let mut rig = Rig::new(config());
    rig.run(write(0, 6)).unwrap();
    let mut after = rig.recovered();
    let number = after.ftl.lines.get(LineId(0)).number;
    after.write(6, 2);
    let ppa = after.programs(0).into_iter().chain(after.programs(1)).next().unwrap()[0];
    assert_eq!(after.ftl.lines.line_of(ppa).0, LineId(0));
    after.rest();
    assert_eq!((after.ftl.lines.get(LineId(0)).number, after.contents(0..8)), (number, tags(1..9)));
    // Two programs are under way: one is torn.
    rig.write(6, 2);
    let Op::PpaWrite(torn) = rig.below[0].op.clone() else { panic!("a program") };
    rig.torn.extend(torn.ppas.iter());
    let block = geometry().page_of(torn.ppas[0]).0.block;
    let mut after = rig.recovered();
    assert_eq!(after.contents(0..8), tags((1..7).chain([0, 0])));
    let line = after.ftl.lines.get(LineId(0));
    assert_eq!((line.state, line.owners.len()), (LineState::Open, 0));
    for first in (10..60).step_by(2) {
        after.write(first, 2);
        let all = after.programs(0).into_iter().chain(after.programs(1));
        let is_there = |ppas: &Vec<Ppa>| geometry().page_of(ppas[0]).0.block == block;
        assert_eq!(all.filter(is_there).count(), 0, "the column is torn");
        after.rest();
        if after.ftl.lines.open[0] != Some(LineId(0)) {
            break;
        }
    }
    assert_eq!(after.ftl.lines.get(LineId(0)).state, LineState::Closed);
    let end = after.ftl.lines.end_pages(LineId(0));
    assert!(!after.medium.contains_key(&geometry().ppa(end[0], 0)), "nothing describes it");
    assert_eq!(after.recovered().contents(0..12), after.contents(0..12));
}

/// Of a stream the members of complete epochs count, and of the next; what is behind is discarded for good, before anything is answered.
#[test]
fn later_epochs_are_discarded_for_good() {
    let mut rig = Rig::new(config());
    rig.run(write(4, 2)).unwrap();
    member(&mut rig, Order::Barrier, write(0, 2));
    let kept = program_of(&rig, 1);
    rig.answer(kept);
    member(&mut rig, Order::Barrier, write(2, 2));
    rig.submit_as(
        |command| flashweir_core::Command {
            stream: Some(flashweir_core::command::StreamId(1)),
            order: Some(Order::Within),
            ..command
        },
        Op::WriteZeroes { lba: flashweir_core::Lba(8), blocks: 4 },
    );
    // The second epoch is lost, and the third is on the medium.
    let lost = program_of(&rig, 3);
    let third = (0..rig.below.len()).find(|at| *at != lost).expect("another program is below");
    rig.answer(third);
    let expected = tags([1, 2, 0, 0, 5, 6]);
    let mut begun = rig.recovering();
    let early = begun.submit(read(0, 6));
    while begun.ftl.recovery.is_some() {
        begun.answer(0);
    }
    assert!(!begun.ftl.is_ready() && !begun.answers.contains_key(&early), "a record is written first");
    // A recovery that is cut off here is repeated with the same result.
    assert_eq!(begun.recovered().contents(0..6), expected);
    begun.rest();
    assert!(begun.ftl.is_ready());
    assert_eq!(begun.answers.get(&early), Some(&Ok(Done::Data(expected.clone().into()))));
    assert_eq!((begun.ftl.metrics().order_records, begun.ftl.orders.discarded.len()), (1, 1));
    let mut again = begun.recovered();
    assert_eq!(again.contents(0..6), expected);
    assert_eq!(again.ftl.metrics().order_records, 0, "nothing is new");
    // The epochs of the new boot have nothing to do with those.
    member(&mut again, Order::Barrier, write(2, 2));
    again.rest();
    assert_eq!(again.recovered().recovered().contents(0..6), tags([1, 2, 3, 4, 5, 6]));
}

/// A line whose first block was erased and whose others were not is erased before it is used.
#[test]
fn a_line_whose_erase_was_interrupted_is_erased_again() {
    let mut rig = Rig::new(config());
    rig.run(write(0, 4)).unwrap();
    // Everything of line 0 is stale by now, but for what stands in its second block.
    rig.medium.retain(|ppa, _| geometry().page_of(*ppa).0.block != rig.ftl.lines.block(LineId(0), 0));
    let after = rig.recovered();
    let line = after.ftl.lines.get(LineId(0));
    assert_eq!((line.number, line.state, line.is_clean), (0, LineState::Closed, false));
    assert_eq!(line.age(), u64::MAX);
    let count = after.contents(0..4).iter().filter(|content| **content != Payload::Zero).count();
    assert_eq!(count as u32, line.valid, "what can be read of it counts until it is written again");
    assert!(count > 0 && after.ftl.lines.free_count(0) == 11);
}

#[test]
fn a_unit_that_cannot_be_read_is_an_error_for_its_reader() {
    let mut rig = Rig::new(config());
    for first in (0..40).step_by(8) {
        rig.run(write(first, 8)).unwrap();
    }
    let Some(Err(ppa)) = rig.ftl.find(Lpn(0)) else { panic!("it is on the medium") };
    rig.medium.remove(&ppa);
    rig.torn.insert(ppa);
    assert!(matches!(rig.run(read(0, 1)), Err(DeviceError::Uncorrectable { .. })));
    assert!(matches!(rig.run(read(39, 1)), Ok(Done::Data(_))));
}

/// Where the device keeps the last units of open chunks back the FTL serves them itself, and a recovery pads these chunks first.
#[test]
fn what_the_device_keeps_back_is_served_and_found() {
    // The ring is smaller than what two chunks keep back.
    let mut rig = Rig::new(HostFtlConfig { cached_units: 3, entries: 4, ..config() });
    let units = rig.ftl.layout().user_units;
    for round in 0..50 {
        let first = round * 11 % (units - 8);
        rig.run(write(first, 5)).unwrap();
        for unit in first..first + 5 {
            assert_eq!(rig.run(read(unit, 1)), Ok(Done::Data([Payload::Tag(1 + unit)].into())));
        }
    }
    for unit in 0..units {
        let expected = rig.contents(unit..unit + 1);
        assert_eq!(rig.run(read(unit, 1)), Ok(Done::Data(expected.into())));
    }
    assert!(rig.ftl.metrics().lines_erased > 2);
    let after = rig.recovered();
    assert_eq!(after.contents(0..units), rig.contents(0..units));
    // Two pages of each open chunk are padded, if it has so many left.
    let open = (0..24).map(|block| rig.report(block)).filter(|report| report.state == ChunkState::Open);
    let padded: u32 = open.map(|report| 4.min(report.units - report.pointer)).sum();
    assert!(padded > 0);
    assert_eq!(
        (after.ftl.metrics().padded_units, after.ftl.metrics().program_failures),
        (u64::from(padded), 0)
    );
    assert_eq!(after.recovered().contents(0..units), rig.contents(0..units));
    // Near the end of a chunk there is less to be padded.
    let mut rig = Rig::new(rig.ftl.config().clone());
    rig.run(write(0, 26)).unwrap();
    let after = rig.recovered();
    assert_eq!(after.contents(0..26), tags(1..27));
    let mut rig = Rig::new(rig.ftl.config().clone());
    rig.run(write(0, 6)).unwrap();
    let after = rig.recovered();
    assert_eq!((after.ftl.metrics().padded_units, after.contents(0..7)), (8, tags([1, 2, 3, 4, 5, 6, 0])));
}

/// Found by this test: nowhere to record what is discarded, so the FTL only reads; its GC had a copy that no page took, and it asked to be
/// called for ever.
#[test]
fn regression_without_room_for_a_record_the_ftl_reads_and_rests() {
    let mut rig = Rig::new(config());
    member(&mut rig, Order::Barrier, write(0, 2));
    member(&mut rig, Order::Barrier, write(2, 2));
    let later = program_of(&rig, 3);
    rig.answer(later);
    rig.answer(0);
    // All other lines hold something, and the open one has a torn page in each column.
    for line in 1..12 {
        let ppa = rig.ftl.lines.unit_at(LineId(line), 0);
        let owner = Owner::Lpn(Lpn(100 + u64::from(line)));
        let record = OobRecord { owner, seq: 1, member: None };
        rig.medium.insert(ppa, (record, Payload::Tag(7)));
        rig.medium.insert(Ppa(ppa.0 + 1), (record, Payload::Tag(7)));
    }
    for column in 0..2 {
        let block = rig.ftl.lines.block(LineId(0), column).0;
        let next = geometry().units_per_block() * block + rig.pointer(block);
        rig.torn.extend([Ppa(u64::from(next)), Ppa(u64::from(next) + 1)]);
    }
    let mut after = rig.recovered();
    assert!(after.ftl.is_read_only && after.ftl.is_at_rest());
    assert_eq!(after.contents(0..4), tags([0; 4]));
    assert_eq!(after.run(write(0, 1)), Err(DeviceError::ReadOnly));
    assert_eq!(after.run(trim(0, 1)), Err(DeviceError::ReadOnly));
    assert_eq!(after.run(Op::Flush), Ok(Done::Ok));
    assert_eq!(after.run(read(101, 1)), Ok(Done::Data([Payload::Tag(7)].into())));
    assert_eq!(after.ftl.metrics().programmed_units, 0);
}

/// A line without valid units is free after a recovery, and a full device keeps everything.
#[test]
fn stale_lines_are_free() {
    let mut rig = Rig::new(config());
    for _ in 0..2 {
        rig.run(write(0, 28)).unwrap();
    }
    rig.run(write(30, 2)).unwrap();
    let after = rig.recovered();
    assert_eq!((after.ftl.lines.get(LineId(0)).state, after.ftl.lines.free_count(0)), (LineState::Free, 10));
    assert!(!after.ftl.lines.get(LineId(0)).is_clean);
    let full = super::collecting::full();
    let units = full.ftl.layout().user_units;
    let after = full.recovered();
    assert_eq!(after.contents(0..units), full.contents(0..units));
}

/// A copy of GC has the number of its original, which counts while it is there.
#[test]
fn the_original_counts() {
    let mut rig = Rig::new(config());
    rig.run(write(0, 28)).unwrap();
    rig.run(write(40, 28)).unwrap();
    rig.run(write(80, 2)).unwrap();
    let Some(ppa) = rig.medium.iter().find(|(_, unit)| unit.1 == Payload::Tag(1)).map(|(ppa, _)| *ppa) else {
        panic!("unit 0 is on the medium")
    };
    let record = rig.medium[&ppa].0;
    let (&copy, _) = rig.medium.iter().find(|(_, unit)| unit.1 == Payload::Tag(82)).expect("the last unit");
    rig.medium.insert(copy, (record, Payload::Tag(1)));
    assert_eq!(rig.recovered().ftl.find(Lpn(0)), Some(Err(ppa)));
}

/// A line that goes without its first block has its start in the next one, and is found by that.
#[test]
fn a_line_without_its_first_block_goes_on() {
    let mut rig = Rig::new(config());
    let block = rig.ftl.lines.block(LineId(0), 0);
    rig.ftl.lines.erase_failed(block);
    rig.run(write(0, 4)).unwrap();
    assert_eq!(rig.ftl.lines.get(LineId(0)).columns, [1]);
    let mut after = rig.recovered();
    let line = after.ftl.lines.get(LineId(0));
    assert_eq!((line.state, &line.columns, line.number), (LineState::Open, &vec![1], 1));
    after.run(write(4, 2)).unwrap();
    assert_eq!(after.recovered().contents(0..6), tags(1..7));
}

/// What a block holds that its line leaves out was superseded before the line was opened. Once a recovery took it for the original of a newer
/// copy, which it gave up, and the line's end metadata did not have it.
#[test]
fn regression_a_block_that_a_line_leaves_out_has_nothing() {
    let mut rig = Rig::new(config());
    let (left_out, used) = (LineId(0), LineId(1));
    for (line, start) in [
        (left_out, LineStart { line: 5, left_out: vec![1] }),
        (used, LineStart { line: 8, left_out: Vec::new() }),
    ] {
        let unit = rig.ftl.lines.unit_at(line, 0);
        let page = crate::ftl::target::bytes(start.encode(), UNIT_BYTES);
        rig.medium.insert(unit, (META_RECORD, page));
        rig.medium.insert(Ppa(unit.0 + 1), (PAD_RECORD, Payload::Zero));
        // Position 1 is the first page of the second column.
        let unit = rig.ftl.lines.unit_at(line, 2);
        for (nth, lpn) in [(0, 7), (1, 9)] {
            let record = OobRecord { owner: Owner::Lpn(Lpn(lpn)), seq: lpn, member: None };
            rig.medium.insert(Ppa(unit.0 + nth), (record, Payload::Tag(1 + lpn)));
        }
    }
    let place = rig.ftl.lines.unit_at(used, 2);
    let mut after = rig.recovered();
    assert_eq!(after.ftl.find(Lpn(7)), Some(Err(place)));
    // Until the block can be erased, the line has room for half.
    let [half, all] = [left_out, used].map(|line| after.ftl.lines.data_units_of(line));
    assert_eq!((half, all), (all - geometry().units_per_block(), after.ftl.layout.data_units()));
    after.ftl.begin_erase(left_out);
    after.tell(Input::Wake);
    after.rest();
    assert_eq!(after.ftl.lines.data_units_of(left_out), all);
    assert_eq!(after.recovered().contents(7..10), tags([8, 0, 10]));
}

/// What was padded goes on: the device keeps its padding back, and once a recovery took that for torn pages.
#[test]
fn regression_a_line_with_padded_chunks_goes_on() {
    let mut rig = Rig::new(HostFtlConfig { cached_units: 3, ..config() });
    rig.run(write(0, 6)).unwrap();
    let mut after = rig.recovered();
    let line = after.ftl.lines.get(LineId(0));
    assert_eq!((line.state, &line.next), (LineState::Open, &vec![4, 4]));
    for first in (6..40).step_by(2) {
        after.run(write(first, 2)).unwrap();
    }
    let line = after.ftl.lines.get(LineId(0));
    assert!(line.state == LineState::Closed && line.next.iter().all(|&next| next == 8), "it has its end");
    assert_eq!(after.recovered().contents(0..40), tags(1..41));
}
