//! The operation log: what the host submitted, what the device accepted, what it completed (contract §10.1).
//!
//! Place in the data flow: the driver of a device (the crash laboratory, a test, the model device) writes the log; the
//! oracle and the enumeration of legal states read it. The log is recorded once and judged at many cuts: a [`LogPos`]
//! names the prefix that happened before the cut.
//!
//! Invariants: positions, sequence numbers and, within a stream, epochs never decrease; the units of one acceptance are
//! neighbours in the table of units; an operation completes at most once, after its submission.
//!
//! Deliberately absent: reads (they change nothing that a cut could reveal) and append segments (see [`crate::segments`]).

use flashweir_core::command::{RangeFlush, StreamId, Tag};
use flashweir_core::{Command, CommandId, Lpn, Op, Order, Payload};
use std::collections::BTreeMap;
use std::ops::Range;

/// Identity of the content of one unit, as returned by [`Payload::identity`].
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Content(pub u64);

impl Content {
    /// All zeros: the content after TRIM and WRITE_ZEROES.
    pub const ZERO: Self = Self(0);
}

impl From<&Payload> for Content {
    fn from(payload: &Payload) -> Self {
        Self(payload.identity())
    }
}

/// Position of an operation in the log, in order of submission.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct OpIx(pub u32);

/// Position of a unit in the log, in order of acceptance.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct UnitIx(pub u32);

/// Position between two events of the log: the number of events before a cut.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct LogPos(pub u32);

/// "None" in tables of `u32` indices.
pub(crate) const NONE: u32 = u32::MAX;

/// Kind of an operation, as far as a cut can distinguish it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Kind {
    /// Writes units.
    Write,
    /// Makes units read as zeros.
    WriteZeroes,
    /// Deallocates units; they read as zeros.
    Trim,
    /// Remaps units; the content is bound at acceptance (contract §1.5).
    Share,
    /// Promises everything that completed before.
    Flush,
    /// Promises what completed before and is selected ([`Selection`]).
    RangeFlush,
    /// Closes the epoch of its stream.
    Barrier,
}

/// Selection of a range flush (contract §4.7).
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Selection {
    /// Ranges of units; a unit that is selected in part is selected.
    pub units: Vec<Range<u64>>,
    /// Tags.
    pub tags: Vec<Tag>,
}

impl Selection {
    /// Converts the selection of a range flush to mapping units of `unit_blocks` sectors of 512 bytes.
    pub fn of(flush: &RangeFlush, unit_blocks: u64) -> Self {
        let units = flush.ranges.iter().filter(|(_, blocks)| *blocks > 0);
        let units = units
            .map(|(lba, blocks)| lba.0 / unit_blocks..(lba.0 + u64::from(*blocks)).div_ceil(unit_blocks));
        Self { units: units.collect(), tags: flush.tags.clone() }
    }

    /// Whether it selects the effect on `lpn` of an operation with these tags.
    fn has(&self, tags: [Tag; 2], lpn: Lpn) -> bool {
        self.units.iter().any(|units| units.contains(&lpn.0))
            || self.tags.iter().any(|tag| tags.contains(tag))
    }
}

/// One operation as the host submitted it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Submission {
    /// The host's name for the command.
    pub id: CommandId,
    /// Kind of the operation.
    pub kind: Kind,
    /// Force unit access: the completion promises the operation's own units.
    pub fua: bool,
    /// Whether its units persist together on a device that knows atomic groups; always true for SHARE (contract §1.4).
    pub atomic: bool,
    /// Order domain and role in its epoch.
    pub order: Option<(StreamId, Order)>,
    /// Owners of its units.
    pub tags: [Tag; 2],
    /// Whether its range begins, or ends, inside a mapping unit; used for drawings.
    pub partial: [bool; 2],
}

impl Submission {
    /// Makes a plain orderless operation.
    pub fn new(id: CommandId, kind: Kind) -> Self {
        Self {
            id,
            kind,
            fua: false,
            atomic: kind == Kind::Share,
            order: None,
            tags: [Tag(0); 2],
            partial: [false; 2],
        }
    }

