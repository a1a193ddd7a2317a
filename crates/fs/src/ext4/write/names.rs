//! Names: finds, inserts, removes and lists entries of directories.
//!
//! A directory whose first block is full gets an index of hashes, where the volume has them; without one it grows block by
//! block. Blocks of an index are split and never merged.
//!
//! Invariant: entries with the same hash are in one block, or in blocks that follow each other, of which all but the
//! first say so in the index.

use super::super::layout::dirent::{self, Entry, Record, room_bytes};
use super::super::layout::extent::Extent;
use super::super::layout::htree::{self, Hash, Root};
use super::super::layout::inode::flags;
use super::super::layout::{Addr, Feature, Ino, checksum};
use super::state::{State, Step};
use crate::format::Kind;
use crate::port::{BLOCK_BYTES, BlockBytes};
use crate::vfs::Errno;

const BLOCK: u64 = BLOCK_BYTES as u64;

/// Position of an entry: block and offset.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Place {
    addr: Addr,
    at: usize,
}

/// A node of an index on the path to a block of entries.
#[derive(Debug)]
struct Frame {
    addr: Addr,
    entries: Vec<htree::Entry>,
    at: usize,
}

#[derive(Debug)]
struct Probe {
    root: Root,
    /// From the root down.
    frames: Vec<Frame>,
}

impl Probe {
    fn leaf(&self) -> u64 {
        let last = self.frames.last().expect("there is a root");
        last.entries[last.at].block.into()
    }
}

/// An entry with its cookie, which is its place in the order of a list.
#[derive(Clone, Debug)]
pub(super) struct Listed {
    pub(super) cookie: u64,
    pub(super) entry: Entry,
}

impl State {
    fn dir_blocks(&self, dir: Ino) -> Step<u64> {
        if self.kind(dir)? != Kind::Directory {
            return Err(Errno::ENOTDIR.into());
        }
        let size = self.inode(dir)?.size;
        if size == 0 || !size.is_multiple_of(BLOCK) {
            return Err(Errno::EUCLEAN.into());
        }
        Ok(size / BLOCK)
    }

    fn is_indexed(&self, dir: Ino) -> Step<bool> {
        Ok(self.geometry.features.has(Feature::DIR_INDEX) && self.inode(dir)?.has(flags::INDEX))
    }

    /// The hash function of new indexes; `None` if there are none.
    fn hash(&self) -> Option<Hash> {
        Hash::of(self.superblock.hash_version).filter(|_| self.geometry.features.has(Feature::DIR_INDEX))
    }

    fn hash_of(&self, hash: Hash, name: &[u8]) -> u32 {
        hash.of_name(name, &self.superblock.hash_seed, self.superblock.is_hash_unsigned()).0
    }

    fn seed(&self, dir: Ino) -> Step<u32> {
        Ok(self.inode(dir)?.seed(&self.geometry))
    }

    /// Address of a directory's block, which is in memory afterwards.
    fn dir_block(&mut self, dir: Ino, index: u64) -> Step<Addr> {
        let addr = self.span(dir, index)?.written(index).ok_or(Errno::EUCLEAN)?;
        self.block(addr)?;
        Ok(addr)
    }

    /// Address of a block of entries, whose checksum is right and which is in memory afterwards.
    fn dir_leaf(&mut self, dir: Ino, index: u64) -> Step<Addr> {
        let addr = self.dir_block(dir, index)?;
        if !self.buffers[&addr].is_checked {
            dirent::check_tail(&self.block(addr)?[..], self.seed(dir)?, &self.geometry)?;
            for record in dirent::records(self.room(addr)?, &self.geometry) {
                record?;
            }
            self.buffers.get_mut(&addr).expect("it was found").is_checked = true;
        }
        Ok(addr)
    }

    /// The part of a block that holds entries.
    fn room(&self, addr: Addr) -> Step<&[u8]> {
        Ok(&self.block(addr)?[..room_bytes(&self.geometry)])
    }

