//! Errors of making, mounting and reading an ext4 volume.

use crate::format;

/// The name of the format in errors.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Named;

impl format::Format for Named {
    const NAME: &'static str = "ext4";
    const ARTICLE: &'static str = "an";
}

/// An error of this file system.
pub type Error = format::Error<Named>;

/// Result of this file system.
pub type Result<T> = std::result::Result<T, Error>;

/// Returns the error for a contradiction on the disk; `what` names its place.
pub(crate) fn corrupt<T>(what: impl Into<String>) -> Result<T> {
    Err(Error::Corrupt(what.into()))
}
