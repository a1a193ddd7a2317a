//! Integration tests of the front ends.

mod cuts;
mod host_ftl;
mod nbd;
mod proxy;
mod robust;
mod running;
