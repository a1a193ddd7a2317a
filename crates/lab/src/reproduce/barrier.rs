//! Studies of the barrier paper (barriers §7): here those of a device and a block layer alone, in [`files`] and
//! [`servers`] those with a file system.

mod devices;
mod files;
mod servers;

use super::study::{Scale, Shares, Study};
pub use devices::device_of;
use flashweir_core::command::{StreamId, pattern};
use flashweir_core::random::RandomStream;
use flashweir_core::{Bytes, Duration, Instant, Lpn, Order, Payload, executor::Handle};
use flashweir_device::config::{OrderConfig, PersistPolicy};
use flashweir_device::presets::preset;
use flashweir_device::{Device, DeviceConfig, DeviceMetrics, DeviceOptions};
use flashweir_fs::port::{Block, BlockPort, Ticket, Write};
use flashweir_fs::vfs::HostCosts;
use flashweir_host::{BlockLayer, DepthSample, HostConfig};
use flashweir_sim::stack::{FlushMode, Port, Stack};
use std::collections::VecDeque;

pub(super) const STUDIES: &[Study] = &[
    Study {
        name: "ordered-writes",
        what: "random writes of 4 KiB by one thread to a device of so many channels: in no order (32 in flight); each after the one \
               before was transferred and flushed, as legacy file systems order them; without the flush; without the switches of \
               context either, as a thread that polls; each a barrier (32 in flight)",
        missing: "the paper's seven devices are products: ours are one design, the preset barrier-850, with 1 to 32 channels and the link \
                  and buffer of consumer-tlc-nvme; the barrier's device charges the paper's 5 % on programs; the host's costs are those of \
                  `server`",
        parameter: "channels",
        names: &[],
        metrics: ORDERED_METRICS,
        variants: &["unordered", "transfer and flush", "transfer", "transfer, polled", "barrier"],
        points: |_| vec![1.0, 2.0, 4.0, 8.0, 12.0, 16.0, 32.0],
        measure: |variant, x, seed, scale| {
            use Ordering::{Barrier, None, Transfer, TransferAndFlush, TransferPolled};
            let ordering = [None, TransferAndFlush, Transfer, TransferPolled, Barrier(1)][variant];
            let penalty = if variant == 4 { 0.05 } else { 0.0 };
            let order =
                OrderConfig { policy: PersistPolicy::InOrderRecovery, penalty, ..OrderConfig::default() };
            run(device(x as u32, order), ordering, BLOCKS, seed, scale).metrics()
        },
    },
    POLICIES,
    Study {
        name: "epoch-fusion",
        what: "the study `persist-policies` with writes to 8 MiB, a quarter of the buffer, so that most pages are written again while they \
               are in it",
        measure: |variant, x, seed, scale| policies(variant, x, seed, scale, (8 << 20) / 4096),
        ..POLICIES
    },
    files::DWSL_UFS,
    files::DWSL_PLAIN,
    files::DWSL_SUPERCAP,
    files::SQLITE_UFS,
    files::SQLITE_PLAIN,
    servers::VARMAIL_PLAIN,
    servers::VARMAIL_SUPERCAP,
    servers::OLTP_INSERT_PLAIN,
    servers::OLTP_INSERT_SUPERCAP,
];

/// The paper's curve is a fit to its seven devices (barriers §1.5).
pub(super) const FIGURE_1: Shares = Shares {
    study: "ordered-writes",
    title: "Ordered over unordered writes, on the axes of figure 1",
    metric: "iops",
    axis: "unordered writes/s",
    paper: ("transfer and flush", |iops| 100.0 * 3.4e3 * iops.powf(-1.1)),
};

const POLICIES: Study = Study {
    name: "persist-policies",
    what: "random writes of 4 KiB, 32 in flight, a barrier with each so many, on a device of 8 channels: what the three ways to keep epochs \
           in order cost",
    missing: "nothing of the paper's, which names the ways and measures none; no penalty here",
    parameter: "writes per epoch",
    names: &[],
    metrics: ORDERED_METRICS,
    variants: &[
        "unordered",
        "in-order write-back",
        "transactional",
        "transactional, fused",
        "in-order recovery",
    ],
    points: |_| vec![1.0, 4.0, 16.0, 64.0, 256.0],
    measure: |variant, x, seed, scale| policies(variant, x, seed, scale, BLOCKS),
};

