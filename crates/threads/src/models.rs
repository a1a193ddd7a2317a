//! Models of interleavings: loom runs each in every order that matters, with every value that a load may return.
//!
//! Place: `cargo xtask loom`. Each property is also asked with a bug planted, and must fail then.

use crate::content::{Unit, WORDS};
use crate::hold::Holds;
use crate::limiter::{PlantedLimiterBug, SharedScores};
use crate::map::AtomicMap;
use crate::pending::Pending;
use crate::planted::PlantedBug;
use crate::pool::Pool;
use crate::ring::{flags, state};
use crate::sync::{Arc, AtomicU32, Ordering};
use crate::versions::{Found, Places, Versions};
use flashweir_core::{Lpn, Ppa};
use flashweir_ftl::host_word::Word;
use flashweir_ftl::limiter::Marks;
use loom::thread::spawn;
use std::panic::AssertUnwindSafe;

/// Counts of a model's places: how often each became valid, and invalid, which is no part of what is modelled. The readers of the
/// one line that may be erased are.
#[derive(Default)]
struct Valid {
    counts: std::sync::Mutex<Vec<(u64, i32)>>,
    holds: Holds,
    holds_nothing: bool,
}

impl Valid {
    fn add(&self, ppa: Ppa, by: i32) {
        let mut counts = self.counts.lock().unwrap();
        match counts.iter_mut().find(|(place, _)| *place == ppa.0) {
            Some((_, count)) => *count += by,
            None => counts.push((ppa.0, by)),
        }
        assert!(counts.iter().all(|(_, count)| (0..=1).contains(count)), "{counts:?}");
    }

    /// Valid places, sorted.
    fn places(&self) -> Vec<u64> {
        let counts = self.counts.lock().unwrap();
        let mut places: Vec<u64> = counts.iter().filter(|count| count.1 == 1).map(|count| count.0).collect();
        places.sort_unstable();
        places
    }
}

impl Places for Valid {
    fn set_valid(&self, ppa: Ppa) {
        self.add(ppa, 1);
    }

    fn set_invalid(&self, ppa: Ppa) {
        self.add(ppa, -1);
    }

    fn hold(&self, _: Ppa) -> bool {
        self.holds_nothing || self.holds.hold()
    }

    fn release(&self, _: Ppa) {
        if !self.holds_nothing {
            self.holds.release();
        }
    }
}

struct World {
    versions: Versions,
    valid: Valid,
}

impl World {
    fn new(rings: &[u32], planted: Option<PlantedBug>) -> Self {
        let mut versions = Versions::new(AtomicMap::new(2, false), rings, 2, false);
        versions.planted = planted;
        let holds_nothing = planted == Some(PlantedBug::ReadWithoutHold);
        let valid = Valid { holds_nothing, ..Valid::default() };
        valid.holds.open();
        Self { versions, valid }
    }

    /// A user's write, up to its answer; returns its position and number.
    fn write(&self, ring: usize, worker: usize, lpn: u64, word: u64) -> (u64, u64) {
        let reserved = self.versions.reserve(ring, 1, Some(worker), &self.valid).expect("room");
        let unit = [word; WORDS];
        let at = [ring as u64, reserved.first];
        self.versions.fill(at, Lpn(lpn), reserved.seq, 0, |content| content.write(&unit));
        self.versions.install(ring, reserved.first);
        self.versions.installed(worker);
        self.versions.mark(ring, reserved.first);
        (reserved.first, reserved.seq)
    }

    /// A write of one word of a unit, up to its answer.
    fn write_part(&self, ring: usize, worker: usize, lpn: u64, at: usize, word: u64) {
        let reserved = self.versions.reserve(ring, 1, Some(worker), &self.valid).expect("room");
        let place = [ring as u64, reserved.first];
        let read = |_, _: &mut Unit| Err("nothing is on the medium");
        let merge = |unit: &mut Unit| unit[at] = word;
        let changed =
            self.versions.change_part(place, worker, Lpn(lpn), reserved.seq, &self.valid, read, merge);
        changed.expect("nothing is read");
        self.versions.installed(worker);
    }

