//! One world: a tiny device through several boots, cut at every event of each.
//!
//! Before each event, the flash operations in progress are torn in every way that the plan asks for. Each medium that
//! was not seen before in this boot is recovered, with further cuts in the recovery, and the contents read back are
//! checked against the contract. A medium that is seen again at a later position of the log is not recovered again:
//! only the judgement is repeated.
//!
//! At the end of a boot one of its cuts, drawn by the world's seed, becomes the beginning of the next: later boots
//! begin on media with stale checkpoints, old versions and torn pages.
//!
//! Invariants: a world is a function of its [`WorldSpec`]; whether it is explored or only replayed does not change it.

use super::bug::Bug;
use super::devices::{Habit, habit, layer};
use super::sim::{Misbehaviour, Sim};
use super::token::{Chosen, NestedCut, Token};
use super::workload::{
    History, exercise, history, with_a_silent_stream, with_handles, with_long_commands, with_range_flushes,
    with_runs, with_shares, with_streams, with_wide_range_flushes,
};
use flashweir_contract::{
    Content, DeviceKind, LogPos, Observed, Oracle, Policy, RangeFlushed, Verdict, Violation,
};
use flashweir_core::random::{RandomStream, mix};
use flashweir_core::{Instant, Lpn, Payload};
use flashweir_device::UNREADABLE;
use flashweir_device::config::{BufferMode, PersistPolicy, RangeFlushSupport};
use flashweir_device::flash::{Interrupted, OpKind};
use flashweir_device::{Device, DeviceConfig, DeviceOptions, FastForward, Media, Recovery, Torn};
use serde::{Deserialize, Serialize};
use std::cell::RefCell;
use std::collections::BTreeMap;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;

/// Number of operations in the history of a boot.
pub const OPS: u32 = 120;

/// Thoroughness of the exploration of a world; the world itself does not depend on it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Effort {
    /// Number of boots of each world.
    pub boots: u32,
    /// Maximum depth of cuts inside recoveries, one inside the other.
    pub nested_depth: u32,
    /// Number of cuts drawn from each recovery; one recovery in 64 gets every cut.
    pub nested_draws: u32,
    /// One in this many recoveries is cut at all.
    pub nested_every: u32,
    /// One in this many events is cut, drawn by the world's seed.
    pub events_every: u32,
    /// One in this many new media is exercised to prove that the device still works; 0 means none.
    pub exercise_every: u32,
    /// Approximate limit of the distinct media of the world, shared evenly by its boots and their events. `None` means
    /// no limit.
    pub states_max: Option<u64>,
}

impl Effort {
    /// Few states of each world, up to some 2,000: ten to twenty histories can be explored this way for the states of
    /// one fully explored world, and faults depend on the history more than on the position of the cut
    /// (crash-laboratory §3.10).
    pub const SHALLOW: Self = Self {
        boots: 3,
        nested_depth: 3,
        nested_draws: 1,
        nested_every: 8,
        events_every: 4,
        exercise_every: 256,
        states_max: Some(2_000),
    };

    /// Every event and every recovery of a few worlds: some bugs show in one of thousands of states.
    pub const DEEP: Self = Self { states_max: Some(40_000), ..Self::EVERYTHING };

    /// Every event and every recovery, without a limit.
    pub const EVERYTHING: Self = Self {
        boots: 4,
        nested_depth: 3,
        nested_draws: 3,
        nested_every: 1,
        events_every: 1,
        exercise_every: 512,
        states_max: None,
    };
}

/// One in this many recoveries is cut at every step.
const NESTED_ALL: u64 = 64;
/// Largest number of interrupted operations of which all torn combinations are tried.
const EXHAUSTIVE_CELLS_MAX: usize = 3;

/// Specification of a world.
#[derive(Clone, Debug)]
pub struct WorldSpec {
    /// Configuration of the device.
    pub config: DeviceConfig,
    /// Seed of all random streams.
    pub seed: u64,
    /// Planted bug to be found.
    pub planted: Option<Bug>,
    /// Thoroughness of the exploration.
    pub effort: Effort,
}

impl WorldSpec {
    pub(super) fn options(&self) -> DeviceOptions {
        DeviceOptions {
            seed: self.seed,
            track_contents: true,
            planted: self.planted.and_then(Bug::of_device),
        }
    }

    /// Returns the kind of device that the configuration makes (crash-laboratory §1).
    pub fn kind(&self) -> DeviceKind {
        kind_of(&self.config)
    }

