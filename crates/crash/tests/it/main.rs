//! Integration tests of the crash laboratory: faults that it finds, correct behaviour that it accepts, and replays from
//! tokens.

mod crash;
mod dftl;
mod file_crash;
mod open;
mod recorded;
