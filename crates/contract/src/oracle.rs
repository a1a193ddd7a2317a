//! The crash oracle (contract §10): is what the device shows after a power cut a legal state?
//!
//! Place in the data flow: it takes a log and observations and returns a [`Verdict`]. Time is linear in the log; the
//! tables are kept from one check to the next, so that a warm oracle does not allocate.
//!
//! How it works: legal sets of persisted units are closed under union, so there is a greatest one. The set starts as
//! all accepted units; while the newest member on some LPN contradicts the observation there, that member is removed,
//! and with it everything that depends on it. The state is legal if the remaining set explains every observation and
//! contains every promised unit.

use crate::log::{Content, Kind, Log, LogPos, NONE, OpIx, Unit, UnitIx};
use crate::policy::{Durability, Policy, RangeFlushed};
use flashweir_core::Lpn;

/// Result of a read after recovery.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Observed {
    /// The unit reads as this content.
    Content(Content),
    /// The device reported that it cannot return the unit. Aged media hold a durable version of every unit, so a loss
    /// is illegal even where the device reports it.
    Unreadable,
}

impl From<Content> for Observed {
    fn from(content: Content) -> Self {
        Self::Content(content)
    }
}

/// Reason why an operation is promised (contract §4).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Promise {
    /// It completed on a device without volatile data.
    Completion,
    /// It completed and is FUA.
    Fua,
    /// It completed before this FLUSH was submitted, and that FLUSH completed.
    Flush(OpIx),
    /// It completed before this range flush was submitted, the range flush selects it, and the range flush completed.
    RangeFlush(OpIx),
}

/// The contradiction found in a state; indices refer to the log that was checked.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Violation {
    /// A unit cannot be read.
    Unreadable {
        /// LPN of the unit.
        lpn: Lpn,
    },
    /// A unit reads as something that neither was there initially nor was accepted.
    Impossible {
        /// LPN of the unit.
        lpn: Lpn,
        /// Content that was read.
        observed: Content,
    },
    /// A promised unit did not persist.
    LostPromise {
        /// Operation that the unit belongs to.
        op: OpIx,
        /// The promised unit.
        unit: UnitIx,
        /// Reason of the promise.
        promise: Promise,
        /// The unit that the observations contradict: `unit` itself, or one that it depends on.
        missing: UnitIx,
    },
    /// A unit persisted without one of an earlier epoch of its stream, or without its group.
    BrokenOrder {
        /// LPN where the violation is observed.
        lpn: Lpn,
        /// The newest unit that would explain the observation.
        seen: UnitIx,
        /// The unit it depends on, which the observations contradict.
        missing: UnitIx,
        /// Whether the dependency is that of an atomic group.
        torn: bool,
    },
}

/// The oracle's answer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Verdict {
    /// Some legal set of persisted units explains every observation.
    Legal,
    /// No such set exists.
    Violation(Violation),
}

impl Verdict {
    /// Whether the state is legal.
    pub fn is_legal(self) -> bool {
        self == Self::Legal
    }
}

/// Marks a unit that is still in the greatest set.
const KEPT: u32 = NONE;

/// The oracle of one kind of device. Between two checks it keeps only its allocated memory, nothing of a log.
#[derive(Clone, Debug)]
pub struct Oracle {
    policy: Policy,
    /// Observation per place (row of the log's table of LPNs).
    seen: Vec<Observed>,
    /// Newest kept unit per place.
    top: Vec<u32>,
    /// Newest unit per lane (stream) whose epoch was not yet removed as a whole.
    lane_top: Vec<u32>,
    /// Cause of removal per unit: `KEPT`, the unit itself if an observation contradicts it, or the unit that it
    /// depended on.
    cause: Vec<u32>,
    work: Vec<u32>,
}

impl Oracle {
    /// Makes an oracle for devices that keep `policy`.
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

    /// Judges by content what is read after a cut at `upto`; correct also where contents are equal. Calls `observed`
    /// once for each LPN of the log.
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

    /// Removes everything that depends on the removed unit `index`, and every unit that then contradicts an
    /// observation.
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

    /// Returns the first violation: impossible observations first, then units that an observation contradicts directly,
    /// then those removed through a dependency.
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

    /// Whether a newer version keeps this promise of `unit`.
    fn is_kept_by_newer(&self, promise: Promise, promises: &Promises, log: &Log, unit: &Unit) -> bool {
        matches!(promise, Promise::RangeFlush(_))
            && promises.is_or_newer(log, unit, self.policy.range_flushed)
    }

    /// Returns the unit whose contradiction led to the removal of `unit`.
    fn root(&self, mut unit: u32) -> UnitIx {
        while self.cause[unit as usize] != unit {
            unit = self.cause[unit as usize];
        }
        UnitIx(unit)
    }

    /// Judges by identity (contract §10.3): each observation names the unit that it shows. Returns `None` if an
    /// observation could come from two units, or from a unit and the initial content; only [`Oracle::check`] can judge
    /// these.
    pub fn check_by_identity(
        &mut self,
        log: &Log,
        upto: LogPos,
        observed: impl Fn(Lpn) -> Observed,
    ) -> Option<bool> {
        let units = log.units_before(upto);
        self.start(log, units, observed);
        let shown = self.identify(log, units)?;
        // From here on `cause` says whether a unit is needed, and `lane_top` is the next unit of each lane to be
        // examined.
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
            *seen != Observed::Unreadable && *shown != Some(NONE) // `NONE`: no unit explains the observation
        });
        let newest_shown = units.iter().enumerate().all(|(index, unit)| {
            self.cause[index] == KEPT || shown[unit.place as usize].is_some_and(|shown| index as u32 <= shown)
        });
        Some(readable && newest_shown && are_newer_kept)
    }

    /// Returns the unit shown per place: `None` for the initial content, `Some(NONE)` if there is no candidate.
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

    /// Adds everything that the needed unit `index` depends on: its group and all earlier epochs of its stream.
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

/// The operations that are promised at a cut.
#[derive(Clone, Debug)]
pub struct Promises {
    upto: LogPos,
    durability: Durability,
    /// The completed FLUSH that was submitted last: it promises everything that earlier ones do.
    flush: Option<(LogPos, OpIx)>,
    /// The completed range flushes, the newest first.
    range_flushes: Vec<(LogPos, OpIx)>,
}

impl Promises {
    /// Collects the promises that hold at a cut at `upto`.
    pub fn new(log: &Log, upto: LogPos, durability: Durability) -> Self {
        let completed = |kind: Kind| {
            let ops = log.ops().iter().enumerate().rev();
            ops.filter(move |(_, op)| op.submission.kind == kind && op.succeeded_before(upto))
                .map(|(index, op)| (op.submitted_at, OpIx(index as u32)))
        };
        let (flush, range_flushes) = (completed(Kind::Flush).next(), completed(Kind::RangeFlush).collect());
        Self { upto, durability, flush, range_flushes }
    }

    /// Returns the reason why `unit` is promised, if it is. [`RangeFlushed`] says what a range flush promises.
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

    /// Whether a newer version may replace a unit that a range flush promises.
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
