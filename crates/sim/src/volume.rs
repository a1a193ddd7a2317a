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

/// What a new volume has that is not chosen by its size.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct MakeOptions {
    /// Blocks of ext4's journal; without it mke2fs's rule decides.
    pub journal_blocks: Option<u32>,
    /// Segments of 2 MiB in a section of F2FS, if not 1.
    pub segments_per_section: Option<u32>,
    /// Part of the main area of F2FS and of ALFS that is not available to users, in hundredths of a per cent; without it the part that
    /// leaves them most.
    pub overprovision: Option<u32>,
}

/// Makes a volume on an empty device and mounts it.
///
/// # Errors
/// The error of the file system.
pub async fn make(
    port: Port,
    flush: FlushMode,
    mode: &Mode,
    options: MakeOptions,
) -> Result<AnyFs, VolumeError> {
    let mut new = NewVolume::new(port.capacity_blocks());
    new.ext4.before = Before::Zeros;
    new.ext4.journal_blocks = options.journal_blocks;
    new.f2fs.segments_per_section = options.segments_per_section.unwrap_or(new.f2fs.segments_per_section);
    (new.f2fs.overprovision, new.alfs.overprovision) = (options.overprovision, options.overprovision);
    let made = mode.kind.mkfs(&port, &new).await;
    made.map_err(|error| VolumeError { format: mode.kind.title(), error })?;
    mount_on(Rc::new(port), flush, mode).await
}
