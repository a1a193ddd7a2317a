//! Placement handles (FDP; commands §4.14): whose data share erase blocks, and what GC moves.

use crate::harness::{Host, OneByOne};
use flashweir_core::command::{Handle, PAGE_NAMESPACE};
use flashweir_core::{Command, Data, DeviceError, Lba, Lpn, Op, Ppa};
use flashweir_device::config::{Allocation, DeviceConfig};
use flashweir_device::flash::Owner;
use flashweir_device::presets::preset;
use std::collections::{BTreeMap, BTreeSet};

/// Four dies of 48 blocks, 40 % of which the host does not see.
fn config(handles: u8, allocation: Allocation) -> DeviceConfig {
    let mut config = preset("amf-page").expect("a preset");
    (config.geometry.channels, config.geometry.chips_per_channel) = (2, 2);
    (config.geometry.blocks_per_plane, config.geometry.pages_per_block) = (48, 16);
    config.buffer.capacity = flashweir_core::Bytes::kib(256);
    config.ftl.allocation = allocation;
    config.ftl.over_provisioning = 0.4;
    config.ftl.placement.handles = handles;
    config
}

/// Handles whose data are in each block.
fn handles_of_blocks(host: &Host, handle_of: impl Fn(Lpn) -> u8) -> BTreeMap<u64, BTreeSet<u8>> {
    let geometry = host.device.geometry();
    let per_block = u64::from(geometry.units_per_block());
    let mut found: BTreeMap<u64, BTreeSet<u8>> = BTreeMap::new();
    for ppa in 0..u64::from(geometry.blocks()) * per_block {
        if let Some(Owner::Lpn(lpn)) = host.device.owner(Ppa(ppa)) {
            found.entry(ppa / per_block).or_default().insert(handle_of(lpn));
        }
    }
    found
}

#[test]
fn data_of_two_handles_never_share_a_block() {
    for allocation in [Allocation::Static, Allocation::Dynamic] {
        for handles in [1, 3] {
            let mut host = Host::new(&config(handles, allocation), 1);
            let handle_of = |lpn: Lpn| (mix(lpn.0) % 3) as u8;
            for lpn in 0..1_000 {
                host.handle = Handle(handle_of(Lpn(lpn)).min(handles - 1));
                host.write(lpn, 1, false);
                host.wait(8);
            }
            host.submit(Op::Flush, false);
            host.check("placed");
            let blocks = handles_of_blocks(&host, handle_of);
            let mixed = blocks.values().filter(|handles| handles.len() > 1).count();
            assert_eq!(
                mixed > 0,
                handles == 1,
                "{allocation:?}, {handles} handles: {mixed} of {} blocks",
                blocks.len()
            );
        }
    }
}

fn mix(number: u64) -> u64 {
    flashweir_core::random::mix(number)
}

/// A log that is written round and round, and data that stay, written in turn at first: in blocks of its own, all of a block of the log is
/// invalid before it becomes a victim, so GC has nothing to move.
#[test]
fn a_circular_log_of_its_own_costs_no_copies() {
    for allocation in [Allocation::Static, Allocation::Dynamic] {
        let run = |handles: u8| {
            let mut host = Host::new(&config(handles, allocation), 1);
            let half = host.expected.len() as u64 / 2;
            let write = |host: &mut Host, handle: u8, lpn: u64| {
                host.handle = Handle(handle.min(handles - 1));
                host.write(lpn, 1, false);
                host.wait(8);
            };
            for lpn in 0..half {
                // In strict turns each die would get all of one kind.
                let first = (mix(lpn) % 2) as u8;
                for handle in [first, 1 - first] {
                    write(&mut host, handle, u64::from(handle) * half + lpn);
                }
            }
            for lpn in (0..8).flat_map(|_| half..2 * half) {
                write(&mut host, 1, lpn);
            }
            host.submit(Op::Flush, false);
            host.check("placed");
            (host.device.metrics().gc_units_moved, host.device.handle_counts().to_vec())
        };
        let ((mixed, none), (apart, counts)) = (run(1), run(2));
        println!("{allocation:?}: {mixed} units moved, {apart} with two handles: {counts:?}");
        assert_eq!(none, [], "a device without placement counts no handles");
        assert!(mixed > 100 && apart * 20 < mixed, "{apart} units moved of {mixed}");
        assert_eq!(counts[0].units_moved + counts[1].units_moved, apart);
    }
}

#[test]
fn a_handle_that_is_not_there_is_refused_and_nothing_changes() {
    let mut device = OneByOne::new(config(2, Allocation::Static), PAGE_NAMESPACE);
    let write = |number| Op::Write { lba: Lba(0), blocks: 8, data: Data::Pattern(number) };
    let with = |command, handle| Command { handle: Handle(handle), ..command };
    let good = with(device.open(write(1)), 1);
    assert!(device.run_command(good).is_ok());
    let content = device.device.peek(Lpn(0));
    let bad = with(device.open(write(2)), 2);
    let refused = Err(DeviceError::InvalidField("the device does not have this placement handle"));
    assert_eq!(device.run_command(bad), refused);
    let bad = with(device.open(Op::Trim { lba: Lba(0), blocks: 8 }), 1);
    assert_eq!(
        device.run_command(bad),
        Err(DeviceError::InvalidField("only writes have a placement handle"))
    );
    assert_eq!(device.device.peek(Lpn(0)), content);
}

#[test]
fn handles_need_blocks_and_a_frontier_of_gc() {
    let mut config = config(2, Allocation::Static);
    config.ftl.gc.hot_cold = false;
    let error = config.validate().unwrap_err();
    assert!(error.starts_with("ftl.placement.handles = 2: expected 1, or"), "{error}");
    config.ftl.gc.hot_cold = true;
    config.ftl.placement.handles = 33;
    assert_eq!(config.validate().unwrap_err(), "ftl.placement.handles = 33: expected 1 to 32");
    config.ftl.placement.handles = 30;
    let error = config.validate().unwrap_err();
    assert!(error.starts_with("ftl.over_provisioning = 0.4: expected enough for"), "{error}");
}
