//! The kernel's side of a mount: FUSE, as `/dev/fuse` speaks it, and the mount itself.
//!
//! ```text
//! /dev/fuse ─ read ─► request (bytes to words) ─► front ─► world
//!           ◄ write ─ reply (words to bytes), notices ◄──────┘
//! ```
//!
//! Place in the data flow: [`attach`] mounts and agrees with the kernel on what both can do; [`Session`]'s threads read requests, each
//! by an [`Inlet`], and hand them to a [`Handler`] with a [`Reply`], which answers from any thread; [`Notifier`] tells the kernel
//! what to forget. The layouts are those of `<linux/fuse.h>`, protocol 7.38, in the byte order of the machine.
//!
//! Invariants:
//! 1. Each request is answered once: by its reply, with EINTR if the thread that waits is killed first, or with EIO when its reply
//!    is dropped. Any other signal changes nothing, as on a local file system.
//! 2. No bytes from the device make anything panic; what is malformed is answered with EIO.
//! 3. An interruption may come before its request is known, by another thread: then the kernel is asked to say it again.
//!
//! Deliberately absent: splice and io_uring, descriptors cloned for each thread (`FUSE_DEV_IOC_CLONE` is a call that rustix does
//! not have), locks, character devices.

mod mount;
mod reply;
mod request;
mod session;

pub(super) use mount::Mounting;
pub(super) use reply::{Attributes, Entry, Listing, Notifier, OpenFlags, Reply, Stale, Statistics};
pub(super) use request::{Op, Request, SetAttributes, When};
pub(super) use session::{Features, Handler, Inlet, Place, Session, Wanted, attach};

/// The kernel's number of an inode.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct NodeId(pub(super) u64);

impl NodeId {
    /// The root, whatever its number is.
    pub(super) const ROOT: Self = Self(1);
}
