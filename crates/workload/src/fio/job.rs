//! One fio job as a state machine.
//!
//! Place in the data flow: the world polls it for requests and passes completions back; a [`JobSpec`] says what to do,
//! [`super::distribution`] at which addresses.
//!
//! Invariants: at most `iodepth` requests are in flight; a flush is in flight alone; every request lies in the region, and in
//! one of its files if there are several; nothing is allocated after construction.
//!
//! Deliberately absent: several jobs. The caller that runs a job file starts the jobs of a stonewall group when all
//! jobs of the preceding group are done.

use super::distribution::{Picker, Sweep};
use super::spec::{
    Direction, JobSpec, Limits, Mix, Placement, Process, Rate, Region, Sequencer, Service, Sizes, Think,
    Verify, Walk,
};
use super::steady::Search;
use flashweir_core::command::Handle;
use flashweir_core::random::mix;
use flashweir_core::units::LBA_BYTES;
use flashweir_core::{Duration, Instant, Lba, RandomStream};
use flashweir_sim::measure::{LogSpec, SteadyState};
use flashweir_sim::request::{Kind, Request};
use flashweir_sim::workload::{Step, Workload};
use std::collections::BTreeMap;

/// Number of low bits of a token that hold the class of the request.
const CLASS_BITS: u32 = 2;
/// Class of a request that counts as I/O.
const CLASS_IO: u32 = 0;
/// Class of a flush.
const CLASS_FLUSH: u32 = 1;
/// Class of a trim whose range is written next.
const CLASS_TRIM_OF_PAIR: u32 = 2;
/// Class of a read that verifies written data.
const CLASS_VERIFY: u32 = 3;

/// State of the job.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Phase {
    /// Not polled yet.
    Unstarted,
    /// Waits for its start time.
    Delayed(Instant),
    /// Issues requests.
    Running,
    /// Issues no requests until none is in flight.
    Draining(Then),
    /// Waits for a flush, the only request in flight.
    Flushing {
        /// Whether the job ends with it.
        last: bool,
    },
    /// Pauses until this time.
    Thinking(Instant),
    /// Reads written data back.
    Verifying,
    /// Issues no further requests.
    Ended,
}

/// Continuation after the last request in flight.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Then {
    /// A flush, then more requests.
    Flush,
    /// A pause.
    Think,
    /// A flush, then the end.
    LastFlush,
    /// Reads of what was written, then the end.
    Verify,
}

/// The two halves of a trim and a write of the same range.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Pair {
    /// The next request is a trim, or the job has no pairs.
    Whole,
    /// The trim is in flight; its completion must come before the write, or a device could swap the two.
    Trimming(Place),
    /// The write is next.
    Writing(Place),
}

/// A range of sectors in the file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Place {
    first: u64,
    blocks: u32,
}

/// Draws the sizes of requests.
#[derive(Clone, Debug)]
enum SizePicker {
    Fixed(u32),
    /// Multiples of `min` up to `max`, and `max`.
    Range {
        min: u32,
        max: u32,
    },
    /// One entry for each per cent of the requests.
    Split {
        table: Box<[u32; 100]>,
        min: u32,
    },
}

impl SizePicker {
    fn new(sizes: &Sizes) -> Self {
        match sizes {
            Sizes::Fixed(blocks) => Self::Fixed(*blocks),
            Sizes::Range { min, max } => Self::Range { min: *min, max: *max },
            Sizes::Split(parts) => {
                let mut table = Box::new([0; 100]);
                let entries = parts
                    .iter()
                    .flat_map(|(blocks, share)| std::iter::repeat_n(*blocks, usize::from(*share)));
                for (slot, blocks) in table.iter_mut().zip(entries) {
                    *slot = blocks;
                }
                Self::Split { table, min: sizes.min_blocks() }
            }
        }
    }

    #[inline]
    fn next(&self, stream: &mut RandomStream) -> u32 {
        match self {
            Self::Fixed(blocks) => *blocks,
            Self::Range { min, max } if max.is_multiple_of(*min) => {
                min * (1 + stream.below(u64::from(max / min)) as u32)
            }
            // As in fio, the rest of the way to `max` stands for `max`.
            Self::Range { min, max } => {
                let drawn = u64::from(*min) + stream.below(u64::from(*max));
                ((drawn / u64::from(*min) * u64::from(*min)) as u32).min(*max)
            }
            Self::Split { table, .. } => table[stream.below(100) as usize],
        }
    }

