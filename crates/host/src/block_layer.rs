//! The block layer: a queue between a file system and a device (barriers §4).
//!
//! Place in the data flow: the caller submits commands, unplugs the queue, and carries out the effects. An offer is
//! answered at once, by [`Input::Accepted`] or [`Input::Busy`] as the next input, like the return value of Linux's
//! `queue_rq`; so a refused request is never behind one that was offered after it.
//!
//! A request waits for up to two conditions before the scheduler sees it: for the earlier epochs of its stream, and for
//! requests on the same sectors that were submitted before it. Everything it waits for was submitted earlier, so waits
//! never form a cycle. Merging preserves this: only a request that waits for no overlap joins another.
//!
//! Invariants:
//! 1. Each submission is answered exactly once, with the answer of the command that it became part of.
//! 2. Ordered requests of one stream leave in the order of their epochs (except with [`Dispatch::MultiQueue`]); each
//!    epoch that is closed and has members sends exactly one barrier, with the last member to leave.
//! 3. Of two requests on the same sectors of which one changes them, the one submitted first leaves first. (Linux
//!    promises nothing here. The order in which a device serves two commands that it holds at once is the device's
//!    matter.) With [`Dispatch::MultiQueue`], where the device may hold back the first, the second leaves when the first
//!    is answered.
//! 4. Flushes and other requests without a single range of sectors keep their order among themselves, unless one has to
//!    wait. Where a scheduler sorts, they go before the sorted requests.
//!
//! Deliberately absent: retries after errors, limits on the number of requests, and any wait between a request and the
//! next ordered one on a device that keeps the order.

use crate::config::{Dispatch, Epochs, HostConfig, Scheduler, Wait};
use crate::elevator::{self, Elevator};
use crate::epochs::{EpochState, FlushState, StreamState};
use crate::layer::{Effect, Input, Layer, Offer};
use crate::metrics::{DepthSample, HostMetrics, Passage};
use crate::overlap::Overlaps;
use crate::request::{Class, Kind, Part, Request, State, in_order, placed, share_of};
use crate::task::TaskAttribute;
use flashweir_core::command::{EpochStamp, StreamId};
use flashweir_core::{Command, CommandId, DeviceError, Done, Instant, Op, Order};
use std::collections::BTreeMap;

/// Reason why a device queue gets no commands.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Stall {
    No,
    UntilCompletion,
    Until(Instant),
}

/// A device queue and the requests that wait for it.
#[derive(Clone, Debug)]
struct Lane {
    elevator: Elevator,
    /// A request that the device refused; it goes before all others.
    head: Option<u32>,
    in_flight: u32,
    stall: Stall,
}

/// Mistakes that the tests plant to prove that they would be found.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Planted {
    ForgetBarrier,
    IgnoreEpochs,
    MergeAcrossEpochs,
    IgnoreOverlaps,
    AnswerOne,
    SkipFlush,
    KeepNoPlace,
}

/// A block layer.
#[derive(Clone, Debug)]
pub struct BlockLayer {
    config: HostConfig,
    /// Sectors of 512 bytes in a mapping unit of the device.
    unit_blocks: u64,
    requests: Vec<Option<Request>>,
    free: Vec<u32>,
    lanes: Vec<Lane>,
    /// Index of the lane that is served first.
    turn: usize,
    streams: BTreeMap<StreamId, StreamState>,
    overlaps: Overlaps,
    /// The request that is offered and not answered, and whether it carries a barrier.
    offered: Option<(u32, bool)>,
    submissions: u64,
    queued: u32,
    in_flight: u32,
    metrics: HostMetrics,
    depths: Option<Vec<DepthSample>>,
    passages: Option<Vec<Passage>>,
    conflicts: Vec<u32>,
    /// Vectors of answered requests, kept for reuse.
    parts: Vec<Vec<Part>>,
    #[cfg(test)]
    pub(crate) planted: Option<Planted>,
}

impl Layer for BlockLayer {
    fn handle(&mut self, now: Instant, input: Input, effects: &mut Vec<Effect>) {
        Self::handle(self, now, input, effects);
    }

