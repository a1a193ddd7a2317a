//! Read-ahead of one open file.
//!
//! Its [`Window`] says what is due; a separate task reads that, so that a reader that is no faster than the disk always finds its
//! pages.
//! finds its pages.

use super::File;
use super::Fs;
use super::window::Window;
use std::cell::Cell;
use std::rc::Rc;

impl<F: Fs> File<F> {
    /// Notes a read of pages `first..end`; returns the number of pages to read where one is absent.
    pub(crate) fn plan_read(&self, first: u64, end: u64) -> u64 {
        let pages_max = self.vfs().0.options.cache.readahead_pages;
        if pages_max == 0 {
            return 0;
        }
        update(&self.window, |window| window.on_read(first, end, pages_max))
    }

    /// Begins to read ahead, if that is due.
    pub(crate) fn read_ahead(&self, file_pages: u64) {
        let Some((first, end)) = update(&self.window, |window| window.take_ahead(file_pages)) else { return };
        let vfs = self.vfs().clone();
        let inode = Rc::clone(self.inode().rc());
        // The file is open, so the inode is held. The task is a user of its own, since the file may be closed meanwhile.
        inode.users.set(inode.users.get() + 1);
        self.vfs().spawn_helper(async move {
            let mut at = first;
            while at < end {
                match vfs.fill(&inode, (at, end)).await {
                    // The reader gets the error again, and returns it.
                    Err(_) => break,
                    Ok((first, end)) => {
                        vfs.count(|count| count.readahead_pages += end - first);
                        at = end;
                    }
                }
            }
            inode.users.set(inode.users.get() - 1);
            let _ = vfs.settle(&inode).await;
            vfs.forget_if_idle(&inode, 2);
        });
    }
}

fn update<T>(window: &Cell<Window>, change: impl FnOnce(&mut Window) -> T) -> T {
    let mut value = window.get();
    let result = change(&mut value);
    window.set(value);
    result
}
