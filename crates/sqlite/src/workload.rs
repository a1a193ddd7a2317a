//! Transactions of one row each, as Mobibench's: inserts, updates, deletes.
//!
//! Place in the data flow: [`prepare`] and [`work`] are programs on the thread of SQLite; [`Changes`] says what each transaction does, so
//! that a check of the database after a power cut knows what may be in it.
//!
//! Invariants: changes are a function of the options and the seed; no two states of the table are alike.
//!
//! Deliberately absent: reads, as in Mobibench, but for those that a change needs.
#![forbid(unsafe_code)]

use crate::order::{JournalMode, Plan};
use crate::{Clock, VFS};
use flashweir_core::random::mix;
use flashweir_core::{Duration, Instant, RandomStream};
use flashweir_sim::measure::{CallRecorder, CallResult};
use rusqlite::{Connection, OpenFlags, Statement};
use serde::{Deserialize, Serialize};
use std::fmt;

/// Where the database is.
pub const DATABASE: &str = "/test.db";

/// What [`work`] marks when measuring begins.
pub const BEGUN: u64 = u64::MAX - 1;
/// What [`work`] marks when its last transaction has ended, before it closes the database.
pub const ENDED: u64 = u64::MAX;

/// What a transaction does.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Mix {
    /// It adds a row at the end.
    #[default]
    Insert,
    /// It changes a row, drawn.
    Update,
    /// It deletes a row, drawn.
    Delete,
    /// One of these, drawn.
    Mixed,
}

impl Mix {
    /// All of them, with their names.
    pub const ALL: [(Self, &'static str); 4] = [
        (Self::Insert, "insert"),
        (Self::Update, "update"),
        (Self::Delete, "delete"),
        (Self::Mixed, "mixed"),
    ];

    /// Its name.
    pub fn name(self) -> &'static str {
        Self::ALL.iter().find(|(known, _)| *known == self).map_or("", |(_, name)| name)
    }
}

/// The database and its transactions.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct WorkloadOptions {
    /// What transactions do.
    pub mix: Mix,
    /// Transactions at most.
    pub transactions: u64,
    /// Time at the start in which transactions do not count.
    pub ramp: Duration,
    /// No transaction begins after this much measured time.
    pub runtime: Option<Duration>,
    /// Rows at the beginning; deletes have one more for each transaction.
    pub rows: u64,
    /// Bytes of a row besides its key.
    pub row_bytes: u32,
    /// SQLite's `PRAGMA page_size`.
    pub page_bytes: u32,
    /// SQLite's `PRAGMA wal_autocheckpoint`.
    pub checkpoint_pages: u32,
    /// CPU time of SQLite and the program for each transaction, besides that of calls.
    pub compute: Duration,
}

impl Default for WorkloadOptions {
    fn default() -> Self {
        Self {
            mix: Mix::Insert,
            transactions: 1_000,
            ramp: Duration::ZERO,
            runtime: None,
            rows: 1_000,
            row_bytes: 100,
            page_bytes: 4_096,
            checkpoint_pages: 1_000,
            compute: Duration::ZERO,
        }
    }
}

/// What one transaction does.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Change {
    /// Adds this row.
    Insert(i64),
    /// Changes it.
    Update(i64),
    /// Deletes it.
    Delete(i64),
}

/// The rows by their keys, ascending, each with the number of the transaction that wrote it.
pub type Rows = Vec<(i64, u64)>;

/// The changes, one after the other.
#[derive(Clone, Debug)]
pub struct Changes {
    mix: Mix,
    random: RandomStream,
    rows: Rows,
    /// Transactions so far.
    done: u64,
    /// The last one that wrote a row. That row is not deleted before another one is written, or an earlier state would come back.
    newest: u64,
}

impl Changes {
    /// Before the first transaction.
    pub fn new(options: &WorkloadOptions, seed: u64) -> Self {
        let rows = match options.mix {
            Mix::Delete => options.rows + options.transactions,
            Mix::Insert | Mix::Update | Mix::Mixed => options.rows,
        };
        let rows = (1..=rows as i64).map(|id| (id, 0)).collect();
        Self {
            mix: options.mix,
            random: RandomStream::new(seed, "transactions of sqlite"),
            rows,
            done: 0,
            newest: 0,
        }
    }

    /// The rows that the table has now.
    pub fn rows(&self) -> &Rows {
        &self.rows
    }

    /// Transactions so far.
    pub fn done(&self) -> u64 {
        self.done
    }

