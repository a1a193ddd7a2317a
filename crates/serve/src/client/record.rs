//! What a client saw, in the log of the crash contract, and the judgement of what it sees after a power cut.
//!
//! The grain of a record is the unit of the contract. With the device's mapping unit as grain, a write of a part of a
//! unit is, as in the device, a new version of the whole unit, merged with what the unit held before: the unit is all
//! old or all new, and a mixture is a shorn write. A client knows that content only if nothing else that changes the
//! unit is in flight. With a block of 512 bytes as grain, requests in flight may share units: whatever version of a
//! unit a device may show, each of its blocks shows one of its own versions, and none older than what was promised.
//! The contract at this grain forbids less, and what it forbids the other forbids too.
//!
//! Invariants: requests in flight that change something share no grain, so their order is that of their submission;
//! numbers of operations are never used twice, also over power cuts.
//!
//! Of a trim only whole mapping units count; the device keeps the content of the rest.

use super::replies::Ask;
use super::stamp::{BLOCK, Shown, shown};
use crate::nbd::wire::{command, command_flag};
use flashweir_contract::{
    Content, DeviceKind, Kind, Log, Observed, OpIx, Oracle, Promises, Submission, Violation,
};
use flashweir_core::{CommandId, Lpn, Payload};
use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::ops::Range;
use std::sync::Arc;

/// How a device or a server failed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum FailureKind {
    /// Promised content is missing.
    Lost,
    /// A version is back that had been durably superseded.
    Resurrected,
    /// A unit mixes several of its versions.
    Shorn,
    /// Content that belongs elsewhere.
    Misdirected,
    /// Content that was never written.
    Corrupt,
    /// A read did not return the newest version.
    Stale,
    /// A read after the power cut failed.
    Unreadable,
    /// A request failed without a power cut.
    Refused,
    /// The server broke the protocol, went away or does not answer.
    Server,
    /// The record cannot be judged: a bug of the client that was recorded.
    Unjudged,
}

/// A violation and its place.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Failure {
    /// Its name.
    pub kind: FailureKind,
    /// Place and history of the violation.
    pub what: String,
}

impl Failure {
    /// A failure of this kind.
    pub fn new(kind: FailureKind, what: impl Into<String>) -> Self {
        Self { kind, what: what.into() }
    }
}

impl fmt::Display for Failure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let name = match self.kind {
            FailureKind::Lost => "lost",
            FailureKind::Resurrected => "resurrected",
            FailureKind::Shorn => "shorn write",
            FailureKind::Misdirected => "misdirected",
            FailureKind::Corrupt => "corrupt",
            FailureKind::Stale => "stale read",
            FailureKind::Unreadable => "unreadable",
            FailureKind::Refused => "refused",
            FailureKind::Server => "server",
            FailureKind::Unjudged => "not judged",
        };
        write!(f, "{name}: {}", self.what)
    }
}

impl std::error::Error for Failure {}

/// Counts of a judgement.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Judged {
    /// Units that were compared.
    pub units: u64,
    /// Operations that were in flight.
    pub in_flight: u64,
    /// Operations that the contract promised.
    pub promised: u64,
    /// Units that do not show the newest version that was submitted.
    pub older: u64,
}

#[derive(Debug)]
struct Open {
    op: Option<OpIx>,
    ask: Ask,
    /// Of a read: the bytes that it must return, if no request that changes them is in flight.
    expected: Option<Vec<u8>>,
}

#[derive(Clone, Copy, Debug, Default)]
struct Busy {
    changing: u16,
    reading: u16,
}

/// The record of one client program, or of several connections of one.
#[derive(Debug)]
pub struct Record {
    kind: DeviceKind,
    oracle: Oracle,
    log: Log,
    region: Range<u64>,
    grain: u64,
    unit: u64,
    /// Contents of the region when everything submitted has taken effect.
    model: Vec<u8>,
    /// Its contents when this log began.
    initial: Vec<u8>,
    busy: Vec<Busy>,
    open: BTreeMap<u64, Open>,
    /// Operations of this log that change something, in order of their numbers.
    ops: Vec<(u64, Ask)>,
    next_id: u64,
    overlap: Option<String>,
    /// Operations in flight that failed because the power failed.
    failed: u64,
}

fn content(bytes: &[u8]) -> Content {
    Content::from(&Payload::Bytes(Arc::from(bytes)))
}

