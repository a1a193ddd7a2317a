//! Golden records: the behaviour of a device, command by command, compared with records of earlier behaviour.
//!
//! Place: a driver of its own, apart from the engines of the laboratory, so that neither can hide a change of the other. Each run
//! drives one device with random commands, cuts its power now and then, and is recorded in `tests/golden/records.txt`: how many
//! commands completed (when, how, with which contents), the order in which they were accepted, every counter that is not zero, and
//! digests of the medium and of what a host reads at the end. The `trail` has four digits for each [`EVENTS_PER_MARK`] events,
//! which tell where the first different events are.
//!
//! Invariants: a record is a function of the code alone, on every machine; it contains no numbers of slots, of pages in the making
//! or of operations, which are the device's own business.
//!
//! A change that is meant to alter a record says so, and records anew:
//!
//! ```text
//! FLASHWEIR_GOLDEN=record cargo test -p flashweir-device golden
//! ```
//!
//! `FLASHWEIR_GOLDEN_EVENTS=DIR` writes the events of every run to files there, so that those of two versions can be compared.

use crate::harness::random_config;
use flashweir_core::command::{RangeFlush, StreamId, Tag};
use flashweir_core::random::{RandomStream, mix};
use flashweir_core::{
    Agenda, Bytes, Command, Completion, Data, Done, Duration, Instant, Lba, Lpn, Op, Order,
};
use flashweir_device::config::{DeviceConfig, Metadata, PersistPolicy, RangeFlushSupport};
use flashweir_device::presets;
use flashweir_device::{Device, DeviceMetrics, DeviceOptions, Effect, Event, FastForward, Recovery, Torn};
use std::collections::BTreeMap;
use std::fmt::Write;
use std::path::Path;

const RECORDS: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/golden/records.txt");
const EVENTS_PER_MARK: usize = 16;

/// Counters that at least one run must reach: a record of something that never happens is worth nothing.
const REACHED: [&str; 29] = [
    "flushes",
    "range_flushes",
    "flush_units_forced",
    "barriers",
    "epochs",
    "epochs_fused",
    "ordered_units",
    "order_records",
    "errors",
    "host_units_trimmed",
    "buffer_read_hits",
    "buffer_write_hits",
    "gc_units_moved",
    "filler_units",
    "modify_pages_read",
    "erases",
    "wear_victims",
    "program_failures",
    "erase_failures",
    "grown_bad_blocks",
    "log_pages",
    "checkpoints",
    "multi_plane_commands",
    "suspends",
    "host_multi_plane_programs",
    "cuts",
    "cuts_in_recovery",
    "torn_operations",
    "recovery_steps",
];

/// One device and the way in which it is used.
struct Run {
    name: String,
    config: DeviceConfig,
    seed: u64,
    steps: u64,
    /// One step in this many cuts the power; 0 is none.
    cut_every: u64,
    /// Part of the capacity that is written before the run, in per cent.
    filled: u64,
}

/// An event of the driver's agenda.
#[derive(Clone, Copy, Debug)]
enum Moment {
    Device(Event),
    Submit,
}

/// Result of a run: the lines of its record, and the events behind the trail.
struct Outcome {
    fields: Vec<(&'static str, String)>,
    counters: BTreeMap<&'static str, u64>,
    events: Vec<String>,
    trail: Vec<u16>,
}

fn fold(hash: u64, text: &str) -> u64 {
    text.bytes().fold(hash, |hash, byte| mix(hash ^ u64::from(byte)))
}

struct Driver {
    run: Run,
    device: Device,
    agenda: Agenda<Moment>,
    random: RandomStream,
    /// Commands of this boot by their number.
    in_flight: BTreeMap<u64, String>,
    next: u64,
    depth: usize,
    accepted: (u64, u64),
    completed: u64,
    /// Counters of earlier boots, and those of the driver.
    counters: BTreeMap<&'static str, u64>,
    events: Vec<String>,
}

impl Driver {
    fn new(run: Run) -> Self {
        run.config.validate().unwrap_or_else(|error| panic!("{}: {error}", run.name));
        let options = DeviceOptions { seed: run.seed, track_contents: true, planted: None };
        let mut device = Device::new(run.config.clone(), options);
        let units = device.geometry().user_units * run.filled / 100;
        let mut fill = FastForward::new(&mut device);
        (0..units).for_each(|unit| fill.write(Lpn(unit), flashweir_core::Payload::Tag(mix(unit))));
        fill.finish();
        Self {
            device,
            agenda: Agenda::default(),
            random: RandomStream::new(run.seed, "golden"),
            in_flight: BTreeMap::new(),
            next: 1,
            depth: 1,
            accepted: (0, 0),
            completed: 0,
            counters: BTreeMap::new(),
            events: Vec::new(),
            run,
        }
    }

