//! The disks that a file system is tested on.
//!
//! Place in the data flow: cases, campaigns and tokens name one; [`below`](super::below) makes those that are simulated.

use super::format::Format;
use super::names::names;
use flashweir_device::Media;
use serde::{Deserialize, Serialize};
use std::sync::OnceLock;

/// The device below a file system.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum On {
    /// Any device that keeps the contract: after a cut, any state that the contract allows.
    #[default]
    Model,
    /// The model device with answers that come late and not in the order of the requests, so that several are in
    /// flight.
    Late,
    /// Flashweir's simulated device, cut between and inside its operations, and brought back by its own recovery.
    Device,
    /// The same below a block layer, which merges and sorts requests; it may keep its map in flash, have a capacitor, or blocks that fail.
    Layer,
    /// The same with an open channel, below a host FTL.
    HostFtl,
}

impl On {
    /// All devices, with their names.
    pub const ALL: [(Self, &'static str); 5] = [
        (Self::Model, "model"),
        (Self::Late, "late"),
        (Self::Device, "device"),
        (Self::Layer, "layer"),
        (Self::HostFtl, "host-ftl"),
    ];

    /// Names of the devices.
    pub const NAMES: [&str; Self::ALL.len()] = names(&Self::ALL);

    /// Names of those that are simulated.
    pub const SIMULATED: [&str; 3] = ["device", "layer", "host-ftl"];

    /// Whether it is simulated, with the layers above it.
    pub fn is_simulated(self) -> bool {
        !matches!(self, Self::Model | Self::Late)
    }

    /// Whether this file system can be tested on it; otherwise the error says on which devices it can.
    pub fn check(self, format: Format) -> Result<(), String> {
        match self {
            Self::Late if format.appends() => {
                Err("append segments in memory answer at once: expected model or device".into())
            }
            Self::Layer if format.appends() => {
                Err("a block layer passes no segments: expected model or device".into())
            }
            Self::HostFtl if format.appends() => {
                Err("a host FTL has no segments: expected model or device".into())
            }
            Self::HostFtl if format.shares => {
                Err("a host FTL has no SHARE: expected model, late, device or layer".into())
            }
            _ => Ok(()),
        }
    }

    /// Returns the device with this name.
    pub fn named(name: &str) -> Option<Self> {
        Self::ALL.iter().find(|(_, known)| *known == name).map(|(on, _)| *on)
    }

    /// Returns its name.
    pub fn name(self) -> &'static str {
        Self::ALL.iter().find(|(known, _)| *known == self).map_or("", |(_, name)| name)
    }

    /// Returns it as the end of "a file system on …".
    pub fn described(self) -> &'static str {
        match self {
            Self::Model => "the model device",
            Self::Late => "the late model device",
            Self::Device => "the simulated device",
            Self::Layer => "a simulated device below a block layer",
            Self::HostFtl => "a simulated device below a host FTL",
        }
    }

    /// Returns the suffix of the file system's name in a token.
    pub(super) fn suffix(self) -> String {
        match self {
            Self::Model => String::new(),
            on => format!("-on-{}", on.name()),
        }
    }
}

/// The media of a base on simulated devices, each made when it is first needed.
#[derive(Clone, Debug, Default)]
pub(super) struct BaseMedia([OnceLock<Media>; On::ALL.len()]);

impl BaseMedia {
    /// The medium on this device.
    pub(super) fn of(&self, on: On) -> &OnceLock<Media> {
        &self.0[on as usize]
    }
}
