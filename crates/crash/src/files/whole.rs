//! A case on the whole stack: a file system on Flashweir's simulated device, which is cut between and inside its
//! operations. There may be a block layer or a host FTL in between ([`below`]).
//!
//! Place in the data flow: [`explore`] executes the sequence in virtual time and checks after each turn of the stack
//! whether the medium or the operations in progress have changed. There the power fails, with the programs and erases
//! in progress torn as in the laboratory of devices. Each chosen medium is brought back by the device's own recovery,
//! and the contents are then recovered by a mount of the file system on that device. [`replay`] finds one of them
//! again.
//!
//! A position is twice the number of turns before the cut. An event in turn `t` has the position `2t - 1`: it is over
//! when the power fails after that turn, and may have had no effect on a medium before it.
//!
//! Invariants: the result is a function of the case; volumes that read alike are recovered once.
//!
//! Deliberately absent: cuts inside the recoveries of the device and of a host FTL, which their laboratories make.

use super::below::{self, situation_salt};
use super::case::{Case, Counts, Effort, Fault, Found, Outside, caught, idempotent};
use super::cuts::{Cuts, Situation, image_of};
use super::history::History;
use super::mounting::Did;
use super::sequence::Noted;
use super::setup::BLOCKS;
use super::tree::Tree;
use super::volume::{Disk, check, exercise, recover};
use flashweir_contract::Contents;
use flashweir_core::executor::Handle;
use flashweir_core::random::mix;
use flashweir_core::{Payload, RandomStream};
use flashweir_device::Media;
use flashweir_fs::port::BlockPort;
use flashweir_sim::stack::Stack;
use std::cell::Cell;
use std::collections::{BTreeMap, BTreeSet};
use std::future::Future;
use std::rc::Rc;

/// Maximum number of turns of one sequence; some tens of thousands are usual.
const TURNS_MAX: u32 = 20_000_000;

/// A stack, its tasks, and the turn at which the power is to fail.
struct Powered {
    stack: Stack,
    turns: u32,
    stop: Option<u32>,
}

impl Powered {
    /// Returns the stack that wakes up with a medium.
    fn wake(case: &Case<'_>, media: Media) -> Result<Self, Fault> {
        let wake = || Ok(below::wake(case.base, case.on, case.mode, case.planted, media));
        Ok(Self { stack: caught(wake)?, turns: 0, stop: None })
    }
}

impl Disk for Powered {
    fn run<T: 'static, F: Future<Output = T> + 'static>(
        &mut self,
        task: impl FnOnce(Rc<dyn BlockPort>, Handle) -> F,
    ) -> Option<T> {
        let slot = self.stack.spawn_for(task(Rc::new(self.stack.port()), self.stack.handle()));
        while !slot.is_set() {
            if self.stop == Some(self.turns) || self.turns == TURNS_MAX || !self.stack.turn() {
                return None;
            }
            self.turns += 1;
        }
        slot.take()
    }
}

fn contents_of(stack: &Stack) -> Contents {
    let mut contents = Contents::default();
    stack.peek(BLOCKS, |lpn, payload| {
        if *payload != Payload::Zero {
            contents.insert(lpn, payload.clone());
        }
    });
    contents
}

/// Returns the position of a cut after `turns` turns.
fn position(turns: u32) -> u64 {
    2 * u64::from(turns)
}

/// Executes the sequence of a case. `look` is called before the first turn and after each one until the last operation
/// has ended; its last argument marks the last call. Returns the history, the counts of the file system, and the last
/// turn.
fn drive(case: &Case<'_>, mut look: impl FnMut(u32, &Stack, bool)) -> Result<(History, Did, u32), Fault> {
    let differs = |what: &str| Fault::Differs(what.into());
    caught(|| {
        let mut stack = below::begin(case.base, case.on, case.mode, case.planted);
        let noted = Noted::begin(case)?;
        let turns = Rc::new(Cell::new(0));
        let now = Rc::clone(&turns);
        let stamp = move || position(now.get()).saturating_sub(1);
        let sequence = noted.sequence(case, Rc::new(stack.port()), stack.handle(), Rc::new(stamp));
        let slot = stack.spawn_for(sequence);
        look(0, &stack, false);
        let mut end = None;
        while !slot.is_set() {
            let turn = turns.get() + 1;
            turns.set(turn);
            if turn == TURNS_MAX || !stack.turn() {
                return Err(differs("it waits for ever"));
            }
            if end.is_none() {
                end = noted.end.get().map(|_| turn);
                look(turn, &stack, end.is_some());
            }
        }
        slot.take().unwrap_or(Err("it never ended".into())).map_err(Fault::Differs)?;
        Ok((noted.history(), noted.did.get(), end.expect("it has ended")))
    })
}

