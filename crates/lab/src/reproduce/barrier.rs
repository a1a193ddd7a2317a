//! Studies of the barrier paper (spec 3.5), of those that need a device and no file system.

use super::{Scale, Study};
use crate::stack::{FlushMode, Port, Stack};
use flashweir_core::command::{StreamId, pattern};
use flashweir_core::random::Stream;
use flashweir_core::{Bytes, Duration, Instant, Lpn, Order, Payload, executor::Handle};
use flashweir_device::config::{OrderConfig, PersistPolicy};
use flashweir_device::presets::preset;
use flashweir_device::{Device, DeviceConfig, DeviceOptions};
use flashweir_fs::port::{Block, BlockPort, Ticket, Write};
use std::collections::VecDeque;

pub(super) const STUDIES: &[Study] = &[
    Study {
        name: "ordered-writes",
        what: "random writes of 4 KiB to a device of so many channels: in no order (32 in flight); each after the one before was \
               transferred and flushed, as legacy file systems order them; each after the transfer alone; each a barrier (32 in \
               flight)",
        missing: "the paper's seven devices are products: ours are one design, the preset barrier-850, with 1 to 32 channels and \
                  NVMe's link, so that the link is no limit; the barrier's device charges the paper's 5 % on programs; the host's \
                  CPU costs nothing",
        parameter: "channels",
        metrics: ORDERED_METRICS,
        variants: &["unordered", "transfer and flush", "transfer", "barrier"],
        points: |_| vec![1.0, 2.0, 4.0, 8.0, 12.0, 16.0, 32.0],
        measure: |variant, x, seed, scale| {
            let ordering =
                [Ordering::None, Ordering::TransferAndFlush, Ordering::Transfer, Ordering::Barrier(1)]
                    [variant];
            let penalty = if variant == 3 { 0.05 } else { 0.0 };
            let order =
                OrderConfig { policy: PersistPolicy::InOrderRecovery, penalty, ..OrderConfig::default() };
            run(device(x as u32, order), ordering, BLOCKS, seed, scale)
        },
    },
    Study {
        name: "persist-policies",
        what: "random writes of 4 KiB to 8 MiB, 32 in flight, a barrier after each so many, on a device of 8 channels: what the \
               three ways to keep epochs in order cost, and what the fusion of epochs gains where pages are written again",
        missing: "nothing of the paper's, which names the ways and measures none; no penalty here",
        parameter: "writes per epoch",
        metrics: ORDERED_METRICS,
        variants: &[
            "unordered",
            "in-order write-back",
            "transactional",
            "transactional, fused",
            "in-order recovery",
        ],
        points: |_| vec![1.0, 4.0, 16.0, 64.0, 256.0],
        measure: |variant, x, seed, scale| {
            use PersistPolicy::{InOrderRecovery, InOrderWriteBack, Transactional};
            let (policy, fuse_epochs) = [
                (InOrderRecovery, 1),
                (InOrderWriteBack, 1),
                (Transactional, 1),
                (Transactional, 1 << 10),
                (InOrderRecovery, 1),
            ][variant];
            let ordering = if variant == 0 { Ordering::None } else { Ordering::Barrier(x as u64) };
            let order = OrderConfig { policy, fuse_epochs, penalty: 0.0 };
            run(device(8, order), ordering, (8 << 20) / 4096, seed, scale)
        },
    },
];

const ORDERED_METRICS: &[(&str, &str)] = &[
    ("iops", "writes/s"),
    ("depth", "writes in flight, in the mean over time"),
    ("flushes_per_write", "flushes for each write"),
    ("programmed_per_write", "units programmed for each unit that the host wrote"),
];

/// How writes follow each other.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Ordering {
    None,
    /// Wait for the transfer, then flush (spec 3.1).
    TransferAndFlush,
    /// Wait for the transfer.
    Transfer,
    /// A barrier with every so many writes; nobody waits.
    Barrier(u64),
}

/// Writes in flight at most.
const DEPTH: usize = 32;
/// Blocks over which the writes of the first study are spread: 1 GiB.
const BLOCKS: u64 = (1 << 30) / 4096;

