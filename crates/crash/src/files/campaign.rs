//! Many sequences: explored on several threads, counted, their violations made small.
//!
//! Invariant: a report is a function of its configuration. Sequences are numbered, threads take them in order, and the
//! report is made of the first so many, whoever explored them.

use super::ace;
use super::bug::Bug;
use super::case::{Case, Counts, Effort, Fault, Found, On, Outside};
use super::explorer;
use super::format::Format;
use super::ops::Ops;
use super::setup::FULL;
use super::token::{Token, mode_name};
use super::volume::Base;
use flashweir_contract::minimise;
use flashweir_sim::stack::FlushMode;
use serde::{Deserialize, Serialize};
use std::cell::RefCell;
use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Mutex, MutexGuard, PoisonError};

/// Bases that the sequences of one campaign take in turn.
const BASES: u64 = 2;
/// Explorations that the minimiser may spend on one violation.
const MINIMISE_RUNS_MAX: u32 = 150;

/// Which sequences.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Sequences {
    /// All of one operation, after ACE.
    Seq1,
    /// Drawn ones of two operations, after ACE.
    Seq2,
    /// Random ones of up to 31 operations.
    Random,
    /// Random ones on a volume that is nearly full, so that room has to be made for each.
    Cleaning,
    /// Random ones in which what was freed is used again, for something else, while the journal still has it.
    Reuse,
    /// Random ones with files that are made without a name and get one, and with access control lists.
    Nameless,
    /// Random ones over files of so many parts that their maps have nodes below the inode.
    Trees,
    /// Random ones of two tasks that work at once.
    Tasks,
}

impl Sequences {
    /// Their names.
    pub const ALL: [(Self, &'static str); 8] = [
        (Self::Seq1, "seq-1"),
        (Self::Seq2, "seq-2"),
        (Self::Random, "random"),
        (Self::Cleaning, "cleaning"),
        (Self::Reuse, "reuse"),
        (Self::Nameless, "nameless"),
        (Self::Trees, "trees"),
        (Self::Tasks, "tasks"),
    ];

    /// Its name.
    pub fn name(self) -> &'static str {
        Self::ALL.iter().find(|(known, _)| *known == self).map_or("", |(_, name)| name)
    }
}

/// What to explore.
#[derive(Clone, Debug)]
pub struct FileCrashConfig {
    /// Which file system.
    pub format: Format,
    /// What the file system is on.
    pub on: On,
    /// Which sequences.
    pub sequences: Sequences,
    /// At most so many of them; `None` is all where there is an end, and as many as it takes where there is none.
    pub count: Option<u64>,
    /// Images that differ, after which the exploration ends; `None` is as many as the sequences give.
    pub states: Option<u64>,
    /// Seed of bases and of drawn sequences.
    pub seed: u64,
    /// What the host makes of flushes.
    pub mode: FlushMode,
    /// A bug to be found.
    pub planted: Option<Bug>,
    /// Threads.
    pub jobs: usize,
    /// How far each sequence is explored.
    pub effort: Effort,
    /// Exploration ends with so many violations.
    pub violations_max: usize,
    /// Look for the shortest sequence of each violation.
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

/// How far an exploration is.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct FileCrashProgress {
    /// Sequences that ended.
    pub sequences: u64,
    /// Distinct images so far.
    pub distinct: u64,
    /// How much of all is done, 0 to 1.
    pub fraction: f64,
    /// Violations so far.
    pub violations: usize,
}

/// A violation for people: what is wrong, and how to see it again.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct FileViolation {
    /// What is wrong, in one line.
    pub what: String,
    /// The shortest sequence that was found, as a replay takes it.
    pub token: String,
    /// The sequence in which it was found.
    pub found_as: String,
}

/// What an exploration found.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct FileCrashReport {
    /// Which file system.
    pub format: Format,
    /// What the file system was on.
    pub on: On,
    /// Name of the sequences.
    pub sequences: String,
    /// How many there are of them, where there is an end.
    pub sequences_all: Option<u64>,
    /// What the host made of flushes.
    pub mode: String,
    /// Seed.
    pub seed: u64,
    /// The planted bug, if there was one.
    pub planted: Option<String>,
    /// All counts together.
    pub totals: Counts,
    /// What is wrong, in the order of the sequences.
    pub violations: Vec<FileViolation>,
}

/// The sequences of a configuration: a list, or one for each number.
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
        }
    }

    fn get(&self, number: u64, format: Format) -> Option<Ops> {
        match self {
            Self::List(list) => list.get(number as usize).cloned(),
            Self::Drawn(draw, seed) => {
                // Seeds of campaigns that follow each other keep apart.
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

/// Explores sequences until there are no more, or so many images or violations, or `progress` returns false. `outside`
/// also judges some of the recovered images. Errors: the volume cannot be prepared.
pub fn explore(
    config: &FileCrashConfig,
    outside: Option<Outside<'_>>,
    progress: impl FnMut(FileCrashProgress) -> bool + Send,
) -> Result<FileCrashReport, String> {
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
            // The lock is given back before the sequence begins.
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

/// The sequence that this thread is busy with, for the message of a panic that does not unwind.
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

/// The shortest list of operations after which exploration finds a fault of the same sort.
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

    /// Takes over sequences in order, as far as they have ended.
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

/// Does again what a token says; `None` if nothing is wrong. Errors: it names what there is not.
pub fn replay(token: &Token) -> Result<Option<Fault>, String> {
    let base = Base::make(token.format, token.base)?;
    let Token { on, mode, planted, ref ops, .. } = *token;
    let case = Case { on, base: &base, mode, planted, ops, effort: Effort::default(), outside: None };
    explorer::replay(&case, token.cut, token.image, token.nested)
}

/// A planted bug and what became of it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct FileMutant {
    /// Name of the bug.
    pub bug: String,
    /// Images that were recovered until it was found, or until the budget was spent.
    pub recovered: u64,
    /// The sequences among which it was found, and what they ran on if it is not what was asked for.
    pub sequences: Option<String>,
    /// The violation that gave it away.
    pub killed_by: Option<FileViolation>,
}

/// Plants a bug and explores bounded sequences, then random ones, until it is found: a few of each, then many, or as many of
/// each as `count` says. On the model device those for which answers have to come late have them so.
pub fn hunt(
    config: &FileCrashConfig,
    bug: Bug,
    mut progress: impl FnMut(FileCrashProgress) -> bool + Send,
) -> Result<FileMutant, String> {
    let mut mutant = FileMutant { bug: bug.name().into(), recovered: 0, sequences: None, killed_by: None };
    let counts = config.count.map_or(HUNT_SEQUENCES.to_vec(), |count| vec![count]);
    // Bugs of the device are nowhere else.
    let on = if matches!(bug, Bug::Device(_)) { On::Device } else { config.on };
    let late = if on == On::Model { On::Late } else { on };
    let kinds = [
        (Sequences::Seq1, on),
        (Sequences::Seq2, on),
        (Sequences::Random, on),
        (Sequences::Reuse, on),
        (Sequences::Reuse, late),
        (Sequences::Tasks, late),
    ];
    for (count, (sequences, on)) in counts.into_iter().flat_map(|count| kinds.map(|kind| (count, kind))) {
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

/// Sequences of each kind in the search for one planted bug: few that most are found by, then many.
const HUNT_SEQUENCES: [u64; 2] = [40, 1_000];