    #[inline]
    fn min(&self) -> u32 {
        match self {
            Self::Fixed(min) | Self::Range { min, .. } | Self::Split { min, .. } => *min,
        }
    }
}

/// Times at which rate-limited requests are due. The schedule does not depend on completions.
#[derive(Clone, Debug)]
struct Pace {
    bytes_per_s: u64,
    process: Process,
    due: Instant,
    /// Remainder of the divisions so far, in bytes times nanoseconds, so that no drift accumulates.
    rest: u64,
}

impl Pace {
    fn advance(&mut self, bytes: u64, stream: &mut RandomStream) {
        // At most 2^30 * 10^9 + 2^62, which fits into 64 bits.
        let work = bytes * 1_000_000_000;
        let gap_ns = match self.process {
            Process::Linear => {
                let work = work + self.rest;
                self.rest = work % self.bytes_per_s;
                work / self.bytes_per_s
            }
            Process::Poisson => {
                let mean_ns = work as f64 / self.bytes_per_s as f64;
                (-(1.0 - stream.unit()).ln() * mean_ns).round() as u64
            }
        };
        self.due = self.due.saturating_add(Duration::from_nanos(gap_ns));
    }
}

/// State of one direction between its requests.
#[derive(Clone, Debug)]
struct Lane {
    sizes: SizePicker,
    align_blocks: u64,
    random_percent: u8,
    pace: Option<Pace>,
}

/// State of a file, or of the device, between its requests.
#[derive(Clone, Debug)]
struct Front {
    pickers: [Picker; 3],
    sweep: Option<Sweep>,
    /// The last range of each direction, if there was one.
    last: [Option<Place>; 3],
    /// Number of requests left in the run that the last random address of each direction began.
    run_left: [u32; 3],
    /// Sectors left of a file that is to be done.
    left_blocks: u64,
    is_done: bool,
}

/// The files of a job that has several.
#[derive(Clone, Debug)]
struct Turns {
    service: Service,
    current: usize,
    /// Number of requests and flushes left in the turn of the current file.
    left: u32,
    /// The file at which round robin goes on.
    next: usize,
    /// The other files.
    parked: Vec<Option<Front>>,
    /// Sectors of a file after which it is done.
    file_blocks: u64,
    /// Smallest request, in sectors.
    least: u64,
    stream: RandomStream,
}

impl Turns {
    /// The next file that is not done; `None` if all are. The current one is not among the parked.
    fn choose(&mut self, is_current_done: bool) -> Option<usize> {
        let count = self.parked.len();
        let is_open = |file: &usize| match &self.parked[*file] {
            Some(front) => !front.is_done,
            None => !is_current_done,
        };
        let file = match self.service {
            Service::Random(_) => {
                let open = (0..count).filter(&is_open).count() as u64;
                let nth = if open > 0 { self.stream.below(open) } else { return None };
                (0..count).filter(&is_open).nth(nth as usize)?
            }
            Service::RoundRobin(_) | Service::Sequential => {
                (0..count).map(|step| (self.next + step) % count).find(is_open)?
            }
        };
        self.next = (file + 1) % count;
        self.left = match self.service {
            Service::RoundRobin(every) | Service::Random(every) => every,
            Service::Sequential => u32::MAX,
        };
        Some(file)
    }
}

/// The random streams of a job, one for each purpose.
#[derive(Clone, Debug)]
struct Streams {
    mix: RandomStream,
    size: RandomStream,
    address: RandomStream,
    pace: RandomStream,
}

/// Placement handles of a job's writes, one after the other.
#[derive(Clone, Debug)]
struct Placed {
    rules: Placement,
    turn: usize,
    random: RandomStream,
}

impl Placed {
    fn next(&mut self) -> Handle {
        let count = self.rules.handles.len();
        let nth = if self.rules.in_turn { self.turn } else { self.random.below(count as u64) as usize };
        self.turn = (self.turn + 1) % count;
        self.rules.handles[nth]
    }
}

