//! The file systems that are tested, and what differs between them.
//!
//! Place in the data flow: [`super::volume`] makes, recovers and checks volumes of any of them; which one it is says a
//! [`Format`].

use super::token::Bug;
use super::volume::{BLOCKS, FULL, Setup};
use flashweir_contract::DeviceKind;
use flashweir_fs::AnyFs;
use flashweir_fs::ext4::{self, Ext4Options, Journaling};
use flashweir_fs::f2fs::{self, F2fsOptions, Flushing, InPlace};
use flashweir_fs::order::CommitMode;
use flashweir_fs::port::BlockPort;
use flashweir_sim::stack::FlushMode;
use serde::{Deserialize, Serialize};
use std::rc::Rc;

/// Which file system.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Format {
    /// F2FS, with its range flushes where the host has them.
    #[default]
    F2fs,
    /// The same with order in the place of waiting, on a disk with barriers.
    F2fsDual,
    /// ext4 with ordered data.
    Ext4,
    /// ext4 whose data are journalled.
    Ext4Journal,
    /// ext4 with ordered data and dual-mode journaling, on a disk with barriers.
    Ext4Dual,
}

impl Format {
    /// All of them, with their names.
    pub const ALL: [(Self, &'static str); 5] = [
        (Self::F2fs, "f2fs"),
        (Self::F2fsDual, "f2fs-dual"),
        (Self::Ext4, "ext4"),
        (Self::Ext4Journal, "ext4-journal"),
        (Self::Ext4Dual, "ext4-dual"),
    ];

    /// The names.
    pub const NAMES: [&str; 5] =
        [Self::ALL[0].1, Self::ALL[1].1, Self::ALL[2].1, Self::ALL[3].1, Self::ALL[4].1];

    /// The one with this name.
    pub fn named(name: &str) -> Option<Self> {
        Self::ALL.iter().find(|(_, known)| *known == name).map(|(format, _)| *format)
    }

    /// Whether it is ext4, however mounted.
    pub fn is_ext4(self) -> bool {
        !matches!(self, Self::F2fs | Self::F2fsDual)
    }

    /// What its journal promises of data, where it is ext4.
    pub fn journaling(self) -> Journaling {
        match self {
            Self::Ext4Journal => Journaling::Journal,
            Self::F2fs | Self::F2fsDual | Self::Ext4 | Self::Ext4Dual => Journaling::Ordered,
        }
    }

    /// How what it commits is kept in its order.
    pub fn commit_mode(self) -> CommitMode {
        match self {
            Self::F2fsDual | Self::Ext4Dual => CommitMode::DualMode,
            Self::F2fs | Self::Ext4 | Self::Ext4Journal => CommitMode::Legacy,
        }
    }

    /// Whether order takes the place of waiting.
    pub fn is_dual(self) -> bool {
        self.commit_mode() == CommitMode::DualMode
    }

    /// What the model device of it keeps.
    pub fn device_kind(self) -> DeviceKind {
        match self.commit_mode() {
            CommitMode::Legacy => DeviceKind::D1,
            CommitMode::DualMode => DeviceKind::D3,
        }
    }

    /// Its name.
    pub fn name(self) -> &'static str {
        Self::ALL.iter().find(|(known, _)| *known == self).map_or("", |(_, name)| name)
    }
}

/// How a mount is told of it.
impl From<Format> for flashweir_sim::volume::Format {
    fn from(format: Format) -> Self {
        let commit_mode = format.commit_mode();
        match format.is_ext4() {
            true => {
                let journaling = format.journaling();
                Self::Ext4(Ext4Options { journaling, commit_mode, ..Ext4Options::default() })
            }
            false => Self::F2fs { range_checkpoints: false, fastboot: false, commit_mode },
        }
    }
}

/// What a file system did, as far as somebody counts it here.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Did {
    /// Sections that it cleaned.
    pub cleaned: u64,
    /// Blocks that it wrote into holes.
    pub filled_holes: u64,
}

/// Makes a volume of [`BLOCKS`] blocks to be tested; its options may depend on the seed.
///
/// # Errors
/// What the format says of the medium.
pub async fn make(disk: &dyn BlockPort, format: Format, seed: u64) -> Result<(), String> {
    if format.is_ext4() {
        let mut volume = ext4::Options::new(BLOCKS);
        // A small journal goes round within a sequence.
        volume.journal_blocks = Some(1024);
        volume.hash_seed = [seed as u32, 1, 2, 3];
        return ext4::mkfs(disk, &volume).await.map(drop).map_err(|error| error.to_string());
    }
    let mut volume = f2fs::Options::new(BLOCKS);
    if !seed.is_multiple_of(2) {
        for feature in f2fs::Options::FEATURES {
            volume.add_feature(feature).map_err(|error| error.to_string())?;
        }
    }
    f2fs::mkfs(disk, &volume).await.map(drop).map_err(|error| error.to_string())
}

