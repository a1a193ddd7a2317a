//! The crash laboratory of file systems: they are cut at every position, and what they show afterwards is judged.
//!
//! ```text
//! ace ─ sequences ─► explorer ─ runs one on a volume ─► every state that the device contract allows (explorer), or those
//!                       │                              that our device leaves, torn in its cells (whole)
//!                       │                                          │ recovered by a mount, checked
//!                       └─ oracle: what was promised ◄──── tree of names and contents
//! ```
//!
//! [`explore`] does this for many sequences; a violation is minimised and becomes one line, its [`Token`].
//! `docs/file-crash.md` states the promises and the rules of judgement.
//!
//! Invariants: a report is a function of its configuration, whatever the number of threads; nothing here reads a clock.

pub mod ace;
pub(crate) mod allowed;
pub(crate) mod appended;
pub mod below;
pub mod bug;
pub mod campaign;
pub mod case;
pub mod cuts;
pub mod explorer;
pub mod format;
pub mod history;
pub mod mounting;
mod names;
pub mod on;
pub mod ops;
pub mod oracle;
mod second;
pub(crate) mod segments;
pub(crate) mod sequence;
mod sets;
pub mod setup;
pub mod token;
pub mod tree;
pub mod volume;
pub mod whole;

pub use bug::Bug;
pub use campaign::{
    FileCrashConfig, FileCrashProgress, FileCrashReport, FileMutant, FileViolation, Sequences, explore, hunt,
    replay,
};
pub use case::{Counts, Effort, Fault};
pub use format::Format;
pub use on::On;
pub use ops::{Op, Ops};
pub use token::Token;
