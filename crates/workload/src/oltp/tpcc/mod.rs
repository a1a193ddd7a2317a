//! A TPC-C-like mix: five kinds of transactions on nine tables (TPC Benchmark C, revision 5.11; docs/transaction-mixes.md).
//!
//! Place in the data flow: [`Tpcc::prepare`] makes and loads a database, [`Tpcc::run`] runs the connections, [`Tpcc::check`] asks
//! for the consistency conditions of clause 3.3.2.
//!
//! Deliberately absent: terminals, keying and think times, the deferred queue of Delivery (it is one transaction), texts that
//! mean something.

mod check;
mod load;
mod rows;
mod transactions;

#[cfg(test)]
mod tests;

use super::connections;
use super::{OltpError, RunOptions, check_common, in_range};
use flashweir_core::executor::Handle;
use flashweir_core::{Duration, Stream};
use flashweir_db::{Config, Db, Tree};
use flashweir_fs::vfs::{Fs, Process};
use flashweir_sim::measure::WorkloadResult;
use std::cell::Cell;
use std::fmt;
use std::rc::Rc;

/// How many rows there are. The default is that of the standard; smaller ones are for tests.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Scale {
    /// Warehouses.
    pub warehouses: u16,
    /// Items, and stock rows of each warehouse.
    pub items: u32,
    /// Customers, and orders at the beginning, of each of the ten districts of a warehouse.
    pub customers: u16,
}

impl Scale {
    /// The standard's tables for so many warehouses; each has about 100 MB.
    pub const fn of_warehouses(warehouses: u16) -> Self {
        Self { warehouses, items: 100_000, customers: 3000 }
    }

    fn validate(&self) -> Result<(), OltpError> {
        in_range("warehouses", self.warehouses.into(), 1, 60_000)?;
        in_range("items", self.items.into(), 20, 100_000)?;
        in_range("customers", self.customers.into(), 10, 3000)
    }
}

/// What the caller of the mix decides.
#[derive(Clone, Debug)]
pub struct TpccOptions {
    /// Rows.
    pub scale: Scale,
    /// The run.
    pub run: RunOptions,
    /// The database.
    pub db: Config,
}

impl TpccOptions {
    /// So many warehouses, the engine's defaults, 16 connections for a minute.
    pub fn new(name: &str, seed: u64, warehouses: u16) -> Self {
        Self {
            scale: Scale::of_warehouses(warehouses),
            run: RunOptions::new(name, seed),
            db: Config::default(),
        }
    }

    /// Checks the bounds of everything.
    ///
    /// # Errors
    /// The first option that is out of its range.
    pub fn check(&self) -> Result<(), OltpError> {
        self.scale.validate()?;
        check_common(&self.run, &self.db)
    }
}

/// The tables, and the two indexes that the transactions need.
#[derive(Clone, Copy, Debug)]
struct Tables {
    warehouse: Tree,
    district: Tree,
    customer: Tree,
    /// Customers by last name.
    customer_name: Tree,
    history: Tree,
    order: Tree,
    /// Orders by customer, the newest first.
    order_customer: Tree,
    new_order: Tree,
    order_line: Tree,
    stock: Tree,
    item: Tree,
}

/// Names of the trees, in the order of the fields of [`Tables`].
const TREES: [&str; 11] = [
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
    fn of<E>(mut tree: impl FnMut(&str) -> Result<Tree, E>) -> Result<Self, E> {
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

/// Constants of the law by which keys are drawn (clause 2.1.6).
#[derive(Clone, Copy, Debug)]
struct Constants {
    last_load: u64,
    last_run: u64,
    customer: u64,
    item: u64,
}

impl Constants {
    fn new(seed: u64, name: &str) -> Self {
        let mut stream = Stream::new(seed, &format!("tpcc.{name}.constants"));
        let last_load = stream.below(256);
        // Clause 2.1.6.1: the two differ by 65 to 119, but neither by 96 nor by 112.
        let last_run = loop {
            let other = stream.below(256);
            let delta = last_load.abs_diff(other);
            if (65..=119).contains(&delta) && delta != 96 && delta != 112 {
                break other;
            }
        };
        Self { last_load, last_run, customer: stream.below(1024), item: stream.below(8192) }
    }
}

/// `NURand(a, 0, count - 1)` with constant `c`: a number below `count` (clause 2.1.6).
fn nurand(stream: &mut Stream, a: u64, c: u64, count: u64) -> u64 {
    ((stream.below(a + 1) | stream.below(count)) + c) % count
}

/// A database with the tables of the mix.
pub struct Tpcc<F: Fs> {
    shared: Rc<Shared<F>>,
    handle: Handle,
}

impl<F: Fs> fmt::Debug for Tpcc<F> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Tpcc").field("options", &self.shared.options).finish_non_exhaustive()
    }
}

