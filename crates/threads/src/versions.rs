//! Which version of each unit counts: how map and rings change together (open-channel §3).
//!
//! ```text
//!  write   reserve ─► fill ─► install ─► mark         read   word ─► copy ─► look again
//!  writer  take marked entries ─► program ─► persisted ─► sync
//!  reserve publishes what it will use again           GC     copy ─► install, if the word still names the original
//! ```
//!
//! * **The larger number is installed** (open-channel §3.8). A writer that finds an entry of a ring in the word compares numbers; a place has
//!   none. So a place is published only when every version with a smaller number is installed: each producer says which number it
//!   may have before it takes one, and says so until it is installed. Whoever finds a place has the larger number.
//! * **Readers take no lock** (open-channel §3.9): the stamp of an entry changes before its content, and a copy counts if the stamp after it
//!   is the one that the word named.
//! * **An old version stays valid until a newer one is on the medium.** The entry that replaces a place in the map has it invalidated
//!   when it persists itself. A place that was superseded before it was published waits for the entry that the map named then.
//!
//! Deliberately absent: the medium. [`Places`] counts what is valid.

use crate::content::{Content, Unit, WORDS};
use crate::map::AtomicMap;
use crate::pending::Pending;
#[cfg(any(loom, shuttle))]
use crate::planted::PlantedBug;
use crate::ring::{Producer, Ring, flags, state};
use crate::sync::{Alone, Arc, AtomicU64, Backoff, Ordering, fence};
use flashweir_core::{Lpn, Ppa};
use flashweir_ftl::host_word::{EMPTY, Slot, Word};

/// Who counts what is valid on the medium.
pub(crate) trait Places {
    /// A version is there.
    fn set_valid(&self, ppa: Ppa);
    /// It is not needed any more.
    fn set_invalid(&self, ppa: Ppa);
    /// Keeps a place from being erased for a reader, unless that has begun.
    fn hold(&self, ppa: Ppa) -> bool;
    /// Ends a reader's hold.
    fn release(&self, ppa: Ppa);
}

/// A worker that has no number on its way.
const NO_NUMBER: u64 = u64::MAX;

/// Map and rings.
#[derive(Debug)]
pub(crate) struct Versions {
    pub(crate) map: AtomicMap,
    pub(crate) rings: Box<[Ring]>,
    /// The number that the next version gets.
    next_seq: Alone<AtomicU64>,
    /// For each worker, a lower bound of the numbers that it has taken and not installed.
    numbers: Box<[Alone<AtomicU64>]>,
    /// Whether readers copy under the producer lock, as the released code does (open-channel §3.6).
    readers_lock: bool,
    #[cfg(any(loom, shuttle))]
    pub(crate) planted: Option<PlantedBug>,
}

/// Asks whether a bug is planted; in a build for use there is none, and no code for it.
macro_rules! has_planted {
    ($self:ident, $bug:ident) => {{
        #[cfg(any(loom, shuttle))]
        let is_planted = $self.planted == Some(PlantedBug::$bug);
        #[cfg(not(any(loom, shuttle)))]
        let is_planted = false;
        is_planted
    }};
}

/// Entries of a producer, and the number of the first one's version.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Reserved {
    pub(crate) first: u64,
    pub(crate) seq: u64,
}

/// Where a unit was found.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Found {
    /// Never written, or deallocated.
    Zeros,
    /// In a ring; it was copied.
    Copied,
    /// On the medium, at this place, which is held.
    Place(Ppa),
}

impl Versions {
    pub(crate) fn new(map: AtomicMap, rings: &[u32], workers: usize, readers_lock: bool) -> Self {
        Self {
            map,
            rings: (0..).zip(rings).map(|(number, &entries)| Ring::new(number, entries)).collect(),
            next_seq: Alone(AtomicU64::new(1)),
            numbers: (0..workers).map(|_| Alone(AtomicU64::new(NO_NUMBER))).collect(),
            readers_lock,
            #[cfg(any(loom, shuttle))]
            planted: None,
        }
    }

    /// Sets the number of the next version, after a recovery.
    pub(crate) fn set_next_seq(&self, seq: u64) {
        self.next_seq.store(seq, Ordering::Release);
    }

