//! GC: one thread, which empties the full line with the fewest valid units of each group that is short of free blocks (open-channel §5.2).
//!
//! Copies go through the ring of the group's turn, and out to any group (open-channel §5.3). A unit whose newer version is in a ring is not
//! copied: its line waits until that version is on the medium.
//!
//! Invariant: it ends. Lines that would gain less than a program are left alone, and if no pass gives the user room the device is
//! full (open-channel §8.7).

use crate::medium::{Owner, PowerLost};
use crate::metrics::ThreadsMetrics;
use crate::pool::{Lease, Worker};
use crate::queue::Queue;
use crate::ring::{Ring, flags};
use crate::shared::{Limiter, Shared};
use crate::sync::{Backoff, Instant, Ordering, sleep, yield_now};
use flashweir_core::Ppa;
use flashweir_ftl::host_word::Word;
use std::time::Duration;

const TICK: Duration = Duration::from_millis(10);

/// Units of a read of GC.
const COPY_UNITS: usize = 8;

/// A unit to be copied.
#[derive(Clone, Copy, Debug)]
struct Original {
    ppa: Ppa,
    word: Word,
    seq: u64,
}

/// The thread.
#[derive(Debug)]
pub(crate) struct Collector<'a> {
    shared: &'a Shared,
    end: Worker,
    queue: Option<Queue<'a>>,
    /// Lines collected since the user had room.
    fruitless: u32,
    /// Units of users that had entered rings when these lines were counted last.
    entered: u64,
    /// Lines whose copies are under way, with their groups and the end of their copying.
    emptying: Vec<(usize, u32, Instant)>,
    /// The group that has the first turn.
    first_group: usize,
    /// When it began to count ticks, and from which one on.
    begun: (Instant, u64),
}

/// Lines under way at most, while there is room for the user.
const EMPTYING_MAX: usize = 4;

/// So long users fill up programs by themselves.
const PATIENCE: Duration = Duration::from_micros(500);

impl<'a> Collector<'a> {
    pub(crate) fn new(shared: &'a Shared, end: Worker) -> Self {
        let queue = shared.medium.queue(COPY_UNITS);
        let begun = (Instant::now(), shared.tick.load(Ordering::Relaxed));
        Self { shared, end, queue, fruitless: 0, entered: 0, emptying: Vec::new(), first_group: 0, begun }
    }

    /// Works until the FTL ends.
    pub(crate) fn run(mut self) {
        let shared = self.shared;
        shared.collector.is_me();
        while shared.goes_on() {
            self.tick();
            match self.pass() {
                Ok(true) => {}
                Ok(false) => {
                    shared.collector.sleep(TICK, || !shared.has_room() && !self.is_full());
                }
                Err(PowerLost) => return,
            }
        }
    }

    /// Tells the time. Users that have written nothing for a while limit GC no more.
    fn tick(&self) {
        let (begin, before) = self.begun;
        let now = before + begin.elapsed().as_millis() as u64 / TICK.as_millis() as u64;
        self.shared.tick.store(now, Ordering::Relaxed);
    }

    fn is_full(&self) -> bool {
        self.shared.is_full.load(Ordering::Acquire)
    }

    /// Entries that were ever accepted, if all of them are on the medium.
    fn quiet(&self) -> Option<u64> {
        let done = |ring: &Ring| {
            let mem = ring.mem.load(Ordering::Acquire);
            ring.is_persistent_to(mem).then_some(mem)
        };
        self.shared.versions.rings.iter().map(done).sum()
    }

    fn has_victim(&self) -> bool {
        (0..self.shared.lines.groups()).any(|group| self.shared.lines.look(group, self.gain()).is_some())
    }

    fn needs(&self, group: usize) -> bool {
        self.shared.lines.free_blocks(group) < self.shared.marks.high || !self.shared.has_room()
    }

