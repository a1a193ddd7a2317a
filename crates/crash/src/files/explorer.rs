//! One case: a sequence of operations, cut at every position of the device's log, each state that the contract allows
//! there recovered and judged.
//!
//! Place in the data flow: [`run`] does the sequence on the reference and on the volume; [`explore`] enumerates what cuts may
//! leave, recovers each image once, asks the oracle at each moment at which it may be seen; [`find_state`] finds one of them
//! again for a replay. On the simulated device [`super::whole`] does the same.
//!
//! Images are recognised by a hash of their contents and never copied: a device that wakes up shares the base and has
//! what differs.
//!
//! Invariant: the answer is a function of the case.

use super::format::{Did, Format};
use super::ops::{Made, Op, Ops, PlaceHash, Runner};
use super::oracle::{History, Step, Violation};
use super::token::{Bug, On};
use super::tree::Tree;
use super::volume::{
    BLOCKS, Base, Clock, Damage, Disk, Setup, check, exercise, forever, mount, recover, reference, touch,
};
use super::whole;
use flashweir_contract::{Contents, CrashState, Exploration, Kind, Log, LogPos};
use flashweir_core::Stream;
use flashweir_core::executor::Handle;
use flashweir_core::random::mix;
use flashweir_fs::AnyFs;
use flashweir_fs::port::BlockPort;
use flashweir_fs::vfs::{Errno, Vfs};
use flashweir_sim::model_port::{LatePort, ModelPort};
use flashweir_sim::stack::FlushMode;
use serde::{Deserialize, Serialize};
use std::cell::{Cell, RefCell};
use std::collections::btree_map::Entry;
use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::future::Future;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::pin::Pin;
use std::rc::Rc;
use std::sync::Arc;

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
    /// Sections that the file system cleaned during sequences, and blocks that it wrote into holes.
    pub cleaned: u64,
    /// See [`Self::cleaned`].
    pub filled_holes: u64,
}

impl Counts {
    /// With what a file system did.
    pub(super) fn with(self, did: Did) -> Self {
        Self { cleaned: did.cleaned, filled_holes: did.filled_holes, ..self }
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
        self.filled_holes += other.filled_holes;
    }
}

/// A sequence that was done.
#[derive(Debug)]
pub struct Run {
    /// The disk; its log has everything.
    pub port: ModelPort,
    /// What was done and when, by position of the log.
    pub history: History,
    /// What the file system did.
    pub did: Did,
    /// Position after the last operation.
    pub end: u32,
}

/// Turns an assertion into a fault, where panics unwind.
pub(super) fn caught<T>(work: impl FnOnce() -> Result<T, Fault>) -> Result<T, Fault> {
    catch_unwind(AssertUnwindSafe(work)).unwrap_or_else(|panic| {
        let text = panic.downcast_ref::<String>().cloned();
        let text = text.or_else(|| panic.downcast_ref::<&str>().map(|text| (*text).into()));
        Err(Fault::Panic(text.unwrap_or_default()))
    })
}

/// What the reference answers and shows.
type Expected = Vec<(Made, Arc<Tree>)>;

fn expected(base: &Base, ops: &Ops) -> Result<Expected, Fault> {
    let mut clock = Clock::default();
    let (handle, ops, before, filled) = (clock.handle(), ops.clone(), Arc::clone(&base.tree), base.filled);
    let done = clock.run(async move {
        let (mut runner, vfs) = reference(handle, filled).await?;
        let (mut expected, mut before) = (Expected::new(), before);
        for (index, op) in ops.0.iter().enumerate() {
            let made = runner.apply(index, op).await;
            let tree = Tree::read(&vfs, Some(&before), forever).await;
            let mut tree = tree.map_err(|wrong| format!("the reference: {wrong:?}"))?;
            tree.nameless =
                runner.nameless(forever).await.map_err(|wrong| format!("the reference: {wrong:?}"))?;
            before = Arc::new(tree);
            expected.push((made, Arc::clone(&before)));
        }
        Ok::<_, String>(expected)
    });
    done.unwrap_or(Err("the reference waits for ever".into())).map_err(Fault::Differs)
}