    fn boxed(&self) -> Box<dyn Layer> {
        Box::new(self.clone())
    }
}

impl BlockLayer {
    /// Makes an empty queue in front of a device with `unit_blocks` sectors per mapping unit. Panics if the
    /// configuration is not valid.
    pub fn new(config: HostConfig, unit_blocks: u64) -> Self {
        config.validate().expect("the caller has validated the configuration");
        let lane =
            Lane { elevator: Elevator::new(config.scheduler), head: None, in_flight: 0, stall: Stall::No };
        Self {
            lanes: vec![lane; usize::from(config.queues)],
            config,
            unit_blocks,
            requests: Vec::new(),
            free: Vec::new(),
            turn: 0,
            streams: BTreeMap::new(),
            overlaps: Overlaps::default(),
            offered: None,
            submissions: 0,
            queued: 0,
            in_flight: 0,
            metrics: HostMetrics::default(),
            depths: None,
            passages: None,
            conflicts: Vec::new(),
            parts: Vec::new(),
            #[cfg(test)]
            planted: None,
        }
    }

    /// Returns the configuration.
    pub fn config(&self) -> &HostConfig {
        &self.config
    }

    /// Returns the counters.
    pub fn metrics(&self) -> &HostMetrics {
        &self.metrics
    }

    /// Returns the number of requests that wait here and of commands that the device holds.
    pub fn depth(&self) -> (u32, u32) {
        (self.queued, self.in_flight)
    }

    /// Starts to record the queue depths.
    pub fn keep_depths(&mut self) {
        self.depths.get_or_insert_default();
    }

    /// Takes the queue depths recorded since the last call: one sample for each instant with a change, the last one of
    /// that instant.
    pub fn take_depths(&mut self) -> Vec<DepthSample> {
        self.depths.as_mut().map(std::mem::take).unwrap_or_default()
    }

    /// Starts to record when requests passed from one stage of the layer to the next.
    pub fn keep_passages(&mut self) {
        self.passages.get_or_insert_default();
    }

    /// Takes the passages of the requests in the commands that were accepted since the last call.
    pub fn take_passages(&mut self) -> Vec<Passage> {
        self.passages.as_mut().map(std::mem::take).unwrap_or_default()
    }

    /// Handles an input. Panics if an offer has not been answered (a bug of the caller).
    pub fn handle(&mut self, now: Instant, input: Input, effects: &mut Vec<Effect>) {
        let is_answer = matches!(input, Input::Accepted | Input::Busy);
        assert_eq!(is_answer, self.offered.is_some(), "an offer is answered by the next input: {input:?}");
        let is_plugged = matches!(input, Input::Submit { .. });
        match input {
            Input::Submit { command, submitter } => self.submit(now, command, submitter, effects),
            Input::Unplug => {}
            Input::Accepted => self.accepted(now, effects),
            Input::Busy => self.refused(now, effects),
            Input::Transferred(id) => self.transferred(now, id, effects),
            Input::Completed { id, result } => self.completed(now, id, result, effects),
            Input::Wake => {
                for lane in &mut self.lanes {
                    if matches!(lane.stall, Stall::Until(at) if at <= now) {
                        lane.stall = Stall::No;
                    }
                }
            }
        }
        if !is_plugged {
            self.offer_next(now, effects);
        }
        self.note_depths(now);
    }

    fn is_planted(&self, _fault: Planted) -> bool {
        #[cfg(test)]
        return self.planted == Some(_fault);
        #[cfg(not(test))]
        false
    }

    fn is_legacy(&self) -> bool {
        matches!(self.config.dispatch, Dispatch::Legacy(_))
    }

    fn request(&self, id: u32) -> &Request {
        self.requests[id as usize].as_ref().expect("it is not answered yet")
    }

    fn request_mut(&mut self, id: u32) -> &mut Request {
        self.requests[id as usize].as_mut().expect("it is not answered yet")
    }

    fn stream(&mut self, stream: StreamId) -> &mut StreamState {
        self.streams.entry(stream).or_default()
    }