impl Record {
    /// The record of a region of a disk that reads as `now`, durably. `unit` is the device's mapping unit and `grain`
    /// that of the judgement, both in bytes.
    pub fn new(kind: DeviceKind, region: Range<u64>, unit: u64, grain: u64, now: Vec<u8>) -> Self {
        assert!(
            region.start.is_multiple_of(unit) && region.end.is_multiple_of(unit),
            "a region is whole units"
        );
        assert!(
            unit.is_multiple_of(grain) && grain.is_multiple_of(BLOCK as u64),
            "a unit is whole grains of whole blocks"
        );
        let mut record = Self {
            kind,
            oracle: Oracle::new(kind.policy()),
            log: Log::new(),
            grain,
            unit,
            model: Vec::new(),
            initial: Vec::new(),
            busy: Vec::new(),
            region,
            open: BTreeMap::new(),
            ops: Vec::new(),
            next_id: 1,
            overlap: None,
            failed: 0,
        };
        record.restart(now, grain);
        record
    }

    /// Begins again with the region's contents after a power cut, which are durable: a recovery ends with everything durable that it
    /// shows.
    pub fn restart(&mut self, now: Vec<u8>, grain: u64) {
        self.grain = grain;
        assert_eq!(now.len() as u64, self.region.end - self.region.start, "the whole region is known");
        self.log.clear();
        let first = self.region.start / self.grain;
        for (lpn, bytes) in (first..).zip(now.chunks_exact(self.grain as usize)) {
            self.log.set_initial(Lpn(lpn), content(bytes));
        }
        self.initial.clone_from(&now);
        self.model = now;
        self.busy.clear();
        self.busy.resize(self.model.len() / grain as usize, Busy::default());
        self.open.clear();
        self.ops.clear();
        self.overlap = None;
        self.failed = 0;
    }

    /// Contents of the region when this log began.
    pub fn shown(&self) -> &[u8] {
        &self.initial
    }

    /// The region.
    pub fn region(&self) -> Range<u64> {
        self.region.clone()
    }

    /// Requests in flight.
    pub fn in_flight(&self) -> usize {
        self.open.len()
    }

    /// The number that the next operation will have.
    pub fn next_id(&self) -> u64 {
        self.next_id
    }

    /// Whether a request stays in the region.
    pub fn covers(&self, ask: &Ask) -> bool {
        let end = ask.offset.saturating_add(u64::from(ask.length));
        ask.command == command::FLUSH || (self.region.start <= ask.offset && end <= self.region.end)
    }

    /// Grains that a request touches, within the region.
    fn grains(&self, ask: &Ask) -> Range<usize> {
        assert!(self.covers(ask), "requests stay in the region: {ask:?}");
        if ask.command == command::FLUSH {
            return 0..0;
        }
        let (from, end) = (ask.offset, ask.offset + u64::from(ask.length));
        let at = |byte: u64| byte - self.region.start;
        (at(from) / self.grain) as usize..at(end).div_ceil(self.grain) as usize
    }

    /// Whether nothing is in flight whose order relative to this request would be unknown.
    pub fn is_free(&self, ask: &Ask) -> bool {
        let busy = &self.busy[self.grains(ask)];
        match ask.command {
            command::READ => busy.iter().all(|busy| busy.changing == 0),
            _ => busy.iter().all(|busy| busy.changing == 0 && busy.reading == 0),
        }
    }

    /// Notes that a request is submitted, with the data of a write. Returns its number.
    pub fn submit(&mut self, ask: &Ask, data: &[u8]) -> u64 {
        let id = self.next_id;
        self.next_id += 1;
        let grains = self.grains(ask);
        let free = self.is_free(ask);
        let kind = match ask.command {
            command::WRITE => Kind::Write,
            command::TRIM => Kind::Trim,
            command::WRITE_ZEROES => Kind::WriteZeroes,
            command::FLUSH => Kind::Flush,
            _ => {
                let reads = ask.command == command::READ;
                let expected = (free && reads).then(|| self.model[self.bytes(ask)].to_vec());
                self.busy[grains].iter_mut().for_each(|busy| busy.reading += 1);
                self.open.insert(id, Open { op: None, ask: ask.clone(), expected });
                return id;
            }
        };
        if kind != Kind::Flush {
            if self.busy[grains.clone()].iter().any(|busy| busy.changing > 0) {
                let why = format!("operation {id} changes what another one in flight changes: {ask:?}");
                self.overlap.get_or_insert(why);
            }
            self.forget_expectations(&grains);
        }
        let submission =
            Submission { fua: ask.flags & command_flag::FUA != 0, ..Submission::new(CommandId(id), kind) };
        let op = self.log.submit(submission);
        let changed = self.change(kind, ask, data);
        let first = self.region.start / self.grain;
        let units: Vec<(Lpn, Content)> = changed
            .map(|grain| {
                let bytes = &self.model[grain * self.grain as usize..(grain + 1) * self.grain as usize];
                (Lpn(first + grain as u64), content(bytes))
            })
            .collect();
        self.log.accept(op, id, units);
        self.busy[grains].iter_mut().for_each(|busy| busy.changing += 1);
        if kind != Kind::Flush {
            self.ops.push((id, ask.clone()));
        }
        self.open.insert(id, Open { op: Some(op), ask: ask.clone(), expected: None });
        id
    }

