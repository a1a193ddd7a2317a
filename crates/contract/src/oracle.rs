//! The crash oracle (contract §10): is what the device shows after a power cut a legal state?
//!
//! Place in the data flow: log plus observations in, [`Verdict`] out. Time is linear in the log; the
//! tables are kept from one check to the next, so that a warm oracle does not allocate.
//!
//! How it works: legal sets of persisted units are closed under union, so there is a greatest one. It
//! starts as all accepted units; while the newest member on some LPN contradicts what was observed there,
//! that member goes, and with it everything that depends on it. The state is legal if the rest explains
//! every observation and contains every promised unit.

use crate::log::{Content, Kind, Log, LogPos, NONE, OpIx, Unit, UnitIx};
use crate::policy::{Durability, Policy, RangeFlushed};
use flashweir_core::Lpn;

/// What a read after recovery gave.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Observed {
    /// A content.
    Content(Content),
    /// The device reported that it cannot give the unit back. Aged media have a durable version of every
    /// unit, so a loss is illegal even where the device admits it.
    Unreadable,
}

impl From<Content> for Observed {
    fn from(content: Content) -> Self {
        Self::Content(content)
    }
}

/// Why an operation is promised (contract §4).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Promise {
    /// It completed on a device without volatile data.
    Completion,
    /// It completed and is FUA.
    Fua,
    /// It completed before this FLUSH was submitted, and the FLUSH completed.
    Flush(OpIx),
    /// The same of this range flush, which selects it.
    RangeFlush(OpIx),
}

/// What is wrong with a state; indices refer to the log that was checked.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Violation {
    /// A unit cannot be read.
    Unreadable {
        /// Which.
        lpn: Lpn,
    },
    /// A unit reads as something that neither was there initially nor was accepted.
    Impossible {
        /// Which.
        lpn: Lpn,
        /// What it reads as.
        observed: Content,
    },
    /// A promised unit did not persist.
    LostPromise {
        /// Of which operation.
        op: OpIx,
        /// The promised unit.
        unit: UnitIx,
        /// Why it was promised.
        promise: Promise,
        /// The unit that the observations contradict: `unit` itself, or one that it depends on.
        missing: UnitIx,
    },
    /// A unit persisted without one of an earlier epoch of its stream, or without its group.
    BrokenOrder {
        /// Where it is seen.
        lpn: Lpn,
        /// The newest unit that would explain what is seen.
        seen: UnitIx,
        /// The unit it depends on, which the observations contradict.
        missing: UnitIx,
        /// The dependency is the one of an atomic group.
        torn: bool,
    },
}

/// The oracle's answer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Verdict {
    /// Some legal set of persisted units explains every observation.
    Legal,
    /// None does.
    Violation(Violation),
}

impl Verdict {
    /// Whether the state is legal.
    pub fn is_legal(self) -> bool {
        self == Self::Legal
    }
}

/// A unit that is still in the greatest set.
const KEPT: u32 = NONE;

/// The oracle of one device. It holds nothing of a log between two checks, only memory.
#[derive(Clone, Debug)]
pub struct Oracle {
    policy: Policy,
    /// Observation per place.
    seen: Vec<Observed>,
    /// Newest kept unit per place.
    top: Vec<u32>,
    /// Newest unit per lane whose epoch was not yet removed as a whole.
    lane_top: Vec<u32>,
    /// Per unit: `KEPT`, itself if an observation contradicts it, or the unit that took it along.
    cause: Vec<u32>,
    work: Vec<u32>,
}

impl Oracle {
    /// An oracle for devices that keep `policy`.
    pub fn new(policy: Policy) -> Self {
        Self {
            policy,
            seen: Vec::new(),
            top: Vec::new(),
            lane_top: Vec::new(),
            cause: Vec::new(),
            work: Vec::new(),
        }
    }

    /// Judges what is read after a cut at `upto`, by content: right also where contents are equal.
    /// `observed` is asked once for each LPN that the log knows.
    pub fn check(&mut self, log: &Log, upto: LogPos, observed: impl Fn(Lpn) -> Observed) -> Verdict {
        let units = log.units_before(upto);
        self.start(log, units, observed);
        for place in 0..log.places.len() as u32 {
            self.sift(units, place);
            while let Some(unit) = self.work.pop() {
                self.propagate(units, unit);
            }
        }
        match self.judge(log, units, upto) {
            None => Verdict::Legal,
            Some(violation) => Verdict::Violation(violation),
        }
    }

    fn start(&mut self, log: &Log, units: &[Unit], observed: impl Fn(Lpn) -> Observed) {
        self.seen.clear();
        self.seen.extend(log.places.iter().map(|place| observed(place.lpn)));
        self.top.clear();
        self.top.resize(log.places.len(), NONE);
        self.lane_top.clear();
        self.lane_top.resize(log.lanes.len(), NONE);
        self.cause.clear();
        self.cause.resize(units.len(), KEPT);
        self.work.clear();
        for (index, unit) in units.iter().enumerate() {
            self.top[unit.place as usize] = index as u32;
            if unit.stream != NONE {
                self.lane_top[unit.stream as usize] = index as u32;
            }
        }
    }

