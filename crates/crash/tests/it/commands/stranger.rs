//! A host that sends whatever is drawn, and what a device owes it.
//!
//! Place in the data flow: a [`Draw`] (a random stream in the tests, the fuzzer's input in `fuzz/`) decides every field of every
//! command; [`run`] sends them to a tiny device, or to the host FTL above it, one or several at a time, and judges the answers.
//!
//! Judged, whenever the device is at rest:
//! 1. Each command was answered once, with the result that belongs to it or with an error that changes nothing.
//! 2. The device reads as a twin that got only the commands which were carried out, one after the other in the order of their
//!    acceptance. So a refused command has changed nothing, and commands that were under way together are as if they were not.
//! 3. The device's accounts balance.
//!
//! Deliberately absent: media that fail, since their errors may change something; power cuts; commands that wait for members of a
//! numbered epoch which are never sent.

use flashweir_core::command::{
    APPEND_NAMESPACE, EpochStamp, Handle, OPEN_NAMESPACE, PAGE_NAMESPACE, PpaWrite, RangeFlush, SegmentId,
    SharePair, StreamId, Tag, Units,
};
use flashweir_core::oob::{Member, OobRecord, Owner};
use flashweir_core::open::{BlockMark, MarkBlocks, PpaCopy};
use flashweir_core::{
    Agenda, Command, CommandId, Data, DeviceError, Done, Lba, Lpn, Op, Order, Payload, Ppa,
};
use flashweir_crash::devices;
use flashweir_device::config::{DeviceConfig, FirmwareKind};
use flashweir_device::{Device, DeviceOptions, Effect, Event};
use flashweir_host::{Effect as HostEffect, HostFtl, Input};
use std::collections::BTreeMap;

/// Where the decisions come from.
pub(crate) trait Draw {
    /// A number below `limit`, which is above 0.
    fn below(&mut self, limit: u64) -> u64;

    /// Whether there is no further command.
    fn is_over(&mut self) -> bool;
}

/// The tiny devices of each firmware whose media do not fail and that have no block layer above them.
pub(crate) fn configs() -> Vec<DeviceConfig> {
    let is_sound = |config: &DeviceConfig| {
        let faults = &config.faults;
        faults.program_fail == 0.0 && faults.erase_fail == 0.0 && faults.endurance == 0
    };
    let names = devices::all_names().filter(|name| devices::layer(name).is_none());
    // Threads whose time counts overtake each other, so requests that are under way together have no order.
    let is_in_order = |name: &&str| devices::host_ftl(name).is_none_or(|above| above.cpus == 0);
    names.filter(is_in_order).filter_map(devices::tiny).filter(is_sound).collect()
}

/// Returns an empty device.
pub(crate) fn device(config: &DeviceConfig) -> Device {
    Device::new(config.clone(), DeviceOptions { seed: 1, track_contents: true, planted: None })
}

/// Numbers of commands that were carried out and that were refused.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Answered {
    pub(crate) done: u64,
    pub(crate) refused: u64,
}

