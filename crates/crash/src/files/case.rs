//! A case: a sequence on a base, the thoroughness of its exploration, and the faults that can be found.
//!
//! Place in the data flow: campaigns and tokens make cases; [`super::explorer`] and [`super::whole`] explore them.

use super::bug::Bug;
use super::history::Violation;
use super::mounting::Did;
use super::on::On;
use super::ops::Ops;
use super::setup::Setup;
use super::tree::Tree;
use super::volume::{Base, Damage, Disk, check, recover};
use flashweir_contract::Contents;
use flashweir_sim::stack::FlushMode;
use serde::{Deserialize, Serialize};
use std::fmt;
use std::panic::{AssertUnwindSafe, catch_unwind};

/// Thoroughness of the exploration of a case.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Effort {
    /// Largest number of undecided blocks at a cut for which all states are explored; beyond it, those with one block
    /// missing or one present.
    pub exhaustive_max: u32,
    /// Number of further states that are drawn.
    pub draws: u32,
    /// Maximum number of images that are recovered.
    pub states_max: usize,
    /// One in this many images is also checked before its recovery; 0 means none.
    pub check_every: u64,
    /// The recovery of one in this many images is cut; 0 means none.
    pub nested_every: u64,
    /// Number of positions at which such a recovery is cut.
    pub nested_draws: u32,
    /// One in this many images is used after its recovery; 0 means none.
    pub exercise_every: u64,
    /// One in this many images lives on, and the power fails again; 0 means none. On the model device.
    pub lives_every: u64,
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
            lives_every: 24,
        }
    }
}

/// A case: a sequence on a base.
#[derive(Clone, Copy, Debug)]
pub struct Case<'a> {
    /// Device below the volume.
    pub on: On,
    /// Volume that it begins on.
    pub base: &'a Base,
    /// Flush mode of the host.
    pub mode: FlushMode,
    /// Planted bug to be found.
    pub planted: Option<Bug>,
    /// Operations of the sequence.
    pub ops: &'a Ops,
    /// Thoroughness of the exploration.
    pub effort: Effort,
    /// Further judges outside this program.
    pub outside: Option<Outside<'a>>,
}

impl Case<'_> {
    /// Returns the setup with which the volume is mounted.
    pub(super) fn setup(&self) -> Setup {
        Setup { format: self.base.format, mode: self.mode, base: self.base.seed, planted: self.planted }
    }
}

/// Gets the blocks of a disk and their number; the error describes a fault.
pub type Checker<'a> = &'a (dyn Fn(&Contents, u64) -> Result<(), String> + Sync);

/// Gets the blocks of a disk that was not recovered, their number, and the tree after Flashweir's own recovery. Returns
/// whether there was something to recover; the error describes a fault.
pub type Recoverer<'a> = &'a (dyn Fn(&Contents, u64, &Tree) -> Result<bool, String> + Sync);

/// Judges outside this program. Each is applied to one in this number of recovered images.
#[derive(Clone, Copy, Default)]
pub struct Outside<'a> {
    /// Checks the disk after Flashweir's own recovery.
    pub checker: Option<(u64, Checker<'a>)>,
    /// Recovers a copy with another program.
    pub recoverer: Option<(u64, Recoverer<'a>)>,
}

impl fmt::Debug for Outside<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let every = (self.checker.map(|(every, _)| every), self.recoverer.map(|(every, _)| every));
        write!(f, "Outside(one image in {every:?})")
    }
}

/// A fault found in a case.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Fault {
    /// Without a cut: the file system shows or answers something else than the reference.
    Differs(String),
    /// The recovered volume is damaged.
    Damage(Damage),
    /// A promise is broken.
    Violation(Violation),
    /// A recovery that was cut ends differently from an uninterrupted one.
    NotIdempotent(String),
    /// After a second cut, of a volume that had recovered from the first and was used.
    SecondLife(String),
    /// An outside judge reports a fault.
    Outside(String),
    /// An assertion failed.
    Panic(String),
}

impl Fault {
    /// Describes the fault in one line.
    pub fn what(&self) -> String {
        match self {
            Self::Differs(what) => format!("before any cut: {what}"),
            Self::Damage(damage) => damage.what(),
            Self::Violation(violation) => violation.what(),
            Self::NotIdempotent(what) => format!("after a recovery that was cut: {what}"),
            Self::SecondLife(what) => format!("in a second life: {what}"),
            Self::Outside(what) => format!("the judge outside: {what}"),
            Self::Panic(what) => format!("assertion: {what}"),
        }
    }

