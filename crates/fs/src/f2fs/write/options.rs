//! Mount options of a volume that is written, and its counters.

use crate::order::CommitMode;
use flashweir_core::{Duration, metrics};
use serde::{Deserialize, Serialize};

/// How a volume is mounted.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct F2fsOptions {
    /// Whether new files and symbolic links begin with inline contents, which stay in the inode as long as there is room.
    pub inline_data: bool,
    /// Whether new directories begin with inline entries.
    pub inline_dentry: bool,
    /// Rules by which pages are written in place.
    pub in_place: InPlace,
    /// Whether blocks that became free with a checkpoint are discarded.
    pub discard: bool,
    /// Fewer free blocks in a row than this are not discarded.
    pub discard_blocks_min: u32,
    /// How data, nodes and checkpoints are kept in order. In dual mode checkpoints are made durable by FLUSH.
    pub commit_mode: CommitMode,
    /// The command by which fsync makes a file durable, if it is not a checkpoint.
    pub fsync: Flushing,
    /// The command by which checkpoints become durable.
    pub checkpoint: Flushing,
    /// How cleaning moves blocks of data.
    #[serde(skip_serializing_if = "CleanBy::is_copy")]
    pub clean_by: CleanBy,
    /// Whether each fsync is a checkpoint, as with Linux's option `fastboot`: nothing has to be recovered at the next mount.
    pub fastboot: bool,
    /// A bug that tests have to find; no file can ask for one.
    #[serde(skip)]
    pub planted: Option<PlantedBug>,
    /// When sections are cleaned although there is room; `None` is never.
    pub background: Option<Background>,
    /// Time after which changes get a checkpoint without a call that needs one, and freed blocks are discarded with it; Linux has
    /// 60 s. `None` means never.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub checkpoint_interval: Option<Duration>,
}

impl Default for F2fsOptions {
    /// The options with which Linux mounts an ordinary device.
    fn default() -> Self {
        Self {
            inline_data: true,
            inline_dentry: true,
            in_place: InPlace::default(),
            discard: true,
            discard_blocks_min: 16,
            commit_mode: CommitMode::Legacy,
            fsync: Flushing::Flush,
            checkpoint: Flushing::Flush,
            clean_by: CleanBy::Copy,
            fastboot: false,
            planted: None,
            background: Some(Background::default()),
            checkpoint_interval: None,
        }
    }
}

/// Rules by which a page that has a block is written over it instead of to a log. One rule that applies is enough.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct InPlace {
    /// Always.
    pub force: bool,
    /// While logs fill holes.
    pub ssr: bool,
    /// While more than `min_util` per cent of the blocks available to users are in use.
    pub util: bool,
    /// While both `ssr` and `util` would apply.
    pub ssr_util: bool,
    /// In an fsync of at most `min_fsync_blocks` pages.
    pub fsync: bool,
    /// In background write-back.
    pub background: bool,
    /// For pages that are written past the page cache.
    pub direct: bool,
    /// For files whose extension says that their contents hardly change.
    pub cold: bool,
    /// Threshold of `util`, in per cent.
    pub min_util: u64,
    /// Threshold of `fsync`, in pages.
    pub min_fsync_blocks: u64,
}

impl InPlace {
    /// Returns rules by which nothing is written in place.
    pub fn never() -> Self {
        Self { fsync: false, direct: false, cold: false, ..Self::default() }
    }
}

impl Default for InPlace {
    fn default() -> Self {
        Self {
            force: false,
            ssr: false,
            util: false,
            ssr_util: false,
            fsync: true,
            background: false,
            direct: true,
            cold: true,
            min_util: 70,
            min_fsync_blocks: 8,
        }
    }
}

/// Background cleaning: times between two sections.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Background {
    /// Time if there are many holes and little is free; also the step by which the time changes.
    pub sleep_min: Duration,
    /// Time if there is enough free space, or the disk is in use.
    pub sleep_max: Duration,
    /// Time after a turn in which no section was worth cleaning.
    pub sleep_without_victim: Duration,
    /// The disk counts as idle when nothing was written for this time.
    pub idle: Duration,
}

