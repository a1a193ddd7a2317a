//! State in memory of a volume that is mounted for writing: tables, nodes, logs, counts.
//!
//! Everything here is synchronous and either done or not done: an operation that needs a block which is not in memory
//! returns [`Stop`] before it has changed anything that must not be changed twice, is run again when the block is there,
//! and then finds it. So no operation is ever seen half done by another one, and no lock is held while a disk works.
//!
//! Invariants:
//! 1. A block that the last checkpoint refers to, or the one that is being written, is not written again until a later
//!    checkpoint is complete.
//! 2. `valid_blocks` counts nodes as soon as they exist and data as soon as they are reserved.
//! 3. A node that differs from its block on the disk is in `dirty`.

use super::super::layout::checkpoint::{Checkpoint, Cursor, Epoch};
use super::super::layout::node::{self, Footer, Inode, Kind, Path};
use super::super::layout::summary::{Owner, Summary};
use super::super::layout::superblock::Superblock;
use super::super::layout::tables::{NatEntry, SitEntry};
use super::super::layout::xattr;
use super::super::layout::{Addr, Geometry, Log, Nid, SEGMENT_BLOCKS};
use super::area::Area;
use super::by_nid::{ByNid, DirtyNodes};
use super::options::F2fsMetrics;
use super::options::PlantedBug;
use super::segments::Space;
use super::since::Since;
use super::stop::{Step, Stop};
use super::tags::METADATA;
use crate::port::{BLOCK_BYTES, BlockBytes, Write, payload_of};
use crate::vfs::{Errno, PageRun};
use crate::xattrs::Xattr;
use flashweir_core::Contents;
use flashweir_core::command::Tag;
use std::collections::{BTreeMap, BTreeSet};

/// A log and the summary of its segment.
#[derive(Debug)]
pub(super) struct OpenLog {
    pub(super) cursor: Cursor,
    pub(super) summary: Summary,
}

/// See the module.
#[derive(Debug)]
pub(crate) struct State {
    pub(super) superblock: Superblock,
    pub(super) geometry: Geometry,
    pub(super) seed: u32,
    /// The newest checkpoint that is complete.
    pub(super) checkpoint: Checkpoint,
    pub(super) area: Area,
    pub(super) nat: ByNid<NatEntry>,
    pub(super) sit: Vec<SitEntry>,
    /// State of the segments beyond the SIT.
    pub(super) space: Space,
    pub(super) logs: Vec<OpenLog>,
    pub(super) inodes: ByNid<Box<Inode>>,
    pub(super) nodes: ByNid<Box<BlockBytes>>,
    /// Dirty nodes, inodes first.
    pub(super) dirty: DirtyNodes,
    /// Inodes that differ from the disk in their times only.
    pub(super) only_times: BTreeSet<Nid>,
    /// Blocks of directories and symbolic links, which are written with checkpoints.
    pub(super) blocks: BTreeMap<(Nid, u64), Box<BlockBytes>>,
    pub(super) blocks_dirty: BTreeSet<(Nid, u64)>,
    pub(super) orphans: BTreeSet<Nid>,
    pub(super) held: BTreeMap<Nid, u32>,
    pub(super) valid_blocks: u64,
    pub(super) valid_nodes: u32,
    pub(super) valid_inodes: u32,
    pub(super) next_nid: Nid,
    /// Writes that the caller has to submit.
    pub(super) outbox: Vec<Write>,
    /// Whether something changed since the last checkpoint.
    pub(super) changed: bool,
    /// A checkpoint has placed nodes and is not prepared, or was given up then: nothing but the next one makes them count.
    pub(super) is_abandoned: bool,
    pub(super) metrics: F2fsMetrics,
    /// A bug that tests have to find.
    pub(super) planted: Option<PlantedBug>,
    /// Whether new files and symbolic links begin with inline contents; the next field says it of directories' entries.
    pub(super) inline_data: bool,
    pub(super) inline_dentry: bool,
    /// Whether each fsync is a checkpoint.
    pub(super) fastboot: bool,
    /// Stamp in the footers of nodes.
    pub(super) epoch: Epoch,
    /// Whether a checkpoint was prepared and is not complete.
    pub(super) is_pending: bool,
    /// Changes since the last checkpoint.
    pub(super) since: Since,
}

