//! A world: one device, one link, some jobs, one agenda.
//!
//! Place in the data flow: a job's request becomes a command on the link, or on a block layer above it, arrives at the
//! device, and its completion returns; each of these steps is an event of the engine below.
//!
//! Invariants: a world is a function of configuration and seed; each request completes exactly once, or the world
//! panics; after the last job has ended, only the device's pending work is executed.
//!
//! Requests on a block layer leave when the jobs have submitted all requests of an instant, so that these can be
//! merged.

use crate::engine::{self, Engine, Happened, Host, Own, block_layer, layers_of};
use crate::host_ftl::{Disk, seen_above};
use crate::measure::{DeviceTotals, IoLog, MetricValue, Recorder, RunResult, Sampler, Snapshot, TraceHash};
use crate::request::{Kind, Request};
use crate::timeline::{Findings, Timeline};
use crate::workload::{Step, Workload};
use flashweir_core::command::{APPEND_NAMESPACE, Contents, Done, Payload, SegmentId, SharePair, pattern};
use flashweir_core::random::mix;
use flashweir_core::{Command, Data, Duration, Instant, Lba, Lpn, Op};
use flashweir_device::config::FirmwareKind;
use flashweir_device::{Device, DeviceMetrics, HandleCounts, NandMetrics};
use flashweir_host::{BlockLayer, Chain, HostConfig, HostFtl, HostFtlMetrics, HostMetrics};
use std::collections::BTreeMap;

/// One job of a world.
#[derive(Debug)]
pub struct JobSetup {
    /// Name in reports.
    pub name: String,
    /// Options as text, for reports.
    pub options: BTreeMap<String, String>,
    /// Workload that it runs.
    pub workload: Box<dyn Workload>,
    /// A job starts when all jobs of lower groups have ended.
    pub group: u32,
    /// Ramp: results count from this time after its start.
    pub ramp: Duration,
    /// Jobs with the same number are reported as one.
    pub report_group: u32,
    /// Whether its results are reported.
    pub stats: bool,
}

impl JobSetup {
    /// Makes a job that starts with the world, has no options to report, and is reported by itself.
    pub fn new(name: impl Into<String>, workload: impl Workload + 'static) -> Self {
        Self {
            name: name.into(),
            options: BTreeMap::new(),
            workload: Box::new(workload),
            group: 0,
            ramp: Duration::ZERO,
            report_group: 0,
            stats: true,
        }
    }

    /// Whether a completion now is past the ramp.
    #[inline]
    fn is_measured(&self, now: Instant) -> bool {
        self.ramp == Duration::ZERO || self.workload.measured(now)
    }
}

#[derive(Debug)]
struct Job {
    setup: JobSetup,
    started: Option<Instant>,
    done: bool,
    /// Time at which it had no further request.
    done_at: Instant,
    in_flight: u32,
    wake: Option<Instant>,
    recorder: Option<Recorder>,
    log: Option<Box<IoLog>>,
    /// Number of the last write of each mapping unit, if the job reads them back.
    versions: Option<BTreeMap<u64, u64>>,
    /// Its number among the jobs of the course.
    sampled_as: usize,
    queue: u16,
    /// Time of the last completion.
    ended: Instant,
}

impl Job {
    /// Notes what a write will have written, for the read back.
    #[cold]
    fn note_versions(&mut self, flight: &Flight, lbas_per_unit: u64) {
        let Request { lba, blocks, .. } = flight.request;
        let units = lba.0 / lbas_per_unit..(lba.0 + u64::from(blocks)) / lbas_per_unit;
        if let Some(versions) = &mut self.versions {
            versions.extend(units.map(|unit| (unit, flight.number)));
        }
    }

    /// Describes the first difference between `units`, which were read back, and what was written, if there is one.
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
    /// Time of its submission to the device.
    submitted: Instant,
    /// Number of its submission, from which its contents are made.
    number: u64,
}

