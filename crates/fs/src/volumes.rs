//! What a format does for whoever does not know which one it is.
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
    /// What users type.
    const KEY: &'static str;
    /// Whether a mount of it makes use of range flushes.
    const HAS_RANGE_FLUSHES: bool;
    /// What the superblock of a volume says.
    type Superblock: 'static;
    /// What volume to make.
    type New;
    /// How a volume is mounted.
    type Options: Clone;
    /// What is mounted.
    type Fs: Mounted;
    /// A bug that tests have to find.
    type Bug: Copy + 'static;
    /// These bugs, with their names.
    const BUGS: &'static [(Self::Bug, &'static str)];

    /// The superblock that a disk has.
    fn superblock(port: &dyn BlockPort) -> Boxed<'_, Result<Self::Superblock, Error<Self>>>;

    /// What it says to people.
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

    /// How what is committed is kept in its order.
    fn commit_mode(options: &mut Self::Options) -> &mut CommitMode;

    /// Words for people that say how a volume is mounted.
    fn describe(options: &Self::Options) -> String;

    /// Whether a bug can show where a volume is mounted so.
    fn can_show(bug: Self::Bug, options: &Self::Options) -> bool;

    /// The bug that is there.
    fn planted(options: &mut Self::Options) -> &mut Option<Self::Bug>;
}

/// What a volume is, for people.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Described {
    /// Its size.
    pub bytes: u64,
    /// Its name.
    pub label: String,
    /// Its features, as far as they are worth a word.
    pub features: Vec<String>,
}

/// What a check found in a volume.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Checked {
    /// What is wrong, at most 1,000 of it.
    pub problems: Vec<Problem>,
    /// What else is wrong and not told.
    pub problems_untold: u64,
    /// Blocks of 4 KiB that are in use.
    pub used_blocks: u64,
    /// The volume, if its superblock can be read, and in which state it is.
    pub volume: Option<(Described, String)>,
    /// What else is to be said of it, in lines.
    pub lines: Vec<String>,
    /// What was found, by name.
    pub facts: Vec<(&'static str, Fact)>,
}

/// A value that a check found.
#[derive(Clone, Copy, Debug, PartialEq, Eq, serde::Serialize)]
#[serde(untagged)]
pub enum Fact {
    /// It is so, or not.
    Flag(bool),
    /// So many.
    Count(u64),
}

impl Checked {
    /// Of a volume that is too broken to be looked at: the one problem that there is.
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
    /// Of what cannot be done for this reason.
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
