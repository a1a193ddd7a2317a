//! State in memory of a volume that is mounted for writing: metadata blocks, inodes, descriptors, the running transaction.
//!
//! Everything here is synchronous and either done or not done. What an operation changes is noted in [`State::undo`]
//! first; if it fails, or stops because it needs a block that is not in memory ([`Stop`]), all of it is reverted. An operation that stopped
//! is run again when the block is there. So no operation is ever seen half done by another one or by a transaction.
//!
//! Invariants:
//! 1. A block that differs from what the last committed transaction has is in the running one. Blocks that were changed
//!    stay in memory, so none is read from the disk while the journal has a newer one.
//! 2. A block that a transaction frees is not used again before that transaction is committed.
//! 3. Blocks that are free, less those that wait for a commit, are at least as many as are claimed.

use super::super::error::Error;
use super::super::layout::extent::Extent;
use super::super::layout::group::{GroupDesc, block_bitmap_checksum, inode_bitmap_checksum};
use super::super::layout::inode::flags;
use super::super::layout::{Addr, Geometry, Group, Ino, Superblock, extent, superblock};
use super::super::{Inode, Result as FormatResult};
use super::by_addr::ByAddr;
use super::options::{Ext4Metrics, PlantedBug};
use super::spans::Spans;
use crate::format::{Kind, put};
use crate::port::{BLOCK_BYTES, BlockBytes, payload_of};
use crate::vfs::{Errno, Timestamp};
use flashweir_core::Payload;
use std::cell::{OnceCell, RefCell};
use std::collections::{BTreeMap, BTreeSet};
use std::ops::Range;
use std::rc::Rc;

/// Why an operation stopped.
#[derive(Debug)]
pub(crate) enum Stop {
    /// It needs a block of metadata.
    Block(Addr),
    /// It needs an inode.
    Inode(Ino),
    /// It failed.
    Failed(Errno),
}

impl From<Errno> for Stop {
    fn from(errno: Errno) -> Self {
        Self::Failed(errno)
    }
}

impl From<Error> for Stop {
    fn from(_: Error) -> Self {
        Self::Failed(Errno::EUCLEAN)
    }
}

pub(super) type Step<T> = Result<T, Stop>;

/// A block of metadata.
#[derive(Debug)]
pub(super) struct Buffer {
    pub(super) bytes: Box<BlockBytes>,
    /// Number of the operation that changed it last.
    op: u64,
    /// Whether its checksum was checked, or it was made here.
    pub(super) is_checked: bool,
    /// Its content decoded as a node of an extent tree, with the seed of its checksum; empty after a change until it is needed.
    node: OnceCell<(u32, Rc<extent::Node>)>,
    /// Whether the node was changed and the bytes follow when the transaction is closed.
    is_behind: bool,
}

impl Buffer {
    fn new(bytes: Box<BlockBytes>, op: u64, is_checked: bool) -> Self {
        Self { bytes, op, is_checked, node: OnceCell::new(), is_behind: false }
    }

    /// The extents of a leaf that was decoded.
    fn extents_mut(&mut self) -> Option<&mut Vec<Extent>> {
        match &mut Rc::make_mut(&mut self.node.get_mut()?.1).entries {
            extent::Entries::Leaf(extents) => Some(extents),
            extent::Entries::Index(_) => None,
        }
    }
}

/// An inode. Its own size is the one that the disk knows: behind it there are only pages that were not written yet.
#[derive(Clone, Debug)]
pub(super) struct Node {
    pub(super) inode: Inode,
    /// The root of its extent tree, and the seed of the checksums of the other nodes; empty after a change until it is needed.
    root: OnceCell<(Rc<extent::Node>, u32)>,
    /// Size in bytes, including what is only in memory.
    pub(super) size: u64,
    /// End of the last page that was written back: the size on the disk may reach up to there.
    pub(super) written_end: u64,
    /// Whether it was freed; it is kept until its bytes are in the block of the table.
    pub(super) is_gone: bool,
    /// The last transaction with a change of it; the next field is the last one with a change that is needed to find its data.
    pub(super) tid: u64,
    pub(super) data_tid: u64,
    /// The transaction that was running when data of it were dispatched last.
    pub(super) written_tid: u64,
    op: u64,
}

