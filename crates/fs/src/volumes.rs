//! The interface of a format for code that does not know which one it is.
//!
//! Place in the data flow: each folder of a format implements [`Volumes`] once; [`kind`](crate::kind) calls it by the kind of a
//! volume.

use crate::any::Mounted;
use crate::boxed::Boxed;
use crate::format::{Error, Format, Problem};
use crate::order::CommitMode;
use crate::port::BlockPort;
use std::fmt;
use std::rc::Rc;

/// A format's volumes: found, made, mounted and checked.
pub(crate) trait Volumes: Format + Sized + 'static {
    /// Name on the command line.
    const KEY: &'static str;
    /// Whether a mount of it makes use of range flushes.
    const HAS_RANGE_FLUSHES: bool;
    /// Whether it is for disks of append segments, and only for those.
    const APPENDS: bool = false;
    /// Superblock of a volume.
    type Superblock: 'static;
    /// Options of a new volume.
    type New;
    /// How a volume is mounted.
    type Options: Clone;
    /// The mounted file system.
    type Fs: Mounted;
    /// A bug that tests have to find.
    type Bug: Copy + 'static;
    /// These bugs, with their names.
    const BUGS: &'static [(Self::Bug, &'static str)];

    /// The superblock that a disk has.
    fn superblock(port: &dyn BlockPort) -> Boxed<'_, Result<Self::Superblock, Error<Self>>>;

    /// Description of a volume for people.
    fn described(superblock: &Self::Superblock) -> Described;

    /// Makes a volume.
    fn mkfs<'a>(
        port: &'a dyn BlockPort,
        new: &'a Self::New,
    ) -> Boxed<'a, Result<Self::Superblock, Error<Self>>>;

    /// Mounts a volume, which recovers it.
    fn mount(
        port: Rc<dyn BlockPort>,
        options: Self::Options,
    ) -> Boxed<'static, Result<Self::Fs, Error<Self>>>;

    /// Checks a volume that is not mounted.
    fn check(port: Rc<dyn BlockPort>) -> Boxed<'static, Result<Checked, Error<Self>>>;

    /// How what is committed is kept in its order, if that can be chosen.
    fn commit_mode(options: &mut Self::Options) -> Option<&mut CommitMode>;

    /// Words for people that say how a volume is mounted.
    fn describe(options: &Self::Options) -> String;

    /// Whether a bug can show where a volume is mounted so.
    fn can_show(bug: Self::Bug, options: &Self::Options) -> bool;

    /// The bug that is there.
    fn planted(options: &mut Self::Options) -> &mut Option<Self::Bug>;
}

/// Description of a volume, for people.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Described {
    /// Its size.
    pub bytes: u64,
    /// Its name.
    pub label: String,
    /// Its features, as far as they are worth a word.
    pub features: Vec<String>,
}

/// Result of the check of a volume.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Checked {
    /// The first 1,000 problems.
    pub problems: Vec<Problem>,
    /// Number of further problems.
    pub problems_untold: u64,
    /// Blocks of 4 KiB that are in use.
    pub used_blocks: u64,
    /// The volume, if its superblock can be read, and in which state it is.
    pub volume: Option<(Described, String)>,
    /// Further remarks, by line.
    pub lines: Vec<String>,
    /// Facts of the volume, by name.
    pub facts: Vec<(&'static str, Fact)>,
}

/// A value that a check found.
#[derive(Clone, Copy, Debug, PartialEq, Eq, serde::Serialize)]
#[serde(untagged)]
pub enum Fact {
    /// It is so, or not.
    Flag(bool),
    /// A number.
    Count(u64),
}

impl Checked {
    /// Result for a volume that is too broken to be checked: one problem.
    pub(crate) fn broken(what: String) -> Self {
        Self { problems: vec![Problem { name: "mount", what }], ..Self::default() }
    }
}

/// Why a volume cannot be made, mounted or read, whatever its format.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct AnyError {
    what: String,
    /// The disk failed, or what is on it contradicts the format; otherwise something else was asked for than can be.
    pub is_damage: bool,
}

impl AnyError {
    /// Result for a check that is refused for this reason.
    pub(crate) fn refused(what: String) -> Self {
        Self { what, is_damage: false }
    }
}

impl fmt::Display for AnyError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.what)
    }
}
impl std::error::Error for AnyError {}

impl<F: Format> From<Error<F>> for AnyError {
    fn from(error: Error<F>) -> Self {
        Self { is_damage: matches!(error, Error::Corrupt(_) | Error::Port(_)), what: error.to_string() }
    }
}
