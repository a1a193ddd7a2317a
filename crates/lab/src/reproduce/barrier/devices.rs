//! Devices for the paper's studies of file systems and servers.

use flashweir_device::DeviceConfig;
use flashweir_device::presets::preset;
use flashweir_fs::ext4::CommitMode;

/// A preset for a file system with this commit mode: without barriers it has no penalty for them. Panics if there is no such preset.
pub fn device_of(name: &str, commit_mode: CommitMode) -> DeviceConfig {
    let mut device = preset(name).expect("it comes with the program");
    if commit_mode == CommitMode::Legacy {
        device.order.penalty = 0.0;
    }
    device
}