    /// Changes a block of entries.
    fn change_leaf<T>(
        &mut self,
        dir: Ino,
        addr: Addr,
        change: impl FnOnce(&mut [u8]) -> crate::ext4::Result<T>,
    ) -> Step<T> {
        let (geometry, seed) = (self.geometry, self.seed(dir)?);
        let block = self.block_mut(addr)?;
        let value = change(&mut block[..room_bytes(&geometry)])?;
        dirent::put_tail(&mut block[..], seed, &geometry);
        Ok(value)
    }

    /// Appends a block to a directory; returns its index there, and its address.
    fn append_block(&mut self, dir: Ino) -> Step<(u64, Addr)> {
        let index = self.node(dir)?.inode.size / BLOCK;
        let goal = if index == 0 { self.goal_of(dir) } else { self.goal(dir, index)? };
        let addr = self.new_block(dir, goal)?;
        let first = u32::try_from(index).map_err(|_| Errno::ENOSPC)?;
        self.insert_extent(dir, Extent { first, blocks: 1, addr, is_unwritten: false })?;
        let node = self.node_mut(dir)?;
        node.inode.size += BLOCK;
        node.size = node.inode.size;
        Ok((index, addr))
    }

    /// The first block of a new directory.
    pub(super) fn make_dir(&mut self, dir: Ino, parent: Ino) -> Step<()> {
        let (_, addr) = self.append_block(dir)?;
        let block = dirent::first_block(dir, parent, &self.geometry);
        self.block_mut(addr)?.copy_from_slice(&block);
        self.change_leaf(dir, addr, |_| Ok(()))
    }

    fn find_in(&self, addr: Addr, name: &[u8]) -> Step<Option<(Place, Entry)>> {
        let room = self.room(addr)?;
        let Some(at) = find(room, name) else { return Ok(None) };
        let record = dirent::records(&room[at..], &self.geometry).next().ok_or(Errno::EUCLEAN)??;
        Ok(record.entry.map(|entry| (Place { addr, at }, entry)))
    }

    // Indexes.

    fn root(&mut self, dir: Ino) -> Step<(Addr, Root)> {
        let addr = self.dir_block(dir, 0)?;
        let root = Root::decode(&self.block(addr)?[..], self.seed(dir)?, &self.geometry)?;
        Ok((addr, root))
    }

    /// The path to the first block that may have names with a hash.
    fn probe(&mut self, dir: Ino, hash_of: impl FnOnce(&Self, &Root) -> u32) -> Step<Probe> {
        let (addr, root) = self.root(dir)?;
        let hash = hash_of(self, &root);
        let mut frames =
            vec![Frame { addr, at: htree::position(&root.entries, hash), entries: root.entries.clone() }];
        for _ in 0..root.levels {
            let last = frames.last().expect("there is a root");
            let index = last.entries[last.at].block.into();
            let frame = self.frame(dir, index, |entries| htree::position(entries, hash))?;
            frames.push(frame);
        }
        Ok(Probe { root, frames })
    }

    fn frame(&mut self, dir: Ino, index: u64, at: impl FnOnce(&[htree::Entry]) -> usize) -> Step<Frame> {
        let addr = self.dir_block(dir, index)?;
        let entries = htree::decode_node(&self.block(addr)?[..], self.seed(dir)?, &self.geometry)?;
        Ok(Frame { addr, at: at(&entries), entries })
    }

    /// Moves to the next block of entries; returns the hash with which it begins, or `None` at the end.
    fn step(&mut self, dir: Ino, probe: &mut Probe) -> Step<Option<u32>> {
        let Some(level) = probe.frames.iter().rposition(|frame| frame.at + 1 < frame.entries.len()) else {
            return Ok(None);
        };
        probe.frames[level].at += 1;
        let frame = &probe.frames[level];
        let mut entry = frame.entries[frame.at];
        let hash = entry.hash;
        for below in level + 1..probe.frames.len() {
            probe.frames[below] = self.frame(dir, entry.block.into(), |_| 0)?;
            entry = probe.frames[below].entries[0];
        }
        Ok(Some(hash))
    }

