//! Planted bugs: bugs that can be switched on, each of which the crash laboratory must find (crash-laboratory §3.9: a test suite is
//! judged by the planted bugs that it kills). No scenario and no preset switches one on.

use crate::config::{
    AppendMode, BufferMode, DeviceConfig, EraseTime, FirmwareKind, OpenVersion, PersistPolicy, PointerMove,
    RangeFlushSupport, Translation,
};

/// A planted bug.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PlantedBug {
    /// The summary of a block goes to the log before the last page of the block is programmed.
    LogBeforeData,
    /// The old place of a page may be erased as soon as the new version is accepted (contract §7.1).
    EarlyInvalidation,
    /// A FLUSH does not wait until the records of deallocations are durable.
    LostTrim,
    /// A FLUSH completes when everything is queued for writing, before it is durable.
    EarlyFlush,
    /// A FUA write completes when it is in the buffer.
    FuaCoversNothing,
    /// Recovery writes the new checkpoint over the newest complete one, so a second cut may leave neither.
    RecoveryNotIdempotent,
    /// Recovery takes a torn log group for valid.
    TornLogGroup,
    /// Recovery brings back pages that an earlier recovery discarded.
    Resurrection,
    /// Copies made by GC get a new sequence number.
    CopyRenumbered,
    /// A page counts as durable before its word line is complete.
    PairedPageIgnored,
    /// A checkpoint claims to cover versions that are still in the buffer.
    HorizonAhead,
    /// A checkpoint vouches for blocks that are still being written.
    OpenBlockTrusted,
    /// A checkpoint forgets deallocations above its horizon.
    CheckpointForgetsTrims,
    /// Recovery takes the summary of a block for valid although the block was erased and written again since.
    StaleSummary,
    /// The capacitor also saves versions that were deallocated.
    DeadVersionSaved,
    /// The capacitor does not save deallocations.
    SaveForgetsTrims,
    /// Recovery forgets what the capacitor saved before the new checkpoint is complete.
    SaveClearedEarly,
    /// A range flush completes when its selection is queued for writing, before it is durable.
    EarlyRangeFlush,
    /// An overwrite in the buffer replaces the tags of a version instead of uniting them (contract §6.9).
    TagsReplaced,
    /// A range flush does not wait until the records of deallocations are durable.
    RangeForgetsTrims,
    /// A barrier holds nothing back: in-order write-back writes all epochs at once.
    BarrierIgnored,
    /// A member does not carry the number of members before it, so recovery cannot count.
    MembersUncounted,
    /// A version replaces one of an earlier epoch, or of another stream, in the buffer.
    VersionsReplaced,
    /// A version counts as stable when it is on the medium, even if earlier versions of its stream are not.
    EarlyStable,
    /// A checkpoint vouches for blocks with members that recovery has to count.
    MembersVouched,
    /// A block is erased although no durable record says that the epochs of its members are complete.
    WatermarkUnrecorded,
    /// A superseded member of an incomplete epoch is not kept.
    SupersededForgotten,
    /// Recovery discards no member of an incomplete or later epoch.
    OrderUnchecked,
    /// The horizon of a checkpoint passes members of epochs that are not complete.
    HorizonInEpoch,
    /// A translation page leaves the cache, and its changes are lost.
    EvictionForgets,
    /// GC moves a unit, and the changed entry of the map is not noted.
    MoveForgotten,
    /// GC of translation pages brings back an older state of a page that was written meanwhile.
    StaleMapPageMoved,
    /// The directory names a translation page when its program begins.
    DirectoryBeforePage,
    /// A translation page may be erased before the record that names its new place is durable.
    OldMapPageErased,
    /// A checkpoint has the directory of translation pages, but not the entries that changed since those pages were written.
    CheckpointForgetsChanges,
    /// Recovery takes every translation page that the log names for newer than the checkpoint, even copies made by GC.
    MovedMapPageTakenForNewer,
    /// Recovery takes a SHARE for valid although only a part of its claims is in the log.
    HalfShareRecovered,
    /// GC moves a shared unit for one of its owners only.
    MoveLeavesOwners,
    /// The deallocation or overwrite of one owner frees a shared unit.
    OwnerTrimFreesPage,
    /// The source of a SHARE may be erased when its own page is overwritten, although the destination has it.
    BoundSourceErased,
    /// The entry of a virtual page is free for another one as soon as the command that takes its last owner is accepted.
    VirtualPageReusedEarly,
    /// A checkpoint forgets SHAREs above its horizon.
    CheckpointForgetsShares,
    /// The NVRAM forgets changes when their records begin to be written to the flash.
    NvramClearedEarly,
    /// Segments: a deallocation is accepted although units of its segment are not durable.
    TrimPassesData,
    /// Segments: a deallocation leaves the number of the generation as it is.
    GenerationNotRaised,
    /// Segments: the next generation is programmed before the record of the deallocation is durable.
    NextGenerationEarly,
    /// Segments: blocks are erased before the record of the deallocation is durable.
    OldBlocksErasedEarly,
    /// Segments: recovery takes every page that was begun for a good one.
    TornTailTrusted,
    /// Segments: recovery takes blocks of an earlier generation.
    StaleGenerationTaken,
    /// Segments: the copy of a block is used, and the old block freed, without a record.
    MovedBlockForgotten,
    /// Segments: a block is programmed while it is being copied.
    MoveDuringAppend,
    /// Segments: a checkpoint forgets when segments were deallocated.
    CheckpointForgetsGenerations,
    /// Segments: a checkpoint forgets the ends of segments that are in the log.
    CheckpointForgetsTails,
    /// Segments: recovery forgets the ends of segments that are in the log.
    LoggedTailForgotten,
    /// Segments: an append is answered with the offset that the segment had when the command arrived.
    AppendAnsweredEarly,
    /// Segments: units that come for gaps in programmed pages count as durable.
    GapsUnmended,
    /// Pages and segments: recovery takes a block that names its segment, and that the log does not, for one of pages.
    SegmentBlockTakenForPage,
    /// Pages and segments: a block whose erase was interrupted is free after the recovery, so the other namespace takes it.
    TakenBeforeErased,
    /// Open channel: a block is erased although some of its programs have not ended.
    EraseUnderPrograms,
    /// Open channel: an erase completes when it is accepted.
    EarlyErase,
    /// Open channel: all units of a page get the out-of-band record of the first one.
    RecordsMixed,
    /// Open channel: a program that failed is answered as a success.
    FailedProgramAcknowledged,
    /// Open channel: a block can still be read after its erase was accepted.
    ReadPassesErase,
    /// Open channel: after an interrupted erase the block takes pages without another erase.
    HalfErasedWritten,
    /// Open channel: a copy completes when its sources are read, before its destinations are programmed.
    EarlyCopy,
    /// Open channel: a copy without new out-of-band records does not take over those of its sources.
    CopyForgetsRecords,
    /// Open channel: a write that arrives behind a copy into the same chunk is programmed before it.
    WritePassesCopy,
    /// Open channel: the last units of an open chunk are read from the flash.
    RecentUnitsRead,
    /// Open channel: the write pointer is shown ahead of the programs although it moves when they end.
    PointerAheadOfProgram,
    /// Open channel: after a power loss a chunk with a damaged page takes more pages.
    DamagedChunkReopened,
    /// Open channel: after a power loss a chunk goes on although a write unit or a reset was left in part.
    UnevenChunkReopened,
}

