//! Campaigns: many worlds, explored on several threads, counted, their violations reported; and the mutation score.
//!
//! Devices take turns with shallow worlds. Now and then a deep world comes in between, for one device after the other,
//! so that about a tenth of all states are of deep worlds (crash-laboratory §3.10). The seed also determines the first
//! device.
//!
//! Invariant: a report is a function of its configuration. Worlds are numbered, threads take them in order, and the
//! report covers the first ones by number, whichever threads explored them.

use super::bug::Bug;
use super::devices::{all_names, host_ftl, tiny};
use super::explorer;
use super::explorer::{Counts, Effort, Found, OPS, WorldSpec};
use super::open;
use super::replay::{ViolationReport, describe, report};
use super::ruled;
use super::token::Chosen;
use super::{append, both};
use flashweir_device::config::FirmwareKind;
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use std::sync::{Mutex, MutexGuard, PoisonError};

/// Configuration of a campaign.
#[derive(Clone, Debug)]
pub struct CrashConfig {
    /// Names of tiny devices; empty means all of them.
    pub devices: Vec<String>,
    /// Seed of the first world of each device; later worlds count up from it.
    pub seed: u64,
    /// Number of distinct media after which exploration ends; `None` for no limit.
    pub states: Option<u64>,
    /// Number of shallow worlds of each device after which exploration ends; `None` for no limit.
    pub worlds_each: Option<u64>,
    /// Approximate limit of the distinct media of a world that is not deep; `None` means no limit.
    pub states_each: Option<u64>,
    /// Planted bug to be found.
    pub planted: Option<Bug>,
    /// Number of threads.
    pub jobs: usize,
    /// Number of violations after which exploration ends.
    pub violations_max: usize,
    /// Whether to search for the shortest history of each violation.
    pub minimise: bool,
}

impl CrashConfig {
    /// Returns the configuration for finding `bug`, on the devices that the bug concerns unless devices are given.
    pub fn with_planted(&self, bug: Bug) -> Self {
        let mut config = Self { planted: Some(bug), violations_max: 1, minimise: false, ..self.clone() };
        if config.devices.is_empty() {
            let concerned = |name: &&str| tiny(name).is_some_and(|device| bug.concerns(&device));
            config.devices = all_names().filter(concerned).map(str::to_owned).collect();
        }
        config
    }
}

impl Default for CrashConfig {
    fn default() -> Self {
        Self {
            devices: Vec::new(),
            seed: 1,
            states: Some(100_000),
            worlds_each: None,
            states_each: Effort::SHALLOW.states_max,
            planted: None,
            jobs: 1,
            violations_max: 1,
            minimise: true,
        }
    }
}

/// Progress of an exploration.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct CrashProgress {
    /// Number of worlds finished.
    pub worlds: u64,
    /// Number of distinct media so far.
    pub distinct: u64,
    /// Fraction of the wanted work that is done, 0 to 1.
    pub fraction: f64,
    /// Number of violations so far.
    pub violations: usize,
}

/// Results of an exploration.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct CrashReport {
    /// Seed of the first world of each device.
    pub seed: u64,
    /// Number of deep worlds, and of their distinct media.
    pub deep: [u64; 2],
    /// Sum of all counts.
    pub totals: Counts,
    /// Counts per device.
    pub devices: BTreeMap<String, Counts>,
    /// Violations, in the order of worlds.
    pub violations: Vec<ViolationReport>,
    /// Name of the planted bug, if there was one.
    pub planted: Option<String>,
}

/// Number of shallow worlds per deep one, which has about twenty times their states.
const DEEP_EVERY: u64 = 200;
/// Offset that keeps the seeds of deep worlds apart from those of shallow ones.
const DEEP_SEEDS: u64 = 1 << 40;

/// Returns the device, the seed and the effort of the world at position `place` of a campaign over `devices` devices.
fn world_at(place: u64, devices: u64, config: &CrashConfig) -> (usize, u64, Effort) {
    let CrashConfig { seed, states_each: states_max, .. } = *config;
    let (round, rest) = (place / (DEEP_EVERY + 1), place % (DEEP_EVERY + 1));
    let is_deep = rest == DEEP_EVERY;
    let (number, seeds, effort) = match is_deep {
        true => (round, seed.wrapping_add(DEEP_SEEDS), Effort::DEEP),
        false => (round * DEEP_EVERY + rest, seed, Effort { states_max, ..Effort::SHALLOW }),
    };
    let device = (number % devices + seed % devices) % devices;
    (device as usize, seeds.wrapping_add(number / devices), effort)
}

