//! The open channel as a firmware: no map, no buffer, no GC; a host has the physical units and resets chunks itself
//! (open-channel §6, commands §6).
//!
//! Place in the data flow: a command that passed `check` becomes one operation for each page or block that it names; it completes
//! when the last of them has ended. Contents stay in the command until their program has ended.
//!
//! Invariants:
//! 1. A page is accepted at the end of its chunk. Pages of a plane are programmed in the order in which they were accepted and have
//!    their contents; a page whose contents are still being copied holds back the later ones of its chunk. So the pages of a block
//!    are programmed in the order of their numbers, each once between two erases.
//! 2. A chunk whose reset was accepted takes no page until the reset has ended, and is erased when its programs have ended.
//! 3. Completed commands are on the medium: FLUSH has nothing to do, and recovery nothing to write.
//! 4. State of a chunk that survives a power cut is what its pages show (`chunks`).
//!
//! Deliberately absent: a use of the block pool other than for bad blocks; contents in memory other than those of commands under way.

mod check;
mod chunks;
mod copy;
mod firmware;
mod job;
mod places;
mod program;
mod read;
mod report;
mod reset;
mod state;

pub(crate) use state::OpenChannel;