    /// Removes the newest units of `place` until one agrees with the observation.
    #[inline]
    fn sift(&mut self, units: &[Unit], place: u32) {
        let seen = self.seen[place as usize];
        loop {
            let top = self.top[place as usize];
            if top == NONE {
                return;
            }
            let unit = &units[top as usize];
            if self.cause[top as usize] == KEPT {
                if seen == Observed::Content(unit.content) {
                    return;
                }
                self.remove(top, top);
            }
            self.top[place as usize] = unit.older;
        }
    }

    #[inline]
    fn remove(&mut self, unit: u32, cause: u32) {
        if self.cause[unit as usize] == KEPT {
            self.cause[unit as usize] = cause;
            self.work.push(unit);
        }
    }

    /// Removes what depends on the removed `index`, and what then contradicts an observation.
    fn propagate(&mut self, units: &[Unit], index: u32) {
        let unit = &units[index as usize];
        if self.policy.atomic {
            for mate in unit.mates() {
                self.remove(mate as u32, index);
            }
        }
        if self.policy.ordered && unit.stream != NONE {
            let lane = unit.stream as usize;
            while self.lane_top[lane] != NONE && units[self.lane_top[lane] as usize].epoch > unit.epoch {
                let later = self.lane_top[lane];
                self.remove(later, index);
                self.lane_top[lane] = units[later as usize].stream_prev;
            }
        }
        self.sift(units, unit.place);
    }

    /// The first violation: what cannot be at all, then what an observation contradicts directly, then
    /// what follows from a dependency.
    fn judge(&self, log: &Log, units: &[Unit], upto: LogPos) -> Option<Violation> {
        let mut broken = None;
        for (row, place) in log.places.iter().enumerate() {
            let Observed::Content(observed) = self.seen[row] else {
                return Some(Violation::Unreadable { lpn: place.lpn });
            };
            if self.top[row] != NONE || observed == place.initial {
                continue;
            }
            let explains = |u: &Unit| u.place as usize == row && u.content == observed;
            let Some(seen) = units.iter().rposition(explains) else {
                return Some(Violation::Impossible { lpn: place.lpn, observed });
            };
            if broken.is_none() {
                let torn = units[seen].mates().contains(&(self.cause[seen] as usize));
                let (seen, missing) = (UnitIx(seen as u32), self.root(seen as u32));
                broken = Some(Violation::BrokenOrder { lpn: place.lpn, seen, missing, torn });
            }
        }
        let promises = Promises::new(log, upto, self.policy.durability);
        let mut implied = None;
        for (index, unit) in units.iter().enumerate() {
            if self.cause[index] == KEPT {
                continue;
            }
            if let Some(promise) = promises.of(log, unit) {
                let newest = self.top[unit.place as usize];
                if self.is_kept_by_newer(promise, &promises, log, unit)
                    && newest != NONE
                    && newest > index as u32
                {
                    continue;
                }
                let (index, missing) = (UnitIx(index as u32), self.root(index as u32));
                let lost = Violation::LostPromise { op: unit.op, unit: index, promise, missing };
                if missing == index {
                    return Some(lost);
                }
                implied = implied.or(Some(lost));
            }
        }
        broken.or(implied)
    }

    /// Whether a newer version keeps this promise, which is one of `unit`.
    fn is_kept_by_newer(&self, promise: Promise, promises: &Promises, log: &Log, unit: &Unit) -> bool {
        matches!(promise, Promise::RangeFlush(_))
            && promises.is_or_newer(log, unit, self.policy.range_flushed)
    }

    /// The unit whose contradiction took `unit` along.
    fn root(&self, mut unit: u32) -> UnitIx {
        while self.cause[unit as usize] != unit {
            unit = self.cause[unit as usize];
        }
        UnitIx(unit)
    }

    /// Judges by identity (contract §10.3): each observation names the unit that it shows. `None` if one could
    /// come from two units, or from a unit and the initial content: then only [`Oracle::check`] is right.
    pub fn check_by_identity(
        &mut self,
        log: &Log,
        upto: LogPos,
        observed: impl Fn(Lpn) -> Observed,
    ) -> Option<bool> {
        let units = log.units_before(upto);
        self.start(log, units, observed);
        let shown = self.identify(log, units)?;
        // From here on `cause` says whether a unit is needed and `lane_top` the next one to be looked at.
        for (lane, next) in log.lanes.iter().zip(&mut self.lane_top) {
            *next = lane.first;
        }
        let promises = Promises::new(log, upto, self.policy.durability);
        let mut are_newer_kept = true;
        for (index, unit) in units.iter().enumerate() {
            let shown = shown[unit.place as usize];
            let promise = promises.of(log, unit);
            if promise.is_some_and(|promise| self.is_kept_by_newer(promise, &promises, log, unit)) {
                are_newer_kept &= shown.is_some_and(|shown| index as u32 <= shown);
            } else if promise.is_some() {
                self.remove(index as u32, index as u32);
            }
            if shown == Some(index as u32) {
                self.remove(index as u32, index as u32);
            }
        }
        while let Some(index) = self.work.pop() {
            self.require(units, index);
        }
        let readable = shown.iter().zip(&self.seen).all(|(shown, seen)| {
            *seen != Observed::Unreadable && *shown != Some(NONE) // NONE: nothing could have been seen
        });
        let newest_shown = units.iter().enumerate().all(|(index, unit)| {
            self.cause[index] == KEPT || shown[unit.place as usize].is_some_and(|shown| index as u32 <= shown)
        });
        Some(readable && newest_shown && are_newer_kept)
    }

