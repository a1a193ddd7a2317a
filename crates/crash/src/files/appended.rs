//! A case on a disk of append segments in memory: after a cut each segment has any prefix that holds what was durable.
//!
//! Place in the data flow: [`explore`] does for [`Segments`] what [`explorer`](super::explorer) does for the model device of the contract,
//! which knows no segments. The requests of a sequence are recorded and repeated up to each cut, where states are drawn.
//!
//! A position is a number of requests that changed something.
//!
//! Invariants: the result is a function of the case; an image is recovered once.
//!
//! Deliberately absent: requests that are in flight at a cut. The simulated device has them ([`whole`](super::whole)).

use super::case::{Case, Counts, Effort, Fault, Found, caught, check_and_recover, idempotent};
use super::history::History;
use super::mounting::Did;
use super::segments::Recorder;
use super::sequence::Noted;
use super::setup::{BLOCKS, SEGMENT_BLOCKS};
use super::tree::Tree;
use super::volume::{Base, Disk as _, base_hash, check, exercise, recover};
use flashweir_core::random::mix;
use flashweir_core::{Lpn, RandomStream};
use flashweir_fs::port::{Block, BlockPort as _, Request, Segments};
use std::collections::{BTreeMap, BTreeSet};
use std::rc::Rc;

/// Returns a disk with the volume of a base.
fn disk_of(base: &Base) -> Segments {
    let segments = (BLOCKS / u64::from(SEGMENT_BLOCKS)) as u32;
    let content = |block: Block| base.contents.get(&Lpn(block.0)).cloned();
    Segments::with_contents(segments, SEGMENT_BLOCKS, content)
}

/// A sequence that was executed.
struct Run {
    before: Segments,
    changes: Vec<Request>,
    history: History,
    did: Did,
    end: u32,
}

fn run(case: &Case<'_>) -> Result<Run, Fault> {
    caught(|| {
        let before = disk_of(case.base);
        let mut recorder = Recorder::new(before.clone());
        let noted = Noted::begin(case)?;
        let changes = Rc::clone(&recorder.changes);
        let done = recorder.run(|port, handle| {
            let position = Rc::clone(&changes);
            noted.sequence(case, port, handle, Rc::new(move || position.borrow().len() as u64))
        });
        let end = done.unwrap_or(Err("it waits for ever".into())).map_err(Fault::Differs)?;
        let changes = changes.take();
        Ok(Run { before, changes, history: noted.history(), did: noted.did.get(), end: end as u32 })
    })
}

/// Which of its states each segment has: those that lose most or least, or some at random. Prefixes that end near one of both are as
/// likely as all others together.
pub(crate) fn choice(draw: u32, seed: u64) -> impl FnMut(u64) -> u64 {
    let mut random = RandomStream::new(seed ^ u64::from(draw), "states of segments");
    move |states| match draw {
        0 => 0,
        1 => states - 1,
        _ => match random.below(4) {
            0 => random.below(states.min(3)),
            1 => states - 1 - random.below(states.min(3)),
            _ => random.below(states),
        },
    }
}

/// Makes changes on a disk again.
pub(crate) fn replayed(disk: &Segments, changes: &[Request]) {
    for request in changes {
        drop(disk.submit(request.clone()));
    }
}

/// Calls `look` with the disk as it is after each of these numbers of changes.
fn look_at<E>(
    before: &Segments,
    changes: &[Request],
    cuts: &[u32],
    mut look: impl FnMut(u32, &Segments) -> Result<(), E>,
) -> Result<(), E> {
    let disk = before.clone();
    let mut done = 0;
    for &cut in cuts {
        replayed(&disk, &changes[done..cut as usize]);
        done = cut as usize;
        look(cut, &disk)?;
    }
    Ok(())
}

/// Number of states that are drawn at a cut.
fn draws(disk: &Segments, effort: &Effort) -> u32 {
    match disk.undecided() {
        0 => 1,
        _ => 2 + effort.draws / 4,
    }
}

