//! Checks every page of a database and reports the faults.
//!
//! Place in the data flow: called by tests after power cuts, and by any user in doubt. It reads pages that are not in
//! memory from the data file and thereby verifies their checksums.
//!
//! Deliberately absent: repair. The database must not change meanwhile.

use crate::core::HEAD_PAGE;
use crate::db::Db;
use crate::error::{DbError, Result};
use crate::page::{FileNo, Kind, Page, PageNo, file_of, head_of, index_of};
use crate::undo::page_of;
use flashweir_fs::vfs::Fs;
use std::collections::{BTreeMap, BTreeSet};

/// Result of a check.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct CheckReport {
    /// Number of rows of each tree.
    pub rows: BTreeMap<String, u64>,
    /// Number of pages that belong to trees.
    pub tree_pages: u64,
    /// Number of pages in the list of free ones.
    pub free_pages: u64,
    /// Number of pages without an owner: those of interrupted loads.
    pub lost_pages: u64,
    /// Faults, each once.
    pub faults: Vec<String>,
}

impl CheckReport {
    /// Whether there are no faults.
    pub fn is_good(&self) -> bool {
        self.faults.is_empty()
    }
}

/// A page that a branch refers to, and the conditions that must hold there.
struct Visit {
    number: PageNo,
    /// Expected level; `None` for a root.
    level: Option<u8>,
    /// The lowest key that it may have, and the first key that it must not have.
    bounds: (Vec<u8>, Option<Vec<u8>>),
}

struct Check<'a, F: Fs> {
    db: &'a Db<F>,
    report: CheckReport,
    seen: BTreeSet<PageNo>,
    /// Pages of each data file.
    pages: Vec<u32>,
}

impl<F: Fs> Db<F> {
    /// Checks all trees, undo pages and free pages: checksums, the order of keys, levels, and that each page has one
    /// owner.
    ///
    /// # Errors
    /// A page that cannot be read; the engine has stopped. Faults of pages are in the report instead.
    pub async fn check(&self) -> Result<CheckReport> {
        let mut check =
            Check { db: self, report: CheckReport::default(), seen: BTreeSet::new(), pages: vec![] };
        check.run().await?;
        Ok(check.report)
    }
}

impl<F: Fs> Check<'_, F> {
    fn fault(&mut self, what: String) {
        self.report.faults.push(what);
    }

    /// Returns the page, if it is intact and has no other owner.
    async fn take(&mut self, number: PageNo, by: &str) -> Result<Option<Page>> {
        let pages = self.pages.get(usize::from(file_of(number))).copied().unwrap_or(0);
        if index_of(number) >= pages {
            self.fault(format!("{by} has page {number}: data file {} has {pages}", file_of(number)));
            return Ok(None);
        }
        if !self.seen.insert(number) {
            self.fault(format!("{by} has page {number}, which something else has too"));
            return Ok(None);
        }
        let page = match self.db.0.run(|core| core.page(number).cloned()).await {
            Ok(page) => page,
            Err(DbError::Damaged(what)) => {
                self.fault(what);
                return Ok(None);
            }
            Err(error) => return Err(error),
        };
        if let Some(fault) = page.fault() {
            self.fault(format!("page {number} of {by}: {fault}"));
            return Ok(None);
        }
        Ok(Some(page))
    }

    async fn run(&mut self) -> Result<()> {
        let mut heads = Vec::new();
        for file in 0..=self.last_file().await? {
            // The head itself says how many pages there are.
            self.pages.push(1);
            let Some(head) = self.take(head_of(file), "the head").await? else { continue };
            if head.kind() != Some(Kind::Head) {
                self.fault(format!("page {} is not the head of a data file", head_of(file)));
                continue;
            }
            self.pages[usize::from(file)] = head.pages();
            heads.push(head);
        }
        let Some(head) = heads.first().filter(|head| head.number() == HEAD_PAGE) else { return Ok(()) };
        for slot in 0..self.db.config().transactions_max {
            self.undo_pages(page_of(slot)).await?;
        }
        for slot in 0..head.count() {
            let name = String::from_utf8_lossy(head.key(slot)).into_owned();
            let rows = self.tree(&name, head.child(slot)).await?;
            self.report.rows.insert(name, rows);
        }
        for head in &heads {
            let mut next = head.next();
            while next != 0 {
                let Some(page) = self.take(next, "the list of free pages").await? else { break };
                self.report.free_pages += 1;
                next = page.next();
            }
        }
        let pages: u64 = self.pages.iter().map(|pages| u64::from(*pages)).sum();
        self.report.lost_pages = pages - self.seen.len() as u64;
        Ok(())
    }

    /// Returns the last data file that has pages. The newest has none if a call that made it was interrupted.
    async fn last_file(&self) -> Result<FileNo> {
        let newest = (self.db.0.data.borrow().len() - 1) as FileNo;
        let is_blank = self.db.0.run(|core| Ok(core.page(head_of(newest))?.is_blank())).await?;
        Ok(if is_blank { newest - 1 } else { newest })
    }

    async fn undo_pages(&mut self, first: PageNo) -> Result<()> {
        let mut next = first;
        loop {
            let Some(page) = self.take(next, "undo").await? else { return Ok(()) };
            if page.kind() != Some(Kind::Undo) {
                self.fault(format!("page {next} is not one of undo"));
            }
            next = page.next();
            if next == 0 {
                return Ok(());
            }
        }
    }

    /// Checks a tree; returns the number of its rows.
    async fn tree(&mut self, name: &str, root: PageNo) -> Result<u64> {
        let mut rows = 0;
        let mut visits = vec![Visit { number: root, level: None, bounds: (Vec::new(), None) }];
        while let Some(Visit { number, level, bounds: (low, high) }) = visits.pop() {
            let Some(page) = self.take(number, name).await? else { continue };
            self.report.tree_pages += 1;
            let is_root = level.is_none();
            if page.kind() != Some(Kind::Tree) || level.is_some_and(|level| level != page.level()) {
                self.fault(format!("page {number} does not belong where `{name}` has it"));
                continue;
            }
            if page.count() == 0 && !(is_root && page.level() == 0) {
                self.fault(format!("page {number} of `{name}` is empty"));
            }
            // The key of a branch's slot 0 stands for the lowest one.
            let first = usize::from(page.level() > 0);
            for slot in first..page.count() {
                let key = page.key(slot);
                let in_order = slot == first || page.key(slot - 1) < key;
                if !in_order || key < &low[..] || high.as_deref().is_some_and(|high| key >= high) {
                    self.fault(format!(
                        "page {number} of `{name}`: the key of record {slot} is out of order"
                    ));
                }
            }
            if page.level() == 0 {
                rows += page.count() as u64;
                continue;
            }
            for slot in 0..page.count() {
                if page.value(slot).len() != 4 {
                    self.fault(format!("page {number} of `{name}`: record {slot} leads nowhere"));
                    continue;
                }
                let from = if slot == 0 { low.clone() } else { page.key(slot).to_vec() };
                let to =
                    if slot + 1 < page.count() { Some(page.key(slot + 1).to_vec()) } else { high.clone() };
                let level = Some(page.level() - 1);
                visits.push(Visit { number: page.child(slot), level, bounds: (from, to) });
            }
        }
        Ok(rows)
    }
}
