//! The result of a job's search for a steady state.
//!
//! Place in the data flow: a workload that ends when it is steady reports it at the end; it is stored with the job.
//!
//! Invariant: keys and units are fio's, so that programs that read its JSON can read Flashweir's.

use serde::{Deserialize, Serialize};

/// The result of the search for a steady state, with fio's keys.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct SteadyState {
    /// The criterion as written in the job file, such as `iops_slope:5%`.
    pub ss: String,
    /// Length of the window in seconds.
    pub duration: u64,
    /// 1 if the job became steady before something else ended it.
    pub attained: u8,
    /// The last value compared with the limit; a percentage if the limit is one.
    pub criterion: f64,
    /// The largest deviation from the mean, for a criterion that uses it.
    pub max_deviation: f64,
    /// The slope per interval, for a criterion that uses it.
    pub slope: f64,
    /// The measured data.
    pub data: SteadyData,
}

/// Data of the last window.
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