    /// The bytes of a request, from the beginning of the region.
    fn bytes(&self, ask: &Ask) -> Range<usize> {
        let from = (ask.offset - self.region.start) as usize;
        from..from + ask.length as usize
    }

    /// Reads in flight of these grains may return the old content or the new one.
    fn forget_expectations(&mut self, grains: &Range<usize>) {
        if self.busy[grains.clone()].iter().all(|busy| busy.reading == 0) {
            return;
        }
        let (start, grain) = (self.region.start, self.grain);
        for open in self.open.values_mut().filter(|open| open.expected.is_some()) {
            let from = (open.ask.offset - start) / grain;
            let end = (open.ask.offset - start + u64::from(open.ask.length)).div_ceil(grain);
            if (from as usize) < grains.end && grains.start < end as usize {
                open.expected = None;
            }
        }
    }

    /// Applies an operation to the model; returns the grains that it gave a new version.
    fn change(&mut self, kind: Kind, ask: &Ask, data: &[u8]) -> Range<usize> {
        let range = if kind == Kind::Flush { 0..0 } else { self.bytes(ask) };
        match kind {
            Kind::Write => self.model[range].copy_from_slice(data),
            Kind::WriteZeroes => self.model[range].fill(0),
            Kind::Trim => {
                let unit = self.unit as usize;
                let (from, end) = (range.start.div_ceil(unit) * unit, range.end / unit * unit);
                if from >= end {
                    return 0..0;
                }
                self.model[from..end].fill(0);
                return from / self.grain as usize..end / self.grain as usize;
            }
            _ => return 0..0,
        }
        self.grains(ask)
    }

    /// A reply has come.
    ///
    /// # Errors
    /// The request failed, or a read did not return the newest version.
    pub fn complete(&mut self, id: u64, result: &Result<Vec<u8>, u32>) -> Result<(), Failure> {
        let open = self.close(id, result.is_ok());
        let ask = &open.ask;
        match result {
            Err(errno) => {
                Err(Failure::new(FailureKind::Refused, format!("operation {id}, {ask:?}: error {errno}")))
            }
            Ok(read) => match open.expected.filter(|expected| expected != read) {
                None => Ok(()),
                Some(expected) => {
                    let differs = |(a, b): (&[u8], &[u8])| a != b;
                    let at = expected.chunks(BLOCK).zip(read.chunks(BLOCK)).position(differs).unwrap_or(0);
                    let at = at * BLOCK;
                    let lpn = Lpn((ask.offset + at as u64) / self.grain);
                    Err(Failure::new(
                        FailureKind::Stale,
                        format!(
                            "operation {id}, {ask:?}: block {} reads as {:?}, expected {:?}; {}",
                            (ask.offset as usize + at) / BLOCK,
                            shown(&read[at..at + BLOCK]),
                            shown(&expected[at..at + BLOCK]),
                            self.history(lpn)
                        ),
                    ))
                }
            },
        }
    }

    /// A request in flight failed because of a power cut, or was executed at an unknown time: it promises nothing.
    pub fn fail(&mut self, id: u64) {
        let open = self.close(id, false);
        self.failed += u64::from(open.op.is_some());
    }

    fn close(&mut self, id: u64, succeeded: bool) -> Open {
        let open = self.open.remove(&id).expect("a reply is to a request in flight");
        let grains = self.grains(&open.ask);
        match open.op {
            Some(op) => {
                self.log.complete(op, succeeded);
                self.busy[grains].iter_mut().for_each(|busy| busy.changing -= 1);
            }
            None => self.busy[grains].iter_mut().for_each(|busy| busy.reading -= 1),
        }
        open
    }

