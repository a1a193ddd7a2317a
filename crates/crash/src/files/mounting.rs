//! Makes, mounts and inspects volumes of each format, with the options of a case.
//!
//! Place in the data flow: [`super::volume`] calls it and has no code for a particular format.

use super::bug::Bug;
use super::format::Format;
use super::setup::{BLOCKS, FULL, FULL_BLOCKS, Setup};
use flashweir_core::Duration;
use flashweir_fs::alfs::AlfsOptions;
use flashweir_fs::ext4::{CheckpointBy, Ext4Options};
use flashweir_fs::f2fs::{self, Background, CleanBy, F2fsOptions, Flushing, InPlace};
use flashweir_fs::port::BlockPort;
use flashweir_fs::{AnyFs, Mode, Mounted as _, NewVolume};
use flashweir_sim::stack::FlushMode;
use std::ops::Add;
use std::rc::Rc;

/// Counts of a file system's work.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Did {
    /// Number of sections cleaned while a writer waited for space.
    pub cleaned: u64,
    /// Number of sections cleaned in the background.
    pub cleaned_background: u64,
    /// Number of blocks written into holes.
    pub filled_holes: u64,
    /// Number of blocks that were moved by SHARE: to their places by checkpoints, or by cleaning.
    pub shared_blocks: u64,
}

/// Makes a volume to be tested, on a disk of [`BLOCKS`] blocks; its options may depend on the seed.
///
/// # Errors
/// The error of the file system.
pub async fn make(disk: &dyn BlockPort, format: Format, seed: u64) -> Result<(), String> {
    // On append segments most of a smaller volume would be for logs and cleaning.
    let blocks = if seed & FULL != 0 && !format.appends() { FULL_BLOCKS } else { BLOCKS };
    let mut new = NewVolume::new(blocks);
    // A small journal wraps around within a sequence.
    new.ext4.journal_blocks = Some(1024);
    new.ext4.hash_seed = [seed as u32, 1, 2, 3];
    if !seed.is_multiple_of(2) {
        for feature in f2fs::Options::FEATURES {
            new.f2fs.add_feature(feature).map_err(|error| error.to_string())?;
        }
        new.alfs.features = new.f2fs.features;
    }
    format.kind.mkfs(disk, &new).await.map(drop).map_err(|error| error.to_string())
}

/// Whether a file system frees space by cleaning.
pub(super) fn cleans(format: Format) -> bool {
    !format.is_ext4()
}

/// Mounts a file system for a case, which recovers it.
pub(super) async fn mount(disk: Rc<dyn BlockPort>, setup: Setup) -> Result<AnyFs, String> {
    let (f2fs, ext4, alfs) = (f2fs_options(setup), ext4_options(setup), alfs_options(setup));
    let mut mode = Mode { kind: setup.format.kind, f2fs, ext4, alfs };
    if let Some(Bug::FileSystem(bug)) = setup.planted {
        mode.plant(bug);
    }
    mode.mount(disk).await.map_err(|error| error.to_string())
}

fn f2fs_options(setup: Setup) -> F2fsOptions {
    let Setup { format, mode, base, .. } = setup;
    let by = if mode == FlushMode::RangeFlush { Flushing::RangeFlush } else { Flushing::Flush };
    let is_odd = !base.is_multiple_of(2);
    let is_full = base & FULL != 0;
    let in_place = match (format.is_dual() || is_full) && base % 4 == 2 {
        // Overwritten blocks then move to other places, and leave holes.
        true => InPlace::never(),
        false => InPlace { force: is_odd && !is_full, ..InPlace::default() },
    };
    let (inline_data, inline_dentry) = inline(base);
    F2fsOptions {
        inline_data,
        inline_dentry,
        commit_mode: format.commit_mode,
        fsync: by,
        checkpoint: if is_odd && !format.is_dual() { by } else { Flushing::Flush },
        in_place,
        clean_by: if format.shares { CleanBy::Share } else { CleanBy::Copy },
        discard_blocks_min: if is_odd { 1 } else { 16 },
        background: is_full.then(restless).or(F2fsOptions::default().background),
        // One base in eight, with range flushes for checkpoints.
        fastboot: base % 8 == 5,
        ..F2fsOptions::default()
    }
}

