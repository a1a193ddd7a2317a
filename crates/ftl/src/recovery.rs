//! Recovery as a pure fold over what was found on the medium (spec 6.5, without streams).
//!
//! Inputs: the newest complete checkpoint, the deallocations logged since, and the out-of-band areas of the
//! blocks that the checkpoint does not vouch for. Output: which physical unit holds each logical page.
//!
//! Invariants:
//! 1. A version at or below the checkpoint's horizon counts only if the checkpoint references the same
//!    `(lpn, seq)`: discarded versions stay dead, copies made by collection stay alive.
//! 2. Among the versions that count, the highest sequence number wins; a deallocation with a higher one
//!    unmaps the page.
//! 3. The result depends on the set of inputs, not on their order, except that of two copies of the same
//!    version the one that was given first is chosen.

use flashweir_core::{Lpn, Ppa};

/// A deallocation that reached the log.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TrimRecord {
    /// First logical page.
    pub lpn: Lpn,
    /// Number of logical pages.
    pub count: u64,
    /// Sequence number of the command.
    pub seq: u64,
}

/// One mapping of a checkpoint.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Mapping {
    /// Logical page.
    pub lpn: Lpn,
    /// Where it was when the checkpoint was taken.
    pub ppa: Ppa,
    /// Sequence number of that version.
    pub seq: u64,
}

/// The fold.
#[derive(Clone, Debug)]
pub struct Fold {
    horizon: u64,
    /// Sequence number that the checkpoint references; 0 is none.
    vouched: Vec<u64>,
    /// Best version so far: sequence number (0 is none) and place.
    best: Vec<(u64, Ppa)>,
    seq_max: u64,
}

impl Fold {
    /// An empty fold for `units` logical pages.
    pub fn new(units: u64, horizon: u64) -> Self {
        let units = units as usize;
        Self { horizon, vouched: vec![0; units], best: vec![(0, Ppa(0)); units], seq_max: horizon }
    }

    /// A mapping of the checkpoint; `trusted` if its block was closed before and not opened since, so that
    /// the unit need not be read to know that it is there.
    pub fn checkpoint(&mut self, mapping: Mapping, trusted: bool) {
        let Some(vouched) = self.vouched.get_mut(mapping.lpn.0 as usize) else { return };
        *vouched = mapping.seq;
        self.seq_max = self.seq_max.max(mapping.seq);
        if trusted {
            self.offer(mapping);
        }
    }

    /// A version found on the medium. All mappings of the checkpoint were given before.
    pub fn found(&mut self, version: Mapping) {
        let Some(&vouched) = self.vouched.get(version.lpn.0 as usize) else { return };
        self.seq_max = self.seq_max.max(version.seq);
        if version.seq > self.horizon || version.seq == vouched {
            self.offer(version);
        }
    }

    fn offer(&mut self, version: Mapping) {
        let best = &mut self.best[version.lpn.0 as usize];
        if version.seq > best.0 {
            *best = (version.seq, version.ppa);
        }
    }

    /// A logged deallocation. All versions were given before.
    pub fn trim(&mut self, trim: TrimRecord) {
        self.seq_max = self.seq_max.max(trim.seq);
        let end = (trim.lpn.0.saturating_add(trim.count)).min(self.best.len() as u64);
        for lpn in trim.lpn.0.min(end)..end {
            let best = &mut self.best[lpn as usize];
            if best.0 < trim.seq {
                *best = (0, Ppa(0));
            }
        }
    }

    /// The highest sequence number seen.
    pub fn seq_max(&self) -> u64 {
        self.seq_max
    }

    /// Every mapped page, in order.
    pub fn mappings(&self) -> impl Iterator<Item = Mapping> + '_ {
        let pages = self.best.iter().enumerate().filter(|(_, (seq, _))| *seq != 0);
        pages.map(|(lpn, &(seq, ppa))| Mapping { lpn: Lpn(lpn as u64), ppa, seq })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn version(lpn: u64, seq: u64, ppa: u64) -> Mapping {
        Mapping { lpn: Lpn(lpn), ppa: Ppa(ppa), seq }
    }

    #[test]
    fn discarded_versions_stay_dead_and_copies_stay_alive() {
        let mut fold = Fold::new(4, 100);
        fold.checkpoint(version(0, 50, 7), false);
        fold.found(version(0, 80, 9));
        fold.found(version(0, 50, 11));
        fold.found(version(1, 60, 12));
        assert_eq!(fold.mappings().collect::<Vec<_>>(), [version(0, 50, 11)]);
    }

    #[test]
    fn the_highest_version_wins_and_trims_kill_older_ones() {
        let mut fold = Fold::new(4, 0);
        for v in [version(0, 3, 30), version(0, 5, 50), version(1, 4, 40), version(2, 9, 90)] {
            fold.found(v);
        }
        fold.trim(TrimRecord { lpn: Lpn(1), count: 10, seq: 6 });
        assert_eq!(fold.mappings().collect::<Vec<_>>(), [version(0, 5, 50), version(2, 9, 90)]);
        assert_eq!(fold.seq_max(), 9);
    }
}