fn policies(variant: usize, x: f64, seed: u64, scale: Scale, blocks: u64) -> Vec<f64> {
    let (order, ordering) = policy(variant, x as u64);
    run(device(8, order), ordering, blocks, seed, scale).metrics()
}

/// A variant of [`POLICIES`] with `writes` writes in an epoch.
fn policy(variant: usize, writes: u64) -> (OrderConfig, Ordering) {
    use PersistPolicy::{InOrderRecovery, InOrderWriteBack, Transactional};
    let (policy, fuse_epochs) = [
        (InOrderRecovery, 1),
        (InOrderWriteBack, 1),
        (Transactional, 1),
        (Transactional, 1 << 10),
        (InOrderRecovery, 1),
    ][variant];
    let ordering = if variant == 0 { Ordering::None } else { Ordering::Barrier(writes) };
    (OrderConfig { policy, fuse_epochs, penalty: 0.0 }, ordering)
}

const ORDERED_METRICS: &[(&str, &str)] = &[
    ("iops", "writes/s"),
    ("depth", "commands at the device, in the mean over time"),
    ("flushes_per_write", "flushes for each write"),
    ("programmed_per_write", "units programmed for each unit that the host wrote"),
];

/// Way to order a write after the one before it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Ordering {
    None,
    /// The thread waits for the transfer, then flushes (barriers §1.4).
    TransferAndFlush,
    /// The thread waits for the transfer.
    Transfer,
    /// The thread polls for the transfer, without a context switch.
    TransferPolled,
    /// Every Nth write is a barrier, and the thread waits only for room in the queue.
    Barrier(u64),
}

/// Most writes in flight.
const DEPTH: usize = 32;
/// Blocks of 4 KiB over which the writes of a study are spread, except `epoch-fusion`: 1 GiB.
const BLOCKS: u64 = (1 << 30) / 4096;

/// The preset barrier-850 with this number of channels, and the link of a faster preset.
fn device(channels: u32, order: OrderConfig) -> DeviceConfig {
    let mut config = preset("barrier-850").expect("it comes with the program");
    config.geometry.channels = channels;
    // The buffer grows with the number of dies.
    config.buffer.capacity = Bytes::mib(u64::from(4 * channels));
    let faster = preset("consumer-tlc-nvme").expect("it comes with the program");
    (config.link, config.buffer.access_latency) = (faster.link, Duration::ZERO);
    config.order = order;
    config.validate().expect("so many channels are possible");
    config
}

/// Measurements of writes in an interval.
#[derive(Debug)]
struct Measured {
    writes: u64,
    begin: Instant,
    end: Instant,
    depths: Vec<DepthSample>,
    device: DeviceMetrics,
}

impl Measured {
    /// One value for each of [`ORDERED_METRICS`].
    fn metrics(&self) -> Vec<f64> {
        let writes = self.writes as f64;
        vec![
            writes / self.end.since(self.begin).as_secs_f64(),
            mean_depth(&self.depths, self.end),
            self.device.flushes as f64 / writes,
            self.device.write_amplification().unwrap_or(f64::NAN),
        ]
    }
}

/// Writes for a while and measures, once the buffer has been filled.
fn run(config: DeviceConfig, ordering: Ordering, blocks: u64, seed: u64, scale: Scale) -> Measured {
    let warm = config.buffer.capacity.0 / 4096 * 3 / 2;
    let device = Device::new(config, DeviceOptions { seed, track_contents: false, planted: None });
    let host = HostConfig { merge_blocks_max: 0, ..HostConfig::default() };
    let mut stack = Stack::with_block_layer(device, FlushMode::RangeFlush, host);
    let (port, handle) = (stack.port(), stack.handle());
    let time = match scale {
        Scale::Quick => Duration::from_millis(300),
        Scale::Full => Duration::from_secs(5),
    };
    let mut writer = Writer::new(port, handle, ordering, blocks, seed);
    let mut writer = stack.block_on(async move {
        // With flushes the buffer never fills, and the first writes are like all others.
        let waits = ordering == Ordering::TransferAndFlush;
        writer.write_until(|written, _| written >= if waits { 100 } else { warm }).await;
        writer
    });
    let mut writer = writer.take().expect("writes end");
    let (before, begin) = (writer.written, stack.now());
    let metrics = stack.with_device(|device| *device.metrics());
    stack.with_layer(BlockLayer::keep_depths);
    let written = stack.block_on(async move {
        writer.write_until(|_, now| now >= begin + time).await;
        writer.written
    });
    Measured {
        writes: written.expect("writes end") - before,
        begin,
        end: stack.now(),
        depths: stack.with_layer(BlockLayer::take_depths).unwrap_or_default(),
        device: stack.with_device(|device| device.metrics().since(&metrics)),
    }
}