/// A group of blocks.
#[derive(Debug)]
pub(super) struct GroupState {
    pub(super) desc: GroupDesc,
    op: u64,
    /// A bit for each block that cannot be allocated now, where the bitmap is in memory.
    pub(super) taken: Option<Vec<u64>>,
    /// Upper bound of the free blocks in a row.
    pub(super) longest: u32,
}

/// Blocks that are claimed for pages of a file that will be written.
#[derive(Debug, Default)]
pub(super) struct Claim {
    /// Pages that are in holes.
    pub(super) pages: BTreeSet<u64>,
    /// Pages with blocks that were never written.
    pub(super) unwritten: BTreeSet<u64>,
    /// Number of blocks of the extent tree that writing them may need.
    pub(super) tree: u64,
}

impl Claim {
    /// Most extents that writing them adds.
    pub(super) fn entries(&self) -> u64 {
        self.pages.len() as u64 + 2 * self.unwritten.len() as u64
    }
}

/// Changes that are committed together.
#[derive(Debug, Default)]
pub(super) struct Transaction {
    pub(super) tid: u64,
    pub(super) blocks: BTreeSet<Addr>,
    pub(super) inodes: BTreeSet<Ino>,
    pub(super) groups: BTreeSet<Group>,
    pub(super) has_superblock: bool,
    pub(super) revoked: BTreeSet<Addr>,
    /// Blocks of files, if those are journalled.
    pub(super) data: BTreeMap<Addr, Payload>,
    /// Runs of blocks that it frees.
    pub(super) freed: Vec<(Addr, u32)>,
}

/// A transaction that takes no more changes.
#[derive(Debug)]
pub(super) struct ClosedTransaction {
    pub(super) tid: u64,
    pub(super) blocks: Vec<(Addr, Payload)>,
    pub(super) revoked: Vec<Addr>,
    pub(super) freed: Vec<(Addr, u32)>,
}

/// Counts in memory.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Counts {
    /// Number of free blocks according to the descriptors; the next field counts inodes.
    pub(super) free_blocks: u64,
    pub(super) free_inodes: u64,
    /// Number of blocks that are free once a commit is complete.
    pub(super) waiting: u64,
    /// Number of blocks that are claimed.
    pub(super) claimed: u64,
    /// Number of blocks of extent trees that this operation took from a claim.
    pub(super) taken_for_tree: u64,
    freed: usize,
}

/// Most extents that are replaced in place: one and its neighbours.
const EXTENTS_MAX: usize = 3;

#[derive(Debug)]
enum Undo {
    Buffer(Addr, Option<Buffer>),
    ExtentNode {
        addr: Addr,
        node: OnceCell<(u32, Rc<extent::Node>)>,
        was_behind: bool,
    },
    /// The `new` extents of a leaf from `at` on were the first `count` of these.
    Extents {
        addr: Addr,
        at: usize,
        new: usize,
        old: [Extent; EXTENTS_MAX],
        count: usize,
        was_behind: bool,
    },
    Clean(Addr),
    Node(Ino, Option<Box<Node>>),
    /// The transactions that a sync of this inode has to commit: for everything, and for its data.
    Tids(Ino, u64, u64),
    Desc(Group, Box<GroupDesc>),
    Bits {
        group: Group,
        first: u32,
        count: u32,
        were_taken: bool,
    },
    Revoked(Addr),
    Data(Addr, Payload),
    Orphans(Vec<Ino>),
}

/// See the module.
#[derive(Debug)]
pub(crate) struct State {
    pub(super) superblock: Superblock,
    pub(super) geometry: Geometry,
    pub(super) groups: Vec<GroupState>,
    pub(super) buffers: ByAddr<Buffer>,
    pub(super) nodes: BTreeMap<Ino, Box<Node>>,
    /// Claims of files with pages that will be written.
    pub(super) claims: BTreeMap<Ino, Claim>,
    /// Inodes that are to be freed or truncated, in the order of the list on the disk.
    pub(super) orphans: Vec<Ino>,
    pub(super) held: BTreeMap<Ino, u32>,
    pub(super) running: Transaction,
    pub(super) counts: Counts,
    /// Whether blocks are being taken from a claim.
    pub(super) is_spending: bool,
    /// The latest time that was seen.
    pub(super) clock: Timestamp,
    pub(super) metrics: Ext4Metrics,
    /// A bug that tests have to find.
    pub(super) planted: Option<PlantedBug>,
    /// Whether blocks of files are journalled.
    pub(super) journals_data: bool,
    /// Data of the transaction that was closed last, until the journal has them.
    pub(super) closed_data: BTreeMap<Addr, Payload>,
    undo: Vec<Undo>,
    before: Counts,
    op: u64,
    /// Parts of files that were looked up.
    pub(super) spans: Spans,
    /// The leaf that maps the part of a file that was looked up last; none after a change of a tree.
    pub(super) last_leaf: RefCell<Option<(Ino, extent::Place, Rc<extent::Node>)>>,
}

