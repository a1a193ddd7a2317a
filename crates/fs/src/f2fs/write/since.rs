//! Changes since the last checkpoint that the next one has to know of.

use super::super::layout::Nid;
use std::collections::BTreeSet;

/// Changes since the last checkpoint that matter before the next one.
#[derive(Debug, Default)]
pub(super) struct Since {
    /// Nodes that it lacks.
    pub(super) new: BTreeSet<Nid>,
    /// Numbers that were freed; they are not allocated again before the next checkpoint.
    pub(super) freed: BTreeSet<Nid>,
    /// Inodes that lost nodes.
    pub(super) shrunk: BTreeSet<Nid>,
    /// Inodes that got another name.
    pub(super) renamed: BTreeSet<Nid>,
    /// Directories in which a name may stand for another file than recovery would assume.
    pub(super) reshaped: BTreeSet<Nid>,
    /// Blocks that were taken, those that were given back among them.
    pub(super) taken: u64,
}
