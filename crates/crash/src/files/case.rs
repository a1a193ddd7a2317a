//! A case: a sequence on a base, how far it is explored, and what can be found wrong.
//!
//! Place in the data flow: campaigns and tokens make cases, [`super::explorer`] and [`super::whole`] explore them.

use super::bug::Bug;
use super::mounting::Did;
use super::ops::Ops;
use super::oracle::Violation;
use super::setup::Setup;
use super::tree::Tree;
use super::volume::{Base, Damage, Disk, recover};
use flashweir_contract::Contents;
use flashweir_sim::stack::FlushMode;
use serde::{Deserialize, Serialize};
use std::fmt;
use std::panic::{AssertUnwindSafe, catch_unwind};

/// What a file system is on.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum On {
    /// Any device that keeps the contract: after a cut, any state that it allows.
    #[default]
    Model,
    /// The same, whose answers come late and not in the order of the requests: several of them are under way.
    Late,
    /// Our simulated device, cut between and in its operations, and brought back by its own recovery.
    Device,
}

impl On {
    /// All, with their names and what the file system's name has behind it in a token.
    pub const ALL: [(Self, &'static str, &'static str); 3] = [
        (Self::Model, "model", ""),
        (Self::Late, "late", "-on-late"),
        (Self::Device, "device", "-on-device"),
    ];

    /// Its name.
    pub fn name(self) -> &'static str {
        Self::ALL.iter().find(|(known, ..)| *known == self).map_or("", |(_, name, _)| name)
    }

    pub(super) fn suffix(self) -> &'static str {
        Self::ALL.iter().find(|(known, ..)| *known == self).map_or("", |(.., suffix)| suffix)
    }
}

/// How far a case is explored.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Effort {
    /// At a cut all states up to this many undecided blocks; beyond, those with one missing or one present.
    pub exhaustive_max: u32,
    /// And so many that are drawn.
    pub draws: u32,
    /// Images that are recovered, at most.
    pub states_max: usize,
    /// One image in so many is also checked before its recovery; 0 is none.
    pub check_every: u64,
    /// The recovery of one image in so many is cut; 0 is none.
    pub nested_every: u64,
    /// In so many places.
    pub nested_draws: u32,
    /// One image in so many is used after its recovery; 0 is none.
    pub exercise_every: u64,
}

impl Default for Effort {
    fn default() -> Self {
        Self {
            exhaustive_max: 7,
            draws: 24,
            states_max: 250,
            check_every: 8,
            nested_every: 16,
            nested_draws: 3,
            exercise_every: 32,
        }
    }
}

/// A case.
#[derive(Clone, Copy, Debug)]
pub struct Case<'a> {
    /// What the volume is on.
    pub on: On,
    /// What it begins on.
    pub base: &'a Base,
    /// What the host makes of flushes.
    pub mode: FlushMode,
    /// A bug to be found.
    pub planted: Option<Bug>,
    /// What is done.
    pub ops: &'a Ops,
    /// How far to go.
    pub effort: Effort,
    /// Who else judges.
    pub outside: Option<Outside<'a>>,
}

impl Case<'_> {
    /// How the volume is mounted.
    pub(super) fn setup(&self) -> Setup {
        Setup { format: self.base.format, mode: self.mode, base: self.base.seed, planted: self.planted }
    }
}

/// Gets the blocks of a disk and how many it has; says what is wrong.
pub type Checker<'a> = &'a (dyn Fn(&Contents, u64) -> Result<(), String> + Sync);

/// Gets the same of a disk that was not recovered, and what it shows after our recovery; says whether there was something to
/// recover, or what is wrong.
pub type Recoverer<'a> = &'a (dyn Fn(&Contents, u64, &Tree) -> Result<bool, String> + Sync);

/// Judges outside of this program, each for one recovered image in so many.
#[derive(Clone, Copy, Default)]
pub struct Outside<'a> {
    /// Looks at what our recovery leaves.
    pub checker: Option<(u64, Checker<'a>)>,
    /// Recovers a copy of its own.
    pub recoverer: Option<(u64, Recoverer<'a>)>,
}

impl fmt::Debug for Outside<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let every = (self.checker.map(|(every, _)| every), self.recoverer.map(|(every, _)| every));
        write!(f, "Outside(one image in {every:?})")
    }
}

