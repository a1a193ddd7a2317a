//! The oracle of append segments: which generations and prefixes a power loss may leave (contract §2.3, contract §2.4).
//!
//! Place in the data flow: the driver of a device writes down what it submitted, what was accepted and what was promised; after a power
//! loss it shows what each segment reports and holds. What a segment shows says exactly which of its units persisted, so the oracle
//! searches nothing: it takes the largest set of units that the sight allows, removes what lacks a predecessor, and asks whether what is
//! seen and what was promised is left.
//!
//! Invariant: writes and deallocations of a segment are written down in the order in which the device accepts them.
//!
//! Deliberately absent: pages of the page namespace. No stream has members in both.

use crate::log::Content;
use flashweir_core::command::StreamId;
use std::collections::{BTreeMap, BTreeSet};

/// What a segment shows after a power loss.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Shown {
    /// Number of its generation.
    pub generation: u32,
    /// Content of each unit below the write pointer; `None` where nothing was written.
    pub units: Vec<Option<Content>>,
}

/// A unit or a deallocation.
#[derive(Clone, Debug)]
struct Entry {
    op: u64,
    content: Content,
    /// Position in the order of acceptance; `None` until then.
    accepted: Option<u32>,
    is_promised: bool,
    member: Option<(StreamId, u32)>,
}

/// The units of a segment between two deallocations, and the one that ended it.
#[derive(Clone, Debug, Default)]
struct Generation {
    number: u32,
    units: Vec<Option<Entry>>,
    trim: Option<Entry>,
}

/// Segment, place in its list of generations, and units of an operation; no units is a deallocation.
#[derive(Clone, Debug)]
struct Place {
    segment: usize,
    generation: usize,
    units: std::ops::Range<usize>,
}

/// What was done to the segments of a device since its power came on.
#[derive(Clone, Debug)]
pub struct SegmentLog {
    segments: Vec<Vec<Generation>>,
    places: BTreeMap<u64, Place>,
    accepted: u32,
    units: usize,
}

impl SegmentLog {
    /// Returns the log of a device with so many segments of so many units, that shows this.
    pub fn new(units: u32, shown: &[Shown]) -> Self {
        let generation = |shown: &Shown| {
            let unit = |content: &Option<Content>| {
                content.map(|content| Entry {
                    op: 0,
                    content,
                    accepted: Some(0),
                    is_promised: true,
                    member: None,
                })
            };
            let mut all: Vec<Option<Entry>> = shown.units.iter().map(unit).collect();
            all.resize_with(units as usize, || None);
            vec![Generation { number: shown.generation, units: all, trim: None }]
        };
        let segments = shown.iter().map(generation).collect();
        Self { segments, places: BTreeMap::new(), accepted: 0, units: units as usize }
    }

    /// Number of the segment's generation, and one behind its last unit, once everything so far is accepted.
    pub fn planned(&self, segment: u32) -> (u32, u32) {
        let now = self.now(segment);
        let end = now.units.iter().rposition(Option::is_some).map_or(0, |last| last as u32 + 1);
        (now.number, end)
    }

    /// Content of a unit once everything so far is accepted.
    pub fn planned_content(&self, segment: u32, unit: u32) -> Option<Content> {
        self.now(segment).units[unit as usize].as_ref().map(|entry| entry.content)
    }

    /// Content of a unit as a read sees it, and the operation that wrote it: 0 if it was there when the power came on.
    pub fn accepted_content(&self, segment: u32, unit: u32) -> Option<(Content, u64)> {
        let generations = &self.segments[segment as usize];
        let is_over =
            |generation: &Generation| generation.trim.as_ref().is_some_and(|trim| trim.accepted.is_some());
        let now = generations.iter().find(|generation| !is_over(generation))?;
        let entry = now.units[unit as usize].as_ref().filter(|entry| entry.accepted.is_some())?;
        Some((entry.content, entry.op))
    }

    fn now(&self, segment: u32) -> &Generation {
        self.segments[segment as usize].last().expect("a segment has a generation")
    }

