//! The bugs that can be planted below the files, with their names.

use super::format::Format;
use flashweir_device::PlantedBug as DeviceBug;
use flashweir_fs::{ext4, f2fs};

/// A bug that is planted somewhere below the files.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Bug {
    /// In F2FS.
    F2fs(f2fs::write::PlantedBug),
    /// In ext4.
    Ext4(ext4::PlantedBug),
    /// In the device.
    Device(DeviceBug),
}

/// Bugs of the device that break what F2FS relies on and nothing that a plain FLUSH gives. The others are found by the
/// laboratory of devices.
const DEVICE_BUGS: [DeviceBug; 2] = [DeviceBug::TagsReplaced, DeviceBug::EarlyRangeFlush];

impl Bug {
    /// All that a file system has to be tested with, its own first.
    pub fn all(format: Format) -> Vec<Self> {
        match format {
            Format::F2fs | Format::F2fsDual => {
                let own = f2fs::write::PlantedBug::ALL.into_iter().map(|(bug, _)| bug);
                let own = own.filter(|bug| bug.is_of(format.commit_mode())).map(Self::F2fs);
                let device = DEVICE_BUGS.into_iter().filter(|_| !format.is_dual()).map(Self::Device);
                own.chain(device).collect()
            }
            Format::Ext4 | Format::Ext4Journal | Format::Ext4Dual => {
                let own = ext4::PlantedBug::ALL.into_iter().map(|(bug, _)| bug);
                own.filter(|bug| bug.is_of(format.journaling(), format.commit_mode()))
                    .map(Self::Ext4)
                    .collect()
            }
        }
    }

    /// Its name.
    pub fn name(self) -> &'static str {
        fn of<T: PartialEq>(all: &[(T, &'static str)], bug: &T) -> &'static str {
            all.iter().find(|(known, _)| known == bug).map_or("", |(_, name)| name)
        }
        match self {
            Self::F2fs(bug) => of(&f2fs::write::PlantedBug::ALL, &bug),
            Self::Ext4(bug) => of(&ext4::PlantedBug::ALL, &bug),
            Self::Device(bug) => of(&DeviceBug::ALL, &bug),
        }
    }

    /// The one that is in the device.
    pub fn in_device(bug: Option<Self>) -> Option<DeviceBug> {
        match bug {
            Some(Self::Device(bug)) => Some(bug),
            _ => None,
        }
    }
}

/// The planted bug of a name.
pub fn bug_named(format: Format, name: &str) -> Result<Bug, String> {
    let all = Bug::all(format);
    all.iter().copied().find(|bug| bug.name() == name).ok_or_else(|| {
        let known: Vec<&str> = all.into_iter().map(Bug::name).collect();
        format!("`{name}` is no planted bug of {}: expected one of {}", format.name(), known.join(", "))
    })
}
