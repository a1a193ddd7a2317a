//! What a run measured: recording, storing, judging and showing it.
//!
//! Place in the data flow: a [`Recorder`] per job takes completions from the hot path; the [`RunResult`] of
//! one seed is stored; tables, CSV and fio's JSON are views of stored results.
//!
//! Invariants: everything here is a function of the configuration and the seed; views change no number.
//!
//! Deliberately absent: wall-clock times (the command line shows the speed of the simulator itself) and
//! opinions about devices (a ratio between variants is the business of a report).

mod distribution;
mod recorder;
mod run;
#[cfg(test)]
mod testing;

pub use distribution::{Bins, Distribution, Percentile, Summary};
pub use recorder::Recorder;
pub use run::{
    DEPTH_LEVELS, DeviceTotals, Interval, IntervalRow, JobResult, KindResult, MetricValue, RunResult, kind_name,
};
