//! The state of the append namespace: the block lists, and the pages of segments that are not durable as a whole.
//!
//! Invariants: a segment without blocks has no open part, and its write pointer is 0; a segment that is full and durable has none
//! either; the slots of an open part begin at a page, and each page before them is durable and has no gap.

use super::job::Op as NandOp;
use super::log_queue::Log;
use super::moving::{EraseFor, Move, MoveOrder};
use super::order::Streams;
use super::quota::Quota;
use crate::config::{AppendMode, BufferMode};
use crate::cx::Cx;
use crate::geometry::{Geometry, PageAddr};
use flashweir_core::command::{SegmentId, StreamId};
use flashweir_core::index::Idx;
use flashweir_core::{Address, Lpn, Payload};
use flashweir_ftl::{BlockId, PlaneId};
use std::collections::{BTreeMap, BTreeSet, VecDeque};

/// In the out-of-band area: the unit was not written when its page was programmed (write-once mode).
pub(super) const GAP: u32 = 1 << 31;

/// No block.
pub(super) const NO_BLOCK: BlockId = BlockId(u32::MAX);

/// What is kept of each segment.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct State {
    /// Number of its deallocations.
    pub(super) generation: u32,
    /// Sequence number of the last one.
    pub(super) trimmed_at: u64,
    /// One behind the last unit that was accepted.
    pub(super) pointer: u32,
}

/// A unit that is in the buffer.
#[derive(Clone, Debug)]
pub(super) struct Unit {
    pub(super) seq: u64,
    pub(super) payload: Payload,
    /// Stream and epoch.
    pub(super) member: Option<(StreamId, u32)>,
    /// Whether its page was sent to the flash without it (write-once mode).
    pub(super) is_late: bool,
    /// Whether the copies under way put it into its page.
    pub(super) is_merged: bool,
}

impl Unit {
    pub(super) fn new(seq: u64, payload: Payload, member: Option<(StreamId, u32)>) -> Self {
        Self { seq, payload, member, is_late: false, is_merged: false }
    }
}

/// One unit of the open part of a segment.
#[derive(Clone, Debug)]
pub(super) enum Slot {
    /// Not written.
    Empty,
    /// In the buffer.
    Held(Unit),
    /// On the medium, at its place; not durable yet if something in front of it is missing.
    Stored(Option<(StreamId, u32)>),
}

impl Slot {
    pub(super) fn is_written(&self) -> bool {
        !matches!(self, Self::Empty)
    }

    /// Stream and epoch, as long as the unit is not durable.
    pub(super) fn member(&self) -> Option<(StreamId, u32)> {
        match self {
            Self::Empty => None,
            Self::Held(unit) => unit.member,
            Self::Stored(member) => *member,
        }
    }

    pub(super) fn held(&self) -> Option<&Unit> {
        match self {
            Self::Held(unit) => Some(unit),
            Self::Empty | Self::Stored(_) => None,
        }
    }
}

/// State of a page of the open part.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Page {
    /// It waits for units, or for those in front of it.
    Waiting,
    /// It waits for its plane, or is being programmed.
    Queued,
    /// It is on the medium.
    Programmed,
}

/// The part of a segment that is not durable, or may still be written.
#[derive(Clone, Debug)]
pub(super) struct Open {
    /// Number of the first page of the part.
    pub(super) first: u32,
    pub(super) pages: VecDeque<Page>,
    pub(super) slots: VecDeque<Slot>,
    /// A page, and the number of its units that are durable in the log because a flush asked for them before the page was complete.
    pub(super) tail: (u32, u32),
    /// Change of the log that has to be durable before a page is programmed: the deallocation of the generation before.
    pub(super) after: u64,
    /// Change of the log that names the segment's blocks.
    pub(super) listed: u64,
    /// Blocks that have to be moved, with the record durable, before a page is programmed.
    pub(super) moving: u32,
    /// Blocks with something behind their good pages, and the number of those; they are moved before the first write.
    pub(super) torn: Vec<(u32, u32)>,
    /// Pages below this unit are programmed with their gaps, because something waits for it (write-once mode).
    pub(super) forced: u32,
    /// Units in the buffer whose page was programmed without them (write-once mode).
    pub(super) late: u32,
    /// A block is lost for lack of another one: what is in the buffer stays there.
    pub(super) is_lost: bool,
}

impl Open {
    pub(super) fn new(first: u32) -> Self {
        Self {
            first,
            pages: VecDeque::new(),
            slots: VecDeque::new(),
            tail: (0, 0),
            after: 0,
            listed: 0,
            moving: 0,
            torn: Vec::new(),
            forced: 0,
            late: 0,
            is_lost: false,
        }
    }