    /// The next one.
    pub fn step(&mut self) -> Change {
        self.done += 1;
        let mix = match self.mix {
            Mix::Mixed => [Mix::Insert, Mix::Update, Mix::Delete][self.random.below(3) as usize],
            mix => mix,
        };
        let at = (!self.rows.is_empty()).then(|| self.random.below(self.rows.len() as u64) as usize);
        let at = at.filter(|at| mix != Mix::Delete || self.newest == 0 || self.rows[*at].1 != self.newest);
        let Some(at) = at.filter(|_| mix != Mix::Insert) else {
            let id = self.rows.last().map_or(0, |(id, _)| *id) + 1;
            self.rows.push((id, self.done));
            self.newest = self.done;
            return Change::Insert(id);
        };
        let id = self.rows[at].0;
        if mix == Mix::Delete {
            self.rows.remove(at);
            return Change::Delete(id);
        }
        (self.rows[at].1, self.newest) = (self.done, self.done);
        Change::Update(id)
    }
}

/// Why a program gave up.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SqliteError(pub String);

impl fmt::Display for SqliteError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "SQLite: {}", self.0)
    }
}

impl std::error::Error for SqliteError {}

impl From<rusqlite::Error> for SqliteError {
    fn from(error: rusqlite::Error) -> Self {
        Self(error.to_string())
    }
}

/// The body of a row that a transaction wrote.
pub fn body(id: i64, transaction: u64, bytes: u32) -> Vec<u8> {
    let mut body = Vec::with_capacity(bytes as usize + 8);
    let mut word = mix(id as u64) ^ transaction;
    while body.len() < bytes as usize {
        word = mix(word);
        body.extend(word.to_le_bytes());
    }
    body.truncate(bytes as usize);
    body
}

/// Opens the database as a plan says.
///
/// # Errors
/// What SQLite says; it cannot have the journal that is wanted.
pub fn open(plan: &Plan, options: &WorkloadOptions) -> Result<Connection, SqliteError> {
    let flags =
        OpenFlags::SQLITE_OPEN_READ_WRITE | OpenFlags::SQLITE_OPEN_CREATE | OpenFlags::SQLITE_OPEN_NO_MUTEX;
    let db = Connection::open_with_flags_and_vfs(DATABASE, flags, VFS)?;
    db.pragma_update(None, "page_size", options.page_bytes)?;
    let is_built_for = |option: &str| {
        db.query_row("SELECT sqlite_compileoption_used(?)", [option], |row| row.get::<_, bool>(0))
    };
    if plan.journal_mode == JournalMode::BatchAtomic && !is_built_for("ENABLE_BATCH_ATOMIC_WRITE")? {
        let why = "SQLite was built without ENABLE_BATCH_ATOMIC_WRITE: expected a build in the source tree of Flashweir";
        return Err(SqliteError(why.into()));
    }
    let wanted = plan.journal_mode.pragma();
    let mode: String = db.query_row(&format!("PRAGMA journal_mode={wanted}"), [], |row| row.get(0))?;
    if mode != wanted {
        return Err(SqliteError(format!("journal_mode is {mode} and not {wanted}")));
    }
    db.pragma_update(None, "synchronous", plan.synchronous.name())?;
    // Nothing but the database and its journal is to be on the disk.
    db.pragma_update(None, "temp_store", "memory")?;
    db.query_row(&format!("PRAGMA wal_autocheckpoint={}", options.checkpoint_pages), [], |_| Ok(()))?;
    Ok(db)
}

/// The statements of changes.
pub struct Statements<'db> {
    insert: Statement<'db>,
    update: Statement<'db>,
    delete: Statement<'db>,
    row_bytes: u32,
}

impl fmt::Debug for Statements<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Statements").field("row_bytes", &self.row_bytes).finish_non_exhaustive()
    }
}

impl<'db> Statements<'db> {
    /// For the table of a database.
    ///
    /// # Errors
    /// What SQLite says.
    pub fn new(db: &'db Connection, options: &WorkloadOptions) -> Result<Self, SqliteError> {
        Ok(Self {
            insert: db.prepare("INSERT INTO list VALUES (?1, ?2, ?3)")?,
            update: db.prepare("UPDATE list SET writer = ?2, body = ?3 WHERE id = ?1")?,
            delete: db.prepare("DELETE FROM list WHERE id = ?1")?,
            row_bytes: options.row_bytes,
        })
    }

