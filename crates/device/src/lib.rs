//! The SSD: a front, flash, and a firmware between them.
//!
//! Place in the data flow: below the link. Knows no file system and no host. [`device`] has the interface for callers, [`ssd`] the
//! parts, [`page`] the path of a command through the page-mapped firmware.
#![forbid(unsafe_code)]

mod both;
pub mod config;
mod cx;
pub mod device;
mod effect;
mod fastforward;
mod firmware;
pub mod flash;
mod front;
pub mod geometry;
pub mod metrics;
mod open;
mod page;
mod planted;
pub mod presets;
mod recovery;
mod segment;
mod slab;
mod ssd;
mod validate;

/// Version of the model. A device of another version may answer the same commands at other instants or with other results, or leave
/// another medium. The version goes up with each commit that changes a golden record; recordings and replay lines carry it.
pub const MODEL: u32 = 1;

pub use config::DeviceConfig;
pub use device::Device;
pub use effect::{Effect, Event};
pub use fastforward::FastForward;
pub use firmware::DeviceOptions;
pub use flash::{Media, RecoveryReport, Torn, UNREADABLE, trace};
pub use geometry::Geometry;
pub use metrics::{DeviceMetrics, HandleCounts, NandMetrics};
pub use planted::PlantedBug;
pub use recovery::Recovery;
