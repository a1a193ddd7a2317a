//! Transactions: row locks, changes with their undo records, commit and rollback.
//!
//! Place in the data flow: the statements of a workload; each change of a row is one mini-transaction.
//!
//! Invariants: a row is locked before it is changed and until the transaction ends. Locks are released when the commit
//! is in the log in memory, before it is durable: a transaction that sees the change commits after it in the log.

use crate::core::{Core, Step};
use crate::db::{Db, Shared, Tree};
use crate::error::{DbError, Result};
use crate::locks::{TrxId, Wish};
use crate::page::{Page, PageNo};
use crate::tree;
use crate::undo::{self, Opposite, UNDO_BYTES, Undo};
use flashweir_fs::vfs::Fs;
use std::fmt;

/// A transaction in progress. If it is dropped, a separate task rolls it back.
pub struct Transaction<F: Fs> {
    db: Db<F>,
    id: TrxId,
    slot: u32,
    /// The first of its undo pages beyond the slot's.
    bottom: Option<PageNo>,
    changed: bool,
    ended: bool,
}

impl<F: Fs> fmt::Debug for Transaction<F> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Transaction")
            .field("id", &self.id.0)
            .field("changed", &self.changed)
            .finish_non_exhaustive()
    }
}

/// A change of one row.
#[derive(Clone, Copy)]
enum Change<'a> {
    Insert(&'a [u8]),
    Update(&'a [u8]),
    Delete,
}

impl<F: Fs> Db<F> {
    /// Begins a transaction; waits while the maximum number of transactions is in progress.
    ///
    /// # Errors
    /// The engine has stopped.
    pub async fn begin(&self) -> Result<Transaction<F>> {
        self.0.charge(self.0.config.costs.transaction).await;
        loop {
            self.0.check_alive()?;
            let slot = self.0.core.borrow_mut().slots_free.pop();
            match slot {
                Some(slot) => return Ok(Transaction::new(self.clone(), slot)),
                None => self.0.slot_freed.wait().await,
            }
        }
    }
}

impl<F: Fs> Transaction<F> {
    fn new(db: Db<F>, slot: u32) -> Self {
        let id = {
            let mut core = db.0.core.borrow_mut();
            core.transactions += 1;
            TrxId(core.transactions)
        };
        Self { db, id, slot, bottom: None, changed: false, ended: false }
    }

    fn shared(&self) -> &Shared<F> {
        &self.db.0
    }

    /// Reads a row without a lock: its newest value, including uncommitted changes of other transactions.
    ///
    /// # Errors
    /// As [`Db::get`].
    pub async fn get(&self, tree: Tree, key: &[u8]) -> Result<Option<Vec<u8>>> {
        self.db.get(tree, key).await
    }

    /// Reads rows without locks (see [`Db::scan`]).
    ///
    /// # Errors
    /// As [`Db::scan`].
    pub async fn scan(
        &self,
        tree: Tree,
        from: &[u8],
        end: Option<&[u8]>,
        rows_max: usize,
    ) -> Result<Vec<crate::Row>> {
        self.db.scan(tree, from, end, rows_max).await
    }

    /// Reads a row that the transaction intends to change (`SELECT ... FOR UPDATE`): no other transaction changes it
    /// until this one ends. A key without a row is locked as well.
    ///
    /// # Errors
    /// [`DbError::Deadlock`]; as [`Db::get`].
    pub async fn lock(&mut self, tree: Tree, key: &[u8]) -> Result<Option<Vec<u8>>> {
        self.take_lock(tree, key).await?;
        self.db.get(tree, key).await
    }

    /// Inserts a row.
    ///
    /// # Errors
    /// [`DbError::Duplicate`], [`DbError::TooLong`], [`DbError::Deadlock`]; the engine has stopped.
    pub async fn insert(&mut self, tree: Tree, key: &[u8], value: &[u8]) -> Result<()> {
        self.change(tree, key, Change::Insert(value)).await
    }

    /// Replaces the value of a row.
    ///
    /// # Errors
    /// [`DbError::NotFound`], [`DbError::TooLong`], [`DbError::Deadlock`]; the engine has stopped.
    pub async fn update(&mut self, tree: Tree, key: &[u8], value: &[u8]) -> Result<()> {
        self.change(tree, key, Change::Update(value)).await
    }

    /// Deletes a row.
    ///
    /// # Errors
    /// [`DbError::NotFound`], [`DbError::Deadlock`]; the engine has stopped.
    pub async fn delete(&mut self, tree: Tree, key: &[u8]) -> Result<()> {
        self.change(tree, key, Change::Delete).await
    }

    async fn take_lock(&mut self, tree: Tree, key: &[u8]) -> Result<()> {
        self.shared().check_alive()?;
        let wish = self.shared().core.borrow_mut().locks.ask(self.id, tree.0, key);
        match wish {
            Wish::Granted => Ok(()),
            Wish::Deadlock => {
                self.shared().core.borrow_mut().metrics.deadlocks += 1;
                Err(DbError::Deadlock)
            }
            Wish::Wait(granted) => {
                self.shared().core.borrow_mut().metrics.lock_waits += 1;
                let answer = granted.await;
                self.shared().core.borrow_mut().locks.end_wait(self.id);
                // The holder of a lock releases it, unless the engine has stopped or is gone with all its locks.
                self.shared().check_alive()?;
                answer.map_err(|_| DbError::Closed)
            }
        }
    }

    async fn change(&mut self, tree: Tree, key: &[u8], change: Change<'_>) -> Result<()> {
        let value_bytes = match change {
            Change::Insert(value) | Change::Update(value) => value.len(),
            Change::Delete => 0,
        };
        let bytes_max = Page::row_bytes_max(self.db.config().page_bytes as usize) - UNDO_BYTES;
        let bytes = key.len() + value_bytes;
        if bytes > bytes_max {
            return Err(DbError::TooLong { bytes, bytes_max });
        }
        self.take_lock(tree, key).await?;
        self.shared().charge(self.db.config().costs.row).await;
        let slot = self.slot;
        let made = self.shared().run(|core| change_row(core, slot, tree.0, key, change)).await?;
        if let Some(bottom) = made {
            self.changed = true;
            self.bottom = self.bottom.or(bottom);
        }
        Ok(())
    }

    /// Whether there are changes to commit.
    pub fn has_changes(&self) -> bool {
        self.changed
    }

    /// Commits. When this returns, the changes are as durable as [`Config::commit`](crate::Config::commit) says.
    ///
    /// # Errors
    /// The engine has stopped; after the next open, either all changes are there or none.
    pub async fn commit(mut self) -> Result<()> {
        let mut end = None;
        if self.changed {
            let (slot, bottom) = (self.slot, self.bottom);
            end = Some(self.shared().run(|core| undo::forget(core, slot, bottom)).await?);
        }
        self.shared().core.borrow_mut().metrics.commits += 1;
        self.finish();
        match end {
            Some(end) => self.db.0.commit_log(end).await,
            None => Ok(()),
        }
    }

    /// Rolls all changes back.
    ///
    /// # Errors
    /// The engine has stopped; the next open rolls them back.
    pub async fn rollback(mut self) -> Result<()> {
        if self.changed {
            take_all_back(self.shared(), self.slot).await?;
        }
        self.shared().core.borrow_mut().metrics.rollbacks += 1;
        self.finish();
        Ok(())
    }

    /// Releases locks and slot.
    fn finish(&mut self) {
        self.ended = true;
        free(self.shared(), self.id, self.slot);
    }
}

fn free<F: Fs>(shared: &Shared<F>, id: TrxId, slot: u32) {
    {
        let mut core = shared.core.borrow_mut();
        core.locks.release(id);
        core.slots_free.push(slot);
    }
    shared.slot_freed.notify();
}

/// Rolls back the transaction of a slot.
pub(crate) async fn take_all_back<F: Fs>(shared: &Shared<F>, slot: u32) -> Result<()> {
    while shared.run(|core| undo::take_back(core, slot)).await? {}
    Ok(())
}

impl<F: Fs> Drop for Transaction<F> {
    fn drop(&mut self) {
        if self.ended {
            return;
        }
        let (db, id, slot, changed) = (self.db.clone(), self.id, self.slot, self.changed);
        self.db.0.handle.spawn(async move {
            // If the engine has stopped, the next open rolls it back.
            if !changed || take_all_back(&db.0, slot).await.is_ok() {
                db.0.core.borrow_mut().metrics.rollbacks += 1;
                free(&db.0, id, slot);
            }
        });
    }
}

/// Performs one change of a row with its undo record, as one mini-transaction. Returns `None` if there was nothing to
/// change, otherwise the first undo page beyond the slot's, if it was allocated now.
fn change_row(
    core: &mut Core,
    slot: u32,
    tree: PageNo,
    key: &[u8],
    change: Change<'_>,
) -> Step<Option<Option<PageNo>>> {
    let place = tree::find(core, tree, key)?;
    let old = place.slot.ok().map(|slot| core.pool.page(place.leaf).value(slot));
    let opposite = match (change, old) {
        (Change::Insert(_), None) => Opposite::Delete,
        (Change::Insert(_), Some(_)) => return Err(DbError::Duplicate.into()),
        (Change::Update(_) | Change::Delete, None) => return Err(DbError::NotFound.into()),
        (Change::Delete, Some(old)) => Opposite::Insert(old.to_vec()),
        (Change::Update(new), Some(old)) if old.len() == new.len() => {
            let Some((from, to)) = tree::difference(old, new) else { return Ok(None) };
            Opposite::Patch(from, old[from..to].to_vec())
        }
        (Change::Update(_), Some(old)) => Opposite::Update(old.to_vec()),
    };
    undo::prepare(core, slot, tree, tree::pages_needed(&place))?;
    core.begin()?;
    let bottom = undo::append(core, slot, &Undo { tree, key: key.to_vec(), opposite })?;
    match change {
        Change::Insert(value) => tree::insert(core, place, key, value),
        Change::Update(value) => tree::update(core, place, value),
        Change::Delete => tree::delete(core, place),
    }
    core.end();
    Ok(Some(bottom))
}