    fn note_depths(&mut self, at: Instant) {
        let sample = DepthSample { at, in_flight: self.in_flight, queued: self.queued };
        let Some(depths) = &mut self.depths else { return };
        match depths.last_mut() {
            Some(last) if last.at == at => *last = sample,
            Some(last) if (last.in_flight, last.queued) == (sample.in_flight, sample.queued) => {}
            _ => depths.push(sample),
        }
    }

    /// Returns the number of requests and of notes about them; zero when all are answered.
    #[cfg(test)]
    pub(crate) fn leftovers(&self) -> usize {
        let noted = self.overlaps.len();
        let epochs = self.streams.values().map(|stream| stream.epochs.len() - 1).sum::<usize>();
        // A legacy device need not be flushed until a request waits for it.
        let epochs = if self.is_legacy() { 0 } else { epochs };
        noted + epochs + self.requests.iter().flatten().count() + (self.queued + self.in_flight) as usize
    }

    // ---- on the way in ----

    fn submit(&mut self, now: Instant, command: Command, submitter: u16, effects: &mut Vec<Effect>) {
        self.metrics.submitted += 1;
        self.submissions += 1;
        if matches!(command.op, Op::Barrier) {
            return self.submit_barrier(now, command, submitter, effects);
        }
        let ordered = in_order(&command);
        let mut member = None;
        if let Some((stream, order)) = ordered {
            self.metrics.barriers += u64::from(order == Order::Barrier);
            let state = self.stream(stream);
            let number = state.open();
            let epoch = state.last_mut();
            epoch.used = true;
            let refused = epoch.refused;
            if order == Order::Barrier {
                state.close();
            }
            if refused {
                self.metrics.refused += 1;
                self.answer(command.id.0, Err(DeviceError::StreamFailed(stream)), effects);
                return self.advance(now, stream, effects);
            }
            member = Some((stream, number));
        }
        let request = self.new_request(now, command, submitter, member);
        self.enter(now, request);
        if let Some((stream, _)) = member
            && self.is_legacy()
        {
            self.advance(now, stream, effects);
        }
    }

    fn new_request(
        &mut self,
        now: Instant,
        command: Command,
        submitter: u16,
        member: Option<(StreamId, u64)>,
    ) -> Request {
        let lane = submitter % self.config.queues;
        let owner = if matches!(self.config.scheduler, Scheduler::Cfq(_)) { submitter } else { lane };
        let epoch = match member {
            Some((stream, _)) if self.is_planted(Planted::MergeAcrossEpochs) => Some((stream, 0)),
            other => other,
        };
        let placed = placed(&command);
        let Command { ns, tags, handle, fua, .. } = command;
        let class =
            placed.map(|(kind, form, _, _)| Class { kind, ns, owner, epoch, tags, handle, fua, form });
        let (lba, blocks) = placed.map_or((0, 0), |(_, _, lba, blocks)| (lba, blocks));
        let mut parts = self.parts.pop().unwrap_or_default();
        parts.push(Part { token: command.id.0, seq: self.submissions, lba, blocks, joined: None });
        Request {
            command,
            class,
            member,
            seq: self.submissions,
            parts,
            data: Vec::new(),
            lane,
            submitter,
            since: now,
            state: State::Held,
            ready: now,
            offered: now,
            epoch_held: false,
            blockers: 0,
            blocks: Vec::new(),
            settles: None,
        }
    }

    /// Submits a zero-length barrier: it travels with the last waiting request before it, or goes as a command of its
    /// own.
    fn submit_barrier(&mut self, now: Instant, command: Command, submitter: u16, effects: &mut Vec<Effect>) {
        let token = command.id.0;
        let Some(stream) = command.stream else {
            return self.answer(token, Err(DeviceError::InvalidField("a barrier of no stream")), effects);
        };
        self.metrics.barriers += 1;
        let legacy = self.is_legacy();
        let state = self.stream(stream);
        let number = state.open();
        if state.last_mut().used {
            let travels = legacy || state.last_mut().queued > 0;
            if travels {
                state.last_mut().barriers.push(token);
            }
            state.close();
            if travels {
                return self.advance(now, stream, effects);
            }
            let request = self.new_request(now, command, submitter, Some((stream, number)));
            return self.enter(now, request);
        }
        let earlier = state.epochs.range_mut(..state.epochs.len() - 1);
        if let Some(epoch) = earlier.rev().find(|epoch| legacy || epoch.queued > 0) {
            epoch.barriers.push(token);
            return self.advance(now, stream, effects);
        }
        state.last_mut().refused = false;
        let failed = std::mem::take(&mut state.failed);
        self.metrics.barriers_empty += 1;
        self.answer(
            token,
            if failed { Err(DeviceError::StreamFailed(stream)) } else { Ok(Done::Ok) },
            effects,
        );
    }