    /// Returns the rules that are checked. A block layer keeps the order of streams on any device. For range flushes,
    /// Flashweir's own device keeps the strong rule, on which no host relies.
    pub fn policy(&self) -> Policy {
        let policy = self.kind().policy();
        let ordered = policy.ordered || layer(&self.config.name).is_some();
        let atomic = self.config.ftl.share.pages > 0;
        Policy { range_flushed: RangeFlushed::Itself, ordered, atomic, ..policy }
    }
}

/// Returns the kind of device that a configuration makes (crash-laboratory §1).
pub fn kind_of(config: &DeviceConfig) -> DeviceKind {
    match config.buffer.mode {
        BufferMode::WriteThrough => DeviceKind::D0,
        BufferMode::PowerLossProtected if config.completion_is_durable() => DeviceKind::D2,
        _ if config.order.policy != PersistPolicy::None => DeviceKind::D3,
        BufferMode::WriteBack | BufferMode::PowerLossProtected => DeviceKind::D1,
    }
}

/// A fault found in a world.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Fault {
    /// A state that the contract forbids.
    Contract(Violation),
    /// An interrupted recovery leads to different contents than an uninterrupted one.
    NotIdempotent {
        /// The first unit that differs.
        lpn: Lpn,
    },
    /// The device misbehaves at run time, before or after a cut.
    Runtime(Misbehaviour),
    /// An open channel breaks one of its rules, or leaves a state that they forbid (open-channel §6).
    Rule(String),
    /// An assertion of the device failed.
    Panic(String),
}

impl Fault {
    /// Whether two faults are of the same sort, for the minimiser.
    pub fn resembles(&self, other: &Self) -> bool {
        use std::mem::discriminant as sort;
        match (self, other) {
            (Self::Contract(a), Self::Contract(b)) => sort(a) == sort(b),
            (Self::Runtime(a), Self::Runtime(b)) => sort(a) == sort(b),
            _ => sort(self) == sort(other),
        }
    }
}

thread_local! {
    static CURRENT: RefCell<Option<Token>> = const { RefCell::new(None) };
}

/// Returns the cut that this thread is working on, for the message of a panic that does not unwind.
pub fn current_case() -> Option<Token> {
    CURRENT.with(|current| current.borrow().clone())
}

/// A fault and its position.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Found {
    /// The fault.
    pub fault: Fault,
    /// Number of the boot.
    pub boot: u32,
    /// Number of events before the cut.
    pub cut: u32,
    /// State of each interrupted operation.
    pub torn: Vec<Torn>,
    /// Cuts of recoveries.
    pub nested: Vec<NestedCut>,
}

impl Found {
    /// Returns the token that replays it in the world of `spec`.
    pub fn token(&self, spec: &WorldSpec, ops: Chosen) -> Token {
        Token {
            device: spec.config.name.clone(),
            seed: spec.seed,
            boot: self.boot,
            ops,
            cut: self.cut,
            torn: self.torn.clone(),
            nested: self.nested.clone(),
            planted: spec.planted,
        }
    }
}

/// Counts of the work done.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Counts {
    /// Number of worlds.
    pub worlds: u64,
    /// Number of random histories: one for each boot of a world.
    pub histories: u64,
    /// Number of positions between two events at which the power could fail.
    pub moments: u64,
    /// … of which the number at which it was never cut.
    pub moments_left_out: u64,
    /// Number of media produced by cuts, including nested ones.
    pub states: u64,
    /// Number of media that had not been seen before in their boot; each was recovered.
    pub distinct: u64,
    /// … of which the number inside a recovery.
    pub distinct_nested: u64,
    /// Number of verdicts of the oracle.
    pub judged: u64,
    /// Number of events of simulated devices.
    pub events: u64,
    /// Number of recovered devices that were exercised.
    pub exercised: u64,
}

impl Counts {
    /// Adds other counts.
    pub fn add(&mut self, other: &Self) {
        self.worlds += other.worlds;
        self.histories += other.histories;
        self.moments += other.moments;
        self.moments_left_out += other.moments_left_out;
        self.states += other.states;
        self.distinct += other.distinct;
        self.distinct_nested += other.distinct_nested;
        self.judged += other.judged;
        self.events += other.events;
        self.exercised += other.exercised;
    }
}

type Contents = Arc<[Content]>;

