//! A transactional store on files, in the shape of InnoDB: pages with checksums, B+-trees, a buffer pool, a redo log with group
//! commit, undo, a double-write area, recovery.
//!
//! Place in the data flow: workloads (TPC-C-like, LinkBench-like, sysbench's) call [`Db`] and [`Transaction`]; below are files of
//! any [`Fs`](flashweir_fs::vfs::Fs) through the VFS, in virtual time. The format of the files is in
//! `specs/database.md`.
//!
//! ```text
//! Transaction ─ locks, undo ─► tree ─► mini-transaction ─┬─► pages in the pool ─ double-write ─► data files
//!                                                        └─► redo log ─ group commit ─► log files
//! ```
//!
//! **The rule on which everything rests:** code that reads or changes pages never waits. An operation runs on pages in
//! memory, from its beginning to its end, between two `await`s; if a page is missing, the operation has changed
//! nothing, the page is read, and the operation starts again. So trees need no latches, and no task ever sees part of a
//! change.
//!
//! Promise: with [`CommitMode::Sync`], and where no page can be torn ([`DoubleWrite`]), committed changes survive any power
//! cut, and uncommitted ones never do. A row
//! belongs to the transaction that changed it until that ends. Plain reads see the newest state, including uncommitted
//! changes; [`Transaction::lock`] reads committed ones.
//!
//! Deliberately absent: several versions of a row, shared locks, columns and SQL, a buffer for changes of secondary
//! indexes, pages above 16 KiB, rows longer than a quarter of a page.
#![forbid(unsafe_code)]

mod check;
mod config;
mod core;
mod db;
mod error;
mod file;
mod load;
mod locks;
mod log;
mod log_io;
mod page;
mod page_io;
mod pool;
mod recovery;
mod redo;
mod transaction;
mod tree;
mod undo;

pub use check::CheckReport;
pub use config::{CommitMode, Config, CpuCosts, DataIo, DbMetrics, DoubleWrite};
pub use db::{Db, Row, Tree};
pub use error::{DbError, Result};
pub use load::Loader;
pub use recovery::Recovery;
pub use transaction::Transaction;
