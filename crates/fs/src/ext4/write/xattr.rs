//! Extended attributes: in the inode as far as they fit, the others in one block.

use super::super::layout::xattr::{XattrBlock, decode_in_inode, encode_in_inode};
use super::super::layout::{Addr, Ino};
use super::state::{State, Step};
use crate::port::BLOCK_BYTES;
use crate::vfs::Errno;
use crate::xattrs::Xattr;

impl State {
    fn xattr_block(&self, ino: Ino) -> Step<Option<XattrBlock>> {
        match self.inode(ino)?.xattr_block {
            Addr::NULL => Ok(None),
            addr if !self.geometry.is_data(addr, 1) => Err(Errno::EUCLEAN.into()),
            addr => Ok(Some(XattrBlock::decode(&self.block(addr)?[..], addr, &self.geometry)?)),
        }
    }

    /// All attributes of an inode.
    pub(super) fn xattrs(&self, ino: Ino) -> Step<Vec<Xattr>> {
        let mut xattrs = decode_in_inode(self.inode(ino)?.xattr_room())?;
        xattrs.extend(self.xattr_block(ino)?.into_iter().flat_map(|block| block.xattrs));
        Ok(xattrs)
    }

    /// Frees the attribute block of an inode, or leaves it to the other inodes that share it.
    pub(super) fn free_xattr_block(&mut self, ino: Ino) -> Step<()> {
        let Some(block) = self.xattr_block(ino)? else { return Ok(()) };
        let addr = self.inode(ino)?.xattr_block;
        self.inode_mut(ino)?.xattr_block = Addr::NULL;
        if block.references == 1 {
            return self.free_block(ino, addr);
        }
        let fewer = XattrBlock { references: block.references - 1, ..block };
        let bytes = fewer.encode(addr, &self.geometry).ok_or(Errno::EUCLEAN)?;
        self.block_mut(addr)?.copy_from_slice(&bytes);
        self.count_blocks(ino, -1)
    }

    /// Replaces all attributes of an inode.
    pub(super) fn set_xattrs(&mut self, ino: Ino, xattrs: &[Xattr]) -> Step<()> {
        let mut room = self.inode(ino)?.xattr_room().to_vec();
        let (mut inside, mut outside) = (Vec::new(), Vec::new());
        for xattr in xattrs {
            inside.push(xattr.clone());
            if encode_in_inode(&inside, &mut room).is_none() {
                outside.extend(inside.pop());
            }
        }
        encode_in_inode(&inside, &mut room).ok_or(Errno::ENOSPC)?;
        self.inode_mut(ino)?.xattr_room_mut().copy_from_slice(&room);
        if outside.is_empty() {
            return self.free_xattr_block(ino);
        }
        if self.xattr_block(ino)?.is_some_and(|block| block.references > 1) {
            self.free_xattr_block(ino)?;
        }
        let mut addr = self.inode(ino)?.xattr_block;
        if addr == Addr::NULL {
            let goal = self.goal_of(ino);
            addr = self.new_block(ino, goal)?;
            self.inode_mut(ino)?.xattr_block = addr;
        }
        let block = XattrBlock { references: 1, xattrs: outside };
        let bytes = block.encode(addr, &self.geometry).ok_or(Errno::ENOSPC)?;
        debug_assert_eq!(bytes.len(), BLOCK_BYTES);
        self.block_mut(addr)?.copy_from_slice(&bytes);
        Ok(())
    }
}
