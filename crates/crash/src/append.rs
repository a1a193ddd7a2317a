//! The laboratory of append segments (contract §2.3, contract §2.4, crash-laboratory §1, D5): histories of writes, appends, deallocations
//! and flushes, with every power loss in them.
//!
//! Place in the data flow: [`crate::ruled`] drives the host; [`SegmentLog`] judges what segments show after a power loss. At run time the
//! host knows what each segment holds once everything that it submitted is accepted, because a device accepts in the order of arrival.
//!
//! Deliberately absent: commands that a device refuses whatever its state; the device's own tests have them.

use crate::explorer::WorldSpec;
use crate::ruled::{Core, Ruled};
use flashweir_contract::{Content, SegmentLog, Shown};
use flashweir_core::command::{APPEND_NAMESPACE, RangeFlush, SegmentId, SegmentReport, StreamId, pattern};
use flashweir_core::{Address, Command, Completion, Data, DeviceError, Done, Instant, Lba, Lpn, Op, Order};
use flashweir_device::config::{AppendMode, BufferMode};
use flashweir_device::{Device, Effect, Geometry};
use std::collections::BTreeMap;

/// Longest write, in mapping units.
const UNITS_MAX: u64 = 5;
/// Streams of an ordered device.
const STREAMS: u64 = 2;

/// What a command under way has to be answered.
#[derive(Clone, Debug)]
enum Expected {
    /// Success; an append with this offset in sectors.
    Done { appended: Option<u32> },
    /// The content of a unit, or the refusal of a read of what was not written. While the write that brings it is under way, either.
    Content { content: Option<Content>, is_certain: bool },
    /// Generation and write pointer of a segment, in sectors.
    Report { generation: u32, pointer: u32 },
    /// A refusal.
    Refusal(DeviceError),
}

/// A command under way.
#[derive(Clone, Debug)]
struct Flying {
    expected: Expected,
    /// Operations that it promises when it succeeds, and up to which unit of their segment.
    promises: Vec<(u64, u32)>,
    /// Whether it changes something.
    changes: bool,
}

/// A host of a device with segments.
#[derive(Clone, Debug)]
pub(crate) struct World<'a> {
    core: Core<'a>,
    log: SegmentLog,
    flying: BTreeMap<u64, Flying>,
    /// Writes and deallocations that succeeded.
    succeeded: Vec<u64>,
    /// Open epoch of each stream, and whether it has members.
    epochs: Vec<(u32, bool)>,
    /// What the device showed when the power came on.
    shown: Vec<Shown>,
}

/// What a device shows of its segments. It is asked on a copy, because a command may make it begin something.
fn show(device: &Device) -> Vec<Shown> {
    let geometry = device.geometry().clone();
    let mut asked = device.clone();
    (0..geometry.append.segments).map(|segment| shown_of(&mut asked, &geometry, segment)).collect()
}

fn shown_of(device: &mut Device, geometry: &Geometry, segment: u32) -> Shown {
    let report = report(device, segment);
    let per_unit = geometry.lbas_per_unit as u32;
    let first = u64::from(segment) * u64::from(geometry.append.units);
    let unit = |unit: u32| {
        let is_gap = report.gaps.contains(&(unit * per_unit));
        let content = || device.peek_segments(Lpn(first + u64::from(unit))).unwrap_or_default();
        (!is_gap).then(|| Content::from(&content()))
    };
    Shown { generation: report.generation, units: (0..report.write_pointer / per_unit).map(unit).collect() }
}

/// The device's report on a segment, which takes it no time.
fn report(device: &mut Device, segment: u32) -> SegmentReport {
    let command = Command {
        ns: APPEND_NAMESPACE,
        ..Command::new(u64::MAX, Op::SegReport { segment: SegmentId(segment) })
    };
    let mut effects = Vec::new();
    device.command(Instant::ZERO, command, &mut effects);
    let report = effects.into_iter().find_map(|effect| match effect {
        Effect::Complete(Completion { result: Ok(Done::Segment(report)), .. }) => Some(*report),
        _ => None,
    });
    report.expect("a report is answered at once")
}

