//! Tests of the machine by itself: random operations of a firmware that keeps nothing but a list of them.
//!
//! The machine's trace is checked against what a bus and an array can do: one transfer at a time on a channel, one command at a
//! time in a die, the full array time for each operation however often it is suspended, and one end for each operation that was
//! pushed. A power cut at any instant finds exactly the programs and erases that are in the cells.

use super::*;
use crate::config::{BusOrder, Cell, DeviceConfig, GeometryConfig};
use crate::flash::op::{Purpose, UNBOUND};
use crate::presets::preset;
use flashweir_core::command::Handle;
use flashweir_core::{Agenda, Bytes, RandomStream};
use flashweir_ftl::BlockId;
use proptest::prelude::*;
use std::collections::{BTreeMap, BTreeSet};
use std::ops::Range;

/// A placer with the next page of each frontier, planes without room, and a shared queue.
#[derive(Debug)]
struct Frontiers {
    next: Vec<[u32; STREAMS]>,
    full: Vec<bool>,
    shared: VecDeque<u64>,
    sealed: BTreeSet<u64>,
    pages_per_block: u32,
}

/// GC and two handles.
const STREAMS: usize = 3;

fn stream(frontier: Frontier) -> usize {
    match frontier {
        Frontier::Gc => 0,
        Frontier::User(handle) => 1 + usize::from(handle.0),
    }
}

impl Placer<u64> for Frontiers {
    fn offer(&self, _: &Blocks, plane: PlaneId, frontier: Frontier) -> Option<u32> {
        let page = self.next[plane.0 as usize][stream(frontier)] % self.pages_per_block;
        (!self.full[plane.0 as usize]).then_some(page)
    }

    fn bind(&mut self, pool: &mut Blocks, plane: PlaneId, frontier: Frontier) -> PageAddr {
        assert!(self.offer(pool, plane, frontier).is_some(), "a page is taken where one was offered");
        let next = &mut self.next[plane.0 as usize][stream(frontier)];
        let (nth, page) = (*next / self.pages_per_block, *next % self.pages_per_block);
        *next += 1;
        PageAddr { block: BlockId(nth * STREAMS as u32 + stream(frontier) as u32), page }
    }

    fn pull(&mut self, _: &Blocks, mut planes: Range<u32>) -> Option<Op<u64>> {
        let plane = planes.find(|plane| !self.full[*plane as usize])?;
        let job = self.shared.pop_front()?;
        Some(program(PlaneId(plane), Frontier::USER, job))
    }

    fn pull_beside(&mut self, pool: &Blocks, plane: PlaneId, page: u32) -> Option<Op<u64>> {
        let joins = self.offer(pool, plane, Frontier::USER) == Some(page);
        let job = if joins { self.shared.pop_front()? } else { return None };
        Some(program(plane, Frontier::USER, job))
    }

    fn seal(&mut self, job: u64) -> u32 {
        assert!(self.sealed.insert(job), "program {job} begins once");
        4096
    }
}

fn program(plane: PlaneId, frontier: Frontier, job: u64) -> Op<u64> {
    let (class, purpose) = match frontier {
        Frontier::User(_) => (Class::Write, Purpose::HostData),
        Frontier::Gc => (Class::GcWrite, Purpose::GcCopy),
    };
    Op { kind: OpKind::Program, class, plane, at: UNBOUND, frontier: Some(frontier), bytes: 0, purpose, job }
}

/// An operation as the trace shows it.
#[derive(Clone, Copy, Debug)]
struct Seen {
    what: Op,
    /// The instant at which the array begins, once the operation was issued.
    array_from: Option<Instant>,
}

/// The activity of a die as the trace shows it.
#[derive(Clone, Copy, Debug, Default)]
struct Die {
    /// The instant until which the array works.
    until: Instant,
    /// Reads whose data have not begun to leave.
    outputs: u32,
    /// Array time that a program or an erase still needs, while it works or is suspended.
    left: Option<Duration>,
    since: Instant,
}

/// The machine, its agenda, and the state with which its trace is checked.
struct Bench {
    machine: Machine<u64>,
    geometry: Geometry,
    pages: Frontiers,
    pool: Blocks,
    agenda: Agenda<NandEvent>,
    random: RandomStream,
    pushed: u64,
    finished: BTreeMap<u64, u32>,
    seen: BTreeMap<usize, Seen>,
    dies: Vec<Die>,
    buses: Vec<Instant>,
    suspends: u64,
}

impl Bench {
    fn new(seed: u64) -> Self {
        let mut random = RandomStream::new(seed, "machine");
        let config = config(&mut random);
        let geometry = Geometry::new(&config);
        let mut machine = Machine::new(&geometry, &config.timing, random.below(2) == 0);
        machine.trace.set(true, geometry.planes());
        Self {
            machine,
            pool: Blocks::new(geometry.planes(), geometry.blocks_per_plane, geometry.units_per_block()),
            pages: Frontiers {
                next: vec![[0; STREAMS]; geometry.planes() as usize],
                full: vec![false; geometry.planes() as usize],
                shared: VecDeque::new(),
                sealed: BTreeSet::new(),
                pages_per_block: geometry.pages_per_block,
            },
            agenda: Agenda::default(),
            random,
            pushed: 0,
            finished: BTreeMap::new(),
            seen: BTreeMap::new(),
            dies: vec![Die::default(); geometry.stations() as usize],
            buses: vec![Instant::ZERO; geometry.channels() as usize],
            suspends: 0,
            geometry,
        }
    }

