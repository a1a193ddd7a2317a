//! Integration tests of hosts above devices: file systems, the block layer and databases under power cuts, over the simulated device
//! and over the contract's model of one; golden records of what jobs, servers and tasks see.

mod database;
mod fsync;
mod golden;
mod ordered_stack;
mod raw_on_layer;
