//! Many worlds: explored on several threads, counted, their violations reported; and the mutation score.
//!
//! Invariant: a report is a function of its configuration. Worlds are numbered, threads take them in order,
//! and the report is made of the first so many, whoever explored them.

use super::devices::{names, tiny};
use super::explorer::{Counts, Effort, Found, OPS, WorldSpec, explore_world};
use super::replay::{ViolationReport, describe, report};
use super::token::{Chosen, bug_name};
use flashweir_device::PlantedBug;
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use std::sync::{Mutex, MutexGuard, PoisonError};

/// What to explore.
#[derive(Clone, Debug)]
pub struct CrashConfig {
    /// Names of tiny devices; empty is all of them.
    pub devices: Vec<String>,
    /// Seed of the first world of each device; the next has the next.
    pub seed: u64,
    /// Distinct media to recover.
    pub states: u64,
    /// A bug to be found.
    pub planted: Option<PlantedBug>,
    /// Threads.
    pub jobs: usize,
    /// How far each world is explored.
    pub effort: Effort,
    /// Exploration ends with so many violations.
    pub violations_max: usize,
    /// Look for the shortest history of each violation.
    pub minimise: bool,
}

impl CrashConfig {
    /// The same until `bug` is found; unless devices are given, on those that it concerns.
    pub fn with_planted(&self, bug: PlantedBug) -> Self {
        let mut config = Self { planted: Some(bug), violations_max: 1, minimise: false, ..self.clone() };
        // A bug shows in many states of a few worlds, so many worlds find it sooner than many states of one.
        config.effort = config.effort.shallow();
        if config.devices.is_empty() {
            let concerned = |name: &&str| tiny(name).is_some_and(|device| bug.concerns(&device));
            config.devices = names().filter(concerned).map(str::to_owned).collect();
        }
        config
    }
}

impl Default for CrashConfig {
    fn default() -> Self {
        Self {
            devices: Vec::new(),
            seed: 1,
            states: 100_000,
            planted: None,
            jobs: 1,
            effort: Effort::default(),
            violations_max: 1,
            minimise: true,
        }
    }
}

/// How far an exploration is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CrashProgress {
    /// Worlds that ended.
    pub worlds: u64,
    /// Distinct media so far.
    pub distinct: u64,
    /// Distinct media wanted.
    pub wanted: u64,
    /// Violations so far.
    pub violations: usize,
}

/// What an exploration found.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct CrashReport {
    /// Worlds explored.
    pub worlds: u64,
    /// All counts together.
    pub totals: Counts,
    /// By device.
    pub devices: BTreeMap<String, Counts>,
    /// What is wrong, in the order of worlds.
    pub violations: Vec<ViolationReport>,
    /// The planted bug, if there was one.
    pub planted: Option<String>,
}

struct World {
    device: usize,
    counts: Counts,
    violation: Option<ViolationReport>,
}

struct Shared<P> {
    next: u64,
    ended: BTreeMap<u64, World>,
    report: CrashReport,
    stop: bool,
    progress: P,
}

/// Explores worlds until so many distinct media were recovered, so many violations found, or `progress`
/// returns false. Refuses names that are no tiny device.
pub fn explore(
    config: &CrashConfig,
    progress: impl FnMut(CrashProgress) -> bool + Send,
) -> Result<CrashReport, String> {
    let devices: Vec<String> = match config.devices.is_empty() {
        true => names().map(String::from).collect(),
        false => config.devices.clone(),
    };
    let unknown = |name: &String| format!("`{name}` is no tiny device: expected one of {}", known_names());
    let configs = devices.iter().map(|name| tiny(name).ok_or_else(|| unknown(name)));
    let configs = configs.collect::<Result<Vec<_>, _>>()?;
    let planted = config.planted.map(|bug| bug_name(bug).into());
    let whole = CrashReport { planted, ..CrashReport::default() };
    let shared = Mutex::new(Shared { next: 0, ended: BTreeMap::new(), report: whole, stop: false, progress });
    let work = || {
        loop {
            // The lock is given back before the world begins.
            let next = lock(&shared).take();
            let Some(number) = next else { break };
            let device = (number % configs.len() as u64) as usize;
            let spec = WorldSpec {
                config: configs[device].clone(),
                seed: config.seed.wrapping_add(number / configs.len() as u64),
                planted: config.planted,
                effort: config.effort,
            };
            let (counts, found) = explore_world(&spec);
            let violation = found.map(|found| match config.minimise {
                true => report(&spec, &found),
                false => bare_report(&spec, &found),
            });
            lock(&shared).put(number, World { device, counts, violation }, config, &devices);
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

fn known_names() -> String {
    names().collect::<Vec<_>>().join(", ")
}

fn lock<T>(shared: &Mutex<T>) -> MutexGuard<'_, T> {
    shared.lock().unwrap_or_else(PoisonError::into_inner)
}

fn bare_report(spec: &WorldSpec, found: &Found) -> ViolationReport {
    let token = found.token(spec, Chosen::All).to_string();
    ViolationReport {
        what: describe(&found.fault),
        found_as: token.clone(),
        token,
        ops: OPS,
        drawing: String::new(),
    }
}

impl<P: FnMut(CrashProgress) -> bool> Shared<P> {
    fn take(&mut self) -> Option<u64> {
        let number = self.next;
        self.next += 1;
        (!self.stop).then_some(number)
    }

    /// Takes over worlds in order, as far as they have ended.
    fn put(&mut self, number: u64, world: World, config: &CrashConfig, devices: &[String]) {
        self.ended.insert(number, world);
        while !self.stop
            && let Some(world) = self.ended.remove(&self.report.worlds)
        {
            let report = &mut self.report;
            report.worlds += 1;
            report.totals.add(&world.counts);
            report.devices.entry(devices[world.device].clone()).or_default().add(&world.counts);
            report.violations.extend(world.violation);
            let progress = CrashProgress {
                worlds: report.worlds,
                distinct: report.totals.distinct,
                wanted: config.states,
                violations: report.violations.len(),
            };
            self.stop = progress.distinct >= config.states || progress.violations >= config.violations_max;
            self.stop |= !(self.progress)(progress);
        }
    }
}

/// A planted bug and what became of it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Mutant {
    /// Name of the bug.
    pub bug: String,
    /// Worlds until it was found, or until the budget was spent; each has histories of its own.
    pub worlds: u64,
    /// Distinct media until then.
    pub distinct: u64,
    /// The violation that gave it away.
    pub killed_by: Option<ViolationReport>,
}

/// Planted bugs found, of those planted (spec 8.3).
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct MutationScore {
    /// Each bug.
    pub mutants: Vec<Mutant>,
}

impl MutationScore {
    /// Bugs that were found.
    pub fn killed(&self) -> usize {
        self.mutants.iter().filter(|mutant| mutant.killed_by.is_some()).count()
    }
}

/// Plants each bug in turn and explores until it is found; `config.states` bounds the effort for each.
pub fn mutation_score(
    config: &CrashConfig,
    mut progress: impl FnMut(&Mutant) + Send,
) -> Result<MutationScore, String> {
    let mut score = MutationScore::default();
    for (bug, name) in PlantedBug::ALL {
        let report = explore(&config.with_planted(bug), |_| true)?;
        let mutant = Mutant {
            bug: name.into(),
            worlds: report.worlds,
            distinct: report.totals.distinct,
            killed_by: report.violations.into_iter().next(),
        };
        progress(&mutant);
        score.mutants.push(mutant);
    }
    Ok(score)
}