    /// Writes down a write that was submitted: its first unit, the contents of its units, and its place in a stream.
    pub fn write(
        &mut self,
        op: u64,
        (segment, first): (u32, u32),
        contents: impl Iterator<Item = Content>,
        member: Option<(StreamId, u32)>,
    ) {
        let generations = &mut self.segments[segment as usize];
        let generation = generations.len() - 1;
        let first = first as usize;
        let mut end = first;
        for content in contents {
            let entry = Entry { op, content, accepted: None, is_promised: false, member };
            generations[generation].units[end] = Some(entry);
            end += 1;
        }
        self.places.insert(op, Place { segment: segment as usize, generation, units: first..end });
    }

    /// Writes down a deallocation that was submitted. One of a segment that holds nothing has no effect.
    pub fn trim(&mut self, op: u64, segment: u32, member: Option<(StreamId, u32)>) {
        let units = self.units;
        let generations = &mut self.segments[segment as usize];
        let generation = generations.len() - 1;
        if generations[generation].units.iter().all(Option::is_none) {
            return;
        }
        let entry = Entry { op, content: Content::ZERO, accepted: None, is_promised: false, member };
        generations[generation].trim = Some(entry);
        let number = generations[generation].number + 1;
        generations.push(Generation { number, units: vec![None; units], trim: None });
        self.places.insert(op, Place { segment: segment as usize, generation, units: 0..0 });
    }

    fn entries_of(&mut self, op: u64) -> impl Iterator<Item = &mut Entry> {
        let place = self.places.get(&op).cloned();
        // Generations behind a deallocation that was refused are gone.
        let generation = place.and_then(|place| {
            let generation = self.segments[place.segment].get_mut(place.generation)?;
            Some((generation, place.units))
        });
        generation.into_iter().flat_map(|(generation, units)| {
            let trim = if units.is_empty() { generation.trim.as_mut() } else { None };
            generation.units[units].iter_mut().flatten().chain(trim)
        })
    }

    /// The device has accepted the operation. A deallocation has no effect if all that it was to end was refused before.
    pub fn accept(&mut self, op: u64) {
        if let Some(place) = self.places.get(&op).filter(|place| place.units.is_empty()) {
            let generations = &mut self.segments[place.segment];
            let is_void = |generation: &Generation| generation.units.iter().all(Option::is_none);
            if generations.get(place.generation).is_some_and(is_void) {
                generations.truncate(place.generation + 1);
                generations[place.generation].trim = None;
                self.places.remove(&op);
                return;
            }
        }
        self.accepted += 1;
        let at = self.accepted;
        self.entries_of(op).for_each(|entry| entry.accepted = Some(at));
    }

    /// The device has promised the units of the operation that lie below `upto`, or its deallocation.
    pub fn promise(&mut self, op: u64, upto: u32) {
        let Some(place) = self.places.get(&op) else { return };
        let below = (upto as usize).saturating_sub(place.units.start);
        let is_trim = place.units.is_empty();
        for entry in self.entries_of(op).take(if is_trim { 1 } else { below }) {
            entry.is_promised = true;
        }
    }

    /// Whether the operation is a write or deallocation of this segment.
    pub fn is_of(&self, op: u64, segment: u32) -> bool {
        self.places.get(&op).is_some_and(|place| place.segment == segment as usize)
    }

    /// The device has refused an operation that changes something, and all later ones of its segment. One that it had accepted may have
    /// had an effect all the same.
    pub fn withdraw(&mut self, op: u64) {
        if self.entries_of(op).any(|entry| entry.accepted.is_some()) {
            return;
        }
        let Some(place) = self.places.remove(&op) else { return };
        let generations = &mut self.segments[place.segment];
        if place.units.is_empty() {
            // What was planned behind it is refused, too, except for the next deallocation, which ends the same generation.
            let is_next = |(_, other): &(&u64, &mut Place)| {
                other.segment == place.segment
                    && other.generation > place.generation
                    && other.units.is_empty()
            };
            let next = self.places.range_mut(op..).find(is_next).map(|(_, other)| other);
            let entry = next.and_then(|other| {
                let entry = generations.get_mut(other.generation)?.trim.take();
                other.generation = place.generation;
                entry
            });
            generations.truncate(place.generation + 1);
            // Already gone if a deallocation before it was refused.
            let Some(generation) = generations.get_mut(place.generation) else { return };
            let number = generation.number + 1;
            generation.trim = entry;
            if generation.trim.is_some() {
                generations.push(Generation { number, units: vec![None; self.units], trim: None });
            }
        } else if let Some(generation) = generations.get_mut(place.generation) {
            for unit in place.units {
                let is_its = generation.units[unit].as_ref().is_some_and(|entry| entry.op == op);
                if is_its {
                    generation.units[unit] = None;
                }
            }
        }
    }

