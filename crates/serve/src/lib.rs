//! Front ends: the simulated device as a disk that real programs use.
//!
//! Place in the data flow: protocol machines ([`nbd`]) turn bytes into requests and answers into bytes, without
//! I/O of their own; a [`Disk`] has a simulated device execute them; the [`Server`] polls sockets and the clock; a volume
//! ([`volume`]) keeps the medium on the host's file system. [`fuse`] mounts a file system on a device.
#![forbid(unsafe_code)]

pub mod client;
pub mod clock;
pub mod control;
mod disk;
pub mod fuse;
mod host_disk;
mod listen;
mod memory;
pub mod nbd;
pub mod parallel;
pub mod recording;
mod server;
pub mod stats;
mod versions;
pub mod volume;

pub use clock::{Clock, Hand, Speed};
pub use disk::{Disk, DiskError, OnCut};
pub use listen::{Endpoint, ServeError};
pub use memory::MemoryBound;
pub use server::{Server, ServerConfig};
