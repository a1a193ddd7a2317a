//! The host below its file systems: the block layer of the barrier paper (barriers §4).
//!
//! Place in the data flow: requests of a file system come in as commands, wait in a queue that may merge and sort
//! them, and leave for the device's queue one at a time.
//!
//! Deliberately absent: clocks, threads, and any knowledge of what is inside a device.
#![forbid(unsafe_code)]

mod block_layer;
mod config;
mod elevator;
mod epochs;
mod metrics;
mod overlap;
mod request;
mod task;
#[cfg(test)]
mod tests;

pub use block_layer::{BlockLayer, Effect, Input, Offer};
pub use config::{CfqConfig, DeadlineConfig, Dispatch, Epochs, HostConfig, Scheduler, Wait};
pub use metrics::{DepthSample, HostMetrics};
pub use task::TaskAttribute;