/// A running fio job.
#[derive(Clone, Debug)]
pub struct FioJob {
    phase: Phase,
    in_flight: u32,
    iodepth: u32,
    serial: u32,
    ends_at: Instant,
    left_blocks: u64,
    left_requests: u64,
    mix: Mix,
    pair: Pair,
    /// A direction whose next request is not due yet.
    chosen: Option<Direction>,
    region: Region,
    /// Beginning of the current file, in sectors of the device.
    base: u64,
    /// Length of a file.
    part_blocks: u64,
    walk: Walk,
    front: Front,
    turns: Option<Box<Turns>>,
    lanes: [Lane; 3],
    streams: Streams,
    fsync: Counter,
    fdatasync: Counter,
    wrote: bool,
    think: Option<Think>,
    think_left: u32,
    think_at: Instant,
    think_from: Instant,
    counts_from: Instant,
    /// When its delay was over.
    began: Option<Instant>,
    /// When it began to read back.
    reads_back_from: Option<Instant>,
    steady: Option<Box<Sought>>,
    /// Lengths of writes that will be read back, by their first sector on the device.
    written: Option<BTreeMap<u64, u32>>,
    placed: Option<Box<Placed>>,
    spec: Box<JobSpec>,
}

/// The search for a steady state, and the requests in flight.
#[derive(Clone, Debug)]
struct Sought {
    search: Search,
    /// Length in sectors of each request in flight, by token.
    flights: BTreeMap<u32, u32>,
}

/// Counts to a number repeatedly.
#[derive(Clone, Copy, Debug)]
struct Counter {
    every: u32,
    left: u32,
}

impl Counter {
    /// Makes a counter that is never full if `every` is zero.
    fn new(every: u32) -> Self {
        Self { every, left: every }
    }

    /// Counts one step; returns whether it is full.
    #[inline]
    fn step(&mut self) -> bool {
        if self.every == 0 {
            return false;
        }
        self.left -= 1;
        if self.left > 0 {
            return false;
        }
        self.left = self.every;
        true
    }
}

impl FioJob {
    /// Makes the job that `spec` describes. All its randomness depends on `seed`, or on the seed of the spec if it has
    /// one, and on the name of its stream.
    pub fn new(spec: JobSpec, seed: u64) -> Self {
        let seed = spec.seed.unwrap_or(seed);
        let stream = |purpose: &str| RandomStream::new(seed, &format!("fio/{}/{purpose}", spec.stream));
        let mut address = stream("address");
        // One key for all directions, so that they share their hot addresses.
        let key = address.next_u64();
        let lane = |direction: Direction| {
            let d = direction as usize;
            let sizes = SizePicker::new(&spec.sizes[d]);
            let pace = match spec.rate[d] {
                Rate::Unlimited => None,
                Rate::BytesPerSecond(bytes_per_s) => {
                    Some(Pace { bytes_per_s, process: spec.process, due: Instant::ZERO, rest: 0 })
                }
            };
            Lane {
                sizes,
                align_blocks: u64::from(spec.align_blocks[d]),
                random_percent: spec.random_percent[d],
                pace,
            }
        };
        let part_blocks = spec.region.blocks / spec.parts.map_or(1, |parts| u64::from(parts.count));
        let used = Direction::ALL.into_iter().find(|d| spec.mix.uses(*d)).unwrap_or(Direction::Read);
        // Of the others it is not known when nothing is left of a file.
        let is_finite =
            spec.limits.blocks.is_some() && (spec.random_map || matches!(spec.walk, Walk::Sequential { .. }));
        let file_blocks = if is_finite { part_blocks } else { u64::MAX };
        let mut front = |file: u32| Front {
            pickers: Direction::ALL.map(|direction| {
                let d = direction as usize;
                let align = u64::from(spec.align_blocks[d]);
                let addresses = part_blocks.saturating_sub(u64::from(spec.sizes[d].min_blocks())) / align + 1;
                let key = if file == 0 { key } else { mix(key ^ u64::from(file)) };
                Picker::new(&spec.distribution[d], addresses, align, key)
            }),
            sweep: spec
                .random_map
                .then(|| Sweep::new(part_blocks / u64::from(spec.align_blocks[used as usize]), &mut address)),
            last: [None; 3],
            run_left: [0; 3],
            left_blocks: file_blocks,
            is_done: false,
        };
        let first = front(0);
        let turns = spec.parts.map(|parts| {
            let sizes = Direction::ALL.into_iter().filter(|d| spec.mix.uses(*d));
            let least = sizes.map(|d| u64::from(spec.sizes[d as usize].min_blocks())).min();
            Box::new(Turns {
                service: parts.service,
                current: 0,
                left: 0,
                next: 0,
                parked: (0..parts.count).map(|file| (file > 0).then(|| front(file))).collect(),
                file_blocks,
                least: least.unwrap_or(1),
                stream: stream("file"),
            })
        });
        let Limits { blocks, requests, .. } = spec.limits;
        let ramps = spec.ramp > Duration::ZERO;
        Self {
            phase: Phase::Unstarted,
            in_flight: 0,
            iodepth: spec.iodepth,
            serial: 0,
            ends_at: Instant::MAX,
            left_blocks: blocks.unwrap_or(u64::MAX),
            left_requests: requests.unwrap_or(u64::MAX),
            mix: spec.mix,
            pair: Pair::Whole,
            chosen: None,
            region: spec.region,
            base: spec.region.first.0,
            part_blocks,
            walk: spec.walk,
            front: first,
            turns,
            lanes: Direction::ALL.map(lane),
            streams: Streams { mix: stream("mix"), size: stream("size"), address, pace: stream("pace") },
            fsync: Counter::new(spec.fsync),
            fdatasync: Counter::new(spec.fdatasync),
            wrote: false,
            think: spec.think,
            think_left: spec.think.map_or(u32::MAX, |think| think.every),
            think_at: Instant::MAX,
            think_from: Instant::ZERO,
            began: None,
            reads_back_from: None,
            counts_from: if ramps { Instant::MAX } else { Instant::ZERO },
            steady: None,
            written: spec.verify.map(|_| BTreeMap::new()),
            placed: spec
                .placement
                .clone()
                .map(|rules| Box::new(Placed { rules, turn: 0, random: stream("placement") })),
            spec: Box::new(spec),
        }
    }

