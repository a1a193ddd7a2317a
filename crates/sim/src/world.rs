//! A world: one device, one link, some jobs, one agenda.
//!
//! Place in the data flow: a job's request becomes a command on the link, arrives at the device, and its
//! completion goes back; each of these is a moment on the agenda.
//!
//! Invariants: a world is a function of configuration and seed; each request completes exactly once, or the
//! world panics; nothing happens after the last job has ended but what the device owes.

use crate::measure::{DeviceTotals, IoLog, MetricValue, Recorder, RunResult, Sampler, Snapshot, TraceHash};
use crate::request::{Kind, Request};
use crate::timeline::{Asked, Findings, Timeline};
use crate::workload::{Step, Workload};
use flashweir_core::command::{Done, Payload, pattern};
use flashweir_core::random::mix;
use flashweir_core::{Agenda, Command, Data, Duration, Instant, Link, Lpn, Op};
use flashweir_device::{Device, DeviceMetrics, Effect, Event, NandMetrics};
use std::collections::{BTreeMap, VecDeque};

/// One job of a world.
#[derive(Debug)]
pub struct JobSetup {
    /// Name in reports.
    pub name: String,
    /// Options as text, for reports.
    pub options: BTreeMap<String, String>,
    /// What it does.
    pub workload: Box<dyn Workload>,
    /// A job starts when all jobs of lower groups have ended.
    pub group: u32,
    /// Results are taken from this time after its start on.
    pub ramp: Duration,
    /// Jobs with the same number are reported as one.
    pub report_group: u32,
    /// Whether its results are reported.
    pub stats: bool,
}

#[derive(Debug)]
struct Job {
    setup: JobSetup,
    started: Option<Instant>,
    done: bool,
    /// When it had nothing more to submit.
    done_at: Instant,
    in_flight: u32,
    wake: Option<Instant>,
    recorder: Option<Recorder>,
    log: Option<Box<IoLog>>,
    /// The write that each mapping unit had last, where the job reads them back.
    versions: Option<BTreeMap<u64, u64>>,
    /// Number among the jobs of the course.
    sampled_as: usize,
    queue: u16,
    /// Last completion.
    ended: Instant,
}

impl Job {
    /// What is wrong with `units`, which were read back, if anything is.
    fn difference(&self, request: &Request, units: &[Payload], lbas_per_unit: u64) -> Option<String> {
        let versions = self.versions.as_ref()?;
        if request.kind != Kind::Read || !self.setup.workload.is_verification(request.token) {
            return None;
        }
        let first = request.lba.0 / lbas_per_unit;
        let is_wrong = |(unit, payload): &(u64, &Payload)| {
            let expected = versions.get(unit).map(|number| Payload::Tag(pattern(*number, Lpn(*unit))));
            expected.is_some_and(|expected| expected != **payload)
        };
        let (unit, _) = (first..).zip(units).find(is_wrong)?;
        let at = unit * lbas_per_unit * 512;
        Some(format!("verify: [{}] reads back something else at {at} than it wrote", self.setup.name))
    }
}

/// A request between submission and completion.
#[derive(Debug)]
struct Flight {
    job: u32,
    request: Request,
    submitted: Instant,
    command: Option<Command>,
}

#[derive(Clone, Copy, Debug)]
enum Moment {
    Arrive(u32),
    Device(Event),
    Complete(u32),
    Poll(u32),
}

/// How far a run is.
#[derive(Clone, Copy, Debug)]
pub struct Progress {
    /// Virtual time.
    pub now: Instant,
    /// Requests completed.
    pub requests: u64,
    /// Virtual time at which the run is expected to end, where that is known.
    pub planned: Option<Instant>,
}

/// Moments between two reports of progress.
const REPORT_EVERY: u64 = 1 << 16;

/// One device, one link, some jobs.
#[derive(Debug)]
pub struct World {
    agenda: Agenda<Moment>,
    link: Link,
    lbas_per_unit: u64,
    device: Device,
    jobs: Vec<Job>,
    flights: Vec<Flight>,
    free: Vec<u32>,
    /// Requests that wait for room on their queue.
    waiting: Vec<VecDeque<u32>>,
    effects: Vec<Effect>,
    interval: Duration,
    requests: u64,
    errors: u64,
    first_error: Option<String>,
    hash: u64,
    baseline: DeviceMetrics,
    nand_baseline: NandMetrics,
    timeline: Option<Box<Timeline>>,
    sampler: Option<Box<Sampler>>,
    /// When the next sample is due.
    sample_at: Instant,
}

