//! Enumerates the legal states after a power cut (crash-laboratory §3.1).
//!
//! Place in the data flow: it takes a log and a cut and yields [`CrashState`]s; the model device hands them to the
//! file-system tests.
//!
//! It yields all states while few atoms are undecided; beyond that, those with at most two atoms missing or at most two
//! present, then random ones. Equal states are recognised by a hash of their contents and yielded once.
//!
//! The enumeration works forward from the definition of contract §3.1, the oracle backward from observations: neither
//! uses the other, so that each can be checked against the other.

use crate::log::{Content, Log, LogPos, NONE, Unit, UnitIx};
use crate::oracle::{Observed, Promise, Promises};
use crate::policy::Policy;
use flashweir_core::random::mix;
use flashweir_core::{Lpn, RandomStream};
use std::collections::BTreeSet;

/// Limits of the enumeration.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Exploration {
    /// Largest number of undecided atoms of which all subsets are yielded; at most 20.
    pub exhaustive_atoms_max: u32,
    /// Whether, beyond that, states with two atoms missing or present are yielded, or only those with one.
    pub pairs: bool,
    /// Number of random draws beyond that.
    pub random_draws: u32,
    /// Seed of the draws.
    pub seed: u64,
}

impl Default for Exploration {
    fn default() -> Self {
        Self { exhaustive_atoms_max: 12, pairs: true, random_draws: 256, seed: 0 }
    }
}

/// One state after a cut: the newest persisted unit of every LPN of the log.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct CrashState {
    /// Newest unit per row of the log's table of LPNs; `NONE` is the initial content.
    newest: Vec<u32>,
}

impl CrashState {
    /// Iterates over every LPN of the log with the unit that it shows; `None` is the initial content.
    pub fn shown<'a>(&'a self, log: &'a Log) -> impl Iterator<Item = (Lpn, Option<UnitIx>)> + 'a {
        let unit = |&unit: &u32| (unit != NONE).then_some(UnitIx(unit));
        log.lpns().zip(&self.newest).map(move |((lpn, _), newest)| (lpn, unit(newest)))
    }

    /// Returns what `lpn` reads as.
    pub fn content(&self, log: &Log, lpn: Lpn) -> Content {
        match log.row(lpn).map(|row| self.newest[row as usize]) {
            None | Some(NONE) => log.initial(lpn),
            Some(unit) => log.unit(UnitIx(unit)).content,
        }
    }

    /// Returns what `lpn` reads as, in the form that the oracle takes.
    pub fn observed(&self, log: &Log, lpn: Lpn) -> Observed {
        Observed::Content(self.content(log, lpn))
    }
}

/// A set of units that persists as a whole: an atomic group, or one unit.
#[derive(Clone, Copy, Debug)]
struct Atom {
    first: u32,
    len: u32,
    /// Row of the stream; `NONE` if the atom is orderless on this device.
    stream: u32,
    epoch: u32,
    /// Whether it is in every legal state.
    forced: bool,
}

/// Position of the enumeration. Pairs `(i, j)` are of undecided atoms; `i == j` names a single one.
#[derive(Clone, Copy, Debug)]
enum Phase {
    Subsets { next: u32 },
    AllPresent,
    Missing { i: usize, j: usize },
    NonePresent,
    Present { i: usize, j: usize },
    Random { left: u32 },
    Done,
}

/// Iterator over the legal states of a log at a cut.
#[derive(Clone, Debug)]
pub struct LegalStates<'a> {
    log: &'a Log,
    units: &'a [Unit],
    atoms: Vec<Atom>,
    /// Atoms that the contract leaves open and whose presence can be observed.
    undecided: Vec<u32>,
    /// Atoms with a unit that is promised to persist or to be replaced by a newer one, each with that unit.
    or_newer: Vec<(u32, u32)>,
    /// Atoms that persisted in the state under construction.
    kept: Vec<bool>,
    phase: Phase,
    random: RandomStream,
    random_draws: u32,
    pairs: bool,
    shown: BTreeSet<u64>,
}

impl<'a> LegalStates<'a> {
    /// Starts the enumeration of the legal states of `log` at `upto`, on devices that keep `policy`.
    pub fn new(log: &'a Log, upto: LogPos, policy: Policy, exploration: Exploration) -> Self {
        assert!(exploration.exhaustive_atoms_max <= 20, "2^20 subsets are the most that is sensible");
        let units = log.units_before(upto);
        let mut atoms = atoms_of(units, policy);
        let or_newer = force(&mut atoms, log, units, upto, policy);
        let undecided = undecided_of(log, units, &atoms);
        let exhaustive = undecided.len() <= exploration.exhaustive_atoms_max as usize;
        Self {
            log,
            units,
            kept: vec![false; atoms.len()],
            atoms,
            undecided,
            or_newer,
            phase: if exhaustive { Phase::Subsets { next: 0 } } else { Phase::NonePresent },
            random: RandomStream::new(exploration.seed, "legal states"),
            random_draws: exploration.random_draws,
            pairs: exploration.pairs,
            shown: BTreeSet::new(),
        }
    }

