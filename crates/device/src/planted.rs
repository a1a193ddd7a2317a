//! Bugs that can be switched on, each of which the crash laboratory must find (spec 8.3: a test suite is
//! judged by the planted bugs that it kills). No scenario and no preset switches one on.

/// A planted bug.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PlantedBug {
    /// The summary of a block goes to the log when its last page begins, not when it has ended.
    LogBeforeData,
    /// The old place of a page may be erased as soon as the new version is accepted (spec 6.4).
    EarlyInvalidation,
    /// A FLUSH does not wait for the log of deallocations.
    LostTrim,
    /// A FLUSH completes when the last page has begun.
    EarlyFlush,
    /// A FUA write completes in the buffer.
    FuaCoversNothing,
    /// Recovery takes the new checkpoint's place before it has written it.
    RecoveryNotIdempotent,
    /// Recovery believes a torn log group.
    TornLogGroup,
    /// Recovery lets pages that an earlier recovery discarded come back.
    Resurrection,
    /// Copies of collection get a new sequence number.
    CopyRenumbered,
    /// A page counts as durable before its word line is complete.
    PairedPageIgnored,
    /// A checkpoint claims to cover versions that are still in the buffer.
    HorizonAhead,
    /// A checkpoint vouches for blocks that are still being written.
    OpenBlockTrusted,
    /// A checkpoint forgets deallocations above its horizon.
    CheckpointForgetsTrims,
    /// Recovery believes the summary of a block that was erased and written again since.
    StaleSummary,
    /// The capacitor also saves versions that were deallocated.
    DeadVersionSaved,
    /// The capacitor does not save deallocations.
    SaveForgetsTrims,
    /// Recovery forgets what the capacitor saved before its checkpoint is complete.
    SaveClearedEarly,
    /// A range flush completes when what it selected was chosen for writing.
    EarlyRangeFlush,
    /// An overwrite in the buffer replaces the tags of a version instead of uniting them (spec 1.3).
    TagsReplaced,
    /// A range flush does not wait for deallocations.
    RangeForgetsTrims,
}

impl PlantedBug {
    /// All of them, with their names.
    pub const ALL: [(Self, &'static str); 20] = [
        (Self::LogBeforeData, "log-before-data"),
        (Self::EarlyInvalidation, "early-invalidation"),
        (Self::LostTrim, "lost-trim"),
        (Self::EarlyFlush, "early-flush"),
        (Self::FuaCoversNothing, "fua-covers-nothing"),
        (Self::RecoveryNotIdempotent, "recovery-not-idempotent"),
        (Self::TornLogGroup, "torn-log-group"),
        (Self::Resurrection, "resurrection"),
        (Self::CopyRenumbered, "copy-renumbered"),
        (Self::PairedPageIgnored, "paired-page-ignored"),
        (Self::HorizonAhead, "horizon-ahead"),
        (Self::OpenBlockTrusted, "open-block-trusted"),
        (Self::CheckpointForgetsTrims, "checkpoint-forgets-trims"),
        (Self::StaleSummary, "stale-summary"),
        (Self::DeadVersionSaved, "dead-version-saved"),
        (Self::SaveForgetsTrims, "save-forgets-trims"),
        (Self::SaveClearedEarly, "save-cleared-early"),
        (Self::EarlyRangeFlush, "early-range-flush"),
        (Self::TagsReplaced, "tags-replaced"),
        (Self::RangeForgetsTrims, "range-forgets-trims"),
    ];
}
