//! One boot of a tiny device under a history: device, agenda, contract log, and a model of what reads see.
//!
//! The device is driven directly, without a link, so that every moment of it is a moment of the agenda and
//! a cut can be placed before each.
//!
//! Invariant: the log accepts a command wholly when the device gives it its sequence number. Commands are
//! accepted in one order, so what the rest of a long command will be merged with is known by then.

use super::workload::{History, HostOp, Verb};
use flashweir_contract::{Content, Log, OpIx};
use flashweir_core::agenda::Agenda;
use flashweir_core::command::{StreamId, pattern};
use flashweir_core::units::LBA_BYTES;
use flashweir_core::{DeviceError, Done, Duration, Instant, Lpn, Payload};
use flashweir_device::{Device, Effect, Event};
use flashweir_ftl::BlockId;
use std::collections::{BTreeMap, VecDeque};
use std::sync::Arc;

#[derive(Clone, Copy, Debug)]
enum Moment {
    Device(Event),
    /// The host submits its operation of this number.
    Submit(u32),
}

/// What the run-time checks found wrong; the operation is named by its number in the history.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Misbehaviour {
    /// A read returned what the model does not hold (oracle 11 of spec 8.2).
    WrongRead { op: u32, lpn: Lpn },
    /// A command failed.
    Failed { op: u32, error: String },
    /// A command of a stream was accepted before one that had arrived earlier.
    Overtaken { op: u32, by: u32 },
    /// Commands never complete.
    Wedged { in_flight: u32, state: String },
    /// The device works on and on after the last command, or takes absurdly long for one.
    Restless,
    /// At rest a unit reads as what the model does not hold.
    WrongAtRest { lpn: Lpn },
}

/// Events of a run at most: so many, and so many more for each operation. A tiny device needs a tenth.
const EVENTS_MIN: u32 = 4_000;
const EVENTS_PER_OP: u32 = 400;
/// Blocks that a plane may lose before the device turns read-only: the tiny device whose programs fail has 16,
/// of which it needs 13 (six for data, two for metadata, three in reserve, two open).
const BLOCKS_TO_SPARE: u32 = 3;

/// One boot.
#[derive(Clone, Debug)]
pub struct Sim {
    device: Device,
    agenda: Agenda<Moment>,
    effects: Vec<Effect>,
    log: Log,
    /// What each unit reads as once everything accepted is in.
    model: Vec<Payload>,
    history: History,
    next: usize,
    in_flight: u32,
    log_ops: Vec<Option<OpIx>>,
    /// Reads may overtake the rest of a command that is accepted in parts: what they may return.
    expected: Vec<Option<Vec<u64>>>,
    /// Commands of each stream that were submitted and not accepted.
    arrived: BTreeMap<StreamId, VecDeque<u32>>,
    events: u32,
    /// A device without spare blocks said that it lost accepted writes: which ones the model cannot know.
    has_lost_writes: bool,
    misbehaviour: Option<Misbehaviour>,
}

impl Sim {
    /// Begins on a device that has just woken up.
    pub fn new(device: Device, history: History) -> Self {
        let units = device.geometry().user_units;
        let model: Vec<Payload> = (0..units).map(|u| device.peek(Lpn(u)).unwrap_or_default()).collect();
        let mut log = Log::new();
        for (unit, payload) in model.iter().enumerate() {
            log.set_initial(Lpn(unit as u64), Content::from(payload));
        }
        let ops = history.ops.len();
        let mut sim = Self {
            device,
            agenda: Agenda::default(),
            effects: Vec::new(),
            log,
            model,
            next: 0,
            in_flight: 0,
            log_ops: vec![None; ops],
            expected: vec![None; ops],
            arrived: BTreeMap::new(),
            events: 0,
            has_lost_writes: false,
            misbehaviour: None,
            history,
        };
        for _ in 0..sim.history.depth {
            sim.schedule_next(Instant::ZERO);
        }
        sim
    }

    /// The device.
    pub fn device(&self) -> &Device {
        &self.device
    }

    /// What was submitted, accepted and completed so far.
    pub fn log(&self) -> &Log {
        &self.log
    }

    /// Events handled so far: the number of the cut that may happen now.
    pub fn events(&self) -> u32 {
        self.events
    }

    /// The instant before which a cut may happen now.
    pub fn cut_instant(&self) -> Instant {
        self.agenda.peek().unwrap_or_else(|| self.agenda.now())
    }

