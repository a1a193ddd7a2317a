//! The file systems under test, and their modes.
//!
//! Place in the data flow: [`super::volume`] makes, recovers and checks volumes of any of them; a [`Format`] identifies
//! the file system.

use flashweir_contract::DeviceKind;
use flashweir_fs::ext4::Journaling;
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
}

impl Format {
    /// F2FS, with range flushes where the host has them.
    pub const F2FS: Self =
        Self { kind: Kind::F2fs, journaling: Journaling::Ordered, commit_mode: CommitMode::Legacy };
    /// F2FS that orders instead of waiting, on a disk with barriers.
    pub const F2FS_DUAL: Self = Self { commit_mode: CommitMode::DualMode, ..Self::F2FS };
    /// ext4 with ordered data.
    pub const EXT4: Self = Self { kind: Kind::Ext4, ..Self::F2FS };
    /// ext4 with journalled data.
    pub const EXT4_JOURNAL: Self = Self { journaling: Journaling::Journal, ..Self::EXT4 };
    /// ext4 with ordered data and dual-mode journaling, on a disk with barriers.
    pub const EXT4_DUAL: Self = Self { commit_mode: CommitMode::DualMode, ..Self::EXT4 };

    /// All formats, with their names.
    pub const ALL: [(Self, &'static str); 5] = [
        (Self::F2FS, "f2fs"),
        (Self::F2FS_DUAL, "f2fs-dual"),
        (Self::EXT4, "ext4"),
        (Self::EXT4_JOURNAL, "ext4-journal"),
        (Self::EXT4_DUAL, "ext4-dual"),
    ];

    /// Names of the formats.
    pub const NAMES: [&str; 5] =
        [Self::ALL[0].1, Self::ALL[1].1, Self::ALL[2].1, Self::ALL[3].1, Self::ALL[4].1];

    /// Returns the format with this name.
    pub fn named(name: &str) -> Option<Self> {
        Self::ALL.iter().find(|(_, known)| *known == name).map(|(format, _)| *format)
    }

    /// Whether it is ext4 in any mode.
    pub fn is_ext4(self) -> bool {
        self.kind == Kind::Ext4
    }

    /// Whether it orders instead of waiting.
    pub fn is_dual(self) -> bool {
        self.commit_mode == CommitMode::DualMode
    }

    /// Returns the kind of its model device.
    pub fn device_kind(self) -> DeviceKind {
        match self.commit_mode {
            CommitMode::Legacy => DeviceKind::D1,
            CommitMode::DualMode => DeviceKind::D3,
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
    fn from(Format { kind, journaling, commit_mode }: Format) -> Self {
        let mut mode = Self::from(kind).committing(commit_mode);
        mode.ext4.journaling = journaling;
        mode
    }
}