impl State {
    /// Returns the state of a volume with this superblock and these descriptors.
    pub(super) fn new(superblock: Superblock, descs: Vec<GroupDesc>) -> Self {
        let seconds = superblock.write_time.max(superblock.mkfs_time).max(superblock.mount_time);
        let free_blocks = descs.iter().map(|desc| u64::from(desc.free_blocks)).sum();
        let free_inodes = descs.iter().map(|desc| u64::from(desc.free_inodes)).sum();
        let group = |desc| GroupState { desc, op: 0, taken: None, longest: u32::MAX };
        Self {
            geometry: superblock.geometry(),
            superblock,
            groups: descs.into_iter().map(group).collect(),
            buffers: ByAddr::default(),
            nodes: BTreeMap::new(),
            claims: BTreeMap::new(),
            orphans: Vec::new(),
            held: BTreeMap::new(),
            running: Transaction { tid: 1, ..Transaction::default() },
            counts: Counts { free_blocks, free_inodes, ..Counts::default() },
            is_spending: false,
            clock: Timestamp { seconds: seconds as i64, nanos: 0 },
            metrics: Ext4Metrics::default(),
            planted: None,
            journals_data: false,
            closed_data: BTreeMap::new(),
            undo: Vec::new(),
            before: Counts::default(),
            op: 1,
            spans: Spans::default(),
            last_leaf: RefCell::default(),
        }
    }

    // Operations.

    /// Runs an operation: it is done completely, or nothing has changed.
    pub(super) fn attempt<T>(&mut self, operation: impl FnOnce(&mut Self) -> Step<T>) -> Step<T> {
        debug_assert!(self.undo.is_empty());
        self.op += 1;
        self.counts.taken_for_tree = 0;
        self.counts.freed = self.running.freed.len();
        self.before = self.counts;
        self.is_spending = false;
        let result = operation(self);
        self.is_spending = false;
        match result {
            Ok(_) => self.undo.clear(),
            Err(_) => self.take_back(),
        }
        let counts = &self.counts;
        debug_assert!(counts.free_blocks >= counts.waiting + counts.claimed, "{counts:?}");
        result
    }

    fn take_back(&mut self) {
        while let Some(undo) = self.undo.pop() {
            match undo {
                Undo::Buffer(addr, Some(buffer)) => drop(self.buffers.insert(addr, buffer)),
                Undo::Buffer(addr, None) => {
                    self.buffers.remove(&addr);
                    self.running.blocks.remove(&addr);
                }
                Undo::ExtentNode { addr, node, was_behind } => {
                    let buffer = self.buffers.get_mut(&addr).expect("a node that was changed is in memory");
                    (buffer.node, buffer.is_behind) = (node, was_behind);
                }
                Undo::Extents { addr, at, new, old, count, was_behind } => {
                    self.last_leaf.take();
                    let buffer = self.buffers.get_mut(&addr).expect("a node that was changed is in memory");
                    buffer
                        .extents_mut()
                        .expect("it is a leaf")
                        .splice(at..at + new, old.into_iter().take(count));
                    buffer.is_behind = was_behind;
                }
                Undo::Clean(addr) => drop(self.running.blocks.insert(addr)),
                Undo::Node(ino, Some(node)) => drop(self.nodes.insert(ino, node)),
                Undo::Node(ino, None) => {
                    self.nodes.remove(&ino);
                    self.running.inodes.remove(&ino);
                }
                Undo::Tids(ino, tid, data_tid) => {
                    if let Some(node) = self.nodes.get_mut(&ino) {
                        (node.tid, node.data_tid) = (tid, data_tid);
                    }
                }
                Undo::Desc(group, desc) => self.groups[group.0 as usize].desc = *desc,
                Undo::Bits { group, first, count, were_taken } => {
                    self.mark(group, first, count, were_taken);
                }
                Undo::Revoked(addr) => drop(self.running.revoked.remove(&addr)),
                Undo::Data(addr, payload) => drop(self.running.data.insert(addr, payload)),
                Undo::Orphans(orphans) => self.orphans = orphans,
            }
        }
        self.forget_lookups();
        self.running.freed.truncate(self.before.freed);
        self.counts = self.before;
    }

