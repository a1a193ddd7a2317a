//! The open channel as a firmware: no map, no buffer, no GC; a host has the physical units and erases blocks itself
//! (open-channel §6, commands §6).
//!
//! Place in the data flow: a command that passed `check` (`check.rs`) becomes one operation for each page or block that it names;
//! it completes when the last of them has ended. Contents stay in the command until their program has ended.
//!
//! Invariants:
//! 1. The write pointer of a block moves when a page is accepted. Pages of a plane are programmed in the order of their acceptance,
//!    so the pages of a block in the order of their numbers, each once between two erases.
//! 2. A block whose erase was accepted takes no page until the erase has ended, and is erased when its programs have ended.
//! 3. Completed commands are on the medium: FLUSH has nothing to do, and recovery nothing to write.
//!
//! Deliberately absent: a use of the block pool other than for bad blocks; a copy command and log pages of chunks
//! (open-channel §6.1), which come with the first host FTL.

mod check;
mod firmware;
mod job;
mod places;

pub(crate) use firmware::OpenChannel;
