//! Which of SQLite's syncs are for order, which for durability, and what becomes of each (docs/sqlite.md).
//!
//! Place in the data flow: [`crate::host`] knows from the file and from what was written to it which sync of SQLite's protocol a
//! call is; a [`Plan`] says what is done in its place.
//!
//! Invariant: with [`OrderMode::Durable`] a transaction that SQLite's documentation calls durable at its end still is.
#![forbid(unsafe_code)]

use serde::{Deserialize, Serialize};

/// SQLite's `PRAGMA journal_mode`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum JournalMode {
    /// A rollback journal, deleted when the transaction is committed.
    #[default]
    Delete,
    /// The same, emptied.
    Truncate,
    /// The same, its header overwritten with zeros.
    Persist,
    /// A write-ahead log.
    Wal,
    /// No journal: the pages of a transaction are released to an atomic file as a set (share §10.4). `PRAGMA journal_mode` is
    /// delete, and a journal is written where SQLite needs one: for the first transaction, and for one that does not fit into
    /// its cache, or into a set.
    BatchAtomic,
}

impl JournalMode {
    /// All of them, with their names: those in SQLite, and `batch-atomic`.
    pub const ALL: [(Self, &'static str); 5] = [
        (Self::Delete, "delete"),
        (Self::Truncate, "truncate"),
        (Self::Persist, "persist"),
        (Self::Wal, "wal"),
        (Self::BatchAtomic, "batch-atomic"),
    ];

    /// Its name.
    pub fn name(self) -> &'static str {
        Self::ALL.iter().find(|(known, _)| *known == self).map_or("", |(_, name)| name)
    }

    /// The value of `PRAGMA journal_mode`.
    pub fn pragma(self) -> &'static str {
        if self == Self::BatchAtomic { Self::Delete.name() } else { self.name() }
    }
}

/// SQLite's `PRAGMA synchronous`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Synchronous {
    /// Syncs at the most critical points only. A log is not synced at commits.
    Normal,
    /// Each transaction is synced.
    #[default]
    Full,
    /// The directory, too, when a journal was deleted.
    Extra,
}

impl Synchronous {
    /// All of them, with their names in SQLite.
    pub const ALL: [(Self, &'static str); 3] =
        [(Self::Normal, "normal"), (Self::Full, "full"), (Self::Extra, "extra")];

    /// Its name in SQLite.
    pub fn name(self) -> &'static str {
        Self::ALL.iter().find(|(known, _)| *known == self).map_or("", |(_, name)| name)
    }
}

/// Which syncs become barriers.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum OrderMode {
    /// None: each is fdatasync, as in SQLite for Linux.
    #[default]
    None,
    /// Those that are for order alone. What makes a commit durable stays.
    Durable,
    /// All. A power cut may lose the newest transactions.
    All,
}

impl OrderMode {
    /// All of them, with their names.
    pub const ALL: [(Self, &'static str); 3] =
        [(Self::None, "none"), (Self::Durable, "durable"), (Self::All, "all")];

    /// Its name.
    pub fn name(self) -> &'static str {
        Self::ALL.iter().find(|(known, _)| *known == self).map_or("", |(_, name)| name)
    }
}

/// A sync of SQLite's protocol.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum SyncPoint {
    /// The rollback journal, before the database is written: its content, and its header after that.
    Journal,
    /// The rollback journal after it was emptied or its header zeroed: the commit.
    JournalEnd,
    /// The database: in a commit with a rollback journal before the journal ends, with a set after it was released.
    Database,
    /// The log with the frames of a transaction.
    Wal,
    /// The log with nothing but its header, which makes what it held before void.
    WalHeader,
    /// The log with nothing new, before a checkpoint writes to the database.
    WalCheckpoint,
    /// The directory after a journal was deleted: with [`Synchronous::Extra`] the commit.
    Deletion,
}

/// Bugs that the crash check has to find.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum PlantedBug {
    /// Syncs of the rollback journal before the database is written are left out.
    NoJournalSync,
    /// Syncs of the database are left out: with a rollback journal those before its end, with a log those of checkpoints.
    NoDatabaseSync,
    /// The sync that makes a commit durable is a barrier.
    LazyCommit,
    /// A barrier is fdatabarrier even if the file has grown, so that what is needed to read it is not ordered.
    DataBarriers,
    /// The pages of a set are written to the file one by one.
    LooseSet,
}

impl PlantedBug {
    /// All of them, with their names.
    pub const ALL: [(Self, &'static str); 5] = [
        (Self::NoJournalSync, "no-journal-sync"),
        (Self::NoDatabaseSync, "no-database-sync"),
        (Self::LazyCommit, "lazy-commit"),
        (Self::DataBarriers, "data-barriers"),
        (Self::LooseSet, "loose-set"),
    ];

    /// Whether it changes a call with this journal and order; if not, what it needs.
    ///
    /// # Errors
    /// The need, as options of `weir crash sqlite`.
    pub fn check(self, journal_mode: JournalMode, order: OrderMode) -> Result<(), &'static str> {
        match (self, journal_mode, order) {
            (Self::LooseSet, JournalMode::BatchAtomic, _) => Ok(()),
            (Self::LooseSet, ..) => Err("--journal batch-atomic"),
            (Self::DataBarriers, _, OrderMode::None) => Err("an --order with barriers"),
            (Self::NoJournalSync, JournalMode::Wal | JournalMode::BatchAtomic, _) => {
                Err("a rollback journal")
            }
            _ => Ok(()),
        }
    }