    /// Pushes one random operation; some go to the shared queue instead.
    fn push(&mut self) {
        let r = &mut self.random;
        self.pushed += 1;
        let (plane, job) = (PlaneId(r.below(u64::from(self.geometry.planes())) as u32), self.pushed);
        let block = BlockId(r.below(8) as u32);
        let at = PageAddr { block, page: r.below(u64::from(self.geometry.pages_per_block)) as u32 };
        let command = job as u32;
        let given =
            |kind, class, purpose| Op { kind, class, plane, at, frontier: None, bytes: 4096, purpose, job };
        let op = match r.below(8) {
            0 | 1 => given(OpKind::Read, Class::Read, Purpose::HostRead { command }),
            2 => given(OpKind::Read, Class::GcRead, Purpose::GcRead),
            3 => given(OpKind::Erase, Class::Erase, Purpose::GcErase),
            4 => given(OpKind::Program, Class::Meta, Purpose::Metadata),
            5 => program(plane, Frontier::Gc, job),
            6 => program(plane, Frontier::User(Handle(r.below(2) as u8)), job),
            _ => {
                self.pages.shared.push_back(job);
                self.machine.wake(self.geometry.station(plane));
                return self.start(self.geometry.station(plane));
            }
        };
        let station = self.machine.push(op);
        self.start(station);
    }

    fn start(&mut self, station: StationId) {
        let now = self.agenda.now();
        self.machine.trace.moment(now);
        let agenda = &mut self.agenda;
        let pages = (&mut self.pool, &mut self.pages);
        self.machine.start(now, station, pages, &mut |at, event| agenda.at(at, event));
        self.look(now);
    }

    /// Handles the next event; returns false if there is none.
    fn step(&mut self) -> bool {
        let Some((now, event)) = self.agenda.pop() else { return false };
        self.machine.trace.moment(now);
        let mut finished = Vec::new();
        let station = self.machine.handle(event, &mut finished);
        for id in finished {
            let op = self.machine.take(id);
            *self.finished.entry(op.job).or_default() += 1;
        }
        self.look(now);
        if let Some(station) = station {
            self.start(station);
        }
        true
    }

    /// Gives planes room or takes it away, and wakes the dies.
    fn change_room(&mut self, full: impl Fn(&mut RandomStream) -> bool) {
        for plane in 0..self.geometry.planes() {
            self.pages.full[plane as usize] = full(&mut self.random);
            let station = self.geometry.station(PlaneId(plane));
            self.machine.wake(station);
            self.start(station);
        }
    }

    fn look(&mut self, now: Instant) {
        let mut records = Vec::new();
        self.machine.trace.take(|record| records.push(*record));
        for record in records {
            assert_eq!(record.at, now, "records have the instant of their event");
            self.check(now, record.what);
        }
    }

    /// Marks the bus of a channel as busy until an instant.
    fn take_bus(&mut self, now: Instant, plane: PlaneId, until: Instant) {
        let channel = self.geometry.channel(self.geometry.station(plane));
        let bus = &mut self.buses[channel.0 as usize];
        assert!(*bus <= now, "two transfers on channel {}", channel.0);
        *bus = until;
    }

    fn check(&mut self, now: Instant, what: Traced) {
        match what {
            Traced::Queued { op, what } => {
                let earlier = self.seen.insert(op.index(), Seen { what, array_from: None });
                assert!(earlier.is_none(), "the number of an operation is free before it is used again");
            }
            Traced::Issued { op, at, planes, bus, array, .. } => {
                let seen = self.seen.get_mut(&op.index()).expect("it was queued");
                assert!(seen.array_from.is_none(), "an operation begins once");
                (seen.array_from, seen.what.at) = (Some(now + bus), at);
                let what = seen.what;
                if planes == 0 {
                    return;
                }
                self.take_bus(now, what.plane, now + bus);
                let die = &mut self.dies[self.geometry.station(what.plane).0 as usize];
                assert!(die.until <= now && die.outputs == 0, "the die is free when a command begins");
                die.until = now + bus + array;
                match what.kind {
                    OpKind::Read => die.outputs = u32::from(planes),
                    OpKind::Program | OpKind::Erase => {
                        assert!(die.left.is_none(), "one program or erase at a time");
                        (die.left, die.since) = (Some(array), now + bus);
                    }
                }
            }
            Traced::Output { op, until } => {
                let plane = self.seen[&op.index()].what.plane;
                self.take_bus(now, plane, until);
                let die = &mut self.dies[self.geometry.station(plane).0 as usize];
                assert!(die.until <= now && die.outputs > 0, "data leave when the array has them");
                die.outputs -= 1;
                // The page register is free when the last of the reads has left.
                die.until = until;
            }
            Traced::Suspended { station, until } => {
                let die = &mut self.dies[station.0 as usize];
                assert!(die.since <= now && now < die.until, "the array works when it is suspended");
                let left = die.left.as_mut().expect("only programs and erases are suspended");
                *left = left.saturating_sub(now.saturating_since(die.since));
                die.until = until;
                self.suspends += 1;
            }
            Traced::Resumed { station, until } => {
                let die = &mut self.dies[station.0 as usize];
                assert!(die.until <= now && die.outputs == 0, "the die is free when it goes on");
                assert_eq!(until, now + die.left.expect("something is suspended"), "all of its time");
                (die.until, die.since) = (until, now);
            }
            Traced::Finished { op } => {
                let Seen { what, array_from } = self.seen.remove(&op.index()).expect("it was queued");
                assert!(array_from.is_some_and(|from| from <= now), "it was issued");
                let die = &mut self.dies[self.geometry.station(what.plane).0 as usize];
                assert!(die.until <= now, "it has had its time");
                if what.kind != OpKind::Read {
                    die.left = None;
                }
            }
            _ => unreachable!("the machine says nothing else"),
        }
    }

