//! Bulk loading of a tree from rows in the order of their keys.
//!
//! Place in the data flow: it makes the first contents of a database; pages go to the data file in long writes,
//! bypassing log and pool.
//!
//! Invariants: the new pages are durable before one mini-transaction attaches them to the tree, so a cut leaves the
//! tree empty or complete; pages of an interrupted load are lost, and the check counts them.

use crate::db::{Db, Shared, Tree};
use crate::error::{DbError, Result};
use crate::page::{FILE_PAGES_MAX, Kind, Page, PageNo, RECORD_BYTES, file_of, head_for};
use crate::redo::Op;
use crate::undo::UNDO_BYTES;
use flashweir_fs::vfs::Fs;
use std::collections::BTreeMap;
use std::fmt;

/// Number of full pages that are written together.
const BATCH_PAGES: usize = 64;

/// Fill factor of a page in sixteenths, as in InnoDB, so that the first changes do not split it.
const FILL_SIXTEENTHS: usize = 15;

/// Builds one tree (see [`Db::load`]).
pub struct Loader<F: Fs> {
    db: Db<F>,
    tree: Tree,
    /// The page that is being filled on each level, from the leaves up.
    levels: Vec<Page>,
    full: BTreeMap<PageNo, Page>,
    last_key: Option<Vec<u8>>,
    rows: u64,
}

impl<F: Fs> fmt::Debug for Loader<F> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Loader").field("tree", &self.tree).field("rows", &self.rows).finish_non_exhaustive()
    }
}

impl<F: Fs> Db<F> {
    /// Fills an empty tree with rows in ascending order of their keys, much faster than transactions would. The tree
    /// stays empty until [`Loader::finish`]. Loading takes no CPU time.
    ///
    /// # Errors
    /// The tree has rows; the engine has stopped.
    pub async fn load(&self, tree: Tree) -> Result<Loader<F>> {
        let is_empty = self
            .0
            .run(|core| {
                let root = core.page(tree.0)?;
                Ok(root.level() == 0 && root.count() == 0)
            })
            .await?;
        if !is_empty {
            let name = self.trees().into_iter().find(|(_, other)| *other == tree);
            let name = name.map_or_else(String::new, |(name, _)| name);
            return Err(DbError::Tree { name, expected: "an empty one to load" });
        }
        Ok(Loader {
            db: self.clone(),
            tree,
            levels: Vec::new(),
            full: BTreeMap::new(),
            last_key: None,
            rows: 0,
        })
    }
}

impl<F: Fs> Loader<F> {
    fn shared(&self) -> &Shared<F> {
        &self.db.0
    }

    /// Adds the next row, whose key must be higher than that of the last one.
    ///
    /// # Errors
    /// [`DbError::Duplicate`] if it is not; [`DbError::TooLong`]; the engine has stopped.
    pub async fn add(&mut self, key: &[u8], value: &[u8]) -> Result<()> {
        let bytes_max = Page::row_bytes_max(self.db.config().page_bytes as usize) - UNDO_BYTES;
        let bytes = key.len() + value.len();
        if bytes > bytes_max {
            return Err(DbError::TooLong { bytes, bytes_max });
        }
        match &mut self.last_key {
            Some(last) if &last[..] >= key => return Err(DbError::Duplicate),
            Some(last) => {
                last.clear();
                last.extend_from_slice(key);
            }
            None => self.last_key = Some(key.to_vec()),
        }
        self.rows += 1;
        let mut value = value.to_vec();
        let mut level = 0;
        // A full page is entered in the level above under its first key.
        while !self.has_room(level, key.len() + value.len() + RECORD_BYTES) {
            let next = self.new_page(level).await?;
            let number = next.number();
            let mut next = next;
            next.insert(0, key, &value);
            if level == self.levels.len() {
                self.levels.push(next);
                if level == 0 {
                    return Ok(());
                }
                // The first page of the level below gets its entry too.
                let first = self.first_below(level);
                let top = self.levels.last_mut().expect("it was pushed above");
                top.insert(0, &[], &first.to_le_bytes());
                return Ok(());
            }
            let full = std::mem::replace(&mut self.levels[level], next);
            self.full.insert(full.number(), full);
            value = number.to_le_bytes().to_vec();
            level += 1;
        }
        let page = &mut self.levels[level];
        page.insert(page.count(), key, &value);
        if self.full.len() >= BATCH_PAGES {
            self.write_full().await?;
        }
        Ok(())
    }