    /// Whether a power loss now may leave this.
    ///
    /// # Errors
    /// Names the first thing that is wrong.
    pub fn check(&self, shown: &[Shown]) -> Result<(), String> {
        let mut kept = Vec::new();
        for (number, (generations, shown)) in self.segments.iter().zip(shown).enumerate() {
            let at = generations
                .iter()
                .position(|generation| generation.number == shown.generation)
                .ok_or_else(|| format!("segment {number}: generation {} never was", shown.generation))?;
            check_contents(&generations[at], shown).map_err(|what| format!("segment {number}, {what}"))?;
            kept.push(Kept::new(generations, at, shown));
        }
        let absent = || self.absent(shown);
        while self.remove(&mut kept) {}
        for (number, (generations, kept)) in self.segments.iter().zip(&kept).enumerate() {
            for (place, generation) in generations.iter().enumerate() {
                let is_shown = place == kept.at;
                for (unit, entry) in present(generation) {
                    let has = kept.units[place][unit];
                    if is_shown && kept.is_seen(unit) && !has {
                        return Err(format!(
                            "segment {number}: unit {unit} (command {}) is there without what has to persist before it; absent: {}",
                            entry.op,
                            absent()
                        ));
                    }
                    if entry.is_promised && !has {
                        let generation = generation.number;
                        return Err(format!(
                            "segment {number}: unit {unit} of generation {generation} (command {}) was promised and is lost",
                            entry.op
                        ));
                    }
                }
                let Some(trim) = &generation.trim else { continue };
                let has = kept.trims[place];
                if place < kept.at && !has {
                    return Err(format!(
                        "segment {number}: the deallocation by command {} persists without what has to persist before it; absent: {}",
                        trim.op,
                        absent()
                    ));
                }
                if trim.is_promised && !has {
                    return Err(format!(
                        "segment {number}: the deallocation by command {} was promised and is lost",
                        trim.op
                    ));
                }
            }
        }
        Ok(())
    }

    /// The commands of which something is not there, for messages.
    fn absent(&self, shown: &[Shown]) -> String {
        let mut commands = BTreeSet::new();
        let of = |(generations, shown): (&Vec<Generation>, &Shown)| {
            let at = generations.iter().position(|generation| generation.number == shown.generation);
            Kept::new(generations, at.unwrap_or(0), shown)
        };
        let mut kept: Vec<Kept> = self.segments.iter().zip(shown).map(of).collect();
        self.each(&mut kept, |entry, has| {
            if !*has {
                commands.insert(entry.op);
            }
        });
        commands.iter().map(u64::to_string).collect::<Vec<_>>().join(", ")
    }

    /// Removes what lacks a predecessor; returns whether there was any.
    fn remove(&self, kept: &mut [Kept]) -> bool {
        let mut changed = false;
        // (o): the first epoch of each stream that is not whole.
        let mut broken: BTreeMap<StreamId, u32> = BTreeMap::new();
        self.each(kept, |entry, has| {
            if let (Some((stream, epoch)), false) = (entry.member, *has) {
                let first = broken.entry(stream).or_insert(epoch);
                *first = epoch.min(*first);
            }
        });
        self.each(kept, |entry, has| {
            let is_behind = entry
                .member
                .is_some_and(|(stream, epoch)| broken.get(&stream).is_some_and(|first| epoch > *first));
            changed |= is_behind && *has;
            *has &= !is_behind;
        });
        for (generations, kept) in self.segments.iter().zip(kept) {
            for (place, generation) in generations.iter().enumerate() {
                // (p): what was accepted before, or with it, and lies in front.
                let mut first_lost = u32::MAX;
                for (unit, entry) in present(generation) {
                    let has = &mut kept.units[place][unit];
                    let at = entry.accepted.unwrap_or(u32::MAX);
                    if *has && at >= first_lost {
                        *has = false;
                        changed = true;
                    }
                    if !*has {
                        first_lost = first_lost.min(at);
                    }
                }
                // (p′): a deallocation after all units before it, and all units after it behind it.
                let is_whole = present(generation).all(|(unit, _)| kept.units[place][unit]);
                if !is_whole && kept.trims[place] {
                    kept.trims[place] = false;
                    changed = true;
                }
                if generation.trim.is_some() && !kept.trims[place] {
                    for later in place + 1..generations.len() {
                        changed |= kept.units[later].iter().any(|has| *has) || kept.trims[later];
                        kept.units[later].fill(false);
                        kept.trims[later] = false;
                    }
                }
            }
        }
        changed
    }

