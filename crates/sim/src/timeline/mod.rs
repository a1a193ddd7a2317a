//! Timelines: where the time of a request goes in host and device, from the time a job wanted it until the host saw its
//! completion.
//!
//! Place in the data flow: the driver of a device (the engine below raw jobs and live servers, in virtual or real time)
//! reports the host's actions to a [`Timeline`] and lets it take the device's records after each event. The timeline
//! feeds [`Spans`], and those feed a Perfetto file ([`Perfetto`]) and sums for a reader ([`Ledger`]).
//!
//! ```text
//! timeline.submitted(id, asked)          the host wants something
//! timeline.sent(now, id)                 it is on the link
//! device.command(…), device.event(…)
//! timeline.device(now, &mut device)      after each of these calls
//! timeline.seen(now, id, counts)         the host has seen the completion
//! timeline.finish(now, &mut device)      at the end
//! ```
//!
//! Below a host FTL a request and the device's commands are different things: `timeline.entered`, then `timeline.seen_below(now, id, name)`
//! for each command, and `timeline.answered(now, token, passage, …)`, which follows the request through the FTL and through the one command
//! whose completion decided its answer.
//!
//! Where a block layer makes the commands, `timeline.entered(now, token, asked)` takes the place of `submitted`, and
//! `timeline.left(now, &passage, id, queue)` says for each request of a command that it has left the layer in it.
//!
//! Invariants: a timeline changes no answer and no time of the device; the pieces of a request follow each other
//! without a gap and add up to its latency, asserted for each request.
//!
//! Deliberately absent: clocks and files. Times come from the caller, and bytes go to the caller's writer.

mod ledger;
mod perfetto;
mod request;
mod spans;

pub use ledger::{Account, Ledger, Matrix, Means};
pub use perfetto::{EVENTS_MAX, HEAD, Limits, Perfetto, TAIL, Written, die_name, kind_name};

pub use request::{Asked, Request};
pub use spans::{ByReason, NO_ROOM, Piece, REASONS, Reason, STAGES, Served, Spans, Stage, Work};

use crate::request::Kind;
use flashweir_core::Instant;
use flashweir_device::Device;
use flashweir_device::config::Allocation;
use flashweir_device::trace::{Record, Traced};
use flashweir_host::{FtlPassage, Passage};
use request::{Below, Open, Unfinished};
use std::collections::BTreeMap;

/// Most completed commands of a host FTL that are remembered: many more than it has under way.
const BELOW_MAX: usize = 1 << 14;

/// The pieces of a request that are known so far.
struct Way {
    at: Instant,
    until: Instant,
    pieces: Vec<Piece>,
}

impl Way {
    /// The request was in this stage up to `until`, unless it was already further.
    fn go(&mut self, stage: Stage, until: Instant) {
        self.take(&Piece::plain(stage, Reason::Itself, self.at, until));
    }

    /// Adds a piece, or what of it comes after the others.
    fn take(&mut self, piece: &Piece) {
        let (from, until) = (piece.from.max(self.at), piece.until.min(self.until));
        if from < until {
            self.pieces.push(Piece { from, until, ..*piece });
            self.at = until;
        }
    }
}

/// Traces the requests of one device.
#[derive(Debug)]
pub struct Timeline {
    spans: Spans,
    open: BTreeMap<u64, Open>,
    /// Requests that wait in the layers of the host, by their tokens.
    waiting: BTreeMap<u64, Unfinished>,
    /// The last commands of a host FTL that have completed, by its names.
    below: BTreeMap<u64, Below>,
    numbers: u64,
    perfetto: Option<Perfetto>,
    ledger: Option<Ledger>,
    over: bool,
}

/// Results of a timeline.
#[derive(Debug)]
pub struct Findings {
    /// Summary of the Perfetto file.
    pub perfetto: Option<Written>,
    /// Accounts of where the time of requests went.
    pub ledger: Option<Ledger>,
}

