//! Names and small contents: finds, inserts and removes directory entries; handles inline contents, which move into blocks when the
//! inode has no room for them.
//!
//! Invariant: inline contents are at most as long as their room, and the bytes after the end of a file are zeros. So moving them
//! loses no bytes and exposes none.

use super::super::layout::dentry::{self, Entry, LEVELS_MAX, Slots};
use super::super::layout::node::{self, Kind, inline};
use super::super::layout::{Addr, Nid};
use super::state::State;
use super::stop::{Step, Stop};
use crate::port::{BLOCK_BYTES, BlockBytes, bytes_of};
use crate::vfs::Errno;
use flashweir_core::Payload;

/// Position of an entry: block of the directory (`None` inline) and slot.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Place {
    pub(super) index: Option<u64>,
    pub(super) slot: usize,
}

/// Free place for an entry.
#[derive(Clone, Copy, Debug)]
pub(super) struct Room {
    place: Place,
    level: u32,
    pub(super) is_new: bool,
}

impl State {
    /// Reads a block of a directory; `None` if it is a hole.
    fn dir_block(&mut self, dir: Nid, index: u64) -> Step<Option<&BlockBytes>> {
        if !self.blocks.contains_key(&(dir, index)) {
            let addr = self.address(dir, index)?;
            match addr {
                Addr::NULL => return Ok(None),
                addr if self.geometry.place_of(addr).is_none() => return Err(Errno::EUCLEAN.into()),
                addr => return Err(Stop::Block { ino: dir, index, addr }),
            }
        }
        Ok(self.blocks.get(&(dir, index)).map(|block| &**block))
    }

    fn dir_block_mut(&mut self, dir: Nid, index: u64) -> &mut BlockBytes {
        self.blocks_dirty.insert((dir, index));
        self.changed = true;
        self.blocks.get_mut(&(dir, index)).expect("it was looked at before")
    }

    fn checked_dir(&self, dir: Nid) -> Step<&super::super::Inode> {
        let inode = self.inode(dir)?;
        match inode.kind() {
            Kind::Directory if inode.depth <= LEVELS_MAX => Ok(inode),
            Kind::Directory => Err(Errno::EUCLEAN.into()),
            _ => Err(Errno::ENOTDIR.into()),
        }
    }

    /// Finds the entry of a name.
    pub(super) fn find(&mut self, dir: Nid, name: &[u8]) -> Step<Option<(Place, Entry)>> {
        let inode = self.checked_dir(dir)?;
        let hash = dentry::hash(name);
        let find = |slots: Slots, room: &[u8]| slots.find(room, hash, name).map_err(|_| Errno::EUCLEAN);
        if inode.has_inline(inline::DENTRY) {
            let room = inode.inline_bytes();
            let found = find(Slots::in_room(room.len()), room)?;
            return Ok(found.map(|(slot, entry)| (Place { index: None, slot }, entry)));
        }
        let (depth, dir_level) = (inode.depth, inode.dir_level);
        let end = inode.size.div_ceil(BLOCK_BYTES as u64);
        for level in 0..depth {
            for index in dentry::bucket(level, dir_level, hash) {
                if index >= end {
                    break;
                }
                let Some(block) = self.dir_block(dir, index)? else { continue };
                if let Some((slot, entry)) = find(Slots::BLOCK, block)? {
                    return Ok(Some((Place { index: Some(index), slot }, entry)));
                }
            }
        }
        Ok(None)
    }

    /// Makes sure that there is room for a name: inline entries move into blocks if they leave none. Places that were found before
    /// are not valid afterwards.
    pub(super) fn make_room(&mut self, dir: Nid, name: &[u8]) -> Step<()> {
        let inode = self.checked_dir(dir)?;
        let room = inode.inline_bytes();
        match !inode.has_inline(inline::DENTRY)
            || Slots::in_room(room.len()).find_room(room, Slots::needed(name.len())).is_some()
        {
            true => Ok(()),
            false => self.make_plain(dir),
        }
    }

    /// Finds room for a name, after [`Self::make_room`]. Everything that [`Self::insert`] needs is in memory afterwards.
    pub(super) fn room(&mut self, dir: Nid, name: &[u8]) -> Step<Room> {
        let inode = self.checked_dir(dir)?;
        let dir_level = inode.dir_level;
        let (hash, needed) = (dentry::hash(name), Slots::needed(name.len()));
        if inode.has_inline(inline::DENTRY) {
            let room = inode.inline_bytes();
            let slot = Slots::in_room(room.len()).find_room(room, needed).ok_or(Errno::ENOSPC)?;
            return Ok(Room { place: Place { index: None, slot }, level: 0, is_new: false });
        }
        for level in 0..LEVELS_MAX {
            for index in dentry::bucket(level, dir_level, hash) {
                let found = match self.dir_block(dir, index)? {
                    None => Some((0, true)),
                    Some(block) => Slots::BLOCK.find_room(&block[..], needed).map(|slot| (slot, false)),
                };
                if let Some((slot, is_new)) = found {
                    return Ok(Room { place: Place { index: Some(index), slot }, level, is_new });
                }
            }
        }
        Err(Errno::ENOSPC.into())
    }