    /// Takes `count` entries of a ring, and as many numbers if a worker asks; `None` if they are not free.
    pub(crate) fn reserve(
        &self,
        ring: usize,
        count: u32,
        worker: Option<usize>,
        places: &impl Places,
    ) -> Option<Reserved> {
        let ring = &self.rings[ring];
        let mut producer = ring.producer.lock();
        let (first, count) = (ring.mem.load(Ordering::Relaxed), u64::from(count));
        if first + count - ring.sync.load(Ordering::Acquire) > ring.len() {
            return None;
        }
        self.publish_to(ring, &mut producer, (first + count).saturating_sub(ring.len()), places);
        for position in first..first + count {
            let entry = ring.entry(position);
            entry.state.store(state::RESERVED, Ordering::Relaxed);
            entry.stamp.store(position, Ordering::Relaxed);
        }
        // Who sees anything of what comes later also sees the stamps: a reader of a TRIM must not take its slot's new flags for its own.
        fence(Ordering::Release);
        for position in first..first + count {
            // An entry that is never filled counts as one of its worker, whoever had the slot before.
            ring.entry(position).flags.store(0, Ordering::Relaxed);
        }
        // FLUSH looks at the numbers and then at `mem`, so that it covers all smaller numbers.
        ring.mem.store(first + count, Ordering::Release);
        let seq = worker.map_or(0, |worker| {
            let bound = self.next_seq.load(Ordering::Relaxed);
            self.numbers[worker].store(bound, Ordering::Relaxed);
            // Whoever takes a larger number sees the bound.
            let seq = self.next_seq.fetch_add(count, Ordering::AcqRel);
            // No larger number waits for this one in vain.
            self.numbers[worker].store(seq, Ordering::Relaxed);
            seq
        });
        Some(Reserved { first, seq })
    }

    /// Fills an entry; `copy` puts the content there.
    pub(crate) fn fill(
        &self,
        [ring, position]: [u64; 2],
        lpn: Lpn,
        seq: u64,
        flags: u32,
        copy: impl FnOnce(&Content),
    ) {
        let entry = self.rings[ring as usize].entry(position);
        entry.lpn.store(lpn.0, Ordering::Relaxed);
        entry.seq.store(seq, Ordering::Relaxed);
        entry.flags.store(flags, Ordering::Relaxed);
        entry.before.store(EMPTY, Ordering::Relaxed);
        copy(&entry.content);
    }

    fn word(&self, ring: &Ring, position: u64) -> Word {
        let slot = ring.slot(position);
        let generation = if has_planted!(self, NoGeneration) { 0 } else { slot.generation };
        Word::Cached(Slot { generation, ..slot })
    }

    /// Whether a slot still holds what the word named; to be asked after it was read.
    fn is_still(&self, slot: Slot) -> bool {
        // What was read before is not newer than what is read now.
        fence(Ordering::Acquire);
        let ring = &self.rings[usize::from(slot.ring)];
        let stamp = ring.entry(u64::from(slot.index)).stamp.load(Ordering::Relaxed);
        self.word(ring, stamp) == Word::Cached(slot)
    }

    /// Puts an entry into the map unless a version with a larger number is there; returns whether it is in.
    pub(crate) fn install(&self, ring: usize, position: u64) -> bool {
        let ring = &self.rings[ring];
        let entry = ring.entry(position);
        let seq = entry.seq.load(Ordering::Relaxed);
        let mine = self.word(ring, position);
        self.map
            .update(Lpn(entry.lpn.load(Ordering::Relaxed)), |old| {
                let before = match old {
                    Word::Cached(slot) => {
                        let other = self.rings[usize::from(slot.ring)].entry(u64::from(slot.index));
                        let other_seq = other.seq.load(Ordering::Relaxed);
                        // If the slot is used again the word has changed, and so the change of the word will fail.
                        if other_seq > seq && self.is_still(slot) && !has_planted!(self, InstallByExchange) {
                            // What an earlier try has found belongs to the other one now.
                            entry.before.store(EMPTY, Ordering::Relaxed);
                            return None;
                        }
                        EMPTY
                    }
                    place => place.pack(),
                };
                entry.before.store(before, Ordering::Relaxed);
                Some(mine)
            })
            .is_ok()
    }

    /// The worker has installed all of its numbers.
    pub(crate) fn installed(&self, worker: usize) {
        self.numbers[worker].store(NO_NUMBER, Ordering::Release);
    }

    /// Gives an entry to the ring's writer.
    pub(crate) fn mark(&self, ring: usize, position: u64) {
        self.rings[ring].entry(position).state.store(state::FILLED, Ordering::Release);
    }

    /// Puts a copy of GC into the map if its original is still there, and gives it to the ring's writer; returns whether it is in.
    pub(crate) fn install_copy(&self, ring: usize, position: u64, original: Word) -> bool {
        let ring = &self.rings[ring];
        let entry = ring.entry(position);
        entry.before.store(original.pack(), Ordering::Relaxed);
        let (lpn, mine) = (Lpn(entry.lpn.load(Ordering::Relaxed)), self.word(ring, position));
        let is_in = match has_planted!(self, CopyByStore) {
            true => {
                self.map.exchange(lpn, mine);
                true
            }
            false => self.map.replace(lpn, original, mine).is_ok(),
        };
        let state = if is_in { state::FILLED } else { state::DROPPED };
        entry.state.store(state, Ordering::Release);
        is_in
    }

