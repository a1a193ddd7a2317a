//! Reading of files, directories, links and extended attributes.
//!
//! Invariant: each step of a walk over a file goes forward in it, and no walk goes further than the file's size, or than
//! the volume has blocks.

use super::error::{Error, Result, corrupt};
use super::layout::dirent::{self, Entry};
use super::layout::extent::{Entries, Extent, Node};
use super::layout::htree;
use super::layout::inode::{BLOCK_ROOM_BYTES, Inode, flags};
use super::layout::xattr::{self, XattrBlock};
use super::layout::{Addr, Geometry, Ino};
use super::volume::Volume;
use crate::format::{Kind, u32_at};
use crate::xattrs::{Xattr, value};
use std::sync::Arc;

/// Number of addresses of contents in the inode of a file without extents.
const DIRECT: u64 = 12;
/// Most blocks that one call reads.
const READ_BLOCKS: u64 = 256;
/// Bytes of the parent's number before the entries of an inline directory.
const INLINE_PARENT_BYTES: usize = 4;

/// Consecutive blocks of a file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Run {
    /// Address of the first block; `None` for blocks that read as zeros.
    pub addr: Option<Addr>,
    /// Number of blocks; at least 1.
    pub blocks: u64,
    /// Whether the blocks are allocated and were never written.
    pub is_unwritten: bool,
}

impl Run {
    fn hole(blocks: u64) -> Self {
        Self { addr: None, blocks, is_unwritten: false }
    }
}

/// All blocks of a file.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Map {
    /// Extents of its contents, in the order of the file.
    pub extents: Vec<Extent>,
    /// Blocks that hold the map itself: nodes of the extent tree, or blocks of addresses.
    pub nodes: Vec<Addr>,
}

/// The path to a block of a file without extents: the word of `i_block`, then one of each block of addresses.
pub(super) fn path_to(index: u64, per_block: u64) -> Option<Vec<u64>> {
    let mut rest = match index.checked_sub(DIRECT) {
        None => return Some(vec![index]),
        Some(rest) => rest,
    };
    for levels in 1..=3 {
        let below = per_block.pow(levels);
        if rest < below {
            let words = (0..levels).rev().map(|level| rest / per_block.pow(level) % per_block);
            return Some([DIRECT + u64::from(levels) - 1].into_iter().chain(words).collect());
        }
        rest -= below;
    }
    None
}

impl Volume {
    /// The run that begins with block `index` of a file whose contents are not inline, as far as one node of its map describes it.
    /// Errors: the map is broken on the path to it.
    pub async fn run(&self, inode: &Inode, index: u64) -> Result<Run> {
        if index >= Geometry::FILE_BLOCKS_MAX {
            return corrupt(format!("inode {} has a block {index}, beyond the largest file", inode.ino));
        }
        let run = match inode.has(flags::EXTENTS) {
            true => self.run_of_extents(inode, index).await,
            false => self.run_of_addresses(inode, index).await,
        };
        run.map_err(|error| error.at(format_args!("inode {}", inode.ino)))
    }

    async fn run_of_extents(&self, inode: &Inode, index: u64) -> Result<Run> {
        let geometry = self.geometry();
        let mut node = Node::decode_root(&inode.block, geometry)?;
        let mut place = node.root_place();
        loop {
            match &node.entries {
                Entries::Leaf(extents) => {
                    let next = extents.partition_point(|extent| u64::from(extent.first) <= index);
                    if let Some(extent) =
                        next.checked_sub(1).map(|at| extents[at]).filter(|it| it.end() > index)
                    {
                        let addr = Addr(extent.addr.0 + index - u64::from(extent.first));
                        return Ok(Run {
                            addr: (!extent.is_unwritten).then_some(addr),
                            blocks: extent.end() - index,
                            is_unwritten: extent.is_unwritten,
                        });
                    }
                    let end = extents.get(next).map_or(place.range.end, |extent| extent.first.into());
                    return Ok(Run::hole(end - index));
                }
                Entries::Index(children) => {
                    let next = children.partition_point(|child| u64::from(child.first) <= index);
                    let Some(at) = next.checked_sub(1) else {
                        return Ok(Run::hole(u64::from(children[0].first) - index));
                    };
                    place = node.child_place(at, &place);
                    let addr = children[at].child;
                    let block = self.block(addr).await?;
                    node = Node::decode(&block, &place, inode.seed(geometry), geometry)
                        .map_err(|error| error.at(format_args!("block {addr}")))?;
                }
            }
        }
    }