    /// Merges a request into a waiting one, or gives it a place of its own.
    fn enter(&mut self, now: Instant, mut request: Request) {
        let mut held = false;
        if let Some((stream, number)) = request.member {
            held = number > self.stream(stream).first && self.config.dispatch != Dispatch::MultiQueue;
            if self.is_planted(Planted::IgnoreEpochs) {
                held = false;
            }
        }
        let mut conflicts = std::mem::take(&mut self.conflicts);
        let put_aside = held && self.config.epochs == Epochs::Closing;
        let mut target = None;
        request.for_ranges(|_, first, blocks, changes| {
            let (ns, range) = (request.command.ns, (first, blocks));
            target = self.overlaps.look(ns, range, changes, &mut conflicts, |other, is_behind| {
                !put_aside && self.can_join(&request, range, other, is_behind)
            });
        });
        conflicts.sort_unstable();
        conflicts.dedup();
        if self.is_planted(Planted::IgnoreOverlaps) {
            conflicts.clear();
        }
        if let Some(target) = target.filter(|_| conflicts.is_empty()) {
            self.merge(now, target, request);
        } else {
            self.queued += 1;
            self.metrics.epoch_waits += u64::from(held);
            self.metrics.overlap_waits += u64::from(!conflicts.is_empty());
            request.epoch_held = held;
            request.blockers = conflicts.len() as u32;
            let (member, waits) = (request.member, held || !conflicts.is_empty());
            let id = self.place(request);
            conflicts.iter().for_each(|&blocker| self.request_mut(blocker).blocks.push(id));
            self.cover(id, |_| true);
            if let Some((stream, number)) = member {
                let epoch = self.stream(stream).epoch(number);
                epoch.queued += 1;
                if held {
                    epoch.held.push(id);
                }
            }
            if !waits {
                self.ready(now, id);
            }
        }
        conflicts.clear();
        self.conflicts = conflicts;
    }

    fn place(&mut self, request: Request) -> u32 {
        let id = self.free.pop().unwrap_or(self.requests.len() as u32);
        match self.requests.get_mut(id as usize) {
            Some(free) => *free = Some(request),
            None => self.requests.push(Some(request)),
        }
        id
    }

    /// Adds the sectors of the chosen parts of a request to the overlap index.
    fn cover(&mut self, id: u32, chosen: impl Fn(u64) -> bool) {
        let request = self.requests[id as usize].as_ref().expect("it waits");
        request.for_ranges(|seq, first, blocks, changes| {
            if chosen(seq) {
                self.overlaps.insert((request.command.ns, first, seq), blocks, changes, id);
            }
        });
    }

    fn uncover(&mut self, id: u32) {
        let request = self.requests[id as usize].as_ref().expect("it waits");
        request.for_ranges(|seq, first, _, _| self.overlaps.remove((request.command.ns, first, seq)));
    }

    /// Whether a request with this range can be merged with a waiting one that ends where it begins, or begins where it
    /// ends.
    fn can_join(&self, request: &Request, (first, blocks): (u64, u64), other: u32, is_behind: bool) -> bool {
        let there = self.request(other);
        let is_waiting = match there.state {
            State::Held => !(there.epoch_held && self.config.epochs == Epochs::Closing),
            State::Ready => true,
            State::Leaving | State::Taken { .. } => false,
        };
        let (begins, length) = there.range().unwrap_or_default();
        is_waiting
            && request.class.is_some()
            && there.class == request.class
            && if is_behind { begins == first + blocks } else { begins + length == first }
            && length + blocks <= self.config.merge_blocks_max.into()
    }