    /// Returns what the log keeps of a command. Returns `None` for a command that has no effect after a cut, or that
    /// belongs to a namespace without a page map. [`Log::submit_command`] also keeps the selection of a range flush.
    pub fn of(command: &Command) -> Option<Self> {
        let kind = match &command.op {
            Op::Write { .. } => Kind::Write,
            Op::WriteZeroes { .. } => Kind::WriteZeroes,
            Op::Trim { .. } => Kind::Trim,
            Op::Share(_) => Kind::Share,
            Op::Flush => Kind::Flush,
            Op::RFlush(_) => Kind::RangeFlush,
            Op::Barrier => Kind::Barrier,
            Op::Read { .. }
            | Op::SegWrite { .. }
            | Op::SegAppend { .. }
            | Op::SegTrim { .. }
            | Op::SegReport { .. }
            | Op::PpaRead { .. }
            | Op::PpaWrite(_)
            | Op::PpaErase(_)
            | Op::PpaCopy(_)
            | Op::OpenGeometry
            | Op::ChunkReport { .. }
            | Op::ChunkNotices { .. }
            | Op::BlockMarks { .. }
            | Op::MarkBlocks(_) => return None,
        };
        let order = command.stream.map(|stream| {
            let role = if kind == Kind::Barrier { Order::Barrier } else { Order::Within };
            (stream, command.order.unwrap_or(role))
        });
        Some(Self { fua: command.fua, order, tags: command.tags, ..Self::new(command.id, kind) })
    }
}

/// One operation of the log.
#[derive(Clone, Copy, Debug)]
pub struct Operation {
    /// The operation as it was submitted.
    pub submission: Submission,
    /// Position of its submission.
    pub submitted_at: LogPos,
    completed_at: u32,
    succeeded: bool,
}

impl Operation {
    /// Whether it had completed successfully before `upto`. A failed command promises nothing.
    #[inline]
    pub fn succeeded_before(&self, upto: LogPos) -> bool {
        self.succeeded && self.completed_at < upto.0
    }

    /// Returns the position of its completion and whether it succeeded.
    pub fn completed(&self) -> Option<(LogPos, bool)> {
        (self.completed_at != NONE).then_some((LogPos(self.completed_at), self.succeeded))
    }
}

/// One unit `(seq, lpn)`: the atom of persistence (contract §1.2).
#[derive(Clone, Copy, Debug)]
pub struct Unit {
    /// Sequence number: the global order of acceptance.
    pub seq: u64,
    /// Address.
    pub lpn: Lpn,
    /// Content that it reads as, if it is the newest unit that persisted.
    pub content: Content,
    /// Operation that it belongs to.
    pub op: OpIx,
    /// Epoch within its stream; 0 if orderless.
    pub epoch: u32,
    /// Row of its LPN in the log's table of LPNs.
    pub(crate) place: u32,
    /// The previous unit on the same LPN.
    pub(crate) older: u32,
    /// The first later unit on the same LPN that is of no stream.
    pub(crate) orderless: u32,
    /// Row of its stream in the log's table of streams.
    pub(crate) stream: u32,
    /// The previous unit in its stream.
    pub(crate) stream_prev: u32,
    /// The next unit in its stream.
    pub(crate) stream_next: u32,
    /// First unit of its atomic group; `NONE` if it stands alone.
    pub(crate) group_first: u32,
    /// Number of units in the group.
    pub(crate) group_len: u32,
}

impl Unit {
    /// Returns the indices of the units of its atomic group, itself included.
    #[inline]
    pub(crate) fn mates(&self) -> Range<usize> {
        if self.group_first == NONE {
            0..0
        } else {
            self.group_first as usize..(self.group_first + self.group_len) as usize
        }
    }
}

/// An LPN of the log.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Place {
    pub(crate) lpn: Lpn,
    pub(crate) initial: Content,
    pub(crate) newest: u32,
}

/// A stream of the log.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Lane {
    pub(crate) id: StreamId,
    /// Number of the open epoch.
    epoch: u32,
    /// Whether the open epoch has members; an empty one is not closed (contract §1.3).
    members: bool,
    pub(crate) first: u32,
    pub(crate) last: u32,
}

#[derive(Clone, Copy, Debug)]
struct Acceptance {
    at: u32,
    units_before: u32,
}

/// The operation log. See the module for its invariants.
#[derive(Clone, Debug, Default)]
pub struct Log {
    ops: Vec<Operation>,
    units: Vec<Unit>,
    acceptances: Vec<Acceptance>,
    pub(crate) places: Vec<Place>,
    /// Rows of `places`, sorted by LPN.
    by_lpn: Vec<u32>,
    pub(crate) lanes: Vec<Lane>,
    selections: BTreeMap<OpIx, Selection>,
    position: u32,
}

impl Log {
    /// Makes an empty log of media that read as zeros.
    pub fn new() -> Self {
        Self::default()
    }