/// Returns the device of a world at the beginning of a boot.
pub fn boot_device(spec: &WorldSpec, boot: u32) -> Result<Device, Found> {
    let mut device = fresh(spec);
    for boot in 0..boot {
        let mut sim = Sim::new(device, boot_history(spec, boot));
        let mut carry = Carry::new(spec, boot);
        loop {
            carry.offer(&sim);
            if !sim.step() {
                break;
            }
        }
        device = carry.wake(spec, boot)?;
    }
    Ok(device)
}

/// Returns the history of a boot.
pub fn boot_history(spec: &WorldSpec, boot: u32) -> History {
    let geometry = flashweir_device::Geometry::new(&spec.config);
    let history = history(&geometry, spec.seed, boot, OPS as usize);
    let history = match spec.config.buffer.range_flush {
        RangeFlushSupport::None => history,
        _ => with_range_flushes(history, spec.seed, boot),
    };
    let history = match spec.config.ftl.share.pages {
        0 => history,
        _ => with_shares(history, &geometry, spec.seed, boot),
    };
    let history = match spec.config.ftl.placement.handles {
        1 => history,
        handles => with_handles(history, handles, spec.seed, boot),
    };
    let name = &spec.config.name;
    let history = match habit(name) {
        Habit::Wide => with_wide_range_flushes(history, &geometry, spec.seed, boot),
        Habit::Long => with_long_commands(history, &geometry, spec.seed, boot),
        Habit::Plain | Habit::FallsSilent => history,
    };
    let history = match spec.config.order.policy {
        PersistPolicy::None if layer(name).is_none() => history,
        _ => with_streams(history, spec.seed, boot),
    };
    let history = match layer(name) {
        Some(_) => with_runs(history, &geometry, spec.seed, boot),
        None => history,
    };
    match habit(name) {
        Habit::FallsSilent => with_a_silent_stream(history),
        Habit::Plain | Habit::Wide | Habit::Long => history,
    }
}

/// Returns a new device; half of the worlds begin with a filled one.
fn fresh(spec: &WorldSpec) -> Device {
    let mut device = Device::new(spec.config.clone(), spec.options());
    if spec.seed.is_multiple_of(2) {
        let units = device.geometry().user_units;
        let mut random = RandomStream::new(spec.seed, "crash-fill");
        let mut fill = FastForward::new(&mut device);
        for unit in 0..units {
            fill.write(Lpn(unit), Payload::Tag(mix(spec.seed ^ unit << 32)));
        }
        for i in 0..units * 2 {
            let unit = random.below(units);
            fill.write(Lpn(unit), Payload::Tag(mix(spec.seed ^ unit << 32 ^ (i + 1) << 8)));
        }
        fill.finish();
    }
    device
}

/// Draws the cut from which the next boot begins; all cuts are equally likely.
struct Carry {
    random: RandomStream,
    offers: u64,
    chosen: Option<(Media, u32, Vec<Torn>)>,
}

impl Carry {
    fn new(spec: &WorldSpec, boot: u32) -> Self {
        Self { random: RandomStream::new(spec.seed, &format!("crash-carry-{boot}")), offers: 0, chosen: None }
    }

    fn offer(&mut self, sim: &Sim) {
        self.offers += 1;
        if self.random.below(self.offers) != 0 {
            return;
        }
        let now = sim.cut_instant();
        let cells = sim.device().interrupted(now).len();
        let torn: Vec<Torn> = (0..cells).map(|_| TORN[self.random.below(3) as usize]).collect();
        self.chosen = Some((cut(sim, &torn), sim.events(), torn));
    }

    fn wake(self, spec: &WorldSpec, boot: u32) -> Result<Device, Found> {
        let (media, event, torn) = self.chosen.expect("a boot has at least one cut");
        caught(|| Recovery::begin(&spec.config, spec.options(), media).finish().0).map_err(|fault| Found {
            fault,
            boot,
            cut: event,
            torn,
            nested: Vec::new(),
        })
    }
}

/// States in which a cut may leave an interrupted operation.
pub(super) const TORN: [Torn; 3] = [Torn::Absent, Torn::Damaged, Torn::Done];

/// Returns the medium after a power cut now.
pub fn cut(sim: &Sim, torn: &[Torn]) -> Media {
    cut_device(sim.device(), sim.cut_instant(), torn)
}