/// Appends a write of metadata; see [`State::write`]. Where `is_apart`, no write goes past the end of a segment.
pub(super) fn push(outbox: &mut Vec<Write>, addr: Addr, block: &BlockBytes, ino: u32, is_apart: bool) {
    let mut write = Write::new(Geometry::block(addr), Contents::One(payload_of(block)));
    write.tags = [METADATA, Tag(u64::from(ino))];
    match outbox.last_mut() {
        Some(last)
            if last.tags == write.tags
                && last.block.0 + last.payloads.len() as u64 == write.block.0
                && !(is_apart && addr.0.is_multiple_of(SEGMENT_BLOCKS)) =>
        {
            write.payloads.iter().for_each(|payload| last.payloads.push(payload.clone()));
        }
        _ => outbox.push(write),
    }
}

impl State {
    // Nodes.

    pub(super) fn inode(&self, nid: Nid) -> Step<&Inode> {
        match self.inodes.get(&nid) {
            Some(inode) => Ok(inode),
            None if self.nat.get(&nid).is_some_and(|entry| entry.addr.is_place()) => Err(Stop::Inode(nid)),
            None => Err(Errno::ESTALE.into()),
        }
    }

    /// Whether a file ends in the middle of this page.
    pub(super) fn ends_within(&self, ino: Nid, index: u64) -> Step<bool> {
        let size = self.inode(ino)?.size;
        Ok(!size.is_multiple_of(BLOCK_BYTES as u64) && size / BLOCK_BYTES as u64 == index)
    }

    /// The inode, marked as dirty.
    pub(super) fn inode_mut(&mut self, nid: Nid) -> Step<&mut Inode> {
        self.inode(nid)?;
        self.dirty.insert((nid, nid));
        self.only_times.remove(&nid);
        self.changed = true;
        Ok(self.inodes.get_mut(&nid).expect("it was found"))
    }

    /// The inode, marked as dirty in its times only.
    pub(super) fn inode_times(&mut self, nid: Nid) -> Step<&mut Inode> {
        self.inode(nid)?;
        if self.dirty.insert((nid, nid)) {
            self.only_times.insert(nid);
        }
        self.changed = true;
        Ok(self.inodes.get_mut(&nid).expect("it was found"))
    }

    pub(super) fn node(&self, nid: Nid, ino: Nid, offset: u32) -> Step<&BlockBytes> {
        self.nodes.get(&nid).map(|block| &**block).ok_or(Stop::Node { nid, ino, offset })
    }

    /// A node number that is free. This does not take it.
    fn free_nid(&self) -> Step<Nid> {
        let end = self.geometry.nid_end().0;
        let is_free = |nid: &u32| {
            self.nat.get(&Nid(*nid)).is_none_or(|entry| entry.addr == Addr::NULL)
                && !self.since.freed.contains(&Nid(*nid))
                && !self.since.chained.contains(&Nid(*nid))
        };
        let from = self.next_nid.0.clamp(Nid::ROOT.0 + 1, end);
        let mut candidates = (from..end).chain(Nid::ROOT.0 + 1..from);
        candidates.find(is_free).map(Nid).ok_or_else(|| Errno::ENOSPC.into())
    }

    /// Takes the number of a node of an inode, or of an inode. Its block is written with the next checkpoint.
    pub(super) fn take_nid(&mut self, nid: Nid, ino: Nid) {
        let version = self.nat.get(&nid).map_or(0, |entry| entry.version);
        self.nat.insert(nid, NatEntry { version, ino, addr: Addr::NEW });
        self.next_nid = Nid(nid.0 + 1);
        self.valid_nodes += 1;
        self.valid_blocks += 1;
        self.since.taken += 1;
        self.since.new.insert(nid);
        self.dirty.insert((ino, nid));
        self.changed = true;
    }

    /// Creates an inode without a name.
    pub(super) fn new_inode(&mut self, mode: u16) -> Step<Nid> {
        let nid = self.free_nid()?;
        let inode = Inode::new(nid, mode, self.superblock.features);
        self.take_nid(nid, nid);
        self.valid_inodes += 1;
        self.inodes.insert(nid, Box::new(inode));
        Ok(nid)
    }