    /// Returns the description of the job.
    pub fn spec(&self) -> &JobSpec {
        &self.spec
    }

    /// Returns the time at which the job starts, if it is first polled at `now`; to be called once.
    pub(crate) fn start_after_delay(&mut self, now: Instant) -> Instant {
        let (least, most) = self.spec.start_delay;
        let spread = most.saturating_sub(least).as_nanos();
        let extra = if spread == 0 { 0 } else { self.streams.pace.below(spread.saturating_add(1)) };
        now.saturating_add(least).saturating_add(Duration::from_nanos(extra))
    }

    /// Starts the clocks.
    fn start(&mut self, now: Instant) {
        self.began = Some(now);
        let ramp_ends = now.saturating_add(self.spec.ramp);
        if self.spec.ramp > Duration::ZERO {
            self.counts_from = ramp_ends;
        }
        if let Some(runtime) = self.spec.limits.runtime {
            self.ends_at = ramp_ends.saturating_add(runtime);
        }
        for pace in self.lanes.iter_mut().filter_map(|lane| lane.pace.as_mut()) {
            pace.due = now;
        }
        let search = self.spec.steady.map(|rule| Search::new(rule, ramp_ends));
        self.steady = search.map(|search| Box::new(Sought { search, flights: BTreeMap::new() }));
        self.arm_pause(now);
        self.phase = Phase::Running;
    }

    /// Restarts the count to the next pause.
    fn arm_pause(&mut self, now: Instant) {
        if let Some(think) = self.think {
            self.think_left = think.every;
            self.think_at = think.after.map_or(Instant::MAX, |span| now.saturating_add(span));
        }
    }

    fn exhausted(&self, now: Instant) -> bool {
        now >= self.ends_at || self.left_blocks == 0 || self.left_requests == 0
    }

    /// Enters the phase of a job that will issue no more I/O.
    fn finish(&mut self) {
        let flush = self.spec.end_fsync && self.wrote;
        self.phase = if flush { Phase::Draining(Then::LastFlush) } else { self.closing() };
    }

    /// Returns the phase after all writes, and after their flush if one was asked for.
    fn closing(&self) -> Phase {
        let has_written = self.written.as_ref().is_some_and(|written| !written.is_empty());
        if has_written { Phase::Draining(Then::Verify) } else { Phase::Ended }
    }

