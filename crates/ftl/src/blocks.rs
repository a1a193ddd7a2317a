//! Account of the blocks: state, valid units, wear, and the free pool of each plane.
//!
//! Invariants: `valid` of a block equals the set bits of its units; a block is in its plane's free pool
//! exactly if its state is `Free`; blocks of one plane have neighbouring numbers.

use flashweir_core::index::Idx;
use flashweir_core::{Ppa, index_type};
use std::collections::VecDeque;

index_type! {
    /// An erase block, numbered plane by plane.
    BlockId,
    /// A plane, numbered channel by channel, chip by chip, die by die.
    PlaneId,
}

/// What a block is used for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum BlockState {
    /// Erased, or to be erased before use; in the free pool.
    Free,
    /// A write frontier.
    Open,
    /// Fully written; GC may choose it.
    Closed,
    /// Being collected or erased by GC.
    Collecting,
    /// Holds the device's own metadata.
    Meta,
    /// Belongs to a segment of the append namespace.
    Segment,
    /// Unusable: factory or grown.
    Bad,
}

/// Set in a block's key unless GC may choose the block, so that the least key is the greedy victim.
const NOT_COLLECTABLE: u32 = 1 << 31;

/// The blocks of a device.
#[derive(Clone, Debug)]
pub struct Blocks {
    /// Valid units, with [`NOT_COLLECTABLE`] where the block is not closed.
    keys: Vec<u32>,
    states: Vec<BlockState>,
    erases: Vec<u32>,
    /// Number of the block's closing; for FIFO and cost-benefit.
    closed_at: Vec<u64>,
    valid_bits: Vec<u64>,
    free: Vec<VecDeque<BlockId>>,
    /// Number of blocks of each plane that belong to segments.
    of_segments: Vec<u32>,
    closings: u64,
    blocks_per_plane: u32,
    units_per_block: u32,
}

impl Blocks {
    /// Returns an account in which all blocks are free, in the order of their numbers.
    pub fn new(planes: u32, blocks_per_plane: u32, units_per_block: u32) -> Self {
        let blocks = planes as usize * blocks_per_plane as usize;
        let words = (blocks as u64 * u64::from(units_per_block)).div_ceil(64) as usize;
        let pool = |plane| (0..blocks_per_plane).map(move |b| BlockId(plane * blocks_per_plane + b));
        Self {
            keys: vec![NOT_COLLECTABLE; blocks],
            states: vec![BlockState::Free; blocks],
            erases: vec![0; blocks],
            closed_at: vec![0; blocks],
            valid_bits: vec![0; words],
            free: (0..planes).map(|plane| pool(plane).collect()).collect(),
            of_segments: vec![0; planes as usize],
            closings: 0,
            blocks_per_plane,
            units_per_block,
        }
    }

    /// The plane of a block.
    #[inline]
    pub fn plane(&self, block: BlockId) -> PlaneId {
        PlaneId(block.0 / self.blocks_per_plane)
    }

    /// The block of a unit.
    #[inline]
    pub fn block(&self, ppa: Ppa) -> BlockId {
        BlockId((ppa.0 / u64::from(self.units_per_block)) as u32)
    }

    /// Number of blocks.
    pub fn len(&self) -> usize {
        self.states.len()
    }

    /// Whether there is no block.
    pub fn is_empty(&self) -> bool {
        self.states.is_empty()
    }

    /// Units in one block.
    pub fn units_per_block(&self) -> u32 {
        self.units_per_block
    }

    /// All blocks, in order.
    pub fn ids(&self) -> impl Iterator<Item = BlockId> + use<> {
        (0..self.states.len()).map(BlockId::from_index)
    }

    /// The numbers of the blocks of `plane`.
    pub fn of_plane(&self, plane: PlaneId) -> std::ops::Range<u32> {
        plane.0 * self.blocks_per_plane..(plane.0 + 1) * self.blocks_per_plane
    }

    /// State of a block.
    #[inline]
    pub fn state(&self, block: BlockId) -> BlockState {
        self.states[block.index()]
    }

    /// Valid units of a block.
    #[inline]
    pub fn valid(&self, block: BlockId) -> u32 {
        self.keys[block.index()] & !NOT_COLLECTABLE
    }

    /// Erases that the block has seen.
    #[inline]
    pub fn erases(&self, block: BlockId) -> u32 {
        self.erases[block.index()]
    }

    /// Number of the closing of a closed block.
    pub fn closed_at(&self, block: BlockId) -> u64 {
        self.closed_at[block.index()]
    }

    /// Number of closings so far.
    pub fn closings(&self) -> u64 {
        self.closings
    }

    /// GC keys of a plane's blocks: valid units, with the top bit set where GC may not choose the block.
    pub(crate) fn keys_of(&self, plane: PlaneId) -> &[u32] {
        let range = self.of_plane(plane);
        &self.keys[range.start as usize..range.end as usize]
    }

