//! The state of an open channel besides its chunks, and what each part of the firmware does with it.

use super::chunks::Chunks;
use super::job::{Cx, Job, Source};
use super::places::Places;
use crate::flash::{Op as NandOp, UnitImage};
use crate::geometry::{ChunkId, PageAddr, StationId};
use flashweir_core::open::{Notice, NoticeReason};
use flashweir_core::{DeviceError, Done, Ppa};
use flashweir_ftl::BlockId;
use std::collections::{BTreeMap, VecDeque};

/// A copy under way.
#[derive(Clone, Debug)]
pub(super) struct Copying {
    /// The command's number in the device.
    pub(super) command: u32,
    /// Reads that have not ended.
    pub(super) reads: u32,
    /// Programs that have not ended.
    pub(super) programs: u32,
    /// What is programmed, in the order of the destinations.
    pub(super) images: Vec<UnitImage>,
    /// Chunks of the destinations.
    pub(super) chunks: Vec<ChunkId>,
    /// Whether the command was answered before its end, which is a planted bug.
    pub(super) is_answered: bool,
}

/// A page that was accepted and is not in the machine yet.
#[derive(Clone, Copy, Debug)]
pub(super) struct Held {
    pub(super) at: PageAddr,
    pub(super) source: Source,
    /// Position in the list of addresses of the page's first unit.
    pub(super) first: u32,
}

/// The log of notices; the oldest are forgotten.
#[derive(Clone, Debug, Default)]
pub(super) struct Notices {
    pub(super) list: VecDeque<Notice>,
    pub(super) last: u64,
    /// The last notice when a chunk was reset: what happens to it afterwards is news.
    resets: BTreeMap<Ppa, u64>,
}

impl Notices {
    /// Adds a notice for the chunk with this first unit, unless its newest one since the last reset says the same.
    pub(super) fn add(&mut self, first: Ppa, reason: NoticeReason) {
        let newest = self.list.iter().rev().find(|notice| notice.first == first);
        let begun = self.resets.get(&first).copied().unwrap_or(0);
        if newest.is_some_and(|notice| notice.reason == reason && notice.number > begun) {
            return;
        }
        self.last += 1;
        self.list.push_back(Notice { number: self.last, first, reason });
        if self.list.len() > Notice::KEPT_MAX {
            self.list.pop_front();
        }
    }

    /// The chunk with this first unit was reset.
    pub(super) fn forget(&mut self, first: Ppa) {
        if self.list.iter().any(|notice| notice.first == first) {
            self.resets.insert(first, self.last);
        }
    }
}

/// The firmware.
#[derive(Clone, Debug)]
pub(crate) struct OpenChannel {
    pub(super) places: Places,
    pub(super) chunks: Chunks,
    /// Pages of chunks that are not in the machine yet, in order.
    pub(super) held: BTreeMap<ChunkId, VecDeque<Held>>,
    /// Results of reads under way.
    pub(super) found: BTreeMap<u32, Done>,
    /// Copies under way, by their numbers.
    pub(super) copies: BTreeMap<u64, Copying>,
    /// Number of the next copy.
    pub(super) next_copy: u64,
    /// Pages that were accepted and are not programmed, by block and page: their write, and the position of their first unit in it. Kept
    /// where the device serves reads of them.
    pub(super) in_memory: BTreeMap<(BlockId, u32), (u32, u32)>,
    pub(super) notices: Notices,
}

impl OpenChannel {
    /// Queues operations, and then begins those that can begin, so that planes of a die may work together.
    pub(super) fn push_all(&mut self, cx: &mut Cx, ops: Vec<NandOp<Job>>) {
        let mut stations: Vec<StationId> = ops.into_iter().map(|op| cx.flash.machine.push(op)).collect();
        stations.dedup();
        for station in stations {
            cx.start(station, &mut self.places);
        }
    }
}

/// Sets the error of a command; the first one is its answer.
pub(super) fn fail(cx: &mut Cx, command: u32, error: DeviceError) {
    cx.front.commands.get_mut(command).error.get_or_insert(error);
}