/// Does the sequence of a case on the model device, without a cut.
pub fn run(case: &Case<'_>) -> Result<Run, Fault> {
    caught(|| {
        let mut port = case.base.port(case.mode);
        let noted = Noted::begin(case)?;
        let disk = port.clone();
        let is_late = case.on == On::Late;
        let phase = Rc::clone(&noted.phase);
        let done = port.run(|port, handle| {
            let late = || Rc::new(LatePort::new(disk.clone(), handle.clone(), phase)) as Rc<dyn BlockPort>;
            let port = if is_late { late() } else { port };
            noted.sequence(case, port, handle, Rc::new(move || u64::from(disk.position().0)))
        });
        let end = done.unwrap_or(Err("it waits for ever".into())).map_err(Fault::Differs)?;
        Ok(Run { port, history: noted.history(), did: noted.did.get(), end: end as u32 })
    })
}

/// What a sequence leaves behind while it is done.
#[derive(Debug)]
pub(super) struct Noted {
    expected: Rc<Expected>,
    history: Rc<RefCell<History>>,
    /// What the file system did until then.
    pub(super) did: Rc<Cell<Did>>,
    /// Where the last operation ended.
    pub(super) end: Rc<Cell<Option<u64>>>,
    /// Of which operation the present is, as a number that does not depend on the operations before it.
    phase: Rc<Cell<u64>>,
}

impl Noted {
    /// Asks the reference what is to be expected.
    pub(super) fn begin(case: &Case<'_>) -> Result<Self, Fault> {
        let expected = Rc::new(expected(case.base, case.ops)?);
        let states = vec![Arc::clone(&case.base.tree)];
        let numbers = case.base.numbers.clone();
        let grows_by_pages = case.base.format.is_ext4();
        let has_whole_writes = case.base.format == Format::Ext4Journal;
        let history = History { states, numbers, grows_by_pages, has_whole_writes, ..History::default() };
        let history = Rc::new(RefCell::new(history));
        Ok(Self { expected, history, did: Rc::default(), end: Rc::default(), phase: Rc::default() })
    }

    /// What was noted.
    pub(super) fn history(&self) -> History {
        self.history.borrow().clone()
    }

    /// Mounts the volume on a port and does the sequence there; `position` is what a cut now is named by. Gives the
    /// position after the last operation, or what is otherwise than on the reference.
    pub(super) fn sequence(
        &self,
        case: &Case<'_>,
        port: Rc<dyn BlockPort>,
        handle: Handle,
        position: Rc<dyn Fn() -> u64>,
    ) -> Pin<Box<dyn Future<Output = Result<u64, String>>>> {
        let (ops, setup) = (case.ops.clone(), case.setup());
        let (expected, noted) = (Rc::clone(&self.expected), Rc::clone(&self.history));
        let (did, ended_at, phase) = (Rc::clone(&self.did), Rc::clone(&self.end), Rc::clone(&self.phase));
        Box::pin(async move {
            let vfs = mount(port, handle.clone(), setup).await?;
            begin(&vfs).await.map_err(|errno| format!("the first checkpoint: {errno:?}"))?;
            let mut runner = Runner::new(&vfs, handle);
            // What another task did otherwise than the reference.
            let wrong = Rc::new(RefCell::new(None));
            for (index, (op, (made, tree))) in ops.0.iter().zip(&*expected).enumerate() {
                phase.set(op.to_string().bytes().fold(1, |hash, byte| mix(hash ^ u64::from(byte))));
                if noted.borrow().has_to_wait(op, tree) {
                    runner.wait().await;
                }
                let begun = position();
                {
                    let mut history = noted.borrow_mut();
                    let step = Step { op: op.clone(), begun, ended: None, begun_by_end: 0, result: Ok(()) };
                    history.steps.push(step);
                    history.states.push(Arc::clone(tree));
                }
                let ended = {
                    let (noted, position, wrong) =
                        (Rc::clone(&noted), Rc::clone(&position), Rc::clone(&wrong));
                    let (op, made) = (op.clone(), *made);
                    move |found: Made| {
                        let mut history = noted.borrow_mut();
                        if let Err(what) = note(&mut history, &made, &found) {
                            wrong.borrow_mut().get_or_insert(format!("operation {index}, {op}: {what}"));
                        }
                        let begun_by_end = history.steps.len();
                        let step = &mut history.steps[index];
                        (step.ended, step.begun_by_end) = (Some(position()), begun_by_end);
                        step.result = found.map(drop);
                    }
                };
                match op {
                    // It ends at some time after this.
                    Op::Aside(op) => runner.begin(index, (**op).clone(), ended).await,
                    _ => ended(runner.apply(index, op).await),
                }
                if let Some(what) = wrong.take() {
                    return Err(what);
                }
            }
            runner.wait().await;
            if let Some(what) = wrong.take() {
                return Err(what);
            }
            let end = position();
            did.set(Did::of(vfs.fs()));
            ended_at.set(Some(end));
            let found = Tree::read(&vfs, None, |ino, _| ino).await.map_err(|wrong| format!("{wrong:?}"))?;
            let history = noted.borrow();
            let newest = history.states.last().expect("the first is always there");
            match newest.difference(&found, &history.numbers) {
                Some(difference) => Err(difference),
                None => Ok(end),
            }
        })
    }
}

