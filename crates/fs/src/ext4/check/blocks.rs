//! The blocks that were found in use, and the blocks of a file.
//!
//! Invariant: a block has one owner; a second one is reported.

use super::super::layout::extent::{self, Extent};
use super::super::layout::{Addr, Geometry, Group};

/// A bit for each block that was found. Groups in which none was found take no memory.
#[derive(Debug)]
pub(super) struct Blocks {
    groups: Vec<Option<Box<[u64]>>>,
    words: usize,
}

impl Blocks {
    pub(super) fn new(geometry: &Geometry) -> Self {
        let groups = geometry.groups().map(|_| None).collect();
        Self { groups, words: geometry.blocks_per_group.div_ceil(64) as usize }
    }

    /// Marks blocks, which must lie in groups, as taken, up to the first one that was taken before; returns that one.
    pub(super) fn take(&mut self, addr: Addr, blocks: u64, geometry: &Geometry) -> Option<Addr> {
        for block in addr.0..addr.0.saturating_add(blocks) {
            let (group, bit) = geometry.place_of(Addr(block))?;
            let bits = self.groups[group.0 as usize].get_or_insert_with(|| vec![0; self.words].into());
            let word = &mut bits[bit as usize / 64];
            let mask = 1 << (bit % 64);
            if *word & mask != 0 {
                return Some(Addr(block));
            }
            *word |= mask;
        }
        None
    }

    /// Whether a block of a group was taken.
    pub(super) fn has(&self, group: Group, bit: u32) -> bool {
        let bits = self.groups[group.0 as usize].as_ref();
        bits.is_some_and(|bits| bits[bit as usize / 64] & 1 << (bit % 64) != 0)
    }
}

/// The blocks of a file.
#[derive(Debug)]
pub(super) struct Map {
    /// Extents of the contents, in the order of the file, without blocks that have another owner.
    pub(super) extents: Vec<Extent>,
    /// Number of blocks, including those of the map itself.
    pub(super) blocks: u64,
    /// Whether no part of the map is broken or belongs to another owner.
    pub(super) is_whole: bool,
}

impl Default for Map {
    fn default() -> Self {
        Self { extents: Vec::new(), blocks: 0, is_whole: true }
    }
}

impl Map {
    pub(super) fn add(&mut self, extent: Extent) {
        match self.extents.last_mut() {
            Some(last)
                if last.end() == u64::from(extent.first)
                    && last.addr.0 + u64::from(last.blocks) == extent.addr.0
                    && last.is_unwritten == extent.is_unwritten
                    && u32::from(last.blocks) + u32::from(extent.blocks) <= extent::BLOCKS_MAX.into() =>
            {
                last.blocks += extent.blocks;
            }
            _ => self.extents.push(extent),
        }
    }
}