impl PlantedBug {
    /// Whether a device with this configuration runs the code that has the bug.
    pub fn concerns(self, config: &DeviceConfig) -> bool {
        if config.firmware == FirmwareKind::OpenChannel {
            return match self {
                Self::EraseUnderPrograms
                | Self::EarlyErase
                | Self::ReadPassesErase
                | Self::HalfErasedWritten => true,
                Self::RecordsMixed => config.geometry.page_bytes != config.geometry.unit_bytes,
                Self::FailedProgramAcknowledged => config.faults.program_fail > 0.0,
                Self::EarlyCopy | Self::CopyForgetsRecords | Self::WritePassesCopy => {
                    config.open.version == OpenVersion::V20
                }
                Self::RecentUnitsRead => {
                    config.open.version == OpenVersion::V20 && config.open.cached_units > 0
                }
                Self::PointerAheadOfProgram => {
                    config.open.version == OpenVersion::V20 && config.open.pointer == PointerMove::Programmed
                }
                Self::DamagedChunkReopened => true,
                Self::UnevenChunkReopened => config.open.write_pages > 1,
                _ => false,
            };
        }
        match (config.firmware, self) {
            (FirmwareKind::Append, _) => return self.concerns_segments(config),
            (FirmwareKind::PageAndAppend, Self::SegmentBlockTakenForPage | Self::TakenBeforeErased) => {
                return true;
            }
            (FirmwareKind::PageAndAppend, _) if self.concerns_segments(config) => return true,
            _ => {}
        }
        use PersistPolicy::{InOrderRecovery, Transactional};
        let order = if config.keeps_epochs() { config.order.policy } else { PersistPolicy::None };
        let protected =
            config.buffer.mode == BufferMode::PowerLossProtected && config.completion_is_durable();
        // Where a write completes in the buffer, and a FLUSH has something to do.
        let volatile = config.buffer.mode != BufferMode::WriteThrough && !protected;
        match self {
            Self::EvictionForgets
            | Self::MoveForgotten
            | Self::StaleMapPageMoved
            | Self::DirectoryBeforePage
            | Self::OldMapPageErased
            | Self::CheckpointForgetsChanges
            | Self::MovedMapPageTakenForNewer => config.ftl.translation == Translation::DemandCached,
            Self::HalfShareRecovered
            | Self::MoveLeavesOwners
            | Self::OwnerTrimFreesPage
            | Self::BoundSourceErased
            | Self::VirtualPageReusedEarly => config.ftl.share.pages > 0,
            Self::NvramClearedEarly => config.ftl.share.nvram_records > 0 && !protected,
            // Epochs hold the horizon back, so that checkpoints have something to repeat.
            Self::CheckpointForgetsShares => config.ftl.share.pages > 0 && order == InOrderRecovery,
            Self::LostTrim | Self::EarlyFlush | Self::FuaCoversNothing => {
                order == PersistPolicy::None && volatile
            }
            Self::PairedPageIgnored => order == PersistPolicy::None && config.faults.paired_page_loss,
            Self::EarlyRangeFlush | Self::TagsReplaced | Self::RangeForgetsTrims => {
                config.buffer.range_flush == RangeFlushSupport::Selective && !protected
            }
            Self::DeadVersionSaved | Self::SaveForgetsTrims | Self::SaveClearedEarly => protected,
            Self::TrimPassesData
            | Self::GenerationNotRaised
            | Self::NextGenerationEarly
            | Self::OldBlocksErasedEarly
            | Self::TornTailTrusted
            | Self::StaleGenerationTaken
            | Self::MovedBlockForgotten
            | Self::MoveDuringAppend
            | Self::CheckpointForgetsGenerations
            | Self::CheckpointForgetsTails
            | Self::LoggedTailForgotten
            | Self::AppendAnsweredEarly
            | Self::GapsUnmended
            | Self::SegmentBlockTakenForPage
            | Self::TakenBeforeErased
            | Self::EraseUnderPrograms
            | Self::EarlyErase
            | Self::RecordsMixed
            | Self::FailedProgramAcknowledged
            | Self::ReadPassesErase
            | Self::HalfErasedWritten
            | Self::EarlyCopy
            | Self::CopyForgetsRecords
            | Self::WritePassesCopy
            | Self::RecentUnitsRead
            | Self::PointerAheadOfProgram
            | Self::DamagedChunkReopened
            | Self::UnevenChunkReopened => false,
            Self::BarrierIgnored | Self::VersionsReplaced => order != PersistPolicy::None,
            Self::OrderUnchecked => matches!(order, InOrderRecovery | Transactional),
            Self::MembersUncounted
            | Self::EarlyStable
            | Self::MembersVouched
            | Self::WatermarkUnrecorded
            | Self::SupersededForgotten
            | Self::HorizonInEpoch => order == InOrderRecovery,
            _ => order == PersistPolicy::None,
        }
    }

