//! The oracle of file systems: what they may show after a power cut by the promises of fsync, fdatasync, sync and
//! rename.
//!
//! Place in the data flow: a driver executes operations on a file system and on one in memory, and records in a
//! [`History`] what the second shows after each, and when the first had finished it. [`History::judge`] compares a
//! recovered file system with that. `docs/file-crash.md` states the rules and the source of each.
//!
//! A *state* is what the reference shows after a number of operations. Each observation has a *floor*, the state after
//! the last completed call that made it durable, and may match any state from the floor to the last one that had begun
//! at the cut. A verdict thus needs no knowledge of how a file system writes: ext4 and F2FS are judged alike.
//!
//! Invariants: nothing is judged that no rule promises; the verdict is a function of the history, the cut, and the
//! observations.
//!
//! Deliberately absent: times, and the order of unsynced data.

use super::history::{History, Step, Violation};
use super::ops::{Op, origin};
use super::sets::{self, Withholding};
use super::tree::{Body, Node, Tree, file};
use flashweir_fs::vfs::{AclKind, PAGE_BYTES};
use std::collections::{BTreeMap, BTreeSet};
use std::ops::Range;

/// The floors at one moment: the first state from which an observation is durable. Entries that are missing have the
/// floor `all`.
#[derive(Clone, Debug, Default)]
struct Floors {
    all: usize,
    data: BTreeMap<u64, usize>,
    /// Files that withheld at the last sync of everything, which did not concern what they withheld.
    withheld: BTreeSet<u64>,
    /// Ranges of files, in bytes, that writes through handles with `O_SYNC` or `O_DSYNC` made durable, and the states.
    ranges: BTreeMap<u64, Vec<(Range<usize>, usize)>>,
    xattrs: BTreeMap<u64, usize>,
    /// Floor of each inode's existence, under any name.
    found: BTreeMap<u64, usize>,
    names: BTreeMap<(u64, String), usize>,
    /// Floor of all names in a directory, including absent ones.
    directories: BTreeMap<u64, usize>,
}

impl Floors {
    fn data(&self, node: u64) -> usize {
        if self.withheld.contains(&node) {
            return self.data.get(&node).copied().unwrap_or(0);
        }
        self.data.get(&node).map_or(self.all, |&floor| floor.max(self.all))
    }

    fn xattrs(&self, node: u64) -> usize {
        self.xattrs.get(&node).map_or(self.all, |&floor| floor.max(self.all))
    }

    fn name(&self, dir: u64, name: &str) -> usize {
        let whole = self.directories.get(&dir).copied().unwrap_or(0);
        let one = self.names.get(&(dir, name.to_owned())).copied().unwrap_or(0);
        self.all.max(whole).max(one)
    }
}

/// Progress of a history at a cut. Equal moments give equal verdicts on a state.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Moment {
    /// Number of steps that may have had an effect.
    begun: usize,
    /// Steps among them that had not returned.
    pending: Vec<usize>,
}

impl Moment {
    /// Returns the same moment, restricted to the first `steps` steps.
    fn of_first(&self, steps: usize) -> Self {
        let pending = self.pending.iter().copied().filter(|&index| index < steps).collect();
        Self { begun: self.begun.min(steps), pending }
    }
}

impl History {
    /// Returns the moment of a cut before the event at `position`.
    pub fn moment(&self, position: u64) -> Moment {
        let has_ended = |step: &Step| step.ended.is_some_and(|ended| ended <= position);
        let ended = self.steps.iter().rposition(has_ended).map_or(0, |last| last + 1);
        let begun = ended.max(self.steps.iter().take_while(|step| step.begun < position).count());
        Moment { begun, pending: (0..begun).filter(|&index| !has_ended(&self.steps[index])).collect() }
    }

    /// Whether an operation, after which the reference shows `after`, must wait until other tasks have finished theirs.
    pub fn has_to_wait(&self, op: &Op, after: &Tree) -> bool {
        let now = &**self.states.last().expect("the first is always there");
        self.steps.iter().zip(self.states.windows(2)).any(|(step, trees)| {
            step.ended.is_none() && op.has_to_wait_for([now, after], &step.op, [&*trees[0], &*trees[1]])
        })
    }