/// Returns the medium of a device after a power cut at `now`, with the interrupted operations in these states; the rest are absent.
pub(super) fn cut_device(device: &Device, now: Instant, torn: &[Torn]) -> Media {
    let mut next = torn.iter();
    device.cut(now, |_| next.next().copied().unwrap_or(Torn::Absent))
}

/// Turns a failed assertion of the device into a fault, where panics unwind.
pub fn caught<T>(work: impl FnOnce() -> T) -> Result<T, Fault> {
    catch_unwind(AssertUnwindSafe(work)).map_err(|panic| {
        let text = panic.downcast_ref::<String>().cloned();
        Fault::Panic(text.or_else(|| panic.downcast_ref::<&str>().map(|s| (*s).into())).unwrap_or_default())
    })
}

/// Returns what every unit of a recovered device reads as.
pub fn contents(device: &Device) -> Contents {
    let units = 0..device.geometry().user_units;
    units.map(|unit| device.peek(Lpn(unit)).map_or(Content::ZERO, |p| Content::from(&p))).collect()
}

/// Returns an observation for the oracle.
pub fn observed(contents: &[Content], lpn: Lpn) -> Observed {
    match contents[lpn.0 as usize] {
        Content(UNREADABLE) => Observed::Unreadable,
        content => Observed::Content(content),
    }
}

/// State of the medium and of the operations in progress, by which an unchanged situation is recognised.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
struct Situation {
    digest: u64,
    cells: u64,
    /// Position of the log; set only where something beside the flash outlives a cut.
    position: u32,
}

/// The exploration of one boot.
struct Boot<'a> {
    spec: &'a WorldSpec,
    boot: u32,
    oracle: Oracle,
    /// Contents by digest of the medium.
    known: BTreeMap<u64, Contents>,
    situation: Situation,
    /// Torn variants of the present situation, with the digests of their media.
    variants: Vec<(Vec<Torn>, u64)>,
    judged_at: LogPos,
    random: RandomStream,
    /// Number of events of this boot and of distinct media wanted from it, if limited.
    pace: Option<(u64, u64)>,
    counts: Counts,
}

impl<'a> Boot<'a> {
    fn new(spec: &'a WorldSpec, boot: u32, sim: &Sim) -> Self {
        // A run ahead costs less than a few recoveries.
        let events = |sim: &Sim| {
            let mut ahead = sim.clone();
            let _ = caught(|| ahead.run());
            u64::from(ahead.events()) + 1
        };
        let share = |all: u64| all.div_ceil(u64::from(spec.effort.boots.max(1)));
        Self {
            pace: spec.effort.states_max.map(|all| (events(sim), share(all))),
            spec,
            boot,
            oracle: Oracle::new(spec.policy()),
            known: BTreeMap::new(),
            situation: Situation::default(),
            variants: Vec::new(),
            judged_at: LogPos(u32::MAX),
            random: RandomStream::new(spec.seed, &format!("crash-explore-{boot}")),
            counts: Counts::default(),
        }
    }

    /// Cuts the power now, in every way.
    fn visit(&mut self, sim: &Sim) -> Result<(), Found> {
        self.counts.moments += 1;
        let every = u64::from(self.spec.effort.events_every);
        let is_ahead = self.pace.is_some_and(|(events, wanted)| {
            self.counts.distinct * events > wanted * (u64::from(sim.events()) + 1)
        });
        if is_ahead || every > 1 && self.random.below(every) != 0 {
            self.counts.moments_left_out += 1;
            return Ok(());
        }
        let position = sim.log().position();
        let cells = sim.device().interrupted(sim.cut_instant());
        let saves = self.spec.kind() == DeviceKind::D2 || self.spec.config.ftl.share.nvram_records > 0;
        let situation = Situation {
            digest: sim.device().media().digest(),
            cells: cells.iter().fold(cells.len() as u64, |hash, cell| mix(hash ^ cell_hash(cell))),
            position: if saves { position.0 } else { 0 },
        };
        if situation != self.situation || self.variants.is_empty() {
            self.situation = situation;
            self.variants.clear();
            for torn in combinations(&cells, &mut self.random) {
                let media =
                    caught(|| cut(sim, &torn)).map_err(|fault| found(sim, fault, &torn, Vec::new()))?;
                let digest = media.digest();
                self.counts.states += 1;
                if !self.known.contains_key(&digest) {
                    self.counts.distinct += 1;
                    self.announce(sim, &torn);
                    self.recover(media, digest)
                        .map_err(|(fault, nested)| found(sim, fault, &torn, nested))?;
                }
                self.variants.push((torn, digest));
            }
        } else if position == self.judged_at {
            return Ok(());
        }
        self.judged_at = position;
        for (torn, digest) in &self.variants {
            let contents = &self.known[digest];
            self.counts.judged += 1;
            let verdict = self.oracle.check(sim.log(), position, |lpn| observed(contents, lpn));
            if let Verdict::Violation(violation) = verdict {
                return Err(found(sim, Fault::Contract(violation), torn, Vec::new()));
            }
        }
        Ok(())
    }