    /// What the ring's writer does with one entry.
    fn persist(&self, ring: usize, position: u64, place: u64) {
        if self.versions.rings[ring].entry(position).state.load(Ordering::Acquire) != state::DROPPED {
            self.versions.persisted(ring, position, Ppa(place), &self.valid);
        }
        self.versions.rings[ring].advance(position + 1);
    }

    fn publish(&self, ring: usize) {
        self.versions.publish(ring, &self.valid);
    }
}

/// Runs a model in every order in which a thread loses its CPU up to five times where it could go on. Without that bound the model of two
/// writers takes two minutes.
fn explore(model: impl Fn() + Send + Sync + 'static) {
    let mut builder = loom::model::Builder::new();
    builder.preemption_bound = Some(5);
    builder.check(model);
}

/// Whether a model holds without a bug, and fails with each of these.
fn judge(planted: &[PlantedBug], model: impl Fn(Option<PlantedBug>) + Send + Sync + Copy + 'static) {
    explore(move || model(None));
    for &bug in planted {
        let hunt = AssertUnwindSafe(|| explore(move || model(Some(bug))));
        let found = std::panic::catch_unwind(hunt);
        assert!(found.is_err(), "{bug:?} is not found");
    }
}

/// A write of a part of a unit takes nothing back of a whole one that runs beside it.
#[test]
fn a_part_is_of_what_it_comes_after() {
    judge(&[PlantedBug::PartAtOnce, PlantedBug::PartByStore], |planted| {
        let world = Arc::new(World::new(&[4, 4], planted));
        let other = world.clone();
        let thread = spawn(move || other.write(0, 0, 0, 1));
        world.write_part(1, 1, 0, 0, 9);
        thread.join().unwrap();
        let mut unit = [7; WORDS];
        world.versions.find(Lpn(0), &mut unit, &world.valid);
        assert!(unit == [9, 1] || unit == [1, 1], "{unit:?}");
    });
}

/// Two writes of parts of one unit are both there.
#[test]
fn two_parts_are_both_there() {
    judge(&[PlantedBug::PartAtOnce], |planted| {
        let world = Arc::new(World::new(&[4, 4], planted));
        let other = world.clone();
        let thread = spawn(move || other.write_part(0, 0, 0, 1, 8));
        world.write_part(1, 1, 0, 0, 9);
        thread.join().unwrap();
        let mut unit = [7; WORDS];
        world.versions.find(Lpn(0), &mut unit, &world.valid);
        assert_eq!(unit, [9, 8]);
    });
}

/// open-channel §3.8: two writers of one unit through two rings, each published as soon as it may be.
#[test]
fn the_larger_number_is_what_stays() {
    judge(
        &[PlantedBug::InstallByExchange, PlantedBug::PublishAtOnce, PlantedBug::PublishByStore],
        |planted| {
            let world = Arc::new(World::new(&[1, 1], planted));
            let work = |ring: usize| {
                let world = world.clone();
                move || {
                    let (position, seq) = world.write(ring, ring, 0, 7);
                    world.persist(ring, position, seq);
                    world.publish(ring);
                }
            };
            let thread = spawn(work(1));
            work(0)();
            thread.join().unwrap();
            // Places are named by their numbers, which are 1 and 2.
            assert_eq!(world.versions.map.get(Lpn(0)), Word::Place(Ppa(2)));
            world.publish(0);
            world.publish(1);
            assert_eq!(world.valid.places(), [2]);
        },
    );
}