/// The first fsync after a mount is a checkpoint, whatever it is of; this is one before anything is done, so that the others
/// can be what they are.
pub(crate) async fn begin(vfs: &Vfs<AnyFs>) -> Result<(), Errno> {
    touch(vfs).await
}

/// Compares what two file systems answered, and notes which numbers belong together.
fn note(history: &mut History, expected: &Made, found: &Made) -> Result<(), String> {
    match (expected, found) {
        (Ok(None), Ok(None)) => Ok(()),
        (Ok(Some((ino, generation))), Ok(Some((number, _)))) => {
            history.numbers.insert(forever(*ino, *generation), *number);
            Ok(())
        }
        (Err(a), Err(b)) if a == b => Ok(()),
        _ => {
            let say = |made: &Made| match made {
                Ok(_) => "success".to_owned(),
                Err(errno) => format!("{errno:?}"),
            };
            Err(format!("it answered {}, expected {}", say(found), say(expected)))
        }
    }
}

/// Positions after which a cut may leave something new, or must not leave something any more.
pub(crate) fn positions(log: &Log, end: u32) -> Vec<u32> {
    let promises: BTreeSet<u32> = log
        .ops()
        .iter()
        .filter(|op| op.submission.fua || matches!(op.submission.kind, Kind::Flush | Kind::RangeFlush))
        .filter_map(|op| op.completed().map(|(at, _)| at.0 + 1))
        .collect();
    let units = |at: u32| log.units_before(LogPos(at)).len();
    let is_new = |&at: &u32| at == 0 || at == end || promises.contains(&at) || units(at) != units(at - 1);
    (0..=end).filter(is_new).collect()
}

/// How an image differs from the one before the log began, as a part of a sum that is its hash.
fn change(log: &Log, state: &CrashState) -> u64 {
    let mut hash = PlaceHash::default();
    for ((lpn, initial), (_, unit)) in log.lpns().zip(state.shown(log)) {
        let Some(unit) = unit else { continue };
        let content = log.unit(unit).content;
        if content != initial {
            hash.add(lpn, content.0);
            hash.remove(lpn, initial.0);
        }
    }
    hash.0
}

impl Effort {
    fn exploration(&self, seed: u64) -> Exploration {
        let Self { exhaustive_max, draws, .. } = *self;
        Exploration { exhaustive_atoms_max: exhaustive_max, pairs: false, random_draws: draws, seed }
    }
}

/// States by the hashes of their images.
pub(crate) type States = Vec<(u64, CrashState)>;

/// The states after a cut. `before` is the hash of the image before the log began.
pub(crate) fn states_at(port: &ModelPort, cut: u32, before: u64, effort: &Effort) -> States {
    port.with_states(LogPos(cut), effort.exploration(before ^ u64::from(cut)), |log, states| {
        states.map(|state| (before.wrapping_add(change(log, &state)), state)).collect()
    })
}

