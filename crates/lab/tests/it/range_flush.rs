//! The set-up of the RFLUSH paper's figure 2 without its file system: 12 threads that write and one that also syncs, on
//! the paper's device (spec 1.4), in the three configurations. `--nocapture` prints the table.
//!
//! What is missing beside the paper: F2FS's node and checkpoint blocks, and so the metadata half of the pair. Each thread
//! is a QD1 loop that thinks for as long as a direct write costs a host.

use flashweir_core::command::Tag;
use flashweir_core::random::Stream;
use flashweir_core::{Bytes, Duration, Instant, Payload};
use flashweir_device::presets::preset;
use flashweir_device::{Device, DeviceOptions};
use flashweir_fs::port::{Block, BlockPort, Selection, Write};
use flashweir_lab::stack::{FlushMode, Stack};
use std::cell::RefCell;
use std::rc::Rc;

/// Blocks of a thread's file: 2 GB (spec 1.4).
const FILE_BLOCKS: u64 = (2 << 30) / 4096;
/// A system call, an interrupt and two context switches of a 4 KiB direct write.
const THINK: Duration = Duration::from_micros(15);
/// Nobody is measured before the buffer is full.
const WARM: Duration = Duration::from_millis(300);
const RUN: Duration = Duration::from_millis(1_000);

#[derive(Debug, Default)]
struct Counts {
    sync_writes: u64,
    other_writes: u64,
    /// Of the syncing thread's writes and syncs, ns.
    latencies: Vec<u64>,
}

#[derive(Debug)]
struct Outcome {
    sync_iops: f64,
    other_iops: f64,
    p999_us: f64,
    /// Units that reached the flash for each one that was written.
    traffic: f64,
}

fn run(mode: FlushMode, writes_per_sync: u64, buffer: Bytes) -> Outcome {
    let mut config = preset("rflush").unwrap();
    config.buffer.capacity = buffer;
    let options = DeviceOptions { seed: 1, track_contents: false, planted: None };
    let mut stack = Stack::new(Device::new(config, options), mode);
    let counts = Rc::new(RefCell::new(Counts::default()));
    let end = Instant::ZERO + WARM + RUN;
    for thread in 0..13u64 {
        let (port, handle, counts) = (stack.port(), stack.handle(), Rc::clone(&counts));
        let mut random = Stream::new(thread, "rflush figure 2");
        // Three threads share a file.
        let file = thread / 3;
        stack.spawn(async move {
            let mut since_sync = 0;
            while handle.now() < end {
                let begun = handle.now();
                handle.sleep_until(begun + THINK).await;
                let block = Block(file * FILE_BLOCKS + random.below(FILE_BLOCKS));
                let tags = [Tag(if thread == 0 { 1_000 } else { 1 + file }), Tag(0)];
                port.write(Write { tags, ..Write::new(block, vec![Payload::Zero]) })
                    .completed()
                    .await
                    .unwrap();
                since_sync += 1;
                if thread == 0 && since_sync == writes_per_sync {
                    since_sync = 0;
                    let selection = Selection { ranges: Vec::new(), tags: vec![Tag(1_000)] };
                    port.range_flush(selection).completed().await.unwrap();
                }
                if begun >= Instant::ZERO + WARM {
                    let mut counts = counts.borrow_mut();
                    match thread {
                        0 => {
                            counts.sync_writes += 1;
                            let took = handle.now().since(begun).as_nanos();
                            counts.latencies.push(took);
                        }
                        _ => counts.other_writes += 1,
                    }
                }
            }
        });
    }
    while stack.now() < end && stack.turn() {}
    let mut counts = counts.borrow_mut();
    counts.latencies.sort_unstable();
    let seconds = RUN.as_nanos() as f64 / 1e9;
    let rank = (counts.latencies.len() as f64 * 0.999) as usize;
    let programmed = stack.with_device(|device| {
        let metrics = device.metrics();
        metrics.user_units_programmed as f64 / metrics.host_units_written as f64
    });
    Outcome {
        sync_iops: counts.sync_writes as f64 / seconds,
        other_iops: counts.other_writes as f64 / seconds,
        p999_us: counts.latencies.get(rank).map_or(f64::NAN, |ns| *ns as f64 / 1e3),
        traffic: programmed,
    }
}

#[test]
fn syncing_threads_gain_and_the_others_do_not_lose() {
    println!(
        "KiB between syncs, configuration: syncing IOPS, other IOPS, p99.9 of a sync write µs, programmed per write"
    );
    let mut ratios = Vec::new();
    for writes in [1, 8, 64, 512] {
        let outcomes = [FlushMode::Flush, FlushMode::RangeFlush, FlushMode::NoFlush].map(|mode| {
            let outcome = run(mode, writes, Bytes::mib(64));
            println!(
                "{:5} KiB {mode:?}: {:9.0} {:9.0} {:10.1} {:6.3}",
                4 * writes,
                outcome.sync_iops,
                outcome.other_iops,
                outcome.p999_us,
                outcome.traffic
            );
            outcome
        });
        let [flush, range, none] = &outcomes;
        assert!(range.sync_iops <= none.sync_iops * 1.02, "nothing is faster than not to sync");
        ratios.push((
            range.sync_iops / flush.sync_iops,
            range.p999_us / flush.p999_us,
            range.other_iops / flush.other_iops,
        ));
    }
    println!("RFLUSH over FLUSH: {ratios:?}");
    // Spec 7, R1 and R3, of the device alone.
    let (iops, tail, _) = ratios[2];
    assert!(iops > 2.0 && tail < 1.0 / 3.0, "at 256 KiB: {iops} of the IOPS, {tail} of the tail");
}
