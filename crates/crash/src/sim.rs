//! One boot of a tiny device under a history: device, agenda, contract log, and a model of the contents that reads
//! return.
//!
//! The device is driven directly, without a link, so that every event of it is on the agenda and a cut can be placed
//! before each. Some tiny devices have a block layer in front: there the log records the requests to the block layer,
//! and a request counts as accepted when it is submitted, which is the order that the block layer promises.
//!
//! Invariant: without a block layer, the log accepts a command wholly when the device gives it its sequence number.
//! Commands are accepted in one order, so the contents that the rest of a long command will be merged with are known by
//! then.

use super::devices;
use super::layer::{Layer, Wish};
use super::workload::{History, HostOp, Verb};
use flashweir_contract::{Content, Log, OpIx};
use flashweir_core::agenda::Agenda;
use flashweir_core::command::{SharePair, StreamId, pattern};
use flashweir_core::units::LBA_BYTES;
use flashweir_core::{CommandId, Data, DeviceError, Done, Duration, Instant, Lpn, Op, Payload};
use flashweir_device::config::Translation;
use flashweir_device::{Device, Effect, Event};
use flashweir_ftl::BlockId;
use flashweir_ftl::geometry::PageAddr;
use flashweir_host::{HostMetrics, Input};
use std::collections::{BTreeMap, VecDeque};
use std::sync::Arc;

#[derive(Clone, Copy, Debug)]
enum Moment {
    Device(Event),
    /// The host submits its operation of this number.
    Submit(u32),
    /// The submitters of this instant are done.
    Unplug,
    /// A command of the block layer reaches the device.
    Arrive(CommandId),
    Wake,
}

/// A fault found by the run-time checks; the operation is named by its number in the history.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Misbehaviour {
    /// A read returned something else than the model holds (oracle of crash-laboratory §2.11).
    WrongRead { op: u32, lpn: Lpn },
    /// A command failed.
    Failed { op: u32, error: String },
    /// A command of a stream was accepted before one that had arrived earlier.
    Overtaken { op: u32, by: u32 },
    /// Commands never complete.
    Wedged { in_flight: u32, state: String },
    /// The device keeps working after the last command, or takes absurdly long for one.
    Restless,
    /// At rest a unit reads as something else than the model holds.
    WrongAtRest { lpn: Lpn },
}

/// Maximum number of events of a run: a base, and an addition per operation. A tiny device needs a tenth.
const EVENTS_MIN: u32 = 4_000;
const EVENTS_PER_OP: u32 = 400;
/// Number of erase blocks that a plane may lose before the device turns read-only: the tiny device whose programs fail
/// has 16, of which it needs 13 (six for data, two for metadata, three in reserve, two open).
const BLOCKS_TO_SPARE: u32 = 3;

/// One boot.
#[derive(Clone, Debug)]
pub struct Sim {
    device: Device,
    layer: Option<Box<Layer>>,
    agenda: Agenda<Moment>,
    effects: Vec<Effect>,
    wishes: Vec<Wish>,
    log: Log,
    /// What each unit reads as once every accepted command has taken effect.
    model: Vec<Payload>,
    /// What each unit read as before the last command that changed it, which the device may still be taking over.
    before: Vec<Option<(OpIx, u64)>>,
    /// Whether each unit has a content, as a source of a SHARE needs one.
    mapped: Vec<bool>,
    /// With a block layer: content of each unit at the beginning.
    first: Vec<u64>,
    history: History,
    next: usize,
    in_flight: u32,
    log_ops: Vec<Option<OpIx>>,
    /// Contents that each read may return, since a read may overtake the rest of a command that is accepted in parts.
    /// With a block layer, the index of the first of its `versions` that the read may return on each unit.
    expected: Vec<Option<Vec<u64>>>,
    /// With a block layer, or where reads look up the map later than they arrive: the contents of each unit in order,
    /// each with the operation that wrote it.
    versions: Vec<Vec<(OpIx, u64)>>,
    /// For a map on the medium, where a read waits for a part of the map and may return contents accepted meanwhile.
    /// For each read, the first of its units' `versions` that it may return besides those it could return when it
    /// arrived; at most one command was accepted in part.
    newer: Vec<Option<Vec<usize>>>,
    looks_up_late: bool,
    /// Commands of each stream that were submitted and not yet accepted.
    arrived: BTreeMap<StreamId, VecDeque<u32>>,
    events: u32,
    /// A device without spare blocks reported the loss of accepted writes; the model cannot know which ones.
    has_lost_writes: bool,
    /// Erase blocks with unreadable pages at the beginning, with the number of their opening.
    torn: Vec<(BlockId, Option<u64>)>,
    misbehaviour: Option<Misbehaviour>,
}

