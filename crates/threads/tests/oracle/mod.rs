//! What a disk may answer to several threads, and after a power cut.
//!
//! Each content names its unit and its write, and is torn-proof: every word depends on both. Instants come from one counter. A read is
//! wrong if it returns a write that had ended before another one began whose answer came before the read. After a power cut the same
//! holds for what a FLUSH or FUA had covered, and nothing that was lost ever comes back.
//!
//! Deliberately absent: atomics of the models. What the oracle does is no turn of a schedule.

use flashweir_core::Lpn;
use flashweir_threads::content::{Unit, WORDS};
use flashweir_threads::{Disk, Handle};
use std::sync::atomic::{AtomicU64, Ordering};

/// Numbers that look random.
pub(crate) struct Random(pub(crate) u64);

impl Random {
    pub(crate) fn below(&mut self, limit: u64) -> u64 {
        self.0 = self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (self.0 >> 33) % limit
    }
}

pub(crate) fn content(lpn: u64, write: u64) -> Unit {
    std::array::from_fn(|at| match at {
        0 => lpn,
        1 => write,
        at => (lpn ^ write << 20).wrapping_mul(at as u64 | 1),
    })
}

/// Which write a content is of; 0 for zeros.
pub(crate) fn write_of(lpn: u64, unit: &Unit) -> u64 {
    if *unit == [0; WORDS] {
        return 0;
    }
    assert_eq!(*unit, content(lpn, unit[1]), "unit {lpn} is torn or another one's");
    unit[1]
}

/// What was written, answered and made durable, and when.
pub(crate) struct Oracle {
    clock: AtomicU64,
    pub(crate) next: AtomicU64,
    /// For each write, when it had ended; 0 while it has not.
    ends: Vec<AtomicU64>,
    /// For each write, its unit.
    units: Vec<AtomicU64>,
    /// For each unit, the latest beginning of a write that was answered, and of one that is durable.
    answered: Vec<AtomicU64>,
    durable: Vec<AtomicU64>,
    /// The first write of this life, and for each unit the write that the last power cut left.
    pub(crate) life: u64,
    left: Vec<u64>,
}

impl Oracle {
    pub(crate) fn new(units: u64, writes: u64) -> Self {
        let cells = |count: u64| (0..=count).map(|_| AtomicU64::new(0)).collect();
        Self {
            clock: AtomicU64::new(1),
            next: AtomicU64::new(1),
            ends: cells(writes),
            units: cells(writes),
            answered: cells(units),
            durable: cells(units),
            life: 1,
            left: vec![0; units as usize],
        }
    }

    fn now(&self) -> u64 {
        self.clock.fetch_add(1, Ordering::SeqCst)
    }

    /// Asserts that a read which began when `after` stood in a unit's latest beginning may return this.
    fn check(&self, lpn: u64, unit: &Unit, after: u64, what: &str) -> u64 {
        let write = write_of(lpn, unit);
        let is_known = write == self.left[lpn as usize] || write >= self.life;
        assert!(is_known, "{what}: unit {lpn} has write {write}, which was lost");
        if write > 0 {
            assert_eq!(self.units[write as usize].load(Ordering::SeqCst), lpn, "{what}: unit {lpn}");
        }
        let end =
            if write == 0 { u64::from(after > 0) } else { self.ends[write as usize].load(Ordering::SeqCst) };
        assert!(
            end == 0 || end >= after,
            "{what}: unit {lpn} has write {write}, which ended at {end}, though one began at {after}"
        );
        write
    }
}

/// One thread's requests until the power is lost or `count` are done.
pub(crate) fn work(oracle: &Oracle, mut handle: Handle, seed: u64, count: u64) {
    let mut random = Random(seed);
    let units = oracle.left.len() as u64;
    let mut unflushed: Vec<(u64, u64)> = Vec::new();
    for _ in 0..count {
        // Some units are wanted often, so that versions meet in rings.
        let lpn = if random.below(4) == 0 { random.below(8) } else { random.below(units) };
        match random.below(20) {
            0 | 8 => {
                let covered = std::mem::take(&mut unflushed);
                if handle.flush().is_err() {
                    return;
                }
                for (lpn, begin) in covered {
                    oracle.durable[lpn as usize].fetch_max(begin, Ordering::SeqCst);
                }
            }
            1..=6 => {
                let after = oracle.answered[lpn as usize].load(Ordering::SeqCst);
                let mut unit = [[0; WORDS]];
                if handle.read(Lpn(lpn), &mut unit).is_err() {
                    return;
                }
                oracle.check(lpn, &unit[0], after, "a read");
            }
            kind => {
                let many = if kind == 7 { 1 + random.below(6).min(units - lpn - 1) } else { 1 };
                let first = oracle.next.fetch_add(many, Ordering::SeqCst);
                if first + many >= oracle.ends.len() as u64 {
                    return;
                }
                for at in 0..many {
                    oracle.units[(first + at) as usize].store(lpn + at, Ordering::SeqCst);
                }
                let contents: Vec<Unit> = (0..many).map(|at| content(lpn + at, first + at)).collect();
                let (begin, fua) = (oracle.now(), random.below(30) == 0);
                if handle.write(Lpn(lpn), &contents, fua).is_err() {
                    return;
                }
                let end = oracle.now();
                for at in 0..many {
                    oracle.ends[(first + at) as usize].store(end, Ordering::SeqCst);
                    let cells = if fua { &oracle.durable } else { &oracle.answered };
                    cells[(lpn + at) as usize].fetch_max(begin, Ordering::SeqCst);
                    oracle.answered[(lpn + at) as usize].fetch_max(begin, Ordering::SeqCst);
                    unflushed.push((lpn + at, begin));
                }
            }
        }
    }
}

/// Has everything written, and checks the accounts. Every request was answered.
pub(crate) fn settle(disk: &Disk) {
    disk.handle().unwrap().flush().unwrap();
    disk.audit();
}

/// Reads all of a recovered disk; what is there is what the next life begins with.
pub(crate) fn judge(oracle: &mut Oracle, disk: &Disk, what: &str) {
    let mut handle = disk.handle().unwrap();
    let mut unit = [[0; WORDS]];
    for lpn in 0..oracle.left.len() as u64 {
        handle.read(Lpn(lpn), &mut unit).unwrap();
        let after = oracle.durable[lpn as usize].load(Ordering::SeqCst);
        oracle.left[lpn as usize] = oracle.check(lpn, &unit[0], after, what);
        oracle.answered[lpn as usize].store(0, Ordering::SeqCst);
    }
    oracle.life = oracle.next.load(Ordering::SeqCst);
}
