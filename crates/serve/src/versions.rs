//! What a power cut may legally bring back on a device with a volatile buffer (kind D1 of crash-laboratory §1.2), beyond what our
//! own device happens to lose.
//!
//! For each mapping unit that was written since the last flush, every version since then may be what a device shows
//! after a cut, each unit for itself. Our device programs in the background and so keeps more than it has to. A program
//! that relies on that is wrong; drawing a version by a seed finds it.
//!
//! Invariant: the first version of a unit is durable, the others are newer and were all completed. Units are forgotten
//! when one version is left, and the oldest-numbered ones when there are too many: what the device shows for those is
//! legal as well.

use flashweir_core::random::mix;
use flashweir_core::{Lpn, Payload};
use std::collections::BTreeMap;

/// Most units of which versions are kept.
const UNITS_MAX: usize = 1 << 16;
/// Most versions of a unit.
const VERSIONS_MAX: usize = 64;

#[derive(Debug)]
struct Unit {
    /// Content that a flush or FUA made durable.
    durable: Payload,
    /// Completed since, with the order of their completions.
    newer: Vec<(u64, Payload)>,
    /// Number of writes in flight.
    in_flight: u32,
}

/// Versions of units that no flush covers yet.
#[derive(Debug, Default)]
pub(crate) struct Versions {
    units: BTreeMap<u64, Unit>,
    completions: u64,
}

impl Versions {
    /// Something that changes `units` is submitted; `content` tells what they hold now.
    pub(crate) fn submitted(&mut self, units: std::ops::Range<u64>, content: impl Fn(Lpn) -> Payload) {
        for lpn in units {
            let fresh = || Unit { durable: content(Lpn(lpn)), newer: Vec::new(), in_flight: 0 };
            self.units.entry(lpn).or_insert_with(fresh).in_flight += 1;
        }
        while self.units.len() > UNITS_MAX {
            self.units.pop_first();
        }
    }

    /// It has completed.
    pub(crate) fn completed(
        &mut self,
        units: std::ops::Range<u64>,
        durable: bool,
        content: impl Fn(Lpn) -> Payload,
    ) {
        self.completions += 1;
        let number = self.completions;
        self.ended(units, |lpn, unit| {
            let newest = content(lpn);
            // The newest one is always legal.
            match durable || unit.newer.len() == VERSIONS_MAX {
                true => (unit.durable, unit.newer) = (newest, Vec::new()),
                false => unit.newer.push((number, newest)),
            }
        });
    }

    /// It has failed: what it wrote may be there or not, and what was there before may still come back.
    pub(crate) fn failed(&mut self, units: std::ops::Range<u64>) {
        self.ended(units, |_, _| ());
    }

    fn ended(&mut self, units: std::ops::Range<u64>, note: impl Fn(Lpn, &mut Unit)) {
        for lpn in units {
            let Some(unit) = self.units.get_mut(&lpn) else { continue };
            unit.in_flight = unit.in_flight.saturating_sub(1);
            note(Lpn(lpn), unit);
            if unit.newer.is_empty() && unit.in_flight == 0 {
                self.units.remove(&lpn);
            }
        }
    }

    /// A flush that is submitted now covers what has completed up to this number.
    pub(crate) fn flush_covers(&self) -> u64 {
        self.completions
    }

    /// A flush that covers completions up to `covers` has completed.
    pub(crate) fn flushed(&mut self, covers: u64) {
        self.units.retain(|_, unit| {
            let count = unit.newer.iter().take_while(|(order, _)| *order <= covers).count();
            if let Some((_, newest)) = unit.newer.drain(..count).next_back() {
                unit.durable = newest;
            }
            !unit.newer.is_empty() || unit.in_flight > 0
        });
    }

    /// For each unit one of its versions, or `None` for the one that the device itself has kept, drawn by `seed`.
    pub(crate) fn draw(&self, seed: u64) -> Vec<(Lpn, Option<Payload>)> {
        let mut drawn = mix(seed);
        let pick = |(lpn, unit): (&u64, &Unit)| {
            drawn = mix(drawn ^ lpn);
            let at = (drawn % (unit.newer.len() as u64 + 2)) as usize;
            let version = match at {
                0 => Some(unit.durable.clone()),
                at => unit.newer.get(at - 1).map(|(_, payload)| payload.clone()),
            };
            (Lpn(*lpn), version)
        };
        self.units.iter().map(pick).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_a_flush_covers_is_the_oldest_that_can_come_back() {
        let mut versions = Versions::default();
        let holds = |tag| move |_| Payload::Tag(tag);
        versions.submitted(7..8, holds(1));
        versions.completed(7..8, false, holds(2));
        let covers = versions.flush_covers();
        versions.submitted(7..8, holds(2));
        versions.completed(7..8, false, holds(3));
        versions.flushed(covers);
        let drawn: std::collections::BTreeSet<_> =
            (0..100).map(|seed| versions.draw(seed)[0].1.as_ref().map(Payload::identity)).collect();
        assert_eq!(drawn, [None, Some(2), Some(3)].into());
        versions.flushed(versions.flush_covers());
        assert!(versions.draw(1).is_empty());
    }

    #[test]
    fn a_unit_that_is_never_flushed_keeps_so_many_versions() {
        let mut versions = Versions::default();
        for tag in 1..1_000 {
            versions.submitted(7..8, |_| Payload::Tag(tag - 1));
            versions.completed(7..8, false, |_| Payload::Tag(tag));
            assert!(versions.units.get(&7).is_none_or(|unit| unit.newer.len() <= VERSIONS_MAX));
        }
        let drawn = (0..1_000).filter_map(|seed| versions.draw(seed)[0].1.as_ref().map(Payload::identity));
        let oldest = drawn.min().unwrap();
        assert!((900..999).contains(&oldest), "{oldest}");
        // What has failed is not under way for ever.
        versions.submitted(7..8, |_| Payload::Zero);
        versions.failed(7..8);
        versions.flushed(versions.flush_covers());
        assert!(versions.draw(1).is_empty());
    }

    #[test]
    fn fua_makes_durable_at_once() {
        let mut versions = Versions::default();
        versions.submitted(1..3, |_| Payload::Zero);
        versions.completed(1..3, true, |_| Payload::Tag(5));
        assert!(versions.draw(1).is_empty());
    }
}
