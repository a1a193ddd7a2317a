//! The NBD protocol, server side, without I/O.