    pub(super) fn tick(&mut self, now: Timestamp) {
        self.clock = self.clock.max(now);
    }

    // Blocks of metadata.

    /// Takes over a block that was read. If the block is in memory already, that version is newer and stays.
    pub(super) fn loaded(&mut self, addr: Addr, bytes: Box<BlockBytes>) {
        self.buffers.insert_new(addr, Buffer::new(bytes, 0, false));
    }

    pub(super) fn block(&self, addr: Addr) -> Step<&BlockBytes> {
        let buffer = self.buffers.get(&addr).ok_or(Stop::Block(addr))?;
        debug_assert!(!buffer.is_behind, "{addr} is looked at as a node of an extent tree only");
        Ok(&buffer.bytes)
    }

    /// The block, noted as changed.
    pub(super) fn block_mut(&mut self, addr: Addr) -> Step<&mut BlockBytes> {
        let op = self.op;
        let buffer = self.buffers.get_mut(&addr).ok_or(Stop::Block(addr))?;
        debug_assert!(!buffer.is_behind, "{addr} is changed as a node of an extent tree only");
        let node = std::mem::take(&mut buffer.node);
        if buffer.op != op {
            let old = Buffer { node, bytes: buffer.bytes.clone(), ..*buffer };
            self.undo.push(Undo::Buffer(addr, Some(old)));
            buffer.op = op;
        }
        self.running.blocks.insert(addr);
        Ok(&mut buffer.bytes)
    }

    /// The root of the extent tree of a file, and the seed of the checksums of the other nodes. Errors: the inode is not in memory,
    /// or has no such tree.
    pub(super) fn extent_root(&self, ino: Ino) -> Step<&(Rc<extent::Node>, u32)> {
        let node = self.node(ino)?;
        if let Some(root) = node.root.get() {
            return Ok(root);
        }
        let root = Rc::new(root_of(&node.inode, &self.geometry)?);
        Ok(node.root.get_or_init(|| (root, node.inode.seed(&self.geometry))))
    }

    /// Another node of the tree. Errors: it is not in memory, or is not a node of this inode at this place. If a leaf was found
    /// valid earlier, only its depth is compared: a caller that takes extents from it checks their place.
    pub(super) fn extent_node(
        &self,
        addr: Addr,
        place: &extent::Place,
        inode_seed: u32,
    ) -> Step<&Rc<extent::Node>> {
        let buffer = self.buffers.get(&addr).ok_or(Stop::Block(addr))?;
        if let Some((seed, node)) = buffer.node.get() {
            // Otherwise two trees have this block, or two places of one.
            let is_its_place = if node.depth == 0 { place.depth == 0 } else { node.fits(place) };
            return if *seed == inode_seed && is_its_place { Ok(node) } else { Err(Errno::EUCLEAN.into()) };
        }
        let node = extent::Node::decode(&buffer.bytes[..], place, inode_seed, &self.geometry)?;
        Ok(&buffer.node.get_or_init(|| (inode_seed, Rc::new(node))).1)
    }

    /// Replaces a node of an extent tree.
    pub(super) fn put_extent_node(
        &mut self,
        addr: Addr,
        node: Rc<extent::Node>,
        inode_seed: u32,
    ) -> Step<()> {
        let op = self.op;
        self.forget_lookups();
        let buffer = self.buffers.get_mut(&addr).ok_or(Stop::Block(addr))?;
        let old = std::mem::replace(&mut buffer.node, OnceCell::from((inode_seed, node)));
        let was_behind = std::mem::replace(&mut buffer.is_behind, true);
        if buffer.op != op {
            self.undo.push(Undo::ExtentNode { addr, node: old, was_behind });
            buffer.op = op;
        }
        self.running.blocks.insert(addr);
        Ok(())
    }