/// Counters and busy times at one moment.
#[derive(Clone, Debug)]
struct Baseline {
    at: Instant,
    device: DeviceMetrics,
    nand: NandMetrics,
    handles: Vec<HandleCounts>,
    ftl: HostFtlMetrics,
    block_layer: HostMetrics,
    stations_busy: Duration,
    channels_busy: Duration,
}

impl Baseline {
    fn of<O: Own>(engine: &Engine<O>, at: Instant) -> Self {
        let device = engine.device();
        let layer: Option<&BlockLayer> = engine.layers().all().next();
        Self {
            at,
            device: *device.metrics(),
            nand: *device.nand_metrics(),
            handles: device.handle_counts().to_vec(),
            ftl: engine.host_ftl().map(HostFtl::metrics).unwrap_or_default(),
            block_layer: layer.map(|layer| *layer.metrics()).unwrap_or_default(),
            stations_busy: device.station_busy_until(at).into_iter().sum(),
            channels_busy: device.channel_busy_until(at).into_iter().sum(),
        }
    }
}

/// Event: a job is to be polled again.
#[derive(Clone, Copy, Debug)]
struct Poll(u32);

/// The hash of a world is over completions instead.
impl Own for Poll {
    const HASHED: bool = false;
}

/// The jobs, and the results of their requests at this instant.
#[derive(Debug)]
struct Jobs {
    jobs: Vec<Job>,
    flights: Vec<Flight>,
    free: Vec<u32>,
    lbas_per_unit: u64,
    /// Sectors of a segment, if the device has nothing but segments.
    segment_blocks: Option<u64>,
    completed: Vec<u32>,
    errors: u64,
    first_error: Option<String>,
}

impl Jobs {
    /// Notes an error in the answer to a request, if there is one.
    #[inline]
    fn judge(&mut self, token: u64, result: &engine::Answer) {
        let wrong = match result {
            Err(error) => Some(error.to_string()),
            Ok(Done::Data(units)) => {
                let Flight { job, request, .. } = &self.flights[token as usize];
                self.jobs[*job as usize].difference(request, units, self.lbas_per_unit)
            }
            Ok(_) => None,
        };
        if let Some(wrong) = wrong {
            self.errors += 1;
            self.first_error.get_or_insert(wrong);
        }
    }
}

impl Host for Jobs {
    #[inline]
    fn dispatched(&mut self, now: Instant, token: u64) {
        let flight = &mut self.flights[token as usize];
        flight.submitted = now;
        let job = &mut self.jobs[flight.job as usize];
        if job.versions.is_some() && flight.request.kind == Kind::Write {
            job.note_versions(flight, self.lbas_per_unit);
        }
    }

    #[inline]
    fn completed(&mut self, _: Instant, token: u64, _: Instant, result: engine::Answer) {
        self.judge(token, &result);
        self.completed.push(token as u32);
    }

    fn counts(&self, now: Instant, token: u64) -> bool {
        let setup = &self.jobs[self.flights[token as usize].job as usize].setup;
        setup.stats && setup.is_measured(now)
    }
}

/// Progress of a run.
#[derive(Clone, Copy, Debug)]
pub struct Progress {
    /// Virtual time.
    pub now: Instant,
    /// Number of requests completed.
    pub requests: u64,
    /// Virtual time at which the run is expected to end, if known.
    pub planned: Option<Instant>,
}

/// Number of events between two reports of progress.
const REPORT_EVERY: u64 = 1 << 16;

/// A world with its device, link and jobs.
#[derive(Debug)]
pub struct World {
    engine: Engine<Poll>,
    host: Jobs,
    interval: Duration,
    submitted: u64,
    requests: u64,
    hash: u64,
    /// Counters at the beginning, and from then on when the first job began to count.
    baseline: Baseline,
    is_counting: bool,
    sampler: Option<Box<Sampler>>,
    /// Time of the next sample.
    sample_at: Instant,
}

/// Time of the next sample if none is due.
const NEVER: Instant = Instant::from_nanos(u64::MAX);

