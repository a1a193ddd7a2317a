//! What came of a job's search for a steady state, as results keep it.
//!
//! Place in the data flow: a workload that ends when it is steady says it at the end; it is stored with the job.
//!
//! Invariant: keys and units are fio's, so that what reads its JSON reads ours.

use serde::{Deserialize, Serialize};

/// What became of the search for a steady state, with fio's keys.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct SteadyState {
    /// The criterion as in the job file, as in `iops_slope:5%`.
    pub ss: String,
    /// Seconds of the window.
    pub duration: u64,
    /// 1 if the job was steady before something else ended it.
    pub attained: u8,
    /// The last value that was held against the limit; a percentage where the limit is one.
    pub criterion: f64,
    /// The largest distance from the mean, where that counts.
    pub max_deviation: f64,
    /// The slope per interval, where that counts.
    pub slope: f64,
    /// What was looked at.
    pub data: SteadyData,
}

/// The window at the end.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct SteadyData {
    /// Mean bandwidth in bytes per second.
    pub bw_mean: u64,
    /// Mean requests per second.
    pub iops_mean: u64,
    /// Requests per second of each interval.
    pub iops: Vec<u64>,
    /// Bytes per second of each interval.
    pub bw: Vec<u64>,
}
