//! A host above a device, in virtual time or in real time: the only place where the two meet.
//!
//! Place in the data flow: jobs on the raw device run in a [`world`], tasks on files in a [`stack`], and requests from
//! outside go through [`live`]. Below each of them is one engine, with or without layers of the host. [`model_port`]
//! puts a file system on the contract's model device instead. [`measure`] records what the hosts observe, [`timeline`]
//! follows it in time.
//!
//! Invariants: nothing here reads a clock; a run is a function of configuration, seed and the times of the requests.
//!
//! Deliberately absent: the logic of jobs (`flashweir-workload`), judged power cuts (`flashweir-crash`), scenarios,
//! tables and reports (`flashweir-lab`).
#![forbid(unsafe_code)]

mod engine;
pub mod host_ftl;
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