    fn merge(&mut self, now: Instant, target: u32, request: Request) {
        let (seq, first) = (request.seq, request.parts[0].lba);
        let entry = self.entry(target);
        let there = self.request_mut(target);
        let is_front = first < there.parts[0].lba;
        there.join(now, request);
        if is_front && there.state == State::Ready {
            let lane = usize::from(there.lane);
            self.lanes[lane].elevator.moved(entry, first);
        }
        let merges = &mut self.metrics;
        *(if is_front { &mut merges.front_merges } else { &mut merges.back_merges }) += 1;
        self.cover(target, |part| part == seq);
    }

    fn entry(&self, id: u32) -> elevator::Entry {
        let request = self.request(id);
        elevator::Entry {
            request: id,
            place: request.range().map(|(first, _)| (request.command.ns, first)),
            is_read: request.class.is_some_and(|class| class.kind == Kind::Read),
            submitter: request.submitter,
            since: request.since,
            seq: request.seq,
        }
    }

    /// Passes a request to the scheduler, since it waits for nothing any more.
    fn ready(&mut self, now: Instant, id: u32) {
        let entry = self.entry(id);
        let request = self.request_mut(id);
        (request.state, request.ready) = (State::Ready, now);
        let lane = usize::from(request.lane);
        self.lanes[lane].elevator.insert(entry);
    }

    // ---- on the way out ----

    fn offer_next(&mut self, now: Instant, effects: &mut Vec<Effect>) {
        if self.queued == 0 {
            return;
        }
        for lane in (self.turn..self.lanes.len()).chain(0..self.turn) {
            if let Some(id) = self.pick(now, lane, effects) {
                self.turn = (lane + 1) % self.lanes.len();
                return self.offer(now, id, effects);
            }
        }
    }

    fn pick(&mut self, now: Instant, lane: usize, effects: &mut Vec<Effect>) -> Option<u32> {
        let queue = &mut self.lanes[lane];
        if queue.stall != Stall::No || queue.head.is_none() && queue.elevator.is_empty() {
            return None;
        }
        if queue.in_flight >= self.config.depth {
            self.stall(now, lane, effects);
            return None;
        }
        let is_last =
            queue.in_flight + 1 == self.config.depth && self.config.dispatch == Dispatch::MultiQueue;
        if is_last && !self.is_planted(Planted::KeepNoPlace) {
            return self.pick_for_last_place(lane);
        }
        let queue = &mut self.lanes[lane];
        queue.head.take().or_else(|| queue.elevator.next(now))
    }

    /// Picks the request for the last slot of a queue. A device that sorts epochs by their numbers holds commands back
    /// until those of earlier epochs have arrived. To keep a slot for these, the last slot goes only to a request that
    /// the device can serve without waiting for another: the oldest of those that are orderless or of the first epoch
    /// of their stream.
    fn pick_for_last_place(&mut self, lane: usize) -> Option<u32> {
        let is_free = |request: &Request| match request.member {
            Some((stream, number)) => self.streams.get(&stream).is_none_or(|state| state.first == number),
            None => true,
        };
        let queue = &self.lanes[lane];
        if queue.head.is_some_and(|head| is_free(self.request(head))) {
            return self.lanes[lane].head.take();
        }
        let waiting = self.requests.iter().zip(0..).filter_map(|(request, id)| Some((request.as_ref()?, id)));
        let fitting = waiting.filter(|(request, _)| {
            request.state == State::Ready && usize::from(request.lane) == lane && is_free(request)
        });
        let (_, id) = fitting.min_by_key(|(request, _)| request.seq)?;
        let entry = self.entry(id);
        self.lanes[lane].elevator.remove(entry);
        Some(id)
    }