    /// What went wrong without any cut.
    pub fn misbehaviour(&self) -> Option<&Misbehaviour> {
        self.misbehaviour.as_ref()
    }

    /// Handles the next event; false if there is none.
    pub fn step(&mut self) -> bool {
        let Some((now, moment)) = self.agenda.pop() else {
            self.check_rest();
            return false;
        };
        self.events += 1;
        if self.events > EVENTS_MIN + EVENTS_PER_OP * self.history.ops.len() as u32 {
            self.misbehaviour.get_or_insert(Misbehaviour::Restless);
            return false;
        }
        match moment {
            Moment::Device(event) => self.device.event(now, event, &mut self.effects),
            Moment::Submit(op) => self.submit(now, op),
        }
        self.carry_out(now);
        true
    }

    /// Lets the host submit `op` after its delay and goes on until it has; returns its number.
    pub fn submit_next(&mut self, op: HostOp) -> u32 {
        let number = self.history.ops.len() as u32;
        self.history.ops.push(op);
        self.log_ops.push(None);
        self.expected.push(None);
        self.schedule_next(self.agenda.now());
        while self.log_ops[number as usize].is_none() && self.step() {}
        number
    }

    /// Goes on until the operation has completed; false if the device rests before.
    pub fn wait_for(&mut self, number: u32) -> bool {
        loop {
            let op = self.log_ops[number as usize];
            if op.is_none_or(|op| self.log.op(op).completed().is_some()) {
                return true;
            }
            if !self.step() {
                return false;
            }
        }
    }

    /// Runs to the end; says what went wrong.
    pub fn run(&mut self) -> Option<Misbehaviour> {
        while self.misbehaviour.is_none() && self.step() {}
        self.misbehaviour.clone()
    }

    fn check_rest(&mut self) {
        if self.misbehaviour.is_some() {
            return;
        }
        let left = self.in_flight + (self.history.ops.len() - self.next) as u32;
        if left > 0 {
            self.misbehaviour = Some(Misbehaviour::Wedged { in_flight: left, state: self.device.describe() });
            return;
        }
        if self.has_lost_writes {
            return;
        }
        let wrong = (0..self.model.len()).find(|&unit| {
            self.device.peek(Lpn(unit as u64)).unwrap_or_default().identity() != self.model[unit].identity()
        });
        self.misbehaviour = wrong.map(|unit| Misbehaviour::WrongAtRest { lpn: Lpn(unit as u64) });
    }

    fn schedule_next(&mut self, now: Instant) {
        if let Some(op) = self.history.ops.get(self.next) {
            let at = now + Duration::from_nanos(u64::from(op.delay_ns));
            self.agenda.at(at, Moment::Submit(self.next as u32));
            self.next += 1;
            self.in_flight += 1;
        }
    }

    fn submit(&mut self, now: Instant, number: u32) {
        let op = self.history.ops[number as usize];
        let command = op.command(u64::from(number));
        self.log_ops[number as usize] = self.log.submit_command(&command, self.per_unit());
        if let Some((stream, _)) = op.order {
            self.arrived.entry(stream).or_default().push_back(number);
        }
        if op.verb == Verb::Read {
            let (first, end) = self.touched(&op);
            let now_visible = |unit| self.device.peek(Lpn(unit)).unwrap_or_default().identity();
            self.expected[number as usize] = Some((first..end).map(now_visible).collect());
        }
        self.device.command(now, command, &mut self.effects);
    }

    fn carry_out(&mut self, now: Instant) {
        let mut effects = std::mem::take(&mut self.effects);
        for effect in effects.drain(..) {
            match effect {
                Effect::At(at, event) => self.agenda.at(at, Moment::Device(event)),
                Effect::Accepted { id, seq } => self.accept(id.0 as u32, seq),
                // What the medium's store could not keep must not be told to anybody.
                Effect::Complete(_) if self.device.store_error().is_some() => {}
                Effect::Complete(completion) => {
                    let number = completion.id.0 as u32;
                    self.in_flight -= 1;
                    // One that was refused, or does nothing, was never accepted.
                    self.leave(number);
                    if let Some(op) = self.log_ops[number as usize] {
                        self.log.complete(op, completion.result.is_ok());
                    }
                    match completion.result {
                        Ok(Done::Data(data)) => self.check_read(number, &data),
                        Ok(_) => {}
                        Err(DeviceError::ReadOnly) if self.is_worn_out() => {}
                        Err(DeviceError::WriteFault { .. } | DeviceError::StreamFailed(_))
                            if self.is_worn_out() =>
                        {
                            self.has_lost_writes = true
                        }
                        Err(error) => {
                            let error = error.to_string();
                            self.misbehaviour.get_or_insert(Misbehaviour::Failed { op: number, error });
                        }
                    }
                    self.schedule_next(now);
                }
            }
        }
        self.effects = effects;
    }