impl Default for Background {
    fn default() -> Self {
        Self {
            sleep_min: Duration::from_secs(30),
            sleep_max: Duration::from_secs(60),
            sleep_without_victim: Duration::from_secs(300),
            idle: Duration::from_secs(5),
        }
    }
}

metrics! {
    /// Counters of an F2FS volume since the mount. Blocks and pages are of 4 KiB.
    pub struct F2fsMetrics {
        /// Pages of files that the layer above wrote.
        written_pages,
        /// Number of these pages that were written in place.
        in_place_pages,
        /// Blocks written to the disk, of all kinds.
        written_blocks,
        /// Blocks allocated in holes of segments that were in use.
        filled_holes,
        /// Blocks of data that cleaning moved.
        moved_data_blocks,
        /// Number of these blocks that were moved by SHARE.
        shared_data_blocks,
        /// SHARE commands.
        shares,
        /// Nodes that cleaning marked to be rewritten.
        moved_node_blocks,
        /// Sections cleaned because room was needed.
        cleaned_foreground,
        /// Sections cleaned because there was time.
        cleaned_background,
        /// Checkpoints.
        checkpoints,
        /// Calls of fsync and fdatasync that wrote nodes of the file and no checkpoint.
        fsyncs_by_nodes,
        /// Calls of fsync and fdatasync that needed a checkpoint.
        fsyncs_by_checkpoint,
        /// Blocks discarded.
        discarded_blocks,
    }
}

impl F2fsMetrics {
    /// Blocks written to the disk for each page of a file, in thousandths; 0 if no page was written.
    pub fn amplification_milli(&self) -> u64 {
        (1000 * self.written_blocks).checked_div(self.written_pages).unwrap_or(0)
    }
}

/// The command that makes something durable.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Flushing {
    /// FLUSH, which makes everything durable.
    #[default]
    Flush,
    /// RFLUSH, which makes durable what was asked for.
    RangeFlush,
}

impl Flushing {
    pub(crate) fn is_flush(&self) -> bool {
        *self == Self::Flush
    }
}

/// How cleaning moves blocks of data.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum CleanBy {
    /// They are read and written.
    #[default]
    Copy,
    /// Their new places take over the old ones by SHARE (SSC, share §6). The disk has to have that command.
    Share,
}

impl CleanBy {
    fn is_copy(&self) -> bool {
        *self == Self::Copy
    }
}

/// A bug that the crash laboratory has to find. No option that a user can reach switches one on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PlantedBug {
    /// fsync makes the file's data durable and leaves out the metadata half of the pair, as the released prototype does. In dual
    /// mode nothing is flushed.
    NoMetadataFlush,
    /// fsync makes the nodes durable but not the data to which they refer. In dual mode both are in one epoch.
    NoDataFlush,
    /// fdatasync leaves out the inode, and with it size and addresses.
    NoInode,
    /// The mark is on the first node of an fsync and not on the last.
    EarlyMark,
    /// New files are synced without the mark that makes recovery create their names.
    NoDentryMark,
    /// A file that got another name is synced by its nodes alone.
    ForgottenRename,
    /// A new file whose directory the checkpoint lacks is synced by its nodes alone.
    ForgottenDirectory,
    /// A file that has several names is synced by its nodes alone.
    ForgottenLinks,
    /// A checkpoint does not wait for its parts before it writes its last block. In dual mode its parts are in the epoch of its
    /// last block.
    NoFlushBeforeLastBlock,
    /// The last block of a checkpoint is not made durable. In dual mode: a sync of everything does not make it durable.
    LazyLastBlock,
    /// A checkpoint by range flush leaves out the data.
    NoDataInCheckpoint,
    /// A checkpoint for an fsync leaves out the file's data that were written in place.
    NoFileInCheckpoint,
    /// A checkpoint does not list the inodes without names.
    ForgottenOrphans,
    /// A block is reused as soon as no file refers to it, though the last checkpoint still does.
    EarlyReuse,
    /// Blocks that a checkpoint frees are discarded before it is durable.
    EarlyDiscard,
    /// Dual mode: data are written without an order.
    UnorderedData,
    /// Dual mode: the nodes of an fsync do not end an epoch.
    OpenNodes,
    /// Dual mode: fdatabarrier ends no epoch.
    LostBarrier,
    /// Dual mode: fdatabarrier forgets the nodes of pages that moved to another place.
    ForgottenMoves,
    /// Append segments: roll-forward goes on with whatever nodes are where the chain leads, also those of an earlier use of the segment.
    StaleGeneration,
    /// Append segments: TIMB blocks do not learn where cleaning of the map has moved blocks to. For volumes of more than 2 GiB.
    LostTimb,
}