    /// Returns the number of atoms that the contract leaves open.
    pub fn undecided(&self) -> usize {
        self.undecided.len()
    }

    /// Whether every legal state is yielded.
    pub fn is_exhaustive(&self) -> bool {
        matches!(self.phase, Phase::Subsets { .. })
    }

    /// Whether atom `a` depends on atom `b`: a later epoch of the same stream.
    fn depends(&self, a: u32, b: u32) -> bool {
        let (a, b) = (&self.atoms[a as usize], &self.atoms[b as usize]);
        a.stream != NONE && a.stream == b.stream && a.epoch > b.epoch
    }

    /// Includes all undecided atoms, or none of them.
    fn fill(&mut self, present: bool) {
        for (kept, atom) in self.kept.iter_mut().zip(&self.atoms) {
            *kept = atom.forced;
        }
        for &atom in &self.undecided {
            self.kept[atom as usize] = present;
        }
    }

    /// Removes an atom and everything that depends on it, or adds it with everything it depends on.
    fn flip(&mut self, which: usize, present: bool) {
        let atom = self.undecided[which];
        for i in 0..self.undecided.len() {
            let other = self.undecided[i];
            let follows = if present { self.depends(atom, other) } else { self.depends(other, atom) };
            if other == atom || follows {
                self.kept[other as usize] = present;
            }
        }
    }

    /// Includes the subset of this mask; returns false if the subset is not closed under dependency.
    fn subset(&mut self, mask: u32) -> bool {
        self.fill(false);
        for (bit, &atom) in self.undecided.iter().enumerate() {
            self.kept[atom as usize] = mask & (1 << bit) != 0;
        }
        let kept = |atom: &&u32| self.kept[**atom as usize];
        self.undecided.iter().filter(kept).all(|&a| {
            let missing = |&&b: &&u32| !self.kept[b as usize];
            !self.undecided.iter().filter(missing).any(|&b| self.depends(a, b))
        })
    }

    /// Draws a random closed subset: orderless atoms by chance, and of each stream a prefix of epochs and a part of the
    /// next one.
    fn draw(&mut self) {
        self.fill(false);
        let p = (self.random.below(7) + 1) as f64 / 8.0;
        let lanes = self.log.lanes.len();
        let mut ends = vec![0; lanes];
        for &atom in &self.undecided {
            let atom = &self.atoms[atom as usize];
            if atom.stream != NONE {
                ends[atom.stream as usize] = atom.epoch + 1;
            }
        }
        for end in &mut ends {
            *end = self.random.below(u64::from(*end) + 1) as u32;
        }
        for &index in &self.undecided {
            let atom = &self.atoms[index as usize];
            let end = if atom.stream == NONE { atom.epoch } else { ends[atom.stream as usize] };
            self.kept[index as usize] = atom.epoch < end || (atom.epoch == end && self.random.chance(p));
        }
    }

    /// Returns the pair after this one.
    fn next_pair(&self, i: usize, j: usize) -> (usize, usize) {
        if self.pairs && j + 1 < self.undecided.len() { (i, j + 1) } else { (i + 1, i + 1) }
    }

    /// Makes the next closed set in `kept`; returns false at the end.
    fn advance(&mut self) -> bool {
        loop {
            match self.phase {
                Phase::Subsets { next } => {
                    if next >> self.undecided.len() != 0 {
                        self.phase = Phase::Done;
                        continue;
                    }
                    self.phase = Phase::Subsets { next: next + 1 };
                    if self.subset(next) {
                        return true;
                    }
                }
                Phase::NonePresent => {
                    self.fill(false);
                    self.phase = Phase::AllPresent;
                    return true;
                }
                Phase::AllPresent => {
                    self.fill(true);
                    self.phase = Phase::Missing { i: 0, j: 0 };
                    return true;
                }
                Phase::Missing { i, j } if i < self.undecided.len() => {
                    self.fill(true);
                    self.flip(i, false);
                    self.flip(j, false);
                    let (i, j) = self.next_pair(i, j);
                    self.phase = Phase::Missing { i, j };
                    return true;
                }
                Phase::Missing { .. } => self.phase = Phase::Present { i: 0, j: 0 },
                Phase::Present { i, j } if i < self.undecided.len() => {
                    self.fill(false);
                    self.flip(i, true);
                    self.flip(j, true);
                    let (i, j) = self.next_pair(i, j);
                    self.phase = Phase::Present { i, j };
                    return true;
                }
                Phase::Present { .. } => self.phase = Phase::Random { left: self.random_draws },
                Phase::Random { left: 0 } => self.phase = Phase::Done,
                Phase::Random { left } => {
                    self.phase = Phase::Random { left: left - 1 };
                    self.draw();
                    return true;
                }
                Phase::Done => return false,
            }
        }
    }

