//! Making, mounting and looking through volumes of each format, with the options of a case.
//!
//! Place in the data flow: [`super::volume`] has it done, and knows no format itself.

use super::bug::Bug;
use super::format::Format;
use super::setup::{BLOCKS, FULL, FULL_BLOCKS, Setup};
use flashweir_core::Duration;
use flashweir_fs::AnyFs;
use flashweir_fs::ext4::{self, Ext4Options};
use flashweir_fs::f2fs::{self, Background, F2fsOptions, Flushing, InPlace};
use flashweir_fs::port::BlockPort;
use flashweir_sim::stack::FlushMode;
use std::ops::Add;
use std::rc::Rc;

/// What a file system did, as far as somebody counts it here.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Did {
    /// Sections that it cleaned because somebody waited for room.
    pub cleaned: u64,
    /// Sections that it cleaned because there was time.
    pub cleaned_background: u64,
    /// Blocks that it wrote into holes.
    pub filled_holes: u64,
}

/// Makes a volume to be tested, on a disk of [`BLOCKS`] blocks; its options may depend on the seed.
///
/// # Errors
/// What the format says of the medium.
pub async fn make(disk: &dyn BlockPort, format: Format, seed: u64) -> Result<(), String> {
    let blocks = if seed & FULL != 0 { FULL_BLOCKS } else { BLOCKS };
    if format.is_ext4() {
        let mut volume = ext4::Options::new(blocks);
        // A small journal goes round within a sequence.
        volume.journal_blocks = Some(1024);
        volume.hash_seed = [seed as u32, 1, 2, 3];
        return ext4::mkfs(disk, &volume).await.map(drop).map_err(|error| error.to_string());
    }
    let mut volume = f2fs::Options::new(blocks);
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
    let in_place = match (format.is_dual() || is_full) && base % 4 == 2 {
        // Then what is overwritten is found by other nodes, and leaves holes.
        true => InPlace::never(),
        false => InPlace { force: is_odd && !is_full, ..InPlace::default() },
    };
    F2fsOptions {
        commit_mode: format.commit_mode(),
        fsync: by,
        checkpoint: if is_odd && !format.is_dual() { by } else { Flushing::Flush },
        in_place,
        discard_blocks_min: if is_odd { 1 } else { 16 },
        background: is_full.then(restless).or(F2fsOptions::default().background),
        // One base in eight, with range flushes for checkpoints.
        fastboot: base % 8 == 5,
        planted,
        ..F2fsOptions::default()
    }
}

/// Cleaning in the background that does not wait until nobody works, and comes back soon: it meets the calls of a sequence.
fn restless() -> Background {
    Background {
        sleep_min: Duration::from_millis(2),
        sleep_max: Duration::from_millis(10),
        sleep_without_victim: Duration::from_millis(20),
        idle: Duration::ZERO,
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

impl Add for Did {
    type Output = Self;

    fn add(self, other: Self) -> Self {
        Self {
            cleaned: self.cleaned + other.cleaned,
            cleaned_background: self.cleaned_background + other.cleaned_background,
            filled_holes: self.filled_holes + other.filled_holes,
        }
    }
}

impl Did {
    /// What a file system did since its mount.
    pub(super) fn of(fs: &AnyFs) -> Self {
        match fs {
            AnyFs::F2fs(fs) => {
                let metrics = fs.metrics();
                Self {
                    cleaned: metrics.cleaned_foreground,
                    cleaned_background: metrics.cleaned_background,
                    filled_holes: metrics.filled_holes,
                }
            }
            AnyFs::Ext4(_) | AnyFs::Mem(_) => Self::default(),
        }
    }
}
