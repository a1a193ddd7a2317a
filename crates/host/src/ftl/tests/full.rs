//! Rings and media without room: who waits, who is refused, and what goes on.

use super::ordering::member;
use super::writing::fail_one;
use super::{Rig, config, read, trim, write};
use crate::ftl::lines::LineId;
use crate::{Costs, HostFtlConfig, Input, Limits, WhenFull};
use flashweir_core::command::StreamId;
use flashweir_core::{Address, Command, DeviceError, Done, Duration, Op, Order, Payload};

/// FTLs without threads, and with those of two CPUs that wait or try again.
fn all() -> [HostFtlConfig; 3] {
    let costs = Costs { turn: Duration::from_micros(200), ..Costs::default() };
    let threads = |full| HostFtlConfig { cpus: 2, costs: costs.clone(), full, ..config() };
    [config(), threads(WhenFull::Wait), threads(WhenFull::Retry)]
}

#[test]
fn a_ring_is_used_again_and_again() {
    for config in all() {
        let tries = config.cpus > 0 && config.full == WhenFull::Retry;
        let mut rig = Rig::new(config);
        let units = rig.ftl.layout().user_units;
        for round in 0..60 {
            let first = round * 13 % (units - 30);
            // More than a ring holds.
            let numbers = [rig.write(first, 20), rig.submit(trim(first + 3, 4)), rig.submit(Op::Flush)];
            rig.rest();
            for number in numbers {
                assert_eq!(rig.answers.remove(&number), Some(Ok(Done::Ok)));
            }
            let mut expected: Vec<Payload> = (first..first + 20).map(|unit| Payload::Tag(1 + unit)).collect();
            expected[3..7].fill(Payload::Zero);
            assert_eq!(rig.run(read(first, 20)), Ok(Done::Data(expected.into())));
        }
        assert!(rig.ftl.is_at_rest() && rig.ftl.metrics().lines_erased > 5);
        assert_eq!(rig.ftl.metrics().retries > 0, tries, "only threads that try again do");
        assert_eq!(rig.recovered().contents(0..units), rig.contents(0..units));
    }
}

#[test]
fn what_fills_no_page_leaves_with_threads_too() {
    for config in all() {
        let mut rig = Rig::new(config);
        rig.write(0, 1);
        rig.rest();
        assert_eq!((rig.ftl.metrics().padded_units, rig.ftl.rings[0].pending()), (1, 0));
    }
}

/// A medium of which too little is left: writes are refused, one after the other, and what is there is read.
#[test]
fn a_medium_without_room_refuses_writes() {
    for config in all() {
        let mut rig = Rig::new(HostFtlConfig { limits: Limits::Scores, ..config });
        for line in 4..12 {
            rig.ftl.lines.begin_erase(LineId(line));
            rig.ftl.lines.retire(LineId(line));
        }
        let mut answers = Vec::new();
        for first in (0..120).step_by(4) {
            answers.push(rig.run(write(first, 4)));
        }
        let done = answers.iter().take_while(|answer| **answer == Ok(Done::Ok)).count();
        assert!((5..25).contains(&done), "{done} writes have room");
        assert!(answers[done..].iter().all(|answer| *answer == Err(DeviceError::ReadOnly)), "{answers:?}");
        let last = 4 * (done as u64 - 1);
        let expected: Vec<Payload> = (last..last + 4).map(|unit| Payload::Tag(1 + unit)).collect();
        assert_eq!(rig.run(read(last, 4)), Ok(Done::Data(expected.into())));
        assert_eq!(rig.run(Op::Flush), Ok(Done::Ok));
        // A member that is refused fails its stream, and whoever waits for durability is told.
        let lost = member(&mut rig, Order::Barrier, write(130, 4));
        rig.rest();
        assert_eq!(rig.answers.get(&lost), Some(&Err(DeviceError::ReadOnly)));
        let failed = Err(DeviceError::StreamFailed(StreamId(1)));
        let next = member(&mut rig, Order::Within, write(0, 1));
        rig.rest();
        assert_eq!(rig.answers.get(&next), Some(&failed));
        assert_eq!(rig.run(Op::Flush), failed);
    }
}

/// With eight blocks left pblk's limiter gives the user nothing, though there is room.
#[test]
fn the_last_blocks_are_for_gc() {
    let mut rig = Rig::new(config());
    for line in 5..12 {
        rig.ftl.lines.begin_erase(LineId(line));
        rig.ftl.lines.retire(LineId(line));
    }
    assert_eq!(rig.run(write(0, 4)), Ok(Done::Ok));
    assert!(!rig.ftl.user_is_stuck, "it was admitted");
    rig.wakes.clear();
    let refused = rig.write(4, 4);
    assert_eq!(rig.answers.get(&refused), Some(&Err(DeviceError::ReadOnly)), "no time has to pass");
    assert!(!rig.ftl.user_is_stuck && rig.ftl.lines.free_units() > 100, "nobody waits any more");
}

/// With a block that fails the user stops one line before the mark at which GC began, and once was refused with lines full of stale units.
#[test]
fn regression_gc_makes_room_where_the_user_stops_before_its_mark() {
    let mut rig = Rig::new(HostFtlConfig { over_provisioning: 0.25, ..config() });
    let fault = |ppa| DeviceError::WriteFault { at: Address::Ppa(ppa) };
    rig.write(0, 8);
    fail_one(&mut rig, fault);
    rig.rest();
    for round in 0..200 {
        assert_eq!(rig.run(write(0, 8)), Ok(Done::Ok), "round {round}");
    }
}

/// Threads may bring members of a stream into a queue in another order than that of their arrival. Once the later one waited for the earlier
/// one, which nobody looked at behind it.
#[test]
fn regression_a_later_epoch_does_not_block_an_earlier_one_behind_it() {
    let costs = Costs { turn: Duration::from_micros(200), ..Costs::default() };
    let mut rig =
        Rig::new(HostFtlConfig { cpus: 4, rings: 2, entries: 32, costs, full: WhenFull::Wait, ..config() });
    let mut member = |submitter, order, op| {
        rig.next += 1;
        let (stream, order) = (Some(StreamId(1)), Some(order));
        let command = Command { stream, order, ..Command::new(rig.next, op) };
        rig.tell(Input::Submit { command, submitter });
        rig.next
    };
    // The CPU of the third submitter has more to do than that of the first, and their ring is the same.
    let all = [
        member(2, Order::Within, write(10, 8)),
        member(2, Order::Barrier, write(0, 1)),
        member(0, Order::Within, write(2, 1)),
    ];
    rig.rest();
    assert!(all.iter().all(|number| rig.answers.get(number) == Some(&Ok(Done::Ok))), "{:?}", rig.answers);
}