    /// Replaces at most [`EXTENTS_MAX`] extents of a leaf, which was decoded, in place.
    pub(super) fn replace_extents(
        &mut self,
        (ino, place): (Ino, extent::Place),
        addr: Addr,
        range: Range<usize>,
        new: &[Extent],
    ) -> Step<()> {
        self.forget_lookups();
        let buffer = self.buffers.get_mut(&addr).ok_or(Stop::Block(addr))?;
        let extents = buffer.extents_mut().ok_or(Errno::EUCLEAN)?;
        let (at, count) = (range.start, range.len());
        let mut old = [Extent::default(); EXTENTS_MAX];
        old[..count].copy_from_slice(&extents[range.clone()]);
        match count == new.len() {
            true => extents[range].copy_from_slice(new),
            false => drop(extents.splice(range, new.iter().copied())),
        }
        let was_behind = std::mem::replace(&mut buffer.is_behind, true);
        self.last_leaf.replace(buffer.node.get().map(|(_, leaf)| (ino, place, Rc::clone(leaf))));
        self.undo.push(Undo::Extents { addr, at, new: new.len(), old, count, was_behind });
        self.running.blocks.insert(addr);
        Ok(())
    }

    fn forget_lookups(&mut self) {
        self.spans.forget();
        self.last_leaf.take();
    }

    /// Replaces a block whose contents on the disk are obsolete.
    pub(super) fn put_block(&mut self, addr: Addr, bytes: Box<BlockBytes>) {
        let old = self.buffers.insert(addr, Buffer::new(bytes, self.op, true));
        if old.as_ref().is_none_or(|old| old.op != self.op) {
            self.undo.push(Undo::Buffer(addr, old));
        }
        self.running.blocks.insert(addr);
    }

    /// Notes that a block is not a block of metadata any more.
    pub(super) fn forget_block(&mut self, addr: Addr) {
        if let Some(old) = self.buffers.remove(&addr) {
            // On undo it is restored to its present state first; then the earlier changes of this operation are reverted.
            self.undo.push(Undo::Buffer(addr, Some(old)));
        }
        if self.running.blocks.remove(&addr) {
            self.undo.push(Undo::Clean(addr));
        }
        self.revoke(addr);
    }

    /// Makes the journal's copies of a block invalid.
    fn revoke(&mut self, addr: Addr) {
        if self.running.revoked.insert(addr) {
            self.undo.push(Undo::Revoked(addr));
        }
    }

    // Blocks of files that are journalled.

    /// Sets the contents of blocks of a file, which is in memory, from the running transaction on. The last step of an operation.
    pub(super) fn put_data(
        &mut self,
        ino: Ino,
        addr: Addr,
        contents: impl Iterator<Item = Payload>,
    ) -> Step<()> {
        self.node_mut(ino)?;
        self.running.data.extend((addr.0..).map(Addr).zip(contents));
        Ok(())
    }

    /// Notes that a block does not belong to a file any more.
    pub(super) fn forget_data(&mut self, addr: Addr) {
        if let Some(payload) = self.running.data.remove(&addr) {
            self.undo.push(Undo::Data(addr, payload));
        }
        self.revoke(addr);
    }

    /// The content of a block of a file that the journal does not have yet.
    pub(super) fn newest_data(&self, addr: Addr) -> Option<&Payload> {
        self.running.data.get(&addr).or_else(|| self.closed_data.get(&addr))
    }

    // Descriptors.

    pub(super) fn group(&self, group: Group) -> &GroupState {
        &self.groups[group.0 as usize]
    }

    pub(super) fn desc_mut(&mut self, group: Group) -> &mut GroupDesc {
        let op = self.op;
        self.running.groups.insert(group);
        self.running.blocks.insert(self.geometry.desc_place(group).0);
        let state = &mut self.groups[group.0 as usize];
        if state.op != op {
            state.op = op;
            self.undo.push(Undo::Desc(group, Box::new(state.desc.clone())));
        }
        &mut state.desc
    }

    /// Marks blocks of a group as taken or free for allocation.
    pub(super) fn mark(&mut self, group: Group, first: u32, count: u32, as_taken: bool) {
        let state = &mut self.groups[group.0 as usize];
        let Some(taken) = &mut state.taken else { return };
        for bit in first..first + count {
            let (word, mask) = (&mut taken[bit as usize / 64], 1 << (bit % 64));
            *word = if as_taken { *word | mask } else { *word & !mask };
        }
        if !as_taken {
            state.longest = u32::MAX;
        }
    }

