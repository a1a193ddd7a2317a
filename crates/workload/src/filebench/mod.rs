//! filebench's workloads on a file system: `.f` files in, results by flowop out.
//!
//! Place in the data flow: `lex` and `parse` (text to a [`Model`]) → `tree` (the files of a fileset) → `run` (threads
//! as tasks, on a mounted file system in virtual time) with `thread` (the flowops), `pool` (the choice of the next
//! file) and `limits` (semaphores, events) → [`WorkloadResult`](flashweir_sim::measure::WorkloadResult).
//!
//! Invariants: equal models, seeds and file systems give equal results; only what completed while the model ran counts;
//! the threads of a model do not depend on other workloads of the same mount, except through the file system.
//!
//! Decisions where filebench leaves a choice, or where its programs and its manual differ:
//!
//! * The opening of a file by a read or write (without an open flowop) is not counted as a call of its own.
//! * `aiowrite` lasts until the write is done; `aiowait` waits for all of them.
//! * A random offset is a multiple of `iosize` such that the I/O ends within the file.
//! * A plain size of a fileset is exact (version 1.5); `cvar(type=cvar-gamma,...)` varies.
//! * `deletefile` takes the next file that is not open. filebench gives up if the next one is open, so its filesets
//!   slowly fill; here they keep their size.
//! * Files stay in the page cache after they were created; filebench asks the kernel to drop them.
//! * `hog` takes [`Options::hog_step`] for each step.
//!
//! Deliberately absent: raw devices, directories as objects of flowops, position sets, processes that share nothing.

mod error;
mod halt;
mod lex;
mod limits;
mod model;
mod options;
mod parse;
mod pool;
mod run;
mod shared;
mod thread;
pub(crate) mod tree;

pub use error::{Fault, ModelError, RunError};
pub use model::{Amount, Fileset, Flowop, Gamma, Model, Op, Process, Thread};
pub use options::Options;
pub use parse::parse_model;
pub use run::Filebench;

/// The four personalities, by name: scenarios/filebench/NAME.f.
pub const PERSONALITIES: [(&str, &str); 4] = [
    ("fileserver", include_str!("../../../../scenarios/filebench/fileserver.f")),
    ("varmail", include_str!("../../../../scenarios/filebench/varmail.f")),
    ("webserver", include_str!("../../../../scenarios/filebench/webserver.f")),
    ("oltp", include_str!("../../../../scenarios/filebench/oltp.f")),
];

/// Returns the text of a personality.
pub fn personality(name: &str) -> Option<&'static str> {
    PERSONALITIES.iter().find(|(known, _)| *known == name).map(|(_, text)| *text)
}