struct Explorer<'a> {
    case: &'a Case<'a>,
    counts: Counts,
    images: Vec<u64>,
    trees: BTreeMap<u64, Tree>,
}

/// Explores a case. Returns the counts, the hashes of the recovered images, and the first fault.
pub fn explore(case: &Case<'_>) -> (Counts, Vec<u64>, Option<Found>) {
    let counts = Counts { cases: 1, operations: case.ops.0.len() as u64, ..Counts::default() };
    let mut explorer = Explorer { case, counts, images: Vec::new(), trees: BTreeMap::new() };
    let found = explorer.all().err();
    (explorer.counts, explorer.images, found)
}

impl Explorer<'_> {
    fn all(&mut self) -> Result<(), Found> {
        let (case, Effort { states_max, .. }) = (self.case, self.case.effort);
        let mut cuts = Cuts::new(states_max);
        let run = drive(case, |turn, stack, is_last| cuts.look(turn, stack, is_last));
        let (history, did, end) = run.map_err(|fault| Found { fault, cut: None, image: 0, nested: None })?;
        self.counts = self.counts.with(did);
        self.counts.allowed += cuts.allowed();
        self.counts.cuts += cuts.situations();
        let mut judged = BTreeSet::new();
        for (turns, media) in cuts.into_media(end) {
            let image = self.recover(turns.start, media)?;
            for turn in turns {
                if !judged.insert((image, history.moment(position(turn)))) {
                    continue;
                }
                self.counts.judged += 1;
                let verdict = history.judge(position(turn), &self.trees[&image]);
                let fault = |violation| Found {
                    fault: Fault::Violation(violation),
                    cut: Some(turn),
                    image,
                    nested: None,
                };
                verdict.map_err(fault)?;
            }
        }
        Ok(())
    }

    /// Brings the device back with a medium. If its contents have not been seen before, recovers the volume, and
    /// applies the occasional checks to some of them. Returns the hash of the image.
    fn recover(&mut self, turn: u32, media: Media) -> Result<u64, Found> {
        let (case, effort) = (self.case, self.case.effort);
        let found = |image, fault| Found { fault, cut: Some(turn), image, nested: None };
        let mut disk = Powered::wake(case, media.clone()).map_err(|fault| found(0, fault))?;
        let image = image_of(case.base, &disk.stack);
        if self.trees.contains_key(&image) {
            return Ok(image);
        }
        let is_due = |every: u64, salt: u64| every > 0 && mix(image ^ salt).is_multiple_of(every);
        let found = |fault| found(image, fault);
        self.counts.recovered += 1;
        self.images.push(image);
        if is_due(effort.check_every, 1) {
            let mut disk = Powered::wake(case, media.clone()).map_err(found)?;
            caught(|| check(&mut disk, case.base.format).map_err(Fault::Damage)).map_err(found)?;
        }
        let Outside { checker, recoverer } = case.outside.unwrap_or_default();
        let recoverer = recoverer.filter(|(every, _)| is_due(*every, 5));
        let recoverer = recoverer.map(|(_, replay)| (replay, contents_of(&disk.stack)));
        let tree = caught(|| recover(&mut disk, case.setup()).map_err(Fault::Damage)).map_err(found)?;
        let outside = |said: Result<bool, String>| said.map_err(|what| found(Fault::Outside(what)));
        if let Some((_, check)) = checker.filter(|(every, _)| is_due(*every, 4)) {
            outside(check(&contents_of(&disk.stack), BLOCKS).map(|()| true))?;
            self.counts.outside += 1;
        }
        if let Some((replay, before)) = recoverer {
            self.counts.replayed += u64::from(outside(replay(&before, BLOCKS, &tree))?);
        }
        if is_due(effort.nested_every, 2) {
            let mut random = RandomStream::new(image, "cuts of a recovery");
            for _ in 0..effort.nested_draws {
                let cut = random.below(u64::from(disk.turns) + 1) as u32;
                let mut variants = interrupted(case, media.clone(), image, cut).map_err(found)?;
                let torn = random.below(variants.len() as u64) as usize;
                let nested = |again, fault| Found { nested: Some((cut, again)), ..found(fault) };
                let mut woken =
                    Powered::wake(case, variants.swap_remove(torn)).map_err(|fault| nested(0, fault))?;
                let again = image_of(case.base, &woken.stack);
                self.counts.recovered += 1;
                self.counts.nested += 1;
                self.images.push(again);
                idempotent(&mut woken, &tree, case.setup()).map_err(|fault| nested(again, fault))?;
            }
        }
        if is_due(effort.exercise_every, 3) {
            self.counts.exercised += 1;
            caught(|| exercise(&mut disk, case.base.pages, case.setup()).map_err(Fault::Damage))
                .map_err(found)?;
        }
        self.trees.insert(image, tree);
        Ok(image)
    }
}

