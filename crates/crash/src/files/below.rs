//! What is below a file system in a case on the simulated device: the device of a base, and what is between the two.
//!
//! Place in the data flow: [`begin`] wakes a disk up with the volume of a base, for a run that [`cuts`](super::cuts) looks at; [`wake`]
//! brings the disk back with a medium that a cut left.
//!
//! Invariant: a disk is a function of its base and of [`On`].

use super::bug::Bug;
use super::on::On;
use super::setup::{BLOCKS, SEGMENT_BLOCKS};
use super::volume::Base;
use flashweir_contract::DeviceKind;
use flashweir_core::random::mix;
use flashweir_core::{Bytes, Duration, Instant, Lpn, Payload, RandomStream};
use flashweir_device::config::{
    AppendMode, BufferMode, Miss, OpenVersion, PersistPolicy, RangeFlushSupport, Translation,
};
use flashweir_device::presets::preset;
use flashweir_device::{Device, DeviceConfig, DeviceOptions, FastForward, Media, Recovery, Torn};
use flashweir_fs::port::{Block, BlockPort as _, Write};
use flashweir_host::{
    CfqConfig, DeadlineConfig, Dispatch, Epochs, HostConfig, HostFtlConfig, Scheduler, Wait,
};
use flashweir_sim::host_ftl::{Disk, capacity_lbas};
use flashweir_sim::stack::{FlushMode, Stack};
use std::sync::Arc;

/// Returns the device of a base without anything above it: small, and full. For odd seeds it is the emulator of the RFLUSH paper, whose buffer
/// holds a whole sequence and whose pages hold one unit, so that no other data are written beside the requested ones.
/// For even seeds it is a phone's device, with a buffer that overflows, a link that takes time, several units per page,
/// and word lines that a cut destroys as a whole. Where the file system relies on order, the device keeps epochs in one
/// of the three ways, and has more spare blocks, because versions that an epoch may still need cannot be
/// garbage-collected. For a file system that uses SHARE it has that, too.
fn plain(base: &Base) -> DeviceConfig {
    use PersistPolicy::{InOrderRecovery, InOrderWriteBack, Transactional};
    if base.format.appends() {
        return segments(base.seed);
    }
    let is_phone = base.seed.is_multiple_of(2);
    let is_ordered = base.format.device_kind() >= DeviceKind::D3;
    let name = if is_phone { "mobile-ufs" } else { "rflush" };
    let mut config = preset(name).expect("it is among the presets");
    let geometry = &mut config.geometry;
    (geometry.channels, geometry.chips_per_channel, geometry.planes_per_die) = (2, 1, 1);
    geometry.pages_per_block = if is_phone { 24 } else { 64 };
    config.buffer.capacity = if is_phone { Bytes::kib(256) } else { Bytes::mib(4) };
    config.buffer.range_flush = RangeFlushSupport::Selective;
    config.ftl.over_provisioning = if is_ordered { 0.3 } else { 0.15 };
    if is_ordered {
        config.order.policy = [InOrderRecovery, Transactional, InOrderWriteBack][(base.seed % 3) as usize];
    }
    if base.format.shares {
        // Of three devices one has a table that is soon full, so that it copies.
        config.ftl.share.pages = if base.seed.is_multiple_of(3) { 12 } else { 4096 };
    }
    config.faults.paired_page_loss = is_phone;
    config.geometry.blocks_per_plane = blocks_per_plane(&config);
    config
}

/// Blocks of each of two planes, so that there is room for the volume.
fn blocks_per_plane(config: &DeviceConfig) -> u32 {
    let block_bytes = u64::from(config.geometry.pages_per_block) * config.geometry.page_bytes.0;
    let blocks = (BLOCKS * 4096) as f64 / (1.0 - config.ftl.over_provisioning) / block_bytes as f64;
    (blocks / 2.0).ceil() as u32 + 1
}

/// Returns the card of the AMF paper, as small as the volume. For odd seeds a page holds one unit, as there; for even ones two, so that
/// tails of segments are kept in its log, and one of three devices takes any unwritten sector.
fn segments(seed: u64) -> DeviceConfig {
    let mut config = preset("amf").expect("it is among the presets");
    let has_tails = seed.is_multiple_of(2);
    let geometry = &mut config.geometry;
    (geometry.channels, geometry.chips_per_channel) = (2, 2);
    if has_tails {
        (geometry.page_bytes, geometry.pages_per_block) = (Bytes::kib(8), 64);
    }
    config.append.mode = if seed.is_multiple_of(3) { AppendMode::WriteOnce } else { AppendMode::Sequential };
    config.append.segments = (BLOCKS / u64::from(SEGMENT_BLOCKS)) as u32;
    config.append.spare_blocks = 4;
    config.geometry.blocks_per_plane = config.append.segments + 12;
    config.buffer.capacity = Bytes::mib(1);
    config.validate().expect("such a device is valid");
    config
}

/// Mixed with the seed of a base, it gives the bits that choose what is above the device, and what else is different there.
const CHOICES: u64 = 0x1a7e_4b10;

