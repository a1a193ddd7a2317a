//! Campaigns: many sequences, explored on several threads, counted, their violations minimised.
//!
//! Invariant: a report is a function of its configuration. Sequences are numbered, threads take them in order, and the
//! report covers the first ones by number, whichever threads explored them.

use super::ace;
use super::bug::Bug;
use super::case::{Case, Counts, Effort, Fault, Found, Outside};
use super::explorer;
use super::format::Format;
use super::names::names;
use super::on::On;
use super::ops::Ops;
use super::setup::FULL;
use super::token::{Token, mode_name};
use super::volume::Base;
use flashweir_contract::minimise;
use flashweir_fs::ext4::Journaling;
use flashweir_sim::stack::FlushMode;
use serde::{Deserialize, Serialize};
use std::cell::RefCell;
use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Mutex, MutexGuard, PoisonError};

/// Number of bases that the sequences of one campaign take in turn.
const BASES: u64 = 2;
/// Maximum number of explorations that the minimiser may spend on one violation.
const MINIMISE_RUNS_MAX: u32 = 150;

/// Kind of the sequences.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Sequences {
    /// All sequences of one operation, after ACE.
    Seq1,
    /// Random sequences of two operations, after ACE.
    Seq2,
    /// Random sequences of up to 31 operations.
    Random,
    /// Random sequences on a nearly full volume, so that space must be freed for each.
    Cleaning,
    /// Random sequences in which freed blocks are reused for something else, while the journal still contains them.
    Reuse,
    /// Random sequences with files that are created without a name and get one, and with access control lists.
    Nameless,
    /// Random sequences over files of so many extents that their maps have nodes below the inode.
    Trees,
    /// Random sequences of two tasks that work at once.
    Tasks,
    /// Random sequences over atomic files, on a file system that journals data.
    Sets,
    /// Random sequences in which files are copied into each other.
    Copies,
}

impl Sequences {
    /// All kinds with their names.
    pub const ALL: [(Self, &'static str); 10] = [
        (Self::Seq1, "seq-1"),
        (Self::Seq2, "seq-2"),
        (Self::Random, "random"),
        (Self::Cleaning, "cleaning"),
        (Self::Reuse, "reuse"),
        (Self::Nameless, "nameless"),
        (Self::Trees, "trees"),
        (Self::Tasks, "tasks"),
        (Self::Sets, "sets"),
        (Self::Copies, "copies"),
    ];

    /// Returns its name.
    pub fn name(self) -> &'static str {
        Self::ALL.iter().find(|(known, _)| *known == self).map_or("", |(_, name)| name)
    }

    /// Names of all kinds.
    pub const NAMES: [&str; Self::ALL.len()] = names(&Self::ALL);

    /// Whether these sequences can be executed on this file system; otherwise the error says on which they can.
    pub fn check(self, format: Format) -> Result<(), String> {
        let is_for =
            |format: Format| self != Self::Sets || format.journaling == Journaling::Journal || format.shares;
        if is_for(format) {
            return Ok(());
        }
        let formats = Format::ALL.iter().filter(|(format, _)| is_for(*format));
        let formats: Vec<&str> = formats.map(|(_, name)| *name).collect();
        let (name, format, formats) = (self.name(), format.name(), formats.join(", "));
        Err(format!("{name} on {format}: expected a file system that journals data or has SHARE: {formats}"))
    }
}

/// Configuration of a campaign.
#[derive(Clone, Debug)]
pub struct FileCrashConfig {
    /// File system under test.
    pub format: Format,
    /// Device below the file system.
    pub on: On,
    /// Kind of the sequences.
    pub sequences: Sequences,
    /// Maximum number of sequences; `None` means all of a finite kind, and no limit for an infinite one.
    pub count: Option<u64>,
    /// Number of distinct images after which the exploration ends; `None` for no limit.
    pub states: Option<u64>,
    /// Seed of bases and of random sequences.
    pub seed: u64,
    /// Flush mode of the host.
    pub mode: FlushMode,
    /// Planted bug to be found.
    pub planted: Option<Bug>,
    /// Number of threads.
    pub jobs: usize,
    /// Thoroughness of the exploration of each sequence.
    pub effort: Effort,
    /// Number of violations after which exploration ends.
    pub violations_max: usize,
    /// Whether to search for the shortest sequence of each violation.
    pub minimise: bool,
}

