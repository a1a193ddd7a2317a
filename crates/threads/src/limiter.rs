//! The limiters of `flashweir-ftl` for many threads: QBLKe's scores and pblk's windows (open-channel §7).
//!
//! Both check first and count afterwards, as the released code does, so a thread that was stopped in between adds its request late.
//!
//! Invariant: a side exceeds its limit by at most one request of each thread (open-channel §8.1), and one more that begins below it.
//!
//! Both scores of a round are halves of one word: a reset that lost a race against an addition is tried again, so that no entry is
//! admitted without being counted.

use crate::sync::{Alone, AtomicU32, AtomicU64, Ordering};
use flashweir_ftl::limiter::Marks;

/// Tries of a reset before the request is sent back (open-channel §7.3).
const TRIES: u32 = 64;

const GC: u64 = 1 << 32;

/// QBLKe's scores.
#[derive(Debug)]
pub struct SharedScores {
    marks: Marks,
    /// Entries admitted in this round: of the user in the lower half, of GC in the upper one.
    scores: Alone<AtomicU64>,
    user_max: Alone<AtomicU64>,
    shares: Box<[AtomicU32]>,
    #[cfg(loom)]
    pub(crate) planted: Option<PlantedLimiterBug>,
}

/// Bugs that the tests must find.
#[cfg(loom)]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum PlantedLimiterBug {
    /// A new round begins by a store.
    ResetByStore,
}

fn halves(scores: u64) -> (u64, u64) {
    (scores % GC, scores / GC)
}

impl SharedScores {
    /// A limiter for groups with these numbers of free blocks.
    pub fn new(marks: Marks, free: &[u32]) -> Self {
        let shares: Vec<u32> = free.iter().map(|&free| marks.linear_share(free)).collect();
        let user_max = shares.iter().map(|&share| u64::from(share)).sum();
        Self {
            marks,
            scores: Alone(AtomicU64::new(0)),
            user_max: Alone(AtomicU64::new(user_max)),
            shares: shares.into_iter().map(AtomicU32::new).collect(),
            #[cfg(loom)]
            planted: None,
        }
    }

    /// Sets the number of free blocks of a group.
    pub fn set_free(&self, group: usize, free: u32) {
        let share = self.marks.linear_share(free);
        let old = self.shares[group].swap(share, Ordering::AcqRel);
        // The sum passes through no value below zero: each share was added before it is taken away.
        self.user_max.fetch_add(u64::from(share).wrapping_sub(u64::from(old)), Ordering::AcqRel);
    }

    /// Limits of a round: entries of the user, and of GC.
    pub fn limits(&self) -> (u64, u64) {
        let user_max = self.user_max.load(Ordering::Acquire);
        (user_max, (self.shares.len() as u64 * u64::from(self.marks.budget)).saturating_sub(user_max))
    }

    /// Entries admitted in this round: of the user, and of GC.
    pub fn scores(&self) -> (u64, u64) {
        halves(self.scores.load(Ordering::Acquire))
    }

    /// Begins a new round if nobody has added anything since `seen`.
    fn reset(&self, seen: u64) -> bool {
        #[cfg(loom)]
        if self.planted == Some(PlantedLimiterBug::ResetByStore) {
            self.scores.store(0, Ordering::Release);
            return true;
        }
        self.scores.compare_exchange(seen, 0, Ordering::AcqRel, Ordering::Relaxed).is_ok()
    }

    /// Whether `count` entries of the user may enter now. `gc_waits` is whether a group collects and has copies to bring: without one
    /// the round could never end (open-channel §8.2).
    pub fn admit_user(&self, count: u32, gc_runs: bool, gc_waits: bool) -> bool {
        if !gc_runs {
            return true;
        }
        for _ in 0..TRIES {
            let seen = self.scores.load(Ordering::Acquire);
            let ((user, gc), (user_max, gc_max)) = (halves(seen), self.limits());
            if user > user_max {
                if gc <= gc_max && gc_waits {
                    return false;
                }
                if !self.reset(seen) {
                    continue;
                }
            }
            self.scores.fetch_add(u64::from(count), Ordering::AcqRel);
            return true;
        }
        false
    }

    /// Whether `count` entries of GC may enter now.
    pub fn admit_gc(&self, count: u32, user_is_active: bool) -> bool {
        if !user_is_active {
            return true;
        }
        for _ in 0..TRIES {
            let seen = self.scores.load(Ordering::Acquire);
            let ((user, gc), (user_max, gc_max)) = (halves(seen), self.limits());
            if gc > gc_max {
                if user <= user_max {
                    return false;
                }
                if !self.reset(seen) {
                    continue;
                }
            }
            self.scores.fetch_add(u64::from(count) * GC, Ordering::AcqRel);
            return true;
        }
        false
    }
}

/// pblk's windows: a bound of the entries that each side has in the ring.
#[derive(Debug)]
pub struct SharedWindows {
    marks: Marks,
    user_max: Alone<AtomicU32>,
    user: Alone<AtomicU32>,
    gc: Alone<AtomicU32>,
}

impl SharedWindows {
    /// A limiter for a ring without entries, and `free` free blocks.
    pub fn new(marks: Marks, free: u32) -> Self {
        let cell = |value| Alone(AtomicU32::new(value));
        Self { marks, user_max: cell(marks.window_share(free)), user: cell(0), gc: cell(0) }
    }

