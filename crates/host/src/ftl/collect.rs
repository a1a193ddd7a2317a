//! GC: valid units of a line are read, enter a ring as the user's do, and leave to any group (open-channel §5.3).
//!
//! Invariants:
//! 1. A copy keeps the sequence number of its unit, and counts only if the map still names that unit.
//! 2. A unit that is valid only until a newer version is durable is not copied: that version is in a ring already.

use super::lines::{LineId, LineState};
use super::map::Word;
use super::planted::PlantedHostBug;
use super::ring::{Before, Change, Entry, State};
use super::state::{Collecting, HostFtl, Limiter};
use super::tasks::Task;
use flashweir_core::command::{PLACES_MAX, Tag, Units};
use flashweir_core::oob::{OobRecord, Owner};
use flashweir_core::{DeviceError, Lpn, Payload, Ppa};
use flashweir_ftl::line_pages::TrimPage;
use std::collections::VecDeque;

/// Pages that GC reads at once (open-channel §5.2).
const PAGES_AT_ONCE: usize = 8;

impl HostFtl {
    /// Does what GC can do in each group; returns whether anything changed.
    pub(super) fn collect_all(&mut self) -> bool {
        let mut has_moved = false;
        for group in 0..self.collecting.len() {
            if self.collecting[group].is_none() {
                let free = self.lines.free_count(group) * self.layout.blocks_per_line();
                let is_wanted = free < self.layout.marks.high || self.user_waits();
                let victim = if is_wanted { self.lines.victim(group) } else { None };
                let Some(line) = victim.filter(|&line| self.is_worth_it(line, free)) else { continue };
                self.lines.get_mut(line).state = LineState::Collecting;
                self.metrics_mut().lines_collected += 1;
                let (todo, copies) = (self.lines.valid_units(line), VecDeque::new());
                self.collecting[group] =
                    Some(Collecting { line, todo, reads: 0, copies, is_kicked: false, is_hurried: false });
            }
            has_moved |= self.collect(group);
        }
        has_moved
    }

    /// Whether to collect a line now. On a full device the mark at which GC stops is out of reach, and GC would move whole lines for nothing: while
    /// the user has room it waits until a line is as stale as the device is spare.
    fn is_worth_it(&self, line: LineId, free: u32) -> bool {
        let units = self.lines.data_units_of(line);
        let line = self.lines.get(line);
        let has_room = free > self.layout.marks.reserve && !self.user_waits();
        let stale = f64::from(units.saturating_sub(line.valid));
        let spare = self.config.over_provisioning * f64::from(units);
        !(self.config.gc_waits && has_room && !line.has_failed && stale < spare)
    }

    fn collect(&mut self, group: usize) -> bool {
        let Some(mut now) = self.collecting[group].take() else { return false };
        let mut has_moved = false;
        let most = (PAGES_AT_ONCE * self.layout.flash.units_per_page as usize).min(PLACES_MAX);
        let readers = self.config.gc_readers as usize;
        while now.reads < readers && now.copies.len() < readers * PLACES_MAX && !now.todo.is_empty() {
            let mut units = Vec::new();
            while units.len() < most
                && let Some(ppa) = now.todo.pop_front()
            {
                match self.recent_unit(ppa) {
                    _ if !self.lines.is_valid(ppa) => {}
                    Some((record, payload)) => now.copies.push_back((ppa, record, payload)),
                    None => units.push(ppa),
                }
            }
            if !units.is_empty() {
                now.reads += 1;
                self.read(&units, Task::Collect { group, units: units.clone() });
            }
            has_moved = true;
        }
        let ring = group % self.rings.len();
        while let Some((ppa, record, payload)) = now.copies.front() {
            if !self.bring(ring, *ppa, *record, payload) {
                break;
            }
            now.copies.pop_front();
            has_moved = true;
        }
        if !now.has_copies() {
            let line = self.lines.get(now.line);
            let is_early = self.has_planted(PlantedHostBug::LineFreedTooEarly);
            let has_readers = line.readers > 0 && !self.has_planted(PlantedHostBug::LineFreedUnderReader);
            if (line.valid == 0 || is_early) && !has_readers {
                if self.is_counted_out(now.line) {
                    self.lines.get_mut(now.line).readers = 0;
                    self.begin_erase(now.line);
                    return true;
                }
                self.hurry_counting_out(now.line, !std::mem::replace(&mut now.is_hurried, true));
            }
            let line = self.lines.get(now.line);
            if line.valid > 0 && !std::mem::replace(&mut now.is_kicked, true) {
                (0..self.rings.len()).for_each(|ring| self.kick(ring));
                has_moved = true;
            }
        }
        self.collecting[group] = Some(now);
        has_moved
    }

