//! The crash laboratory for arbitrary programs: what a program did to a file system is recorded, repeated in virtual
//! time, and cut.
//!
//! ```text
//! program ─ mount ─► recording ─► player, at another pace each time ─► every state that the device contract allows
//!                    (calls)      (states)                                        │ recovered by a mount
//!                                                         directories to be judged ◄─┘ each with what the program had promised
//! ```
//!
//! Place in the data flow: a mount records [`Step`]s; [`directories`] returns each directory that a power cut may leave
//! once, with the moments at which it may; the caller that started the program asks it, or a check of its own, to judge
//! them.
//!
//! Invariants: the result is a function of recording and configuration; a state is returned only if a disk that keeps
//! the contract may show it at that moment.

mod calls;
mod disk;
mod look;
mod states;

pub use calls::{Call, Room, Step};
pub use states::{Config, Counts, Course, Directory, Moment, Recording, Wrong, directories, fresh};