    /// Free blocks of a plane.
    #[inline]
    pub fn free_count(&self, plane: PlaneId) -> u32 {
        self.free[plane.index()].len() as u32
    }

    /// Whether the unit is valid.
    #[inline]
    pub fn is_valid(&self, ppa: Ppa) -> bool {
        self.valid_bits[(ppa.0 / 64) as usize] >> (ppa.0 % 64) & 1 == 1
    }

    /// Asks the processor to load into its caches the words that say whether a unit is valid. Changes no answer.
    #[inline]
    pub fn prefetch(&self, ppa: Ppa) {
        flashweir_core::prefetch(&self.valid_bits[(ppa.0 / 64) as usize]);
        flashweir_core::prefetch(&self.keys[self.block(ppa).index()]);
    }

    /// Marks a unit valid; panics if it is already.
    #[inline]
    pub fn set_valid(&mut self, ppa: Ppa) {
        let word = &mut self.valid_bits[(ppa.0 / 64) as usize];
        let bit = 1 << (ppa.0 % 64);
        assert!(*word & bit == 0, "unit {} is valid already", ppa.0);
        *word |= bit;
        let block = (ppa.0 / u64::from(self.units_per_block)) as usize;
        self.keys[block] += 1;
    }

    /// Marks a unit invalid; panics if it is already.
    #[inline]
    pub fn set_invalid(&mut self, ppa: Ppa) {
        let word = &mut self.valid_bits[(ppa.0 / 64) as usize];
        let bit = 1 << (ppa.0 % 64);
        assert!(*word & bit != 0, "unit {} is invalid already", ppa.0);
        *word &= !bit;
        let block = (ppa.0 / u64::from(self.units_per_block)) as usize;
        self.keys[block] -= 1;
    }

    /// Takes a free block of `plane` as a write frontier: the least worn one if `least_worn`, otherwise the
    /// one that has been free for longest.
    pub fn open(&mut self, plane: PlaneId, least_worn: bool) -> Option<BlockId> {
        let erases = &self.erases;
        let pool = &mut self.free[plane.index()];
        let at = if least_worn {
            pool.iter().enumerate().min_by_key(|(i, block)| (erases[block.index()], *i))?.0
        } else {
            0
        };
        let block = pool.remove(at)?;
        self.states[block.index()] = BlockState::Open;
        Some(block)
    }

    /// Takes the most worn free block of `plane` as a write frontier, for cold data (static wear-levelling).
    pub fn open_most_worn(&mut self, plane: PlaneId) -> Option<BlockId> {
        let erases = &self.erases;
        let pool = &mut self.free[plane.index()];
        let at = pool.iter().enumerate().max_by_key(|(i, block)| (erases[block.index()], usize::MAX - *i))?.0;
        let block = pool.remove(at)?;
        self.states[block.index()] = BlockState::Open;
        Some(block)
    }

    /// Closes a write frontier that is full: GC may choose the block from now on.
    pub fn close(&mut self, block: BlockId) {
        assert_eq!(self.state(block), BlockState::Open, "only an open block is closed");
        self.states[block.index()] = BlockState::Closed;
        self.keys[block.index()] &= !NOT_COLLECTABLE;
        self.closed_at[block.index()] = self.closings;
        self.closings += 1;
    }

    /// Marks the block as the victim of GC.
    pub fn collect(&mut self, block: BlockId) {
        assert_eq!(self.state(block), BlockState::Closed, "only a closed block is collected");
        self.states[block.index()] = BlockState::Collecting;
        self.keys[block.index()] |= NOT_COLLECTABLE;
    }

    /// Returns an erased block to the free pool.
    pub fn release(&mut self, block: BlockId) {
        assert_eq!(self.valid(block), 0, "block {} holds valid units", block.0);
        assert!(matches!(self.state(block), BlockState::Collecting | BlockState::Meta));
        self.erases[block.index()] += 1;
        self.states[block.index()] = BlockState::Free;
        let plane = self.plane(block);
        self.free[plane.index()].push_back(block);
    }

    /// Takes the least worn free block of `plane`, or the most worn one, for a segment.
    pub fn take(&mut self, plane: PlaneId, most_worn: bool) -> Option<BlockId> {
        let block = if most_worn { self.open_most_worn(plane)? } else { self.open(plane, true)? };
        self.states[block.index()] = BlockState::Segment;
        self.of_segments[plane.index()] += 1;
        Some(block)
    }

    /// Takes these free blocks for segments: recovery found them there.
    pub fn claim(&mut self, blocks: &[BlockId]) {
        for block in blocks {
            assert_eq!(self.state(*block), BlockState::Free, "block {}", block.0);
            self.states[block.index()] = BlockState::Segment;
            let plane = self.plane(*block);
            self.of_segments[plane.index()] += 1;
        }
        let states = &self.states;
        for pool in &mut self.free {
            pool.retain(|block| states[block.index()] == BlockState::Free);
        }
    }