impl World {
    /// Makes a world in which `jobs` begin at time zero, with results recorded in intervals of `interval`.
    pub fn new(device: Device, jobs: Vec<JobSetup>, interval: Duration) -> Self {
        Self::on(device, Chain::new(), jobs, interval)
    }

    /// Makes a world with a block layer between the jobs and the link. Panics if its configuration is not valid on this
    /// link.
    pub fn with_block_layer(
        device: Device,
        jobs: Vec<JobSetup>,
        interval: Duration,
        config: HostConfig,
    ) -> Self {
        let layers = block_layer(&device, config);
        Self::on(device, layers, jobs, interval)
    }

    /// Makes a world above a disk, which may have a host FTL, with a block layer on top if one is configured. Panics if that is not
    /// valid there.
    pub fn above(
        disk: Disk,
        block_layer: Option<HostConfig>,
        jobs: Vec<JobSetup>,
        interval: Duration,
    ) -> Self {
        let (device, layers) = layers_of(disk, block_layer);
        Self::on(device, layers, jobs, interval)
    }

    fn on(device: Device, layers: Chain, jobs: Vec<JobSetup>, interval: Duration) -> Self {
        let queues = device.config().link.queues;
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
        let jobs = jobs.collect();
        let lbas_per_unit = device.geometry().lbas_per_unit;
        let segment_blocks = segment_blocks(&device);
        let engine = Engine::new(device, layers);
        Self {
            baseline: Baseline::of(&engine, Instant::ZERO),
            is_counting: false,
            host: Jobs {
                jobs,
                flights: Vec::new(),
                free: Vec::new(),
                lbas_per_unit,
                segment_blocks,
                completed: Vec::new(),
                errors: 0,
                first_error: None,
            },
            submitted: 0,
            requests: 0,
            hash: 0,
            sampler: None,
            sample_at: NEVER,
            interval,
            engine,
        }
    }

    /// The state of the device for a sample, as it is for those above a host FTL.
    fn snapshot(&self, at: Instant) -> Snapshot {
        let device = self.engine.device();
        match self.engine.host_ftl() {
            Some(ftl) => Snapshot::seen_as(&seen_above(device.metrics(), &ftl.metrics()), device, at),
            None => Snapshot::of(device, at),
        }
    }

    /// Traces all following events with the timeline that `make` returns; the world must not have begun.
    pub fn trace(&mut self, make: impl FnOnce(&mut Device) -> Timeline) {
        self.engine.trace(make);
    }

    /// Ends the trace begun by [`Self::trace`].
    pub fn end_trace(&mut self) -> Option<Findings> {
        self.engine.end_trace()
    }

    /// Records the course of the run, which must not have begun, for [`RunResult::course`]. Nothing else changes.
    pub fn keep_course(&mut self) {
        let mut sampler = Sampler::over_time(self.snapshot(Instant::ZERO));
        let mut names: BTreeMap<u32, String> = BTreeMap::new();
        for setup in self.host.jobs.iter().map(|job| &job.setup).filter(|setup| setup.stats) {
            names.entry(setup.report_group).or_insert_with(|| setup.name.clone());
        }
        for job in &mut self.host.jobs {
            job.sampled_as = names.keys().take_while(|group| **group < job.setup.report_group).count();
        }
        sampler.keep_apart(names.into_values().collect());
        self.sample_at = Instant::from_nanos(sampler.due());
        self.sampler = Some(Box::new(sampler));
    }

    /// Takes the samples that are due before `now`.
    #[cold]
    fn sample(&mut self, now: Instant) {
        let Some(mut sampler) = self.sampler.take() else { return };
        while self.sample_at < now {
            sampler.sample(self.snapshot(self.sample_at));
            self.sample_at = Instant::from_nanos(sampler.due());
        }
        self.sampler = Some(sampler);
    }