    /// Changes a part of a unit: puts `merge` of the version with the largest smaller number into the map, and gives it to the ring's writer.
    /// Returns false if a version with a larger number was faster: then that one comes afterwards, and this one is nowhere. `read` gets the
    /// content of a place that is held.
    ///
    /// It ends: a version with a smaller number waits for still smaller ones at most.
    pub(crate) fn change_part<E>(
        &self,
        [ring, position]: [u64; 2],
        worker: usize,
        lpn: Lpn,
        seq: u64,
        places: &impl Places,
        mut read: impl FnMut(Ppa, &mut Unit) -> Result<(), E>,
        merge: impl Fn(&mut Unit),
    ) -> Result<bool, E> {
        let number = ring as usize;
        let ring = &self.rings[number];
        let mut backoff = Backoff::default();
        // Versions with smaller numbers are in the map from here on, or were there.
        while self.others_bound(worker) < seq && !has_planted!(self, PartAtOnce) {
            backoff.wait();
        }
        let entry = ring.entry(position);
        let mine = self.word(ring, position);
        let is_in = loop {
            let mut unit = [0; WORDS];
            let (word, found) = self.look_up(lpn, &mut unit, places, false);
            let (before, held) = match (word, found) {
                (Word::Cached(slot), _) => {
                    let other = self.rings[usize::from(slot.ring)].entry(u64::from(slot.index));
                    let other_seq = other.seq.load(Ordering::Relaxed);
                    if !self.is_still(slot) {
                        continue;
                    }
                    if other_seq > seq {
                        break false;
                    }
                    (EMPTY, None)
                }
                (_, Found::Place(ppa)) => {
                    let result = read(ppa, &mut unit);
                    if result.is_err() {
                        places.release(ppa);
                    }
                    result?;
                    (word.pack(), Some(ppa))
                }
                _ => (word.pack(), None),
            };
            merge(&mut unit);
            self.fill([number as u64, position], lpn, seq, 0, |content| content.write(&unit));
            entry.before.store(before, Ordering::Relaxed);
            // A held place is not used again, so the word is of the version that was read.
            let is_in = match has_planted!(self, PartByStore) {
                true => {
                    self.map.exchange(lpn, mine);
                    true
                }
                false => self.map.replace(lpn, word, mine).is_ok(),
            };
            if let Some(ppa) = held {
                places.release(ppa);
            }
            if is_in {
                break true;
            }
        };
        let state = if is_in { state::FILLED } else { state::DROPPED };
        entry.state.store(state, Ordering::Release);
        Ok(is_in)
    }

    /// A lower bound of the numbers that other workers have taken and not installed.
    fn others_bound(&self, worker: usize) -> u64 {
        let others = self.numbers.iter().enumerate().filter(|(other, _)| *other != worker);
        others.map(|(_, number)| number.load(Ordering::Acquire)).min().unwrap_or(NO_NUMBER)
    }

    /// An entry is on the medium. The writer of its ring calls it, before `sync` passes the entry.
    pub(crate) fn persisted(&self, ring: usize, position: u64, ppa: Ppa, places: &impl Places) {
        let entry = self.rings[ring].entry(position);
        let is_trim = entry.flags.load(Ordering::Relaxed) & flags::TRIM != 0;
        let place = if is_trim { Word::Trimmed(ppa) } else { Word::Place(ppa) };
        places.set_valid(ppa);
        entry.place.store(place.pack(), Ordering::Relaxed);
        if let Some(old) = place_of(Word::unpack(entry.before.load(Ordering::Relaxed))) {
            places.set_invalid(old);
        }
    }

    /// Publishes everything of a ring that is on the medium.
    pub(crate) fn publish(&self, ring: usize, places: &impl Places) {
        let ring = &self.rings[ring];
        let mut producer = ring.producer.lock();
        self.publish_to(ring, &mut producer, ring.sync.load(Ordering::Acquire), places);
        self.forget_superseded(&mut producer, places);
    }

    /// Places of entries that were superseded before they were published, and whose successors are on the medium now.
    fn forget_superseded(&self, producer: &mut Producer, places: &impl Places) {
        producer.superseded.retain(|&(ppa, slot)| {
            let is_old = self.is_persistent(slot);
            if is_old {
                places.set_invalid(ppa);
            }
            !is_old
        });
    }