    pub(super) fn new_node(&mut self, ino: Nid, offset: u32) -> Step<Nid> {
        let known = self.since.numbers.get(&(ino, offset)).copied();
        let is_free = |nid: &Nid| self.nat.get(nid).is_none_or(|entry| entry.addr == Addr::NULL);
        let nid = match known.filter(is_free) {
            Some(nid) => nid,
            None => self.free_nid()?,
        };
        let mut block = Box::new([0; BLOCK_BYTES]);
        Footer { nid, ino, offset, ..Footer::default() }.encode(&mut block[..]);
        self.take_nid(nid, ino);
        self.nodes.insert(nid, block);
        self.inode_mut(ino)?.blocks += 1;
        Ok(nid)
    }

    /// Frees a node. `ino` is its inode, whose count of blocks changes unless it is the node itself.
    pub(super) fn free_node(&mut self, nid: Nid, ino: Nid) -> Step<()> {
        if nid != ino {
            let inode = self.inode_mut(ino)?;
            inode.blocks = inode.blocks.checked_sub(1).ok_or(Errno::EUCLEAN)?;
            self.since.shrunk.insert(ino);
        }
        if let Some(entry) = self.nat.get_mut(&nid) {
            let addr = std::mem::replace(&mut entry.addr, Addr::NULL);
            // Entries of the inode map have no version.
            entry.version = entry.version.wrapping_add(u8::from(!self.geometry.is_appended()));
            self.release_block(addr);
        }
        self.area.note_node(nid);
        self.nodes.remove(&nid);
        self.inodes.remove(&nid);
        self.dirty.remove(&(ino, nid));
        self.only_times.remove(&nid);
        self.since.freed.insert(nid);
        // A hostile volume may have counted fewer.
        self.valid_nodes = self.valid_nodes.saturating_sub(1);
        self.valid_blocks = self.valid_blocks.saturating_sub(1);
        self.changed = true;
        Ok(())
    }

    /// Leaves a write of metadata for the caller to submit. `ino` is the inode to which it belongs, or 0 for shared structures.
    pub(super) fn write(&mut self, addr: Addr, block: &BlockBytes, ino: u32) {
        push(&mut self.outbox, addr, block, ino, self.geometry.is_appended());
    }

    // Addresses of data.

    /// The node that holds the address of a block of a file, and the word in it. With `create`, missing nodes are made once all
    /// existing ones are in memory.
    pub(super) fn slot(&mut self, ino: Nid, index: u64, create: bool) -> Step<Option<(Nid, u32)>> {
        let inode = self.inode(ino)?;
        let path = Path::to(index, inode.address_count()).ok_or(Errno::EFBIG)?;
        let mut last = ino;
        for (level, step) in path.steps().iter().enumerate() {
            let nid = match level {
                0 => self.inode(ino)?.node(step.slot as usize),
                _ => Nid(node::word(&self.nodes[&last][..], step.slot)),
            };
            if nid == Nid(0) && !create {
                return Ok(None);
            }
            if nid == Nid(0) {
                let nid = self.new_node(ino, step.offset)?;
                match level {
                    0 => self.inode_mut(ino)?.set_node(step.slot as usize, nid),
                    _ => self.set_word(last, step.slot, nid.0),
                }
                last = nid;
            } else {
                self.node(nid, ino, step.offset)?;
                last = nid;
            }
        }
        Ok(Some((last, path.index)))
    }

    fn set_word(&mut self, nid: Nid, index: u32, value: u32) {
        let block = self.nodes.get_mut(&nid).expect("it is in memory");
        node::set_word(&mut block[..], index, value);
        self.dirty.insert((self.nat[&nid].ino, nid));
        self.changed = true;
    }

    pub(super) fn address_in(&self, ino: Nid, nid: Nid, index: u32) -> Step<Addr> {
        match nid == ino {
            true => Ok(self.inode(ino)?.address(index)),
            false => Ok(Addr(node::word(&self.nodes[&nid][..], index))),
        }
    }

    pub(super) fn set_address_in(&mut self, ino: Nid, nid: Nid, index: u32, addr: Addr) -> Step<()> {
        match nid == ino {
            true => self.inode_mut(ino)?.set_address(index, addr),
            false => self.set_word(nid, index, addr.0),
        }
        Ok(())
    }