    /// State of a page; those before the part are on the medium.
    pub(super) fn page(&self, page: u32) -> Page {
        match page.checked_sub(self.first) {
            None => Page::Programmed,
            Some(nth) => self.pages.get(nth as usize).copied().unwrap_or(Page::Waiting),
        }
    }
}

/// The programs of one plane.
#[derive(Clone, Debug, Default)]
pub(super) struct PlaneQueue {
    /// Segment and page, in the order in which they came.
    pub(super) waiting: VecDeque<(u32, u32)>,
    /// The one that is in the machine.
    pub(super) busy: Option<(u32, u32)>,
    /// Moves that wait for the one under way.
    pub(super) moves: VecDeque<MoveOrder>,
}

/// A part of a command that ends when a segment is durable up to a unit.
#[derive(Clone, Copy, Debug)]
pub(super) struct Wait {
    pub(super) command: u32,
    pub(super) segment: u32,
    pub(super) upto: u32,
}

/// A command that waits to be accepted.
#[derive(Clone, Copy, Debug)]
pub(super) struct Queued {
    pub(super) command: u32,
    /// Whether its data have come.
    pub(super) is_ready: bool,
}

/// The append namespace of one device.
#[derive(Clone, Debug)]
pub(crate) struct Segments {
    pub(super) mode: AppendMode,
    pub(super) lanes: u32,
    /// Units of a segment, and of a page.
    pub(super) units: u32,
    pub(super) per_page: u32,
    pub(super) states: Vec<State>,
    /// Blocks by segment and lane.
    pub(super) blocks: Vec<BlockId>,
    pub(super) open: BTreeMap<u32, Open>,
    pub(super) planes: Vec<PlaneQueue>,
    /// The block that each plane moves.
    pub(super) moves: BTreeMap<PlaneId, Move>,
    /// Blocks that are being erased, and what follows.
    pub(super) erasing: BTreeMap<BlockId, EraseFor>,
    pub(super) log: Log,
    pub(super) queue: VecDeque<Queued>,
    pub(super) waits: Vec<Wait>,
    /// Offsets with which appends are answered, in sectors.
    pub(super) appended: BTreeMap<u32, u32>,
    /// With a planted bug, the offsets with which appends are answered instead.
    pub(super) guessed: BTreeMap<u32, u32>,
    pub(super) streams: Streams,
    /// Segments whose next page waits for earlier epochs.
    pub(super) blocked: BTreeSet<u32>,
    /// Units in the buffer, without the last page of each segment while it is not complete (sequential mode), and room for them.
    pub(super) used: u32,
    pub(super) capacity: u32,
    /// Whether a write is answered only when it is durable.
    pub(super) writes_through: bool,
    /// Operations for the machine.
    pub(super) out: Vec<NandOp>,
    /// Planes whose next program may begin.
    pub(super) to_pump: BTreeSet<PlaneId>,
    /// Whether a recovery has put units into the buffer that nothing has looked at since.
    pub(super) wakes: bool,
    /// What it may take of the pool of blocks.
    pub(crate) quota: Quota,
}

impl Segments {
    pub(crate) fn new(config: &crate::config::DeviceConfig, geometry: &Geometry) -> Self {
        let shape = geometry.append;
        let count = shape.segments as usize;
        Self {
            mode: config.append.mode,
            lanes: shape.lanes,
            units: shape.units,
            per_page: geometry.units_per_page,
            states: vec![State::default(); count],
            blocks: vec![NO_BLOCK; count * shape.lanes as usize],
            open: BTreeMap::new(),
            planes: vec![PlaneQueue::default(); geometry.planes() as usize],
            moves: BTreeMap::new(),
            erasing: BTreeMap::new(),
            log: Log::new(config, geometry),
            queue: VecDeque::new(),
            waits: Vec::new(),
            appended: BTreeMap::new(),
            guessed: BTreeMap::new(),
            streams: Streams::default(),
            blocked: BTreeSet::new(),
            used: 0,
            capacity: config.buffer_units()[1],
            writes_through: config.buffer.mode == BufferMode::WriteThrough,
            out: Vec::new(),
            to_pump: BTreeSet::new(),
            wakes: false,
            quota: Quota::new(config, geometry),
        }
    }

    /// The block of a lane.
    #[inline]
    pub(super) fn block(&self, segment: u32, lane: u32) -> BlockId {
        self.blocks[(segment * self.lanes + lane) as usize]
    }

    pub(super) fn set_block(&mut self, segment: u32, lane: u32, block: BlockId) {
        self.blocks[(segment * self.lanes + lane) as usize] = block;
    }

    /// The blocks of a segment; empty if it has none.
    pub(super) fn blocks_of(&self, segment: u32) -> &[BlockId] {
        let first = (segment * self.lanes) as usize;
        match self.blocks[first] {
            NO_BLOCK => &[],
            _ => &self.blocks[first..first + self.lanes as usize],
        }
    }