    /// Runs until every job has ended. `progress` is called now and then and stops the run by returning false. Returns
    /// whether the run came to its end.
    pub fn run(&mut self, mut progress: impl FnMut(Progress) -> bool) -> bool {
        self.start_group(Instant::ZERO);
        self.talk(Instant::ZERO);
        let has_layers = self.engine.has_layers();
        let mut moments = 0;
        let mut ended = false;
        loop {
            let next = if has_layers { self.engine.pop() } else { self.engine.pop_without_layers() };
            let Some((now, moment)) = next else { break };
            if now > self.sample_at {
                self.sample(now);
            }
            match self.engine.happen(now, moment, &mut self.host) {
                Happened::Below => {}
                Happened::Completed => {
                    let flight = self.host.completed.pop().expect("it was told");
                    self.complete(now, flight);
                    ended = self.has_ended();
                }
                Happened::Own(Poll(job)) => {
                    let job = job as usize;
                    if self.host.jobs[job].wake == Some(now) {
                        self.host.jobs[job].wake = None;
                        self.poll(now, job);
                        ended = self.has_ended();
                    }
                }
            }
            if has_layers {
                self.talk(now);
                ended = self.has_ended();
            }
            moments += 1;
            if moments % REPORT_EVERY == 0 && !progress(self.progress(now)) {
                return false;
            }
            if ended {
                break;
            }
        }
        let left = self.host.jobs.iter().filter(|job| !job.done || job.in_flight > 0).count();
        assert_eq!(
            left,
            0,
            "{left} jobs never ended: requests were lost at {:?}\n{}{}",
            self.engine.now(),
            self.engine.layers().describe(),
            self.engine.device().describe()
        );
        // A host FTL may still be at work.
        if self.engine.in_flight() == 0 {
            self.engine.device().audit();
        }
        true
    }

    /// Lets layers and jobs exchange messages until none is left at this instant.
    fn talk(&mut self, now: Instant) {
        while !self.engine.has_no_news() {
            self.engine.deliver(now, &mut self.host);
            // Requests that jobs submit in reaction go to the layers, which are called again.
            let mut completed = std::mem::take(&mut self.host.completed);
            completed.drain(..).for_each(|flight| self.complete(now, flight));
            self.host.completed = completed;
        }
    }

    /// After all jobs have ended, lets the disk finish its own work and resets its clocks, so that it can begin in
    /// another world.
    pub fn settle(self) -> Disk {
        self.engine.settle()
    }

    fn has_ended(&self) -> bool {
        self.host.jobs.iter().all(|job| job.done && job.in_flight == 0)
    }

    fn progress(&self, now: Instant) -> Progress {
        let planned = self
            .host
            .jobs
            .iter()
            .filter(|job| !job.done)
            .map(|job| Some(job.started? + job.setup.workload.planned()?));
        let planned = planned.max().flatten();
        Progress { now, requests: self.requests, planned }
    }

    /// Starts the lowest group that has not started, if all earlier ones have ended.
    fn start_group(&mut self, now: Instant) {
        loop {
            let running =
                self.host.jobs.iter().any(|job| job.started.is_some() && !(job.done && job.in_flight == 0));
            let next =
                self.host.jobs.iter().filter(|job| job.started.is_none()).map(|job| job.setup.group).min();
            let (false, Some(group)) = (running, next) else { return };
            for job in 0..self.host.jobs.len() {
                if self.host.jobs[job].setup.group == group && self.host.jobs[job].started.is_none() {
                    self.host.jobs[job].started = Some(now);
                    self.host.jobs[job].ended = now;
                    let workload = &self.host.jobs[job].setup.workload;
                    let (log, verifies) = (workload.log(), workload.verifies());
                    self.host.jobs[job].versions = verifies.then(BTreeMap::new);
                    self.host.jobs[job].log = log.map(|spec| Box::new(IoLog::new(spec, now)));
                    self.poll(now, job);
                }
            }
        }
    }