    /// Returns the next verifying read; `None` if there is none left.
    fn verify(&mut self, now: Instant) -> Option<Step> {
        if self.in_flight >= self.iodepth {
            return Some(Step::Blocked);
        }
        let next = self.written.as_mut().filter(|_| now < self.ends_at).and_then(BTreeMap::pop_first);
        match next {
            Some((first, blocks)) => {
                self.in_flight += 1;
                let token = self.token(CLASS_VERIFY);
                let request = Request {
                    kind: Kind::Read,
                    lba: Lba(first),
                    blocks,
                    source: Lba(0),
                    fua: false,
                    handle: Handle(0),
                    intended: now,
                    token,
                };
                Some(Step::Submit(request))
            }
            None if self.in_flight > 0 => Some(Step::Blocked),
            None => {
                self.phase = Phase::Ended;
                None
            }
        }
    }

    #[inline]
    fn token(&mut self, class: u32) -> u32 {
        self.serial = self.serial.wrapping_add(1);
        self.serial << CLASS_BITS | class
    }

    /// A flush. Of several files it is that of the next one, as in fio, or of all, with the end of the region as its address.
    fn flush(&mut self, now: Instant, last: bool) -> Step {
        self.in_flight = 1;
        let token = self.token(CLASS_FLUSH);
        let lba = match self.turns {
            None => Lba(0),
            Some(_) if last => Lba(self.region.first.0 + self.region.blocks),
            Some(_) => {
                self.turn(true);
                Lba(self.base)
            }
        };
        Step::Submit(Request {
            kind: Kind::Flush,
            lba,
            blocks: 0,
            source: Lba(0),
            fua: false,
            handle: Handle(0),
            intended: now,
            token,
        })
    }

    /// Goes to the file of the next request or flush. As in fio, only a request finds that nothing is left of a file; when nothing is
    /// left of any, all begin again.
    fn turn(&mut self, is_flush: bool) {
        let Some(turns) = &mut self.turns else { return };
        loop {
            if turns.left == 0 || self.front.is_done {
                let Some(file) = turns.choose(self.front.is_done) else {
                    for front in turns.parked.iter_mut().flatten().chain([&mut self.front]) {
                        (front.left_blocks, front.is_done) = (turns.file_blocks, false);
                    }
                    continue;
                };
                if let Some(front) = turns.parked[file].take() {
                    turns.parked[turns.current] = Some(std::mem::replace(&mut self.front, front));
                    turns.current = file;
                    self.base = self.region.first.0 + file as u64 * self.part_blocks;
                }
            }
            if is_flush || self.front.left_blocks >= turns.least {
                turns.left -= 1;
                return;
            }
            self.front.is_done = true;
        }
    }

    /// Returns the direction of the next request, before rate limits are considered.
    #[inline]
    fn direction(&mut self) -> Direction {
        match self.mix {
            Mix::Only(direction) => direction,
            Mix::ReadWrite { read_percent } => self.chosen.take().unwrap_or_else(|| {
                let read = self.streams.mix.below(100) < u64::from(read_percent);
                if read { Direction::Read } else { Direction::Write }
            }),
            Mix::TrimWrite => match self.pair {
                Pair::Writing(_) => Direction::Write,
                Pair::Whole | Pair::Trimming(_) => Direction::Trim,
            },
        }
    }

    /// Returns the direction that issues a request now with its due time, or the time when the next one is due. As in
    /// fio, a mixed job whose chosen direction is not due yet takes the other direction if that is due earlier, or has no
    /// rate; a mix with rates therefore follows the rates.
    #[inline]
    fn due(&mut self, direction: Direction, now: Instant) -> Result<(Direction, Instant), Instant> {
        match &self.lanes[direction as usize].pace {
            None => Ok((direction, now)),
            Some(pace) => self.due_at_rate(direction, pace.due, now),
        }
    }

    /// [`Self::due`] of a direction with a rate, whose next request is due at `due`.
    #[cold]
    fn due_at_rate(
        &mut self,
        direction: Direction,
        due: Instant,
        now: Instant,
    ) -> Result<(Direction, Instant), Instant> {
        let mut next = (direction, due);
        if next.1 > now && matches!(self.mix, Mix::ReadWrite { .. }) {
            let other = if direction == Direction::Read { Direction::Write } else { Direction::Read };
            match &self.lanes[other as usize].pace {
                Some(pace) if pace.due < next.1 => next = (other, pace.due),
                Some(_) => {}
                None if self.mix_has(other) => next = (other, now),
                None => {}
            }
        }
        if next.1 > now {
            self.chosen = Some(next.0);
            return Err(next.1);
        }
        Ok(next)
    }

