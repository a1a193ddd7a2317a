//! Commands as they arrive: checks, and the order in which they are accepted.
//!
//! Invariant: whatever changes contents passes one queue, so sequence numbers follow the order of effects.

use crate::arrivals::Arrivals;
use crate::config::{PersistPolicy, RangeFlushSupport};
use crate::device::{Active, Device, Effect, Event};
use crate::geometry::Geometry;
use crate::trace::Traced;
use flashweir_core::command::StreamId;
use flashweir_core::{Command, DeviceError, Duration, Instant, Lba, Lpn, Op, Order};

/// The mapping units that a range touches, and whether its ends cover only a part of one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Span {
    pub(crate) first: u64,
    pub(crate) end: u64,
    pub(crate) partial_first: bool,
    pub(crate) partial_last: bool,
}

impl Span {
    #[inline]
    pub(crate) fn new(lba: Lba, blocks: u32, geometry: &Geometry) -> Self {
        let (first, rest_first) = geometry.unit_of(lba);
        let (end, rest_last) = geometry.unit_of(Lba(lba.0 + u64::from(blocks)));
        Self {
            first: first.0,
            end: end.0 + u64::from(rest_last > 0),
            partial_first: rest_first > 0,
            partial_last: rest_last > 0,
        }
    }

    #[inline]
    pub(crate) fn is_partial(&self, unit: u64) -> bool {
        (self.partial_first && unit == self.first) || (self.partial_last && unit + 1 == self.end)
    }

    #[inline]
    pub(crate) fn len(&self) -> u32 {
        (self.end - self.first) as u32
    }
}

impl Device {
    /// A command has arrived with its data.
    pub fn command(&mut self, now: Instant, command: Command, effects: &mut Vec<Effect>) {
        self.metrics.commands += 1;
        let verdict = self.check(&command);
        let blocks = range(&command.op).map(|(_, blocks)| blocks);
        let is_read = matches!(command.op, Op::Read { .. });
        let is_write = matches!(command.op, Op::Write { .. });
        let id = command.id;
        let active = Active { command, seq: 0, left: 0, next: 0, error: None, data: Vec::new() };
        let at = self.commands.insert(active);
        self.nand.trace.moment(now);
        self.nand.trace.record(|| Traced::Arrived { command: at, id });
        if let Err(error) = verdict {
            self.commands.get_mut(at).error = Some(error);
            self.note_refused(now, at, effects);
            self.complete(at, effects);
        } else if blocks == Some(0) {
            self.note_refused(now, at, effects);
            self.complete(at, effects);
        } else if is_read && !self.is_locked() {
            self.start_read(now, at, effects);
        } else if is_write {
            self.note_ordered(at);
            let bytes = self.commands.get(at).command.bytes_down();
            match self.memory_access(now, at, bytes) {
                Some(done) => effects.push(Effect::At(done, Event::BufferMemory { command: at })),
                None => self.start_write(now, at, effects),
            }
        } else {
            self.note_ordered(at);
            self.ready(now, at, effects);
        }
        self.trace_room();
    }

    /// Commands of a stream are accepted as they arrive, however long each needs before that, or by the numbers of their epochs.
    fn note_ordered(&mut self, at: u32) {
        if let Some(stream) = self.stream_of(at) {
            let epoch = self.commands.get(at).command.epoch;
            self.orders.arrivals.entry(stream).or_default().note(Some(at), epoch);
        }
    }

    /// A command that was refused is a member of its epoch all the same.
    fn note_refused(&mut self, now: Instant, at: u32, effects: &mut Vec<Effect>) {
        let epoch = self.commands.get(at).command.epoch;
        if let (Some(stream), Some(_)) = (self.stream_of(at), epoch) {
            let arrivals = self.orders.arrivals.entry(stream).or_default();
            if arrivals.check(epoch).is_ok() {
                arrivals.note(None, epoch);
                self.pass(now, stream, effects);
            }
        }
    }