    fn has_room(&self, level: usize, bytes: usize) -> bool {
        let Some(page) = self.levels.get(level) else { return false };
        let room = Page::room_of(self.db.config().page_bytes as usize);
        let used = room - page.free_bytes();
        used + bytes <= room / 16 * FILL_SIXTEENTHS || page.count() < 2
    }

    /// Returns the first page of the level below `level`; it has just become full and is the only one there before.
    fn first_below(&self, level: usize) -> PageNo {
        let wanted = (level - 1) as u8;
        let full = self.full.values().rev().find(|page| page.level() == wanted);
        full.expect("the page below became full before this level was made").number()
    }

    /// Allocates a page number that is never given to another page.
    async fn new_page(&mut self, level: usize) -> Result<Page> {
        let head = head_for(self.tree.0);
        let attempt = |core: &mut crate::core::Core| {
            let pages = core.page(head)?.pages();
            if pages == FILE_PAGES_MAX {
                return Err(DbError::Full(file_of(head)).into());
            }
            core.begin()?;
            core.apply(head, Op::SetPages { pages: pages + 1 });
            core.end();
            Ok(head + pages)
        };
        let number = self.shared().run(attempt).await?;
        // The page's position stays 0: the log is not durable yet. If a cut reverts the allocation, the next owner of
        // the number must find a page that is older than all of its own changes.
        Ok(Page::of(Kind::Tree, level as u8, number, self.db.config().page_bytes as usize))
    }

    /// Writes full pages, adjacent ones together.
    async fn write_full(&mut self) -> Result<()> {
        let mut full: Vec<(PageNo, Page)> = std::mem::take(&mut self.full).into_iter().collect();
        let (count, limit) = (full.len() as u64, self.shared().set_pages());
        while !full.is_empty() {
            let rest = full.split_off(limit.min(full.len()));
            let (shared, written) = (self.shared(), self.write_set(full));
            match shared.withholds() {
                // A file does so for the cleaner, too, and for other loaders.
                true => shared.alone(written).await?,
                false => written.await.inspect_err(|error| shared.fail(error.clone()))?,
            }
            full = rest;
        }
        self.shared().core.borrow_mut().metrics.loaded_pages += count;
        Ok(())
    }

    /// Writes pages, in the order of their numbers, and hands them to the file system.
    async fn write_set(&self, pages: Vec<(PageNo, Page)>) -> Result<()> {
        let shared = self.shared();
        let mut run: Vec<u8> = Vec::new();
        let (mut first, mut next) = (0, 0);
        for (number, mut page) in pages {
            page.seal();
            if number != next && !run.is_empty() {
                shared.write_data(first, &run).await?;
                run.clear();
            }
            if run.is_empty() {
                first = number;
            }
            run.extend_from_slice(page.bytes());
            next = number + 1;
        }
        if !run.is_empty() {
            shared.write_data(first, &run).await?;
        }
        shared.release(self.tree.0).await
    }

    /// Attaches the rows to the tree. They are durable when this returns. Returns the number of rows.
    ///
    /// # Errors
    /// The engine has stopped.
    pub async fn finish(mut self) -> Result<u64> {
        let Some(top) = self.levels.pop() else { return Ok(0) };
        for page in self.levels.drain(..) {
            self.full.insert(page.number(), page);
        }
        self.write_full().await?;
        let shared = self.shared();
        let synced = shared.sync_files(&[file_of(self.tree.0)]).await;
        synced.inspect_err(|error| shared.fail(error.clone()))?;
        let root = self.tree.0;
        let attempt = |core: &mut crate::core::Core| {
            core.page(root)?;
            core.page(head_for(root))?;
            if core.pool.free_frames() == 0 {
                return Err(crate::core::Halt::NoFrames(1));
            }
            core.begin()?;
            core.apply(root, Op::Init { kind: Kind::Tree, level: top.level() });
            for slot in 0..top.count() {
                core.apply(root, Op::Insert { slot, key: top.key(slot), value: top.value(slot) });
            }
            // The root keeps its page; the page that was filled in its place becomes free.
            core.pool.put(top.number(), Page::blank(core.pool.page_bytes()));
            core.free(top.number());
            Ok(core.end())
        };
        let end = shared.run(attempt).await?;
        shared.write_log(end, true).await?;
        Ok(self.rows)
    }
}
