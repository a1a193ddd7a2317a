//! Chunks: geometry and reports, write units, write pointers, and the units that the flash does not give back yet.

use super::{at, config, host, host_of, open, places, read, record, together, write};
use crate::harness::OneByOne;
use flashweir_core::command::Units;
use flashweir_core::open::{ChunkReport, ChunkState, OpenError, OpenGeometry, OpenInterface};
use flashweir_core::{DeviceError, Done, Op, Payload, Ppa};
use flashweir_device::DeviceConfig;
use flashweir_device::config::{ChunkSpan, OpenVersion, PointerMove};

fn geometry(host: &mut OneByOne) -> OpenGeometry {
    match host.run(Op::OpenGeometry) {
        Ok(Done::Geometry(geometry)) => *geometry,
        other => panic!("{other:?}"),
    }
}

fn report(host: &mut OneByOne, first: u32, count: u32) -> Vec<ChunkReport> {
    let command = host.open(Op::ChunkReport { first, count });
    match host.submit(command) {
        Some(Ok(Done::Chunks(chunks))) => chunks.into_vec(),
        other => panic!("{other:?}"),
    }
}

/// State and write pointer of chunk 0.
fn chunk(host: &mut OneByOne) -> (ChunkState, u32) {
    let chunk = report(host, 0, 1)[0];
    (chunk.state, chunk.pointer)
}

/// Chunks over both planes of a die: 16 pages of four units, write units of a page of each.
fn wide() -> DeviceConfig {
    let mut config = config();
    (config.open.chunk, config.open.write_pages) = (ChunkSpan::Die, 2);
    config
}

#[test]
fn geometry_is_reported_in_units() {
    let mut narrow = host();
    let shape = narrow.device.config().geometry.clone();
    let reported = geometry(&mut narrow);
    let expected = OpenGeometry {
        interface: OpenInterface::V20,
        groups: shape.channels,
        parallel_units: shape.chips_per_channel * shape.dies_per_chip * shape.planes_per_die,
        chunks: 4,
        chunk_units: 32,
        unit_bytes: 4096,
        write_min: 4,
        write_best: 4,
        cached_units: 0,
        open_max: 0,
        places_max: 64,
    };
    assert_eq!(reported, expected);
    let mut config = wide();
    config.open.write_best_pages = 4;
    (config.open.cached_units, config.open.max_open) = (24, 9);
    let expected = OpenGeometry {
        parallel_units: expected.parallel_units / 2,
        chunk_units: 64,
        write_min: 8,
        write_best: 16,
        cached_units: 24,
        open_max: 9,
        ..expected
    };
    assert_eq!(geometry(&mut host_of(config)), expected);
}

#[test]
fn a_report_follows_a_chunk_from_free_to_closed_and_back() {
    let mut config = config();
    config.faults.endurance = 0;
    let mut host = host_of(config);
    let free = ChunkReport { state: ChunkState::Free, wear: 0, first: Ppa(32), units: 32, pointer: 0 };
    assert_eq!(report(&mut host, 1, 1), [free]);
    host.run(write(32, 8)).unwrap();
    let part = ChunkReport { state: ChunkState::Open, pointer: 8, ..free };
    host.run(write(40, 24)).unwrap();
    let full = ChunkReport { state: ChunkState::Closed, pointer: 32, ..free };
    assert_eq!(report(&mut host, 1, 1), [full]);
    host.run(Op::PpaErase(places(32, 1))).unwrap();
    assert_eq!(report(&mut host, 1, 1), [ChunkReport { wear: 1, ..free }]);
    host.run(write(32, 8)).unwrap();
    assert_eq!(report(&mut host, 1, 1), [ChunkReport { wear: 1, ..part }]);
    let all = host.device.geometry().open.chunks;
    assert_eq!(report(&mut host, 0, all).len() as u32, all);
    for (first, count) in [(0, 0), (all, 1), (all - 1, 2), (u32::MAX, u32::MAX)] {
        let answer = host.run(Op::ChunkReport { first, count });
        assert!(matches!(answer, Err(DeviceError::InvalidField(_))), "{first}, {count}: {answer:?}");
    }
}

#[test]
fn wear_is_a_part_of_the_endurance_where_one_is_known() {
    let mut config = config();
    config.faults.endurance = 10;
    let mut host = host_of(config);
    for _ in 0..4 {
        host.run(write(0, 4)).unwrap();
        host.run(Op::PpaErase(places(0, 1))).unwrap();
    }
    assert_eq!(report(&mut host, 0, 1)[0].wear, 102);
}