    async fn run_of_addresses(&self, inode: &Inode, index: u64) -> Result<Run> {
        let per_block = u64::from(self.geometry().block_bytes / 4);
        let Some(path) = path_to(index, per_block) else {
            return corrupt(format!("it has a block {index}, beyond the largest file"));
        };
        let (last, steps) = path.split_last().expect("a path has a step");
        let mut block: Option<Arc<[u8]>> = None;
        let word = |block: &Option<Arc<[u8]>>, at: u64| match block {
            None => inode.word(at as usize),
            Some(block) => u32_at(block, 4 * at as usize),
        };
        for (level, &step) in steps.iter().enumerate() {
            let addr = Addr(word(&block, step).into());
            let below = &path[level + 1..];
            if addr == Addr::NULL {
                // Everything below is a hole too, and is skipped.
                let offset = below.iter().fold(0, |offset, step| offset * per_block + step);
                return Ok(Run::hole(per_block.pow(below.len() as u32) - offset));
            }
            self.check_address(addr)?;
            block = Some(self.block(addr).await?);
        }
        let end = if steps.is_empty() { DIRECT } else { per_block };
        let first = u64::from(word(&block, *last));
        let follows = |at: &u64| {
            let expected = if first == 0 { 0 } else { first + (at - last) };
            u64::from(word(&block, *at)) == expected
        };
        let blocks = 1 + (last + 1..end).take_while(follows).count() as u64;
        if first == 0 {
            return Ok(Run::hole(blocks));
        }
        self.check_address(Addr(first))?;
        self.check_address(Addr(first + blocks - 1))?;
        Ok(Run { addr: Some(Addr(first)), blocks, is_unwritten: false })
    }

    fn check_address(&self, addr: Addr) -> Result<()> {
        match self.geometry().is_data(addr, 1) {
            true => Ok(()),
            false => corrupt(format!("block {addr} is outside of the volume")),
        }
    }

    /// All blocks of a file whose contents are not inline: those of the whole map, whatever its size says. Errors: the map is
    /// broken, or has more blocks than the volume.
    pub async fn map(&self, inode: &Inode) -> Result<Map> {
        let map = match inode.has(flags::EXTENTS) {
            true => self.map_of_extents(inode).await,
            false => self.map_of_addresses(inode).await,
        };
        map.map_err(|error| error.at(format_args!("inode {}", inode.ino)))
    }

    fn check_map(&self, map: &Map, blocks: u64) -> Result<()> {
        let max = self.geometry().blocks_count;
        if blocks > max || map.nodes.len() as u64 > max {
            return corrupt(format!("it has more than the {max} blocks of the volume"));
        }
        Ok(())
    }

    async fn map_of_extents(&self, inode: &Inode) -> Result<Map> {
        let geometry = self.geometry();
        let mut map = Map::default();
        let mut blocks = 0;
        let root = Node::decode_root(&inode.block, geometry)?;
        let mut open = vec![(root.root_place(), root)];
        while let Some((place, node)) = open.pop() {
            match &node.entries {
                Entries::Leaf(extents) => {
                    blocks += extents.iter().map(|extent| u64::from(extent.blocks)).sum::<u64>();
                    map.extents.extend(extents);
                }
                Entries::Index(children) => {
                    let mut nodes = Vec::with_capacity(children.len());
                    for (at, child) in children.iter().enumerate() {
                        let place = node.child_place(at, &place);
                        let block = self.block(child.child).await?;
                        let child_node = Node::decode(&block, &place, inode.seed(geometry), geometry)
                            .map_err(|error| error.at(format_args!("block {}", child.child)))?;
                        map.nodes.push(child.child);
                        nodes.push((place, child_node));
                    }
                    open.extend(nodes.into_iter().rev());
                }
            }
            self.check_map(&map, blocks)?;
        }
        Ok(map)
    }

