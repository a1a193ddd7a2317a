//! sysbench's `oltp_insert`: transactions of one row each, with an entry in a second index (docs/transaction-mixes.md).
//!
//! Place in the data flow: [`Insert::prepare`] makes the table, [`Insert::run`] runs the connections, [`Insert::check`] compares the
//! table and its index.
//!
//! Deliberately absent: several tables.

use super::connections::{self, Mix};
use super::{OltpError, RunOptions, check_common, each, in_range};
use flashweir_core::executor::Handle;
use flashweir_core::{Instant, RandomStream};
use flashweir_db::{Config, Db, DbError, Tree};
use flashweir_fs::vfs::{Fs, Process};
use flashweir_sim::measure::WorkloadResult;
use std::cell::Cell;
use std::collections::BTreeSet;
use std::fmt;
use std::rc::Rc;

/// Options of the mix.
#[derive(Clone, Debug)]
pub struct InsertOptions {
    /// Number of rows at the beginning; sysbench's `table_size`.
    pub rows: u64,
    /// Options of the run.
    pub run: RunOptions,
    /// Configuration of the database.
    pub db: Config,
}

impl InsertOptions {
    /// Makes options with this number of rows, the engine's defaults, and 16 connections for a minute.
    pub fn new(name: &str, seed: u64, rows: u64) -> Self {
        Self { rows, run: RunOptions::new(name, seed), db: Config::default() }
    }

    /// Checks the bounds of all options.
    ///
    /// # Errors
    /// The first option that is out of its range.
    pub fn check(&self) -> Result<(), OltpError> {
        // Keys of the second index are 32-bit numbers.
        in_range("rows", self.rows, 1, u32::MAX.into())?;
        check_common(&self.run, &self.db)
    }
}

/// Length of the columns `c` and `pad` in bytes.
const FILLER: usize = 120 + 60;

const TREES: [&str; 2] = ["sbtest1", "k_1"];

#[derive(Clone, Copy, Debug)]
struct Tables {
    rows: Tree,
    index: Tree,
}

/// A row without its key: `k`, which has an index, and digits.
struct Row {
    k: u32,
    filler: [u8; FILLER],
}

impl Row {
    fn draw(stream: &mut RandomStream, rows: u64) -> Self {
        let k = 1 + stream.below(rows) as u32;
        let mut filler = [0; FILLER];
        for group in filler.chunks_mut(12) {
            let (last, digits) = group.split_last_mut().expect("a group has a byte");
            let number = format!("{:011}", stream.below(100_000_000_000));
            digits.copy_from_slice(&number.as_bytes()[..digits.len()]);
            *last = b'-';
        }
        Self { k, filler }
    }

    fn encode(&self) -> Vec<u8> {
        [&self.k.to_be_bytes()[..], &self.filler].concat()
    }

    fn index_key(&self, id: u64) -> Vec<u8> {
        index_key(self.k.to_be_bytes(), id)
    }
}

fn index_key(k: [u8; 4], id: u64) -> Vec<u8> {
    [&k[..], &id.to_be_bytes()].concat()
}

/// A database with the table.
pub struct Insert<F: Fs>(Rc<Shared<F>>);

impl<F: Fs> fmt::Debug for Insert<F> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Insert").field("options", &self.0.options).finish_non_exhaustive()
    }
}

struct Shared<F: Fs> {
    db: Db<F>,
    tables: Tables,
    options: InsertOptions,
    handle: Handle,
    /// Number of the next row.
    next: Cell<u64>,
}

impl<F: Fs> Insert<F> {
    /// Makes a database with the table in the existing directory `dir`. It is durable when this returns.
    ///
    /// # Errors
    /// An option out of its range; the database failed.
    pub async fn prepare(
        process: &Process<F>,
        handle: Handle,
        dir: &str,
        options: InsertOptions,
    ) -> Result<Self, OltpError> {
        options.check()?;
        let failed = |error| OltpError::Db { during: "loading", error };
        let db = Db::create(process, handle.clone(), dir, options.db.clone()).await.map_err(failed)?;
        let tables = load(&db, &options).await.map_err(failed)?;
        let next = Cell::new(options.rows + 1);
        Ok(Self(Rc::new(Shared { db, tables, options, handle, next })))
    }

    /// Returns the database.
    pub fn db(&self) -> &Db<F> {
        &self.0.db
    }

    /// Runs the connections until the time is over. It can be called repeatedly.
    ///
    /// # Errors
    /// The database failed.
    pub async fn run(&self) -> Result<WorkloadResult, OltpError> {
        connections::run(Rc::clone(&self.0), self.0.handle.clone(), &self.0.options.run).await
    }

