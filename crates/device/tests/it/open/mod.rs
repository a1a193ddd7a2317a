//! The open channel: which commands it refuses, how it answers, and what its commands cost.

mod chunks;
mod copy;
mod counts;
mod marks;
mod media_errors;

use crate::harness::OneByOne;
use flashweir_core::command::{OPEN_NAMESPACE, OutOfRange, PpaWrite, Units};
use flashweir_core::oob::{OobRecord, Owner};
use flashweir_core::open::{OpenError, PpaCopy};
use flashweir_core::{Address, Command, Data, DeviceError, Done, Lba, Lpn, Op, Payload, Ppa};
use flashweir_device::DeviceConfig;
use flashweir_device::config::{BufferConfig, FirmwareKind, FtlConfig, OrderConfig};
use flashweir_device::presets::preset;

/// Pages of four units of 4 KiB, eight in a block.
fn config() -> DeviceConfig {
    let mut config = preset("sata-mlc").unwrap();
    config.firmware = FirmwareKind::OpenChannel;
    (config.geometry.pages_per_block, config.geometry.blocks_per_plane) = (8, 4);
    config.geometry.page_bytes = flashweir_core::Bytes::kib(16);
    (config.ftl, config.buffer, config.order) =
        (FtlConfig::default(), BufferConfig::default(), OrderConfig::default());
    config.faults.paired_page_loss = false;
    config
}

fn host() -> OneByOne {
    host_of(config())
}

fn host_of(config: DeviceConfig) -> OneByOne {
    OneByOne::new(config, OPEN_NAMESPACE)
}

fn at(ppa: u64) -> Address {
    Address::Ppa(Ppa(ppa))
}

/// An error that only an open channel has.
fn open(ppa: u64, what: OpenError) -> Result<Done, DeviceError> {
    Err(DeviceError::Open { at: at(ppa), what })
}

/// Submits commands without waiting; the answers that come at once.
fn together<const N: usize>(host: &mut OneByOne, ops: [Op; N]) -> [Option<Result<Done, DeviceError>>; N] {
    ops.map(|op| {
        let command = host.open(op);
        host.submit(command)
    })
}

fn places(first: u64, count: u64) -> Box<[Ppa]> {
    (first..first + count).map(Ppa).collect()
}

fn record(ppa: Ppa) -> OobRecord {
    OobRecord { owner: Owner::Lpn(Lpn(1000 + ppa.0)), seq: 7, member: None }
}

fn write(first: u64, count: u64) -> Op {
    let ppas = places(first, count);
    let records = ppas.iter().map(|ppa| record(*ppa)).collect();
    let data = Data::Units((0..count).map(Payload::Tag).collect());
    PpaWrite { blocks: 8 * count as u32, ppas, records, data }.into()
}

fn read(first: u64, count: u64) -> Op {
    Op::PpaRead { ppas: places(first, count), blocks: 8 * count as u32 }
}

#[test]
fn what_is_programmed_is_read_with_its_records_until_it_is_erased() {
    let mut host = host();
    assert_eq!(host.run(write(0, 8)), Ok(Done::Ok));
    assert_eq!(host.run(Op::Flush), Ok(Done::Ok));
    let data = (0..8).map(Payload::Tag).collect();
    let records = (0..8).map(|ppa| record(Ppa(ppa))).collect();
    assert_eq!(host.run(read(0, 8)), Ok(Done::Units(Box::new(Units { data, records, refresh: Vec::new() }))));
    assert_eq!(host.run(read(7, 2)), Err(DeviceError::NotWritten { at: Address::Ppa(Ppa(8)) }));
    // Any unit of a block may name it.
    assert_eq!(host.run(Op::PpaErase(places(5, 1))), Ok(Done::Ok));
    assert_eq!(host.run(read(0, 1)), Err(DeviceError::NotWritten { at: Address::Ppa(Ppa(0)) }));
    assert_eq!(host.run(write(0, 4)), Ok(Done::Ok));
    assert_eq!((host.device.metrics().erases, host.device.metrics().pages_programmed), (1, 3));
}

#[test]
fn pages_are_programmed_in_order_and_once() {
    let mut host = host();
    assert_eq!(host.run(write(4, 4)), Err(DeviceError::OutOfOrder { at: at(4), expected: 0 }));
    assert_eq!(host.run(write(0, 4)), Ok(Done::Ok));
    assert_eq!(host.run(write(0, 4)), Err(DeviceError::Overwrite { at: at(0) }));
    assert_eq!(host.run(write(8, 4)), Err(DeviceError::OutOfOrder { at: at(8), expected: 4 }));
    assert_eq!(host.run(write(4, 2)), Err(DeviceError::Misaligned { at: at(4) }));
    assert_eq!(host.run(write(5, 4)), Err(DeviceError::Misaligned { at: at(5) }));
    // The pages of one vector count for each other: the second one repeats the first.
    let mut twice = [places(4, 4), places(4, 4)].concat();
    let op = |ppas: &[Ppa]| {
        Op::from(PpaWrite {
            blocks: 8 * ppas.len() as u32,
            records: ppas.iter().map(|ppa| record(*ppa)).collect(),
            data: Data::Zero,
            ppas: ppas.into(),
        })
    };
    assert_eq!(host.run(op(&twice)), Err(DeviceError::Overwrite { at: at(4) }));
    twice[4..].copy_from_slice(&places(8, 4));
    assert_eq!(host.run(op(&twice)), Ok(Done::Ok));
}

