//! What the on-disk formats share: little-endian fields, bitmaps, kinds and times of inodes, and errors.
//!
//! Invariant: an offset is a constant of a layout or was checked by the code that computed it; the functions of fields panic
//! beyond the end of a slice, as slices do.

use crate::port::PortError;
use std::fmt;

/// The field at `at`.
pub(crate) fn u16_at(bytes: &[u8], at: usize) -> u16 {
    u16::from_le_bytes(array_at(bytes, at))
}

/// The field at `at`.
pub(crate) fn u32_at(bytes: &[u8], at: usize) -> u32 {
    u32::from_le_bytes(array_at(bytes, at))
}

/// The field at `at`.
pub(crate) fn u64_at(bytes: &[u8], at: usize) -> u64 {
    u64::from_le_bytes(array_at(bytes, at))
}

/// The `N` bytes at `at`.
pub(crate) fn array_at<const N: usize>(bytes: &[u8], at: usize) -> [u8; N] {
    bytes[at..at + N].try_into().expect("a slice of N bytes")
}

/// Puts the bytes of a field, `value.to_le_bytes()`, at `at`.
pub(crate) fn put(bytes: &mut [u8], at: usize, value: &[u8]) {
    bytes[at..at + value.len()].copy_from_slice(value);
}

/// A bit of a bitmap that counts from the lowest bit of each byte; false beyond its end.
pub(crate) fn slot_bit(map: &[u8], bit: usize) -> bool {
    map.get(bit / 8).is_some_and(|byte| byte & (1 << (bit % 8)) != 0)
}

/// Sets a bit of a bitmap that counts from the lowest bit of each byte.
pub(crate) fn set_slot_bit(map: &mut [u8], bit: usize, value: bool) {
    let mask = 1 << (bit % 8);
    let byte = &mut map[bit / 8];
    *byte = if value { *byte | mask } else { *byte & !mask };
}

/// Seconds since 1970 and nanoseconds.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Time {
    /// Seconds since 1970.
    pub seconds: i64,
    /// Nanoseconds of the second.
    pub nanos: u32,
}

/// Kind of an inode, from its mode.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Kind {
    /// A file of bytes.
    Regular,
    /// A directory.
    Directory,
    /// A symbolic link.
    Symlink,
    /// A character device.
    CharDevice,
    /// A block device.
    BlockDevice,
    /// A named pipe.
    Fifo,
    /// A socket.
    Socket,
}

impl Kind {
    const ALL: [(Self, u16, u8); 7] = [
        (Self::Regular, 0o100_000, 1),
        (Self::Directory, 0o040_000, 2),
        (Self::CharDevice, 0o020_000, 3),
        (Self::BlockDevice, 0o060_000, 4),
        (Self::Fifo, 0o010_000, 5),
        (Self::Socket, 0o140_000, 6),
        (Self::Symlink, 0o120_000, 7),
    ];

    /// From the type bits of a mode.
    pub fn of_mode(mode: u16) -> Option<Self> {
        Self::ALL.iter().find(|(_, bits, _)| *bits == mode & 0o170_000).map(|(kind, _, _)| *kind)
    }

    /// The type bits of a mode.
    pub fn mode_bits(self) -> u16 {
        self.row().1
    }

    /// From the type byte of a directory entry.
    pub fn of_dentry(byte: u8) -> Option<Self> {
        Self::ALL.iter().find(|(_, _, known)| *known == byte).map(|(kind, _, _)| *kind)
    }

    /// The type byte of a directory entry.
    pub fn dentry_byte(self) -> u8 {
        self.row().2
    }

    fn row(self) -> (Self, u16, u8) {
        Self::ALL.into_iter().find(|(kind, _, _)| *kind == self).expect("each kind has a row")
    }
}

/// A format of volumes, for its name in errors.
pub trait Format: fmt::Debug + Clone + PartialEq + Eq {
    /// Its name.
    const NAME: &'static str;
    /// The indefinite article of its name.
    const ARTICLE: &'static str;
}

/// Why a volume of a format cannot be made, mounted or read.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Error<F> {
    /// An error of the disk.
    Port(PortError),
    /// There is no volume of this format here: what was looked at, and what was found.
    Absent(F, String),
    /// The volume has something that is not supported: its name.
    Refused(String),
    /// The contents of the disk contradict the format: place, value, and the expected value.
    Corrupt(String),
    /// An option that makes no volume: its name, value, and what is valid.
    Option(String),
}

impl<F> Error<F> {
    /// The same error, where something was found to be corrupt with its place before it.
    pub(crate) fn at(self, place: impl fmt::Display) -> Self {
        match self {
            Self::Corrupt(what) => Self::Corrupt(format!("{place}: {what}")),
            other => other,
        }
    }
}

impl<F: Format> fmt::Display for Error<F> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let name = F::NAME;
        match self {
            Self::Port(error) => error.fmt(f),
            Self::Absent(_, why) => write!(f, "not {} {name} volume: {why}", F::ARTICLE),
            Self::Refused(what) => write!(f, "this {name} volume uses {what}, which is not supported"),
            Self::Corrupt(what) => write!(f, "the {name} volume is corrupt: {what}"),
            Self::Option(what) => f.write_str(what),
        }
    }
}
impl<F: Format> std::error::Error for Error<F> {}
impl<F> From<PortError> for Error<F> {
    fn from(error: PortError) -> Self {
        Self::Port(error)
    }
}

/// The port's errors end a check; all others are problems, in words.
pub(crate) fn unless_port<T, F: Format>(result: Result<T, Error<F>>) -> Result<Result<T, String>, Error<F>> {
    match result {
        Ok(value) => Ok(Ok(value)),
        Err(Error::Port(error)) => Err(Error::Port(error)),
        Err(Error::Corrupt(what)) => Ok(Err(what)),
        Err(other) => Ok(Err(other.to_string())),
    }
}

/// Problems that a check tells; more are counted.
const PROBLEMS_MAX: usize = 1000;

/// Something on a volume that is not as it should be.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Problem {
    /// Its kind.
    pub name: &'static str,
    /// Place, found value, and expected value.
    pub what: String,
}

/// Tells a problem, or counts it where there are too many.
pub(crate) fn tell(problems: &mut Vec<Problem>, untold: &mut u64, name: &'static str, what: String) {
    match problems.len() < PROBLEMS_MAX {
        true => problems.push(Problem { name, what }),
        false => *untold += 1,
    }
}

impl fmt::Display for Problem {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {}", self.name, self.what)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn kinds_have_one_number_each() {
        for (kind, bits, byte) in Kind::ALL {
            assert_eq!(Kind::of_mode(bits | 0o644), Some(kind));
            assert_eq!(Kind::of_dentry(byte), Some(kind));
            assert_eq!((kind.mode_bits(), kind.dentry_byte()), (bits, byte));
        }
        assert_eq!(Kind::of_dentry(8), None);
    }
}
