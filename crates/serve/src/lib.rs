//! Front ends: the simulated device as a disk that real programs use.
//!
//! Place in the data flow: protocol machines ([`nbd`]) turn bytes into requests and answers into bytes, without
//! I/O of their own; a volume ([`volume`]) keeps the medium on the host's file system.
#![forbid(unsafe_code)]

pub mod nbd;
pub mod volume;
