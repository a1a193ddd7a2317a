//! Timelines: where the time of a request goes in host and device, from the time a job wanted it until the host saw its
//! completion.
//!
//! Place in the data flow: the driver of a device (the engine below raw jobs and live servers, in virtual or real time)
//! reports the host's actions to a [`Timeline`] and lets it take the device's records after each event. The timeline
//! feeds [`Spans`], and those feed a Perfetto file ([`Perfetto`]) and sums for a reader ([`Ledger`]).
//!
//! ```text
//! timeline.submitted(now, id, asked)     the host wants something
//! timeline.sent(now, id)                 it is on the link
//! device.command(…), device.event(…)
//! timeline.device(now, &mut device)      after each of these calls
//! timeline.seen(now, id, counts)         the host has seen the completion
//! timeline.finish(now, &mut device)      at the end
//! ```
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
use request::Open;
use std::collections::BTreeMap;

/// Traces the requests of one device.
#[derive(Debug)]
pub struct Timeline {
    spans: Spans,
    open: BTreeMap<u64, Open>,
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
        Self { spans, open: BTreeMap::new(), numbers: 0, perfetto, ledger, over: false }
    }

    /// Records that the host wants something; `id` is the id of its command, reused at the earliest after its
    /// completion was seen.
    pub fn submitted(&mut self, id: u64, asked: Asked) {
        let number = self.numbers;
        self.numbers += 1;
        self.open.insert(id, Open { number, asked, sent: None, served: None });
    }

    /// Records that the command is on the link.
    pub fn sent(&mut self, now: Instant, id: u64) {
        if let Some(open) = self.open.get_mut(&id) {
            open.sent = Some(now);
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
                perfetto.end(now, &self.spans, &self.open);
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
            && matches!(open.asked.kind, Kind::Trim | Kind::WriteZeroes)
        {
            self.spans.note_trim(command);
        }
    }

    /// Records that the host has seen the completion; `counts` if the request belongs to the results.
    pub fn seen(&mut self, now: Instant, id: u64, counts: bool) {
        if self.over {
            return;
        }
        let Some(Open { number, asked, sent, served: Some(served) }) = self.open.remove(&id) else { return };
        let sent = sent.unwrap_or(served.arrived);
        let from = asked.intended.min(sent);
        let mut pieces = Vec::with_capacity(served.pieces.len() + 3);
        let edge = |stage, from, until| Piece::plain(stage, Reason::Itself, from, until);
        pieces.push(edge(Stage::HostQueue, from, sent));
        pieces.push(edge(Stage::LinkDown, sent, served.arrived));
        pieces.extend(served.pieces);
        pieces.push(edge(Stage::LinkUp, served.completed, now));
        pieces.retain(|piece| piece.from < piece.until);
        let end = pieces.iter().try_fold(from, |at, piece| (piece.from == at).then_some(piece.until));
        assert_eq!(end, Some(now), "the pieces of request {number} follow each other: {pieces:?}");
        let behind = served.behind;
        let request =
            Request { number, asked, from, until: now, pieces, behind, failed: served.failed, counts };
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
            perfetto.end(now, &self.spans, &self.open);
        }
        Findings { perfetto: self.perfetto.map(Perfetto::finish), ledger: self.ledger }
    }
}
