//! The device of the SHARE paper.

use flashweir_device::DeviceConfig;
use flashweir_device::presets::preset;

/// The paper's device, as large as mke2fs needs to choose a journal of 128 MiB.
pub(super) fn device() -> DeviceConfig {
    let mut device = preset("share-960evo").expect("it comes with the program");
    device.geometry.blocks_per_plane = 160;
    device.validate().expect("more blocks are always possible");
    device
}