    fn stall(&mut self, now: Instant, lane: usize, effects: &mut Vec<Effect>) {
        self.metrics.busy += 1;
        // A device that sorts epochs may hold back everything it has until the refused command arrives.
        let answers = self.config.dispatch != Dispatch::MultiQueue;
        let queue = &mut self.lanes[lane];
        queue.stall = if self.config.retry_on_completion && queue.in_flight > 0 && answers {
            Stall::UntilCompletion
        } else {
            let at = now.saturating_add(self.config.retry_after);
            effects.push(Effect::At(at));
            Stall::Until(at)
        };
    }

    fn offer(&mut self, now: Instant, id: u32, effects: &mut Vec<Effect>) {
        if self.request(id).state == State::Ready {
            let request = self.request_mut(id);
            request.form();
            (request.state, request.offered) = (State::Leaving, now);
        }
        let request = self.request(id);
        let (member, mut command) = (request.member, request.command.clone());
        (command.id, command.queue) = (CommandId(id.into()), request.lane);
        (command.stream, command.order) = (None, None);
        let mut attribute = match command.op {
            Op::Flush | Op::RFlush(_) => self.config.flush,
            _ => TaskAttribute::Simple,
        };
        let mut barrier = false;
        if let (Some((stream, number)), false) = (member, self.is_legacy()) {
            let state = self.stream(stream).epoch(number);
            let members = state.left + 1;
            barrier = state.closed && state.queued == 1;
            let told = barrier && !self.is_planted(Planted::ForgetBarrier);
            let order = if told { Order::Barrier } else { Order::Within };
            (command.stream, command.order) = (Some(stream), Some(order));
            match self.config.dispatch {
                Dispatch::MultiQueue => {
                    let members = told.then_some(members);
                    command.epoch = Some(EpochStamp { number: number as u32, members });
                }
                _ if told => attribute = TaskAttribute::Ordered,
                _ => {}
            }
        }
        let submitter = self.request(id).submitter;
        self.offered = Some((id, barrier));
        effects.push(Effect::Offer(Offer { command, attribute, submitter }));
    }

    fn refused(&mut self, now: Instant, effects: &mut Vec<Effect>) {
        let (id, _) = self.offered.take().expect("an offer is answered");
        let lane = usize::from(self.request(id).lane);
        self.lanes[lane].head = Some(id);
        self.stall(now, lane, effects);
    }

    fn accepted(&mut self, now: Instant, effects: &mut Vec<Effect>) {
        let (id, barrier) = self.offered.take().expect("an offer is answered");
        self.metrics.dispatched += 1;
        self.leave(now, id);
        self.in_flight += 1;
        let legacy = self.is_legacy();
        let request = self.request_mut(id);
        request.state = State::Taken { transferred: false };
        let (lane, member) = (usize::from(request.lane), request.member);
        self.lanes[lane].in_flight += 1;
        let mut travellers = Vec::new();
        if let Some((stream, number)) = member {
            let epoch = self.stream(stream).epoch(number);
            epoch.left += 1;
            if legacy {
                epoch.untransferred += 1;
                epoch.unanswered += 1;
            } else if barrier {
                travellers = std::mem::take(&mut epoch.barriers);
            }
            self.metrics.barriers_sent += u64::from(barrier);
        }
        let request = self.request_mut(id);
        // A barrier that travels has waited for its epoch until now.
        let traveller = |token| Part { token, seq: 0, lba: 0, blocks: 0, joined: Some(now) };
        request.parts.extend(travellers.into_iter().map(traveller));
        effects.extend(request.parts.iter().map(|part| Effect::Dispatched(part.token)));
        if let Some(passages) = &mut self.passages {
            let request = self.requests[id as usize].as_ref().expect("it was just taken");
            let (ready, offered) = (request.ready, request.offered);
            passages.extend(request.parts.iter().map(|part| Passage {
                token: part.token,
                ready: part.joined.unwrap_or(ready),
                is_merged: part.joined.is_some(),
                // A barrier that travels joins last.
                offered: part.joined.map_or(offered, |joined| joined.max(offered)),
            }));
        }
        if let Some((stream, _)) = member {
            self.advance(now, stream, effects);
        }
    }