/// No sample is ever due.
const NEVER: Instant = Instant::from_nanos(u64::MAX);

impl World {
    /// A world in which `jobs` begin at time zero, and their results are kept by `interval`.
    pub fn new(device: Device, jobs: Vec<JobSetup>, interval: Duration) -> Self {
        let link = Link::new(device.config().link.clone());
        let queues = link.config().queues;
        let jobs = jobs.into_iter().enumerate().map(|(i, setup)| Job {
            setup,
            started: None,
            done: false,
            done_at: Instant::ZERO,
            in_flight: 0,
            wake: None,
            recorder: None,
            log: None,
            versions: None,
            sampled_as: 0,
            queue: (i % usize::from(queues)) as u16,
            ended: Instant::ZERO,
        });
        Self {
            jobs: jobs.collect(),
            agenda: Agenda::default(),
            flights: Vec::new(),
            free: Vec::new(),
            waiting: vec![VecDeque::new(); usize::from(queues)],
            effects: Vec::new(),
            requests: 0,
            errors: 0,
            first_error: None,
            hash: 0,
            baseline: *device.metrics(),
            nand_baseline: *device.nand_metrics(),
            timeline: None,
            sampler: None,
            sample_at: NEVER,
            interval,
            lbas_per_unit: device.geometry().lbas_per_unit,
            link,
            device,
        }
    }

    /// Lets `make` follow what happens from now on; the world has not begun.
    pub fn trace(&mut self, make: impl FnOnce(&mut Device) -> Timeline) {
        self.timeline = Some(Box::new(make(&mut self.device)));
    }

    /// Ends what [`Self::trace`] began.
    pub fn end_trace(&mut self) -> Option<Findings> {
        Some(self.timeline.take()?.finish(self.agenda.now(), &mut self.device))
    }

    /// Keeps the course of the run, which has not begun, for [`RunResult::course`]. Nothing else changes by it.
    pub fn keep_course(&mut self) {
        let mut sampler = Sampler::over_time(Snapshot::of(&self.device, Instant::ZERO));
        let mut names: BTreeMap<u32, String> = BTreeMap::new();
        for setup in self.jobs.iter().map(|job| &job.setup).filter(|setup| setup.stats) {
            names.entry(setup.report_group).or_insert_with(|| setup.name.clone());
        }
        for job in &mut self.jobs {
            job.sampled_as = names.keys().take_while(|group| **group < job.setup.report_group).count();
        }
        sampler.keep_apart(names.into_values().collect());
        self.sample_at = Instant::from_nanos(sampler.due());
        self.sampler = Some(Box::new(sampler));
    }

    /// Takes the samples that are due before `now`.
    #[cold]
    fn sample(&mut self, now: Instant) {
        let Some(sampler) = &mut self.sampler else { return };
        while self.sample_at < now {
            sampler.sample(Snapshot::of(&self.device, self.sample_at));
            self.sample_at = Instant::from_nanos(sampler.due());
        }
    }

    /// Runs until every job has ended; `progress` is called now and then and stops the run by returning
    /// false. Says whether the run came to its end.
    pub fn run(&mut self, mut progress: impl FnMut(Progress) -> bool) -> bool {
        self.start_group(Instant::ZERO);
        let mut moments = 0;
        let mut ended = false;
        while let Some((now, moment)) = self.agenda.pop() {
            if now > self.sample_at {
                self.sample(now);
            }
            match moment {
                Moment::Device(event) => {
                    self.device.event(now, event, &mut self.effects);
                    self.carry_out(now);
                }
                Moment::Arrive(flight) => {
                    let command =
                        self.flights[flight as usize].command.take().expect("a command arrives once");
                    self.device.command(now, command, &mut self.effects);
                    self.carry_out(now);
                }
                Moment::Complete(flight) => {
                    self.complete(now, flight);
                    ended = self.has_ended();
                }
                Moment::Poll(job) => {
                    let job = job as usize;
                    if self.jobs[job].wake == Some(now) {
                        self.jobs[job].wake = None;
                        self.poll(now, job);
                        ended = self.has_ended();
                    }
                }
            }
            moments += 1;
            if moments % REPORT_EVERY == 0 && !progress(self.progress(now)) {
                return false;
            }
            if ended {
                break;
            }
        }
        let left = self.jobs.iter().filter(|job| !job.done || job.in_flight > 0).count();
        assert_eq!(
            left,
            0,
            "{left} jobs never ended: requests were lost at {:?}\n{}",
            self.agenda.now(),
            self.device.describe()
        );
        self.device.audit();
        true
    }