    /// Inserts an entry. The caller has checked that there is room for a few blocks.
    pub(super) fn insert(&mut self, dir: Nid, room: Room, entry: &Entry) -> Step<()> {
        if let Some(index) = room.place.index {
            if room.is_new {
                self.reserve(dir, index)?;
                self.blocks.insert((dir, index), Box::new([0; BLOCK_BYTES]));
            }
            let inode = self.inode_mut(dir)?;
            inode.size = inode.size.max((index + 1) * BLOCK_BYTES as u64);
            inode.depth = inode.depth.max(room.level + 1);
        }
        self.redirect(dir, room.place, entry)
    }

    /// Writes an entry into slots that are free, or replaces the entry that was there.
    pub(super) fn redirect(&mut self, dir: Nid, place: Place, entry: &Entry) -> Step<()> {
        match place.index {
            Some(index) => Slots::BLOCK.insert(&mut self.dir_block_mut(dir, index)[..], place.slot, entry),
            None => {
                let room = self.inode_mut(dir)?.inline_bytes_mut();
                Slots::in_room(room.len()).insert(room, place.slot, entry);
            }
        }
        Ok(())
    }

    /// Removes an entry that was found before.
    pub(super) fn remove(&mut self, dir: Nid, place: Place, entry: &Entry) -> Step<()> {
        let bytes = entry.name.len();
        match place.index {
            Some(index) => {
                let block = self.dir_block_mut(dir, index);
                Slots::BLOCK.remove(&mut block[..], place.slot, bytes);
                // As in Linux, a block without entries becomes a hole; the first one has `.` and `..`.
                if index > 0 && Slots::BLOCK.is_empty(&block[..]) {
                    self.free_block(dir, index)?;
                }
            }
            None => {
                let room = self.inode_mut(dir)?.inline_bytes_mut();
                Slots::in_room(room.len()).remove(room, place.slot, bytes);
            }
        }
        Ok(())
    }

    /// Moves inline entries into blocks: into the same slots of the first block if all names belong there, so that tasks that are
    /// reading the directory are not disturbed. Everything is in memory, so nothing stops the operation.
    fn make_plain(&mut self, dir: Nid) -> Step<()> {
        let inode = self.checked_dir(dir)?;
        let (room, one_bucket) = (inode.inline_bytes(), inode.dir_level == 0);
        let entries: Vec<_> =
            Slots::in_room(room.len()).entries(room).collect::<Result<_, _>>().map_err(|_| Errno::EUCLEAN)?;
        self.check_room(4 + if one_bucket { 0 } else { entries.len() as u64 })?;
        let features = self.superblock.features;
        let inode = self.inode_mut(dir)?;
        inode.leave_inline_entries(features);
        (inode.size, inode.depth) = (BLOCK_BYTES as u64, 1);
        for (slot, entry) in entries {
            let place = Place { index: Some(0), slot };
            let room = match one_bucket {
                true => Room { place, level: 0, is_new: !self.blocks.contains_key(&(dir, 0)) },
                false => self.room(dir, &entry.name)?,
            };
            self.insert(dir, room, &entry)?;
        }
        Ok(())
    }

    /// Lists entries from a cookie on, without `.` and `..`; each comes with the cookie of the entry after it.
    pub(super) fn list(&mut self, dir: Nid, after: u64, most: usize) -> Step<Vec<(u64, Entry)>> {
        let inode = self.checked_dir(dir)?;
        let per_block = Slots::BLOCK.count() as u64;
        let mut list = Vec::new();
        let mut add = |index: u64, slots: Slots, room: &[u8]| -> Step<bool> {
            for entry in slots.entries(room) {
                let (slot, entry) = entry.map_err(|_| Errno::EUCLEAN)?;
                let cookie = index * per_block + slot as u64 + 1;
                if cookie > after && !entry.is_dot() {
                    list.push((cookie, entry));
                }
                if list.len() >= most {
                    return Ok(true);
                }
            }
            Ok(false)
        };
        if inode.has_inline(inline::DENTRY) {
            let room = inode.inline_bytes();
            add(0, Slots::in_room(room.len()), room)?;
            return Ok(list);
        }
        let end = inode.size.div_ceil(BLOCK_BYTES as u64);
        for index in after / per_block..end {
            if let Some(block) = self.dir_block(dir, index)?
                && add(index, Slots::BLOCK, block)?
            {
                break;
            }
        }
        Ok(list)
    }

