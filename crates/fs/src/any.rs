//! Any file system of this crate as one type.
//!
//! Place in the data flow: an [`Fs`] below the vfs, which passes each call on to one of those that know a format.
//!
//! The body of an `async` method is compiled by each crate that awaits it, and once for each file system that a caller is generic over.
//! Here each call is awaited through a box whose table of functions this crate has made: the code below is compiled once, in this crate,
//! and the code above (the vfs, workloads, mounts, databases) once for all formats.
//!
//! Invariant: a call does what the file system's own would do, in the same order; only an allocation lies between.

use crate::boxed::Boxed;
use crate::vfs::*;
use flashweir_core::metrics::Metric;
use flashweir_core::{Duration, Payload};
use std::fmt;
use std::rc::Rc;

/// What laboratories, mounts and commands need of a mounted file system in addition to the calls of [`Fs`].
pub trait Mounted: Fs {
    /// Its name, which goes before the names of its counters.
    fn name(&self) -> &'static str;

    /// Counters since the mount.
    fn metrics(&self) -> Vec<Metric> {
        Vec::new()
    }

    /// The counter of this name; 0 if it has none.
    fn metric(&self, name: &str) -> u64 {
        self.metrics().iter().find(|metric| metric.name == name).map_or(0, |metric| metric.value)
    }

    /// Whether all is in order in memory, between two operations. Errors: what is not.
    fn audit(&self) -> std::result::Result<(), String> {
        Ok(())
    }

    /// Blocks of its journal up to the end, behind which that goes on at its beginning, or of its map before a segment of that is cleaned;
    /// `None` if it has neither.
    fn journal_blocks_left(&self) -> Option<u64> {
        None
    }

    /// Bytes in memory of a map of places that only append segments need: the table of TIMB places, and all the rest; `None` if it has none.
    fn map_memory_bytes(&self) -> Option<[u64; 2]> {
        None
    }
}

/// See the module. A clone is the same file system.
#[derive(Clone)]
pub struct AnyFs(Rc<dyn Calls>);

impl AnyFs {
    /// Wraps a file system; its calls are compiled in the crate that calls this.
    pub(crate) fn new(fs: impl Mounted) -> Self {
        Self(Rc::new(fs))
    }
}

impl fmt::Debug for AnyFs {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("AnyFs").field(&self.0.name()).finish()
    }
}

/// Passes on the methods of the trait: calls that take time through a box, the others directly.
macro_rules! calls {
    (
        $(async fn $name:ident $(<$($life:lifetime),*>)? ($($arg:ident: $type:ty),*) -> $output:ty;)*
        $(fn $now:ident($($now_arg:ident: $now_type:ty),*) -> $now_output:ty;)*
        $(mounted fn $told:ident() -> $told_output:ty;)*
    ) => {
        /// All calls of a file system, those that take time boxed.
        trait Calls {
            $(fn $name<'s $(, $($life: 's),*)?>(&'s self, $($arg: $type),*) -> Boxed<'s, $output>;)*
            $(fn $now(&self, $($now_arg: $now_type),*) -> $now_output;)*
            $(fn $told(&self) -> $told_output;)*
        }

        impl<T: Mounted> Calls for T {
            $(
                fn $name<'s $(, $($life: 's),*)?>(&'s self, $($arg: $type),*) -> Boxed<'s, $output> {
                    Box::pin(<T as Fs>::$name(self, $($arg),*))
                }
            )*
            $(
                fn $now(&self, $($now_arg: $now_type),*) -> $now_output {
                    <T as Fs>::$now(self, $($now_arg),*)
                }
            )*
            $(
                fn $told(&self) -> $told_output {
                    <T as Mounted>::$told(self)
                }
            )*
        }

        impl Fs for AnyFs {
            $(
                async fn $name $(<$($life),*>)? (&self, $($arg: $type),*) -> $output {
                    self.0.$name($($arg),*).await
                }
            )*
            $(
                fn $now(&self, $($now_arg: $now_type),*) -> $now_output {
                    self.0.$now($($now_arg),*)
                }
            )*
        }

        impl Mounted for AnyFs {
            $(
                fn $told(&self) -> $told_output {
                    self.0.$told()
                }
            )*
        }
    };
}

