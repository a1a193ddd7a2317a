//! Admission of user data and GC data to a host FTL's rings: pblk's windows and QBLKe's scores (open-channel §7).
//!
//! Place: a host FTL asks before an entry enters a ring, and reports every change of its free blocks.
//!
//! Invariant: a limiter that refuses user data has GC running, or free blocks at the reserve; so a refusal ends when GC has freed
//! a line.
//!
//! Deliberately absent: time. The caller says whether user I/O was seen in the last five seconds.

/// Numbers of one group of erase blocks (all of them, or those of one channel) from which its limits follow, in blocks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Marks {
    /// Entries of the rings that belong to the group.
    pub budget: u32,
    /// With at least this many free blocks GC stops, and the user has the whole budget.
    pub high: u32,
    /// With at most this many free blocks the user gets nothing.
    pub reserve: u32,
}

impl Marks {
    /// The numbers of so many groups together.
    pub fn times(self, groups: u32) -> Self {
        Self { budget: self.budget * groups, high: self.high * groups, reserve: self.reserve * groups }
    }

    /// The user's share of the budget with `free` free blocks, by QBLKe's line between reserve and high (open-channel §7.2).
    pub fn linear_share(self, free: u32) -> u32 {
        match free {
            free if free >= self.high => self.budget,
            free if free <= self.reserve => 0,
            free => {
                let (part, whole) = (u64::from(free - self.reserve), u64::from(self.high - self.reserve));
                (u64::from(self.budget) * part / whole) as u32
            }
        }
    }

    /// The user's share by pblk's windows of 64 entries, which double with the free blocks (open-channel §7.1).
    pub fn window_share(self, free: u32) -> u32 {
        match free {
            free if free >= self.high => self.budget,
            free if free <= self.reserve => 0,
            free => {
                let log_up = |number: u32| number.max(1).next_power_of_two().trailing_zeros();
                let windows = log_up((self.budget / 64).max(1));
                let shift = log_up(self.high).saturating_sub(windows);
                ((free >> shift) * 64).min(self.budget)
            }
        }
    }
}

/// pblk's limiter: a bound of the entries that each side has in the ring.
#[derive(Clone, Debug)]
pub struct Windows {
    marks: Marks,
    user_max: u32,
    user: u32,
    gc: u32,
}

impl Windows {
    /// Returns a limiter for a ring without entries, and `free` free blocks.
    pub fn new(marks: Marks, free: u32) -> Self {
        Self { marks, user_max: marks.window_share(free), user: 0, gc: 0 }
    }

    /// Sets the number of free blocks.
    pub fn set_free(&mut self, free: u32) {
        self.user_max = self.marks.window_share(free);
    }

    /// Whether `count` more entries of the user may enter; if so, they count from now on. A request larger than the window enters an
    /// empty ring, since it could never enter otherwise.
    pub fn admit_user(&mut self, count: u32) -> bool {
        let fits = self.user + count <= self.user_max || self.user == 0 && self.user_max > 0;
        self.user += if fits { count } else { 0 };
        fits
    }

    /// Whether `count` more entries of GC may enter; without user I/O GC is not limited.
    pub fn admit_gc(&mut self, count: u32, user_is_active: bool) -> bool {
        let gc_max = self.marks.budget - self.user_max;
        let fits = !user_is_active || self.gc + count <= gc_max || self.gc == 0;
        self.gc += if fits { count } else { 0 };
        fits
    }

    /// An entry has left the ring.
    pub fn left(&mut self, is_gc: bool) {
        let count = if is_gc { &mut self.gc } else { &mut self.user };
        *count -= 1;
    }
}

/// QBLKe's limiter: each round admits about `user_max` entries of the user and `gc_max` of GC, in any interleaving (open-channel §7.3).
///
/// Scores are not occupancies: they do not fall when entries leave, so full rings cannot starve a slow GC.
#[derive(Clone, Debug)]
pub struct Scores {
    marks: Marks,
    shares: Vec<u32>,
    user_max: u64,
    gc_max: u64,
    user: u64,
    gc: u64,
}

impl Scores {
    /// Returns a limiter for groups with these numbers of free blocks.
    pub fn new(marks: Marks, free: &[u32]) -> Self {
        let shares: Vec<u32> = free.iter().map(|&free| marks.linear_share(free)).collect();
        let user_max = shares.iter().map(|&share| u64::from(share)).sum();
        let gc_max = shares.len() as u64 * u64::from(marks.budget) - user_max;
        Self { marks, shares, user_max, gc_max, user: 0, gc: 0 }
    }

    /// Sets the number of free blocks of a group.
    pub fn set_free(&mut self, group: usize, free: u32) {
        let share = self.marks.linear_share(free);
        let old = std::mem::replace(&mut self.shares[group], share);
        self.user_max = self.user_max - u64::from(old) + u64::from(share);
        self.gc_max = self.gc_max + u64::from(old) - u64::from(share);
    }

    /// Limits of a round: entries of the user, and of GC.
    pub fn limits(&self) -> (u64, u64) {
        (self.user_max, self.gc_max)
    }