    fn poll(&mut self, now: Instant, job: usize) {
        while !self.host.jobs[job].done {
            match self.host.jobs[job].setup.workload.poll(now) {
                Step::Submit(request) => self.submit(now, job, request),
                Step::Wait(at) => {
                    debug_assert!(at > now, "a wait ends later");
                    if self.host.jobs[job].wake.is_none_or(|wake| at < wake) {
                        self.host.jobs[job].wake = Some(at);
                        self.engine.at(at, Poll(job as u32));
                    }
                    return;
                }
                Step::Blocked => {
                    assert!(
                        self.host.jobs[job].in_flight > 0,
                        "a job waits for a completion that cannot come"
                    );
                    return;
                }
                Step::Done => {
                    self.host.jobs[job].done = true;
                    self.host.jobs[job].done_at = now;
                }
            }
        }
    }

    fn submit(&mut self, now: Instant, job: usize, request: Request) {
        let host = &mut self.host;
        let place = host.free.pop().unwrap_or(host.flights.len() as u32);
        let number = self.submitted;
        self.submitted += 1;
        let flight = Flight { job: job as u32, request, submitted: now, number };
        match host.flights.get_mut(place as usize) {
            Some(free) => *free = flight,
            None => host.flights.push(flight),
        }
        let entry = &mut host.jobs[job];
        entry.in_flight += 1;
        if let Some(sampler) = &mut self.sampler {
            sampler.submitted(now);
        }
        let queue = entry.queue;
        self.begin_to_measure(now, job);
        let entry = &mut self.host.jobs[job];
        if let Some(recorder) = &mut entry.recorder {
            recorder.submitted_at_depth(entry.in_flight);
        }
        let Request { kind, lba, blocks, source, fua, handle, intended, .. } = request;
        let op = match kind {
            Kind::Read => Op::Read { lba, blocks },
            Kind::Write => Op::Write { lba, blocks, data: self.data(request, number) },
            Kind::Trim => Op::Trim { lba, blocks },
            Kind::WriteZeroes => Op::WriteZeroes { lba, blocks },
            Kind::Share => Op::Share([SharePair { dst: lba, src: source, blocks }].into()),
            Kind::Flush => Op::Flush,
        };
        let mut command = Command::new(u64::from(place), op);
        (command.queue, command.fua, command.handle) = (queue, fua, handle);
        if let Some(blocks) = self.host.segment_blocks {
            command.op = on_segments(command.op, blocks);
            command.ns = APPEND_NAMESPACE;
        }
        self.engine.submit(now, intended, command, job as u16, &mut self.host);
    }

    /// Begins to record a job at the first request that it submits, or that ends, after its ramp.
    #[inline]
    fn begin_to_measure(&mut self, now: Instant, job: usize) {
        let entry = &mut self.host.jobs[job];
        if entry.recorder.is_some() || !entry.setup.is_measured(now) {
            return;
        }
        let start = entry.setup.workload.began().or(entry.started).unwrap_or(now);
        let start = start.saturating_add(entry.setup.ramp);
        entry.recorder = Some(Recorder::new(start.min(now), self.interval));
        if let Some(log) = &mut entry.log {
            log.begin(start.min(now));
        }
        if entry.setup.stats && !std::mem::replace(&mut self.is_counting, true) {
            self.baseline = Baseline::of(&self.engine, now);
        }
    }

    /// Returns the data of a write. A block layer merges the contents of whole units; where contents are not tracked,
    /// it may merge any.
    #[inline]
    fn data(&self, request: Request, number: u64) -> Data {
        if self.engine.has_layers() { self.data_to_merge(request, number) } else { Data::Pattern(number) }
    }

    #[cold]
    fn data_to_merge(&self, Request { lba, blocks, .. }: Request, number: u64) -> Data {
        let unit_blocks = self.host.lbas_per_unit;
        let (first, blocks) = (lba.0, u64::from(blocks));
        if !self.engine.device().media().tracks_contents() {
            Data::Pattern(0)
        } else if first.is_multiple_of(unit_blocks) && blocks.is_multiple_of(unit_blocks) {
            let units = first / unit_blocks..(first + blocks) / unit_blocks;
            Data::Units(units.map(|unit| Payload::Tag(pattern(number, Lpn(unit)))).collect::<Contents>())
        } else {
            Data::Pattern(number)
        }
    }

