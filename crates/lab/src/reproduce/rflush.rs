//! Studies of the RFLUSH paper (spec 1.4).

use super::{Scale, Study};
use crate::stack::{FlushMode, Stack};
use flashweir_core::command::Tag;
use flashweir_core::random::Stream;
use flashweir_core::{Bytes, Duration, Instant, Payload};
use flashweir_device::presets::preset;
use flashweir_device::{Device, DeviceOptions};
use flashweir_fs::port::{Block, BlockPort, Selection, Write};
use std::cell::RefCell;
use std::rc::Rc;

pub(super) const STUDIES: &[Study] = &[THREADS];

/// The configurations of the paper, in its order.
const MODES: [FlushMode; 3] = [FlushMode::Flush, FlushMode::RangeFlush, FlushMode::NoFlush];

/// Figure 2, without the file system.
const THREADS: Study = Study {
    name: "threads",
    what: "12 threads that write 4 KiB at random and one that also syncs, three of them to each file of 2 GB, direct I/O, on \
           the paper's device",
    missing: "the file system: no node and checkpoint blocks, so a sync flushes data only and never its metadata",
    parameter: "KiB between syncs",
    metrics: &[
        ("sync_iops", "writes/s of the syncing thread"),
        ("other_iops", "writes/s of the other threads"),
        ("sync_p50_us", "median of a write of the syncing thread and its sync, µs"),
        ("sync_p999_us", "99.9th percentile of the same, µs"),
        ("programmed_per_write", "units programmed for each unit written"),
    ],
    variants: &["FLUSH", "RFLUSH", "NOFLUSH"],
    points: |scale| match scale {
        Scale::Quick => vec![4.0, 32.0, 256.0, 2048.0],
        Scale::Full => (2..=13).map(|power| f64::from(1 << power)).collect(),
    },
    // The paper has the median of five runs.
    seeds: |scale| 1..=if scale == Scale::Quick { 1 } else { 5 },
    measure: threads,
};

const THREAD_COUNT: u64 = 13;
/// The tag of the syncing thread; the others have those of their files.
const SYNCING: Tag = Tag(1_000);
const FILE_BLOCKS: u64 = (2 << 30) / 4096;
/// A system call, an interrupt and two context switches of a 4 KiB direct write: what a host thinks between two of
/// them. Our choice; the device, not this, limits the writes.
const THINK: Duration = Duration::from_micros(15);

#[derive(Debug, Default)]
struct Counts {
    sync_writes: u64,
    other_writes: u64,
    latencies: Vec<u64>,
}

fn threads(variant: usize, x: f64, seed: u64, scale: Scale) -> Vec<f64> {
    // The buffer is full before anybody is measured; the paper's has 1 GB.
    let (buffer, warm_ms, run_ms) = match scale {
        Scale::Quick => (Bytes::mib(64), 300, 1_000),
        Scale::Full => (Bytes(1 << 30), 4_000, 20_000),
    };
    let mut config = preset("rflush").expect("the paper's device is a preset");
    config.buffer.capacity = buffer;
    let options = DeviceOptions { seed, track_contents: false, planted: None };
    let mut stack = Stack::new(Device::new(config, options), MODES[variant]);
    let counts = Rc::new(RefCell::new(Counts::default()));
    let warm = Instant::ZERO + Duration::from_millis(warm_ms);
    let end = warm + Duration::from_millis(run_ms);
    let writes_per_sync = (x / 4.0).max(1.0) as u64;
    for thread in 0..THREAD_COUNT {
        let (port, handle, counts) = (stack.port(), stack.handle(), Rc::clone(&counts));
        let mut random = Stream::new(seed, &format!("rflush thread {thread}"));
        let file = thread / 3;
        stack.spawn(async move {
            let mut since_sync = 0;
            while handle.now() < end {
                let begun = handle.now();
                handle.sleep_until(begun + THINK).await;
                let block = Block(file * FILE_BLOCKS + random.below(FILE_BLOCKS));
                let tags = [if thread == 0 { SYNCING } else { Tag(1 + file) }, Tag(0)];
                let write = Write { tags, ..Write::new(block, vec![Payload::Zero]) };
                port.write(write).completed().await.expect("the device does not fail");
                since_sync += 1;
                if thread == 0 && since_sync == writes_per_sync {
                    since_sync = 0;
                    let selection = Selection { ranges: Vec::new(), tags: vec![SYNCING] };
                    port.range_flush(selection).completed().await.expect("the device does not fail");
                }
                if begun < warm {
                    continue;
                }
                let mut counts = counts.borrow_mut();
                if thread == 0 {
                    counts.sync_writes += 1;
                    counts.latencies.push(handle.now().since(begun).as_nanos());
                } else {
                    counts.other_writes += 1;
                }
            }
        });
    }
    while stack.now() < end && stack.turn() {}
    let programmed = stack.with_device(|device| {
        let metrics = device.metrics();
        metrics.user_units_programmed as f64 / metrics.host_units_written as f64
    });
    let mut counts = counts.borrow_mut();
    counts.latencies.sort_unstable();
    let percentile = |share: f64| {
        let rank = (counts.latencies.len() as f64 * share) as usize;
        counts.latencies.get(rank).map_or(f64::NAN, |ns| *ns as f64 / 1e3)
    };
    let per_second = |count: u64| count as f64 * 1e3 / run_ms as f64;
    vec![
        per_second(counts.sync_writes),
        per_second(counts.other_writes),
        percentile(0.5),
        percentile(0.999),
        programmed,
    ]
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::reproduce::{Verdict, paper};

    /// The directions that spec 7 makes mandatory, and that the gain does not come from a lie: not to flush at all is
    /// never slower.
    #[test]
    fn syncing_threads_gain() {
        let runs: Vec<_> = THREADS.runs(Scale::Quick);
        let done: Vec<Vec<f64>> = runs.iter().map(|run| THREADS.run(*run, Scale::Quick)).collect();
        let rows = THREADS.rows(Scale::Quick, &done);
        let metric = |variant: &str, x: f64| {
            rows.iter().find(|row| row.variant == variant && row.x == x).unwrap().metrics["sync_iops"]
        };
        for x in (THREADS.points)(Scale::Quick) {
            assert!(metric("RFLUSH", x) <= 1.02 * metric("NOFLUSH", x), "{x} KiB");
        }
        let (paper, _) = paper("rflush").unwrap();
        for claim in
            paper.claim.iter().filter(|claim| ["R1", "R3", "R1-noflush"].contains(&claim.id.as_str()))
        {
            assert_eq!(claim.verdict(claim.value(&rows)), Verdict::Reproduced, "{}", claim.id);
        }
    }
}
