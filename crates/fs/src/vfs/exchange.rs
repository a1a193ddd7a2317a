//! The exchange of two ranges of files: after a power cut all of it has happened, or nothing.
//!
//! Place in the data flow: FUSE and programs above; [`Fs::exchange_pages`] below, or, where data are journalled, [`Fs::write_set`] with what
//! each range has of the other one.
//!
//! Invariant: both files are locked alone, in ascending order of inodes, and no page of the ranges is in memory while they are exchanged.
//!
//! Deliberately absent: ranges of different lengths, with which files would exchange their ends.

use super::inode::Inode;
use super::io::PAGE;
use super::state::Vfs;
use super::types::*;
use super::{DirtyPage, Errno, File, Fs, SetPart};
use flashweir_core::Payload;
use std::rc::Rc;

impl<F: Fs> Vfs<F> {
    /// Exchanges `len` bytes from `at` on in one file with those from `other_at` on in another one, or elsewhere in the same one. It is
    /// durable when both files are synced; a power cut before that leaves all exchanged, or nothing.
    ///
    /// Errors: `EINVAL` if an offset is not at the beginning of a page, if the length is no number of pages and the ranges do not both
    /// reach the ends of their files, if a range goes beyond its file, if they overlap in one file, or if it is no regular file; `EBADF`
    /// if a file is not open for reading and writing, or open for appending; `EBUSY` if a file withholds what was written to it; `EXDEV`;
    /// `EFBIG`, `ENOSPC`: then nothing has changed; `EOPNOTSUPP` if the file system cannot.
    pub async fn exchange(
        &self,
        (one, at): (&File<F>, u64),
        (other, other_at): (&File<F>, u64),
        len: u64,
    ) -> Result<()> {
        let files = [(one, at), (other, other_at)];
        if files.iter().any(|(file, _)| !Rc::ptr_eq(&file.vfs().0, &self.0)) {
            return Err(Errno::EXDEV);
        }
        if files.iter().any(|(file, at)| file.kind().is_dir() || !at.is_multiple_of(PAGE)) {
            return Err(Errno::EINVAL);
        }
        let is_open = |file: &File<F>| {
            let flags = file.flags();
            flags.access.reads() && flags.access.writes() && !flags.append
        };
        if !files.iter().all(|(file, _)| is_open(file)) {
            return Err(Errno::EBADF);
        }
        self.check_writable()?;
        if !self.0.fs.has_sets() {
            return Err(Errno::EOPNOTSUPP);
        }
        let ends = at.checked_add(len).zip(other_at.checked_add(len)).ok_or(Errno::EINVAL)?;
        if one.ino() == other.ino() && at < ends.1 && other_at < ends.0 {
            return Err(Errno::EINVAL);
        }
        self.charge_call(0, 0).await;
        let start = self.now();
        let exchanged = self.exchange_locked(files, len).await;
        self.charge_wait(start).await;
        exchanged
    }

    async fn exchange_locked(&self, files: [(&File<F>, u64); 2], len: u64) -> Result<()> {
        let [(one, at), (other, other_at)] = files;
        let _locks = Inode::lock_both(one.inode().rc(), other.inode().rc()).await;
        let left = |(file, at): (&File<F>, u64)| file.size().checked_sub(at + len);
        let (Some(left_one), Some(left_other)) = (left(files[0]), left(files[1])) else {
            return Err(Errno::EINVAL);
        };
        if !len.is_multiple_of(PAGE) && (left_one, left_other) != (0, 0) {
            return Err(Errno::EINVAL);
        }
        if files.iter().any(|(file, _)| file.inode().rc().withholds()) {
            return Err(Errno::EBUSY);
        }
        if len == 0 {
            return Ok(());
        }
        one.end_privileges().await?;
        other.end_privileges().await?;
        let count = len.div_ceil(PAGE);
        let ranges = files.map(|(file, at)| (file.inode().rc(), (at / PAGE, at / PAGE + count)));
        let mut locks = Vec::new();
        for (inode, range) in ranges {
            locks.push(inode.ranges.lock(range.0, range.1, true).await);
            self.flush_range(inode, range).await?;
        }
        let (first, second) = ((one.ino(), at / PAGE), (other.ino(), other_at / PAGE));
        match self.0.fs.shares_pages() {
            true => self.0.fs.exchange_pages(first, second, count).await,
            false => self.exchange_by_journal(files, count).await,
        }?;
        self.note_written();
        for (file, at) in files {
            self.0.fs.wrote(file.ino(), at + len, self.timestamp());
        }
        Ok(())
    }

    /// Writes each of two ranges what the other one has, as one set.
    async fn exchange_by_journal(&self, files: [(&File<F>, u64); 2], count: u64) -> Result<()> {
        let [one, other] = files;
        if self.0.fs.at_once_max().is_some_and(|most| 2 * count > most) {
            return Err(Errno::EFBIG);
        }
        let mut parts: Vec<SetPart> = Vec::new();
        for ((to, to_at), (from, at)) in [(one, other), (other, one)] {
            let mut contents = vec![Payload::Zero; count as usize];
            self.0.fs.read_pages(from.ino(), at / PAGE, &mut contents).await?;
            let pages = (to_at / PAGE..).zip(contents).map(|(index, payload)| DirtyPage { index, payload });
            match parts.iter_mut().find(|part| part.ino == to.ino()) {
                Some(part) => part.pages.extend(pages),
                None => parts.push(SetPart {
                    ino: to.ino(),
                    pages: pages.collect(),
                    end: to.size(),
                    changed: Some(self.timestamp()),
                }),
            }
        }
        for part in &mut parts {
            part.pages.sort_unstable_by_key(|page| page.index);
        }
        self.0.fs.write_set(&parts).await
    }
}