    /// Runs all steps, lets all commands complete, then runs a FLUSH.
    fn drive(mut self) -> Outcome {
        for step in 0..self.run.steps {
            if step % 64 == 0 {
                self.depth = 1 + self.random.below(24) as usize;
            }
            if self.run.cut_every > 0 && self.random.below(self.run.cut_every) == 0 {
                self.cut();
            }
            let delay = [0, 0, self.random.below(400_000)][self.random.below(3) as usize];
            self.agenda.at(self.agenda.now() + Duration::from_nanos(delay), Moment::Submit);
            self.pass(self.depth, true);
        }
        self.pass(0, false);
        self.submit(Command::new(0, Op::Flush));
        self.pass(0, false);
        while self.step() {}
        self.device.audit();
        self.outcome()
    }

    /// Handles events until at most `left` commands are in flight and, if asked, the next one was submitted.
    fn pass(&mut self, left: usize, submits: bool) {
        let next = self.next + u64::from(submits);
        while self.in_flight.len() > left || self.next < next {
            assert!(self.step(), "{}: nothing happens any more\n{}", self.run.name, self.device.describe());
        }
    }

    fn step(&mut self) -> bool {
        let Some((now, moment)) = self.agenda.pop() else { return false };
        match moment {
            Moment::Submit => {
                let command = self.command();
                self.submit(command);
            }
            Moment::Device(event) => {
                let mut effects = Vec::new();
                self.device.event(now, event, &mut effects);
                self.carry_out(now, effects);
            }
        }
        true
    }

    fn submit(&mut self, mut command: Command) {
        command.id.0 = self.next;
        self.next += 1;
        let verb = match &command.op {
            Op::Read { .. } => "read",
            Op::Write { .. } => "write",
            Op::WriteZeroes { .. } => "zeroes",
            Op::Trim { .. } => "trim",
            Op::Flush => "flush",
            Op::RFlush(_) => "range-flush",
            _ => "barrier",
        };
        self.in_flight.insert(command.id.0, verb.to_owned());
        let now = self.agenda.now();
        let mut effects = Vec::new();
        self.device.command(now, command, &mut effects);
        self.carry_out(now, effects);
    }

    fn carry_out(&mut self, now: Instant, effects: Vec<Effect>) {
        for effect in effects {
            match effect {
                Effect::At(at, event) => self.agenda.at(at, Moment::Device(event)),
                Effect::Accepted { id, .. } => {
                    self.accepted = (self.accepted.0 + 1, mix(self.accepted.1 ^ id.0));
                }
                Effect::Complete(completion) => self.completed(now, &completion),
            }
        }
    }

    fn completed(&mut self, now: Instant, completion: &Completion) {
        let id = completion.id.0;
        let verb = self.in_flight.remove(&id).expect("a command completes once");
        let answer = match &completion.result {
            Ok(Done::Data(units)) => {
                let identity = units.iter().fold(0, |hash, unit| mix(hash ^ unit.identity()));
                format!("data {identity:016x}")
            }
            Ok(_) => "ok".to_owned(),
            Err(error) => error.to_string(),
        };
        self.completed += 1;
        self.events.push(format!("{} ns: {verb} {id}: {answer}", now.as_nanos()));
    }