    /// Adds each promised unit that no newer unit replaces, with everything it depends on.
    fn keep_promises(&mut self) {
        if self.or_newer.is_empty() {
            return;
        }
        let kept = |atom: &u32| self.kept[*atom as usize];
        let mut newest = self.newest((0..self.atoms.len() as u32).filter(kept));
        for &(atom, unit) in &self.or_newer {
            let newer = newest[self.units[unit as usize].place as usize];
            if newer != NONE && newer >= unit {
                continue;
            }
            for other in 0..self.atoms.len() as u32 {
                if (other == atom || self.depends(atom, other)) && !self.kept[other as usize] {
                    self.kept[other as usize] = true;
                    self.show(other, &mut newest);
                }
            }
        }
    }

    /// Returns the newest unit of each place among these atoms.
    fn newest(&self, atoms: impl Iterator<Item = u32>) -> Vec<u32> {
        let mut newest = vec![NONE; self.log.places.len()];
        atoms.for_each(|atom| self.show(atom, &mut newest));
        newest
    }

    /// Adds the units of an atom to the newest ones.
    fn show(&self, atom: u32, newest: &mut [u32]) {
        let atom = &self.atoms[atom as usize];
        for unit in atom.first..atom.first + atom.len {
            let place = &mut newest[self.units[unit as usize].place as usize];
            if *place == NONE || *place < unit {
                *place = unit;
            }
        }
    }

    /// Returns the state of the set in `kept` and the hash of its contents.
    fn state(&self) -> (CrashState, u64) {
        let kept = |atom: &u32| self.kept[*atom as usize];
        let newest = self.newest((0..self.atoms.len() as u32).filter(kept));
        let hash = newest.iter().zip(&self.log.places).fold(0, |hash: u64, (&unit, place)| {
            let content = if unit == NONE { place.initial } else { self.units[unit as usize].content };
            mix(hash.rotate_left(7) ^ content.0)
        });
        (CrashState { newest }, hash)
    }
}

impl Iterator for LegalStates<'_> {
    type Item = CrashState;

    fn next(&mut self) -> Option<CrashState> {
        while self.advance() {
            self.keep_promises();
            let (state, hash) = self.state();
            if self.shown.insert(hash) {
                return Some(state);
            }
        }
        None
    }
}

fn atoms_of(units: &[Unit], policy: Policy) -> Vec<Atom> {
    let mut atoms = Vec::with_capacity(units.len());
    let mut first = 0;
    while first < units.len() {
        let unit = &units[first];
        let len = if policy.atomic { unit.mates().len().max(1) } else { 1 };
        let (stream, epoch) = if policy.ordered { (unit.stream, unit.epoch) } else { (NONE, 0) };
        atoms.push(Atom { first: first as u32, len: len as u32, stream, epoch, forced: false });
        first += len;
    }
    atoms
}

/// Marks the promised units and everything they depend on. Returns the units that a newer one may replace, each with
/// its atom.
fn force(atoms: &mut [Atom], log: &Log, units: &[Unit], upto: LogPos, policy: Policy) -> Vec<(u32, u32)> {
    let promises = Promises::new(log, upto, policy.durability);
    let mut stable = vec![0; log.lanes.len()];
    let mut or_newer = Vec::new();
    // Where no newer unit exists, and nothing else persists with the unit, "or a newer one" is as strong as the unit
    // itself.
    let mut newest = vec![NONE; log.places.len()];
    (0..).zip(units).for_each(|(index, unit)| newest[unit.place as usize] = index);
    let is_weak = |unit: &Unit| {
        (policy.ordered || policy.atomic) && promises.is_or_newer(log, unit, policy.range_flushed)
    };
    for (number, atom) in atoms.iter_mut().enumerate() {
        for index in atom.first..atom.first + atom.len {
            let unit = &units[index as usize];
            match promises.of(log, unit) {
                Some(Promise::RangeFlush(_)) if newest[unit.place as usize] != index && is_weak(unit) => {
                    or_newer.push((number as u32, index));
                }
                promise => atom.forced |= promise.is_some(),
            }
        }
        if atom.forced && atom.stream != NONE {
            stable[atom.stream as usize] = atom.epoch;
        }
    }
    for atom in atoms.iter_mut().filter(|atom| atom.stream != NONE) {
        atom.forced |= atom.epoch < stable[atom.stream as usize];
    }
    or_newer.retain(|(atom, _)| !atoms[*atom as usize].forced);
    or_newer
}

/// Returns the open atoms without those that a forced unit hides on every LPN: these cannot be observed, and whatever
/// depends on one of them depends on its predecessors as well.
fn undecided_of(log: &Log, units: &[Unit], atoms: &[Atom]) -> Vec<u32> {
    let mut forced = vec![0; log.places.len()];
    for atom in atoms.iter().filter(|atom| atom.forced) {
        for unit in atom.first..atom.first + atom.len {
            forced[units[unit as usize].place as usize] = unit + 1;
        }
    }
    let hidden = |atom: &Atom| {
        let below = |unit: u32| forced[units[unit as usize].place as usize] > unit;
        (atom.first..atom.first + atom.len).all(below)
    };
    let open = |(_, atom): &(usize, &Atom)| !atom.forced && !hidden(atom);
    atoms.iter().enumerate().filter(open).map(|(index, _)| index as u32).collect()
}
