//! Directories: their blocks, names, and the index over the hashes of names.

use super::super::error::Result;
use super::super::layout::dirent::{self, Entry};
use super::super::layout::inode::{Inode, flags};
use super::super::layout::superblock::Feature;
use super::super::layout::{Addr, Ino, htree};
use super::blocks::Map;
use super::{Checker, Name};
use crate::format::{Kind, u32_at, unless_port};
use std::collections::{BTreeMap, BTreeSet};

/// The parent's number, before the entries of an inline directory.
const INLINE_PARENT_BYTES: usize = 4;

/// The range of hashes that a part of an index covers, both ends included.
#[derive(Clone, Copy, Debug)]
struct Hashes {
    hash: htree::Hash,
    from: u32,
    to: u32,
}

/// The state of the check of a directory.
#[derive(Debug)]
struct Directory<'a> {
    inode: &'a Inode,
    seen: BTreeSet<Vec<u8>>,
    /// Number of entries so far; the first two are `.` and `..`.
    entries: u64,
    /// The range of hashes of each leaf of the index, by its block.
    leaves: BTreeMap<u64, Hashes>,
}

impl<'a> Directory<'a> {
    fn new(inode: &'a Inode) -> Self {
        Self { inode, seen: BTreeSet::new(), entries: 0, leaves: BTreeMap::new() }
    }
}

impl Checker {
    pub(super) async fn directory(&mut self, inode: &Inode, map: &Map) -> Result<()> {
        if inode.has(flags::INLINE_DATA) {
            return Ok(());
        }
        let ino = inode.ino;
        let mut blocks: BTreeMap<u64, Addr> = BTreeMap::new();
        let mut next = 0;
        for extent in &map.extents {
            let first = u64::from(extent.first);
            if (first != next || extent.is_unwritten) && map.is_whole {
                self.problem("directory-hole", format!("block {next} of directory {ino} is a hole"));
            }
            next = extent.end();
            blocks.extend((0..u64::from(extent.blocks)).map(|at| (first + at, Addr(extent.addr.0 + at))));
        }
        let mut directory = Directory::new(inode);
        let mut nodes = BTreeSet::new();
        if inode.has(flags::INDEX) {
            match self.geometry.features.has(Feature::DIR_INDEX) {
                true => nodes = self.index(&mut directory, &blocks).await?,
                false => self.problem(
                    "directory-index",
                    format!("directory {ino} has an index, the volume no dir_index"),
                ),
            }
        }
        for (&index, &addr) in &blocks {
            let block = self.volume.block(addr).await?;
            if nodes.contains(&index) {
                // The first block has `.` and `..`, and looks like any other to code that does not know of the index.
                if index == 0 {
                    self.room(&mut directory, index, &block);
                }
                continue;
            }
            let checked = dirent::check_tail(&block, inode.seed(&self.geometry), &self.geometry);
            if let Err(what) = unless_port(checked)? {
                self.problem("directory", format!("block {index} of directory {ino}: {what}"));
            }
            self.room(&mut directory, index, &block[..dirent::room_bytes(&self.geometry)]);
        }
        if directory.entries < 2 && map.is_whole {
            self.problem("directory-dots", format!("directory {ino} lacks `.` or `..`"));
        }
        Ok(())
    }

    /// Checks the nodes of a directory's index, by their blocks, and notes the hashes of the leaves.
    async fn index(
        &mut self,
        directory: &mut Directory<'_>,
        blocks: &BTreeMap<u64, Addr>,
    ) -> Result<BTreeSet<u64>> {
        let (inode, geometry) = (directory.inode, self.geometry);
        let (ino, seed) = (inode.ino, inode.seed(&geometry));
        let mut nodes = BTreeSet::new();
        let Some(&first) = blocks.get(&0) else { return Ok(nodes) };
        let block = self.volume.block(first).await?;
        nodes.insert(0);
        let root = match unless_port(htree::Root::decode(&block, seed, &geometry))? {
            Ok(root) => root,
            Err(what) => {
                self.problem("directory-index", format!("directory {ino}: {what}"));
                // Which other blocks are nodes of the index stays unknown; blocks that look like nodes have no names.
                for (&index, &addr) in blocks.iter().skip(1) {
                    let block = self.volume.block(addr).await?;
                    if htree::decode_node(&block, seed, &geometry).is_ok() {
                        nodes.insert(index);
                    }
                }
                return Ok(nodes);
            }
        };
        let whole = Hashes { hash: root.hash, from: 0, to: u32::MAX };
        let mut todo = vec![(0, root.entries, root.levels, whole)];
        let mut is_broken = false;
        while let Some((at, entries, levels, hashes)) = todo.pop() {
            for (index, entry) in entries.iter().enumerate() {
                let from = if index == 0 { hashes.from } else { entry.hash & !1 };
                // Names with the last hash may continue in the next block.
                let to = entries.get(index + 1).map_or(hashes.to, |next| next.hash & !1);
                if from < hashes.from || to > hashes.to {
                    self.problem(
                        "directory-index",
                        format!(
                            "entry {index} of block {at} of directory {ino} has the hashes {from:#x} to {to:#x}, expected \
                             {:#x} to {:#x}",
                            hashes.from, hashes.to
                        ),
                    );
                }
                let block = u64::from(entry.block);
                let hashes = Hashes { from, to, ..hashes };
                let is_new = !nodes.contains(&block) && !directory.leaves.contains_key(&block);
                let Some(&addr) = blocks.get(&block).filter(|_| is_new) else {
                    let why = if is_new { "does not exist" } else { "is there twice" };
                    self.problem(
                        "directory-index",
                        format!("block {block} in the index of directory {ino} {why}"),
                    );
                    is_broken = true;
                    continue;
                };
                if levels == 0 {
                    directory.leaves.insert(block, hashes);
                    continue;
                }
                nodes.insert(block);
                let content = self.volume.block(addr).await?;
                match unless_port(htree::decode_node(&content, seed, &geometry))? {
                    Ok(entries) => todo.push((block, entries, levels - 1, hashes)),
                    Err(what) => {
                        self.problem("directory-index", format!("directory {ino}, block {block}: {what}"));
                        is_broken = true;
                    }
                }
            }
        }
        let missing = blocks.keys().find(|at| !nodes.contains(at) && !directory.leaves.contains_key(at));
        if let (Some(missing), false) = (missing, is_broken) {
            self.problem(
                "directory-index",
                format!("block {missing} of directory {ino} is not in its index"),
            );
        }
        Ok(nodes)
    }