    /// Whether an append namespace of this device runs the code that has the bug.
    fn concerns_segments(self, config: &DeviceConfig) -> bool {
        let protected =
            config.buffer.mode == BufferMode::PowerLossProtected && config.completion_is_durable();
        let in_order = config.append.mode == AppendMode::Sequential;
        let has_tails = in_order && config.geometry.page_bytes != config.geometry.unit_bytes && !protected;
        let is_write_back = config.buffer.mode == BufferMode::WriteBack;
        match self {
            Self::GenerationNotRaised
            | Self::NextGenerationEarly
            | Self::TornTailTrusted
            | Self::RecoveryNotIdempotent
            | Self::CheckpointForgetsGenerations => true,
            Self::OldBlocksErasedEarly => config.append.erase == EraseTime::Background && !protected,
            Self::TrimPassesData | Self::EarlyFlush | Self::LostTrim | Self::FuaCoversNothing => {
                is_write_back
            }
            Self::StaleGenerationTaken => config.append.erase == EraseTime::FirstWrite && in_order,
            Self::TornLogGroup => !protected,
            Self::MovedBlockForgotten | Self::MoveDuringAppend => config.faults.program_fail > 0.0,
            Self::CheckpointForgetsTails | Self::LoggedTailForgotten => has_tails,
            Self::AppendAnsweredEarly => in_order,
            Self::GapsUnmended => !in_order && is_write_back,
            Self::BarrierIgnored => config.keeps_epochs(),
            Self::SaveForgetsTrims | Self::SaveClearedEarly => protected,
            _ => false,
        }
    }

