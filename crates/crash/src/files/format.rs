//! The file systems that are tested, and what differs between them.
//!
//! Place in the data flow: [`super::volume`] makes, recovers and checks volumes of any of them; which one it is says a
//! [`Format`].

use flashweir_contract::DeviceKind;
use flashweir_fs::ext4::{Ext4Options, Journaling};
use flashweir_fs::order::CommitMode;
use serde::{Deserialize, Serialize};

/// Which file system.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Format {
    /// F2FS, with its range flushes where the host has them.
    #[default]
    F2fs,
    /// The same with order in the place of waiting, on a disk with barriers.
    F2fsDual,
    /// ext4 with ordered data.
    Ext4,
    /// ext4 whose data are journalled.
    Ext4Journal,
    /// ext4 with ordered data and dual-mode journaling, on a disk with barriers.
    Ext4Dual,
}

impl Format {
    /// All of them, with their names.
    pub const ALL: [(Self, &'static str); 5] = [
        (Self::F2fs, "f2fs"),
        (Self::F2fsDual, "f2fs-dual"),
        (Self::Ext4, "ext4"),
        (Self::Ext4Journal, "ext4-journal"),
        (Self::Ext4Dual, "ext4-dual"),
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
        !matches!(self, Self::F2fs | Self::F2fsDual)
    }

    /// What its journal promises of data, where it is ext4.
    pub fn journaling(self) -> Journaling {
        match self {
            Self::Ext4Journal => Journaling::Journal,
            Self::F2fs | Self::F2fsDual | Self::Ext4 | Self::Ext4Dual => Journaling::Ordered,
        }
    }

    /// How what it commits is kept in its order.
    pub fn commit_mode(self) -> CommitMode {
        match self {
            Self::F2fsDual | Self::Ext4Dual => CommitMode::DualMode,
            Self::F2fs | Self::Ext4 | Self::Ext4Journal => CommitMode::Legacy,
        }
    }

    /// Whether order takes the place of waiting.
    pub fn is_dual(self) -> bool {
        self.commit_mode() == CommitMode::DualMode
    }

    /// What the model device of it keeps.
    pub fn device_kind(self) -> DeviceKind {
        match self.commit_mode() {
            CommitMode::Legacy => DeviceKind::D1,
            CommitMode::DualMode => DeviceKind::D3,
        }
    }

    /// Its name.
    pub fn name(self) -> &'static str {
        Self::ALL.iter().find(|(known, _)| *known == self).map_or("", |(_, name)| name)
    }
}

/// How a mount is told of it.
impl From<Format> for flashweir_sim::volume::Format {
    fn from(format: Format) -> Self {
        let commit_mode = format.commit_mode();
        match format.is_ext4() {
            true => {
                let journaling = format.journaling();
                Self::Ext4(Ext4Options { journaling, commit_mode, ..Ext4Options::default() })
            }
            false => Self::F2fs { range_checkpoints: false, fastboot: false, commit_mode },
        }
    }
}
