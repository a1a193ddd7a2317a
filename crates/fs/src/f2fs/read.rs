//! Reading of files, directories, links and extended attributes.
//!
//! Invariant: a node is taken for a part of a file only if its footer says that it is, of this file and at this place.
//! So no node is met twice, and every walk ends however a volume was broken.

use super::error::{Error, Result, corrupt};
use super::layout::dentry::{self, Entry, LEVELS_MAX, Slots};
use super::layout::node::{self, Footer, Inode, Kind, NODE_WORDS, Path, advise, inline};
use super::layout::xattr;
use super::layout::{Addr, Geometry, Nid};
use super::volume::Volume;
use crate::port::{BLOCK_BYTES, bytes_of};
use crate::xattrs::Xattr;
use flashweir_core::Payload;
use std::sync::Arc;

/// Most blocks that one call reads when a whole file is read.
const READ_BLOCKS: u64 = 256;

/// A part of a file: the addresses in one node, or a hole.
#[derive(Clone, Debug)]
pub(crate) enum Leaf {
    /// A hole of this many blocks, for which there is no node.
    Hole(u64),
    /// The addresses from the wanted one on, to the end of the node.
    Addresses(Vec<Addr>),
}

impl Volume {
    /// Reads a node of a file; its footer has to agree.
    pub(crate) async fn node_of(&self, inode: Nid, nid: Nid, offset: u32) -> Result<Arc<[u8]>> {
        let entry = self.nat_entry(nid).await?;
        self.node_at(inode, nid, offset, entry.addr).await
    }

    /// The addresses of a file's blocks from `index` on, as far as one node has them.
    pub(crate) async fn leaf(&self, inode: &Inode, index: u64) -> Result<Leaf> {
        let addresses = inode.address_count();
        let Some(path) = Path::to(index, addresses) else {
            return corrupt(format!("inode {} has a block {index}, beyond the largest file", inode.nid));
        };
        let mut block: Option<Arc<[u8]>> = None;
        for (level, step) in path.steps().iter().enumerate() {
            let nid = match &block {
                None => inode.node(step.slot as usize),
                Some(block) => Nid(node::word(block, step.slot)),
            };
            if nid == Nid(0) {
                // Everything below this node is a hole too, and is skipped.
                let levels_below = path.steps().len() - level;
                let below = u64::from(NODE_WORDS).pow(levels_below as u32);
                return Ok(Leaf::Hole(below - offset_in_subtree(path.steps(), level, path.index)));
            }
            block = Some(self.node_of(inode.nid, nid, step.offset).await?);
        }
        let left = path.blocks_left(addresses);
        let addrs = (path.index..path.index + left).map(|at| match &block {
            None => inode.address(at),
            Some(block) => Addr(node::word(block, at)),
        });
        Ok(Leaf::Addresses(addrs.collect()))
    }

    /// The addresses of `count` blocks of a file, holes included. Errors: a node on the path is broken.
    pub async fn map(&self, inode: &Inode, index: u64, count: u32) -> Result<Vec<Addr>> {
        let mut addrs = Vec::with_capacity(count as usize);
        while addrs.len() < count as usize {
            let left = count as usize - addrs.len();
            match self.leaf(inode, index + addrs.len() as u64).await? {
                Leaf::Hole(blocks) => {
                    let blocks = blocks.min(left as u64) as usize;
                    addrs.resize(addrs.len() + blocks, Addr::NULL);
                }
                Leaf::Addresses(more) => addrs.extend(more.into_iter().take(left)),
            }
        }
        Ok(addrs)
    }

