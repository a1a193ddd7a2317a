//! What a run measured: recording, storing, judging and showing it.
//!
//! Place in the data flow: a [`Recorder`] per job takes completions from the hot path; the [`RunResult`] of
//! one seed is stored; tables, CSV and fio's JSON are views of stored results.
//!
//! Invariants: everything here is a function of the configuration and the seed; views change no number.
//!
//! Deliberately absent: wall-clock times (the command line shows the speed of the simulator itself) and
//! opinions about devices (a ratio between variants is the business of a report).

mod csv;
mod distribution;
mod fio_json;
mod recorder;
mod run;
mod stats;
mod table;
#[cfg(test)]
mod testing;

pub use csv::{CSV_COLUMNS, write_csv};
pub use distribution::{Bins, Distribution, Percentile, Summary};
pub use fio_json::{Grouping, fio_json};
pub use recorder::Recorder;
pub use run::{
    DEPTH_LEVELS, DeviceTotals, Interval, IntervalRow, JobResult, KindResult, MetricValue, RunResult,
    kind_name,
};
pub use stats::{
    Drift, Estimate, STEADY_WINDOWS, Shortfall, Steadiness, batch_means, estimate, mser5, shortfalls, steady,
    student_t_95,
};
pub use table::{device_table, job_table};
