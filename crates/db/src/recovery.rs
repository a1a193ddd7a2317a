//! Recovers a consistent database from the files that a power cut left (database §7).
//!
//! Place in the data flow: [`Db::open`] runs the steps in this order:
//!
//! 1. `mend`: each torn page is replaced with its copy in the double-write area.
//! 2. `read_log`: reads from the checkpoint to the end; blocks are checked, incomplete groups are ignored.
//! 3. `redo`: changes that are newer than their page are repeated.
//! 4. `renew`: the incarnation of the log is incremented, so that old blocks after its end never continue it.
//! 5. `undo`: transactions with undo records did not commit and are rolled back.
//!
//! Invariant: a cut in any step leaves an equally good start for the next recovery: written pages are never older than
//! the checkpoint, and the checkpoint does not move before step 5.

use crate::config::Config;
use crate::core::Core;
use crate::db::{Db, Shared};
use crate::error::{DbError, Result};
use crate::log::{Log, Scan, UNIT};
use crate::log_io::place_of;
use crate::page::{Lsn, Page, PageNo};
use crate::redo::{Op, Reader};
use crate::transaction::take_all_back;
use crate::undo::page_of;
use flashweir_core::executor::Handle;
use flashweir_fs::vfs::{Fs, Process, Sink, Source, SyncKind};
use std::collections::BTreeMap;
use std::rc::Rc;

/// Number of bytes of the log that are read at once.
const CHUNK_BYTES: u64 = 256 << 10;

/// Counts of the recovery of a database.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Recovery {
    /// Number of torn pages restored from the double-write area.
    pub pages_mended: u64,
    /// Number of mini-transactions after the checkpoint.
    pub groups: u64,
    /// Number of bytes of the log after the checkpoint.
    pub log_bytes: u64,
    /// Number of changes of pages that were repeated.
    pub changes_redone: u64,
    /// Number of uncommitted transactions that were rolled back.
    pub rolled_back: u64,
}

/// A group of the log: start, end, operations.
type Group = (Lsn, Lsn, Vec<u8>);

impl<F: Fs> Db<F> {
    /// Opens the database in the directory `dir`, in whatever state a power cut left it.
    ///
    /// # Errors
    /// A configuration that is not the one of the database; [`DbError::Damaged`] if these are not the files of a
    /// database, or a page is torn and has no copy; a failed call of the file system.
    pub async fn open(
        process: &Process<F>,
        handle: Handle,
        dir: &str,
        config: Config,
    ) -> Result<(Self, Recovery)> {
        let mut shared = Shared::open_files(process, handle, dir, config, false).await?;
        let record = shared.read_checkpoint_record().await?;
        record.made_with.check(&shared.config)?;
        shared.checkpoints.set(record.sequence);
        let mut recovery = Recovery { pages_mended: shared.mend().await?, ..Recovery::default() };

        let (groups, end, unit) = shared.read_log(record.lsn, record.least).await?;
        (recovery.groups, recovery.log_bytes) = (groups.len() as u64, end - record.lsn);
        let ring = shared.config.ring_bytes();
        let log = Log::new(ring, end, &unit, record.incarnation + 1, record.lsn);
        shared.core = Core::new(&shared.config, log).into();
        let shared = Rc::new(shared);
        shared.is_recovering.set(true);
        shared.start().await?;
        for group in &groups {
            recovery.changes_redone += shared.redo(group).await?;
        }
        // Until it is written nobody else writes one.
        shared.write_checkpoint_record(record.lsn).await?;
        shared.is_recovering.set(false);
        for slot in 0..shared.config.transactions_max {
            if shared.has_undo(slot).await? {
                take_all_back(&shared, slot).await?;
                recovery.rolled_back += 1;
            }
        }
        Ok((Self(shared), recovery))
    }
}

