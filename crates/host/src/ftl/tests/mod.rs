//! A host FTL above a medium that answers when a test says so: what it sends, in which order, and what each answer changes.
//!
//! Place in the data flow: a test submits requests to a [`Rig`], looks at the commands below, and answers them. Power cuts are those of
//! the crash laboratory, above real devices.

mod collecting;
mod full;
mod lines;
mod ordering;
mod recovering;
mod requests;
mod rings;
mod writing;

use super::config::HostFtlConfig;
use super::state::HostFtl;
use crate::{Effect, Input};
use flashweir_core::command::{OPEN_NAMESPACE, PpaWrite, Units};
use flashweir_core::oob::OobRecord;
use flashweir_core::open::{ChunkReport, ChunkState, OpenError, OpenGeometry, OpenInterface};
use flashweir_core::{
    Address, Command, Data, DeviceError, Done, Duration, Instant, Lba, Lpn, Op, Payload, Ppa,
};
use flashweir_ftl::BlockId;
use flashweir_ftl::geometry::{FlashCounts, FlashGeometry, PageAddr};
use std::collections::{BTreeMap, BTreeSet, VecDeque};

/// Two dies of one plane each, whose pages have two units.
const SHAPE: FlashCounts = FlashCounts {
    channels: 2,
    chips_per_channel: 1,
    dies_per_chip: 1,
    planes_per_die: 1,
    blocks_per_plane: 12,
    pages_per_block: 8,
    units_per_page: 2,
    die_interleaving: true,
};
const UNIT_BYTES: usize = 1024;
/// Sectors of a unit.
const SECTORS: u64 = 2;

const PAD_AFTER: Duration = Duration::from_millis(3);

fn config() -> HostFtlConfig {
    HostFtlConfig {
        entries: 16,
        over_provisioning: 0.5,
        programs_per_die: 2,
        pad_after: PAD_AFTER,
        user_active_for: Duration::from_millis(5),
        ..HostFtlConfig::pblk()
    }
}

fn geometry() -> FlashGeometry {
    FlashGeometry::new(SHAPE)
}

/// A host FTL, and what is below it.
#[derive(Clone, Debug)]
struct Rig {
    ftl: HostFtl,
    now: Instant,
    /// Commands that are not answered, in the order in which they were offered.
    below: VecDeque<Command>,
    answers: BTreeMap<u64, Result<Done, DeviceError>>,
    /// Times at which the FTL wants to be called.
    wakes: BTreeSet<Instant>,
    /// Requests that were dispatched, and those whose data were transferred.
    passed: [Vec<u64>; 2],
    medium: BTreeMap<Ppa, (OobRecord, Payload)>,
    /// Units whose program was torn: nobody can read them.
    torn: BTreeSet<Ppa>,
    next: u64,
}

/// Answers after which an FTL that finds no rest is taken to be stuck.
const ANSWERS_MAX: u32 = 5_000;

impl Rig {
    fn new(config: HostFtlConfig) -> Self {
        let ftl = HostFtl::new(config, geometry(), UNIT_BYTES).expect("a valid configuration");
        Self {
            ftl,
            now: Instant::ZERO,
            below: VecDeque::new(),
            answers: BTreeMap::new(),
            wakes: BTreeSet::new(),
            passed: Default::default(),
            medium: BTreeMap::new(),
            torn: BTreeSet::new(),
            next: 0,
        }
    }

    /// The FTL after a power loss in which nothing that is below has happened, once it is ready.
    fn recovered(&self) -> Self {
        let mut rig = self.recovering();
        rig.rest();
        assert!(rig.ftl.is_ready(), "{}", rig.ftl.describe());
        rig
    }

    /// The same at the begin of its recovery.
    fn recovering(&self) -> Self {
        let config = self.ftl.config().clone();
        let ftl = HostFtl::recover(config, geometry(), UNIT_BYTES).expect("a valid configuration");
        let (medium, torn) = (self.medium.clone(), self.torn.clone());
        let mut rig = Self { ftl, medium, torn, ..Self::new(self.ftl.config().clone()) };
        rig.tell(Input::Wake);
        rig
    }

    /// What each of these units reads as.
    fn contents(&self, units: std::ops::Range<u64>) -> Vec<Payload> {
        let unit = |unit| match self.ftl.find(Lpn(unit)) {
            None => Payload::Zero,
            Some(Ok(payload)) => payload,
            Some(Err(ppa)) => self.medium[&ppa].1.clone(),
        };
        units.map(unit).collect()
    }

