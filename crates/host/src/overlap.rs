//! Which waiting requests touch the same blocks.
//!
//! Invariant: a range is in here from the submission of its request until the device has taken it.

use std::collections::BTreeMap;

/// Namespace, first block, number of the submission.
type Key = (u16, u64, u64);

#[derive(Clone, Copy, Debug)]
struct Range {
    blocks: u64,
    changes: bool,
    request: u32,
}

/// Ranges of waiting requests, by their first blocks: for those that must not pass each other, and for those that can be
/// merged.
#[derive(Clone, Debug, Default)]
pub(crate) struct Overlaps {
    ranges: BTreeMap<Key, Range>,
    /// No range since the last time of none is longer: how far before a block one that touches it can begin.
    longest: u64,
}

impl Overlaps {
    pub(crate) fn insert(&mut self, key: Key, blocks: u64, changes: bool, request: u32) {
        if blocks == 0 {
            return;
        }
        self.longest = self.longest.max(blocks);
        let range = self.ranges.entry(key).or_insert(Range { blocks, changes, request });
        // Two ranges of one SHARE may begin at the same block.
        range.blocks = range.blocks.max(blocks);
        range.changes |= changes;
        range.request = request;
    }

    pub(crate) fn remove(&mut self, key: Key) {
        self.ranges.remove(&key);
        if self.ranges.is_empty() {
            self.longest = 0;
        }
    }

    #[cfg(test)]
    pub(crate) fn len(&self) -> usize {
        self.ranges.len()
    }

    /// Adds those requests to `out` that touch the range, if one of the two changes something.
    pub(crate) fn find(&self, ns: u16, first: u64, blocks: u64, changes: bool, out: &mut Vec<u32>) {
        let from = (ns, first.saturating_sub(self.longest), 0);
        for (&(_, begins, _), range) in self.ranges.range(from..(ns, first + blocks, 0)) {
            if begins + range.blocks > first && (changes || range.changes) {
                out.push(range.request);
            }
        }
    }

    /// The requests of ranges that end where a block begins, the one that begins last first.
    pub(crate) fn ending_at(&self, ns: u16, block: u64) -> impl Iterator<Item = u32> {
        let from = (ns, block.saturating_sub(self.longest), 0);
        let ranges = self.ranges.range(from..(ns, block, 0)).rev();
        let ending = ranges.filter(move |((_, begins, _), range)| begins + range.blocks == block);
        ending.map(|(_, range)| range.request)
    }

    /// The requests of ranges that begin with a block, the latest first.
    pub(crate) fn beginning_at(&self, ns: u16, block: u64) -> impl Iterator<Item = u32> {
        self.ranges.range((ns, block, 0)..(ns, block + 1, 0)).rev().map(|(_, range)| range.request)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ranges_that_touch_are_found_unless_both_only_read() {
        let mut overlaps = Overlaps::default();
        overlaps.insert((0, 100, 1), 50, true, 1);
        overlaps.insert((0, 140, 2), 20, false, 2);
        overlaps.insert((1, 140, 3), 20, true, 3);
        let find = |overlaps: &Overlaps, first, blocks, changes| {
            let mut out = Vec::new();
            overlaps.find(0, first, blocks, changes, &mut out);
            out
        };
        assert_eq!(find(&overlaps, 149, 1, true), [1, 2]);
        assert_eq!(find(&overlaps, 149, 1, false), [1]);
        assert_eq!(find(&overlaps, 150, 100, true), [2]);
        assert_eq!(find(&overlaps, 90, 10, true), [0; 0]);
        assert_eq!(find(&overlaps, 0, 1000, true), [1, 2]);
        overlaps.remove((0, 100, 1));
        assert_eq!(find(&overlaps, 0, 1000, true), [2]);
    }
}