    /// Visits everything that was accepted.
    fn each(&self, kept: &mut [Kept], mut visit: impl FnMut(&Entry, &mut bool)) {
        for (generations, kept) in self.segments.iter().zip(kept) {
            for (place, generation) in generations.iter().enumerate() {
                for (unit, entry) in present(generation) {
                    visit(entry, &mut kept.units[place][unit]);
                }
                if let Some(trim) = generation.trim.as_ref().filter(|trim| trim.accepted.is_some()) {
                    visit(trim, &mut kept.trims[place]);
                }
            }
        }
    }
}

/// Units that were accepted.
fn present(generation: &Generation) -> impl Iterator<Item = (usize, &Entry)> {
    let units = generation.units.iter().enumerate();
    units.filter_map(|(unit, entry)| Some((unit, entry.as_ref().filter(|entry| entry.accepted.is_some())?)))
}

/// Whether each unit that is shown is what was written there.
fn check_contents(generation: &Generation, shown: &Shown) -> Result<(), String> {
    for (unit, content) in shown.units.iter().enumerate() {
        let written =
            generation.units.get(unit).and_then(Option::as_ref).filter(|entry| entry.accepted.is_some());
        let number = generation.number;
        match (content, written) {
            (None, _) => {}
            (Some(_), None) => {
                return Err(format!("unit {unit} of generation {number}: it is there and was never written"));
            }
            (Some(content), Some(entry)) if *content != entry.content => {
                return Err(format!(
                    "unit {unit} of generation {number}: not what command {} wrote there",
                    entry.op
                ));
            }
            (Some(_), Some(_)) => {}
        }
    }
    Ok(())
}

/// What may have persisted of a segment.
struct Kept {
    /// The generation that is shown, and which of its units are.
    at: usize,
    seen: Vec<bool>,
    units: Vec<Vec<bool>>,
    trims: Vec<bool>,
}

impl Kept {
    fn new(generations: &[Generation], at: usize, shown: &Shown) -> Self {
        let seen: Vec<bool> = shown.units.iter().map(Option::is_some).collect();
        let is_kept = |place: usize, unit: usize| match place.cmp(&at) {
            std::cmp::Ordering::Less => true,
            std::cmp::Ordering::Equal => seen.get(unit).copied().unwrap_or(false),
            std::cmp::Ordering::Greater => false,
        };
        let units = generations.iter().enumerate().map(|(place, generation)| {
            (0..generation.units.len()).map(|unit| is_kept(place, unit)).collect()
        });
        Self {
            at,
            units: units.collect(),
            trims: (0..generations.len()).map(|place| place < at).collect(),
            seen,
        }
    }