impl Sim {
    /// Starts on a device that has just woken up.
    pub fn new(device: Device, history: History) -> Self {
        let units = device.geometry().user_units;
        let model: Vec<Payload> = (0..units).map(|u| device.peek(Lpn(u)).unwrap_or_default()).collect();
        let mut log = Log::new();
        for (unit, payload) in model.iter().enumerate() {
            log.set_initial(Lpn(unit as u64), Content::from(payload));
        }
        let ops = history.ops.len();
        // Patterns contain the world and the boot.
        let seed = history.ops.first().map_or(0, |op| op.pattern >> 16);
        let per_unit = device.geometry().lbas_per_unit;
        let layer = devices::layer(&device.config().name);
        let config = device.config();
        let looks_up_late =
            config.ftl.translation == Translation::DemandCached || config.buffer.exclusive_flush;
        let first = model.iter().map(Payload::identity).filter(|_| layer.is_some()).collect();
        let torn = unreadable_blocks(&device);
        let mapped = (0..units).map(|unit| device.is_mapped(Lpn(unit))).collect();
        let mut sim = Self {
            torn,
            layer: layer.map(|config| Box::new(Layer::new(config, per_unit, seed))),
            wishes: Vec::new(),
            device,
            agenda: Agenda::default(),
            effects: Vec::new(),
            log,
            before: vec![None; units as usize],
            model,
            mapped,
            first,
            next: 0,
            in_flight: 0,
            log_ops: vec![None; ops],
            expected: vec![None; ops],
            versions: vec![Vec::new(); units as usize],
            newer: vec![None; ops],
            looks_up_late,
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

    /// Returns the device.
    pub fn device(&self) -> &Device {
        &self.device
    }

    /// Returns the counters of the block layer, if there is one.
    pub fn host_metrics(&self) -> Option<HostMetrics> {
        self.layer.as_ref().map(|layer| *layer.metrics())
    }

    /// Returns the log of submissions, acceptances and completions so far.
    pub fn log(&self) -> &Log {
        &self.log
    }

    /// Returns the number of events handled so far: the number of a cut now.
    pub fn events(&self) -> u32 {
        self.events
    }

    /// Returns the time before which a cut may happen now.
    pub fn cut_instant(&self) -> Instant {
        self.agenda.peek().unwrap_or_else(|| self.agenda.now())
    }

    /// Returns the fault that occurred without any cut.
    pub fn misbehaviour(&self) -> Option<&Misbehaviour> {
        self.misbehaviour.as_ref()
    }

    /// Handles the next event; returns false if there is none.
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
            Moment::Unplug => self.tell(now, Input::Unplug),
            Moment::Wake => self.tell(now, Input::Wake),
            Moment::Arrive(id) => {
                if let Some(command) = self.layer.as_mut().and_then(|layer| layer.take(id)) {
                    self.device.command(now, command, &mut self.effects);
                }
            }
        }
        self.carry_out(now);
        true
    }

    /// Appends `op` to the history and runs until the host has submitted it after its delay; returns its number.
    pub fn submit_next(&mut self, op: HostOp) -> u32 {
        let number = self.history.ops.len() as u32;
        self.history.ops.push(op);
        self.log_ops.push(None);
        self.expected.push(None);
        self.newer.push(None);
        self.schedule_next(self.agenda.now());
        while self.log_ops[number as usize].is_none() && self.step() {}
        number
    }

    /// Runs until the operation has completed; returns false if the device comes to rest before.
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