    /// Checks a power cut at the current instant: the operations in the cells are those that began and have not ended.
    fn check_cut(&self) {
        let now = self.agenda.now();
        let listed: Vec<usize> = self.machine.interrupted(now).iter().map(|torn| torn.id.index()).collect();
        let list: BTreeSet<usize> = listed.iter().copied().collect();
        assert_eq!(list.len(), listed.len(), "each of them once");
        let in_cells = self.seen.iter().filter(|(_, seen)| {
            seen.what.kind != OpKind::Read && seen.array_from.is_some_and(|from| from <= now)
        });
        assert_eq!(list, in_cells.map(|(op, _)| *op).collect());
        for (station, die) in (0..).map(StationId).zip(&self.dies) {
            assert_eq!(self.machine.is_programming(station), die.left.is_some(), "station {}", station.0);
        }
        for torn in self.machine.interrupted(now) {
            assert_eq!(torn.op.at, self.seen[&torn.id.index()].what.at, "it is known where");
        }
    }
}

/// A few dies with random times.
fn config(r: &mut RandomStream) -> DeviceConfig {
    let mut config = preset("mqsim-small-ideal").expect("there is such a preset");
    config.geometry = GeometryConfig {
        channels: 1 + r.below(3) as u32,
        chips_per_channel: 1 + r.below(2) as u32,
        dies_per_chip: 1 + r.below(2) as u32,
        planes_per_die: 1 + r.below(4) as u32,
        blocks_per_plane: 64,
        pages_per_block: 12,
        page_bytes: Bytes::kib(4),
        unit_bytes: Bytes::kib(4),
    };
    let us = |r: &mut RandomStream, most: u64| Duration::from_micros(1 + r.below(most));
    let timing = &mut config.timing;
    timing.read = PageTimes::Same(us(r, 60));
    timing.program = PageTimes::Each(vec![us(r, 300), us(r, 900)]);
    timing.cell = Cell::Mlc;
    timing.erase = us(r, 3_000);
    timing.command = [us(r, 3); 3];
    timing.bus_order = [BusOrder::DataFirst, BusOrder::CommandsFirst][r.below(2) as usize];
    timing.multi_plane = r.below(3) > 0;
    timing.die_interleaving = r.below(2) == 0;
    timing.suspend = (r.below(3) > 0).then(|| SuspendConfig {
        program: r.below(4) > 0,
        erase: r.below(4) > 0,
        latency: us(r, 30),
        max_per_operation: 1 + r.below(4) as u32,
    });
    config
}

/// Runs one machine through some operations until it is idle.
fn run(seed: u64) -> Bench {
    let mut bench = Bench::new(seed);
    let dense = 1 + bench.random.below(4);
    for _ in 0..400 {
        bench.push();
        if bench.random.below(50) == 0 {
            bench.change_room(|random| random.below(3) == 0);
        }
        for _ in 0..bench.random.below(2 * dense) {
            bench.step();
        }
        bench.check_cut();
    }
    bench.change_room(|_| false);
    while bench.step() {
        bench.check_cut();
    }
    // Work in the shared queue begins only when an idle die looks for it.
    while !bench.pages.shared.is_empty() {
        bench.change_room(|_| false);
        while bench.step() {}
    }
    bench
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]

    #[test]
    fn each_operation_ends_once_and_nothing_is_in_two_places(seed in any::<u64>()) {
        let bench = run(seed);
        prop_assert_eq!(bench.machine.in_flight(), 0);
        prop_assert!(bench.seen.is_empty());
        prop_assert!(bench.finished.values().all(|times| *times == 1));
        prop_assert_eq!(bench.finished.len() as u64, bench.pushed);
        let stations = (0..bench.geometry.stations()).map(StationId);
        prop_assert!(stations.clone().all(|station| bench.machine.is_idle(station)));
        prop_assert_eq!(bench.machine.resting(0).count(), stations.count());
    }
}

#[test]
fn reads_do_suspend_programs_and_erases() {
    assert!((0..20).map(|seed| run(seed).suspends).sum::<u64>() > 100);
}