struct World {
    device: usize,
    is_deep: bool,
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

/// Explores worlds until the wanted number of distinct media or violations is reached, or `progress` returns false.
/// Refuses names that are not of a tiny device.
pub fn explore(
    config: &CrashConfig,
    progress: impl FnMut(CrashProgress) -> bool + Send,
) -> Result<CrashReport, String> {
    let devices: Vec<String> = match config.devices.is_empty() {
        true => all_names().map(String::from).collect(),
        false => config.devices.clone(),
    };
    let unknown = |name: &String| format!("`{name}` is no tiny device: expected one of {}", known_names());
    let configs = devices.iter().map(|name| tiny(name).ok_or_else(|| unknown(name)));
    let configs = configs.collect::<Result<Vec<_>, _>>()?;
    let planted = config.planted.map(|bug| bug.name().into());
    let whole = CrashReport { planted, seed: config.seed, ..CrashReport::default() };
    let shared = Mutex::new(Shared { next: 0, ended: BTreeMap::new(), report: whole, stop: false, progress });
    let work = || {
        loop {
            // The lock is released before the world begins.
            let next = lock(&shared).take();
            let Some(number) = next else { break };
            let (device, seed, effort) = world_at(number, configs.len() as u64, config);
            let is_deep = effort == Effort::DEEP;
            let spec = WorldSpec { config: configs[device].clone(), seed, planted: config.planted, effort };
            let (counts, found) = match spec.config.firmware {
                _ if host_ftl(&spec.config.name).is_some() => super::host_ftl::explore_world(&spec),
                FirmwareKind::Page => explorer::explore_world(&spec),
                FirmwareKind::Append => ruled::explore_world::<append::World>(&spec),
                FirmwareKind::PageAndAppend => ruled::explore_world::<both::World>(&spec),
                FirmwareKind::OpenChannel => ruled::explore_world::<open::World>(&spec),
            };
            let violation = found.map(|found| match config.minimise {
                true => report(&spec, &found),
                false => bare_report(&spec, &found),
            });
            lock(&shared).put(number, World { device, is_deep, counts, violation }, config, &devices);
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
    all_names().collect::<Vec<_>>().join(", ")
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

    /// Takes over finished worlds in order.
    fn put(&mut self, number: u64, world: World, config: &CrashConfig, devices: &[String]) {
        self.ended.insert(number, world);
        while !self.stop
            && let Some(world) = self.ended.remove(&self.report.totals.worlds)
        {
            let report = &mut self.report;
            if world.is_deep {
                report.deep[0] += 1;
                report.deep[1] += world.counts.distinct;
            }
            report.totals.add(&world.counts);
            report.devices.entry(devices[world.device].clone()).or_default().add(&world.counts);
            report.violations.extend(world.violation);
            let part = |done: u64, all: Option<u64>| all.map_or(0.0, |all| done as f64 / all.max(1) as f64);
            let shallow = report.totals.worlds - report.deep[0];
            let worlds = config.worlds_each.map(|each| each * devices.len() as u64);
            let fraction = part(report.totals.distinct, config.states).max(part(shallow, worlds));
            let progress = CrashProgress {
                worlds: report.totals.worlds,
                distinct: report.totals.distinct,
                fraction: fraction.min(1.0),
                violations: report.violations.len(),
            };
            self.stop = fraction >= 1.0 || progress.violations >= config.violations_max;
            self.stop |= !(self.progress)(progress);
        }
    }
}

/// The result for one planted bug.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Mutant {
    /// Name of the bug.
    pub bug: String,
    /// Number of worlds until it was found or until the budget was spent; each has histories of its own.
    pub worlds: u64,
    /// Number of distinct media until then.
    pub distinct: u64,
    /// The violation that revealed it.
    pub killed_by: Option<ViolationReport>,
}

/// Planted bugs, and how many of them were found (crash-laboratory §3.9).
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct MutationScore {
    /// Result for each bug.
    pub mutants: Vec<Mutant>,
}

impl MutationScore {
    /// Returns the number of bugs found.
    pub fn killed(&self) -> usize {
        self.mutants.iter().filter(|mutant| mutant.killed_by.is_some()).count()
    }
}

/// Plants each bug in turn and explores until it is found; `config.states` limits the effort for each.
pub fn mutation_score(
    config: &CrashConfig,
    mut progress: impl FnMut(&Mutant) + Send,
) -> Result<MutationScore, String> {
    let mut score = MutationScore::default();
    for (bug, name) in Bug::all() {
        let report = explore(&config.with_planted(bug), |_| true)?;
        let mutant = Mutant {
            bug: name.into(),
            worlds: report.totals.worlds,
            distinct: report.totals.distinct,
            killed_by: report.violations.into_iter().next(),
        };
        progress(&mutant);
        score.mutants.push(mutant);
    }
    Ok(score)
}