    fn tell(&mut self, input: Input) {
        let mut effects = Vec::new();
        self.ftl.handle(self.now, input, &mut effects);
        let mut done = 0;
        while let Some(effect) = effects.get(done).cloned() {
            done += 1;
            match effect {
                Effect::Offer(offer) => {
                    self.below.push_back(offer.command);
                    self.ftl.handle(self.now, Input::Accepted, &mut effects);
                }
                Effect::Completed { token, result } => {
                    assert_eq!(self.answers.insert(token, result), None, "one answer to each request");
                }
                Effect::At(at) => drop(self.wakes.insert(at)),
                Effect::Dispatched(token) => self.passed[0].push(token),
                Effect::Transferred(token) => self.passed[1].push(token),
            }
        }
    }

    /// Submits a request; returns its number.
    fn submit(&mut self, op: Op) -> u64 {
        self.submit_as(|command| command, op)
    }

    fn submit_as(&mut self, change: impl FnOnce(Command) -> Command, op: Op) -> u64 {
        self.next += 1;
        let command = change(Command::new(self.next, op));
        self.tell(Input::Submit { command, submitter: 0 });
        self.next
    }

    fn write(&mut self, first: u64, units: u64) -> u64 {
        self.submit(write(first, units))
    }

    /// The same of another submitter.
    fn submit_by(&mut self, submitter: u16, op: Op) -> u64 {
        self.next += 1;
        let command = Command::new(self.next, op);
        self.tell(Input::Submit { command, submitter });
        self.next
    }

    /// Units of a block up to the last one that was begun.
    fn pointer(&self, block: u32) -> u32 {
        let of_it = |ppa: &&Ppa| geometry().page_of(**ppa).0.block.0 == block;
        let last = self.medium.keys().chain(&self.torn).filter(of_it).max();
        last.map_or(0, |ppa| (ppa.0 % u64::from(geometry().units_per_block())) as u32 + 1)
    }

    fn report(&self, block: u32) -> ChunkReport {
        let (pointer, all) = (self.pointer(block), geometry().units_per_block());
        let first = geometry().ppa(PageAddr { block: BlockId(block), page: 0 }, 0);
        let is_torn = self.torn.iter().any(|ppa| geometry().page_of(*ppa).0.block.0 == block);
        let state = match pointer {
            0 => ChunkState::Free,
            _ if is_torn || pointer == all => ChunkState::Closed,
            _ => ChunkState::Open,
        };
        ChunkReport { state, wear: 0, first, units: all, pointer }
    }

    /// Whether the device keeps this unit back.
    fn is_kept_back(&self, ppa: Ppa) -> bool {
        let report = self.report(geometry().page_of(ppa).0.block.0);
        let unit = (ppa.0 - report.first.0) as u32;
        let kept = self.ftl.config().cached_units;
        report.state == ChunkState::Open && unit < report.pointer && unit + kept >= report.pointer && kept > 0
    }