    /// Sets the number of free blocks.
    pub fn set_free(&self, free: u32) {
        self.user_max.store(self.marks.window_share(free), Ordering::Release);
    }

    /// Entries in the ring: of the user, and of GC.
    pub fn inside(&self) -> (u32, u32) {
        (self.user.load(Ordering::Acquire), self.gc.load(Ordering::Acquire))
    }

    /// Limits: entries of the user, and of GC.
    pub fn limits(&self) -> (u32, u32) {
        let user_max = self.user_max.load(Ordering::Acquire);
        (user_max, self.marks.budget - user_max)
    }

    /// Whether `count` more entries of the user may enter; if so, they count from now on. A request larger than the window enters an
    /// empty ring, since it could never enter otherwise.
    pub fn admit_user(&self, count: u32) -> bool {
        let (max, user) = (self.limits().0, self.user.load(Ordering::Acquire));
        let fits = user + count <= max || user == 0 && max > 0;
        if fits {
            self.user.fetch_add(count, Ordering::AcqRel);
        }
        fits
    }

    /// Whether `count` more entries of GC may enter; without user I/O GC is not limited.
    pub fn admit_gc(&self, count: u32, user_is_active: bool) -> bool {
        let (max, gc) = (self.limits().1, self.gc.load(Ordering::Acquire));
        let fits = !user_is_active || gc + count <= max || gc == 0;
        if fits {
            self.gc.fetch_add(count, Ordering::AcqRel);
        }
        fits
    }

    /// Entries have left the ring.
    pub fn left(&self, user: u32, gc: u32) {
        if user > 0 {
            self.user.fetch_sub(user, Ordering::AcqRel);
        }
        if gc > 0 {
            self.gc.fetch_sub(gc, Ordering::AcqRel);
        }
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;
    use flashweir_ftl::limiter::{Scores, Windows};

    const PAPER: Marks = Marks { budget: 256, high: 10, reserve: 4 };

    /// With one thread both are the limiters of `flashweir-ftl`.
    #[test]
    fn one_thread_sees_the_limiters_of_virtual_time() {
        let mut random = 1_u64;
        let mut next = |below: u64| {
            random = random.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
            (random >> 33) % below
        };
        let (shared, mut plain) = (SharedScores::new(PAPER, &[6, 9]), Scores::new(PAPER, &[6, 9]));
        let (windows, mut plain_windows) = (SharedWindows::new(PAPER, 6), Windows::new(PAPER, 6));
        let mut inside = [0, 0];
        for _ in 0..if cfg!(miri) { 200 } else { 20_000 } {
            let (count, is_active, waits) = (1 + next(8) as u32, next(9) > 0, next(5) > 0);
            match next(6) {
                0 => {
                    let (group, free) = (next(2) as usize, next(14) as u32);
                    shared.set_free(group, free);
                    plain.set_free(group, free);
                    windows.set_free(free);
                    plain_windows.set_free(free);
                }
                1 | 2 => {
                    assert_eq!(shared.admit_user(count, true, waits), plain.admit_user(count, true, waits));
                    let fits = windows.admit_user(count);
                    assert_eq!(fits, plain_windows.admit_user(count));
                    inside[0] += if fits { count } else { 0 };
                }
                3 | 4 => {
                    assert_eq!(shared.admit_gc(count, is_active), plain.admit_gc(count, is_active));
                    let fits = windows.admit_gc(count, is_active);
                    assert_eq!(fits, plain_windows.admit_gc(count, is_active));
                    inside[1] += if fits { count } else { 0 };
                }
                _ => {
                    let side = next(2) as usize;
                    if inside[side] > 0 {
                        inside[side] -= 1;
                        windows.left(1 - side as u32, side as u32);
                        plain_windows.left(side == 1);
                    }
                }
            }
            assert_eq!(shared.limits(), plain.limits());
            assert_eq!(windows.inside(), (inside[0], inside[1]));
        }
    }

    /// open-channel §8.1: the overshoot is at most one request of each thread.
    #[test]
    fn sides_exceed_their_limits_by_one_request_of_each_thread() {
        const THREADS: u32 = 4;
        const COUNT: u32 = 8;
        let rounds = if cfg!(miri) { 40 } else { 50_000 };
        let scores = SharedScores::new(PAPER, &[7]);
        let windows = SharedWindows::new(PAPER, 7);
        let (user_max, gc_max) = scores.limits();
        let late = u64::from(THREADS * COUNT);
        std::thread::scope(|scope| {
            for thread in 0..THREADS {
                let (scores, windows) = (&scores, &windows);
                scope.spawn(move || {
                    for _ in 0..rounds {
                        let (user, gc) = match thread {
                            0 => (0, u32::from(scores.admit_gc(COUNT, true))),
                            _ => (u32::from(scores.admit_user(COUNT, true, true)), 0),
                        };
                        let now = scores.scores();
                        assert!(now.0 <= user_max + late && now.1 <= gc_max + late, "{now:?}");
                        let mut is_in = windows.admit_user(COUNT);
                        let (inside, _) = windows.inside();
                        assert!(inside <= windows.limits().0 + THREADS * COUNT, "{inside}");
                        if is_in {
                            windows.left(COUNT, 0);
                            is_in = false;
                        }
                        assert!(!is_in && user + gc <= 1);
                    }
                });
            }
        });
        assert_eq!(windows.inside(), (0, 0));
    }
}