/// What is wrong.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Fault {
    /// Without a cut: the file system shows or answers something else than the reference.
    Differs(String),
    /// The recovered volume is not as it should be.
    Damage(Damage),
    /// A promise is broken.
    Violation(Violation),
    /// A recovery that was cut ends otherwise than one that was not.
    NotIdempotent(String),
    /// The judge outside finds something wrong.
    Outside(String),
    /// An assertion failed.
    Panic(String),
}

impl Fault {
    /// What is wrong, in one line.
    pub fn what(&self) -> String {
        match self {
            Self::Differs(what) => format!("before any cut: {what}"),
            Self::Damage(damage) => damage.what(),
            Self::Violation(violation) => violation.what(),
            Self::NotIdempotent(what) => format!("after a recovery that was cut: {what}"),
            Self::Outside(what) => format!("the judge outside: {what}"),
            Self::Panic(what) => format!("assertion: {what}"),
        }
    }

    /// Whether two faults are of one sort, for the minimiser.
    pub fn resembles(&self, other: &Self) -> bool {
        use std::mem::discriminant as sort;
        match (self, other) {
            (Self::Damage(a), Self::Damage(b)) => sort(a) == sort(b),
            (Self::Violation(a), Self::Violation(b)) => sort(a) == sort(b),
            _ => sort(self) == sort(other),
        }
    }
}

/// A fault and the image that has it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Found {
    /// What is wrong.
    pub fault: Fault,
    /// Events of the device before the cut; none for a fault before any cut.
    pub cut: Option<u32>,
    /// Hash of the image.
    pub image: u64,
    /// A cut in its recovery: events before it, hash of the image that it left.
    pub nested: Option<(u32, u64)>,
}

/// What was done.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Counts {
    /// Sequences.
    pub cases: u64,
    /// Operations in them.
    pub operations: u64,
    /// Positions at which the power was cut.
    pub cuts: u64,
    /// States that the contract allows there and that were looked at.
    pub allowed: u64,
    /// Images that were recovered and had not been seen before in their case, those of cut recoveries included.
    pub recovered: u64,
    /// Images that had not been seen before in any case.
    pub distinct: u64,
    /// … of recoveries that were cut.
    pub nested: u64,
    /// Verdicts of the oracle.
    pub judged: u64,
    /// Volumes that were used after recovery.
    pub exercised: u64,
    /// Images that a judge outside found good after our recovery.
    pub outside: u64,
    /// Images that one recovered to what ours is.
    pub replayed: u64,
    /// Sections that the file system cleaned during sequences because room was needed.
    pub cleaned: u64,
    /// Those that it cleaned because there was time.
    #[serde(default)]
    pub cleaned_background: u64,
    /// Blocks that it wrote into holes.
    pub filled_holes: u64,
}

impl Counts {
    /// With what a file system did.
    pub(super) fn with(self, did: Did) -> Self {
        let Did { cleaned, cleaned_background, filled_holes } = did;
        Self { cleaned, cleaned_background, filled_holes, ..self }
    }

    /// Adds another count.
    pub fn add(&mut self, other: &Self) {
        self.cases += other.cases;
        self.operations += other.operations;
        self.cuts += other.cuts;
        self.allowed += other.allowed;
        self.recovered += other.recovered;
        self.distinct += other.distinct;
        self.nested += other.nested;
        self.judged += other.judged;
        self.exercised += other.exercised;
        self.outside += other.outside;
        self.replayed += other.replayed;
        self.cleaned += other.cleaned;
        self.cleaned_background += other.cleaned_background;
        self.filled_holes += other.filled_holes;
    }
}

/// Turns an assertion into a fault, where panics unwind.
pub(super) fn caught<T>(work: impl FnOnce() -> Result<T, Fault>) -> Result<T, Fault> {
    catch_unwind(AssertUnwindSafe(work)).unwrap_or_else(|panic| {
        let text = panic.downcast_ref::<String>().cloned();
        let text = text.or_else(|| panic.downcast_ref::<&str>().map(|text| (*text).into()));
        Err(Fault::Panic(text.unwrap_or_default()))
    })
}

/// Recovers after a recovery that was cut; what it shows is what that one showed.
pub fn idempotent(woken: &mut impl Disk, tree: &Tree, setup: Setup) -> Result<(), Fault> {
    let second = caught(|| recover(woken, setup).map_err(Fault::Damage))?;
    let same = tree.nodes.keys().map(|&number| (number, number)).collect();
    match tree.difference(&second, &same) {
        Some(difference) => Err(Fault::NotIdempotent(difference)),
        None => Ok(()),
    }
}
