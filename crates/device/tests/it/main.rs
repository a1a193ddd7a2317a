//! Integration tests of the device: random devices and random commands against a map in memory.

mod append;
mod both;
mod causes;
mod conservation;
mod dftl;
mod fastforward;
mod golden;
mod harness;
mod open;
mod order;
mod placement;
mod planes;
mod range_flush;
mod share;