    /// Removes a request from the waiting ones.
    fn leave(&mut self, now: Instant, id: u32) {
        self.queued -= 1;
        if let Some((stream, number)) = self.request(id).member {
            self.stream(stream).epoch(number).queued -= 1;
        }
        if self.config.dispatch != Dispatch::MultiQueue {
            self.release(now, id);
        }
    }

    /// Unblocks the requests that waited for this one on the same sectors.
    fn release(&mut self, now: Instant, id: u32) {
        self.uncover(id);
        for other in std::mem::take(&mut self.request_mut(id).blocks) {
            let request = self.request_mut(other);
            request.blockers -= 1;
            if request.blockers == 0 && !request.epoch_held {
                self.ready(now, other);
            }
        }
    }

    // ---- at the device and back ----

    fn transferred(&mut self, now: Instant, id: CommandId, effects: &mut Vec<Effect>) {
        let request = self.request_mut(id.0 as u32);
        if request.state != (State::Taken { transferred: false }) {
            return;
        }
        request.state = State::Taken { transferred: true };
        effects.extend(request.parts.iter().map(|part| Effect::Transferred(part.token)));
        if let Some((stream, number)) = request.member
            && self.is_legacy()
        {
            if number >= self.stream(stream).first {
                self.stream(stream).epoch(number).untransferred -= 1;
            }
            self.advance(now, stream, effects);
        }
    }

    fn completed(
        &mut self,
        now: Instant,
        id: CommandId,
        result: Result<Done, DeviceError>,
        effects: &mut Vec<Effect>,
    ) {
        if self.config.dispatch == Dispatch::MultiQueue {
            self.release(now, id.0 as u32);
        }
        let mut request = self.requests[id.0 as usize].take().expect("a command is answered once");
        self.free.push(id.0 as u32);
        self.in_flight -= 1;
        let lane = &mut self.lanes[usize::from(request.lane)];
        lane.in_flight -= 1;
        if self.config.retry_on_completion {
            lane.stall = Stall::No;
        }
        let State::Taken { transferred } = request.state else { unreachable!("the device has it") };
        let ordered = request.member.map(|(stream, number)| (stream, Some(number)));
        let ordered = ordered.or(request.settles.map(|stream| (stream, None)));
        if let (Some((stream, number)), true) = (ordered, self.is_legacy()) {
            let state = self.stream(stream);
            state.failed |= result.is_err();
            match number {
                None => state.epochs[0].flush = FlushState::Done,
                Some(number) if number >= state.first => {
                    let epoch = state.epoch(number);
                    epoch.unanswered -= 1;
                    epoch.untransferred -= u32::from(!transferred);
                }
                Some(_) => {}
            }
        }
        match &request.parts[..] {
            [part] => self.answer(part.token, result, effects),
            [part, ..] if self.is_planted(Planted::AnswerOne) => self.answer(part.token, result, effects),
            parts => {
                for part in parts {
                    let answer = result.as_ref().map_err(Clone::clone);
                    let answer = answer.map(|done| share_of(done, parts[0].lba, part, self.unit_blocks));
                    self.answer(part.token, answer, effects);
                }
            }
        }
        request.parts.clear();
        self.parts.push(request.parts);
        if let (Some((stream, _)), true) = (ordered, self.is_legacy()) {
            self.advance(now, stream, effects);
        }
    }

    fn answer(&mut self, token: u64, result: Result<Done, DeviceError>, effects: &mut Vec<Effect>) {
        self.metrics.completed += 1;
        effects.push(Effect::Completed { token, result });
    }

    // ---- from one epoch to the next ----

