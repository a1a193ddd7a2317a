//! A file of the database, with errors that name it.
//!
//! Invariant: a successful write has written all bytes.

use crate::error::{DbError, Result};
use flashweir_fs::vfs::{Errno, Fs, Sink, Source, SyncKind};

/// A file of the database, with its name for errors.
pub(crate) struct DbFile<F: Fs> {
    pub(crate) name: String,
    pub(crate) file: flashweir_fs::vfs::File<F>,
}

impl<F: Fs> DbFile<F> {
    pub(crate) fn error(&self, what: &str, errno: Errno) -> DbError {
        DbError::File { what: format!("{what} {}", self.name), errno }
    }

    /// Writes all bytes.
    pub(crate) async fn write(&self, offset: u64, source: Source<'_>) -> Result<()> {
        let len = source.len();
        match self.file.pwrite(offset, source).await {
            Ok(written) if written == len => Ok(()),
            Ok(_) => Err(self.error("writing", Errno::ENOSPC)),
            Err(errno) => Err(self.error("writing", errno)),
        }
    }

    /// Reads the existing bytes; the part of the sink beyond the end of the file is unchanged.
    pub(crate) async fn read(&self, offset: u64, sink: Sink<'_>) -> Result<()> {
        self.file.pread(offset, sink).await.map(drop).map_err(|errno| self.error("reading", errno))
    }

    /// Hands what the file withholds to the file system.
    pub(crate) async fn release(&self) -> Result<()> {
        self.file.release().await.map_err(|errno| self.error("releasing", errno))
    }

    pub(crate) async fn sync(&self, kind: SyncKind) -> Result<()> {
        self.file.sync(kind).await.map_err(|errno| self.error("syncing", errno))
    }
}