impl<'a> Ruled<'a> for World<'a> {
    const NAME: &'static str = "append";
    const COMMANDS: u32 = 72;
    const HAS_RECOVERY: bool = true;

    fn new(spec: &'a WorldSpec) -> Self {
        let core = Core::new(spec, "append segments");
        Self::of(core)
    }

    fn core(&self) -> &Core<'a> {
        &self.core
    }

    fn core_mut(&mut self) -> &mut Core<'a> {
        &mut self.core
    }

    fn choose(&mut self) -> Option<(Command, String)> {
        if self.core.device.is_read_only() {
            return None;
        }
        let geometry = self.core.device.geometry().clone();
        let units = geometry.append.units;
        // A few segments get most of the commands, so that they fill up.
        let all = u64::from(geometry.append.segments);
        let random = &mut self.core.random;
        let segment =
            (if random.below(3) == 0 { random.below(all) } else { random.below(all.min(2)) }) as u32;
        let end = self.log.planned(segment).1;
        let write_once = self.core.spec.config.append.mode == AppendMode::WriteOnce;
        let choice = self.core.random.below(24);
        let limit = self.core.spec.config.append.max_open;
        let open =
            (0..geometry.append.segments).filter(|other| (1..units).contains(&self.log.planned(*other).1));
        let is_one_too_many = limit > 0 && end == 0 && open.count() as u32 >= limit;
        Some(match choice {
            0..6 if is_one_too_many => self.too_many(segment, limit),
            0..12 if is_one_too_many => self.trim(segment),
            0..6 if end < units => self.append(segment, end),
            6..11 if write_once => self.write_anywhere(segment),
            0..11 if end < units => self.write(segment, end),
            11 if end < units => self.early(segment, end),
            0..13 if end > 0 && (end >= units / 2 || choice == 12) => self.trim(segment),
            13..16 => self.flush(),
            16..18 => self.flush_prefix(segment, end),
            18 => self.report(segment),
            19 | 20 if self.is_ordered() => self.barrier(),
            _ => self.read(segment),
        })
    }

    fn accepted(&mut self, number: u64) {
        self.log.accept(number);
    }

    fn completed(&mut self, completion: Completion) -> Result<(), String> {
        let number = completion.id.0;
        let Flying { expected, promises, changes } =
            self.flying.remove(&number).ok_or_else(|| format!("command {number} completes twice"))?;
        let faults = &self.core.spec.config.faults;
        let may_fail = faults.program_fail > 0.0 || faults.erase_fail > 0.0 || faults.endurance > 0;
        let wrong = |result: &dyn std::fmt::Debug, what: &str| {
            Err(format!("command {number}: {result:?} where {what}"))
        };
        let is_failure = matches!(
            completion.result,
            Err(DeviceError::ReadOnly | DeviceError::WriteFault { .. } | DeviceError::StreamFailed(_))
        );
        if is_failure && may_fail && self.core.device.is_read_only() {
            // Nothing of it is promised. What was not accepted is not there.
            if changes {
                self.log.withdraw(number);
            }
            return Ok(());
        }
        match (expected, &completion.result) {
            (Expected::Done { appended: Some(offset) }, Ok(Done::Appended { offset: said }))
                if offset == *said => {}
            (Expected::Done { appended: None }, Ok(Done::Ok)) => {}
            (Expected::Done { appended }, result) => {
                return wrong(result, &format!("success was expected, at offset {appended:?}"));
            }
            (Expected::Content { content: Some(content), .. }, Ok(Done::Data(data)))
                if data.len() == 1 && Content::from(&data[0]) == content => {}
            (Expected::Content { content, is_certain }, Err(DeviceError::NotWritten { .. }))
                if content.is_none() || !is_certain => {}
            (Expected::Content { content, .. }, result) => {
                return wrong(result, &format!("{content:?} is there"));
            }
            (Expected::Report { generation, pointer }, Ok(Done::Segment(report))) => {
                if (report.generation, report.write_pointer) != (generation, pointer) {
                    return wrong(
                        report,
                        &format!("generation {generation}, write pointer {pointer} is due"),
                    );
                }
            }
            (Expected::Report { .. }, result) => return wrong(result, "a report was expected"),
            (Expected::Refusal(error), Err(said)) if error == *said => {}
            (Expected::Refusal(error), result) => return wrong(result, &format!("`{error}` was expected")),
        }
        if completion.result.is_ok() {
            if changes {
                self.succeeded.push(number);
            }
            promises.into_iter().for_each(|(op, upto)| self.log.promise(op, upto));
        }
        Ok(())
    }

    fn after(&self, device: Device) -> Result<Self, String> {
        let shown = show(&device);
        self.log.check(&shown)?;
        Ok(Self::of(self.core.above(device)))
    }

    fn sees_the_same(&self, other: &Self) -> bool {
        self.shown == other.shown
    }
}

