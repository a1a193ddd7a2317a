//! The map from logical to physical pages, in chunks that exist only where something was written.
//!
//! Invariants: an absent chunk reads as `Unmapped`; a word is one `u64`, so that a host FTL can exchange it
//! atomically (open-channel §3).

use flashweir_core::{Lpn, Ppa};

/// Words in one chunk: one memory page.
const CHUNK_WORDS: usize = 512;
const TAG_SHIFT: u32 = 62;
const VALUE: u64 = (1 << TAG_SHIFT) - 1;

/// Where the newest version of a logical page is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum MapWord {
    /// Never written or deallocated.
    Unmapped,
    /// In a slot of the buffer. The generation distinguishes a slot that was used again from the one that was meant; its low 30
    /// bits are kept.
    Cached { slot: u32, generation: u32 },
    /// On the medium.
    Direct(Ppa),
    /// Shared by several logical pages, through the table of virtual pages (share §3.4).
    Shared(u64),
}

const GENERATION_BITS: u32 = 30;

impl MapWord {
    /// Packs the word into one `u64`: two bits for its kind, 62 for its value. 0 is [`Self::Unmapped`].
    #[inline]
    pub fn pack(self) -> u64 {
        match self {
            Self::Unmapped => 0,
            Self::Direct(ppa) => (1 << TAG_SHIFT) | ppa.0,
            Self::Cached { slot, generation } => {
                let generation = u64::from(generation) & ((1 << GENERATION_BITS) - 1);
                (2 << TAG_SHIFT) | (generation << 32) | u64::from(slot)
            }
            Self::Shared(vpid) => (3 << TAG_SHIFT) | vpid,
        }
    }

    /// The word that [`Self::pack`] made.
    #[inline]
    pub fn unpack(word: u64) -> Self {
        let value = word & VALUE;
        match word >> TAG_SHIFT {
            0 => Self::Unmapped,
            1 => Self::Direct(Ppa(value)),
            2 => Self::Cached { slot: value as u32, generation: (value >> 32) as u32 },
            _ => Self::Shared(value),
        }
    }
}

/// The map of one namespace.
#[derive(Clone, Debug)]
pub struct Map {
    chunks: Vec<Option<Box<[u64; CHUNK_WORDS]>>>,
    len: u64,
}

impl Map {
    /// A map of `len` logical pages, all unmapped.
    pub fn new(len: u64) -> Self {
        let chunks = len.div_ceil(CHUNK_WORDS as u64) as usize;
        Self { chunks: vec![None; chunks], len }
    }

    /// Number of logical pages.
    pub fn len(&self) -> u64 {
        self.len
    }

    /// Whether the map covers nothing.
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// The word of `lpn`, which must be below [`Self::len`].
    #[inline]
    pub fn get(&self, lpn: Lpn) -> MapWord {
        debug_assert!(lpn.0 < self.len);
        let at = lpn.0 as usize;
        match &self.chunks[at / CHUNK_WORDS] {
            Some(chunk) => MapWord::unpack(chunk[at % CHUNK_WORDS]),
            None => MapWord::Unmapped,
        }
    }

    /// Asks the processor to load the word of `lpn` into its caches, for a lookup that comes soon. Changes no answer; pages
    /// outside of the map are skipped. A plain read would stall the following instructions until memory has answered, and the map
    /// is the one structure that does not fit into the caches.
    #[inline]
    pub fn prefetch(&self, lpn: Lpn) {
        let at = lpn.0 as usize;
        if let Some(Some(chunk)) = self.chunks.get(at / CHUNK_WORDS) {
            flashweir_core::prefetch(&chunk[at % CHUNK_WORDS]);
        }
    }

    /// Sets the word of `lpn` and returns the one before.
    #[inline]
    pub fn replace(&mut self, lpn: Lpn, word: MapWord) -> MapWord {
        debug_assert!(lpn.0 < self.len);
        let at = lpn.0 as usize;
        let chunk = &mut self.chunks[at / CHUNK_WORDS];
        if chunk.is_none() && word == MapWord::Unmapped {
            return MapWord::Unmapped;
        }
        let chunk = chunk.get_or_insert_with(|| Box::new([0; CHUNK_WORDS]));
        MapWord::unpack(std::mem::replace(&mut chunk[at % CHUNK_WORDS], word.pack()))
    }

    /// Every logical page that is not unmapped, in order.
    pub fn iter(&self) -> impl Iterator<Item = (Lpn, MapWord)> + '_ {
        self.chunks.iter().enumerate().filter_map(|(i, chunk)| Some((i, chunk.as_ref()?))).flat_map(
            |(i, chunk)| {
                chunk
                    .iter()
                    .enumerate()
                    .filter(|(_, word)| **word != 0)
                    .map(move |(k, word)| (Lpn((i * CHUNK_WORDS + k) as u64), MapWord::unpack(*word)))
            },
        )
    }

    /// The first page at or after `lpn` and below `end` that may be mapped. Absent chunks are skipped as a whole, so that
    /// deallocating an empty device costs nothing.
    pub fn next_present(&self, lpn: Lpn, end: Lpn) -> Option<Lpn> {
        let mut at = lpn.0;
        while at < end.0 {
            let chunk = at as usize / CHUNK_WORDS;
            if self.chunks[chunk].is_some() {
                return Some(Lpn(at));
            }
            at = (chunk as u64 + 1) * CHUNK_WORDS as u64;
        }
        None
    }

    /// Bytes of memory in use.
    pub fn memory_bytes(&self) -> u64 {
        let chunks = self.chunks.iter().flatten().count();
        (chunks * CHUNK_WORDS * 8 + self.chunks.len() * 8) as u64
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use std::collections::BTreeMap;

    fn words() -> impl Strategy<Value = MapWord> {
        prop_oneof![
            Just(MapWord::Unmapped),
            (0..1u64 << 62).prop_map(|p| MapWord::Direct(Ppa(p))),
            (any::<u32>(), 0..1u32 << 30).prop_map(|(slot, generation)| MapWord::Cached { slot, generation }),
            (0..1u64 << 62).prop_map(MapWord::Shared),
        ]
    }

    proptest! {
        #[test]
        fn a_word_is_read_back(word in words()) {
            prop_assert_eq!(MapWord::unpack(word.pack()), word);
        }

        #[test]
        fn the_map_is_a_function(steps in prop::collection::vec((0..3000u64, words()), 0..200)) {
            let mut map = Map::new(3000);
            let mut model = BTreeMap::new();
            for (lpn, word) in steps {
                let before = map.replace(Lpn(lpn), word);
                let expected = match word {
                    MapWord::Unmapped => model.remove(&lpn),
                    _ => model.insert(lpn, word),
                };
                prop_assert_eq!(before, expected.unwrap_or(MapWord::Unmapped));
                prop_assert_eq!(map.get(Lpn(lpn)), word);
            }
            let all: Vec<_> = map.iter().map(|(lpn, word)| (lpn.0, word)).collect();
            prop_assert_eq!(all, model.into_iter().collect::<Vec<_>>());
        }
    }

    #[test]
    fn absent_chunks_are_passed_over() {
        let mut map = Map::new(1 << 20);
        map.replace(Lpn(700_000), MapWord::Direct(Ppa(1)));
        let found = map.next_present(Lpn(0), Lpn(1 << 20)).unwrap();
        assert!(found.0 <= 700_000 && found.0 + 512 > 700_000);
        assert_eq!(map.next_present(Lpn(700_416), Lpn(1 << 20)), None);
    }
}