struct Shared<F: Fs> {
    db: Db<F>,
    tables: Tables,
    options: TpccOptions,
    constants: Constants,
    handle: Handle,
    /// The next row of the history, which has no key of its own.
    history: Cell<u64>,
}

impl<F: Fs> Tpcc<F> {
    /// Makes a database in the directory `dir`, which exists, and loads its tables. They are durable when this returns.
    ///
    /// # Errors
    /// An option out of its range; the database failed.
    pub async fn prepare(
        process: &Process<F>,
        handle: Handle,
        dir: &str,
        options: TpccOptions,
    ) -> Result<Self, OltpError> {
        options.check()?;
        let failed = |error| OltpError::Db { during: "loading", error };
        let db = Db::create(process, handle.clone(), dir, options.db.clone()).await.map_err(failed)?;
        for name in TREES {
            db.create_tree(name).await.map_err(failed)?;
        }
        let tables = Tables::of(|name| db.tree(name)).map_err(failed)?;
        let constants = Constants::new(options.run.seed, &options.run.name);
        let loaded = load::load(&db, &tables, &options, &constants).await;
        let history = Cell::new(loaded.map_err(failed)?);
        db.flush().await.map_err(failed)?;
        let shared = Shared { db, tables, options, constants, handle: handle.clone(), history };
        Ok(Self { shared: Rc::new(shared), handle })
    }

    /// The mix on a database that has its tables, such as one that was opened after a power cut. Options other than the scale
    /// may be others than those that it was loaded with.
    ///
    /// # Errors
    /// Tables that are not there; the database failed.
    pub async fn attach(db: Db<F>, handle: Handle, options: TpccOptions) -> Result<Self, OltpError> {
        options.check()?;
        let failed = |error| OltpError::Db { during: "attaching", error };
        let tables = Tables::of(|name| db.tree(name)).map_err(failed)?;
        let constants = Constants::new(options.run.seed, &options.run.name);
        // The first number from which on there is no row; rows that were rolled back leave holes below it.
        let (mut low, mut high) = (0u64, u64::MAX);
        while low < high {
            let middle = low + (high - low) / 2;
            let behind = db.scan(tables.history, &middle.to_be_bytes(), None, 1).await.map_err(failed)?;
            if behind.is_empty() { high = middle } else { low = middle + 1 }
        }
        let shared =
            Shared { db, tables, options, constants, handle: handle.clone(), history: Cell::new(low) };
        Ok(Self { shared: Rc::new(shared), handle })
    }

    /// The database.
    pub fn db(&self) -> &Db<F> {
        &self.shared.db
    }

    /// Runs the connections until the time is over. It can be called again; transactions are then the same, on what the
    /// last run left.
    ///
    /// # Errors
    /// The database failed.
    pub async fn run(&self) -> Result<WorkloadResult, OltpError> {
        connections::run(Rc::clone(&self.shared), self.handle.clone(), &self.shared.options.run).await
    }

    /// What contradicts the consistency conditions of clause 3.3.2; nothing may run meanwhile.
    ///
    /// # Errors
    /// The database failed.
    pub async fn check(&self) -> Result<Vec<String>, OltpError> {
        let checked = check::check(&self.shared.db, &self.shared.tables, &self.shared.options.scale).await;
        checked.map_err(|error| OltpError::Db { during: "checking", error })
    }
}

/// Time as rows have it: nanoseconds of virtual time.
fn date(handle: &Handle) -> u64 {
    // Zero stands for "not yet".
    (handle.now().since(flashweir_core::Instant::ZERO) + Duration::from_nanos(1)).as_nanos()
}