    /// Whether a plane has lost more blocks than a tiny device has to spare: it may refuse to change then, and
    /// what it holds must still be right. Counted on the medium, not by what the device thinks of itself.
    fn is_worn_out(&self) -> bool {
        let (geometry, media) = (self.device.geometry(), self.device.media());
        let mut lost = vec![0; geometry.planes() as usize];
        for block in (0..geometry.blocks()).map(BlockId).filter(|block| media.is_bad(*block)) {
            lost[geometry.plane_of(block).0 as usize] += 1;
        }
        lost.iter().any(|lost| *lost > BLOCKS_TO_SPARE)
    }

    fn check_read(&mut self, number: u32, data: &[Payload]) {
        let expected = self.expected[number as usize].take().unwrap_or_default();
        if self.has_lost_writes {
            return;
        }
        let first = self.touched(&self.history.ops[number as usize]).0;
        let wrong =
            data.iter().zip(&expected).position(|(payload, expected)| payload.identity() != *expected);
        if let Some(wrong) = wrong {
            let lpn = Lpn(first + wrong as u64);
            self.misbehaviour.get_or_insert(Misbehaviour::WrongRead { op: number, lpn });
        }
    }

    fn per_unit(&self) -> u64 {
        self.device.geometry().lbas_per_unit
    }

    fn touched(&self, op: &HostOp) -> (u64, u64) {
        let per_unit = self.per_unit();
        (op.lba / per_unit, (op.lba + u64::from(op.blocks)).div_ceil(per_unit))
    }

    /// A command is not one of those that arrived and were not accepted any more. Gives the first of its stream that is.
    fn leave(&mut self, number: u32) -> Option<u32> {
        let (stream, _) = self.history.ops[number as usize].order?;
        let arrived = self.arrived.get_mut(&stream)?;
        arrived.retain(|other| *other != number);
        arrived.front().copied()
    }

    fn accept(&mut self, number: u32, seq: u64) {
        let is_first = |arrived: &VecDeque<u32>| arrived.front() == Some(&number);
        let stream = self.history.ops[number as usize].order.map(|(stream, _)| stream);
        let is_due = stream.is_none_or(|stream| self.arrived.get(&stream).is_some_and(is_first));
        if let Some(op) = self.leave(number)
            && !is_due
        {
            self.misbehaviour.get_or_insert(Misbehaviour::Overtaken { op, by: number });
        }
        let Some(log_op) = self.log_ops[number as usize] else { return };
        let op = self.history.ops[number as usize];
        let mut units: Vec<(Lpn, Content)> = Vec::new();
        if op.blocks > 0 && !matches!(op.verb, Verb::Flush | Verb::RangeFlush | Verb::Barrier) {
            let (first, end) = self.touched(&op);
            for unit in first..end {
                let Some(payload) = self.merged(&op, unit) else { continue };
                units.push((Lpn(unit), Content::from(&payload)));
                self.model[unit as usize] = payload;
            }
        }
        self.log.accept(log_op, seq, units);
    }

    /// What `unit` reads as after `op`; `None` if the operation leaves it alone.
    fn merged(&self, op: &HostOp, unit: u64) -> Option<Payload> {
        let per_unit = self.per_unit();
        let from = op.lba.max(unit * per_unit);
        let to = (op.lba + u64::from(op.blocks)).min((unit + 1) * per_unit);
        let given = match op.verb {
            Verb::Write => Payload::Tag(pattern(op.pattern, Lpn(unit))),
            _ => Payload::Zero,
        };
        if to - from == per_unit {
            return Some(given);
        }
        if op.verb == Verb::Trim {
            return None;
        }
        let mut merged = vec![0; (per_unit * LBA_BYTES) as usize];
        let mut new = merged.clone();
        self.model[unit as usize].expand(&mut merged);
        given.expand(&mut new);
        let bytes = |block: u64| ((block - unit * per_unit) * LBA_BYTES) as usize;
        merged[bytes(from)..bytes(to)].copy_from_slice(&new[bytes(from)..bytes(to)]);
        Some(Payload::Bytes(Arc::from(merged)))
    }
}
