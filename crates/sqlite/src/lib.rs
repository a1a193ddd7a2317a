//! SQLite itself, in virtual time, on the files of a simulated stack.
//!
//! Place in the data flow: SQLite runs on a thread of its own; what it asks of the operating system goes to the world's thread
//! and waits there until virtual time has brought the answer.
//!
//! ```text
//! workload ─► SQLite (C) ─► interface ─► guest ═ calls ═► host ─► vfs ─► file system ─► device
//!   thread of SQLite                        ◄═ answers ═     thread of the world
//! ```
//!
//! [`guest`] is the rendezvous: only one of the two threads runs at any time, so a run is a function of its configuration.
//! [`host`] executes the calls on a [`flashweir_fs::vfs::Process`]; [`order`] says which of SQLite's syncs become barriers;
//! [`workload`] has transactions to measure, [`run`] a stack to measure them on; [`crash`] cuts the power of such a stack;
//! [`study`] has what the barrier paper says of SQLite.
//!
//! **Invariant:** unsafe code is in [`interface`] only, where C calls us, each use with a reason.
//!
//! Deliberately absent: extensions, memory maps of the database, locks between processes, and SQLite on files of the host:
//! its source of random numbers is one for the whole process, and is seeded here.
#![deny(unsafe_code)]

pub mod crash;
mod guest;
mod host;
mod interface;
mod locks;
pub mod order;
pub mod run;
pub mod study;
pub mod workload;

pub use guest::{Clock, Phase, PhaseStats, Phases};
pub use host::{Guest, HostOptions};
pub use interface::VFS;