    /// A run of pages of a file from page `first` on, within one node.
    pub(super) fn pages_from(&mut self, ino: Nid, first: u64) -> Step<PageRun> {
        let inode = self.inode(ino)?;
        let hole = |end: u64| PageRun { end, has_data: false };
        if inode.has_inline(node::inline::DATA) {
            let has_data = first == 0 && inode.has_inline(node::inline::DATA_EXIST);
            return Ok(PageRun { end: if first == 0 { 1 } else { u64::MAX }, has_data });
        }
        let addresses = inode.address_count();
        let Some(path) = Path::to(first, addresses) else { return Ok(hole(u64::MAX)) };
        let Some((nid, at)) = self.slot(ino, first, false)? else {
            return Ok(hole(self.hole_end(ino, first, &path)?));
        };
        let (has_inline_block, mut run) = (self.blocks.contains_key(&(ino, first)), hole(first));
        for page in 0..path.blocks_left(addresses) {
            // Contents that were inline are in memory until their block is written.
            let is_data = self.address_in(ino, nid, at + page)?.is_place()
                || has_inline_block && self.blocks.contains_key(&(ino, first + u64::from(page)));
            if page == 0 {
                run.has_data = is_data;
            }
            if is_data != run.has_data {
                break;
            }
            run.end += 1;
        }
        Ok(run)
    }

    /// End of the range that a missing node would map: the highest missing one on the path to a page.
    fn hole_end(&self, ino: Nid, first: u64, path: &Path) -> Step<u64> {
        let inode = self.inode(ino)?;
        let (addresses, words) = (u64::from(inode.address_count()), u64::from(node::NODE_WORDS));
        let mut begin = addresses;
        let slot = path.steps().first().map_or(0, |step| step.slot as usize);
        let pages = |slot: usize| words.pow([1, 1, 2, 2, 3][slot]);
        begin += (0..slot).map(pages).sum::<u64>();
        let mut span = pages(slot);
        let mut last = inode.node(slot);
        for step in path.steps().iter().skip(1) {
            if last == Nid(0) {
                break;
            }
            span /= words;
            begin += u64::from(step.slot) * span;
            last = Nid(node::word(self.node(last, ino, step.offset)?, step.slot));
        }
        debug_assert!(last == Nid(0) && (begin..begin + span).contains(&first));
        Ok(begin + span)
    }

    /// The end of the pages that the same node maps as this one, or of the hole; all pages are in front of it if there are no more. The node is
    /// in memory afterwards.
    pub(super) fn leaf_end(&mut self, ino: Nid, index: u64) -> Step<u64> {
        let addresses = self.inode(ino)?.address_count();
        let Some(path) = Path::to(index, addresses) else { return Ok(u64::MAX) };
        match self.slot(ino, index, false)? {
            Some((nid, at)) => {
                let words = if nid == ino { addresses } else { node::NODE_WORDS };
                Ok(index + u64::from(words - at))
            }
            None => self.hole_end(ino, index, &path),
        }
    }

    /// The address of a block of a file whose contents are not inline.
    pub(super) fn address(&mut self, ino: Nid, index: u64) -> Step<Addr> {
        match self.slot(ino, index, false)? {
            None => Ok(Addr::NULL),
            Some((nid, at)) => self.address_in(ino, nid, at),
        }
    }

    /// Reserves room for a block that has none. The caller has checked that there is some.
    pub(super) fn reserve(&mut self, ino: Nid, index: u64) -> Step<()> {
        let (nid, at) = self.slot(ino, index, true)?.expect("it was created");
        if self.address_in(ino, nid, at)? == Addr::NULL {
            self.set_address_in(ino, nid, at, Addr::NEW)?;
            self.valid_blocks += 1;
            self.since.taken += 1;
            self.inode_mut(ino)?.blocks += 1;
        }
        Ok(())
    }

    /// Allocates the next place for a block that is reserved or rewritten.
    pub(super) fn place(&mut self, ino: Nid, index: u64, log: Log) -> Step<Addr> {
        let slot = self.slot(ino, index, false)?;
        let (nid, at) = slot.expect("a block is reserved before it is written");
        let version = self.nat[&nid].version;
        let addr = self.allocate(log, Owner { nid, version, offset: at as u16 })?;
        let old = self.address_in(ino, nid, at)?;
        self.set_address_in(ino, nid, at, addr)?;
        self.release_block(old);
        if self.inode(ino)?.extent.blocks > 0 {
            // The extent is a hint of where the data are, and may be wrong now.
            self.inode_mut(ino)?.extent = Default::default();
        }
        if old == Addr::NULL {
            // A write without a reservation takes its room now.
            self.valid_blocks += 1;
            self.since.taken += 1;
            self.inode_mut(ino)?.blocks += 1;
        }
        Ok(addr)
    }

