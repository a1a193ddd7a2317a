//! Integration tests of hosts above devices: file systems, the block layer and databases under power cuts, over the simulated device
//! and over the contract's model of one.

mod database;
mod fsync;
mod ordered_stack;
