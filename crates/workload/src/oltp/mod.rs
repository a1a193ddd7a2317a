//! Transaction mixes on a database: TPC-C-like, LinkBench-like, and sysbench's scripts (docs/transaction-mixes.md).
//!
//! Place in the data flow: a mix makes a database of `flashweir-db` in a directory of a mounted file system, loads it,
//! and runs the transactions of several connections as tasks; the result is a
//! [`WorkloadResult`](flashweir_sim::measure::WorkloadResult) with a call for each kind of transaction. Mixes and other
//! workloads may run concurrently on one stack: each is prepared, then all run as separate tasks.
//!
//! Deliberately absent: clients and a network. A connection sends its next transaction when the last one has ended,
//! without keying and think times.

mod connections;
pub use connections::COMMIT;
pub mod linkbench;
mod settings;
pub mod sysbench;
#[cfg(test)]
mod testing;
pub mod tpcc;

use flashweir_core::Duration;
use flashweir_db::{Db, DbError, Row, Tree};
use flashweir_fs::vfs::{Errno, Fs};
use std::fmt;

/// Number of rows that a check of the tables reads at once.
const ROWS: usize = 4096;

/// Calls `look` for every row of a table, in the order of the keys.
async fn each<F: Fs>(db: &Db<F>, tree: Tree, mut look: impl FnMut(&Row)) -> flashweir_db::Result<()> {
    let mut from = Vec::new();
    loop {
        let rows = db.scan(tree, &from, None, ROWS).await?;
        rows.iter().for_each(&mut look);
        match rows.into_iter().last() {
            Some((key, _)) => from = [key, vec![0]].concat(),
            None => return Ok(()),
        }
    }
}

/// Options of the run of every mix.
#[derive(Clone, Debug)]
pub struct RunOptions {
    /// Name of the run, in results and in the names of its random streams. Concurrent runs need different names.
    pub name: String,
    /// Seed of the random streams.
    pub seed: u64,
    /// Number of connections; each executes one transaction at a time.
    pub connections: u32,
    /// Ramp time at the start that does not count; the run time begins after it.
    pub ramp: Duration,
    /// Time during which transactions are started.
    pub runtime: Duration,
    /// Length of an interval of the series.
    pub interval: Duration,
}

impl RunOptions {
    /// Makes options for a run of this name and seed: 16 connections, no ramp, 60 s, intervals of a second.
    pub fn new(name: &str, seed: u64) -> Self {
        Self {
            name: name.to_owned(),
            seed,
            connections: 16,
            ramp: Duration::ZERO,
            runtime: Duration::from_secs(60),
            interval: Duration::from_secs(1),
        }
    }
}

/// Reason why a mix could not be loaded or run.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum OltpError {
    /// An option with an invalid value.
    Option {
        /// Name of the option.
        key: &'static str,
        /// Its value.
        value: u64,
        /// Description of valid values.
        expected: String,
    },
    /// An invalid setting.
    Setting {
        /// Key as written.
        key: String,
        /// Value as written.
        value: String,
        /// Description of valid settings.
        expected: String,
    },
    /// A setting that there is not.
    UnknownSetting {
        /// Key as written.
        key: String,
        /// The known one that was probably meant.
        meant: Option<&'static str>,
        /// All known ones.
        known: String,
    },
    /// The database failed.
    Db {
        /// Activity during the failure: a kind of transaction, or loading. Empty where the error is sufficient.
        during: &'static str,
        /// Error of the database.
        error: DbError,
    },
    /// The directory of the database cannot be created.
    Directory {
        /// Its path.
        path: String,
        /// Error of the call.
        errno: Errno,
    },
}

impl fmt::Display for OltpError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Option { key, value, expected } => write!(f, "{key} is {value}: expected {expected}"),
            Self::Setting { key, value, expected } => {
                write!(f, "{key} cannot be `{value}`: expected {expected}")
            }
            Self::UnknownSetting { key, meant, known } => {
                write!(f, "unknown setting `{key}`: expected {known}")?;
                meant.map_or(Ok(()), |meant| write!(f, "; did you mean `{meant}`?"))
            }
            Self::Db { during: "", error } => error.fmt(f),
            Self::Db { during, error } => write!(f, "{during}: {error}"),
            Self::Directory { path, errno } => write!(f, "making {path}: {errno}"),
        }
    }
}

impl std::error::Error for OltpError {}

/// Checks the options that every mix has.
fn check_common(run: &RunOptions, db: &flashweir_db::Config) -> Result<(), OltpError> {
    in_range("connections", run.connections.into(), 1, 4096)?;
    in_range("interval (ns)", run.interval.as_nanos(), 1, u64::MAX)?;
    database(run, db).validate().map_err(|error| OltpError::Db { during: "", error })
}

/// The configuration with which a mix makes its database, and with which that is opened again: it has room for a transaction of each
/// connection, so that none waits for the end of another one's.
pub fn database(run: &RunOptions, db: &flashweir_db::Config) -> flashweir_db::Config {
    flashweir_db::Config { transactions_max: db.transactions_max.max(run.connections), ..db.clone() }
}

/// Checks the bounds of an option.
pub(crate) fn in_range(key: &'static str, value: u64, min: u64, max: u64) -> Result<(), OltpError> {
    if (min..=max).contains(&value) {
        return Ok(());
    }
    Err(OltpError::Option { key, value, expected: format!("{min} to {max}") })
}