    /// Forgets everything, including initial contents, and keeps the memory.
    pub fn clear(&mut self) {
        self.ops.clear();
        self.units.clear();
        self.acceptances.clear();
        self.places.clear();
        self.by_lpn.clear();
        self.lanes.clear();
        self.selections.clear();
        self.position = 0;
    }

    /// Sets the content that `lpn` durably had before the first operation; the default is zeros. The oracle also checks
    /// every LPN named here that no operation touches.
    pub fn set_initial(&mut self, lpn: Lpn, content: Content) {
        let place = self.place(lpn);
        let place = &mut self.places[place as usize];
        assert!(place.newest == NONE, "the initial content of {lpn:?} comes before its first write");
        place.initial = content;
    }

    /// Records a submission.
    pub fn submit(&mut self, submission: Submission) -> OpIx {
        assert!(
            submission.kind != Kind::Barrier || submission.order.is_some_and(|(_, o)| o == Order::Barrier),
            "a barrier closes the epoch of a stream"
        );
        let op = OpIx(self.ops.len() as u32);
        let submitted_at = self.step();
        self.ops.push(Operation { submission, submitted_at, completed_at: NONE, succeeded: false });
        op
    }

    /// Records the submission of a command to a device with mapping units of `unit_blocks` sectors; returns `None` for
    /// a command that the log does not keep.
    pub fn submit_command(&mut self, command: &Command, unit_blocks: u64) -> Option<OpIx> {
        let partial = match &command.op {
            Op::Write { lba, blocks, .. } | Op::WriteZeroes { lba, blocks } | Op::Trim { lba, blocks } => {
                [lba.0, lba.0 + u64::from(*blocks)].map(|end| !end.is_multiple_of(unit_blocks))
            }
            _ => [false; 2],
        };
        let op = self.submit(Submission { partial, ..Submission::of(command)? });
        if let Op::RFlush(flush) = &command.op {
            self.select(op, Selection::of(flush, unit_blocks));
        }
        Some(op)
    }

    /// Sets the selection of a range flush, before it completes. Without it, the range flush selects nothing.
    pub fn select(&mut self, op: OpIx, selection: Selection) {
        assert_eq!(self.ops[op.0 as usize].submission.kind, Kind::RangeFlush, "only a range flush selects");
        self.selections.insert(op, selection);
    }

    /// Returns the selection of the range flush `op`.
    pub(crate) fn selection(&self, op: OpIx) -> Option<&Selection> {
        self.selections.get(&op)
    }

    /// Whether the range flush `op` selects `unit`.
    pub(crate) fn selects(&self, op: OpIx, unit: &Unit) -> bool {
        let tags = self.op(unit.op).submission.tags;
        self.selections.get(&op).is_some_and(|selection| selection.has(tags, unit.lpn))
    }

    /// Records the acceptance of units of `op` with their new contents, zeros for TRIM. An operation may be accepted in
    /// several parts, each with its own `seq`, unless it closes an epoch; each part is an atomic group if the operation
    /// is atomic.
    pub fn accept(&mut self, op: OpIx, seq: u64, units: impl IntoIterator<Item = (Lpn, Content)>) {
        let at = self.step().0;
        let Operation { submission, completed_at, .. } = self.ops[op.0 as usize];
        assert!(completed_at == NONE, "{op:?} completed before it was accepted");
        assert!(self.units.last().is_none_or(|last| last.seq < seq), "sequence numbers increase");
        let lane = submission.order.map(|(id, _)| self.lane(id));
        let units_before = self.units.len() as u32;
        for (lpn, content) in units {
            self.push_unit(op, seq, lpn, content, lane);
        }
        let group_len = self.units.len() as u32 - units_before;
        if submission.atomic && group_len > 1 {
            for unit in &mut self.units[units_before as usize..] {
                (unit.group_first, unit.group_len) = (units_before, group_len);
            }
        }
        self.acceptances.push(Acceptance { at, units_before });
        if let (Some(lane), Some((_, Order::Barrier))) = (lane, submission.order) {
            let lane = &mut self.lanes[lane as usize];
            lane.epoch += u32::from(lane.members);
            lane.members = false;
        }
    }

    /// Records the completion of `op`.
    pub fn complete(&mut self, op: OpIx, succeeded: bool) {
        let at = self.step().0;
        let op = &mut self.ops[op.0 as usize];
        assert!(op.completed_at == NONE, "{:?} completed twice", op.submission.id);
        op.completed_at = at;
        op.succeeded = succeeded;
    }

