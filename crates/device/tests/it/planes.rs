//! Which pages of dynamic allocation's shared queue are programmed together.

use crate::harness::Host;
use flashweir_core::{Bytes, Duration};
use flashweir_device::config::{BufferMode, DeviceConfig, FaultConfig, PageTimes};
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