    /// A command can be accepted: with all that it needs, and behind those of its stream that go before it.
    pub(crate) fn ready(&mut self, now: Instant, at: u32, effects: &mut Vec<Effect>) {
        let Some(stream) = self.stream_of(at) else { return self.enqueue(now, at, effects) };
        self.orders.arrivals.entry(stream).or_default().ready(at);
        self.pass(now, stream, effects);
    }

    fn pass(&mut self, now: Instant, stream: StreamId, effects: &mut Vec<Effect>) {
        while let Some(next) = self.orders.arrivals.get_mut(&stream).and_then(Arrivals::pass) {
            self.enqueue(now, next, effects);
        }
    }

    /// Refuses what the device cannot do; nothing has changed.
    fn check(&self, command: &Command) -> Result<(), DeviceError> {
        let name = match &command.op {
            Op::Read { .. } | Op::Write { .. } | Op::WriteZeroes { .. } | Op::Trim { .. } | Op::Flush => None,
            Op::RFlush(_) if self.config.buffer.range_flush == RangeFlushSupport::None => Some("range flush"),
            Op::RFlush(_) => None,
            Op::Barrier if self.config.order.policy == PersistPolicy::None => Some("barrier"),
            Op::Barrier => None,
            Op::Share(_) => Some("SHARE"),
            Op::SegWrite { .. } | Op::SegAppend { .. } | Op::SegTrim { .. } | Op::SegReport { .. } => {
                Some("append-only segments")
            }
            Op::PpaRead(_) | Op::PpaWrite { .. } | Op::PpaErase(_) => Some("open channel"),
        };
        if let Some(name) = name {
            return Err(DeviceError::NotSupported(name));
        }
        let ordered = command.order.is_some() || command.stream.is_some();
        if ordered && self.config.order.policy == PersistPolicy::None {
            return Err(DeviceError::NotSupported("ordered commands"));
        }
        if (ordered || command.op == Op::Barrier) && command.stream.is_none() {
            return Err(DeviceError::InvalidField("an order needs a stream"));
        }
        if let Some(epoch) = command.epoch {
            if epoch.members.is_some() != (command.op == Op::Barrier || command.order == Some(Order::Barrier))
            {
                return Err(DeviceError::InvalidField("an epoch's number of members comes with its barrier"));
            }
            if command.stream.is_none() {
                return Err(DeviceError::InvalidField("the number of an epoch needs a stream"));
            }
        }
        if let (Some(stream), false) = (command.stream, matches!(command.op, Op::Read { .. })) {
            let arrivals = self.orders.arrivals.get(&stream);
            arrivals.map_or(Ok(()), |arrivals| arrivals.check(command.epoch))?;
        }
        if command.op == Op::Barrier && command.order == Some(Order::Within) {
            return Err(DeviceError::InvalidField("a barrier of no length closes an epoch"));
        }
        if command.ns != 0 {
            return Err(DeviceError::InvalidField("there is only namespace 0"));
        }
        let capacity_blocks = self.geometry.capacity_lbas();
        if let Op::RFlush(flush) = &command.op {
            flush.check(capacity_blocks)?;
        }
        if let Some((lba, blocks)) = range(&command.op)
            && lba.0.checked_add(u64::from(blocks)).is_none_or(|end| end > capacity_blocks)
        {
            return Err(DeviceError::OutOfRange { lba, blocks, capacity_blocks });
        }
        if let Op::Write { blocks, data: flashweir_core::Data::Bytes(bytes), .. } = &command.op
            && bytes.len() as u64 != u64::from(*blocks) * flashweir_core::units::LBA_BYTES
        {
            return Err(DeviceError::InvalidField("the data are not as long as the range"));
        }
        if let Op::Write { lba, blocks, data: flashweir_core::Data::Units(units) } = &command.op {
            let span = self.span(*lba, *blocks);
            if span.partial_first || span.partial_last || units.len() as u64 != u64::from(span.len()) {
                return Err(DeviceError::InvalidField("the contents are not those of whole mapping units"));
            }
        }
        let changes = !matches!(command.op, Op::Read { .. } | Op::Flush | Op::RFlush(_) | Op::Barrier);
        if changes && self.read_only { Err(DeviceError::ReadOnly) } else { Ok(()) }
    }

