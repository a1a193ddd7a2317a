//! The laboratory: the only place where host and device meet.
#![forbid(unsafe_code)]

pub mod crash;
pub mod experiment;
pub mod files;
pub mod live;
pub mod model_port;
pub mod mqsim;
pub mod precondition;
pub mod report;
pub mod reproduce;
pub mod results;
pub mod scenario;
pub mod spelling;
pub mod stack;
pub mod timeline;
pub mod workload;
pub mod world;