    fn write_frame(&mut self, dir: Ino, probe: &Probe, level: usize) -> Step<()> {
        let (geometry, seed) = (self.geometry, self.seed(dir)?);
        let frame = &probe.frames[level];
        let block = self.block_mut(frame.addr)?;
        match level {
            0 => Root { entries: frame.entries.clone(), ..probe.root.clone() }.encode(
                &mut block[..],
                seed,
                &geometry,
            ),
            _ => htree::encode_node(&frame.entries, &mut block[..], seed, &geometry),
        }
        Ok(())
    }

    /// Makes an index for a directory of one block, whose entries move into a second block.
    fn make_index(&mut self, dir: Ino, hash: Hash) -> Step<()> {
        let first = self.dir_leaf(dir, 0)?;
        let entries: Vec<Entry> =
            dirent::entries(self.room(first)?, &self.geometry).collect::<crate::ext4::Result<_>>()?;
        let (parent, rest) = match &entries[..] {
            [dot, dots, rest @ ..] if dot.name == b"." && dots.name == b".." => (dots.ino, rest),
            _ => return Err(Errno::EUCLEAN.into()),
        };
        let (index, addr) = self.append_block(dir)?;
        self.fill_leaf(dir, addr, rest)?;
        let entries = vec![htree::Entry { hash: 0, block: index as u32 }];
        let root = Root { ino: dir, parent, hash, levels: 0, entries };
        let (geometry, seed) = (self.geometry, self.seed(dir)?);
        root.encode(&mut self.block_mut(first)?[..], seed, &geometry);
        self.inode_mut(dir)?.flags |= flags::INDEX;
        Ok(())
    }

    /// Replaces the entries of a block.
    fn fill_leaf(&mut self, dir: Ino, addr: Addr, entries: &[Entry]) -> Step<()> {
        let geometry = self.geometry;
        let block = dirent::empty_block(&geometry);
        self.block_mut(addr)?.copy_from_slice(&block);
        self.change_leaf(dir, addr, |room| {
            let end = room.len();
            let mut at = 0;
            for (number, entry) in entries.iter().enumerate() {
                let needed = dirent::bytes_needed(entry.name.len());
                let bytes = if number + 1 == entries.len() { end - at } else { needed };
                dirent::put_record(room, at, bytes, Some(entry), &geometry);
                at += bytes;
            }
            Ok(())
        })
    }

    /// Splits the block of entries at the end of a path, whose last node has room for one more entry.
    fn split_leaf(&mut self, dir: Ino, probe: &mut Probe) -> Step<()> {
        let addr = self.dir_leaf(dir, probe.leaf())?;
        let mut entries: Vec<(u32, Entry)> = Vec::new();
        for entry in dirent::entries(self.room(addr)?, &self.geometry) {
            let entry = entry?;
            entries.push((self.hash_of(probe.root.hash, &entry.name), entry));
        }
        entries.sort_by_key(|(hash, _)| *hash);
        let total: usize = entries.iter().map(|(_, entry)| dirent::bytes_needed(entry.name.len())).sum();
        let (mut bytes, mut middle) = (0, 0);
        for (at, (_, entry)) in entries.iter().enumerate() {
            if bytes >= total / 2 {
                break;
            }
            bytes += dirent::bytes_needed(entry.name.len());
            middle = at + 1;
        }
        middle = middle.clamp(1, entries.len().saturating_sub(1).max(1));
        if entries.len() < 2 {
            return Err(Errno::ENOSPC.into());
        }
        let hash = entries[middle].0;
        let goes_on = hash == entries[middle - 1].0;
        let (index, new) = self.append_block(dir)?;
        let mut entries: Vec<Entry> = entries.into_iter().map(|(_, entry)| entry).collect();
        let right = entries.split_off(middle);
        self.fill_leaf(dir, addr, &entries)?;
        self.fill_leaf(dir, new, &right)?;
        let last = probe.frames.len() - 1;
        let frame = &mut probe.frames[last];
        let entry = htree::Entry { hash: hash | u32::from(goes_on), block: index as u32 };
        frame.entries.insert(frame.at + 1, entry);
        self.write_frame(dir, probe, last)
    }

