//! Tables and checkpoints on a disk of append segments: their [`layout`], and the [`map`] of where they are.
//!
//! Place in the data flow: what [`crate::alfs`] adds to F2FS, as far as reader and writer have to know it.

pub(crate) mod layout;
pub(crate) mod map;

/// Name of the format on the command line, and of its counters.
pub(crate) const KEY: &str = "alfs";