/// A version that GC copies, a user's newer one through another ring, and the publication of both.
#[test]
fn a_copy_never_hides_a_newer_version() {
    judge(&[PlantedBug::CopyByStore], |planted| {
        let world = Arc::new(World::new(&[1, 1], planted));
        world.write(0, 0, 0, 7);
        world.persist(0, 0, 10);
        world.publish(0);
        let other = world.clone();
        let thread = spawn(move || {
            let (position, _) = other.write(0, 0, 0, 8);
            other.persist(0, position, 11);
            other.publish(0);
        });
        let original = Word::Place(Ppa(10));
        let reserved = world.versions.reserve(1, 1, None, &world.valid).unwrap();
        let copy = [7; WORDS];
        world.versions.fill([1, 0], Lpn(0), 1, flags::GC, |content| content.write(&copy));
        world.versions.install_copy(1, reserved.first, original);
        world.persist(1, reserved.first, 12);
        world.publish(1);
        thread.join().unwrap();
        world.publish(0);
        world.publish(1);
        assert_eq!(world.versions.map.get(Lpn(0)), Word::Place(Ppa(11)));
        assert_eq!(world.valid.places(), [11]);
    });
}

/// open-channel §3.7 and open-channel §3.9: a reader copies while the slot is used again.
#[test]
fn a_reader_sees_whole_versions_of_its_unit() {
    judge(&[PlantedBug::NoGeneration, PlantedBug::ReadWithoutLook], |planted| {
        let world = Arc::new(World::new(&[1], planted));
        world.write(0, 0, 0, 7);
        world.persist(0, 0, 10);
        let other = world.clone();
        let thread = spawn(move || other.write(0, 0, 1, 8));
        let mut unit: Unit = [0; WORDS];
        match world.versions.find(Lpn(0), &mut unit, &world.valid) {
            Found::Copied => assert_eq!(unit, [7; WORDS]),
            found => assert_eq!(found, Found::Place(Ppa(10))),
        }
        thread.join().unwrap();
    });
}

/// A reader that comes after an answer sees that version, or a newer one; never an older one again.
#[test]
fn a_reader_never_goes_back() {
    judge(&[], |planted| {
        let world = Arc::new(World::new(&[1], planted));
        let other = world.clone();
        let thread = spawn(move || {
            other.write(0, 0, 0, 7);
            other.persist(0, 0, 10);
            other.publish(0);
        });
        let mut newest = 0;
        for _ in 0..2 {
            let mut unit: Unit = [0; WORDS];
            let age = match world.versions.find(Lpn(0), &mut unit, &world.valid) {
                Found::Zeros => 0,
                Found::Copied => {
                    assert_eq!(unit, [7; WORDS]);
                    1
                }
                Found::Place(_) => 2,
            };
            assert!(age >= newest);
            newest = age;
        }
        thread.join().unwrap();
    });
}

/// A line is erased and opened again while a reader is on its way to it: the reader waits, or the eraser does.
#[test]
fn a_line_is_not_erased_under_a_reader() {
    judge(&[PlantedBug::ReadWithoutHold, PlantedBug::HoldWithoutLook], |planted| {
        let world = Arc::new(World::new(&[1, 1], planted));
        // What stands at place 10 of the medium.
        let medium = Arc::new(AtomicU32::new(7));
        world.write(0, 0, 0, 7);
        world.persist(0, 0, 10);
        world.publish(0);
        let (other, erased) = (world.clone(), medium.clone());
        let thread = spawn(move || {
            other.write(1, 0, 0, 8);
            other.persist(1, 0, 11);
            assert!(other.valid.holds.close(|| true));
            erased.store(0, Ordering::Relaxed);
            other.valid.holds.open();
        });
        let mut unit: Unit = [0; WORDS];
        match world.versions.find(Lpn(0), &mut unit, &world.valid) {
            Found::Place(ppa) => {
                assert_eq!((ppa, medium.load(Ordering::Relaxed)), (Ppa(10), 7));
                world.valid.release(ppa);
            }
            found => assert_eq!((found, unit), (Found::Copied, [8; WORDS])),
        }
        thread.join().unwrap();
    });
}

