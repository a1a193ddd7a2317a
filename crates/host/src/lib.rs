//! The host below its file systems: layers, of which the block layer of the barrier paper (barriers §4) is one.
//!
//! Place in the data flow: requests of a file system or of a job come in as commands, wait in a queue that may merge
//! and sort them, and leave for the device's queue one at a time. [`Layer`] is the interface of each layer, [`Chain`]
//! stacks several of them.
//!
//! Deliberately absent: clocks, threads, and any knowledge of what is inside a device.
#![forbid(unsafe_code)]

mod block_layer;
mod chain;
mod config;
mod elevator;
mod epochs;
mod ftl;
mod layer;
mod metrics;
mod overlap;
mod request;
mod smp;
mod task;
#[cfg(test)]
mod tests;

pub use block_layer::BlockLayer;
pub use chain::Chain;
pub use config::{CfqConfig, DeadlineConfig, Dispatch, Epochs, HostConfig, Scheduler, Wait};
pub use ftl::{
    Costs, FtlPassage, HostFtl, HostFtlConfig, HostFtlMetrics, Invalidation, Layout, Limits, Lines,
    PlantedHostBug, Sequence, Shared, Trims, WhenFull,
};
pub use layer::{Effect, Input, Layer, Offer};
pub use metrics::{DepthSample, HostMetrics, Passage};
pub use task::TaskAttribute;
