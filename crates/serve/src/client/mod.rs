//! The other side of the socket: a client of our own, and what it takes to judge a served disk by what a client saw.
//!
//! Place in the data flow: a [`Client`] speaks NBD to a server, ours or another; a [`Record`] keeps what was submitted
//! and completed, as the client saw it, in the log of the crash contract; a [`campaign`] loads a running server, has
//! its power cut, reads everything back and asks the contract's oracle. A [`Tap`] keeps the same record of another
//! program, fio for instance, as a proxy between it and the server.
//!
//! Invariant: nothing here looks into a device or a server; a judgement rests on bytes that crossed a socket.
//!
//! Deliberately absent: TLS and TCP.

pub mod campaign;
mod connection;
pub mod fio;
pub mod record;
mod replies;
pub mod stamp;
mod tap;
pub mod workload;

pub use connection::{Client, ClientError, wait_for};
pub use record::{Failure, FailureKind, Record};
pub use replies::{Ask, Facts, Reply};
pub use tap::{Tap, Tapped};