/// The preset barrier-850 with so many channels.
fn device(channels: u32, order: OrderConfig) -> DeviceConfig {
    let mut config = preset("barrier-850").expect("it comes with the program");
    config.geometry.channels = channels;
    // As much memory for each die.
    config.buffer.capacity = Bytes::mib(u64::from(4 * channels));
    config.link = preset("consumer-tlc-nvme").expect("it comes with the program").link;
    config.order = order;
    config.validate().expect("channels are the only change");
    config
}

/// Writes for a while, measured after the buffer was filled once.
fn run(config: DeviceConfig, ordering: Ordering, blocks: u64, seed: u64, scale: Scale) -> Vec<f64> {
    let warm = config.buffer.capacity.0 / 4096 * 3 / 2;
    let device = Device::new(config, DeviceOptions { seed, track_contents: false, planted: None });
    let mut stack = Stack::new(device, FlushMode::RangeFlush);
    let (port, handle) = (stack.port(), stack.handle());
    let time = match scale {
        Scale::Quick => Duration::from_millis(300),
        Scale::Full => Duration::from_secs(5),
    };
    let measured = stack.block_on(async move {
        let mut writer = Writer::new(port.clone(), handle.clone(), ordering, blocks, seed);
        // Waits that nothing overlaps never fill the buffer; then the first writes are like all others.
        let waits = matches!(ordering, Ordering::TransferAndFlush);
        writer.write_until(|written, _| written >= if waits { 100 } else { warm }).await;
        let (before, begun, metrics) =
            (writer.written, handle.now(), port.with_device(|device| *device.metrics()));
        writer.depth_time = 0;
        let end = begun + time;
        writer.write_until(|_, now| now >= end).await;
        let now = handle.now();
        let seconds = now.since(begun).as_secs_f64();
        let writes = (writer.written - before) as f64;
        let counted = port.with_device(|device| device.metrics().since(&metrics));
        vec![
            writes / seconds,
            writer.depth_time as f64 / 1e9 / seconds,
            counted.flushes as f64 / writes,
            counted.write_amplification().unwrap_or(f64::NAN),
        ]
    });
    measured.expect("writes end")
}

/// One thread that writes.
struct Writer {
    port: Port,
    handle: Handle,
    ordering: Ordering,
    blocks: u64,
    random: Stream,
    in_flight: VecDeque<Ticket>,
    written: u64,
    /// Writes in flight times nanoseconds.
    depth_time: u64,
    changed: Instant,
}

impl Writer {
    fn new(port: Port, handle: Handle, ordering: Ordering, blocks: u64, seed: u64) -> Self {
        let (random, changed) = (Stream::new(seed, "ordered-writes"), handle.now());
        Self {
            port,
            handle,
            ordering,
            blocks,
            random,
            in_flight: VecDeque::new(),
            written: 0,
            depth_time: 0,
            changed,
        }
    }

    /// The depth is about to change.
    fn note_depth(&mut self) {
        let now = self.handle.now();
        self.depth_time += now.since(self.changed).as_nanos() * self.in_flight.len() as u64;
        self.changed = now;
    }

    async fn write_until(&mut self, done: impl Fn(u64, Instant) -> bool) {
        while !done(self.written, self.handle.now()) {
            let block = self.random.below(self.blocks);
            let mut write = Write::new(Block(block), vec![Payload::Tag(pattern(self.written, Lpn(block)))]);
            if let Ordering::Barrier(every) = self.ordering {
                let ends = (self.written + 1).is_multiple_of(every);
                write.order = Some((StreamId(0), if ends { Order::Barrier } else { Order::Within }));
            }
            self.note_depth();
            self.in_flight.push_back(self.port.write(write));
            self.written += 1;
            let (depth, flush) = match self.ordering {
                Ordering::None | Ordering::Barrier(_) => (DEPTH, false),
                Ordering::Transfer => (1, false),
                Ordering::TransferAndFlush => (1, true),
            };
            if self.in_flight.len() == depth
                && let Some(oldest) = self.in_flight.front()
            {
                oldest.reached(flashweir_fs::port::Moment::Completed).await;
                self.note_depth();
                let oldest = self.in_flight.pop_front().expect("it was there");
                oldest.completed().await.expect("the device takes writes");
            }
            if flush {
                self.port.flush().completed().await.expect("the device flushes");
            }
        }
    }
}
