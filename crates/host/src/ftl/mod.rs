//! Host FTLs above an open channel: pblk and QBLKe, two assemblies of the same parts (open-channel §1, and what follows there).
//!
//! Place in the data flow: [`target`] takes requests and sends commands, [`admit`] lets them into rings, [`waiters`] answers those that
//! wait for durability, [`state`] is what all of them change. [`ring`] holds what is accepted, [`map`] says where each unit is, [`streams`]
//! and [`order`] which members of streams count, [`lines`] gives places out and counts what is valid. [`collect`] empties lines, [`recover`] builds map
//! and lines from what a power loss left.
//!
//! [`passage`] notes for timelines when a request went from one of these to the next. [`threads`] lets the paths of all of these take time on the host's CPUs ([`costs`]).
//!
//! Deliberately absent: real threads. A host FTL is a state machine, as every layer.

mod admit;
mod check;
mod collect;
mod config;
mod costs;
mod lines;
mod map;
mod metrics;
mod order;
mod passage;
mod planted;
mod recent;
mod recover;
mod rest;
mod ring;
mod state;
mod streams;
mod target;
mod tasks;
#[cfg(test)]
mod tests;
mod threads;
mod turns;
mod waiters;

pub use config::{HostFtlConfig, Invalidation, Layout, Limits, Lines, Sequence, Trims};
pub use costs::{Costs, Shared, WhenFull};
pub use metrics::HostFtlMetrics;
pub use passage::FtlPassage;
pub use planted::PlantedHostBug;
pub use state::HostFtl;
