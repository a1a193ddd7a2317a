//! Integration tests of hosts above devices: file systems, the block layer and databases under power cuts, over the
//! simulated device and over the contract's model device; golden records of what jobs, servers and tasks observe.

mod database;
mod fsync;
mod golden;
mod golden_files;
mod host_ftl;
mod ordered_stack;
mod raw_on_layer;
mod without_content;