    /// Per place the unit that is shown: `None` the initial content, `Some(NONE)` no candidate.
    fn identify(&self, log: &Log, units: &[Unit]) -> Option<Vec<Option<u32>>> {
        let mut shown = Vec::with_capacity(log.places.len());
        for (row, place) in log.places.iter().enumerate() {
            let seen = self.seen[row];
            let mut found = None;
            let mut candidates = usize::from(seen == Observed::Content(place.initial));
            for (index, unit) in units.iter().enumerate() {
                if unit.place as usize == row && seen == Observed::Content(unit.content) {
                    found = Some(index as u32);
                    candidates += 1;
                }
            }
            shown.push(match candidates {
                0 => Some(NONE),
                1 => found,
                _ => return None,
            });
        }
        Some(shown)
    }

    /// Adds what the needed `index` depends on: its group and all earlier epochs of its stream.
    fn require(&mut self, units: &[Unit], index: u32) {
        let unit = &units[index as usize];
        if self.policy.atomic {
            for mate in unit.mates() {
                self.remove(mate as u32, index);
            }
        }
        if self.policy.ordered && unit.stream != NONE {
            let lane = unit.stream as usize;
            while units[self.lane_top[lane] as usize].epoch < unit.epoch {
                let earlier = self.lane_top[lane];
                self.remove(earlier, index);
                self.lane_top[lane] = units[earlier as usize].stream_next;
            }
        }
    }
}

/// Which operations are promised at a cut.
#[derive(Clone, Debug)]
pub struct Promises {
    upto: LogPos,
    durability: Durability,
    /// The completed FLUSH that was submitted last: it promises whatever an earlier one does.
    flush: Option<(LogPos, OpIx)>,
    /// The completed range flushes, the newest first.
    range_flushes: Vec<(LogPos, OpIx)>,
}

impl Promises {
    /// The promises that hold at a cut at `upto`.
    pub fn new(log: &Log, upto: LogPos, durability: Durability) -> Self {
        let completed = |kind: Kind| {
            let ops = log.ops().iter().enumerate().rev();
            ops.filter(move |(_, op)| op.submission.kind == kind && op.succeeded_before(upto))
                .map(|(index, op)| (op.submitted_at, OpIx(index as u32)))
        };
        let (flush, range_flushes) = (completed(Kind::Flush).next(), completed(Kind::RangeFlush).collect());
        Self { upto, durability, flush, range_flushes }
    }

    /// Why `unit` is promised, if it is. What a range flush promises of it is in [`RangeFlushed`].
    #[inline]
    pub fn of(&self, log: &Log, unit: &Unit) -> Option<Promise> {
        let op = log.op(unit.op);
        if !op.succeeded_before(self.upto) {
            return None;
        }
        if self.durability == Durability::AtCompletion {
            return Some(Promise::Completion);
        }
        if op.submission.fua {
            return Some(Promise::Fua);
        }
        if let Some((_, flush)) = self.flush.filter(|&(at, _)| op.succeeded_before(at)) {
            return Some(Promise::Flush(flush));
        }
        let mut later = self.range_flushes.iter().take_while(|(at, _)| op.succeeded_before(*at));
        later.find(|(_, flush)| log.selects(*flush, unit)).map(|(_, flush)| Promise::RangeFlush(*flush))
    }

    /// Whether a newer version may stand for a unit that a range flush promises.
    pub(crate) fn is_or_newer(&self, log: &Log, unit: &Unit, range_flushed: RangeFlushed) -> bool {
        if range_flushed == RangeFlushed::OrNewer {
            return true;
        }
        let Some(other) = log.units_before(self.upto).get(unit.orderless as usize) else { return false };
        let (op, replaced_at) = (log.op(unit.op), log.op(other.op).submitted_at);
        let flushes = self.range_flushes.iter().take_while(|(at, _)| op.succeeded_before(*at));
        let mut earlier = flushes.filter(|(_, flush)| {
            log.op(*flush).completed().is_some_and(|(completed_at, _)| completed_at < replaced_at)
        });
        !earlier.any(|(_, flush)| log.selects(*flush, unit))
    }
}
