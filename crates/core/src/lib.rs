//! The vocabulary of Flashweir: units, virtual time, random streams, the agenda of future events, the executor, the
//! command set (the narrow waist between host and device), the link and the declared metrics.
//!
//! Place in the data flow: every other crate depends on this one; this one depends on none of them.
//!
//! Deliberately absent: any clock, any I/O, any policy of a device or of a host.
#![forbid(unsafe_code)]

pub mod agenda;
pub mod command;
pub mod cpus;
pub mod divisor;
pub mod executor;
pub mod index;
mod keys;
pub mod link;
pub mod metrics;
#[cfg(feature = "mutants")]
pub mod mutant;
pub mod oob;
pub mod open;
pub mod random;
pub mod signal;
pub mod time;
pub mod units;

pub use agenda::Agenda;
pub use command::{Command, CommandId, Completion, Contents, Data, DeviceError, Done, Op, Order, Payload};
pub use divisor::Divisor;
pub use executor::Executor;
pub use index::IndexVec;
pub use link::{Link, LinkConfig};
pub use random::RandomStream;
pub use time::{Duration, Instant};
pub use units::{Address, Bytes, Lba, Lpn, Ppa, is_zero};

/// Prefetches `place` into the processor's caches because it is read soon. Never changes a result; does nothing on
/// architectures other than x86-64.
#[inline]
pub fn prefetch<T>(place: &T) {
    #[cfg(target_arch = "x86_64")]
    safe_arch::prefetch_t0(place);
    #[cfg(not(target_arch = "x86_64"))]
    let _ = place;
}
