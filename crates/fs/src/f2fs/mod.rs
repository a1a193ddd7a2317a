//! The F2FS on-disk format: volumes are made ([`mkfs()`]), mounted and read ([`Volume`]) and checked ([`check()`]).
//!
//! Place in the data flow: the port is below; the bits of each structure are in [`layout`]. What of the format is read,
//! written and refused is said in `docs/f2fs.md`.
//!
//! Invariants: bytes from a disk are never trusted. Whatever an image holds, the answer is a result or an [`Error`] that
//! names the place; no index, allocation or loop is bounded by an unchecked number. What is not supported is refused at
//! mount, by name.

pub(crate) mod appended;
mod chain;
pub mod check;
pub mod error;
pub mod layout;
pub mod mkfs;
pub mod read;
#[cfg(test)]
mod tests;
pub mod volume;
pub(crate) mod volumes;
pub mod write;

pub use crate::order::CommitMode;
pub use check::{Problem, Report, check};
pub use error::{Error, Named, Result};
pub use layout::node::{Inode, Kind, Time};
pub use layout::{Nid, Superblock};
pub use mkfs::{Options, mkfs};
pub use volume::Volume;
pub use write::{Background, CleanBy, F2fs, F2fsMetrics, F2fsOptions, Flushing, InPlace};
