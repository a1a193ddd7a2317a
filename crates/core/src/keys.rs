//! A priority queue of keys, each with a time.
//!
//! Invariant: the earliest key is the first one. A key holds the time in its upper half. Below it is the order in which
//! keys were made, so that no two are equal and keys of the same time are served in that order. Its last bits are a
//! slot number, under which the owner of the queue keeps what belongs to the key.

use crate::time::Instant;
use std::collections::VecDeque;
use std::hint::select_unpredictable;

/// Children of a heap node. Four keys fill a cache line, and the heap is half as deep as a binary one.
const ARITY: usize = 4;
/// Bits of a key that hold the owner's slot number. The 44 bits left for the order last for a year of simulated time of
/// a server with half a million events per second.
const PLACE_BITS: u32 = 20;

/// A time, an order and a slot number in one number.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Key(u128);

impl Key {
    /// Makes the key of the `order`-th entry. Panics beyond 2^44 entries, or if 2^20 of them are pending at once.
    #[inline]
    pub(crate) fn new(at: Instant, order: u64, place: u32) -> Self {
        assert!(order < 1 << (64 - PLACE_BITS) && place < 1 << PLACE_BITS, "thing {order} at place {place}");
        Self(u128::from(at.as_nanos()) << 64 | u128::from(order << PLACE_BITS | u64::from(place)))
    }

    #[inline]
    pub(crate) fn at(self) -> Instant {
        Instant::from_nanos((self.0 >> 64) as u64)
    }

    #[inline]
    pub(crate) fn order(self) -> u64 {
        self.0 as u64 >> PLACE_BITS
    }

    #[inline]
    pub(crate) fn place(self) -> usize {
        self.0 as usize & ((1 << PLACE_BITS) - 1)
    }
}

/// Number of keys that are kept sorted in front of the heap.
const NEAR_MAX: usize = 64;

/// A queue of keys. Keys that are due soon come and go without a way through the heap of later ones: while hundreds of
/// page programs are pending, neither the arrival nor the completion of a command that crosses the link enters the
/// heap.
#[derive(Clone, Debug, Default)]
pub(crate) struct Keys {
    /// Sorted keys, all earlier than those in the heap.
    near: VecDeque<Key>,
    heap: Heap,
}

impl Keys {
    #[inline]
    pub(crate) fn first(&self) -> Option<Key> {
        self.near.front().copied().or_else(|| self.heap.first())
    }

    pub(crate) fn len(&self) -> usize {
        self.near.len() + self.heap.0.len()
    }

    #[inline]
    pub(crate) fn push(&mut self, key: Key) {
        if self.heap.first().is_some_and(|later| later.0 < key.0) {
            return self.heap.push(key);
        }
        // Searches from the nearer end: what crosses a link comes before nearly all keys, the end of a program after
        // them.
        let middle = self.near.len() / 2;
        let at = match self.near.get(middle).is_some_and(|later| key.0 < later.0) {
            true => self.near.iter().take(middle).position(|later| key.0 < later.0).unwrap_or(middle),
            false => self.near.iter().rposition(|earlier| earlier.0 < key.0).map_or(0, |at| at + 1),
        };
        match at == self.near.len() {
            true => self.near.push_back(key),
            false => self.near.insert(at, key),
        }
        if self.near.len() > NEAR_MAX
            && let Some(last) = self.near.pop_back()
        {
            self.heap.push(last);
        }
    }

    /// Removes the first key and returns it.
    #[inline]
    pub(crate) fn pop(&mut self) -> Option<Key> {
        self.near.pop_front().or_else(|| self.heap.pop())
    }

    /// Removes the keys for which `keep` is false.
    pub(crate) fn retain(&mut self, mut keep: impl FnMut(&Key) -> bool) {
        self.near.retain(&mut keep);
        self.heap.0.retain(keep);
        self.heap.0.sort_unstable();
    }
}

/// A 4-ary heap of keys, the earliest first.
#[derive(Clone, Debug, Default)]
struct Heap(Vec<Key>);

impl Heap {
    #[inline]
    fn first(&self) -> Option<Key> {
        self.0.first().copied()
    }

    fn push(&mut self, key: Key) {
        self.0.push(key);
        self.rise(self.0.len() - 1);
    }

    /// Removes the first key. The hole sinks to the bottom of the heap, and the last key rises from there to its place,
    /// usually not far: this needs few comparisons, and those between children need no branch.
    fn pop(&mut self) -> Option<Key> {
        let last = self.0.pop()?;
        let Some(first) = self.first() else { return Some(last) };
        let heap = &mut self.0[..];
        let (mut at, mut below) = (0, 1);
        while let Some(children) = heap.get(below..).and_then(|heap| heap.first_chunk()) {
            let child = below + least(children);
            heap[at] = heap[child];
            (at, below) = (child, child * ARITY + 1);
        }
        // The last node may have fewer than four children.
        if let Some(child) = (below..heap.len()).min_by_key(|&child| heap[child].0) {
            heap[at] = heap[child];
            at = child;
        }
        heap[at] = last;
        self.rise(at);
        Some(first)
    }

    /// Moves the key at `at` up to its place.
    #[inline]
    fn rise(&mut self, mut at: usize) {
        let heap = &mut self.0[..];
        let key = heap[at];
        while at > 0 {
            let parent = (at - 1) / ARITY;
            if heap[parent].0 <= key.0 {
                break;
            }
            heap[at] = heap[parent];
            at = parent;
        }
        heap[at] = key;
    }
}

/// Returns the index of the smallest of four keys.
#[inline]
fn least(keys: &[Key; ARITY]) -> usize {
    // Compares plain numbers: the comparison of a struct has three outcomes.
    let is_less = |one: usize, other: usize| keys[one].0 < keys[other].0;
    let (left, right) = (usize::from(is_less(1, 0)), 2 + usize::from(is_less(3, 2)));
    select_unpredictable(is_less(right, left), right, left)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::random::RandomStream;
    use std::collections::BTreeSet;

    #[test]
    fn keys_come_in_their_order() {
        let (mut keys, mut model) = (Keys::default(), BTreeSet::new());
        let mut random = RandomStream::new(1, "keys");
        for order in 0..100_000 {
            // The heap grows and shrinks, so the last node gets every number of children.
            if random.chance(if order / 1_000 % 2 == 0 { 0.6 } else { 0.4 }) {
                let key =
                    Key::new(Instant::from_nanos(random.below(50)), order, random.below(1 << 20) as u32);
                keys.push(key);
                model.insert(key);
            } else {
                assert_eq!(keys.pop(), model.pop_first());
            }
            if random.chance(0.001) {
                keys.retain(|key| key.place() % 3 > 0);
                model.retain(|key| key.place() % 3 > 0);
            }
            assert_eq!((keys.first(), keys.len()), (model.first().copied(), model.len()));
        }
        let rest: Vec<Key> = std::iter::from_fn(|| keys.pop()).collect();
        assert!(rest.into_iter().eq(model));
    }

    #[test]
    fn a_key_has_three_parts() {
        let key = Key::new(Instant::from_nanos(u64::MAX), (1 << 44) - 1, 7);
        assert_eq!((key.at(), key.order(), key.place()), (Instant::from_nanos(u64::MAX), (1 << 44) - 1, 7));
        assert!(Key::new(Instant::ZERO, 2, 1) > Key::new(Instant::ZERO, 1, 9));
    }
}
