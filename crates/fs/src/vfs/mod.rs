//! The vfs: what applications see of a file system: paths, files, rights, and pages in memory.
//!
//! Place in the data flow: above are FUSE, jobs, databases; below is an [`Fs`].
//!
//! ```text
//! Process ─ paths ─► Vfs ─ rules, locks ─► Fs: names, attributes
//! FUSE ── numbers ───┘
//!    └─► File ─ read, write ─► pages in memory ─ write-back ─► Fs: pages
//! ```
//!
//! Deliberately absent: mount points, memory maps, locks of files; access control lists are kept and passed on, but rights are
//! checked by permission bits.

mod atomic;
mod attrs;
mod buffer;
mod config;
mod copy;
mod cost;
mod direct;
mod exchange;
mod file;
mod fs;
mod inode;
mod io;
mod mount;
mod names;
mod nodes;
mod pages;
mod process;
mod readahead;
mod rights;
mod seek;
mod state;
mod sync;
mod types;
mod walk;
mod window;
mod writeback;

pub use crate::acl::{Acl, AclEntry, AclKind, NewAcls, Who};
pub use crate::errno::Errno;
pub use attrs::{SetTime, XATTR_NAME_BYTES_MAX};
pub use buffer::{Sink, Source};
pub use config::{CacheConfig, ConfigError, MountOptions, VfsMetrics};
pub use cost::{CostPreset, HostCosts};
pub use file::{Access, File, OpenFlags, Seek};
pub use fs::Fs;
pub use nodes::Kept;
pub use process::{Follow, Process};
pub use rights::Wish;
pub(crate) use state::Pool;
pub use state::Vfs;
pub use sync::Event;
pub(crate) use sync::RwLock;
pub use types::*;
pub use walk::{PATH_BYTES_MAX, SYMLINKS_MAX};

use flashweir_core::Payload;
use std::future::Future;
use std::pin::Pin;

/// A page to be written.
#[derive(Clone, Debug, PartialEq)]
pub struct DirtyPage {
    /// Number of the page in the file.
    pub index: u64,
    /// Its content. Bytes beyond the end of the file are zeros.
    pub payload: Payload,
}

/// What a set has of one file; see [`Fs::write_set`].
#[derive(Clone, Debug)]
pub struct SetPart {
    /// The file.
    pub ino: Ino,
    /// Its pages, in ascending order.
    pub pages: Vec<DirtyPage>,
    /// It is at least this long, in bytes.
    pub end: u64,
    /// When it was changed last; `None` if its times are right already.
    pub changed: Option<Timestamp>,
}

/// Why pages are written.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum WriteCause {
    /// They are old, or there are many.
    Background,
    /// A caller waits in fsync, fdatasync or sync; [`Fs::fsync`] or [`Fs::sync`] follows.
    Sync,
    /// The same for fdatasync.
    DataSync,
    /// The caller writes past the page cache.
    Direct,
}

/// How much of a file is made durable.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SyncKind {
    /// fsync: everything.
    All,
    /// fdatasync: the data, and of the attributes what is needed to read them (the size).
    Data,
}

/// Ordering without durability (barriers §6).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Barrier {
    /// fbarrier: data and attributes before anything later.
    All,
    /// fdatabarrier: data before anything later.
    Data,
}

impl From<SyncKind> for WriteCause {
    fn from(kind: SyncKind) -> Self {
        match kind {
            SyncKind::All => Self::Sync,
            SyncKind::Data => Self::DataSync,
        }
    }
}

impl From<SyncKind> for Barrier {
    fn from(kind: SyncKind) -> Self {
        match kind {
            SyncKind::All => Self::All,
            SyncKind::Data => Self::Data,
        }
    }
}

/// Resolves when the device has answered the pages that were dispatched.
pub type Ticket = Pin<Box<dyn Future<Output = Result<()>>>>;
