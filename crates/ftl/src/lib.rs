//! Decisions that both sides of the link need: addresses, maps and their log, streams and epochs, block accounting, victim
//! selection, striping, and recovery as a pure fold. No I/O and no time: the caller decides when.
#![forbid(unsafe_code)]

pub mod blocks;
pub mod epochs;
pub mod geometry;
pub mod host_word;
pub mod limiter;
pub mod line_pages;
pub mod log_page;
pub mod map;
pub mod map_log;
pub mod map_page;
pub mod map_records;
pub mod recovery;
mod sealed;
pub mod segment_records;
pub mod stripe;
pub mod theory;
pub mod victim;

pub use blocks::{BlockId, BlockState, Blocks, PlaneId};
pub use geometry::{FlashCounts, FlashGeometry};
pub use map::{Map, MapWord};
pub use stripe::Striping;
pub use victim::{GcPolicy, VictimPicker};
