//! What a host asks of a device, in the words of whoever measures it.
//!
//! Place in the data flow: a workload hands out [`Request`]s; what is recorded and followed in time says which [`Kind`] it was.
//!
//! Invariant: ranges are in blocks of 512 bytes, as in commands.

use flashweir_core::{Instant, Lba};

/// What a request does. Ranges are in 512-byte blocks.
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
    /// Make everything that completed before durable (fsync, fdatasync, a cache flush).
    Flush,
}

/// One request of a workload.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Request {
    /// What to do.
    pub kind: Kind,
    /// First block; 0 for a flush.
    pub lba: Lba,
    /// Number of 512-byte blocks; 0 for a flush.
    pub blocks: u32,
    /// Complete only when durable.
    pub fua: bool,
    /// When the request should have started. Latency of an open-loop workload counts from here, so that
    /// a slow device cannot hide behind the requests that it held back.
    pub intended: Instant,
    /// The workload's own name for the request, handed back with its completion.
    pub token: u32,
}
