//! Report of a recovery.

/// Files and orphans that a mount recovered.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Recovered {
    /// Nodes that were written on top of the checkpoint.
    pub nodes: u64,
    /// Files that fsync had written.
    pub files: u64,
    /// Those among them that the checkpoint lacked.
    pub new_files: u64,
    /// Inodes without a name that were freed.
    pub orphans: u64,
}