    /// Ends the first epochs of a stream that are closed and settled.
    fn advance(&mut self, now: Instant, stream: StreamId, effects: &mut Vec<Effect>) {
        loop {
            let wait = match self.config.dispatch {
                Dispatch::Legacy(wait) => Some(wait),
                Dispatch::OrderPreserving | Dispatch::MultiQueue => None,
            };
            let skip_flush = self.is_planted(Planted::SkipFlush);
            let state = self.stream(stream);
            let first = &mut state.epochs[0];
            let is_settled = match wait {
                None => true,
                Some(Wait::Transfer) => first.untransferred == 0,
                Some(Wait::Completion) => first.unanswered == 0,
                Some(Wait::TransferAndFlush) => {
                    first.unanswered == 0
                        && (first.left == 0 || first.flush == FlushState::Done || skip_flush)
                }
            };
            if !first.closed || first.queued > 0 {
                return;
            }
            if !is_settled {
                return self.ask_for_flush(now, stream, wait);
            }
            let over = state.epochs.pop_front().expect("it is closed, so another one is open");
            state.first += 1;
            let failed = state.failed;
            let next = &mut state.epochs[0];
            next.refused = failed;
            let held = std::mem::take(&mut next.held);
            for token in over.barriers {
                self.barrier_is_over(stream, token, effects);
            }
            if self.stream(stream).epochs[0].refused {
                held.into_iter().for_each(|id| self.refuse(now, id, stream, effects));
            } else {
                held.into_iter().for_each(|id| self.admit(now, id));
            }
        }
    }

    /// Legacy: answers a zero-length barrier when its epoch is over; the barrier reports a failure of the stream, which
    /// it also clears.
    fn barrier_is_over(&mut self, stream: StreamId, token: u64, effects: &mut Vec<Effect>) {
        let state = self.stream(stream);
        state.epochs[0].refused = false;
        let failed = std::mem::take(&mut state.failed);
        self.answer(
            token,
            if failed { Err(DeviceError::StreamFailed(stream)) } else { Ok(Done::Ok) },
            effects,
        );
    }

    /// Sends the flush between two epochs once everything is answered and a request waits.
    fn ask_for_flush(&mut self, now: Instant, stream: StreamId, wait: Option<Wait>) {
        let state = self.stream(stream);
        let is_waited_for = !state.epochs[0].barriers.is_empty() || state.epochs[1].queued > 0;
        let first: &mut EpochState = &mut state.epochs[0];
        if wait != Some(Wait::TransferAndFlush)
            || !is_waited_for
            || first.unanswered > 0
            || first.flush != FlushState::NotAsked
        {
            return;
        }
        first.flush = FlushState::Asked;
        self.metrics.flushes += 1;
        let mut request = self.new_request(now, Command::new(0, Op::Flush), 0, None);
        request.parts.clear();
        request.settles = Some(stream);
        self.enter(now, request);
    }

    /// Admits a request whose epoch may leave.
    fn admit(&mut self, now: Instant, id: u32) {
        let is_closing = self.config.epochs == Epochs::Closing;
        let request = self.request_mut(id);
        request.epoch_held = false;
        if is_closing {
            request.since = now;
            // A request that blocks others, or is blocked, keeps its own place.
            let is_free = request.blockers == 0 && request.blocks.is_empty();
            let request = self.request(id);
            let range = request.range().filter(|_| is_free);
            let target = range.and_then(|range| {
                let ns = request.command.ns;
                self.overlaps.look(ns, range, false, &mut Vec::new(), |other, is_behind| {
                    self.can_join(request, range, other, is_behind)
                })
            });
            if let Some(target) = target {
                self.uncover(id);
                self.queued -= 1;
                self.free.push(id);
                let request = self.requests[id as usize].take().expect("it waited");
                if let Some((stream, number)) = request.member {
                    self.stream(stream).epoch(number).queued -= 1;
                }
                return self.merge(now, target, request);
            }
        }
        if self.request(id).blockers == 0 {
            self.ready(now, id);
        }
    }

    /// Answers a request whose stream has failed. The request was still waiting, so the device does not know it.
    fn refuse(&mut self, now: Instant, id: u32, stream: StreamId, effects: &mut Vec<Effect>) {
        if self.request(id).blockers > 0 {
            self.requests.iter_mut().flatten().for_each(|other| other.blocks.retain(|&waits| waits != id));
        }
        self.leave(now, id);
        let request = self.requests[id as usize].take().expect("it waited");
        self.free.push(id);
        for part in &request.parts {
            self.metrics.refused += 1;
            self.answer(part.token, Err(DeviceError::StreamFailed(stream)), effects);
        }
    }
}