impl Timeline {
    /// Turns on the tracer of `device`, which must have no command in flight. `perfetto` writes its records to a file,
    /// `ledger` sums them up.
    pub fn new(device: &mut Device, perfetto: Option<Perfetto>, ledger: Option<Ledger>) -> Self {
        let dynamic = device.config().ftl.allocation == Allocation::Dynamic;
        let spans = Spans::new(device.geometry(), dynamic);
        device.set_tracing(true);
        let mut perfetto = perfetto;
        if let Some(perfetto) = &mut perfetto {
            perfetto.begin(device);
        }
        Self {
            spans,
            open: BTreeMap::new(),
            waiting: BTreeMap::new(),
            below: BTreeMap::new(),
            numbers: 0,
            perfetto,
            ledger,
            over: false,
        }
    }

    /// Records that the host wants something; `id` is the id of its command, reused at the earliest after its
    /// completion was seen.
    pub fn submitted(&mut self, id: u64, asked: Asked) {
        if self.over {
            return;
        }
        let request = self.unfinished(id, asked, None);
        self.open.insert(id, Open { requests: vec![request], ..Open::default() });
    }

    fn unfinished(&mut self, token: u64, asked: Asked, entered: Option<Instant>) -> Unfinished {
        let number = self.numbers;
        self.numbers += 1;
        Unfinished { number, token, asked, entered, waited: Vec::new() }
    }

    /// Records that a request came to the block layer; `token` is reused at the earliest after its completion was seen.
    pub fn entered(&mut self, now: Instant, token: u64, asked: Asked) {
        if self.over {
            return;
        }
        let request = self.unfinished(token, asked, Some(now));
        self.waiting.insert(token, request);
    }

    /// Records that a request has left the block layer in command `id` on this queue of the link.
    pub fn left(&mut self, now: Instant, passage: &Passage, id: u64, queue: u16) {
        let Some(mut request) = self.waiting.remove(&passage.token).filter(|_| !self.over) else { return };
        let entered = request.entered.unwrap_or(now);
        let stage = if passage.is_merged { Stage::LayerMerged } else { Stage::LayerScheduler };
        let edges = [
            (Stage::LayerHeld, entered, passage.ready),
            (stage, passage.ready, passage.offered),
            (Stage::LayerDispatch, passage.offered, now),
        ];
        request.waited =
            edges.map(|(stage, from, until)| Piece::plain(stage, Reason::Itself, from, until)).into();
        request.asked.queue = queue;
        self.open.entry(id).or_default().requests.push(request);
    }

    /// Records that the command is on the link.
    pub fn sent(&mut self, now: Instant, id: u64) {
        if !self.over {
            self.open.entry(id).or_default().sent = Some(now);
        }
    }

    /// Takes the device's records; to be called after each call of [`Device::command`] and [`Device::event`].
    pub fn device(&mut self, now: Instant, device: &mut Device) {
        if self.over {
            return;
        }
        device.take_trace(|record| self.record(record));
        for served in self.spans.take_served() {
            if let Some(open) = self.open.get_mut(&served.id) {
                open.served = Some(served);
            }
        }
        if let Some(perfetto) = &mut self.perfetto {
            perfetto.counters(now, device);
            self.over = perfetto.is_full(now) && self.ledger.is_none();
            if self.over {
                perfetto.end(now, &self.spans, &self.open, &self.waiting);
                device.set_tracing(false);
            }
        }
    }

    fn record(&mut self, record: &Record) {
        if let Some(perfetto) = &mut self.perfetto {
            perfetto.record(record, &self.spans, &self.open);
        }
        self.spans.feed(record);
        if let Traced::Arrived { command, id } = record.what
            && let Some(open) = self.open.get(&id.0)
            && open.requests.iter().any(|of| matches!(of.asked.kind, Kind::Trim | Kind::WriteZeroes))
        {
            self.spans.note_trim(command);
        }
    }