calls! {
    async fn lookup<'a>(dir: Ino, name: &'a [u8]) -> Result<Attr>;
    async fn parent(dir: Ino) -> Result<Ino>;
    async fn readdir<'a>(dir: Ino, after: Cookie, entries: &'a mut Vec<DirEntry>, entries_max: usize) -> Result<()>;
    async fn create<'a, 'b>(dir: Ino, name: &'a [u8], node: &'b NewNode) -> Result<Attr>;
    async fn create_nameless<'a>(dir: Ino, node: &'a NewNode) -> Result<Attr>;
    async fn symlink<'a, 'b, 'c>(dir: Ino, name: &'a [u8], target: &'b [u8], node: &'c NewNode) -> Result<Attr>;
    async fn link<'a>(ino: Ino, dir: Ino, name: &'a [u8], now: Timestamp) -> Result<Attr>;
    async fn unlink<'a>(dir: Ino, name: &'a [u8], now: Timestamp) -> Result<()>;
    async fn rmdir<'a>(dir: Ino, name: &'a [u8], now: Timestamp) -> Result<()>;
    async fn rename<'a, 'b>(from: (Ino, &'a [u8]), to: (Ino, &'b [u8]), mode: RenameMode, now: Timestamp) -> Result<()>;
    async fn readlink(ino: Ino) -> Result<Box<[u8]>>;
    async fn getattr(ino: Ino) -> Result<Attr>;
    async fn setattr<'a>(ino: Ino, changes: &'a SetAttr) -> Result<Attr>;
    async fn acl(ino: Ino, kind: AclKind) -> Result<Option<Acl>>;
    async fn set_acl<'a>(ino: Ino, kind: AclKind, acl: Option<&'a Acl>, mode: Option<u16>, now: Timestamp) -> Result<Attr>;
    async fn getxattr<'a>(ino: Ino, name: &'a [u8]) -> Result<Box<[u8]>>;
    async fn setxattr<'a, 'b>(ino: Ino, name: &'a [u8], value: &'b [u8], mode: XattrMode, now: Timestamp) -> Result<()>;
    async fn listxattr(ino: Ino) -> Result<Vec<Box<[u8]>>>;
    async fn removexattr<'a>(ino: Ino, name: &'a [u8], now: Timestamp) -> Result<()>;
    async fn hold(ino: Ino) -> Result<Attr>;
    async fn release(ino: Ino) -> Result<()>;
    async fn read_pages<'a>(ino: Ino, first: u64, pages: &'a mut [Payload]) -> Result<()>;
    async fn reserve(ino: Ino, range: (u64, u64)) -> Result<()>;
    async fn write_pages<'a>(ino: Ino, pages: &'a [DirtyPage], cause: WriteCause) -> Result<()>;
    async fn write_at_once<'a>(ino: Ino, pages: &'a [DirtyPage], end: u64, now: Timestamp) -> Result<()>;
    async fn write_set<'a>(parts: &'a [SetPart]) -> Result<()>;
    async fn share_pages(from: (Ino, u64), to: (Ino, u64), count: u64) -> Result<u64>;
    async fn exchange_pages(one: (Ino, u64), other: (Ino, u64), count: u64) -> Result<()>;
    async fn allocate(ino: Ino, range: (u64, u64), keep_size: bool, now: Timestamp) -> Result<()>;
    async fn pages_from(ino: Ino, first: u64) -> Result<PageRun>;
    async fn punch_pages(ino: Ino, first: u64, count: u64, now: Timestamp) -> Result<()>;
    async fn fsync(ino: Ino, kind: SyncKind) -> Result<()>;
    async fn fsync_all<'a>(inos: &'a [Ino], kind: SyncKind) -> Result<()>;
    async fn sync() -> Result<()>;
    async fn unmount() -> Result<()>;
    async fn barrier<'a>(ino: Ino, pages: &'a [DirtyPage], kind: Barrier) -> Result<Ticket>;
    async fn background(now: Timestamp) -> Option<Duration>;
    async fn statfs() -> Result<StatFs>;
    fn root() -> Ino;
    fn limits() -> Limits;
    fn wrote(ino: Ino, end: u64, now: Timestamp) -> ();
    fn prefetch(ino: Ino, index: u64) -> ();
    fn accessed(ino: Ino, now: Timestamp) -> ();
    fn has_sets() -> bool;
    fn set_pages_max() -> u64;
    fn at_once_max() -> Option<u64>;
    fn shares_pages() -> bool;
    fn has_barriers() -> bool;
    fn syncs_in_order() -> bool;
    fn has_background() -> bool;
    mounted fn name() -> &'static str;
    mounted fn metrics() -> Vec<Metric>;
    mounted fn audit() -> std::result::Result<(), String>;
    mounted fn journal_blocks_left() -> Option<u64>;
    mounted fn map_memory_bytes() -> Option<[u64; 2]>;
}