/// Mounts a file system for a case, which recovers it.
pub(super) async fn mount(disk: Rc<dyn BlockPort>, setup: Setup) -> Result<AnyFs, String> {
    match setup.format.is_ext4() {
        true => AnyFs::ext4(disk, ext4_options(setup)).await.map_err(|error| error.to_string()),
        false => AnyFs::f2fs(disk, f2fs_options(setup)).await.map_err(|error| error.to_string()),
    }
}

fn f2fs_options(setup: Setup) -> F2fsOptions {
    let Setup { format, mode, base, .. } = setup;
    let planted = match setup.planted {
        Some(Bug::F2fs(bug)) => Some(bug),
        _ => None,
    };
    let by = if mode == FlushMode::RangeFlush { Flushing::RangeFlush } else { Flushing::Flush };
    let is_odd = !base.is_multiple_of(2);
    let is_full = base & FULL != 0;
    let in_place = match format.is_dual() && base % 4 == 2 {
        // Then what is overwritten is found by other nodes.
        true => InPlace::never(),
        false => InPlace { force: is_odd && !is_full, ..InPlace::default() },
    };
    F2fsOptions {
        commit_mode: format.commit_mode(),
        fsync: by,
        checkpoint: if is_odd && !format.is_dual() { by } else { Flushing::Flush },
        in_place,
        discard_blocks_min: if is_odd { 1 } else { 16 },
        // One base in eight, with range flushes for checkpoints.
        fastboot: base % 8 == 5,
        planted,
        ..F2fsOptions::default()
    }
}

fn ext4_options(setup: Setup) -> Ext4Options {
    let planted = match setup.planted {
        Some(Bug::Ext4(bug)) => Some(bug),
        _ => None,
    };
    let (journaling, commit_mode) = (setup.format.journaling(), setup.format.commit_mode());
    // Checkpoints have to meet transactions that are not durable, within a sequence.
    let checkpoint_blocks = if setup.format.is_dual() { 24 } else { 0 };
    Ext4Options {
        journaling,
        commit_mode,
        multi_version: setup.base & 2 != 0,
        checkpoint_blocks,
        discard: !setup.base.is_multiple_of(2),
        planted,
        ..Ext4Options::default()
    }
}

/// Mounts a file system to be aged: what old contents look like has to stay on the disk.
pub(super) async fn mount_to_age(disk: Rc<dyn BlockPort>, format: Format) -> Result<AnyFs, String> {
    if format.is_ext4() {
        return AnyFs::ext4(disk, Ext4Options::default()).await.map_err(|error| error.to_string());
    }
    let options = F2fsOptions { discard: false, ..F2fsOptions::default() };
    AnyFs::f2fs(disk, options).await.map_err(|error| error.to_string())
}

/// Pages that everything on a good volume takes. Errors: what is wrong with it.
pub(super) async fn used_pages(disk: &Rc<dyn BlockPort>, format: Format) -> Result<u64, String> {
    if format.is_ext4() {
        let report = ext4::check(Rc::clone(disk)).await.map_err(|error| error.to_string())?;
        return match report.problems.first() {
            Some(problem) => Err(problem.to_string()),
            None => Ok(BLOCKS - report.free_blocks),
        };
    }
    let report = f2fs::check(Rc::clone(disk)).await.map_err(|error| error.to_string())?;
    match report.problems.first() {
        Some(problem) => Err(problem.to_string()),
        None => Ok(report.nodes + report.data_blocks + report.reserved_blocks),
    }
}

impl Did {
    /// What a file system did since its mount.
    pub(super) fn of(fs: &AnyFs) -> Self {
        match fs {
            AnyFs::F2fs(fs) => {
                let metrics = fs.metrics();
                Self {
                    cleaned: metrics.cleaned_foreground + metrics.cleaned_background,
                    filled_holes: metrics.filled_holes,
                }
            }
            AnyFs::Ext4(_) | AnyFs::Mem(_) => Self::default(),
        }
    }
}