/// Returns the device of a base below a block layer: as without one, or with its map in flash, with a capacitor, or with blocks that fail.
fn below_layer(base: &Base) -> DeviceConfig {
    let mut config = plain(base);
    let choice = mix(base.seed ^ CHOICES);
    (config.link.queues, config.link.queue_depth) = (4, config.link.queue_depth.max(8));
    match choice % 4 {
        0 => {}
        1 => {
            config.ftl.translation = Translation::DemandCached;
            config.ftl.demand.entries = 128;
            config.ftl.demand.cached = 0.1;
            config.ftl.demand.miss = if choice & 4 == 0 { Miss::HoldsAll } else { Miss::HoldsOwn };
        }
        2 => config.buffer.mode = BufferMode::PowerLossProtected,
        _ => {
            (config.faults.program_fail, config.faults.erase_fail) = (0.000_2, 0.000_2);
            config.ftl.gc.reserve_blocks += 1;
        }
    }
    while config.validate().is_err() && config.ftl.over_provisioning < 0.8 {
        config.ftl.over_provisioning += 0.02;
        config.geometry.blocks_per_plane = blocks_per_plane(&config);
    }
    config
}

/// Returns the block layer of a base. Each of them keeps order.
fn block_layer(base: &Base) -> HostConfig {
    let config = HostConfig { depth: 8, merge_blocks_max: 256, ..HostConfig::default() };
    let (deadline, cfq) =
        (DeadlineConfig { fifo_batch: 3, ..DeadlineConfig::default() }, CfqConfig::default());
    match mix(base.seed ^ CHOICES) >> 8 & 3 {
        0 => config,
        1 => HostConfig { scheduler: Scheduler::Deadline(deadline), epochs: Epochs::Closing, ..config },
        2 => HostConfig { dispatch: Dispatch::MultiQueue, queues: 3, ..config },
        _ => HostConfig {
            scheduler: Scheduler::Cfq(cfq),
            dispatch: Dispatch::Legacy(Wait::TransferAndFlush),
            ..config
        },
    }
}

/// Returns the open channel of a base and the host FTL above it: pblk or QBLKe, on a device that keeps units back or not.
fn host_ftl(base: &Base) -> (DeviceConfig, HostFtlConfig) {
    let choice = mix(base.seed ^ CHOICES);
    let mut device =
        preset(if choice & 1 == 0 { "qblke" } else { "ocssd-2.0" }).expect("it is among the presets");
    let geometry = &mut device.geometry;
    (geometry.channels, geometry.chips_per_channel) = (2, 2);
    (geometry.planes_per_die, geometry.pages_per_block) = (1, 64);
    geometry.page_bytes = if choice & 2 == 0 { Bytes::kib(4) } else { Bytes::kib(16) };
    (device.open.write_pages, device.open.write_best_pages) = (1, 1);
    device.open.cached_units = if device.open.version == OpenVersion::V12 { 0 } else { 8 };
    device.link.queues = 3;
    let assembly = if choice & 4 == 0 { HostFtlConfig::pblk() } else { HostFtlConfig::qblke(3) };
    let ftl = HostFtlConfig {
        entries: 128 * u32::from(assembly.rings),
        over_provisioning: 0.3,
        queues: 3,
        pad_after: Duration::from_millis(20),
        user_active_for: Duration::from_millis(200),
        ..assembly
    };
    let sectors = BLOCKS * 8;
    for blocks in 4.. {
        device.geometry.blocks_per_plane = blocks;
        if capacity_lbas(&device, Some(&ftl)).is_ok_and(|capacity| capacity >= sectors) {
            break;
        }
    }
    (device, ftl)
}

/// What is below the file system of a case.
struct Below {
    device: DeviceConfig,
    host_ftl: Option<HostFtlConfig>,
    block_layer: Option<HostConfig>,
}

impl Below {
    fn of(base: &Base, on: On) -> Self {
        match on {
            On::Layer => {
                Self { device: below_layer(base), host_ftl: None, block_layer: Some(block_layer(base)) }
            }
            On::HostFtl => {
                let (device, ftl) = host_ftl(base);
                Self { device, host_ftl: Some(ftl), block_layer: None }
            }
            _ => Self { device: plain(base), host_ftl: None, block_layer: None },
        }
    }
}

fn options(planted: Option<Bug>) -> DeviceOptions {
    DeviceOptions { seed: 1, track_contents: true, planted: Bug::in_device(planted) }
}

/// Returns the medium of a base on a device that has been overwritten completely more than once.
fn medium(base: &Base, on: On) -> Media {
    let made = || match on {
        On::HostFtl => written(base, Below::of(base, on), false),
        _ if base.format.appends() => written(base, Below::of(base, on), true),
        _ => aged(base, Below::of(base, on).device),
    };
    base.media.of(on).get_or_init(made).clone()
}

