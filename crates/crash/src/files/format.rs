//! The file systems that are tested, and the modes in which they are.
//!
//! Place in the data flow: [`super::volume`] makes, recovers and checks volumes of any of them; which one it is says a
//! [`Format`].

use flashweir_contract::DeviceKind;
use flashweir_fs::ext4::Journaling;
use flashweir_fs::order::CommitMode;
use flashweir_fs::{Kind, Mode};
use serde::{Deserialize, Serialize};

/// Which file system, in which mode.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(into = "&str", try_from = "String")]
pub struct Format {
    /// Which format its volumes have.
    pub kind: Kind,
    /// What its journal promises of data, where it is ext4.
    pub journaling: Journaling,
    /// How what it commits is kept in its order.
    pub commit_mode: CommitMode,
}

impl Format {
    /// F2FS, with its range flushes where the host has them.
    pub const F2FS: Self =
        Self { kind: Kind::F2fs, journaling: Journaling::Ordered, commit_mode: CommitMode::Legacy };
    /// The same with order in the place of waiting, on a disk with barriers.
    pub const F2FS_DUAL: Self = Self { commit_mode: CommitMode::DualMode, ..Self::F2FS };
    /// ext4 with ordered data.
    pub const EXT4: Self = Self { kind: Kind::Ext4, ..Self::F2FS };
    /// ext4 whose data are journalled.
    pub const EXT4_JOURNAL: Self = Self { journaling: Journaling::Journal, ..Self::EXT4 };
    /// ext4 with ordered data and dual-mode journaling, on a disk with barriers.
    pub const EXT4_DUAL: Self = Self { commit_mode: CommitMode::DualMode, ..Self::EXT4 };

    /// All of them, with their names.
    pub const ALL: [(Self, &'static str); 5] = [
        (Self::F2FS, "f2fs"),
        (Self::F2FS_DUAL, "f2fs-dual"),
        (Self::EXT4, "ext4"),
        (Self::EXT4_JOURNAL, "ext4-journal"),
        (Self::EXT4_DUAL, "ext4-dual"),
    ];

    /// The names.
    pub const NAMES: [&str; 5] =
        [Self::ALL[0].1, Self::ALL[1].1, Self::ALL[2].1, Self::ALL[3].1, Self::ALL[4].1];

    /// The one with this name.
    pub fn named(name: &str) -> Option<Self> {
        Self::ALL.iter().find(|(_, known)| *known == name).map(|(format, _)| *format)
    }

    /// Whether it is ext4, however mounted.
    pub fn is_ext4(self) -> bool {
        self.kind == Kind::Ext4
    }

    /// Whether order takes the place of waiting.
    pub fn is_dual(self) -> bool {
        self.commit_mode == CommitMode::DualMode
    }

    /// What the model device of it keeps.
    pub fn device_kind(self) -> DeviceKind {
        match self.commit_mode {
            CommitMode::Legacy => DeviceKind::D1,
            CommitMode::DualMode => DeviceKind::D3,
        }
    }

    /// Its name.
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

/// How a mount is told of it.
impl From<Format> for Mode {
    fn from(Format { kind, journaling, commit_mode }: Format) -> Self {
        let mut mode = Self::from(kind).committing(commit_mode);
        mode.ext4.journaling = journaling;
        mode
    }
}