    /// Whether the contents of a file are in its inode and may be `bytes` long there.
    fn fits_inline(&self, ino: Nid, bytes: u64) -> Step<bool> {
        let inode = self.inode(ino)?;
        Ok(inode.has_inline(inline::DATA) && bytes <= inode.inline_bytes().len() as u64)
    }

    /// Reserves room in the inode for the bytes up to `end` of a file; returns whether there is room.
    pub(super) fn reserve_inline(&mut self, ino: Nid, end: u64) -> Step<bool> {
        if !self.fits_inline(ino, end)? {
            return Ok(false);
        }
        if !self.inode(ino)?.has_inline(inline::DATA_EXIST) {
            self.inode_mut(ino)?.inline |= inline::DATA_EXIST;
        }
        Ok(true)
    }

    /// Writes the first page of a file into its inode if its contents are inline; returns whether it did.
    pub(super) fn write_inline(&mut self, ino: Nid, page: &Payload) -> Step<bool> {
        if !self.inode(ino)?.has_inline(inline::DATA) {
            return Ok(false);
        }
        let inode = self.inode_mut(ino)?;
        let room = inode.inline_bytes_mut();
        match page {
            Payload::Zero => room.fill(0),
            page => room.copy_from_slice(&bytes_of(page)[..room.len()]),
        }
        inode.inline |= inline::DATA_EXIST;
        self.metrics.written_pages += 1;
        Ok(true)
    }

    /// Changes the size of a file.
    pub(super) fn resize(&mut self, ino: Nid, size: u64) -> Step<()> {
        if self.fits_inline(ino, size)? {
            let inode = self.inode_mut(ino)?;
            inode.inline_bytes_mut()[size as usize..].fill(0);
            if size == 0 {
                inode.inline &= !inline::DATA_EXIST;
            }
        } else {
            self.make_blocks(ino)?;
            // Of the same size: frees what was reserved behind the end, as on Linux.
            if size <= self.inode(ino)?.size {
                self.truncate(ino, size.div_ceil(BLOCK_BYTES as u64))?;
            }
        }
        self.inode_mut(ino)?.size = size;
        Ok(())
    }

    /// Moves inline contents of a file into its first block; a file with blocks stays as it is.
    pub(super) fn make_blocks(&mut self, ino: Nid) -> Step<()> {
        let inode = self.inode(ino)?;
        if !inode.has_inline(inline::DATA) {
            return Ok(());
        }
        self.check_room(4)?;
        let mut block = Box::new([0; BLOCK_BYTES]);
        let room = inode.inline_bytes();
        let bytes = (inode.size as usize).min(room.len());
        let has_content = inode.has_inline(inline::DATA_EXIST) && bytes > 0;
        block[..bytes].copy_from_slice(&room[..bytes]);
        let inode = self.inode_mut(ino)?;
        inode.inline_bytes_mut().fill(0);
        inode.inline &= !(inline::DATA | inline::DATA_EXIST);
        if has_content {
            self.reserve(ino, 0)?;
            self.blocks.insert((ino, 0), block);
            self.blocks_dirty.insert((ino, 0));
        }
        Ok(())
    }

    /// Sets the target of a symbolic link.
    pub(super) fn set_link(&mut self, ino: Nid, target: &[u8]) -> Step<()> {
        let inline = self.inline_data;
        let inode = self.inode_mut(ino)?;
        inode.size = target.len() as u64;
        if inline && target.len() <= inode.inline_bytes().len() {
            inode.inline_bytes_mut()[..target.len()].copy_from_slice(target);
            inode.inline |= inline::DATA | inline::DATA_EXIST;
            return Ok(());
        }
        let mut block = Box::new([0; BLOCK_BYTES]);
        block[..target.len()].copy_from_slice(target);
        self.reserve(ino, 0)?;
        self.blocks.insert((ino, 0), block);
        self.blocks_dirty.insert((ino, 0));
        Ok(())
    }

    /// Whether a directory has no entries. All blocks that were read are in memory afterwards.
    pub(super) fn is_empty(&mut self, dir: Nid) -> Step<bool> {
        Ok(self.list(dir, 0, 1)?.is_empty())
    }

    /// Advice for a file of this name: whether its data go to the cold log.
    pub(super) fn advice_for(&self, name: &[u8]) -> u8 {
        let lower = name.to_ascii_lowercase();
        let cold = self.superblock.extensions.0.iter().any(|extension| {
            lower.strip_suffix(extension.as_bytes()).is_some_and(|rest| rest.ends_with(b"."))
        });
        if cold { node::advise::COLD } else { 0 }
    }
}