    /// Returns the contradictions between the table and its index; no transaction may run meanwhile.
    ///
    /// # Errors
    /// The database failed.
    pub async fn check(&self) -> Result<Vec<String>, OltpError> {
        let (db, tables) = (&self.0.db, self.0.tables);
        let failed = |error| OltpError::Db { during: "checking", error };
        let (mut wanted, mut faults) = (BTreeSet::new(), Vec::new());
        let key_of = |id: &[u8], row: &[u8]| {
            Some(index_key(*row.first_chunk()?, u64::from_be_bytes(id.try_into().ok()?)))
        };
        each(db, tables.rows, |(id, row)| match key_of(id, row) {
            Some(key) => drop(wanted.insert(key)),
            None => faults.push(format!("{id:02x?} is no row")),
        })
        .await
        .map_err(failed)?;
        each(db, tables.index, |(key, _)| {
            if !wanted.remove(key) {
                faults.push(format!("the index has {key:02x?}, which is no row"));
            }
        })
        .await
        .map_err(failed)?;
        faults.extend(wanted.iter().map(|key| format!("the index lacks {key:02x?}")));
        Ok(faults)
    }
}

async fn load<F: Fs>(db: &Db<F>, options: &InsertOptions) -> Result<Tables, DbError> {
    let tables = Tables { rows: db.create_tree(TREES[0]).await?, index: db.create_tree(TREES[1]).await? };
    let mut stream = RandomStream::new(options.run.seed, "oltp-insert.load");
    let (mut rows, mut keys) = (db.load(tables.rows).await?, Vec::new());
    for id in 1..=options.rows {
        let row = Row::draw(&mut stream, options.rows);
        rows.add(&id.to_be_bytes(), &row.encode()).await?;
        keys.push(row.index_key(id));
    }
    rows.finish().await?;
    keys.sort_unstable();
    let mut index = db.load(tables.index).await?;
    for key in keys {
        index.add(&key, &[]).await?;
    }
    index.finish().await?;
    db.flush().await?;
    Ok(tables)
}

impl<F: Fs> Mix for Shared<F> {
    type Input = Row;

    const KINDS: &'static [&'static str] = &["insert"];

    fn draw(&self, stream: &mut RandomStream, _: u32) -> (usize, Row) {
        (0, Row::draw(stream, self.options.rows))
    }

    async fn perform(&self, row: &Row) -> Result<Option<Instant>, DbError> {
        let id = self.next.get();
        self.next.set(id + 1);
        let mut trx = self.db.begin().await?;
        let inserted = async {
            trx.insert(self.tables.rows, &id.to_be_bytes(), &row.encode()).await?;
            trx.insert(self.tables.index, &row.index_key(id), &[]).await
        };
        let done = inserted.await.map(|()| true);
        connections::end(trx, done, &self.handle).await
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use flashweir_core::Duration;
    use flashweir_device::presets::preset;
    use flashweir_device::{Device, DeviceOptions};
    use flashweir_fs::memfs::{MemFs, MemFsConfig};
    use flashweir_fs::vfs::{Creds, MountOptions, Vfs};
    use flashweir_sim::stack::{FlushMode, Stack};

    #[test]
    fn each_transaction_is_a_row_and_an_entry_of_the_index() {
        let device = DeviceOptions { seed: 1, track_contents: false, planted: None };
        let mut stack = Stack::new(Device::new(preset("rflush").unwrap(), device), FlushMode::RangeFlush);
        let fs = MemFs::with_disk(MemFsConfig::default(), stack.handle(), Duration::from_micros(20));
        let vfs = Vfs::mount(fs, stack.handle(), MountOptions::default()).unwrap();
        let (process, handle) = (vfs.process(Creds::ROOT), stack.handle());
        let task = async move {
            process.mkdir("/db", 0o755).await.unwrap();
            let run = RunOptions { runtime: Duration::from_millis(200), ..RunOptions::new("i", 3) };
            let options = InsertOptions { run, ..InsertOptions::new("i", 3, 2000) };
            let insert = Insert::prepare(&process, handle, "/db", options).await.unwrap();
            assert_eq!(insert.check().await.unwrap(), [""; 0]);
            let result = insert.run().await.unwrap();
            assert_eq!(insert.check().await.unwrap(), [""; 0]);
            let report = insert.db().check().await.unwrap();
            assert!(report.is_good(), "{report:?}");
            // Transactions that ended after the time do not count.
            let inserted = report.rows["sbtest1"] - 2000;
            let counted = result.call("insert").unwrap().calls;
            assert!(counted > 1000 && inserted - counted <= 16, "{inserted} {counted}");
            assert_eq!(result.call("commit").unwrap().calls, counted);
            // A lost entry is detected.
            let (shared, mut trx) = (&insert.0, insert.db().begin().await.unwrap());
            let key = insert.db().scan(shared.tables.index, &[], None, 1).await.unwrap().remove(0).0;
            trx.delete(shared.tables.index, &key).await.unwrap();
            trx.commit().await.unwrap();
            assert_eq!(insert.check().await.unwrap(), [format!("the index lacks {key:02x?}")]);
        };
        stack.block_on(task).expect("the run comes to its end");
    }
}