    /// After all jobs have ended, lets the device finish what it does on its own, and sets its clock back,
    /// so that it can begin in another world.
    pub fn settle(mut self) -> Device {
        while let Some((now, moment)) = self.agenda.pop() {
            if let Moment::Device(event) = moment {
                self.device.event(now, event, &mut self.effects);
                self.carry_out(now);
            }
        }
        self.device.reset_clock();
        self.device
    }

    fn has_ended(&self) -> bool {
        self.jobs.iter().all(|job| job.done && job.in_flight == 0)
    }

    fn progress(&self, now: Instant) -> Progress {
        let planned = self
            .jobs
            .iter()
            .filter(|job| !job.done)
            .map(|job| Some(job.started? + job.setup.workload.planned()?));
        let planned = planned.max().flatten();
        Progress { now, requests: self.requests, planned }
    }

    /// Starts the lowest group that has not started, if all before it have ended.
    fn start_group(&mut self, now: Instant) {
        loop {
            let running =
                self.jobs.iter().any(|job| job.started.is_some() && !(job.done && job.in_flight == 0));
            let next = self.jobs.iter().filter(|job| job.started.is_none()).map(|job| job.setup.group).min();
            let (false, Some(group)) = (running, next) else { return };
            for job in 0..self.jobs.len() {
                if self.jobs[job].setup.group == group && self.jobs[job].started.is_none() {
                    self.jobs[job].started = Some(now);
                    self.jobs[job].ended = now;
                    let workload = &self.jobs[job].setup.workload;
                    let (log, verifies) = (workload.log(), workload.verifies());
                    self.jobs[job].versions = verifies.then(BTreeMap::new);
                    self.jobs[job].log = log.map(|spec| Box::new(IoLog::new(spec, now)));
                    self.poll(now, job);
                }
            }
        }
    }

    fn poll(&mut self, now: Instant, job: usize) {
        while !self.jobs[job].done {
            match self.jobs[job].setup.workload.poll(now) {
                Step::Submit(request) => self.submit(now, job, request),
                Step::Wait(at) => {
                    debug_assert!(at > now, "a wait ends later");
                    if self.jobs[job].wake.is_none_or(|wake| at < wake) {
                        self.jobs[job].wake = Some(at);
                        self.agenda.at(at, Moment::Poll(job as u32));
                    }
                    return;
                }
                Step::Blocked => {
                    assert!(self.jobs[job].in_flight > 0, "a job waits for a completion that cannot come");
                    return;
                }
                Step::Done => {
                    self.jobs[job].done = true;
                    self.jobs[job].done_at = now;
                }
            }
        }
    }

    fn submit(&mut self, now: Instant, job: usize, request: Request) {
        let flight = Flight { job: job as u32, request, submitted: now, command: None };
        let at = match self.free.pop() {
            Some(free) => {
                self.flights[free as usize] = flight;
                free
            }
            None => {
                self.flights.push(flight);
                self.flights.len() as u32 - 1
            }
        };
        let entry = &mut self.jobs[job];
        entry.in_flight += 1;
        if let Some(sampler) = &mut self.sampler {
            sampler.submitted(now);
        }
        if let Some(recorder) = &mut entry.recorder {
            recorder.submitted_at_depth(entry.in_flight);
        } else if entry.setup.ramp == Duration::ZERO || entry.setup.workload.measured(now) {
            let start = entry.started.unwrap_or(now) + entry.setup.ramp;
            let mut recorder = Recorder::new(start.min(now), self.interval);
            recorder.submitted_at_depth(entry.in_flight);
            entry.recorder = Some(recorder);
        }
        let queue = entry.queue;
        if let Some(timeline) = &mut self.timeline {
            let Request { kind, lba, blocks, fua, intended, .. } = request;
            timeline.submitted(u64::from(at), Asked { kind, lba, blocks, fua, queue, intended });
        }
        if self.link.has_room(queue) && self.waiting[usize::from(queue)].is_empty() {
            self.send(now, at);
        } else {
            self.waiting[usize::from(queue)].push_back(at);
        }
    }