/// Mean number of commands at the device over time, from the first sample to `end`.
fn mean_depth(depths: &[DepthSample], end: Instant) -> f64 {
    let ends = depths.iter().skip(1).map(|sample| sample.at).chain([end]);
    let area: f64 = depths
        .iter()
        .zip(ends)
        .map(|(sample, until)| f64::from(sample.in_flight) * until.since(sample.at).as_secs_f64())
        .sum();
    depths.first().map_or(0.0, |first| area / end.since(first.at).as_secs_f64())
}

/// One thread that writes.
struct Writer {
    port: Port,
    handle: Handle,
    ordering: Ordering,
    blocks: u64,
    random: RandomStream,
    in_flight: VecDeque<Ticket>,
    written: u64,
    costs: HostCosts,
}

impl Writer {
    fn new(port: Port, handle: Handle, ordering: Ordering, blocks: u64, seed: u64) -> Self {
        let random = RandomStream::new(seed, "ordered-writes");
        let costs = HostCosts::preset("server").expect("it comes with the program");
        Self { port, handle, ordering, blocks, random, in_flight: VecDeque::new(), written: 0, costs }
    }

    /// The thread uses the CPU for this time.
    async fn work(&self, time: Duration) {
        self.handle.sleep_until(self.handle.now() + time).await;
    }

    /// The thread waits for a request, and unless it polls it is woken.
    async fn wait(&self, ticket: Ticket) {
        let polls = self.ordering == Ordering::TransferPolled;
        if ticket.is_complete() {
            ticket.completed().await.expect("the device takes writes and flushes");
            return;
        }
        ticket.completed().await.expect("the device takes writes and flushes");
        if !polls {
            self.work(self.costs.interrupt + self.costs.context_switch * 2).await;
        }
    }

