//! Copies inside of an open channel.

use super::{at, config, host, host_of, open, places, read, record, together, write};
use crate::harness::OneByOne;
use flashweir_core::command::Units;
use flashweir_core::oob::{OobRecord, Owner};
use flashweir_core::open::{OpenError, PpaCopy};
use flashweir_core::{DeviceError, Done, Op, Payload, Ppa};
use flashweir_device::config::OpenVersion;

fn copy_of(sources: Box<[Ppa]>, first: u64, records: Option<Vec<OobRecord>>) -> Op {
    let destinations = places(first, sources.len() as u64);
    Op::PpaCopy(Box::new(PpaCopy { sources, destinations, records: records.map(Into::into) }))
}

fn copy(from: u64, to: u64, count: u64) -> Op {
    copy_of(places(from, count), to, None)
}

fn units(host: &mut OneByOne, first: u64, count: u64) -> Units {
    match host.run(read(first, count)) {
        Ok(Done::Units(units)) => *units,
        other => panic!("{other:?}"),
    }
}

#[test]
fn a_copy_takes_contents_and_records_along() {
    let mut host = host();
    host.run(write(0, 8)).unwrap();
    let original = units(&mut host, 0, 8);
    // Sources may be in any order and of any pages.
    let sources: Box<[Ppa]> = [6, 0, 3, 3].map(Ppa).into();
    assert_eq!(host.run(copy_of(sources, 32, None)), Ok(Done::Ok));
    let copied = units(&mut host, 32, 4);
    for (nth, from) in [6, 0, 3, 3].into_iter().enumerate() {
        assert_eq!((&copied.data[nth], copied.records[nth]), (&original.data[from], original.records[from]));
    }
    let records: Vec<OobRecord> = (50..54).map(|ppa| record(Ppa(ppa))).collect();
    assert_eq!(host.run(copy_of(places(4, 4), 36, Some(records.clone()))), Ok(Done::Ok));
    let copied = units(&mut host, 36, 4);
    assert_eq!((&copied.data[..], copied.records), (&original.data[4..], records));
    // Nothing crossed the link, and the sources are still there.
    assert_eq!(units(&mut host, 0, 8), original);
    let metrics = host.device.metrics();
    assert_eq!((metrics.host_copies, metrics.host_units_copied, metrics.host_units_written), (2, 8, 8));
}

#[test]
fn destinations_obey_the_write_pointer() {
    let mut host = host();
    host.run(write(0, 8)).unwrap();
    let expected = DeviceError::OutOfOrder { at: at(36), expected: 0 };
    assert_eq!(host.run(copy(0, 36, 4)), Err(expected));
    assert_eq!(host.run(copy(0, 4, 4)), Err(DeviceError::Overwrite { at: at(4) }));
    assert_eq!(host.run(copy(0, 32, 3)), Err(DeviceError::Misaligned { at: at(32) }));
    assert_eq!(host.run(copy(6, 32, 4)), Err(DeviceError::NotWritten { at: at(8) }));
    let uneven = PpaCopy { sources: places(0, 4), destinations: places(32, 8), records: None };
    for op in [
        copy_of(Box::default(), 32, None),
        copy(0, 32, 65),
        Op::PpaCopy(Box::new(uneven)),
        copy_of(places(0, 4), 32, Some(vec![record(Ppa(0)); 3])),
        copy_of(
            places(0, 4),
            32,
            Some(vec![OobRecord { owner: Owner::Vpid(u64::MAX), ..record(Ppa(0)) }; 4]),
        ),
    ] {
        let answer = host.run(op.clone());
        assert!(matches!(answer, Err(DeviceError::InvalidField(_))), "{op:?}: {answer:?}");
    }
    // Within one chunk, too.
    assert_eq!(host.run(copy(0, 8, 8)), Ok(Done::Ok));
    assert_eq!(units(&mut host, 8, 8).data, units(&mut host, 0, 8).data);
}

/// Pages that are accepted behind a copy wait for it, and a reset of their chunk for both.
#[test]
fn pages_behind_a_copy_are_programmed_behind_it() {
    let mut host = host();
    host.run(write(0, 16)).unwrap();
    let behind = write(48, 8);
    let answers = together(&mut host, [copy(0, 32, 16), behind, read(32, 1)]);
    assert_eq!(answers[..2], [None, None]);
    assert_eq!(answers[2], Some(Err(DeviceError::NotWritten { at: at(32) })));
    let last = host.rest();
    assert_eq!(last, Some(Ok(Done::Ok)));
    host.device.audit();
    let all = units(&mut host, 32, 24);
    let tags: Vec<_> = (0..16).chain(0..8).map(Payload::Tag).collect();
    assert_eq!(all.data, tags);
    let answers = together(&mut host, [copy(0, 56, 8), Op::PpaErase(places(32, 1))]);
    assert_eq!(answers, [None, None]);
    host.rest();
    host.device.audit();
    assert_eq!(host.run(write(32, 4)), Ok(Done::Ok));
}

/// A copy has its sources when it was accepted, so that they may be reset at once.
#[test]
fn a_source_may_be_reset_behind_a_copy() {
    let mut host = host();
    host.run(write(0, 8)).unwrap();
    let original = units(&mut host, 0, 8);
    assert_eq!(together(&mut host, [copy(0, 32, 8), Op::PpaErase(places(0, 1))]), [None, None]);
    host.rest();
    host.device.audit();
    assert_eq!(units(&mut host, 32, 8), original);
    assert_eq!(host.run(read(0, 1)), Err(DeviceError::NotWritten { at: at(0) }));
}

#[test]
fn sources_are_units_that_the_flash_gives_back() {
    let mut config = config();
    config.open.cached_units = 4;
    let mut host = host_of(config.clone());
    host.run(write(0, 8)).unwrap();
    assert_eq!(host.run(copy(4, 32, 4)), open(4, OpenError::TooRecent));
    assert_eq!(host.run(copy(0, 32, 4)), Ok(Done::Ok));
    config.open.version = OpenVersion::V12;
    let mut host = host_of(config);
    host.run(write(0, 8)).unwrap();
    assert!(matches!(host.run(copy(0, 32, 4)), Err(DeviceError::NotSupported(_))));
}

/// The page of a lost source is filled with padding, so that no record claims what is not there.
#[test]
fn a_source_that_is_lost_leaves_padding() {
    let mut config = config();
    (config.faults.program_fail, config.faults.chunk_goes_on) = (0.4, 1.0);
    let mut host = host_of(config);
    let lost = (0..100u64).step_by(4).find(|first| {
        let chunk = first / 32 * 32;
        let _ = host.run(write(*first, 4));
        chunk == 0 && matches!(host.run(read(*first, 1)), Err(DeviceError::Uncorrectable { .. }))
    });
    let lost = lost.expect("one of the first eight programs fails");
    for chunk in 1..8 {
        let to = 32 * chunk;
        if host.run(copy(lost, to, 4)) == Err(DeviceError::Uncorrectable { at: at(lost) })
            && let Ok(Done::Units(units)) = host.run(read(to, 4))
        {
            assert!(units.records.iter().all(|record| record.owner == Owner::Pad));
            return;
        }
    }
    panic!("no copy was programmed");
}
