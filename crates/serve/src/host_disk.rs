//! Services of the host's file system for large files: reserved room, and unnamed files.

use rustix::fs::{CWD, Mode, OFlags, openat, statvfs};
use rustix::io::Errno;
use std::fs::File;
use std::io;
use std::path::Path;

/// Bytes that are free for us where `path` is, which exists.
pub(crate) fn free_bytes(path: &Path) -> io::Result<u64> {
    let found = statvfs(path)?;
    Ok(found.f_bavail * found.f_frsize)
}

/// A file without a name in a directory, which goes with the process; `None` on kernels and file systems that have none.
pub(crate) fn nameless(directory: &Path) -> io::Result<Option<File>> {
    let flags = OFlags::TMPFILE | OFlags::RDWR | OFlags::CLOEXEC;
    match openat(CWD, directory, flags, Mode::RUSR | Mode::WUSR) {
        Ok(file) => Ok(Some(file.into())),
        Err(Errno::OPNOTSUPP | Errno::ISDIR | Errno::NOENT | Errno::INVAL) => Ok(None),
        Err(errno) => Err(errno.into()),
    }
}