/// Sends drawn commands to the device until nothing more is drawn. Panics if the device breaks one of the promises above.
pub(crate) fn run(device: Device, draw: &mut impl Draw) -> Answered {
    let mut host = Host::new(device);
    let mut answered = Answered::default();
    while !draw.is_over() {
        let mut twin = host.clone();
        // Mostly alone, so that a state is attributed to one command.
        let count = if draw.below(3) == 0 { 1 + draw.below(6) } else { 1 };
        let mut sent = BTreeMap::new();
        for _ in 0..count {
            let command = any_command(&mut host, draw);
            sent.insert(command.id, command.clone());
            host.submit(command);
            for _ in 0..draw.below(5) {
                host.step();
            }
        }
        host.rest();
        let answers = std::mem::take(&mut host.answers);
        assert_eq!(answers.len(), sent.len(), "{sent:?}\n{answers:?}\n{}", host.describe());
        for (id, result) in &answers {
            let command = &sent[id];
            match result {
                Ok(done) => {
                    answered.done += 1;
                    assert!(is_answer(&host.device, &command.op, done), "{command:?}: {done:?}");
                }
                Err(error) => {
                    answered.refused += 1;
                    assert!(changed_nothing(error), "{command:?}: {error:?}");
                }
            }
        }
        let accepted = std::mem::take(&mut host.accepted);
        // Some firmwares carry out a command when it arrives and have no order of acceptance.
        let at_once = sent.keys().filter(|id| !accepted.contains(id));
        for id in accepted.iter().chain(at_once) {
            // What a read or report returned depends on what else was under way.
            let reads = sent[id].op.only_reads();
            if answers[id].is_ok() && !reads {
                twin.submit(sent[id].clone());
                twin.rest();
                let result = std::mem::take(&mut twin.answers).remove(id);
                assert!(matches!(result, Some(Ok(_))), "{:?} alone: {result:?}\n{sent:?}", sent[id]);
            }
        }
        host.device.audit();
        host.ftl.iter().for_each(|ftl| ftl.audit());
        let (seen, expected) = (host.contents(), twin.contents());
        if let Some(at) = (0..expected.len()).find(|at| seen[*at] != expected[*at]) {
            panic!("{:?} instead of {:?} after {sent:?}: {answers:?}", seen[at], expected[at]);
        }
    }
    answered
}

/// Whether an error says that nothing was changed.
fn changed_nothing(error: &DeviceError) -> bool {
    match error {
        DeviceError::NotSupported(_)
        | DeviceError::OutOfRange(_)
        | DeviceError::InvalidField(_)
        | DeviceError::OutOfOrder { .. }
        | DeviceError::Overwrite { .. }
        | DeviceError::Misaligned { .. }
        // A chunk is closed early or becomes offline only on media that fail.
        | DeviceError::Open { .. }
        | DeviceError::NotWritten { .. }
        | DeviceError::TooManyOpen { .. }
        | DeviceError::SourceUnmapped { .. }
        | DeviceError::InvalidBatch { .. }
        | DeviceError::OrderConflict => true,
        DeviceError::Uncorrectable { .. }
        | DeviceError::WriteFault { .. }
        | DeviceError::ReadOnly
        | DeviceError::StreamFailed(_) => false,
    }
}

/// Whether a result belongs to an operation.
fn is_answer(device: &Device, op: &Op, done: &Done) -> bool {
    let unit = device.geometry().lbas_per_unit;
    match (op, done) {
        (Op::Read { blocks: 0, .. }, done) => *done == Done::Ok,
        (Op::Read { lba, blocks }, Done::Data(units)) => {
            units.len() as u64 == (lba.0 + u64::from(*blocks)).div_ceil(unit) - lba.0 / unit
        }
        (Op::PpaRead { ppas, .. }, Done::Units(units)) => {
            (units.data.len(), units.records.len()) == (ppas.len(), ppas.len())
        }
        (Op::SegAppend { .. }, Done::Appended { .. }) | (Op::SegReport { .. }, Done::Segment(_)) => true,
        (Op::OpenGeometry, Done::Geometry(_)) => true,
        (Op::ChunkReport { count, .. }, Done::Chunks(chunks)) => chunks.len() as u32 == *count,
        (Op::ChunkNotices { after }, Done::Notices(notices)) => {
            notices.iter().all(|notice| notice.number > *after)
        }
        (Op::BlockMarks { .. }, Done::Marks(marks)) => {
            marks.len() as u32 == device.geometry().blocks() / device.geometry().parallel_units()
        }
        (Op::SegAppend { .. }, _) => false,
        (op, _) if op.only_reads() => false,
        (_, done) => *done == Done::Ok,
    }
}

#[derive(Clone, Debug)]
enum Moment {
    Device(Event),
    /// The host FTL asked for it.
    Wake,
}

/// A device with its agenda, and what it answered.
#[derive(Clone, Debug)]
struct Host {
    device: Device,
    /// The host FTL above the device, if it has one.
    ftl: Option<Box<HostFtl>>,
    agenda: Agenda<Moment>,
    next: u64,
    answers: BTreeMap<CommandId, Result<Done, DeviceError>>,
    accepted: Vec<CommandId>,
    /// Room for the effects of one event, empty in between.
    effects: Vec<Effect>,
}

