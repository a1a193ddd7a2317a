//! Why an operation of the engine failed.

use flashweir_fs::vfs::Errno;
use std::fmt;

/// What an operation of the engine returns.
pub type Result<T> = std::result::Result<T, DbError>;

/// Why an operation failed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum DbError {
    /// A value of the configuration that cannot be, or that is not the one that the database was made with.
    Config {
        /// The key.
        key: &'static str,
        /// Its value.
        value: u64,
        /// What would have been valid.
        expected: String,
    },
    /// A call of the file system failed. After a failed write or fsync the engine stops: every later operation
    /// returns this.
    File {
        /// What was done to which file.
        what: String,
        /// Why it failed.
        errno: Errno,
    },
    /// What was read contradicts the format.
    Damaged(String),
    /// A row with this key exists.
    Duplicate,
    /// No row has this key.
    NotFound,
    /// Waiting for this row would never end. The transaction is to be rolled back, and may be tried again.
    Deadlock,
    /// A row that is too long for the pages.
    TooLong {
        /// Bytes of key and value.
        bytes: usize,
        /// The most that fits.
        bytes_max: usize,
    },
    /// There is no tree of this name, or there is one already.
    Tree {
        /// The name.
        name: String,
        /// What was expected.
        expected: &'static str,
    },
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
            Self::Closed => f.write_str("the database is closed"),
        }
    }
}

impl std::error::Error for DbError {}