    /// Judges what the region reads as after a power cut.
    ///
    /// # Errors
    /// The contract forbids it.
    pub fn judge(&mut self, now: &[u8]) -> Result<Judged, Failure> {
        if let Some(why) = &self.overlap {
            return Err(Failure::new(FailureKind::Unjudged, why.clone()));
        }
        let grain = self.grain as usize;
        let seen: Vec<Content> = now.chunks_exact(grain).map(content).collect();
        let first = self.region.start / self.grain;
        let observed = |lpn: Lpn| Observed::Content(seen[(lpn.0 - first) as usize]);
        if let flashweir_contract::Verdict::Violation(violation) =
            self.oracle.check(&self.log, self.log.position(), observed)
        {
            return Err(self.explain(violation, now));
        }
        let promises = Promises::new(&self.log, self.log.position(), self.kind.policy().durability);
        let units = self.log.units_before(self.log.position()).iter();
        let promised: BTreeSet<OpIx> =
            units.filter(|unit| promises.of(&self.log, unit).is_some()).map(|unit| unit.op).collect();
        let older = now.chunks_exact(grain).zip(self.model.chunks_exact(grain)).filter(|(a, b)| a != b);
        Ok(Judged {
            units: seen.len() as u64,
            in_flight: self.failed + self.open.values().filter(|open| open.op.is_some()).count() as u64,
            promised: promised.len() as u64,
            older: older.count() as u64,
        })
    }

    fn explain(&self, violation: Violation, now: &[u8]) -> Failure {
        let lpn = match violation {
            Violation::LostPromise { op, unit, promise, .. } => {
                let (id, lpn) = (self.log.op(op).submission.id.0, self.log.unit(unit).lpn);
                let (_, found) = self.look_at(lpn, now);
                return Failure::new(
                    FailureKind::Lost,
                    format!(
                        "{} lacks operation {id}, promised by {promise:?}: {found}; {}",
                        self.place(lpn),
                        self.history(lpn)
                    ),
                );
            }
            Violation::Unreadable { lpn }
            | Violation::Impossible { lpn, .. }
            | Violation::BrokenOrder { lpn, .. } => lpn,
        };
        let (kind, found) = self.look_at(lpn, now);
        Failure::new(kind, format!("{}: {found}; {}", self.place(lpn), self.history(lpn)))
    }

    /// Changes of a unit with the flushes in between, the latest last.
    fn history(&self, lpn: Lpn) -> String {
        const LINES_MAX: usize = 24;
        let (from, end) = (lpn.0 * self.grain, (lpn.0 + 1) * self.grain);
        let by_id: BTreeMap<u64, &Ask> = self.ops.iter().map(|(id, ask)| (*id, ask)).collect();
        let mut lines = Vec::new();
        for op in self.log.ops() {
            let id = op.submission.id.0;
            let what = match (op.submission.kind, by_id.get(&id)) {
                (Kind::Flush, _) => "flush".to_owned(),
                (kind, Some(ask)) if ask.offset < end && from < ask.offset + u64::from(ask.length) => {
                    let fua = if op.submission.fua { " FUA" } else { "" };
                    format!("{kind:?}{fua} {}+{}", ask.offset, ask.length)
                }
                _ => continue,
            };
            let done = match op.completed() {
                Some((at, true)) => format!("done at {}", at.0),
                Some((at, false)) => format!("failed at {}", at.0),
                None => "open".into(),
            };
            lines.push(format!("{id} {what} asked at {} {done}", op.submitted_at.0));
        }
        let begin = lines.len().saturating_sub(LINES_MAX);
        let at = (from - self.region.start) as usize;
        format!("at first {:?}; {}", shown(&self.initial[at..at + BLOCK]), lines[begin..].join(", "))
    }

    fn place(&self, lpn: Lpn) -> String {
        format!("bytes {}..{}", lpn.0 * self.grain, (lpn.0 + 1) * self.grain)
    }