    /// Makes room for an entry in the last node of a path.
    fn split_index(&mut self, dir: Ino, probe: &mut Probe) -> Step<()> {
        let (root_limit, node_limit) = (htree::root_limit(&self.geometry), htree::node_limit(&self.geometry));
        let limit = |level: usize| if level == 0 { root_limit } else { node_limit };
        // The highest of the consecutive full nodes that end with the last one: its parent has room.
        let full = (0..probe.frames.len())
            .rev()
            .take_while(|&level| probe.frames[level].entries.len() >= limit(level));
        let Some(level) = full.last() else { return Ok(()) };
        let (index, addr) = self.append_block(dir)?;
        if level == 0 {
            if probe.root.levels >= htree::levels_max(&self.geometry) {
                return Err(Errno::ENOSPC.into());
            }
            let below = Frame { addr, entries: probe.frames[0].entries.clone(), at: probe.frames[0].at };
            probe.root.levels += 1;
            probe.frames[0].entries = vec![htree::Entry { hash: 0, block: index as u32 }];
            probe.frames[0].at = 0;
            probe.frames.insert(1, below);
            self.write_frame(dir, probe, 1)?;
            return self.write_frame(dir, probe, 0);
        }
        let middle = probe.frames[level].entries.len() / 2;
        let right = probe.frames[level].entries.split_off(middle);
        let entry = htree::Entry { hash: right[0].hash, block: index as u32 };
        self.write_frame(dir, probe, level)?;
        let (geometry, seed) = (self.geometry, self.seed(dir)?);
        htree::encode_node(&right, &mut self.block_mut(addr)?[..], seed, &geometry);
        let above = &mut probe.frames[level - 1];
        above.entries.insert(above.at + 1, entry);
        self.write_frame(dir, probe, level - 1)
    }

    // Entries.

    /// Finds the entry of a name.
    pub(super) fn find(&mut self, dir: Ino, name: &[u8]) -> Step<Option<(Place, Entry)>> {
        let blocks = self.dir_blocks(dir)?;
        if !self.is_indexed(dir)? {
            for index in 0..blocks {
                let addr = self.dir_leaf(dir, index)?;
                if let Some(found) = self.find_in(addr, name)? {
                    return self.checked(found);
                }
            }
            return Ok(None);
        }
        if name == b"." || name == b".." {
            let (addr, root) = self.root(dir)?;
            let (at, ino) = if name == b"." { (0, root.ino) } else { (12, root.parent) };
            return self.checked((Place { addr, at }, Entry::new(name, ino, Kind::Directory)));
        }
        let mut hash = 0;
        let mut probe = self.probe(dir, |state, root| {
            hash = state.hash_of(root.hash, name);
            hash
        })?;
        // Blocks of an index name each other at most once, which bounds the loop.
        for _ in 0..blocks {
            let addr = self.dir_leaf(dir, probe.leaf())?;
            if let Some(found) = self.find_in(addr, name)? {
                return self.checked(found);
            }
            if self.step(dir, &mut probe)?.is_none_or(|next| next & !1 != hash) {
                break;
            }
        }
        Ok(None)
    }

    /// Checks that an entry names an inode which may have names.
    fn checked(&self, found: (Place, Entry)) -> Step<Option<(Place, Entry)>> {
        let ino = found.1.ino;
        if ino != Ino::ROOT && ino.0 < self.geometry.first_ino || ino.0 > self.geometry.inodes_count {
            return Err(Errno::EUCLEAN.into());
        }
        Ok(Some(found))
    }

