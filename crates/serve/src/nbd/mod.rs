//! The NBD protocol, server side, without I/O (`docs/nbd.md`).
//!
//! Place in the data flow: bytes of one client go into a [`Session`], requests come out; the engine answers them in
//! any order, and bytes for the client come out. [`Connection`] puts a session on a non-blocking stream, with TLS
//! where the client asks for it.
//!
//! Invariants: each request is answered exactly once, whatever cookie its client gave it; what a client announces
//! costs memory only as it arrives; nothing that a client sends is a panic.
//!
//! Deliberately absent: sockets, time (deadlines are the caller's), and what requests do.

mod connection;
mod export;
mod in_flight;
mod input;
mod negotiate;
mod output;
mod request;
mod session;
mod tls;
mod transmit;
pub mod wire;

pub use connection::{Connection, Progress};
pub use export::{Config, ConfigError, Export, Limits, TlsMode};
pub use in_flight::Token;
pub use request::{Command, Extent, Request};
pub use session::{Fatal, Session};
pub use tls::{TlsError, TlsKeys};
pub use transmit::ReadReply;
pub(crate) use transmit::{EXTENT_UNITS_MAX, EXTENTS_MAX};
pub use wire::Errno;
