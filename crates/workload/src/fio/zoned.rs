//! `zonemode=zbd`: a job whose writes go to the write pointers of zones, and whose reads stay below them.
//!
//! Place in the data flow: wraps a [`FioJob`] between it and the world. The job chooses addresses as ever; of each address only the zone
//! counts. The jobs of a world share [`Zones`], as the jobs of fio share the zones of a device.
//!
//! Invariants: a zone is reset only while no request of any job is in flight in it, and no write follows before the reset has completed; a
//! read touches only what a completed write has brought.
//!
//! As in fio, a write to a full zone resets it first; a read of a zone without data is moved to the next one that has some; where there is
//! none, a job that also writes writes instead, and any other job ends.

use super::job::FioJob;
use super::spec::Direction;
use flashweir_core::{Duration, Instant, Lba};
use flashweir_sim::measure::{LogSpec, SteadyState};
use flashweir_sim::request::{Kind, Request};
use flashweir_sim::workload::{Step, Workload};
use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// Token of a reset; the job's own tokens are smaller.
const RESET: u32 = u32::MAX;
/// Time after which a job looks again whether a zone is quiet.
const LOOK_AGAIN: Duration = Duration::from_micros(10);

/// One zone; addresses are in sectors from its start.
#[derive(Clone, Debug, Default)]
struct Zone {
    /// Where the next write goes.
    pointer: u64,
    /// Writes in flight, by their first sector.
    writes: BTreeSet<u64>,
    reads: u32,
    is_resetting: bool,
}

impl Zone {
    /// End of what can be read.
    fn readable(&self) -> u64 {
        self.writes.first().copied().unwrap_or(self.pointer)
    }

    fn is_quiet(&self) -> bool {
        self.writes.is_empty() && self.reads == 0 && !self.is_resetting
    }
}

/// The zones of a device, and of all jobs that use it.
#[derive(Clone, Debug)]
pub struct Zones {
    zones: Arc<Mutex<Vec<Zone>>>,
    blocks: u64,
    /// The least that a device writes, in sectors.
    unit: u64,
}

impl Zones {
    /// Empty zones of `blocks` sectors each, in a device that writes multiples of `unit` sectors.
    pub fn new(count: u32, blocks: u64, unit: u64) -> Self {
        Self { zones: Arc::new(Mutex::new(vec![Zone::default(); count as usize])), blocks, unit }
    }

    fn lock(&self) -> MutexGuard<'_, Vec<Zone>> {
        self.zones.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// A request of the job that is under way, by its token.
#[derive(Clone, Copy, Debug)]
struct Flight {
    kind: Kind,
    zone: usize,
    first: u64,
}

/// The outcome of placing a request.
enum Placed {
    At(Request),
    /// The zone has to be reset first.
    Reset(usize),
    /// The zone is in use.
    Busy,
    /// Nothing can be read.
    Nowhere,
}

/// A job on zones; see the module.
#[derive(Debug)]
pub struct Zoned {
    job: FioJob,
    zones: Zones,
    /// Zones that the job may use, and how many of them may be written in part at a time.
    range: std::ops::Range<usize>,
    open_max: u32,
    flights: BTreeMap<u32, Flight>,
    /// A request of the job that waits for its zone.
    waiting: Option<Request>,
    /// The zone that is being reset.
    resetting: Option<usize>,
    has_ended: bool,
}

impl Zoned {
    /// Puts a job whose spec has zone rules onto zones.
    pub fn new(job: FioJob, zones: &Zones) -> Self {
        let spec = job.spec();
        let first = spec.region.first.0 / zones.blocks;
        let end = (spec.region.first.0 + spec.region.blocks).div_ceil(zones.blocks);
        Self {
            range: first as usize..end as usize,
            open_max: spec.zones.map_or(0, |rules| rules.open_max),
            zones: zones.clone(),
            flights: BTreeMap::new(),
            waiting: None,
            resetting: None,
            has_ended: false,
            job,
        }
    }

    fn place(&self, zones: &[Zone], request: Request) -> Placed {
        let zone = ((request.lba.0 / self.zones.blocks) as usize).clamp(self.range.start, self.range.end - 1);
        match request.kind {
            Kind::Read => match self.place_read(zones, zone, request) {
                Placed::Nowhere if self.job.spec().mix.uses(Direction::Write) => {
                    self.place_write(zones, zone, Request { kind: Kind::Write, ..request })
                }
                placed => placed,
            },
            Kind::Write => self.place_write(zones, zone, request),
            Kind::Trim | Kind::WriteZeroes | Kind::Share | Kind::Flush => Placed::At(request),
        }
    }

