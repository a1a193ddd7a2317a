//! Chunks: their write pointers and states, besides what is on the medium.
//!
//! Place in the data flow: `check` asks what a chunk takes, `program` and `reset` change it, `report` shows it.
//!
//! Invariants: `open` is the number of chunks that are open; a chunk's pages up to its `accepted` ones are programmed or have a
//! program under way, in a chunk that was closed early perhaps with gaps.

use super::job::Cx;
use crate::config::PointerMove;
use crate::geometry::{ChunkId, Geometry};
use crate::planted::PlantedBug;
use flashweir_core::open::ChunkState;

/// State of a chunk besides its medium.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Chunk {
    /// Number of pages that were accepted since the last reset.
    pub(super) accepted: u32,
    /// The same when no program of the chunk was under way the last time.
    settled: u32,
    /// Number of programs that have not ended.
    pub(super) programs: u32,
    /// The command that is to reset the chunk.
    pub(super) eraser: Option<u32>,
    /// Number of its erases that have not ended.
    pub(super) erases: u32,
    /// Whether it takes no more pages although it is not full.
    pub(super) is_closed_early: bool,
}

impl Chunk {
    /// The write pointer that a host sees, in pages.
    pub(super) fn pointer(&self, moves: PointerMove) -> u32 {
        match moves {
            PointerMove::Programmed if self.programs > 0 => self.settled,
            PointerMove::Programmed | PointerMove::Accepted => self.accepted,
        }
    }

    /// All blocks of the chunk are erased.
    pub(super) fn reset(&mut self) {
        *self = Self { programs: self.programs, ..Self::default() };
    }

    /// A page was accepted.
    pub(super) fn accept_page(&mut self) {
        self.accepted += 1;
        self.programs += 1;
    }

    /// A program has ended.
    pub(super) fn end_program(&mut self) {
        self.programs -= 1;
        if self.programs == 0 {
            self.settled = self.accepted;
        }
    }
}

/// All chunks.
#[derive(Clone, Debug)]
pub(super) struct Chunks {
    list: Vec<Chunk>,
    pages: u32,
    open: u32,
}

impl Chunks {
    /// What the medium shows of each chunk at power-on.
    pub(super) fn at_power_on(cx: &Cx) -> Self {
        let list = (0..cx.geometry.open.chunks).map(|chunk| chunk_at_power_on(cx, ChunkId(chunk))).collect();
        let mut chunks = Self { list, pages: cx.geometry.open.pages, open: 0 };
        chunks.open = chunks.ids().filter(|chunk| chunks.is_open(&chunks[*chunk])).count() as u32;
        chunks
    }

    /// Their numbers.
    pub(super) fn ids(&self) -> impl Iterator<Item = ChunkId> + use<> {
        (0..self.list.len() as u32).map(ChunkId)
    }

    /// Changes one chunk.
    pub(super) fn change<T>(&mut self, chunk: ChunkId, change: impl FnOnce(&mut Chunk) -> T) -> T {
        let was_open = self.is_open(&self[chunk]);
        let result = change(&mut self.list[chunk.0 as usize]);
        match (was_open, self.is_open(&self[chunk])) {
            (true, false) => self.open -= 1,
            (false, true) => self.open += 1,
            (true, true) | (false, false) => {}
        }
        result
    }

    /// Number of chunks that are open.
    pub(super) fn open(&self) -> u32 {
        self.open
    }

    /// Whether a chunk is written in part and takes more pages. An offline chunk is closed early, too.
    pub(super) fn is_open(&self, chunk: &Chunk) -> bool {
        !chunk.is_closed_early && (1..self.pages).contains(&chunk.accepted)
    }

    /// State of a chunk as a report shows it.
    pub(super) fn state(&self, cx: &Cx, id: ChunkId) -> ChunkState {
        let chunk = &self[id];
        let pointer = self.shown_pointer(cx, id);
        match () {
            () if is_offline(cx, id) => ChunkState::Offline,
            () if chunk.is_closed_early || pointer == self.pages => ChunkState::Closed,
            () if pointer > 0 || chunk.accepted > 0 => ChunkState::Open,
            () => ChunkState::Free,
        }
    }

    /// The write pointer that a host sees, in pages.
    pub(super) fn shown_pointer(&self, cx: &Cx, id: ChunkId) -> u32 {
        let planted = cx.has_planted(PlantedBug::PointerAheadOfProgram);
        self[id].pointer(if planted { PointerMove::Accepted } else { cx.config.open.pointer })
    }

    /// Bytes of memory.
    pub(super) fn memory_bytes(&self) -> u64 {
        (self.list.len() * size_of::<Chunk>()) as u64
    }
}

impl std::ops::Index<ChunkId> for Chunks {
    type Output = Chunk;

    fn index(&self, chunk: ChunkId) -> &Chunk {
        &self.list[chunk.0 as usize]
    }
}

/// Whether a block of the chunk is bad.
pub(super) fn is_offline(cx: &Cx, chunk: ChunkId) -> bool {
    cx.geometry.chunk_blocks(chunk).any(|block| cx.flash.media.is_bad(block))
}

/// Numbers in the chunk of the pages that were programmed since the last erase of their block.
pub(super) fn pages_written(cx: &Cx, chunk: ChunkId) -> (u32, u32) {
    let Geometry { open, .. } = &cx.geometry;
    let mut all = 0;
    let mut end = 0;
    for (plane, block) in (0..).zip(cx.geometry.chunk_blocks(chunk)) {
        let written = cx.flash.media.pages_written(block);
        all += written;
        if written > 0 {
            end = end.max((written - 1) * open.planes + plane + 1);
        }
    }
    (all, end)
}

/// A chunk at power-on. What cannot be gone on with is closed: one with pages that cannot be read, with a write unit of which a part is
/// missing, or with a reset that only some of its blocks have seen (open-channel §6.9).
fn chunk_at_power_on(cx: &Cx, id: ChunkId) -> Chunk {
    let (written, end) = pages_written(cx, id);
    let media = &cx.flash.media;
    let is_damaged = |block| {
        let forgives = match media.erase_torn(block) {
            true => cx.has_planted(PlantedBug::HalfErasedWritten),
            false => cx.has_planted(PlantedBug::DamagedChunkReopened),
        };
        media.is_damaged(block) && !forgives
    };
    let is_uneven = written != end && !cx.has_planted(PlantedBug::UnevenChunkReopened);
    let is_partial = !end.is_multiple_of(cx.geometry.open.write_pages);
    let is_closed_early = is_uneven
        || is_partial && !cx.has_planted(PlantedBug::UnevenChunkReopened)
        || cx.geometry.chunk_blocks(id).any(is_damaged)
        || is_offline(cx, id);
    Chunk { accepted: end, settled: end, is_closed_early, ..Chunk::default() }
}
