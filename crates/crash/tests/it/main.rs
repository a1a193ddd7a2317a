//! Integration tests of the crash laboratory: what it finds, what it finds good, and that a line replays it.

mod crash;
mod dftl;
mod file_crash;
mod open;
mod recorded;