fn seed_of(before: u64, cut: u32) -> u64 {
    mix(before ^ u64::from(cut))
}

struct Explorer<'a> {
    case: &'a Case<'a>,
    run: Run,
    counts: Counts,
    images: Vec<u64>,
    trees: BTreeMap<u64, Tree>,
}

/// Explores a case. Returns the counts, the hashes of the recovered images, and the first fault.
pub(super) fn explore(case: &Case<'_>) -> (Counts, Vec<u64>, Option<Found>) {
    let counts = Counts { cases: 1, operations: case.ops.0.len() as u64, ..Counts::default() };
    let run = match run(case) {
        Ok(run) => run,
        Err(fault) => return (counts, Vec::new(), Some(Found { fault, cut: None, image: 0, nested: None })),
    };
    let counts = counts.with(run.did);
    let mut explorer = Explorer { case, run, counts, images: Vec::new(), trees: BTreeMap::new() };
    let found = explorer.all().err();
    (explorer.counts, explorer.images, found)
}

impl Explorer<'_> {
    fn all(&mut self) -> Result<(), Found> {
        let effort = self.case.effort;
        let before = base_hash(self.case.base);
        let all: Vec<u32> = (0..=self.run.end).collect();
        let (first, changes) = (self.run.before.clone(), std::mem::take(&mut self.run.changes));
        // The lowest ranks are recovered, and everything and nothing at the end.
        let mut ranked: BTreeMap<(u64, u32, u32), u64> = BTreeMap::new();
        let mut seen = BTreeSet::new();
        let ranks = look_at(&first, &changes, &all, |cut, disk| {
            for draw in 0..draws(disk, &effort) {
                let image = disk.woken_hash(choice(draw, seed_of(before, cut)));
                self.counts.allowed += 1;
                if seen.insert((image, self.run.history.moment(cut.into()))) {
                    let is_end = draw < 2 && cut == self.run.end;
                    let rank = if is_end { 0 } else { mix(image ^ before).max(1) };
                    ranked.insert((rank, cut, draw), image);
                }
                if ranked.len() > effort.states_max {
                    ranked.pop_last();
                }
            }
            Ok::<(), Found>(())
        });
        ranks?;
        self.counts.cuts += all.len() as u64;
        let mut chosen: Vec<(u32, u32, u64)> =
            ranked.into_iter().map(|((_, cut, draw), image)| (cut, draw, image)).collect();
        chosen.sort_unstable();
        let cuts: BTreeSet<u32> = chosen.iter().map(|(cut, ..)| *cut).collect();
        let cuts: Vec<u32> = cuts.into_iter().collect();
        look_at(&first, &changes, &cuts, |cut, disk| {
            let here = chosen.iter().filter(|(at, ..)| *at == cut);
            for &(_, draw, image) in here {
                if !self.trees.contains_key(&image) {
                    let tree = self.recover(cut, image, disk.woken(choice(draw, seed_of(before, cut))))?;
                    self.trees.insert(image, tree);
                }
                self.counts.judged += 1;
                let verdict = self.run.history.judge(cut.into(), &self.trees[&image]);
                verdict.map_err(|violation| Found {
                    fault: Fault::Violation(violation),
                    cut: Some(cut),
                    image,
                    nested: None,
                })?;
            }
            Ok(())
        })
    }

    fn recover(&mut self, cut: u32, image: u64, woken: Segments) -> Result<Tree, Found> {
        let (case, effort) = (self.case, self.case.effort);
        let is_due = |every: u64, salt: u64| every > 0 && mix(image ^ salt).is_multiple_of(every);
        let found = |fault| Found { fault, cut: Some(cut), image, nested: None };
        self.counts.recovered += 1;
        self.images.push(image);
        let mut disk = Recorder::new(woken.clone());
        if is_due(effort.check_every, 1) {
            caught(|| check(&mut disk, case.base.format).map_err(Fault::Damage)).map_err(found)?;
        }
        let tree = caught(|| recover(&mut disk, case.setup()).map_err(Fault::Damage)).map_err(found)?;
        if is_due(effort.nested_every, 2) {
            let changes = disk.changes.borrow().clone();
            let mut random = RandomStream::new(image, "cuts of a recovery");
            for _ in 0..effort.nested_draws {
                let cut = random.below(changes.len() as u64 + 1) as u32;
                let draw = random.below(2 + u64::from(effort.draws)) as u32;
                let again = nested(&woken, &changes, image, (cut, draw));
                self.counts.recovered += 1;
                self.counts.nested += 1;
                self.images.push(again.0);
                idempotent(&mut Recorder::new(again.1), &tree, case.setup())
                    .map_err(|fault| Found { nested: Some((cut, again.0)), ..found(fault) })?;
            }
        }
        if is_due(effort.exercise_every, 3) {
            self.counts.exercised += 1;
            caught(|| exercise(&mut disk, case.base.pages, case.setup()).map_err(Fault::Damage))
                .map_err(found)?;
        }
        Ok(tree)
    }
}