    fn free_address(&mut self, ino: Nid, nid: Nid, at: u32) -> Step<()> {
        let addr = self.address_in(ino, nid, at)?;
        if addr != Addr::NULL {
            self.set_address_in(ino, nid, at, Addr::NULL)?;
            self.release_block(addr);
            self.valid_blocks = self.valid_blocks.saturating_sub(1);
            let inode = self.inode_mut(ino)?;
            inode.blocks = inode.blocks.checked_sub(1).ok_or(Errno::EUCLEAN)?;
        }
        Ok(())
    }

    /// Turns the blocks of a range into holes. Nodes stay.
    pub(super) fn free_blocks(&mut self, ino: Nid, (first, end): (u64, u64)) -> Step<()> {
        let addresses = self.inode(ino)?.address_count();
        let mut index = first;
        while index < end
            && let Some(path) = Path::to(index, addresses)
        {
            if self.slot(ino, index, false)?.is_some() {
                self.free_block(ino, index)?;
                index += 1;
            } else {
                index = self.hole_end(ino, index, &path)?;
            }
        }
        Ok(())
    }

    /// Turns a block into a hole. Nodes stay.
    pub(super) fn free_block(&mut self, ino: Nid, index: u64) -> Step<()> {
        if let Some((nid, at)) = self.slot(ino, index, false)? {
            self.free_address(ino, nid, at)?;
            self.blocks.remove(&(ino, index));
            self.blocks_dirty.remove(&(ino, index));
        }
        if self.inode(ino)?.extent.blocks > 0 {
            self.inode_mut(ino)?.extent = Default::default();
        }
        Ok(())
    }

    /// Frees all blocks from `first` on, and nodes that are not needed any more. It may be run again after it has stopped.
    pub(super) fn truncate(&mut self, ino: Nid, first: u64) -> Step<()> {
        let inode = self.inode(ino)?;
        if !inode.has_addresses() {
            return Ok(());
        }
        let addresses = inode.address_count();
        // All nodes come into memory before anything is freed, so that it is done wholly or, if one cannot be read, not at all.
        let words = u64::from(node::NODE_WORDS);
        let mut start = u64::from(addresses);
        let mut offset = 1;
        for (slot, height) in [0, 0, 1, 1, 2].into_iter().enumerate() {
            self.load_below(ino, self.inode(ino)?.node(slot), height, offset, start, first)?;
            start += words.pow(height + 1);
            offset += if height == 0 { 1 } else { node::NODE_WORDS + 1 };
        }
        for at in 0..addresses {
            if u64::from(at) >= first {
                self.free_address(ino, ino, at)?;
            }
        }
        let mut start = u64::from(addresses);
        let mut offset = 1;
        for (slot, height) in [0, 0, 1, 1, 2].into_iter().enumerate() {
            let nid = self.inode(ino)?.node(slot);
            if nid != Nid(0) && self.truncate_below(ino, nid, height, offset, start, first)? {
                self.inode_mut(ino)?.set_node(slot, Nid(0));
            }
            start += words.pow(height + 1);
            offset += if height == 0 { 1 } else { node::NODE_WORDS + 1 };
        }
        let gone: Vec<_> = self.blocks.range((ino, first)..=(ino, u64::MAX)).map(|(key, _)| *key).collect();
        for key in gone {
            self.blocks.remove(&key);
            self.blocks_dirty.remove(&key);
        }
        let inode = self.inode(ino)?;
        if u64::from(inode.extent.index) + u64::from(inode.extent.blocks) > first {
            self.inode_mut(ino)?.extent = Default::default();
        }
        Ok(())
    }

    /// Brings the nodes that [`Self::truncate_below`] looks at into memory.
    fn load_below(
        &mut self,
        ino: Nid,
        nid: Nid,
        height: u32,
        offset: u32,
        start: u64,
        first: u64,
    ) -> Step<()> {
        let words = u64::from(node::NODE_WORDS);
        let mapped = words.pow(height);
        if nid == Nid(0) || start + words * mapped <= first {
            return Ok(());
        }
        self.node(nid, ino, offset)?;
        if height == 0 {
            return Ok(());
        }
        let nodes_below = [0, 1, node::NODE_WORDS + 1][height as usize];
        let begin = first.saturating_sub(start) / mapped;
        for at in begin as u32..node::NODE_WORDS {
            let child = Nid(node::word(&self.nodes[&nid][..], at));
            let (offset, start) = (offset + 1 + at * nodes_below, start + u64::from(at) * mapped);
            self.load_below(ino, child, height - 1, offset, start, first)?;
        }
        Ok(())
    }

