//! ALFS behind the interface for callers that do not know a volume's format.

use super::error::{Named, Result};
use super::find::superblock_of;
use super::{AlfsOptions, Options, check, mkfs, mount};
use crate::boxed::Boxed;
use crate::f2fs::F2fs;
use crate::f2fs::appended::KEY;
use crate::f2fs::appended::layout::Superblock;
use crate::f2fs::volumes::checked;
use crate::f2fs::write::PlantedBug;
use crate::order::CommitMode;
use crate::port::{BLOCK_BYTES, BlockPort};
use crate::volumes::{Checked, Described, Volumes};
use std::rc::Rc;

impl Volumes for Named {
    const KEY: &'static str = KEY;
    const HAS_RANGE_FLUSHES: bool = true;
    const APPENDS: bool = true;
    type Superblock = Superblock;
    type New = Options;
    type Options = AlfsOptions;
    type Fs = F2fs;
    type Bug = PlantedBug;
    const BUGS: &'static [(PlantedBug, &'static str)] = &PlantedBug::ALL;

    fn superblock(port: &dyn BlockPort) -> Boxed<'_, Result<Superblock>> {
        Box::pin(superblock_of(port))
    }

    fn described(superblock: &Superblock) -> Described {
        Described {
            bytes: superblock.blocks() * BLOCK_BYTES as u64,
            label: superblock.label.clone(),
            features: superblock.features.names().iter().map(ToString::to_string).collect(),
        }
    }

    fn mkfs<'a>(port: &'a dyn BlockPort, new: &'a Options) -> Boxed<'a, Result<Superblock>> {
        mkfs(port, new)
    }

    fn mount(port: Rc<dyn BlockPort>, options: AlfsOptions) -> Boxed<'static, Result<F2fs>> {
        mount(port, options)
    }

    fn check(port: Rc<dyn BlockPort>) -> Boxed<'static, Result<Checked>> {
        Box::pin(async move {
            let report = check(Rc::clone(&port)).await?;
            Ok(checked(report, Self::described(&superblock_of(&*port).await?)))
        })
    }

    fn commit_mode(_: &mut AlfsOptions) -> Option<&mut CommitMode> {
        None
    }

    fn describe(options: &AlfsOptions) -> String {
        let fsync = if options.fsync_checkpoints { "fsync by checkpoints" } else { "roll-forward" };
        fsync.into()
    }

    fn can_show(bug: PlantedBug, options: &AlfsOptions) -> bool {
        bug.is_of_alfs(!options.fsync_checkpoints)
    }

    fn planted(options: &mut AlfsOptions) -> &mut Option<PlantedBug> {
        &mut options.planted
    }
}
