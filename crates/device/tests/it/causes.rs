//! Why GC of a page map has to move units (append-segments §7.4): logs that are not aligned with blocks, and metadata written in place.

use crate::harness::Host;
use flashweir_core::Op;
use flashweir_device::config::{Allocation, DeviceConfig};
use flashweir_device::presets::preset;

/// Units of a segment of the host: two blocks, as in figures 5 and 6 of the AMF paper.
const SEGMENT: u64 = 32;
/// Data that stay: fourteen segments. Behind them four that are written again and again, and pages of metadata.
const STAYS: u64 = 14 * SEGMENT;
const LOG: std::ops::Range<u64> = STAYS..STAYS + 4 * SEGMENT;
const METADATA: std::ops::Range<u64> = LOG.end..LOG.end + SEGMENT;

/// One die of 48 blocks of 16 pages.
fn config() -> DeviceConfig {
    let mut config = preset("amf-page").expect("a preset");
    (config.geometry.channels, config.geometry.chips_per_channel) = (1, 1);
    (config.geometry.blocks_per_plane, config.geometry.pages_per_block) = (48, 16);
    config.buffer.capacity = flashweir_core::Bytes::kib(64);
    config.ftl.allocation = Allocation::Static;
    config.ftl.over_provisioning = 0.2;
    config
}

/// Units that GC moved, and how many of them TRIM was the cause of, in a run.
fn moves(run: impl FnOnce(&mut Host)) -> [u64; 2] {
    let mut host = Host::new(&config(), 1);
    run(&mut host);
    host.submit(Op::Flush, false);
    host.check("written");
    let metrics = host.device.metrics();
    [metrics.gc_units_moved, metrics.gc_moves_after_trims]
}

fn write(host: &mut Host, lpn: u64) {
    host.write(lpn, 1, false);
    host.wait(4);
}

/// The log is written round and round; each segment is deallocated before.
fn rewrite_log(host: &mut Host) {
    for segment in (0..8).flat_map(|_| LOG.step_by(SEGMENT as usize)) {
        host.trim(segment, SEGMENT, false);
        (segment..segment + SEGMENT).for_each(|lpn| write(host, lpn));
    }
}

/// All that a full plane could collect was deallocated, and the records of that waited in the log for a command that wants them.
#[test]
fn regression_a_full_plane_asks_for_the_log_of_deallocations() {
    let mut host = Host::new(&config(), 1);
    (0..STAYS).chain(LOG).for_each(|lpn| write(&mut host, lpn));
    rewrite_log(&mut host);
    host.rest();
    host.check("rewritten");
}

#[test]
fn segments_that_are_aligned_with_blocks_cost_no_copies() {
    let moved = moves(|host| {
        (0..STAYS).chain(LOG).for_each(|lpn| write(host, lpn));
        rewrite_log(host);
    });
    assert_eq!(moved, [0, 0]);
}

/// Two logs in turn: each block has halves of two segments, one of which is deallocated.
#[test]
fn blocks_that_mix_segments_are_copied_because_of_trims() {
    let [moved, after_trims] = moves(|host| {
        for at in 0..STAYS {
            write(host, at);
            if let Some(lpn) = LOG.clone().nth(at as usize) {
                write(host, lpn);
            }
        }
        rewrite_log(host);
    });
    assert!(moved >= SEGMENT * 4 && after_trims * 10 >= moved * 9, "{after_trims} of {moved}");
}

/// Metadata that have their place, among data that stay: their old versions are holes, and nothing was deallocated.
#[test]
fn metadata_written_in_place_are_copied_around_without_trims() {
    let [moved, after_trims] = moves(|host| {
        let mut metadata = METADATA.cycle();
        for lpn in 0..STAYS {
            write(host, lpn);
            write(host, metadata.next().expect("it goes on"));
        }
        for lpn in metadata.take(40 * SEGMENT as usize) {
            write(host, lpn);
        }
    });
    assert!(moved >= STAYS / 2 && after_trims == 0, "{after_trims} of {moved}");
}
