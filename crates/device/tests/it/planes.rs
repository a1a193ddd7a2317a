//! Which pages of dynamic allocation's shared queue are programmed together.

use crate::harness::Host;
use flashweir_core::{Bytes, Duration, Lba, Op};
use flashweir_device::config::{
    BufferMode, DeviceConfig, FaultConfig, PageTimes, SuspendConfig, Translation,
};
use flashweir_device::presets::preset;

const PROGRAM: Duration = Duration::from_micros(500);

/// One die of two planes; a page holds one unit, and a write completes when it is on the medium.
fn one_die() -> DeviceConfig {
    let mut config = preset("sata-mlc").expect("a preset");
    let g = &mut config.geometry;
    (g.channels, g.chips_per_channel, g.dies_per_chip, g.planes_per_die) = (1, 1, 1, 2);
    (g.blocks_per_plane, g.pages_per_block) = (64, 64);
    (g.page_bytes, g.unit_bytes) = (Bytes(4096), Bytes(4096));
    config.ftl.over_provisioning = 0.4;
    config.timing.program = PageTimes::Same(PROGRAM);
    config.buffer.mode = BufferMode::WriteThrough;
    config.faults = FaultConfig::default();
    config
}

/// Number of programs of host data so far, and of those in two planes.
fn programs(host: &Host) -> (u64, u64) {
    let metrics = host.device.nand_metrics();
    (metrics.host_programs, metrics.host_multi_plane_programs)
}

#[test]
fn pages_that_wait_go_in_pairs_and_none_waits_for_another() {
    let mut host = Host::new(&one_die(), 1);
    for lone in 1..=5 {
        let begin = host.agenda.now();
        host.write(lone, 1, false);
        host.rest();
        assert_eq!(programs(&host), (lone, 0), "nothing came beside it");
        let took = host.agenda.now().since(begin);
        assert!(took < PROGRAM + PROGRAM / 2, "{took:?} is more than one program");
    }
    // Five pages have left one plane behind. The first of these goes there at once, while the other 20 wait.
    for lpn in 10..31 {
        host.write(lpn, 1, false);
    }
    host.rest();
    assert_eq!(programs(&host), (5 + 1 + 10, 10));
    assert_eq!(host.mismatch(), None);
}

/// Pages in the shared queue were not seen, so each first page of a word line got filler as long as a FLUSH waited: half of all pages.
#[test]
fn regression_a_flush_does_not_fill_word_lines_that_data_will_fill() {
    for (handles, demand) in [(1, false), (3, false), (1, true)] {
        let mut config = one_die();
        config.geometry.channels = 2;
        config.buffer = preset("sata-mlc").expect("a preset").buffer;
        config.faults.paired_page_loss = true;
        config.ftl.placement.handles = handles;
        if demand {
            config.ftl.translation = Translation::DemandCached;
        }
        let mut host = Host::new(&config, 1);
        for lpn in 0..2_000 {
            host.write(lpn, 1, false);
        }
        host.wait(0);
        host.submit(Op::Flush, false);
        host.wait(0);
        let filler = host.device.metrics().filler_units;
        let planes = u64::from(host.device.geometry().planes());
        assert!(filler <= 2 * planes, "{filler} units of filler for 2,000 units");
        host.check("after a FLUSH");
    }
}

/// With reads that always wait, a suspended program never went on, and with it no FLUSH ended.
#[test]
fn regression_a_suspended_program_ends_while_reads_keep_coming() {
    let mut config = one_die();
    config.timing.suspend = Some(SuspendConfig {
        program: true,
        erase: true,
        latency: Duration::from_micros(5),
        max_per_operation: 2,
    });
    let mut host = Host::new(&config, 1);
    for lpn in 0..16 {
        host.write(lpn, 1, false);
    }
    host.wait(0);
    let per_unit = host.device.geometry().lbas_per_unit;
    let read = |nth: u64| Op::Read { lba: Lba(nth % 16 * per_unit), blocks: per_unit as u32 };
    let begun = host.completed;
    host.write(20, 1, false);
    let write = begun + 1;
    for nth in 0..2_000 {
        host.submit(read(nth), false);
        host.wait(5);
        if host.answered.contains(&write) {
            assert!(nth > 4, "it was suspended");
            return;
        }
    }
    panic!("the write did not end during 2,000 reads");
}
