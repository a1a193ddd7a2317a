//! The NBD machine, as a client sees it.

mod client;
mod connection;
mod golden;
mod hostile;
mod properties;
