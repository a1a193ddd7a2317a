//! Keys of many things that each have a time: which comes next.
//!
//! Invariant: the earliest key is the first one. A key has the time in its upper half; below it the order in which keys were
//! made, so that no two are equal and those of one time are served in their order; and in its last bits a place, where the
//! owner keeps what belongs to it.

use crate::time::Instant;
use std::collections::VecDeque;
use std::hint::select_unpredictable;

/// Children of a node. Four keys are as long as a cache line, and the heap is half as deep as a binary one.
const ARITY: usize = 4;
/// Bits of a key that say where its owner keeps what belongs to it. What is left for the order lasts for a year of a server
/// with half a million moments a second.
const PLACE_BITS: u32 = 20;

/// A key.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Key(u128);

impl Key {
    /// Of the `order`-th thing. Panics beyond 2^44 things, or where 2^20 of them wait at a time.
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

/// Keys that are kept in order.
const NEAR_MAX: usize = 64;

/// The keys. What is soon comes and goes without a way through the heap of what is later: of a command that crosses a link
/// while hundreds of pages are programmed neither its arrival nor its completion gets there.
#[derive(Clone, Debug, Default)]
pub(crate) struct Keys {
    /// In order, and before all that are in the heap.
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
        // From the end that is nearer: what crosses a link comes before nearly all, the end of a program behind them.
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

    /// Takes out the first key.
    #[inline]
    pub(crate) fn pop(&mut self) -> Option<Key> {
        self.near.pop_front().or_else(|| self.heap.pop())
    }

    /// Takes out the keys that are not to be kept.
    pub(crate) fn retain(&mut self, mut keep: impl FnMut(&Key) -> bool) {
        self.near.retain(&mut keep);
        self.heap.0.retain(keep);
        self.heap.0.sort_unstable();
    }
}

/// A heap of keys, the earliest first.
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

    /// Takes out the first key. Its place goes down to the end of the heap, and there the last key rises to where it
    /// belongs, which is most often not far: so there are few comparisons, and those between children predict nothing.
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
        // At the end there may be fewer of them.
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

/// The number of the least of four keys.
#[inline]
fn least(keys: &[Key; ARITY]) -> usize {
    // As plain numbers: the comparison of a structure has three outcomes.
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
            // It grows and shrinks, through all numbers of children of the last node.
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