    fn complete(&mut self, now: Instant, at: u32) {
        let Flight { job, request, submitted, .. } = self.host.flights[at as usize];
        self.host.free.push(at);
        self.requests += 1;
        self.hash = mix(self.hash ^ now.as_nanos() ^ u64::from(at) << 48);
        let job = job as usize;
        let entry = &mut self.host.jobs[job];
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
        self.begin_to_measure(now, job);
        let entry = &mut self.host.jobs[job];
        if entry.setup.is_measured(now)
            && let Some(recorder) = &mut entry.recorder
        {
            let bytes = u64::from(request.blocks) * 512;
            recorder.record(request.kind, bytes, request.intended.min(submitted), submitted, now);
            if let Some(log) = &mut entry.log {
                let place = [request.lba.0 * 512, bytes];
                log.record(request.kind, place, [request.intended.min(submitted), submitted, now]);
            }
        }
        entry.setup.workload.completed(now, request.token);
        self.poll(now, job);
        if self.host.jobs[job].done && self.host.jobs[job].in_flight == 0 {
            self.start_group(now);
        }
    }

    /// Returns a hash over all completions and their times; equal worlds have equal hashes.
    pub fn trace_hash(&self) -> u64 {
        self.hash
    }

    /// Returns the number of requests completed.
    pub fn requests(&self) -> u64 {
        self.requests
    }

    /// Returns the number of events scheduled so far.
    pub fn moments(&self) -> u64 {
        self.engine.scheduled()
    }

    /// Returns the device.
    pub fn device(&self) -> &Device {
        self.engine.device()
    }

    /// Returns the block layer, if there is one.
    pub fn block_layer(&self) -> Option<&BlockLayer> {
        self.engine.layers().all().next()
    }

    /// Returns the host FTL, if there is one.
    pub fn host_ftl(&self) -> Option<&HostFtl> {
        self.engine.host_ftl()
    }

    /// Takes the logs that jobs asked for, in the order of the jobs.
    pub fn take_logs(&mut self) -> Vec<IoLog> {
        let logs = self
            .host
            .jobs
            .iter_mut()
            .filter_map(|job| Some(job.log.take()?.finish(job.ended.max(job.done_at))));
        logs.collect()
    }