    /// Puts a request on the link.
    fn send(&mut self, now: Instant, at: u32) {
        let flight = &mut self.flights[at as usize];
        let Request { kind, lba, blocks, fua, .. } = flight.request;
        let op = match kind {
            Kind::Read => Op::Read { lba, blocks },
            Kind::Write => {
                let number = self.requests ^ u64::from(at) << 40;
                if let Some(versions) = &mut self.jobs[flight.job as usize].versions {
                    let units = lba.0 / self.lbas_per_unit..(lba.0 + u64::from(blocks)) / self.lbas_per_unit;
                    versions.extend(units.map(|unit| (unit, number)));
                }
                Op::Write { lba, blocks, data: Data::Pattern(number) }
            }
            Kind::Trim => Op::Trim { lba, blocks },
            Kind::WriteZeroes => Op::WriteZeroes { lba, blocks },
            Kind::Flush => Op::Flush,
        };
        let mut command = Command::new(u64::from(at), op);
        command.queue = self.jobs[flight.job as usize].queue;
        command.fua = fua;
        flight.submitted = now;
        if let Some(timeline) = &mut self.timeline {
            timeline.sent(now, u64::from(at));
        }
        // The look-up at arrival would wait for memory; begun here, it is there by then.
        self.device.prefetch(Lpn(lba.0 / self.lbas_per_unit));
        let arrives = self.link.submit(now, &command);
        flight.command = Some(command);
        self.agenda.at(arrives, Moment::Arrive(at));
    }

    /// Does what the device asked for.
    fn carry_out(&mut self, now: Instant) {
        if let Some(timeline) = &mut self.timeline {
            timeline.device(now, &mut self.device);
        }
        let mut effects = std::mem::take(&mut self.effects);
        for effect in effects.drain(..) {
            match effect {
                Effect::At(at, event) => self.agenda.at(at, Moment::Device(event)),
                Effect::Accepted { .. } => {}
                Effect::Complete(completion) => {
                    let flight = completion.id.0 as u32;
                    let request = &self.flights[flight as usize].request;
                    let up = match (request.kind, &completion.result) {
                        (Kind::Read, Ok(_)) => u64::from(request.blocks) * 512,
                        _ => 0,
                    };
                    let job = &self.jobs[self.flights[flight as usize].job as usize];
                    let wrong = match &completion.result {
                        Err(error) => Some(error.to_string()),
                        Ok(Done::Data(units)) => job.difference(request, units, self.lbas_per_unit),
                        Ok(_) => None,
                    };
                    if let Some(wrong) = wrong {
                        self.errors += 1;
                        self.first_error.get_or_insert(wrong);
                    }
                    let seen = self.link.complete(now, up);
                    self.agenda.at(seen, Moment::Complete(flight));
                }
            }
        }
        self.effects = effects;
    }

