//! Integration tests of the front ends.

mod cuts;
mod nbd;
mod proxy;
mod robust;
mod running;