/// Events after which a device that never comes to rest is taken to be stuck.
const EVENTS_MAX: u32 = 1_000_000;

impl Host {
    fn new(device: Device) -> Self {
        let ftl = devices::host_ftl(&device.config().name).map(|config| {
            let geometry = device.geometry();
            let ftl = HostFtl::new(config, geometry.open_flash(), geometry.unit_bytes as usize);
            Box::new(ftl.expect("a tiny device below a host FTL"))
        });
        Self {
            device,
            ftl,
            agenda: Agenda::default(),
            next: 0,
            answers: BTreeMap::new(),
            accepted: Vec::new(),
            effects: Vec::new(),
        }
    }

    fn submit(&mut self, command: Command) {
        match self.ftl {
            Some(_) => {
                self.tell(Input::Submit { command, submitter: 0 });
                self.tell(Input::Unplug);
            }
            None => {
                self.device.command(self.agenda.now(), command, &mut self.effects);
                self.carry_out();
            }
        }
    }

    /// Tells the host FTL something, and does what it asks for.
    fn tell(&mut self, input: Input) {
        let now = self.agenda.now();
        let mut effects = Vec::new();
        let ftl = self.ftl.as_mut().expect("there is a host FTL");
        ftl.handle(now, input, &mut effects);
        let mut done = 0;
        while let Some(effect) = effects.get(done).cloned() {
            done += 1;
            match effect {
                HostEffect::Offer(offer) => {
                    self.device.command(now, offer.command, &mut self.effects);
                    ftl.handle(now, Input::Accepted, &mut effects);
                }
                HostEffect::Completed { token, result } => {
                    let before = self.answers.insert(CommandId(token), result);
                    assert!(before.is_none(), "request {token} was answered twice");
                }
                HostEffect::At(at) => self.agenda.at(at, Moment::Wake),
                HostEffect::Dispatched(_) | HostEffect::Transferred(_) => {}
            }
        }
        self.carry_out();
    }

    fn describe(&self) -> String {
        let ftl = self.ftl.as_ref().map(|ftl| ftl.describe()).unwrap_or_default();
        format!("{}\n{ftl}", self.device.describe())
    }

    /// Handles the next event; returns false if there is none.
    fn step(&mut self) -> bool {
        let Some((now, moment)) = self.agenda.pop() else { return false };
        match moment {
            Moment::Device(event) => self.device.event(now, event, &mut self.effects),
            Moment::Wake => self.tell(Input::Wake),
        }
        self.carry_out();
        true
    }

    fn rest(&mut self) {
        let mut events = 0;
        while self.step() {
            events += 1;
            assert!(events < EVENTS_MAX, "no end of it\n{}", self.describe());
        }
    }

    fn carry_out(&mut self) {
        let mut effects = std::mem::take(&mut self.effects);
        for effect in effects.drain(..) {
            match effect {
                Effect::At(at, event) => self.agenda.at(at, Moment::Device(event)),
                Effect::Accepted { id, .. } if self.ftl.is_none() => self.accepted.push(id),
                Effect::Accepted { .. } => {}
                Effect::Complete(completion) if self.ftl.is_some() => {
                    self.tell(Input::Completed { id: completion.id, result: completion.result });
                }
                Effect::Complete(completion) => {
                    let before = self.answers.insert(completion.id, completion.result);
                    assert!(before.is_none(), "{:?} was answered twice", completion.id);
                }
            }
        }
        if self.effects.is_empty() {
            self.effects = effects;
        }
    }

