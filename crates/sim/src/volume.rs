//! How a file system is made and mounted on a device.
//!
//! Place in the data flow: whoever has a block port, of a [`Stack`](crate::stack::Stack) or of the model device, gets a mounted
//! file system for it.
//!
//! Invariant: a mode says the same mount options everywhere: in workloads, in the crash laboratory and on a real mount.
//!
//! Deliberately absent: planted bugs and options that only a test asks for.

use crate::stack::{FlushMode, Port};
use flashweir_fs::ext4::Before;
use flashweir_fs::kind::AnyError;
use flashweir_fs::port::BlockPort;
use flashweir_fs::{AnyFs, Mode, NewVolume};
use std::fmt;
use std::rc::Rc;

/// A volume that cannot be made or mounted.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct VolumeError {
    /// The file system.
    pub format: &'static str,
    /// What it says.
    pub error: AnyError,
}

impl fmt::Display for VolumeError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {}", self.format, self.error)
    }
}

impl std::error::Error for VolumeError {}

/// Mounts a file system from what is on a device, with recovery, as the mode says. Range flushes are used where the host has them.
///
/// # Errors
/// What the format says of the medium.
pub async fn mount_on(disk: Rc<dyn BlockPort>, flush: FlushMode, mode: &Mode) -> Result<AnyFs, VolumeError> {
    let mounted = mode.clone().with_range_flushes(flush == FlushMode::RangeFlush).mount(disk).await;
    mounted.map_err(|error| VolumeError { format: mode.kind.title(), error })
}

/// Makes a volume on an empty device, and mounts it.
///
/// # Errors
/// What the format says of the medium.
pub async fn make(port: Port, flush: FlushMode, mode: &Mode) -> Result<AnyFs, VolumeError> {
    let mut new = NewVolume::new(port.capacity_blocks());
    new.ext4.before = Before::Zeros;
    let made = mode.kind.mkfs(&port, &new).await;
    made.map_err(|error| VolumeError { format: mode.kind.title(), error })?;
    mount_on(Rc::new(port), flush, mode).await
}