impl PlantedBug {
    /// All planted bugs, with their names.
    pub const ALL: [(Self, &'static str); 21] = [
        (Self::NoMetadataFlush, "no-metadata-flush"),
        (Self::NoDataFlush, "no-data-flush"),
        (Self::NoInode, "no-inode"),
        (Self::EarlyMark, "early-mark"),
        (Self::NoDentryMark, "no-dentry-mark"),
        (Self::ForgottenRename, "forgotten-rename"),
        (Self::ForgottenDirectory, "forgotten-directory"),
        (Self::ForgottenLinks, "forgotten-links"),
        (Self::NoFlushBeforeLastBlock, "no-flush-before-last-block"),
        (Self::LazyLastBlock, "lazy-last-block"),
        (Self::NoDataInCheckpoint, "no-data-in-checkpoint"),
        (Self::NoFileInCheckpoint, "no-file-in-checkpoint"),
        (Self::ForgottenOrphans, "forgotten-orphans"),
        (Self::EarlyReuse, "early-reuse"),
        (Self::EarlyDiscard, "early-discard"),
        (Self::UnorderedData, "orderless-data"),
        (Self::OpenNodes, "open-nodes"),
        (Self::LostBarrier, "lost-barrier"),
        (Self::ForgottenMoves, "forgotten-moves"),
        (Self::StaleGeneration, "stale-generation"),
        (Self::LostTimb, "lost-timb"),
    ];

    /// Whether the bug can have an effect with these options.
    pub fn is_of(self, options: &F2fsOptions) -> bool {
        let is_dual = options.commit_mode == CommitMode::DualMode;
        match self {
            Self::LostTimb | Self::StaleGeneration => false,
            Self::NoDataInCheckpoint | Self::NoFileInCheckpoint => !is_dual,
            Self::UnorderedData | Self::OpenNodes | Self::LostBarrier | Self::ForgottenMoves => is_dual,
            _ => true,
        }
    }

    /// Whether the bug can have an effect on a volume on append segments; `has_chains` says whether fsync writes nodes.
    pub(crate) fn is_of_alfs(self, has_chains: bool) -> bool {
        match self {
            // Discards decide what can be written there, and nothing is written over.
            Self::EarlyReuse => false,
            // Nodes of fsync are written with FUA, and checkpoints flush everything.
            Self::NoMetadataFlush | Self::NoDataInCheckpoint | Self::NoFileInCheckpoint => false,
            Self::UnorderedData | Self::OpenNodes | Self::LostBarrier | Self::ForgottenMoves => false,
            Self::NoFlushBeforeLastBlock | Self::LazyLastBlock | Self::ForgottenOrphans => true,
            Self::EarlyDiscard => true,
            // Volumes of a laboratory have one such block, which each checkpoint writes anew.
            Self::LostTimb => false,
            // A log of nodes would have to pass from one segment to another that was discarded in the same sequence.
            Self::StaleGeneration => false,
            Self::NoDataFlush
            | Self::NoInode
            | Self::EarlyMark
            | Self::NoDentryMark
            | Self::ForgottenRename
            | Self::ForgottenDirectory
            | Self::ForgottenLinks => has_chains,
        }
    }
}