/// Keeps so many of the images after all cuts: first what everything leaves that was written, and what nothing of it leaves,
/// then drawn ones.
pub(crate) fn choose(by_cut: &mut [(u32, States)], seed: u64, max: usize) {
    let mut ranks: BTreeMap<u64, u64> = BTreeMap::new();
    for (_, states) in &*by_cut {
        for (index, (image, _)) in states.iter().enumerate() {
            let is_end = index == 0 || index + 1 == states.len();
            let rank = if is_end { 0 } else { mix(image ^ seed).max(1) };
            let known = ranks.entry(*image).or_insert(rank);
            *known = rank.min(*known);
        }
    }
    let mut ranked: Vec<(u64, u64)> = ranks.into_iter().map(|(image, rank)| (rank, image)).collect();
    ranked.sort_unstable();
    ranked.truncate(max);
    let chosen: BTreeSet<u64> = ranked.into_iter().map(|(_, image)| image).collect();
    for (_, states) in by_cut {
        states.retain(|(image, _)| chosen.contains(image));
    }
}

/// The state after a cut whose image has this hash.
pub fn find_state(
    port: &ModelPort,
    cut: u32,
    before: u64,
    image: u64,
    effort: &Effort,
) -> Option<CrashState> {
    states_at(port, cut, before, effort).into_iter().find(|(hash, _)| *hash == image).map(|(_, state)| state)
}

/// The hash of the image of a base.
pub fn base_hash(base: &Base) -> u64 {
    mix(base.seed)
}

struct Explorer<'a> {
    case: &'a Case<'a>,
    run: Run,
    counts: Counts,
    images: Vec<u64>,
}

/// Explores a case: what was done, the hashes of the images that were recovered, and the first fault.
pub fn explore(case: &Case<'_>) -> (Counts, Vec<u64>, Option<Found>) {
    match case.on {
        On::Model | On::Late => explore_model(case),
        On::Device => whole::explore(case),
    }
}

fn explore_model(case: &Case<'_>) -> (Counts, Vec<u64>, Option<Found>) {
    let counts = Counts { cases: 1, operations: case.ops.0.len() as u64, ..Counts::default() };
    let run = match run(case) {
        Ok(run) => run,
        Err(fault) => return (counts, Vec::new(), Some(Found { fault, cut: None, image: 0, nested: None })),
    };
    let counts = counts.with(run.did);
    let mut explorer = Explorer { case, run, counts, images: Vec::new() };
    let found = explorer.all().err();
    (explorer.counts, explorer.images, found)
}

