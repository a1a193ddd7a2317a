//! Errors of making, mounting and reading an ALFS volume.

use crate::f2fs;
use crate::format;

/// The name of the format in errors.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Named;

impl format::Format for Named {
    const NAME: &'static str = "ALFS";
    const ARTICLE: &'static str = "an";
}

/// An error of this file system.
pub type Error = format::Error<Named>;

/// Result of this file system.
pub type Result<T> = std::result::Result<T, Error>;

/// Returns the error for a contradiction on the disk; `what` names its place.
pub(super) fn corrupt<T>(what: impl Into<String>) -> Result<T> {
    Err(Error::Corrupt(what.into()))
}

/// An error of the writer, or of a structure that is that of F2FS.
impl From<f2fs::Error> for Error {
    fn from(error: f2fs::Error) -> Self {
        match error {
            f2fs::Error::Port(error) => Self::Port(error),
            f2fs::Error::Absent(_, what) => Self::Absent(Named, what),
            f2fs::Error::Refused(what) => Self::Refused(what),
            f2fs::Error::Corrupt(what) => Self::Corrupt(what),
            f2fs::Error::Option(what) => Self::Option(what),
        }
    }
}
