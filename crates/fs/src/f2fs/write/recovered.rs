//! Report of a recovery.

/// Files and orphans that a mount recovered.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Recovered {
    /// Number of nodes that were written after the checkpoint.
    pub nodes: u64,
    /// Number of files that fsync had written.
    pub files: u64,
    /// Number of those files that the checkpoint lacked.
    pub new_files: u64,
    /// Number of inodes without a name that were freed.
    pub orphans: u64,
}
