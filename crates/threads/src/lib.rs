//! pblk and QBLKe on real threads: the parts whose speed on many CPUs is in question (open-channel §1.9, open-channel §2).
//!
//! Place: beside `host/src/ftl`, which is the same FTL as a state machine in virtual time. Words of the map and formulas of the
//! limiters are those of `flashweir-ftl` in both.
//!
//! Unsafe code is in [`spin`] and `queue` alone: contents that threads share are atomic words ([`content`]), and the kernel reads and writes
//! them too.

// Models have parts of it.
#![cfg_attr(any(loom, shuttle), allow(dead_code, unused_imports))]

pub mod assembly;
#[cfg(not(loom))]
mod collector;
pub mod content;
#[cfg(not(loom))]
pub mod disk;
#[cfg(not(loom))]
mod fault;
#[cfg(not(loom))]
mod file;
mod hold;
pub mod limiter;
#[cfg(not(loom))]
mod lines;
pub mod map;
#[cfg(not(loom))]
mod measure;
#[cfg(not(loom))]
mod medium;
mod metrics;
#[cfg(all(test, loom))]
mod models;
mod pending;
#[cfg(any(loom, shuttle))]
pub mod planted;
pub mod pool;
#[cfg(not(loom))]
mod queue;
#[cfg(not(loom))]
mod recovery;
mod ring;
#[cfg(not(loom))]
mod shared;
pub mod spin;
mod sync;
mod versions;
#[cfg(not(loom))]
mod writer;
#[cfg(not(loom))]
mod zones;

pub use assembly::{Assembly, Geometry, GeometryError, PBLK, QBLKE, STEPS};
#[cfg(not(loom))]
pub use disk::{Disk, Handle, Ticket};
#[cfg(not(loom))]
pub use fault::{Fault, OpenError};
#[cfg(all(feature = "measure", not(loom)))]
pub use measure::LAPS;
#[cfg(not(loom))]
pub use medium::Medium;
pub use metrics::ThreadsMetrics;
#[cfg(not(loom))]
pub use zones::ZoneShape;
