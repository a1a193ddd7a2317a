//! ext4 behind the interface for callers that do not know a volume's format.

use super::error::{Named, Result};
use super::layout::superblock::{Feature, Superblock};
use super::volume::superblock_of;
use super::write::{CheckpointBy, Ext4, Ext4Options, PlantedBug};
use super::{Options, Report, check, mkfs};
use crate::any::Mounted;
use crate::boxed::Boxed;
use crate::order::CommitMode;
use crate::port::{BLOCK_BYTES, BlockPort};
use crate::volumes::{Checked, Described, Fact, Volumes};
use flashweir_core::metrics::Metric;
use std::rc::Rc;

impl Volumes for Named {
    const KEY: &'static str = "ext4";
    const HAS_RANGE_FLUSHES: bool = false;
    type Superblock = Superblock;
    type New = Options;
    type Options = Ext4Options;
    type Fs = Ext4;
    type Bug = PlantedBug;
    const BUGS: &'static [(PlantedBug, &'static str)] = &PlantedBug::ALL;

    fn superblock(port: &dyn BlockPort) -> Boxed<'_, Result<Superblock>> {
        Box::pin(superblock_of(port))
    }

    fn described(superblock: &Superblock) -> Described {
        let mut features = superblock.features.names();
        // Features that every volume has today are not listed.
        let usual = Options::new(0).features.names();
        let lacks: Vec<String> =
            usual.iter().filter(|name| !features.contains(name)).map(|name| format!("^{name}")).collect();
        features.retain(|name| !usual.contains(name) && name != Feature::RECOVER.name);
        features.extend(lacks);
        let bytes = superblock.blocks_count * u64::from(superblock.geometry().block_bytes);
        Described { bytes, label: superblock.label_text(), features }
    }

    fn mkfs<'a>(port: &'a dyn BlockPort, new: &'a Options) -> Boxed<'a, Result<Superblock>> {
        mkfs(port, new)
    }

    fn mount(port: Rc<dyn BlockPort>, options: Ext4Options) -> Boxed<'static, Result<Ext4>> {
        Ext4::mount_with(port, options)
    }

    fn check(port: Rc<dyn BlockPort>) -> Boxed<'static, Result<Checked>> {
        Box::pin(async move {
            let report = check(Rc::clone(&port)).await?;
            Ok(checked(report, &superblock_of(&*port).await?))
        })
    }

    fn commit_mode(options: &mut Ext4Options) -> Option<&mut CommitMode> {
        Some(&mut options.commit_mode)
    }

    fn describe(options: &Ext4Options) -> String {
        let barrier = if options.barrier { "" } else { " without barriers" };
        let shared = if options.checkpoint_by == CheckpointBy::Share { ", checkpoints by SHARE" } else { "" };
        format!("{} {}{barrier}{shared}", options.journaling.name(), options.commit_mode.name())
    }

    fn can_show(bug: PlantedBug, options: &Ext4Options) -> bool {
        bug.is_of(options)
    }

    fn planted(options: &mut Ext4Options) -> &mut Option<PlantedBug> {
        &mut options.planted
    }
}

impl Mounted for Ext4 {
    fn name(&self) -> &'static str {
        Named::KEY
    }

    fn metrics(&self) -> Vec<Metric> {
        self.metrics().list()
    }

    fn journal_blocks_left(&self) -> Option<u64> {
        Some(self.log_blocks_left().into())
    }
}

fn checked(report: Report, superblock: &Superblock) -> Checked {
    let Report { directories, files, others, orphans, data_blocks, metadata_blocks, free_blocks, .. } =
        report;
    let Report { is_clean, has_errors_noted, journal_blocks, .. } = report;
    let state = if is_clean { "unmounted" } else { "not unmounted" };
    let mut lines = Vec::new();
    if journal_blocks > 0 {
        lines.push(format!(
            "checked with {journal_blocks} blocks of its journal, which a mount for writing replays"
        ));
    }
    if has_errors_noted {
        lines.push("the volume has a note of earlier errors".into());
    }
    lines.push(format!(
        "{directories} directories, {files} files, {others} others, {orphans} orphans; {data_blocks} blocks of data, \
         {metadata_blocks} of metadata, {free_blocks} free"
    ));
    let facts = vec![
        ("clean", Fact::Flag(is_clean)),
        ("errors_noted", Fact::Flag(has_errors_noted)),
        ("journal_blocks", Fact::Count(journal_blocks)),
        ("directories", Fact::Count(directories)),
        ("files", Fact::Count(files)),
        ("others", Fact::Count(others)),
        ("orphans", Fact::Count(orphans)),
        ("data_blocks", Fact::Count(data_blocks)),
        ("metadata_blocks", Fact::Count(metadata_blocks)),
        ("free_blocks", Fact::Count(free_blocks)),
    ];
    let free_bytes = free_blocks * u64::from(superblock.geometry().block_bytes);
    let volume = Named::described(superblock);
    let used_blocks = (volume.bytes - free_bytes) / BLOCK_BYTES as u64;
    let (problems, problems_untold) = (report.problems, report.problems_untold);
    Checked { problems, problems_untold, used_blocks, volume: Some((volume, state.into())), lines, facts }
}