impl<'a> World<'a> {
    fn of(core: Core<'a>) -> Self {
        let shown = show(&core.device);
        let units = core.device.geometry().append.units;
        Self {
            log: SegmentLog::new(units, &shown),
            core,
            flying: BTreeMap::new(),
            succeeded: Vec::new(),
            epochs: vec![(0, false); STREAMS as usize],
            shown,
        }
    }

    fn is_ordered(&self) -> bool {
        self.core.spec.config.keeps_epochs()
    }

    fn per_unit(&self) -> u32 {
        self.core.device.geometry().lbas_per_unit as u32
    }

    /// Number of a unit in the namespace.
    fn lpn(&self, segment: u32, unit: u32) -> Lpn {
        Lpn(u64::from(segment) * u64::from(self.core.device.geometry().append.units) + u64::from(unit))
    }

    /// Whether a command that completes is durable.
    fn completes_durably(&self) -> bool {
        let config = &self.core.spec.config;
        config.buffer.mode == BufferMode::WriteThrough || config.completion_is_durable()
    }

    /// Draws a place in a stream, and whether the command closes its epoch, if the device knows streams.
    fn place(&mut self, command: &mut Command) -> Option<(StreamId, u32)> {
        if !self.is_ordered() || self.core.random.below(4) == 0 {
            return None;
        }
        let stream = self.core.random.below(STREAMS) as usize;
        let epoch = self.epochs[stream].0;
        self.epochs[stream].1 = true;
        command.stream = Some(StreamId(stream as u16));
        if self.core.random.below(3) == 0 {
            command.order = Some(Order::Barrier);
            self.epochs[stream] = (epoch + 1, false);
        }
        Some((StreamId(stream as u16), epoch))
    }

    /// Notes a command that is about to be submitted.
    fn fly(&mut self, op: Op, expected: Expected) -> Command {
        let number = self.core.next;
        let changes = matches!(op, Op::SegWrite { .. } | Op::SegAppend { .. } | Op::SegTrim { .. });
        self.flying.insert(number, Flying { expected, promises: Vec::new(), changes });
        Command { ns: APPEND_NAMESPACE, ..Command::new(number, op) }
    }

    /// Notes what a command promises when it succeeds.
    fn promises(&mut self, number: u64, promises: Vec<(u64, u32)>) {
        self.flying.get_mut(&number).expect("it was just noted").promises = promises;
    }

    /// A write of units of a segment, with the number of the next command as its pattern.
    fn seg_write(&self, segment: u32, (first, units): (u32, u32)) -> Op {
        let per_unit = self.per_unit();
        let data = Data::Pattern(self.core.next);
        let (offset, blocks) = (first * per_unit, units * per_unit);
        Op::SegWrite { segment: SegmentId(segment), offset, blocks, data }
    }

    /// The address of a unit.
    fn address(&self, segment: u32, unit: u32) -> Address {
        Address::Seg { segment: SegmentId(segment), offset: unit * self.per_unit() }
    }

