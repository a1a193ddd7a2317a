//! Atomic files in the oracle (share §7): which states of a file a sync has released, and what a set shows after a cut.
//!
//! Rule: a file that withholds shows a state that one of its own syncs released, and nothing in between; of the files of one
//! `syncv` none is older than it while another one is newer. Where data are not journalled a file may have a later length, with zeros
//! behind its end (share §7.9).
//!
//! Invariant: what takes effect without a sync is not judged here: a file that becomes shorter while it withholds, and, where data are not
//! journalled, one that is changed while it does not withhold.

use super::history::{History, Violation};
use super::ops::Op;
use super::tree::{Tree, file};
use std::collections::{BTreeMap, BTreeSet};

/// A file that withholds.
#[derive(Clone, Copy, Debug)]
struct Withheld {
    /// The state that was released last.
    released: usize,
    /// Whether it was written since.
    is_written: bool,
}

/// Which files withhold after a number of steps. Files are inodes of the reference.
#[derive(Clone, Debug, Default)]
pub(super) struct Withholding {
    /// The held files; `None` for one that is not atomic.
    held: Vec<Option<u64>>,
    files: BTreeMap<u64, Withheld>,
    /// Files that were atomic once.
    pub(super) ever: BTreeSet<u64>,
    /// Files that became shorter while they withheld, or that show what no sync released for another reason.
    loose: BTreeSet<u64>,
    /// Files that were changed without withholding and not synced since.
    unsynced: BTreeSet<u64>,
}

impl Withholding {
    /// Takes account of step `index`, and returns the files that it releases.
    pub(super) fn pass(&mut self, history: &History, index: usize) -> Vec<u64> {
        let (step, state) = (&history.steps[index], index + 1);
        let (before, after) = (&*history.states[index], &*history.states[state]);
        let of = |path: &str| after.opened(path).and_then(|path| after.find(&path));
        let size = |tree: &Tree, model: &u64| {
            let bytes = tree.nodes.get(model).and_then(|node| file(node));
            bytes.map_or(0, |bytes| bytes.len() as u64)
        };
        if step.result.is_err() {
            return Vec::new();
        }
        let written: Vec<u64> = match step.op.plain() {
            Op::Write(path, ..)
            | Op::Append(path, _)
            | Op::Direct(path, ..)
            | Op::Allocate(path, ..)
            | Op::AllocateKeep(path, ..)
            | Op::Copy(_, _, _, path, _)
            | Op::Truncate(path, _) => of(path).into_iter().collect(),
            // Behind the end there is nothing to punch.
            Op::Punch(path, at, _) => {
                of(path).into_iter().filter(|model| size(before, model) > *at).collect()
            }
            Op::AppendHeld(_) => self.held.iter().flatten().copied().collect(),
            _ => Vec::new(),
        };
        for model in written {
            match self.files.get_mut(&model) {
                Some(withheld) => withheld.is_written = true,
                None if history.has_versions => {}
                None if self.ever.contains(&model) => drop(self.loose.insert(model)),
                None => drop(self.unsynced.insert(model)),
            }
        }
        for model in self.files.keys() {
            if size(after, model) < size(before, model) {
                self.loose.insert(*model);
            }
        }
        match step.op.plain() {
            Op::Sync | Op::Remount => self.unsynced.clear(),
            Op::Fsync(path) | Op::Fdatasync(path) => drop(of(path).map(|model| self.unsynced.remove(&model))),
            _ => {}
        }
        let released = match step.op.plain() {
            Op::Atomic(path) => {
                let model = of(path);
                self.held.push(model);
                self.ever.extend(model);
                self.loose.extend(model.filter(|model| self.unsynced.contains(model)));
                if let Some(model) = model {
                    self.files.entry(model).or_insert(Withheld { released: state, is_written: false });
                }
                Vec::new()
            }
            Op::Hold(_) | Op::Nameless(_) => {
                self.held.push(None);
                Vec::new()
            }
            Op::Syncv => self.set(),
            Op::Remount => {
                let set = self.set();
                self.held.clear();
                set
            }
            Op::Release => {
                self.held.clear();
                Vec::new()
            }
            Op::ReleaseLast => {
                self.held.pop();
                Vec::new()
            }
            Op::FsyncHeld => self.files.keys().copied().collect(),
            Op::Fsync(path) | Op::Fdatasync(path) | Op::Fbarrier(path) | Op::Fdatabarrier(path) => {
                of(path).into_iter().filter(|model| self.files.contains_key(model)).collect()
            }
            _ => Vec::new(),
        };
        for model in &released {
            self.files.insert(*model, Withheld { released: state, is_written: false });
        }
        let held = &self.held;
        self.files.retain(|model, withheld| withheld.is_written || held.contains(&Some(*model)));
        released
    }

