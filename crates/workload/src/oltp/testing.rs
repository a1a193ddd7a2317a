//! What tests of the mixes run on.

use flashweir_core::Duration;
use flashweir_device::presets::preset;
use flashweir_device::{Device, DeviceOptions};
use flashweir_fs::memfs::{MemFs, MemFsConfig};
use flashweir_fs::vfs::{Creds, MountOptions, Process, Vfs};
use flashweir_sim::stack::{FlushMode, Stack};

/// A stack whose time passes, and in-memory files on a disk that takes 20 µs per page.
pub(super) fn on_mem_fs() -> (Stack, Process<MemFs>) {
    let device = DeviceOptions { seed: 1, track_contents: false, planted: None };
    let stack = Stack::new(Device::new(preset("rflush").unwrap(), device), FlushMode::RangeFlush);
    let fs = MemFs::with_disk(MemFsConfig::default(), stack.handle(), Duration::from_micros(20));
    let vfs = Vfs::mount(fs, stack.handle(), MountOptions::default()).unwrap();
    (stack, vfs.process(Creds::ROOT))
}