impl Default for FileCrashConfig {
    fn default() -> Self {
        Self {
            format: Format::F2FS,
            on: On::Model,
            sequences: Sequences::Seq1,
            count: None,
            states: None,
            seed: 1,
            mode: FlushMode::RangeFlush,
            planted: None,
            jobs: 1,
            effort: Effort::default(),
            violations_max: 1,
            minimise: true,
        }
    }
}

/// Progress of an exploration.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct FileCrashProgress {
    /// Number of sequences finished.
    pub sequences: u64,
    /// Number of distinct images so far.
    pub distinct: u64,
    /// Fraction of the work that is done, 0 to 1.
    pub fraction: f64,
    /// Number of violations so far.
    pub violations: usize,
}

/// A readable violation: the fault, and the way to reproduce it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct FileViolation {
    /// The fault in one line.
    pub what: String,
    /// The shortest sequence that was found, in the form that a replay takes.
    pub token: String,
    /// The sequence in which it was found.
    pub found_as: String,
}

/// Results of an exploration.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct FileCrashReport {
    /// File system under test.
    pub format: Format,
    /// Device below the file system.
    pub on: On,
    /// Name of the kind of sequences.
    pub sequences: String,
    /// Number of sequences of a finite kind.
    pub sequences_all: Option<u64>,
    /// Name of the host's flush mode.
    pub mode: String,
    /// Seed.
    pub seed: u64,
    /// Name of the planted bug, if there was one.
    pub planted: Option<String>,
    /// Sum of all counts.
    pub totals: Counts,
    /// Violations, in the order of the sequences.
    pub violations: Vec<FileViolation>,
}

/// The sequences of a configuration: a list, or a function of the number.
enum Source {
    List(Vec<Ops>),
    Drawn(fn(u64) -> Ops, u64),
}

impl Source {
    fn new(config: &FileCrashConfig) -> Self {
        match config.sequences {
            Sequences::Seq1 if config.format.is_dual() => {
                let mut all = ace::barriers();
                all.extend((0..).zip(ace::seq1()).map(|(number, ops)| ace::with_barriers(ops, number)));
                Self::List(all)
            }
            Sequences::Seq1 => Self::List(ace::seq1()),
            Sequences::Seq2 => Self::Drawn(ace::seq2, config.seed),
            Sequences::Random => Self::Drawn(ace::random, config.seed),
            Sequences::Cleaning => Self::Drawn(ace::cleaning, config.seed),
            Sequences::Reuse => Self::Drawn(ace::reuse, config.seed),
            Sequences::Nameless => Self::Drawn(ace::nameless, config.seed),
            Sequences::Trees => Self::Drawn(ace::trees, config.seed),
            Sequences::Tasks => Self::Drawn(ace::tasks, config.seed),
            Sequences::Sets => Self::Drawn(ace::sets, config.seed),
            Sequences::Copies => Self::Drawn(ace::copies, config.seed),
        }
    }

    fn get(&self, number: u64, format: Format) -> Option<Ops> {
        match self {
            Self::List(list) => list.get(number as usize).cloned(),
            Self::Drawn(draw, seed) => {
                // Keeps the seeds of consecutive campaigns apart.
                let ops = draw(seed.wrapping_mul(1 << 32).wrapping_add(number));
                Some(if format.is_dual() { ace::with_barriers(ops, number) } else { ops })
            }
        }
    }

    fn len(&self) -> Option<u64> {
        match self {
            Self::List(list) => Some(list.len() as u64),
            Self::Drawn(..) => None,
        }
    }
}

struct Ended {
    counts: Counts,
    images: Vec<u64>,
    violation: Option<FileViolation>,
}

struct Shared<P> {
    next: u64,
    ended: BTreeMap<u64, Ended>,
    report: FileCrashReport,
    images: BTreeSet<u64>,
    stop: bool,
    progress: P,
}

