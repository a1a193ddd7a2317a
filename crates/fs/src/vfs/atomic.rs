//! Atomic files (share §7): what is written to them stays in memory until a sync releases it, of all files of the call in one
//! transaction of the file system.
//!
//! Place in the data flow: `io` withholds the pages of such files and their growth; fsync, fdatasync, fbarrier and
//! [`Vfs::syncv`] release them here to [`Fs::write_set`].
//!
//! Invariants:
//! 1. A file withholds from its first atomic opening on, through whichever of its open files it is written, and until nothing is
//!    withheld and no atomic opening is left. Its pages are clean, being read, or withheld; it has no dirty ones.
//! 2. A set is taken and handed over with the locks of all its files, which are taken in ascending order of inodes: it has no half
//!    of a write.
//! 3. When a set is refused, everything that was withheld still is.
//!
//! Deliberately absent: withheld names, attributes and cuts. A shorter length takes effect at once; abort does not undo it.

use super::inode::{Inode, Withheld};
use super::io::PAGE;
use super::pages::State;
use super::state::Vfs;
use super::types::*;
use super::{Errno, File, Fs, OpenFlags, SetPart, SyncKind, WriteCause};
use std::rc::Rc;

impl<F: Fs> Vfs<F> {
    /// Errors: `EOPNOTSUPP` if an atomic file is asked for and the file system has no sets; `EINVAL` if it is not opened
    /// for writing, or each write is to be durable at once.
    pub(crate) fn check_atomic(&self, flags: OpenFlags) -> Result<()> {
        match flags.atomic {
            true if !flags.access.writes() || flags.sync.is_some() => Err(Errno::EINVAL),
            true if !self.0.fs.has_sets() => Err(Errno::EOPNOTSUPP),
            _ => Ok(()),
        }
    }

    /// Whether a file is open as atomic.
    pub fn is_atomic(&self, ino: Ino) -> bool {
        self.0.inodes.borrow().get(&ino).is_some_and(|inode| inode.atomic_users.get() > 0)
    }

    /// Whether something that was written to a file is withheld.
    pub fn has_withheld(&self, ino: Ino) -> bool {
        self.0.inodes.borrow().get(&ino).is_some_and(|inode| inode.withheld.get().is_some())
    }

    /// An open file begins to withhold. It waits for a write that is under way, and writes what is dirty.
    pub(crate) async fn begin_atomic(&self, inode: &Rc<Inode>) -> Result<()> {
        let _lock = inode.lock.alone().await;
        if !inode.withholds() {
            self.write_range(inode, (0, u64::MAX), WriteCause::Sync).await?;
        }
        inode.atomic_users.set(inode.atomic_users.get() + 1);
        Ok(())
    }

    /// The attributes as callers see them: withheld growth counts.
    pub(crate) fn seen(&self, attr: Attr) -> Attr {
        if !self.0.fs.has_sets() {
            return attr;
        }
        let inodes = self.0.inodes.borrow();
        let inode = inodes.get(&attr.ino);
        let Some((size, withheld)) = inode.and_then(|inode| Some((inode.size.get(), inode.withheld.get()?)))
        else {
            return attr;
        };
        let time = |before: Timestamp| withheld.changed.map_or(before, |changed| before.max(changed));
        Attr { size, mtime: time(attr.mtime), ctime: time(attr.ctime), ..attr }
    }

    /// syncv: releases what is withheld of all these files in one transaction, and makes it durable. After a power cut all of it is
    /// there, or nothing.
    ///
    /// Errors: `EFBIG` if the set is larger than a transaction takes, `ENOSPC` if there is no room for it; then nothing has changed,
    /// and everything is withheld as before. `EINVAL` if a file was not opened as atomic, `EXDEV` if it is of another mount.
    pub async fn syncv(&self, files: &[&File<F>], kind: SyncKind) -> Result<()> {
        if files.iter().any(|file| !Rc::ptr_eq(&file.vfs().0, &self.0)) {
            return Err(Errno::EXDEV);
        }
        if files.iter().any(|file| !file.flags().atomic) {
            return Err(Errno::EINVAL);
        }
        self.charge_call(0, 0).await;
        self.count(|count| count.syncs += 1);
        let start = self.now();
        let mut inodes: Vec<Rc<Inode>> = files.iter().map(|file| Rc::clone(file.inode().rc())).collect();
        inodes.sort_by_key(|inode| inode.ino);
        inodes.dedup_by_key(|inode| inode.ino);
        let result = match self.release_set(&inodes).await {
            Ok(()) if self.0.options.syncs_order => {
                let mut result = Ok(());
                for inode in &inodes {
                    result = result.and(self.order_inode(inode, kind.into()).await);
                }
                result
            }
            Ok(()) => self.sync_inodes(&inodes, kind).await,
            refused => refused,
        };
        self.charge_wait(start).await;
        files.iter().fold(result, |result, file| file.told(result))
    }

