//! Why an F2FS volume cannot be made, mounted or read.

use crate::port::PortError;
use std::fmt;

/// An error of this file system.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Error {
    /// What the disk said.
    Port(PortError),
    /// There is no F2FS here: what was looked at, and what was found.
    NotF2fs(String),
    /// The volume has something that is not supported: its name.
    Refused(String),
    /// What is on the disk contradicts the format: place, value, and what was expected.
    Corrupt(String),
    /// An option that makes no volume: its name, value, and what is valid.
    Option(String),
}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Port(error) => error.fmt(f),
            Self::NotF2fs(why) => write!(f, "not an F2FS volume: {why}"),
            Self::Refused(what) => write!(f, "this F2FS volume uses {what}, which is not supported"),
            Self::Corrupt(what) => write!(f, "the F2FS volume is corrupt: {what}"),
            Self::Option(what) => f.write_str(what),
        }
    }
}
impl std::error::Error for Error {}
impl From<PortError> for Error {
    fn from(error: PortError) -> Self {
        Self::Port(error)
    }
}

/// What this file system answers.
pub type Result<T> = std::result::Result<T, Error>;

/// A contradiction on the disk, with its place.
pub(crate) fn corrupt<T>(what: impl Into<String>) -> Result<T> {
    Err(Error::Corrupt(what.into()))
}