/// Returns the media that a cut after `cut` turns of a recovery may leave.
fn interrupted(case: &Case<'_>, media: Media, image: u64, cut: u32) -> Result<Vec<Media>, Fault> {
    let mut disk = Powered { stop: Some(cut), ..Powered::wake(case, media)? };
    // The recovery ends, or is cut off.
    let _ = caught(|| recover(&mut disk, case.setup()).map_err(Fault::Damage));
    let now = disk.stack.cut_instant();
    Ok(disk.stack.with_device(|device| {
        let situation = Situation::new(device, now, image ^ u64::from(cut));
        situation.torn().iter().map(|torn| situation.media(device, torn)).collect()
    }))
}

/// Returns the medium, among those that a cut may have left, that reads as `image`, and the stack on it.
fn with_image(case: &Case<'_>, media: Vec<Media>, image: u64) -> Result<Option<(Media, Powered)>, Fault> {
    for media in media {
        let disk = Powered::wake(case, media.clone())?;
        if image_of(case.base, &disk.stack) == image {
            return Ok(Some((media, disk)));
        }
    }
    Ok(None)
}

/// Replays one image of a case with all checks. Fails if there is no such cut or image.
pub fn replay(
    case: &Case<'_>,
    cut: Option<u32>,
    image: u64,
    nested: Option<(u32, u64)>,
) -> Result<Option<Fault>, String> {
    let mut media = Vec::new();
    let run = drive(case, |turn, stack, _| {
        if cut == Some(turn) {
            let now = stack.cut_instant();
            media = stack.with_device(|device| {
                let situation = Situation::new(device, now, situation_salt(device));
                situation.torn().iter().map(|torn| situation.media(device, torn)).collect()
            });
        }
    });
    let (history, _, end) = match run {
        Ok(run) => run,
        Err(fault) => return Ok(Some(fault)),
    };
    let Some(cut) = cut else { return Ok(None) };
    if cut > end {
        return Err(format!("cut c{cut}: the sequence has {end} events"));
    }
    replay_on(case, &history, (cut, media), image, nested).unwrap_or_else(|fault| Ok(Some(fault)))
}

fn replay_on(
    case: &Case<'_>,
    history: &History,
    (cut, media): (u32, Vec<Media>),
    image: u64,
    nested: Option<(u32, u64)>,
) -> Result<Result<Option<Fault>, String>, Fault> {
    let Some((media, mut disk)) = with_image(case, media, image)? else {
        return Ok(Err(format!("no state after c{cut} has the hash {image:016x}")));
    };
    let mut checked = Powered::wake(case, media.clone())?;
    caught(|| check(&mut checked, case.base.format).map_err(Fault::Damage))?;
    let tree = caught(|| recover(&mut disk, case.setup()).map_err(Fault::Damage))?;
    history.judge(position(cut), &tree).map_err(Fault::Violation)?;
    if let Some((cut, again)) = nested {
        let Some((_, mut woken)) = with_image(case, interrupted(case, media, image, cut)?, again)? else {
            return Ok(Err(format!("no state of the recovery has the hash {again:016x}")));
        };
        idempotent(&mut woken, &tree, case.setup())?;
        return Ok(Ok(None));
    }
    caught(|| exercise(&mut disk, case.base.pages, case.setup()).map_err(Fault::Damage))?;
    Ok(Ok(None))
}