impl Explorer<'_> {
    fn all(&mut self) -> Result<(), Found> {
        let cuts = positions(&self.run.port.log(), self.run.end);
        let effort = &self.case.effort;
        let before = base_hash(self.case.base);
        let states = |&cut: &u32| (cut, states_at(&self.run.port, cut, before, effort));
        let mut by_cut: Vec<(u32, States)> = cuts.iter().map(states).collect();
        self.counts.allowed += by_cut.iter().map(|(_, states)| states.len() as u64).sum::<u64>();
        self.counts.cuts += cuts.len() as u64;
        choose(&mut by_cut, before, effort.states_max);
        let mut trees: BTreeMap<u64, Tree> = BTreeMap::new();
        let mut judged = BTreeSet::new();
        for (cut, states) in by_cut {
            for (image, state) in states {
                let like = trees.first_key_value().map(|(_, tree)| tree.clone());
                let tree = match trees.entry(image) {
                    Entry::Occupied(known) => known.into_mut(),
                    Entry::Vacant(new) => {
                        let tree = self.recover(cut, image, &state)?;
                        new.insert(tree.sharing(like.as_ref()))
                    }
                };
                if judged.insert((image, self.run.history.moment(u64::from(cut)))) {
                    self.counts.judged += 1;
                    let verdict = self.run.history.judge(u64::from(cut), tree);
                    let fault = |violation| Found {
                        fault: Fault::Violation(violation),
                        cut: Some(cut),
                        image,
                        nested: None,
                    };
                    verdict.map_err(fault)?;
                }
            }
        }
        Ok(())
    }

    /// Recovers an image that was not seen before, and does with some of them what is done with some.
    fn recover(&mut self, cut: u32, image: u64, state: &CrashState) -> Result<Tree, Found> {
        let effort = self.case.effort;
        let is_due = |every: u64, salt: u64| every > 0 && mix(image ^ salt).is_multiple_of(every);
        let found = |fault| Found { fault, cut: Some(cut), image, nested: None };
        let mut port = self.run.port.woken(state);
        self.counts.recovered += 1;
        self.images.push(image);
        if is_due(effort.check_every, 1) {
            caught(|| check(&mut port, self.case.base.format).map_err(Fault::Damage)).map_err(found)?;
        }
        let tree = caught(|| recover(&mut port, self.case.setup()).map_err(Fault::Damage)).map_err(found)?;
        let Outside { checker, recoverer } = self.case.outside.unwrap_or_default();
        let outside = |said: Result<bool, String>| said.map_err(|what| found(Fault::Outside(what)));
        if let Some((_, check)) = checker.filter(|(every, _)| is_due(*every, 4)) {
            outside(check(&port.contents(), BLOCKS).map(|()| true))?;
            self.counts.outside += 1;
        }
        if let Some((_, replay)) = recoverer.filter(|(every, _)| is_due(*every, 5)) {
            let before = self.run.port.woken(state).contents();
            self.counts.replayed += u64::from(outside(replay(&before, BLOCKS, &tree))?);
        }
        if is_due(effort.nested_every, 2) {
            self.nested(&port, image, &tree)
                .map_err(|(fault, nested)| Found { nested: Some(nested), ..found(fault) })?;
        }
        if is_due(effort.exercise_every, 3) {
            self.counts.exercised += 1;
            caught(|| exercise(&mut port, self.case.base.pages, self.case.setup()).map_err(Fault::Damage))
                .map_err(found)?;
        }
        Ok(tree)
    }

    /// Cuts a recovery that was done on `port`.
    fn nested(&mut self, port: &ModelPort, image: u64, tree: &Tree) -> Result<(), (Fault, (u32, u64))> {
        let cuts = positions(&port.log(), port.position().0);
        let mut random = Stream::new(image, "cuts of a recovery");
        for _ in 0..self.case.effort.nested_draws {
            let cut = cuts[random.below(cuts.len() as u64) as usize];
            let states = states_at(port, cut, image, &self.case.effort);
            let (again, state) = &states[random.below(states.len() as u64) as usize];
            let mut woken = port.woken(state);
            self.counts.recovered += 1;
            self.counts.nested += 1;
            self.images.push(*again);
            idempotent(&mut woken, tree, self.case.setup()).map_err(|fault| (fault, (cut, *again)))?;
        }
        Ok(())
    }
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

/// Does one image of a case again, and everything that is checked. Errors: there is no such cut or image.
pub fn replay(
    case: &Case<'_>,
    cut: Option<u32>,
    image: u64,
    nested: Option<(u32, u64)>,
) -> Result<Option<Fault>, String> {
    if case.on == On::Device {
        return whole::replay(case, cut, image, nested);
    }
    let run = match run(case) {
        Ok(run) => run,
        Err(fault) => return Ok(Some(fault)),
    };
    let Some(cut) = cut else { return Ok(None) };
    if cut > run.end {
        return Err(format!("cut c{cut}: the sequence has {} events", run.end));
    }
    let Some(state) = find_state(&run.port, cut, base_hash(case.base), image, &case.effort) else {
        return Err(format!("no state after c{cut} has the hash {image:016x}"));
    };
    let mut port = run.port.woken(&state);
    let checked = caught(|| check(&mut port, case.base.format).map_err(Fault::Damage));
    let tree = match checked.and_then(|()| caught(|| recover(&mut port, case.setup()).map_err(Fault::Damage)))
    {
        Ok(tree) => tree,
        Err(fault) => return Ok(Some(fault)),
    };
    if let Err(violation) = run.history.judge(u64::from(cut), &tree) {
        return Ok(Some(Fault::Violation(violation)));
    }
    if let Some((cut, again)) = nested {
        let state = find_state(&port, cut, image, again, &case.effort);
        let state = state.ok_or_else(|| format!("no state of the recovery has the hash {again:016x}"))?;
        return Ok(idempotent(&mut port.woken(&state), &tree, case.setup()).err());
    }
    Ok(caught(|| exercise(&mut port, case.base.pages, case.setup()).map_err(Fault::Damage)).err())
}