    /// Does one transaction, or a part of one that was begun.
    ///
    /// # Errors
    /// What SQLite says; it changed no row.
    pub fn apply(&mut self, change: Change, number: u64) -> Result<(), SqliteError> {
        let text = |id| body(id, number, self.row_bytes);
        let changed = match change {
            Change::Insert(id) => self.insert.execute((id, number as i64, text(id)))?,
            Change::Update(id) => self.update.execute((id, number as i64, text(id)))?,
            Change::Delete(id) => self.delete.execute([id])?,
        };
        if changed == 1 { Ok(()) } else { Err(SqliteError(format!("{change:?} changed {changed} rows"))) }
    }
}

/// Makes the database with its first rows.
///
/// # Errors
/// What SQLite says.
pub fn prepare(plan: &Plan, options: &WorkloadOptions, seed: u64) -> Result<(), SqliteError> {
    let mut db = open(plan, options)?;
    db.execute_batch(
        "CREATE TABLE list (id INTEGER PRIMARY KEY, writer INTEGER NOT NULL, body BLOB NOT NULL)",
    )?;
    let transaction = db.transaction()?;
    {
        let mut statements = Statements::new(&transaction, options)?;
        for (id, _) in Changes::new(options, seed).rows() {
            statements.apply(Change::Insert(*id), 0)?;
        }
    }
    transaction.commit()?;
    db.close().map_err(|(_, error)| error.into())
}

/// What the transactions of a run were.
#[derive(Debug)]
pub struct Measured {
    /// When the first one began.
    pub begin: Instant,
    /// When the last one ended.
    pub end: Instant,
    /// Latencies, by kind of change.
    pub calls: Vec<CallResult>,
}

/// Executes the transactions. Each is marked in the world before it ([`Clock::mark`], twice its number less one) and after it (twice its
/// number); [`BEGUN`] and [`ENDED`] are the measured time.
///
/// # Errors
/// What SQLite says.
pub fn work(
    clock: &Clock,
    plan: &Plan,
    options: &WorkloadOptions,
    seed: u64,
    interval: Duration,
) -> Result<Measured, SqliteError> {
    let db = open(plan, options)?;
    let mut statements = Statements::new(&db, options)?;
    // What a connection reads first of all is not what is measured.
    db.query_row("SELECT count(*) FROM list", [], |_| Ok(()))?;
    let mut changes = Changes::new(options, seed);
    let mut step = || {
        let change = changes.step();
        let number = changes.done();
        clock.mark(2 * number - 1);
        clock.compute(options.compute);
        statements.apply(change, number)?;
        clock.mark(2 * number);
        Ok::<_, SqliteError>((change, number))
    };
    let (mut done, ramped) = (0, clock.now() + options.ramp);
    while done < options.transactions && clock.now() < ramped {
        done = step()?.1;
    }
    let begin = clock.now();
    clock.mark(BEGUN);
    let names = ["insert", "update", "delete"];
    let mut recorders = names.map(|_| CallRecorder::new(begin, interval));
    while done < options.transactions && options.runtime.is_none_or(|runtime| clock.now() < begin + runtime) {
        let began = clock.now();
        let (change, number) = step()?;
        done = number;
        let kind = match change {
            Change::Insert(_) => 0,
            Change::Update(_) => 1,
            Change::Delete(_) => 2,
        };
        recorders[kind].record(u64::from(options.row_bytes), began, clock.now());
    }
    let end = clock.now();
    clock.mark(ENDED);
    let calls =
        recorders.into_iter().zip(names).map(|(recorder, name)| recorder.finish(name, name, true, end));
    Ok(Measured { begin, end, calls: calls.filter(|call| call.calls > 0).collect() })
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::BTreeSet;

    #[test]
    fn no_two_states_are_alike() {
        for (mix, _) in Mix::ALL {
            for rows in [0, 1, 5] {
                let options = WorkloadOptions { mix, rows, transactions: 300, ..WorkloadOptions::default() };
                let mut changes = Changes::new(&options, 3);
                let mut seen = BTreeSet::from([changes.rows().clone()]);
                for _ in 0..options.transactions {
                    changes.step();
                    assert!(seen.insert(changes.rows().clone()), "{mix:?}");
                    assert!(changes.rows().is_sorted());
                }
            }
        }
    }

    #[test]
    fn bodies_tell_rows_and_transactions_apart() {
        let all: BTreeSet<Vec<u8>> =
            (0..20).flat_map(|id| (0..20).map(move |number| body(id, number, 13))).collect();
        assert_eq!(all.len(), 400);
        assert!(all.iter().all(|body| body.len() == 13));
    }
}