    /// Does the same within an operation, which may be undone.
    pub(super) fn mark_undoably(&mut self, group: Group, first: u32, count: u32, as_taken: bool) {
        self.mark(group, first, count, as_taken);
        self.undo.push(Undo::Bits { group, first, count, were_taken: !as_taken });
    }

    // Inodes.

    /// The block of the inode table that holds an inode, and the offset there.
    pub(super) fn inode_place(&self, ino: Ino) -> Step<(Addr, usize)> {
        let (group, index) = self.geometry.place_of_inode(ino).ok_or(Errno::ESTALE)?;
        let (block, at) = self.geometry.table_place(index);
        Ok((Addr(self.group(group).desc.inode_table.0 + u64::from(block)), at))
    }

    /// Decodes an inode whose block is in memory.
    pub(super) fn loaded_inode(&mut self, ino: Ino) -> Step<()> {
        let (addr, at) = self.inode_place(ino)?;
        if self.nodes.contains_key(&ino) {
            return Ok(());
        }
        let raw = &self.block(addr)?[at..at + usize::from(self.geometry.inode_bytes)];
        let inode = Inode::decode(raw, ino, &self.geometry)?;
        if inode.links == 0 && !self.orphans.contains(&ino) {
            return Err(Errno::ESTALE.into());
        }
        inode.kind().ok_or(Errno::EUCLEAN)?;
        let size = inode.size;
        self.nodes.insert(
            ino,
            Box::new(Node {
                inode,
                root: OnceCell::new(),
                size,
                written_end: size,
                is_gone: false,
                tid: 0,
                data_tid: 0,
                written_tid: 0,
                op: 0,
            }),
        );
        Ok(())
    }

    pub(super) fn node(&self, ino: Ino) -> Step<&Node> {
        match self.nodes.get(&ino) {
            Some(node) if node.is_gone => Err(Errno::ESTALE.into()),
            Some(node) => Ok(node),
            None if ino != Ino::ROOT && ino.0 < self.geometry.first_ino => Err(Errno::EUCLEAN.into()),
            None => Err(Stop::Inode(ino)),
        }
    }

    pub(super) fn inode(&self, ino: Ino) -> Step<&Inode> {
        self.node(ino).map(|node| &node.inode)
    }

    pub(super) fn kind(&self, ino: Ino) -> Step<Kind> {
        Ok(self.inode(ino)?.kind().ok_or(Errno::EUCLEAN)?)
    }

    /// Adds an inode, and with it its block of the table, to the running transaction.
    fn note_inode(&mut self, ino: Ino) -> Step<()> {
        if self.running.inodes.contains(&ino) {
            return Ok(());
        }
        let (addr, _) = self.inode_place(ino)?;
        self.running.inodes.insert(ino);
        self.running.blocks.insert(addr);
        Ok(())
    }

    /// An inode, noted as changed in fields that are not needed to find its data.
    pub(super) fn node_times(&mut self, ino: Ino) -> Step<&mut Node> {
        self.node(ino)?;
        self.note_inode(ino)?;
        let (op, tid) = (self.op, self.running.tid);
        self.forget_lookups();
        let node = self.nodes.get_mut(&ino).expect("it was found");
        if node.op != op {
            self.undo.push(Undo::Node(ino, Some(node.clone())));
            node.op = op;
        }
        node.tid = tid;
        node.root = OnceCell::new();
        Ok(node)
    }

    /// An inode, noted as changed.
    pub(super) fn node_mut(&mut self, ino: Ino) -> Step<&mut Node> {
        let tid = self.running.tid;
        let node = self.node_times(ino)?;
        node.data_tid = tid;
        Ok(node)
    }

    pub(super) fn inode_mut(&mut self, ino: Ino) -> Step<&mut Inode> {
        self.node_mut(ino).map(|node| &mut node.inode)
    }