/// The disk that a cut in a recovery leaves, and its hash.
fn nested(woken: &Segments, changes: &[Request], image: u64, (cut, draw): (u32, u32)) -> (u64, Segments) {
    let mut left = None;
    let done: Result<(), ()> = look_at(woken, changes, &[cut], |_, disk| {
        let seed = seed_of(image, cut);
        left = Some((disk.woken_hash(choice(draw, seed)), disk.woken(choice(draw, seed))));
        Ok(())
    });
    done.ok().and(left).expect("it was called once")
}

/// Replays one image of a case with all checks. Fails if there is no such cut or image.
pub(super) fn replay(
    case: &Case<'_>,
    cut: Option<u32>,
    image: u64,
    again: Option<(u32, u64)>,
) -> Result<Option<Fault>, String> {
    let run = match run(case) {
        Ok(run) => run,
        Err(fault) => return Ok(Some(fault)),
    };
    let Some(cut) = cut else { return Ok(None) };
    if cut > run.end {
        return Err(format!("cut c{cut}: the sequence has {} events", run.end));
    }
    let seed = seed_of(base_hash(case.base), cut);
    let mut woken = None;
    let looked: Result<(), ()> = look_at(&run.before, &run.changes, &[cut], |_, disk| {
        let mut all = 0..draws(disk, &case.effort);
        let draw = all.find(|draw| disk.woken_hash(choice(*draw, seed)) == image);
        woken = draw.map(|draw| disk.woken(choice(draw, seed)));
        Ok(())
    });
    let woken =
        looked.ok().and(woken).ok_or_else(|| format!("no state after c{cut} has the hash {image:016x}"))?;
    let mut disk = Recorder::new(woken.clone());
    let tree = match check_and_recover(&mut disk, case) {
        Ok(tree) => tree,
        Err(fault) => return Ok(Some(fault)),
    };
    if let Err(violation) = run.history.judge(cut.into(), &tree) {
        return Ok(Some(Fault::Violation(violation)));
    }
    if let Some((cut, hash)) = again {
        let changes = disk.changes.borrow().clone();
        if cut as usize > changes.len() {
            return Err(format!("cut c{cut}: the recovery has {} events", changes.len()));
        }
        let mut all = (0..2 + case.effort.draws).map(|draw| nested(&woken, &changes, image, (cut, draw)));
        let found = all.find(|(found, _)| *found == hash);
        let (_, left) = found.ok_or_else(|| format!("no state of the recovery has the hash {hash:016x}"))?;
        return Ok(idempotent(&mut Recorder::new(left), &tree, case.setup()).err());
    }
    Ok(caught(|| exercise(&mut disk, case.base.pages, case.setup()).map_err(Fault::Damage)).err())
}
