//! The bugs that can be planted below the files, with their names.

use super::format::Format;
use flashweir_device::PlantedBug as DeviceBug;
use flashweir_fs::Mode;

/// A bug planted below the files.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Bug {
    /// In the file system, by its name there.
    FileSystem(&'static str),
    /// In the device.
    Device(DeviceBug),
}

/// Bugs of the device that break promises of range flushes and none of a plain FLUSH. The laboratory of devices finds
/// the others.
const DEVICE_BUGS: [DeviceBug; 2] = [DeviceBug::TagsReplaced, DeviceBug::EarlyRangeFlush];

impl Bug {
    /// Returns all bugs that a file system has to be tested with, its own first.
    pub fn all(format: Format) -> Vec<Self> {
        let own = Mode::from(format).bugs().into_iter().map(Self::FileSystem);
        // Those of append segments select by place, and not by owner.
        let relies_on_device = format.kind.has_range_flushes() && !format.is_dual() && !format.appends();
        own.chain(DEVICE_BUGS.into_iter().filter(|_| relies_on_device).map(Self::Device)).collect()
    }

    /// Returns its name.
    pub fn name(self) -> &'static str {
        match self {
            Self::FileSystem(name) => name,
            Self::Device(bug) => {
                DeviceBug::ALL.iter().find(|(known, _)| *known == bug).map_or("", |(_, name)| name)
            }
        }
    }

    /// Returns the bug if it is in the device.
    pub fn in_device(bug: Option<Self>) -> Option<DeviceBug> {
        match bug {
            Some(Self::Device(bug)) => Some(bug),
            _ => None,
        }
    }
}

/// Returns the planted bug of a name.
pub fn bug_named(format: Format, name: &str) -> Result<Bug, String> {
    let all = Bug::all(format);
    all.iter().copied().find(|bug| bug.name() == name).ok_or_else(|| {
        let known: Vec<&str> = all.into_iter().map(Bug::name).collect();
        format!("`{name}` is no planted bug of {}: expected one of {}", format.name(), known.join(", "))
    })
}