#[test]
fn a_chunk_over_the_planes_is_written_in_both_at_once() {
    let mut host = host_of(wide());
    host.run(write(0, 8)).unwrap();
    let one = host.agenda.now();
    let config = host.device.config().clone();
    let transfer = flashweir_core::Duration::of_transfer(2 * 16384, config.timing.bus_bytes_per_s);
    assert!(one.as_nanos() < (transfer + config.timing.program.of(0) * 2).as_nanos(), "one after the other");
    assert_eq!(host.device.nand_metrics().host_multi_plane_programs, 1);
    assert_eq!(host.run(write(8, 4)), Err(DeviceError::Misaligned { at: at(8) }));
    assert_eq!(host.run(write(12, 8)), Err(DeviceError::Misaligned { at: at(12) }));
    assert_eq!(host.run(write(16, 8)), Err(DeviceError::OutOfOrder { at: at(16), expected: 8 }));
    host.run(write(8, 56)).unwrap();
    assert_eq!(chunk(&mut host), (ChunkState::Closed, 64));
    // Units 0 to 3 are in plane 0, units 4 to 7 in plane 1, of the same page.
    let geometry = host.device.geometry();
    let blocks: Vec<_> = (0..16).step_by(4).map(|ppa| geometry.open_page(Ppa(ppa)).0).collect();
    assert_eq!((blocks[0].page, blocks[1].page, blocks[2].page), (0, 0, 1));
    assert_eq!(blocks[0].block, blocks[2].block);
    assert_ne!(blocks[0].block, blocks[1].block);
    // A reset erases both blocks, together.
    let before = host.agenda.now();
    host.run(Op::PpaErase(places(9, 1))).unwrap();
    assert_eq!(host.device.metrics().erases, 2);
    assert!(host.agenda.now().saturating_since(before) < config.timing.erase * 2);
    assert_eq!(chunk(&mut host), (ChunkState::Free, 0));
}

/// An indirection unit of 64 KiB: four pages of a block.
#[test]
fn a_large_indirection_unit_is_written_as_a_whole() {
    let mut config = config();
    config.open.write_pages = 4;
    let mut host = host_of(config);
    assert_eq!(geometry(&mut host).write_min, 16);
    assert_eq!(host.run(write(0, 4)), Err(DeviceError::Misaligned { at: at(0) }));
    assert_eq!(host.run(write(0, 24)), Err(DeviceError::Misaligned { at: at(16) }));
    assert_eq!(host.run(write(0, 32)), Ok(Done::Ok));
    assert!(matches!(host.run(read(15, 2)), Ok(Done::Units(_))));
}

#[test]
fn a_write_pointer_moves_at_acceptance_or_when_programs_have_ended() {
    for (pointer, pipelined) in [(PointerMove::Accepted, true), (PointerMove::Programmed, false)] {
        let mut config = config();
        config.open.pointer = pointer;
        let mut host = host_of(config);
        host.run(write(0, 4)).unwrap();
        assert_eq!(together(&mut host, [write(4, 8)]), [None]);
        assert_eq!(chunk(&mut host), (ChunkState::Open, if pipelined { 12 } else { 4 }));
        let second = together(&mut host, [write(12, 4)]);
        match pipelined {
            true => assert_eq!(second, [None]),
            false => assert_eq!(second, [Some(Err(DeviceError::OutOfOrder { at: at(12), expected: 4 }))]),
        }
        // What is being written is not written again, wherever the pointer is.
        let again = together(&mut host, [write(4, 8)]);
        assert_eq!(again, [Some(Err(DeviceError::Overwrite { at: at(4) }))]);
        // Other chunks do not wait.
        assert_eq!(together(&mut host, [write(32, 4)]), [None]);
        host.rest();
        assert_eq!(chunk(&mut host), (ChunkState::Open, if pipelined { 16 } else { 12 }));
        assert_eq!(host.run(write(if pipelined { 16 } else { 12 }, 4)), Ok(Done::Ok));
    }
}

#[test]
fn chunks_are_open_up_to_a_limit() {
    let mut config = config();
    config.open.max_open = 2;
    let mut host = host_of(config);
    host.run(write(0, 4)).unwrap();
    host.run(write(32, 4)).unwrap();
    let refused = Err(DeviceError::TooManyOpen { limit: 2 });
    assert_eq!(host.run(write(64, 4)), refused);
    assert_eq!(host.run(write(4, 4)), Ok(Done::Ok), "an open chunk goes on");
    // A full chunk is open no more, nor is one that was reset.
    host.run(write(8, 24)).unwrap();
    assert_eq!(host.run(write(64, 4)), Ok(Done::Ok));
    assert_eq!(host.run(write(96, 4)), refused);
    host.run(Op::PpaErase(places(32, 1))).unwrap();
    assert_eq!(host.run(write(96, 4)), Ok(Done::Ok));
}