    /// Collects a line of each group that needs it; returns whether there was one.
    fn pass(&mut self) -> Result<bool, PowerLost> {
        let shared = self.shared;
        if shared.has_room() {
            self.fruitless = 0;
            shared.is_full.store(false, Ordering::Release);
        }
        let mut has_collected = false;
        let groups = shared.lines.groups();
        let first = self.first_group;
        self.first_group = (first + 1) % groups;
        for group in (first..groups).chain(0..first) {
            let needs = self.needs(group) && !self.is_full();
            if shared.lines.set_collecting(group, needs) != needs {
                match needs {
                    true => shared.collecting.fetch_add(1, Ordering::AcqRel),
                    false => shared.collecting.fetch_sub(1, Ordering::AcqRel),
                };
            }
            if needs
                && shared.has_room()
                && self.emptying.len() < EMPTYING_MAX
                && let Some(line) = shared.lines.victim(group, self.gain())
            {
                self.collect(group, line)?;
                has_collected = true;
            }
        }
        // A victim needs room of its own, so without room they come one at a time: the one that frees most.
        if !shared.has_room() && !self.is_full() && self.emptying.is_empty() {
            let valid =
                |group| Some((shared.lines.valid_count(shared.lines.look(group, self.gain())?), group));
            if let Some((_, group)) = (0..groups).filter_map(valid).min()
                && let Some(line) = shared.lines.victim(group, self.gain())
            {
                self.collect(group, line)?;
                has_collected = true;
            }
        }
        let has_erased = self.erase()?;
        if !self.emptying.is_empty() {
            if !has_erased {
                yield_now();
            }
            return Ok(true);
        }
        if !shared.has_room() && !self.is_full() {
            // A device is full when nothing is under way that could leave something to collect, or when collecting goes round in circles.
            let before = self.quiet();
            if !has_collected {
                self.settle(true);
                sleep(Duration::from_micros(200));
            }
            // What came in between, from who was admitted before the room was gone, may not be published yet.
            let is_stuck = !has_collected && before.is_some() && self.quiet() == before && !self.has_victim();
            if is_stuck || self.fruitless > 16 * shared.lines.count() && !self.has_let_in() {
                shared.is_full.store(!shared.has_room(), Ordering::Release);
            }
        }
        Ok(has_collected)
    }

    /// Whether users were let in since this was asked last. They may take the room that GC makes before GC sees any, and then GC does not go
    /// round in circles.
    fn has_let_in(&mut self) -> bool {
        let entered = ThreadsMetrics::sum(&self.shared.counters).user_units;
        let has_let_in = entered != std::mem::replace(&mut self.entered, entered);
        if has_let_in {
            self.fruitless = 0;
        }
        has_let_in
    }

    /// What a line has to gain. While the user has room, GC leaves lines alone that have fewer stale units than the device has spare
    /// ones on average: where programs cost no time, the limiter alone would let it move whole lines for a few units. Without room every
    /// line counts that gains more than padding may waste.
    fn gain(&self) -> u64 {
        let geometry = &self.shared.geometry;
        let least = u64::from(geometry.units_per_program);
        if !self.shared.has_room() {
            return least;
        }
        let (all, line) = (geometry.physical_units(), self.shared.lines.line_units());
        least.max(line * (all - geometry.user_units) / all)
    }

    fn collect(&mut self, group: usize, line: u32) -> Result<(), PowerLost> {
        self.copy_line(group, line)?;
        self.emptying.push((group, line, Instant::now()));
        self.shared.collector_counters().lines_collected.add(1);
        self.fruitless += 1;
        Ok(())
    }

    /// Copies what the map names of a line.
    fn copy_line(&mut self, group: usize, line: u32) -> Result<(), PowerLost> {
        let shared = self.shared;
        let ring = group % shared.versions.rings.len();
        self.settle(false);
        let mut originals = Vec::new();
        let units: Vec<Ppa> = shared.lines.valid_units(line).collect();
        shared.gc_waits.store(true, Ordering::Release);
        for ppa in units {
            originals.extend(self.original(ppa));
            if originals.len() == COPY_UNITS {
                self.copy(ring, &originals)?;
                originals.clear();
            }
        }
        self.copy(ring, &originals)?;
        shared.gc_waits.store(false, Ordering::Release);
        Ok(())
    }