    async fn map_of_addresses(&self, inode: &Inode) -> Result<Map> {
        let per_block = u64::from(self.geometry().block_bytes / 4);
        let mut map = Map::default();
        let mut blocks = 0;
        // Subtrees that are left, the next one last: levels below, address, first block of the file.
        let mut open = Vec::new();
        for word in (0..DIRECT + 3).rev() {
            let levels = (word + 1).saturating_sub(DIRECT) as u32;
            let first = (1..levels).map(|level| per_block.pow(level)).sum::<u64>() + word.min(DIRECT);
            open.push((levels, Addr(inode.word(word as usize).into()), first));
        }
        while let Some((levels, addr, first)) = open.pop() {
            if addr == Addr::NULL {
                continue;
            }
            self.check_address(addr)?;
            if levels == 0 {
                blocks += 1;
                match map.extents.last_mut() {
                    Some(last)
                        if last.end() == first
                            && last.addr.0 + u64::from(last.blocks) == addr.0
                            && last.blocks < super::layout::extent::BLOCKS_MAX =>
                    {
                        last.blocks += 1;
                    }
                    _ => {
                        map.extents.push(Extent { first: first as u32, blocks: 1, addr, is_unwritten: false })
                    }
                }
            } else {
                map.nodes.push(addr);
                let block = self.block(addr).await?;
                let step = per_block.pow(levels - 1);
                let children = block.chunks_exact(4).map(|word| Addr(u32_at(word, 0).into())).enumerate();
                open.extend(children.rev().map(|(at, addr)| (levels - 1, addr, first + at as u64 * step)));
            }
            self.check_map(&map, blocks)?;
        }
        Ok(map)
    }

    /// At most `bytes` bytes of a file from `offset` on; fewer at its end. Errors: it has no contents, or is broken.
    pub async fn read(&self, inode: &Inode, offset: u64, bytes: usize) -> Result<Vec<u8>> {
        if inode.has(flags::ENCRYPT) {
            return Err(Error::Refused(format!("encryption, for inode {}", inode.ino)));
        }
        let end = inode.size.min(offset.saturating_add(bytes as u64));
        if offset >= end {
            return Ok(Vec::new());
        }
        if inode.has(flags::INLINE_DATA) {
            let mut content = self.inline_content(inode)?;
            if inode.size > content.len() as u64 {
                let (ino, size, room) = (inode.ino, inode.size, content.len());
                return corrupt(format!("inode {ino} has {size} bytes inline, expected at most {room}"));
            }
            content.truncate(end as usize);
            return Ok(content.split_off(offset as usize));
        }
        let block_bytes = u64::from(self.geometry().block_bytes);
        let mut content = Vec::with_capacity((end - offset) as usize);
        let mut at = offset;
        while at < end {
            let index = at / block_bytes;
            let run = self.run(inode, index).await?;
            let blocks = run.blocks.min((end.div_ceil(block_bytes)) - index);
            match run.addr {
                None => {
                    let to = ((index + blocks) * block_bytes).min(end);
                    content.resize(content.len() + (to - at) as usize, 0);
                    at = to;
                }
                Some(addr) => {
                    let read = self.blocks(addr, blocks.min(READ_BLOCKS)).await?;
                    for block in read {
                        let from = (at % block_bytes) as usize;
                        let to = (end - at + from as u64).min(block_bytes) as usize;
                        content.extend_from_slice(&block[from..to]);
                        at += (to - from) as u64;
                    }
                }
            }
        }
        Ok(content)
    }

    /// Inline contents: in `i_block`, continued in an extended attribute.
    fn inline_content(&self, inode: &Inode) -> Result<Vec<u8>> {
        let xattrs = self.xattrs_in_inode(inode)?;
        let mut content = inode.block.to_vec();
        content.extend_from_slice(value(&xattrs, xattr::INLINE_DATA).unwrap_or_default());
        Ok(content)
    }