    /// The files that withhold, each with the state that was released last.
    pub(super) fn files(&self) -> impl Iterator<Item = (u64, usize)> {
        self.files.iter().map(|(model, withheld)| (*model, withheld.released))
    }

    /// The atomic files that are held.
    fn set(&self) -> Vec<u64> {
        self.held.iter().flatten().copied().collect::<BTreeSet<u64>>().into_iter().collect()
    }
}

/// Checks what is observed of atomic files against the first `last` steps.
pub(super) fn judge(history: &History, last: usize, observed: &Tree) -> Result<(), Violation> {
    let mut withholding = Withholding::default();
    // States in which each atomic file was released, and the files of each set with its step.
    let mut states: BTreeMap<u64, Vec<usize>> = BTreeMap::new();
    let mut sets: Vec<(usize, Vec<u64>)> = Vec::new();
    let ever = {
        let mut all = Withholding::default();
        (0..last).for_each(|index| drop(all.pass(history, index)));
        all.ever.difference(&all.loose).copied().collect::<BTreeSet<u64>>()
    };
    for &model in &ever {
        states.insert(model, vec![0]);
    }
    for index in 0..last {
        let released = withholding.pass(history, index);
        for (model, states) in &mut states {
            if released.contains(model) || !withholding.files.contains_key(model) {
                states.push(index + 1);
            } else if withholding.files[model].released == index + 1 {
                // It begins to withhold.
                states.push(index + 1);
            }
        }
        if matches!(history.steps[index].op.plain(), Op::Syncv | Op::Remount) {
            sets.push((index, released));
        }
    }
    let content = |state: usize, model: u64| {
        history.states[state].nodes.get(&model).and_then(|node| file(node)).unwrap_or_default()
    };
    let shows = |bytes: &[u8], state: usize, model: u64| {
        let shown = content(state, model);
        let tail = bytes.strip_prefix(shown).filter(|tail| tail.is_empty() || !history.has_versions);
        let was_so_long = || (state..=last).any(|state| content(state, model).len() >= bytes.len());
        tail.is_some_and(|tail| tail.iter().all(|byte| *byte == 0) && was_so_long())
    };
    let seen = |model: u64| {
        let number = history.numbers.get(&model)?;
        // A number that was used again may be the other file's.
        let is_one = history.numbers.values().filter(|other| *other == number).count() == 1;
        Some((*number, file(observed.nodes.get(number)?).filter(|_| is_one)?))
    };
    for (&model, states) in &states {
        let Some((number, bytes)) = seen(model) else { continue };
        if !states.iter().any(|&state| shows(bytes, state, model)) {
            let path = observed.path_of(number);
            return Err(Violation::Set(format!("{path} shows what no sync has released")));
        }
    }
    for (index, set) in sets {
        let (mut older, mut newer) = (None, None);
        for model in set.into_iter().filter(|model| ever.contains(model)) {
            let Some((number, bytes)) = seen(model) else { continue };
            let like = |is_new: bool| {
                let mut states = states[&model].iter().filter(|&&state| (state > index) == is_new);
                states.any(|&state| shows(bytes, state, model))
            };
            older = older.or((!like(true)).then_some(number));
            newer = newer.or((!like(false)).then_some(number));
        }
        if let (Some(older), Some(newer)) = (older, newer) {
            let [older, newer] = [older, newer].map(|number| observed.path_of(number));
            return Err(Violation::Set(format!(
                "{older} is as before operation {index}, syncv, and {newer} as after it"
            )));
        }
    }
    Ok(())
}
