//! The ext4 on-disk format: volumes are made ([`mkfs()`]), checked ([`check()`]), read ([`Volume`]) and written ([`Ext4`]).
//!
//! Place in the data flow: the port is below; the bits of each structure are in [`layout`]. What of the format is read,
//! written and refused is said in `docs/ext4.md`.
//!
//! Invariants: bytes from a disk are never trusted. Whatever an image holds, the answer is a result or an [`Error`] that
//! names the place; no index, allocation or loop is bounded by an unchecked number. What is not supported is refused at
//! mount, by name.

pub mod check;
pub mod error;
pub mod layout;
pub mod mkfs;
pub mod read;
pub mod recover;
pub mod replay;
pub mod volume;
#[cfg(test)]
mod volume_tests;
mod volumes;
mod write;

pub use crate::format::{Kind, Time};
pub use crate::order::CommitMode;
pub use check::{Problem, Report, check};
pub use error::{Error, Named, Result};
pub use layout::inode::Inode;
pub use layout::superblock::{Feature, Features, Geometry, Superblock};
pub use layout::{Addr, Group, Ino};
pub use mkfs::{Before, Options, mkfs};
pub use recover::{Recovered, recover};
pub use volume::Volume;
pub use write::{AtMount, CheckpointBy, Ext4, Ext4Metrics, Ext4Options, Journaling, PlantedBug};