    fn place_read(&self, zones: &[Zone], zone: usize, request: Request) -> Placed {
        let has_data = |at: &usize| zones[*at].readable() > 0 && !zones[*at].is_resetting;
        let mut others = (zone..self.range.end).chain(self.range.start..zone);
        let Some(at) = others.find(has_data) else {
            let comes = self.range.clone().any(|at| !zones[at].writes.is_empty() || zones[at].is_resetting);
            return if comes { Placed::Busy } else { Placed::Nowhere };
        };
        let readable = zones[at].readable();
        let blocks = u64::from(request.blocks).min(readable);
        let asked = request.lba.0 % self.zones.blocks;
        // Behind the write pointer, as many requests from it as the address lies behind it.
        let first = match asked + blocks <= readable {
            true => asked,
            false => asked % (readable / blocks * blocks) / blocks * blocks,
        };
        let lba = Lba(at as u64 * self.zones.blocks + first);
        Placed::At(Request { lba, blocks: blocks as u32, ..request })
    }

    fn place_write(&self, zones: &[Zone], asked: usize, request: Request) -> Placed {
        let all = self.zones.blocks;
        let is_open = |at: &usize| (1..all).contains(&zones[*at].pointer);
        let zone = match self.open_max > 0 && !is_open(&asked) {
            true => {
                let open: Vec<usize> = self.range.clone().filter(is_open).collect();
                let has_room = open.len() < self.open_max as usize;
                if has_room { asked } else { open[asked % open.len()] }
            }
            false => asked,
        };
        let Zone { pointer, is_resetting, .. } = zones[zone];
        if is_resetting {
            return Placed::Busy;
        }
        if pointer == all {
            return if zones[zone].is_quiet() { Placed::Reset(zone) } else { Placed::Busy };
        }
        // Less than a whole request is left at the end of a zone that requests do not divide.
        let blocks = u64::from(request.blocks).min(all - pointer).next_multiple_of(self.zones.unit);
        let lba = Lba(zone as u64 * all + pointer);
        Placed::At(Request { lba, blocks: blocks as u32, ..request })
    }

    /// Submits the request, or what has to come before it.
    fn submit(&mut self, now: Instant, request: Request) -> Step {
        let shared = self.zones.clone();
        let mut zones = shared.lock();
        match self.place(&zones, request) {
            Placed::At(request) => {
                self.waiting = None;
                let zone = (request.lba.0 / self.zones.blocks) as usize;
                let first = request.lba.0 % self.zones.blocks;
                match request.kind {
                    Kind::Read => zones[zone].reads += 1,
                    Kind::Write => {
                        zones[zone].writes.insert(first);
                        zones[zone].pointer += u64::from(request.blocks);
                    }
                    Kind::Trim | Kind::WriteZeroes | Kind::Share | Kind::Flush => {}
                }
                self.flights.insert(request.token, Flight { kind: request.kind, zone, first });
                Step::Submit(request)
            }
            Placed::Reset(zone) => {
                self.waiting = Some(request);
                zones[zone].is_resetting = true;
                self.resetting = Some(zone);
                let lba = Lba(zone as u64 * self.zones.blocks);
                let blocks = self.zones.blocks as u32;
                Step::Submit(Request { kind: Kind::Trim, lba, blocks, fua: false, token: RESET, ..request })
            }
            Placed::Busy => {
                self.waiting = Some(request);
                Step::Wait(now + LOOK_AGAIN)
            }
            Placed::Nowhere => {
                self.has_ended = true;
                Step::Done
            }
        }
    }
}

impl Workload for Zoned {
    fn poll(&mut self, now: Instant) -> Step {
        if self.has_ended {
            return Step::Done;
        }
        if self.resetting.is_some() {
            return Step::Blocked;
        }
        if let Some(request) = self.waiting {
            return self.submit(now, request);
        }
        match self.job.poll(now) {
            Step::Submit(request) => self.submit(now, request),
            other => other,
        }
    }

    fn completed(&mut self, now: Instant, token: u32) {
        let shared = self.zones.clone();
        let mut zones = shared.lock();
        if token == RESET {
            let zone = self.resetting.take().expect("a reset was submitted");
            zones[zone] = Zone::default();
            return;
        }
        let Flight { kind, zone, first } = self.flights.remove(&token).expect("a request completes once");
        match kind {
            Kind::Read => zones[zone].reads -= 1,
            Kind::Write => _ = zones[zone].writes.remove(&first),
            Kind::Trim | Kind::WriteZeroes | Kind::Share | Kind::Flush => {}
        }
        drop(zones);
        self.job.completed(now, token);
    }