    /// The next command: mostly small, with hot spots so that versions accumulate, and with parts of mapping units.
    fn command(&mut self) -> Command {
        let (lbas, per_unit) = (self.device.geometry().capacity_lbas(), self.device.geometry().lbas_per_unit);
        let r = &mut self.random;
        // A device of a preset is far too large to fill: its commands stay in a part of it.
        let lbas = lbas.min(per_unit * 4096);
        let units = 1 + r.below(4).min(lbas / per_unit - 1);
        let hot = if r.below(2) == 0 { 1 } else { 8 };
        let first = r.below((lbas / per_unit).div_ceil(hot)).min(lbas / per_unit - units);
        let (mut lba, mut blocks) = (first * per_unit, units * per_unit);
        if per_unit > 1 && r.below(6) == 0 {
            lba += r.below(per_unit);
            blocks = 1 + r.below((blocks - 1).min(lbas - lba));
        }
        let (lba, blocks) = (Lba(lba), blocks as u32);
        let ranged = self.run.config.buffer.range_flush != RangeFlushSupport::None;
        let ordered = self.run.config.order.policy != PersistPolicy::None;
        let tags = if ranged { [r.below(5), r.below(3)].map(Tag) } else { [Tag(0); 2] };
        let op = match r.below(100) {
            0..58 => Op::Write { lba, blocks, data: Data::Pattern(self.next) },
            58..64 => Op::Trim { lba, blocks },
            64..67 => Op::WriteZeroes { lba, blocks },
            67..70 => Op::Flush,
            70..74 if ranged => {
                let tags = if r.below(2) == 0 { vec![Tag(1 + r.below(4))] } else { Vec::new() };
                Op::RFlush(Box::new(RangeFlush { ranges: vec![(lba, blocks)], tags, segments: Vec::new() }))
            }
            74..77 if ordered => Op::Barrier,
            _ => Op::Read { lba, blocks },
        };
        let mut command = Command::new(0, op);
        command.fua = r.below(25) == 0;
        if matches!(command.op, Op::Write { .. } | Op::Trim { .. }) {
            command.tags = tags;
        }
        if ordered && (command.op == Op::Barrier || r.below(3) > 0) {
            command.stream = Some(StreamId(r.below(2) as u16));
            let ends = command.op == Op::Barrier || r.below(4) == 0;
            command.order = Some(if ends { Order::Barrier } else { Order::Within });
        }
        command
    }

    /// Cuts the power: operations in the cells are torn, recovery runs, with cuts of its own now and then, and a new boot begins.
    fn cut(&mut self) {
        let (now, random) = (self.agenda.peek().unwrap_or_else(|| self.agenda.now()), &mut self.random);
        let mut torn = 0;
        let mut media = self.device.cut(now, |_| {
            torn += 1;
            [Torn::Absent, Torn::Damaged, Torn::Done][random.below(3) as usize]
        });
        self.count("cuts", 1);
        self.count("torn_operations", torn);
        self.note_boot();
        let options = DeviceOptions { seed: self.run.seed + self.next, track_contents: true, planted: None };
        let recovered = loop {
            let mut recovery = Recovery::begin(&self.run.config, options, media);
            if self.random.below(3) > 0 || recovery.steps_left() == 0 {
                break recovery.finish();
            }
            let steps = self.random.below(recovery.steps_left() as u64);
            (0..steps).for_each(|_| assert!(recovery.advance(), "there was a step"));
            media = recovery.cut([Torn::Absent, Torn::Damaged, Torn::Done][self.random.below(3) as usize]);
            self.count("cuts_in_recovery", 1);
        };
        let (device, report) = recovered;
        self.count("recovery_steps", report.steps);
        self.events.push(format!("{} ns: recovered {report:?}", now.as_nanos()));
        self.device = device;
        self.agenda = Agenda::default();
        self.in_flight.clear();
    }

    fn count(&mut self, name: &'static str, by: u64) {
        *self.counters.entry(name).or_default() += by;
    }

    /// Adds up the counters of the device before it is dropped.
    fn note_boot(&mut self) {
        let metrics: &DeviceMetrics = self.device.metrics();
        let list = metrics.list().into_iter().chain(self.device.nand_metrics().list());
        for metric in list.collect::<Vec<_>>() {
            self.count(metric.name, metric.value);
        }
    }

