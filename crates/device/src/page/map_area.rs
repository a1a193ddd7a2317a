//! The blocks of translation pages as data: which page of them holds what, which are being written, which are free.
//!
//! Place in the data flow: [`super::map_pages`] takes pages here and gives places up; recovery finds what is in use again.
//!
//! Invariants: a page counts as valid while the directory names it, or a durable record may; the last free block is for GC, so
//! pages that leave the cache can always be written in the end. Data never lie here, so GC of data never waits for room among
//! translation pages.

use crate::geometry::{Geometry, PageAddr};
use flashweir_core::Ppa;
use flashweir_ftl::BlockId;
use std::collections::{BTreeMap, VecDeque};

const NONE: u32 = u32::MAX;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum State {
    Free,
    /// Some of its pages have not been given out, or are being programmed.
    Open,
    Full,
    Victim,
}

#[derive(Clone, Debug)]
struct Block {
    id: BlockId,
    state: State,
    valid: u32,
    /// Number of pages that were given out and are not programmed.
    programming: u32,
    /// Number of reads under way.
    reads: u32,
}

/// The collection of one block of translation pages.
#[derive(Clone, Debug)]
pub(super) struct MapCollection {
    pub(super) victim: BlockId,
    /// Next page of the victim to be read.
    pub(super) page: u32,
    pub(super) reads: u32,
    /// Number of copies that are not on the medium yet.
    pub(super) moves: u32,
    /// Copies that are on the medium and that no record names yet: translation page, number of its state, source, place.
    pub(super) copies: Vec<(u32, u64, Ppa, PageAddr)>,
    pub(super) erasing: bool,
}

/// The blocks of translation pages; see the module.
#[derive(Clone, Debug)]
pub(super) struct MapArea {
    blocks: Vec<Block>,
    by_id: BTreeMap<BlockId, u32>,
    /// The translation page in each page of the blocks that counts as valid, else `NONE`.
    owners: Vec<u32>,
    free: VecDeque<u32>,
    /// The block that each lane writes, and its next page; the last lane is GC's.
    lanes: Vec<Option<(u32, u32)>>,
    turn: usize,
    pages_per_block: u32,
    /// Numbers of the writes that have no page yet.
    pub(super) waiting: VecDeque<u32>,
    pub(super) collection: Option<MapCollection>,
}

impl MapArea {
    pub(super) fn new(geometry: &Geometry) -> Self {
        let block = |id| Block { id, state: State::Free, valid: 0, programming: 0, reads: 0 };
        let blocks: Vec<Block> = geometry.map_area().map(block).collect();
        Self {
            by_id: blocks.iter().map(|block| block.id).zip(0..).collect(),
            owners: vec![NONE; blocks.len() * geometry.pages_per_block as usize],
            free: (0..blocks.len() as u32).collect(),
            lanes: vec![None; geometry.map_lanes as usize + 1],
            turn: 0,
            pages_per_block: geometry.pages_per_block,
            waiting: VecDeque::new(),
            collection: None,
            blocks,
        }
    }

    fn index(&self, block: BlockId) -> u32 {
        self.by_id[&block]
    }

    fn block(&mut self, id: BlockId) -> &mut Block {
        let at = self.index(id);
        &mut self.blocks[at as usize]
    }

    fn page_index(&self, at: PageAddr) -> usize {
        (self.index(at.block) * self.pages_per_block + at.page) as usize
    }