/// open-channel §4.1: what was answered before a FLUSH began is on the medium when it is answered, and it is answered.
#[test]
fn flush_covers_what_was_answered() {
    judge(&[PlantedBug::FlushMissesRing, PlantedBug::LateWaiter], |planted| {
        let world = Arc::new(World::new(&[1, 1], planted));
        let written = Arc::new(AtomicU32::new(0));
        let (other, answered) = (world.clone(), written.clone());
        let thread = spawn(move || {
            let (position, _) = other.write(1, 0, 0, 7);
            answered.store(1, Ordering::Release);
            other.persist(1, position, 10);
        });
        let was_answered = written.load(Ordering::Acquire) == 1;
        let pending = Arc::new(Pending::new());
        let cut = world.versions.flush(&pending, |_| {});
        pending.done();
        if was_answered {
            assert_eq!(cut, 2, "the write has number 1");
            assert!(pending.answers() == 0 || world.versions.rings[1].is_persistent(0));
        }
        thread.join().unwrap();
        assert_eq!(pending.answers(), 1);
    });
}

/// A FUA request with parts in two rings, whose writers end them at the same time (open-channel §8.6).
#[test]
fn fua_is_answered_once() {
    judge(&[PlantedBug::AnsweredTwice], |planted| {
        let world = Arc::new(World::new(&[1, 1], None));
        let mut pending = Pending::new();
        pending.planted = planted;
        let pending = Arc::new(pending);
        for ring in 0..2 {
            world.write(ring, 0, ring as u64, 7);
            world.versions.wait_for(ring, 1, &pending, &mut |_| {});
        }
        pending.done();
        assert_eq!(pending.answers(), 0);
        let other = world.clone();
        let thread = spawn(move || other.persist(1, 0, 10));
        world.persist(0, 0, 11);
        thread.join().unwrap();
        assert_eq!(pending.answers(), 1);
    });
}

/// Two requests find a round at its end: one begins the next, and both count there.
#[test]
fn a_round_counts_what_it_admits() {
    let model = |planted| {
        // A budget of 12 of which the user has 4.
        let mut scores = SharedScores::new(Marks { budget: 12, high: 7, reserve: 4 }, &[5]);
        assert_eq!(scores.limits(), (4, 8));
        scores.planted = planted;
        assert!(scores.admit_user(5, true, true) && scores.admit_gc(9, true));
        let scores = Arc::new(scores);
        let other = scores.clone();
        let thread = spawn(move || assert!(other.admit_user(1, true, true)));
        assert!(scores.admit_user(1, true, true));
        thread.join().unwrap();
        assert_eq!(scores.scores(), (2, 0));
    };
    explore(move || model(None));
    let planted = Some(PlantedLimiterBug::ResetByStore);
    assert!(std::panic::catch_unwind(|| explore(move || model(planted))).is_err());
}

/// An item goes back through another thread while its owner takes.
#[test]
fn items_are_neither_lost_nor_leased_twice() {
    let model = |is_planted: bool| {
        let (mut pool, mut ends) = Pool::new(1, 2, false);
        if is_planted {
            pool.put_by_store();
        }
        // Loom's threads have no scopes, so the pool lives as long as the test.
        let pool: &'static Pool = Box::leak(Box::new(pool));
        let (first, second) = (ends[0].take(pool).unwrap(), ends[0].take(pool).unwrap());
        let thread = spawn(move || drop((first, second)));
        let early = ends[0].take(pool);
        thread.join().unwrap();
        let late: Vec<_> = std::iter::from_fn(|| ends[0].take(pool)).collect();
        assert_eq!(usize::from(early.is_some()) + late.len(), 2);
        std::mem::forget((early, late));
    };
    explore(move || model(false));
    assert!(std::panic::catch_unwind(move || explore(move || model(true))).is_err());
}