    fn outcome(mut self) -> Outcome {
        self.note_boot();
        let all = self.events.iter().fold(0, |hash, event| fold(hash, event));
        let (mut trail, mut hash) = (Vec::new(), 0);
        for chunk in self.events.chunks(EVENTS_PER_MARK) {
            hash = chunk.iter().fold(hash, |hash, event| fold(hash, event));
            trail.push(hash as u16);
        }
        let units = self.device.geometry().user_units.min(4096 + 8);
        let content = |unit| self.device.peek(Lpn(unit)).map_or(0, |payload| payload.identity());
        let contents = (0..units).fold(0, |hash, unit| mix(hash ^ content(unit)));
        let counters: Vec<String> = self
            .counters
            .iter()
            .filter(|(_, value)| **value > 0)
            .map(|(name, value)| format!("{name}={value}"))
            .collect();
        let media = self.device.media();
        let fields = vec![
            ("completed", format!("{} {all:016x}", self.completed)),
            ("accepted", format!("{} {:016x}", self.accepted.0, self.accepted.1)),
            ("counters", counters.join(" ")),
            ("medium", format!("{} erases {:016x}", media.erases_total(), media.digest())),
            ("contents", format!("{contents:016x}")),
        ];
        Outcome { fields, counters: self.counters, events: self.events, trail }
    }
}

/// Small devices of every shape, with and without faults, and with every kind of answer to a range flush.
fn shaped(runs: &mut Vec<Run>) {
    for seed in 0..36 {
        let fault = [0.0, 0.0, 0.002][seed as usize % 3];
        let mut config = random_config(5_000 + seed, fault);
        config.buffer.range_flush =
            [RangeFlushSupport::Selective, RangeFlushSupport::None, RangeFlushSupport::Whole]
                [(seed / 3) as usize % 3];
        config.buffer.access_latency = Duration::from_micros([0, 7][seed as usize % 2]);
        config.buffer.exclusive_flush = seed % 12 == 5;
        config.faults.endurance = if seed % 9 == 8 { 40 } else { 0 };
        // Two in three of the devices whose blocks fail have spare blocks for that.
        if fault > 0.0 && seed % 9 != 5 {
            config.ftl.over_provisioning = (config.ftl.over_provisioning + 0.2).min(0.85);
        }
        let name = format!("shape-{seed}");
        // A device whose blocks fail ends before its power is cut often.
        let cut_every = if seed % 2 == 0 { 150 } else { 0 };
        runs.push(Run { name, config, seed, steps: 1_500, cut_every, filled: [0, 100][seed as usize % 2] });
    }
}

/// Presets that were added later come last, so that the seeds of the others stay.
fn presets_by_age() -> impl Iterator<Item = &'static str> {
    const LATER: [&str; 3] = ["amf-dftl", "share-960evo", "amf-fdp"];
    let has_pages = |name: &&str| presets::preset(name).is_some_and(|config| config.firmware.is_page());
    presets::names().filter(|name| !LATER.contains(name)).chain(LATER).filter(has_pages)
}

/// The presets, as they are and shrunk so far that GC begins.
fn preset(runs: &mut Vec<Run>) {
    for (seed, name) in (100..).zip(presets_by_age()) {
        let config = presets::preset(name).expect("the name is from the list");
        let mut small = config.clone();
        let recovers = config.ftl.metadata == Metadata::Log;
        let cut_every = if recovers { 400 } else { 0 };
        let full = Run { name: name.to_owned(), config, seed, steps: 1_000, cut_every, filled: 0 };
        runs.push(full);
        let wordline = small.timing.cell.pages_per_wordline();
        let g = &mut small.geometry;
        g.channels = g.channels.min(2);
        (g.chips_per_channel, g.dies_per_chip) = (1, g.dies_per_chip.min(2));
        (g.blocks_per_plane, g.pages_per_block) = (40, 4 * wordline);
        small.buffer.capacity = Bytes(small.buffer.capacity.0.min(16 * g.page_bytes.0));
        // Metadata for so many shared pages would fill it.
        small.ftl.share.pages = 0;
        small.faults.factory_bad = small.faults.factory_bad.max(0.01);
        while small.validate().is_err() && small.geometry.blocks_per_plane < 400 {
            small.ftl.over_provisioning = (small.ftl.over_provisioning + 0.02).min(0.5);
            small.geometry.blocks_per_plane += 8;
        }
        let name = format!("{name}-small");
        runs.push(Run { name, config: small, seed, steps: 2_000, cut_every, filled: 90 });
    }
}

/// Transactions that rewrite their pages, under two policies and on devices with either allocation.
fn transactions(runs: &mut Vec<Run>) {
    for (seed, name) in (200..).zip(["barrier-ufs", "barrier-850", "barrier-ufs", "barrier-850"]) {
        let mut config = presets::preset(name).expect("there is such a preset");
        (config.geometry.blocks_per_plane, config.geometry.pages_per_block) = (32, 16);
        config.geometry.channels = config.geometry.channels.min(2);
        config.ftl.over_provisioning = 0.4;
        config.buffer.capacity = Bytes::mib(1);
        config.buffer.range_flush = RangeFlushSupport::Selective;
        config.order.policy =
            [PersistPolicy::Transactional, PersistPolicy::InOrderRecovery][seed as usize / 2 % 2];
        config.order.fuse_epochs = [64, 1][seed as usize / 2 % 2];
        let name = format!("{name}-transactions-{seed}");
        runs.push(Run { name, config, seed, steps: 2_500, cut_every: 500, filled: 80 });
    }
}