    fn publish_to(&self, ring: &Ring, producer: &mut Producer, end: u64, places: &impl Places) {
        if producer.published >= end {
            return;
        }
        self.forget_superseded(producer, places);
        while producer.published < end {
            let position = producer.published;
            producer.published += 1;
            let entry = ring.entry(position);
            if entry.state.load(Ordering::Relaxed) == state::DROPPED {
                continue;
            }
            self.wait_for_smaller(producer, entry.seq.load(Ordering::Relaxed));
            let place = Word::unpack(entry.place.load(Ordering::Relaxed));
            let (lpn, mine) = (Lpn(entry.lpn.load(Ordering::Relaxed)), self.word(ring, position));
            if has_planted!(self, PublishByStore) {
                self.map.exchange(lpn, place);
                continue;
            }
            let Err(now) = self.map.replace(lpn, mine, place) else { continue };
            let ppa = place_of(place).expect("an entry that is on the medium");
            match now {
                // Until the version that took the word is on the medium, this one is what a power loss leaves.
                Word::Cached(slot) if !self.is_persistent(slot) => producer.superseded.push((ppa, slot)),
                _ => places.set_invalid(ppa),
            }
        }
    }

    fn is_persistent(&self, slot: Slot) -> bool {
        let ring = &self.rings[usize::from(slot.ring)];
        ring.is_persistent(ring.position(slot))
    }

    /// Waits until every version with a number up to this one is installed.
    fn wait_for_smaller(&self, producer: &mut Producer, seq: u64) {
        if has_planted!(self, PublishAtOnce) {
            return;
        }
        let mut backoff = Backoff::default();
        while seq >= producer.installed_below {
            // First the number, then the bounds: a number below it was taken before, and its bound is visible.
            let next = self.next_seq.load(Ordering::Acquire);
            let bounds = self.numbers.iter().map(|number| number.load(Ordering::Acquire));
            producer.installed_below = bounds.fold(next, u64::min);
            if seq >= producer.installed_below {
                backoff.wait();
            }
        }
    }

    /// Looks a unit up; copies it if it is in a ring, and holds its place if it is on the medium.
    pub(crate) fn find(&self, lpn: Lpn, unit: &mut Unit, places: &impl Places) -> Found {
        self.look_up(lpn, unit, places, self.readers_lock).1
    }

    /// The same, with the word in which it was found.
    fn look_up(&self, lpn: Lpn, unit: &mut Unit, places: &impl Places, readers_lock: bool) -> (Word, Found) {
        let mut backoff = Backoff::default();
        loop {
            let look = |word| (word, matches!(word, Word::Place(ppa) if places.hold(ppa)));
            let slot = match self.map.look(lpn, look) {
                (word @ (Word::Empty | Word::Trimmed(_)), _) => {
                    *unit = [0; WORDS];
                    return (word, Found::Zeros);
                }
                (word @ Word::Place(ppa), true) => {
                    // It may have been erased before it was held. Then the word has changed; with a lock it cannot.
                    if self.map.is_locked()
                        || has_planted!(self, HoldWithoutLook)
                        || self.map.get(lpn) == word
                    {
                        return (word, Found::Place(ppa));
                    }
                    places.release(ppa);
                    continue;
                }
                (Word::Place(_), false) => {
                    backoff.wait();
                    continue;
                }
                (Word::Cached(slot), _) => slot,
            };
            let ring = &self.rings[usize::from(slot.ring)];
            let _guard = readers_lock.then(|| ring.producer.lock());
            let entry = ring.entry(u64::from(slot.index));
            let is_trim = entry.flags.load(Ordering::Relaxed) & flags::TRIM != 0;
            entry.content.read(unit);
            if self.is_still(slot) || has_planted!(self, ReadWithoutLook) {
                if is_trim {
                    *unit = [0; WORDS];
                }
                return (Word::Cached(slot), if is_trim { Found::Zeros } else { Found::Copied });
            }
            backoff.wait();
        }
    }

    /// Begins a FLUSH: everything that was accepted before is covered, all versions below the returned number among it. `wake` wakes
    /// the writer of a ring.
    pub(crate) fn flush(&self, pending: &Arc<Pending>, mut wake: impl FnMut(usize)) -> u64 {
        let cut = self.next_seq.load(Ordering::Acquire);
        let rings = self.rings.len() - usize::from(has_planted!(self, FlushMissesRing));
        for (number, ring) in self.rings.iter().enumerate().take(rings) {
            let end = ring.mem.load(Ordering::Acquire);
            self.wait_for(number, end, pending, &mut wake);
        }
        cut
    }

    /// Has a request wait for everything before a position of a ring.
    pub(crate) fn wait_for(
        &self,
        ring: usize,
        end: u64,
        pending: &Arc<Pending>,
        wake: &mut impl FnMut(usize),
    ) {
        let number = ring;
        let ring = &self.rings[ring];
        ring.force(end);
        if ring.wait_for(end, pending, has_planted!(self, LateWaiter)) {
            wake(number);
        }
    }
}

/// The unit of a durable word.
pub(crate) fn place_of(word: Word) -> Option<Ppa> {
    match word {
        Word::Place(ppa) | Word::Trimmed(ppa) => Some(ppa),
        Word::Empty | Word::Cached(_) => None,
    }
}
