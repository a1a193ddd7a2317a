//! A transactional store on files, in the shape of InnoDB: pages with checksums, B+-trees, a buffer pool, a redo log with group
//! commit, undo, a double-write area, recovery.
//!
//! Place in the data flow: workloads (TPC-C-like, LinkBench-like) call [`Db`] and [`Transaction`]; below are files of any
//! [`Fs`](flashweir_fs::vfs::Fs) through the vfs, in virtual time. The format of the files is in `specs/database.md`.
//!
//! ```text
//! Transaction ─ locks, undo ─► tree ─► mini-transaction ─┬─► pages in the pool ─ double-write ─► data file
//!                                                        └─► redo log ─ group commit ─► log files
//! ```
//!
//! **The rule that everything rests on:** what looks at pages or changes them never waits. An operation runs on what is in
//! memory, from its beginning to its end, between two `await`s; if a page is missing it has changed nothing, the page is
//! read, and the operation begins anew. So trees need no latches, and no task ever sees half of a change.
//!
//! Promise: with [`CommitMode::Sync`], what was committed is there after any power cut, and nothing of what was not. A row
//! belongs to the transaction that changed it until that ends. Plain reads see the newest state, also what is not committed
//! yet; [`Transaction::lock`] reads what is.
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
pub use config::{CommitMode, Config, CpuCosts, DataIo, DbMetrics};
pub use db::{Db, Row, Tree};
pub use error::{DbError, Result};
pub use load::Loader;
pub use recovery::Recovery;
pub use transaction::Transaction;
