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

/// Names of the trees, in the order of the fields of [`Tables`].
pub(super) const TREES: [&str; 11] = [
    "warehouse",
    "district",
    "customer",
    "customer_name",
    "history",
    "orders",
    "order_customer",
    "new_order",
    "order_line",
    "stock",
    "item",
];

impl Tables {
    pub(super) fn of<E>(mut tree: impl FnMut(&str) -> Result<Tree, E>) -> Result<Self, E> {
        Ok(Self {
            warehouse: tree(TREES[0])?,
            district: tree(TREES[1])?,
            customer: tree(TREES[2])?,
            customer_name: tree(TREES[3])?,
            history: tree(TREES[4])?,
            order: tree(TREES[5])?,
            order_customer: tree(TREES[6])?,
            new_order: tree(TREES[7])?,
            order_line: tree(TREES[8])?,
            stock: tree(TREES[9])?,
            item: tree(TREES[10])?,
        })
    }
}
