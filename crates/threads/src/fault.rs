//! What users of a disk are told when something cannot be done.

use crate::assembly::GeometryError;
use flashweir_core::Lpn;

/// Why a request was not executed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fault {
    /// The power is off, or the disk was closed.
    PowerLost,
    /// The device is full: GC gains nothing any more.
    Full,
    /// Units from this one on are not there.
    OutOfRange(Lpn),
    /// The file or block device has failed, with this error of the system; nothing is executed any more.
    Device(i32),
}

impl std::fmt::Display for Fault {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::PowerLost => f.write_str("the power is off"),
            Self::Full => f.write_str("the device is full"),
            Self::OutOfRange(lpn) => write!(f, "unit {} is beyond the end", lpn.0),
            Self::Device(error) => {
                write!(f, "the device has failed: {}", std::io::Error::from_raw_os_error(*error))
            }
        }
    }
}

impl std::error::Error for Fault {}

/// Why a disk was not opened.
#[derive(Debug)]
pub enum OpenError {
    /// A number of the geometry that cannot be.
    Geometry(GeometryError),
    /// The file could not be read.
    File(std::io::Error),
    /// Whoever watches it wanted no more.
    Stopped,
    /// Records are not those with which the file was closed.
    Damaged,
    /// The medium was used with lines of another kind, and no line of this kind is free, so GC has no place for copies.
    NoLine,
}

impl std::fmt::Display for OpenError {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Geometry(error) => error.fmt(f),
            Self::File(error) => error.fmt(f),
            Self::Stopped => f.write_str("stopped"),
            Self::Damaged => f.write_str(
                "it was damaged since it was closed: records of what its programs hold are lost or changed, so some of it would read as \
                 zeros or as it was before",
            ),
            Self::NoLine => f.write_str(
                "no line is free: expected an FTL with lines as those before (pblk, rings, map; or lines, pool, qblke)",
            ),
        }
    }
}

impl std::error::Error for OpenError {}

impl From<GeometryError> for OpenError {
    fn from(error: GeometryError) -> Self {
        Self::Geometry(error)
    }
}

impl From<std::io::Error> for OpenError {
    fn from(error: std::io::Error) -> Self {
        Self::File(error)
    }
}