/// Explores sequences until there are no more, or the wanted number of images or violations is reached, or `progress`
/// returns false. `outside` also judges some of the recovered images. Fails if the volume cannot be prepared.
pub fn explore(
    config: &FileCrashConfig,
    outside: Option<Outside<'_>>,
    progress: impl FnMut(FileCrashProgress) -> bool + Send,
) -> Result<FileCrashReport, String> {
    config.sequences.check(config.format)?;
    config.on.check(config.format)?;
    let kind = if config.sequences == Sequences::Cleaning { FULL } else { 0 };
    let seeds = (0..BASES).map(|base| config.seed.wrapping_mul(BASES).wrapping_add(base) & !FULL | kind);
    let bases = seeds.map(|seed| Base::make(config.format, seed));
    let bases = bases.collect::<Result<Vec<_>, _>>()?;
    let source = Source::new(config);
    let report = FileCrashReport {
        format: config.format,
        on: config.on,
        sequences: config.sequences.name().into(),
        sequences_all: source.len(),
        mode: mode_name(config.mode).into(),
        seed: config.seed,
        planted: config.planted.map(|bug| bug.name().into()),
        ..FileCrashReport::default()
    };
    let count = match (config.count, source.len()) {
        (Some(count), Some(all)) => Some(count.min(all)),
        (count, all) => count.or(all),
    };
    if count.is_none() && config.states.is_none() {
        return Err("drawn sequences have no end: expected a number of sequences or of states".into());
    }
    let images = BTreeSet::new();
    let shared =
        Mutex::new(Shared { next: 0, ended: BTreeMap::new(), report, images, stop: false, progress });
    let work = || {
        loop {
            // The lock is released before the sequence begins.
            let next = lock(&shared).take();
            let Some(number) = next.filter(|&number| count.is_none_or(|count| number < count)) else { break };
            let Some(ops) = source.get(number, config.format) else { break };
            let base = &bases[(number % BASES) as usize];
            let case = Case {
                on: config.on,
                base,
                mode: config.mode,
                planted: config.planted,
                ops: &ops,
                effort: config.effort,
                outside,
            };
            let (counts, images, found) = one(&case);
            let violation = found.map(|found| report_of(&case, &found, config.minimise));
            lock(&shared).put(number, Ended { counts, images, violation }, config, count);
        }
    };
    std::thread::scope(|scope| {
        (1..config.jobs.max(1)).for_each(|_| {
            scope.spawn(work);
        });
        work();
    });
    Ok(shared.into_inner().unwrap_or_else(PoisonError::into_inner).report)
}

fn lock<T>(shared: &Mutex<T>) -> MutexGuard<'_, T> {
    shared.lock().unwrap_or_else(PoisonError::into_inner)
}

thread_local! {
    static CURRENT: RefCell<Option<Token>> = const { RefCell::new(None) };
}

/// Returns the sequence that this thread is working on, for the message of a panic that does not unwind.
pub fn current_case() -> Option<Token> {
    CURRENT.with(|current| current.borrow().clone())
}

fn one(case: &Case<'_>) -> (Counts, Vec<u64>, Option<Found>) {
    let (format, mode, base) = (case.base.format, case.mode, case.base.seed);
    let (ops, planted) = (case.ops.clone(), case.planted);
    let token = Token { format, on: case.on, mode, base, ops, cut: None, image: 0, nested: None, planted };
    CURRENT.with(|current| current.replace(Some(token)));
    let explored = explorer::explore(case);
    CURRENT.with(|current| current.replace(None));
    explored
}

fn report_of(case: &Case<'_>, found: &Found, is_minimised: bool) -> FileViolation {
    let found_as = Token::of(case, found).to_string();
    let (ops, shortest) = match is_minimised.then(|| shortest(case, found)).flatten() {
        Some((ops, shortest)) => (ops, shortest),
        None => (case.ops.clone(), found.clone()),
    };
    let token = Token::of(&Case { ops: &ops, ..*case }, &shortest).to_string();
    let what = shortest.fault.what();
    let what = match ops.0.is_empty() {
        true => format!("in the prepared volume, before any operation: {what}"),
        false => what,
    };
    FileViolation { what, token, found_as }
}

/// Returns the shortest list of operations after which exploration finds a fault of the same sort.
fn shortest(case: &Case<'_>, found: &Found) -> Option<(Ops, Found)> {
    let with = |ops: &Ops| {
        let other = explorer::explore(&Case { ops, ..*case }).2;
        other.filter(|other| other.fault.resembles(&found.fault))
    };
    with(case.ops)?;
    let mut runs = 0;
    let best = minimise(&case.ops.0, |ops| {
        runs += 1;
        runs <= MINIMISE_RUNS_MAX && with(&Ops(ops.to_vec())).is_some()
    });
    let best = Ops(best);
    let found = with(&best)?;
    Some((best, found))
}

impl<P: FnMut(FileCrashProgress) -> bool> Shared<P> {
    fn take(&mut self) -> Option<u64> {
        let number = self.next;
        self.next += 1;
        (!self.stop).then_some(number)
    }