    fn announce(&self, sim: &Sim, torn: &[Torn]) {
        let case = Token {
            device: self.spec.config.name.clone(),
            seed: self.spec.seed,
            boot: self.boot,
            ops: Chosen::All,
            cut: sim.events(),
            torn: torn.to_vec(),
            nested: Vec::new(),
            planted: self.spec.planted,
        };
        CURRENT.with(|current| *current.borrow_mut() = Some(case));
    }

    /// Recovers a medium that was not seen before, also with cuts inside the recovery. The caller judges its contents;
    /// the contents after nested cuts must equal them.
    fn recover(&mut self, media: Media, digest: u64) -> Result<(), (Fault, Vec<NestedCut>)> {
        let mut path = Vec::new();
        let contents = self.descend(media, None, 0, &mut path).map_err(|fault| (fault, path))?;
        self.known.insert(digest, contents);
        Ok(())
    }

    fn descend(
        &mut self,
        media: Media,
        expected: Option<&Contents>,
        depth: u32,
        path: &mut Vec<NestedCut>,
    ) -> Result<Contents, Fault> {
        let spec = self.spec;
        let recovery = caught(|| Recovery::begin(&spec.config, spec.options(), media))?;
        let steps = recovery.steps_left() as u32;
        let cuts = if depth < spec.effort.nested_depth { self.nested_cuts(steps, depth) } else { Vec::new() };
        let mut nested = Vec::new();
        let mut walk = recovery;
        let mut done = 0;
        for cut in cuts {
            let media = caught(|| {
                while done < cut.step {
                    walk.advance();
                    done += 1;
                }
                walk.cut(cut.torn)
            });
            nested.push((cut, media.inspect_err(|_| path.push(cut))?));
        }
        let device = caught(|| walk.finish().0)?;
        let found = contents(&device);
        if let Some(differs) =
            expected.and_then(|expected| (0..found.len()).find(|&i| found[i] != expected[i]))
        {
            return Err(Fault::NotIdempotent { lpn: Lpn(differs as u64) });
        }
        caught(|| device.audit())?;
        let every = u64::from(spec.effort.exercise_every);
        if every > 0 && self.random.below(every) == 0 {
            self.exercise(device)?;
        }
        let expected = expected.cloned().unwrap_or_else(|| found.clone());
        for (cut, media) in nested {
            self.counts.states += 1;
            let digest = media.digest();
            path.push(cut);
            if let Some(known) = self.known.get(&digest) {
                if let Some(differs) = (0..known.len()).find(|&i| known[i] != expected[i]) {
                    return Err(Fault::NotIdempotent { lpn: Lpn(differs as u64) });
                }
            } else {
                self.counts.distinct += 1;
                self.counts.distinct_nested += 1;
                let contents = self.descend(media, Some(&expected), depth + 1, path)?;
                self.known.insert(digest, contents);
            }
            path.pop();
        }
        Ok(found)
    }

    /// Returns cuts of a recovery of `steps` steps, in ascending order; a cut after the last step checks that
    /// recovering twice gives the same result.
    fn nested_cuts(&mut self, steps: u32, depth: u32) -> Vec<NestedCut> {
        let nested_every = u64::from(self.spec.effort.nested_every);
        if depth == 0 && nested_every > 1 && self.random.below(nested_every) != 0 {
            return Vec::new();
        }
        let every = depth == 0 && self.random.below(NESTED_ALL) == 0;
        let mut cuts = Vec::new();
        if every {
            for step in 0..=steps {
                cuts.push(NestedCut { step, torn: Torn::Absent });
                if step < steps {
                    cuts.push(NestedCut { step, torn: Torn::Damaged });
                }
            }
        } else {
            for _ in 0..(self.spec.effort.nested_draws >> depth.min(1)).max(1) {
                let step = self.random.below(u64::from(steps) + 1) as u32;
                let torn = TORN[self.random.below(2) as usize];
                let cut = NestedCut { step, torn: if step == steps { Torn::Absent } else { torn } };
                if !cuts.contains(&cut) {
                    cuts.push(cut);
                }
            }
            cuts.sort_by_key(|cut| cut.step);
        }
        cuts
    }

