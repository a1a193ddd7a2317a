//! Inodes without names, and files that get shorter: freed in steps, so that no transaction grows without bound.
//!
//! Invariant: what is not freed yet belongs to an inode of the list on the disk, from which the next mount continues.

use super::super::layout::inode::flags;
use super::super::layout::{Feature, Ino};
use super::state::{State, Step};
use crate::format::Kind;
use crate::port::BLOCK_BYTES;
use crate::vfs::Errno;

/// Number of extents that one step frees.
const STEP_EXTENTS: usize = 32;
/// Number of blocks of a directory, or of a file whose blocks are journalled, that one step frees.
pub(super) const STEP_BLOCKS: u64 = 1024;
/// Sizes from here on need a feature flag.
const LARGE_FILE_BYTES: u64 = 1 << 31;

impl State {
    /// Errors: the blocks of an inode are mapped in a way that cannot be freed.
    pub(super) fn check_freeable(&self, ino: Ino) -> Step<()> {
        let inode = self.inode(ino)?;
        let has_contents = matches!(inode.kind(), Some(Kind::Regular | Kind::Directory | Kind::Symlink));
        match has_contents && !inode.has(flags::EXTENTS) && !inode.is_fast_link() {
            true => Err(Errno::EOPNOTSUPP.into()),
            false => Ok(()),
        }
    }

    /// Frees a part of an inode without names that is not held. Returns whether it was the last part.
    pub(super) fn destroy_some(&mut self, ino: Ino) -> Step<bool> {
        if self.inode(ino)?.has(flags::EXTENTS) && !self.empty_some(ino)? {
            return Ok(false);
        }
        self.free_xattr_block(ino)?;
        self.free_inode(ino)?;
        self.end_claim(ino, 0, u64::MAX);
        Ok(true)
    }

    /// Frees a part of the contents of an inode. Returns whether it was the last part.
    fn empty_some(&mut self, ino: Ino) -> Step<bool> {
        if self.kind(ino)? == Kind::Directory {
            // Each of its blocks is revoked, so a step is limited in blocks too.
            let end = self.inode(ino)?.size.div_ceil(BLOCK_BYTES as u64);
            let done = self.cut(ino, end.saturating_sub(STEP_BLOCKS), end, STEP_EXTENTS)?;
            let node = self.node_mut(ino)?;
            node.size = done * BLOCK_BYTES as u64;
            node.inode.size = node.size;
            if done > 0 {
                return Ok(false);
            }
        }
        Ok(self.cut(ino, 0, u64::MAX, STEP_EXTENTS)? == 0)
    }

    /// Frees a part of the blocks behind the end of a file. Returns whether it was the last part.
    pub(super) fn truncate_some(&mut self, ino: Ino) -> Step<bool> {
        let first = self.node(ino)?.size.div_ceil(BLOCK_BYTES as u64);
        let is_done = self.cut(ino, first, u64::MAX, STEP_EXTENTS)? <= first;
        match is_done && self.inode(ino)?.links > 0 {
            true => self.remove_orphan(ino)?,
            false => self.add_orphan(ino)?,
        }
        self.end_claim(ino, first, u64::MAX);
        // If there is no room for more, the claim stays as it was.
        let _ = self.renew_claim(ino);
        Ok(is_done)
    }

    /// Changes the length of a file. Returns whether blocks behind its end are left to be freed.
    pub(super) fn resize(&mut self, ino: Ino, size: u64) -> Step<bool> {
        if self.kind(ino)? != Kind::Regular {
            return Err(Errno::EINVAL.into());
        }
        let node = self.node_mut(ino)?;
        // What was allocated behind the end goes with a change to the same length, too, as in Linux.
        let is_longer = size > node.size || size == node.size && !node.inode.has(flags::EXTENTS);
        (node.size, node.inode.size) = (size, size);
        node.written_end = node.written_end.min(size);
        self.note_size(ino)?;
        Ok(is_longer || self.truncate_some(ino)?)
    }

    /// Makes a file end where its users know that it ends, after a write that made it longer has failed. Returns whether that was
    /// the last part.
    pub(super) fn end_at_size(&mut self, ino: Ino) -> Step<bool> {
        let size = self.node(ino)?.size;
        if self.inode(ino)?.size <= size {
            return Ok(true);
        }
        let node = self.node_mut(ino)?;
        (node.inode.size, node.written_end) = (size, node.written_end.min(size));
        self.truncate_some(ino)
    }

    /// Sets the feature flag for large files if an inode needs it.
    pub(super) fn note_size(&mut self, ino: Ino) -> Step<()> {
        if self.inode(ino)?.size >= LARGE_FILE_BYTES && !self.superblock.features.has(Feature::LARGE_FILE) {
            self.superblock.features.set(Feature::LARGE_FILE, true);
            self.running.has_superblock = true;
        }
        Ok(())
    }

    /// Makes a range of pages a hole, as far as one step goes; returns the page up to which it is done, from the end.
    pub(super) fn punch_some(&mut self, ino: Ino, first: u64, end: u64) -> Step<u64> {
        let done = self.cut(ino, first, end, STEP_EXTENTS)?;
        self.renew_claim(ino)?;
        self.end_claim(ino, done, end);
        Ok(done)
    }
}