    /// Whether two faults are of the same sort, for the minimiser. All damage is: which damage is noticed first differs
    /// with each operation that is left out.
    pub fn resembles(&self, other: &Self) -> bool {
        use std::mem::discriminant as sort;
        match (self, other) {
            (Self::Violation(a), Self::Violation(b)) => sort(a) == sort(b),
            _ => sort(self) == sort(other),
        }
    }
}

/// A fault and the image that has it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Found {
    /// The fault.
    pub fault: Fault,
    /// Number of events of the device before the cut; `None` for a fault before any cut.
    pub cut: Option<u32>,
    /// Hash of the image.
    pub image: u64,
    /// A cut in its recovery: number of events before it, and hash of the image that it left.
    pub nested: Option<(u32, u64)>,
}

/// Counts of the work done.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Counts {
    /// Number of sequences.
    pub cases: u64,
    /// Number of operations in them.
    pub operations: u64,
    /// Number of positions at which the power was cut.
    pub cuts: u64,
    /// Number of states that the contract allows there and that were examined.
    pub allowed: u64,
    /// Number of recovered images that had not been seen before in their case, including those of cut recoveries.
    pub recovered: u64,
    /// Number of images that had not been seen before in any case.
    pub distinct: u64,
    /// … of which the number from cut recoveries.
    pub nested: u64,
    /// Number of verdicts of the oracle.
    pub judged: u64,
    /// Number of volumes that were used after recovery.
    pub exercised: u64,
    /// Number of volumes that were used after recovery until the power failed again.
    #[serde(default)]
    pub second_lives: u64,
    /// Number of images that an outside judge accepted after Flashweir's recovery.
    pub outside: u64,
    /// Number of images that an outside judge recovered to the same result as Flashweir.
    pub replayed: u64,
    /// Number of sections that the file system cleaned during sequences because space was needed.
    pub cleaned: u64,
    /// Number of sections cleaned in the background.
    #[serde(default)]
    pub cleaned_background: u64,
    /// Number of blocks written into holes.
    pub filled_holes: u64,
    /// Number of blocks that checkpoints of ext4, or cleaning of F2FS, moved by SHARE.
    #[serde(default)]
    pub shared_blocks: u64,
}

impl Counts {
    /// Returns the counts with those of a file system added.
    pub(super) fn with(self, did: Did) -> Self {
        let Did { cleaned, cleaned_background, filled_holes, shared_blocks } = did;
        Self { cleaned, cleaned_background, filled_holes, shared_blocks, ..self }
    }

    /// Adds other counts.
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
        self.second_lives += other.second_lives;
        self.outside += other.outside;
        self.replayed += other.replayed;
        self.cleaned += other.cleaned;
        self.cleaned_background += other.cleaned_background;
        self.filled_holes += other.filled_holes;
        self.shared_blocks += other.shared_blocks;
    }
}

/// Turns a failed assertion into a fault, where panics unwind.
pub(super) fn caught<T>(work: impl FnOnce() -> Result<T, Fault>) -> Result<T, Fault> {
    catch_unwind(AssertUnwindSafe(work)).unwrap_or_else(|panic| {
        let text = panic.downcast_ref::<String>().cloned();
        let text = text.or_else(|| panic.downcast_ref::<&str>().map(|text| (*text).into()));
        Err(Fault::Panic(text.unwrap_or_default()))
    })
}

/// Checks the volume of a case as a cut has left it, and recovers it.
pub(super) fn check_and_recover(disk: &mut impl Disk, case: &Case<'_>) -> Result<Tree, Fault> {
    caught(|| check(disk, case.base.format).map_err(Fault::Damage))?;
    caught(|| recover(disk, case.setup()).map_err(Fault::Damage))
}

/// Recovers again after a cut recovery; the result must equal that of the uninterrupted one.
pub fn idempotent(woken: &mut impl Disk, tree: &Tree, setup: Setup) -> Result<(), Fault> {
    let second = caught(|| recover(woken, setup).map_err(Fault::Damage))?;
    let same = tree.nodes.keys().map(|&number| (number, number)).collect();
    match tree.difference(&second, &same) {
        Some(difference) => Err(Fault::NotIdempotent(difference)),
        None => Ok(()),
    }
}
