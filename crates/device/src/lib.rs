//! The SSD: front, buffer, page-map FTL, NAND, power.
#![forbid(unsafe_code)]

pub mod config;
pub mod geometry;
pub mod presets;

pub use config::DeviceConfig;
pub use geometry::Geometry;
