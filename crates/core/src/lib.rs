//! The vocabulary of Flashweir: units, virtual time, random streams, the agenda and the executor, the
//! command set (the narrow waist between host and device), the link and declared metrics.
//!
//! Place in the data flow: every other crate depends on this one and this one on none of them.
//!
//! Deliberately absent: any clock, any I/O, any policy of a device or of a host.
#![forbid(unsafe_code)]

pub mod agenda;
pub mod command;
pub mod divisor;
pub mod executor;
pub mod index;
pub mod link;
pub mod metrics;
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
pub use random::Stream;
pub use time::{Duration, Instant};
pub use units::{Bytes, Lba, Lpn, Ppa};