    /// What reads and reports of everything return.
    fn contents(&self) -> Vec<Result<Done, DeviceError>> {
        let fresh = Self::new(self.device.clone());
        let mut reader = Self { agenda: self.agenda.clone(), ftl: self.ftl.clone(), ..fresh };
        let mut ask = |ns: u16, op: Op| {
            reader.submit(Command { ns, ..Command::new(0, op) });
            reader.rest();
            reader.answers.remove(&CommandId(0)).expect("a read is answered")
        };
        let geometry = self.device.geometry();
        let unit = geometry.lbas_per_unit;
        if let Some(ftl) = &self.ftl {
            let blocks = (ftl.layout().user_units * unit) as u32;
            return vec![ask(PAGE_NAMESPACE, Op::Read { lba: Lba(0), blocks })];
        }
        let firmware = self.device.config().firmware;
        match firmware {
            FirmwareKind::PageAndAppend => {
                let mut seen = vec![ask(
                    PAGE_NAMESPACE,
                    Op::Read { lba: Lba(0), blocks: geometry.capacity_lbas() as u32 },
                )];
                for segment in (0..geometry.append.segments).map(SegmentId) {
                    let Ok(Done::Segment(mut report)) = ask(APPEND_NAMESPACE, Op::SegReport { segment })
                    else {
                        panic!("a segment reports");
                    };
                    report.durable_pointer = 0;
                    let first = u64::from(segment.0) * geometry.segment_lbas();
                    let written = u64::from(report.write_pointer);
                    seen.push(Ok(Done::Segment(report)));
                    let units = (0..written).step_by(unit as usize);
                    let read = |at| Op::Read { lba: Lba(first + at), blocks: unit as u32 };
                    seen.extend(units.map(|at| ask(APPEND_NAMESPACE, read(at))));
                }
                seen
            }
            FirmwareKind::Append => {
                let mut seen = Vec::new();
                let all = geometry.segment_lbas();
                for segment in 0..geometry.append.segments {
                    let Ok(Done::Segment(mut report)) =
                        ask(APPEND_NAMESPACE, Op::SegReport { segment: SegmentId(segment) })
                    else {
                        panic!("a segment reports");
                    };
                    // What is durable depends on the pace of the commands, and not on which were carried out.
                    report.durable_pointer = 0;
                    let (first, written) = (u64::from(segment) * all, u64::from(report.write_pointer));
                    let step = if report.gaps.is_empty() { written.max(unit) } else { unit };
                    seen.push(Ok(Done::Segment(report)));
                    for at in (0..written).step_by(step as usize) {
                        seen.push(ask(
                            APPEND_NAMESPACE,
                            Op::Read { lba: Lba(first + at), blocks: step as u32 },
                        ));
                    }
                }
                seen
            }
            FirmwareKind::OpenChannel => {
                let page = u64::from(geometry.units_per_page);
                let pages = geometry.physical_units() / page;
                let ppas = |nth: u64| (nth * page..(nth + 1) * page).map(Ppa).collect();
                let mut seen: Vec<_> = (0..pages)
                    .map(|nth| {
                        ask(OPEN_NAMESPACE, Op::PpaRead { ppas: ppas(nth), blocks: (page * unit) as u32 })
                    })
                    // How a read went is a matter of chance, and not of the commands.
                    .map(|answer| match answer {
                        Ok(Done::Units(units)) => {
                            Ok(Done::Units(Box::new(Units { refresh: Vec::new(), ..*units })))
                        }
                        other => other,
                    })
                    .collect();
                // A device answers one of these, by its version.
                seen.push(ask(OPEN_NAMESPACE, Op::ChunkReport { first: 0, count: geometry.open.chunks }));
                let parallel_units = 0..geometry.parallel_units();
                seen.extend(
                    parallel_units.map(|parallel_unit| ask(OPEN_NAMESPACE, Op::BlockMarks { parallel_unit })),
                );
                seen
            }
            _ => vec![ask(PAGE_NAMESPACE, Op::Read { lba: Lba(0), blocks: geometry.capacity_lbas() as u32 })],
        }
    }
}

/// The namespace of a device to which a command goes.
fn namespace(firmware: FirmwareKind, op: &Op, draw: &mut impl Draw) -> u16 {
    match (firmware, op) {
        (FirmwareKind::Append, _) => APPEND_NAMESPACE,
        (FirmwareKind::OpenChannel, _) => OPEN_NAMESPACE,
        (
            FirmwareKind::PageAndAppend,
            Op::SegWrite { .. } | Op::SegAppend { .. } | Op::SegTrim { .. } | Op::SegReport { .. },
        ) => APPEND_NAMESPACE,
        (FirmwareKind::PageAndAppend, Op::Read { .. } | Op::Flush | Op::RFlush(_)) => {
            [PAGE_NAMESPACE, APPEND_NAMESPACE][draw.below(2) as usize]
        }
        _ => PAGE_NAMESPACE,
    }
}

