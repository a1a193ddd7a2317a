//! The course of a run: activity of host and device, column by column of time.
//!
//! Place in the data flow: a [`Sampler`](super::Sampler) fills it during a run; it is stored with the result and drawn
//! by `flashweir_lab::report`.
//!
//! Invariants: columns follow each other without gaps from zero to `end`, and only the last one may be shorter; every
//! per-column list has an entry for each column; the columns of a counter add up to the count of the whole run.
//!
//! Deliberately absent: rates and ratios. They follow from the counts, and coarser columns are sums of counts.

use super::distribution::Bins;
use super::run::kind_text;
use crate::request::Kind;
use serde::{Deserialize, Deserializer, Serialize, Serializer};
use std::ops::{Deref, Range};

/// Unit of the columns.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Axis {
    /// Nanoseconds of virtual time since the world began.
    #[default]
    VirtualTime,
    /// Mapping units written by the host, for a device without time.
    HostUnits,
}

/// One number per column, stored as text separated by blanks.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Numbers(Vec<u64>);

impl Deref for Numbers {
    type Target = [u64];
    fn deref(&self) -> &[u64] {
        &self.0
    }
}
impl FromIterator<u64> for Numbers {
    fn from_iter<I: IntoIterator<Item = u64>>(numbers: I) -> Self {
        Self(numbers.into_iter().collect())
    }
}
impl Serialize for Numbers {
    fn serialize<S: Serializer>(&self, s: S) -> Result<S::Ok, S::Error> {
        let text: Vec<String> = self.iter().map(u64::to_string).collect();
        s.serialize_str(&text.join(" "))
    }
}
impl<'de> Deserialize<'de> for Numbers {
    fn deserialize<D: Deserializer<'de>>(d: D) -> Result<Self, D::Error> {
        let text = String::deserialize(d)?;
        let number = |word: &str| {
            word.parse().map_err(|_| serde::de::Error::custom(format!("`{word}` is not a whole number")))
        };
        text.split_ascii_whitespace().map(number).collect()
    }
}

/// The course of one run.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Course {
    /// Unit of `column` and `end`.
    pub axis: Axis,
    /// Length of a column.
    pub column: u64,
    /// End of the last column.
    pub end: u64,
    /// Bytes of a mapping unit.
    pub unit_bytes: u64,
    /// Capacity of the write buffer, in mapping units.
    pub buffer_capacity_units: u64,
    /// Number of planes of the device.
    pub planes: u64,
    /// Stations on each channel; a station is a die, or a chip where dies do not interleave.
    pub stations_per_channel: u64,
    /// Mapping units that the host wrote.
    pub host_units: Numbers,
    /// Mapping units of host data that were programmed.
    pub user_units: Numbers,
    /// Mapping units moved by garbage collection.
    pub gc_units: Numbers,
    /// Mapping units of padding that were programmed.
    pub filler_units: Numbers,
    /// Mapping units of the device's own metadata that were programmed.
    pub meta_units: Numbers,
    /// Erase blocks erased.
    pub erases: Numbers,
    /// Requests in flight, integrated over time in nanoseconds.
    pub in_flight_ns: Numbers,
    /// Mapping units in the write buffer at the end of the column.
    pub buffer_used_units: Numbers,
    /// Mapping units in the write buffer that are not yet selected for writing.
    pub buffer_dirty_units: Numbers,
    /// Free erase blocks of all planes together, at the end of the column.
    pub free_blocks: Numbers,
    /// Fewest free erase blocks of any plane, sampled at the end of any part of the column.
    pub free_blocks_min: Numbers,
    /// Time that each station was busy, in nanoseconds; at most the length of the column.
    pub station_busy_ns: Vec<Numbers>,
    /// Time that each channel was busy, in nanoseconds.
    pub channel_busy_ns: Vec<Numbers>,
    /// Length of a column of `requests`, a whole number of columns.
    pub request_column: u64,
    /// Requests by kind; kinds of which none completed are absent.
    pub requests: Vec<Requests>,
    /// Requests of each job, if there are several and not too many.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub jobs: Vec<JobRequests>,
    /// Erase counts of the good blocks at the end, including erases before the run: number of blocks per count.
    pub wear: Bins,
}

/// Requests of one job.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct JobRequests {
    /// Name of the job, as in the results.
    pub name: String,
    /// Requests by kind.
    pub requests: Vec<Requests>,
}

/// Requests of one kind that completed in each column.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Requests {
    /// Kind of the requests.
    #[serde(with = "kind_text")]
    pub kind: Kind,
    /// Number of requests.
    pub count: Numbers,
    /// Bytes of the requests.
    pub bytes: Numbers,
    /// Median of the latencies from the intended start to completion, with two significant digits; 0 in a column
    /// without requests.
    pub p50_ns: Numbers,
    /// 99th percentile of the same latencies.
    pub p99_ns: Numbers,
    /// 99.9th percentile of the same latencies.
    pub p99_9_ns: Numbers,
}

impl Course {
    /// Returns the number of columns.
    pub fn len(&self) -> usize {
        self.host_units.len()
    }
    /// Whether the run has no column.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }
    /// Returns at most `most` groups of neighbouring columns, with the part of the axis that each covers. A remainder
    /// shorter than half a group is merged into the group before it.
    pub fn groups(&self, most: usize) -> Vec<(Range<usize>, Range<u64>)> {
        let mut size = 1;
        while self.len().div_ceil(size) > most.max(1) {
            size *= 2;
        }
        let group = |first: usize| {
            let columns = first..(first + size).min(self.len());
            let start = columns.start as u64 * self.column;
            (columns.clone(), start..(columns.end as u64 * self.column).min(self.end))
        };
        let mut groups: Vec<_> = (0..self.len()).step_by(size).map(group).collect();
        if let [.., before, last] = &mut groups[..]
            && (last.1.end - last.1.start) * 2 < before.1.end - before.1.start
        {
            (before.0.end, before.1.end) = (last.0.end, last.1.end);
            groups.pop();
        }
        groups
    }
    /// Returns the parts of the axis that the columns of `requests` cover.
    pub fn request_columns(&self) -> Vec<Range<u64>> {
        let count = self.requests.first().map_or(0, |requests| requests.count.len() as u64);
        let span = |i: u64| i * self.request_column..((i + 1) * self.request_column).min(self.end);
        (0..count).map(span).collect()
    }
}
