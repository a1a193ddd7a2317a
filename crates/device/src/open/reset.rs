//! Resets of chunks: each erases all blocks of the chunk when its programs have ended.

use super::chunks::{Chunk, is_offline};
use super::job::{Cx, Job};
use super::state::{OpenChannel, fail};
use crate::flash::{Class, Op as NandOp, OpKind, Purpose};
use crate::geometry::{ChunkId, PageAddr};
use crate::planted::PlantedBug;
use flashweir_core::open::{NoticeReason, OpenError};
use flashweir_core::{Address, DeviceError, Ppa};

impl OpenChannel {
    pub(super) fn start_reset(&mut self, cx: &mut Cx, command: u32, places: &[Ppa]) {
        cx.accept(command);
        cx.front.commands.get_mut(command).left = places.len() as u32;
        let planes = cx.geometry.open.planes;
        for place in places {
            let (chunk, _) = cx.geometry.chunk_of(*place);
            self.chunks.change(chunk, |chunk| (chunk.eraser, chunk.erases) = (Some(command), planes));
            self.erase_if_idle(cx, chunk);
            if cx.has_planted(PlantedBug::EarlyErase) {
                cx.part_done(command);
            }
        }
    }

    /// Erases the blocks of a chunk whose reset was accepted, once its programs have ended.
    pub(super) fn erase_if_idle(&mut self, cx: &mut Cx, chunk: ChunkId) {
        let Chunk { eraser, programs, .. } = self.chunks[chunk];
        let waits = programs > 0 && !cx.has_planted(PlantedBug::EraseUnderPrograms);
        let Some(command) = eraser.filter(|_| !waits) else { return };
        let op = |block| {
            let what = (Purpose::HostErase, Job::Erase { command, chunk });
            cx.given((OpKind::Erase, Class::Erase), PageAddr { block, page: 0 }, 0, what)
        };
        let ops = cx.geometry.chunk_blocks(chunk).map(op).collect();
        self.push_all(cx, ops);
    }

    pub(super) fn erase_done(&mut self, cx: &mut Cx, op: &NandOp<Job>, command: u32, chunk: ChunkId) {
        let PageAddr { block, .. } = op.at;
        let endurance = cx.config.faults.endurance;
        let is_worn_out = endurance > 0 && cx.flash.media.erases(block) >= endurance;
        if is_worn_out || cx.flash.random.chance(cx.config.faults.erase_fail) {
            cx.metrics.erase_failures += 1;
            self.take_offline(cx, op.at);
        } else {
            cx.metrics.erases += 1;
            cx.flash.media.erase(block);
        }
        let left = self.chunks.change(chunk, |chunk| {
            chunk.erases -= 1;
            chunk.erases
        });
        if left == 0 {
            self.reset_done(cx, command, chunk);
        }
    }

    fn reset_done(&mut self, cx: &mut Cx, command: u32, chunk: ChunkId) {
        let is_answered = cx.has_planted(PlantedBug::EarlyErase);
        if is_offline(cx, chunk) {
            self.chunks.change(chunk, |chunk| chunk.eraser = None);
            if !is_answered {
                let at = Address::Ppa(cx.geometry.chunk_place(chunk, 0));
                fail(cx, command, DeviceError::Open { at, what: OpenError::Offline });
            }
        } else {
            self.chunks.change(chunk, Chunk::reset);
            self.notices.forget(cx.geometry.chunk_place(chunk, 0));
        }
        if !is_answered {
            cx.part_done(command);
        }
    }

    /// A block became bad, and its chunk with it.
    pub(super) fn take_offline(&mut self, cx: &mut Cx, at: PageAddr) {
        cx.metrics.grown_bad_blocks += 1;
        let (chunk, _) = cx.geometry.chunk_of_page(at);
        if !is_offline(cx, chunk) {
            self.notices.add(cx.geometry.chunk_place(chunk, 0), NoticeReason::Offline);
        }
        cx.flash.retire(cx.geometry.plane_of(at.block), at.block);
        self.chunks.change(chunk, |chunk| chunk.is_closed_early = true);
    }
}
