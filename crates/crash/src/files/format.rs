//! The file systems under test, and their modes.
//!
//! Place in the data flow: [`super::volume`] makes, recovers and checks volumes of any of them; a [`Format`] identifies
//! the file system.

use super::names::names;
use flashweir_contract::DeviceKind;
use flashweir_fs::ext4::{CheckpointBy, Journaling};
use flashweir_fs::f2fs::CleanBy;
use flashweir_fs::order::CommitMode;
use flashweir_fs::{Kind, Mode};
use serde::{Deserialize, Serialize};

/// A file system and its mode.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(into = "&str", try_from = "String")]
pub struct Format {
    /// On-disk format of its volumes.
    pub kind: Kind,
    /// Data journaling mode, for ext4.
    pub journaling: Journaling,
    /// How the order of its commits is kept.
    pub commit_mode: CommitMode,
    /// Whether it uses SHARE: for the checkpoints of ext4, for the cleaning of F2FS.
    pub shares: bool,
}

impl Format {
    /// F2FS, with range flushes where the host has them.
    pub const F2FS: Self = Self {
        kind: Kind::F2fs,
        journaling: Journaling::Ordered,
        commit_mode: CommitMode::Legacy,
        shares: false,
    };
    /// F2FS that orders instead of waiting, on a disk with barriers.
    pub const F2FS_DUAL: Self = Self { commit_mode: CommitMode::DualMode, ..Self::F2FS };
    /// ext4 with ordered data.
    pub const EXT4: Self = Self { kind: Kind::Ext4, ..Self::F2FS };
    /// ext4 with journalled data.
    pub const EXT4_JOURNAL: Self = Self { journaling: Journaling::Journal, ..Self::EXT4 };
    /// ext4 with ordered data and dual-mode journaling, on a disk with barriers.
    pub const EXT4_DUAL: Self = Self { commit_mode: CommitMode::DualMode, ..Self::EXT4 };

    /// ext4 with ordered data and checkpoints by SHARE (share §5.3).
    pub const EXT4_SOJ: Self = Self { shares: true, ..Self::EXT4 };
    /// ext4 with journalled data and checkpoints by SHARE.
    pub const EXT4_SDJ: Self = Self { shares: true, ..Self::EXT4_JOURNAL };
    /// The same with dual-mode journaling, on a disk with barriers and SHARE.
    pub const EXT4_SDJ_DUAL: Self = Self { commit_mode: CommitMode::DualMode, ..Self::EXT4_SDJ };

    /// F2FS that cleans by SHARE (share §6).
    pub const F2FS_SSC: Self = Self { shares: true, ..Self::F2FS };
    /// The same with order instead of waiting, on a disk with barriers and SHARE.
    pub const F2FS_SSC_DUAL: Self = Self { shares: true, ..Self::F2FS_DUAL };

    /// ALFS, on a disk of append segments.
    pub const ALFS: Self = Self { kind: Kind::Alfs, ..Self::F2FS };

    /// All formats, with their names.
    pub const ALL: [(Self, &'static str); 11] = [
        (Self::F2FS, "f2fs"),
        (Self::F2FS_DUAL, "f2fs-dual"),
        (Self::EXT4, "ext4"),
        (Self::EXT4_JOURNAL, "ext4-journal"),
        (Self::EXT4_DUAL, "ext4-dual"),
        (Self::EXT4_SOJ, "ext4-soj"),
        (Self::EXT4_SDJ, "ext4-sdj"),
        (Self::EXT4_SDJ_DUAL, "ext4-sdj-dual"),
        (Self::F2FS_SSC, "f2fs-ssc"),
        (Self::F2FS_SSC_DUAL, "f2fs-ssc-dual"),
        (Self::ALFS, "alfs"),
    ];

    /// Names of the formats.
    pub const NAMES: [&str; Self::ALL.len()] = names(&Self::ALL);

    /// Returns the format with this name.
    pub fn named(name: &str) -> Option<Self> {
        Self::ALL.iter().find(|(_, known)| *known == name).map(|(format, _)| *format)
    }

    /// Whether it is ext4 in any mode.
    pub fn is_ext4(self) -> bool {
        self.kind == Kind::Ext4
    }

    /// Whether its disk consists of append segments.
    pub fn appends(self) -> bool {
        self.kind.appends()
    }

    /// Whether it orders instead of waiting.
    pub fn is_dual(self) -> bool {
        self.commit_mode == CommitMode::DualMode
    }

    /// Returns the kind of its model device.
    pub fn device_kind(self) -> DeviceKind {
        match (self.shares, self.commit_mode) {
            (true, _) => DeviceKind::D4,
            (false, CommitMode::Legacy) => DeviceKind::D1,
            (false, CommitMode::DualMode) => DeviceKind::D3,
        }
    }

    /// Returns its name.
    pub fn name(self) -> &'static str {
        Self::ALL.iter().find(|(known, _)| *known == self).map_or("", |(_, name)| name)
    }
}

impl Default for Format {
    fn default() -> Self {
        Self::F2FS
    }
}

impl From<Format> for &str {
    fn from(format: Format) -> Self {
        format.name()
    }
}

impl TryFrom<String> for Format {
    type Error = String;

    fn try_from(name: String) -> Result<Self, String> {
        let known = Self::NAMES.join(", ");
        Self::named(&name)
            .ok_or_else(|| format!("`{name}` is no file system that is tested: expected one of {known}"))
    }
}

/// Converts a format to a mount mode.
impl From<Format> for Mode {
    fn from(Format { kind, journaling, commit_mode, shares }: Format) -> Self {
        let mut mode = Self::from(kind).committing(commit_mode);
        mode.ext4.journaling = journaling;
        if shares {
            (mode.ext4.checkpoint_by, mode.f2fs.clean_by) = (CheckpointBy::Share, CleanBy::Share);
        }
        mode
    }
}
