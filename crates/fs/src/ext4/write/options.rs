//! Mount options of a volume that is written, and its counters.

use crate::order::CommitMode;
use flashweir_core::{Duration, metrics};
use serde::{Deserialize, Serialize};

/// What the journal promises for the data of files.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Journaling {
    /// Data are on the disk before the transaction that makes them part of a file.
    #[default]
    Ordered,
    /// Nothing: after a power cut a file may have blocks with older contents of the disk.
    Writeback,
    /// Data go through the journal as metadata do: data that were written together are there together, or not at all.
    Journal,
}

impl Journaling {
    /// Name of the mode.
    pub fn name(self) -> &'static str {
        match self {
            Self::Ordered => "ordered",
            Self::Writeback => "writeback",
            Self::Journal => "journal",
        }
    }
}

/// How a checkpoint brings the blocks of the log to their places.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum CheckpointBy {
    /// It writes them once more.
    #[default]
    Write,
    /// Their places take over the copies in the log by SHARE (share §5): SOJ with ordered data, SDJ with journalled data. The disk has
    /// to have that command.
    Share,
}

/// How a volume is mounted.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Ext4Options {
    /// What the journal promises for data.
    pub journaling: Journaling,
    /// How transactions are kept in order.
    pub commit_mode: CommitMode,
    /// Dual mode: whether a transaction is dispatched while others that share blocks with it are under way, each with a version of
    /// its own (as in CJFS), or waits for them and takes more changes meanwhile (as in BarrierFS).
    pub multi_version: bool,
    /// Number of blocks of the log in use from which on they are written to their places; 0 waits until the log is full.
    pub checkpoint_blocks: u32,
    /// How they get there.
    pub checkpoint_by: CheckpointBy,
    /// Most blocks of the journal, which doubles when a commit has to wait for room; 0: it does not grow.
    #[serde(skip_serializing_if = "flashweir_core::is_zero")]
    pub journal_blocks_max: u32,
    /// With journalled data: whether a sync commits whatever was changed, of any file, as Linux does (share §8.12), or only waits for what
    /// was changed of its own.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    pub forced_commits: bool,
    /// Whether the disk is asked to make writes durable, and to do so in order. Without it a power cut may destroy the volume.
    pub barrier: bool,
    /// Whether blocks are discarded when the transaction that freed them is durable.
    pub discard: bool,
    /// Time after which changes are made durable without a sync.
    pub commit_interval: Duration,
    /// A bug that tests have to find; no file can ask for one.
    #[serde(skip)]
    pub planted: Option<PlantedBug>,
}

/// A bug that the crash laboratory has to find. No option that a user can reach switches one on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PlantedBug {
    /// Nothing is flushed, and no commit block is durable by itself.
    NoBarriers,
    /// A commit does not wait for data.
    UnorderedData,
    /// The commit block is written before the other blocks of its transaction are durable.
    NoFlushBeforeCommit,
    /// The commit block is not made durable.
    LazyCommit,
    /// Freed blocks are not revoked.
    NoRevoke,
    /// The list on the disk lacks the inodes without names.
    ForgottenOrphans,
    /// Freed blocks are discarded before their transaction is durable.
    EarlyDiscard,
    /// Recovery continues behind the end of the log, where an earlier use of the journal left transactions.
    TrustedOldCommits,
    /// With journalled data: one write is split into two transactions.
    SplitWrites,
    /// With journalled data: of a set of several files the last one is in the transaction after the others'.
    LeftOutOfSet,
    /// Dual mode: a checkpoint writes contents to their places although their transactions were only dispatched and are not
    /// durable.
    ForgottenConflicts,
    /// A block that was revoked is still brought to its place by SHARE.
    PairAfterRevoke,
    /// Of a block that is in several transactions the place takes over the oldest copy in the log.
    OlderPair,
    /// The log is reused before the SHAREs of its blocks are durable.
    TailBeforeShare,
    /// A place takes over a copy in the log of which the first word was taken out.
    SharedEscaped,
    /// The log uses new blocks before the journal's inode has them at its place.
    LogBeforeInode,
}

impl PlantedBug {
    /// All planted bugs, with their names.
    pub const ALL: [(Self, &'static str); 16] = [
        (Self::NoBarriers, "no-barriers"),
        (Self::UnorderedData, "unordered-data"),
        (Self::NoFlushBeforeCommit, "no-flush-before-commit"),
        (Self::LazyCommit, "lazy-commit"),
        (Self::NoRevoke, "no-revoke"),
        (Self::ForgottenOrphans, "no-orphans"),
        (Self::EarlyDiscard, "early-discard-of-freed"),
        (Self::TrustedOldCommits, "trusted-old-commits"),
        (Self::SplitWrites, "split-writes"),
        (Self::LeftOutOfSet, "left-out-of-set"),
        (Self::ForgottenConflicts, "forgotten-conflicts"),
        (Self::PairAfterRevoke, "pair-after-revoke"),
        (Self::OlderPair, "older-pair"),
        (Self::TailBeforeShare, "tail-before-share"),
        (Self::SharedEscaped, "shared-escaped"),
        (Self::LogBeforeInode, "log-before-inode"),
    ];

    /// Whether the bug can have an effect with these options.
    pub fn is_of(self, options: &Ext4Options) -> bool {
        match self {
            Self::ForgottenConflicts => options.commit_mode == CommitMode::DualMode,
            Self::UnorderedData => options.journaling == Journaling::Ordered,
            Self::SplitWrites | Self::LeftOutOfSet => options.journaling == Journaling::Journal,
            Self::PairAfterRevoke | Self::OlderPair | Self::TailBeforeShare | Self::SharedEscaped => {
                options.checkpoint_by == CheckpointBy::Share
            }
            _ => true,
        }
    }
}

impl Default for Ext4Options {
    /// The options with which Linux mounts it.
    fn default() -> Self {
        Self {
            journaling: Journaling::Ordered,
            commit_mode: CommitMode::Legacy,
            multi_version: false,
            checkpoint_blocks: 0,
            checkpoint_by: CheckpointBy::Write,
            journal_blocks_max: 0,
            forced_commits: false,
            barrier: true,
            discard: false,
            commit_interval: Duration::from_secs(5),
            planted: None,
        }
    }
}

metrics! {
    /// Counters of an ext4 volume since the mount. Blocks and pages are of 4 KiB.
    pub struct Ext4Metrics {
        /// Pages of files that the layer above wrote.
        written_pages,
        /// Number of these pages that were allocated when they were written.
        allocated_pages,
        /// Transactions that were committed.
        commits,
        /// Blocks in committed transactions, including data where data are journalled.
        journalled_blocks,
        /// Blocks for which a transaction waited because an earlier one with the same block was under way.
        conflicts,
        /// Blocks revoked by committed transactions.
        revoked_blocks,
        /// Checkpoints.
        checkpoints,
        /// Blocks that checkpoints wrote to their places.
        home_writes,
        /// Blocks whose places took over the copy in the log by SHARE.
        shared_blocks,
        /// SHARE commands.
        shares,
        /// Blocks that were written although checkpoints share, because the copy in the log is escaped.
        escaped_blocks,
        /// Blocks by which the journal grew.
        grown_blocks,
        /// Files that were dispatched in order: by fbarrier and fdatabarrier, and in dual mode by fsync and fdatasync.
        barriers,
        /// Calls of fsync and fdatasync that needed a transaction to be committed.
        fsyncs_by_commit,
        /// Calls of fsync and fdatasync for which a flush was enough.
        fsyncs_by_flush,
        /// Blocks discarded.
        discarded_blocks,
    }
}
