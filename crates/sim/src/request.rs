//! Requests of a host to a device, in the terms of measurements.
//!
//! Place in the data flow: a workload issues [`Request`]s; recorders and timelines distinguish them by [`Kind`].
//!
//! Invariant: ranges are in sectors of 512 bytes, as in commands.

use flashweir_core::command::Handle;
use flashweir_core::{Instant, Lba};

/// Kind of a request. Ranges are in sectors of 512 bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Kind {
    /// Read a range.
    Read,
    /// Write a range.
    Write,
    /// Deallocate a range.
    Trim,
    /// Make a range read as zeros.
    WriteZeroes,
    /// Make a range take over the content of another one, by an atomic remap (SHARE).
    Share,
    /// Make everything that completed before durable (fsync, fdatasync, a cache flush).
    Flush,
}

/// One request of a workload.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Request {
    /// Kind of the request.
    pub kind: Kind,
    /// First sector; 0 for a flush.
    pub lba: Lba,
    /// Number of sectors of 512 bytes; 0 for a flush.
    pub blocks: u32,
    /// First sector of the range whose content a SHARE takes over; 0 for other kinds.
    pub source: Lba,
    /// Force unit access: complete only when durable.
    pub fua: bool,
    /// Placement of a write.
    pub handle: Handle,
    /// Time at which the request should have started. Latency of an open-loop workload counts from here, so that a slow
    /// device cannot hide behind the requests that it held back.
    pub intended: Instant,
    /// The workload's token of the request, returned with its completion.
    pub token: u32,
}