    /// Records that the host has seen the completion; `counts` says of the token of each request in it whether the request
    /// belongs to the results. Without layers, the token is the command's id.
    pub fn seen(&mut self, now: Instant, id: u64, counts: impl Fn(u64) -> bool) {
        if self.over {
            return;
        }
        let Some(Open { requests, sent, served: Some(served) }) = self.open.remove(&id) else { return };
        let sent = sent.unwrap_or(served.arrived);
        for request in requests {
            let from = request.from(Some(sent));
            let Unfinished { number, token, asked, entered, waited } = request;
            let mut pieces = Vec::with_capacity(waited.len() + served.pieces.len() + 3);
            let edge = |stage, from, until| Piece::plain(stage, Reason::Itself, from, until);
            pieces.push(edge(Stage::HostQueue, from, entered.unwrap_or(sent)));
            pieces.extend(waited);
            pieces.push(edge(Stage::LinkDown, sent, served.arrived));
            pieces.extend(&served.pieces);
            pieces.push(edge(Stage::LinkUp, served.completed, now));
            pieces.retain(|piece| piece.from < piece.until);
            let (behind, failed, counts) = (served.behind, served.failed, counts(token));
            self.finished(Request { number, asked, from, until: now, pieces, behind, failed, counts });
        }
    }

    /// Records that a host FTL has seen the completion of its command `id`, which it knows by `name`.
    pub fn seen_below(&mut self, now: Instant, id: u64, name: u64) {
        if self.over {
            return;
        }
        let Some(Open { sent, served: Some(served), .. }) = self.open.remove(&id) else { return };
        let sent = sent.unwrap_or(served.arrived);
        self.below.insert(name, Below { sent, served, seen: now });
        while self.below.len() > BELOW_MAX {
            self.below.pop_first();
        }
    }

    /// Records that a host FTL has answered the request with this token; `passage` is its way through the FTL.
    pub fn answered(
        &mut self,
        now: Instant,
        token: u64,
        passage: Option<FtlPassage>,
        failed: bool,
        counts: bool,
    ) {
        let (Some(request), false) = (self.waiting.remove(&token), self.over) else { return };
        let (from, entered) = (request.from(None), request.entered.unwrap_or(now));
        let mut way = Way { at: from, until: now, pieces: Vec::new() };
        let mut behind = [0; REASONS];
        way.go(Stage::HostQueue, entered);
        if let Some(passage) = passage {
            way.go(Stage::FtlThread, passage.begun);
            way.go(Stage::FtlAdmission, passage.admitted);
            if let Some(below) = passage.cause.and_then(|name| self.below.get(&name)) {
                if way.at <= below.sent {
                    behind = below.served.behind;
                }
                way.go(Stage::FtlHeld, below.sent);
                way.go(Stage::LinkDown, below.served.arrived);
                below.served.pieces.iter().for_each(|piece| way.take(piece));
                way.go(Stage::LinkUp, below.seen);
            }
        }
        way.go(Stage::FtlThread, now);
        let Unfinished { number, asked, .. } = request;
        let pieces = way.pieces;
        self.finished(Request { number, asked, from, until: now, pieces, behind, failed, counts });
    }

    fn finished(&mut self, request: Request) {
        let Request { number, from, until, ref pieces, .. } = request;
        let end = pieces.iter().try_fold(from, |at, piece| (piece.from == at).then_some(piece.until));
        assert_eq!(end, Some(until), "the pieces of request {number} follow each other: {pieces:?}");
        if let Some(perfetto) = &mut self.perfetto {
            perfetto.request(&request);
        }
        if let Some(ledger) = &mut self.ledger {
            ledger.add(request);
        }
    }

    /// Whether neither the file nor the ledger needs more records.
    pub fn is_over(&self) -> bool {
        self.over
    }

    /// Ends the timeline and turns the tracer off.
    pub fn finish(mut self, now: Instant, device: &mut Device) -> Findings {
        self.device(now, device);
        device.set_tracing(false);
        if let Some(perfetto) = self.perfetto.as_mut().filter(|_| !self.over) {
            perfetto.end(now, &self.spans, &self.open, &self.waiting);
        }
        Findings { perfetto: self.perfetto.map(Perfetto::finish), ledger: self.ledger }
    }
}