    /// Checks the entries of an inline directory. `rest` are those for which `i_block` has no room.
    pub(super) fn inline_directory(&mut self, inode: &Inode, rest: &[u8]) {
        let parent = Ino(u32_at(&inode.block, 0));
        let mut directory = Directory::new(inode);
        directory.entries = 2;
        if let Some(found) = self.inodes.get_mut(&inode.ino) {
            found.dots = Some(parent);
        }
        self.room(&mut directory, 0, &inode.block[INLINE_PARENT_BYTES..]);
        self.room(&mut directory, 0, rest);
    }

    fn room(&mut self, directory: &mut Directory<'_>, index: u64, room: &[u8]) {
        let ino = directory.inode.ino;
        let geometry = self.geometry;
        for entry in dirent::entries(room, &geometry) {
            match entry {
                Ok(entry) => self.entry(directory, index, entry),
                Err(error) => {
                    self.problem("entry", format!("block {index} of directory {ino}: {error}"));
                }
            }
        }
    }

    fn entry(&mut self, directory: &mut Directory<'_>, index: u64, entry: Entry) {
        let ino = directory.inode.ino;
        let place = directory.entries;
        directory.entries += 1;
        let expected: Option<&[u8]> = [&b"."[..], b".."].get(place as usize).copied();
        let shown = entry.name.escape_ascii().to_string();
        if expected.is_some_and(|name| name != entry.name) || (expected.is_none() && entry.is_dot()) {
            self.problem("directory-dots", format!("entry {place} of directory {ino} is \"{shown}\""));
        }
        let is_first = entry.ino == Ino::ROOT || entry.ino.0 >= self.geometry.first_ino;
        if !is_first || entry.ino.0 > self.geometry.inodes_count {
            self.problem("entry", format!("\"{shown}\" in directory {ino} leads to inode {}", entry.ino));
            return;
        }
        if entry.is_dot() {
            if self.geometry.features.has(Feature::FILETYPE) && entry.kind != Some(Kind::Directory) {
                let kind = entry.kind;
                self.problem("entry-type", format!("\"{shown}\" of directory {ino} says {kind:?}"));
            }
            if entry.name == b"." && entry.ino != ino {
                self.problem("directory-dots", format!("`.` of directory {ino} is {}", entry.ino));
            }
            if entry.name == b".."
                && let Some(found) = self.inodes.get_mut(&ino)
            {
                found.dots = Some(entry.ino);
            }
            return;
        }
        if let Some(hashes) = directory.leaves.get(&index) {
            let superblock = self.volume.superblock();
            let (hash, _) =
                hashes.hash.of_name(&entry.name, &superblock.hash_seed, superblock.is_hash_unsigned());
            if hash < hashes.from || hash > hashes.to {
                self.problem(
                    "entry-hash",
                    format!(
                        "\"{shown}\" in block {index} of directory {ino} has the hash {hash:#x}, expected {:#x} to {:#x}",
                        hashes.from, hashes.to
                    ),
                );
            }
        }
        self.names.push(Name { directory: ino, ino: entry.ino, kind: entry.kind });
        if let Some(name) = directory.seen.replace(entry.name) {
            let name = name.escape_ascii().to_string();
            self.problem("entry-twice", format!("directory {ino} has the name \"{name}\" twice"));
        }
    }
}
