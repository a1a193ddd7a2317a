//! Measurements of a run: recording and storing them.
//!
//! Place in the data flow: a [`Recorder`] per job takes completions from the hot path, a [`Sampler`] samples the device
//! at intervals; the [`RunResult`] of one seed is stored. Tables and result files are views of it, made elsewhere.
//!
//! Invariants: everything here is a function of the configuration and the seed.
//!
//! Deliberately absent: wall-clock times (the command line shows the speed of the simulator itself).

mod calls;
mod course;
mod distribution;
mod iolog;
mod recorder;
mod run;
mod sampler;
mod steady;
pub mod testing;

pub use calls::{CallRecorder, CallResult, WorkloadResult};
pub use course::{Axis, Course, JobRequests, Numbers, Requests};
pub use distribution::{Bins, Distribution, LatencyRecorder, Percentile, Summary};
pub use iolog::{IoLog, LogSpec, log_files};
pub use recorder::Recorder;
pub use run::{
    DEPTH_LEVELS, DeviceTotals, Interval, IntervalRow, JobResult, KINDS, KindResult, MetricValue, RunResult,
    TraceHash, kind_name,
};
pub use sampler::{COLUMNS_MAX, JOBS_MAX, Sampler, Snapshot};
pub use steady::{SteadyData, SteadyState};
