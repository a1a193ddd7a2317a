//! A host above a device, in either clock: the only place where the two meet.
//!
//! Place in the data flow: jobs on the raw device run in a [`world`], tasks on files in a [`stack`], and what comes from outside
//! goes through [`live`]; below each of them is one engine, with layers of the host or without. [`model_port`] puts a file system on the contract's model device instead. What they see is measured
//! ([`measure`]) and followed in time ([`timeline`]).
//!
//! Invariants: nothing here reads a clock; what happens is a function of configuration, seed and the instants of requests.
//!
//! Deliberately absent: what a job wants (`flashweir-workload`), power cuts that are judged (`flashweir-crash`), scenarios, tables
//! and reports (`flashweir-lab`).
#![forbid(unsafe_code)]

mod engine;
pub mod live;
pub mod measure;
pub mod model_port;
pub mod precondition;
pub mod request;
pub mod stack;
pub mod timeline;
pub mod volume;
pub mod workload;
pub mod world;

pub use engine::check_block_layer;