    fn measured(&self, now: Instant) -> bool {
        self.job.measured(now)
    }

    fn began(&self) -> Option<Instant> {
        self.job.began()
    }

    fn log(&self) -> Option<LogSpec> {
        self.job.log()
    }

    fn steady_state(&self) -> Option<SteadyState> {
        self.job.steady_state()
    }

    fn planned(&self) -> Option<Duration> {
        self.job.planned()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::fio::parse_job_file;
    use flashweir_core::{Bytes, RandomStream};

    const ZONE: u64 = 64;

    /// Runs jobs on a model of a device with six zones that completes requests in any order; returns the number of resets.
    fn run(text: &str, seed: u64) -> u32 {
        let capacity = Bytes(6 * ZONE * 512);
        let specs = parse_job_file("z.fio", text, capacity).unwrap().jobs;
        let zones = Zones::new(6, ZONE, 8);
        let mut jobs: Vec<Zoned> =
            specs.into_iter().map(|spec| Zoned::new(FioJob::new(spec, seed), &zones)).collect();
        let mut random = RandomStream::new(seed, "zoned model");
        let (mut pointers, mut now, mut resets) = (vec![0; 6], Instant::ZERO, 0);
        let mut flying: Vec<(usize, Request)> = Vec::new();
        for _ in 0..200_000 {
            let mut waits = None;
            for (at, job) in jobs.iter_mut().enumerate() {
                loop {
                    match job.poll(now) {
                        Step::Submit(request) => {
                            let (zone, first) = ((request.lba.0 / ZONE) as usize, request.lba.0 % ZONE);
                            let end = first + u64::from(request.blocks);
                            let is_of = |kind: Kind| {
                                flying
                                    .iter()
                                    .any(|(_, other)| other.kind == kind && other.lba.0 / ZONE == zone as u64)
                            };
                            match request.kind {
                                Kind::Write => {
                                    assert_eq!(first, pointers[zone], "a write is at the write pointer");
                                    assert!(end <= ZONE && !is_of(Kind::Trim));
                                    pointers[zone] = end;
                                }
                                Kind::Read => assert!(end <= pointers[zone] && !is_of(Kind::Trim)),
                                Kind::Trim => {
                                    assert!(
                                        !is_of(Kind::Write) && !is_of(Kind::Read),
                                        "a zone in use is reset"
                                    );
                                    assert_eq!((first, request.blocks), (0, ZONE as u32));
                                    pointers[zone] = 0;
                                    resets += 1;
                                }
                                Kind::WriteZeroes | Kind::Share | Kind::Flush => {}
                            }
                            flying.push((at, request));
                        }
                        Step::Wait(until) => {
                            waits = Some(until);
                            break;
                        }
                        Step::Blocked | Step::Done => break,
                    }
                }
            }
            match (flying.is_empty(), waits) {
                (true, None) => return resets,
                (true, Some(until)) => now = until,
                (false, _) => {
                    let (at, request) = flying.swap_remove(random.below(flying.len() as u64) as usize);
                    now += Duration::from_micros(3);
                    jobs[at].completed(now, request.token);
                }
            }
        }
        panic!("it never ends: {flying:?}");
    }

    #[test]
    fn jobs_keep_the_rules_of_zones() {
        for seed in 0..20 {
            let fill = "[a]\nzonemode=zbd\nrw=write\nbs=4k\niodepth=8\n";
            assert_eq!(run(fill, seed), 0, "each zone is written once");
            let twice = run(&format!("{fill}loops=2\n"), seed);
            assert_eq!(twice, 6, "each full zone is reset before it is written again");
            for more in ["", "max_open_zones=2\n", "bs=4k,20k\n", "size=50%\noffset=50%\n"] {
                let mixed =
                    format!("[a]\nzonemode=zbd\nrw=randrw\nbs=8k\niodepth=8\nloops=4\nnumjobs=2\n{more}");
                assert!(run(&mixed, seed) > 0, "{more}");
            }
        }
    }

    #[test]
    fn a_job_that_finds_nothing_to_read_ends() {
        assert_eq!(run("[a]\nzonemode=zbd\nrw=randread\nbs=4k\n", 1), 0);
    }
}