    /// The contents of `count` blocks of a file whose contents are not inline. Bytes beyond the end of the file are those of the
    /// disk.
    pub async fn read_blocks(&self, inode: &Inode, index: u64, count: u32) -> Result<Vec<Payload>> {
        let addrs = self.map(inode, index, count).await?;
        let mut tickets = Vec::new();
        let mut at = 0;
        while at < addrs.len() {
            let addr = addrs[at];
            if addr == Addr::NULL || addr == Addr::NEW {
                at += 1;
                continue;
            }
            if self.geometry().place_of(addr).is_none() {
                let block = index + at as u64;
                return corrupt(format!(
                    "block {block} of inode {} is at {addr}, outside of the main area",
                    inode.nid
                ));
            }
            let follows = |next: &usize| addrs.get(*next) == Some(&Addr(addr.0 + (*next - at) as u32));
            let run = (at + 1..addrs.len()).take_while(follows).count() as u32 + 1;
            tickets.push((at, self.port().read(Geometry::block(addr), run)));
            at += run as usize;
        }
        let mut payloads = vec![Payload::Zero; addrs.len()];
        for (at, ticket) in tickets {
            for (payload, read) in payloads[at..].iter_mut().zip(ticket.completed().await?) {
                *payload = read;
            }
        }
        Ok(payloads)
    }

    /// At most `bytes` bytes of a file from `offset` on; fewer at its end. Errors: it has no contents, or is broken.
    pub async fn read(&self, inode: &Inode, offset: u64, bytes: usize) -> Result<Vec<u8>> {
        if inode.advise & (advise::ENCRYPTED | advise::VERITY) != 0 {
            return Err(Error::Refused(format!("encryption or verity, for inode {}", inode.nid)));
        }
        let end = inode.size.min(offset.saturating_add(bytes as u64));
        if offset >= end {
            return Ok(Vec::new());
        }
        if inode.has_inline(inline::DATA) {
            let room = inode.inline_bytes();
            if inode.size > room.len() as u64 {
                let (nid, size, room) = (inode.nid, inode.size, room.len());
                return corrupt(format!("inode {nid} has {size} bytes inline, expected at most {room}"));
            }
            let range = offset as usize..end as usize;
            let exists = inode.has_inline(inline::DATA_EXIST);
            return Ok(if exists { room[range].to_vec() } else { vec![0; range.len()] });
        }
        let block_bytes = BLOCK_BYTES as u64;
        let mut content = Vec::with_capacity((end - offset) as usize);
        let mut index = offset / block_bytes;
        let last = end.div_ceil(block_bytes);
        while index < last {
            let count = (last - index).min(READ_BLOCKS);
            for (index, payload) in (index..).zip(self.read_blocks(inode, index, count as u32).await?) {
                let start = index * block_bytes;
                let from = offset.saturating_sub(start).min(block_bytes) as usize;
                let to = (end - start).min(block_bytes) as usize;
                match payload {
                    Payload::Zero => content.resize(content.len() + to - from, 0),
                    payload => content.extend_from_slice(&bytes_of(&payload)[from..to]),
                }
            }
            index += count;
        }
        Ok(content)
    }

    /// Target of a symbolic link.
    pub async fn read_link(&self, inode: &Inode) -> Result<Vec<u8>> {
        if inode.kind() != Kind::Symlink || inode.size == 0 || inode.size > BLOCK_BYTES as u64 {
            return corrupt(format!("inode {} is no link of 1 to 4096 bytes", inode.nid));
        }
        self.read(inode, 0, BLOCK_BYTES).await
    }

    fn check_directory(inode: &Inode) -> Result<()> {
        match inode.kind() {
            Kind::Directory => Ok(()),
            kind => corrupt(format!("inode {} is {kind:?}, expected a directory", inode.nid)),
        }
    }

    /// The blocks of a directory that exist, with their numbers.
    pub(crate) async fn directory_blocks(&self, inode: &Inode) -> Result<Vec<(u64, Addr)>> {
        let end = inode.size.div_ceil(BLOCK_BYTES as u64);
        let mut blocks = Vec::new();
        let mut index = 0;
        while index < end {
            match self.leaf(inode, index).await? {
                Leaf::Hole(hole) => index += hole,
                Leaf::Addresses(addrs) => {
                    let numbered = (index..end).zip(&addrs).filter(|(_, addr)| addr.is_place());
                    blocks.extend(numbered.map(|(index, addr)| (index, *addr)));
                    index += addrs.len() as u64;
                }
            }
        }
        Ok(blocks)
    }

