//! Bugs that can be planted into a host FTL, to measure the tests that have to find them (open-channel §10.10).

/// A bug.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PlantedHostBug {
    /// The old version stops being valid when the new one is accepted.
    EarlyInvalidation,
    /// A published place replaces whatever the map says, a newer version included.
    PublishUnconditionally,
    /// GC's copy replaces a version that is newer than what it copied.
    GcDropsNewer,
    /// A line is erased although reads of it are under way.
    LineFreedUnderReader,
    /// A flush leaves out the last ring.
    FlushMissesRing,
    /// End metadata counts although its checksum is wrong or its line another.
    TornEndTrusted,
    /// Versions are recorded with their positions in their rings.
    SequencePerRing,
    /// A deallocation is not written to the medium.
    TrimLost,
    /// The entries of a failed program are not written again.
    FailedProgramForgotten,
    /// A write with FUA is answered when it is accepted.
    FuaAtAcceptance,
    /// A line is erased while units of it are valid until newer versions are on the medium.
    LineFreedTooEarly,
    /// Start metadata is not erased first, so that a line that is half erased looks whole.
    StartErasedLast,
    /// A write with FUA that enters a ring in parts is answered after each of them.
    FuaEndsTwice,
    /// A member says that the epoch before its own had no members.
    MembersUncounted,
    /// A member counts as soon as it is on the medium, whatever is missing before it.
    MembersAlwaysStable,
    /// A line is erased although nothing says that the epochs of its members are complete.
    MembersErasedUncounted,
    /// The next recovery does not know what this one has discarded.
    DiscardedComeBack,
    /// A range flush does not know the tags of entries.
    TagsForgotten,
    /// pblk as it was released.
    PblkAsReleased,
    /// QBLKe as it was released.
    QblkeAsReleased,
}

impl PlantedHostBug {
    /// All bugs with their names.
    pub const ALL: [(Self, &'static str); 20] = [
        (Self::EarlyInvalidation, "host-early-invalidation"),
        (Self::PublishUnconditionally, "host-publish-unconditionally"),
        (Self::GcDropsNewer, "host-gc-drops-newer"),
        (Self::LineFreedUnderReader, "host-line-freed-under-reader"),
        (Self::FlushMissesRing, "host-flush-misses-ring"),
        (Self::TornEndTrusted, "host-torn-end-trusted"),
        (Self::SequencePerRing, "host-sequence-per-ring"),
        (Self::TrimLost, "host-trim-lost"),
        (Self::FailedProgramForgotten, "host-failed-program-forgotten"),
        (Self::FuaAtAcceptance, "host-fua-at-acceptance"),
        (Self::LineFreedTooEarly, "host-line-freed-too-early"),
        (Self::StartErasedLast, "host-start-erased-last"),
        (Self::FuaEndsTwice, "host-fua-ends-twice"),
        (Self::MembersUncounted, "host-members-uncounted"),
        (Self::MembersAlwaysStable, "host-members-always-stable"),
        (Self::MembersErasedUncounted, "host-members-erased-uncounted"),
        (Self::DiscardedComeBack, "host-discarded-come-back"),
        (Self::TagsForgotten, "host-tags-forgotten"),
        (Self::PblkAsReleased, "host-pblk-as-released"),
        (Self::QblkeAsReleased, "host-qblke-as-released"),
    ];
}