/// Whether something that happens once in `of` times happens.
fn one_in(draw: &mut impl Draw, of: u64) -> bool {
    draw.below(of) == 0
}

/// A command with any fields, mostly good ones. One that would wait for others which never come is not drawn.
fn any_command(host: &mut Host, draw: &mut impl Draw) -> Command {
    host.next += 1;
    // A host FTL is a device with pages to those above it.
    let (firmware, capacity) = match &host.ftl {
        Some(ftl) => (FirmwareKind::Page, ftl.layout().user_units * ftl.layout().unit_sectors),
        None => (host.device.config().firmware, host.device.geometry().capacity_lbas()),
    };
    let op = any_op((&host.device, firmware, capacity), draw, host.next);
    let ns = namespace(firmware, &op, draw);
    let mut command = Command { ns, ..Command::new(host.next, op) };
    if one_in(draw, 24) {
        command.ns = draw.below(4) as u16;
    }
    if one_in(draw, 8) {
        command.queue = draw.below(5) as u16;
    }
    command.fua = one_in(draw, 6);
    if one_in(draw, 3) {
        command.tags = [Tag(draw.below(4)), Tag(draw.below(4))];
    }
    if one_in(draw, 12) {
        command.handle = Handle(draw.below(40) as u8);
    }
    if one_in(draw, 3) {
        command.stream = Some(StreamId([0, 1, 2, u16::MAX][draw.below(4) as usize]));
        command.order = [None, Some(Order::Within), Some(Order::Barrier)][draw.below(3) as usize];
    } else if one_in(draw, 24) {
        command.order = Some(Order::Barrier);
    }
    if one_in(draw, 24) {
        // Contradicts its order, or names an epoch that is over.
        let closes = command.op == Op::Barrier || command.order == Some(Order::Barrier);
        let (number, members) = match draw.below(2) {
            0 => (draw.below(3) as u32, if closes { None } else { Some(draw.below(3) as u32) }),
            _ => (u32::MAX - draw.below(3) as u32, closes.then(|| draw.below(3) as u32)),
        };
        command.epoch = Some(EpochStamp { number, members });
    }
    command
}

/// Sectors in a range of this many: mostly whole units near the beginning, sometimes parts, ends, and what lies beyond.
fn any_lba(draw: &mut impl Draw, capacity: u64, unit: u64) -> Lba {
    Lba(match draw.below(24) {
        0 => draw.below(capacity),
        1 => capacity.saturating_sub(unit * draw.below(3)),
        2 => capacity + draw.below(20),
        3 => u64::MAX - draw.below(9),
        4..12 => unit * draw.below(capacity / unit),
        _ => unit * draw.below((capacity / unit).min(24)),
    })
}

/// A length in sectors.
fn any_blocks(draw: &mut impl Draw, capacity: u64, unit: u64) -> u32 {
    match draw.below(24) {
        0 => 0,
        1 => draw.below(20) as u32,
        2 => (capacity - draw.below(unit * 2)) as u32,
        3 => u32::MAX - draw.below(9) as u32,
        4..8 => (unit * (1 + draw.below(16))) as u32,
        _ => (unit * (1 + draw.below(3))) as u32,
    }
}

/// Data for a range of `units` units of `unit` sectors, of any form, sometimes of another length.
fn any_data(draw: &mut impl Draw, blocks: u32, unit: u64, number: u64) -> Data {
    let off = draw.below(16) == 0;
    // What is so long is not carried out, and would only take memory.
    let units = (u64::from(blocks) / unit + u64::from(off)).min(64);
    match draw.below(6) {
        0 => Data::Zero,
        1 => Data::Units((0..units).map(|nth| Payload::Tag(number << 8 | nth)).collect()),
        2 => {
            let bytes = (u64::from(blocks).min(64) * 512 + u64::from(off)) as usize;
            Data::Bytes((0..bytes).map(|at| (at as u64 ^ number) as u8).collect::<Vec<_>>().into())
        }
        _ => Data::Pattern(number),
    }
}