    /// Runs to the end; returns the fault, if there is one.
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
            let layer = self.layer.as_ref().map_or(String::new(), |layer| layer.describe() + "; ");
            let state = format!("{layer}{}", self.device.describe());
            self.misbehaviour = Some(Misbehaviour::Wedged { in_flight: left, state });
            return;
        }
        if self.has_lost_writes {
            return;
        }
        let wrong = (0..self.model.len()).find(|&unit| {
            let lpn = Lpn(unit as u64);
            let is_right = self.device.peek(lpn).unwrap_or_default().identity() == self.settled(unit);
            !(is_right || self.device.has_lost(lpn) && self.is_worn_out())
        });
        self.misbehaviour = wrong.map(|unit| Misbehaviour::WrongAtRest { lpn: Lpn(unit as u64) });
    }

    /// Content of a unit when every command has been answered. A device takes over what it accepts, and a block layer what is
    /// submitted, of which a device that is worn out may refuse some.
    fn settled(&self, unit: usize) -> u64 {
        if self.layer.is_none() {
            return self.model[unit].identity();
        }
        let mut versions = self.versions[unit].iter().rev();
        let last = versions.find(|(op, _)| self.log.op(*op).completed().is_none_or(|(_, is_done)| is_done));
        last.map_or(self.first[unit], |(_, content)| *content)
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
        if self.layer.is_some() {
            if let Some(log_op) = self.log_ops[number as usize]
                && matches!(op.verb, Verb::Write | Verb::Zeroes | Verb::Trim | Verb::Barrier)
            {
                let seq = u64::from(self.log.position().0) + 1;
                self.take_over(number, log_op, seq);
            }
            if op.verb == Verb::Read {
                // A read returns what was answered before its submission, or something newer.
                let (first, end) = self.touched(&op);
                let is_answered =
                    |(op, _): &(OpIx, u64)| self.log.op(*op).completed().is_some_and(|(_, is_done)| is_done);
                let units = self.versions[first as usize..end as usize].iter();
                let answered =
                    units.map(|unit| unit.iter().rposition(is_answered).map_or(0, |at| at as u64 + 1));
                self.expected[number as usize] = Some(answered.collect());
            }
            let mut command = command;
            if let Op::Write { data, .. } = &mut command.op
                && !self.is_partial(&op)
            {
                // Patterns of two requests differ and cannot be merged into one; their contents can.
                let (first, end) = self.touched(&op);
                let content = |unit| Payload::Tag(pattern(op.pattern, Lpn(unit)));
                *data = Data::Units((first..end).map(content).collect());
            }
            let submitter = (op.lba % 5) as u16;
            self.tell(now, Input::Submit { command, submitter });
            return self.agenda.at(now, Moment::Unplug);
        }
        if let Some((stream, _)) = op.order {
            self.arrived.entry(stream).or_default().push_back(number);
        }
        if op.verb == Verb::Read {
            let (first, end) = self.touched(&op);
            let now_visible = |unit| self.device.peek(Lpn(unit)).unwrap_or_default().identity();
            let visible: Vec<u64> = (first..end).map(now_visible).collect();
            let wrong =
                (first..).zip(&visible).find(|(unit, visible)| !self.may_read_as(*unit as usize, **visible));
            if let Some((unit, _)) = wrong {
                self.misbehaviour.get_or_insert(Misbehaviour::WrongRead { op: number, lpn: Lpn(unit) });
            }
            self.expected[number as usize] = Some(visible);
            if self.looks_up_late {
                let units = self.versions[first as usize..end as usize].iter();
                self.newer[number as usize] = Some(units.map(|unit| unit.len().saturating_sub(1)).collect());
            }
        }
        self.device.command(now, command, &mut self.effects);
    }

    /// Whether a unit may read as this now: as what was accepted last, or as before that while it has not completed.
    fn may_read_as(&self, unit: usize, visible: u64) -> bool {
        let lpn = Lpn(unit as u64);
        let is_before =
            |(op, before): (OpIx, u64)| visible == before && self.log.op(op).completed().is_none();
        visible == self.model[unit].identity()
            || self.before[unit].is_some_and(is_before)
            || self.has_lost_writes
            || self.device.has_lost(lpn) && self.is_worn_out()
    }

    /// Passes an input to the block layer and carries out its wishes.
    fn tell(&mut self, now: Instant, input: Input) {
        let Some(layer) = &mut self.layer else { return };
        let mut wishes = std::mem::take(&mut self.wishes);
        layer.input(now, input, &mut wishes);
        for wish in wishes.drain(..) {
            match wish {
                Wish::Arrive(at, id) => self.agenda.at(at, Moment::Arrive(id)),
                Wish::Wake(at) => self.agenda.at(at, Moment::Wake),
                Wish::Completed(number, result) => self.completed(now, number as u32, result),
            }
        }
        self.wishes = wishes;
    }

    fn carry_out(&mut self, now: Instant) {
        let mut effects = std::mem::take(&mut self.effects);
        for effect in effects.drain(..) {
            match effect {
                Effect::At(at, event) => self.agenda.at(at, Moment::Device(event)),
                // A write that the medium's store could not keep must not be acknowledged.
                Effect::Complete(_) if self.device.store_error().is_some() => {}
                Effect::Complete(completion) if self.layer.is_some() => {
                    let (id, result) = (completion.id, completion.result);
                    self.tell(now, Input::Completed { id, result });
                }
                Effect::Complete(completion) => {
                    let number = completion.id.0 as u32;
                    // A command that was refused, or that does nothing, was never accepted.
                    self.leave(number);
                    self.completed(now, number, completion.result);
                }
                Effect::Accepted { id, seq } if self.layer.is_none() => self.accept(id.0 as u32, seq),
                Effect::Accepted { .. } => {}
            }
        }
        self.effects = effects;
    }

    /// Delivers an answer to the host.
    fn completed(&mut self, now: Instant, number: u32, result: Result<Done, DeviceError>) {
        self.in_flight -= 1;
        if let Ok(Done::Data(data)) = &result {
            self.check_read(number, data);
        }
        if let Some(op) = self.log_ops[number as usize] {
            self.log.complete(op, result.is_ok());
        }
        match result {
            Ok(_) => {}
            Err(DeviceError::ReadOnly) if self.is_worn_out() => {}
            // A refusal comes when everything before it was accepted, and nothing behind it.
            Err(DeviceError::SourceUnmapped { lba }) if !self.mapped[(lba.0 / self.per_unit()) as usize] => {}
            // Copies need room that a device has no more: nothing was accepted.
            Err(DeviceError::WriteFault { .. })
                if self.history.ops[number as usize].verb == Verb::Share && self.has_lost_blocks() => {}
            // The device reports it for each command concerned: for writes and flushes, and for reads of what was lost.
            Err(
                DeviceError::WriteFault { .. }
                | DeviceError::StreamFailed(_)
                | DeviceError::Uncorrectable { .. },
            ) if self.is_worn_out() => self.has_lost_writes = true,
            Err(error) => {
                let error = error.to_string();
                self.misbehaviour.get_or_insert(Misbehaviour::Failed { op: number, error });
            }
        }
        self.schedule_next(now);
    }

    /// Whether a plane has lost more erase blocks than a tiny device has to spare: the device may then refuse to
    /// change, and what it holds must still be right. Counted on the medium, independently of the device's own state: blocks
    /// that are marked bad, and blocks whose program failed in this boot, which are marked only when they have been emptied.
    fn is_worn_out(&self) -> bool {
        self.most_lost_blocks() > BLOCKS_TO_SPARE
    }

    /// Whether a plane has lost an erase block: it may have no room left for the copies of a SHARE.
    fn has_lost_blocks(&self) -> bool {
        self.most_lost_blocks() > 0
    }

    fn most_lost_blocks(&self) -> u32 {
        let (geometry, media) = (self.device.geometry(), self.device.media());
        let mut lost = vec![0; geometry.planes() as usize];
        let mut failed = unreadable_blocks(&self.device);
        failed.retain(|block| !self.torn.contains(block));
        let is_failed = |block| failed.iter().any(|(failed, _)| *failed == block);
        for block in
            (0..geometry.blocks()).map(BlockId).filter(|&block| media.is_bad(block) || is_failed(block))
        {
            lost[geometry.plane_of(block).0 as usize] += 1;
        }
        lost.into_iter().max().unwrap_or(0)
    }

    fn check_read(&mut self, number: u32, data: &[Payload]) {
        let expected = self.expected[number as usize].take().unwrap_or_default();
        let newer = self.newer[number as usize].take().unwrap_or_default();
        if self.has_lost_writes {
            return;
        }
        let first = self.touched(&self.history.ops[number as usize]).0;
        let is_expected = |at: usize, expected: u64| {
            let (found, unit) = (data[at].identity(), first as usize + at);
            let Some(answered) = self.layer.as_ref().map(|_| expected as usize) else {
                let newer = newer.get(at).map(|from| &self.versions[unit][*from..]);
                return found == expected
                    || newer.is_some_and(|newer| newer.iter().any(|(_, v)| *v == found));
            };
            // The last answered version, or the content before all of them.
            let before = answered.checked_sub(1).map_or(self.first[unit], |at| self.versions[unit][at].1);
            found == before || self.versions[unit][answered..].iter().any(|(_, newer)| *newer == found)
        };
        let wrong = (0..data.len()).zip(&expected).position(|(at, expected)| !is_expected(at, *expected));
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

    /// Whether the range begins or ends inside a mapping unit.
    fn is_partial(&self, op: &HostOp) -> bool {
        let per_unit = self.per_unit();
        !op.lba.is_multiple_of(per_unit) || !u64::from(op.blocks).is_multiple_of(per_unit)
    }

    /// Removes a command from those that arrived and were not accepted. Returns the first remaining one of its stream.
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
        if let Some(log_op) = self.log_ops[number as usize] {
            self.take_over(number, log_op, seq);
        }
    }

    /// Applies the operation to the model from now on.
    fn take_over(&mut self, number: u32, log_op: OpIx, seq: u64) {
        let op = self.history.ops[number as usize];
        if op.verb == Verb::Share {
            return self.share(number, log_op, seq);
        }
        let mut units: Vec<(Lpn, Content)> = Vec::new();
        if op.blocks > 0 && !matches!(op.verb, Verb::Flush | Verb::RangeFlush | Verb::Barrier) {
            let (first, end) = self.touched(&op);
            for unit in first..end {
                let Some(payload) = self.merged(&op, unit) else { continue };
                units.push((Lpn(unit), Content::from(&payload)));
                self.set(unit, log_op, payload);
                self.mapped[unit as usize] = op.verb == Verb::Write || self.is_part(&op, unit);
            }
        }
        self.log.accept(log_op, seq, units);
    }

    /// Whether an operation covers a unit only in part.
    fn is_part(&self, op: &HostOp, unit: u64) -> bool {
        let per_unit = self.per_unit();
        op.lba > unit * per_unit || op.lba + u64::from(op.blocks) < (unit + 1) * per_unit
    }

    /// A SHARE takes effect: all sources are bound before any destination changes (share §2.5).
    fn share(&mut self, number: u32, log_op: OpIx, seq: u64) {
        let per_unit = self.per_unit();
        let of_pair = |pair: SharePair| {
            let units = u64::from(pair.blocks) / per_unit;
            (0..units).map(move |i| (pair.dst.0 / per_unit + i, pair.src.0 / per_unit + i))
        };
        let pairs: Vec<(u64, u64)> =
            self.history.ops[number as usize].more.pairs().flat_map(of_pair).collect();
        if let Some((_, src)) = pairs.iter().find(|(_, src)| !self.mapped[*src as usize]) {
            let error = format!("a source without content, unit {src}, was accepted");
            self.misbehaviour.get_or_insert(Misbehaviour::Failed { op: number, error });
        }
        // A page that takes over its own content does not change (share §2.3).
        let pairs: Vec<(u64, u64)> = pairs.into_iter().filter(|(dst, src)| dst != src).collect();
        let bound: Vec<Payload> = pairs.iter().map(|(_, src)| self.model[*src as usize].clone()).collect();
        let mut units = Vec::with_capacity(pairs.len());
        for ((dst, _), payload) in pairs.into_iter().zip(bound) {
            units.push((Lpn(dst), Content::from(&payload)));
            self.set(dst, log_op, payload);
            self.mapped[dst as usize] = true;
        }
        self.log.accept(log_op, seq, units);
    }

    fn set(&mut self, unit: u64, log_op: OpIx, payload: Payload) {
        if self.layer.is_some() || self.looks_up_late {
            self.versions[unit as usize].push((log_op, payload.identity()));
        }
        let before = std::mem::replace(&mut self.model[unit as usize], payload);
        self.before[unit as usize] = Some((log_op, before.identity()));
    }

    /// Returns what `unit` reads as after `op`; `None` if the operation does not change it.
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

/// Returns the erase blocks with unreadable pages, and the number of their opening, of a device whose programs may fail.
fn unreadable_blocks(device: &Device) -> Vec<(BlockId, Option<u64>)> {
    let media = device.media();
    if device.config().faults.program_fail == 0.0 {
        return Vec::new();
    }
    let is_unreadable = |block: &BlockId| {
        let mut pages = (0..media.pages_written(*block)).map(|page| PageAddr { block: *block, page });
        pages.any(|at| !media.is_readable(at))
    };
    let blocks = (0..device.geometry().blocks()).map(BlockId).filter(is_unreadable);
    blocks.map(|block| (block, media.opened(block))).collect()
}
