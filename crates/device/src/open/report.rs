//! What an open channel reports: its geometry, its chunks, notices, and the table of bad blocks (open-channel §6.1). Reports take no
//! flash operation and are answered when they arrive.

use super::chunks::pages_written;
use super::job::Cx;
use super::state::OpenChannel;
use crate::config::OpenVersion;
use crate::geometry::{ChunkId, PageAddr};
use flashweir_core::Done;
use flashweir_core::command::PLACES_MAX;
use flashweir_core::open::{BlockMark, ChunkReport, ChunkState, MarkBlocks, OpenGeometry, OpenInterface};

impl OpenChannel {
    pub(super) fn geometry(cx: &Cx) -> Done {
        let (geometry, open) = (&cx.geometry, &cx.config.open);
        let per_page = geometry.units_per_page;
        let best = if open.write_best_pages == 0 { open.write_pages } else { open.write_best_pages };
        Done::Geometry(Box::new(OpenGeometry {
            interface: match open.version {
                OpenVersion::V12 => OpenInterface::V12,
                OpenVersion::V20 => OpenInterface::V20,
            },
            groups: geometry.channels(),
            parallel_units: geometry.parallel_units() / geometry.channels(),
            chunks: geometry.blocks_per_plane,
            chunk_units: geometry.chunk_units(),
            unit_bytes: geometry.unit_bytes as u32,
            write_min: open.write_pages * per_page,
            write_best: best * per_page,
            cached_units: open.cached_units,
            open_max: open.max_open,
            places_max: PLACES_MAX as u32,
        }))
    }

    pub(super) fn chunk_reports(&self, cx: &Cx, first: u32, count: u32) -> Done {
        Done::Chunks((first..first + count).map(|chunk| self.chunk_report(cx, ChunkId(chunk))).collect())
    }

    fn chunk_report(&self, cx: &Cx, id: ChunkId) -> ChunkReport {
        let state = self.chunks.state(cx, id);
        let per_page = cx.geometry.units_per_page;
        let pointer = match state {
            ChunkState::Offline => pages_written(cx, id).1,
            ChunkState::Free | ChunkState::Open | ChunkState::Closed => self.chunks.shown_pointer(cx, id),
        };
        let units = match state {
            ChunkState::Free | ChunkState::Open => cx.geometry.chunk_units(),
            ChunkState::Closed | ChunkState::Offline => pointer * per_page,
        };
        let erases = cx.geometry.chunk_blocks(id).map(|block| cx.flash.media.erases(block)).max();
        let erases = u64::from(erases.unwrap_or(0));
        let wear = match u64::from(cx.config.faults.endurance) {
            0 => erases.min(255),
            endurance => (erases * 255 / endurance).min(255),
        };
        let first = cx.geometry.chunk_place(id, 0);
        ChunkReport { state, wear: wear as u8, first, units, pointer: pointer * per_page }
    }

    pub(super) fn notices_after(&self, after: u64) -> Done {
        Done::Notices(self.notices.list.iter().filter(|notice| notice.number > after).copied().collect())
    }

    /// The marks of a parallel unit: block by block, and of each block plane by plane.
    pub(super) fn marks(cx: &Cx, parallel_unit: u32) -> Done {
        let blocks = cx.geometry.blocks_per_plane;
        let chunks = (parallel_unit * blocks..(parallel_unit + 1) * blocks).map(ChunkId);
        let all = chunks.flat_map(|chunk| cx.geometry.chunk_blocks(chunk));
        Done::Marks(all.map(|block| cx.flash.media.mark(block)).collect())
    }

    pub(super) fn set_marks(&mut self, cx: &mut Cx, marks: &MarkBlocks) {
        for place in &marks.places {
            let at = PageAddr { page: 0, ..cx.geometry.open_page(*place).0 };
            match marks.mark {
                BlockMark::Good => cx.flash.media.reserve_for_host(at.block, false),
                BlockMark::HostReserved => cx.flash.media.reserve_for_host(at.block, true),
                // Named by several of its units it is still marked once.
                BlockMark::GrownBad if cx.flash.media.is_bad(at.block) => {}
                BlockMark::GrownBad => self.take_offline(cx, at),
                BlockMark::FactoryBad => unreachable!("the check refuses it"),
            }
        }
    }
}