fn any_op<D: Draw>(
    (device, firmware, capacity): (&Device, FirmwareKind, u64),
    draw: &mut D,
    number: u64,
) -> Op {
    let geometry = device.geometry();
    let unit = geometry.lbas_per_unit;
    // Mostly a command of this device's kind.
    let kind = match (firmware, draw.below(12)) {
        (_, 0) => draw.below(23),
        (FirmwareKind::Append, _) => [0, 0, 5, 6, 10, 10, 10, 11, 11, 12, 13][draw.below(11) as usize],
        (FirmwareKind::OpenChannel, _) => {
            [5, 14, 15, 15, 15, 15, 15, 16, 16, 17, 17, 18, 19, 20, 21, 22][draw.below(16) as usize]
        }
        (FirmwareKind::PageAndAppend, _) => {
            [0, 1, 1, 1, 3, 4, 5, 6, 10, 10, 10, 11, 11, 12, 13][draw.below(15) as usize]
        }
        _ => [0, 1, 1, 1, 2, 3, 4, 5, 6, 7, 8, 9, 9][draw.below(13) as usize],
    };
    let capacity = capacity.max(unit);
    let lba = |draw: &mut D| any_lba(draw, capacity, unit);
    let blocks = |draw: &mut D| any_blocks(draw, capacity, unit);
    let segments = u64::from(geometry.append.segments).max(1);
    let in_segment = if geometry.append.segments > 0 { geometry.segment_lbas() } else { capacity };
    let segment = |draw: &mut D| match draw.below(16) {
        0 => SegmentId([segments as u32, u32::MAX][draw.below(2) as usize]),
        _ => SegmentId(draw.below(segments.min(4)) as u32),
    };
    match kind {
        0 => Op::Read { lba: lba(draw), blocks: blocks(draw) },
        1..=2 => {
            let (lba, blocks) = (lba(draw), blocks(draw));
            Op::Write { lba, blocks, data: any_data(draw, blocks, unit, number) }
        }
        3 => Op::WriteZeroes { lba: lba(draw), blocks: blocks(draw) },
        4 => Op::Trim { lba: lba(draw), blocks: blocks(draw) },
        5 => Op::Flush,
        6 => {
            let long = draw.below(20) == 0;
            let ranges = if long { 250 + draw.below(10) } else { draw.below(4) };
            let tags = if long { 14 + draw.below(5) } else { draw.below(4) };
            let held = firmware.has_segments() || draw.below(12) == 0;
            Op::RFlush(Box::new(RangeFlush {
                ranges: (0..ranges).map(|_| (lba(draw), blocks(draw))).collect(),
                tags: (0..tags).map(|_| Tag(draw.below(5))).collect(),
                segments: (0..if held { draw.below(3) } else { 0 })
                    .map(|_| (segment(draw), any_lba(draw, in_segment, unit).0 as u32))
                    .collect(),
            }))
        }
        7 => Op::Barrier,
        8 | 9 => {
            let pairs = (0..draw.below(4)).map(|_| SharePair {
                dst: lba(draw),
                src: lba(draw),
                blocks: blocks(draw),
            });
            Op::Share(pairs.collect())
        }
        10 => {
            let (segment, blocks) = (segment(draw), any_blocks(draw, in_segment, unit));
            Op::SegAppend { segment, blocks, data: any_data(draw, blocks, unit, number) }
        }
        11 => {
            let (segment, blocks) = (segment(draw), any_blocks(draw, in_segment, unit));
            let offset = any_lba(draw, in_segment, unit).0 as u32;
            Op::SegWrite { segment, offset, blocks, data: any_data(draw, blocks, unit, number) }
        }
        12 => Op::SegTrim { segment: segment(draw) },
        13 => Op::SegReport { segment: segment(draw) },
        14 => {
            let ppas = any_places(device, draw);
            Op::PpaRead { blocks: places_blocks(draw, ppas.len(), unit), ppas }
        }
        15 => {
            let ppas = any_places(device, draw);
            let blocks = places_blocks(draw, ppas.len(), unit);
            let records = ppas.len() as u64 + u64::from(draw.below(24) == 0);
            let records = (0..records).map(|_| any_record(draw)).collect();
            PpaWrite { data: any_data(draw, blocks, unit, number), ppas, blocks, records }.into()
        }
        17 => {
            let (sources, places) = (any_places(device, draw), any_places(device, draw));
            // Mostly as many.
            let count = if draw.below(12) == 0 { places.len() } else { sources.len() };
            let first = places.first().map_or(0, |place| place.0);
            let destinations = (0..count as u64).map(|nth| Ppa(first.saturating_add(nth))).collect();
            let records = (draw.below(2) == 0).then(|| {
                let records = count as u64 + u64::from(draw.below(24) == 0);
                (0..records).map(|_| any_record(draw)).collect()
            });
            Op::PpaCopy(Box::new(PpaCopy { sources, destinations, records }))
        }
        18 => Op::OpenGeometry,
        19 => {
            let chunks = u64::from(geometry.open.chunks) + 1;
            let any = |draw: &mut D, end: u64| match draw.below(12) {
                0 => u32::MAX - draw.below(3) as u32,
                _ => draw.below(end) as u32,
            };
            Op::ChunkReport { first: any(draw, chunks), count: any(draw, 4) }
        }
        20 => Op::ChunkNotices { after: [0, 1, u64::MAX][draw.below(3) as usize] },
        21 => Op::BlockMarks { parallel_unit: draw.below(6) as u32 },
        22 => {
            let places = any_places(device, draw);
            let mark = match draw.below(24) {
                0 => BlockMark::GrownBad,
                1 => BlockMark::FactoryBad,
                2..12 => BlockMark::Good,
                _ => BlockMark::HostReserved,
            };
            Op::MarkBlocks(Box::new(MarkBlocks { places, mark }))
        }
        _ => {
            let first = any_places(device, draw).first().copied().unwrap_or(Ppa(0));
            let per_block = u64::from(geometry.chunk_units());
            let count = if draw.below(16) == 0 { draw.below(70) } else { 1 + draw.below(2) };
            Op::PpaErase((0..count).map(|nth| Ppa(first.0.saturating_add(nth * per_block))).collect())
        }
    }
}

