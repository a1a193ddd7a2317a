//! Changes since the last checkpoint that matter before the next one.

use super::super::layout::Nid;
use std::collections::{BTreeMap, BTreeSet};

/// Changes since the last checkpoint.
#[derive(Debug, Default)]
pub(super) struct Since {
    /// Nodes that the checkpoint lacks.
    pub(super) new: BTreeSet<Nid>,
    /// Numbers that were freed; they are not allocated again before the next checkpoint.
    pub(super) freed: BTreeSet<Nid>,
    /// Inodes that lost nodes.
    pub(super) shrunk: BTreeSet<Nid>,
    /// Inodes that got another name.
    pub(super) renamed: BTreeSet<Nid>,
    /// Directories in which a name may refer to another file than recovery would assume.
    pub(super) reshaped: BTreeSet<Nid>,
    /// Nodes that belong to the chain of synced ones: recovery writes each of them anew, once.
    pub(super) linked: BTreeSet<Nid>,
    /// Number of blocks that were taken, even if they were given back.
    pub(super) taken: u64,
    /// During recovery on append segments: numbers of the synced nodes by inode and place in it. Summaries that cannot be written again
    /// name them, so they keep their numbers.
    pub(super) numbers: BTreeMap<(Nid, u32), Nid>,
    /// All of these numbers.
    pub(super) chained: BTreeSet<Nid>,
}