    /// Erases lines of which nothing is valid any more: copies and newer versions are on the medium. Returns whether there was one.
    fn erase(&mut self) -> Result<bool, PowerLost> {
        let shared = self.shared;
        let is_late = |begin: &Instant| begin.elapsed() > PATIENCE;
        if !self.emptying.is_empty() {
            self.settle(!shared.has_room() || self.emptying.iter().any(|(.., begin)| is_late(begin)));
        }
        // An entry that persisted shortly before its line was chosen is published only now, so the map had not named its place.
        for at in 0..self.emptying.len() {
            let (group, line, begin) = self.emptying[at];
            if is_late(&begin) {
                self.copy_line(group, line)?;
                self.emptying[at].2 = Instant::now();
            }
        }
        let is_empty = |(_, line, _): &mut (usize, u32, Instant)| shared.lines.valid_count(*line) == 0;
        let empty: Vec<_> = self.emptying.extract_if(.., is_empty).collect();
        for &(group, line, _) in &empty {
            shared.lines.erase(line)?;
            shared.free_changed(group);
            shared.collector_counters().lines_erased.add(1);
        }
        Ok(!empty.is_empty())
    }

    /// What is to be copied of a unit: its version, if the map names this place.
    fn original(&self, ppa: Ppa) -> Option<Original> {
        let (owner, seq) = self.shared.medium.record(ppa)?;
        let (lpn, word) = match owner {
            Owner::Unit(lpn) => (lpn, Word::Place(ppa)),
            Owner::Trim(lpn) => (lpn, Word::Trimmed(ppa)),
            Owner::Pad => return None,
        };
        (self.shared.versions.map.get(lpn) == word).then_some(Original { ppa, word, seq })
    }

    fn copy(&mut self, ring: usize, originals: &[Original]) -> Result<(), PowerLost> {
        let shared = self.shared;
        if originals.is_empty() {
            return Ok(());
        }
        let count = originals.len() as u32;
        let mut backoff = Backoff::default();
        loop {
            // A user who has no room waits for GC, and does not compete with it.
            let is_active = shared.user_is_active() && shared.has_room();
            let is_admitted = match &shared.limiter {
                Limiter::Windows(windows) => windows.admit_gc(count, is_active),
                Limiter::Scores(scores) => scores.admit_gc(count, is_active),
            };
            if is_admitted {
                break;
            }
            self.wait(&mut backoff)?;
        }
        let reserved = loop {
            match shared.versions.reserve(ring, count, None, &shared.lines) {
                Some(reserved) => break reserved,
                None => {
                    shared.writers[ring].wake();
                    self.wait(&mut backoff)?;
                }
            }
        };
        let items: Vec<Lease<'_>> = originals.iter().map(|_| shared.item(&mut self.end)).collect();
        let reads = originals.iter().zip(&items).map(|(original, item)| (original.ppa, &item.buffer));
        shared.medium.read(&mut self.queue, reads)?;
        let counters = shared.collector_counters();
        for ((position, original), item) in (reserved.first..).zip(originals).zip(items) {
            let (owner, _) = shared.medium.record(original.ppa).ok_or(PowerLost)?;
            let (lpn, flag) = match owner {
                Owner::Unit(lpn) => (lpn, 0),
                Owner::Trim(lpn) => (lpn, flags::TRIM),
                Owner::Pad => unreachable!("padding is not copied"),
            };
            let at = [ring as u64, position];
            shared.versions.fill(at, lpn, original.seq, flags::GC | flag, |content| {
                content.copy(&item.buffer);
            });
            if !shared.versions.install_copy(ring, position, original.word) {
                counters.dropped_copies.add(1);
            }
            self.end.give(item);
        }
        counters.gc_units.add(u64::from(count));
        shared.writers[ring].wake();
        Ok(())
    }

    fn wait(&self, backoff: &mut Backoff) -> Result<(), PowerLost> {
        if !self.shared.goes_on() {
            return Err(PowerLost);
        }
        self.tick();
        backoff.wait_long();
        Ok(())
    }

    /// Publishes what is on the medium; if `is_forced`, has the rest written.
    fn settle(&self, is_forced: bool) {
        let versions = &self.shared.versions;
        for (number, ring) in versions.rings.iter().enumerate() {
            versions.publish(number, &self.shared.lines);
            if is_forced {
                ring.force(ring.mem.load(Ordering::Acquire));
                self.shared.writers[number].wake();
            }
        }
    }
}
