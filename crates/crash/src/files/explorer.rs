//! One case: a sequence of operations, cut at every position of the device's log, with each state that the contract
//! allows there recovered and judged.
//!
//! Place in the data flow: [`run`] executes the sequence on the reference and on the volume; [`explore`] enumerates
//! what cuts may leave, recovers each image once, and asks the oracle for each moment at which it may be observed;
//! [`find_state`] finds one image again for a replay. On the simulated device [`super::whole`] does the same.
//!
//! Images are recognised by a hash of their contents and never copied: a device that wakes up shares the base and
//! stores only the differences.
//!
//! Invariant: the result is a function of the case.

use super::allowed::{States, drawn_state, positions, states_at};
use super::appended;
use super::case::{Case, Counts, Effort, Fault, Found, Outside, caught, check_and_recover, idempotent};
use super::history::History;
use super::mounting::Did;
use super::on::On;
use super::ops::Op;
use super::second::second_life;
use super::sequence::Noted;
use super::setup::BLOCKS;
use super::tree::Tree;
use super::volume::{Disk, base_hash, check, exercise, recover};
use super::whole;
use flashweir_contract::CrashState;
use flashweir_core::RandomStream;
use flashweir_core::random::mix;
use flashweir_fs::port::BlockPort;
use flashweir_sim::model_port::{LatePort, ModelPort};
use std::collections::btree_map::Entry;
use std::collections::{BTreeMap, BTreeSet};
use std::rc::Rc;

/// Number of cuts examined per wanted image, and the smallest number of images for this purpose: while many requests
/// are in flight, listing the states of a cut takes longer than recovering one of its images.
const CUTS_PER_STATE: usize = 4;
const STATES_FEW: usize = 12;

/// Most places, four bytes each, that the states of all cuts of a sequence show together before images are chosen: a gibibyte.
const PLACES_HELD_MAX: u64 = 1 << 28;

/// A sequence that was executed.
#[derive(Debug)]
pub struct Run {
    /// The disk, with the complete log.
    pub port: ModelPort,
    /// Steps and their positions in the log.
    pub history: History,
    /// Counts of the file system.
    pub did: Did,
    /// Position after the last operation.
    pub end: u32,
}

/// Most blocks of one SHARE for sequences with sets, each of which must fit in one: no sequence writes as many pages.
const SET_BLOCKS_MAX: u32 = 256;

