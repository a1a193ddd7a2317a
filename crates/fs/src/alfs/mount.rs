//! Mounting a volume for writing.
//!
//! Place in the data flow: [`find`] finds the newest checkpoint; segments that it does not need, and that a power cut kept from
//! being discarded, are discarded; the writer of F2FS goes on behind what is written, and recovers synced files.

use super::error::Result;
use super::find;
use crate::boxed::Boxed;
use crate::f2fs::F2fs;
use crate::f2fs::appended::map::pointers;
use crate::f2fs::write::{Background, F2fsOptions, Flushing, InPlace, PlantedBug};
use crate::port::{Block, BlockPort, Sequencer};
use flashweir_core::Duration;
use flashweir_core::command::SegmentId;
use serde::{Deserialize, Serialize};
use std::rc::Rc;

/// How a volume is mounted.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct AlfsOptions {
    /// Whether new files and symbolic links begin with inline contents, which stay in the inode as long as there is room.
    pub inline_data: bool,
    /// Whether new directories begin with inline entries.
    pub inline_dentry: bool,
    /// Whether each fsync is a checkpoint, as in the paper. Otherwise it writes the nodes of one file, and a mount rolls forward.
    pub fsync_checkpoints: bool,
    /// The command by which fsync makes data durable that were written before it.
    #[serde(skip_serializing_if = "Flushing::is_flush")]
    pub fsync: Flushing,
    /// When segments are cleaned although there is room; `None` is never.
    pub background: Option<Background>,
    /// Time after which changes get a checkpoint without a call that needs one; `None` means never.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub checkpoint_interval: Option<Duration>,
    /// A bug that tests have to find; no file can ask for one.
    #[serde(skip)]
    pub planted: Option<PlantedBug>,
}

impl Default for AlfsOptions {
    fn default() -> Self {
        Self {
            inline_data: true,
            inline_dentry: true,
            fsync_checkpoints: false,
            fsync: Flushing::Flush,
            background: Some(Background::default()),
            checkpoint_interval: None,
            planted: None,
        }
    }
}

impl AlfsOptions {
    pub(super) fn of_writer(&self) -> F2fsOptions {
        F2fsOptions {
            inline_data: self.inline_data,
            inline_dentry: self.inline_dentry,
            in_place: InPlace::never(),
            fastboot: self.fsync_checkpoints,
            fsync: self.fsync,
            background: self.background.clone(),
            checkpoint_interval: self.checkpoint_interval,
            planted: self.planted,
            ..F2fsOptions::default()
        }
    }
}

/// Mounts a volume for writing. Errors: there is no volume, it has what is not supported or is corrupt, or what the disk says.
pub fn mount(port: Rc<dyn BlockPort>, options: AlfsOptions) -> Boxed<'static, Result<F2fs>> {
    Box::pin(open(port, options))
}

async fn open(port: Rc<dyn BlockPort>, options: AlfsOptions) -> Result<F2fs> {
    let (mut volume, mut written) = find::mount(Rc::clone(&port)).await?;
    let blocks = port.segment_blocks();
    let map = volume.node_map_mut().expect("it was mounted as such");
    let dead = map.dead_segments();
    if !dead.is_empty() {
        // The disk may have accepted the newest checkpoint and lose it yet: then the one before has to be there.
        port.flush().completed().await?;
    }
    for segment in &dead {
        port.discard(Block(u64::from(segment.0) * u64::from(blocks)), blocks).completed().await?;
    }
    map.note_discarded(&dead);
    dead.iter().for_each(|segment| written[segment.0 as usize - 1] = 0);
    let superblock = map.superblock.clone();
    let main = pointers(&*port, superblock.map().end..superblock.segments).await?;
    let ordered = Sequencer::new(port);
    let all = (1..).map(SegmentId).zip(written.iter().chain(&main));
    for (segment, offset) in all.filter(|(_, offset)| **offset > 0) {
        ordered.continue_at(segment, *offset);
    }
    Ok(F2fs::appending(volume, Rc::new(ordered), options.of_writer(), main).await?)
}