#[test]
fn a_block_that_is_to_be_erased_takes_no_page() {
    let mut host = host();
    let commands =
        [write(0, 4), Op::PpaErase(places(0, 1)), write(4, 4), read(0, 1), Op::PpaErase(places(3, 1))];
    let answers = together(&mut host, commands);
    assert_eq!(answers[..2], [None, None]);
    assert_eq!(answers[2], Some(Err(DeviceError::Overwrite { at: at(4) })));
    assert_eq!(answers[3], Some(Err(DeviceError::NotWritten { at: at(0) })));
    assert!(matches!(answers[4], Some(Err(DeviceError::InvalidField(_)))));
    // Both commands end, the program first, and the block is empty again.
    assert_eq!(host.run(Op::Flush), Ok(Done::Ok));
    assert_eq!(host.run(write(0, 4)), Ok(Done::Ok));
}

#[test]
fn malformed_commands_are_refused_and_change_nothing() {
    let mut host = host();
    host.run(write(0, 4)).unwrap();
    let units = host.device.geometry().physical_units();
    let digest = host.device.media().digest();
    let far = DeviceError::from(OutOfRange { at: Address::Ppa(Ppa(units)), count: 1, capacity: units });
    for op in [read(units, 1), write(units, 4), Op::PpaErase(places(units, 1))] {
        assert_eq!(host.run(op), Err(far.clone()));
    }
    let record = record(Ppa(4));
    let wide = OobRecord { owner: Owner::Vpid(u64::MAX), ..record };
    let with = |records: Vec<OobRecord>, data| {
        Op::from(PpaWrite { ppas: places(4, 4), blocks: 32, records: records.into(), data })
    };
    for op in [
        Op::PpaRead { ppas: Box::default(), blocks: 0 },
        read(0, 65),
        Op::PpaRead { ppas: places(0, 2), blocks: 8 },
        Op::PpaErase([Ppa(0), Ppa(1)].into()),
        with(vec![record; 3], Data::Zero),
        with(vec![wide; 4], Data::Zero),
        with(vec![record; 4], Data::Bytes(vec![0; 512].into())),
        with(vec![record; 4], Data::Units((0..5).map(Payload::Tag).collect())),
    ] {
        let answer = host.run(op.clone());
        assert!(matches!(answer, Err(DeviceError::InvalidField(_))), "{op:?}: {answer:?}");
    }
    let lba = Lba(0);
    for op in [
        Op::Read { lba, blocks: 8 },
        Op::Trim { lba, blocks: 8 },
        Op::WriteZeroes { lba, blocks: 8 },
        Op::Write { lba, blocks: 8, data: Data::Zero },
        Op::Barrier,
    ] {
        assert!(matches!(host.run(op), Err(DeviceError::NotSupported(_))));
    }
    let answer = host.submit(Command::new(99, write(4, 4)));
    assert!(matches!(answer, Some(Err(DeviceError::InvalidField(_)))), "another namespace: {answer:?}");
    assert_eq!(host.device.media().digest(), digest);
    assert_eq!(host.run(write(4, 4)), Ok(Done::Ok), "the write pointer has not moved");
}

#[test]
fn commands_cost_their_places_records_and_data_on_the_link() {
    let bytes = |op| {
        let command = Command::new(1, op);
        (command.bytes_down(), command.bytes_up())
    };
    assert_eq!(bytes(write(0, 4)), (4 * (8 + 32 + 4096), 0));
    assert_eq!(bytes(read(0, 3)), (3 * 8, 3 * (32 + 4096)));
    assert_eq!(bytes(Op::PpaErase(places(0, 2))), (16, 0));
    let copy = |records| {
        Op::PpaCopy(Box::new(PpaCopy { sources: places(0, 4), destinations: places(32, 4), records }))
    };
    assert_eq!(bytes(copy(None)), (2 * 4 * 8, 0));
    assert_eq!(bytes(copy(Some(vec![record(Ppa(0)); 4].into()))), (2 * 4 * 8 + 4 * 32, 0));
    assert_eq!(bytes(Op::OpenGeometry), (0, 4096));
    assert_eq!(bytes(Op::ChunkReport { first: 0, count: 3 }), (0, 96));
    assert_eq!(bytes(Op::ChunkNotices { after: 0 }), (0, 4096));
}

#[test]
fn a_device_of_this_kind_has_nothing_of_a_page_map() {
    config().validate().unwrap();
    let error = config().check_page_namespace().unwrap_err();
    assert!(error.starts_with("firmware = open-channel: expected page"), "{error}");
    let mut buffered = config();
    buffered.buffer.capacity = flashweir_core::Bytes::mib(7);
    assert!(buffered.validate().unwrap_err().starts_with("[buffer] = not empty"));
    let mut paired = config();
    paired.faults.paired_page_loss = true;
    assert!(paired.validate().unwrap_err().starts_with("faults.paired_page_loss"));
}