    /// Target of a symbolic link.
    pub async fn read_link(&self, inode: &Inode) -> Result<Vec<u8>> {
        let max = u64::from(self.geometry().block_bytes);
        if inode.kind() != Some(Kind::Symlink) || inode.size == 0 || inode.size > max {
            return corrupt(format!("inode {} is no link of 1 to {max} bytes", inode.ino));
        }
        if inode.is_fast_link() {
            return Ok(inode.block[..inode.size as usize].to_vec());
        }
        self.read(inode, 0, max as usize).await
    }

    fn check_directory(inode: &Inode) -> Result<()> {
        if inode.has(flags::ENCRYPT | flags::CASEFOLD) {
            return Err(Error::Refused(format!("encryption or casefold, for directory {}", inode.ino)));
        }
        match inode.kind() {
            Some(Kind::Directory) => Ok(()),
            kind => corrupt(format!("inode {} is {kind:?}, expected a directory", inode.ino)),
        }
    }

    /// The inline entries, without `.` and `..`, which are implicit.
    fn inline_entries(&self, inode: &Inode) -> Result<Vec<Entry>> {
        let content = self.inline_content(inode)?;
        let parent = Ino(u32_at(&content, 0));
        let (first, second) = content.split_at(BLOCK_ROOM_BYTES);
        let mut entries =
            vec![Entry::new(b".", inode.ino, Kind::Directory), Entry::new(b"..", parent, Kind::Directory)];
        for room in [&first[INLINE_PARENT_BYTES..], second] {
            for entry in dirent::entries(room, self.geometry()) {
                entries.push(entry?);
            }
        }
        Ok(entries)
    }

    /// The entries in a block of a directory. Nodes of an index have none.
    fn entries_of_block(&self, inode: &Inode, index: u64, block: &[u8]) -> Result<Vec<Entry>> {
        let geometry = self.geometry();
        let seed = inode.seed(geometry);
        if index == 0 && inode.has(flags::INDEX) {
            htree::Root::decode(block, seed, geometry)?;
            return dirent::entries(block, geometry).collect();
        }
        if inode.has(flags::INDEX)
            && !dirent::has_tail(block)
            && htree::decode_node(block, seed, geometry).is_ok()
        {
            return Ok(Vec::new());
        }
        dirent::check_tail(block, seed, geometry)?;
        dirent::entries(&block[..dirent::room_bytes(geometry)], geometry).collect()
    }

    /// All entries of a directory, `.` and `..` included, in the order of the disk.
    pub async fn read_dir(&self, inode: &Inode) -> Result<Vec<Entry>> {
        Self::check_directory(inode)?;
        let place = |error: Error| error.at(format_args!("directory {}", inode.ino));
        if inode.has(flags::INLINE_DATA) {
            return self.inline_entries(inode).map_err(place);
        }
        let end = inode.size / u64::from(self.geometry().block_bytes);
        let mut entries = Vec::new();
        let mut index = 0;
        while index < end {
            let run = self.run(inode, index).await?;
            let Some(addr) = run.addr else {
                index += run.blocks;
                continue;
            };
            for block in self.blocks(addr, run.blocks.min(end - index).min(READ_BLOCKS)).await? {
                let found = self.entries_of_block(inode, index, &block);
                entries.extend(found.map_err(|error| place(error.at(format_args!("block {index}"))))?);
                index += 1;
            }
        }
        Ok(entries)
    }

    /// A block of a directory. Errors: it is a hole.
    async fn directory_block(&self, inode: &Inode, index: u64) -> Result<Arc<[u8]>> {
        match self.run(inode, index).await?.addr {
            Some(addr) if index < inode.size / u64::from(self.geometry().block_bytes) => {
                self.block(addr).await
            }
            _ => corrupt(format!("directory {} has no block {index}", inode.ino)),
        }
    }

