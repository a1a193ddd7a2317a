//! The set of pages that a trace accesses.
//!
//! Place: `info` adds each request and reads the counts at the end.
//!
//! Memory: a group of sixty-four pages is a number and a 64-bit word in a tree, so dense pages cost two to three bits
//! each, and an isolated one some 20 bytes.

use std::collections::BTreeMap;
use std::ops::Range;

/// Number of pages in a word.
const WORD: u64 = 64;

/// A set of pages: a word of bits for each group of [`WORD`] pages.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct PageSet(BTreeMap<u64, u64>);

impl PageSet {
    /// Adds all pages of a range.
    pub(super) fn insert(&mut self, pages: Range<u64>) {
        if pages.is_empty() {
            return;
        }
        let last = pages.end - 1;
        for word in pages.start / WORD..=last / WORD {
            let from = if word == pages.start / WORD { pages.start % WORD } else { 0 };
            let to = if word == last / WORD { last % WORD } else { WORD - 1 };
            *self.0.entry(word).or_default() |= (u64::MAX >> (WORD - 1 - (to - from))) << from;
        }
    }

    /// Returns the number of pages in the set.
    pub(super) fn len(&self) -> u64 {
        self.0.values().map(|bits| u64::from(bits.count_ones())).sum()
    }

    /// Returns the number of pages in the union of two sets.
    pub(super) fn union_len(&self, other: &Self) -> u64 {
        let common = self.0.iter().filter_map(|(word, bits)| Some(bits & other.0.get(word)?));
        let common: u64 = common.map(|bits| u64::from(bits.count_ones())).sum();
        self.len() + other.len() - common
    }
}

#[cfg(test)]
mod tests {
    use super::PageSet;
    use flashweir_core::random::RandomStream;
    use std::collections::BTreeSet;

    #[test]
    fn counts_are_those_of_a_set_of_numbers() {
        let mut random = RandomStream::new(7, "pages");
        let (mut sets, mut models) =
            ([(); 2].map(|()| PageSet::default()), [(); 2].map(|()| BTreeSet::new()));
        for turn in 0..4_000 {
            let from = random.below(20_000) + if random.chance(0.1) { u64::MAX / 2 } else { 0 };
            let pages = from..from + random.below(200);
            sets[turn % 2].insert(pages.clone());
            models[turn % 2].extend(pages);
        }
        for (set, model) in sets.iter().zip(&models) {
            assert_eq!(set.len(), model.len() as u64);
        }
        assert_eq!(sets[0].union_len(&sets[1]), models[0].union(&models[1]).count() as u64);
    }

    #[test]
    fn a_range_ends_before_its_end_also_at_words() {
        for (pages, count) in
            [(0..0, 0), (63..64, 1), (0..64, 64), (63..65, 2), (64..192, 128), (1..191, 190)]
        {
            let mut set = PageSet::default();
            set.insert(pages);
            assert_eq!(set.len(), count);
        }
    }
}
