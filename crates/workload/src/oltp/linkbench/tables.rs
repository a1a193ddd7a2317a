//! The trees of the graph, under LinkBench's names.

use flashweir_db::{Db, DbError, Tree};
use flashweir_fs::vfs::Fs;

#[derive(Clone, Copy, Debug)]
pub(super) struct Tables {
    pub(super) node: Tree,
    pub(super) link: Tree,
    /// Links of a node by type, the visible ones first, the newest first.
    pub(super) link_index: Tree,
    pub(super) count: Tree,
}

const TREES: [&str; 4] = ["nodetable", "linktable", "id1_type", "counttable"];

impl Tables {
    /// Makes the trees, with the index beside its table.
    pub(super) async fn make(db: &Db<impl Fs>) -> Result<Self, DbError> {
        Ok(Self {
            node: db.create_tree(TREES[0]).await?,
            link: db.create_tree(TREES[1]).await?,
            link_index: db.create_index(TREES[2], db.tree(TREES[1])?).await?,
            count: db.create_tree(TREES[3]).await?,
        })
    }

    pub(super) fn of(db: &Db<impl Fs>) -> Result<Self, DbError> {
        Ok(Self {
            node: db.tree(TREES[0])?,
            link: db.tree(TREES[1])?,
            link_index: db.tree(TREES[2])?,
            count: db.tree(TREES[3])?,
        })
    }
}