    /// The entry of a name, found by the index of the directory if it has one; `None` if there is no such entry. Errors: a broken
    /// directory.
    pub async fn lookup(&self, inode: &Inode, name: &[u8]) -> Result<Option<Entry>> {
        let is_dot = name == b"." || name == b"..";
        if !inode.has(flags::INDEX) || inode.has(flags::INLINE_DATA) || is_dot {
            let entries = self.read_dir(inode).await?;
            return Ok(entries.into_iter().find(|entry| entry.name == name));
        }
        Self::check_directory(inode)?;
        self.lookup_in_index(inode, name)
            .await
            .map_err(|error| error.at(format_args!("directory {}", inode.ino)))
    }

    async fn lookup_in_index(&self, inode: &Inode, name: &[u8]) -> Result<Option<Entry>> {
        let geometry = self.geometry();
        let seed = inode.seed(geometry);
        let root = htree::Root::decode(&self.directory_block(inode, 0).await?, seed, geometry)?;
        let superblock = self.superblock();
        let (hash, _) = root.hash.of_name(name, &superblock.hash_seed, superblock.is_hash_unsigned());
        let at = htree::position(&root.entries, hash);
        let mut levels = vec![(root.entries, at)];
        loop {
            // Descends to the leaf to which the last level points.
            while levels.len() <= usize::from(root.levels) {
                let (entries, at) = levels.last().expect("the root is there");
                let block = self.directory_block(inode, entries[*at].block.into()).await?;
                let entries = htree::decode_node(&block, seed, geometry)?;
                let at = htree::position(&entries, hash);
                levels.push((entries, at));
            }
            let (entries, at) = levels.last().expect("the root is there");
            let index = u64::from(entries[*at].block);
            let block = self.directory_block(inode, index).await?;
            let entries = self.entries_of_block(inode, index, &block)?;
            if let Some(entry) = entries.into_iter().find(|entry| entry.name == name) {
                return Ok(Some(entry));
            }
            // If the hash of the next leaf says so, it has more names with this hash.
            loop {
                let Some((entries, at)) = levels.last_mut() else { return Ok(None) };
                *at += 1;
                match entries.get(*at) {
                    Some(entry) if entry.hash == hash | 1 => break,
                    Some(_) => return Ok(None),
                    None => {
                        levels.pop();
                    }
                }
            }
        }
    }

    /// The inode at a path of names from the root, without following symbolic links. `None` if a name does not exist.
    pub async fn find(&self, path: &[u8]) -> Result<Option<Inode>> {
        let mut inode = self.root().await?;
        for name in path.split(|&byte| byte == b'/').filter(|name| !name.is_empty()) {
            if inode.kind() != Some(Kind::Directory) {
                return Ok(None);
            }
            match self.lookup(&inode, name).await? {
                Some(entry) => inode = self.inode(entry.ino).await?,
                None => return Ok(None),
            }
        }
        Ok(Some(inode))
    }

    fn xattrs_in_inode(&self, inode: &Inode) -> Result<Vec<Xattr>> {
        xattr::decode_in_inode(inode.xattr_room())
            .map_err(|error| error.at(format_args!("inode {}", inode.ino)))
    }

    /// The extended attributes of an inode, in the order of the disk, without the one that holds inline contents.
    pub async fn xattrs(&self, inode: &Inode) -> Result<Vec<Xattr>> {
        let mut xattrs = self.xattrs_in_inode(inode)?;
        xattrs.retain(|xattr| (xattr.index, &xattr.name[..]) != xattr::INLINE_DATA);
        if inode.xattr_block != Addr::NULL {
            let addr = inode.xattr_block;
            let block = match self.geometry().is_data(addr, 1) {
                true => XattrBlock::decode(&self.block(addr).await?, addr, self.geometry()),
                false => corrupt(format!("extended attributes at block {addr}, outside of the volume")),
            };
            xattrs.extend(block.map_err(|error| error.at(format_args!("inode {}", inode.ino)))?.xattrs);
        }
        Ok(xattrs)
    }
}
