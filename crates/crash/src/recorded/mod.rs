//! The crash laboratory for programs that we did not write: what one did to a file system is recorded, done again in virtual
//! time, and cut.
//!
//! ```text
//! program ─ mount ─► recording ─► player, at another pace each time ─► every state that the device contract allows
//!                    (calls)      (states)                                        │ recovered by a mount
//!                                                         directories to be judged ◄─┘ each with what the program had promised
//! ```
//!
//! Place in the data flow: a mount records [`Step`]s; [`directories`] gives each directory that a power cut may leave once, with
//! the moments of which it may be; who started the program asks it, or a check of its own, what it thinks of them.
//!
//! Invariants: the answer is a function of recording and configuration; a state is given only if a disk that keeps its word may
//! show it at that moment.

mod calls;
mod states;

pub use calls::{Call, Room, Step};
pub use states::{Config, Counts, Course, Directory, Moment, Recording, Wrong, directories, fresh};