    /// Ids of all blocks.
    pub(super) fn block_ids(&self) -> impl Iterator<Item = BlockId> + '_ {
        self.blocks.iter().map(|block| block.id)
    }

    /// Takes the page for the next write, if there is one; the last free block is left to GC.
    pub(super) fn take_page(&mut self) -> Option<PageAddr> {
        let lanes = self.lanes.len() - 1;
        for nth in 0..lanes {
            let lane = (self.turn + nth) % lanes;
            if let Some(at) = self.take_of(lane, 1) {
                self.turn = (lane + 1) % lanes;
                return Some(at);
            }
        }
        None
    }

    /// Takes the page for the next copy made by GC.
    pub(super) fn take_page_for_copy(&mut self) -> Option<PageAddr> {
        self.take_of(self.lanes.len() - 1, 0)
    }

    fn take_of(&mut self, lane: usize, keep: usize) -> Option<PageAddr> {
        let (block, page) = match self.lanes[lane] {
            Some(open) => open,
            None if self.free.len() > keep => {
                let block = self.free.pop_front()?;
                self.blocks[block as usize].state = State::Open;
                (block, 0)
            }
            None => return None,
        };
        self.lanes[lane] = (page + 1 < self.pages_per_block).then_some((block, page + 1));
        let state = &mut self.blocks[block as usize];
        state.programming += 1;
        if page + 1 == self.pages_per_block {
            state.state = State::Full;
        }
        Some(PageAddr { block: state.id, page })
    }

    /// A page that was given out has been programmed.
    pub(super) fn programmed(&mut self, at: PageAddr) {
        self.block(at.block).programming -= 1;
    }

    /// Marks a page as valid and as the place of this translation page.
    pub(super) fn set_valid(&mut self, at: PageAddr, page: u32) {
        let index = self.page_index(at);
        debug_assert_eq!(self.owners[index], NONE);
        self.owners[index] = page;
        self.block(at.block).valid += 1;
    }

    /// Marks a page as invalid: its content is not needed any more.
    pub(super) fn set_invalid(&mut self, at: PageAddr) {
        let index = self.page_index(at);
        assert_ne!(self.owners[index], NONE, "a translation page is given up once");
        self.owners[index] = NONE;
        self.block(at.block).valid -= 1;
    }

    /// The translation page in a page, if it counts as valid.
    pub(super) fn owner(&self, at: PageAddr) -> Option<u32> {
        Some(self.owners[self.page_index(at)]).filter(|owner| *owner != NONE)
    }

    pub(super) fn valid(&self, block: BlockId) -> u32 {
        self.blocks[self.index(block) as usize].valid
    }

    /// Number of valid pages in all blocks.
    pub(super) fn valid_total(&self) -> u64 {
        self.blocks.iter().map(|block| u64::from(block.valid)).sum()
    }

    pub(super) fn begin_read(&mut self, block: BlockId) {
        self.block(block).reads += 1;
    }

    pub(super) fn end_read(&mut self, block: BlockId) {
        self.block(block).reads -= 1;
    }

    /// Whether nothing is being read from a block.
    pub(super) fn is_unread(&self, block: BlockId) -> bool {
        self.blocks[self.index(block) as usize].reads == 0
    }

    /// Whether so few blocks are free that GC should free one.
    pub(super) fn is_short(&self) -> bool {
        self.free.len() <= 2
    }

    /// The full block with the fewest valid pages, if its collection gains a page.
    pub(super) fn victim(&self) -> Option<BlockId> {
        let full = self.blocks.iter().filter(|block| block.state == State::Full && block.programming == 0);
        let emptiest = full.min_by_key(|block| block.valid)?;
        (emptiest.valid < self.pages_per_block).then_some(emptiest.id)
    }

    pub(super) fn begin_collection(&mut self, victim: BlockId) {
        self.block(victim).state = State::Victim;
        self.collection =
            Some(MapCollection { victim, page: 0, reads: 0, moves: 0, copies: Vec::new(), erasing: false });
    }

    /// The victim has been erased.
    pub(super) fn erased(&mut self, block: BlockId) {
        let index = self.index(block);
        let state = &mut self.blocks[index as usize];
        assert_eq!((state.valid, state.programming), (0, 0), "block {} holds translation pages", block.0);
        state.state = State::Free;
        self.free.push_back(index);
        self.collection = None;
    }

    /// After a recovery: blocks with a valid page are full, the others free. The caller has marked what is valid.
    pub(super) fn close_all(&mut self) {
        self.free.clear();
        for (at, block) in (0..).zip(&mut self.blocks) {
            block.state = if block.valid > 0 { State::Full } else { State::Free };
            if block.valid == 0 {
                self.free.push_back(at);
            }
        }
    }

    /// Panics if an account does not balance.
    pub(super) fn audit(&self) {
        for (block, owners) in self.blocks.iter().zip(self.owners.chunks(self.pages_per_block as usize)) {
            let valid = owners.iter().filter(|owner| **owner != NONE).count() as u32;
            assert_eq!(valid, block.valid, "valid translation pages of block {}", block.id.0);
            assert!(
                valid == 0 || block.state != State::Free,
                "free block {} holds translation pages",
                block.id.0
            );
        }
        let free = self.blocks.iter().filter(|block| block.state == State::Free).count();
        assert_eq!(free, self.free.len(), "free blocks of translation pages");
    }

    /// Describes the state for a human reader.
    pub(super) fn describe(&self) -> String {
        format!(
            "{} blocks of translation pages free, {} writes wait for one, {:?}",
            self.free.len(),
            self.waiting.len(),
            self.collection
        )
    }
}
