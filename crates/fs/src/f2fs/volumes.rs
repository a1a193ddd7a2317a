//! F2FS behind the interface for callers that do not know a volume's format.

use super::appended;
use super::error::{Named, Result};
use super::layout::Superblock;
use super::volume::superblock_of;
use super::write::{CleanBy, F2fs, F2fsOptions, PlantedBug};
use super::{Options, Report, check, mkfs};
use crate::any::Mounted;
use crate::boxed::Boxed;
use crate::order::CommitMode;
use crate::port::{BLOCK_BYTES, BlockPort};
use crate::volumes::{Checked, Described, Fact, Volumes};
use flashweir_core::metrics::Metric;
use std::rc::Rc;

impl Volumes for Named {
    const KEY: &'static str = "f2fs";
    const HAS_RANGE_FLUSHES: bool = true;
    type Superblock = Superblock;
    type New = Options;
    type Options = F2fsOptions;
    type Fs = F2fs;
    type Bug = PlantedBug;
    const BUGS: &'static [(PlantedBug, &'static str)] = &PlantedBug::ALL;

    fn superblock(port: &dyn BlockPort) -> Boxed<'_, Result<Superblock>> {
        Box::pin(superblock_of(port))
    }

    fn described(superblock: &Superblock) -> Described {
        Described {
            bytes: superblock.block_count * BLOCK_BYTES as u64,
            label: superblock.label.clone(),
            features: superblock.features.names().iter().map(ToString::to_string).collect(),
        }
    }

    fn mkfs<'a>(port: &'a dyn BlockPort, new: &'a Options) -> Boxed<'a, Result<Superblock>> {
        mkfs(port, new)
    }

    fn mount(port: Rc<dyn BlockPort>, options: F2fsOptions) -> Boxed<'static, Result<F2fs>> {
        F2fs::mount_with(port, options)
    }

    fn check(port: Rc<dyn BlockPort>) -> Boxed<'static, Result<Checked>> {
        Box::pin(async move {
            let report = check(Rc::clone(&port)).await?;
            Ok(checked(report, Self::described(&superblock_of(&*port).await?)))
        })
    }

    fn commit_mode(options: &mut F2fsOptions) -> Option<&mut CommitMode> {
        Some(&mut options.commit_mode)
    }

    fn describe(options: &F2fsOptions) -> String {
        let shared = if options.clean_by == CleanBy::Share { ", cleaning by SHARE" } else { "" };
        format!("{}{shared}", options.commit_mode.name())
    }

    fn can_show(bug: PlantedBug, options: &F2fsOptions) -> bool {
        bug.is_of(options)
    }

    fn planted(options: &mut F2fsOptions) -> &mut Option<PlantedBug> {
        &mut options.planted
    }
}

impl Mounted for F2fs {
    fn name(&self) -> &'static str {
        if self.appends() { appended::KEY } else { Named::KEY }
    }

    fn metrics(&self) -> Vec<Metric> {
        let mut metrics = self.metrics().list();
        metrics.extend(self.map_metrics().into_iter().flat_map(|map| map.list()));
        metrics
    }

    fn audit(&self) -> std::result::Result<(), String> {
        self.audit()
    }

    fn journal_blocks_left(&self) -> Option<u64> {
        self.map_blocks_left()
    }

    fn map_memory_bytes(&self) -> Option<[u64; 2]> {
        self.map_memory_bytes()
    }
}

/// Result of a check, with the description of its volume.
pub(crate) fn checked(report: Report, described: Described) -> Checked {
    let Report { directories, files, others, orphans, nodes, data_blocks, reserved_blocks, .. } = report;
    let Report { is_clean, synced_files, checkpoint, .. } = report;
    let state = if is_clean { "unmounted" } else { "not unmounted" };
    let volume = Some((described, format!("{state}, checkpoint {checkpoint}")));
    let synced = format!("{synced_files} files were synced after it, which a mount for writing recovers");
    let counts = format!(
        "{directories} directories, {files} files, {others} others, {orphans} orphans; {nodes} nodes, {data_blocks} blocks \
         of data, {reserved_blocks} reserved"
    );
    let lines = (synced_files > 0).then_some(synced).into_iter().chain([counts]).collect();
    let facts = vec![
        ("clean", Fact::Flag(is_clean)),
        ("synced_files", Fact::Count(synced_files)),
        ("checkpoint", Fact::Count(checkpoint)),
        ("directories", Fact::Count(directories)),
        ("files", Fact::Count(files)),
        ("others", Fact::Count(others)),
        ("orphans", Fact::Count(orphans)),
        ("nodes", Fact::Count(nodes)),
        ("data_blocks", Fact::Count(data_blocks)),
        ("reserved_blocks", Fact::Count(reserved_blocks)),
    ];
    let (problems, problems_untold) = (report.problems, report.problems_untold);
    let used_blocks = nodes + data_blocks + reserved_blocks;
    Checked { problems, problems_untold, used_blocks, volume, lines, facts }
}