    /// Answers the command at this position among those below, as a medium without faults does.
    fn answer(&mut self, at: usize) {
        let command = &self.below[at];
        assert_eq!(command.ns, OPEN_NAMESPACE);
        let result = match &command.op {
            Op::PpaWrite(write) => {
                let PpaWrite { ppas, records, data, .. } = &**write;
                for (nth, (ppa, record)) in ppas.iter().zip(records).enumerate() {
                    let before = self.medium.insert(*ppa, (*record, data.unit(Lpn(0), nth, 0..0)));
                    let is_new = before.is_none() && !self.torn.contains(ppa);
                    assert!(is_new, "each unit is programmed once between two erases");
                }
                Ok(Done::Ok)
            }
            Op::PpaRead { ppas, .. } if ppas.is_empty() => panic!("a read names a place"),
            Op::PpaRead { ppas, .. } if ppas.iter().any(|ppa| self.is_kept_back(*ppa)) => {
                Err(DeviceError::Open { at: Address::Ppa(ppas[0]), what: OpenError::TooRecent })
            }
            Op::PpaRead { ppas, .. } => {
                let units = ppas.iter().map(|ppa| self.medium.get(ppa).cloned());
                let at = Address::Ppa(ppas[0]);
                let missing = match ppas.iter().any(|ppa| self.torn.contains(ppa)) {
                    true => DeviceError::Uncorrectable { at },
                    false => DeviceError::NotWritten { at },
                };
                units.collect::<Option<Vec<_>>>().ok_or(missing).map(|units| {
                    let (records, data) = units.into_iter().unzip();
                    Done::Units(Box::new(Units { data, records, refresh: Vec::new() }))
                })
            }
            Op::PpaErase(ppas) => {
                let block = geometry().page_of(ppas[0]).0.block;
                self.medium.retain(|ppa, _| geometry().page_of(*ppa).0.block != block);
                self.torn.retain(|ppa| geometry().page_of(*ppa).0.block != block);
                Ok(Done::Ok)
            }
            Op::OpenGeometry => Ok(Done::Geometry(Box::new(OpenGeometry {
                interface: OpenInterface::V20,
                groups: SHAPE.channels,
                parallel_units: 1,
                chunks: SHAPE.blocks_per_plane,
                chunk_units: geometry().units_per_block(),
                unit_bytes: UNIT_BYTES as u32,
                write_min: SHAPE.units_per_page,
                write_best: SHAPE.units_per_page,
                cached_units: self.ftl.config().cached_units,
                open_max: 0,
                places_max: 64,
            }))),
            Op::ChunkReport { first, count } => {
                assert!(first + count <= SHAPE.channels * SHAPE.blocks_per_plane, "it has these chunks");
                Ok(Done::Chunks((*first..first + count).map(|chunk| self.report(chunk)).collect()))
            }
            other => panic!("{other:?}"),
        };
        self.answer_with(at, result);
    }

    fn answer_with(&mut self, at: usize, result: Result<Done, DeviceError>) {
        let id = self.below.remove(at).expect("it is below").id;
        self.tell(Input::Completed { id, result });
    }

    /// Answers commands, the oldest first, until none is below; no time passes.
    fn settle(&mut self) {
        let mut answers = 0;
        while !self.below.is_empty() {
            self.answer(0);
            answers += 1;
            assert!(answers < ANSWERS_MAX, "it finds no rest: {}", self.ftl.describe());
        }
    }

    /// Lets time pass, with every call that the FTL has asked for until then.
    fn wait_until(&mut self, end: Instant) {
        while let Some(at) = self.wakes.pop_first() {
            if at > end {
                self.wakes.insert(at);
                break;
            }
            self.now = self.now.max(at);
            self.tell(Input::Wake);
        }
        self.now = self.now.max(end);
    }

    /// Lets time pass and commands be answered until nothing is to be done.
    fn rest(&mut self) {
        self.settle();
        let mut wakes = 0;
        while let Some(at) = self.wakes.first().copied() {
            self.wait_until(at);
            self.settle();
            wakes += 1;
            assert!(wakes < ANSWERS_MAX, "it finds no rest: {}", self.ftl.describe());
        }
        self.ftl.audit();
    }

    /// The answer to a request after which everything has come to rest.
    fn run(&mut self, op: Op) -> Result<Done, DeviceError> {
        let number = self.submit(op);
        self.rest();
        self.answers.remove(&number).expect("it was answered")
    }

    /// Units of each write below that holds data, in order, by the die that it goes to.
    fn programs(&self, die: u32) -> Vec<Vec<Ppa>> {
        let of = |command: &Command| match &command.op {
            Op::PpaWrite(write) if write.records[0].owner != flashweir_core::oob::Owner::Meta => {
                let block = geometry().page_of(write.ppas[0]).0.block;
                (self.ftl.layout.die_of(block) == die).then(|| write.ppas.to_vec())
            }
            _ => None,
        };
        self.below.iter().filter_map(of).collect()
    }
}

fn write(first: u64, units: u64) -> Op {
    let data = Data::Units((first..first + units).map(|unit| Payload::Tag(1 + unit)).collect());
    Op::Write { lba: Lba(first * SECTORS), blocks: (units * SECTORS) as u32, data }
}

fn read(first: u64, units: u64) -> Op {
    Op::Read { lba: Lba(first * SECTORS), blocks: (units * SECTORS) as u32 }
}

fn trim(first: u64, units: u64) -> Op {
    Op::Trim { lba: Lba(first * SECTORS), blocks: (units * SECTORS) as u32 }
}