    /// Whether a mixed job has requests of this direction at all.
    fn mix_has(&self, direction: Direction) -> bool {
        let Mix::ReadWrite { read_percent } = self.mix else { return self.mix.uses(direction) };
        if direction == Direction::Read { read_percent > 0 } else { read_percent < 100 }
    }

    /// Makes a request and updates all counters.
    #[inline]
    fn request(&mut self, direction: Direction, intended: Instant) -> Request {
        let place = match self.pair {
            Pair::Writing(place) => place,
            Pair::Whole | Pair::Trimming(_) => {
                if self.turns.is_some() {
                    self.turn(false);
                }
                self.place(direction)
            }
        };
        let first = self.base + place.first;
        let bytes = u64::from(place.blocks) * LBA_BYTES;
        if let Some(pace) = &mut self.lanes[direction as usize].pace {
            pace.advance(bytes, &mut self.streams.pace);
        }
        self.in_flight += 1;
        self.left_blocks = if self.left_blocks == u64::MAX {
            u64::MAX
        } else {
            self.left_blocks.saturating_sub(u64::from(place.blocks))
        };
        self.left_requests -= 1;
        let mut class = CLASS_IO;
        if self.mix == Mix::TrimWrite {
            let trims = direction == Direction::Trim;
            self.pair = if trims { Pair::Trimming(place) } else { Pair::Whole };
            class = if trims { CLASS_TRIM_OF_PAIR } else { CLASS_IO };
        }
        let writes = direction == Direction::Write;
        let mut flush = false;
        if writes {
            self.wrote = true;
            if let Some(written) = &mut self.written {
                let longest = written.entry(first).or_insert(0);
                *longest = (*longest).max(place.blocks);
            }
            let (fsync, fdatasync) = (self.fsync.step(), self.fdatasync.step());
            flush = fsync || fdatasync;
        }
        if self.think.is_some() && self.think_left != u32::MAX {
            self.think_left -= 1;
        }
        if flush {
            self.phase = Phase::Draining(Then::Flush);
        } else if self.think_left == 0 {
            self.begin_pause(intended);
        }
        let token = self.token(class);
        if let Some(sought) = &mut self.steady {
            sought.flights.insert(token, place.blocks);
        }
        let sources = self.spec.share_from.filter(|_| writes);
        Request {
            kind: match direction {
                Direction::Read => Kind::Read,
                Direction::Write if sources.is_some() => Kind::Share,
                Direction::Write => Kind::Write,
                Direction::Trim => Kind::Trim,
            },
            lba: Lba(first),
            blocks: place.blocks,
            source: sources.map_or(Lba(0), |sources| Lba(sources.0 + (first - self.region.first.0))),
            fua: writes && self.spec.fua,
            handle: if writes {
                self.placed.as_mut().map_or(Handle(0), |placed| placed.next())
            } else {
                Handle(0)
            },
            intended,
            token,
        }
    }

    fn begin_pause(&mut self, now: Instant) {
        self.think_from = now;
        self.phase = Phase::Draining(Then::Think);
    }

    /// Returns size and address of the next request in a direction.
    #[inline]
    fn place(&mut self, direction: Direction) -> Place {
        let d = direction as usize;
        let (lane, front) = (&self.lanes[d], &mut self.front);
        let blocks = lane.sizes.next(&mut self.streams.size);
        let place = match self.walk {
            Walk::Sequential { gap_blocks } => {
                lane.after(front.last[d], blocks, gap_blocks, self.part_blocks)
            }
            Walk::Random { run } => {
                let is_in_run = front.run_left[d] > 0;
                let goes_on = is_in_run
                    || lane.random_percent < 100
                        && self.streams.mix.below(100) >= u64::from(lane.random_percent);
                // The option is about runs; what is not drawn at random goes on.
                let sequencer = if is_in_run { self.spec.sequencer } else { Sequencer::Sequential };
                match goes_on
                    .then(|| lane.in_run(front.last[d], blocks, sequencer, self.part_blocks))
                    .flatten()
                {
                    Some(place) => {
                        front.run_left[d] = front.run_left[d].saturating_sub(1);
                        place
                    }
                    None => {
                        front.run_left[d] = run - 1;
                        let stream = &mut self.streams.address;
                        let index = match &mut front.sweep {
                            Some(sweep) => sweep.next(stream),
                            None => front.pickers[d].next(stream),
                        };
                        lane.fitted(index * lane.align_blocks, blocks, self.part_blocks)
                    }
                }
            }
        };
        debug_assert!(place.first + u64::from(place.blocks) <= self.part_blocks);
        front.last[d] = Some(place);
        front.left_blocks = front.left_blocks.saturating_sub(u64::from(place.blocks));
        place
    }

