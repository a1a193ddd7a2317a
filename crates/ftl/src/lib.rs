//! Decisions that both sides of the link need: addresses, maps, block accounting, victim selection, striping,
//! recovery as a pure fold. No I/O and no time: who calls decides when.
#![forbid(unsafe_code)]

pub mod blocks;
pub mod geometry;
pub mod map;
pub mod recovery;
pub mod stripe;
pub mod theory;
pub mod victim;

pub use blocks::{BlockId, BlockState, Blocks, PlaneId};
pub use geometry::{FlashCounts, FlashGeometry};
pub use map::{Map, MapWord};
pub use stripe::Striping;
pub use victim::{GcPolicy, VictimPicker};