    /// Hands everything that is withheld of these inodes, in ascending order, to the file system in one step. They are not yet
    /// durable.
    pub(crate) async fn release_set(&self, inodes: &[Rc<Inode>]) -> Result<()> {
        if inodes.iter().all(|inode| inode.withheld.get().is_none()) {
            return Ok(());
        }
        let mut locks = Vec::new();
        for inode in inodes {
            locks.push(inode.lock.alone().await);
        }
        let (mut batches, mut parts) = (Vec::new(), Vec::new());
        for inode in inodes {
            let Some(withheld) = inode.withheld.get() else { continue };
            let mut indices = Vec::new();
            self.0.pages.borrow().withheld_indices(inode.owner, &mut indices);
            let mut batch = self.begin_batch(inode, &indices, State::Withheld);
            let (pages, end) = (std::mem::take(&mut batch.pages), inode.size.get());
            parts.push(SetPart { ino: inode.ino, pages, end, changed: withheld.changed });
            batches.push((batch, indices));
        }
        let result = self.0.fs.write_set(&parts).await;
        self.note_written();
        for ((mut batch, indices), part) in batches.into_iter().zip(parts) {
            batch.pages = part.pages;
            if result.is_ok() {
                batch.inode.withheld.set(None);
                self.end_batch(&mut batch, Ok(()), WriteCause::Sync)?;
                continue;
            }
            drop(batch);
            let mut pages = self.0.pages.borrow_mut();
            indices.iter().for_each(|(_, slot)| pages.withhold(*slot, self.now()));
        }
        result
    }

    /// Forgets what is withheld of an inode; the caller has its lock alone.
    pub(crate) async fn roll_back(&self, inode: &Rc<Inode>) {
        let Some(Withheld { size, .. }) = inode.withheld.take() else { return };
        let mut indices = Vec::new();
        {
            let mut pages = self.0.pages.borrow_mut();
            pages.withheld_indices(inode.owner, &mut indices);
            indices.iter().for_each(|(_, slot)| pages.remove(*slot));
        }
        inode.size.set(size);
        // Pages behind the end that were read meanwhile.
        self.drop_pages(inode, (size.div_ceil(PAGE), u64::MAX)).await;
    }

    /// Forgets what is withheld of all inodes: the mount ends, and nobody has asked to keep it.
    pub(crate) async fn roll_back_all(&self) {
        let inodes: Vec<Rc<Inode>> = self.0.inodes.borrow().values().cloned().collect();
        for inode in inodes.iter().filter(|inode| inode.withheld.get().is_some()) {
            let _lock = inode.lock.alone().await;
            self.roll_back(inode).await;
            // There is no caller that could get the error; recovery finds the space.
            let _ = self.settle(inode).await;
        }
    }

    /// Changes the size of a file that withholds; see [`Vfs::resize`].
    pub(crate) async fn resize_withheld(
        &self,
        inode: &Rc<Inode>,
        size: u64,
        changes: &SetAttr,
    ) -> Result<Attr> {
        let (before, withheld) = (inode.size.get(), inode.withheld.get());
        let below = withheld.map_or(before, |withheld| withheld.size);
        if size < before {
            if !size.is_multiple_of(PAGE) {
                // This page is read first, so that an error is found before anything is lost.
                self.fill(inode, (size / PAGE, size / PAGE + 1)).await?;
            }
            inode.size.set(size);
        } else {
            self.end_last_page(inode, (size, size)).await?;
        }
        // The change has the time.
        inode.withheld.set(Some(Withheld { size: below, changed: None }));
        let changes = SetAttr { size: (size < below).then_some(size), ..*changes };
        let attr = self.0.fs.setattr(inode.ino, &changes).await;
        let attr = attr.inspect_err(|_| {
            inode.size.set(before);
            // The last page may be withheld now.
            inode.withheld.set(withheld.or(Some(Withheld { size: before, changed: None })));
        })?;
        inode.withheld.set(Some(Withheld { size: below.min(size), changed: None }));
        if size < before {
            // Not before: what is withheld there belongs to the set as long as the file has not become shorter.
            self.drop_pages(inode, (size.div_ceil(PAGE), u64::MAX)).await;
            self.zero_last_page(inode, size, false).await?;
        }
        inode.size.set(size);
        Ok(self.seen(attr))
    }
}

impl<F: Fs> File<F> {
    /// Hands what is withheld of this file to the file system: a power cut shows all of it or nothing, and the next sync makes it
    /// durable. Errors: as [`Vfs::syncv`].
    pub async fn release(&self) -> Result<()> {
        self.vfs().release_set(std::slice::from_ref(self.inode().rc())).await
    }

    /// Forgets everything that was written to this atomic file, through whichever of its open files, since the last sync; the length
    /// is again that of then, or a shorter one that was set meanwhile; what was allocated behind it stays. `EINVAL` if it was not opened as
    /// atomic.
    pub async fn abort(&self) -> Result<()> {
        if !self.flags().atomic {
            return Err(Errno::EINVAL);
        }
        self.vfs().charge_call(0, 0).await;
        let _lock = self.inode().lock.alone().await;
        self.vfs().roll_back(self.inode().rc()).await;
        Ok(())
    }
}