fn runs() -> Vec<Run> {
    let mut runs = Vec::new();
    shaped(&mut runs);
    preset(&mut runs);
    transactions(&mut runs);
    runs
}

/// The record of a run as text of the file.
fn record(name: &str, outcome: &Outcome) -> String {
    let mut text = format!("run {name}\n");
    for (field, value) in &outcome.fields {
        writeln!(text, "  {field} {value}").expect("a string takes what is written");
    }
    let trail: String = outcome.trail.iter().map(|mark| format!("{mark:04x}")).collect();
    text + &format!("  trail {trail}\n")
}

/// The record of a run in the file's text.
fn recorded<'a>(all: &'a str, name: &str) -> Option<&'a str> {
    let from = all.find(&format!("run {name}\n"))?;
    let end = all[from + 1..].find("\nrun ").map_or(all.len(), |at| from + 1 + at + 1);
    Some(&all[from..end])
}

/// Describes the difference between a run and its record, down to the events among which the first difference is.
fn difference(name: &str, recorded: &str, outcome: &Outcome) -> String {
    let now = record(name, outcome);
    let mut text = format!("run {name}:\n");
    for (was, is) in recorded.lines().zip(now.lines()).filter(|(was, is)| was != is) {
        if was.starts_with("  trail ") {
            continue;
        }
        let (was_words, is_words): (Vec<&str>, Vec<&str>) =
            (was.split_whitespace().collect(), is.split_whitespace().collect());
        let gone: Vec<&&str> = was_words.iter().filter(|word| !is_words.contains(word)).collect();
        let new: Vec<&&str> = is_words.iter().filter(|word| !was_words.contains(word)).collect();
        writeln!(text, "  {}: {gone:?} is now {new:?}", is_words[0]).expect("a string takes it");
    }
    let trail = recorded.lines().find_map(|line| line.strip_prefix("  trail ")).unwrap_or_default();
    let marks = outcome.trail.iter().map(|mark| format!("{mark:04x}"));
    let at = marks.enumerate().position(|(i, mark)| trail.get(4 * i..4 * i + 4) != Some(mark.as_str()));
    if let Some(at) = at {
        let from = at * EVENTS_PER_MARK;
        let events = &outcome.events[from..outcome.events.len().min(from + EVENTS_PER_MARK)];
        writeln!(text, "  the first event that differs is among these, from number {from} on:")
            .expect("a string takes it");
        events.iter().for_each(|event| text += &format!("    {event}\n"));
    }
    text
}

#[test]
fn golden_records_are_what_the_device_does() {
    let records = std::env::var("FLASHWEIR_GOLDEN").is_ok_and(|what| what == "record");
    let all = if records { String::new() } else { std::fs::read_to_string(RECORDS).expect("the records") };
    let (mut text, mut wrong, mut count) = (String::new(), String::new(), 0);
    let mut reached: BTreeMap<&str, u64> = BTreeMap::new();
    for run in runs() {
        let name = run.name.clone();
        let outcome = Driver::new(run).drive();
        count += 1;
        for (counter, value) in &outcome.counters {
            *reached.entry(counter).or_default() += value;
        }
        text += &record(&name, &outcome);
        if let Ok(folder) = std::env::var("FLASHWEIR_GOLDEN_EVENTS") {
            std::fs::write(Path::new(&folder).join(&name), outcome.events.join("\n")).expect("a folder");
        }
        match recorded(&all, &name) {
            Some(record) if record == self::record(&name, &outcome) => {}
            Some(record) => wrong += &difference(&name, record, &outcome),
            None => wrong += &format!("run {name} has no record\n"),
        }
    }
    for counter in REACHED {
        assert!(
            reached.get(counter).is_some_and(|value| *value > 0),
            "no run reaches {counter}: {reached:?}"
        );
    }
    if records {
        std::fs::write(RECORDS, text).expect("the records are written");
        return;
    }
    assert_eq!(all.matches("run ").count(), count, "the records are of other runs");
    assert!(wrong.is_empty(), "the device does something else than its records say\n{wrong}");
}
