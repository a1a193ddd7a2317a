//! Errors of the engine's operations.

use crate::page::FILE_PAGES_MAX;
use flashweir_fs::vfs::Errno;
use std::fmt;

/// Result of an operation of the engine.
pub type Result<T> = std::result::Result<T, DbError>;

/// Error of an operation.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum DbError {
    /// A value of the configuration that is invalid, or differs from the one that the database was made with.
    Config {
        /// Key of the value.
        key: &'static str,
        /// Its value.
        value: u64,
        /// Description of valid values.
        expected: String,
    },
    /// A call of the file system failed. After a failed write or fsync the engine stops: every later operation
    /// returns this.
    File {
        /// Operation and file.
        what: String,
        /// Error of the call.
        errno: Errno,
    },
    /// Data that were read contradict the format.
    Damaged(String),
    /// A row with this key exists.
    Duplicate,
    /// No row has this key.
    NotFound,
    /// The wait for this row would never end. The transaction has to be rolled back, and may be repeated.
    Deadlock,
    /// The row is too long for the pages.
    TooLong {
        /// Length of key and value in bytes.
        bytes: usize,
        /// Maximum length in bytes.
        bytes_max: usize,
    },
    /// No tree of this name exists, or one exists already.
    Tree {
        /// The name.
        name: String,
        /// Description of what was expected.
        expected: &'static str,
    },
    /// The data file of this number has as many pages as a data file can have.
    Full(u8),
    /// The file system has no atomic files, for which the configuration asks.
    NoAtomicFiles,
    /// The engine was closed.
    Closed,
}

impl fmt::Display for DbError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Config { key, value, expected } => write!(f, "{key} is {value}: expected {expected}"),
            Self::File { what, errno } => write!(f, "{what}: {errno}"),
            Self::Damaged(what) => write!(f, "damaged: {what}"),
            Self::Duplicate => f.write_str("a row with this key exists"),
            Self::NotFound => f.write_str("no row has this key"),
            Self::Deadlock => f.write_str("waiting for the row would never end"),
            Self::TooLong { bytes, bytes_max } => {
                write!(f, "a row of {bytes} bytes: expected at most {bytes_max}")
            }
            Self::Tree { name, expected } => write!(f, "tree `{name}`: expected {expected}"),
            Self::Full(file) => {
                write!(f, "data file {file} is full: expected at most {FILE_PAGES_MAX} pages")
            }
            Self::NoAtomicFiles => f.write_str(
                "double_write cannot be `atomic`: expected a file system with atomic files: ext4 that journals data, or \
                 either format where it uses SHARE",
            ),
            Self::Closed => f.write_str("the database is closed"),
        }
    }
}

impl std::error::Error for DbError {}
