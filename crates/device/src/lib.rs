//! The SSD: front, buffer, page-map FTL, NAND, power.
//!
//! Place in the data flow: below the link. Knows no file system and no host; see [`device`] for the way of
//! a command.
#![forbid(unsafe_code)]

mod arrivals;
mod audit;
mod buffer;
mod collect;
pub mod config;
mod describe;
pub mod device;
pub mod fastforward;
mod front;
pub mod geometry;
mod job;
mod log;
pub mod media;
mod meta_format;
pub mod metrics;
pub mod nand;
mod order;
mod planted;
pub mod power;
pub mod presets;
pub mod range_flush;
mod read;
mod slab;
mod space;
mod tags;
pub mod trace;
mod write;

pub use config::DeviceConfig;
pub use device::{Device, DeviceOptions, Effect, Event};
pub use fastforward::FastForward;
pub use geometry::Geometry;
pub use media::{Media, Torn};
pub use metrics::{DeviceMetrics, NandMetrics};
pub use planted::PlantedBug;
pub use power::{Recovery, RecoveryReport};
pub use read::UNREADABLE;
