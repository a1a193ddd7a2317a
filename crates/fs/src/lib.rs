//! File systems in user space.
//!
//! Place in the data flow: above are the users of files; below is the block port ([`port`]), which is all that a file
//! system sees of a disk. File systems are straight-line `async` code on the executor of `flashweir-core`.
//!
//! Deliberately absent: any device, any link, any clock.
#![forbid(unsafe_code)]

pub mod acl;
pub mod alfs;
mod any;
mod boxed;
mod engine;
mod errno;
pub mod ext4;
pub mod f2fs;
pub mod format;
pub mod kind;
pub mod memfs;
pub mod order;
pub mod port;
mod set;
pub mod vfs;
mod volumes;
pub mod xattrs;

pub use any::{AnyFs, Mounted};
pub use boxed::Boxed;
pub use kind::{Kind, Mode, NewVolume};