    /// Units of a victim were read.
    pub(super) fn collected(&mut self, group: usize, ppas: Vec<Ppa>, result: Result<Units, DeviceError>) {
        let line = self.lines.line_of(ppas[0]).0;
        // After a read that failed the line is given up, and the answers to others count no more.
        let Some(now) = self.collecting[group].as_mut().filter(|now| now.line == line) else { return };
        now.reads -= 1;
        match result {
            Ok(Units { mut data, records, .. }) => {
                data.resize(ppas.len(), Payload::Zero);
                let units = ppas.into_iter().zip(records).zip(data);
                now.copies.extend(units.map(|((ppa, record), payload)| (ppa, record, payload)));
            }
            // What cannot be read is not erased either: reads of it go on failing.
            Err(_) => {
                self.collecting[group] = None;
                self.lines.retire(line);
            }
        }
    }

    /// Brings a copy into a ring, if it still counts; returns false if it has to wait.
    fn bring(&mut self, ring: usize, ppa: Ppa, record: OobRecord, payload: &Payload) -> bool {
        if !self.lines.is_valid(ppa) {
            return true;
        }
        match record.owner {
            Owner::Lpn(lpn) => {
                let counts = self.is_named(lpn, Word::Place(ppa));
                if !counts && !self.has_planted(PlantedHostBug::GcDropsNewer) {
                    return true;
                }
                if !self.has_room_for_copy(ring) {
                    return false;
                }
                self.push_copy(ring, record.seq, Change::Write(payload.clone()), &[lpn], Word::Place(ppa));
                true
            }
            Owner::Meta => self.bring_trim(ring, ppa),
            Owner::Pad | Owner::Vpid(_) | Owner::Seg { .. } => true,
        }
    }

    /// Brings what still counts of a record of deallocated units into a ring.
    fn bring_trim(&mut self, ring: usize, ppa: Ppa) -> bool {
        if self.order_places().any(|place| place == ppa) {
            self.renew_order_record(ppa);
            return true;
        }
        self.make_room(ring, 1);
        if self.rings[ring].room() == 0 {
            return false;
        }
        let record = self.trims.get(&ppa).expect("a valid unit of metadata is such a record").clone();
        let units = record.ranges.iter().flat_map(|&(first, count)| (first..first + count).map(Lpn));
        let live: Vec<Lpn> = units.filter(|&lpn| self.is_named(lpn, Word::Trimmed(ppa))).collect();
        let ranges = ranges_of(live.iter().map(|lpn| lpn.0));
        let parts: Vec<&[(u64, u64)]> = ranges.chunks(TrimPage::ranges_max(self.layout.unit_bytes)).collect();
        // They may be more than a ring has entries. What has entered is named no longer, and the rest is brought later.
        for part in parts {
            if !self.has_room_for_copy(ring) {
                return false;
            }
            let units: Vec<Lpn> =
                part.iter().flat_map(|&(first, count)| (first..first + count).map(Lpn)).collect();
            self.push_copy(ring, record.seq, Change::Trim(part.to_vec()), &units, Word::Trimmed(ppa));
        }
        true
    }

    /// Whether the map names this durable version of a unit; one that is durable and not yet published is published now.
    fn is_named(&mut self, lpn: Lpn, place: Word) -> bool {
        match self.map.get(lpn) {
            word @ Word::Cached(slot) => {
                let entry =
                    self.rings[usize::from(slot.ring)].find(slot).expect("the map names living entries");
                let is_durable = entry.state == State::Persistent;
                let before = entry.before(lpn);
                let is_it = is_durable && before.place == place;
                if is_it {
                    before.place = Word::Empty;
                    self.map.replace(lpn, word, place);
                }
                is_it
            }
            word => word == place,
        }
    }

    /// Whether the ring has room and the limiter admits a copy.
    fn has_room_for_copy(&mut self, ring: usize) -> bool {
        self.make_room(ring, 1);
        if self.rings[ring].room() == 0 {
            return false;
        }
        let is_active = self.user_limits_gc();
        match &mut self.limiter {
            Limiter::Windows(windows) => windows.admit_gc(1, is_active),
            Limiter::Scores(scores) => scores.admit_gc(1, is_active),
        }
    }

    fn push_copy(&mut self, ring: usize, seq: u64, change: Change, units: &[Lpn], place: Word) {
        // A position says nothing about a version: the copy is the newest one that there is.
        let seq = if self.orders_by_ring() { self.next_seq() } else { seq };
        let slot = self.rings[ring].slot(self.rings[ring].mem);
        let before = units.iter().map(|&lpn| {
            self.map.exchange(lpn, Word::Cached(slot));
            Before { lpn, place, seq: seq.saturating_sub(1) }
        });
        let before = before.collect();
        let (tags, is_gc, state) = ([Tag(0); 2], true, State::Filled);
        self.rings[ring].push(Entry { change, seq, tags, is_gc, member: None, state, before });
        self.metrics_mut().gc_units += 1;
    }
}

/// Joins numbers, which are in order, to ranges: the first one and their number.
pub(super) fn ranges_of(numbers: impl IntoIterator<Item = u64>) -> Vec<(u64, u64)> {
    let mut ranges: Vec<(u64, u64)> = Vec::new();
    for number in numbers {
        match ranges.last_mut() {
            Some((first, count)) if *first + *count == number => *count += 1,
            _ => ranges.push((number, 1)),
        }
    }
    ranges
}