/// Executes the sequence of a case on the model device, without a cut.
pub fn run(case: &Case<'_>) -> Result<Run, Fault> {
    caught(|| {
        let mut port = case.base.port(case.mode);
        if case.ops.0.iter().any(|op| matches!(op, Op::Atomic(_))) {
            port = port.with_share_blocks_max(SET_BLOCKS_MAX);
        }
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

/// Where there are far more cuts than wanted images, keeps a random selection of them and the last one, which comes first.
fn drawn(mut cuts: Vec<u32>, seed: u64, effort: &Effort) -> Vec<u32> {
    let most = CUTS_PER_STATE * effort.states_max.max(STATES_FEW);
    let last = cuts.last().copied();
    cuts.sort_by_key(|cut| (Some(*cut) != last, mix(seed ^ u64::from(*cut))));
    cuts.truncate(most);
    cuts
}

/// Returns the states after each cut, in the order of the cuts, of the first of `cuts` and of as many more as fit in memory: a
/// nearly full volume that is cleaned may lose each of thousands of writes, and each such state shows thousands of places.
fn states_that_fit(port: &ModelPort, cuts: &[u32], before: u64, effort: &Effort) -> Vec<(u32, States)> {
    let places = port.log().lpns().len() as u64;
    let (mut held, mut by_cut) = (0, Vec::new());
    for &cut in cuts {
        let states = states_at(port, cut, before, effort);
        held += states.len() as u64 * places;
        if held > PLACES_HELD_MAX && !by_cut.is_empty() {
            break;
        }
        by_cut.push((cut, states));
    }
    by_cut.sort_unstable_by_key(|(cut, _)| *cut);
    by_cut
}

/// Keeps `max` of the images after all cuts: first those in which nothing persisted that did not have to, which are few, and everything at
/// the end; then one of each cut, a second one of each, and so on, in random order.
pub(crate) fn choose<S>(by_cut: &mut [(u32, Vec<(u64, S)>)], seed: u64, max: usize) {
    let mut ranks: BTreeMap<u64, usize> = BTreeMap::new();
    for (at, (_, states)) in by_cut.iter().enumerate() {
        // Nothing comes first. Everything comes next, or last where all subsets are tried.
        let is_everything =
            |index: usize| at + 1 == by_cut.len() && (index == 1 || index + 1 == states.len());
        let is_first = |index: usize| index == 0 || is_everything(index);
        let mut others: Vec<usize> = (0..states.len()).filter(|&index| !is_first(index)).collect();
        others.sort_unstable_by_key(|&index| mix(states[index].0 ^ seed));
        let firsts = (0..states.len()).filter(|&index| is_first(index)).map(|index| (0, index));
        for (rank, index) in firsts.chain((1..).zip(others)) {
            let known = ranks.entry(states[index].0).or_insert(rank);
            *known = rank.min(*known);
        }
    }
    let mut ranked: Vec<(usize, u64, u64)> =
        ranks.into_iter().map(|(image, rank)| (rank, mix(image ^ seed), image)).collect();
    ranked.sort_unstable();
    ranked.truncate(max);
    let chosen: BTreeSet<u64> = ranked.into_iter().map(|(.., image)| image).collect();
    for (_, states) in by_cut {
        states.retain(|(image, _)| chosen.contains(image));
    }
}

/// Returns the state after a cut whose image has this hash.
pub fn find_state(
    port: &ModelPort,
    cut: u32,
    before: u64,
    image: u64,
    effort: &Effort,
) -> Option<CrashState> {
    states_at(port, cut, before, effort).into_iter().find(|(hash, _)| *hash == image).map(|(_, state)| state)
}

struct Explorer<'a> {
    case: &'a Case<'a>,
    run: Run,
    counts: Counts,
    images: Vec<u64>,
}

/// Explores a case. Returns the counts, the hashes of the recovered images, and the first fault.
pub fn explore(case: &Case<'_>) -> (Counts, Vec<u64>, Option<Found>) {
    match case.on {
        On::Model if case.base.format.appends() => appended::explore(case),
        On::Model | On::Late => explore_model(case),
        On::Device | On::Layer | On::HostFtl => whole::explore(case),
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
        let effort = &self.case.effort;
        let before = base_hash(self.case.base);
        let cuts = positions(&self.run.port.log(), self.run.end);
        let cuts = drawn(cuts, before ^ u64::from(self.run.end), effort);
        let mut by_cut = states_that_fit(&self.run.port, &cuts, before, effort);
        self.counts.allowed += by_cut.iter().map(|(_, states)| states.len() as u64).sum::<u64>();
        self.counts.cuts += by_cut.len() as u64;
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

    /// Recovers an image that was not seen before, and applies the occasional checks to some of them.
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
        if is_due(effort.lives_every, 6) {
            let (images, result) = second_life(self.run.port.woken(state), image, self.case);
            self.counts.second_lives += 1;
            self.counts.recovered += images.len() as u64;
            self.images.extend(images);
            result.map_err(found)?;
        }
        Ok(tree)
    }

    /// Cuts a recovery that was executed on `port`.
    fn nested(&mut self, port: &ModelPort, image: u64, tree: &Tree) -> Result<(), (Fault, (u32, u64))> {
        let cuts = positions(&port.log(), port.position().0);
        let mut random = RandomStream::new(image, "cuts of a recovery");
        for _ in 0..self.case.effort.nested_draws {
            let (cut, again, state) = drawn_state(port, &cuts, image, &self.case.effort, &mut random);
            let mut woken = port.woken(&state);
            self.counts.recovered += 1;
            self.counts.nested += 1;
            self.images.push(again);
            idempotent(&mut woken, tree, self.case.setup()).map_err(|fault| (fault, (cut, again)))?;
        }
        Ok(())
    }
}

/// Replays one image of a case with all checks. Fails if there is no such cut or image.
pub fn replay(
    case: &Case<'_>,
    cut: Option<u32>,
    image: u64,
    nested: Option<(u32, u64)>,
) -> Result<Option<Fault>, String> {
    if case.on.is_simulated() {
        return whole::replay(case, cut, image, nested);
    }
    if case.base.format.appends() {
        return appended::replay(case, cut, image, nested);
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
    let tree = match check_and_recover(&mut port, case) {
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
    let used = caught(|| exercise(&mut port, case.base.pages, case.setup()).map_err(Fault::Damage));
    Ok(used.and_then(|()| second_life(run.port.woken(&state), image, case).1).err())
}

#[cfg(test)]
mod tests {
    use super::*;
    use flashweir_contract::DeviceKind;
    use flashweir_core::Payload;
    use flashweir_fs::port::{Block, Write, block_on};
    use flashweir_sim::stack::FlushMode;

    /// Thousands of writes that may each be lost, at hundreds of cuts, once took 24 GB (`cleaning`, seed 65320818).
    #[test]
    fn regression_the_states_of_a_sequence_fit_in_memory() {
        const WRITES: u64 = 4_500;
        let port = ModelPort::new(DeviceKind::D1.policy(), WRITES, FlushMode::RangeFlush);
        for block in 0..WRITES {
            let write = Write::new(Block(block), vec![Payload::Tag(block + 1)]);
            block_on(port.write(write).completed()).unwrap();
        }
        let effort = Effort::default();
        let end = port.position().0;
        let cuts: Vec<u32> = (0..end).step_by(64).chain([end]).collect();
        let drawn = drawn(cuts.clone(), 1, &effort);
        let by_cut = states_that_fit(&port, &drawn, 0, &effort);
        let shown = |(_, states): &(u32, States)| -> u64 {
            states.iter().map(|(_, state)| state.shown(&port.log()).count() as u64).sum()
        };
        let held: u64 = by_cut.iter().map(shown).sum();
        let (kept, all) = (by_cut.len(), cuts.len());
        assert!(kept > 1 && kept < all && held <= PLACES_HELD_MAX, "{kept} of {all} cuts");
        assert_eq!(by_cut.last().map(|(cut, _)| *cut), Some(end));
        assert!(by_cut.is_sorted_by_key(|(cut, _)| *cut));
    }
}