    /// Inserts an entry whose name does not exist yet.
    pub(super) fn insert(&mut self, dir: Ino, entry: &Entry) -> Step<()> {
        let geometry = self.geometry;
        let blocks = self.dir_blocks(dir)?;
        let put = |state: &mut Self, addr: Addr| -> Step<bool> {
            if !has_room(state.room(addr)?, dirent::bytes_needed(entry.name.len())) {
                return Ok(false);
            }
            let at = state.change_leaf(dir, addr, |room| dirent::insert(room, entry, &geometry))?;
            Ok(at.is_some())
        };
        if !self.is_indexed(dir)? {
            if self.inode(dir)?.has(flags::INDEX) {
                // The volume has no indexes any more, and this one would become wrong.
                self.inode_mut(dir)?.flags &= !flags::INDEX;
            }
            for index in 0..blocks {
                let addr = self.dir_leaf(dir, index)?;
                if put(self, addr)? {
                    return Ok(());
                }
            }
            match self.hash().filter(|_| blocks == 1) {
                Some(hash) => self.make_index(dir, hash)?,
                None => {
                    let (_, addr) = self.append_block(dir)?;
                    return self.fill_leaf(dir, addr, std::slice::from_ref(entry));
                }
            }
        }
        // A leaf is split, after each node above it that is full.
        for _ in 0..8 {
            let mut probe = self.probe(dir, |state, root| state.hash_of(root.hash, &entry.name))?;
            let addr = self.dir_leaf(dir, probe.leaf())?;
            if put(self, addr)? {
                return Ok(());
            }
            let last = probe.frames.len() - 1;
            let limit = if last == 0 { htree::root_limit(&geometry) } else { htree::node_limit(&geometry) };
            match probe.frames[last].entries.len() < limit {
                true => self.split_leaf(dir, &mut probe)?,
                false => self.split_index(dir, &mut probe)?,
            }
        }
        Err(Errno::ENOSPC.into())
    }

    /// Makes an entry that was found name another inode.
    pub(super) fn redirect(
        &mut self,
        dir: Ino,
        place: Place,
        entry: &Entry,
        to: Ino,
        kind: Kind,
    ) -> Step<()> {
        let geometry = self.geometry;
        if self.is_indexed(dir)? && entry.is_dot() {
            let (addr, root) = self.root(dir)?;
            let root =
                if entry.name == b".." { Root { parent: to, ..root } } else { Root { ino: to, ..root } };
            let seed = self.seed(dir)?;
            root.encode(&mut self.block_mut(addr)?[..], seed, &geometry);
            return Ok(());
        }
        let new = Entry::new(&entry.name, to, kind);
        self.change_leaf(dir, place.addr, |room| {
            let bytes = usize::from(crate::format::u16_at(room, place.at + 4));
            dirent::put_record(room, place.at, bytes, Some(&new), &geometry);
            Ok(())
        })
    }

    /// Removes an entry that was found.
    pub(super) fn remove(&mut self, dir: Ino, place: Place) -> Step<()> {
        let geometry = self.geometry;
        self.change_leaf(dir, place.addr, |room| dirent::remove(room, place.at, &geometry))
    }

    /// Lists entries behind a cookie, without `.` and `..`, at least `most` if there are so many. If the volume has indexes, they
    /// come in the order of hashes, which splits do not change.
    pub(super) fn list(&mut self, dir: Ino, after: u64, most: usize) -> Step<Vec<Listed>> {
        let blocks = self.dir_blocks(dir)?;
        let mut list = Vec::new();
        if self.is_indexed(dir)? {
            let start = (after >> 32) as u32 & !1;
            let mut probe = self.probe(dir, |_, _| start)?;
            let mut same: Vec<Listed> = Vec::new();
            for _ in 0..blocks {
                let addr = self.dir_leaf(dir, probe.leaf())?;
                self.gather(addr, Some(probe.root.hash), after, 0, &mut same)?;
                let next = self.step(dir, &mut probe)?;
                if next.is_none_or(|hash| hash & 1 == 0) {
                    same.sort_by_key(|listed| listed.cookie);
                    list.append(&mut same);
                }
                if next.is_none() || list.len() >= most {
                    break;
                }
            }
            return Ok(cut_between_cookies(list, most));
        }
        if let Some(hash) = self.hash().filter(|_| blocks == 1) {
            let addr = self.dir_leaf(dir, 0)?;
            self.gather(addr, Some(hash), after, 0, &mut list)?;
            list.sort_by_key(|listed| listed.cookie);
            return Ok(cut_between_cookies(list, most));
        }
        for index in after / BLOCK..blocks {
            let addr = self.dir_leaf(dir, index)?;
            self.gather(addr, None, after, index * BLOCK, &mut list)?;
            if list.len() >= most {
                break;
            }
        }
        list.truncate(most);
        Ok(list)
    }

