//! `volume.toml`: which device a volume holds, what runs on it, and in which format.
//!
//! Invariant: the version is checked before anything else, then the firmware; so a newer volume is distinguished from a damaged one.

use super::error::{VolumeError, damaged};
use super::format::{self, Format, Sums};
use super::host::DESCRIPTION;
use flashweir_device::DeviceConfig;
use flashweir_device::config::Metadata;
use flashweir_host::HostFtlConfig;
use flashweir_sim::host_ftl::check_host_ftl;
use serde::{Deserialize, Serialize};
use std::io;
use std::path::Path;

/// `volume.toml`, the part that is the volume's.
#[derive(Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Description {
    format: u32,
    /// In words, because TOML has no number that holds all seeds.
    seed: String,
    /// Firmware that runs on the medium. Format 1 does not name it: there was only one.
    #[serde(skip_serializing_if = "Option::is_none")]
    firmware: Option<String>,
    /// Features that a program has to know beyond format and firmware.
    #[serde(default)]
    needs: Vec<String>,
    /// The FTL that the host of an open channel has: its lines are on the medium.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    host_ftl: Option<HostFtlConfig>,
    device: DeviceConfig,
}

/// The part that every description from format 2 on has, whatever else it contains.
#[derive(Debug, Deserialize)]
struct Heading {
    firmware: String,
    #[serde(default)]
    needs: Vec<String>,
}

/// The page-mapped FTL.
const FIRMWARE: &str = "page-mapped";
/// An open channel below a host FTL.
const OPEN_CHANNEL: &str = "open-channel";
/// Name in `needs` of checksums of contents by XXH3.
const XXH3: &str = "xxh3";

impl Description {
    /// The text of the file that describes a volume of the present format.
    pub(super) fn text(
        config: &DeviceConfig,
        host_ftl: Option<&HostFtlConfig>,
        seed: u64,
    ) -> Result<String, VolumeError> {
        let firmware = if host_ftl.is_some() { OPEN_CHANNEL } else { FIRMWARE };
        let description = Self {
            format: format::VERSION,
            seed: seed.to_string(),
            firmware: Some(firmware.to_owned()),
            needs: vec![XXH3.to_owned()],
            host_ftl: host_ftl.cloned(),
            device: config.clone(),
        };
        let text = toml::to_string(&description).map_err(|error| {
            VolumeError::Unsuitable(format!("the device cannot be written down: {error}"))
        })?;
        let heading =
            "# A volume of weir. It is checked against the last line, so that no edit goes unnoticed.\n";
        Ok(format::seal(&format!("{heading}{text}")))
    }
}

/// Contents of a description.
pub(super) struct Described {
    pub(super) config: DeviceConfig,
    pub(super) host_ftl: Option<HostFtlConfig>,
    pub(super) seed: u64,
    pub(super) format: Format,
    pub(super) firmware: String,
    pub(super) sums: Sums,
}

/// The text of `volume.toml`.
pub(super) fn description(directory: &Path) -> Result<String, VolumeError> {
    std::fs::read_to_string(directory.join(DESCRIPTION)).map_err(|error| match error.kind() {
        io::ErrorKind::NotFound if !directory.exists() => VolumeError::Missing(directory.to_owned()),
        io::ErrorKind::NotFound | io::ErrorKind::NotADirectory => {
            VolumeError::NotAVolume(directory.to_owned())
        }
        io::ErrorKind::InvalidData => damaged(directory, DESCRIPTION, "not a text"),
        _ => {
            let what = format!("{DESCRIPTION} cannot be read");
            VolumeError::Io { directory: directory.to_owned(), what, error }
        }
    })
}

/// Reads a description: first its version, then the firmware, because each determines the meaning of the rest.
pub(super) fn describe(directory: &Path, text: &str) -> Result<Described, VolumeError> {
    let version = text.lines().find_map(|line| line.strip_prefix("format = ")?.trim().parse::<u64>().ok());
    if let Some(version) = version.filter(|version| *version > u64::from(format::VERSION)) {
        return Err(VolumeError::Newer { directory: directory.to_owned(), version });
    }
    let damaged = |what: &str| damaged(directory, DESCRIPTION, what);
    let text = format::unseal(text).ok_or_else(|| damaged("wrong checksum"))?;
    let format = version.and_then(Format::of).ok_or_else(|| damaged("no format"))?;
    if format == Format::Two {
        let heading: Heading = toml::from_str(text).map_err(|error| damaged(error.message()))?;
        knows(&heading).map_err(|what| VolumeError::Unknown { directory: directory.to_owned(), what })?;
    }
    let description: Description = toml::from_str(text).map_err(|error| damaged(error.message()))?;
    description.device.validate().map_err(|reason| damaged(&reason))?;
    let seed = description.seed.parse().map_err(|_| damaged("the seed is not a number"))?;
    let Description { device: config, host_ftl, firmware, needs, .. } = description;
    suits(&config, host_ftl.as_ref())?;
    let firmware = firmware.unwrap_or_else(|| FIRMWARE.to_owned());
    if (firmware == OPEN_CHANNEL) != host_ftl.is_some() {
        return Err(damaged("the firmware is another than that of its host FTL"));
    }
    let sums = if needs.iter().any(|need| need == XXH3) { Sums::Xxh3 } else { Sums::Crc32c };
    Ok(Described { config, host_ftl, seed, format, firmware, sums })
}

/// Whether this program can run what is on the medium; what it cannot, in words.
fn knows(heading: &Heading) -> Result<(), String> {
    if ![FIRMWARE, OPEN_CHANNEL].contains(&heading.firmware.as_str()) {
        return Err(format!(
            "the volume holds the firmware {:?}, and this program knows {FIRMWARE:?} and {OPEN_CHANNEL:?}: it takes a newer one",
            heading.firmware
        ));
    }
    match heading.needs.iter().find(|need| *need != XXH3) {
        Some(need) => {
            Err(format!("the volume needs {need:?}, which this program does not know: it takes a newer one"))
        }
        None => Ok(()),
    }
}

/// Whether a device can be kept in a volume, below this host FTL.
pub(super) fn suits(config: &DeviceConfig, host_ftl: Option<&HostFtlConfig>) -> Result<(), VolumeError> {
    if let Some(host_ftl) = host_ftl {
        return check_host_ftl(host_ftl, config).map(|_| ()).map_err(VolumeError::Unsuitable);
    }
    config.check_jobs().map_err(VolumeError::Unsuitable)?;
    config.check_page_namespace().map_err(VolumeError::Unsuitable)?;
    if config.ftl.metadata == Metadata::None {
        return Err(VolumeError::Unsuitable(format!(
            "ftl.metadata = none of {}: expected log, because a volume is recovered from what the device keeps on flash",
            config.name
        )));
    }
    Ok(())
}
