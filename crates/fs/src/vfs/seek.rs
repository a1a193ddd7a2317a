//! Data and holes of a file.
//!
//! Place in the data flow: a [`File`] seeks; the file system knows what is on the disk, the page cache what is not there yet.
//!
//! Invariant: a page that is dirty or being written is data, whatever is on the disk; a clean page is what the disk has. Nothing
//! waits between the file system's answer and the check of the cache, so no page is written in between.

use super::file::File;
use super::inode::Inode;
use super::io::PAGE;
use super::state::Vfs;
use super::types::*;
use super::{Errno, Fs};

impl<F: Fs> Vfs<F> {
    /// Whether a page is a hole of which nothing newer is in memory. The answer holds until the caller waits.
    pub(crate) async fn is_hole(&self, inode: &Inode, page: u64) -> Result<bool> {
        if self.0.fs.pages_from(inode.ino, page).await?.has_data {
            return Ok(false);
        }
        let mut unclean = Vec::new();
        self.0.pages.borrow().unclean_indices(inode.owner, (page, page + 1), &mut unclean);
        Ok(unclean.is_empty())
    }
}

impl<F: Fs> File<F> {
    /// The first byte from `from` on that is data, or that is in a hole; see [`File::seek`].
    pub(crate) async fn find_part(&self, from: u64, is_data_wanted: bool) -> Result<u64> {
        let vfs = self.vfs();
        vfs.charge_call(0, 0).await;
        if !self.kind().is_file() {
            return Err(Errno::EINVAL);
        }
        let inode = self.inode();
        let _lock = inode.lock.shared().await;
        let size = inode.size.get();
        if from >= size {
            return Err(Errno::ENXIO);
        }
        let (mut at, end) = (from / PAGE, size.div_ceil(PAGE));
        let mut unclean = Vec::new();
        while at < end {
            let run = vfs.0.fs.pages_from(inode.ino, at).await?;
            let run_end = run.end.min(end);
            unclean.clear();
            if !run.has_data {
                vfs.0.pages.borrow().unclean_indices(inode.owner, (at, run_end), &mut unclean);
            }
            let found = match (run.has_data, is_data_wanted) {
                (true, true) => Some(at),
                (true, false) => None,
                (false, true) => unclean.first().copied(),
                // The first page behind the dirty pages with which the run begins.
                (false, false) => {
                    let behind =
                        (at..).zip(&unclean).take_while(|(page, index)| page == *index).count() as u64;
                    Some(at + behind).filter(|page| *page < run_end)
                }
            };
            if let Some(page) = found {
                return Ok(from.max(page * PAGE));
            }
            at = run_end.max(at + 1);
        }
        if is_data_wanted { Err(Errno::ENXIO) } else { Ok(size) }
    }
}