    /// Iterates over the steps that had returned without an error at a moment.
    fn done<'a>(&'a self, moment: &'a Moment) -> impl Iterator<Item = (usize, &'a Step)> {
        let steps = self.steps[..moment.begun].iter().enumerate();
        steps.filter(|(index, step)| step.result.is_ok() && !moment.pending.contains(index))
    }

    /// Computes the floors at a moment; with `barrier`, what was ordered up to that barrier counts as durable.
    fn floors(&self, moment: &Moment, barrier: Option<usize>) -> Floors {
        let mut floors = Floors::default();
        let (mut withholding, mut passed) = (Withholding::default(), 0);
        for (index, step) in self.done(moment) {
            let op = step.op.plain();
            let mut released = Vec::new();
            for index in passed..=index {
                released = withholding.pass(self, index);
            }
            passed = index + 1;
            if matches!(op, Op::Fbarrier(_)) && barrier.is_none_or(|last| index > last) {
                continue;
            }
            let (state, tree) = (index + 1, &self.states[index + 1]);
            let found = |floors: &mut Floors, path: &str| {
                let mut dir = tree.root;
                for name in path.split('/') {
                    let Some(node) = tree.bound(dir, name) else { break };
                    floors.found.insert(node, state);
                    dir = node;
                }
            };
            match op {
                Op::Syncv => {
                    for model in released {
                        floors.data.insert(model, state);
                        floors.found.insert(model, state);
                    }
                }
                Op::Sync | Op::Remount => {
                    floors.all = state;
                    floors.withheld.clear();
                    for (model, released) in withholding.files() {
                        floors.data.insert(model, released);
                        floors.withheld.insert(model);
                    }
                    floors.found.extend(tree.nodes.keys().map(|&node| (node, state)));
                }
                Op::FsyncHeld => {
                    // The content of a nameless file must be there once it has a name.
                    floors.data.extend(tree.nameless.keys().map(|&node| (node, state)));
                    floors.xattrs.extend(tree.nameless.keys().map(|&node| (node, state)));
                }
                Op::Fsync(path)
                | Op::Fdatasync(path)
                | Op::Fbarrier(path)
                | Op::SyncWrite(path, ..)
                | Op::DsyncWrite(path, ..) => {
                    let Some(path) = tree.opened(path) else { continue };
                    let Some(node) = tree.find(&path) else { continue };
                    found(&mut floors, &path);
                    match op {
                        // Only what it wrote.
                        Op::SyncWrite(_, at, len) | Op::DsyncWrite(_, at, len) => {
                            let range = *at as usize..(at + len) as usize;
                            floors.ranges.entry(node).or_default().push((range, state));
                        }
                        _ => drop(floors.data.insert(node, state)),
                    }
                    let is_directory = tree.entries(node).is_some();
                    if is_directory {
                        // Names are the data of a directory.
                        floors.directories.insert(node, state);
                    }
                    if matches!(op, Op::Fdatasync(_) | Op::DsyncWrite(..)) {
                        continue;
                    }
                    floors.xattrs.insert(node, state);
                    if !is_directory {
                        // Under each of its names, so with the directories of all of them.
                        for (dir, name, _) in tree.names().filter(|&(_, _, child)| child == node) {
                            floors.names.insert((dir, name.to_owned()), state);
                            found(&mut floors, tree.path_of(dir).trim_matches('/'));
                        }
                    }
                }
                _ => {}
            }
        }
        floors
    }

    /// Whether a file system that lost its power before the event at `position` may show `observed`.
    pub fn judge(&self, position: u64, observed: &Tree) -> Result<(), Violation> {
        let moment = self.moment(position);
        self.judge_until(moment.begun, self.floors(&moment, None), observed).all()?;
        sets::judge(self, moment.begun, observed)?;
        // If an effect later than a barrier is visible, everything ordered before the barrier must be, too.
        for (index, step) in self.done(&moment) {
            let op = step.op.plain();
            let (Op::Fbarrier(path) | Op::Fdatabarrier(path)) = op else { continue };
            // Only steps that began after the barrier had returned are later.
            let then = moment.of_first(step.begun_by_end);
            if self.judge_until(then.begun, self.floors(&then, None), observed).all().is_ok() {
                continue;
            }
            let ordered = match op {
                Op::Fbarrier(_) => {
                    self.judge_until(moment.begun, self.floors(&moment, Some(index)), observed).all()
                }
                _ => {
                    let before = self.floors(&moment.of_first(index), None);
                    let judge = self.judge_until(moment.begun, self.floors(&moment, None), observed);
                    judge.overwritten(index, path, &before)
                }
            };
            ordered.map_err(|violation| {
                let what = violation.what();
                Violation::Order(format!("operation {index}, {op}, and something later is there: {what}"))
            })?;
        }
        Ok(())
    }

    fn judge_until<'a>(&'a self, last: usize, floors: Floors, observed: &'a Tree) -> Judge<'a> {
        Judge {
            history: self,
            floors,
            last,
            observed,
            models: self.numbers.iter().fold(BTreeMap::new(), |mut models, (&model, &number)| {
                models.entry(number).or_insert_with(Vec::new).push(model);
                models
            }),
        }
    }
}