    /// Adds a new inode; its block of the table is in memory.
    pub(super) fn put_inode(&mut self, inode: Inode) -> Step<()> {
        let ino = inode.ino;
        self.note_inode(ino)?;
        let tid = self.running.tid;
        let node = Node {
            inode,
            root: OnceCell::new(),
            size: 0,
            written_end: 0,
            is_gone: false,
            tid,
            data_tid: tid,
            written_tid: 0,
            op: self.op,
        };
        self.forget_lookups();
        let old = self.nodes.insert(ino, Box::new(node));
        self.undo.push(Undo::Node(ino, old));
        Ok(())
    }

    /// Notes, outside of an operation, that data of a file, which is in memory, were dispatched.
    pub(super) fn note_dispatched(&mut self, ino: Ino) {
        let tid = self.running.tid;
        if let Some(node) = self.nodes.get_mut(&ino) {
            node.written_tid = tid;
        }
    }

    /// Notes, outside of an operation, that something was written to a file, which is in memory.
    pub(super) fn note_written(&mut self, ino: Ino, change: impl FnOnce(&mut Node)) {
        if self.node(ino).is_ok() && self.note_inode(ino).is_ok() {
            let tid = self.running.tid;
            let node = self.nodes.get_mut(&ino).expect("it was found");
            node.tid = tid;
            change(node);
            let known = node.size.min(node.written_end);
            if known > node.inode.size {
                node.inode.size = known;
                node.data_tid = tid;
            }
        }
    }

    /// Notes that the extent tree of an inode, which is in memory, was changed below its root: a sync has to commit that.
    pub(super) fn note_tree(&mut self, ino: Ino) {
        let tid = self.running.tid;
        if let Some(node) = self.nodes.get_mut(&ino) {
            self.undo.push(Undo::Tids(ino, node.tid, node.data_tid));
            (node.tid, node.data_tid) = (tid, tid);
        }
    }

    /// Changes the space that an inode takes by `more` blocks.
    pub(super) fn count_blocks(&mut self, ino: Ino, more: i64) -> Step<()> {
        let geometry = self.geometry;
        let inode = self.inode_mut(ino)?;
        let sectors = inode.sectors(&geometry);
        let sectors = sectors.checked_add_signed(8 * more).ok_or(Errno::EUCLEAN)?;
        inode.set_sectors(sectors, &geometry);
        Ok(())
    }

    // Orphans.

    /// Adds an inode to those that the next mount frees or truncates, if nothing else comes.
    pub(super) fn add_orphan(&mut self, ino: Ino) -> Step<()> {
        if self.orphans.contains(&ino) {
            return Ok(());
        }
        let next = self.orphans.first().map_or(0, |next| next.0);
        self.undo.push(Undo::Orphans(self.orphans.clone()));
        self.orphans.insert(0, ino);
        self.running.has_superblock = true;
        self.node_times(ino)?.inode.dtime = next;
        Ok(())
    }

    pub(super) fn remove_orphan(&mut self, ino: Ino) -> Step<()> {
        let Some(at) = self.orphans.iter().position(|&orphan| orphan == ino) else { return Ok(()) };
        self.undo.push(Undo::Orphans(self.orphans.clone()));
        self.orphans.remove(at);
        let next = self.orphans.get(at).map_or(0, |next| next.0);
        match at.checked_sub(1) {
            Some(before) => self.node_times(self.orphans[before])?.inode.dtime = next,
            None => self.running.has_superblock = true,
        }
        self.node_times(ino)?.inode.dtime = 0;
        Ok(())
    }

    // Transactions.

    /// Whether the running transaction has changes.
    pub(super) fn is_changed(&self) -> bool {
        !self.running.blocks.is_empty() || self.running.has_superblock
    }

    /// Updates the superblock's counts from the state in memory.
    pub(super) fn update_superblock(&mut self) {
        self.superblock.free_blocks = self.counts.free_blocks;
        self.superblock.free_inodes = self.counts.free_inodes as u32;
        let first = self.orphans.first().filter(|_| self.planted != Some(PlantedBug::ForgottenOrphans));
        self.superblock.last_orphan = first.copied().unwrap_or_default();
        self.superblock.write_time = self.clock.seconds.max(0) as u64;
    }

    /// The first block of the volume, with the superblock as it is now.
    pub(super) fn superblock_block(&self) -> Step<Box<BlockBytes>> {
        let mut block = Box::new(*self.block(Addr(0))?);
        block[superblock::BYTES..2 * superblock::BYTES].copy_from_slice(&self.superblock.encode());
        Ok(block)
    }