    fn complete(&mut self, now: Instant, at: u32) {
        let Flight { job, request, submitted, .. } = self.flights[at as usize];
        self.free.push(at);
        self.requests += 1;
        self.hash = mix(self.hash ^ now.as_nanos() ^ u64::from(at) << 48);
        let job = job as usize;
        let entry = &mut self.jobs[job];
        self.link.release(entry.queue);
        if let Some(next) = self.waiting[usize::from(entry.queue)].pop_front() {
            self.send(now, next);
        }
        let entry = &mut self.jobs[job];
        entry.in_flight -= 1;
        entry.ended = now;
        if let Some(sampler) = &mut self.sampler {
            sampler.completed(now);
            if entry.setup.stats {
                let began = request.intended.min(submitted);
                let bytes = u64::from(request.blocks) * 512;
                sampler.record_of(entry.sampled_as, request.kind, bytes, now.since(began));
            }
        }
        let measured = entry.setup.ramp == Duration::ZERO || entry.setup.workload.measured(now);
        if measured && let Some(recorder) = &mut entry.recorder {
            let bytes = u64::from(request.blocks) * 512;
            recorder.record(request.kind, bytes, request.intended.min(submitted), submitted, now);
            if let Some(log) = &mut entry.log {
                let place = [request.lba.0 * 512, bytes];
                log.record(request.kind, place, [request.intended.min(submitted), submitted, now]);
            }
        }
        if let Some(timeline) = &mut self.timeline {
            timeline.seen(now, u64::from(at), measured && entry.setup.stats);
        }
        entry.setup.workload.completed(now, request.token);
        self.poll(now, job);
        if self.jobs[job].done && self.jobs[job].in_flight == 0 {
            self.start_group(now);
        }
    }

    /// A hash over every completion and its time; equal worlds have equal hashes.
    pub fn trace_hash(&self) -> u64 {
        self.hash
    }

    /// Requests completed.
    pub fn requests(&self) -> u64 {
        self.requests
    }

    /// Moments that have passed or wait.
    pub fn moments(&self) -> u64 {
        self.agenda.scheduled()
    }

    /// The device.
    pub fn device(&self) -> &Device {
        &self.device
    }

    /// The logs that jobs asked for, in the order of the jobs.
    pub fn take_logs(&mut self) -> Vec<IoLog> {
        let logs =
            self.jobs.iter_mut().filter_map(|job| Some(job.log.take()?.finish(job.ended.max(job.done_at))));
        logs.collect()
    }

    /// Ends the world and gives what it measured, and the device.
    pub fn finish(self, device_name: &str, workload_name: &str, seed: u64) -> (RunResult, Device) {
        let now = self.agenda.now();
        let metrics = self.device.metrics().since(&self.baseline);
        let unit = self.device.geometry().unit_bytes;
        let mut result = RunResult {
            device: device_name.to_string(),
            workload: workload_name.to_string(),
            seed,
            virtual_time_ns: now.as_nanos(),
            totals: DeviceTotals::of(&metrics, unit),
            ..RunResult::default()
        };
        result.add_metrics("device", &metrics.list());
        let nand = self.device.nand_metrics().since(&self.nand_baseline);
        result.add_metrics("nand", &nand.list());
        if let Some(share) = nand.multi_plane_share() {
            result.metrics.insert("nand.host_multi_plane_share".into(), MetricValue::Ratio(share));
        }
        let count = |value| MetricValue::Count(value);
        let span = now.as_nanos().max(1) as f64;
        let share = |times: Vec<Duration>| {
            let sum: u64 = times.iter().map(|time| time.as_nanos()).sum();
            MetricValue::Ratio(sum as f64 / times.len().max(1) as f64 / span)
        };
        let (stations, channels) = (self.device.station_busy(), self.device.channel_busy());
        result.metrics.insert("nand.station_utilisation".into(), share(stations));
        result.metrics.insert("nand.channel_utilisation".into(), share(channels));
        result.metrics.insert("host.errors".into(), count(self.errors));
        result.trace_hash = TraceHash(self.hash);
        if let Some(sampler) = self.sampler {
            result.course = Some(Box::new(sampler.finish(now.as_nanos(), &self.device)));
        }
        let mut merged: BTreeMap<u32, Vec<_>> = BTreeMap::new();
        for job in self.jobs.into_iter().filter(|job| job.setup.stats) {
            let ended = job.ended;
            let recorder = job.recorder.unwrap_or_else(|| Recorder::new(ended, self.interval));
            let mut finished = recorder.finish(&job.setup.name, job.setup.options, ended);
            finished.steady_state = job.setup.workload.steady_state();
            merged.entry(job.setup.report_group).or_default().push(finished);
        }
        result.jobs = merged.values().filter_map(|jobs| crate::measure::JobResult::merge(jobs)).collect();
        (result, self.device)
    }

    /// The first error that the device answered, and how many there were.
    pub fn errors(&self) -> (u64, Option<&str>) {
        (self.errors, self.first_error.as_deref())
    }
}
