//! ALFS, a log-structured file system for append segments (append-segments §4): volumes are made ([`mkfs()`]), mounted ([`mount()`]) and
//! checked ([`check()`]).
//!
//! Place in the data flow: it is the F2FS reader and writer of [`crate::f2fs`] on another layout. Data, directories, inodes and their
//! logs are those of F2FS; the map of nodes and of valid blocks, and the checkpoints, are appended instead of written over. `docs/alfs.md`
//! describes the format.
//!
//! Invariants: those of F2FS; and no block is written twice between two discards of its segment, nor any but at its write pointer.

pub mod check;
pub mod error;
mod find;
pub mod mkfs;
mod mount;
mod segments;
#[cfg(test)]
mod tests;
mod volumes;

pub use crate::f2fs::appended::layout::Superblock;
pub use crate::f2fs::write::AlfsMetrics;
pub use check::check;
pub use error::{Error, Named, Result};
pub use mkfs::{Options, mkfs};
pub use mount::{AlfsOptions, mount};
pub use segments::{Purpose, Segment, segments};
