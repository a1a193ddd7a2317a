//! Any file system of this crate as one type.
//!
//! Place in the data flow: an [`Fs`] below the vfs, which passes each call on to one of those that know a format.
//!
//! The body of an `async` method is compiled by each crate that awaits it, and once for each file system that a caller is generic over.
//! Here each call is awaited through a box whose table of functions this crate has made: what stands below is compiled once, in this
//! crate, and what stands above (the vfs, workloads, mounts, databases) once for all formats.
//!
//! Invariant: a call does what the file system's own would do, in the same order; only an allocation lies between.

use crate::boxed::Boxed;
use crate::ext4::{self, Ext4, Ext4Options};
use crate::f2fs::{self, F2fs, F2fsOptions};
use crate::memfs::MemFs;
use crate::port::BlockPort;
use crate::vfs::*;
use flashweir_core::{Duration, Payload};
use std::rc::Rc;

/// See the module. A clone is the same file system.
#[derive(Clone)]
pub enum AnyFs {
    /// The F2FS format.
    F2fs(Rc<F2fs>),
    /// The ext4 format.
    Ext4(Rc<Ext4>),
    /// In memory.
    Mem(MemFs),
}

impl AnyFs {
    /// See [`F2fs::mount_with`].
    pub fn f2fs(port: Rc<dyn BlockPort>, options: F2fsOptions) -> Boxed<'static, f2fs::Result<Self>> {
        Box::pin(async move { Ok(Self::F2fs(Rc::new(F2fs::mount_with(port, options).await?))) })
    }

    /// See [`Ext4::mount_with`].
    pub fn ext4(port: Rc<dyn BlockPort>, options: Ext4Options) -> Boxed<'static, ext4::Result<Self>> {
        Box::pin(async move { Ok(Self::Ext4(Rc::new(Ext4::mount_with(port, options).await?))) })
    }
}

impl AnyFs {
    /// Whether all is in order in memory, between two operations. Errors: what is not.
    pub fn audit(&self) -> std::result::Result<(), String> {
        match self {
            Self::F2fs(fs) => fs.audit(),
            Self::Ext4(_) | Self::Mem(_) => Ok(()),
        }
    }
}

impl From<MemFs> for AnyFs {
    fn from(fs: MemFs) -> Self {
        Self::Mem(fs)
    }
}

impl std::fmt::Debug for AnyFs {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(match self {
            Self::F2fs(_) => "F2fs",
            Self::Ext4(_) => "Ext4",
            Self::Mem(_) => "Mem",
        })
    }
}

/// What the trait wants, passed on: calls that take time in a box, the others at once.
macro_rules! calls {
    (
        $(async fn $name:ident $(<$($life:lifetime),*>)? ($($arg:ident: $type:ty),*) -> $output:ty;)*
        $(fn $now:ident($($now_arg:ident: $now_type:ty),*) -> $now_output:ty;)*
    ) => {
        /// The calls that take time, boxed.
        trait Calls {
            $(fn $name<'s $(, $($life: 's),*)?>(&'s self, $($arg: $type),*) -> Boxed<'s, $output>;)*
        }

        impl Calls for AnyFs {
            $(
                // A caller that inlined it would compile what is in the box.
                #[inline(never)]
                fn $name<'s $(, $($life: 's),*)?>(&'s self, $($arg: $type),*) -> Boxed<'s, $output> {
                    match self {
                        Self::F2fs(fs) => Box::pin(Fs::$name(&**fs, $($arg),*)),
                        Self::Ext4(fs) => Box::pin(Fs::$name(&**fs, $($arg),*)),
                        Self::Mem(fs) => Box::pin(Fs::$name(fs, $($arg),*)),
                    }
                }
            )*
        }

        impl Fs for AnyFs {
            $(
                async fn $name $(<$($life),*>)? (&self, $($arg: $type),*) -> $output {
                    Calls::$name(self, $($arg),*).await
                }
            )*
            $(
                fn $now(&self, $($now_arg: $now_type),*) -> $now_output {
                    match self {
                        Self::F2fs(fs) => fs.$now($($now_arg),*),
                        Self::Ext4(fs) => fs.$now($($now_arg),*),
                        Self::Mem(fs) => fs.$now($($now_arg),*),
                    }
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
    async fn allocate(ino: Ino, range: (u64, u64), keep_size: bool, now: Timestamp) -> Result<()>;
    async fn pages_from(ino: Ino, first: u64) -> Result<PageRun>;
    async fn punch_pages(ino: Ino, first: u64, count: u64, now: Timestamp) -> Result<()>;
    async fn fsync(ino: Ino, kind: SyncKind) -> Result<()>;
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
    fn has_barriers() -> bool;
    fn syncs_in_order() -> bool;
    fn has_background() -> bool;
}