    /// Ends the world and returns its results and the device.
    pub fn finish(self, device_name: &str, workload_name: &str, seed: u64) -> (RunResult, Device) {
        let now = self.engine.now();
        let from = &self.baseline;
        let metrics = self.engine.device().metrics().since(&from.device);
        let unit = self.engine.device().geometry().unit_bytes;
        let ftl = self.engine.host_ftl().map(|ftl| (ftl.metrics().since(&from.ftl), ftl.line_units()));
        let seen = ftl.map_or(metrics, |(ftl, _)| seen_above(&metrics, &ftl));
        let mut result = RunResult {
            device: device_name.to_string(),
            workload: workload_name.to_string(),
            seed,
            virtual_time_ns: now.as_nanos(),
            counted_from_ns: from.at.as_nanos(),
            totals: DeviceTotals::of(&seen, unit),
            ..RunResult::default()
        };
        result.add_metrics("device", &metrics.list());
        let nand = self.engine.device().nand_metrics().since(&from.nand);
        result.add_metrics("nand", &nand.list());
        if let Some(share) = nand.multi_plane_share() {
            result.metrics.insert("nand.host_multi_plane_share".into(), MetricValue::Ratio(share));
        }
        let count = |value| MetricValue::Count(value);
        let handles = self.engine.device().handle_counts().iter().zip(&from.handles);
        for (nth, (now, before)) in handles.enumerate() {
            let mut add =
                |what, value| result.metrics.insert(format!("device.handle_{nth}_{what}"), count(value));
            add("units_written", now.units_written - before.units_written);
            add("units_moved", now.units_moved - before.units_moved);
        }
        let span = now.since(from.at).as_nanos().max(1) as f64;
        let share = |times: Vec<Duration>, before: Duration| {
            let places = times.len().max(1) as f64;
            let sum: Duration = times.into_iter().sum();
            MetricValue::Ratio(sum.saturating_sub(before).as_nanos() as f64 / places / span)
        };
        let device = self.engine.device();
        let (stations, channels) = (device.station_busy_until(now), device.channel_busy_until(now));
        result.metrics.insert("nand.station_utilisation".into(), share(stations, from.stations_busy));
        result.metrics.insert("nand.channel_utilisation".into(), share(channels, from.channels_busy));
        result.metrics.insert("host.errors".into(), count(self.host.errors));
        if let Some(layer) = self.block_layer() {
            result.add_metrics("block_layer", &layer.metrics().since(&from.block_layer).list());
        }
        if let Some((counts, line_units)) = ftl {
            add_host_ftl(&mut result, &counts, line_units);
        }
        result.trace_hash = TraceHash(self.hash);
        let last = self.sampler.is_some().then(|| self.snapshot(now));
        if let Some((sampler, last)) = self.sampler.zip(last) {
            result.course = Some(Box::new(sampler.finish(now.as_nanos(), last, self.engine.device())));
        }
        let mut merged: BTreeMap<u32, Vec<_>> = BTreeMap::new();
        for job in self.host.jobs.into_iter().filter(|job| job.setup.stats) {
            // As in fio, a pause at the end is a part of the job.
            let ended = job.ended.max(job.done_at);
            let recorder = job.recorder.unwrap_or_else(|| Recorder::new(ended, self.interval));
            let mut finished = recorder.finish(&job.setup.name, job.setup.options, ended);
            finished.steady_state = job.setup.workload.steady_state();
            finished.narrow(|kind| job.setup.workload.between(kind));
            merged.entry(job.setup.report_group).or_default().push(finished);
        }
        result.jobs = merged.values().filter_map(|jobs| crate::measure::JobResult::merge(jobs)).collect();
        (result, self.engine.into_device())
    }

    /// Returns the number of errors and the first one that the device answered.
    pub fn errors(&self) -> (u64, Option<&str>) {
        (self.host.errors, self.host.first_error.as_deref())
    }
}

/// Adds the counters of a host FTL, and what follows from them (open-channel §9.4).
fn add_host_ftl(result: &mut RunResult, counts: &HostFtlMetrics, line_units: u64) {
    result.add_metrics("host_ftl", &counts.list());
    let freed = counts.lines_erased * line_units;
    result.metrics.insert("host_ftl.freed_units".into(), MetricValue::Count(freed));
    let ratio = |of: u64, to: u64| (to > 0).then(|| MetricValue::Ratio(of as f64 / to as f64));
    let ratios = [
        ("host_ftl.waf", ratio(counts.programmed_units, counts.user_units)),
        ("host_ftl.moves_per_freed_unit", ratio(counts.gc_units, freed)),
    ];
    let known = ratios.into_iter().filter_map(|(name, value)| Some((name.to_owned(), value?)));
    result.metrics.extend(known);
}

/// Sectors of a segment of a device that has nothing but segments.
fn segment_blocks(device: &Device) -> Option<u64> {
    let geometry = device.geometry();
    let is_append = device.config().firmware == FirmwareKind::Append;
    is_append.then(|| geometry.segment_lbas())
}

/// The command of a request to a device with segments of so many sectors. A write lies in one segment; a deallocation names one by its
/// first sector.
fn on_segments(op: Op, segment_blocks: u64) -> Op {
    let segment = |lba: Lba| SegmentId((lba.0 / segment_blocks) as u32);
    match op {
        Op::Write { lba, blocks, data } => {
            let offset = (lba.0 % segment_blocks) as u32;
            Op::SegWrite { segment: segment(lba), offset, blocks, data }
        }
        Op::Trim { lba, .. } => Op::SegTrim { segment: segment(lba) },
        other => other,
    }
}