    /// Completes the note of a write.
    fn written(&mut self, command: &mut Command, segment: u32, (first, units): (u32, u32)) {
        let number = command.id.0;
        command.fua = self.core.random.below(6) == 0;
        // What lies in front of something in its segment belongs to no stream.
        let is_behind = first >= self.log.planned(segment).1;
        let member = if is_behind { self.place(command) } else { None };
        let contents: Vec<Content> =
            (first..first + units).map(|unit| Content(pattern(number, self.lpn(segment, unit)))).collect();
        self.log.write(number, (segment, first), contents.into_iter(), member);
        if command.fua || self.completes_durably() {
            self.promises(number, vec![(number, u32::MAX)]);
        }
    }

    fn length(&mut self, room: u32) -> u32 {
        (1 + self.core.random.below(UNITS_MAX) as u32).min(room)
    }

    fn append(&mut self, segment: u32, end: u32) -> (Command, String) {
        let units = self.length(self.core.device.geometry().append.units - end);
        let per_unit = self.per_unit();
        let data = Data::Pattern(self.core.next);
        let op = Op::SegAppend { segment: SegmentId(segment), blocks: units * per_unit, data };
        let mut command = self.fly(op, Expected::Done { appended: Some(end * per_unit) });
        self.written(&mut command, segment, (end, units));
        let text = named(&command, format!("append to {segment}: {units} at {end}"));
        (command, text)
    }

    fn write(&mut self, segment: u32, end: u32) -> (Command, String) {
        let units = self.length(self.core.device.geometry().append.units - end);
        self.write_at(segment, (end, units))
    }

    /// A write of units that were not written, wherever they are.
    fn write_anywhere(&mut self, segment: u32) -> (Command, String) {
        let all = self.core.device.geometry().append.units;
        let first = self.core.random.below(u64::from(all)) as u32;
        let wanted = self.length(all - first);
        let is_free = |unit: &u32| self.log.planned_content(segment, *unit).is_none();
        match (first..first + wanted).take_while(is_free).count() as u32 {
            0 => {
                let refusal = DeviceError::Overwrite { at: self.address(segment, first) };
                let command = self.fly(self.seg_write(segment, (first, 1)), Expected::Refusal(refusal));
                (command, format!("write {segment} at {first} again"))
            }
            units
                if self.is_ordered()
                    && first < self.log.planned(segment).1
                    && self.core.random.below(4) == 0 =>
            {
                let op = self.seg_write(segment, (first, units));
                let command = self.fly(op, Expected::Refusal(DeviceError::OrderConflict));
                let text = format!("write {segment} at {first}, stream 0");
                (Command { stream: Some(StreamId(0)), ..command }, text)
            }
            units => self.write_at(segment, (first, units)),
        }
    }

    fn write_at(&mut self, segment: u32, (first, units): (u32, u32)) -> (Command, String) {
        let op = self.seg_write(segment, (first, units));
        let mut command = self.fly(op, Expected::Done { appended: None });
        self.written(&mut command, segment, (first, units));
        let text = named(&command, format!("write {segment}: {units} at {first}"));
        (command, text)
    }

    /// A first write to a segment more than the device allows.
    fn too_many(&mut self, segment: u32, limit: u32) -> (Command, String) {
        let data = Data::Pattern(self.core.next);
        let op = Op::SegAppend { segment: SegmentId(segment), blocks: self.per_unit(), data };
        let command = self.fly(op, Expected::Refusal(DeviceError::TooManyOpen { limit }));
        (command, format!("append to {segment}, one too many"))
    }

    /// A write that is not at the write pointer.
    fn early(&mut self, segment: u32, end: u32) -> (Command, String) {
        let all = self.core.device.geometry().append.units;
        let unit = if end + 1 < all { end + 1 } else { 0 };
        if self.core.spec.config.append.mode == AppendMode::WriteOnce || unit == end {
            return self.read(segment);
        }
        let (at, expected) = (self.address(segment, unit), end * self.per_unit());
        let refusal = Expected::Refusal(DeviceError::OutOfOrder { at, expected });
        let command = self.fly(self.seg_write(segment, (unit, 1)), refusal);
        (command, format!("write {segment} at {unit} early"))
    }