    /// Returns the newest operation that the host calls `id`. The search starts at the newest one, so it is short for
    /// an operation in flight.
    pub fn find(&self, id: CommandId) -> Option<OpIx> {
        self.ops.iter().rposition(|op| op.submission.id == id).map(|op| OpIx(op as u32))
    }

    /// Returns the position after the last event: that of a cut now.
    pub fn position(&self) -> LogPos {
        LogPos(self.position)
    }

    /// Returns all operations, in order of submission.
    pub fn ops(&self) -> &[Operation] {
        &self.ops
    }

    /// Returns one operation.
    pub fn op(&self, op: OpIx) -> &Operation {
        &self.ops[op.0 as usize]
    }

    /// Returns one unit.
    pub fn unit(&self, unit: UnitIx) -> &Unit {
        &self.units[unit.0 as usize]
    }

    /// Returns the units accepted before `upto`, in order of acceptance.
    #[inline]
    pub fn units_before(&self, upto: LogPos) -> &[Unit] {
        if upto.0 >= self.position {
            return &self.units;
        }
        let accepted = self.acceptances.partition_point(|a| a.at < upto.0);
        let units = self.acceptances.get(accepted).map_or(self.units.len(), |a| a.units_before as usize);
        &self.units[..units]
    }

    /// Iterates over every LPN of the log and its initial content, in order of first mention.
    pub fn lpns(&self) -> impl ExactSizeIterator<Item = (Lpn, Content)> + '_ {
        self.places.iter().map(|p| (p.lpn, p.initial))
    }

    /// Returns what `lpn` read as before the first operation.
    pub fn initial(&self, lpn: Lpn) -> Content {
        self.row(lpn).map_or(Content::ZERO, |row| self.places[row as usize].initial)
    }

    fn step(&mut self) -> LogPos {
        let at = LogPos(self.position);
        assert!(self.position < NONE - 1, "a log has at most 2^32 - 2 events");
        self.position += 1;
        at
    }

    fn push_unit(&mut self, op: OpIx, seq: u64, lpn: Lpn, content: Content, lane: Option<u32>) {
        let index = self.units.len() as u32;
        let place = self.place(lpn);
        let older = std::mem::replace(&mut self.places[place as usize].newest, index);
        assert!(
            older == NONE || self.units[older as usize].seq < seq,
            "one acceptance names {lpn:?} at most once"
        );
        if lane.is_none() {
            let mut before = older;
            while let Some(unit) = self.units.get_mut(before as usize).filter(|unit| unit.orderless == NONE) {
                unit.orderless = index;
                before = unit.older;
            }
        }
        let (mut epoch, mut stream_prev) = (0, NONE);
        if let Some(lane) = lane {
            let lane = &mut self.lanes[lane as usize];
            lane.members = true;
            epoch = lane.epoch;
            stream_prev = std::mem::replace(&mut lane.last, index);
            if stream_prev == NONE {
                lane.first = index;
            } else {
                self.units[stream_prev as usize].stream_next = index;
            }
        }
        self.units.push(Unit {
            seq,
            lpn,
            content,
            op,
            epoch,
            place,
            older,
            orderless: NONE,
            stream: lane.unwrap_or(NONE),
            stream_prev,
            stream_next: NONE,
            group_first: NONE,
            group_len: 0,
        });
    }

    pub(crate) fn row(&self, lpn: Lpn) -> Option<u32> {
        let at = self.by_lpn.partition_point(|&row| self.places[row as usize].lpn < lpn);
        self.by_lpn.get(at).copied().filter(|&row| self.places[row as usize].lpn == lpn)
    }

    fn place(&mut self, lpn: Lpn) -> u32 {
        let at = self.by_lpn.partition_point(|&row| self.places[row as usize].lpn < lpn);
        if let Some(&row) = self.by_lpn.get(at)
            && self.places[row as usize].lpn == lpn
        {
            return row;
        }
        let row = self.places.len() as u32;
        self.places.push(Place { lpn, initial: Content::ZERO, newest: NONE });
        self.by_lpn.insert(at, row);
        row
    }

    fn lane(&mut self, id: StreamId) -> u32 {
        if let Some(lane) = self.lanes.iter().position(|lane| lane.id == id) {
            return lane as u32;
        }
        self.lanes.push(Lane { id, epoch: 0, members: false, first: NONE, last: NONE });
        self.lanes.len() as u32 - 1
    }
}