    /// Continues after the last request in flight has completed.
    fn drained(&mut self, now: Instant, then: Then) -> Option<Step> {
        match then {
            Then::LastFlush => {
                self.phase = Phase::Flushing { last: true };
                Some(self.flush(now, true))
            }
            Then::Verify => {
                // As in fio, the run time starts again.
                self.ends_at = self.spec.limits.runtime.map_or(Instant::MAX, |span| now.saturating_add(span));
                self.reads_back_from = Some(now);
                self.phase = Phase::Verifying;
                None
            }
            Then::Flush | Then::Think if self.exhausted(now) => {
                self.finish();
                None
            }
            Then::Flush => {
                self.phase = Phase::Flushing { last: false };
                Some(self.flush(now, false))
            }
            Then::Think => {
                let pause = self.think.map_or(Duration::ZERO, |think| think.pause);
                self.phase = Phase::Thinking(now.saturating_add(pause));
                None
            }
        }
    }

    /// Resumes after a pause.
    fn resume(&mut self, now: Instant) {
        if self.spec.rate_ignore_thinktime {
            let lost = now.saturating_since(self.think_from);
            for pace in self.lanes.iter_mut().filter_map(|lane| lane.pace.as_mut()) {
                pace.due = pace.due.saturating_add(lost);
            }
        }
        self.arm_pause(now);
        self.phase = Phase::Running;
    }

    /// Lets the search for a steady state see the completion of a request.
    #[cold]
    fn examine(&mut self, now: Instant, token: u32) {
        if let Some(sought) = &mut self.steady
            && let Some(blocks) = sought.flights.remove(&token)
            && sought.search.completed(now, u64::from(blocks) * LBA_BYTES)
        {
            // The job is steady: its time is over, and no further completion is examined.
            self.ends_at = self.ends_at.min(now);
            sought.flights.clear();
        }
    }

    /// Goes on after a request of another class than I/O.
    #[cold]
    fn completed_special(&mut self, now: Instant, class: u32) {
        match class {
            CLASS_FLUSH => match self.phase {
                Phase::Flushing { last: true } => self.phase = self.closing(),
                Phase::Flushing { last: false } if self.think_left == 0 => self.begin_pause(now),
                Phase::Flushing { last: false } => self.phase = Phase::Running,
                _ => unreachable!("a flush is alone in flight"),
            },
            CLASS_TRIM_OF_PAIR => {
                let Pair::Trimming(place) = self.pair else {
                    unreachable!("the trim of a pair completes before its write is made")
                };
                self.pair = Pair::Writing(place);
            }
            _ => {}
        }
    }

    /// What a job does that is not running; `None` if it has entered another phase.
    #[cold]
    fn aside(&mut self, now: Instant) -> Option<Step> {
        match self.phase {
            Phase::Running => None,
            Phase::Unstarted => {
                self.phase = Phase::Delayed(self.start_after_delay(now));
                None
            }
            Phase::Delayed(until) if now < until => Some(Step::Wait(until)),
            Phase::Delayed(_) => {
                self.start(now);
                None
            }
            Phase::Draining(_) if self.in_flight > 0 => Some(Step::Blocked),
            Phase::Draining(then) => self.drained(now, then),
            Phase::Flushing { .. } => Some(Step::Blocked),
            Phase::Thinking(until) if now < until.min(self.ends_at) => {
                Some(Step::Wait(until.min(self.ends_at)))
            }
            Phase::Thinking(_) => {
                self.resume(now);
                None
            }
            Phase::Verifying => self.verify(now),
            Phase::Ended => Some(Step::Done),
        }
    }
}