impl<F: Fs> Shared<F> {
    /// Replaces torn pages with their copies. Returns their number.
    async fn mend(&self) -> Result<u64> {
        let Some(area) = &self.double_write else { return Ok(0) };
        let page_bytes = u64::from(self.config.page_bytes);
        // A batch that is shorter than the one before leaves older copies after its end.
        let mut copies: BTreeMap<PageNo, Page> = BTreeMap::new();
        for place in 0..u64::from(self.config.batch_pages) {
            let mut page = Page::blank(page_bytes as usize);
            area.read(place * page_bytes, Sink::bytes(page.bytes_mut())).await?;
            let number = page.number();
            let is_newest = copies.get(&number).is_none_or(|other| other.lsn() < page.lsn());
            if page.is_sound(number) && is_newest {
                copies.insert(number, page);
            }
        }
        let mut mended = 0;
        for (number, page) in copies {
            let (_, is_whole) = self.read_page(number).await?;
            if !is_whole {
                self.write_data(number, page.bytes()).await?;
                mended += 1;
            }
        }
        self.sync_data().await?;
        if !self.config.double_write.has_area() {
            // From here on pages change without copies, so old copies must not be found later.
            area.write(0, Source::zeros(u64::from(self.config.batch_pages) * page_bytes)).await?;
            area.sync(SyncKind::Data).await?;
        }
        Ok(mended)
    }

    /// Returns all groups from the checkpoint on, the end of the log, and the unit of the log that contains the end.
    async fn read_log(&self, checkpoint: Lsn, least: u32) -> Result<(Vec<Group>, Lsn, Vec<u8>)> {
        let mut scan = Scan::new(checkpoint, least);
        let mut groups = Vec::new();
        let mut at = checkpoint - checkpoint % UNIT;
        let last = at + self.config.ring_bytes();
        while !scan.has_ended() && at < last {
            let (file, offset, room) = place_of(&self.config, at);
            let mut bytes = vec![0; CHUNK_BYTES.min(room).min(last - at) as usize];
            self.logs[file].read(offset, Sink::bytes(&mut bytes)).await?;
            scan.feed(at, &bytes);
            groups.extend(std::iter::from_fn(|| scan.next_group()));
            at += bytes.len() as u64;
        }
        let end = scan.lsn();
        let (file, offset, _) = place_of(&self.config, end - end % UNIT);
        let mut unit = vec![0; UNIT as usize];
        self.logs[file].read(offset, Sink::bytes(&mut unit)).await?;
        Ok((groups, end, unit))
    }

    /// Applies the changes of a group to those of its pages that are older. Returns the number of changes applied.
    async fn redo(&self, (start, end, bytes): &Group) -> Result<u64> {
        let damaged = |what: String| DbError::Damaged(format!("the log at {start}: {what}"));
        let mut ops = Vec::new();
        let mut reader = Reader(bytes);
        while !reader.0.is_empty() {
            ops.push(Op::decode(&mut reader).ok_or_else(|| damaged("a change that is none".into()))?);
        }
        let mut numbers: Vec<PageNo> = ops.iter().map(|(number, _)| *number).collect();
        numbers.sort_unstable();
        numbers.dedup();
        for &number in &numbers {
            // A load that was cut leaves pages half written under numbers that are given out again.
            let first = ops.iter().find(|(of, _)| *of == number);
            self.fetch_for(number, matches!(first, Some((_, Op::Init { .. })))).await?;
        }
        let mut core = self.core.borrow_mut();
        let older = |core: &Core, number| core.pool.page(number).lsn() < *end;
        let stale: Vec<PageNo> = numbers.iter().copied().filter(|&number| older(&core, number)).collect();
        let mut changes = 0;
        for (number, op) in ops {
            if stale.binary_search(&number).is_err() {
                continue;
            }
            let page = core.pool.page_mut(number);
            if !op.is_possible(page) {
                return Err(damaged(format!("it does not fit to page {number}")));
            }
            op.apply(number, page);
            changes += 1;
        }
        for number in stale {
            core.pool.note_change(number, (*start, *end));
        }
        for number in numbers {
            core.pool.unpin(number);
        }
        let should_clean = core.should_clean();
        drop(core);
        if should_clean {
            self.work.notify();
        }
        self.frames_freed.notify();
        Ok(changes)
    }

    /// Whether the slot has an uncommitted transaction.
    async fn has_undo(&self, slot: u32) -> Result<bool> {
        self.run(|core| {
            let page = core.page(page_of(slot))?;
            Ok(page.count() > 0 || page.next() != 0)
        })
        .await
    }
}