/// The medium of a device with pages.
fn aged(base: &Base, config: DeviceConfig) -> Media {
    let mut device = Device::new(config, options(None));
    let units = device.geometry().user_units;
    assert!(units >= BLOCKS, "the device has {units} units");
    let mut random = RandomStream::new(base.seed, "ageing of a device");
    let mut fill = FastForward::new(&mut device);
    let content = |unit| base.contents.get(&Lpn(unit)).cloned().unwrap_or_default();
    for unit in 0..units {
        fill.write(Lpn(unit), Payload::Tag(mix(base.seed ^ unit)));
    }
    for unit in 0..units {
        fill.write(Lpn(unit), content(unit));
    }
    for _ in 0..units {
        let unit = random.below(units);
        fill.write(Lpn(unit), content(unit));
    }
    fill.finish();
    device.cut(Instant::ZERO, |_| Torn::Absent)
}

/// The medium of a disk that was written through its commands: one of segments, all of which were written and deallocated before, or one
/// below a host FTL.
fn written(base: &Base, below: Below, has_segments: bool) -> Media {
    let device = Device::new(below.device, options(None));
    let mut stack = Stack::with_digest(Disk::new(device, below.host_ftl.as_ref()), FlushMode::Flush, None);
    let (port, contents, seed) = (stack.port(), Arc::clone(&base.contents), base.seed);
    let filled = stack.block_on(async move {
        let junk = |first: u64, count: u64| -> Vec<Payload> {
            (first..first + count).map(|at| Payload::Tag(mix(seed ^ at))).collect()
        };
        if has_segments {
            for segment in (0..BLOCKS).step_by(SEGMENT_BLOCKS as usize) {
                port.write(Write::new(Block(segment), junk(segment, 32))).completed().await?;
            }
            port.flush().completed().await?;
            for segment in (0..BLOCKS).step_by(SEGMENT_BLOCKS as usize) {
                port.discard(Block(segment), SEGMENT_BLOCKS).completed().await?;
            }
        } else {
            for first in (0..BLOCKS).step_by(32) {
                port.write(Write::new(Block(first), junk(first, 32))).completed().await?;
            }
            // What reads as zeros was written once and deallocated.
            for first in (0..BLOCKS).step_by(1024) {
                port.discard(Block(first), 1024).completed().await?;
            }
        }
        for (unit, content) in &*contents {
            port.write(Write::new(Block(unit.0), vec![content.clone()])).completed().await?;
        }
        port.flush().completed().await
    });
    filled.expect("it ends").expect("a fresh device takes a volume");
    let now = stack.cut_instant();
    stack.with_device(|device| device.cut(now, |_| Torn::Absent))
}

/// Returns the disk that wakes up with a medium. Panics where an assertion of the device fails, which is a fault to be found.
fn awake(below: &Below, planted: Option<Bug>, media: Media) -> Disk {
    let (device, _) = Recovery::begin(&below.device, options(planted), media).finish();
    device.audit();
    Disk::recover(device, below.host_ftl.as_ref())
}

/// Stands for what a power loss would leave now, besides operations in progress: the medium, and, where a capacitor or NVRAM saves what
/// was accepted, all counters, since each command that is accepted changes one.
pub(super) fn situation_salt(device: &Device) -> u64 {
    let (config, medium) = (device.config(), device.media().digest());
    if config.buffer.mode != BufferMode::PowerLossProtected && config.ftl.share.nvram_records == 0 {
        return medium;
    }
    device.metrics().list().into_iter().fold(medium, |hash, metric| mix(hash ^ metric.value))
}

/// Returns a stack with the volume of a base, whose media can be compared. Panics where an assertion of the device fails.
pub fn begin(base: &Base, on: On, mode: FlushMode, planted: Option<Bug>) -> Stack {
    let below = Below::of(base, on);
    let disk = awake(&below, planted, medium(base, on));
    Stack::with_digest(disk, mode, below.block_layer).recovered()
}

/// Returns a stack on the disk that wakes up with a medium. Panics where an assertion of the device fails, which is a fault to be found.
pub fn wake(base: &Base, on: On, mode: FlushMode, planted: Option<Bug>, media: Media) -> Stack {
    let below = Below::of(base, on);
    let disk = awake(&below, planted, media);
    Stack::above(disk, mode, below.block_layer).recovered()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::files::Format;
    use flashweir_sim::check_block_layer;

    #[test]
    fn every_disk_is_valid() {
        for (format, _) in Format::ALL {
            let base = Base::make(format, 1).unwrap();
            for seed in 0..24 {
                let base = Base { seed, ..base.clone() };
                for (on, ..) in
                    On::ALL.into_iter().filter(|(on, _)| on.is_simulated() && on.check(format).is_ok())
                {
                    let Below { device, host_ftl, block_layer } = Below::of(&base, on);
                    let named = format!("{} on {}, seed {seed}", format.name(), on.name());
                    // The device by itself has fewer blocks to spare than a configuration may say, so that GC is never far.
                    if on != On::Device {
                        device.validate().unwrap_or_else(|why| panic!("{named}: {why}"));
                    }
                    let sectors = capacity_lbas(&device, host_ftl.as_ref());
                    assert!(sectors.unwrap_or_else(|why| panic!("{named}: {why}")) >= BLOCKS * 8, "{named}");
                    if let Some(layer) = block_layer {
                        check_block_layer(&layer, &device.link)
                            .unwrap_or_else(|why| panic!("{named}: {why}"));
                    }
                }
            }
        }
    }
}