struct Judge<'a> {
    history: &'a History,
    floors: Floors,
    /// The last state that may have begun.
    last: usize,
    observed: &'a Tree,
    /// Inodes of the reference by their numbers in the file system; several if a number was reused.
    models: BTreeMap<u64, Vec<u64>>,
}

impl Judge<'_> {
    fn all(&self) -> Result<(), Violation> {
        self.names()?;
        self.inodes()?;
        self.vanished()?;
        self.renames()
    }

    /// Checks what fdatabarrier ordered: pages that had durable blocks and were overwritten before it. The names of the
    /// file and its later growth are not ordered.
    fn overwritten(&self, barrier: usize, path: &str, before: &Floors) -> Result<(), Violation> {
        let (states, at) = (&self.history.states, barrier + 1);
        let tree = &states[at];
        let Some(model) = tree.opened(path).and_then(|path| tree.find(&path)) else { return Ok(()) };
        let durable = before.data(model);
        let is_overwritten = |(index, step): (usize, &Step)| match &step.op {
            Op::Write(of, ..) | Op::SyncWrite(of, ..) | Op::DsyncWrite(of, ..) | Op::Append(of, _) => {
                let tree = &states[index];
                let is_its_own = tree.opened(of).and_then(|path| tree.find(&path)) == Some(model);
                is_its_own || !self.may_change(index, model)
            }
            Op::Fbarrier(_) | Op::Fdatabarrier(_) | Op::Pause(_) | Op::WriteBack => true,
            // What happens to other files does not concern it.
            _ => !self.may_change(index, model),
        };
        let mut between = self.history.steps.iter().enumerate().take(barrier).skip(durable);
        let number = self.history.numbers.get(&model);
        let found = number.and_then(|number| self.observed.nodes.get(number)).and_then(|node| file(node));
        let is_there = self.states(durable).all(|(_, tree)| tree.nodes.contains_key(&model));
        let (Some(found), true) = (found, is_there && between.all(is_overwritten)) else { return Ok(()) };
        let (before, now) = (self.content(durable, model), self.content(at, model));
        for index in 0..before.len().min(now.len()).min(found.len()) / PAGE_BYTES {
            let is_new = |state: usize| page(self.content(state, model), index) == page(found, index);
            if !page(before, index).is_empty() && !(at..=self.last).any(is_new) {
                let path = self.observed.path_of(number.copied().unwrap_or_default());
                return Err(Violation::Content(format!("page {index} of {path} is older")));
            }
        }
        Ok(())
    }

    fn states(&self, floor: usize) -> impl Iterator<Item = (usize, &Tree)> {
        let states = &self.history.states;
        (floor.min(self.last)..=self.last).map(move |state| (state, &*states[state]))
    }

    fn models(&self, number: u64) -> &[u64] {
        self.models.get(&number).map_or(&[], Vec::as_slice)
    }

    /// Returns the inode of the reference that corresponds to an observed one: the one that has a name in the latest
    /// state.
    fn model(&self, number: u64) -> Option<u64> {
        let models = self.models(number);
        let lives =
            |model: &&u64| self.states(self.floors.all).any(|(_, tree)| tree.nodes.contains_key(*model));
        models.iter().rev().find(lives).copied()
    }

    /// Returns the states in which a name is as it was observed.
    fn states_of(&self, dir: u64, name: &str) -> Vec<usize> {
        let number = self.history.numbers.get(&dir);
        let seen = number.and_then(|&number| self.observed.bound(number, name));
        let is_seen = |bound: Option<u64>| match (bound, seen) {
            (None, None) => true,
            (Some(model), Some(number)) => self.history.numbers.get(&model) == Some(&number),
            _ => false,
        };
        let states = self.states(self.floors.name(dir, name));
        states.filter(|(_, tree)| is_seen(tree.bound(dir, name))).map(|(state, _)| state).collect()
    }

    /// Checks that each name in each existing directory matches one of its permitted states.
    fn names(&self) -> Result<(), Violation> {
        for (&number, node) in &self.observed.nodes {
            let Body::Directory(entries) = &node.body else { continue };
            let Some(dir) = self.model(number) else {
                let path = self.observed.path_of(number);
                return Err(Violation::Name(format!("{path} is a directory that was never made")));
            };
            let known = self.states(self.floors.all).filter_map(|(_, tree)| tree.entries(dir));
            let mut names: BTreeSet<&str> =
                known.flat_map(|entries| entries.keys().map(String::as_str)).collect();
            names.extend(entries.keys().map(String::as_str));
            for name in names {
                if !self.states_of(dir, name).is_empty() {
                    continue;
                }
                let path = self.observed.path_of(number);
                let path = format!("{}/{name}", path.trim_end_matches('/'));
                let floor = self.floors.name(dir, name);
                let say = |bound: Option<u64>| match bound {
                    None => "nothing".to_owned(),
                    Some(number) => format!("inode {number}"),
                };
                let expected: BTreeSet<String> = self
                    .states(floor)
                    .map(|(_, tree)| {
                        say(tree.bound(dir, name).and_then(|model| self.history.numbers.get(&model)).copied())
                    })
                    .collect();
                let expected: Vec<String> = expected.into_iter().collect();
                let found = say(entries.get(name).copied());
                return Err(Violation::Name(format!(
                    "{path} is {found}, expected {} (durable since {})",
                    expected.join(" or "),
                    self.since(floor)
                )));
            }
        }
        Ok(())
    }

    fn since(&self, state: usize) -> String {
        match state.checked_sub(1) {
            None => "the volume was prepared".into(),
            Some(step) => format!("operation {step}, {}", self.history.steps[step].op),
        }
    }

    /// Checks that each inode holds what one of its candidate inodes held.
    fn inodes(&self) -> Result<(), Violation> {
        for (&number, node) in &self.observed.nodes {
            let models = self.models(number);
            let named = (models.len() > 1).then(|| self.named(number)).flatten();
            let mut models =
                models.iter().rev().filter(|model| named.as_ref().is_none_or(|all| all.contains(model)));
            let mut wrong = None;
            let fits = models.any(|&model| match self.inode(number, node, model) {
                Ok(()) => true,
                Err(violation) => {
                    // An inode that is gone is the least informative explanation.
                    if wrong.as_ref().is_none_or(|known| matches!(known, Violation::Inode(_))) {
                        wrong = Some(violation);
                    }
                    false
                }
            });
            if !fits {
                let path = self.observed.path_of(number);
                let never = || {
                    let why = if named.is_some() {
                        "no file of which had these names"
                    } else {
                        "which was never made"
                    };
                    Violation::Inode(format!("{path} is inode {number}, {why}"))
                };
                return Err(wrong.unwrap_or_else(never));
            }
        }
        Ok(())
    }

    /// Returns the inodes of the reference which have all of the names that a number was observed under, so that a number that was used
    /// again does not show what its earlier file held. `None` if it has no name in a directory that is certain.
    fn named(&self, number: u64) -> Option<BTreeSet<u64>> {
        let mut common: Option<BTreeSet<u64>> = None;
        for (dir, name, _) in self.observed.names().filter(|&(_, _, child)| child == number) {
            let [dir] = *self.models(dir) else { continue };
            let states = self.states_of(dir, name).into_iter();
            let bound: BTreeSet<u64> =
                states.filter_map(|state| self.history.states[state].bound(dir, name)).collect();
            common = Some(match common {
                Some(all) => &all & &bound,
                None => bound,
            });
        }
        common
    }

    fn inode(&self, number: u64, node: &Node, model: u64) -> Result<(), Violation> {
        let path = || self.observed.path_of(number);
        let floor = self.floors.data(model);
        let versions: Vec<&Node> = self.states(floor).filter_map(|(_, tree)| tree.node(model)).collect();
        let Some(newest) = versions.last() else {
            let since = self.since(floor);
            return Err(Violation::Inode(format!(
                "{} is there, which has had no name since {since}",
                path()
            )));
        };
        // An inode that is missing in the first of its states may still be empty.
        let is_new = self.states(floor).next().is_some_and(|(_, tree)| tree.node(model).is_none());
        if newest.body.kind() != node.body.kind() {
            let (found, expected) = (node.body.kind(), newest.body.kind());
            return Err(Violation::Inode(format!("{} is a {found}, expected a {expected}", path())));
        }
        self.rights(&path, node, model)?;
        match &node.body {
            // Its content is in no tree of the reference, and no rule requires that its name is gone.
            Body::File(_) if self.is_changed_nameless(model) => {}
            Body::File(bytes) => {
                let bodies: Vec<&[u8]> = versions.iter().filter_map(|node| file(node)).collect();
                self.file(&path, bytes, &bodies, (model, is_new), floor)?;
                self.ranges(&path, bytes, model)?;
                if self.history.has_versions {
                    self.versions(&path, bytes, model, floor)?;
                    self.one_version(&path, node, model, is_new)?;
                }
            }
            Body::Symlink(target) if node.body != newest.body => {
                let expected = &newest.body;
                return Err(Violation::Inode(format!(
                    "{} leads to `{target}`, expected {expected:?}",
                    path()
                )));
            }
            Body::Symlink(_) | Body::Directory(_) | Body::Other => {}
        }
        if !matches!(node.body, Body::Directory(_)) {
            let names = self.observed.names().filter(|&(_, _, child)| child == number).count();
            if names != node.links as usize {
                let links = node.links;
                return Err(Violation::Inode(format!("{} has {names} names and {links} links", path())));
            }
        }
        self.xattrs(&path, node, model)
    }

    /// Checks that owner, permission bits and access list belong to one state: each changes in one step.
    fn rights(&self, path: &dyn Fn() -> String, node: &Node, model: u64) -> Result<(), Violation> {
        let floor = self.floors.xattrs(model);
        let rights = |node: &Node| (node.mode, node.xattrs.get(AclKind::Access.name()).cloned(), node.owner);
        let found = rights(node);
        let mut known = self.states(floor).filter_map(|(_, tree)| tree.node(model)).map(rights);
        if known.any(|rights| rights == found) {
            return Ok(());
        }
        let expected: BTreeSet<String> = self
            .states(floor)
            .filter_map(|(_, tree)| tree.node(model))
            .map(|node| format!("{:o}, owner {:?}, list {:?}", node.mode, node.owner, rights(node).1))
            .collect();
        let expected: Vec<String> = expected.into_iter().collect();
        Err(Violation::Inode(format!(
            "{} has mode {:o}, owner {:?}, list {:?}, expected {} (durable since {})",
            path(),
            found.0,
            found.2,
            found.1,
            expected.join(" or "),
            self.since(floor)
        )))
    }

    /// Whether an inode was open when it lost its last name, and was written afterwards.
    fn is_changed_nameless(&self, model: u64) -> bool {
        let mut is_held = false;
        let steps = self.history.steps[..self.last].iter().zip(&self.history.states);
        steps.zip(&self.history.states[1..]).any(|((step, before), after)| {
            match &step.op {
                Op::Hold(path) => is_held |= before.find(path) == Some(model),
                Op::Release => is_held = false,
                _ => (),
            }
            matches!(step.op, Op::AppendHeld(_)) && is_held && !after.nodes.contains_key(&model)
        })
    }

    fn file(
        &self,
        path: &dyn Fn() -> String,
        found: &[u8],
        versions: &[&[u8]],
        (model, is_new): (u64, bool),
        floor: usize,
    ) -> Result<(), Violation> {
        let sizes: BTreeSet<usize> = versions.iter().map(|bytes| bytes.len()).collect();
        let grew = |(before, after): (usize, usize)| before < found.len() && found.len() < after;
        let first = is_new.then(|| (0, versions.first().map_or(0, |bytes| bytes.len())));
        let mut growths = versions.windows(2).map(|pair| (pair[0].len(), pair[1].len())).chain(first);
        // A copy has several steps, each of which ends at the end of a page or of the copy.
        let is_copied = self.history.steps[..self.last]
            .iter()
            .enumerate()
            .any(|(at, step)| matches!(step.op.plain(), Op::Copy(.., to, _) if self.leads_to(at, to, model)));
        let is_part = (self.history.grows_by_pages || is_copied)
            && found.len().is_multiple_of(PAGE_BYTES)
            && growths.any(grew);
        let is_known = sizes.contains(&found.len()) || is_new && found.is_empty() || is_part;
        if !is_known {
            return Err(Violation::Size(format!(
                "{} has {} bytes, expected one of {sizes:?} (durable since {})",
                path(),
                found.len(),
                self.since(floor)
            )));
        }
        // What was cut off before the file got the length that it has is not there: a page may be older than the length, but not with bytes
        // that no version of so late had.
        let left = |version: usize| {
            let with_length = (0..versions.len()).filter(|&at| versions[at].len() == found.len());
            let kept = with_length.map(|at| {
                versions[version..=at.max(version)].iter().map(|bytes| bytes.len()).min().unwrap_or(0)
            });
            &versions[version][..kept.max().unwrap_or(found.len()).min(versions[version].len())]
        };
        let left: Vec<&[u8]> = (0..versions.len()).map(left).collect();
        for (index, page) in found.chunks(PAGE_BYTES).enumerate() {
            let start = index * PAGE_BYTES;
            let is_like = |bytes: &&&[u8]| {
                let version = &bytes[start.min(bytes.len())..(start + page.len()).min(bytes.len())];
                page[..version.len()] == *version && page[version.len()..].iter().all(|&byte| byte == 0)
            };
            if left.iter().any(|bytes| is_like(&bytes)) || is_new && page.iter().all(|&byte| byte == 0) {
                continue;
            }
            // The message names the first byte that differs from the newest version.
            let newest = versions.last().map_or(&[][..], |bytes| bytes);
            let differs = |&at: &usize| newest.get(at).copied().unwrap_or(0) != found[at];
            let at = (start..start + page.len()).find(differs).unwrap_or(start) / 8 * 8;
            let was = origin(newest.get(at..newest.len().min(at + 8)).unwrap_or_default());
            return Err(Violation::Content(format!(
                "{} at {at}: {}; the newest are {was} (durable since {})",
                path(),
                origin(&found[at..found.len().min(at + 8)]),
                self.since(floor)
            )));
        }
        Ok(())
    }

    /// Checks what writes through synchronous handles made durable: in each page of their ranges there is what one of the states since had there,
    /// and the file is long enough for it. What a later truncation may have cut off is not judged.
    fn ranges(&self, path: &dyn Fn() -> String, found: &[u8], model: u64) -> Result<(), Violation> {
        for (range, state) in self.floors.ranges.get(&model).into_iter().flatten() {
            let later: Vec<&[u8]> = (*state..=self.last).map(|state| self.content(state, model)).collect();
            let kept = later.iter().map(|bytes| bytes.len()).min().unwrap_or(0);
            let end = range.end.min(kept);
            let starts = (range.start / PAGE_BYTES..end.div_ceil(PAGE_BYTES)).map(|page| page * PAGE_BYTES);
            for start in starts.map(|start| start.max(range.start)) {
                let part = start..end.min((start / PAGE_BYTES + 1) * PAGE_BYTES);
                let is_known = found
                    .get(part.clone())
                    .is_some_and(|found| later.iter().any(|bytes| bytes.get(part.clone()) == Some(found)));
                if !is_known {
                    let since = self.since(*state);
                    let what = format!("bytes {} to {} of {}", part.start, part.end, path());
                    return Err(Violation::Content(format!("{what} are older than {since}")));
                }
            }
        }
        Ok(())
    }

    /// Checks that of each write to a file all pages are as before it, or all as after it. Operations of other tasks, whose
    /// place among those of this one is not known, split earlier writes.
    fn versions(
        &self,
        path: &dyn Fn() -> String,
        found: &[u8],
        model: u64,
        floor: usize,
    ) -> Result<(), Violation> {
        let begun = &self.history.steps[..self.last];
        let touches = |index: usize, of: &str| self.leads_to(index, of, model);
        let splits = (0..begun.len()).rfind(|&at| {
            matches!(begun[at].op, Op::Aside(_) | Op::AppendHeld(_)) && self.may_change(at, model)
        });
        for (index, step) in begun.iter().enumerate().skip(splits.map_or(floor, |at| floor.max(at + 1))) {
            let (Op::Write(of, ..) | Op::SyncWrite(of, ..) | Op::DsyncWrite(of, ..) | Op::Append(of, _)) =
                &step.op
            else {
                continue;
            };
            if !touches(index, of) {
                continue;
            }
            let [before, after] = [index, index + 1].map(|state| self.content(state, model));
            let pages = before.len().max(after.len()).div_ceil(PAGE_BYTES);
            let changed = (0..pages).filter(|&at| page(before, at) != page(after, at));
            let like = |mut states: std::ops::RangeInclusive<usize>, at: usize| {
                states.any(|state| page(self.content(state, model), at) == page(found, at))
            };
            let (mut old, mut new) = (None, None);
            for at in changed {
                old = old.or((!like(index + 1..=self.last, at)).then_some(at));
                new = new.or((!like(floor..=index, at)).then_some(at));
            }
            if let (Some(old), Some(new)) = (old, new) {
                return Err(Violation::Version(format!(
                    "{}: page {old} is as before operation {index}, {}, and page {new} as after it",
                    path(),
                    step.op
                )));
            }
        }
        Ok(())
    }

    /// Checks that data, length, mode and attributes of a file are as after one operation. A hole whose ends lie within
    /// pages is made in several steps, and other tasks' operations have no place among those of this one.
    fn one_version(
        &self,
        path: &dyn Fn() -> String,
        node: &Node,
        model: u64,
        is_new: bool,
    ) -> Result<(), Violation> {
        let has_steps = |step: &Step| match &step.op {
            Op::Punch(_, offset, len) => [*offset, offset + len].iter().any(|at| at % PAGE_BYTES as u64 != 0),
            // What an atomic file withholds comes later than its attributes.
            op => matches!(op, Op::Aside(_) | Op::AppendHeld(_) | Op::Copy(..) | Op::Atomic(_)),
        };
        let mut steps = self.history.steps[..self.last].iter().enumerate();
        if steps.any(|(at, step)| has_steps(step) && self.may_change(at, model)) {
            return Ok(());
        }
        let floor = self.floors.data(model).min(self.floors.xattrs(model));
        let is_like = |known: &Node| {
            // A write to a file that does not exist creates it first.
            let is_created = is_new && file(node).is_some_and(<[u8]>::is_empty);
            (known.body == node.body || is_created)
                && (known.mode, known.owner, &known.xattrs) == (node.mode, node.owner, &node.xattrs)
        };
        let mut known = self.states(floor).filter_map(|(_, tree)| tree.node(model));
        match known.any(is_like) {
            true => Ok(()),
            false => Err(Violation::Version(format!(
                "{}: data, length, mode and attributes were never together (durable since {})",
                path(),
                self.since(floor)
            ))),
        }
    }

    /// Whether a path leads to an inode before an operation or after it.
    fn leads_to(&self, operation: usize, path: &str, model: u64) -> bool {
        [operation, operation + 1].iter().any(|&state| {
            let tree = &self.history.states[state];
            tree.opened(path).and_then(|path| tree.find(&path)) == Some(model)
        })
    }

    /// Whether an operation may change an inode, or names none by a path.
    fn may_change(&self, operation: usize, model: u64) -> bool {
        let op = &self.history.steps[operation].op;
        let paths = op.paths();
        !op.plain().is_persistence()
            && (paths.is_empty() || paths.iter().any(|path| self.leads_to(operation, path, model)))
    }

    /// Returns the content of a file in a state; empty if it did not exist.
    fn content(&self, state: usize, model: u64) -> &[u8] {
        self.history.states[state].nodes.get(&model).and_then(|node| file(node)).unwrap_or_default()
    }

    fn xattrs(&self, path: &dyn Fn() -> String, node: &Node, model: u64) -> Result<(), Violation> {
        let floor = self.floors.xattrs(model);
        let versions: Vec<Option<&Node>> = self.states(floor).map(|(_, tree)| tree.node(model)).collect();
        let names = versions.iter().flatten().flat_map(|node| node.xattrs.keys());
        let names: BTreeSet<&String> = names.chain(node.xattrs.keys()).collect();
        for name in names {
            let found = node.xattrs.get(name);
            let is_like = |version: &Option<&Node>| version.and_then(|node| node.xattrs.get(name)) == found;
            if !versions.iter().any(is_like) {
                let found = found.map_or("absent".into(), |value| {
                    format!("{} bytes, {}", value.len(), origin(&value[..value.len().min(8)]))
                });
                let since = self.since(floor);
                return Err(Violation::Xattr(format!(
                    "{name} of {} is {found} (durable since {since})",
                    path()
                )));
            }
        }
        Ok(())
    }

    /// Checks that what was made durable and has had a name in all states since still has one.
    fn vanished(&self) -> Result<(), Violation> {
        for (&model, &floor) in &self.floors.found {
            let number = self.history.numbers.get(&model);
            let is_there = number.is_some_and(|number| self.observed.nodes.contains_key(number));
            let always = self.states(floor).all(|(_, tree)| tree.nodes.contains_key(&model));
            if always && !is_there {
                let path = self.history.states[floor].path_of(model);
                let since = self.since(floor);
                return Err(Violation::Vanished(format!("{path}, durable since {since}")));
            }
        }
        // The same holds for what existed at the beginning.
        for &model in self.history.states[0].nodes.keys() {
            let number = self.history.numbers.get(&model);
            let is_there = number.is_some_and(|number| self.observed.nodes.contains_key(number));
            if !is_there && self.states(0).all(|(_, tree)| tree.nodes.contains_key(&model)) {
                let path = self.history.states[0].path_of(model);
                return Err(Violation::Vanished(format!("{path}, durable since the volume was prepared")));
            }
        }
        Ok(())
    }

    /// Checks that a rename, or an exchange, shows at both of its names or at neither.
    fn renames(&self) -> Result<(), Violation> {
        for (index, step) in self.history.steps[..self.last].iter().enumerate() {
            let (Op::Rename(from, to) | Op::Exchange(from, to)) = step.op.plain() else { continue };
            if step.result.is_err() || from == to {
                continue;
            }
            let (before, after) = (&self.history.states[index], index + 1);
            let place = |path: &str| {
                let (dir, name) = path.rsplit_once('/').unwrap_or(("", path));
                Some((before.find(dir)?, name.to_owned()))
            };
            let (Some(from_at), Some(to_at)) = (place(from), place(to)) else { continue };
            let is_there = |dir: u64| {
                self.history.numbers.get(&dir).is_some_and(|number| self.observed.nodes.contains_key(number))
            };
            // Two names of one inode: nothing is renamed.
            let is_same = before.bound(from_at.0, &from_at.1) == before.bound(to_at.0, &to_at.1);
            if is_same || !is_there(from_at.0) || !is_there(to_at.0) {
                continue;
            }
            let sides = [self.states_of(from_at.0, &from_at.1), self.states_of(to_at.0, &to_at.1)];
            let on = |is_done: bool| {
                sides.iter().all(|side| side.iter().any(|&state| (state >= after) == is_done))
            };
            if !on(true) && !on(false) {
                return Err(Violation::Rename(format!("operation {index}, {}", step.op)));
            }
        }
        Ok(())
    }
}

/// Returns a page of a file without trailing zeros; beyond the end of the file there are only zeros.
fn page(bytes: &[u8], at: usize) -> &[u8] {
    let page = &bytes[(at * PAGE_BYTES).min(bytes.len())..((at + 1) * PAGE_BYTES).min(bytes.len())];
    &page[..page.iter().rposition(|&byte| byte != 0).map_or(0, |last| last + 1)]
}
