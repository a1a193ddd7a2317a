//! A TPC-C-like mix: five kinds of transactions on nine tables (TPC Benchmark C, revision 5.11; docs/transaction-mixes.md).
//!
//! Place in the data flow: [`Tpcc::prepare`] makes and loads a database, [`Tpcc::run`] runs the connections,
//! [`Tpcc::check`] checks the consistency conditions of clause 3.3.2.
//!
//! Deliberately absent: terminals, keying and think times, the deferred queue of Delivery (it is one transaction),
//! meaningful texts.

mod check;
mod draw;
mod load;
mod options;
mod rows;
mod tables;
mod transactions;

#[cfg(test)]
mod tests;

use super::connections;
use super::{OltpError, database};
use draw::Constants;
use flashweir_core::Duration;
use flashweir_core::executor::Handle;
use flashweir_db::Db;
use flashweir_fs::vfs::{Fs, Process};
use flashweir_sim::measure::WorkloadResult;
pub use options::{Scale, TpccOptions};
use std::cell::Cell;
use std::fmt;
use std::rc::Rc;
use tables::{TREES, Tables};

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
    /// Number of the next row of the history, which has no key of its own.
    history: Cell<u64>,
}

impl<F: Fs> Tpcc<F> {
    /// Makes a database in the existing directory `dir` and loads its tables. They are durable when this returns.
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
        let db = Db::create(process, handle.clone(), dir, database(&options.run, &options.db))
            .await
            .map_err(failed)?;
        for (name, table) in TREES {
            let made = match table {
                None => db.create_tree(name).await,
                Some(table) => db.create_index(name, db.tree(table).map_err(failed)?).await,
            };
            made.map_err(failed)?;
        }
        let tables = Tables::of(|name| db.tree(name)).map_err(failed)?;
        let constants = Constants::new(options.run.seed, &options.run.name);
        let loaded = load::load(&db, &tables, &options, &constants).await;
        let history = Cell::new(loaded.map_err(failed)?);
        db.flush().await.map_err(failed)?;
        let shared = Shared { db, tables, options, constants, handle: handle.clone(), history };
        Ok(Self { shared: Rc::new(shared), handle })
    }

    /// Attaches the mix to a database that has its tables, such as one that was opened after a power cut. Options other
    /// than the scale may differ from those that it was loaded with.
    ///
    /// # Errors
    /// A missing table; the database failed.
    pub async fn attach(db: Db<F>, handle: Handle, options: TpccOptions) -> Result<Self, OltpError> {
        options.check()?;
        let failed = |error| OltpError::Db { during: "attaching", error };
        let tables = Tables::of(|name| db.tree(name)).map_err(failed)?;
        let constants = Constants::new(options.run.seed, &options.run.name);
        // The first number without a row from there on; rolled-back rows leave holes below it.
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

    /// Returns the database.
    pub fn db(&self) -> &Db<F> {
        &self.shared.db
    }

    /// Runs the connections until the time is over. It can be called repeatedly; the transactions are then the same, on
    /// the state that the last run left.
    ///
    /// # Errors
    /// The database failed.
    pub async fn run(&self) -> Result<WorkloadResult, OltpError> {
        connections::run(Rc::clone(&self.shared), self.handle.clone(), &self.shared.options.run).await
    }

    /// Returns the violations of the consistency conditions of clause 3.3.2; no transaction may run meanwhile.
    ///
    /// # Errors
    /// The database failed.
    pub async fn check(&self) -> Result<Vec<String>, OltpError> {
        let checked = check::check(&self.shared.db, &self.shared.tables, &self.shared.options.scale).await;
        checked.map_err(|error| OltpError::Db { during: "checking", error })
    }
}

/// Returns the time in the form of rows: nanoseconds of virtual time.
fn date(handle: &Handle) -> u64 {
    // Zero stands for "not yet".
    (handle.now().since(flashweir_core::Instant::ZERO) + Duration::from_nanos(1)).as_nanos()
}