    async fn write_until(&mut self, done: impl Fn(u64, Instant) -> bool) {
        while !done(self.written, self.handle.now()) {
            let block = self.random.below(self.blocks);
            let mut write = Write::new(Block(block), vec![Payload::Tag(pattern(self.written, Lpn(block)))]);
            if let Ordering::Barrier(every) = self.ordering {
                let ends = (self.written + 1).is_multiple_of(every);
                write.order = Some((StreamId(0), if ends { Order::Barrier } else { Order::Within }));
            }
            self.work(self.costs.io_path).await;
            self.in_flight.push_back(self.port.write(write));
            self.written += 1;
            let depth = match self.ordering {
                Ordering::None | Ordering::Barrier(_) => DEPTH,
                Ordering::Transfer | Ordering::TransferPolled | Ordering::TransferAndFlush => 1,
            };
            if self.in_flight.len() == depth
                && let Some(oldest) = self.in_flight.pop_front()
            {
                self.wait(oldest).await;
            }
            if self.ordering == Ordering::TransferAndFlush {
                self.work(self.costs.io_path).await;
                self.wait(self.port.flush()).await;
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Writes of one ordering to a device with this number of channels and in-order recovery.
    fn on(channels: u32, ordering: Ordering) -> Measured {
        let order = OrderConfig { policy: PersistPolicy::InOrderRecovery, ..OrderConfig::default() };
        run(device(channels, order), ordering, BLOCKS, 1, Scale::Quick)
    }

    fn ordered(ordering: Ordering) -> Measured {
        on(8, ordering)
    }

    /// Most commands at the device at once, and the number of commands that arrived for each write.
    fn commands(measured: &Measured) -> (u32, f64) {
        let depths = || measured.depths.iter().map(|sample| sample.in_flight);
        let came: u32 =
            depths().zip(depths().skip(1)).map(|(before, after)| after.saturating_sub(before)).sum();
        (depths().max().unwrap_or(0), f64::from(came) / measured.writes as f64)
    }

    fn about(value: f64, expected: f64) -> bool {
        (value - expected).abs() <= 0.01 * expected
    }

    #[test]
    fn legacy_waits_hold_one_command_and_flush_after_each_write() {
        let waits = ordered(Ordering::TransferAndFlush);
        let (most, per_write) = commands(&waits);
        assert_eq!(most, 1);
        assert!(about(per_write, 2.0), "a write and a flush, not {per_write}");
        assert!(about(waits.metrics()[2], 1.0), "{:?}", waits.metrics());
        assert!(waits.metrics()[1] <= 1.0 && waits.device.epochs == 0);
        for ordering in [Ordering::Transfer, Ordering::TransferPolled] {
            let waits = ordered(ordering);
            let (most, per_write) = commands(&waits);
            assert_eq!((most, waits.device.flushes, waits.device.epochs), (1, 0, 0), "{ordering:?}");
            assert!(about(per_write, 1.0), "{ordering:?}: {per_write} commands");
        }
    }

    #[test]
    fn barriers_fill_the_queue_and_end_epochs_and_wait_for_nothing() {
        for every in [1, 16] {
            let barriers = ordered(Ordering::Barrier(every));
            let epochs = barriers.device.epochs as f64 * every as f64 / barriers.writes as f64;
            assert!(about(epochs, 1.0), "an epoch for {every} writes, {epochs} of them");
            assert_eq!(barriers.device.flushes, 0);
            assert!(barriers.metrics()[1] > DEPTH as f64 / 2.0, "{:?}", barriers.metrics());
            assert!(commands(&barriers).0 <= DEPTH as u32);
        }
        let free = ordered(Ordering::None);
        assert_eq!((free.device.flushes, free.device.epochs), (0, 0));
        assert!(free.metrics()[1] > DEPTH as f64 / 2.0, "{:?}", free.metrics());
    }

    /// The device has so many channels that it is not the limit.
    #[test]
    fn each_kind_of_waiting_costs_something() {
        use Ordering::{Barrier, None, Transfer, TransferAndFlush, TransferPolled};
        let orderings = [TransferAndFlush, Transfer, TransferPolled, Barrier(1), None];
        let iops = orderings.map(|ordering| on(32, ordering).metrics()[0]);
        assert!(iops[..4].is_sorted_by(|less, more| less < more), "{iops:?}");
        // A barrier is not a wait: if the link is the limit, it costs nothing.
        assert!(iops[3] <= iops[4], "{iops:?}");
    }

    #[test]
    fn variants_of_policies_are_what_they_are_called() {
        let seen = [0, 1, 2, 3, 4].map(|variant| {
            let (order, ordering) = policy(variant, 4);
            let counted = run(device(8, order), ordering, (8 << 20) / 4096, 1, Scale::Quick).device;
            let writes = counted.host_units_written as f64;
            assert_eq!(counted.flushes, 0);
            assert!(
                variant == 0 || about(4.0 * counted.epochs as f64 / writes, 1.0),
                "{variant}: {counted:?}"
            );
            (
                POLICIES.variants[variant],
                counted.epochs > 0,
                counted.order_records > 0,
                counted.epochs_fused > 0,
            )
        });
        let expected = [
            ("unordered", false, false, false),
            ("in-order write-back", true, false, false),
            ("transactional", true, true, false),
            ("transactional, fused", true, true, true),
            ("in-order recovery", true, false, false),
        ];
        assert_eq!(seen, expected);
    }

    #[test]
    fn a_mean_of_depths_is_weighted_by_time() {
        let at = |ms: u64| Instant::ZERO + Duration::from_millis(ms);
        let sample = |ms, in_flight| DepthSample { at: at(ms), in_flight, queued: 7 };
        assert!(about(mean_depth(&[sample(10, 4), sample(20, 0), sample(50, 10)], at(60)), 2.8));
        assert_eq!(mean_depth(&[], at(60)), 0.0);
    }
}