    /// Description of a unit's contents, and the kind of the violation if no version of the unit matches them.
    fn look_at(&self, lpn: Lpn, now: &[u8]) -> (FailureKind, String) {
        let begin = (lpn.0 * self.grain - self.region.start) as usize;
        let mut kind = FailureKind::Shorn;
        let mut blocks: Vec<String> = Vec::new();
        for at in (begin..begin + self.grain as usize).step_by(BLOCK) {
            let block = (self.region.start + at as u64) / BLOCK as u64;
            let now = &now[at..at + BLOCK];
            let shown = shown(now);
            let of_block = match shown {
                Shown::Stamp { block: other, .. } if other != block => FailureKind::Misdirected,
                Shown::Garbage => FailureKind::Corrupt,
                _ if now == &self.initial[at..at + BLOCK] || self.is_version(block, shown) => {
                    FailureKind::Shorn
                }
                _ => FailureKind::Resurrected,
            };
            let rank = [
                FailureKind::Shorn,
                FailureKind::Resurrected,
                FailureKind::Corrupt,
                FailureKind::Misdirected,
            ];
            let rank_of = |kind| rank.iter().position(|other| *other == kind);
            if rank_of(of_block) > rank_of(kind) {
                kind = of_block;
            }
            blocks.push(match shown {
                Shown::Zero => "0".into(),
                Shown::Garbage => "?".into(),
                Shown::Stamp { block: other, op } if other == block => op.to_string(),
                Shown::Stamp { block: other, op } => format!("{op} of block {other}"),
            });
        }
        (kind, format!("its blocks show operations {}", blocks.join(" ")))
    }

