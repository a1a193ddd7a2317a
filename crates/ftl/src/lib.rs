//! Decisions that both sides of the link need: maps, block accounting, victim selection, striping,
//! recovery as a pure fold. No I/O and no time: who calls decides when.
#![forbid(unsafe_code)]

pub mod blocks;
pub mod map;
pub mod recovery;
pub mod stripe;
pub mod theory;
pub mod victim;

pub use blocks::{BlockId, BlockState, Blocks, PlaneId};
pub use map::{Map, MapWord};
pub use stripe::Striping;
pub use victim::{GcPolicy, VictimPicker};