    fn is_seen(&self, unit: usize) -> bool {
        self.seen.get(unit).copied().unwrap_or(false)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const S: StreamId = StreamId(1);

    fn content(op: u64, unit: u32) -> Content {
        Content(op * 100 + u64::from(unit))
    }

    /// A log of two segments of four units, with these writes (command, segment, first unit, units), all accepted.
    fn log(writes: &[(u64, u32, u32, u32)]) -> SegmentLog {
        let mut log = SegmentLog::new(4, &[Shown::default(), Shown::default()]);
        for &(op, segment, first, units) in writes {
            log.write(op, (segment, first), (first..first + units).map(|unit| content(op, unit)), None);
            log.accept(op);
        }
        log
    }

    fn shown(generation: u32, units: &[(u64, u32)]) -> Shown {
        let unit = |(op, unit): &(u64, u32)| (*op > 0).then(|| content(*op, *unit));
        Shown { generation, units: units.iter().map(unit).collect() }
    }

    #[test]
    fn each_prefix_of_a_segment_is_legal_and_no_gap_is() {
        let log = log(&[(1, 0, 0, 2), (2, 0, 2, 1)]);
        let all = [(1, 0), (1, 1), (2, 2)];
        for end in 0..=3 {
            log.check(&[shown(0, &all[..end]), Shown::default()]).unwrap();
        }
        let gap = [(1, 0), (0, 0), (2, 2)];
        let error = log.check(&[shown(0, &gap), Shown::default()]).unwrap_err();
        assert!(error.contains("unit 2 (command 2) is there without"), "{error}");
    }

    /// A unit in front that was accepted later has no claim on those behind it.
    #[test]
    fn offsets_order_only_what_acceptance_orders_alike() {
        let log = log(&[(1, 0, 2, 1), (2, 0, 0, 1)]);
        log.check(&[shown(0, &[(0, 0), (0, 0), (1, 2)]), Shown::default()]).unwrap();
        log.check(&[shown(0, &[(2, 0)]), Shown::default()]).unwrap();
    }

    #[test]
    fn promises_are_kept_or_superseded() {
        let mut log = log(&[(1, 0, 0, 2)]);
        log.promise(1, 1);
        log.check(&[shown(0, &[(1, 0)]), Shown::default()]).unwrap();
        assert!(log.check(&[shown(0, &[]), Shown::default()]).unwrap_err().contains("promised and is lost"));
        log.trim(2, 0, None);
        log.accept(2);
        log.check(&[shown(1, &[]), Shown::default()]).unwrap();
        log.promise(2, 0);
        let error = log.check(&[shown(0, &[(1, 0)]), Shown::default()]).unwrap_err();
        assert!(error.contains("the deallocation by command 2 was promised"), "{error}");
    }

    #[test]
    fn wrong_contents_and_generations_are_named() {
        let log = log(&[(1, 0, 0, 1)]);
        for (seen, what) in [
            (shown(3, &[]), "generation 3 never was"),
            (shown(0, &[(2, 0)]), "not what command 1 wrote"),
            (shown(0, &[(1, 0), (1, 1)]), "was never written"),
        ] {
            let error = log.check(&[seen, Shown::default()]).unwrap_err();
            assert!(error.contains(what), "{error}");
        }
    }

    #[test]
    fn epochs_persist_in_order_across_segments() {
        let mut log = SegmentLog::new(4, &[Shown::default(), Shown::default()]);
        log.write(1, (0, 0), std::iter::once(content(1, 0)), Some((S, 0)));
        log.trim(2, 0, Some((S, 1)));
        log.write(3, (1, 0), std::iter::once(content(3, 0)), Some((S, 2)));
        (1..=3).for_each(|op| log.accept(op));
        log.check(&[shown(1, &[]), shown(0, &[(3, 0)])]).unwrap();
        log.check(&[shown(1, &[]), shown(0, &[])]).unwrap();
        let error = log.check(&[shown(0, &[(1, 0)]), shown(0, &[(3, 0)])]).unwrap_err();
        assert!(error.contains("segment 1: unit 0 (command 3) is there without"), "{error}");
    }

    #[test]
    fn a_refused_operation_leaves_no_trace() {
        let mut log = log(&[(1, 0, 0, 1)]);
        log.withdraw(1);
        log.trim(2, 0, None);
        log.write(3, (0, 0), std::iter::once(content(3, 0)), None);
        assert_eq!(log.planned(0), (1, 1));
        log.withdraw(2);
        log.withdraw(3);
        assert_eq!(log.planned(0), (0, 1));
        log.check(&[shown(0, &[(1, 0)]), Shown::default()]).unwrap();
    }

    #[test]
    fn a_deallocation_of_what_was_refused_has_no_effect() {
        let mut log = SegmentLog::new(4, &[Shown::default(), Shown::default()]);
        log.write(1, (0, 0), std::iter::once(content(1, 0)), None);
        log.trim(2, 0, None);
        log.withdraw(1);
        log.accept(2);
        log.promise(2, 0);
        log.check(&[Shown::default(), Shown::default()]).unwrap();
    }
}