#[test]
fn with_ocssd_2_0_the_last_units_of_an_open_chunk_are_not_read() {
    let mut config = config();
    config.open.cached_units = 6;
    let mut host = host_of(config);
    host.run(write(0, 8)).unwrap();
    assert!(matches!(host.run(read(0, 2)), Ok(Done::Units(_))));
    assert_eq!(host.run(read(0, 3)), open(2, OpenError::TooRecent));
    host.run(write(8, 4)).unwrap();
    assert!(matches!(host.run(read(0, 6)), Ok(Done::Units(_))));
    // A full chunk is read to its end.
    host.run(write(12, 20)).unwrap();
    assert!(matches!(host.run(read(26, 6)), Ok(Done::Units(_))));
}

#[test]
fn with_ocssd_1_2_the_device_serves_the_last_units_from_its_memory() {
    let mut config = config();
    (config.open.cached_units, config.open.version) = (6, OpenVersion::V12);
    let mut host = host_of(config);
    let answers = together(&mut host, [write(0, 8), read(2, 6), read(1, 1)]);
    assert_eq!(answers[0], None, "the write is under way");
    let expected = Units {
        data: (2..8).map(Payload::Tag).collect(),
        records: (2..8).map(|ppa| record(Ppa(ppa))).collect(),
        refresh: Vec::new(),
    };
    assert_eq!(answers[1], Some(Ok(Done::Units(Box::new(expected)))));
    assert_eq!(answers[2], Some(Err(DeviceError::NotWritten { at: at(1) })), "too far behind the pointer");
    host.rest();
    // Of these four only unit 1 is read from the flash.
    assert!(matches!(host.run(read(1, 4)), Ok(Done::Units(_))));
    let metrics = host.device.metrics();
    assert_eq!((metrics.pages_read, metrics.buffer_read_hits), (1, 9));
}

#[test]
fn an_open_channel_is_configured_within_bounds() {
    let refused = |change: &dyn Fn(&mut DeviceConfig), begin: &str| {
        let mut config = wide();
        change(&mut config);
        let error = config.validate().unwrap_err();
        assert!(error.starts_with(begin), "{error}");
    };
    wide().validate().unwrap();
    for pages in [0, 1, 3, 6, 32] {
        refused(&|config| config.open.write_pages = pages, "open.write_pages = ");
    }
    refused(&|config| config.open.write_best_pages = 3, "open.write_best_pages = 3: expected");
    refused(&|config| config.open.cached_units = 65, "open.cached_units = 65: expected 0 to 64");
    let limited = |config: &mut DeviceConfig| {
        (config.open.version, config.open.max_open) = (OpenVersion::V12, 1);
    };
    refused(&limited, "open.max_open = 1");
    refused(&|config| config.faults.refresh = 1.5, "faults.refresh = 1.5");
    let mut paged = flashweir_device::presets::preset("sata-mlc").unwrap();
    paged.open.write_pages = 2;
    assert!(paged.validate().unwrap_err().starts_with("[open] = not empty"));
    paged.open.write_pages = 1;
    paged.faults.chunk_goes_on = 0.5;
    assert!(paged.validate().unwrap_err().starts_with("faults.chunk_goes_on = 0.5"));
}

/// All LUNs of the paper's device program both planes at once: 32 KiB in 1.575 ms, and the bus of a LUN's two pages before it.
#[test]
fn the_device_of_qblke_programs_as_fast_as_its_flash() {
    let mut host = host_of(flashweir_device::presets::preset("qblke").unwrap());
    let geometry = host.device.geometry().clone();
    let chunk_units = u64::from(geometry.chunk_units());
    let mut units = 0;
    for round in 0..2 {
        for parallel_unit in 0..u64::from(geometry.parallel_units()) {
            let chunk = parallel_unit * u64::from(geometry.blocks_per_plane);
            assert_eq!(together(&mut host, [write(chunk * chunk_units + 64 * round, 64)]), [None]);
            units += 64;
        }
    }
    host.rest();
    let bytes_per_s = (units * geometry.unit_bytes) as f64 / (host.agenda.now().as_nanos() as f64 / 1e9);
    println!("{bytes_per_s:.0} bytes per second");
    assert!((2.45e9..2.67e9).contains(&bytes_per_s), "{bytes_per_s}");
    assert_eq!(host.device.nand_metrics().multi_plane_commands, units / 8);
}
