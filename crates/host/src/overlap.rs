//! An index of the sectors that waiting requests touch.
//!
//! Invariant: a range is in the index from the submission of its request until the device has taken it.

use std::collections::VecDeque;

/// Namespace, first sector, number of the submission.
type Key = (u16, u64, u64);

#[derive(Clone, Copy, Debug)]
struct Range {
    blocks: u64,
    changes: bool,
    request: u32,
}

/// Ranges of waiting requests, sorted by key: to find requests that must not pass each other, and requests that can be
/// merged. Few requests wait at a time, or they come and go at the ends, so insertion moves few entries.
#[derive(Clone, Debug, Default)]
pub(crate) struct Overlaps {
    ranges: VecDeque<(Key, Range)>,
    /// Length of the longest range since the index was last empty: a range that touches a sector begins at most this
    /// far before it.
    longest: u64,
}

impl Overlaps {
    pub(crate) fn insert(&mut self, key: Key, blocks: u64, changes: bool, request: u32) {
        if blocks == 0 {
            return;
        }
        self.longest = self.longest.max(blocks);
        let at = match self.find(key) {
            Ok(at) => at,
            Err(at) => {
                let range = (key, Range { blocks, changes, request });
                match at == self.ranges.len() {
                    true => self.ranges.push_back(range),
                    false => self.ranges.insert(at, range),
                }
                return;
            }
        };
        let range = &mut self.ranges[at].1;
        // Two ranges of one SHARE may begin at the same sector.
        range.blocks = range.blocks.max(blocks);
        range.changes |= changes;
        range.request = request;
    }

    /// Returns the position of a key, or the position where it belongs. Most keys come and leave in ascending order.
    fn find(&self, key: Key) -> Result<usize, usize> {
        if self.ranges.front().is_some_and(|&(first, _)| first == key) {
            return Ok(0);
        }
        if self.ranges.back().is_none_or(|&(last, _)| last < key) {
            return Err(self.ranges.len());
        }
        self.ranges.binary_search_by_key(&key, |&(key, _)| key)
    }

    pub(crate) fn remove(&mut self, key: Key) {
        match self.find(key) {
            Ok(0) => drop(self.ranges.pop_front()),
            Ok(at) => drop(self.ranges.remove(at)),
            Err(_) => {}
        }
        if self.ranges.is_empty() {
            self.longest = 0;
        }
    }

    #[cfg(test)]
    pub(crate) fn len(&self) -> usize {
        self.ranges.len()
    }

    /// Examines the neighbourhood of a range in one pass. Adds to `conflicts` the requests that overlap it if one of
    /// the two changes something. Returns a request for which `fits` says that it can be merged; `fits` gets the
    /// request and whether it begins where the range ends (true) or ends where the range begins (false). Requests that
    /// end where the range begins are preferred, among them the one that begins last.
    pub(crate) fn look(
        &self,
        ns: u16,
        (first, blocks): (u64, u64),
        changes: bool,
        conflicts: &mut Vec<u32>,
        mut fits: impl FnMut(u32, bool) -> bool,
    ) -> Option<u32> {
        let from = (ns, first.saturating_sub(self.longest), 0);
        let end = first + blocks;
        if self.ranges.back().is_none_or(|&(last, _)| last < from) {
            return None;
        }
        let (mut before, mut behind) = (None, None);
        let from = self.ranges.partition_point(|&(key, _)| key < from);
        let to = self.ranges.partition_point(|&(key, _)| key < (ns, end + 1, 0));
        for ((_, begins, _), range) in self.ranges.range(from..to).rev().copied() {
            let ends = begins + range.blocks;
            if begins == end {
                behind = behind.or_else(|| fits(range.request, true).then_some(range.request));
            } else if ends == first {
                before = before.or_else(|| fits(range.request, false).then_some(range.request));
            } else if ends > first && (changes || range.changes) {
                conflicts.push(range.request);
            }
        }
        before.or(behind)
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
            overlaps.look(0, (first, blocks), changes, &mut out, |_, _| false);
            out
        };
        assert_eq!(find(&overlaps, 149, 1, true), [2, 1]);
        assert_eq!(find(&overlaps, 149, 1, false), [1]);
        assert_eq!(find(&overlaps, 150, 100, true), [2]);
        assert_eq!(find(&overlaps, 90, 10, true), [0; 0]);
        assert_eq!(find(&overlaps, 0, 1000, true), [2, 1]);
        overlaps.remove((0, 100, 1));
        assert_eq!(find(&overlaps, 0, 1000, true), [2]);
    }

    /// Ranges of one SHARE have one key if they begin at the same sector: the longer one counts, and a change.
    #[test]
    fn ranges_with_one_key_are_one_range() {
        for lengths in [[5, 50], [50, 5]] {
            let mut overlaps = Overlaps::default();
            overlaps.insert((0, 100, 1), lengths[0], false, 1);
            overlaps.insert((0, 100, 1), lengths[1], true, 2);
            assert_eq!(overlaps.len(), 1);
            let find = |first| {
                let mut out = Vec::new();
                overlaps.look(0, (first, 1), false, &mut out, |_, _| false);
                out
            };
            assert_eq!((find(99), find(100), find(149), find(150)), (vec![], vec![2], vec![2], vec![]));
        }
    }

    #[test]
    fn neighbours_are_asked_whether_they_can_be_merged() {
        let mut overlaps = Overlaps::default();
        overlaps.insert((0, 80, 1), 20, true, 1);
        overlaps.insert((0, 90, 2), 10, false, 2);
        overlaps.insert((0, 110, 3), 5, true, 3);
        overlaps.insert((0, 110, 4), 5, true, 4);
        let look = |fitting: &[u32]| {
            let (mut conflicts, mut asked) = (Vec::new(), Vec::new());
            let found = overlaps.look(0, (100, 10), true, &mut conflicts, |request, is_behind| {
                asked.push((request, is_behind));
                fitting.contains(&request)
            });
            assert_eq!(conflicts, [0; 0]);
            (found, asked)
        };
        assert_eq!(look(&[]), (None, vec![(4, true), (3, true), (2, false), (1, false)]));
        assert_eq!(look(&[1, 3, 4]), (Some(1), vec![(4, true), (2, false), (1, false)]));
        assert_eq!(look(&[2, 3]).0, Some(2));
        assert_eq!(look(&[3]).0, Some(3));
    }
}
