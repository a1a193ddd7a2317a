//! A host FTL above a device with an open channel: together they are a disk, as a device with pages is one by itself.
//!
//! Place in the data flow: whoever runs something on a disk makes a [`Disk`] and gives it to a world, a stack or a live engine, which
//! put a block layer above the FTL if there is one.
//!
//! Invariant: what is checked here cannot be refused by the device for its shape later.
//!
//! Deliberately absent: the FTL itself (`flashweir-host`).

use flashweir_core::{Lpn, Payload};
use flashweir_device::config::{DeviceConfig, FirmwareKind, OpenVersion, PointerMove};
use flashweir_device::{Device, DeviceMetrics, Geometry, UNREADABLE};
use flashweir_host::{Dispatch, HostConfig, HostFtl, HostFtlConfig, HostFtlMetrics, Layout};

/// A device, and the host FTL above it if it has an open channel.
#[derive(Clone, Debug)]
pub struct Disk {
    /// The device.
    pub device: Device,
    /// The host FTL.
    pub host_ftl: Option<Box<HostFtl>>,
}

impl From<Device> for Disk {
    fn from(device: Device) -> Self {
        Self { device, host_ftl: None }
    }
}

impl Disk {
    /// A device whose blocks are all erased, below a host FTL if one is configured. Panics where [`check_host_ftl`] fails.
    pub fn new(device: Device, config: Option<&HostFtlConfig>) -> Self {
        Self::with(device, config, HostFtl::new)
    }

    /// A device that was in use: the host FTL recovers before it answers. Panics where [`check_host_ftl`] fails.
    pub fn recover(device: Device, config: Option<&HostFtlConfig>) -> Self {
        Self::with(device, config, HostFtl::recover)
    }

    fn with(
        device: Device,
        config: Option<&HostFtlConfig>,
        make: fn(HostFtlConfig, flashweir_ftl::FlashGeometry, usize) -> Result<HostFtl, String>,
    ) -> Self {
        let host_ftl = config.map(|config| {
            check_host_ftl(config, device.config()).unwrap_or_else(|reason| panic!("{reason}"));
            let geometry = device.geometry();
            let config = on_link(config, device.config());
            let ftl = make(config, geometry.open_flash(), geometry.unit_bytes as usize);
            Box::new(ftl.unwrap_or_else(|reason| panic!("{reason}")))
        });
        Self { device, host_ftl }
    }
}

/// The configuration as it is above this device: 0 queues stand for all of the link, and OCSSD 2.0 keeps units back.
fn on_link(config: &HostFtlConfig, device: &DeviceConfig) -> HostFtlConfig {
    let queues = if config.queues == 0 { device.link.queues } else { config.queues };
    let cached_units = match device.open.version {
        OpenVersion::V12 => 0,
        OpenVersion::V20 => device.open.cached_units,
    };
    let one_write_per_chunk = device.open.pointer == PointerMove::Programmed;
    HostFtlConfig { queues, cached_units, one_write_per_chunk, ..config.clone() }
}

/// Checks a host FTL by itself and above this device, and returns its numbers.
///
/// # Errors
/// Key, value, and what would have been valid.
pub fn check_host_ftl(config: &HostFtlConfig, device: &DeviceConfig) -> Result<Layout, String> {
    if device.firmware != FirmwareKind::OpenChannel {
        return Err(format!(
            "host_ftl: expected none above {}, which has an FTL of its own: a host FTL needs an open channel, as `qblke` has",
            device.name
        ));
    }
    let open = &device.open;
    if open.max_open != 0 {
        return Err(format!(
            "open.max_open = {}: expected 0 below a host FTL, which opens a chunk of each parallel unit and more",
            open.max_open
        ));
    }
    if config.queues > device.link.queues {
        return Err(format!(
            "host_ftl.queues = {}: expected at most {}, as the link has, or 0 for all of them",
            config.queues, device.link.queues
        ));
    }
    let geometry = Geometry::new(device);
    Layout::new(&on_link(config, device), geometry.open_flash(), geometry.unit_bytes as usize)
}

/// Checks that a block layer can stand above a host FTL.
///
/// # Errors
/// Key, value, and what would have been valid.
pub fn check_above(block_layer: &HostConfig) -> Result<(), String> {
    if block_layer.dispatch == Dispatch::MultiQueue {
        return Err("block_layer.dispatch = \"multi-queue\": expected another above a host FTL, which spreads requests over its \
                    rings itself"
            .into());
    }
    Ok(())
}

/// Sectors that requests may name: those of the host FTL if there is one, else those of the device.
///
/// # Errors
/// As [`check_host_ftl`].
pub fn capacity_lbas(device: &DeviceConfig, host_ftl: Option<&HostFtlConfig>) -> Result<u64, String> {
    let layout = host_ftl.map(|config| check_host_ftl(config, device)).transpose()?;
    Ok(layout.map_or_else(
        || Geometry::new(device).capacity_lbas(),
        |layout| layout.user_units * layout.unit_sectors,
    ))
}

/// The content that a read through this host FTL, which has recovered, would return now. For checks: it takes no virtual time.
pub fn peek_above(ftl: &HostFtl, device: &Device, lpn: Lpn) -> Payload {
    match ftl.find(lpn) {
        None => Payload::Zero,
        Some(Ok(payload)) => payload,
        Some(Err(ppa)) => {
            let content = device.media().payload(device.geometry().open_unit(ppa));
            content.unwrap_or(Payload::Tag(UNREADABLE))
        }
    }
}

/// Counters of a device as they are for those above the host FTL: what it was asked to write, and what it writes besides.
pub(crate) fn seen_above(device: &DeviceMetrics, ftl: &HostFtlMetrics) -> DeviceMetrics {
    DeviceMetrics {
        host_units_written: ftl.user_units,
        user_units_programmed: ftl.user_programmed_units,
        gc_units_moved: ftl.gc_units,
        filler_units: ftl.padded_units,
        meta_units: ftl.meta_units,
        flushes: ftl.flushes,
        range_flushes: ftl.range_flushes,
        epochs: ftl.epochs,
        ..*device
    }
}