    /// Truncates below a node that is `height` levels above data and maps the file from block `start` on. Returns whether the node
    /// itself was freed.
    pub(super) fn truncate_below(
        &mut self,
        ino: Nid,
        nid: Nid,
        height: u32,
        offset: u32,
        start: u64,
        first: u64,
    ) -> Step<bool> {
        let words = u64::from(node::NODE_WORDS);
        let mapped = words.pow(height);
        if start + words * mapped <= first {
            return Ok(false);
        }
        self.node(nid, ino, offset)?;
        let nodes_below = [0, 1, node::NODE_WORDS + 1][height as usize];
        let begin = first.saturating_sub(start) / mapped;
        for at in begin as u32..node::NODE_WORDS {
            if height == 0 {
                self.free_address(ino, nid, at)?;
                continue;
            }
            let child = Nid(node::word(&self.nodes[&nid][..], at));
            let (child_offset, child_start) = (offset + 1 + at * nodes_below, start + u64::from(at) * mapped);
            if child != Nid(0)
                && self.truncate_below(ino, child, height - 1, child_offset, child_start, first)?
            {
                self.set_word(nid, at, 0);
            }
        }
        if first <= start {
            self.free_node(nid, ino)?;
            return Ok(true);
        }
        Ok(false)
    }

    /// Frees an inode with everything that it has. It may be run again after it has stopped.
    pub(super) fn destroy(&mut self, ino: Nid) -> Step<()> {
        self.truncate(ino, 0)?;
        let xattr = self.inode(ino)?.xattr_nid;
        if xattr != Nid(0) {
            self.inode_mut(ino)?.xattr_nid = Nid(0);
            self.free_node(xattr, ino)?;
        }
        self.free_node(ino, ino)?;
        self.valid_inodes = self.valid_inodes.saturating_sub(1);
        self.orphans.remove(&ino);
        Ok(())
    }

    // Extended attributes.

    /// All extended attributes of an inode.
    pub(super) fn xattrs(&self, ino: Nid) -> Step<Vec<Xattr>> {
        let inode = self.inode(ino)?;
        let mut room = inode.xattr_bytes().to_vec();
        if inode.xattr_nid != Nid(0) {
            let block = self.node(inode.xattr_nid, ino, Footer::XATTR_OFFSET)?;
            room.extend_from_slice(&block[..xattr::NODE_BYTES]);
        }
        xattr::decode(&room).map_err(|_| Errno::EUCLEAN.into())
    }

    /// Replaces all extended attributes of an inode, after [`Self::xattrs`]. Those that do not fit into the inode continue in a
    /// node.
    pub(super) fn set_xattrs(&mut self, ino: Nid, xattrs: &[Xattr]) -> Step<()> {
        let inode = self.inode(ino)?;
        let (inside, nid) = (inode.xattr_bytes().len(), inode.xattr_nid);
        if let Some(room) = xattr::encode(xattrs, inside) {
            self.inode_mut(ino)?.xattr_bytes_mut().copy_from_slice(&room);
            if nid != Nid(0) {
                self.inode_mut(ino)?.xattr_nid = Nid(0);
                self.free_node(nid, ino)?;
            }
            return Ok(());
        }
        let room = xattr::encode(xattrs, inside + xattr::NODE_BYTES).ok_or(Errno::ENOSPC)?;
        let nid = if nid == Nid(0) {
            self.check_room(1)?;
            let nid = self.new_node(ino, Footer::XATTR_OFFSET)?;
            self.inode_mut(ino)?.xattr_nid = nid;
            nid
        } else {
            nid
        };
        self.inode_mut(ino)?.xattr_bytes_mut().copy_from_slice(&room[..inside]);
        let block = self.nodes.get_mut(&nid).expect("it was read or made");
        block[..xattr::NODE_BYTES].copy_from_slice(&room[inside..]);
        self.dirty.insert((ino, nid));
        Ok(())
    }

    /// The log to which a file's data go.
    pub(super) fn data_log(&self, ino: Nid) -> Step<Log> {
        let inode = self.inode(ino)?;
        let cold = inode.advise & node::advise::COLD != 0;
        Ok(match inode.kind() {
            Kind::Directory => Log::HotData,
            _ if cold => Log::ColdData,
            _ => Log::WarmData,
        })
    }
}