    fn gather(
        &self,
        addr: Addr,
        hash: Option<Hash>,
        after: u64,
        start: u64,
        list: &mut Vec<Listed>,
    ) -> Step<()> {
        for record in dirent::records(self.room(addr)?, &self.geometry) {
            let Record { at, entry, .. } = record?;
            let Some(entry) = entry.filter(|entry| !entry.is_dot()) else { continue };
            let cookie = match hash {
                Some(hash) => {
                    let minor = checksum::crc32c(checksum::START, &entry.name);
                    (u64::from(self.hash_of(hash, &entry.name)) << 32 | u64::from(minor)) + 1
                }
                None => start + at as u64 + 1,
            };
            if cookie > after {
                list.push(Listed { cookie, entry });
            }
        }
        Ok(())
    }

    /// Whether a directory has no entries.
    pub(super) fn is_empty(&mut self, dir: Ino) -> Step<bool> {
        Ok(self.list(dir, 0, 1)?.is_empty())
    }

    // Targets of symbolic links.

    /// The target of a symbolic link.
    pub(super) fn link_target(&mut self, ino: Ino) -> Step<Box<[u8]>> {
        if self.kind(ino)? != Kind::Symlink {
            return Err(Errno::EINVAL.into());
        }
        let inode = self.inode(ino)?;
        let size = usize::try_from(inode.size).map_err(|_| Errno::EUCLEAN)?;
        if inode.is_fast_link() {
            return Ok(inode.block[..size].into());
        }
        if size > BLOCK_BYTES {
            return Err(Errno::EUCLEAN.into());
        }
        let addr = self.span(ino, 0)?.written(0).ok_or(Errno::EUCLEAN)?;
        Ok(self.block(addr)?[..size].into())
    }

    /// Sets the target of a new symbolic link.
    pub(super) fn set_link_target(&mut self, ino: Ino, target: &[u8]) -> Step<()> {
        let size = target.len() as u64;
        let node = self.node_mut(ino)?;
        (node.size, node.inode.size) = (size, size);
        if target.len() < node.inode.block.len() {
            node.inode.flags &= !flags::EXTENTS;
            node.inode.block.fill(0);
            node.inode.block[..target.len()].copy_from_slice(target);
            return Ok(());
        }
        let goal = self.goal_of(ino);
        let addr = self.new_block(ino, goal)?;
        let mut block: Box<BlockBytes> = Box::new([0; BLOCK_BYTES]);
        block[..target.len()].copy_from_slice(target);
        self.put_block(addr, block);
        self.insert_extent(ino, Extent { first: 0, blocks: 1, addr, is_unwritten: false })
    }
}

/// Offset of the record of a name. The room must have been checked.
fn find(room: &[u8], name: &[u8]) -> Option<usize> {
    let mut at = 0;
    while at + 8 <= room.len() {
        let bytes = usize::from(crate::format::u16_at(room, at + 4));
        let has_name =
            usize::from(room[at + 6]) == name.len() && room.get(at + 8..at + 8 + name.len()) == Some(name);
        if has_name && crate::format::u32_at(room, at) != 0 {
            return Some(at);
        }
        at += bytes.max(8);
    }
    None
}

/// Whether a record has room for an entry of `needed` bytes. The room must have been checked.
fn has_room(room: &[u8], needed: usize) -> bool {
    let mut at = 0;
    while at + 8 <= room.len() {
        let bytes = usize::from(crate::format::u16_at(room, at + 4)).max(8);
        let is_free = crate::format::u32_at(room, at) == 0;
        let taken = if is_free { 0 } else { dirent::bytes_needed(room[at + 6].into()) };
        if bytes.saturating_sub(taken) >= needed {
            return true;
        }
        at += bytes;
    }
    false
}

/// The first entries, and those with the same cookie as the last of them.
fn cut_between_cookies(mut list: Vec<Listed>, most: usize) -> Vec<Listed> {
    if let Some(last) = most.checked_sub(1).and_then(|last| list.get(last)).map(|listed| listed.cookie) {
        list.truncate(list.partition_point(|listed| listed.cookie <= last));
    }
    list
}
