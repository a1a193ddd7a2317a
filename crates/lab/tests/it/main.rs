//! Integration tests of the laboratory: worlds against answers that we did not write.

mod amplification;
mod answers;
mod crash;
mod database;
mod file_crash;
mod fsync;
mod ordered_stack;
mod planes;
mod recorded;
mod support;
mod timeline;