    fn trim(&mut self, segment: u32) -> (Command, String) {
        let op = Op::SegTrim { segment: SegmentId(segment) };
        let mut command = self.fly(op, Expected::Done { appended: None });
        let number = command.id.0;
        command.fua = self.core.random.below(6) == 0;
        let member = self.place(&mut command);
        self.log.trim(number, segment, member);
        if command.fua || self.completes_durably() {
            self.promises(number, vec![(number, u32::MAX)]);
        }
        let text = named(&command, format!("TRIM {segment}"));
        (command, text)
    }

    fn flush(&mut self) -> (Command, String) {
        let command = self.fly(Op::Flush, Expected::Done { appended: None });
        let promises = self.succeeded.iter().map(|op| (*op, u32::MAX)).collect();
        self.promises(command.id.0, promises);
        (command, "FLUSH".into())
    }

    fn flush_prefix(&mut self, segment: u32, end: u32) -> (Command, String) {
        let upto = self.core.random.below(u64::from(end) + 1) as u32;
        let by_range = self.core.random.below(3) == 0;
        let per_unit = self.per_unit();
        let selection = match by_range && upto > 0 {
            true => {
                let first = Lba(self.lpn(segment, upto - 1).0 * u64::from(per_unit));
                RangeFlush { ranges: vec![(first, per_unit)], ..RangeFlush::default() }
            }
            false => {
                RangeFlush { segments: vec![(SegmentId(segment), upto * per_unit)], ..RangeFlush::default() }
            }
        };
        let command = self.fly(Op::RFlush(Box::new(selection)), Expected::Done { appended: None });
        let of_segment = self.succeeded.iter().filter(|op| self.log.is_of(**op, segment));
        let promises = of_segment.map(|op| (*op, upto)).collect();
        self.promises(command.id.0, promises);
        (command, format!("RFLUSH {segment} up to {upto}"))
    }

    fn report(&mut self, segment: u32) -> (Command, String) {
        // A report is answered before the commands that wait to be accepted, so only a device without any can be held to it.
        let (generation, pointer) = self.log.planned(segment);
        if self.core.in_flight > 0 {
            return self.flush();
        }
        let pointer = pointer * self.per_unit();
        let op = Op::SegReport { segment: SegmentId(segment) };
        let command = self.fly(op, Expected::Report { generation, pointer });
        (command, format!("report on {segment}"))
    }

    fn barrier(&mut self) -> (Command, String) {
        let stream = self.core.random.below(STREAMS) as usize;
        let mut command = self.fly(Op::Barrier, Expected::Done { appended: None });
        command.stream = Some(StreamId(stream as u16));
        let (epoch, has_members) = self.epochs[stream];
        self.epochs[stream] = (epoch + u32::from(has_members), false);
        (command, format!("barrier of stream {stream}"))
    }

    /// A read of one unit, answered by what was accepted when it arrives.
    fn read(&mut self, segment: u32) -> (Command, String) {
        let unit = self.core.random.below(u64::from(self.core.device.geometry().append.units)) as u32;
        let lpn = self.lpn(segment, unit);
        let (content, op) = self.log.accepted_content(segment, unit).unzip();
        let is_certain = op.is_none_or(|op| !self.flying.contains_key(&op));
        let per_unit = u64::from(self.per_unit());
        let op = Op::Read { lba: Lba(lpn.0 * per_unit), blocks: per_unit as u32 };
        let command = self.fly(op, Expected::Content { content, is_certain });
        (command, format!("read {segment} at {unit}"))
    }
}

/// The text of a command, with its stream and flags.
fn named(command: &Command, mut text: String) -> String {
    if command.fua {
        text.push_str(", FUA");
    }
    if let Some(StreamId(stream)) = command.stream {
        text.push_str(&format!(", stream {stream}"));
    }
    if command.order == Some(Order::Barrier) {
        text.push_str(", barrier");
    }
    text
}