    /// Replaces the first block of the volume, which has been written to the disk.
    pub(super) fn put_superblock(&mut self, block: Box<BlockBytes>) {
        self.buffers.insert(Addr(0), Buffer::new(block, 0, true));
    }

    /// Encodes a changed node into the bytes of its block.
    pub(super) fn encode_extent_node(&mut self, addr: Addr) {
        if let Some(buffer) = self.buffers.get_mut(&addr)
            && std::mem::take(&mut buffer.is_behind)
            && let Some((seed, node)) = buffer.node.get()
        {
            node.encode(&mut buffer.bytes[..], *seed, &self.geometry);
        }
    }

    /// Whether the running transaction has a block.
    pub(super) fn is_in_running(&self, addr: Addr) -> bool {
        let running = &self.running;
        running.blocks.contains(&addr)
            || running.data.contains_key(&addr)
            || running.has_superblock && addr == Addr(0)
    }

    /// Ends the running transaction and begins the next.
    pub(super) fn close(&mut self) -> Step<ClosedTransaction> {
        debug_assert!(self.undo.is_empty());
        let geometry = self.geometry;
        let tid = self.running.tid;
        let mut running =
            std::mem::replace(&mut self.running, Transaction { tid: tid + 1, ..Transaction::default() });
        for &ino in &running.inodes {
            let (addr, at) = self.inode_place(ino)?;
            let node = self.nodes.get(&ino).expect("a changed inode is in memory");
            let (raw, is_gone) = (node.inode.encode(&geometry), node.is_gone);
            put(&mut self.buffers.get_mut(&addr).ok_or(Stop::Block(addr))?.bytes[..], at, &raw);
            if is_gone {
                self.nodes.remove(&ino);
            }
        }
        for &group in &running.groups {
            let mut desc = self.group(group).desc.clone();
            if geometry.has_checksums() {
                if let Some(bitmap) = self.buffers.get(&desc.block_bitmap) {
                    desc.block_bitmap_checksum = block_bitmap_checksum(&geometry, &bitmap.bytes[..]);
                }
                if let Some(bitmap) = self.buffers.get(&desc.inode_bitmap) {
                    desc.inode_bitmap_checksum = inode_bitmap_checksum(&geometry, &bitmap.bytes[..]);
                }
            }
            let (addr, at) = geometry.desc_place(group);
            let raw = desc.encode(group, &geometry);
            put(&mut self.buffers.get_mut(&addr).ok_or(Stop::Block(addr))?.bytes[..], at, &raw);
            self.groups[group.0 as usize].desc = desc;
        }
        if running.has_superblock {
            self.update_superblock();
            let bytes = self.superblock_block()?;
            self.buffers.get_mut(&Addr(0)).ok_or(Stop::Block(Addr(0)))?.bytes = bytes;
            running.blocks.insert(Addr(0));
        }
        let mut blocks = Vec::with_capacity(running.blocks.len());
        for &addr in &running.blocks {
            running.revoked.remove(&addr);
            self.encode_extent_node(addr);
            blocks.push((addr, payload_of(self.block(addr)?)));
        }
        for (addr, payload) in &running.data {
            running.revoked.remove(addr);
            blocks.push((*addr, payload.clone()));
        }
        self.closed_data = running.data;
        self.metrics.commits += 1;
        self.metrics.journalled_blocks += blocks.len() as u64;
        self.metrics.revoked_blocks += running.revoked.len() as u64;
        let revoked = running.revoked.into_iter().collect();
        Ok(ClosedTransaction { tid, blocks, revoked, freed: running.freed })
    }
}

/// Converts bytes to a block.
pub(super) fn block_of(bytes: &[u8]) -> FormatResult<Box<BlockBytes>> {
    let block: [u8; BLOCK_BYTES] =
        bytes.try_into().map_err(|_| Error::Corrupt(format!("a block of {} bytes", bytes.len())))?;
    Ok(Box::new(block))
}

/// The root of a file that is mapped by extents.
fn root_of(inode: &Inode, geometry: &Geometry) -> Step<extent::Node> {
    if !inode.has(flags::EXTENTS) {
        return Err(Errno::EOPNOTSUPP.into());
    }
    Ok(extent::Node::decode_root(&inode.block, geometry)?)
}
