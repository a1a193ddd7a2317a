//! Images of disks for other programs.
//!
//! Invariant: an image that was written for one question is gone after it, and its directory with the last one.

use crate::error::{Failure, Outcome};
use flashweir_core::{Lpn, Payload};
use flashweir_fs::port::{Block, BlockPort, Image, PortError, SegmentImage, Write, block_on};
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};

pub(crate) type Blocks = BTreeMap<Lpn, Payload>;

/// Images for other programs, each in a file of its own that is there only for one question.
pub(crate) struct Images {
    dir: PathBuf,
    next: AtomicU64,
}

impl Images {
    /// Makes it in a directory of its own, which is removed with it.
    pub(crate) fn new(purpose: &str) -> Outcome<Self> {
        let dir = std::env::temp_dir().join(format!("weir-{purpose}-{}", std::process::id()));
        std::fs::create_dir_all(&dir).map_err(|error| Failure::Run(format!("{}: {error}", dir.display())))?;
        Ok(Self { dir, next: AtomicU64::new(0) })
    }

    /// Asks about a disk with these blocks.
    pub(crate) fn ask<T>(
        &self,
        contents: &Blocks,
        blocks: u64,
        question: impl FnOnce(&Path) -> Result<T, String>,
    ) -> Result<T, String> {
        let path = self.dir.join(format!("{}.img", self.next.fetch_add(1, Ordering::Relaxed)));
        let answer = write_image(&path, contents, blocks, 0).and_then(|()| question(&path));
        let _ = std::fs::remove_file(&path);
        answer
    }
}

impl Drop for Images {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.dir);
    }
}

/// A file with the blocks of a disk; with `segment_blocks` above 0 that of a disk of append segments.
pub(crate) fn write_image(
    path: &Path,
    contents: &Blocks,
    blocks: u64,
    segment_blocks: u32,
) -> Result<(), String> {
    let said = |error: PortError| error.to_string();
    let image: Box<dyn BlockPort> = match blocks.checked_div(segment_blocks.into()) {
        None => Box::new(Image::create(path, blocks).map_err(said)?),
        Some(segments) => {
            Box::new(SegmentImage::create(path, segments as u32, segment_blocks).map_err(said)?)
        }
    };
    for (lpn, payload) in contents {
        let write = Write::new(Block(lpn.0), vec![payload.clone()]);
        block_on(image.write(write).completed()).map_err(said)?;
    }
    block_on(image.flush().completed()).map(drop).map_err(said)
}