    /// Takes over finished sequences in order.
    fn put(&mut self, number: u64, ended: Ended, config: &FileCrashConfig, count: Option<u64>) {
        self.ended.insert(number, ended);
        while !self.stop
            && let Some(ended) = self.ended.remove(&self.report.totals.cases)
        {
            let report = &mut self.report;
            let distinct = ended.images.iter().filter(|&&image| self.images.insert(image)).count() as u64;
            report.totals.add(&Counts { distinct, ..ended.counts });
            report.violations.extend(ended.violation);
            let totals = &report.totals;
            let part = |done: u64, all: Option<u64>| all.map_or(0.0, |all| done as f64 / all.max(1) as f64);
            let fraction = part(totals.cases, count).max(part(totals.distinct, config.states));
            let progress = FileCrashProgress {
                sequences: totals.cases,
                distinct: totals.distinct,
                fraction: fraction.min(1.0),
                violations: report.violations.len(),
            };
            self.stop = config.states.is_some_and(|states| totals.distinct >= states);
            self.stop |= progress.violations >= config.violations_max;
            self.stop |= !(self.progress)(progress);
        }
    }
}

/// Replays a token; returns `None` if there is no fault. Fails if the token names something that does not exist.
pub fn replay(token: &Token) -> Result<Option<Fault>, String> {
    let base = Base::make(token.format, token.base)?;
    let Token { on, mode, planted, ref ops, .. } = *token;
    let case = Case { on, base: &base, mode, planted, ops, effort: Effort::default(), outside: None };
    explorer::replay(&case, token.cut, token.image, token.nested)
}

/// The result for one planted bug.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct FileMutant {
    /// Name of the bug.
    pub bug: String,
    /// Number of images recovered until it was found, or until the budget was spent.
    pub recovered: u64,
    /// The kind of sequences in which it was found, and the device if it differs from the configured one.
    pub sequences: Option<String>,
    /// The violation that revealed it.
    pub killed_by: Option<FileViolation>,
}

/// Plants a bug and explores bounded sequences, then random ones, until it is found: first a few of each kind, then
/// many, or the number of each kind that `count` gives. On the model device, kinds that need late answers get them.
pub fn hunt(
    config: &FileCrashConfig,
    bug: Bug,
    mut progress: impl FnMut(FileCrashProgress) -> bool + Send,
) -> Result<FileMutant, String> {
    let mut mutant = FileMutant { bug: bug.name().into(), recovered: 0, sequences: None, killed_by: None };
    let counts = config.count.map_or(HUNT_SEQUENCES.to_vec(), |count| vec![count]);
    // Bugs of the device exist only there.
    let on = match (bug, config.on) {
        (Bug::Device(_), On::Model | On::Late | On::HostFtl) => On::Device,
        (_, on) => on,
    };
    let late = match on {
        // Append segments in memory answer at once.
        On::Model if config.format.appends() => On::Device,
        On::Model => On::Late,
        on => on,
    };
    let kinds = [
        (Sequences::Seq1, on),
        (Sequences::Seq2, on),
        (Sequences::Random, on),
        (Sequences::Reuse, on),
        (Sequences::Reuse, late),
        (Sequences::Tasks, late),
        (Sequences::Sets, on),
        (Sequences::Cleaning, on),
    ];
    let kinds = kinds.into_iter().filter(|(sequences, _)| sequences.check(config.format).is_ok());
    let kinds: Vec<_> = kinds.collect();
    for (count, (sequences, on)) in
        counts.into_iter().flat_map(|count| kinds.iter().map(move |kind| (count, *kind)))
    {
        let config = FileCrashConfig {
            on,
            sequences,
            planted: Some(bug),
            count: Some(count),
            violations_max: 1,
            minimise: false,
            ..config.clone()
        };
        let report = explore(&config, None, &mut progress)?;
        mutant.recovered += report.totals.recovered;
        mutant.killed_by = report.violations.into_iter().next();
        if mutant.killed_by.is_some() {
            let where_else = if on == On::Late { " (late)" } else { "" };
            mutant.sequences = Some(format!("{}{where_else}", sequences.name()));
            break;
        }
    }
    Ok(mutant)
}

/// Number of sequences of each kind in the search for one planted bug: a few that suffice for most bugs, then many.
const HUNT_SEQUENCES: [u64; 2] = [40, 1_000];
