//! Programs, reads and erases: how many are under way, in which order they leave, and what a failure leads to.

use super::{PAD_AFTER, Rig, config, geometry, read, write};
use crate::ftl::lines::LineState;
use crate::{HostFtlConfig, Input};
use flashweir_core::open::OpenError;
use flashweir_core::{Address, DeviceError, Done, Duration, Instant, Op, Payload, Ppa};

fn lens(rig: &Rig) -> [usize; 2] {
    [0, 1].map(|die| rig.programs(die).len())
}

#[test]
fn each_die_has_as_many_programs_under_way_as_it_may() {
    for limit in [1, 2, 3] {
        let mut rig = Rig::new(HostFtlConfig { programs_per_die: limit, ..config() });
        rig.write(0, 16);
        let most = limit as usize;
        assert_eq!(lens(&rig), [most, most]);
        // The oldest command is start metadata, which counts for no die.
        rig.answer(0);
        assert_eq!(lens(&rig), [most, most]);
        let at = rig.below.iter().position(|_| true).expect("a program is below");
        rig.answer(at);
        assert_eq!(lens(&rig), [most, most], "its place is taken at once");
        rig.settle();
    }
}

/// While reads are served from a group, and up to two tenths of a second later, its dies have one program each.
#[test]
fn dies_that_serve_reads_have_one_program_each() {
    let mut rig = Rig::new(HostFtlConfig { reads_first: true, ..config() });
    // What is in the ring is read there, so the ring has to be filled anew.
    for round in 0..3 {
        rig.write(round * 16, 16);
        rig.settle();
    }
    rig.write(50, 12);
    assert_eq!(lens(&rig), [2, 2], "nothing was read yet");
    rig.settle();
    let number = rig.submit(read(0, 1));
    assert!(matches!(rig.below[0].op, Op::PpaRead { .. }));
    rig.settle();
    assert!(matches!(&rig.answers[&number], Ok(Done::Data(units)) if units[..] == [Payload::Tag(1)]));
    for (millis, programs) in [(0, 1), (99, 1), (199, 1), (200, 2)] {
        rig.wait_until(Instant::ZERO + Duration::from_millis(millis));
        rig.write(70, 8);
        assert_eq!(lens(&rig), [programs, programs], "after {millis} ms");
        rig.settle();
    }
}

#[test]
fn what_fills_no_page_is_padded_after_a_while() {
    let mut rig = Rig::new(config());
    rig.write(0, 1);
    assert_eq!(lens(&rig), [0, 0]);
    rig.wait_until(Instant::ZERO + PAD_AFTER / 2);
    rig.write(1, 2);
    assert_eq!(lens(&rig), [0, 1], "a page is full");
    rig.wait_until(Instant::ZERO + PAD_AFTER - Duration::from_nanos(1));
    assert_eq!(lens(&rig), [0, 1]);
    rig.wait_until(Instant::ZERO + PAD_AFTER);
    assert_eq!((lens(&rig), rig.ftl.metrics().padded_units), ([1, 1], 1));
    rig.rest();
    // The next one has its own time.
    let begin = rig.now + Duration::from_millis(20);
    rig.wait_until(begin);
    rig.write(5, 1);
    rig.wait_until(begin + PAD_AFTER - Duration::from_nanos(1));
    assert_eq!(lens(&rig), [0, 0]);
    rig.wait_until(begin + PAD_AFTER);
    assert_eq!(rig.ftl.metrics().padded_units, 2);
}

#[test]
fn a_device_that_is_busy_is_asked_again_and_reads_go_first() {
    let mut rig = Rig::new(config());
    for round in 0..3 {
        rig.write(round * 16, 16);
        rig.settle();
    }
    let begin = rig.now;
    let mut effects = Vec::new();
    let command = flashweir_core::Command::new(900, write(60, 2));
    rig.ftl.handle(begin, Input::Submit { command, submitter: 0 }, &mut effects);
    let offers = |effects: &[crate::Effect]| -> Vec<Op> {
        let of = |effect: &crate::Effect| match effect {
            crate::Effect::Offer(offer) => Some(offer.command.op.clone()),
            _ => None,
        };
        effects.iter().filter_map(of).collect()
    };
    assert_eq!(offers(&effects).len(), 1);
    let refused = offers(&effects).remove(0);
    effects.clear();
    let command = flashweir_core::Command::new(902, write(70, 2));
    rig.ftl.handle(begin, Input::Submit { command, submitter: 0 }, &mut effects);
    assert_eq!(offers(&effects), [], "one offer at a time");
    effects.clear();
    rig.ftl.handle(begin, Input::Busy, &mut effects);
    let retry = begin + rig.ftl.config().retry_after;
    assert!(effects.contains(&crate::Effect::At(retry)) && offers(&effects).is_empty());
    effects.clear();
    let command = flashweir_core::Command::new(901, read(0, 1));
    rig.ftl.handle(begin, Input::Submit { command, submitter: 0 }, &mut effects);
    assert_eq!(offers(&effects), [], "it waits");
    effects.clear();
    rig.ftl.handle(retry, Input::Wake, &mut effects);
    assert!(matches!(offers(&effects)[..], [Op::PpaRead { .. }]), "{effects:?}");
    effects.clear();
    rig.ftl.handle(retry, Input::Accepted, &mut effects);
    assert_eq!(offers(&effects), [refused]);
}