    /// Whether a block had this content at any time since the log began.
    fn is_version(&self, block: u64, shown: Shown) -> bool {
        let touches = |ask: &Ask, granule: u64| {
            let (from, end) = (ask.offset, ask.offset + u64::from(ask.length));
            let byte = block * BLOCK as u64 / granule * granule;
            from <= byte && byte + granule <= end
        };
        self.ops.iter().any(|(id, ask)| match (ask.command, shown) {
            (command::WRITE, Shown::Stamp { op, .. }) => *id == op && touches(ask, BLOCK as u64),
            (command::WRITE_ZEROES, Shown::Zero) => touches(ask, BLOCK as u64),
            (command::TRIM, Shown::Zero) => touches(ask, self.unit),
            _ => false,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::super::stamp::stamp;
    use super::*;

    const UNIT: u64 = 4096;

    fn record(kind: DeviceKind, grain: u64) -> Record {
        Record::new(kind, 0..8 * UNIT, UNIT, grain, vec![0; 8 * UNIT as usize])
    }

    fn ask(command: u16, offset: u64, length: u32) -> Ask {
        Ask { command, flags: 0, offset, length }
    }

    /// Submits a write of stamps; returns its number.
    fn write(record: &mut Record, offset: u64, length: u32) -> u64 {
        let mut data = vec![0; length as usize];
        stamp(&mut data, offset / BLOCK as u64, record.next_id());
        record.submit(&ask(command::WRITE, offset, length), &data)
    }

    #[test]
    fn a_region_covers_whole_requests_and_flushes() {
        let record = Record::new(DeviceKind::D1, 8 * UNIT..16 * UNIT, UNIT, UNIT, vec![0; 8 * UNIT as usize]);
        let covers = |command, offset, length| record.covers(&ask(command, offset, length));
        assert!(covers(command::WRITE, 8 * UNIT, 8 * UNIT as u32));
        assert!(covers(command::FLUSH, 0, 0));
        assert!(!covers(command::WRITE, 7 * UNIT, 2 * UNIT as u32));
        assert!(!covers(command::TRIM, 15 * UNIT, 2 * UNIT as u32));
        assert!(!covers(command::READ, u64::MAX, 1));
    }

    fn flush(record: &mut Record) {
        let flush = record.submit(&ask(command::FLUSH, 0, 0), &[]);
        record.complete(flush, &Ok(Vec::new())).unwrap();
    }

    fn kind(record: &mut Record, now: &[u8]) -> Option<FailureKind> {
        record.judge(now).err().map(|failure| failure.kind)
    }

    #[test]
    fn what_a_flush_covers_is_there_and_what_none_covers_may_go() {
        let mut record = record(DeviceKind::D1, UNIT);
        let id = write(&mut record, 0, 4096);
        record.complete(id, &Ok(Vec::new())).unwrap();
        let old = vec![0; 8 * UNIT as usize];
        assert_eq!(record.judge(&old).unwrap().older, 1);
        flush(&mut record);
        assert_eq!(kind(&mut record, &old), Some(FailureKind::Lost));
        let new = record.model.clone();
        assert_eq!(record.judge(&new).unwrap(), Judged { units: 8, in_flight: 0, promised: 1, older: 0 });
    }

    #[test]
    fn a_completion_is_a_promise_of_protected_devices_and_an_open_request_is_none() {
        for (device, lost) in [(DeviceKind::D0, true), (DeviceKind::D1, false), (DeviceKind::D2, true)] {
            let mut record = record(device, UNIT);
            let id = write(&mut record, 0, 512);
            let old = vec![0; 8 * UNIT as usize];
            assert_eq!(kind(&mut record, &old), None, "in flight");
            record.complete(id, &Ok(Vec::new())).unwrap();
            assert_eq!(kind(&mut record, &old) == Some(FailureKind::Lost), lost, "{device:?}");
        }
    }

    #[test]
    fn failures_have_their_names() {
        let mut record = record(DeviceKind::D1, UNIT);
        let first = write(&mut record, 0, 8192);
        record.complete(first, &Ok(Vec::new())).unwrap();
        let old = record.model.clone();
        record.restart(old.clone(), UNIT);
        let second = write(&mut record, 0, 4096);
        record.complete(second, &Ok(Vec::new())).unwrap();
        let new = record.model.clone();

        let mut shorn = new.clone();
        shorn[512..1024].copy_from_slice(&old[512..1024]);
        assert_eq!(kind(&mut record, &shorn), Some(FailureKind::Shorn));
        let mut misdirected = new.clone();
        misdirected[8192..12288].copy_from_slice(&new[0..4096]);
        assert_eq!(kind(&mut record, &misdirected), Some(FailureKind::Misdirected));
        let mut corrupt = new.clone();
        corrupt[4096 + 700] ^= 1;
        assert_eq!(kind(&mut record, &corrupt), Some(FailureKind::Corrupt));
        record.restart(new, UNIT);
        assert_eq!(kind(&mut record, &old), Some(FailureKind::Resurrected));
    }

    #[test]
    fn a_read_returns_the_newest_version() {
        let mut record = record(DeviceKind::D1, UNIT);
        write(&mut record, 0, 512);
        let read = ask(command::READ, 0, 512);
        assert!(!record.is_free(&read), "a write of it is in flight");
        record.complete(1, &Ok(Vec::new())).unwrap();
        let id = record.submit(&read, &[]);
        let stale = record.complete(id, &Ok(vec![0; 512])).unwrap_err();
        assert_eq!(stale.kind, FailureKind::Stale);
        let text = stale.to_string();
        assert!(text.contains("block 0 reads as Zero, expected Stamp { block: 0, op: 1 }"), "{text}");
        let id = record.submit(&read, &[]);
        let both = write(&mut record, 512, 512);
        record.complete(id, &Ok(vec![0; 512])).unwrap();
        record.complete(both, &Ok(Vec::new())).unwrap();
    }

    #[test]
    fn blocks_of_a_unit_are_apart_at_the_grain_of_blocks_and_one_at_the_grain_of_units() {
        for (grain, legal) in [(512, true), (UNIT, false)] {
            let mut record = record(DeviceKind::D1, grain);
            let old = write(&mut record, 0, 512);
            record.complete(old, &Ok(Vec::new())).unwrap();
            let new = write(&mut record, 512, 512);
            record.complete(new, &Ok(Vec::new())).unwrap();
            let mut second_alone = record.model.clone();
            second_alone[..512].fill(0);
            // The second version of the unit contains the first.
            assert_eq!(record.judge(&second_alone).is_ok(), legal, "{grain}");
        }
    }

    #[test]
    fn a_trim_is_of_whole_units() {
        let mut record = record(DeviceKind::D0, 512);
        let id = write(&mut record, 0, 3 * 4096);
        record.complete(id, &Ok(Vec::new())).unwrap();
        let trim = record.submit(&ask(command::TRIM, 512, 2 * 4096), &[]);
        record.complete(trim, &Ok(Vec::new())).unwrap();
        assert_ne!(record.model[4095], 0);
        assert_eq!(record.model[4096..8192], [0; 4096]);
        assert_ne!(record.model[8192], 0);
        let now = record.model.clone();
        assert_eq!(kind(&mut record, &now), None);
    }

    #[test]
    fn a_record_without_an_order_is_not_judged() {
        let mut record = record(DeviceKind::D1, UNIT);
        write(&mut record, 0, 512);
        write(&mut record, 1024, 512);
        let now = record.model.clone();
        assert_eq!(kind(&mut record, &now), Some(FailureKind::Unjudged));
    }
}
