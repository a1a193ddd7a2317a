//! copy_file_range: whole pages by SHARE where the file system can, the rest through the page cache.
//!
//! Place in the data flow: FUSE and programs above; [`Fs::share_pages`] below for pages that lie alike in both files.
//!
//! Invariants:
//! 1. Both files are locked alone, in ascending order of inodes. No page of the source is dirty and none of the target is in memory
//!    while a SHARE is under way.
//! 2. What is copied is durable with the target's next sync, as written data are; at once where the target was opened with O_SYNC or O_DSYNC.
//!
//! Deliberately absent: atomicity. As with write, a power cut may leave a part of a copy.

use super::buffer::{Sink, Source};
use super::file::TRANSFER_BYTES_MAX;
use super::inode::Inode;
use super::io::PAGE;
use super::state::Vfs;
use super::types::*;
use super::{Errno, File, Fs, WriteCause};
use std::rc::Rc;

/// Most bytes that pass through memory at once.
const CHUNK_BYTES: u64 = 1 << 20;
/// Most pages that are shared with the locks held once.
const SHARED_PAGES: u64 = 1 << 14;

impl<F: Fs> Vfs<F> {
    /// copy_file_range: copies up to `len` bytes from `at` on in one file to `to_at` on in another one, or elsewhere in the same one.
    /// Returns the number of bytes: less at the end of the source, or after an error in the middle.
    ///
    /// Errors: `EBADF` if the source is not open for reading, or the target not for writing, or for appending; `EISDIR`; `EXDEV` if they are
    /// of different mounts; `EINVAL` if the ranges overlap in one file; `EFBIG`, `ENOSPC`.
    pub async fn copy_range(
        &self,
        (from, at): (&File<F>, u64),
        (to, to_at): (&File<F>, u64),
        len: u64,
    ) -> Result<u64> {
        if [from, to].iter().any(|file| !Rc::ptr_eq(&file.vfs().0, &self.0)) {
            return Err(Errno::EXDEV);
        }
        if from.kind().is_dir() || to.kind().is_dir() {
            return Err(Errno::EISDIR);
        }
        if !from.flags().access.reads() || !to.flags().access.writes() || to.flags().append {
            return Err(Errno::EBADF);
        }
        self.check_writable()?;
        let len = len.min(TRANSFER_BYTES_MAX);
        at.checked_add(len).zip(to_at.checked_add(len)).ok_or(Errno::EOVERFLOW)?;
        self.charge_call(0, 0).await;
        let start = self.now();
        let mut copied = self.copy_locked((from, at), (to, to_at), len).await;
        if let (Ok(copied_bytes @ 1..), Some(kind)) = (copied, to.flags().sync) {
            copied = to.sync_written(to_at, copied_bytes, kind).await.map(|()| copied_bytes);
        }
        self.charge_wait(start).await;
        copied
    }

    async fn copy_locked(
        &self,
        (from, at): (&File<F>, u64),
        (to, to_at): (&File<F>, u64),
        len: u64,
    ) -> Result<u64> {
        let _locks = Inode::lock_both(from.inode().rc(), to.inode().rc()).await;
        let len = len.min(from.size().saturating_sub(at));
        if len == 0 {
            return Ok(0);
        }
        let room = self.0.limits.file_bytes_max.checked_sub(to_at).filter(|room| *room > 0);
        let len = len.min(room.ok_or(Errno::EFBIG)?);
        if from.ino() == to.ino() && at < to_at + len && to_at < at + len {
            return Err(Errno::EINVAL);
        }
        to.end_privileges().await?;
        let mut done = 0;
        while done < len {
            match self.copy_some((from, at + done), (to, to_at + done), len - done).await {
                // The source ended meanwhile, or there is no room for more.
                Ok(0) => break,
                Ok(copied) => done += copied,
                Err(errno) if done == 0 => return Err(errno),
                Err(_) => break,
            }
        }
        Ok(done)
    }

    /// Copies the first bytes of a range: as many pages as can be shared, or what passes through memory.
    async fn copy_some(
        &self,
        (from, at): (&File<F>, u64),
        (to, to_at): (&File<F>, u64),
        len: u64,
    ) -> Result<u64> {
        let (source, target) = (from.inode().rc(), to.inode().rc());
        let is_alike = at % PAGE == to_at % PAGE && !source.withholds() && !target.withholds();
        let may_share = is_alike && self.0.fs.shares_pages();
        // Up to where pages begin, or the next one that may be shared.
        let mut most = CHUNK_BYTES;
        if may_share {
            let count = (len / PAGE).min(SHARED_PAGES);
            if at.is_multiple_of(PAGE) && count > 0 {
                let shared = self.share_range((from, at / PAGE), (to, to_at / PAGE), count).await?;
                if shared > 0 {
                    return Ok(shared * PAGE);
                }
            }
            most = PAGE - at % PAGE;
        }
        let mut bytes = vec![0; len.min(most) as usize];
        let want = (bytes.len() as u64).div_ceil(PAGE) + 1;
        let read = self.read_buffered(source, at, &mut Sink::bytes(&mut bytes), want).await?;
        if read == 0 {
            return Ok(0);
        }
        self.write_buffered(target, to_at, &Source::bytes(&bytes[..read as usize])).await
    }

    /// Lets pages of one file take over those of another one. Returns their number; 0 if the first one has to be copied.
    async fn share_range(
        &self,
        (from, first): (&File<F>, u64),
        (to, to_first): (&File<F>, u64),
        count: u64,
    ) -> Result<u64> {
        let (source, target) = (from.inode().rc(), to.inode().rc());
        let (range, to_range) = ((first, first + count), (to_first, to_first + count));
        self.write_range(source, range, WriteCause::Sync).await?;
        self.end_last_page(target, (to_first * PAGE, (to_first + count) * PAGE)).await?;
        let _ranges = (
            source.ranges.lock(range.0, range.1, false).await,
            target.ranges.lock(to_range.0, to_range.1, true).await,
        );
        self.flush_range(target, to_range).await?;
        let (ino, to_ino) = (source.ino, target.ino);
        let shared = self.0.fs.share_pages((ino, first), (to_ino, to_first), count).await?;
        self.note_written();
        if shared > 0 {
            let end = (to_first + shared) * PAGE;
            target.grow(end);
            self.0.fs.wrote(to_ino, end, self.timestamp());
        }
        Ok(shared)
    }
}