    /// Returns a block of a segment to the free pool. It may have to be erased before its next use.
    pub fn give_back(&mut self, block: BlockId) {
        assert_eq!(self.state(block), BlockState::Segment, "block {}", block.0);
        self.states[block.index()] = BlockState::Free;
        let plane = self.plane(block);
        self.of_segments[plane.index()] -= 1;
        self.free[plane.index()].push_back(block);
    }

    /// Blocks of `plane` that belong to segments.
    #[inline]
    pub fn segment_count(&self, plane: PlaneId) -> u32 {
        self.of_segments[plane.index()]
    }

    /// The free blocks of `plane`.
    pub fn free_of(&self, plane: PlaneId) -> impl Iterator<Item = BlockId> + '_ {
        self.free[plane.index()].iter().copied()
    }

    /// Takes a block out of use for good; it must hold nothing valid.
    pub fn retire(&mut self, block: BlockId) {
        assert_eq!(self.valid(block), 0, "block {} holds valid units", block.0);
        self.leave_pool(block);
        if self.state(block) == BlockState::Segment {
            let plane = self.plane(block);
            self.of_segments[plane.index()] -= 1;
        }
        self.states[block.index()] = BlockState::Bad;
        self.keys[block.index()] |= NOT_COLLECTABLE;
    }

    /// Reserves a free block for the device's own metadata.
    pub fn reserve_meta(&mut self, block: BlockId) {
        self.leave_pool(block);
        self.states[block.index()] = BlockState::Meta;
    }

    /// Sets the state that a recovery found: `closed` blocks hold data, others are free; wear as on the medium.
    pub fn restore(&mut self, block: BlockId, erases: u32, closed: bool) {
        self.erases[block.index()] = erases;
        if closed {
            self.leave_pool(block);
            self.states[block.index()] = BlockState::Open;
            self.close(block);
        }
    }

    /// Counts an erase of a block that stays out of the pool (metadata).
    pub fn note_erase(&mut self, block: BlockId) {
        self.erases[block.index()] += 1;
    }

    fn leave_pool(&mut self, block: BlockId) {
        if self.state(block) == BlockState::Free {
            let plane = self.plane(block);
            self.free[plane.index()].retain(|b| *b != block);
        }
    }

    /// Counts every valid bit again and compares; for audits.
    pub fn audit(&self) -> u64 {
        let mut total = 0;
        for block in self.ids() {
            let first = u64::from(block.0) * u64::from(self.units_per_block);
            let valid = self.count_valid(first, first + u64::from(self.units_per_block));
            assert_eq!(valid, self.valid(block), "valid units of block {}", block.0);
            total += u64::from(valid);
        }
        for (plane, pool) in self.free.iter().enumerate() {
            for block in pool {
                assert_eq!(self.state(*block), BlockState::Free);
                assert_eq!(self.plane(*block), PlaneId(plane as u32));
            }
        }
        let free = self.states.iter().filter(|s| **s == BlockState::Free).count();
        assert_eq!(free, self.free.iter().map(VecDeque::len).sum::<usize>(), "free pools");
        for (plane, count) in (0..).map(PlaneId).zip(&self.of_segments) {
            let is_segment = |block: &u32| self.states[*block as usize] == BlockState::Segment;
            let counted = self.of_plane(plane).filter(is_segment).count();
            assert_eq!(counted, *count as usize, "blocks of segments in plane {}", plane.0);
        }
        total
    }

    /// Number of set bits of the units from `first` up to `end`, a word at a time.
    fn count_valid(&self, first: u64, end: u64) -> u32 {
        let words = &self.valid_bits[(first / 64) as usize..end.div_ceil(64) as usize];
        let all: u32 = words.iter().map(|word| word.count_ones()).sum();
        let before = words[0] & ((1 << (first % 64)) - 1);
        let after = if end.is_multiple_of(64) { 0 } else { words[words.len() - 1] >> (end % 64) };
        all - before.count_ones() - after.count_ones()
    }

    /// Bytes of memory in use.
    pub fn memory_bytes(&self) -> u64 {
        (self.states.len() * (4 + 1 + 4 + 8 + 4) + self.valid_bits.len() * 8) as u64
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_block_goes_round() {
        let mut blocks = Blocks::new(2, 4, 8);
        let block = blocks.open(PlaneId(1), true).unwrap();
        assert_eq!(blocks.plane(block), PlaneId(1));
        let ppa = Ppa(u64::from(block.0) * 8 + 3);
        blocks.set_valid(ppa);
        blocks.close(block);
        assert_eq!(blocks.valid(block), 1);
        blocks.collect(block);
        blocks.set_invalid(ppa);
        blocks.release(block);
        assert_eq!((blocks.erases(block), blocks.free_count(PlaneId(1))), (1, 4));
        let next = blocks.open(PlaneId(1), true).unwrap();
        assert_ne!(next, block, "the least worn block comes first");
        blocks.audit();
    }
}
