//! The trees of the mix, under their names in the database.

use flashweir_db::Tree;

/// The tables, and the two indexes that the transactions need.
#[derive(Clone, Copy, Debug)]
pub(super) struct Tables {
    pub(super) warehouse: Tree,
    pub(super) district: Tree,
    pub(super) customer: Tree,
    /// Customers by last name.
    pub(super) customer_name: Tree,
    pub(super) history: Tree,
    pub(super) order: Tree,
    /// Orders by customer, the newest first.
    pub(super) order_customer: Tree,
    pub(super) new_order: Tree,
    pub(super) order_line: Tree,
    pub(super) stock: Tree,
    pub(super) item: Tree,
}

/// Names of the trees, in the order of the fields of [`Tables`], and the tables that the indexes belong to.
pub(super) const TREES: [(&str, Option<&str>); 11] = [
    ("warehouse", None),
    ("district", None),
    ("customer", None),
    ("customer_name", Some("customer")),
    ("history", None),
    ("orders", None),
    ("order_customer", Some("orders")),
    ("new_order", None),
    ("order_line", None),
    ("stock", None),
    ("item", None),
];

impl Tables {
    pub(super) fn of<E>(mut tree: impl FnMut(&str) -> Result<Tree, E>) -> Result<Self, E> {
        Ok(Self {
            warehouse: tree(TREES[0].0)?,
            district: tree(TREES[1].0)?,
            customer: tree(TREES[2].0)?,
            customer_name: tree(TREES[3].0)?,
            history: tree(TREES[4].0)?,
            order: tree(TREES[5].0)?,
            order_customer: tree(TREES[6].0)?,
            new_order: tree(TREES[7].0)?,
            order_line: tree(TREES[8].0)?,
            stock: tree(TREES[9].0)?,
            item: tree(TREES[10].0)?,
        })
    }
}
