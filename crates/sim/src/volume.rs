//! Makes and mounts file systems on a device.
//!
//! Place in the data flow: the owner of a block port, of a [`Stack`](crate::stack::Stack) or of the model device, gets
//! a mounted file system for it.
//!
//! Invariant: a mode stands for the same mount options everywhere: in workloads, in the crash laboratory and on a real
//! mount.
//!
//! Deliberately absent: planted bugs, and options that only tests need.

use crate::stack::{FlushMode, Port};
use flashweir_fs::ext4::Before;
use flashweir_fs::kind::AnyError;
use flashweir_fs::port::BlockPort;
use flashweir_fs::{AnyFs, Mode, NewVolume};
use std::fmt;
use std::rc::Rc;

/// Error of a volume that cannot be made or mounted.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct VolumeError {
    /// Name of the file-system format.
    pub format: &'static str,
    /// Error of the file system.
    pub error: AnyError,
}

impl fmt::Display for VolumeError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {}", self.format, self.error)
    }
}

impl std::error::Error for VolumeError {}

/// Mounts the file system found on a device, with recovery, according to the mode. Range flushes are used where the
/// host supports them.
///
/// # Errors
/// The error of the file system.
pub async fn mount_on(disk: Rc<dyn BlockPort>, flush: FlushMode, mode: &Mode) -> Result<AnyFs, VolumeError> {
    let mounted = mode.clone().with_range_flushes(flush == FlushMode::RangeFlush).mount(disk).await;
    mounted.map_err(|error| VolumeError { format: mode.kind.title(), error })
}

/// Makes a volume on an empty device and mounts it. `journal_blocks` is the size of ext4's journal; without it mke2fs's rule decides.
///
/// # Errors
/// The error of the file system.
pub async fn make(
    port: Port,
    flush: FlushMode,
    mode: &Mode,
    journal_blocks: Option<u32>,
) -> Result<AnyFs, VolumeError> {
    let mut new = NewVolume::new(port.capacity_blocks());
    new.ext4.before = Before::Zeros;
    new.ext4.journal_blocks = journal_blocks;
    let made = mode.kind.mkfs(&port, &new).await;
    made.map_err(|error| VolumeError { format: mode.kind.title(), error })?;
    mount_on(Rc::new(port), flush, mode).await
}
