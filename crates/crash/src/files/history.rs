//! What a case recorded: the executed operations, what the reference showed after each, and how a cut can contradict them.

use super::format::Format;
use super::ops::{Op, Pairs};
use super::tree::Tree;
use flashweir_fs::ext4::Journaling;
use flashweir_fs::vfs::Errno;
use std::sync::Arc;

/// An executed operation and its time.
#[derive(Clone, Debug)]
pub struct Step {
    /// The operation.
    pub op: Op,
    /// Position at which it began.
    pub begun: u64,
    /// Position at which it had returned; `None` if it never did.
    pub ended: Option<u64>,
    /// Number of steps that had begun when it returned; with several tasks, these may include later ones.
    pub begun_by_end: usize,
    /// Result that it returned.
    pub result: Result<(), Errno>,
}

/// The executed operations. `states[n]` is what the reference shows after `n` steps.
#[derive(Clone, Debug, Default)]
pub struct History {
    /// The steps, in order.
    pub steps: Vec<Step>,
    /// The states, one more than steps; the first one is durable.
    pub states: Vec<Arc<Tree>>,
    /// Number in the file system of each inode that the reference ever had.
    pub numbers: Pairs,
    /// Whether an unsynced file may have grown by only a part of a write, namely whole pages from its start on.
    pub grows_by_pages: bool,
    /// Whether a file shows one version: data, length and attributes as they were after one operation (share §5.11).
    pub has_versions: bool,
}

impl History {
    /// Returns that of no operation, with what holds of a format.
    pub(super) fn of(format: Format) -> Self {
        let has_versions = format.journaling == Journaling::Journal;
        Self { grows_by_pages: format.is_ext4(), has_versions, ..Self::default() }
    }
}

/// Reason why a state is not allowed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Violation {
    /// A name is missing, or present, or refers to something else, contrary to what was made durable.
    Name(String),
    /// A file or directory that was made durable and always had a name has none.
    Vanished(String),
    /// A length that the file never had since it was made durable.
    Size(String),
    /// Bytes that the file never had at this offset since it was made durable.
    Content(String),
    /// Pages of one write, some of which are from before it and others not.
    Version(String),
    /// An atomic file shows what no sync has released, or one file of a set is older than another one.
    Set(String),
    /// An effect after a barrier is visible, and one that was ordered before it is not.
    Order(String),
    /// An extended attribute that the file never had since it was made durable.
    Xattr(String),
    /// A rename that took effect only in part.
    Rename(String),
    /// Wrong kind, mode, target, or link count.
    Inode(String),
}

impl Violation {
    /// Describes the violation in one line.
    pub fn what(&self) -> String {
        match self {
            Self::Name(what) => format!("name: {what}"),
            Self::Vanished(what) => format!("vanished: {what}"),
            Self::Size(what) => format!("size: {what}"),
            Self::Content(what) => format!("content: {what}"),
            Self::Version(what) => format!("version: {what}"),
            Self::Set(what) => format!("set: {what}"),
            Self::Order(what) => format!("order: {what}"),
            Self::Xattr(what) => format!("attribute: {what}"),
            Self::Rename(what) => format!("rename by half: {what}"),
            Self::Inode(what) => format!("inode: {what}"),
        }
    }
}
