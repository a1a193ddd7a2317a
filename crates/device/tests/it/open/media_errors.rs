//! The media errors of an open channel, each with the sequence of commands or the fault that leads to it (open-channel §6.3).

use super::{at, config, host, host_of, open, places, read, write};
use crate::harness::OneByOne;
use flashweir_core::open::{ChunkReport, ChunkState, Notice, NoticeReason, OpenError};
use flashweir_core::{DeviceError, Done, Op, Ppa};
use flashweir_device::DeviceOptions;
use flashweir_device::{Recovery, Torn};

fn chunk(host: &mut OneByOne, number: u32) -> ChunkReport {
    match host.run(Op::ChunkReport { first: number, count: 1 }) {
        Ok(Done::Chunks(chunks)) => chunks[0],
        other => panic!("{other:?}"),
    }
}

fn notices(host: &mut OneByOne, after: u64) -> Vec<Notice> {
    match host.run(Op::ChunkNotices { after }) {
        Ok(Done::Notices(notices)) => notices.into_vec(),
        other => panic!("{other:?}"),
    }
}

/// F0: the write has failed, and the chunk goes on with its next write unit.
#[test]
fn a_failed_write_may_leave_its_chunk_open() {
    let mut config = config();
    (config.faults.program_fail, config.faults.chunk_goes_on) = (0.5, 1.0);
    let mut host = host_of(config);
    let answers: Vec<_> = (0..32).step_by(4).map(|first| host.run(write(first, 4))).collect();
    assert!(answers.contains(&Ok(Done::Ok)), "{answers:?}");
    let failed = answers.iter().position(Result::is_err).expect("a program fails") as u64 * 4;
    assert_eq!(answers[failed as usize / 4], Err(DeviceError::WriteFault { at: at(failed) }));
    assert_eq!(host.run(read(failed, 1)), Err(DeviceError::Uncorrectable { at: at(failed) }));
    let full = ChunkReport { state: ChunkState::Closed, units: 32, pointer: 32, first: Ppa(0), wear: 0 };
    assert_eq!(chunk(&mut host, 0), full);
    assert_eq!(notices(&mut host, 0), []);
}

/// F1: the chunk is closed early; it has the units that were accepted until then.
#[test]
fn a_failed_write_may_close_its_chunk() {
    let mut config = config();
    config.faults.program_fail = 0.5;
    let mut host = host_of(config);
    let failed = (0..32).step_by(4).find(|first| host.run(write(*first, 4)).is_err()).expect("one fails");
    let next = failed + 4;
    assert_eq!(host.run(write(next, 4)), open(next, OpenError::ClosedEarly));
    assert_eq!(host.run(write(0, 4)), Err(DeviceError::Overwrite { at: at(0) }));
    let early = ChunkReport {
        state: ChunkState::Closed,
        wear: 0,
        first: Ppa(0),
        units: next as u32,
        pointer: next as u32,
    };
    assert_eq!(chunk(&mut host, 0), early);
    let notice = Notice { number: 1, first: Ppa(0), reason: NoticeReason::ClosedEarly };
    assert_eq!(notices(&mut host, 0), [notice]);
    // A reset makes it free again.
    host.run(Op::PpaErase(places(0, 1))).unwrap();
    assert_eq!(chunk(&mut host, 0).state, ChunkState::Free);
    // What happens to it then is news, also if it has happened before.
    assert!((0..32).step_by(4).any(|first| host.run(write(first, 4)).is_err()));
    assert_eq!(notices(&mut host, 1), [Notice { number: 2, ..notice }]);
}

/// The same of the answer of the write itself, and the device finds the chunk closed after a power loss.
#[test]
fn a_chunk_that_was_closed_early_stays_closed() {
    let mut config = config();
    config.faults.program_fail = 1.0 / 3.0;
    let mut host = host_of(config.clone());
    let failed = (0..32u64).step_by(4).find_map(|first| Some((first, host.run(write(first, 4)).err()?)));
    let (failed, error) = failed.expect("one fails");
    assert_eq!(Err(error), open(failed, OpenError::ClosedEarly));
    let before = chunk(&mut host, 0);
    let media = host.device.cut(host.agenda.now(), |_| Torn::Absent);
    let options = DeviceOptions { seed: 1, track_contents: true, planted: None };
    (host.device, _) = Recovery::begin(&config, options, media).finish();
    assert_eq!(chunk(&mut host, 0), before);
    assert_eq!(host.run(write(failed + 4, 4)), open(failed + 4, OpenError::ClosedEarly));
}

/// F2: out of order, in its three forms.
#[test]
fn a_write_out_of_order_is_refused() {
    let mut host = host();
    assert_eq!(host.run(write(8, 4)), Err(DeviceError::OutOfOrder { at: at(8), expected: 0 }));
    host.run(write(0, 32)).unwrap();
    assert_eq!(host.run(write(28, 4)), Err(DeviceError::Overwrite { at: at(28) }), "a closed chunk");
    assert_eq!(host.run(write(0, 4)), Err(DeviceError::Overwrite { at: at(0) }));
}

/// C0: a reset that fails takes its chunk offline; from then on it is refused, and so are writes.
#[test]
fn a_failed_reset_takes_its_chunk_offline() {
    let mut config = config();
    config.faults.endurance = 1;
    let mut host = host_of(config);
    host.run(write(0, 8)).unwrap();
    host.run(Op::PpaErase(places(0, 1))).unwrap();
    host.run(write(0, 8)).unwrap();
    let offline = open(0, OpenError::Offline);
    assert_eq!(host.run(Op::PpaErase(places(0, 1))), offline);
    assert_eq!(host.run(Op::PpaErase(places(0, 1))), offline);
    assert_eq!(host.run(write(8, 4)), open(8, OpenError::Offline));
    let seen = chunk(&mut host, 0);
    assert_eq!((seen.state, seen.units, seen.wear), (ChunkState::Offline, 8, 255));
    assert!(matches!(host.run(read(0, 8)), Ok(Done::Units(_))), "the contents are still there");
    let notice = Notice { number: 1, first: Ppa(0), reason: NoticeReason::Offline };
    assert_eq!(notices(&mut host, 0), [notice]);
    assert_eq!(notices(&mut host, 1), []);
}

/// C1: there is nothing to reset.
#[test]
fn a_reset_of_a_free_chunk_is_invalid() {
    let mut host = host();
    assert_eq!(host.run(Op::PpaErase(places(3, 1))), open(3, OpenError::InvalidReset));
    host.run(write(32, 4)).unwrap();
    // The other chunk of the command is not reset either.
    assert_eq!(host.run(Op::PpaErase([Ppa(32), Ppa(64)].into())), open(64, OpenError::InvalidReset));
    assert_eq!(chunk(&mut host, 1).state, ChunkState::Open);
}

/// D0: a warning with the data, and a notice for the chunk.
#[test]
fn a_read_may_ask_for_a_refresh() {
    let mut config = config();
    config.faults.refresh = 1.0;
    let mut host = host_of(config);
    host.run(write(32, 8)).unwrap();
    let Ok(Done::Units(units)) = host.run(read(34, 4)) else { panic!("it can be read") };
    assert_eq!((units.data.len(), units.refresh), (4, places(34, 4).into_vec()));
    let notice = Notice { number: 1, first: Ppa(32), reason: NoticeReason::Refresh };
    assert_eq!(notices(&mut host, 0), [notice]);
    host.run(read(32, 1)).unwrap();
    assert_eq!(notices(&mut host, 1), [], "one notice says it all");
    assert_eq!(host.device.metrics().refresh_reads, 3);
}
