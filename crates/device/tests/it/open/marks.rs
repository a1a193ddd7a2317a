//! The table of bad blocks of OCSSD 1.2.

use super::{config, host, host_of, open, places, write};
use crate::harness::OneByOne;
use flashweir_core::open::{BlockMark, MarkBlocks, OpenError};
use flashweir_core::{DeviceError, Done, Op, Ppa};
use flashweir_device::DeviceConfig;
use flashweir_device::config::{ChunkSpan, OpenVersion};

fn device() -> DeviceConfig {
    let mut config = config();
    config.open.version = OpenVersion::V12;
    config
}

fn marks(host: &mut OneByOne, parallel_unit: u32) -> Vec<BlockMark> {
    match host.run(Op::BlockMarks { parallel_unit }) {
        Ok(Done::Marks(marks)) => marks.into_vec(),
        other => panic!("{other:?}"),
    }
}

fn mark(first: u64, mark: BlockMark) -> Op {
    Op::MarkBlocks(Box::new(MarkBlocks { places: places(first, 1), mark }))
}

#[test]
fn a_host_reserves_blocks_and_gives_them_back() {
    let mut host = host_of(device());
    assert_eq!(marks(&mut host, 0), [BlockMark::Good; 4]);
    let digest = host.device.media().digest();
    host.run(mark(40, BlockMark::HostReserved)).unwrap();
    assert_eq!(marks(&mut host, 0)[1], BlockMark::HostReserved);
    assert_ne!(host.device.media().digest(), digest, "the mark is on the medium");
    assert_eq!(host.run(write(32, 4)), Ok(Done::Ok), "what a host reserves it may write");
    host.run(Op::PpaErase(places(32, 1))).unwrap();
    host.run(mark(63, BlockMark::Good)).unwrap();
    assert_eq!(
        (marks(&mut host, 0), marks(&mut host, 1)),
        (vec![BlockMark::Good; 4], vec![BlockMark::Good; 4])
    );
}

#[test]
fn a_bad_block_stays_bad() {
    let mut host = host_of(device());
    host.run(mark(32, BlockMark::HostReserved)).unwrap();
    host.run(mark(32, BlockMark::GrownBad)).unwrap();
    assert_eq!(marks(&mut host, 0)[1], BlockMark::GrownBad);
    assert_eq!(host.run(write(32, 4)), open(32, OpenError::Offline));
    assert_eq!(host.run(Op::PpaErase(places(32, 1))), open(32, OpenError::Offline));
    for op in [mark(32, BlockMark::Good), mark(32, BlockMark::GrownBad), mark(0, BlockMark::FactoryBad)] {
        let answer = host.run(op.clone());
        assert!(matches!(answer, Err(DeviceError::InvalidField(_))), "{op:?}: {answer:?}");
    }
    let units = host.device.geometry().parallel_units();
    assert!(matches!(host.run(Op::BlockMarks { parallel_unit: units }), Err(DeviceError::InvalidField(_))));
    let twice = MarkBlocks { places: [Ppa(64), Ppa(65)].into(), mark: BlockMark::GrownBad };
    assert_eq!(host.run(Op::MarkBlocks(Box::new(twice))), Ok(Done::Ok));
}

#[test]
fn blocks_from_the_factory_and_blocks_that_wear_out_are_in_the_table() {
    let mut config = device();
    (config.faults.factory_bad, config.faults.endurance) = (0.25, 1);
    let mut host = host_of(config);
    let units = host.device.geometry().parallel_units();
    let all: Vec<BlockMark> = (0..units).flat_map(|unit| marks(&mut host, unit)).collect();
    let bad =
        all.iter().position(|mark| *mark == BlockMark::FactoryBad).expect("the factory left one") as u64;
    assert_eq!(host.run(write(32 * bad, 4)), open(32 * bad, OpenError::Offline));
    let good = all.iter().position(|mark| *mark == BlockMark::Good).expect("most are good") as u64;
    host.run(Op::PpaErase(places(32 * good, 1))).expect("OCSSD 1.2 erases free blocks, too");
    assert_eq!(host.run(Op::PpaErase(places(32 * good, 1))), open(32 * good, OpenError::Offline));
    assert_eq!(marks(&mut host, good as u32 / 4)[good as usize % 4], BlockMark::GrownBad);
}

/// Where a chunk has a block of each plane, the table has them one behind the other, and one bad block takes the chunk offline.
#[test]
fn planes_of_a_chunk_have_marks_of_their_own() {
    let mut config = device();
    (config.open.chunk, config.open.write_pages) = (ChunkSpan::Die, 2);
    let mut host = host_of(config);
    host.run(mark(64 + 4, BlockMark::GrownBad)).unwrap();
    let seen = marks(&mut host, 0);
    let bad: Vec<usize> = (0..seen.len()).filter(|nth| seen[*nth].is_bad()).collect();
    assert_eq!((seen.len(), bad), (8, vec![3]), "block 1, plane 1");
    assert_eq!(host.run(write(64, 8)), open(64, OpenError::Offline));
    assert_eq!(host.run(write(0, 8)), Ok(Done::Ok));
}

#[test]
fn ocssd_2_0_has_no_table() {
    let mut host = host();
    for op in [Op::BlockMarks { parallel_unit: 0 }, mark(0, BlockMark::HostReserved)] {
        assert!(matches!(host.run(op), Err(DeviceError::NotSupported(_))));
    }
    let mut host = host_of(device());
    for op in [Op::ChunkReport { first: 0, count: 1 }, Op::ChunkNotices { after: 0 }] {
        assert!(matches!(host.run(op), Err(DeviceError::NotSupported(_))));
    }
}