    /// All entries of a directory, `.` and `..` included, in the order of the disk.
    pub async fn read_dir(&self, inode: &Inode) -> Result<Vec<Entry>> {
        Self::check_directory(inode)?;
        let in_room = |slots: Slots, room: &[u8]| -> Result<Vec<Entry>> {
            let entries = slots.entries(room).map(|entry| entry.map(|(_, entry)| entry));
            entries.collect::<Result<_>>().map_err(|error| in_directory(inode, error))
        };
        if inode.has_inline(inline::DENTRY) {
            let room = inode.inline_bytes();
            return in_room(Slots::in_room(room.len()), room);
        }
        let mut entries = Vec::new();
        for (_, addr) in self.directory_blocks(inode).await? {
            entries.extend(in_room(Slots::BLOCK, &self.data_block(inode, addr).await?)?);
        }
        Ok(entries)
    }

    /// The entry of a name; `None` if the directory has none. Errors: a broken directory.
    pub async fn lookup(&self, inode: &Inode, name: &[u8]) -> Result<Option<Entry>> {
        Self::check_directory(inode)?;
        let hash = dentry::hash(name);
        let find = |slots: Slots, room: &[u8]| -> Result<Option<Entry>> {
            for entry in slots.entries(room) {
                let (_, entry) = entry.map_err(|error| in_directory(inode, error))?;
                if entry.hash == hash && entry.name == name {
                    return Ok(Some(entry));
                }
            }
            Ok(None)
        };
        if inode.has_inline(inline::DENTRY) {
            let room = inode.inline_bytes();
            return find(Slots::in_room(room.len()), room);
        }
        if inode.depth > LEVELS_MAX {
            return corrupt(format!("directory {} has {} levels", inode.nid, inode.depth));
        }
        let end = inode.size.div_ceil(BLOCK_BYTES as u64);
        for level in 0..inode.depth {
            let bucket = dentry::bucket(level, inode.dir_level, hash);
            if bucket.start >= end {
                break;
            }
            for addr in self.map(inode, bucket.start, (bucket.end - bucket.start) as u32).await? {
                if addr == Addr::NULL || addr == Addr::NEW {
                    continue;
                }
                let found = find(Slots::BLOCK, &self.data_block(inode, addr).await?)?;
                if found.is_some() {
                    return Ok(found);
                }
            }
        }
        Ok(None)
    }

    async fn data_block(&self, inode: &Inode, addr: Addr) -> Result<Arc<[u8]>> {
        if self.geometry().place_of(addr).is_none() {
            return corrupt(format!("a block of inode {} is at {addr}, outside of the main area", inode.nid));
        }
        self.block(addr).await
    }

    /// The inode at a path of names from the root, without following symbolic links. `None` if a name does not exist.
    pub async fn find(&self, path: &[u8]) -> Result<Option<Inode>> {
        let mut inode = self.root().await?;
        for name in path.split(|&byte| byte == b'/').filter(|name| !name.is_empty()) {
            if inode.kind() != Kind::Directory {
                return Ok(None);
            }
            match self.lookup(&inode, name).await? {
                Some(entry) => inode = self.inode(entry.ino).await?,
                None => return Ok(None),
            }
        }
        Ok(Some(inode))
    }

    /// The extended attributes of an inode, in the order of the disk.
    pub async fn xattrs(&self, inode: &Inode) -> Result<Vec<Xattr>> {
        let mut room = inode.xattr_bytes().to_vec();
        if inode.xattr_nid != Nid(0) {
            let block = self.node_of(inode.nid, inode.xattr_nid, Footer::XATTR_OFFSET).await?;
            room.extend_from_slice(&block[..xattr::NODE_BYTES]);
        }
        xattr::decode(&room).map_err(|error| error.at(format_args!("inode {}", inode.nid)))
    }
}

/// Distance in blocks from the begin of the subtree of the node on `level` to the block of the path.
fn offset_in_subtree(steps: &[node::Step], level: usize, index: u32) -> u64 {
    let below = steps[level + 1..].iter().map(|step| u64::from(step.slot)).chain([u64::from(index)]);
    below.fold(0, |offset, slot| offset * u64::from(NODE_WORDS) + slot)
}

fn in_directory(inode: &Inode, error: Error) -> Error {
    error.at(format_args!("directory {}", inode.nid))
}