/// Physical addresses: mostly those of whole pages or write units, one behind the other.
fn any_places(device: &Device, draw: &mut impl Draw) -> Box<[Ppa]> {
    let geometry = device.geometry();
    let write_pages = geometry.open.write_pages.max(1);
    let (page, all) = (u64::from(geometry.units_per_page * write_pages), geometry.physical_units());
    let first = match draw.below(16) {
        0 => draw.below(all),
        1 => all - draw.below(3),
        2 => u64::MAX - draw.below(9),
        3..6 => page * draw.below(all / page),
        _ => page * draw.below((all / page).min(12)),
    };
    let count = match draw.below(16) {
        0 => draw.below(4),
        1 => 60 + draw.below(8),
        _ => page * (1 + draw.below(2)),
    };
    (0..count).map(|nth| Ppa(first.saturating_add(nth))).collect()
}

/// Length of so many units, sometimes another.
fn places_blocks(draw: &mut impl Draw, units: usize, unit: u64) -> u32 {
    match draw.below(24) {
        0 => draw.below(100) as u32,
        _ => (units as u64 * unit) as u32,
    }
}

/// An out-of-band record, sometimes one that does not fit onto the medium.
fn any_record(draw: &mut impl Draw) -> OobRecord {
    let large = if draw.below(40) == 0 { u64::MAX } else { 0 };
    let owner = match draw.below(5) {
        0 => Owner::Pad,
        1 => Owner::Vpid(large | draw.below(9)),
        2 => Owner::Seg {
            segment: SegmentId(large as u32 | draw.below(9) as u32),
            offset: draw.below(99) as u32,
        },
        3 => Owner::Meta,
        _ => Owner::Lpn(Lpn(large | draw.below(999))),
    };
    let member = (draw.below(8) == 0).then(|| Member {
        stream: StreamId(draw.below(3) as u16),
        epoch: draw.below(5) as u32,
        previous: draw.below(5) as u16,
        distance: draw.below(5) as u8,
        orderless: draw.below(2) == 0,
    });
    OobRecord { owner, seq: draw.below(1 << 20), member }
}