    /// When the buffer memory has moved `bytes` of a command; `None` if that takes no time.
    pub(crate) fn memory_access(&mut self, now: Instant, command: u32, bytes: u64) -> Option<Instant> {
        let buffer = &self.config.buffer;
        if buffer.bytes_per_s == 0 && buffer.access_latency == Duration::ZERO {
            return None;
        }
        let time = buffer.access_latency + Duration::of_transfer(bytes, buffer.bytes_per_s);
        let from = self.memory_free_at.max(now);
        let until = from + time;
        self.memory_free_at = until;
        self.nand.trace.record(|| Traced::Memory { command, from, until });
        Some(until)
    }

    pub(crate) fn memory_done(&mut self, now: Instant, command: u32, effects: &mut Vec<Effect>) {
        self.nand.trace.record(|| Traced::MemoryDone { command });
        if matches!(self.commands.get(command).command.op, Op::Read { .. }) {
            self.part_done(command, effects);
        } else {
            self.start_write(now, command, effects);
        }
    }

    /// Accepts a command that changes something, or lets it wait behind those that came before.
    fn enqueue(&mut self, now: Instant, at: u32, effects: &mut Vec<Effect>) {
        self.nand.trace.record(|| Traced::Enqueued { command: at });
        self.admission.push_back(at);
        if self.admission.len() == 1 {
            self.admit(now, effects);
        }
        // After a recovery a plane may be short of blocks before anything was programmed.
        self.collect_recheck(now, effects);
    }

    /// Accepts waiting commands as far as there is room.
    pub(crate) fn admit(&mut self, now: Instant, effects: &mut Vec<Effect>) {
        // What is accepted may set things free that call here again.
        if std::mem::replace(&mut self.admitting, true) {
            return;
        }
        while let Some(&at) = self.admission.front().filter(|_| !self.is_locked()) {
            let done = self.refuse_failed(at, effects) || self.admit_one(now, at, effects);
            if !done {
                break;
            }
            self.admission.pop_front();
            self.nand.trace.record(|| Traced::Admitted { command: at });
        }
        self.admitting = false;
        self.commit_saved();
    }

    /// Accepts one command as far as there is room; true when it is in.
    fn admit_one(&mut self, now: Instant, at: u32, effects: &mut Vec<Effect>) -> bool {
        match self.commands.get(at).command.op {
            Op::Write { .. } => self.accept_write(now, at, effects),
            Op::Trim { .. } | Op::WriteZeroes { .. } => self.accept_trim(now, at, effects),
            Op::Flush => {
                self.accept_flush(now, at, effects);
                true
            }
            Op::RFlush(_) => {
                self.accept_range_flush(now, at, effects);
                true
            }
            Op::Barrier => {
                self.accept_barrier(now, at, effects);
                true
            }
            Op::Read { .. } => {
                self.start_read(now, at, effects);
                true
            }
            _ => unreachable!("the command was checked"),
        }
    }

    /// Whether a flush keeps everybody else from the buffer.
    fn is_locked(&self) -> bool {
        self.config.buffer.exclusive_flush && !self.flushes.is_empty()
    }

    /// The mapping units of a range.
    #[inline]
    pub(crate) fn span(&self, lba: Lba, blocks: u32) -> Span {
        Span::new(lba, blocks, &self.geometry)
    }

    /// The first 512-byte block of a unit, for errors.
    pub(crate) fn lba(&self, lpn: Lpn) -> Lba {
        self.geometry.lba_of(lpn)
    }
}

/// The range of a command that has one.
pub(crate) fn range(op: &Op) -> Option<(Lba, u32)> {
    match op {
        Op::Read { lba, blocks }
        | Op::Write { lba, blocks, .. }
        | Op::WriteZeroes { lba, blocks }
        | Op::Trim { lba, blocks } => Some((*lba, *blocks)),
        _ => None,
    }
}