    /// Whether `count` entries of the user may enter now. `gc_waits` is whether a group collects and has copies to bring: without one
    /// the round could never end, and the user would wait for nothing (open-channel §8.2).
    pub fn admit_user(&mut self, count: u32, gc_runs: bool, gc_waits: bool) -> bool {
        if !gc_runs {
            return true;
        }
        if self.user > self.user_max {
            if self.gc <= self.gc_max && gc_waits {
                return false;
            }
            (self.user, self.gc) = (0, 0);
        }
        self.user += u64::from(count);
        true
    }

    /// Whether `count` entries of GC may enter now.
    pub fn admit_gc(&mut self, count: u32, user_is_active: bool) -> bool {
        if !user_is_active {
            return true;
        }
        if self.gc > self.gc_max {
            if self.user <= self.user_max {
                return false;
            }
            (self.user, self.gc) = (0, 0);
        }
        self.gc += u64::from(count);
        true
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    /// open-channel §7.6: 256 entries, high 10, reserve 4.
    const PAPER: Marks = Marks { budget: 256, high: 10, reserve: 4 };

    #[test]
    fn the_share_of_the_papers_channel_is_a_line_between_reserve_and_high() {
        let shares: Vec<u32> = (3..=11).map(|free| PAPER.linear_share(free)).collect();
        assert_eq!(shares, [0, 0, 42, 85, 128, 170, 213, 256, 256]);
    }

    #[test]
    fn pblks_windows_have_64_entries() {
        // high 448 of budget 8,192: 128 windows, so two bits of the free blocks are shifted out.
        let marks = Marks { budget: 8192, high: 448, reserve: 128 };
        let shares = [128, 129, 200, 256, 447, 448].map(|free| marks.window_share(free));
        assert_eq!(shares, [0, 32 * 64, 50 * 64, 64 * 64, 111 * 64, 8192]);
    }

    #[test]
    fn windows_count_what_is_in_the_ring() {
        let mut windows = Windows::new(Marks { budget: 128, high: 8, reserve: 2 }, 4);
        // ⌈log₂ 8⌉ − ⌈log₂ 2⌉ = 2: (4 >> 2) · 64.
        assert!(windows.admit_user(60) && !windows.admit_user(5) && windows.admit_user(4));
        assert!(windows.admit_gc(64, true) && !windows.admit_gc(1, true) && windows.admit_gc(1, false));
        windows.left(false);
        assert!(windows.admit_user(1) && !windows.admit_user(1));
        windows.set_free(2);
        assert!(!windows.admit_user(1), "at the reserve the user gets nothing");
    }

    proptest! {
        /// Whatever the interleaving, a round never admits more of one side than its limit and one request, and the ratio of long runs
        /// is that of the limits.
        #[test]
        fn rounds_keep_the_ratio_of_the_limits(
            free in prop::collection::vec(4..11u32, 1..5),
            asks in prop::collection::vec((any::<bool>(), 1..9u32), 2_000..3_000),
        ) {
            let mut scores = Scores::new(PAPER, &free);
            let (user_max, gc_max) = scores.limits();
            prop_assume!(user_max > 64 && gc_max > 64);
            let (mut user, mut gc, mut refused) = (0, 0, (0, 0));
            for (is_gc, count) in asks {
                let counts = u64::from(count);
                if is_gc {
                    if scores.admit_gc(count, true) { gc += counts } else { refused.1 += 1 }
                } else if scores.admit_user(count, true, true) { user += counts } else { refused.0 += 1 }
                // A round begins when both are above their limits.
                let rounds = 1 + user.min(gc) / user_max.min(gc_max);
                prop_assert!(user <= rounds * (user_max + 9) + user_max + 9);
                prop_assert!(scores.user <= user_max + 9 && scores.gc <= gc_max + 9);
            }
            // Never both in a row: one side always may.
            prop_assert!(scores.clone().admit_user(1, true, true) || scores.admit_gc(1, true));
            prop_assert!(user > 0 && gc > 0, "{refused:?}");
        }

        #[test]
        fn shares_grow_with_the_free_blocks(free in 0..600u32, high in 3..500u32, budget in 64..9000u32) {
            let marks = Marks { budget, high, reserve: high / 3 };
            for share in [Marks::linear_share, Marks::window_share] {
                let (less, more) = (share(marks, free), share(marks, free + 1));
                prop_assert!(less <= more || free + 1 == high, "{less} and {more}");
                prop_assert!(more <= budget);
            }
        }

        /// The sums follow each change of a group.
        #[test]
        fn sums_are_those_of_the_groups(changes in prop::collection::vec((0..4usize, 0..14u32), 0..50)) {
            let mut free = [10; 4];
            let mut scores = Scores::new(PAPER, &free);
            for (group, now) in changes {
                free[group] = now;
                scores.set_free(group, now);
                prop_assert_eq!(scores.limits(), Scores::new(PAPER, &free).limits());
            }
        }
    }

    #[test]
    fn without_copies_of_gc_the_user_does_not_wait() {
        let mut scores = Scores::new(PAPER, &[5]);
        let admitted = (0..100).filter(|_| scores.admit_user(8, true, true)).count();
        assert_eq!(admitted, 6, "42 entries, and the request that passes them");
        assert!(scores.admit_user(8, true, false), "GC has nothing to bring");
        let mut at_rest = Scores::new(PAPER, &[10]);
        assert!((0..1000).all(|_| at_rest.admit_user(64, false, false)));
    }
}
