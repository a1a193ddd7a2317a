//! Checks of the maps of files, block by block.

use super::super::error::Result;
use super::super::layout::Addr;
use super::super::layout::extent::{Entries, Extent, Node, Place};
use super::super::layout::inode::Inode;
use super::Checker;
use super::blocks::Map;
use crate::format::{u32_at, unless_port};

/// Number of addresses of contents in an inode; those of blocks of addresses follow, in one to three levels.
const DIRECT: u32 = 12;

impl Checker {
    /// Checks the extents of a file.
    pub(super) async fn extents(&mut self, inode: &Inode) -> Result<Map> {
        let mut map = Map::default();
        let geometry = self.geometry;
        let owner = format!("inode {}", inode.ino);
        let mut todo: Vec<(Node, Place)> = Vec::new();
        match unless_port(Node::decode_root(&inode.block, &geometry))? {
            Ok(root) => {
                let place = root.root_place();
                todo.push((root, place));
            }
            Err(what) => {
                self.problem("extent", format!("{owner}: {what}"));
                map.is_whole = false;
            }
        }
        while let Some((node, place)) = todo.pop() {
            match &node.entries {
                Entries::Leaf(extents) => {
                    for extent in extents {
                        map.blocks += u64::from(extent.blocks);
                        if self.take(extent.addr, extent.blocks.into(), &owner) {
                            self.report.data_blocks += u64::from(extent.blocks);
                            map.add(*extent);
                        } else {
                            map.is_whole = false;
                        }
                    }
                }
                Entries::Index(children) => {
                    // The first child comes next, so that extents are found in the order of the file.
                    let first = todo.len();
                    for (index, child) in children.iter().enumerate() {
                        map.blocks += 1;
                        if !self.take(child.child, 1, &owner) {
                            map.is_whole = false;
                            continue;
                        }
                        let place = node.child_place(index, &place);
                        let block = self.volume.block(child.child).await?;
                        let decoded = Node::decode(&block, &place, inode.seed(&geometry), &geometry);
                        match unless_port(decoded)? {
                            Ok(node) => {
                                // Linux refuses any other first block; a leaf may be empty.
                                if let Some(begin) =
                                    node.first().filter(|begin| u64::from(*begin) != place.range.start)
                                {
                                    let (at, expected) = (child.child, place.range.start);
                                    self.problem(
                                        "extent",
                                        format!("{owner}, block {at} begins with block {begin} of the file, its index says {expected}"),
                                    );
                                }
                                todo.push((node, place));
                            }
                            Err(what) => {
                                let at = child.child;
                                self.problem("extent", format!("{owner}, block {at}: {what}"));
                                map.is_whole = false;
                            }
                        }
                    }
                    todo[first..].reverse();
                }
            }
        }
        Ok(map)
    }

    /// Checks the addresses of a file without extents.
    pub(super) async fn addresses(&mut self, inode: &Inode) -> Result<Map> {
        let mut map = Map::default();
        let owner = format!("inode {}", inode.ino);
        let per_block = u64::from(self.geometry.block_bytes / 4);
        // An address, the number of levels below it, and the first block of the file that it maps.
        let mut todo: Vec<(Addr, u32, u64)> = Vec::new();
        let mut first = u64::from(DIRECT);
        for level in 1..=3 {
            todo.push((Addr(inode.word((DIRECT + level - 1) as usize).into()), level, first));
            first += per_block.pow(level);
        }
        todo.extend((0..DIRECT).map(|at| (Addr(inode.word(at as usize).into()), 0, at.into())).rev());
        todo[..3].reverse();
        while let Some((addr, level, first)) = todo.pop() {
            if addr == Addr::NULL {
                continue;
            }
            if !self.geometry.is_data(addr, 1) || first > u64::from(u32::MAX) {
                self.problem(
                    "address",
                    format!("{owner} has its block {first} at {addr}, outside of the volume"),
                );
                map.is_whole = false;
                continue;
            }
            map.blocks += 1;
            if !self.take(addr, 1, &owner) {
                map.is_whole = false;
                continue;
            }
            if level == 0 {
                self.report.data_blocks += 1;
                map.add(Extent { first: first as u32, blocks: 1, addr, is_unwritten: false });
                continue;
            }
            let block = self.volume.block(addr).await?;
            let below = per_block.pow(level - 1);
            for index in (0..per_block).rev() {
                let child = Addr(u32_at(&block, 4 * index as usize).into());
                todo.push((child, level - 1, first + index * below));
            }
        }
        Ok(map)
    }
}
