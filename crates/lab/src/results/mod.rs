//! What a run measured: recording, storing, judging and showing it.
//!
//! Place in the data flow: a [`Recorder`] per job takes completions from the hot path; the [`RunResult`] of
//! one seed is stored; tables, CSV and fio's JSON are views of stored results.
//!
//! Invariants: everything here is a function of the configuration and the seed; views change no number.
//!
//! Deliberately absent: wall-clock times (the command line shows the speed of the simulator itself) and
//! opinions about devices (a ratio between variants is the business of a report).

mod calls;
mod course;
mod csv;
mod distribution;
mod fio_json;
mod iolog;
mod recorder;
mod run;
mod sampler;
mod stats;
mod table;
#[cfg(test)]
pub(crate) mod testing;

pub use calls::{CallRecorder, CallResult, WorkloadResult, call_table};
pub use course::{Axis, Course, JobRequests, Numbers, Requests};
pub use csv::{CSV_COLUMNS, write_csv};
pub use distribution::{Bins, Distribution, Percentile, Summary};
pub use fio_json::{Grouping, fio_json};
pub use iolog::{IoLog, log_files};
pub use recorder::Recorder;
pub(crate) use run::KINDS;
pub use run::{
    DEPTH_LEVELS, DeviceTotals, Interval, IntervalRow, JobResult, KindResult, MetricValue, RunResult,
    TraceHash, kind_name,
};
pub use sampler::{COLUMNS_MAX, JOBS_MAX, Sampler, Snapshot};
pub use stats::{
    Drift, Estimate, STEADY_WINDOWS, Shortfall, Steadiness, batch_means, estimate, mser5, shortfalls, steady,
    student_t_95,
};
pub use table::{BELOW_ONE, TERMINAL_WIDTH, device_table, job_table};
pub(crate) use table::{Table, device_rows, groups, job_rows};
