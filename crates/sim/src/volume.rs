//! Which file system is on a device, and how it is made and mounted.
//!
//! Place in the data flow: whoever has a block port, of a [`Stack`](crate::stack::Stack) or of the model device, gets a mounted
//! file system for it.
//!
//! Invariant: a format says the same mount options everywhere: in workloads, in the crash laboratory and on a real mount.
//!
//! Deliberately absent: planted bugs and options that only a test asks for.

use crate::stack::{FlushMode, Port};
use flashweir_core::Duration;
use flashweir_fs::AnyFs;
use flashweir_fs::ext4::{self, Before, Ext4Options};
use flashweir_fs::f2fs::{self, F2fsOptions, Flushing};
use flashweir_fs::order::CommitMode;
use flashweir_fs::port::BlockPort;
use std::fmt;
use std::rc::Rc;

/// Which file system is on the device, and how it is mounted.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Format {
    /// F2FS.
    F2fs {
        /// Checkpoints are made durable by range flushes too, if files are; the paper leaves that as future work.
        range_checkpoints: bool,
        /// Whether each fsync is a checkpoint.
        fastboot: bool,
        /// How its order is kept. Dual mode needs a device that keeps epochs in their order.
        commit_mode: CommitMode,
    },
    /// ext4. Its dual mode needs a device that keeps epochs in their order, or a block layer that does.
    Ext4(Ext4Options),
}

impl Default for Format {
    fn default() -> Self {
        Self::F2fs { range_checkpoints: false, fastboot: false, commit_mode: CommitMode::Legacy }
    }
}

/// A volume that cannot be made or mounted.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct VolumeError {
    /// The file system.
    pub format: &'static str,
    /// What it says.
    pub error: String,
}

impl fmt::Display for VolumeError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {}", self.format, self.error)
    }
}

impl std::error::Error for VolumeError {}

impl Format {
    /// Name of the file system.
    pub fn name(&self) -> &'static str {
        match self {
            Self::F2fs { .. } => "F2FS",
            Self::Ext4(_) => "ext4",
        }
    }
}

/// Mounts a file system from what is on a device, with recovery, as the format says.
///
/// # Errors
/// What the format says of the medium.
pub async fn mount_on(
    disk: Rc<dyn BlockPort>,
    flush: FlushMode,
    format: &Format,
) -> Result<AnyFs, VolumeError> {
    mount_with(disk, flush, format, None).await
}

/// The same; F2FS makes a checkpoint after `checkpoint_interval` if there is something for one, as ext4 commits after five seconds.
///
/// # Errors
/// What the format says of the medium.
pub async fn mount_with(
    disk: Rc<dyn BlockPort>,
    flush: FlushMode,
    format: &Format,
    checkpoint_interval: Option<Duration>,
) -> Result<AnyFs, VolumeError> {
    let error = |error: String| VolumeError { format: format.name(), error };
    match format {
        Format::F2fs { range_checkpoints, fastboot, commit_mode } => {
            let fsync = match flush {
                FlushMode::RangeFlush => Flushing::RangeFlush,
                FlushMode::Flush | FlushMode::NoFlush => Flushing::Flush,
            };
            let checkpoint = if *range_checkpoints { fsync } else { Flushing::Flush };
            let (fastboot, commit_mode) = (*fastboot, *commit_mode);
            let options = F2fsOptions {
                fsync,
                checkpoint,
                fastboot,
                commit_mode,
                checkpoint_interval,
                ..F2fsOptions::default()
            };
            AnyFs::f2fs(disk, options).await.map_err(|why| error(why.to_string()))
        }
        Format::Ext4(options) => {
            AnyFs::ext4(disk, options.clone()).await.map_err(|why| error(why.to_string()))
        }
    }
}

/// Makes a volume on an empty device, and mounts it.
///
/// # Errors
/// What the format says of the medium.
pub async fn make(port: Port, flush: FlushMode, format: &Format) -> Result<AnyFs, VolumeError> {
    let error = |error: String| VolumeError { format: format.name(), error };
    match format {
        Format::F2fs { .. } => {
            let volume = f2fs::Options::new(port.capacity_blocks());
            f2fs::mkfs(&port, &volume).await.map(drop).map_err(|why| error(why.to_string()))?;
        }
        Format::Ext4(_) => {
            let volume =
                ext4::Options { before: Before::Zeros, ..ext4::Options::new(port.capacity_blocks()) };
            ext4::mkfs(&port, &volume).await.map(drop).map_err(|why| error(why.to_string()))?;
        }
    }
    mount_on(Rc::new(port), flush, format).await
}