/// The first program below that holds data fails like this; returns its units.
pub(super) fn fail_one(rig: &mut Rig, error: impl Fn(Ppa) -> DeviceError) -> Vec<Ppa> {
    let ppas = rig.programs(0).swap_remove(0);
    let is_it = |op: &Op| matches!(op, Op::PpaWrite(write) if write.ppas[..] == ppas[..]);
    let at = rig.below.iter().position(|command| is_it(&command.op)).unwrap();
    rig.answer_with(at, Err(error(ppas[0])));
    ppas
}

/// What has failed is written again elsewhere; its line takes nothing more, is collected first, and does without the block if that is bad.
#[test]
fn a_failed_program_is_written_elsewhere() {
    let fault = |ppa| DeviceError::WriteFault { at: Address::Ppa(ppa) };
    let early = |ppa| DeviceError::Open { at: Address::Ppa(ppa), what: OpenError::ClosedEarly };
    let order = |ppa| DeviceError::OutOfOrder { at: Address::Ppa(ppa), expected: 0 };
    let over = |ppa| DeviceError::Overwrite { at: Address::Ppa(ppa) };
    let errors: [(&dyn Fn(Ppa) -> DeviceError, bool); 4] =
        [(&fault, true), (&early, false), (&order, false), (&over, false)];
    for (error, is_bad) in errors {
        let mut rig = Rig::new(config());
        rig.write(0, 8);
        let failed = fail_one(&mut rig, error);
        let (block, line) = (geometry().page_of(failed[0]).0.block, rig.ftl.lines.line_of(failed[0]).0);
        rig.settle();
        assert_eq!(rig.run(Op::Flush), Ok(Done::Ok));
        for unit in 0..8 {
            assert!(
                matches!(rig.run(read(unit, 1)), Ok(Done::Data(units)) if units[..] == [Payload::Tag(1 + unit)])
            );
        }
        assert_eq!(rig.ftl.metrics().program_failures, 1);
        assert!(rig.ftl.lines.get(line).has_failed || rig.ftl.metrics().lines_erased == 1);
        assert_ne!(rig.ftl.lines.open[0], Some(line), "{:?}", error(failed[0]));
        // Once it is opened again, it goes without a bad block.
        for round in 0..60 {
            rig.run(write(20 + round % 20, 8)).unwrap();
            if rig.ftl.lines.get(line).number > 1 {
                break;
            }
        }
        let again = rig.ftl.lines.get(line);
        assert!(again.number > 1 && !again.has_failed, "{}", rig.ftl.describe());
        let has_it = again.columns.iter().any(|&column| rig.ftl.lines.block(line, column) == block);
        assert_eq!(has_it, !is_bad);
    }
}

fn erases(rig: &Rig) -> Vec<u32> {
    let block = |op: &Op| match op {
        Op::PpaErase(ppas) => Some(geometry().page_of(ppas[0]).0.block.0),
        _ => None,
    };
    rig.below.iter().filter_map(|command| block(&command.op)).collect()
}

/// A line is erased at its first block alone, then at all others; while its first block cannot be erased the others stay.
#[test]
fn the_block_with_the_start_metadata_is_erased_first() {
    let begun = || {
        let mut rig = Rig::new(config());
        // Everything of line 0 is written over, line after line.
        for round in 0..60 {
            rig.write(16 * (round % 2), 16);
            while !rig.below.is_empty() && erases(&rig).is_empty() {
                rig.answer(0);
            }
            if !erases(&rig).is_empty() {
                return rig;
            }
        }
        panic!("GC erases a line: {}", rig.ftl.describe());
    };
    let mut rig = begun();
    let of =
        |rig: &Rig| rig.ftl.lines.ids().find(|line| rig.ftl.lines.get(*line).state == LineState::Erasing);
    let erased = of(&rig).expect("a line is being erased");
    assert_eq!(erases(&rig), [rig.ftl.lines.block(erased, 0).0]);
    let at = |rig: &Rig| rig.below.iter().position(|command| matches!(command.op, Op::PpaErase(_))).unwrap();
    let free = rig.ftl.lines.free_count(0);
    let first = at(&rig);
    rig.answer(first);
    assert_eq!(erases(&rig), [rig.ftl.lines.block(erased, 1).0]);
    assert_eq!(rig.ftl.lines.free_count(0), free, "it counts as free from the beginning of its erase on");
    let second = at(&rig);
    let ppa = Ppa(0);
    // A device of OCSSD 2.0 says so of what is erased already.
    rig.answer_with(second, Err(DeviceError::Open { at: Address::Ppa(ppa), what: OpenError::InvalidReset }));
    assert_eq!((rig.ftl.lines.get(erased).state, rig.ftl.metrics().erase_failures), (LineState::Free, 0));
    assert!(rig.ftl.lines.get(erased).is_clean);
    let mut rig = begun();
    let erased = of(&rig).expect("a line is being erased");
    let first = at(&rig);
    rig.answer_with(first, Err(DeviceError::Open { at: Address::Ppa(ppa), what: OpenError::Offline }));
    assert!(erases(&rig).iter().all(|block| *block != rig.ftl.lines.block(erased, 1).0));
    assert_eq!((rig.ftl.lines.get(erased).state, rig.ftl.metrics().erase_failures), (LineState::Retired, 1));
}