impl Lane {
    /// Shrinks a request to the smallest size if it would leave the file.
    #[inline]
    fn fitted(&self, first: u64, blocks: u32, file_blocks: u64) -> Place {
        let fits = first + u64::from(blocks) <= file_blocks;
        Place { first, blocks: if fits { blocks } else { self.sizes.min() } }
    }

    /// Returns the next range of a sequential walk, which wraps around at the ends of the file.
    fn after(&self, last: Option<Place>, blocks: u32, gap_blocks: i64, file_blocks: u64) -> Place {
        let Some(last) = last else { return Place { first: 0, blocks } };
        let end = last.first + u64::from(last.blocks);
        let first = match end.checked_add_signed(gap_blocks) {
            Some(first) => first,
            None => {
                let top = file_blocks.saturating_sub(gap_blocks.unsigned_abs());
                top.min(file_blocks - u64::from(blocks))
            }
        };
        if first + u64::from(self.sizes.min()) > file_blocks {
            return Place { first: 0, blocks };
        }
        self.fitted(first, blocks, file_blocks)
    }

    /// Returns the next range of a run, or `None` if the run reaches the end of the file.
    fn in_run(
        &self,
        last: Option<Place>,
        blocks: u32,
        sequencer: Sequencer,
        file_blocks: u64,
    ) -> Option<Place> {
        let first = match (last, sequencer) {
            (None, _) => 0,
            (Some(last), Sequencer::Sequential) => last.first + u64::from(last.blocks),
            (Some(last), Sequencer::Identical) => last.first,
        };
        let fits = first + u64::from(self.sizes.min()) <= file_blocks;
        fits.then(|| self.fitted(first, blocks, file_blocks))
    }
}

impl Workload for FioJob {
    #[inline]
    fn poll(&mut self, now: Instant) -> Step {
        loop {
            if self.phase != Phase::Running {
                match self.aside(now) {
                    Some(step) => return step,
                    None => continue,
                }
            }
            if self.exhausted(now) {
                self.finish();
                continue;
            }
            if now >= self.think_at {
                self.begin_pause(now);
                continue;
            }
            if self.in_flight >= self.iodepth || matches!(self.pair, Pair::Trimming(_)) {
                return Step::Blocked;
            }
            let direction = self.direction();
            return match self.due(direction, now) {
                Ok((direction, intended)) => Step::Submit(self.request(direction, intended)),
                Err(later) => Step::Wait(later.min(self.ends_at).min(self.think_at)),
            };
        }
    }

    #[inline]
    fn completed(&mut self, now: Instant, token: u32) {
        assert!(self.in_flight > 0, "a completion belongs to a request in flight");
        self.in_flight -= 1;
        if self.steady.is_some() {
            self.examine(now, token);
        }
        let class = token & ((1 << CLASS_BITS) - 1);
        if class != CLASS_IO {
            self.completed_special(now, class);
        }
    }

    fn measured(&self, now: Instant) -> bool {
        self.spec.stats && now >= self.counts_from
    }

    fn began(&self) -> Option<Instant> {
        self.began
    }

    fn between(&self, kind: Kind) -> [Option<Instant>; 2] {
        match kind {
            Kind::Read if self.mix.uses(Direction::Read) => [None, None],
            Kind::Read => [self.reads_back_from, None],
            Kind::Flush => [None, None],
            _ => [None, self.reads_back_from],
        }
    }

    fn verifies(&self) -> bool {
        self.spec.verify == Some(Verify::Compare)
    }

    fn is_verification(&self, token: u32) -> bool {
        token & ((1 << CLASS_BITS) - 1) == CLASS_VERIFY
    }

    fn log(&self) -> Option<LogSpec> {
        self.spec.log.is_wanted().then(|| self.spec.log.clone())
    }

    fn steady_state(&self) -> Option<SteadyState> {
        Some(self.steady.as_ref()?.search.found())
    }

    fn planned(&self) -> Option<Duration> {
        let ramp_ns = self.spec.ramp.as_nanos();
        let runtime = self.spec.limits.runtime?;
        Some(Duration::from_nanos(runtime.as_nanos().saturating_add(ramp_ns)))
    }
}

#[cfg(test)]
#[path = "job_tests.rs"]
mod tests;
