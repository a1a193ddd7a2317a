//! Why a volume could not be used.
//!
//! Invariant: each message names the directory, and what to do where something can be done.

use super::format;
use super::host::DESCRIPTION;
use super::load::Problem;
use flashweir_core::Bytes;
use std::path::{Path, PathBuf};
use std::{fmt, io};

/// Why a volume could not be used.
#[derive(Debug)]
pub enum VolumeError {
    /// There is nothing at this path.
    Missing(PathBuf),
    /// The directory is not a volume.
    NotAVolume(PathBuf),
    /// A volume is to be made where something is already.
    NotEmpty(PathBuf),
    /// A volume is to be made in a directory that does not exist.
    Homeless(PathBuf),
    /// A volume is to be made where a file is.
    NotADirectory(PathBuf),
    /// The volume was made by a newer version of the program.
    Newer { directory: PathBuf, version: u64 },
    /// The volume has an older format, which is read and not written.
    Older { directory: PathBuf, version: u64 },
    /// The volume has something on its medium that this program does not know.
    Unknown { directory: PathBuf, what: String },
    /// There is too little room on the host's disk to upgrade the volume.
    NoRoom { directory: PathBuf, needed: Bytes, free: Bytes },
    /// The upgrade was told to stop. The volume is as before.
    Stopped(PathBuf),
    /// Another process has it open.
    InUse { directory: PathBuf, process: Option<u32> },
    /// Files differ from what was written.
    Damaged { directory: PathBuf, problem: Problem, more: usize },
    /// The device cannot be kept in a volume.
    Unsuitable(String),
    /// The host's file system refused something.
    Io { directory: PathBuf, what: String, error: io::Error },
    /// The device was not at rest, or had not been flushed, when the volume was closed.
    Unflushed(PathBuf),
}

impl fmt::Display for VolumeError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Missing(path) => write!(f, "{}: there is no such directory", path.display()),
            Self::NotAVolume(path) => {
                write!(f, "{} is not a volume: it has no {DESCRIPTION}", path.display())
            }
            Self::NotEmpty(path) => {
                write!(f, "{} is not empty: expected an empty directory, or a new name", path.display())
            }
            Self::Homeless(path) => {
                let parent = path.parent().unwrap_or(path).display();
                write!(f, "{} cannot be made: there is no directory {parent}", path.display())
            }
            Self::NotADirectory(path) => {
                let shown = path.display();
                write!(f, "{shown} is not a directory: expected an empty directory, or a new name")
            }
            Self::Newer { directory, version } => write!(
                f,
                "{}: the volume has format {version}, and this program knows formats up to {}",
                directory.display(),
                format::VERSION
            ),
            Self::Older { directory, version } => write!(
                f,
                "{0}: the volume has format {version}, and this program writes format {1}: weir volume upgrade {0}",
                directory.display(),
                format::VERSION
            ),
            Self::Unknown { directory, what } => write!(f, "{}: {what}", directory.display()),
            Self::NoRoom { directory, needed, free } => write!(
                f,
                "{}: the upgrade needs {needed} on the host's disk beside what is there, and {free} are free",
                directory.display()
            ),
            Self::Stopped(path) => write!(f, "{}: stopped; the volume is as before", path.display()),
            Self::InUse { directory, process } => {
                let by = process.map_or("another process".into(), |process| format!("process {process}"));
                write!(f, "{} is in use by {by}", directory.display())
            }
            Self::Damaged { directory, problem, more } => {
                write!(f, "{}: {problem}", directory.display())?;
                if *more > 0 {
                    write!(f, ", and {more} more; weir volume check lists them")?;
                }
                Ok(())
            }
            Self::Unsuitable(reason) => f.write_str(reason),
            Self::Io { directory, what, error } => write!(f, "{}: {what}: {error}", directory.display()),
            Self::Unflushed(path) => {
                write!(f, "{} is not closed: its device was not flushed", path.display())
            }
        }
    }
}

impl std::error::Error for VolumeError {}

pub(super) fn damaged(directory: &Path, file: &'static str, what: &str) -> VolumeError {
    let problem = Problem { file, place: String::new(), what: what.to_owned() };
    VolumeError::Damaged { directory: directory.to_owned(), problem, more: 0 }
}
