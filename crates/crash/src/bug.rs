//! Bugs that a campaign can plant: into a device, or into the host FTL above it.

use super::devices::{has_streams, host_ftl};
use flashweir_device::{DeviceConfig, PlantedBug};
use flashweir_host::{Lines, PlantedHostBug};

/// A planted bug.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Bug {
    /// In a device.
    Device(PlantedBug),
    /// In a host FTL.
    HostFtl(PlantedHostBug),
}

impl From<PlantedBug> for Bug {
    fn from(bug: PlantedBug) -> Self {
        Self::Device(bug)
    }
}

impl Bug {
    /// All bugs with their names.
    pub fn all() -> impl Iterator<Item = (Self, &'static str)> {
        let device = PlantedBug::ALL.into_iter().map(|(bug, name)| (Self::Device(bug), name));
        device.chain(PlantedHostBug::ALL.into_iter().map(|(bug, name)| (Self::HostFtl(bug), name)))
    }

    /// The bug called `name`.
    ///
    /// # Errors
    /// Names all bugs.
    pub fn named(name: &str) -> Result<Self, String> {
        Self::all().find(|(_, known)| *known == name).map(|(bug, _)| bug).ok_or_else(|| {
            let known: Vec<&str> = Self::all().map(|(_, name)| name).collect();
            format!("`{name}` is no planted bug: expected one of {}", known.join(", "))
        })
    }

    /// Its name.
    pub fn name(self) -> &'static str {
        Self::all().find(|(bug, _)| *bug == self).map_or("", |(_, name)| name)
    }

    /// The bug, if it is one of the device.
    pub fn of_device(self) -> Option<PlantedBug> {
        if let Self::Device(bug) = self { Some(bug) } else { None }
    }

    /// The bug, if it is one of the host FTL.
    pub fn of_host(self) -> Option<PlantedHostBug> {
        if let Self::HostFtl(bug) = self { Some(bug) } else { None }
    }

    /// Whether the code that has the bug runs on this tiny device.
    pub fn concerns(self, config: &DeviceConfig) -> bool {
        let above = host_ftl(&config.name);
        match (self, above) {
            (Self::Device(bug), None) => bug.concerns(config),
            // The rules of the device are judged without a host FTL, which hides some of what breaks them.
            (Self::Device(_), Some(_)) | (Self::HostFtl(_), None) => false,
            (Self::HostFtl(bug), Some(above)) => match bug {
                PlantedHostBug::FlushMissesRing | PlantedHostBug::SequencePerRing => above.rings > 1,
                PlantedHostBug::PblkAsReleased => above.rings == 1 && above.lines == Lines::Device,
                PlantedHostBug::QblkeAsReleased => above.rings > 1 && above.lines == Lines::Channel,
                PlantedHostBug::MembersUncounted
                | PlantedHostBug::MembersAlwaysStable
                | PlantedHostBug::MembersErasedUncounted
                | PlantedHostBug::DiscardedComeBack => has_streams(&config.name),
                PlantedHostBug::FailedProgramForgotten => config.faults.program_fail > 0.0,
                _ => true,
            },
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_bug_has_a_name_of_its_own() {
        for (bug, name) in Bug::all() {
            assert_eq!(Bug::named(name), Ok(bug));
            assert_eq!(bug.name(), name);
        }
    }
}