fn alfs_options(Setup { mode, base, .. }: Setup) -> AlfsOptions {
    let is_range = mode == FlushMode::RangeFlush && base.is_multiple_of(2);
    let (inline_data, inline_dentry) = inline(base);
    AlfsOptions {
        inline_data,
        inline_dentry,
        fsync: if is_range { Flushing::RangeFlush } else { Flushing::Flush },
        background: (base & FULL != 0).then(restless).or(AlfsOptions::default().background),
        // One base in four.
        fsync_checkpoints: base % 4 == 1,
        ..AlfsOptions::default()
    }
}

/// Whether new files and directories begin inside of their inodes: on one base in four directories have blocks from the beginning, on half of
/// those files, too.
fn inline(base: u64) -> (bool, bool) {
    (base % 8 != 6, base % 4 != 2)
}

/// Returns background cleaning that does not wait for idle time and runs often, so that it coincides with the calls of
/// a sequence.
fn restless() -> Background {
    Background {
        sleep_min: Duration::from_millis(2),
        sleep_max: Duration::from_millis(10),
        sleep_without_victim: Duration::from_millis(20),
        idle: Duration::ZERO,
    }
}

fn ext4_options(Setup { format, base, .. }: Setup) -> Ext4Options {
    Ext4Options {
        journaling: format.journaling,
        commit_mode: format.commit_mode,
        multi_version: base & 2 != 0,
        forced_commits: base & 16 != 0,
        // Within a sequence, checkpoints must coincide with transactions that are not durable. Those that share come more often on
        // one volume than on the other.
        checkpoint_blocks: match (format.shares, format.is_dual()) {
            (true, _) if base.is_multiple_of(2) => 10,
            (true, _) | (_, true) => 24,
            (false, false) if base.is_multiple_of(2) => 0,
            (false, false) => 24,
        },
        checkpoint_by: if format.shares { CheckpointBy::Share } else { CheckpointBy::Write },
        // A journal that begins with 1,024 grows at the first checkpoint, and the second one.
        journal_blocks_max: if base.is_multiple_of(2) { 0 } else { 3_000 },
        discard: !base.is_multiple_of(2),
        ..Ext4Options::default()
    }
}

/// Mounts a file system for aging, so that old contents stay on the disk.
pub(super) async fn mount_to_age(disk: Rc<dyn BlockPort>, format: Format) -> Result<AnyFs, String> {
    let mut mode = Mode::from(format.kind);
    mode.f2fs.discard = false;
    mode.mount(disk).await.map_err(|error| error.to_string())
}

/// Returns the number of pages in use on an intact volume; fails with a description of the damage.
pub(super) async fn used_pages(disk: &Rc<dyn BlockPort>, format: Format) -> Result<u64, String> {
    let checked = format.kind.check(Rc::clone(disk)).await.map_err(|error| error.to_string())?;
    match checked.problems.first() {
        Some(problem) => Err(problem.to_string()),
        None => Ok(checked.used_blocks),
    }
}

impl Add for Did {
    type Output = Self;

    fn add(self, other: Self) -> Self {
        Self {
            cleaned: self.cleaned + other.cleaned,
            cleaned_background: self.cleaned_background + other.cleaned_background,
            filled_holes: self.filled_holes + other.filled_holes,
            shared_blocks: self.shared_blocks + other.shared_blocks,
        }
    }
}

impl Did {
    /// Returns the counts of a file system since its mount.
    pub(super) fn of(fs: &AnyFs) -> Self {
        Self {
            cleaned: fs.metric("cleaned_foreground"),
            cleaned_background: fs.metric("cleaned_background"),
            filled_holes: fs.metric("filled_holes"),
            shared_blocks: fs.metric("shared_blocks") + fs.metric("shared_data_blocks"),
        }
    }
}