    /// Its name.
    pub fn name(self) -> &'static str {
        Self::ALL.iter().find(|(known, _)| *known == self).map_or("", |(_, name)| name)
    }
}

/// The call that is made in place of a sync.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SyncCall {
    /// fdatasync; fsync of a directory.
    Sync,
    /// fdatabarrier, or fbarrier where something else than data has changed that is needed to read them.
    Barrier,
    /// Nothing.
    Nothing,
}

/// Treatment of each sync of a database.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Plan {
    /// How the database keeps its journal.
    pub journal_mode: JournalMode,
    /// How careful SQLite is.
    pub synchronous: Synchronous,
    /// Which syncs become barriers.
    pub order: OrderMode,
    /// A bug to be found.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub planted: Option<PlantedBug>,
}

impl Plan {
    /// Whether the plan can be carried out on a file system that has barriers, or atomic files, or not. Errors: why not.
    pub fn check(&self, has_barriers: bool, has_sets: bool) -> Result<(), String> {
        match (self.order, self.journal_mode) {
            (OrderMode::None, JournalMode::BatchAtomic) if !has_sets => {
                Err("journal batch-atomic needs atomic files: \
                 expected ext4 that journals data, or either format where it uses SHARE"
                    .into())
            }
            (OrderMode::None, _) if self.planted == Some(PlantedBug::LazyCommit) && !has_barriers => {
                Err("planted lazy-commit needs a format with order".into())
            }
            (OrderMode::None, _) => Ok(()),
            (order, JournalMode::BatchAtomic) => Err(format!(
                "order {} has no sync to order with journal batch-atomic: expected order none",
                order.name()
            )),
            (order, _) if !has_barriers => Err(format!("order {} needs a format with order", order.name())),
            _ => Ok(()),
        }
    }

    /// Treatment of a sync.
    pub fn call(&self, point: SyncPoint) -> SyncCall {
        use SyncPoint::{Database, Journal};
        match (self.planted, point) {
            (Some(PlantedBug::NoJournalSync), Journal) => return SyncCall::Nothing,
            (Some(PlantedBug::NoDatabaseSync), Database) => return SyncCall::Nothing,
            (Some(PlantedBug::LazyCommit), point) if self.ends_commit(point) => return SyncCall::Barrier,
            _ => {}
        }
        match self.order {
            OrderMode::None => SyncCall::Sync,
            OrderMode::Durable if self.ends_commit(point) => SyncCall::Sync,
            OrderMode::Durable | OrderMode::All => SyncCall::Barrier,
        }
    }

    /// Whether this sync is the one that makes a transaction durable, and not only what has to be before something else.
    /// A log that is not synced at commits has none.
    pub fn ends_commit(&self, point: SyncPoint) -> bool {
        use JournalMode::{BatchAtomic, Delete, Persist, Truncate, Wal};
        use Synchronous::{Extra, Full, Normal};
        point
            == match (self.journal_mode, self.synchronous) {
                (BatchAtomic, _) => SyncPoint::Database,
                // Deleting the journal is the commit. It is not waited for: a power cut may undo the last transaction.
                (Delete, Normal | Full) => SyncPoint::Database,
                (Delete, Extra) => SyncPoint::Deletion,
                // An emptied journal is not synced.
                (Truncate, Normal) => SyncPoint::Database,
                (Truncate, Full | Extra) | (Persist, _) => SyncPoint::JournalEnd,
                (Wal, Full | Extra) => SyncPoint::Wal,
                (Wal, Normal) => return false,
            }
    }

    /// Transactions at the end that a power cut may take back although SQLite has said that they are committed; `None` is any
    /// number.
    pub fn losses_max(&self) -> Option<u64> {
        match (self.order, self.journal_mode, self.synchronous) {
            (OrderMode::All, ..) | (_, JournalMode::Wal, Synchronous::Normal) => None,
            // The journal of the last one may come back.
            (_, JournalMode::Delete, Synchronous::Normal | Synchronous::Full)
            | (_, JournalMode::Truncate, Synchronous::Normal) => Some(1),
            _ => Some(0),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const POINTS: [SyncPoint; 7] = [
        SyncPoint::Journal,
        SyncPoint::JournalEnd,
        SyncPoint::Database,
        SyncPoint::Wal,
        SyncPoint::WalHeader,
        SyncPoint::WalCheckpoint,
        SyncPoint::Deletion,
    ];

    #[test]
    fn one_sync_of_a_commit_is_for_durability() {
        for (journal_mode, _) in JournalMode::ALL {
            for (synchronous, _) in Synchronous::ALL {
                let plan = Plan { journal_mode, synchronous, order: OrderMode::Durable, planted: None };
                let syncs = POINTS.iter().filter(|point| plan.call(**point) == SyncCall::Sync).count();
                let is_lazy = (journal_mode, synchronous) == (JournalMode::Wal, Synchronous::Normal);
                assert_eq!(syncs, usize::from(!is_lazy), "{plan:?}");
                let legacy = Plan { order: OrderMode::None, ..plan };
                assert!(POINTS.iter().all(|point| legacy.call(*point) == SyncCall::Sync));
                let order = Plan { order: OrderMode::All, ..plan };
                assert!(POINTS.iter().all(|point| order.call(*point) == SyncCall::Barrier));
            }
        }
    }
}