    /// Applies the oracle of crash-laboratory §2.8: the recovered device can be written and flushed, and reads
    /// correctly.
    fn exercise(&mut self, device: Device) -> Result<(), Fault> {
        self.counts.exercised += 1;
        exercise_device(device, self.spec.seed)
    }
}

/// Runs the exercise on a device that has woken up.
pub fn exercise_device(device: Device, seed: u64) -> Result<(), Fault> {
    let mut sim = Sim::new(device.clone(), exercise(device.geometry(), seed));
    if let Some(wrong) = caught(|| sim.run())? {
        return Err(Fault::Runtime(wrong));
    }
    caught(|| sim.device().audit())
}

fn found(sim: &Sim, fault: Fault, torn: &[Torn], nested: Vec<NestedCut>) -> Found {
    Found { fault, boot: 0, cut: sim.events(), torn: torn.to_vec(), nested }
}

pub(super) fn cell_hash(cell: &Interrupted) -> u64 {
    let kind = match cell.op.kind {
        OpKind::Read => 0,
        OpKind::Program => 1,
        OpKind::Erase => 2,
    };
    mix(u64::from(cell.op.at.block.0) << 32 | u64::from(cell.op.at.page) << 8 | kind)
}

/// Returns the combinations of states of the interrupted operations: all of them while the operations are few, else all
/// alike, each one unlike the others, and two draws.
pub(super) fn combinations(cells: &[Interrupted], random: &mut RandomStream) -> Vec<Vec<Torn>> {
    let n = cells.len();
    if n <= EXHAUSTIVE_CELLS_MAX {
        let all = 3usize.pow(n as u32);
        return (0..all)
            .map(|code| (0..n).map(|i| TORN[code / 3usize.pow(i as u32) % 3]).collect())
            .collect();
    }
    let mut list: Vec<Vec<Torn>> = TORN.iter().map(|torn| vec![*torn; n]).collect();
    for odd in 0..n {
        for (rest, one) in [(0, 1), (0, 2), (2, 0), (2, 1), (1, 2)] {
            let mut torn = vec![TORN[rest]; n];
            torn[odd] = TORN[one];
            list.push(torn);
        }
    }
    for _ in 0..2 {
        list.push((0..n).map(|_| TORN[random.below(3) as usize]).collect());
    }
    list
}

/// Explores one boot that begins on `device`. Returns the counts, the fault if there is one, and the device of the next
/// boot.
pub fn explore_boot(
    spec: &WorldSpec,
    boot: u32,
    device: Device,
    history: History,
) -> (Counts, Result<Option<Device>, Found>) {
    let mut sim = Sim::new(device, history);
    let mut exploration = Boot::new(spec, boot, &sim);
    let mut carry = Carry::new(spec, boot);
    let result = loop {
        carry.offer(&sim);
        if let Err(found) = exploration.visit(&sim) {
            break Err(found);
        }
        let step = caught(|| sim.step());
        let wrong = match step {
            Ok(true) if sim.misbehaviour().is_none() => continue,
            Ok(_) => sim.misbehaviour().cloned().map(Fault::Runtime),
            Err(fault) => Some(fault),
        };
        break match wrong {
            Some(fault) => Err(found(&sim, fault, &[], Vec::new())),
            None => carry.wake(spec, boot).map(Some),
        };
    };
    exploration.counts.events = u64::from(sim.events());
    exploration.counts.histories = 1;
    (exploration.counts, result.map_err(|found| Found { boot, ..found }))
}

/// Explores a world to its end or to its first fault.
pub fn explore_world(spec: &WorldSpec) -> (Counts, Option<Found>) {
    let mut counts = Counts { worlds: 1, ..Counts::default() };
    let mut device = fresh(spec);
    for boot in 0..spec.effort.boots {
        let (done, result) = explore_boot(spec, boot, device, boot_history(spec, boot));
        counts.add(&done);
        match result {
            Ok(Some(next)) => device = next,
            Ok(None) => break,
            Err(found) => return (counts, Some(found)),
        }
    }
    (counts, None)
}