    /// All planted bugs, with their names.
    pub const ALL: [(Self, &'static str); 71] = [
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
        (Self::BarrierIgnored, "barrier-ignored"),
        (Self::MembersUncounted, "members-uncounted"),
        (Self::VersionsReplaced, "versions-replaced"),
        (Self::EarlyStable, "early-stable"),
        (Self::MembersVouched, "members-vouched"),
        (Self::WatermarkUnrecorded, "watermark-unrecorded"),
        (Self::SupersededForgotten, "superseded-forgotten"),
        (Self::OrderUnchecked, "order-unchecked"),
        (Self::HorizonInEpoch, "horizon-in-epoch"),
        (Self::EvictionForgets, "eviction-forgets"),
        (Self::MoveForgotten, "move-forgotten"),
        (Self::StaleMapPageMoved, "stale-map-page-moved"),
        (Self::DirectoryBeforePage, "directory-before-page"),
        (Self::OldMapPageErased, "old-map-page-erased"),
        (Self::CheckpointForgetsChanges, "checkpoint-forgets-changes"),
        (Self::MovedMapPageTakenForNewer, "moved-map-page-taken-for-newer"),
        (Self::HalfShareRecovered, "half-share-recovered"),
        (Self::MoveLeavesOwners, "move-leaves-owners"),
        (Self::OwnerTrimFreesPage, "owner-trim-frees-page"),
        (Self::BoundSourceErased, "bound-source-erased"),
        (Self::VirtualPageReusedEarly, "virtual-page-reused-early"),
        (Self::CheckpointForgetsShares, "checkpoint-forgets-shares"),
        (Self::NvramClearedEarly, "nvram-cleared-early"),
        (Self::TrimPassesData, "trim-passes-data"),
        (Self::GenerationNotRaised, "generation-not-raised"),
        (Self::NextGenerationEarly, "next-generation-early"),
        (Self::OldBlocksErasedEarly, "old-blocks-erased-early"),
        (Self::TornTailTrusted, "torn-tail-trusted"),
        (Self::StaleGenerationTaken, "stale-generation-taken"),
        (Self::MovedBlockForgotten, "moved-block-forgotten"),
        (Self::MoveDuringAppend, "move-during-append"),
        (Self::CheckpointForgetsGenerations, "checkpoint-forgets-generations"),
        (Self::CheckpointForgetsTails, "checkpoint-forgets-tails"),
        (Self::LoggedTailForgotten, "logged-tail-forgotten"),
        (Self::AppendAnsweredEarly, "append-answered-early"),
        (Self::GapsUnmended, "gaps-unmended"),
        (Self::SegmentBlockTakenForPage, "segment-block-taken-for-page"),
        (Self::TakenBeforeErased, "taken-before-erased"),
        (Self::EraseUnderPrograms, "erase-under-programs"),
        (Self::EarlyErase, "early-erase"),
        (Self::RecordsMixed, "records-mixed"),
        (Self::FailedProgramAcknowledged, "failed-program-acknowledged"),
        (Self::ReadPassesErase, "read-passes-erase"),
        (Self::HalfErasedWritten, "half-erased-written"),
        (Self::EarlyCopy, "early-copy"),
        (Self::CopyForgetsRecords, "copy-forgets-records"),
        (Self::WritePassesCopy, "write-passes-copy"),
        (Self::RecentUnitsRead, "recent-units-read"),
        (Self::PointerAheadOfProgram, "pointer-ahead-of-program"),
        (Self::DamagedChunkReopened, "damaged-chunk-reopened"),
        (Self::UnevenChunkReopened, "uneven-chunk-reopened"),
    ];
}