    /// Whether the segment has blocks.
    pub(super) fn has_blocks(&self, segment: u32) -> bool {
        self.block(segment, 0) != NO_BLOCK
    }

    /// Lane and place of a page of a segment.
    #[inline]
    pub(super) fn place(&self, segment: u32, page: u32) -> (u32, PageAddr) {
        let lane = page % self.lanes;
        (lane, PageAddr { block: self.block(segment, lane), page: page / self.lanes })
    }

    /// The plane of a page of a segment.
    pub(super) fn plane_of(&self, geometry: &Geometry, segment: u32, page: u32) -> PlaneId {
        geometry.segment_planes(segment)[(page % self.lanes) as usize]
    }

    /// Segment and unit of a unit of the namespace.
    pub(super) fn split(&self, lpn: Lpn) -> (u32, u32) {
        let units = u64::from(self.units);
        ((lpn.0 / units) as u32, (lpn.0 % units) as u32)
    }

    /// Number of a unit of a segment in the namespace.
    pub(super) fn lpn(&self, segment: u32, unit: u32) -> Lpn {
        Lpn(u64::from(segment) * u64::from(self.units) + u64::from(unit))
    }

    /// The slot of a unit that is in the open part of its segment.
    pub(super) fn slot(&self, segment: u32, unit: u32) -> Option<&Slot> {
        let open = self.open.get(&segment)?;
        open.slots.get(unit.checked_sub(open.first * self.per_page)? as usize)
    }

    /// Whether the unit was written since the segment's last deallocation.
    pub(super) fn is_written(&self, segment: u32, unit: u32) -> bool {
        unit < self.states[segment as usize].pointer && self.slot(segment, unit).is_none_or(Slot::is_written)
    }

    /// Whether a block of the segment is lost for lack of another one.
    pub(super) fn is_lost(&self, segment: u32) -> bool {
        self.open.get(&segment).is_some_and(|open| open.is_lost)
    }

    /// Units of the open part that count in `used`. What is lost does not: it stays in the buffer and nothing waits for its room.
    pub(super) fn used_by(&self, open: &Open) -> u32 {
        let held = open.slots.iter().filter(|slot| slot.held().is_some()).count() as u32;
        match self.mode {
            _ if open.is_lost => 0,
            AppendMode::WriteOnce => held,
            AppendMode::Sequential => held / self.per_page * self.per_page,
        }
    }

    /// The unit up to which everything that was accepted survives a power loss.
    pub(super) fn durable(&self, segment: u32) -> u32 {
        let pointer = self.states[segment as usize].pointer;
        let Some(open) = self.open.get(&segment) else { return pointer };
        let per_page = self.per_page as usize;
        let first = open.first * self.per_page;
        for (page, nth) in open.pages.iter().zip((0..).step_by(per_page)) {
            let held = open.slots.range(nth..nth + per_page);
            let programmed = *page == Page::Programmed;
            let held = held.take_while(|slot| programmed && slot.held().is_none()).count();
            if !programmed || held < per_page {
                let (tail_page, tail) = open.tail;
                let is_tail = tail_page == open.first + (nth / per_page) as u32;
                let tail = if is_tail { tail as usize } else { 0 };
                return (first + (nth + held.max(tail)) as u32).min(pointer);
            }
        }
        pointer
    }

    /// Whether everything that was accepted of the segment survives a power loss.
    pub(super) fn is_durable(&self, segment: u32) -> bool {
        self.durable(segment) >= self.states[segment as usize].pointer
    }

    /// Segments with something that is not durable.
    pub(super) fn volatile(&self) -> Vec<u32> {
        self.open.keys().copied().filter(|segment| !self.is_durable(*segment)).collect()
    }

    /// Number of the segment, for records.
    pub(super) fn id(segment: u32) -> SegmentId {
        SegmentId(segment)
    }

    /// The address of a unit, for errors.
    pub(super) fn address<J: Copy>(cx: &Cx<J>, segment: u32, unit: u32) -> Address {
        Address::Seg { segment: SegmentId(segment), offset: unit * cx.geometry.lbas_per_unit as u32 }
    }

    /// Units that segments hold, after a recovery.
    pub(crate) fn units_found(&self) -> u64 {
        self.states.iter().map(|state| u64::from(state.pointer)).sum()
    }

    /// Number of segments that are written in part.
    pub(super) fn open_count(&self) -> u32 {
        let is_open = |segment: &&u32| (1..self.units).contains(&self.states[**segment as usize].pointer);
        self.open.keys().filter(is_open).count() as u32
    }

    pub(super) fn queue_of(&mut self, plane: PlaneId) -> &mut PlaneQueue {
        &mut self.planes[plane.index()]
    }
}
